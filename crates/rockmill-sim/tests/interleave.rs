//! Random interleavings of jobs for each strategy. `ROCKMILL_INTERLEAVINGS=N` runs N histories of each instead of the
//! default number; `ROCKMILL_SEED` begins with another seed.

use std::cell::Cell;
use std::sync::Arc;

use rockmill::internals::simulation::{
    Compaction, CompactionReason, FileMeta, IntraDf, Level, Moment, PendingRun, RunningCompactions, Version,
    level_scores, pick, pick_intra_df_of, runs_due,
};
use rockmill::{CfOptions, CompactionStyle};
use rockmill_sim::Manner;
use rockmill_sim::interleave::{Done, History, Pick, PickMerge, Step, Strategy};

const STEPS: usize = 300;
const DF_LEVELED: Strategy = (CompactionStyle::Level, Manner::DownForce);
const DF_TIERED: Strategy = (CompactionStyle::Universal, Manner::DownForce);

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
    let done = all_hold(Some(DF_LEVELED));
    assert!(done.merges > 0 && done.undone > 0 && done.dropped > 0, "{done:?}");
}

#[test]
fn df_tiered_keeps_newer_above_older() {
    let done = all_hold(Some(DF_TIERED));
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

/// Picks as the store does, and checks jobs that the tree's shape required against the classic rules.
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

fn is_busy(f: &FileMeta) -> bool {
    f.being_compacted.load(std::sync::atomic::Ordering::Acquire)
}

fn runs_most(options: &CfOptions) -> usize {
    options.level0_file_num_compaction_trigger.max(2) as usize
}

/// Histories of flushes and the strategy's own jobs, in any order: each job follows the rules, and the tree never has
/// more runs than allowed.
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
            let shape = |version: &Version, _| {
                let runs: Vec<usize> = version.levels.iter().skip(1).map(|level| level.runs().count()).collect();
                if runs.iter().all(|n| *n <= most) { Ok(()) } else { Err(format!("more than {most}: {runs:?}")) }
            };
            history.run_watching(classic_pick, shape).unwrap_or_else(|e| panic!("{style:?}, seed {seed}: {e}"));
        }
    }
}

/// The largest number of a level's extra runs over one key, considering only tables accepted by `counts`; and the
/// largest number of extra runs of a level.
fn extra_runs(version: &Version, counts: fn(&FileMeta) -> bool) -> (usize, usize) {
    let of_level = |level: &Level| {
        let runs: Vec<Vec<(u8, u8)>> = level
            .extras
            .iter()
            .map(|run| {
                let files = run.files.iter().filter(|f| counts(f));
                files.map(|f| (f.smallest_user_key()[0], f.largest_user_key()[0])).collect()
            })
            .collect();
        let has = |key: u8| runs.iter().filter(|run| run.iter().any(|(s, l)| (*s..=*l).contains(&key))).count();
        ((0..=255).map(has).max().unwrap_or(0), runs.iter().filter(|run| !run.is_empty()).count())
    };
    version.levels.iter().skip(1).map(of_level).fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)))
}

/// Only flushes and jobs, which all succeed, because a failed job returns its inputs. With a bound on the cost of
/// merges, in percent, writers are active from the first step on.
fn under_load(seed: u64, strategy: Strategy, merge_percent: Option<u32>) -> History {
    let mut history = History::random(seed, Some(strategy), STEPS);
    let load =
        |s: &Step| matches!(s, Step::Flush(_) | Step::Start | Step::Merge | Step::Finish(_) | Step::FinishLater(_));
    history.steps.retain(load);
    (history.options.ttl, history.options.periodic_compaction_seconds) = (0, 0);
    if let Some(percent) = merge_percent {
        history.options.compaction_downforce_merge_percent = percent;
        history.steps.insert(0, Step::Wait(1));
    }
    history
}

/// Under load, with jobs that end early or late. At each key, the extra runs that no job has stay within twice the
/// number at which a merge is due. Each running or waiting job may have as many more, because runs that it moves deeper
/// remain until it commits. A level has at most twice as many extra runs in total, so disjoint runs are few. This holds
/// whether merges for reads are deferred or not.
#[test]
fn extra_runs_are_bounded_under_load() {
    for (strategy, put_off) in [(DF_LEVELED, None), (DF_LEVELED, Some(150)), (DF_LEVELED, Some(0)), (DF_TIERED, None)] {
        let mut most = [0.0f64; 3];
        for seed in 0..number("ROCKMILL_INTERLEAVINGS", 300) {
            let history = under_load(seed, strategy, put_off);
            let bound = 2 * runs_due(&history.options);
            let watch = |version: &Version, jobs: usize| {
                let ((free, _), (depth, count)) = (extra_runs(version, |f| !is_busy(f)), extra_runs(version, |_| true));
                let allowed = [bound, bound * (1 + jobs), 2 * bound * (1 + jobs)];
                for ((most, n), allowed) in most.iter_mut().zip([free, depth, count]).zip(allowed) {
                    *most = most.max(n as f64 / bound as f64);
                    if n > allowed {
                        return Err(format!(
                            "{free} free at one key, {depth} with others, {count} in all: {allowed:?}"
                        ));
                    }
                }
                Ok(())
            };
            let held = history.run_watching(pick, watch);
            held.unwrap_or_else(|e| panic!("{strategy:?}, {put_off:?}, seed {seed}: {e}"));
        }
        println!("{strategy:?}, {put_off:?}: free and all at one key, all of a level, by twice what is due: {most:?}");
    }
}

thread_local! {
    /// Set if a pick found no job although it should have.
    static STUCK: Cell<bool> = const { Cell::new(false) };
}

/// Picks as the store does, and records if L0 is due, nothing runs, and no job is found.
fn noting_pick(
    version: &Arc<Version>,
    options: &CfOptions,
    cursors: &mut RunningCompactions,
    moment: &Moment,
) -> Option<Compaction> {
    let found = pick(version, options, cursors, moment);
    let due = version.levels[0].len() >= runs_due(options);
    STUCK.set(STUCK.get() || (found.is_none() && due && cursors.count() == 0));
    found
}

/// If writers are never idle, merges for reads may be deferred for ever. Written data goes down nevertheless.
#[test]
fn l0_never_waits_for_writers_to_rest() {
    for (strategy, put_off) in [(DF_LEVELED, Some(150)), (DF_LEVELED, Some(0)), (DF_TIERED, Some(150))] {
        for seed in 0..number("ROCKMILL_INTERLEAVINGS", 300) {
            let history = under_load(seed, strategy, put_off);
            STUCK.set(false);
            let watch = |version: &Version, _: usize| match STUCK.get() {
                false => Ok(()),
                true => Err(format!("L0 is due, and nothing is done: {:?}", shape(version))),
            };
            let held = history.run_watching(noting_pick, watch);
            held.unwrap_or_else(|e| panic!("{strategy:?}, {put_off:?}, seed {seed}: {e}"));
        }
    }
}

/// For each level, the number of extra runs and of tables in its base run.
fn shape(version: &Version) -> Vec<(usize, usize)> {
    version.levels.iter().map(|level| (level.extras.len(), level.base.len())).collect()
}

#[test]
fn fifo_never_shows_what_was_overwritten() {
    all_hold(Some((CompactionStyle::Fifo, Manner::Usual)));
}

#[test]
fn strategies_change_while_jobs_run() {
    all_hold(None);
}

/// A broken strategy that omits one table of an L0 job, so that an older version stays above a newer one.
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

/// A broken strategy that omits the oldest run of a DF job.
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

/// Checks that some history shows the fault, can be shrunk, and does not fail with the correct strategy.
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
    is_found(DF_LEVELED, true, pick);
    is_found(DF_TIERED, true, pick);
}

#[test]
fn a_df_job_that_leaves_an_older_run_behind_is_found() {
    is_found(DF_LEVELED, false, leaves_a_run);
    is_found(DF_TIERED, false, leaves_a_run);
}

/// Drops tombstones of pending runs, although entries that they delete may be live.
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
        let histories = (0..4000).map(|seed| (seed, History::random(seed, Some(DF_LEVELED), STEPS)));
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
    // No job need be among the steps: jobs that are due at the end of a history are run then.
    assert!(small.steps.iter().any(|s| matches!(s, Step::Flush(_))), "seed {seed}: {:?}", small.steps);
    assert!(small.run(pick).is_ok(), "the strategy itself holds");
}
