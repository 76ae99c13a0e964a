//! Random interleavings of jobs for each strategy. `ROCKMILL_INTERLEAVINGS=N` takes N histories of each instead of the
//! ordinary run's; `ROCKMILL_SEED` begins with another seed.

use std::sync::Arc;

use rockmill::simulation::{Compaction, CompactionCursors, Moment, Version, pick};
use rockmill::{CfOptions, CompactionStyle};
use rockmill_sim::interleave::{History, Pick, Step, Strategy};

const STEPS: usize = 300;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

fn all_hold(strategy: Option<Strategy>) {
    let first = number("ROCKMILL_SEED", 0);
    let mut jobs = 0;
    let histories = number("ROCKMILL_INTERLEAVINGS", 50);
    for seed in first..first + histories {
        let history = History::random(seed, strategy, STEPS);
        match history.run(pick) {
            Ok(n) => jobs += n,
            Err(e) => {
                let small = history.shrink(pick);
                let e2 = small.run(pick).expect_err("it still fails");
                panic!("seed {seed}, {strategy:?}: {e}\nshrunk to {:#?}\n{e2}\n{:?}", small.steps, small.options);
            }
        }
    }
    println!("{strategy:?}: {histories} histories of {STEPS} steps, {jobs} jobs");
    assert!(jobs as u64 > histories * 5, "{jobs} jobs in {histories} histories");
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
    all_hold(Some((CompactionStyle::Level, true)));
}

#[test]
fn df_tiered_keeps_newer_above_older() {
    all_hold(Some((CompactionStyle::Universal, true)));
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
    cursors: &mut CompactionCursors,
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
    cursors: &mut CompactionCursors,
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
    assert!(small.steps.iter().any(|s| matches!(s, Step::Finish(_))));
    assert!(small.run(pick).is_ok(), "the strategy itself holds");
}
