//! The properties block of a table (RocksDB `include/rocksdb/table_properties.h`, `table/meta_blocks.cc`,
//! `table/table_properties.cc`).
//!
//! The block has one restart interval, and its keys are names in bytewise order. Numbers are varint64, texts are stored
//! unchanged. A few numbers of the block-based table are fixed32; RocksDB counts them as user-collected.

use std::collections::BTreeMap;

use crate::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockKind, BlockLayout, check_meta_keys};
use crate::coding;
use crate::error::{FormatError, Result};

/// Property of block-based tables: index type as a fixed32 ([`IndexType`]).
pub const INDEX_TYPE: &str = "rocksdb.block.based.table.index.type";
/// Property of block-based tables: `1` if filters contain whole keys.
pub const WHOLE_KEY_FILTERING: &str = "rocksdb.block.based.table.whole.key.filtering";
/// Property of block-based tables: `1` if filters contain key prefixes.
pub const PREFIX_FILTERING: &str = "rocksdb.block.based.table.prefix.filtering";
/// Property of ingested files: fixed32 version.
pub const EXTERNAL_VERSION: &str = "rocksdb.external_sst_file.version";
/// Property of ingested files: the sequence number of every key, fixed64.
pub const GLOBAL_SEQNO: &str = "rocksdb.external_sst_file.global_seqno";
/// Property that is `0` if user-defined timestamps were stripped from the keys.
pub const TIMESTAMPS_PERSISTED: &str = "rocksdb.user.defined.timestamps.persisted";
/// Property that is not zero if a user-defined index is the table's only index.
pub const USER_DEFINED_INDEX_IS_PRIMARY: &str = "rocksdb.udi.is.primary.index";

/// `column_family_id` of a table that belongs to no column family (an `SstFileWriter`'s).
pub const UNKNOWN_COLUMN_FAMILY: u64 = i32::MAX as u64;

/// How a table's index block is organised; the [`INDEX_TYPE`] property stores the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum IndexType {
    BinarySearch = 0,
    HashSearch = 1,
    TwoLevelIndexSearch = 2,
    BinarySearchWithFirstKey = 3,
}

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
    pub num_data_blocks_compression_rejected: u64,
    pub num_data_blocks_compression_bypassed: u64,
    pub num_uniform_blocks: u64,
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
    pub newest_key_time: u64,
    pub file_creation_time: u64,
    pub slow_compression_estimated_data_size: u64,
    pub fast_compression_estimated_data_size: u64,
    pub orig_file_number: u64,
    pub tail_start_offset: u64,
    /// Largest sequence number of a point key; `None` if the table does not store it (before RocksDB 10).
    pub key_largest_seqno: Option<u64>,
    /// Smallest sequence number of a point key.
    pub key_smallest_seqno: Option<u64>,
    /// Zero if the table does not store it.
    pub data_block_restart_interval: u64,
    /// Zero if the table does not store it.
    pub index_block_restart_interval: u64,
    /// Not zero if data blocks store values separately from keys.
    pub separate_key_value_in_data_block: u64,
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
    /// Everything else as stored, by its name in the block; includes user-collected properties.
    pub other: BTreeMap<String, Vec<u8>>,
}

/// When a property is written.
#[derive(Clone, Copy, PartialEq)]
enum Written {
    Always,
    /// Only if it is not zero, or not empty.
    IfSet,
}

/// A property that has a field: its name in the block and the accessor.
enum Field {
    Number(&'static str, Written, fn(&mut TableProperties) -> &mut u64),
    Optional(&'static str, fn(&mut TableProperties) -> &mut Option<u64>),
    Text(&'static str, fn(&mut TableProperties) -> &mut String),
}

impl Field {
    fn name(&self) -> &'static str {
        match self {
            Self::Number(name, ..) | Self::Optional(name, _) | Self::Text(name, _) => name,
        }
    }
}

macro_rules! number {
    ($name:literal, $written:ident, $field:ident) => {
        Field::Number($name, Written::$written, |p| &mut p.$field)
    };
}

macro_rules! optional {
    ($name:literal, $field:ident) => {
        Field::Optional($name, |p| &mut p.$field)
    };
}

macro_rules! text {
    ($name:literal, $field:ident) => {
        Field::Text($name, |p| &mut p.$field)
    };
}

/// Sorted by name.
static FIELDS: &[Field] = &[
    number!("rocksdb.column.family.id", Always, column_family_id),
    text!("rocksdb.column.family.name", column_family_name),
    text!("rocksdb.comparator", comparator_name),
    text!("rocksdb.compression", compression_name),
    text!("rocksdb.compression_options", compression_options),
    text!("rocksdb.creating.db.identity", db_id),
    text!("rocksdb.creating.host.identity", db_host_id),
    text!("rocksdb.creating.session.identity", db_session_id),
    number!("rocksdb.creation.time", Always, creation_time),
    number!("rocksdb.data.block.restart.interval", IfSet, data_block_restart_interval),
    number!("rocksdb.data.size", Always, data_size),
    number!("rocksdb.deleted.keys", Always, num_deletions),
    number!("rocksdb.file.creation.time", IfSet, file_creation_time),
    text!("rocksdb.filter.policy", filter_policy_name),
    number!("rocksdb.filter.size", Always, filter_size),
    number!("rocksdb.fixed.key.length", Always, fixed_key_len),
    number!("rocksdb.format.version", Always, format_version),
    number!("rocksdb.index.block.restart.interval", IfSet, index_block_restart_interval),
    number!("rocksdb.index.key.is.user.key", Always, index_key_is_user_key),
    number!("rocksdb.index.partitions", IfSet, index_partitions),
    number!("rocksdb.index.size", Always, index_size),
    number!("rocksdb.index.value.is.delta.encoded", Always, index_value_is_delta_encoded),
    optional!("rocksdb.key.largest.seqno", key_largest_seqno),
    optional!("rocksdb.key.smallest.seqno", key_smallest_seqno),
    number!("rocksdb.merge.operands", Always, num_merge_operands),
    text!("rocksdb.merge.operator", merge_operator_name),
    number!("rocksdb.newest.key.time", IfSet, newest_key_time),
    number!("rocksdb.num.data.blocks", Always, num_data_blocks),
    number!("rocksdb.num.data.blocks.compression.bypassed", IfSet, num_data_blocks_compression_bypassed),
    number!("rocksdb.num.data.blocks.compression.rejected", IfSet, num_data_blocks_compression_rejected),
    number!("rocksdb.num.entries", Always, num_entries),
    number!("rocksdb.num.filter_entries", Always, num_filter_entries),
    number!("rocksdb.num.range-deletions", Always, num_range_deletions),
    number!("rocksdb.num.uniform.blocks", IfSet, num_uniform_blocks),
    number!("rocksdb.oldest.key.time", Always, oldest_key_time),
    number!("rocksdb.original.file.number", Always, orig_file_number),
    text!("rocksdb.prefix.extractor.name", prefix_extractor_name),
    text!("rocksdb.property.collectors", property_collectors_names),
    number!("rocksdb.raw.key.size", Always, raw_key_size),
    number!("rocksdb.raw.value.size", Always, raw_value_size),
    number!("rocksdb.sample_for_compression.fast.data.size", IfSet, fast_compression_estimated_data_size),
    number!("rocksdb.sample_for_compression.slow.data.size", IfSet, slow_compression_estimated_data_size),
    number!("rocksdb.separate.key.value.in.data.block", IfSet, separate_key_value_in_data_block),
    number!("rocksdb.tail.start.offset", Always, tail_start_offset),
    // The size of the topmost index block; written together with the number of partitions.
    number!("rocksdb.top-level.index.size", IfSet, top_level_index_size),
];

impl TableProperties {
    /// The uncompressed properties block, as RocksDB writes it (sorted names, one restart point).
    pub fn encode_block(&self) -> Vec<u8> {
        let mut values = self.other.clone();
        // The accessors return mutable references; one copy serves them all.
        let mut copy = self.clone();
        for field in FIELDS {
            let mut value = Vec::new();
            let write = match field {
                Field::Number(_, written, get) => {
                    let v = *get(&mut copy);
                    coding::put_varint64(&mut value, v);
                    *written == Written::Always || v != 0
                }
                Field::Optional(_, get) => match *get(&mut copy) {
                    Some(v) => {
                        coding::put_varint64(&mut value, v);
                        true
                    }
                    None => false,
                },
                Field::Text(_, get) => {
                    value = std::mem::take(get(&mut copy)).into_bytes();
                    !value.is_empty()
                }
            };
            if write {
                values.insert(field.name().into(), value);
            }
        }
        let options = BlockBuilderOptions { restart_interval: i32::MAX as usize, ..Default::default() };
        let mut block = BlockBuilder::new(options);
        for (name, value) in &values {
            block.add(name.as_bytes(), value, None);
        }
        block.finish().to_vec()
    }

    /// Decodes an uncompressed properties block.
    pub fn decode_block(data: &[u8]) -> Result<Self> {
        let mut properties = Self { column_family_id: UNKNOWN_COLUMN_FAMILY, ..Self::default() };
        let mut last: Vec<u8> = Vec::new();
        let mut cursor = BlockCursor::new(BlockLayout::parse(data)?, BlockKind::Meta);
        cursor.seek_to_first(data)?;
        let mut keys = 0;
        while cursor.valid() {
            let range = cursor.value_range();
            keys += cursor.key().len();
            check_meta_keys(keys, data.len())?;
            if !last.is_empty() && cursor.key() <= last.as_slice() {
                return Err(FormatError::corruption("table properties are not in order", range.start as u64));
            }
            last.clear();
            last.extend_from_slice(cursor.key());
            let name = String::from_utf8_lossy(cursor.key());
            properties
                .set(&name, cursor.value(data))
                .map_err(|what| FormatError::corruption(format!("table property {name} {what}"), range.start as u64))?;
            cursor.next(data)?;
        }
        Ok(properties)
    }

    fn set(&mut self, name: &str, value: &[u8]) -> std::result::Result<(), &'static str> {
        let number = || coding::varint64(value).map(|(v, _)| v).ok_or("is not a number");
        match FIELDS.binary_search_by(|f| f.name().cmp(name)).ok().and_then(|i| FIELDS.get(i)) {
            Some(Field::Number(_, _, get)) => *get(self) = number()?,
            Some(Field::Optional(_, get)) => *get(self) = Some(number()?),
            Some(Field::Text(_, get)) => {
                *get(self) = String::from_utf8(value.to_vec()).map_err(|_| "is not UTF-8")?;
            }
            None => {
                self.other.insert(name.into(), value.to_vec());
            }
        }
        Ok(())
    }

    /// How the index is organised; binary search if the table does not store it. `None` for a number that is unknown in
    /// RocksDB.
    pub fn index_type(&self) -> Option<IndexType> {
        match self.other.get(INDEX_TYPE).map(|v| coding::fixed32_at(v, 0)) {
            None | Some(Some(0)) => Some(IndexType::BinarySearch),
            Some(Some(1)) => Some(IndexType::HashSearch),
            Some(Some(2)) => Some(IndexType::TwoLevelIndexSearch),
            Some(Some(3)) => Some(IndexType::BinarySearchWithFirstKey),
            _ => None,
        }
    }

    /// Sets how the index is organised.
    pub fn set_index_type(&mut self, index_type: IndexType) {
        self.other.insert(INDEX_TYPE.into(), (index_type as u32).to_le_bytes().to_vec());
    }

    /// False only if the table says that its filter has no whole keys.
    pub fn whole_key_filtering(&self) -> bool {
        self.other.get(WHOLE_KEY_FILTERING).is_none_or(|v| v != b"0")
    }

    /// False only if the table says that its filter has no prefixes.
    pub fn prefix_filtering(&self) -> bool {
        self.other.get(PREFIX_FILTERING).is_none_or(|v| v != b"0")
    }

    /// Sets what the filter contains.
    pub fn set_filtering(&mut self, whole_keys: bool, prefixes: bool) {
        let flag = |on: bool| if on { b"1".to_vec() } else { b"0".to_vec() };
        self.other.insert(WHOLE_KEY_FILTERING.into(), flag(whole_keys));
        self.other.insert(PREFIX_FILTERING.into(), flag(prefixes));
    }

    /// The sequence number of all keys of an ingested file, if the file has it.
    pub fn global_seqno(&self) -> Option<u64> {
        coding::fixed64_at(self.other.get(GLOBAL_SEQNO)?, 0)
    }

    /// False if user-defined timestamps were stripped from the keys.
    pub fn user_defined_timestamps_persisted(&self) -> bool {
        self.other.get(TIMESTAMPS_PERSISTED).is_none_or(|v| coding::varint64(v).is_none_or(|(n, _)| n != 0))
    }

    /// Every property in the block in readable form: (name, value), sorted by name.
    pub fn for_display(&self) -> Vec<(String, String)> {
        let mut all: BTreeMap<String, String> =
            self.other.iter().map(|(name, value)| (name.clone(), display_other(name, value))).collect();
        let mut copy = self.clone();
        for field in FIELDS {
            let shown = match field {
                Field::Number(_, written, get) => match *get(&mut copy) {
                    0 if *written == Written::IfSet => None,
                    v => Some(v.to_string()),
                },
                Field::Optional(_, get) => get(&mut copy).map(|v| v.to_string()),
                Field::Text(_, get) => Some(std::mem::take(get(&mut copy))).filter(|t| !t.is_empty()),
            };
            if let Some(shown) = shown {
                all.insert(field.name().into(), shown);
            }
        }
        all.into_iter().collect()
    }
}

/// A property without a field in readable form: known ones by their type, text as text, the rest in hexadecimal.
fn display_other(name: &str, value: &[u8]) -> String {
    let number = match name {
        INDEX_TYPE | EXTERNAL_VERSION => coding::fixed32_at(value, 0).map(u64::from),
        GLOBAL_SEQNO => coding::fixed64_at(value, 0),
        TIMESTAMPS_PERSISTED | USER_DEFINED_INDEX_IS_PRIMARY => coding::varint64(value).map(|(v, _)| v),
        _ => None,
    };
    if let Some(number) = number {
        return number.to_string();
    }
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_string(),
        _ => {
            let mut hex = String::from("0x");
            for b in value {
                hex.push_str(&format!("{b:02X}"));
            }
            hex
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TableProperties {
        let mut p = TableProperties {
            data_size: 12_345,
            num_entries: 1000,
            comparator_name: "leveldb.BytewiseComparator".into(),
            compression_name: "ZSTD".into(),
            column_family_id: 0,
            column_family_name: "default".into(),
            key_largest_seqno: Some(0),
            ..Default::default()
        };
        p.set_index_type(IndexType::TwoLevelIndexSearch);
        p.set_filtering(true, false);
        p.other.insert("my.own".into(), vec![0, 255, 7]);
        p
    }

    #[test]
    fn fields_are_sorted() {
        assert!(FIELDS.is_sorted_by(|a, b| a.name() < b.name()));
    }

    #[test]
    fn properties_round_trip() {
        let p = sample();
        let block = p.encode_block();
        assert_eq!(BlockLayout::parse(&block).unwrap().num_restarts(), 1);
        let back = TableProperties::decode_block(&block).unwrap();
        assert_eq!(back, p);
        assert_eq!(back.index_type(), Some(IndexType::TwoLevelIndexSearch));
        assert!(back.whole_key_filtering() && !back.prefix_filtering());
        assert!(back.user_defined_timestamps_persisted());
        assert_eq!(back.key_smallest_seqno, None);
        assert_eq!(TableProperties::decode_block(&TableProperties::default().encode_block()), Ok(Default::default()));
    }

    /// The block stores names that share almost all bytes only once; in memory they would take a thousand times as
    /// much.
    #[test]
    fn names_take_memory_in_proportion_to_the_block() {
        let block = |n: u32, shared: usize| {
            let options = BlockBuilderOptions { restart_interval: 1 << 20, ..BlockBuilderOptions::default() };
            let mut block = BlockBuilder::new(options);
            for i in 0..n {
                let mut name = vec![b'n'; shared];
                name.extend_from_slice(&i.to_be_bytes());
                block.add(&name, b"", None);
            }
            block.finish().to_vec()
        };
        assert!(TableProperties::decode_block(&block(100, 100)).is_ok());
        let refused = TableProperties::decode_block(&block(2000, 100_000)).unwrap_err();
        assert!(refused.to_string().contains("in a block of"), "{refused}");
    }

    #[test]
    fn every_field_is_written_and_read() {
        let mut p = TableProperties::default();
        for (i, field) in FIELDS.iter().enumerate() {
            match field {
                Field::Number(_, _, get) => *get(&mut p) = 1000 + i as u64,
                Field::Optional(_, get) => *get(&mut p) = Some(1000 + i as u64),
                Field::Text(_, get) => *get(&mut p) = format!("text {i}"),
            }
        }
        assert_eq!(TableProperties::decode_block(&p.encode_block()), Ok(p.clone()));
        assert_eq!(p.for_display().len(), FIELDS.len());
    }

    #[test]
    fn what_people_see() {
        let shown: BTreeMap<String, String> = sample().for_display().into_iter().collect();
        assert_eq!(shown["rocksdb.num.entries"], "1000");
        assert_eq!(shown[INDEX_TYPE], "2");
        assert_eq!(shown[WHOLE_KEY_FILTERING], "1");
        assert_eq!(shown["my.own"], "0x00FF07");
        assert!(!shown.contains_key("rocksdb.merge.operator"));
    }

    #[test]
    fn damage_never_panics() {
        let good = sample().encode_block();
        let mut rng = fastrand::Rng::with_seed(21);
        for _ in 0..20_000 {
            let mut bad = good.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(0..bad.len());
                bad[at] = rng.u8(..);
            }
            bad.truncate(bad.len() - rng.usize(0..3).min(rng.usize(0..3)));
            if let Ok(p) = TableProperties::decode_block(&bad) {
                p.for_display();
            }
        }
    }
}
