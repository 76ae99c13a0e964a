//! A table that is written and not durable yet: the next one is begun while the device completes the sync.

use std::path::PathBuf;

use rockmill_io::WritableFile;

use crate::error::{Error, Result};

/// The file of a table that is complete but not durable yet.
///
/// Dropping it without [`wait`](Self::wait) promises nothing about the table.
#[derive(Debug)]
pub struct SyncingTable {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    synced: bool,
}

impl SyncingTable {
    /// Begins to sync `file`. A file that cannot do so without waiting is durable when this returns.
    pub(super) fn begin(mut file: Box<dyn WritableFile>, path: PathBuf) -> Result<Self> {
        let begun = file.begin_sync();
        let synced = begun.map_err(|e| Error::io(format_args!("{}: syncing", path.display()), &e))?;
        Ok(Self { file, path, synced })
    }

    /// True if [`wait`](Self::wait) would not wait; advances the sync if it needs that.
    pub fn is_synced(&mut self) -> Result<bool> {
        if !self.synced {
            let done = self.file.poll_sync();
            self.synced = done.map_err(|e| Error::io(format_args!("{}: syncing", self.path.display()), &e))?;
        }
        Ok(self.synced)
    }

    /// Waits until the table is durable, and closes its file.
    pub fn wait(mut self) -> Result<()> {
        let synced = if self.synced { Ok(()) } else { self.file.sync() };
        synced
            .and_then(|()| self.file.close())
            .map_err(|e| Error::io(format_args!("{}: syncing", self.path.display()), &e))
    }
}
