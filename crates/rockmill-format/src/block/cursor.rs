//! Reading a block (RocksDB `table/block_based/block.cc`).
//!
//! Steps of a seek:
//! 1. Binary search over the restart points, comparing their keys in place: restart keys are stored whole.
//! 2. From the last restart point at or before the target, decode entries one by one up to the first that is not before
//!    the target.
//!
//! Invariants: when `valid`, `key`, `value` and (in an index) `handle` are those of the entry at `current`, `next` is
//! the offset just after it, and all three ranges lie inside the block that was passed in. Offsets come from the block
//! and are checked before use, so damaged bytes cause an error and never a panic.

use std::cmp::Ordering;
use std::ops::Range;

use super::entry::{self, Header};
use super::{BlockKind, BlockLayout, hash_index};
use crate::coding;
use crate::comparator::{InternalKeyComparator, search_key};
use crate::error::{FormatError, Result};
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use crate::key::{self, SequenceNumber, TAG_LEN, ValueType};

/// A position in one block. It owns only the current key. Every call takes the block's bytes (a read buffer, a cached
/// block), always the same ones, so that reading needs no copy of the block.
#[derive(Debug, Clone)]
pub struct BlockCursor {
    layout: BlockLayout,
    kind: BlockKind,
    /// The current key; with a global sequence number, its tag is already replaced.
    key: Vec<u8>,
    /// The tag as stored, if `key` has another one: the next key is encoded relative to the stored one.
    stored_tag: u64,
    value: (u32, u32),
    /// First internal key of the block that `handle` points to, if the index has it.
    first_key: (u32, u32),
    handle: BlockHandle,
    current: u32,
    next: u32,
    /// Restart interval of `current`. Maintained only for separate values, which need it.
    restart: u32,
    valid: bool,
    previous: PreviousEntries,
}

/// The entries of a restart interval up to a certain entry, so that stepping back does not decode them again.
///
/// Keys are saved whole until they take [`WHOLE_KEYS_MAX`] bytes. Then the prefix that a key shares with the next key
/// is dropped: the cursor still has it when it steps back from the next key. The remaining bytes are at most as many as
/// the block's. Whole keys, each nearly identical to its predecessor, could take thousands of times as much.
#[derive(Debug, Clone, Default)]
struct PreviousEntries {
    entries: Vec<PreviousEntry>,
    keys: Vec<u8>,
    /// The number of entries whose keys are shortened, and where they end in `keys`.
    shortened: (usize, usize),
}

/// Limit for the bytes of saved whole keys.
const WHOLE_KEYS_MAX: usize = 1 << 20;

impl PreviousEntries {
    fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
        self.shortened = (0, 0);
    }

    /// Drops from each whole key, except the last, the prefix that it shares with the next key.
    #[cold]
    fn shorten(&mut self) {
        let (first, mut at) = self.shortened;
        let Some(last) = self.entries.len().checked_sub(1) else { return };
        for i in first..=last {
            let (begin, end) = self.entries[i].key;
            let next = self.entries.get(i + 1).map_or(&[][..], |e| &self.keys[e.key.0..e.key.1]);
            let kept = self.keys[begin..end].iter().zip(next).take_while(|(a, b)| a == b).count();
            if i == last {
                self.shortened = (i, at);
            }
            self.keys.copy_within(begin + kept..end, at);
            let rest = end - begin - kept;
            self.entries[i].kept = kept;
            self.entries[i].key = (at, at + rest);
            at += rest;
        }
        self.keys.truncate(at);
    }
}

#[derive(Debug, Clone)]
struct PreviousEntry {
    current: u32,
    next: u32,
    restart: u32,
    /// Number of bytes that the key shares with the start of the next entry's key.
    kept: usize,
    /// The rest of the key.
    key: (usize, usize),
    value: (u32, u32),
    first_key: (u32, u32),
    handle: BlockHandle,
    stored_tag: u64,
}

impl BlockCursor {
    /// A cursor that is not on an entry yet.
    pub fn new(layout: BlockLayout, kind: BlockKind) -> Self {
        Self {
            layout,
            kind,
            key: Vec::new(),
            stored_tag: 0,
            value: (0, 0),
            first_key: (0, 0),
            handle: BlockHandle::default(),
            current: 0,
            next: 0,
            restart: 0,
            valid: false,
            previous: PreviousEntries::default(),
        }
    }

    /// Moves the cursor to another block and keeps the key buffer's memory.
    #[inline]
    pub fn reset(&mut self, layout: BlockLayout, kind: BlockKind) {
        self.layout = layout;
        self.kind = kind;
        self.valid = false;
        self.key.clear();
        self.previous.entries.clear();
    }

    /// True if the cursor is on an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// The current key: for data an internal key, for an index what the block stores (see [`BlockKind`]).
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The current value as stored. For index blocks use [`Self::handle`].
    #[inline]
    pub fn value<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        data.get(self.value_range()).unwrap_or(&[])
    }

    /// The current value's range in `data`, for a caller that pins the block.
    #[inline]
    pub fn value_range(&self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }

    /// The current block handle of an index block.
    #[inline]
    pub fn handle(&self) -> BlockHandle {
        self.handle
    }

    /// In an index with first keys (`kBinarySearchWithFirstKey`), the first internal key of the block that
    /// [`Self::handle`] points to; empty in other indexes.
    pub fn first_key<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        data.get(self.first_key.0 as usize..self.first_key.1 as usize).unwrap_or(&[])
    }

    /// In a data block: true if the next entry's user key has different bytes from the current one's, or there is no
    /// next entry in the block. Also false if the answer is not known without moving.
    pub fn next_has_other_user_key(&self, data: &[u8]) -> bool {
        let Some(keys) = data.get(..self.layout.keys_end as usize) else { return false };
        if self.layout.separated {
            return false;
        }
        let pos = self.next as usize;
        if pos >= keys.len() {
            return true;
        }
        let Some(Header { shared, unshared, key_at, .. }) = entry::header(keys, pos, false) else { return false };
        let user_len = self.key.len().saturating_sub(TAG_LEN);
        if shared + unshared != self.key.len() {
            return true;
        }
        // The first byte that is not shared nearly always decides.
        if shared < user_len && keys.get(key_at) != self.key.get(shared) {
            return true;
        }
        let rest = keys.get(key_at..key_at + user_len.saturating_sub(shared));
        shared < user_len && rest != self.key.get(shared..user_len)
    }

    /// Moves to the first entry.
    pub fn seek_to_first(&mut self, data: &[u8]) -> Result<()> {
        self.go_to_restart(data, 0)?;
        self.step(data)
    }

    /// Moves to the last entry.
    pub fn seek_to_last(&mut self, data: &[u8]) -> Result<()> {
        let last = self.layout.num_restarts.saturating_sub(1);
        self.go_to_restart(data, last)?;
        self.step(data)?;
        while self.valid && self.next < self.layout.keys_end {
            self.step(data)?;
        }
        Ok(())
    }

    /// Moves to the first entry at or after `target` (an encoded internal key; bytewise for `Meta`). For an index with
    /// `user_keys`, the entry's user key is compared with the target's.
    #[inline]
    pub fn seek(&mut self, data: &[u8], target: &[u8], cmp: &InternalKeyComparator) -> Result<()> {
        // A separate copy of the search for each order keeps the comparison inline.
        match self.kind {
            BlockKind::Data { global_seqno: None } if cmp.is_hash_range() => self.seek_by_search_key(data, target),
            BlockKind::Data { global_seqno: None } | BlockKind::Index { user_keys: false, .. } => {
                self.seek_by(data, |k| cmp.compare(k, target))
            }
            BlockKind::Data { global_seqno: Some(seqno) } => {
                // Keys in the block have the stored tag, the cursor's own key has the new one: replacing it twice
                // changes nothing.
                self.seek_by(data, |k| compare_with_seqno(k, seqno, target, cmp))
            }
            BlockKind::Index { user_keys: true, .. } => {
                let target = key::user_key(target);
                self.seek_by(data, |k| cmp.compare_user(k, target))
            }
            BlockKind::Meta => self.seek_by(data, |k| k.cmp(target)),
        }
    }

    #[inline(never)]
    fn seek_by_search_key(&mut self, data: &[u8], target: &[u8]) -> Result<()> {
        let known = search_key(key::user_key(target));
        self.seek_by(data, |k| InternalKeyComparator::compare_with_search_key(k, target, known))
    }

    /// Moves to the last entry at or before `target`.
    pub fn seek_for_prev(&mut self, data: &[u8], target: &[u8], cmp: &InternalKeyComparator) -> Result<()> {
        self.seek(data, target, cmp)?;
        if !self.valid {
            return self.seek_to_last(data);
        }
        while self.valid && self.compare(target, cmp) == Ordering::Greater {
            self.prev(data)?;
        }
        Ok(())
    }

    /// Point lookup in a data block: like `seek`, but may use the hash index if keys with different bytes are never
    /// equal.
    ///
    /// `false`: no entry at or after `target` with its user key is in this block or a later one (then the cursor is not
    /// valid). `true`: the cursor is where `seek` would move it; if that is past the last entry, the key may still
    /// start the next block.
    #[inline]
    pub fn seek_for_get(&mut self, data: &[u8], target: &[u8], cmp: &InternalKeyComparator) -> Result<bool> {
        let Some((start, buckets)) = self.layout.hash_index.filter(|_| cmp.finds_by_bytes()) else {
            self.seek(data, target, cmp)?;
            return Ok(true);
        };
        self.seek_for_get_hashed(data, target, cmp, hash_index::lookup(data, start, buckets, key::user_key(target)))
    }

    fn seek_for_get_hashed(
        &mut self,
        data: &[u8],
        target: &[u8],
        cmp: &InternalKeyComparator,
        bucket: u8,
    ) -> Result<bool> {
        let restart = match bucket {
            hash_index::COLLISION => {
                self.seek(data, target, cmp)?;
                return Ok(true);
            }
            // Versions of the key may start the next block although this block's index separator is not before the
            // target. The end of the last interval tells whether they can.
            hash_index::NO_ENTRY => self.layout.num_restarts.saturating_sub(1),
            restart => u32::from(restart),
        };
        if restart >= self.layout.num_restarts {
            return Err(self.corrupt("block's hash index names a restart point that does not exist", 0));
        }
        let limit = match restart + 1 {
            r if r < self.layout.num_restarts => self.layout.restart_point(data, r).unwrap_or(self.layout.keys_end),
            _ => self.layout.keys_end,
        };
        self.go_to_restart(data, restart)?;
        // The first entry after the interval is checked too, as `seek` may have to stop there.
        loop {
            let last = self.next >= limit;
            self.step(data)?;
            if last || !self.valid || self.compare(target, cmp) != Ordering::Less {
                break;
            }
        }
        if !self.valid {
            return Ok(true);
        }
        if cmp.compare_user(key::user_key(&self.key), key::user_key(target)) != Ordering::Equal {
            self.valid = false;
            return Ok(false);
        }
        use ValueType::*;
        match ValueType::from_u8(key::tag(&self.key) as u8) {
            Some(Value | Deletion | Merge | SingleDeletion | BlobIndex | WideColumnEntity | ValuePreferredSeqno) => {}
            // RocksDB uses the index only for these types.
            _ => self.seek(data, target, cmp)?,
        }
        Ok(true)
    }

    /// Moves to the next entry; after the last entry the cursor is not valid.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self, data: &[u8]) -> Result<()> {
        self.step(data)
    }

    /// Moves to the previous entry; before the first entry the cursor is not valid.
    pub fn prev(&mut self, data: &[u8]) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        // The saved entries end with the current one if it was reached by stepping back.
        if self.previous.entries.last().is_some_and(|e| e.current == self.current) {
            self.previous.entries.pop();
            if let Some(entry) = self.previous.entries.last() {
                self.current = entry.current;
                self.next = entry.next;
                self.restart = entry.restart;
                self.value = entry.value;
                self.first_key = entry.first_key;
                self.handle = entry.handle;
                self.stored_tag = entry.stored_tag;
                self.key.truncate(entry.kept);
                let key = self.previous.keys.get(entry.key.0..entry.key.1).unwrap_or(&[]);
                self.key.extend_from_slice(key);
                return Ok(());
            }
        }
        let original = self.current;
        self.previous.clear();
        let Some(restart) = self.last_restart_before(data, original) else {
            self.valid = false;
            return Ok(());
        };
        self.go_to_restart(data, restart)?;
        loop {
            self.step(data)?;
            if !self.valid || self.next > original {
                return Err(self.corrupt("block entry crosses a restart point", self.current));
            }
            let start = self.previous.keys.len();
            self.previous.keys.extend_from_slice(&self.key);
            self.previous.entries.push(PreviousEntry {
                current: self.current,
                next: self.next,
                restart: self.restart,
                kept: 0,
                key: (start, self.previous.keys.len()),
                value: self.value,
                first_key: self.first_key,
                handle: self.handle,
                stored_tag: self.stored_tag,
            });
            if self.next == original {
                return Ok(());
            }
            if self.previous.keys.len() - self.previous.shortened.1 > WHOLE_KEYS_MAX {
                self.previous.shorten();
            }
        }
    }

    /// The cursor's memory in bytes, approximately.
    #[cfg(test)]
    pub(super) fn memory_usage(&self) -> usize {
        let saved = &self.previous;
        self.key.capacity() + saved.keys.capacity() + saved.entries.capacity() * size_of::<PreviousEntry>()
    }

    /// The last restart point before `offset`.
    fn last_restart_before(&self, data: &[u8], offset: u32) -> Option<u32> {
        let (mut low, mut high) = (0, self.layout.num_restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.layout.restart_point(data, middle)? < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }

    /// Makes the entry at a restart point the next one to decode.
    #[inline]
    fn go_to_restart(&mut self, data: &[u8], restart: u32) -> Result<()> {
        self.valid = false;
        self.key.clear();
        self.stored_tag = 0;
        self.restart = restart;
        if self.layout.num_restarts == 0 || self.layout.keys_end == 0 {
            // An empty block: nothing will be decoded.
            self.next = self.layout.keys_end;
            return Ok(());
        }
        match self.layout.restart_point(data, restart) {
            Some(offset) if offset < self.layout.keys_end => {
                self.next = offset;
                Ok(())
            }
            _ => Err(self.corrupt("block has a restart point outside its entries", self.layout.restarts + 4 * restart)),
        }
    }

    /// Decodes the entry at `next`.
    #[inline]
    fn step(&mut self, data: &[u8]) -> Result<()> {
        let Some(keys) = data.get(..self.layout.keys_end as usize) else {
            self.valid = false;
            return Err(self.corrupt("block is shorter than its layout says", 0));
        };
        let pos = self.next as usize;
        if pos >= keys.len() {
            self.valid = false;
            return Ok(());
        }
        match self.kind {
            BlockKind::Index { value_delta, first_key, .. } => self.step_index(data, keys, pos, value_delta, first_key),
            BlockKind::Data { global_seqno: Some(seqno) } => self.step_with_seqno(data, keys, pos, seqno),
            _ => {
                let Some(header) = entry::header(keys, pos, false) else { return Err(self.damaged(pos)) };
                self.step_plain(data, keys, pos, header)
            }
        }
    }

    /// Decodes an entry whose value length is stored.
    #[inline(always)]
    fn step_plain(&mut self, data: &[u8], keys: &[u8], pos: usize, header: Header) -> Result<()> {
        let Header { shared, unshared, value_len, mut key_at } = header;
        if self.layout.separated {
            return self.step_separated(data, keys, pos, header);
        }
        if shared > self.key.len() {
            return Err(self.damaged(pos));
        }
        // Lengths are below 2^32 and a usize has 64 bits, so the sums cannot wrap.
        let Some(rest) = keys.get(key_at..key_at + unshared) else { return Err(self.damaged(pos)) };
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        key_at += unshared;
        let end = key_at + value_len;
        if end > keys.len() {
            return Err(self.damaged(pos));
        }
        self.value = (key_at as u32, end as u32);
        self.current = pos as u32;
        self.next = end as u32;
        self.valid = true;
        Ok(())
    }

    /// Decodes an entry whose value is in the values section.
    #[inline(never)]
    fn step_separated(&mut self, data: &[u8], keys: &[u8], pos: usize, header: Header) -> Result<()> {
        let Header { shared, unshared, value_len, mut key_at } = header;
        let start = match self.separated_value_start(data, keys, pos, &mut key_at) {
            Some(start) => start,
            None => return Err(self.damaged(pos)),
        };
        let end = start + value_len;
        if shared > self.key.len() || end > self.layout.restarts as usize {
            return Err(self.damaged(pos));
        }
        let Some(rest) = keys.get(key_at..key_at + unshared) else { return Err(self.damaged(pos)) };
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        self.value = (start as u32, end as u32);
        self.current = pos as u32;
        self.next = (key_at + unshared) as u32;
        self.valid = true;
        Ok(())
    }

    /// Where the value of the entry at `pos` starts, in a block with separate values. At a restart point this reads one
    /// more varint after the header and moves `key_at` past it.
    fn separated_value_start(&mut self, data: &[u8], keys: &[u8], pos: usize, key_at: &mut usize) -> Option<usize> {
        let first = self.layout.restart_point(data, self.restart) == Some(pos as u32);
        let at_restart = first || {
            let next = self.restart + 1;
            let found = next < self.layout.num_restarts && self.layout.restart_point(data, next) == Some(pos as u32);
            self.restart += u32::from(found);
            found
        };
        if !at_restart {
            return Some(self.value.1 as usize);
        }
        let (offset, n) = coding::varint32(keys.get(*key_at..)?)?;
        *key_at += n;
        Some(self.layout.keys_end as usize + offset as usize)
    }

    /// Decodes an entry of a data block whose stored sequence numbers are replaced.
    #[inline(never)]
    fn step_with_seqno(&mut self, data: &[u8], keys: &[u8], pos: usize, seqno: SequenceNumber) -> Result<()> {
        if let Some(tag) = self.key.last_chunk_mut::<TAG_LEN>() {
            *tag = self.stored_tag.to_le_bytes();
        }
        let Some(header) = entry::header(keys, pos, false) else { return Err(self.damaged(pos)) };
        self.step_plain(data, keys, pos, header)?;
        let Some(tag) = self.key.last_chunk_mut::<TAG_LEN>() else { return Err(self.damaged(pos)) };
        self.stored_tag = u64::from_le_bytes(*tag);
        *tag = ((seqno << 8) | (self.stored_tag & 0xff)).to_le_bytes();
        Ok(())
    }

    /// Decodes an entry of an index block, including the handle.
    #[inline(never)]
    fn step_index(&mut self, data: &[u8], keys: &[u8], pos: usize, value_delta: bool, first_key: bool) -> Result<()> {
        let Some(header) = entry::header(keys, pos, value_delta) else { return Err(self.damaged(pos)) };
        self.step_plain(data, keys, pos, header)?;
        // If the length of the value is not stored, decoding the value finds its end; until then the limit is the end
        // of the bytes that can hold a value.
        let start = self.value.0 as usize;
        let end = match (value_delta, self.layout.separated) {
            (false, _) => self.value.1 as usize,
            (true, false) => keys.len(),
            (true, true) => self.layout.restarts as usize,
        };
        let Some(stored) = data.get(start..end) else { return Err(self.damaged(pos)) };
        let Some((handle, mut len)) = decode_handle(stored, value_delta && header.shared > 0, &self.handle) else {
            return Err(self.damaged(pos));
        };
        self.handle = handle;
        self.first_key = (0, 0);
        if first_key {
            let Some((n, prefix)) = stored.get(len..).and_then(coding::varint32) else { return Err(self.damaged(pos)) };
            let from = len + prefix;
            len = from + n as usize;
            if len > stored.len() {
                return Err(self.damaged(pos));
            }
            self.first_key = ((start + from) as u32, (start + len) as u32);
        }
        if value_delta {
            self.value.1 = (start + len) as u32;
            if !self.layout.separated {
                self.next = self.value.1;
            }
        }
        Ok(())
    }

    /// Compares the current key with `target`, in the block's order.
    #[inline]
    fn compare(&self, target: &[u8], cmp: &InternalKeyComparator) -> Ordering {
        match self.kind {
            BlockKind::Data { .. } | BlockKind::Index { user_keys: false, .. } => cmp.compare(&self.key, target),
            BlockKind::Index { user_keys: true, .. } => cmp.compare_user(&self.key, key::user_key(target)),
            BlockKind::Meta => self.key.as_slice().cmp(target),
        }
    }

    /// The search itself. `order` compares a key of the block with the target.
    #[inline(always)]
    fn seek_by(&mut self, data: &[u8], order: impl Fn(&[u8]) -> Ordering) -> Result<()> {
        let Some(keys) = data.get(..self.layout.keys_end as usize) else {
            return Err(self.corrupt("block is shorter than its layout says", 0));
        };
        if keys.is_empty() || self.layout.num_restarts == 0 {
            self.valid = false;
            return Ok(());
        }
        // Restart keys before `low` are before the target; those from `high` on are not.
        let (mut low, mut high) = (0, self.layout.num_restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            if order(self.restart_key(data, keys, middle)?) == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // The target may be inside the interval before `low`; in the first interval, only at or after its first key.
        self.go_to_restart(data, low.saturating_sub(1))?;
        self.step(data)?;
        if low == 0 {
            return Ok(());
        }
        // The key at restart point `low` is not before the target: a walk that reaches it ends without a comparison.
        let stop = if low < self.layout.num_restarts { self.layout.restart_point(data, low) } else { None };
        loop {
            self.step(data)?;
            if !self.valid || Some(self.current) == stop || order(&self.key) != Ordering::Less {
                return Ok(());
            }
        }
    }

    /// The key at a restart point, in place.
    #[inline(always)]
    fn restart_key<'a>(&self, data: &[u8], keys: &'a [u8], restart: u32) -> Result<&'a [u8]> {
        let value_delta = matches!(self.kind, BlockKind::Index { value_delta: true, .. });
        let pos = self.layout.restart_point(data, restart).unwrap_or(u32::MAX);
        let key = entry::header(keys, pos as usize, value_delta).and_then(|mut h| {
            if self.layout.separated {
                h.key_at += coding::varint32(keys.get(h.key_at..)?)?.1;
            }
            if h.shared != 0 { None } else { keys.get(h.key_at..h.key_at + h.unshared) }
        });
        key.ok_or_else(|| self.corrupt("block has a damaged restart point", pos))
    }

    #[cold]
    fn damaged(&mut self, pos: usize) -> FormatError {
        self.valid = false;
        self.next = self.layout.keys_end;
        self.corrupt("block has a damaged entry", pos as u32)
    }

    #[cold]
    fn corrupt(&self, what: &'static str, offset: u32) -> FormatError {
        FormatError::corruption(what, u64::from(offset))
    }
}

/// Decodes an index value: the handle and its length in bytes. A delta is the change of size since `previous`.
#[inline]
fn decode_handle(stored: &[u8], delta: bool, previous: &BlockHandle) -> Option<(BlockHandle, usize)> {
    if delta {
        let (zigzag, n) = coding::varint64(stored)?;
        let change = ((zigzag >> 1) as i64) ^ -((zigzag & 1) as i64);
        let offset = previous.offset.checked_add(previous.size)?.checked_add(BLOCK_TRAILER_LEN as u64)?;
        let size = previous.size.checked_add_signed(change)?;
        return Some((BlockHandle { offset, size }, n));
    }
    let (offset, n) = coding::varint64(stored)?;
    let (size, m) = coding::varint64(stored.get(n..)?)?;
    Some((BlockHandle { offset, size }, n + m))
}

/// `cmp.compare` with `seqno` in place of the sequence number of `k`.
#[inline]
fn compare_with_seqno(k: &[u8], seqno: SequenceNumber, target: &[u8], cmp: &InternalKeyComparator) -> Ordering {
    let tag = (seqno << 8) | (key::tag(k) & 0xff);
    cmp.compare_user(key::user_key(k), key::user_key(target)).then_with(|| key::tag(target).cmp(&tag))
}
