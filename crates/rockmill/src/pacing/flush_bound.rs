//! Whether writers wait for flushes rather than for compactions.
//!
//! Writers that are slowed or stopped because memtables are full wait for the device or for a core, which flushes share
//! with compactions: then writers wait for each byte that compactions write. Other writers, if they wait, wait for
//! compactions: then it is important that these end. `docs/compaction.md` says how DF-compaction uses this.
//!
//! A pure state machine in given times, for the store and the simulator alike.

use crate::pacing::common::{LATELY_SECONDS, Seconds};

/// The smallest part of the time spent waiting for flushes at which writers count as bound by them. Simulated: half of
/// it changes throughput by less than 3 %, twice of it costs df-leveled up to 6 % on a slowed device.
const SHARE_MIN: f64 = 0.05;

/// Writers count as idle after this many seconds without a wait for a flush. Measured: it must be longer than the gap
/// between two paced flushes. Where it was not, deferred merges began in the gap, and a load with 134,000 writes/s fell
/// to 98,000. Simulated (24 fills, 60 to 600 MB/s): 0.1 s changes throughput by less than 2 %, 0.5 s by less than 0.5 %
/// but for df-leveled with 200 MB/s and small memtables (-8 and +8 %), 1 s and more by -3 and +1 % there.
pub(crate) const REST_SECONDS: Seconds = 0.25;

/// The part of the last seconds in which writers waited for flushes.
#[derive(Debug, Clone, Default)]
pub struct FlushBound {
    share: f64,
    /// Whether they are stopped, since `at`.
    at: Seconds,
    stopped: bool,
    /// When writers waited for a flush last.
    last: Seconds,
}

/// How writers wait for flushes at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushWaits {
    /// They do for much of the time.
    pub often: bool,
    /// They did a moment ago, so they are not idle.
    pub lately: bool,
}

impl FlushBound {
    /// Sets whether writers are stopped for a flush from now on.
    pub fn set(&mut self, now: Seconds, stopped: bool) {
        self.share = self.share(now);
        if self.stopped {
            self.last = self.last.max(now);
        }
        (self.at, self.stopped) = (self.at.max(now), stopped);
    }

    /// Until `now`, writers slept for this long so that a flush could end (`flush_pace.rs`).
    pub fn waited(&mut self, now: Seconds, seconds: Seconds) {
        self.share = (self.share(now) + (seconds / LATELY_SECONDS).max(0.0)).min(1.0);
        (self.at, self.last) = (self.at.max(now), self.last.max(now));
    }

    /// How writers wait for flushes now.
    pub fn waits(&self, now: Seconds) -> FlushWaits {
        FlushWaits { often: self.share(now) > SHARE_MIN, lately: self.stopped || now - self.last < REST_SECONDS }
    }

    fn share(&self, now: Seconds) -> f64 {
        let old = (-(now - self.at).max(0.0) / LATELY_SECONDS).exp();
        self.share * old + f64::from(u8::from(self.stopped)) * (1.0 - old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten times a second: stopped for the first part of each tenth.
    fn after(seconds: f64, from: f64, bound: &mut FlushBound, stopped: f64) -> bool {
        for i in 0..(seconds * 10.0) as u32 {
            let now = from + f64::from(i) / 10.0;
            bound.set(now, true);
            bound.set(now + 0.1 * stopped, false);
        }
        bound.waits(from + seconds).often
    }

    #[test]
    fn stops_for_memtables_count_and_are_forgotten() {
        let mut bound = FlushBound::default();
        assert!(!bound.waits(0.0).often);
        assert!(after(3.0, 0.0, &mut bound, 0.5), "half of the time");
        assert!(bound.waits(5.0).often);
        assert!(!bound.waits(3.0 + 20.0).often, "writers are gone");
        assert!(!after(60.0, 30.0, &mut bound, 0.02), "a fiftieth of the time is nothing");
    }

    /// A writer that is paced waits for flushes as one that is stopped does, and does not rest in between.
    #[test]
    fn sleeps_for_a_flush_count_as_stops_do() {
        let (mut bound, mut stopped) = (FlushBound::default(), FlushBound::default());
        for i in 0..100 {
            let now = f64::from(i) / 10.0;
            bound.set(now, false);
            for part in 1..=50 {
                bound.waited(now + f64::from(part) * 1e-3, 1e-3);
            }
            stopped.set(now, true);
            stopped.set(now + 0.05, false);
            assert!(bound.waits(now + 0.09).lately && stopped.waits(now + 0.09).lately);
        }
        let (a, b) = (bound.share(10.0), stopped.share(10.0));
        assert!((a - b).abs() < 0.05, "{a} next to {b}");
        assert!(bound.waits(10.0).often && !bound.waits(11.0).lately && !stopped.waits(11.0).lately);
    }
}
