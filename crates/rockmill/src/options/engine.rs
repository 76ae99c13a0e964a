//! Which engine merges, and how the kernel's is driven.
//!
//! Builds without the Cargo feature `kernel` have the same options, so that every build reads an option text and shows
//! an `Options` in the same way: `merge_engine=kernel`, `kernel_driver`, `kernel_merge_program` with its name
//! `builtin`, and what `page_cache.rs` makes of the engine. In such a build the engine says that it is missing
//! (`compaction/engine/no_kernel.rs`), and its memory is reported as 0. Setters that only this engine uses need the
//! feature. So does a program that was given as bytes, which has no text.

use std::fmt;
use std::path::PathBuf;

/// Options of the engines. They belong to the whole database, but may be given together with those of a column family,
/// to try an engine out.
pub(crate) const OPTIONS: [&str; 3] = ["merge_engine", "kernel_driver", PROGRAM];

/// The option that names a merge program.
pub(crate) const PROGRAM: &str = "kernel_merge_program";

/// The name of the built-in program; the empty name means the same.
const BUILT_IN: &str = "builtin";

/// From here on, the empty path is the only name of the built-in program.
pub(crate) fn empty_if_built_in(path: &mut PathBuf) {
    if path.as_os_str() == BUILT_IN {
        *path = PathBuf::new();
    }
}

/// How compactions read and merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MergeEngine {
    /// The best engine that the machine supports.
    #[default]
    Auto,
    /// Positioned reads, merge in user space. It works everywhere, and tests compare all others with it.
    Pread,
    /// io_uring: reads and writes are in flight during the merge. Without io_uring, `Pread` does its work.
    Uring,
    /// An eBPF program merges inside the kernel, on memory that it shares with this process; reads and writes as with
    /// `Uring`. `Auto` does its work where the machine cannot run it, and without the Cargo feature `kernel`.
    Kernel,
}

impl MergeEngine {
    /// All, in the order of help texts.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Pread, Self::Uring, Self::Kernel];

    /// The engine's name on the command line and in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pread => "pread",
            Self::Uring => "uring",
            Self::Kernel => "kernel",
        }
    }
}

impl fmt::Display for MergeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the engine `kernel` runs its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KernelDriver {
    /// `BPF_PROG_RUN` (Linux 6.9): one call for each output buffer.
    #[default]
    Run,
    /// Inside `io_uring_enter` (Linux 7.1).
    Loop,
}

impl KernelDriver {
    /// All, in the order of help texts.
    pub const ALL: [Self; 2] = [Self::Run, Self::Loop];

    /// The driver's name on the command line and in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Loop => "loop",
        }
    }
}

impl fmt::Display for KernelDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
