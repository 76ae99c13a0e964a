//! Which level gets the next thread.
//!
//! By score: how full a level is, by what is on its way to it. That keeps writes few, but it does not say how much a
//! level's debt delays writers: a small level that is three times too large asks before a large one that is a tenth too
//! large and has most of the pending bytes. As long as there is a thread for every level that is due, or debt keeps to
//! its bound, that does not matter. Where more levels are due than there are threads and pending bytes are on their way
//! to where writers stop (`PRESSURE`), threads are apportioned among levels by their parts of these, as seats are
//! (highest averages): the next one goes to the level with the most debt for each thread that it would have.
//!
//! Pure, as all of a strategy. docs/compaction.md has what it brings, and what was tried besides.

use super::RunningCompactions;
use super::score::LevelScores;
use crate::options::CfOptions;
use crate::pacing::write_control::{StallReason, write_control};

/// Half-way from the slowdown trigger to the stop trigger. Where writers are only slowed, by score is better.
const PRESSURE: f64 = 1.5;

/// Levels with their scores in the order in which they get a thread, if they have a job for one.
pub fn level_order(scores: &LevelScores, options: &CfOptions, running: &RunningCompactions) -> Vec<(usize, f64)> {
    let mut order = scores.by_priority();
    let due = |score: f64| score >= 1.0;
    let levels_due = order.iter().filter(|(_, score)| due(*score)).count();
    if running.threads() == 0 || levels_due <= running.threads() {
        return order;
    }
    let control = write_control(scores.load(), options);
    if control.pressure >= PRESSURE && control.reason == StallReason::PendingCompactionBytes {
        let each = |level: usize| {
            let debt = scores.debts.get(level).copied().unwrap_or(0) as f64;
            debt / (running.of_level(level) + 1) as f64
        };
        order.sort_by(|a, b| due(b.1).cmp(&due(a.1)).then(each(b.0).total_cmp(&each(a.0))));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::compaction::strategy::score::level_scores;
    use crate::compaction::strategy::testing::TreeSpec;
    use crate::version::Version;

    const MB: u64 = 1 << 20;

    fn debt() -> u64 {
        level_scores(&tree(), &options(1 << 30)).pending_bytes
    }

    fn order(threads: usize, soft_limit: u64) -> Vec<usize> {
        let (v, options) = (tree(), options(soft_limit));
        let mut running = RunningCompactions::new();
        running.set_threads(threads, threads);
        let scores = level_scores(&v, &options);
        assert_eq!(scores.debts.iter().sum::<u64>(), scores.pending_bytes);
        level_order(&scores, &options, &running).into_iter().filter(|l| l.1 >= 1.0).map(|l| l.0).collect()
    }

    fn tree() -> Arc<Version> {
        // L1 is four times too large, L2 half as much again, and has more to rewrite: L3 is large.
        let t = TreeSpec::new(5).file(1, "a", "b", 400 * MB).file(2, "a", "b", 1500 * MB);
        t.file(3, "a", "b", 15_000 * MB).build()
    }

    fn options(soft_limit: u64) -> CfOptions {
        CfOptions {
            level_compaction_dynamic_level_bytes: false,
            max_bytes_for_level_base: 100 * MB,
            max_bytes_for_level_multiplier: 10.0,
            soft_pending_compaction_bytes_limit: soft_limit,
            hard_pending_compaction_bytes_limit: soft_limit * 2,
            ..CfOptions::default()
        }
    }

    #[test]
    fn threads_that_are_short_go_where_the_debt_is() {
        assert_eq!(order(2, 1 << 30), [2, 1, 3], "by debt: nothing below L3 would be rewritten");
        assert_eq!(order(3, 1 << 30), [1, 2, 3], "a thread for each: by score");
        assert_eq!(order(2, 1 << 50), [1, 2, 3], "nobody is delayed: by score");
        let debt = debt();
        assert_eq!(order(2, debt * 10 / 14), [1, 2, 3], "writers are slowed: by score");
        assert_eq!(order(2, debt * 10 / 16), [2, 1, 3], "they will be stopped: by debt");
        assert_eq!(order(0, 1 << 30), [1, 2, 3], "threads are not known: by score");
    }
}
