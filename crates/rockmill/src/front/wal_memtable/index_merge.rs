//! An index merge: several full index tables of a column family are merged into one, while readers keep using them.
//!
//! [`FamilyFront::take_merge`] says which, [`IndexMerge::build`] makes the new one without any lock, and
//! [`FamilyFront::merged`] replaces them with it. Entries that no reader can see are left out; `memtable/merged.rs`
//! says what `visible` and the snapshots must be for that.
//!
//! [`FamilyFront::take_merge`]: super::family::FamilyFront::take_merge
//! [`FamilyFront::merged`]: super::family::FamilyFront::merged

use std::sync::Arc;

use rockmill_format::SequenceNumber;

use super::memory::FrontMemory;
use crate::error::Result;
use crate::memtable::{LeftOut, MergePlan, MergedMemTable, SealedTable};
use crate::options::CfOptions;

/// Which tables are merged.
pub(crate) struct IndexMerge {
    /// Newest first.
    tables: Vec<SealedTable>,
}

/// What they became.
pub(crate) struct MergedIndex {
    table: Arc<MergedMemTable>,
    left_out: LeftOut,
}

/// How a merge is done.
pub(crate) struct MergeMeans<'a> {
    /// Sequence numbers up to here were visible to readers before the snapshots were listed.
    pub visible: SequenceNumber,
    /// The live snapshots, rising.
    pub snapshots: &'a [SequenceNumber],
    /// How many threads work.
    pub threads: usize,
    /// Asked now and then by each of them; true ends the merge without a result.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl IndexMerge {
    pub(super) fn of(tables: Vec<SealedTable>) -> Self {
        Self { tables }
    }

    /// Newest first.
    pub(super) fn tables(&self) -> &[SealedTable] {
        &self.tables
    }

    /// How many tables become one.
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// Point entries and range tombstones in them.
    pub fn entries(&self) -> u64 {
        self.tables.iter().map(SealedTable::num_entries).sum()
    }

    /// Makes one of them; `None` when it was stopped.
    pub fn build(
        &self,
        memory: &FrontMemory,
        options: &CfOptions,
        means: &MergeMeans<'_>,
    ) -> Result<Option<MergedIndex>> {
        let plan = MergePlan {
            visible: means.visible,
            snapshots: means.snapshots,
            threads: means.threads,
            filter: &memory.filter_of(self.tables.iter().map(SealedTable::count).sum(), options),
            manager: memory.manager(),
            stop: means.stop,
        };
        let built = MergedMemTable::build(&self.tables, &plan)?;
        Ok(built.map(|(table, left_out)| MergedIndex { table: Arc::new(table), left_out }))
    }
}

impl MergedIndex {
    pub(super) fn into_table(self) -> SealedTable {
        SealedTable::Merged(self.table)
    }

    /// How many entries no reader can see any more.
    pub fn left_out(&self) -> u64 {
        self.left_out.entries
    }

    /// Bytes of their values in logs.
    pub fn left_bytes(&self) -> u64 {
        self.left_out.bytes_in_logs
    }
}
