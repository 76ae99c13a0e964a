//! Full filters: RocksDB's cache-local Bloom filter (read and written), Ribbon and the legacy Bloom layout (read).
//!
//! A filter block is filter data followed by five bytes that describe it:
//!
//! ```text
//! raw data     as the layout has it
//! u8           1 to 127: legacy Bloom with so many probes; 0: always true; 255: new Bloom; 254: Ribbon
//! 4 bytes      legacy Bloom: u32 number of cache lines
//!              new Bloom: u8 0, u8 (probes in the low five bits, log2 of the line's bytes - 6 above), u16 0
//!              Ribbon: u8 seed, u24 number of blocks of 128 slots
//! ```
//!
//! A block of at most five bytes has no keys. A filter with an unknown marker answers "may match", as in RocksDB: it
//! may be useless, but never wrong. Source: `table/block_based/filter_policy.cc`.

mod bloom;
mod legacy;
mod ribbon;

pub use bloom::BloomBuilder;

use crate::error::{FormatError, Result};
use crate::hash::{hash64, legacy_bloom_hash};

/// Number of bytes at the end of a filter block that describe it.
const METADATA_LEN: usize = 5;

/// The layout of a filter block; parsed once per block, then queried together with the block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterLayout {
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    AlwaysFalse,
    AlwaysTrue,
    FastLocalBloom(bloom::FastLocalBloom),
    Ribbon(ribbon::Ribbon),
    LegacyBloom(legacy::LegacyBloom),
}

impl FilterLayout {
    /// Reads the metadata of a filter block.
    pub fn parse(data: &[u8]) -> Result<Self> {
        if u32::try_from(data.len()).is_err() {
            return Err(FormatError::corruption("filter block is larger than 4 GiB", 0));
        }
        let kind = match data.split_last_chunk::<METADATA_LEN>() {
            None | Some(([], _)) => Kind::AlwaysFalse,
            Some((raw, [marker, metadata @ ..])) => match *marker as i8 {
                -1 => bloom::FastLocalBloom::parse(raw, *metadata).map_or(Kind::AlwaysTrue, Kind::FastLocalBloom),
                -2 => ribbon::Ribbon::parse(raw, *metadata).map_or(Kind::AlwaysTrue, Kind::Ribbon),
                probes @ 1.. => {
                    legacy::LegacyBloom::parse(raw, probes as u8, *metadata).map_or(Kind::AlwaysTrue, Kind::LegacyBloom)
                }
                _ => Kind::AlwaysTrue,
            },
        };
        Ok(Self { kind })
    }

    /// False if the key is certainly not in the table. `data` is the block that was parsed.
    #[inline]
    pub fn may_match(&self, data: &[u8], key: &[u8]) -> bool {
        match self.kind {
            Kind::FastLocalBloom(bloom) => bloom.may_match(data, hash64(key)),
            _ => self.may_match_other(data, key, hash64),
        }
    }

    /// Like [`Self::may_match`], for a caller that queries many filters for one key: `hash` is [`hash64`] of `key`.
    #[inline]
    pub fn may_match_hashed(&self, data: &[u8], key: &[u8], hash: u64) -> bool {
        match self.kind {
            Kind::FastLocalBloom(bloom) => bloom.may_match(data, hash),
            _ => self.may_match_other(data, key, |_| hash),
        }
    }

    fn may_match_other(&self, data: &[u8], key: &[u8], hash: impl Fn(&[u8]) -> u64) -> bool {
        match self.kind {
            Kind::AlwaysFalse => false,
            Kind::AlwaysTrue => true,
            Kind::FastLocalBloom(bloom) => bloom.may_match(data, hash(key)),
            Kind::Ribbon(ribbon) => ribbon.may_match(data, hash(key)),
            Kind::LegacyBloom(bloom) => bloom.may_match(data, legacy_bloom_hash(key)),
        }
    }

    /// The layout's name, for dumps.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::AlwaysFalse => "always false",
            Kind::AlwaysTrue => "always true",
            Kind::FastLocalBloom(_) => "fast local bloom",
            Kind::Ribbon(_) => "ribbon",
            Kind::LegacyBloom(_) => "legacy bloom",
        }
    }
}

/// A full filter block, ready for queries.
#[derive(Debug, Clone)]
pub struct FilterReader {
    data: Vec<u8>,
    layout: FilterLayout,
}

impl FilterReader {
    /// Takes a filter block's contents. For an unknown layout, `may_match` is always true, as in RocksDB.
    pub fn parse(data: Vec<u8>) -> Result<Self> {
        let layout = FilterLayout::parse(&data)?;
        Ok(Self { data, layout })
    }

    /// False if the key is certainly not in the table.
    #[inline]
    pub fn may_match(&self, key: &[u8]) -> bool {
        self.layout.may_match(&self.data, key)
    }

    /// Like [`Self::may_match`], for a caller that queries many filters for one key: `hash` is [`hash64`] of `key`.
    #[inline]
    pub fn may_match_hashed(&self, key: &[u8], hash: u64) -> bool {
        self.layout.may_match_hashed(&self.data, key, hash)
    }

    /// True for a filter without keys.
    pub fn is_empty(&self) -> bool {
        self.layout.kind == Kind::AlwaysFalse
    }

    /// Bytes held.
    pub fn memory_usage(&self) -> usize {
        self.data.capacity() + size_of::<Self>()
    }

    /// The layout's name, for dumps: `fast local bloom`, `ribbon`, `legacy bloom`, `always true`, `always false`.
    pub fn kind_name(&self) -> &'static str {
        self.layout.kind_name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_picks_the_layout() {
        let block = |raw: usize, metadata: [u8; 5]| {
            let mut data = vec![0; raw];
            data.extend_from_slice(&metadata);
            FilterReader::parse(data).unwrap()
        };
        for (raw, metadata, name) in [
            (0, [255, 0, 6, 0, 0], "always false"),
            (1, [0, 0, 0, 0, 0], "always true"),
            (64, [255, 0, 6, 0, 0], "fast local bloom"),
            (64, [255, 1, 6, 0, 0], "always true"),
            (64, [255, 0, 6, 1, 0], "always true"),
            (64, [255, 0, 0, 0, 0], "always true"),
            (64, [255, 0, 31, 0, 0], "always true"),
            (64, [255, 0, 32 + 6, 0, 0], "always true"),
            (63, [255, 0, 6, 0, 0], "always true"),
            (64, [253, 0, 6, 0, 0], "always true"),
            (64, [128, 0, 6, 0, 0], "always true"),
            (32, [254, 7, 2, 0, 0], "ribbon"),
            (32, [254, 7, 1, 0, 0], "always true"),
            (64, [6, 1, 0, 0, 0], "legacy bloom"),
            (128, [6, 1, 0, 0, 0], "legacy bloom"),
            (65, [6, 1, 0, 0, 0], "always true"),
            (64, [6, 0, 0, 0, 0], "always true"),
            (64, [6, 0, 0, 0, 255], "always true"),
        ] {
            let reader = block(raw, metadata);
            assert_eq!(reader.kind_name(), name, "{raw} bytes and {metadata:?}");
            reader.may_match(b"any key");
        }
        assert!(!FilterReader::parse(Vec::new()).unwrap().may_match(b"k"));
        assert!(FilterReader::parse(vec![0; 6]).unwrap().may_match(b"k"));
    }

    #[test]
    fn damage_never_panics() {
        let seed = 17;
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..50_000 {
            let len = rng.usize(0..200);
            let mut data: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            if len >= METADATA_LEN {
                data[len - METADATA_LEN] = *rng.choice(&[0, 1, 6, 30, 127, 128, 253, 254, 255]).unwrap();
                for b in &mut data[len - METADATA_LEN + 1..] {
                    if rng.bool() {
                        *b = rng.u8(0..8);
                    }
                }
            }
            let reader = FilterReader::parse(data).unwrap();
            for key in [&b""[..], b"a", b"some longer key"] {
                assert_eq!(reader.may_match(key), reader.may_match_hashed(key, hash64(key)));
            }
        }
    }
}
