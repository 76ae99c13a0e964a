//! Opening a table.
//!
//! 1. Read the end of the file once; it nearly always holds everything up to step 6.
//! 2. Footer: format version, checksum, where the metaindex is.
//! 3. Metaindex: names and places of the other blocks.
//! 4. Properties: comparator, index type, features that this store lacks, global sequence number.
//! 5. Compression dictionary, range tombstones.
//! 6. Index and filter, all partitions, into memory.
//!
//! Every block is checked here, even if reads do not verify checksums.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout, check_meta_keys};
use rockmill_format::coding;
use rockmill_format::compression::{Dictionary, check_compression_name, decompress_into};
use rockmill_format::filter::FilterReader;
use rockmill_format::footer::{BlockHandle, FOOTER_LEN_MAX, Footer};
use rockmill_format::key::{MAX_SEQUENCE, ParsedInternalKey, ValueType};
use rockmill_format::properties::{
    EXTERNAL_VERSION, GLOBAL_SEQNO, INDEX_TYPE, IndexType, TIMESTAMPS_PERSISTED, TableProperties,
};
use rockmill_format::{FormatError, InternalKeyComparator, SequenceNumber, SliceTransform};
use rockmill_io::RandomAccessFile;

use super::block_file::{BlockFile, Stored, read_exact};
use super::filter::{Filter, FilterKeys};
use super::index::TableIndex;
use super::meta::{MetaPlace, TableMeta};
use super::names;
use super::reader::BlockBasedTable;
use super::seek_span::SeekSpan;
use crate::error::{Error, Result};
use crate::range_del::{FragmentedRangeTombstones, RangeTombstone};
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::sync::Mutex;
use crate::table::options::{AutoReadahead, TableOpenOptions};

/// Bounds of the first read, in bytes. Index and filter are usually below a fortieth of the file.
const TAIL_LEN_MIN: u64 = 16 << 10;
const TAIL_LEN_MAX: u64 = 2 << 20;
const TAIL_FRACTION: u64 = 40;
/// Up to this size the rest of a longer tail is read at once; beyond it, block by block.
const TAIL_EXTENSION_MAX: u64 = 256 << 20;

/// The end of the file, in memory while the table is being opened.
struct Tail {
    offset: u64,
    bytes: Vec<u8>,
}

impl Tail {
    fn read(file: &dyn RandomAccessFile, path: &Path) -> Result<Self> {
        let size = file.size();
        let len = (size / TAIL_FRACTION).clamp(TAIL_LEN_MIN, TAIL_LEN_MAX).max(FOOTER_LEN_MAX as u64).min(size);
        let mut bytes = vec![0; len as usize];
        let offset = size - len;
        read_exact(file, path, offset, &mut bytes)?;
        Ok(Self { offset, bytes })
    }

    /// Makes the tail start at `offset` if it starts after it.
    fn extend_to(&mut self, blocks: &BlockFile, offset: u64) -> Result<()> {
        if offset >= self.offset || self.offset - offset > TAIL_EXTENSION_MAX {
            return Ok(());
        }
        let more = (self.offset - offset) as usize;
        let mut bytes = vec![0; more + self.bytes.len()];
        blocks.read_exact(offset, &mut bytes[..more])?;
        bytes[more..].copy_from_slice(&self.bytes);
        *self = Self { offset, bytes };
        Ok(())
    }

    /// A block with its trailer.
    fn raw(&self, blocks: &BlockFile, handle: BlockHandle) -> Result<Vec<u8>> {
        let len = blocks.len_with_trailer(handle)?;
        if let Some(start) = handle.offset.checked_sub(self.offset)
            && let Some(raw) = self.bytes.get(start as usize..).and_then(|b| b.get(..len))
        {
            blocks.statistics.add(Ticker::TableOpenPrefetchTailHit, 1);
            return Ok(raw.to_vec());
        }
        blocks.statistics.add(Ticker::TableOpenPrefetchTailMiss, 1);
        let mut raw = vec![0; len];
        blocks.read_exact(handle.offset, &mut raw)?;
        Ok(raw)
    }

    /// A block's contents, checked and uncompressed.
    fn block(&self, blocks: &BlockFile, handle: BlockHandle) -> Result<Vec<u8>> {
        let mut raw = self.raw(blocks, handle)?;
        let mut out = Vec::new();
        match blocks.decode(handle, &raw, true, None, &mut out)? {
            Stored::Plain => {
                raw.truncate(handle.size as usize);
                Ok(raw)
            }
            Stored::Decompressed => Ok(out),
        }
    }
}

/// See the module's description.
pub(super) fn open(file: Arc<dyn RandomAccessFile>, options: TableOpenOptions) -> Result<BlockBasedTable> {
    let TableOpenOptions { path, cmp, cache, largest_seqno, statistics, read_protection, prefix_extractor } = options;
    let mut tail = Tail::read(&*file, &path)?;
    let footer = Footer::decode(&tail.bytes, file.size()).map_err(|e| Error::format(&path, &e))?;
    let mut blocks = BlockFile {
        file,
        path,
        footer,
        dictionary: None,
        block_len_max: u32::MAX as usize,
        statistics,
        read_protection,
    };
    blocks.statistics.record(Histogram::TableOpenPrefetchTailReadBytes, tail.bytes.len() as u64);

    let metaindex = read_metaindex(&tail, &blocks)?;
    let properties = match find(&metaindex, names::PROPERTIES) {
        Some(handle) => read_properties(&tail, &blocks, handle)?,
        None => return Err(Error::corruption(format!("{}: no properties block", blocks.path.display()))),
    };
    check_features(&blocks, &properties, &cmp)?;
    blocks.block_len_max = block_len_max(&properties);
    let index_type = index_type(&blocks, &properties)?;
    let global_seqno = global_seqno(&properties, largest_seqno)
        .map_err(|what| Error::corruption(format!("{}: {what}", blocks.path.display())))?;
    let index_handle = match footer.index.or_else(|| find(&metaindex, names::INDEX)) {
        Some(handle) => handle,
        None => return Err(Error::corruption(format!("{}: no index block", blocks.path.display()))),
    };

    let first = metaindex.iter().map(|(_, h)| h.offset).chain([index_handle.offset]).min().unwrap_or(u64::MAX);
    tail.extend_to(&blocks, first)?;
    if let Some(handle) = find(&metaindex, names::COMPRESSION_DICT) {
        blocks.dictionary = Some(Dictionary::new(&tail.block(&blocks, handle)?));
    }
    let (range_tombstones, range_tombstones_stored) = match find(&metaindex, names::RANGE_DEL) {
        Some(handle) => read_range_tombstones(&tail, &blocks, handle, global_seqno, &cmp)?,
        None => (None, 0),
    };
    // Damage is reported only by a table that needs this block: the file may be one among several.
    let tph_block = find(&metaindex, names::TPH).and_then(|handle| tail.block(&blocks, handle).ok());
    let shape = IndexShape::new(&properties, index_type);
    let index = read_index(&mut tail, &blocks, index_handle, shape, &cmp)?;
    check_apart(&blocks, &index, index_handle, &metaindex)?;
    let filter_keys = filter_keys(&properties, prefix_extractor);
    let filter = if filter_keys.whole || filter_keys.prefixes.is_some() {
        read_filter(&mut tail, &blocks, &metaindex, shape, &cmp)?
    } else {
        Filter::None
    };

    let cache = cache.map(|c| {
        let id = c.new_id();
        (c, id)
    });
    Ok(BlockBasedTable {
        blocks,
        cmp,
        cache,
        data_end: index.len().checked_sub(1).map_or(0, |last| index.handle(last).end()),
        data_blocks: index.len(),
        places: None,
        meta: MetaPlace::Here(TableMeta { index, filter }),
        cached_meta: None,
        filter_keys,
        range_tombstones,
        range_tombstones_stored,
        properties,
        tph_block: Mutex::new(tph_block),
        index_type,
        index_handle,
        metaindex,
        global_seqno,
        auto_readahead: AutoReadahead::default(),
        seek_span: SeekSpan::default(),
    })
}

/// Reads index and filter again, from a table that gave them to the cache.
pub(super) fn load_meta(table: &BlockBasedTable) -> Result<TableMeta> {
    let blocks = &table.blocks;
    let mut tail = Tail { offset: blocks.file.size(), bytes: Vec::new() };
    let wanted = [names::FULL_FILTER, names::PARTITIONED_FILTER].map(|name| find(&table.metaindex, name));
    let handles = || wanted.iter().flatten().chain([&table.index_handle]);
    let first = handles().map(|h| h.offset).min().unwrap_or(u64::MAX);
    let end = handles().map(|h| h.end()).max().unwrap_or(0);
    // One read for all if they are together, which is the normal case; the rest of the file's end is not wanted.
    if end <= blocks.file.size() && end.saturating_sub(first) <= TAIL_EXTENSION_MAX {
        tail = Tail { offset: end, bytes: Vec::new() };
        tail.extend_to(blocks, first)?;
    }
    let shape = IndexShape::new(&table.properties, table.index_type);
    let index = read_index(&mut tail, blocks, table.index_handle, shape, &table.cmp)?;
    check_apart(blocks, &index, table.index_handle, &table.metaindex)?;
    let asked = table.filter_keys.whole || table.filter_keys.prefixes.is_some();
    let filter =
        if asked { read_filter(&mut tail, blocks, &table.metaindex, shape, &table.cmp)? } else { Filter::None };
    Ok(TableMeta { index, filter })
}

/// The properties of a table, and nothing else of it: neither its comparator nor its features are looked at.
pub fn properties_of(file: Arc<dyn RandomAccessFile>, path: &Path) -> Result<TableProperties> {
    properties_with_block(file, path, None).map(|(properties, _)| properties)
}

/// The same, and a block outside of the data by its name, if the table has it. The end of the file is read once.
pub(in crate::table) fn properties_with_block(
    file: Arc<dyn RandomAccessFile>,
    path: &Path,
    name: Option<&str>,
) -> Result<(TableProperties, Option<Vec<u8>>)> {
    let tail = Tail::read(&*file, path)?;
    let footer = Footer::decode(&tail.bytes, file.size()).map_err(|e| Error::format(path, &e))?;
    let blocks = BlockFile {
        file,
        path: path.to_owned(),
        footer,
        dictionary: None,
        block_len_max: u32::MAX as usize,
        statistics: None,
        read_protection: None,
    };
    let metaindex = read_metaindex(&tail, &blocks)?;
    let Some(handle) = find(&metaindex, names::PROPERTIES) else {
        return Err(Error::corruption(format!("{}: no properties block", path.display())));
    };
    let properties = read_properties(&tail, &blocks, handle)?;
    let block = name.and_then(|name| find(&metaindex, name)).map(|handle| tail.block(&blocks, handle)).transpose()?;
    Ok((properties, block))
}

fn find(metaindex: &[(String, BlockHandle)], name: &str) -> Option<BlockHandle> {
    metaindex.iter().find(|(n, _)| n == name).map(|(_, handle)| *handle)
}

/// Walks over the entries of a block of plain keys.
fn for_each_meta(
    blocks: &BlockFile,
    handle: BlockHandle,
    data: &[u8],
    kind: BlockKind,
    mut f: impl FnMut(&[u8], std::ops::Range<usize>) -> std::result::Result<(), FormatError>,
) -> Result<()> {
    let mut walk = || {
        let mut cursor = BlockCursor::new(BlockLayout::parse(data)?, kind);
        cursor.seek_to_first(data)?;
        let mut keys = 0;
        while cursor.valid() {
            keys += cursor.key().len();
            check_meta_keys(keys, data.len())?;
            f(cursor.key(), cursor.value_range())?;
            cursor.next(data)?;
        }
        Ok(())
    };
    walk().map_err(|e| blocks.error(handle, &e))
}

fn read_metaindex(tail: &Tail, blocks: &BlockFile) -> Result<Vec<(String, BlockHandle)>> {
    let handle = blocks.footer.metaindex;
    let data = tail.block(blocks, handle).map_err(|e| e.context("metaindex"))?;
    let mut entries = Vec::new();
    for_each_meta(blocks, handle, &data, BlockKind::Meta, |key, value| {
        let (handle, _) = BlockHandle::decode(data.get(value.clone()).unwrap_or(&[]))?;
        entries.push((String::from_utf8_lossy(key).into_owned(), handle));
        Ok(())
    })?;
    Ok(entries)
}

fn read_properties(tail: &Tail, blocks: &BlockFile, handle: BlockHandle) -> Result<TableProperties> {
    let mut raw = tail.raw(blocks, handle)?;
    if let Err(e) = blocks.footer.verify_block(&raw, handle.offset) {
        // RocksDB may have written an ingested file's global sequence number into the block without updating the
        // checksum: then the checksum must be right for the number zero.
        let mut original = raw.clone();
        let contents = &raw[..handle.size as usize];
        let mut place = None;
        for_each_meta(blocks, handle, contents, BlockKind::Meta, |key, value| {
            if key == GLOBAL_SEQNO.as_bytes() {
                place = Some(value);
            }
            Ok(())
        })?;
        let zeroed = place.and_then(|place| original.get_mut(place)).map(|bytes| bytes.fill(0)).is_some();
        if !zeroed || blocks.footer.verify_block(&original, handle.offset).is_err() {
            return Err(blocks.error(handle, &e).context("properties"));
        }
    }
    let compression = raw.get(handle.size as usize).copied().unwrap_or(0);
    raw.truncate(handle.size as usize);
    let decode = |data: &[u8]| TableProperties::decode_block(data).map_err(|e| blocks.error(handle, &e));
    if compression == 0 {
        return decode(&raw);
    }
    let mut out = Vec::new();
    decompress_into(compression, &raw, None, blocks.block_len_max, &mut out).map_err(|e| blocks.error(handle, &e))?;
    decode(&out)
}

/// Refuses what this store cannot read, by name.
fn check_features(blocks: &BlockFile, properties: &TableProperties, cmp: &InternalKeyComparator) -> Result<()> {
    let path = blocks.path.display();
    let ours = cmp.user_comparator().name();
    let theirs = properties.comparator_name.as_str();
    // RocksDB 4 stored the name of the order of internal keys, which has the user's name after a colon.
    let theirs = theirs.strip_prefix("rocksdb.InternalKeyComparator:").unwrap_or(theirs);
    let timestamps = theirs.ends_with(".u64ts")
        || properties.other.contains_key(names::TIMESTAMP_MIN)
        || properties.other.contains_key(TIMESTAMPS_PERSISTED);
    if timestamps && theirs != ours {
        return Err(Error::not_supported(format!("{path}: user-defined timestamps (comparator '{theirs}')")));
    }
    if !theirs.is_empty() && theirs != "nullptr" && theirs != ours {
        return Err(Error::invalid_argument(format!(
            "{path}: the table's comparator is '{theirs}', the column family's is '{ours}': open it with the \
             comparator it was written with"
        )));
    }
    check_compression_name(blocks.footer.format_version, &properties.compression_name)
        .map_err(|e| Error::format(&blocks.path, &e))
}

/// A bound on every uncompressed block, from the properties: no index or data block has more than all keys (twice,
/// with first keys), all values, and some bytes for each entry.
fn block_len_max(p: &TableProperties) -> usize {
    let keys = p.raw_key_size.saturating_mul(2);
    let entries = p.num_entries.saturating_mul(64);
    let len = keys.saturating_add(p.raw_value_size).saturating_add(entries).saturating_add(1 << 20);
    len.min(u64::from(u32::MAX)) as usize
}

fn index_type(blocks: &BlockFile, properties: &TableProperties) -> Result<IndexType> {
    let path = blocks.path.display();
    let Some(value) = properties.other.get(INDEX_TYPE) else {
        return Err(Error::corruption(format!("{path}: property {} is missing", INDEX_TYPE)));
    };
    let Some(number) = coding::fixed32_at(value, 0) else {
        return Err(Error::corruption(format!("{path}: property {} has no number", INDEX_TYPE)));
    };
    Ok(match number {
        0 => IndexType::BinarySearch,
        1 => IndexType::HashSearch,
        2 => IndexType::TwoLevelIndexSearch,
        3 => IndexType::BinarySearchWithFirstKey,
        _ => return Err(Error::not_supported(format!("{path}: index type {number}"))),
    })
}

/// The sequence number that an ingested file's keys have (RocksDB `GetGlobalSequenceNumber`).
fn global_seqno(
    properties: &TableProperties,
    largest_seqno: Option<SequenceNumber>,
) -> std::result::Result<Option<SequenceNumber>, String> {
    let stored = properties.other.get(GLOBAL_SEQNO);
    let stored = match stored.map(|v| coding::fixed64_at(v, 0).ok_or(v)) {
        None => None,
        Some(Ok(v)) => Some(v),
        Some(Err(v)) => return Err(format!("property {} has {} bytes", GLOBAL_SEQNO, v.len())),
    };
    let Some(version) = properties.other.get(EXTERNAL_VERSION) else {
        return match stored {
            Some(n) => Err(format!("a table that was not ingested has the global sequence number {n}")),
            None => Ok(None),
        };
    };
    match (coding::fixed32_at(version, 0), stored) {
        (Some(1), None) => return Ok(None),
        (Some(1), Some(n)) => return Err(format!("an ingested file of version 1 has the global sequence number {n}")),
        (Some(2), _) => {}
        (version, _) => return Err(format!("ingested file of unknown version {version:?}")),
    }
    let mut seqno = stored.unwrap_or(0);
    if let Some(largest) = largest_seqno.filter(|n| *n < MAX_SEQUENCE) {
        if seqno == 0 {
            seqno = largest;
        }
        if seqno != largest {
            return Err(format!(
                "an ingested file has the global sequence number {seqno}, but {largest} is the largest in the MANIFEST"
            ));
        }
    }
    if seqno > MAX_SEQUENCE {
        return Err(format!("global sequence number {seqno} is over the largest possible"));
    }
    Ok(Some(seqno))
}

/// The range tombstones, fragmented, and how many the table has.
fn read_range_tombstones(
    tail: &Tail,
    blocks: &BlockFile,
    handle: BlockHandle,
    global_seqno: Option<SequenceNumber>,
    cmp: &InternalKeyComparator,
) -> Result<(Option<Arc<FragmentedRangeTombstones>>, u64)> {
    let data = tail.block(blocks, handle).map_err(|e| e.context("range tombstones"))?;
    let mut tombstones = Vec::new();
    for_each_meta(blocks, handle, &data, BlockKind::Data { global_seqno }, |key, value| {
        let key = ParsedInternalKey::parse(key)?;
        if key.value_type != ValueType::RangeDeletion {
            return Err(FormatError::corruption(
                format!("range tombstone block has an entry of type {:?}", key.value_type),
                value.start as u64,
            ));
        }
        tombstones.push(RangeTombstone {
            begin: key.user_key.to_vec(),
            end: data.get(value).unwrap_or(&[]).to_vec(),
            seq: key.sequence,
        });
        Ok(())
    })?;
    let stored = tombstones.len() as u64;
    let fragmented = FragmentedRangeTombstones::new(&tombstones, cmp);
    Ok(((!fragmented.is_empty()).then(|| Arc::new(fragmented)), stored))
}

/// How index blocks are encoded; the index over filter partitions is encoded alike.
#[derive(Clone, Copy)]
pub(super) struct IndexShape {
    pub index_type: IndexType,
    value_delta: bool,
    user_keys: bool,
}

impl IndexShape {
    pub fn new(properties: &TableProperties, index_type: IndexType) -> Self {
        Self {
            index_type,
            value_delta: properties.index_value_is_delta_encoded != 0,
            user_keys: properties.index_key_is_user_key != 0,
        }
    }

    /// Blocks whose entries point to data blocks.
    pub fn leaf(self) -> BlockKind {
        let first_key = self.index_type == IndexType::BinarySearchWithFirstKey;
        BlockKind::Index { value_delta: self.value_delta, user_keys: self.user_keys, first_key }
    }

    /// Blocks whose entries point to partitions.
    pub fn top(self) -> BlockKind {
        BlockKind::Index { value_delta: self.value_delta, user_keys: self.user_keys, first_key: false }
    }
}

fn read_index(
    tail: &mut Tail,
    blocks: &BlockFile,
    handle: BlockHandle,
    shape: IndexShape,
    cmp: &InternalKeyComparator,
) -> Result<TableIndex> {
    let mut index = TableIndex::new(shape.user_keys);
    let append = |tail: &Tail, handle: BlockHandle, kind: BlockKind, index: &mut TableIndex| {
        let data = tail.block(blocks, handle)?;
        index.append_block(&data, kind, cmp, blocks.file.size()).map_err(|e| blocks.error(handle, &e))
    };
    if shape.index_type == IndexType::TwoLevelIndexSearch {
        let mut top = TableIndex::new(shape.user_keys);
        append(tail, handle, shape.top(), &mut top).map_err(|e| e.context("index"))?;
        if top.len() > 0 {
            tail.extend_to(blocks, top.handle(0).offset)?;
        }
        for i in 0..top.len() {
            append(tail, top.handle(i), shape.leaf(), &mut index).map_err(|e| e.context("index partition"))?;
        }
    } else {
        append(tail, handle, shape.leaf(), &mut index).map_err(|e| e.context("index"))?;
    }
    index.finish(cmp);
    Ok(index)
}

/// No data block may overlap the index or another block of the table's end.
fn check_apart(
    blocks: &BlockFile,
    index: &TableIndex,
    index_handle: BlockHandle,
    metaindex: &[(String, BlockHandle)],
) -> Result<()> {
    let metaindex = metaindex.iter().map(|(name, handle)| (name.as_str(), *handle));
    for (name, other) in [("index", index_handle), ("metaindex", blocks.footer.metaindex)].into_iter().chain(metaindex)
    {
        if let Some(i) = index.overlapping(other) {
            let handle = index.handle(i);
            let what = format!("the block of {} bytes here overlaps {name:?} at {}", handle.size, other.offset);
            return Err(blocks.error(handle, &FormatError::corruption(what, 0)).context("index"));
        }
    }
    Ok(())
}

/// What the filter holds, as far as reads can ask for it.
fn filter_keys(properties: &TableProperties, ours: Option<SliceTransform>) -> FilterKeys {
    let theirs = properties.prefix_extractor_name.as_str();
    let prefixes = properties.prefix_filtering().then(|| {
        // Prefixes are meaningful only with the extractor that made them (RocksDB's `PrefixExtractorChanged`).
        ours.filter(|e| e.name() == theirs).or_else(|| SliceTransform::from_name(theirs))
    });
    FilterKeys { whole: properties.whole_key_filtering(), prefixes: prefixes.flatten() }
}

fn read_filter(
    tail: &mut Tail,
    blocks: &BlockFile,
    metaindex: &[(String, BlockHandle)],
    shape: IndexShape,
    cmp: &InternalKeyComparator,
) -> Result<Filter> {
    let parse = |tail: &Tail, handle: BlockHandle| {
        let data = tail.block(blocks, handle).map_err(|e| e.context("filter"))?;
        FilterReader::parse(data).map_err(|e| blocks.error(handle, &e).context("filter"))
    };
    // A filter of another policy has another name, and is not used.
    if let Some(handle) = find(metaindex, names::FULL_FILTER) {
        return Ok(Filter::Full(parse(tail, handle)?));
    }
    let Some(handle) = find(metaindex, names::PARTITIONED_FILTER) else { return Ok(Filter::None) };
    let mut index = TableIndex::new(shape.user_keys);
    let data = tail.block(blocks, handle).map_err(|e| e.context("filter index"))?;
    index.append_block(&data, shape.top(), cmp, blocks.file.size()).map_err(|e| blocks.error(handle, &e))?;
    index.finish(cmp);
    if index.len() > 0 {
        tail.extend_to(blocks, index.handle(0).offset)?;
    }
    let partitions = (0..index.len()).map(|i| parse(tail, index.handle(i))).collect::<Result<_>>()?;
    Ok(Filter::Partitioned(index, partitions))
}
