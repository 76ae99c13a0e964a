//! Counters of the work of a database since it was opened. They are always on: a write or a job changes only a few of
//! them, once each (RocksDB's `InternalStats`). Counters that cost more are in `statistics`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters at one moment (`Db::counters`).
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DbCounters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl DbCounters {
            /// Each counter with its name and meaning.
            pub(crate) fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),*), self.$name),)*]
            }

            /// The difference to the earlier counters `o`.
            pub(crate) fn since(&self, o: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(o.$name),)* }
            }
        }

        /// The counters, being counted. Relaxed: exact in sum, not ordered with anything else.
        #[derive(Debug, Default)]
        pub(crate) struct InternalStats {
            $(pub $name: AtomicU64,)*
        }

        impl InternalStats {
            /// Their present values.
            pub fn read(&self) -> DbCounters {
                DbCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Records of write batches.
    keys_written,
    /// Bytes of write batches.
    bytes_written,
    /// Writes whose own thread led the group.
    writes_by_self,
    /// Writes that another thread did as the leader of their group.
    writes_by_other,
    /// Writes that went to the WAL.
    writes_with_wal,
    /// Records written to WALs: groups of writes.
    write_groups,
    /// Bytes written to WALs.
    wal_bytes,
    /// Syncs of WALs.
    wal_syncs,
    /// Wall time of syncs that writers requested, in microseconds.
    wal_sync_micros,
    /// Microseconds that writers waited or were delayed.
    stall_micros,
    /// Flushes.
    flushes,
    /// Bytes of tables that flushes wrote.
    flush_bytes,
    /// Bytes of keys and values in memtables that they wrote.
    flush_input_bytes,
    /// Wall time of flushes, in microseconds.
    flush_micros,
    /// CPU time of flushes, in microseconds.
    flush_cpu_micros,
    /// Index tables that were merged with others before they were flushed.
    index_tables_merged,
    /// Entries of index tables before their merges.
    index_entries_merged,
    /// Entries that index merges left out, because no reader could see them any more.
    index_entries_left_out,
    /// Bytes, in logs, of the values that index merges left out.
    index_bytes_left_out,
    /// Wall time of index merges, in microseconds.
    index_merge_micros,
    /// Index merges that a flush made useless.
    index_merges_stopped,
    /// Index merges that failed. The column family gets no other until its next flush.
    index_merges_failed,
    /// How often the schedule changed by which index tables are merged and flushed.
    index_schedule_changes,
    /// How often column families were flushed since they kept logs whose contents were mostly in tables already.
    logs_emptied,
    /// Compactions, without those that only moved tables.
    compactions,
    /// Compactions that only moved tables.
    trivial_moves,
    /// Compactions that failed. Those that ended early as the database was closed are not among them.
    compactions_failed,
    /// Compactions whose output was removed, or that were stopped, because another one failed that had to commit first.
    compactions_dropped,
    /// Compactions that another machine did.
    compactions_elsewhere,
    /// Bytes of tables that they read.
    elsewhere_read_bytes,
    /// CPU time that other machines spent on them, in microseconds, as those machines report it.
    elsewhere_cpu_micros,
    /// How often another machine waited for an answer to its reads and writes for them, as it reports.
    elsewhere_round_trips,
    /// Bytes sent over the network for their reads and writes, as the other machines report them.
    elsewhere_wire_bytes,
    /// Compactions that one machine failed to do, and that were offered to another one.
    compactions_offered_again,
    /// Compactions that were sent to another machine, and were done here in the end.
    compactions_returned,
    /// Flushes that failed.
    flushes_failed,
    /// Bytes of tables that compactions read.
    compact_read_bytes,
    /// Bytes of tables that compactions wrote.
    compact_write_bytes,
    /// Wall time of compactions, in microseconds.
    compact_micros,
    /// CPU time of compactions, in microseconds.
    compact_cpu_micros,
    /// Tables that compactions dropped without reading them, because range tombstones delete everything in them.
    files_covered,
    /// Data blocks that compactions copied from their inputs unchanged.
    blocks_passed,
    /// Tables ingested.
    ingested_files,
    /// Bytes of them.
    ingested_bytes,
}

/// Adds to a counter.
#[inline]
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
