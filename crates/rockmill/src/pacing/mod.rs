//! What slows writers, and what flushes, compactions and reads get of the device.
//!
//! | file | what it decides |
//! |---|---|
//! | `decide.rs` | everything that holds until the tree or the memtables change: from observed to orders, pure |
//! | `write_control.rs` | how a tree is to slow writers, and how a writer waits |
//! | `rate_control.rs` | the rate that compactions can take in |
//! | `flush_pace.rs` | how fast memtables may fill while a flush is in flight |
//! | `flush_bound.rs` | whether writers wait for flushes rather than for compactions |
//! | `give_way.rs` | when compactions let a flush go first at the device |
//! | `reads_first.rs` | what flushes and compactions leave of the device to reads |
//!
//! `common.rs` has constants of several of them. `file.rs` is where a table's bytes wait for the last two and for the
//! rate limiter.

pub(crate) mod common;
pub(crate) mod decide;
pub(crate) mod file;
pub(crate) mod flush_bound;
pub(crate) mod flush_pace;
pub(crate) mod give_way;
pub(crate) mod rate_control;
pub(crate) mod reads_first;
pub(crate) mod write_control;

use std::sync::Arc;

use rockmill_io::Clock;

use crate::sync::atomic::{AtomicBool, Ordering};
use decide::Orders;
use give_way::GiveWay;
use reads_first::ReadsFirst;
use write_control::WriteController;

/// What carries out the orders of one database.
#[derive(Debug)]
pub(crate) struct Pacing {
    clock: Arc<dyn Clock>,
    writers: WriteController,
    urgent: Arc<AtomicBool>,
    give_way: Arc<GiveWay>,
    reads_first: Arc<ReadsFirst>,
}

impl Pacing {
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            writers: WriteController::default(),
            urgent: Arc::default(),
            give_way: Arc::default(),
            reads_first: Arc::new(ReadsFirst::new(Arc::clone(clock))),
        }
    }

    /// Does what `orders` say from now on. `written`: all bytes that users wrote so far.
    pub fn obey(&self, orders: &Orders, delayed_write_rate: u64, written: u64) {
        self.writers.obey(orders, delayed_write_rate, written, &*self.clock);
        self.urgent.store(orders.stop.is_some() || orders.delayed(), Ordering::Relaxed);
        self.give_way.set(orders.flush_first);
        // A flush that has committed is over, though its thread does not say so before the next change of the tree.
        self.reads_first.set(orders.behind, orders.awaited);
    }

    /// What writers wait for.
    #[inline]
    pub fn writers(&self) -> &WriteController {
        &self.writers
    }

    /// Writers are delayed or stopped: background work goes first at the rate limiter.
    pub fn urgent(&self) -> &Arc<AtomicBool> {
        &self.urgent
    }

    /// Compactions let a flush go first at the device.
    pub fn give_way(&self) -> &Arc<GiveWay> {
        &self.give_way
    }

    /// Flushes and compactions leave a part of the device to users' reads.
    #[inline]
    pub fn reads_first(&self) -> &Arc<ReadsFirst> {
        &self.reads_first
    }
}
