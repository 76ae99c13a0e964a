//! Several immutable memtables as one, without copying their entries: an *index merge*.
//!
//! A [`MergedMemTable`] is a sorted sequence of pointers to entries of the memtables that it was made of, whose skip
//! lists it keeps alive. Neither it nor the memtables change: readers keep using the old memtables until the merged one
//! replaces them in the next view, so that no reader waits, and no iterator loses its position. A pointer and eight
//! bytes of its key (`index`) are 16 bytes; the upper levels of the search are another half byte.
//!
//! # What is left out
//!
//! A version of a user key is left out if a newer one *replaces* it for every future read of the merged memtable. With
//! `V` the caller's [`MergePlan::visible`] and `S` its snapshots, an entry `old` is left out if there is a newer entry
//! `new` of the same user key such that
//!
//! 1. `new` is a value or a deletion. Every read that sees it ends there: a value or a deletion is an answer, and under
//!    a range tombstone so is everything older. It is also where a flush or a compaction ends what it merges.
//! 2. `old` is a value, a deletion or a merge operand.
//! 3. `new.sequence <= V`, and no snapshot of `S` lies in `old.sequence .. new.sequence`.
//!
//! **What the caller must guarantee** (as for `compaction/resolve.rs`, but with an explicit `V`):
//!
//! - `V` was visible to readers when it was read, and the snapshots were listed *after* it was read. A snapshot that is
//!   not in the list was then either released, or taken after the list was made and so at `V` or later
//!   (`SnapshotList::acquire` reads the visible number under the list's lock).
//! - A read without a snapshot takes the view first and the visible number afterwards (`DbInner::read_sequence`). The
//!   merged memtable is in views that are published after `V` was read, so these reads are at `V` or later too.
//!
//! So every read of the merged memtable is at a snapshot of `S`, or at `V` or later. By 3, none of them sees `old`
//! without `new`. Entries above `V` are not left out, and cause no others to be left out: a read at `V` does not see
//! them.
//!
//! **Single deletions** are never left out and never replace anything. A single deletion cancels exactly *one* older
//! put, and a flush or a compaction that meets both drops both:
//!
//! - *Left out*: take `put 3, single delete 2` here and `put 1` in a table. Without `single delete 2`, a later
//!   `single delete 4` goes together with `put 3`, and `put 1` is back.
//! - *Replacing*: a single deletion will be matched with the entry under it. If `put 1` were left out because of
//!   `single delete 2`, that deletion would later be matched with an older put. By the contract of single deletes there
//!   is none, but where the contract is broken the loss would be larger than today's.
//!
//! A put under a single deletion may still be left out for a newer put or deletion, by the rule above: in `put 3`,
//! `single delete 2`, `put 1` the single deletion stays without its partner. By the contract, the key had no other put
//! since the previous tombstone, so the next older entry is a tombstone, or there is none. Resolution keeps a single
//! deletion that finds nothing as long as older data may exist, and drops the newer of two tombstones in a row.
//!
//! A deletion may be left out because of a newer put, as in resolution. A later single delete of that put would uncover
//! what the deletion hid, but the contract forbids that: single deletes are not for keys that are also deleted.
//!
//! **Range tombstones** are all kept, and nothing is left out because of them. A point entry under one could be left
//! out by the same argument as in resolution, but every entry would have to be compared with the tombstones, and the
//! flush does that.
//!
//! **Order**: the remaining entries keep their internal keys, and so their order. Of two equal internal keys, the one
//! from the newer memtable would come first (there are none: see `MemTable::add`).

mod build;
mod index;

use std::ops::Range;
use std::sync::{Arc, Weak};

use rockmill_format::key;
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use super::bloom::Bloom;
use super::log_read_ahead::{LogReads, ReadAhead, SlotIterator};
use super::log_values::LogValues;
use super::skiplist::{Entry, SkipList, SortedEntries};
use super::write_buffer_manager::MemoryAccount;
use super::{IndexTableIterator, MemTable, lacks_key, lacks_prefix, offer};
use crate::error::Result;
use crate::iter::InternalIterator;
use crate::iter::get::GetContext;
use crate::iter::prefix_seek::PrefixSeek;
use crate::perf_context::{self as perf, PerfMetric};
use crate::range_del::{FragmentedRangeTombstones, RangeTombstone};
pub use build::{LeftOut, MergePlan};
use index::{GROUP, PrefixIndex};

/// How many entries ahead of the current one an iterator fetches.
const AHEAD: usize = 8;

/// See the module's text.
pub struct MergedMemTable {
    /// Of the memtables that it was made of, newest first.
    ids: Box<[u64]>,
    cmp: InternalKeyComparator,
    entries: Arc<SortedEntries>,
    index: PrefixIndex,
    /// Of the entries' keys.
    bloom: Option<Bloom>,
    range_dels: RangeDels,
    figures: Figures,
    /// Of index tables: where the values are.
    values: Option<LogValues>,
    /// The account of its own memory.
    account: Option<MemoryAccount>,
}

/// The range tombstones of all inputs.
#[derive(Default)]
struct RangeDels {
    all: Vec<RangeTombstone>,
    fragmented: Option<Arc<FragmentedRangeTombstones>>,
}

impl RangeDels {
    fn new(all: Vec<RangeTombstone>, cmp: &InternalKeyComparator) -> Self {
        let fragmented = (!all.is_empty()).then(|| Arc::new(FragmentedRangeTombstones::new(&all, cmp)));
        Self { all, fragmented }
    }

    /// As they are counted in a memtable.
    fn filled_memory(&self) -> usize {
        self.all.iter().map(|t| t.begin.len() + t.end.len() + size_of::<RangeTombstone>()).sum()
    }

    fn memory_usage(&self) -> usize {
        self.filled_memory() + self.fragmented.as_ref().map_or(0, |f| f.memory_usage())
    }
}

/// The contents of a memtable, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Figures {
    entries: u64,
    deletes: u64,
    data_size: u64,
    first_sequence: SequenceNumber,
}

impl MergedMemTable {
    /// The largest number of the memtables that it was made of.
    pub fn id(&self) -> u64 {
        self.ids.first().copied().unwrap_or(0)
    }

    /// The numbers of the memtables that it was made of, newest first.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Says that the data is in a table.
    pub(crate) fn mark_flushed(&self) {
        let of_lists = self.entries.lists().iter().filter_map(|list| list.account());
        of_lists.chain(&self.account).for_each(MemoryAccount::flushed);
    }

    /// The range of entries that must be compared with `ikey`.
    #[inline]
    fn candidates(&self, ikey: &[u8]) -> Range<usize> {
        self.index.candidates(ikey, &self.cmp, |group| {
            self.entries.prefetch_pointer(group);
            self.entries.prefetch_pointer(group + GROUP - 1);
        })
    }

    /// The end of the entries for which `goes_on` holds, which must hold for the first ones of the range.
    #[inline]
    fn end_where(&self, range: Range<usize>, goes_on: impl Fn(Entry<'_>) -> bool) -> usize {
        let Range { mut start, mut end } = range;
        if end - start == 1 {
            // The usual case: the prefixes have found it, and its cache lines are fetched together.
            if let Some(e) = self.entries.get(start) {
                e.prefetch();
            }
        }
        while start < end {
            let middle = start.midpoint(end);
            if self.entries.get(middle).is_some_and(&goes_on) { start = middle + 1 } else { end = middle }
        }
        start
    }

    /// The place of the first entry at or after `ikey`.
    #[inline]
    fn first_at_or_after(&self, ikey: &[u8]) -> usize {
        self.end_where(self.candidates(ikey), |e| self.cmp.compare(e.key(), ikey).is_lt())
    }

    /// The place of the first entry after `ikey`.
    fn first_after(&self, ikey: &[u8]) -> usize {
        self.end_where(self.candidates(ikey), |e| self.cmp.compare(e.key(), ikey).is_le())
    }

    /// Looks `ikey` up, as [`MemTable::get`] does.
    #[inline]
    pub fn get(&self, ikey: &[u8], ctx: &mut GetContext<'_>) {
        let user_key = key::user_key(ikey);
        if let Some(tombstones) = &self.range_dels.fragmented {
            ctx.cover(tombstones.max_covering(user_key, key::sequence(ikey), &self.cmp));
        }
        if lacks_key(self.bloom.as_ref(), user_key) {
            return;
        }
        let candidates = self.candidates(ikey);
        let end = candidates.end;
        // Equal keys have equal prefixes, so that none is outside of the range.
        let first = self.end_where(candidates, |e| self.cmp.compare(e.key(), ikey).is_lt());
        let mut entries = (first..end).map_while(|at| self.entries.get(at));
        while entries.next().is_some_and(|e| offer(e, &self.cmp, self.values.as_ref(), ctx)) {}
    }

    /// Number of entries between two internal keys, and their approximate bytes.
    pub fn approximate_stats(&self, start: &[u8], end: &[u8]) -> (u64, u64) {
        let count = self.first_at_or_after(end).saturating_sub(self.first_at_or_after(start)) as u64;
        (count, count * self.data_size().checked_div(self.num_entries()).unwrap_or(0))
    }

    /// An iterator over the point entries; it keeps them alive. Of an index table it reads each value when it comes to
    /// it.
    pub fn iter(self: &Arc<Self>) -> Box<dyn InternalIterator> {
        self.iter_with(None, false)
    }

    /// The same, for those who call [`InternalIterator::prepare_value`] before they ask for a value.
    pub(crate) fn iter_unprepared(self: &Arc<Self>) -> Box<dyn InternalIterator> {
        self.iter_with(None, true)
    }

    /// The same; seeks that `prefix` allows to ask the filter find nothing where it lacks the target's prefix.
    pub(crate) fn iter_by_prefix(self: &Arc<Self>, prefix: &Arc<PrefixSeek>) -> Box<dyn InternalIterator> {
        let prefix = self.bloom.as_ref().is_some_and(|b| b.prefixes().is_some()).then(|| Arc::clone(prefix));
        self.iter_with(prefix, true)
    }

    /// Its entries as they are: of index tables with slots for values.
    fn slots(self: &Arc<Self>) -> MergedIterator {
        MergedIterator { at: self.entries.len(), table: Arc::clone(self), prefix: None }
    }

    fn iter_with(self: &Arc<Self>, prefix: Option<Arc<PrefixSeek>>, unprepared: bool) -> Box<dyn InternalIterator> {
        let entries = MergedIterator { prefix, ..self.slots() };
        match &self.values {
            None => Box::new(entries),
            Some(_) => Box::new(IndexTableIterator::new(entries, SealedTable::Merged(Arc::clone(self)), unprepared)),
        }
    }

    /// Of index tables: where the values are.
    pub(crate) fn log_values(&self) -> Option<&LogValues> {
        self.values.as_ref()
    }

    /// The range tombstones, fragmented; `None` when there are none.
    #[inline]
    pub fn range_tombstones(&self) -> Option<Arc<FragmentedRangeTombstones>> {
        self.range_dels.fragmented.clone()
    }

    /// Bytes that its inputs have, or had: its filter is about as large as theirs together.
    fn filled_memory(&self) -> usize {
        let lists = self.entries.lists().iter().map(|list| list.memory_usage()).sum::<usize>();
        lists + self.range_dels.filled_memory() + self.bloom.as_ref().map_or(0, Bloom::memory_usage)
    }

    /// Bytes that it has itself, without the memtables that it keeps alive.
    pub fn own_memory_usage(&self) -> usize {
        let bloom = self.bloom.as_ref().map_or(0, Bloom::memory_usage);
        self.entries.memory_usage() + self.index.memory_usage() + self.range_dels.memory_usage() + bloom
    }

    /// Bytes allocated, with those of the memtables that it keeps alive.
    pub fn memory_usage(&self) -> usize {
        self.own_memory_usage() + self.entries.lists().iter().map(|list| list.memory_usage()).sum::<usize>()
    }

    /// See [`MemTable::unfilled`].
    fn unfilled(&self) -> usize {
        self.entries.lists().iter().map(|list| list.unfilled()).sum()
    }

    /// Point entries and range tombstones.
    pub fn num_entries(&self) -> u64 {
        self.figures.entries
    }

    /// Deletions of all kinds.
    pub fn num_deletes(&self) -> u64 {
        self.figures.deletes
    }

    /// Range tombstones.
    pub fn num_range_deletes(&self) -> u64 {
        self.range_dels.all.len() as u64
    }

    /// Internal key and value bytes.
    pub fn data_size(&self) -> u64 {
        self.figures.data_size
    }

    /// True when there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.figures.entries == 0
    }

    /// No entry has a smaller sequence number: the smallest of all merged entries, including those left out. `u64::MAX`
    /// if nothing was merged.
    pub fn first_sequence(&self) -> SequenceNumber {
        self.figures.first_sequence
    }
}

/// Iterates over a merged memtable's point entries. After the last one, it is on none.
struct MergedIterator {
    table: Arc<MergedMemTable>,
    at: usize,
    prefix: Option<Arc<PrefixSeek>>,
}

impl SlotIterator for MergedIterator {
    fn copy(&self) -> Self {
        Self { table: Arc::clone(&self.table), at: self.at, prefix: None }
    }
}

impl MergedIterator {
    fn is_left_out(&self, target: &[u8], backward: bool) -> bool {
        self.prefix.as_ref().is_some_and(|seek| lacks_prefix(self.table.bloom.as_ref(), target, seek, backward))
    }

    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.table.entries.get(self.at)
    }

    fn none(&self) -> usize {
        self.table.entries.len()
    }
}

impl InternalIterator for MergedIterator {
    #[inline]
    fn valid(&self) -> bool {
        self.at < self.table.entries.len()
    }
    fn seek_to_first(&mut self) {
        self.at = 0;
    }
    fn seek_to_last(&mut self) {
        self.at = self.none().saturating_sub(1);
    }
    fn seek(&mut self, target: &[u8]) {
        let _timer = perf::time(PerfMetric::SeekOnMemtableTime);
        perf::count(PerfMetric::SeekOnMemtableCount, 1);
        let out = self.is_left_out(target, false);
        self.at = if out { self.none() } else { self.table.first_at_or_after(target) };
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        let _timer = perf::time(PerfMetric::SeekOnMemtableTime);
        perf::count(PerfMetric::SeekOnMemtableCount, 1);
        let after = if self.is_left_out(target, true) { 0 } else { self.table.first_after(target) };
        self.at = after.checked_sub(1).unwrap_or(self.none());
    }
    #[inline]
    fn next(&mut self) {
        perf::count(PerfMetric::NextOnMemtableCount, 1);
        if self.valid() {
            self.at += 1;
            if let Some(ahead) = self.table.entries.get(self.at + AHEAD) {
                ahead.prefetch();
            }
        }
    }
    #[inline]
    fn prev(&mut self) {
        perf::count(PerfMetric::PrevOnMemtableCount, 1);
        if self.valid() {
            self.at = self.at.checked_sub(1).unwrap_or(self.none());
            if let Some(ahead) = self.at.checked_sub(AHEAD).and_then(|at| self.table.entries.get(at)) {
                ahead.prefetch();
            }
        }
    }
    #[inline]
    fn key(&self) -> &[u8] {
        self.entry().map_or(&[], Entry::key)
    }
    #[inline]
    fn value(&self) -> &[u8] {
        self.entry().map_or(&[], Entry::value)
    }
    fn status(&self) -> Result<()> {
        Ok(())
    }
}

/// A memtable that does not change any more: a sealed one, or several merged ones.
#[derive(Clone)]
pub enum SealedTable {
    /// As it was filled.
    Plain(Arc<MemTable>),
    /// Several.
    Merged(Arc<MergedMemTable>),
}

/// Calls a method that both have.
macro_rules! either {
    ($table:expr, $t:ident => $call:expr) => {
        match $table {
            SealedTable::Plain($t) => $call,
            SealedTable::Merged($t) => $call,
        }
    };
}

/// Memory that is freed with its last reader.
pub(crate) struct HeldMemory(Held);

enum Held {
    Plain(Weak<MemTable>),
    /// Its data in addition to its list.
    Beside(Weak<MemTable>),
    /// Of a merged one: its own memory, and each of the lists.
    Merged(Weak<MergedMemTable>),
    List(Weak<SkipList>),
}

impl HeldMemory {
    /// Bytes, as long as anything holds it.
    pub fn bytes(&self) -> Option<u64> {
        let bytes = match &self.0 {
            Held::Plain(t) => t.upgrade()?.memory_usage(),
            Held::Beside(t) => t.upgrade()?.memory_beside_list(),
            Held::Merged(t) => t.upgrade()?.own_memory_usage(),
            Held::List(list) => list.upgrade()?.memory_usage(),
        };
        Some(bytes as u64)
    }
}

impl SealedTable {
    /// True when both are one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain(a), Self::Plain(b)) => Arc::ptr_eq(a, b),
            (Self::Merged(a), Self::Merged(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The smallest number of the memtables in it.
    pub(crate) fn oldest_id(&self) -> u64 {
        match self {
            Self::Plain(t) => t.id(),
            Self::Merged(t) => t.ids().last().copied().unwrap_or(0),
        }
    }

    /// How many memtables are in it.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Plain(_) => 1,
            Self::Merged(t) => t.ids().len(),
        }
    }

    /// The memory that is freed when nothing uses it any more.
    pub(crate) fn held_memory(&self) -> Vec<HeldMemory> {
        match self {
            Self::Plain(t) => vec![HeldMemory(Held::Plain(Arc::downgrade(t)))],
            Self::Merged(t) => {
                let lists = t.entries.lists().iter().map(|list| HeldMemory(Held::List(Arc::downgrade(list))));
                lists.chain([HeldMemory(Held::Merged(Arc::downgrade(t)))]).collect()
            }
        }
    }

    /// Called when a merged table has replaced it and keeps its lists. Returns the memory that is freed with its last
    /// reader, for which nobody should wait.
    pub(crate) fn superseded(&self) -> HeldMemory {
        HeldMemory(match self {
            Self::Plain(t) => Held::Beside(Arc::downgrade(t)),
            Self::Merged(t) => {
                t.account.iter().for_each(MemoryAccount::flushed);
                Held::Merged(Arc::downgrade(t))
            }
        })
    }

    /// Of index tables: where the values are.
    #[inline]
    pub(crate) fn log_values(&self) -> Option<&LogValues> {
        either!(self, t => t.log_values())
    }

    /// See [`MemTable::iter_unprepared`].
    pub(crate) fn iter_unprepared(&self) -> Box<dyn InternalIterator> {
        either!(self, t => t.iter_unprepared())
    }

    /// An iterator for reading all of it in order: values that are in logs are read ahead, as `reads` says.
    pub(crate) fn iter_all(&self, reads: Option<&LogReads>) -> Box<dyn InternalIterator> {
        match (self, reads.filter(|_| self.log_values().is_some())) {
            (_, None) => self.iter(),
            (Self::Plain(t), Some(reads)) => Box::new(ReadAhead::new(self.clone(), t.entries(), reads.clone())),
            (Self::Merged(t), Some(reads)) => Box::new(ReadAhead::new(self.clone(), t.slots(), reads.clone())),
        }
    }

    /// Bytes allocated for the filled memtables, without what a merge adds.
    pub(crate) fn filled_memory(&self) -> usize {
        match self {
            Self::Plain(t) => t.memory_usage(),
            Self::Merged(t) => t.filled_memory(),
        }
    }

    /// The numbers of the memtables in it, newest first.
    pub fn ids(&self) -> Vec<u64> {
        match self {
            Self::Plain(t) => vec![t.id()],
            Self::Merged(t) => t.ids().to_vec(),
        }
    }

    /// See [`MemTable::get`].
    #[inline]
    pub fn get(&self, ikey: &[u8], ctx: &mut GetContext<'_>) {
        either!(self, t => t.get(ikey, ctx));
    }

    /// See [`MemTable::iter`].
    pub fn iter(&self) -> Box<dyn InternalIterator> {
        either!(self, t => t.iter())
    }

    /// See [`MemTable::iter_by_prefix`].
    pub(crate) fn iter_by_prefix(&self, prefix: &Arc<PrefixSeek>) -> Box<dyn InternalIterator> {
        either!(self, t => t.iter_by_prefix(prefix))
    }

    /// See [`MemTable::range_tombstones`].
    #[inline]
    pub fn range_tombstones(&self) -> Option<Arc<FragmentedRangeTombstones>> {
        either!(self, t => t.range_tombstones())
    }

    /// See [`MemTable::approximate_stats`].
    pub fn approximate_stats(&self, start: &[u8], end: &[u8]) -> (u64, u64) {
        either!(self, t => t.approximate_stats(start, end))
    }

    /// See [`MemTable::memory_usage`].
    pub fn memory_usage(&self) -> usize {
        either!(self, t => t.memory_usage())
    }

    /// See [`MemTable::unfilled`].
    pub fn unfilled(&self) -> usize {
        either!(self, t => t.unfilled())
    }

    /// See [`MemTable::num_entries`].
    pub fn num_entries(&self) -> u64 {
        either!(self, t => t.num_entries())
    }

    /// See [`MemTable::num_deletes`].
    pub fn num_deletes(&self) -> u64 {
        either!(self, t => t.num_deletes())
    }

    /// See [`MemTable::num_range_deletes`].
    pub fn num_range_deletes(&self) -> u64 {
        either!(self, t => t.num_range_deletes())
    }

    /// See [`MemTable::data_size`].
    pub fn data_size(&self) -> u64 {
        either!(self, t => t.data_size())
    }

    /// See [`MemTable::first_sequence`].
    pub fn first_sequence(&self) -> SequenceNumber {
        either!(self, t => t.first_sequence())
    }

    /// Says that the data is in a table.
    pub(crate) fn mark_flushed(&self) {
        either!(self, t => t.mark_flushed());
    }
}

#[cfg(test)]
mod tests;
