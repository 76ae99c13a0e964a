//! Block handles, block trailers and the footer at the end of each table (RocksDB `table/format.h`).

use crate::checksum::ChecksumType;
use crate::error::Result;

/// Bytes after each block: one compression-type byte and a 32-bit checksum.
pub const BLOCK_TRAILER_LEN: usize = 5;
/// Longest footer, in bytes: read this much (or the whole file) from the end of a table.
pub const FOOTER_LEN_MAX: usize = 53;
/// Magic number of block-based tables, the last eight bytes of each.
pub const BLOCK_BASED_TABLE_MAGIC: u64 = 0x88e2_41b7_85f4_cff7;

/// Where a block is in its file. `size` is without the trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct BlockHandle {
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes without the trailer.
    pub size: u64,
}

impl BlockHandle {
    /// Appends the two varints.
    pub fn encode(&self, dst: &mut Vec<u8>) {
        let _ = dst;
        todo!()
    }

    /// Decodes a handle at the start of `buf`: the handle and the bytes it took.
    pub fn decode(buf: &[u8]) -> Result<(Self, usize)> {
        let _ = buf;
        todo!()
    }

    /// Offset just past the block and its trailer; saturates.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.size).saturating_add(BLOCK_TRAILER_LEN as u64)
    }
}

/// The footer of a block-based table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// 2 to 7 are read.
    pub format_version: u32,
    /// Of every block.
    pub checksum: ChecksumType,
    /// Where the meta-index block is.
    pub metaindex: BlockHandle,
    /// Where the index block is; from format_version 6 on it stands in the meta-index block and is `None` here.
    pub index: Option<BlockHandle>,
    /// Non-zero from format_version 6 on: mixed into block checksums with the block's offset.
    pub base_context_checksum: u32,
}

impl Footer {
    /// Encodes the footer that stands at `footer_offset` of its file.
    pub fn encode(&self, footer_offset: u64) -> Vec<u8> {
        let _ = footer_offset;
        todo!()
    }

    /// Decodes the footer from `tail`, the last bytes of a file of `file_size` bytes. Tables of other kinds (plain,
    /// cuckoo, old magic) are named in the error.
    pub fn decode(tail: &[u8], file_size: u64) -> Result<Self> {
        let _ = (tail, file_size);
        todo!()
    }

    /// The checksum a block at `offset` must carry.
    pub fn block_checksum(&self, data: &[u8], compression_byte: u8, offset: u64) -> u32 {
        let _ = (data, compression_byte, offset);
        todo!()
    }

    /// Checks `block_with_trailer` (a block read from `offset`, its five trailer bytes included) and gives its
    /// compression byte.
    pub fn verify_block(&self, block_with_trailer: &[u8], offset: u64) -> Result<u8> {
        let _ = (block_with_trailer, offset);
        todo!()
    }
}
