//! `kill -9` of `rockmill load`, many times: acknowledged records exist, and `rockmill verify` finds no problems.

mod cli_support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rockmill::{Db, KernelDriver, MergeEngine, Options, probe_kernel_engine};
use rockmill_kernel::{Thing, is_in_kernel};
use rockmill_skip::{Needs, skip};

use cli_support::{ROCKMILL, Sandbox};

const ROWS: usize = 60_000;

fn row(n: usize) -> (String, String) {
    let word = ["granite", "basalt", "slate", "marble", "flint"][n % 5];
    // Unordered keys, values of many lengths.
    (format!("rock/{:06}", n * 7919 % 100_003), format!("{n} {}", word.repeat(n % 40)))
}

/// Starts a load of the file's rows, kills it after `delay`, and gives the last acknowledged number of rows.
fn load_and_kill(sandbox: &Sandbox, flags: &[&str], delay: Duration) -> Option<usize> {
    let mut child = Command::new(ROCKMILL)
        .args(["load", "db", "rows.tsv", "--ack", "--batch", "50", "--quiet"])
        .args(flags)
        .current_dir(sandbox.dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let stdout = child.stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut last = None;
        for line in BufReader::new(stdout).lines() {
            let line = line.expect("the command's output");
            if let Some(n) = line.strip_prefix("acked ") {
                last = Some(n.parse().expect("a number"));
            }
        }
        last
    });
    std::thread::sleep(delay);
    child.kill().expect("SIGKILL");
    child.wait().expect("the command's end");
    reader.join().expect("acknowledgements")
}

fn rounds(flags: &[&str], rounds: usize) {
    let seed = fastrand::u64(..);
    println!("seed {seed}, flags {flags:?}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let sandbox = Sandbox::new();
    let rows: Vec<_> = (0..ROWS).map(row).collect();
    let text: String = rows.iter().map(|(k, v)| format!("{k}\t{v}\n")).collect();
    sandbox.file("rows.tsv", text);
    let mut acknowledged = 0;
    for round in 0..rounds {
        // Each round loads into a new database: its contents must be a prefix of the file.
        let _ = fs::remove_dir_all(sandbox.path("db"));
        let Some(acked) = load_and_kill(&sandbox, flags, Duration::from_millis(rng.u64(20..500))) else { continue };
        acknowledged += acked;
        let done = sandbox.run(&["scan", "db"]);
        assert_eq!(done.code, 0, "round {round}: {}", done.stderr);
        let scanned = String::from_utf8(done.stdout).expect("text");
        let count = scanned.lines().count();
        assert!(count >= acked, "round {round}: {acked} acknowledged, {count} there");
        let mut expected: Vec<_> = rows[..count.min(ROWS)].iter().map(|(k, v)| format!("{k}\t{v}")).collect();
        expected.sort();
        assert!(scanned.lines().eq(expected), "round {round}: {count} rows, not the first {count} of the file");
        let done = sandbox.run(&["verify", "db"]);
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.code, 0, "round {round}: {said}{}", done.stderr);
    }
    assert!(acknowledged > 0, "every load was killed before its first batch: the test sees nothing");
    // The last database loads the whole file, on top of its contents.
    let done = sandbox.run(&["load", "db", "rows.tsv", "--quiet"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let done = sandbox.run(&["compact", "db", "--quiet"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let done = sandbox.run(&["scan", "db"]);
    let mut expected: Vec<_> = rows.iter().map(|(k, v)| format!("{k}\t{v}\n")).collect();
    expected.sort();
    assert!(done.stdout == expected.concat().into_bytes(), "the whole file was loaded, but other rows are there");
}

#[test]
fn acknowledged_rows_survive_kill() {
    rounds(&[], 12);
}

#[test]
fn acknowledged_synced_rows_survive_kill() {
    rounds(&["--sync"], 6);
}

/// Without a log, nothing is guaranteed before the command ends, but the database is consistent.
#[test]
fn a_load_without_a_log_leaves_a_sound_database() {
    let sandbox = Sandbox::new();
    let text: String = (0..ROWS).map(row).map(|(k, v)| format!("{k}\t{v}\n")).collect();
    sandbox.file("rows.tsv", text);
    for delay in [30, 100, 250] {
        load_and_kill(&sandbox, &["--wal", "off"], Duration::from_millis(delay));
        if sandbox.path("db/CURRENT").exists() {
            let done = sandbox.run(&["verify", "db"]);
            assert_eq!(done.code, 0, "{}{}", String::from_utf8_lossy(&done.stdout), done.stderr);
        }
    }
    let done = sandbox.run(&["load", "db", "rows.tsv", "--wal", "off", "--quiet"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let done = sandbox.run(&["scan", "db"]);
    assert_eq!(done.stdout.split(|b| *b == b'\n').count(), ROWS + 1);
}

/// The kernel objects of a process's descriptors: programs, arenas, and what attaches them.
fn in_kernel(child: &Child) -> Vec<(Thing, u32)> {
    let mut things = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fdinfo", child.id())).into_iter().flatten().flatten() {
        for line in fs::read_to_string(entry.path()).unwrap_or_default().lines() {
            let (name, number) = line.split_once(':').unwrap_or_default();
            let thing = match name {
                "prog_id" => Thing::Program,
                "map_id" => Thing::Map,
                "link_id" => Thing::Link,
                _ => continue,
            };
            things.push((thing, number.trim().parse().expect("a number")));
        }
    }
    things
}

/// A process that is killed during a merge in the kernel leaves no program and no map there, and a consistent database.
#[test]
fn a_killed_process_leaves_nothing_in_the_kernel() {
    if let Err(e) = probe_kernel_engine(KernelDriver::Run) {
        return skip("a process killed while the kernel merges for it", &Needs::Kernel.because(e));
    }
    if let Err(e) = is_in_kernel(Thing::Program, 1) {
        let why = format!("the kernel does not say what it has: {e}");
        return skip("what a killed process leaves in the kernel", &Needs::Kernel.because(why));
    }
    let sandbox = Sandbox::new();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_disable_auto_compactions(true);
    options.set_target_file_size_base(1 << 20);
    options.set_merge_engine(MergeEngine::Pread);
    options.set_compression_type(rockmill::CompressionType::None);
    let db = Db::open(&options, sandbox.path("db")).expect("a database");
    let value = vec![b'v'; 4000];
    for round in 0..4u32 {
        for i in 0..3000u32 {
            db.put(format!("{:08}", i.wrapping_mul(7919) % 100_003 + round), &value).expect("a put");
        }
        db.flush().expect("a flush");
    }
    let tables = || {
        let names = fs::read_dir(sandbox.path("db")).expect("the database").flatten().map(|e| e.file_name());
        names.filter(|n| n.to_string_lossy().ends_with(".sst")).count()
    };
    drop(db);
    // If the job ended before it could be killed, it is repeated.
    let kill_one = || {
        let before = tables();
        let mut child = Command::new(ROCKMILL)
            .args(["compact", "db", "--engine", "kernel", "--quiet"])
            .current_dir(sandbox.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        // The job has begun when output tables exist next to its inputs.
        while tables() <= before && child.try_wait().expect("the command's state").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let had = in_kernel(&child);
        let all = had.iter().all(|(thing, id)| is_in_kernel(*thing, *id).expect("the kernel's answer"));
        child.kill().expect("SIGKILL");
        let status = child.wait().expect("the command's end");
        (status.code().is_none() && all && !had.is_empty()).then_some(had)
    };
    let had = (0..20).find_map(|_| kill_one()).expect("a job that is killed before it is done");
    let count = |thing| had.iter().filter(|(t, _)| *t == thing).count();
    assert!(count(Thing::Program) > 0 && count(Thing::Map) > 0, "it had no program in the kernel: {had:?}");
    // The kernel frees them when no processor can be using them any more.
    let began = Instant::now();
    while had.iter().any(|(thing, id)| is_in_kernel(*thing, *id).expect("the kernel's answer")) {
        assert!(began.elapsed() < Duration::from_secs(60), "still in the kernel of {had:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = sandbox.run(&["verify", "db"]);
    assert_eq!(done.code, 0, "{}{}", String::from_utf8_lossy(&done.stdout), done.stderr);
}
