//! How a job's tables are written, as plain data: the options of the column family that shape a table's bytes, and the
//! names and ids that its properties have.

use std::path::PathBuf;

use rockmill_format::checksum::ChecksumType;
use rockmill_format::compression::CompressionType;
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKeyComparator, SliceTransform};

use crate::error::{Error, Result};
use crate::options::check::{Adjusted, take_cf_options};
use crate::options::{BlockBasedIndexType, BlockBasedOptions, CfOptions, CompressionOptions, DataBlockIndexType};
use crate::table::TableBuilderOptions;

/// Where a table comes from, as its properties say it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableOwner {
    /// Database id.
    pub db_id: String,
    /// Id of the session that the job belongs to; the table's unique id is made of it.
    pub db_session_id: String,
    /// Column family's id.
    pub cf_id: u32,
    /// Column family's name.
    pub cf_name: String,
    /// Name of the column family's merge operator; empty without one.
    pub merge_operator: String,
}

/// The options of a column family that shape the bytes of its tables, compression apart.
#[derive(Debug, Clone, PartialEq)]
pub struct TableFormat {
    /// Uncompressed bytes at which a data block ends.
    pub block_size: usize,
    /// Percentage of `block_size` that may stay free rather than split an entry over it.
    pub block_size_deviation: usize,
    /// Entries between restart points of data blocks.
    pub block_restart_interval: usize,
    /// The same for index blocks.
    pub index_block_restart_interval: usize,
    /// Of RocksDB's formats.
    pub format_version: u32,
    /// Of blocks.
    pub checksum: ChecksumType,
    /// Bits per key of the Bloom filter; 0 writes none.
    pub bloom_bits_per_key: f64,
    /// The filter holds whole keys.
    pub whole_key_filtering: bool,
    /// The filter is partitioned as the index is.
    pub partition_filters: bool,
    /// The index has partitions of about `metadata_block_size` bytes.
    pub two_level_index: bool,
    /// Size of an index partition, in bytes.
    pub metadata_block_size: usize,
    /// Entries per bucket of the data blocks' hash index; `None` writes none.
    pub hash_index_util_ratio: Option<f64>,
    /// Name of what makes the prefixes that filters hold; empty without.
    pub prefix_extractor: String,
}

impl TableFormat {
    /// That of a column family with these options.
    pub fn of(cf: &CfOptions) -> Self {
        let t = &cf.table;
        Self {
            block_size: t.block_size,
            block_size_deviation: t.block_size_deviation,
            block_restart_interval: t.block_restart_interval,
            index_block_restart_interval: t.index_block_restart_interval,
            format_version: t.format_version,
            checksum: t.checksum,
            bloom_bits_per_key: t.bloom_bits_per_key,
            whole_key_filtering: t.whole_key_filtering,
            partition_filters: t.partition_filters,
            two_level_index: t.index_type == BlockBasedIndexType::TwoLevelIndexSearch,
            metadata_block_size: t.metadata_block_size,
            hash_index_util_ratio: (t.data_block_index_type == DataBlockIndexType::BinaryAndHash)
                .then_some(t.data_block_hash_table_util_ratio),
            prefix_extractor: cf.prefix_extractor.as_ref().map_or_else(String::new, |e| e.name().to_owned()),
        }
    }
}

impl TableFormat {
    /// Refuses tables that no database writes, with whatever options: a spec may come from anywhere.
    pub(super) fn check(&self, compression: CompressionType, opts: &CompressionOptions) -> Result<()> {
        let (index, data) = (BlockBasedIndexType::default(), DataBlockIndexType::default());
        let table = BlockBasedOptions {
            block_size: self.block_size,
            block_size_deviation: self.block_size_deviation,
            block_restart_interval: self.block_restart_interval,
            index_block_restart_interval: self.index_block_restart_interval,
            format_version: self.format_version,
            checksum: self.checksum,
            bloom_bits_per_key: self.bloom_bits_per_key,
            whole_key_filtering: self.whole_key_filtering,
            partition_filters: self.partition_filters,
            index_type: if self.two_level_index { BlockBasedIndexType::TwoLevelIndexSearch } else { index },
            metadata_block_size: self.metadata_block_size,
            data_block_index_type: self.hash_index_util_ratio.map_or(data, |_| DataBlockIndexType::BinaryAndHash),
            data_block_hash_table_util_ratio: self.hash_index_util_ratio.unwrap_or(0.75),
            ..BlockBasedOptions::default()
        };
        let opts = CompressionOptions { enabled: true, ..opts.clone() };
        let mut cf =
            CfOptions { table, compression, bottommost_compression_opts: opts.clone(), ..CfOptions::default() };
        take_cf_options("of the job", &mut cf, false, &mut Adjusted::default())?;
        let taken = Self { prefix_extractor: self.prefix_extractor.clone(), ..Self::of(&cf) };
        if taken != *self || cf.bottommost_compression_opts != opts {
            let what = "the job's tables are such as no options give";
            return Err(Error::invalid_argument(format!("{what}: {self:?}, {opts:?}")));
        }
        Ok(())
    }
}

/// How a table of this format is written. `properties` has what neither the format nor the entries say.
pub(crate) fn builder_options(
    format: &TableFormat,
    cmp: InternalKeyComparator,
    prefix_extractor: Option<SliceTransform>,
    compression: CompressionType,
    compression_opts: CompressionOptions,
    properties: TableProperties,
    path: PathBuf,
) -> TableBuilderOptions {
    TableBuilderOptions {
        cmp,
        block_size: format.block_size,
        block_size_deviation: format.block_size_deviation,
        block_restart_interval: format.block_restart_interval,
        index_block_restart_interval: format.index_block_restart_interval,
        format_version: format.format_version,
        checksum: format.checksum,
        compression,
        compression_opts,
        target_file_size: 0,
        bloom_bits_per_key: format.bloom_bits_per_key,
        whole_key_filtering: format.whole_key_filtering,
        prefix_extractor,
        partition_filters: format.partition_filters,
        two_level_index: format.two_level_index,
        metadata_block_size: format.metadata_block_size,
        hash_index_util_ratio: format.hash_index_util_ratio,
        properties,
        path,
        statistics: None,
    }
}
