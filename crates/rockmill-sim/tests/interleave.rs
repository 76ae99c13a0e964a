//! Random interleavings of jobs for each strategy. `ROCKMILL_INTERLEAVINGS=N` takes N histories of each instead of the
//! ordinary run's; `ROCKMILL_SEED` begins with another seed.

use std::sync::Arc;

use rockmill::internals::simulation::{
    Compaction, IntraDf, Moment, PendingRun, RunningCompactions, Version, pick, pick_intra_df_of,
};
use rockmill::{CfOptions, CompactionStyle};
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
    all_hold(Some((CompactionStyle::Level, false)));
}

#[test]
fn tiered_keeps_newer_above_older() {
    all_hold(Some((CompactionStyle::Universal, false)));
}

#[test]
fn df_leveled_keeps_newer_above_older() {
    let done = all_hold(Some((CompactionStyle::Level, true)));
    assert!(done.merges > 0 && done.undone > 0 && done.dropped > 0, "{done:?}");
}

#[test]
fn df_tiered_keeps_newer_above_older() {
    let done = all_hold(Some((CompactionStyle::Universal, true)));
    assert!(done.merges > 0 && done.undone > 0 && done.dropped > 0, "{done:?}");
}

#[test]
fn fifo_never_shows_what_was_overwritten() {
    all_hold(Some((CompactionStyle::Fifo, false)));
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
    is_found((CompactionStyle::Level, true), true, pick);
    is_found((CompactionStyle::Universal, true), true, pick);
}

#[test]
fn a_df_job_that_leaves_an_older_run_behind_is_found() {
    is_found((CompactionStyle::Level, true), false, leaves_a_run);
    is_found((CompactionStyle::Universal, true), false, leaves_a_run);
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
            (0..4000).map(|seed| (seed, History::random(seed, Some((CompactionStyle::Level, true)), STEPS)));
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
        .map(|seed| (seed, History::random(seed, Some((CompactionStyle::Level, false)), STEPS)))
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
