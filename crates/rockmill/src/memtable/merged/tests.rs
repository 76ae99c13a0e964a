use std::cmp::Ordering as KeyOrdering;
use std::path::Path;

use rockmill_format::SliceTransform;
use rockmill_format::ValueType::{self, Deletion, Merge, RangeDeletion, SingleDeletion, Value};
use rockmill_format::comparator::{Comparator, FnComparator, ReverseBytewiseComparator};
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, ParsedInternalKey, VALUE_TYPE_FOR_SEEK};
use rockmill_io::ring::{BatchKind, BatchLimits, Pieces};
use rockmill_io::{FileSystem, MemFileSystem, WriteOptions};

use super::build::Sizes;
use super::*;
use crate::compaction::model::{Entry as Version, Model, Range as RangeVersion, Seen, random_history};
use crate::iter::get::GetState;
use crate::memtable::MemTableFilter;
use crate::memtable::log_read_ahead::LogReads;
use crate::memtable::log_values::{LogFile, LoggedValue};
use crate::memtable::write_buffer_manager::WriteBufferManager;
use crate::sync::Share;
use crate::sync::atomic::{AtomicUsize, Ordering};

static NO_FILTER: MemTableFilter = MemTableFilter { bytes: 0, whole_keys: false, prefixes: None };

/// Readers read at `visible` or later, or at the snapshots.
fn plan<'a>(visible: u64, snapshots: &'a [u64], threads: usize) -> MergePlan<'a> {
    MergePlan { visible, snapshots, threads, filter: &NO_FILTER, manager: None, stop: &|| false }
}

fn merge(inputs: &[SealedTable], plan: &MergePlan<'_>, sizes: Sizes) -> (Arc<MergedMemTable>, LeftOut) {
    let (table, left_out) = MergedMemTable::build_in(inputs, plan, sizes).unwrap().expect("nothing stopped it");
    (Arc::new(table), left_out)
}

fn any_sizes(rng: &mut fastrand::Rng) -> Sizes {
    if rng.u8(0..4) == 0 { Sizes::USUAL } else { Sizes::SMALL }
}

fn fill(id: u64, cmp: &InternalKeyComparator, model: &Model) -> SealedTable {
    let table = MemTable::new(id, cmp.clone(), 4096);
    for (key, seq, value_type, value) in &model.entries {
        table.add(*seq, *value_type, key, value);
    }
    for (begin, end, seq) in &model.ranges {
        table.add(*seq, RangeDeletion, begin, end);
    }
    SealedTable::Plain(Arc::new(table))
}

/// What an iterator gives, forward.
fn entries(table: &SealedTable) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut it = table.iter();
    let mut out = Vec::new();
    it.seek_to_first();
    while it.valid() {
        out.push((it.key().to_vec(), it.value().to_vec()));
        it.next();
    }
    out
}

/// The contents of a table.
fn model_of(table: &SealedTable) -> Model {
    let versions = entries(table).into_iter().map(|(key, value)| {
        let parsed = ParsedInternalKey::parse(&key).unwrap();
        (parsed.user_key.to_vec(), parsed.sequence, parsed.value_type, value)
    });
    let ranges = table.range_tombstones();
    let ranges = ranges.iter().flat_map(|r| r.iter()).map(|(b, e, s)| (b.to_vec(), e.to_vec(), s));
    Model { entries: versions.collect(), ranges: ranges.collect() }
}

/// A lookup in several tables, newest first.
fn get(tables: &[SealedTable], key: &[u8], snapshot: u64) -> Seen {
    let ikey = InternalKey::new(key, snapshot, VALUE_TYPE_FOR_SEEK);
    let mut ctx = GetContext::new(key);
    for table in tables {
        if ctx.is_done() {
            break;
        }
        table.get(ikey.as_bytes(), &mut ctx);
    }
    let (operands, base) = match ctx.state {
        GetState::NotFound | GetState::Deleted => (Vec::new(), None),
        GetState::Found(value) => (Vec::new(), Some(value)),
        GetState::Merge(operands) => (operands, None),
        GetState::MergeDone(operands, base) => (operands, base),
        GetState::Failed(e) => panic!("{e}"),
    };
    Seen { operands: operands.into_iter().map(|o| o.into_vec()).collect(), base: base.map(|b| b.into_vec()) }
}

/// Checks a table's counts, its order, and both directions.
fn check_itself(table: &SealedTable, cmp: &InternalKeyComparator) {
    let forward = entries(table);
    assert!(forward.windows(2).all(|w| cmp.compare(&w[0].0, &w[1].0).is_lt()));
    let mut it = table.iter();
    assert!(!it.valid());
    it.seek_to_last();
    for (key, value) in forward.iter().rev() {
        assert_eq!((it.key(), it.value()), (&key[..], &value[..]));
        it.prev();
    }
    assert!(!it.valid());
    it.prev();
    assert!(!it.valid() && it.key().is_empty());
    let model = model_of(table);
    let bytes: usize = forward.iter().map(|(key, value)| key.len() + value.len()).sum();
    let deletions = model.entries.iter().filter(|e| matches!(e.2, Deletion | SingleDeletion)).count() as u64;
    assert_eq!(table.num_entries(), forward.len() as u64 + table.num_range_deletes());
    assert_eq!(table.num_deletes(), deletions + table.num_range_deletes());
    if table.num_range_deletes() == 0 {
        assert_eq!(table.data_size(), bytes as u64);
    }
    assert!(model.entries.iter().all(|e| e.1 >= table.first_sequence()));
}

/// Histories of all kinds of entries, split into memtables that are merged again and again while snapshots come and go.
/// Every possible read sees the same as before, entry by entry and through lookups.
#[test]
fn merges_of_merges_show_every_reader_the_same() {
    let rounds = if cfg!(miri) { 1 } else { 150 };
    let writes = if cfg!(miri) { 10 } else { 120 };
    let mut gone = 0;
    for seed in 0..rounds {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = InternalKeyComparator::default();
        let (mut last, mut visible, mut alive) = (0, 0, [false; 256]);
        let mut truth = Model::default();
        let mut tables: Vec<SealedTable> = Vec::new();
        let mut snapshots: Vec<u64> = Vec::new();
        for id in 1..=if cfg!(miri) { 4 } else { 10 } {
            let history = random_history(&mut rng, &mut last, writes, &mut alive);
            tables.insert(0, fill(id, &cmp, &history));
            truth = truth.plus(&history);
            // A snapshot taken now sees what is visible now, which may be less than all that was written.
            let behind = if rng.bool() { 0 } else { rng.u64(0..=writes as u64 / 4) };
            visible = (last - behind).max(visible);
            if rng.u8(0..3) > 0 && snapshots.last().is_none_or(|s| *s < visible) {
                snapshots.push(visible);
            }
            if rng.u8(0..4) == 0 && !snapshots.is_empty() {
                snapshots.remove(rng.usize(0..snapshots.len()));
            }
            if tables.len() > 1 && rng.bool() {
                let count = rng.usize(2..=tables.len());
                let first = rng.usize(0..=tables.len() - count);
                let threads = if cfg!(miri) { 2 } else { rng.usize(1..4) };
                let sizes = any_sizes(&mut rng);
                let of = first..first + count;
                let inputs: Vec<SealedTable> = tables[of.clone()].to_vec();
                let (table, left_out) = merge(&inputs, &plan(visible, &snapshots, threads), sizes);
                let sum = |figure: fn(&SealedTable) -> u64| inputs.iter().map(figure).sum::<u64>();
                let table = SealedTable::Merged(table);
                assert_eq!(table.num_entries() + left_out.entries, sum(SealedTable::num_entries));
                assert_eq!(table.ids(), inputs.iter().flat_map(|t| t.ids()).collect::<Vec<_>>());
                gone += left_out.entries;
                check_itself(&table, &cmp);
                tables.splice(of, [table]);
            }
            // All possible readers: the snapshots, and everything from the visible number on.
            let mut readers = snapshots.clone();
            readers.extend((0..4).map(|_| rng.u64(visible..=last)));
            readers.push(visible);
            let now = tables.iter().map(model_of).fold(Model::default(), |all, m| all.plus(&m));
            truth.assert_same(&now, &readers, "the entries");
            for key in truth.keys() {
                for reader in &readers {
                    assert_eq!(get(&tables, &key, *reader), truth.seen(&key, *reader), "{key:?} at {reader}");
                }
            }
        }
    }
    assert!(gone > 100 || cfg!(miri), "only {gone} entries were left out");
}

/// A custom order: by length, then bytes.
fn by_length() -> Arc<dyn Comparator> {
    let order = |a: &[u8], b: &[u8]| -> KeyOrdering { a.len().cmp(&b.len()).then_with(|| a.cmp(b)) };
    Arc::new(FnComparator::new("test.ByLength", Box::new(order)))
}

fn orders() -> [InternalKeyComparator; 3] {
    [
        InternalKeyComparator::default(),
        InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator)),
        InternalKeyComparator::new(by_length()),
    ]
}

/// Short keys of few bytes, and keys that differ after the prefix; all begin with `common`.
fn random_key(rng: &mut fastrand::Rng, common: &[u8]) -> Vec<u8> {
    let mut key = common.to_vec();
    if rng.bool() {
        key.extend_from_slice(b"another-prefix");
    }
    key.extend((0..rng.usize(0..10)).map(|_| *rng.choice(&[0u8, 1, b'a', 255]).unwrap()));
    if rng.u8(..20) == 0 {
        key.resize(key.len() + rng.usize(100..400), b'l'); // lengths of two bytes
    }
    key
}

/// Compares seeks and steps with a sorted vector, in three orders, with and without a common prefix, with one thread
/// and several.
#[test]
fn seeks_and_steps_agree_with_a_sorted_vector() {
    let rounds = if cfg!(miri) { 3 } else { 60 };
    for seed in 0..rounds {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = orders()[seed as usize % 3].clone();
        let common: &[u8] = rng.choice(&[&b""[..], b"user", b"a-long-common-prefix"]).unwrap();
        let writes = if cfg!(miri) { 40 } else { rng.usize(0..1500) };
        let count = rng.usize(1..6);
        let mut model: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut inputs = Vec::new();
        for id in 0..count {
            let table = MemTable::new(id as u64, cmp.clone(), 4096);
            for _ in 0..writes / count {
                let seq = model.len() as u64 + 1;
                let (key, value) = (random_key(&mut rng, common), seq.to_le_bytes());
                table.add(seq, Value, &key, &value);
                model.push((InternalKey::new(&key, seq, Value).as_bytes().to_vec(), value.to_vec()));
            }
            inputs.insert(0, SealedTable::Plain(Arc::new(table)));
        }
        model.sort_by(|a, b| cmp.compare(&a.0, &b.0));
        // Nothing is dropped: everything is above the visible number.
        let sizes = any_sizes(&mut rng);
        let build = |inputs: &[SealedTable], threads| merge(inputs, &plan(0, &[], threads), sizes).0;
        let table = build(&inputs, 1);
        for threads in 2..4 {
            let other = build(&inputs, threads);
            assert!((0..model.len() + 1).all(|at| table.entries.get(at) == other.entries.get(at)));
            assert_eq!(table.index.all(), other.index.all());
        }
        // The same out of merged ones.
        let split = rng.usize(0..=inputs.len());
        let halves = [&inputs[..split], &inputs[split..]];
        let merged = halves.iter().filter(|h| !h.is_empty()).map(|h| SealedTable::Merged(build(h, 2)));
        let again = build(&merged.collect::<Vec<_>>(), 2);
        assert!((0..model.len() + 1).all(|at| table.entries.get(at) == again.entries.get(at)));
        assert_eq!(table.index.all(), again.index.all());

        let sealed = SealedTable::Merged(Arc::clone(&table));
        assert_eq!(entries(&sealed), model);
        check_itself(&sealed, &cmp);
        let mut it = table.iter();
        for _ in 0..if cfg!(miri) { 20 } else { 200 } {
            let user = if rng.u8(..8) == 0 { random_key(&mut rng, b"") } else { random_key(&mut rng, common) };
            let target = InternalKey::new(&user, rng.u64(0..writes as u64 + 2), Value);
            let target = target.as_bytes();
            let first = model.partition_point(|(k, _)| cmp.compare(k, target).is_lt());
            let after = model.partition_point(|(k, _)| cmp.compare(k, target).is_le());
            let want = |at: Option<usize>| at.and_then(|at| model.get(at)).map(|(key, _)| &key[..]);
            it.seek(target);
            assert_eq!(it.valid().then(|| it.key()), want(Some(first)));
            it.next();
            assert_eq!(it.valid().then(|| it.key()), want(Some(first + 1)));
            it.seek_for_prev(target);
            assert_eq!(it.valid().then(|| it.key()), want(after.checked_sub(1)));
            it.prev();
            assert_eq!(it.valid().then(|| it.key()), want(after.checked_sub(2)));
            let snapshot = rng.u64(0..writes as u64 + 2);
            assert_eq!(get(std::slice::from_ref(&sealed), &user, snapshot), get(&inputs, &user, snapshot), "{user:?}");
            let end = InternalKey::new(&random_key(&mut rng, common), 0, Value);
            let to = model.partition_point(|(k, _)| cmp.compare(k, end.as_bytes()).is_lt());
            let (between, _) = table.approximate_stats(target, end.as_bytes());
            assert_eq!(between, to.saturating_sub(first) as u64);
        }
    }
}

/// The versions of one key, newest first, each in its own memtable, that survive a merge.
fn survivors(versions: &[(u64, ValueType)], snapshots: &[u64], visible: u64) -> Vec<u64> {
    let cmp = InternalKeyComparator::default();
    let table = |&(seq, value_type): &(u64, ValueType)| {
        fill(seq, &cmp, &Model { entries: vec![(b"k".to_vec(), seq, value_type, Vec::new())], ranges: Vec::new() })
    };
    let inputs: Vec<SealedTable> = versions.iter().map(table).collect();
    let (merged, left_out) = merge(&inputs, &plan(visible, snapshots, 1), Sizes::SMALL);
    let left = model_of(&SealedTable::Merged(merged)).entries;
    assert_eq!(left.len() as u64 + left_out.entries, versions.len() as u64);
    left.into_iter().map(|e| e.1).collect()
}

#[test]
fn what_is_left_out() {
    const ALL: u64 = MAX_SEQUENCE;
    assert_eq!(survivors(&[(3, Value), (2, Value), (1, Value)], &[], ALL), [3]);
    assert_eq!(survivors(&[(3, Value), (2, Merge), (1, Deletion)], &[], ALL), [3]);
    assert_eq!(survivors(&[(3, Deletion), (2, Value), (1, Merge)], &[], ALL), [3], "what is below may need it");
    // An operand needs the entries below it, down to the first value or deletion.
    assert_eq!(survivors(&[(4, Merge), (3, Merge), (2, Value), (1, Value)], &[], ALL), [4, 3, 2]);
    assert_eq!(survivors(&[(5, Value), (4, Merge), (3, Value), (2, Merge), (1, Value)], &[4], ALL), [5, 4, 3]);
    // A snapshot sees the newest version up to its own number.
    for (snapshot, left) in [(1, &[3, 1][..]), (2, &[3, 2]), (3, &[3]), (4, &[3])] {
        assert_eq!(survivors(&[(3, Value), (2, Value), (1, Value)], &[snapshot], ALL), left, "{snapshot}");
    }
    assert_eq!(survivors(&[(9, Value), (7, Value), (5, Value), (3, Value), (1, Value)], &[3, 4, 6], ALL), [9, 5, 3]);
    // An entry that is not visible to all is neither dropped nor a reason to drop others.
    assert_eq!(survivors(&[(3, Value), (2, Value), (1, Value)], &[], 2), [3, 2]);
    assert_eq!(survivors(&[(3, Value), (2, Value), (1, Value)], &[], 1), [3, 2, 1]);
    assert_eq!(survivors(&[(3, Value), (2, Value), (1, Value)], &[3], 3), [3]);
    // Single deletions stay, and so do entries that only they hide.
    assert_eq!(survivors(&[(2, SingleDeletion), (1, Value)], &[], ALL), [2, 1]);
    assert_eq!(survivors(&[(3, Value), (2, SingleDeletion)], &[], ALL), [3, 2]);
    assert_eq!(survivors(&[(3, Value), (2, SingleDeletion), (1, Value)], &[], ALL), [3, 2]);
    assert_eq!(survivors(&[(3, Value), (2, SingleDeletion), (1, Value)], &[1], ALL), [3, 2, 1]);
    assert_eq!(survivors(&[(4, SingleDeletion), (3, Value), (2, Deletion), (1, Value)], &[], ALL), [4, 3]);
}

#[test]
fn range_tombstones_of_all_inputs_cover_together() {
    let cmp = InternalKeyComparator::default();
    let range = |b: &[u8], e: &[u8], seq| -> RangeVersion { (b.to_vec(), e.to_vec(), seq) };
    let put = |k: &[u8], seq: u64| -> Version { (k.to_vec(), seq, Value, seq.to_string().into_bytes()) };
    let old = Model { entries: vec![put(b"c", 1), put(b"x", 2)], ranges: vec![range(b"a", b"d", 3)] };
    let new = Model { entries: vec![put(b"c", 4)], ranges: vec![range(b"b", b"y", 5)] };
    let (old, new) = (fill(1, &cmp, &old), fill(2, &cmp, &new));
    let (first, left_out) = merge(&[new, old], &plan(5, &[], 2), Sizes::SMALL);
    assert_eq!((left_out.entries, left_out.data_size), (1, 10));
    assert_eq!((first.num_entries(), first.num_deletes(), first.num_range_deletes()), (4, 2, 2));
    assert_eq!((first.first_sequence(), first.id(), first.ids()), (1, 2, &[2, 1][..]));
    let newest = fill(3, &cmp, &Model { entries: vec![put(b"x", 6)], ranges: vec![range(b"x", b"z", 7)] });
    let (table, _) = merge(&[newest, SealedTable::Merged(first)], &plan(4, &[], 1), Sizes::SMALL);
    assert_eq!(table.num_range_deletes(), 3);
    let table = [SealedTable::Merged(table)];
    let value = |key: &[u8], snapshot| get(&table, key, snapshot).base;
    assert_eq!((value(b"c", 4), value(b"c", 5)), (Some(b"4".to_vec()), None));
    assert_eq!((value(b"x", 4), value(b"x", 5), value(b"x", 6)), (Some(b"2".to_vec()), None, Some(b"6".to_vec())));
    assert_eq!(value(b"x", 7), None);
    // The lookup carries the tombstone on to older places.
    let mut ctx = GetContext::new(b"y");
    table[0].get(InternalKey::new(b"y", 9, VALUE_TYPE_FOR_SEEK).as_bytes(), &mut ctx);
    assert_eq!(ctx.max_covering, 7);
}

#[test]
fn nothing_of_nothing() {
    let cmp = InternalKeyComparator::default();
    assert!(MergedMemTable::build(&[], &plan(9, &[], 1)).unwrap().is_none());
    let empty = fill(1, &cmp, &Model::default());
    let (table, left_out) = merge(&[empty.clone(), empty], &plan(9, &[], 3), Sizes::USUAL);
    assert_eq!((table.is_empty(), table.first_sequence(), left_out), (true, u64::MAX, LeftOut::default()));
    let sealed = SealedTable::Merged(table);
    check_itself(&sealed, &cmp);
    let mut it = sealed.iter();
    for target in [&b"\0\0\0\0\0\0\0\0"[..], b"k\xff\xff\xff\xff\xff\xff\xff\xff"] {
        it.seek(target);
        assert!(!it.valid());
        it.seek_for_prev(target);
        assert!(!it.valid());
        it.next();
        assert!(!it.valid());
    }
    assert_eq!(get(std::slice::from_ref(&sealed), b"k", 9), Seen::default());
    assert_eq!(sealed.approximate_stats(b"\0\0\0\0\0\0\0\0", b"k\0\0\0\0\0\0\0\0"), (0, 0));
}

fn numbered(id: u64, cmp: &InternalKeyComparator, from: u64, count: u64) -> SealedTable {
    let put = |i: u64| (format!("key{i:05}").into_bytes(), i, Value, i.to_le_bytes().to_vec());
    fill(id, cmp, &Model { entries: (from..from + count).map(put).collect(), ranges: Vec::new() })
}

#[test]
fn it_can_be_stopped_at_any_time() {
    let cmp = InternalKeyComparator::default();
    let count = if cfg!(miri) { 20 } else { 300 };
    let inputs = [numbered(2, &cmp, 1000, count), numbered(1, &cmp, 1100, count)];
    let (mut stopped, mut done) = (0, 0);
    for threads in [1, 3] {
        for after in (0..).step_by(if cfg!(miri) { 7 } else { 1 }) {
            let asked = AtomicUsize::new(0);
            let stop = || asked.fetch_add(1, Ordering::Relaxed) >= after;
            let plan = MergePlan { stop: &stop, ..plan(0, &[], threads) };
            match MergedMemTable::build_in(&inputs, &plan, Sizes::SMALL).unwrap() {
                None => stopped += 1,
                Some((table, _)) => {
                    assert_eq!(table.num_entries(), 2 * count);
                    done += 1;
                    break;
                }
            }
        }
    }
    assert!(stopped > if cfg!(miri) { 2 } else { 10 } && done == 2, "{stopped}, {done}");
}

#[test]
fn a_panic_in_the_users_order_is_an_error() {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let counted = Arc::clone(&left);
    let order = move |a: &[u8], b: &[u8]| {
        assert!(counted.fetch_sub(1, Ordering::Relaxed) > 0, "the order is out of order");
        a.cmp(b)
    };
    let cmp = InternalKeyComparator::new(Arc::new(FnComparator::new("test.Fails", Box::new(order))));
    let inputs = [numbered(2, &cmp, 1000, 40), numbered(1, &cmp, 1020, 40)];
    let mut failed = 0;
    for after in [0, 1, 5, 50, 200, 400] {
        left.store(after, Ordering::Relaxed);
        let built = MergedMemTable::build_in(&inputs, &plan(0, &[], 2), Sizes::SMALL);
        left.store(usize::MAX, Ordering::Relaxed);
        if let Err(e) = built {
            assert!(e.to_string().contains("the order is out of order"), "{e}");
            failed += 1;
        }
    }
    assert!(failed >= 5, "{failed}");
}

#[test]
fn it_says_what_it_left_out() {
    let cmp = InternalKeyComparator::default();
    let put = |k: &[u8], seq, a, b| -> Version { (k.to_vec(), seq, Value, vec![a, b]) };
    let delete = |k: &[u8], seq| -> Version { (k.to_vec(), seq, Deletion, Vec::new()) };
    let old = vec![put(b"a", 1, 7, 10), put(b"b", 2, 7, 20), put(b"c", 3, 8, 30), delete(b"d", 4)];
    let new = vec![put(b"a", 5, 9, 1), delete(b"b", 6), put(b"c", 7, 9, 2), put(b"d", 8, 9, 3)];
    let [old, new] = [old, new].map(|entries| fill(1, &cmp, &Model { entries, ranges: Vec::new() }));
    let (_, left_out) = merge(&[new, old], &plan(8, &[], 2), Sizes::SMALL);
    let data_size = 4 * 9 + 3 * 2;
    assert_eq!(left_out, LeftOut { entries: 4, deletes: 1, data_size, bytes_in_logs: 0 }, "the values are inline");
}

#[test]
fn the_memory_is_the_inputs_and_its_own() {
    let cmp = InternalKeyComparator::default();
    let manager = WriteBufferManager::new_write_buffer_manager(0, false);
    let table = |id: u64| {
        let table = MemTable::charging(id, cmp.clone(), 4096, &MemTableFilter::default(), Some(&manager), None);
        (0..100).for_each(|i| table.add(id * 100 + i, Value, format!("key{i}").as_bytes(), b"value"));
        table.mark_immutable();
        SealedTable::Plain(Arc::new(table))
    };
    let inputs = [table(2), table(1)];
    let of_inputs: usize = inputs.iter().map(|t| t.memory_usage()).sum();
    assert_eq!(manager.get_usage(), of_inputs);
    let plan = MergePlan { manager: Some(&manager), ..plan(MAX_SEQUENCE, &[], 1) };
    let (merged, left_out) = merge(&inputs, &plan, Sizes::USUAL);
    assert_eq!(left_out.entries, 100);
    // 16 bytes per entry, a sixteenth of 8 bytes in the level above, and padding to cache lines.
    let own = merged.own_memory_usage();
    assert!((1600..1600 + 3 * 8 * 32).contains(&own), "{own}");
    assert_eq!(manager.get_usage(), of_inputs + own);
    assert_eq!(manager.get_mutable_usage(), 0);
    assert_eq!(merged.memory_usage(), of_inputs + own);
    drop(inputs);
    let (again, _) = merge(&[SealedTable::Merged(Arc::clone(&merged))], &plan, Sizes::USUAL);
    drop(merged);
    assert_eq!(manager.get_usage(), of_inputs + own, "the old pointers are gone, what they lead to is not");
    let mut it = again.iter();
    drop(again);
    it.seek_to_last();
    assert_eq!((key::user_key(it.key()), it.value()), (&b"key99"[..], &b"value"[..]));
    drop(it);
    assert_eq!(manager.get_usage(), 0);
}

/// A merged memtable has its own tombstones and filter; those of its inputs are freed with their last reader.
#[test]
fn filters_and_tombstones_of_inputs_are_charged_until_their_readers_go() {
    let cmp = InternalKeyComparator::default();
    let manager = WriteBufferManager::new_write_buffer_manager(0, false);
    let filter = MemTableFilter { bytes: 1 << 10, whole_keys: true, prefixes: None };
    let table = |id: u64| {
        let table = MemTable::charging(id, cmp.clone(), 4096, &filter, Some(&manager), None);
        (0..10).for_each(|i| table.add(id * 100 + i, Value, format!("key{i}").as_bytes(), b"value"));
        (10..40).for_each(|i| table.add(id * 100 + i, RangeDeletion, format!("a{i}").as_bytes(), &[b'b'; 100]));
        table.mark_immutable();
        SealedTable::Plain(Arc::new(table))
    };
    let inputs = [table(2), table(1)];
    let of_inputs: usize = inputs.iter().map(SealedTable::memory_usage).sum();
    let filter = MemTableFilter { bytes: 2 << 10, ..filter.clone() };
    let plan = MergePlan { manager: Some(&manager), filter: &filter, ..plan(MAX_SEQUENCE, &[], 1) };
    let (merged, _) = merge(&inputs, &plan, Sizes::USUAL);
    assert_eq!(manager.get_usage(), of_inputs + merged.own_memory_usage());
    assert_eq!(merged.filled_memory(), of_inputs, "no less is waiting for a flush");
    let superseded = inputs.each_ref().map(SealedTable::superseded);
    let left: u64 = superseded.iter().filter_map(HeldMemory::bytes).sum();
    assert!(left > 2 * (1024 + 30 * 103), "{left} bytes of filters and tombstones");
    drop(inputs);
    assert!(superseded.iter().all(|held| held.bytes().is_none()));
    assert_eq!(manager.get_usage(), merged.memory_usage());
    assert_eq!(merged.memory_usage(), of_inputs - left as usize + merged.own_memory_usage());
    drop(merged);
    assert_eq!(manager.get_usage(), 0);
}

#[test]
fn a_filter_leaves_lookups_and_seeks_out() {
    let cmp = InternalKeyComparator::default();
    let extractor = SliceTransform::create_fixed_prefix(4);
    let filter = MemTableFilter { bytes: 4096, whole_keys: true, prefixes: Some(extractor.clone()) };
    let plan = MergePlan { filter: &filter, ..plan(0, &[], 2) };
    let inputs = [numbered(2, &cmp, 10_000, 20), numbered(1, &cmp, 20_010, 20)];
    let (table, _) = merge(&inputs, &plan, Sizes::SMALL);
    assert_eq!(table.bloom.as_ref().map(Bloom::memory_usage), Some(4096));
    let present = |i: u64| get(&[SealedTable::Merged(Arc::clone(&table))], format!("key{i}").as_bytes(), MAX_SEQUENCE);
    assert!((10_000..10_020).chain(20_010..20_030).all(|i| present(i).base == Some(i.to_le_bytes().to_vec())));
    assert_eq!((present(10_020).base, present(30_000).base), (None, None));
    let seek = Arc::new(PrefixSeek::new(extractor, false, None, true));
    let mut it = table.iter_by_prefix(&seek);
    let target = |user: &[u8]| InternalKey::new(user, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
    let mut lands = |on: bool, user: &[u8]| {
        seek.begin(on);
        it.seek(target(user).as_bytes());
        let forward = it.valid();
        it.seek_for_prev(target(user).as_bytes());
        (forward, it.valid(), seek.end())
    };
    assert_eq!(lands(true, b"key19"), (true, true, false));
    assert_eq!(lands(true, b"keX2"), (false, false, true), "the filter lacks the prefix");
    assert_eq!(lands(false, b"keX2"), (true, false, false));
}

/// Reads values in logs through a ring whose reads complete in any order.
fn log_reads(fs: &MemFileSystem) -> LogReads {
    let limits = BatchLimits { memory_bytes: 1 << 20, huge_pages: false, ..BatchLimits::default() };
    let io = fs.batch_io(BatchKind::Uring, &limits).unwrap();
    let windows = Arc::new(Share::of(&Arc::default()));
    LogReads { io, throttle: None, together: 1, memory: 1 << 20, windows, counts: Arc::default() }
}

/// An index table stores slots, not values: every access resolves them, and counts refer to the values.
#[test]
fn merged_index_tables_give_values_and_not_their_slots() {
    let cmp = InternalKeyComparator::default();
    let fs = MemFileSystem::new();
    let path = Path::new("/log");
    let mut log = fs.create(path, WriteOptions::default()).unwrap();
    // As in the first block of a log, after a header.
    log.append(&[b'x'; 2000]).unwrap();
    log.flush().unwrap();
    let file = |number| {
        let file = fs.open_random(path, false).unwrap();
        Arc::new(LogFile::new(number, path.to_owned(), file, false))
    };
    let (first, second) = (file(7), file(8));
    let table = |id: u64, log: &Arc<LogFile>| {
        let table = MemTable::new(id, cmp.clone(), 4096).with_values_in_log(8);
        for i in 0..40_u64 {
            let seq = id * 100 + i;
            let key = [b'k', (i * (2 - id % 2)) as u8];
            match i % 3 {
                0 => table.add(seq, Deletion, &key, b""),
                1 => table.add(seq, Value, &key, b"inline"),
                _ => {
                    let at = LoggedValue { log, offset: 100 + i };
                    table.add_logged(seq, Value, &key, &[b'x'; 500], Some(at));
                }
            }
        }
        SealedTable::Plain(Arc::new(table))
    };
    let inputs = [table(2, &second), table(1, &first)];
    let (merged, left_out) = merge(&inputs, &plan(1000, &[], 2), Sizes::SMALL);
    // Every second of the older table's 40 keys is also in the newer table; every third key has a value in a log.
    assert_eq!((left_out.entries, left_out.bytes_in_logs), (20, 7 * 500), "{left_out:?}");
    let mut logs = merged.log_values().expect("an index table").numbers();
    logs.sort_unstable();
    assert_eq!(logs, [7, 8], "both logs are held");
    let merged = SealedTable::Merged(merged);
    check_itself(&merged, &cmp);
    for key in 0..=80_u8 {
        let both = |tables: &[SealedTable]| get(tables, &[b'k', key], 1000);
        assert_eq!(both(std::slice::from_ref(&merged)), both(&inputs), "{key}");
    }
    // As a flush reads it, from several places, and as an iterator that prepares values on demand.
    let want = entries(&merged);
    assert!(want.iter().any(|(_, value)| value[..] == [b'x'; 500]) && want.iter().any(|(_, v)| v == b"inline"));
    let (mut ahead, mut unprepared) = (merged.iter_all(Some(&log_reads(&fs))), merged.iter_unprepared());
    for from in (0..want.len()).step_by(7) {
        ahead.seek(&want[from].0);
        unprepared.seek(&want[from].0);
        for (key, value) in &want[from..] {
            assert!(unprepared.as_mut().prepare_value());
            assert_eq!((ahead.key(), ahead.value()), (&key[..], &value[..]));
            assert_eq!((unprepared.key(), unprepared.value()), (&key[..], &value[..]));
            ahead.next();
            unprepared.next();
        }
        assert!(!ahead.valid() && !unprepared.valid());
    }
    assert!(merged.filled_memory() < merged.memory_usage());
    assert_eq!(merged.filled_memory(), inputs.iter().map(SealedTable::memory_usage).sum::<usize>());
}

/// The memory of a flush's windows is counted while they use it, also if a value is larger than a window.
#[test]
fn the_memory_of_windows_is_counted() {
    let fs = MemFileSystem::new();
    let path = Path::new("/log");
    fs.write_all(path, &vec![b'x'; 8 << 20]).unwrap();
    let log = Arc::new(LogFile::new(1, path.to_owned(), fs.open_random(path, false).unwrap(), false));
    let sum = Arc::new(AtomicUsize::new(0));
    let reads = LogReads { windows: Arc::new(Share::of(&sum)), ..log_reads(&fs) };
    let table = MemTable::new(1, InternalKeyComparator::default(), 4096).with_values_in_log(8);
    let sizes = [1000, 7 << 20, 1000, 2 << 20, 2000];
    for (i, len) in (1..).zip(sizes) {
        let at = LoggedValue { log: &log, offset: 100 };
        table.add_logged(i, Value, &i.to_be_bytes(), &vec![b'x'; len], Some(at));
    }
    let table = SealedTable::Plain(Arc::new(table));
    let counted = || sum.load(Ordering::Relaxed);
    // Two tables at once, as in a flush.
    let (mut one, mut two) = (table.iter_all(Some(&reads)), table.iter_all(Some(&reads)));
    assert_eq!(counted(), 0);
    for (it, others) in [(&mut one, 0), (&mut two, 1)] {
        let before = counted();
        it.seek_to_first();
        let mut most = 0;
        for len in sizes {
            assert_eq!(it.value().len(), len);
            assert!(counted() - before >= len, "{} for a value of {len} bytes, {others} others", counted() - before);
            most = most.max(counted() - before);
            it.next();
        }
        assert!(!it.valid() && (7 << 20..24 << 20).contains(&most), "{most}");
    }
    drop(one);
    assert!(counted() > 0);
    drop(two);
    assert_eq!(counted(), 0);
    // Each table has the intended number of reads in flight, plus a slot for the value being taken.
    for (together, depth) in [(1, 64), (2, 32), (16, 4), (32, 2), (40, 2)] {
        assert_eq!(LogReads::memory_for(together), together * Pieces::memory_in_flight(depth), "{together}");
    }
}
