//! Replacements of Linux-specific calls on other systems: hints without effect, and calls that fail as on a file system
//! without support, so that callers use their fallbacks.

use super::{Advice, FileFacts};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// There are no transfers past the page cache.
pub(in crate::posix) const O_DIRECT: libc::c_int = 0;
/// Here, a directory must be readable to look up names in it.
pub(in crate::posix) const O_PATH: libc::c_int = libc::O_RDONLY;

fn refused<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Nothing: it is only a hint.
pub(in crate::posix) fn advise(_file: &File, _start: u64, _len: u64, _advice: Advice) {}

/// Not known.
pub(in crate::posix) fn resident_bytes(_file: &File, _len: u64) -> io::Result<u64> {
    refused()
}

/// Refused.
pub(in crate::posix) fn start_writeback(_file: &File, _start: u64, _len: u64) -> io::Result<()> {
    refused()
}

/// Refused.
pub(in crate::posix) fn await_writeback(_file: &File, _start: u64, _len: u64) -> io::Result<()> {
    refused()
}

/// Refused.
pub(in crate::posix) fn preallocate(_file: &File, _start: u64, _len: u64, _extend: bool) -> io::Result<()> {
    refused()
}

/// Refused.
pub(in crate::posix) fn punch_hole(_file: &File, _start: u64, _len: u64) -> io::Result<()> {
    refused()
}

/// Refused.
pub(in crate::posix) fn extents(_file: &File, _size: u64) -> io::Result<Vec<crate::fs::FileExtent>> {
    refused()
}

/// Files are read and sent.
pub(in crate::posix) const CAN_SEND_FILES: bool = false;

/// Refused.
pub(in crate::posix) fn send_file(_: &File, _: u64, _: usize, _: BorrowedFd<'_>) -> io::Result<usize> {
    refused()
}

/// Sends bytes to a stream socket to which more will be sent at once, as any others. Returns how many it took.
///
/// # Errors
/// Those of `send`.
pub fn send_more(socket: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
    // SAFETY: the descriptor is open as long as `socket` lives; `data` is readable memory of this length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), data.as_ptr().cast(), data.len(), 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// No read is direct.
pub(in crate::posix) fn direct_reads_are_direct(_file: &File) -> bool {
    false
}

/// Asks a file's kind and its length.
pub(in crate::posix) fn facts(file: &File) -> io::Result<FileFacts> {
    let meta = file.metadata()?;
    Ok(FileFacts { size: meta.len(), mode: meta.mode() & 0o777, is_regular: meta.is_file(), direct_alignment: None })
}

/// Makes the calling thread stand back, which this system has no simple way for: nothing changes.
pub fn stand_back() {}

/// The system's number of the calling thread; 0 if there is none.
pub fn thread_id() -> u64 {
    #[cfg(target_vendor = "apple")]
    {
        let mut id = 0;
        // SAFETY: 0 stands for the calling thread, and `id` is writable memory of the right type.
        unsafe { libc::pthread_threadid_np(0, &raw mut id) };
        id
    }
    #[cfg(not(target_vendor = "apple"))]
    0
}

/// The thread's errno.
pub(super) fn errno() -> *mut libc::c_int {
    // SAFETY: no arguments; the place is the thread's own.
    unsafe { libc::__error() }
}

/// Not supported: nothing is known about devices here.
pub(in crate::posix) fn device_numbers(_device: u64) -> Option<(u32, u32)> {
    None
}
