//! The settings of block-based tables, in addition to those of all tables ([`TableBuilderOptions`]).
//!
//! [`TableBuilderOptions`]: crate::table::TableBuilderOptions

use rockmill_format::checksum::ChecksumType;

/// The settings of block-based tables.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockBasedSettings {
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
    /// Bits per key of the Bloom filter; 0 writes none.
    pub bloom_bits_per_key: f64,
    /// The filter holds whole keys.
    pub whole_key_filtering: bool,
    /// Partition the filter like the index, which must be two-level.
    pub partition_filters: bool,
    /// Two-level index (RocksDB's `kTwoLevelIndexSearch`) with partitions of about `metadata_block_size` bytes.
    pub two_level_index: bool,
    /// Size of an index partition, in bytes.
    pub metadata_block_size: usize,
    /// Data block hash index: entries per bucket; `None` writes none. None is written either if keys with different
    /// bytes may be equal.
    pub hash_index_util_ratio: Option<f64>,
}

impl Default for BlockBasedSettings {
    /// RocksDB's defaults, without a filter.
    fn default() -> Self {
        Self {
            block_size: 4096,
            block_size_deviation: 10,
            block_restart_interval: 16,
            index_block_restart_interval: 1,
            format_version: 5,
            checksum: ChecksumType::Xxh3,
            bloom_bits_per_key: 0.0,
            whole_key_filtering: true,
            partition_filters: false,
            two_level_index: false,
            metadata_block_size: 4096,
            hash_index_util_ratio: None,
        }
    }
}
