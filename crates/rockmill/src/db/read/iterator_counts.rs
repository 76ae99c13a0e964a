//! What an iterator counts. As in RocksDB, tickers are added up here and go to the statistics when the iterator is
//! dropped, so that a step touches no shared memory.

use std::sync::Arc;

use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Statistics, Ticker};

/// A call that moved an iterator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    Seek,
    Next,
    Prev,
}

/// Counts of one iterator.
#[derive(Default)]
pub(crate) struct IteratorCounts {
    statistics: Option<Arc<Statistics>>,
    seeks: [u64; 2],
    nexts: [u64; 2],
    prevs: [u64; 2],
    bytes: u64,
    skipped: u64,
    reseeks: u64,
    /// Since the last call was counted: older versions and tombstones skipped, tombstones among them, entries skipped
    /// that are newer than what the iterator sees, operands merged.
    pub passed: u64,
    pub passed_deletes: u64,
    pub passed_recent: u64,
    pub merged: u64,
}

impl IteratorCounts {
    pub fn new(statistics: Option<&Arc<Statistics>>) -> Self {
        if let Some(s) = statistics {
            s.add(Ticker::NoIteratorCreated, 1);
        }
        Self { statistics: statistics.cloned(), ..Self::default() }
    }

    /// Where a seek is timed.
    pub fn statistics(&self) -> Option<&Statistics> {
        self.statistics.as_deref()
    }

    /// A seek to pass over many versions of one key.
    pub fn reseek(&mut self) {
        self.reseeks += 1;
    }

    /// True if statistics or a performance context count what the iterator does.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.statistics.is_some() || perf::counting()
    }

    /// A call is done; `found`: bytes of the key and value it came to.
    #[cold]
    pub fn moved(&mut self, by: Move, found: Option<usize>) {
        let calls = match by {
            Move::Seek => &mut self.seeks,
            Move::Next => &mut self.nexts,
            Move::Prev => &mut self.prevs,
        };
        calls[0] += 1;
        if let Some(bytes) = found {
            calls[1] += 1;
            self.bytes += bytes as u64;
            perf::count(PerfMetric::IterReadBytes, bytes as u64);
        }
        let take = std::mem::take::<u64>;
        let (passed, recent) = (take(&mut self.passed), take(&mut self.passed_recent));
        self.skipped += passed + recent;
        perf::count(PerfMetric::InternalKeySkippedCount, passed);
        perf::count(PerfMetric::InternalRecentSkippedCount, recent);
        perf::count(PerfMetric::InternalDeleteSkippedCount, take(&mut self.passed_deletes));
        perf::count(PerfMetric::InternalMergeCount, take(&mut self.merged));
    }
}

impl Drop for IteratorCounts {
    fn drop(&mut self) {
        let Some(s) = &self.statistics else { return };
        s.add_all([
            (Ticker::NoIteratorDeleted, 1),
            (Ticker::NumberDbSeek, self.seeks[0]),
            (Ticker::NumberDbSeekFound, self.seeks[1]),
            (Ticker::NumberDbNext, self.nexts[0]),
            (Ticker::NumberDbNextFound, self.nexts[1]),
            (Ticker::NumberDbPrev, self.prevs[0]),
            (Ticker::NumberDbPrevFound, self.prevs[1]),
            (Ticker::IterBytesRead, self.bytes),
            (Ticker::NumberIterSkip, self.skipped),
            (Ticker::NumberOfReseeksInIteration, self.reseeks),
        ]);
    }
}
