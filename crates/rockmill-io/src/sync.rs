//! Locks, condition variables, atomics and threads: what the store and the memory twin wait with.
//!
//! Ordinarily these are parking_lot's and the standard library's own, under other names: nothing is added. Under
//! `--cfg rockmill_shuttle` they are those of the schedule-exploring tester (shuttle), in which every operation is a
//! point where another thread may go on; then they work inside one of its runs only (the test `schedules`).
//!
//! What only counts (statistics) keeps the standard library's atomics: it orders nothing, and each point costs time.

#[cfg(not(rockmill_shuttle))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};
#[cfg(not(rockmill_shuttle))]
pub use std::sync::atomic;
#[cfg(not(rockmill_shuttle))]
pub use std::{hint, thread, thread_local};

#[cfg(rockmill_shuttle)]
mod explored;
#[cfg(rockmill_shuttle)]
pub use explored::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult, thread};
#[cfg(rockmill_shuttle)]
pub use shuttle::{hint, sync::atomic, thread_local};

/// True if a thread has ended, so that joining it does not wait. The explorer's threads never say so.
pub fn has_ended<T>(thread: &thread::JoinHandle<T>) -> bool {
    #[cfg(not(rockmill_shuttle))]
    return thread.is_finished();
    #[cfg(rockmill_shuttle)]
    {
        let _ = thread;
        false
    }
}

/// How often a thread looks at what it waits for before it sleeps. A schedule explorer gains nothing from the second
/// look.
pub const SPINS: usize = if cfg!(rockmill_shuttle) { 1 } else { 100 };

/// A wait that begins by looking and ends in sleep: a thread that sleeps costs whoever wakes it some microseconds, so
/// what takes less should not put one to sleep.
///
/// It never lets another thread run in between (`sched_yield`), as RocksDB's writers do for a tenth of a millisecond:
/// with other work on the machine every such call costs a turn of that work, milliseconds.
#[derive(Debug, Default)]
pub struct Backoff {
    looks: usize,
}

impl Backoff {
    /// At its beginning.
    pub const fn new() -> Self {
        Self { looks: 0 }
    }

    /// Lets a little time pass. False: time to sleep.
    pub fn wait(&mut self) -> bool {
        if self.looks >= SPINS {
            return false;
        }
        self.looks += 1;
        hint::spin_loop();
        true
    }
}
