//! How tables are opened, read and written, and what a written one holds: the same for every kind of table.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::checksum::ChecksumType;
use rockmill_format::compression::CompressionType;
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, SliceTransform};

use super::cache::BlockCache;
use super::compression::CompressionOptions;
use crate::pacing::reads_first::ReadsFirst;
use crate::statistics::Statistics;

/// How one operation reads a table.
#[derive(Debug, Clone, Copy)]
pub struct TableReadOptions {
    /// Check block checksums.
    pub verify_checksums: bool,
    /// Put blocks that were read into the cache.
    pub fill_cache: bool,
    /// Read ahead this many bytes behind the wanted block on sequential access; 0 lets the reader decide (grows from
    /// small as RocksDB's).
    pub readahead: usize,
    /// Answer from the cache only, `Incomplete` otherwise (RocksDB's `kBlockCacheTier`).
    pub cache_only: bool,
    /// Read what comes behind a scan's window while the scan goes through it.
    pub async_io: bool,
}

impl Default for TableReadOptions {
    fn default() -> Self {
        Self { verify_checksums: true, fill_cache: true, readahead: 0, cache_only: false, async_io: false }
    }
}

/// When iterators begin to read ahead by themselves, and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AutoReadahead {
    /// Reads in sequence before.
    pub reads: u64,
    /// Bytes behind the wanted block at first, doubled with each read.
    pub initial: usize,
    /// Bytes at most.
    pub max: usize,
}

/// What `open` needs.
#[derive(Clone)]
pub struct TableOpenOptions {
    /// For error messages.
    pub path: PathBuf,
    /// Order of keys; the table's stored comparator name must be the same.
    pub cmp: InternalKeyComparator,
    /// Where data blocks are kept; `None` keeps none.
    pub cache: Option<Arc<BlockCache>>,
    /// Largest sequence number the MANIFEST gives for the file: an ingested file's global sequence number is checked
    /// against it. `None` when unknown.
    pub largest_seqno: Option<SequenceNumber>,
    /// Where reads of the table are counted.
    pub statistics: Option<Arc<Statistics>>,
    /// Who is told of users' reads that the file answers.
    pub reads_first: Option<Arc<ReadsFirst>>,
    /// The column family's prefix extractor: a table whose filter holds prefixes made by an extractor of this name can
    /// be asked for them. RocksDB's own extractors are known by name without it.
    pub prefix_extractor: Option<SliceTransform>,
}

/// How index and filter are kept in the cache.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MetaCaching {
    pub in_cache: bool,
    pub high_priority: bool,
    pub pin: bool,
}

/// Everything that decides a table's bytes. Times, ids and numbers are given, never taken from the world, so that
/// the same input gives the same file. What it says of blocks, index and filter is for block-based tables.
#[derive(Clone)]
pub struct TableBuilderOptions {
    /// Order of keys.
    pub cmp: InternalKeyComparator,
    /// Uncompressed size at which a data block ends, in bytes.
    pub block_size: usize,
    /// Percentage of `block_size` that may stay unused rather than split an entry over it.
    pub block_size_deviation: usize,
    /// Entries between restart points of data blocks.
    pub block_restart_interval: usize,
    /// The same for index blocks.
    pub index_block_restart_interval: usize,
    /// 5, 6 or 7.
    pub format_version: u32,
    /// Of blocks.
    pub checksum: ChecksumType,
    /// Of blocks.
    pub compression: CompressionType,
    /// Level, dictionary and the like.
    pub compression_opts: CompressionOptions,
    /// Size that the table should have, in bytes; 0 unknown. Blocks held back for a dictionary are no more.
    pub target_file_size: u64,
    /// Bits per key of the Bloom filter; 0 writes none.
    pub bloom_bits_per_key: f64,
    /// The filter holds whole keys.
    pub whole_key_filtering: bool,
    /// The filter holds the prefixes that this makes.
    pub prefix_extractor: Option<SliceTransform>,
    /// The filter is partitioned as the index is, which must be two-level.
    pub partition_filters: bool,
    /// Two-level index (RocksDB's `kTwoLevelIndexSearch`) with partitions of about `metadata_block_size` bytes.
    pub two_level_index: bool,
    /// Size of an index partition, in bytes.
    pub metadata_block_size: usize,
    /// Data block hash index: entries per bucket; `None` writes none, and none is written where keys of different bytes
    /// may be equal.
    pub hash_index_util_ratio: Option<f64>,
    /// Properties that the caller knows: column family, db id, session id, times, file number, names.
    pub properties: TableProperties,
    /// For error messages.
    pub path: PathBuf,
    /// Where compression is counted.
    pub statistics: Option<Arc<Statistics>>,
}

impl std::fmt::Debug for TableBuilderOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableBuilderOptions")
            .field("cmp", &self.cmp)
            .field("block_size", &self.block_size)
            .field("block_size_deviation", &self.block_size_deviation)
            .field("block_restart_interval", &self.block_restart_interval)
            .field("index_block_restart_interval", &self.index_block_restart_interval)
            .field("format_version", &self.format_version)
            .field("checksum", &self.checksum)
            .field("compression", &self.compression)
            .field("compression_opts", &self.compression_opts)
            .field("bloom_bits_per_key", &self.bloom_bits_per_key)
            .field("whole_key_filtering", &self.whole_key_filtering)
            .field("prefix_extractor", &self.prefix_extractor)
            .field("partition_filters", &self.partition_filters)
            .field("two_level_index", &self.two_level_index)
            .field("metadata_block_size", &self.metadata_block_size)
            .field("hash_index_util_ratio", &self.hash_index_util_ratio)
            .finish_non_exhaustive()
    }
}

/// What `finish` learned.
#[derive(Debug, Clone, Default)]
pub struct TableSummary {
    /// Size of the table's own file, in bytes.
    pub file_size: u64,
    /// Smallest and largest internal key, range tombstones included; empty keys when the table is empty.
    pub smallest: InternalKey,
    /// See `smallest`.
    pub largest: InternalKey,
    /// Smallest sequence number.
    pub smallest_seqno: SequenceNumber,
    /// Largest sequence number.
    pub largest_seqno: SequenceNumber,
    /// As written.
    pub properties: TableProperties,
    /// Bytes from the first block after the data to the end of the file.
    pub tail_size: u64,
}
