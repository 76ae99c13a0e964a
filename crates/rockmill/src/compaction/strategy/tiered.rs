//! The tiered strategy: RocksDB's universal compaction (`UniversalCompactionBuilder`).
//!
//! The tree is a row of *sorted runs*, newest first: each L0 file is one, and so is each deeper level that has files,
//! and each extra run that DF-compaction left. A job merges neighbours of the row, whole runs, into one run that takes
//! their place. When there are at least `level0_file_num_compaction_trigger` runs, or a file is due, these are tried in
//! order:
//!
//! 1. *Periodic*: if a file is too old, all runs from the oldest up to the first busy one.
//! 2. *Space*: if the runs above the oldest together reach `max_size_amplification_percent` of its size, all of them
//!    including the oldest.
//! 3. *Size ratio*: from the newest run on, each next one that is not larger than what was taken by more than
//!    `size_ratio` percent, `min_merge_width` to `max_merge_width` of them.
//! 4. *Count*: if there are more runs than may stay (`max_read_amp`), as many of the newest as necessary.
//! 5. Files that are marked for compaction, each with what it overlaps in the next level that has files.
//!
//! The output goes as deep as it can: into the last level if the oldest run is part of the job, else into the level
//! above the next older run. So no level ever has to be cleared for a run, and the invariant of the module above holds
//! without comparing keys: neighbours in the row are neighbours in age.

use std::sync::Arc;

use super::RunningCompactions;
use super::aging;
use super::inputs::{Files, Picker, any_busy, key_range};
use super::manual::ManualPick;
use super::score::compensated_size;
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::options::{CfOptions, CompressionType, UniversalCompactOptions, UniversalCompactionStopStyle};
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, Version};

/// A sorted run of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SortedRun {
    pub(super) level: usize,
    /// The extra run's id; 0: the base run, or a file of L0.
    run: u64,
    /// For L0, the position of its file; 0 for a deeper level, which is a run as a whole.
    index: usize,
    pub(super) size: u64,
    /// Including what its tombstones will free.
    compensated: u64,
    /// A running job has some of it.
    pub(super) busy: bool,
}

/// The next compaction of a tiered tree.
pub(super) fn pick(picker: Picker<'_>) -> Option<Compaction> {
    Universal::new(picker).pick()
}

/// The job that merges everything, for `compact_range`.
pub(super) fn everything(version: &Arc<Version>, options: &CfOptions, running: &RunningCompactions) -> ManualPick {
    let picker = Picker::new(version, options, running);
    let universal = Universal::new(picker);
    let Some(last) = universal.runs.len().checked_sub(1) else { return ManualPick::None };
    if universal.runs.iter().any(|r| r.busy) {
        return ManualPick::Conflict;
    }
    match universal.of_runs(0, last, CompactionReason::ManualCompaction, true) {
        Some(job) => ManualPick::Pick(Box::new(job), None),
        None => ManualPick::Conflict,
    }
}

fn sorted_runs(picker: &Picker<'_>) -> Vec<SortedRun> {
    let busy = |f: &Arc<FileMeta>| f.being_compacted.load(Atomic::Acquire);
    let mut runs: Vec<SortedRun> = Vec::new();
    for (index, f) in picker.files(0).iter().enumerate() {
        let (size, compensated) = (f.size(), compensated_size(f));
        runs.push(SortedRun { level: 0, run: 0, index, size, compensated, busy: busy(f) });
    }
    for (level, sums) in picker.sums.iter().enumerate().take(picker.num_levels()).skip(1) {
        for run in &sums.runs {
            let (size, compensated, busy) = (run.bytes, run.compensated, run.busy > 0);
            runs.push(SortedRun { level, run: run.id, index: 0, size, compensated, busy });
        }
    }
    runs
}

pub(super) struct Universal<'a> {
    pub(super) picker: Picker<'a>,
    pub(super) of: &'a UniversalCompactOptions,
    /// Newest first.
    pub(super) runs: Vec<SortedRun>,
}

/// A percentage of bytes, without overflow.
fn percent(bytes: u64, percent: u64) -> u128 {
    u128::from(bytes) * u128::from(percent)
}

impl<'a> Universal<'a> {
    /// The runs of a tree.
    pub(super) fn new(picker: Picker<'a>) -> Self {
        Self { runs: sorted_runs(&picker), of: &picker.options.compaction_options_universal, picker }
    }

    fn pick(&self) -> Option<Compaction> {
        let many = self.runs.len() >= self.trigger();
        let by_shape = || {
            self.for_space()
                .or_else(|| self.by_width(self.of.size_ratio, usize::MAX, CompactionReason::UniversalSizeRatio))
                .or_else(|| self.by_width(u32::MAX, self.runs_too_many()?, CompactionReason::UniversalSortedRunNum))
        };
        self.periodic().or_else(|| if many { by_shape() } else { None }).or_else(|| self.marked())
    }

    pub(super) fn trigger(&self) -> usize {
        self.picker.options.level0_file_num_compaction_trigger.max(1) as usize
    }

    fn last_level(&self) -> usize {
        self.picker.num_levels().saturating_sub(1)
    }

    /// If a file is too old: all runs from the oldest up to the first busy one.
    pub(super) fn periodic(&self) -> Option<Compaction> {
        let picker = &self.picker;
        if !picker.may_expire(picker.options.periodic_seconds(), picker.num_levels()) {
            return None;
        }
        let due = aging::periodic(picker.version, picker.options, picker.moment.now);
        if due.is_empty() {
            return None;
        }
        let free = self.runs.iter().rev().take_while(|r| !r.busy).count();
        let start = self.runs.len() - free;
        let first = self.runs.get(start)?;
        // If that is only one run, it must be one that is due.
        let is_due = |(level, f): &(usize, Arc<FileMeta>)| {
            *level == first.level
                && f.entry.extra_run == first.run
                && (*level > 0 || picker.files(0).get(first.index).is_some_and(|l0| Arc::ptr_eq(l0, f)))
        };
        if free == 1 && !due.iter().any(is_due) {
            return None;
        }
        self.of_runs(start, self.runs.len() - 1, CompactionReason::PeriodicCompaction, true)
    }

    /// The longest stretch of free runs that ends with the oldest, when those above it are too large for it.
    pub(super) fn for_space(&self) -> Option<Compaction> {
        let end = self.runs.len().checked_sub(1)?;
        let oldest = self.runs.get(end).filter(|r| !r.busy)?;
        let above = self.runs[..end].iter().rev().take_while(|r| !r.busy).count();
        if above == 0 {
            return None;
        }
        let mut start = end - above;
        let mut bytes: u64 = self.runs[start..end].iter().map(|r| r.compensated).sum();
        start += self.newest_to_leave_out(start, end, &mut bytes);
        if u128::from(bytes) * 100 < percent(oldest.size, u64::from(self.of.max_size_amplification_percent)) {
            return None;
        }
        self.of_runs(start, end, CompactionReason::UniversalSizeAmplification, true)
    }

    /// How many of the newest L0 files a job for space leaves out, so that it does not lock nearly all runs that
    /// writers may add before they are stopped. The remaining runs must still require the job, and be nine tenths of
    /// it.
    fn newest_to_leave_out(&self, start: usize, end: usize, bytes: &mut u64) -> usize {
        let l0_files = self.runs[start..end].iter().filter(|r| r.level == 0).count();
        if l0_files == 0 {
            return 0;
        }
        let stop = self.picker.options.level0_stop_writes_trigger.max(0) as usize;
        let most = (l0_files - 1).min(end - start - 1);
        let room = stop.saturating_sub(end - start + 1);
        let wish = |width: u32| (width as usize).saturating_sub(room).min(most);
        let needed = percent(self.runs[end].size, u64::from(self.of.max_size_amplification_percent));
        let (all, mut left_out) = (*bytes, 0);
        for n in wish(self.of.min_merge_width)..=wish(self.of.max_merge_width) {
            let without: u64 = self.runs[start + left_out..start + n].iter().map(|r| r.compensated).sum();
            let rest = *bytes - without;
            if u128::from(rest) * 100 < needed || rest < all.saturating_mul(9) / 10 {
                break;
            }
            (left_out, *bytes) = (n, rest);
        }
        left_out
    }

    /// How many runs a job must merge so that no more than the limit are left; `None` if there are no more now.
    fn runs_too_many(&self) -> Option<usize> {
        let allowed = match self.of.max_read_amp {
            n if n > 0 => n as usize,
            0 if self.of.stop_style == UniversalCompactionStopStyle::Total => self.runs_by_size(),
            _ => self.trigger(),
        };
        let free = self.runs.iter().filter(|r| !r.busy).count();
        (free > allowed).then(|| free - allowed + 1)
    }

    /// How many runs there would be if the newest is one memtable, and each next one is as large as it can be without
    /// being merged for its size, up to the size of the largest present run.
    fn runs_by_size(&self) -> usize {
        let largest = self.runs.iter().map(|r| r.size).max().unwrap_or(0) as f64;
        let factor = (100.0 + f64::from(self.of.size_ratio)) / 100.0;
        let (mut runs, mut size, mut total) = (1, self.picker.options.write_buffer_size.max(1) as f64, 0.0);
        while size < largest {
            total += size;
            size = factor * total;
            runs += 1; // few times: `size` at least doubles with each
        }
        runs
    }

    /// Neighbours from the newest free run on of which each next one is larger by at most `ratio` percent (`u32::MAX`:
    /// of any size), and at most `most` of them.
    fn by_width(&self, ratio: u32, most: usize, reason: CompactionReason) -> Option<Compaction> {
        let least = self.of.min_merge_width.max(2) as usize;
        let most = most.min(self.of.max_merge_width as usize);
        let larger = |size: u64| size as f64 * (100.0 + f64::from(ratio)) / 100.0;
        let mut at = 0;
        while let Some(first) = self.runs.get(at) {
            if first.busy {
                at += 1;
                continue;
            }
            let (mut taken, mut size) = (1, first.compensated);
            for next in self.runs[at + 1..].iter().take_while(|r| !r.busy) {
                if taken >= most || larger(size) < next.size as f64 {
                    break;
                }
                if self.of.stop_style == UniversalCompactionStopStyle::Similar {
                    if larger(next.size) < size as f64 {
                        break;
                    }
                    size = next.compensated;
                } else {
                    size = size.saturating_add(next.compensated);
                }
                taken += 1;
            }
            if taken >= least {
                let end = at + taken - 1;
                return self.of_runs(at, end, reason, self.compresses(end));
            }
            at += 1;
        }
        None
    }

    /// False if the runs after `end` are already such a large part of all data that this output stays uncompressed.
    fn compresses(&self, end: usize) -> bool {
        let Ok(limit) = u64::try_from(self.of.compression_size_percent) else { return true };
        let all: u64 = self.runs.iter().map(|r| r.compensated).sum();
        let older: u64 = self.runs[end + 1..].iter().map(|r| r.size).sum();
        end + 1 == self.runs.len() || u128::from(older) * 100 < percent(all, limit)
    }

    /// The job that merges the runs `start` to `end`. `None` when its output would cross a running job's.
    pub(super) fn of_runs(
        &self,
        start: usize,
        end: usize,
        reason: CompactionReason,
        compresses: bool,
    ) -> Option<Compaction> {
        let oldest = self.runs.get(end)?;
        let (output_level, output_run) = match self.runs.get(end + 1) {
            None => (self.last_level(), 0),
            // Above it in the same level: it takes the place of the oldest run that it merges.
            Some(next) if next.level == oldest.level && next.level > 0 => (oldest.level, oldest.run),
            Some(next) => (next.level.saturating_sub(1), 0),
        };
        let mut inputs: Vec<(usize, Files)> = Vec::new();
        for run in self.runs.get(start..=end)? {
            let files = self.picker.version.levels[run.level].run(run.run);
            match (run.level, inputs.first_mut()) {
                (0, Some((_, l0))) => l0.push(Arc::clone(&files[run.index])),
                (0, None) => inputs.push((0, vec![Arc::clone(&files[run.index])])),
                (level, _) => inputs.push((level, files.to_vec())),
            }
        }
        // RocksDB's estimate of the output: newer busy runs will be merged with it.
        let newest = match reason {
            CompactionReason::UniversalSizeRatio | CompactionReason::UniversalSortedRunNum => 0,
            _ => start,
        };
        let bytes = self.runs[newest..=end].iter().map(|run| run.size).fold(0, u64::saturating_add);
        self.finish(inputs, (output_level, output_run), reason, compresses, bytes)
    }

    /// The job. `bytes`: the size of its output for the choice of its path.
    fn finish(
        &self,
        inputs: Vec<(usize, Files)>,
        (output_level, output_run): (usize, u64),
        reason: CompactionReason,
        compresses: bool,
        bytes: u64,
    ) -> Option<Compaction> {
        let picker = &self.picker;
        // If DF jobs run or have run, the row alone does not determine the order.
        picker.running.depends_on(picker.version, &inputs, output_level, output_run)?;
        let mut c = picker.build(reason, inputs, output_level, true);
        // Runs are merged whole, so where this job's tables end does not matter to later jobs.
        c.output_run = output_run;
        if picker.version.has_extra_runs() {
            c.bottommost = !picker.version.reserves_last_level && output_level > 0 && c.older_runs().is_empty();
        }
        c.grandparents = Vec::new();
        c.output_file_size_max = c.output_file_size_target;
        c.grandparent_overlap_max = u64::MAX;
        if !compresses {
            c.compression = CompressionType::None;
        }
        c.trivial_move = self.moves(&c);
        if reason != CompactionReason::ManualCompaction {
            let moves = c.trivial_move && self.of.allow_trivial_move;
            c.choose_path_for(picker.options, bytes);
            // With the option RocksDB does not ask where the tables are.
            c.trivial_move |= moves;
        }
        Some(c)
    }

    /// True when the inputs can become live in the output level as they are.
    fn moves(&self, c: &Compaction) -> bool {
        let picker = &self.picker;
        let must_filter = c.reason == CompactionReason::ManualCompaction && picker.options.has_compaction_filter();
        if must_filter || c.start_level() == c.output_level || c.output_level == 0 || c.output_run > 0 {
            return false;
        }
        // Both must be on one path, as in RocksDB: with the option, only what it allows may move.
        if self.of.allow_trivial_move {
            let asked_for =
                matches!(c.reason, CompactionReason::PeriodicCompaction | CompactionReason::ManualCompaction);
            return !asked_for && disjoint(picker, &c.inputs);
        }
        let one_level = c.inputs.len() == 1 && picker.compression(c.start_level()) == c.compression;
        one_level && (c.start_level() > 0 || picker.level0_disjoint())
    }

    /// A marked file, with what it overlaps in the next level that has files.
    pub(super) fn marked(&self) -> Option<Compaction> {
        let picker = &self.picker;
        let marked = |f: &FileMeta| f.entry.marked_for_compaction && !f.being_compacted.load(Atomic::Acquire);
        if self.last_level() == 0 {
            // Of one level: with all older runs, as for space.
            let start = self.runs.iter().position(|r| !r.busy && marked(&picker.files(0)[r.index]))?;
            let free = self.runs[start..].iter().take_while(|r| !r.busy).count();
            return (free > 1)
                .then(|| self.of_runs(start, start + free - 1, CompactionReason::FilesMarkedForCompaction, true))?;
        }
        let deepest = self.runs.last()?.level;
        for level in 0..=deepest.saturating_sub(1) {
            if level == 0 && picker.level0_busy() {
                continue;
            }
            let below = (level + 1..=self.last_level()).find(|&l| !picker.files(l).is_empty());
            let output_level = match below {
                Some(l) => l,
                None if level == 0 => self.last_level(),
                None => continue,
            };
            for f in picker.files(level).iter().filter(|f| marked(f)) {
                let mut files = vec![Arc::clone(f)];
                if level == 0 {
                    let (s, l) = key_range(picker.cmp(), &files)?;
                    files = picker.overlapping(0, Some(s), Some(l));
                } else if !picker.expand_to_clean_cut(level, &mut files) {
                    continue;
                }
                if any_busy(&files) {
                    continue;
                }
                let Some(output) = picker.setup_other_inputs(level, &mut files, output_level, false) else { continue };
                let inputs = vec![(level, files), (output_level, output)];
                let (reason, bytes) =
                    (CompactionReason::FilesMarkedForCompaction, picker.version.level_bytes(output_level));
                let job = self.finish(inputs, (output_level, 0), reason, true, bytes);
                if job.is_some() {
                    return job;
                }
            }
        }
        None
    }
}

/// True when no two files of the inputs share a user key.
fn disjoint(picker: &Picker<'_>, inputs: &[(usize, Files)]) -> bool {
    let cmp = picker.cmp();
    let mut files: Vec<&Arc<FileMeta>> = inputs.iter().flat_map(|(_, files)| files).collect();
    files.sort_by(|a, b| cmp.compare_user(a.smallest_user_key(), b.smallest_user_key()));
    files.windows(2).all(|w| cmp.compare_user(w[0].largest_user_key(), w[1].smallest_user_key()).is_lt())
}

#[cfg(test)]
mod tests;
