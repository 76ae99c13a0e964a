//! Block compression (RocksDB `util/compression.h`).

use crate::error::Result;

/// Compression of a block; the number stands in the block's trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum CompressionType {
    None = 0,
    Snappy = 1,
    Zlib = 2,
    Bzip2 = 3,
    Lz4 = 4,
    Lz4hc = 5,
    Xpress = 6,
    Zstd = 7,
}

/// Compresses blocks of one table, keeping its working memory between calls.
pub struct Compressor {
    _private: (),
}

impl Compressor {
    /// `level` is the library's level; `i32::MAX` (RocksDB's `kDefaultCompressionLevel`) means its default.
    pub fn new(kind: CompressionType, level: i32) -> Result<Self> {
        let _ = (kind, level);
        todo!()
    }

    /// Replaces `out` by the compressed form of `input`, in the shape of format_version 2 and newer (size prefix
    /// where RocksDB writes one). False when the result is not worth keeping (RocksDB keeps it only below 7/8).
    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        let _ = (input, out);
        todo!()
    }
}

/// A ZSTD dictionary prepared for decompression; `Dictionary::empty` where the table has none.
pub struct Dictionary {
    _private: (),
}

impl Dictionary {
    /// Prepares `bytes`, the contents of the table's dictionary block.
    pub fn new(bytes: &[u8]) -> Self {
        let _ = bytes;
        todo!()
    }
}

/// Decompresses one block. `compression_byte` is the trailer's. Output is bounded: a block that claims more than
/// `size_max` bytes is refused before anything is allocated.
pub fn decompress(compression_byte: u8, input: &[u8], dict: Option<&Dictionary>, size_max: usize) -> Result<Vec<u8>> {
    let _ = (compression_byte, input, dict, size_max);
    todo!()
}
