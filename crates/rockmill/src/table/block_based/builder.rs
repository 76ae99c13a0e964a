//! Writes one table.
//!
//! ```text
//! data blocks | filter | index partitions, index | dictionary | range tombstones | properties | metaindex | footer
//! ```
//!
//! Each block is followed by its compression byte and checksum. A data block ends where RocksDB's
//! `FlushBlockBySizePolicy` ends it, so that the same entries give the same blocks. An entry is copied once, into the
//! block being built; finished blocks go to the file's buffer.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::block::{
    BlockBuilder, BlockBuilderOptions, BlockCursor, BlockKind, BlockLayout, ENTRY_LEN_MAX, shared_prefix_len,
};
use rockmill_format::checksum;
use rockmill_format::compression::{
    CompressionType, Compressor, CompressorParams, compression_name, takes_dictionary, train_dictionary,
};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle, FORMAT_VERSION_MAX, Footer};
use rockmill_format::key::{self, MAX_SEQUENCE, ValueType};
use rockmill_format::key_buffer::KeyBuffer;
use rockmill_format::properties::{INDEX_TYPE, IndexType, TableProperties};
use rockmill_format::{FormatError, InternalKey, InternalKeyComparator, SequenceNumber};
use rockmill_io::WritableFile;

use super::compress_ahead::CompressAhead;
use super::filter_builder::FilterBuilder;
use super::index_builder::IndexBuilder;
use super::names;
use crate::error::{Error, Result};
use crate::helpers::Help;
use crate::statistics::{Histogram, MaybeStatistics, Started, Statistics, Ticker};
use crate::table::compression::CompressionOptions;
use crate::table::options::{TableBuilderOptions, TableSummary};
use crate::table::syncing::SyncingTable;

mod ahead;
pub(super) mod pass;

/// RocksDB's `FlushBlockBySizePolicy`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlushPolicy {
    block_size: usize,
    /// From this size on a block may end before an entry that would make it too large.
    almost_full: usize,
}

impl FlushPolicy {
    pub fn new(block_size: usize, deviation: usize) -> Self {
        // RocksDB takes a deviation outside 0 to 100 as 0.
        let percent = if deviation > 100 { 100 } else { 100 - deviation };
        Self { block_size, almost_full: block_size.saturating_mul(percent).div_ceil(100) }
    }

    /// True when the block must end before an entry of these lengths.
    #[inline]
    pub fn ends_before(self, block: &BlockBuilder, key_len: usize, value_len: usize) -> bool {
        let size = block.current_size_estimate();
        // RocksDB lacks the second rule: it writes a block over 4 GiB, and cannot read it.
        if size >= self.block_size || size + key_len + value_len > ENTRY_LEN_MAX {
            return true;
        }
        size > self.almost_full
            && self.almost_full > 0
            && block.estimate_size_after(key_len, value_len) > self.block_size
    }
}

/// Smallest and largest key and sequence number of the added entries.
#[derive(Default)]
struct Boundaries {
    smallest: InternalKey,
    largest: InternalKey,
    smallest_seqno: SequenceNumber,
    largest_seqno: SequenceNumber,
}

impl Boundaries {
    fn widen(&mut self, smallest: &[u8], largest: &[u8], cmp: &InternalKeyComparator) {
        if self.smallest.is_empty() || cmp.compare(smallest, self.smallest.as_bytes()) == Ordering::Less {
            self.smallest = InternalKey::from_encoded(smallest);
        }
        if self.largest.is_empty() || cmp.compare(largest, self.largest.as_bytes()) == Ordering::Greater {
            self.largest = InternalKey::from_encoded(largest);
        }
    }
}

/// The file and what every block needs on its way there.
struct BlockWriter {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    /// Without metaindex and index, which are not known yet.
    footer: Footer,
    offset: u64,
    compressor: Option<Compressor>,
    /// For data blocks, if they have a dictionary.
    data_compressor: Option<Compressor>,
    compressed: Vec<u8>,
    any_compressed: bool,
    statistics: Option<Arc<Statistics>>,
}

/// What a block is, to its compression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Data,
    Index,
    /// Not compressed.
    Meta,
}

impl BlockWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.file
            .append(data)
            .map_err(|e| Error::io(format!("{}: writing at offset {}", self.path.display(), self.offset), &e))?;
        self.offset += data.len() as u64;
        Ok(())
    }

    /// Writes a block with its trailer, compressed where that is worth it.
    fn write(&mut self, contents: &[u8], part: Part, kind: CompressionType) -> Result<BlockHandle> {
        if u32::try_from(contents.len()).is_err() {
            let (path, len) = (self.path.display(), contents.len());
            return Err(Error::invalid_argument(format!("{path}: a block of {len} bytes would be over 4 GiB")));
        }
        let mut compressed = std::mem::take(&mut self.compressed);
        let compressor = match part {
            Part::Data => self.data_compressor.as_mut().or(self.compressor.as_mut()),
            Part::Index => self.compressor.as_mut(),
            Part::Meta => None,
        };
        let began = self.statistics.start_detailed();
        let smaller = compressor.is_some_and(|c| c.compress(contents, &mut compressed));
        if part != Part::Meta {
            let (can, to) = (self.compressor.is_some(), smaller.then_some(compressed.len()));
            count_compression(&self.statistics, can, contents.len(), to, began);
        }
        let (data, byte) = if smaller { (compressed.as_slice(), kind as u8) } else { (contents, 0) };
        let written = self.write_stored(data, byte);
        self.compressed = compressed;
        written
    }

    /// Writes a block in its stored form, with its trailer.
    fn write_stored(&mut self, data: &[u8], byte: u8) -> Result<BlockHandle> {
        self.any_compressed |= byte != 0;
        let handle = BlockHandle { offset: self.offset, size: data.len() as u64 };
        let mut trailer = [byte; BLOCK_TRAILER_LEN];
        trailer[1..].copy_from_slice(&self.footer.block_checksum(data, byte, handle.offset).to_le_bytes());
        self.append(data)?;
        self.append(&trailer)?;
        Ok(handle)
    }
}

/// Counts a block; `to` is its size if it is stored compressed, which it could be if it `can`.
#[inline]
pub(super) fn count_compression(
    statistics: &Option<Arc<Statistics>>,
    can: bool,
    len: usize,
    to: Option<usize>,
    began: Started,
) {
    let Some(s) = statistics else { return };
    let len = len as u64;
    match to {
        Some(to) => s.add_all([
            (Ticker::NumberBlockCompressed, 1),
            (Ticker::BytesCompressedFrom, len),
            (Ticker::BytesCompressedTo, to as u64),
        ]),
        None if can => {
            s.add_all([(Ticker::NumberBlockCompressionRejected, 1), (Ticker::BytesCompressionRejected, len)]);
        }
        None => {
            s.add_all([(Ticker::NumberBlockCompressionBypassed, 1), (Ticker::BytesCompressionBypassed, len)]);
            return;
        }
    }
    statistics.stop_nanos(Histogram::CompressionTimesNanos, began);
}

/// Data blocks held back until the dictionary with which they are compressed is made from them.
struct Held {
    blocks: Vec<HeldBlock>,
    bytes: u64,
    /// When there are more bytes, the dictionary is made.
    limit: u64,
}

struct HeldBlock {
    contents: Vec<u8>,
    last_key: Vec<u8>,
    /// The first key after it; nothing for the table's last block.
    next_key: Option<Vec<u8>>,
}

impl Held {
    /// `None` when the table gets no dictionary.
    fn new(options: &TableBuilderOptions) -> Option<Self> {
        let o = &options.compression_opts;
        if o.max_dict_bytes == 0 || !takes_dictionary(options.compression) {
            return None;
        }
        let given = |n: u64| if n == 0 { u64::MAX } else { n };
        let limit = given(options.target_file_size).min(given(o.max_dict_buffer_bytes));
        Some(Self { blocks: Vec::new(), bytes: 0, limit })
    }

    /// The dictionary: samples from blocks throughout the table, or a dictionary trained on them. Blocks are sampled as
    /// in RocksDB, so that equal blocks lead to equal samples.
    fn dictionary(&self, options: &CompressionOptions, kind: CompressionType) -> Vec<u8> {
        const STEP: u64 = 545_055_921_143;
        let train = kind == CompressionType::Zstd && options.zstd_max_train_bytes > 0;
        let wanted = if train { options.zstd_max_train_bytes } else { options.max_dict_bytes } as usize;
        let count = self.blocks.len();
        let (mut samples, mut lens) = (Vec::new(), Vec::new());
        let mut at = count / 2;
        for _ in 0..count {
            let block = &self.blocks[at].contents;
            let len = block.len().min(wanted - samples.len());
            samples.extend_from_slice(&block[..len]);
            lens.push(len);
            if samples.len() >= wanted {
                break;
            }
            at = (at + (STEP % count as u64) as usize) % count;
        }
        if train { train_dictionary(&samples, &lens, options.max_dict_bytes as usize) } else { samples }
    }
}

/// Builds a table: entries in order, range tombstones in order (at any time), `finish`.
pub struct BlockBasedBuilder {
    options: TableBuilderOptions,
    writer: BlockWriter,
    /// The first failure; every later call gives it again.
    failed: Option<Error>,
    /// There was a failure, or a block that passed is not in the index yet: the next entry must check.
    unusual: bool,
    passing: pass::Passing,
    policy: FlushPolicy,
    data_block: BlockBuilder,
    /// Until the dictionary is made.
    held: Option<Held>,
    /// The help that compression may have.
    help: Option<Help>,
    /// Blocks that other threads compress.
    ahead: Option<CompressAhead>,
    /// The destination of the current block.
    hand_over: bool,
    /// The most bytes that the blocks there can become.
    unwritten: u64,
    /// The filter gets the current block's keys when the block is written, because its parts end with the index's.
    keys_follow: bool,
    /// The last key that was added to the filter in this way.
    filter_before: Vec<u8>,
    /// The dictionary's bytes; empty if there is none.
    dictionary: Vec<u8>,
    index: IndexBuilder,
    filter: Option<FilterBuilder>,
    range_tombstones: BlockBuilder,
    scratch: Vec<u8>,
    properties: TableProperties,
    boundaries: Boundaries,
    points: u64,
    /// Data blocks that ended so far, wherever they are.
    blocks_ended: u64,
    /// All entries of a user key go into one block.
    whole_user_keys: bool,
    /// First and last point key.
    first_key: Vec<u8>,
    last_key: KeyBuffer,
}

impl BlockBasedBuilder {
    /// A builder that appends to `file`.
    pub fn new(mut options: TableBuilderOptions, file: Box<dyn WritableFile>) -> Self {
        let mut failed = None;
        // It would find keys only by their bytes.
        options.block_based.hash_index_util_ratio =
            options.block_based.hash_index_util_ratio.filter(|_| options.cmp.finds_by_bytes());
        if !(5..=FORMAT_VERSION_MAX).contains(&options.block_based.format_version) {
            failed = Some(Error::invalid_argument(format!(
                "format_version {} cannot be written: choose 5 to {FORMAT_VERSION_MAX}",
                options.block_based.format_version
            )));
        }
        if options.block_based.partition_filters && !options.block_based.two_level_index {
            failed = Some(Error::invalid_argument("partitioned filters need a two-level index"));
        }
        let compressor = match options.compression {
            CompressionType::None => None,
            kind => match Compressor::with_params(kind, &compressor_params(&options.compression_opts, &[])) {
                Ok(compressor) => Some(compressor),
                Err(e) => {
                    failed = Some(Error::format(&options.path, &e));
                    None
                }
            },
        };
        let footer = Footer {
            format_version: options.block_based.format_version,
            checksum: options.block_based.checksum,
            metaindex: BlockHandle::default(),
            index: None,
            base_context_checksum: base_context_checksum(&options),
        };
        let writer = BlockWriter {
            file,
            path: options.path.clone(),
            footer,
            offset: 0,
            compressor,
            data_compressor: None,
            compressed: Vec::new(),
            any_compressed: false,
            statistics: options.statistics.clone(),
        };
        let data_block = BlockBuilder::new(BlockBuilderOptions {
            restart_interval: options.block_based.block_restart_interval,
            hash_index_util_ratio: options.block_based.hash_index_util_ratio,
            ..BlockBuilderOptions::default()
        });
        let range_tombstones =
            BlockBuilder::new(BlockBuilderOptions { restart_interval: 1, ..BlockBuilderOptions::default() });
        let mut new = Self {
            writer,
            unusual: failed.is_some(),
            failed,
            passing: pass::Passing::default(),
            policy: FlushPolicy::new(options.block_based.block_size, options.block_based.block_size_deviation),
            data_block,
            keys_follow: false,
            held: Held::new(&options),
            help: None,
            ahead: None,
            hand_over: false,
            unwritten: 0,
            filter_before: Vec::new(),
            dictionary: Vec::new(),
            index: IndexBuilder::new(&options.block_based),
            filter: FilterBuilder::new(&options),
            range_tombstones,
            scratch: Vec::new(),
            properties: options.properties.clone(),
            boundaries: Boundaries { smallest_seqno: SequenceNumber::MAX, ..Boundaries::default() },
            points: 0,
            blocks_ended: 0,
            whole_user_keys: false,
            first_key: Vec::new(),
            last_key: KeyBuffer::new(),
            options,
        };
        new.keys_follow = new.held.is_some();
        new
    }

    /// Adds a point entry. Keys rise strictly; a key out of order is an error, not a bad table.
    // Inlined into the loop of a compaction, although TPH tables call it as well.
    #[inline(always)]
    pub fn add(&mut self, ikey: &[u8], value: &[u8]) -> Result<()> {
        if self.unusual {
            self.catch_up(Some(ikey))?;
        }
        let tag = key::tag(ikey);
        let value_type = match ValueType::from_u8(tag as u8) {
            Some(t) if ikey.len() >= key::TAG_LEN => t,
            _ => return self.refuse(ikey, "is not an internal key"),
        };
        if ikey.len() + value.len() > ENTRY_LEN_MAX {
            return self.refuse_long(ikey, value);
        }
        let common = shared_prefix_len(&self.last_key, ikey);
        if self.points > 0 {
            if !self.rises(ikey, common) {
                return self.refuse(ikey, "is not after the one before");
            }
            if self.policy.ends_before(&self.data_block, ikey.len(), value.len()) && !self.stays_whole(ikey, value) {
                self.flush_block(Some(ikey))?;
            }
        } else {
            self.first_key.extend_from_slice(ikey);
        }
        if let Some(filter) = self.filter.as_mut().filter(|_| !self.keys_follow) {
            filter.add(key::user_key(ikey), key::user_key(&self.last_key), &mut self.index);
        }
        self.data_block.add_after(ikey, common, value);
        self.last_key.set(ikey);
        self.points += 1;

        let p = &mut self.properties;
        p.raw_key_size += ikey.len() as u64;
        p.raw_value_size += value.len() as u64;
        match value_type {
            ValueType::Value => {}
            ValueType::Deletion | ValueType::SingleDeletion | ValueType::DeletionWithTimestamp => p.num_deletions += 1,
            ValueType::Merge => p.num_merge_operands += 1,
            ValueType::BlobIndex | ValueType::WideColumnEntity | ValueType::ValuePreferredSeqno => {}
            ValueType::Placeholder if self.whole_user_keys => {}
            _ => return self.refuse(ikey, "has a type that no table holds"),
        }
        let seq = tag >> 8;
        self.boundaries.smallest_seqno = self.boundaries.smallest_seqno.min(seq);
        self.boundaries.largest_seqno = self.boundaries.largest_seqno.max(seq);
        Ok(())
    }

    /// Puts all entries of a user key into one block, as far as a block can hold them. Call it before the first entry.
    pub(in crate::table) fn keep_user_keys_whole(&mut self) {
        self.whole_user_keys = true;
    }

    /// True if the current block continues with this entry, however long it is already.
    #[cold]
    fn stays_whole(&self, ikey: &[u8], value: &[u8]) -> bool {
        let size = self.data_block.current_size_estimate().saturating_add(ikey.len() + value.len());
        self.whole_user_keys && size <= ENTRY_LEN_MAX && key::user_key(ikey) == key::user_key(&self.last_key)
    }

    /// The number of the data block that the last entry went into.
    #[inline]
    pub(in crate::table) fn block_number(&self) -> u64 {
        self.blocks_ended
    }

    /// True if a key that shares exactly `common` bytes with the last one comes after it.
    #[inline(always)]
    fn rises(&self, ikey: &[u8], common: usize) -> bool {
        let (last, cmp) = (&self.last_key, &self.options.cmp);
        // If both user keys continue after their common bytes, the next byte decides.
        match (key::user_key(last).get(common), key::user_key(ikey).get(common)) {
            (Some(a), Some(b)) if cmp.is_bytewise() => a < b,
            _ => cmp.compare(last, ikey) == Ordering::Less,
        }
    }

    #[cold]
    fn again(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    #[cold]
    fn refuse(&mut self, ikey: &[u8], why: &str) -> Result<()> {
        let key: String = ikey.iter().map(|b| format!("{b:02x}")).collect();
        self.fail(Error::corruption(format!("{}: key {key} {why}", self.options.path.display())))
    }

    #[cold]
    fn refuse_long(&mut self, ikey: &[u8], value: &[u8]) -> Result<()> {
        self.fail(Error::invalid_argument(format!(
            "{}: an entry with a key of {} and a value of {} bytes: a block holds {ENTRY_LEN_MAX} at most",
            self.options.path.display(),
            key::user_key(ikey).len(),
            value.len()
        )))
    }

    fn fail(&mut self, e: Error) -> Result<()> {
        self.failed = Some(e.clone());
        self.unusual = true;
        Err(e)
    }

    /// Writes the current data block; `next` is the key that comes after it.
    fn flush_block(&mut self, next: Option<&[u8]>) -> Result<()> {
        if self.data_block.is_empty() {
            return Ok(());
        }
        self.blocks_ended += 1;
        let contents = self.data_block.finish();
        if let Some(held) = &mut self.held {
            held.bytes += contents.len() as u64;
            held.blocks.push(HeldBlock {
                contents: contents.to_vec(),
                last_key: self.last_key.to_vec(),
                next_key: next.map(<[u8]>::to_vec),
            });
            self.data_block.reset();
            return if held.bytes > held.limit { self.write_held() } else { Ok(()) };
        }
        if let Some(ahead) = self.ahead.as_mut().filter(|_| self.hand_over) {
            self.unwritten += (contents.len() + BLOCK_TRAILER_LEN) as u64;
            ahead.add(contents, &self.last_key, next);
            self.data_block.reset();
            return self.write_what_is_done();
        }
        let handle = match self.writer.write(contents, Part::Data, self.options.compression) {
            Ok(handle) => handle,
            Err(e) => return self.fail(e),
        };
        self.data_block.reset();
        self.properties.num_data_blocks += 1;
        self.properties.data_size = self.writer.offset;
        self.index.add(&self.last_key, next, handle, &self.options.cmp);
        if self.help.is_some() {
            self.look_for_help()?;
            if self.keys_follow {
                self.filter_before.clear();
                self.filter_before.extend_from_slice(&self.last_key);
            }
        }
        Ok(())
    }

    /// Makes the dictionary from the blocks that were held back, and writes them.
    fn write_held(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        if held.blocks.is_empty() {
            return Ok(());
        }
        let (kind, o) = (self.options.compression, &self.options.compression_opts);
        let dictionary = held.dictionary(o, kind);
        if !dictionary.is_empty() {
            // ZSTD would interpret these samples as a damaged dictionary of its own format, so the table gets none.
            if let Ok(compressor) = Compressor::with_params(kind, &compressor_params(o, &dictionary)) {
                self.writer.data_compressor = Some(compressor);
                self.dictionary = dictionary;
            }
        }
        self.keys_follow = false;
        self.look_for_help()?;
        for block in held.blocks {
            if !self.keys_follow {
                self.filter_keys(&block.contents)?;
            }
            if let Some(ahead) = self.ahead.as_mut().filter(|_| self.hand_over) {
                self.unwritten += (block.contents.len() + BLOCK_TRAILER_LEN) as u64;
                ahead.add(&block.contents, &block.last_key, block.next_key.as_deref());
                self.write_what_is_done()?;
                continue;
            }
            let handle = match self.writer.write(&block.contents, Part::Data, kind) {
                Ok(handle) => handle,
                Err(e) => return self.fail(e),
            };
            self.properties.num_data_blocks += 1;
            self.properties.data_size = self.writer.offset;
            self.index.add(&block.last_key, block.next_key.as_deref(), handle, &self.options.cmp);
            self.look_for_help()?;
        }
        Ok(())
    }

    /// Adds a block's keys to the filter.
    fn filter_keys(&mut self, contents: &[u8]) -> Result<()> {
        let (Some(filter), before) = (&mut self.filter, &mut self.filter_before) else { return Ok(()) };
        let add = |k: &[u8]| {
            filter.add(key::user_key(k), key::user_key(before), &mut self.index);
            before.clear();
            before.extend_from_slice(k);
        };
        match for_each_key(contents, add) {
            Ok(()) => Ok(()),
            Err(e) => self.fail(Error::format(&self.options.path, &e)),
        }
    }

    /// Adds a range tombstone; begins rise.
    pub fn add_range_tombstone(&mut self, begin: &[u8], end: &[u8], seq: SequenceNumber) -> Result<()> {
        if self.failed.is_some() {
            return self.again();
        }
        self.scratch.clear();
        key::append_internal_key(&mut self.scratch, begin, seq, ValueType::RangeDeletion);
        let last = self.range_tombstones.last_key();
        if !last.is_empty() && self.options.cmp.compare(last, &self.scratch) != Ordering::Less {
            let key = std::mem::take(&mut self.scratch);
            return self.refuse(&key, "begins a range tombstone and is not after the one before");
        }
        self.range_tombstones.add(&self.scratch, end, None);
        let p = &mut self.properties;
        p.raw_key_size += self.scratch.len() as u64;
        p.raw_value_size += end.len() as u64;
        p.num_deletions += 1;
        p.num_range_deletions += 1;
        let largest = InternalKey::new(end, MAX_SEQUENCE, ValueType::RangeDeletion);
        self.boundaries.widen(&self.scratch, largest.as_bytes(), &self.options.cmp);
        self.boundaries.smallest_seqno = self.boundaries.smallest_seqno.min(seq);
        self.boundaries.largest_seqno = self.boundaries.largest_seqno.max(seq);
        Ok(())
    }

    /// Bytes written so far and buffered in the current block: near the final size. Blocks that wait for a dictionary
    /// do not count, as in RocksDB, because their final size is not known. Nor do those that other threads are
    /// compressing: see `file_size_most`.
    #[inline]
    pub fn file_size_estimate(&self) -> u64 {
        let block = if self.data_block.is_empty() { 0 } else { self.data_block.current_size_estimate() };
        self.writer.offset + block as u64
    }

    /// What [`Self::file_size_estimate`] is at most when everything that others are compressing is written.
    #[inline]
    pub(crate) fn file_size_most(&self) -> u64 {
        self.file_size_estimate() + self.unwritten
    }

    /// Writes the rest and begins to sync the file: the table is not durable before `SyncingTable::wait` returns.
    pub fn finish_without_waiting(self) -> Result<(TableSummary, SyncingTable)> {
        self.finish_with(|_| Ok(None))
    }

    /// The same, with a meta block of this name and contents if `more` returns one. `more` gets the number of data
    /// blocks.
    pub(in crate::table) fn finish_with(
        mut self,
        more: impl FnOnce(u64) -> Result<Option<(&'static str, Vec<u8>)>>,
    ) -> Result<(TableSummary, SyncingTable)> {
        self.catch_up(None)?;
        self.flush_block(None)?;
        self.write_held()?;
        self.settle()?;
        let more = more(self.blocks_ended)?;
        let tail_start = self.writer.offset;
        let mut metaindex: Vec<(String, BlockHandle)> = Vec::new();

        if let Some(filter) = self.filter.take() {
            let writer = &mut self.writer;
            let written = filter.finish(&self.index, |block| writer.write(block, Part::Meta, CompressionType::None))?;
            if let Some(filter) = written {
                self.properties.num_filter_entries = filter.entries;
                self.properties.filter_size = filter.size;
                let name = if filter.partitioned { names::PARTITIONED_FILTER } else { names::FULL_FILTER };
                metaindex.push((name.into(), filter.handle));
            }
            self.properties.filter_policy_name = names::BLOOM_POLICY.into();
        }

        let (writer, kind) = (&mut self.writer, self.options.compression);
        let index = self.index.finish(|block| writer.write(block, Part::Index, kind))?;
        self.properties.index_size = index.size + BLOCK_TRAILER_LEN as u64;
        self.properties.index_partitions = index.partitions;
        self.properties.top_level_index_size = index.top_level_size;
        self.properties.index_key_is_user_key = u64::from(index.user_keys);
        self.properties.index_value_is_delta_encoded = 1;
        if self.options.block_based.format_version >= 6 {
            metaindex.push((names::INDEX.into(), index.handle));
        }

        if !self.dictionary.is_empty() {
            let dictionary = std::mem::take(&mut self.dictionary);
            metaindex.push((names::COMPRESSION_DICT.into(), self.write_plain(&dictionary)?));
        }

        if !self.range_tombstones.is_empty() {
            let contents = self.range_tombstones.finish().to_vec();
            metaindex.push((names::RANGE_DEL.into(), self.write_plain(&contents)?));
        }

        if let Some((name, contents)) = more {
            metaindex.push((name.into(), self.write_plain(&contents)?));
        }

        self.complete_properties(tail_start);
        let contents = self.properties.encode_block();
        metaindex.push((names::PROPERTIES.into(), self.write_plain(&contents)?));

        metaindex.sort_by(|a, b| a.0.cmp(&b.0));
        let contents = metaindex_block(&metaindex);
        let metaindex = self.write_plain(&contents)?;
        let footer = Footer {
            metaindex,
            index: (self.options.block_based.format_version < 6).then_some(index.handle),
            ..self.writer.footer
        };
        let encoded = footer.encode(self.writer.offset);
        self.writer.append(&encoded)?;
        let file = SyncingTable::begin(self.writer.file, self.options.path)?;

        if self.points > 0 {
            self.boundaries.widen(&self.first_key, &self.last_key, &self.options.cmp);
        }
        let summary = TableSummary {
            file_size: self.writer.offset,
            smallest: self.boundaries.smallest,
            largest: self.boundaries.largest,
            smallest_seqno: if self.boundaries.smallest_seqno == SequenceNumber::MAX {
                0
            } else {
                self.boundaries.smallest_seqno
            },
            largest_seqno: self.boundaries.largest_seqno,
            properties: self.properties,
            tail_size: self.writer.offset - tail_start,
            pieces: Vec::new(),
        };
        Ok((summary, file))
    }

    fn write_plain(&mut self, contents: &[u8]) -> Result<BlockHandle> {
        self.writer.write(contents, Part::Meta, CompressionType::None)
    }

    fn complete_properties(&mut self, tail_start: u64) {
        let o = &self.options;
        let used = self.writer.any_compressed;
        let p = &mut self.properties;
        p.num_entries = self.points + p.num_range_deletions;
        p.format_version = u64::from(o.block_based.format_version);
        p.tail_start_offset = tail_start;
        p.comparator_name = o.cmp.user_comparator().name().into();
        p.compression_name = compression_name(o.block_based.format_version, o.compression, used);
        let default = |field: &mut String, value: &str| {
            if field.is_empty() {
                *field = value.into();
            }
        };
        default(&mut p.merge_operator_name, "nullptr");
        default(&mut p.prefix_extractor_name, o.prefix_extractor.as_ref().map_or("nullptr", |e| e.name()));
        default(&mut p.property_collectors_names, "[]");
        default(&mut p.compression_options, &o.compression_opts.property());
        let index_type =
            if o.block_based.two_level_index { IndexType::TwoLevelIndexSearch } else { IndexType::BinarySearch } as u32;
        p.other.insert(INDEX_TYPE.into(), index_type.to_le_bytes().to_vec());
        p.set_filtering(o.block_based.whole_key_filtering, o.prefix_extractor.is_some());
        if self.points > 0 {
            p.key_largest_seqno = Some(self.boundaries.largest_seqno);
            p.key_smallest_seqno = Some(self.boundaries.smallest_seqno);
        }
        p.data_block_restart_interval = o.block_based.block_restart_interval as u64;
        p.index_block_restart_interval = o.block_based.index_block_restart_interval as u64;
    }

    /// Closes without finishing; the caller deletes the file.
    pub fn abandon(mut self) {
        // The file will be deleted, so it does not matter if its last bytes cannot be written.
        let _ = self.writer.file.close();
    }
}

/// The internal keys of a data block.
fn for_each_key(block: &[u8], mut f: impl FnMut(&[u8])) -> std::result::Result<(), FormatError> {
    let mut cursor = BlockCursor::new(BlockLayout::parse(block)?, BlockKind::Data { global_seqno: None });
    cursor.seek_to_first(block)?;
    while cursor.valid() {
        f(cursor.key());
        cursor.next(block)?;
    }
    Ok(())
}

/// How blocks are compressed, for the compressor.
pub(super) fn compressor_params<'a>(o: &CompressionOptions, dictionary: &'a [u8]) -> CompressorParams<'a> {
    CompressorParams {
        level: o.level,
        window_bits: o.window_bits.unsigned_abs().min(14) as u8,
        checksum: o.checksum,
        bytes_per_kib_max: o.max_compressed_bytes_per_kb.max(1) as u32,
        dictionary,
    }
}

/// A number that differs between files (format_version 6 and newer): from the ids that the caller gave, so that the
/// same job writes the same bytes.
fn base_context_checksum(options: &TableBuilderOptions) -> u32 {
    if options.block_based.format_version < 6 {
        return 0;
    }
    let p = &options.properties;
    let mut crc = checksum::crc32c(&p.orig_file_number.to_le_bytes());
    crc = checksum::crc32c_extend(crc, p.db_session_id.as_bytes());
    crc = checksum::crc32c_extend(crc, p.db_id.as_bytes());
    crc.max(1)
}

fn metaindex_block(entries: &[(String, BlockHandle)]) -> Vec<u8> {
    let mut block = BlockBuilder::new(BlockBuilderOptions { restart_interval: 1, ..BlockBuilderOptions::default() });
    let mut value = Vec::new();
    for (name, handle) in entries {
        value.clear();
        handle.encode(&mut value);
        block.add(name.as_bytes(), &value, None);
    }
    block.finish().to_vec()
}
