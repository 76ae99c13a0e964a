//! A guard against slow regressions: bytes and calls per operation of the write path, the read path and the merge loop,
//! compared with `guard.txt`. Unlike times, counts are the same on every machine and with every load. `scripts/guard`
//! counts instructions, and sleeps of concurrent writers, with the same file.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use rockmill::{BlockBasedOptions, Db, Env, MergeEngine, Options, TphTableOptions, WriteOptions};
use rockmill_bench::{KeyGenerator, Mersenne64, ValueGenerator};
use rockmill_io::{CountingFileSystem, IoCounts, MemFileSystem, SystemClock};

const ROUNDS: u64 = 4;
const WRITES: u64 = 5_000;
const READS: u64 = 2_000;
const VALUE_BYTES: usize = 100;

/// Measured: name and value for each operation.
fn measure() -> BTreeMap<&'static str, f64> {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    // The info log's thread writes lines one by one or together, depending on scheduling.
    let text = "create_if_missing=true;info_log_level=FATAL_LEVEL;disable_auto_compactions=true;\
                compression=kNoCompression;max_background_jobs=1;block_based_table_factory={no_block_cache=true;\
                filter_policy=bloomfilter:10:false}";
    let mut options = Options::from_string(&Options::default(), text).expect("good options");
    // The engine that every machine has; a ring's behaviour depends on the device and the kernel.
    options.set_merge_engine(MergeEngine::Pread);
    options.set_env(&env);
    let db = Db::open(&options, Path::new("/guard")).expect("a database");
    let mut out = BTreeMap::new();
    let mut record = |name: &'static str, n: u64, ops: u64| {
        out.insert(name, n as f64 / ops as f64);
    };

    let mut random = Mersenne64::new(42);
    let mut values = ValueGenerator::new(0.5, VALUE_BYTES);
    let (mut puts, mut flushes) = (IoCounts::default(), IoCounts::default());
    for _ in 0..ROUNDS {
        let before = fs.counts();
        let mut keys = KeyGenerator::Random;
        for _ in 0..WRITES {
            let n = keys.next_key(&mut random, ROUNDS * WRITES).expect("random keys never end");
            db.put(format!("{n:016}"), values.next_value(VALUE_BYTES)).expect("a put");
        }
        let written = settled(&fs);
        db.flush().expect("a flush");
        puts = add(puts, written - before);
        flushes = add(flushes, settled(&fs) - written);
    }
    let writes = ROUNDS * WRITES;
    record("put_wal_bytes", puts.write_bytes, writes);
    record("put_calls", puts.calls(), writes);
    record("flush_bytes_written", flushes.write_bytes, writes);
    record("flush_calls", flushes.calls(), ROUNDS);

    let read = |db: &Db, random: &mut Mersenne64| {
        let before = fs.counts();
        for _ in 0..READS {
            db.get(format!("{:016}", random.next_u64() % writes)).expect("a get");
        }
        fs.counts() - before
    };
    let of = read(&db, &mut random);
    record("get_from_4_l0_reads", of.reads, READS);
    record("get_from_4_l0_bytes", of.read_bytes, READS);

    let before = fs.counts();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
    let of = settled(&fs) - before;
    record("compact_bytes_read", of.read_bytes, writes);
    record("compact_bytes_written", of.write_bytes, writes);
    record("compact_calls", of.calls(), 1);

    let of = read(&db, &mut random);
    record("get_from_1_level_reads", of.reads, READS);
    record("get_from_1_level_bytes", of.read_bytes, READS);
    let before = fs.counts();
    seeks(&db, &mut random, writes);
    let of = fs.counts() - before;
    record("seek_10_next_reads", of.reads, READS);
    record("seek_10_next_bytes", of.read_bytes, READS);
    out
}

/// Puts that are synced, and puts without a WAL.
fn measure_synced() -> BTreeMap<&'static str, f64> {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let text = "create_if_missing=true;info_log_level=FATAL_LEVEL;disable_auto_compactions=true";
    let mut options = Options::from_string(&Options::default(), text).expect("good options");
    options.set_env(&env);
    let db = Db::open(&options, Path::new("/guard")).expect("a database");
    let (mut synced, mut without) = (WriteOptions::default(), WriteOptions::default());
    synced.set_sync(true);
    without.disable_wal(true);
    let mut values = ValueGenerator::new(0.5, VALUE_BYTES);
    let mut puts = |options: &WriteOptions| {
        let before = settled(&fs);
        for n in 0..READS {
            db.put_opt(format!("{n:016}"), values.next_value(VALUE_BYTES), options).expect("a put");
        }
        settled(&fs) - before
    };
    let (of, none) = (puts(&synced), puts(&without));
    BTreeMap::from([
        ("put_synced_wal_bytes", of.write_bytes as f64 / READS as f64),
        ("put_synced_calls", of.calls() as f64 / READS as f64),
        ("put_synced_syncs", of.syncs as f64 / READS as f64),
        ("put_without_wal_calls", none.calls() as f64 / READS as f64),
    ])
}

/// The same for TPH tables: a fill, overwrites that leave most data in place, lookups of existing and absent keys.
fn measure_tph() -> BTreeMap<&'static str, f64> {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let text = "create_if_missing=true;info_log_level=FATAL_LEVEL;disable_auto_compactions=true;\
                compression=kNoCompression;max_background_jobs=1;target_file_size_base=262144";
    let mut options = Options::from_string(&Options::default(), text).expect("good options");
    let mut blocks = BlockBasedOptions::default();
    blocks.disable_cache();
    let mut tph = TphTableOptions::default();
    tph.set_block_based_options(&blocks);
    options.set_tph_table_factory(&tph);
    options.set_merge_engine(MergeEngine::Pread);
    options.set_env(&env);
    let db = Db::open(&options, Path::new("/guard")).expect("a database");
    let mut wal = WriteOptions::default();
    wal.disable_wal(true);

    let (keys, overwrites) = (ROUNDS * WRITES, WRITES / 5);
    let mut random = Mersenne64::new(42);
    let mut values = ValueGenerator::new(0.5, VALUE_BYTES);
    let mut out = BTreeMap::new();
    let mut write = |n: u64| db.put_opt(format!("{n:016}"), values.next_value(VALUE_BYTES), &wal).expect("a put");
    let store = || {
        db.flush().expect("a flush");
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
        settled(&fs)
    };
    let before = fs.counts();
    (0..keys).for_each(&mut write);
    let filled = store();
    out.insert("tph_fill_bytes_written", (filled - before).write_bytes as f64 / keys as f64);
    for _ in 0..ROUNDS {
        (0..overwrites).for_each(|_| write(random.next_u64() % keys));
        store();
    }
    let of = settled(&fs) - filled;
    out.insert("tph_overwrite_bytes_written", of.write_bytes as f64 / (ROUNDS * overwrites) as f64);
    out.insert("tph_overwrite_bytes_read", of.read_bytes as f64 / (ROUNDS * overwrites) as f64);
    let shared = db.property_int_value("rockmill.piece-files").expect("a property");
    assert!(shared.is_some_and(|files| files > 0), "every compaction wrote everything");

    // Which absent keys pass the check depends on the database's id, so more of them are looked up.
    for (name, there, reads) in [("tph_get_there_reads", true, READS), ("tph_get_absent_reads", false, 20 * READS)] {
        let before = fs.counts();
        for _ in 0..reads {
            // Absent keys are between existing ones.
            let key = format!("{:016}{}", random.next_u64() % keys, if there { "" } else { "x" });
            assert_eq!(db.get(key).expect("a get").is_some(), there);
        }
        out.insert(name, (fs.counts() - before).reads as f64 / reads as f64);
    }
    out
}

/// The same with several threads: writers share calls depending on scheduling, so these are bounds; readers share
/// nothing. Also the number of entries in a memtable.
fn measure_threads() -> BTreeMap<&'static str, f64> {
    const THREADS: u64 = 4;
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let text = "create_if_missing=true;info_log_level=FATAL_LEVEL;disable_auto_compactions=true;\
                compression=kNoCompression;max_background_jobs=1;write_buffer_size=67108864;\
                block_based_table_factory={no_block_cache=true;filter_policy=bloomfilter:10:false}";
    let mut options = Options::from_string(&Options::default(), text).expect("good options");
    options.set_merge_engine(MergeEngine::Pread);
    options.set_env(&env);
    let db = Db::open(&options, Path::new("/guard")).expect("a database");
    let keys = THREADS * WRITES;
    let all = |work: &(dyn Fn(u64) + Sync)| {
        let start = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    work(thread);
                });
            }
        });
    };
    let before = fs.counts();
    all(&|thread| {
        let mut values = ValueGenerator::new(0.5, VALUE_BYTES);
        for n in 0..WRITES {
            // Each thread's keys are spread over the key space.
            db.put(format!("{:016}", n * THREADS + thread), values.next_value(VALUE_BYTES)).expect("a put");
        }
    });
    let of = settled(&fs) - before;
    let mut out = BTreeMap::new();
    out.insert("put_4_threads_wal_bytes", of.write_bytes as f64 / keys as f64);
    out.insert("put_4_threads_calls", of.calls() as f64 / keys as f64);
    db.flush().expect("a flush");
    let before = settled(&fs);
    all(&|thread| {
        let mut random = Mersenne64::new(thread);
        for _ in 0..READS {
            db.get(format!("{:016}", random.next_u64() % keys)).expect("a get");
        }
    });
    let of = fs.counts() - before;
    out.insert("get_4_threads_reads", of.reads as f64 / (THREADS * READS) as f64);
    out.insert("get_4_threads_bytes", of.read_bytes as f64 / (THREADS * READS) as f64);
    let before = fs.counts();
    all(&|thread| seeks(&db, &mut Mersenne64::new(thread), keys));
    let of = fs.counts() - before;
    out.insert("seek_10_next_4_threads_reads", of.reads as f64 / (THREADS * READS) as f64);
    out.insert("seek_10_next_4_threads_bytes", of.read_bytes as f64 / (THREADS * READS) as f64);

    let active = "rocksdb.num-entries-active-mem-table";
    let entries = || db.property_int_value(active).expect("a property").expect("its value");
    let mut wal = WriteOptions::default();
    wal.disable_wal(true);
    let (mut random, mut values, mut n) = (Mersenne64::new(42), ValueGenerator::new(0.5, VALUE_BYTES), 0);
    while entries() == n {
        let key = random.next_u64() % 100_000_000;
        db.put_opt(format!("{key:016}"), values.next_value(VALUE_BYTES), &wal).expect("a put");
        n += 1;
    }
    // The last one is the first of the next memtable.
    out.insert("memtable_64_mib_entries", (n - 1) as f64);
    out
}

/// Seeks among this many keys, each with ten steps.
fn seeks(db: &Db, random: &mut Mersenne64, keys: u64) {
    for _ in 0..READS {
        let mut iter = db.raw_iterator();
        iter.seek(format!("{:016}", random.next_u64() % keys));
        (0..10).for_each(|_| iter.next());
        iter.status().expect("a seek");
    }
}

/// The counts after they have not changed for a while: a flush call returns before the flush thread has removed the
/// WAL, which would otherwise be counted later.
fn settled(fs: &CountingFileSystem) -> IoCounts {
    let mut counts = fs.counts();
    let mut quiet = 0;
    while quiet < 10 {
        std::thread::sleep(Duration::from_millis(5));
        let now = fs.counts();
        quiet = if now == counts { quiet + 1 } else { 0 };
        counts = now;
    }
    counts
}

fn add(a: IoCounts, b: IoCounts) -> IoCounts {
    // There is only subtraction: a + b = a - (0 - b) would saturate, so that fields are added by name.
    IoCounts {
        writes: a.writes + b.writes,
        write_bytes: a.write_bytes + b.write_bytes,
        reads: a.reads + b.reads,
        read_bytes: a.read_bytes + b.read_bytes,
        opens: a.opens + b.opens,
        prefetches: a.prefetches + b.prefetches,
        write_backs: a.write_backs + b.write_backs,
        syncs: a.syncs + b.syncs,
        dir_syncs: a.dir_syncs + b.dir_syncs,
        closes: a.closes + b.closes,
        metadata: a.metadata + b.metadata,
        ring_reads: a.ring_reads + b.ring_reads,
        ring_writes: a.ring_writes + b.ring_writes,
        ring_syncs: a.ring_syncs + b.ring_syncs,
        ring_enters: a.ring_enters + b.ring_enters,
    }
}

/// Name, value and tolerance (a fraction of the value) of each line of `guard.txt` that `scripts/guard` does not
/// measure.
fn known() -> BTreeMap<&'static str, (f64, f64)> {
    let lines = include_str!("../guard.txt").lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty());
    let of = |line: &'static str| {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name");
        let mut number = || words.next().and_then(|w| w.parse().ok()).unwrap_or_else(|| panic!("guard.txt: {line}"));
        (name, (number(), number()))
    };
    let elsewhere = |name: &str| name.ends_with("_instructions") || name.ends_with("_switches");
    lines.map(of).filter(|(name, _)| !elsewhere(name)).collect()
}

#[test]
fn bytes_and_calls_for_each_operation_are_as_stored() {
    let (mut measured, known) = (measure(), known());
    measured.extend(measure_synced());
    measured.extend(measure_tph());
    measured.extend(measure_threads());
    let mut wrong = Vec::new();
    for (name, value) in &measured {
        match known.get(name) {
            None => wrong.push(format!("{name} {value:.4} is not in guard.txt")),
            Some((stored, allowance)) if value > &(stored * (1.0 + allowance)) => wrong.push(format!(
                "{name}: {value:.4}, stored {stored:.4}: worse by more than the allowance of {:.0} %",
                allowance * 100.0
            )),
            Some((stored, allowance)) if value < &(stored * (1.0 - allowance)) => wrong.push(format!(
                "{name}: {value:.4}, stored {stored:.4}: better; store the new value, so that it stays so"
            )),
            Some(_) => {}
        }
    }
    wrong.extend(known.keys().filter(|k| !measured.contains_key(*k)).map(|k| format!("{k} is not measured any more")));
    let now: Vec<String> = measured.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    assert!(wrong.is_empty(), "{}\n\nmeasured now:\n{}", wrong.join("\n"), now.join("\n"));
}
