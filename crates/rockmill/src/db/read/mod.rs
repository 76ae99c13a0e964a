//! The read path: lookups, iterators, snapshots.
//!
//! | file | what happens there |
//! |---|---|
//! | `get.rs`, `multi_get.rs` | lookups of one key, of many |
//! | `iterator.rs`, `prefix_scan.rs`, `iterator_counts.rs` | iterators of users, over those of `crate::iter` |
//! | `seek_reads.rs` | the blocks that the runs of a seek need, read together |
//! | `key_versions.rs` | every version of every key, for tools |
//! | `range_view.rs` | which range tombstone hides a key |
//! | `snapshot.rs` | snapshots, and what their end makes due |
//! | `tables.rs` | the table cache |

pub(crate) mod get;
pub(crate) mod iterator;
pub(crate) mod iterator_counts;
pub(crate) mod key_versions;
pub(crate) mod multi_get;
pub(crate) mod prefix_scan;
pub(crate) mod range_view;
pub(crate) mod seek_reads;
pub(crate) mod snapshot;
pub(crate) mod tables;

use std::sync::Arc;

use crate::options::DbOptions;
use crate::pacing::read_protection::ReadProtection;
use crate::table::BlockCache;
use snapshot::SnapshotList;
use tables::TableCache;

/// What the readers of an open database share.
pub(crate) struct Readers {
    tables: TableCache,
    snapshots: SnapshotList,
}

impl Readers {
    /// Of a database that is opened; see [`TableCache::new`].
    pub fn new(options: &DbOptions, cache: Option<Arc<BlockCache>>, protection: &Arc<ReadProtection>) -> Self {
        Self { tables: TableCache::new(options, cache, protection), snapshots: SnapshotList::default() }
    }

    /// Which tables are open.
    #[inline]
    pub fn tables(&self) -> &TableCache {
        &self.tables
    }

    /// What reads may go back to.
    pub fn snapshots(&self) -> &SnapshotList {
        &self.snapshots
    }
}
