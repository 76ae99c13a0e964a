//! Where tables come from.

use std::sync::Arc;

use super::FileMeta;
use crate::error::Result;
use crate::table::Table;

/// Opens tables for a job or a read; the store's table cache.
pub trait TableSource: Send + Sync {
    /// The table of a file, opened if it is not yet.
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>>;
}
