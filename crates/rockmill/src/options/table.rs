//! Options of tables: which kind is written, the options of both kinds, and those of TPH tables alone.

use std::sync::Arc;

use super::declare::declare_options;
use super::file::Carried;
use super::known::{Notes, What};
use super::parse;
use super::setters::setters;
use super::{ChecksumType, Options};
use crate::table::{AutoReadahead, BlockCache, Cache, MetaCaching, OnDemand};

/// Which kind of tables is written (RocksDB's table factory).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TableKind {
    /// RocksDB's block-based tables.
    #[default]
    BlockBased,
    /// TPH tables: the same blocks, found by a perfect hash of the key. Rockmill's own.
    Tph,
}

/// Which index a table has (RocksDB's `BlockBasedIndexType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BlockBasedIndexType {
    /// One index block.
    #[default]
    BinarySearch,
    /// Partitioned, with an index over the partitions.
    TwoLevelIndexSearch,
}

/// Whether data blocks have a hash index (RocksDB's `DataBlockIndexType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DataBlockIndexType {
    /// Restart points only.
    #[default]
    BinarySearch,
    /// A hash index after the restart points. It is written only if the comparator says that keys with different bytes
    /// are never equal.
    BinaryAndHash,
}

declare_options! {
    /// Options of TPH tables. What they share with block-based tables (blocks, checksums, cache, reading ahead) is in
    /// [`BlockBasedOptions`].
    pub struct TphTableOptions;
    setters of Options at cf;
    beside {
        /// For [`Options::set_tph_table_factory`].
        block_based: Option<BlockBasedOptions>,
    }

    /// The most files of one TPH table. A compaction writes what changed into a new file and keeps the others; with 1,
    /// it rewrites the whole table.
    piece_limit: u32 = 16, mutable;
    /// Bytes in a TPH table's files that nothing refers to any more, in percent of those in use. Above this,
    /// compactions rewrite what is left of the emptiest files.
    garbage_percent: u32 = 20, mutable;
}

setters! {
    impl TphTableOptions;

    /// Sets `piece_limit`: 1 to 1,024 files.
    set_piece_limit(files: u32) piece_limit;
    /// Sets `garbage_percent`: 0 to 1,000.
    set_garbage_percent(percent: u32) garbage_percent;
    /// Sets the options that TPH tables share with block-based ones. Without this call, those options keep the column
    /// family's values. Filters, the kind of index and the hash index of data blocks do not apply to TPH tables.
    set_block_based_options(options: &BlockBasedOptions) block_based = Some(options.clone());
}

declare_options! {
    /// Options of block-based tables (RocksDB's `BlockBasedTableOptions`), most of which TPH tables share.
    pub struct BlockBasedOptions;
    setters of Options at cf;
    beside {
        /// What an OPTIONS file had in addition; it stays with the options when they are copied.
        carried: Carried,
    }

    /// Uncompressed size, in bytes, at which a data block ends.
    block_size: usize = 4096, mutable;
    /// Percentage of `block_size` that may stay free rather than split an entry over it.
    block_size_deviation: usize = 10, mutable;
    /// Entries between restart points of data blocks.
    block_restart_interval: usize = 16, mutable;
    /// The same for index blocks.
    index_block_restart_interval: usize = 1, mutable;
    /// Format of tables that are written: 5, 6 or 7; a smaller number counts as 5. Formats 2 to 7 are read.
    format_version: u32 = 5, mutable;
    /// Checksum of blocks that are written.
    checksum: ChecksumType = ChecksumType::Xxh3, mutable;
    /// Bits per key of the Bloom filter; 0 writes none. TPH tables have none.
    bloom_bits_per_key: f64 = 0.0, named("filter_policy", filter_text, read_filter);
    /// The filter holds whole keys; otherwise only prefixes, which need a prefix extractor.
    whole_key_filtering: bool = true, mutable;
    /// Partition the filter; only with the index type `TwoLevelIndexSearch`.
    partition_filters: bool = false, mutable;
    /// Index of tables that are written. TPH tables have their own.
    index_type: BlockBasedIndexType = BlockBasedIndexType::BinarySearch, mutable;
    /// Size of index partitions, in bytes.
    metadata_block_size: usize = 4096, mutable;
    /// Index within the data blocks that are written. TPH tables have none.
    data_block_index_type: DataBlockIndexType = DataBlockIndexType::BinarySearch, mutable;
    /// Entries per bucket of the data block hash index.
    data_block_hash_table_util_ratio: f64 = 0.75, mutable;
    /// Keep index and filter in the block cache, where they count and can be evicted, instead of with the open table.
    cache_index_and_filter_blocks: bool = false, mutable;
    /// With `cache_index_and_filter_blocks`: keep them in the cache's part for them (`high_pri_pool_ratio`), if it has
    /// one.
    cache_index_and_filter_blocks_with_high_priority: bool = true, mutable;
    /// With `cache_index_and_filter_blocks`: never evict those of tables in L0.
    pin_l0_filter_and_index_blocks_in_cache: bool = false, mutable;
    /// Bytes that an iterator reads ahead at first, once it reads in sequence; each such read doubles them. 0 never
    /// reads ahead.
    initial_auto_readahead_size: usize = 8 << 10, mutable;
    /// The most bytes that an iterator reads ahead; 0 never reads ahead.
    max_auto_readahead_size: usize = 256 << 10, mutable;
    /// How many reads in sequence start reading ahead. Blocks that earlier seeks continued into are read at once in any
    /// case.
    num_file_reads_for_auto_readahead: u64 = 2, mutable;
    /// Where uncompressed blocks are kept; `None` gives each database 32 MiB of its own.
    block_cache: Option<Arc<BlockCache>> = None, hidden;
    /// Use no block cache.
    no_block_cache: bool = false, fixed;
}

/// A Bloom filter as OPTIONS files have it.
fn filter_text(bits_per_key: &f64) -> String {
    if *bits_per_key > 0.0 { format!("bloomfilter:{bits_per_key}:false") } else { "nullptr".to_owned() }
}

/// Reads texts such as `bloomfilter:10:false`; filters of other kinds are not written.
fn read_filter(bits_per_key: &mut f64, text: &str, notes: &mut Notes) -> bool {
    if text.is_empty() || text == "nullptr" {
        *bits_per_key = 0.0;
        return true;
    }
    let Ok((id, _)) = parse::object(text) else { return false };
    let mut words = id.split(':');
    if matches!(words.next(), Some("bloomfilter" | "rocksdb.BloomFilter" | "rocksdb.internal.FastLocalBloomFilter")) {
        let bits = words.next().and_then(|w| w.parse().ok()).filter(|b: &f64| b.is_finite());
        return bits.map(|b| *bits_per_key = b).is_some();
    }
    notes.add("filter_policy", text, What::NoEffect("such filters are read; none is written"));
    *bits_per_key = 0.0;
    true
}

impl BlockBasedOptions {
    /// Writes a Bloom filter with this many bits per key. `block_based` means an old layout that RocksDB has removed;
    /// it is ignored.
    pub fn set_bloom_filter(&mut self, bits_per_key: f64, _block_based: bool) {
        self.bloom_bits_per_key = bits_per_key;
    }

    /// Shares a cache.
    pub fn set_block_cache(&mut self, cache: &Cache) {
        self.block_cache = Some(Arc::clone(&cache.0));
        self.no_block_cache = false;
    }

    /// Keeps no blocks.
    pub fn disable_cache(&mut self) {
        self.no_block_cache = true;
        self.block_cache = None;
    }
}

setters! {
    impl BlockBasedOptions;

    /// Sets `block_size`, in bytes.
    set_block_size(size: usize) block_size;
    /// Entries between restart points of data blocks.
    set_block_restart_interval(interval: i32) block_restart_interval = interval.max(1) as usize;
    /// Entries between restart points of index blocks.
    set_index_block_restart_interval(interval: i32) index_block_restart_interval = interval.max(1) as usize;
    /// Format of tables written.
    set_format_version(version: i32) format_version = version.max(0) as u32;
    /// Checksum of blocks written.
    set_checksum_type(checksum: ChecksumType) checksum;
    /// Whether filters hold whole keys.
    set_whole_key_filtering(whole_keys: bool) whole_key_filtering;
    /// Writes partitioned filters.
    set_partition_filters(partition: bool) partition_filters;
    /// Kind of index.
    set_index_type(index_type: BlockBasedIndexType) index_type;
    /// Size of index partitions, in bytes.
    set_metadata_block_size(size: usize) metadata_block_size;
    /// Kind of data block index.
    set_data_block_index_type(index_type: DataBlockIndexType) data_block_index_type;
    /// Entries per bucket of the data block hash index.
    set_data_block_hash_ratio(ratio: f64) data_block_hash_table_util_ratio;
    /// Keeps index and filter in the block cache.
    set_cache_index_and_filter_blocks(v: bool) cache_index_and_filter_blocks;
    /// Puts them into the cache's part for index and filter blocks.
    set_cache_index_and_filter_blocks_with_high_priority(v: bool) cache_index_and_filter_blocks_with_high_priority;
    /// Keeps those of tables in L0 from being evicted.
    set_pin_l0_filter_and_index_blocks_in_cache(v: bool) pin_l0_filter_and_index_blocks_in_cache;
    /// Bytes that an iterator reads ahead at first, once it reads in sequence.
    set_initial_auto_readahead_size(size: usize) initial_auto_readahead_size;
    /// The most bytes that an iterator reads ahead; 0 never reads ahead.
    set_max_auto_readahead_size(size: usize) max_auto_readahead_size;
    /// How many reads in sequence start reading ahead. Blocks that earlier seeks continued into are read at once in any
    /// case.
    set_num_file_reads_for_auto_readahead(reads: u64) num_file_reads_for_auto_readahead;
}

impl MetaCaching {
    /// Of a table; `level0`: it is in L0.
    pub fn new(options: &BlockBasedOptions, level0: bool) -> Self {
        Self {
            in_cache: options.cache_index_and_filter_blocks,
            high_priority: options.cache_index_and_filter_blocks_with_high_priority,
            pin: options.pin_l0_filter_and_index_blocks_in_cache && level0,
            on_demand: OnDemand::TphHeads,
        }
    }
}

impl AutoReadahead {
    pub fn new(options: &BlockBasedOptions) -> Self {
        Self {
            reads: options.num_file_reads_for_auto_readahead,
            initial: options.initial_auto_readahead_size,
            max: options.max_auto_readahead_size,
        }
    }
}

impl Default for AutoReadahead {
    fn default() -> Self {
        Self::new(&BlockBasedOptions::default())
    }
}
