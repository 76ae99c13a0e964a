//! Where tables come from.

use std::sync::Arc;

use super::FileMeta;
use crate::error::Result;
use crate::table::TableReader;

/// Opens tables for a job or a read; the store's table cache.
pub trait TableSource: Send + Sync {
    /// The reader of a file, opened if it is not yet.
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<TableReader>>;
    /// A reader for compaction input: own handle where direct I/O or readahead asks for it.
    fn table_for_compaction(&self, file: &Arc<FileMeta>) -> Result<Arc<TableReader>>;
}
