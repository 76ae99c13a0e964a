//! The engine `uring`: reads and writes in flight while the merge goes on.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_io::Clock;
use rockmill_io::ring::{BatchLimits, DeviceFacts};

use super::rings::{LentRing, Rings};
use super::{JobContext, MergeEngine, PartEnd, PartEngine, PartJob};
use crate::compaction::merge::ring_feed;
use crate::error::Result;
use crate::sync::Mutex;

pub(super) struct Uring;

impl PartEngine for Uring {
    fn kind(&self) -> MergeEngine {
        MergeEngine::Uring
    }

    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd> {
        let ctx = job.output.ctx;
        let Some(ring) = ring(ctx, job.runs_read()) else { return Ok(PartEnd::Missing) };
        job.merge(ring_feed::feeds(job.map, &ring, ctx, job.output.help)?, Some(&ring))
    }
}

/// A ring for what the calling thread does, which merges so many runs of tables (0: a flush). `None` where the options
/// ask for `pread`, and where no ring can be made: that is noted.
pub(in crate::compaction) fn ring(ctx: &JobContext, runs: usize) -> Option<LentRing> {
    if ctx.db.merge_engine == MergeEngine::Pread {
        return None;
    }
    let lent = ctx.engines.rings.lend(ctx, runs);
    let missing = lent.as_ref().err().map(ToString::to_string);
    ctx.engines.stats.note(MergeEngine::Uring, missing, &ctx.events.log);
    lent.ok()
}

/// The rings of a database's jobs.
#[derive(Debug, Default)]
pub(crate) struct JobRings {
    rings: Arc<Rings>,
    /// The device with a directory.
    device: Mutex<Option<(PathBuf, Option<DeviceFacts>)>>,
}

impl JobRings {
    fn lend(&self, ctx: &JobContext, runs: usize) -> io::Result<LentRing> {
        let limits = BatchLimits { memory_bytes: ctx.db.compaction_io_memory, ..BatchLimits::default() };
        let memory = limits.memory_for(self.device(ctx).as_ref(), runs);
        self.rings.lend(&ctx.fs, &ctx.clock, &limits, memory)
    }

    /// What the device with the job's files likes.
    pub fn device(&self, ctx: &JobContext) -> Option<DeviceFacts> {
        let mut known = self.device.lock();
        if let Some((dir, device)) = &*known
            && *dir == ctx.dir
        {
            return device.clone();
        }
        known.insert((ctx.dir.clone(), ctx.fs.device(&ctx.dir))).1.clone()
    }

    pub(super) fn trim(&self, clock: &dyn Clock) {
        self.rings.trim(clock);
    }

    pub(super) fn close(&self) {
        self.rings.close();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.rings.memory_bytes()
    }

    /// Rings made with memory of their own so far.
    #[cfg(test)]
    pub fn made(&self) -> u64 {
        self.rings.made()
    }
}
