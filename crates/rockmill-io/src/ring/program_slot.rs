//! An eBPF program in a ring (Linux 7.1): entering the ring runs it.
//!
//! 1. [`BatchIo::program_slot`] makes a slot for one: a page, which is the ring's region, says what is to be done. The
//!    program is attached with the ring's descriptor ([`ProgramSlot::ring`]).
//! 2. As long as the slot lives, started operations are only queued. [`ProgramSlot::enter`] is one system call, in
//!    which the program submits everything that was queued, does its own work, and waits for the named transfers, if it
//!    needs them. So reads and writes need no calls of their own.
//! 3. A thread that has to wait for a transfer meanwhile enters in the same way; then the program only submits and
//!    waits.
//!
//! The program finds operations where the ring keeps them; it does not write any. Only this process knows what they
//! transfer to, and `transfers` handles their results as usual.

use super::BatchIo;
use super::queue::Op;
use super::transfers::Transfers;
use crate::aligned::AlignedBuf;
use crate::sync::Mutex;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The page, as 32-bit words and a byte for each operation. The program's header has the same numbers.
pub mod page {
    /// In: what the program is told about its own work.
    pub const CONTROL: usize = 0;
    /// Out: how often it was called.
    pub const STEPS: usize = 4;
    /// In: 0 to do its work, 1 only to hand over and wait.
    pub const MODE: usize = 8;
    /// In: for so many completions.
    pub const WAIT: usize = 12;
    /// In: 0; then its own.
    pub const PHASE: usize = 16;
    /// In: completions that were taken, all in all.
    pub const HEAD: usize = 20;
    /// In: operations to be handed over.
    pub const PENDING: usize = 24;
    /// Out: operations that were.
    pub const SUBMITTED: usize = 28;
    /// Out: why not all, as `errno`.
    pub const ERROR: usize = 32;
    /// In: not 0 with operations in flight.
    pub const BUSY: usize = 36;
    /// In: operations that are awaited.
    pub const AWAITED: usize = 40;
    /// In: where the ring's memory has the number of completions.
    pub const TAIL_AT: usize = 44;
    /// In: where it has the completions.
    pub const CQES_AT: usize = 48;
    /// In: how many it has room for, less 1.
    pub const MASK: usize = 52;
    /// In: for each operation whether it is awaited.
    pub const PLACES: usize = 1024;
    /// Operations that can be.
    pub const PLACES_MAX: usize = 3072;
    /// All of it.
    pub const BYTES: usize = 4096;
}

/// Where a ring's memory has what the kernel says of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionPlaces {
    /// Their number so far.
    pub tail: u32,
    /// They themselves.
    pub entries: u32,
}

/// The page of a ring, as long as that is.
#[derive(Debug)]
pub(super) struct Page(AlignedBuf);

impl Page {
    pub(super) fn new() -> Self {
        Self(AlignedBuf::with_capacity(page::BYTES))
    }

    /// Its address, for the kernel, which writes to it while a thread enters the ring, and only then.
    pub(super) fn address(&mut self) -> u64 {
        self.0.as_mut_ptr().expose_provenance() as u64
    }

    pub(super) fn set(&mut self, at: usize, v: u32) {
        self.0[at..at + 4].copy_from_slice(&v.to_ne_bytes());
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        self.0[at..].first_chunk::<4>().map_or(0, |b| u32::from_ne_bytes(*b))
    }

    /// Marks which of the operations in `table` are those with the numbers `awaited`.
    pub(super) fn mark(&mut self, table: &[Option<Op>], awaited: &[u64]) {
        let places = &mut self.0[page::PLACES..page::PLACES + page::PLACES_MAX];
        places.fill(0);
        let mut count = 0;
        for (place, op) in places.iter_mut().zip(table) {
            if op.as_ref().is_some_and(|op| awaited.contains(&op.token)) {
                *place = 1;
                count += 1;
            }
        }
        self.set(page::AWAITED, count);
    }
}

/// A program's place in a ring, until dropped. The program must be detached by then.
pub struct ProgramSlot {
    transfers: Arc<Mutex<Transfers>>,
    ring: i32,
}

impl fmt::Debug for ProgramSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramSlot").field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl BatchIo {
    /// Makes place for a program. Where its completions are must be known for waiting within the kernel; else who needs
    /// something that has not come enters again.
    ///
    /// # Errors
    /// It is no ring, is another thread's, or has a program; or the kernel is too old.
    pub fn program_slot(&self, completions: Option<CompletionPlaces>) -> io::Result<ProgramSlot> {
        let ring = self.shared.lock().open_slot(completions)?;
        Ok(ProgramSlot { transfers: Arc::clone(&self.shared), ring })
    }
}

impl ProgramSlot {
    /// The ring's descriptor.
    pub fn ring(&self) -> i32 {
        self.ring
    }

    /// Enters the ring until the program says stop; how many steps it took. If it needs to wait, it waits for the
    /// transfers `awaited` ([`ReadStream::awaited`](super::ReadStream::awaited)).
    ///
    /// # Errors
    /// The kernel did not run it.
    pub fn enter(&self, control: u32, awaited: &[u64]) -> io::Result<u32> {
        self.transfers.lock().enter_program(control, awaited)
    }
}

impl Drop for ProgramSlot {
    fn drop(&mut self) {
        self.transfers.lock().close_slot();
    }
}
