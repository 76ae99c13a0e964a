//! Whole files: their numbers, deletion and copies, files from elsewhere, and repair.
//!
//! | file | what happens there |
//! |---|---|
//! | `numbers.rs` | numbers of files |
//! | `new_tables.rs` | tables that are not live yet |
//! | `deletion.rs` | the deletion of files, and what delays it |
//! | `checkpoint.rs` | checkpoints |
//! | `export.rs` | column families exported and imported |
//! | `ingest/` | ingestion of tables that were written elsewhere |
//! | `delete_files.rs` | whole tables deleted by key range |
//! | `repair/` | repair of damaged databases |

pub(crate) mod checkpoint;
pub(crate) mod delete_files;
pub(crate) mod deletion;
pub(crate) mod export;
pub(crate) mod ingest;
pub(crate) mod new_tables;
pub(crate) mod numbers;
pub(crate) mod repair;

use std::sync::Arc;

use crate::sync::atomic::AtomicUsize;
use crate::version::{NewTables, PurgeQueue};
use numbers::FileNumbers;

/// What an open database knows about its files.
pub(crate) struct Files {
    numbers: FileNumbers,
    purge: Arc<PurgeQueue>,
    /// While this is not 0, no file is deleted.
    deletions_off: AtomicUsize,
    /// Tables that jobs have written but not committed. A leaf lock.
    new_tables: Arc<NewTables>,
}

impl Files {
    /// The next file gets number `next`; `purge` has the files to delete.
    pub fn new(next: u64, purge: Arc<PurgeQueue>) -> Self {
        let (deletions_off, new_tables) = (AtomicUsize::new(0), Arc::default());
        Self { numbers: FileNumbers::new(next), purge, deletions_off, new_tables }
    }

    /// The numbers that files have.
    pub fn numbers(&self) -> &FileNumbers {
        &self.numbers
    }

    /// The queue for tables that no version and no reader uses any more.
    pub fn purge(&self) -> &Arc<PurgeQueue> {
        &self.purge
    }
}
