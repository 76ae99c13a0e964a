//! Runs one compaction.

use super::{Compaction, JobContext, JobOutput};
use crate::error::Result;

/// Runs a compaction that is not a trivial move.
pub fn run(compaction: &Compaction, ctx: &JobContext) -> Result<JobOutput> {
    let _ = (compaction, ctx);
    todo!()
}
