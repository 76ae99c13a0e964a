//! Which engine merges, and how the kernel's is driven.

use std::fmt;

pub use rockmill_kernel::Driver as KernelDriver;

/// How compactions read and merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergeEngine {
    /// The best one that the machine allows.
    #[default]
    Auto,
    /// Positioned reads, merge in user space: always there, the oracle of all others.
    Pread,
    /// io_uring: reads and writes in flight while the merge goes on. `Pread` does its work where there is none.
    Uring,
    /// An eBPF program merges inside the kernel, on memory that it shares with this process; reads and writes as with
    /// `Uring`. Where there is none, `Auto` does its work.
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
