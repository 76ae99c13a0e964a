//! Short and long help, completions and man pages.

mod cli_support;

use std::process::{Command, Stdio};

use cli_support::{ROCKMILL, Sandbox};

/// The commands that the help lists.
fn commands(s: &Sandbox) -> Vec<String> {
    let top = s.ok(&["-h"]);
    let listed = top.split("Commands:\n").nth(1).and_then(|t| t.split("\n\n").next()).expect("a list");
    let names = listed.lines().filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
    let all: Vec<String> = names.filter(|n| *n != "help").map(str::to_owned).collect();
    assert!(all.len() > 25 && all.contains(&"put".to_owned()), "{all:?}");
    all
}

#[test]
fn h_is_short_and_help_is_long() {
    let s = Sandbox::new();
    for command in &commands(&s) {
        let (short, long) = (s.ok(&[command, "-h"]), s.ok(&[command, "--help"]));
        assert!(short.lines().count() <= 40, "{command} -h:\n{short}");
        assert!(!short.contains("Store options") && !short.contains("Examples:"), "{command} -h:\n{short}");
        assert!(short.trim_end().ends_with("--help has examples, and every option"), "{command} -h:\n{short}");
        assert!(long.contains("Examples:") && !long.contains("--help has examples"), "{command} --help:\n{long}");
    }
    assert!(s.ok(&["load", "--help"]).contains("--write-buffer-size"));
    let (short, long) = (s.ok(&["bench", "-h"]), s.ok(&["bench", "--help"]));
    assert!(short.contains("--benchmarks") && !short.contains("--mix_get_ratio"), "{short}");
    assert!(long.contains("--mix_get_ratio"), "{long}");
    for text in [short, long, s.ok(&["bench", "compact", "-h"]), s.ok(&["bench", "offload", "--help"])] {
        assert!(text.starts_with("rockmill bench") && !text.contains("rockmill-bench"), "{text}");
    }
    for command in ["load", "write-sst"] {
        let short = s.ok(&[command, "-h"]);
        assert!(short.contains("--format") && short.contains("--key-column"), "what a load needs:\n{short}");
        assert!(!short.contains("--batch") && !short.contains("--trust-paths"), "{short}");
    }
    let (short, long) = (s.ok(&["stress", "-h"]), s.ok(&["stress", "--help"]));
    assert!(
        short.contains("--kill-every") && short.contains("--config") && !short.contains("--judge-after"),
        "{short}"
    );
    assert!(long.contains("--judge-after") && long.contains("Shares of operations"), "{long}");
    let (short, long) = (s.ok(&["simulate", "-h"]), s.ok(&["simulate", "--help"]));
    assert!(short.contains("--strategy") && short.contains("--report") && !short.contains("--device-sync"), "{short}");
    assert!(long.contains("--device-sync") && long.contains("--merge-ns-per-byte"), "{long}");
    assert!(s.ok(&["-h"]).lines().count() <= 50);
    assert!(s.ok(&["--help"]).contains("Exit codes:"));
}

#[test]
fn every_shell_gets_completions() {
    let s = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = s.ok(&["completions", shell]);
        for word in ["multi-get", "write-buffer-size", "column-family"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    s.run(&["completions", "tcsh"]).fails(2, &["tcsh", "bash"]);
}

/// Completions as bash requests them.
#[test]
fn bash_completes_commands_and_flags() {
    let s = Sandbox::new();
    s.file("c.bash", s.ok(&["completions", "bash"]));
    let offered = |words: &str| {
        let ask = format!(
            "source ./c.bash; COMP_WORDS=(rockmill {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _rockmill rockmill \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$((COMP_CWORD - 1))]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        let done = bash.args(["-c", &ask]).current_dir(s.dir.path()).stdin(Stdio::null()).output().expect("bash runs");
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{words}");
        String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(offered("comp"), ["compact", "completions"]);
    assert_eq!(offered("scan --rev"), ["--reverse"]);
    assert_eq!(offered("load --compression l"), ["lz4"]);
    assert_eq!(offered("backup cr"), ["create"]);
}

#[test]
fn every_command_has_a_man_page() {
    let s = Sandbox::new();
    assert!(s.ok(&["man-pages", "man/man1"]).ends_with("pages in man/man1\n"));
    let page = |name: &str| std::fs::read_to_string(s.path(&format!("man/man1/{name}.1"))).expect(name);
    for command in commands(&s) {
        let text = page(&format!("rockmill-{command}"));
        assert!(text.contains(&format!(".TH rockmill-{command} 1")), "{command}:\n{text}");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
            assert!(text.contains(section), "{command}: no {section}");
        }
        assert!(command == "bench" || text.contains(".SH EXAMPLES\n.nf\n\\&rockmill "), "{command}:\n{text}");
    }
    assert!(page("rockmill-backup-create").contains("incremental") || !page("rockmill-backup-create").is_empty());
    let top = page("rockmill");
    assert!(top.contains(".SH EXIT CODES") && top.contains("rockmill\\-load(1)"), "{top}");
    assert!(!s.path("man/man1/rockmill-stress-child.1").exists());

    let json = s.json(&["man-pages", "other"]);
    assert!(json["pages"].as_array().is_some_and(|p| p.len() > 30), "{json}");
    s.file("file", "x");
    s.run(&["man-pages", "file"]).fails(3, &["file"]);
    assert!(std::path::Path::new(ROCKMILL).exists());
}

/// Lines from a pipe: each is a command on the database, until one fails.
#[test]
fn a_shell_does_its_lines() {
    let s = Sandbox::new();
    s.ok(&["put", "db", "ada", "1815", "--create"]);
    let shell = |lines: &str| {
        let mut child = Command::new(ROCKMILL)
            .args(["shell", "db"])
            .current_dir(s.dir.path())
            .env("HOME", s.dir.path())
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), lines.as_bytes()).expect("written");
        let done = child.wait_with_output().expect("ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let (code, out, err) = shell("# a note\n\nput 'the key' \"a value\"\nget 'the key'\nget ada --json\nget ada\n");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    // To a pipe, a value is its bytes and nothing else.
    assert!(out.starts_with("a value{") && out.contains("\"1815\"") && out.ends_with("1815"), "{out}");
    let (code, out, _) = shell("create-cf sessions\nuse sessions\nput s1 ada\nscan\nuse\nget s1\nget ada\n");
    assert_eq!(code, Some(1), "a key that is not there ends it: {out}");
    assert!(out.contains("s1\tada") && !out.contains("1815"), "{out}");
    let (code, out, err) = shell("gett ada\n");
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("\"gett\" is not a command of the shell") && err.contains("did you mean get?"), "{err}");
    let (code, out, _) = shell("help\nscan -h\nexit\nget nothing\n");
    assert!(code == Some(0) && out.contains("multi-get") && out.contains("--limit"), "{out}");
    assert!(out.contains("Usage: scan [OPTIONS]\n") && !out.contains("<DB>"), "a line has no directory: {out}");
    let (code, out, err) = shell("use sessions\nverify\nlist-cf\n");
    assert!((code, err.as_str()) == (Some(0), "") && out.contains("all sound"), "{out}{err}");
    assert_eq!(shell("use nowhere\n").0, Some(2));
    assert_eq!(shell("get 'ada\n").0, Some(2));
    assert!(!s.path(".local").exists(), "a pipe leaves no history");
    s.run(&["shell", "nothing-here"]).fails(3, &["nothing-here", "no such directory"]);
}
