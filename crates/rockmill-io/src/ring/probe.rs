//! Whether io_uring is available, and if not, why, in one line for the log.

use super::{BatchLimits, arena::Arena, kernel::KernelQueue};
use crate::error::raw_os_error;
use std::fs;
use std::io;

/// The result of an attempt to use io_uring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchProbe {
    /// True when rings can be made here.
    pub available: bool,
    /// One line: what the kernel offers, or why there is nothing.
    pub reason: String,
}

impl BatchProbe {
    /// Nothing here, and why.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self { available: false, reason: reason.into() }
    }

    /// Creates a small ring and closes it.
    pub(crate) fn of_kernel() -> Self {
        let limits = BatchLimits { depth: 2, ..BatchLimits::default() };
        let made = Arena::new(1 << 20, false).and_then(|arena| KernelQueue::new(&limits, &arena));
        match made {
            Ok((_, registered, flags)) => {
                let refused = registered.refused.map_or(String::new(), |why| format!("; {why}"));
                Self { available: true, reason: format!("io_uring with {flags}{refused}") }
            }
            Err(e) => Self::unavailable(explain_setup(&e)),
        }
    }
}

fn number(path: &str) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Why a ring could not be made.
pub(crate) fn explain_setup(error: &io::Error) -> String {
    explain_setup_with(error, number("/proc/sys/kernel/io_uring_disabled"))
}

/// The same, with the value of the sysctl `kernel.io_uring_disabled`.
fn explain_setup_with(error: &io::Error, disabled: Option<i64>) -> String {
    match raw_os_error(error) {
        Some(libc::ENOSYS) => "this kernel has no io_uring (or a filter hides it): ENOSYS".to_string(),
        Some(libc::EPERM) => match disabled {
            Some(2) => "io_uring is switched off: sysctl kernel.io_uring_disabled = 2".to_string(),
            Some(1) => "io_uring is for privileged processes and one group only: sysctl kernel.io_uring_disabled = 1, \
                        kernel.io_uring_group"
                .to_string(),
            _ => "io_uring is forbidden here: a seccomp filter (as containers have) or a security module answers EPERM"
                .to_string(),
        },
        Some(libc::EACCES) => "io_uring is forbidden here: a filter or a security module answers EACCES".to_string(),
        Some(libc::ENOMEM) => {
            format!(
                "no memory for a ring: ENOMEM; limit on locked memory, as which it counts: {}",
                locked_memory_limit()
            )
        }
        Some(libc::EMFILE) => "no descriptor left for a ring in this process: EMFILE (ulimit -n)".to_string(),
        Some(libc::ENFILE) => "no descriptor left for a ring on this machine: ENFILE (fs.file-max)".to_string(),
        _ => format!("no ring: {error}"),
    }
}

/// Why memory or files were not registered.
pub(crate) fn explain_registration(error: &io::Error) -> String {
    match raw_os_error(error) {
        Some(libc::ENOMEM) => {
            format!("memory not registered (all of it): ENOMEM; limit on locked memory: {}", locked_memory_limit())
        }
        Some(libc::EPERM) => "memory or files not registered: EPERM; a restriction forbids it".to_string(),
        _ => format!("memory or files not registered: {error}"),
    }
}

/// A description of the limit on locked memory, from the kernel's own list.
fn locked_memory_limit() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|rest| rest.split_whitespace().next()) {
        Some(bytes) => format!("{bytes} bytes, ulimit -l"),
        None => "ulimit -l".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_own_line() {
        let why = |code, sysctl| explain_setup_with(&io::Error::from_raw_os_error(code), sysctl);
        let lines = [
            why(libc::ENOSYS, None),
            why(libc::EPERM, Some(2)),
            why(libc::EPERM, Some(1)),
            why(libc::EPERM, Some(0)),
            why(libc::EACCES, None),
            why(libc::ENOMEM, None),
            why(libc::EMFILE, None),
            why(libc::ENFILE, None),
            why(libc::EINVAL, None),
        ];
        for (i, line) in lines.iter().enumerate() {
            assert!(!line.contains('\n'), "{line}");
            assert!(!lines[..i].contains(line), "{line}");
        }
        assert!(lines[0].contains("no io_uring"), "{}", lines[0]);
        assert!(lines[1].contains("io_uring_disabled = 2"), "{}", lines[1]);
        assert!(lines[2].contains("io_uring_group"), "{}", lines[2]);
        assert!(lines[3].contains("seccomp"), "{}", lines[3]);
        assert!(lines[5].contains("locked memory"), "{}", lines[5]);
    }

    #[test]
    fn the_limit_on_locked_memory_is_named() {
        let line = explain_registration(&io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(line.contains("bytes, ulimit -l"), "{line}");
    }
}
