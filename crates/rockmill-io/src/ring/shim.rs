//! A layer between transfers and their queue that manipulates completions: short, interrupted, refused, late. For tests
//! of the real ring; everything below it is real.

use super::Registered;
#[cfg(feature = "program")]
use super::program_slot::CompletionPlaces;
use super::queue::{Action, BatchFile, Done, Op, Queue, QueueCounts};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// An operation as the shim's function sees it.
#[derive(Debug, Clone, Copy)]
pub struct ShimOp<'a> {
    /// How many there were before.
    pub number: u64,
    /// True for a read, false for a write or sync.
    pub read: bool,
    /// A sync.
    pub sync: bool,
    /// The file.
    pub path: &'a Path,
    /// Where in it.
    pub offset: u64,
    /// Bytes to transfer.
    pub len: usize,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    /// What the queue makes of it.
    No,
    /// At most this many bytes are transferred, at least one.
    Short(usize),
    /// It is not executed, and completes with this `errno`.
    Refuse(i32),
    /// It is executed, but nevertheless completes with this `errno`.
    FailAfter(i32),
    /// It completes after this many others, or when none is left.
    Late(u32),
}

/// The function that decides.
pub type Shim = Box<dyn FnMut(&ShimOp<'_>) -> Tamper + Send>;

pub(crate) struct ShimQueue {
    inner: Box<dyn Queue>,
    shim: Shim,
    number: u64,
    /// Planned manipulations of completions, by token.
    planned: Vec<(u64, Tamper)>,
    ready: VecDeque<Done>,
    late: Vec<(u32, Done)>,
    inside: usize,
}

impl fmt::Debug for ShimQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShimQueue").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ShimQueue {
    pub(crate) fn new(inner: Box<dyn Queue>, shim: Shim) -> Self {
        Self { inner, shim, number: 0, planned: Vec::new(), ready: VecDeque::new(), late: Vec::new(), inside: 0 }
    }

    fn tamper(&mut self, mut done: Done) {
        let planned = self.planned.iter().position(|(token, _)| *token == done.op.token);
        let tamper = planned.map_or(Tamper::No, |at| self.planned.swap_remove(at).1);
        for (left, _) in &mut self.late {
            *left = left.saturating_sub(1);
        }
        match tamper {
            Tamper::FailAfter(errno) => done.result = Err(io::Error::from_raw_os_error(errno)),
            Tamper::Late(others) => return self.late.push((others, done)),
            Tamper::No | Tamper::Short(_) | Tamper::Refuse(_) => {}
        }
        self.ready.push_back(done);
    }

    fn release_late(&mut self, all: bool) {
        let mut i = 0;
        while i < self.late.len() {
            if all || self.late[i].0 == 0 {
                let (_, done) = self.late.swap_remove(i);
                self.ready.push_back(done);
            } else {
                i += 1;
            }
        }
    }
}

impl Queue for ShimQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn claim(&mut self, anew: bool) -> io::Result<Option<Registered>> {
        self.inner.claim(anew)
    }

    fn register(&mut self, files: &[Arc<BatchFile>]) {
        self.inner.register(files);
    }

    fn unregister(&mut self, files: &[Arc<BatchFile>]) {
        self.inner.unregister(files);
    }

    #[cfg(feature = "program")]
    fn open_slot(&mut self, completions: Option<CompletionPlaces>) -> io::Result<i32> {
        self.inner.open_slot(completions)
    }

    #[cfg(feature = "program")]
    fn close_slot(&mut self) {
        self.inner.close_slot();
    }

    #[cfg(feature = "program")]
    fn enter_program(&mut self, control: u32, awaited: &[u64]) -> io::Result<u32> {
        self.inner.enter_program(control, awaited)
    }

    fn push(&mut self, mut op: Op) {
        let seen = ShimOp {
            number: self.number,
            read: op.action == Action::Read,
            sync: op.action == Action::Sync,
            path: op.file.path(),
            offset: op.offset,
            len: op.range.len(),
        };
        let tamper = (self.shim)(&seen);
        self.number += 1;
        match tamper {
            Tamper::Refuse(errno) => {
                let result = Err(io::Error::from_raw_os_error(errno));
                self.ready.push_back(Done { op, result, raw: true, bypassed: false });
                return;
            }
            Tamper::Short(most) if op.range.len() > 1 => {
                op.range.end = op.range.start + most.clamp(1, op.range.len());
            }
            Tamper::FailAfter(_) | Tamper::Late(_) => self.planned.push((op.token, tamper)),
            Tamper::No | Tamper::Short(_) => {}
        }
        self.inside += 1;
        self.inner.push(op);
    }

    fn submit(&mut self) -> io::Result<()> {
        self.inner.submit()
    }

    fn reap(&mut self, wait: usize, wanted: u64, done: &mut Vec<Done>) -> io::Result<()> {
        loop {
            let mut inner = Vec::new();
            let wait_inside = if self.ready.is_empty() { wait.min(self.inside) } else { 0 };
            let result = self.inner.reap(wait_inside, wanted, &mut inner);
            self.inside -= inner.len();
            for done in inner {
                self.tamper(done);
            }
            self.release_late(self.inside == 0);
            done.extend(self.ready.drain(..));
            result?;
            if wait == 0 || !done.is_empty() || (self.inside == 0 && self.late.is_empty()) {
                return Ok(());
            }
        }
    }

    fn unsubmitted(&self) -> usize {
        self.inner.unsubmitted()
    }

    fn counts(&self) -> QueueCounts {
        self.inner.counts()
    }
}
