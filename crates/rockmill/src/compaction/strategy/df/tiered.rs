//! DF-tiered: each level has up to `level0_file_num_compaction_trigger` runs; all of them together become one new extra
//! run of the next level, and the next such job begins while the first one runs. A level's runs are of about one size.
//!
//! What the options of universal compaction say here:
//!
//! - `min_merge_width`: runs that a job merges at least, if that is more than the trigger, and as far as a level may
//!   have so many. It takes no more than are due, so that the next job begins beside it, and no more than
//!   `max_merge_width`; jobs that save space may.
//! - `size_ratio`: a level's oldest run that is larger than its others together by more than this many percent is not
//!   merged with them; it goes down as it is. Only trees that another strategy left have such runs.
//! - `max_size_amplification_percent`: when the runs above the oldest come to so much of its size, as far as none is
//!   busy, it is merged with the oldest of them, as many as make that false. DF jobs above go on meanwhile.
//! - `stop_style`, `max_read_amp` and `compression_size_percent` have nothing to say here and are refused.
//! - Periodic and marked files are compacted as in universal compaction.
//!
//! The last level merges neighbours of about one size; its base run is one of them.

use std::ops::Range;
use std::sync::Arc;

use super::super::inputs::{Files, Picker, any_busy, total_bytes};
use super::super::tiered::Universal;
use super::{Inputs, runs_max};
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::options::UniversalCompactOptions;

/// The next job of a tiered tree that makes extra runs.
pub(in crate::compaction::strategy) fn pick(picker: Picker<'_>) -> Option<Compaction> {
    let universal = Universal::new(picker);
    let by_shape = || {
        let space = if universal.runs.len() >= universal.trigger() { for_space(&universal) } else { None };
        space.or_else(|| by_level(&universal))
    };
    universal.periodic().or_else(by_shape).or_else(|| universal.marked())
}

/// The oldest run with as many of those above it as it takes: what is left above has not
/// `max_size_amplification_percent` of it. Universal compaction takes all of them; here the small ones, which have much
/// to do meanwhile, stay out.
fn for_space(universal: &Universal<'_>) -> Option<Compaction> {
    if universal.picker.running.threads() == 1 {
        return universal.for_space(); // nothing would run beside it
    }
    let end = universal.runs.len().checked_sub(1)?;
    let oldest = universal.runs.get(end).filter(|r| !r.busy)?;
    let percent = u128::from(universal.of.max_size_amplification_percent);
    let free = universal.runs[..end].iter().rev().take_while(|r| !r.busy);
    let sizes: Vec<u128> = free.map(|r| u128::from(r.size)).collect();
    let (mut above, mut merged) = (sizes.iter().sum::<u128>(), u128::from(oldest.size));
    if sizes.is_empty() || above * 100 < merged * percent {
        return None;
    }
    let mut start = end;
    for size in sizes {
        (above, merged, start) = (above - size, merged + size, start - 1);
        if above * 100 < merged * percent {
            break;
        }
    }
    universal.of_runs(start, end, CompactionReason::UniversalSizeAmplification, true)
}

/// The level that has most free runs first.
fn by_level(universal: &Universal<'_>) -> Option<Compaction> {
    let picker = &universal.picker;
    let mut order: Vec<(usize, f64)> = picker.scores.scores.iter().copied().enumerate().collect();
    order.truncate(picker.num_levels());
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.into_iter().take_while(|(_, score)| *score >= 1.0).find_map(|(level, _)| of_level(universal, level))
}

fn of_level(universal: &Universal<'_>, level: usize) -> Option<Compaction> {
    let (picker, of) = (&universal.picker, universal.of);
    let reason = CompactionReason::UniversalSortedRunNum;
    if level + 1 >= picker.num_levels() {
        return within_last(universal, level);
    }
    let below = level + 1;
    let run = picker.new_run(below);
    // Oldest first; those that running jobs take deeper are no longer counted.
    let mut free: Vec<Files> = match level {
        0 => picker.free_l0(below, run).into_iter().map(|f| vec![f]).collect(),
        _ => {
            let leaves = |files: &&[Arc<_>]| files.iter().all(|f| picker.running.leaves_for_below(f, below, run));
            let runs = picker.version.levels[level].runs().rev().skip_while(leaves);
            runs.take_while(|files| !any_busy(files)).map(<[_]>::to_vec).collect()
        }
    };
    let due = due(universal);
    if free.len() < due {
        return None;
    }
    // No more than are due: where more wait, the next job begins beside this one.
    free.truncate(due.min(width_max(of)));
    let bytes = |runs: &[Files]| -> u64 { runs.iter().map(|files| total_bytes(files)).sum() };
    let others = bytes(&free[1..]) as f64;
    if level > 0 && bytes(&free[..1]) as f64 > others * (100.0 + f64::from(of.size_ratio)) / 100.0 {
        free.truncate(1);
    }
    let inputs: Inputs = match level {
        0 => vec![(0, free.into_iter().rev().flatten().collect())],
        _ => free.into_iter().rev().map(|files| (level, files)).collect(),
    };
    if !picker.has_room(&inputs, below) {
        return None;
    }
    picker.df_job(reason, inputs, below, run)
}

/// Runs of a level at which they are due; never more than it may have.
fn due(universal: &Universal<'_>) -> usize {
    let due = universal.trigger().max(universal.of.min_merge_width.max(2) as usize);
    due.min(runs_max(universal.picker.options))
}

/// Runs that a job merges at most which does not save space.
fn width_max(of: &UniversalCompactOptions) -> usize {
    of.max_merge_width.max(2) as usize
}

/// Neighbours of the last level into one run, that of the oldest of them. As in universal compaction runs of about one
/// size go together: one that is larger than the newer ones together stays out until these have grown, or all that
/// there is would be rewritten for each run that comes. Where the level takes no more runs, those go together that cost
/// least.
fn within_last(universal: &Universal<'_>, level: usize) -> Option<Compaction> {
    let (picker, of) = (&universal.picker, universal.of);
    let runs: Vec<&[Arc<_>]> = picker.version.levels[level].runs().collect();
    let due = due(universal).min(width_max(of));
    let full = runs.len() >= runs_max(picker.options);
    // How much of a job the oldest run of it may be.
    let larger = (100.0 + f64::from(of.size_ratio)) / 100.0;
    let mut best: Option<(f64, Range<usize>)> = None;
    for oldest in (1..runs.len()).rev().filter(|i| !any_busy(runs[*i])) {
        let (size, mut newer) = (total_bytes(runs[oldest]) as f64, 0.0);
        for newest in (oldest.saturating_sub(width_max(of) - 1)..oldest).rev() {
            if any_busy(runs[newest]) {
                break;
            }
            newer += total_bytes(runs[newest]) as f64;
            let alike = oldest + 1 - newest >= due && size <= newer * larger;
            // Bytes written for each that goes into another run.
            let cost = (size + newer) / f64::max(newer, 1.0);
            if (alike || full) && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, newest..oldest + 1));
            }
        }
    }
    let (_, range) = best?;
    let run = runs[range.end - 1].first()?.entry.extra_run;
    let inputs = runs[range].iter().map(|files| (level, files.to_vec())).collect();
    picker.df_job(CompactionReason::UniversalSortedRunNum, inputs, level, run)
}
