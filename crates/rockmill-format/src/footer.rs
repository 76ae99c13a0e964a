//! Block handles, block trailers and the footer at the end of each table (RocksDB `table/format.h`).
//!
//! Every table ends with a footer of 53 bytes in three parts:
//!
//! ```text
//!          format_version 2 to 5                     format_version 6 and newer
//!  0  u8   checksum type                        0  u8    checksum type
//!  1       metaindex handle (two varints)       1  [u8;4] 3e 00 7a 00
//!          index handle (two varints)           5  u32   checksum of these 53 bytes, taken with this field zero
//!          zeros up to byte 41                  9  u32   base context checksum, not zero
//!                                              13  u32   size of the metaindex block just before the footer
//!                                              17        24 zero bytes; the last eight are checked
//! 41  u32  format_version                      41  u32   format_version
//! 45  u64  magic number                        45  u64   magic number
//! ```

use crate::checksum::{self, ChecksumType};
use crate::coding::{self, Decoder};
use crate::error::{FormatError, Result};

/// Bytes after each block: one compression-type byte and a 32-bit checksum.
pub const BLOCK_TRAILER_LEN: usize = 5;
/// Longest footer, in bytes: read this much (or the whole file) from the end of a table.
pub const FOOTER_LEN_MAX: usize = 53;
/// Magic number of block-based tables, the last eight bytes of each.
pub const BLOCK_BASED_TABLE_MAGIC: u64 = 0x88e2_41b7_85f4_cff7;
const TOO_OLD: &str = "block-based table of format_version 0 or 1 (compact the database with RocksDB 4.6 to 10 first)";

/// Oldest block-based format_version that is read.
pub const FORMAT_VERSION_MIN: u32 = 2;
/// Newest block-based format_version, read and written.
pub const FORMAT_VERSION_MAX: u32 = 7;

const LEGACY_BLOCK_BASED_MAGIC: u64 = 0xdb47_7524_8b80_fb57;
const PLAIN_TABLE_MAGIC: u64 = 0x8242_2296_63bf_9564;
const LEGACY_PLAIN_TABLE_MAGIC: u64 = 0x4f34_18eb_7a8f_13b8;
const CUCKOO_TABLE_MAGIC: u64 = 0x9267_89d0_c5f1_7873;

const EXTENDED_MAGIC: [u8; 4] = [0x3e, 0x00, 0x7a, 0x00];
/// Offsets of the footer's fields.
const PART2: usize = 1;
const CHECKSUM_FIELD: usize = 5;
const BASE_CONTEXT_FIELD: usize = 9;
const METAINDEX_SIZE_FIELD: usize = 13;
const RESERVED_FIELD: usize = 33;
const VERSION_FIELD: usize = 41;

/// Where a block is in its file. `size` excludes the trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct BlockHandle {
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes, excluding the trailer.
    pub size: u64,
}

impl BlockHandle {
    /// Appends the two varints.
    pub fn encode(&self, dst: &mut Vec<u8>) {
        coding::put_varint64(dst, self.offset);
        coding::put_varint64(dst, self.size);
    }

    /// Appends the form that index blocks of format_version 4 and newer store between restart points: the change of
    /// size since `previous`, the block that ends where this one starts.
    pub fn encode_size_delta(&self, previous: &BlockHandle, dst: &mut Vec<u8>) {
        debug_assert_eq!(self.offset, previous.end(), "a delta-encoded handle must follow the one before it");
        coding::put_varsigned64(dst, self.size.wrapping_sub(previous.size) as i64);
    }

    /// Decodes a handle at the start of `buf`: the handle and its length in bytes.
    pub fn decode(buf: &[u8]) -> Result<(Self, usize)> {
        let mut d = Decoder::new(buf);
        let offset = d.varint64("block handle offset")?;
        let size = d.varint64("block handle size")?;
        Ok((Self { offset, size }, d.offset() as usize))
    }

    /// Offset of the first byte after the block and its trailer; saturates.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.size).saturating_add(BLOCK_TRAILER_LEN as u64)
    }
}

/// The footer of a block-based table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// 2 to 7 are supported.
    pub format_version: u32,
    /// Of every block.
    pub checksum: ChecksumType,
    /// Where the meta-index block is.
    pub metaindex: BlockHandle,
    /// Where the index block is; from format_version 6 on the meta-index block has the handle, and this is `None`.
    pub index: Option<BlockHandle>,
    /// Non-zero from format_version 6 on: mixed into block checksums together with the block's offset.
    pub base_context_checksum: u32,
}

impl Footer {
    /// Encodes the footer at `footer_offset` of its file.
    ///
    /// From format_version 6 on the metaindex block must be the last block before the footer and
    /// `base_context_checksum` must not be zero; RocksDB refuses anything else.
    pub fn encode(&self, footer_offset: u64) -> Vec<u8> {
        let mut b = Vec::with_capacity(FOOTER_LEN_MAX);
        b.push(self.checksum as u8);
        if self.format_version >= 6 {
            debug_assert_ne!(self.base_context_checksum, 0);
            debug_assert_eq!(self.metaindex.end(), footer_offset);
            b.extend_from_slice(&EXTENDED_MAGIC);
            coding::put_fixed32(&mut b, 0);
            coding::put_fixed32(&mut b, self.base_context_checksum);
            coding::put_fixed32(&mut b, self.metaindex.size as u32);
        } else {
            self.metaindex.encode(&mut b);
            self.index.unwrap_or_default().encode(&mut b);
        }
        b.resize(VERSION_FIELD, 0);
        coding::put_fixed32(&mut b, self.format_version);
        coding::put_fixed64(&mut b, BLOCK_BASED_TABLE_MAGIC);
        if self.format_version >= 6 {
            let sum = footer_checksum(self.checksum, &b)
                .wrapping_add(checksum::context_modifier(self.base_context_checksum, footer_offset));
            b[CHECKSUM_FIELD..CHECKSUM_FIELD + 4].copy_from_slice(&sum.to_le_bytes());
        }
        b
    }

    /// Decodes the footer from `tail`, the last bytes of a file of `file_size` bytes. The error names tables of other
    /// kinds (plain, cuckoo, old magic). Offsets in errors are offsets in the file.
    pub fn decode(tail: &[u8], file_size: u64) -> Result<Self> {
        let base = file_size.saturating_sub(tail.len() as u64);
        let Some(magic) = tail.len().checked_sub(8).and_then(|at| coding::fixed64_at(tail, at)) else {
            return Err(FormatError::corruption("file is too short to be a table", base));
        };
        match magic {
            BLOCK_BASED_TABLE_MAGIC => {}
            LEGACY_BLOCK_BASED_MAGIC => {
                return Err(FormatError::unsupported(TOO_OLD));
            }
            PLAIN_TABLE_MAGIC | LEGACY_PLAIN_TABLE_MAGIC => return Err(FormatError::unsupported("plain table")),
            CUCKOO_TABLE_MAGIC => return Err(FormatError::unsupported("cuckoo table")),
            _ => {
                return Err(FormatError::corruption(
                    format!("bad table magic number {magic:#018x}: not an SST file, or its end is damaged"),
                    file_size.saturating_sub(8),
                ));
            }
        }
        let Some(footer) = tail.last_chunk::<FOOTER_LEN_MAX>() else {
            return Err(FormatError::corruption("file is too short to be a table", base));
        };
        let offset = file_size.saturating_sub(FOOTER_LEN_MAX as u64);
        Self::decode_block_based(footer, offset)
    }

    fn decode_block_based(footer: &[u8; FOOTER_LEN_MAX], offset: u64) -> Result<Self> {
        let corrupt = |what: String, at: usize| FormatError::corruption(what, offset.saturating_add(at as u64));
        let fixed32 = |at: usize| coding::fixed32_at(footer, at).unwrap_or(0);
        let format_version = fixed32(VERSION_FIELD);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION_MAX).contains(&format_version) {
            // Versions increase one at a time: a large number means damage, the next few mean a newer RocksDB.
            if format_version < FORMAT_VERSION_MIN {
                return Err(FormatError::unsupported(TOO_OLD));
            }
            if format_version < 100 {
                return Err(FormatError::unsupported(format!("block-based table of format_version {format_version}")));
            }
            return Err(corrupt(format!("footer: format_version {format_version}"), VERSION_FIELD));
        }
        let checksum = checksum_type(footer[0])
            .ok_or_else(|| corrupt(format!("footer: unknown checksum type {}", footer[0]), 0))?;
        if format_version < 6 {
            let handles = &footer[PART2..VERSION_FIELD];
            let (metaindex, n) = BlockHandle::decode(handles).map_err(|e| e.at(offset + PART2 as u64))?;
            let (index, _) = BlockHandle::decode(&handles[n..]).map_err(|e| e.at(offset + (PART2 + n) as u64))?;
            return Ok(Self { format_version, checksum, metaindex, index: Some(index), base_context_checksum: 0 });
        }
        if footer[PART2..CHECKSUM_FIELD] != EXTENDED_MAGIC {
            return Err(corrupt("footer: bad extended magic number".into(), PART2));
        }
        let base_context_checksum = fixed32(BASE_CONTEXT_FIELD);
        if base_context_checksum == 0 {
            return Err(corrupt("footer: base context checksum is zero".into(), BASE_CONTEXT_FIELD));
        }
        let mut zeroed = *footer;
        zeroed[CHECKSUM_FIELD..BASE_CONTEXT_FIELD].fill(0);
        let expected =
            footer_checksum(checksum, &zeroed).wrapping_add(checksum::context_modifier(base_context_checksum, offset));
        let stored = fixed32(CHECKSUM_FIELD);
        if stored != expected {
            return Err(corrupt(
                format!("footer checksum mismatch: stored {stored:#010x}, computed {expected:#010x}"),
                CHECKSUM_FIELD,
            ));
        }
        if coding::fixed64_at(footer, RESERVED_FIELD) != Some(0) {
            return Err(FormatError::unsupported("table with a footer feature of a newer RocksDB"));
        }
        let size = u64::from(fixed32(METAINDEX_SIZE_FIELD));
        let Some(start) = offset.checked_sub(size + BLOCK_TRAILER_LEN as u64) else {
            return Err(corrupt(
                format!("footer: metaindex of {size} bytes starts before the file"),
                METAINDEX_SIZE_FIELD,
            ));
        };
        let metaindex = BlockHandle { offset: start, size };
        Ok(Self { format_version, checksum, metaindex, index: None, base_context_checksum })
    }

    /// The checksum that a block at `offset` must have.
    #[inline]
    pub fn block_checksum(&self, data: &[u8], compression_byte: u8, offset: u64) -> u32 {
        checksum::block_checksum(self.checksum, data, compression_byte)
            .wrapping_add(checksum::context_modifier(self.base_context_checksum, offset))
    }

    /// Verifies `block_with_trailer` (a block read from `offset`, including its five trailer bytes) and returns its
    /// compression byte. The error's offset is the block's offset in the file.
    pub fn verify_block(&self, block_with_trailer: &[u8], offset: u64) -> Result<u8> {
        let Some((data, trailer)) = block_with_trailer.split_last_chunk::<BLOCK_TRAILER_LEN>() else {
            return Err(FormatError::corruption("block is shorter than its trailer", offset));
        };
        let [compression, stored @ ..] = *trailer;
        if self.checksum == ChecksumType::None {
            return Ok(compression);
        }
        let stored = u32::from_le_bytes(stored);
        let computed = self.block_checksum(data, compression, offset);
        if stored != computed {
            return Err(FormatError::corruption(
                format!(
                    "block checksum mismatch: stored {stored:#010x}, computed {computed:#010x}, {} bytes",
                    data.len()
                ),
                offset,
            ));
        }
        Ok(compression)
    }
}

fn checksum_type(v: u8) -> Option<ChecksumType> {
    Some(match v {
        0 => ChecksumType::None,
        1 => ChecksumType::Crc32c,
        2 => ChecksumType::XxHash,
        3 => ChecksumType::XxHash64,
        4 => ChecksumType::Xxh3,
        _ => return None,
    })
}

/// The table's checksum over the footer itself, with zeros in its checksum field. The footer's last byte takes the
/// place of a block's compression byte, so for each type this is the checksum of all the bytes.
fn footer_checksum(kind: ChecksumType, footer: &[u8]) -> u32 {
    match footer.split_last() {
        Some((&last, rest)) => checksum::block_checksum(kind, rest, last),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(format_version: u32, checksum: ChecksumType) -> (Footer, u64) {
        let metaindex = BlockHandle { offset: 123_456, size: 789 };
        let v6 = format_version >= 6;
        let footer = Footer {
            format_version,
            checksum,
            metaindex,
            index: if v6 { None } else { Some(BlockHandle { offset: 99_000, size: 4_000 }) },
            base_context_checksum: if v6 { 0xdead_beef } else { 0 },
        };
        (footer, metaindex.end())
    }

    #[test]
    fn every_version_round_trips() {
        for version in FORMAT_VERSION_MIN..=FORMAT_VERSION_MAX {
            for kind in [ChecksumType::Crc32c, ChecksumType::XxHash, ChecksumType::XxHash64, ChecksumType::Xxh3] {
                let (footer, offset) = sample(version, kind);
                let bytes = footer.encode(offset);
                assert_eq!(bytes.len(), FOOTER_LEN_MAX);
                let size = offset + bytes.len() as u64;
                assert_eq!(Footer::decode(&bytes, size), Ok(footer));
                // More bytes of the file than the footer are allowed.
                let mut tail = vec![7u8; 100];
                tail.extend_from_slice(&bytes);
                assert_eq!(Footer::decode(&tail, size), Ok(footer));
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_seen_from_version_6_on() {
        let (footer, offset) = sample(6, ChecksumType::Xxh3);
        let bytes = footer.encode(offset);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Footer::decode(&bad, offset + bytes.len() as u64), Ok(footer), "bit {bit}");
        }
        assert!(Footer::decode(&bytes, offset + 1 + bytes.len() as u64).is_err(), "moved by one byte");
    }

    #[test]
    fn other_tables_are_named() {
        for (magic, name) in [
            (PLAIN_TABLE_MAGIC, "plain table"),
            (LEGACY_PLAIN_TABLE_MAGIC, "plain table"),
            (CUCKOO_TABLE_MAGIC, "cuckoo table"),
            (LEGACY_BLOCK_BASED_MAGIC, "format_version 0 or 1"),
        ] {
            let mut tail = vec![0u8; 60];
            tail[52..].copy_from_slice(&magic.to_le_bytes());
            let error = Footer::decode(&tail, 1000).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("not supported"), "{error}");
        }
        assert!(Footer::decode(&[], 0).is_err());
        assert!(Footer::decode(&[0; 53], 53).is_err());
    }

    #[test]
    fn block_trailers_are_checked() {
        let (footer, _) = sample(6, ChecksumType::Xxh3);
        let mut block = b"contents of a block".to_vec();
        let sum = footer.block_checksum(&block, 4, 4096);
        block.push(4);
        coding::put_fixed32(&mut block, sum);
        assert_eq!(footer.verify_block(&block, 4096), Ok(4));
        assert!(footer.verify_block(&block, 8192).is_err(), "a block moved inside its file");
        block[3] ^= 1;
        assert!(footer.verify_block(&block, 4096).is_err());
        assert!(footer.verify_block(&block[..4], 0).is_err());
    }
}
