//! The block cache: uncompressed data blocks by (file, offset), bounded in bytes, shared by column families and
//! databases.
//!
//! 1. The shards are `quick_cache`'s (S3-FIFO-like, scan resistant). A block larger than one shard's share is not
//!    kept; the reader that asked for it still has it, so this only costs a later read. Shards are therefore large. A
//!    strict cache keeps such a block while it is in use, because its bytes must count.
//! 2. A block in use (a value points into it, an iterator is in it) is *pinned*: it is not evicted, so the cache counts
//!    what is in memory. A user of a block holds its `Arc`; a block is pinned if the cache's `Arc` is not the only one.
//! 3. If everything is pinned, the cache grows over its capacity, and shrinks again with the next blocks. With a strict
//!    capacity limit the block is refused instead, and the read fails.
//! 4. Other memory is charged with entries that hold nothing ([`BlockCache::reserve`]). A strict cache that has no room
//!    for one, or for a block, refuses it before it evicts anything. It looks for room in all shards, and serves one
//!    thread after the other, so that two that come at once do not make each other fail.
//! 5. Where single keys are hot, and not the blocks that they are in, lookups keep *rows* instead of blocks
//!    (`rows.rs`). A row is itself a small block: all entries of one user key of one block.

mod rows;

use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use quick_cache::sync::Cache as Shards;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use rockmill_format::block::BlockLayout;
use rockmill_format::hash::hash64;

pub(super) use self::rows::BlockUse;
use self::rows::RowChoice;
use super::block_based::TableMeta;
use crate::error::{Error, ErrorKind, Result};
use crate::options::setters::setters;
use crate::sync::Mutex;

/// An uncompressed block with its layout found.
#[derive(Debug)]
pub struct CachedBlock {
    /// The contents, and for a block that was stored uncompressed its trailer.
    bytes: Box<[u8]>,
    len: usize,
    layout: BlockLayout,
    /// Bytes to charge if they are not those of a block: those of a reservation, or of a row.
    extra: usize,
    /// A table's index and filter; such an entry holds no block.
    meta: Option<Box<TableMeta>>,
    /// Of a row.
    row: Option<RowOf>,
}

/// The block that a row was taken from.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowOf {
    /// Where the block is in the table's file. Rows are found by hashes, and this confirms that a row is the right one.
    pub offset: u64,
    /// The bytes that the block would be charged for.
    pub block_charge: u32,
    /// The row's entries are the last ones of the block, so there may be more of the key in the next block.
    pub is_last: bool,
}

impl CachedBlock {
    /// Wraps a block's contents.
    pub fn new(data: Box<[u8]>, layout: BlockLayout) -> Self {
        let len = data.len();
        Self { bytes: data, len, layout, extra: 0, meta: None, row: None }
    }

    /// Wraps a buffer that begins with a block of `len` bytes, so that a trailer need not be cut off by copying.
    pub(super) fn with_trailer(bytes: Box<[u8]>, len: usize, layout: BlockLayout) -> Self {
        let len = len.min(bytes.len());
        Self { bytes, len, layout, extra: 0, meta: None, row: None }
    }

    /// An entry for a table's index and filter.
    pub(super) fn of_meta(meta: TableMeta) -> Self {
        let extra = meta.memory_usage() + size_of::<TableMeta>() + size_of::<Self>() + ENTRY_OVERHEAD;
        Self { extra, meta: Some(Box::new(meta)), ..Self::empty() }
    }

    /// A block without entries.
    fn empty() -> Self {
        Self::new(Box::default(), BlockLayout::empty())
    }

    /// The entries of one user key, laid out as a block, out of a block of a table.
    pub(super) fn row(data: Box<[u8]>, layout: BlockLayout, of: RowOf) -> Self {
        Self { row: Some(of), extra: block_charge(data.len()) + ROW_OVERHEAD, ..Self::new(data, layout) }
    }

    /// The block that this is a row of.
    #[inline]
    pub(super) fn row_of(&self) -> Option<RowOf> {
        self.row
    }

    /// The index and filter that the entry is.
    #[inline]
    pub(super) fn meta(&self) -> Option<&TableMeta> {
        self.meta.as_deref()
    }

    /// The contents.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Its layout.
    #[inline]
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// Bytes to charge.
    pub fn charge(&self) -> usize {
        if self.extra > 0 { self.extra } else { block_charge(self.bytes.len()) }
    }
}

/// What the cache itself needs for an entry: key, pointer, list links and hash slot, reference counts.
const ENTRY_OVERHEAD: usize = 72;

/// What small entries need in addition, measured: allocations are rounded up, and the cache's own tables have room to
/// grow. For a block of 4 KiB this is 1 %, for a row of 100 bytes 13 %.
const ROW_OVERHEAD: usize = 40;

/// Bytes to charge for a row whose keys and values have this many: lengths and the end of a block take 11.
pub(super) const fn row_charge(bytes: usize) -> usize {
    block_charge(bytes + 11) + ROW_OVERHEAD
}

/// Bytes to charge for a block of this many.
pub(super) const fn block_charge(bytes: usize) -> usize {
    bytes + size_of::<CachedBlock>() + ENTRY_OVERHEAD
}

/// Counters of a cache.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that found the block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes held.
    pub usage: u64,
    /// Bytes allowed.
    pub capacity: u64,
}

/// (table, offset). The first number differs between the kinds of entries, so that none is ever taken for another: data
/// blocks have the numbers of [`BlockCache::new_id`], which are multiples of 4; index and filter have the next number
/// ([`meta_key`]), rows the one after that ([`row_key`]), reservations 0.
type Key = (u64, u64);

/// How many numbers a table has.
const IDS_OF_A_TABLE: u64 = 4;

/// The next number for a table. There is one count for all caches, so that a table keeps its number if its column
/// family is given another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(IDS_OF_A_TABLE);

/// The key of the index and filter of table `id`.
#[inline]
fn meta_key(id: u64) -> Key {
    (id | 1, 0)
}

/// The key of a row of the block at `offset` of table `id`. Other rows may have the same key: each row stores its
/// identity.
#[inline]
fn row_key(id: u64, offset: u64, user_key: &[u8]) -> Key {
    (id | 2, FoldHasher::fold(hash64(user_key) ^ 0x9e37_79b9_7f4a_7c15, offset | 1 << 63) ^ offset)
}

#[derive(Debug, Clone, Copy)]
struct ByCharge;

impl Weighter<Key, Arc<CachedBlock>> for ByCharge {
    fn weight(&self, _: &Key, block: &Arc<CachedBlock>) -> u64 {
        block.charge() as u64
    }
}

/// Keeps used blocks from being evicted, and frees evicted ones outside the shard's lock.
#[derive(Debug, Clone)]
struct Pinning {
    /// Where the bytes of index and filter entries are counted, of the part that data blocks share with them.
    charged: Option<Arc<AtomicU64>>,
}

impl Pinning {
    /// Where an entry's bytes are counted while it is here.
    fn counts(&self, entry: &CachedBlock) -> Option<&AtomicU64> {
        self.charged.as_deref().filter(|_| entry.meta().is_some())
    }

    fn enters(&self, entry: &CachedBlock) {
        if let Some(charged) = self.counts(entry) {
            charged.fetch_add(entry.charge() as u64, Ordering::Relaxed);
        }
    }

    fn leaves(&self, entry: &CachedBlock) {
        if let Some(charged) = self.counts(entry) {
            charged.fetch_sub(entry.charge() as u64, Ordering::Relaxed);
        }
    }
}

impl Lifecycle<Key, Arc<CachedBlock>> for Pinning {
    type RequestState = [Option<Arc<CachedBlock>>; 2];

    #[inline]
    fn is_pinned(&self, _: &Key, block: &Arc<CachedBlock>) -> bool {
        Arc::strong_count(block) > 1
    }

    /// Also called for an entry that another one replaces.
    fn on_evict(&self, evicted: &mut Self::RequestState, _: Key, block: Arc<CachedBlock>) {
        self.leaves(&block);
        // A third one is freed here, under the lock.
        if let Some(place) = evicted.iter_mut().find(|p| p.is_none()) {
            *place = Some(block);
        }
    }
}

/// Hashes two integers by folded multiplication: keys are not chosen by an adversary, and the hit path counts.
#[derive(Debug, Clone, Copy, Default)]
struct FoldHash;

#[derive(Debug, Clone, Copy)]
struct FoldHasher(u64);

impl FoldHasher {
    #[inline]
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

impl BuildHasher for FoldHash {
    type Hasher = FoldHasher;
    #[inline]
    fn build_hasher(&self) -> FoldHasher {
        FoldHasher(0x243f_6a88_85a3_08d3)
    }
}

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.0 = Self::fold(self.0 ^ v, 0x9e37_79b9_7f4a_7c15 ^ self.0.rotate_left(29));
    }
    #[inline]
    fn finish(&self) -> u64 {
        Self::fold(self.0, 0xd6e8_feb8_6659_fd93)
    }
}

/// The fewest bytes of one shard: large enough for any usual block.
const SHARD_BYTES_MIN: usize = 2 << 20;
/// What a block is taken to weigh when room for bookkeeping is reserved.
const BLOCK_BYTES_TYPICAL: usize = 4096;
const STRIPES: usize = 16;
/// RocksDB's bound.
const SHARD_BITS_MAX: u32 = 19;

/// Counters of some of the threads, alone on their cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The stripe of the calling thread.
#[inline]
fn stripe_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    STRIPE.with(|s| {
        if s.get() == usize::MAX {
            s.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        s.get()
    })
}

/// How a block cache is made (`rocksdb::LruCacheOptions`).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LruCacheOptions {
    /// The most bytes that it holds, not counting blocks in use.
    pub capacity: usize,
    /// The cache has 2 to this power of shards (0 to 19), each with its share of the capacity; -1 chooses by size and
    /// cores. A block larger than a share is not kept.
    pub num_shard_bits: i32,
    /// Refuse a block when all others are in use and it would go over the capacity: the read that needs it fails with
    /// `Aborted` ("memory limit"). Otherwise the cache grows beyond its capacity as long as they are.
    pub strict_capacity_limit: bool,
    /// Part of the capacity, 0 to 1, that is for index and filter blocks alone (those that the option
    /// `cache_index_and_filter_blocks_with_high_priority` puts there). RocksDB's default is 0.5, and data blocks may
    /// use what the others leave; here each has its own part, and 0 lets all share the whole.
    pub high_pri_pool_ratio: f64,
}

impl Default for LruCacheOptions {
    fn default() -> Self {
        Self { capacity: 32 << 20, num_shard_bits: -1, strict_capacity_limit: false, high_pri_pool_ratio: 0.0 }
    }
}

setters! {
    impl LruCacheOptions;

    /// Sets `capacity`, in bytes.
    set_capacity(capacity: usize) capacity;
    set_num_shard_bits(bits: i32) num_shard_bits;
    set_strict_capacity_limit(strict: bool) strict_capacity_limit;
    set_high_pri_pool_ratio(ratio: f64) high_pri_pool_ratio;
}

/// Which part of a cache an entry goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    High,
    Low,
}

/// A block cache to be shared over column families and databases (`rocksdb::Cache`). Clones are the same cache.
#[derive(Debug, Clone)]
pub struct Cache(pub(crate) Arc<BlockCache>);

impl Cache {
    /// A cache of `capacity` bytes. An S3-FIFO-like policy decides what to evict: it keeps repeatedly used blocks
    /// during scans, instead of going by recency alone.
    pub fn new_lru_cache(capacity: usize) -> Self {
        Self(BlockCache::new(capacity))
    }

    /// A cache made as the options say.
    pub fn new_lru_cache_opts(options: &LruCacheOptions) -> Self {
        Self(BlockCache::with_options(options))
    }

    /// The same as [`Self::new_lru_cache`]: in that cache, too, readers of a shard do not wait for each other, which is
    /// the purpose of RocksDB's clock cache. `estimated_entry_charge` is not needed.
    pub fn new_hyper_clock_cache(capacity: usize, _estimated_entry_charge: usize) -> Self {
        Self::new_lru_cache(capacity)
    }

    /// Bytes held (`GetUsage`).
    pub fn get_usage(&self) -> usize {
        self.0.usage() as usize
    }

    /// Bytes held and in use now (`GetPinnedUsage`). Examines every entry.
    pub fn get_pinned_usage(&self) -> usize {
        self.0.pinned_usage() as usize
    }

    /// Bytes allowed (`GetCapacity`).
    pub fn get_capacity(&self) -> usize {
        self.0.capacity.load(Ordering::Relaxed) as usize
    }

    /// Changes the bytes allowed; excess entries that are not in use are evicted at once.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.0.set_capacity(capacity);
    }

    /// Changes `strict_capacity_limit`.
    pub fn set_strict_capacity_limit(&mut self, strict: bool) {
        self.0.strict.store(strict, Ordering::Relaxed);
    }
}

/// The most unused entries that a strict cache remembers.
const UNUSED_KEPT: usize = 64;

/// How often a strict cache looks for other entries if readers begin to use those that it was about to evict.
const LOOKS_MAX: usize = 4;

/// What a strict cache knows about the room that it could make. The thread that holds the lock gets room.
#[derive(Debug, Default)]
struct Room {
    /// Entries that were unused when last seen; most of them still are.
    unused: VecDeque<Key>,
    /// The last look at all entries that did not find enough, counted from 1, and the bytes of all that nobody used.
    short: (u64, u64),
}

type Blocks = Shards<Key, Arc<CachedBlock>, ByCharge, FoldHash, Pinning>;

/// Shards that hold `capacity` bytes together.
fn shards(capacity: usize, num_shard_bits: i32, pinning: Pinning) -> Blocks {
    let shards = match u32::try_from(num_shard_bits) {
        Ok(bits) => 1usize << bits.min(SHARD_BITS_MAX),
        Err(_) => {
            let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
            let shards = (4 * cores).min(capacity / SHARD_BYTES_MIN).max(1);
            // Rounded down to a power of two: quick_cache rounds up, which would make shards too small.
            1usize << shards.ilog2()
        }
    };
    let shape = OptionsBuilder::new()
        .shards(shards)
        .estimated_items_capacity((capacity / BLOCK_BYTES_TYPICAL).max(32 * shards))
        .weight_capacity(capacity as u64)
        .build()
        .unwrap_or_else(|e| unreachable!("capacities are set: {e}"));
    Shards::with_options(shape, ByCharge, FoldHash, pinning)
}

/// The bytes of `capacity` that each part has: high priority, and the rest.
fn split(capacity: usize, high_ratio: f64) -> (usize, usize) {
    let high = ((capacity as f64 * high_ratio) as usize).min(capacity);
    (high, capacity - high)
}

/// The cache. Clone the `Arc` to share it.
pub struct BlockCache {
    cache: Blocks,
    /// What `cache` has, too.
    pinning: Pinning,
    /// The part for index and filter blocks, if it is apart.
    high: Option<Blocks>,
    high_ratio: f64,
    capacity: AtomicU64,
    strict: AtomicBool,
    next_reservation: AtomicU64,
    /// Bytes of all reservations.
    reserved: AtomicU64,
    stripes: [Stripe; STRIPES],
    rows: RowChoice,
    room: Mutex<Room>,
    /// How often a strict cache began to look at all entries.
    looks: AtomicU64,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl BlockCache {
    /// A cache of `capacity` bytes (RocksDB's `NewLRUCache`).
    pub fn new(capacity: usize) -> Arc<Self> {
        Self::with_options(&LruCacheOptions { capacity, ..LruCacheOptions::default() })
    }

    /// A cache made as the options say.
    pub fn with_options(options: &LruCacheOptions) -> Arc<Self> {
        let capacity = options.capacity;
        let high_ratio = if options.high_pri_pool_ratio > 0.0 { options.high_pri_pool_ratio.min(1.0) } else { 0.0 };
        let (high, low) = split(capacity, high_ratio);
        let rows = RowChoice::new(low as u64);
        let pinning = Pinning { charged: Some(rows.charged()) };
        Arc::new(Self {
            cache: shards(low, options.num_shard_bits, pinning.clone()),
            pinning,
            high: (high_ratio > 0.0).then(|| shards(high, options.num_shard_bits, Pinning { charged: None })),
            high_ratio,
            capacity: AtomicU64::new(capacity as u64),
            strict: AtomicBool::new(options.strict_capacity_limit),
            next_reservation: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            stripes: Default::default(),
            rows,
            room: Mutex::default(),
            looks: AtomicU64::new(0),
        })
    }

    /// A number that no other table has, in this cache or any other. It is the first half of the table's keys.
    pub fn new_id(&self) -> u64 {
        NEXT_ID.fetch_add(IDS_OF_A_TABLE, Ordering::Relaxed)
    }

    /// The block at `offset` of table `id`.
    #[inline]
    pub fn get(&self, id: u64, offset: u64) -> Option<Arc<CachedBlock>> {
        self.look_up((id, offset), Priority::Low)
    }

    /// What lookups keep here.
    #[inline]
    pub(crate) fn row_choice(&self) -> &RowChoice {
        &self.rows
    }

    /// Reports a read of the block at `offset` of table `id` to [the choice](Self::row_choice).
    #[inline]
    pub(super) fn tell_read(&self, id: u64, offset: u64, of: impl FnOnce() -> BlockUse) {
        self.rows.read(FoldHash.hash_one((id, offset)), of);
    }

    /// The row of a user key in the block at `offset` of table `id` or, very rarely, another row. Not counted: see
    /// [`Self::row_answers`].
    #[inline]
    pub(super) fn get_row(&self, id: u64, offset: u64, user_key: &[u8]) -> Option<Arc<CachedBlock>> {
        self.cache.get(&row_key(id, offset, user_key))
    }

    /// Counts that a row was the right one. If it was not, or was not there, the lookup asks for the block, and that is
    /// counted.
    #[inline]
    pub(super) fn row_answers(&self) {
        self.stripes[stripe_index()].hits.fetch_add(1, Ordering::Relaxed);
    }

    /// How many rows there are. Examines every entry.
    #[cfg(test)]
    pub(super) fn rows_held(&self) -> usize {
        self.cache.iter().filter(|(_, entry)| entry.row_of().is_some()).count()
    }

    /// Keeps a row.
    pub(super) fn insert_row(&self, id: u64, offset: u64, user_key: &[u8], row: Arc<CachedBlock>) -> Result<()> {
        self.insert_as(row_key(id, offset, user_key), row, Priority::Low)
    }

    /// True if the block at `offset` of table `id` is here. This does not count as a use, and is not counted in
    /// statistics.
    pub(super) fn contains(&self, id: u64, offset: u64) -> bool {
        self.cache.contains_key(&(id, offset))
    }

    /// Index and filter of table `id`, which were inserted with this priority.
    #[inline]
    pub(super) fn get_meta(&self, id: u64, priority: Priority) -> Option<Arc<CachedBlock>> {
        self.look_up(meta_key(id), priority)
    }

    /// Forgets index and filter of table `id`, unless they are in use because the file is open a second time.
    pub(super) fn remove_meta(&self, id: u64, priority: Priority) {
        let part = self.part(priority);
        if let Some((_, gone)) = part.remove_if(&meta_key(id), |entry| Arc::strong_count(entry) == 1) {
            self.pinning_of(part).inspect(|p| p.leaves(&gone));
        }
    }

    #[inline]
    fn look_up(&self, key: Key, priority: Priority) -> Option<Arc<CachedBlock>> {
        let found = self.part(priority).get(&key);
        let stripe = &self.stripes[stripe_index()];
        if found.is_some() { &stripe.hits } else { &stripe.misses }.fetch_add(1, Ordering::Relaxed);
        found
    }

    #[inline]
    fn part(&self, priority: Priority) -> &Blocks {
        match (priority, &self.high) {
            (Priority::High, Some(high)) => high,
            _ => &self.cache,
        }
    }

    /// Keeps a block. Fails if the capacity is strict and evicting all unused entries would not make room; then these
    /// stay.
    pub fn insert(&self, id: u64, offset: u64, block: Arc<CachedBlock>) -> Result<()> {
        self.insert_as((id, offset), block, Priority::Low)
    }

    /// Keeps index and filter of table `id`.
    pub(super) fn insert_meta(&self, id: u64, meta: Arc<CachedBlock>, priority: Priority) -> Result<()> {
        self.insert_as(meta_key(id), meta, priority)
    }

    fn insert_as(&self, key: Key, block: Arc<CachedBlock>, priority: Priority) -> Result<()> {
        let charge = block.charge() as u64;
        let part = self.part(priority);
        if !self.strict.load(Ordering::Relaxed) {
            if charge > part.shard_capacity() {
                // No insertion makes room for it, so entries that were in use beyond the capacity are evicted here.
                if self.usage() > self.capacity.load(Ordering::Relaxed) {
                    part.set_capacity(part.capacity());
                }
            } else {
                self.put(part, key, block);
            }
            return Ok(());
        }
        let mut is_put = false;
        let put = || {
            self.put(part, key, block);
            is_put = true;
        };
        if self.put_strictly(Some(&key), charge, put) {
            return Ok(());
        }
        if is_put && let Some((_, gone)) = part.remove(&key) {
            self.pinning_of(part).inspect(|p| p.leaves(&gone));
        }
        Err(self.full(charge))
    }

    /// Keeps an entry.
    fn put(&self, part: &Blocks, key: Key, entry: Arc<CachedBlock>) {
        self.pinning_of(part).inspect(|p| p.enters(&entry));
        let mut evicted = Default::default();
        part.insert_with_lifecycle(key, entry, &mut evicted);
        // A replaced entry is among them as well.
        if evicted.iter().any(Option::is_some)
            && !self.rows.watches()
            && self.cache.weight() * 8 > self.cache.capacity() * 7
        {
            self.rows.is_full();
        }
    }

    #[cold]
    pub(super) fn full(&self, charge: u64) -> Error {
        let text = format!(
            "memory limit: no room for {charge} bytes in the block cache, which holds {} of {} bytes and may not go over \
             (strict_capacity_limit); give it more, or hold fewer iterators and pinned values",
            self.usage(),
            self.capacity.load(Ordering::Relaxed)
        );
        Error::new(ErrorKind::Aborted, text)
    }

    /// Charges `bytes` of memory that is used elsewhere as long as the result lives; blocks make room for it. `None` if
    /// the capacity is strict and does not allow it; then every block stays.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let block = Arc::new(CachedBlock { extra: bytes.max(1), ..CachedBlock::empty() });
        let charge = block.charge() as u64;
        let number = self.next_reservation.fetch_add(1, Ordering::Relaxed);
        let mut made = None;
        let put = || {
            self.rows.charge(charge);
            self.reserved.fetch_add(charge, Ordering::Relaxed);
            self.cache.insert((0, number), Arc::clone(&block));
            made = Some(Reservation { cache: Arc::clone(self), number, pin: block });
        };
        let fits = if self.strict.load(Ordering::Relaxed) {
            self.put_strictly(None, charge, put)
        } else {
            put();
            true
        };
        made.filter(|_| fits)
    }

    /// Where the bytes of the entries of `part` are counted.
    fn pinning_of(&self, part: &Blocks) -> Option<&Pinning> {
        std::ptr::eq(part, &self.cache).then_some(&self.pinning)
    }

    /// All parts.
    fn parts(&self) -> impl Iterator<Item = &Blocks> {
        std::iter::once(&self.cache).chain(&self.high)
    }

    /// Bytes that are held beyond the capacity, or would be with this many more.
    fn too_much(&self, more: u64) -> u64 {
        self.usage().saturating_add(more).saturating_sub(self.capacity.load(Ordering::Relaxed))
    }

    /// Makes `put` keep an entry of `charge` bytes in a strict cache; it replaces the entry `of` if that is there.
    /// False if there is no room: then all entries stay and nothing was put. The exception is that readers begin to use
    /// entries that were to be evicted: then it has been put, and there is too much.
    fn put_strictly(&self, of: Option<&Key>, charge: u64, put: impl FnOnce()) -> bool {
        // Reservations are never evicted. This refuses most of the entries that must be refused without examining every
        // entry.
        if self.reserved.load(Ordering::Relaxed).saturating_add(charge) > self.capacity.load(Ordering::Relaxed) {
            return false;
        }
        let looks = self.looks.load(Ordering::SeqCst);
        let mut room = self.room.lock();
        let missing = match self.too_much(charge) {
            0 => 0,
            missing => missing.saturating_sub(of.map_or(0, |key| self.charge_of(key))),
        };
        if !self.find_unused(&mut room, looks, of, missing) {
            return false;
        }
        put();
        // That has evicted from only one shard.
        let fits = self.evict_unused(&mut room, of);
        if let Some(key) = of {
            // Most blocks are out of use again soon.
            room.unused.retain(|known| known != key);
            room.unused.push_front(*key);
        }
        room.unused.truncate(UNUSED_KEPT);
        fits
    }

    /// Bytes of an entry; 0 where it is not here.
    fn charge_of(&self, key: &Key) -> u64 {
        self.parts().find_map(|part| part.peek(key)).map_or(0, |entry| entry.charge() as u64)
    }

    /// Finds unused entries other than `of` with `missing` bytes, and puts them at the end of the known ones. False if
    /// all of them are not enough, or were not enough when a thread examined all entries after the first `looks` times.
    fn find_unused(&self, room: &mut Room, looks: u64, of: Option<&Key>, missing: u64) -> bool {
        // Besides the cache, only the caller has it.
        let is_unused = |entry: &Arc<CachedBlock>| Arc::strong_count(entry) == 2;
        // Most of those found last time are still unused. Without them a full cache would go over the same used entries
        // for each block.
        let (mut left, mut known) = (missing, VecDeque::new());
        while left > 0
            && let Some(key) = room.unused.pop_back()
        {
            let entry = self.parts().find_map(|part| part.peek(&key)).filter(|_| of != Some(&key));
            if let Some(entry) = entry.filter(is_unused) {
                left = left.saturating_sub(entry.charge() as u64);
                known.push_back(key);
            }
        }
        room.unused.append(&mut known);
        if left == 0 {
            return true;
        }
        // Threads that waited for the lock during a vain search take its answer; otherwise all of them would search,
        // one by one.
        if room.short.0 > looks && room.short.1 < missing {
            return false;
        }
        let look = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        room.unused.clear();
        let (mut found, mut own, mut further) = (0, 0, UNUSED_KEPT);
        for (key, entry) in self.parts().flat_map(|part| part.iter()) {
            if found >= missing {
                if further == 0 {
                    break;
                }
                further -= 1;
            }
            if of == Some(&key) {
                own = entry.charge() as u64;
            } else if is_unused(&entry) {
                found += entry.charge() as u64;
                room.unused.push_back(key);
            }
        }
        let enough = found >= missing;
        if !enough {
            room.short = (look, found + own);
            room.unused.truncate(UNUSED_KEPT);
        }
        enough
    }

    /// Evicts as many of the entries that [`Self::find_unused`] found as necessary. False if that is not enough.
    fn evict_unused(&self, room: &mut Room, of: Option<&Key>) -> bool {
        for _ in 0..LOOKS_MAX {
            while self.too_much(0) > 0
                && let Some(key) = room.unused.pop_back()
            {
                for part in self.parts() {
                    if let Some((_, gone)) = part.remove_if(&key, |entry| Arc::strong_count(entry) == 1) {
                        self.pinning_of(part).inspect(|p| p.leaves(&gone));
                    }
                }
            }
            match self.too_much(0) {
                0 => return true,
                // Readers have begun to use some of them, or a charge that is not strict has taken the room.
                missing if !self.find_unused(room, u64::MAX, of, missing) => return false,
                _ => {}
            }
        }
        self.too_much(0) == 0
    }

    /// Changes the bytes allowed.
    pub fn set_capacity(&self, capacity: usize) {
        self.capacity.store(capacity as u64, Ordering::Relaxed);
        let (high, low) = split(capacity, self.high_ratio);
        self.cache.set_capacity(low as u64);
        self.rows.set_capacity(low as u64);
        if let Some(part) = &self.high {
            part.set_capacity(high as u64);
        }
    }

    /// Bytes held.
    pub fn usage(&self) -> u64 {
        self.cache.weight() + self.high.as_ref().map_or(0, Shards::weight)
    }

    /// Bytes held that are in use. Examines every entry.
    pub fn pinned_usage(&self) -> u64 {
        // The iterator holds each block too.
        let all = self.cache.iter().chain(self.high.iter().flat_map(|h| h.iter()));
        let pinned = all.filter(|(_, block)| Arc::strong_count(block) > 2);
        pinned.map(|(_, block)| block.charge() as u64).sum()
    }

    /// Counters.
    pub fn stats(&self) -> CacheStats {
        let sum = |f: fn(&Stripe) -> &AtomicU64| self.stripes.iter().map(|s| f(s).load(Ordering::Relaxed)).sum();
        CacheStats {
            hits: sum(|s| &s.hits),
            misses: sum(|s| &s.misses),
            usage: self.usage(),
            capacity: self.capacity.load(Ordering::Relaxed),
        }
    }
}

/// Memory charged to a cache; dropping it ends the charge.
#[derive(Debug)]
pub(crate) struct Reservation {
    cache: Arc<BlockCache>,
    number: u64,
    /// Keeps the entry from being evicted.
    pin: Arc<CachedBlock>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let charge = self.pin.charge() as u64;
        self.cache.rows.discharge(charge);
        self.cache.reserved.fetch_sub(charge, Ordering::Relaxed);
        self.cache.cache.remove(&(0, self.number));
    }
}

#[cfg(test)]
mod tests;
