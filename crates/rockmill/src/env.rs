//! Where files are and what time it is (RocksDB `Env`).

use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill_io::{Clock, FileSystem, MemFileSystem, PosixFileSystem, SystemClock};

use crate::error::{Error, Result};

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

/// Creates the directory and those above it that are missing, and makes their names durable: what is synced in a
/// directory whose own name a power cut takes away would be lost with it.
pub(crate) fn create_dir_durably(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    let (mut missing, mut at) = (Vec::new(), path);
    while !fs.exists(at).map_err(|e| Error::io(at.display(), &e))? {
        missing.push(at);
        let Some(parent) = at.parent() else { break };
        at = named(parent);
    }
    // An earlier attempt may have come to here and no further. A directory above that may not be read is another's.
    if let Some(parent) = at.parent()
        && let Err(e) = fs.sync_dir(named(parent))
        && e.kind() != io::ErrorKind::PermissionDenied
    {
        return Err(Error::io(format_args!("cannot sync {}", parent.display()), &e));
    }
    for dir in missing.into_iter().rev() {
        fs.create_dir(dir, false).map_err(|e| Error::io(format_args!("cannot create {}", dir.display()), &e))?;
        let parent = named(dir.parent().unwrap_or(dir));
        fs.sync_dir(parent).map_err(|e| Error::io(format_args!("cannot sync {}", parent.display()), &e))?;
    }
    Ok(())
}

/// The parent of a bare name is the working directory.
fn named(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}
