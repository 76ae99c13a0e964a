//! Prefix extractors and prefix filters: random databases compared with an ordered map, compatibility with RocksDB in
//! both directions, and checks that the filters are used. Custom comparators, and RocksDB with the same ones.

mod oracle;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oracle::content::{Entries, same};
use oracle::{Peer, Script};
use rockmill::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rockmill::statistics::Ticker;
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, BytewiseComparator, CompactOptions, Comparator,
    DataBlockIndexType, Db, DbRawIterator, Direction, ErrorKind, IteratorMode, Options, ReadOptions,
    ReverseBytewiseComparator, SliceTransform,
};
use rockmill_io::MemFileSystem;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Up to the first colon; keys without one have no prefix.
fn up_to_colon() -> SliceTransform {
    SliceTransform::create(
        "test.UpToColon",
        |key| key.iter().position(|&b| b == b':').map_or(key, |at| &key[..=at]),
        Some(|key| key.contains(&b':')),
    )
}

fn random_extractor(rng: &mut fastrand::Rng) -> Option<SliceTransform> {
    match rng.u8(0..6) {
        0 => None,
        1 => Some(SliceTransform::create_capped_prefix(rng.usize(1..6))),
        2 => Some(SliceTransform::create_noop()),
        3 => Some(up_to_colon()),
        _ => Some(SliceTransform::create_fixed_prefix(rng.usize(0..6))),
    }
}

fn random_options(rng: &mut fastrand::Rng, reverse: bool) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.enable_statistics();
    o.cf.prefix_extractor = random_extractor(rng);
    o.set_memtable_prefix_bloom_ratio(*rng.choice(&[0.0, 0.1, 0.9]).unwrap());
    o.set_memtable_whole_key_filtering(rng.bool());
    o.set_optimize_filters_for_hits(rng.u8(0..4) == 0);
    o.set_target_file_size_base(8 << 10);
    o.set_max_bytes_for_level_base(32 << 10);
    if reverse {
        o.set_comparator_object(Arc::new(ReverseBytewiseComparator));
    }
    let mut t = BlockBasedOptions::default();
    t.set_block_size(*rng.choice(&[100, 1000]).unwrap());
    t.set_bloom_filter(*rng.choice(&[0.0, 10.0, 10.0]).unwrap(), false);
    t.set_whole_key_filtering(rng.bool());
    if rng.bool() {
        t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        t.set_metadata_block_size(*rng.choice(&[1, 100, 300]).unwrap());
        t.set_partition_filters(rng.bool());
    }
    o.set_block_based_table_factory(&t);
    o
}

/// Few letters, so that shared prefixes and neighbours are common; also short keys.
fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut key: Vec<u8> = (0..rng.usize(0..5)).map(|_| *rng.choice(b"\x00ab\xff").unwrap()).collect();
    if rng.bool() {
        key.push(b':');
    }
    key.extend((0..rng.usize(0..4)).map(|_| rng.u8(b'0'..b'4')));
    key
}

/// A database, its expected contents, and its order.
struct World<'a> {
    db: &'a Db,
    /// In the order of the database.
    want: Vec<(Vec<u8>, Vec<u8>)>,
    reverse: bool,
    extractor: Option<SliceTransform>,
    what: String,
}

impl World<'_> {
    fn cmp(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.reverse { b.cmp(a) } else { a.cmp(b) }
    }

    fn prefix<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        self.extractor.as_ref().and_then(|e| e.prefix(key))
    }

    fn at_or_after(&self, key: &[u8]) -> Option<usize> {
        self.want.iter().position(|(k, _)| self.cmp(k, key).is_ge())
    }

    fn at_or_before(&self, key: &[u8]) -> Option<usize> {
        self.want.iter().rposition(|(k, _)| self.cmp(k, key).is_le())
    }

    /// Every way of iterating, from random keys and over random steps.
    fn check(&self, rng: &mut fastrand::Rng) {
        for (key, value) in &self.want {
            assert_eq!(self.db.get(key).unwrap().as_ref(), Some(value), "{}: get {}", self.what, key.escape_ascii());
        }
        for _ in 0..30 {
            let key = random_key(rng);
            let want = self.want.iter().find(|(k, _)| *k == key).map(|(_, v)| v.clone());
            assert_eq!(self.db.get(&key).unwrap(), want, "{}: get {}", self.what, key.escape_ascii());
        }
        let all: Vec<_> = self.db.iterator(IteratorMode::Start).map(|e| e.unwrap()).collect();
        assert_eq!(all.len(), self.want.len(), "{}: a scan from the first key is complete", self.what);
        for _ in 0..40 {
            self.walk(rng);
        }
        for _ in 0..10 {
            self.prefix_iterator(&random_key(rng));
        }
    }

    fn walk(&self, rng: &mut fastrand::Rng) {
        let (total, same, auto) = (rng.u8(0..4) == 0, rng.u8(0..3) == 0, rng.u8(0..4) == 0);
        let mut options = ReadOptions::default();
        options.set_total_order_seek(total);
        options.set_prefix_same_as_start(same);
        options.set_auto_prefix_mode(auto);
        let mut bounded =
            World { what: String::new(), want: self.want.clone(), extractor: self.extractor.clone(), ..*self };
        let (mut lower, mut upper) = (None, None);
        if rng.u8(0..3) == 0 {
            let key = random_key(rng);
            bounded.want.retain(|(k, _)| self.cmp(k, &key).is_ge());
            options.set_iterate_lower_bound(key.clone());
            lower = Some(key);
        }
        if rng.bool() {
            let key = random_key(rng);
            bounded.want.retain(|(k, _)| self.cmp(k, &key).is_lt());
            options.set_iterate_upper_bound(key.clone());
            upper = Some(key);
        }
        let same = same && self.extractor.is_some();
        let everywhere = !same && (total || auto || self.extractor.is_none());
        let what = format!(
            "{}: total {total}, same {same}, auto {auto}, from {:?} to {:?}",
            self.what,
            lower.as_ref().map(|k| k.escape_ascii().to_string()),
            upper.as_ref().map(|k| k.escape_ascii().to_string())
        );
        let mut iter = self.db.raw_iterator_opt(options);
        for _ in 0..4 {
            let key = random_key(rng);
            // Below the lower bound, the seek goes to the bound, but the prefix of the key is the limit.
            let clamped = match &lower {
                Some(l) if self.cmp(&key, l).is_lt() => l,
                _ => &key,
            };
            let of = |at: Option<usize>| at.and_then(|i| self.prefix(&bounded.want[i].0));
            let (mut at, prefix) = match rng.u8(0..8) {
                0 => {
                    iter.seek_to_first();
                    let at = bounded.want.first().map(|_| 0);
                    // All from the lower bound on; or only the prefix of the bound (without one, of the found key).
                    let prefix = lower.as_ref().map_or_else(|| of(at), |l| self.prefix(l));
                    (at, prefix.filter(|_| same))
                }
                1 => {
                    iter.seek_to_last();
                    let at = bounded.want.len().checked_sub(1);
                    // The upper bound counts, although no key equals it.
                    let prefix = upper.as_ref().map_or_else(|| of(at), |u| self.prefix(u));
                    (at, prefix.filter(|_| same))
                }
                2..=4 => {
                    iter.seek(&key);
                    (bounded.at_or_after(&key), self.prefix(if same { &key } else { clamped }))
                }
                _ => {
                    iter.seek_for_prev(&key);
                    (bounded.at_or_before(&key), self.prefix(&key))
                }
            };
            let what = format!("{what}, key {}", key.escape_ascii());
            self.steps(rng, &mut iter, &bounded.want, &mut at, prefix, same, everywhere, &what);
        }
    }

    /// Some steps in either direction from the result of a seek.
    #[allow(clippy::too_many_arguments)]
    fn steps(
        &self,
        rng: &mut fastrand::Rng,
        iter: &mut DbRawIterator<'_>,
        want: &[(Vec<u8>, Vec<u8>)],
        at: &mut Option<usize>,
        prefix: Option<&[u8]>,
        same: bool,
        everywhere: bool,
        what: &str,
    ) {
        for step in 0..rng.usize(1..12) {
            iter.status().unwrap();
            let expected = at.map(|i| (want[i].0.as_slice(), want[i].1.as_slice()));
            match (iter.item(), expected) {
                (None, None) => return,
                (None, Some((key, _))) => {
                    // It may end before an entry only if that has another prefix than the target.
                    let left = !everywhere && prefix.is_some() && self.prefix(key) != prefix;
                    assert!(left, "{what}: step {step}: ended before {}", key.escape_ascii());
                    return;
                }
                (Some(found), expected) => {
                    assert_eq!(Some(found), expected, "{what}: step {step}");
                    let inside = prefix.is_none() || self.prefix(found.0) == prefix;
                    assert!(!same || inside, "{what}: step {step}: past the prefix, at {}", found.0.escape_ascii());
                }
            }
            if rng.u8(0..3) > 0 {
                iter.next();
                *at = at.map(|i| i + 1).filter(|&i| i < want.len());
            } else {
                iter.prev();
                *at = at.and_then(|i| i.checked_sub(1));
            }
        }
    }

    fn prefix_iterator(&self, key: &[u8]) {
        let found: Vec<_> =
            self.db.prefix_iterator(key).map(|e| e.unwrap()).map(|(k, v)| (k.into(), v.into())).collect();
        let by_extractor = if self.reverse { None } else { self.prefix(key) };
        let mut want = self.want.clone();
        match by_extractor {
            Some(prefix) => want.retain(|(k, _)| k.as_slice() >= key && self.prefix(k) == Some(prefix)),
            None => want.retain(|(k, _)| k.starts_with(key)),
        }
        same(&format!("{}: prefix iterator of {}", self.what, key.escape_ascii()), &want, &found);
    }
}

/// The extractor changes between opens, and the tables of each stay.
#[test]
fn iterators_agree_with_a_map_whatever_the_filters_hold() {
    let given = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = given.map_or_else(|| (0..12).map(|_| fastrand::u64(..1 << 32)).collect(), |s| vec![s]);
    for seed in seeds {
        println!("ROCKMILL_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = Arc::new(MemFileSystem::new());
        let reverse = rng.u8(0..4) == 0;
        let mut model = Map::new();
        for session in 0..4 {
            let mut options = random_options(&mut rng, reverse);
            options.set_file_system(Arc::clone(&fs) as _);
            let db = Db::open(&options, "/db").unwrap();
            for _ in 0..rng.usize(1..4) {
                for _ in 0..rng.usize(1..400) {
                    let key = random_key(&mut rng);
                    match rng.u8(0..20) {
                        0..=3 => {
                            db.delete(&key).unwrap();
                            model.remove(&key);
                        }
                        4 => {
                            let mut ends = [key, random_key(&mut rng)];
                            ends.sort_by(|a, b| if reverse { b.cmp(a) } else { a.cmp(b) });
                            let [from, to] = &ends;
                            if rng.u8(0..8) == 0 && from != to {
                                db.delete_range_cf(&db.default_cf(), from, to).unwrap();
                                model.retain(|k, _| if reverse { k > from || k <= to } else { k < from || k >= to });
                            }
                        }
                        _ => {
                            let value = vec![rng.u8(b'a'..=b'z'); rng.usize(0..60)];
                            db.put(&key, &value).unwrap();
                            model.insert(key, value);
                        }
                    }
                }
                match rng.u8(0..4) {
                    0 => {}
                    1 => {
                        let mut how = CompactOptions::default();
                        how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how).unwrap();
                    }
                    _ => db.flush().unwrap(),
                }
                let mut want: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                if reverse {
                    want.reverse();
                }
                let extractor = options.cf.prefix_extractor.clone();
                let what = format!("seed {seed}, session {session}, {extractor:?}");
                World { db: &db, want, reverse, extractor, what }.check(&mut rng);
            }
        }
    }
}

/// Keys with some of the prefixes `p000/` to `p119/`, many or few of each, and some keys too short for a prefix.
fn grouped_keys(rng: &mut fastrand::Rng) -> Map {
    let mut map = Map::new();
    for group in 0..120 {
        let count = *rng.choice(&[0, 0, 1, 2, 40]).unwrap();
        for _ in 0..count {
            let key = format!("p{group:03}/{:04}", rng.u32(0..10_000));
            map.insert(key.into_bytes(), format!("value {group} {}", rng.u64(..)).into_bytes());
        }
    }
    for short in ["", "p", "p0", "p05", "p119", "z"] {
        map.insert(short.into(), short.into());
    }
    map
}

/// Ways to store prefixes in filters: RocksDB's options, ours, and whether the wheel supports them, too.
type Way = (&'static str, fn(&mut BlockBasedOptions), bool);

const WAYS: [Way; 4] = [
    ("block_size=300;filter_policy=bloomfilter:10", |_| {}, true),
    (
        "block_size=300;filter_policy=bloomfilter:10;whole_key_filtering=false",
        |t| t.set_whole_key_filtering(false),
        false,
    ),
    (
        "block_size=300;filter_policy=bloomfilter:10;index_type=kTwoLevelIndexSearch;partition_filters=true;\
         metadata_block_size=128",
        |t| partition(t),
        true,
    ),
    (
        "block_size=300;filter_policy=bloomfilter:10;index_type=kTwoLevelIndexSearch;partition_filters=true;\
         metadata_block_size=128;whole_key_filtering=false",
        |t| {
            partition(t);
            t.set_whole_key_filtering(false);
        },
        false,
    ),
];

fn partition(t: &mut BlockBasedOptions) {
    t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    t.set_partition_filters(true);
    t.set_metadata_block_size(128);
}

fn options_of(way: &Way, extractor: Option<SliceTransform>) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.enable_statistics();
    options.cf.prefix_extractor = extractor;
    options.set_memtable_prefix_bloom_ratio(0.1);
    let mut table = BlockBasedOptions::default();
    table.set_block_size(300);
    table.set_bloom_filter(10.0, false);
    (way.1)(&mut table);
    options.set_block_based_table_factory(&table);
    options
}

fn of_prefix(map: &Map, prefix: &str) -> Entries {
    map.iter().filter(|(k, _)| k.starts_with(prefix.as_bytes())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn collect<'a>(entries: impl Iterator<Item = rockmill::Result<(Box<[u8]>, Box<[u8]>)>> + 'a) -> Entries {
    entries.map(|e| e.expect("an entry")).map(|(k, v)| (k.into(), v.into())).collect()
}

/// Every prefix, forwards and backwards, and all in order.
fn check_groups(db: &Db, map: &Map, what: &str) {
    let all: Entries = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut total = ReadOptions::default();
    total.set_total_order_seek(true);
    same(
        &format!("{what}: in order"),
        &all,
        &collect(db.iterator_opt(IteratorMode::From(b"", Direction::Forward), total)),
    );
    for group in 0..120 {
        let prefix = format!("p{group:03}/");
        let mut want = of_prefix(map, &prefix);
        same(&format!("{what}: {prefix}"), &want, &collect(db.prefix_iterator(&prefix)));
        let mut options = ReadOptions::default();
        options.set_prefix_same_as_start(true);
        let end = format!("{prefix}:");
        want.reverse();
        let found = collect(db.iterator_opt(IteratorMode::From(end.as_bytes(), Direction::Reverse), options));
        same(&format!("{what}: {prefix} backwards"), &want, &found);
    }
    for (key, value) in map {
        assert_eq!(db.get(key).expect("a read").as_ref(), Some(value), "{what}: get {}", key.escape_ascii());
    }
    assert_eq!(db.get(b"p050/none").expect("a read"), None);
}

/// Opens RocksDB's database with the extractor of its tables and with others.
#[test]
fn rocksdbs_prefix_filters_are_read() {
    let test = "rocksdbs_prefix_filters_are_read";
    for driver in Peer::all(test) {
        for way in WAYS.iter().filter(|w| w.2 || driver.peer != Peer::Wheel) {
            let mut rng = fastrand::Rng::with_seed(11);
            let map = grouped_keys(&mut rng);
            let home = tempfile::tempdir().expect("a folder");
            let path = home.path().join("db");
            let mut script = Script::new();
            script.line(format!(
                "cf default prefix_extractor=fixed:5;compression=kNoCompression;disable_auto_compactions=true;\
                 block_based_table_factory={{{}}}",
                way.0
            ));
            script.open(&path);
            for (n, (key, value)) in map.iter().enumerate() {
                if n % 5 == 0 {
                    script.put("default", key, b"old");
                }
                script.put("default", [key.as_slice(), b"gone"].concat(), b"old");
                if n == map.len() / 2 {
                    script.line("flush default").line("compact default 3");
                }
                script.put("default", key, value);
                script.hex("del", "default", &[&[key.as_slice(), b"gone"].concat()]);
            }
            script.line("flush default").line("close");
            if driver.answer(test, &script).is_none() {
                continue;
            }
            for extractor in [
                Some(SliceTransform::create_fixed_prefix(5)),
                Some(SliceTransform::create_capped_prefix(5)),
                Some(SliceTransform::create_fixed_prefix(4)),
                None,
            ] {
                let what = format!("{:?}, {}, {extractor:?}", driver.peer, way.0);
                let same_extractor = extractor.as_ref().is_some_and(|e| e.name() == "rocksdb.FixedPrefix.5");
                let options = options_of(way, extractor);
                let db = Db::open_for_read_only(&options, &path, false).expect("RocksDB's database");
                if same_extractor {
                    check_groups(&db, &map, &what);
                    let filtered = options.get_ticker_count(Ticker::NonLastLevelSeekFiltered)
                        + options.get_ticker_count(Ticker::LastLevelSeekFiltered);
                    assert!(filtered > 20, "{what}: {filtered} seeks were kept off tables");
                } else {
                    let all: Entries = map.clone().into_iter().collect();
                    same(&what, &all, &collect(db.iterator(IteratorMode::Start)));
                    by_upper_bound(&db, &map, &what);
                }
            }
        }
    }
}

/// Up to a bound, with any extractor: a table's own prefixes may be checked if the bound allows it.
fn by_upper_bound(db: &Db, map: &Map, what: &str) {
    for group in 0..119 {
        let (from, to) = (format!("p{group:03}/"), format!("p{group:03}0"));
        let mut options = ReadOptions::default();
        options.set_auto_prefix_mode(true);
        options.set_iterate_upper_bound(to);
        let found = collect(db.iterator_opt(IteratorMode::From(from.as_bytes(), Direction::Forward), options));
        same(&format!("{what}: {from} with a bound"), &of_prefix(map, &from), &found);
    }
}

#[test]
fn rocksdb_reads_our_prefix_filters() {
    let test = "rocksdb_reads_our_prefix_filters";
    for way in &WAYS {
        let mut rng = fastrand::Rng::with_seed(12);
        let mut map = grouped_keys(&mut rng);
        // RocksDB's prefix iterators abort (by an assertion) at a key without a prefix.
        map.retain(|key, _| key.len() > 5);
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        {
            let options = options_of(way, Some(SliceTransform::create_fixed_prefix(5)));
            let db = Db::open(&options, &path).expect("a new database");
            for (n, (key, value)) in map.iter().enumerate() {
                db.put([key.as_slice(), b"gone"].concat(), b"old").expect("a write");
                db.put(key, b"old").expect("a write");
                if n == map.len() / 2 {
                    db.flush().expect("a flush");
                    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
                }
                db.put(key, value).expect("a write");
                db.delete([key.as_slice(), b"gone"].concat()).expect("a write");
            }
            check_groups(&db, &map, &format!("{}, in memory", way.0));
            db.flush().expect("a flush");
            check_groups(&db, &map, &format!("{}, flushed", way.0));
            assert!(options.get_ticker_count(Ticker::NonLastLevelSeekFiltered) > 20);
        }
        for driver in Peer::all(test).into_iter().filter(|d| way.2 || d.peer != Peer::Wheel) {
            let mut script = Script::new();
            let table = way.0;
            script.line(format!("cf default prefix_extractor=fixed:5;block_based_table_factory={{{table}}}"));
            let copy = home.path().join(format!("{:?}", driver.peer));
            oracle::copy_dir(&path, &copy);
            script.open(&copy);
            for group in 0..120 {
                script.hex("pscan", "default", &[format!("p{group:03}/").as_bytes()]);
            }
            for key in map.keys() {
                script.hex("get", "default", &[key]);
            }
            script.line("close");
            let Some(answer) = driver.answer(test, &script) else { continue };
            let want: Entries = (0..120).flat_map(|g| of_prefix(&map, &format!("p{g:03}/"))).collect();
            same(&format!("{:?}, {table}: prefixes", driver.peer), &want, &answer.entries());
            let values: Vec<_> = map.values().cloned().map(Some).collect();
            assert_eq!(answer.values(), values, "{:?}, {table}: gets", driver.peer);

            let mut script = Script::new();
            script.line(format!("cf default prefix_extractor=fixed:5;block_based_table_factory={{{table}}}"));
            script.open(&copy);
            for group in 0..120 {
                script.hex("prscan", "default", &[format!("p{group:03}/:").as_bytes()]);
            }
            script.line("dump default").line("close");
            let Some(answer) = driver.answer(test, &script) else { continue };
            let backwards = (0..120).flat_map(|g| of_prefix(&map, &format!("p{g:03}/")).into_iter().rev());
            let want: Entries = backwards.chain(map.clone()).collect();
            same(&format!("{:?}, {table}: backwards", driver.peer), &want, &answer.entries());
        }
    }
}

/// Lookups and seeks of absent keys read no table, as the counters show.
#[test]
fn filters_are_asked() {
    let fs = Arc::new(MemFileSystem::new());
    for whole in [true, false] {
        let way: Way = ("", if whole { |_| {} } else { |t| t.set_whole_key_filtering(false) }, false);
        let mut options = options_of(&way, Some(SliceTransform::create_fixed_prefix(4)));
        options.set_memtable_whole_key_filtering(whole);
        options.set_file_system(Arc::clone(&fs) as _);
        let db = Db::open(&options, format!("/{whole}")).unwrap();
        let put = || {
            for i in (0..2000).step_by(20) {
                db.put(format!("{i:04}/a"), "v").unwrap();
            }
        };
        put();
        set_perf_stats(PerfStatsLevel::EnableCount);
        let mut perf = PerfContext::default();
        perf.reset();
        let absent = |n: u32| format!("{:04}/b", n * 20 + 10);
        for i in 0..100 {
            assert_eq!(db.get(absent(i)).unwrap(), None);
            assert_eq!(db.prefix_iterator(absent(i)).count(), 0);
        }
        let held_off = perf.metric(PerfMetric::BloomMemtableMissCount);
        assert!(held_off > 190, "{held_off} of 200 in the memtable");
        db.flush().unwrap();
        let before: Vec<u64> = tickers(&options);
        for i in 0..100 {
            assert_eq!(db.get(absent(i)).unwrap(), None);
            assert_eq!(db.prefix_iterator(absent(i)).count(), 0);
        }
        set_perf_stats(PerfStatsLevel::Disable);
        let counted: Vec<u64> = tickers(&options).iter().zip(before).map(|(now, then)| now - then).collect();
        let [useful, checked, prefix_useful, filtered] = counted[..] else { panic!("{counted:?}") };
        let (keys, prefixes) = if whole { (95..=100, 0..=0) } else { (0..=0, 95..=100) };
        assert!(keys.contains(&useful) && prefixes.contains(&prefix_useful) && filtered > 95, "{whole} {counted:?}");
        assert_eq!(checked, if whole { 0 } else { 99 }, "one of the keys is behind the table");

        // The bottommost level has no filter if the options exclude it.
        drop(db);
        options.set_optimize_filters_for_hits(true);
        let db = Db::open(&options, format!("/{whole}")).unwrap();
        let mut how = CompactOptions::default();
        how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how).unwrap();
        let before = tickers(&options);
        assert_eq!(db.prefix_iterator(absent(3)).count(), 0);
        assert_eq!(db.get(absent(3)).unwrap(), None);
        assert_eq!(tickers(&options), before);
    }
}

fn tickers(options: &Options) -> Vec<u64> {
    use Ticker::{BloomFilterPrefixChecked, BloomFilterPrefixUseful, BloomFilterUseful, NonLastLevelSeekFiltered};
    [BloomFilterUseful, BloomFilterPrefixChecked, BloomFilterPrefixUseful, NonLastLevelSeekFiltered]
        .map(|t| options.get_ticker_count(t))
        .to_vec()
}

/// By length, then as bytes, with separators: `ByLength` of `driver.cc`.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "test.ByLength"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        by_length(a, b)
    }

    fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        let same = start.iter().zip(limit).take_while(|(a, b)| a == b).count();
        if start.len() == limit.len() && same < start.len() {
            start[same + 1..].fill(0xff);
        }
    }
}

/// Letters' case does not count.
struct NoCase;

impl Comparator for NoCase {
    fn name(&self) -> &str {
        "test.NoCase"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

/// The same order as [`ByLength`], with a comparator that declares that equal keys have equal bytes.
struct ByLengthExactly;

impl Comparator for ByLengthExactly {
    fn name(&self) -> &str {
        "test.ByLengthExactly"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        by_length(a, b)
    }

    fn can_keys_with_different_byte_contents_be_equal(&self) -> bool {
        false
    }
}

/// Every kind of read finds a key by any bytes that the comparator treats as equal, whatever indexes tables have.
#[test]
fn keys_are_found_by_any_bytes_that_compare_as_equal() {
    for index in [DataBlockIndexType::BinarySearch, DataBlockIndexType::BinaryAndHash] {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_file_system(Arc::new(MemFileSystem::new()));
        options.set_comparator_object(Arc::new(NoCase));
        let mut table = BlockBasedOptions::default();
        table.set_data_block_index_type(index);
        table.set_block_size(500);
        options.set_block_based_table_factory(&table);
        let db = Db::open(&options, "/db").unwrap();
        let key = |case: usize, i: u32| match case {
            0 => format!("key{i:03}"),
            1 => format!("KEY{i:03}"),
            _ => format!("kEy{i:03}"),
        };
        (0..200).for_each(|i| db.put(key(2, i), "old").unwrap());
        db.flush().unwrap();
        (0..100).for_each(|i| db.put(key(0, i), "new").unwrap());
        db.delete(key(1, 150)).unwrap();
        for stage in ["memtable", "tables", "one table"] {
            for i in 0..200 {
                let want: Option<&[u8]> = match i {
                    150 => None,
                    0..100 => Some(b"new"),
                    _ => Some(b"old"),
                };
                for case in 0..3 {
                    let asked = key(case, i);
                    assert_eq!(db.get(&asked).unwrap().as_deref(), want, "{stage}, {index:?}: {asked}");
                    let many = db.multi_get([&asked, &asked]);
                    let all = many.iter().all(|got| got.as_ref().unwrap().as_deref() == want);
                    assert!(all, "{stage}, {index:?}: {asked}");
                    let mut it = db.raw_iterator();
                    it.seek(&asked);
                    let found = it.key().is_some_and(|found| found.eq_ignore_ascii_case(asked.as_bytes()));
                    assert_eq!(found, want.is_some(), "{stage}, {index:?}: {asked}");
                }
            }
            match stage {
                "memtable" => db.flush().unwrap(),
                _ => db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap(),
            }
        }
        assert_eq!(db.iterator(IteratorMode::Start).count(), 199, "equal keys are one key");
    }
}

/// Data blocks have a hash index if the comparator allows it, and it works.
#[test]
fn a_comparator_says_whether_blocks_get_a_hash_index() {
    let size = |comparator: Arc<dyn Comparator>, index: DataBlockIndexType| {
        let fs = MemFileSystem::new();
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_file_system(Arc::new(fs.clone()));
        options.set_comparator_object(comparator);
        let mut table = BlockBasedOptions::default();
        table.set_data_block_index_type(index);
        options.set_block_based_table_factory(&table);
        let db = Db::open(&options, "/db").unwrap();
        for i in 0..2000 {
            db.put(format!("key{i:05}"), "value").unwrap();
        }
        db.flush().unwrap();
        (0..2000).for_each(|i| assert!(db.get(format!("key{i:05}")).unwrap().is_some()));
        db.live_files().unwrap().iter().map(|f| f.size).sum::<usize>()
    };
    use DataBlockIndexType::{BinaryAndHash, BinarySearch};
    let bytewise = || Arc::new(BytewiseComparator) as Arc<dyn Comparator>;
    assert!(size(bytewise(), BinaryAndHash) > size(bytewise(), BinarySearch));
    let exactly = || Arc::new(ByLengthExactly) as Arc<dyn Comparator>;
    assert!(size(exactly(), BinaryAndHash) > size(exactly(), BinarySearch));
    for unsure in [Arc::new(ByLength) as Arc<dyn Comparator>, Arc::new(NoCase)] {
        assert_eq!(size(Arc::clone(&unsure), BinaryAndHash), size(unsure, BinarySearch));
    }
}

fn by_length(a: &[u8], b: &[u8]) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// With small blocks, so that there are many separators.
fn by_length_options(n: usize) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    if n == 0 {
        options.set_comparator("test.ByLength", Box::new(by_length));
    } else {
        options.set_comparator_object(Arc::new(ByLength));
    }
    let mut table = BlockBasedOptions::default();
    table.set_block_size(100);
    table.set_bloom_filter(10.0, false);
    options.set_block_based_table_factory(&table);
    options
}

fn by_length_entries(rng: &mut fastrand::Rng) -> Entries {
    let mut map = Map::new();
    for _ in 0..1500 {
        let key = (0..rng.usize(0..9)).map(|_| rng.u8(b'a'..=b'e')).collect();
        map.insert(key, format!("{}", rng.u64(..)).into_bytes());
    }
    let mut entries: Entries = map.into_iter().collect();
    entries.sort_by(|a, b| by_length(&a.0, &b.0));
    entries
}

#[test]
fn a_comparator_of_ones_own_is_rocksdbs_too() {
    let test = "a_comparator_of_ones_own_is_rocksdbs_too";
    let driver = need!(test, Peer::Library.driver());
    let options = "block_based_table_factory={block_size=100;filter_policy=bloomfilter:10}";
    let mut rng = fastrand::Rng::with_seed(5);
    let entries = by_length_entries(&mut rng);
    let values: Vec<_> = entries.iter().map(|(_, v)| Some(v.clone())).collect();
    let home = tempfile::tempdir().expect("a folder");
    let header = |path: &Path| {
        let mut script = Script::new();
        script.line(format!("cf default {options}")).line("by_length default").open(path);
        script
    };
    // Theirs, read by us.
    let theirs = home.path().join("theirs");
    let mut script = header(&theirs);
    let mut shuffled = entries.clone();
    rng.shuffle(&mut shuffled);
    for (n, (key, value)) in shuffled.iter().enumerate() {
        script.put("default", key, value);
        if n % 400 == 399 {
            script.line("flush default");
        }
    }
    script.line("compact default").line("close");
    driver.answer(test, &script).expect("the library has comparators");
    for n in 0..2 {
        let db = Db::open(&by_length_options(n), &theirs).expect("RocksDB's database");
        same("RocksDB's, by us", &entries, &collect(db.iterator(IteratorMode::Start)));
        let found: Vec<_> = entries.iter().map(|(k, _)| db.get(k).expect("a read")).collect();
        assert_eq!(found, values);
        db.put("zzz written by us", "v").expect("a write");
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
        db.delete("zzz written by us").expect("a write");
    }
    // Ours, read by them.
    for n in 0..2 {
        let ours = home.path().join(format!("ours{n}"));
        {
            let db = Db::open(&by_length_options(n), &ours).expect("a new database");
            for (i, (key, value)) in shuffled.iter().enumerate() {
                db.put(key, value).expect("a write");
                if i % 400 == 399 {
                    db.flush().expect("a flush");
                }
            }
            db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
            same("ours, by us", &entries, &collect(db.iterator(IteratorMode::Start)));
        }
        let mut script = header(&ours);
        script.line("verify").line("dump default");
        for (key, _) in &entries {
            script.hex("get", "default", &[key]);
        }
        let answer = driver.answer(test, &script).expect("the library has comparators");
        same("ours, by RocksDB", &entries, &answer.entries());
        assert_eq!(answer.values(), values);
    }
}

/// A database opens with the comparator that it was written with; the error names both.
#[test]
fn another_comparator_is_refused_by_name() {
    let fs = Arc::new(MemFileSystem::new());
    let with = |set: &dyn Fn(&mut Options)| {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_file_system(Arc::clone(&fs) as _);
        set(&mut options);
        options
    };
    let by_len = with(&|o| o.set_comparator("test.ByLength", Box::new(by_length)));
    let db = Db::open(&by_len, "/db").unwrap();
    db.put("bb", "1").unwrap();
    db.put("c", "2").unwrap();
    drop(db);
    let reverse = with(&|o| o.set_comparator_object(Arc::new(ReverseBytewiseComparator)));
    let other = with(&|o| o.set_comparator("test.Other", Box::new(by_length)));
    for (wrong, name) in [
        (with(&|_| {}), "leveldb.BytewiseComparator"),
        (reverse, "rocksdb.ReverseBytewiseComparator"),
        (other, "test.Other"),
    ] {
        let e = Db::open(&wrong, "/db").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains("test.ByLength") && e.to_string().contains(name), "{e}");
    }
    let db = Db::open(&by_len, "/db").unwrap();
    let keys: Vec<_> = db.iterator(IteratorMode::Start).map(|e| e.unwrap().0.to_vec()).collect();
    assert_eq!(keys, [b"c".to_vec(), b"bb".to_vec()]);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(MemFileSystem::new()));
    let mut table = BlockBasedOptions::default();
    table.set_partition_filters(true);
    options.set_block_based_table_factory(&table);
    // RocksDB's rule: without the matching index type, the filter is not partitioned.
    assert!(!Db::open(&options, "/db").unwrap().get_options().cf.table.partition_filters);
    options.set_block_based_table_factory(&BlockBasedOptions::default());
    let db = Db::open(&options, "/db").unwrap();
    // The extractor of an open database can be changed to one that has a name.
    db.put("abc", "1").unwrap();
    db.set_options(&[("prefix_extractor", "fixed:2")]).unwrap();
    db.put("abd", "2").unwrap();
    db.put("acd", "3").unwrap();
    assert_eq!(db.prefix_iterator("ab").count(), 2);
    db.flush().unwrap();
    assert_eq!(db.prefix_iterator("ab").count(), 2);
    let e = db.set_options(&[("prefix_extractor", "of.my.own")]).unwrap_err();
    assert!(e.to_string().contains("of.my.own"), "{e}");
    db.set_options(&[("prefix_extractor", "nullptr"), ("memtable_prefix_bloom_size_ratio", "0.2")]).unwrap();
    assert_eq!(db.prefix_iterator("a").count(), 3);
}

/// A panicking prefix extractor makes no entry unreadable, and causes an error instead of a hanging store.
#[test]
fn a_panic_of_the_extractor_is_an_error_of_the_flush() {
    let fs = Arc::new(MemFileSystem::new());
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::clone(&fs) as _);
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    options.set_block_based_table_factory(&table);
    options.set_memtable_prefix_bloom_ratio(0.1);
    options.set_memtable_whole_key_filtering(true);
    options.set_prefix_extractor(SliceTransform::create("test.Panics", |key| &key[..3], None));
    let db = Db::open(&options, "/db").unwrap();
    db.put("long enough", "1").unwrap();
    db.put("no", "2").unwrap();
    assert_eq!(db.get("no").unwrap().as_deref(), Some(&b"2"[..]));
    let e = db.flush().unwrap_err();
    assert!(e.to_string().contains("panic"), "{e}");
    drop(db);
    options.cf.prefix_extractor = None;
    let db = Db::open(&options, "/db").unwrap();
    assert_eq!(db.get("no").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(db.get("long enough").unwrap().as_deref(), Some(&b"1"[..]));
}
