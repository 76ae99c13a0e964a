//! Many lookups at once give the same as one after another, with every way to read blocks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rockmill::statistics::{Histogram, StatsLevel};
use rockmill::{BlockBasedOptions, Cache, Db, ErrorKind, MergeEngine, Options, ReadOptions};
use rockmill_io::ring::{BatchKind, BatchLimits};
use rockmill_io::{CountingFileSystem, FileSystem, MemFileSystem, PosixFileSystem};
use rockmill_skip::{Needs, skip};

/// Small tables, read past the page cache, that stay where flushes put them, and a merge operator that concatenates.
pub(super) fn reads_past_the_page_cache(fs: Arc<dyn FileSystem>, engine: MergeEngine) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(fs);
    o.set_merge_engine(engine);
    o.set_disable_auto_compactions(true);
    o.set_use_direct_reads(true);
    o.set_target_file_size_base(16 << 10);
    o.enable_statistics();
    o.set_statistics_level(StatsLevel::All);
    o.set_merge_operator_associative("join", |_, old, operands| {
        let mut all = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|o| all.extend_from_slice(o));
        Some(all)
    });
    o
}

fn options(fs: Arc<dyn FileSystem>, engine: MergeEngine, cache: bool) -> Options {
    let mut o = reads_past_the_page_cache(fs, engine);
    let mut t = BlockBasedOptions::default();
    t.set_block_size(512);
    if !cache {
        t.disable_cache();
    }
    o.set_block_based_table_factory(&t);
    o
}

fn key(i: u64) -> String {
    format!("key{i:05}")
}

/// Several levels of tables with everything that a lookup can find, and a memtable.
fn fill(db: &Db) {
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..5u64 {
        for _ in 0..400 {
            let k = key(rng.u64(..1500));
            match rng.u32(..10) {
                0 => db.delete(k).unwrap(),
                1..=3 => db.merge(k, format!("+{round}")).unwrap(),
                _ => db.put(k, format!("{round}:{}", "v".repeat(rng.usize(..200)))).unwrap(),
            }
        }
        let from = rng.u64(..1400);
        db.delete_range_cf(&db.cf_handle("default").unwrap(), key(from), key(from + 30)).unwrap();
        // One key with so many operands that they fill several blocks.
        for _ in 0..30 {
            db.merge("key00700x", "o".repeat(40)).unwrap();
        }
        if round < 4 {
            db.flush().unwrap();
        }
        if round == 1 {
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        }
    }
}

/// Every key, some twice, and some absent ones, in random order.
fn asked() -> Vec<String> {
    let mut keys: Vec<String> = (0..1600).map(key).collect();
    keys.extend((0..1600).step_by(7).map(key));
    keys.extend(["key00700x".to_owned(), String::new(), "z".to_owned(), "key00700x".to_owned()]);
    fastrand::Rng::with_seed(8).shuffle(&mut keys);
    keys
}

fn compare(fs: &Arc<dyn FileSystem>, dir: &Path, what: &str) {
    for (engine, cache) in [(MergeEngine::Auto, true), (MergeEngine::Auto, false), (MergeEngine::Pread, true)] {
        let o = options(Arc::clone(fs), engine, cache);
        let db = Db::open(&o, dir).unwrap();
        let keys = asked();
        let mut dont_fill = ReadOptions::default();
        dont_fill.fill_cache(false);
        // The result of each key alone, without leaving blocks in the cache.
        let alone: BTreeMap<&String, _> = keys.iter().map(|k| (k, db.get_opt(k, &dont_fill).unwrap())).collect();
        assert!(alone.values().flatten().count() > 700, "{what}: too few keys are there");
        drop(db);
        for size in [1, 2, 5, 100, keys.len()] {
            // Opened anew: nothing is in its cache.
            let db = Db::open(&o, dir).unwrap();
            for chunk in keys.chunks(size) {
                let many = db.multi_get(chunk);
                for (k, value) in chunk.iter().zip(many) {
                    assert_eq!(value.unwrap(), alone[k], "{what}, {engine:?}, cache {cache}, {size} at once: {k}");
                }
            }
        }
        let together = o.get_histogram_data(Histogram::FileReadMultigetMicros).count();
        let ring = fs.batch_io(BatchKind::Uring, &BatchLimits::default()).is_ok();
        match engine {
            MergeEngine::Pread => assert_eq!(together, 0, "{what}"),
            _ if ring => assert!(together > 3, "{what}, cache {cache}: {together}"),
            _ => skip("blocks of many lookups read together", &Needs::Uring.because("no ring")),
        }
    }
}

#[test]
fn many_lookups_give_what_each_gives_alone() {
    let dir = tempfile::tempdir().unwrap();
    let posix: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let memory: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    for (fs, dir, what) in [(posix, dir.path(), "on a disk"), (memory, Path::new("/db"), "in memory")] {
        fill(&Db::open(&options(Arc::clone(&fs), MergeEngine::Auto, true), dir).unwrap());
        compare(&fs, dir, what);
    }
}

#[test]
fn a_read_that_fails_fails_the_lookups_that_need_it_and_no_other() {
    let memory = Arc::new(MemFileSystem::new());
    let fs: Arc<dyn FileSystem> = Arc::clone(&memory) as _;
    let dir = Path::new("/db");
    let o = options(Arc::clone(&fs), MergeEngine::Auto, false);
    fill(&Db::open(&o, dir).unwrap());
    let db = Db::open(&o, dir).unwrap();
    let keys = asked();
    let whole: Vec<_> = db.multi_get(&keys).into_iter().map(Result::unwrap).collect();
    let calls = memory.calls();
    db.multi_get(&keys);
    let calls = memory.calls() - calls;
    assert!(calls > 20, "{calls}");
    let mut failed = 0;
    for call in (0..calls).step_by(1 + calls as usize / 40) {
        // A read that fails once is repeated alone; one that keeps failing is reported.
        memory.fail_once_after(call, libc::EIO);
        let once = db.multi_get(&keys);
        memory.clear_fault();
        for ((k, value), whole) in keys.iter().zip(once).zip(&whole) {
            match value {
                Ok(value) => assert_eq!(&value, whole, "call {call}: {k}"),
                Err(e) => {
                    failed += 1;
                    assert_eq!(e.kind(), ErrorKind::IOError, "{e}");
                    assert!(e.message().contains(".sst"), "{e}");
                }
            }
        }
    }
    println!("{failed} lookups failed");
}

#[test]
fn a_damaged_block_fails_its_keys_alone_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
    let o = options(Arc::clone(&fs), MergeEngine::Auto, true);
    {
        let db = Db::open(&o, dir.path()).unwrap();
        (0..2000).for_each(|i| db.put(key(i), "v".repeat(100)).unwrap());
        db.flush().unwrap();
    }
    let table = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let table = table.into_iter().find(|p| p.extension().is_some_and(|e| e == "sst")).unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let db = Db::open(&o, dir.path()).unwrap();
    let values = db.multi_get((0..2000).map(key));
    let errors: Vec<_> = values.iter().filter_map(|v| v.as_ref().err()).collect();
    assert!((1..=6).contains(&errors.len()), "{} keys of one block of 512 bytes", errors.len());
    for e in errors {
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.message().contains(table.file_name().unwrap().to_str().unwrap()), "{e}");
        assert!(e.message().contains("offset"), "{e}");
    }
    assert!(values.iter().filter(|v| matches!(v, Ok(Some(_)))).count() >= 1994);
}

#[test]
fn many_lookups_read_no_more_bytes_than_one_after_another() {
    // On the disk of the build directory: the usual temporary directory may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
    let o = |engine| {
        let mut o = options(Arc::new(fs.clone()), engine, false);
        let mut t = BlockBasedOptions::default();
        t.disable_cache();
        o.set_block_based_table_factory(&t);
        o.set_target_file_size_base(64 << 20);
        o.set_compression_type(rockmill::CompressionType::None);
        o
    };
    {
        let db = Db::open(&o(MergeEngine::Auto), dir.path()).unwrap();
        (0..4000).for_each(|i| db.put(key(i), format!("{i:01000}")).unwrap());
        db.flush().unwrap();
    }
    // Far from each other: no two in the same block or in adjacent blocks.
    let keys: Vec<String> = (0..4000).step_by(40).map(key).collect();
    let bytes = |engine: MergeEngine| {
        let db = Db::open(&o(engine), dir.path()).unwrap();
        let before = fs.counts();
        db.multi_get(&keys).into_iter().for_each(|v| assert!(v.unwrap().is_some()));
        fs.counts() - before
    };
    let (together, alone) = (bytes(MergeEngine::Auto), bytes(MergeEngine::Pread));
    if together.ring_reads == 0 {
        return skip("how many bytes many lookups read", &Needs::Uring.because("nothing went through a ring"));
    }
    let table = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    let table = table.into_iter().find(|p| p.extension().is_some_and(|e| e == "sst")).unwrap();
    let block = fs.open_random(&table, true).unwrap().direct_alignment();
    // A block of the table may begin and end anywhere in two device blocks.
    let most = keys.len() as u64 * (4096 + 1100 + 2 * block);
    assert!(together.read_bytes <= most, "{together:?}, with blocks of {block} bytes");
    assert!(together.reads <= alone.reads, "{together:?} {alone:?}");
}

#[test]
fn a_call_reads_each_block_once_whatever_the_cache_keeps() {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let open = |engine, cache: Option<&Cache>| {
        let mut o = reads_past_the_page_cache(Arc::new(fs.clone()), engine);
        o.set_compression_type(rockmill::CompressionType::None);
        let mut t = BlockBasedOptions::default();
        t.set_block_size(512);
        match cache {
            Some(cache) => t.set_block_cache(cache),
            None => t.disable_cache(),
        }
        o.set_block_based_table_factory(&t);
        (Db::open(&o, "/db").unwrap(), o)
    };
    // Three sorted runs without filters: most lookups continue from one run's block to the next run's.
    let (db, _) = open(MergeEngine::Auto, None);
    for (step, part) in [(1, "old"), (3, "+new"), (7, "+newest")] {
        for i in (0..3_000).step_by(step) {
            let value = format!("{part}{}", "v".repeat(40));
            if step == 1 { db.put(key(i), value).unwrap() } else { db.merge(key(i), value).unwrap() }
        }
        db.flush().unwrap();
        if step == 1 {
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        }
    }
    let keys: Vec<String> = (0..3_000).map(key).collect();
    let expected: Vec<_> = keys.iter().map(|k| db.get(k).unwrap().unwrap()).collect();
    drop(db);
    let mut dont_fill = ReadOptions::default();
    dont_fill.fill_cache(false);
    for engine in [MergeEngine::Auto, MergeEngine::Pread] {
        let read = |cache: Option<&Cache>, options: &ReadOptions| {
            let (db, o) = open(engine, cache);
            // Opens the tables.
            db.multi_get_opt(&keys, &dont_fill).into_iter().for_each(|v| assert!(v.unwrap().is_some()));
            let before = fs.counts();
            let values = db.multi_get_opt(&keys, options);
            let counts = fs.counts() - before;
            for ((key, value), expected) in keys.iter().zip(values).zip(&expected) {
                assert_eq!(value.unwrap().as_ref(), Some(expected), "{key}");
            }
            let together = o.get_histogram_data(Histogram::FileReadMultigetMicros).count();
            assert_eq!(together > 3, engine == MergeEngine::Auto, "{engine:?}, {together}");
            counts.read_bytes
        };
        let cache = || Cache::new_lru_cache(8 << 20);
        let fill = ReadOptions::default();
        let once = read(Some(&cache()), &fill);
        assert!(once > 100_000, "{once} bytes of blocks");
        let rows = cache();
        rockmill::internals::keep_rows(&rows);
        assert_eq!(read(Some(&rows), &fill), once, "{engine:?}, rows");
        assert_eq!(read(Some(&rows), &fill), once, "{engine:?}, rows of another open of the database");
        assert_eq!(read(Some(&cache()), &dont_fill), once, "{engine:?}, the cache is not filled");
        assert_eq!(read(Some(&Cache::new_lru_cache(0)), &fill), once, "{engine:?}, a cache without room");
        assert_eq!(read(None, &fill), once, "{engine:?}, no cache");
    }
}
