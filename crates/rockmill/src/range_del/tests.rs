use std::sync::Arc;

use rockmill_format::comparator::ReverseBytewiseComparator;
use rockmill_format::key::MAX_SEQUENCE;
use rockmill_format::{InternalKey, ValueType};

use super::*;

fn key(i: u32) -> Vec<u8> {
    format!("k{i:02}").into_bytes()
}

fn random_tombstones(rng: &mut fastrand::Rng, n: usize) -> Vec<RangeTombstone> {
    (0..n)
        .map(|_| RangeTombstone { begin: key(rng.u32(0..40)), end: key(rng.u32(0..40)), seq: rng.u64(1..30) })
        .collect()
}

fn orders() -> [InternalKeyComparator; 2] {
    [InternalKeyComparator::default(), InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator))]
}

/// The answer of a list of unfragmented tombstones.
fn covering(t: &[RangeTombstone], k: &[u8], snapshot: u64, cmp: &InternalKeyComparator) -> u64 {
    t.iter()
        .filter(|t| t.seq <= snapshot)
        .filter(|t| cmp.compare_user(&t.begin, k).is_le() && cmp.compare_user(k, &t.end).is_lt())
        .map(|t| t.seq)
        .max()
        .unwrap_or(0)
}

#[test]
fn fragments_say_what_the_tombstones_say() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for cmp in orders() {
            let n = rng.usize(0..12);
            let t = random_tombstones(&mut rng, n);
            let f = FragmentedRangeTombstones::new(&t, &cmp);
            for i in 0..41 {
                for snapshot in [0, 1, 7, 15, 29, MAX_SEQUENCE] {
                    let k = key(i);
                    assert_eq!(f.max_covering(&k, snapshot, &cmp), covering(&t, &k, snapshot, &cmp));
                }
            }
            let written: Vec<_> = f.iter().collect();
            assert_eq!((written.len(), written.is_empty()), (f.len(), f.is_empty()));
            for w in written.windows(2) {
                let ((b0, e0, s0), (b1, e1, s1)) = (w[0], w[1]);
                assert!(b0 == b1 && e0 == e1 && s0 > s1 || cmp.compare_user(e0, b1).is_le());
            }
            // Fragmenting fragments changes nothing.
            let again: Vec<_> = written
                .iter()
                .map(|(b, e, s)| RangeTombstone { begin: b.to_vec(), end: e.to_vec(), seq: *s })
                .collect();
            assert_eq!(FragmentedRangeTombstones::new(&again, &cmp).iter().collect::<Vec<_>>(), written);
        }
    }
}

#[test]
fn the_example_of_the_documentation_holds() {
    let t = |b: &str, e: &str, seq| RangeTombstone { begin: b.into(), end: e.into(), seq };
    let f = FragmentedRangeTombstones::new(
        &[t("a", "e", 5), t("c", "g", 3), t("k", "m", 9), t("x", "b", 4)],
        &InternalKeyComparator::default(),
    );
    assert_eq!(f.offsets, [0, 1, 3, 4, 4, 5]);
    assert_eq!(f.seqs, [5, 5, 3, 3, 9]);
}

#[test]
fn compaction_keeps_the_newest_of_each_stripe() {
    let cmp = InternalKeyComparator::default();
    let all = (1..=9).map(|seq| RangeTombstone { begin: b"a".into(), end: b"b".into(), seq }).collect::<Vec<_>>();
    let kept = |snapshots: &[u64]| {
        let f = FragmentedRangeTombstones::for_compaction(&all, &cmp, snapshots);
        f.iter().map(|t| t.2).collect::<Vec<_>>()
    };
    assert_eq!(kept(&[]), [9]);
    assert_eq!(kept(&[4]), [9, 4]);
    assert_eq!(kept(&[2, 3, 7]), [9, 7, 3, 2]);
    assert_eq!(kept(&[9, 12]), [9]);
}

/// Fragments in their usual form, or in layers, which are otherwise used only for many tombstones.
fn either(rng: &mut fastrand::Rng, t: &[RangeTombstone], cmp: &InternalKeyComparator) -> FragmentedRangeTombstones {
    FragmentedRangeTombstones::listing(t, cmp, if rng.bool() { 0 } else { usize::MAX })
}

fn nested(n: u32) -> Vec<RangeTombstone> {
    let key = |i: u32| format!("{i:08}").into_bytes();
    (0..n).map(|i| RangeTombstone { begin: key(i), end: key(4 * n - i), seq: u64::from(i) + 1 }).collect()
}

#[test]
fn layers_say_what_lists_say() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for cmp in orders() {
            let n = rng.usize(1..40);
            let t = random_tombstones(&mut rng, n);
            let listed = FragmentedRangeTombstones::listing(&t, &cmp, usize::MAX);
            let layered = FragmentedRangeTombstones::listing(&t, &cmp, 0);
            assert!(listed.is_empty() || layered.layers.is_some());
            assert_eq!(layered.iter().collect::<Vec<_>>(), listed.iter().collect::<Vec<_>>());
            assert_eq!(layered.extremes().collect::<Vec<_>>(), listed.extremes().collect::<Vec<_>>());
            assert_eq!((layered.len(), layered.is_empty()), (listed.len(), listed.is_empty()));
            for i in 0..41 {
                let (k, limit) = (key(i), key(rng.u32(0..41)));
                for snapshot in [0, 1, 7, 15, 29, MAX_SEQUENCE] {
                    assert_eq!(layered.max_covering(&k, snapshot, &cmp), covering(&t, &k, snapshot, &cmp));
                    assert_eq!(layered.fragment_at(&k, snapshot, &cmp), listed.fragment_at(&k, snapshot, &cmp));
                }
                let reaches = t.iter().any(|t| {
                    let full = cmp.compare_user(&t.begin, &t.end).is_lt();
                    let inside = cmp.compare_user(&t.begin, &limit).is_le() && cmp.compare_user(&t.end, &k).is_gt();
                    full && inside
                });
                // The answer for a range that ends before it begins does not matter.
                if cmp.compare_user(&k, &limit).is_le() {
                    assert_eq!(
                        (layered.reaches(&k, &limit, &cmp), listed.reaches(&k, &limit, &cmp)),
                        (reaches, reaches)
                    );
                }
            }
        }
    }
}

#[test]
fn nested_tombstones_take_memory_in_proportion() {
    let cmp = InternalKeyComparator::default();
    // In lists, 64,000 tombstones would need four billion numbers.
    for n in [4_000, 64_000] {
        let t = nested(n);
        let list = FragmentedRangeTombstones::new(&t, &cmp);
        assert_eq!(list.len(), (n as usize).pow(2));
        let bound = 200 * n as usize;
        assert!(list.memory_usage() < bound, "{n}: {} bytes, at most {bound}", list.memory_usage());
        for (k, snapshot, newest) in [(0, 9, 1), (n / 2, 9, 9), (n / 2, MAX_SEQUENCE, n / 2 + 1), (2 * n, 99, 99)] {
            let k = format!("{k:08}").into_bytes();
            assert_eq!(list.max_covering(&k, snapshot, &cmp), u64::from(newest));
        }
        let snapshot = u64::from(n / 2);
        let mut compaction = CompactionRangeDel::new(cmp.clone(), vec![snapshot]);
        compaction.add_memtable(Arc::new(list));
        let written = compaction.output(None, None, |_, _| false);
        // The newest over each piece, and in pieces with newer ones than the snapshot also the newest that the snapshot
        // sees.
        assert_eq!(written.len(), 3 * n as usize - 2);
        assert!(written.iter().all(|w| w.seq <= u64::from(n)));
        assert!(compaction.covers(format!("{:08}", 2 * n).as_bytes(), snapshot - 1));
        assert!(!compaction.covers(format!("{:08}", 2 * n).as_bytes(), u64::from(n)));
    }
}

#[test]
fn output_files_cost_what_reaches_into_them() {
    let cmp = InternalKeyComparator::default();
    let mut compaction = CompactionRangeDel::new(cmp.clone(), Vec::new());
    let t = nested(4_000);
    compaction.add_memtable(Arc::new(FragmentedRangeTombstones::new(&t, &cmp)));
    let keys: Vec<InternalKey> =
        (0..=16_000).step_by(8).map(|i| CompactionRangeDel::boundary(format!("{i:08}").as_bytes())).collect();
    let mut written = 0;
    for pair in keys.windows(2) {
        let out = compaction.output(Some(pair[0].as_bytes()), Some(pair[1].as_bytes()), |_, _| false);
        assert!(out.len() <= 9, "{}", out.len());
        written += out.len();
    }
    assert!(written >= 8_000, "{written}");
}

fn entry(user: &[u8], seq: u64) -> InternalKey {
    InternalKey::new(user, seq, ValueType::Value)
}

/// A file boundary: a point, or one extended by a tombstone.
fn random_boundaries(rng: &mut fastrand::Rng, cmp: &InternalKeyComparator) -> (InternalKey, InternalKey) {
    loop {
        let smallest = entry(&key(rng.u32(0..40)), rng.u64(0..30));
        let user = key(rng.u32(0..40));
        let largest = if rng.bool() { entry(&user, rng.u64(0..30)) } else { CompactionRangeDel::boundary(&user) };
        if cmp.compare(smallest.as_bytes(), largest.as_bytes()).is_lt() {
            return (smallest, largest);
        }
    }
}

/// True if the file with these boundaries may hold version `seq` of `user`.
fn inside(bounds: &(InternalKey, InternalKey), user: &[u8], seq: u64, cmp: &InternalKeyComparator) -> bool {
    // A file's tombstones never cover its largest key if that has sequence number 0: see `of_file`.
    let e = entry(user, seq);
    cmp.compare(bounds.0.as_bytes(), e.as_bytes()).is_le()
        && cmp.compare(e.as_bytes(), bounds.1.as_bytes()).is_le()
        && !(bounds.1.sequence() == 0 && e.as_bytes() == bounds.1.as_bytes())
}

type File = (Vec<RangeTombstone>, (InternalKey, InternalKey));

fn random_files(rng: &mut fastrand::Rng, cmp: &InternalKeyComparator) -> Vec<File> {
    (0..rng.usize(1..6))
        .map(|_| {
            let n = rng.usize(1..6);
            (random_tombstones(rng, n), random_boundaries(rng, cmp))
        })
        .collect()
}

#[test]
fn truncated_tombstones_cover_only_their_file() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for cmp in orders() {
            for (t, bounds) in random_files(&mut rng, &cmp) {
                let list = Arc::new(either(&mut rng, &t, &cmp));
                let cut = TruncatedRangeTombstones::of_file(list, &bounds.0, &bounds.1, &cmp);
                for i in 0..40 {
                    for seq in [0, 1, 5, 14, 15, 29, bounds.0.sequence(), bounds.1.sequence().min(30)] {
                        let k = key(i);
                        let want = if inside(&bounds, &k, seq, &cmp) { covering(&t, &k, 20, &cmp) } else { 0 };
                        assert_eq!(cut.max_covering(&k, seq, 20, &cmp), want, "{i}@{seq} in {bounds:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_compactions_coverage_agrees_with_asking_each_file() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for cmp in orders() {
            let files = random_files(&mut rng, &cmp);
            let memtable_len = rng.usize(0..4);
            let memtable = random_tombstones(&mut rng, memtable_len);
            let mut snapshots: Vec<u64> = (0..rng.usize(0..4)).map(|_| rng.u64(1..30)).collect();
            snapshots.sort_unstable();
            snapshots.dedup();
            let mut compaction = CompactionRangeDel::new(cmp.clone(), snapshots.clone());
            let list = Arc::new(either(&mut rng, &memtable, &cmp));
            compaction.add_memtable(list);
            for (t, bounds) in &files {
                let list = Arc::new(either(&mut rng, t, &cmp));
                compaction.add_file(list, &bounds.0, &bounds.1);
            }
            let newest = |k: &[u8], seq: u64, snapshot: u64| {
                let of_files = files
                    .iter()
                    .filter(|(_, bounds)| inside(bounds, k, seq, &cmp))
                    .map(|(t, _)| covering(t, k, snapshot, &cmp));
                of_files.max().unwrap_or(0).max(covering(&memtable, k, snapshot, &cmp))
            };
            // Forwards, backwards, then anywhere.
            let path = (0..41).chain((0..41).rev()).chain((0..60).map(|_| rng.u32(0..41)).collect::<Vec<_>>());
            for i in path {
                let k = key(i);
                for seq in [29, 20, 14, 3, 0] {
                    let stripe = snapshots.iter().copied().find(|&s| s >= seq).unwrap_or(MAX_SEQUENCE);
                    assert_eq!(compaction.covers(&k, seq), newest(&k, seq, stripe) > seq, "{i}@{seq} {snapshots:?}");
                }
            }
        }
    }
}

/// Divides the key space into output files. Checks that for every version and snapshot, the files' tombstones together
/// delete the same as the inputs' tombstones.
#[test]
fn output_files_together_delete_what_the_inputs_did() {
    let cmp = InternalKeyComparator::default();
    for seed in 0..500 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let n = rng.usize(0..8);
        let t = random_tombstones(&mut rng, n);
        let mut snapshots: Vec<u64> = (0..rng.usize(0..4)).map(|_| rng.u64(1..30)).collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let mut inputs = CompactionRangeDel::new(cmp.clone(), snapshots.clone());
        inputs.add_memtable(Arc::new(either(&mut rng, &t, &cmp)));

        // Points at which files begin; some share their user key with the file before.
        let mut points: Vec<InternalKey> = (0..12).map(|_| entry(&key(rng.u32(0..40)), rng.u64(1..30))).collect();
        points.sort_by(|a, b| cmp.compare(a.as_bytes(), b.as_bytes()));
        points.dedup();
        let files: Vec<&[InternalKey]> = points.chunks(rng.usize(1..5)).collect();
        let bottommost = rng.bool();
        let mut outputs = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let (first, last) = (&file[0], &file[file.len() - 1]);
            let lower = (i > 0).then(|| first.as_bytes());
            let upper = files.get(i + 1).map(|next| {
                if next[0].user_key() == last.user_key() {
                    last.clone()
                } else {
                    CompactionRangeDel::boundary(next[0].user_key())
                }
            });
            let written = inputs.output(lower, upper.as_ref().map(|u| u.as_bytes()), |_, _| bottommost);
            assert!(!bottommost || !snapshots.is_empty() || written.is_empty());
            let (mut smallest, mut largest) = (first.clone(), last.clone());
            for w in &written {
                assert!(cmp.compare(w.smallest.as_bytes(), w.largest.as_bytes()).is_le());
                if cmp.compare(w.smallest.as_bytes(), smallest.as_bytes()).is_lt() {
                    smallest = w.smallest.clone();
                }
                if cmp.compare(w.largest.as_bytes(), largest.as_bytes()).is_gt() {
                    largest = w.largest.clone();
                }
            }
            let kept: Vec<_> = written
                .iter()
                .map(|w| RangeTombstone { begin: w.begin.clone(), end: w.end.clone(), seq: w.seq })
                .collect();
            let list = Arc::new(FragmentedRangeTombstones::new(&kept, &cmp));
            if let Some((_, l)) = outputs.last().map(|(_, b): &(_, (InternalKey, InternalKey))| b) {
                assert!(cmp.compare(l.as_bytes(), smallest.as_bytes()).is_lt(), "files overlap");
            }
            let cut = TruncatedRangeTombstones::of_file(list, &smallest, &largest, &cmp);
            outputs.push((cut, (smallest, largest)));
        }
        let oldest = snapshots.first().copied().unwrap_or(MAX_SEQUENCE);
        for i in 0..40 {
            let k = key(i);
            for seq in 0..30 {
                // Versions that exist in the outputs, or that may exist in a deeper level because they are older.
                let present = points.iter().any(|p| p.as_bytes() == entry(&k, seq).as_bytes());
                let below = points.iter().filter(|p| p.user_key() == k).all(|p| p.sequence() > seq);
                for &at in snapshots.iter().chain([&MAX_SEQUENCE]) {
                    let before = covering(&t, &k, at, &cmp);
                    let after = outputs.iter().map(|(cut, _)| cut.max_covering(&k, seq, at, &cmp)).max().unwrap_or(0);
                    if bottommost && before <= oldest {
                        assert!(after <= before);
                    } else if present || below {
                        assert_eq!(after > seq, before > seq, "{i}@{seq} at {at}, snapshots {snapshots:?}");
                    }
                }
            }
        }
    }
}
