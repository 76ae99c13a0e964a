//! Writing past the page cache (O_DIRECT).
//!
//! 1. Appends are collected in an aligned buffer, which represents the file from `buffer_offset` on, the start of a
//!    sector.
//! 2. A full buffer is written completely, and the buffer continues after it.
//! 3. A flush pads the last sector with zeros, writes, and keeps that sector: the next write overwrites it.
//! 4. A sync and the close truncate the file to the appended bytes, so the padding is never part of a durable file.

use super::sys;
use super::write::{BUFFER_BYTES_DEFAULT, Output};
use crate::aligned::{AlignedBuf, align_down, align_up};
use crate::error::FirstFailure;
use crate::fs::{WritableFile, WriteOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// A direct writer.
#[derive(Debug)]
pub(super) struct DirectWriter {
    out: Output,
    buffer: AlignedBuf,
    buffer_bytes_max: usize,
    /// Offset of the buffer's first byte in the file; a multiple of the alignment.
    buffer_offset: u64,
    /// Bytes in the buffer.
    used: usize,
    /// How many of them are already in the file: less than one sector.
    flushed: usize,
    /// True when the file ends in padding.
    padded: bool,
    unsynced: bool,
    writes: u64,
    failure: FirstFailure,
}

impl DirectWriter {
    pub(super) fn new(out: Output, options: &WriteOptions) -> Self {
        let wanted = if options.buffer_size == 0 { BUFFER_BYTES_DEFAULT } else { options.buffer_size };
        Self {
            out,
            buffer: AlignedBuf::empty(),
            buffer_bytes_max: align_up(wanted as u64) as usize,
            buffer_offset: 0,
            used: 0,
            flushed: 0,
            padded: false,
            unsynced: true,
            writes: 0,
            failure: FirstFailure::default(),
        }
    }

    fn end(&self) -> u64 {
        self.buffer_offset + self.used as u64
    }

    fn gather(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            if self.used == self.buffer_bytes_max {
                self.write_out()?;
            }
            let n = data.len().min(self.buffer_bytes_max - self.used);
            let (now, later) = data.split_at(n);
            let needed = (self.used + n).next_power_of_two().min(self.buffer_bytes_max);
            self.buffer.grow(needed, self.used);
            self.buffer[self.used..self.used + n].copy_from_slice(now);
            self.used += n;
            data = later;
        }
        Ok(())
    }

    /// Writes what the file does not have yet, from the start of the buffer: `flushed` is in its first sector.
    fn write_out(&mut self) -> io::Result<()> {
        if self.flushed == self.used {
            return Ok(());
        }
        let to = align_up(self.used as u64) as usize;
        self.buffer[self.used..to].fill(0);
        self.out.reserve(self.buffer_offset + to as u64, false);
        self.unsynced = true;
        self.write_range(to)?;
        self.padded = to != self.used;
        if self.padded {
            self.out.mark_tail();
        }
        // The unfinished sector moves to the front and will be written again.
        let kept = align_down(self.used as u64) as usize;
        self.buffer.copy_within(kept..self.used, 0);
        self.buffer_offset += kept as u64;
        self.used -= kept;
        self.flushed = self.used;
        Ok(())
    }

    fn write_range(&mut self, to: usize) -> io::Result<()> {
        let file = self.out.file()?;
        let mut done = 0;
        while done < to {
            self.writes += 1;
            match file.write_at(&self.buffer[done..to], self.buffer_offset + done as u64) {
                Ok(0) => return Err(self.out.error("write", io::ErrorKind::WriteZero.into())),
                Ok(n) if done + n < to => {
                    // A short write may end inside a sector: continue from the start of that sector. If it did not
                    // finish a single sector, the rest cannot be aligned and goes through the page cache.
                    let next = align_down((done + n) as u64) as usize;
                    if next == done {
                        return self.write_rest_buffered(done, to);
                    }
                    done = next;
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The flag was accepted at open but the file system refuses direct transfers.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return self.write_rest_buffered(done, to),
                Err(e) => return Err(self.out.error("write", e)),
            }
        }
        Ok(())
    }

    #[cold]
    fn write_rest_buffered(&self, done: usize, to: usize) -> io::Result<()> {
        let file = self.out.file()?;
        sys::clear_direct(file).map_err(|e| self.out.error("clear O_DIRECT of", e))?;
        file.write_all_at(&self.buffer[done..to], self.buffer_offset + done as u64)
            .map_err(|e| self.out.error("write", e))
    }

    fn flush_and_sync(&mut self) -> io::Result<()> {
        self.write_out()?;
        if self.padded {
            let end = self.end();
            self.out.cut(end)?;
            self.padded = false;
        }
        if self.unsynced {
            self.out.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }

    fn flush_and_close(&mut self) -> io::Result<()> {
        self.write_out()?;
        let end = self.end();
        self.out.close(end)
    }

    #[inline]
    fn check(&self) -> io::Result<()> {
        self.failure.check()?;
        if self.out.is_closed() { self.out.file().map(drop) } else { Ok(()) }
    }
}

impl WritableFile for DirectWriter {
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let result = self.gather(data);
        self.failure.note(result)
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

    fn close(&mut self) -> io::Result<()> {
        self.failure.check()?;
        let result = self.flush_and_close();
        self.failure.note(result)
    }

    fn len(&self) -> u64 {
        self.end()
    }

    fn kernel_writes(&self) -> u64 {
        self.writes
    }
}
