//! Statistics: counters (tickers) and histograms by RocksDB's names, in RocksDB's text form.
//!
//! They are off unless `Options::enable_statistics` was called; each counting place then costs one branch. If they are
//! on, threads are spread over shards, so that threads on different cores write to different cache lines; readers sum
//! up the shards. Sums are exact, but counters are not ordered with other memory accesses.

mod histogram;
mod merge;
mod names;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use rockmill_io::Clock;

pub use histogram::HistogramData;
pub(crate) use merge::CountedOperator;
pub use names::{Histogram, NameParseError, Ticker};

use histogram::{Cells, Summed};

/// How much is collected (`rocksdb::statistics::StatsLevel`); each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum StatsLevel {
    /// Nothing.
    DisableAll = 0,
    /// Tickers.
    ExceptHistogramOrTimers = 1,
    /// Tickers, and histograms of what is not time.
    ExceptTimers = 2,
    /// All but the time spent on compression and inside locks: the default.
    ExceptDetailedTimers = 3,
    /// All but the time spent waiting for locks.
    ExceptTimeForMutex = 4,
    /// Everything. At present it measures nothing more than the level before.
    All = 5,
}

impl StatsLevel {
    fn from_u8(v: u8) -> Self {
        match v {
            0 => Self::DisableAll,
            1 => Self::ExceptHistogramOrTimers,
            2 => Self::ExceptTimers,
            3 => Self::ExceptDetailedTimers,
            4 => Self::ExceptTimeForMutex,
            _ => Self::All,
        }
    }
}

const TICKERS: usize = Ticker::ALL.len();
const HISTOGRAMS: usize = Histogram::ALL.len();
/// Most shards; a shard takes about 50 KiB.
const SHARDS_MAX: usize = 64;

/// What some of the threads counted.
#[repr(align(128))]
struct Shard {
    tickers: [AtomicU64; TICKERS],
    histograms: [Cells; HISTOGRAMS],
}

impl Shard {
    fn new() -> Self {
        Self { tickers: [const { AtomicU64::new(0) }; TICKERS], histograms: std::array::from_fn(|_| Cells::default()) }
    }
}

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A small number for the calling thread, which selects its shard.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    THREAD.with(|t| {
        if t.get() == usize::MAX {
            t.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        t.get()
    })
}

/// Counters and histograms, which several databases may share (RocksDB's `Statistics`).
pub struct Statistics {
    level: AtomicU8,
    /// A power of two of them.
    shards: Box<[Shard]>,
}

impl Default for Statistics {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shards = cores.next_power_of_two().min(SHARDS_MAX);
        Self {
            level: AtomicU8::new(StatsLevel::ExceptDetailedTimers as u8),
            shards: (0..shards).map(|_| Shard::new()).collect(),
        }
    }
}

impl Statistics {
    #[inline]
    fn shard(&self) -> &Shard {
        &self.shards[thread_number() & (self.shards.len() - 1)]
    }

    /// How much is collected.
    #[inline]
    pub fn level(&self) -> StatsLevel {
        StatsLevel::from_u8(self.level.load(Ordering::Relaxed))
    }

    /// Sets how much is collected from now on.
    pub fn set_level(&self, level: StatsLevel) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    #[inline]
    fn collects(&self, level: StatsLevel) -> bool {
        self.level.load(Ordering::Relaxed) >= level as u8
    }

    /// Adds to a counter (RocksDB's `recordTick`).
    #[inline]
    pub fn add(&self, ticker: Ticker, n: u64) {
        if self.collects(StatsLevel::ExceptHistogramOrTimers) {
            self.shard().tickers[ticker as usize].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Adds to several counters.
    #[inline]
    pub fn add_all<const N: usize>(&self, counts: [(Ticker, u64); N]) {
        if self.collects(StatsLevel::ExceptHistogramOrTimers) {
            let shard = self.shard();
            for (ticker, n) in counts {
                if n > 0 {
                    shard.tickers[ticker as usize].fetch_add(n, Ordering::Relaxed);
                }
            }
        }
    }

    /// Adds a value that is not a time to a histogram (RocksDB's `recordInHistogram`).
    #[inline]
    pub fn record(&self, histogram: Histogram, value: u64) {
        if self.collects(StatsLevel::ExceptTimers) {
            self.shard().histograms[histogram as usize].record(value);
        }
    }

    /// Adds a time to a histogram, in the unit of its name (RocksDB's `reportTimeToHistogram`).
    #[inline]
    pub fn record_time(&self, histogram: Histogram, value: u64) {
        if self.collects(StatsLevel::ExceptDetailedTimers) {
            self.shard().histograms[histogram as usize].record(value);
        }
    }

    /// A counter's value. Totals over kinds of blocks are computed here, so that a cache hit is counted only once.
    pub fn ticker_count(&self, ticker: Ticker) -> u64 {
        let kinds = match ticker {
            Ticker::BlockCacheMiss => {
                [Ticker::BlockCacheIndexMiss, Ticker::BlockCacheFilterMiss, Ticker::BlockCacheDataMiss]
            }
            Ticker::BlockCacheHit => {
                [Ticker::BlockCacheIndexHit, Ticker::BlockCacheFilterHit, Ticker::BlockCacheDataHit]
            }
            Ticker::BlockCacheAdd => {
                [Ticker::BlockCacheIndexAdd, Ticker::BlockCacheFilterAdd, Ticker::BlockCacheDataAdd]
            }
            Ticker::BlockCacheBytesWrite => [
                Ticker::BlockCacheIndexBytesInsert,
                Ticker::BlockCacheFilterBytesInsert,
                Ticker::BlockCacheDataBytesInsert,
            ],
            other => return self.sum(other),
        };
        kinds.into_iter().map(|t| self.sum(t)).sum()
    }

    fn sum(&self, ticker: Ticker) -> u64 {
        self.shards.iter().map(|s| s.tickers[ticker as usize].load(Ordering::Relaxed)).sum()
    }

    /// A histogram's values so far.
    pub fn histogram_data(&self, histogram: Histogram) -> HistogramData {
        Summed::of(self.shards.iter().map(|s| &s.histograms[histogram as usize])).data()
    }

    /// A histogram's buckets up to the largest value, as inclusive upper bounds with cumulative counts; and the sum of
    /// the values.
    pub(crate) fn histogram_buckets(&self, histogram: Histogram) -> (Vec<(u64, u64)>, u64) {
        Summed::of(self.shards.iter().map(|s| &s.histograms[histogram as usize])).up_to()
    }

    /// Sets everything to 0.
    pub fn reset(&self) {
        for shard in &self.shards {
            shard.tickers.iter().for_each(|t| t.store(0, Ordering::Relaxed));
            shard.histograms.iter().for_each(Cells::clear);
        }
    }
}

/// RocksDB's text: a line for each ticker, then one for each histogram.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for t in Ticker::iter() {
            writeln!(f, "{} COUNT : {}", t.name(), self.ticker_count(*t))?;
        }
        for h in Histogram::iter() {
            let d = self.histogram_data(*h);
            writeln!(
                f,
                "{} P50 : {:.6} P95 : {:.6} P99 : {:.6} P100 : {:.6} COUNT : {} SUM : {}",
                h.name(),
                d.median(),
                d.p95(),
                d.p99(),
                d.max(),
                d.count(),
                d.sum()
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statistics").field("level", &self.level()).finish_non_exhaustive()
    }
}

/// The start of a timed operation; `None` if times are not measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started(Option<u64>);

/// Counting where statistics may be off.
pub(crate) trait MaybeStatistics {
    fn statistics(&self) -> Option<&Statistics>;

    /// Adds to a counter.
    #[inline]
    fn add(&self, ticker: Ticker, n: u64) {
        if let Some(s) = self.statistics() {
            s.add(ticker, n);
        }
    }

    /// Adds a value that is not a time to a histogram.
    #[inline]
    fn record(&self, histogram: Histogram, value: u64) {
        if let Some(s) = self.statistics() {
            s.record(histogram, value);
        }
    }

    /// Begins to time an operation, if times are measured.
    #[inline]
    fn start(&self, clock: &dyn Clock) -> Started {
        match self.statistics() {
            Some(s) if s.collects(StatsLevel::ExceptDetailedTimers) => Started(Some(clock.monotonic_nanos())),
            _ => Started(None),
        }
    }

    /// The same with the system's clock, where no other clock is available.
    #[inline]
    fn start_now(&self) -> Started {
        match self.statistics() {
            Some(s) if s.collects(StatsLevel::ExceptDetailedTimers) => Started(Some(crate::perf_context::now_nanos())),
            _ => Started(None),
        }
    }

    /// The same for what RocksDB calls detailed timers: times measured so often that measuring them is costly.
    #[inline]
    fn start_detailed(&self) -> Started {
        match self.statistics() {
            Some(s) if s.collects(StatsLevel::ExceptTimeForMutex) => Started(Some(crate::perf_context::now_nanos())),
            _ => Started(None),
        }
    }

    /// Adds the microseconds since [`Self::start_now`] to a histogram.
    #[inline]
    fn stop_now(&self, histogram: Histogram, started: Started) {
        if let (Some(s), Some(before)) = (self.statistics(), started.0) {
            s.record_time(histogram, crate::perf_context::now_nanos().saturating_sub(before) / 1000);
        }
    }

    /// Adds the microseconds since `started` to a histogram.
    #[inline]
    fn stop(&self, histogram: Histogram, clock: &dyn Clock, started: Started) {
        if let (Some(s), Some(before)) = (self.statistics(), started.0) {
            s.record_time(histogram, clock.monotonic_nanos().saturating_sub(before) / 1000);
        }
    }

    /// Adds the nanoseconds since [`Self::start_detailed`] to a histogram.
    #[inline]
    fn stop_nanos(&self, histogram: Histogram, started: Started) {
        if let (Some(s), Some(before)) = (self.statistics(), started.0) {
            s.record_time(histogram, crate::perf_context::now_nanos().saturating_sub(before));
        }
    }
}

impl MaybeStatistics for Option<Arc<Statistics>> {
    #[inline]
    fn statistics(&self) -> Option<&Statistics> {
        self.as_deref()
    }
}

impl MaybeStatistics for Option<&Statistics> {
    #[inline]
    fn statistics(&self) -> Option<&Statistics> {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_summed_and_levels_hold_back() {
        let s = Statistics::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for i in 0..1000 {
                        s.add(Ticker::BlockCacheDataHit, 2);
                        s.record(Histogram::BytesPerRead, i);
                        s.record_time(Histogram::DbGet, i);
                    }
                });
            }
        });
        assert_eq!(s.ticker_count(Ticker::BlockCacheDataHit), 16_000);
        assert_eq!(s.ticker_count(Ticker::BlockCacheHit), 16_000, "the sum of the kinds");
        assert_eq!(s.histogram_data(Histogram::BytesPerRead).count(), 8000);
        assert_eq!(s.histogram_data(Histogram::DbGet).sum(), 8 * 499_500);
        s.reset();
        for (level, expected) in [
            (StatsLevel::DisableAll, (0, 0, 0)),
            (StatsLevel::ExceptHistogramOrTimers, (1, 0, 0)),
            (StatsLevel::ExceptTimers, (1, 1, 0)),
            (StatsLevel::ExceptDetailedTimers, (1, 1, 1)),
            (StatsLevel::All, (1, 1, 1)),
        ] {
            s.set_level(level);
            s.add(Ticker::BytesRead, 1);
            s.record(Histogram::BytesPerRead, 1);
            s.record_time(Histogram::DbGet, 1);
            let count = |h| s.histogram_data(h).count();
            let found = (s.ticker_count(Ticker::BytesRead), count(Histogram::BytesPerRead), count(Histogram::DbGet));
            assert_eq!(found, expected, "{level:?}");
            assert_eq!(s.level(), level);
            s.reset();
        }
    }

    #[test]
    fn the_text_is_rocksdbs() {
        let s = Statistics::default();
        s.add(Ticker::BlockCacheDataMiss, 3);
        s.record(Histogram::DbGet, 7);
        let text = s.to_string();
        assert!(text.starts_with("rocksdb.block.cache.miss COUNT : 3\nrocksdb.block.cache.hit COUNT : 0\n"), "{text}");
        let line =
            "rocksdb.db.get.micros P50 : 7.000000 P95 : 7.000000 P99 : 7.000000 P100 : 7.000000 COUNT : 1 SUM : 7";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.lines().count(), TICKERS + HISTOGRAMS);
    }

    #[test]
    fn names_are_read_back() {
        for t in Ticker::iter() {
            assert_eq!(t.name().parse(), Ok(*t));
        }
        for h in Histogram::iter() {
            assert_eq!(h.to_string().parse(), Ok(*h));
        }
        assert_eq!("rocksdb.no.such".parse::<Ticker>(), Err(NameParseError));
    }
}
