//! What one thread of a benchmark did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::store::OpKind;

/// Longest latency told apart: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
const KINDS: usize = OpKind::ALL.len();

/// What one step of a workload did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// What kind of operation.
    pub kind: OpKind,
    /// Number of operations; each entry of a batch counts.
    pub ops: u64,
    /// Bytes of keys and values that the user wrote.
    pub wrote: u64,
    /// Bytes of keys and values that the user read.
    pub read: u64,
}

impl Done {
    /// One read.
    pub fn read(bytes: u64) -> Self {
        Self { kind: OpKind::Read, ops: 1, wrote: 0, read: bytes }
    }

    /// `ops` writes in one batch.
    pub fn write(ops: u64, bytes: u64) -> Self {
        Self { kind: OpKind::Write, ops, wrote: bytes, read: 0 }
    }
}

/// Counts a thread's operations and, on request, times each of them.
///
/// Without `--histogram` no clock is read per operation, as in db_bench: at millions of operations per second, reading
/// the clock would affect the result.
#[derive(Debug)]
pub struct Recorder {
    timed: bool,
    latencies: [Option<Box<Histogram<u64>>>; KINDS],
    last: Instant,
    /// Operations done.
    pub ops: u64,
    /// The same by kind, in the order of [`OpKind::ALL`].
    pub kind_ops: [u64; KINDS],
    /// Bytes of keys and values written.
    pub wrote: u64,
    /// Bytes of keys and values got.
    pub read: u64,
    /// Keys found, of reads.
    pub found: Option<u64>,
    /// Bytes of values written, where they vary (mixgraph).
    pub value_bytes: u64,
    /// Entries visited behind seeks.
    pub scanned: u64,
    /// From the start to the end of the benchmark.
    pub elapsed: Duration,
    /// The same of each thread, added up.
    pub thread_time: Duration,
}

impl Recorder {
    /// A recorder whose first operation starts now.
    pub fn new(timed: bool) -> Self {
        Self {
            timed,
            latencies: [const { None }; KINDS],
            last: Instant::now(),
            ops: 0,
            kind_ops: [0; KINDS],
            wrote: 0,
            read: 0,
            found: None,
            value_bytes: 0,
            scanned: 0,
            elapsed: Duration::ZERO,
            thread_time: Duration::ZERO,
        }
    }

    /// Allocates room for the latencies of `kinds`, so that no allocation happens during the measurement.
    pub fn expect(&mut self, kinds: &[OpKind]) {
        for kind in kinds {
            self.histogram(*kind);
        }
    }

    fn histogram(&mut self, kind: OpKind) -> Option<&mut Histogram<u64>> {
        if !self.timed {
            return None;
        }
        let place = &mut self.latencies[kind as usize];
        if place.is_none() {
            // Three digits: RocksDB's own buckets are coarser. Fixed bounds, so that it never grows during the
            // measurement.
            *place = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).ok().map(Box::new);
        }
        place.as_deref_mut()
    }

    /// True if operations are timed, so that [`Self::last`] is up to date.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// When the last operation ended.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// The next operation starts at `at`: earlier time, for example a wait, is not part of it.
    pub fn starts(&mut self, at: Instant) {
        self.last = at;
    }

    /// Operations ended together.
    #[inline]
    pub fn finished(&mut self, done: Done) {
        self.ops += done.ops;
        self.kind_ops[done.kind as usize] += done.ops;
        self.wrote += done.wrote;
        self.read += done.read;
        if self.timed {
            let now = Instant::now();
            let ns = now.duration_since(self.last).as_nanos() as u64;
            self.last = now;
            if let Some(h) = self.histogram(done.kind) {
                // Saturating: a value over the histogram's bound counts as the bound.
                h.saturating_record(ns);
            }
        }
    }

    /// Adds another thread's record. The elapsed time becomes the longer one: the threads started together.
    pub fn merge(&mut self, other: &Self) {
        self.ops += other.ops;
        for (mine, theirs) in self.kind_ops.iter_mut().zip(&other.kind_ops) {
            *mine += theirs;
        }
        self.wrote += other.wrote;
        self.read += other.read;
        self.value_bytes += other.value_bytes;
        self.scanned += other.scanned;
        self.found = match (self.found, other.found) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.elapsed = self.elapsed.max(other.elapsed);
        self.thread_time += other.thread_time;
        for kind in OpKind::ALL {
            let Some(theirs) = &other.latencies[kind as usize] else { continue };
            if let Some(mine) = self.histogram(kind) {
                // Cannot fail: both have the same bounds.
                let _ = mine.add(&**theirs);
            }
        }
    }

    /// Latencies in nanoseconds by kind, where there are any.
    pub fn latencies(&self) -> impl Iterator<Item = (OpKind, &Histogram<u64>)> {
        OpKind::ALL.into_iter().filter_map(|kind| {
            let h = self.latencies[kind as usize].as_deref()?;
            (!h.is_empty()).then_some((kind, h))
        })
    }

    /// Operations of one kind.
    pub fn of_kind(&self, kind: OpKind) -> u64 {
        self.kind_ops[kind as usize]
    }

    /// Bytes of keys and values, written and read.
    pub fn bytes(&self) -> u64 {
        self.wrote + self.read
    }
}

/// A thread's operations so far, for the sampling thread. On separate cache lines, because every operation writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// The thread's operations; only that thread sets them.
    #[inline]
    pub fn set(&self, ops: u64) {
        self.0.store(ops, Ordering::Relaxed);
    }

    /// What the thread set last.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_adds_counts_and_latencies_by_kind() {
        let mut a = Recorder::new(true);
        a.finished(Done::read(10));
        a.elapsed = Duration::from_secs(1);
        let mut b = Recorder::new(true);
        std::thread::sleep(Duration::from_millis(3));
        b.finished(Done::write(2, 7));
        b.finished(Done::write(2, 7));
        b.finished(Done::read(1));
        b.found = Some(3);
        b.elapsed = Duration::from_secs(2);
        a.merge(&b);
        assert_eq!((a.ops, a.wrote, a.read, a.found, a.elapsed), (6, 14, 11, Some(3), Duration::from_secs(2)));
        assert_eq!((a.of_kind(OpKind::Read), a.of_kind(OpKind::Write)), (2, 4));
        let all: Vec<_> = a.latencies().collect();
        assert_eq!(all.iter().map(|(k, h)| (*k, h.len())).collect::<Vec<_>>(), [(OpKind::Read, 2), (OpKind::Write, 2)]);
        assert!(all[1].1.max() >= 3_000_000, "{}", all[1].1.max());
        assert!(all[1].1.high() == LATENCY_NS_MAX);
        let mut untimed = Recorder::new(false);
        untimed.finished(Done::read(1));
        assert_eq!(untimed.latencies().count(), 0);
    }

    #[test]
    fn a_wait_before_an_operation_is_not_its_latency() {
        let mut r = Recorder::new(true);
        std::thread::sleep(Duration::from_millis(20));
        r.starts(Instant::now());
        r.finished(Done::read(1));
        assert!(r.latencies().all(|(_, h)| h.max() < 15_000_000));
    }
}
