//! Whole databases with workers that do as they should, or some of the time.

use std::sync::atomic::{AtomicU64, Ordering};

use rockmill::internals::JobRegistry;
use rockmill::{
    BlockBasedOptions, ChecksumType, CompactionDecision, CompactionFilter, MergeEngine, SharedCompactionFilter,
    TphTableOptions,
};
use rockmill_io::ManualClock;

use super::*;

#[test]
fn a_worker_does_the_compactions_of_a_database() {
    let worker = worker(WorkerConfig::default());
    let (elsewhere, returned) = run_database(config(&[worker.address()]));
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    let counters = worker.counters();
    assert_eq!((counters.done, counters.failed, counters.refused, counters.running), (elsewhere, 0, 0, 0));
}

/// On the network nothing else would show that a byte of them was changed.
#[test]
fn tables_without_checksums_stay_here() {
    let worker = worker(WorkerConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(config(&[worker.address()]));
    let mut table = BlockBasedOptions::default();
    table.set_checksum_type(ChecksumType::None);
    options.set_block_based_table_factory(&table);
    let db = Db::open(&options, dir.path()).unwrap();
    let all = fill(&db, 1);
    compact(&db);
    assert!(contents(&db) == all);
    let counters = db.counters();
    assert_eq!((counters.compactions_elsewhere, counters.compactions_returned), (0, 0), "{counters:?}");
    drop(db); // which writes what the log still gathers
    let log = std::fs::read_to_string(dir.path().join("LOG")).unwrap();
    assert!(log.contains("has no checksums"), "{log}");
    assert_eq!(worker.counters().connections, 0);
}

/// Each engine, with one thread and with several, on tables that need several reads and writes.
#[test]
fn each_engine_does_them() {
    for engine in [MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Auto] {
        for threads in [1, 3] {
            let worker = worker(WorkerConfig { engine, threads, ..WorkerConfig::default() });
            let (elsewhere, returned) = run_database(config(&[worker.address()]));
            assert!(elsewhere > 0 && returned == 0, "{engine}: {elsewhere} done elsewhere, {returned} came back");
            let parts = worker.engine_parts();
            let (by, others) = match engine {
                MergeEngine::Pread => (parts.pread, parts.uring + parts.kernel),
                _ => (parts.uring, parts.pread + parts.kernel),
            };
            assert!(by >= elsewhere && others == 0, "{engine}: {parts:?}");
        }
    }
    let kernel = WorkerConfig { engine: MergeEngine::Kernel, ..WorkerConfig::default() };
    let e = Worker::start(listener(), kernel, clock()).unwrap_err();
    assert!(e.to_string().contains("engine kernel needs a device of the kernel's"), "{e}");
}

#[test]
fn tables_are_taken_with_each_check() {
    let worker = worker(WorkerConfig::default());
    for text in ["all", "0%", "10%", "100%"] {
        let check: Check = text.parse().unwrap();
        assert_eq!(check.to_string(), text);
        let (elsewhere, returned) = run_database(WorkersConfig { check, ..config(&[worker.address()]) });
        assert!(elsewhere > 0 && returned == 0, "{text}: {elsewhere} done elsewhere, {returned} came back");
    }
    for text in ["", "%", "10", "101%", "-1%", "1.5%", "All"] {
        let e = text.parse::<Check>().unwrap_err();
        assert!(e.to_string().contains(&format!("{text:?}")), "{e}");
    }
}

#[test]
fn secrets_are_proven_on_both_ways() {
    let (of_host, of_worker) = secrets();
    let worker = worker(WorkerConfig { secrets: Some(of_worker), ..WorkerConfig::default() });
    let with = |secrets| WorkersConfig { secrets, ..config(&[worker.address()]) };
    let (elsewhere, returned) = run_database(with(Some(of_host)));
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    for secrets in [None, Some(secrets().0)] {
        let (elsewhere, returned) = run_database(with(secrets));
        assert!(elsewhere == 0 && returned > 0, "{elsewhere} done elsewhere, {returned} came back");
    }
}

#[test]
fn small_jobs_stay_here_and_full_or_draining_workers_get_none() {
    let worker = worker(WorkerConfig::default());
    let large = WorkersConfig { input_bytes_min: 1 << 40, ..config(&[worker.address()]) };
    assert_eq!(run_database(large), (0, 0));
    worker.drain();
    let (elsewhere, returned) = run_database(config(&[worker.address()]));
    assert!(elsewhere == 0 && returned > 0, "{elsewhere} done elsewhere, {returned} came back");
    // One that failed is left alone for a while.
    let paused = WorkersConfig { pause: Duration::from_secs(3600), ..config(&[worker.address()]) };
    assert_eq!(run_database(paused), (0, 1));
    assert!(worker.counters().refused > 1);
}

#[test]
fn a_worker_that_ends_gives_its_jobs_back() {
    // It ends as soon as it has one.
    let worker = Arc::new(parking_lot::Mutex::new(Some(worker(WorkerConfig::default()))));
    let address = worker.lock().as_ref().unwrap().address();
    let ends = Arc::clone(&worker);
    let ender = thread::spawn(move || {
        let waits = |worker: &Worker| worker.counters().running + worker.counters().done == 0;
        while ends.lock().as_ref().is_some_and(waits) {
            thread::yield_now();
        }
        ends.lock().take();
    });
    let (elsewhere, returned) = run_database(config(&[address]));
    ender.join().unwrap();
    // It may have been done by then.
    assert!(elsewhere + returned > 0, "{elsewhere} done elsewhere, {returned} came back");
}

/// Writes, flushes, compactions by themselves and on demand, snapshots and reopenings, with a worker that works and one
/// that drops every other connection: what is read is what was written.
#[test]
fn what_is_written_is_read_whoever_compacts() {
    let good = worker(WorkerConfig { jobs_max: 4, threads: 2, ..WorkerConfig::default() });
    let (behind, turn) = (good.address(), AtomicU64::new(0));
    let flaky = Rogue::start(move |channel| {
        // A connection that ends at once, or goes on to the good one for a while.
        if turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return;
        }
        let mut theirs = channel.stream().try_clone().unwrap();
        let mut ours = std::net::TcpStream::connect(behind).unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        theirs.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let (mut from, mut to) = (theirs.try_clone().unwrap(), ours.try_clone().unwrap());
        let there = thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
        drop(std::io::copy(&mut ours, &mut theirs));
        let _ = theirs.shutdown(std::net::Shutdown::Both);
        let _ = ours.shutdown(std::net::Shutdown::Both);
        there.join().unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let workers = WorkersConfig { jobs_max: 2, ..config(&[good.address(), flaky.address]) };
    let mut options = options(workers);
    options.set_disable_auto_compactions(false);
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_max_bytes_for_level_base(300 << 10);
    options.set_write_buffer_size(64 << 10);
    options.set_target_file_size_base(64 << 10);
    options.increase_parallelism(4);
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut all, mut elsewhere) = (Contents::new(), 0);
    for round in 0..6 {
        let db = Db::open(&options, dir.path()).unwrap();
        assert!(contents(&db) == all, "round {round}");
        for _ in 0..4 {
            for _ in 0..1500 {
                let key = format!("{:05}", rng.u32(0..6000)).into_bytes();
                if rng.u8(0..5) == 0 {
                    db.delete(&key).unwrap();
                    all.remove(&key);
                } else {
                    let value = vec![rng.u8(..); rng.usize(0..150)];
                    db.put(&key, &value).unwrap();
                    all.insert(key, value);
                }
            }
            let snapshot = db.snapshot();
            let before = all.clone();
            db.flush().unwrap();
            if rng.bool() {
                compact(&db);
            }
            let mut then = rockmill::ReadOptions::default();
            then.set_snapshot(&snapshot);
            let seen = db.iterator_opt(IteratorMode::Start, then).map(|e| e.unwrap());
            assert!(seen.map(|(k, v)| (k.to_vec(), v.to_vec())).collect::<Contents>() == before, "round {round}");
        }
        compact(&db);
        assert!(contents(&db) == all, "round {round}");
        elsewhere += db.counters().compactions_elsewhere;
    }
    println!("{elsewhere} compactions elsewhere, {:?}", good.counters());
    assert!(elsewhere > 5);
    let db = Db::open(&options, dir.path()).unwrap();
    assert!(contents(&db) == all);
}

/// Values that expire: a worker decides by the store's clock, whatever its own says.
#[test]
fn values_expire_by_the_stores_clock() {
    let worker = worker(WorkerConfig::default());
    let micros = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let clock = Arc::new(ManualClock::new(u64::try_from(micros).unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(config(&[worker.address()]));
    options.set_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let db = Db::open_with_ttl(&options, dir.path(), Duration::from_secs(600)).unwrap();
    fill(&db, 4);
    clock.advance(Duration::from_secs(700));
    let young = fill(&db, 5);
    // By the worker's clock nothing would be old enough.
    compact(&db);
    let left = contents(&db);
    assert!(left == young, "{} entries, where {} are young", left.len(), young.len());
    let counters = db.counters();
    assert!(counters.compactions_elsewhere > 0 && counters.compactions_returned == 0, "{counters:?}");
    nothing_is_left(&db, dir.path());
}

/// Drops values that begin with this byte, and shortens those that begin with the next.
struct Drops(u8);

impl CompactionFilter for Drops {
    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> CompactionDecision {
        match value {
            [first, ..] if *first == self.0 => CompactionDecision::Remove,
            [first, ..] if *first == self.0 + 1 => CompactionDecision::Change(vec![*first]),
            _ => CompactionDecision::Keep,
        }
    }

    fn name(&self) -> &str {
        "drops"
    }

    fn option_text(&self) -> String {
        format!("first={}", self.0)
    }
}

/// Filters go by name and options to workers that have them; all else is done here, and no worker is to blame.
#[test]
fn filters_that_workers_have_go_there() {
    let knows =
        |first: u8| JobRegistry { filters: vec![SharedCompactionFilter::new(Drops(first))], ..JobRegistry::default() };
    let has = worker(WorkerConfig { registry: knows(7), ..WorkerConfig::default() });
    let has_not = worker(WorkerConfig::default());
    let run = |worker: &Worker, registry: JobRegistry| {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(WorkersConfig { registry, ..config(&[worker.address()]) });
        options.set_compaction_filter_object(Drops(7));
        let db = Db::open(&options, dir.path()).unwrap();
        let mut all = fill(&db, 6);
        compact(&db);
        all.retain(|_, value| value.first() != Some(&7));
        all.values_mut().filter(|value| value.first() == Some(&8)).for_each(|value| value.truncate(1));
        assert!(contents(&db) == all);
        let counters = db.counters();
        (counters.compactions_elsewhere, counters.compactions_returned)
    };
    let (elsewhere, returned) = run(&has, knows(7));
    assert!(elsewhere > 0 && returned == 0, "{elsewhere} done elsewhere, {returned} came back");
    // Other options are another filter, and what nobody is known to have is not offered.
    assert_eq!(run(&has, knows(9)), (0, 0));
    assert_eq!(run(&has, JobRegistry::default()), (0, 0));
    // A worker that has less than the store was told refuses the job.
    let (elsewhere, returned) = run(&has_not, knows(7));
    assert!(elsewhere == 0 && returned > 0, "{elsewhere} done elsewhere, {returned} came back");
}

/// TPH tables whose files several share: a compaction writes what has changed, and the rest stays where it is.
#[test]
fn tph_tables_go_there_with_their_shared_files() {
    let worker = worker(WorkerConfig::default());
    for check in ["all", "10%"] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(WorkersConfig { check: check.parse().unwrap(), ..config(&[worker.address()]) });
        let mut tph = TphTableOptions::default();
        tph.set_garbage_percent(400);
        options.set_tph_table_factory(&tph);
        let db = Db::open(&options, dir.path()).unwrap();
        let mut all = fill(&db, 7);
        compact(&db);
        let mut rng = fastrand::Rng::with_seed(8);
        for round in 0..5 {
            for _ in 0..200 {
                let key = format!("key {:06}", rng.u32(0..8000)).into_bytes();
                db.put(&key, [round; 50]).unwrap();
                all.insert(key, vec![round; 50]);
            }
            db.flush().unwrap();
            compact(&db);
            assert!(contents(&db) == all, "{check}, round {round}");
        }
        let shares = |db: &Db| db.live_files().unwrap().iter().any(|file| !file.pieces.is_empty());
        assert!(shares(&db), "{check}: no table has a file of another one");
        let counters = db.counters();
        assert!(counters.compactions_elsewhere > 5 && counters.compactions_returned == 0, "{counters:?}");
        drop(db);
        let db = Db::open(&options, dir.path()).unwrap();
        assert!(contents(&db) == all, "{check}");
        assert!(all.iter().all(|(key, value)| db.get(key).unwrap().as_ref() == Some(value)), "{check}");
    }
}

/// With as many compactions to keep here as there are threads, none goes; with none to keep, all that may.
#[test]
fn compactions_stay_here_while_few_run() {
    let worker = worker(WorkerConfig::default());
    let (elsewhere, returned) = run_database(WorkersConfig { here_first: 64, ..config(&[worker.address()]) });
    assert_eq!((elsewhere, returned, worker.counters().done), (0, 0, 0));
    let (elsewhere, _) = run_database(WorkersConfig { here_first: 0, ..config(&[worker.address()]) });
    assert!(elsewhere > 0 && worker.counters().done == elsewhere);
}
