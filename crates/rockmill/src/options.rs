//! Options of databases, column families, tables, reads and writes, with RocksDB's names and meanings.
//!
//! Setters have the names of the `rocksdb` crate.

use std::fmt;
use std::sync::Arc;

pub use rockmill_format::checksum::ChecksumType;
use rockmill_format::comparator::{BytewiseComparator, Comparator};
pub use rockmill_format::compression::CompressionType;
pub use rockmill_format::log::RecoveryMode;
use rockmill_io::{Clock, FileSystem, PosixFileSystem, SystemClock};

use crate::compaction::MergeEngine;
use crate::merge_operator::MergeOperator;
use crate::table::BlockCache;

/// Options of the whole database.
#[derive(Clone)]
pub struct DbOptions {
    /// Create the database when the directory holds none.
    pub create_if_missing: bool,
    /// Create column families that `open_cf` names and the database lacks.
    pub create_missing_column_families: bool,
    /// Refuse to open an existing database.
    pub error_if_exists: bool,
    /// Refuse a database with damage rather than open what is left.
    pub paranoid_checks: bool,
    /// Open table files at most; -1 keeps every table open.
    pub max_open_files: i32,
    /// Flushes and compactions that run at once; a quarter, at least one, is kept for flushes.
    pub max_background_jobs: i32,
    /// Threads that one compaction may be split over.
    pub max_subcompactions: u32,
    /// Use fsync instead of fdatasync.
    pub use_fsync: bool,
    /// Bytes of WAL that make the store flush the oldest column family; 0 means four times all memtables.
    pub max_total_wal_size: u64,
    /// How much damage a WAL may have.
    pub wal_recovery_mode: RecoveryMode,
    /// Old WAL files kept for reuse.
    pub recycle_log_file_num: usize,
    /// Read tables past the page cache.
    pub use_direct_reads: bool,
    /// Write tables past the page cache.
    pub use_direct_io_for_flush_and_compaction: bool,
    /// Start write-back of tables every so many bytes; 0 off.
    pub bytes_per_sync: u64,
    /// Start write-back of the WAL every so many bytes; 0 off.
    pub wal_bytes_per_sync: u64,
    /// Bytes that a compaction reads at once from each input; 0 reads block by block.
    pub compaction_readahead_size: usize,
    /// Bytes per second that writers may write when delay begins.
    pub delayed_write_rate: u64,
    /// Size at which a new MANIFEST is begun.
    pub max_manifest_file_size: u64,
    /// Bytes gathered before a table write goes to the kernel.
    pub writable_file_max_buffer_size: usize,
    /// Let the members of a write group insert at the same time.
    pub allow_concurrent_memtable_write: bool,
    /// Leave unlogged (disable_wal) data unflushed at close.
    pub avoid_flush_during_shutdown: bool,
    /// Keep recovered WAL data in the memtable and the WAL itself in use.
    pub avoid_flush_during_recovery: bool,
    /// How compactions read and merge.
    pub merge_engine: MergeEngine,
    /// Kept for compatibility; statistics are read with properties.
    pub stats_dump_period_sec: u32,
    /// Where files are.
    pub fs: Arc<dyn FileSystem>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self {
            create_if_missing: false,
            create_missing_column_families: false,
            error_if_exists: false,
            paranoid_checks: true,
            max_open_files: -1,
            max_background_jobs: 2,
            max_subcompactions: 1,
            use_fsync: false,
            max_total_wal_size: 0,
            wal_recovery_mode: RecoveryMode::PointInTime,
            recycle_log_file_num: 0,
            use_direct_reads: false,
            use_direct_io_for_flush_and_compaction: false,
            bytes_per_sync: 0,
            wal_bytes_per_sync: 0,
            compaction_readahead_size: 2 << 20,
            delayed_write_rate: 16 << 20,
            max_manifest_file_size: 1 << 30,
            writable_file_max_buffer_size: 1 << 20,
            allow_concurrent_memtable_write: true,
            avoid_flush_during_shutdown: false,
            avoid_flush_during_recovery: false,
            merge_engine: MergeEngine::Auto,
            stats_dump_period_sec: 600,
            fs: Arc::new(PosixFileSystem::default()),
            clock: Arc::new(SystemClock::default()),
        }
    }
}

impl fmt::Debug for DbOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DbOptions")
            .field("create_if_missing", &self.create_if_missing)
            .field("create_missing_column_families", &self.create_missing_column_families)
            .field("error_if_exists", &self.error_if_exists)
            .field("paranoid_checks", &self.paranoid_checks)
            .field("max_open_files", &self.max_open_files)
            .field("max_background_jobs", &self.max_background_jobs)
            .field("max_subcompactions", &self.max_subcompactions)
            .field("use_fsync", &self.use_fsync)
            .field("max_total_wal_size", &self.max_total_wal_size)
            .field("wal_recovery_mode", &self.wal_recovery_mode)
            .field("recycle_log_file_num", &self.recycle_log_file_num)
            .field("use_direct_reads", &self.use_direct_reads)
            .field("use_direct_io_for_flush_and_compaction", &self.use_direct_io_for_flush_and_compaction)
            .field("bytes_per_sync", &self.bytes_per_sync)
            .field("wal_bytes_per_sync", &self.wal_bytes_per_sync)
            .field("compaction_readahead_size", &self.compaction_readahead_size)
            .field("delayed_write_rate", &self.delayed_write_rate)
            .field("max_manifest_file_size", &self.max_manifest_file_size)
            .field("writable_file_max_buffer_size", &self.writable_file_max_buffer_size)
            .field("allow_concurrent_memtable_write", &self.allow_concurrent_memtable_write)
            .field("avoid_flush_during_shutdown", &self.avoid_flush_during_shutdown)
            .field("avoid_flush_during_recovery", &self.avoid_flush_during_recovery)
            .field("merge_engine", &self.merge_engine)
            .field("stats_dump_period_sec", &self.stats_dump_period_sec)
            .finish_non_exhaustive()
    }
}

/// Options of a column family.
#[derive(Clone)]
pub struct CfOptions {
    /// Order of user keys; its name is stored and checked.
    pub comparator: Arc<dyn Comparator>,
    /// What merge operands do to values; its name is stored in tables.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Of block-based tables.
    pub table: BlockBasedOptions,
    /// Size of a memtable, in bytes.
    pub write_buffer_size: usize,
    /// Memtables, the active one included, before writers stop.
    pub max_write_buffer_number: i32,
    /// Immutable memtables that a flush waits for.
    pub min_write_buffer_number_to_merge: i32,
    /// L0 files that start a compaction.
    pub level0_file_num_compaction_trigger: i32,
    /// L0 files where the delay of writers is near its limit.
    pub level0_slowdown_writes_trigger: i32,
    /// L0 files that stop writers.
    pub level0_stop_writes_trigger: i32,
    /// Levels of the tree.
    pub num_levels: i32,
    /// Size of tables in the base level, in bytes.
    pub target_file_size_base: u64,
    /// How much larger tables are one level deeper.
    pub target_file_size_multiplier: i32,
    /// Size of the base level, in bytes.
    pub max_bytes_for_level_base: u64,
    /// How much larger a level is than the one above.
    pub max_bytes_for_level_multiplier: f64,
    /// Size levels from the last one up.
    pub level_compaction_dynamic_level_bytes: bool,
    /// Compaction debt where the delay of writers is near its limit.
    pub soft_pending_compaction_bytes_limit: u64,
    /// Compaction debt that stops writers.
    pub hard_pending_compaction_bytes_limit: u64,
    /// Bytes of one compaction's input and overlap; 0 means 25 times the table size.
    pub max_compaction_bytes: u64,
    /// Compact only when told.
    pub disable_auto_compactions: bool,
    /// Of table blocks, where no per-level choice says otherwise.
    pub compression: CompressionType,
    /// Of the deepest level's blocks.
    pub bottommost_compression: Option<CompressionType>,
    /// The compression library's level; `i32::MAX` its default.
    pub compression_level: i32,
    /// Compression of each level (with dynamic levels: L0, then the base level, …); empty uses `compression`.
    pub compression_per_level: Vec<CompressionType>,
    /// Memtable arena step, in bytes; 0 chooses.
    pub arena_block_size: usize,
}

impl Default for CfOptions {
    fn default() -> Self {
        Self {
            comparator: Arc::new(BytewiseComparator),
            merge_operator: None,
            table: BlockBasedOptions::default(),
            write_buffer_size: 64 << 20,
            max_write_buffer_number: 2,
            min_write_buffer_number_to_merge: 1,
            level0_file_num_compaction_trigger: 4,
            level0_slowdown_writes_trigger: 20,
            level0_stop_writes_trigger: 36,
            num_levels: 7,
            target_file_size_base: 64 << 20,
            target_file_size_multiplier: 1,
            max_bytes_for_level_base: 256 << 20,
            max_bytes_for_level_multiplier: 10.0,
            level_compaction_dynamic_level_bytes: true,
            soft_pending_compaction_bytes_limit: 64 << 30,
            hard_pending_compaction_bytes_limit: 256 << 30,
            max_compaction_bytes: 0,
            disable_auto_compactions: false,
            compression: CompressionType::Snappy,
            bottommost_compression: None,
            compression_level: i32::MAX,
            compression_per_level: Vec::new(),
            arena_block_size: 0,
        }
    }
}

impl fmt::Debug for CfOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CfOptions")
            .field("comparator", &self.comparator.name())
            .field("merge_operator", &self.merge_operator.as_ref().map(|m| m.name()))
            .field("table", &self.table)
            .field("write_buffer_size", &self.write_buffer_size)
            .field("max_write_buffer_number", &self.max_write_buffer_number)
            .field("min_write_buffer_number_to_merge", &self.min_write_buffer_number_to_merge)
            .field("level0_file_num_compaction_trigger", &self.level0_file_num_compaction_trigger)
            .field("level0_slowdown_writes_trigger", &self.level0_slowdown_writes_trigger)
            .field("level0_stop_writes_trigger", &self.level0_stop_writes_trigger)
            .field("num_levels", &self.num_levels)
            .field("target_file_size_base", &self.target_file_size_base)
            .field("target_file_size_multiplier", &self.target_file_size_multiplier)
            .field("max_bytes_for_level_base", &self.max_bytes_for_level_base)
            .field("max_bytes_for_level_multiplier", &self.max_bytes_for_level_multiplier)
            .field("level_compaction_dynamic_level_bytes", &self.level_compaction_dynamic_level_bytes)
            .field("soft_pending_compaction_bytes_limit", &self.soft_pending_compaction_bytes_limit)
            .field("hard_pending_compaction_bytes_limit", &self.hard_pending_compaction_bytes_limit)
            .field("max_compaction_bytes", &self.max_compaction_bytes)
            .field("disable_auto_compactions", &self.disable_auto_compactions)
            .field("compression", &self.compression)
            .field("bottommost_compression", &self.bottommost_compression)
            .field("compression_level", &self.compression_level)
            .field("compression_per_level", &self.compression_per_level)
            .field("arena_block_size", &self.arena_block_size)
            .finish()
    }
}

/// Which index a table has (RocksDB's `BlockBasedIndexType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockBasedIndexType {
    /// One index block.
    #[default]
    BinarySearch,
    /// Partitioned, with an index over the partitions.
    TwoLevelIndexSearch,
}

/// Whether data blocks have a hash index (RocksDB's `DataBlockIndexType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataBlockIndexType {
    /// Restart points only.
    #[default]
    BinarySearch,
    /// A hash index behind the restart points.
    BinaryAndHash,
}

/// Options of block-based tables (RocksDB's `BlockBasedTableOptions`).
#[derive(Clone)]
pub struct BlockBasedOptions {
    /// Uncompressed bytes at which a data block ends.
    pub block_size: usize,
    /// Percentage of `block_size` that may stay free rather than split an entry over it.
    pub block_size_deviation: usize,
    /// Entries between restart points of data blocks.
    pub block_restart_interval: usize,
    /// The same for index blocks.
    pub index_block_restart_interval: usize,
    /// Of tables written: 5, 6 or 7. All of 2 to 7 are read.
    pub format_version: u32,
    /// Of blocks written.
    pub checksum: ChecksumType,
    /// Bits per key of the Bloom filter; 0 writes none.
    pub bloom_bits_per_key: f64,
    /// Index of tables written.
    pub index_type: BlockBasedIndexType,
    /// Size of index partitions, in bytes.
    pub metadata_block_size: usize,
    /// Data block index of tables written.
    pub data_block_index_type: DataBlockIndexType,
    /// Entries per bucket of the data block hash index.
    pub data_block_hash_table_util_ratio: f64,
    /// Where uncompressed blocks are kept; `None` gives each database 32 MiB of its own.
    pub block_cache: Option<Arc<BlockCache>>,
    /// Keep no blocks.
    pub no_block_cache: bool,
}

impl Default for BlockBasedOptions {
    fn default() -> Self {
        Self {
            block_size: 4096,
            block_size_deviation: 10,
            block_restart_interval: 16,
            index_block_restart_interval: 1,
            format_version: 5,
            checksum: ChecksumType::Xxh3,
            bloom_bits_per_key: 0.0,
            index_type: BlockBasedIndexType::BinarySearch,
            metadata_block_size: 4096,
            data_block_index_type: DataBlockIndexType::BinarySearch,
            data_block_hash_table_util_ratio: 0.75,
            block_cache: None,
            no_block_cache: false,
        }
    }
}

impl fmt::Debug for BlockBasedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockBasedOptions")
            .field("block_size", &self.block_size)
            .field("block_restart_interval", &self.block_restart_interval)
            .field("index_block_restart_interval", &self.index_block_restart_interval)
            .field("format_version", &self.format_version)
            .field("checksum", &self.checksum)
            .field("bloom_bits_per_key", &self.bloom_bits_per_key)
            .field("index_type", &self.index_type)
            .field("metadata_block_size", &self.metadata_block_size)
            .field("data_block_index_type", &self.data_block_index_type)
            .field("data_block_hash_table_util_ratio", &self.data_block_hash_table_util_ratio)
            .field("block_cache_bytes", &self.block_cache.as_ref().map(|c| c.stats().capacity))
            .finish_non_exhaustive()
    }
}

impl BlockBasedOptions {
    /// Sets `block_size`, in bytes.
    pub fn set_block_size(&mut self, size: usize) {
        self.block_size = size;
    }

    /// Entries between restart points of data blocks.
    pub fn set_block_restart_interval(&mut self, interval: i32) {
        self.block_restart_interval = interval.max(1) as usize;
    }

    /// Entries between restart points of index blocks.
    pub fn set_index_block_restart_interval(&mut self, interval: i32) {
        self.index_block_restart_interval = interval.max(1) as usize;
    }

    /// Format of tables written.
    pub fn set_format_version(&mut self, version: i32) {
        self.format_version = version.max(0) as u32;
    }

    /// Checksum of blocks written.
    pub fn set_checksum_type(&mut self, checksum: ChecksumType) {
        self.checksum = checksum;
    }

    /// Writes a Bloom filter with so many bits per key. `block_based` is RocksDB's removed old layout and ignored.
    pub fn set_bloom_filter(&mut self, bits_per_key: f64, _block_based: bool) {
        self.bloom_bits_per_key = bits_per_key;
    }

    /// Kind of index.
    pub fn set_index_type(&mut self, index_type: BlockBasedIndexType) {
        self.index_type = index_type;
    }

    /// Size of index partitions, in bytes.
    pub fn set_metadata_block_size(&mut self, size: usize) {
        self.metadata_block_size = size;
    }

    /// Kind of data block index.
    pub fn set_data_block_index_type(&mut self, index_type: DataBlockIndexType) {
        self.data_block_index_type = index_type;
    }

    /// Entries per bucket of the data block hash index.
    pub fn set_data_block_hash_ratio(&mut self, ratio: f64) {
        self.data_block_hash_table_util_ratio = ratio;
    }

    /// Shares a cache.
    pub fn set_block_cache(&mut self, cache: &Arc<BlockCache>) {
        self.block_cache = Some(Arc::clone(cache));
        self.no_block_cache = false;
    }

    /// Keeps no blocks.
    pub fn disable_cache(&mut self) {
        self.no_block_cache = true;
        self.block_cache = None;
    }
}

/// Options of a database and of the column families opened with it, as in the `rocksdb` crate.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The database's part.
    pub db: DbOptions,
    /// The column family's part.
    pub cf: CfOptions,
}

impl Options {
    /// Create the database when the directory holds none.
    pub fn create_if_missing(&mut self, value: bool) {
        self.db.create_if_missing = value;
    }

    /// Create column families that `open_cf` names and the database lacks.
    pub fn create_missing_column_families(&mut self, value: bool) {
        self.db.create_missing_column_families = value;
    }

    /// Refuse to open an existing database.
    pub fn set_error_if_exists(&mut self, value: bool) {
        self.db.error_if_exists = value;
    }

    /// Refuse a database with damage rather than open what is left.
    pub fn set_paranoid_checks(&mut self, value: bool) {
        self.db.paranoid_checks = value;
    }

    /// Open table files at most; -1 keeps every table open.
    pub fn set_max_open_files(&mut self, value: i32) {
        self.db.max_open_files = value;
    }

    /// Flushes and compactions that run at once; a quarter, at least one, is kept for flushes.
    pub fn set_max_background_jobs(&mut self, value: i32) {
        self.db.max_background_jobs = value;
    }

    /// Threads that one compaction may be split over.
    pub fn set_max_subcompactions(&mut self, value: u32) {
        self.db.max_subcompactions = value;
    }

    /// Use fsync instead of fdatasync.
    pub fn set_use_fsync(&mut self, value: bool) {
        self.db.use_fsync = value;
    }

    /// Bytes of WAL that make the store flush the oldest column family; 0 means four times all memtables.
    pub fn set_max_total_wal_size(&mut self, value: u64) {
        self.db.max_total_wal_size = value;
    }

    /// How much damage a WAL may have.
    pub fn set_wal_recovery_mode(&mut self, value: RecoveryMode) {
        self.db.wal_recovery_mode = value;
    }

    /// Old WAL files kept for reuse.
    pub fn set_recycle_log_file_num(&mut self, value: usize) {
        self.db.recycle_log_file_num = value;
    }

    /// Read tables past the page cache.
    pub fn set_use_direct_reads(&mut self, value: bool) {
        self.db.use_direct_reads = value;
    }

    /// Write tables past the page cache.
    pub fn set_use_direct_io_for_flush_and_compaction(&mut self, value: bool) {
        self.db.use_direct_io_for_flush_and_compaction = value;
    }

    /// Start write-back of tables every so many bytes; 0 off.
    pub fn set_bytes_per_sync(&mut self, value: u64) {
        self.db.bytes_per_sync = value;
    }

    /// Start write-back of the WAL every so many bytes; 0 off.
    pub fn set_wal_bytes_per_sync(&mut self, value: u64) {
        self.db.wal_bytes_per_sync = value;
    }

    /// Bytes that a compaction reads at once from each input; 0 reads block by block.
    pub fn set_compaction_readahead_size(&mut self, value: usize) {
        self.db.compaction_readahead_size = value;
    }

    /// Bytes per second that writers may write when delay begins.
    pub fn set_delayed_write_rate(&mut self, value: u64) {
        self.db.delayed_write_rate = value;
    }

    /// Size at which a new MANIFEST is begun.
    pub fn set_max_manifest_file_size(&mut self, value: u64) {
        self.db.max_manifest_file_size = value;
    }

    /// Bytes gathered before a table write goes to the kernel.
    pub fn set_writable_file_max_buffer_size(&mut self, value: usize) {
        self.db.writable_file_max_buffer_size = value;
    }

    /// Let the members of a write group insert at the same time.
    pub fn set_allow_concurrent_memtable_write(&mut self, value: bool) {
        self.db.allow_concurrent_memtable_write = value;
    }

    /// Leave unlogged (disable_wal) data unflushed at close.
    pub fn set_avoid_flush_during_shutdown(&mut self, value: bool) {
        self.db.avoid_flush_during_shutdown = value;
    }

    /// Keep recovered WAL data in the memtable and the WAL itself in use.
    pub fn set_avoid_flush_during_recovery(&mut self, value: bool) {
        self.db.avoid_flush_during_recovery = value;
    }

    /// How compactions read and merge.
    pub fn set_merge_engine(&mut self, value: MergeEngine) {
        self.db.merge_engine = value;
    }

    /// Kept for compatibility; statistics are read with properties.
    pub fn set_stats_dump_period_sec(&mut self, value: u32) {
        self.db.stats_dump_period_sec = value;
    }

    /// Size of a memtable, in bytes.
    pub fn set_write_buffer_size(&mut self, value: usize) {
        self.cf.write_buffer_size = value;
    }

    /// Memtables, the active one included, before writers stop.
    pub fn set_max_write_buffer_number(&mut self, value: i32) {
        self.cf.max_write_buffer_number = value;
    }

    /// Immutable memtables that a flush waits for.
    pub fn set_min_write_buffer_number_to_merge(&mut self, value: i32) {
        self.cf.min_write_buffer_number_to_merge = value;
    }

    /// L0 files that start a compaction.
    pub fn set_level_zero_file_num_compaction_trigger(&mut self, value: i32) {
        self.cf.level0_file_num_compaction_trigger = value;
    }

    /// L0 files where the delay of writers is near its limit.
    pub fn set_level_zero_slowdown_writes_trigger(&mut self, value: i32) {
        self.cf.level0_slowdown_writes_trigger = value;
    }

    /// L0 files that stop writers.
    pub fn set_level_zero_stop_writes_trigger(&mut self, value: i32) {
        self.cf.level0_stop_writes_trigger = value;
    }

    /// Levels of the tree.
    pub fn set_num_levels(&mut self, value: i32) {
        self.cf.num_levels = value;
    }

    /// Size of tables in the base level, in bytes.
    pub fn set_target_file_size_base(&mut self, value: u64) {
        self.cf.target_file_size_base = value;
    }

    /// How much larger tables are one level deeper.
    pub fn set_target_file_size_multiplier(&mut self, value: i32) {
        self.cf.target_file_size_multiplier = value;
    }

    /// Size of the base level, in bytes.
    pub fn set_max_bytes_for_level_base(&mut self, value: u64) {
        self.cf.max_bytes_for_level_base = value;
    }

    /// How much larger a level is than the one above.
    pub fn set_max_bytes_for_level_multiplier(&mut self, value: f64) {
        self.cf.max_bytes_for_level_multiplier = value;
    }

    /// Size levels from the last one up.
    pub fn set_level_compaction_dynamic_level_bytes(&mut self, value: bool) {
        self.cf.level_compaction_dynamic_level_bytes = value;
    }

    /// Compaction debt where the delay of writers is near its limit.
    pub fn set_soft_pending_compaction_bytes_limit(&mut self, value: u64) {
        self.cf.soft_pending_compaction_bytes_limit = value;
    }

    /// Compaction debt that stops writers.
    pub fn set_hard_pending_compaction_bytes_limit(&mut self, value: u64) {
        self.cf.hard_pending_compaction_bytes_limit = value;
    }

    /// Bytes of one compaction's input and overlap; 0 means 25 times the table size.
    pub fn set_max_compaction_bytes(&mut self, value: u64) {
        self.cf.max_compaction_bytes = value;
    }

    /// Compact only when told.
    pub fn set_disable_auto_compactions(&mut self, value: bool) {
        self.cf.disable_auto_compactions = value;
    }

    /// Of table blocks, where no per-level choice says otherwise.
    pub fn set_compression_type(&mut self, value: CompressionType) {
        self.cf.compression = value;
    }

    /// The compression library's level; `i32::MAX` its default.
    pub fn set_compression_level(&mut self, value: i32) {
        self.cf.compression_level = value;
    }

    /// Memtable arena step, in bytes; 0 chooses.
    pub fn set_arena_block_size(&mut self, value: usize) {
        self.cf.arena_block_size = value;
    }

    /// Compression of the deepest level.
    pub fn set_bottommost_compression_type(&mut self, value: CompressionType) {
        self.cf.bottommost_compression = Some(value);
    }

    /// Compression of each level.
    pub fn set_compression_per_level(&mut self, levels: &[CompressionType]) {
        self.cf.compression_per_level = levels.to_vec();
    }

    /// Options of tables.
    pub fn set_block_based_table_factory(&mut self, table: &BlockBasedOptions) {
        self.cf.table = table.clone();
    }

    /// Order of keys.
    pub fn set_comparator(&mut self, comparator: Arc<dyn Comparator>) {
        self.cf.comparator = comparator;
    }

    /// RocksDB's shorthand: as many background jobs as `threads`.
    pub fn increase_parallelism(&mut self, threads: i32) {
        self.db.max_background_jobs = threads.max(2);
    }

    /// Replaces the file system, for tests.
    pub fn set_file_system(&mut self, fs: Arc<dyn FileSystem>) {
        self.db.fs = fs;
    }

    /// Replaces the clock, for tests.
    pub fn set_clock(&mut self, clock: Arc<dyn Clock>) {
        self.db.clock = clock;
    }
}

/// Options of a write (RocksDB's `WriteOptions`).
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Return only when the WAL is on the disk.
    pub sync: bool,
    /// Write no WAL: the data is lost by a crash before the next flush.
    pub disable_wal: bool,
    /// Fail with `Incomplete` rather than wait when writers are delayed or stopped.
    pub no_slowdown: bool,
}

impl WriteOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `sync`.
    pub fn set_sync(&mut self, sync: bool) {
        self.sync = sync;
    }

    /// Sets `disable_wal`.
    pub fn disable_wal(&mut self, disable: bool) {
        self.disable_wal = disable;
    }

    /// Sets `no_slowdown`.
    pub fn set_no_slowdown(&mut self, no_slowdown: bool) {
        self.no_slowdown = no_slowdown;
    }
}

/// Whether `flush` waits (RocksDB's `FlushOptions`).
#[derive(Debug, Clone, Copy)]
pub struct FlushOptions {
    /// Return when the data is in tables.
    pub wait: bool,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self { wait: true }
    }
}

/// What a manual compaction does with the deepest level (RocksDB's `BottommostLevelCompaction`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BottommostLevelCompaction {
    /// Leave it.
    Skip,
    /// Compact it when there is a compaction filter (there is none yet: leave it).
    #[default]
    IfHaveCompactionFilter,
    /// Compact it.
    Force,
    /// Compact it, except files this compaction itself made.
    ForceOptimized,
}

/// Options of `compact_range` (RocksDB's `CompactRangeOptions`).
#[derive(Debug, Clone, Copy, Default)]
pub struct CompactOptions {
    /// Let no automatic compaction run meanwhile.
    pub exclusive_manual_compaction: bool,
    /// Move the result to `target_level`.
    pub change_level: bool,
    /// With `change_level`: the level, or -1 for the smallest possible.
    pub target_level: i32,
    /// The deepest level.
    pub bottommost_level_compaction: BottommostLevelCompaction,
    /// Threads; 0 takes the database's `max_subcompactions`.
    pub max_subcompactions: u32,
}

impl CompactOptions {
    /// Sets what happens to the deepest level.
    pub fn set_bottommost_level_compaction(&mut self, v: BottommostLevelCompaction) {
        self.bottommost_level_compaction = v;
    }

    /// Sets `exclusive_manual_compaction`.
    pub fn set_exclusive_manual_compaction(&mut self, v: bool) {
        self.exclusive_manual_compaction = v;
    }

    /// Sets `change_level`.
    pub fn set_change_level(&mut self, v: bool) {
        self.change_level = v;
    }

    /// Sets `target_level`.
    pub fn set_target_level(&mut self, v: i32) {
        self.target_level = v;
    }
}
