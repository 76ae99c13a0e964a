//! RocksDB's two stored hashes (`util/hash.h`): 32 bits for hash indexes and legacy Bloom filters, 64 bits for current
//! filters. The latter is a preview of XXH3 that was never released (`util/xxph3.h`). Both are part of the format: only
//! the hash that wrote a table can read it.

/// The 32-bit hash of `data` (RocksDB `Hash`, a MurmurHash1 with a sign extension of the last bytes).
#[inline]
pub fn hash32(data: &[u8], seed: u32) -> u32 {
    const M: u32 = 0xc6a4_a793;
    let mut h = seed ^ (data.len() as u32).wrapping_mul(M);
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        h = h.wrapping_add(u32::from_le_bytes(*word)).wrapping_mul(M);
        h ^= h >> 16;
    }
    if !rest.is_empty() {
        // RocksDB adds the bytes as signed chars; existing tables depend on it.
        for (i, &b) in rest.iter().enumerate() {
            h = h.wrapping_add((b as i8 as u32) << (8 * i));
        }
        h = h.wrapping_mul(M);
        h ^= h >> 24;
    }
    h
}

/// The hash of a user key in the hash index of a data block (RocksDB `GetSliceHash`).
#[inline]
pub fn block_index_hash(user_key: &[u8]) -> u32 {
    hash32(user_key, 397)
}

/// The hash of a key in a legacy Bloom filter (RocksDB `BloomHash`).
#[inline]
pub fn legacy_bloom_hash(key: &[u8]) -> u32 {
    hash32(key, 0xbc9f_1d34)
}

/// Multipliers of the 64-bit hash.
const P32_1: u64 = 0x9e37_79b1;
const P32_2: u64 = 0x85eb_ca77;
const P32_3: u64 = 0xc2b2_ae3d;
const P64_1: u64 = 0x9e37_79b1_85eb_ca87;
const P64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const P64_3: u64 = 0x1656_67b1_9e37_79f9;
const P64_4: u64 = 0x85eb_ca77_c2b2_ae63;
const P64_5: u64 = 0x27d4_eb2f_1656_67c5;

/// Bytes of input that the accumulators take at a time.
const STRIPE: usize = 64;
/// Number of bytes by which the secret advances for each stripe.
const SECRET_STEP: usize = 8;
/// Length of the secret that the formulas for short inputs are designed for.
const SECRET_LEN_MIN: usize = 136;

/// The default secret, the same as XXH3's.
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d,
    0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0,
    0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0,
    0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b,
    0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac,
    0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51,
    0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34,
    0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49,
    0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8,
    0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b,
    0x40, 0x7e,
];

/// The eight bytes at `at`. Every caller has checked the length; in most cases the compiler can prove it too.
#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<8>()) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => 0,
    }
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<4>()) {
        Some(chunk) => u32::from_le_bytes(*chunk),
        None => 0,
    }
}

/// The 128-bit product, its halves combined by xor.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn avalanche(mut h: u64) -> u64 {
    h ^= h >> 37;
    h = h.wrapping_mul(P64_3);
    h ^ (h >> 32)
}

/// Mixes sixteen bytes of input at `at` with sixteen of the secret.
#[inline(always)]
fn mix16(data: &[u8], at: usize, secret: usize) -> u64 {
    fold(u64_at(data, at) ^ u64_at(&SECRET, secret), u64_at(data, at + 8) ^ u64_at(&SECRET, secret + 8))
}

/// The 64-bit hash of `data` with seed 0 (RocksDB `Hash64`, `GetSliceHash64`), which filters of format_version 5 and
/// newer use.
#[inline]
pub fn hash64(data: &[u8]) -> u64 {
    let len = data.len();
    match len {
        0 => fold(u64_at(&SECRET, 0), P64_2),
        1..=3 => {
            let (a, b, c) = (data[0], data[len >> 1], data[len - 1]);
            let combined = u32::from_le_bytes([a, b, c, len as u8]);
            let keyed = u64::from(combined) ^ u64::from(u32_at(&SECRET, 0));
            avalanche(keyed.wrapping_mul(P64_1))
        }
        4..=8 => {
            let input = u64::from(u32_at(data, 0)) | (u64::from(u32_at(data, len - 4)) << 32);
            let keyed = input ^ u64_at(&SECRET, 0);
            let mixed = (keyed ^ (keyed >> 51)).wrapping_mul(P32_1).wrapping_add(len as u64);
            avalanche((mixed ^ (mixed >> 47)).wrapping_mul(P64_2))
        }
        9..=16 => {
            let low = u64_at(data, 0) ^ u64_at(&SECRET, 0);
            let high = u64_at(data, len - 8) ^ u64_at(&SECRET, 8);
            avalanche((len as u64).wrapping_add(low.wrapping_add(high)).wrapping_add(fold(low, high)))
        }
        17..=128 => hash_17_to_128(data),
        129..=240 => hash_129_to_240(data),
        _ => hash_long(data),
    }
}

fn hash_17_to_128(data: &[u8]) -> u64 {
    let len = data.len();
    let mut acc = (len as u64).wrapping_mul(P64_1);
    // From both ends towards the middle.
    let pairs = (len - 1) / 32 + 1;
    for i in (0..pairs).rev() {
        acc = acc.wrapping_add(mix16(data, 16 * i, 32 * i));
        acc = acc.wrapping_add(mix16(data, len - 16 * (i + 1), 32 * i + 16));
    }
    avalanche(acc)
}

#[inline(never)]
fn hash_129_to_240(data: &[u8]) -> u64 {
    let len = data.len();
    let mut acc = (len as u64).wrapping_mul(P64_1);
    for i in 0..8 {
        acc = acc.wrapping_add(mix16(data, 16 * i, 16 * i));
    }
    acc = avalanche(acc);
    for i in 8..len / 16 {
        acc = acc.wrapping_add(mix16(data, 16 * i, 16 * (i - 8) + 3));
    }
    avalanche(acc.wrapping_add(mix16(data, len - 16, SECRET_LEN_MIN - 17)))
}

#[inline(never)]
fn hash_long(data: &[u8]) -> u64 {
    const STRIPES_PER_BLOCK: usize = (SECRET.len() - STRIPE) / SECRET_STEP;
    let len = data.len();
    let mut acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1];
    for block in data.chunks(STRIPE * STRIPES_PER_BLOCK) {
        let (stripes, _) = block.as_chunks::<STRIPE>();
        for (i, stripe) in stripes.iter().enumerate() {
            accumulate(&mut acc, stripe, SECRET_STEP * i);
        }
        if stripes.len() == STRIPES_PER_BLOCK {
            scramble(&mut acc);
        }
    }
    // Unlike the released XXH3, this preview does not take the last stripe again if the length is a multiple.
    if !len.is_multiple_of(STRIPE)
        && let Some(last) = data.last_chunk::<STRIPE>()
    {
        accumulate(&mut acc, last, SECRET.len() - STRIPE - 7);
    }
    let mut h = (len as u64).wrapping_mul(P64_1);
    for i in 0..4 {
        let at = 11 + 16 * i;
        h = h.wrapping_add(fold(acc[2 * i] ^ u64_at(&SECRET, at), acc[2 * i + 1] ^ u64_at(&SECRET, at + 8)));
    }
    avalanche(h)
}

#[inline(always)]
fn accumulate(acc: &mut [u64; 8], stripe: &[u8; STRIPE], secret: usize) {
    for (i, lane) in acc.iter_mut().enumerate() {
        let value = u64_at(stripe, 8 * i);
        let keyed = value ^ u64_at(&SECRET, secret + 8 * i);
        *lane = lane.wrapping_add(value).wrapping_add((keyed & 0xffff_ffff).wrapping_mul(keyed >> 32));
    }
}

#[inline(always)]
fn scramble(acc: &mut [u64; 8]) {
    for (i, lane) in acc.iter_mut().enumerate() {
        *lane = (*lane ^ (*lane >> 47) ^ u64_at(&SECRET, SECRET.len() - STRIPE + 8 * i)).wrapping_mul(P32_1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that RocksDB 11.8.1's `Hash64` and `Hash` (seed 397) gave for prefixes of these bytes.
    #[test]
    fn hashes_are_those_of_rocksdb() {
        let mut state = 12_345u32;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            (state >> 16) as u8
        })
        .take(3000)
        .collect();
        for (len, long, short) in [
            (0, 0x5342_c301_0fe1_dd04, 0x0000_018d),
            (1, 0xf10d_0432_8764_4392, 0x28f9_64a6),
            (2, 0xdb18_2941_62c3_4251, 0x3e6c_74bb),
            (3, 0x9499_8dfd_e45c_f7ab, 0xc3ad_9af3),
            (4, 0x4740_92ce_9434_30f9, 0x8929_780e),
            (7, 0x449d_a8e5_aa9a_4f5d, 0xe40c_f12a),
            (8, 0x6394_4710_7cfa_9317, 0x3fc0_518a),
            (9, 0xbce2_d098_ee0f_e068, 0xd1a3_5b60),
            (15, 0xa364_8b53_b731_9478, 0xdcc7_0c98),
            (16, 0x5730_248d_97a6_6007, 0x5a61_180c),
            (17, 0x61fc_9e38_4212_1bd0, 0xa35d_a034),
            (32, 0xb7e5_15c4_ab49_9d96, 0xa439_68c9),
            (33, 0x09f6_f78d_3ba7_c217, 0xc660_8aaf),
            (64, 0x4cee_e7d2_1b1c_7d16, 0x1632_89e1),
            (65, 0x34be_a093_d7ce_c277, 0xa8bb_65cd),
            (96, 0x5169_a765_8db8_61e9, 0xe619_be95),
            (97, 0x4c14_d054_c2d6_e6d5, 0x015b_d2e0),
            (128, 0x5cfc_6623_70e3_6561, 0xa173_f5ae),
            (129, 0x0a52_440d_b190_268d, 0x373d_08c9),
            (160, 0xdc97_f852_d6b1_9d1c, 0xc744_ee0f),
            (239, 0x3d33_f590_4e58_4c01, 0x5fce_5bb6),
            (240, 0x036a_7493_5e6e_22cc, 0x5070_cd97),
            (241, 0xa97e_e5cd_5396_29ed, 0x1305_c40b),
            (256, 0x6df4_c3d0_0d18_95d3, 0xba0d_46d3),
            (1023, 0x08f1_8f6b_7f31_46c2, 0x0ced_4a02),
            (1024, 0x257e_ecb4_bc15_9b19, 0x34cb_2199),
            (1025, 0xad9d_4ae6_1848_1a62, 0x8d1d_7d8b),
            (1088, 0x56c4_6ac4_f898_8d31, 0x8a1a_70a2),
            (2048, 0x2e2a_4afc_9b5d_3bc3, 0x28fb_adcf),
            (3000, 0x8fed_f97b_9e22_8d1d, 0x907a_51a1),
        ] {
            assert_eq!(hash64(&data[..len]), long, "{len} bytes");
            assert_eq!(block_index_hash(&data[..len]), short, "{len} bytes");
        }
        // Every length, folded.
        let (mut long, mut short) = (0u64, 0u32);
        for len in 0..=data.len() {
            long = long.rotate_left(5) ^ hash64(&data[..len]);
            short = short.rotate_left(5) ^ block_index_hash(&data[..len]);
        }
        assert_eq!((long, short), (0x794c_2c6c_d4f9_75dc, 0xaad3_a914));
    }
}
