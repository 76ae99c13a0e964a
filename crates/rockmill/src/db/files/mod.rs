//! Whole files: numbers, deletion, copies, files of others, what is left of a database.
//!
//! | file | what happens there |
//! |---|---|
//! | `numbers.rs` | numbers of files |
//! | `new_tables.rs` | tables that are not live yet |
//! | `deletion.rs` | what is deleted, and what holds that off |
//! | `checkpoint.rs` | checkpoints |
//! | `export.rs` | column families exported and imported |
//! | `ingest/` | tables that others wrote become part of the database |
//! | `delete_files.rs` | whole tables deleted by key range |
//! | `repair/` | databases out of what is left of them |

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

/// What an open database knows of its files.
pub(crate) struct Files {
    numbers: FileNumbers,
    purge: Arc<PurgeQueue>,
    /// While it is not 0, no file is deleted.
    deletions_off: AtomicUsize,
    /// Of tables that jobs wrote and have not committed. A leaf lock.
    new_tables: Arc<NewTables>,
}

impl Files {
    /// The next file has number `next`, and `purge` has those that are to be deleted.
    pub fn new(next: u64, purge: Arc<PurgeQueue>) -> Self {
        let (deletions_off, new_tables) = (AtomicUsize::new(0), Arc::default());
        Self { numbers: FileNumbers::new(next), purge, deletions_off, new_tables }
    }

    /// The numbers that files have.
    pub fn numbers(&self) -> &FileNumbers {
        &self.numbers
    }

    /// What tables are handed to when no version and no reader has them any more.
    pub fn purge(&self) -> &Arc<PurgeQueue> {
        &self.purge
    }
}
