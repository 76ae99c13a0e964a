//! Bounds the memory of memtables over column families and databases (RocksDB's `WriteBufferManager`).
//!
//! 1. Every memtable charges its memory here in steps of its arena's blocks, so that single writes cost nothing extra.
//! 2. A memtable is *active* (it grows), then *waiting* (immutable, to be flushed), then *flushed* (only readers still
//!    hold it), then gone.
//! 3. When active memtables hold 7/8 of the limit, or all memtables reach it while active ones hold half of it, the
//!    next writer makes the oldest active memtable of its database immutable, and that one is flushed. As in RocksDB,
//!    databases without writes are left alone. A limit smaller than two minimal memtables (some KiB for each core)
//!    counts as that size.
//! 4. With `allow_stall`, writers of all databases wait while the limit is reached and a flush can lower it.
//! 5. With a block cache the memory is charged to it as well, in steps of 256 KiB: blocks make room for memtables.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::memtable::memory_when_full_min;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::table::{BlockCache, Cache, Reservation};

/// Steps in which memory is charged to a block cache.
const CACHE_STEP: usize = 256 << 10;

/// Bounds the memory of memtables; see the module's text. Clones are the same manager: give one to several databases.
#[derive(Clone)]
pub struct WriteBufferManager {
    shared: Arc<Shared>,
}

struct Shared {
    /// 0: no limit.
    size: AtomicUsize,
    /// The smallest limit that is used for flushes: two minimal memtables.
    flush_min: usize,
    allow_stall: AtomicBool,
    /// Bytes of all memtables.
    used: AtomicUsize,
    /// Of active ones.
    active: AtomicUsize,
    /// Of those to be flushed.
    waiting: AtomicUsize,
    cache: Option<Charged>,
    stall: Mutex<()>,
    /// Memory was freed, or a flush ended.
    freed: Condvar,
}

struct Charged {
    cache: Arc<BlockCache>,
    steps: Mutex<Vec<Reservation>>,
}

impl Charged {
    /// Charges what is used now. Gives memory back only if a quarter is not needed, since usage goes up and down with
    /// each flush.
    fn follow(&self, used: &AtomicUsize) {
        let mut steps = self.steps.lock();
        let used = used.load(Ordering::Relaxed);
        let wanted = used.div_ceil(CACHE_STEP);
        while steps.len() < wanted {
            // The memory is in use whether a strict cache has room for it or not.
            let Some(step) = self.cache.reserve(CACHE_STEP) else { break };
            steps.push(step);
        }
        if used < steps.len() * CACHE_STEP / 4 * 3 {
            steps.truncate(wanted);
        }
    }
}

impl WriteBufferManager {
    /// Bounds memtables to `buffer_size` bytes; 0 only counts. With `allow_stall` writers wait while more is in use.
    pub fn new_write_buffer_manager(buffer_size: usize, allow_stall: bool) -> Self {
        Self::make(buffer_size, allow_stall, None)
    }

    /// Like [`Self::new_write_buffer_manager`], and charges the memory to `cache`.
    pub fn new_write_buffer_manager_with_cache(buffer_size: usize, allow_stall: bool, cache: Cache) -> Self {
        Self::make(buffer_size, allow_stall, Some(cache.0))
    }

    fn make(buffer_size: usize, allow_stall: bool, cache: Option<Arc<BlockCache>>) -> Self {
        let shared = Shared {
            size: AtomicUsize::new(buffer_size),
            flush_min: 2 * memory_when_full_min(),
            allow_stall: AtomicBool::new(allow_stall),
            used: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            cache: cache.map(|cache| Charged { cache, steps: Mutex::default() }),
            stall: Mutex::new(()),
            freed: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// True when there is a limit.
    pub fn enabled(&self) -> bool {
        self.get_buffer_size() > 0
    }

    /// Bytes of all memtables.
    pub fn get_usage(&self) -> usize {
        self.shared.used.load(Ordering::Relaxed)
    }

    /// Bytes of the memtables that are written to (`mutable_memtable_memory_usage`).
    pub fn get_mutable_usage(&self) -> usize {
        self.shared.active.load(Ordering::Relaxed)
    }

    /// Bytes charged to the block cache (`dummy_entries_in_cache_usage`).
    pub fn get_cache_usage(&self) -> usize {
        self.shared.cache.as_ref().map_or(0, |c| c.steps.lock().len() * CACHE_STEP)
    }

    /// The limit in bytes; 0 for none.
    pub fn get_buffer_size(&self) -> usize {
        self.shared.size.load(Ordering::Relaxed)
    }

    /// Changes the limit; 0 removes it.
    pub fn set_buffer_size(&self, size: usize) {
        self.shared.size.store(size, Ordering::Relaxed);
        self.shared.wake();
    }

    /// Changes whether writers wait while the limit is reached.
    pub fn set_allow_stall(&self, allow_stall: bool) {
        self.shared.allow_stall.store(allow_stall, Ordering::Relaxed);
        self.shared.wake();
    }

    /// True when writers wait while the limit is reached.
    pub(crate) fn allows_stall(&self) -> bool {
        self.shared.allow_stall.load(Ordering::Relaxed)
    }

    /// True when the next writer should make a memtable immutable. A limit smaller than two minimal
    /// memtables counts as that size; otherwise each write would be a flush.
    #[inline]
    pub(crate) fn should_flush(&self) -> bool {
        let s = &*self.shared;
        let size = s.size.load(Ordering::Relaxed);
        if size == 0 {
            return false;
        }
        let size = size.max(s.flush_min);
        let active = s.active.load(Ordering::Relaxed);
        // The second condition: waiting memtables are not freed yet, but active ones have grown enough to be worth
        // flushing. Below half, the memory that could be freed is already being flushed.
        active > size / 8 * 7 || (s.used.load(Ordering::Relaxed) >= size && active >= size / 2)
    }

    /// True when writers should wait: RocksDB's rule, and a flush can lower the usage. Memory that only readers hold
    /// must not make writers wait: no flush frees it, and the reader may be the thread that would wait.
    #[inline]
    pub(crate) fn should_stall(&self) -> bool {
        let s = &*self.shared;
        s.allow_stall.load(Ordering::Relaxed)
            && s.waiting.load(Ordering::Relaxed) > 0
            && s.size.load(Ordering::Relaxed) > 0
            && s.used.load(Ordering::Relaxed) >= s.size.load(Ordering::Relaxed)
    }

    /// Waits until there may be room, at most `longest`.
    pub(crate) fn wait(&self, longest: Duration, given_up: impl Fn() -> bool) {
        let mut guard = self.shared.stall.lock();
        if self.should_stall() && !given_up() {
            self.shared.freed.wait_for(&mut guard, longest);
        }
    }

    /// Makes waiting writers check again.
    pub(crate) fn wake(&self) {
        self.shared.wake();
    }

    /// The account of a new memtable.
    pub(crate) fn account(&self) -> MemoryAccount {
        MemoryAccount {
            manager: Arc::clone(&self.shared),
            charged: AtomicUsize::new(0),
            state: AtomicU8::new(State::Active as u8),
            moving: Mutex::default(),
        }
    }
}

impl fmt::Debug for WriteBufferManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBufferManager")
            .field("buffer_size", &self.get_buffer_size())
            .field("usage", &self.get_usage())
            .field("mutable_usage", &self.get_mutable_usage())
            .field("allow_stall", &self.shared.allow_stall.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn wake(&self) {
        if self.allow_stall.load(Ordering::Relaxed) {
            // The lock keeps a waiter from missing this between its check and its sleep.
            drop(self.stall.lock());
        }
        self.freed.notify_all();
    }

    /// The count of memtables in a state.
    fn of(&self, state: u8) -> Option<&AtomicUsize> {
        match state {
            s if s == State::Active as u8 => Some(&self.active),
            s if s == State::Waiting as u8 => Some(&self.waiting),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum State {
    Active,
    Waiting,
    Flushed,
}

/// What one memtable has charged.
pub(crate) struct MemoryAccount {
    manager: Arc<Shared>,
    charged: AtomicUsize,
    state: AtomicU8,
    /// A reader may free memory at the moment in which another thread commits the flush: the memory must be subtracted
    /// from the count that includes it.
    moving: Mutex<()>,
}

impl MemoryAccount {
    /// Charges memory that was allocated. Any thread may.
    pub fn charge(&self, bytes: usize) {
        // Relaxed ordering throughout: these are counters that order nothing. `enter` runs when nobody writes to the
        // memtable; a lock serialises it with `give_back`.
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        self.manager.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(count) = self.manager.of(self.state.load(Ordering::Relaxed)) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(cache) = &self.manager.cache {
            cache.follow(&self.manager.used);
        }
    }

    /// Takes back a charge of memory that was freed.
    pub fn freed(&self, bytes: usize) {
        self.give_back(bytes);
        self.manager.wake();
    }

    /// Takes back a charge of memory that belongs to another account now.
    pub fn give_back(&self, bytes: usize) {
        let still = self.moving.lock();
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
        self.manager.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(count) = self.manager.of(self.state.load(Ordering::Relaxed)) {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
        drop(still);
        if let Some(cache) = &self.manager.cache {
            cache.follow(&self.manager.used);
        }
    }

    /// The memtable is immutable now and will be flushed.
    pub fn immutable(&self) {
        self.enter(State::Waiting);
    }

    /// Its data is in a table.
    pub fn flushed(&self) {
        self.enter(State::Flushed);
        self.manager.wake();
    }

    fn enter(&self, state: State) {
        let _still = self.moving.lock();
        self.count_as(state);
    }

    fn count_as(&self, state: State) {
        let before = self.state.swap(state as u8, Ordering::Relaxed);
        let bytes = self.charged.load(Ordering::Relaxed);
        if let Some(count) = self.manager.of(state as u8) {
            count.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(count) = self.manager.of(before) {
            count.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.count_as(State::Flushed);
        self.manager.used.fetch_sub(*self.charged.get_mut(), Ordering::Relaxed);
        if let Some(cache) = &self.manager.cache {
            cache.follow(&self.manager.used);
        }
        self.manager.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_while_a_flush_commits_is_counted_nowhere() {
        let m = WriteBufferManager::new_write_buffer_manager(1000, true);
        for _ in 0..2000 {
            let account = m.account();
            account.charge(1000);
            account.immutable();
            std::thread::scope(|scope| {
                scope.spawn(|| account.freed(600));
                account.flushed();
            });
            assert_eq!((m.shared.waiting.load(Ordering::Relaxed), m.get_usage()), (0, 400));
        }
    }

    #[test]
    fn memtables_are_counted_by_state() {
        let m = WriteBufferManager::new_write_buffer_manager(8_000_000, true);
        let (a, b) = (m.account(), m.account());
        a.charge(5_000_000);
        b.charge(1_999_000);
        assert!(m.enabled() && !m.should_flush() && !m.should_stall());
        b.charge(2000);
        assert!(m.should_flush() && !m.should_stall());
        a.immutable();
        assert_eq!((m.get_usage(), m.get_mutable_usage()), (7_001_000, 2_001_000));
        assert!(!m.should_flush() && !m.should_stall());
        b.charge(999_000);
        assert!(m.should_stall() && !m.should_flush(), "what would help is being flushed");
        b.charge(1_000_000);
        assert!(m.should_flush(), "over the limit, and half of it active");
        b.charge(0);
        a.flushed();
        assert!(!m.should_stall(), "only readers hold the rest: waiting does not help");
        assert_eq!(m.get_usage(), 9_000_000);
        drop(a);
        assert_eq!((m.get_usage(), m.get_mutable_usage()), (4_000_000, 4_000_000));
        m.set_buffer_size(4_000_000);
        assert!(m.should_flush());
        m.set_buffer_size(0);
        assert!(!m.should_flush() && !m.enabled());
        drop(b);
        assert_eq!((m.get_usage(), m.get_mutable_usage()), (0, 0));
    }

    #[test]
    fn a_small_limit_does_not_make_each_write_a_flush() {
        let m = WriteBufferManager::new_write_buffer_manager(1, false);
        let a = m.account();
        a.charge(memory_when_full_min());
        assert!(!m.should_flush());
        a.charge(memory_when_full_min());
        assert!(m.should_flush());
    }

    #[test]
    fn a_wait_ends_with_the_flush() {
        let m = WriteBufferManager::new_write_buffer_manager(100, true);
        let a = m.account();
        a.charge(200);
        a.immutable();
        assert!(m.should_stall());
        crate::sync::thread::scope(|s| {
            let waiting = s.spawn(|| {
                while m.should_stall() {
                    m.wait(Duration::from_secs(60), || false);
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            a.flushed();
        });
        m.set_allow_stall(false);
        assert!(!m.should_stall());
    }

    #[test]
    fn a_wait_ends_with_memory_that_is_freed() {
        let m = WriteBufferManager::new_write_buffer_manager(100, true);
        let a = m.account();
        a.charge(200);
        a.immutable();
        let woken = crate::sync::thread::scope(|s| {
            let waiting = s.spawn(|| {
                let began = std::time::Instant::now();
                while m.should_stall() {
                    m.wait(Duration::from_secs(60), || false);
                }
                began.elapsed()
            });
            std::thread::sleep(Duration::from_millis(20));
            a.freed(150);
            waiting.join().expect("the waiter")
        });
        assert!(woken < Duration::from_secs(50), "only the limit of the wait ended it");
        assert_eq!(m.get_usage(), 50);
    }

    #[test]
    fn memory_is_charged_to_the_cache_in_steps() {
        let cache = Cache::new_lru_cache(4 << 20);
        let m = WriteBufferManager::new_write_buffer_manager_with_cache(0, false, cache.clone());
        let a = m.account();
        a.charge(1);
        assert_eq!((cache.get_usage(), m.get_cache_usage()), (256 << 10, 256 << 10));
        a.charge(2 << 20);
        assert_eq!(cache.get_usage(), 9 * (256 << 10));
        let b = m.account();
        b.charge(1 << 20);
        assert_eq!(cache.get_usage(), 13 * (256 << 10));
        drop(a);
        assert_eq!(cache.get_usage(), 1 << 20);
        drop(b);
        assert_eq!((cache.get_usage(), m.get_usage()), (0, 0));
    }
}
