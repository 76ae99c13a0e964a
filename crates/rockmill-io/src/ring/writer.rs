//! Writing a file front to back: bytes are put directly into the buffers from which they are written, and several large
//! writes are in flight.
//!
//! 1. The caller appends, or fills [`space`](BatchWriter::space) in place and says how much of it counts.
//! 2. A buffer without room for more goes to the file, up to the last sector's start when writing past the page cache;
//!    the rest of it, less than a sector, begins the next buffer.
//! 3. `sync` writes the last buffer too, padded to a sector, waits for everything, cuts the padding and syncs.
//!    [`begin_sync`](WritableFile::begin_sync) does the same without waiting: the next file can be written meanwhile,
//!    from the same buffers, as they come free.
//!
//! Every failure is kept: whichever call comes next returns it, and every later one refuses.

use super::arena::{Arena, Lease, Pool};
use super::queue::{Action, BatchFile};
use super::transfers::{Token, Transfer};
use super::{BatchIo, BatchKind};
use crate::aligned::{ALIGNMENT, align_down, align_up};
use crate::error::{FirstFailure, path_error};
use crate::fs::{PositionedFile, WritableFile, WriteOptions};
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

/// Buffer size when the options name none.
const BUFFER_BYTES_DEFAULT: usize = 1 << 20;

/// The end of the file that write-back leaves alone: a page that is still being filled would be written twice.
const WRITE_BACK_LAG: u64 = 1 << 20;

/// Writes in flight: plain calls have one.
fn writes_max(io: &BatchIo) -> usize {
    if io.facts().kind == BatchKind::Pread { 1 } else { io.limits().writes_in_flight.max(1) }
}

/// Memory that one writer takes with the default buffer size.
pub(super) fn memory_of_one(io: &BatchIo) -> usize {
    memory_of(writes_max(io))
}

/// The same, for this many writes in flight.
pub(super) fn memory_of(writes: usize) -> usize {
    (writes.max(1) + 1) * BUFFER_BYTES_DEFAULT
}

/// The buffers that this thread's writers share: while one file is being synced, the next is written from the same.
#[derive(Debug, Default)]
pub(super) struct WriterBuffers {
    last: Mutex<Weak<Pool>>,
}

impl WriterBuffers {
    /// The pool of a writer that still lives if it has such buffers, or a new one: one buffer to fill, and as many in
    /// flight as there is memory for, `writes_max` at most. `None` when there is not even memory for two.
    fn for_writer(&self, arena: &Arc<Arena>, buffer_bytes: usize, writes_max: usize) -> Option<Arc<Pool>> {
        let mut last = self.last.lock();
        if let Some(pool) = last.upgrade().filter(|pool| pool.slot_bytes() == buffer_bytes) {
            return Some(pool);
        }
        let pool = (1..=writes_max).rev().find_map(|writes| arena.pool(buffer_bytes, writes + 1))?;
        *last = Arc::downgrade(&pool);
        Some(pool)
    }
}

/// The steps of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syncing {
    /// Everything was sent; writes may be in flight.
    Writes,
    /// Everything is written; the sync is in flight.
    Sync(Token),
}

/// A file being written. See [`WritableFile`] for what its calls promise.
pub struct BatchWriter {
    io: BatchIo,
    file: Arc<BatchFile>,
    inner: Arc<dyn PositionedFile>,
    options: WriteOptions,
    pool: Option<Arc<Pool>>,
    buffer_bytes: usize,
    writes_max: usize,
    /// The buffer being filled.
    buffer: Option<Lease>,
    /// Where in the file it begins; a sector's start when direct.
    base: u64,
    /// Bytes in it.
    used: usize,
    /// Bytes of it that the file has already: less than a sector, and only when direct.
    written: usize,
    /// Those bytes, while there is no buffer.
    rest: Vec<u8>,
    /// Bytes of the last `space`.
    offered: usize,
    in_flight: VecDeque<Token>,
    /// How far a sync is that was begun.
    syncing: Option<Syncing>,
    /// Reserved space is within the file's length while it is written: a direct write that extends the file is waited
    /// for inside the call that submits it (ext4), one into reserved space is not. That costs a plain call more than it
    /// gains.
    extend: bool,
    /// True if the file may be longer than the appended data.
    tail: bool,
    unsynced: bool,
    closed: bool,
    writes: u64,
    write_back_to: u64,
    write_backs: u64,
    failure: FirstFailure,
}

impl fmt::Debug for BatchWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchWriter")
            .field("file", &self.file.path())
            .field("len", &(self.base + self.used as u64))
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

impl BatchWriter {
    pub(super) fn new(io: &BatchIo, inner: Arc<dyn PositionedFile>, options: WriteOptions) -> io::Result<Self> {
        let wanted = if options.buffer_size == 0 { BUFFER_BYTES_DEFAULT } else { options.buffer_size };
        // Two sectors at least: one to carry over, one to fill.
        let buffer_bytes = (align_up(wanted as u64) as usize).max(2 * ALIGNMENT);
        let writes_max = if inner.in_order() { 1 } else { writes_max(io) };
        let pool = io.buffers.for_writer(&io.arena, buffer_bytes, writes_max);
        let file = Arc::new(BatchFile::writing(Arc::clone(&inner)));
        io.shared.lock().register(std::slice::from_ref(&file));
        Ok(Self {
            io: io.clone(),
            file,
            inner,
            options,
            pool,
            buffer_bytes,
            writes_max,
            buffer: None,
            base: 0,
            used: 0,
            written: 0,
            offered: 0,
            rest: Vec::new(),
            in_flight: VecDeque::new(),
            syncing: None,
            extend: io.facts().kind == BatchKind::Uring,
            tail: false,
            unsynced: true,
            closed: false,
            writes: 0,
            write_back_to: 0,
            write_backs: 0,
            failure: FirstFailure::default(),
        })
    }

    /// True while writes bypass the page cache: requested, and not refused by the file system so far.
    pub fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }

    /// Bytes that [`space`](Self::space) gives at most.
    pub fn space_bytes_max(&self) -> usize {
        self.buffer_bytes - ALIGNMENT
    }

    /// Room for the next `len` bytes, in one piece, with anything in it. It counts once [`commit`](Self::commit) says
    /// so; another call before that gives the same place again.
    pub fn space(&mut self, len: usize) -> io::Result<&mut [u8]> {
        self.check()?;
        if len > self.space_bytes_max() {
            let what = format!("{len} bytes at once, at most {} fit a buffer", self.space_bytes_max());
            return Err(path_error("write", self.file.path(), io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let made = self.make_room(len);
        self.failure.note(made)?;
        self.offered = len;
        let used = self.used;
        match &mut self.buffer {
            Some(buffer) => Ok(&mut buffer[used..used + len]),
            None => Ok(&mut []),
        }
    }

    /// The first `len` bytes of the last [`space`](Self::space) are appended; no more than it had.
    pub fn commit(&mut self, len: usize) {
        self.used += len.min(self.offered);
        self.offered = 0;
    }

    /// Makes `len` bytes free in the buffer, which is larger by a sector at least.
    fn make_room(&mut self, len: usize) -> io::Result<()> {
        // Data appended now is not part of a sync that began earlier.
        self.finish_sync()?;
        if self.buffer.is_some() && self.used + len > self.buffer_bytes {
            self.write_full()?;
        }
        if self.buffer.is_none() {
            let mut buffer = self.free_buffer()?;
            buffer[..self.rest.len()].copy_from_slice(&self.rest);
            self.buffer = Some(buffer);
        }
        Ok(())
    }

    /// A buffer; waits for a write when all are in flight.
    fn free_buffer(&mut self) -> io::Result<Lease> {
        self.look_at_ended()?;
        while self.in_flight.len() >= self.writes_max {
            self.await_oldest()?;
        }
        loop {
            if let Some(lease) = self.pool.as_ref().and_then(Pool::lease) {
                return Ok(lease);
            }
            if !self.in_flight.is_empty() {
                self.await_oldest()?;
            } else if self.pool.is_none() || !self.io.shared.lock().await_write() {
                // The arena is too small, or in use: it continues, but more slowly.
                return Ok(Lease::heap(self.buffer_bytes));
            }
        }
    }

    /// Takes the outcome of writes that are through already.
    fn look_at_ended(&mut self) -> io::Result<()> {
        if self.in_flight.is_empty() {
            return Ok(());
        }
        let mut transfers = self.io.shared.lock();
        transfers.poll();
        let mut result = Ok(());
        self.in_flight.retain(|token| {
            if result.is_err() || !transfers.is_ended(*token) {
                return true;
            }
            result = transfers.wait(*token).result;
            false
        });
        result
    }

    fn await_oldest(&mut self) -> io::Result<()> {
        match self.in_flight.pop_front() {
            Some(token) => self.io.shared.lock().wait(token).result,
            None => Ok(()),
        }
    }

    fn await_all(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        self.io.shared.lock().await_all(&self.in_flight);
        while !self.in_flight.is_empty() {
            let one = self.await_oldest();
            if result.is_ok() {
                result = one;
            }
        }
        result
    }

    /// Sends the buffer off, and begins the next with the sector that is not full.
    fn write_full(&mut self) -> io::Result<()> {
        let to = if self.inner.is_direct() { align_down(self.used as u64) as usize } else { self.used };
        if to == 0 {
            return Ok(());
        }
        let mut next = self.free_buffer()?;
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        let rest = self.used - to;
        next[..rest].copy_from_slice(&buffer[to..self.used]);
        self.send(buffer, to)?;
        self.buffer = Some(next);
        self.base += to as u64;
        self.used = rest;
        self.written = 0;
        self.write_back()
    }

    /// Hands the first `to` bytes of a buffer to the kernel.
    fn send(&mut self, buffer: Lease, to: usize) -> io::Result<()> {
        // A ring writes by the descriptor, and knows no end of the file.
        if self.base.saturating_add(to as u64) > self.inner.bytes_max() {
            return Err(path_error("write", self.file.path(), io::ErrorKind::StorageFull.into()));
        }
        if self.inner.reserve(self.base + to as u64, self.extend) {
            self.tail = true;
        }
        self.unsynced = true;
        self.writes += 1;
        let transfer = Transfer {
            file: Arc::clone(&self.file),
            action: Action::Write,
            offset: self.base,
            lease: Some(buffer),
            range: 0..to,
            needed: to,
        };
        let mut transfers = self.io.shared.lock();
        let token = transfers.start(transfer);
        transfers.flush_write(self.in_flight.len());
        drop(transfers);
        self.in_flight.push_back(token);
        Ok(())
    }

    /// Sends everything off. The last sector is kept when it is not full: it will be written again.
    fn send_rest(&mut self) -> io::Result<()> {
        if self.used == self.written {
            return Ok(());
        }
        let Some(mut buffer) = self.buffer.take() else { return Ok(()) };
        let direct = self.inner.is_direct();
        let (to, kept) = match direct {
            true => (align_up(self.used as u64) as usize, align_down(self.used as u64) as usize),
            false => (self.used, self.used),
        };
        buffer[self.used..to].fill(0);
        self.rest.clear();
        self.rest.extend_from_slice(&buffer[kept..self.used]);
        if self.written > 0 {
            // The same sector is not written twice at a time.
            self.await_all()?;
        }
        self.send(buffer, to)?;
        self.tail |= to != self.used;
        self.base += kept as u64;
        self.used -= kept;
        self.written = self.used;
        Ok(())
    }

    /// Writes everything, and waits for it.
    fn write_out(&mut self) -> io::Result<()> {
        self.send_rest()?;
        self.await_all()?;
        self.inner.flush()
    }

    /// Starts write-back when enough was written since the last time. For files in the page cache only.
    fn write_back(&mut self) -> io::Result<()> {
        let step = self.options.bytes_per_sync;
        if step == 0 || self.inner.is_direct() {
            return Ok(());
        }
        let to = align_down(self.base.saturating_sub(WRITE_BACK_LAG));
        if to < self.write_back_to.saturating_add(step) {
            return Ok(());
        }
        // Data in flight is not in the page cache yet.
        self.await_all()?;
        if self.options.strict_bytes_per_sync && self.write_back_to > 0 {
            self.operate(Action::AwaitWriteBack(self.write_back_to), 0)?;
        }
        self.operate(Action::StartWriteBack(to - self.write_back_to), self.write_back_to)?;
        self.write_back_to = to;
        self.write_backs += 1;
        Ok(())
    }

    /// An operation without memory, waited for.
    fn operate(&mut self, action: Action, offset: u64) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        let mut transfers = self.io.shared.lock();
        let token = transfers.start(Transfer { file, action, offset, lease: None, range: 0..0, needed: 0 });
        transfers.wait(token).result
    }

    /// Continues a sync that was started. True when it is complete; without `wait`, it may not be.
    fn advance_sync(&mut self, wait: bool) -> io::Result<bool> {
        loop {
            match self.syncing {
                None => return Ok(true),
                Some(Syncing::Writes) => {
                    match wait {
                        true => self.await_all()?,
                        false => self.look_at_ended()?,
                    }
                    if !self.in_flight.is_empty() {
                        return Ok(false);
                    }
                    if self.tail {
                        self.inner.cut(self.len())?;
                        self.tail = false;
                        self.unsynced = true;
                    }
                    if !self.unsynced {
                        self.syncing = None;
                        return Ok(true);
                    }
                    let file = Arc::clone(&self.file);
                    let (action, range) = (Action::Sync, 0..0);
                    let mut transfers = self.io.shared.lock();
                    let token = transfers.start(Transfer { file, action, offset: 0, lease: None, range, needed: 0 });
                    transfers.flush();
                    self.syncing = Some(Syncing::Sync(token));
                }
                Some(Syncing::Sync(token)) => {
                    let mut transfers = self.io.shared.lock();
                    if !wait && !transfers.is_ended(token) {
                        transfers.poll();
                        if !transfers.is_ended(token) {
                            return Ok(false);
                        }
                    }
                    // Whatever the result is, it is requested only once.
                    self.syncing = None;
                    transfers.wait(token).result?;
                    self.unsynced = false;
                    return Ok(true);
                }
            }
        }
    }

    fn finish_sync(&mut self) -> io::Result<()> {
        self.advance_sync(true).map(drop)
    }

    fn start_sync(&mut self) -> io::Result<bool> {
        self.finish_sync()?;
        self.send_rest()?;
        self.io.shared.lock().flush();
        self.syncing = Some(Syncing::Writes);
        self.advance_sync(false)
    }

    fn flush_and_sync(&mut self) -> io::Result<()> {
        self.start_sync()?;
        self.finish_sync()
    }

    fn flush_and_close(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        self.finish_sync()?;
        self.write_out()?;
        if self.tail {
            self.inner.cut(self.len())?;
            self.tail = false;
        }
        self.closed = true;
        self.io.shared.lock().unregister(std::slice::from_ref(&self.file));
        self.inner.close()
    }

    fn check(&self) -> io::Result<()> {
        self.failure.check()?;
        match self.closed {
            true => Err(path_error("write to", self.file.path(), io::Error::other("the file is closed"))),
            false => Ok(()),
        }
    }
}

impl WritableFile for BatchWriter {
    fn append(&mut self, mut data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.offered = 0;
        while !data.is_empty() {
            let made = self.make_room(1);
            self.failure.note(made)?;
            let (now, later) = data.split_at(data.len().min(self.buffer_bytes - self.used));
            let used = self.used;
            if let Some(buffer) = &mut self.buffer {
                buffer[used..used + now.len()].copy_from_slice(now);
            }
            self.used += now.len();
            data = later;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        let result = self.write_out();
        self.failure.note(result)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        let result = self.flush_and_sync();
        self.failure.note(result)
    }

    fn begin_sync(&mut self) -> io::Result<bool> {
        self.check()?;
        let result = self.start_sync();
        self.failure.note(result)
    }

    fn poll_sync(&mut self) -> io::Result<bool> {
        self.check()?;
        let result = self.advance_sync(false);
        self.failure.note(result)
    }

    fn close(&mut self) -> io::Result<()> {
        self.failure.check()?;
        let result = self.flush_and_close();
        self.failure.note(result)
    }

    fn len(&self) -> u64 {
        self.base + self.used as u64
    }

    fn kernel_writes(&self) -> u64 {
        self.writes
    }

    fn write_backs(&self) -> u64 {
        self.write_backs
    }
}

impl Drop for BatchWriter {
    fn drop(&mut self) {
        // Waited for, so that nothing is written to a file that its owner is about to delete.
        let mut transfers = self.io.shared.lock();
        let syncing = match self.syncing {
            Some(Syncing::Sync(token)) => Some(token),
            Some(Syncing::Writes) | None => None,
        };
        for token in self.in_flight.drain(..).chain(syncing) {
            drop(transfers.wait(token));
        }
        if !self.closed {
            transfers.unregister(std::slice::from_ref(&self.file));
        }
    }
}
