//! What only Linux has: advice about the page cache, and counters of tracepoints. `not_linux.rs` is the same elsewhere.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// `PERF_TYPE_TRACEPOINT`.
const TYPE_TRACEPOINT: u32 = 2;
/// `struct perf_event_attr`'s bit `inherit`: threads that are started later are counted too.
const FLAG_INHERIT: u64 = 1 << 1;
/// `PERF_FLAG_FD_CLOEXEC`.
const OPEN_CLOEXEC: libc::c_ulong = 8;

/// The first 64 bytes of the kernel's `perf_event_attr` (its first published size), which is enough here.
#[repr(C)]
#[derive(Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

/// Drops a file's clean pages from the page cache: later reads go to the device.
pub fn forget_cached(file: &fs::File) {
    // SAFETY: the descriptor is open; the call is advice, it changes no data and touches no memory of ours.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Begins to count a tracepoint in this thread, and in those that it and its threads start from now on.
pub(super) fn open_counter(tracepoint: u64) -> io::Result<OwnedFd> {
    let attributes = EventAttributes {
        kind: TYPE_TRACEPOINT,
        size: size_of::<EventAttributes>() as u32,
        config: tracepoint,
        flags: FLAG_INHERIT,
        ..EventAttributes::default()
    };
    let (this_process, any_cpu, no_group) = (0, -1, -1);
    // SAFETY: the attributes are readable for the size that they state; the kernel only reads them.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, this_process, any_cpu, no_group, OPEN_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is an open descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The count so far.
pub(super) fn read_counter(fd: &OwnedFd) -> u64 {
    let mut count = 0u64;
    // SAFETY: the descriptor is open and `count` has room for the eight bytes that are asked for.
    let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    if read == size_of::<u64>() as isize { count } else { 0 }
}
