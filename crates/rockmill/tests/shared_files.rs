//! TPH tables of several files with all kinds of compaction, with a time to live, with prefixes and bounds; the number
//! of reads per lookup, and their memory. Each test checks that tables of several files existed: without them, it would
//! test nothing.

mod small_store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rockmill::properties::{TPH_INDEX_MEMORY, TPH_KEYS};
use rockmill::{
    BlockBasedOptions, BottommostLevelCompaction, CompactOptions, CompactionStyle, CompressionType, Db,
    HashRangeComparator, IteratorMode, Options, ReadOptions, SliceTransform, TphTableOptions,
};
use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::{BytewiseComparator, Comparator, search_key};
use rockmill_io::{CountingFileSystem, CrashMode, ManualClock, MemFileSystem};
use small_store::{entries, key, path, tables, verify, write_tph};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u32 = 600;

/// Rounds of overwrites and deletions of neighbours, each compacted, with a death in the middle; returns the number of
/// tables with several files, summed over all rounds.
fn rounds(seed: u64, comparator: Arc<dyn Comparator>, change: &dyn Fn(&mut Options)) -> usize {
    let (mut rng, mut fs) = (Rng::with_seed(seed), MemFileSystem::new());
    let hashed = comparator.name() != BytewiseComparator.name();
    let cmp = InternalKeyComparator::new(Arc::clone(&comparator));
    let open = |fs: &MemFileSystem| {
        let mut o = small_store::small();
        write_tph(&mut o, 16, 100);
        o.set_comparator_object(Arc::clone(&comparator));
        change(&mut o);
        o.set_file_system(Arc::new(fs.clone()));
        Db::open(&o, path()).unwrap()
    };
    let mut db = open(&fs);
    let mut want = BTreeMap::new();
    let mut shared = 0;
    for round in 0..24u32 {
        let what = format!("seed {seed}, round {round}");
        let all = round == 0;
        let from = if all { 0 } else { rng.u32(..KEYS - 40) };
        let held = (rng.u8(..4) == 0).then(|| (db.snapshot(), want.clone()));
        for n in from..if all { KEYS } else { from + 40 } {
            let (key, value) = (key(n), format!("{round}.{n}{}", "v".repeat(rng.usize(..120))).into_bytes());
            if !all && rng.u8(..4) == 0 {
                db.delete(&key).unwrap();
                want.remove(&key);
            } else {
                db.put(&key, &value).unwrap();
                want.insert(key, value);
            }
        }
        db.flush().unwrap();
        db.wait_for_background_work().unwrap();
        shared += db.live_files().unwrap().iter().filter(|f| !f.pieces.is_empty()).count();
        if let Some((snapshot, then)) = held {
            for n in (0..KEYS).step_by(7) {
                assert_eq!(snapshot.get(key(n)).unwrap().as_ref(), then.get(&key(n)), "{what}: by the snapshot");
            }
        }
        if round % 8 == 5 {
            // Killed: data that had reached the kernel exists.
            fs = fs.crash_image(CrashMode::KeepAll);
            drop(db);
            db = open(&fs);
        }
        let mut sorted: Vec<_> = want.clone().into_iter().collect();
        if hashed {
            sorted.sort_by_key(|(k, _)| (search_key(k), k.clone()));
        }
        assert!(entries(&db) == sorted, "{what}: another scan");
        for n in 0..KEYS + 20 {
            assert_eq!(db.get(key(n)).unwrap().as_ref(), want.get(&key(n)), "{what}: key {n}");
        }
    }
    drop(db);
    verify(&fs, path(), &cmp, &format!("seed {seed}"));
    assert!(!tables(&fs, path()).is_empty());
    shared
}

/// All seeds together.
fn seen(what: &str, comparator: Arc<dyn Comparator>, change: &dyn Fn(&mut Options)) {
    let shared: usize = (0..3).map(|seed| rounds(seed, Arc::clone(&comparator), change)).sum();
    println!("{what}: {shared} tables of several files were seen");
    assert!(shared > 20, "{what}: {shared} tables of several files were seen");
}

#[test]
fn tiered() {
    seen("tiered", Arc::new(BytewiseComparator), &|o| o.set_compaction_style(CompactionStyle::Universal));
}

#[test]
fn df_leveled() {
    seen("df-leveled", Arc::new(BytewiseComparator), &|o| o.set_compaction_downforce(true));
}

#[test]
fn hash_range() {
    seen("hash range", Arc::new(HashRangeComparator), &|_| {});
}

#[test]
fn one_level() {
    seen("one level", Arc::new(BytewiseComparator), &|o| {
        o.set_num_levels(2);
        o.set_level_zero_file_num_compaction_trigger(1);
    });
}

/// Options of a database that compacts only on request and into one table, and its location.
fn one_table(change: impl FnOnce(&mut Options)) -> (Options, MemFileSystem) {
    let fs = MemFileSystem::new();
    let mut o = small_store::small();
    write_tph(&mut o, 16, 1000);
    o.set_disable_auto_compactions(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_target_file_size_base(1 << 20);
    change(&mut o);
    (o, fs)
}

/// Moves flushed data into the last level; returns the number of additional files of tables.
fn take_down(db: &Db) -> usize {
    db.flush().unwrap();
    // Existing tables are not rewritten just because of a compaction filter.
    let mut how = CompactOptions::default();
    how.set_bottommost_level_compaction(BottommostLevelCompaction::Skip);
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how).unwrap();
    db.live_files().unwrap().iter().map(|f| f.pieces.len()).sum()
}

/// Expired values are removed from files that stay: placeholders replace them, and live values stay where they were.
#[test]
fn values_expire_in_files_that_stay() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let (mut o, fs) = one_table(|_| {});
    o.set_clock(Arc::clone(&clock) as _);
    let ttl = Duration::from_secs(100);
    let db = Db::open_with_ttl(&o, path(), ttl).unwrap();
    let mut want = BTreeMap::new();
    let put = |want: &mut Map, keys: std::ops::Range<u32>, value: &str| {
        for n in keys {
            db.put(key(n), value).unwrap();
            want.insert(key(n), value.into());
        }
    };
    let compare = |db: &Db, want: &Map, when: &str| {
        let wanted: Vec<_> = want.clone().into_iter().collect();
        assert!(entries(db) == wanted, "{when}");
        for n in 0..310 {
            assert_eq!(db.get(key(n)).unwrap().as_ref(), want.get(&key(n)), "{when}: {n}");
        }
    };
    put(&mut want, 0..150, "old");
    clock.advance(Duration::from_secs(60));
    put(&mut want, 150..300, "young");
    assert_eq!(take_down(&db), 0);
    put(&mut want, 100..130, "younger");
    assert_eq!(take_down(&db), 1, "what has not changed stays");
    compare(&db, &want, "before the time is over");
    clock.advance(Duration::from_secs(50));
    compare(&db, &want, "until a compaction meets them");
    put(&mut want, 200..203, "newest");
    assert!(take_down(&db) >= 1, "what lives on stays");
    (0..100).chain(130..150).for_each(|n| drop(want.remove(&key(n))));
    compare(&db, &want, "after the time of the first ones");
    drop(db);
    let db = Db::open_with_ttl(&o, path(), ttl).unwrap();
    compare(&db, &want, "opened again");
    clock.advance(Duration::from_secs(60));
    db.put(key(250), "last").unwrap();
    take_down(&db);
    want.retain(|_, value| value == b"newest");
    want.insert(key(250), b"last".to_vec());
    compare(&db, &want, "after the time of the second ones");
    drop(db);
    small_store::verify(&fs, path(), &InternalKeyComparator::default(), "a time to live");
}

/// Scans of one prefix, by the extractor, by an explicit prefix, and by bounds, forwards and backwards, in a table of
/// several files where whole prefixes are deleted, new, or in a single file.
#[test]
fn prefixes_and_bounds_cut_tables_of_several_files() {
    let (o, _) = one_table(|o| o.set_prefix_extractor(SliceTransform::create_fixed_prefix(8)));
    let db = Db::open(&o, path()).unwrap();
    let mut want = BTreeMap::new();
    for n in (1..400).filter(|n| n / 10 != 7) {
        db.put(key(n), format!("first {n}")).unwrap();
        want.insert(key(n), format!("first {n}").into_bytes());
    }
    take_down(&db);
    for n in (70..80).chain((100..140).step_by(3)) {
        db.put(key(n), format!("second {n}")).unwrap();
        want.insert(key(n), format!("second {n}").into_bytes());
    }
    for n in (200..210).chain([305, 309, 310, 399]) {
        db.delete(key(n)).unwrap();
        want.remove(&key(n));
    }
    assert!(take_down(&db) >= 1, "what has not changed stays");
    for tens in 0..41u32 {
        let prefix = format!("key{tens:05}").into_bytes();
        let next = format!("key{:05}", tens + 1).into_bytes();
        let wanted: Vec<_> = want.range(prefix.clone()..next.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut by_extractor = ReadOptions::default();
        by_extractor.set_prefix_same_as_start(true);
        let mut by_prefix = ReadOptions::default();
        by_prefix.set_iterate_prefix(&prefix[..]);
        let mut by_bounds = ReadOptions::default();
        by_bounds.set_iterate_lower_bound(prefix.clone());
        by_bounds.set_iterate_upper_bound(next.clone());
        for (name, how) in [("extractor", by_extractor), ("prefix", by_prefix), ("bounds", by_bounds)] {
            let what = format!("{}, by {name}", String::from_utf8_lossy(&prefix));
            let mut iter = db.raw_iterator_opt(how);
            let mut found = Vec::new();
            iter.seek(&prefix);
            while let Some((k, v)) = iter.item() {
                found.push((k.to_vec(), v.to_vec()));
                iter.next();
            }
            iter.status().unwrap();
            assert!(found == wanted, "{what}");
            // With the extractor, a backwards seek begins at a key with the prefix.
            found.clear();
            iter.seek_for_prev([&prefix[..], b"9", "~".repeat(301).as_bytes()].concat());
            while let Some((k, v)) = iter.item() {
                found.push((k.to_vec(), v.to_vec()));
                iter.prev();
            }
            iter.status().unwrap();
            found.reverse();
            assert!(found == wanted, "{what}, backwards");
        }
        // Bounds within the prefix.
        let (from, to) = (key(tens * 10 + 3), key(tens * 10 + 7));
        let mut within = ReadOptions::default();
        within.set_iterate_lower_bound(from.clone());
        within.set_iterate_upper_bound(to.clone());
        let found = db.iterator_opt(IteratorMode::Start, within).map(|e| e.unwrap().0.into_vec());
        assert!(found.eq(want.range(from..to).map(|(k, _)| k.clone())), "within {tens}");
    }
}

/// Keys of 20 bytes. The store's keys are even.
fn even(n: u32) -> String {
    format!("user{:016}", n * 2)
}

fn absent(n: u32) -> String {
    format!("user{:016}", n * 2 + 1)
}

const READ_KEYS: u32 = 30_000;

/// Makes a tree of this many sorted runs: the last level, where TPH tables have several files, and tables of L0, each
/// with keys from the whole range. Returns the reads per existing key and per absent key.
fn reads_per_key(runs: u32, tph: bool) -> (f64, f64) {
    let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_compression_type(CompressionType::None);
    o.set_disable_auto_compactions(true);
    let mut blocks = BlockBasedOptions::default();
    blocks.disable_cache();
    if tph {
        let mut table = TphTableOptions::default();
        table.set_block_based_options(&blocks);
        o.set_tph_table_factory(&table);
    } else {
        blocks.set_bloom_filter(10.0, false);
        o.set_block_based_table_factory(&blocks);
    }
    let db = Db::open(&o, path()).unwrap();
    let put = |keys: &mut dyn Iterator<Item = u32>| {
        keys.for_each(|n| db.put(even(n), format!("{n:0100}")).unwrap());
        db.flush().unwrap();
    };
    let run_of = |n: u32| n % runs;
    // Twice, so that the second compaction finds files to keep.
    for step in [1, 12] {
        put(&mut (0..READ_KEYS).filter(|n| run_of(*n) == 0).step_by(step));
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    }
    let pieces: usize = db.live_files().unwrap().iter().map(|f| f.pieces.len()).sum();
    assert_eq!(pieces > 0, tph, "{pieces} further files");
    (1..runs).for_each(|run| put(&mut (0..READ_KEYS).filter(|n| run_of(*n) == run)));
    assert_eq!(db.live_files().unwrap().len(), runs as usize);
    let count = |key: &dyn Fn(u32) -> String, there: bool| {
        let before = fs.counts().reads;
        (0..READ_KEYS).for_each(|n| assert_eq!(db.get(key(n)).unwrap().is_some(), there));
        (fs.counts().reads - before) as f64 / f64::from(READ_KEYS)
    };
    // Tables are open from here on.
    count(&even, true);
    (count(&even, true), count(&absent, false))
}

#[test]
fn lookups_read_as_often_as_signatures_let_them() {
    println!("| runs | TPH: found | absent | r / 255 | Bloom filter: found | absent |");
    for runs in [1, 3, 6] {
        let (found, absent) = reads_per_key(runs, true);
        let (bloom_found, bloom_absent) = reads_per_key(runs, false);
        let r = f64::from(runs);
        let by_chance = r / 255.0;
        println!("| {runs} | {found:.4} | {absent:.4} | {by_chance:.4} | {bloom_found:.4} | {bloom_absent:.4} |");
        // A lookup of a key in the oldest run searches all newer runs first; on average, half of them.
        let newer = (r - 1.0) / 2.0 / 255.0;
        if runs == 1 {
            assert_eq!(found, 1.0, "a key that is there is read once");
        }
        // Six standard deviations of the random variation.
        let room = |p: f64| 6.0 * (p / f64::from(READ_KEYS)).sqrt();
        assert!(found >= 1.0 && (found - 1.0 - newer).abs() <= room(newer), "{runs} runs: {found}");
        assert!((absent - by_chance).abs() <= room(by_chance), "{runs} runs: {absent} reads of absent keys");
        assert!(absent < bloom_absent && found <= bloom_found, "{runs} runs: Bloom {bloom_found} {bloom_absent}");
    }
}

/// Index memory of tables per key, after overwrites with the default limits, so that tables have several files whose
/// stale entries also count.
#[test]
fn memory_of_a_key_after_overwrites() {
    for (value_len, most) in [(128, 3.6), (1000, 4.0), (2000, 4.6), (4000, 5.6)] {
        let keys = (60 << 20) / (value_len + 20) as u32;
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(MemFileSystem::new()));
        o.set_compression_type(CompressionType::None);
        o.set_disable_auto_compactions(true);
        o.set_write_buffer_size(128 << 20);
        o.set_tph_table_factory(&TphTableOptions::default());
        let db = Db::open(&o, path()).unwrap();
        let mut rng = Rng::with_seed(1);
        let value = vec![b'v'; value_len];
        let measure = || {
            let number = |name: &str| db.property_int_value(name).unwrap().unwrap() as f64;
            number(TPH_INDEX_MEMORY) / number(TPH_KEYS)
        };
        let compact = || {
            db.flush().unwrap();
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            (0..keys).step_by(1000).for_each(|n| assert!(db.get(even(n)).unwrap().is_some()));
        };
        (0..keys).for_each(|n| db.put(even(n), &value).unwrap());
        compact();
        let fresh = measure();
        let (mut worst, mut pieces) = (fresh, 0);
        for _ in 0..6 {
            (0..keys / 25).for_each(|_| db.put(even(rng.u32(..keys)), &value).unwrap());
            compact();
            worst = worst.max(measure());
            pieces = pieces.max(db.live_files().unwrap().iter().map(|f| f.pieces.len()).max().unwrap_or(0));
        }
        println!("{keys} keys, values of {value_len}: {fresh:.2} bytes a key, {worst:.2} with {pieces} pieces at most");
        assert!(pieces > 1, "no table had several files");
        assert!(worst < most, "values of {value_len} bytes: {worst}");
    }
}

/// Whatever the limit of files: with 1 every compaction writes whole tables (the paper's single-tier mode), with 2 a
/// table and its changes, and with 1,024 tables get far more files than by default. The contents are the same, each key
/// takes one read, and scans in both directions go through all files.
#[test]
fn tables_have_as_many_files_as_the_limit_lets_them() {
    const ROUNDS: u32 = 60;
    const OF_A_ROUND: u32 = 84;
    for (piece_limit, rounds, least, most) in [(1, 12, 1, 1), (2, 12, 2, 2), (16, 24, 13, 16), (1024, 55, 45, 100)] {
        let fs = CountingFileSystem::new(Arc::new(MemFileSystem::new()));
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(fs.clone()));
        o.set_compression_type(CompressionType::None);
        o.set_disable_auto_compactions(true);
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_size(512);
        blocks.disable_cache();
        let mut table = TphTableOptions::default();
        table.set_block_based_options(&blocks);
        table.set_piece_limit(piece_limit);
        table.set_garbage_percent(1000);
        o.set_tph_table_factory(&table);
        let db = Db::open(&o, path()).unwrap();
        let mut want = Map::new();
        let mut files = 0;
        for round in 0..=rounds {
            // First all keys, then each time different ones from the whole range.
            let of_round = |n: &u32| round == 0 || n % ROUNDS == round - 1;
            for n in (0..ROUNDS * OF_A_ROUND).filter(of_round) {
                let value = format!("{round}.{n:0100}").into_bytes();
                db.put(even(n), &value).unwrap();
                want.insert(even(n).into_bytes(), value);
            }
            db.flush().unwrap();
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            let tables = db.live_files().unwrap();
            assert_eq!(tables.len(), 1, "limit {piece_limit}, round {round}");
            files = files.max(1 + tables[0].pieces.len());
        }
        assert!((least..=most).contains(&files), "{files} files with a limit of {piece_limit}");
        assert!(entries(&db).into_iter().eq(want.clone()), "limit {piece_limit}");
        let get = || want.iter().for_each(|(k, v)| assert_eq!(db.get(k).unwrap().as_ref(), Some(v)));
        get();
        let before = fs.counts().reads;
        get();
        assert_eq!(fs.counts().reads - before, want.len() as u64, "limit {piece_limit}");
        drop(db);
        verify(&fs, path(), &InternalKeyComparator::default(), &format!("limit {piece_limit}"));
    }
}
