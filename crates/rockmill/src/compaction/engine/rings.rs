//! The rings of a database, with the memory that they read to and write from: lent to one thread at a time, kept for
//! the next one.
//!
//! 1. A part of a job, a flush or a batch of lookups borrows a ring ([`Rings::lend`]): its thread's last one, one
//!    that another thread had, or a new one. Setting up memory on huge pages is expensive (up to 35 ms for 16 MiB), so
//!    it is kept with the ring; as much is set up as any borrower wanted. If another thread borrows it, the memory gets
//!    a new ring, since the kernel accepts a ring's operations only from the thread that made it.
//! 2. A borrower gives it back by dropping it. A ring that a failed job left in an unclear state is not kept.
//! 3. Rings are freed if none borrows them for five seconds; those made with other options are freed at the next
//!    check, and all when the database closes.
//!
//! There are never more rings than were lent at once, so their memory is bounded by the number of concurrent jobs.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits};
use rockmill_io::{Clock, FileSystem};

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Mutex, Share};

/// How long an unused ring is kept: a hundred times the time that it takes to create one.
const IDLE_NANOS: u64 = 5_000_000_000;

/// Rings of one purpose.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    state: Mutex<State>,
    /// Bytes set up for all of them, lent ones included.
    bytes: Arc<AtomicUsize>,
    /// Number of rings created with separate memory.
    made: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Idle>,
    closed: bool,
}

/// A ring that nobody has borrowed.
#[derive(Debug)]
struct Idle {
    ring: Ring,
    thread: ThreadId,
    /// When it was given back.
    since: u64,
}

/// A ring that is kept or lent.
#[derive(Debug)]
struct Ring {
    fs: Arc<dyn FileSystem>,
    io: BatchIo,
    share: Share,
}

impl Ring {
    /// Makes it the calling thread's. If that fails, it is dropped.
    fn claim(mut self, memory: usize) -> Option<Self> {
        self.io = self.io.claim(memory).ok()?;
        self.share.set(self.bytes());
        Some(self)
    }

    /// Bytes that are set up.
    fn bytes(&self) -> usize {
        self.io.facts().memory_bytes
    }
}

/// True for rings that may replace each other. How much memory is set up at first does not matter.
fn alike(a: &BatchLimits, b: &BatchLimits) -> bool {
    *a == BatchLimits { memory_ready: a.memory_ready, ..b.clone() }
}

impl Rings {
    /// A ring with `limits` for the calling thread, with at least `memory` bytes set up (no more than the limit).
    pub fn lend(
        self: &Arc<Self>,
        fs: &Arc<dyn FileSystem>,
        clock: &Arc<dyn Clock>,
        limits: &BatchLimits,
        memory: usize,
    ) -> io::Result<LentRing> {
        let memory = memory.min(limits.memory_bytes);
        loop {
            // Outdated ones are closed without the lock, and before another one is made.
            let (outdated, found) = self.find(fs, limits, memory);
            drop(outdated);
            let Some(ring) = found else { break };
            if let Some(ring) = ring.claim(memory) {
                return Ok(LentRing::new(ring, self, clock));
            }
        }
        let io = fs.batch_io(BatchKind::Uring, &BatchLimits { memory_ready: memory, ..limits.clone() })?;
        self.made.fetch_add(1, Ordering::Relaxed);
        let share = Share::of(&self.bytes);
        let mut ring = Ring { fs: Arc::clone(fs), io, share };
        ring.share.set(ring.bytes());
        Ok(LentRing::new(ring, self, clock))
    }

    /// Takes the ring that costs the calling thread least, and those of other file systems or limits.
    fn find(&self, fs: &Arc<dyn FileSystem>, limits: &BatchLimits, memory: usize) -> (Vec<Idle>, Option<Ring>) {
        let thread = thread::current().id();
        let mut state = self.state.lock();
        let fits = |idle: &mut Idle| Arc::ptr_eq(&idle.ring.fs, fs) && alike(idle.ring.io.limits(), limits);
        let outdated: Vec<Idle> = state.idle.extract_if(.., |idle| !fits(idle)).collect();
        // First choice: enough memory is set up; second: no new ring is needed. Of those, the smallest that suffices.
        let cost = |idle: &Idle| {
            let bytes = idle.ring.bytes();
            (memory.saturating_sub(bytes), idle.thread != thread, bytes)
        };
        let best = state.idle.iter().enumerate().min_by_key(|(_, idle)| cost(idle)).map(|(i, _)| i);
        let found = best.map(|i| state.idle.swap_remove(i).ring);
        (outdated, found)
    }

    fn give_back(&self, ring: Ring, clock: &dyn Clock) {
        if !ring.io.is_idle() {
            return;
        }
        let idle = Idle { ring, thread: thread::current().id(), since: clock.monotonic_nanos() };
        let mut state = self.state.lock();
        if !state.closed {
            return state.idle.push(idle);
        }
        drop(state);
        drop(idle);
    }

    /// Releases rings that were not borrowed for [`IDLE_NANOS`].
    pub fn trim(&self, clock: &dyn Clock) {
        let old = |idle: &mut Idle, now: u64| now.saturating_sub(idle.since) >= IDLE_NANOS;
        let mut state = self.state.lock();
        if state.idle.is_empty() {
            return;
        }
        let now = clock.monotonic_nanos();
        let gone: Vec<Idle> = state.idle.extract_if(.., |idle| old(idle, now)).collect();
        drop(state);
        drop(gone);
    }

    /// Frees everything. Lent rings are freed when they are given back.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let gone = std::mem::take(&mut state.idle);
        drop(state);
        drop(gone);
    }

    /// Bytes set up for all of them, lent ones included, and what was [counted](Self::count) with them.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// True if none is idle and they have at least `bytes` in total.
    fn all_lent(&self, bytes: usize) -> bool {
        self.memory_bytes() >= bytes && self.state.lock().idle.is_empty()
    }

    /// Counts memory that a borrower has besides, until the result is dropped.
    pub fn count(&self, bytes: usize) -> Share {
        let mut share = Share::of(&self.bytes);
        share.set(bytes);
        share
    }

    /// Number of rings created with separate memory so far.
    #[cfg(test)]
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}

/// The memory that a thread may use to look keys up: enough for as many blocks as keep a device busy. A stream must ask
/// for all of it: by default a stream leaves room for a writer, but nothing is ever written through these rings.
pub(crate) const LOOKUP_MEMORY: usize = 2 << 20;

/// How many threads may have one at a time. Together they keep any device busy, so other threads wait no longer if they
/// read block by block; a server may have hundreds of threads.
const LOOKUP_RINGS_MAX: usize = 32;

/// After a failure to make a ring for lookups, none is tried for this long.
const LOOKUP_RETRY_NANOS: u64 = 60_000_000_000;

/// The rings of a database's lookups.
#[derive(Debug, Default)]
pub(crate) struct LookupRings {
    rings: Arc<Rings>,
    /// When there was none; 0 when there was.
    refused: AtomicU64,
}

impl LookupRings {
    /// A ring for the reads of many lookups, or of a seek; `None` if there is none, or too many threads have one.
    pub fn lend(&self, fs: &Arc<dyn FileSystem>, clock: &Arc<dyn Clock>) -> Option<LentRing> {
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 && clock.monotonic_nanos().saturating_sub(refused) < LOOKUP_RETRY_NANOS {
            return None;
        }
        if self.rings.all_lent(LOOKUP_RINGS_MAX * LOOKUP_MEMORY) {
            return None;
        }
        // Files are many and used once: registering each would cost a call.
        let limits = BatchLimits {
            memory_bytes: LOOKUP_MEMORY,
            depth: 64,
            huge_pages: false,
            register: false,
            ..BatchLimits::default()
        };
        let ring = self.rings.lend(fs, clock, &limits, LOOKUP_MEMORY).ok();
        let refused = if ring.is_none() { clock.monotonic_nanos().max(1) } else { 0 };
        self.refused.store(refused, Ordering::Relaxed);
        ring
    }

    /// Releases rings that were not borrowed for [`IDLE_NANOS`].
    pub fn trim(&self, clock: &dyn Clock) {
        self.rings.trim(clock);
    }

    /// Bytes set up for all of them, lent ones included.
    pub fn memory_bytes(&self) -> usize {
        self.rings.memory_bytes()
    }
}

/// A ring that is the calling thread's until it is dropped.
#[derive(Debug)]
pub(crate) struct LentRing {
    io: BatchIo,
    /// `None` only while it is dropped.
    ring: Option<Ring>,
    of: Arc<Rings>,
    clock: Arc<dyn Clock>,
}

impl LentRing {
    fn new(ring: Ring, of: &Arc<Rings>, clock: &Arc<dyn Clock>) -> Self {
        Self { io: ring.io.clone(), ring: Some(ring), of: Arc::clone(of), clock: Arc::clone(clock) }
    }
}

impl Deref for LentRing {
    type Target = BatchIo;

    fn deref(&self) -> &BatchIo {
        &self.io
    }
}

impl Drop for LentRing {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.of.give_back(ring, &*self.clock);
        }
    }
}

#[cfg(test)]
mod tests;
