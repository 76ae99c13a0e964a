//! Reads input runs, with several spans of each in flight ahead of the one in use.
//!
//! 1. A run is a list of spans, each a range of a file that ends between two blocks. They are read in order.
//! 2. With direct I/O, reads begin and end at sectors of the device, whose size the file tells. If a span follows its
//!    neighbour in the file, its read begins at the first sector that the neighbour's read did not include. The missing
//!    bytes at its front, less than a sector, are copied from the neighbour's memory, so each byte is read once.
//!
//! ```text
//!   file      |----sector----|----sector----|----sector----|----sector----|
//!   spans         [ span 1            )[ span 2                    )
//!   reads     [ read 1                      )[ read 2                     )
//!   memory 2                 [ carried      )[ read 2                     )
//!                                      ^ span 2 begins here
//! ```
//!
//! 3. Each slot has room for the largest sector in front, for the carried bytes.
//! 4. `next` waits for the run's oldest read, keeps the carry for the next one, and begins reads for the run until the
//!    intended number is in flight; they are submitted together with those of other runs.

use super::arena::{Lease, Pool};
use super::queue::{Action, BatchFile};
use super::transfers::{Token, Transfer};
use super::{BatchIo, BatchKind};
use crate::aligned::{ALIGNMENT, AlignedBuf, align_up, down_to, up_to};
use crate::error::path_error;
use crate::fs::RandomAccessFile;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// Slots for spans up to this size come from the arena.
const SPAN_BYTES_MAX: usize = 2 << 20;

/// A range of a file, to be read as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Number of the file, as [`ReadPlan::add_file`] gave it.
    pub file: u32,
    /// Where it begins.
    pub offset: u64,
    /// Its length in bytes; not 0.
    pub len: u32,
}

/// Joins ranges (offset and length, of one file) that touch, into spans of at most `span_bytes_max` bytes; a larger
/// range is a separate span. Empty ranges are omitted.
pub fn coalesce(file: u32, ranges: impl IntoIterator<Item = (u64, u32)>, span_bytes_max: usize) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (offset, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
        if let Some(last) = spans.last_mut()
            && last.offset + u64::from(last.len) == offset
            && last.len as usize + len as usize <= span_bytes_max
        {
            last.len += len;
        } else {
            spans.push(Span { file, offset, len });
        }
    }
    spans
}

/// The files to read, and for each input run its spans in order.
#[derive(Debug, Default)]
pub struct ReadPlan {
    files: Vec<BatchFile>,
    runs: Vec<Vec<Span>>,
}

impl ReadPlan {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file; `path` is for error messages. Returns its number.
    pub fn add_file(&mut self, file: Arc<dyn RandomAccessFile>, path: &Path) -> u32 {
        self.add(BatchFile::reading(file, path, false))
    }

    /// The same for a file that is still being appended to: spans may be after the end that it had when it was opened,
    /// except with direct I/O.
    pub fn add_growing_file(&mut self, file: Arc<dyn RandomAccessFile>, path: &Path) -> u32 {
        self.add(BatchFile::reading(file, path, true))
    }

    fn add(&mut self, file: BatchFile) -> u32 {
        self.files.push(file);
        (self.files.len() - 1) as u32
    }

    /// Adds a run, whose spans may be in several files. Returns its number.
    pub fn add_run(&mut self, spans: Vec<Span>) -> usize {
        self.runs.push(spans);
        self.runs.len() - 1
    }

    /// Bytes that will be read.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().flatten().map(|span| u64::from(span.len)).sum()
    }
}

/// How a plan is read.
#[derive(Default)]
pub struct ReadOptions {
    /// Spans in flight for each run ahead of the one in use. 0: four for up to four runs, three for up to eight, two
    /// for more. Fewer if memory is insufficient, but at least one.
    pub depth: usize,
    /// Bytes of the arena that the stream may use; 0 for all that is free except the memory of one writer.
    pub memory_bytes: usize,
    /// Called with the number of bytes before a read begins, for a rate limiter.
    pub throttle: Option<Box<dyn FnMut(u64) + Send>>,
}

impl fmt::Debug for ReadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOptions")
            .field("depth", &self.depth)
            .field("memory_bytes", &self.memory_bytes)
            .field("throttled", &self.throttle.is_some())
            .finish()
    }
}

/// A read that was begun, or a span that needs none.
#[derive(Debug)]
struct Pending {
    span: Span,
    /// `None` if all of the span is carried, or the read could not begin.
    token: Option<Token>,
    lease: Option<Lease>,
    /// Where the span begins in the memory.
    start: usize,
    /// The range of the read in the file; for the carry.
    read: Range<u64>,
    /// Memory outside the arena.
    heap_bytes: usize,
    /// Why it was not begun.
    refused: Option<io::Error>,
}

#[derive(Debug)]
struct Run {
    spans: Vec<Span>,
    /// The next span to begin.
    next: usize,
    pending: VecDeque<Pending>,
    /// The sector in which the last given span ended.
    carry: AlignedBuf,
    /// Where the last begun read ended: the next span's may begin there.
    read_end: Option<(u32, u64)>,
    /// A reported failure: the run cannot continue.
    failed: Option<String>,
}

/// A span's bytes, until dropped. May be handed to another thread.
#[derive(Debug)]
pub struct Window {
    lease: Lease,
    range: Range<usize>,
    span: Span,
    index: usize,
    heap: Option<Arc<HeapUse>>,
}

impl Window {
    /// What it is of.
    pub fn span(&self) -> Span {
        self.span
    }

    /// The span's place in its run.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Deref for Window {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.lease[self.range.clone()]
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(heap) = &self.heap {
            heap.give_back(self.lease.len());
        }
    }
}

/// Bytes outside of the arena that a stream's reads and windows use.
#[derive(Debug, Default)]
struct HeapUse {
    bytes: std::sync::atomic::AtomicUsize,
    bytes_max: std::sync::atomic::AtomicUsize,
}

impl HeapUse {
    fn take(&self, bytes: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        let now = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.bytes_max.fetch_max(now, Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    fn now(&self) -> usize {
        self.bytes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A plan being read.
pub struct ReadStream {
    io: BatchIo,
    files: Vec<Arc<BatchFile>>,
    runs: Vec<Run>,
    pool: Option<Arc<Pool>>,
    /// Spans in flight for each run.
    depth: usize,
    /// Operations gathered before the kernel is told.
    batch: usize,
    heap: Arc<HeapUse>,
    heap_bytes_max: usize,
    throttle: Option<Box<dyn FnMut(u64) + Send>>,
    bytes_read: u64,
    /// Spans of all runs whose reads have not begun.
    unbegun: usize,
    /// True until the last span was begun.
    reads_ahead: bool,
}

impl fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadStream")
            .field("runs", &self.runs.len())
            .field("depth", &self.depth)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// Memory for one span of `span_bytes` bytes: one sector for carried bytes, and one more because a span may begin and
/// end anywhere in a sector.
pub(super) fn slot_bytes(span_bytes: usize) -> usize {
    align_up((span_bytes + 2 * ALIGNMENT) as u64) as usize
}

/// Spans in flight for each of `runs` runs: enough reads in total to keep the device busy.
pub(super) fn depth_for(runs: usize) -> usize {
    match runs {
        0..=4 => 4,
        5..=8 => 3,
        _ => 2,
    }
}

impl ReadStream {
    pub(super) fn new(io: &BatchIo, plan: ReadPlan, options: ReadOptions) -> io::Result<Self> {
        let ReadPlan { files, runs } = plan;
        for span in runs.iter().flatten() {
            if span.file as usize >= files.len() || span.len == 0 {
                let what = format!("{span:?} in a plan of {} files", files.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        let files: Vec<_> = files.into_iter().map(Arc::new).collect();
        // A plain direct read is executed when it is waited for, so several in flight have no advantage.
        let plain = io.facts().kind == BatchKind::Pread && files.iter().all(|file| file.is_direct());
        let wanted = match options.depth {
            _ if plain => 1,
            0 => depth_for(runs.len()),
            depth => depth,
        };
        let (pool, depth) = Self::pool(io, &runs, wanted, &options);
        io.shared.lock().register(&files);
        let runs: Vec<Run> = runs
            .into_iter()
            .map(|spans| Run {
                spans,
                next: 0,
                pending: VecDeque::new(),
                carry: AlignedBuf::empty(),
                read_end: None,
                failed: None,
            })
            .collect();
        let unbegun = runs.iter().map(|run| run.spans.len()).sum();
        let batch = (depth * runs.len() / 2).clamp(1, 8);
        let mut this = Self {
            io: io.clone(),
            files,
            runs,
            pool,
            depth,
            batch,
            heap: Arc::default(),
            heap_bytes_max: io.limits().memory_bytes,
            throttle: options.throttle,
            bytes_read: 0,
            unbegun,
            reads_ahead: true,
        };
        // The first span of every run before any second one: a merge begins when it has one of each.
        for _ in 0..depth {
            for run in 0..this.runs.len() {
                this.begin_one(run, false);
            }
        }
        let mut transfers = this.io.shared.lock();
        transfers.flush();
        transfers.count_reader(true);
        drop(transfers);
        this.count_rest();
        Ok(this)
    }

    /// Slots for all runs, and the number of spans in flight for which they are enough.
    fn pool(io: &BatchIo, runs: &[Vec<Span>], wanted: usize, options: &ReadOptions) -> (Option<Arc<Pool>>, usize) {
        let span_max = runs.iter().flatten().map(|span| span.len as usize).filter(|len| *len <= SPAN_BYTES_MAX).max();
        let Some(span_max) = span_max else { return (None, 1) };
        let slot = slot_bytes(span_max);
        let (arena, free) = (&io.arena, io.arena.free_bytes());
        let budget = match options.memory_bytes {
            0 => free.saturating_sub(super::writer::memory_of_one(io)).max(free / 2),
            bytes => bytes.min(free),
        };
        let active = runs.iter().filter(|spans| !spans.is_empty()).count().max(1);
        // One more per run than in flight: the one in use.
        let longest = runs.iter().map(Vec::len).max().unwrap_or(1);
        let operations = io.shared.lock().depth() / active;
        let affordable = (budget / slot / active).saturating_sub(1);
        let depth = wanted.min(affordable).min(operations).min(longest).max(1);
        for depth in (1..=depth).rev() {
            if let Some(pool) = arena.pool(slot, active * (depth + 1)).filter(|pool| pool.bytes() <= budget) {
                return (Some(pool), depth);
            }
        }
        (arena.pool(slot, active).or_else(|| arena.pool(slot, 1)), 1)
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Spans in flight for each run.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Memory in use now: its part of the arena, and spans outside of it.
    pub fn memory_bytes(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.bytes()) + self.heap.now()
    }

    /// The most memory that it ever had.
    pub fn memory_bytes_max(&self) -> usize {
        let heap = self.heap.bytes_max.load(std::sync::atomic::Ordering::Relaxed);
        self.pool.as_ref().map_or(0, |pool| pool.bytes()) + heap
    }

    /// Bytes of reads begun so far, including alignment.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next span of a run; `None` after the last. After a failure, the run returns only the error.
    pub fn next(&mut self, run: usize) -> io::Result<Option<Window>> {
        let Some(state) = self.runs.get_mut(run) else {
            let what = format!("run {run} of a plan with fewer");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        if let Some(failed) = &state.failed {
            return Err(io::Error::other(format!("not read after an earlier failure: {failed}")));
        }
        if state.pending.is_empty() {
            self.begin_one(run, true);
        }
        let state = &mut self.runs[run];
        let Some(pending) = state.pending.pop_front() else { return Ok(None) };
        let index = state.next - state.pending.len() - 1;
        let result = self.complete(run, pending, index);
        match result {
            Ok(window) => {
                self.begin(run);
                Ok(Some(window))
            }
            Err(e) => {
                self.fail(run, &e);
                Err(e)
            }
        }
    }

    /// True if [`Self::next`] would not wait for the run's next span.
    pub fn is_ready(&self, run: usize) -> bool {
        let Some(first) = self.runs.get(run).and_then(|state| state.pending.front()) else { return false };
        let Some(token) = first.token else { return true };
        let mut transfers = self.io.shared.lock();
        transfers.is_ended(token) || {
            transfers.poll();
            transfers.is_ended(token)
        }
    }

    /// The transfer that [`Self::next`] would wait for.
    pub fn awaited(&self, run: usize) -> Option<u64> {
        let first = self.runs.get(run)?.pending.front()?.token?;
        (!self.io.shared.lock().is_ended(first)).then_some(first)
    }

    /// Leaves the rest of a run unread.
    pub fn skip_rest(&mut self, run: usize) {
        if run < self.runs.len() {
            self.forget(run);
        }
    }

    fn fail(&mut self, run: usize, error: &io::Error) {
        self.runs[run].failed = Some(error.to_string());
        self.forget(run);
    }

    /// Drops a run's reads in flight and its remaining spans.
    fn forget(&mut self, run: usize) {
        let state = &mut self.runs[run];
        self.unbegun -= state.spans.len() - state.next;
        state.next = state.spans.len();
        self.count_rest();
        let mut transfers = self.io.shared.lock();
        for pending in self.runs[run].pending.drain(..) {
            if let Some(token) = pending.token {
                transfers.abandon(token);
            }
            self.heap.give_back(pending.heap_bytes);
        }
    }

    /// Waits for a span and returns it as a window.
    fn complete(&mut self, run: usize, pending: Pending, index: usize) -> io::Result<Window> {
        let Pending { span, token, lease, start, read, heap_bytes, refused } = pending;
        let given_back = |e| {
            self.heap.give_back(heap_bytes);
            e
        };
        if let Some(e) = refused {
            return Err(given_back(e));
        }
        let (lease, result) = match token {
            Some(token) => {
                let mut transfers = self.io.shared.lock();
                if !transfers.is_ended(token) {
                    transfers.poll();
                }
                // If it has to wait, the same call submits the begun reads.
                if transfers.is_ended(token) {
                    transfers.flush_batch(self.batch);
                }
                let ended = transfers.wait(token);
                (ended.lease, ended.result)
            }
            None => (lease, Ok(())),
        };
        result.map_err(given_back)?;
        let lease = lease.ok_or_else(|| given_back(io::Error::other("a read came back without its memory")));
        let mut lease = lease?;
        let state = &mut self.runs[run];
        let block = self.files[span.file as usize].block();
        let sector_bytes = block as usize;
        // The bytes before the read in memory correspond to the sector before it in the file.
        if start < ALIGNMENT {
            lease[ALIGNMENT - sector_bytes..ALIGNMENT].copy_from_slice(&state.carry[..sector_bytes]);
        }
        let end = span.offset + u64::from(span.len);
        if state.spans.get(index + 1).is_some_and(|next| next.file == span.file && next.offset == end)
            && !end.is_multiple_of(block)
            && read.end > end
        {
            state.carry.grow(ALIGNMENT, 0);
            // The sector's place in memory: the read begins after the room in front. A carried sector ends there.
            let sector = (down_to(end, block) + ALIGNMENT as u64 - read.start) as usize;
            state.carry[..sector_bytes].copy_from_slice(&lease[sector..sector + sector_bytes]);
        }
        let heap = (heap_bytes > 0).then(|| Arc::clone(&self.heap));
        Ok(Window { lease, range: start..start + span.len as usize, span, index, heap })
    }

    /// Begins reads of a run; a later `next` tells the kernel.
    fn begin(&mut self, run: usize) {
        while self.runs[run].pending.len() < self.depth && self.begin_one(run, false) {}
        self.count_rest();
    }

    /// Begins one read, if there is one left and memory for it. `on_demand`: the merge waits for it, so it gets memory
    /// in any case.
    fn begin_one(&mut self, run: usize, on_demand: bool) -> bool {
        let state = &self.runs[run];
        let Some(span) = state.spans.get(state.next).copied() else { return false };
        let file = Arc::clone(&self.files[span.file as usize]);
        let size = file.size();
        let end = span.offset.saturating_add(u64::from(span.len));
        if end > size {
            let what = format!("bytes {} to {end} were asked for, the file has {size}", span.offset);
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, what);
            let refused = Some(path_error(format!("read at {} from", span.offset), file.path(), error));
            let read = span.offset..span.offset;
            self.push(run, Pending { span, token: None, lease: None, start: 0, read, heap_bytes: 0, refused });
            return true;
        }
        let read = match file.is_direct() {
            true => {
                // What the neighbour's read has is carried.
                let begun = state.read_end.filter(|(file, at)| *file == span.file && *at >= span.offset);
                let start = begun.map_or(down_to(span.offset, file.block()), |(_, at)| at);
                start..up_to(end, file.block()).max(start)
            }
            false => span.offset..end,
        };
        let len = (read.end - read.start) as usize;
        let needed = (read.end.min(size) - read.start.min(size)) as usize;
        let Some((lease, heap_bytes)) = self.memory(ALIGNMENT + len, on_demand) else { return false };
        let start = (ALIGNMENT as u64 + span.offset - read.start) as usize;
        if file.is_direct() {
            // Only a neighbour in the file can continue: another span begins at its own sector.
            self.runs[run].read_end = Some((span.file, read.end));
            let next = self.runs[run].spans.get(self.runs[run].next + 1);
            if next.is_none_or(|next| next.file != span.file || next.offset != end) {
                self.runs[run].read_end = None;
            }
        }
        if needed == 0 {
            let lease = Some(lease);
            self.push(run, Pending { span, token: None, lease, start, read, heap_bytes, refused: None });
            return true;
        }
        if let Some(throttle) = &mut self.throttle {
            throttle(len as u64);
        }
        self.bytes_read += len as u64;
        let range = ALIGNMENT..ALIGNMENT + len;
        let transfer = Transfer { file, action: Action::Read, offset: read.start, lease: Some(lease), range, needed };
        let token = Some(self.io.shared.lock().start(transfer));
        self.push(run, Pending { span, token, lease: None, start, read, heap_bytes, refused: None });
        true
    }

    fn push(&mut self, run: usize, pending: Pending) {
        let state = &mut self.runs[run];
        state.pending.push_back(pending);
        state.next += 1;
        self.unbegun -= 1;
    }

    /// Notes when no reads are left to begin: writes then no longer wait to be submitted together.
    fn count_rest(&mut self) {
        if self.reads_ahead && self.unbegun == 0 {
            self.reads_ahead = false;
            self.io.shared.lock().count_reader(false);
        }
    }

    /// Memory for a read, and how many bytes of it are outside of the arena.
    fn memory(&self, bytes: usize, on_demand: bool) -> Option<(Lease, usize)> {
        if let Some(pool) = &self.pool
            && bytes <= pool.slot_bytes()
        {
            if let Some(lease) = pool.lease() {
                return Some((lease, 0));
            }
            if !on_demand {
                return None;
            }
        }
        // A run without any span gets memory in any case: otherwise the merge could not continue.
        if !on_demand && self.heap.now() + bytes > self.heap_bytes_max {
            return None;
        }
        let lease = Lease::heap(bytes);
        let heap_bytes = lease.len();
        self.heap.take(heap_bytes);
        Some((lease, heap_bytes))
    }
}

impl Drop for ReadStream {
    fn drop(&mut self) {
        self.unbegun = 0;
        self.count_rest();
        let mut transfers = self.io.shared.lock();
        for state in &mut self.runs {
            for token in state.pending.drain(..).filter_map(|pending| pending.token) {
                // Waited for rather than abandoned: the files and the slots are free when this returns.
                drop(transfers.wait(token));
            }
        }
        transfers.settle();
        transfers.unregister(&self.files);
    }
}
