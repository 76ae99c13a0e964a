//! DF-leveled: leveled compaction whose levels may have extra runs.
//!
//! For each level that is due, by score:
//!
//! - *L0*: merged into the base level as in leveled compaction, if that is free and will then fit (case A). Otherwise
//!   the oldest free files immediately become an extra run of the base level; several such jobs may run in parallel.
//! - *Too large* (case B): the level's oldest data goes down, base run first. Tables with nothing older in their level
//!   are only moved: into the oldest run of the level below that has room for their keys, or into a new extra run.
//! - *Too many extra runs* (case A): files of the newest runs are merged into the base run, with all overlapping tables
//!   in between. Such jobs cover little of the key space, so many can run at once.
//! - *Writers wait for flushes* (`set_flush_bound`): only one job at a time leaves L0, and it takes all of L0. Runs are
//!   kept until there are many, which then go down as one. Writing few bytes then matters more than running many jobs.
//! - *Few threads, and the tree slows writers*: one job at a time leaves L0 here, too, and takes all of L0.
//! - *While writers are active*, such a merge must be cheap (`merge_cost_max`), unless the level above or writers would
//!   otherwise have to wait.
//! - *When writers are idle*, no job runs and no level is full, the remaining extra runs are merged, too, to speed up
//!   reads.

use std::sync::Arc;

use super::super::inputs::{Files, Picker, any_busy, total_bytes};
use super::{Inputs, runs_due, runs_kept_flush_bound, runs_max};
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::pacing::write_control::{StallReason, WriteControl, write_control};
use crate::sync::atomic::Ordering as Atomic;

/// Most files of a run that are tried as the first file of a merge.
const CANDIDATES_MAX: usize = 64;

/// Most threads with which one job takes all of L0 while the tree slows writers. Simulated (51 fills and overwrites of
/// 2 to 30 GB, on four devices): with one thread 1.45 times the throughput on average (0.88 to 3.0), with two 1.20
/// (0.81 to 1.9), with three 1.03 (0.88 to 1.26); on a fast device with four 0.8 to 1.06, with more 0.5 to 0.65.
const FEW_THREADS: usize = 2;

/// The next job of a leveled tree that has extra runs, or may get some.
pub(in crate::compaction::strategy) fn pick(picker: &Picker<'_>) -> Option<Compaction> {
    picker.df_by_score().or_else(|| picker.marked()).or_else(|| picker.due()).or_else(|| picker.at_rest())
}

impl Picker<'_> {
    fn df_by_score(&self) -> Option<Compaction> {
        let mut order: Vec<(usize, f64)> = self.scores.scores.iter().copied().enumerate().collect();
        order.truncate(self.num_levels());
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        order.into_iter().take_while(|(_, score)| *score >= 1.0).find_map(|(level, _)| match level {
            0 => self.leave_l0(),
            _ => self.of_level(level),
        })
    }

    /// The job if nothing runs and nothing else can run. A level may have a score but not enough files for a job (few,
    /// large files in L0); it must not prevent these merges, which readers benefit from.
    fn at_rest(&self) -> Option<Compaction> {
        let idle = self.running.count() == 0 && !self.is_flush_bound();
        let levels = (1..self.num_levels()).filter(|&level| idle && self.sums[level].free_depth > 0);
        levels.into_iter().find_map(|level| self.merge_extras(level))
    }

    fn leave_l0(&self) -> Option<Compaction> {
        let (reason, base) = (CompactionReason::LevelL0FilesNum, self.scores.base_level);
        if base == 0 {
            return None;
        }
        let run = self.new_run(base);
        let free = self.free_l0(base, run);
        if let Some(oldest) = free.first()
            && let Some(moved) = self.sink(reason, &vec![(0, vec![Arc::clone(oldest)])], base, false)
        {
            return Some(moved);
        }
        let room = self.has_room(&[(0, free.clone())], base);
        let whole = || {
            let mut files = free.clone();
            files.reverse();
            let inputs = self.l0_with(files, base)?;
            let fits = inputs.iter().flat_map(|(_, f)| f).map(|f| f.size()).sum::<u64>() <= self.scores.targets[base];
            let last = base + 1 >= self.num_levels();
            (fits || !self.options.compaction_downforce || (last && !room)).then_some(inputs)
        };
        if free.is_empty() {
            return self.intra_l0();
        }
        if !self.running.leaves_level(0)
            && let Some(inputs) = whole()
            && let Some(c) = self.df_job(reason, inputs, base, 0)
        {
            return Some(c);
        }
        let due = self.options.level0_file_num_compaction_trigger.max(1) as usize;
        let alone = self.is_flush_bound() || self.is_thread_bound();
        // Where writers are close to a stop, even few tables must not wait for more.
        let more = self.is_flush_bound() || (alone && self.write_control().pressure < 1.0);
        let least = if more { 2 * due } else { due };
        let enough = free.len() >= least && !(alone && self.running.leaves_level(0));
        if self.options.compaction_downforce && room && enough {
            // No more than are due: if more wait, the next job runs in parallel. If no other job may run: all of them,
            // because merging fewer runs later is cheaper.
            let most = if alone { usize::MAX } else { runs_due(self.options) };
            let mut files: Files = free.into_iter().take(most).collect();
            files.reverse();
            return self.df_job(reason, vec![(0, files)], base, run);
        }
        if self.is_flush_bound() && room {
            return None; // an intra-L0 merge would cost as much as the job that it waits for
        }
        self.intra_l0()
    }

    /// Files of L0 with all tables that they overlap in the base level.
    fn l0_with(&self, files: Files, base: usize) -> Option<Inputs> {
        let (s, l) = super::key_range(self.cmp(), &files)?;
        let (s, l) = (s.user_key().to_vec(), l.user_key().to_vec());
        let mut inputs = vec![(0, files)];
        let (mut begin, mut end) = (s, l);
        let level = self.version.levels.get(base)?;
        for run in level.runs() {
            let more = self.in_run(run, &begin, &end);
            if any_busy(&more) {
                return None;
            }
            let Some((s, l)) = super::key_range(self.cmp(), &more) else { continue };
            if self.cmp().compare_user(s.user_key(), &begin).is_lt() {
                begin = s.user_key().to_vec();
            }
            if self.cmp().compare_user(l.user_key(), &end).is_gt() {
                end = l.user_key().to_vec();
            }
            inputs.push((base, more));
        }
        Some(inputs)
    }

    /// If nothing can leave L0, merges its newest files with each other, so that reads do not suffer from the wait.
    fn intra_l0(&self) -> Option<Compaction> {
        let start = self.intra_l0_by_cost()?;
        self.df_job(CompactionReason::LevelL0FilesNum, vec![(0, start.into_files())], 0, 0)
    }

    fn of_level(&self, level: usize) -> Option<Compaction> {
        let bytes = self.sums[level].free_bytes();
        let last = level + 1 >= self.num_levels();
        let unnecessary = self.scores.lowest_unnecessary_level.is_some_and(|l| level <= l);
        let too_large = !last && (bytes > self.scores.targets[level] || unnecessary);
        let depth = self.sums[level].depth;
        if self.is_flush_bound() && depth > 0 {
            // No merge until there are more runs than usual, and then all of them at once.
            let all = depth > runs_kept_flush_bound(self.options);
            let down = || if too_large { self.push_stack_down(level) } else { None };
            return if all { down().or_else(|| self.merge_extras(level)) } else { None };
        }
        if too_large {
            if depth > 1
                && let Some(c) = self.collapse(level)
            {
                return Some(c);
            }
            if let Some(c) = self.push_down(level) {
                return Some(c);
            }
            // It will be pushed down soon: merging it first is wasted work, unless reads suffer.
            if depth < runs_max(self.options) && self.options.compaction_downforce {
                return None;
            }
        }
        self.merge_extras(level)
    }

    /// If nothing comes from L0 and no job runs: merges the overlapping runs of a level, with everything older, into
    /// the base run of the deepest level, unless that run is larger than what is merged into it. Pushed down step by
    /// step, the data would be written in each level, and the deepest base run would be rewritten for a few runs at a
    /// time.
    fn collapse(&self, level: usize) -> Option<Compaction> {
        if self.scores.scores[0] >= 1.0 || self.running.count() > 0 {
            return None;
        }
        let deepest = (level + 1..self.num_levels()).rev().find(|l| !self.version.levels[*l].is_empty())?;
        let newest = self.version.levels[level].extras.first()?;
        let mut best: Option<(u64, u64, Inputs)> = None;
        for f in newest.files.iter().take(CANDIDATES_MAX) {
            let files = self.in_run(&newest.files, f.smallest_user_key(), f.largest_user_key());
            if any_busy(&files) {
                continue;
            }
            let Some(inputs) = self.down_to((level, newest.id), files, deepest, 0, true) else { continue };
            let all: u64 = inputs.iter().map(|(_, f)| total_bytes(f)).sum();
            let base = inputs.last().filter(|(l, f)| *l == deepest && f.iter().all(|f| f.entry.extra_run == 0));
            let base = base.map_or(0, |(_, f)| total_bytes(f));
            let cheaper =
                |b: &(u64, u64, Inputs)| u128::from(base) * u128::from(b.0) < u128::from(b.1) * u128::from(all);
            if base <= all / 2 && all <= 2 * self.max_compaction_bytes() && best.as_ref().is_none_or(cheaper) {
                best = Some((all, base, inputs));
            }
        }
        self.df_job(CompactionReason::LevelMaxLevelSize, best?.2, deepest, 0)
    }

    /// The oldest data of a level that can go down.
    fn push_down(&self, level: usize) -> Option<Compaction> {
        let reason = CompactionReason::LevelMaxLevelSize;
        let below = level + 1;
        let run = self.new_run(below);
        let from_base = self.by_overlap(level);
        let base = &self.version.levels[level].base;
        let extras = self.version.levels[level].extras.iter().rev().flat_map(|r| r.files.iter().map(|f| (r.id, f)));
        let seeds = from_base.map(|i| (0, &base[i])).chain(extras);
        let free = seeds.filter(|(_, f)| !f.being_compacted.load(Atomic::Acquire));
        for (of_run, f) in free.take(4 * CANDIDATES_MAX) {
            let run_files = self.version.levels[level].run(of_run);
            let files = self.in_run(run_files, f.smallest_user_key(), f.largest_user_key());
            if any_busy(&files) {
                continue;
            }
            let Some(own) = self.down_to((level, of_run), files.clone(), below, run, false) else { continue };
            let own: Inputs = own.into_iter().filter(|(l, _)| *l == level).collect();
            let room = self.options.compaction_downforce && self.has_room(&own, below);
            if let Some(c) = self.sink(reason, &own, below, room) {
                return Some(c);
            }
            if room
                && own.iter().map(|(_, f)| total_bytes(f)).sum::<u64>() <= self.max_compaction_bytes()
                && let Some(c) = self.df_job(reason, own, below, run)
            {
                return Some(c);
            }
            if !room
                && let Some(inputs) = self.down_to((level, of_run), files, below, 0, true)
                && let Some(c) = self.df_job(reason, inputs, below, 0)
            {
                return Some(c);
            }
        }
        None
    }

    /// Pushes all overlapping runs of a level down as one extra run of the level below: each byte is written only once
    /// for all of them.
    fn push_stack_down(&self, level: usize) -> Option<Compaction> {
        let (below, extras) = (level + 1, &self.version.levels[level].extras);
        let run = self.new_run(below);
        let runs = (runs_kept_flush_bound(self.options) + 1).min(extras.len());
        for newest in &extras[..(extras.len() + 1).saturating_sub(runs)] {
            for f in newest.files.iter().filter(|f| !f.being_compacted.load(Atomic::Acquire)).take(CANDIDATES_MAX) {
                let files = self.in_run(&newest.files, f.smallest_user_key(), f.largest_user_key());
                if any_busy(&files) {
                    continue;
                }
                let Some(own) = self.down_to((level, newest.id), files, below, run, false) else { continue };
                let own: Inputs = own.into_iter().filter(|(l, _)| *l == level).collect();
                if own.len() >= runs
                    && self.has_room(&own, below)
                    && let Some(c) = self.df_job(CompactionReason::LevelMaxLevelSize, own, below, run)
                {
                    return Some(c);
                }
            }
        }
        None
    }

    /// Merges files of the newest extra runs into the base run.
    fn merge_extras(&self, level: usize) -> Option<Compaction> {
        let extras = &self.version.levels[level].extras;
        let at_work = self.options.compaction_downforce && !self.is_flush_bound() && self.running.writers_at_work();
        let at_work = at_work && !self.keeps_l0_waiting(level) && !self.keeps_writers_waiting();
        let due = if self.is_flush_bound() { runs_kept_flush_bound(self.options) + 1 } else { runs_due(self.options) };
        let at_once = super::merges_at_once(self.options) && self.sums[level].busy() == 0;
        // While writers are active: wherever it is cheap. Otherwise: where at least the due number of runs overlap;
        // when idle, where most runs overlap.
        let (least, cost_max) = match at_work {
            _ if at_once => (1, f64::INFINITY),
            true => (1, self.merge_cost_max(level)),
            false => (due.min(self.sums[level].free_depth), f64::INFINITY),
        };
        let limit = self.max_compaction_bytes();
        let mut best: Option<(f64, Inputs)> = None;
        for run in extras.iter().take((extras.len() + 1).saturating_sub(least)) {
            let free: Vec<_> = run.files.iter().filter(|f| !f.being_compacted.load(Atomic::Acquire)).collect();
            let step = free.len().div_ceil(CANDIDATES_MAX).max(1);
            for f in free.into_iter().step_by(step) {
                let find = || self.overlap_below(level, run.id, f);
                let found = self.running.overlap_below(level, f.number(), find);
                debug_assert_eq!(found, find().found);
                let Some((all, base, runs)) = found else { continue };
                if runs < least {
                    continue;
                }
                // Bytes written for each byte that leaves the extra runs. Merges that are too large are chosen only if
                // there is no other.
                let of_each = all as f64 / (all - base).max(1) as f64;
                let cost = of_each + if all > limit { all as f64 / limit as f64 } else { 0.0 };
                if best.as_ref().is_some_and(|b| cost >= b.0) {
                    continue;
                }
                let files = self.in_run(&run.files, f.smallest_user_key(), f.largest_user_key());
                // Expensive merges only if the level above would otherwise have to wait.
                if of_each > cost_max && (runs < due || self.has_room(&[(level, files.clone())], level)) {
                    continue;
                }
                if let Some(inputs) = self.down_to((level, run.id), files, level, 0, true)
                    && self.running.depends_on(self.version, &inputs, level, 0).is_some()
                {
                    best = Some((cost, inputs));
                }
            }
        }
        let (_, inputs) = best?;
        self.df_job(CompactionReason::LevelMaxLevelSize, inputs, level, 0)
    }

    /// True if files that are due in L0 must wait until the level has fewer runs, and no job is about to reduce them.
    /// L0 spans many keys, so it also waits for disjoint runs, even if each key has room for more.
    fn keeps_l0_waiting(&self, level: usize) -> bool {
        if level != self.scores.base_level || self.scores.scores[0] < 1.0 || self.sums[level].busy() > 0 {
            return false;
        }
        let free = self.free_l0(level, self.new_run(level));
        !free.is_empty() && !self.has_room(&[(0, free)], level)
    }

    /// True if sorted runs slow down writers although most threads are idle: merges that are deferred to save bytes
    /// must not delay writers.
    fn keeps_writers_waiting(&self) -> bool {
        let idle = self.running.count() == 0 || 2 * self.running.idle_threads() > self.running.threads();
        let control = self.write_control();
        idle && control.pressure > 0.0 && control.reason == StallReason::L0Files
    }

    /// True if the tree slows writers and there are only few threads. Then these are the bottleneck, and few large jobs
    /// from L0, which leave few runs to be merged, matter more than several that run in parallel.
    fn is_thread_bound(&self) -> bool {
        let few = (1..=FEW_THREADS).contains(&self.running.threads()) && self.options.compaction_downforce;
        few && self.running.writers_at_work() && self.write_control().pressure > 0.0
    }

    fn write_control(&self) -> WriteControl {
        write_control(self.scores.load(), self.options)
    }

    /// Most bytes that a merge into the base run of a level may write for each byte of its extra runs while writers are
    /// active. At 100 percent: the cost with the due number of runs, each as large as the level above may be. Leveled
    /// compaction merges one such run at a time, and therefore rewrites the base run as many times more often.
    fn merge_cost_max(&self, level: usize) -> f64 {
        let due = runs_due(self.options);
        let above = match level > self.scores.base_level {
            true => self.scores.targets[level - 1],
            false => (self.options.write_buffer_size as u64).saturating_mul(due as u64),
        };
        let base = self.base_bytes(level) as f64 / above.max(1) as f64 / due as f64;
        1.0 + base * f64::from(self.options.compaction_downforce_merge_percent) / 100.0
    }
}
