//! Memory of memtables that are gone, kept for the next ones.
//!
//! A memtable that is filled takes pages that were never touched: a fault for every few entries, and more when they go
//! back. So large memtables take their memory in pieces from here, and leave them here. What is kept is as much as the
//! store's largest memtable at most, or twice that together with what memtables hold: a memtable is filled while the
//! one before is flushed. Nothing is kept where a write buffer manager has a limit (it would count against it), and all
//! of it goes back to the system when no memtable has asked for any for a while.

use std::io;

use rockmill_io::pages::{PIECE, Pages};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::write_buffer_manager::{MemoryAccount, WriteBufferManager};

/// A memtable takes single blocks first: one that holds a few entries, as in a store of many column families, is not to
/// hold a piece.
pub(super) const BEFORE_PIECES: usize = 1 << 20;

/// Memtables of this size and larger take pieces: what the last one leaves empty is then little.
const MEMTABLE_MIN: usize = 8 * PIECE;

/// See the module's text. One for each store.
pub(crate) struct MemoryPool {
    free: Mutex<Vec<Pages>>,
    /// Pieces that memtables hold.
    held: AtomicUsize,
    /// Pieces of the largest memtable.
    largest: AtomicUsize,
    /// How often something was taken or given back.
    uses: AtomicU64,
    manager: Option<WriteBufferManager>,
    /// What is kept is in use, but no memtable's.
    account: Option<MemoryAccount>,
}

impl MemoryPool {
    /// An empty pool; what it keeps is charged to `manager`.
    pub fn new(manager: Option<&WriteBufferManager>) -> Self {
        let account = manager.map(WriteBufferManager::account);
        if let Some(account) = &account {
            account.flushed();
        }
        Self {
            free: Mutex::default(),
            held: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
            uses: AtomicU64::new(0),
            manager: manager.cloned(),
            account,
        }
    }

    /// True if a memtable of `write_buffer_size` bytes that grows in steps of `step` takes its memory from here.
    pub fn serves(&self, write_buffer_size: usize, step: usize) -> bool {
        let limit = self.manager.as_ref().map_or(0, WriteBufferManager::get_buffer_size);
        // All memtables' last pieces together are not to come near a limit.
        let serves = write_buffer_size >= MEMTABLE_MIN && step >= BEFORE_PIECES && (limit == 0 || limit >= 64 * PIECE);
        if serves {
            // Relaxed here and below: numbers that order nothing.
            self.largest.fetch_max(write_buffer_size.div_ceil(PIECE), Ordering::Relaxed);
        }
        serves
    }

    /// A piece with anything in it that was used before; with `or_new` another where there is none.
    pub(super) fn take(&self, or_new: bool) -> io::Result<Option<Pages>> {
        let kept = self.free.lock().pop();
        if let (Some(piece), Some(account)) = (&kept, &self.account) {
            account.give_back(piece.len());
        }
        let piece = match kept {
            None if or_new => Some(Pages::new(PIECE)?),
            kept => kept,
        };
        if piece.is_some() {
            self.held.fetch_add(1, Ordering::Relaxed);
            self.uses.fetch_add(1, Ordering::Relaxed);
        }
        Ok(piece)
    }

    /// Keeps what there is room for. The others are unmapped.
    pub(super) fn give(&self, mut pieces: Vec<Pages>) {
        let held = self.held.fetch_sub(pieces.len(), Ordering::Relaxed).saturating_sub(pieces.len());
        let largest = match self.manager.as_ref().is_some_and(WriteBufferManager::enabled) {
            true => 0,
            false => self.largest.load(Ordering::Relaxed),
        };
        if largest == 0 {
            self.clear(); // the limit may be new
        }
        let mut free = self.free.lock();
        let room = (2 * largest).saturating_sub(held).max(largest).saturating_sub(free.len()).min(pieces.len());
        if let Some(account) = &self.account {
            account.charge(room * PIECE);
        }
        free.extend(pieces.drain(..room));
        drop(free);
        self.uses.fetch_add(1, Ordering::Relaxed);
        drop(pieces); // without the lock
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.free.lock().len() * PIECE
    }

    /// A number that rises with every use.
    pub fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Gives everything back to the system.
    pub fn clear(&self) {
        let pieces = std::mem::take(&mut *self.free.lock());
        if let Some(account) = &self.account {
            account.give_back(pieces.len() * PIECE);
        }
    }
}

impl std::fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryPool").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &MemoryPool, n: usize) -> Vec<Pages> {
        (0..n).map(|_| pool.take(true).unwrap().unwrap()).collect()
    }

    #[test]
    fn as_much_is_kept_as_the_next_memtable_takes() {
        let pool = MemoryPool::new(None);
        assert!(!pool.serves(MEMTABLE_MIN - 1, BEFORE_PIECES) && !pool.serves(MEMTABLE_MIN, BEFORE_PIECES - 1));
        assert!(pool.serves(MEMTABLE_MIN, BEFORE_PIECES));
        assert!(pool.take(false).unwrap().is_none(), "nothing is kept yet");
        let n = MEMTABLE_MIN / PIECE;
        let (a, b, c) = (take(&pool, n), take(&pool, n), take(&pool, n));
        pool.give(a);
        assert_eq!(pool.bytes(), MEMTABLE_MIN, "one, beside two that are in use");
        pool.give(b);
        assert_eq!(pool.bytes(), MEMTABLE_MIN, "with the one in use no more than two");
        pool.give(c);
        assert_eq!(pool.bytes(), 2 * MEMTABLE_MIN);
        let used = pool.uses();
        let start = pool.free.lock().last().unwrap().start();
        let again = pool.take(false).unwrap().unwrap();
        assert_eq!((again.start(), pool.uses()), (start, used + 1));
        assert_eq!(pool.bytes(), 2 * MEMTABLE_MIN - PIECE);
        pool.clear();
        assert_eq!(pool.bytes(), 0);
        pool.give(vec![again]);
        assert_eq!(pool.bytes(), PIECE);
    }

    #[test]
    fn what_is_kept_is_charged_and_nothing_is_kept_within_a_limit() {
        let manager = WriteBufferManager::new_write_buffer_manager(0, false);
        let pool = MemoryPool::new(Some(&manager));
        assert!(pool.serves(MEMTABLE_MIN, BEFORE_PIECES));
        let pieces = take(&pool, 3);
        assert_eq!(manager.get_usage(), 0, "pieces in use are their memtable's to charge");
        pool.give(pieces);
        assert_eq!((manager.get_usage(), manager.get_mutable_usage()), (3 * PIECE, 0));
        let one = take(&pool, 1);
        assert_eq!(manager.get_usage(), 2 * PIECE);
        manager.set_buffer_size(64 * PIECE - 1);
        assert!(!pool.serves(MEMTABLE_MIN, BEFORE_PIECES), "pieces are too large for such a limit");
        pool.give(one);
        assert_eq!(manager.get_usage(), 0, "within a limit nothing is kept");
        drop(take(&pool, 1));
        drop(pool);
        assert_eq!(manager.get_usage(), 0);
    }
}
