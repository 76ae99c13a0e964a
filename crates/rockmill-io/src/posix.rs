//! The real file system.
//!
//! A directory may belong to somebody else, who may have put links, pipes and devices where the store looks for its
//! files. So:
//!
//! - Creation is exclusive and follows no link. An existing name is removed, but never the target of a link.
//! - Only regular files are read; this is checked before anything waits for the file. A link is followed only if the
//!   process's user, root, or the owner of its target made it.
//! - In a view beneath a directory no call accepts a name that is a link. Each name is looked up in its directory's
//!   descriptor, so that a directory that becomes a link meanwhile is not followed either.

mod block_device;
mod direct;
mod lock;
mod positioned;
mod read;
mod sys;
mod write;

pub use block_device::BlockDevice;
pub use sys::{LocalTime, local_time, send_more, stand_back, thread_id};

use crate::error::{has_other_names, not_plain, path_error};
use crate::fs::{
    Access, Entry, EntryKind, FileLock, FileSystem, PositionedFile, RandomAccessFile, SequentialFile, View,
    WritableFile, WriteOptions,
};
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, DeviceFacts};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use sys::{At, FileFacts, Stat};

/// How often something is tried again that another process has undone in between.
const TRIES: usize = 8;

/// Permission bits of files that are made, where nothing narrower is asked for: RocksDB's.
const FILE_MODE: u32 = 0o644;

/// The number of a block device, which files of the file system on it have as `st_dev`.
///
/// # Errors
/// There is no such device, or it is something else.
pub fn block_device_number(path: &Path) -> io::Result<u64> {
    let meta = fs::metadata(path)?;
    match std::os::unix::fs::FileTypeExt::is_block_device(&meta.file_type()) {
        true => Ok(meta.rdev()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a block device")),
    }
}

/// The machine's file system.
#[derive(Debug, Default, Clone)]
pub struct PosixFileSystem {
    /// Every path is below this directory, without links.
    beneath: Option<PathBuf>,
    access: Option<Access>,
}

/// The refusal of a link.
fn is_link() -> io::Error {
    not_plain("it is a symbolic link, which is not followed here: look where it leads, then move the file itself there")
}

/// The error for something that is not a regular file.
fn no_file() -> io::Error {
    not_plain("it is no regular file but a directory, pipe, socket or device: remove or rename it")
}

/// Lets a file that was opened without waiting wait from now on.
pub(crate) fn clear_nonblock(file: &File) -> io::Result<()> {
    sys::clear_nonblock(file, false)
}

/// The user whose rights the process has.
pub(crate) fn effective_user() -> u32 {
    sys::effective_ids().0
}

impl PosixFileSystem {
    /// All of the machine's file system.
    pub const fn new() -> Self {
        Self { beneath: None, access: None }
    }

    /// How a path is resolved.
    fn locate(&self, path: &Path) -> io::Result<At> {
        let Some(base) = &self.beneath else { return At::path(path) };
        let outside = || not_plain(format!("it is not below {}", base.display()));
        let below = path.strip_prefix(base).map_err(|_| outside())?;
        let flags = sys::O_PATH | libc::O_DIRECTORY;
        let mut dir = OwnedFd::from(sys::open_at(&At::path(base)?, flags, 0)?);
        let mut names = below.components().peekable();
        while let Some(name) = names.next() {
            let Component::Normal(name) = name else { return Err(outside()) };
            let at = At::below(dir, name)?;
            if names.peek().is_none() {
                return Ok(at);
            }
            dir = match sys::open_at(&at, flags | libc::O_NOFOLLOW, 0) {
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                    let is_link = sys::stat_at(&at, false).is_ok_and(|stat| stat.is(libc::S_IFLNK));
                    let what = if is_link { "is a symbolic link, which is not followed" } else { "is no directory" };
                    return Err(not_plain(format!("{} in {} {what}", Path::new(name).display(), base.display())));
                }
                next => next?.into(),
            };
        }
        At::below(dir, ".".as_ref())
    }

    /// Opens a regular file for reading; `flags` are 0 or O_DIRECT. The descriptor does not wait (O_NONBLOCK).
    fn open_for_reading(&self, path: &Path, flags: libc::c_int) -> io::Result<(File, FileFacts)> {
        let at = self.locate(path)?;
        // Opening a pipe waits for its other end, unless told not to.
        let flags = flags | libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = match sys::open_at(&at, flags | libc::O_NOFOLLOW, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) && self.beneath.is_some() => return Err(is_link()),
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => Self::follow(&at, flags)?,
            // What a socket answers, and a device that nothing drives.
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Err(no_file()),
            opened => opened?,
        };
        let facts = sys::facts(&opened)?;
        if facts.is_regular { Ok((opened, facts)) } else { Err(no_file()) }
    }

    /// Opens the target of a link: a table that its owner moved elsewhere. The target is checked first, since opening a
    /// device may have an effect. And a link of another user is followed only to a file of that user, so that nobody
    /// can make root read other users' files.
    fn follow(link: &At, flags: libc::c_int) -> io::Result<File> {
        let owner = sys::stat_at(link, false)?.uid;
        let target = sys::stat_at(link, true)?;
        if !target.is(libc::S_IFREG) {
            return Err(no_file());
        }
        if ![0, effective_user(), target.uid].contains(&owner) {
            return Err(not_plain(format!(
                "it is a symbolic link of user {owner} to a file of user {}, which is not followed",
                target.uid
            )));
        }
        let file = sys::open_at(link, flags, 0)?;
        let opened = file.metadata()?;
        if (opened.dev(), opened.ino()) != (target.device, target.inode) {
            return Err(not_plain("it is a symbolic link that changes"));
        }
        Ok(file)
    }

    /// Opens an existing file for writing; `anew` if it will be overwritten.
    fn open_to_change(&self, path: &Path, flags: libc::c_int, anew: bool) -> io::Result<File> {
        let flags = flags | libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = match sys::open_at(&self.locate(path)?, flags, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(is_link()),
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Err(no_file()),
            opened => opened?,
        };
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(no_file());
        }
        if anew && meta.nlink() != 1 {
            return Err(has_other_names());
        }
        sys::clear_nonblock(&file, flags & sys::O_DIRECT != 0)?;
        Ok(file)
    }

    /// Makes a file, in the place of one of that name.
    fn create_file(&self, path: &Path, flags: libc::c_int, mode_max: Option<u32>) -> io::Result<File> {
        let at = self.locate(path)?;
        let flags = flags | libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let mode = self.access.map_or(FILE_MODE, |access| access.mode) & mode_max.unwrap_or(FILE_MODE);
        for _ in 0..TRIES {
            match sys::open_at(&at, flags, mode) {
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => match Self::make_way(&at) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                },
                made => {
                    let made = made?;
                    self.give_away(&made);
                    return Ok(made);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Removes what has the name of a new file: what an earlier process of ours left, or a link. A device stays: it may
    /// be one of the machine's.
    fn make_way(at: &At) -> io::Result<()> {
        let there = sys::stat_at(at, false)?;
        match there {
            _ if there.is(libc::S_IFREG) || there.is(libc::S_IFLNK) => sys::unlink_at(at, false),
            _ if there.is(libc::S_IFDIR) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            _ => Err(no_file()),
        }
    }

    /// Gives a new file its owner. Where that is not allowed after all it stays the process's.
    fn give_away(&self, file: &File) {
        if let Some((uid, gid)) = self.access.and_then(|access| access.owner) {
            let _ = std::os::unix::fs::fchown(file, Some(uid), Some(gid));
        }
    }

    /// With O_DIRECT where the file system takes it; the flag tells whether.
    fn maybe_direct(direct: bool, open: impl Fn(libc::c_int) -> io::Result<File>) -> io::Result<(File, bool)> {
        match direct && sys::O_DIRECT != 0 {
            true => match open(sys::O_DIRECT) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => open(0).map(|file| (file, false)),
                other => other.map(|file| (file, true)),
            },
            false => open(0).map(|file| (file, false)),
        }
    }

    fn create_any(&self, path: &Path, direct: bool, mode_max: Option<u32>) -> io::Result<(File, bool)> {
        Self::maybe_direct(direct, |flags| self.create_file(path, flags, mode_max))
            .map_err(|e| path_error("create", path, e))
    }

    fn writer(file: File, path: &Path, direct: bool, options: &WriteOptions, recycled: bool) -> Box<dyn WritableFile> {
        let out = write::Output::new(file, path.to_path_buf(), options, recycled);
        match direct {
            true => Box::new(direct::DirectWriter::new(out, options)),
            false => Box::new(write::BufferedWriter::new(out, options)),
        }
    }

    /// What a name stands for; a link is followed, but in no view beneath a directory.
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        sys::stat_at(&self.locate(path)?, self.beneath.is_none())
    }

    fn open_dir(&self, path: &Path) -> io::Result<File> {
        let at = self.locate(path)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | if self.beneath.is_some() { libc::O_NOFOLLOW } else { 0 };
        sys::open_at(&at, flags, 0).map_err(|e| match e.kind() {
            io::ErrorKind::NotADirectory if sys::stat_at(&at, false).is_ok_and(|stat| stat.is(libc::S_IFLNK)) => {
                io::Error::new(io::ErrorKind::NotADirectory, is_link())
            }
            _ => e,
        })
    }

    fn dir_mode(&self) -> u32 {
        let mode = self.access.map_or(FILE_MODE, |access| access.mode);
        // Who may read may also search.
        mode | (mode & 0o444) >> 2 | 0o700
    }

    fn make_new_dir(&self, at: &At) -> io::Result<()> {
        sys::mkdir_at(at, self.dir_mode())?;
        if let Some((uid, gid)) = self.access.and_then(|access| access.owner) {
            let _ = sys::chown_at(at, uid, gid);
        }
        Ok(())
    }

    fn make_dir(&self, path: &Path, parents: bool) -> io::Result<()> {
        if parents && self.beneath.is_none() {
            return fs::DirBuilder::new().recursive(true).mode(self.dir_mode()).create(path);
        }
        let at = self.locate(path)?;
        match self.make_new_dir(&at) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let there = sys::stat_at(&at, false)?;
                match there {
                    _ if there.is(libc::S_IFDIR) => Ok(()),
                    _ if there.is(libc::S_IFLNK) => Err(is_link()),
                    _ => Err(e),
                }
            }
            failed => failed,
        }
    }
}

/// Names both ends of a two-path call in its error.
fn pair_error(operation: &str, from: &Path, to: &Path, cause: io::Error) -> io::Error {
    path_error(format!("{operation} {} to", from.display()), to, cause)
}

impl FileSystem for PosixFileSystem {
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>> {
        Ok(Arc::new(read::PosixRandomAccessFile::open(self, path, direct)?))
    }

    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        Ok(Box::new(read::PosixSequentialFile::open(self, path)?))
    }

    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let (file, direct) = self.create_any(path, options.direct, options.mode_max)?;
        Ok(Self::writer(file, path, direct, &options, false))
    }

    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let open = |flags| self.open_to_change(old, flags, true);
        let opened = Self::maybe_direct(options.direct, open);
        let (file, direct) = opened.map_err(|e| path_error("open for writing", old, e))?;
        self.rename(old, new)?;
        Ok(Self::writer(file, new, direct, &options, true))
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let dir = self.open_dir(path);
        dir.and_then(sys::names_in).map_err(|e| path_error("list", path, e))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(path_error("look for", path, e)),
        }
    }

    fn file_size(&self, path: &Path) -> io::Result<u64> {
        self.stat(path).map(|stat| stat.size).map_err(|e| path_error("stat", path, e))
    }

    fn modified_seconds(&self, path: &Path) -> io::Result<u64> {
        let stat = self.stat(path).map_err(|e| path_error("stat", path, e))?;
        // No file has a time before the epoch; use the epoch for it.
        Ok(u64::try_from(stat.modified).unwrap_or(0))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let rename = || sys::rename_at(&self.locate(from)?, &self.locate(to)?);
        rename().map_err(|e| pair_error("rename", from, to, e))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let remove = || sys::unlink_at(&self.locate(path)?, false);
        remove().map_err(|e| path_error("delete", path, e))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let remove = || sys::unlink_at(&self.locate(path)?, true);
        remove().map_err(|e| path_error("delete directory", path, e))
    }

    fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()> {
        self.make_dir(path, parents).map_err(|e| path_error("create directory", path, e))
    }

    fn create_new_dir(&self, path: &Path) -> io::Result<()> {
        let made = self.locate(path).and_then(|at| self.make_new_dir(&at));
        made.map_err(|e| path_error("create directory", path, e))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let link = || {
            let from = self.locate(from)?;
            // The second name would be one of the link, which may lead elsewhere from there. The caller can copy the
            // file instead.
            if sys::stat_at(&from, false)?.is(libc::S_IFLNK) {
                return Err(io::Error::new(io::ErrorKind::Unsupported, is_link()));
            }
            sys::link_at(&from, &self.locate(to)?)
        };
        link().map_err(|e| pair_error("link", from, to, e))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let file = self.open_to_change(path, 0, false).map_err(|e| path_error("open for writing", path, e))?;
        file.set_len(len).map_err(|e| path_error(format!("truncate to {len} bytes"), path, e))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let (file, _) = self.open_for_reading(path, 0).map_err(|e| path_error("open", path, e))?;
        file.sync_data().map_err(|e| path_error("fdatasync", path, e))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let dir = self.open_dir(path).map_err(|e| path_error("open directory", path, e))?;
        match dir.sync_all() {
            // What a file system without directory syncs answers (network and user-space ones); nothing can be done.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EBADF)) => Ok(()),
            other => other.map_err(|e| path_error("fsync directory", path, e)),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        Ok(Box::new(lock::lock(self, path)?))
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        sys::free_space(path).map_err(|e| path_error("ask the free space at", path, e))
    }

    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        let stat = match self.locate(path).and_then(|at| sys::stat_at(&at, false)) {
            Ok(stat) => stat,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(path_error("look at", path, e)),
        };
        let kind = match stat {
            _ if stat.is(libc::S_IFREG) => EntryKind::File,
            _ if stat.is(libc::S_IFDIR) => EntryKind::Directory,
            _ if stat.is(libc::S_IFLNK) => EntryKind::Link,
            _ => EntryKind::Other,
        };
        let owner = self.access.and_then(|access| access.owner).map(|(uid, _)| uid);
        let ours = stat.mode & 0o022 == 0 && (stat.uid == effective_user() || Some(stat.uid) == owner);
        Ok(Some(Entry { kind, ours, shared: kind != EntryKind::Directory && stat.names > 1 }))
    }

    fn access(&self, dir: &Path, files: &[&Path]) -> io::Result<Option<Access>> {
        let there = self.stat(dir).map_err(|e| path_error("look at", dir, e))?;
        let mut mode = there.mode;
        for file in files {
            match self.stat(file) {
                Ok(stat) if stat.is(libc::S_IFREG) => mode &= stat.mode,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(e) => return Err(path_error("look at", file, e)),
            }
        }
        let (uid, gid) = sys::effective_ids();
        let owner = (uid == 0 && (there.uid, there.gid) != (uid, gid)).then_some((there.uid, there.gid));
        Ok(Some(Access { mode: 0o600 | mode & 0o044, owner }))
    }

    fn view(&self, view: &View) -> io::Result<Option<Arc<dyn FileSystem>>> {
        let view = view.clone();
        let (beneath, access) = (view.beneath.or_else(|| self.beneath.clone()), view.access.or(self.access));
        Ok(Some(Arc::new(Self { beneath, access })))
    }

    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        let (file, direct) = self.create_any(path, options.direct, options.mode_max)?;
        let out = write::Output::new(file, path.to_path_buf(), &options, false);
        Ok(Box::new(positioned::PosixPositionedFile::new(out, path, direct)?))
    }

    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        match kind {
            BatchKind::Uring => BatchIo::uring(limits),
            BatchKind::Auto => BatchIo::uring(limits).or_else(|e| BatchIo::plain(limits, Some(e.to_string()))),
            BatchKind::Pread => BatchIo::plain(limits, None),
        }
    }

    fn batch_probe(&self) -> BatchProbe {
        BatchProbe::of_kernel()
    }

    fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool> {
        let identity = |path: &Path| match fs::metadata(path) {
            Ok(m) => Ok(Some((m.dev(), m.ino()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(path_error("look at", path, e)),
        };
        Ok(a == b || identity(a)?.is_some_and(|one| matches!(identity(b), Ok(Some(other)) if one == other)))
    }

    fn device(&self, path: &Path) -> Option<DeviceFacts> {
        let device = fs::metadata(path).ok()?.dev();
        let (major, minor) = sys::device_numbers(device)?;
        DeviceFacts::of_device(Path::new("/sys"), major, minor)
    }
}
