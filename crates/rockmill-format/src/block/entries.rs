//! Decoding a block's entries ahead, some at a time: what a merge reads.
//!
//! A cursor decodes one entry at a time, and its caller waits for that: the next entry's place is known only when this
//! one's lengths are. If entries are decoded in a row, the loads of one entry overlap with the copies of the previous
//! one, and a step from entry to entry is an addition. Keys are written out whole, one after another; values stay where
//! they are.
//!
//! Batches are bounded in entries and key bytes, so that the keys of a block that share almost everything cannot take
//! unbounded memory when they are written out.

use std::ops::Range;

use super::entry::{self, Header};
use super::{BlockCursor, BlockKind, BlockLayout};
use crate::error::{FormatError, Result};
use crate::key::TAG_LEN;

/// The most entries of a batch.
const ENTRIES_MAX: usize = 64;
/// Key bytes at which a batch ends.
const KEY_BYTES_MAX: usize = 32 << 10;
/// The same for a batch that should hold all of its block.
const WHOLE_ENTRIES_MAX: usize = 1 << 16;
const WHOLE_KEY_BYTES_MAX: usize = 1 << 20;
const DAMAGED: &str = "block has a damaged entry";
/// Copies of at most this many bytes are made as one copy of exactly this many.
const CHUNK: usize = 16;

/// One entry.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// See [`BlockEntries::prefix`].
    prefix: u64,
    /// Where its key starts in `keys`.
    key: u32,
    key_len: u32,
    /// Where its value starts in the block.
    value: u32,
    value_len: u32,
}

/// Part of the entries of a data block, decoded; see the module's description.
#[derive(Debug)]
pub struct BlockEntries {
    layout: BlockLayout,
    /// For the kinds of blocks that few tables have.
    cursor: BlockCursor,
    /// The entries come from the cursor.
    by_cursor: bool,
    /// Nothing of the block was decoded yet.
    fresh: bool,
    /// Offset of the first entry after the batch.
    next: u32,
    /// An error found after the batch.
    error: Option<FormatError>,
    /// Length of the key before the batch, which is at the start of `keys`; 0 if there is none.
    before: usize,
    entries: Vec<Entry>,
    /// Keys of the batch, followed by unused bytes.
    keys: Vec<u8>,
    /// Where prefixes start in user keys; `None` if they are not wanted.
    skip: Option<usize>,
}

impl BlockEntries {
    /// Nothing yet. `skip`: prefixes are taken after this many bytes of the user key, which all keys share; `None`
    /// where keys do not order bytewise, so that prefixes would say nothing.
    pub fn new(skip: Option<usize>) -> Self {
        let layout = BlockLayout::empty();
        let kind = BlockKind::Data { global_seqno: None };
        Self {
            layout,
            cursor: BlockCursor::new(layout, kind),
            by_cursor: false,
            fresh: true,
            next: 0,
            error: None,
            before: 0,
            entries: Vec::with_capacity(ENTRIES_MAX),
            keys: Vec::new(),
            skip,
        }
    }

    /// Re-targets it to the beginning of another data block, with an empty batch.
    pub fn reset(&mut self, layout: BlockLayout, kind: BlockKind) {
        self.layout = layout;
        self.entries.clear();
        self.fresh = true;
        self.error = None;
        self.by_cursor = layout.separated || kind != BlockKind::Data { global_seqno: None };
        if self.by_cursor {
            self.cursor.reset(layout, kind);
        }
    }

    /// The block's layout.
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// Entries of the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without any.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The internal key of entry `i` of the batch.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let Some(e) = self.entries.get(i) else { return &[] };
        self.keys.get(e.key as usize..(e.key + e.key_len) as usize).unwrap_or(&[])
    }

    /// Eight bytes of the user key of entry `i`, as a number with the order of the user keys (equal numbers tell
    /// nothing); 0 if they are not wanted.
    #[inline]
    pub fn prefix(&self, i: usize) -> u64 {
        self.entries.get(i).map_or(0, |e| e.prefix)
    }

    /// Where the value of entry `i` is in the block.
    #[inline]
    pub fn value_range(&self, i: usize) -> Range<usize> {
        self.entries.get(i).map_or(0..0, |e| e.value as usize..(e.value + e.value_len) as usize)
    }

    /// Decodes the next batch of the block, whose contents are `data`; false behind its last entry.
    ///
    /// # Errors
    /// Damage, with its offset in the block. The entries before it are decoded first, and the next call gives it.
    pub fn fill(&mut self, data: &[u8]) -> Result<bool> {
        if let Some(e) = self.error.take() {
            return Err(e);
        }
        if self.by_cursor {
            return self.fill_by_cursor(data);
        }
        // The last key moves to the front: the next one is stored as a difference to it.
        let last = self.entries.last().map_or(0..0, |e| e.key as usize..(e.key + e.key_len) as usize);
        self.before = last.len();
        self.keys.copy_within(last, 0);
        self.entries.clear();
        self.decode(data, (0, self.before), ENTRIES_MAX, KEY_BYTES_MAX)
    }

    /// Decodes the rest of the block after the first batch into the same batch. True if the batch then holds the whole
    /// block. False if the block is too large, if it is damaged (the next call of [`Self::fill`] returns the error), or
    /// if it is of a rare kind.
    pub fn fill_whole(&mut self, data: &[u8]) -> bool {
        let Some(last) = self.entries.last().filter(|_| !self.by_cursor && self.error.is_none()) else { return false };
        let last = (last.key as usize, last.key_len as usize);
        // An error waits for the next batch.
        let decoded = self.decode(data, last, WHOLE_ENTRIES_MAX, WHOLE_KEY_BYTES_MAX).is_ok();
        decoded && self.error.is_none() && self.next == self.layout.keys_end
    }

    /// The internal key before the batch, that of the last entry once [`Self::fill`] came to the block's end; empty
    /// before the first, and for the kinds of blocks that few tables have.
    pub fn key_before(&self) -> &[u8] {
        self.keys.get(..self.before).unwrap_or(&[])
    }

    /// Decodes entries after the batch, up to these limits. The previous key has this position and length.
    #[inline(always)]
    fn decode(
        &mut self,
        data: &[u8],
        (mut previous, mut previous_len): (usize, usize),
        entries_max: usize,
        key_bytes_max: usize,
    ) -> Result<bool> {
        let Some(block) = data.get(..self.layout.keys_end as usize) else {
            return Err(FormatError::corruption("block is shorter than its layout says", 0));
        };
        if std::mem::take(&mut self.fresh) {
            self.next = match self.layout.restart_point(data, 0) {
                _ if self.layout.num_restarts == 0 || block.is_empty() => block.len() as u32,
                Some(first) if (first as usize) < block.len() => first,
                _ => return self.damaged("block has a restart point outside its entries", block.len()),
            };
        }
        let mut used = previous + previous_len;
        let mut pos = self.next as usize;
        while pos < block.len() && self.entries.len() < entries_max && used < key_bytes_max {
            let Some(header) = entry::header(block, pos, false) else { return self.damaged(DAMAGED, pos) };
            let Header { shared, unshared, value_len, key_at } = header;
            let (key_end, len) = (key_at + unshared, shared + unshared);
            let value_end = key_end + value_len;
            if shared > previous_len || value_end > block.len() {
                return self.damaged(DAMAGED, pos);
            }
            // Room for whole chunks after the key.
            if self.keys.len() < used + len + 2 * CHUNK {
                self.keys.resize((used + len + 2 * CHUNK) * 2, 0);
            }
            copy_inside(&mut self.keys, previous, used, shared);
            copy_from(&mut self.keys[used + shared..], data, key_at, unshared);
            self.entries.push(Entry {
                prefix: prefix(&self.keys[used..], len, self.skip),
                key: used as u32,
                key_len: len as u32,
                value: key_end as u32,
                value_len: value_len as u32,
            });
            (previous, previous_len) = (used, len);
            used += len;
            pos = value_end;
        }
        self.next = pos as u32;
        Ok(!self.entries.is_empty())
    }

    /// The entries decoded so far are returned first; damage at the start of a batch is an error.
    #[cold]
    fn damaged(&mut self, what: &'static str, pos: usize) -> Result<bool> {
        self.fail(FormatError::corruption(what, pos as u64))
    }

    #[cold]
    fn fail(&mut self, e: FormatError) -> Result<bool> {
        if self.entries.is_empty() {
            return Err(e);
        }
        self.error = Some(e);
        Ok(true)
    }

    #[inline(never)]
    fn fill_by_cursor(&mut self, data: &[u8]) -> Result<bool> {
        self.entries.clear();
        self.before = 0;
        let mut used = 0;
        while self.entries.len() < ENTRIES_MAX && used < KEY_BYTES_MAX {
            let fresh = std::mem::take(&mut self.fresh);
            let moved = if fresh { self.cursor.seek_to_first(data) } else { self.cursor.next(data) };
            if let Err(e) = moved {
                return self.fail(e);
            }
            if !self.cursor.valid() {
                break;
            }
            let (key, value) = (self.cursor.key(), self.cursor.value_range());
            let len = key.len();
            if self.keys.len() < used + len + CHUNK {
                self.keys.resize((used + len + CHUNK) * 2, 0);
            }
            self.keys[used..used + len].copy_from_slice(key);
            self.entries.push(Entry {
                prefix: prefix(&self.keys[used..], len, self.skip),
                key: used as u32,
                key_len: len as u32,
                value: value.start as u32,
                value_len: value.len() as u32,
            });
            used += len;
        }
        Ok(!self.entries.is_empty())
    }
}

/// The prefix of an internal key of `len` bytes at the start of `key`, which has more bytes after it.
#[inline(always)]
fn prefix(key: &[u8], len: usize, skip: Option<usize>) -> u64 {
    let Some(skip) = skip else { return 0 };
    let rest = len.saturating_sub(TAG_LEN).saturating_sub(skip);
    let Some(bytes) = key.get(skip..).and_then(|k| k.first_chunk::<8>()) else { return 0 };
    let whole = u64::from_be_bytes(*bytes);
    // Bytes behind a short user key count as zeros.
    match rest {
        8.. => whole,
        0 => 0,
        _ => whole & !(u64::MAX >> (8 * rest)),
    }
}

/// Copies `len` bytes inside `buffer`, which has `CHUNK` more behind each.
#[inline(always)]
fn copy_inside(buffer: &mut [u8], from: usize, to: usize, len: usize) {
    if len <= CHUNK
        && let Some(chunk) = buffer.get(from..).and_then(|b| b.first_chunk::<CHUNK>()).copied()
        && let Some(place) = buffer.get_mut(to..).and_then(|b| b.first_chunk_mut::<CHUNK>())
    {
        *place = chunk;
    } else {
        buffer.copy_within(from..from + len, to);
    }
}

/// Copies `len` bytes of `data` to the start of `buffer`, which has `CHUNK` more bytes after them.
#[inline(always)]
fn copy_from(buffer: &mut [u8], data: &[u8], from: usize, len: usize) {
    if len <= CHUNK
        && let Some(chunk) = data.get(from..).and_then(|b| b.first_chunk::<CHUNK>())
        && let Some(place) = buffer.first_chunk_mut::<CHUNK>()
    {
        *place = *chunk;
    } else {
        buffer[..len].copy_from_slice(&data[from..from + len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockBuilder, BlockBuilderOptions};
    use crate::key::{InternalKey, ValueType, user_key};

    fn prefix_of(user: &[u8], skip: usize) -> u64 {
        let mut bytes = [0; 8];
        let rest = user.get(skip..).unwrap_or(&[]);
        let n = rest.len().min(8);
        bytes[..n].copy_from_slice(&rest[..n]);
        u64::from_be_bytes(bytes)
    }

    /// What a cursor gives, from batches.
    fn check(block: &[u8], kind: BlockKind, skip: Option<usize>, what: &str) {
        let layout = BlockLayout::parse(block).unwrap();
        let mut cursor = BlockCursor::new(layout, kind);
        let mut entries = BlockEntries::new(skip);
        entries.reset(layout, kind);
        let mut cursor_result = cursor.seek_to_first(block);
        loop {
            match entries.fill(block) {
                Ok(true) => {}
                Ok(false) => {
                    assert!(cursor_result.is_ok() && !cursor.valid(), "{what}: it ends early");
                    return;
                }
                Err(_) => {
                    assert!(cursor_result.is_err(), "{what}: damage where the cursor finds none");
                    return;
                }
            }
            assert!(entries.len() <= ENTRIES_MAX);
            for i in 0..entries.len() {
                assert!(cursor_result.is_ok() && cursor.valid(), "{what}: an entry too many");
                assert_eq!(entries.key(i), cursor.key(), "{what}");
                assert_eq!(entries.value_range(i), cursor.value_range(), "{what}");
                let want = skip.map_or(0, |s| prefix_of(user_key(cursor.key()), s));
                assert_eq!(entries.prefix(i), want, "{what}");
                cursor_result = cursor.next(block);
            }
        }
    }

    fn random_block(rng: &mut fastrand::Rng) -> (Vec<u8>, usize) {
        let common = rng.usize(0..12);
        let mut keys: Vec<Vec<u8>> = (0..rng.usize(0..300))
            .map(|_| {
                let mut user = vec![b'c'; common];
                user.extend((0..rng.usize(0..40)).map(|_| rng.u8(0..3)));
                InternalKey::new(&user, rng.u64(1..100), ValueType::Value).as_bytes().to_vec()
            })
            .collect();
        keys.sort();
        let mut b = BlockBuilder::new(BlockBuilderOptions {
            restart_interval: rng.usize(1..20),
            hash_index_util_ratio: None,
            separate_values: rng.u8(0..4) == 0,
            ..BlockBuilderOptions::default()
        });
        for key in &keys {
            let value = vec![7; if rng.u8(0..10) == 0 { rng.usize(0..3000) } else { rng.usize(0..60) }];
            b.add(key, &value, None);
        }
        (b.finish().to_vec(), common)
    }

    #[test]
    fn batches_hold_what_a_cursor_shows() {
        for seed in 0..400 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (block, common) = random_block(&mut rng);
            let global_seqno = (rng.u8(0..4) == 0).then_some(42);
            let skip = [None, Some(0), Some(common)][rng.usize(0..3)];
            check(&block, BlockKind::Data { global_seqno }, skip, &format!("seed {seed}"));
        }
    }

    #[test]
    fn damaged_blocks_give_what_a_cursor_gives() {
        for seed in 0..3000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut block, _) = random_block(&mut rng);
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..block.len());
                block[at] = rng.u8(..);
            }
            if BlockLayout::parse(&block).is_ok() {
                check(&block, BlockKind::Data { global_seqno: None }, Some(0), &format!("seed {seed}"));
            }
        }
    }

    #[test]
    fn keys_that_share_everything_stay_bounded() {
        let mut b = BlockBuilder::new(BlockBuilderOptions { restart_interval: 1 << 20, ..Default::default() });
        let mut key = vec![b'x'; 20_000];
        key.extend_from_slice(&[0; 8]);
        for _ in 0..2000 {
            b.add(&key, b"", None);
        }
        let block = b.finish().to_vec();
        let layout = BlockLayout::parse(&block).unwrap();
        let mut entries = BlockEntries::new(Some(0));
        entries.reset(layout, BlockKind::Data { global_seqno: None });
        let mut n = 0;
        while entries.fill(&block).unwrap() {
            n += entries.len();
        }
        assert_eq!(n, 2000);
        assert!(entries.keys.capacity() < 400_000, "{} bytes of keys", entries.keys.capacity());
    }
}
