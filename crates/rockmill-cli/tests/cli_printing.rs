//! Names, keys, values and paths with control sequences: no command prints them unescaped.

mod cli_support;

use std::fs;
use std::process::{Command, Stdio};

use cli_support::{ROCKMILL, Sandbox};
use rockmill::{Db, Options};
use rockmill_skip::{Needs, skip};

/// Sets the window title, clears the screen, forges a line, has a C1 control that begins a sequence, and reverses text.
const HOSTILE: &str = "h\x1b]0;x\x07\x1b[2J\nerror: forged\u{9b}31m\u{202e}e";

/// The first control character, with its context.
fn acting(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let acts = |c: char| (c.is_control() && c != '\n' && c != '\t') || matches!(c, '\u{202a}'..='\u{202e}');
    let at = text.find(acts)?;
    Some(text.chars().skip(text[..at].chars().count().saturating_sub(40)).take(80).collect::<String>())
}

/// A database with hostile names, keys and values in tables, in a WAL and in a backup, below a hostile directory.
fn hostile_database(s: &Sandbox) -> String {
    let db = format!("dir{HOSTILE}");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_max_write_buffer_number(3);
    let open = Db::open(&options, s.path(&db)).expect("made");
    let cf = open.create_cf(HOSTILE, &Options::default()).expect("a family");
    for n in 0..20 {
        let key = format!("{HOSTILE}{n:02}");
        open.put(&key, HOSTILE).expect("put");
        open.put_cf(&cf, &key, HOSTILE).expect("put");
    }
    open.flush().expect("flushed");
    open.flush_cf(&cf).expect("flushed");
    open.put_cf(&cf, HOSTILE, HOSTILE).expect("put");
    drop(open);
    db
}

/// The commands: first those that read the database, then those that change it.
fn commands(s: &Sandbox, db: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    let mut add = |args: &[&str]| all.push(args.iter().map(|a| (*a).to_owned()).collect());
    add(&["list-cf", db]);
    add(&["stats", db]);
    add(&["stats", db, "--prometheus"]);
    add(&["top", db, "--once", "--every", "0.1"]);
    add(&["options", db]);
    add(&["scan", db]);
    add(&["scan", db, "--column-family", HOSTILE]);
    add(&["scan", db, "--keys-only"]);
    add(&["get", db, &format!("{HOSTILE}01")]);
    add(&["get", db, HOSTILE]);
    add(&["multi-get", db, &format!("{HOSTILE}01"), &format!("{HOSTILE}no")]);
    add(&["get", db, "k", "--column-family", &format!("{HOSTILE}no")]);
    add(&["get", HOSTILE, "k"]);
    add(&["verify", db]);
    add(&["compact", db, "--explain"]);
    add(&["no-such\x1b[2J-command"]);
    add(&["stats", db, &format!("--{HOSTILE}")]);
    add(&["merge", db, HOSTILE, HOSTILE]);
    add(&["set-options", db, &format!("{HOSTILE}=1")]);
    add(&["flush", db, "--column-family", HOSTILE]);
    add(&["create-cf", db, &format!("{HOSTILE}2")]);
    add(&["create-cf", db, HOSTILE]);
    add(&["drop-cf", db, &format!("{HOSTILE}2")]);
    add(&["load", db, HOSTILE]);
    add(&["load", db, &s.file(&format!("rows{HOSTILE}"), "{\"a\": \x1b[2J}\n"), "--format", "jsonl", "--skip-bad"]);
    add(&["ingest", db, HOSTILE]);
    add(&["backup", "create", db, &format!("backup{HOSTILE}"), "--note", HOSTILE]);
    add(&["backup", "list", &format!("backup{HOSTILE}"), "--files"]);
    add(&["backup", "verify", &format!("backup{HOSTILE}")]);
    add(&["checkpoint", db, &format!("checkpoint{HOSTILE}")]);
    add(&["dump", db]);
    for end in [".sst", ".log", "CURRENT"] {
        for file in s.files(db, end) {
            add(&["dump", &file.to_string_lossy()]);
            add(&["dump", &file.to_string_lossy(), "--entries"]);
        }
    }
    for file in fs::read_dir(s.path(db)).expect("listed").map(|e| e.expect("an entry").path()) {
        if file.to_string_lossy().contains("MANIFEST-") {
            add(&["dump", &file.to_string_lossy()]);
        }
    }
    all
}

/// Checks that a command's output is harmless, and that no line of it is forged.
#[track_caller]
fn harmless(args: &[String], what: &str, text: &[u8]) {
    if let Some(found) = acting(text) {
        panic!("{args:?}: {what}: {found:?}");
    }
    let text = String::from_utf8_lossy(text);
    assert!(!text.lines().any(|l| l.starts_with("error: forged")), "{args:?}: {what}: {text}");
}

/// True for commands that print raw keys or values to a pipe, for programs.
fn prints_values(args: &[String]) -> bool {
    matches!(args[0].as_str(), "get" | "multi-get" | "scan")
}

#[test]
fn names_keys_and_paths_of_others_give_a_terminal_no_orders() {
    let s = Sandbox::new();
    let db = hostile_database(&s);
    let all = commands(&s, &db);
    let mut shown = 0;
    for args in &all {
        for json in [false, true] {
            let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
            args.extend(json.then_some("--json"));
            let done = s.run(&args);
            let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
            assert!(!done.stderr.contains("panicked"), "{args:?}: {}", done.stderr);
            harmless(&args, "standard error", done.stderr.as_bytes());
            if json || !prints_values(&args) {
                harmless(&args, "standard output", &done.stdout);
            }
            shown += usize::from(done.text().contains("\\x1b]0;x\\x07") || done.stderr.contains("\\x1b]0;x\\x07"));
        }
    }
    assert!(shown >= 15, "{shown} commands showed an escaped name");
    let raw = s.run(&["get", &db, &format!("{HOSTILE}01")]);
    assert_eq!(raw.stdout, HOSTILE.as_bytes(), "a pipe gets the value as it is");
    for log in s.files(&db, "LOG") {
        harmless(&["LOG".to_owned()], "the info log", &fs::read(log).expect("read"));
    }
    damaged(&s, &db);
}

/// The same with damaged files, whose errors contain names, too.
fn damaged(s: &Sandbox, db: &str) {
    for file in s.files(db, ".sst") {
        cli_support::flip(&file, 30);
    }
    s.file(&format!("{db}/CURRENT"), format!("MANIFEST-{HOSTILE}\n"));
    for args in
        [&["verify", db][..], &["stats", db], &["dump", &format!("{db}/CURRENT")], &["repair", db], &["scan", db]]
    {
        let done = s.run(args);
        let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
        harmless(&args, "standard error", done.stderr.as_bytes());
        if !prints_values(&args) {
            harmless(&args, "standard output", &done.stdout);
        }
    }
}

#[test]
fn keys_and_values_are_raw_only_to_a_pipe() {
    let test = "keys_and_values_are_raw_only_to_a_pipe";
    let probe = Command::new("script").args(["-qec", "true", "/dev/null"]).stdin(Stdio::null()).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        return skip(test, &Needs::Script.because("script cannot run a command in a terminal"));
    }
    let s = Sandbox::new();
    let db = hostile_database(&s);
    let quoted = |arg: &str| format!("'{}'", arg.replace('\'', "'\\''"));
    let mut values = 0;
    for args in commands(&s, &db) {
        // Without progress bars, which move the cursor on standard error.
        let line: Vec<String> = std::iter::once(ROCKMILL).chain(args.iter().map(String::as_str)).map(quoted).collect();
        let line = format!("{} 2>/dev/null", line.join(" "));
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh").env("LC_ALL", "C.UTF-8");
        let output = script.current_dir(s.dir.path()).stdin(Stdio::null()).output().expect("script runs");
        // The terminal itself adds a carriage return to every line end.
        let text = String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n");
        harmless(&args, "a terminal", text.as_bytes());
        values += usize::from(prints_values(&args) && text.contains("\\x1b]0;x\\x07"));
    }
    assert!(values >= 4, "{values} commands showed escaped values");
}
