//! Whole runs on small databases, and the same run with RocksDB's db_bench.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rockmill_bench::{
    Command as Asked, CompactCommand, CompactFlags, Error, Flags, OpKind, Outcome, Report, Workload, run, run_compact,
};
use rockmill_io::{FileSystem, PosixFileSystem};
use rockmill_offload::Secrets;
use rockmill_skip::{Needs, program, skip};

fn flags(db: &Path, line: &str) -> Flags {
    let args = format!("--db={} --seed=42 --cache_size=1048576 {line}", db.display());
    match Flags::parse(args.split_whitespace().map(str::to_owned)).expect("a good command line") {
        Asked::Run(f) => *f,
        Asked::Help | Asked::ShortHelp => panic!("help was not asked for"),
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
        readrandom,fillrandom,flush,compact,waitforcompaction,stats,device,readmissing,seekrandomwhilewriting \
        --device_bytes=1048576";
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
    assert_eq!(ops(15), (Workload::ReadMissing, 500, Some(0)));
    // fillrandom wrote some keys several times and others never.
    assert_eq!((ops(16).0, ops(16).1), (Workload::SeekRandomWhileWriting, 500), "the writer is not counted");
    assert!(ops(16).2.is_some_and(|found| (1..=500).contains(&found)), "{:?}", ops(16));
    assert_eq!(outcomes.len(), 17);
    assert_eq!(outcomes[2].record.bytes(), 500 * 116);
    assert!(outcomes[14].device.is_some_and(|d| d.random_reads > 0.0));
    assert!(outcomes[0].record.latencies().all(|(k, h)| k == OpKind::Write && h.len() == 2000));
    assert!(text.contains("fillseq      : ") && text.contains("Microseconds per seek:"), "{text}");
    assert!(text.contains("(500 of 500 found)"), "{text}");
    let json = report.to_json();
    assert_eq!(json["results"].as_array().map(Vec::len), Some(17));
    assert!(json["results"][13]["stats"].as_str().is_some_and(|s| s.contains("L0")));
}

#[test]
fn jobs_that_run_are_sampled_by_level_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--num=150000 --write_buffer_size=65536 --target_file_size_base=65536 --max_bytes_for_level_base=262144 \
        --sample_ms=10 --benchmarks=fillrandom";
    let (report, _) = run_line(dir.path(), line);
    let json = report.to_json();
    let mean: Vec<f64> = serde_json::from_value(json["results"][0]["mean_running_jobs"].clone()).unwrap();
    assert!(mean.len() >= 2 && mean[0] > 0.0, "no flush was seen: {mean:?}");
    assert!(mean[1..].iter().sum::<f64>() > 0.0, "no compaction was seen: {mean:?}");
    let page = report.to_html();
    assert!(page.contains("Jobs that run: rockmill") && page.contains("compaction threads at a time"));
    let threads = &json["results"][0]["compaction_threads"];
    let parts: Vec<f64> = serde_json::from_value(threads["at_most_share_of_samples"].clone()).unwrap();
    assert!(parts.len() > 1 && parts.windows(2).all(|p| p[0] <= p[1]) && parts.last() == Some(&1.0), "{parts:?}");
    // The mean is the sum of one minus each fraction; a job has at least one thread.
    let mean_of_parts: f64 = parts.iter().map(|p| 1.0 - p).sum();
    let of_threads = threads["mean"].as_f64().unwrap();
    assert!((of_threads - mean_of_parts).abs() < 1e-9 && of_threads >= mean[1..].iter().sum::<f64>() - 1e-9);
    let deviation: Vec<f64> = serde_json::from_value(json["results"][0]["running_jobs_deviation"].clone()).unwrap();
    assert!(deviation.len() == mean.len() && deviation[0] > 0.0, "{deviation:?}");
}

/// Names of files with this ending, in a possibly missing directory.
fn files(dir: &Path, ending: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
    let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Levels of 64 KiB, and a fill of 4 MB, so most data is in L2 and deeper.
const SMALL: &str = "--num=40000 --value_size=100 --write_buffer_size=65536 --target_file_size_base=65536 \
    --max_bytes_for_level_base=262144 --level_compaction_dynamic_level_bytes=0 --compression_type=none --sample_ms=10";

#[test]
fn a_faster_device_has_the_logs_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let (db, fast) = (dir.path().join("db"), dir.path().join("fast"));
    let line = format!(
        "{SMALL} --fast_path={} --fast_capacity=1M --options_string=max_index_size=16384 \
         --benchmarks=fillrandom,nutanix --reads=2000",
        fast.display()
    );
    let (report, _) = run_line(&db, &line);
    assert!(!files(&fast, ".log").is_empty() && files(&db, ".log").is_empty());
    assert!(!files(&db, ".sst").is_empty() && files(&fast.join("tables"), ".sst").is_empty());
    let json = report.to_json();
    let used = &json["results"][0]["use"];
    let most = used["fast_log_bytes_max"].as_u64().unwrap();
    assert!(most > 0 && most < 2 << 20, "{most}");
    assert!(used["cpu_cores"]["mean"].as_f64().is_some_and(|cores| cores > 0.0), "{used}");
    let samples = json["results"][0]["samples"].as_array().unwrap();
    assert!(samples.iter().any(|s| s["use"]["numbers"]["rocksdb.cur-size-all-mem-tables"].as_u64() > Some(0)));
    assert!(json["results"][0]["opened_in_seconds"].is_number() && json["results"][1]["opened_in_seconds"].is_null());
    assert_eq!((report.outcomes[1].record.ops, report.outcomes[1].workload), (2000, Workload::Nutanix));
    // Another run empties what this one made.
    run_line(&db, &line.replace("fillrandom,nutanix", "fillseq").replace("--num=40000", "--num=10"));
    assert_eq!((files(&fast, ".log").len(), files(&db, ".sst").len()), (1, 0));
}

#[test]
fn workers_do_the_compactions() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let clock = std::sync::Arc::new(rockmill_io::SystemClock::default());
    let mut config = rockmill_offload::WorkerConfig::default();
    let [ours, theirs] = Secrets::generate(&rockmill_offload::WorkersConfig::new(vec![]).name, &config.name).unwrap();
    config.secrets = Some(Secrets::parse(&theirs).unwrap());
    let mut worker = rockmill_offload::Worker::start(listener, config, clock).unwrap();
    let secrets = dir.path().join("secrets");
    std::fs::write(&secrets, ours).unwrap();
    let line = format!(
        "{SMALL} --compaction_workers={} --worker_input_min=0 --worker_jobs=2 --worker_secrets={} \
         --benchmarks=fillrandom,waitforcompaction,readseq",
        worker.address(),
        secrets.display()
    );
    let readable = |mode| std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(mode)).unwrap();
    readable(0o644);
    let e = run(&flags(&dir.path().join("db"), &line), &mut Vec::new()).expect_err("others may read").to_string();
    assert!(e.contains("--worker_secrets") && e.contains("others may read"), "{e}");
    readable(0o600);
    let (report, _) = run_line(&dir.path().join("db"), &line);
    assert!(worker.counters().done > 0, "{:?}", worker.counters());
    let json = report.to_json();
    let said = json["stores"][0]["engine"]["said"].as_str().unwrap_or_default();
    assert!(said.contains("; workers did "), "{json}");
    worker.stop();
    let wrong = flags(&dir.path().join("other"), "--benchmarks=fillseq --num=10 --compaction_workers=nowhere");
    let e = run(&wrong, &mut Vec::new()).expect_err("no address").to_string();
    assert!(e.contains("--compaction_workers: \"nowhere\""), "{e}");
    let open = flags(&dir.path().join("other"), "--benchmarks=fillseq --num=10 --compaction_workers=192.0.2.1:1");
    let e = run(&open, &mut Vec::new()).expect_err("another machine").to_string();
    assert!(e.contains("without secrets") && e.contains("--worker_secrets, --allow_unauthenticated"), "{e}");
}

#[test]
fn without_index_tables_a_faster_device_has_the_upper_levels() {
    let dir = tempfile::tempdir().unwrap();
    let (db, fast) = (dir.path().join("db"), dir.path().join("fast"));
    let line = format!("{SMALL} --fast_path={} --benchmarks=fillrandom,waitforcompaction", fast.display());
    let check = |db: &Path, fast: &Path, report: &Report| {
        let tables = |dir: &Path| files(dir, ".sst").iter().map(|f| dir.join(f).metadata().unwrap().len()).sum::<u64>();
        let levels = report.outcomes[1].timeline.samples.last().unwrap().levels.clone().unwrap();
        let (upper, lower) = (levels[..2].iter().sum::<u64>(), levels[2..].iter().sum::<u64>());
        assert!(lower > 0, "{levels:?}");
        assert_eq!((tables(&fast.join("tables")), tables(db)), (upper, lower), "{levels:?}");
        assert!(!files(fast, ".log").is_empty() && files(db, ".log").is_empty());
    };
    let (report, _) = run_line(&db, &line);
    check(&db, &fast, &report);
    // Existing data is removed before the next fill.
    run_line(&db, &line.replace("--num=40000", "--num=10"));
    assert_eq!(files(&fast.join("tables"), ".sst").len() + files(&db, ".sst").len(), 0);
    let (db, fast) = (dir.path().join("peer"), dir.path().join("peer-fast"));
    let line = format!("{SMALL} --fast_path={} --norockmill --peer=rocksdb --measure_space=no", fast.display());
    let line = format!("{line} --measure_device=no --benchmarks=fillrandom,waitforcompaction");
    if let Some((report, _)) = with_rocksdb(&db, &line) {
        check(&db, &fast, &report);
    }
}

#[test]
fn threads_share_the_database_and_are_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let (report, _) = run_line(dir.path(), "--num=300 --threads=3 --batch_size=7 --benchmarks=fillseq,readrandom");
    let outcomes: &[Outcome] = &report.outcomes;
    // Each thread writes num keys, with a complete last batch: 43 batches of 7.
    assert_eq!(outcomes[0].record.ops, 3 * 301);
    assert_eq!((outcomes[1].record.ops, outcomes[1].record.found), (900, Some(900)));
    assert_eq!(outcomes[1].threads, 3);
}

#[test]
fn an_existing_database_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    run_line(dir.path(), "--num=100 --benchmarks=fillseq");
    let newest = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        files.filter(|p| p.to_string_lossy().contains("/OPTIONS-")).max().expect("an OPTIONS file")
    };
    let named =
        std::fs::read_to_string(newest()).unwrap().replace("merge_operator=nullptr", "merge_operator=own.Concat");
    std::fs::write(newest(), named).unwrap();
    let before = newest();
    let (report, text) = run_line(dir.path(), "--num=100 --use_existing_db --benchmarks=fillrandom,readrandom");
    assert!(text.contains("fillrandom   : skipped (--use_existing_db is true)"), "{text}");
    assert_eq!(report.outcomes[0].record.found, Some(100));
    let after = std::fs::read_to_string(newest()).unwrap();
    assert!(newest() != before && after.contains("merge_operator=own.Concat"), "its owner's objects keep their names");
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
    for (line, wanted) in
        [("--fast_capacity=1G", "wants a --fast_path"), ("--fast_path=x --num_multi_db=2", "one database")]
    {
        let args = format!("--db=d {line}");
        let e = Flags::parse(args.split_whitespace().map(str::to_owned)).expect_err(line).to_string();
        assert!(e.contains(wanted), "{e}");
    }
    assert!(fails("--benchmarks=fillseq --compression_type=rar").to_string().contains("rar"));
    let e = fails("--benchmarks=fillseq --num=1000000000000 --value_size=1000000").to_string();
    assert!(e.contains("MB free"), "{e}");
    let e = fails("--benchmarks=readrandom --use_existing_db").to_string();
    assert!(e.contains(&db.display().to_string()), "{e}");
}

/// The contents of a database according to `ldb`, in hexadecimal.
fn ldb_scan(db: &Path) -> String {
    let out = Command::new("ldb").arg(format!("--db={}", db.display())).args(["scan", "--hex"]).output().expect("ldb");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("hexadecimal")
}

/// The same seed gives the same keys and the same values as db_bench, so that both sides do the same work.
#[test]
fn same_seed_same_data_as_db_bench() {
    for tool in ["db_bench", "ldb"] {
        if let Err(missing) = program(tool, Needs::Ldb) {
            return skip("same_seed_same_data_as_db_bench", &missing);
        }
    }
    for line in [
        "--num=3000 --value_size=100 --benchmarks=fillrandom,overwrite",
        "--num=500 --value_size=1024 --benchmarks=fillseq",
        "--num=700 --value_size=30 --key_size=20 --batch_size=4 --benchmarks=fillrandom",
        "--num=800 --reads=900 --readwritepercent=60 --benchmarks=fillseq,deleterandom,updaterandom,readrandomwriterandom",
        "--num=400 --benchmarks=fillrandom,mixgraph --mix_get_ratio=0.4 --mix_put_ratio=0.5 --mix_seek_ratio=0.1 \
         --key_dist_a=0.002312 --key_dist_b=0.3467 --keyrange_num=5 --keyrange_dist_a=14.18 --keyrange_dist_b=-2.917 \
         --keyrange_dist_c=0.0164 --keyrange_dist_d=-0.08082",
        "--num=300 --benchmarks=fillseq,mixgraph --reads=600 --mix_get_ratio=0.2 --mix_put_ratio=0.8 --mix_seek_ratio=0",
        "--num=300 --writes=900 --value_size=8 --benchmarks=mergerandom,compact --merge_operator=uint64add",
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

/// The part that needs a library of RocksDB.
const NEAR_ROCKSDB: &str = "RocksDB beside Rockmill in the benchmark";

/// A run with both RocksDB and Rockmill, or the reason why it is impossible.
fn with_rocksdb(db: &Path, line: &str) -> Option<(Report, String)> {
    let mut text = Vec::new();
    match run(&flags(db, line), &mut text) {
        Ok(report) => Some((report, String::from_utf8(text).expect("text"))),
        Err(e) if e.to_string().contains("cannot load RocksDB's library") => {
            skip(NEAR_ROCKSDB, &Needs::LibRocksDb.because(e));
            None
        }
        Err(e) => panic!("{line}: {e}"),
    }
}

#[test]
fn both_sides_of_a_pair_do_the_same_and_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--peer rocksdb --repeat=2 --num=3000 --reads=600 --batch_size=3 --seek_nexts=5 --compression_type=lz4 \
        --bloom_bits=10 --merge_operator=stringappend --write_buffer_size=65536 --target_file_size_base=65536 \
        --nomeasure_device --sample_ms=10 --max_bytes_for_level_base=131072 --recordcount=500 --fieldcount=2 \
        --benchmarks=fillrandom,waitforcompaction,readrandom,readmissing,seekrandom,multireadrandom,readseq,\
readreverse,deleterandom,updaterandom,readrandomwriterandom,mergerandom,compact,ycsb-load,ycsb-a,ycsb-e,flush,stats";
    let Some((report, text)) = with_rocksdb(dir.path(), line) else {
        return;
    };
    // In turn, with the same work: the same numbers of found, visited and stored entries.
    let turns: Vec<&str> = text.lines().filter(|l| l.starts_with("--- ")).collect();
    let wanted = ["--- rockmill (1 of 2)", "--- rocksdb (1 of 2)", "--- rocksdb (2 of 2)", "--- rockmill (2 of 2)"];
    assert_eq!(turns, wanted, "another side begins each time");
    assert_eq!(text.lines().filter(|l| l.starts_with("Page cache: ")).count(), 1, "{text}");
    for o in &report.outcomes {
        let same = |p: &&Outcome| p.position == o.position && p.repetition == o.repetition && p.side != o.side;
        let other = report.outcomes.iter().find(same).expect("the other side");
        let of = |o: &Outcome| (o.record.ops, o.record.found, o.record.wrote, o.record.read, o.record.scanned);
        assert_eq!(of(o), of(other), "{}", o.workload.name());
        // All read data may be in the cache.
        let calls = o.record.wrote == 0 || o.cost.calls.total() > 0;
        assert!(o.stats.is_some() || calls, "{}", o.workload.name());
    }
    let sizes: Vec<(u64, u64)> = report.spaces.iter().map(|s| (s.entries, s.bytes)).collect();
    assert_eq!(sizes.len(), 4);
    assert!(sizes.iter().all(|s| *s == sizes[0] && s.0 >= 500), "{sizes:?}");
    assert!(report.spaces.iter().all(|s| s.file_bytes > 10_000 && s.levels.iter().sum::<u64>() > 0), "{sizes:?}");

    let json = report.to_json();
    assert_eq!(json["stores"][1]["name"], "rocksdb");
    assert!(json["stores"][1]["version"].as_str().is_some_and(|v| v.contains('.')), "{}", json["stores"][1]["version"]);
    for side in 0..2 {
        let of = |name: &str| json["stores"][side]["settings"][name].clone();
        assert_eq!((of("write_buffer_size"), of("compression")), ("65536".into(), "kLZ4Compression".into()), "{side}");
        assert_eq!(of("table.block_size"), "4096", "{side}");
    }
    let ratio = json["comparisons"].as_array().unwrap().iter().find(|c| c["measure"] == "ops/s").unwrap().clone();
    assert_eq!((ratio["first"].as_str(), ratio["ratios"].as_array().map(Vec::len)), (Some("rockmill"), Some(2)));
    let fill = &json["results"][0];
    assert!(
        fill["latency_micros"]["write"]["p99.99"].is_number()
            && fill["samples"].as_array().is_some_and(|s| !s.is_empty())
    );
    assert!(text.contains("Ratios pair by pair:") && text.contains("space amplification"), "{text}");

    let page = report.to_html();
    for part in ["Throughput over time", "Latency of each write", "Write amplification", "rocksdb", "<svg viewBox"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"), "all in one file");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

/// A struct of options is compared by its members: a dictionary on only one side would be unfair.
#[test]
fn members_of_structs_are_compared_between_the_sides() {
    let dir = tempfile::tempdir().unwrap();
    let one = "--peer rockmill,options_string=compression_opts={level=7}";
    let (report, text) = run_line(dir.path(), &format!("{one} --num=50 --benchmarks=fillseq --nomeasure_device"));
    assert!(text.contains("WARNING: options that rockmill and rockmill-2 both have"), "{text}");
    assert!(text.contains("compression_opts.level 32767 | 7"), "{text}");
    assert!(report.to_html().contains("compression_opts.level"));
    assert_eq!(report.to_json()["stores"][1]["differs_from_first"][0]["option"], "compression_opts.level");
    let line = "--peer rocksdb --num=50 --benchmarks=fillseq --nomeasure_device \
        --options_string=compression_opts={level=7;max_dict_bytes=512};compaction_options_universal={size_ratio=3}";
    let Some((_, text)) = with_rocksdb(&dir.path().join("both"), line) else { return };
    for option in ["compression_opts", "compaction_options_universal", "compaction_options_fifo", "metadata_cache"] {
        assert!(!text.contains(option), "both take it as it is given: {text}");
    }
}

/// An engine that this machine lacks is refused, not replaced; the results include the work of each engine.
#[test]
fn the_engine_that_is_asked_for_runs_or_the_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let uring = PosixFileSystem::default().batch_probe().available;
    let kernel = rockmill::probe_kernel_engine(rockmill::KernelDriver::default()).is_ok();
    for (engine, here) in [("pread", true), ("auto", true), ("uring", uring), ("kernel", kernel)] {
        let line = format!("--engine={engine} --num=3000 --write_buffer_size=65536 --benchmarks=fillrandom,compact");
        let db = dir.path().join(engine);
        if !here {
            let e = run(&flags(&db, &line), &mut Vec::new()).expect_err(engine).to_string();
            assert!(e.contains(&format!("--engine={engine} is not available")) && !db.exists(), "{e}");
            continue;
        }
        let (report, text) = run_line(&db, &line);
        let said = report.sides[0].engine.clone().expect("Rockmill has engines");
        let of = |name: &str| match name {
            "uring" => said.parts.uring,
            "kernel" => said.parts.kernel,
            _ => said.parts.pread,
        };
        let ran = if engine != "auto" {
            engine
        } else if uring {
            "uring"
        } else {
            "pread"
        };
        assert!(of(ran) > 0, "{engine}: {said:?}");
        assert!(text.contains("  engines: ") && text.contains(&format!("{ran} ")), "{text}");
        let json = report.to_json();
        assert_eq!(json["stores"][0]["engine"]["asked"], engine);
        assert!(json["stores"][0]["engine"]["compaction_parts"][ran].as_u64() > Some(0), "{json}");
        assert!(json["results"][1]["engines"]["compaction_parts"].is_object(), "{json}");
        assert!(report.to_html().contains("compaction parts"), "{engine}");
        assert_eq!(text.contains("WARNING"), said.parts.handed_over > 0, "{text}");
    }
}

#[test]
fn a_side_may_have_settings_of_its_own_and_stands_beside_itself() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--peer rockmill,label=small-blocks,block_size=1024 --num=500 --benchmarks=fillseq,readrandom --settings=best \
        --nomeasure_device";
    let (report, text) = run_line(dir.path(), line);
    assert_eq!(report.sides[1].label, "small-blocks");
    assert!(text.contains("table.block_size 4096 | 1024"), "{text}");
    assert!(text.contains("best: max_background_jobs="), "{text}");
    assert!(dir.path().join("small-blocks/CURRENT").exists() && dir.path().join("rockmill/CURRENT").exists());
}

#[test]
fn a_missing_peer_or_folder_is_found_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let fails = |line: &str| -> String {
        let e = run(&flags(&db, line), &mut Vec::new()).expect_err(line);
        assert!(!db.exists() && !db.with_extension("device").exists(), "{line}: work had begun");
        e.to_string()
    };
    let e = fails("--benchmarks=fillseq --peer rocksdb=/no/such/librocksdb.so");
    assert!(e.contains("/no/such/librocksdb.so") && e.contains("build_rocksdb"), "{e}");
    let e = fails("--benchmarks=fillseq --peer rocksdb=/proc/self/exe");
    assert!(e.contains("cannot load RocksDB's library"), "{e}");
    assert!(fails("--benchmarks=fillseq --peer leveldb").contains("rocksdb, fjall"));
    assert!(fails("--benchmarks=workloadz").contains("there is no benchmark"));
    assert!(fails("--benchmarks=mergerandom").contains("--merge_operator"));
    assert!(fails("--benchmarks=fillseq --report=/no/such/folder/x.html").contains("/no/such/folder"));
    assert!(fails("--benchmarks=ycsb-load --recordcount=99000000000").contains("MB free"));
    let two = fails("--benchmarks=fillseq --num=1000000000000 --value_size=1000 --peer rockmill");
    assert!(two.contains("for 2 stores"), "{two}");
}

#[cfg(all(feature = "fjall", feature = "redb", feature = "heed"))]
#[test]
fn the_other_rust_stores_do_the_same_work() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--peer fjall --peer redb --peer lmdb --num=400 --reads=200 --seek_nexts=4 --nomeasure_device --batch_size=2 \
        --benchmarks=fillrandom,readrandom,readmissing,seekrandom,multireadrandom,readseq,readreverse,deleterandom,\
updaterandom,compact,waitforcompaction,stats";
    let (report, _) = run_line(dir.path(), line);
    for o in &report.outcomes {
        let first = report.outcomes.iter().find(|p| p.position == o.position).expect("Rockmill's");
        let of = |o: &Outcome| (o.record.ops, o.record.found, o.record.wrote, o.record.read);
        assert_eq!(of(o), of(first), "{} {}", report.sides[o.side].label, o.workload.name());
    }
    assert!(report.spaces.iter().all(|s| s.entries == report.spaces[0].entries && s.bytes == report.spaces[0].bytes));
}

fn compact_flags(db: &Path, line: &str) -> CompactFlags {
    let args = format!("--db={} {line}", db.display());
    match CompactFlags::parse(args.split_whitespace().map(str::to_owned)).expect("a good command line") {
        CompactCommand::Run(f) => *f,
        CompactCommand::Help => panic!("help was not asked for"),
    }
}

fn has_uring() -> bool {
    let probe = PosixFileSystem::default().batch_probe();
    if !probe.available {
        skip("the engine uring in the benchmark", &Needs::Uring.because(probe.reason));
    }
    probe.available
}

#[test]
fn one_job_of_every_input_is_merged_by_every_side() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let engines = if has_uring() { "uring,pread" } else { "pread" };
    let line = format!(
        "--engines={engines} --values=100,1024 --inputs=3 --bloom=10 --compression=none,lz4 --mb=1 --repeat=2 \
         --target_file_size_base=300000"
    );
    let (mut text, mut peer) = (Vec::new(), " --peer rocksdb");
    let with_peer = compact_flags(&db, &format!("{line}{peer}"));
    let report = match run_compact(&with_peer, &mut text) {
        Err(e) if e.to_string().contains("cannot load RocksDB's library") => {
            skip(NEAR_ROCKSDB, &Needs::LibRocksDb.because(e));
            peer = "";
            run_compact(&compact_flags(&db, &line), &mut text).expect("Rockmill alone")
        }
        done => done.unwrap_or_else(|e| panic!("{e}")),
    };
    assert!(!db.exists(), "nothing is left behind");
    let sides = engines.split(',').count() + usize::from(!peer.is_empty());
    assert_eq!((report.sides.len(), report.cases.len()), (sides, 4));
    for case in &report.cases {
        let name = case.case.name();
        assert_eq!((case.runs.len(), case.limits.len()), (2 * sides, 2), "{name}");
        assert_eq!(case.written_by.starts_with("rocksdb"), !peer.is_empty(), "{name}: {}", case.written_by);
        let first = &case.runs[0].job;
        for run in &case.runs {
            assert_eq!(run.job.started, [[(0, 3)]], "{name}");
            assert_eq!((run.job.input_records, run.job.output_records), (case.entries, case.entries), "{name}");
            let near = |a: u64, b: u64| a.abs_diff(b) < b / 20;
            assert!(near(run.job.output_bytes, first.output_bytes), "{name}: {:?} {first:?}", run.job);
            assert!(case.calls_per_gb(run) > 0.0 && case.share_of_limit(run).is_some_and(|s| s > 0.0), "{name}");
        }
        assert!(case.limits.iter().all(|l| l.read == case.input_bytes && l.written > 0), "{name}");
    }
    // The engines' outputs have exactly the same sizes.
    let bytes = |side: usize| -> Vec<u64> {
        report
            .cases
            .iter()
            .flat_map(|c| c.runs.iter().filter(move |r| r.side == side))
            .map(|r| r.job.output_bytes)
            .collect()
    };
    if engines.contains("uring") {
        assert_eq!(bytes(0), bytes(1));
    }
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("1 KiB, 3 inputs, Bloom 10, lz4") && text.contains("System calls counted by"), "{text}");
    let json = report.to_json();
    assert_eq!(json["cases"][3]["runs"].as_array().map(Vec::len), Some(2 * sides));
    if sides > 1 {
        let ratio = &json["cases"][0]["ratios"][0];
        assert_eq!(ratio["times_as_fast"]["pairs"].as_array().map(Vec::len), Some(2), "{ratio}");
    }
    assert!(text.contains("parts by engine") && text.contains("pread 2"), "{text}");
    assert_eq!(json["cases"][0]["runs"][0]["engines"]["handed_over_by_kernel"], 0);
    let page = report.to_html();
    for part in ["the device", "pread", "GB of input a second", "--inputs=3", "parts by<br>engine"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"), "all in one file");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn mistakes_of_a_compaction_benchmark_are_found_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let fails = |line: &str| -> String {
        let e = run_compact(&compact_flags(&db, line), &mut Vec::new()).expect_err(line);
        assert!(!db.exists(), "{line}: work had begun");
        e.to_string()
    };
    assert!(fails("--engines=pread --peer rocksdb=/no/such/librocksdb.so").contains("/no/such/librocksdb.so"));
    assert!(fails("--engines=pread --compression=rar").contains("rar"));
    assert!(fails("--engines=pread --mb=100000000000").contains("MB free"));
    assert!(fails("--engines=pread --json=/no/such/folder/x").contains("/no/such/folder"));
    assert!(fails("--engines=pread --peer leveldb").contains("rocksdb, fjall"));
    std::fs::create_dir(&db).unwrap();
    std::fs::write(db.join("precious"), "x").unwrap();
    let e = run_compact(&compact_flags(&db, "--engines=pread --mb=1"), &mut Vec::new()).expect_err("not empty");
    assert!(e.to_string().contains("choose another --db") && db.join("precious").exists(), "{e}");
}

/// Keys are spread over column families and databases, and all are found again on both sides.
#[test]
fn column_families_and_databases_share_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--num=600 --reads=600 --seek_nexts=3 --num_column_families=3 --num_multi_db=2 --batch_size=4 \
        --benchmarks=filluniquerandom,flush,compact,readrandom,readseq,seekrandom,overwrite,deleterandom \
        --nomeasure_device";
    let both = with_rocksdb(&dir.path().join("both"), &format!("--peer rocksdb {line}")).map(|(report, _)| report);
    let report = both.unwrap_or_else(|| run_line(&dir.path().join("alone"), line).0);
    for o in &report.outcomes {
        match o.workload.name() {
            "readrandom" => assert_eq!(o.record.found, Some(600)),
            "readseq" => assert_eq!(o.record.ops, 600),
            _ => {}
        }
    }
    assert!(report.spaces.iter().all(|s| s.entries == report.spaces[0].entries));
    let root = dir.path().join(if report.sides.len() > 1 { "both/rockmill" } else { "alone" });
    for db in ["0", "1"] {
        let db = root.join(db);
        let families = rockmill::Db::list_cf(&rockmill::Options::default(), &db).unwrap();
        assert_eq!(families, ["default", "column_family_name_000001", "column_family_name_000002"]);
        let db = rockmill::Db::open_cf_for_read_only(&rockmill::Options::default(), &db, &families, false).unwrap();
        for name in families {
            let cf = db.cf_handle(&name).unwrap();
            assert!(db.iterator_cf(&cf, rockmill::IteratorMode::Start).count() > 0, "{name} has nothing");
        }
    }
    let refused =
        run(&flags(&dir.path().join("no"), "--num_column_families=2 --benchmarks=multireadrandom"), &mut Vec::new());
    assert!(refused.unwrap_err().to_string().contains("--num_column_families=1"));
}
