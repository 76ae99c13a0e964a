//! Which file of a level goes down first: the option `compaction_pri`, by RocksDB's formulas
//! (`VersionStorageInfo::UpdateFilesByCompactionPri`).
//!
//! Four priorities sort the files; if a file cannot be picked, the next one is tried. `kRoundRobin` goes through the
//! key space: the level's *cursor* is the smallest key that it has not reached. It takes only the file at the cursor,
//! with its right-hand neighbours as long as the level is too large by that much. The job's commit moves the cursor
//! past them, also in the MANIFEST.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use rockmill_format::key::InternalKey;

use super::aging;
use super::inputs::{Files, Picker, any_busy, key_range, total_bytes};
use super::score::compensated_size;
use super::tree_index::ByRatio;
use crate::options::{CompactionPri, CompactionStyle};
use crate::sync::atomic::Ordering as Atomic;
use crate::version::search;

impl Picker<'_> {
    /// True when files go round in the order of their keys.
    pub(super) fn round_robin(&self) -> bool {
        self.options.compaction_pri == CompactionPri::RoundRobin
    }

    /// Indexes of a level's files in the order in which they are to go down.
    pub(super) fn by_priority(&self, level: usize) -> ByRatio {
        if self.options.compaction_pri == CompactionPri::MinOverlappingRatio {
            return self.by_overlap(level);
        }
        let files = self.files(level);
        let mut order: Vec<usize> = (0..files.len()).collect();
        match self.options.compaction_pri {
            CompactionPri::ByCompensatedSize => order.sort_by_key(|&i| Reverse(compensated_size(&files[i]))),
            CompactionPri::OldestLargestSeqFirst => order.sort_by_key(|&i| files[i].entry.largest_seqno),
            CompactionPri::OldestSmallestSeqFirst => order.sort_by_key(|&i| files[i].entry.smallest_seqno),
            CompactionPri::MinOverlappingRatio => {} // as above
            CompactionPri::RoundRobin if level > 0 => order.rotate_left(self.at_cursor(level)),
            CompactionPri::RoundRobin if self.level0_disjoint() => {}
            CompactionPri::RoundRobin => order.sort_by_key(|&i| files[i].entry.smallest_seqno),
        }
        ByRatio::sorted(order)
    }

    /// The first file of a level that begins at or after its cursor; the first of all if none does.
    fn at_cursor(&self, level: usize) -> usize {
        let Some(cursor) = self.running.cursor(level) else { return 0 };
        let files = self.files(level);
        let before = |key: &InternalKey| self.cmp().compare(key.as_bytes(), cursor.as_bytes()) == Ordering::Less;
        let at = search(files, |f| before(&f.entry.smallest));
        if at == files.len() { 0 } else { at }
    }

    /// The cursor of a level after this many files from it on have been compacted; after all files it is back where it
    /// was.
    pub(super) fn next_cursor(&self, level: usize, taken: usize) -> Option<InternalKey> {
        let (files, at) = (self.files(level), self.at_cursor(level));
        let next = if taken < files.len() { (at + taken) % files.len() } else { at };
        files.get(next).map(|f| f.entry.smallest.clone())
    }

    /// With `kRoundRobin`, the cursor of a job's output level, if it lies in the job. A table across it would later go
    /// down as a whole: keys after the cursor together with keys before it, which were the last to go.
    pub(super) fn split_key(&self, inputs: &[(usize, Files)], output_level: usize) -> Option<InternalKey> {
        let leveled = self.options.compaction_style == CompactionStyle::Level;
        let cursor = self.running.cursor(output_level).filter(|_| leveled && self.round_robin() && output_level > 0)?;
        let (cmp, at) = (self.cmp(), cursor.user_key());
        let files = || inputs.iter().flat_map(|(_, files)| files);
        let within = files().any(|f| cmp.compare_user(f.smallest_user_key(), at).is_lt())
            && files().any(|f| cmp.compare_user(f.largest_user_key(), at).is_ge());
        within.then(|| cursor.clone())
    }

    /// With `kRoundRobin`, neighbours to the right of what was picked: until the level keeps to its size without them,
    /// the job would be larger than `max_compaction_bytes`, something is busy, or there are no more.
    pub(super) fn extend_round(&self, level: usize, picked: &mut Files) {
        let files = self.files(level);
        let from = self.at_cursor(level) + 1;
        let free: u64 = files.iter().filter(|f| !f.being_compacted.load(Atomic::Acquire)).map(|f| f.size()).sum();
        let too_much = free.saturating_sub(self.scores.targets[level]);
        let below = |files: &Files| match key_range(self.cmp(), files) {
            Some((s, l)) => self.overlapping(level + 1, Some(s), Some(l)),
            None => Vec::new(),
        };
        if picked.first().is_none_or(|f| f.size() >= too_much) {
            return;
        }
        for f in files.iter().skip(from) {
            if f.being_compacted.load(Atomic::Acquire) {
                return;
            }
            let mut wider = picked.clone();
            // The files that move with the first one may already be enough.
            if !wider.iter().any(|taken| Arc::ptr_eq(taken, f)) {
                wider.push(Arc::clone(f));
            }
            let clean = self.expand_to_clean_cut(level, &mut wider);
            if !clean || self.output_conflict(&[(level, wider.clone())], level + 1) {
                return;
            }
            let mut output = below(&wider);
            if any_busy(&output) || !self.expand_to_clean_cut(level + 1, &mut output) {
                return;
            }
            if total_bytes(&wider) + total_bytes(&output) > self.max_compaction_bytes() {
                return;
            }
            *picked = wider;
            if total_bytes(picked) > too_much {
                return;
            }
        }
    }

    /// Indexes of a level's files, cheapest first: bytes below that a file overlaps, for each of its own bytes
    /// (`kMinOverlappingRatio`). Marked files come first; equal ratios go by key, which helps trivial moves.
    pub(super) fn by_overlap(&self, level: usize) -> ByRatio {
        let boost = aging::Booster::new(self.version, self.options, level, self.moment.now);
        if boost.rises_from().is_some_and(|time| self.running.may_have_older(level, time))
            || self.running.may_have_marked(level)
        {
            return ByRatio::sorted(self.by_overlap_of_all(level, &boost));
        }
        let order = self.running.by_ratio(self.version, level);
        debug_assert!(
            order.clone().take(64).eq(self.by_overlap_of_all(level, &boost).into_iter().take(64))
                || self.running.weighs_more(self.version)
        );
        order
    }

    /// The same from all files, with what `ttl` and marks add.
    fn by_overlap_of_all(&self, level: usize, boost: &aging::Booster) -> Vec<usize> {
        let (cmp, files, below) = (self.cmp(), self.files(level), self.files(level + 1));
        let before = |a: &[u8], b: &[u8]| cmp.compare(a, b) == Ordering::Less;
        let mut next = 0;
        let mut order: Vec<(bool, u64, &[u8], usize)> = Vec::with_capacity(files.len());
        for (i, f) in files.iter().enumerate() {
            let (smallest, largest) = (f.entry.smallest.as_bytes(), f.entry.largest.as_bytes());
            while below.get(next).is_some_and(|b| before(b.entry.largest.as_bytes(), smallest)) {
                next += 1;
            }
            let mut overlap: u64 = 0;
            while let Some(b) = below.get(next).filter(|b| before(b.entry.smallest.as_bytes(), largest)) {
                overlap += b.size();
                if before(largest, b.entry.largest.as_bytes()) {
                    break; // it reaches into the next file's range too
                }
                next += 1;
            }
            let ratio = overlap.saturating_mul(1024) / compensated_size(f).max(1) / boost.of(f);
            order.push((!f.entry.marked_for_compaction, ratio, smallest, i));
        }
        order.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| cmp.compare(a.2, b.2)));
        order.into_iter().map(|(_, _, _, i)| i).collect()
    }
}
