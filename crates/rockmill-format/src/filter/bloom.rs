//! The cache-local Bloom filter of format_version 5 and newer (RocksDB `FastLocalBloom`, `util/bloom_impl.h`).
//!
//! The low half of a key's 64-bit hash selects a line of 64 bytes, and the high half selects the bits in it. Each probe
//! takes the top nine bits, then multiplies the hash by the golden ratio for the next probe. A lookup touches one cache
//! line.

use super::METADATA_LEN;
use crate::hash::hash64;

const LINE: usize = 64;
/// Largest filter in bytes, without the metadata.
const LEN_MAX: u64 = 0xffff_ffc0;
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

/// The offset of the line, among `lines`, that has all the probes of `hash`.
#[inline(always)]
fn line_offset(hash: u64, lines: u32) -> usize {
    // Range reduction by multiplication, which RocksDB calls FastRange32.
    ((u64::from(hash as u32) * u64::from(lines)) >> 32) as usize * LINE
}

/// A filter block with this layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FastLocalBloom {
    lines: u32,
    probes: u8,
}

impl FastLocalBloom {
    /// `None` if RocksDB would not use the filter: it is of a future version, or damaged.
    pub(super) fn parse(raw: &[u8], metadata: [u8; 4]) -> Option<Self> {
        let [implementation, line_and_probes, reserved @ ..] = metadata;
        let probes = line_and_probes & 31;
        let line_log2 = (line_and_probes >> 5) + 6;
        let known = implementation == 0 && line_log2 == 6 && (1..=30).contains(&probes) && reserved == [0, 0];
        let lines = u32::try_from(raw.len() / LINE).ok()?;
        if known && raw.len().is_multiple_of(LINE) { Some(Self { lines, probes }) } else { None }
    }

    #[inline]
    pub(super) fn may_match(self, data: &[u8], hash: u64) -> bool {
        let Some(line) = data.get(line_offset(hash, self.lines)..).and_then(|d| d.first_chunk::<LINE>()) else {
            return true;
        };
        let mut h = (hash >> 32) as u32;
        for _ in 0..self.probes {
            // Nine bits: the byte in the line, then the bit in the byte.
            if line[(h >> 26) as usize] & (1 << ((h >> 23) & 7)) == 0 {
                return false;
            }
            h = h.wrapping_mul(GOLDEN_RATIO);
        }
        true
    }
}

/// Builds a Bloom filter in RocksDB's current layout (`FastLocalBloom`, format_version 5), bit for bit like RocksDB
/// without `optimize_filters_for_memory`.
///
/// Keys are kept as hashes until the end, since their number determines the filter's size.
pub struct BloomBuilder {
    millibits_per_key: u64,
    hashes: Vec<u64>,
    previous_prefix: Option<u64>,
}

impl BloomBuilder {
    /// `bits_per_key` as in RocksDB's `NewBloomFilterPolicy`, rounded to thousandths. A value below 0.5 means no
    /// filter; for it, this builds one that always answers "may match".
    pub fn new(bits_per_key: f64) -> Self {
        let bits = match bits_per_key {
            b if b < 0.5 => 0.0,
            b if b < 1.0 => 1.0,
            b if b < 100.0 => b,
            _ => 100.0, // also not a number
        };
        Self { millibits_per_key: (bits * 1000.0 + 0.500001) as u64, hashes: Vec::new(), previous_prefix: None }
    }

    /// Adds a user key (or prefix). Consecutive equal keys count once.
    #[inline]
    pub fn add_key(&mut self, key: &[u8]) {
        self.add_hash(hash64(key));
    }

    /// Adds a key by its [`hash64`]. Consecutive equal keys count once.
    #[inline]
    pub fn add_hash(&mut self, hash: u64) {
        if self.hashes.last() != Some(&hash) {
            self.hashes.push(hash);
        }
    }

    /// Adds a user key and its prefix, for a filter of both. Consecutive equal prefixes count once.
    pub fn add_key_and_prefix(&mut self, key: &[u8], prefix: &[u8]) {
        let (key, prefix) = (hash64(key), hash64(prefix));
        let previous_key = self.hashes.last().copied();
        let previous_prefix = self.previous_prefix;
        // The prefix comes first, so that the last hash is always the last key's.
        if Some(prefix) != previous_prefix && prefix != key && Some(prefix) != previous_key {
            self.hashes.push(prefix);
        }
        self.previous_prefix = Some(prefix);
        if Some(key) != previous_key && Some(key) != previous_prefix {
            self.hashes.push(key);
        }
    }

    /// Number of entries for which a filter block of `len` bytes has room, at the requested bits per key.
    pub fn entries_in(&self, len: usize) -> usize {
        let raw = (len.saturating_sub(METADATA_LEN) as u64).min(LEN_MAX) / LINE as u64 * LINE as u64;
        (raw * 8000).checked_div(self.millibits_per_key).unwrap_or(0) as usize
    }

    /// Keys added so far.
    pub fn num_keys(&self) -> usize {
        self.hashes.len()
    }

    /// Length of the filter for the keys added so far: whole lines.
    fn raw_len(&self) -> usize {
        let target = (self.hashes.len() as u64).saturating_mul(self.millibits_per_key).saturating_add(7999) / 8000;
        target.min(LEN_MAX).next_multiple_of(LINE as u64) as usize
    }

    /// The filter block's contents, including the metadata; empty if no key was added. The builder is empty afterwards.
    pub fn finish(&mut self) -> Vec<u8> {
        let len = self.raw_len();
        let hashes = std::mem::take(&mut self.hashes);
        self.previous_prefix = None;
        if hashes.is_empty() {
            return Vec::new();
        }
        if self.millibits_per_key == 0 {
            return vec![0; METADATA_LEN + 1];
        }
        let probes = choose_probes(self.millibits_per_key);
        let lines = (len / LINE) as u32;
        // Setting bits in words is faster than in bytes.
        let mut bits = vec![[0u64; LINE / 8]; lines as usize];
        for &hash in &hashes {
            if let Some(line) = bits.get_mut(line_offset(hash, lines) / LINE) {
                let mut h = (hash >> 32) as u32;
                for _ in 0..probes {
                    line[(h >> 29) as usize] |= 1 << ((h >> 23) & 63);
                    h = h.wrapping_mul(GOLDEN_RATIO);
                }
            }
        }
        let mut filter = Vec::with_capacity(len + METADATA_LEN);
        filter.extend(bits.iter().flatten().flat_map(|word| word.to_le_bytes()));
        filter.extend_from_slice(&[255, 0, probes, 0, 0]);
        // The next filter reuses the hashes' memory.
        self.hashes = hashes;
        self.hashes.clear();
        filter
    }
}

/// The number of probes for a number of bits per key that RocksDB measured to be the most accurate.
fn choose_probes(millibits_per_key: u64) -> u8 {
    const LIMITS: [u64; 12] = [2080, 3580, 5100, 6640, 8300, 10_070, 11_720, 14_001, 16_050, 18_300, 22_001, 25_501];
    match LIMITS.iter().position(|&limit| millibits_per_key <= limit) {
        Some(i) => i as u8 + 1,
        None if millibits_per_key > 50_000 => 24,
        None => ((millibits_per_key - 1) / 2000 - 1) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FilterReader;

    #[test]
    fn every_key_matches_and_few_others_do() {
        for (bits, false_positives_max) in [(5.0, 0.13), (10.0, 0.013), (16.0, 0.0015), (60.0, 0.0001)] {
            for n in [1, 2, 50, 1000, 20_000] {
                let mut builder = BloomBuilder::new(bits);
                for i in 0..n {
                    builder.add_key(format!("key{i}").as_bytes());
                    builder.add_key(format!("key{i}").as_bytes());
                }
                assert_eq!(builder.num_keys(), n);
                let data = builder.finish();
                assert_eq!(builder.num_keys(), 0);
                let reader = FilterReader::parse(data).unwrap();
                assert_eq!(reader.kind_name(), "fast local bloom");
                assert!((0..n).all(|i| reader.may_match(format!("key{i}").as_bytes())));
                let wrong = (0..20_000).filter(|i| reader.may_match(format!("other{i}").as_bytes())).count();
                assert!(wrong as f64 <= 20_000.0 * false_positives_max, "{bits} bits, {n} keys: {wrong} of 20000");
            }
        }
    }

    #[test]
    fn keys_with_prefixes() {
        let mut builder = BloomBuilder::new(10.0);
        for i in 0..100 {
            builder.add_key_and_prefix(format!("p{}-{i}", i / 10).as_bytes(), format!("p{}", i / 10).as_bytes());
        }
        assert_eq!(builder.num_keys(), 110);
        let mut same = BloomBuilder::new(10.0);
        same.add_key_and_prefix(b"k", b"k");
        same.add_key_and_prefix(b"k2", b"k");
        assert_eq!(same.num_keys(), 2);
    }

    #[test]
    fn bits_per_key_are_sanitized() {
        for (bits, millibits) in
            [(0.4, 0), (0.7, 1000), (9.9999, 10_000), (7.5, 7500), (1000.0, 100_000), (f64::NAN, 100_000), (-3.0, 0)]
        {
            assert_eq!(BloomBuilder::new(bits).millibits_per_key, millibits, "{bits}");
        }
        assert!(BloomBuilder::new(10.0).finish().is_empty());
        let mut none = BloomBuilder::new(0.1);
        none.add_key(b"x");
        assert_eq!(none.finish(), [0; 6]);
        for (millibits, probes) in [(1000, 1), (10_000, 6), (10_071, 7), (25_501, 12), (25_502, 11), (50_001, 24)] {
            assert_eq!(choose_probes(millibits), probes);
        }
    }
}
