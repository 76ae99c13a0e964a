//! Names of the properties that [`Db::property_value`](crate::Db::property_value) knows (`rocksdb::properties`).

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = concat!("rocksdb.", $text);)*

        /// All of them; those of a level and those of Rockmill alone are not among them.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

/// Text: tables in a level. `None` for a level that the column family has not.
pub fn num_files_at_level(level: usize) -> String {
    format!("rocksdb.num-files-at-level{level}")
}

/// Text: bytes of keys and values in a level over bytes of its tables; `-1` where the level is empty.
pub fn compression_ratio_at_level(level: usize) -> String {
    format!("rocksdb.compression-ratio-at-level{level}")
}

/// Text: [`AGGREGATED_TABLE_PROPERTIES`] of one level.
pub fn aggregated_table_properties_at_level(level: usize) -> String {
    format!("rocksdb.aggregated-table-properties-at-level{level}")
}

/// Text, Rockmill's own: the engine that compactions and flushes have, and behind a comma why it is not the one that
/// was asked for.
pub const MERGE_ENGINE: &str = "rockmill.merge-engine";

/// Number, Rockmill's own: bytes set up for reads and writes in flight of jobs and of batches of lookups, those kept
/// for the next ones included.
pub const IO_MEMORY: &str = "rockmill.io-memory";

/// Number, Rockmill's own: bytes that merge programs in the kernel work on (`merge_engine=kernel`), those kept for the
/// next ones included. All databases of a process share them and say the same; 0 where this one has not used any.
pub const KERNEL_MEMORY: &str = "rockmill.kernel-memory";

/// Rockmill's own: bytes of memtables that are gone, kept for those to come; of the database, not of a column family.
pub const KEPT_MEMTABLE_MEMORY: &str = "rockmill.kept-memtable-memory";

/// Rockmill's own: how often a compaction that had written a megabyte waited for a flush that writers would soon have
/// waited for; of the database, not of a column family.
pub const COMPACTIONS_GAVE_WAY: &str = "rockmill.compactions-gave-way";

/// Rockmill's own: microseconds that flushes and compactions left the device to users' reads; of the
/// database, not of a column family.
pub const COMPACTIONS_WAITED_FOR_READS: &str = "rockmill.compactions-waited-for-reads-micros";

/// Rockmill's own: bytes per second that compactions can take in, as far as write control has learned it; 0 as long as
/// no tree changed. Of the database, not of a column family.
pub const SUSTAINED_WRITE_RATE: &str = "rockmill.sustained-write-rate";

/// Number, Rockmill's own: tables of the column family that consist of several files, of which others may share some.
pub const TABLES_WITH_PIECES: &str = "rockmill.tables-with-pieces";

/// Number, Rockmill's own: files that tables have besides their own, each once, however many tables have it.
pub const PIECE_FILES: &str = "rockmill.piece-files";

/// Number, Rockmill's own: bytes of the files of [`PIECE_FILES`].
pub const PIECE_FILES_SIZE: &str = "rockmill.piece-files-size";

/// Number, Rockmill's own: bytes of the files of [`PIECE_FILES`] that some table refers to. The rest is garbage, which
/// compactions clean up in time.
pub const PIECE_FILES_LIVE_SIZE: &str = "rockmill.piece-files-live-size";

/// Number, Rockmill's own: bytes of memory in which the column family's open TPH tables find their keys: functions,
/// signatures, locators, and where blocks are. Divide it by [`TPH_KEYS`].
pub const TPH_INDEX_MEMORY: &str = "rockmill.tph-index-memory";

/// Number, Rockmill's own: live user keys in the column family's open TPH tables; one that several tables have counts
/// for each.
pub const TPH_KEYS: &str = "rockmill.tph-keys";

/// Number, Rockmill's own: so many full index tables of a tier in a row become one now (`index_merge_trigger_num`, as
/// the queues have moved it); 0: none are merged. This one and the next eight are 0 without a `fast_capacity`.
pub const INDEX_MERGE_TRIGGER: &str = "rockmill.index-merge-trigger";

/// Number, Rockmill's own: memory of full index tables at which they are flushed now (`data_flush_trigger_size`, as the
/// queues have moved it).
pub const DATA_FLUSH_TRIGGER_SIZE: &str = "rockmill.data-flush-trigger-size";

/// Number, Rockmill's own: so many times what the options say levels may hold now: 1, 2 or 4.
pub const LEVEL_CAPACITY_FACTOR: &str = "rockmill.level-capacity-factor";

/// Number, Rockmill's own: full index tables of one tier in a row, the most.
pub const INDEX_MERGE_QUEUE: &str = "rockmill.index-merge-queue";

/// Number, Rockmill's own: memory of full index tables that wait for a flush.
pub const DATA_FLUSH_QUEUE_SIZE: &str = "rockmill.data-flush-queue-size";

/// Number, Rockmill's own: how often the triggers of index tables changed. `rocksdb.stats` has the reasons.
pub const INDEX_SCHEDULE_CHANGES: &str = "rockmill.index-schedule-changes";

/// Number, Rockmill's own: how often of these a core was short.
pub const INDEX_SCHEDULE_CHANGES_CORE: &str = "rockmill.index-schedule-changes-core";

/// Number, Rockmill's own: how often of these the device was short.
pub const INDEX_SCHEDULE_CHANGES_DEVICE: &str = "rockmill.index-schedule-changes-device";

/// Number, Rockmill's own: how often of these nothing was short for a minute.
pub const INDEX_SCHEDULE_CHANGES_IDLE: &str = "rockmill.index-schedule-changes-idle";

/// Rockmill's own: the longest time that one write was delayed or stopped since the database was opened, in
/// microseconds.
pub const LONGEST_STALL_MICROS: &str = "rockmill.longest-stall-micros";

names! {
    /// Text: [`CFSTATS`] and [`DBSTATS`].
    STATS = "stats";
    /// Text: the tables of each level with their sizes, sequence numbers and keys.
    SSTABLES = "sstables";
    /// Text: what jobs did to each level since the database was opened.
    CFSTATS = "cfstats";
    /// Text: the same; latencies of reads by level are not measured here.
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
    /// Bytes of index, filter and tombstones of open tables, outside of the block cache.
    ESTIMATE_TABLE_READERS_MEM = "estimate-table-readers-mem";
    /// 1 unless the deletion of files is held off.
    IS_FILE_DELETIONS_ENABLED = "is-file-deletions-enabled";
    /// Snapshots that are held.
    NUM_SNAPSHOTS = "num-snapshots";
    /// Unix time of the oldest of them; 0 without one.
    OLDEST_SNAPSHOT_TIME = "oldest-snapshot-time";
    /// Sequence number of the oldest of them; 0 without one.
    OLDEST_SNAPSHOT_SEQUENCE = "oldest-snapshot-sequence";
    /// Versions of the tree that are current or in use by a reader.
    NUM_LIVE_VERSIONS = "num-live-versions";
    /// Times that what a reader sees was replaced: by a new memtable or a new version.
    CURRENT_SUPER_VERSION_NUMBER = "current-super-version-number";
    /// Bytes of the tables that hold the newest data of their key range.
    ESTIMATE_LIVE_DATA_SIZE = "estimate-live-data-size";
    /// Number of the oldest WAL that is needed.
    MIN_LOG_NUMBER_TO_KEEP = "min-log-number-to-keep";
    /// Tables with at least this number are kept, whether in use or not.
    MIN_OBSOLETE_SST_NUMBER_TO_KEEP = "min-obsolete-sst-number-to-keep";
    /// Bytes of the tables of all live versions.
    TOTAL_SST_FILES_SIZE = "total-sst-files-size";
    /// Bytes of the tables of the current version.
    LIVE_SST_FILES_SIZE = "live-sst-files-size";
    /// Bytes of the tables that nothing uses any more and that wait to be deleted, of all column families.
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
    /// Bytes that compactions must still rewrite until the tree has its shape.
    ESTIMATE_PENDING_COMPACTION_BYTES = "estimate-pending-compaction-bytes";
    /// Text: properties of the tables, added up.
    AGGREGATED_TABLE_PROPERTIES = "aggregated-table-properties";
    /// Bytes per second that writers get now; 0 when they run free.
    ACTUAL_DELAYED_WRITE_RATE = "actual-delayed-write-rate";
    /// 1 when writers wait.
    IS_WRITE_STOPPED = "is-write-stopped";
    /// Bytes that the block cache may hold. Like the two below, none where there is no block cache.
    BLOCK_CACHE_CAPACITY = "block-cache-capacity";
    /// Bytes that it holds.
    BLOCK_CACHE_USAGE = "block-cache-usage";
    /// Of them, bytes that are in use by readers.
    BLOCK_CACHE_PINNED_USAGE = "block-cache-pinned-usage";
    /// Text: all statistics; none where they are not enabled.
    OPTIONS_STATISTICS = "options-statistics";
}
