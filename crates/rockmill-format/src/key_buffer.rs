//! A key that is overwritten again and again, for example by merges and table builders for each entry.

use std::ops::Deref;

use crate::key::{SequenceNumber, TAG_LEN, ValueType, pack_tag};

/// A key's bytes in reused memory. Unlike a `Vec<u8>`, it copies keys of usual lengths without a function call.
#[derive(Debug, Default)]
pub struct KeyBuffer {
    /// The key, followed by unused bytes.
    bytes: Vec<u8>,
    len: usize,
}

impl KeyBuffer {
    /// An empty key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Becomes `key`.
    #[inline]
    pub fn set(&mut self, key: &[u8]) {
        if self.bytes.len() < key.len() {
            self.grow(key.len());
        }
        copy_short(&mut self.bytes[..key.len()], key);
        self.len = key.len();
    }

    /// Becomes empty.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Replaces the sequence number and type of the internal key.
    #[inline]
    pub fn set_tag(&mut self, seq: SequenceNumber, t: ValueType) {
        let at = self.len.saturating_sub(TAG_LEN);
        if let Some(tag) = self.bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<TAG_LEN>()) {
            *tag = pack_tag(seq, t).to_le_bytes();
        }
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        self.bytes.resize(len.next_power_of_two().max(64), 0);
    }
}

impl Deref for KeyBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Copies `from` to `to`, which has the same length. Up to 64 bytes, the usual length of keys, are copied as a few
/// chunks, which may overlap.
#[inline(always)]
pub(crate) fn copy_short(to: &mut [u8], from: &[u8]) {
    match from.len() {
        8..=16 => ends::<8>(to, from),
        17..=32 => ends::<16>(to, from),
        33..=64 => ends::<32>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes, which together are all.
#[inline(always)]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
        let (first, last) = (*first, *last);
        if let Some(place) = to.first_chunk_mut::<N>() {
            *place = first;
        }
        if let Some(place) = to.last_chunk_mut::<N>() {
            *place = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::InternalKey;

    #[test]
    fn keys_of_every_length_follow_each_other() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut buffer = KeyBuffer::new();
        assert!(buffer.is_empty());
        let lens: Vec<usize> = (0..200).chain((0..2000).map(|_| rng.usize(0..90))).collect();
        for len in lens {
            let key: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            buffer.set(&key);
            assert_eq!(&buffer[..], key);
        }
        buffer.clear();
        assert!(buffer.is_empty());
    }

    #[test]
    fn tags_are_replaced() {
        for len in 0..100 {
            let user = vec![b'k'; len];
            let mut buffer = KeyBuffer::new();
            buffer.set(InternalKey::new(&user, 7, ValueType::Value).as_bytes());
            buffer.set_tag(9, ValueType::Deletion);
            assert_eq!(&buffer[..], InternalKey::new(&user, 9, ValueType::Deletion).as_bytes());
        }
        // Nothing to replace.
        let mut short = KeyBuffer::new();
        short.set_tag(9, ValueType::Deletion);
        assert!(short.is_empty());
    }
}
