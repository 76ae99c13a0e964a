//! `rockmill stress`: kills, limits, and runs that must fail.

mod cli_support;

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cli_support::{ROCKMILL, Sandbox};
use rockmill_skip::{Needs, skip};
use serde_json::Value;

/// A short run that must find no problems. Returns its figures, or `None` if this machine cannot apply the limit.
fn run(test: &str, args: &[&str]) -> Option<Value> {
    let s = Sandbox::new();
    let all =
        [&["stress", "db", "--json", "--threads", "4", "--keys", "1500", "--column-families", "2"][..], args].concat();
    let done = s.run(&all);
    if done.code == 2 && done.stderr.contains("is not available on this machine") {
        skip(test, &Needs::Limits.because(&done.stderr));
        return None;
    }
    let figures: Value = serde_json::from_str(&done.ok()).expect("one JSON object");
    for (what, why) in figures["skipped"].as_object().expect("a map") {
        // "needs ldb: the reason"
        let why = why.as_str().expect("a reason");
        let known = Needs::ALL.iter().find(|needs| why.starts_with(&format!("needs {needs}: ")));
        let needs = known.unwrap_or_else(|| panic!("{test}: the run left out {what:?} for want of nothing: {why}"));
        skip(test, &needs.because(format!("{what}: {why}")));
    }
    assert_eq!(figures["verdict"], "ok");
    let left: Vec<_> = std::fs::read_dir(s.dir.path()).expect("the sandbox").collect();
    assert!(left.is_empty(), "a run that found all in order leaves nothing behind: {left:?}");
    Some(figures)
}

fn number(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures}"))
}

/// Runs for `seconds`, then for three times and nine times as long, until the condition of a test is met: on a busy
/// machine, there are few lives, kills and operations per second. Each run must find no problems, however short it is.
fn until(test: &str, seconds: u64, args: &[&str], enough: impl Fn(&Value) -> bool) -> Option<Value> {
    let mut last = Value::Null;
    for seconds in [seconds, 3 * seconds, 9 * seconds] {
        let duration = format!("{seconds}s");
        last = run(test, &[&["--duration", &duration], args].concat())?;
        if enough(&last) {
            return Some(last);
        }
    }
    panic!("{test}: too little of something, also in {} seconds: {last}", 9 * seconds);
}

/// The link's target would be overwritten.
#[test]
fn a_kept_run_with_a_link_among_its_files_is_refused() {
    let s = Sandbox::new();
    std::fs::create_dir(s.path("db.stress")).expect("made");
    s.file("db.stress/settings", "");
    s.file("outside", "precious");
    std::os::unix::fs::symlink(s.path("outside"), s.path("db.stress/expected")).expect("a link");
    let refused = s.run(&["stress", "db"]);
    assert!(refused.code != 0 && refused.stderr.contains("expected is a link"), "{}", refused.stderr);
    assert_eq!(std::fs::read(s.path("outside")).expect("there"), b"precious");
}

#[test]
fn acknowledged_operations_survive_kills_and_rocksdb_reads_them() {
    let args = ["--kill-every", "400ms", "--config", "random,format=5", "--check-every", "2"];
    until("kills, read by RocksDB", 5, &args, |f| {
        let checked = number(f, "rocksdb_checks") >= 2 || !f["skipped"].as_object().expect("a map").is_empty();
        number(f, "kills") >= 2
            && number(f, "configurations") >= 2
            && number(f, "operations") > 1000
            && number(f, "keys_compared") > 10_000
            && number(f, "file_checks") >= 2
            && number(f, "readings") >= 1
            && checked
    });
}

/// RocksDB refuses a database with extra runs, and reads it after a downgrade has merged them.
#[test]
fn rocksdb_reads_what_df_compaction_left_after_a_downgrade() {
    for strategy in ["df-leveled", "df-tiered", "classic-tiered"] {
        let config = format!("format=5,strategy={strategy},jobs=4,compression=lz4");
        let args = ["--kill-every", "600ms", "--check-every", "1", "--clears", "0", "--config", &config];
        let read =
            |f: &Value| number(f, "rocksdb_downgraded") >= 1 || !f["skipped"].as_object().expect("a map").is_empty();
        let done = until("kills with DF-compaction", 3, &args, |f| number(f, "kills") >= 1 && read(f));
        let Some(f) = done else { return };
        if f["skipped"].as_object().expect("a map").is_empty() {
            assert_eq!(number(&f, "rocksdb_passed_over"), 0, "{f}");
        }
    }
}

#[test]
fn acknowledged_operations_survive_kills_with_a_wal_flushed_by_hand() {
    let config = "format=5,wal=manual,flush=atomic,manifest=rolls,compression=lz4";
    let args =
        ["--kill-every", "300ms", "--config", config, "--clears", "0.1", "--sync-every", "3", "--check-every", "0"];
    until("kills under manual_wal_flush", 3, &args, |f| number(f, "kills") >= 2);
}

/// Tables that share files, with each strategy that makes them: killed databases had some.
#[test]
fn nothing_is_lost_where_tables_share_files() {
    for strategy in ["leveled", "tiered", "df-leveled"] {
        let config = format!("random,table=tph-16,files=small,memtable=16k,strategy={strategy}");
        let args = ["--kill-every", "400ms", "--config", &config, "--check-every", "1"];
        until(&format!("kills where tables share files ({strategy})"), 4, &args, |f| {
            number(f, "kills") >= 2
                && number(f, "operations") > 1000
                && number(f, "file_checks") >= 2
                && number(f, "shared_tables") >= 1
        });
    }
}

#[test]
fn nothing_is_lost_in_the_order_of_a_hash() {
    let config = "random,table=tph-4";
    let args = ["--scenario", "hashed", "--kill-every", "400ms", "--config", config, "--check-every", "2"];
    let done = until("kills in hash range", 5, &args, |f| {
        number(f, "kills") >= 2 && number(f, "operations") > 1000 && number(f, "file_checks") >= 2
    });
    let Some(f) = done else { return };
    assert_eq!(number(&f, "rocksdb_checks"), 0, "{f}");
}

/// The store reports the error, refuses writes, resumes when there is room, and loses no acknowledged write.
fn limited(test: &str, limit: &str, more: &[&str]) {
    let args = ["--kill-every", "1500ms", "--limit-every", "400ms", "--check-every", "0", "--limit", limit];
    until(test, 4, &[&args[..], more].concat(), |f| {
        number(f, "limited") >= 2 && number(f, "refused") + number(f, "refused_starts") > 0
    });
}

#[test]
fn nothing_is_lost_where_files_may_not_grow() {
    limited(
        "RLIMIT_FSIZE",
        "fsize=256K",
        &["--config", "format=5,memtable=1m,files=large", "--value-size", "100-2000"],
    );
}

#[test]
fn nothing_is_lost_on_a_full_disk() {
    limited("a full file system", "space=32M", &["--config", "format=5,wal=recycled"]);
}

#[test]
fn nothing_is_lost_without_file_handles() {
    limited("RLIMIT_NOFILE", "files=30", &["--config", "format=5,memtable=16k"]);
}

#[test]
fn nothing_is_lost_without_memory() {
    let args = ["--kill-every", "never", "--limit", "memory=256M", "--config", "format=5"];
    until("memory limit", 4, &args, |f| number(f, "memory_deaths") > 0);
}

/// A database and its expected state, from a short run, kept.
fn kept() -> Sandbox {
    let s = Sandbox::new();
    s.ok(&[
        "stress",
        "db",
        "--quiet",
        "--keep",
        "--seed",
        "5",
        "--duration",
        "20s",
        "--ops",
        "3000",
        "--keys",
        "500",
        "--kill-every",
        "500ms",
        "--config",
        "format=5,memtable=1m,wal=kept",
        "--clears",
        "0",
        "--check-every",
        "0",
    ]);
    s
}

#[test]
fn a_kept_run_is_compared_again_and_goes_on() {
    let s = kept();
    let f = s.json(&["stress", "db", "--verify"]);
    assert!(number(&f, "verifications") == 1 && number(&f, "file_checks") == 1, "{f}");
    let f = s.json(&["stress", "db", "--duration", "1s", "--seed", "6", "--keys", "99"]);
    assert_eq!(number(&f, "seed"), 5, "a kept run's values follow from its seed: {f}");
    assert!(!s.path("db").exists() && !s.path("db.stress").exists());
}

#[test]
fn a_changed_expectation_is_reported_with_key_expected_and_found() {
    let s = kept();
    // Slots begin at 4096 and have 32 bytes; the acknowledged version is at 8. Selects an existing key.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(s.path("db.stress/expected")).expect("opens");
    let mut slot = [0; 32];
    let (mut key, mut at) = (0, 4096);
    loop {
        file.read_exact_at(&mut slot, at).expect("a slot");
        if slot[16] == 1 {
            break;
        }
        (key, at) = (key + 1, at + 32);
    }
    let version = u32::from_le_bytes([slot[8], slot[9], slot[10], slot[11]]);
    file.write_all_at(&(version + 1).to_le_bytes(), at + 8).expect("written");
    let words = [
        format!("(number {key}): expected version {}, found version {version}", version + 1),
        "column family default".to_owned(),
        "seed 5".to_owned(),
        "kept: db".to_owned(),
    ];
    s.run(&["stress", "db", "--verify"]).fails(1, &words.each_ref().map(String::as_str));
    // The store itself reports the same if RocksDB does not check first.
    s.run(&["stress", "db", "--verify", "--ldb", "nothing"]).fails(1, &words.each_ref().map(String::as_str));
    assert!(s.path("db/CURRENT").exists(), "what is wrong is kept");
}

#[test]
fn a_lost_wal_is_reported() {
    let s = kept();
    // The last verification flushed nothing: the last writes are only in logs.
    let logs = s.files("db", ".log");
    assert!(!logs.is_empty());
    for log in logs {
        std::fs::remove_file(log).expect("removed");
    }
    // Which column family is reported depends on what was flushed before.
    let words = ["column family ", "(number ", "): expected ", ", found "];
    s.run(&["stress", "db", "--verify", "--ldb", "nothing"]).fails(1, &words);
}

#[test]
fn a_leak_is_reported() {
    let s = Sandbox::new();
    let args = ["stress", "db", "--duration", "4s", "--kill-every", "never", "--keys", "500", "--leak", "20000"];
    let times = ["--sample-every", "100ms", "--warm-up", "1s", "--judge-after", "2s", "--samples", "samples.tsv"];
    s.run(&[&args[..], &times].concat()).fails(1, &["memory grew: by", "an hour", "samples over"]);
    let samples = std::fs::read_to_string(s.path("samples.tsv")).expect("the samples");
    assert!(samples.starts_with("seconds\tlife\tmemory\t") && samples.lines().count() > 10, "{samples}");
}

/// No child outlives its parent, however the parent ends.
#[test]
fn children_end_with_their_parent() {
    let s = Sandbox::new();
    let mut parent = Command::new(ROCKMILL)
        .args(["stress", "db", "--duration", "60s", "--kill-every", "never", "--keys", "500"])
        .current_dir(s.dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let locked = |wanted: bool| {
        let started = Instant::now();
        loop {
            // A child has the database's lock.
            let free = s.run(&["put", "db", "k", "v"]).code == 0;
            if free != wanted && s.path("db/CURRENT").exists() {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "locked: {}", !free);
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    locked(true);
    parent.kill().expect("SIGKILL");
    parent.wait().expect("the parent's end");
    locked(false);
}

#[test]
fn a_child_that_hangs_is_reported() {
    let s = Sandbox::new();
    let mut parent = Command::new(ROCKMILL)
        .args(["stress", "db", "--duration", "60s", "--kill-every", "never", "--keys", "500", "--hang", "1s"])
        .current_dir(s.dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let id = parent.id();
    let started = Instant::now();
    let child = loop {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next()
            && s.path("db/CURRENT").exists()
        {
            break child.to_owned();
        }
        if started.elapsed() > Duration::from_secs(20) {
            let missing = Needs::Proc.because("this system does not tell whose child a process is");
            skip("a_child_that_hangs_is_reported", &missing);
            parent.kill().expect("SIGKILL");
            parent.wait().expect("ends");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let stopped = Command::new("kill").args(["-STOP", &child]).status().expect("kill runs");
    assert!(stopped.success());
    let mut said = String::new();
    parent.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(parent.wait().expect("ends").code(), Some(1), "{said}");
    assert!(said.contains("nothing was completed for 1s; the child's threads:"), "{said}");
    assert!(!std::path::Path::new(&format!("/proc/{child}")).exists(), "it is killed all the same");
}

#[test]
fn wrong_runs_are_refused() {
    let s = Sandbox::new();
    s.database("mine", 10);
    s.run(&["stress", "mine"]).fails(2, &["mine exists and is of no stress run", "would be lost"]);
    assert!(s.path("mine/CURRENT").exists() && !s.path("mine.stress").exists());
    s.run(&["stress", "db", "--verify"]).fails(2, &["no kept run"]);
    s.run(&["stress", "db", "--config", "engine=steam"]).fails(2, &["steam", "pread"]);
    s.run(&["stress", "db", "--limit", "patience=3"]).fails(2, &["patience=3", "fsize=BYTES"]);
    s.run(&["stress", "db", "--limit", "fsize=64K"]).fails(2, &["the expected state alone has"]);
    s.run(&["stress", "db", "--scenario", "calm"]).fails(2, &["calm", "kills", "soak"]);
    s.run(&["stress", "db", "--duration", "long"]).fails(2, &["is not a time"]);
    assert!(!s.path("db").exists());
    let list = s.ok(&["stress", "db", "--scenario", "list"]);
    assert!(list.lines().count() >= 10 && list.contains("memory"), "{list}");
    // A child without a parent ends immediately.
    let mut child = Command::new(ROCKMILL)
        .args(["stress-child", "db", "--life", "1", "--config", "default"])
        .current_dir(s.dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(!child.wait().expect("ends").success(), "{said}");
}
