//! Ctrl-C: a long command reports what it leaves.

mod cli_support;

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cli_support::{ROCKMILL, Sandbox};

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

/// Starts `rockmill` with an open standard input.
fn started(s: &Sandbox, args: &[&str]) -> Child {
    let mut command = Command::new(ROCKMILL);
    command.args(args).current_dir(s.dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
}

/// Waits until something is so.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Interrupts a command; returns what it says about that.
fn interrupted(mut child: Child) -> String {
    signal(&child, "INT");
    let stdin = child.stdin.take();
    let ended = child.wait_with_output().expect("ends");
    drop(stdin);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    said
}

/// `rockmill load` from an open standard input, with 500 records acknowledged.
fn half_loaded(s: &Sandbox, shell: &str, more: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new("sh")
        .args(["-c", &format!("{shell} exec {ROCKMILL} load db - --format tsv --ack --batch 100 {more}")])
        .current_dir(s.dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let rows: String = (0..550).map(|i| format!("k{i:04}\tv\n")).collect();
    let pipe = child.stdin.as_mut().expect("a pipe");
    // The pipe stays open: there could be more.
    pipe.write_all(rows.as_bytes()).expect("taken");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let acked = lines.by_ref().map(|l| l.expect("a line")).find(|l| l == "acked 500");
    assert!(acked.is_some(), "it ended early");
    (child, lines)
}

#[test]
fn load_says_how_many_records_stay() {
    let s = Sandbox::new();
    let (mut child, _lines) = half_loaded(&s, "", "");
    signal(&child, "INT");
    let stdin = child.stdin.take();
    let ended = child.wait_with_output().expect("ends");
    drop(stdin);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    let count = said.trim().strip_prefix("interrupted: ").and_then(|t| t.split_whitespace().next()).expect(&said);
    assert!(said.contains("records were written and kept; loading the input again is safe"), "{said}");
    assert!(count.replace(',', "").parse::<u64>().is_ok_and(|n| n >= 500), "{said}");
    assert_eq!(s.ok(&["get", "db", "k0499"]), "v", "what was acknowledged is there");
    s.ok(&["verify", "db"]);
}

#[test]
fn without_a_log_it_says_that_records_are_lost() {
    let s = Sandbox::new();
    let (mut child, _lines) = half_loaded(&s, "", "--wal=off");
    signal(&child, "TERM");
    let stdin = child.stdin.take();
    let ended = child.wait_with_output().expect("ends");
    drop(stdin);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(143), "{said}");
    assert!(said.contains("without a log; records not yet flushed to a table are lost"), "{said}");
}

/// As `nohup` and shells' background jobs require.
#[test]
fn a_signal_that_is_ignored_stays_so() {
    let s = Sandbox::new();
    let (mut child, _lines) = half_loaded(&s, "trap '' INT HUP;", "--quiet");
    signal(&child, "INT");
    signal(&child, "HUP");
    drop(child.stdin.take());
    let ended = child.wait_with_output().expect("ends");
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
    assert_eq!(s.ok(&["scan", "db", "--count"]), "550\n");
}

#[test]
fn write_sst_says_that_its_table_cannot_be_used() {
    let s = Sandbox::new();
    let command = ["write-sst", "t.sst", "-", "--format", "tsv"];
    let child = started(&s, &command);
    wait_for("the table", || s.path("t.sst").exists());
    let said = interrupted(child);
    assert!(said.contains("cannot be used: run the same command again, with --force"), "{said}");
    assert_ne!(s.run(&["ingest", "db", "t.sst", "--create"]).code, 0);
    s.run_with_input(&[&command[..], &["--force"]].concat(), b"k\tv\n").ok();
    s.ok(&["ingest", "other", "t.sst", "--create"]);
    assert_eq!(s.ok(&["get", "other", "k"]), "v");
}

#[test]
fn an_interrupted_stress_run_can_be_compared() {
    let s = Sandbox::new();
    let args = ["stress", "db", "--duration", "10m", "--kill-every", "never", "--threads", "2", "--keys", "500"];
    let child = started(&s, &args);
    wait_for("the database", || s.path("db/CURRENT").exists());
    let said = interrupted(child);
    let wanted = "db and db.stress are kept; `rockmill stress db --verify` compares them";
    assert!(said.contains(wanted), "{said}");
    // The process that works on the database ends a moment after the one that started it.
    let here = std::fs::canonicalize(s.dir.path()).expect("the sandbox");
    wait_for("the end of the child", || {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.filter_map(|p| std::fs::read_link(p.path().join("cwd")).ok()).all(|cwd| cwd != here)
    });
    s.ok(&["stress", "db", "--verify"]);
}
