//! Write batches as they stand in the WAL (RocksDB `db/write_batch.cc`).
//!
//! ```text
//! u64 sequence of the first record | u32 count | records
//! ```

use crate::error::Result;
use crate::key::SequenceNumber;

/// Length of a batch's header, in bytes.
pub const HEADER_LEN: usize = 12;

/// One record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BatchRecord<'a> {
    Put {
        cf: u32,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        cf: u32,
        key: &'a [u8],
    },
    SingleDelete {
        cf: u32,
        key: &'a [u8],
    },
    Merge {
        cf: u32,
        key: &'a [u8],
        value: &'a [u8],
    },
    DeleteRange {
        cf: u32,
        begin: &'a [u8],
        end: &'a [u8],
    },
    /// Not applied; kept for replication.
    LogData(&'a [u8]),
    /// Two-phase commit marker; the batch is refused where transactions would be needed.
    Noop,
}

impl BatchRecord<'_> {
    /// True for the records that take a sequence number (all but `LogData` and `Noop`).
    pub fn counts(&self) -> bool {
        !matches!(self, BatchRecord::LogData(_) | BatchRecord::Noop)
    }
}

/// An encoded write batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRep {
    rep: Vec<u8>,
}

impl Default for BatchRep {
    fn default() -> Self {
        Self { rep: vec![0; HEADER_LEN] }
    }
}

impl BatchRep {
    /// Takes encoded bytes, for example a WAL record; checks the header only.
    pub fn from_bytes(rep: Vec<u8>) -> Result<Self> {
        let _ = rep;
        todo!()
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.rep
    }

    /// Sequence number of the first counted record.
    pub fn sequence(&self) -> SequenceNumber {
        todo!()
    }

    /// Sets the sequence number.
    pub fn set_sequence(&mut self, seq: SequenceNumber) {
        let _ = seq;
        todo!()
    }

    /// Number of counted records.
    pub fn count(&self) -> u32 {
        todo!()
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.rep.clear();
        self.rep.resize(HEADER_LEN, 0);
    }

    /// Appends a record (column family 0 takes the short form).
    pub fn push(&mut self, record: BatchRecord<'_>) {
        let _ = record;
        todo!()
    }

    /// Appends all records of `other` (write groups).
    pub fn append(&mut self, other: &BatchRep) {
        let _ = other;
        todo!()
    }

    /// The records in order; each item may be an error (then the iterator ends). Checks at the end that the header's
    /// count is right.
    pub fn iter(&self) -> BatchIter<'_> {
        todo!()
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.rep.len()
    }
}

/// Iterator over a batch's records.
pub struct BatchIter<'a> {
    _rest: &'a [u8],
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<BatchRecord<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}
