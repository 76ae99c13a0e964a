//! How long a writer may run while other writers want its core.
//!
//! With more writers than cores, the scheduler lets a thread run for milliseconds before it takes another one. A writer
//! that never waits would use all of that time: thousands of its writes, while a single write of another thread waits.
//! So a writer that has inserted [`UPDATES`] updates, and has met other writers in that time, yields. A turn then lasts
//! some tens of microseconds, which is long compared with the microsecond that a switch costs. A writer that is alone
//! is never delayed.

use std::cell::Cell;

use crate::sync::thread;

/// How many updates end a turn. Measured with batches of 100 (docs/notebook/benchmarks.md, "Many writers"): with
/// 50, the 99th percentile fell from 4.0 to 0.8 ms (4 threads) and from 8.4 to 4.6 ms (16) at the same throughput; with
/// 200 it fell by less. 64 itself was not measured against 50. The schedule explorer has no time for that many writes.
const UPDATES: u64 = if cfg!(rockmill_shuttle) { 2 } else { 64 };

/// A thread's turn.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// How many updates the thread has inserted, over all databases.
    updates: u64,
    /// Other writers wrote or waited in that time.
    met_others: bool,
}

crate::sync::thread_local! {
    static TURN: Cell<Turn> = Cell::new(Turn::default());
}

/// Begins a new turn, because this thread has waited.
pub(crate) fn begin() {
    TURN.with(|turn| turn.set(Turn::default()));
}

/// Called when this thread's group is visible: ends the turn if it was long enough and there are other writers.
#[inline]
pub(crate) fn end_group(updates: u64, met_others: bool) {
    TURN.with(|turn| {
        let so_far = turn.get();
        let now = Turn { updates: so_far.updates + updates, met_others: so_far.met_others | met_others };
        if now.updates < UPDATES {
            return turn.set(now);
        }
        turn.set(Turn::default());
        if now.met_others {
            thread::yield_now();
        }
    });
}
