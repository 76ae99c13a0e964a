//! Reading files: `pread` at any offset, or front to back.

use super::PosixFileSystem;
use super::sys::{self, Advice};
use crate::aligned::{ALIGNMENT, AlignedBuf};
use crate::error::path_error;
use crate::fs::{AccessPattern, FileExtents, RandomAccessFile, SequentialFile};
use crate::ring::{BatchIo, BatchLimits};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest piece of an unaligned direct read: the limit of a thread's bounce buffer.
const BOUNCE_BYTES_MAX: usize = 1 << 20;

/// Alignment of direct reads that is tried if the kernel does not tell it: the logical block size of most devices. An
/// unaligned 4 KiB block of a table then costs little more than its size, instead of two pages.
const BLOCK_BYTES_MIN: u64 = 512;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = const { RefCell::new(AlignedBuf::empty()) };
}

/// A file read by `pread`.
#[derive(Debug)]
pub(super) struct PosixRandomAccessFile {
    file: File,
    path: PathBuf,
    size: u64,
    mode: u32,
    /// Atomic because the first read may find that the file system accepts the flag but not the reads.
    direct: AtomicBool,
    /// Alignment of direct reads according to the kernel.
    told: Option<u64>,
    /// Alignment of direct reads, in bytes: a power of two. Increased if the file system refuses a smaller one.
    block: AtomicU64,
}

impl PosixRandomAccessFile {
    pub(super) fn open(fs: &PosixFileSystem, path: &Path, direct: bool) -> io::Result<Self> {
        let open = |flags| fs.open_for_reading(path, flags);
        let (opened, direct) = match direct && sys::O_DIRECT != 0 {
            true => match open(sys::O_DIRECT) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open(0), false),
                other => (other, true),
            },
            false => (open(0), false),
        };
        let (file, facts) = opened.map_err(|e| path_error("open for reading", path, e))?;
        // A ring would apply the flag to its reads.
        sys::clear_nonblock(&file, direct).map_err(|e| path_error("clear O_NONBLOCK of", path, e))?;
        // Larger or unsuitable block sizes are detected by refused reads.
        let told = facts.direct_alignment.filter(|n| n.is_power_of_two() && *n <= ALIGNMENT as u64);
        if !direct {
            // Point lookups: the kernel's readahead would read many times the requested bytes. Scans call prefetch.
            sys::advise(&file, 0, 0, Advice::Random);
        }
        Ok(Self {
            file,
            path: path.to_path_buf(),
            size: facts.size,
            mode: facts.mode,
            direct: AtomicBool::new(direct),
            told,
            block: AtomicU64::new(told.unwrap_or(BLOCK_BYTES_MIN).max(BLOCK_BYTES_MIN)),
        })
    }

    #[cold]
    fn error(&self, offset: u64, cause: io::Error) -> io::Error {
        path_error(format!("read at {offset} from"), &self.path, cause)
    }

    fn read_buffered(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error(offset + done as u64, e)),
            }
        }
        Ok(done)
    }

    fn read_direct(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let rest = &mut buf[done..];
            let block = self.block.load(Ordering::Relaxed);
            let aligned = at.is_multiple_of(block)
                && (rest.len() as u64).is_multiple_of(block)
                && rest.as_ptr().addr().is_multiple_of(ALIGNMENT);
            let read = if aligned { self.file.read_at(rest, at) } else { self.read_bounced(at, rest, block) };
            match read {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    // Saves the read that would only find the end, since a table's last block is read often.
                    if at + n as u64 == self.size {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The device's blocks are larger: once for each file.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && block < ALIGNMENT as u64 => {
                    self.block.store(ALIGNMENT as u64, Ordering::Relaxed);
                }
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    sys::clear_direct(&self.file).map_err(|e| self.error(at, e))?;
                    self.direct.store(false, Ordering::Relaxed);
                    return Ok(done + self.read_buffered(at, rest)?);
                }
                Err(e) => return Err(self.error(at, e)),
            }
        }
        Ok(done)
    }

    /// Reads the aligned range around the requested one, and copies the requested part.
    fn read_bounced(&self, offset: u64, out: &mut [u8], block: u64) -> io::Result<usize> {
        let start = offset & !(block - 1);
        let before = (offset - start) as usize;
        let wanted = out.len().min(BOUNCE_BYTES_MAX - before);
        let span = (before + wanted).next_multiple_of(block as usize);
        BOUNCE.with_borrow_mut(|bounce| {
            // Doubled, so that slowly rising sizes do not allocate each time.
            bounce.grow(span.next_power_of_two(), 0);
            let n = self.file.read_at(&mut bounce[..span], start)?;
            let usable = n.saturating_sub(before).min(wanted);
            out[..usable].copy_from_slice(&bounce[before..before + usable]);
            Ok(usable)
        })
    }
}

impl RandomAccessFile for PosixRandomAccessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        // Offsets come from files that may be damaged.
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > i64::MAX as u64 - ALIGNMENT as u64) {
            return Err(self.error(offset, io::Error::from_raw_os_error(libc::EINVAL)));
        }
        match self.is_direct() {
            true => self.read_direct(offset, buf),
            false => self.read_buffered(offset, buf),
        }
    }

    fn sends(&self) -> bool {
        // Past the page cache each piece would be read alone, while the socket waits.
        sys::CAN_SEND_FILES && !self.is_direct()
    }

    fn send_to(&self, offset: u64, len: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        sys::send_file(&self.file, offset, len, socket).map_err(|e| match e.kind() {
            // What the socket says, as it says it: whoever sends decides by the kind.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => e,
            _ => path_error(format!("send from {offset} on of"), &self.path, e),
        })
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn mode(&self) -> Option<u32> {
        Some(self.mode)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if !self.is_direct() && len > 0 {
            sys::advise(&self.file, offset, len, Advice::WillNeed);
        }
    }

    fn advise(&self, pattern: AccessPattern) {
        if !self.is_direct() {
            let advice = match pattern {
                AccessPattern::Normal => Advice::Normal,
                AccessPattern::Random => Advice::Random,
            };
            sys::advise(&self.file, 0, 0, advice);
        }
    }

    fn cached_bytes(&self) -> Option<u64> {
        sys::resident_bytes(&self.file, self.size).ok()
    }

    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    fn reads_device(&self) -> bool {
        // Checked only for logs that recovery keeps, so that opening a table costs no additional system call.
        self.is_direct() && self.told.is_some() && sys::direct_reads_are_direct(&self.file)
    }

    fn direct_alignment(&self) -> u64 {
        // An alignment that worked for one read is not guaranteed.
        self.told.map_or(ALIGNMENT as u64, |n| n.max(BLOCK_BYTES_MIN))
    }

    fn raw_fd(&self) -> Option<i32> {
        Some(self.file.as_raw_fd())
    }

    fn extents(&self) -> io::Result<FileExtents> {
        let extents = sys::extents(&self.file, self.size).and_then(|extents| {
            let device = std::os::unix::fs::MetadataExt::dev(&self.file.metadata()?);
            Ok(FileExtents { device, extents })
        });
        extents.map_err(|e| path_error("ask for the blocks of", &self.path, e))
    }

    fn ring(&self, limits: &BatchLimits) -> io::Result<BatchIo> {
        BatchIo::uring(limits)
    }
}

/// A file read from front to back.
#[derive(Debug)]
pub(super) struct PosixSequentialFile {
    file: File,
    path: PathBuf,
}

impl PosixSequentialFile {
    pub(super) fn open(fs: &PosixFileSystem, path: &Path) -> io::Result<Self> {
        let (file, _) = fs.open_for_reading(path, 0).map_err(|e| path_error("open for reading", path, e))?;
        sys::advise(&file, 0, 0, Advice::Sequential);
        Ok(Self { file, path: path.to_path_buf() })
    }
}

impl SequentialFile for PosixSequentialFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(buf) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(|e| path_error("read", &self.path, e)),
            }
        }
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        let failed = |e| path_error(format!("skip {n} bytes in"), &self.path, e);
        let by = i64::try_from(n).map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        self.file.seek(SeekFrom::Current(by)).map(drop).map_err(failed)
    }
}
