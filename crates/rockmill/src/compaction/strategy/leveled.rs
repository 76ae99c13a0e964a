//! The leveled strategy: RocksDB's `LevelCompactionBuilder`.
//!
//! 1. Levels are asked in order of their score, down to a score of 1.
//! 2. In the level, the option `compaction_pri` says which file goes first (`priority.rs`); files are skipped if they
//!    are busy, cannot be cut cleanly, or their output would cross a running job.
//! 3. L0 goes down one job at a time, together with all L0 files that overlap. While that way is blocked, the newest
//!    L0 files are merged among themselves, so that reads do not pay for the wait.
//! 4. Files that overlap nothing below are moved, several at once.
//! 5. When no level is full: files marked for compaction, then those that are due for other reasons (`aging.rs`).

use std::sync::Arc;

use super::aging;
use super::inputs::{Files, Picker, any_busy, key_range};
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::sync::atomic::Ordering as Atomic;
use crate::version::FileMeta;

/// Fewest files worth merging inside L0.
const INTRA_L0_FILES_MIN: usize = 4;

/// Most files that one trivial move takes, so that the level below does not swell at once.
const TRIVIAL_MOVE_FILES_MAX: usize = 4;

/// The next compaction of a leveled tree.
pub(super) fn pick(picker: &Picker<'_>) -> Option<Compaction> {
    picker.by_score().or_else(|| picker.marked()).or_else(|| picker.due())
}

/// Into which level files that are due go.
#[derive(Clone, Copy, PartialEq)]
enum Destination {
    /// Into the level they are in.
    Stay,
    /// Down; those of the deepest level stay.
    Down,
}

/// The first inputs of a job.
pub(super) struct Start {
    level: usize,
    output_level: usize,
    files: Files,
    /// L0 files that were checked to overlap neither each other nor the output level: they move.
    l0_move: bool,
}

impl Start {
    /// The files.
    pub(super) fn into_files(self) -> Files {
        self.files
    }
}

impl Picker<'_> {
    fn by_score(&self) -> Option<Compaction> {
        let base = self.scores.base_level;
        let mut l0_blocked = false;
        for (level, score) in self.scores.by_priority() {
            if score < 1.0 {
                return None;
            }
            if l0_blocked && level == base {
                continue; // L0 waits for the base level: do not let it starve
            }
            let output_level = if level == 0 { base } else { level + 1 };
            let mut start = if level == 0 { self.start_l0(output_level) } else { self.start_sorted(level) };
            if start.is_none() && level == 0 {
                l0_blocked = true;
                start = self.intra_l0_by_cost();
            }
            let Some(start) = start else { continue };
            let reason =
                if level == 0 { CompactionReason::LevelL0FilesNum } else { CompactionReason::LevelMaxLevelSize };
            return self.complete(start, reason);
        }
        None
    }

    /// Files that were marked, from the top down.
    pub(super) fn marked(&self) -> Option<Compaction> {
        for level in 0..self.num_levels() - 1 {
            if level == 0 && self.level0_busy() {
                continue;
            }
            for f in self.files(level).iter().filter(|_| self.running.may_have_marked(level)) {
                if !f.entry.marked_for_compaction || f.being_compacted.load(Atomic::Acquire) {
                    continue;
                }
                let output_level = if level == 0 { self.scores.base_level } else { level + 1 };
                let mut files = vec![Arc::clone(f)];
                if self.expand_to_clean_cut(level, &mut files) {
                    let start = Start { level, output_level, files, l0_move: false };
                    let job = self.complete(start, CompactionReason::FilesMarkedForCompaction);
                    if let Some(c) = job.filter(|c| self.may_run(c)) {
                        return Some(c);
                    }
                }
            }
            let extras = self.version.levels[level].extras.iter().flat_map(|run| &run.files);
            let mut marked = extras.filter(|f| f.entry.marked_for_compaction);
            let job = |f| self.of_extra_run(level, f, false, CompactionReason::FilesMarkedForCompaction);
            if let Some(c) = marked.find_map(|f| job(f)) {
                return Some(c);
            }
        }
        None
    }

    /// Files that are due although no level is full.
    pub(super) fn due(&self) -> Option<Compaction> {
        let (version, options, now) = (&**self.version, self.options, self.moment.now);
        let expired = || match self.may_expire(options.ttl_seconds(), aging::deepest(version)) {
            true => aging::expired(version, options, now),
            false => Vec::new(),
        };
        self.first_of(&self.bottommost_due(), Destination::Stay, CompactionReason::BottommostFiles)
            .or_else(|| match expired().first() {
                // The level continues at its cursor.
                Some((level, f)) if *level > 0 && f.entry.extra_run == 0 && self.round_robin() => {
                    let job = self.complete(self.start_sorted(*level)?, CompactionReason::RoundRobinTtl);
                    job.filter(|c| self.may_run(c))
                }
                _ => None,
            })
            .or_else(|| self.first_of(&expired(), Destination::Down, CompactionReason::Ttl))
            .or_else(|| {
                let to = if options.dynamic_levels() { Destination::Down } else { Destination::Stay };
                let files = match self.may_expire(options.periodic_seconds(), self.num_levels()) {
                    true => aging::periodic(version, options, now),
                    false => Vec::new(),
                };
                self.first_of(&files, to, CompactionReason::PeriodicCompaction)
            })
    }

    /// True if files of the first `levels` levels may be older than `seconds`.
    pub(super) fn may_expire(&self, seconds: Option<u64>, levels: usize) -> bool {
        let Some(time) = seconds.map(|s| self.moment.now.saturating_sub(s)) else { return false };
        (0..levels).any(|level| !self.version.levels[level].is_empty() && self.running.may_have_older(level, time))
    }

    fn bottommost_due(&self) -> Vec<(usize, Arc<FileMeta>)> {
        if self.moment.oldest_snapshot == 0 {
            return Vec::new();
        }
        aging::bottommost(self.version, self.options, self.moment.oldest_snapshot).0
    }

    /// True if a job leaves nothing older above its output. With extra runs, a job for a table of a base run may do so;
    /// other files that are due must not wait for it.
    fn may_run(&self, c: &Compaction) -> bool {
        self.running.depends_on(self.version, &c.inputs, c.output_level, c.output_run).is_some()
    }

    /// A job for the first of `files` that can have one.
    fn first_of(
        &self,
        files: &[(usize, Arc<FileMeta>)],
        to: Destination,
        reason: CompactionReason,
    ) -> Option<Compaction> {
        let deepest = aging::deepest(self.version);
        files.iter().find_map(|(level, f)| {
            if *level == 0 && self.level0_busy() {
                return None;
            }
            if f.entry.extra_run > 0 {
                return self.of_extra_run(*level, f, to == Destination::Stay, reason);
            }
            let output_level = match to {
                Destination::Down if *level < deepest && *level == 0 => self.scores.base_level,
                Destination::Down if *level < deepest => level + 1,
                _ => *level,
            };
            let mut files = vec![Arc::clone(f)];
            if !self.expand_to_clean_cut(*level, &mut files) {
                return None;
            }
            let job = self.complete(Start { level: *level, output_level, files, l0_move: false }, reason);
            job.filter(|c| self.may_run(c))
        })
    }

    /// Grows the first inputs to the whole job.
    pub(super) fn complete(&self, mut start: Start, reason: CompactionReason) -> Option<Compaction> {
        let (level, output_level) = (start.level, start.output_level);
        if output_level == 0 {
            return Some(self.build(reason, vec![(0, start.files)], 0, true));
        }
        if start.l0_move {
            let inputs = vec![(0, start.files)];
            return (!self.output_conflict(&inputs, output_level))
                .then(|| self.build(reason, inputs, output_level, false));
        }
        if level == 0 {
            let (s, l) = key_range(self.cmp(), &start.files)?;
            let all = self.overlapping(0, Some(s), Some(l));
            start.files = all;
            if any_busy(&start.files) {
                return None;
            }
        }
        let goes_round = self.round_robin() && level > 0;
        let rightwards = goes_round && reason == CompactionReason::LevelMaxLevelSize;
        if rightwards {
            self.extend_round(level, &mut start.files);
        }
        let output = self.setup_other_inputs(level, &mut start.files, output_level, rightwards)?;
        let (several, taken) = (!output.is_empty() || start.files.len() > 1, start.files.len());
        let inputs = vec![(level, start.files), (output_level, output)];
        if self.output_conflict(&inputs, output_level) {
            return None;
        }
        let mut c = self.build(reason, inputs, output_level, several);
        if rightwards || reason == CompactionReason::RoundRobinTtl {
            c.next_cursor = self.next_cursor(level, taken);
        }
        Some(c)
    }

    /// First inputs from L0, oldest file first.
    fn start_l0(&self, output_level: usize) -> Option<Start> {
        if self.level0_busy() {
            return self.intra_l0_by_size();
        }
        if let Some(files) = self.l0_trivial_move(output_level) {
            return Some(Start { level: 0, output_level, files, l0_move: true });
        }
        if let Some(start) = self.intra_l0_by_size() {
            return Some(start);
        }
        self.by_priority(0).take(self.tries()).find_map(|i| {
            let f = &self.files(0)[i];
            // Whether the way down is free depends on the L0 set that the file brings along.
            let files = self.overlapping(0, Some(&f.entry.smallest), Some(&f.entry.largest));
            self.way_is_free(0, &files, output_level).then(|| Start { level: 0, output_level, files, l0_move: false })
        })
    }

    /// First inputs from a sorted level.
    pub(super) fn start_sorted(&self, level: usize) -> Option<Start> {
        let output_level = level + 1;
        let files = self.files(level);
        for i in self.by_priority(level).take(self.tries()) {
            if files[i].being_compacted.load(Atomic::Acquire) {
                continue;
            }
            let mut picked = vec![Arc::clone(&files[i])];
            if !self.expand_to_clean_cut(level, &mut picked) || !self.way_is_free(level, &picked, output_level) {
                continue;
            }
            self.extend_trivial_move(level, i, &mut picked);
            return Some(Start { level, output_level, files: picked, l0_move: false });
        }
        None
    }

    /// Files of a level that are tried: all, or the one at the cursor.
    fn tries(&self) -> usize {
        if self.round_robin() { 1 } else { usize::MAX }
    }

    /// True when no file that `files` would pull in from the output level is busy and no running job writes there.
    fn way_is_free(&self, level: usize, files: &Files, output_level: usize) -> bool {
        let inputs = [(level, files.clone())];
        if self.output_conflict(&inputs, output_level) {
            return false;
        }
        let Some((s, l)) = key_range(self.cmp(), files) else { return false };
        let mut output = self.overlapping(output_level, Some(s), Some(l));
        !any_busy(&output) && self.expand_to_clean_cut(output_level, &mut output)
    }

    /// Neighbours of a file that overlaps nothing below, as long as they overlap nothing either.
    fn extend_trivial_move(&self, level: usize, index: usize, picked: &mut Files) {
        let [first] = picked.as_slice() else { return };
        let first = Arc::clone(first);
        let free = |a: &FileMeta, b: &FileMeta| {
            self.overlapping(level + 1, Some(&a.entry.smallest), Some(&b.entry.largest)).is_empty()
        };
        if self.several_paths() || !self.options.compression_per_level.is_empty() || !free(&first, &first) {
            return;
        }
        let files = self.files(level);
        let busy = |f: &FileMeta| f.being_compacted.load(Atomic::Acquire);
        let same_key = |left: usize| {
            self.cmp().compare_user(files[left].largest_user_key(), files[left + 1].smallest_user_key()).is_eq()
        };
        // As in RocksDB, bytes that were too much on the right count on the left, too.
        let mut bytes = first.size();
        let fits = |bytes: &mut u64, i: usize| {
            *bytes += files[i].size();
            *bytes <= self.max_compaction_bytes()
        };
        for i in index + 1..files.len() {
            let cut = i + 1 == files.len() || !same_key(i);
            let moves = !busy(&files[i]) && free(&first, &files[i]) && cut;
            if picked.len() >= TRIVIAL_MOVE_FILES_MAX || !moves || !fits(&mut bytes, i) {
                break;
            }
            picked.push(Arc::clone(&files[i]));
        }
        for i in (0..index).rev().take_while(|_| !self.round_robin()) {
            let cut = i == 0 || !same_key(i - 1);
            let moves = !busy(&files[i]) && free(&files[i], &first) && cut;
            if picked.len() >= TRIVIAL_MOVE_FILES_MAX || !moves || !fits(&mut bytes, i) {
                break;
            }
            picked.insert(0, Arc::clone(&files[i]));
        }
        let conflict = self.output_conflict(&[(level, picked.clone())], level + 1);
        if conflict {
            *picked = vec![first];
        }
    }

    /// Oldest L0 files that overlap neither each other nor the output level, which is not empty.
    fn l0_trivial_move(&self, output_level: usize) -> Option<Files> {
        let unsure = self.files(output_level).is_empty() || self.several_paths();
        if output_level == 0 || unsure || !self.options.compression_per_level.is_empty() {
            return None;
        }
        let cmp = self.cmp();
        let mut picked: Files = Vec::new();
        for f in self.files(0).iter().rev() {
            if let Some((s, l)) = key_range(cmp, &picked)
                && cmp.compare_user(f.largest_user_key(), s.user_key()).is_ge()
                && cmp.compare_user(f.smallest_user_key(), l.user_key()).is_le()
            {
                break;
            }
            picked.push(Arc::clone(f));
            let free = key_range(cmp, &picked)
                .is_some_and(|(s, l)| self.overlapping(output_level, Some(s), Some(l)).is_empty());
            if !free {
                picked.pop();
                break;
            }
        }
        picked.sort_by(|a, b| cmp.compare(a.entry.smallest.as_bytes(), b.entry.smallest.as_bytes()));
        let blocked = picked.is_empty() || self.output_conflict(&[(0, picked.clone())], output_level);
        (!blocked).then_some(picked)
    }

    /// All free newest L0 files, if the base level is so much larger that a compaction into it would rewrite too much
    /// now.
    fn intra_l0_by_size(&self) -> Option<Start> {
        let files = self.files(0);
        let files_min = self.options.level0_file_num_compaction_trigger.max(2) as usize;
        if files.len() < files_min || self.scores.base_level == 0 {
            return None;
        }
        let l0_bytes: u64 = files.iter().map(|f| super::score::compensated_size(f)).sum();
        let factor = self.options.max_bytes_for_level_multiplier.max(10.0) * 2.0;
        if self.base_bytes(self.scores.base_level) as f64 <= l0_bytes as f64 * factor {
            return None;
        }
        let free: Files =
            files.iter().take_while(|f| !f.being_compacted.load(Atomic::Acquire)).map(Arc::clone).collect();
        (free.len() >= files_min).then_some(Start { level: 0, output_level: 0, files: free, l0_move: false })
    }

    /// The newest free L0 files for which the work for each file saved still falls.
    pub(super) fn intra_l0_by_cost(&self) -> Option<Start> {
        let files = self.files(0);
        if files.len() < self.options.level0_file_num_compaction_trigger.saturating_add(2).max(0) as usize {
            return None;
        }
        let free = files.iter().take_while(|f| !f.being_compacted.load(Atomic::Acquire)).count();
        let mut bytes = files.first()?.size();
        let mut cost = u64::MAX;
        let mut taken = 1;
        while taken < free {
            bytes += files[taken].size();
            let next = bytes / taken as u64;
            if next > cost || bytes > self.max_compaction_bytes() {
                break;
            }
            cost = next;
            taken += 1;
        }
        (free > 0 && taken >= INTRA_L0_FILES_MIN).then(|| Start {
            level: 0,
            output_level: 0,
            files: files[..taken].to_vec(),
            l0_move: false,
        })
    }
}

#[cfg(test)]
mod tests;
