//! The search for a bucket's parameter, eight at a time with AVX2. The result is the same as of `cphash::first_free`.

use crate::cphash::{self, Hashes};
use crate::mix::Modulus;

/// Whether this processor has AVX2.
pub(crate) fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The smallest parameter below `end` that maps all keys to free and different slots. `taken` has a bit for each slot
/// below the divisor; `end` is a multiple of 16.
pub(crate) fn first_free(keys: &[Hashes], taken: &[u32], modulus: Modulus, end: u32, simd: bool) -> Option<u32> {
    assert!(taken.len() >= modulus.n.div_ceil(32) as usize && modulus == Modulus::new(modulus.n) && modulus.n > 0);
    #[cfg(target_arch = "x86_64")]
    if simd && available() {
        // SAFETY: the processor has AVX2, and `taken` and the divisor meet the contract: both are asserted.
        return unsafe { avx2::first_free(keys, taken, modulus, end) };
    }
    let _ = simd;
    cphash::first_free(keys, taken, modulus, end)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use crate::cphash::{Hashes, beta, is_apart};
    use crate::mix::Modulus;

    /// See the function of the same name in the parent module.
    ///
    /// # Safety
    ///
    /// The processor has AVX2. `modulus` is that of a divisor of at least 1, and `taken` has a bit for each value below
    /// it.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn first_free(keys: &[Hashes], taken: &[u32], modulus: Modulus, end: u32) -> Option<u32> {
        let betas = [0u32, 8].map(|from| {
            let b = |i: u32| beta(from + i) as i32;
            _mm256_setr_epi32(b(0), b(1), b(2), b(3), b(4), b(5), b(6), b(7))
        });
        for first in (0..end).step_by(8) {
            let betas = betas[(first >> 3 & 1) as usize];
            let mut conflicts = 0;
            for key in keys {
                let x = _mm256_add_epi32(_mm256_set1_epi32(key.at(first) as i32), betas);
                let slots = remainder(x, modulus);
                let words = _mm256_srli_epi32::<5>(slots);
                // SAFETY: a remainder is below the divisor, and `taken` has a word for each 32 values below that.
                let words = unsafe { _mm256_i32gather_epi32::<4>(taken.as_ptr().cast(), words) };
                // The slot's bit becomes the sign bit, which the movemask collects.
                let upside = _mm256_sub_epi32(_mm256_set1_epi32(31), _mm256_and_si256(slots, _mm256_set1_epi32(31)));
                conflicts |= _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(words, upside)));
                if conflicts == 0xff {
                    break;
                }
            }
            while conflicts != 0xff {
                let parameter = first + (conflicts as u32).trailing_ones();
                if is_apart(keys, parameter, modulus) {
                    return Some(parameter);
                }
                conflicts |= conflicts + 1;
            }
        }
        None
    }

    /// `x % n` of eight numbers: [`Modulus::of`] for those in even positions, then for those in odd positions.
    #[target_feature(enable = "avx2")]
    fn remainder(x: __m256i, modulus: Modulus) -> __m256i {
        let magic_low = _mm256_set1_epi64x((modulus.magic & 0xffff_ffff) as i64);
        let magic_high = _mm256_set1_epi64x((modulus.magic >> 32) as i64);
        let n = _mm256_set1_epi64x(i64::from(modulus.n));
        // The multiplication takes the low half of each 64 bits; the result is in the high half.
        let of_even = |x: __m256i| {
            let low = _mm256_mul_epu32(magic_low, x);
            let high = _mm256_slli_epi64::<32>(_mm256_mul_epu32(magic_high, x));
            let fraction = _mm256_add_epi64(low, high);
            let carry = _mm256_srli_epi64::<32>(_mm256_mul_epu32(fraction, n));
            _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64::<32>(fraction), n), carry)
        };
        let even = _mm256_srli_epi64::<32>(of_even(x));
        let odd = of_even(_mm256_srli_epi64::<32>(x));
        _mm256_blend_epi32::<0b1010_1010>(even, odd)
    }
}
