//! The write-ahead log's writing end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::batch::{BatchRecord, BatchRep};
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
    /// Where the records of this WAL end: the sequence number after the last update.
    end: Option<SequenceNumber>,
    /// What this one follows on; written before its first record.
    follows: Option<Follows>,
}

/// The first record of a WAL that follows on another: a write batch without updates whose log data names the WAL
/// before and the sequence number where that one ends.
///
/// A power cut may take the unsynced end of a WAL and leave a later one whole. Where the loss ends between two
/// records nothing in either file shows it: gaps in sequence numbers do not, because writes without a WAL leave such
/// gaps, too. With this record, recovery knows. RocksDB passes over log data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Follows {
    pub wal: u64,
    pub end: SequenceNumber,
}

/// Begins the log data of [`Follows`].
const FOLLOWS_MAGIC: &[u8; 16] = b"rockmill.follows";

impl Follows {
    fn record(self) -> BatchRep {
        let mut data = FOLLOWS_MAGIC.to_vec();
        data.extend_from_slice(&self.wal.to_le_bytes());
        data.extend_from_slice(&self.end.to_le_bytes());
        let mut rep = BatchRep::default();
        rep.push(BatchRecord::LogData(&data));
        rep.set_sequence(self.end);
        rep
    }

    /// What a WAL's record says, if it is of this kind.
    pub fn read(batch: &BatchRep) -> Option<Self> {
        if batch.count() != 0 {
            return None;
        }
        let Some(Ok(BatchRecord::LogData(data))) = batch.iter().next() else { return None };
        let (wal, end) = data.strip_prefix(FOLLOWS_MAGIC)?.split_at_checked(8)?;
        Some(Self { wal: u64::from_le_bytes(wal.try_into().ok()?), end: u64::from_le_bytes(end.try_into().ok()?) })
    }
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
        Ok(Self { file, encoder, path, number, buffer: Vec::new(), unsynced: false, end: None, follows: None })
    }

    /// Says that this WAL, still empty, goes on where `before` ends.
    pub fn follow(&mut self, before: &WalWriter) {
        self.follows = before.end.map(|end| Follows { wal: before.number, end });
    }

    /// Appends a batch and hands it to the kernel: it survives the process from here on.
    pub fn add_batch(&mut self, batch: &BatchRep) -> Result<u64> {
        self.buffer.clear();
        if let Some(follows) = self.follows.take() {
            self.encoder.add_record(follows.record().as_bytes(), &mut self.buffer);
        }
        self.encoder.add_record(batch.as_bytes(), &mut self.buffer);
        self.end = Some(batch.sequence() + u64::from(batch.count()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_wal_follows_is_read_back_and_is_no_update() {
        let follows = Follows { wal: 12, end: 345 };
        let record = follows.record();
        assert_eq!(Follows::read(&record), Some(follows));
        assert_eq!((record.count(), record.sequence()), (0, 345));

        let mut other = BatchRep::default();
        assert_eq!(Follows::read(&other), None, "an empty batch");
        other.push(BatchRecord::LogData(b"rockmill.follows and more"));
        assert_eq!(Follows::read(&other), None, "log data of a user");
        let mut update = record;
        update.push(BatchRecord::Delete { cf: 0, key: b"k" });
        assert_eq!(Follows::read(&update), None, "an update");
    }
}
