//! Measurements by the kernel, through calls that the standard library does not have. `unsafe` of the crate is here,
//! in `kernel/linux.rs`, in the peer LMDB and in what loads libnfs (`offload/nfs/libnfs.rs`).

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
#[path = "kernel/not_linux.rs"]
mod linux;

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub use linux::forget_cached;

const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// CPU time and context switches of this process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUse {
    /// CPU time outside the kernel, all threads.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// How often a thread gave up its core because it waited.
    pub voluntary_switches: u64,
    /// How often a core was taken from a thread.
    pub involuntary_switches: u64,
}

/// The resource use of this process; zeros if the kernel does not tell.
pub fn resource_use() -> ResourceUse {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place for one `rusage`, and `getrusage` writes nothing else.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0;
    if failed {
        return ResourceUse::default();
    }
    // SAFETY: the call succeeded, so it filled the structure, which was zeroed and is valid either way.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| Duration::from_micros(t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64);
    ResourceUse {
        user: time(usage.ru_utime),
        system: time(usage.ru_stime),
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

/// Writes all dirty data of file systems to disk, so that one side's writes are not part of the next one's figures.
pub fn sync_disks() {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::sync() };
}

/// Returns free memory to the kernel, so that one side's heap is not part of the next one's peak.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: may be called at any time; it only returns free pages.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Counts the process's system calls by name, through the kernel's tracepoints.
#[derive(Debug)]
pub struct SyscallCounters {
    counters: Vec<(&'static str, OwnedFd)>,
}

/// Calls that stores make, and `all`; the difference is the other calls.
const CALLS: [(&str, &str); 19] = [
    ("all", "raw_syscalls/sys_enter"),
    ("read", "syscalls/sys_enter_read"),
    ("pread64", "syscalls/sys_enter_pread64"),
    ("preadv", "syscalls/sys_enter_preadv"),
    ("preadv2", "syscalls/sys_enter_preadv2"),
    ("write", "syscalls/sys_enter_write"),
    ("pwrite64", "syscalls/sys_enter_pwrite64"),
    ("pwritev2", "syscalls/sys_enter_pwritev2"),
    ("fsync", "syscalls/sys_enter_fsync"),
    ("fdatasync", "syscalls/sys_enter_fdatasync"),
    ("sync_file_range", "syscalls/sys_enter_sync_file_range"),
    ("fallocate", "syscalls/sys_enter_fallocate"),
    ("fadvise64", "syscalls/sys_enter_fadvise64"),
    ("openat", "syscalls/sys_enter_openat"),
    ("close", "syscalls/sys_enter_close"),
    ("futex", "syscalls/sys_enter_futex"),
    ("io_uring_enter", "syscalls/sys_enter_io_uring_enter"),
    ("clock_nanosleep", "syscalls/sys_enter_clock_nanosleep"),
    ("mmap", "syscalls/sys_enter_mmap"),
];

impl SyscallCounters {
    /// Begins to count in this thread and all threads that it and its threads start from now on. The error tells the
    /// reason and a remedy.
    pub fn start() -> Result<Self, String> {
        let Some(root) = TRACEFS.iter().find(|dir| fs::exists(format!("{dir}/events")).unwrap_or(false)) else {
            return Err(
                "tracefs is not mounted or not readable (mount -t tracefs nodev /sys/kernel/tracing)".to_owned()
            );
        };
        let mut counters = Vec::new();
        for (name, event) in CALLS {
            let path = format!("{root}/events/{event}/id");
            let id = match fs::read_to_string(&path).map(|t| t.trim().parse::<u64>()) {
                Ok(Ok(id)) => id,
                // The total must exist; a kernel may lack single calls.
                _ if name != "all" => continue,
                _ => return Err(format!("{path} cannot be read")),
            };
            match linux::open_counter(id) {
                Ok(fd) => counters.push((name, fd)),
                Err(e) => {
                    return Err(format!("perf_event_open: {e} (needs CAP_PERFMON or kernel.perf_event_paranoid -1)"));
                }
            }
        }
        Ok(Self { counters })
    }

    /// The counts so far.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        self.counters.iter().map(|(name, fd)| (*name, linux::read_counter(fd))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_and_cpu_are_counted() {
        let before = resource_use();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let after = resource_use();
        assert!(after.voluntary_switches >= before.voluntary_switches + 5, "{before:?} {after:?}");
        assert!(after.user + after.system >= before.user + before.system);
    }

    #[test]
    fn system_calls_of_threads_are_counted_by_name() {
        let counters = match SyscallCounters::start() {
            Ok(c) => c,
            Err(why) => {
                let missing = rockmill_skip::Needs::Perf.because(why);
                return rockmill_skip::skip("system_calls_of_threads_are_counted_by_name", &missing);
            }
        };
        let of = |name: &str| counters.read().iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        let (before, all_before) = (of("pread64"), of("all"));
        std::thread::spawn(|| {
            use std::os::unix::fs::FileExt;
            let file = fs::File::open("/proc/self/stat").expect("proc");
            for _ in 0..37 {
                file.read_at(&mut [0; 1], 0).expect("a read");
            }
        })
        .join()
        .expect("the thread");
        assert_eq!(of("pread64") - before, 37);
        assert!(of("all") - all_before >= 37);
    }
}
