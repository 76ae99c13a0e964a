//! Whether writers are idle; decides about merges that only speed up reads.
//!
//! Such a merge rewrites many bytes for each byte that it moves, and the next flush makes the same work necessary
//! again. So it waits until no flush has begun for longer than the usual pause between two flushes: a writer that fills
//! a memtable every minute is not idle in between. The longest pause counts, and decays slowly, so that writers that
//! write in bursts do not count as idle between bursts.
//!
//! A pure state machine that gets times as arguments, for the store and the simulator.

use crate::pacing::common::Seconds;
use crate::pacing::flush_bound::REST_SECONDS;

/// Writers count as idle when no flush has begun for this many times their longest pause.
const PAUSES: f64 = 4.0;

/// Each flush multiplies the longest pause by this.
const KEPT: f64 = 0.9;

/// After this long without a flush, writers count as idle, whatever the earlier pauses: after a night without writes,
/// reads must not stay slow for days.
const REST_MAX: Seconds = 600.0;

/// When memtables of a column family were flushed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lull {
    /// When the last flush began.
    last: Option<Seconds>,
    /// The longest recent pause between two flushes.
    pause: Seconds,
}

impl Lull {
    /// A flush begins.
    pub fn flushes(&mut self, now: Seconds) {
        let since = self.last.map_or(0.0, |last| (now - last).max(0.0));
        self.pause = since.max(self.pause * KEPT);
        self.last = Some(now);
    }

    /// When writers begin to count as idle, if no flush begins before. Before the first flush, they always do.
    pub fn rests_from(&self) -> Seconds {
        let wait = (PAUSES * self.pause).clamp(REST_SECONDS, REST_MAX);
        self.last.map_or(f64::NEG_INFINITY, |last| last + wait)
    }

    /// True when writers rest.
    pub fn rests(&self, now: Seconds) -> bool {
        now >= self.rests_from()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pauses: impl IntoIterator<Item = Seconds>) -> (Lull, Seconds) {
        let (mut lull, mut now) = (Lull::default(), 100.0);
        assert!(lull.rests(now));
        lull.flushes(now);
        for pause in pauses {
            now += pause;
            lull.flushes(now);
        }
        (lull, now)
    }

    #[test]
    fn a_steady_writer_does_not_rest_between_two_flushes() {
        for pause in [0.01, 1.0, 64.0] {
            let (lull, now) = after([pause; 50]);
            assert!(!lull.rests(now + 3.9 * pause) && lull.rests(now + (4.1 * pause).max(REST_SECONDS)), "{pause}");
        }
        let (lull, now) = after([]);
        assert!(!lull.rests(now) && lull.rests(now + REST_SECONDS));
    }

    #[test]
    fn bursts_are_remembered_for_some_flushes_and_a_night_is_not_waited_for() {
        let burst = |flushes: usize| [60.0].into_iter().chain(std::iter::repeat_n(0.1, flushes));
        let (lull, now) = after(burst(5));
        assert!(!lull.rests(now + 60.0), "the next burst comes in a minute");
        let (lull, now) = after(burst(40));
        assert!(lull.rests(now + 60.0), "what a long burst left is worth a merge");
        let (lull, now) = after([8.0 * 3600.0, 1.0]);
        assert!(!lull.rests(now + 500.0) && lull.rests(now + REST_MAX));
    }
}
