//! Where files are and what time it is (RocksDB `Env`).

use std::sync::Arc;

use rockmill_io::{Clock, FileSystem, MemFileSystem, PosixFileSystem, SystemClock};

use crate::error::Result;

/// A file system and a clock (`rocksdb::Env`). Cheap to clone.
#[derive(Debug, Clone)]
pub struct Env {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Env {
    /// The machine's file system and clock. Never fails; a result, as in the `rocksdb` crate.
    pub fn new() -> Result<Self> {
        Ok(Self::default())
    }

    /// A file system in memory, with the machine's clock.
    pub fn mem_env() -> Result<Self> {
        Ok(Self::from_parts(Arc::new(MemFileSystem::new()), Arc::new(SystemClock::default())))
    }

    /// Any file system and clock.
    pub fn from_parts(fs: Arc<dyn FileSystem>, clock: Arc<dyn Clock>) -> Self {
        Self { fs, clock }
    }
}

impl Default for Env {
    fn default() -> Self {
        Self::from_parts(Arc::new(PosixFileSystem::default()), Arc::new(SystemClock::default()))
    }
}
