//! What the calling thread's operations cost, counted for that thread alone (RocksDB's perf context).
//!
//! Off by default ([`set_perf_stats`]); each counting place then costs one read of a thread-local byte. Times come from
//! the system's clock, even if the database has another one.
//!
//! ```
//! use rockmill::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
//! # let scratch = tempfile::tempdir().expect("a temporary directory");
//! # let dir = scratch.path().join("db");
//! # let db = rockmill::Db::open_default(&dir)?;
//! db.put("k", "v")?;
//! set_perf_stats(PerfStatsLevel::EnableTime);
//! let mut context = PerfContext::default();
//! context.reset();
//! db.get("k")?;
//! assert_eq!(context.metric(PerfMetric::GetFromMemtableCount), 1);
//! set_perf_stats(PerfStatsLevel::Disable);
//! println!("{}", context.report(true));
//! # drop(db);
//! # rockmill::Db::destroy(&rockmill::Options::default(), &dir)?;
//! # Ok::<(), rockmill::Error>(())
//! ```

use std::cell::Cell;
use std::fmt::Write as _;
use std::marker::PhantomData;
use std::sync::LazyLock;

use rockmill_io::{Clock, SystemClock};

/// How much is counted (`rocksdb::perf::PerfStatsLevel`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum PerfStatsLevel {
    /// Nothing, as [`Self::Disable`].
    Uninitialized = 0,
    /// Nothing.
    Disable = 1,
    /// Counts.
    EnableCount = 2,
    /// Counts and times, except the time spent waiting for locks.
    EnableTimeExceptForMutex = 3,
    /// The same: CPU time is not measured here.
    EnableTimeAndCPUTimeExceptForMutex = 4,
    /// Counts and times.
    EnableTime = 5,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident($name:literal),)*) => {
        /// The metrics (`rocksdb::perf::PerfMetric`): those of RocksDB's perf context that Rockmill counts. Times are
        /// in nanoseconds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum PerfMetric {
            $($(#[$doc])* $variant,)*
        }

        impl PerfMetric {
            /// All of them, in RocksDB's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// RocksDB's name in text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

metrics! {
    /// Blocks found in the block cache.
    BlockCacheHitCount("block_cache_hit_count"),
    /// Blocks read from files.
    BlockReadCount("block_read_count"),
    /// Bytes of them.
    BlockReadByte("block_read_byte"),
    /// Time of these reads.
    BlockReadTime("block_read_time"),
    /// Time of checking checksums.
    BlockChecksumTime("block_checksum_time"),
    /// Time of decompression.
    BlockDecompressTime("block_decompress_time"),
    /// Bytes of values that lookups gave.
    GetReadBytes("get_read_bytes"),
    /// Bytes of values that `multi_get` gave.
    MultigetReadBytes("multiget_read_bytes"),
    /// Bytes of keys and values that iterators returned.
    IterReadBytes("iter_read_bytes"),
    /// Entries that iterators skipped: older versions of a key and tombstones.
    InternalKeySkippedCount("internal_key_skipped_count"),
    /// Of them, tombstones.
    InternalDeleteSkippedCount("internal_delete_skipped_count"),
    /// Entries skipped because they are newer than the iterator's snapshot.
    InternalRecentSkippedCount("internal_recent_skipped_count"),
    /// Merge operands that iterators merged.
    InternalMergeCount("internal_merge_count"),
    /// Time in memtables of lookups.
    GetFromMemtableTime("get_from_memtable_time"),
    /// Memtables that lookups asked.
    GetFromMemtableCount("get_from_memtable_count"),
    /// Time in tables of lookups.
    GetFromOutputFilesTime("get_from_output_files_time"),
    /// Time of seeks of iterators in memtables.
    SeekOnMemtableTime("seek_on_memtable_time"),
    /// Seeks of iterators in memtables.
    SeekOnMemtableCount("seek_on_memtable_count"),
    /// Steps of iterators in memtables to the next entry.
    NextOnMemtableCount("next_on_memtable_count"),
    /// Steps of iterators in memtables to the previous entry.
    PrevOnMemtableCount("prev_on_memtable_count"),
    /// Seeks of iterators in one memtable, table of L0 or level.
    SeekChildSeekCount("seek_child_seek_count"),
    /// Time of seeks of iterators in all of them.
    SeekInternalSeekTime("seek_internal_seek_time"),
    /// Time that iterators took to find the next visible key.
    FindNextUserEntryTime("find_next_user_entry_time"),
    /// Time of writes to the WAL.
    WriteWalTime("write_wal_time"),
    /// Time of insertions into memtables.
    WriteMemtableTime("write_memtable_time"),
    /// Time that writes waited or were delayed.
    WriteDelayTime("write_delay_time"),
    /// Time in merge operators.
    MergeOperatorTimeNanos("merge_operator_time_nanos"),
    /// Time of finding and opening tables.
    FindTableNanos("find_table_nanos"),
    /// Memtables' filters that let a key or prefix through.
    BloomMemtableHitCount("bloom_memtable_hit_count"),
    /// Memtables' filters that excluded a key or prefix.
    BloomMemtableMissCount("bloom_memtable_miss_count"),
    /// Filters that let a key through.
    BloomSstHitCount("bloom_sst_hit_count"),
    /// Filters that held a key off.
    BloomSstMissCount("bloom_sst_miss_count"),
}

const METRICS: usize = PerfMetric::ALL.len();

struct Perf {
    level: Cell<u8>,
    counters: [Cell<u64>; METRICS],
}

thread_local! {
    static PERF: Perf = const {
        Perf { level: Cell::new(PerfStatsLevel::Disable as u8), counters: [const { Cell::new(0) }; METRICS] }
    };
}

/// Sets what the calling thread counts from now on.
pub fn set_perf_stats(level: PerfStatsLevel) {
    PERF.with(|p| p.level.set(level as u8));
}

/// True when the calling thread counts.
#[inline]
pub(crate) fn counting() -> bool {
    PERF.with(|p| p.level.get() >= PerfStatsLevel::EnableCount as u8)
}

/// Adds to a counter of the calling thread, if it counts.
#[inline]
pub(crate) fn count(metric: PerfMetric, n: u64) {
    PERF.with(|p| {
        if p.level.get() >= PerfStatsLevel::EnableCount as u8 {
            let counter = &p.counters[metric as usize];
            counter.set(counter.get().wrapping_add(n));
        }
    });
}

/// Nanoseconds of the system's monotonic clock.
pub(crate) fn now_nanos() -> u64 {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::default);
    CLOCK.monotonic_nanos()
}

/// Measures the time until it is dropped and adds it to a counter, if the calling thread measures times.
#[must_use]
pub(crate) struct Timer {
    began: Option<u64>,
    metric: PerfMetric,
}

/// Begins to measure.
#[inline]
pub(crate) fn time(metric: PerfMetric) -> Timer {
    let measures = PERF.with(|p| p.level.get() >= PerfStatsLevel::EnableTimeExceptForMutex as u8);
    Timer { began: measures.then(now_nanos), metric }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        if let Some(began) = self.began {
            count(self.metric, now_nanos().saturating_sub(began));
        }
    }
}

/// The counters of the calling thread (`rocksdb::perf::PerfContext`). All contexts of a thread show the same counters.
#[derive(Debug, Default)]
pub struct PerfContext {
    /// Not `Send`: it belongs to one thread.
    _thread: PhantomData<*const ()>,
}

impl PerfContext {
    /// Sets the counters to 0.
    pub fn reset(&mut self) {
        PERF.with(|p| p.counters.iter().for_each(|c| c.set(0)));
    }

    /// A counter.
    pub fn metric(&self, metric: PerfMetric) -> u64 {
        PERF.with(|p| p.counters[metric as usize].get())
    }

    /// The counters in RocksDB's text form, `name = value, ...`; with `exclude_zero_counters`, only those that are not
    /// 0.
    pub fn report(&self, exclude_zero_counters: bool) -> String {
        let mut text = String::new();
        for &metric in PerfMetric::ALL {
            let value = self.metric(metric);
            if value > 0 || !exclude_zero_counters {
                let comma = if text.is_empty() { "" } else { ", " };
                let _ = write!(text, "{comma}{} = {value}", metric.name());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_what_its_level_says() {
        let mut context = PerfContext::default();
        count(PerfMetric::BlockReadCount, 1);
        assert_eq!(context.report(true), "", "off by default");
        set_perf_stats(PerfStatsLevel::EnableCount);
        count(PerfMetric::BlockReadCount, 2);
        drop(time(PerfMetric::BlockReadTime));
        assert_eq!(context.report(true), "block_read_count = 2");
        set_perf_stats(PerfStatsLevel::EnableTime);
        {
            let _timer = time(PerfMetric::BlockReadTime);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(context.metric(PerfMetric::BlockReadTime) >= 2_000_000);
        std::thread::spawn(|| assert_eq!(PerfContext::default().report(true), "")).join().unwrap();
        context.reset();
        assert_eq!(context.report(true), "");
        assert!(context.report(false).starts_with("block_cache_hit_count = 0, block_read_count = 0, "));
        set_perf_stats(PerfStatsLevel::Disable);
    }
}
