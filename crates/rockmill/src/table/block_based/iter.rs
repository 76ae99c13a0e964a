//! Iterators over one table: position in the index, then in a data block.
//!
//! The two kinds differ only in where blocks come from ([`Source`]): reads take them from the cache and read ahead when
//! access is sequential; scans stream the file through one buffer, bypassing the cache (`stream.rs`). Steps inside a
//! block touch neither the source nor the index.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::FormatError;
use rockmill_format::block::{BlockCursor, BlockLayout};
use rockmill_format::footer::BlockHandle;

use super::access::BlockAccess;
use super::async_reads::AsyncReads;
use super::block_file::Stored;
use super::index::TableIndex;
use super::meta::MetaHold;
use super::reader::BlockBasedTable;
use super::stream::ScanFile;
use crate::error::{Error, Result};
use crate::iter::InternalIterator;
use crate::iter::seek_reads::{SeekReads, WantedBlock};
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::table::TableScan;
use crate::table::cache::CachedBlock;
use crate::table::options::{AutoReadahead, TableReadOptions};

/// Gives data blocks one at a time.
pub trait Source: Send {
    /// Makes block `at` of the index the current one.
    fn load(&mut self, table: &BlockBasedTable, index: &TableIndex, at: usize) -> Result<BlockLayout>;
    /// The same for a seek that may wait; `None` when the block was asked for.
    fn load_together(
        &mut self,
        table: &BlockBasedTable,
        index: &TableIndex,
        at: usize,
        _reads: &mut SeekReads,
    ) -> Result<Option<BlockLayout>> {
        self.load(table, index, at).map(Some)
    }
    /// The current block's contents; empty before the first.
    fn data(&self) -> &[u8];
    /// The previous seek is over. The next one, if any, goes in this direction.
    #[inline]
    fn seek_begins(&mut self, _table: &BlockBasedTable, _backward: bool) {}
    /// Whether the table's index may only come from the cache, and whether it is kept there.
    fn meta_from(&self) -> (bool, bool);
    /// Steps forward end before the block of this number.
    #[inline]
    fn end(&self) -> usize {
        usize::MAX
    }
}

/// A source that reads past the cache, for a scan.
pub trait StreamSource: Source {
    /// Bytes read so far.
    fn bytes_read(&self) -> u64;
}

/// Iterator over the point entries of a table.
pub struct TableIter<S: Source> {
    table: BlockAccess,
    meta: MetaHold,
    source: S,
    cursor: BlockCursor,
    /// The current block, meaningful while one is loaded.
    at: usize,
    loaded: bool,
    error: Option<Error>,
}

impl TableIter<Cached> {
    #[inline]
    pub(in crate::table) fn cached(table: BlockAccess, ro: TableReadOptions) -> Self {
        let source = Cached::new(table.auto_readahead, ro);
        Self::new(table, source)
    }

    /// For one of several files that a scan goes through together. The scan takes only a part of its entries from each
    /// file, so it seldom reaches the third block in sequence, where other iterators begin to read ahead. Here the
    /// first read takes half of the initial read-ahead, most often one block more: a device does about as many reads of
    /// 8 KiB as of 4.
    pub(in crate::table) fn cached_among_others(table: BlockAccess, ro: TableReadOptions) -> Self {
        let AutoReadahead { initial, max, .. } = table.auto_readahead;
        let source = Cached::new(AutoReadahead { reads: 0, initial: initial / 2, max }, ro);
        Self::new(table, source)
    }
}

impl<S: StreamSource> TableIter<S> {
    pub(in crate::table) fn streaming(file: ScanFile, source: S) -> Self {
        let mut new = Self::new(file.table, source);
        new.meta = file.meta;
        new
    }
}

impl<S: Source> Drop for TableIter<S> {
    fn drop(&mut self) {
        self.source.seek_begins(&self.table, false);
    }
}

impl<S: StreamSource> TableScan for TableIter<S> {
    fn bytes_read(&self) -> u64 {
        self.source.bytes_read()
    }
}

impl<S: Source> TableIter<S> {
    // Inlined, so that it is constructed in its final place.
    #[inline(always)]
    fn new(table: BlockAccess, source: S) -> Self {
        let cursor = BlockCursor::new(BlockLayout::empty(), table.data_kind());
        Self { table, meta: MetaHold::Nothing, source, cursor, at: 0, loaded: false, error: None }
    }

    /// The index; empty before the first seek.
    #[inline]
    fn index(&self) -> &TableIndex {
        self.meta.index(&self.table)
    }

    /// Begins a seek in this direction: forgets the error before, and takes hold of the index; false on failure.
    #[inline]
    fn begin(&mut self, backward: bool) -> bool {
        self.error = None;
        self.source.seek_begins(&self.table, backward);
        let (cache_only, fill) = self.source.meta_from();
        match self.meta.take(&self.table, cache_only, fill) {
            Ok(()) => true,
            Err(e) => {
                self.invalidate();
                self.error = Some(e);
                false
            }
        }
    }

    /// Loads block `at` unless it is the current one; false on failure.
    fn load(&mut self, at: usize) -> bool {
        if self.loaded && self.at == at {
            return true;
        }
        self.loaded = false;
        let layout = self.source.load(&self.table, self.meta.index(&self.table), at);
        self.take(at, layout.map(Some))
    }

    /// The same for a seek that may wait; false, without an error, when the block was asked for.
    fn load_together(&mut self, at: usize, reads: &mut SeekReads) -> bool {
        if self.loaded && self.at == at {
            return true;
        }
        self.loaded = false;
        let layout = self.source.load_together(&self.table, self.meta.index(&self.table), at, reads);
        self.take(at, layout)
    }

    /// Block `at` was loaded; true if it is there.
    #[inline]
    fn take(&mut self, at: usize, layout: Result<Option<BlockLayout>>) -> bool {
        match layout {
            Ok(Some(layout)) => {
                self.cursor.reset(layout, self.table.data_kind());
                self.at = at;
                self.loaded = true;
            }
            Ok(None) => self.invalidate(),
            Err(e) => {
                self.invalidate();
                self.error = Some(e);
            }
        }
        self.loaded
    }

    /// Off any entry.
    fn invalidate(&mut self) {
        self.loaded = false;
        self.cursor.reset(BlockLayout::empty(), self.table.data_kind());
    }

    /// True when the step went well; keeps the error otherwise.
    #[inline]
    fn check(&mut self, result: std::result::Result<(), FormatError>) -> bool {
        match result {
            Ok(()) => true,
            Err(e) => {
                self.fail(&e);
                false
            }
        }
    }

    #[cold]
    fn fail(&mut self, e: &FormatError) {
        self.error = Some(self.table.blocks.error(self.index().handle(self.at), e));
        self.invalidate();
    }

    /// Bytes of the current value.
    #[inline]
    pub(in crate::table) fn value_len(&self) -> usize {
        self.cursor.value_range().len()
    }

    /// The number of the current data block.
    #[inline]
    pub(in crate::table) fn block_number(&self) -> usize {
        self.at
    }

    /// True if the current entry is certainly the last one of its user key: see
    /// [`BlockCursor::next_has_other_user_key`].
    #[inline]
    pub(in crate::table) fn is_last_of_user_key(&self) -> bool {
        self.table.has_whole_user_keys() && self.cursor.next_has_other_user_key(self.source.data())
    }

    /// The first block that forward steps do not reach.
    #[inline]
    fn end(&self) -> usize {
        self.index().len().min(self.source.end())
    }

    /// To the first entry at or after `target`, which is in block `at`, the current one, or after it.
    #[inline]
    fn seek_in(&mut self, at: usize, target: &[u8]) {
        let result = self.cursor.seek(self.source.data(), target, &self.table.cmp);
        if self.check(result) && !self.cursor.valid() {
            self.first_from(at + 1);
        }
    }

    /// To the last entry at or before `target`, which is in block `at`, the current one, or before it.
    #[inline]
    fn seek_back_in(&mut self, at: usize, target: &[u8]) {
        let result = self.cursor.seek_for_prev(self.source.data(), target, &self.table.cmp);
        if self.check(result) && !self.cursor.valid() {
            self.last_before(at);
        }
    }

    /// To the first entry of block `at` or of the first later one that has any.
    fn first_from(&mut self, mut at: usize) {
        while at < self.end() {
            if !self.load(at) {
                return;
            }
            let result = self.cursor.seek_to_first(self.source.data());
            if !self.check(result) || self.cursor.valid() {
                return;
            }
            at += 1;
        }
        self.invalidate();
    }

    /// To the last entry of the blocks before `end`.
    fn last_before(&mut self, mut end: usize) {
        while end > 0 {
            end -= 1;
            if !self.load(end) {
                return;
            }
            let result = self.cursor.seek_to_last(self.source.data());
            if !self.check(result) || self.cursor.valid() {
                return;
            }
        }
        self.invalidate();
    }
}

impl<S: Source> InternalIterator for TableIter<S> {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn seek_to_first(&mut self) {
        if !self.begin(false) {
            return;
        }
        self.first_from(0);
    }

    fn seek_to_last(&mut self) {
        if !self.begin(true) {
            return;
        }
        self.last_before(self.index().len());
    }

    fn seek(&mut self, target: &[u8]) {
        if !self.begin(false) {
            return;
        }
        let at = self.index().seek(target, &self.table.cmp);
        if at >= self.end() {
            return self.invalidate();
        }
        if self.load(at) {
            self.seek_in(at, target);
        }
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        if !self.begin(true) {
            return;
        }
        let at = self.index().seek(target, &self.table.cmp);
        if at == self.index().len() {
            return self.last_before(at);
        }
        if self.load(at) {
            self.seek_back_in(at, target);
        }
    }

    fn seek_together(&mut self, target: &[u8], backward: bool, reads: &mut SeekReads) {
        if !self.begin(backward) {
            return;
        }
        let at = self.index().seek(target, &self.table.cmp);
        // After all blocks, the last block has the previous entry.
        let at = if backward { at.min(self.index().len().saturating_sub(1)) } else { at };
        if at >= self.end() {
            return self.invalidate();
        }
        if !self.load_together(at, reads) {
            return;
        }
        if backward { self.seek_back_in(at, target) } else { self.seek_in(at, target) }
    }

    #[inline]
    fn next(&mut self) {
        if !self.cursor.valid() {
            return;
        }
        let result = self.cursor.next(self.source.data());
        if self.check(result) && !self.cursor.valid() {
            self.first_from(self.at + 1);
        }
    }

    #[inline]
    fn prev(&mut self) {
        if !self.cursor.valid() {
            return;
        }
        let result = self.cursor.prev(self.source.data());
        if self.check(result) && !self.cursor.valid() {
            self.last_before(self.at);
        }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.cursor.value(self.source.data())
    }

    fn status(&self) -> Result<()> {
        match &self.error {
            None => Ok(()),
            Some(e) => Err(e.clone()),
        }
    }

    fn file(&self) -> Option<&Path> {
        Some(self.table.path())
    }
}

/// A part of the file in memory.
#[derive(Default)]
pub(super) struct Window {
    offset: u64,
    pub bytes: Vec<u8>,
    pub bytes_read: u64,
}

impl Window {
    /// The block's place in the window, trailer included, if it is all there.
    pub fn find(&self, handle: BlockHandle, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// Replaces the window by bytes from `offset` that were read.
    fn replace(&mut self, offset: u64, bytes: Vec<u8>) {
        self.bytes_read += bytes.len() as u64;
        (self.offset, self.bytes) = (offset, bytes);
    }

    /// Replaces the window by `len` bytes from `offset`, keeping what it has of them.
    pub fn fill(&mut self, table: &BlockBasedTable, offset: u64, len: usize, histogram: Histogram) -> Result<()> {
        let window_end = self.offset + self.bytes.len() as u64;
        let mut have = 0;
        if (self.offset..window_end).contains(&offset) {
            let from = (offset - self.offset) as usize;
            have = (self.bytes.len() - from).min(len);
            self.bytes.copy_within(from..from + have, 0);
        }
        self.offset = offset;
        self.bytes.resize(len, 0);
        let read = table.blocks.read_counted(offset + have as u64, &mut self.bytes[have..], histogram);
        if read.is_err() {
            self.bytes.clear();
        }
        self.bytes_read += (len - have) as u64;
        read
    }
}

/// Where the current block's contents are.
pub(super) enum Current {
    None,
    /// In the cache, or read for it.
    Shared(Arc<CachedBlock>),
    /// In the window.
    Window(usize, usize),
    /// Decompressed.
    Scratch,
}

/// A scan with smaller windows may be short: nothing is read beyond its windows.
const TOLD_AHEAD_MIN: u64 = 64 << 10;
/// From windows of this size on the kernel reads `TOLD_FAR` ahead, so that the device has several reads to do at once.
/// Measured over 79 MB in no cache: 3.3 million steps a second with nothing announced, 4.7 with one window, 5.0 so.
const TOLD_FAR_FROM: u64 = 192 << 10;
const TOLD_FAR: u64 = 1 << 20;

/// Most bytes that a seek asks for because earlier seeks went that far, where several runs read together. The ring's
/// memory is divided into slots of the largest read, so one long read leaves few slots.
const TOGETHER_MAX: usize = 64 << 10;

/// Bytes to read for a block: the block, and what follows it in the direction of the scan.
#[derive(Clone, Copy)]
struct ReadRange {
    from: u64,
    len: usize,
    /// The length without the blocks that are included only because earlier seeks went that far.
    sure: usize,
}

/// What a seek has asked for instead of reading a block.
struct Asked {
    /// As [`SeekReads`] knows it.
    number: usize,
    range: ReadRange,
}

/// What the current seek has done.
#[derive(Default)]
struct Seek {
    /// Blocks that it reached.
    blocks: usize,
    /// It had to read one.
    reads: bool,
    backward: bool,
}

/// Blocks through the cache, for reads.
pub struct Cached {
    ro: TableReadOptions,
    window: Window,
    current: Current,
    scratch: Vec<u8>,
    /// Where the previous block began and ended, to detect sequential access; the same large number before the first.
    last: (u64, u64),
    /// Blocks in sequence, in this direction.
    sequential: u64,
    backward: bool,
    /// The current block is the first, or the neighbour of the one before.
    adjacent: bool,
    /// When it reads ahead by itself.
    auto: AutoReadahead,
    /// Bytes that the next automatic read-ahead takes.
    auto_readahead: usize,
    /// With `async_io`, the read that follows the window.
    ahead: AsyncReads,
    asked: Option<Asked>,
    seek: Seek,
    /// What the kernel was last announced to read.
    announced: Range<u64>,
}

impl Cached {
    fn new(auto: AutoReadahead, ro: TableReadOptions) -> Self {
        Self {
            ro,
            window: Window::default(),
            current: Current::None,
            scratch: Vec::new(),
            last: (u64::MAX, u64::MAX),
            sequential: 0,
            backward: false,
            adjacent: true,
            auto,
            auto_readahead: auto.initial,
            ahead: AsyncReads::default(),
            asked: None,
            seek: Seek::default(),
            announced: 0..0,
        }
    }

    /// With `async_io`, begins to read what comes after the window, in which block `at` is.
    fn begin_ahead(&mut self, table: &BlockBasedTable, index: &TableIndex, at: usize) {
        // The first block says nothing about the direction.
        if !self.ro.async_io || self.backward || self.sequential < 2 {
            return;
        }
        let end = self.window.offset + self.window.bytes.len() as u64;
        let Some(next) = (at + 1..index.len()).find(|i| index.handle(*i).offset >= end) else { return };
        let most = self.ro.readahead.max(self.auto.max);
        let ReadRange { from, len, .. } = self.read_range(table, index, next, 0);
        self.ahead.begin(&table.blocks, from, len, most);
    }

    /// Tells the kernel what a long scan reads next, so that the device works while the scan goes through this window:
    /// data that a flush or a compaction wrote past the page cache is not in it. `len` is what the scan reads at a
    /// time, and `window` what it just read.
    fn tell_ahead(&mut self, table: &BlockBasedTable, window: Range<u64>, len: u64) {
        if len < TOLD_AHEAD_MIN || self.ro.async_io {
            return;
        }
        let ahead = if len < TOLD_FAR_FROM { len } else { len.max(TOLD_FAR) };
        let (start, end) = if self.backward {
            (window.start.saturating_sub(ahead), window.start)
        } else {
            (window.end, (window.end + ahead).min(table.data_end()))
        };
        // Not again for the part that was announced before.
        let announced = &self.announced;
        let (start, end) = match self.backward {
            false => (if announced.contains(&start) { announced.end } else { start }, end),
            true => (start, if end > announced.start && end <= announced.end { announced.start } else { end }),
        };
        if start < end {
            table.blocks.file.prefetch(start, end - start);
            self.announced = start..end;
        }
    }

    /// Uses the read that was begun as the window, if block `handle` is in it.
    fn take_ahead(&mut self, table: &BlockBasedTable, handle: BlockHandle, len: usize) -> Option<Range<usize>> {
        let offset = self.ahead.take(&table.blocks, handle.offset, len, &mut self.window.bytes)?;
        self.window.offset = offset;
        self.window.bytes_read += self.window.bytes.len() as u64;
        table.statistics().add(Ticker::PrefetchBytes, self.window.bytes.len() as u64);
        self.window.find(handle, len)
    }

    /// Notes that block `handle` is wanted, wherever it comes from: blocks found in the cache count for a sequence like
    /// blocks that are read (RocksDB's `BlockPrefetcher`).
    fn follow(&mut self, handle: BlockHandle) {
        let (start, end) = self.last;
        let (forward, backward) = (handle.offset == end, handle.end() == start);
        if (forward || backward) && (self.sequential <= 1 || self.backward == backward) {
            self.sequential += 1;
        } else {
            self.sequential = 1;
            self.auto_readahead = self.auto.initial;
        }
        self.backward = backward;
        self.seek.blocks += 1;
        self.seek.backward |= self.seek.blocks > 1 && backward;
        self.adjacent = forward || backward || start == u64::MAX;
        self.last = (handle.offset, handle.end());
    }

    /// The last block, from `at` on, that the seek is expected to reach and has to read.
    fn last_expected(&self, table: &BlockBasedTable, index: &TableIndex, at: usize) -> usize {
        if self.seek.backward || self.ro.readahead > 0 || self.auto.initial == 0 {
            return at;
        }
        let behind = table.seek_span.expected().saturating_sub(self.seek.blocks);
        let mut last = at.saturating_add(behind).min(index.len().saturating_sub(1));
        if let Some((cache, id)) = &table.cache {
            while last > at && cache.contains(*id, index.handle(last).offset) {
                last -= 1;
            }
        }
        last
    }

    /// What to read for block `at`, which is neither in the cache nor in the window: itself, and what comes after it in
    /// the direction of a scan. Of the blocks that a seek is only expected to reach, at most `expected_max` bytes.
    fn read_range(&mut self, table: &BlockBasedTable, index: &TableIndex, at: usize, expected_max: usize) -> ReadRange {
        let handle = index.handle(at);
        let ahead = if self.ro.readahead > 0 {
            // An explicit size is for scans: it counts from the first block on.
            if self.adjacent { self.ro.readahead } else { 0 }
        } else if self.sequential > self.auto.reads {
            let ahead = self.auto_readahead.min(self.auto.max);
            self.auto_readahead = ahead.saturating_mul(2);
            ahead
        } else {
            0
        };
        // The read-ahead is in addition to the block itself (RocksDB's `FilePrefetchBuffer`), and ends where a block
        // does: a partial block would have to be completed by another read before it could be used.
        let (mut start, mut end) = (handle.offset, handle.end());
        if self.backward {
            let least = start.saturating_sub(ahead as u64);
            for before in (0..at).rev().map(|i| index.handle(i)) {
                if before.end() != start || before.offset < least {
                    break;
                }
                start = before.offset;
            }
        } else {
            let expected = if expected_max > 0 { self.last_expected(table, index, at) } else { at };
            let most_sure = end.saturating_add(ahead as u64);
            let most_expected = most_sure.max(start.saturating_add(expected_max.min(self.auto.max) as u64));
            let mut sure = end;
            for (number, behind) in (at + 1..index.len()).map(|i| (i, index.handle(i))) {
                let most = if number <= expected { most_expected } else { most_sure };
                if behind.offset != end || behind.end() > most.min(table.data_end()) {
                    break;
                }
                end = behind.end();
                if end <= most_sure {
                    sure = end;
                }
            }
            return ReadRange { from: start, len: (end - start) as usize, sure: (sure - start) as usize };
        }
        let len = (end - start) as usize;
        ReadRange { from: start, len, sure: len }
    }
}

impl Cached {
    /// Makes the block the current one that is wanted next, if the cache has it.
    #[inline]
    fn find(&mut self, table: &BlockBasedTable, handle: BlockHandle) -> Option<BlockLayout> {
        self.follow(handle);
        let (cache, id) = table.cache.as_ref()?;
        let block = cache.get(*id, handle.offset)?;
        table.count_hit(&block);
        table.tell_block_read(handle, &block, self.ro);
        let layout = block.layout();
        self.current = Current::Shared(block);
        Some(layout)
    }

    /// Makes a block that the cache does not have the current one; `asked` is an earlier request and its result.
    fn load_missing(
        &mut self,
        table: &BlockBasedTable,
        index: &TableIndex,
        at: usize,
        asked: Option<(Asked, Option<Vec<u8>>)>,
    ) -> Result<BlockLayout> {
        let handle = index.handle(at);
        if table.cache.is_some() {
            table.statistics().add(Ticker::BlockCacheDataMiss, 1);
        }
        if self.ro.cache_only {
            return Err(table.not_in_cache(handle));
        }
        self.seek.reads = true;
        let fill = table.cache.as_ref().filter(|_| self.ro.fill_cache);
        let block_len = table.blocks.len_with_trailer(handle)?;
        let mut found = self.window.find(handle, block_len);
        if found.is_none() {
            self.current = Current::None;
            found = self.take_ahead(table, handle, block_len);
            if found.is_some() {
                self.begin_ahead(table, index, at);
            }
        }
        let place = match found {
            Some(place) => {
                if let Some(s) = table.statistics() {
                    s.add_all([(Ticker::PrefetchHits, 1), (Ticker::PrefetchBytesUseful, block_len as u64)]);
                }
                place
            }
            None => {
                let (range, arrived) = match asked {
                    Some((asked, arrived)) => (asked.range, arrived.filter(|raw| raw.len() == asked.range.len)),
                    None => (self.read_range(table, index, at, usize::MAX), None),
                };
                let ReadRange { from, mut len, sure } = range;
                if len == block_len
                    && let Some((cache, id)) = fill
                {
                    // Read directly into the cache's memory.
                    let verify = self.ro.verify_checksums;
                    let block = match arrived {
                        Some(raw) => table.blocks.decode_data_block(handle, raw, verify)?,
                        None => {
                            let began = table.statistics().start_now();
                            let block = table.blocks.read_data_block(handle, verify)?;
                            table.statistics().stop_now(Histogram::ReadBlockGetMicros, began);
                            block
                        }
                    };
                    let block = Arc::new(block);
                    table.count_add(&block);
                    cache.insert(*id, handle.offset, Arc::clone(&block))?;
                    table.tell_block_read(handle, &block, self.ro);
                    let layout = block.layout();
                    self.current = Current::Shared(block);
                    return Ok(layout);
                }
                self.current = Current::None;
                let histogram = Histogram::FileReadDbIteratorMicros;
                match arrived {
                    Some(raw) => self.window.replace(from, raw),
                    None => match self.window.fill(table, from, len, histogram) {
                        // An unreadable block that was only read ahead must not fail this one.
                        Err(_) if len > sure => {
                            len = sure;
                            self.window.fill(table, from, len, histogram)?;
                        }
                        filled => filled?,
                    },
                }
                table.statistics().add(Ticker::PrefetchBytes, (len - block_len) as u64);
                // If the scan continues past the expected blocks, its next read is no smaller.
                if len > sure {
                    self.auto_readahead = self.auto_readahead.max(len);
                }
                // Blocks read only because earlier seeks needed them are no sign of a long scan.
                if sure > block_len {
                    self.begin_ahead(table, index, at);
                    self.tell_ahead(table, from..from + len as u64, sure as u64);
                }
                let at = (handle.offset - from) as usize;
                at..at + block_len
            }
        };
        let raw = &self.window.bytes[place.clone()];
        let dictionary = table.blocks.dictionary.as_ref();
        let stored = table.blocks.decode(handle, raw, self.ro.verify_checksums, dictionary, &mut self.scratch)?;
        if let Some((cache, id)) = fill {
            let bytes = match stored {
                Stored::Plain => raw[..handle.size as usize].into(),
                Stored::Decompressed => std::mem::take(&mut self.scratch).into_boxed_slice(),
            };
            let layout = table.blocks.layout(handle, &bytes)?;
            let block = Arc::new(CachedBlock::new(bytes, layout));
            table.count_add(&block);
            cache.insert(*id, handle.offset, Arc::clone(&block))?;
            table.tell_block_read(handle, &block, self.ro);
            self.current = Current::Shared(block);
            return Ok(layout);
        }
        self.current = match stored {
            Stored::Plain => Current::Window(place.start, place.start + handle.size as usize),
            Stored::Decompressed => Current::Scratch,
        };
        table.blocks.layout(handle, self.data())
    }
}

impl Source for Cached {
    fn load(&mut self, table: &BlockBasedTable, index: &TableIndex, at: usize) -> Result<BlockLayout> {
        match self.find(table, index.handle(at)) {
            Some(layout) => Ok(layout),
            None => self.load_missing(table, index, at, None),
        }
    }

    fn load_together(
        &mut self,
        table: &BlockBasedTable,
        index: &TableIndex,
        at: usize,
        reads: &mut SeekReads,
    ) -> Result<Option<BlockLayout>> {
        let asked = self.asked.take();
        if let Some(asked) = asked.filter(|_| !reads.is_asking()) {
            let arrived = reads.take(asked.number);
            // The seek was restarted for the batch; count its first block again.
            self.seek.blocks += 1;
            return self.load_missing(table, index, at, Some((asked, arrived))).map(Some);
        }
        let handle = index.handle(at);
        if let Some(layout) = self.find(table, handle) {
            return Ok(Some(layout));
        }
        // With the page cache, separate reads are as fast.
        let waits = reads.is_asking() && !self.ro.cache_only && (table.blocks.file.is_direct() || self.ro.async_io);
        let is_here = |len| self.window.find(handle, len).is_some() || self.ahead.is_pending();
        if !waits || is_here(table.blocks.len_with_trailer(handle)?) {
            return self.load_missing(table, index, at, None).map(Some);
        }
        let range = self.read_range(table, index, at, TOGETHER_MAX);
        let (file, path) = (Arc::clone(&table.blocks.file), table.blocks.path.clone());
        let number = reads.ask(WantedBlock { file, path, offset: range.from, len: range.len, grows: false });
        self.asked = Some(Asked { number, range });
        Ok(None)
    }

    #[inline]
    fn seek_begins(&mut self, table: &BlockBasedTable, backward: bool) {
        let before = std::mem::replace(&mut self.seek, Seek { backward, ..Seek::default() });
        if before.reads && !before.backward {
            table.seek_span.record(before.blocks);
        }
    }

    fn meta_from(&self) -> (bool, bool) {
        (self.ro.cache_only, self.ro.fill_cache)
    }

    #[inline]
    fn data(&self) -> &[u8] {
        match &self.current {
            Current::Shared(block) => block.data(),
            Current::Window(start, end) => &self.window.bytes[*start..*end],
            Current::Scratch => &self.scratch,
            Current::None => &[],
        }
    }
}
