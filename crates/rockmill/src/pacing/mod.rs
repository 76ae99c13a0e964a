//! What slows writers, and what share of the device flushes, compactions and reads get.
//!
//! | file | what it decides |
//! |---|---|
//! | `decide.rs` | from observed to orders, pure: until the tree or the memtables change, and at a moment |
//! | `write_control.rs` | how a tree is to slow writers, and how a writer waits |
//! | `rate_control.rs` | the rate that compactions can take in |
//! | `index_tables.rs` | when index tables are merged, and when they are flushed |
//! | `flush_pace.rs` | how fast memtables may fill while a flush is in flight |
//! | `flush_bound.rs` | whether writers wait for flushes rather than for compactions |
//! | `log_garbage.rs` | which logs are emptied since most of their bytes are in tables already |
//! | `lull.rs` | whether writers rest, so that merges for readers alone are due |
//! | `flush_priority.rs` | when compactions let a flush go first at the device |
//! | `read_protection.rs` | what flushes and compactions leave of the device to reads |
//!
//! The other files have the rules that `decide.rs` uses, learn what it is told, or carry out its orders. `common.rs`
//! has constants that several of them use. In `file.rs` a table's bytes wait for the last two and for the rate limiter.

pub(crate) mod common;
pub(crate) mod decide;
pub(crate) mod file;
pub(crate) mod flush_bound;
pub(crate) mod flush_pace;
pub(crate) mod flush_priority;
pub(crate) mod index_tables;
pub(crate) mod job_device;
pub(crate) mod log_garbage;
pub(crate) mod lull;
pub(crate) mod rate_control;
pub(crate) mod read_protection;
pub(crate) mod write_control;

use std::sync::Arc;

use rockmill_io::Clock;

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use decide::Orders;
use flush_priority::FlushPriority;
use read_protection::ReadProtection;
use write_control::WriteController;

/// What carries out the orders of one database.
#[derive(Debug)]
pub(crate) struct Pacing {
    clock: Arc<dyn Clock>,
    writers: WriteController,
    writers_wait: Arc<AtomicBool>,
    flush_priority: Arc<FlushPriority>,
    read_protection: Arc<ReadProtection>,
    /// Compactions that run on this machine, of those that count.
    compactions_here: AtomicUsize,
}

/// A compaction that runs on this machine, as long as this lives.
#[derive(Debug)]
pub(crate) struct CompactsHere<'a>(&'a AtomicUsize);

impl Drop for CompactsHere<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pacing {
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            writers: WriteController::default(),
            writers_wait: Arc::default(),
            flush_priority: Arc::default(),
            read_protection: Arc::new(ReadProtection::new(Arc::clone(clock))),
            compactions_here: AtomicUsize::new(0),
        }
    }

    /// Counts a compaction that runs on this machine, if it stays here by [`decide::stays_here`].
    pub fn keep_here(&self, here_first: usize) -> Option<CompactsHere<'_>> {
        let more = |running| decide::stays_here(running, here_first).then_some(running + 1);
        self.compactions_here.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(CompactsHere(&self.compactions_here))
    }

    /// Counts a compaction that runs on this machine since no worker does it.
    pub fn compacts_here(&self) -> CompactsHere<'_> {
        self.compactions_here.fetch_add(1, Ordering::Relaxed);
        CompactsHere(&self.compactions_here)
    }

    /// Carries out `orders` from now on. `written`: all bytes that users wrote so far.
    pub fn obey(&self, orders: &Orders, delayed_write_rate: u64, written: u64) {
        self.writers.obey(orders, delayed_write_rate, written, &*self.clock);
        self.writers_wait.store(orders.writers_wait(), Ordering::Relaxed);
        self.flush_priority.set(orders.flush_first);
        // A flush that has committed is over, although its thread reports that only with the next change of the tree.
        self.read_protection.set(orders.behind, orders.awaited);
    }

    /// What writers wait for.
    #[inline]
    pub fn writers(&self) -> &WriteController {
        &self.writers
    }

    /// Writers are delayed or stopped: background work goes first at the rate limiter.
    pub fn writers_wait(&self) -> &Arc<AtomicBool> {
        &self.writers_wait
    }

    /// Compactions let a flush go first at the device.
    pub fn flush_priority(&self) -> &Arc<FlushPriority> {
        &self.flush_priority
    }

    /// Flushes and compactions leave a part of the device to users' reads.
    #[inline]
    pub fn read_protection(&self) -> &Arc<ReadProtection> {
        &self.read_protection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compactions_are_kept_here_up_to_a_number() {
        let clock: Arc<dyn Clock> = Arc::new(rockmill_io::ManualClock::default());
        let pacing = Pacing::new(&clock);
        assert!(pacing.keep_here(0).is_none());
        let first = pacing.keep_here(2).expect("none runs here");
        let second = pacing.compacts_here();
        assert!(pacing.keep_here(2).is_none());
        drop(first);
        assert!(pacing.keep_here(2).is_some());
        drop(second);
        assert_eq!(pacing.compactions_here.load(Ordering::Relaxed), 0);
    }
}
