//! How many blocks of a table a seek goes through, learned from the seeks before. A scan of ten entries that reads
//! its three blocks one after another waits for the device three times; read with the first one they cost one wait, and
//! a device takes hardly longer for them.

use crate::sync::atomic::{AtomicU32, Ordering};

/// A block is counted in so many parts.
const PARTS: u32 = 256;
/// Blocks of one seek that count at most: what goes on longer reads ahead in steps that double.
const BLOCKS_MAX: usize = 32;
/// The part of a seek's own count in the mean: one over this. A new kind of scan is known after four to six seeks.
const WEIGHT: i32 = 4;
/// The mean is rounded up from so much of a block on: a block more costs a device little, and a read more much.
const ROUNDED_UP_FROM: u32 = PARTS / 4;

/// The mean of what seeks went through that had to read, forward, with their first block. Seeks that found all in the
/// cache leave it alone, so that many threads do not write to it.
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

    /// A seek has gone through `blocks`. Counts of threads that do so at once may be lost. One long scan among short
    /// ones must not make those read much: a seek counts for hardly more than twice what was expected of it.
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
