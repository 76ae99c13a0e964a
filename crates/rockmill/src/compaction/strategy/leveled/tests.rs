use super::*;
use rockmill_format::key::{InternalKey, ValueType};

use crate::compaction::strategy::aging::Moment;
use crate::compaction::strategy::score::level_scores;
use crate::compaction::strategy::testing::{TreeSpec, numbers};
use crate::compaction::strategy::{RunningCompactions, pick};
use crate::options::{CfOptions, CompactionPri};
use crate::version::Version;

const MB: u64 = 1 << 20;

fn options() -> CfOptions {
    CfOptions {
        level_compaction_dynamic_level_bytes: false,
        max_bytes_for_level_base: 10 * MB,
        max_bytes_for_level_multiplier: 10.0,
        target_file_size_base: 2 * MB,
        ..CfOptions::default()
    }
}

fn pick_one(v: &Arc<Version>, o: &CfOptions) -> Compaction {
    pick(v, o, &mut RunningCompactions::new(), &Moment::default()).expect("a compaction is due")
}

#[test]
fn nothing_to_do() {
    let v = TreeSpec::new(4).file(0, "a", "z", MB).file(1, "a", "z", MB).build();
    assert!(pick(&v, &options(), &mut RunningCompactions::new(), &Moment::default()).is_none());
}

#[test]
fn l0_takes_everything_that_overlaps() {
    let v = TreeSpec::new(4)
        .file(0, "a", "c", MB)
        .file(0, "b", "f", MB)
        .file(0, "e", "k", MB)
        .file(0, "x", "z", MB)
        .file(1, "a", "d", MB)
        .file(1, "j", "m", MB)
        .file(1, "w", "x", MB)
        .build();
    let c = pick_one(&v, &options());
    assert_eq!(c.reason, CompactionReason::LevelL0FilesNum);
    assert_eq!(numbers(&c.inputs[0].1), [3, 2, 1], "newest first, without the one that does not overlap");
    assert_eq!((c.inputs[1].0, numbers(&c.inputs[1].1)), (1, vec![5, 6]));
    assert!(c.bottommost && !c.trivial_move);
}

#[test]
fn sequential_l0_files_move() {
    let mut t = TreeSpec::new(4).file(1, "a", "b", MB);
    for (s, l) in [("c", "d"), ("e", "f"), ("g", "h"), ("i", "j")] {
        t = t.file(0, s, l, MB);
    }
    let c = pick_one(&t.build(), &options());
    assert!(c.trivial_move);
    assert_eq!(numbers(&c.inputs[0].1), [2, 3, 4, 5]);
    assert_eq!(c.inputs.len(), 1);
}

#[test]
fn a_move_that_changes_compression_is_a_rewrite() {
    use rockmill_format::compression::CompressionType;
    let v = TreeSpec::new(4).file(1, "a", "b", 20 * MB).file(1, "x", "y", MB).build();
    let mut o = options();
    assert!(pick_one(&v, &o).trivial_move);
    o.compression_per_level = vec![CompressionType::None, CompressionType::None, CompressionType::Lz4];
    let c = pick_one(&v, &o);
    assert!(!c.trivial_move);
    assert_eq!(c.compression, CompressionType::Lz4);
}

#[test]
fn the_cheapest_file_goes_first() {
    let v = TreeSpec::new(4)
        .file(1, "a", "c", 6 * MB)
        .file(1, "d", "f", 6 * MB)
        .file(1, "g", "i", 6 * MB)
        .file(2, "a", "b", 9 * MB)
        .file(2, "d", "e", MB)
        .file(2, "g", "h", 5 * MB)
        .build();
    let c = pick_one(&v, &options());
    assert_eq!((numbers(&c.inputs[0].1), numbers(&c.inputs[1].1)), (vec![2], vec![5]));
    assert_eq!(c.output_level, 2);
}

/// Files of L1 in the order in which each priority takes them: all of L1 is due, and files that were taken are busy.
#[test]
fn priorities_order_the_files_of_a_level() {
    let order = |pri| {
        let keys = |s: &str, l: &str, seqs: (u64, u64)| {
            let key = |k: &str, seq| InternalKey::new(k.as_bytes(), seq, ValueType::Value);
            (key(s, seqs.1), key(l, seqs.0), seqs)
        };
        let mut t = TreeSpec::new(4);
        for (s, l, size, seqs) in
            [("a", "c", 5, (10, 90)), ("d", "f", 8, (30, 40)), ("g", "i", 6, (20, 60)), ("j", "l", 7, (50, 50))]
        {
            let (smallest, largest, seqs) = keys(s, l, seqs);
            t = t.keys(1, smallest, largest, size * MB, seqs);
        }
        let v = t.file(2, "a", "b", 30 * MB).file(2, "d", "e", 9 * MB).file(2, "g", "h", MB).file(2, "j", "k", 20 * MB);
        let (v, mut cursors, mut order) = (v.build(), RunningCompactions::new(), Vec::new());
        cursors.set_cursor(1, InternalKey::new(b"f", 1, ValueType::Value));
        let o = CfOptions {
            max_bytes_for_level_base: MB,
            max_bytes_for_level_multiplier: 1000.0,
            compaction_pri: pri,
            ..options()
        };
        while let Some(c) = pick(&v, &o, &mut cursors, &Moment::default()) {
            order.push(numbers(&c.inputs[0].1));
            cursors.start(&c);
        }
        order
    };
    assert_eq!(order(CompactionPri::ByCompensatedSize), [[2], [4], [3], [1]]);
    assert_eq!(order(CompactionPri::OldestLargestSeqFirst), [[2], [4], [3], [1]]);
    assert_eq!(order(CompactionPri::OldestSmallestSeqFirst), [[1], [3], [2], [4]]);
    assert_eq!(order(CompactionPri::MinOverlappingRatio), [[3], [2], [4], [1]]);
    assert_eq!(order(CompactionPri::RoundRobin), [[3, 4]], "what lies behind the cursor, and nothing beside it");
}

/// The cursor moves past the files that were taken, and starts again after the last file. While a job runs, the level
/// waits.
#[test]
fn round_robin_goes_through_the_key_space() {
    let mut t = TreeSpec::new(4);
    for (s, l) in [("a", "c"), ("d", "f"), ("g", "i"), ("j", "l")] {
        t = t.file(1, s, l, 4 * MB).file(2, s, l, MB);
    }
    let v = t.build();
    // Two of the four files have to go down.
    let o = CfOptions { compaction_pri: CompactionPri::RoundRobin, ..options() };
    let mut cursors = RunningCompactions::new();
    let mut at = |expected: &[u64], next: &[u8]| {
        let c = pick(&v, &o, &mut cursors, &Moment::default()).expect("L1 is too large");
        assert_eq!(numbers(&c.inputs[0].1), expected);
        let key = c.next_cursor.clone().expect("it moves");
        assert_eq!(key.user_key(), next);
        let number = cursors.start(&c).number;
        assert!(pick(&v, &o, &mut cursors, &Moment::default()).is_none());
        cursors.finish(number, &c);
        cursors.set_cursor(1, key);
    };
    at(&[1, 3], b"g");
    at(&[5, 7], b"a");
    at(&[1, 3], b"g");
    cursors.set_cursor(1, InternalKey::new(b"h", 1, ValueType::Value));
    let c = pick(&v, &o, &mut cursors, &Moment::default()).expect("L1 is too large");
    assert_eq!((numbers(&c.inputs[0].1), c.next_cursor.expect("it moves").user_key()), (vec![7], &b"a"[..]));
}

/// Tables that move together with the one at the cursor count: as soon as the level fits, no more are taken.
#[test]
fn round_robin_takes_no_more_than_has_to_go() {
    let mut t = TreeSpec::new(4);
    for (s, l) in [("a", "b"), ("d", "e"), ("g", "h"), ("j", "k")] {
        t = t.file(1, s, l, 4 * MB);
    }
    // There is nothing below the first two files, 8 MiB; 6 MiB have to go down.
    let v = t.file(2, "g", "h", MB).build();
    let o = CfOptions { compaction_pri: CompactionPri::RoundRobin, ..options() };
    assert_eq!(numbers(&pick_one(&v, &o).inputs[0].1), [1, 2]);
}

/// A job's output tables end at the cursor of the output level, if it is within the job's range.
#[test]
fn round_robin_keeps_the_cursor_below_between_tables() {
    let v = TreeSpec::new(4).file(1, "b", "k", 12 * MB).file(2, "d", "m", MB).build();
    let split = |pri, cursor: &[u8]| {
        let mut cursors = RunningCompactions::new();
        cursors.set_cursor(2, InternalKey::new(cursor, 1, ValueType::Value));
        let o = CfOptions { compaction_pri: pri, ..options() };
        let c = pick(&v, &o, &mut cursors, &Moment::default()).expect("L1 is too large");
        assert_eq!(c.output_level, 2);
        c.split_key.map(|key| key.user_key().to_vec())
    };
    for (cursor, splits) in [("a", false), ("b", false), ("c", true), ("k", true), ("m", true), ("n", false)] {
        let expected = splits.then(|| cursor.as_bytes().to_vec());
        assert_eq!(split(CompactionPri::RoundRobin, cursor.as_bytes()), expected, "{cursor}");
        assert_eq!(split(CompactionPri::MinOverlappingRatio, cursor.as_bytes()), None, "{cursor}");
    }
}

/// A table with more tombstones than other entries has more weight than its size.
#[test]
fn tombstones_make_a_table_go_down_sooner() {
    use crate::version::TableNumbers;
    let t = TreeSpec::new(4).file(1, "a", "c", 6 * MB).file(1, "d", "f", 5 * MB);
    let v = t.file(2, "a", "c", MB).file(2, "d", "f", MB).build();
    let of = |deletions| TableNumbers {
        entries: 10_000,
        deletions,
        range_deletions: 0,
        raw_bytes: 12 * MB,
        raw_value_bytes: 10 * MB,
    };
    let _ = v.levels[1].base[0].numbers.set(of(5000));
    let _ = v.levels[1].base[1].numbers.set(of(8000));
    v.weigh_tombstones();
    let weight = |i: usize| v.levels[1].base[i].tombstone_weight.get().copied();
    // 20 MiB in 7,000 values, of which 11/24 are stored: 1,372 bytes each. The 6,000 excess tombstones count twice.
    assert_eq!((weight(0), weight(1)), (Some(0), Some(6000 * 2 * 1372)));
    let o = CfOptions { compaction_pri: CompactionPri::ByCompensatedSize, ..options() };
    assert_eq!(numbers(&pick_one(&v, &o).inputs[0].1)[0], 2);
}

#[test]
fn neighbours_that_share_a_key_go_together() {
    let spec = || TreeSpec::new(4).file(1, "a", "c", 6 * MB).file(1, "c", "f", 6 * MB).file(1, "f", "i", 6 * MB);
    let c = pick_one(&spec().build(), &options());
    assert_eq!(numbers(&c.inputs[0].1), [1, 2, 3]);
    // An exclusive end is a clean cut.
    let v = TreeSpec::new(4).open_file(1, "a", "c", 11 * MB).file(1, "c", "f", MB).file(2, "d", "e", MB).build();
    let c = pick_one(&v, &options());
    assert_eq!(numbers(&c.inputs[0].1), [1]);
    // With the middle one busy, none can be taken.
    let v = spec().build();
    v.levels[1].base[1].being_compacted.store(true, Atomic::Release);
    assert!(
        pick(
            &v,
            &CfOptions { max_bytes_for_level_base: MB, ..options() },
            &mut RunningCompactions::new(),
            &Moment::default()
        )
        .is_none()
    );
}

#[test]
fn inputs_grow_where_the_output_does_not() {
    let v = TreeSpec::new(4)
        .file(1, "a", "c", 8 * MB)
        .file(1, "d", "f", MB)
        .file(1, "g", "i", 8 * MB)
        .file(2, "a", "f", MB)
        .file(2, "g", "z", 50 * MB)
        .build();
    let c = pick_one(&v, &options());
    assert_eq!((numbers(&c.inputs[0].1), numbers(&c.inputs[1].1)), (vec![1, 2], vec![4]));
}

#[test]
fn a_blocked_l0_merges_among_itself() {
    let mut t = TreeSpec::new(4).file(1, "a", "z", MB);
    for _ in 0..8 {
        t = t.file(0, "a", "z", MB);
    }
    let v = t.build();
    v.levels[1].base[0].being_compacted.store(true, Atomic::Release);
    let mut cursors = RunningCompactions::new();
    let c = pick(&v, &options(), &mut cursors, &Moment::default()).unwrap();
    assert_eq!((c.output_level, c.inputs[0].0), (0, 0));
    assert_eq!(numbers(&c.inputs[0].1), [9, 8, 7, 6, 5, 4, 3, 2]);
    assert!(!c.bottommost && !c.trivial_move);
    let number = cursors.start(&c).number;
    assert!(pick(&v, &options(), &mut cursors, &Moment::default()).is_none());
    cursors.finish(number, &c);
    assert!(pick(&v, &options(), &mut cursors, &Moment::default()).is_some());
}

#[test]
fn outputs_never_cross() {
    // L1 [a,c] goes to L2 next to [d,e]; while it runs into L2 up to "k" nothing else may enter there.
    let v = TreeSpec::new(4)
        .file(1, "a", "c", 11 * MB)
        .file(1, "g", "h", 11 * MB)
        .file(2, "b", "k", MB)
        .file(3, "a", "z", MB)
        .build();
    let mut cursors = RunningCompactions::new();
    let c = pick(&v, &options(), &mut cursors, &Moment::default()).unwrap();
    cursors.start(&c);
    assert_eq!(numbers(&c.inputs[1].1), [3]);
    assert_eq!(numbers(&c.inputs[0].1), [1, 2], "both overlap only the one file below");
    assert!(!c.bottommost);
    assert_eq!(numbers(&c.grandparents), [4]);
    assert!(pick(&v, &options(), &mut cursors, &Moment::default()).is_none());
}

#[test]
fn marked_files_go_when_nothing_else_does() {
    let mut v = TreeSpec::new(4).file(1, "a", "c", MB).file(1, "d", "f", MB).build();
    let mut entry = v.levels[1].base[1].entry.clone();
    entry.marked_for_compaction = true;
    let purge = Arc::clone(&v.levels[1].base[1].purge);
    Arc::make_mut(&mut v).levels[1].base[1] = Arc::new(FileMeta::new(entry, purge));
    let c = pick_one(&v, &options());
    assert_eq!(c.reason, CompactionReason::FilesMarkedForCompaction);
    assert_eq!(numbers(&c.inputs[0].1), [2]);
}

mod random {
    //! Random trees, jobs picked until none is left, several running at once and ending in any order. Jobs are
    //! simulated on metadata: the outputs cover the same keys. After every step, the tree's invariants must hold.

    use super::*;
    use rockmill_format::edit::FileEntry;
    use rockmill_format::key::{InternalKey, ValueType};
    use std::collections::BTreeMap;

    /// The entries of each file: (key, sequence), so that whole histories can be followed.
    type Contents = BTreeMap<u64, Vec<(u8, u64)>>;

    struct Sim {
        version: Version,
        contents: Contents,
        next_file: u64,
        next_seq: u64,
        options: CfOptions,
    }

    impl Sim {
        fn add(&mut self, level: usize, mut entries: Vec<(u8, u64)>, epoch: u64) {
            entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
            let key = |(k, s): (u8, u64)| InternalKey::new(&[k], s, ValueType::Value);
            let number = self.next_file;
            self.next_file += 1;
            let entry = FileEntry {
                number,
                size: entries.len() as u64 * 10,
                smallest: key(entries[0]),
                largest: key(entries[entries.len() - 1]),
                epoch_number: epoch,
                largest_seqno: entries.iter().map(|e| e.1).max().unwrap(),
                oldest_ancester_time: epoch,
                file_creation_time: number,
                ..FileEntry::default()
            };
            self.contents.insert(number, entries);
            self.version.levels[level].push(Arc::new(FileMeta::new(entry, Arc::default())));
            let cmp = self.version.cmp.clone();
            self.version.levels[level].sort(level, &cmp);
        }

        /// The number of files serves as the time. Now and then, files that are due because of their age or of
        /// snapshots may go.
        fn moment(&self, rng: &mut fastrand::Rng) -> Moment {
            let now = if rng.bool() { self.next_file } else { 0 };
            Moment { now, oldest_snapshot: rng.u64(0..self.next_seq.max(2)) * u64::from(rng.bool()) }
        }

        fn flush(&mut self, rng: &mut fastrand::Rng) {
            let (from, width) = (rng.u8(..), rng.u8(1..=60));
            let n = rng.usize(1..20);
            let entries = (0..n)
                .map(|_| {
                    self.next_seq += 1;
                    (from.saturating_add(rng.u8(0..width)), self.next_seq)
                })
                .collect();
            self.add(0, entries, self.next_file);
        }

        /// Carries out a job. Versions of a key may be split over two outputs, as in RocksDB.
        fn carry_out(&mut self, c: &Compaction, rng: &mut fastrand::Rng) {
            let numbers: Vec<u64> = c.input_files().map(|f| f.number()).collect();
            for level in &mut self.version.levels {
                level.retain(|f| !numbers.contains(&f.number()));
            }
            let epoch = c.input_files().map(|f| f.entry.epoch_number).min().unwrap();
            if c.trivial_move {
                for n in numbers {
                    let entries = self.contents.remove(&n).unwrap();
                    self.add(c.output_level, entries, epoch);
                }
                return;
            }
            let mut all: Vec<(u8, u64)> = numbers.iter().flat_map(|n| self.contents.remove(n).unwrap()).collect();
            all.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
            if c.output_level == 0 {
                return self.add(0, all, epoch);
            }
            while !all.is_empty() {
                let n = rng.usize(1..=all.len().min(12));
                let rest = all.split_off(n);
                self.add(c.output_level, std::mem::replace(&mut all, rest), epoch);
            }
        }

        fn check(&self, seed: u64) {
            // For each key, versions must descend from the shallowest place to the deepest.
            let mut newest_allowed = [u64::MAX; 256];
            for (level, files) in self.version.levels.iter().enumerate() {
                for f in files {
                    if level == 0 {
                        // Each L0 file is a place of its own, newest first.
                        for &(k, s) in &self.contents[&f.number()] {
                            assert!(s < newest_allowed[k as usize], "seed {seed}: key {k} in L0 is too new");
                        }
                    }
                    for &(k, s) in &self.contents[&f.number()] {
                        assert!(s < newest_allowed[k as usize], "seed {seed}: key {k}@{s} too new for L{level}");
                        newest_allowed[k as usize] = s;
                    }
                }
                for w in files.runs().filter(|_| level > 0).flat_map(|run| run.windows(2)) {
                    let (a, b) = (w[0].entry.largest.as_bytes(), w[1].entry.smallest.as_bytes());
                    assert!(self.version.cmp.compare(a, b).is_lt(), "seed {seed}: L{level} overlaps");
                }
            }
        }
    }

    fn check_job(c: &Compaction, running: &[(u64, Compaction)], seed: u64) {
        let v = &c.version;
        for (level, files) in &c.inputs {
            assert!(!files.is_empty() && !any_busy(files), "seed {seed}: busy or empty input in L{level}");
        }
        let (s, l) = c.user_key_range().unwrap();
        for (_, r) in running {
            let (rs, rl) = r.user_key_range().unwrap();
            let crosses = s <= rl && l >= rs;
            assert!(r.output_level != c.output_level || c.output_level == 0 || !crosses, "seed {seed}: outputs cross");
        }
        if c.output_level > 0 {
            let taken: Vec<u64> = c.input_files().map(|f| f.number()).collect();
            let missed: Vec<u64> = v
                .overlapping(c.output_level, Some(s), Some(l))
                .iter()
                .map(|f| f.number())
                .filter(|n| !taken.contains(n))
                .collect();
            assert!(c.start_level() == c.output_level || missed.is_empty(), "seed {seed}: {missed:?} missed in {c:?}");
            if c.bottommost {
                for level in c.output_level + 1..v.levels.len() {
                    assert!(v.overlapping(level, Some(s), Some(l)).is_empty(), "seed {seed}: not bottommost");
                }
            }
        }
    }

    /// With every strategy, also if the strategy changes while jobs run.
    #[test]
    fn every_pick_keeps_newer_above_older() {
        use crate::compaction::strategy::{self, manual::ManualPick, tiered};
        use crate::options::CompactionStyle::{Level, Universal};
        for seed in 0..240 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let dynamic = rng.bool();
            let options = CfOptions {
                level_compaction_dynamic_level_bytes: dynamic,
                max_bytes_for_level_base: 400,
                max_bytes_for_level_multiplier: 3.0,
                target_file_size_base: 60,
                max_compaction_bytes: if rng.bool() { 0 } else { 500 },
                level0_file_num_compaction_trigger: rng.i32(2..5),
                ttl: if rng.bool() { 60 } else { 0 },
                periodic_compaction_seconds: if rng.bool() { 120 } else { 0 },
                compaction_style: if rng.bool() { Universal } else { Level },
                ..CfOptions::default()
            };
            let changes = rng.bool();
            let version = Version::empty(rng.usize(3..7), rockmill_format::InternalKeyComparator::default());
            let mut sim = Sim { version, contents: Contents::new(), next_file: 1, next_seq: 0, options };
            let mut cursors = RunningCompactions::new();
            let mut running: Vec<(u64, Compaction)> = Vec::new();
            let mut done = 0;
            for _ in 0..400 {
                if changes && rng.u8(0..40) == 0 {
                    let style = &mut sim.options.compaction_style;
                    *style = if *style == Level { Universal } else { Level };
                    sim.options.compaction_options_universal.allow_trivial_move = rng.bool();
                }
                match rng.u8(0..4) {
                    0 => sim.flush(&mut rng),
                    1 | 2 if running.len() < 4 => {
                        let v = Arc::new(sim.version.clone());
                        let manual = rng.u8(0..8) == 0;
                        let picked = if manual && sim.options.compaction_style == Universal {
                            match tiered::everything(&v, &sim.options, &cursors) {
                                ManualPick::Pick(c, _) => Some(*c),
                                _ => None,
                            }
                        } else if manual {
                            let level = rng.usize(0..v.levels.len() - 1);
                            let (a, b) = ([rng.u8(..)], [rng.u8(..)]);
                            let o = &sim.options;
                            let same = level > 0 && rng.bool();
                            let to = if same { level } else { level + 1 };
                            let busy_between = level > 0 && to > level && level < level_scores(&v, o).base_level;
                            if busy_between {
                                continue;
                            }
                            let limit = u64::MAX;
                            match strategy::manual::pick(
                                &v,
                                o,
                                &cursors,
                                level,
                                to,
                                Some(&a[..]).filter(|_| a < b),
                                Some(&b[..]).filter(|_| a < b),
                                limit,
                            ) {
                                ManualPick::Pick(c, _) => Some(*c),
                                _ => None,
                            }
                        } else {
                            strategy::pick(&v, &sim.options, &mut cursors, &sim.moment(&mut rng))
                        };
                        if let Some(c) = picked {
                            check_job(&c, &running, seed);
                            running.push((cursors.start(&c).number, c));
                        }
                    }
                    _ if !running.is_empty() => {
                        let (number, c) = running.swap_remove(rng.usize(0..running.len()));
                        cursors.finish(number, &c);
                        sim.carry_out(&c, &mut rng);
                        sim.check(seed);
                        done += 1;
                    }
                    _ => {}
                }
            }
            assert!(done > 10, "seed {seed}: only {done} jobs ran");
            assert_eq!(cursors.count(), running.len());
        }
    }
}
