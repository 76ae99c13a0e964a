//! Names of the properties that [`Db::property_value`](crate::Db::property_value) knows (`rocksdb::properties`).

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = concat!("rocksdb.", $text);)*

        /// All names, except those of levels and Rockmill's own.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

/// Text: tables in a level. `None` for a level that the column family does not have.
pub fn num_files_at_level(level: usize) -> String {
    format!("rocksdb.num-files-at-level{level}")
}

/// Text: bytes of a level's keys and values divided by bytes of its tables; `-1` if the level is empty.
pub fn compression_ratio_at_level(level: usize) -> String {
    format!("rocksdb.compression-ratio-at-level{level}")
}

/// Text: [`AGGREGATED_TABLE_PROPERTIES`] of one level.
pub fn aggregated_table_properties_at_level(level: usize) -> String {
    format!("rocksdb.aggregated-table-properties-at-level{level}")
}

/// Text, Rockmill's own: the engine of compactions and flushes; if it is not the requested one, the reason follows
/// after a comma.
pub const MERGE_ENGINE: &str = "rockmill.merge-engine";

/// Number, Rockmill's own: bytes of memory for reads and writes in flight, of jobs and of batches of lookups, including
/// memory kept for the next ones.
pub const IO_MEMORY: &str = "rockmill.io-memory";

/// Number, Rockmill's own: bytes of memory of merge programs in the kernel (`merge_engine=kernel`), including memory
/// kept for the next ones. All databases of a process share this memory and show the same number; 0 if this one has not
/// used any.
pub const KERNEL_MEMORY: &str = "rockmill.kernel-memory";

/// Rockmill's own: bytes of dropped memtables, kept for new ones; of the database, not of a column family.
pub const KEPT_MEMTABLE_MEMORY: &str = "rockmill.kept-memtable-memory";

/// Rockmill's own: how often a compaction that had just written a megabyte paused for a flush that writers would soon
/// have waited for; of the database, not of a column family.
pub const COMPACTIONS_GAVE_WAY: &str = "rockmill.compactions-gave-way";

/// Rockmill's own: microseconds that flushes and compactions paused in favour of users' reads; of the database, not of
/// a column family.
pub const COMPACTIONS_WAITED_FOR_READS: &str = "rockmill.compactions-waited-for-reads-micros";

/// Rockmill's own: bytes per second that compactions can absorb, as estimated by write control; 0 until a tree has
/// changed. Of the database, not of a column family.
pub const SUSTAINED_WRITE_RATE: &str = "rockmill.sustained-write-rate";

/// Number, Rockmill's own: tables of the column family that consist of several files, some of which may be shared with
/// other tables.
pub const TABLES_WITH_PIECES: &str = "rockmill.tables-with-pieces";

/// Number, Rockmill's own: files that tables use in addition to their own; each counts once, even if several tables use
/// it.
pub const PIECE_FILES: &str = "rockmill.piece-files";

/// Number, Rockmill's own: bytes of the files of [`PIECE_FILES`].
pub const PIECE_FILES_SIZE: &str = "rockmill.piece-files-size";

/// Number, Rockmill's own: bytes of the files of [`PIECE_FILES`] that some table refers to. The rest is garbage, which
/// compactions remove over time.
pub const PIECE_FILES_LIVE_SIZE: &str = "rockmill.piece-files-live-size";

/// Number, Rockmill's own: bytes of memory of the key indexes of the column family's open TPH tables: functions,
/// signatures, locators, and positions of blocks. Divide it by [`TPH_KEYS`] for bytes per key.
pub const TPH_INDEX_MEMORY: &str = "rockmill.tph-index-memory";

/// Number, Rockmill's own: live user keys in the column family's open TPH tables; a key in several tables counts
/// several times.
pub const TPH_KEYS: &str = "rockmill.tph-keys";

/// Number, Rockmill's own: how many consecutive full index tables of a tier are merged into one at present
/// (`index_merge_trigger_num`, as adjusted by queue lengths); 0: none are merged. This one and the next eight are 0
/// without a `fast_capacity`.
pub const INDEX_MERGE_TRIGGER: &str = "rockmill.index-merge-trigger";

/// Number, Rockmill's own: memory of full index tables at which they are flushed at present (`data_flush_trigger_size`,
/// as adjusted by queue lengths).
pub const DATA_FLUSH_TRIGGER_SIZE: &str = "rockmill.data-flush-trigger-size";

/// Number, Rockmill's own: the factor by which levels may at present exceed the sizes in the options: 1, 2 or 4.
pub const LEVEL_CAPACITY_FACTOR: &str = "rockmill.level-capacity-factor";

/// Number, Rockmill's own: the largest number of consecutive full index tables of one tier.
pub const INDEX_MERGE_QUEUE: &str = "rockmill.index-merge-queue";

/// Number, Rockmill's own: memory of full index tables that wait for a flush.
pub const DATA_FLUSH_QUEUE_SIZE: &str = "rockmill.data-flush-queue-size";

/// Number, Rockmill's own: how often the triggers of index tables changed. `rocksdb.stats` has the reasons.
pub const INDEX_SCHEDULE_CHANGES: &str = "rockmill.index-schedule-changes";

/// Number, Rockmill's own: how many of these changes were made because CPU cores were short.
pub const INDEX_SCHEDULE_CHANGES_CORE: &str = "rockmill.index-schedule-changes-core";

/// Number, Rockmill's own: how many of these changes were made because the device was short.
pub const INDEX_SCHEDULE_CHANGES_DEVICE: &str = "rockmill.index-schedule-changes-device";

/// Number, Rockmill's own: how many of these changes were made because nothing was short for a minute.
pub const INDEX_SCHEDULE_CHANGES_IDLE: &str = "rockmill.index-schedule-changes-idle";

/// Number, Rockmill's own: bytes in the logs of a fast path that are in no table. Like the next one, of all column
/// families together, and 0 without a `fast_capacity`.
pub const LOGS_LIVE_BYTES: &str = "rockmill.logs-live-bytes";

/// Number, Rockmill's own: bytes in the logs of a fast path that are in tables already, and whose log has something
/// that is not, or comes after one that has.
pub const LOGS_DEAD_BYTES: &str = "rockmill.logs-dead-bytes";

/// Rockmill's own: the longest time that one write was delayed or stopped since the database was opened, in
/// microseconds.
pub const LONGEST_STALL_MICROS: &str = "rockmill.longest-stall-micros";

names! {
    /// Text: [`CFSTATS`] and [`DBSTATS`].
    STATS = "stats";
    /// Text: the tables of each level with their sizes, sequence numbers and keys.
    SSTABLES = "sstables";
    /// Text: the work of jobs per level since the database was opened.
    CFSTATS = "cfstats";
    /// Text: the same; Rockmill does not measure read latencies by level.
    CFSTATS_NO_FILE_HISTOGRAM = "cfstats-no-file-histogram";
    /// Text: what was written since the database was opened.
    DBSTATS = "dbstats";
    /// Text: files and megabytes of each level.
    LEVELSTATS = "levelstats";
    /// Immutable memtables that are not flushed yet.
    NUM_IMMUTABLE_MEM_TABLE = "num-immutable-mem-table";
    /// Immutable memtables that are flushed and still in the column family's list; always 0.
    NUM_IMMUTABLE_MEM_TABLE_FLUSHED = "num-immutable-mem-table-flushed";
    /// 1 when a flush is due.
    MEM_TABLE_FLUSH_PENDING = "mem-table-flush-pending";
    /// Flushes that run, of all column families.
    NUM_RUNNING_FLUSHES = "num-running-flushes";
    /// 1 when a compaction is due.
    COMPACTION_PENDING = "compaction-pending";
    /// Compactions that run, of all column families.
    NUM_RUNNING_COMPACTIONS = "num-running-compactions";
    /// Errors of background work so far.
    BACKGROUND_ERRORS = "background-errors";
    /// Bytes of the active memtable.
    CUR_SIZE_ACTIVE_MEM_TABLE = "cur-size-active-mem-table";
    /// Bytes of the memtables that are not flushed.
    CUR_SIZE_ALL_MEM_TABLES = "cur-size-all-mem-tables";
    /// Bytes of all memtables, those that are flushed and kept by readers included.
    SIZE_ALL_MEM_TABLES = "size-all-mem-tables";
    /// Entries in the active memtable.
    NUM_ENTRIES_ACTIVE_MEM_TABLE = "num-entries-active-mem-table";
    /// Entries in immutable memtables that are not flushed.
    NUM_ENTRIES_IMM_MEM_TABLES = "num-entries-imm-mem-tables";
    /// Deletions in the active memtable.
    NUM_DELETES_ACTIVE_MEM_TABLE = "num-deletes-active-mem-table";
    /// Deletions in immutable memtables that are not flushed.
    NUM_DELETES_IMM_MEM_TABLES = "num-deletes-imm-mem-tables";
    /// About how many keys there are.
    ESTIMATE_NUM_KEYS = "estimate-num-keys";
    /// Bytes of indexes, filters and tombstones of open tables, outside of the block cache.
    ESTIMATE_TABLE_READERS_MEM = "estimate-table-readers-mem";
    /// 1 unless the deletion of files is disabled.
    IS_FILE_DELETIONS_ENABLED = "is-file-deletions-enabled";
    /// Snapshots that are held.
    NUM_SNAPSHOTS = "num-snapshots";
    /// Unix time of the oldest of them; 0 without one.
    OLDEST_SNAPSHOT_TIME = "oldest-snapshot-time";
    /// Sequence number of the oldest of them; 0 without one.
    OLDEST_SNAPSHOT_SEQUENCE = "oldest-snapshot-sequence";
    /// Versions of the tree that are current or in use by a reader.
    NUM_LIVE_VERSIONS = "num-live-versions";
    /// How often the state that readers see was replaced, by a new memtable or a new version.
    CURRENT_SUPER_VERSION_NUMBER = "current-super-version-number";
    /// Bytes of the tables that hold the newest data of their key range.
    ESTIMATE_LIVE_DATA_SIZE = "estimate-live-data-size";
    /// Number of the oldest WAL that is needed.
    MIN_LOG_NUMBER_TO_KEEP = "min-log-number-to-keep";
    /// Tables with this number or a larger one are kept, even if they are not in use.
    MIN_OBSOLETE_SST_NUMBER_TO_KEEP = "min-obsolete-sst-number-to-keep";
    /// Bytes of the tables of all live versions.
    TOTAL_SST_FILES_SIZE = "total-sst-files-size";
    /// Bytes of the tables of the current version.
    LIVE_SST_FILES_SIZE = "live-sst-files-size";
    /// Bytes of obsolete tables that wait to be deleted, of all column families.
    OBSOLETE_SST_FILES_SIZE = "obsolete-sst-files-size";
    /// Always 0: there are no blob files.
    NUM_BLOB_FILES = "num-blob-files";
    /// Always 0.
    TOTAL_BLOB_FILE_SIZE = "total-blob-file-size";
    /// Always 0.
    LIVE_BLOB_FILE_SIZE = "live-blob-file-size";
    /// Always 0.
    LIVE_BLOB_FILE_GARBAGE_SIZE = "live-blob-file-garbage-size";
    /// The level that L0 is compacted into; with universal and FIFO compaction RocksDB's -1, which as a `u64` is
    /// 18446744073709551615.
    BASE_LEVEL = "base-level";
    /// Estimated bytes that compactions still have to rewrite until the tree has its intended shape.
    ESTIMATE_PENDING_COMPACTION_BYTES = "estimate-pending-compaction-bytes";
    /// Text: properties of the tables, added up.
    AGGREGATED_TABLE_PROPERTIES = "aggregated-table-properties";
    /// Bytes per second to which writers are limited now; 0 if they are not.
    ACTUAL_DELAYED_WRITE_RATE = "actual-delayed-write-rate";
    /// 1 when writers wait.
    IS_WRITE_STOPPED = "is-write-stopped";
    /// Capacity of the block cache in bytes. Like the two below, `None` without a block cache.
    BLOCK_CACHE_CAPACITY = "block-cache-capacity";
    /// Bytes that it holds.
    BLOCK_CACHE_USAGE = "block-cache-usage";
    /// The part of them that readers are using.
    BLOCK_CACHE_PINNED_USAGE = "block-cache-pinned-usage";
    /// Text: all statistics; `None` if they are not enabled.
    OPTIONS_STATISTICS = "options-statistics";
}
