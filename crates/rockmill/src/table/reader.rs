//! Reads one table. Opening is in `open`, iterators in `iter`, the check of a whole file in `verify`.
//!
//! A lookup asks the range tombstones, then the filter, then the index, all in memory, and reads one data block from
//! the cache or the file; a second one only where versions of the key go on there.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout};
use rockmill_format::compression::names_compression;
use rockmill_format::footer::{BlockHandle, Footer};
use rockmill_format::key::{self, InternalKey, ParsedInternalKey};
use rockmill_format::properties::{IndexType, TableProperties};
use rockmill_format::{FormatError, InternalKeyComparator, SequenceNumber, SliceTransform};
use rockmill_io::RandomAccessFile;

use super::block_file::{BlockFile, Stored};
use super::cache::{BlockCache, CachedBlock};
use super::filter::FilterKeys;
use super::index::TableIndex;
use super::iter::{CompactionIter, TableIter};
use super::meta::{MetaCaching, MetaPlace};
use super::open;
use crate::error::{Error, ErrorKind, Result};
use crate::iter::InternalIterator;
use crate::iter::get::{GetContext, GetState, Resume, ValueSource, WantedBlock};
use crate::pacing::reads_first::ReadsFirst;
use crate::perf_context::{self as perf, PerfMetric};
use crate::range_del::FragmentedRangeTombstones;
use crate::statistics::{Histogram, MaybeStatistics, Started, Statistics, Ticker};

/// How one operation reads a table.
#[derive(Debug, Clone, Copy)]
pub struct TableReadOptions {
    /// Check block checksums.
    pub verify_checksums: bool,
    /// Put blocks that were read into the cache.
    pub fill_cache: bool,
    /// Read ahead this many bytes behind the wanted block on sequential access; 0 lets the reader decide (grows from
    /// small as RocksDB's).
    pub readahead: usize,
    /// Answer from the cache only, `Incomplete` otherwise (RocksDB's `kBlockCacheTier`).
    pub cache_only: bool,
    /// Read what comes behind a scan's window while the scan goes through it.
    pub async_io: bool,
}

impl Default for TableReadOptions {
    fn default() -> Self {
        Self { verify_checksums: true, fill_cache: true, readahead: 0, cache_only: false, async_io: false }
    }
}

/// When iterators begin to read ahead by themselves, and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AutoReadahead {
    /// Reads in sequence before.
    pub reads: u64,
    /// Bytes behind the wanted block at first, doubled with each read.
    pub initial: usize,
    /// Bytes at most.
    pub max: usize,
}

/// What `open` needs.
#[derive(Clone)]
pub struct TableOpenOptions {
    /// For error messages.
    pub path: PathBuf,
    /// Order of keys; the table's stored comparator name must be the same.
    pub cmp: InternalKeyComparator,
    /// Where data blocks are kept; `None` keeps none.
    pub cache: Option<Arc<BlockCache>>,
    /// Largest sequence number the MANIFEST gives for the file: an ingested file's global sequence number is checked
    /// against it. `None` when unknown.
    pub largest_seqno: Option<SequenceNumber>,
    /// Where reads of the table are counted.
    pub statistics: Option<Arc<Statistics>>,
    /// Who is told of users' reads that the file answers.
    pub reads_first: Option<Arc<ReadsFirst>>,
    /// The column family's prefix extractor: a table whose filter holds prefixes made by an extractor of this name can
    /// be asked for them. RocksDB's own extractors are known by name without it.
    pub prefix_extractor: Option<SliceTransform>,
}

/// An open table. Index and filter stay in memory; data blocks come from the cache or the file.
pub struct TableReader {
    pub(super) blocks: BlockFile,
    pub(super) cmp: InternalKeyComparator,
    pub(super) cache: Option<(Arc<BlockCache>, u64)>,
    pub(super) meta: MetaPlace,
    /// Where the data blocks end.
    pub(super) data_end: u64,
    pub(super) data_blocks: usize,
    pub(super) filter_keys: FilterKeys,
    pub(super) range_tombstones: Option<Arc<FragmentedRangeTombstones>>,
    /// How many there are in the table.
    pub(super) range_tombstones_stored: u64,
    pub(super) properties: TableProperties,
    pub(super) index_type: IndexType,
    pub(super) index_handle: BlockHandle,
    pub(super) metaindex: Vec<(String, BlockHandle)>,
    pub(super) global_seqno: Option<SequenceNumber>,
    pub(super) auto_readahead: AutoReadahead,
}

impl std::fmt::Debug for TableReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader")
            .field("path", &self.blocks.path)
            .field("blocks", &self.data_blocks)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// A cursor whose key buffer serves one lookup after another.
    static CURSOR: Cell<Option<Box<BlockCursor>>> = const { Cell::new(None) };
}

impl TableReader {
    /// Reads footer, properties, index, filter and range tombstones.
    pub fn open(file: Arc<dyn RandomAccessFile>, options: TableOpenOptions) -> Result<Arc<Self>> {
        open::open(file, options).map(Arc::new)
    }

    /// [`Self::open`] of a file that was open before with `cache_id`: what the cache has of it serves again.
    pub(crate) fn open_as(
        file: Arc<dyn RandomAccessFile>,
        options: TableOpenOptions,
        cache_id: Option<u64>,
        auto_readahead: AutoReadahead,
        caching: MetaCaching,
    ) -> Result<Arc<Self>> {
        let mut table = open::open(file, options)?;
        table.auto_readahead = auto_readahead;
        if let Some(((_, id), given)) = table.cache.as_mut().zip(cache_id) {
            *id = given;
        }
        table.place_meta(caching)?;
        Ok(Arc::new(table))
    }

    /// Looks up `ikey` (user key with the snapshot's sequence number): tells `ctx` of the newest range tombstone over
    /// it at or below the snapshot, then asks the filter, then offers entries of that user key, newest first.
    pub fn get(&self, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        if let Some(resume) = ctx.waiting.as_mut().and_then(|w| w.resume.take()) {
            return self.get_again(resume, ikey, ro, ctx);
        }
        if let Some(tombstones) = &self.range_tombstones {
            let seq = tombstones.max_covering(key::user_key(ikey), key::sequence(ikey), &self.cmp);
            if seq > 0 {
                ctx.cover(seq);
            }
        }
        let meta = self.meta(ro.cache_only, ro.fill_cache)?;
        let asked = self.ask_filter(&meta.filter, ikey);
        if asked == Some(false) {
            return Ok(());
        }
        let at = meta.index.seek(ikey, &self.cmp);
        if at == meta.index.len() {
            return Ok(());
        }
        self.search(&meta.index, Resume { block: at, filtered: asked.is_some() }, ikey, ro, ctx)
    }

    /// Goes on where a lookup gave way to wait for a block.
    #[cold]
    fn get_again(&self, at: Resume, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        let meta = self.meta(ro.cache_only, ro.fill_cache)?;
        self.search(&meta.index, at, ikey, ro, ctx)
    }

    #[inline]
    fn search(
        &self,
        index: &TableIndex,
        from: Resume,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
    ) -> Result<()> {
        let mut cursor = CURSOR.take();
        let before = ctx.offered;
        let result = self.get_from(index, from.block, ikey, ro, ctx, &mut cursor);
        CURSOR.set(cursor);
        let found = ctx.offered != before;
        if from.filtered && found {
            self.count_true_positive();
        }
        if let Some(resume) = ctx.waiting.as_mut().and_then(|w| w.resume.as_mut()) {
            resume.filtered = from.filtered && !found;
        }
        result
    }

    /// Where this table's reads are counted.
    #[inline]
    pub(super) fn statistics(&self) -> Option<&Statistics> {
        self.blocks.statistics.as_deref()
    }

    /// A data block was found in the cache.
    #[inline]
    pub(super) fn count_hit(&self, block: &CachedBlock) {
        if let Some(s) = self.statistics() {
            s.add_all([(Ticker::BlockCacheDataHit, 1), (Ticker::BlockCacheBytesRead, block.charge() as u64)]);
        }
        perf::count(PerfMetric::BlockCacheHitCount, 1);
    }

    /// A data block was put into the cache.
    pub(super) fn count_add(&self, block: &CachedBlock) {
        if let Some(s) = self.statistics() {
            s.add_all([(Ticker::BlockCacheDataAdd, 1), (Ticker::BlockCacheDataBytesInsert, block.charge() as u64)]);
        }
    }

    fn get_from(
        &self,
        index: &TableIndex,
        mut at: usize,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
        cursor: &mut Option<Box<BlockCursor>>,
    ) -> Result<()> {
        let user_key = key::user_key(ikey);
        loop {
            let handle = index.handle(at);
            let block = if ctx.waiting.is_none() {
                self.block(handle, ro)?
            } else {
                match self.block_or_wait(handle, ro, at, ctx)? {
                    Some(block) => block,
                    None => return Ok(()),
                }
            };
            let cursor = reset_cursor(cursor, block.layout(), self.data_kind());
            let data = block.data();
            let wrap = |e| self.blocks.error(handle, &e);
            // In a later block all entries are behind `ikey`, so that this finds the first.
            if !cursor.seek_for_get(data, ikey, &self.cmp).map_err(wrap)? {
                return Ok(());
            }
            while cursor.valid() {
                let key = ParsedInternalKey::parse(cursor.key()).map_err(wrap)?;
                if self.cmp.compare_user(key.user_key, user_key).is_ne() {
                    return Ok(());
                }
                if !ctx.offer(key, ValueSource::Block(&block, cursor.value_range())) {
                    if let GetState::Failed(e) = &mut ctx.state {
                        *e = e.clone().context(self.blocks.path.display());
                    }
                    return Ok(());
                }
                cursor.next(data).map_err(wrap)?;
            }
            // Further versions are in the next block only if this one's separator is the same user key.
            if index.has_user_keys() || self.cmp.compare_user(index.user_key(at), user_key).is_gt() {
                return Ok(());
            }
            at += 1;
            if at == index.len() {
                return Ok(());
            }
        }
    }

    /// A data block from the cache or the file.
    #[inline]
    pub(super) fn block(&self, handle: BlockHandle, ro: TableReadOptions) -> Result<Arc<CachedBlock>> {
        if let Some((cache, id)) = &self.cache
            && let Some(block) = cache.get(*id, handle.offset)
        {
            self.count_hit(&block);
            return Ok(block);
        }
        self.read_block(handle, ro)
    }

    /// A data block from the cache or as it was read for this lookup; `None` when it must be read, which `ctx` then
    /// says.
    #[cold]
    fn block_or_wait(
        &self,
        handle: BlockHandle,
        ro: TableReadOptions,
        at: usize,
        ctx: &mut GetContext<'_>,
    ) -> Result<Option<Arc<CachedBlock>>> {
        let Some(waiting) = ctx.waiting.as_mut().filter(|w| !w.alone) else {
            return self.block(handle, ro).map(Some);
        };
        let arrived = waiting.arrived.take();
        if let Some((cache, id)) = &self.cache
            && let Some(block) = cache.get(*id, handle.offset)
        {
            self.count_hit(&block);
            return Ok(Some(block));
        }
        let len = self.blocks.len_with_trailer(handle)?;
        match arrived {
            Some(raw) if raw.len() == len => {
                if self.cache.is_some() {
                    self.statistics().add(Ticker::BlockCacheDataMiss, 1);
                }
                let block = Arc::new(self.blocks.decode_data_block(handle, raw, ro.verify_checksums)?);
                self.keep(handle, &block, ro)?;
                Ok(Some(block))
            }
            _ => {
                let BlockFile { file, path, .. } = &self.blocks;
                let (file, path) = (Arc::clone(file), path.clone());
                waiting.wanted = Some(WantedBlock { file, path, offset: handle.offset, len });
                waiting.resume = Some(Resume { block: at, filtered: false });
                Ok(None)
            }
        }
    }

    /// Puts a block that was read into the cache.
    fn keep(&self, handle: BlockHandle, block: &Arc<CachedBlock>, ro: TableReadOptions) -> Result<()> {
        if let Some((cache, id)) = &self.cache
            && ro.fill_cache
        {
            self.count_add(block);
            cache.insert(*id, handle.offset, Arc::clone(block))?;
        }
        Ok(())
    }

    #[cold]
    fn read_block(&self, handle: BlockHandle, ro: TableReadOptions) -> Result<Arc<CachedBlock>> {
        if self.cache.is_some() {
            self.statistics().add(Ticker::BlockCacheDataMiss, 1);
        }
        if ro.cache_only {
            return Err(self.not_in_cache(handle));
        }
        let began = self.statistics().start_now();
        let block = Arc::new(self.blocks.read_data_block(handle, ro.verify_checksums)?);
        self.statistics().stop_now(Histogram::ReadBlockGetMicros, began);
        self.keep(handle, &block, ro)?;
        Ok(block)
    }

    pub(super) fn not_in_cache(&self, handle: BlockHandle) -> Error {
        Error::new(
            ErrorKind::Incomplete,
            format!("{}: block at offset {} is not in the cache", self.blocks.path.display(), handle.offset),
        )
    }

    /// How data blocks are decoded.
    #[inline]
    pub(crate) fn data_kind(&self) -> BlockKind {
        BlockKind::Data { global_seqno: self.global_seqno }
    }

    /// Iterates over the point entries; the table stays open while the iterator lives.
    pub fn iter(self: &Arc<Self>, ro: TableReadOptions) -> Box<dyn InternalIterator> {
        Box::new(TableIter::cached(Arc::clone(self), ro))
    }

    /// Reads the table from front to back for a compaction, past the cache, `readahead` bytes at a time (0: block by
    /// block). Only `seek_to_first`, `seek` and `next` move it.
    pub fn compaction_iter(self: &Arc<Self>, readahead: usize, verify: bool) -> CompactionIter {
        TableIter::streaming(Arc::clone(self), readahead, verify)
    }

    /// The range tombstones, fragmented; `None` when there are none.
    pub fn range_tombstones(&self) -> Option<&Arc<FragmentedRangeTombstones>> {
        self.range_tombstones.as_ref()
    }

    /// How many entries beside range tombstones the properties count; `None` for a table from before that property.
    ///
    /// One number, but for tables with range tombstones of RocksDB 5 and early 6: those versions counted them among the
    /// entries, or not, and said how many there are, or not.
    pub fn point_entries(&self) -> Option<RangeInclusive<u64>> {
        let p = &self.properties;
        if p.num_entries == 0 {
            return None;
        }
        if self.counts_exactly() {
            let count = p.num_entries.saturating_sub(p.num_range_deletions);
            return Some(count..=count);
        }
        Some(p.num_entries.saturating_sub(self.range_tombstones_stored)..=p.num_entries)
    }

    /// False for tables with range tombstones that are from before RocksDB settled what properties say of them: tables
    /// have named their session since, from 6.17 on.
    pub(super) fn counts_exactly(&self) -> bool {
        self.range_tombstones_stored == 0 || !self.properties.db_session_id.is_empty()
    }

    /// The properties.
    pub fn properties(&self) -> &TableProperties {
        &self.properties
    }

    /// False where no block is compressed, as far as the properties say.
    pub(crate) fn has_compressed_blocks(&self) -> bool {
        names_compression(self.blocks.footer.format_version, &self.properties.compression_name)
    }

    /// The footer.
    pub fn footer(&self) -> &Footer {
        &self.blocks.footer
    }

    /// The file's permission bits when it was opened; `None` where there are none.
    pub fn mode(&self) -> Option<u32> {
        self.blocks.file.mode()
    }

    /// The file's path, as given to `open`.
    pub fn path(&self) -> &Path {
        &self.blocks.path
    }

    /// Which index the file has.
    pub fn index_type(&self) -> IndexType {
        self.index_type
    }

    /// The sequence number that all keys of an ingested file have.
    pub fn global_seqno(&self) -> Option<SequenceNumber> {
        self.global_seqno
    }

    /// True when data blocks are compressed with a dictionary.
    pub(super) fn has_dictionary(&self) -> bool {
        self.blocks.dictionary.is_some()
    }

    /// Data blocks in the table.
    pub fn num_data_blocks(&self) -> usize {
        self.data_blocks
    }

    /// Where the data blocks end.
    pub(super) fn data_end(&self) -> u64 {
        self.data_end
    }

    /// Offset of the data block that holds or would hold `ikey`, and bytes of all data blocks.
    fn data_offset(&self, ikey: &[u8]) -> (u64, u64) {
        let data_size = if self.properties.data_size > 0 { self.properties.data_size } else { self.data_end() };
        // An estimate: where the index cannot be read, the middle.
        let Ok(meta) = self.meta(false, true) else { return (data_size / 2, data_size) };
        let at = meta.index.seek(ikey, &self.cmp);
        let offset = if at < meta.index.len() { meta.index.handle(at).offset } else { data_size };
        (offset.min(data_size), data_size)
    }

    /// About how many of the file's bytes belong to keys before `ikey`; what is not data is spread over the data.
    pub fn approximate_offset_of(&self, file_size: u64, ikey: &[u8]) -> u64 {
        match self.data_offset(ikey) {
            (_, 0) => file_size / 2,
            (offset, data_size) => (offset as f64 / data_size as f64 * file_size as f64) as u64,
        }
    }

    /// About how many of the file's bytes belong to keys from `start` up to `end`.
    pub fn approximate_size(&self, file_size: u64, start: &[u8], end: &[u8]) -> u64 {
        let ((from, data_size), (to, _)) = (self.data_offset(start), self.data_offset(end));
        if data_size == 0 {
            return file_size;
        }
        (to.saturating_sub(from) as f64 / data_size as f64 * file_size as f64) as u64
    }

    /// User keys that cut the table into parts of about equal bytes (from the index), for subcompactions: (key, bytes
    /// up to it), at most `max` of them. The last is at or after the table's last point key.
    pub fn anchors(&self, max: usize) -> Result<Vec<(Vec<u8>, u64)>> {
        let total = self.data_end();
        let mut anchors = Vec::new();
        if max == 0 {
            return Ok(anchors);
        }
        let mut wanted = 1u128;
        let meta = self.meta(false, false)?;
        for i in 0..meta.index.len() {
            let end = meta.index.handle(i).end();
            let reached = u128::from(end) * max as u128 / u128::from(total.max(1));
            if reached >= wanted {
                anchors.push((meta.index.user_key(i).to_vec(), end));
                wanted = reached + 1;
            }
        }
        Ok(anchors)
    }

    /// The data blocks that may hold user keys from `begin` up to and without `end`, in order.
    pub(crate) fn blocks_between(&self, begin: Option<&[u8]>, end: Option<&[u8]>) -> Result<Vec<BlockHandle>> {
        let meta = self.meta(false, false)?;
        let index = &meta.index;
        let place = |key: &[u8]| index.seek(InternalKey::min_possible(key).as_bytes(), &self.cmp);
        let first = begin.map_or(0, place);
        // The block that would hold the end may begin before it.
        let last = end.map_or(index.len(), |e| index.len().min(place(e) + 1));
        Ok((first..last).map(|i| index.handle(i)).collect())
    }

    /// Checks `raw`, a data block with its trailer as it stands at `handle`. True when the block's contents are its
    /// front bytes; otherwise they were decompressed into `out`.
    #[inline]
    pub(crate) fn check_block(&self, handle: BlockHandle, raw: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let stored = self.blocks.decode(handle, raw, true, self.blocks.dictionary.as_ref(), out)?;
        Ok(stored == Stored::Plain)
    }

    /// About how many bytes of the file are in the page cache; `None` where that is not known.
    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        self.blocks.file.cached_bytes()
    }

    /// A compaction's read, or its wait for one, begins.
    pub(crate) fn compaction_read_begins(&self) -> Started {
        self.blocks.statistics.start_now()
    }

    /// It has ended, and gave so many bytes.
    pub(crate) fn compaction_read_ends(&self, began: Started, bytes: usize) {
        perf::count(PerfMetric::BlockReadCount, 1);
        perf::count(PerfMetric::BlockReadByte, bytes as u64);
        let read =
            [Histogram::SstReadMicros, Histogram::FileReadCompactionMicros, Histogram::ReadBlockCompactionMicros];
        for histogram in read {
            self.blocks.statistics.stop_now(histogram, began);
        }
    }

    /// Says that a block is damaged, and where it is.
    #[cold]
    pub(crate) fn block_error(&self, handle: BlockHandle, e: &FormatError) -> Error {
        self.blocks.error(handle, e)
    }

    /// Bytes of index, filter and tombstones held in memory.
    pub fn memory_usage(&self) -> usize {
        let dictionary = self.blocks.dictionary.as_ref().map_or(0, |d| d.memory_usage());
        let tombstones = self.range_tombstones.as_ref().map_or(0, |t| t.memory_usage());
        let meta = match &self.meta {
            MetaPlace::Here(meta) => meta.memory_usage(),
            MetaPlace::InCache { .. } => 0, // the cache counts it
        };
        size_of::<Self>() + meta + dictionary + tombstones
    }
}

/// The cursor, made on first use, set to a block.
#[inline]
fn reset_cursor(cursor: &mut Option<Box<BlockCursor>>, layout: BlockLayout, kind: BlockKind) -> &mut BlockCursor {
    match cursor {
        Some(c) => {
            c.reset(layout, kind);
            c
        }
        None => cursor.insert(Box::new(BlockCursor::new(layout, kind))),
    }
}
