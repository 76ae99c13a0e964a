use std::sync::Arc;

use super::*;
use crate::compaction::file_ranges::FileRanges;
use crate::compaction::merge::testing::VecRun;
use crate::compaction::merge::{KeyPrefixes, Merger};
use crate::compaction::model::{Entry, Model, random_history};
use crate::compaction::tombstones::for_file;
use crate::compaction_filter::{CompactionFilter, SharedFilter};
use crate::memtable::{MemTable, MemTableFilter, MergePlan, MergedMemTable, SealedTable};
use crate::range_del::{FragmentedRangeTombstones, RangeTombstone};
use crate::sync::atomic::AtomicBool;
use crate::version::FileMeta;
use rockmill_format::edit::FileEntry;
use rockmill_format::key::InternalKey;
use rockmill_format::{FormatError, InternalKeyComparator};

fn rules(snapshots: &[u64], bottommost: bool, below: Option<Vec<Vec<Arc<FileMeta>>>>) -> Rules {
    let below = below.map(|runs| runs.iter().map(|files| FileRanges::of(files)).collect());
    Rules { bottommost, below, ..Rules::new(InternalKeyComparator::default(), snapshots.to_vec()) }
}

fn file_over(smallest: &[u8], largest: &[u8]) -> Arc<FileMeta> {
    let entry = FileEntry {
        smallest: InternalKey::new(smallest, 1, ValueType::Value),
        largest: InternalKey::new(largest, 1, ValueType::Value),
        size: 1,
        ..FileEntry::default()
    };
    Arc::new(FileMeta::new(entry, Arc::default()))
}

/// Resolves `input`; returns the remaining entries and tombstones, and the counters.
fn resolve(input: &Model, rules: &Rules, runs: usize) -> (Model, ResolveStats) {
    let mut parts: Vec<Vec<(Vec<u8>, Vec<u8>)>> = vec![Vec::new(); runs.max(1)];
    for (i, (k, seq, t, v)) in input.entries.iter().enumerate() {
        parts[i % runs.max(1)].push((InternalKey::new(k, *seq, *t).as_bytes().to_vec(), v.clone()));
    }
    let runs = parts.into_iter().map(|p| VecRun::new(&rules.cmp, p)).collect();
    let list = input.ranges.iter().map(|(b, e, s)| RangeTombstone { begin: b.clone(), end: e.clone(), seq: *s });
    let tombstones =
        Tombstones::whole(vec![Arc::new(FragmentedRangeTombstones::new(&list.collect::<Vec<_>>(), &rules.cmp))]);
    let mut merger = Merger::new(runs, rules.cmp.clone(), KeyPrefixes::new(&rules.cmp, None), None, None).unwrap();
    let never = AtomicBool::new(false);
    let mut r = Resolver::new(&mut merger, rules, &tombstones, [&never; 3]).unwrap();
    let mut out = Model::default();
    while r.next_survivor().unwrap() {
        let e = ParsedInternalKey::parse(r.key()).unwrap();
        let new = out.entries.last().is_none_or(|l: &Entry| l.0 != e.user_key);
        assert_eq!(r.is_new_user_key(), new, "{e:?}");
        out.entries.push((e.user_key.to_vec(), e.sequence, e.value_type, r.value().to_vec()));
    }
    let stats = r.stats();
    for_file(&tombstones.cursor(rules), None, None, rules, |b, e, s| {
        out.ranges.push((b.to_vec(), e.to_vec(), s));
        Ok(())
    })
    .unwrap();
    (out, stats)
}

/// `"k5 put, k4 del"` and the like.
fn entries(text: &str) -> Vec<Entry> {
    text.split(", ")
        .filter(|s| !s.is_empty())
        .map(|s| {
            let (key, kind) = s.split_once(' ').unwrap();
            let value_type = match kind {
                "put" => ValueType::Value,
                "del" => ValueType::Deletion,
                "sdel" => ValueType::SingleDeletion,
                "merge" => ValueType::Merge,
                other => panic!("{other}"),
            };
            let value = if matches!(kind, "put" | "merge") { s.as_bytes().to_vec() } else { Vec::new() };
            (key[..1].into(), key[1..].parse().unwrap(), value_type, value)
        })
        .collect()
}

/// The survivors of `input`, written as `entries` reads them.
fn survivors(input: &str, snapshots: &[u64], place: Place) -> String {
    let below = match place {
        Place::Flush | Place::Bottom => None,
        Place::Middle => Some(vec![vec![file_over(b"m", b"z")]]),
    };
    let r = rules(snapshots, matches!(place, Place::Bottom), below);
    let (out, stats) = resolve(&Model { entries: entries(input), ranges: Vec::new() }, &r, 1);
    assert_eq!(stats.input_records as usize, entries(input).len(), "every entry is counted once");
    assert_eq!(stats.output_records as usize, out.entries.len());
    let word = |t: ValueType| match t {
        ValueType::Value => "put",
        ValueType::Deletion => "del",
        ValueType::SingleDeletion => "sdel",
        _ => "merge",
    };
    let text = |e: &Entry| format!("{}{} {}", String::from_utf8_lossy(&e.0), e.1, word(e.2));
    out.entries.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// The place of a test's output. Below `Middle` there is one file with keys from "m" to "z".
#[derive(Clone, Copy)]
enum Place {
    Flush,
    Middle,
    Bottom,
}
use Place::{Bottom, Flush, Middle};

#[test]
fn survivors_are_those_of_rocksdb() {
    let cases: &[(&str, &[u64], Place, &str)] = &[
        // One version for each stripe.
        ("a9 put, a5 put, a3 put", &[], Flush, "a9 put"),
        ("a9 put, a5 put, a3 put", &[5], Flush, "a9 put, a5 put"),
        ("a9 put, a5 put, a3 put", &[4, 7], Flush, "a9 put, a5 put, a3 put"),
        ("a9 put, a5 put, a3 put", &[7], Flush, "a9 put, a5 put"),
        // Tombstones: kept by a flush, dropped if nothing can be below.
        ("a9 del, a5 put", &[], Flush, "a9 del"),
        ("a9 del, a5 put", &[], Middle, ""),
        ("n9 del, n5 put", &[], Middle, "n9 del"),
        ("a9 del, a5 put, n9 del", &[], Bottom, ""),
        ("a9 del, a5 put", &[5], Middle, "a9 del, a5 put"),
        ("a9 del, a5 put", &[5], Bottom, "a9 del, a0 put"),
        ("a9 del", &[5], Middle, "a9 del"),
        // At the bottom, a tombstone is dropped even if not all snapshots see it, because nothing older remains.
        ("a9 del", &[5], Bottom, ""),
        ("a9 del, a7 put", &[5], Bottom, ""),
        ("a9 del, a7 put, a4 put", &[5], Bottom, "a9 del, a0 put"),
        // At the bottom, sequence numbers of entries that all snapshots see become zero.
        ("a9 put, a5 put", &[], Bottom, "a0 put"),
        ("a9 put, a5 put", &[6], Bottom, "a9 put, a0 put"),
        ("a9 merge", &[], Bottom, "a9 merge"),
        // Single deletes.
        ("a9 sdel, a5 put", &[], Flush, ""),
        ("a9 sdel, a5 put", &[5], Flush, "a9 sdel, a5 put"),
        ("a9 sdel", &[], Flush, "a9 sdel"),
        ("a9 sdel", &[], Middle, ""),
        ("n9 sdel", &[], Middle, "n9 sdel"),
        ("a9 sdel", &[5], Middle, "a9 sdel"),
        ("a9 put, a7 sdel, a5 put", &[], Bottom, "a0 put"),
        ("a9 sdel, a7 put, a5 sdel, a3 put", &[], Flush, ""),
        ("a9 sdel, a7 put, a5 sdel, a3 put", &[4], Flush, "a5 sdel, a3 put"),
        ("n9 sdel, n7 sdel", &[], Middle, "n7 sdel"),
        ("n9 sdel, n7 del, n5 put", &[], Middle, "n7 del"),
        // Merge operands keep what is below them, down to the base.
        ("a9 merge, a7 merge, a5 put, a3 put", &[], Flush, "a9 merge, a7 merge, a5 put"),
        ("a9 merge, a5 put", &[7], Flush, "a9 merge, a5 put"),
        ("a9 merge, a7 del, a5 put", &[], Flush, "a9 merge, a7 del"),
        ("a9 merge, a7 del, a5 put", &[], Bottom, "a9 merge"),
        ("a9 merge, a5 put", &[], Bottom, "a9 merge, a0 put"),
        ("a9 put, a7 merge, a5 put", &[], Flush, "a9 put"),
        // Different keys do not touch each other.
        ("a9 put, b8 put, b7 put, c1 del", &[], Flush, "a9 put, b8 put, c1 del"),
    ];
    for &(input, snapshots, place, expected) in cases {
        assert_eq!(survivors(input, snapshots, place), expected, "{input} with snapshots {snapshots:?}");
    }
}

/// A put that was at the bottom has sequence number 0; no snapshot is that old.
#[test]
fn a_single_delete_goes_with_a_put_from_the_bottom() {
    assert_eq!(survivors("a9 sdel, a0 put", &[], Bottom), "");
    assert_eq!(survivors("a9 sdel, a0 put", &[], Flush), "");
    assert_eq!(survivors("a9 sdel, a0 put", &[5], Bottom), "a9 sdel, a0 put");
}

#[test]
fn range_tombstones_hide_within_their_stripe() {
    let input = Model { entries: entries("a9 put, a5 put, b5 put"), ranges: vec![(b"a".into(), b"b".into(), 7)] };
    let (out, stats) = resolve(&input, &rules(&[], false, None), 1);
    assert_eq!(out.entries, entries("a9 put, b5 put"));
    assert_eq!((stats.hidden, out.ranges.len()), (1, 1));
    let (out, _) = resolve(&input, &rules(&[5], false, None), 1);
    assert_eq!(out.entries, entries("a9 put, a5 put, b5 put"));
    let lone = Model { entries: entries("a5 put"), ..input };
    let (out, stats) = resolve(&lone, &rules(&[], true, None), 1);
    assert!(out.entries.is_empty() && out.ranges.is_empty());
    assert_eq!(stats.range_deleted, 1);
}

#[test]
fn every_reader_sees_the_same_before_and_after() {
    for seed in 0..2000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut last, mut alive) = (0, [false; 256]);
        // Older data, in the files below: its keys are where the files are.
        let mut deeper = random_history(&mut rng, &mut last, rng_len(seed, 7), &mut alive);
        let input_len = rng.usize(1..120);
        let input = random_history(&mut rng, &mut last, input_len, &mut alive);
        let (bottommost, flush) = (rng.bool(), rng.bool());
        if bottommost {
            deeper = Model::default();
            // Single deletes of keys whose puts were below have no partner, which the contract also allows.
        }
        let below = (!flush && !bottommost).then(|| {
            let keys: Vec<_> = deeper.keys().into_iter().collect();
            // Tombstones of deeper levels hide only even deeper entries: none here.
            deeper.ranges.clear();
            vec![keys.chunks(5).map(|c| file_over(&c[0], &c[c.len() - 1])).collect()]
        });
        let mut snapshots: Vec<u64> = (0..rng.usize(0..5)).map(|_| rng.u64(1..=last)).collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let r = rules(&snapshots, bottommost, below);
        let (out, _) = resolve(&input, &r, rng.usize(1..9));
        let before = input.clone().plus(&deeper);
        let after = out.clone().plus(&deeper);
        before.assert_same(&after, &snapshots, &format!("seed {seed}, bottommost {bottommost}"));
        assert!(out.entries.len() <= input.entries.len());
        // Resolving again changes nothing that readers see, and never grows.
        let (again, _) = resolve(&out, &r, 1);
        after.assert_same(&again.clone().plus(&deeper), &snapshots, &format!("seed {seed}, again"));
        assert!(again.entries.len() <= out.entries.len(), "seed {seed}");
    }
}

fn rng_len(seed: u64, n: u64) -> usize {
    (seed % n * 10) as usize
}

#[test]
fn bad_entries_are_errors() {
    let run = |key: Vec<u8>| {
        let r = rules(&[], false, None);
        let tombstones = Tombstones::default();
        let never = AtomicBool::new(false);
        let input = VecRun { entries: vec![(key, Vec::new())], at: 0 };
        let mut merger = Merger::new(vec![input], r.cmp.clone(), KeyPrefixes::new(&r.cmp, None), None, None).unwrap();
        Resolver::new(&mut merger, &r, &tombstones, [&never; 3]).unwrap().next_survivor().unwrap_err()
    };
    assert_eq!(run(b"abc".to_vec()).kind(), ErrorKind::Corruption);
    assert_eq!(run(vec![0xee; 12]).kind(), ErrorKind::Corruption);
    let blob = InternalKey::new(b"k", 1, ValueType::BlobIndex).as_bytes().to_vec();
    let e = run(blob);
    assert_eq!(e.kind(), ErrorKind::NotSupported);
    assert!(e.message().contains("blob"), "{e}");
    let _: FormatError = ParsedInternalKey::parse(b"abc").unwrap_err();
}

#[test]
fn a_closing_store_stops_it() {
    let r = rules(&[], false, None);
    let tombstones = Tombstones::default();
    let (stop, never) = (AtomicBool::new(true), AtomicBool::new(false));
    let list =
        (0u32..5000).map(|i| (InternalKey::new(&i.to_be_bytes(), 1, ValueType::Value).as_bytes().to_vec(), vec![]));
    let mut merger = Merger::new(
        vec![VecRun::new(&r.cmp, list.collect())],
        r.cmp.clone(),
        KeyPrefixes::new(&r.cmp, None),
        None,
        None,
    )
    .unwrap();
    let mut resolver = Resolver::new(&mut merger, &r, &tombstones, [&stop, &never, &never]).unwrap();
    let end = loop {
        match resolver.next_survivor() {
            Ok(true) => {}
            other => break other,
        }
    };
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ShutdownInProgress);
    assert!(resolver.stats().input_records <= STOP_CHECK_ENTRIES);
}

/// Resolves with an operator that appends with commas: "key:seq=value" for a value, "key:seq+operand" for an operand.
fn merged(input: &str, snapshots: &[u64], bottommost: bool, ranges: &[(&str, &str, u64)]) -> String {
    filtered(input, snapshots, bottommost, ranges, None)
}

/// The same with a filter.
fn filtered(
    input: &str,
    snapshots: &[u64],
    bottommost: bool,
    ranges: &[(&str, &str, u64)],
    filter: Option<ByText>,
) -> String {
    let below = (!bottommost).then(|| vec![vec![file_over(b"m", b"z")]]).filter(|_| filter.is_some());
    let mut r = rules(snapshots, bottommost, below);
    r.merge_operator = Some(Arc::new(crate::merge_operator::StringAppendOperator::default()));
    r.filter = filter.clone().map(|f| FilterPlan::shared(SharedFilter::new(f), 3));
    let list = entries(input).into_iter().map(|(k, seq, t, _)| {
        let value = if matches!(t, ValueType::Value | ValueType::Merge) { seq.to_string() } else { String::new() };
        (InternalKey::new(&k, seq, t).as_bytes().to_vec(), value.into_bytes())
    });
    let mut merger = Merger::new(
        vec![VecRun::new(&r.cmp, list.collect())],
        r.cmp.clone(),
        KeyPrefixes::new(&r.cmp, None),
        None,
        None,
    )
    .unwrap();
    let ranges = ranges.iter().map(|&(b, e, seq)| RangeTombstone { begin: b.into(), end: e.into(), seq });
    let tombstones =
        Tombstones::whole(vec![Arc::new(FragmentedRangeTombstones::new(&ranges.collect::<Vec<_>>(), &r.cmp))]);
    let never = AtomicBool::new(false);
    let mut resolver = Resolver::new(&mut merger, &r, &tombstones, [&never; 3]).unwrap();
    let mut out = Vec::new();
    while resolver.next_survivor().unwrap() {
        let e = ParsedInternalKey::parse(resolver.key()).unwrap();
        let sign = match e.value_type {
            ValueType::Value => "=",
            ValueType::Merge => "+",
            _ => "-",
        };
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        out.push(format!("{}:{}{sign}{}", text(e.user_key), e.sequence, text(resolver.value())));
    }
    let stats = resolver.stats();
    assert_eq!(stats.input_records as usize, entries(input).len(), "every entry is counted once");
    let gone = stats.hidden + stats.obsolete + stats.range_deleted + stats.merged;
    if filter.is_none() {
        assert_eq!(stats.input_records, stats.output_records + gone, "{stats:?}");
    }
    out.join(" ")
}

/// Decides by an entry's value, which tests make its sequence number.
#[derive(Clone, Default)]
struct ByText {
    decisions: Vec<(&'static str, Decision)>,
    asked: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl ByText {
    fn decide(&self, kind: &str, level: u32, key: &[u8], value: &[u8]) -> Decision {
        assert_eq!(level, 3);
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        let name = format!("{}{}{kind}", text(key), text(value));
        self.asked.lock().push(name.clone());
        let found = self.decisions.iter().find(|(n, _)| *n == name);
        found.map_or(Decision::Keep, |(_, d)| d.clone())
    }
}

impl CompactionFilter for ByText {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        self.decide("=", level, key, value)
    }
    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        self.decide("+", level, key, operand)
    }
    fn name(&self) -> &str {
        "by text"
    }
}

#[test]
fn filters_decide_as_in_rocksdb() {
    use Decision::{Change, Purge, Remove, RemoveAndSkipUntil};
    let skip = |to: &str| RemoveAndSkipUntil(to.into());
    type Case = (&'static str, &'static [u64], bool, Vec<(&'static str, Decision)>, &'static str, &'static str);
    // Input, snapshots, bottommost (otherwise a file over m to z is below), decisions, survivors, calls of the filter.
    let cases: Vec<Case> = vec![
        // A removed value becomes a tombstone: it hides older versions, and stays if older data may be below.
        ("a9 put, a5 put, b3 put", &[], false, vec![("a9=", Remove)], "b:3=3", "a9= b3="),
        ("n9 put, n5 put", &[], false, vec![("n9=", Remove)], "n:9-", "n9="),
        ("n9 put, n5 put", &[], true, vec![("n9=", Remove)], "", "n9="),
        // Snapshots do not protect values, and the filter is not called for versions older than the newest.
        ("n9 put, n5 put", &[9], false, vec![("n9=", Remove)], "n:9-", "n9="),
        ("n9 put, n5 put", &[5], false, vec![("n9=", Remove), ("n5=", Remove)], "n:9- n:5=5", "n9="),
        // If the newest version is not a value, the filter is called neither for it nor for what it hides.
        ("n9 del, n5 put", &[5], false, vec![("n5=", Remove)], "n:9- n:5=5", ""),
        ("a9 put, b5 put", &[], true, vec![("a9=", Change(b"x".to_vec()))], "a:0=x b:0=5", "a9= b5="),
        ("a9 put, a5 put", &[5], false, vec![("a9=", Change(Vec::new()))], "a:9= a:5=5", "a9="),
        // Like a single delete: dropped together with the older put in its stripe.
        ("n9 put, n5 put", &[], false, vec![("n9=", Purge)], "", "n9="),
        ("n9 put", &[], false, vec![("n9=", Purge)], "n:9-", "n9="),
        ("n9 put", &[], true, vec![("n9=", Purge)], "", "n9="),
        // Skipped keys leave nothing, whatever their type.
        ("n9 put, n5 put, o4 merge, p3 put", &[5], false, vec![("n9=", skip("p"))], "p:3=3", "n9= p3="),
        ("n9 put, p3 put", &[], false, vec![("n9=", skip("n"))], "n:9=9 p:3=3", "n9= p3="),
        ("n9 put, p3 put", &[], false, vec![("n9=", skip("z"))], "", "n9="),
        // The filter is called for each operand, unless a snapshot sees it, but not for the base.
        ("a9 merge, a8 merge, a7 put", &[], false, vec![("a8+", Remove)], "a:9=7,9", "a9+ a8+"),
        ("a9 merge, a8 merge, a7 put", &[], false, vec![("a9+", Remove)], "a:8=7,8", "a9+ a8+"),
        ("a9 merge, a8 merge, a7 put", &[8], false, vec![("a9+", Remove), ("a8+", Remove)], "a:8=7,8", "a9+"),
        ("n9 merge, n8 merge", &[], false, vec![("n9+", Change(b"x".to_vec()))], "n:9+8,x", "n9+ n8+"),
        // If no operands are left, the value below them is the newest version.
        ("a9 merge, a7 put", &[], false, vec![("a9+", Remove)], "a:7=7", "a9+ a7="),
        ("a9 merge, a7 put", &[], false, vec![("a9+", Purge), ("a7=", Remove)], "", "a9+ a7="),
        ("a9 merge, b7 put", &[], false, vec![("a9+", Remove)], "b:7=7", "a9+ b7="),
        ("a9 merge, a8 merge, a7 put, b6 put", &[], false, vec![("a8+", skip("b"))], "b:6=6", "a9+ a8+ b6="),
        ("a9 merge, a8 merge, a7 put", &[], false, vec![("a8+", skip("a"))], "a:9=7,8,9", "a9+ a8+"),
    ];
    for (input, snapshots, bottommost, decisions, want, asked) in cases {
        let filter = ByText { decisions, ..ByText::default() };
        let got = filtered(input, snapshots, bottommost, &[], Some(filter.clone()));
        assert_eq!(got, want, "{input} {snapshots:?} {:?}", filter.decisions);
        assert_eq!(filter.asked.lock().join(" "), asked, "{input} {:?}", filter.decisions);
    }
}

/// RocksDB treats operands under a range tombstone like operands that the filter removed: the entry below them counts
/// as the newest version again. The filter is called for it, although the tombstone hides it, too. Whatever the
/// decision, nothing hidden reappears.
#[test]
fn behind_operands_under_a_range_tombstone_the_filter_is_asked_as_in_rocksdb() {
    use Decision::{Change, Keep, Purge, Remove};
    for decision in [Keep, Remove, Purge, Change(b"x".to_vec())] {
        for snapshots in [&[][..], &[6]] {
            let filter = ByText { decisions: vec![("a5=", decision.clone())], ..ByText::default() };
            let got = filtered("a9 merge, a8 merge, a5 put, b3 put", snapshots, true, &[("a", "b", 10)], {
                Some(filter.clone())
            });
            // A snapshot before the tombstone still sees the version; the filter decides about it, too.
            let seen = match (snapshots, &decision) {
                ([], _) | (_, Remove | Purge) => "b:0=3",
                (_, Change(_)) => "a:0=x b:0=3",
                _ => "a:0=5 b:0=3",
            };
            assert_eq!(got, seen, "{decision:?} {snapshots:?}");
            assert_eq!(filter.asked.lock().join(" "), "a9+ a8+ a5= b3=", "{decision:?} {snapshots:?}");
        }
    }
}

#[test]
fn operands_become_one_entry_within_a_stripe() {
    let all = "a9 merge, a8 merge, a7 put, a6 put, b5 merge, b4 merge";
    assert_eq!(merged(all, &[], false, &[]), "a:9=7,8,9 b:5+4,5");
    assert_eq!(merged(all, &[], true, &[]), "a:0=7,8,9 b:0=4,5", "the bottommost level holds the whole history");
    assert_eq!(merged(all, &[8], false, &[]), "a:9+9 a:8=7,8 b:5+4,5", "a snapshot parts the operands");
    assert_eq!(merged(all, &[8], true, &[]), "a:9+9 a:0=7,8 b:0=4,5");
    assert_eq!(merged(all, &[4], true, &[]), "a:9=7,8,9 b:5+5 b:0=4");
    assert_eq!(merged("a9 merge, a8 del, a7 put", &[], false, &[]), "a:9=9", "a tombstone is a base");
    assert_eq!(merged("a9 merge, a8 sdel, a7 put", &[], false, &[]), "a:9=9");
    assert_eq!(merged("a9 put, a8 merge, a7 put", &[], false, &[]), "a:9=9");
    assert_eq!(
        merged("a9 merge, a8 merge, a7 put", &[], false, &[("a", "b", 8)]),
        "a:9=8,9",
        "a range cuts the base off"
    );
    assert_eq!(merged("a9 merge, a7 merge", &[], false, &[("a", "b", 8)]), "a:9=9");
    assert_eq!(merged("a7 merge, a6 put", &[], false, &[("a", "b", 8)]), "", "all under a range");
}

/// The model as a memtable.
fn memtable_of(model: &Model) -> SealedTable {
    let table = MemTable::new(1, InternalKeyComparator::default(), 4096);
    for (key, seq, value_type, value) in &model.entries {
        table.add(*seq, *value_type, key, value);
    }
    for (begin, end, seq) in &model.ranges {
        table.add(*seq, ValueType::RangeDeletion, begin, end);
    }
    SealedTable::Plain(Arc::new(table))
}

/// What is in a memtable.
fn model_of(table: &SealedTable) -> Model {
    let (mut it, mut model) = (table.iter(), Model::default());
    it.seek_to_first();
    while it.valid() {
        let e = ParsedInternalKey::parse(it.key()).unwrap();
        model.entries.push((e.user_key.to_vec(), e.sequence, e.value_type, it.value().to_vec()));
        it.next();
    }
    let ranges = table.range_tombstones();
    model.ranges = ranges.iter().flat_map(|r| r.iter()).map(|(b, e, s)| (b.to_vec(), e.to_vec(), s)).collect();
    model
}

/// Memtables are merged by an index merge, then flushed, then compacted with older and newer data. No reader misses
/// what the merge left out, including single deletions, whichever snapshots have been released by then.
#[test]
fn an_index_merge_before_them_changes_no_resolution() {
    let mut gone = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut last, mut alive) = (0, [false; 256]);
        let older = random_history(&mut rng, &mut last, 80, &mut alive);
        let (mut truth, mut memtables, mut snapshots) = (older.clone(), Vec::new(), Vec::new());
        for _ in 0..3 {
            let history = random_history(&mut rng, &mut last, 60, &mut alive);
            truth = truth.plus(&history);
            memtables.insert(0, memtable_of(&history));
            if rng.bool() {
                snapshots.push(last - rng.u64(0..60));
            }
        }
        let filter = MemTableFilter::default();
        let plan = MergePlan {
            visible: last,
            snapshots: &snapshots,
            threads: 2,
            filter: &filter,
            manager: None,
            stop: &|| false,
        };
        let (merged, left_out) = MergedMemTable::build(&memtables, &plan).unwrap().unwrap();
        gone += left_out.entries;
        let merged = model_of(&SealedTable::Merged(Arc::new(merged)));
        let newer = random_history(&mut rng, &mut last, 60, &mut alive);
        truth = truth.plus(&newer);

        let mut left = snapshots.clone();
        left.retain(|_| rng.bool());
        let what = format!("seed {seed}");
        let (flushed, _) = resolve(&merged, &rules(&left, false, None), 2);
        truth.assert_same(&older.clone().plus(&flushed).plus(&newer), &left, &what);
        // With newer data first, so that its single deletions meet the flushed entries; or with older data first.
        let upper = resolve(&flushed.clone().plus(&newer), &rules(&left, false, None), 2).0;
        truth.assert_same(&older.clone().plus(&upper), &left, &what);
        let all = resolve(&older.clone().plus(&upper), &rules(&left, true, Some(Vec::new())), 2).0;
        truth.assert_same(&all, &left, &what);
        let lower = resolve(&older.plus(&flushed), &rules(&left, true, Some(Vec::new())), 2).0;
        truth.assert_same(&lower.clone().plus(&newer), &left, &what);
        let all = resolve(&lower.plus(&newer), &rules(&left, true, Some(Vec::new())), 2).0;
        truth.assert_same(&all, &left, &what);
    }
    assert!(gone > 1000, "only {gone} entries were left out");
}
