//! The record log that WAL and MANIFEST share (RocksDB `db/log_format.h`): 32 KiB blocks, records split into
//! fragments, each with a masked CRC-32C; the recyclable form carries the log's number.

use crate::error::FormatError;

/// Block size, in bytes.
pub const BLOCK_SIZE: usize = 32 * 1024;
/// Header of a fragment, in bytes.
pub const HEADER_LEN: usize = 7;
/// Header of a recyclable fragment, in bytes.
pub const RECYCLABLE_HEADER_LEN: usize = 11;

/// Turns records into log bytes. It does no I/O: each call appends to a buffer that the caller writes out.
#[derive(Debug)]
pub struct LogEncoder {
    _private: (),
}

impl LogEncoder {
    /// An encoder at `block_offset` (file length modulo the block size) of log `log_number`; `recyclable` writes
    /// the long headers.
    pub fn new(log_number: u64, recyclable: bool, block_offset: usize) -> Self {
        let _ = (log_number, recyclable, block_offset);
        todo!()
    }

    /// Appends `record` to `out`, fragmented.
    pub fn add_record(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let _ = (record, out);
        todo!()
    }
}

/// How much damage a log may have and still be read (RocksDB's `WALRecoveryMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryMode {
    /// A cut-off last record is ignored (it is what a crash leaves); all other damage is an error.
    TolerateCorruptedTailRecords,
    /// Any damage is an error.
    AbsoluteConsistency,
    /// Reading stops at the first damage; what came before is a consistent point in time. The default.
    #[default]
    PointInTime,
    /// Damaged records are left out, everything readable is kept.
    SkipAnyCorruptedRecords,
}

/// Source of log bytes, so that decoding stays free of I/O: fill `buf` from the next position, return the count,
/// which is short only at the end of the file.
pub trait ReadBlock {
    /// Error of the source.
    type Error;
    /// Reads up to `buf.len()` bytes.
    fn read_block(&mut self, buf: &mut [u8]) -> Result<usize, Self::Error>;
}

/// What [`LogReader::next_record`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// A whole record is in the buffer; it began at this offset of the file.
    Record {
        /// Offset of the first fragment's header.
        offset: u64,
    },
    /// Damage, and how many bytes were passed over because of it. Reading can go on.
    Damage {
        /// What is wrong and where (offset in the file).
        error: FormatError,
        /// Bytes dropped.
        dropped: u64,
    },
    /// End of the log. `clean` is false when it ends inside a record (what a crash leaves).
    End {
        /// No partial record at the end.
        clean: bool,
    },
}

/// Reads records back. It reports damage as events; what they mean under each recovery mode is the caller's part
/// (see [`RecoveryMode`]).
pub struct LogReader<R> {
    _source: R,
}

impl<R: ReadBlock> LogReader<R> {
    /// A reader of log `log_number` (fragments of a recycled log with another number end the log).
    pub fn new(source: R, log_number: u64) -> Self {
        let _ = log_number;
        Self { _source: source }
    }

    /// The next record into `record` (replaced).
    pub fn next_record(&mut self, record: &mut Vec<u8>) -> Result<LogEvent, R::Error> {
        let _ = record;
        todo!()
    }
}
