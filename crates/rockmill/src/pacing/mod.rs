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
pub(crate) mod lull;
pub(crate) mod rate_control;
pub(crate) mod read_protection;
pub(crate) mod write_control;

use std::sync::Arc;

use rockmill_io::Clock;

use crate::sync::atomic::{AtomicBool, Ordering};
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
}

impl Pacing {
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            writers: WriteController::default(),
            writers_wait: Arc::default(),
            flush_priority: Arc::default(),
            read_protection: Arc::new(ReadProtection::new(Arc::clone(clock))),
        }
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
