//! The Ribbon filter (RocksDB `Standard128Ribbon`, `util/ribbon_impl.h`), read only. Paper: Dillinger, Walzer, "Ribbon
//! filter: practically smaller than Bloom and Xor" (2021).
//!
//! The filter is the solution of a linear system over GF(2). A key's hash determines a start slot, 128 coefficients
//! (the first is one) and an expected result. The key matches if the product of the coefficients and the solution from
//! that slot on is the result. The solution is stored block after block, in segments of 16 bytes. A segment is one
//! column of one block of 128 slots, and each block has one segment per column. The first `upper_start` blocks have one
//! column less.

/// Slots of a block; also the number of coefficients.
const BLOCK_SLOTS: u32 = 128;
const SEGMENT: usize = 16;
/// Maximum number of bits of a result.
const COLUMNS_MAX: u32 = 32;

const REHASH: u64 = 0x6193_d459_236a_3a0d;
const SEED_FACTOR: u64 = 0xc782_19a2_3eea_dd03;
const SEED_MIX_MASK: u64 = 0xf0f0_f0f0_f0f0_f0f0;
const COEFFICIENT_FACTOR: u64 = 0xc28f_8282_2b65_0bed;
const COEFFICIENT_XOR: u64 = 0xc367_844a_6e52_731d;

/// A filter block with this layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ribbon {
    seed: u32,
    starts: u32,
    /// Columns of the blocks from `upper_start` on.
    columns: u32,
    upper_start: u32,
}

impl Ribbon {
    /// `None` if RocksDB would not use the filter.
    pub(super) fn parse(raw: &[u8], metadata: [u8; 4]) -> Option<Self> {
        let [ordinal, blocks @ ..] = metadata;
        let blocks = u32::from_le_bytes([blocks[0], blocks[1], blocks[2], 0]);
        if blocks < 2 {
            return None;
        }
        let segments = u32::try_from(raw.len() / SEGMENT).ok()?;
        let mut columns = segments.div_ceil(blocks);
        let mut upper_start = columns * blocks - segments;
        if columns > COLUMNS_MAX {
            columns = COLUMNS_MAX;
            upper_start = 0;
        }
        // Seeds are numbered from zero; before use, the number is spread over the bits.
        let spread = u64::from(ordinal).wrapping_mul(SEED_FACTOR);
        let seed = (spread ^ ((spread & SEED_MIX_MASK) >> 4)) as u32;
        Some(Self { seed, starts: blocks * BLOCK_SLOTS - BLOCK_SLOTS + 1, columns, upper_start })
    }

    pub(super) fn may_match(self, data: &[u8], hash: u64) -> bool {
        let hash = (hash ^ u64::from(self.seed)).wrapping_mul(REHASH);
        let start = ((u128::from(hash) * u128::from(self.starts)) >> 64) as u32;
        let block = start / BLOCK_SLOTS;
        let bit = start % BLOCK_SLOTS;
        let segment = (block * self.columns - block.min(self.upper_start)) as usize;
        let columns = (self.columns - u32::from(block < self.upper_start)) as usize;

        let a = hash.wrapping_mul(COEFFICIENT_FACTOR);
        let coefficients = (u128::from(a) << 64) ^ u128::from(a ^ COEFFICIENT_XOR) | 1;
        let expected = a.swap_bytes() as u32;
        // The coefficients cover this block and, unless they start at its first slot, the next.
        let left = coefficients << bit;
        let right = if bit == 0 { 0 } else { coefficients >> (BLOCK_SLOTS - bit) };
        for i in 0..columns {
            let Some(here) = load(data, segment + i) else { return true };
            let mut row = here & left;
            if right != 0 {
                // The next block's segments follow this block's; it has the same number of columns or one more.
                let Some(next) = load(data, segment + columns + i) else { return true };
                row ^= next & right;
            }
            if row.count_ones() & 1 != (expected >> i) & 1 {
                return false;
            }
        }
        true
    }
}

#[inline]
fn load(data: &[u8], segment: usize) -> Option<u128> {
    Some(u128::from_le_bytes(*data.get(segment * SEGMENT..)?.first_chunk::<SEGMENT>()?))
}
