//! What stands for rings of io_uring where there are none: on every system but Linux, and on processors for which
//! nobody has written down the kernel's structures.

use super::arena::Arena;
use super::queue::{Done, Op, Queue, QueueCounts};
use super::{BatchLimits, Registered};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

/// A queue that cannot be made.
#[derive(Debug)]
pub(super) struct KernelQueue(Infallible);

impl KernelQueue {
    /// Always fails.
    pub(super) fn new(_limits: &BatchLimits, _arena: &Arc<Arena>) -> io::Result<(Self, Registered, &'static str)> {
        let why = match cfg!(target_os = "linux") {
            true => "io_uring is not used on this kind of processor",
            false => "io_uring is Linux's, and this is another system",
        };
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }
}

impl Queue for KernelQueue {
    fn depth(&self) -> usize {
        match self.0 {}
    }

    fn push(&mut self, _op: Op) {
        match self.0 {}
    }

    fn submit(&mut self) -> io::Result<()> {
        match self.0 {}
    }

    fn reap(&mut self, _wait: usize, _wanted: u64, _done: &mut Vec<Done>) -> io::Result<()> {
        match self.0 {}
    }

    fn unsubmitted(&self) -> usize {
        match self.0 {}
    }

    fn counts(&self) -> QueueCounts {
        match self.0 {}
    }
}
