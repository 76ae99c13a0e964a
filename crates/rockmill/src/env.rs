//! Where files are and what time it is (RocksDB `Env`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::filename::{self, FileType};
use rockmill_io::{Access, Clock, FileSystem, MemFileSystem, PosixFileSystem, SystemClock, View};

use crate::error::{Error, Result};

/// Size limit for reading files that contain a name or an id. An encrypting Env puts a page before them.
pub(crate) const LINE_FILE_BYTES_MAX: u64 = 64 << 10;

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

/// The same file system for the existing database in `dir`. Files created through it are as private as the directory
/// and its CURRENT, and belong to the directory's owner if the process may change owners.
pub(crate) fn for_database(fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<Arc<dyn FileSystem>> {
    let failed = |e: io::Error| Error::io(dir.display(), &e);
    let current = dir.join(filename::CURRENT);
    let mut access = fs.access(dir, &[&current]).map_err(failed)?;
    if access.is_some() && !fs.exists(&current).map_err(failed)? {
        // For a database that has lost CURRENT, other remaining files serve as well.
        let is_left = |name: &String| {
            matches!(filename::parse(name), Some(FileType::Table(_) | FileType::Wal(_) | FileType::Manifest(_)))
        };
        let names = fs.list_dir(dir).map_err(failed)?;
        let files: Vec<PathBuf> = names.iter().filter(|name| is_left(name)).map(|name| dir.join(name)).collect();
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        access = fs.access(dir, &files).map_err(failed)?;
    }
    with_access(fs, dir, access)
}

/// The same file system, with other access rights for new files.
pub(crate) fn with_access(fs: &Arc<dyn FileSystem>, dir: &Path, access: Option<Access>) -> Result<Arc<dyn FileSystem>> {
    if access.is_none() {
        return Ok(Arc::clone(fs));
    }
    let view = fs.view(&View { beneath: None, access }).map_err(|e| Error::io(dir.display(), &e))?;
    Ok(view.unwrap_or_else(|| Arc::clone(fs)))
}

/// The rights that both grant, with the first one's owner.
pub(crate) fn narrower(one: Option<Access>, other: Option<Access>) -> Option<Access> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Access { mode: one.mode & other.mode, ..one }),
        (one, other) => one.or(other),
    }
}

/// A file system that does not follow links below a directory.
pub(crate) enum Beneath<'a> {
    /// One that has none anyway.
    Same(&'a dyn FileSystem),
    /// A view.
    View(Arc<dyn FileSystem>),
}

impl<'a> std::ops::Deref for Beneath<'a> {
    type Target = dyn FileSystem + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Same(fs) => *fs,
            Self::View(fs) => &**fs,
        }
    }
}

/// The file system below `dir`, without following links: for directories to which someone else may have written.
pub(crate) fn beneath<'a>(fs: &'a dyn FileSystem, dir: &Path) -> Result<Beneath<'a>> {
    let view = View { beneath: Some(dir.to_owned()), access: None };
    let view = fs.view(&view).map_err(|e| Error::io(dir.display(), &e))?;
    Ok(view.map_or(Beneath::Same(fs), Beneath::View))
}

/// Creates the directory and its missing parents, and makes their names durable. Otherwise a power cut could remove a
/// directory's name, and with it all synced files in it.
pub(crate) fn create_dir_durably(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    let (mut missing, mut at) = (Vec::new(), path);
    while !fs.exists(at).map_err(|e| Error::io(at.display(), &e))? {
        missing.push(at);
        let Some(parent) = at.parent() else { break };
        at = named(parent);
    }
    // An earlier attempt may have stopped here. A parent directory that must not be read belongs to someone else.
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
