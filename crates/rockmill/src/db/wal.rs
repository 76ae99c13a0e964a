//! The write-ahead log's writing end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::filename;
use rockmill_format::log::LogEncoder;
use rockmill_io::{FileSystem, WritableFile, WriteOptions};

use crate::error::{Error, Result};

/// One WAL file being written.
#[derive(Debug)]
pub(crate) struct WalWriter {
    file: Box<dyn WritableFile>,
    encoder: LogEncoder,
    path: PathBuf,
    pub number: u64,
    /// Encoded bytes of the record being written; kept for its memory.
    buffer: Vec<u8>,
    /// Bytes of the file that are not yet durable.
    unsynced: bool,
}

/// Keeps the encode buffer from holding on to the memory of one huge batch.
const BUFFER_KEEP_BYTES: usize = 1 << 20;

impl WalWriter {
    /// Creates the file and makes its name durable, so that a synced record in it can be found after a power cut.
    pub fn create(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        number: u64,
        options: WriteOptions,
        recycle: Option<u64>,
        recyclable: bool,
    ) -> Result<Self> {
        let path = dir.join(filename::wal(number));
        let file = match recycle {
            Some(old) => fs.reuse(&dir.join(filename::wal(old)), &path, options),
            None => fs.create(&path, options),
        };
        let file = file.map_err(|e| Error::io(format_args!("cannot create {}", path.display()), &e))?;
        fs.sync_dir(dir).map_err(|e| Error::io(format_args!("cannot sync {}", dir.display()), &e))?;
        let encoder = LogEncoder::new(number, recyclable, 0);
        Ok(Self { file, encoder, path, number, buffer: Vec::new(), unsynced: false })
    }

    /// Appends a record and hands it to the kernel: it survives the process from here on.
    pub fn add_record(&mut self, record: &[u8]) -> Result<u64> {
        self.buffer.clear();
        self.encoder.add_record(record, &mut self.buffer);
        self.unsynced = true;
        let n = self.buffer.len() as u64;
        let done = self.file.append_and_flush(&self.buffer);
        if self.buffer.capacity() > BUFFER_KEEP_BYTES {
            self.buffer = Vec::new();
        }
        done.map(|()| n).map_err(|e| Error::io(format_args!("cannot write {}", self.path.display()), &e))
    }

    /// Makes everything appended durable.
    pub fn sync(&mut self) -> Result<()> {
        if !self.unsynced {
            return Ok(());
        }
        self.file.sync().map_err(|e| Error::io(format_args!("cannot sync {}", self.path.display()), &e))?;
        self.unsynced = false;
        Ok(())
    }

    /// Closes the file; not durable without `sync` before.
    pub fn close(&mut self) -> Result<()> {
        self.file.close().map_err(|e| Error::io(format_args!("cannot close {}", self.path.display()), &e))
    }

    pub fn size(&self) -> u64 {
        self.file.len()
    }
}

/// The WAL in use and those left behind it that are not yet durable. Only the write leader and `sync_closed` touch it.
#[derive(Debug, Default)]
pub(crate) struct WalState {
    pub current: Option<WalWriter>,
    /// Left, not yet synced. A synced write must be preceded by everything before it.
    pub older: Vec<WalWriter>,
    /// Obsolete files kept for reuse.
    pub recycle: Vec<u64>,
}

impl WalState {
    /// Makes the WALs before the current one durable and closes them.
    pub fn sync_older(&mut self) -> Result<()> {
        while let Some(w) = self.older.first_mut() {
            w.sync()?;
            w.close()?;
            self.older.remove(0);
        }
        Ok(())
    }

    /// Makes every record written so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.sync_older()?;
        match &mut self.current {
            Some(w) => w.sync(),
            None => Ok(()),
        }
    }
}
