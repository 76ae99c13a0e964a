//! A bump allocator that many threads use at once and that frees everything when it is dropped.
//!
//! 1. Memory comes in blocks of up to `block_size` bytes, the first ones smaller. Each thread draws from the block of
//!    its *shard*, so that threads on different cores touch different cache lines (RocksDB's `ConcurrentArena`). The
//!    blocks of a large memtable are cut from pieces that the store's pool gives and takes back (`pool.rs`); the first
//!    ones are not.
//! 2. An allocation is one `fetch_add` on the position of the shard's block. If the end lies inside the block, the
//!    bytes in front of it belong to the caller alone.
//! 3. When the block is used up, one thread of the shard (under the shard's lock) makes a new block the current one.
//! 4. An allocation above a quarter of a block gets its own block, so that little is left over at the ends of blocks.
//!
//! Invariants: a block is never freed or moved before the arena is dropped; every byte of a block is handed out at
//! most once; `memory_usage` is the sum of the sizes of all blocks, wherever they come from, so that the same entries
//! always fill a memtable equally. The memory that is charged is what the arena holds: whole pieces.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use rockmill_io::pages::{PIECE, Pages};

use super::pool::{BEFORE_PIECES, MEMTABLE_MIN, MemoryPool};
use crate::memtable::write_buffer_manager::MemoryAccount;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Every allocation is aligned to this and a multiple of it.
pub(super) const ALIGN: usize = 8;

/// Blocks are aligned to cache lines.
const BLOCK_ALIGN: usize = 64;

/// The smallest block.
pub(crate) const BLOCK_SIZE_MIN: usize = 4096;

/// The largest size of blocks that are cut from pieces: threads of many shards then share a piece.
const CUT_BLOCK_MAX: usize = PIECE / 8;

/// A memtable has this many bytes before it takes even a piece that was used before: many memtables never grow so
/// large.
const BEFORE_USED_PIECES: usize = 64 << 10;

/// Bytes of a block of an arena whose growth step is `step`, if no limit applies to all memtables together.
pub(crate) fn block_of_arena(write_buffer_size: usize, step: usize) -> usize {
    let cut = write_buffer_size >= MEMTABLE_MIN && step >= BEFORE_PIECES;
    if cut { step.min(CUT_BLOCK_MAX) } else { step }
}

/// Bytes by which the arena of a memtable grows: RocksDB's step, an eighth of `write_buffer_size` and at most 1 MiB, or
/// `arena_block_size` where that is above 0. At most an eighth, whatever the option says: a memtable is full by the
/// blocks that it has, and the last one is hardly used.
pub(crate) fn arena_step(write_buffer_size: usize, arena_block_size: usize) -> usize {
    let eighth = (write_buffer_size / 8).max(BLOCK_SIZE_MIN);
    if arena_block_size == 0 { eighth.min(1 << 20) } else { arena_block_size.min(eighth) }
}

/// The upper limit of the same if blocks are not cut from pieces (which makes them small compared with the memtable):
/// each shard has a block that is not full, and on a machine with many cores these must not be most of the memtable.
pub(crate) fn step_of_shards(write_buffer_size: usize) -> usize {
    (write_buffer_size / (2 * shard_count())).max(BLOCK_SIZE_MIN)
}

/// Bytes below which no memtable is full, whatever `write_buffer_size` is: the list's head and the first entry of each
/// shard are in separate blocks, so with less each write could cause a flush.
pub(crate) fn memory_when_full_min() -> usize {
    (shard_count() + 2) * BLOCK_SIZE_MIN
}

/// Words that are 0. If there are many, the system allocates each page only when something is written to it, so the
/// filter of a nearly empty memtable takes next to nothing.
pub(super) fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    if cfg!(rockmill_shuttle) {
        return (0..count).map(|_| AtomicU64::new(0)).collect(); // the explorer's are no plain words
    }
    // SAFETY: a word whose bits are all 0 is an `AtomicU64` of 0.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}

/// At most this many shards; more threads share them.
const SHARDS_MAX: usize = 32;

/// One cache line (two, because of the adjacent-line prefetcher) of its own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

/// The number of shards of each sharded structure of a memtable: a power of two, about one for each core.
pub(super) fn shard_count() -> usize {
    if cfg!(rockmill_shuttle) {
        return 2; // what is explored is the same on every machine
    }
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        cores.next_power_of_two().min(SHARDS_MAX)
    })
}

/// The calling thread's number; `& (shard_count() - 1)` is its shard.
pub(super) use crate::sync::thread_number as thread_slot;

/// The header at the start of each block; the bytes after it are handed out.
struct Block {
    /// The block allocated before this one; the chain is what `drop` walks. Null in a block that was cut from a piece.
    previous: *mut Block,
    /// Size of the whole block with this header, in bytes.
    size: usize,
    /// Offset of the first free byte from the start of the block; above `size` once the block is used up.
    position: AtomicUsize,
}

const HEADER: usize = size_of::<Block>().next_multiple_of(ALIGN);

#[derive(Default)]
struct Shard {
    current: AtomicPtr<Block>,
    refill: Mutex<()>,
}

/// Pieces of the store's pool.
struct Pieces {
    pool: Arc<MemoryPool>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: Vec<Pages>,
    /// Bytes of the last one that were cut off.
    cut: usize,
}

impl Pieces {
    /// Cuts `size` bytes, a multiple of [`BLOCK_ALIGN`] and at most [`CUT_BLOCK_MAX`], off a piece. Also returns the
    /// bytes that this took from the pool or the system. With `only_used`, only memory that was used before is taken.
    fn cut(&self, size: usize, only_used: bool) -> Option<(NonNull<u8>, usize)> {
        let mut held = self.held.lock();
        let mut taken = 0;
        if held.all.is_empty() || held.cut + size > PIECE {
            let piece = self.pool.take(!only_used).ok()??;
            taken = piece.len();
            held.all.push(piece);
            held.cut = 0;
        }
        let start = held.all.last()?.start();
        // SAFETY: cut + size is at most the piece's length.
        let cut = unsafe { start.add(held.cut) };
        held.cut += size;
        Some((cut, taken))
    }
}

/// See the module's text.
pub(super) struct Arena {
    block_size: usize,
    mask: usize,
    shards: Box<[CachePadded<Shard>]>,
    /// The newest block that is not part of a piece.
    blocks: AtomicPtr<Block>,
    allocated: AtomicUsize,
    /// Of large memtables.
    pieces: Option<Pieces>,
    /// Told of all memory; dropped after it is freed.
    account: Option<MemoryAccount>,
}

// SAFETY: the raw pointers lead to blocks that the arena owns. `position` is atomic, `size` and `previous` are not
// written after the block is published with a Release operation, and blocks are freed only in `drop` (`&mut self`).
unsafe impl Send for Arena {}
// SAFETY: as above; all shared mutation goes through atomics and the shards' locks.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena that has allocated nothing yet.
    #[cfg(test)]
    pub(super) fn new(block_size: usize) -> Self {
        Self::charging(block_size, None, None)
    }

    /// An arena that has allocated nothing yet, takes pieces from `pool` and charges what it takes to `account`.
    pub(super) fn charging(block_size: usize, account: Option<MemoryAccount>, pool: Option<Arc<MemoryPool>>) -> Self {
        let shards = shard_count();
        let block_size = if pool.is_some() { block_size.min(CUT_BLOCK_MAX) } else { block_size };
        Self {
            block_size: block_size.max(BLOCK_SIZE_MIN).next_multiple_of(BLOCK_ALIGN),
            pieces: pool.map(|pool| Pieces { pool, held: Mutex::default() }),
            mask: shards - 1,
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            blocks: AtomicPtr::new(ptr::null_mut()),
            allocated: AtomicUsize::new(0),
            account,
        }
    }

    /// Bytes of all blocks.
    #[inline]
    pub(super) fn memory_usage(&self) -> usize {
        // Relaxed: a count that orders nothing.
        self.allocated.load(Ordering::Relaxed)
    }

    /// Bytes at the ends of the blocks that are being filled.
    pub(super) fn unfilled(&self) -> usize {
        let of = |shard: &CachePadded<Shard>| {
            // Acquire: as in `allocate`.
            let block = NonNull::new(shard.0.current.load(Ordering::Acquire))?.as_ptr();
            // SAFETY: as in `bump`.
            let (position, size) = unsafe { (&(*block).position, (*block).size) };
            // Relaxed: a count that orders nothing.
            Some(size.saturating_sub(position.load(Ordering::Relaxed)))
        };
        self.shards.iter().filter_map(of).sum()
    }

    /// Where the memory is charged.
    pub(super) fn account(&self) -> Option<&MemoryAccount> {
        self.account.as_ref()
    }

    /// `size` uninitialised bytes, aligned to [`ALIGN`], that live as long as the arena. `slot` is the caller's
    /// [`thread_slot`].
    #[inline]
    pub(super) fn allocate(&self, size: usize, slot: usize) -> NonNull<u8> {
        let size = size.next_multiple_of(ALIGN);
        if size > self.block_size / 4 {
            return self.allocate_alone(size);
        }
        let shard = &self.shards[slot & self.mask].0;
        loop {
            // Acquire pairs with the Release store in `refill`: it makes the block's header visible.
            let block = shard.current.load(Ordering::Acquire);
            if let Some(p) = NonNull::new(block).and_then(|b| bump(b, size)) {
                return p;
            }
            self.refill(shard, block, size);
        }
    }

    /// Bytes of the next block, with room for several entries of `size` bytes, which is at most a quarter of
    /// `block_size`. The first ones are small, then each is a quarter of what there is: thousands of nearly empty
    /// column families take next to nothing, also of a limit for all memtables.
    fn next_block(&self, size: usize) -> usize {
        // Relaxed: a block of another size is as good.
        let quarter = self.allocated.load(Ordering::Relaxed) / 4;
        let least = BLOCK_SIZE_MIN.max(HEADER + 4 * size);
        quarter.max(least).next_multiple_of(BLOCK_ALIGN).min(self.block_size)
    }

    /// Makes a fresh block the shard's current one, unless another thread has replaced `used_up` in the meantime.
    #[cold]
    fn refill(&self, shard: &Shard, used_up: *mut Block, size: usize) {
        let _guard = shard.refill.lock();
        // Relaxed: `current` changes under this lock only.
        if shard.current.load(Ordering::Relaxed) == used_up {
            let block = self.new_block(self.next_block(size));
            // Release: a thread that sees the pointer sees the header.
            shard.current.store(block.as_ptr(), Ordering::Release);
        }
    }

    #[cold]
    fn allocate_alone(&self, size: usize) -> NonNull<u8> {
        let block = self.new_block((HEADER + size).next_multiple_of(BLOCK_ALIGN));
        match bump(block, size) {
            Some(p) => p,
            None => unreachable!("the block was made for this size and nobody else has it"),
        }
    }

    fn new_block(&self, size: usize) -> NonNull<Block> {
        let (block, taken) = match self.cut_block(size) {
            Some(cut) => cut,
            None => (self.allocate_block(size), size),
        };
        // Relaxed: a count that orders nothing.
        self.allocated.fetch_add(size, Ordering::Relaxed);
        if let Some(account) = &self.account
            && taken > 0
        {
            account.charge(taken);
        }
        block
    }

    /// A block that is part of a piece, and the bytes that were taken from the pool or the system for it.
    fn cut_block(&self, size: usize) -> Option<(NonNull<Block>, usize)> {
        let pieces = self.pieces.as_ref().filter(|_| size <= CUT_BLOCK_MAX)?;
        // Relaxed: one block more or less does not matter.
        let there = self.allocated.load(Ordering::Relaxed);
        if there < BEFORE_USED_PIECES {
            return None;
        }
        let (start, taken) = pieces.cut(size, there < BEFORE_PIECES)?;
        let block = start.cast::<Block>();
        let header = Block { previous: ptr::null_mut(), size, position: AtomicUsize::new(HEADER) };
        // SAFETY: the memory is ours alone, `size` bytes long, which is more than a header, and aligned to BLOCK_ALIGN:
        // pieces are, and only multiples of it are cut off.
        unsafe { block.as_ptr().write(header) };
        Some((block, taken))
    }

    /// A block of its own, which is freed with the arena.
    fn allocate_block(&self, size: usize) -> NonNull<Block> {
        let layout = block_layout(size);
        // SAFETY: the layout's size is at least HEADER, so not zero.
        let Some(block) = NonNull::new(unsafe { alloc(layout) }.cast::<Block>()) else { handle_alloc_error(layout) };
        // Relaxed: only a starting value for the exchange below.
        let mut newest = self.blocks.load(Ordering::Relaxed);
        let header = Block { previous: newest, size, position: AtomicUsize::new(HEADER) };
        // SAFETY: the allocation is ours, large enough and aligned to BLOCK_ALIGN, which is at least Block's.
        unsafe { block.as_ptr().write(header) };
        // Release: publishes the header to whoever takes the chain over, which is only `drop`; it needs no order from
        // the memory model but from `&mut self`, so Release is enough and a failed exchange may be Relaxed.
        while let Err(now) =
            self.blocks.compare_exchange_weak(newest, block.as_ptr(), Ordering::Release, Ordering::Relaxed)
        {
            newest = now;
            // SAFETY: the block is not published yet, so this thread alone accesses its header.
            unsafe { (*block.as_ptr()).previous = newest };
        }
        block
    }
}

/// Takes `size` bytes of a block; `None` when it has not that many left.
#[inline]
fn bump(block: NonNull<Block>, size: usize) -> Option<NonNull<u8>> {
    let base = block.as_ptr();
    // SAFETY: blocks live as long as the arena that calls this, and their headers were written before their pointer
    // was published. Shared references to the two fields exist only here and nothing writes them otherwise.
    let (position, capacity) = unsafe { (&(*base).position, (*base).size) };
    // Relaxed: the addition's atomicity alone makes the ranges disjoint; nothing is read through the position. It
    // cannot wrap: each failed attempt adds less than a block, and threads stop trying once the block is replaced.
    let start = position.fetch_add(size, Ordering::Relaxed);
    if start <= capacity && size <= capacity - start {
        // SAFETY: start + size <= capacity, so the result is inside the block's allocation; the pointer comes from
        // the allocation's own and may be used for all of it.
        Some(unsafe { NonNull::new_unchecked(base.cast::<u8>().add(start)) })
    } else {
        None
    }
}

fn block_layout(size: usize) -> Layout {
    match Layout::from_size_align(size, BLOCK_ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("a memtable entry of {size} bytes is larger than the address space"),
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut block = *self.blocks.get_mut();
        while !block.is_null() {
            // SAFETY: the chain holds each block once; `&mut self` shows that nothing uses them any more.
            let (previous, size) = unsafe { ((*block).previous, (*block).size) };
            // SAFETY: allocated in `new_block` with this layout.
            unsafe { dealloc(block.cast(), block_layout(size)) };
            block = previous;
        }
        if let Some(pieces) = &mut self.pieces {
            let held = std::mem::take(&mut pieces.held.get_mut().all);
            if !held.is_empty() {
                pieces.pool.give(held);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_and_disjoint() {
        let arena = Arena::new(4096);
        let mut rng = fastrand::Rng::with_seed(3);
        let mut ranges = Vec::new();
        for i in 0..2000 {
            let size = if i % 100 == 0 { rng.usize(2000..9000) } else { rng.usize(1..200) };
            let p = arena.allocate(size, thread_slot());
            assert_eq!(p.as_ptr() as usize % ALIGN, 0);
            // SAFETY: the arena just gave this thread `size` bytes.
            unsafe { p.as_ptr().write_bytes(i as u8, size) };
            ranges.push((p.as_ptr() as usize, size));
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        assert!(arena.memory_usage() >= ranges.iter().map(|r| r.1).sum());
    }

    #[test]
    fn threads_get_disjoint_memory() {
        let arena = Arena::new(4096);
        let mut ranges: Vec<(usize, usize)> = crate::sync::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    let arena = &arena;
                    s.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(t);
                        // All on one shard: the hard case.
                        (0..if cfg!(miri) { 50 } else { 3000 })
                            .map(|_| {
                                let size = rng.usize(1..1500);
                                let p = arena.allocate(size, 0);
                                // SAFETY: the arena just gave this thread `size` bytes.
                                unsafe { p.as_ptr().write_bytes(t as u8, size) };
                                (p.as_ptr() as usize, size)
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    }

    #[test]
    fn a_large_memtable_takes_pieces_and_leaves_them_to_the_next() {
        use crate::memtable::write_buffer_manager::WriteBufferManager;
        let manager = WriteBufferManager::new_write_buffer_manager(0, false);
        let pool = Arc::new(MemoryPool::new(Some(&manager), None));
        assert!(pool.serves(8 * PIECE, 1 << 20));
        let entry = if cfg!(miri) { 60_000 } else { 1100 };
        // Entries of three sizes: in a block, in a block of their own that is cut from a piece, and in one that is not.
        let fill = |arena: &Arena| {
            let mut ranges = Vec::new();
            for i in 0.. {
                let size = match i % 1000 {
                    100 => 100_000,
                    200 => 600_000,
                    _ => entry,
                };
                let p = arena.allocate(size, 0);
                // SAFETY: the arena just gave this thread `size` bytes.
                unsafe { p.as_ptr().write_bytes(i as u8, size) };
                ranges.push((p.as_ptr().addr(), size));
                if arena.memory_usage() >= 3 * PIECE {
                    break;
                }
            }
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
            ranges.len()
        };
        let cold = Arena::charging(1 << 20, Some(manager.account()), Some(Arc::clone(&pool)));
        let entries = fill(&cold);
        let charged = manager.get_usage();
        assert!((cold.memory_usage()..cold.memory_usage() + PIECE).contains(&charged), "{charged}");
        assert_eq!(pool.bytes(), 0);
        drop(cold);
        let kept = pool.bytes();
        assert!(kept >= PIECE, "{kept}");
        assert_eq!(manager.get_usage(), kept, "what is kept is charged, and nothing else is left");
        let warm = Arena::charging(1 << 20, Some(manager.account()), Some(Arc::clone(&pool)));
        assert_eq!(fill(&warm), entries, "the same entries fill it, whatever memory it gets");
        assert_eq!(pool.bytes(), 0, "all of it is in use again");
        drop(warm);
        drop(pool);
        assert_eq!(manager.get_usage(), 0);
    }

    #[test]
    fn a_few_entries_take_no_piece() {
        let pool = Arc::new(MemoryPool::new(None, None));
        assert!(pool.serves(8 * PIECE, 1 << 20));
        let arena = Arena::charging(1 << 20, None, Some(Arc::clone(&pool)));
        arena.allocate(1000, 0);
        arena.allocate(1000, 1);
        assert!(arena.memory_usage() < PIECE / 2);
        drop(arena);
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn a_memtable_grows_by_a_quarter_of_itself_up_to_its_step() {
        let arena = Arena::new(1 << 20);
        let (mut before, mut blocks, mut used) = (0, 0, 0);
        while before < 6 << 20 {
            arena.allocate(120, 0);
            used += 120;
            let now = arena.memory_usage();
            if now != before {
                assert!(now - before <= (before / 4).max(BLOCK_SIZE_MIN).next_multiple_of(BLOCK_ALIGN).min(1 << 20));
                assert!(used * 5 / 4 + 2 * BLOCK_SIZE_MIN >= before, "{used} of {before}");
                (before, blocks) = (now, blocks + 1);
            }
        }
        assert!(blocks < 40, "{blocks} blocks");
        // An allocation that is large for the first blocks, and small for a whole step, gets a block in which it fits.
        let arena = Arena::new(1 << 20);
        arena.allocate(200 << 10, 0);
        assert_eq!(arena.memory_usage(), (HEADER + (800 << 10)).next_multiple_of(BLOCK_ALIGN));
    }

    #[test]
    fn nothing_is_allocated_before_the_first_use() {
        assert_eq!(Arena::new(1 << 20).memory_usage(), 0);
    }
}
