//! Key-value blocks: prefix-compressed entries, restart points, the optional hash index, and the key-value-separated
//! layout of RocksDB 11. Data, index, meta-index and range-deletion blocks all have this shape.
//!
//! ```text
//! entries      varint32 shared, varint32 unshared, varint32 value length, key bytes, value bytes     (repeated)
//! restarts     u32 offset of the entry at each restart point, which has shared = 0
//! hash index   optional: u8 per bucket, u16 number of buckets
//! tail         u32: bits 0 to 27 number of restart points, 28 values apart, 29 keys uniform, 31 hash index
//! ```
//!
//! Index blocks of format_version 4 and newer leave out the value length, since a handle delimits itself; where
//! `shared > 0` only the change of the handle's size is stored. With values apart (RocksDB 11), a restart point's
//! entry has a fourth varint, the offset of its value in the values section; later values follow one another; the
//! section stands between the entries and the restarts, and a u32 before the tail is the section's offset.
//!
//! Sources: RocksDB `table/block_based/{block.cc, block_builder.cc, block_util.h, data_block_footer.h,
//! data_block_hash_index.h}`, `table/format.cc` (`IndexValue`).

mod builder;
mod cursor;
mod entries;
mod entry;
mod hash_index;
#[cfg(test)]
mod tests;

pub use builder::{BlockBuilder, BlockBuilderOptions, shared_prefix_len};
pub use cursor::BlockCursor;
pub use entries::BlockEntries;

use crate::coding;
use crate::error::{FormatError, Result};
use crate::key::SequenceNumber;

/// Key and value of an entry are together no longer than this. Offsets in a block have 32 bits, and the block has more
/// than the two: lengths, restart points, a hash index.
pub const ENTRY_LEN_MAX: usize = u32::MAX as usize - 256;

const HASH_INDEX_BIT: u32 = 1 << 31;
const UNIFORM_KEYS_BIT: u32 = 1 << 29;
const SEPARATED_VALUES_BIT: u32 = 1 << 28;
const NUM_RESTARTS_MAX: u32 = (1 << 28) - 1;

/// What the entries of a block are, which decides how keys and values are decoded and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Internal keys, plain values. With `global_seqno`, every key's sequence number reads as that number
    /// (ingested files).
    Data {
        /// Overriding sequence number.
        global_seqno: Option<SequenceNumber>,
    },
    /// Index block: values are block handles.
    Index {
        /// Handles are delta-encoded between restart points (format_version 4 and newer).
        value_delta: bool,
        /// Keys are user keys without a tag (format_version 3 and newer, when the properties say so).
        user_keys: bool,
        /// The first internal key of each block follows its handle (`kBinarySearchWithFirstKey`).
        first_key: bool,
    },
    /// Plain bytewise keys (meta-index, properties).
    Meta,
}

/// Bounds the keys of a block of properties, of a metaindex or of range tombstones: `total` bytes of them so far in a
/// block of `block_len`. Otherwise a caller that keeps all keys would need unbounded memory for a small block in which
/// each key shares almost everything with the previous one. RocksDB writes these blocks with whole keys.
///
/// # Errors
/// `Corruption` when they take more than sixteen times the block, and 64 KiB.
pub fn check_meta_keys(total: usize, block_len: usize) -> Result<()> {
    if total > (64 << 10) + 16 * block_len {
        let what = format!("keys of {total} bytes and more in a block of {block_len}");
        return Err(FormatError::corruption(what, 0));
    }
    Ok(())
}

/// Where the parts of a block are; found once per block, then every cursor over the block uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLayout {
    /// End of the keys: of the entries, or where the values section starts.
    keys_end: u32,
    /// Offset of the restart array, which is the end of the values section.
    restarts: u32,
    num_restarts: u32,
    hash_index: Option<(u32, u16)>,
    separated: bool,
    uniform: bool,
}

impl BlockLayout {
    /// Of a block without entries and restart points.
    pub const fn empty() -> Self {
        Self { keys_end: 0, restarts: 0, num_restarts: 0, hash_index: None, separated: false, uniform: false }
    }

    /// Parses the block's tail. Checks that the restart array is inside the block.
    pub fn parse(data: &[u8]) -> Result<Self> {
        let len = u32::try_from(data.len()).map_err(|_| FormatError::corruption("block is larger than 4 GiB", 0))?;
        let short = || FormatError::corruption(format!("block of {len} bytes is too short for its tail"), 0);
        let mut end = data.len().checked_sub(4).ok_or_else(short)?;
        let packed = coding::fixed32_at(data, end).ok_or_else(short)?;
        let hashed = packed & HASH_INDEX_BIT != 0;
        let separated = packed & SEPARATED_VALUES_BIT != 0;
        let uniform = packed & UNIFORM_KEYS_BIT != 0;
        let num_restarts = packed & !(HASH_INDEX_BIT | SEPARATED_VALUES_BIT | UNIFORM_KEYS_BIT);
        if num_restarts > NUM_RESTARTS_MAX {
            return Err(FormatError::corruption(
                format!("block tail {packed:#010x} has a bit of a newer RocksDB, or the block is damaged"),
                end as u64,
            ));
        }
        let mut values = None;
        if separated {
            end = end.checked_sub(4).ok_or_else(short)?;
            values = Some(coding::fixed32_at(data, end).ok_or_else(short)?);
        }
        let mut hash_index = None;
        if hashed {
            let (start, buckets) = hash_index::locate(data, end)
                .ok_or_else(|| FormatError::corruption("block has a damaged hash index", end as u64))?;
            hash_index = Some((start, buckets));
            end = start as usize;
        }
        let restarts = (num_restarts as usize).checked_mul(4).and_then(|n| end.checked_sub(n)).ok_or_else(|| {
            FormatError::corruption(
                format!("block of {len} bytes cannot have {num_restarts} restart points"),
                u64::from(len) - 4,
            )
        })? as u32;
        let keys_end = values.unwrap_or(restarts);
        if keys_end > restarts {
            return Err(FormatError::corruption(
                format!("block's values start at {keys_end}, behind its restart points at {restarts}"),
                u64::from(len) - 8,
            ));
        }
        Ok(Self { keys_end, restarts, num_restarts, hash_index, separated, uniform })
    }

    /// Restart points in the block.
    pub fn num_restarts(&self) -> u32 {
        self.num_restarts
    }

    /// True when the block has a hash index, which [`BlockCursor::seek_for_get`] uses.
    pub fn has_hash_index(&self) -> bool {
        self.hash_index.is_some()
    }

    /// True if the block's values are in a separate section.
    pub fn has_separated_values(&self) -> bool {
        self.separated
    }

    /// True when the writer found the block's restart keys evenly spread (RocksDB's hint for interpolation search).
    pub fn is_uniform(&self) -> bool {
        self.uniform
    }

    /// Where the first entry starts, where the last restart point's does, and where the entries end; `None` where the
    /// first lies outside of them. All three are equal in a block without entries. A last restart point outside is as
    /// good as the first one: only seeks use it.
    pub fn entries_place(&self, data: &[u8]) -> Option<(u32, u32, u32)> {
        let end = self.keys_end;
        if self.num_restarts == 0 || end == 0 {
            return Some((end, end, end));
        }
        let (first, last) = (self.restart_point(data, 0)?, self.restart_point(data, self.num_restarts - 1)?);
        let last = if (first..end).contains(&last) { last } else { first };
        (first < end).then_some((first, last, end))
    }

    /// Offset of the entry at restart point `index`.
    #[inline]
    fn restart_point(&self, data: &[u8], index: u32) -> Option<u32> {
        coding::fixed32_at(data, self.restarts as usize + 4 * index as usize)
    }
}
