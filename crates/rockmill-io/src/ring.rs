//! Many reads and writes in flight at once, from one thread: what compactions and flushes read and write through.
//!
//! 1. [`FileSystem::batch_io`] makes a [`BatchIo`] for the calling thread: a ring of
//!    io_uring or, if there is none ([`BatchProbe`] says why) or files are in memory, plain calls with the same
//!    interface.
//! 2. [`BatchIo::read`] takes a [`ReadPlan`]: for each input run the spans that will be read, in order. Several of each
//!    run are in flight ahead of the one in use; [`ReadStream::next`] gives them in order as [`Window`]s, borrowed from
//!    the arena and given back by dropping them. [`Pieces`] does that for scattered places, whose bytes are wanted in
//!    another order.
//! 3. [`BatchIo::create`] gives a [`BatchWriter`]: bytes are put in place in its buffers, which go to the file as large
//!    writes, several in flight.
//!
//! Layers, from the top: `pieces` over `stream`, and `writer`, say what to transfer; `transfers` brings each transfer
//! to its end (short ones, interruptions, shortages); a queue does single operations: `kernel` by io_uring, `call` by
//! plain calls, `carried` by handing them to files that do them in threads of their own; `arena` owns the memory. All
//! `unsafe` is in `kernel` and `arena`.
//!
//! A job that reads 256 KiB spans and writes 1 MiB at a time, per GB read and written: about 4,800 operations in 1,250
//! system calls. Reads are submitted together, by the call that waits for earlier ones; writes are submitted with them.
//!
//! Measured (`examples/ring_copy.rs`: four inputs copied into one output, without the page cache, on a virtual NVMe
//! disk and a busy machine; ratios to the ring's defaults, paired, medians of 7 to 9 rounds):
//!
//! | variant | time | CPU |
//! |---|---|---|
//! | plain calls of 256 KiB | 1.3 to 2.9 | 1.6 to 2.3 |
//! | plain calls of 2 MiB | 1.0 to 2.0 | 0.9 to 1.4 |
//! | plain calls through the page cache | 5.7 | 12 |
//! | 4 KiB pages instead of huge ones | 1.3 to 1.4 | 1.2 to 1.5 |
//! | nothing registered | 1.0 to 1.1 | 1.0 to 1.1 |
//! | four writes of 1 MiB in flight instead of eight | 1.1 to 1.3 | 1.0 |
//! | writes that extend the file instead of filling reserved space | 1.0 to 1.2 | 1.3 to 1.4 |
//!
//! The last line is why [`BatchWriter`] reserves space within the file's length: ext4 waits inside the submitting call
//! for a direct write that extends a file, so only one such write is ever in flight.
//!
//! Keep a `BatchIo` and let the next thread that needs one [`claim`](BatchIo::claim) it: setting up the arena's huge
//! pages takes 1 to 35 ms for 16 MiB, depending on how scattered free memory is; a ring over them takes 50 us.
//!
//! Invariants:
//!
//! - memory that an operation uses belongs to the operation until it has completed; dropping everything early cancels
//!   what is in flight and waits for it;
//! - each byte of a plan is read once, in a fixed order within its run, also with direct I/O, where neighbouring spans
//!   share a sector;
//! - memory is the arena, of the size given, and spans larger than any slot, which are limited to as much again;
//! - every failure of a read comes out of the `next` that asks for its span, every failure of a write out of the next
//!   call on its writer; each names the file and the offset.

mod arena;
mod call;
mod carried;
mod device;
#[cfg(rings)]
mod kernel;
#[cfg(not(rings))]
#[path = "ring/no_kernel.rs"]
mod kernel;
mod pieces;
mod probe;
#[cfg(feature = "program")]
pub mod program_slot;
mod queue;
mod shim;
mod stream;
mod transfers;
mod writer;

pub use arena::Pages;
pub use call::CallOrder;
pub use carried::{Carried, CarriedFiles};
pub use device::DeviceFacts;
pub use pieces::Pieces;
pub use probe::BatchProbe;
#[cfg(feature = "program")]
pub use program_slot::{CompletionPlaces, ProgramSlot};
pub use shim::{Shim, ShimOp, Tamper};
pub use stream::{ReadOptions, ReadPlan, ReadStream, Span, Window, coalesce};
pub use writer::BatchWriter;

use crate::aligned;
use crate::fs::{FileSystem, PositionedFile, WriteOptions};
use crate::sync::Mutex;
use arena::Arena;
use call::CallQueue;
use carried::CarriedQueue;
use kernel::KernelQueue;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use transfers::Transfers;

/// Smallest span of a ring: smaller requests cost the device more than they gain.
const SPAN_BYTES_MIN: usize = 64 << 10;

/// Spans of each run that a ring should have memory for.
const SPANS_WANTED: usize = 3;

/// Largest span for plain calls: the readahead that RocksDB compacts with.
const SPAN_BYTES_PLAIN: usize = 2 << 20;

/// Which implementation of batched I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchKind {
    /// io_uring if it is available, otherwise plain calls.
    #[default]
    Auto,
    /// Plain calls (`pread`, `pwrite`).
    Pread,
    /// io_uring, or an error that says why not.
    Uring,
}

impl fmt::Display for BatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchKind::Auto => "auto",
            BatchKind::Pread => "pread",
            BatchKind::Uring => "uring",
        })
    }
}

/// What one thread's batched I/O may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchLimits {
    /// Size of the arena, in bytes. Spans for which no slot is large enough may take as much again.
    pub memory_bytes: usize,
    /// Bytes of it that are set up at once, the rest when [`BatchIo::claim`] asks for more; 0 for all.
    pub memory_ready: usize,
    /// Operations in flight.
    pub depth: u32,
    /// Ask for huge pages for the arena.
    pub huge_pages: bool,
    /// Register the arena and the files with the kernel, which spares it work for each operation.
    pub register: bool,
    /// Take operations from any thread, at a little more cost for each.
    pub any_thread: bool,
    /// Priority of each operation as `ioprio_set` takes it; 0 for that of the thread.
    pub io_priority: u16,
    /// Writes in flight for each writer.
    pub writes_in_flight: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 20 << 20,
            memory_ready: 0,
            depth: 128,
            huge_pages: true,
            register: true,
            any_thread: false,
            io_priority: 0,
            writes_in_flight: 8,
        }
    }
}

impl BatchLimits {
    /// The memory with which a ring reads this many runs from files on `device` in the preferred way, next to one
    /// writer. Without runs, the writer's memory.
    pub fn memory_for(&self, device: Option<&DeviceFacts>, runs: usize) -> usize {
        let run = (stream::depth_for(runs) + 1) * stream::slot_bytes(DeviceFacts::read_bytes(device));
        writer::memory_of(self.writes_in_flight).saturating_add(run.saturating_mul(runs))
    }

    /// The same if the files are in the page cache and there is no writer: a read is a copy then, and the memory of two
    /// device reads for each run holds several smaller spans.
    pub fn memory_for_cached(&self, device: Option<&DeviceFacts>, runs: usize) -> usize {
        (2 * DeviceFacts::read_bytes(device)).saturating_mul(runs)
    }

    fn arena(&self, huge: bool) -> io::Result<Arc<Arena>> {
        let ready = if self.memory_ready == 0 { self.memory_bytes } else { self.memory_ready };
        Arena::with_ready(self.memory_bytes, ready.min(self.memory_bytes), huge)
    }
}

/// Gets reports of transfers that bypass the files' own methods, which a counting file system would not see otherwise.
pub trait BatchObserver: Send + Sync + fmt::Debug {
    /// A read that gave so many bytes.
    fn read(&self, bytes: u64);
    /// A write of so many bytes.
    fn written(&self, bytes: u64);
    /// A sync of a file.
    fn synced(&self);
    /// Write-back was started.
    fn write_back(&self);
    /// This many calls submitted transfers or waited for them.
    fn entered(&self, calls: u64);
}

/// What the kernel agreed to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered {
    /// Bytes of the arena.
    bytes: usize,
    /// True when there is a table of files.
    files: bool,
    /// Why not everything.
    refused: Option<String>,
}

/// The properties of a [`BatchIo`], for the log and for statistics.
#[derive(Debug, Clone)]
pub struct BatchFacts {
    /// Which implementation it is: never [`BatchKind::Auto`].
    pub kind: BatchKind,
    /// The kernel's flags that the ring has; empty for plain calls.
    pub flags: &'static str,
    /// Why it is not io_uring, unless plain calls were asked for.
    pub fallback: Option<String>,
    /// Size of the arena, as far as it is set up.
    pub memory_bytes: usize,
    /// On which pages.
    pub pages: Pages,
    /// Bytes of the arena that the kernel has registered.
    pub registered_bytes: usize,
    /// True when files are registered as they are used.
    pub registered_files: bool,
    /// Why not everything is registered.
    pub not_registered: Option<String>,
}

/// What was done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// System calls that submitted or waited; for plain calls, each of them.
    pub enters: u64,
    /// Operations handed to the kernel, repeated ones each time.
    pub operations: u64,
    /// Operations with registered memory.
    pub fixed: u64,
    /// Operations repeated after a short transfer or an interruption.
    pub retries: u64,
    /// Plain calls made because the ring could not.
    pub plain_calls: u64,
    /// Waits of two seconds without a completion. After each the kernel is made to look at its queue again.
    pub nudges: u64,
    /// Operations that a program in the ring submitted ([`program_slot`]).
    #[cfg(feature = "program")]
    pub by_program: u64,
}

/// One thread's batched I/O. Clones are handles to the same.
///
/// A ring takes operations only from the thread that made it or claimed it last: others get an error.
#[derive(Debug, Clone)]
pub struct BatchIo {
    shared: Arc<Mutex<Transfers>>,
    arena: Arc<Arena>,
    buffers: Arc<writer::WriterBuffers>,
    facts: Arc<BatchFacts>,
    limits: Arc<BatchLimits>,
}

impl BatchIo {
    /// Plain calls, which every file system supports.
    pub fn plain(limits: &BatchLimits, fallback: Option<String>) -> io::Result<Self> {
        Self::calls(limits, CallOrder::OnDemand, BatchKind::Pread, fallback)
    }

    /// Plain calls in some order, which may call themselves `kind`: the memory file system's.
    pub(crate) fn calls(
        limits: &BatchLimits,
        order: CallOrder,
        kind: BatchKind,
        fallback: Option<String>,
    ) -> io::Result<Self> {
        let arena = limits.arena(limits.huge_pages && order == CallOrder::OnDemand)?;
        let queue = CallQueue::new(limits.depth as usize, order, kind == BatchKind::Uring);
        Ok(Self::without_ring(Box::new(queue), arena, kind, fallback, limits))
    }

    /// Operations that their files carry out. It counts as a ring: several of them are in flight.
    pub(crate) fn carried(limits: &BatchLimits) -> io::Result<Self> {
        let queue = CarriedQueue::new(limits.depth as usize);
        let arena = limits.arena(limits.huge_pages)?;
        Ok(Self::without_ring(Box::new(queue), arena, BatchKind::Uring, None, limits))
    }

    /// Over a queue for which the kernel keeps nothing.
    fn without_ring(
        queue: Box<dyn queue::Queue>,
        arena: Arc<Arena>,
        kind: BatchKind,
        fallback: Option<String>,
        limits: &BatchLimits,
    ) -> Self {
        let facts = BatchFacts {
            kind,
            flags: "",
            fallback,
            memory_bytes: arena.bytes(),
            pages: arena.pages(),
            registered_bytes: 0,
            registered_files: false,
            not_registered: None,
        };
        Self::over(queue, arena, facts, limits)
    }

    /// A ring of io_uring, or why there is none.
    pub(crate) fn uring(limits: &BatchLimits) -> io::Result<Self> {
        let arena = limits.arena(limits.huge_pages)?;
        let (queue, registered, flags) =
            KernelQueue::new(limits, &arena).map_err(|e| io::Error::new(e.kind(), probe::explain_setup(&e)))?;
        let facts = BatchFacts {
            kind: BatchKind::Uring,
            flags,
            fallback: None,
            memory_bytes: arena.bytes(),
            pages: arena.pages(),
            registered_bytes: registered.bytes,
            registered_files: registered.files,
            not_registered: registered.refused,
        };
        Ok(Self::over(Box::new(queue), arena, facts, limits))
    }

    fn over(queue: Box<dyn queue::Queue>, arena: Arc<Arena>, facts: BatchFacts, limits: &BatchLimits) -> Self {
        let transfers = Transfers::new(queue);
        let (facts, limits) = (Arc::new(facts), Arc::new(limits.clone()));
        Self { shared: Arc::new(Mutex::new(transfers)), arena, buffers: Arc::default(), facts, limits }
    }

    /// True if no stream, writer or window of it is left, nothing is in flight, and the ring has not failed: another
    /// job may use it, and nothing of earlier jobs can affect it.
    pub fn is_idle(&self) -> bool {
        self.arena.is_unused() && self.shared.lock().is_idle()
    }

    /// Hands it to the calling thread, with at least `memory_bytes` of the arena set up, as far as its limit allows.
    /// Fails where it is not [idle](Self::is_idle), and where the thread gets no ring.
    ///
    /// For the thread that has it already, this costs nothing. For another thread it makes a new ring, which takes some
    /// 50 us, but not a new arena, which can take a thousand times as long.
    pub fn claim(mut self, memory_bytes: usize) -> io::Result<Self> {
        if !self.is_idle() {
            return Err(io::Error::other("a ring is still in use by a job, or failed in one"));
        }
        let grew = self.arena.grow(memory_bytes);
        let claimed = self.shared.lock().claim(grew);
        let registered = claimed.map_err(|e| io::Error::new(e.kind(), probe::explain_setup(&e)))?;
        if grew || registered.is_some() {
            let mut facts = BatchFacts::clone(&self.facts);
            (facts.memory_bytes, facts.pages) = (self.arena.bytes(), self.arena.pages());
            if let Some(registered) = registered {
                facts.registered_bytes = registered.bytes;
                facts.registered_files = registered.files;
                facts.not_registered = registered.refused;
            }
            self.facts = Arc::new(facts);
        }
        Ok(self)
    }

    /// What it is made of.
    pub fn facts(&self) -> &BatchFacts {
        &self.facts
    }

    /// What it may use.
    pub fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// What was done so far.
    pub fn counts(&self) -> BatchCounts {
        let transfers = self.shared.lock();
        let counts = transfers.counts();
        BatchCounts {
            enters: counts.enters,
            operations: counts.operations,
            fixed: counts.fixed,
            retries: transfers.retries(),
            plain_calls: transfers.plain_calls(),
            nudges: counts.nudges,
            #[cfg(feature = "program")]
            by_program: counts.by_program,
        }
    }

    /// Bytes of the arena that no stream or writer has.
    pub fn free_bytes(&self) -> usize {
        self.arena.free_bytes()
    }

    /// Bytes that spans should have, for a plan of so many runs from files on `device` (see
    /// [`FileSystem::device`]). A ring keeps several in flight: they are as large as the device prefers, or smaller if
    /// the arena cannot hold three for each run next to a writer's buffers. Plain calls wait for each span, so larger
    /// ones are worth their memory.
    pub fn span_bytes(&self, device: Option<&DeviceFacts>, runs: usize) -> usize {
        let usual = DeviceFacts::read_bytes(device);
        if self.facts.kind == BatchKind::Uring {
            let affordable = self.free_bytes() * 2 / 3 / runs.max(1) / SPANS_WANTED;
            return usual.min(aligned::align_down(affordable as u64) as usize).max(SPAN_BYTES_MIN);
        }
        // One in use and one being read, for each run.
        let affordable = self.limits.memory_bytes.saturating_sub(writer::memory_of_one(self)) / (2 * runs.max(1));
        aligned::align_down(affordable.clamp(usual, SPAN_BYTES_PLAIN) as u64) as usize
    }

    /// Reports to `observer` transfers that bypass the files' own methods.
    pub fn observe(&self, observer: Arc<dyn BatchObserver>) {
        self.shared.lock().observe(observer);
    }

    /// Lets a function make completions go wrong, for tests. Fails while operations are in flight.
    pub fn set_shim(&self, shim: Shim) -> io::Result<()> {
        self.shared.lock().set_shim(shim)
    }

    /// Begins to read what the plan says.
    pub fn read(&self, plan: ReadPlan, options: ReadOptions) -> io::Result<ReadStream> {
        ReadStream::new(self, plan, options)
    }

    /// Creates a file, or empties an existing one, for appending. `fs` is the file system that this was made by.
    pub fn create(&self, fs: &dyn FileSystem, path: &Path, options: WriteOptions) -> io::Result<BatchWriter> {
        self.writer(Arc::from(fs.create_positioned(path, options)?), options)
    }

    /// Writes to an empty file that is open already.
    pub fn writer(&self, file: Arc<dyn PositionedFile>, options: WriteOptions) -> io::Result<BatchWriter> {
        BatchWriter::new(self, file, options)
    }
}
