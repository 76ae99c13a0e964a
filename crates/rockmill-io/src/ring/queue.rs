//! The interface of an implementation of batched I/O: operations go in with their memory, completions come out with it,
//! in any order and unprocessed, as the kernel gives them (short, interrupted, cancelled).

use super::Registered;
use super::arena::Lease;
#[cfg(feature = "program")]
use super::program_slot::CompletionPlaces;
use crate::aligned::ALIGNMENT;
use crate::fs::{PositionedFile, RandomAccessFile};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The file of an operation.
#[derive(Debug)]
pub(crate) enum Target {
    Read(Arc<dyn RandomAccessFile>),
    Write(Arc<dyn PositionedFile>),
}

/// Value of [`BatchFile::index`] for a file that is not registered.
const NOT_REGISTERED: u32 = u32::MAX;

/// A file that a queue knows.
#[derive(Debug)]
pub(crate) struct BatchFile {
    pub(crate) target: Target,
    path: PathBuf,
    /// The descriptor, when the kernel may be asked directly.
    pub(crate) fd: Option<i32>,
    /// Where the file begins behind the descriptor.
    fd_offset: u64,
    /// Its place in the kernel's table of registered files.
    index: AtomicU32,
    /// Bytes that reads may reach.
    size: u64,
}

impl BatchFile {
    /// `grows`: the file may be longer by now than when it was opened.
    pub(crate) fn reading(file: Arc<dyn RandomAccessFile>, path: &Path, grows: bool) -> Self {
        // Direct reads end at a sector, so the end of the file must be known.
        let size = if grows && !file.is_direct() { u64::MAX } else { file.size() };
        let (fd, path, index) = (file.raw_fd(), path.to_path_buf(), AtomicU32::new(NOT_REGISTERED));
        let fd_offset = file.fd_offset();
        Self { target: Target::Read(file), path, fd, fd_offset, index, size }
    }

    pub(crate) fn writing(file: Arc<dyn PositionedFile>) -> Self {
        let (fd, path, index) = (file.raw_fd(), file.path().to_path_buf(), AtomicU32::new(NOT_REGISTERED));
        let fd_offset = file.fd_offset();
        Self { target: Target::Write(file), path, fd, fd_offset, index, size: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Where an offset of the file is behind its descriptor.
    pub(crate) fn at_fd(&self, offset: u64) -> u64 {
        self.fd_offset.saturating_add(offset)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_direct(&self) -> bool {
        match &self.target {
            Target::Read(file) => file.is_direct(),
            Target::Write(file) => file.is_direct(),
        }
    }

    /// To a multiple of what offsets and lengths of direct reads must be: [`ALIGNMENT`] or a part of it.
    pub(crate) fn block(&self) -> u64 {
        let block = match &self.target {
            Target::Read(file) => file.direct_alignment(),
            Target::Write(_) => ALIGNMENT as u64,
        };
        if block.is_power_of_two() { block.min(ALIGNMENT as u64) } else { ALIGNMENT as u64 }
    }

    pub(crate) fn registered(&self) -> Option<u32> {
        Some(self.index.load(Ordering::Relaxed)).filter(|index| *index != NOT_REGISTERED)
    }

    pub(crate) fn set_registered(&self, index: Option<u32>) {
        self.index.store(index.unwrap_or(NOT_REGISTERED), Ordering::Relaxed);
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    /// fdatasync.
    Sync,
    /// Start write-back of so many bytes.
    StartWriteBack(u64),
    /// Wait for write-back of so many bytes that was started.
    AwaitWriteBack(u64),
}

/// One operation, with the memory that it goes to or comes from. It is the queue's until it is done.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) token: u64,
    pub(crate) file: Arc<BatchFile>,
    pub(crate) action: Action,
    pub(crate) offset: u64,
    pub(crate) lease: Option<Lease>,
    /// The part of the lease.
    pub(crate) range: Range<usize>,
}

impl Op {
    /// Does it now, by a plain call on the file.
    pub(crate) fn call(&mut self) -> io::Result<usize> {
        let range = self.range.clone();
        let memory = self.lease.as_deref_mut().map_or(&mut [][..], |lease| &mut lease[range]);
        match (&self.file.target, self.action) {
            (Target::Read(file), Action::Read) => file.read_once(self.offset, memory),
            (Target::Write(file), Action::Write) => file.write_at(self.offset, memory),
            (Target::Write(file), Action::Sync) => file.sync().map(|()| 0),
            (Target::Write(file), Action::StartWriteBack(len)) => file.start_write_back(self.offset, len).map(|()| 0),
            (Target::Write(file), Action::AwaitWriteBack(len)) => file.await_write_back(self.offset, len).map(|()| 0),
            (_, action) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{action:?} of {}, which is open for the other direction", self.file.path.display()),
            )),
        }
    }
}

/// A finished operation.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) op: Op,
    /// Bytes transferred, or what the kernel or the file said.
    pub(crate) result: io::Result<usize>,
    /// True for the kernel's result for an operation, which may only mean that it must be tried again; false for the
    /// final result of a file's own method.
    pub(crate) raw: bool,
    /// True if it bypassed the file's own methods, so that a wrapper of the file has not seen it.
    pub(crate) bypassed: bool,
}

/// What a queue did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Entries into the kernel to submit or to wait; for plain calls, each of them.
    pub enters: u64,
    /// Of these, entries of a ring, which no file has seen.
    pub ring_enters: u64,
    /// Operations handed over, repeated ones each time.
    pub operations: u64,
    /// Operations with a registered buffer.
    pub fixed: u64,
    /// Waits of seconds without a completion, after which the kernel was made to look at its queue again.
    pub nudges: u64,
    /// Operations that a program handed over.
    #[cfg(feature = "program")]
    pub by_program: u64,
}

/// An implementation.
pub(crate) trait Queue: Send + Debug {
    /// Operations that it takes at a time.
    fn depth(&self) -> usize;
    /// Makes the calling thread the one that it takes operations from; nothing is in it. `anew`: its arena has more
    /// memory than before. Gives what the kernel agreed to keep at hand, where that may have changed.
    fn claim(&mut self, _anew: bool) -> io::Result<Option<Registered>> {
        Ok(None)
    }
    /// Lets the kernel know files before the first operation. Only an optimisation.
    fn register(&mut self, _files: &[Arc<BatchFile>]) {}
    /// Forgets them.
    fn unregister(&mut self, _files: &[Arc<BatchFile>]) {}
    /// Makes place for a program ([`super::program_slot`]); gives the ring's descriptor.
    #[cfg(feature = "program")]
    fn open_slot(&mut self, _completions: Option<CompletionPlaces>) -> io::Result<i32> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "there is no ring, only plain calls"))
    }
    /// The program is gone.
    #[cfg(feature = "program")]
    fn close_slot(&mut self) {}
    /// Enters the ring, for the program to do its own work; gives its steps.
    #[cfg(feature = "program")]
    fn enter_program(&mut self, _control: u32, _awaited: &[u64]) -> io::Result<u32> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "there is no ring, only plain calls"))
    }
    /// Takes over an operation; it may be passed on only at the next [`submit`](Self::submit) or [`reap`](Self::reap).
    /// Never called with `depth` operations in it.
    fn push(&mut self, op: Op);
    /// Hands on what was pushed.
    fn submit(&mut self) -> io::Result<()>;
    /// Gathers completions. If `wait` is not 0, passes on what was pushed and returns with at least one completion, if
    /// any operation is in the queue; `wait` is how many the caller needs to continue. `wanted` says which one it waits
    /// for.
    fn reap(&mut self, wait: usize, wanted: u64, done: &mut Vec<Done>) -> io::Result<()>;
    /// Operations in it that were not handed on yet.
    fn unsubmitted(&self) -> usize;
    /// Counts so far.
    fn counts(&self) -> QueueCounts;
}
