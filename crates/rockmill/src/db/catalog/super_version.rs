//! What a read sees of a column family: the data that is in no table, and one version.

use std::sync::Arc;

use crate::front::FrontView;
use crate::version::Version;

/// Everything that a read of one column family needs, kept alive together (RocksDB's `SuperVersion`). A read loads it
/// before the visible sequence number: an older number could ask for entries that a compaction did not keep.
pub(crate) struct SuperVersion {
    /// What is in no table; writers insert into it.
    pub front: FrontView,
    /// The tables.
    pub version: Arc<Version>,
}
