//! Whole runs on small databases, and the same run by RocksDB's db_bench beside it.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;

use rockmill_bench::{Command as Asked, Error, Flags, OpKind, Outcome, Report, Workload, run};

fn flags(db: &Path, line: &str) -> Flags {
    let args = format!("--db={} --seed=42 --cache_size=1048576 {line}", db.display());
    match Flags::parse(args.split_whitespace().map(str::to_owned)).expect("a good command line") {
        Asked::Run(f) => *f,
        Asked::Help => panic!("help was not asked for"),
    }
}

fn run_line(db: &Path, line: &str) -> (Report, String) {
    let mut text = Vec::new();
    let report = run(&flags(db, line), &mut text).unwrap_or_else(|e| panic!("{line}: {e}"));
    (report, String::from_utf8(text).expect("text"))
}

#[test]
fn every_workload_runs_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let line = "--num=2000 --reads=500 --seek_nexts=3 --histogram \
        --benchmarks=fillseq,readrandom,readseq,readreverse,seekrandom,overwrite,readwhilewriting,filluniquerandom,\
        readrandom,fillrandom,flush,compact,waitforcompaction,stats,device --device_bytes=1048576";
    let (report, text) = run_line(&db, &line.replace(", ", ","));
    let outcomes = &report.outcomes;
    let ops = |i: usize| (outcomes[i].workload, outcomes[i].record.ops, outcomes[i].record.found);
    assert_eq!(ops(0), (Workload::FillSeq, 2000, None));
    assert_eq!(ops(1), (Workload::ReadRandom, 500, Some(500)), "fillseq wrote every key");
    assert_eq!(ops(2), (Workload::ReadSeq, 500, None));
    assert_eq!(ops(3), (Workload::ReadReverse, 500, None));
    assert_eq!(ops(4), (Workload::SeekRandom, 500, Some(500)));
    assert_eq!(ops(5), (Workload::Overwrite, 2000, None));
    assert_eq!(ops(6), (Workload::ReadWhileWriting, 500, Some(500)), "the writer is not counted");
    assert_eq!(ops(8), (Workload::ReadRandom, 500, Some(500)), "filluniquerandom wrote every key");
    assert_eq!(outcomes.len(), 15);
    assert_eq!(outcomes[2].record.bytes(), 500 * 116);
    assert!(outcomes[14].device.is_some_and(|d| d.random_reads > 0.0));
    assert!(outcomes[0].record.latencies().all(|(k, h)| k == OpKind::Write && h.len() == 2000));
    assert!(text.contains("fillseq      : ") && text.contains("Microseconds per seek:"), "{text}");
    assert!(text.contains("(500 of 500 found)"), "{text}");
    let json = report.to_json();
    assert_eq!(json["results"].as_array().map(Vec::len), Some(15));
    assert!(json["results"][13]["stats"].as_str().is_some_and(|s| s.contains("L0")));
}

#[test]
fn threads_share_the_database_and_are_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let (report, _) = run_line(dir.path(), "--num=300 --threads=3 --batch_size=7 --benchmarks=fillseq,readrandom");
    let outcomes: &[Outcome] = &report.outcomes;
    // Each thread writes num keys, and its last batch whole: 43 batches of 7.
    assert_eq!(outcomes[0].record.ops, 3 * 301);
    assert_eq!((outcomes[1].record.ops, outcomes[1].record.found), (900, Some(900)));
    assert_eq!(outcomes[1].threads, 3);
}

#[test]
fn an_existing_database_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    run_line(dir.path(), "--num=100 --benchmarks=fillseq");
    let (report, text) = run_line(dir.path(), "--num=100 --use_existing_db --benchmarks=fillrandom,readrandom");
    assert!(text.contains("fillrandom   : skipped (--use_existing_db is true)"), "{text}");
    assert_eq!(report.outcomes[0].record.found, Some(100));
}

#[test]
fn mistakes_are_found_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let fails = |line: &str| -> Error {
        let e = run(&flags(&db, line), &mut Vec::new()).expect_err(line);
        assert!(!db.exists(), "{line}: work had begun");
        e
    };
    assert!(fails("--benchmarks=fillseq,nonsense").to_string().contains("nonsense"));
    assert!(fails("--benchmarks=fillseq --compression_type=rar").to_string().contains("rar"));
    let e = fails("--benchmarks=fillseq --num=1000000000000 --value_size=1000000").to_string();
    assert!(e.contains("MB free"), "{e}");
    let e = fails("--benchmarks=readrandom --use_existing_db").to_string();
    assert!(e.contains(&db.display().to_string()), "{e}");
}

/// What `ldb` sees in a database, in hexadecimal.
fn ldb_scan(db: &Path) -> String {
    let out = Command::new("ldb").arg(format!("--db={}", db.display())).args(["scan", "--hex"]).output().expect("ldb");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("hexadecimal")
}

/// The same seed gives the same keys and the same values as db_bench, so that both sides do the same work.
#[test]
fn same_seed_same_data_as_db_bench() {
    let missing = |tool: &str| Command::new(tool).arg("--version").output().is_err();
    if missing("db_bench") || missing("ldb") {
        println!("skipped: same_seed_same_data_as_db_bench: db_bench and ldb (rocksdb-tools) are not installed");
        return;
    }
    for line in [
        "--num=3000 --value_size=100 --benchmarks=fillrandom,overwrite",
        "--num=500 --value_size=1024 --benchmarks=fillseq",
        "--num=700 --value_size=30 --key_size=20 --batch_size=4 --benchmarks=fillrandom",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (theirs, ours) = (dir.path().join("rocksdb"), dir.path().join("rockmill"));
        let out = Command::new("db_bench")
            .arg(format!("--db={}", theirs.display()))
            .arg("--seed=42")
            .args(line.split_whitespace())
            .output()
            .expect("db_bench");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        run_line(&ours, line);
        let (a, b) = (ldb_scan(&theirs), ldb_scan(&ours));
        assert!(a.lines().count() > 100, "{line}: {} lines", a.lines().count());
        let differing = a.lines().zip(b.lines()).find(|(x, y)| x != y);
        assert_eq!(differing, None, "{line}");
        assert_eq!(a.len(), b.len(), "{line}");
    }
}
