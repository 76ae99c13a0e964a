//! The work of a database's engines, and why a requested engine was not used.

use super::MergeEngine;
use crate::front::LogReadCounts;
use crate::info_log::{InfoLog, log_warn};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct EngineStats {
    /// Parts of jobs, flushes included, by `pread`, by `uring` and by `kernel`.
    parts: [AtomicU64; 3],
    /// Those of them that are flushes.
    flushes: [AtomicU64; 3],
    /// What flushes read from logs.
    log_reads: Mutex<LogReadCounts>,
    /// Parts that an engine gave up, for another one to do.
    handed_over: AtomicU64,
    /// Why the last of them was handed over.
    reason: Mutex<Option<String>>,
    /// Why an engine was not available at its last request.
    missing: [Mutex<Option<String>>; 3],
}

impl EngineStats {
    /// Parts of jobs that an engine did, flushes included.
    pub fn parts(&self, engine: MergeEngine) -> u64 {
        self.parts[place(engine)].load(Ordering::Relaxed)
    }

    /// Counts a part that an engine did.
    pub fn count(&self, engine: MergeEngine) {
        self.parts[place(engine)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a flush, which is one part.
    pub fn count_flush(&self, engine: MergeEngine) {
        self.flushes[place(engine)].fetch_add(1, Ordering::Relaxed);
        self.count(engine);
    }

    /// Counts what a flush read from logs.
    pub fn count_log_reads(&self, more: LogReadCounts) {
        let mut sum = self.log_reads.lock();
        sum.values += more.values;
        sum.reads += more.reads;
        sum.bytes += more.bytes;
    }

    /// What flushes read from logs so far.
    pub fn log_reads(&self) -> LogReadCounts {
        *self.log_reads.lock()
    }

    /// What each engine did so far.
    pub fn counts(&self) -> EngineParts {
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

    /// Counts a part that an engine hands over. A new reason is logged.
    pub fn hand_over(&self, engine: MergeEngine, reason: String, log: &InfoLog) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        let before = self.reason.lock().replace(reason.clone());
        if before.as_ref() != Some(&reason) {
            log_warn!(log, "merge engine {engine} hands a job part to another engine: {reason}");
        }
    }

    /// How many parts were handed over, and why the last one was.
    pub fn handed_over(&self) -> (u64, Option<String>) {
        (self.handed_over.load(Ordering::Relaxed), self.reason.lock().clone())
    }

    /// Why an engine was not available at its last use; `None` if it was available, or was never used.
    pub fn missing(&self, engine: MergeEngine) -> Option<String> {
        self.missing[place(engine)].lock().clone()
    }

    /// Notes that an engine that is asked for is available, or why it is not. A new reason is logged; then the result
    /// is true.
    pub fn note(&self, engine: MergeEngine, missing: Option<String>, log: &InfoLog) -> bool {
        let before = std::mem::replace(&mut *self.missing[place(engine)].lock(), missing.clone());
        if missing == before {
            return false;
        }
        let Some(reason) = missing else { return false };
        let other = if engine == MergeEngine::Kernel { MergeEngine::Auto } else { MergeEngine::Pread };
        log_warn!(log, "merge engine {engine} is not available, {other} does its work: {reason}");
        true
    }
}

/// Of an engine's counters.
fn place(engine: MergeEngine) -> usize {
    match engine {
        MergeEngine::Auto | MergeEngine::Pread => 0,
        MergeEngine::Uring => 1,
        MergeEngine::Kernel => 2,
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
    /// Parts that `kernel` could not do, or not to their end.
    pub handed_over: u64,
}
