//! Checks a whole table file: every block's checksum, the order of keys, and that index, filter and properties agree
//! with the data. Or it checks everything except the data blocks, and a sample of these.

use rockmill_format::block::{BlockCursor, BlockKind};
use rockmill_format::footer::{BlockHandle, FOOTER_LEN_MAX};
use rockmill_format::key::{self, ParsedInternalKey, ValueType};
use rockmill_format::properties::IndexType;

use super::block_file::Stored;
use super::filter::Filter;
use super::index::TableIndex;
use super::iter::Source;
use super::names;
use super::open::IndexShape;
use super::reader::BlockBasedTable;
use super::stream::{BlockStream, StreamReads};
use crate::error::{Error, Result};

/// Bytes read at once.
const READ_LEN: usize = 1 << 20;

/// A random sample of a table's data blocks. It always includes the first and the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSample {
    /// Of each hundred blocks, rounded up to whole blocks.
    pub percent: u8,
    /// Which ones: the same seed chooses the same ones.
    pub seed: u64,
}

impl BlockSample {
    /// The numbers of the blocks, rising, in a table of `blocks` blocks. Each set of as many blocks is as likely.
    fn of(self, blocks: usize) -> Vec<usize> {
        let wanted = (blocks as u128 * u128::from(self.percent.min(100))).div_ceil(100) as usize;
        let (mut picked, mut state) = (Vec::with_capacity(wanted + 2), self.seed);
        let mut left = wanted;
        for block in 0..blocks {
            // Of those that are left to look at, each is as likely to be one of those that are left to pick.
            let behind = (blocks - block) as u128;
            let is_picked = (u128::from(next_random(&mut state)) * behind) >> 64 < left as u128;
            left -= usize::from(is_picked);
            if is_picked || block == 0 || block + 1 == blocks {
                picked.push(block);
            }
        }
        picked
    }
}

/// The next number of SplitMix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the data blocks hold, to compare with the properties.
#[derive(Default)]
struct Counts {
    entries: u64,
    deletions: u64,
    merges: u64,
    key_bytes: u64,
    value_bytes: u64,
    /// What of each of these is in range tombstones.
    of_ranges: [u64; 4],
}

impl Counts {
    /// What range tombstones add to.
    fn with_ranges(&self) -> [u64; 4] {
        [self.entries, self.deletions, self.key_bytes, self.value_bytes]
    }
}

impl BlockBasedTable {
    /// Reads every block, checks checksums, key order, that the index agrees with the data, that the filter has every
    /// key, and the counts in the properties.
    pub fn verify(&self) -> Result<()> {
        self.verify_each(&mut |_| Ok(()))
    }

    /// The same; `visit` sees each entry except range tombstones, so that a caller that needs all entries reads the
    /// table only once.
    pub fn verify_each(&self, visit: &mut dyn FnMut(&ParsedInternalKey<'_>) -> Result<()>) -> Result<()> {
        self.verify_meta_blocks()?;
        let mut counts = self.verify_data(0..self.data_blocks, READ_LEN, visit)?;
        self.count_range_tombstones(&mut counts)?;
        self.verify_counts(&counts)
    }

    /// Reads every block outside of the data, and a sample of the data blocks; checks of them what [`Self::verify`]
    /// does. The counts in the properties must be enough for the blocks that there are, and for what was read. `visit`
    /// sees each entry that is read.
    pub fn verify_sample(
        &self,
        sample: BlockSample,
        visit: &mut dyn FnMut(&ParsedInternalKey<'_>) -> Result<()>,
    ) -> Result<()> {
        self.verify_meta_blocks()?;
        let blocks = sample.of(self.data_blocks);
        let unread = self.data_blocks - blocks.len();
        let mut counts = self.verify_data(blocks.into_iter(), 0, visit)?;
        self.count_range_tombstones(&mut counts)?;
        if unread == 0 { self.verify_counts(&counts) } else { self.bound_counts(&counts, unread as u64) }
    }

    /// Checks that the file has its blocks and its footer, without a gap between them or bytes that belong to none, and
    /// that the properties say so, as in each table that this store writes. Reads the indexes.
    pub fn verify_layout(&self) -> Result<()> {
        let shape = IndexShape::new(&self.properties, self.index_type);
        let mut others: Vec<BlockHandle> = self.metaindex.iter().map(|(_, handle)| *handle).collect();
        others.extend([self.index_handle, self.footer().metaindex]);
        let mut partitions = |top: BlockHandle| -> Result<()> {
            others.extend(self.index_entries(top, shape.top())?.into_iter().map(|(_, handle)| handle));
            Ok(())
        };
        if self.index_type == IndexType::TwoLevelIndexSearch {
            partitions(self.index_handle)?;
        }
        for (_, filter) in self.metaindex.iter().filter(|(name, _)| name == names::PARTITIONED_FILTER) {
            partitions(*filter)?;
        }
        others.sort_by_key(|handle| handle.offset);
        // The meta-index may also list the index.
        others.dedup();
        let meta = self.meta(false, false)?;
        let data = (0..meta.index.len()).map(|i| meta.index.handle(i));
        let mut end = 0;
        for handle in data.chain(others) {
            if handle.offset != end {
                return Err(self.bad(format_args!("a block begins at offset {}, not at {end}", handle.offset)));
            }
            end = handle.end();
        }
        let (file, footer) = (self.blocks.file.size(), FOOTER_LEN_MAX as u64);
        if end.checked_add(footer) != Some(file) {
            return Err(self.bad(format_args!("blocks end at offset {end}, and the footer at {file}")));
        }
        let (p, blocks) = (&self.properties, self.data_blocks as u64);
        for (name, stored, is) in [
            ("rocksdb.data.size", p.data_size, self.data_end),
            ("rocksdb.tail.start.offset", p.tail_start_offset, self.data_end),
            ("rocksdb.num.data.blocks", p.num_data_blocks, blocks),
            ("rocksdb.num.range-deletions", p.num_range_deletions, self.range_tombstones_stored),
        ] {
            if stored != is {
                return Err(self.bad(format_args!("property {name} is {stored}, the table has {is}")));
            }
        }
        Ok(())
    }

    fn bad(&self, what: impl std::fmt::Display) -> Error {
        Error::corruption(format!("{}: {what}", self.path().display()))
    }

    /// An error about an entry.
    fn bad_entry(&self, handle: BlockHandle, ikey: &[u8], what: impl std::fmt::Display) -> Error {
        self.bad(format_args!("block at offset {}: key {}: {what}", handle.offset, hex(ikey)))
    }

    /// Reads one block outside of the data, checked and uncompressed.
    pub(super) fn read_meta_block(&self, handle: BlockHandle) -> Result<Vec<u8>> {
        let mut raw = vec![0; self.blocks.len_with_trailer(handle)?];
        self.blocks.read_exact(handle.offset, &mut raw)?;
        let mut out = Vec::new();
        match self.blocks.decode(handle, &raw, true, None, &mut out)? {
            Stored::Plain => {
                raw.truncate(handle.size as usize);
                Ok(raw)
            }
            Stored::Decompressed => Ok(out),
        }
    }

    /// Every entry of an index block: (separator, handle).
    pub(super) fn index_entries(&self, handle: BlockHandle, kind: BlockKind) -> Result<Vec<(Vec<u8>, BlockHandle)>> {
        let block = self.read_meta_block(handle)?;
        let mut cursor = BlockCursor::new(self.blocks.layout(handle, &block)?, kind);
        let wrap = |e| self.blocks.error(handle, &e);
        let mut entries = Vec::new();
        cursor.seek_to_first(&block).map_err(wrap)?;
        while cursor.valid() {
            entries.push((cursor.key().to_vec(), cursor.handle()));
            cursor.next(&block).map_err(wrap)?;
        }
        Ok(entries)
    }

    fn verify_meta_blocks(&self) -> Result<()> {
        self.read_meta_block(self.footer().metaindex).map_err(|e| e.context("metaindex"))?;
        let shape = IndexShape::new(&self.properties, self.index_type);
        for (name, handle) in &self.metaindex {
            // An ingested file's properties may carry a number that their checksum does not cover; opening the table
            // has checked them.
            if name == names::PROPERTIES && self.global_seqno.is_some() {
                continue;
            }
            self.read_meta_block(*handle).map_err(|e| e.context(name))?;
            if name == names::PARTITIONED_FILTER {
                for (_, partition) in self.index_entries(*handle, shape.top()).map_err(|e| e.context(name))? {
                    self.read_meta_block(partition).map_err(|e| e.context("filter partition"))?;
                }
            }
        }
        if self.index_type == IndexType::TwoLevelIndexSearch {
            for (separator, partition) in self.index_entries(self.index_handle, shape.top())? {
                let entries = self.index_entries(partition, shape.leaf()).map_err(|e| e.context("index partition"))?;
                let last = entries.last().map_or(&[][..], |(s, _)| s.as_slice());
                if last != separator {
                    return Err(self.bad(format_args!(
                        "index partition at offset {} ends with {}, the index over it says {}",
                        partition.offset,
                        hex(last),
                        hex(&separator)
                    )));
                }
            }
        } else {
            self.read_meta_block(self.index_handle).map_err(|e| e.context("index"))?;
        }
        Ok(())
    }

    /// Checks the data blocks with these numbers, which are ascending. Reads this many bytes at once; 0: block by
    /// block.
    fn verify_data(
        &self,
        blocks: impl Iterator<Item = usize>,
        read_len: usize,
        visit: &mut dyn FnMut(&ParsedInternalKey<'_>) -> Result<()>,
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut last: Vec<u8> = Vec::new();
        let mut stream = BlockStream::new(&StreamReads::unpaced(read_len, true));
        stream.begin_file(self.data_end());
        let mut cursor = None;
        let meta = self.meta(false, false)?;
        let index = &meta.index;
        for block in blocks {
            let handle = index.handle(block);
            let layout = stream.load_block(self, handle)?;
            let data = stream.data();
            let cursor = cursor.get_or_insert_with(|| BlockCursor::new(layout, self.data_kind()));
            cursor.reset(layout, self.data_kind());
            let wrap = |e| self.blocks.error(handle, &e);
            cursor.seek_to_first(data).map_err(wrap)?;
            if !cursor.valid() {
                return Err(self.bad(format_args!("block at offset {} is empty", handle.offset)));
            }
            if block > 0 && !self.is_behind_separator(index, cursor.key(), block - 1) {
                let separator = hex(index.separator(block - 1));
                let what = format_args!("not behind the separator of the block before, {separator}");
                return Err(self.bad_entry(handle, cursor.key(), what));
            }
            while cursor.valid() {
                let ikey = cursor.key();
                if counts.entries > 0 && self.cmp.compare(&last, ikey).is_ge() {
                    return Err(self.bad_entry(handle, ikey, format_args!("not after the one before, {}", hex(&last))));
                }
                if self.ask_filter(&meta.filter, ikey) == Some(false) {
                    return Err(self.bad_entry(handle, ikey, "missing in the filter"));
                }
                if !self.prefix_is_in_filter(&meta.filter, ikey) {
                    return Err(self.bad_entry(handle, ikey, "its prefix is missing in the filter"));
                }
                last.clear();
                last.extend_from_slice(ikey);
                visit(&self.count(&mut counts, handle, ikey, cursor.value_range().len())?)?;
                cursor.next(data).map_err(wrap)?;
            }
            if self.is_behind_separator(index, &last, block) {
                let separator = hex(index.separator(block));
                let what = format_args!("behind its block's separator in the index, {separator}");
                return Err(self.bad_entry(handle, &last, what));
            }
        }
        Ok(counts)
    }

    fn prefix_is_in_filter(&self, filter: &Filter, ikey: &[u8]) -> bool {
        let prefix = self.filter_prefixes().and_then(|e| e.prefix(key::user_key(ikey)));
        prefix.is_none_or(|prefix| {
            [false, true].iter().all(|&back| filter.may_match_prefix(prefix, ikey, back, &self.cmp))
        })
    }

    /// True when a key sorts after separator `i`.
    fn is_behind_separator(&self, index: &TableIndex, ikey: &[u8], i: usize) -> bool {
        // A global sequence number does not show in the index.
        if index.has_user_keys() || self.global_seqno.is_some() {
            self.cmp.compare_user(key::user_key(ikey), index.user_key(i)).is_gt()
        } else {
            self.cmp.compare(ikey, index.separator(i)).is_gt()
        }
    }

    fn count<'k>(
        &self,
        counts: &mut Counts,
        handle: BlockHandle,
        ikey: &'k [u8],
        value_len: usize,
    ) -> Result<ParsedInternalKey<'k>> {
        let parsed = ParsedInternalKey::parse(ikey).map_err(|e| self.bad_entry(handle, ikey, e))?;
        counts.entries += 1;
        counts.key_bytes += ikey.len() as u64;
        counts.value_bytes += value_len as u64;
        match parsed.value_type {
            ValueType::Deletion | ValueType::SingleDeletion | ValueType::DeletionWithTimestamp => counts.deletions += 1,
            ValueType::Merge => counts.merges += 1,
            ValueType::Value | ValueType::BlobIndex | ValueType::WideColumnEntity | ValueType::ValuePreferredSeqno => {}
            ValueType::Placeholder if self.metaindex.iter().any(|(name, _)| name == names::TPH) => {}
            other => return Err(self.bad_entry(handle, ikey, format_args!("type {other:?} is none of a table's"))),
        }
        Ok(parsed)
    }

    fn count_range_tombstones(&self, counts: &mut Counts) -> Result<()> {
        let Some((_, handle)) = self.metaindex.iter().find(|(name, _)| name == names::RANGE_DEL) else {
            return Ok(());
        };
        let block = self.read_meta_block(*handle)?;
        let mut cursor = BlockCursor::new(self.blocks.layout(*handle, &block)?, self.data_kind());
        let wrap = |e| self.blocks.error(*handle, &e);
        let before = counts.with_ranges();
        cursor.seek_to_first(&block).map_err(wrap)?;
        while cursor.valid() {
            counts.entries += 1;
            counts.deletions += 1;
            counts.key_bytes += cursor.key().len() as u64;
            counts.value_bytes += cursor.value_range().len() as u64;
            cursor.next(&block).map_err(wrap)?;
        }
        counts.of_ranges = std::array::from_fn(|i| counts.with_ranges()[i] - before[i]);
        Ok(())
    }

    /// Compares the properties with what a part of the data has: `unread` blocks were not read, each of which has an
    /// entry at least.
    fn bound_counts(&self, counts: &Counts, unread: u64) -> Result<()> {
        let p = &self.properties;
        for (name, stored, least) in [
            ("rocksdb.num.entries", p.num_entries, counts.entries.saturating_add(unread)),
            ("rocksdb.deleted.keys", p.num_deletions, counts.deletions),
            ("rocksdb.merge.operands", p.num_merge_operands, counts.merges),
            ("rocksdb.raw.key.size", p.raw_key_size, counts.key_bytes),
            ("rocksdb.raw.value.size", p.raw_value_size, counts.value_bytes),
        ] {
            if stored < least {
                return Err(self.bad(format_args!("property {name} is {stored}, the table has {least} or more")));
            }
        }
        Ok(())
    }

    fn verify_counts(&self, counts: &Counts) -> Result<()> {
        let p = &self.properties;
        let [entries_of_ranges, deletions_of_ranges, keys_of_ranges, values_of_ranges] = counts.of_ranges;
        for (name, stored, counted) in [
            ("rocksdb.num.entries", p.num_entries, counts.entries),
            ("rocksdb.num.data.blocks", p.num_data_blocks, self.data_blocks as u64),
            ("rocksdb.deleted.keys", p.num_deletions, counts.deletions),
            ("rocksdb.merge.operands", p.num_merge_operands, counts.merges),
            ("rocksdb.raw.key.size", p.raw_key_size, counts.key_bytes),
            ("rocksdb.raw.value.size", p.raw_value_size, counts.value_bytes),
        ] {
            let known = match name {
                // Tables of long ago do not count merge operands.
                "rocksdb.merge.operands" => stored == 0,
                // RocksDB does not count blocks that it holds back to train a compression dictionary: all blocks of the
                // table, or those until it had enough.
                "rocksdb.num.data.blocks" => stored == 0 || (self.blocks.dictionary.is_some() && stored < counted),
                // RocksDB 5 left range tombstones out of some of these.
                _ if self.counts_exactly() => false,
                "rocksdb.num.entries" => stored == counted - entries_of_ranges,
                "rocksdb.deleted.keys" => stored == counted - deletions_of_ranges,
                "rocksdb.raw.key.size" => stored == counted - keys_of_ranges,
                "rocksdb.raw.value.size" => stored == counted - values_of_ranges,
                _ => false,
            };
            if stored != counted && !known {
                return Err(self.bad(format_args!("property {name} is {stored}, the table has {counted}")));
            }
        }
        Ok(())
    }
}

/// Bytes as hexadecimal digits, for messages.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_size_and_both_ends() {
        for (blocks, percent, most) in [(0, 10, 0), (1, 0, 1), (1, 100, 1), (2, 1, 2), (1000, 0, 2), (1000, 1, 12)] {
            for seed in 0..50 {
                let picked = BlockSample { percent, seed }.of(blocks);
                assert!(picked.is_sorted_by(|a, b| a < b) && picked.len() <= most, "{picked:?}");
                assert!(picked.len() >= (blocks * usize::from(percent)).div_ceil(100).max(blocks.min(2)));
                assert!(blocks == 0 || (picked.first() == Some(&0) && picked.last() == Some(&(blocks - 1))));
            }
        }
        assert_eq!(BlockSample { percent: 100, seed: 7 }.of(77), (0..77).collect::<Vec<_>>());
        assert_eq!(BlockSample { percent: 255, seed: 7 }.of(77).len(), 77);
    }

    /// Each block but the first and the last is in a tenth of the samples, whatever its place.
    #[test]
    fn each_block_is_as_likely() {
        let (blocks, samples) = (50, 20_000);
        let mut times = vec![0; blocks];
        for seed in 0..samples {
            BlockSample { percent: 10, seed }.of(blocks).into_iter().for_each(|block| times[block] += 1);
        }
        let (least, most) = times[1..blocks - 1].iter().fold((samples, 0), |(l, m), &n| (l.min(n), m.max(n)));
        // 2,000 are expected, with a deviation of 42.
        assert!(least > 1_800 && most < 2_200, "{least} to {most} times of {samples}");
    }
}
