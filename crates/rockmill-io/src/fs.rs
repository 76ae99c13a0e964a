//! The traits.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sync::Mutex;

use crate::error::path_error;
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, DeviceFacts};

/// Longest file that is read as a whole where the caller names no other bound. RocksDB's longest such files, OPTIONS of
/// thousands of column families and lists of a backup's files, have some ten megabytes.
pub const SMALL_FILE_BYTES_MAX: u64 = 256 << 20;

/// How a file is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Bypass the page cache (O_DIRECT). Falls back to buffered where the file system refuses it.
    pub direct: bool,
    /// Bytes gathered before a write goes to the kernel; 0 takes the default of 1 MiB.
    pub buffer_size: usize,
    /// Ask the kernel to start writing back every so many bytes (`bytes_per_sync`); 0 off. Buffered files only.
    pub bytes_per_sync: u64,
    /// With `bytes_per_sync`: wait for the write-back started before rather than let dirty data gather.
    pub strict_bytes_per_sync: bool,
    /// Space to reserve ahead in steps of this many bytes (`fallocate`, size kept); 0 off.
    pub preallocate: u64,
    /// Permission bits that the file may have at most, of those that the file system gives files: those of the file
    /// that it is a copy of.
    pub mode_max: Option<u32>,
}

/// How a file is made longer ahead of what is appended: [`WritableFile::extend_ahead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ahead {
    /// It is not.
    #[default]
    No,
    /// Space is allocated, in steps of so many bytes. The first write to a block of it is journaled.
    Allocated(u64),
    /// So many bytes of zeros are written behind an append that ends where none are: nothing is left to be journaled.
    Zeros(u64),
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a pipe, a socket.
    Other,
}

/// What is under a name itself, links not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: EntryKind,
    /// It belongs to the process's user, or to whom the view gives what it makes, and nobody else can write to it by
    /// its mode, its group neither.
    pub ours: bool,
    /// The same file has other names.
    pub shared: bool,
}

/// Whom files and directories that are made belong to, and who may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits of files, at most 0644; the process's umask takes from them. Directories can be searched by
    /// those who may read.
    pub mode: u32,
    /// User and group, where they are not the process's and it may give files away.
    pub owner: Option<(u32, u32)>,
}

/// How a view of a file system differs from it.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Every path must be below this directory, and no name below it may be a link. How the directory itself is
    /// reached does not matter.
    pub beneath: Option<PathBuf>,
    /// Of what is made through the view.
    pub access: Option<Access>,
}

/// Methods that a wrapper of a file system or of a file hands on to a part of itself as they are:
/// `pass_on! { inner => fn size(&self) -> u64; }`.
#[macro_export]
macro_rules! pass_on {
    ($part:ident => $(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) $(-> $out:ty)?;)+) => {
        $(fn $name(&self $(, $arg: $kind)*) $(-> $out)? { self.$part.$name($($arg),*) })+
    };
    ($part:ident() => $(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) $(-> $out:ty)?;)+) => {
        $(fn $name(&self $(, $arg: $kind)*) $(-> $out)? { self.$part().$name($($arg),*) })+
    };
}

/// A file system. Paths are as the caller gives them; errors carry the path in their message.
///
/// What is read must be a regular file: anything else is refused before a read could wait for it or find no end. Links
/// to files are followed for reading only. What is created, replaced, renamed or removed is the name itself, never what
/// a link of that name leads to.
pub trait FileSystem: Send + Sync + Debug {
    /// Opens an existing file for reads at any offset. `direct` bypasses the page cache where possible.
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>>;
    /// Opens an existing file for one read from front to back.
    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>>;
    /// Creates a new file for appending. A file or link of that name is removed first; other names of such a file keep
    /// what it holds.
    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>>;
    /// Renames `old` to `new` and opens it for overwriting from the start without truncating it (recycled WALs). Both
    /// may be the same. A link, and a file that has other names, is refused ([`is_not_plain`]).
    ///
    /// [`is_not_plain`]: crate::error::is_not_plain
    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>>;
    /// Names in a directory, without `.` and `..`, in no order.
    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;
    /// True when something is there.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Length in bytes.
    fn file_size(&self, path: &Path) -> io::Result<u64>;
    /// When the file's contents last changed, in seconds since the Unix epoch.
    fn modified_seconds(&self, path: &Path) -> io::Result<u64> {
        Err(unsupported("ask the modification time of", path))
    }
    /// Replaces `to` by `from`, atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Deletes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory; fine if it is there, but without `parents` no link. Parents are created where `parents` is
    /// set.
    fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()>;
    /// Creates a directory that was not there: an error where anything has the name.
    fn create_new_dir(&self, path: &Path) -> io::Result<()> {
        if self.exists(path)? {
            return Err(path_error("create directory", path, io::ErrorKind::AlreadyExists.into()));
        }
        self.create_dir(path, false)
    }
    /// Second name for a file. Of a link there is none: `Unsupported`.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Shortens or extends an existing file.
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// Makes the contents and length of an existing file durable that somebody else wrote (fdatasync).
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and deletions in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes the exclusive lock file, for as long as the result lives. `WouldBlock` when another holder (this
    /// process included) has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;
    /// Free bytes for an ordinary user where `path` is.
    fn free_space(&self, path: &Path) -> io::Result<u64>;

    /// What is under a name, a link not followed; `None` where nothing is. The default is for file systems without
    /// links and owners.
    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        let kind = if self.list_dir(path).is_ok() { EntryKind::Directory } else { EntryKind::File };
        Ok(Some(Entry { kind, ours: true, shared: false }))
    }
    /// What keeps files made in `dir` as private as the directory and as those of `files` that are there; `None` where
    /// there are no modes.
    fn access(&self, _dir: &Path, _files: &[&Path]) -> io::Result<Option<Access>> {
        Ok(None)
    }

    /// How a copy of a file is written, by a system that knows modes: nobody may read it who may not read the file.
    ///
    /// # Errors
    /// The file's directory cannot be looked at.
    fn like(&self, path: &Path) -> io::Result<WriteOptions> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode_max = self.access(dir, &[path])?.map(|access| access.mode);
        Ok(WriteOptions { mode_max, ..WriteOptions::default() })
    }

    /// The same file system, with less allowed or with other rights for what is made; `None` where it knows neither
    /// links nor modes, so that it is as good as any view of it.
    fn view(&self, _view: &View) -> io::Result<Option<Arc<dyn FileSystem>>> {
        Ok(None)
    }

    /// Creates a new file as [`create`](Self::create) does, for writes at offsets, several at a time: what a
    /// [`BatchWriter`](crate::ring::BatchWriter) writes to. The default appends to a file of [`create`](Self::create).
    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        let inner = self.create(path, options)?;
        Ok(Box::new(InOrderFile { path: path.to_path_buf(), inner: Mutex::new(inner) }))
    }

    /// Many reads and writes in flight at once, for the calling thread. The default has plain calls only.
    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        let reason = "this file system has no io_uring".to_string();
        match kind {
            BatchKind::Uring => Err(io::Error::new(io::ErrorKind::Unsupported, reason)),
            BatchKind::Auto => BatchIo::plain(limits, Some(reason)),
            BatchKind::Pread => BatchIo::plain(limits, None),
        }
    }
    /// Whether [`BatchKind::Uring`] is to be had, and if not, why.
    fn batch_probe(&self) -> BatchProbe {
        BatchProbe::unavailable("this file system has no io_uring")
    }
    /// True when both names are of one file or directory, through links and relative names too. The default compares
    /// the names alone.
    fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool> {
        Ok(a == b)
    }
    /// The device that holds `path`; `None` when that is none, or nobody knows.
    fn device(&self, _path: &Path) -> Option<DeviceFacts> {
        None
    }

    /// A whole small file, of at most [`SMALL_FILE_BYTES_MAX`].
    fn read_to_vec(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_small(path, SMALL_FILE_BYTES_MAX)
    }

    /// A whole file of at most `bytes_max`; a longer one is an error.
    fn read_small(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut f = self.open_sequential(path)?;
        let mut out = Vec::new();
        let mut buf = vec![0; 64 * 1024];
        loop {
            let n = f.read(&mut buf)?;
            if n == 0 {
                return Ok(out);
            }
            out.extend_from_slice(&buf[..n]);
            if out.len() as u64 > bytes_max {
                let what = format!("it has more than {bytes_max} bytes, which no file of its kind has");
                return Err(path_error("read", path, io::Error::new(io::ErrorKind::FileTooLarge, what)));
            }
        }
    }

    /// Writes a whole small file and syncs it (not its directory).
    fn write_all(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let mut f = self.create(path, WriteOptions::default())?;
        f.append(data)?;
        f.sync()?;
        f.close()
    }
}

/// What a call answers that a file system made elsewhere does not have.
fn unsupported(operation: &'static str, path: &Path) -> io::Error {
    path_error(operation, path, io::Error::new(io::ErrorKind::Unsupported, "this file system cannot"))
}

/// Held lock; dropping it releases.
pub trait FileLock: Send + Sync + Debug {}

/// How a file will be read, told to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPattern {
    /// As the kernel thinks best, with its own read-ahead.
    Normal,
    /// Here and there: what is asked for and no more.
    Random,
}

/// Reads at any offset, from any thread.
pub trait RandomAccessFile: Send + Sync + Debug {
    /// Fills `buf` from `offset`; short only at the end of the file. Any alignment is allowed; a direct file bounces
    /// through an aligned buffer where it must.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// One read, which may give fewer bytes than there are; at least one before the end.
    fn read_once(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, buf)
    }
    /// Length in bytes when it was opened.
    fn size(&self) -> u64;
    /// Permission bits when it was opened; `None` where there are none.
    fn mode(&self) -> Option<u32> {
        None
    }
    /// Tells the kernel that this range will be read soon. May do nothing.
    fn prefetch(&self, offset: u64, len: u64);
    /// Tells the kernel how the file will be read; a new one is taken to be read at random. May do nothing.
    fn advise(&self, _pattern: AccessPattern) {}
    /// True when reads bypass the page cache.
    fn is_direct(&self) -> bool;
    /// True when reads are known to return the device's bytes: direct reads, on a file system that never serves them
    /// from the page cache. Ask again after reading, because a read may find out that it cannot be direct. The device
    /// and the page cache differ after a failed write-back.
    fn reads_device(&self) -> bool {
        false
    }
    /// About how many bytes of the file are in the page cache, whoever put them there; `None` where that is not known.
    fn cached_bytes(&self) -> Option<u64> {
        None
    }
    /// To a multiple of what offsets and lengths of direct reads through the descriptor must be, in bytes: a power of
    /// two, at most [`ALIGNMENT`](crate::aligned::ALIGNMENT).
    fn direct_alignment(&self) -> u64 {
        crate::aligned::ALIGNMENT as u64
    }
    /// The descriptor, for engines that submit their own reads; `None` for files that have none.
    fn raw_fd(&self) -> Option<i32> {
        None
    }
    /// A ring of io_uring to read from this file with; an error where there is none.
    fn ring(&self, _limits: &BatchLimits) -> io::Result<BatchIo> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "files of this file system have no ring"))
    }
}

/// Writes at any offset. Who uses it sees to it that no two writes at a time touch the same bytes.
pub trait PositionedFile: Send + Sync + Debug {
    /// Where it is.
    fn path(&self) -> &Path;
    /// True when writes bypass the page cache: then memory, offsets and lengths are to be aligned.
    fn is_direct(&self) -> bool;
    /// One write, which may take fewer bytes than given.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// Reserves space for a write that ends at `end`, where the options ask for that; with `extend` the file may become
    /// as long as what is reserved. True when there may now be space behind the end that closing must cut. A failure is
    /// left to the write itself, which needs less.
    fn reserve(&self, _end: u64, _extend: bool) -> bool {
        false
    }
    /// Hands the kernel what the file itself gathered.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    /// Makes the file exactly so long.
    fn cut(&self, len: u64) -> io::Result<()>;
    /// Makes contents and length durable (fdatasync).
    fn sync(&self) -> io::Result<()>;
    /// Starts write-back of a range without waiting for it. Nothing where there is no such call.
    fn start_write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Waits for write-back of a range that was started.
    fn await_write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Closes. Not durable without [`sync`](Self::sync) before.
    fn close(&self) -> io::Result<()>;
    /// True when writes must come one after the other, each where the last one ended.
    fn in_order(&self) -> bool {
        false
    }
    /// The descriptor, for engines that submit their own writes; `None` for files that have none.
    fn raw_fd(&self) -> Option<i32> {
        None
    }
}

/// A [`WritableFile`] that takes writes at offsets, as long as each begins where the last one ended.
#[derive(Debug)]
struct InOrderFile {
    path: PathBuf,
    inner: Mutex<Box<dyn WritableFile>>,
}

impl PositionedFile for InOrderFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let mut inner = self.inner.lock();
        if offset != inner.len() {
            let what = format!("a write at {offset}, the file ends at {}", inner.len());
            return Err(path_error("write", &self.path, io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        inner.append(data).map(|()| data.len())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.lock().flush()
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        match self.inner.lock().len() {
            now if now == len => Ok(()),
            now => {
                let what = format!("cutting {now} bytes to {len}");
                Err(path_error("write", &self.path, io::Error::new(io::ErrorKind::Unsupported, what)))
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.lock().sync()
    }

    fn close(&self) -> io::Result<()> {
        self.inner.lock().close()
    }

    fn in_order(&self) -> bool {
        true
    }
}

/// Reads from front to back.
pub trait SequentialFile: Send + Debug {
    /// Reads up to `buf.len()` bytes; 0 at the end.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// Passes over `n` bytes.
    fn skip(&mut self, n: u64) -> io::Result<()>;
}

/// Appends. Data is in the kernel's hands (and survives this process) after `flush`, on the disk after `sync`.
///
/// After any failed call the file refuses further use: a failed sync must never be retried as if it had worked.
/// Dropping without `close` loses what was not flushed, and leaves space reserved behind the end as it is.
pub trait WritableFile: Send + Debug {
    /// Appends to the buffer, writing it out when full.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// [`append`](Self::append), then [`flush`](Self::flush), in one write and without gathering: what a log does for
    /// each record.
    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        self.append(data)?;
        self.flush()
    }
    /// Hands everything appended to the kernel (for a direct file: writes it, padding the last sector for now).
    fn flush(&mut self) -> io::Result<()>;
    /// Flushes and makes contents and length durable (fdatasync).
    fn sync(&mut self) -> io::Result<()>;
    /// Begins what [`sync`](Self::sync) does, without waiting where the file can; true when it is done already.
    ///
    /// [`poll_sync`](Self::poll_sync) moves it on; `sync` and `close` wait for it. A failure comes out of any of them,
    /// once.
    fn begin_sync(&mut self) -> io::Result<bool> {
        self.sync()?;
        Ok(true)
    }
    /// Moves a sync on that was begun, without waiting; true when it is over and what was appended before is durable.
    fn poll_sync(&mut self) -> io::Result<bool> {
        Ok(true)
    }
    /// From here on makes the file longer than what is appended, where the file system can; [`Ahead::No`]: no more.
    ///
    /// A sync then has no new length to make durable, which on a file system with a journal takes about as long again
    /// as the data. Behind what was appended zeros are read, until [`close`](Self::close) cuts them, and after a crash.
    /// Nothing happens where there is no room or no such call.
    fn extend_ahead(&mut self, _how: Ahead) {}
    /// Flushes, cuts preallocated or recycled space behind the end, and closes. Not durable without `sync` before.
    fn close(&mut self) -> io::Result<()>;
    /// Bytes appended so far.
    fn len(&self) -> u64;
    /// Times that write-back was started so far (`bytes_per_sync`), for statistics.
    fn write_backs(&self) -> u64 {
        0
    }
    /// Writes made to the kernel so far, for statistics.
    fn kernel_writes(&self) -> u64 {
        0
    }
    /// True before the first append.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
