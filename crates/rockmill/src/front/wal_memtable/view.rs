//! The memtables of a column family as readers and writers hold them, and as a flush reads them.

use std::sync::Arc;

use rockmill_format::{SequenceNumber, ValueType};

use super::memory::BufferLimit;
use crate::front::BufferStats;
use crate::iter::InternalIterator;
use crate::iter::get::GetContext;
use crate::iter::prefix_seek::PrefixSeek;
use crate::memtable::MemTable;
use crate::memtable::log_read_ahead::ReadAhead;
use crate::memtable::log_values::LoggedValue;
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

/// Everything of a column family that is not in tables, as it was when it was published: the memtable that writers
/// fill, and full ones. It stays readable as long as it is held, also after its flush.
pub(crate) struct FrontView {
    active: Arc<MemTable>,
    /// Newest first.
    sealed: Vec<Arc<MemTable>>,
}

impl FrontView {
    pub(super) fn new(active: Arc<MemTable>, sealed: Vec<Arc<MemTable>>) -> Self {
        Self { active, sealed }
    }

    pub(super) fn active(&self) -> &Arc<MemTable> {
        &self.active
    }

    /// Makes an entry findable for reads that may see its sequence number. For `RangeDeletion`, `key` is the begin and
    /// `value` the end of the range. `at`: where the value is in the log, for index tables. Any number of threads may
    /// do this at once, but for the time of a seal.
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
        self.all().any(|mem| mem.log_values().is_some())
    }

    /// True when what writers fill is to be sealed.
    #[inline]
    pub fn is_full(&self, limit: BufferLimit) -> bool {
        limit.is_reached(&self.active)
    }

    /// Looks `ikey` (a user key with the snapshot's sequence number) up, newest first, until `ctx` has enough; gives
    /// how many memtables were asked.
    #[inline]
    pub fn get(&self, ikey: &[u8], ctx: &mut GetContext<'_>) -> u64 {
        self.active.get(ikey, ctx);
        let mut asked = 1;
        for mem in &self.sealed {
            if ctx.is_done() {
                break;
            }
            mem.get(ikey, ctx);
            asked += 1;
        }
        asked
    }

    /// Newest first.
    fn all(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        [&self.active].into_iter().chain(&self.sealed)
    }

    /// Iterators over the point entries, newest first; seeks that `prefix` allows to ask a filter find nothing where it
    /// lacks the target's prefix. Values must be prepared if [`Self::has_values_in_logs`] says so.
    pub fn iterators(&self, prefix: Option<&Arc<PrefixSeek>>) -> impl Iterator<Item = Box<dyn InternalIterator>> {
        self.all().map(move |mem| prefix.map_or_else(|| mem.iter_unprepared(), |p| mem.iter_by_prefix(p)))
    }

    /// The range tombstones, fragmented; of memtables that have any.
    pub fn range_tombstones(&self) -> impl Iterator<Item = Arc<FragmentedRangeTombstones>> {
        self.all().filter_map(|mem| mem.range_tombstones())
    }

    /// What all of it holds.
    pub fn stats(&self) -> BufferStats {
        self.all().map(|mem| stats_of(mem)).sum()
    }

    /// About how many entries lie between two internal keys, and their bytes.
    pub fn approximate_stats(&self, start: &[u8], end: &[u8]) -> (u64, u64) {
        self.all().map(|mem| mem.approximate_stats(start, end)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Sealed memtables of one column family: the sorted input of a flush. Nothing is added to them any more.
#[derive(Clone)]
pub(crate) struct SealedRuns {
    /// Oldest first.
    mems: Vec<Arc<MemTable>>,
}

impl SealedRuns {
    /// Of memtables, oldest first.
    pub fn new(mems: Vec<Arc<MemTable>>) -> Self {
        Self { mems }
    }

    pub(super) fn mems(&self) -> &[Arc<MemTable>] {
        &self.mems
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.mems.len()
    }

    /// Their numbers, oldest first.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.mems.iter().map(|mem| mem.id())
    }

    /// Internal key and value bytes.
    pub fn data_size(&self) -> u64 {
        self.mems.iter().map(|mem| mem.data_size()).sum()
    }

    /// What all of them hold.
    pub fn stats(&self) -> BufferStats {
        self.mems.iter().map(|mem| stats_of(mem)).sum()
    }

    /// The point entries of each in order, newest run first.
    pub fn iterators(&self) -> impl Iterator<Item = Box<dyn InternalIterator>> {
        let together = self.mems.len();
        self.mems.iter().rev().map(move |mem| match mem.log_values() {
            None => mem.iter(),
            Some(_) => Box::new(ReadAhead::new(Arc::clone(mem), together)),
        })
    }

    /// Their range tombstones.
    pub fn range_tombstones(&self) -> Vec<Arc<FragmentedRangeTombstones>> {
        self.mems.iter().filter_map(|mem| mem.range_tombstones()).collect()
    }
}
