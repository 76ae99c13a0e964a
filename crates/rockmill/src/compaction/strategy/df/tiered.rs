//! DF-tiered: each level has up to `level0_file_num_compaction_trigger` runs. All of them together become one new extra
//! run of the next level; the next such job can begin while the first one runs. A level's runs are of about the same
//! size.
//!
//! The options of universal compaction mean here:
//!
//! - `min_merge_width`: the least number of runs that a job merges, if that is more than the trigger and a level may
//!   have that many. A job takes no more than are due, so that the next job can run in parallel, and no more than
//!   `max_merge_width`; only jobs that save space may take more.
//! - `size_ratio`: if a level's oldest run is larger than its other runs together by more than this percentage, it is
//!   not merged with them, but moved down as it is. Only trees that another strategy left have such runs.
//! - `max_size_amplification_percent`: when the runs above the oldest one reach this percentage of its size (not
//!   counting busy runs), it is merged with the oldest of them, as many as needed to get below the limit. DF jobs above
//!   continue meanwhile.
//! - `stop_style`, `max_read_amp` and `compression_size_percent` have no meaning here and are refused.
//! - Periodic and marked files are compacted as in universal compaction.
//!
//! The last level merges neighbouring runs of about the same size; its base run is one of its runs.

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

/// Merges the oldest run with as many runs above it as necessary: the remaining ones above are below
/// `max_size_amplification_percent` of it. Universal compaction takes all of them; here the small runs, which other
/// jobs need meanwhile, stay out.
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

/// Tries the level with the most free runs first.
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
    // Oldest first; runs that running jobs move deeper do not count.
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
    // No more than are due: if more wait, the next job runs in parallel.
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

/// Number of runs at which a level is due; never more than it may have.
fn due(universal: &Universal<'_>) -> usize {
    let due = universal.trigger().max(universal.of.min_merge_width.max(2) as usize);
    due.min(runs_max(universal.picker.options))
}

/// Most runs that a job merges, unless it saves space.
fn width_max(of: &UniversalCompactOptions) -> usize {
    of.max_merge_width.max(2) as usize
}

/// Merges neighbouring runs of the last level into the oldest of them. As in universal compaction, runs of about the
/// same size are merged: a run that is larger than the newer ones together stays out until these have grown; otherwise
/// everything would be rewritten for each new run. If the level accepts no more runs, the cheapest merge is chosen.
fn within_last(universal: &Universal<'_>, level: usize) -> Option<Compaction> {
    let (picker, of) = (&universal.picker, universal.of);
    let runs: Vec<&[Arc<_>]> = picker.version.levels[level].runs().collect();
    let due = due(universal).min(width_max(of));
    let full = runs.len() >= runs_max(picker.options);
    // How large a job's oldest run may be, relative to the others.
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
            // Bytes written for each byte that moves to another run.
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
