//! Which engine does a job, and what it needs for that.
//!
//! `uring` gives each thread one ring with its arena, kept as long as the thread lives: an arena on huge pages that the
//! kernel has registered costs milliseconds to set up. `pread` needs nothing and is always there. Where a ring is not
//! to be had, the reason is said once, in the log and in `rockmill.stats`, and `pread` does the work.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::FileSystem;
use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits};

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
    /// The thread's ring.
    Uring(BatchIo),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())
    }
}

impl Engine {
    /// What the options ask for, as far as this machine has it, for a part that the calling thread does.
    pub fn of(ctx: &JobContext) -> Self {
        let engine = match ctx.db.merge_engine {
            MergeEngine::Pread => Self::Pread,
            MergeEngine::Auto | MergeEngine::Uring => match ring(&ctx.fs, limits(&ctx.db)) {
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

/// What the options give a compacting thread's ring.
fn limits(options: &DbOptions) -> BatchLimits {
    let idle = u64::from(options.compaction_io_sqpoll_idle_ms);
    BatchLimits {
        memory_bytes: options.compaction_io_memory,
        sqpoll: (idle > 0).then(|| Duration::from_millis(idle)),
        ..BatchLimits::default()
    }
}

/// A ring that is kept.
struct Kept {
    fs: Arc<dyn FileSystem>,
    io: BatchIo,
}

crate::sync::thread_local! {
    /// This thread's ring.
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// What a thread that looks keys up may use: enough for as many blocks as keep a device busy.
const READ_MEMORY: usize = 2 << 20;

/// A file system, and its ring if there is one.
type ReadRing = (Arc<dyn FileSystem>, Option<BatchIo>);

crate::sync::thread_local! {
    /// This thread's ring for lookups, or that there is none to be had.
    static READS: RefCell<Option<ReadRing>> = const { RefCell::new(None) };
}

/// A ring for the reads of many lookups, kept as long as the thread lives; `None` where there is none to be had.
pub(crate) fn read_ring(fs: &Arc<dyn FileSystem>) -> Option<BatchIo> {
    READS.with(|kept| {
        let mut kept = kept.borrow_mut();
        if let Some((of, io)) = &*kept
            && Arc::ptr_eq(of, fs)
        {
            return io.clone();
        }
        // Files are many and used once: registering each would cost a call.
        let limits = BatchLimits {
            memory_bytes: READ_MEMORY,
            depth: 64,
            huge_pages: false,
            register: false,
            ..BatchLimits::default()
        };
        let io = fs.batch_io(BatchKind::Uring, &limits).ok();
        kept.insert((Arc::clone(fs), io)).1.clone()
    })
}

/// This thread's ring, made on first use.
fn ring(fs: &Arc<dyn FileSystem>, limits: BatchLimits) -> std::io::Result<BatchIo> {
    KEPT.with(|kept| {
        let mut kept = kept.borrow_mut();
        if let Some(kept) = &mut *kept
            && Arc::ptr_eq(&kept.fs, fs)
            && *kept.io.limits() == limits
            && kept.io.free_bytes() == kept.io.facts().memory_bytes
        {
            return Ok(kept.io.clone());
        }
        *kept = None; // its memory is free before the next one's is taken
        let io = fs.batch_io(BatchKind::Uring, &limits)?;
        Ok(kept.insert(Kept { fs: Arc::clone(fs), io }).io.clone())
    })
}
