//! Column families in the order by search key (`HashRangeComparator`): random histories against a model with both kinds
//! of tables and every way to compact, copies, table boundaries, and refused operations.

mod small_store;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::merge_operator::StringAppendOperator;
use rockmill::{
    Checkpoint, CompactOptions, CompactionStyle, Db, Direction, Env, ErrorKind, HashRangeComparator,
    IngestExternalFileOptions, IteratorMode, MergeEngine, Options, OptionsLoader, ReadOptions, SliceTransform,
    SstFileWriter, TphTableOptions, WriteBatch, properties,
};
use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::{HASH_RANGE_NAME, search_key};
use rockmill_format::edit::FileEntry;
use rockmill_io::{FileSystem, MemFileSystem, SystemClock};
use small_store::{entries, key, path, tables, verify, write_tph};

/// Keys by their place in the order.
type Map = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

const KEYS: u32 = 700;

fn place(key: &[u8]) -> (u32, Vec<u8>) {
    (search_key(key), key.to_vec())
}

fn small() -> Options {
    let mut o = small_store::small();
    o.set_comparator_object(Arc::new(HashRangeComparator));
    o.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
    o
}

fn any(rng: &mut Rng) -> Options {
    let mut o = small();
    if rng.bool() {
        write_tph(&mut o, *rng.choice(&[1, 2, 4, 16]).unwrap(), *rng.choice(&[0, 20, 1000]).unwrap());
    }
    if rng.u8(..3) == 0 {
        o.set_compaction_style(CompactionStyle::Universal);
    }
    match rng.u8(..4) {
        0 => o.set_compaction_downforce(true),
        1 => o.set_compaction_classic(true),
        _ => {}
    }
    o.set_level_compaction_dynamic_level_bytes(rng.bool());
    o.set_max_subcompactions(rng.u32(1..4));
    o.set_merge_engine(*rng.choice(&[MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Kernel]).unwrap());
    o.cf.table.set_bloom_filter(if rng.bool() { 10.0 } else { 0.0 }, false);
    o
}

fn check(db: &Db, want: &Map, rng: &mut Rng, what: &str) {
    let all: Vec<_> = want.iter().map(|((_, k), v)| (k.clone(), v.clone())).collect();
    assert!(entries(db) == all, "{what}: another scan");
    for _ in 0..60 {
        let key = key(rng.u32(..KEYS + 20));
        assert_eq!(db.get(&key).unwrap().as_ref(), want.get(&place(&key)), "{what}");
    }
    // Every key has a place in the order, whether it exists or not.
    for _ in 0..10 {
        let (from, to) = (key(rng.u32(..KEYS + 20)), key(rng.u32(..KEYS + 20)));
        let found = db.iterator(IteratorMode::From(&from, Direction::Forward)).next().map(|e| e.unwrap().0.into_vec());
        assert_eq!(found.as_ref(), want.range(place(&from)..).next().map(|((_, k), _)| k), "{what}");
        let found = db.iterator(IteratorMode::From(&from, Direction::Reverse)).next().map(|e| e.unwrap().0.into_vec());
        assert_eq!(found.as_ref(), want.range(..=place(&from)).next_back().map(|((_, k), _)| k), "{what}");
        let mut bounds = ReadOptions::default();
        bounds.set_iterate_lower_bound(&*from);
        bounds.set_iterate_upper_bound(&*to);
        let found = db.iterator_opt(IteratorMode::Start, bounds).count();
        let between = want.keys().filter(|k| (place(&from)..place(&to)).contains(k)).count();
        assert_eq!(found, between, "{what}");
        let mut prefix = ReadOptions::default();
        prefix.set_iterate_prefix(&from[..from.len().min(8)]);
        let found = db.iterator_opt(IteratorMode::Start, prefix).count();
        assert_eq!(found, want.keys().filter(|(_, k)| k.starts_with(&from[..from.len().min(8)])).count(), "{what}");
    }
}

fn history(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let what = format!("seed {seed}");
    let fs = MemFileSystem::new();
    let open = |rng: &mut Rng, dir: &str| {
        let mut o = any(rng);
        o.set_env(&Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default())));
        Db::open(&o, dir).unwrap()
    };
    let mut state = Map::new();
    for life in 0..3 {
        let db = open(&mut rng, "/db");
        check(&db, &state, &mut rng, &what);
        let mut seen = None;
        for step in 0..rng.u32(100..900) {
            let key = key(rng.u32(..KEYS));
            let value = format!("{life}.{step}{}", "v".repeat(rng.usize(..150))).into_bytes();
            match rng.u32(..100) {
                0..70 => {
                    db.put(&key, &value).unwrap();
                    state.insert(place(&key), value);
                }
                70..85 => {
                    db.delete(&key).unwrap();
                    state.remove(&place(&key));
                }
                85..95 => {
                    let mut batch = WriteBatch::default();
                    batch.merge(&key, &value);
                    db.write(&batch).unwrap();
                    let all = state.entry(place(&key)).or_default();
                    let known = !all.is_empty();
                    all.extend(if known { &b","[..] } else { b"" });
                    all.extend(value);
                }
                95..97 => db.flush().unwrap(),
                97 if rng.bool() => seen = Some((db.snapshot(), state.clone())),
                98 if rng.u8(..4) == 0 => {
                    let mut how = CompactOptions::default();
                    how.set_max_subcompactions(rng.u32(0..4));
                    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how).unwrap();
                }
                99 if rng.u8(..4) == 0 => {
                    let mut o = small();
                    o.set_env(&Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default())));
                    let mut writer = SstFileWriter::create(&o);
                    writer.open("/in.sst").unwrap();
                    let mut some: Vec<_> = (0..50).map(|_| place(&self::key(rng.u32(..KEYS)))).collect();
                    some.sort();
                    some.dedup();
                    for (at, key) in some {
                        writer.put(&key, &value).unwrap();
                        state.insert((at, key), value.clone());
                    }
                    writer.finish().unwrap();
                    db.ingest_external_file_opts(&IngestExternalFileOptions::default(), vec!["/in.sst"]).unwrap();
                    fs.remove(Path::new("/in.sst")).unwrap();
                }
                _ => {}
            }
        }
        if let Some((snapshot, then)) = seen {
            let mut read = ReadOptions::default();
            read.set_snapshot(&snapshot);
            let got =
                db.iterator_opt(IteratorMode::Start, read).map(|e| e.map(|(k, v)| (place(&k), v.into_vec())).unwrap());
            assert!(got.collect::<Map>() == then, "{what}: another snapshot");
        }
        check(&db, &state, &mut rng, &what);
        if life == 1 {
            Checkpoint::new(&db).unwrap().create_checkpoint("/checkpoint").unwrap();
            let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
            let backups = BackupEngine::open(&BackupEngineOptions::new("/backups").unwrap(), &env).unwrap();
            backups.create_new_backup_flush(&db, true).unwrap();
            backups.restore_from_latest_backup("/restored", "/restored", &RestoreOptions::default()).unwrap();
            for dir in ["/checkpoint", "/restored"] {
                check(&open(&mut rng, dir), &state, &mut rng, &what);
            }
        }
        drop(db);
        verify(&fs, path(), &InternalKeyComparator::new(Arc::new(HashRangeComparator)), &what);
    }
}

#[test]
fn histories_agree_with_a_model() {
    let from = std::env::var("HASH_RANGE_SEED").ok().and_then(|s| s.parse().ok());
    match from {
        Some(seed) => history(seed),
        None => (0..40).for_each(history),
    }
}

/// In a leveled tree, no table has keys of two ranges of the search key, and no two neighbours overlap the same table
/// below. The test runs one job at a time, and waits for compactions after each flush. Otherwise a level may be divided
/// more finely than the level below was when it was written, and a table there temporarily overlaps several.
#[test]
fn tables_end_where_subtrees_do() {
    for tph in [false, true] {
        let fs = MemFileSystem::new();
        let mut o = small();
        o.set_env(&Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default())));
        o.set_max_bytes_for_level_base(64 << 10);
        o.set_max_bytes_for_level_multiplier(4.0);
        o.set_level_compaction_dynamic_level_bytes(false);
        o.set_max_background_jobs(1);
        if tph {
            o.set_tph_table_factory(&TphTableOptions::default());
        }
        let db = Db::open(&o, path()).unwrap();
        let mut rng = Rng::with_seed(5);
        let busy = |name: &str| db.property_int_value(name).unwrap().unwrap() > 0;
        for _ in 0..200 {
            for _ in 0..100 {
                db.put(rng.u32(..10_000).to_be_bytes(), [b'v'; 100]).unwrap();
            }
            db.flush().unwrap();
            // There may be a moment between two jobs in which none runs.
            let mut rests = 0;
            while rests < 3 {
                std::thread::sleep(Duration::from_millis(1));
                let works = busy(properties::COMPACTION_PENDING) || busy(properties::NUM_RUNNING_COMPACTIONS);
                rests = if works { 0 } else { rests + 1 };
            }
        }
        drop(db);
        let all = tables(&fs, path());
        let range = |f: &FileEntry| (search_key(f.smallest.user_key()), search_key(f.largest.user_key()));
        let of = |level: u32| all.iter().filter(move |(l, _)| *l == level).map(|(_, f)| range(f));
        let levels: Vec<u32> = (1..7).filter(|&l| of(l).count() > 1).collect();
        assert!(levels.len() > 1, "{} tables", all.len());
        for level in levels {
            let count = of(level).count();
            // Between a quarter and half as many ranges as tables: each table must stay within one of them.
            let bits = (count as f64).log2().floor() as u32 - 1;
            for (low, high) in of(level) {
                // Two or three tables need not be divided: no bits.
                let range_of = |key: u32| key.checked_shr(32 - bits).unwrap_or(0);
                assert_eq!(range_of(low), range_of(high), "level {level}, {count} tables");
            }
            for (low, high) in of(level + 1) {
                let above = of(level).filter(|(l, h)| *l <= high && *h >= low).count();
                assert!(above <= 2, "a table overlaps {above} of level {level}");
            }
        }
    }
}

#[test]
fn the_order_is_stored_and_read_from_options() {
    let dir = tempfile::tempdir().unwrap();
    let o = small();
    let db = Db::open(&o, dir.path()).unwrap();
    db.put("a", "1").unwrap();
    drop(db);
    let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap().options;
    assert_eq!(loaded.cf.comparator.name(), HASH_RANGE_NAME);
    assert!(InternalKeyComparator::new(Arc::clone(&loaded.cf.comparator)).is_hash_range());
    assert_eq!(Db::open(&loaded, dir.path()).unwrap().get("a").unwrap().as_deref(), Some(&b"1"[..]));
    let mut bytewise = small();
    bytewise.cf.comparator = Options::default().cf.comparator;
    let e = Db::open(&bytewise, dir.path()).unwrap_err();
    assert!(e.message().contains("was written with comparator rockmill.HashRangeComparator"), "{e}");
    let text = Options::from_string(&Options::default(), "comparator=rockmill.HashRangeComparator").unwrap();
    assert_eq!(text.cf.comparator.name(), HASH_RANGE_NAME);
    // Repair gets the order from the MANIFEST or the tables.
    Db::repair(&Options::default(), dir.path()).unwrap();
    assert_eq!(Db::open(&o, dir.path()).unwrap().get("a").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn what_needs_the_order_of_bytes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut o = small();
    o.set_prefix_extractor(SliceTransform::create_fixed_prefix(4));
    let e = Db::open(&o, dir.path()).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains("the order of their hashes"), "{e}");
    let db = Db::open(&small(), dir.path()).unwrap();
    let e = db.set_options(&[("prefix_extractor", "fixed:4")]).unwrap_err();
    assert!(e.message().contains("the order of their hashes"), "{e}");
    let refused = |e: rockmill::Error| {
        assert!(e.kind() == ErrorKind::NotSupported && e.message().contains("one by one"), "{e}");
    };
    refused(db.delete_range_cf(&db.default_cf(), "a", "b").unwrap_err());
    refused(db.delete_file_in_range("a", "b").unwrap_err());
    db.delete_files_in_ranges_cf(&db.default_cf(), &[(None, None)], true).unwrap();
    let mut batch = WriteBatch::default();
    batch.put("k", "v");
    batch.delete_range("a", "b");
    refused(db.write(&batch).unwrap_err());
    assert_eq!(db.get("k").unwrap(), None);
    let o = small();
    let mut writer = SstFileWriter::create(&o);
    writer.open(dir.path().join("new.sst")).unwrap();
    refused(writer.delete_range("a", "b").unwrap_err());
}
