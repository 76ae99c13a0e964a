//! The in-memory table: an arena skip list of internal entries, a list of range tombstones, and optionally a Bloom
//! filter. An *index table* is a memtable that keeps where values are in the log ([`log_values`]).

mod arena;
mod bloom;
pub(crate) mod log_read_ahead;
pub(crate) mod log_values;
mod merged;
mod pool;
mod skiplist;
pub(crate) mod write_buffer_manager;

use std::sync::Arc;

use rockmill_format::key::{self, MAX_SEQUENCE, ParsedInternalKey, pack_tag};
use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use crate::error::Result;
use crate::iter::InternalIterator;
use crate::iter::get::{GetContext, ValueSource};
use crate::iter::prefix_seek::PrefixSeek;
use crate::memtable::write_buffer_manager::WriteBufferManager;
use crate::perf_context::{self as perf, PerfMetric};
use crate::range_del::{FragmentedRangeTombstones, RangeTombstone};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(feature = "internals")]
pub(crate) use arena::block_of_arena;
pub(crate) use arena::{BLOCK_SIZE_MIN, arena_step, memory_when_full_min, step_of_shards};
use arena::{CachePadded, shard_count, thread_slot};
use bloom::Bloom;
pub use bloom::MemTableFilter;
use log_read_ahead::SlotIterator;
use log_values::{LogValues, LoggedValue, Slot, SlotBuffer};
pub(crate) use merged::HeldMemory;
pub use merged::{LeftOut, MergePlan, MergedMemTable, SealedTable};
pub(crate) use pool::MemoryPool;
use skiplist::{Cursor, Entry, SkipList};

/// A memtable. Inserts are concurrent (compare-and-swap into the skip list); reads never wait. All memory is freed
/// at once when the last reference is dropped.
pub struct MemTable {
    id: u64,
    list: Arc<SkipList>,
    /// The filter of the point entries' keys.
    bloom: Option<Bloom>,
    /// One set of counters for each shard of threads, so that parallel inserts do not share a cache line.
    counters: Box<[CachePadded<Counters>]>,
    first_sequence: AtomicU64,
    /// Length of `range_dels.all`: the common case, none, is answered without the lock.
    num_range_dels: AtomicUsize,
    range_dels: Mutex<RangeDels>,
    /// Of an index table: where its values are.
    values: Option<LogValues>,
}

#[derive(Default)]
struct Counters {
    entries: AtomicU64,
    deletes: AtomicU64,
    data_size: AtomicU64,
}

#[derive(Default)]
struct RangeDels {
    all: Vec<RangeTombstone>,
    bytes: usize,
    /// Made from `all` when asked for, dropped when it grows.
    fragmented: Option<Arc<FragmentedRangeTombstones>>,
}

impl MemTable {
    /// An empty memtable. `id` rises with each memtable of a column family. `arena_block_size` in bytes.
    pub fn new(id: u64, cmp: InternalKeyComparator, arena_block_size: usize) -> Self {
        Self::with_filter(id, cmp, arena_block_size, &MemTableFilter::default())
    }

    /// An empty memtable with a Bloom filter.
    pub fn with_filter(id: u64, cmp: InternalKeyComparator, arena_block_size: usize, filter: &MemTableFilter) -> Self {
        Self::charging(id, cmp, arena_block_size, filter, None, None)
    }

    /// Makes an empty memtable an index table: it keeps values of up to `inline_max` bytes, and for longer ones their
    /// place in the log.
    pub(crate) fn with_values_in_log(mut self, inline_max: usize) -> Self {
        debug_assert!(self.is_empty());
        self.values = Some(LogValues::new(inline_max));
        self
    }

    /// Of an index table: where its values are.
    pub(crate) fn log_values(&self) -> Option<&LogValues> {
        self.values.as_ref()
    }

    /// Like [`Self::with_filter`], with memory from `pool`, which gets it back, charged to `manager`.
    pub(crate) fn charging(
        id: u64,
        cmp: InternalKeyComparator,
        arena_block_size: usize,
        filter: &MemTableFilter,
        manager: Option<&WriteBufferManager>,
        pool: Option<Arc<MemoryPool>>,
    ) -> Self {
        let account = manager.map(WriteBufferManager::account);
        let bloom = Bloom::new(filter);
        if let (Some(account), Some(bloom)) = (&account, &bloom) {
            account.charge(bloom.memory_usage());
        }
        Self {
            id,
            bloom,
            list: Arc::new(SkipList::charging(cmp, arena_block_size, account, pool)),
            counters: (0..shard_count()).map(|_| CachePadded::default()).collect(),
            first_sequence: AtomicU64::new(u64::MAX),
            num_range_dels: AtomicUsize::new(0),
            range_dels: Mutex::default(),
            values: None,
        }
    }

    /// Says that it is written to no more and waits for its flush.
    pub(crate) fn mark_immutable(&self) {
        if let Some(account) = self.list.account() {
            account.immutable();
        }
    }

    /// Says that its data is in a table.
    pub(crate) fn mark_flushed(&self) {
        if let Some(account) = self.list.account() {
            account.flushed();
        }
    }

    /// The number given to `new`.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds an entry. For `RangeDeletion`, `key` is the begin and `value` the end of the range. Safe from any number
    /// of threads at once. No two entries have the same key, sequence number and type.
    #[inline]
    pub fn add(&self, seq: SequenceNumber, value_type: ValueType, key: &[u8], value: &[u8]) {
        self.add_logged(seq, value_type, key, value, None);
    }

    /// [`Self::add`] of a value that is in the log at `at`, for index tables.
    pub(crate) fn add_logged(
        &self,
        seq: SequenceNumber,
        value_type: ValueType,
        key: &[u8],
        value: &[u8],
        at: Option<LoggedValue<'_>>,
    ) {
        debug_assert!(seq <= MAX_SEQUENCE, "sequence number {seq} has more than 56 bits");
        if value_type == ValueType::RangeDeletion {
            self.add_range_deletion(seq, key, value);
        } else {
            let slot = self.values.as_ref().map(|values| values.slot(value, at));
            let value = slot.as_ref().map_or(value, SlotBuffer::as_bytes);
            self.list.insert(key, pack_tag(seq, value_type), value);
            if let Some(bloom) = &self.bloom {
                bloom.add(key);
            }
        }
        // All Relaxed: counts that order nothing; the write path publishes entries by its own sequence number.
        let counters = &self.counters[thread_slot() & (self.counters.len() - 1)].0;
        counters.entries.fetch_add(1, Ordering::Relaxed);
        counters.data_size.fetch_add((key.len() + key::TAG_LEN + value.len()) as u64, Ordering::Relaxed);
        if matches!(value_type, ValueType::Deletion | ValueType::SingleDeletion | ValueType::RangeDeletion) {
            counters.deletes.fetch_add(1, Ordering::Relaxed);
        }
        // Read first: after the first entry it hardly ever falls, and a read does not take the line from others.
        if seq < self.first_sequence.load(Ordering::Relaxed) {
            self.first_sequence.fetch_min(seq, Ordering::Relaxed);
        }
    }

    fn add_range_deletion(&self, seq: SequenceNumber, begin: &[u8], end: &[u8]) {
        let mut dels = self.range_dels.lock();
        dels.all.push(RangeTombstone { begin: begin.to_vec(), end: end.to_vec(), seq });
        let bytes = begin.len() + end.len() + size_of::<RangeTombstone>();
        dels.bytes += bytes;
        if let Some(account) = self.list.account() {
            account.charge(bytes);
        }
        dels.fragmented = None;
        // Release: a reader that learned of this write's sequence number finds at least this count, and the lock
        // gives it the list.
        self.num_range_dels.store(dels.all.len(), Ordering::Release);
    }

    /// Looks up `ikey` (a user key with the snapshot's sequence number): gives `ctx` the newest range tombstone over
    /// the key, then entries of that user key, newest first, until it has enough.
    #[inline]
    pub fn get(&self, ikey: &[u8], ctx: &mut GetContext<'_>) {
        let user_key = key::user_key(ikey);
        if let Some(tombstones) = self.range_tombstones() {
            ctx.cover(tombstones.max_covering(user_key, key::sequence(ikey), self.list.cmp()));
        }
        if lacks_key(self.bloom.as_ref(), user_key) {
            return;
        }
        let mut entry = self.list.seek(ikey);
        while let Some(e) = entry.filter(|e| offer(*e, self.list.cmp(), self.values.as_ref(), ctx)) {
            entry = e.next();
        }
    }

    /// Approximate number of entries between two internal keys, and their bytes.
    pub fn approximate_stats(&self, start: &[u8], end: &[u8]) -> (u64, u64) {
        let entries = self.num_entries();
        let count = self.list.approximate_count(start, end).min(entries);
        (count, count * self.data_size().checked_div(entries).unwrap_or(0))
    }

    /// An iterator over the point entries; it keeps them alive. For an index table, it reads each value when it reaches
    /// the entry.
    pub fn iter(self: &Arc<Self>) -> Box<dyn InternalIterator> {
        self.iter_with(None, false)
    }

    /// The same, for callers that call [`InternalIterator::prepare_value`] before they ask for a value.
    pub(crate) fn iter_unprepared(self: &Arc<Self>) -> Box<dyn InternalIterator> {
        self.iter_with(None, true)
    }

    /// Its entries as they are stored: those of an index table have slots as values.
    fn entries(&self) -> MemTableIterator {
        MemTableIterator { cursor: Cursor::new(Arc::clone(&self.list)), prefix: None }
    }

    fn iter_with(
        self: &Arc<Self>,
        prefix: Option<(Arc<PrefixSeek>, Arc<MemTable>)>,
        unprepared: bool,
    ) -> Box<dyn InternalIterator> {
        let entries = MemTableIterator { prefix, ..self.entries() };
        match &self.values {
            None => Box::new(entries),
            Some(_) => Box::new(IndexTableIterator::new(entries, SealedTable::Plain(Arc::clone(self)), unprepared)),
        }
    }

    /// The same; if `prefix` allows a seek to ask the filter, it finds nothing if the filter lacks the target's prefix.
    pub(crate) fn iter_by_prefix(self: &Arc<Self>, prefix: &Arc<PrefixSeek>) -> Box<dyn InternalIterator> {
        let filters = self.bloom.as_ref().is_some_and(|b| b.prefixes().is_some());
        self.iter_with(filters.then(|| (Arc::clone(prefix), Arc::clone(self))), true)
    }

    /// The range tombstones, fragmented; `None` when there are none. Cached until another is added.
    #[inline]
    pub fn range_tombstones(&self) -> Option<Arc<FragmentedRangeTombstones>> {
        // Acquire: pairs with the Release store in `add_range_deletion`.
        if self.num_range_dels.load(Ordering::Acquire) == 0 {
            return None;
        }
        Some(self.fragmented_range_tombstones())
    }

    #[cold]
    fn fragmented_range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        let mut dels = self.range_dels.lock();
        if let Some(f) = &dels.fragmented {
            return Arc::clone(f);
        }
        let f = Arc::new(FragmentedRangeTombstones::new(&dels.all, self.list.cmp()));
        dels.fragmented = Some(Arc::clone(&f));
        f
    }

    /// Bytes allocated.
    #[inline]
    pub fn memory_usage(&self) -> usize {
        self.list.memory_usage() + self.memory_beside_list()
    }

    /// Those of them that no entry has yet.
    pub fn unfilled(&self) -> usize {
        self.list.unfilled()
    }

    /// Bytes of range tombstones and of the filter: they are freed with the memtable, while a merged one keeps the
    /// list.
    #[inline]
    fn memory_beside_list(&self) -> usize {
        let range_dels =
            if self.num_range_dels.load(Ordering::Relaxed) == 0 { 0 } else { self.range_dels.lock().bytes };
        range_dels + self.bloom.as_ref().map_or(0, Bloom::memory_usage)
    }

    fn sum(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.counters.iter().map(|c| counter(&c.0).load(Ordering::Relaxed)).sum()
    }

    /// Point entries and range tombstones.
    pub fn num_entries(&self) -> u64 {
        self.sum(|c| &c.entries)
    }

    /// Deletions of all kinds.
    pub fn num_deletes(&self) -> u64 {
        self.sum(|c| &c.deletes)
    }

    /// Range tombstones.
    pub fn num_range_deletes(&self) -> u64 {
        self.num_range_dels.load(Ordering::Relaxed) as u64
    }

    /// Internal key and value bytes.
    pub fn data_size(&self) -> u64 {
        self.sum(|c| &c.data_size)
    }

    /// True when nothing was added.
    pub fn is_empty(&self) -> bool {
        self.first_sequence() == u64::MAX
    }

    /// Smallest sequence number added, `u64::MAX` when empty.
    pub fn first_sequence(&self) -> SequenceNumber {
        self.first_sequence.load(Ordering::Relaxed)
    }
}

/// The list, whose account has charged all memory, may stay for a merged memtable.
impl Drop for MemTable {
    fn drop(&mut self) {
        let bytes = self.memory_beside_list();
        if let Some(account) = self.list.account().filter(|_| bytes > 0) {
            account.freed(bytes);
        }
    }
}

/// Offers an entry to a lookup, if it is of the key looked up. True where older ones are wanted.
#[inline]
fn offer(e: Entry<'_>, cmp: &InternalKeyComparator, values: Option<&LogValues>, ctx: &mut GetContext<'_>) -> bool {
    let Ok(parsed) = ParsedInternalKey::parse(e.key()) else { return false };
    cmp.is_same_user_key(parsed.user_key, ctx.user_key)
        && match values {
            None => ctx.offer(parsed, ValueSource::Bytes(e.value())),
            Some(values) => values.offer(parsed, e.value(), ctx),
        }
}

/// True when the filter says that no entry has this user key.
#[inline]
fn lacks_key(bloom: Option<&Bloom>, user_key: &[u8]) -> bool {
    bloom.is_some_and(|bloom| count(bloom.may_contain(user_key)) == Some(false))
}

/// True when no entry has the prefix of the seek target, which was to be asked.
fn lacks_prefix(bloom: Option<&Bloom>, target: &[u8], seek: &PrefixSeek, backward: bool) -> bool {
    let Some(bloom) = bloom else { return false };
    let Some(extractor) = bloom.prefixes() else { return false };
    let prefix = seek.question(key::user_key(target), extractor, backward);
    let lacks = count(prefix.map(|p| bloom.may_contain_prefix(p))) == Some(false);
    if lacks {
        seek.left_out(extractor);
    }
    lacks
}

/// Counts what a filter said, if it was asked.
#[inline]
fn count(may_match: Option<bool>) -> Option<bool> {
    match may_match {
        Some(true) => perf::count(PerfMetric::BloomMemtableHitCount, 1),
        Some(false) => perf::count(PerfMetric::BloomMemtableMissCount, 1),
        None => {}
    }
    may_match
}

/// Over a memtable's point entries; backward steps search, as the list is linked forward only.
struct MemTableIterator {
    cursor: Cursor,
    prefix: Option<(Arc<PrefixSeek>, Arc<MemTable>)>,
}

impl SlotIterator for MemTableIterator {
    fn copy(&self) -> Self {
        Self { cursor: self.cursor.copy(), prefix: None }
    }
}

impl MemTableIterator {
    fn is_left_out(&self, target: &[u8], backward: bool) -> bool {
        self.prefix.as_ref().is_some_and(|(seek, table)| lacks_prefix(table.bloom.as_ref(), target, seek, backward))
    }
}

impl InternalIterator for MemTableIterator {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.entry().is_some()
    }
    fn seek_to_first(&mut self) {
        self.cursor.set(|list, _| list.first());
    }
    fn seek_to_last(&mut self) {
        self.cursor.set(|list, _| list.last());
    }
    fn seek(&mut self, target: &[u8]) {
        let _timer = perf::time(PerfMetric::SeekOnMemtableTime);
        perf::count(PerfMetric::SeekOnMemtableCount, 1);
        let out = self.is_left_out(target, false);
        self.cursor.set(|list, _| if out { None } else { list.seek(target) });
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        let _timer = perf::time(PerfMetric::SeekOnMemtableTime);
        perf::count(PerfMetric::SeekOnMemtableCount, 1);
        let out = self.is_left_out(target, true);
        self.cursor.set(|list, _| if out { None } else { list.seek_for_prev(target) });
    }
    #[inline]
    fn next(&mut self) {
        perf::count(PerfMetric::NextOnMemtableCount, 1);
        self.cursor.set(|_, at| at.and_then(|e| e.next()));
    }
    fn prev(&mut self) {
        perf::count(PerfMetric::PrevOnMemtableCount, 1);
        self.cursor.set(|list, at| at.and_then(|e| list.before(e.key())));
    }
    #[inline]
    fn key(&self) -> &[u8] {
        self.cursor.entry().map_or(&[], |e| e.key())
    }
    #[inline]
    fn value(&self) -> &[u8] {
        self.cursor.entry().map_or(&[], |e| e.value())
    }
    fn status(&self) -> Result<()> {
        Ok(())
    }
}

/// Over an index table: its values come from the log.
struct IndexTableIterator<E> {
    entries: E,
    table: SealedTable,
    /// Values are read on demand.
    unprepared: bool,
    /// The present entry's value is in `read`.
    is_read: bool,
    read: Vec<u8>,
    status: Result<()>,
}

impl<E: InternalIterator> IndexTableIterator<E> {
    fn new(entries: E, table: SealedTable, unprepared: bool) -> Self {
        Self { entries, table, unprepared, is_read: false, read: Vec::new(), status: Ok(()) }
    }

    fn slot(&self) -> Slot<'_> {
        Slot::read(self.entries.value())
    }

    fn step(&mut self, step: impl FnOnce(&mut E)) {
        step(&mut self.entries);
        self.is_read = false;
        self.status = Ok(());
        if !self.unprepared {
            self.prepare_value();
        }
    }
}

impl<E: InternalIterator> InternalIterator for IndexTableIterator<E> {
    fn valid(&self) -> bool {
        self.status.is_ok() && self.entries.valid()
    }
    fn seek_to_first(&mut self) {
        self.step(E::seek_to_first);
    }
    fn seek_to_last(&mut self) {
        self.step(E::seek_to_last);
    }
    fn seek(&mut self, target: &[u8]) {
        self.step(|entries| entries.seek(target));
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        self.step(|entries| entries.seek_for_prev(target));
    }
    fn next(&mut self) {
        self.step(E::next);
    }
    fn prev(&mut self) {
        self.step(E::prev);
    }
    fn key(&self) -> &[u8] {
        self.entries.key()
    }
    fn value(&self) -> &[u8] {
        match self.slot() {
            _ if self.is_read => &self.read,
            Slot::Inline(value) => value,
            // invariant: users of an unprepared iterator prepare each value. Any other value returned here would be
            // taken for data.
            Slot::InLog(_) => panic!("the value of an index table's entry was asked for before it was prepared"),
        }
    }
    fn prepare_value(&mut self) -> bool {
        if self.is_read || !self.valid() {
            return self.valid();
        }
        let (Slot::InLog(at), Some(values)) = (self.slot(), self.table.log_values()) else { return true };
        match values.read(at) {
            Ok(value) => (self.read, self.is_read) = (value, true),
            Err(e) => self.status = Err(e),
        }
        self.is_read
    }
    fn status(&self) -> Result<()> {
        self.status.clone()
    }
}

#[cfg(test)]
mod tests;
