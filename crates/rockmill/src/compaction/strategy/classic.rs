//! The classic strategies: what textbooks, and the paper on DF-compaction, call leveled and tiered. They are here for
//! comparison, and keep strictly to the shape of their trees:
//!
//! - *Leveled*: each level is one sorted run, L0 as far as flushes allow it. The oldest table of L0 is compacted alone,
//!   as soon as it exists, with everything that it overlaps in the base level. Deeper levels compact one table at a
//!   time, as in leveled compaction (`leveled.rs`). Tables of L0 are never merged with each other.
//! - *Tiered*: a level has up to `level0_file_num_compaction_trigger` sorted runs. When it has as many, all of them
//!   become one run of the next level; the last level merges its runs in place. The runs are extra runs of the level.
//!
//! They have two restrictions that keep them from using several threads as RocksDB's strategies do, and those of
//! DF-compaction even more:
//!
//! - One job at a time begins in a level.
//! - A level that is full takes nothing. It is full until the job that makes it smaller has committed: what a running
//!   job takes out of it still counts.
//!
//! Neither strategy can get stuck: the deepest full level may always be compacted, since the level below it is not
//! full. If the full level is the last one, tiered merges it in place; with leveled the last level is never full.

use std::sync::Arc;

use super::inputs::{Files, Picker, any_busy};
use super::tiered::Universal;
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::options::CfOptions;

/// The next job of a tree whose levels are one sorted run each.
pub(super) fn leveled(picker: &Picker<'_>) -> Option<Compaction> {
    picker.by_weight().or_else(|| picker.marked()).or_else(|| picker.due())
}

impl Picker<'_> {
    fn by_weight(&self) -> Option<Compaction> {
        let due = self.scores.by_priority().into_iter().take_while(|(_, score)| *score >= 1.0);
        due.map(|(level, _)| level).find_map(|level| {
            let output_level = if level == 0 { self.scores.base_level } else { level + 1 };
            if self.running.begins_in(level) || !self.takes_in(output_level) {
                return None;
            }
            match level {
                0 => self.oldest_of_l0(output_level),
                _ => self.complete(self.start_sorted(level)?, CompactionReason::LevelMaxLevelSize),
            }
        })
    }

    /// True if a level is not full, counting what running jobs take out of it.
    fn takes_in(&self, level: usize) -> bool {
        level > 0 && (level + 1 >= self.num_levels() || self.sums[level].bytes() <= self.scores.targets[level])
    }

    /// The oldest table of L0 with what it overlaps in the base level. Newer ones stay above it.
    fn oldest_of_l0(&self, base: usize) -> Option<Compaction> {
        let oldest = self.files(0).last()?;
        let (smallest, largest) = (&oldest.entry.smallest, &oldest.entry.largest);
        let mut below = self.overlapping(base, Some(smallest), Some(largest));
        let files = vec![Arc::clone(oldest)];
        if any_busy(&files) || !self.expand_to_clean_cut(base, &mut below) || any_busy(&below) {
            return None;
        }
        let inputs = vec![(0, files), (base, below)];
        if self.output_conflict(&inputs, base) || self.running.depends_on(self.version, &inputs, base, 0).is_none() {
            return None;
        }
        Some(self.build(CompactionReason::LevelL0FilesNum, inputs, base, false))
    }
}

/// The number of sorted runs at which a level is full. With one, no level could ever be emptied, since the last level
/// has one even after its merge.
pub(super) fn runs_most(options: &CfOptions) -> usize {
    options.level0_file_num_compaction_trigger.max(2) as usize
}

/// The next job of a tree whose levels have several sorted runs.
pub(super) fn tiered(picker: Picker<'_>) -> Option<Compaction> {
    let universal = Universal::new(picker);
    let by_level = || {
        let order = universal.picker.scores.by_fullness(universal.picker.num_levels());
        order.into_iter().find_map(|level| runs_of_level(&universal, level))
    };
    universal.periodic().or_else(by_level).or_else(|| universal.marked())
}

/// All runs of a level that has as many as it may.
fn runs_of_level(universal: &Universal<'_>, level: usize) -> Option<Compaction> {
    let (picker, most) = (&universal.picker, runs_most(universal.picker.options));
    if picker.running.begins_in(level) {
        return None;
    }
    let last = level + 1 >= picker.num_levels();
    let (output_level, run) = if last { (level, 0) } else { (level + 1, picker.new_run(level + 1)) };
    // Oldest first, up to one that a job holds.
    let free: Vec<Files> = match level {
        0 => picker.free_l0(output_level, run).into_iter().map(|f| vec![f]).collect(),
        _ => {
            let runs = picker.version.levels[level].runs().rev();
            runs.take_while(|files| !any_busy(files)).map(<[_]>::to_vec).collect()
        }
    };
    if free.len() < most || (!last && runs_of(picker, output_level) >= most) {
        return None;
    }
    let inputs = match level {
        0 => vec![(0, free.into_iter().rev().flatten().collect())],
        _ => free.into_iter().rev().map(|files| (level, files)).collect(),
    };
    picker.df_job(CompactionReason::UniversalSortedRunNum, inputs, output_level, run)
}

/// Sorted runs of a level, including those that running jobs will write.
fn runs_of(picker: &Picker<'_>, level: usize) -> usize {
    let of = &picker.version.levels[level];
    let live = |id| of.extras.iter().any(|run| run.id == id);
    of.runs().count() + picker.running.new_runs_to_come(level, live)
}

#[cfg(test)]
mod tests;
