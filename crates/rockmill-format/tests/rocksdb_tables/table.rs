//! A minimal table reader and writer on the crate's modules: it does the work of a table layer, without its speed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockKind, BlockLayout};
use rockmill_format::checksum::ChecksumType;
use rockmill_format::compression::{self, CompressionType, Compressor, Dictionary};
use rockmill_format::filter::{BloomBuilder, FilterReader};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle, FOOTER_LEN_MAX, Footer};
use rockmill_format::key::{self, InternalKey, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK};
use rockmill_format::properties::{self, IndexType, TableProperties};
use rockmill_format::{FormatError, InternalKeyComparator, Result};

pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

pub const CHECKSUMS: [ChecksumType; 4] =
    [ChecksumType::Crc32c, ChecksumType::XxHash, ChecksumType::XxHash64, ChecksumType::Xxh3];

/// Name of RocksDB's built-in filters in the meta-index.
const BUILTIN_FILTER_NAME: &str = "rocksdb.BuiltinBloomFilter";

const BLOCK_LEN_MAX: usize = 64 << 20;

pub struct Table {
    data: Vec<u8>,
    pub footer: Footer,
    pub properties: TableProperties,
    meta: BTreeMap<String, BlockHandle>,
    index: BlockHandle,
    dictionary: Option<Dictionary>,
    /// Compression bytes of the blocks read so far.
    pub compression_bytes: RefCell<BTreeSet<u8>>,
    pub any_hash_index: Cell<bool>,
}

impl Table {
    pub fn open(data: Vec<u8>) -> Result<Self> {
        let size = data.len() as u64;
        let footer = Footer::decode(&data[data.len().saturating_sub(FOOTER_LEN_MAX)..], size)?;
        let mut table = Self {
            data,
            footer,
            properties: TableProperties::default(),
            meta: BTreeMap::new(),
            index: BlockHandle::default(),
            dictionary: None,
            compression_bytes: RefCell::default(),
            any_hash_index: Cell::default(),
        };
        for (name, value) in table.read_all(footer.metaindex, BlockKind::Meta)? {
            let name = String::from_utf8(name).map_err(|_| FormatError::corruption("metaindex name", 0))?;
            table.meta.insert(name, BlockHandle::decode(&value)?.0);
        }
        let missing = |what: &'static str| FormatError::corruption(what, 0);
        table.index = match footer.index {
            Some(index) => index,
            None => *table.meta.get("rocksdb.index").ok_or_else(|| missing("no index in the metaindex"))?,
        };
        let properties = *table.meta.get("rocksdb.properties").ok_or_else(|| missing("no properties"))?;
        table.properties = TableProperties::decode_block(&table.block(properties)?)?;
        compression::check_compression_name(footer.format_version, &table.properties.compression_name)?;
        if let Some(&handle) = table.meta.get("rocksdb.compression_dict") {
            table.dictionary = Some(Dictionary::new(&table.block(handle)?));
        }
        Ok(table)
    }

    pub fn has_dictionary(&self) -> bool {
        self.dictionary.is_some()
    }

    /// A block's contents, verified and decompressed.
    fn block(&self, handle: BlockHandle) -> Result<Vec<u8>> {
        let range = usize::try_from(handle.offset).ok().zip(usize::try_from(handle.end()).ok());
        let raw = range
            .and_then(|(from, to)| self.data.get(from..to))
            .ok_or_else(|| FormatError::corruption("block handle points outside the file", handle.offset))?;
        let byte = self.footer.verify_block(raw, handle.offset)?;
        self.compression_bytes.borrow_mut().insert(byte);
        let stored = &raw[..raw.len() - BLOCK_TRAILER_LEN];
        compression::decompress(byte, stored, self.dictionary.as_ref(), BLOCK_LEN_MAX)
    }

    fn read_all(&self, handle: BlockHandle, kind: BlockKind) -> Result<Entries> {
        let data = self.block(handle)?;
        let layout = BlockLayout::parse(&data)?;
        let mut cursor = BlockCursor::new(layout, kind);
        let mut entries = Vec::new();
        cursor.seek_to_first(&data)?;
        while cursor.valid() {
            entries.push((cursor.key().to_vec(), cursor.value(&data).to_vec()));
            cursor.next(&data)?;
        }
        // Backwards, the result is the same.
        cursor.seek_to_last(&data)?;
        for (key, value) in entries.iter().rev() {
            assert!(cursor.valid() && cursor.key() == key && cursor.value(&data) == value);
            cursor.prev(&data)?;
        }
        assert!(!cursor.valid());
        self.any_hash_index.set(self.any_hash_index.get() || layout.has_hash_index());
        Ok(entries)
    }

    fn index_kind(&self) -> BlockKind {
        BlockKind::Index {
            value_delta: self.properties.index_value_is_delta_encoded == 1,
            user_keys: self.properties.index_key_is_user_key == 1,
            first_key: self.properties.index_type() == Some(IndexType::BinarySearchWithFirstKey),
        }
    }

    fn handles(&self, index: BlockHandle, kind: BlockKind) -> Result<Vec<(Vec<u8>, BlockHandle)>> {
        let data = self.block(index)?;
        let mut cursor = BlockCursor::new(BlockLayout::parse(&data)?, kind);
        let mut handles = Vec::new();
        cursor.seek_to_first(&data)?;
        while cursor.valid() {
            handles.push((cursor.first_key(&data).to_vec(), cursor.handle()));
            cursor.next(&data)?;
        }
        Ok(handles)
    }

    fn data_blocks(&self) -> Result<Vec<(Vec<u8>, BlockHandle)>> {
        let top = self.handles(self.index, self.index_kind())?;
        if self.properties.index_type() != Some(IndexType::TwoLevelIndexSearch) {
            return Ok(top);
        }
        let mut all = Vec::new();
        for (_, partition) in top {
            all.extend(self.handles(partition, self.index_kind())?);
        }
        Ok(all)
    }

    pub fn entries(&self) -> Result<Entries> {
        let mut all = Entries::new();
        for (first_key, handle) in self.data_blocks()? {
            let entries = self.read_all(handle, BlockKind::Data { global_seqno: None })?;
            if !first_key.is_empty() {
                assert_eq!(entries[0].0, first_key, "first key in the index");
            }
            all.extend(entries);
        }
        Ok(all)
    }

    /// Looks up keys through the index, like a reader.
    pub fn check_seeks(&self, entries: &Entries) {
        let cmp = InternalKeyComparator::default();
        let user: Vec<&[u8]> = entries.iter().map(|e| key::user_key(&e.0)).collect();
        for i in (0..entries.len()).step_by(37) {
            let target = InternalKey::new(user[i], MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
            let mut handle = self.index;
            let levels = if self.properties.index_type() == Some(IndexType::TwoLevelIndexSearch) { 2 } else { 1 };
            for _ in 0..levels {
                let data = self.block(handle).unwrap();
                let mut index = BlockCursor::new(BlockLayout::parse(&data).unwrap(), self.index_kind());
                index.seek(&data, target.as_bytes(), &cmp).unwrap();
                assert!(index.valid());
                handle = index.handle();
            }
            let data = self.block(handle).unwrap();
            let kind = BlockKind::Data { global_seqno: None };
            let mut cursor = BlockCursor::new(BlockLayout::parse(&data).unwrap(), kind);
            assert!(cursor.seek_for_get(&data, target.as_bytes(), &cmp).unwrap());
            let newest = &entries[user.partition_point(|u| *u < user[i])];
            assert_eq!((cursor.key(), cursor.value(&data)), (newest.0.as_slice(), newest.1.as_slice()));
        }
    }

    pub fn range_deletions(&self) -> Result<Entries> {
        match self.meta.get("rocksdb.range_del") {
            Some(&handle) => self.read_all(handle, BlockKind::Data { global_seqno: None }),
            None => Ok(Vec::new()),
        }
    }

    /// The block of the only full filter.
    pub fn filter_bytes(&self) -> Result<Vec<u8>> {
        let handle = self.meta.get(&format!("fullfilter.{BUILTIN_FILTER_NAME}"));
        self.block(*handle.ok_or_else(|| FormatError::corruption("no full filter", 0))?)
    }

    /// The full filter, or all its partitions.
    pub fn filters(&self) -> Result<Vec<FilterReader>> {
        if let Some(&partitions) = self.meta.get(&format!("partitionedfilter.{BUILTIN_FILTER_NAME}")) {
            let kind = match self.index_kind() {
                BlockKind::Index { value_delta, user_keys, .. } => {
                    BlockKind::Index { value_delta, user_keys, first_key: false }
                }
                kind => kind,
            };
            return self
                .handles(partitions, kind)?
                .into_iter()
                .map(|(_, handle)| FilterReader::parse(self.block(handle)?))
                .collect();
        }
        Ok(vec![FilterReader::parse(self.filter_bytes()?)?])
    }
}

#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub format_version: u32,
    pub compression: CompressionType,
    pub checksum: ChecksumType,
    pub block_size: usize,
    pub restart_interval: usize,
    pub index_restart_interval: usize,
    pub hash_index: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            format_version: 5,
            compression: CompressionType::None,
            checksum: ChecksumType::Xxh3,
            block_size: 1000,
            restart_interval: 16,
            index_restart_interval: 1,
            hash_index: false,
        }
    }
}

struct Writer {
    out: Vec<u8>,
    footer: Footer,
}

impl Writer {
    fn block(&mut self, data: &[u8], compression_byte: u8) -> BlockHandle {
        let handle = BlockHandle { offset: self.out.len() as u64, size: data.len() as u64 };
        let sum = self.footer.block_checksum(data, compression_byte, handle.offset);
        self.out.extend_from_slice(data);
        self.out.push(compression_byte);
        self.out.extend_from_slice(&sum.to_le_bytes());
        handle
    }
}

/// Writes a table of `entries` that can be ingested.
pub fn write_table(entries: &Entries, o: &WriteOptions) -> Vec<u8> {
    let v6 = o.format_version >= 6;
    let footer = Footer {
        format_version: o.format_version,
        checksum: o.checksum,
        metaindex: BlockHandle::default(),
        index: None,
        base_context_checksum: if v6 { 0x1234_5678 } else { 0 },
    };
    let mut w = Writer { out: Vec::new(), footer };
    let mut compressor = Compressor::new(o.compression, compression::DEFAULT_LEVEL).unwrap();
    let mut compressed = Vec::new();
    let mut block = BlockBuilder::new(BlockBuilderOptions {
        restart_interval: o.restart_interval,
        hash_index_util_ratio: o.hash_index.then_some(0.75),
        ..Default::default()
    });
    let mut index = BlockBuilder::new(BlockBuilderOptions {
        restart_interval: o.index_restart_interval,
        value_delta_encoding: true,
        ..Default::default()
    });
    let mut filter = BloomBuilder::new(10.0);
    let mut p = TableProperties {
        comparator_name: "leveldb.BytewiseComparator".into(),
        filter_policy_name: "bloomfilter".into(),
        column_family_id: properties::UNKNOWN_COLUMN_FAMILY,
        index_key_is_user_key: 1,
        index_value_is_delta_encoded: 1,
        num_entries: entries.len() as u64,
        ..Default::default()
    };
    let mut previous: Option<BlockHandle> = None;
    for (i, (k, v)) in entries.iter().enumerate() {
        block.add(k, v, None);
        filter.add_key(key::user_key(k));
        p.raw_key_size += k.len() as u64;
        p.raw_value_size += v.len() as u64;
        if block.current_size_estimate() < o.block_size && i + 1 < entries.len() {
            continue;
        }
        let data = block.finish();
        let handle = match compressor.compress(data, &mut compressed) {
            true => w.block(&compressed, o.compression as u8),
            false => w.block(data, 0),
        };
        block.reset();
        let mut value = Vec::new();
        handle.encode(&mut value);
        let delta = previous.map(|previous| {
            let mut d = Vec::new();
            handle.encode_size_delta(&previous, &mut d);
            d
        });
        index.add(key::user_key(k), &value, delta.as_deref());
        previous = Some(handle);
        p.num_data_blocks += 1;
    }
    p.data_size = w.out.len() as u64;
    p.tail_start_offset = p.data_size;
    let filter = filter.finish();
    p.filter_size = filter.len() as u64;
    let filter = w.block(&filter, 0);
    p.index_size = index.current_size_estimate() as u64;
    let index = w.block(index.finish(), 0);
    p.compression_name = compression::compression_name(o.format_version, o.compression, true);
    p.set_index_type(IndexType::BinarySearch);
    p.set_filtering(true, false);
    p.other.insert(properties::EXTERNAL_VERSION.into(), 2u32.to_le_bytes().to_vec());
    p.other.insert(properties::GLOBAL_SEQNO.into(), 0u64.to_le_bytes().to_vec());
    let properties = w.block(&p.encode_block(), 0);
    let mut meta = vec![
        (format!("fullfilter.{BUILTIN_FILTER_NAME}"), filter),
        ("rocksdb.index".into(), index),
        ("rocksdb.properties".into(), properties),
    ];
    if !v6 {
        meta.remove(1);
    }
    let mut metaindex = BlockBuilder::new(BlockBuilderOptions { restart_interval: 1, ..Default::default() });
    for (name, handle) in meta {
        let mut value = Vec::new();
        handle.encode(&mut value);
        metaindex.add(name.as_bytes(), &value, None);
    }
    let metaindex = w.block(metaindex.finish(), 0);
    let footer = Footer { metaindex, index: if v6 { None } else { Some(index) }, ..footer };
    let footer = footer.encode(w.out.len() as u64);
    w.out.extend_from_slice(&footer);
    w.out
}
