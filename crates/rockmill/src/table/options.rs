//! How tables are opened, read and written, and the description of a written one: the same for every kind of table.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::compression::CompressionType;
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, SliceTransform};

use super::block_based::BlockBasedSettings;
use super::cache::BlockCache;
use super::compression::CompressionOptions;
use super::tph::{KeptPiece, PieceUse, TphSettings};
use crate::pacing::read_protection::ReadProtection;
use crate::statistics::Statistics;

/// How one operation reads a table.
#[derive(Debug, Clone, Copy)]
pub struct TableReadOptions {
    /// Check block checksums.
    pub verify_checksums: bool,
    /// Put blocks that were read into the cache.
    pub fill_cache: bool,
    /// Read ahead this many bytes after the wanted block on sequential access; 0 lets the reader decide (it begins
    /// small and grows, as in RocksDB).
    pub readahead: usize,
    /// Answer from the cache only, `Incomplete` otherwise (RocksDB's `kBlockCacheTier`).
    pub cache_only: bool,
    /// Read the blocks after a scan's window while the scan is in the window.
    pub async_io: bool,
}

impl Default for TableReadOptions {
    fn default() -> Self {
        Self { verify_checksums: true, fill_cache: true, readahead: 0, cache_only: false, async_io: false }
    }
}

/// When iterators begin to read ahead by themselves, and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AutoReadahead {
    /// Reads in sequence before.
    pub reads: u64,
    /// Bytes after the wanted block at first, doubled with each read.
    pub initial: usize,
    /// Bytes at most.
    pub max: usize,
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
    /// Where reads of the table are counted.
    pub statistics: Option<Arc<Statistics>>,
    /// Gets reports of users' reads that the file answers.
    pub read_protection: Option<Arc<ReadProtection>>,
    /// The column family's prefix extractor: a table whose filter holds prefixes made by an extractor of this name can
    /// be asked for them. RocksDB's own extractors are known by name without it.
    pub prefix_extractor: Option<SliceTransform>,
}

/// How index and filter are kept in the cache.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MetaCaching {
    pub in_cache: bool,
    pub high_priority: bool,
    pub pin: bool,
    pub on_demand: OnDemand,
}

/// For which files index and filter are in the block cache or nowhere, whatever the options say: only scans need them,
/// and read them again if there is no cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OnDemand {
    #[default]
    None,
    /// Heads of TPH tables.
    TphHeads,
    /// Any: the file is a piece of a TPH table.
    All,
}

/// Tables that no longer count, which a TPH table lists for a repair that has no MANIFEST. Numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplacedTables {
    /// Those that the job replaces; listed if the table has further files.
    pub by_job: Vec<u64>,
    /// Those that had been replaced when the job began, and whose files still existed.
    pub before: Vec<u64>,
}

/// Everything that decides a table's bytes. Times, ids and numbers are parameters, never taken from the environment, so
/// that the same input gives the same file.
#[derive(Clone)]
pub struct TableBuilderOptions {
    /// Order of keys.
    pub cmp: InternalKeyComparator,
    /// `Some` for a TPH table: the options only for such tables.
    pub tph: Option<TphSettings>,
    /// Files that a TPH table may keep using; of those whose keys overlap, the newest first.
    pub pieces: Arc<[KeptPiece]>,
    /// Tables that no longer count.
    pub replaced: Arc<ReplacedTables>,
    /// Options of the blocks, and those only for block-based tables.
    pub block_based: BlockBasedSettings,
    /// Of what the kind compresses.
    pub compression: CompressionType,
    /// Level, dictionary and the like.
    pub compression_opts: CompressionOptions,
    /// Size that the table should have, in bytes; 0 if unknown. No more bytes of blocks are held back for a dictionary.
    pub target_file_size: u64,
    /// Makes the prefixes for which the filter can be queried.
    pub prefix_extractor: Option<SliceTransform>,
    /// Properties that the caller knows: column family, db id, session id, times, file number, names.
    pub properties: TableProperties,
    /// For error messages.
    pub path: PathBuf,
    /// Where compression is counted.
    pub statistics: Option<Arc<Statistics>>,
}

impl std::fmt::Debug for TableBuilderOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableBuilderOptions")
            .field("cmp", &self.cmp)
            .field("block_based", &self.block_based)
            .field("compression", &self.compression)
            .field("compression_opts", &self.compression_opts)
            .field("prefix_extractor", &self.prefix_extractor)
            .finish_non_exhaustive()
    }
}

/// The result of `finish`.
#[derive(Debug, Clone, Default)]
pub struct TableSummary {
    /// Size of the table's own file, in bytes.
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
    /// Files that the table keeps using in addition to its own.
    pub pieces: Vec<PieceUse>,
}
