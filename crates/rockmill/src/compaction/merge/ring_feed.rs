//! The feed of the `uring` engine: it takes blocks from windows that the ring has read ahead, without a copy.
//!
//! 1. The blocks of each run are joined into spans of about 256 KiB; all runs' spans are one read plan, of which the
//!    ring keeps several for each run in flight.
//! 2. A feed takes its run's next window when it reaches a block that is not in the current one; that releases the
//!    memory of the previous window to the reads.
//! 3. Blocks stand in the window as they do in the file: verified there, and decompressed or used in place.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::slice::Iter;
use std::sync::Arc;

use rockmill_format::block::{BlockKind, BlockLayout};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use rockmill_io::prefetch::prefetch;
use rockmill_io::ring::{BatchIo, ReadOptions, ReadPlan, ReadStream, Span, Window, coalesce};

use super::ahead::{Batch, DecompressAhead};
use super::feed::BlockFeed;
use crate::compaction::sst_map::{SstMap, blocks_of};
use crate::compaction::{JobHost, JobProgress, page_cache};
use crate::error::{Error, Result};
use crate::helpers::Help;
use crate::rate_limiter::IoPriority;
use crate::sync::atomic::Ordering;
use crate::table::{BlockAccess, StoredBlock};

/// Bytes of a block that are prefetched into the CPU's caches: the size of a usual block. Every run holds one block.
const PREFETCH_MAX: usize = 8 << 10;

/// One table of a run.
struct FeedFile<'a> {
    table: BlockAccess,
    /// Its number in the read plan.
    number: u32,
    blocks: &'a [BlockHandle],
}

/// The blocks of one run.
pub struct RingFeed<'a> {
    stream: Rc<RefCell<ReadStream>>,
    run: usize,
    files: std::vec::IntoIter<FeedFile<'a>>,
    table: Option<BlockAccess>,
    number: u32,
    blocks: Iter<'a, BlockHandle>,
    current: BlockHandle,
    window: Option<Window>,
    /// Where the current block and its trailer are in the window; `None` when it went ahead.
    raw: Option<Range<usize>>,
    /// Where the current block's contents are in the window; `None` when they are in `scratch`.
    place: Option<(usize, usize)>,
    scratch: Vec<u8>,
    ahead: DecompressAhead,
    progress: Arc<JobProgress>,
}

/// Begins to read a plan, as fast as a job may.
pub(super) fn begin(plan: ReadPlan, io: &BatchIo, host: &dyn JobHost) -> Result<ReadStream> {
    let (means, mut options) = (host.means(), ReadOptions::default());
    if let Some(limit) = means.limit(IoPriority::Low).filter(|l| l.limiter.mode().limits_reads()) {
        options.throttle = Some(Box::new(move |bytes| limit.request(bytes)));
    } else if let Some(job) = means.device_share.clone() {
        options.throttle = Some(Box::new(move |bytes| job.pass(bytes)));
    }
    io.read(plan, options).map_err(|e| Error::io("cannot read a compaction's input", &e))
}

/// The spans of a file's blocks, of about `bytes`.
pub(super) fn spans_of(number: u32, blocks: &[BlockHandle], bytes: usize, path: &Path) -> Result<Vec<Span>> {
    let len = |h: &BlockHandle| u32::try_from(h.size + BLOCK_TRAILER_LEN as u64);
    let ranges: std::result::Result<Vec<_>, _> = blocks.iter().map(|h| len(h).map(|len| (h.offset, len))).collect();
    let ranges = ranges.map_err(|_| Error::corruption(format!("{}: a block over 4 GiB", path.display())))?;
    Ok(coalesce(number, ranges, bytes))
}

/// A failed read of a compaction's input.
pub(super) fn failed(e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::corruption(e.to_string()),
        _ => Error::io("reading a compaction's input", e),
    }
}

/// Feeds for all runs of `map`; their reads have begun when this returns.
pub(crate) fn feeds<'a>(
    map: &'a SstMap,
    io: &BatchIo,
    host: &dyn JobHost,
    help: Option<&Help>,
) -> Result<Vec<RingFeed<'a>>> {
    let reading = map.runs.iter().filter(|r| !r.files.is_empty()).count();
    let means = host.means();
    let span_bytes = io.span_bytes(host.device().as_ref(), reading);
    let mut plan = ReadPlan::new();
    let mut runs = Vec::with_capacity(map.runs.len());
    for run in &map.runs {
        let (mut files, mut spans) = (Vec::with_capacity(run.files.len()), Vec::new());
        for f in &run.files {
            let table = blocks_of(host, &f.file)?;
            let path = table.path();
            let direct = !page_cache::has_input(&means.db, table.table(), f.file.entry.size);
            let number = plan.add_file(host.input_bytes(&f.file, path, direct)?, path);
            spans.extend(spans_of(number, &f.blocks, span_bytes, path)?);
            files.push(FeedFile { table, number, blocks: &f.blocks });
        }
        plan.add_run(spans);
        runs.push(files);
    }
    let stream = Rc::new(RefCell::new(begin(plan, io, host)?));
    let count = runs.len();
    let feed = |(run, files): (usize, Vec<FeedFile<'a>>)| RingFeed {
        stream: Rc::clone(&stream),
        run,
        files: files.into_iter(),
        table: None,
        number: 0,
        blocks: Iter::default(),
        current: BlockHandle::default(),
        window: None,
        raw: None,
        place: None,
        scratch: Vec::new(),
        ahead: DecompressAhead::new(help, count),
        progress: Arc::clone(host.progress()),
    };
    Ok(runs.into_iter().enumerate().map(feed).collect())
}

impl RingFeed<'_> {
    /// The block's place in the window, if it is all there.
    fn find(&self, handle: BlockHandle, len: usize) -> Option<usize> {
        let span = self.window.as_ref()?.span();
        let start = usize::try_from(handle.offset.checked_sub(span.offset)?).ok()?;
        (span.file == self.number && start + len <= span.len as usize).then_some(start)
    }

    /// The next window.
    fn take_window(&mut self, table: &BlockAccess) -> Result<()> {
        self.window = None;
        let began = table.compaction_read_begins();
        let window = self.stream.borrow_mut().next(self.run).map_err(|e| failed(&e))?;
        table.compaction_read_ends(began, window.as_ref().map_or(0, |w| w.len()));
        self.window = window;
        Ok(())
    }
}

impl RingFeed<'_> {
    /// Where a block is in the window, trailer included; takes the next window if it is not in this one.
    fn read(&mut self, block: BlockHandle, table: &BlockAccess) -> Result<Range<usize>> {
        let len = block.size as usize + BLOCK_TRAILER_LEN;
        let start = match self.find(block, len) {
            Some(start) => start,
            None => {
                self.take_window(table)?;
                let lost = || Error::corruption("a block is not in the window that was read for it");
                self.find(block, len).ok_or_else(|| lost().context(table.path().display()))?
            }
        };
        Ok(start..start + len)
    }

    /// The next block, in `scratch`, if it went ahead.
    fn next_ahead(&mut self, table: &BlockAccess) -> Result<Option<BlockHandle>> {
        let mut ahead = std::mem::take(&mut self.ahead);
        let (mut blocks, mut out) = (std::mem::take(&mut self.blocks), std::mem::take(&mut self.scratch));
        let read = |batch: &mut Batch, block| {
            let place = self.read(block, table)?;
            batch.add(block, self.window.as_ref().and_then(|w| w.get(place)).unwrap_or(&[]));
            Ok(())
        };
        let next = ahead.next(table, &mut blocks, read, &mut out);
        (self.ahead, self.blocks, self.scratch) = (ahead, blocks, out);
        next
    }
}

impl RingFeed<'_> {
    /// The next block is cold: it came from the device.
    fn prefetch(&self) {
        if let (Some(next), Some(window)) = (self.blocks.as_slice().first(), &self.window)
            && let Some(start) = self.find(*next, 0)
        {
            let len = (next.size as usize).min(PREFETCH_MAX);
            prefetch(window.get(start..start + len).unwrap_or(&[]));
        }
    }
}

impl BlockFeed for RingFeed<'_> {
    fn next_block(&mut self) -> Result<Option<(BlockLayout, BlockKind)>> {
        loop {
            if let Some(table) = self.table.clone().filter(|_| self.ahead.is_on())
                && let Some(block) = self.next_ahead(&table)?
            {
                self.current = block;
                self.progress.bytes.fetch_add(block.size, Ordering::Relaxed);
                (self.place, self.raw) = (None, None);
                let layout = BlockLayout::parse(self.data()).map_err(|e| self.error(&e))?;
                return Ok(Some((layout, table.data_kind())));
            }
            if let (Some(table), Some(&block)) = (self.table.clone(), self.blocks.next()) {
                self.current = block;
                self.progress.bytes.fetch_add(block.size, Ordering::Relaxed);
                let place = self.read(block, &table)?;
                let start = place.start;
                self.raw = Some(place.clone());
                let raw = self.window.as_ref().and_then(|w| w.get(place)).unwrap_or(&[]);
                let plain = table.check_block(block, raw, &mut self.scratch)?;
                self.place = plain.then_some((start, start + block.size as usize));
                self.prefetch();
                let layout = BlockLayout::parse(self.data()).map_err(|e| self.error(&e))?;
                return Ok(Some((layout, table.data_kind())));
            }
            let Some(file) = self.files.next() else {
                self.window = None;
                return Ok(None);
            };
            self.number = file.number;
            self.ahead.begin_file(&file.table);
            self.blocks = file.blocks.iter();
            self.table = Some(file.table);
        }
    }

    #[inline]
    fn data(&self) -> &[u8] {
        match (&self.window, self.place) {
            (Some(window), Some((start, end))) => window.get(start..end).unwrap_or(&[]),
            _ => &self.scratch,
        }
    }

    fn stored(&self) -> Option<StoredBlock<'_>> {
        let bytes = match &self.raw {
            Some(place) => self.window.as_ref()?.get(place.clone())?,
            None => self.ahead.stored()?,
        };
        Some(StoredBlock { table: self.table.as_ref()?, handle: self.current, bytes })
    }

    fn next_waits(&self) -> bool {
        let next = self.blocks.as_slice().first();
        if next.is_some_and(|block| self.find(*block, block.size as usize + BLOCK_TRAILER_LEN).is_some()) {
            return false;
        }
        let ended = next.is_none() && self.files.as_slice().is_empty();
        !ended && !self.ahead.has_more() && !self.stream.borrow().is_ready(self.run)
    }

    fn awaited(&self) -> Option<u64> {
        self.stream.borrow().awaited(self.run)
    }

    fn place(&self) -> Option<(&BlockAccess, BlockHandle)> {
        Some((self.table.as_ref()?, self.current))
    }
}
