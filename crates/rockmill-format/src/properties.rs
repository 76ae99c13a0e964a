//! The properties block of a table (RocksDB `include/rocksdb/table_properties.h`).

use std::collections::BTreeMap;

use crate::error::Result;

/// A table's properties. Names in the block are `rocksdb.…`; those without a field here are kept in `other`.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs)]
pub struct TableProperties {
    pub data_size: u64,
    pub index_size: u64,
    pub index_partitions: u64,
    pub top_level_index_size: u64,
    pub index_key_is_user_key: u64,
    pub index_value_is_delta_encoded: u64,
    pub filter_size: u64,
    pub raw_key_size: u64,
    pub raw_value_size: u64,
    pub num_data_blocks: u64,
    pub num_entries: u64,
    pub num_filter_entries: u64,
    pub num_deletions: u64,
    pub num_merge_operands: u64,
    pub num_range_deletions: u64,
    pub format_version: u64,
    pub fixed_key_len: u64,
    pub column_family_id: u64,
    pub column_family_name: String,
    pub creation_time: u64,
    pub oldest_key_time: u64,
    pub file_creation_time: u64,
    pub slow_compression_estimated_data_size: u64,
    pub fast_compression_estimated_data_size: u64,
    pub orig_file_number: u64,
    pub tail_start_offset: u64,
    pub db_id: String,
    pub db_session_id: String,
    pub db_host_id: String,
    pub filter_policy_name: String,
    pub comparator_name: String,
    pub merge_operator_name: String,
    pub prefix_extractor_name: String,
    pub property_collectors_names: String,
    pub compression_name: String,
    pub compression_options: String,
    /// Everything else, by its name in the block (user-collected ones too), as stored.
    pub other: BTreeMap<String, Vec<u8>>,
}

impl TableProperties {
    /// The uncompressed properties block, as RocksDB writes it (sorted names, restart interval of its choice).
    pub fn encode_block(&self) -> Vec<u8> {
        todo!()
    }

    /// Decodes an uncompressed properties block.
    pub fn decode_block(data: &[u8]) -> Result<Self> {
        let _ = data;
        todo!()
    }

    /// Every property as it stands in the block, decoded for people: (name, value), sorted by name.
    pub fn for_display(&self) -> Vec<(String, String)> {
        todo!()
    }
}
