//! Open files of the memory file system.

use super::Shared;
use super::tree::{DataOp, Event, Id, errno};
use crate::aligned::{align_down, align_up};
use crate::error::{FirstFailure, path_error};
use crate::fs::{Ahead, RandomAccessFile, SequentialFile, WritableFile, WriteOptions};
use crate::op::{Fault, OpKind};
use crate::ring::{BatchIo, BatchLimits};
use std::borrow::Cow;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes by which a file is extended at once: more than a block of a log, so that readers find whole blocks of
/// zeros, but not too much for a test.
const EXTEND_MOST: u64 = 72 << 10;

/// What all open files have.
#[derive(Debug)]
pub(super) struct Handle {
    shared: Arc<Shared>,
    id: Id,
    path: PathBuf,
    /// Reads past the page cache.
    direct: bool,
    /// Keeps the contents when the last name is removed.
    _alive: Arc<()>,
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>, id: Id, path: &Path, alive: Arc<()>) -> Self {
        Self { shared, id, path: path.to_path_buf(), direct: false, _alive: alive }
    }

    /// The same, for reads past the page cache.
    pub(super) fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> io::Error {
        path_error(operation, &self.path, cause)
    }

    /// One write call: writes everything, or as much as there is room for and then fails. Returns the bytes written,
    /// which are fewer without a failure only if the hook says so. `positioned` is for writes at offsets, whose errors
    /// name the offset.
    pub(super) fn write(&self, offset: u64, data: Arc<[u8]>, positioned: bool) -> io::Result<usize> {
        let fault = self.shared.gate(OpKind::Write, &self.path, None, offset, data.len() as u64);
        let (part, error) = match fault {
            Fault::Error(e) => (0, Some(e)),
            Fault::Partial(n, e) => (n.min(data.len()), Some(e)),
            Fault::Short(n) => (n.clamp(1.min(data.len()), data.len()), None),
            _ => (data.len(), None),
        };
        let mut live = self.shared.live.write();
        let room = live.room_for(self.id, offset, part);
        let error = if room < part { Some(errno(libc::ENOSPC)) } else { error };
        let happened = room.min(part);
        if happened > 0 {
            let data = if happened == data.len() { data } else { Arc::from(&data[..happened]) };
            live.commit(Event::Data(self.id, DataOp::Write { offset, data }));
        }
        drop(live);
        match error {
            None => Ok(happened),
            Some(e) if positioned => Err(path_error(format!("write at {offset} to"), &self.path, e)),
            Some(e) => Err(self.error("write", e)),
        }
    }

    /// Sets the file's length.
    pub(super) fn cut(&self, len: u64) -> io::Result<()> {
        match self.shared.gate(OpKind::Cut, &self.path, None, len, 0) {
            Fault::Error(e) | Fault::Partial(_, e) => return Err(self.error("cut", e)),
            _ => {}
        }
        self.shared.live.write().commit(Event::Data(self.id, DataOp::SetLen(len)));
        Ok(())
    }

    /// Makes the file at least `len` bytes long; writes zeros from `zeros` on. False if there is no room.
    fn extend(&self, len: u64, zeros: Option<u64>) -> bool {
        let mut live = self.shared.live.write();
        let now = live.tree.file(self.id).map_or(0, |file| file.current.len() as u64);
        let more = len.saturating_sub(now);
        if (live.room_for(self.id, now, more as usize) as u64) < more {
            return false;
        }
        match zeros {
            // The file has bytes of an earlier file.
            _ if more == 0 => {}
            Some(offset) => {
                let data = Arc::from(vec![0; (len - offset) as usize]);
                live.commit(Event::Data(self.id, DataOp::Write { offset, data }));
            }
            None => live.commit(Event::Data(self.id, DataOp::SetLen(len))),
        }
        true
    }

    /// Makes contents and length durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let fault = self.shared.gate(OpKind::Sync, &self.path, None, 0, 0);
        let mut live = self.shared.live.write();
        if let Fault::Error(e) | Fault::Partial(_, e) = fault {
            live.commit(Event::SyncFailed(self.id));
            drop(live);
            return Err(self.error("fdatasync", e));
        }
        live.commit(Event::Sync(self.id));
        Ok(())
    }

    /// Counts the close.
    pub(super) fn close(&self) -> io::Result<()> {
        match self.shared.gate(OpKind::Close, &self.path, None, 0, 0) {
            Fault::Error(e) | Fault::Partial(_, e) => Err(self.error("close", e)),
            _ => Ok(()),
        }
    }

    /// Copies from the file.
    fn copy(&self, offset: u64, buf: &mut [u8]) -> usize {
        let live = self.shared.live.read();
        let Some(file) = live.tree.file(self.id) else { return 0 };
        let contents = if self.direct { file.on_disk() } else { Cow::Borrowed(&file.current[..]) };
        let Some(rest) = usize::try_from(offset).ok().and_then(|at| contents.get(at..)) else { return 0 };
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        n
    }

    /// Length now.
    fn len(&self) -> u64 {
        self.shared.live.read().tree.file(self.id).map_or(0, |file| file.current.len() as u64)
    }

    fn read(&self, kind: OpKind, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let failed = |e| path_error(format!("read at {offset} from"), &self.path, e);
        match self.shared.gate(kind, &self.path, None, offset, buf.len() as u64) {
            Fault::Error(e) => Err(failed(e)),
            Fault::Partial(most, _) if kind == OpKind::Read => {
                let most = most.clamp(1.min(buf.len()), buf.len());
                Ok(self.copy(offset, &mut buf[..most]))
            }
            Fault::Partial(_, e) => Err(failed(e)),
            Fault::Short(most) => {
                let most = most.clamp(1.min(buf.len()), buf.len());
                Ok(self.copy(offset, &mut buf[..most]))
            }
            Fault::FlipBit(bit) => {
                let n = self.copy(offset, buf);
                if n > 0 {
                    let bit = bit % (n as u64 * 8);
                    buf[(bit / 8) as usize] ^= 1 << (bit % 8);
                }
                Ok(n)
            }
            Fault::None | Fault::Delay(_) | Fault::After(_) | Fault::Deferred(_) => Ok(self.copy(offset, buf)),
        }
    }
}

/// Bytes of a file that one call sends, at most.
const SEND_BYTES: usize = 64 << 10;

/// A file open for reads at any offset.
#[derive(Debug)]
pub(super) struct MemRandomAccessFile {
    pub(super) handle: Handle,
    pub(super) size: u64,
}

impl RandomAccessFile for MemRandomAccessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut n = 0;
        loop {
            let asked = buf.len() - n;
            match self.handle.read(OpKind::ReadAt, offset + n as u64, &mut buf[n..])? {
                // Short before the end: requests the rest, as after a system call.
                got if got > 0 && got < asked && offset + ((n + got) as u64) < self.handle.len() => n += got,
                got => return Ok(n + got),
            }
        }
    }

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.handle.read(OpKind::ReadAt, offset, buf)
    }

    fn sends(&self) -> bool {
        !self.handle.direct
    }

    /// A read, as hooks see it, and a write to the socket.
    fn send_to(&self, offset: u64, len: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut piece = vec![0; len.min(SEND_BYTES)];
        let n = self.handle.read(OpKind::ReadAt, offset, &mut piece)?;
        // Whatever kind of stream it is, the standard library's call raises no signal.
        let mut stream = TcpStream::from(socket.try_clone_to_owned()?);
        if n == 0 { Ok(0) } else { stream.write(&piece[..n]) }
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn prefetch(&self, _offset: u64, _len: u64) {}

    fn is_direct(&self) -> bool {
        self.handle.direct
    }

    fn reads_device(&self) -> bool {
        self.handle.direct
    }

    fn direct_alignment(&self) -> u64 {
        512 // as most disks
    }

    fn ring(&self, limits: &BatchLimits) -> io::Result<BatchIo> {
        self.handle.shared.ring(limits)
    }
}

/// A file read from front to back.
#[derive(Debug)]
pub(super) struct MemSequentialFile {
    pub(super) handle: Handle,
    pub(super) position: u64,
}

impl SequentialFile for MemSequentialFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.handle.read(OpKind::Read, self.position, buf)?;
        self.position += n as u64;
        Ok(n)
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        let to = self.position.checked_add(n).filter(|to| *to <= i64::MAX as u64);
        self.position =
            to.ok_or_else(|| path_error(format!("skip {n} bytes in"), &self.handle.path, errno(libc::EINVAL)))?;
        Ok(())
    }
}

/// A file being written. Buffers, pads and truncates like the real one, so that the same calls reach the disk.
#[derive(Debug)]
pub(super) struct MemWritableFile {
    handle: Handle,
    direct: bool,
    buffer: Vec<u8>,
    buffer_bytes_max: usize,
    /// The buffer's offset in the file; for a direct file, the start of a sector.
    buffer_offset: u64,
    /// Bytes of the buffer that are already in the file; always 0 except for a direct file.
    flushed: usize,
    padded: bool,
    /// There may be bytes after the end that the close must remove: an earlier file's, or zeros.
    has_tail: bool,
    ahead: Ahead,
    extended_to: u64,
    unsynced: bool,
    closed: bool,
    writes: u64,
    failure: FirstFailure,
}

impl MemWritableFile {
    pub(super) fn new(handle: Handle, options: &WriteOptions, recycled: bool) -> Self {
        let wanted = if options.buffer_size == 0 { 1 << 20 } else { options.buffer_size };
        Self {
            handle,
            direct: options.direct,
            buffer: Vec::new(),
            buffer_bytes_max: if options.direct { align_up(wanted as u64) as usize } else { wanted },
            buffer_offset: 0,
            flushed: 0,
            padded: false,
            has_tail: recycled,
            ahead: Ahead::No,
            extended_to: 0,
            unsynced: true,
            closed: false,
            writes: 0,
            failure: FirstFailure::default(),
        }
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> io::Error {
        self.handle.error(operation, cause)
    }

    fn write_out(&mut self, more: &[u8]) -> io::Result<()> {
        if self.flushed == self.buffer.len() && more.is_empty() {
            return Ok(());
        }
        let end = self.buffer.len() + more.len();
        let to = if self.direct { align_up(end as u64) as usize } else { end };
        let mut data = Vec::with_capacity(to);
        data.extend_from_slice(&self.buffer);
        data.extend_from_slice(more);
        data.resize(to, 0);
        self.unsynced = true;
        self.writes += 1;
        let file_end = self.buffer_offset + to as u64;
        if matches!(self.ahead, Ahead::Allocated(_)) {
            self.extend(file_end);
        }
        let mut done = 0;
        while done < to {
            // A short write is continued, as after a system call.
            done += self.handle.write(self.buffer_offset + done as u64, Arc::from(&data[done..]), false)?;
        }
        if matches!(self.ahead, Ahead::Zeros(_)) {
            self.extend(file_end);
        }
        let kept = if self.direct { align_down(end as u64) as usize } else { end };
        self.buffer.clear();
        self.buffer.extend_from_slice(&data[kept..end]);
        self.buffer_offset += kept as u64;
        self.flushed = self.buffer.len();
        self.padded = to != end;
        Ok(())
    }

    /// Extends the file for a write that ends at `end`, if requested and if there is room: before the write if space is
    /// allocated, after it if zeros are written.
    fn extend(&mut self, end: u64) {
        if end <= self.extended_to {
            return;
        }
        let (to, zeros) = match self.ahead {
            Ahead::No => return,
            Ahead::Allocated(step) => (end.next_multiple_of(step.min(EXTEND_MOST)), None),
            Ahead::Zeros(more) => (end + more.min(EXTEND_MOST), Some(end)),
        };
        match self.handle.extend(to, zeros) {
            true => (self.has_tail, self.extended_to) = (true, to),
            false => self.ahead = Ahead::No,
        }
    }

    fn gather(&mut self, mut data: &[u8]) -> io::Result<()> {
        if self.direct {
            while !data.is_empty() {
                if self.buffer.len() == self.buffer_bytes_max {
                    self.write_out(&[])?;
                }
                let (now, later) = data.split_at(data.len().min(self.buffer_bytes_max - self.buffer.len()));
                self.buffer.extend_from_slice(now);
                data = later;
            }
            return Ok(());
        }
        if self.buffer.len() + data.len() > self.buffer_bytes_max {
            if data.len() >= self.buffer_bytes_max {
                return self.write_out(data);
            }
            self.write_out(&[])?;
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        self.handle.cut(self.len())?;
        self.unsynced = true;
        self.padded = false;
        Ok(())
    }

    fn flush_and_sync(&mut self) -> io::Result<()> {
        self.write_out(&[])?;
        if self.padded {
            self.cut()?;
        }
        if self.unsynced {
            self.handle.sync()?;
            self.unsynced = false;
        }
        Ok(())
    }

    fn flush_and_close(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        self.write_out(&[])?;
        if self.padded || self.has_tail {
            self.cut()?;
        }
        self.closed = true;
        self.handle.close()
    }

    fn cut_append(&mut self, len: u64) -> io::Result<()> {
        if !self.failure.is_out_of_space() || self.direct || !self.buffer.is_empty() || self.buffer_offset != len {
            return Err(self.error("undo a write to", io::ErrorKind::Unsupported.into()));
        }
        self.handle.cut(len)?;
        self.extended_to = self.extended_to.min(len);
        self.failure = FirstFailure::default();
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        self.failure.check()?;
        match self.closed {
            true => Err(self.error("write to", io::Error::other("the file is closed"))),
            false => Ok(()),
        }
    }
}

impl WritableFile for MemWritableFile {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let result = self.gather(data);
        self.failure.note(result)
    }

    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let result = match self.direct {
            true => self.gather(data).and_then(|()| self.write_out(&[])),
            false => self.write_out(data),
        };
        self.failure.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        let result = self.write_out(&[]);
        self.failure.note(result)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        let result = self.flush_and_sync();
        self.failure.note(result)
    }

    fn extend_ahead(&mut self, how: Ahead) {
        self.ahead = if self.direct { Ahead::No } else { how };
    }

    fn undo_append(&mut self, len: u64) -> io::Result<()> {
        self.cut_append(len)
    }

    fn close(&mut self) -> io::Result<()> {
        self.failure.check()?;
        let result = self.flush_and_close();
        self.failure.note(result)
    }

    fn len(&self) -> u64 {
        self.buffer_offset + self.buffer.len() as u64
    }

    fn kernel_writes(&self) -> u64 {
        self.writes
    }
}
