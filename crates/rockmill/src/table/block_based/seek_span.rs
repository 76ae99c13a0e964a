//! How many blocks of a table a seek goes through, learned from earlier seeks. A scan of ten entries that reads its
//! three blocks one after another waits for the device three times. Reading all three at once costs one wait, which is
//! hardly longer.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Parts of a block in which the mean is counted.
const PARTS: u32 = 256;
/// Most blocks that one seek counts for. Longer scans read ahead in steps that double.
const BLOCKS_MAX: usize = 32;
/// A seek's own count enters the mean with a weight of one over this. The mean follows a new kind of scan in four to
/// six seeks.
const WEIGHT: i32 = 4;
/// The mean is rounded up from this fraction of a block on: a larger read costs little, another read costs much.
const ROUNDED_UP_FROM: u32 = PARTS / 4;

/// The mean number of blocks that forward seeks went through, their first block included. Only seeks that had to read
/// count: seeks answered by the cache do not write here, so many threads do not contend for the cache line.
#[derive(Debug)]
pub(super) struct SeekSpan(AtomicU32);

impl Default for SeekSpan {
    fn default() -> Self {
        Self(AtomicU32::new(PARTS))
    }
}

impl SeekSpan {
    /// Blocks that the next seek is expected to go through, 1 or more.
    #[inline]
    pub fn expected(&self) -> usize {
        ((self.0.load(Ordering::Relaxed) + PARTS - ROUNDED_UP_FROM) / PARTS) as usize
    }

    /// A seek has gone through `blocks`. Updates by several threads at once may be lost. A seek counts for little more
    /// than twice the expected number, so that one long scan does not make many short ones read more.
    pub fn record(&self, blocks: usize) {
        let mean = self.0.load(Ordering::Relaxed);
        let most = (2 * self.expected() + 2).min(BLOCKS_MAX);
        let count = blocks.clamp(1, most) as u32 * PARTS;
        let new = mean.saturating_add_signed((count as i32 - mean as i32) / WEIGHT);
        if new != mean {
            self.0.store(new, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SeekSpan;

    #[test]
    fn a_span_follows_what_seeks_do_and_stays_within_its_bounds() {
        let span = SeekSpan::default();
        assert_eq!(span.expected(), 1, "nothing is known yet");
        (0..6).for_each(|_| span.record(4));
        assert_eq!(span.expected(), 4);
        (0..10).for_each(|_| span.record(1));
        assert_eq!(span.expected(), 1);
        (0..100).for_each(|_| span.record(1_000_000));
        assert_eq!(span.expected(), 32);
        (0..100).for_each(|_| span.record(0));
        assert_eq!(span.expected(), 1);
    }

    #[test]
    fn a_rare_long_scan_costs_one_block_and_is_soon_forgotten() {
        let span = SeekSpan::default();
        span.record(1000);
        assert_eq!(span.expected(), 2);
        (0..4).for_each(|_| span.record(1));
        assert_eq!(span.expected(), 1);
    }

    #[test]
    fn a_block_that_one_seek_of_ten_needs_is_seldom_read_with_the_others() {
        let (span, mut rng) = (SeekSpan::default(), fastrand::Rng::with_seed(5));
        let mut larger = 0;
        for _ in 0..10_000 {
            larger += usize::from(span.expected() > 1);
            span.record(if rng.u32(..10) == 0 { 2 } else { 1 });
        }
        assert!(larger < 2_000, "{larger} of 10,000");
    }
}
