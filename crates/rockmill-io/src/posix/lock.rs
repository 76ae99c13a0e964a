//! The lock file: RocksDB's lock, so that both exclude each other.
//!
//! `fcntl(F_SETLK)` excludes other processes but not this one: a second lock by the same process succeeds, and closing
//! *any* descriptor of the file releases it. So a table of the locks held by this process is asked first, before the
//! file is opened at all.

use super::{PosixFileSystem, sys};
use crate::error::path_error;
use crate::fs::FileLock;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A lock that this process holds: the file by name and by identity, since links give one file many names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    path: PathBuf,
    device: u64,
    inode: u64,
}

static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// A held lock.
#[derive(Debug)]
pub(super) struct PosixFileLock {
    held: Held,
    /// `None` only while dropping.
    file: Option<File>,
}

impl FileLock for PosixFileLock {}

fn taken(path: &Path, by: String) -> io::Error {
    path_error("lock", path, io::Error::new(io::ErrorKind::WouldBlock, by))
}

/// The path with links in its directory resolved; the file itself need not exist.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else { return path.canonicalize() };
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    Ok(parent.canonicalize()?.join(name))
}

/// Opens the lock file, which no link may lead to, or makes it.
///
/// Only a descriptor that can write gets the write lock, and only one that can read gets a read lock. So a user who may
/// read the file but not write to it could keep the owner out: new lock files give nobody such rights, and they are
/// removed from a lock file that is ours and has no other name.
fn open(fs: &PosixFileSystem, path: &Path) -> io::Result<(File, std::fs::Metadata)> {
    let at = fs.locate(path)?;
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    for _ in 0..super::TRIES {
        let (file, made) = match sys::open_at(&at, flags, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                match sys::open_at(&at, flags | libc::O_CREAT | libc::O_EXCL, 0o600) {
                    Err(e) if e.raw_os_error() == Some(libc::EEXIST) => continue,
                    made => (made?, true),
                }
            }
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(super::is_link()),
            there => (there?, false),
        };
        if made {
            fs.give_away(&file);
        }
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(super::no_file());
        }
        let mode = meta.mode() & 0o777;
        // A class of users keeps its right to read only with the right to write.
        let kept = mode & (0o733 | ((mode & 0o022) << 1));
        if kept != mode && meta.nlink() == 1 && meta.uid() == sys::effective_ids().0 {
            // What a file system without modes answers is no reason not to lock.
            let _ = file.set_permissions(std::fs::Permissions::from_mode(kept));
        }
        return Ok((file, meta));
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

pub(super) fn lock(fs: &PosixFileSystem, path: &Path) -> io::Result<PosixFileLock> {
    let failed = |e| path_error("lock", path, e);
    // Held to the end: between the look and the entry no other thread may open and close the file.
    let mut table = HELD.lock();
    let key = canonical(path).map_err(failed)?;
    let identity = std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if table.iter().any(|held| held.path == key || Some((held.device, held.inode)) == identity) {
        let by = format!("already open in this process (pid {}); close that handle first", std::process::id());
        return Err(taken(path, by));
    }
    let (file, meta) = open(fs, path).map_err(|e| path_error("open for locking", path, e))?;
    if let Err(e) = sys::try_lock(&file) {
        if !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
            return Err(failed(e));
        }
        let by = match sys::lock_holder(&file) {
            Some(pid) => format!("held by process {pid}"),
            None => "held by another process".to_owned(),
        };
        return Err(taken(path, by));
    }
    let held = Held { path: key, device: meta.dev(), inode: meta.ino() };
    table.push(held.clone());
    Ok(PosixFileLock { held, file: Some(file) })
}

impl Drop for PosixFileLock {
    fn drop(&mut self) {
        let mut table = HELD.lock();
        if let Some(file) = self.file.take() {
            // Closing releases it in any case.
            let _ = sys::unlock(&file);
            drop(file);
        }
        if let Some(at) = table.iter().position(|held| *held == self.held) {
            table.swap_remove(at);
        }
    }
}
