//! Reads one table. Opening is in `open`, iterators in `iter`, the check of a whole file in `verify`, what compactions
//! need of its blocks in `access`.
//!
//! A lookup asks the range tombstones, then the filter, then the index, all in memory, and reads one data block from
//! the cache or the file; a second one only if it has more versions of the key.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::block::{BlockCursor, BlockKind, BlockLayout};
use rockmill_format::footer::{BlockHandle, Footer};
use rockmill_format::key::{self, ParsedInternalKey, ValueType};
use rockmill_format::properties::{IndexType, TableProperties};
use rockmill_format::{InternalKeyComparator, SequenceNumber};
use rockmill_io::RandomAccessFile;

use super::block_file::BlockFile;
use super::block_places::BlockPlaces;
use super::filter::FilterKeys;
use super::index::TableIndex;
use super::meta::{CachedMeta, MetaPlace};
use super::open;
use super::seek_span::SeekSpan;
use crate::error::{Error, ErrorKind, Result};
use crate::iter::get::{GetContext, GetState, Resume, ValueSource, WantedBlock};
use crate::perf_context::{self as perf, PerfMetric};
use crate::range_del::FragmentedRangeTombstones;
use crate::statistics::{Histogram, MaybeStatistics, Statistics, Ticker};
use crate::sync::Mutex;
use crate::table::cache::{BlockCache, CachedBlock, Reservation};
use crate::table::options::{AutoReadahead, MetaCaching, TableOpenOptions, TableReadOptions};

/// An open table. Index and filter stay in memory; data blocks come from the cache or the file.
pub struct BlockBasedTable {
    pub(super) blocks: BlockFile,
    pub(super) cmp: InternalKeyComparator,
    pub(super) cache: Option<(Arc<BlockCache>, u64)>,
    pub(super) meta: MetaPlace,
    /// Where they are in the cache. Declared after `meta`, which may hold them, so that it is dropped later.
    pub(super) cached_meta: Option<CachedMeta>,
    /// Where the data blocks end.
    pub(super) data_end: u64,
    pub(super) data_blocks: usize,
    /// Where they are, for a file that keeps no index in memory.
    pub(super) places: Option<BlockPlaces>,
    pub(super) filter_keys: FilterKeys,
    pub(super) range_tombstones: Option<Arc<FragmentedRangeTombstones>>,
    /// How many there are in the table.
    pub(super) range_tombstones_stored: u64,
    pub(super) properties: TableProperties,
    /// The block of that name, which was read with the file's end; kept until the table that needs it is made.
    pub(super) tph_block: Mutex<Option<Vec<u8>>>,
    pub(super) index_type: IndexType,
    pub(super) index_handle: BlockHandle,
    pub(super) metaindex: Vec<(String, BlockHandle)>,
    pub(super) global_seqno: Option<SequenceNumber>,
    pub(super) auto_readahead: AutoReadahead,
    pub(super) seek_span: SeekSpan,
}

impl std::fmt::Debug for BlockBasedTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockBasedTable")
            .field("path", &self.blocks.path)
            .field("blocks", &self.data_blocks)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// A cursor whose key buffer is reused by one lookup after another.
    static CURSOR: Cell<Option<Box<BlockCursor>>> = const { Cell::new(None) };
}

impl BlockBasedTable {
    /// Reads footer, properties, index, filter and range tombstones.
    pub(in crate::table) fn open(file: Arc<dyn RandomAccessFile>, options: TableOpenOptions) -> Result<Self> {
        open::open(file, options)
    }

    /// [`Self::open`] of a file that was open before with `cache_id`: its blocks in the cache are used again.
    pub(in crate::table) fn open_as(
        file: Arc<dyn RandomAccessFile>,
        options: TableOpenOptions,
        cache_id: Option<u64>,
        auto_readahead: AutoReadahead,
        caching: MetaCaching,
    ) -> Result<Self> {
        let mut table = open::open(file, options)?;
        table.auto_readahead = auto_readahead;
        if let Some(((_, id), given)) = table.cache.as_mut().zip(cache_id) {
            *id = given;
        }
        table.place_meta(caching)?;
        Ok(table)
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
        self.search(&meta.index, Resume { at, filtered: asked.is_some() }, ikey, ro, ctx)
    }

    /// Continues where a lookup was suspended to wait for a block.
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
        let result = self.get_from(index, from.at, ikey, ro, ctx, &mut cursor);
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
    pub(in crate::table) fn statistics(&self) -> Option<&Statistics> {
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
        loop {
            if !self.get_in_block(index.handle(at), at, ikey, ro, ctx, cursor)? {
                return Ok(());
            }
            // Further versions are in the next block only if this one's separator is the same user key.
            if index.has_user_keys() || self.cmp.compare_user(index.user_key(at), key::user_key(ikey)).is_gt() {
                return Ok(());
            }
            at += 1;
            if at == index.len() {
                return Ok(());
            }
        }
    }

    /// Offers the entries of a block at or after `ikey` that have its user key. True if the block's end left the lookup
    /// undecided. `at` is where a lookup that has to wait will continue.
    #[inline]
    fn get_in_block(
        &self,
        handle: BlockHandle,
        at: usize,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
        cursor: &mut Option<Box<BlockCursor>>,
    ) -> Result<bool> {
        if self.watching_cache().is_some() {
            return self.get_in_watched_block(handle, at, ikey, ro, ctx, cursor);
        }
        let Some(block) = self.block_for(handle, at, ikey, ro, ctx)? else { return Ok(false) };
        self.offer_entries(handle, &block, ikey, ctx, cursor)
    }

    /// The block for a lookup, from the cache or the file; `None` when it must be read, which `ctx` then says.
    #[inline(always)]
    pub(super) fn block_for(
        &self,
        handle: BlockHandle,
        at: usize,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
    ) -> Result<Option<Arc<CachedBlock>>> {
        match ctx.waiting {
            None => self.block(handle, ikey, ro).map(Some),
            Some(_) => self.block_or_wait(handle, at, ikey, ro, ctx),
        }
    }

    /// Offers the entries of a block, or of a row out of it, as [`Self::get_in_block`] does.
    #[inline(always)]
    pub(super) fn offer_entries(
        &self,
        handle: BlockHandle,
        block: &Arc<CachedBlock>,
        ikey: &[u8],
        ctx: &mut GetContext<'_>,
        cursor: &mut Option<Box<BlockCursor>>,
    ) -> Result<bool> {
        let cursor = reset_cursor(cursor, block.layout(), self.data_kind());
        let data = block.data();
        // In a later block all entries are after `ikey`, so this finds the first.
        if !cursor.seek_for_get(data, ikey, &self.cmp).map_err(|e| self.blocks.error(handle, &e))? {
            return Ok(false);
        }
        self.offer_from(cursor, data, handle, block, ikey, ctx)
    }

    /// The same from the cursor's position in the block's `data`, at or after `ikey`.
    #[inline(always)]
    pub(super) fn offer_from(
        &self,
        cursor: &mut BlockCursor,
        data: &[u8],
        handle: BlockHandle,
        block: &Arc<CachedBlock>,
        ikey: &[u8],
        ctx: &mut GetContext<'_>,
    ) -> Result<bool> {
        let wrap = |e| self.blocks.error(handle, &e);
        while cursor.valid() {
            let key = ParsedInternalKey::parse(cursor.key()).map_err(wrap)?;
            let same = self.cmp.is_same_user_key(key.user_key, key::user_key(ikey));
            if !same || key.value_type == ValueType::Placeholder {
                return Ok(false);
            }
            if !ctx.offer(key, ValueSource::Block(block, cursor.value_range())) {
                if let GetState::Failed(e) = &mut ctx.state {
                    *e = e.clone().context(self.blocks.path.display());
                }
                return Ok(false);
            }
            cursor.next(data).map_err(wrap)?;
        }
        Ok(block.row_of().is_none_or(|of| of.is_last))
    }

    /// [`Self::get`] for a table that has this one as a piece and knows which block has the key's entries. True if the
    /// block's end left the lookup undecided.
    pub(in crate::table) fn get_at(
        &self,
        handle: BlockHandle,
        at: usize,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
    ) -> Result<bool> {
        let mut cursor = CURSOR.take();
        let result = self.get_in_block(handle, at, ikey, ro, ctx, &mut cursor);
        CURSOR.set(cursor);
        result
    }

    /// The data blocks, in order.
    pub(in crate::table) fn data_handles(&self) -> Result<Vec<BlockHandle>> {
        self.handles_of(0..usize::MAX)
    }

    /// Where the data blocks are, in little memory.
    pub(in crate::table) fn places(&self) -> Result<BlockPlaces> {
        match &self.places {
            Some(places) => Ok(places.clone()),
            None => Ok(BlockPlaces::new(self.data_handles()?.into_iter())),
        }
    }

    /// True where no user key has entries in two data blocks.
    pub(in crate::table) fn has_whole_user_keys(&self) -> bool {
        self.properties.index_key_is_user_key != 0
    }

    /// A block outside of the data by its name in the metaindex, checked; `None` where the file has none of that name.
    pub(in crate::table) fn meta_block(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let handle = self.metaindex.iter().find(|(n, _)| n == name).map(|(_, handle)| *handle);
        handle.map(|handle| self.read_meta_block(handle)).transpose()
    }

    /// The block that makes the file a TPH table's own file, if it is one. Returned only the first time, as opening has
    /// read it.
    pub(in crate::table) fn take_tph_block(&self) -> Result<Option<Vec<u8>>> {
        let known = self.tph_block.lock().take();
        known.map_or_else(|| self.meta_block(super::TPH_BLOCK), |block| Ok(Some(block)))
    }

    /// Drops that block: the file is one of several files of a table, and the block is not needed.
    pub(in crate::table) fn leave_tph_block(&self) {
        *self.tph_block.lock() = None;
    }

    /// True for the own file of a TPH table.
    pub(in crate::table) fn is_tph_head(&self) -> bool {
        self.metaindex.iter().any(|(name, _)| name == super::TPH_BLOCK)
    }

    /// The number under which the cache has its blocks.
    pub(in crate::table) fn cache_id(&self) -> Option<u64> {
        self.cache.as_ref().map(|(_, id)| *id)
    }

    /// A data block from the cache or the file, for a lookup of `ikey`.
    #[inline]
    fn block(&self, handle: BlockHandle, ikey: &[u8], ro: TableReadOptions) -> Result<Arc<CachedBlock>> {
        if let Some((cache, id)) = &self.cache
            && let Some(block) = cache.get(*id, handle.offset)
        {
            self.count_hit(&block);
            return Ok(block);
        }
        self.read_and_keep(handle, ikey, ro)
    }

    /// A data block from the cache or as it was read for this lookup; `None` when it must be read, which `ctx` then
    /// says.
    #[cold]
    fn block_or_wait(
        &self,
        handle: BlockHandle,
        at: usize,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
    ) -> Result<Option<Arc<CachedBlock>>> {
        let Some(waiting) = &mut ctx.waiting else { return self.block(handle, ikey, ro).map(Some) };
        let arrived = waiting.arrived.take();
        if let Some((cache, id)) = &self.cache
            && let Some(block) = cache.get(*id, handle.offset)
        {
            self.count_hit(&block);
            return Ok(Some(block));
        }
        let BlockFile { file, path, .. } = &self.blocks;
        let len = self.blocks.len_with_trailer(handle)?;
        let held = waiting.held.and_then(|held| held.take(file, handle.offset));
        let block = match (held, arrived) {
            (Some(block), _) => {
                self.count_miss();
                block
            }
            (None, Some(raw)) if raw.len() == len => {
                self.count_miss();
                Arc::new(self.blocks.decode_data_block(handle, raw, ro.verify_checksums)?)
            }
            (None, _) if waiting.alone => Arc::new(self.read_block(handle, ro)?),
            (None, _) => {
                let (file, path) = (Arc::clone(file), path.clone());
                waiting.wanted = Some(WantedBlock { file, path, offset: handle.offset, len, grows: false });
                waiting.resume = Some(Resume { at, filtered: false });
                return Ok(None);
            }
        };
        let kept = self.keep(handle, Arc::clone(&block), ikey, ro);
        if let Some(held) = waiting.held
            && !self.cache.as_ref().is_some_and(|(cache, id)| cache.contains(*id, handle.offset))
        {
            held.put(file, handle.offset, block);
        }
        kept.map(Some)
    }

    /// A data block was not found in the cache.
    fn count_miss(&self) {
        if self.cache.is_some() {
            self.statistics().add(Ticker::BlockCacheDataMiss, 1);
        }
    }

    #[cold]
    fn read_and_keep(&self, handle: BlockHandle, ikey: &[u8], ro: TableReadOptions) -> Result<Arc<CachedBlock>> {
        let block = self.read_block(handle, ro)?;
        self.keep(handle, Arc::new(block), ikey, ro)
    }

    /// A data block, which the cache does not have, from the file.
    fn read_block(&self, handle: BlockHandle, ro: TableReadOptions) -> Result<CachedBlock> {
        self.count_miss();
        if ro.cache_only {
            return Err(self.not_in_cache(handle));
        }
        let began = self.statistics().start_now();
        let block = self.blocks.read_data_block(handle, ro.verify_checksums)?;
        self.statistics().stop_now(Histogram::ReadBlockGetMicros, began);
        Ok(block)
    }

    pub(super) fn not_in_cache(&self, handle: BlockHandle) -> Error {
        Error::new(
            ErrorKind::Incomplete,
            format!("{}: block at offset {} is not in the cache", self.blocks.path.display(), handle.offset),
        )
    }

    /// The range tombstones, fragmented; `None` when there are none.
    pub fn range_tombstones(&self) -> Option<&Arc<FragmentedRangeTombstones>> {
        self.range_tombstones.as_ref()
    }

    /// How many entries the properties count, range tombstones excluded; `None` for a table from before that property.
    ///
    /// One number, except for tables with range tombstones of RocksDB 5 and early 6: some of those versions counted
    /// them among the entries, and some did not store how many there are.
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

    /// False for tables with range tombstones from before RocksDB settled what properties say about them. Later tables,
    /// from 6.17 on, name their session.
    pub(super) fn counts_exactly(&self) -> bool {
        self.range_tombstones_stored == 0 || !self.properties.db_session_id.is_empty()
    }

    /// The order of its keys.
    pub fn comparator(&self) -> &InternalKeyComparator {
        &self.cmp
    }

    /// The properties.
    pub fn properties(&self) -> &TableProperties {
        &self.properties
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

    /// The sequence number that all keys of an ingested file have.
    pub fn global_seqno(&self) -> Option<SequenceNumber> {
        self.global_seqno
    }

    /// True when data blocks are compressed with a dictionary.
    pub(super) fn has_dictionary(&self) -> bool {
        self.blocks.dictionary.is_some()
    }

    /// Charges memory to the cache that data blocks go to, if there is one.
    ///
    /// # Errors
    /// A strict cache has no room.
    pub(in crate::table) fn reserve(&self, bytes: usize) -> Result<Option<Reservation>> {
        let Some((cache, _)) = &self.cache else { return Ok(None) };
        cache.reserve(bytes).map(Some).ok_or_else(|| cache.full(bytes as u64))
    }

    /// Size of the file in bytes.
    pub(in crate::table) fn file_size(&self) -> u64 {
        self.blocks.file.size()
    }

    /// Where the data blocks end.
    pub(in crate::table) fn data_end(&self) -> u64 {
        self.data_end
    }

    /// Offset of the data block that holds or would hold `ikey`, and bytes of all data blocks.
    fn data_offset(&self, ikey: &[u8]) -> (u64, u64) {
        let data_size = if self.properties.data_size > 0 { self.properties.data_size } else { self.data_end() };
        // An estimate: the middle if the index cannot be read.
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

    /// About how many bytes of the file are in the page cache; `None` where that is not known.
    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        self.blocks.file.cached_bytes()
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
pub(super) fn reset_cursor(
    cursor: &mut Option<Box<BlockCursor>>,
    layout: BlockLayout,
    kind: BlockKind,
) -> &mut BlockCursor {
    match cursor {
        Some(c) => {
            c.reset(layout, kind);
            c
        }
        None => cursor.insert(Box::new(BlockCursor::new(layout, kind))),
    }
}
