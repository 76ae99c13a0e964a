//! Picks worked out by hand from RocksDB's rules (`compaction_picker_universal.cc` of 10.4).

use super::*;
use crate::compaction::strategy::aging::Moment;
use crate::compaction::strategy::pick;
use crate::compaction::strategy::testing::{TreeSpec, numbers};
use crate::options::CompactionStyle;

const MB: u64 = 1 << 20;

fn options() -> CfOptions {
    CfOptions { compaction_style: CompactionStyle::Universal, ..CfOptions::default() }
}

fn with(change: impl FnOnce(&mut UniversalCompactOptions)) -> CfOptions {
    let mut o = options();
    change(&mut o.compaction_options_universal);
    o
}

/// L0 files of these sizes, oldest first, all over the same keys; then levels with one file each.
fn tree(levels: usize, l0: &[u64], below: &[(usize, u64)]) -> Arc<Version> {
    let mut t = TreeSpec::new(levels);
    for size in l0 {
        t = t.file(0, "a", "z", size * MB);
    }
    for (level, size) in below {
        t = t.file(*level, "a", "z", size * MB);
    }
    t.build()
}

fn picked(v: &Arc<Version>, o: &CfOptions) -> Option<Compaction> {
    pick(v, o, &mut RunningCompactions::new(), &Moment::default())
}

/// Reason, numbers of the L0 inputs, levels of the others, output level.
type Shape = (CompactionReason, Vec<u64>, Vec<usize>, usize);

fn shape(c: &Compaction) -> Shape {
    let l0 = c.inputs.iter().find(|(l, _)| *l == 0).map_or(Vec::new(), |(_, f)| numbers(f));
    (c.reason, l0, c.inputs.iter().map(|i| i.0).filter(|l| *l > 0).collect(), c.output_level)
}

use CompactionReason::{
    FilesMarkedForCompaction as Marked, ManualCompaction as Manual, PeriodicCompaction as Periodic,
    UniversalSizeAmplification as Space, UniversalSizeRatio as Ratio, UniversalSortedRunNum as Count,
};

#[test]
fn fewer_runs_than_the_trigger_are_left_alone() {
    assert!(picked(&tree(7, &[1, 1, 1], &[]), &options()).is_none());
    assert!(picked(&tree(7, &[1, 1], &[(6, 1)]), &options()).is_none());
    assert!(picked(&tree(7, &[], &[]), &options()).is_none());
}

#[test]
fn everything_is_merged_when_the_oldest_run_is_a_small_part() {
    // 3 above 1: three hundred percent.
    let c = picked(&tree(7, &[1, 1, 1, 1], &[]), &options()).unwrap();
    assert_eq!(shape(&c), (Space, vec![4, 3, 2, 1], vec![], 6));
    assert!(c.bottommost && !c.trivial_move);
    let c = picked(&tree(7, &[2, 2], &[(5, 2), (6, 3)]), &options()).unwrap();
    assert_eq!(shape(&c), (Space, vec![2, 1], vec![5, 6], 6));
    // 5 above 3 is less than 200 percent; the newest four have similar sizes.
    let c = picked(&tree(7, &[1, 1, 1], &[(5, 2), (6, 3)]), &options()).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![3, 2, 1], vec![5, 6], 6));
}

#[test]
fn runs_are_merged_up_to_one_that_is_larger_than_all_before_it() {
    // Newest first 1 1 1 | 4 | 100: 4 is larger than 3 plus 1 %.
    let c = picked(&tree(7, &[4, 1, 1, 1], &[(6, 100)]), &options()).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![4, 3, 2], vec![], 0));
    // Before a level, the output is the level above it.
    let c = picked(&tree(7, &[1, 1, 1], &[(4, 4), (6, 100)]), &options()).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![3, 2, 1], vec![], 3));
    let c = picked(&tree(7, &[1, 1, 1], &[(4, 3), (6, 100)]), &options()).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![3, 2, 1], vec![4], 5));
    // 35 % more than 3 is enough for 4.
    let o = with(|u| u.size_ratio = 35);
    let c = picked(&tree(7, &[1, 1, 1], &[(4, 4), (6, 100)]), &o).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![3, 2, 1], vec![4], 5));
    // The newest does not match the next one: the search continues after it.
    let c = picked(&tree(7, &[2, 2, 1], &[(6, 100)]), &options()).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![2, 1], vec![], 5));
}

#[test]
fn runs_are_compared_with_the_last_one_when_sizes_are_to_be_similar() {
    let o = with(|u| u.stop_style = UniversalCompactionStopStyle::Similar);
    // In total, 1 + 1 would be enough for 2.
    let t = tree(7, &[2, 1, 1], &[(6, 100)]);
    assert_eq!(shape(&picked(&t, &options()).unwrap()), (Ratio, vec![3, 2, 1], vec![], 5));
    assert_eq!(shape(&picked(&t, &o).unwrap()), (Ratio, vec![3, 2], vec![], 0));
    // Nor may the next one be much smaller.
    let t = tree(7, &[5, 5, 9], &[(6, 100)]);
    assert_eq!(shape(&picked(&t, &options()).unwrap()), (Ratio, vec![3, 2, 1], vec![], 5));
    assert_eq!(shape(&picked(&t, &o).unwrap()), (Ratio, vec![2, 1], vec![], 5));
}

#[test]
fn widths_are_kept() {
    let o = with(|u| u.max_merge_width = 3);
    let c = picked(&tree(7, &[1, 1, 1, 1, 1], &[(6, 100)]), &o).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![5, 4, 3], vec![], 0));
    // Two of similar size are too few. Five runs are one too many: two runs are merged regardless of size, then at
    // least three.
    let o = with(|u| u.min_merge_width = 3);
    let c = picked(&tree(7, &[9, 2, 2], &[(5, 40), (6, 200)]), &o);
    assert!(c.is_none(), "{c:?}");
    let o = with(|u| u.min_merge_width = 2);
    let c = picked(&tree(7, &[9, 4, 1], &[(5, 40), (6, 200)]), &o).unwrap();
    assert_eq!(shape(&c), (Count, vec![3, 2], vec![], 0));
}

#[test]
fn no_more_runs_stay_than_may() {
    // 1 2 4 8 16 ...: no similar sizes. Of six runs, four may stay: three become one.
    let sizes = [(4, 20), (5, 60), (6, 500)];
    let c = picked(&tree(7, &[9, 4, 1], &sizes), &options()).unwrap();
    assert_eq!(shape(&c), (Count, vec![3, 2, 1], vec![], 3));
    // As many runs as the trigger may stay.
    assert!(picked(&tree(7, &[4, 1], &sizes[1..]), &options()).is_none());
    let o = with(|u| u.max_read_amp = 5);
    let c = picked(&tree(7, &[9, 4, 1], &sizes), &o).unwrap();
    assert_eq!(shape(&c), (Count, vec![3, 2], vec![], 0));
    let o = with(|u| u.max_read_amp = 6);
    assert!(picked(&tree(7, &[9, 4, 1], &sizes), &o).is_none());
    // By size: from memtables of 1 MiB, 500 MiB are reached with 1, 1.01, 2.03, 4.08 ... in eleven runs.
    let mut o = with(|u| u.max_read_amp = 0);
    o.write_buffer_size = MB as usize;
    assert!(picked(&tree(7, &[9, 4, 1], &sizes), &o).is_none());
    o.write_buffer_size = 256 * MB as usize;
    let c = picked(&tree(7, &[9, 4, 1], &sizes), &o).unwrap();
    assert_eq!(shape(&c), (Count, vec![3, 2, 1], vec![4], 4), "256, 258.6, 519.7: three runs");
}

#[test]
fn busy_runs_part_the_row() {
    let v = tree(7, &[1, 1, 1, 1, 1, 1], &[(6, 100)]);
    let (o, mut cursors, now) = (options(), RunningCompactions::new(), Moment::default());
    let first = pick(&v, &with(|u| u.max_merge_width = 2), &mut cursors, &now).unwrap();
    assert_eq!(shape(&first), (Ratio, vec![6, 5], vec![], 0));
    let number = cursors.start(&first).number;
    let second = pick(&v, &o, &mut cursors, &now).unwrap();
    assert_eq!(shape(&second), (Ratio, vec![4, 3, 2, 1], vec![], 5), "beside the first one, and older");
    cursors.start(&second);
    assert!(pick(&v, &o, &mut cursors, &now).is_none());
    cursors.finish(number, &first);
    // Busy runs of L0 come next to its runs.
    let third = pick(&v, &o, &mut cursors, &now).unwrap();
    assert_eq!(shape(&third), (Ratio, vec![6, 5], vec![], 0));
    // One busy file makes its whole level busy.
    let t = TreeSpec::new(7).file(0, "a", "z", MB).file(0, "a", "z", MB).file(0, "a", "z", MB);
    let v = t.file(6, "a", "c", MB).file(6, "d", "z", MB).build();
    v.levels[6].base[1].being_compacted.store(true, Atomic::Release);
    assert_eq!(shape(&picked(&v, &o).unwrap()), (Ratio, vec![3, 2, 1], vec![], 5));
}

/// Another job, perhaps of another strategy, may be about to write to a job's level.
#[test]
fn outputs_do_not_cross() {
    let v = tree(7, &[1, 1, 1], &[(6, 100)]);
    let (mut cursors, now) = (RunningCompactions::new(), Moment::default());
    let o = CfOptions { level0_file_num_compaction_trigger: 3, ..options() };
    let reserved = cursors.reserve(5, b"k", b"k");
    let c = pick(&v, &o, &mut cursors, &now).unwrap();
    assert_eq!(shape(&c), (Count, vec![3, 2], vec![], 0), "an ingestion puts a file into level 5");
    cursors.unreserve(reserved);
    let c = pick(&v, &o, &mut cursors, &now).unwrap();
    assert_eq!(shape(&c), (Ratio, vec![3, 2, 1], vec![], 5));
}

#[test]
fn a_job_for_space_leaves_room_for_new_files() {
    // Eight of nine runs are L0 files, and writers stop at ten: the newest files stay out as long as 90 % of the bytes
    // remain.
    let mut o = CfOptions { level0_stop_writes_trigger: 10, ..options() };
    let sizes = [30, 30, 30, 30, 30, 1, 1, 1];
    let c = picked(&tree(7, &sizes, &[(6, 20)]), &o).unwrap();
    assert_eq!(shape(&c), (Space, vec![5, 4, 3, 2, 1], vec![6], 6));
    // Only down to nine tenths.
    let c = picked(&tree(7, &[30, 30, 30, 30, 30, 30, 30, 30], &[(6, 20)]), &o).unwrap();
    assert_eq!(c.inputs[0].1.len(), 8);
    // With room enough none stays out.
    o.level0_stop_writes_trigger = 36;
    o.compaction_options_universal.max_merge_width = 20;
    let c = picked(&tree(7, &sizes, &[(6, 20)]), &o).unwrap();
    assert_eq!(c.inputs[0].1.len(), 8);
}

#[test]
fn output_is_compressed_while_old_runs_are_a_small_part() {
    let o = with(|u| u.compression_size_percent = 80);
    // 100 of 103 are older.
    let c = picked(&tree(7, &[1, 1, 1], &[(6, 100)]), &o).unwrap();
    assert_eq!((shape(&c).3, c.compression), (5, CompressionType::None));
    // 4 of 7 are older.
    let c = picked(
        &tree(7, &[4, 1, 1, 1], &[]),
        &with(|u| {
            u.compression_size_percent = 80;
            u.max_size_amplification_percent = 400;
        }),
    );
    assert_eq!(c.map(|c| (shape(&c).1, c.compression)), Some((vec![4, 3, 2], CompressionType::Snappy)));
    // Everything together always is.
    let c = picked(&tree(7, &[1, 1, 1, 1], &[]), &o).unwrap();
    assert_eq!(c.compression, CompressionType::Snappy);
}

#[test]
fn runs_that_do_not_overlap_move_when_they_may() {
    let spec = || {
        let t = TreeSpec::new(7).file(0, "a", "b", MB).file(0, "c", "d", MB).file(0, "e", "f", MB);
        t.file(5, "g", "h", MB).file(6, "i", "j", MB)
    };
    let o = with(|u| u.allow_trivial_move = true);
    let c = picked(&spec().build(), &o).unwrap();
    assert_eq!((shape(&c), c.trivial_move), ((Space, vec![3, 2, 1], vec![5, 6], 6), true));
    let c = picked(&spec().build(), &options()).unwrap();
    assert!(!c.trivial_move, "of several levels only with the option");
    let c = picked(&spec().file(0, "d", "e", MB).build(), &o).unwrap();
    assert!(!c.trivial_move);
    // L0 only, disjoint: merged without the option, too; with it, not into L0.
    let t = TreeSpec::new(7).file(0, "a", "b", MB).file(0, "c", "d", MB).file(0, "e", "f", MB);
    let v = t.file(6, "a", "z", 100 * MB).build();
    let c = picked(&v, &options()).unwrap();
    assert_eq!((shape(&c), c.trivial_move), ((Ratio, vec![3, 2, 1], vec![], 5), true));
    let c = picked(
        &TreeSpec::new(1)
            .file(0, "a", "b", MB)
            .file(0, "c", "d", MB)
            .file(0, "e", "f", MB)
            .file(0, "g", "h", MB)
            .build(),
        &o,
    )
    .unwrap();
    assert_eq!((c.output_level, c.trivial_move), (0, false));
}

#[test]
fn old_tables_are_rewritten_with_all_that_is_newer() {
    let spec = TreeSpec::new(7).file(6, "a", "z", 9 * MB).times(50, 100).file(0, "a", "z", MB).times(900, 900);
    let v = spec.build();
    let o = CfOptions { periodic_compaction_seconds: 500, ttl: 0, ..options() };
    let at = |now, o: &CfOptions| pick(&v, o, &mut RunningCompactions::new(), &Moment { now, oldest_snapshot: 0 });
    assert!(at(600, &o).is_none());
    let c = at(601, &o).unwrap();
    assert_eq!(shape(&c), (Periodic, vec![2], vec![6], 6));
    // `ttl` means the same, and the smaller of the two counts; the default is a month.
    assert!(at(401, &CfOptions { ttl: 300, ..o.clone() }).is_some());
    let month = 30 * 24 * 3600;
    assert!(at(100 + month, &options()).is_none());
    assert!(at(101 + month, &options()).is_some());
    // Busy files stay out; a single run must be due itself.
    v.levels[6].base[0].being_compacted.store(true, Atomic::Release);
    assert!(at(601, &o).is_none());
    v.levels[6].base[0].being_compacted.store(false, Atomic::Release);
    v.levels[0].base[0].being_compacted.store(true, Atomic::Release);
    assert_eq!(shape(&at(601, &o).unwrap()), (Periodic, vec![], vec![6], 6));
}

#[test]
fn marked_files_go_to_the_next_level_that_has_files() {
    let mark = |v: &Arc<Version>, level: usize, i: usize| {
        let mut next = Version::clone(v);
        let f = &next.levels[level].base[i];
        let mut entry = f.entry.clone();
        entry.marked_for_compaction = true;
        next.levels[level].base[i] = Arc::new(FileMeta::new(entry, Arc::clone(&f.purge)));
        Arc::new(next)
    };
    let t = TreeSpec::new(7).file(4, "a", "c", MB).file(4, "d", "f", MB).file(6, "b", "e", MB).file(6, "x", "z", MB);
    let v = t.build();
    let c = picked(&mark(&v, 4, 1), &options()).unwrap();
    assert_eq!(
        (shape(&c), numbers(&c.inputs[0].1), numbers(&c.inputs[1].1)),
        ((Marked, vec![], vec![4, 6], 6), vec![1, 2], vec![3])
    );
    assert!(picked(&mark(&v, 6, 1), &options()).is_none(), "the oldest run stays");
    // Files of one level, with everything older.
    let v = tree(1, &[4, 4, 4], &[]);
    let c = picked(&mark(&v, 0, 1), &options()).unwrap();
    assert_eq!(shape(&c), (Marked, vec![2, 1], vec![], 0));
    assert!(picked(&mark(&v, 0, 2), &options()).is_none(), "the oldest alone");
}

#[test]
fn a_manual_compaction_takes_everything() {
    let v = tree(7, &[1, 1], &[(3, 2), (6, 5)]);
    let mut cursors = RunningCompactions::new();
    let ManualPick::Pick(c, None) = everything(&v, &options(), &cursors) else { panic!("a job") };
    assert_eq!(shape(&c), (Manual, vec![2, 1], vec![3, 6], 6));
    v.levels[3].base[0].being_compacted.store(true, Atomic::Release);
    cursors.files_taken();
    assert!(matches!(everything(&v, &options(), &cursors), ManualPick::Conflict));
    assert!(matches!(everything(&tree(7, &[], &[]), &options(), &cursors), ManualPick::None));
    // The last run alone is rewritten, as in RocksDB.
    let ManualPick::Pick(c, None) = everything(&tree(7, &[], &[(6, 5)]), &options(), &cursors) else { panic!("a job") };
    assert_eq!((shape(&c), c.trivial_move), ((Manual, vec![], vec![6], 6), false));
    // The last level is not touched if it is reserved for files that are ingested behind.
    let mut v = Version::clone(&tree(7, &[1], &[(6, 5)]));
    v.reserves_last_level = true;
    let ManualPick::Pick(c, None) = everything(&Arc::new(v), &options(), &cursors) else { panic!("a job") };
    assert_eq!(shape(&c), (Manual, vec![1], vec![], 5));
}

#[test]
fn the_score_counts_runs_that_are_free() {
    let v = tree(7, &[1, 1], &[(3, 2), (6, 5)]);
    let s = super::super::score::level_scores(&v, &options());
    assert_eq!((s.scores[0], s.runs, s.pending_bytes, s.base_level), (1.0, 4, 0, 1));
    v.levels[3].base[0].being_compacted.store(true, Atomic::Release);
    let s = super::super::score::level_scores(&v, &options());
    assert_eq!((s.scores[0], s.runs), (0.75, 4));
}
