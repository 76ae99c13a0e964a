//! The traits of file systems and files.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sync::Mutex;

use crate::error::path_error;
use crate::ring::{BatchIo, BatchKind, BatchLimits, BatchProbe, Carried, DeviceFacts};

/// The longest file that is read as a whole, unless the caller gives another bound. RocksDB's longest such files are
/// OPTIONS of thousands of column families and the file lists of backups, with about ten megabytes.
pub const SMALL_FILE_BYTES_MAX: u64 = 256 << 20;

/// How a file is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Bypass the page cache (O_DIRECT). Falls back to buffered where the file system refuses it.
    pub direct: bool,
    /// Bytes gathered before a write goes to the kernel; 0 takes the default of 1 MiB.
    pub buffer_size: usize,
    /// Ask the kernel to start write-back each time this many bytes were written (`bytes_per_sync`); 0 is off. Buffered
    /// files only.
    pub bytes_per_sync: u64,
    /// With `bytes_per_sync`: wait for the previous write-back before starting the next, so that unwritten data does
    /// not pile up.
    pub strict_bytes_per_sync: bool,
    /// Reserve space in steps of this many bytes (`fallocate`, the file's size does not change); 0 is off.
    pub preallocate: u64,
    /// The permission bits that the file may have at most. For a copy, those of the original, so that no other user can
    /// read the copy who cannot read the original.
    pub mode_max: Option<u32>,
}

/// How a file is made longer than its contents: [`WritableFile::extend_ahead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ahead {
    /// It is not.
    #[default]
    No,
    /// Space is allocated in steps of this many bytes. The first write to each block of it goes through the journal.
    Allocated(u64),
    /// When an append has used up the zeros, this many more are written after it. Later appends then need no journal.
    Zeros(u64),
}

/// What kind of thing has a name.
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

/// What has a name; links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: EntryKind,
    /// It belongs to the process's user, or to the user that the view gives new files to, and its mode lets no other
    /// user or group write to it.
    pub ours: bool,
    /// The same file has other names.
    pub shared: bool,
}

/// The owner of new files and directories, and who may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits of files, at most 0644; the process's umask still applies. Users who may read a directory may
    /// also enter it.
    pub mode: u32,
    /// User and group, if they are not the process's own and the process may give files away.
    pub owner: Option<(u32, u32)>,
}

/// How a view of a file system differs from the file system.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Every path must be below this directory, and no name below it may be a link. The path to the directory itself
    /// may go through links.
    pub beneath: Option<PathBuf>,
    /// Owner and permissions of what is made through the view.
    pub access: Option<Access>,
}

/// Methods that a wrapper of a file system or a file forwards unchanged to a part of itself:
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

/// A file system. Paths are used as the caller gives them, and error messages contain them.
///
/// Only regular files can be read. Anything else is refused first, because reading it might block or never end. Links
/// to files are followed only for reading. Creating, replacing, renaming and removing affect the name itself, never the
/// target of a link with that name.
pub trait FileSystem: Send + Sync + Debug {
    /// Opens an existing file for reads at any offset. `direct` bypasses the page cache where possible.
    fn open_random(&self, path: &Path, direct: bool) -> io::Result<Arc<dyn RandomAccessFile>>;
    /// Opens an existing file to be read once, from front to back.
    fn open_sequential(&self, path: &Path) -> io::Result<Box<dyn SequentialFile>>;
    /// Creates a new file for appending. A file or link with that name is removed first. If that file has other names,
    /// its contents stay under them.
    fn create(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>>;
    /// Renames `old` to `new` and opens it to be overwritten from the start, without truncating it (recycled WALs).
    /// Both names may be the same. Links, and files with other names, are refused ([`is_not_plain`]).
    ///
    /// [`is_not_plain`]: crate::error::is_not_plain
    fn reuse(&self, old: &Path, new: &Path, options: WriteOptions) -> io::Result<Box<dyn WritableFile>>;
    /// Names in a directory, without `.` and `..`, in no order.
    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;
    /// True if anything has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Length in bytes.
    fn file_size(&self, path: &Path) -> io::Result<u64>;
    /// When the file's contents last changed, in seconds since 1970.
    fn modified_seconds(&self, path: &Path) -> io::Result<u64> {
        Err(unsupported("ask the modification time of", path))
    }
    /// Replaces `to` by `from`, atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Deletes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory, and with `parents` those above it. It may exist already; without `parents`, a link to a
    /// directory is an error.
    fn create_dir(&self, path: &Path, parents: bool) -> io::Result<()>;
    /// Creates a directory. It is an error if anything has the name already.
    fn create_new_dir(&self, path: &Path) -> io::Result<()> {
        if self.exists(path)? {
            return Err(path_error("create directory", path, io::ErrorKind::AlreadyExists.into()));
        }
        self.create_dir(path, false)
    }
    /// Gives a file a second name. Links are refused as `Unsupported`.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Shortens or extends an existing file.
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;
    /// Makes the contents and length of an existing file durable, whoever wrote it (fdatasync).
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and deletions in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Locks the lock file exclusively for as long as the result lives. `WouldBlock` if it is locked already, by this
    /// process or another.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;
    /// Bytes that an ordinary user can still write where `path` is.
    fn free_space(&self, path: &Path) -> io::Result<u64>;

    /// What has a name, without following links; `None` if nothing has it. The default is for file systems without
    /// links and owners.
    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        let kind = if self.list_dir(path).is_ok() { EntryKind::Directory } else { EntryKind::File };
        Ok(Some(Entry { kind, ours: true, shared: false }))
    }
    /// Owner and permissions that make new files in `dir` as private as the directory, and as those of `files` that
    /// exist; `None` on file systems without permissions.
    fn access(&self, _dir: &Path, _files: &[&Path]) -> io::Result<Option<Access>> {
        Ok(None)
    }

    /// How to write a copy of a file, so that no user may read the copy who may not read the file.
    ///
    /// # Errors
    /// The file's directory cannot be looked at.
    fn like(&self, path: &Path) -> io::Result<WriteOptions> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode_max = self.access(dir, &[path])?.map(|access| access.mode);
        Ok(WriteOptions { mode_max, ..WriteOptions::default() })
    }

    /// The same file system with less allowed, or with another owner or other permissions for new files. `None` if the
    /// file system has neither links nor permissions, so that a view would not differ.
    fn view(&self, _view: &View) -> io::Result<Option<Arc<dyn FileSystem>>> {
        Ok(None)
    }

    /// Creates a new file as [`create`](Self::create) does, but for writes at offsets, several of them at a time
    /// ([`BatchWriter`](crate::ring::BatchWriter)). The default appends to a file of [`create`](Self::create).
    fn create_positioned(&self, path: &Path, options: WriteOptions) -> io::Result<Box<dyn PositionedFile>> {
        let inner = self.create(path, options)?;
        Ok(Box::new(InOrderFile { path: path.to_path_buf(), inner: Mutex::new(inner) }))
    }

    /// What lets the calling thread have many reads and writes in flight. The default makes plain calls.
    fn batch_io(&self, kind: BatchKind, limits: &BatchLimits) -> io::Result<BatchIo> {
        let reason = "this file system has no io_uring".to_string();
        match kind {
            BatchKind::Uring => Err(io::Error::new(io::ErrorKind::Unsupported, reason)),
            BatchKind::Auto => BatchIo::plain(limits, Some(reason)),
            BatchKind::Pread => BatchIo::plain(limits, None),
        }
    }
    /// Whether [`BatchKind::Uring`] is available, and if not, why.
    fn batch_probe(&self) -> BatchProbe {
        BatchProbe::unavailable("this file system has no io_uring")
    }
    /// True if both names lead to the same file or directory, also through links and relative names. The default
    /// compares only the names.
    fn same_file(&self, a: &Path, b: &Path) -> io::Result<bool> {
        Ok(a == b)
    }
    /// The device that `path` is on; `None` if there is none or it is not known.
    fn device(&self, _path: &Path) -> Option<DeviceFacts> {
        None
    }

    /// Reads a whole file of at most [`SMALL_FILE_BYTES_MAX`] bytes.
    fn read_to_vec(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_small(path, SMALL_FILE_BYTES_MAX)
    }

    /// Reads a whole file of at most `bytes_max` bytes; a longer one is an error.
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

    /// Writes a whole small file and syncs it, but not its directory.
    fn write_all(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let mut f = self.create(path, WriteOptions::default())?;
        f.append(data)?;
        f.sync()?;
        f.close()
    }
}

/// The error of a call that a file system does not implement.
pub(crate) fn unsupported(operation: &'static str, path: &Path) -> io::Error {
    path_error(operation, path, io::Error::new(io::ErrorKind::Unsupported, "this file system cannot"))
}

/// A lock; dropping it unlocks.
pub trait FileLock: Send + Sync + Debug {}

/// How a file will be read, as a hint for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPattern {
    /// The kernel reads ahead as it sees fit.
    Normal,
    /// At random: the kernel reads what is asked for and nothing more.
    Random,
}

/// Blocks of a file that lie one behind the other on the device too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Where they begin in the file, in bytes.
    pub offset: u64,
    /// Where they begin on the device, in bytes from its start.
    pub device_offset: u64,
    /// Bytes; the last ones may be after the file's end.
    pub len: u64,
}

/// Where a file lies on a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileExtents {
    /// The number of the device that the file system is on (`st_dev`).
    pub device: u64,
    /// From the file's start to its end, without a hole.
    pub extents: Vec<FileExtent>,
}

/// Reads at any offset, from any thread.
pub trait RandomAccessFile: Send + Sync + Debug {
    /// Fills `buf` from `offset`; it gets fewer bytes only at the end of the file. Any alignment is allowed: direct
    /// files use an aligned buffer of their own if they must.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// A single read, which may return fewer bytes than there are, but at least one before the end of the file.
    fn read_once(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, buf)
    }
    /// True if [`send_to`](Self::send_to) can send this file.
    fn sends(&self) -> bool {
        false
    }
    /// Sends at most `len` bytes from `offset` on to a stream socket, without a copy in this process: at least one
    /// before the end of the file, none at its end. Waits as long as a write to the socket would. What is not received
    /// yet must not change: the kernel may read it later.
    ///
    /// # Errors
    /// The file cannot be read, or the socket takes nothing: as for a read and a write. `Unsupported` where
    /// [`sends`](Self::sends) is false.
    fn send_to(&self, _offset: u64, _len: usize, _socket: BorrowedFd<'_>) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this file cannot be sent without reading it"))
    }
    /// Length in bytes when it was opened.
    fn size(&self) -> u64;
    /// Permission bits when it was opened; `None` on file systems without them.
    fn mode(&self) -> Option<u32> {
        None
    }
    /// Tells the kernel that this range will be read soon. May do nothing.
    fn prefetch(&self, offset: u64, len: u64);
    /// Tells the kernel how the file will be read; the default is at random. May do nothing.
    fn advise(&self, _pattern: AccessPattern) {}
    /// True if reads bypass the page cache.
    fn is_direct(&self) -> bool;
    /// True if reads certainly return what is on the device: direct reads, on a file system that never serves them from
    /// the page cache. Ask again after a read, because it may find that it cannot be direct. The device and the page
    /// cache can differ after a failed write-back.
    fn reads_device(&self) -> bool {
        false
    }
    /// About how many bytes of the file are in the page cache; `None` if that is not known.
    fn cached_bytes(&self) -> Option<u64> {
        None
    }
    /// Offsets and lengths of direct reads through the descriptor must be multiples of this many bytes: a power of two,
    /// at most [`ALIGNMENT`](crate::aligned::ALIGNMENT).
    fn direct_alignment(&self) -> u64 {
        crate::aligned::ALIGNMENT as u64
    }
    /// The file descriptor, for engines that submit their own reads; `None` if the file has none.
    fn raw_fd(&self) -> Option<i32> {
        None
    }
    /// Where the file begins behind that descriptor, in bytes: a part of a block device does not begin with it. A
    /// multiple of [`ALIGNMENT`](crate::aligned::ALIGNMENT).
    fn fd_offset(&self) -> u64 {
        0
    }
    /// Where the file lies on its block device, for those who read it there. What is not durable yet is written first.
    ///
    /// # Errors
    /// Why nobody can: the file system puts bytes where it does not say (neither ext4 nor XFS), or a part of the file
    /// is in no blocks of its own, not written yet, compressed or encrypted.
    fn extents(&self) -> io::Result<FileExtents> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this file system does not say where files lie"))
    }
    /// Takes over a read, and ends it later, in a thread of its own ([`Carried::done`]); gives it back if the file does
    /// not do that. Only batched I/O of [`CarriedFiles`](crate::ring::CarriedFiles) asks.
    fn carry(&self, op: Carried) -> Option<Carried> {
        Some(op)
    }
    /// An io_uring ring for reads of this file; an error if there is none.
    fn ring(&self, _limits: &BatchLimits) -> io::Result<BatchIo> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "files of this file system have no ring"))
    }
}

/// Writes at any offset. The caller makes sure that no two writes at the same time touch the same bytes.
pub trait PositionedFile: Send + Sync + Debug {
    /// Its path.
    fn path(&self) -> &Path;
    /// True if writes bypass the page cache. Memory, offsets and lengths must then be aligned.
    fn is_direct(&self) -> bool;
    /// A single write, which may take fewer bytes than it is given.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// Reserves space for a write that ends at `end`, if the options ask for that. With `extend`, the file may become
    /// as long as the reserved space. True if closing may now have to cut space after the end. A failure here is
    /// ignored: the write itself needs less space and reports its own failure.
    fn reserve(&self, _end: u64, _extend: bool) -> bool {
        false
    }
    /// Hands what is in the file's own buffer to the kernel.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    /// Makes the file exactly this long.
    fn cut(&self, len: u64) -> io::Result<()>;
    /// Makes contents and length durable (fdatasync).
    fn sync(&self) -> io::Result<()>;
    /// Starts write-back of a range without waiting for it. Does nothing if the system has no such call.
    fn start_write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Waits for the write-back of a range that was started before.
    fn await_write_back(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Closes the file. Without [`sync`](Self::sync) before, its contents are not durable.
    fn close(&self) -> io::Result<()>;
    /// True if each write must begin where the last one ended.
    fn in_order(&self) -> bool {
        false
    }
    /// Bytes that it may have: a part of a block device ends where the next begins.
    fn bytes_max(&self) -> u64 {
        u64::MAX
    }
    /// Takes over a write, and ends it later, in a thread of its own ([`Carried::done`]); gives it back if the file
    /// does not do that. Only batched I/O of [`CarriedFiles`](crate::ring::CarriedFiles) asks.
    fn carry(&self, op: Carried) -> Option<Carried> {
        Some(op)
    }
    /// The file descriptor, for engines that submit their own writes; `None` if the file has none.
    fn raw_fd(&self) -> Option<i32> {
        None
    }
    /// Where the file begins behind that descriptor, as [`RandomAccessFile::fd_offset`].
    fn fd_offset(&self) -> u64 {
        0
    }
}

/// A [`WritableFile`] as a [`PositionedFile`]: each write must begin where the last one ended.
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

/// A file that is read from front to back.
pub trait SequentialFile: Send + Debug {
    /// Reads up to `buf.len()` bytes; 0 at the end.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// Skips `n` bytes.
    fn skip(&mut self, n: u64) -> io::Result<()>;
}

/// A file that is appended to. After `flush`, data is with the kernel and survives the death of the process; after
/// `sync` it is on the disk.
///
/// After a failed call the file refuses all further ones, because a sync that failed must never be retried as if it
/// could succeed. Dropping the file without `close` loses what was not flushed, and does not cut reserved space.
pub trait WritableFile: Send + Debug {
    /// Appends to the buffer, which is written when it is full.
    fn append(&mut self, data: &[u8]) -> io::Result<()>;
    /// [`append`](Self::append) and [`flush`](Self::flush) in one write, with nothing left in the
    /// buffer. A log does this for each record.
    fn append_and_flush(&mut self, data: &[u8]) -> io::Result<()> {
        self.append(data)?;
        self.flush()
    }
    /// Hands everything that was appended to the kernel. A direct file writes it, and pads the last sector for now.
    fn flush(&mut self) -> io::Result<()>;
    /// Flushes and makes contents and length durable (fdatasync).
    fn sync(&mut self) -> io::Result<()>;
    /// Starts what [`sync`](Self::sync) does, without waiting if the file can do that. True if it is done already.
    ///
    /// [`poll_sync`](Self::poll_sync) continues it; `sync` and `close` wait for it. A failure is returned once, by
    /// whichever of them comes first.
    fn begin_sync(&mut self) -> io::Result<bool> {
        self.sync()?;
        Ok(true)
    }
    /// Continues a sync that was started, without waiting. True if it is over and what was appended before is durable.
    fn poll_sync(&mut self) -> io::Result<bool> {
        Ok(true)
    }
    /// From here on, makes the file longer than its contents, if the file system can do that; [`Ahead::No`] ends this.
    ///
    /// A sync then has no new length to make durable. With a journaling file system, that would take about as long
    /// again as the data itself. After the contents, zeros are read until [`close`](Self::close) cuts them, and also
    /// after a crash. Without room or such a call, this does nothing.
    fn extend_ahead(&mut self, _how: Ahead) {}
    /// Undoes an [`append_and_flush`](Self::append_and_flush) that failed since there was no space, and that was the
    /// last call: what it left is cut off, and the file works again. `len` is the length from before it.
    ///
    /// # Errors
    /// Something else has failed, the buffer was not empty, or the cut fails; the file stays as it was. Not every kind
    /// of file can do this.
    fn undo_append(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Flushes, cuts preallocated or recycled space after the contents, and closes. Without `sync` before, the contents
    /// are not durable.
    fn close(&mut self) -> io::Result<()>;
    /// Bytes appended so far.
    fn len(&self) -> u64;
    /// How often write-back was started so far (`bytes_per_sync`), for statistics.
    fn write_backs(&self) -> u64 {
        0
    }
    /// How many writes went to the kernel so far, for statistics.
    fn kernel_writes(&self) -> u64 {
        0
    }
    /// True if nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
