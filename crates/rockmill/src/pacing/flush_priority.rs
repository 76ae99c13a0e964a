//! Compactions give way to flushes that writers would soon wait for.
//!
//! Flushes and compactions share a device. A device that is busy with a compaction takes two or three times as long for
//! a flush, and writers stop when the memtable after the one that is being flushed is full: at that time a compaction
//! is worth least. So while such a flush is due, a compaction that has written a megabyte waits for the flush to end
//! (the idea is SILK's: Balmau et al., USENIX ATC 2019). It never waits for long at a time, so that compactions
//! continue even if a flush takes for ever. If L0 or the debt has grown so far that RocksDB would speed compactions up
//! (with the defaults 8 tables), it waits less the more the tree slows writers down, and not at all if flushes need
//! cores rather than the device (`flush_pace.rs`, `priority`).

use std::fmt;
use std::time::Duration;

use super::common::JOB_BYTES_PER_SECOND_MIN;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// Bytes that a compaction writes between two checks. Derived: one large write (the option
/// `writable_file_max_buffer_size`, as a test says), so that a flush has to wait for one per job.
pub(super) const STEP_BYTES: usize = 1 << 20;
/// The longest wait for each step. Derived: a compaction keeps [`JOB_BYTES_PER_SECOND_MIN`], also next to flushes that
/// never end.
const WAIT_MAX: Duration = Duration::from_millis(1000 * STEP_BYTES as u64 / JOB_BYTES_PER_SECOND_MIN);

/// Whether compactions wait; one for each database.
#[derive(Default)]
pub struct FlushPriority {
    /// The longest wait for each step, in microseconds; 0: they do not wait.
    wait_micros: AtomicU64,
    waits: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl fmt::Debug for FlushPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FlushPriority").field(&self.wait_micros.load(Ordering::Relaxed)).finish()
    }
}

impl FlushPriority {
    /// Sets how long compactions wait for each step from now on: this part of the longest wait. With 0 they do not
    /// wait, and those that wait continue.
    pub fn set(&self, patience: f64) {
        let micros = (WAIT_MAX.as_micros() as f64 * patience.clamp(0.0, 1.0)) as u64;
        // Relaxed: the lock ensures what matters, that no wait begins after waits were ended.
        if self.wait_micros.swap(micros, Ordering::Relaxed) > 0 && micros == 0 {
            self.wake();
        }
    }

    /// Makes waiting compactions check whether their database is being closed.
    pub fn wake(&self) {
        drop(self.lock.lock());
        self.changed.notify_all();
    }

    /// How often a compaction waited.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Waits while it is wanted, unless `stop` is set.
    pub fn pass(&self, stop: &AtomicBool) {
        let most = Duration::from_micros(self.wait_micros.load(Ordering::Relaxed));
        if most.is_zero() {
            return;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut guard = self.lock.lock();
        while self.wait_micros.load(Ordering::Relaxed) > 0 && !stop.load(Ordering::Acquire) {
            if self.changed.wait_for(&mut guard, most).timed_out() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::thread;

    #[test]
    fn a_step_is_one_large_write() {
        assert_eq!(STEP_BYTES, crate::options::DbOptions::default().writable_file_max_buffer_size);
    }

    #[test]
    fn a_wait_ends_with_its_cause_with_the_database_and_by_itself() {
        let (way, stop) = (FlushPriority::default(), AtomicBool::new(false));
        way.pass(&stop);
        assert_eq!(way.waits(), 0, "nothing to wait for");
        way.set(0.1);
        assert_eq!(way.wait_micros.load(Ordering::Relaxed), 25_000, "a tenth of the longest wait");
        way.set(1.0);
        way.pass(&stop); // nobody ends it
        assert_eq!(way.waits(), 1);
        for closing in [false, true] {
            thread::scope(|s| {
                let waiting = s.spawn(|| {
                    while way.wait_micros.load(Ordering::Relaxed) > 0 && !stop.load(Ordering::Acquire) {
                        way.pass(&stop);
                    }
                });
                thread::sleep(Duration::from_millis(20));
                assert!(!waiting.is_finished());
                if closing {
                    stop.store(true, Ordering::Release);
                    way.wake();
                } else {
                    way.set(0.0);
                }
            });
            way.set(1.0);
        }
    }
}
