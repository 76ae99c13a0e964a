//! Memory of dropped memtables, kept for the next ones.
//!
//! A memtable that is being filled touches new pages: that is a page fault for every few entries, and more work when
//! the pages are freed. So large memtables take their memory in pieces from here, and give them back here. At most as
//! much is kept as the store's largest memtable, or twice that together with what memtables hold, because a memtable is
//! filled while the previous one is flushed. Nothing is kept if a write buffer manager has a limit (kept memory would
//! count against it), and all of it goes back to the system if no memtable has asked for any for a while.
//!
//! The first memtables find nothing kept. While one of them takes pieces, another thread, woken by the pool, makes the
//! next few ready: the kernel zeroes a new piece in the time of a thousand writes.

use std::io;
use std::sync::Arc;

use rockmill_io::pages::{PIECE, Pages};

use crate::info_log::Alarm;
use crate::memtable::write_buffer_manager::{MemoryAccount, WriteBufferManager};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A memtable takes single blocks first, so that one with a few entries, as in a store of many column families, does
/// not hold a piece.
pub(super) const BEFORE_PIECES: usize = 1 << 20;

/// Memtables of this size and larger take pieces: then the empty part of the last piece is small.
pub(super) const MEMTABLE_MIN: usize = 8 * PIECE;

/// Pieces that are made ready before they are asked for.
const AHEAD: usize = 1;

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
    /// Kept memory counts as in use, but belongs to no memtable.
    account: Option<MemoryAccount>,
    /// Wakes the thread that calls `prepare`.
    alarm: Option<Arc<Alarm>>,
}

impl MemoryPool {
    /// An empty pool; what it keeps is charged to `manager`. It rings `alarm` when there is something to
    /// [prepare](Self::prepare).
    pub fn new(manager: Option<&WriteBufferManager>, alarm: Option<Arc<Alarm>>) -> Self {
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
            alarm,
        }
    }

    /// True if a memtable of `write_buffer_size` bytes that grows in steps of `step` takes its memory from here.
    pub fn serves(&self, write_buffer_size: usize, step: usize) -> bool {
        let limit = self.manager.as_ref().map_or(0, WriteBufferManager::get_buffer_size);
        // The last pieces of all memtables together must not come near a limit.
        let serves = write_buffer_size >= MEMTABLE_MIN && step >= BEFORE_PIECES && (limit == 0 || limit >= 64 * PIECE);
        if serves {
            // Relaxed here and below: numbers that order nothing.
            self.largest.fetch_max(write_buffer_size.div_ceil(PIECE), Ordering::Relaxed);
        }
        serves
    }

    /// A piece that was used before; with `or_new`, a new one if there is none.
    pub(super) fn take(&self, or_new: bool) -> io::Result<Option<Pages>> {
        let (kept, left) = {
            let mut free = self.free.lock();
            (free.pop(), free.len())
        };
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
            if self.missing(left) > 0
                && let Some(alarm) = &self.alarm
            {
                alarm.ring();
            }
        }
        Ok(piece)
    }

    /// How many pieces should be made ready in addition to `free` ones: none before a memtable takes its second, and no
    /// more than would be kept.
    fn missing(&self, free: usize) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        if held < 2 || self.is_bounded() {
            return 0;
        }
        let most = 2 * self.largest.load(Ordering::Relaxed);
        AHEAD.min(most.saturating_sub(held)).saturating_sub(free)
    }

    fn is_bounded(&self) -> bool {
        self.manager.as_ref().is_some_and(WriteBufferManager::enabled)
    }

    /// Makes a few pieces ready if memtables are about to take some.
    pub fn prepare(&self) {
        while self.missing(self.free.lock().len()) > 0 {
            let Ok(mut piece) = Pages::new(PIECE) else { return };
            piece.touch();
            if let Some(account) = &self.account {
                account.charge(PIECE);
            }
            self.free.lock().push(piece);
        }
    }

    /// Keeps what there is room for. The others are unmapped.
    pub(super) fn give(&self, mut pieces: Vec<Pages>) {
        let held = self.held.fetch_sub(pieces.len(), Ordering::Relaxed).saturating_sub(pieces.len());
        let largest = if self.is_bounded() { 0 } else { self.largest.load(Ordering::Relaxed) };
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
            account.freed(pieces.len() * PIECE);
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
        let pool = MemoryPool::new(None, None);
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
    fn a_few_pieces_are_ready_before_they_are_asked_for() {
        let manager = WriteBufferManager::new_write_buffer_manager(0, false);
        let alarm = Arc::new(Alarm::default());
        let pool = MemoryPool::new(Some(&manager), Some(Arc::clone(&alarm)));
        assert!(pool.serves(MEMTABLE_MIN, BEFORE_PIECES));
        let n = MEMTABLE_MIN / PIECE;
        let mut held = take(&pool, 1);
        pool.prepare();
        assert_eq!((pool.bytes(), alarm.is_ringing()), (0, false), "a small memtable may need no more");
        held.extend(take(&pool, 1));
        assert!(alarm.is_ringing());
        pool.prepare();
        assert_eq!((pool.bytes(), manager.get_usage()), (AHEAD * PIECE, AHEAD * PIECE));
        held.extend(take(&pool, 2 * n - 3));
        pool.prepare();
        assert_eq!(pool.bytes(), PIECE, "no more than two memtables together");
        pool.clear();
        manager.set_buffer_size(1 << 30);
        pool.prepare();
        assert_eq!(pool.bytes(), 0, "nothing within a limit");
        pool.give(held);
    }

    #[test]
    fn what_is_kept_is_charged_and_nothing_is_kept_within_a_limit() {
        let manager = WriteBufferManager::new_write_buffer_manager(0, false);
        let pool = MemoryPool::new(Some(&manager), None);
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
