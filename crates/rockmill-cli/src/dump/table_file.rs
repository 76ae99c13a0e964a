//! Reads a table file block by block, without the store: reports damage, and still shows the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill::internals::{OwnFile, told_by_own_file};
use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout};
use rockmill_format::compression::{CompressionType, Dictionary, decompress};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle, FOOTER_LEN_MAX, Footer};
use rockmill_format::properties::{IndexType, TableProperties};
use rockmill_io::{FileSystem, RandomAccessFile};

use crate::error::{CliError, Result};

/// Largest block, uncompressed, in bytes; a larger claim is damage.
const BLOCK_LEN_MAX: usize = 1 << 30;

const PROPERTIES: &str = "rocksdb.properties";
const INDEX: &str = "rocksdb.index";
const DICTIONARY: &str = "rocksdb.compression_dict";
const TPH: &str = "rockmill.tph";
/// Range tombstones.
pub const RANGE_DELETIONS: &str = "rocksdb.range_del";

/// A block's contents and how it was stored.
pub struct Block {
    /// Uncompressed contents.
    pub data: Vec<u8>,
    /// How it is compressed.
    pub compression: &'static str,
    /// A description of the damage, if the checksum does not match.
    pub damage: Option<String>,
}

/// An entry of the index.
pub struct IndexEntry {
    /// A key at or after the block's last key and before the next block's first key.
    pub separator: Vec<u8>,
    /// Where the block is.
    pub handle: BlockHandle,
    /// The index partition that contains it, in a two-level index.
    pub partition: Option<BlockHandle>,
}

/// An open table file.
pub struct TableFile {
    file: Arc<dyn RandomAccessFile>,
    path: PathBuf,
    /// The footer.
    pub footer: Footer,
    /// Blocks by name.
    pub metaindex: Vec<(String, BlockHandle)>,
    dictionary: Option<Dictionary>,
    properties: Option<TableProperties>,
}

impl TableFile {
    /// Reads footer and metaindex.
    pub fn open(fs: &Arc<dyn FileSystem>, path: &Path) -> Result<Self> {
        let file = fs.open_random(path, false).map_err(|e| CliError::io("cannot open table", &e))?;
        let size = file.size();
        let tail_len = size.min(FOOTER_LEN_MAX as u64);
        let mut tail = vec![0; tail_len as usize];
        read_exact(&*file, path, size - tail_len, &mut tail)?;
        let footer = Footer::decode(&tail, size).map_err(|e| rockmill::Error::format(path, &e))?;
        let mut table =
            Self { file, path: path.to_owned(), footer, metaindex: Vec::new(), dictionary: None, properties: None };
        let block = table.block(footer.metaindex, false)?;
        table.whole(footer.metaindex, &block)?;
        let mut metaindex = Vec::new();
        table.each(footer.metaindex, &block.data, BlockKind::Meta, |key, value, _| {
            let (handle, _) = BlockHandle::decode(value).map_err(|e| rockmill::Error::format(path, &e))?;
            metaindex.push((String::from_utf8_lossy(key).into_owned(), handle));
            Ok(true)
        })?;
        table.metaindex = metaindex;
        if let Some(handle) = table.find(DICTIONARY) {
            let block = table.block(handle, false)?;
            table.dictionary = Some(Dictionary::new(&block.data));
        }
        Ok(table)
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.file.size()
    }

    /// Its contents as the head of a TPH table, if it is one.
    pub fn tph_head(&self) -> Result<Option<OwnFile>> {
        match self.find(TPH) {
            Some(_) => Ok(Some(told_by_own_file(Arc::clone(&self.file), &self.path)?)),
            None => Ok(None),
        }
    }

    /// The block with this name.
    pub fn find(&self, name: &str) -> Option<BlockHandle> {
        self.metaindex.iter().find(|(n, _)| n == name).map(|(_, h)| *h)
    }

    fn corrupt(&self, handle: BlockHandle, what: impl std::fmt::Display) -> CliError {
        CliError::corruption(format!("{}: block at offset {}: {what}", self.path.display(), handle.offset))
    }

    /// Turns a block's damage into an error.
    pub fn whole(&self, handle: BlockHandle, block: &Block) -> Result<()> {
        block.damage.as_ref().map_or(Ok(()), |what| Err(self.corrupt(handle, what)))
    }

    /// Reads a block, even if its checksum does not match.
    pub fn block(&self, handle: BlockHandle, is_data: bool) -> Result<Block> {
        if handle.end() > self.size() {
            return Err(
                self.corrupt(handle, format_args!("its {} bytes end after the file's {}", handle.size, self.size()))
            );
        }
        let mut raw = vec![0; handle.size as usize + BLOCK_TRAILER_LEN];
        read_exact(&*self.file, &self.path, handle.offset, &mut raw)?;
        let damage = self.footer.verify_block(&raw, handle.offset).err().map(|e| e.to_string());
        let kind = raw.get(handle.size as usize).copied().unwrap_or(0);
        raw.truncate(handle.size as usize);
        if kind == 0 {
            return Ok(Block { data: raw, compression: "NoCompression", damage });
        }
        let dictionary = if is_data { self.dictionary.as_ref() } else { None };
        let data = decompress(kind, &raw, dictionary, BLOCK_LEN_MAX)
            .map_err(|e| self.corrupt(handle, damage.as_ref().unwrap_or(&e.to_string())))?;
        let compression = CompressionType::from_u8(kind).map_or("unknown", CompressionType::name);
        Ok(Block { data, compression, damage })
    }

    /// Calls `f` with key, value and handle (index blocks) of each entry until it returns false.
    pub fn each(
        &self,
        handle: BlockHandle,
        data: &[u8],
        kind: BlockKind,
        mut f: impl FnMut(&[u8], &[u8], BlockHandle) -> Result<bool>,
    ) -> Result<()> {
        let wrap = |e: rockmill_format::FormatError| self.corrupt(handle, e);
        let layout = BlockLayout::parse(data).map_err(wrap)?;
        let mut cursor = BlockCursor::new(layout, kind);
        cursor.seek_to_first(data).map_err(wrap)?;
        while cursor.valid() {
            let handle = if matches!(kind, BlockKind::Index { .. }) { cursor.handle() } else { BlockHandle::default() };
            if !f(cursor.key(), cursor.value(data), handle)? {
                return Ok(());
            }
            cursor.next(data).map_err(wrap)?;
        }
        Ok(())
    }

    /// The properties.
    pub fn properties(&mut self) -> Result<TableProperties> {
        if let Some(p) = &self.properties {
            return Ok(p.clone());
        }
        let handle = self.find(PROPERTIES).ok_or_else(|| {
            CliError::corruption(format!("{}: the table has no properties block", self.path.display()))
        })?;
        // RocksDB may write an ingested file's sequence number into this block without updating the checksum, so a
        // mismatch is not an error.
        let block = self.block(handle, false)?;
        let p = TableProperties::decode_block(&block.data).map_err(|e| self.corrupt(handle, e))?;
        self.properties = Some(p.clone());
        Ok(p)
    }

    /// How keys of data blocks are decoded.
    pub fn data_kind(&mut self) -> Result<BlockKind> {
        Ok(BlockKind::Data { global_seqno: self.properties()?.global_seqno().filter(|&n| n > 0) })
    }

    /// Every entry of the index, through its partitions.
    pub fn index(&mut self) -> Result<Vec<IndexEntry>> {
        let p = self.properties()?;
        let index_type = p.index_type().unwrap_or(IndexType::BinarySearch);
        let kind = |first_key| BlockKind::Index {
            value_delta: p.index_value_is_delta_encoded != 0,
            user_keys: p.index_key_is_user_key != 0,
            first_key,
        };
        let leaf = kind(index_type == IndexType::BinarySearchWithFirstKey);
        let root =
            self.footer.index.or_else(|| self.find(INDEX)).ok_or_else(|| {
                CliError::corruption(format!("{}: the table has no index block", self.path.display()))
            })?;
        if index_type != IndexType::TwoLevelIndexSearch {
            return self.index_block(root, leaf, None);
        }
        let mut all = Vec::new();
        for partition in self.index_block(root, kind(false), None)? {
            all.extend(self.index_block(partition.handle, leaf, Some(partition.handle))?);
        }
        Ok(all)
    }

    fn index_block(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
        partition: Option<BlockHandle>,
    ) -> Result<Vec<IndexEntry>> {
        let block = self.block(handle, false)?;
        self.whole(handle, &block)?;
        let mut entries = Vec::new();
        self.each(handle, &block.data, kind, |key, _, handle| {
            entries.push(IndexEntry { separator: key.to_vec(), handle, partition });
            Ok(true)
        })?;
        Ok(entries)
    }
}

fn read_exact(file: &dyn RandomAccessFile, path: &Path, offset: u64, buf: &mut [u8]) -> Result<()> {
    let n = file.read_at(offset, buf).map_err(|e| CliError::io(format_args!("cannot read {}", path.display()), &e))?;
    if n < buf.len() {
        return Err(CliError::corruption(format!(
            "{}: the file ends at offset {}, {} bytes were expected from {offset}",
            path.display(),
            offset + n as u64,
            buf.len()
        )));
    }
    Ok(())
}
