//! The real file system.

mod direct;
mod lock;
mod positioned;
mod read;
mod sys;
mod write;

pub use sys::{LocalTime, local_time, thread_id};

use crate::error::path_error;
use crate::fs::{FileLock, FileSystem, PositionedFile, RandomAccessFile, SequentialFile, WritableFile, WriteOptions};
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, DeviceFacts};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// The machine's file system.
#[derive(Debug, Default, Clone, Copy)]
pub struct PosixFileSystem {}

impl PosixFileSystem {
    /// Opens for writing; the flag tells whether direct writes were granted.
    fn open_for_writing(path: &Path, direct: bool, create: bool) -> io::Result<(File, bool)> {
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.write(true).mode(0o644).custom_flags(flags);
            if create {
                options.create(true).truncate(true);
            }
            options.open(path)
        };
        let opened = match direct {
            true => match open(libc::O_DIRECT) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => open(0).map(|file| (file, false)),
                other => other.map(|file| (file, true)),
            },
            false => open(0).map(|file| (file, false)),
        };
        opened.map_err(|e| path_error(if create { "create" } else { "open for writing" }, path, e))
    }

    fn writer(file: File, path: &Path, direct: bool, options: &WriteOptions, recycled: bool) -> Box<dyn WritableFile> {
        let out = write::Output::new(file, path.to_path_buf(), options, recycled);
        match direct {
            true => Box::new(direct::DirectWriter::new(out, options)),
            false => Box::new(write::BufferedWriter::new(out, options)),
        }
    }
}

/// Names both ends of a two-path call in its error.
fn pair_error(operation: &str, from: &Path, to: &Path, cause: io::Error) -> io::Error {
    path_error(format!("{operation} {} to", from.display()), to, cause)
}

impl FileSystem for PosixFileSystem {
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>> {
        Ok(Arc::new(read::PosixRandomAccessFile::open(path, direct)?))
    }

    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>> {
        Ok(Box::new(read::PosixSequentialFile::open(path)?))
    }

    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let (file, direct) = Self::open_for_writing(path, options.direct, true)?;
        Ok(Self::writer(file, path, direct, &options, false))
    }

    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>> {
        let (file, direct) = Self::open_for_writing(old, options.direct, false)?;
        self.rename(old, new)?;
        Ok(Self::writer(file, new, direct, &options, true))
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let failed = |e| path_error("list", path, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            // A name that is not UTF-8 is none of the store's files; lossy is enough to show it.
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(path_error("look for", path, e)),
        }
    }

    fn file_size(&self, path: &Path) -> io::Result<u64> {
        fs::metadata(path).map(|m| m.len()).map_err(|e| path_error("stat", path, e))
    }

    fn modified_seconds(&self, path: &Path) -> io::Result<u64> {
        let failed = |e| path_error("stat", path, e);
        let time = fs::metadata(path).and_then(|m| m.modified()).map_err(failed)?;
        // Times before the epoch are nobody's; the epoch stands for them.
        Ok(time.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to).map_err(|e| pair_error("rename", from, to, e))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path).map_err(|e| path_error("delete", path, e))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path).map_err(|e| path_error("delete directory", path, e))
    }

    fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()> {
        let result = if parents { fs::create_dir_all(path) } else { fs::create_dir(path) };
        match result {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other.map_err(|e| path_error("create directory", path, e)),
        }
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to).map_err(|e| pair_error("link", from, to, e))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path).map_err(|e| path_error("open for writing", path, e))?;
        file.set_len(len).map_err(|e| path_error(format!("truncate to {len} bytes"), path, e))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().read(true).open(path).map_err(|e| path_error("open", path, e))?;
        file.sync_data().map_err(|e| path_error("fdatasync", path, e))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(path)
            .map_err(|e| path_error("open directory", path, e))?;
        match dir.sync_all() {
            // What a file system without directory syncs answers (network and user-space ones); nothing can be done.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EBADF)) => Ok(()),
            other => other.map_err(|e| path_error("fsync directory", path, e)),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        Ok(Box::new(lock::lock(path)?))
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        sys::free_space(path).map_err(|e| path_error("ask the free space at", path, e))
    }

    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        let (file, direct) = Self::open_for_writing(path, options.direct, true)?;
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
        DeviceFacts::of_device(Path::new("/sys"), libc::major(device), libc::minor(device))
    }
}
