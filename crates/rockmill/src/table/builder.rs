//! Writes one table.

use std::path::PathBuf;

use rockmill_format::checksum::ChecksumType;
use rockmill_format::compression::CompressionType;
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber};
use rockmill_io::WritableFile;

use crate::error::Result;

/// Everything that decides a table's bytes. Times, ids and numbers are given, never taken from the world, so that
/// the same input gives the same file.
#[derive(Clone)]
pub struct TableBuilderOptions {
    /// Order of keys.
    pub cmp: InternalKeyComparator,
    /// Uncompressed size at which a data block ends, in bytes.
    pub block_size: usize,
    /// Percentage of `block_size` that may stay unused rather than split an entry over it.
    pub block_size_deviation: usize,
    /// Entries between restart points of data blocks.
    pub block_restart_interval: usize,
    /// The same for index blocks.
    pub index_block_restart_interval: usize,
    /// 5, 6 or 7.
    pub format_version: u32,
    /// Of blocks.
    pub checksum: ChecksumType,
    /// Of blocks.
    pub compression: CompressionType,
    /// Library's level; `i32::MAX` its default.
    pub compression_level: i32,
    /// Bits per key of the full Bloom filter; 0 writes none.
    pub bloom_bits_per_key: f64,
    /// Two-level index (RocksDB's `kTwoLevelIndexSearch`) with partitions of about `metadata_block_size` bytes.
    pub two_level_index: bool,
    /// Size of an index partition, in bytes.
    pub metadata_block_size: usize,
    /// Data block hash index: entries per bucket; `None` writes none.
    pub hash_index_util_ratio: Option<f64>,
    /// Properties that the caller knows: column family, db id, session id, times, file number, names.
    pub properties: TableProperties,
    /// For error messages.
    pub path: PathBuf,
}

/// What `finish` learned.
#[derive(Debug, Clone, Default)]
pub struct TableSummary {
    /// File size in bytes.
    pub file_size: u64,
    /// Smallest and largest internal key, range tombstones included; empty keys when the table is empty.
    pub smallest: InternalKey,
    /// See `smallest`.
    pub largest: InternalKey,
    /// Smallest sequence number.
    pub smallest_seqno: SequenceNumber,
    /// Largest sequence number.
    pub largest_seqno: SequenceNumber,
    /// As written.
    pub properties: TableProperties,
    /// Bytes from the first block after the data to the end of the file.
    pub tail_size: u64,
}

/// Builds a table: entries in order, range tombstones in order (at any time), `finish`.
pub struct TableBuilder {
    _private: (),
}

impl TableBuilder {
    /// A builder that appends to `file`.
    pub fn new(options: TableBuilderOptions, file: Box<dyn WritableFile>) -> Self {
        let _ = (options, file);
        todo!()
    }

    /// Adds a point entry. Keys rise strictly; a key out of order is an error, not a bad table.
    pub fn add(&mut self, ikey: &[u8], value: &[u8]) -> Result<()> {
        let _ = (ikey, value);
        todo!()
    }

    /// Adds a range tombstone; begins rise.
    pub fn add_range_tombstone(&mut self, begin: &[u8], end: &[u8], seq: SequenceNumber) -> Result<()> {
        let _ = (begin, end, seq);
        todo!()
    }

    /// Widens the file's boundaries beyond its points (truncated range tombstones); kept if outside.
    pub fn extend_boundaries(&mut self, smallest: &InternalKey, largest: &InternalKey) {
        let _ = (smallest, largest);
        todo!()
    }

    /// Point entries added.
    pub fn num_entries(&self) -> u64 {
        todo!()
    }

    /// Bytes written so far and buffered in the current block: near the final size.
    pub fn file_size_estimate(&self) -> u64 {
        todo!()
    }

    /// Writes the rest, syncs and closes the file.
    pub fn finish(self) -> Result<TableSummary> {
        todo!()
    }

    /// Closes without finishing; the caller deletes the file.
    pub fn abandon(self) {
        todo!()
    }
}
