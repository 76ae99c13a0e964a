//! db_bench's two random number generators, so that the same seed gives the same operations on both sides.

const WORDS: usize = 312;
const SHIFT: usize = 156;
const UPPER: u64 = !LOWER;
const LOWER: u64 = (1 << 31) - 1;

/// The 64-bit Mersenne Twister (C++'s `std::mt19937_64`): db_bench's source of keys.
#[derive(Debug, Clone)]
pub struct Mersenne64 {
    state: [u64; WORDS],
    next: usize,
}

impl Mersenne64 {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        let mut state = [seed; WORDS];
        for i in 1..WORDS {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 62)).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i as u64);
        }
        Self { state, next: WORDS }
    }

    /// The next number, uniform over all 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        if self.next == WORDS {
            self.refill();
        }
        let mut x = self.state[self.next];
        self.next += 1;
        x ^= (x >> 29) & 0x5555_5555_5555_5555;
        x ^= (x << 17) & 0x71d6_7fff_eda6_0000;
        x ^= (x << 37) & 0xfff7_eee0_0000_0000;
        x ^ (x >> 43)
    }

    fn refill(&mut self) {
        for i in 0..WORDS {
            let x = (self.state[i] & UPPER) | (self.state[(i + 1) % WORDS] & LOWER);
            let twist = if x & 1 == 0 { 0 } else { 0xb502_6f5a_a966_19e9 };
            self.state[i] = self.state[(i + SHIFT) % WORDS] ^ (x >> 1) ^ twist;
        }
        self.next = 0;
    }
}

/// Lehmer's generator with Park and Miller's "minimal standard" numbers: db_bench's source of values.
#[derive(Debug, Clone)]
pub struct Lehmer {
    state: u64,
}

const LEHMER_MODULUS: u64 = (1 << 31) - 1;

impl Lehmer {
    /// The sequence of a seed; 0 and the modulus, which would give only zeros, are replaced with 1.
    pub fn new(seed: u32) -> Self {
        let state = u64::from(seed) & LEHMER_MODULUS;
        Self { state: if state == 0 || state == LEHMER_MODULUS { 1 } else { state } }
    }

    /// A number below `n`, which is not 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        self.state = self.state * 16_807 % LEHMER_MODULUS;
        self.state % n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C++ standard gives the 10,000th number of the default seed as the generator's definition.
    #[test]
    fn mersenne_is_the_standards() {
        let mut r = Mersenne64::new(5489);
        let all: Vec<u64> = (0..10_000).map(|_| r.next_u64()).collect();
        assert_eq!(all[9_999], 9_981_545_732_273_789_042);
    }

    /// Park and Miller's own check: from seed 1, the 10,000th state is 1043618065.
    #[test]
    fn lehmer_is_park_and_millers() {
        let mut r = Lehmer::new(1);
        let last = (0..10_000).map(|_| r.below(u64::MAX)).last();
        assert_eq!(last, Some(1_043_618_065));
    }

    #[test]
    fn bad_lehmer_seeds_still_move() {
        for seed in [0, LEHMER_MODULUS as u32] {
            let mut r = Lehmer::new(seed);
            assert_ne!(r.below(u64::MAX), r.below(u64::MAX), "seed {seed}");
        }
    }
}
