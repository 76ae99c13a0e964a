//! DF-compaction: jobs that do not wait for other jobs to end (`docs/compaction.md` has pictures and the paper's
//! terms).
//!
//! A classic job also takes all overlapping tables of the level below, and waits while another job has any of them. A
//! *DF job* takes tables only from its own level, with everything older above its output. Its output becomes an *extra
//! run* of the level below, above that level's base run. It need not wait for tables that running jobs are moving
//! deeper: it only commits after those jobs (`order.rs`). Extra runs are merged into the base run later, several at
//! once, so fewer bytes are written in total.
//!
//! - [`leveled`]: levels have size limits, and as many extra runs as L0 may have files.
//! - [`tiered`]: levels have runs of about the same size; when there are enough, they are merged into one run of the
//!   next level.
//!
//! Both accept any tree. If the option was switched off, `leveled` merges existing extra runs without making new ones.

pub mod leveled;
pub mod tiered;

use std::ops::Range;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;

use super::inputs::{Files, Picker, any_busy, key_range, total_bytes};
use super::tree_index::{KeyRange, OverlapBelow};
use crate::compaction::{Compaction, has_older_runs};
use crate::event_listener::CompactionReason;
use crate::options::{CfOptions, CompactionStyle};
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, Level, touched};

/// Inputs of a job: (level, files), run by run.
type Inputs = Vec<(usize, Files)>;

/// Number of extra runs at which a level is due for a merge: as many as L0 may have files.
pub fn runs_due(options: &CfOptions) -> usize {
    options.level0_file_num_compaction_trigger.max(2) as usize
}

/// Number of extra runs at which no DF job adds another one to a level: twice as many. Runs that a running job moves
/// deeper are not counted, so lookups may have to search more runs until that job commits.
pub fn runs_max(options: &CfOptions) -> usize {
    2 * runs_due(options)
}

/// The same while writers wait for flushes: three times as many. Merges begin above [`runs_kept_flush_bound`], which
/// leaves room for the runs that arrive meanwhile.
pub fn runs_max_flush_bound(options: &CfOptions) -> usize {
    3 * runs_due(options)
}

/// Number of extra runs that a level may keep unmerged while writers wait for flushes: two and a half times as many as
/// L0 may have files.
pub fn runs_kept_flush_bound(options: &CfOptions) -> usize {
    runs_due(options) * 5 / 2
}

/// True if a level's extra runs are merged as soon as no job holds any of the level, as in the paper.
pub fn merges_at_once(options: &CfOptions) -> bool {
    options.compaction_downforce && options.compaction_downforce_merge_at_once
}

/// The largest number of a level's extra runs that cover the same key; only files accepted by `counts` are considered.
pub fn extra_depth(cmp: &InternalKeyComparator, level: &Level, counts: impl Fn(&FileMeta) -> bool) -> usize {
    if level.extras.len() < 2 {
        return level.extras.iter().filter(|run| run.files.iter().any(|f| counts(f))).count();
    }
    // The depth grows where a file begins, and falls after its end. At the same key, beginnings come first.
    let mut edges: Vec<(&[u8], bool)> = Vec::new();
    for f in level.extras.iter().flat_map(|run| &run.files).filter(|f| counts(f)) {
        edges.push((f.smallest_user_key(), false));
        edges.push((f.largest_user_key(), true));
    }
    edges.sort_by(|a, b| cmp.compare_user(a.0, b.0).then(a.1.cmp(&b.1)));
    let (mut depth, mut most) = (0, 0);
    for (_, end) in edges {
        if end {
            depth -= 1;
        } else {
            depth += 1;
            most = most.max(depth);
        }
    }
    most
}

impl Picker<'_> {
    /// True if a level may get another extra run with the keys of `inputs`: not too many of its runs overlap these
    /// keys, and it has less than twice as many runs in total. The total matters because a seek also visits runs whose
    /// keys are elsewhere.
    fn has_room(&self, inputs: &[(usize, Files)], level: usize) -> bool {
        self.has_room_at(inputs, level) && self.runs_that_stay(level) < 2 * self.runs_most()
    }

    /// True if not too many runs of a level overlap the keys of `inputs`, including runs that running jobs will write.
    /// Tables that jobs move deeper do not count: they leave when those jobs commit, and DF-compaction exists to avoid
    /// waiting for that.
    fn has_room_at(&self, inputs: &[(usize, Files)], level: usize) -> bool {
        let Some((s, l)) = key_range(self.cmp(), inputs.iter().flat_map(|(_, f)| f)) else { return false };
        let (s, l) = (s.user_key(), l.user_key());
        let has_some = |files: &[Arc<FileMeta>]| !touched(self.cmp(), files, Some(s), Some(l)).is_empty();
        let leaves = |files: &[Arc<FileMeta>]| self.in_run(files, s, l).iter().all(|f| self.leaves(f, level));
        let live = self.version.levels[level].extras.iter().filter(|run| has_some(&run.files) && !leaves(&run.files));
        let mut runs: Vec<u64> = live.map(|run| run.id).collect();
        runs.extend(self.running.runs_to_come(self.cmp(), level, s, l));
        runs.sort_unstable();
        runs.dedup();
        runs.len() < self.runs_most()
    }

    /// Number of extra runs of a level, regardless of their keys. Runs that running jobs will write count; runs that
    /// jobs take completely do not.
    fn runs_that_stay(&self, level: usize) -> usize {
        let stays = |files: &[Arc<FileMeta>]| !files.iter().all(|f| self.leaves(f, level));
        let extras = self.version.levels[level].extras.iter().filter(|run| stays(&run.files));
        let live: Vec<u64> = extras.map(|run| run.id).collect();
        live.len() + self.running.new_runs_to_come(level, |run| live.contains(&run))
    }

    /// True if a running job moves a file of a level deeper. In the last level of df-tiered, files leave for the base
    /// run instead.
    fn leaves(&self, f: &FileMeta, level: usize) -> bool {
        let tiered = self.options.compaction_style == CompactionStyle::Universal;
        match tiered && level + 1 == self.num_levels() {
            true => self.running.leaves_extra_runs(f, level),
            false => self.running.leaves_for_below(f, level, 0),
        }
    }

    /// Number of extra runs over one key at which no job adds another one.
    fn runs_most(&self) -> usize {
        if self.is_flush_bound() { runs_max_flush_bound(self.options) } else { runs_max(self.options) }
    }

    /// True if writers wait for flushes, so that writing few bytes matters more than running many jobs.
    fn is_flush_bound(&self) -> bool {
        self.running.flush_bound && self.options.compaction_downforce
    }

    /// The id of a new extra run, newer than all existing and planned ones.
    pub(super) fn new_run(&self, level: usize) -> u64 {
        let newest = self.version.levels[level].extras.first().map_or(0, |run| run.id);
        self.running.newest_run_to_come(level).max(newest) + 1
    }

    /// Files of a sorted run that overlap a key range, and neighbours that share a user key with them.
    fn in_run(&self, files: &[Arc<FileMeta>], begin: &[u8], end: &[u8]) -> Files {
        let cmp = self.cmp();
        let Range { start: mut from, end: mut to } = touched(cmp, files, Some(begin), Some(end));
        let shared = |i: usize| cmp.compare_user(files[i - 1].largest_user_key(), files[i].smallest_user_key()).is_eq();
        while from < to && from > 0 && shared(from) {
            from -= 1;
        }
        while to > from && to < files.len() && shared(to) {
            to += 1;
        }
        files[from..to].to_vec()
    }

    /// `files` of one run with everything older that they overlap, run by run down to `(level, run)`, with or without
    /// that run. Tables that running jobs move deeper than that are left out. `None` if another job has one of the
    /// others.
    fn down_to(&self, first: (usize, u64), files: Files, level: usize, run: u64, included: bool) -> Option<Inputs> {
        self.look_down(first, files, level, run, included).0
    }

    /// The same, and the range of user keys that the result depends on.
    fn look_down(
        &self,
        first: (usize, u64),
        files: Files,
        level: usize,
        run: u64,
        included: bool,
    ) -> (Option<Inputs>, KeyRange) {
        let cmp = self.cmp();
        let Some((s, l)) = key_range(cmp, &files) else { return (None, KeyRange::default()) };
        let (mut begin, mut end) = (s.user_key().to_vec(), l.user_key().to_vec());
        let widen = |begin: &mut Vec<u8>, end: &mut Vec<u8>, files: &Files| {
            let Some((s, l)) = key_range(cmp, files) else { return };
            if cmp.compare_user(s.user_key(), begin).is_lt() {
                *begin = s.user_key().to_vec();
            }
            if cmp.compare_user(l.user_key(), end).is_gt() {
                *end = l.user_key().to_vec();
            }
        };
        let mut seen = (begin.clone(), end.clone());
        if any_busy(&files) {
            return (None, seen);
        }
        let mut inputs = vec![(first.0, files)];
        let levels = self.version.levels.iter().enumerate().take(level + 1).skip(first.0.max(1));
        for (of_level, files) in levels.flat_map(|(i, l)| l.runs().map(move |run| (i, run))) {
            let id = files.first().map_or(0, |f| f.entry.extra_run);
            let below = of_level > first.0 || id < first.1;
            let above = of_level < level || id > run || (included && id == run);
            if !below || !above {
                continue;
            }
            let mut more = self.in_run(files, &begin, &end);
            if more.is_empty() {
                continue;
            }
            widen(&mut seen.0, &mut seen.1, &more);
            more.retain(|f| !self.running.leaves_for_below(f, level, run));
            if any_busy(&more) {
                return (None, seen);
            }
            if more.is_empty() {
                continue;
            }
            widen(&mut begin, &mut end, &more);
            inputs.push((of_level, more));
        }
        (Some(inputs), seen)
    }

    /// The tables above and below a file of an extra run, down to its level's base run.
    fn overlap_below(&self, level: usize, run: u64, f: &FileMeta) -> OverlapBelow {
        let of_run = self.version.levels[level].run(run);
        let files = self.in_run(of_run, f.smallest_user_key(), f.largest_user_key());
        let (inputs, keys) = self.look_down((level, run), files, level, 0, true);
        let found = inputs.map(|inputs| {
            let all = inputs.iter().map(|(_, files)| total_bytes(files)).sum();
            let extra = |files: &Files| files.first().is_some_and(|f| f.entry.extra_run > 0);
            let base = inputs.iter().filter(|(_, files)| !extra(files)).map(|(_, files)| total_bytes(files)).sum();
            (all, base, inputs.iter().filter(|(_, files)| extra(files)).count())
        });
        OverlapBelow { keys, found }
    }

    /// The job, if it may run now.
    pub(super) fn df_job(
        &self,
        reason: CompactionReason,
        inputs: Inputs,
        level: usize,
        run: u64,
    ) -> Option<Compaction> {
        self.running.depends_on(self.version, &inputs, level, run)?;
        let one_run = inputs.len() == 1 && (inputs[0].0 > 0 || inputs[0].1.len() == 1);
        let mut c = self.build(reason, inputs, level, true);
        c.output_run = run;
        c.bottommost = !self.version.reserves_last_level && !has_older_runs(self.version, &c.inputs, level, run);
        let from = (c.start_level(), c.inputs.first()?.1.first()?.entry.extra_run);
        c.trivial_move = one_run && from != (level, run) && self.compression(from.0) == c.compression;
        if reason != CompactionReason::ManualCompaction {
            c.choose_path(self.options);
        }
        self.fit_extra_run(&mut c);
        if !c.trivial_move {
            c.subcompactions_max = self.parts(&c);
        }
        Some(c)
    }

    /// A job for a table of an extra run that is due regardless of the tree's shape. If the table stays, only its run
    /// is rewritten. Otherwise the table goes into the base run of its level, with everything older there that it
    /// overlaps, and from there down like other tables.
    pub(super) fn of_extra_run(
        &self,
        level: usize,
        f: &FileMeta,
        stays: bool,
        reason: CompactionReason,
    ) -> Option<Compaction> {
        let run = f.entry.extra_run;
        let files = self.in_run(self.version.levels[level].run(run), f.smallest_user_key(), f.largest_user_key());
        if any_busy(&files) {
            return None;
        }
        match stays {
            true => self.df_job(reason, vec![(level, files)], level, run),
            false => self.df_job(reason, self.down_to((level, run), files, level, 0, true)?, level, 0),
        }
    }

    /// Sizes the tables of an extra run for their later merge with the level's base run.
    pub(super) fn fit_extra_run(&self, c: &mut Compaction) {
        let level = c.output_level;
        if c.output_run == 0 {
            return;
        }
        if level == self.scores.base_level {
            // The base level has few tables; smaller ones allow more parallel jobs into the levels below.
            c.output_file_size_target = (c.output_file_size_target / 2).max(1);
            c.output_file_size_max = c.output_file_size_target;
        }
        // Tables that end where tables of the base run end make for smaller jobs.
        let Some((begin, end)) = c.user_key_range() else { return };
        let base = self.in_run(&self.version.levels[level].base, begin, end);
        if !base.is_empty() {
            c.grandparents = base;
            c.output_file_size_max = c.output_file_size_target.saturating_mul(2);
        }
    }

    fn parts(&self, c: &Compaction) -> usize {
        if self.options.compaction_downforce { split_over_idle(c, self.running.idle_threads()) } else { 0 }
    }

    /// Moves files of one run into `level` as they are: into the oldest of its runs such that neither that run nor any
    /// newer one has any of their keys. With `new`, a new run may be made for them. They go into extra runs only if the
    /// level accepts another run at their keys. If the option is off, they go only into the base run: an existing extra
    /// run may be gone before they arrive, and they would then be a new one.
    fn sink(&self, reason: CompactionReason, inputs: &Inputs, level: usize, new: bool) -> Option<Compaction> {
        let [(from, files)] = inputs.as_slice() else { return None };
        if (*from == 0 && files.len() > 1) || self.compression(*from) != self.compression(level) {
            return None;
        }
        // An existing run would also be one more run at these keys.
        let room = self.options.compaction_downforce && self.has_room_at(inputs, level);
        let extras = self.version.levels[level].extras.iter().rev().map(|run| run.id).filter(|_| room);
        let another = (new && room && self.has_room(inputs, level)).then(|| self.new_run(level));
        // Not if it would have to wait for another job to commit.
        let run = [0].into_iter().chain(extras).chain(another).find(|run| {
            self.running.depends_on(self.version, inputs, level, *run).is_some_and(|depends_on| depends_on.is_empty())
        })?;
        self.df_job(reason, inputs.clone(), level, run).filter(|c| c.trivial_move)
    }

    /// Free files of L0, oldest first, up to the first file that is in a job which does not move it below L0.
    pub(super) fn free_l0(&self, output_level: usize, run: u64) -> Files {
        let busy = |f: &FileMeta| f.being_compacted.load(Atomic::Acquire);
        let oldest_first = self.files(0).iter().rev();
        let stays = |f: &&Arc<FileMeta>| !busy(f) || self.running.leaves_for_below(f, output_level, run);
        oldest_first.take_while(stays).filter(|f| !busy(f)).cloned().collect()
    }
}

/// Number of threads over which a job is split if `idle` threads are idle. If fewer jobs can run than there are
/// threads, idle threads shorten the jobs that others wait for: a job from L0 takes one more idle thread, other jobs
/// leave one for L0. 0: as many as the options say.
pub fn split_over_idle(c: &Compaction, idle: usize) -> usize {
    let spare = if c.start_level() == 0 { 2 } else { 3 };
    let large = c.input_bytes() / 2 >= c.output_file_size_target;
    if large && idle >= spare { 2 } else { 0 }
}

#[cfg(test)]
mod tests;
