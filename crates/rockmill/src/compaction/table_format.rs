//! How a job's tables are written, as plain data: the options of the column family that shape a table's bytes, and the
//! names and ids that its properties have.

use rockmill_format::compression::CompressionType;

use crate::error::{Error, Result};
use crate::options::check::{Adjusted, take_cf_options};
use crate::options::{BlockBasedIndexType, BlockBasedOptions, CfOptions, CompressionOptions, DataBlockIndexType};
use crate::table::BlockBasedSettings;

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
    /// What is for block-based tables alone.
    pub block_based: BlockBasedSettings,
    /// Name of what makes the prefixes that tables can be asked for; empty without.
    pub prefix_extractor: String,
}

impl TableFormat {
    /// That of a column family with these options.
    pub fn of(cf: &CfOptions) -> Self {
        let t = &cf.table;
        let block_based = BlockBasedSettings {
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
        };
        Self {
            block_based,
            prefix_extractor: cf.prefix_extractor.as_ref().map_or_else(String::new, |e| e.name().to_owned()),
        }
    }
}

impl TableFormat {
    /// Refuses tables that no database writes, with whatever options: a spec may come from anywhere.
    pub(super) fn check(&self, compression: CompressionType, opts: &CompressionOptions) -> Result<()> {
        let (index, data) = (BlockBasedIndexType::default(), DataBlockIndexType::default());
        let b = &self.block_based;
        let table = BlockBasedOptions {
            block_size: b.block_size,
            block_size_deviation: b.block_size_deviation,
            block_restart_interval: b.block_restart_interval,
            index_block_restart_interval: b.index_block_restart_interval,
            format_version: b.format_version,
            checksum: b.checksum,
            bloom_bits_per_key: b.bloom_bits_per_key,
            whole_key_filtering: b.whole_key_filtering,
            partition_filters: b.partition_filters,
            index_type: if b.two_level_index { BlockBasedIndexType::TwoLevelIndexSearch } else { index },
            metadata_block_size: b.metadata_block_size,
            data_block_index_type: b.hash_index_util_ratio.map_or(data, |_| DataBlockIndexType::BinaryAndHash),
            data_block_hash_table_util_ratio: b.hash_index_util_ratio.unwrap_or(0.75),
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
