//! The system calls that `std` does not offer: all `unsafe` of the POSIX file system.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

pub(super) use system::{
    CAN_SEND_FILES, O_DIRECT, O_PATH, advise, await_writeback, device_numbers, direct_reads_are_direct, extents, facts,
    preallocate, punch_hole, resident_bytes, send_file, start_writeback,
};
pub use system::{send_more, stand_back, thread_id};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Access pattern told to the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Advice {
    Normal,
    Random,
    Sequential,
    WillNeed,
}

/// Makes calls on a file that was opened with O_NONBLOCK blocking again; `direct` if it was opened with O_DIRECT.
pub(super) fn clear_nonblock(file: &File, direct: bool) -> io::Result<()> {
    let flags = if direct { O_DIRECT } else { 0 };
    // SAFETY: F_SETFL takes an integer; the descriptor is open as long as `file` lives.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
}

/// Removes O_DIRECT from an open file whose file system accepted the flag but refuses the transfers.
pub(super) fn clear_direct(file: &File) -> io::Result<()> {
    // SAFETY: F_GETFL gives an integer; the descriptor is open as long as `file` lives.
    let flags = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: F_SETFL takes an integer; the descriptor is open as long as `file` lives.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !O_DIRECT) }).map(drop)
}

/// Closes the file and returns the error that dropping a `File` ignores: some file systems report a lost write only
/// here.
pub(super) fn close(file: File) -> io::Result<()> {
    let fd = file.into_raw_fd();
    // SAFETY: `into_raw_fd` gave the only ownership of an open descriptor.
    match check(unsafe { libc::close(fd) }) {
        // Linux has nevertheless released the descriptor; closing again could close another thread's file.
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
    /// Its permission bits.
    pub mode: u32,
    /// True if it is not a directory, link, device, pipe or socket.
    pub is_regular: bool,
    /// Required alignment of offsets and lengths of direct transfers; `None` if the kernel (before 6.1) or the file
    /// system does not tell.
    pub direct_alignment: Option<u64>,
}

/// A name in an open directory, or a path.
#[derive(Debug)]
pub(super) struct At {
    dir: Option<OwnedFd>,
    name: CString,
}

impl At {
    /// A path, as the process sees it.
    pub(super) fn path(path: &Path) -> io::Result<Self> {
        Ok(Self { dir: None, name: CString::new(path.as_os_str().as_bytes())? })
    }

    /// A name in a directory.
    pub(super) fn below(dir: OwnedFd, name: &std::ffi::OsStr) -> io::Result<Self> {
        Ok(Self { dir: Some(dir), name: CString::new(name.as_bytes())? })
    }

    fn fd(&self) -> libc::c_int {
        self.dir.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd)
    }
}

/// Opens; the descriptor is closed in programs that this process starts.
pub(super) fn open_at(at: &At, flags: libc::c_int, mode: u32) -> io::Result<File> {
    let flags = flags | libc::O_CLOEXEC;
    loop {
        // SAFETY: the name ends in NUL; the directory is open as long as `at` lives.
        match check(unsafe { libc::openat(at.fd(), at.name.as_ptr(), flags, mode) }) {
            // SAFETY: a new descriptor that nobody else has.
            Ok(fd) => return Ok(unsafe { File::from_raw_fd(fd) }),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// What stat says of a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stat {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Seconds since the epoch.
    pub modified: i64,
    pub device: u64,
    pub inode: u64,
    /// How many names it has.
    pub names: u64,
}

impl Stat {
    #[allow(clippy::unnecessary_cast)] // The type's width differs between platforms.
    pub(super) fn is(&self, kind: libc::mode_t) -> bool {
        self.mode & libc::S_IFMT as u32 == kind as u32
    }

    #[allow(clippy::unnecessary_cast)] // The fields' widths differ between platforms.
    fn of(stat: &libc::stat) -> Self {
        Self {
            mode: stat.st_mode as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            modified: stat.st_mtime as i64,
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            names: stat.st_nlink as u64,
        }
    }
}

/// Gets the status of a name; with `follow`, of a link's target.
pub(super) fn stat_at(at: &At, follow: bool) -> io::Result<Stat> {
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the name ends in NUL, the directory is open as long as `at` lives; `stat` is writable memory of the right
    // type.
    check(unsafe { libc::fstatat(at.fd(), at.name.as_ptr(), stat.as_mut_ptr(), flags) })?;
    // SAFETY: fstatat succeeded and has filled it.
    Ok(Stat::of(unsafe { stat.assume_init_ref() }))
}

/// Removes a name; with `dir`, that of an empty directory.
pub(super) fn unlink_at(at: &At, dir: bool) -> io::Result<()> {
    let flags = if dir { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name ends in NUL; the directory is open as long as `at` lives.
    check(unsafe { libc::unlinkat(at.fd(), at.name.as_ptr(), flags) }).map(drop)
}

/// Gives a name to what has another.
pub(super) fn rename_at(from: &At, to: &At) -> io::Result<()> {
    // SAFETY: the names end in NUL; the directories are open as long as both live.
    check(unsafe { libc::renameat(from.fd(), from.name.as_ptr(), to.fd(), to.name.as_ptr()) }).map(drop)
}

/// Creates a second name; for a link, of the link itself.
pub(super) fn link_at(from: &At, to: &At) -> io::Result<()> {
    // SAFETY: the names end in NUL; the directories are open as long as both live.
    check(unsafe { libc::linkat(from.fd(), from.name.as_ptr(), to.fd(), to.name.as_ptr(), 0) }).map(drop)
}

/// Makes a directory.
#[allow(clippy::unnecessary_cast)] // The type's width differs between platforms.
pub(super) fn mkdir_at(at: &At, mode: u32) -> io::Result<()> {
    // SAFETY: the name ends in NUL; the directory is open as long as `at` lives.
    check(unsafe { libc::mkdirat(at.fd(), at.name.as_ptr(), mode as libc::mode_t) }).map(drop)
}

/// Changes the user and group of a name's file; for a link, of the link itself.
pub(super) fn chown_at(at: &At, uid: u32, gid: u32) -> io::Result<()> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the name ends in NUL; the directory is open as long as `at` lives.
    check(unsafe { libc::fchownat(at.fd(), at.name.as_ptr(), uid, gid, flags) }).map(drop)
}

/// The effective user and group of the process.
pub(super) fn effective_ids() -> (u32, u32) {
    // SAFETY: no arguments, no memory; both always succeed.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The names in an open directory, without `.` and `..`.
pub(super) fn names_in(dir: File) -> io::Result<Vec<String>> {
    let fd = dir.into_raw_fd();
    // SAFETY: `into_raw_fd` gave the only ownership of an open descriptor, which the stream takes over.
    let stream = unsafe { libc::fdopendir(fd) };
    if stream.is_null() {
        let error = io::Error::last_os_error();
        // SAFETY: the call failed and left the descriptor with us.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        return Err(error);
    }
    let mut names = Vec::new();
    let result = loop {
        // SAFETY: the thread's errno is plain writable memory. It tells an error from the end.
        unsafe { *system::errno() = 0 };
        // SAFETY: the stream is open, and only this thread has it.
        let entry = unsafe { libc::readdir(stream) };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            break if error.raw_os_error() == Some(0) { Ok(()) } else { Err(error) };
        }
        // SAFETY: the entry is good until the next call on the stream, and its name ends in NUL.
        let name = unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) };
        if name != c"." && name != c".." {
            // A name that is not UTF-8 is not one of the store's files; a lossy conversion is enough to show it.
            names.push(name.to_string_lossy().into_owned());
        }
    };
    // SAFETY: the stream is open and is used no more.
    unsafe { libc::closedir(stream) };
    result.map(|()| names)
}

#[allow(clippy::unnecessary_cast)] // The constants' types differ between platforms.
fn whole_file(kind: i64) -> libc::flock {
    // SAFETY: flock is plain integers, for which zero is a value.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request
}

/// F_SETLK for writing on the whole file: the lock RocksDB takes.
pub(super) fn try_lock(file: &File) -> io::Result<()> {
    let request = whole_file(libc::F_WRLCK.into());
    // SAFETY: `request` is a valid flock, only read.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) }).map(drop)
}

/// Releases it.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    let request = whole_file(libc::F_UNLCK.into());
    // SAFETY: `request` is a valid flock, only read.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) }).map(drop)
}

/// The process that holds the lock, if one does now.
pub(super) fn lock_holder(file: &File) -> Option<i32> {
    let mut request = whole_file(libc::F_WRLCK.into());
    // SAFETY: `request` is a valid flock that the kernel overwrites.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) }).ok()?;
    (i64::from(request.l_type) != i64::from(libc::F_UNLCK)).then_some(request.l_pid)
}

/// A moment in local time.
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
    // Where a `time_t` has 32 bits, it ends in 2038.
    #[allow(clippy::unnecessary_fallible_conversions)] // not everywhere
    let seconds = libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX);
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
