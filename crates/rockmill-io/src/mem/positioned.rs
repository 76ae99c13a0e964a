//! A file of the memory file system that is written at offsets.

use super::file::Handle;
use crate::aligned::ALIGNMENT;
use crate::fs::PositionedFile;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Each call reaches the disk like an ordinary write: the hook sees it, it is counted, and part of crash images.
#[derive(Debug)]
pub(super) struct MemPositionedFile {
    pub(super) handle: Handle,
    direct: AtomicBool,
}

impl MemPositionedFile {
    pub(super) fn new(handle: Handle, direct: bool) -> Self {
        Self { handle, direct: AtomicBool::new(direct) }
    }
}

impl PositionedFile for MemPositionedFile {
    fn path(&self) -> &Path {
        self.handle.path()
    }

    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        // As on the disk: from an unaligned write on, everything goes through the page cache.
        let aligned = |n: u64| n.is_multiple_of(ALIGNMENT as u64);
        if !aligned(offset) || !aligned(data.len() as u64) || !aligned(data.as_ptr().addr() as u64) {
            self.direct.store(false, Ordering::Relaxed);
        }
        self.handle.write(offset, data.into(), true)
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.handle.cut(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync()
    }

    fn close(&self) -> io::Result<()> {
        self.handle.close()
    }
}
