//! Whether writers wait for flushes rather than for compactions.
//!
//! Writers that are stopped since all memtables are full wait for the device, or for a core, that flushes share with
//! compactions: then each byte that compactions write is one that writers wait for. Writers that are slowed by the tree
//! wait for compactions: then what counts is that these end. `docs/compaction.md` says what DF-compaction makes of it.
//!
//! A pure state machine in given times, for the store and the simulator alike.

use crate::pacing::write_control::StallReason;

/// Time constant of the two shares: what happened this many seconds ago counts for a third. Chosen: some fifty flushes
/// of 0.1 s, so that one slow flush changes little.
const MEMORY_SECONDS: f64 = 5.0;
/// Fewest waits for flushes, as a part of the time, at which writers count as bound by them. Chosen: a fiftieth is
/// noise.
const SHARE_MIN: f64 = 0.05;
/// The same as a part of the time in which the tree slowed writers. Chosen well below 1: of the tree all
/// of the time counts that it gives a reason to sleep, and the sleeps are shorter.
const SHARE_OF_TREE_MIN: f64 = 0.125;

/// Writers count as idle after this many seconds without a wait for a flush. Measured: it must be longer than the gap
/// between two paced flushes. Where it was not, deferred merges began in the gap, and a load with 134,000 writes/s fell
/// to 98,000.
pub(crate) const REST_SECONDS: f64 = 0.25;

/// Parts of the last seconds in which writers waited for flushes, and for compactions.
#[derive(Debug, Clone, Default)]
pub struct FlushBound {
    flushes: f64,
    tree: f64,
    /// What has been so since `at`.
    at: f64,
    stopped: bool,
    pressure: f64,
    /// When writers waited for a flush last.
    last: f64,
}

impl FlushBound {
    /// Says why writers are stopped from now on, if they are, and how much the tree is to slow them
    /// ([`WriteControl::pressure`](super::write_control::WriteControl)). Times are seconds from any moment on.
    pub fn set(&mut self, now: f64, stop: Option<StallReason>, pressure: f64) {
        (self.flushes, self.tree) = self.shares(now);
        if self.stopped {
            self.last = self.last.max(now);
        }
        (self.at, self.stopped, self.pressure) = (self.at.max(now), stop == Some(StallReason::Memtables), pressure);
    }

    /// Writers slept so many seconds until `now` so that a flush could end (`flush_pace.rs`). They did not wait for the
    /// tree meanwhile.
    pub fn waited(&mut self, now: f64, seconds: f64) {
        (self.flushes, self.tree) = self.shares(now);
        (self.at, self.last) = (self.at.max(now), self.last.max(now));
        let part = (seconds / MEMORY_SECONDS).clamp(0.0, 1.0);
        self.flushes = (self.flushes + part).min(1.0);
        self.tree = (self.tree - part * self.pressure.min(1.0)).max(0.0);
    }

    /// True when writers wait for flushes for much of the time, and not much more for compactions.
    pub fn holds(&self, now: f64) -> bool {
        let (flushes, tree) = self.shares(now);
        flushes > SHARE_MIN && flushes > tree * SHARE_OF_TREE_MIN
    }

    /// True when writers, who wait for flushes for much of the time, rest: they have not for a moment.
    pub fn is_over(&self, now: f64) -> bool {
        !self.stopped && now - self.last >= REST_SECONDS
    }

    fn shares(&self, now: f64) -> (f64, f64) {
        let old = (-(now - self.at).max(0.0) / MEMORY_SECONDS).exp();
        let new = 1.0 - old;
        let tree = if self.stopped { 0.0 } else { self.pressure.min(1.0) };
        (self.flushes * old + f64::from(u8::from(self.stopped)) * new, self.tree * old + tree * new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten times a second: stopped for the first part of each tenth, else with this pressure.
    fn after(seconds: f64, from: f64, bound: &mut FlushBound, stopped: f64, pressure: f64) -> bool {
        for i in 0..(seconds * 10.0) as u32 {
            let now = from + f64::from(i) / 10.0;
            bound.set(now, Some(StallReason::Memtables), pressure);
            bound.set(now + 0.1 * stopped, None, pressure);
        }
        bound.holds(from + seconds)
    }

    #[test]
    fn stops_for_memtables_count_and_are_forgotten() {
        let mut bound = FlushBound::default();
        assert!(!bound.holds(0.0));
        assert!(after(3.0, 0.0, &mut bound, 0.5, 0.0), "half of the time");
        assert!(bound.holds(5.0));
        assert!(!bound.holds(3.0 + 20.0), "writers are gone");
        assert!(!after(60.0, 30.0, &mut bound, 0.02, 0.0), "a fiftieth of the time is nothing");
    }

    /// A writer that is paced waits for flushes as one that is stopped does, and does not rest in between.
    #[test]
    fn sleeps_for_a_flush_count_as_stops_do() {
        let (mut bound, mut stopped) = (FlushBound::default(), FlushBound::default());
        for i in 0..100 {
            let now = f64::from(i) / 10.0;
            bound.set(now, None, 1.0);
            for part in 1..=50 {
                bound.waited(now + f64::from(part) * 1e-3, 1e-3);
            }
            stopped.set(now, Some(StallReason::Memtables), 1.0);
            stopped.set(now + 0.05, None, 1.0);
            assert!(!bound.is_over(now + 0.09) && !stopped.is_over(now + 0.09));
        }
        let (a, b) = (bound.shares(10.0), stopped.shares(10.0));
        assert!((a.0 - b.0).abs() < 0.05 && (a.1 - b.1).abs() < 0.05, "{a:?} beside {b:?}");
        assert!(bound.holds(10.0) && bound.is_over(11.0) && stopped.is_over(11.0));
    }

    #[test]
    fn who_waits_for_compactions_is_not_bound_by_flushes() {
        let mut bound = FlushBound::default();
        assert!(!after(30.0, 0.0, &mut bound, 0.08, 1.5), "a twelfth, and all the rest of the time");
        assert!(after(60.0, 30.0, &mut bound, 0.3, 1.0), "three tenths and seven");
        bound.set(90.0, Some(StallReason::L0Files), 2.0);
        assert!(!bound.holds(120.0), "stopped for L0");
    }
}
