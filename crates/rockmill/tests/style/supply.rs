//! Rules for what scripts and pages build, fetch, remove and run as root: docs/supplies.md.

use super::{files, read, report, scripts};

/// Lines that remove a fixed path, and why they may.
const REMOVED: &[(&str, &str)] = &[
    // It refuses to continue without its marker in the folder.
    ("scripts/demo", r#"rm -rf "$db""#),
    // In the emulated machine, on its own disk.
    ("scripts/test-kernel7", "rm -rf db db.*"),
    ("scripts/test-kernel7", "rm -rf db.*"),
    // In a folder that `take` has checked before: empty, or with this script's marker.
    ("scripts/bench_compare", "shutil.rmtree(self.db, ignore_errors=True)"),
];

/// The project's programs that are not Rust: path and lines; lines that end in a backslash are joined.
fn programs() -> Vec<(String, Vec<(usize, String)>)> {
    let mut all = scripts();
    all.push("fuzz/run".to_owned());
    all.sort();
    assert!(all.len() > 10, "the scripts were not found");
    all.into_iter().map(|p| (p.clone(), commands(&read(&p)))).collect()
}

/// The lines with text other than comments; a continued line counts as one.
fn commands(text: &str) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with('#') {
            continue;
        }
        let (line, goes_on) = line.strip_suffix('\\').map_or((line, false), |l| (l, true));
        match out.last_mut() {
            Some((_, last)) if open => last.push_str(line.trim_start()),
            _ => out.push((i + 1, line.trim_start().to_owned())),
        }
        open = goes_on;
    }
    out
}

/// Calls of Cargo in a line that build or run something, without `--locked`.
fn unlocked(line: &str, verbs: &[&str]) -> bool {
    // In Python the words are strings of a list.
    let plain = line.replace("\", \"", " ").replace("', '", " ");
    let calls = plain.match_indices("cargo ").any(|(at, found)| {
        let mut words = plain[at + found.len()..].split(|c: char| c.is_whitespace() || "`\"')]".contains(c));
        let verb = words.find(|w| !w.starts_with('+')).unwrap_or_default();
        // `cargo +nightly miri test`
        let verb = if verb == "miri" { words.next().unwrap_or_default() } else { verb };
        verbs.contains(&verb)
    });
    calls && !plain.contains("--locked")
}

fn broken_lines(rule: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, lines) in programs() {
        broken.extend(lines.iter().filter(|(_, l)| rule(&path, l)).map(|(i, l)| format!("{path}:{i}: {l}")));
    }
    broken
}

/// Scripts build what the lock files name, and pages tell users to. A page may omit `--locked` for `cargo test`, which
/// developers run after they have changed a manifest.
#[test]
fn scripts_build_what_is_locked() {
    let all = ["build", "run", "test", "install", "bench", "check", "clippy", "doc", "rustc", "metadata"];
    let mut broken = broken_lines(|_, l| unlocked(l, &all) && !l.contains("--version"));
    for path in files(&[".md"]) {
        for (i, line) in read(&path).lines().enumerate() {
            if unlocked(line, &["build", "run", "install"]) {
                broken.push(format!("{path}:{}: {line}", i + 1));
            }
        }
    }
    report("cargo has --locked", &broken);
}

#[test]
fn pip_brings_only_what_has_a_hash() {
    let pip = |l: &str| l.contains("pip") && l.split_whitespace().any(|w| w == "install" || w == "download");
    let mut broken = broken_lines(|_, l| pip(l) && !l.contains("--require-hashes"));
    let list = read("supply/requirements.txt");
    for (i, line) in list.replace("\\\n", " ").lines().enumerate() {
        let pinned = line.contains("==") && line.contains("--hash=sha256:");
        if !line.starts_with('#') && !pinned {
            broken.push(format!("supply/requirements.txt: entry {}: no version or no hash: {line}", i + 1));
        }
    }
    report("pip has --require-hashes, and the list has them", &broken);
}

/// `rm -rf` and `rmtree` are for variables that the same script has made with `mktemp -d` or `mkdtemp`.
#[test]
fn scripts_remove_only_what_they_made() {
    let mut broken = Vec::new();
    for (path, lines) in programs() {
        let text = read(&path);
        let made = |name: &str| {
            let shell = format!("{name}=$(mktemp -d ");
            text.contains(&shell) || text.contains(&format!("{name} = tempfile.mkdtemp("))
        };
        for (i, line) in &lines {
            let recursive = [" -rf ", " -fr ", " -r ", " -Rf "].iter().any(|f| line.contains(&format!("rm{f}")));
            if !recursive && !line.contains("rmtree(") || REMOVED.iter().any(|(p, l)| *p == path && line.contains(l)) {
                continue;
            }
            let after = line.split("rm -rf ").nth(1).or_else(|| line.split("rmtree(").nth(1)).unwrap_or(line);
            let after = after.strip_prefix("os.path.join(").unwrap_or(after);
            let name: String = after
                .trim_start_matches(['"', '$', '{'])
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "_.".contains(*c))
                .collect();
            // `for made in "$at" "$run"`: each of them.
            let names: Vec<&str> = match line.split_once(&format!("for {name} in ")) {
                Some((_, list)) => list.split(';').next().unwrap_or_default().split_whitespace().collect(),
                None => vec![&name],
            };
            if !names.iter().all(|n| made(n.trim_matches(['"', '$']))) {
                broken.push(format!("{path}:{i}: {line}"));
            }
        }
    }
    report("scripts remove only what mktemp made for them", &broken);
}

/// An attacker cannot prepare for an unpredictable name.
#[test]
fn temporary_names_are_not_fixed() {
    let fixed = |l: &str| l.contains("/tmp/") || l.contains("${TMPDIR:-/tmp}/");
    let broken = broken_lines(|_, l| fixed(l) && !l.contains("$(mktemp "));
    report("temporary names come from mktemp", &broken);
    // The same in Rust: the process's number can be guessed.
    let mut broken = Vec::new();
    for path in files(&[".rs"]) {
        let text = read(&path);
        let at = text.lines().enumerate().filter(|(_, l)| l.contains(concat!("temp_dir", "().join")));
        broken.extend(at.map(|(i, l)| format!("{path}:{}: {l}", i + 1)));
    }
    report("temporary names come from the crate tempfile", &broken);
}

#[test]
fn only_setup_uses_sudo() {
    let sudo = |l: &str| l.split(|c: char| !c.is_ascii_alphanumeric()).any(|w| w == "sudo");
    let broken = broken_lines(|path, l| sudo(l) && path != "scripts/setup");
    report("only scripts/setup uses sudo", &broken);
    let setup = read("scripts/setup");
    let (says, does) = (setup.find("say \"with sudo: $*\""), setup.find("        sudo -n \"$@\""));
    assert!(says.is_some() && says < does, "scripts/setup says what it does as root");
}

/// `scripts/supply` compares more; this check runs with the tests.
#[test]
fn the_list_of_crates_is_the_lock_files() {
    let field = |block: &str, name: &str| {
        let value = block.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'));
        value.map(str::to_owned)
    };
    let mut locked = Vec::new();
    // Crates that are only used in manual comparisons are not in the list.
    let measured = "crates/rockmill-phash/compare/Cargo.lock";
    for lock in ["Cargo.lock", "fuzz/Cargo.lock", measured] {
        for block in read(lock).split("[[package]]").skip(1) {
            let Some(source) = field(block, "source") else { continue };
            assert_eq!(source, "registry+https://github.com/rust-lang/crates.io-index", "{lock}: {block}");
            let of = |name| field(block, name).unwrap_or_else(|| panic!("{lock}: no {name}: {block}"));
            let crate_of = format!("{} {} {}", of("name"), of("version"), of("checksum"));
            locked.extend((lock != measured).then_some(crate_of));
        }
    }
    locked.sort();
    locked.dedup();
    let list = read("supply/dependencies.txt");
    let mut listed: Vec<String> = list
        .lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.splitn(4, ' ').take(3).collect::<Vec<_>>().join(" "))
        .collect();
    listed.sort();
    let differ = |a: &[String], b: &[String], what: &str| -> Vec<String> {
        a.iter().filter(|l| !b.contains(l)).map(|l| format!("{what}: {l}")).collect()
    };
    let mut broken = differ(&locked, &listed, "not in supply/dependencies.txt");
    broken.extend(differ(&listed, &locked, "in no lock file"));
    report("supply/dependencies.txt is what the lock files have (scripts/supply --update)", &broken);
}

/// The rules see what they are for.
#[test]
fn planted_lines_break_the_rules() {
    let all = ["build", "run", "install", "test"];
    for line in ["cargo build --release", r#"run(["cargo", "build", "-q"])"#, "cargo +nightly miri test", "`cargo run`"]
    {
        assert!(unlocked(line, &all), "{line}");
    }
    for line in ["cargo build --locked", r#"["cargo", "build", "--locked"]"#, "cargo fmt", "cargo +nightly --version"] {
        assert!(!unlocked(line, &all), "{line}");
    }
    assert_eq!(commands("# cargo\na \\\n  b\nc"), [(2, "a b".to_owned()), (4, "c".to_owned())]);
}
