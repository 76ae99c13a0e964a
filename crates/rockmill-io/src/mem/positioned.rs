//! A file of the memory file system that is written at offsets.

use super::file::Handle;
use crate::fs::PositionedFile;
use std::io;
use std::path::Path;

/// Each call reaches the disk, as an ordinary write does: seen by the hook, counted, and part of crash images.
#[derive(Debug)]
pub(super) struct MemPositionedFile {
    pub(super) handle: Handle,
    pub(super) direct: bool,
}

impl PositionedFile for MemPositionedFile {
    fn path(&self) -> &Path {
        self.handle.path()
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
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
