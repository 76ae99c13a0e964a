//! Where the data blocks of a file are, in a few bits each. Tables of several files find their blocks with this, and it
//! is all that a file keeps if its index is not in memory.
//!
//! Data blocks follow one another, so that a block ends where the next begins, and their offsets rise. They are kept in
//! Elias-Fano coding: the low bits of each offset as they are, and the high bits as the positions of ones in a bit
//! string. With blocks of `s` bytes that is 2 + log2(s) bits for each, and half a bit for samples; an array of offsets
//! and sizes would take 96.

use std::sync::Arc;

use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};

/// Ones between two samples.
const SAMPLE: usize = 64;

/// The data blocks of one file, by number. Clones are the same numbers in memory.
#[derive(Debug, Clone)]
pub struct BlockPlaces(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// Without gaps between blocks.
    Dense(Offsets),
    /// As other writers may lay them out: aligned blocks.
    Any(Arc<[BlockHandle]>),
}

/// Rising numbers.
#[derive(Debug, Clone)]
struct Offsets {
    len: usize,
    low_bits: u32,
    low: Arc<[u64]>,
    high: Arc<[u64]>,
    /// Where in `high` each [`SAMPLE`]th one is.
    samples: Arc<[u32]>,
}

impl BlockPlaces {
    /// Of the blocks at `handles`, which rise.
    pub fn new(handles: impl Iterator<Item = BlockHandle> + Clone) -> Self {
        let mut end = None;
        let dense = handles.clone().all(|h| end.replace(h.end()).is_none_or(|end| end == h.offset));
        if !dense {
            return Self(Kind::Any(handles.collect()));
        }
        let offsets: Vec<u64> = handles.map(|h| h.offset).chain(end).collect();
        Self(Kind::Dense(Offsets::new(&offsets)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Dense(offsets) => offsets.len.saturating_sub(1),
            Kind::Any(handles) => handles.len(),
        }
    }

    /// Block `i`, which is below [`Self::len`].
    #[inline]
    pub fn get(&self, i: usize) -> BlockHandle {
        match &self.0 {
            Kind::Dense(offsets) => {
                let (offset, end) = offsets.pair(i);
                BlockHandle { offset, size: end.saturating_sub(offset).saturating_sub(BLOCK_TRAILER_LEN as u64) }
            }
            Kind::Any(handles) => handles.get(i).copied().unwrap_or_default(),
        }
    }

    /// Bytes held.
    pub fn memory_usage(&self) -> usize {
        match &self.0 {
            Kind::Dense(o) => (o.low.len() + o.high.len()) * 8 + o.samples.len() * 4,
            Kind::Any(handles) => std::mem::size_of_val(&**handles),
        }
    }

    /// One table's part of [`Self::memory_usage`]: all tables that have the file, and the open file itself, share it.
    pub fn memory_share(&self) -> usize {
        let holders = match &self.0 {
            Kind::Dense(offsets) => Arc::strong_count(&offsets.low),
            Kind::Any(handles) => Arc::strong_count(handles),
        };
        // The file itself is one of them, if it keeps no index.
        self.memory_usage() / holders.saturating_sub(1).max(1)
    }
}

impl Offsets {
    fn new(values: &[u64]) -> Self {
        let last = values.last().copied().unwrap_or(0);
        let low_bits = (last / values.len().max(1) as u64).checked_ilog2().unwrap_or(0);
        let mut low = vec![0u64; (values.len() * low_bits as usize).div_ceil(64) + 1];
        let mut high = vec![0u64; (values.len() as u64 + (last >> low_bits)) as usize / 64 + 1];
        let mut samples = Vec::with_capacity(values.len() / SAMPLE + 1);
        for (i, value) in values.iter().enumerate() {
            put_bits(&mut low, i * low_bits as usize, low_bits, value & ((1 << low_bits) - 1));
            let one = (value >> low_bits) as usize + i;
            high[one / 64] |= 1 << (one % 64);
            if i % SAMPLE == 0 {
                samples.push(one as u32);
            }
        }
        Self { len: values.len(), low_bits, low: low.into(), high: high.into(), samples: samples.into() }
    }

    /// Number `i` and the one after it.
    #[inline]
    fn pair(&self, i: usize) -> (u64, u64) {
        let sample = self.samples.get(i / SAMPLE).copied().unwrap_or(0) as usize;
        let mut word = sample / 64;
        let mut bits = self.high.get(word).copied().unwrap_or(0) & (u64::MAX << (sample % 64));
        let mut left = (i % SAMPLE) as u32;
        loop {
            let ones = bits.count_ones();
            if left < ones || word + 1 >= self.high.len() {
                break;
            }
            left -= ones;
            word += 1;
            bits = self.high[word];
        }
        for _ in 0..left {
            bits &= bits.wrapping_sub(1);
        }
        let first = word * 64 + bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        while bits == 0 && word + 1 < self.high.len() {
            word += 1;
            bits = self.high[word];
        }
        let second = word * 64 + bits.trailing_zeros() as usize;
        let value = |one: usize, i: usize| {
            let low = get_bits(&self.low, i * self.low_bits as usize, self.low_bits);
            ((one.saturating_sub(i) as u64) << self.low_bits) | low
        };
        (value(first, i), value(second, i + 1))
    }
}

fn put_bits(words: &mut [u64], at: usize, bits: u32, value: u64) {
    if bits == 0 {
        return;
    }
    let (word, shift) = (at / 64, (at % 64) as u32);
    words[word] |= value << shift;
    if shift + bits > 64 {
        words[word + 1] |= value >> (64 - shift);
    }
}

#[inline]
fn get_bits(words: &[u64], at: usize, bits: u32) -> u64 {
    if bits == 0 {
        return 0;
    }
    let (word, shift) = (at / 64, (at % 64) as u32);
    let mut value = words.get(word).copied().unwrap_or(0) >> shift;
    if shift + bits > 64 {
        value |= words.get(word + 1).copied().unwrap_or(0) << (64 - shift);
    }
    value & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_where_it_was() {
        for seed in 0..400 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let largest = *rng.choice(&[1, 40, 4000, 100_000, 1 << 20]).unwrap();
            let gap = if rng.u8(0..4) == 0 { 7 } else { 0 };
            let mut offset = if rng.bool() { 0 } else { rng.u64(0..5000) };
            let mut handles = Vec::new();
            for _ in 0..rng.usize(0..700) {
                let handle = BlockHandle { offset, size: rng.u64(0..largest) };
                offset = handle.end() + rng.u64(0..=gap);
                handles.push(handle);
            }
            let places = BlockPlaces::new(handles.iter().copied());
            assert_eq!(places.len(), handles.len());
            for (i, handle) in handles.iter().enumerate() {
                assert_eq!(places.get(i), *handle, "seed {seed}, block {i} of {}", handles.len());
            }
        }
    }

    #[test]
    fn a_block_takes_a_few_bits() {
        let handles = (0..20_000).map(|i| BlockHandle { offset: i * 4096, size: 4091 });
        let places = BlockPlaces::new(handles);
        assert!(places.memory_usage() * 8 < 20_000 * 16, "{} bytes", places.memory_usage());
        // Of a table whose open file keeps none, of one, of two and of three.
        let all = places.memory_usage();
        assert_eq!(places.memory_share(), all);
        let mut tables = Vec::new();
        for sharing in [1, 2, 3] {
            tables.push(places.clone());
            assert_eq!(places.memory_share(), all / sharing);
        }
    }
}
