//! Reading and writing the MANIFEST, and CURRENT which names it.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::edit::VersionEdit;
use rockmill_io::FileSystem;

use super::{PurgeQueue, Version};
use crate::error::Result;
use rockmill_format::InternalKeyComparator;
use rockmill_format::key::{InternalKey, SequenceNumber};

/// A column family as the MANIFEST leaves it.
pub struct RecoveredCf {
    /// Id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Stored comparator name.
    pub comparator_name: String,
    /// WALs below this hold nothing for it.
    pub log_number: u64,
    /// Its tables.
    pub version: Version,
    /// Compaction cursors by level.
    pub cursors: Vec<(u32, InternalKey)>,
}

/// Everything that the MANIFEST says.
pub struct RecoveredState {
    /// Number of the MANIFEST that was read.
    pub manifest_number: u64,
    /// Size in bytes of it.
    pub manifest_size: u64,
    /// Database id, if recorded.
    pub db_id: Option<String>,
    /// Next unused file number.
    pub next_file_number: u64,
    /// Last sequence number in tables.
    pub last_sequence: SequenceNumber,
    /// Lowest WAL kept for two-phase commit.
    pub min_log_number_to_keep: u64,
    /// Largest id ever used.
    pub max_column_family: u32,
    /// WALs the MANIFEST tracks: number and synced size.
    pub tracked_wals: Vec<(u64, Option<u64>)>,
    /// Live column families by id, the default one first.
    pub column_families: Vec<RecoveredCf>,
}

/// Reads CURRENT and the MANIFEST it names. `cf_order` gives comparator and level count for a column family's name
/// and stored comparator name (an error when they do not fit; for read-only inspection a caller may accept any).
pub fn recover_manifest(
    fs: &dyn FileSystem,
    dir: &Path,
    purge: &Arc<PurgeQueue>,
    cf_order: &mut dyn FnMut(&str, &str) -> Result<(InternalKeyComparator, usize)>,
) -> Result<RecoveredState> {
    let _ = (fs, dir, purge, cf_order);
    todo!()
}

/// Appends version edits to a MANIFEST.
pub struct ManifestWriter {
    _private: (),
}

impl ManifestWriter {
    /// Creates `MANIFEST-<number>` with `snapshot` (the edits that describe the present state), syncs it, points
    /// CURRENT at it (temp file, rename, directory sync).
    pub fn create(fs: &Arc<dyn FileSystem>, dir: &Path, number: u64, snapshot: &[VersionEdit]) -> Result<Self> {
        let _ = (fs, dir, number, snapshot);
        todo!()
    }

    /// Appends edits (each already marked with its atomic group where needed) and syncs.
    pub fn append(&mut self, edits: &[VersionEdit]) -> Result<()> {
        let _ = edits;
        todo!()
    }

    /// Bytes written.
    pub fn size(&self) -> u64 {
        todo!()
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        todo!()
    }
}
