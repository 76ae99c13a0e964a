//! Checksums of blocks, log records and files (RocksDB `util/crc32c.h`, `table/format.cc`).

use twox_hash::XxHash3_64;
use xxhash_rust::{xxh32, xxh64};

/// The number that RocksDB adds to mask a CRC (`crc32c::kMaskDelta`).
const MASK_DELTA: u32 = 0xa282_ead8;
/// RocksDB multiplies the last byte of XXH3-checked data by this prime.
const LAST_BYTE_PRIME: u32 = 0x6b90_83d9;

/// Checksum of a table's blocks; the footer stores the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ChecksumType {
    /// Blocks have no checksum.
    None = 0,
    /// CRC-32C, masked.
    Crc32c = 1,
    /// xxHash, 32 bits.
    XxHash = 2,
    /// Low 32 bits of xxHash64.
    XxHash64 = 3,
    /// RocksDB's use of XXH3: low 32 bits, last byte mixed in.
    Xxh3 = 4,
}

impl ChecksumType {
    /// The checksum with this number, if it exists in RocksDB.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::None,
            1 => Self::Crc32c,
            2 => Self::XxHash,
            3 => Self::XxHash64,
            4 => Self::Xxh3,
            _ => return None,
        })
    }

    /// Its name in RocksDB's options, for example `kXXH3`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "kNoChecksum",
            Self::Crc32c => "kCRC32c",
            Self::XxHash => "kxxHash",
            Self::XxHash64 => "kxxHash64",
            Self::Xxh3 => "kXXH3",
        }
    }
}

/// CRC-32C of `data`.
#[inline]
pub fn crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
}

/// CRC-32C of two parts: `crc` is that of the first, `data` is the second.
#[inline]
pub fn crc32c_extend(crc: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, data)
}

/// Applies RocksDB's mask, which keeps the CRC useful for data that contains CRCs.
#[inline]
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// Undoes [`mask`].
#[inline]
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(MASK_DELTA).rotate_left(15)
}

/// The 64-bit hash xxHash64 of `data`, to distinguish files; it does not protect against forgery.
pub fn xxh64(data: &[u8]) -> u64 {
    xxh64::xxh64(data, 0)
}

/// The 64-bit hash XXH3 of `data`, to distinguish contents; it does not protect against forgery.
pub fn xxh3(data: &[u8]) -> u64 {
    XxHash3_64::oneshot(data)
}

/// Checksum of one contiguous slice (RocksDB `ComputeBuiltinChecksum`). For a block, `data` is its contents and the
/// compression-type byte after them. This is the fast form, because the two are adjacent in the file. Footers of
/// format_version 6 and newer use it too.
pub fn checksum(kind: ChecksumType, data: &[u8]) -> u32 {
    match kind {
        ChecksumType::None => 0,
        ChecksumType::Crc32c => mask(crc32c(data)),
        ChecksumType::XxHash => xxh32::xxh32(data, 0),
        ChecksumType::XxHash64 => xxh64::xxh64(data, 0) as u32,
        ChecksumType::Xxh3 => match data.split_last() {
            Some((&last, rest)) => xxh3_with_last_byte(rest, last),
            None => 0,
        },
    }
}

/// The checksum in a block's trailer: over `data` and then the compression-type byte (RocksDB
/// `ComputeBuiltinChecksumWithLastByte`).
pub fn block_checksum(kind: ChecksumType, data: &[u8], compression_byte: u8) -> u32 {
    match kind {
        ChecksumType::None => 0,
        ChecksumType::Crc32c => mask(crc32c_extend(crc32c(data), &[compression_byte])),
        ChecksumType::XxHash => {
            let mut h = xxh32::Xxh32::new(0);
            h.update(data);
            h.update(&[compression_byte]);
            h.digest()
        }
        ChecksumType::XxHash64 => {
            let mut h = xxh64::Xxh64::new(0);
            h.update(data);
            h.update(&[compression_byte]);
            h.digest() as u32
        }
        ChecksumType::Xxh3 => xxh3_with_last_byte(data, compression_byte),
    }
}

/// RocksDB hashes all bytes except the last and mixes that one in separately, which avoids XXH3's streaming state.
fn xxh3_with_last_byte(rest: &[u8], last: u8) -> u32 {
    (XxHash3_64::oneshot(rest) as u32) ^ u32::from(last).wrapping_mul(LAST_BYTE_PRIME)
}

/// What format_version 6 and newer adds to a checksum for the block's place in its file (RocksDB
/// `ChecksumModifierForContext`). Zero if the file has no base, so older files need no special case.
#[inline]
pub fn context_modifier(base_context_checksum: u32, offset: u64) -> u32 {
    if base_context_checksum == 0 {
        return 0;
    }
    base_context_checksum ^ (offset as u32).wrapping_add((offset >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ChecksumType; 5] =
        [ChecksumType::None, ChecksumType::Crc32c, ChecksumType::XxHash, ChecksumType::XxHash64, ChecksumType::Xxh3];

    #[test]
    fn crc32c_has_the_values_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c_extend(crc32c(b"hello "), b"world"), crc32c(b"hello world"));
    }

    #[test]
    fn mask_is_not_the_identity_and_unmask_undoes_it() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let crc = rng.u32(..);
            assert_ne!(mask(crc), crc);
            assert_ne!(mask(mask(crc)), crc);
            assert_eq!(unmask(mask(crc)), crc);
        }
    }

    #[test]
    fn one_slice_and_split_last_byte_agree() {
        let mut rng = fastrand::Rng::with_seed(2);
        for len in (0..300).chain([1000, 4096, 70_000]) {
            let data: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            for kind in KINDS {
                for last in [0, 1, 7, 255] {
                    let mut whole = data.clone();
                    whole.push(last);
                    assert_eq!(block_checksum(kind, &data, last), checksum(kind, &whole), "{kind:?} {len}");
                }
            }
        }
    }

    #[test]
    fn reference_values() {
        // The published values of each hash for empty input and seed 0.
        assert_eq!(checksum(ChecksumType::XxHash, b""), 0x02cc_5d05);
        assert_eq!(checksum(ChecksumType::XxHash64, b""), 0x51d8_e999);
        // RocksDB returns 0 for the XXH3 of empty input; for one byte, XXH3("") = 0x2d06800538d394c2 with that byte
        // mixed in.
        assert_eq!(checksum(ChecksumType::Xxh3, b""), 0);
        assert_eq!(checksum(ChecksumType::Xxh3, b"\0"), 0x38d3_94c2);
        assert_eq!(checksum(ChecksumType::Xxh3, b"\x01"), 0x38d3_94c2 ^ 0x6b90_83d9);
    }

    #[test]
    fn numbers_and_kinds_correspond() {
        for v in 0..=255u8 {
            match ChecksumType::from_u8(v) {
                Some(kind) => assert_eq!(kind as u8, v),
                None => assert!(v > 4),
            }
        }
    }

    #[test]
    fn context_depends_on_both_halves_of_the_offset_and_is_off_at_zero() {
        assert_eq!(context_modifier(0, 0x1234_5678_9abc), 0);
        assert_eq!(context_modifier(0xdead_beef, 0), 0xdead_beef);
        assert_eq!(context_modifier(0xdead_beef, 5), 0xdead_beef ^ 5);
        assert_eq!(context_modifier(0xdead_beef, (3 << 32) + 5), 0xdead_beef ^ 8);
        assert_eq!(context_modifier(1, u64::MAX), 1 ^ 0xffff_fffe);
    }
}
