//! The block cache: uncompressed data blocks by (file, offset), bounded in bytes, shared by column families and
//! databases.
//!
//! The shards are `quick_cache`'s (S3-FIFO-like, scan resistant). A block larger than one shard's share is not kept;
//! the reader that asked for it still has it, so this only costs a later read. Shards are therefore kept large.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use rockmill_format::block::BlockLayout;

/// An uncompressed block with its layout found.
#[derive(Debug)]
pub struct CachedBlock {
    /// The contents, and for a block that was stored uncompressed its trailer.
    bytes: Box<[u8]>,
    len: usize,
    layout: BlockLayout,
}

impl CachedBlock {
    /// Wraps a block's contents.
    pub fn new(data: Box<[u8]>, layout: BlockLayout) -> Self {
        let len = data.len();
        Self { bytes: data, len, layout }
    }

    /// Wraps a buffer that begins with a block of `len` bytes, so that a trailer need not be cut off by copying.
    pub(super) fn with_trailer(bytes: Box<[u8]>, len: usize, layout: BlockLayout) -> Self {
        let len = len.min(bytes.len());
        Self { bytes, len, layout }
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
        self.bytes.len() + size_of::<Self>() + ENTRY_OVERHEAD
    }
}

/// What the cache itself needs for an entry: key, pointer, list links and hash slot, reference counts.
const ENTRY_OVERHEAD: usize = 72;

/// Counters of a cache.
#[derive(Debug, Clone, Copy, Default)]
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

/// (table, offset).
type Key = (u64, u64);

#[derive(Debug, Clone, Copy)]
struct ByCharge;

impl Weighter<Key, Arc<CachedBlock>> for ByCharge {
    fn weight(&self, _: &Key, block: &Arc<CachedBlock>) -> u64 {
        block.charge() as u64
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

/// Bytes of one shard at least: large enough for any usual block.
const SHARD_BYTES_MIN: usize = 2 << 20;
/// What a block is taken to weigh when room for bookkeeping is reserved.
const BLOCK_BYTES_TYPICAL: usize = 4096;
const STRIPES: usize = 16;

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

/// The cache. Clone the `Arc` to share it.
pub struct BlockCache {
    cache: Cache<Key, Arc<CachedBlock>, ByCharge, FoldHash>,
    capacity: u64,
    next_id: AtomicU64,
    stripes: [Stripe; STRIPES],
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl BlockCache {
    /// A cache of `capacity` bytes (RocksDB's `NewLRUCache`).
    pub fn new(capacity: usize) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shards = (4 * cores).min(capacity / SHARD_BYTES_MIN).max(1);
        // Rounded down to a power of two: quick_cache rounds up, which would make shards too small.
        let shards = 1usize << shards.ilog2();
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity((capacity / BLOCK_BYTES_TYPICAL).max(32 * shards))
            .weight_capacity(capacity as u64)
            .build()
            .unwrap_or_else(|e| unreachable!("capacities are set: {e}"));
        Arc::new(Self {
            cache: Cache::with_options(options, ByCharge, FoldHash, DefaultLifecycle::default()),
            capacity: capacity as u64,
            next_id: AtomicU64::new(1),
            stripes: Default::default(),
        })
    }

    /// A number that no other table of this cache has: the first half of its keys.
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The block at `offset` of table `id`.
    #[inline]
    pub fn get(&self, id: u64, offset: u64) -> Option<Arc<CachedBlock>> {
        let found = self.cache.get(&(id, offset));
        let stripe = &self.stripes[stripe_index()];
        if found.is_some() { &stripe.hits } else { &stripe.misses }.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps a block.
    pub fn insert(&self, id: u64, offset: u64, block: Arc<CachedBlock>) {
        self.cache.insert((id, offset), block);
    }

    /// Counters.
    pub fn stats(&self) -> CacheStats {
        let sum = |f: fn(&Stripe) -> &AtomicU64| self.stripes.iter().map(|s| f(s).load(Ordering::Relaxed)).sum();
        CacheStats {
            hits: sum(|s| &s.hits),
            misses: sum(|s| &s.misses),
            usage: self.cache.weight(),
            capacity: self.capacity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(len: usize) -> Arc<CachedBlock> {
        // A block's tail that says: no restart points.
        let data = vec![0; len].into_boxed_slice();
        let layout = BlockLayout::parse(&data).unwrap();
        Arc::new(CachedBlock::new(data, layout))
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_what_is_used() {
        let cache = BlockCache::new(4 << 20);
        let id = cache.new_id();
        assert_ne!(id, cache.new_id());
        let mut dropped = 0;
        for i in 0..5_000 {
            cache.insert(id, i * 4096, block(4096));
            dropped += u32::from(i > 10 && cache.get(id, i % 10 * 4096).is_none());
        }
        assert_eq!(dropped, 0, "blocks in constant use were dropped");
        let stats = cache.stats();
        assert!(stats.usage <= stats.capacity && stats.usage > stats.capacity / 2, "{stats:?}");
        assert_eq!(stats.capacity, 4 << 20);
        assert!(cache.get(id, 1).is_none());
        assert_eq!(cache.stats().misses, stats.misses + 1);
        // Larger than the cache: not kept, and nothing else is lost for it.
        cache.insert(id, 1, block(8 << 20));
        assert!(cache.get(id, 1).is_none());
        assert!(cache.get(id, 0).is_some());
    }

    #[test]
    fn counters_of_all_threads_are_summed() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(1, 0, block(100));
        std::thread::scope(|s| {
            for _ in 0..20 {
                s.spawn(|| {
                    for i in 0..100 {
                        assert_eq!(cache.get(1, i % 2).is_some(), i % 2 == 0);
                    }
                });
            }
        });
        assert_eq!((cache.stats().hits, cache.stats().misses), (1000, 1000));
    }
}
