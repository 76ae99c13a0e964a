//! What the system calls of this crate are asked and answer, with eBPF and without.

use std::io;

/// Why a program was not loaded.
#[derive(Debug)]
pub struct Refused {
    /// What the kernel said.
    pub error: io::Error,
    /// The verifier's log; empty if the verifier did not run.
    pub log: String,
}

/// What the kernel gives numbers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thing {
    /// A program that the verifier has accepted.
    Program,
    /// A map: an arena, or operations of a ring.
    Map,
    /// What attaches operations to a ring.
    Link,
}
