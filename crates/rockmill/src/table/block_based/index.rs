//! A table's index in memory: one entry for each data block, whatever the index looked like in the file.
//!
//! Single-block, hash, two-level and first-key indexes all become the same array of entries, next to the separators'
//! bytes, so that a position is a plain number and stepping costs nothing. For byte order, a further array holds eight
//! bytes of each separator as an integer, taken after the bytes that all separators share: a search is a search over
//! integers, and whole separators are compared only among equals. For the order by search key, that array holds the
//! search keys.
//!
//! Invariants: separators do not fall; blocks rise and do not overlap; each block with its trailer lies in the file.
//! Separator `i` is at or after every key of block `i` and before every key of block `i + 1`.

use std::cmp::Ordering;

use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout};
use rockmill_format::comparator::search_key;
use rockmill_format::footer::BlockHandle;
use rockmill_format::{FormatError, InternalKeyComparator, key};

/// See the module's description.
#[derive(Debug, Default)]
pub struct TableIndex {
    separators: Vec<u8>,
    entries: Vec<Entry>,
    /// Separators are user keys, without a tag.
    user_keys: bool,
    /// Leading bytes that the user keys of all separators share; byte order only.
    common: usize,
    /// Eight bytes of each user key after the common ones, big-endian, zeros where it is shorter; or its search key.
    /// Empty for other orders.
    prefixes: Vec<u64>,
    /// Prefixes are search keys.
    hashed: bool,
}

/// All that a lookup needs of an entry, on one cache line.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Of the block.
    offset: u64,
    /// Of the block, without its trailer.
    size: u32,
    /// Where the separator ends in `separators`.
    end: u32,
}

type Result<T> = std::result::Result<T, FormatError>;

/// Bytes that the keys of an index may take: this, and [`SEPARATORS_PER_BYTE`] for each byte of the file. In the file a
/// key needs only the bytes that it does not share with the previous one, so a small file could need unbounded memory.
/// Tables of 4 KiB blocks come near this with keys of tens of KiB that compress tenfold.
const SEPARATORS_MAX: u64 = 64 << 20;
const SEPARATORS_PER_BYTE: u64 = 64;

impl TableIndex {
    /// An index without entries.
    pub fn new(user_keys: bool) -> Self {
        Self { user_keys, ..Self::default() }
    }

    /// Appends the entries of an index block, which come after those appended before. `file_size` bounds the blocks.
    pub fn append_block(
        &mut self,
        block: &[u8],
        kind: BlockKind,
        cmp: &InternalKeyComparator,
        file_size: u64,
    ) -> Result<()> {
        let mut cursor = BlockCursor::new(BlockLayout::parse(block)?, kind);
        cursor.seek_to_first(block)?;
        while cursor.valid() {
            self.push(cursor.key(), cursor.handle(), cmp, file_size)?;
            cursor.next(block)?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        separator: &[u8],
        handle: BlockHandle,
        cmp: &InternalKeyComparator,
        file_size: u64,
    ) -> Result<()> {
        let bad = |what: String| FormatError::corruption(format!("index entry {}: {what}", self.len()), 0);
        if !self.user_keys && separator.len() < key::TAG_LEN {
            return Err(bad(format!("separator of {} bytes is no internal key", separator.len())));
        }
        if handle.end() > file_size {
            return Err(bad(format!(
                "block at offset {} of {} bytes ends after the file's {file_size} bytes",
                handle.offset, handle.size
            )));
        }
        let size = u32::try_from(handle.size).map_err(|_| bad(format!("block of {} bytes", handle.size)))?;
        if let Some(last) = self.len().checked_sub(1) {
            let last_handle = self.handle(last);
            if handle.offset < last_handle.end() {
                return Err(bad(format!(
                    "block at offset {} overlaps the one before, at {}",
                    handle.offset, last_handle.offset
                )));
            }
            let order = if self.user_keys {
                cmp.compare_user(self.separator(last), separator)
            } else {
                cmp.compare(self.separator(last), separator)
            };
            if order == Ordering::Greater {
                return Err(bad("separators out of order".into()));
            }
        }
        let most = SEPARATORS_MAX.saturating_add(file_size.saturating_mul(SEPARATORS_PER_BYTE));
        if (self.separators.len() + separator.len()) as u64 > most {
            return Err(FormatError::unsupported(format!(
                "an index whose keys take more than {most} bytes, in a file of {file_size}"
            )));
        }
        self.separators.extend_from_slice(separator);
        let end = u32::try_from(self.separators.len())
            .map_err(|_| FormatError::unsupported("an index with more than 4 GiB of keys"))?;
        self.entries.push(Entry { offset: handle.offset, size, end });
        Ok(())
    }

    /// Completes the index: no further blocks are appended.
    pub fn finish(&mut self, cmp: &InternalKeyComparator) {
        if cmp.is_bytewise() && self.len() > 0 {
            let (first, last) = (self.user_key(0), self.user_key(self.len() - 1));
            self.common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
            self.prefixes = (0..self.len()).map(|i| prefix(&self.user_key(i)[self.common..])).collect();
        } else if cmp.is_hash_range() {
            self.hashed = true;
            self.prefixes = (0..self.len()).map(|i| search_key(self.user_key(i)).into()).collect();
        }
        self.separators.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where block `i` is.
    #[inline]
    pub fn handle(&self, i: usize) -> BlockHandle {
        let entry = self.entries[i];
        BlockHandle { offset: entry.offset, size: u64::from(entry.size) }
    }

    /// A data block that shares bytes with another block.
    pub fn overlapping(&self, other: BlockHandle) -> Option<usize> {
        let first = self.entries.partition_point(|e| e.offset + u64::from(e.size) <= other.offset);
        self.entries.get(first).filter(|e| e.offset < other.offset.saturating_add(other.size)).map(|_| first)
    }

    /// Separator `i` as stored: an internal key, or a user key.
    #[inline]
    pub fn separator(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.entries[i - 1].end as usize };
        &self.separators[start..self.entries[i].end as usize]
    }

    /// The user key of separator `i`.
    #[inline]
    pub fn user_key(&self, i: usize) -> &[u8] {
        let s = self.separator(i);
        if self.user_keys { s } else { key::user_key(s) }
    }

    /// True when separators are user keys: then no user key spans two blocks.
    #[inline]
    pub fn has_user_keys(&self) -> bool {
        self.user_keys
    }

    /// The first block that may hold `target` (an internal key) or a later key; `len` when all keys are before it.
    #[inline]
    pub fn seek(&self, target: &[u8], cmp: &InternalKeyComparator) -> usize {
        if self.prefixes.is_empty() {
            return self.search(0, self.len(), target, cmp);
        }
        let user = key::user_key(target);
        let common = &self.user_key(0)[..self.common];
        let (front, rest) = user.split_at(user.len().min(self.common));
        match front.cmp(common) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len(),
            Ordering::Equal => {}
        }
        let wanted = if self.hashed { search_key(user).into() } else { prefix(rest) };
        let from = self.prefixes.partition_point(|h| *h < wanted);
        match self.prefixes.get(from) {
            Some(h) if *h == wanted => {
                let to = from + self.prefixes[from..].partition_point(|h| *h == wanted);
                self.search(from, to, target, cmp)
            }
            _ => from,
        }
    }

    /// The first of `from..to` whose separator is at or after `target`, or `to`.
    fn search(&self, mut from: usize, mut to: usize, target: &[u8], cmp: &InternalKeyComparator) -> usize {
        let user = key::user_key(target);
        while from < to {
            let mid = from + (to - from) / 2;
            let separator = self.separator(mid);
            let order = if self.user_keys { cmp.compare_user(separator, user) } else { cmp.compare(separator, target) };
            if order == Ordering::Less { from = mid + 1 } else { to = mid }
        }
        from
    }

    /// Bytes held.
    pub fn memory_usage(&self) -> usize {
        self.separators.capacity() + self.entries.capacity() * size_of::<Entry>() + self.prefixes.capacity() * 8
    }
}

/// The first eight bytes as a big-endian integer, zeros where there are fewer: orders as the bytes do, except that
/// equal prefixes decide nothing.
#[inline]
fn prefix(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => bytes.iter().enumerate().fold(0, |h, (i, b)| h | u64::from(*b) << (56 - 8 * i)),
    }
}

#[cfg(test)]
mod tests {
    use rockmill_format::block::{BlockBuilder, BlockBuilderOptions};

    use super::*;

    /// Keys that share almost all bytes are stored once in a block, but would be a thousand times in memory.
    #[test]
    fn the_keys_of_an_index_take_memory_in_proportion_to_the_file() {
        let (cmp, kind) = (
            InternalKeyComparator::default(),
            BlockKind::Index { value_delta: false, user_keys: true, first_key: false },
        );
        let index = |n: u64, shared: usize| {
            let options = BlockBuilderOptions { restart_interval: 1 << 20, ..BlockBuilderOptions::default() };
            let mut block = BlockBuilder::new(options);
            let mut key = vec![b'k'; shared];
            for i in 0..n {
                key.truncate(shared);
                key.extend_from_slice(&(i as u32).to_be_bytes());
                let mut handle = Vec::new();
                BlockHandle { offset: i * 10, size: 5 }.encode(&mut handle);
                block.add(&key, &handle, None);
            }
            let block = block.finish().to_vec();
            let file_size = n * 10 + block.len() as u64;
            let mut index = TableIndex::new(true);
            index.append_block(&block, kind, &cmp, file_size).map(|()| (index.len(), index.separators.len()))
        };
        assert_eq!(index(1000, 20_000).expect("what real tables may have"), (1000, 20_004_000));
        let refused = index(20_000, 100_000).expect_err("two gigabytes out of half a megabyte");
        assert!(refused.to_string().contains("an index whose keys take more than"), "{refused}");
    }
}
