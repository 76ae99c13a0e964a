use super::*;
use crate::compaction::strategy::testing::{TreeSpec, numbers};
use crate::compaction::strategy::{Moment, RunningCompactions, pick};
use crate::options::CompactionStyle;
use crate::version::Version;
use rockmill_format::edit::FileEntry;

const MB: u64 = 1 << 20;

fn options(style: CompactionStyle) -> CfOptions {
    CfOptions {
        compaction_style: style,
        compaction_downforce: true,
        level_compaction_dynamic_level_bytes: false,
        max_bytes_for_level_base: 100 * MB,
        level0_file_num_compaction_trigger: 2,
        ..CfOptions::default()
    }
}

fn next(v: &Arc<Version>, o: &CfOptions, cursors: &mut RunningCompactions) -> Option<(Compaction, Vec<u64>)> {
    let c = pick(v, o, cursors, &Moment::default())?;
    let depends_on = cursors.start(&c).depends_on;
    Some((c, depends_on))
}

#[test]
fn l0_does_not_wait_for_the_job_that_leaves_it() {
    for style in [CompactionStyle::Level, CompactionStyle::Universal] {
        let mut t = TreeSpec::new(4).file(1, "a", "z", 99 * MB);
        for _ in 0..4 {
            t = t.file(0, "a", "z", MB);
        }
        let (v, o, mut cursors) = (t.build(), options(style), RunningCompactions::new());
        let (first, depends_on) = next(&v, &o, &mut cursors).unwrap();
        assert_eq!((numbers(&first.inputs[0].1), first.output_run), (vec![3, 2], 1), "{style:?}");
        assert!(depends_on.is_empty() && !first.bottommost);
        let (second, depends_on) = next(&v, &o, &mut cursors).unwrap();
        assert_eq!((numbers(&second.inputs[0].1), second.output_level, second.output_run), (vec![5, 4], 1, 2));
        assert_eq!(depends_on, [1], "the older tables of L0 must be gone first");
        assert!(
            second.older_runs().iter().flatten().any(|f| f.number() == 2),
            "its tombstones stay for what they hold"
        );
    }
}

#[test]
fn what_has_nothing_older_beside_it_moves_into_the_oldest_run_with_room() {
    let v = TreeSpec::new(4)
        .file(1, "a", "c", 80 * MB)
        .file(1, "e", "g", 80 * MB)
        .file(2, "a", "b", MB)
        .file(2, "e", "f", MB)
        .file(2, "f", "g", MB)
        .in_run(3)
        .build();
    let (o, mut cursors) = (options(CompactionStyle::Level), RunningCompactions::new());
    let (c, _) = next(&v, &o, &mut cursors).unwrap();
    // Table 1 fits into extra run 3 of level 2, above the tables of the base run that it overlaps.
    assert_eq!((numbers(&c.inputs[0].1), c.output_level, c.output_run), (vec![1], 2, 3));
    assert!(c.trivial_move && c.inputs.len() == 1);
    // With the option off, no table goes into an extra run, which may be gone before it arrives.
    let off = CfOptions { compaction_downforce: false, ..o.clone() };
    cursors = RunningCompactions::new();
    while let Some((c, _)) = next(&v, &off, &mut cursors) {
        assert_eq!(c.output_run, 0, "{c:?}");
    }
    let v = TreeSpec::new(4).file(1, "e", "g", 180 * MB).file(2, "a", "b", MB).build();
    let (c, _) = next(&v, &o, &mut RunningCompactions::new()).unwrap();
    assert_eq!((c.output_level, c.output_run, c.trivial_move), (2, 0, true));
}

#[test]
fn extra_runs_are_merged_with_all_that_lies_between() {
    let v = TreeSpec::new(4)
        .file(2, "a", "c", MB)
        .file(2, "d", "f", MB)
        .file(2, "g", "i", MB)
        .file(2, "b", "e", MB)
        .in_run(1)
        .file(2, "c", "d", MB)
        .in_run(2)
        .file(2, "h", "h", MB)
        .in_run(2)
        .build();
    let (o, mut cursors) = (options(CompactionStyle::Level), RunningCompactions::new());
    let (c, depends_on) = next(&v, &o, &mut cursors).unwrap();
    let inputs: Vec<_> = c.inputs.iter().map(|(level, files)| (*level, numbers(files))).collect();
    assert_eq!(inputs, [(2, vec![5]), (2, vec![4]), (2, vec![1, 2])], "runs from the newest to the base");
    assert_eq!((c.output_level, c.output_run, c.bottommost), (2, 0, true));
    assert!(depends_on.is_empty());
    // They are also merged without the option.
    cursors.finish(1, &c);
    let off = CfOptions { compaction_downforce: false, ..o };
    assert!(next(&v, &off, &mut RunningCompactions::new()).is_some_and(|(c, _)| c.output_run == 0));
}

#[test]
fn a_level_gets_no_more_extra_runs_than_it_may_have() {
    let mut t = TreeSpec::new(3).file(1, "a", "z", 99 * MB);
    for run in 1..=4 {
        t = t.file(1, "a", "z", MB).in_run(run);
    }
    for _ in 0..2 {
        t = t.file(0, "a", "z", MB);
    }
    let (v, o, mut cursors) = (t.build(), options(CompactionStyle::Level), RunningCompactions::new());
    assert_eq!(extra_depth(&v.cmp, &v.levels[1], |_| true), runs_max(&o));
    while let Some((c, _)) = next(&v, &o, &mut cursors) {
        assert!(c.output_level != 1 || c.output_run == 0, "{c:?}");
    }
}

/// A job gets two threads if others are idle; a job from L0 takes the last idle thread, other jobs leave one.
#[test]
fn idle_threads_share_a_job() {
    let split = |levels: TreeSpec, style, threads, idle| {
        let (v, o, mut cursors) = (levels.build(), options(style), RunningCompactions::new());
        cursors.set_threads(threads, idle);
        let (c, _) = next(&v, &o, &mut cursors).expect("a job is due");
        assert!(!c.trivial_move);
        assert_eq!(cursors.busy_threads(), c.subcompactions_max.max(1));
        assert_eq!(cursors.has_split_jobs(), c.subcompactions_max > 1);
        cursors.worked(1);
        assert_eq!((cursors.busy_threads(), cursors.count()), (0, 1), "it waits for its commit");
        c.subcompactions_max
    };
    let l0 = || TreeSpec::new(4).file(1, "a", "z", 99 * MB).file(0, "a", "z", 90 * MB).file(0, "a", "z", 90 * MB);
    let l1 = || {
        let t = TreeSpec::new(4).file(1, "a", "z", 90 * MB).file(1, "a", "z", 90 * MB).in_run(1);
        t.file(1, "a", "z", 90 * MB).in_run(2).file(2, "b", "c", 900 * MB)
    };
    for style in [CompactionStyle::Level, CompactionStyle::Universal] {
        assert_eq!([1, 2, 3].map(|idle| split(l0(), style, 4, idle)), [0, 2, 2], "{style:?}");
    }
    assert_eq!([1, 2, 3].map(|idle| split(l1(), CompactionStyle::Universal, 4, idle)), [0, 0, 2]);
    let small = TreeSpec::new(4).file(1, "a", "z", 99 * MB).file(0, "a", "z", MB).file(0, "a", "z", MB);
    assert_eq!(split(small, CompactionStyle::Level, 4, 4), 0, "too small");
}

/// Of the runs above the oldest one, those that make the amplification too large are merged with it; small ones stay
/// out.
#[test]
fn a_job_for_space_leaves_small_runs_out() {
    let tree = || {
        let t = TreeSpec::new(4).file(3, "a", "z", 100 * MB).file(2, "a", "z", 90 * MB).file(2, "a", "z", 80 * MB);
        t.in_run(1).file(1, "a", "z", 20 * MB).file(0, "a", "z", 10 * MB).build()
    };
    let o = options(CompactionStyle::Universal);
    let taken = |threads| {
        let mut cursors = RunningCompactions::new();
        cursors.set_threads(threads, threads);
        let (c, _) = next(&tree(), &o, &mut cursors).expect("all above is twice the oldest");
        assert_eq!((c.reason, c.output_level), (CompactionReason::UniversalSizeAmplification, 3));
        let mut taken: Vec<u64> = c.input_files().map(|f| f.number()).collect();
        taken.sort_unstable();
        taken
    };
    assert_eq!(taken(4), [1, 2], "110 above 190");
    assert_eq!(taken(1), [1, 2, 3, 4, 5]);
}

/// Seven runs are due in L0, and the last level has as many; a job merges as many of them as it may. The base run,
/// which is larger than all others together, stays out.
#[test]
fn a_job_of_df_tiered_merges_no_more_runs_than_max_merge_width() {
    let taken = |width: u32, l0: bool| {
        let mut t = TreeSpec::new(3).file(2, "a", "z", 90 * MB);
        for run in 1..7 {
            t = if l0 { t.file(0, "a", "z", MB) } else { t.file(2, "a", "z", MB).in_run(run) };
        }
        let mut o = options(CompactionStyle::Universal);
        o.level0_file_num_compaction_trigger = 6;
        o.compaction_options_universal.max_merge_width = width;
        let mut cursors = RunningCompactions::new();
        cursors.set_threads(4, 4);
        let (c, _) = next(&t.build(), &o, &mut cursors).expect("as many as are due");
        assert_eq!((c.reason, c.output_run), (CompactionReason::UniversalSortedRunNum, 1));
        let mut taken: Vec<u64> = c.input_files().map(|f| f.number()).collect();
        taken.sort_unstable();
        taken
    };
    // Numbers are in order of age, oldest first.
    assert_eq!(taken(u32::MAX, true), [2, 3, 4, 5, 6, 7]);
    assert_eq!(taken(4, true), [2, 3, 4, 5]);
    assert_eq!(taken(u32::MAX, false), [2, 3, 4, 5, 6, 7]);
    assert_eq!(taken(3, false), [2, 3, 4], "the oldest extra run with the two above it");
    assert_eq!(taken(0, false), [2, 3], "fewer than two are no merge");
}

/// For runs of these sizes in the last level, oldest first: the runs that the next job merges, and into which run.
fn merged_in_the_last_level(sizes: &[u64]) -> Option<(Vec<u64>, u64)> {
    let mut t = TreeSpec::new(3);
    for (run, size) in sizes.iter().enumerate() {
        t = t.file(2, "a", "z", size * MB).in_run(run as u64);
    }
    let mut cursors = RunningCompactions::new();
    cursors.set_threads(4, 4);
    let (c, _) = next(&t.build(), &options(CompactionStyle::Universal), &mut cursors)?;
    assert_eq!((c.reason, c.output_level), (CompactionReason::UniversalSortedRunNum, 2));
    let mut taken: Vec<u64> = c.input_files().map(|f| f.number()).collect();
    taken.sort_unstable();
    Some((taken, c.output_run))
}

/// As in universal compaction, runs of about the same size are merged, so that no run is rewritten for each new one.
#[test]
fn the_last_level_of_df_tiered_merges_runs_of_about_one_size() {
    assert_eq!(merged_in_the_last_level(&[100, 10, 10]), Some((vec![2, 3], 1)));
    assert_eq!(merged_in_the_last_level(&[100, 60, 50]), Some((vec![1, 2, 3], 0)), "together they are as large");
    assert_eq!(merged_in_the_last_level(&[100, 40]), None, "it is not worth it");
    assert_eq!(merged_in_the_last_level(&[100, 40, 15]), None);
    // No more runs may be added, whatever their sizes are.
    let runs = runs_max(&options(CompactionStyle::Universal));
    assert_eq!(runs, 4);
    assert_eq!(merged_in_the_last_level(&[100, 40, 15, 5]), Some((vec![1, 2, 3, 4], 0)), "the least for each byte");
    assert_eq!(merged_in_the_last_level(&[900, 40, 15, 5]), Some((vec![2, 3, 4], 1)));
}

/// A level becomes due before it refuses more runs, regardless of how many runs a job should have.
#[test]
fn a_level_of_df_tiered_that_is_full_is_due() {
    let mut o = options(CompactionStyle::Universal);
    (o.compaction_options_universal.min_merge_width, o.compaction_options_universal.max_size_amplification_percent) =
        (100, 1_000_000);
    let mut t = TreeSpec::new(4);
    for run in 1..=runs_max(&o) as u64 {
        t = t.file(1, "a", "z", 10 * MB).in_run(run);
    }
    let mut cursors = RunningCompactions::new();
    cursors.set_threads(4, 4);
    let (c, _) = next(&t.build(), &o, &mut cursors).expect("no run may come before some leave");
    assert_eq!((c.start_level(), c.output_level, c.inputs.len()), (1, 2, runs_max(&o)));
}

/// Extra runs that leave the last level for its base run make room for others.
#[test]
fn what_a_merge_of_the_last_level_has_makes_room() {
    let mut t = TreeSpec::new(3);
    for run in 0..5 {
        t = t.file(2, "a", "z", 100 * MB).in_run(run);
    }
    let v = t.file(1, "a", "z", 10 * MB).in_run(1).file(1, "a", "z", 10 * MB).in_run(2).build();
    let (o, mut cursors) = (options(CompactionStyle::Universal), RunningCompactions::new());
    cursors.set_threads(8, 8);
    let jobs: Vec<_> = std::iter::from_fn(|| next(&v, &o, &mut cursors)).map(|(c, _)| (c.start_level(), c)).collect();
    let levels: Vec<usize> = jobs.iter().map(|(level, _)| *level).collect();
    assert!(jobs.iter().any(|(level, c)| *level == 2 && c.output_run == 0), "{levels:?}");
    assert!(levels.contains(&1), "{levels:?}");
}

/// Tables that a job moves deeper make room even before it commits.
#[test]
fn runs_that_leave_make_room() {
    let mut t = TreeSpec::new(4).file(2, "a", "z", 99 * MB);
    for run in 1..=4 {
        t = t.file(1, "a", "z", 10 * MB).in_run(run);
    }
    let v = t.file(0, "a", "z", MB).file(0, "a", "z", MB).build();
    let (o, mut cursors) = (options(CompactionStyle::Universal), RunningCompactions::new());
    let first = next(&v, &o, &mut cursors).expect("L1 has twice as many as are due").0;
    assert_eq!((first.start_level(), numbers(&first.inputs[0].1)), (1, vec![3]));
    let picked: Vec<usize> = std::iter::from_fn(|| next(&v, &o, &mut cursors)).map(|(c, _)| c.start_level()).collect();
    assert!(picked.contains(&0), "{picked:?}");
}

fn stack(levels: usize, level: usize, runs: u64) -> TreeSpec {
    let mut t = TreeSpec::new(levels).file(level, "a", "z", 99 * MB);
    for run in 1..=runs {
        t = t.file(level, "a", "z", MB).in_run(run);
    }
    t
}

/// If writers wait for flushes, one job takes all of L0, no other job runs next to it, and no intra-L0 merge happens.
#[test]
fn who_waits_for_flushes_writes_little_from_l0() {
    let mut t = stack(4, 1, 0);
    for _ in 0..7 {
        t = t.file(0, "a", "z", MB);
    }
    let (v, o, mut cursors) = (t.build(), options(CompactionStyle::Level), RunningCompactions::new());
    cursors.set_flush_bound(true);
    let (first, _) = next(&v, &o, &mut cursors).unwrap();
    assert_eq!((numbers(&first.inputs[0].1).len(), first.output_level, first.output_run), (7, 1, 1));
    cursors.finish(1, &first);
    let few = stack(4, 1, 0).file(0, "a", "z", MB).file(0, "a", "z", MB).file(0, "a", "z", MB);
    let (few, mut cursors) = (few.build(), cursors);
    assert!(next(&few, &o, &mut cursors).is_none(), "two are due, and three too few for one job at a time");
    cursors.set_flush_bound(false);
    assert!(next(&few, &o, &mut cursors).is_some());
}

/// If writers wait for flushes, extra runs are kept until there are more of them than usual; then all go down as one
/// run.
#[test]
fn who_waits_for_flushes_merges_many_runs_at_once() {
    let o = options(CompactionStyle::Level);
    for (runs, due) in [(runs_kept_flush_bound(&o) as u64, false), (runs_kept_flush_bound(&o) as u64 + 1, true)] {
        let (v, mut cursors) = (stack(4, 1, runs).build(), RunningCompactions::new());
        cursors.set_flush_bound(true);
        let picked = next(&v, &o, &mut cursors);
        assert_eq!(picked.is_some(), due, "{picked:?}");
        let Some((c, _)) = picked else { continue };
        assert_eq!((c.inputs.len() as u64, c.output_level, c.output_run), (runs + 1, 2, 1), "with the base run");
    }
    // There is room for more meanwhile.
    let mut t = stack(4, 1, runs_kept_flush_bound(&o) as u64);
    for _ in 0..4 {
        t = t.file(0, "a", "z", MB);
    }
    let (v, mut cursors) = (t.build(), RunningCompactions::new());
    cursors.set_flush_bound(true);
    assert!(next(&v, &o, &mut cursors).is_some_and(|(c, _)| c.start_level() == 0 && c.output_run > 0));
    assert!(runs_max(&o) < runs_kept_flush_bound(&o) && runs_kept_flush_bound(&o) < runs_max_flush_bound(&o));
}

/// The first job that leaves L0, by its number of tables, among all that can be picked.
fn leaves_l0(v: &Arc<Version>, o: &CfOptions, cursors: &mut RunningCompactions) -> Option<usize> {
    let mut jobs = std::iter::from_fn(|| next(v, o, cursors)).map(|(c, _)| c);
    jobs.find(|c| c.start_level() == 0 && c.output_level > 0).map(|c| c.inputs[0].1.len())
}

/// With one or two threads, jobs from L0 can hardly run in parallel: while the tree slows writers, one takes all of it.
#[test]
fn with_few_threads_one_job_takes_all_of_l0() {
    // Two are due; writers are slowed from six runs on, and the slowdown trigger is eight.
    let o = CfOptions { level0_slowdown_writes_trigger: 8, ..options(CompactionStyle::Level) };
    let tree = |tables: usize| {
        let mut t = stack(4, 1, 0);
        for _ in 0..tables {
            t = t.file(0, "a", "z", MB);
        }
        t.build()
    };
    let threads = |threads, at_work| {
        let mut cursors = RunningCompactions::new();
        cursors.set_threads(threads, threads);
        cursors.set_writers_at_work(at_work);
        cursors
    };
    for (of, at_work, tables, taken) in [
        (1, true, 6, 6),
        (2, true, 6, 6),
        (3, true, 6, 2),
        (0, true, 6, 2), // not known how many
        (2, false, 6, 2),
        (2, true, 5, 2), // nobody waits
        (2, true, 9, 9),
    ] {
        let found = leaves_l0(&tree(tables), &o, &mut threads(of, at_work));
        assert_eq!(found, Some(taken), "{of} threads, {tables} tables, at work: {at_work}");
    }
    // Next to a job from L0 a second one begins only if there are more threads.
    for (of, beside) in [(2, None), (3, Some(2))] {
        let (v, mut cursors) = (tree(6), threads(of, false));
        let first = next(&v, &o, &mut cursors).map(|(c, _)| (c.start_level(), c.inputs[0].1.len()));
        assert_eq!(first, Some((0, 2)), "writers rest");
        cursors.set_writers_at_work(true);
        assert_eq!(leaves_l0(&v, &o, &mut cursors), beside, "{of} threads");
    }
}

/// While writers are active, extra runs are merged only if that is as cheap as the option demands, or if the level
/// accepts no more runs. While writers are idle, all are merged.
#[test]
fn while_writers_are_at_work_no_merge_is_dear() {
    // L1 may have 100 MB, L2 five times that, and two runs are due: at 100 %, 1 + 5 / 2 bytes may be written for each
    // byte.
    let inputs = |percent: u32, sizes: &[u64], at_work: bool| {
        let o = CfOptions { compaction_downforce_merge_percent: percent, ..options(CompactionStyle::Level) };
        let mut t = TreeSpec::new(4).file(2, "a", "z", 500 * MB);
        for (run, size) in (1..).zip(sizes) {
            t = t.file(2, "a", "z", size * MB).in_run(run);
        }
        let (v, mut cursors) = (t.build(), RunningCompactions::new());
        cursors.set_writers_at_work(at_work);
        next(&v, &o, &mut cursors).map(|(c, _)| c.inputs.len())
    };
    for (percent, sizes, at_work) in [
        (100, &[250][..], Some(2)),        // 3.0, although one run is not due
        (100, &[150], None),               // 4.3
        (150, &[150], Some(2)),            // of 4.75
        (100, &[80, 80], None),            // 4.1
        (100, &[120, 120], Some(3)),       // 3.1
        (0, &[250], None),                 // nothing is as cheap as that
        (100, &[10, 10, 10], None),        // 17.7
        (1000, &[10, 10, 10], Some(4)),    // of 26
        (u32::MAX, &[1], Some(2)),         // no bound
        (100, &[10, 10, 10, 10], Some(5)), // no further one may come
        (0, &[10, 10, 10, 10], Some(5)),
    ] {
        assert_eq!(inputs(percent, sizes, true), at_work, "{percent} %, {sizes:?}");
        assert_eq!(inputs(percent, sizes, false), Some(sizes.len() + 1), "{percent} %, {sizes:?} at rest");
    }
}

/// With merges at once, one thin run is merged as soon as its level has no job, and not before.
#[test]
fn merges_at_once_wait_for_the_jobs_of_their_level_and_for_nothing_else() {
    let job = |at_once: bool, busy: bool| {
        let o = CfOptions { compaction_downforce_merge_at_once: at_once, ..options(CompactionStyle::Level) };
        let t = TreeSpec::new(4).file(2, "a", "m", 300 * MB).file(2, "n", "z", 200 * MB);
        let (v, mut cursors) = (t.file(2, "a", "c", MB).in_run(1).build(), RunningCompactions::new());
        cursors.set_writers_at_work(true);
        v.levels[2].base[1].being_compacted.store(busy, std::sync::atomic::Ordering::Release);
        next(&v, &o, &mut cursors).map(|(c, _)| (c.start_level(), c.output_level, c.output_run, c.inputs.len()))
    };
    assert_eq!(job(false, false), None, "301 bytes for each byte");
    assert_eq!(job(true, false), Some((2, 2, 0, 2)));
    assert_eq!(job(true, true), None, "a job holds a table of the level");
}

/// Disjoint extra runs of the base level leave room at each key, but none for L0, which spans all of them. They are
/// merged although that is expensive; otherwise L0 would wait until writers are idle.
#[test]
fn l0_does_not_wait_for_runs_that_lie_apart() {
    let next_of = |l0: usize| {
        let mut t = TreeSpec::new(4);
        for (begin, end) in [("a", "c"), ("d", "f"), ("g", "i"), ("j", "l")] {
            t = t.file(1, begin, end, 24 * MB);
        }
        for (run, key) in (1..).zip(["b", "e", "h", "k"]) {
            t = t.file(1, key, key, MB / 2).in_run(run);
        }
        for _ in 0..l0 {
            t = t.file(0, "a", "l", 2 * MB);
        }
        let (v, o, mut cursors) = (t.build(), options(CompactionStyle::Level), RunningCompactions::new());
        assert_eq!(extra_depth(&v.cmp, &v.levels[1], |_| true), 1);
        cursors.set_writers_at_work(true);
        let first = next(&v, &o, &mut cursors).map(|(c, _)| c);
        if let Some(c) = &first {
            assert_eq!((c.start_level(), c.output_level, c.output_run, c.inputs.len()), (1, 1, 0, 2), "{c:?}");
            assert!(next(&v, &o, &mut cursors).is_none(), "once one leaves there is room");
        }
        first.is_some()
    };
    assert!(!next_of(1), "nothing is due in L0");
    assert!(next_of(2));
}

/// Merges are deferred to save bytes, but not if runs slow down writers and idle threads could help.
#[test]
fn what_is_put_off_holds_no_writer_up() {
    let inputs = |slowdown: i32| {
        let o = CfOptions { level0_slowdown_writes_trigger: slowdown, ..options(CompactionStyle::Level) };
        let mut t = TreeSpec::new(4);
        for (level, base) in [(3, 5000), (2, 500)] {
            t = t.file(level, "a", "z", base * MB);
            for run in 1..=3 {
                t = t.file(level, "a", "z", 10 * MB).in_run(run);
            }
        }
        let (v, mut cursors) = (t.file(0, "a", "z", MB).build(), RunningCompactions::new());
        cursors.set_writers_at_work(true);
        next(&v, &o, &mut cursors).map(|(c, _)| c.inputs.len())
    };
    // One table in L0, and in two levels one more run than the due number.
    assert_eq!(inputs(20), None);
    assert_eq!(inputs(2), Some(4));
}

/// While writers are idle, data in several levels is written once, not level by level.
#[test]
fn what_a_burst_left_goes_to_the_deepest_level_at_once() {
    let build = |below: u64| {
        let t = stack(4, 1, 4).file(2, "a", "z", MB).in_run(1);
        t.file(3, "a", "z", below * MB).build()
    };
    let o = options(CompactionStyle::Level);
    let v = build(50);
    let (c, _) = next(&v, &o, &mut RunningCompactions::new()).unwrap();
    assert_eq!((c.inputs.len(), c.output_level, c.output_run, c.bottommost), (7, 3, 0, true));
    let v = build(500);
    let (c, _) = next(&v, &o, &mut RunningCompactions::new()).unwrap();
    assert!(c.output_level < 3, "not where it is small beside what lies there");
}

/// The tables of `v` that get a job because of their age at 1000 seconds, in order, and where each goes.
fn aged(v: &Arc<Version>, o: &CfOptions) -> Vec<(Vec<u64>, usize, u64)> {
    let mut cursors = RunningCompactions::new();
    cursors.set_flush_bound(true); // the shape asks for nothing
    let moment = Moment { now: 1000, oldest_snapshot: 0 };
    let mut jobs = Vec::new();
    while let Some(c) = pick(v, o, &mut cursors, &moment) {
        assert!(c.input_files().next().is_some() && jobs.len() < 10, "{c:?}");
        cursors.start(&c);
        jobs.push((c.input_files().map(|f| f.number()).collect(), c.output_level, c.output_run));
    }
    jobs
}

#[test]
fn a_table_of_an_extra_run_that_is_due_for_its_age_is_itself_taken() {
    // Table 2 is due; table 1 below it in the base run is not.
    let tree = || {
        let t = TreeSpec::new(4).file(1, "a", "f", 10 * MB).times(990, 990);
        let t = t.file(1, "b", "e", MB).in_run(1).times(10, 10);
        t.file(3, "a", "z", 100 * MB).times(990, 990).build()
    };
    let o = CfOptions { periodic_compaction_seconds: 100, ttl: 0, ..options(CompactionStyle::Level) };
    assert_eq!(aged(&tree(), &o), [(vec![2], 1, 1)], "it is rewritten where it is");
    let o = CfOptions { periodic_compaction_seconds: 0, ttl: 100, ..o };
    assert_eq!(aged(&tree(), &o), [(vec![2, 1], 1, 0)], "it goes down: into the base run first");
}

#[test]
fn a_table_that_is_due_and_cannot_have_a_job_keeps_no_other_from_its_own() {
    // Table 2 of an extra run has nothing below it in its level; a job has table 4 of another one.
    let v = TreeSpec::new(4)
        .file(1, "a", "b", MB)
        .times(990, 990)
        .file(1, "c", "e", MB)
        .in_run(1)
        .times(10, 10)
        .file(2, "x", "z", 10 * MB)
        .times(10, 10)
        .file(1, "k", "m", MB)
        .in_run(1)
        .times(10, 10)
        .build();
    v.levels[1].extras[0].files[1].being_compacted.store(true, Atomic::Release);
    let o = CfOptions { periodic_compaction_seconds: 100, ttl: 0, ..options(CompactionStyle::Level) };
    assert_eq!(aged(&v, &o), [(vec![2], 1, 1), (vec![3], 2, 0)]);
}

#[test]
fn the_oldest_table_of_l0_above_extra_runs_is_not_at_the_bottom() {
    // A tree without base runs, as DF-tiered leaves it. A job has the extra run.
    let v =
        TreeSpec::new(4).file(2, "a", "z", 10 * MB).in_run(1).times(5, 5).file(0, "c", "w", MB).times(10, 10).build();
    let o = CfOptions { periodic_compaction_seconds: 100, ttl: 0, ..options(CompactionStyle::Level) };
    v.levels[2].extras[0].files[0].being_compacted.store(true, Atomic::Release);
    let moment = Moment { now: 1000, oldest_snapshot: 0 };
    let c = pick(&v, &o, &mut RunningCompactions::new(), &moment).unwrap();
    assert_eq!((numbers(&c.inputs[0].1), c.output_level, c.bottommost), (vec![2], 0, false));
    assert!(!c.older_runs().is_empty());
}

/// A table that moves from an extra run into a base run becomes another object, which is not busy, with the same
/// number.
#[test]
fn a_job_for_a_table_that_has_just_moved_is_not_forgotten_when_the_move_ends() {
    let v1 = TreeSpec::new(5).file(1, "m", "n", 1100 * MB).in_run(3).file(3, "a", "b", MB).file(0, "m", "n", MB);
    let v1 = v1.build();
    let (o, mut cursors) = (options(CompactionStyle::Level), RunningCompactions::new());
    let moves = pick(&v1, &o, &mut cursors, &Moment::default()).unwrap();
    assert_eq!((numbers(&moves.inputs[0].1), moves.output_level, moves.trivial_move), (vec![1], 2, true));
    let first = cursors.start(&moves).number;
    let f = &moves.inputs[0].1[0];
    let mut moved = Version::clone(&v1);
    moved.levels[1] = Level::default();
    moved.levels[2].push(Arc::new(f.renewed(FileEntry { extra_run: 0, ..f.entry.clone() })));
    let v2 = Arc::new(moved);
    let next = pick(&v2, &o, &mut cursors, &Moment::default()).unwrap();
    assert_eq!((numbers(&next.inputs[0].1), next.start_level(), next.output_level), (vec![1], 2, 3));
    let second = cursors.start(&next).number;
    assert!(first != second && cursors.count() == 2);
    // A job that overlaps the moving table depends on the job that has it now.
    let above = vec![(0, v2.levels[0].base.clone())];
    assert_eq!(cursors.depends_on(&v2, &above, 3, 7), Some(vec![second]));
    cursors.finish(first, &moves);
    assert_eq!(cursors.count(), 1);
    assert!(cursors.output_conflict(&v2.cmp, 3, b"m", b"n"), "what the second one writes is known");
    cursors.finish(second, &next);
    assert_eq!(cursors.count(), 0);
}

/// A range tombstone's end is exclusive: a table that ends with it does not contain the key at which the next table
/// begins.
#[test]
fn a_table_that_begins_where_a_range_tombstone_ends_is_in_nobodys_way() {
    let with = |first: TreeSpec| first.file(1, "m", "z", MB).file(0, "c", "k", MB).build();
    let needs = |v: &Version| {
        let job = [(0, v.levels[0].base.clone()), (1, v.levels[1].base[..1].to_vec())];
        RunningCompactions::new().depends_on(v, &job, 1, 0)
    };
    assert_eq!(needs(&with(TreeSpec::new(3).open_file(1, "a", "m", MB))), Some(Vec::new()));
    // A clean cut never leaves two tables that share a key.
    assert_eq!(needs(&with(TreeSpec::new(3).file(1, "a", "m", MB))), None);
}
