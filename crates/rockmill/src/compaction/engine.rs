//! Which engine does a job, and what it needs for that.
//!
//! `uring` borrows a ring with its arena from the database (`Rings`), which keeps them from job to job. `pread` needs
//! nothing and is always there. Where a ring is not to be had, the reason is said once, in the log and in
//! `rockmill.stats`, and `pread` does the work.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::ring::{BatchIo, BatchLimits, DeviceFacts};
use rockmill_io::{Clock, FileSystem};
use rockmill_kernel::{Machine, MergeObject, Pool, Program, Size, Unavailable};

use super::rings::{LentRing, Rings};
use super::{JobContext, KernelDriver, MergeEngine, merge_program};
use crate::helpers::Helpers;
use crate::info_log::{InfoLog, log_at, log_warn};
use crate::options::DbOptions;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a database knows of its engines.
#[derive(Debug, Default)]
pub struct Engines {
    /// Why the last job that wanted a ring did without.
    fallback: Mutex<Option<String>>,
    /// Jobs' parts done by `pread`, by `uring` and by `kernel`.
    parts: [AtomicU64; 3],
    /// Those of them that are flushes.
    flushes: [AtomicU64; 3],
    /// Machines for the kernel's engine, shared by the databases of the process, once this one has used it.
    pool: Mutex<Option<Pooled>>,
    /// What is known of the kernel's engine.
    kernel: Mutex<KernelState>,
    /// Parts that `kernel` began and another engine did.
    handed_over: AtomicU64,
    /// Blocks that `kernel` did not copy.
    in_place: AtomicU64,
    /// Calls of its program in the ring that reads and writes, and the operations that these handed over.
    by_program: [AtomicU64; 2],
    /// Programs that were replaced: no machine of theirs is kept.
    pub(super) retired: Mutex<Vec<Arc<Program>>>,
    /// Threads that compress and decompress for jobs.
    pub(crate) helpers: Arc<Helpers>,
    /// Rings of jobs.
    pub(super) rings: Arc<Rings>,
    /// Rings of lookups.
    reads: Arc<Rings>,
    /// When there was no ring for lookups; 0 when there was.
    reads_refused: AtomicU64,
    /// The device with a directory.
    device: Mutex<Option<(PathBuf, Option<DeviceFacts>)>>,
}

impl Engines {
    /// Why `pread` does what `uring` should; nothing where it does not.
    pub fn fallback(&self) -> Option<String> {
        self.fallback.lock().clone()
    }

    /// Parts of jobs that were begun with an engine, flushes included.
    pub fn parts(&self, engine: MergeEngine) -> u64 {
        self.parts[place(engine)].load(Ordering::Relaxed)
    }

    /// Counts a part that an engine does.
    pub(super) fn count(&self, engine: MergeEngine) {
        self.parts[place(engine)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a flush, which is one part.
    pub(super) fn count_flush(&self, engine: MergeEngine) {
        self.flushes[place(engine)].fetch_add(1, Ordering::Relaxed);
        self.count(engine);
    }

    /// What each engine did so far.
    pub(crate) fn counts(&self) -> EngineParts {
        let flushes = |engine| self.flushes[place(engine)].load(Ordering::Relaxed);
        let compacted = |engine| self.parts(engine).saturating_sub(flushes(engine));
        EngineParts {
            pread: compacted(MergeEngine::Pread),
            uring: compacted(MergeEngine::Uring),
            kernel: compacted(MergeEngine::Kernel),
            flushes_pread: flushes(MergeEngine::Pread),
            flushes_uring: flushes(MergeEngine::Uring),
            handed_over: self.handed_over.load(Ordering::Relaxed),
        }
    }

    /// Why another engine does what `kernel` should; nothing where it does not.
    pub fn kernel_fallback(&self) -> Option<String> {
        self.kernel.lock().fallback.clone()
    }

    /// Parts of jobs that `kernel` could not do, or not to their end, and another engine did; the last one's reason.
    pub fn handed_over(&self) -> (u64, Option<String>) {
        (self.handed_over.load(Ordering::Relaxed), self.kernel.lock().handed_over.clone())
    }

    /// Blocks that `kernel` merged where they were read.
    pub fn blocks_in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }

    /// Counts such blocks.
    pub(super) fn add_in_place(&self, blocks: u64) {
        self.in_place.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Calls of the merge program within the ring that reads and writes (driver `loop`), and how many reads, writes
    /// and syncs a program in there handed over.
    pub fn by_program(&self) -> (u64, u64) {
        let [calls, operations] = &self.by_program;
        (calls.load(Ordering::Relaxed), operations.load(Ordering::Relaxed))
    }

    /// Counts such calls and operations.
    pub(super) fn add_by_program(&self, calls: u64, operations: u64) {
        self.by_program[0].fetch_add(calls, Ordering::Relaxed);
        self.by_program[1].fetch_add(operations, Ordering::Relaxed);
    }

    /// Counts a part that goes to another engine.
    pub(super) fn hand_over(&self, ctx: &JobContext, reason: &str) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        let before = self.kernel.lock().handed_over.replace(reason.to_owned());
        if before.as_deref() != Some(reason) {
            log_warn!(ctx.events.log, "merge engine kernel hands a job part to another engine: {reason}");
        }
    }

    /// Writes a line about the kernel's engine to the log, if it is another than the one before.
    pub(super) fn say_once(&self, log: &InfoLog, line: String) {
        let before = self.kernel.lock().said.replace(line.clone());
        if before.as_ref() != Some(&line) {
            log_warn!(log, "{line}");
        }
    }

    /// The machines of the process.
    pub(super) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool.lock().get_or_insert_with(Pooled::default).pool)
    }

    /// A machine for one part, kept from an earlier one or loaded now.
    pub(super) fn machine(&self, db: &DbOptions, log: &InfoLog) -> Result<Machine, Unavailable> {
        let (size, driver) = (kernel_size(db), db.kernel_driver);
        let made = merge_program::object(db).and_then(|object| self.pool().take(object.program(driver)?, driver, size));
        let reason = made.as_ref().err().map(|e| e.reason.clone());
        let before = std::mem::replace(&mut self.kernel.lock().fallback, reason.clone());
        if let Err(e) = &made
            && before != reason
        {
            log_warn!(log, "merge engine kernel is not to be had, auto does its work: {e}");
            for line in e.log.lines() {
                log_at!(log, Debug, "verifier: {line}");
            }
        }
        made
    }

    /// Keeps a machine for the next part, unless its program was replaced meanwhile.
    pub(super) fn keep(&self, machine: Machine, clock: &dyn Clock) {
        if !self.retired.lock().contains(machine.program())
            && let Some(Pooled { pool, user }) = &*self.pool.lock()
        {
            pool.put(machine, *user, clock.monotonic_nanos());
        }
    }

    /// Bytes that this process's databases share with merge programs, idle machines included; 0 where this one does not
    /// use them.
    pub(crate) fn kernel_memory_bytes(&self) -> usize {
        self.pool.lock().as_ref().map_or(0, |pooled| pooled.pool.bytes())
    }

    /// Loads the kernel's engine if the options ask for it, so that the log says at open what will be used.
    pub(crate) fn probe_kernel(&self, db: &DbOptions, log: &InfoLog) {
        if db.merge_engine == MergeEngine::Kernel
            && let Ok(machine) = self.machine(db, log)
        {
            self.keep(machine, &*db.clock);
        }
    }

    /// Remembers why; true when it is news.
    fn note(&self, reason: Option<String>) -> bool {
        let mut fallback = self.fallback.lock();
        let news = reason.is_some() && *fallback != reason;
        *fallback = reason;
        news
    }
}

/// Which engine did what since the database was opened (`Db::engine_parts`). A compaction has one part, or several
/// where it is split over threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineParts {
    /// Parts of compactions by plain calls.
    pub pread: u64,
    /// Parts of compactions through a ring of io_uring.
    pub uring: u64,
    /// Parts of compactions that the kernel merged.
    pub kernel: u64,
    /// Flushes by plain calls.
    pub flushes_pread: u64,
    /// Flushes through a ring.
    pub flushes_uring: u64,
    /// Parts that `kernel` could not do, or not to their end, and that another engine did.
    pub handed_over: u64,
}

/// The process's machines, and this database's number among those who use them.
#[derive(Debug)]
struct Pooled {
    pool: Arc<Pool>,
    user: u64,
}

impl Default for Pooled {
    fn default() -> Self {
        let pool = Pool::shared();
        let user = pool.user();
        Self { pool, user }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.leave(self.user);
    }
}

/// How long a machine is kept that no part of a job takes.
const KERNEL_IDLE_NANOS: u64 = 60_000_000_000;

/// Memory that a merge in the kernel needs at least.
const KERNEL_MEMORY_MIN: usize = 4 << 20;

/// Memory that the options give a merge in the kernel.
pub(super) fn kernel_size(db: &DbOptions) -> Size {
    Size { bytes: db.compaction_io_memory.max(KERNEL_MEMORY_MIN), reads: db.kernel_reads_in_place }
}

/// What a database knows of its engine in the kernel.
#[derive(Debug, Default)]
struct KernelState {
    fallback: Option<String>,
    handed_over: Option<String>,
    said: Option<String>,
}

/// Whether the engine `kernel` is to be had with this driver, or why not, in one line.
///
/// # Errors
/// The reason: a capability or a newer kernel that it needs, or what the verifier has against the program.
pub fn probe_kernel_engine(driver: KernelDriver) -> Result<(), Unavailable> {
    let pool = Pool::shared();
    let object = MergeObject::built_in();
    let object = object.map_err(|e| Unavailable { reason: e.to_string(), log: String::new() })?;
    pool.take(object.program(driver)?, driver, KERNEL_MEMORY_MIN).map(|machine| pool.put(machine, 0, 0))
}

/// Of an engine's counter.
fn place(engine: MergeEngine) -> usize {
    match engine {
        MergeEngine::Auto | MergeEngine::Pread => 0,
        MergeEngine::Uring => 1,
        MergeEngine::Kernel => 2,
    }
}

/// The engine of one part of a job.
pub(super) enum Engine {
    /// Plain calls.
    Pread,
    /// A ring.
    Uring(LentRing),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())
    }
}

impl Engine {
    /// What the options ask for, as far as this machine has it, for a part that the calling thread does and that merges
    /// so many runs of tables (0: a flush). Where the kernel merges, this reads and writes.
    pub fn of(ctx: &JobContext, runs: usize) -> Self {
        match ctx.db.merge_engine {
            MergeEngine::Pread => Self::Pread,
            MergeEngine::Auto | MergeEngine::Uring | MergeEngine::Kernel => match ring(ctx, runs) {
                Ok(io) => {
                    ctx.engines.note(None);
                    Self::Uring(io)
                }
                Err(e) => {
                    if ctx.engines.note(Some(e.to_string())) {
                        log_warn!(ctx.events.log, "merge engine uring is not to be had, pread does its work: {e}");
                    }
                    Self::Pread
                }
            },
        }
    }

    /// Which it is.
    pub fn kind(&self) -> MergeEngine {
        match self {
            Self::Pread => MergeEngine::Pread,
            Self::Uring(_) => MergeEngine::Uring,
        }
    }

    /// The ring, for files that are written.
    pub fn io(&self) -> Option<&BatchIo> {
        match self {
            Self::Pread => None,
            Self::Uring(io) => Some(io),
        }
    }
}

/// A ring with memory for so many runs.
fn ring(ctx: &JobContext, runs: usize) -> std::io::Result<LentRing> {
    let limits = limits(&ctx.db);
    let memory = limits.memory_for(ctx.engines.device(ctx).as_ref(), runs);
    ctx.engines.rings.lend(&ctx.fs, &ctx.clock, &limits, memory)
}

/// What the options give a compacting thread's ring.
fn limits(options: &DbOptions) -> BatchLimits {
    let idle = u64::from(options.compaction_io_sqpoll_idle_ms);
    BatchLimits {
        memory_bytes: options.compaction_io_memory,
        sqpoll: (idle > 0).then(|| Duration::from_millis(idle)),
        ..BatchLimits::default()
    }
}

/// What a thread that looks keys up may use: enough for as many blocks as keep a device busy.
const READ_MEMORY: usize = 2 << 20;

/// How long it is taken for granted that there is no ring for lookups, once there was none.
const READ_RETRY_NANOS: u64 = 60_000_000_000;

impl Engines {
    /// A ring for the reads of many lookups; `None` where there is none to be had.
    pub(crate) fn read_ring(&self, fs: &Arc<dyn FileSystem>, clock: &Arc<dyn Clock>) -> Option<LentRing> {
        let refused = self.reads_refused.load(Ordering::Relaxed);
        if refused > 0 && clock.monotonic_nanos().saturating_sub(refused) < READ_RETRY_NANOS {
            return None;
        }
        // Files are many and used once: registering each would cost a call.
        let limits = BatchLimits {
            memory_bytes: READ_MEMORY,
            depth: 64,
            huge_pages: false,
            register: false,
            ..BatchLimits::default()
        };
        let ring = self.reads.lend(fs, clock, &limits, READ_MEMORY).ok();
        let refused = if ring.is_none() { clock.monotonic_nanos().max(1) } else { 0 };
        self.reads_refused.store(refused, Ordering::Relaxed);
        ring
    }

    /// What the device with the job's files likes.
    pub(crate) fn device(&self, ctx: &JobContext) -> Option<DeviceFacts> {
        let mut known = self.device.lock();
        if let Some((dir, device)) = &*known
            && *dir == ctx.dir
        {
            return device.clone();
        }
        known.insert((ctx.dir.clone(), ctx.fs.device(&ctx.dir))).1.clone()
    }

    /// Lets go of rings and machines that nobody used for a while.
    pub(crate) fn trim(&self, clock: &dyn Clock) {
        self.rings.trim(clock);
        self.reads.trim(clock);
        if let Some(Pooled { pool, user }) = &*self.pool.lock() {
            pool.trim(*user, clock.monotonic_nanos(), KERNEL_IDLE_NANOS);
        }
    }

    /// Ends helper threads and lets go of jobs' rings. Lookups may go on.
    pub(crate) fn close(&self) {
        self.helpers.close();
        self.rings.close();
    }

    /// Bytes set up for reads and writes in flight, of jobs and of lookups, rings that wait for the next ones included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.rings.memory_bytes() + self.reads.memory_bytes()
    }
}
