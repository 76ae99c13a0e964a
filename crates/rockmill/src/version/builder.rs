//! Applies version edits to a version, with consistency checks (RocksDB `db/version_builder.cc`).

use std::sync::Arc;

use rockmill_format::edit::VersionEdit;

use super::{PurgeQueue, Version};
use crate::error::Result;

/// Gathers edits over a base version and gives the next one.
pub struct VersionBuilder {
    _private: (),
}

impl VersionBuilder {
    /// Starts from `base`.
    pub fn new(base: Arc<Version>, purge: Arc<PurgeQueue>) -> Self {
        let _ = (base, purge);
        todo!()
    }

    /// Applies the file changes of an edit. Deleting a file that is not there, adding one twice, or a level beyond the
    /// tree is corruption.
    pub fn apply(&mut self, edit: &VersionEdit) -> Result<()> {
        let _ = edit;
        todo!()
    }

    /// The new version: L0 sorted newest first (by epoch number, or sequence numbers where epochs are unknown),
    /// deeper levels by key; overlap inside a level is corruption. Files that left are not marked obsolete here.
    pub fn build(self) -> Result<Version> {
        todo!()
    }
}
