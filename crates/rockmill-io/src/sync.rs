//! Locks, condition variables, atomics and threads: what the store and the memory twin wait with.
//!
//! Ordinarily these are parking_lot's and the standard library's own, under other names: nothing is added. Under
//! `--cfg rockmill_shuttle` they are those of the schedule-exploring tester (shuttle), in which every operation is a
//! point where another thread may go on; then they work inside one of its runs only (the test `schedules`).
//!
//! Pure counters (statistics) keep the standard library's atomics: they order nothing, and each point costs time.

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

/// How often a thread checks for what it waits for before it yields: for some tenths of a microsecond. In a schedule
/// explorer, a second check has no use.
const SPINS: usize = if cfg!(rockmill_shuttle) { 1 } else { 5 };

/// How often it yields before it sleeps: for about 40 µs if no other thread is ready.
const YIELDS: usize = if cfg!(rockmill_shuttle) { 0 } else { 100 };

/// A wait that begins by looking, then lets other threads run (`sched_yield`), and ends in sleep: a thread that sleeps
/// costs whoever wakes it some microseconds, and a turn of the scheduler until it has a core again.
///
/// RocksDB's writers wait like this, too (`WriteThread::AwaitState`).
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
        self.look(SPINS + YIELDS)
    }

    /// [`Self::wait`] for what takes a device's time, in which the core is better left to itself.
    pub fn wait_for_device(&mut self) -> bool {
        self.look(SPINS)
    }

    fn look(&mut self, looks_max: usize) -> bool {
        if self.looks >= looks_max {
            return false;
        }
        self.looks += 1;
        if self.looks <= SPINS {
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
        true
    }
}
