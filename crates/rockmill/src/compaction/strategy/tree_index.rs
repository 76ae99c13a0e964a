//! What picks need to know about a tree as a whole, kept from one pick to the next: the bytes of its runs, which of
//! them no job holds, how many extra runs overlap each other, and what each table of a level overlaps in the next one.
//!
//! Computed from scratch, each of these looks at every table, which in a large tree takes longer than the rest of a
//! pick. Between two picks little changes: a job replaces neighbours in a few runs. So each run's tables are compared
//! by pointer with those of the previous version, from both ends. Derived values are computed again only for the
//! stretch in between, and for what it overlaps. [`RunningCompactions`](super::RunningCompactions), which owns this,
//! reports tables that jobs took or gave back.
//!
//! Nothing here keeps a table alive: files are deleted when the last version or job that uses them is gone.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use rockmill_format::InternalKeyComparator;

use super::df::extra_depth;
use super::score::compensated_size;
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, Level, Version, search, touched};

/// A sorted run as a whole; for L0 all its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RunSums {
    /// 0: the base run.
    pub id: u64,
    /// Tables.
    pub tables: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The same with what tombstones will free.
    pub compensated: u64,
    /// Bytes of the tables that no job holds.
    pub free_bytes: u64,
    /// The same with what tombstones will free.
    pub free_compensated: u64,
    /// Tables that jobs have.
    pub busy: usize,
}

/// A level as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LevelSums {
    /// Its runs that have tables, newest first.
    pub runs: Vec<RunSums>,
    /// The most extra runs that overlap at one key; see [`extra_depth`].
    pub depth: usize,
    /// The same of tables that no job has.
    pub free_depth: usize,
}

impl LevelSums {
    /// Of a level, from its tables.
    fn walk(cmp: &InternalKeyComparator, level: usize, of: &Level) -> Self {
        let run = |files: &[Arc<FileMeta>]| {
            let mut sums = RunSums { tables: files.len(), ..RunSums::default() };
            sums.id = files.first().filter(|_| level > 0).map_or(0, |f| f.entry.extra_run);
            files.iter().for_each(|f| sums.add(f.size(), compensated_size(f), is_busy(f)));
            sums
        };
        let free = |f: &FileMeta| !is_busy(f);
        Self {
            runs: of.runs().map(run).collect(),
            depth: extra_depth(cmp, of, |_| true),
            free_depth: extra_depth(cmp, of, free),
        }
    }

    /// Of all levels, from their tables.
    pub fn of(version: &Version) -> Vec<Self> {
        version.levels.iter().enumerate().map(|(i, level)| Self::walk(&version.cmp, i, level)).collect()
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|r| r.bytes).sum()
    }

    /// The same with what tombstones will free.
    pub fn compensated(&self) -> u64 {
        self.runs.iter().map(|r| r.compensated).sum()
    }

    /// Bytes of tables that no job has.
    pub fn free_bytes(&self) -> u64 {
        self.runs.iter().map(|r| r.free_bytes).sum()
    }

    /// The same with what tombstones will free.
    pub fn free_compensated(&self) -> u64 {
        self.runs.iter().map(|r| r.free_compensated).sum()
    }

    /// Tables.
    pub fn tables(&self) -> usize {
        self.runs.iter().map(|r| r.tables).sum()
    }

    /// Tables that jobs have.
    pub fn busy(&self) -> usize {
        self.runs.iter().map(|r| r.busy).sum()
    }

    /// True where a level has extra runs.
    pub fn has_extras(&self) -> bool {
        self.runs.first().is_some_and(|r| r.id > 0)
    }
}

impl RunSums {
    fn add(&mut self, bytes: u64, compensated: u64, busy: bool) {
        self.bytes += bytes;
        self.compensated += compensated;
        match busy {
            true => self.busy += 1,
            false => {
                (self.free_bytes, self.free_compensated) =
                    (self.free_bytes + bytes, self.free_compensated + compensated)
            }
        }
    }

    fn sub(&mut self, bytes: u64, compensated: u64, busy: bool) {
        self.bytes -= bytes;
        self.compensated -= compensated;
        match busy {
            true => self.busy -= 1,
            false => {
                (self.free_bytes, self.free_compensated) =
                    (self.free_bytes - bytes, self.free_compensated - compensated)
            }
        }
    }
}

/// Tables below L0 whose tombstones were not weighed yet.
pub(super) fn unweighed(version: &Version) -> usize {
    version.levels.iter().skip(1).flatten().filter(|f| f.tombstone_weight.get().is_none()).count()
}

fn is_busy(f: &FileMeta) -> bool {
    f.being_compacted.load(Atomic::Acquire)
}

/// Known facts about one table of a run.
#[derive(Debug)]
struct IndexedTable {
    /// Identifies the table. It does not keep the table alive, but no other table can get its address as long as this
    /// exists.
    file: Weak<FileMeta>,
    bytes: u64,
    compensated: u64,
    /// Time of its oldest data, or when it was written if that is earlier; `None` unknown as yet.
    time: Option<u64>,
    busy: bool,
    marked: bool,
    weighed: bool,
}

impl IndexedTable {
    fn of(f: &Arc<FileMeta>) -> Self {
        let e = &f.entry;
        // Read before its size: if another thread weighs it in between, the size is read again later.
        let weighed = f.tombstone_weight.get().is_some();
        Self {
            file: Arc::downgrade(f),
            bytes: f.size(),
            compensated: compensated_size(f),
            time: (e.oldest_ancester_time > 0 && e.file_creation_time > 0)
                .then(|| e.oldest_ancester_time.min(e.file_creation_time)),
            busy: is_busy(f),
            marked: e.marked_for_compaction,
            weighed,
        }
    }

    fn is(&self, f: &Arc<FileMeta>) -> bool {
        std::ptr::eq(self.file.as_ptr(), Arc::as_ptr(f))
    }
}

/// Tables that replaced others: `removed` tables from `at` on became `added` ones.
#[derive(Debug, Clone, Copy)]
struct Window {
    at: usize,
    removed: usize,
    added: usize,
}

/// A user key range, both ends included.
pub(super) type KeyRange = (Vec<u8>, Vec<u8>);

/// The inputs of a job that merges a table of an extra run with all tables below it in its level.
#[derive(Debug)]
pub(super) struct OverlapBelow {
    /// The user keys between which it was searched: while nothing changes there, it stays valid.
    pub keys: KeyRange,
    /// Bytes of all tables, of those in the base run, and the number of extra runs; `None` if running jobs prevent such
    /// a job.
    pub found: Option<(u64, u64, usize)>,
}

/// A run as it was at the last pick.
#[derive(Debug, Default)]
struct Run {
    sums: RunSums,
    known: Vec<IndexedTable>,
    /// Tables that are marked for compaction.
    marked: usize,
    /// Tables whose tombstones were not weighed yet.
    unweighed: usize,
    /// For an extra run: the tables' user keys, which are still needed after the tables are gone.
    keys: Vec<KeyRange>,
    /// Of an extra run: how many extra runs have the first key of each table; and of tables that no job has, with 0
    /// for one that a job has.
    depths: Vec<(u32, u32)>,
    /// Of a base run, once it was asked for: bytes that each table overlaps in the base run of the next level, by its
    /// own, times 1024.
    ratios: Option<Vec<u64>>,
}

impl Run {
    /// Takes over what changed; `None` if nothing did.
    fn update(&mut self, files: &[Arc<FileMeta>]) -> Option<Window> {
        let at = self.known.iter().zip(files).take_while(|(k, f)| k.is(f)).count();
        if at == files.len() && at == self.known.len() {
            return None;
        }
        let (old, new) = (&self.known[at..], &files[at..]);
        let same = old.iter().rev().zip(new.iter().rev()).take_while(|(k, f)| k.is(f)).count();
        let window = Window { at, removed: old.len() - same, added: new.len() - same };
        let fresh: Vec<IndexedTable> = new[..window.added].iter().map(IndexedTable::of).collect();
        for k in &fresh {
            self.sums.add(k.bytes, k.compensated, k.busy);
            self.marked += usize::from(k.marked);
            self.unweighed += usize::from(!k.weighed);
        }
        for k in self.known.splice(at..at + window.removed, fresh) {
            self.sums.sub(k.bytes, k.compensated, k.busy);
            self.marked -= usize::from(k.marked);
            self.unweighed -= usize::from(!k.weighed);
        }
        self.sums.tables = self.known.len();
        if let Some(ratios) = &mut self.ratios {
            ratios.splice(at..at + window.removed, std::iter::repeat_n(0, window.added));
        }
        Some(window)
    }

    /// Checks again which of these tables jobs hold. Returns the positions of those that changed.
    fn recheck_busy(&mut self, files: &[Arc<FileMeta>], places: Range<usize>) -> Vec<usize> {
        let mut changed = Vec::new();
        for i in places {
            let (k, busy) = (&mut self.known[i], is_busy(&files[i]));
            if k.busy != busy {
                self.sums.sub(k.bytes, k.compensated, k.busy);
                self.sums.add(k.bytes, k.compensated, busy);
                k.busy = busy;
                changed.push(i);
            }
        }
        changed
    }

    /// Tombstones are weighed when a table is opened.
    fn weigh(&mut self, files: &[Arc<FileMeta>]) -> Vec<usize> {
        let mut changed = Vec::new();
        if self.unweighed == 0 {
            return changed;
        }
        for (i, (k, f)) in self.known.iter_mut().zip(files).enumerate().filter(|(_, (k, _))| !k.weighed) {
            if f.tombstone_weight.get().is_some() {
                self.sums.sub(k.bytes, k.compensated, k.busy);
                k.compensated = compensated_size(f);
                self.sums.add(k.bytes, k.compensated, k.busy);
                k.weighed = true;
                self.unweighed -= 1;
                changed.push(i);
            }
        }
        changed
    }
}

/// For each number of extra runs: how many tables begin with a key that this many extra runs have.
#[derive(Debug, Default)]
struct Depths(Vec<usize>);

impl Depths {
    fn add(&mut self, depth: u32) {
        let depth = depth as usize;
        if self.0.len() <= depth {
            self.0.resize(depth + 1, 0);
        }
        self.0[depth] += 1;
    }

    fn sub(&mut self, depth: u32) {
        self.0[depth as usize] -= 1;
    }

    fn most(&self) -> usize {
        self.0.iter().rposition(|n| *n > 0).unwrap_or(0)
    }
}

/// A level below L0 as it was at the last pick.
#[derive(Debug, Default)]
struct Tables {
    base: Run,
    /// Newest first.
    extras: Vec<Run>,
    depths: Depths,
    free_depths: Depths,
    /// Results for tables of extra runs, by number, as far as they were requested.
    overlaps: HashMap<u64, OverlapBelow>,
}

impl Tables {
    /// Forgets results where something changed.
    fn forget_overlaps(&mut self, cmp: &InternalKeyComparator, ranges: &[KeyRange]) {
        if self.overlaps.is_empty() || ranges.is_empty() {
            return;
        }
        let apart =
            |a: &KeyRange, b: &KeyRange| cmp.compare_user(&a.1, &b.0).is_lt() || cmp.compare_user(&b.1, &a.0).is_lt();
        self.overlaps.retain(|_, overlap| ranges.iter().all(|range| apart(range, &overlap.keys)));
    }

    /// User keys of what became of tables of the base run, from the neighbours' on.
    fn keys_of(level: &Level, w: Window) -> KeyRange {
        let (left, right) = (w.at.checked_sub(1).and_then(|i| level.base.get(i)), level.base.get(w.at + w.added));
        let keys = left.map(|f| f.largest_user_key()).zip(right.map(|f| f.smallest_user_key()));
        keys.map(|(l, r)| (l.to_vec(), r.to_vec())).unwrap_or_default()
    }

    /// Takes over changes in extra runs, and returns their key ranges.
    fn update_extras(&mut self, level: &Level) -> Vec<KeyRange> {
        let mut ranges = Vec::new();
        let (mut old, mut runs) = (std::mem::take(&mut self.extras).into_iter().peekable(), Vec::new());
        for extra in &level.extras {
            while let Some(gone) = old.next_if(|r| r.sums.id > extra.id) {
                self.forget_depths(&gone.depths);
                ranges.extend(gone.keys);
            }
            let mut run = old.next_if(|r| r.sums.id == extra.id).unwrap_or_default();
            run.sums.id = extra.id;
            if let Some(w) = run.update(&extra.files) {
                let keys = |f: &Arc<FileMeta>| (f.smallest_user_key().to_vec(), f.largest_user_key().to_vec());
                let fresh: Vec<KeyRange> = extra.files[w.at..w.at + w.added].iter().map(keys).collect();
                ranges.extend(fresh.iter().cloned());
                ranges.extend(run.keys.splice(w.at..w.at + w.removed, fresh));
                let none = std::iter::repeat_n((0, 0), w.added);
                let gone: Vec<(u32, u32)> = run.depths.splice(w.at..w.at + w.removed, none).collect();
                self.forget_depths(&gone);
                (0..w.added).for_each(|_| {
                    self.depths.add(0);
                    self.free_depths.add(0);
                });
            }
            runs.push(run);
        }
        for gone in old {
            self.forget_depths(&gone.depths);
            ranges.extend(gone.keys);
        }
        self.extras = runs;
        ranges
    }

    fn forget_depths(&mut self, gone: &[(u32, u32)]) {
        for (all, free) in gone {
            self.depths.sub(*all);
            self.free_depths.sub(*free);
        }
    }

    /// Computes again how many extra runs overlap at the keys in these ranges at which tables begin.
    fn count_depths(&mut self, cmp: &InternalKeyComparator, level: &Level, ranges: &[KeyRange]) {
        for (begin, end) in ranges {
            for r in 0..level.extras.len() {
                let files = &level.extras[r].files;
                let from = search(files, |f| cmp.compare_user(f.smallest_user_key(), begin).is_lt());
                let begins = files[from..].iter().take_while(|f| cmp.compare_user(f.smallest_user_key(), end).is_le());
                for (i, f) in begins.enumerate().map(|(i, f)| (from + i, f)) {
                    let (mut all, mut free) = (0, 0);
                    for (run, extra) in self.extras.iter().zip(&level.extras) {
                        let key = f.smallest_user_key();
                        let at = touched(cmp, &extra.files, Some(key), Some(key));
                        all += at.len() as u32;
                        free += run.known[at].iter().filter(|k| !k.busy).count() as u32;
                    }
                    let run = &mut self.extras[r];
                    if run.known[i].busy {
                        free = 0;
                    }
                    let (was, was_free) = std::mem::replace(&mut run.depths[i], (all, free));
                    self.depths.sub(was);
                    self.depths.add(all);
                    self.free_depths.sub(was_free);
                    self.free_depths.add(free);
                }
            }
        }
    }

    fn sums(&self) -> LevelSums {
        let extras = self.extras.iter().map(|r| r.sums.clone());
        let runs = extras.chain([self.base.sums.clone()]).filter(|r| r.tables > 0).collect();
        // A single run counts as one, even if it has a key twice.
        let (depth, free_depth) = match self.extras.len() {
            0 | 1 => (self.extras.len(), self.extras.iter().filter(|r| r.sums.busy < r.sums.tables).count()),
            _ => (self.depths.most(), self.free_depths.most()),
        };
        LevelSums { runs, depth, free_depth }
    }
}

/// A tree as it was at the last pick.
#[derive(Debug, Default)]
pub(super) struct TreeIndex {
    version: Weak<Version>,
    levels: Vec<Tables>,
    sums: Vec<LevelSums>,
    /// Where jobs took tables, or gave them back: level and user keys.
    stale: Vec<(usize, KeyRange)>,
}

impl TreeIndex {
    /// Some tables of a level between these keys were taken by a job, or given back.
    pub fn mark_stale(&mut self, level: usize, begin: &[u8], end: &[u8]) {
        if level > 0 && !self.levels.is_empty() {
            self.stale.push((level, (begin.to_vec(), end.to_vec())));
        }
    }

    /// Makes the next pick compute everything again.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Takes over what changed since the last pick.
    pub fn update(&mut self, version: &Arc<Version>) -> &[LevelSums] {
        let same = std::ptr::eq(self.version.as_ptr(), Arc::as_ptr(version));
        let cmp = &version.cmp;
        self.levels.resize_with(version.levels.len(), Tables::default);
        let stale = std::mem::take(&mut self.stale);
        let mut windows = vec![None; version.levels.len()];
        let mut weighed = vec![Vec::new(); version.levels.len()];
        let mut sums = std::mem::take(&mut self.sums);
        sums.resize(version.levels.len(), LevelSums::default());
        for (number, (level, tables)) in version.levels.iter().zip(&mut self.levels).enumerate() {
            if number == 0 {
                sums[0] = LevelSums::walk(cmp, 0, level);
                continue;
            }
            let (mut ranges, mut changed) = (Vec::new(), Vec::new());
            if !same {
                windows[number] = tables.base.update(&level.base);
                ranges = tables.update_extras(level);
                match windows[number] {
                    Some(w) if w.at > 0 && w.at + w.added < level.base.len() => {
                        changed.push(Tables::keys_of(level, w));
                    }
                    Some(_) => tables.overlaps.clear(),
                    None => {}
                }
            }
            for (_, (begin, end)) in stale.iter().filter(|(of, _)| *of == number) {
                tables.base.recheck_busy(&level.base, touched(cmp, &level.base, Some(begin), Some(end)));
                for (run, extra) in tables.extras.iter_mut().zip(&level.extras) {
                    let changed = run.recheck_busy(&extra.files, touched(cmp, &extra.files, Some(begin), Some(end)));
                    ranges.extend(changed.into_iter().map(|i| run.keys[i].clone()));
                }
            }
            changed.extend(stale.iter().filter(|(of, _)| *of == number).map(|(_, keys)| keys.clone()));
            changed.extend(ranges.iter().cloned());
            tables.forget_overlaps(cmp, &changed);
            tables.count_depths(cmp, level, &ranges);
            weighed[number] = tables.base.weigh(&level.base);
            for (run, extra) in tables.extras.iter_mut().zip(&level.extras) {
                run.weigh(&extra.files);
            }
            sums[number] = tables.sums();
        }
        for (number, weighed) in weighed.into_iter().enumerate().skip(1) {
            self.update_ratios(version, number, windows[number], windows.get(number + 1).copied().flatten(), weighed);
        }
        (self.version, self.sums) = (Arc::downgrade(version), sums);
        &self.sums
    }

    fn update_ratios(
        &mut self,
        version: &Version,
        level: usize,
        own: Option<Window>,
        below: Option<Window>,
        mut places: Vec<usize>,
    ) {
        if self.levels[level].base.ratios.is_none() {
            return;
        }
        let (cmp, files) = (&version.cmp, &version.levels[level].base);
        let next = version.levels.get(level + 1).map_or(&[][..], |l| &l.base);
        places.extend(own.into_iter().flat_map(|w| w.at..w.at + w.added));
        if let Some(w) = below {
            // Tables between the neighbours of what changed below.
            let compare = |a: &FileMeta, b: &FileMeta| {
                cmp.compare(a.entry.largest.as_bytes(), b.entry.largest.as_bytes()) == Ordering::Less
            };
            let begins = |a: &FileMeta, b: &FileMeta| {
                cmp.compare(a.entry.smallest.as_bytes(), b.entry.smallest.as_bytes()) == Ordering::Greater
            };
            let left = w.at.checked_sub(1).map(|i| &next[i]);
            let right = next.get(w.at + w.added);
            let from = left.map_or(0, |l| search(files, |f| compare(f, l)));
            let to = right.map_or(files.len(), |r| search(files, |f| !begins(f, r)));
            places.extend(from..to.max(from));
        }
        for i in places {
            let ratio = self.ratio(version, level, i);
            if let Some(ratios) = &mut self.levels[level].base.ratios {
                ratios[i] = ratio;
            }
        }
    }

    /// Bytes below that a table overlaps, for each of its own, times 1024.
    fn ratio(&self, version: &Version, level: usize, i: usize) -> u64 {
        let (cmp, f) = (&version.cmp, &version.levels[level].base[i].entry);
        let before = |a: &[u8], b: &[u8]| cmp.compare(a, b) == Ordering::Less;
        let below = version.levels.get(level + 1).map_or(&[][..], |l| &l.base);
        let from = search(below, |b| before(b.entry.largest.as_bytes(), f.smallest.as_bytes()));
        let to = search(below, |b| before(b.entry.smallest.as_bytes(), f.largest.as_bytes()));
        let known = self.levels.get(level + 1).map_or(&[][..], |t| &t.base.known);
        let overlap: u64 = known.get(from..to).unwrap_or_default().iter().map(|k| k.bytes).sum();
        overlap.saturating_mul(1024) / self.levels[level].base.known[i].compensated.max(1)
    }

    /// True when tables of the base run may be marked for compaction.
    pub fn may_have_marked(&self, level: usize) -> bool {
        level == 0 || self.levels.get(level).is_none_or(|t| t.base.marked > 0)
    }

    /// True when some table of the level, in any run, may have data from before `time`.
    pub fn may_have_older(&self, level: usize, time: u64) -> bool {
        let older = |r: &Run| r.known.iter().any(|k| k.time.is_none_or(|t| t < time));
        level == 0 || self.levels.get(level).is_none_or(|t| t.extras.iter().any(older) || older(&t.base))
    }

    /// The result for a table of an extra run, if nothing has changed there since.
    pub fn overlap_below(&self, level: usize, number: u64) -> Option<&OverlapBelow> {
        self.levels.get(level)?.overlaps.get(&number)
    }

    /// Stores the result.
    pub fn set_overlap_below(&mut self, level: usize, number: u64, overlap: OverlapBelow) {
        if let Some(tables) = self.levels.get_mut(level) {
            tables.overlaps.insert(number, overlap);
        }
    }

    /// Tables whose tombstones were not weighed yet.
    pub fn unweighed(&self) -> usize {
        let of = |t: &Tables| t.base.unweighed + t.extras.iter().map(|r| r.unweighed).sum::<usize>();
        self.levels.iter().map(of).sum()
    }

    /// Of each table of a base run what it overlaps below; see [`ByRatio`].
    pub fn ratios(&mut self, version: &Version, level: usize) -> &[u64] {
        if self.levels[level].base.ratios.is_none() {
            let all = (0..version.levels[level].base.len()).map(|i| self.ratio(version, level, i)).collect();
            self.levels[level].base.ratios = Some(all);
        }
        self.levels[level].base.ratios.as_deref().unwrap_or_default()
    }
}

/// Positions in order of their ratios, equal ones from left to right. The first few are found without sorting all of
/// them, since usually one of the first can be picked.
#[derive(Clone)]
pub(super) struct ByRatio {
    ratios: Vec<u64>,
    /// Those to come next, the last one first.
    next: Vec<(u64, usize)>,
    last: Option<(u64, usize)>,
    batch: usize,
}

impl ByRatio {
    /// Of these ratios.
    pub fn new(ratios: Vec<u64>) -> Self {
        Self { ratios, next: Vec::new(), last: None, batch: 4 }
    }

    /// In the order that is known.
    pub fn sorted(order: Vec<usize>) -> Self {
        let next = order.into_iter().rev().map(|i| (0, i)).collect();
        Self { ratios: Vec::new(), next, last: None, batch: 0 }
    }

    /// Gathers the next ones.
    fn gather(&mut self) {
        self.batch *= 4;
        let mut heap = std::collections::BinaryHeap::with_capacity(self.batch + 1);
        let mut bound = (u64::MAX, usize::MAX);
        for (i, ratio) in self.ratios.iter().enumerate() {
            let this = (*ratio, i);
            if this >= bound || self.last.is_some_and(|last| this <= last) {
                continue;
            }
            heap.push(this);
            if heap.len() > self.batch {
                heap.pop();
            }
            if heap.len() == self.batch {
                bound = heap.peek().copied().unwrap_or(bound);
            }
        }
        self.next = heap.into_sorted_vec();
        self.next.reverse();
        self.last = self.next.first().copied().or(self.last);
    }
}

impl Iterator for ByRatio {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.next.is_empty() {
            self.gather();
        }
        self.next.pop().map(|(_, i)| i)
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::edit::FileEntry;
    use rockmill_format::key::{InternalKey, ValueType};

    use super::*;
    use crate::version::PurgeQueue;

    fn table(rng: &mut fastrand::Rng, number: u64, run: u64, keys: std::ops::Range<u32>) -> Arc<FileMeta> {
        let key = |n: u32| InternalKey::new(&n.to_be_bytes(), number, ValueType::Value);
        let entry = FileEntry {
            number,
            size: rng.u64(1..1000),
            smallest: key(keys.start),
            largest: key(keys.end - 1),
            extra_run: run,
            marked_for_compaction: rng.u8(..) == 0,
            ..FileEntry::default()
        };
        Arc::new(FileMeta::new(entry, Arc::<PurgeQueue>::default()))
    }

    /// Replaces the tables of a run that begin in a random stretch of keys by others.
    fn replace(rng: &mut fastrand::Rng, version: &mut Version, level: usize, run: u64, number: &mut u64) {
        let (from, wide) = (rng.u32(0..1000), rng.u32(1..200));
        let keys = from..(from + wide).min(1000);
        let low = keys.start.to_be_bytes();
        let high = (keys.end - 1).to_be_bytes();
        version.levels[level].retain(|f| {
            let apart = f.largest_user_key() < &low[..] || f.smallest_user_key() > &high[..];
            f.entry.extra_run != run || apart
        });
        let mut at = keys.start;
        while at < keys.end && rng.u8(0..4) > 0 {
            let end = (at + rng.u32(1..40)).min(keys.end);
            *number += 1;
            version.levels[level].push(table(rng, *number, run, at..end));
            at = end + rng.u32(0..10);
        }
        let Version { levels, cmp, .. } = version;
        levels[level].sort(level, cmp);
    }

    /// After any changes, the kept values equal those that a walk over the tree finds.
    #[test]
    fn what_is_kept_is_what_a_walk_finds() {
        for seed in 0..30 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut index, mut number) = (TreeIndex::default(), 0);
            let mut version = Arc::new(Version::empty(4, InternalKeyComparator::default()));
            for step in 0..150 {
                for _ in 0..rng.usize(0..3) {
                    let (level, run) = (rng.usize(1..4), rng.u64(0..5));
                    replace(&mut rng, Arc::make_mut(&mut version), level, run, &mut number);
                }
                for _ in 0..rng.usize(0..4) {
                    let level = rng.usize(1..4);
                    let files: Vec<_> = version.levels[level].iter().cloned().collect();
                    let Some(f) = files.get(rng.usize(0..files.len().max(1))) else { continue };
                    match rng.u8(0..3) {
                        0 => drop(f.tombstone_weight.set(rng.u64(0..500))),
                        _ => {
                            f.being_compacted.fetch_xor(true, Atomic::AcqRel);
                            index.mark_stale(level, f.smallest_user_key(), f.largest_user_key());
                        }
                    }
                }
                if rng.u8(0..40) == 0 {
                    index.forget();
                }
                assert_eq!(index.update(&version), LevelSums::of(&version), "seed {seed}, step {step}");
                assert_eq!(index.unweighed(), unweighed(&version));
                for level in 1..4 {
                    let fresh: Vec<u64> = {
                        let mut fresh = TreeIndex::default();
                        fresh.update(&version);
                        fresh.ratios(&version, level).to_vec()
                    };
                    assert_eq!(index.ratios(&version, level), fresh, "seed {seed}, step {step}, level {level}");
                    let marked = version.levels[level].base.iter().any(|f| f.entry.marked_for_compaction);
                    assert_eq!(index.may_have_marked(level), marked);
                }
            }
        }
    }

    #[test]
    fn places_come_in_the_order_of_their_ratios() {
        let mut rng = fastrand::Rng::with_seed(3);
        for n in [0, 1, 5, 16, 17, 300, 2000] {
            let ratios: Vec<u64> = (0..n).map(|_| rng.u64(0..50)).collect();
            let mut sorted: Vec<usize> = (0..n).collect();
            sorted.sort_by_key(|&i| (ratios[i], i));
            assert!(ByRatio::new(ratios).eq(sorted.iter().copied()), "{n}");
            assert!(ByRatio::sorted(sorted.clone()).eq(sorted));
        }
    }
}
