//! What a table consists of, for `rockmill dump` and for people who examine a damaged file.

use rockmill_format::block::BlockCursor;
use rockmill_format::compression::CompressionType;
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_format::key::ParsedInternalKey;
use rockmill_format::properties::IndexType;

use super::iter::Source;
use super::names;
use super::open::IndexShape;
use super::reader::BlockBasedTable;
use super::stream::{BlockStream, StreamReads};
use super::verify::hex;
use crate::error::{Error, Result};

/// What a block holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableBlockKind {
    /// Entries.
    Data,
    /// A filter for all keys.
    Filter,
    /// A filter for a part of the keys.
    FilterPartition,
    /// The index over filter partitions.
    FilterIndex,
    /// The index, or with partitions the index over them.
    Index,
    /// A part of the index.
    IndexPartition,
    /// Range tombstones.
    RangeTombstones,
    /// Properties.
    Properties,
    /// Compression dictionary.
    CompressionDictionary,
    /// Names and places of the others.
    Metaindex,
    /// One whose name in the metaindex is not known here.
    Other(String),
}

impl std::fmt::Display for TableBlockKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Filter => "filter",
            Self::FilterPartition => "filter partition",
            Self::FilterIndex => "filter index",
            Self::Index => "index",
            Self::IndexPartition => "index partition",
            Self::RangeTombstones => "range tombstones",
            Self::Properties => "properties",
            Self::CompressionDictionary => "compression dictionary",
            Self::Metaindex => "metaindex",
            Self::Other(name) => name,
        })
    }
}

/// One block of a table.
#[derive(Debug, Clone)]
pub struct TableBlock {
    /// What it holds.
    pub kind: TableBlockKind,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Stored size in bytes, without the trailer.
    pub size: u64,
    /// How it is stored; `None` when the number is unknown.
    pub compression: Option<CompressionType>,
    /// Uncompressed size in bytes; `None` when the block could not be read.
    pub uncompressed_size: Option<u64>,
    /// Entries; `None` where the block has none or could not be read.
    pub entries: Option<u64>,
    /// The block's separator in the index, as stored; only for data blocks.
    pub separator: Option<Vec<u8>>,
    /// Why it could not be read.
    pub error: Option<Error>,
}

impl BlockBasedTable {
    /// Every block of the file in order of offset. All are read; a damaged one is listed with its error.
    pub fn describe(&self) -> Vec<TableBlock> {
        let mut blocks = Vec::new();
        let shape = IndexShape::new(&self.properties, self.index_type);
        if let Ok(meta) = self.meta(false, false) {
            for i in 0..meta.index.len() {
                let mut block = self.data_block_info(meta.index.handle(i));
                block.separator = Some(meta.index.separator(i).to_vec());
                blocks.push(block);
            }
        }
        for (name, handle) in &self.metaindex {
            let kind = match name.as_str() {
                names::PROPERTIES => TableBlockKind::Properties,
                names::INDEX => continue,
                names::COMPRESSION_DICT => TableBlockKind::CompressionDictionary,
                names::RANGE_DEL => TableBlockKind::RangeTombstones,
                n if n.starts_with("fullfilter.") => TableBlockKind::Filter,
                n if n.starts_with("partitionedfilter.") => TableBlockKind::FilterIndex,
                n => TableBlockKind::Other(n.into()),
            };
            if kind == TableBlockKind::FilterIndex {
                for (_, partition) in self.index_entries(*handle, shape.top()).unwrap_or_default() {
                    blocks.push(self.meta_block_info(TableBlockKind::FilterPartition, partition));
                }
            }
            blocks.push(self.meta_block_info(kind, *handle));
        }
        if self.index_type == IndexType::TwoLevelIndexSearch {
            for (_, partition) in self.index_entries(self.index_handle, shape.top()).unwrap_or_default() {
                blocks.push(self.meta_block_info(TableBlockKind::IndexPartition, partition));
            }
        }
        blocks.push(self.meta_block_info(TableBlockKind::Index, self.index_handle));
        blocks.push(self.meta_block_info(TableBlockKind::Metaindex, self.footer().metaindex));
        blocks.sort_by_key(|b| b.offset);
        blocks
    }

    fn data_block_info(&self, handle: BlockHandle) -> TableBlock {
        let mut stream = BlockStream::new(&StreamReads::unpaced(0, true));
        let contents = stream.load_block(self, handle).map(|_| stream.data().to_vec());
        self.block_info(TableBlockKind::Data, handle, contents)
    }

    fn meta_block_info(&self, kind: TableBlockKind, handle: BlockHandle) -> TableBlock {
        let contents = self.read_meta_block(handle);
        self.block_info(kind, handle, contents)
    }

    fn block_info(&self, kind: TableBlockKind, handle: BlockHandle, contents: Result<Vec<u8>>) -> TableBlock {
        let mut trailer = [0; BLOCK_TRAILER_LEN];
        let place = handle.offset.saturating_add(handle.size);
        let stored =
            self.blocks.read_exact(place, &mut trailer).ok().and_then(|()| CompressionType::from_u8(trailer[0]));
        let mut block = TableBlock {
            kind,
            offset: handle.offset,
            size: handle.size,
            compression: stored,
            uncompressed_size: None,
            entries: None,
            separator: None,
            error: None,
        };
        match contents {
            Err(e) => block.error = Some(e),
            Ok(contents) => {
                block.uncompressed_size = Some(contents.len() as u64);
                match self.count_entries(&block.kind, handle, &contents) {
                    Ok(count) => block.entries = count,
                    Err(e) => block.error = Some(e),
                }
            }
        }
        block
    }

    /// Entries of a block that has any.
    fn count_entries(&self, kind: &TableBlockKind, handle: BlockHandle, contents: &[u8]) -> Result<Option<u64>> {
        use rockmill_format::block::BlockKind;
        let shape = IndexShape::new(&self.properties, self.index_type);
        let block_kind = match kind {
            TableBlockKind::Data | TableBlockKind::RangeTombstones => self.data_kind(),
            TableBlockKind::Index if self.index_type != IndexType::TwoLevelIndexSearch => shape.leaf(),
            TableBlockKind::Index | TableBlockKind::FilterIndex => shape.top(),
            TableBlockKind::IndexPartition => shape.leaf(),
            TableBlockKind::Properties | TableBlockKind::Metaindex => BlockKind::Meta,
            TableBlockKind::Filter
            | TableBlockKind::FilterPartition
            | TableBlockKind::CompressionDictionary
            | TableBlockKind::Other(_) => return Ok(None),
        };
        let wrap = |e| self.blocks.error(handle, &e);
        let mut cursor = BlockCursor::new(self.blocks.layout(handle, contents)?, block_kind);
        let mut count = 0;
        cursor.seek_to_first(contents).map_err(wrap)?;
        while cursor.valid() {
            count += 1;
            cursor.next(contents).map_err(wrap)?;
        }
        Ok(Some(count))
    }
}

/// An internal key for people: user key in hexadecimal digits, sequence number, type.
pub fn describe_internal_key(ikey: &[u8]) -> String {
    match ParsedInternalKey::parse(ikey) {
        Ok(k) => format!("{} seq {} {:?}", hex(k.user_key), k.sequence, k.value_type),
        Err(e) => format!("{} ({e})", hex(ikey)),
    }
}
