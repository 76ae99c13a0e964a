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
        let Some(ring) = ring(host, job.runs_read(), 0) else { return Ok(PartEnd::Missing) };
        job.merge(ring_feed::feeds(job.map, &ring, host, job.output.help)?, Some(&ring))
    }
}

/// A ring for what the calling thread does, which merges so many runs of tables (0: a flush), and has `bytes` of other
/// reads in flight. `None` where the options ask for `pread`, and where no ring can be made: that is noted.
pub(in crate::compaction) fn ring(host: &dyn JobHost, runs: usize, bytes: usize) -> Option<LentRing> {
    let means = host.means();
    if means.db.merge_engine == MergeEngine::Pread {
        return None;
    }
    let lent = means.engines.rings.lend(host, runs, bytes);
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
    fn lend(&self, host: &dyn JobHost, runs: usize, bytes: usize) -> io::Result<LentRing> {
        let means = host.means();
        let limits = BatchLimits { memory_bytes: means.db.compaction_io_memory, ..BatchLimits::default() };
        let memory = limits.memory_for(host.device().as_ref(), runs).saturating_add(bytes);
        self.rings.lend(&means.fs, &means.clock, &limits, memory)
    }

    /// Counts memory that a job has for reads besides its ring, until the result is dropped.
    pub fn count(&self, bytes: usize) -> Share {
        self.rings.count(bytes)
    }

    /// What the device with a directory likes.
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
