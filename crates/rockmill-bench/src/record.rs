//! What one thread of a benchmark did.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Longest latency told apart: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Counts a thread's operations and, when asked, times each of them.
///
/// Without `--histogram` no clock is read per operation, as in db_bench: at millions of operations a second the clock
/// would be part of the figure.
#[derive(Debug)]
pub struct Recorder {
    latencies: Option<Histogram<u64>>,
    last: Instant,
    /// Operations done.
    pub ops: u64,
    /// Bytes of keys and values that they carried.
    pub bytes: u64,
    /// Keys found, of reads.
    pub found: Option<u64>,
    /// From the start to the end of the benchmark.
    pub elapsed: Duration,
    /// The same of each thread, added up.
    pub thread_time: Duration,
}

impl Recorder {
    /// A recorder whose first operation starts now.
    pub fn new(timed: bool) -> Self {
        // Three digits: RocksDB's own buckets are coarser. Fixed bounds, so that it never grows while it measures.
        let latencies = if timed { Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).ok() } else { None };
        let (elapsed, thread_time) = (Duration::ZERO, Duration::ZERO);
        Self { latencies, last: Instant::now(), ops: 0, bytes: 0, found: None, elapsed, thread_time }
    }

    /// `ops` operations ended together.
    #[inline]
    pub fn finished(&mut self, ops: u64) {
        self.ops += ops;
        if let Some(h) = &mut self.latencies {
            let now = Instant::now();
            // Saturating: a value over the histogram's bound counts as the bound.
            h.saturating_record(now.duration_since(self.last).as_nanos() as u64);
            self.last = now;
        }
    }

    /// Adds another thread's record. The elapsed time becomes the longer one: the threads started together.
    pub fn merge(&mut self, other: &Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.found = match (self.found, other.found) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.elapsed = self.elapsed.max(other.elapsed);
        self.thread_time += other.thread_time;
        if let (Some(mine), Some(theirs)) = (&mut self.latencies, &other.latencies) {
            // Cannot fail: both have the same bounds.
            let _ = mine.add(theirs);
        }
    }

    /// Latencies in nanoseconds, if they were taken.
    pub fn latencies(&self) -> Option<&Histogram<u64>> {
        self.latencies.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_adds_counts_and_latencies() {
        let mut a = Recorder::new(true);
        a.finished(1);
        a.bytes = 10;
        a.elapsed = Duration::from_secs(1);
        let mut b = Recorder::new(true);
        std::thread::sleep(Duration::from_millis(3));
        b.finished(2);
        b.finished(2);
        b.found = Some(3);
        b.elapsed = Duration::from_secs(2);
        a.merge(&b);
        assert_eq!((a.ops, a.bytes, a.found, a.elapsed), (5, 10, Some(3), Duration::from_secs(2)));
        let h = a.latencies().expect("timed");
        assert_eq!(h.len(), 3);
        assert!(h.max() >= 3_000_000, "{}", h.max());
        assert!(a.latencies().is_some_and(|h| h.high() == LATENCY_NS_MAX));
        assert!(Recorder::new(false).latencies().is_none());
    }
}
