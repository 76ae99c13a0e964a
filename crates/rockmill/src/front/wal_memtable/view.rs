//! The memtables of a column family as readers and writers hold them, and as a flush reads them.

use std::sync::Arc;

use rockmill_format::{SequenceNumber, ValueType};

use super::memory::BufferLimit;
use super::sealed_reads::SealedReads;
use crate::front::BufferStats;
use crate::iter::InternalIterator;
use crate::iter::get::GetContext;
use crate::iter::prefix_seek::PrefixSeek;
use crate::memtable::log_values::LoggedValue;
use crate::memtable::{MemTable, SealedTable};
use crate::range_del::FragmentedRangeTombstones;

/// What a memtable holds.
pub(super) fn stats_of(mem: &MemTable) -> BufferStats {
    BufferStats {
        memory: mem.memory_usage() as u64,
        data_size: mem.data_size(),
        entries: mem.num_entries(),
        deletes: mem.num_deletes(),
        range_deletes: mem.num_range_deletes(),
    }
}

/// What a sealed one holds.
pub(super) fn stats_of_sealed(table: &SealedTable) -> BufferStats {
    match table {
        SealedTable::Plain(mem) => stats_of(mem),
        SealedTable::Merged(_) => BufferStats {
            memory: table.memory_usage() as u64,
            data_size: table.data_size(),
            entries: table.num_entries(),
            deletes: table.num_deletes(),
            range_deletes: table.num_range_deletes(),
        },
    }
}

/// Everything of a column family that is not in tables, as it was when it was published: the memtable that writers
/// fill, and full ones. It stays readable as long as it is held, even after its flush.
pub(crate) struct FrontView {
    active: Arc<MemTable>,
    /// Newest first.
    sealed: Vec<SealedTable>,
    /// What makes the active one full.
    limit: BufferLimit,
}

impl FrontView {
    pub(super) fn new(active: Arc<MemTable>, sealed: Vec<SealedTable>, limit: BufferLimit) -> Self {
        Self { active, sealed, limit }
    }

    pub(super) fn active(&self) -> &Arc<MemTable> {
        &self.active
    }

    /// Makes an entry visible to reads that may see its sequence number. For `RangeDeletion`, `key` is the begin and
    /// `value` the end of the range. `at`: where the value is in the log, for index tables. Any number of threads may
    /// do this at once, except during a seal.
    #[inline]
    pub fn insert(
        &self,
        seq: SequenceNumber,
        value_type: ValueType,
        key: &[u8],
        value: &[u8],
        at: Option<LoggedValue<'_>>,
    ) {
        self.active.add_logged(seq, value_type, key, value, at);
    }

    /// True where values may be in logs: iterators have to [prepare](InternalIterator::prepare_value) them.
    pub fn has_values_in_logs(&self) -> bool {
        self.active.log_values().is_some() || self.sealed.iter().any(|table| table.log_values().is_some())
    }

    /// True if the active memtable should be sealed.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.limit.is_reached(&self.active)
    }

    /// Looks up `ikey` (a user key with the snapshot's sequence number), newest first, until `ctx` has enough; returns
    /// how many memtables were asked.
    #[inline]
    pub fn get(&self, ikey: &[u8], ctx: &mut GetContext<'_>) -> u64 {
        self.active.get(ikey, ctx);
        let mut asked = 1;
        for table in &self.sealed {
            if ctx.is_done() {
                break;
            }
            table.get(ikey, ctx);
            asked += 1;
        }
        asked
    }

    /// Iterators over the point entries, newest first; if `prefix` allows a seek to ask a filter, it finds nothing if
    /// the filter lacks the target's prefix. Values must be prepared if [`Self::has_values_in_logs`] says so.
    pub fn iterators(&self, prefix: Option<&Arc<PrefixSeek>>) -> impl Iterator<Item = Box<dyn InternalIterator>> {
        let active = prefix.map_or_else(|| self.active.iter_unprepared(), |p| self.active.iter_by_prefix(p));
        let of = move |table: &SealedTable| prefix.map_or_else(|| table.iter_unprepared(), |p| table.iter_by_prefix(p));
        std::iter::once(active).chain(self.sealed.iter().map(of))
    }

    /// The range tombstones, fragmented, of memtables that have any.
    pub fn range_tombstones(&self) -> impl Iterator<Item = Arc<FragmentedRangeTombstones>> {
        let sealed = self.sealed.iter().filter_map(SealedTable::range_tombstones);
        self.active.range_tombstones().into_iter().chain(sealed)
    }

    /// What all of it holds.
    pub fn stats(&self) -> BufferStats {
        std::iter::once(stats_of(&self.active)).chain(self.sealed.iter().map(stats_of_sealed)).sum()
    }

    /// Approximate number of entries between two internal keys, and their bytes.
    pub fn approximate_stats(&self, start: &[u8], end: &[u8]) -> (u64, u64) {
        let sealed = self.sealed.iter().map(|table| table.approximate_stats(start, end));
        sealed.fold(self.active.approximate_stats(start, end), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Sealed memtables of one column family: the sorted input of a flush. They do not change any more.
#[derive(Clone)]
pub(crate) struct SealedRuns {
    /// Oldest first.
    tables: Vec<SealedTable>,
}

impl SealedRuns {
    /// Of memtables, oldest first.
    pub fn new(mems: Vec<Arc<MemTable>>) -> Self {
        Self::of(mems.into_iter().map(SealedTable::Plain).collect())
    }

    /// Of sealed tables, oldest first.
    pub fn of(tables: Vec<SealedTable>) -> Self {
        Self { tables }
    }

    /// Its sealed tables, oldest first.
    pub fn tables(&self) -> &[SealedTable] {
        &self.tables
    }

    /// How many memtables there are; several may be merged.
    pub fn count(&self) -> usize {
        self.tables.iter().map(SealedTable::count).sum()
    }

    /// Their numbers, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().flat_map(|table| table.ids().into_iter().rev())
    }

    /// Internal key and value bytes.
    pub fn data_size(&self) -> u64 {
        self.tables.iter().map(SealedTable::data_size).sum()
    }

    /// What all of them hold.
    pub fn stats(&self) -> BufferStats {
        self.tables.iter().map(stats_of_sealed).sum()
    }

    /// The point entries of each in order, newest run first. Values that are in logs are read through `reads`.
    pub fn iterators(&self, reads: &SealedReads) -> impl Iterator<Item = Box<dyn InternalIterator>> {
        self.tables.iter().rev().map(move |table| table.iter_all(reads.of_logs()))
    }

    /// Their range tombstones.
    pub fn range_tombstones(&self) -> Vec<Arc<FragmentedRangeTombstones>> {
        self.tables.iter().filter_map(SealedTable::range_tombstones).collect()
    }
}
