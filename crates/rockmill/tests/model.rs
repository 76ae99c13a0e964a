//! The store against an ordered map: random operations over several column families with snapshots, iterators in both
//! directions, flushes, compactions and reopening, under random options. The seed is printed and can be set with
//! `ROCKMILL_SEED`; `ROCKMILL_MODEL_OPS` sets the length.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rockmill::merge_operator::StringAppendOperator;
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, ChecksumType, ColumnFamilyDescriptor,
    CompactOptions, CompressionType, DataBlockIndexType, Db, Direction, IteratorMode, Options, ReadOptions, Snapshot,
    WriteBatch, WriteOptions,
};
use rockmill_format::comparator::{Comparator, ReverseBytewiseComparator};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const CFS: [&str; 3] = ["default", "second", "reversed"];
const REVERSED: usize = 2;
/// The column family with a merge operator that appends with a comma.
const MERGING: usize = 1;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn random_options(rng: &mut fastrand::Rng) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_write_buffer_size(rng.usize(8..200) << 10);
    o.set_max_write_buffer_number(rng.i32(2..5));
    o.set_min_write_buffer_number_to_merge(rng.i32(1..3));
    o.set_level_zero_file_num_compaction_trigger(rng.i32(1..5));
    o.set_target_file_size_base(rng.u64(8..64) << 10);
    o.set_max_bytes_for_level_base(rng.u64(32..256) << 10);
    o.set_max_bytes_for_level_multiplier(rng.i32(2..11).into());
    o.set_level_compaction_dynamic_level_bytes(rng.bool());
    o.set_num_levels(rng.i32(3..8));
    o.set_max_background_jobs(rng.i32(1..5));
    o.set_max_subcompactions(rng.u32(1..4));
    o.set_recycle_log_file_num(rng.usize(0..3));
    o.set_compaction_readahead_size(*rng.choice(&[0, 4096, 65536, 2 << 20]).unwrap());
    o.set_use_direct_reads(rng.bool());
    o.set_use_direct_io_for_flush_and_compaction(rng.bool());
    o.set_allow_concurrent_memtable_write(rng.bool());
    o.set_max_manifest_file_size(*rng.choice(&[2000, 1 << 30]).unwrap());
    o.set_max_open_files(*rng.choice(&[-1, 12, 100]).unwrap());
    use CompressionType::{Lz4, None, Snappy, Zlib, Zstd};
    o.set_compression_type(*rng.choice(&[None, Snappy, Lz4, Zstd, Zlib]).unwrap());
    if rng.bool() {
        o.set_bottommost_compression_type(*rng.choice(&[None, Zstd, Lz4]).unwrap());
    }
    let mut t = BlockBasedOptions::default();
    t.set_block_size(*rng.choice(&[256, 1024, 4096, 16384]).unwrap());
    t.set_block_restart_interval(*rng.choice(&[1, 2, 16]).unwrap());
    t.set_index_block_restart_interval(*rng.choice(&[1, 4]).unwrap());
    t.set_format_version(rng.i32(5..8));
    t.set_bloom_filter(*rng.choice(&[0.0, 3.0, 10.0]).unwrap(), false);
    let checksums = [ChecksumType::Crc32c, ChecksumType::XxHash64, ChecksumType::Xxh3];
    t.set_checksum_type(*rng.choice(&checksums).unwrap());
    if rng.bool() {
        t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        t.set_metadata_block_size(512);
    }
    if rng.bool() {
        t.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    }
    if rng.u8(0..4) == 0 {
        t.disable_cache();
    }
    o.set_block_based_table_factory(&t);
    o
}

fn open(path: &Path, options: &Options) -> Db {
    let cfs = CFS.iter().enumerate().map(|(i, name)| {
        let mut o = options.clone();
        if i == REVERSED {
            o.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        if i == MERGING {
            o.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
        }
        ColumnFamilyDescriptor::new(*name, o)
    });
    Db::open_cf_descriptors(options, path, cfs).unwrap()
}

fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    // Few enough keys that versions pile up; some share long prefixes, one is empty.
    match rng.u8(0..10) {
        0 => vec![0xff; rng.usize(0..4)],
        1..=4 => format!("key{:04}", rng.u32(0..300)).into_bytes(),
        _ => format!("a-longer-shared-prefix/{:06}", rng.u32(0..1500)).into_bytes(),
    }
}

fn random_value(rng: &mut fastrand::Rng, n: u64) -> Vec<u8> {
    let len = if rng.u8(0..40) == 0 { rng.usize(0..9000) } else { rng.usize(0..120) };
    let mut v = format!("{n}:").into_bytes();
    v.extend(std::iter::repeat_with(|| rng.u8(b'a'..=b'f')).take(len));
    v
}

struct Model {
    now: [Map; 3],
}

impl Model {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(cf, k, v) => {
                self.now[*cf].insert(k.clone(), v.clone());
            }
            Op::Merge(k, v) => match self.now[MERGING].get_mut(k) {
                Some(value) => {
                    value.push(b',');
                    value.extend_from_slice(v);
                }
                None => drop(self.now[MERGING].insert(k.clone(), v.clone())),
            },
            Op::Delete(cf, k) => {
                self.now[*cf].remove(k);
            }
            Op::DeleteRange(cf, a, b) => {
                let range = self.now[*cf].range(a.clone()..b.clone()).map(|(k, _)| k.clone());
                let gone: Vec<_> = range.collect();
                gone.iter().for_each(|k| drop(self.now[*cf].remove(k)));
            }
        }
    }
}

enum Op {
    Put(usize, Vec<u8>, Vec<u8>),
    /// In the column family that has a merge operator only.
    Merge(Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    /// In bytewise order of the keys; given to the reversed column family the other way round.
    DeleteRange(usize, Vec<u8>, Vec<u8>),
}

fn random_op(rng: &mut fastrand::Rng, n: u64) -> Op {
    let cf = *rng.choice(&[0, 0, 0, 1, 2]).unwrap();
    match rng.u16(0..400) {
        0..=1 if cf != REVERSED => {
            let (a, b) = (random_key(rng), random_key(rng));
            if a <= b { Op::DeleteRange(cf, a, b) } else { Op::DeleteRange(cf, b, a) }
        }
        2..=80 => Op::Delete(cf, random_key(rng)),
        81..=240 if cf == MERGING => {
            let operand: Vec<u8> = std::iter::repeat_with(|| rng.u8(b'a'..=b'f')).take((n % 12) as usize).collect();
            Op::Merge(random_key(rng), operand)
        }
        _ => Op::Put(cf, random_key(rng), random_value(rng, n)),
    }
}

fn sorted(cf: usize, map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = map.iter().map(|(k, v)| (k.clone(), v.clone()));
    if cf == REVERSED { all.rev().collect() } else { all.collect() }
}

fn check_all(db: &Db, want: &[Map; 3], snapshot: Option<&Snapshot<'_>>, what: &str) {
    for (cf, name) in CFS.iter().enumerate() {
        let handle = db.cf_handle(name).unwrap();
        let want = sorted(cf, &want[cf]);
        let options = || {
            let mut r = ReadOptions::default();
            if let Some(s) = snapshot {
                r.set_snapshot(s);
            }
            r
        };
        let pairs = |i: rockmill::DbIterator<'_>| -> Vec<(Vec<u8>, Vec<u8>)> {
            i.map(|kv| kv.unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
        };
        let got = pairs(db.iterator_cf_opt(&handle, options(), IteratorMode::Start));
        assert_same(&got, &want, &format!("{what}: {name} forward"));
        let mut got = pairs(db.iterator_cf_opt(&handle, options(), IteratorMode::End));
        got.reverse();
        assert_same(&got, &want, &format!("{what}: {name} backward"));
    }
}

fn assert_same(got: &[(Vec<u8>, Vec<u8>)], want: &[(Vec<u8>, Vec<u8>)], what: &str) {
    for (g, w) in got.iter().zip(want) {
        assert!(
            g == w,
            "{what}: got {}={} want {}={}",
            g.0.escape_ascii(),
            g.1[..g.1.len().min(20)].escape_ascii(),
            w.0.escape_ascii(),
            w.1[..w.1.len().min(20)].escape_ascii()
        );
    }
    let extra = |l: &[(Vec<u8>, Vec<u8>)], n: usize| l.get(n).map(|(k, _)| k.escape_ascii().to_string());
    assert_eq!(
        got.len(),
        want.len(),
        "{what}: extra {:?}, missing {:?}",
        extra(got, want.len()),
        extra(want, got.len())
    );
}

fn check_random_walk(db: &Db, model: &Model, rng: &mut fastrand::Rng, what: &str) {
    let cf = rng.usize(0..3);
    let handle = db.cf_handle(CFS[cf]).unwrap();
    let mut options = ReadOptions::default();
    let mut want = sorted(cf, &model.now[cf]);
    let cmp = |a: &[u8], b: &[u8]| if cf == REVERSED { b.cmp(a) } else { a.cmp(b) };
    if rng.u8(0..3) == 0 {
        let low = random_key(rng);
        want.retain(|(k, _)| cmp(k, &low).is_ge());
        options.set_iterate_lower_bound(low);
    }
    if rng.u8(0..3) == 0 {
        let high = random_key(rng);
        want.retain(|(k, _)| cmp(k, &high).is_lt());
        options.set_iterate_upper_bound(high);
    }
    if rng.u8(0..4) == 0 {
        let mut prefix = random_key(rng);
        prefix.truncate(rng.usize(0..8));
        want.retain(|(k, _)| k.starts_with(&prefix));
        options.set_iterate_prefix(prefix);
    }
    let mut iter = db.raw_iterator_cf_opt(&handle, options);
    let mut at: Option<usize> = None;
    for step in 0..rng.usize(1..40) {
        match rng.u8(0..12) {
            0 => {
                iter.seek_to_first();
                at = (!want.is_empty()).then_some(0);
            }
            1 => {
                iter.seek_to_last();
                at = want.len().checked_sub(1);
            }
            2..=3 => {
                let k = random_key(rng);
                iter.seek(&k);
                at = want.iter().position(|(w, _)| cmp(w, &k).is_ge());
            }
            4..=5 => {
                let k = random_key(rng);
                iter.seek_for_prev(&k);
                at = want.iter().rposition(|(w, _)| cmp(w, &k).is_le());
            }
            6..=8 => {
                iter.next();
                at = at.map(|i| i + 1).filter(|&i| i < want.len());
            }
            _ => {
                iter.prev();
                at = at.and_then(|i| i.checked_sub(1));
            }
        }
        iter.status().unwrap();
        let got = iter.item().map(|(k, v)| (k.to_vec(), v.to_vec()));
        assert_eq!(got, at.map(|i| want[i].clone()), "{what}: walk in {} at step {step}", CFS[cf]);
    }
}

fn run(seed: u64, ops: u64) {
    println!("model: ROCKMILL_SEED={seed} ROCKMILL_MODEL_OPS={ops}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut options = random_options(&mut rng);
    // The levels that hold data must fit later openings too.
    options.set_num_levels(7);
    let mut model = Model { now: Default::default() };
    let mut n = 0;
    while n < ops {
        let db = open(dir.path(), &options);
        check_all(&db, &model.now, None, &format!("seed {seed}: after open at {n}"));
        let mut snapshots: Vec<(Snapshot<'_>, [Map; 3])> = Vec::new();
        let session_end = n + rng.u64(ops / 8..ops / 2);
        while n < session_end.min(ops) {
            n += 1;
            let what = format!("seed {seed}: at {n}");
            match rng.u16(0..1000) {
                0..=2 => db.flush().unwrap(),
                3 => {
                    let cf = db.cf_handle(CFS[rng.usize(0..3)]).unwrap();
                    db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).unwrap();
                }
                4 => {
                    let (a, b) = (random_key(&mut rng), random_key(&mut rng));
                    let (a, b) = if a <= b { (a, b) } else { (b, a) };
                    let mut c = CompactOptions::default();
                    c.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                    db.compact_range_opt(Some(a), Some(b), &c).unwrap();
                }
                5 => check_all(&db, &model.now, None, &what),
                6..=8 if snapshots.len() < 5 => snapshots.push((db.snapshot(), model.now.clone())),
                9..=10 if !snapshots.is_empty() => {
                    let (s, then) = snapshots.swap_remove(rng.usize(0..snapshots.len()));
                    check_all(&db, &then, Some(&s), &format!("{what}: snapshot"));
                }
                11..=30 => check_random_walk(&db, &model, &mut rng, &what),
                31..=200 => {
                    let cf = rng.usize(0..3);
                    let k = random_key(&mut rng);
                    let handle = db.cf_handle(CFS[cf]).unwrap();
                    let got = db.get_cf(&handle, &k).unwrap();
                    assert!(got.as_ref() == model.now[cf].get(&k), "{what}: get {} in {}", k.escape_ascii(), CFS[cf]);
                    if let Some((s, then)) = snapshots.last() {
                        let got = s.get_cf(&handle, &k).unwrap();
                        assert!(got.as_ref() == then[cf].get(&k), "{what}: snapshot get {}", k.escape_ascii());
                    }
                }
                201..=210 => {
                    let keys: Vec<_> = (0..rng.usize(0..20)).map(|_| random_key(&mut rng)).collect();
                    let got: Vec<_> = db.multi_get(&keys).into_iter().map(|r| r.unwrap()).collect();
                    let want: Vec<_> = keys.iter().map(|k| model.now[0].get(k).cloned()).collect();
                    assert_eq!(got, want, "{what}: multi_get");
                }
                _ => {
                    let mut batch = WriteBatch::new();
                    for _ in 0..rng.usize(1..8) {
                        let op = random_op(&mut rng, n);
                        model.apply(&op);
                        let cf = |i: usize| db.cf_handle(CFS[i]).unwrap();
                        match op {
                            Op::Put(i, k, v) => batch.put_cf(&cf(i), k, v),
                            Op::Merge(k, v) => batch.merge_cf(&cf(MERGING), k, v),
                            Op::Delete(i, k) => batch.delete_cf(&cf(i), k),
                            Op::DeleteRange(i, a, b) => batch.delete_range_cf(&cf(i), a, b),
                        }
                    }
                    let w = WriteOptions { sync: rng.u8(0..50) == 0, ..WriteOptions::default() };
                    db.write_opt(&batch, &w).unwrap();
                }
            }
        }
        for (s, then) in &snapshots {
            check_all(&db, then, Some(s), &format!("seed {seed}: snapshot at close, {n}"));
        }
        drop(snapshots);
        drop(db);
        options = random_options(&mut rng);
        options.set_num_levels(7);
    }
    let db = open(dir.path(), &options);
    check_all(&db, &model.now, None, &format!("seed {seed}: at the end"));
}

#[test]
fn the_store_agrees_with_an_ordered_map() {
    let ops = env("ROCKMILL_MODEL_OPS").unwrap_or(6000);
    if let Some(seed) = env("ROCKMILL_SEED") {
        return run(seed, ops);
    }
    for _ in 0..4 {
        run(fastrand::u64(..1 << 32), ops);
    }
}

#[test]
fn the_reverse_order_has_its_own_separators() {
    // Walks in the reversed column family rely on it; a quick look at the comparator the model uses.
    let c = ReverseBytewiseComparator;
    assert!(c.compare(b"b", b"a").is_lt());
    let dir = tempfile::tempdir().unwrap();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_comparator_object(Arc::new(c));
    let db = Db::open(&o, dir.path()).unwrap();
    for k in ["a", "b", "c"] {
        db.put(k, k).unwrap();
    }
    let keys: Vec<_> = db.iterator(IteratorMode::From(b"b", Direction::Forward)).map(|kv| kv.unwrap().0).collect();
    assert_eq!(keys, [b"b".to_vec().into_boxed_slice(), b"a".to_vec().into_boxed_slice()]);
}
