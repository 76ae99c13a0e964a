//! Writing at offsets, for writers that keep several writes in flight.

use super::sys;
use super::write::Output;
use crate::error::path_error;
use crate::fs::PositionedFile;
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A file written with `pwrite`, or through its descriptor.
#[derive(Debug)]
pub(super) struct PosixPositionedFile {
    out: Mutex<Output>,
    path: PathBuf,
    fd: i32,
    /// Atomic because the first write may find that the file system accepts the flag but not the writes.
    direct: AtomicBool,
}

impl PosixPositionedFile {
    pub(super) fn new(out: Output, path: &Path, direct: bool) -> io::Result<Self> {
        let fd = out.file()?.as_raw_fd();
        Ok(Self { out: Mutex::new(out), path: path.to_path_buf(), fd, direct: AtomicBool::new(direct) })
    }

    /// Ignores the errors of file systems without write-back of ranges: it is only a hint.
    fn hint(&self, operation: &'static str, result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP)) => Ok(()),
            other => other.map_err(|e| path_error(operation, &self.path, e)),
        }
    }
}

impl PositionedFile for PosixPositionedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let out = self.out.lock();
        let file = out.file()?;
        let failed = |e| path_error(format!("write at {offset} to"), &self.path, e);
        loop {
            match file.write_at(data, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The flag was accepted at open but the file system refuses this transfer.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.is_direct() => {
                    sys::clear_direct(file).map_err(failed)?;
                    self.direct.store(false, Ordering::Relaxed);
                }
                other => return other.map_err(failed),
            }
        }
    }

    fn reserve(&self, end: u64, extend: bool) -> bool {
        self.out.lock().reserve(end, extend)
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.out.lock().cut_and_free(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.out.lock().sync_data()
    }

    fn start_write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        let result = sys::start_writeback(self.out.lock().file()?, offset, len);
        self.hint("start write-back of", result)
    }

    fn await_write_back(&self, offset: u64, len: u64) -> io::Result<()> {
        let result = sys::await_writeback(self.out.lock().file()?, offset, len);
        self.hint("await write-back of", result)
    }

    fn close(&self) -> io::Result<()> {
        self.out.lock().close_as_is()
    }

    fn raw_fd(&self) -> Option<i32> {
        Some(self.fd)
    }
}
