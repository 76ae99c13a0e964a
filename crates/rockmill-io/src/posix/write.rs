//! Writing files: the common parts of buffered and direct writers (write-back, preallocation, truncation at the end),
//! and the buffered writer.

use super::sys;
use crate::error::{FirstFailure, path_error};
use crate::fs::{Ahead, WritableFile, WriteOptions};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Default size of the write buffer.
pub(super) const BUFFER_BYTES_DEFAULT: usize = 1 << 20;

/// Bytes at the end of the file that write-back skips: a partly filled page would be written twice.
const WRITEBACK_LAG: u64 = 1 << 20;

/// The most zeros that are written ahead at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An open file, and the state of its write-back and preallocation.
#[derive(Debug)]
pub(super) struct Output {
    /// `None` once closed.
    file: Option<File>,
    path: PathBuf,
    bytes_per_sync: u64,
    strict: bool,
    writeback_to: u64,
    write_backs: u64,
    preallocate: u64,
    preallocated_to: u64,
    ahead: Ahead,
    /// Zeros are written up to here.
    zeros_to: u64,
    /// True if there may be bytes or blocks after the end that the close must remove.
    has_tail: bool,
}

impl Output {
    pub(super) fn new(file: File, path: PathBuf, options: &WriteOptions, recycled: bool) -> Self {
        // So much is there, whatever it holds.
        let there = if recycled { file.metadata().map_or(0, |meta| meta.len()) } else { 0 };
        Self {
            file: Some(file),
            path,
            bytes_per_sync: options.bytes_per_sync,
            strict: options.strict_bytes_per_sync,
            writeback_to: 0,
            write_backs: 0,
            preallocate: options.preallocate,
            preallocated_to: 0,
            ahead: Ahead::No,
            zeros_to: there,
            has_tail: recycled,
        }
    }

    pub(super) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| self.error("write to", io::Error::other("the file is closed")))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.file.is_none()
    }

    #[cold]
    pub(super) fn error(&self, operation: &'static str, cause: io::Error) -> io::Error {
        path_error(operation, &self.path, cause)
    }

    fn extend_ahead(&mut self, how: Ahead) {
        self.ahead = how;
        match how {
            Ahead::Allocated(step) => self.preallocate = step,
            Ahead::Zeros(_) | Ahead::No => self.preallocate = 0,
        }
    }

    /// Allocates space for an append that ends at `end`, if requested. Failures are ignored: the append itself needs
    /// less space.
    fn make_room(&mut self, end: u64) {
        self.try_reserve(end, matches!(self.ahead, Ahead::Allocated(_)));
    }

    /// Writes zeros after an append that ended at `end`, if requested and if there are none. Only after the append, so
    /// that they do not take its space.
    fn write_zeros(&mut self, end: u64) {
        if let (Ahead::Zeros(more), Some(file)) = (self.ahead, &self.file)
            && end > self.zeros_to
        {
            self.has_tail = true;
            match file.write_at(&ZEROS[..ZEROS.len().min(more as usize)], end) {
                Ok(n) => self.zeros_to = end + n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.ahead = Ahead::No,
            }
        }
    }

    /// Reserves space for a write that ends at `end`; with `extend`, the file's length grows to the end of the reserved
    /// space. Failures are ignored: the write itself needs less space. True if there may be space after the end now.
    pub(super) fn reserve(&mut self, end: u64, extend: bool) -> bool {
        self.try_reserve(end, extend);
        self.has_tail
    }

    fn try_reserve(&mut self, end: u64, extend: bool) {
        if self.preallocate == 0 || end <= self.preallocated_to {
            return;
        }
        let Some(to) = end.checked_next_multiple_of(self.preallocate) else { return };
        let Some(file) = &self.file else { return };
        // Even a failed call may have made the file longer.
        self.has_tail |= extend;
        match sys::preallocate(file, self.preallocated_to, to - self.preallocated_to, extend) {
            Ok(()) => {
                self.has_tail = true;
                self.preallocated_to = to;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Not supported here, or no space for a whole step: retrying at each write would only cost time.
            Err(_) => self.preallocate = 0,
        }
    }

    /// Starts write-back if enough was written since the last time.
    pub(super) fn writeback(&mut self, written: u64) -> io::Result<()> {
        if self.bytes_per_sync == 0 {
            return Ok(());
        }
        let to = crate::aligned::align_down(written.saturating_sub(WRITEBACK_LAG));
        if to < self.writeback_to.saturating_add(self.bytes_per_sync) {
            return Ok(());
        }
        let started = self.strict.then_some(self.writeback_to).filter(|&started| started > 0);
        let waited = started.map_or(Ok(()), |started| sys::await_writeback(self.file()?, 0, started));
        match waited.and_then(|()| sys::start_writeback(self.file()?, self.writeback_to, to - self.writeback_to)) {
            Ok(()) => {
                self.writeback_to = to;
                self.write_backs += 1;
            }
            // This file system has no such call; it is only a hint.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP)) => {
                self.bytes_per_sync = 0;
            }
            Err(e) => return Err(self.error("start write-back of", e)),
        }
        Ok(())
    }

    pub(super) fn write_backs(&self) -> u64 {
        self.write_backs
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.file()?.sync_data().map_err(|e| self.error("fdatasync", e))
    }

    /// Notes that the file is longer than the appended data.
    pub(super) fn mark_tail(&mut self) {
        self.has_tail = true;
    }

    /// Cuts the file to `len`.
    pub(super) fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file()?.set_len(len).map_err(|e| self.error("cut", e))?;
        // Truncation may free reserved space; the next write after it reserves again.
        self.preallocated_to = self.preallocated_to.min(len);
        self.has_tail = false;
        Ok(())
    }

    /// Cuts off what a failed append left after `len`.
    fn cut_append(&mut self, len: u64) -> io::Result<()> {
        self.cut(len)?;
        self.zeros_to = self.zeros_to.min(len);
        Ok(())
    }

    /// Truncates the file to `len`, frees unused blocks, and closes it. Does nothing if it is already closed.
    pub(super) fn close(&mut self, len: u64) -> io::Result<()> {
        if self.file.is_some() && self.has_tail {
            self.cut_and_free(len)?;
        }
        self.close_as_is()
    }

    /// Truncates the file to `len` and frees unused blocks.
    pub(super) fn cut_and_free(&mut self, len: u64) -> io::Result<()> {
        let reserved_to = self.preallocated_to;
        self.cut(len)?;
        if reserved_to > len { self.free_reserved(len, reserved_to) } else { Ok(()) }
    }

    /// Closes without truncation. Does nothing if it is already closed.
    pub(super) fn close_as_is(&mut self) -> io::Result<()> {
        match self.file.take() {
            Some(file) => sys::close(file).map_err(|e| self.error("close", e)),
            None => Ok(()),
        }
    }

    /// Some file systems keep reserved blocks when a file is truncated to its current length.
    fn free_reserved(&self, len: u64, reserved_to: u64) -> io::Result<()> {
        let file = self.file()?;
        let meta = file.metadata().map_err(|e| self.error("fstat", e))?;
        // `blocks` counts 512 bytes each, whatever the block size.
        if meta.blocks().saturating_mul(512) > len.next_multiple_of(meta.blksize().max(1)) {
            // Only space is at stake.
            let _ = sys::punch_hole(file, len, reserved_to - len);
        }
        Ok(())
    }
}

/// Writes through the page cache.
///
/// Small appends are collected up to the buffer's size. An append as large as the buffer is passed to the kernel
/// directly, together with the buffer's contents, in one vectored write.
#[derive(Debug)]
pub(super) struct BufferedWriter {
    out: Output,
    buffer: Vec<u8>,
    buffer_bytes_max: usize,
    /// Bytes in the kernel's hands.
    written: u64,
    /// True if something was written since the last sync (and at first, because the empty file was not synced either).
    unsynced: bool,
    writes: u64,
    failure: FirstFailure,
}

impl BufferedWriter {
    pub(super) fn new(out: Output, options: &WriteOptions) -> Self {
        let buffer_bytes_max = if options.buffer_size == 0 { BUFFER_BYTES_DEFAULT } else { options.buffer_size };
        // The buffer grows as it fills, so that a small file does not pay for a large one.
        Self {
            out,
            buffer: Vec::new(),
            buffer_bytes_max,
            written: 0,
            unsynced: true,
            writes: 0,
            failure: FirstFailure::default(),
        }
    }

    /// Writes the buffer followed by `data`, and empties the buffer.
    fn write_out(&mut self, data: &[u8]) -> io::Result<()> {
        let gathered = self.buffer.len();
        let total = gathered + data.len();
        if total == 0 {
            return Ok(());
        }
        let end = self.written + total as u64;
        self.out.make_room(end);
        self.unsynced = true;
        let mut file = self.out.file()?;
        let mut done = 0;
        while done < total {
            self.writes += 1;
            let result = if done >= gathered {
                file.write(&data[done - gathered..])
            } else if data.is_empty() {
                file.write(&self.buffer[done..])
            } else {
                file.write_vectored(&[IoSlice::new(&self.buffer[done..]), IoSlice::new(data)])
            };
            match result {
                Ok(0) => return Err(self.out.error("write", io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.out.error("write", e)),
            }
        }
        self.buffer.clear();
        self.written = end;
        self.out.write_zeros(end);
        self.out.writeback(end)
    }

    fn gather(&mut self, data: &[u8]) -> io::Result<()> {
        if self.buffer.len() + data.len() > self.buffer_bytes_max {
            if data.len() >= self.buffer_bytes_max {
                return self.write_out(data);
            }
            self.write_out(&[])?;
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    fn flush_and_sync(&mut self) -> io::Result<()> {
        self.write_out(&[])?;
        if self.unsynced {
            self.out.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }

    fn flush_and_close(&mut self) -> io::Result<()> {
        self.write_out(&[])?;
        self.out.close(self.written)
    }

    #[inline]
    fn check(&self) -> io::Result<()> {
        self.failure.check()?;
        if self.out.is_closed() { self.out.file().map(drop) } else { Ok(()) }
    }
}

impl WritableFile for BufferedWriter {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let result = self.gather(data);
        self.failure.note(result)
    }

    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let result = self.write_out(data);
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
        self.out.extend_ahead(how);
    }

    fn undo_append(&mut self, len: u64) -> io::Result<()> {
        if !self.failure.is_out_of_space() || !self.buffer.is_empty() || self.written != len {
            return Err(self.out.error("undo a write to", io::ErrorKind::Unsupported.into()));
        }
        self.out.cut_append(len)?;
        self.failure = FirstFailure::default();
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        self.failure.check()?;
        let result = self.flush_and_close();
        self.failure.note(result)
    }

    fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn kernel_writes(&self) -> u64 {
        self.writes
    }

    fn write_backs(&self) -> u64 {
        self.out.write_backs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{is_out_of_space, raw_os_error};
    use rockmill_skip::{Needs, skip};
    use std::io::ErrorKind;
    use std::path::Path;

    /// With a limit for the size of files, since a full disk needs a disk.
    #[test]
    fn an_append_without_space_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let options = WriteOptions::default();
        let open = || std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
        let mut file = BufferedWriter::new(Output::new(open(), path.clone(), &options, false), &options);
        file.append_and_flush(b"first").unwrap();
        assert!(file.undo_append(5).is_err(), "nothing has failed");
        // What a short write leaves.
        open().write_at(b"par", 5).unwrap();
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(file.failure.note::<()>(Err(full)).is_err() && file.append_and_flush(b"x").is_err());
        assert!(file.undo_append(4).is_err(), "another length");
        file.undo_append(5).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), file.len()), (b"first".to_vec(), 5));
        file.append_and_flush(b", second").unwrap();
        file.sync().unwrap();
        // Gathered data cannot be undone, and no other failure.
        file.append(b", third").unwrap();
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(file.failure.note::<()>(Err(full)).is_err() && file.undo_append(13).is_err());
        let mut file = BufferedWriter::new(Output::new(open(), path.clone(), &options, false), &options);
        assert!(file.failure.note::<()>(Err(io::Error::from_raw_os_error(libc::EIO))).is_err());
        assert!(file.undo_append(0).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"first, second");
    }

    #[test]
    fn a_full_disk_is_recognised_and_the_file_never_works_again() {
        let path = Path::new("/dev/full");
        if !path.exists() {
            return skip("a_full_disk_is_recognised", &Needs::DevFull.because("there is no /dev/full"));
        }
        let full = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let options = WriteOptions::default();
        let mut file = BufferedWriter::new(Output::new(full, path.to_owned(), &options, false), &options);
        file.append(b"gathered").unwrap();
        let error = file.flush().unwrap_err();
        assert_eq!((raw_os_error(&error), error.kind()), (Some(libc::ENOSPC), ErrorKind::StorageFull));
        assert!(is_out_of_space(&error));
        assert!(error.to_string().starts_with("write /dev/full: "), "{error}");
        for result in [file.append(b"x"), file.flush(), file.sync(), file.append_and_flush(b"y"), file.close()] {
            let error = result.unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::ENOSPC));
            assert!(error.to_string().contains("earlier failure: write /dev/full"), "{error}");
        }
    }
}
