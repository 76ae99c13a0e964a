//! Which engine does a job, and what it needs for that.
//!
//! `uring` borrows a ring with its arena from the database ([`Rings`]), which keeps them from job to job. `pread` needs
//! nothing and is always there. Where a ring is not to be had, the reason is said once, in the log and in
//! `rockmill.stats`, and `pread` does the work.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::ring::{BatchIo, BatchLimits, DeviceFacts};
use rockmill_io::{Clock, FileSystem};

use super::rings::{LentRing, Rings};
use super::{JobContext, MergeEngine};
use crate::helpers::Helpers;
use crate::info_log::log_warn;
use crate::options::DbOptions;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a database knows of its engines.
#[derive(Debug, Default)]
pub struct Engines {
    /// Why the last job that wanted a ring did without.
    fallback: Mutex<Option<String>>,
    /// Jobs' parts done by `pread` and by `uring`.
    parts: [AtomicU64; 2],
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
        self.parts[usize::from(engine == MergeEngine::Uring)].load(Ordering::Relaxed)
    }

    /// Remembers why; true when it is news.
    fn note(&self, reason: Option<String>) -> bool {
        let mut fallback = self.fallback.lock();
        let news = reason.is_some() && *fallback != reason;
        *fallback = reason;
        news
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
    /// so many runs of tables (0: a flush).
    pub fn of(ctx: &JobContext, runs: usize) -> Self {
        let engine = match ctx.db.merge_engine {
            MergeEngine::Pread => Self::Pread,
            MergeEngine::Auto | MergeEngine::Uring => match ring(ctx, runs) {
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
        };
        ctx.engines.parts[usize::from(engine.kind() == MergeEngine::Uring)].fetch_add(1, Ordering::Relaxed);
        engine
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

    /// Lets go of rings that nobody used for a while.
    pub(crate) fn trim(&self, clock: &dyn Clock) {
        self.rings.trim(clock);
        self.reads.trim(clock);
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
