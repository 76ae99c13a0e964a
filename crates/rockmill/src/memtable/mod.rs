//! The in-memory table: an arena skip list of internal entries and a list of range tombstones.

use std::sync::Arc;

use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use crate::get::GetContext;
use crate::iter::InternalIterator;
use crate::range_del::FragmentedRangeTombstones;

/// A memtable. Inserts are concurrent (compare-and-swap into the skip list); reads never wait. All memory is freed
/// at once when the last reference goes.
pub struct MemTable {
    _private: (),
}

impl MemTable {
    /// An empty memtable. `id` rises with each memtable of a column family. `arena_block_size` in bytes.
    pub fn new(id: u64, cmp: InternalKeyComparator, arena_block_size: usize) -> Self {
        let _ = (id, cmp, arena_block_size);
        todo!()
    }

    /// The number given to `new`.
    pub fn id(&self) -> u64 {
        todo!()
    }

    /// Adds an entry. For `RangeDeletion`, `key` is the begin and `value` the end of the range. Safe from any number
    /// of threads at once.
    pub fn add(&self, seq: SequenceNumber, value_type: ValueType, key: &[u8], value: &[u8]) {
        let _ = (seq, value_type, key, value);
        todo!()
    }

    /// Looks `ikey` (a user key with the snapshot's sequence number) up: hands entries of that user key, newest
    /// first, to `ctx` until it has enough, having told it first of the newest range tombstone over the key.
    pub fn get(&self, ikey: &[u8], ctx: &mut GetContext<'_>) {
        let _ = (ikey, ctx);
        todo!()
    }

    /// An iterator over the point entries; it keeps the memtable alive.
    pub fn iter(self: &Arc<Self>) -> Box<dyn InternalIterator> {
        todo!()
    }

    /// The range tombstones, fragmented; `None` when there are none. Cached until another is added.
    pub fn range_tombstones(&self) -> Option<Arc<FragmentedRangeTombstones>> {
        todo!()
    }

    /// Bytes allocated.
    pub fn memory_usage(&self) -> usize {
        todo!()
    }

    /// Point entries and range tombstones.
    pub fn num_entries(&self) -> u64 {
        todo!()
    }

    /// Deletions of all kinds.
    pub fn num_deletes(&self) -> u64 {
        todo!()
    }

    /// Key and value bytes.
    pub fn data_size(&self) -> u64 {
        todo!()
    }

    /// True when nothing was added.
    pub fn is_empty(&self) -> bool {
        self.num_entries() == 0
    }

    /// Smallest sequence number added, `u64::MAX` when empty.
    pub fn first_sequence(&self) -> SequenceNumber {
        todo!()
    }
}
