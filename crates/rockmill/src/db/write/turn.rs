//! How long a writer goes on while others want its core.
//!
//! With more writers than cores the scheduler lets a thread run for milliseconds before it takes another, and a writer
//! that never waits would use them: thousands of writes for one, while another's single write waits. So whoever has
//! inserted [`UPDATES`] and met others meanwhile lets them run. A turn is some tens of microseconds then, long beside
//! the microsecond that a switch costs. A writer that is alone is never held up.

use std::cell::Cell;

use crate::sync::thread;

/// Updates after which a turn is over. Measured with batches of 100 (docs/notebook/benchmarks.md, "Many writers"): with
/// 50, the 99th percentile fell from 4.0 to 0.8 ms (4 threads) and from 8.4 to 4.6 ms (16) at the same throughput, with
/// 200 by less. 64 itself was not measured against 50. The explorer of schedules has no time to write as many.
const UPDATES: u64 = if cfg!(rockmill_shuttle) { 2 } else { 64 };

/// A thread's turn.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Updates that it has inserted, of whatever database.
    updates: u64,
    /// Others wrote or waited meanwhile.
    met_others: bool,
}

crate::sync::thread_local! {
    static TURN: Cell<Turn> = Cell::new(Turn::default());
}

/// This thread has waited: its turn begins anew.
pub(crate) fn begin() {
    TURN.with(|turn| turn.set(Turn::default()));
}

/// This thread's group is visible. Ends the turn if it was long enough, and others are there.
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
