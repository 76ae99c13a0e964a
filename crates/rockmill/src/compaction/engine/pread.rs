//! The engine `pread`: plain calls. Tests compare the other engines with it.

use super::{MergeEngine, PartEnd, PartEngine, PartJob};
use crate::compaction::merge::feed;
use crate::error::Result;

pub(super) struct Pread;

impl PartEngine for Pread {
    fn kind(&self) -> MergeEngine {
        MergeEngine::Pread
    }

    fn run(&self, job: &PartJob<'_>) -> Result<PartEnd> {
        job.merge(feed::feeds(job.map, job.output.host(), job.output.help), None)
    }
}
