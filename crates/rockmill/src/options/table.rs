//! Options of block-based tables.

use std::sync::Arc;

use super::declare::declare_options;
use super::{ChecksumType, Options};
use crate::table::BlockCache;

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

declare_options! {
    /// Options of block-based tables (RocksDB's `BlockBasedTableOptions`).
    pub struct BlockBasedOptions;
    setters of Options at cf;

    /// Uncompressed bytes at which a data block ends.
    block_size: usize = 4096, fixed;
    /// Percentage of `block_size` that may stay free rather than split an entry over it.
    block_size_deviation: usize = 10, fixed;
    /// Entries between restart points of data blocks.
    block_restart_interval: usize = 16, fixed;
    /// The same for index blocks.
    index_block_restart_interval: usize = 1, fixed;
    /// Of tables written: 5, 6 or 7. All of 2 to 7 are read.
    format_version: u32 = 5, fixed;
    /// Of blocks written.
    checksum: ChecksumType = ChecksumType::Xxh3, fixed;
    /// Bits per key of the Bloom filter; 0 writes none.
    bloom_bits_per_key: f64 = 0.0, part;
    /// Index of tables written.
    index_type: BlockBasedIndexType = BlockBasedIndexType::BinarySearch, fixed;
    /// Size of index partitions, in bytes.
    metadata_block_size: usize = 4096, fixed;
    /// Data block index of tables written.
    data_block_index_type: DataBlockIndexType = DataBlockIndexType::BinarySearch, fixed;
    /// Entries per bucket of the data block hash index.
    data_block_hash_table_util_ratio: f64 = 0.75, fixed;
    /// Where uncompressed blocks are kept; `None` gives each database 32 MiB of its own.
    block_cache: Option<Arc<BlockCache>> = None, hidden;
    /// Keep no blocks.
    no_block_cache: bool = false, part;
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
