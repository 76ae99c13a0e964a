//! The source of tables.

use std::sync::Arc;

use super::FileMeta;
use crate::error::Result;
use crate::table::Table;

/// Opens tables for a job or a read; the implementation is the store's table cache.
pub trait TableSource: Send + Sync {
    /// The table of a file; opens it if necessary.
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>>;
}
