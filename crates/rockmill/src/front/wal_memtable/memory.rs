//! The memory of memtables: where it comes from, where it is charged, and when it is short.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rockmill_format::InternalKeyComparator;

use super::family::FamilyFront;
use crate::info_log::Alarm;
use crate::memtable::write_buffer_manager::WriteBufferManager;
use crate::memtable::{
    BLOCK_SIZE_MIN, MemTable, MemTableFilter, MemoryPool, arena_step, memory_when_full_min, step_of_shards,
};
use crate::options::{CfOptions, DbOptions};
use crate::pacing::index_tables::{Adapts, Triggers};

/// The most bytes of a memtable's filter, whatever the two options result in: ten bits for each of 13 million keys.
const FILTER_MAX: usize = 16 << 20;

/// Memtables that keep where values are in the log, instead of the values: index tables (DecouKV, section 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexTables {
    /// Bytes of memory at which one is full (the paper's `max_index_size`).
    pub size: usize,
    /// Values of up to this many bytes are in the table itself.
    pub inline_max: usize,
    /// How many of them are merged, and at which memory of full ones they are flushed, unless the schedule has changed
    /// that.
    pub given: Triggers,
    /// What the schedule may change of this.
    pub adapts: Adapts,
    /// The most bytes of logs.
    pub capacity: u64,
}

impl IndexTables {
    /// Bytes of memory of full ones at which writers stop.
    pub fn memory_max(&self) -> usize {
        self.given.memory_max(self.size)
    }

    fn of(options: &DbOptions) -> Option<Self> {
        options.keeps_values_in_logs().then_some(Self {
            size: options.max_index_size.max(memory_when_full_min()),
            inline_max: options.index_inline_size,
            given: Triggers {
                merge: options.index_merge_trigger_num,
                flush_bytes: options.data_flush_trigger_size as u64,
            },
            adapts: Adapts { triggers: options.adaptive_index_triggers, levels: options.elastic_level_capacity },
            capacity: options.fast_capacity.max(1),
        })
    }
}

/// Where the memory of a store's memtables comes from, and where it is charged. Default: from the allocator, and
/// charged nowhere.
#[derive(Default)]
pub(crate) struct FrontMemory {
    /// Bounds memtables, if set: the options' manager or, for `db_write_buffer_size`, the database's own.
    manager: Option<WriteBufferManager>,
    /// Memory of dropped memtables, for the next ones.
    pool: Option<Arc<MemoryPool>>,
    /// How values that stay in the log are indexed, if they do.
    index: Option<IndexTables>,
}

impl FrontMemory {
    /// `alarm` is rung when there is something to [prepare](Self::prepare).
    pub fn new(options: &DbOptions, alarm: &Arc<Alarm>) -> Self {
        let own = match options.db_write_buffer_size {
            0 => None,
            n => Some(WriteBufferManager::new_write_buffer_manager(n, false)),
        };
        let manager = options.write_buffer_manager.clone().or(own);
        let pool = Arc::new(MemoryPool::new(manager.as_ref(), Some(Arc::clone(alarm))));
        Self { manager, pool: Some(pool), index: IndexTables::of(options) }
    }

    /// The memory of those who only read logs. It is charged nowhere: nothing could flush it.
    pub(super) fn of_reader(index: Option<IndexTables>) -> Self {
        Self { index, ..Self::default() }
    }

    /// How values that stay in the log are indexed, if they do.
    pub fn index(&self) -> Option<&IndexTables> {
        self.index.as_ref()
    }

    /// True if something must be sealed and flushed because all memtables together hold too much.
    #[inline]
    pub fn should_flush(&self) -> bool {
        self.manager.as_ref().is_some_and(WriteBufferManager::should_flush)
    }

    /// If that is so: the column family whose active memtable should be sealed, which is the one with the oldest data
    /// among those that do not wait for a flush already.
    pub fn family_to_seal<'a, O: Deref<Target = CfOptions>>(
        &self,
        families: impl Iterator<Item = (u32, &'a FamilyFront, O)>,
        without_merging: bool,
    ) -> Option<u32> {
        if !self.should_flush() {
            return None;
        }
        let waits = |front: &FamilyFront, options: &O| front.waits_for_flush(options, without_merging);
        let candidates = families.filter(|(_, front, options)| !front.is_empty() && !waits(front, options));
        candidates.min_by_key(|(_, front, _)| front.first_sequence()).map(|(id, ..)| id)
    }

    /// True when writers wait until flushes have freed memory.
    #[inline]
    pub fn stalls_writers(&self) -> bool {
        self.manager.as_ref().is_some_and(WriteBufferManager::should_stall)
    }

    /// True if the memory of all memtables requires a flush, or that writers wait.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.manager.as_ref().is_some_and(|m| m.should_flush() || m.should_stall())
    }

    /// True when writers, also of other databases, may have to wait for memory.
    pub fn may_stall_writers(&self) -> bool {
        self.manager.as_ref().is_some_and(WriteBufferManager::allows_stall)
    }

    /// Waits until there may be room, at most `longest`.
    pub fn wait(&self, longest: Duration, given_up: impl Fn() -> bool) {
        if let Some(manager) = &self.manager {
            manager.wait(longest, given_up);
        }
    }

    /// Makes waiting writers check again.
    pub fn wake(&self) {
        if let Some(manager) = &self.manager {
            manager.wake();
        }
    }

    /// Bytes kept for future memtables.
    pub fn kept_bytes(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.bytes() as u64)
    }

    /// Makes memory ready that a memtable will soon ask for.
    pub fn prepare(&self) {
        if let Some(pool) = &self.pool {
            pool.prepare();
        }
    }

    /// How often memory was taken from the kept memory, or returned to it.
    pub fn uses(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.uses())
    }

    /// Returns the kept memory to the system.
    pub fn give_back(&self) {
        if let Some(pool) = &self.pool {
            pool.clear();
        }
    }

    /// The filter of this many memtables that become one.
    pub(super) fn filter_of(&self, memtables: usize, options: &CfOptions) -> MemTableFilter {
        filter(memtable_size(self.index(), options).saturating_mul(memtables), options)
    }

    /// What memtables are charged to.
    pub(super) fn manager(&self) -> Option<&WriteBufferManager> {
        self.manager.as_ref()
    }

    /// An empty memtable. Its arena grows as [`arena_step`] says, and in smaller steps if a small limit bounds all
    /// memtables together, so that a fresh memtable does not come near it.
    pub(super) fn memtable(&self, id: u64, cmp: &InternalKeyComparator, options: &CfOptions) -> Arc<MemTable> {
        let manager = self.manager.as_ref();
        let limit = manager.map_or(0, WriteBufferManager::get_buffer_size);
        let size = memtable_size(self.index(), options);
        let mut step = arena_step(size, options.arena_block_size);
        if limit > 0 {
            step = step.min((limit / 64).max(BLOCK_SIZE_MIN));
        }
        let pool = self.pool.as_ref().filter(|pool| pool.serves(size, step)).cloned();
        if pool.is_none() {
            step = step.min(step_of_shards(size));
        }
        let filter = filter(size, options);
        let fresh = MemTable::charging(id, cmp.clone(), step, &filter, manager, pool);
        Arc::new(match self.index() {
            Some(index) => fresh.with_values_in_log(index.inline_max),
            None => fresh,
        })
    }
}

/// The filter of `size` bytes of memtables.
fn filter(size: usize, options: &CfOptions) -> MemTableFilter {
    // RocksDB's limits.
    let ratio = options.memtable_prefix_bloom_size_ratio.clamp(0.0, 0.25);
    MemTableFilter {
        bytes: ((size as f64 * ratio) as usize).min(FILTER_MAX),
        whole_keys: options.memtable_whole_key_filtering,
        prefixes: options.prefix_extractor.clone(),
    }
}

/// What makes a memtable full.
#[derive(Clone, Copy)]
pub(super) struct BufferLimit {
    bytes: usize,
    range_deletions: u64,
}

/// Bytes of memory at which a memtable is full.
pub(super) fn memtable_size(index: Option<&IndexTables>, options: &CfOptions) -> usize {
    index.map_or(options.write_buffer_size, |index| index.size)
}

impl BufferLimit {
    pub(super) fn of(index: Option<&IndexTables>, options: &CfOptions) -> Self {
        let range_deletions = match options.memtable_max_range_deletions {
            0 => u64::MAX,
            n => n.into(),
        };
        Self { bytes: memtable_size(index, options).max(memory_when_full_min()), range_deletions }
    }

    #[inline]
    pub(super) fn is_reached(self, mem: &MemTable) -> bool {
        mem.memory_usage() >= self.bytes || mem.num_range_deletes() >= self.range_deletions
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::ValueType;

    use super::super::family::WritersNow;
    use super::*;
    use crate::event_listener::FlushReason;
    use crate::info_log::InfoLog;

    #[test]
    fn the_oldest_data_makes_room_unless_a_flush_does() {
        let db = DbOptions { db_write_buffer_size: 1 << 20, ..DbOptions::default() };
        let (options, memory) = (CfOptions::default(), FrontMemory::new(&db, InfoLog::default().alarm()));
        let cmp = InternalKeyComparator::default();
        let mut fronts = [(); 3].map(|()| FamilyFront::new(&cmp, &options, &memory, 1));
        let put = |front: &FamilyFront, seq| front.view().insert(seq, ValueType::Value, b"k", &[0; 100 << 10], None);
        let to_seal = |fronts: &[FamilyFront]| {
            memory.family_to_seal((10..).zip(fronts).map(|(id, front)| (id, front, &options)), false)
        };
        put(&fronts[1], 5);
        assert_eq!(to_seal(&fronts), None, "there is room");
        for seq in 6..20 {
            put(&fronts[2], seq);
        }
        put(&fronts[0], 20);
        assert_eq!(to_seal(&fronts), Some(11));
        let writers = WritersNow { written: 0, now: 0.0, waited: 0.0 };
        fronts[1].seal(&options, &memory, 2, FlushReason::WriteBufferManager, &writers);
        put(&fronts[1], 21);
        assert_eq!(to_seal(&fronts), Some(12), "the oldest is about to be flushed");
    }

    #[test]
    fn a_filter_is_bounded_whatever_two_options_make_of_each_other() {
        let options = CfOptions {
            write_buffer_size: 64 << 30,
            memtable_prefix_bloom_size_ratio: 0.25,
            memtable_whole_key_filtering: true,
            ..CfOptions::default()
        };
        let empty = FrontMemory::default().memtable(1, &InternalKeyComparator::default(), &options);
        assert!((FILTER_MAX..FILTER_MAX + (1 << 20)).contains(&empty.memory_usage()), "{}", empty.memory_usage());
    }
}
