//! Whether lookups keep whole blocks in the cache, or only *rows*: the entries of one user key out of a block.
//!
//! A block is worth its bytes if the neighbours of the key are read, too. If scattered single keys are read again and
//! again, it takes a block of 4 KiB to keep an entry of a hundred bytes. One lookup does not show which is the case; it
//! differs from store to store, and changes. So the lookups in some of the blocks are replayed in two small caches
//! without data: one keeps blocks and the other rows, both by the real cache's policy and with as many bytes in
//! proportion (a miniature simulation: Waldspurger and others, "Cache Modeling and Optimization using Miniature
//! Simulations", ATC 2017). The one that would have caused fewer reads decides what lookups put into the real cache.
//!
//! 1. Nothing is counted until the cache is full, because before that it has room for blocks.
//! 2. Seeks and scans put blocks into the cache in any case. A lookup asks for the row, then for the block, so it finds
//!    these.
//! 3. When rows are no longer kept, lookups still look for the present ones until most of them should have been
//!    evicted.
//! 4. Other memory that is charged to the cache, and indexes and filters, are subtracted from the trials' bytes.
//!
//! Simulated with YCSB's generators and a cache of an eighth of the data (values of 1,000 bytes, all of it in tables),
//! rows save a third of the reads of "latest" and a twenty-fifth of those of "zipfian", half of which are spread over
//! all keys; where whole blocks or ranges of keys are hot, or none, blocks are better by 2 to 20 %.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use quick_cache::unsync::Cache as Shard;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use super::FoldHash;
use crate::sync::Mutex;

const HAS_ROOM: u8 = 0;
const KEEPS_BLOCKS: u8 = 1;
/// Keeps blocks, and looks for the rows of before.
const LOOKS_FOR_ROWS: u8 = 2;
const KEEPS_ROWS: u8 = 3;

/// About the bytes of each trial: five hundred blocks of 4 KiB. Fewer if the cache is smaller than eight times that.
const TRIAL_BYTES: u64 = 2 << 20;
/// At most one of 2 to this power blocks takes part, so that the trials cost little if the cache is small.
const SAMPLE_BITS_MIN: u32 = 3;
/// A trial with fewer bytes, or fewer blocks, proves nothing: then blocks are kept.
const TRIAL_BYTES_MIN: u64 = 256 << 10;
const TRIAL_BLOCKS_MIN: usize = 32;
/// What a block is taken to weigh when room for bookkeeping is reserved, as in the cache.
const BLOCK_BYTES: u64 = super::BLOCK_BYTES_TYPICAL as u64;
/// After this many reads the trials are compared, and the counts so far are weighted with 7 eighths from then on.
const WINDOW: u32 = 1024;
/// If both have fewer misses than this, which is one read in a hundred, there is nothing to gain.
const MISSES_MIN: u64 = 128;
/// To be adopted, a choice must have fewer misses by this fraction (one divided by it): a row costs a second lookup in
/// the cache, and a change discards the cached data. It must also be better by the square root of both counts of
/// misses, because random variation alone makes them differ by that much.
const GAIN_PART: u64 = 32;
/// For this many windows after a change to blocks, rows are still looked for.
const LOOK_WINDOWS: u32 = 64;

/// One read of a block, for the trials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockUse {
    /// Bytes of cache for the block.
    pub block_charge: u32,
    /// For a lookup that found its key and could keep a row: a hash of the user key, and bytes of cache for the row.
    pub row: Option<(u64, u32)>,
}

#[derive(Debug, Clone, Copy)]
struct ByCharge;

impl Weighter<u64, u32> for ByCharge {
    fn weight(&self, _: &u64, charge: &u32) -> u64 {
        u64::from(*charge)
    }
}

/// The entry that stands for other memory charged to the cache: as in the real cache, it is never evicted. The hashes
/// of blocks that take part have zeros at the end.
const CHARGED: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
struct ChargedStays;

impl Lifecycle<u64, u32> for ChargedStays {
    type RequestState = ();

    fn is_pinned(&self, entry: &u64, _: &u32) -> bool {
        *entry == CHARGED
    }
}

/// A cache without data, with the number of its misses.
struct Trial {
    cache: Shard<u64, u32, ByCharge, FoldHash, ChargedStays>,
    misses: u64,
}

impl Trial {
    fn new(capacity: u64, charged: u64) -> Self {
        let shape = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity((capacity / BLOCK_BYTES).max(32) as usize)
            .weight_capacity(capacity)
            .build()
            .unwrap_or_else(|e| unreachable!("capacities are set: {e}"));
        let mut trial = Self { cache: Shard::with_options(shape, ByCharge, FoldHash, ChargedStays), misses: 0 };
        trial.charge(charged);
        trial
    }

    /// Sets how many of its bytes are for other memory. (This does not change the capacity: each time a cache does
    /// that, it remembers fewer of the entries that it evicted.)
    fn charge(&mut self, charged: u64) {
        self.cache.insert(CHARGED, charged.min(self.cache.capacity()) as u32);
    }

    /// Bytes for blocks or rows, and how many it has.
    fn has_room_for(&self) -> (u64, usize) {
        let charged = self.cache.peek(&CHARGED).copied().unwrap_or(0);
        (self.cache.capacity() - u64::from(charged), self.cache.len() - 1)
    }

    fn has(&self, entry: u64) -> bool {
        self.cache.get(&entry).is_some()
    }

    fn misses(&mut self, entry: u64, charge: u32) {
        self.misses += 1;
        self.cache.insert(entry, charge);
    }
}

/// One cache that keeps blocks, and one that keeps rows.
struct Trials {
    blocks: Trial,
    rows: Trial,
    reads: u32,
    /// Windows since rows were kept.
    since_rows: u32,
}

impl Trials {
    fn new(capacity: u64, charged: u64) -> Self {
        let new = || Trial::new(capacity, charged);
        Self { blocks: new(), rows: new(), reads: 0, since_rows: 0 }
    }

    fn read(&mut self, block: u64, of: BlockUse) {
        if !self.blocks.has(block) {
            self.blocks.misses(block, of.block_charge);
        }
        match of.row {
            Some((key, charge)) => {
                // Rotated, so that a block's number combined with a key's hash is never another block's number.
                let row = block.rotate_left(32) ^ key;
                if !self.rows.has(row) && !self.rows.has(block) {
                    self.rows.misses(row, charge);
                }
            }
            None if !self.rows.has(block) => self.rows.misses(block, of.block_charge),
            None => {}
        }
        self.reads += 1;
    }

    /// At the end of a window: the new choice of what to keep.
    fn verdict(&mut self, now: u8) -> u8 {
        let (blocks, rows) = (self.blocks.misses, self.rows.misses);
        self.reads = 0;
        self.blocks.misses -= blocks / 8;
        self.rows.misses -= rows / 8;
        self.since_rows = self.since_rows.saturating_add(1);
        let margin = (blocks.max(rows) / GAIN_PART).max((blocks + rows).isqrt());
        let (bytes, held) = self.blocks.has_room_for();
        let says_something = blocks + rows >= MISSES_MIN && bytes >= TRIAL_BYTES_MIN && held >= TRIAL_BLOCKS_MIN;
        // Half, so that a value near the limit does not switch back and forth.
        let is_small = bytes < TRIAL_BYTES_MIN / 2 || (blocks >= MISSES_MIN && held < TRIAL_BLOCKS_MIN / 2);
        match now {
            KEEPS_ROWS if is_small || says_something && rows > blocks + margin => {
                self.since_rows = 0;
                LOOKS_FOR_ROWS
            }
            KEEPS_BLOCKS | LOOKS_FOR_ROWS if says_something && blocks > rows + margin => KEEPS_ROWS,
            LOOKS_FOR_ROWS if self.since_rows > LOOK_WINDOWS => KEEPS_BLOCKS,
            now => now,
        }
    }

    fn charge(&mut self, charged: u64) {
        self.blocks.charge(charged);
        self.rows.charge(charged);
    }
}

/// Alone on its cache lines, because the reads that take part write to it while all others read what is next to it.
#[repr(align(128))]
struct Apart<T>(T);

/// What lookups keep in a cache. All atomics are Relaxed: none of them publishes other data.
pub(crate) struct RowChoice {
    /// [`HAS_ROOM`], [`KEEPS_BLOCKS`], [`LOOKS_FOR_ROWS`] or [`KEEPS_ROWS`].
    state: AtomicU8,
    /// Blocks whose hash has none of these bits take part in the trials.
    sample: AtomicU64,
    /// Bytes of the cache, and those of them that are charged for other memory, indexes and filters.
    capacity: AtomicU64,
    charged: Arc<AtomicU64>,
    /// Made when the first read takes part.
    trials: Apart<Mutex<Option<Box<Trials>>>>,
}

/// How many blocks take part in the trials of a cache of this many bytes: one of 2 to this power.
fn sample_bits(capacity: u64) -> u32 {
    (capacity / TRIAL_BYTES).max(1).ilog2().max(SAMPLE_BITS_MIN)
}

impl RowChoice {
    /// For a cache of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            state: AtomicU8::new(HAS_ROOM),
            sample: AtomicU64::new((1 << sample_bits(capacity)) - 1),
            capacity: AtomicU64::new(capacity),
            charged: Arc::default(),
            trials: Apart(Mutex::new(None)),
        }
    }

    /// The cache has this many bytes from now on; the trials start again.
    pub fn set_capacity(&self, capacity: u64) {
        let mut trials = self.trials.0.lock();
        if self.capacity.swap(capacity, Ordering::Relaxed) == capacity {
            return;
        }
        self.sample.store((1 << sample_bits(capacity)) - 1, Ordering::Relaxed);
        *trials = None;
        if capacity >> sample_bits(capacity) < TRIAL_BYTES_MIN {
            self.state.store(HAS_ROOM, Ordering::Relaxed);
        }
    }

    /// Notes that this many bytes are charged to the cache for other memory.
    pub fn charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that this many bytes are no longer charged.
    pub fn discharge(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Where charges are counted; those of indexes and filters by the code that inserts and removes them.
    pub fn charged(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.charged)
    }

    /// Bytes of a trial, and those of them that are charged.
    fn trial_bytes(&self) -> (u64, u64) {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let charged = self.charged.load(Ordering::Relaxed).min(capacity);
        (capacity >> sample_bits(capacity), charged >> sample_bits(capacity))
    }

    /// The cache is full.
    pub fn is_full(&self) {
        let (capacity, charged) = self.trial_bytes();
        if !self.watches() && capacity - charged >= TRIAL_BYTES_MIN {
            self.state.store(KEEPS_BLOCKS, Ordering::Relaxed);
        }
    }

    /// True if the cache is full, as far as is known, so that reads should be reported.
    #[inline]
    pub fn watches(&self) -> bool {
        self.state.load(Ordering::Relaxed) != HAS_ROOM
    }

    /// True when lookups look for rows.
    #[inline]
    pub fn has_rows(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= LOOKS_FOR_ROWS
    }

    /// True when lookups keep rows.
    #[inline]
    pub fn keeps_rows(&self) -> bool {
        self.state.load(Ordering::Relaxed) == KEEPS_ROWS
    }

    /// Keeps rows from now on, whatever is read, until the capacity changes: for tests.
    pub fn force_rows(&self) {
        self.sample.store(u64::MAX, Ordering::Relaxed);
        self.state.store(KEEPS_ROWS, Ordering::Relaxed);
    }

    /// Reports a read of the block with this hash.
    #[inline]
    pub fn read(&self, block: u64, of: impl FnOnce() -> BlockUse) {
        if block & self.sample.load(Ordering::Relaxed) == 0 {
            self.play(block, of());
        }
    }

    #[inline(never)]
    fn play(&self, block: u64, of: BlockUse) {
        // If two threads come at once, one of their reads does not take part.
        let Some(mut trials) = self.trials.0.try_lock() else { return };
        let (capacity, charged) = self.trial_bytes();
        let trials = trials.get_or_insert_with(|| Box::new(Trials::new(capacity, charged)));
        trials.read(block, of);
        if trials.reads == WINDOW {
            trials.charge(charged);
            let now = self.state.load(Ordering::Relaxed);
            self.state.store(trials.verdict(now), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    const BLOCK: u32 = 4_250;
    const ROW: u32 = 1_200;
    const KEYS_OF_A_BLOCK: u64 = 4;

    fn hash(n: u64) -> u64 {
        rockmill_format::hash::hash64(&n.to_le_bytes())
    }

    /// What the choice is after reads of keys that `next` gives, of a cache for `blocks` blocks.
    fn chosen(choice: &RowChoice, reads: u32, mut next: impl FnMut() -> u64) -> bool {
        for _ in 0..reads {
            let key = next();
            let row = Some((hash(key), ROW));
            choice.read(hash(key / KEYS_OF_A_BLOCK), || BlockUse { block_charge: BLOCK, row });
        }
        choice.keeps_rows()
    }

    fn full(blocks: u64) -> RowChoice {
        let choice = RowChoice::new(blocks * u64::from(BLOCK));
        assert!(!choice.watches());
        choice.is_full();
        assert!(choice.watches() && !choice.keeps_rows());
        choice
    }

    #[test]
    fn rows_where_keys_are_hot_and_blocks_where_blocks_are() {
        let choice = full(1_000);
        let mut rng = Rng::with_seed(3);
        // One key in each of 3,000 blocks: all rows would fit, and a third of the blocks.
        assert!(chosen(&choice, 100_000, || rng.u64(0..3_000) * KEYS_OF_A_BLOCK));
        // All keys of 1,500 blocks, as often.
        assert!(!chosen(&choice, 200_000, || rng.u64(0..1_500 * KEYS_OF_A_BLOCK)));
        assert!(chosen(&choice, 200_000, || (1 << 40) + rng.u64(0..3_000) * KEYS_OF_A_BLOCK));
        // In order: each block four times in a row.
        let mut n = 0;
        let mut in_order = || {
            n += 1;
            n
        };
        assert!(!chosen(&choice, 200_000, &mut in_order));
        choice.set_capacity(1 << 30);
        assert!(choice.watches());
        choice.set_capacity(1 << 10);
        assert!(!choice.watches());
    }

    #[test]
    fn what_is_alike_is_not_changed_back_and_forth() {
        let mut rng = Rng::with_seed(6);
        let choice = full(1_000);
        let (mut changes, mut before) = (0, false);
        // Some keys of one block each and some whole blocks are hot: as good with rows as with blocks, and of another
        // cache nearly all reads are answered.
        for hot in [1_450, 150] {
            for _ in 0..3_000 {
                let now = chosen(&choice, 1_000, || match rng.u8(0..100) {
                    0..45 => rng.u64(0..hot) * KEYS_OF_A_BLOCK,
                    45..99 => (1 << 40) + rng.u64(0..hot * 2),
                    _ => (1 << 41) + rng.u64(0..1 << 30),
                });
                changes += u32::from(now != before);
                before = now;
            }
        }
        assert!(changes <= 4, "{changes} changes in 6,000,000 reads");
    }

    #[test]
    fn rows_are_looked_for_after_they_are_kept() {
        let mut rng = Rng::with_seed(7);
        let choice = full(1_000);
        assert!(chosen(&choice, 200_000, || rng.u64(0..3_000) * KEYS_OF_A_BLOCK) && choice.has_rows());
        let mut hot_blocks = || rng.u64(0..1_500 * KEYS_OF_A_BLOCK);
        while chosen(&choice, 8_000, &mut hot_blocks) {}
        assert!(choice.has_rows() && !choice.keeps_rows());
        chosen(&choice, 90 * 8 * WINDOW, &mut hot_blocks);
        assert!(!choice.has_rows() && choice.watches());
    }

    #[test]
    fn charges_for_other_memory_make_the_trials_smaller() {
        let choice = RowChoice::new(16 << 20);
        choice.charge(15 << 20);
        choice.is_full();
        assert!(!choice.watches(), "a trial of 128 KiB");
        choice.discharge(15 << 20);
        choice.is_full();
        assert!(choice.watches());
    }

    #[test]
    fn trials_that_become_too_small_keep_blocks() {
        let mut rng = Rng::with_seed(8);
        let mut hot_keys = || rng.u64(0..3_000) * KEYS_OF_A_BLOCK;
        let choice = full(1_000);
        assert!(chosen(&choice, 200_000, &mut hot_keys));
        // Memory elsewhere takes all of the cache, and more.
        for charge in [4_200_000, 1 << 40] {
            choice.charge(charge);
            assert!(!chosen(&choice, 20_000, &mut hot_keys) && choice.has_rows());
            choice.discharge(charge);
            assert!(chosen(&choice, 200_000, &mut hot_keys));
        }
        // Blocks of another store, of which the trial holds two.
        let mut rng = Rng::with_seed(9);
        for _ in 0..20_000 {
            let key = rng.u64(0..3_000);
            choice.read(hash(key), || BlockUse { block_charge: 200_000, row: Some((hash(key), ROW)) });
        }
        assert!(!choice.keeps_rows());
    }

    #[test]
    fn trials_remember_what_they_evicted_however_often_charges_change() {
        let misses = |changes: u64| {
            let choice = full(1_000);
            let mut rng = Rng::with_seed(10);
            // Some blocks are read again and again for a while, and others once. A cache that remembers evicted entries
            // can distinguish them when they are new. All blocks take part.
            let mut n = 0;
            let mut reads = || {
                for _ in 0..WINDOW {
                    n += 1;
                    let block = if rng.u8(0..10) < 7 { n / 20 + rng.u64(0..80) } else { rng.u64(1 << 40..) };
                    choice.read(hash(block) & !63, || BlockUse { block_charge: BLOCK, row: None });
                }
            };
            for _ in 0..160 {
                reads();
                choice.charge(changes * 64 * 1024);
                reads();
                choice.discharge(changes * 64 * 1024);
            }
            choice.trials.0.lock().as_ref().map_or(0, |trials| trials.blocks.misses)
        };
        let (alike, changing) = (misses(0), misses(1));
        assert!(alike > 1_000 && changing * 20 < alike * 21, "{changing} misses of late, {alike} without charges");
    }

    #[test]
    fn keys_all_alike_and_small_caches_keep_blocks() {
        let mut rng = Rng::with_seed(4);
        assert!(!chosen(&full(1_000), 300_000, || rng.u64(0..8_000 * KEYS_OF_A_BLOCK)));
        let small = RowChoice::new(1 << 20);
        small.is_full();
        assert!(!small.watches(), "a trial of 128 KiB");
    }

    #[test]
    fn seeks_count_for_blocks() {
        let choice = full(1_000);
        let mut rng = Rng::with_seed(5);
        for _ in 0..200_000 {
            let block = hash(rng.u64(0..1_500));
            let row = Some((hash(block), ROW));
            choice.read(block, || BlockUse { block_charge: BLOCK, row });
            // What lookups keep as rows, seeks read as blocks, and these answer lookups, too.
            choice.read(block, || BlockUse { block_charge: BLOCK, row: None });
        }
        assert!(!choice.keeps_rows());
    }
}
