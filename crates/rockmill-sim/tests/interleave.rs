//! Random interleavings of jobs for each strategy. `ROCKMILL_INTERLEAVINGS=N` takes N histories of each instead of the
//! ordinary run's; `ROCKMILL_SEED` begins with another seed.

use std::sync::Arc;

use rockmill::internals::simulation::{
    Compaction, CompactionReason, IntraDf, Moment, PendingRun, RunningCompactions, Version, level_scores, pick,
    pick_intra_df_of,
};
use rockmill::{CfOptions, CompactionStyle};
use rockmill_sim::Manner;
use rockmill_sim::interleave::{Done, History, Pick, PickMerge, Step, Strategy};

const STEPS: usize = 300;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

fn all_hold(strategy: Option<Strategy>) -> Done {
    let first = number("ROCKMILL_SEED", 0);
    let mut all = Done::default();
    let histories = number("ROCKMILL_INTERLEAVINGS", 300);
    for seed in first..first + histories {
        let history = History::random(seed, strategy, STEPS);
        match history.run(pick) {
            Ok(done) => {
                all.jobs += done.jobs;
                all.waited += done.waited;
                all.dropped += done.dropped;
                all.merges += done.merges;
                all.undone += done.undone;
                all.refits += done.refits;
                all.ingested += done.ingested;
                all.deleted += done.deleted;
            }
            Err(e) => {
                let small = history.shrink(pick);
                let e2 = small.run(pick).expect_err("it still fails");
                panic!("seed {seed}, {strategy:?}: {e}\nshrunk to {:#?}\n{e2}\n{:?}", small.steps, small.options);
            }
        }
    }
    println!("{strategy:?}: {histories} histories of {STEPS} steps: {all:?}");
    assert!(all.jobs as u64 > histories * 5, "{all:?} in {histories} histories");
    all
}

#[test]
fn leveled_keeps_newer_above_older() {
    all_hold(Some((CompactionStyle::Level, Manner::Usual)));
}

#[test]
fn tiered_keeps_newer_above_older() {
    all_hold(Some((CompactionStyle::Universal, Manner::Usual)));
}

#[test]
fn df_leveled_keeps_newer_above_older() {
    let done = all_hold(Some((CompactionStyle::Level, Manner::DownForce)));
    assert!(done.merges > 0 && done.undone > 0 && done.dropped > 0, "{done:?}");
}

#[test]
fn df_tiered_keeps_newer_above_older() {
    let done = all_hold(Some((CompactionStyle::Universal, Manner::DownForce)));
    assert!(done.merges > 0 && done.undone > 0 && done.dropped > 0, "{done:?}");
}

#[test]
fn classic_leveled_keeps_newer_above_older() {
    let done = all_hold(Some((CompactionStyle::Level, Manner::Classic)));
    assert_eq!(done.merges, 0, "no output waits for another: {done:?}");
}

#[test]
fn classic_tiered_keeps_newer_above_older() {
    all_hold(Some((CompactionStyle::Universal, Manner::Classic)));
}

/// Picks as the store does, and holds what the shape of the tree asked for to the classic rules.
fn classic_pick(
    version: &Arc<Version>,
    options: &CfOptions,
    cursors: &mut RunningCompactions,
    moment: &Moment,
) -> Option<Compaction> {
    let before: Vec<usize> = version.levels.iter().map(|level| level.iter().filter(|f| is_busy(f)).count()).collect();
    let c = pick(version, options, cursors, moment)?;
    let leveled = options.compaction_style == CompactionStyle::Level;
    let by_shape = match leveled {
        true => matches!(c.reason, CompactionReason::LevelL0FilesNum | CompactionReason::LevelMaxLevelSize),
        false => c.reason == CompactionReason::UniversalSortedRunNum,
    };
    if !by_shape {
        return Some(c);
    }
    let (from, to) = (c.start_level(), c.output_level);
    let last = version.levels.len() - 1;
    if leveled {
        assert!(to > from && c.output_run == 0, "{c:?}");
        assert!(from > 0 || c.inputs[0].1.len() == 1, "one run of L0 at a time: {c:?}");
        let scores = level_scores(version, options);
        let bytes: u64 = version.levels[to].iter().map(|f| f.size()).sum();
        assert!(to == last || bytes <= scores.targets[to], "L{to} is full: {bytes} of {:?}", scores.targets);
    } else {
        let runs = if from == 0 { version.levels[0].len() } else { version.levels[from].runs().count() };
        assert!(runs >= runs_most(options) && before[from] == 0, "{runs} runs, {before:?}: {c:?}");
        assert_eq!(c.input_files().count(), version.levels[from].len(), "all runs of the level");
        assert!(to == from + 1 || (to == last && from == last), "{c:?}");
        assert!(to == from || version.levels[to].runs().count() < runs_most(options), "L{to} is full");
    }
    Some(c)
}

fn is_busy(f: &rockmill::internals::simulation::FileMeta) -> bool {
    f.being_compacted.load(std::sync::atomic::Ordering::Acquire)
}

fn runs_most(options: &CfOptions) -> usize {
    options.level0_file_num_compaction_trigger.max(2) as usize
}

/// Histories of flushes and the strategy's own jobs, in any order: each job by the rules, and at no moment does the
/// tree have more runs than it may.
#[test]
fn classic_trees_keep_strictly_to_their_shape() {
    for style in [CompactionStyle::Level, CompactionStyle::Universal] {
        for seed in 0..number("ROCKMILL_INTERLEAVINGS", 300) {
            let mut history = History::random(seed, Some((style, Manner::Classic)), STEPS);
            let by_itself = |s: &Step| {
                !matches!(s, Step::Manual(_) | Step::Refit(_) | Step::Ingest(_) | Step::DeleteFiles(_) | Step::Wait(_))
            };
            history.steps.retain(by_itself);
            (history.options.ttl, history.options.periodic_compaction_seconds) = (0, 0);
            let most = if style == CompactionStyle::Level { 1 } else { runs_most(&history.options) };
            let shape = |version: &Version| {
                let runs: Vec<usize> = version.levels.iter().skip(1).map(|level| level.runs().count()).collect();
                if runs.iter().all(|n| *n <= most) { Ok(()) } else { Err(format!("more than {most}: {runs:?}")) }
            };
            history.run_watching(classic_pick, shape).unwrap_or_else(|e| panic!("{style:?}, seed {seed}: {e}"));
        }
    }
}

#[test]
fn fifo_never_shows_what_was_overwritten() {
    all_hold(Some((CompactionStyle::Fifo, Manner::Usual)));
}

#[test]
fn strategies_change_while_jobs_run() {
    all_hold(None);
}

/// Takes one table less of an L0 job: an older version stays above a newer one.
fn broken(
    version: &Arc<Version>,
    options: &CfOptions,
    cursors: &mut RunningCompactions,
    moment: &Moment,
) -> Option<Compaction> {
    let mut c = pick(version, options, cursors, moment)?;
    if c.output_level > 0 && c.start_level() == 0 && c.inputs[0].1.len() > 1 {
        c.inputs[0].1.pop();
    }
    Some(c)
}

/// Leaves the oldest run of a DF job behind.
fn leaves_a_run(
    version: &Arc<Version>,
    options: &CfOptions,
    cursors: &mut RunningCompactions,
    moment: &Moment,
) -> Option<Compaction> {
    let mut c = pick(version, options, cursors, moment)?;
    if c.output_level > 0 && c.inputs.len() > 1 {
        c.inputs.pop();
        c.trivial_move = false;
    }
    Some(c)
}

/// Some history shows it, is shrunk, and does not fail when nothing is broken.
fn is_found(strategy: Strategy, out_of_order: bool, broken: Pick) -> Vec<Step> {
    let histories = (0..2000).map(|seed| (seed, History::random(seed, Some(strategy), STEPS)));
    let (seed, history) = histories
        .map(|(seed, h)| (seed, History { out_of_order, ..h }))
        .find(|(_, h)| h.run(broken).is_err())
        .expect("some history shows it");
    let small = history.shrink(broken);
    let said = small.run(broken).expect_err("it still fails");
    println!("seed {seed}, {} steps: {said}", small.steps.len());
    assert!(small.steps.len() <= STEPS / 6, "seed {seed}: {:?}", small.steps);
    let whole = History { out_of_order: false, ..small.clone() };
    assert!(whole.run(pick).is_ok(), "the strategy itself holds");
    small.steps
}

#[test]
fn commits_out_of_order_are_found() {
    is_found((CompactionStyle::Level, Manner::DownForce), true, pick);
    is_found((CompactionStyle::Universal, Manner::DownForce), true, pick);
}

#[test]
fn a_df_job_that_leaves_an_older_run_behind_is_found() {
    is_found((CompactionStyle::Level, Manner::DownForce), false, leaves_a_run);
    is_found((CompactionStyle::Universal, Manner::DownForce), false, leaves_a_run);
}

/// Drops tombstones of pending runs, although what they delete may be live.
fn forgets_tombstones(
    version: &Arc<Version>,
    options: &CfOptions,
    cursors: &RunningCompactions,
    pending: &[PendingRun],
    due: usize,
) -> Option<IntraDf> {
    let mut merge = pick_intra_df_of(version, options, cursors, pending, due)?;
    merge.compaction.bottommost = true;
    Some(merge)
}

/// Puts them into the base run.
fn go_too_deep(
    version: &Arc<Version>,
    options: &CfOptions,
    cursors: &RunningCompactions,
    pending: &[PendingRun],
    due: usize,
) -> Option<IntraDf> {
    let mut merge = pick_intra_df_of(version, options, cursors, pending, due)?;
    merge.compaction.output_run = 0;
    Some(merge)
}

#[test]
fn broken_merges_of_pending_runs_are_found() {
    for (name, merge) in [("tombstones", forgets_tombstones as PickMerge), ("place", go_too_deep)] {
        let histories =
            (0..4000).map(|seed| (seed, History::random(seed, Some((CompactionStyle::Level, Manner::DownForce)), STEPS)));
        let (seed, history) = histories
            .map(|(seed, h)| (seed, History { merge, ..h }))
            .find(|(_, h)| h.run(pick).is_err())
            .expect("some history shows it");
        let small = history.shrink(pick);
        println!("{name}: seed {seed}, {} steps: {}", small.steps.len(), small.run(pick).expect_err("it still fails"));
        assert!(small.steps.len() <= STEPS / 6, "seed {seed}: {:?}", small.steps);
        let whole = History { merge: pick_intra_df_of, ..small };
        assert!(whole.run(pick).is_ok(), "the strategy itself holds");
    }
}

#[test]
fn a_broken_strategy_is_found_and_its_history_shrunk() {
    let (seed, history) = (0..200)
        .map(|seed| (seed, History::random(seed, Some((CompactionStyle::Level, Manner::Usual)), STEPS)))
        .find(|(_, h)| h.run(broken).is_err())
        .expect("some history shows it");
    let small = history.shrink(broken);
    let said = small.run(broken).expect_err("it still fails");
    assert!(small.steps.len() <= STEPS / 6, "seed {seed}: {:?}", small.steps);
    assert!(said.contains("newer than what is above") || said.contains("was written last"), "{said}");
    // No job need be among them: what is due at the end of a history is done then.
    assert!(small.steps.iter().any(|s| matches!(s, Step::Flush(_))), "seed {seed}: {:?}", small.steps);
    assert!(small.run(pick).is_ok(), "the strategy itself holds");
}
