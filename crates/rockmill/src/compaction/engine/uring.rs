//! The engine `uring`: reads and writes in flight while the merge goes on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_io::ring::{BatchLimits, DeviceFacts};
use rockmill_io::{Clock, FileSystem};

use super::rings::{LentRing, Rings};
use super::{MergeEngine, PartEnd, PartEngine, PartJob};
use crate::compaction::JobHost;
use crate::compaction::merge::ring_feed;
use crate::error::Result;
use crate::sync::{Mutex, Share};

pub(super) struct Uring;

impl PartEngine for Uring {
    fn kind(&self) -> MergeEngine {
        MergeEngine::Uring
    }

    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd> {
        let host = job.output.host();
        let wanted = RingUse { runs: job.runs_read(), cached: job.output.plan.cached, bytes: 0 };
        let Some(ring) = ring(host, wanted) else { return Ok(PartEnd::Missing) };
        job.merge(ring_feed::feeds(job.map, &ring, host, job.output.help)?, Some(&ring))
    }
}

/// What a ring needs memory for.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::compaction) struct RingUse {
    /// Runs of tables that are read and merged; none for a flush.
    pub runs: usize,
    /// They are read from the page cache, and the output goes there, by plain calls.
    pub cached: bool,
    /// Of other reads in flight.
    pub bytes: usize,
}

/// A ring for what the calling thread does. `None` where the options ask for `pread`, and where no ring can be made:
/// that is noted.
pub(in crate::compaction) fn ring(host: &dyn JobHost, wanted: RingUse) -> Option<LentRing> {
    let means = host.means();
    if means.db.merge_engine == MergeEngine::Pread {
        return None;
    }
    let lent = means.engines.rings.lend(host, wanted);
    let missing = lent.as_ref().err().map(ToString::to_string);
    means.engines.stats.note(MergeEngine::Uring, missing, &means.log);
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
    fn lend(&self, host: &dyn JobHost, wanted: RingUse) -> io::Result<LentRing> {
        let means = host.means();
        let limits = BatchLimits { memory_bytes: means.db.compaction_io_memory, ..BatchLimits::default() };
        let (device, runs) = (host.device(), wanted.runs);
        let of_runs = match wanted.cached {
            true => limits.memory_for_cached(device.as_ref(), runs),
            false => limits.memory_for(device.as_ref(), runs),
        };
        self.rings.lend(&means.fs, &means.clock, &limits, of_runs.saturating_add(wanted.bytes))
    }

    /// Counts memory that a job has for reads besides its ring, until the result is dropped.
    pub fn count(&self, bytes: usize) -> Share {
        self.rings.count(bytes)
    }

    /// What the device with a directory prefers.
    pub fn device(&self, fs: &dyn FileSystem, dir: &Path) -> Option<DeviceFacts> {
        let mut known = self.device.lock();
        if let Some((last, device)) = &*known
            && *last == dir
        {
            return device.clone();
        }
        known.insert((dir.to_owned(), fs.device(dir))).1.clone()
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
