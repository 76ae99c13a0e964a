//! Linux-specific calls of the file system.

use super::{Advice, FileFacts, check};
use crate::fs::FileExtent;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Transfers past the page cache.
pub(in crate::posix) const O_DIRECT: libc::c_int = libc::O_DIRECT;
/// Opens a directory for looking up names in it, which does not require read permission.
pub(in crate::posix) const O_PATH: libc::c_int = libc::O_PATH;

/// 64 bits even if `off_t` has 32.
fn offset(n: u64) -> libc::off64_t {
    libc::off64_t::try_from(n).unwrap_or(libc::off64_t::MAX)
}

/// posix_fadvise. Only a hint: failures are ignored.
pub(in crate::posix) fn advise(file: &File, start: u64, len: u64, advice: Advice) {
    let advice = match advice {
        Advice::Normal => libc::POSIX_FADV_NORMAL,
        Advice::Random => libc::POSIX_FADV_RANDOM,
        Advice::Sequential => libc::POSIX_FADV_SEQUENTIAL,
        Advice::WillNeed => libc::POSIX_FADV_WILLNEED,
    };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    unsafe { libc::posix_fadvise64(file.as_raw_fd(), offset(start), offset(len), advice) };
}

/// There is a call that sends a file without copying it.
pub(in crate::posix) const CAN_SEND_FILES: bool = true;

/// Sends bytes of a file to a socket (sendfile). The calling thread gets no SIGPIPE from then on: unlike `send`, the
/// call has no flag against it, and programs that are not in Rust may not ignore it.
pub(in crate::posix) fn send_file(file: &File, at: u64, len: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
    block_broken_pipe();
    let mut at = libc::off64_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: both descriptors are open as long as `file` and `socket` live; `at` is a number that the call may change.
    let sent = unsafe { libc::sendfile64(socket.as_raw_fd(), file.as_raw_fd(), &raw mut at, len) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Blocks SIGPIPE in the calling thread, once.
fn block_broken_pipe() {
    thread_local! {
        static IS_BLOCKED: Cell<bool> = const { Cell::new(false) };
    }
    if IS_BLOCKED.replace(true) {
        return;
    }
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `signals` is writable memory of the right type, which the first call fills; the last one changes the mask
    // of this thread alone, and may be given no place for the old one.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), ptr::null_mut());
    }
}

/// Sends bytes to a stream socket to which more will be sent at once: the kernel may wait for that before it makes a
/// packet (`MSG_MORE`). Returns how many it took.
///
/// # Errors
/// Those of `send`.
pub fn send_more(socket: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open as long as `socket` lives; `data` is readable memory of this length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), data.as_ptr().cast(), data.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Bytes whose presence in the page cache is checked at a time.
const RESIDENT_PIECE: u64 = 256 << 20;

/// How many of the file's first `len` bytes are in the page cache, in whole pages (mincore). For a file that this user
/// neither owns nor may write, the kernel reports everything as present.
pub(in crate::posix) fn resident_bytes(file: &File, len: u64) -> io::Result<u64> {
    // SAFETY: sysconf takes and gives integers.
    let page = check_size(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
    let (mut there, mut at) = (0, 0);
    while at < len {
        let piece = (len - at).min(RESIDENT_PIECE) as usize;
        let mut pages = vec![0u8; piece.div_ceil(page)];
        // SAFETY: a mapping of its own at a place that the kernel chooses, which nobody reads.
        let start = unsafe {
            libc::mmap64(ptr::null_mut(), piece, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd(), offset(at))
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `start` is a mapping of `piece` bytes, and `pages` has a byte for each of its pages.
        let told = check(unsafe { libc::mincore(start, piece, pages.as_mut_ptr()) });
        // SAFETY: the mapping made above, to which there are no references.
        check(unsafe { libc::munmap(start, piece) })?;
        told?;
        there += pages.iter().filter(|p| **p & 1 == 1).count() as u64 * page as u64;
        at += piece as u64;
    }
    Ok(there.min(len))
}

fn check_size(size: libc::c_long) -> io::Result<usize> {
    usize::try_from(size).ok().filter(|s| *s > 0).ok_or_else(io::Error::last_os_error)
}

/// Starts write-back of a range without waiting for it.
pub(in crate::posix) fn start_writeback(file: &File, start: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset(start), offset(len), flags) };
    check(result).map(drop)
}

/// Waits for write-back of a range that was started.
pub(in crate::posix) fn await_writeback(file: &File, start: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset(start), offset(len), flags) };
    check(result).map(drop)
}

/// Reserves blocks; with `extend`, the file's length grows to their end, otherwise it does not change.
pub(in crate::posix) fn preallocate(file: &File, start: u64, len: u64, extend: bool) -> io::Result<()> {
    let mode = if extend { 0 } else { libc::FALLOC_FL_KEEP_SIZE };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset(start), offset(len)) };
    check(result).map(drop)
}

/// Frees the blocks of a range without changing the file's length.
pub(in crate::posix) fn punch_hole(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset(start), offset(len)) };
    check(result).map(drop)
}

/// `f_type` of ext2, ext3 and ext4.
const EXT4_MAGIC: i64 = 0xEF53;
/// The same of XFS.
const XFS_MAGIC: i64 = 0x5846_5342;

/// Whether direct reads on this file system are known to return the device's contents, for files whose alignment
/// `facts` knows. Some others accept the flag but answer from the page cache (tmpfs; compressed files of btrfs). ext4
/// does that for files in its journal and with data in the inode, XFS never; both then report no alignment.
pub(in crate::posix) fn direct_reads_are_direct(file: &File) -> bool {
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open as long as `file` lives, and `stat` is writable memory of the right type.
    if unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstatfs succeeded and has filled it.
    let stat = unsafe { stat.assume_init() };
    #[allow(clippy::unnecessary_cast)] // Its type differs between platforms.
    let kind = stat.f_type as i64;
    kind == EXT4_MAGIC || kind == XFS_MAGIC
}

/// Extents that one call tells.
const EXTENTS_PER_CALL: usize = 64;
/// Most extents of a file that is worth reading by them.
const EXTENTS_MAX: usize = 1 << 16;
/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
/// What is not written back is, before the file system answers.
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
/// Shared with another file, and merged of smaller ones: nothing that matters to a reader. Whatever else may be said of
/// an extent does (not known, delayed, encoded, encrypted, not aligned, inline, in a tail, unwritten).
const FIEMAP_HARMLESS: u32 = FIEMAP_EXTENT_LAST | 0x1000 | 0x2000;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for some extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS_PER_CALL],
}

/// Where the first `size` bytes of a file lie on the device (FIEMAP). An error where they are not all in blocks that
/// can be read there. btrfs tells addresses of its own, which are of no device, so only ext4 and XFS are asked.
pub(in crate::posix) fn extents(file: &File, size: u64) -> io::Result<Vec<FileExtent>> {
    if !direct_reads_are_direct(file) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the file system is neither ext4 nor XFS"));
    }
    let no = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what.to_owned());
    let (mut found, mut at) = (Vec::new(), 0);
    while at < size {
        let mut map = Fiemap {
            start: at,
            length: size - at,
            flags: FIEMAP_FLAG_SYNC,
            mapped: 0,
            count: EXTENTS_PER_CALL as u32,
            reserved: 0,
            extents: [FiemapExtent::default(); EXTENTS_PER_CALL],
        };
        // SAFETY: the descriptor is open as long as `file` lives, and `map` has room for as many extents as it says.
        check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) })?;
        let mapped = map.extents.get(..map.mapped as usize).unwrap_or_default();
        if mapped.is_empty() || found.len() > EXTENTS_MAX {
            return Err(no("the file has a hole, or very many extents"));
        }
        for extent in mapped {
            if extent.flags & !FIEMAP_HARMLESS != 0 {
                return Err(no("a part of the file is in no blocks that can be read on the device"));
            }
            // The first one of a call may begin before what was asked for.
            let before = at.checked_sub(extent.logical).filter(|before| *before < extent.length);
            let before = before.ok_or_else(|| no("the file has a hole"))?;
            let len = extent.length - before;
            found.push(FileExtent { offset: at, device_offset: extent.physical.saturating_add(before), len });
            at = at.saturating_add(len);
        }
    }
    Ok(found)
}

/// Gets a file's kind, its length and the alignment of direct transfers (statx).
pub(in crate::posix) fn facts(file: &File) -> io::Result<FileFacts> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) =
        (libc::AT_EMPTY_PATH, libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_SIZE | libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty C string, which with the flag means the descriptor, open as long as `file` lives;
    // `stat` is writable memory of the right type.
    check(unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, stat.as_mut_ptr()) })?;
    // SAFETY: plain integers that were zeroed, and filled as far as the kernel knows them.
    let stat = unsafe { stat.assume_init() };
    let told = stat.stx_mask & libc::STATX_DIOALIGN != 0;
    let direct_alignment = told.then_some(u64::from(stat.stx_dio_offset_align)).filter(|n| *n > 0);
    let is_regular = libc::mode_t::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    let mode = u32::from(stat.stx_mode) & 0o777;
    Ok(FileFacts { size: stat.stx_size, mode, is_regular, direct_alignment })
}

/// Makes the calling thread stand back: when it is woken, it waits until the thread that has the core has used its
/// slice, instead of taking the core (`SCHED_BATCH`). For threads whose work may come a little later than that of
/// users. Needs no permission; where it is not possible, nothing changes.
pub fn stand_back() {
    // No priority. Some C libraries have more fields.
    let none = MaybeUninit::<libc::sched_param>::zeroed();
    // SAFETY: 0 is the calling thread; the structure is numbers, for which zeros are right, and lives until the call
    // returns.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, none.as_ptr()) };
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u64 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::gettid() as u64 }
}

/// The thread's errno.
pub(super) fn errno() -> *mut libc::c_int {
    // SAFETY: no arguments; the place is the thread's own.
    unsafe { libc::__errno_location() }
}

/// Numbers of a device.
pub(in crate::posix) fn device_numbers(device: u64) -> Option<(u32, u32)> {
    Some((libc::major(device), libc::minor(device)))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::ptr;

    /// A program that is not in Rust may not ignore the signal, and would end.
    #[test]
    fn a_peer_that_is_gone_raises_no_signal() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100]).unwrap();
        let is_blocked = || {
            let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: `mask` is writable memory of the right type, which the first call fills and the second reads.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
                libc::sigismember(mask.as_ptr(), libc::SIGPIPE) == 1
            }
        };
        let sends = std::thread::spawn(move || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(theirs);
            let before = is_blocked();
            let e = super::send_file(&file, 0, 100, ours.as_fd()).unwrap_err();
            let more = super::send_more(ours.as_fd(), b"header").unwrap_err();
            (before, e.kind(), more.kind(), is_blocked())
        });
        assert_eq!(sends.join().unwrap(), (false, ErrorKind::BrokenPipe, ErrorKind::BrokenPipe, true));
        assert!(!is_blocked(), "in no other thread");
    }

    #[test]
    fn a_thread_that_stands_back_is_a_batch_thread_alone() {
        // SAFETY: 0 is the calling thread; the call takes and returns a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let there = std::thread::spawn(move || {
            super::stand_back();
            policy()
        });
        assert_eq!(there.join().unwrap(), libc::SCHED_BATCH);
        assert_eq!(policy(), before, "the thread that started it");
    }
}
