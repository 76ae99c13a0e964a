//! What a read sees of a column family: one memtable, its immutable predecessors and one version.

use std::sync::Arc;

use crate::memtable::MemTable;
use crate::version::Version;

/// Everything that a read of one column family needs, kept alive together (RocksDB's `SuperVersion`).
pub(crate) struct SuperVersion {
    /// The memtable that writers fill.
    pub mem: Arc<MemTable>,
    /// Full ones, newest first.
    pub imm: Vec<Arc<MemTable>>,
    /// The tables.
    pub version: Arc<Version>,
}
