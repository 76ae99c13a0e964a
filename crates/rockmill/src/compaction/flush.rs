//! Flush: immutable memtables into one L0 table.

use std::sync::Arc;

use rockmill_format::edit::FileEntry;

use super::{JobContext, JobStats};
use crate::error::Result;
use crate::memtable::MemTable;

/// Writes `memtables` (oldest first) as one L0 table; `None` when nothing survives. The epoch number is the caller's
/// to set.
pub fn build_l0(memtables: &[Arc<MemTable>], ctx: &JobContext) -> Result<Option<(FileEntry, JobStats)>> {
    let _ = (memtables, ctx);
    todo!()
}
