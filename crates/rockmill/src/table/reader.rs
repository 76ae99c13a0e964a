//! Reads one table.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKeyComparator, SequenceNumber};
use rockmill_io::RandomAccessFile;

use super::cache::BlockCache;
use crate::error::Result;
use crate::get::GetContext;
use crate::iter::InternalIterator;
use crate::range_del::FragmentedRangeTombstones;

/// How one operation reads a table.
#[derive(Debug, Clone, Copy)]
pub struct TableReadOptions {
    /// Check block checksums.
    pub verify_checksums: bool,
    /// Put blocks that were read into the cache.
    pub fill_cache: bool,
    /// Read ahead this many bytes on sequential access; 0 lets the reader decide (grows from small as RocksDB's).
    pub readahead: usize,
    /// Answer from the cache only, `Incomplete` otherwise (RocksDB's `kBlockCacheTier`).
    pub cache_only: bool,
}

impl Default for TableReadOptions {
    fn default() -> Self {
        Self { verify_checksums: true, fill_cache: true, readahead: 0, cache_only: false }
    }
}

/// An open table. Index and filter stay in memory; data blocks come from the cache or the file.
pub struct TableReader {
    _private: (),
}

/// What `open` needs.
#[derive(Clone)]
pub struct TableOpenOptions {
    /// For error messages.
    pub path: PathBuf,
    /// Order of keys; the table's stored comparator name must be the same.
    pub cmp: InternalKeyComparator,
    /// Where data blocks are kept; `None` keeps none.
    pub cache: Option<Arc<BlockCache>>,
    /// Largest sequence number the MANIFEST gives for the file: an ingested file's global sequence number is checked
    /// against it. `None` when unknown.
    pub largest_seqno: Option<SequenceNumber>,
}

impl TableReader {
    /// Reads footer, properties, index, filter and range tombstones.
    pub fn open(file: Arc<dyn RandomAccessFile>, options: TableOpenOptions) -> Result<Arc<Self>> {
        let _ = (file, options);
        todo!()
    }

    /// Looks up `ikey` (user key with the snapshot's sequence number): tells `ctx` of the newest range tombstone over
    /// it at or below the snapshot, then asks the filter, then offers entries of that user key, newest first.
    pub fn get(&self, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        let _ = (ikey, ro, ctx);
        todo!()
    }

    /// Iterates over the point entries; the table stays open while the iterator lives.
    pub fn iter(self: &Arc<Self>, ro: TableReadOptions) -> Box<dyn InternalIterator> {
        let _ = ro;
        todo!()
    }

    /// The range tombstones, fragmented; `None` when there are none.
    pub fn range_tombstones(&self) -> Option<&Arc<FragmentedRangeTombstones>> {
        todo!()
    }

    /// The properties.
    pub fn properties(&self) -> &TableProperties {
        todo!()
    }

    /// Offset in the file where the data for `ikey` begins or would begin.
    pub fn approximate_offset(&self, ikey: &[u8]) -> u64 {
        let _ = ikey;
        todo!()
    }

    /// User keys that cut the table into parts of about equal bytes (from the index), for subcompactions: (key, bytes
    /// up to it), at most `max` of them.
    pub fn anchors(&self, max: usize) -> Result<Vec<(Vec<u8>, u64)>> {
        let _ = max;
        todo!()
    }

    /// Reads every block, checks checksums, key order, that the index agrees with the data, that the filter has every
    /// key, and the counts in the properties.
    pub fn verify(&self) -> Result<()> {
        todo!()
    }

    /// Bytes of index, filter and tombstones held in memory.
    pub fn memory_usage(&self) -> usize {
        todo!()
    }
}
