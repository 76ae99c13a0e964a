//! The hash index at the end of a data block (RocksDB `table/block_based/data_block_hash_index.cc`).
//!
//! ```text
//! u8 bucket 0 … u8 bucket n-1, u16 n
//! ```
//!
//! A bucket holds [`NO_ENTRY`], [`COLLISION`], or the number of the only restart interval that has keys with that hash.

use crate::hash::block_index_hash;

/// No key of the block has this hash.
pub(super) const NO_ENTRY: u8 = 255;
/// Keys with this hash are in more than one restart interval.
pub(super) const COLLISION: u8 = 254;
/// Largest number of a restart interval: the largest byte below the two marks.
const RESTART_MAX: usize = 253;
/// Blocks with a hash index are shorter than this, in bytes.
pub(super) const BLOCK_LEN_MAX: usize = 1 << 16;

/// Collects the index of a block under construction.
pub(super) struct HashIndexBuilder {
    buckets_per_key: f64,
    buckets_estimate: f64,
    /// False if the block has more restart intervals than one byte can identify.
    valid: bool,
    entries: Vec<(u32, u8)>,
}

impl HashIndexBuilder {
    pub(super) fn new(util_ratio: f64) -> Self {
        let util_ratio = if util_ratio > 0.0 { util_ratio } else { 0.75 };
        Self { buckets_per_key: 1.0 / util_ratio, buckets_estimate: 0.0, valid: true, entries: Vec::new() }
    }

    pub(super) fn add(&mut self, user_key: &[u8], restart: usize) {
        if !self.valid {
            return;
        }
        if restart > RESTART_MAX {
            self.valid = false;
            return;
        }
        self.entries.push((block_index_hash(user_key), restart as u8));
        self.buckets_estimate += self.buckets_per_key;
    }

    /// True if a block of `size` bytes, including this index, can have it.
    pub(super) fn fits(&self, size: usize) -> bool {
        self.valid && size <= BLOCK_LEN_MAX
    }

    pub(super) fn size_estimate(&self) -> usize {
        if self.valid { 2 + usize::from(self.num_buckets()) } else { 0 }
    }

    /// Odd, since the hash is distributed badly over a power of two.
    fn num_buckets(&self) -> u16 {
        (self.buckets_estimate as u64 as u16) | 1
    }

    pub(super) fn finish(&self, dst: &mut Vec<u8>) {
        let buckets = self.num_buckets();
        let start = dst.len();
        dst.resize(start + usize::from(buckets), NO_ENTRY);
        for &(hash, restart) in &self.entries {
            let bucket = &mut dst[start + (hash % u32::from(buckets)) as usize];
            if *bucket == NO_ENTRY {
                *bucket = restart;
            } else if *bucket != restart {
                *bucket = COLLISION;
            }
        }
        dst.extend_from_slice(&buckets.to_le_bytes());
    }

    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.buckets_estimate = 0.0;
        self.valid = true;
    }
}

/// Finds the buckets of a block: (offset of the first, number of buckets). `end` is where the index ends. `None` if the
/// index is damaged.
pub(super) fn locate(data: &[u8], end: usize) -> Option<(u32, u16)> {
    if end >= BLOCK_LEN_MAX {
        return None;
    }
    let count_at = end.checked_sub(2)?;
    let count = u16::from_le_bytes(*data.get(count_at..)?.first_chunk::<2>()?);
    let start = count_at.checked_sub(usize::from(count))?;
    if count == 0 { None } else { Some((start as u32, count)) }
}

/// The bucket for `user_key`; [`COLLISION`], which makes the caller search, if the bucket is outside `data`.
#[inline]
pub(super) fn lookup(data: &[u8], start: u32, buckets: u16, user_key: &[u8]) -> u8 {
    let bucket = block_index_hash(user_key) % u32::from(buckets.max(1));
    data.get(start as usize + bucket as usize).copied().unwrap_or(COLLISION)
}
