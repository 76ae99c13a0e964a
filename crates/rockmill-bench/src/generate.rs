//! Keys and values as db_bench makes them.

use crate::random::{Lehmer, Mersenne64};

/// Values are slices of one buffer of at least this many bytes: more than any compression window of the defaults.
const VALUE_BUFFER_BYTES_MIN: usize = 1 << 20;
/// Each piece of this length repeats its own beginning, to make it compressible.
const PIECE_BYTES: usize = 100;
/// db_bench's seed of values, the same in every run and thread.
const VALUE_SEED: u32 = 301;

/// Writes key number `n` into `key`: the number's last bytes, big-endian, at most eight, then `'0'`s.
#[inline]
pub fn write_key(n: u64, key: &mut [u8]) {
    let number = key.len().min(8);
    let (head, padding) = key.split_at_mut(number);
    head.copy_from_slice(&n.to_be_bytes()[8 - number..]);
    padding.fill(b'0');
}

/// The order in which a thread visits the keys.
#[derive(Debug)]
pub enum KeyGenerator {
    /// 0, 1, 2, …
    Sequential(u64),
    /// Uniform over the keys, with repeats.
    Random,
    /// The same, but the first keys in order are drawn more often than the others.
    Clustered {
        /// Part of the keys, 0 to 1.
        keys: f64,
        /// Part of the draws, 0 to 1.
        draws: f64,
    },
    /// Every key once, shuffled.
    UniqueRandom(std::vec::IntoIter<u64>),
}

impl KeyGenerator {
    /// Random keys: `draws` percent of the draws are from the first `keys` percent of the keys. Uniform if one of them
    /// is 0.
    pub fn drawn(keys: f64, draws: f64) -> Self {
        match keys > 0.0 && draws > 0.0 {
            true => Self::Clustered { keys: keys / 100.0, draws: draws / 100.0 },
            false => Self::Random,
        }
    }

    /// Every key below `num` once, in an order determined by the seed.
    pub fn unique_random(num: u64, seed: u64) -> Self {
        let mut all: Vec<u64> = (0..num).collect();
        let mut random = Mersenne64::new(seed);
        for i in (1..all.len()).rev() {
            all.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
        }
        Self::UniqueRandom(all.into_iter())
    }

    /// The next key's number; `None` after the last key.
    #[inline]
    pub fn next_key(&mut self, random: &mut Mersenne64, num: u64) -> Option<u64> {
        match self {
            Self::Sequential(next) => {
                *next += 1;
                Some(*next - 1)
            }
            Self::Random => Some(random.next_u64() % num),
            Self::Clustered { keys, draws } => {
                let first = ((num as f64 * *keys) as u64).clamp(1, num);
                let rest = num - first;
                let drawn = random.next_u64() as f64 / u64::MAX as f64;
                let n = random.next_u64();
                Some(if drawn < *draws || rest == 0 { n % first } else { first + n % rest })
            }
            Self::UniqueRandom(all) => all.next(),
        }
    }
}

/// Values of a given compressibility, without copying: slices of one reused buffer.
#[derive(Debug)]
pub struct ValueGenerator {
    buffer: Vec<u8>,
    position: usize,
}

impl ValueGenerator {
    /// Values of at most `value_bytes_max` bytes that compress to about `compression_ratio` of their size.
    pub fn new(compression_ratio: f64, value_bytes_max: usize) -> Self {
        let mut random = Lehmer::new(VALUE_SEED);
        let wanted = VALUE_BUFFER_BYTES_MIN.max(value_bytes_max);
        let unique = ((PIECE_BYTES as f64 * compression_ratio) as usize).clamp(1, PIECE_BYTES);
        let mut buffer = Vec::with_capacity(wanted + PIECE_BYTES);
        while buffer.len() < wanted {
            let start = buffer.len();
            for i in 0..PIECE_BYTES {
                let byte = if i < unique { b' ' + random.below(95) as u8 } else { buffer[start + i - unique] };
                buffer.push(byte);
            }
        }
        Self { buffer, position: 0 }
    }

    /// The next value.
    #[inline]
    pub fn next_value(&mut self, len: usize) -> &[u8] {
        if self.position + len > self.buffer.len() {
            self.position = 0;
        }
        let start = self.position;
        self.position += len;
        &self.buffer[start..start + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_big_endian_and_padded() {
        let mut key = [0; 16];
        write_key(0x0102, &mut key);
        assert_eq!(&key, b"\0\0\0\0\0\0\x01\x020000\x30\x30\x30\x30");
        let mut short = [0; 4];
        write_key(0x0a_0b0c_0d0e, &mut short);
        assert_eq!(short, [0x0b, 0x0c, 0x0d, 0x0e], "a short key keeps the low bytes");
    }

    #[test]
    fn random_keys_are_uniform() {
        const NUM: u64 = 16;
        let (mut counts, mut random) = ([0u32; NUM as usize], Mersenne64::new(7));
        let mut keys = KeyGenerator::Random;
        for _ in 0..16_000 {
            counts[keys.next_key(&mut random, NUM).expect("never ends") as usize] += 1;
        }
        // Standard deviation about 31.
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
    }

    #[test]
    fn clustered_keys_are_the_first_ones() {
        let mut random = Mersenne64::new(7);
        let mut keys = KeyGenerator::Clustered { keys: 0.05, draws: 0.95 };
        let (mut first, mut last) = (0, 0);
        for _ in 0..20_000 {
            let n = keys.next_key(&mut random, 1000).expect("never ends");
            first += u32::from(n < 50);
            last = last.max(n);
        }
        // Standard deviation about 31.
        assert!((18_850..19_150).contains(&first), "{first}");
        assert!(last > 900 && last < 1000, "{last}");
        let mut all = KeyGenerator::Clustered { keys: 1.0, draws: 0.5 };
        assert!((0..100).all(|_| all.next_key(&mut random, 3).expect("never ends") < 3));
    }

    #[test]
    fn unique_random_visits_every_key_once_and_not_in_order() {
        let mut random = Mersenne64::new(1);
        let mut keys = KeyGenerator::unique_random(1000, 3);
        let mut seen: Vec<u64> = std::iter::from_fn(|| keys.next_key(&mut random, 1000)).collect();
        assert!(!seen.is_sorted());
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn values_repeat_half_of_each_piece_and_cover_the_buffer() {
        let mut values = ValueGenerator::new(0.5, 100);
        let first = values.next_value(100).to_vec();
        assert_eq!(first[..50], first[50..], "ratio 0.5: the second half repeats the first");
        assert!(first.iter().all(|b| (b' '..=b'~').contains(b)));
        let second = values.next_value(100).to_vec();
        assert_ne!(first, second);
        let mut again = ValueGenerator::new(0.5, 100);
        assert_eq!(again.next_value(100), first, "the same in every run");
    }

    #[test]
    fn values_larger_than_the_buffer_are_served() {
        let mut values = ValueGenerator::new(1.0, 3 << 20);
        assert_eq!(values.next_value(3 << 20).len(), 3 << 20);
        assert_eq!(values.next_value(3 << 20).len(), 3 << 20);
    }
}
