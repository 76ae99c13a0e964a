//! Writing a block (RocksDB `table/block_based/block_builder.cc`).

use super::hash_index::HashIndexBuilder;
use super::{HASH_INDEX_BIT, SEPARATED_VALUES_BIT};
use crate::coding::{self, varint_len};
use crate::key;
use crate::key_buffer::copy_short;

/// How a [`BlockBuilder`] lays out entries.
#[derive(Debug, Clone)]
pub struct BlockBuilderOptions {
    /// Entries between two restart points; at least 1.
    pub restart_interval: usize,
    /// Store only the part of a key that differs from the previous key.
    pub delta_encoding: bool,
    /// Index blocks of format_version 4 and newer: between restart points, store only the change of a handle's size.
    pub value_delta_encoding: bool,
    /// Entries per hash bucket of the data block hash index; `None` writes none. Keys are then internal keys.
    pub hash_index_util_ratio: Option<f64>,
    /// Store values in a separate section after the keys. Only RocksDB 11 and newer read such a block, and only in
    /// tables whose `rocksdb.data.block.restart.interval` property is this block's restart interval.
    pub separate_values: bool,
}

impl Default for BlockBuilderOptions {
    /// RocksDB's defaults for data blocks.
    fn default() -> Self {
        Self {
            restart_interval: 16,
            delta_encoding: true,
            value_delta_encoding: false,
            hash_index_util_ratio: None,
            separate_values: false,
        }
    }
}

/// Builds blocks one after another and reuses its memory.
pub struct BlockBuilder {
    options: BlockBuilderOptions,
    /// The first `used` bytes are the block, the rest is scratch: one check of the size is enough for each entry.
    buffer: Vec<u8>,
    used: usize,
    /// Used only if values are stored separately.
    values: Vec<u8>,
    restarts: Vec<u32>,
    /// Entries since the last restart point.
    counter: usize,
    last_key: Vec<u8>,
    hash_index: Option<HashIndexBuilder>,
    finished: bool,
}

impl BlockBuilder {
    /// An empty block.
    pub fn new(options: BlockBuilderOptions) -> Self {
        let hash_index = options.hash_index_util_ratio.map(HashIndexBuilder::new);
        Self {
            options: BlockBuilderOptions { restart_interval: options.restart_interval.max(1), ..options },
            buffer: Vec::new(),
            used: 0,
            values: Vec::new(),
            restarts: vec![0],
            counter: 0,
            last_key: Vec::new(),
            hash_index,
            finished: false,
        }
    }

    /// Appends an entry; keys must be in order. With `value_delta_encoding`, `delta_value` replaces `value` between
    /// restart points; an entry without a `delta_value` stores its whole key and value even there.
    pub fn add(&mut self, key: &[u8], value: &[u8], delta_value: Option<&[u8]>) {
        let common = shared_prefix_len(&self.last_key, key);
        let shared = if self.counter < self.options.restart_interval
            && self.options.delta_encoding
            && (!self.options.value_delta_encoding || delta_value.is_some())
        {
            common
        } else {
            0
        };
        self.add_shared(key, shared, value, delta_value);
        if self.options.delta_encoding {
            // Keeping the shared prefix in place avoids most of the copy.
            self.last_key.truncate(common);
            self.last_key.extend_from_slice(&key[common..]);
        }
    }

    /// Appends an entry to a data block whose caller knows that the key shares its first `common` bytes with the
    /// previous key. A block is built either with this method or with [`Self::add`].
    #[inline]
    pub fn add_after(&mut self, key: &[u8], common: usize, value: &[u8]) {
        let shared = if self.counter < self.options.restart_interval && self.used > 0 { common } else { 0 };
        self.add_shared(key, shared, value, None);
    }

    #[inline(always)]
    fn add_shared(&mut self, key: &[u8], shared: usize, value: &[u8], delta_value: Option<&[u8]>) {
        debug_assert!(!self.finished, "add after finish");
        if self.counter >= self.options.restart_interval {
            self.restarts.push(self.used as u32);
            self.counter = 0;
        }
        let unshared = &key[shared..];
        let short = (shared | unshared.len()) < 0x80 && value.len() < 0x4000;
        if short && !self.options.value_delta_encoding && !self.options.separate_values {
            self.put_short(shared, unshared, value);
        } else {
            self.put(shared, unshared, value, delta_value);
        }
        if let Some(index) = &mut self.hash_index {
            index.add(key::user_key(key), self.restarts.len() - 1);
        }
        self.counter += 1;
    }

    /// Writes an entry of a data block whose lengths need one, one and at most two bytes.
    #[inline(always)]
    fn put_short(&mut self, shared: usize, unshared: &[u8], value: &[u8]) {
        let most = self.used + 4 + unshared.len() + value.len();
        if self.buffer.len() < most {
            self.grow(most);
        }
        let out = &mut self.buffer[self.used..most];
        let long = value.len() >= 0x80;
        let (low, high) = (value.len() as u8 | u8::from(long) << 7, (value.len() >> 7) as u8);
        out[..4].copy_from_slice(&[shared as u8, unshared.len() as u8, low, high]);
        let key_at = 3 + usize::from(long);
        let (key, rest) = out[key_at..].split_at_mut(unshared.len());
        copy_short(key, unshared);
        rest[..value.len()].copy_from_slice(value);
        self.used += key_at + unshared.len() + value.len();
    }

    #[cold]
    fn grow(&mut self, most: usize) {
        self.buffer.resize((most * 2).max(8 << 10), 0);
    }

    /// Writes any entry.
    fn put(&mut self, shared: usize, unshared: &[u8], value: &[u8], delta_value: Option<&[u8]>) {
        let (delta, separate) = (self.options.value_delta_encoding, self.options.separate_values);
        self.buffer.truncate(self.used);
        coding::put_varint32(&mut self.buffer, shared as u32);
        coding::put_varint32(&mut self.buffer, unshared.len() as u32);
        if !delta {
            coding::put_varint32(&mut self.buffer, value.len() as u32);
        }
        if separate && self.counter == 0 {
            coding::put_varint32(&mut self.buffer, self.values.len() as u32);
        }
        self.buffer.extend_from_slice(unshared);
        // Readers interpret `shared > 0` as the mark of a delta value.
        let stored = if shared != 0 && delta { delta_value.unwrap_or(value) } else { value };
        if separate { &mut self.values } else { &mut self.buffer }.extend_from_slice(stored);
        self.used = self.buffer.len();
    }

    /// Completes the block and returns its bytes; call `reset` before the next use.
    pub fn finish(&mut self) -> &[u8] {
        if self.finished {
            return &self.buffer[..self.used];
        }
        let size = self.current_size_estimate();
        self.finished = true;
        let count = self.restarts.len() as u32;
        if self.hash_index.is_none() && !self.options.separate_values {
            if self.buffer.len() < size {
                self.grow(size);
            }
            let numbers = self.restarts.iter().chain(std::iter::once(&count));
            for (place, number) in self.buffer[self.used..size].chunks_exact_mut(4).zip(numbers) {
                place.copy_from_slice(&number.to_le_bytes());
            }
            self.used = size;
            return &self.buffer[..size];
        }
        self.buffer.truncate(self.used);
        let values_offset = self.used as u32;
        self.buffer.extend_from_slice(&self.values);
        for restart in &self.restarts {
            coding::put_fixed32(&mut self.buffer, *restart);
        }
        let mut packed = count;
        if let Some(index) = &self.hash_index
            && index.fits(size)
        {
            index.finish(&mut self.buffer);
            packed |= HASH_INDEX_BIT;
        }
        if self.options.separate_values {
            coding::put_fixed32(&mut self.buffer, values_offset);
            packed |= SEPARATED_VALUES_BIT;
        }
        coding::put_fixed32(&mut self.buffer, packed);
        self.used = self.buffer.len();
        &self.buffer
    }

    /// Starts an empty block and keeps the memory.
    pub fn reset(&mut self) {
        self.used = 0;
        self.values.clear();
        self.restarts.truncate(1);
        self.counter = 0;
        self.last_key.clear();
        self.finished = false;
        if let Some(index) = &mut self.hash_index {
            index.reset();
        }
    }

    /// The block's size in bytes if it were finished now.
    #[inline]
    pub fn current_size_estimate(&self) -> usize {
        if self.finished {
            return self.used;
        }
        let tail = if self.options.separate_values { 8 } else { 4 };
        let entries = self.used + self.values.len() + 4 * self.restarts.len() + tail;
        entries + self.hash_index.as_ref().map_or(0, HashIndexBuilder::size_estimate)
    }

    /// The block's size in bytes if an entry of these lengths were added and the block finished. This is RocksDB's
    /// estimate, which assumes that no key prefix is shared. It decides where blocks end, so tables are identical only
    /// if it is the same.
    pub fn estimate_size_after(&self, key_len: usize, value_len: usize) -> usize {
        let restarts = self.counter >= self.options.restart_interval;
        let whole_value = !self.options.value_delta_encoding || restarts;
        let mut size = self.current_size_estimate() + key_len;
        size += if whole_value { value_len } else { value_len / 2 };
        if restarts {
            size += 4;
        }
        if self.options.separate_values && (self.counter == 0 || restarts) {
            size += varint_len(self.values.len() as u64);
        }
        size += 4 + varint_len(key_len as u64);
        if whole_value {
            size += varint_len(value_len as u64);
        }
        size
    }

    /// True if nothing was added since the last reset.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The last key added since the last reset; empty without delta encoding.
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }
}

/// Length of the longest common prefix.
#[inline]
pub fn shared_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (words_a, _) = a.as_chunks::<8>();
    let (words_b, _) = b.as_chunks::<8>();
    let mut i = 0;
    for (x, y) in words_a.iter().zip(words_b) {
        let difference = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if difference != 0 {
            return i + (difference.trailing_zeros() / 8) as usize;
        }
        i += 8;
    }
    while i < n && a[i] == b[i] {
        i += 1;
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_prefixes() {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..2000 {
            let a: Vec<u8> = (0..rng.usize(0..40)).map(|_| rng.u8(0..2)).collect();
            let mut b = a.clone();
            b.truncate(rng.usize(0..=a.len()));
            b.extend((0..rng.usize(0..5)).map(|_| rng.u8(0..2)));
            let expected = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            assert_eq!(shared_prefix_len(&a, &b), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn bytes_of_a_small_block() {
        let mut b = BlockBuilder::new(BlockBuilderOptions { restart_interval: 2, ..Default::default() });
        b.add(b"apple", b"1", None);
        b.add(b"apricot", b"22", None);
        b.add(b"fig", b"", None);
        assert_eq!(b.current_size_estimate(), 3 + 6 + 3 + 7 + 3 + 3 + 8 + 4);
        let mut expected = b"\x00\x05\x01apple1\x02\x05\x02ricot22\x00\x03\x00fig".to_vec();
        expected.extend_from_slice(&[0, 0, 0, 0, 19, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(b.finish(), expected);
        b.reset();
        assert!(b.is_empty());
        assert_eq!(b.finish(), [0, 0, 0, 0, 1, 0, 0, 0]);
    }
}
