//! `kill -9` in the middle of writes, many times over one database: every write that was acknowledged is there.
//!
//! The test starts its own binary again as the writer. Each of the writer's threads performs a fixed sequence of
//! operations and says `ack THREAD NUMBER` when one has returned. A killed process keeps the page cache, so this must
//! hold without `sync` as well; what a power cut keeps is tested on the memory file system. One operation of each
//! thread may have been under way: it happened, or it did not, and a batch is never there in part.

mod oracle;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use oracle::content::{Entries, ldb_scan, read, same};
use oracle::ops::Contents;
use oracle::{copy_dir, run_tool, skip, tool};
use rockmill::{Db, Options, WriteBatch, WriteOptions};

const THREADS: usize = 3;
/// The writer's orders: "PATH SYNC FIRST...", where FIRST is each thread's first operation.
const ORDERS: &str = "ROCKMILL_TEST_WRITER";

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    // Small, so that flushes, compactions and new logs are under way when the end comes.
    options.set_write_buffer_size(128 << 10);
    options.set_target_file_size_base(64 << 10);
    options.set_max_bytes_for_level_base(256 << 10);
    options.set_max_background_jobs(4);
    options
}

fn key(thread: usize, n: u64) -> Vec<u8> {
    format!("t{thread}/{:06}", n * 7919 % 5000).into_bytes()
}

fn value(thread: usize, n: u64) -> Vec<u8> {
    let mut value = format!("{thread}:{n}:").into_bytes();
    let len = 20 + (n * 2654435761 % 900) as usize;
    value.resize(len, b'a' + (n % 26) as u8);
    value
}

/// Operation `n` of a thread: what it puts, and what it deletes (`None`).
fn operation(thread: usize, n: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    match n % 10 {
        3 => vec![(key(thread, n / 2), None)],
        6 => (0..4).map(|i| (key(thread, n + i * 1000), Some(value(thread, n)))).collect(),
        8 => vec![(key(thread, n), Some(value(thread, n))), (key(thread, n - 1), None)],
        _ => vec![(key(thread, n), Some(value(thread, n)))],
    }
}

fn apply(contents: &mut Contents, thread: usize, n: u64) {
    for (key, value) in operation(thread, n) {
        match value {
            Some(value) => contents.insert(key, value),
            None => contents.remove(&key),
        };
    }
}

/// The other process. Without orders, as in a plain run of the tests, it does nothing.
#[test]
fn writer_process() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let words: Vec<&str> = orders.split(' ').collect();
    let mut write = WriteOptions::default();
    write.set_sync(words[1] == "sync");
    let db = Db::open(&options(), Path::new(words[0])).unwrap_or_else(|e| panic!("open: {e}"));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let first: u64 = words[2 + thread].parse().expect("a number");
            let db = &db;
            scope.spawn(move || {
                for n in first.. {
                    let mut batch = WriteBatch::new();
                    for (key, value) in operation(thread, n) {
                        match value {
                            Some(value) => batch.put(key, value),
                            None => batch.delete(key),
                        }
                    }
                    db.write_opt(&batch, &write).unwrap_or_else(|e| panic!("write: {e}"));
                    // One write call: lines of several threads do not mix, and what was written survives us.
                    let line = format!("ack {thread} {n}\n");
                    let mut out = std::io::stdout().lock();
                    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("the parent reads");
                }
            });
        }
    });
}

/// Runs the writer until it is killed; gives each thread's last acknowledged operation, if any.
fn write_and_kill(db: &Path, sync: bool, first: &[u64], delay: Duration, from_start: bool) -> Vec<Option<u64>> {
    let firsts: Vec<_> = first.iter().map(u64::to_string).collect();
    let orders = format!("{} {} {}", db.display(), if sync { "sync" } else { "nosync" }, firsts.join(" "));
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["writer_process", "--exact", "--nocapture"])
        .env(ORDERS, orders)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("this binary again");
    let stdout = child.stdout.take().expect("piped");
    let (begun, has_begun) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut last = vec![None; THREADS];
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.expect("the writer's output");
            let line = String::from_utf8_lossy(&line).into_owned();
            // The test harness prints before the first line without ending its own.
            let Some((_, ack)) = line.split_once("ack ") else { continue };
            let mut words = ack.split(' ').map(|w| w.parse::<u64>());
            let (Some(Ok(thread)), Some(Ok(n))) = (words.next(), words.next()) else {
                panic!("a broken acknowledgement: {line}");
            };
            last[thread as usize] = Some(n);
            let _ = begun.send(());
        }
        last
    });
    if !from_start {
        has_begun.recv_timeout(Duration::from_secs(60)).expect("the writer acknowledges something");
    }
    std::thread::sleep(delay);
    child.kill().expect("SIGKILL");
    let status = child.wait().expect("the writer's end");
    assert!(status.code().is_none(), "the writer ended by itself before it was killed: {status}");
    reader.join().expect("acknowledgements")
}

/// What is there of one thread.
fn part(entries: &Entries, thread: usize) -> Contents {
    let prefix = format!("t{thread}/").into_bytes();
    entries.iter().filter(|(k, _)| k.starts_with(&prefix)).cloned().collect()
}

fn rounds(test: &str, rounds: u64, sync: bool, longest_ms: u64) {
    let seed = fastrand::u64(..);
    println!("{test}: seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("db");
    let mut models = vec![Contents::new(); THREADS];
    let mut next = vec![0u64; THREADS];
    let mut acknowledged = 0;
    for round in 0..rounds {
        // Now and then the end comes before or during recovery.
        let from_start = round % 5 == 4;
        let delay = Duration::from_millis(rng.u64(..if from_start { 60 } else { longest_ms }));
        let last = write_and_kill(&path, sync, &next, delay, from_start);
        for thread in 0..THREADS {
            if let Some(last) = last[thread] {
                for n in next[thread]..=last {
                    apply(&mut models[thread], thread, n);
                    acknowledged += 1;
                }
                next[thread] = last + 1;
            }
        }
        let db = Db::open(&options(), &path).unwrap_or_else(|e| panic!("round {round}: open after the kill: {e}"));
        let found = read(&db, "default");
        let mut total = 0;
        for thread in 0..THREADS {
            let there = part(&found, thread);
            total += there.len();
            if there == models[thread] {
                continue;
            }
            // The operation that was under way.
            let mut with_next = models[thread].clone();
            apply(&mut with_next, thread, next[thread]);
            let what = format!("round {round}, thread {thread}, {} acknowledged, delay {delay:?}", next[thread]);
            same(&what, &with_next.clone().into_iter().collect(), &there.into_iter().collect());
            models[thread] = with_next;
            next[thread] += 1;
        }
        assert_eq!(total, found.len(), "round {round}: keys that nobody wrote");
    }
    println!("{test}: {acknowledged} writes acknowledged in {rounds} rounds");
    assert!(acknowledged > rounds, "the writer was killed before it wrote anything: the test sees nothing");

    let all: BTreeMap<_, _> = models.into_iter().flatten().collect();
    let expected: Entries = all.into_iter().collect();
    match tool("ldb") {
        Err(reason) => skip(test, &reason),
        Ok(ldb) => {
            let copy = home.path().join("for-ldb");
            copy_dir(&path, &copy);
            let said = run_tool(&ldb, &[&format!("--db={}", copy.display()), "checkconsistency"]);
            assert!(said.as_ref().is_ok_and(|s| s.contains("OK")), "ldb checkconsistency: {said:?}");
            same("ldb scan", &expected, &ldb_scan(&ldb, &copy, "default").unwrap_or_else(|e| panic!("{e}")));
        }
    }
    let db = Db::open(&options(), &path).expect("the last open");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
    same("compacted", &expected, &read(&db, "default"));
}

#[test]
fn acknowledged_writes_survive_kill() {
    rounds("acknowledged_writes_survive_kill", 25, false, 400);
}

#[test]
fn acknowledged_synced_writes_survive_kill() {
    rounds("acknowledged_synced_writes_survive_kill", 15, true, 400);
}
