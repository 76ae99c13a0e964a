//! The Bloom filter of format_version 4 and older (RocksDB `LegacyLocalityBloomImpl`, `util/bloom_impl.h`), read only.
//!
//! The 32-bit hash selects a cache line by remainder; probes step through it by the hash rotated by 17 bits. The line's
//! size is that of the machine that wrote the table; the filter's length and number of lines determine it.

/// A filter block with this layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LegacyBloom {
    probes: u8,
    lines: u32,
    line_log2: u32,
}

impl LegacyBloom {
    /// `None` if RocksDB would not use the filter: no line size explains its length.
    pub(super) fn parse(raw: &[u8], probes: u8, metadata: [u8; 4]) -> Option<Self> {
        let lines = u32::from_le_bytes(metadata);
        let len = u32::try_from(raw.len()).ok()?;
        let line = len.checked_div(lines)?;
        // A line's bit addresses come from a 32-bit hash.
        let fits = line.is_power_of_two() && line.checked_mul(lines) == Some(len) && line.ilog2() < 29;
        if fits { Some(Self { probes, lines, line_log2: line.ilog2() }) } else { None }
    }

    pub(super) fn may_match(self, data: &[u8], hash: u32) -> bool {
        let line = ((hash % self.lines) as usize) << self.line_log2;
        let bits_mask = (8u32 << self.line_log2) - 1;
        let delta = hash.rotate_right(17);
        let mut h = hash;
        for _ in 0..self.probes {
            let bit = h & bits_mask;
            match data.get(line + (bit / 8) as usize) {
                Some(byte) if byte & (1 << (bit % 8)) == 0 => return false,
                _ => {}
            }
            h = h.wrapping_add(delta);
        }
        true
    }
}
