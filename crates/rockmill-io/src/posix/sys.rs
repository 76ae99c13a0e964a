//! The system calls that `std` does not offer: all `unsafe` of the POSIX file system.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn offset(n: u64) -> libc::off_t {
    libc::off_t::try_from(n).unwrap_or(libc::off_t::MAX)
}

/// Access pattern told to the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Advice {
    Normal,
    Random,
    Sequential,
    WillNeed,
}

/// posix_fadvise. Only a hint: a failure is of no consequence.
pub(super) fn advise(file: &File, start: u64, len: u64, advice: Advice) {
    let advice = match advice {
        Advice::Normal => libc::POSIX_FADV_NORMAL,
        Advice::Random => libc::POSIX_FADV_RANDOM,
        Advice::Sequential => libc::POSIX_FADV_SEQUENTIAL,
        Advice::WillNeed => libc::POSIX_FADV_WILLNEED,
    };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset(start), offset(len), advice) };
}

/// Starts write-back of a range without waiting for it.
pub(super) fn start_writeback(file: &File, start: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset(start), offset(len), flags) };
    check(result).map(drop)
}

/// Waits for write-back of a range that was started.
pub(super) fn await_writeback(file: &File, start: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset(start), offset(len), flags) };
    check(result).map(drop)
}

/// Reserves blocks; with `extend` the file becomes so long, otherwise its length stays.
pub(super) fn preallocate(file: &File, start: u64, len: u64, extend: bool) -> io::Result<()> {
    let mode = if extend { 0 } else { libc::FALLOC_FL_KEEP_SIZE };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset(start), offset(len)) };
    check(result).map(drop)
}

/// Frees the blocks of a range without changing the file's length.
pub(super) fn punch_hole(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` lives.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset(start), offset(len)) };
    check(result).map(drop)
}

/// Takes O_DIRECT off an open file whose file system accepted the flag but refuses the transfers.
pub(super) fn clear_direct(file: &File) -> io::Result<()> {
    // SAFETY: F_GETFL gives an integer; the descriptor is open as long as `file` lives.
    let flags = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: F_SETFL takes an integer; the descriptor is open as long as `file` lives.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) }).map(drop)
}

/// Closes and tells the error that dropping a `File` swallows: some file systems report a lost write only here.
pub(super) fn close(file: File) -> io::Result<()> {
    let fd = file.into_raw_fd();
    // SAFETY: `into_raw_fd` gave the only ownership of an open descriptor.
    match check(unsafe { libc::close(fd) }) {
        // Linux has released the descriptor even so; closing again could hit another thread's file.
        Err(e) if e.raw_os_error() == Some(libc::EINTR) => Ok(()),
        other => other.map(drop),
    }
}

/// Free bytes for an ordinary user.
pub(super) fn free_space(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in NUL and `stat` is writable memory of the right type.
    check(unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) })?;
    // SAFETY: statvfs succeeded and has filled it.
    let stat = unsafe { stat.assume_init() };
    #[allow(clippy::unnecessary_cast)] // The fields' widths differ between platforms.
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

/// What a file says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileFacts {
    /// Its length in bytes.
    pub size: u64,
    /// To a multiple of what offsets and lengths of direct transfers must be; `None` where the kernel (before 6.1) or
    /// the file system does not say.
    pub direct_alignment: Option<u64>,
}

/// Asks a file's length and how direct transfers must be aligned (statx).
pub(super) fn facts(file: &File) -> io::Result<FileFacts> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_SIZE | libc::STATX_DIOALIGN);
    // SAFETY: the path is an empty C string, which with the flag means the descriptor, open as long as `file` lives;
    // `stat` is writable memory of the right type.
    check(unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, stat.as_mut_ptr()) })?;
    // SAFETY: plain integers that were zeroed, and filled as far as the kernel knows them.
    let stat = unsafe { stat.assume_init() };
    let told = stat.stx_mask & libc::STATX_DIOALIGN != 0;
    let direct_alignment = told.then_some(u64::from(stat.stx_dio_offset_align)).filter(|n| *n > 0);
    Ok(FileFacts { size: stat.stx_size, direct_alignment })
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: flock is plain integers, for which zero is a value.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request
}

/// F_SETLK for writing on the whole file: the lock RocksDB takes.
pub(super) fn try_lock(file: &File) -> io::Result<()> {
    let request = whole_file(libc::F_WRLCK);
    // SAFETY: `request` is a valid flock, only read.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) }).map(drop)
}

/// Releases it.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    let request = whole_file(libc::F_UNLCK);
    // SAFETY: `request` is a valid flock, only read.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) }).map(drop)
}

/// The process that holds the lock, if one does now.
pub(super) fn lock_holder(file: &File) -> Option<i32> {
    let mut request = whole_file(libc::F_WRLCK);
    // SAFETY: `request` is a valid flock that the kernel overwrites.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) }).ok()?;
    (libc::c_int::from(request.l_type) != libc::F_UNLCK).then_some(request.l_pid)
}

/// A moment as the clock on the wall shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LocalTime {
    pub year: i32,
    pub month: i32,
    pub day: i32,
    pub hour: i32,
    pub minute: i32,
    pub second: i32,
}

/// The local time of a moment, given in seconds since the Unix epoch.
pub fn local_time(seconds: i64) -> LocalTime {
    let mut tm = MaybeUninit::<libc::tm>::zeroed();
    let seconds: libc::time_t = seconds;
    // SAFETY: both pointers are to live memory of the right types; `tm` is plain data, for which zeroes are a value.
    let tm = unsafe {
        libc::localtime_r(&seconds, tm.as_mut_ptr());
        tm.assume_init()
    };
    LocalTime {
        year: tm.tm_year + 1900,
        month: tm.tm_mon + 1,
        day: tm.tm_mday,
        hour: tm.tm_hour,
        minute: tm.tm_min,
        second: tm.tm_sec,
    }
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> u64 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::gettid() as u64 }
}
