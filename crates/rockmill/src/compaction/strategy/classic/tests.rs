use super::*;
use crate::compaction::strategy::score::level_scores;
use crate::compaction::strategy::testing::{TreeSpec, numbers};
use crate::compaction::strategy::{Moment, RunningCompactions, pick};
use crate::options::CompactionStyle;
use crate::version::Version;

const MB: u64 = 1 << 20;

fn options(style: CompactionStyle) -> CfOptions {
    CfOptions {
        compaction_style: style,
        compaction_classic: true,
        level_compaction_dynamic_level_bytes: false,
        max_bytes_for_level_base: 100 * MB,
        max_bytes_for_level_multiplier: 5.0,
        ..CfOptions::default()
    }
}

fn next(v: &Arc<Version>, o: &CfOptions, running: &mut RunningCompactions) -> Option<Compaction> {
    let c = pick(v, o, running, &Moment::default())?;
    assert!(running.start(&c).depends_on.is_empty(), "no job waits for another: {c:?}");
    Some(c)
}

/// The levels and file numbers of a job's inputs.
fn inputs(c: &Compaction) -> Vec<(usize, Vec<u64>)> {
    c.inputs.iter().map(|(level, files)| (*level, numbers(files))).collect()
}

#[test]
fn each_table_of_l0_goes_down_alone_and_at_once() {
    let v = TreeSpec::new(4)
        .file(1, "a", "h", 40 * MB)
        .file(1, "i", "p", 40 * MB)
        .file(1, "q", "z", 10 * MB)
        .file(0, "c", "k", MB) // 4
        .file(0, "a", "z", MB)
        .build();
    let (o, mut running) = (options(CompactionStyle::Level), RunningCompactions::new());
    let first = next(&v, &o, &mut running).expect("one table is enough");
    assert_eq!(inputs(&first), [(0, vec![4]), (1, vec![1, 2])], "the oldest, and only what it overlaps");
    assert_eq!((first.output_level, first.output_run, first.bottommost), (1, 0, true));
    assert!(next(&v, &o, &mut running).is_none(), "one job at a time leaves L0, and L0 is not merged among itself");
    running.finish(1, &first);
    assert!(next(&v, &o, &mut running).is_some());
    // Nothing is below it, so it moves, although a newer table is above it.
    let v = TreeSpec::new(4).file(1, "p", "z", MB).file(0, "a", "c", MB).file(0, "b", "z", MB).build();
    let moved = next(&v, &o, &mut RunningCompactions::new()).unwrap();
    assert!(moved.trivial_move && inputs(&moved) == [(0, vec![2])], "{moved:?}");
}

/// A metamorphic test once hung here: no job took the table, and at the stop trigger all writers waited.
#[test]
fn a_table_of_l0_goes_down_beside_one_that_begins_where_a_range_tombstone_ends() {
    let v = TreeSpec::new(4)
        .open_file(1, "a", "m", 10 * MB)
        .file(1, "m", "z", 10 * MB) // 2
        .file(0, "c", "k", MB)
        .build();
    let (o, mut running) = (options(CompactionStyle::Level), RunningCompactions::new());
    let job = next(&v, &o, &mut running).expect("nothing is in its way");
    assert_eq!(inputs(&job), [(0, vec![3]), (1, vec![1])]);
}

#[test]
fn a_full_level_takes_nothing_until_what_makes_it_smaller_has_committed() {
    let v = TreeSpec::new(4)
        .file(2, "a", "c", 90 * MB)
        .file(1, "a", "f", 60 * MB)
        .file(1, "g", "z", 60 * MB) // 3
        .file(0, "h", "i", MB)
        .build();
    let (o, mut running) = (options(CompactionStyle::Level), RunningCompactions::new());
    let scores = level_scores(&v, &o);
    assert!(scores.scores[0] >= 1.0 && scores.scores[1] >= 1.0 && scores.pending_bytes > 0, "{scores:?}");
    // The level has 120 of 100 MB: one of its tables moves, and L0 waits although only the other one is in its way.
    let first = next(&v, &o, &mut running).unwrap();
    assert_eq!((first.start_level(), first.output_level), (1, 2));
    assert!(next(&v, &o, &mut running).is_none(), "what is leaving counts as there, and one job at a time leaves L1");
    // Jobs that are two levels apart run at once.
    let v = TreeSpec::new(5)
        .file(2, "a", "m", 300 * MB)
        .file(2, "n", "z", 300 * MB)
        .file(1, "a", "z", 50 * MB)
        .file(0, "a", "z", MB)
        .build();
    let mut running = RunningCompactions::new();
    let mut levels: Vec<usize> = std::iter::from_fn(|| next(&v, &o, &mut running)).map(|c| c.start_level()).collect();
    levels.sort_unstable();
    assert_eq!(levels, [0, 2]);
}

/// With dynamic level sizes, leveled compaction lets a full level wait for one that will receive much data. Here that
/// would never end, because nothing reaches the level before it has been emptied.
#[test]
fn a_full_level_goes_down_however_much_waits_above_it() {
    let mut t = TreeSpec::new(7).file(6, "a", "z", 10_000 * MB).file(5, "a", "z", 1000 * MB);
    t = t.file(4, "a", "k", 150 * MB).file(4, "l", "z", 150 * MB);
    for _ in 0..200 {
        t = t.file(0, "a", "z", 50 * MB);
    }
    let o = CfOptions {
        level_compaction_dynamic_level_bytes: true,
        max_bytes_for_level_multiplier: 10.0,
        ..options(CompactionStyle::Level)
    };
    let (v, mut running) = (t.build(), RunningCompactions::new());
    let scores = level_scores(&v, &o);
    assert_eq!(scores.base_level, 4, "{scores:?}");
    assert_eq!(next(&v, &o, &mut running).map(|c| c.start_level()), Some(4));
}

fn runs(mut t: TreeSpec, level: usize, runs: u64) -> TreeSpec {
    for run in 1..=runs {
        t = t.file(level, "a", "z", 4 * MB);
        t = if level > 0 { t.in_run(run) } else { t };
    }
    t
}

#[test]
fn a_level_of_runs_goes_down_as_one_when_it_has_as_many_as_it_may() {
    let o = options(CompactionStyle::Universal);
    let v = runs(runs(TreeSpec::new(4), 1, 3), 0, 3).build();
    assert!(next(&v, &o, &mut RunningCompactions::new()).is_none(), "three runs a level are allowed");
    // All six of L0, not four of them.
    let (v, mut running) = (runs(runs(TreeSpec::new(4), 1, 3), 0, 6).build(), RunningCompactions::new());
    let c = next(&v, &o, &mut running).unwrap();
    assert_eq!(inputs(&c), [(0, vec![9, 8, 7, 6, 5, 4])]);
    assert_eq!((c.output_level, c.output_run, c.bottommost), (1, 4, false));
    // The bytes that it will write count: L1 is then full.
    let c = next(&v, &o, &mut running);
    assert!(c.is_none(), "{c:?}");
    let (v, mut running) = (runs(runs(TreeSpec::new(4), 1, 4), 0, 4).build(), RunningCompactions::new());
    let c = next(&v, &o, &mut running).unwrap();
    assert_eq!((c.start_level(), c.output_level, c.inputs.len(), c.output_run), (1, 2, 4, 1));
    assert!(next(&v, &o, &mut running).is_none(), "L1 is full until its job has committed");
}

#[test]
fn the_last_level_merges_its_runs_in_place() {
    let o = options(CompactionStyle::Universal);
    let v = runs(TreeSpec::new(3).file(2, "a", "z", 90 * MB), 2, 3).build();
    let (v1, mut running) = (runs(runs(TreeSpec::new(3), 2, 4), 1, 4).build(), RunningCompactions::new());
    let c = next(&v, &o, &mut RunningCompactions::new()).unwrap();
    assert_eq!((c.start_level(), c.output_level, c.output_run, c.inputs.len()), (2, 2, 0, 4));
    assert!(c.bottommost && !c.trivial_move);
    let c = next(&v1, &o, &mut running).unwrap();
    assert_eq!(c.start_level(), 2, "it is full, and before it has merged nothing comes");
    assert!(next(&v1, &o, &mut running).is_none());
}

/// A trigger of one would make every level permanently full.
#[test]
fn a_level_may_have_two_runs_at_least() {
    let o = CfOptions { level0_file_num_compaction_trigger: 1, ..options(CompactionStyle::Universal) };
    let v = runs(TreeSpec::new(3), 2, 1).file(0, "a", "z", MB).build();
    assert!(next(&v, &o, &mut RunningCompactions::new()).is_none());
    assert!(!level_scores(&v, &o).needs_compaction());
    let v = runs(TreeSpec::new(3), 2, 2).build();
    assert_eq!(next(&v, &o, &mut RunningCompactions::new()).map(|c| c.output_run), Some(0));
}

/// Extra runs that another strategy left are merged first, and no new ones are made.
#[test]
fn classic_leveled_takes_the_tree_of_any_other_strategy() {
    let v = runs(TreeSpec::new(4).file(1, "a", "z", 20 * MB), 1, 2).file(0, "a", "z", MB).build();
    let (o, mut running) = (options(CompactionStyle::Level), RunningCompactions::new());
    let mut any = false;
    while let Some(c) = pick(&v, &o, &mut running, &Moment::default()) {
        running.start(&c);
        assert_eq!(c.output_run, 0, "{c:?}");
        any = true;
    }
    assert!(any);
}
