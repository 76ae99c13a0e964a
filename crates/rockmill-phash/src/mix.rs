//! The arithmetic shared by builders and readers. All of it is part of the format (docs/phash.md).

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The factor for mixing hashes.
const MIX: u64 = 0x9fb2_1c65_1e98_df25;
/// 2^64 divided by the golden ratio, odd: spreads seeds and attempts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a key: XXH3, 64 bits, with a seed.
///
/// Among *n* keys two hashes are equal with probability n² / 2^65: 1 in 3,700 for 100 million keys. The builder reports
/// that, and the next seed solves it.
#[inline]
pub fn hash_key(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// The salt for mixing hashes, from the caller's seed and the number of the attempt (splitmix64's finalizer).
pub(crate) fn salt(seed: u64, attempt: u8) -> u64 {
    let mut z = seed.wrapping_add(GOLDEN.wrapping_mul(u64::from(attempt) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Spreads hashes over 64 bits, so that even a poor hash function is sufficient, unless somebody chooses keys for the
/// salt. Different hashes may become equal; the builder then uses another salt.
#[inline(always)]
pub(crate) fn mix(hash: u64, salt: u64) -> u64 {
    let product = u128::from(hash ^ salt) * u128::from(MIX);
    (product as u64) ^ (product >> 64) as u64
}

/// Maps `x`, uniform over 64 bits, to `0..n`: the high half of the product.
#[inline(always)]
pub(crate) fn reduce(x: u64, n: u64) -> u64 {
    ((u128::from(x) * u128::from(n)) >> 64) as u64
}

/// Maps `x`, uniform over 32 bits, to `0..n`.
#[inline(always)]
pub(crate) fn reduce32(x: u32, n: u32) -> u32 {
    ((u64::from(x) * u64::from(n)) >> 32) as u32
}

/// Division by a constant as multiplication (Lemire, Kaser, Kurz: "Faster remainder by direct computation"): exact for
/// all 32-bit values and divisors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modulus {
    /// The divisor, at least 1.
    pub n: u32,
    /// ⌈2^64 / n⌉, as 64 bits.
    pub magic: u64,
}

impl Modulus {
    pub(crate) fn new(n: u32) -> Self {
        Self { n, magic: (u64::MAX / u64::from(n.max(1))).wrapping_add(1) }
    }

    /// `x % n`.
    #[inline(always)]
    pub(crate) fn of(self, x: u32) -> u32 {
        reduce(self.magic.wrapping_mul(u64::from(x)), u64::from(self.n)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_is_exact() {
        let some = [1, 2, 3, 5, 63, 64, 65, 1000, 65_537, 1 << 20, (1 << 31) - 1, 1 << 31, u32::MAX - 1, u32::MAX];
        for n in some {
            let modulus = Modulus::new(n);
            for x in some.into_iter().chain([0]).chain((0..100).map(|_| fastrand::u32(..))) {
                assert_eq!(modulus.of(x), x % n, "{x} % {n}");
            }
        }
    }

    /// The hash and the mixing are part of the format.
    #[test]
    fn values_are_as_documented() {
        assert_eq!(hash_key(b"", 0), 0x2d06_8005_38d3_94c2);
        assert_eq!(salt(0, 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(1, 0), MIX);
        assert_eq!(mix(u64::MAX, u64::MAX), 0);
        assert_eq!((reduce(u64::MAX, 10), reduce(0, 10), reduce32(1 << 31, 10)), (9, 0, 5));
    }
}
