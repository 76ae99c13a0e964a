//! How tables are opened, read and written, and what a written one holds: the same for every kind of table.

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
    /// Read ahead this many bytes behind the wanted block on sequential access; 0 lets the reader decide (grows from
    /// small as RocksDB's).
    pub readahead: usize,
    /// Answer from the cache only, `Incomplete` otherwise (RocksDB's `kBlockCacheTier`).
    pub cache_only: bool,
    /// Read what comes behind a scan's window while the scan goes through it.
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
    /// Bytes behind the wanted block at first, doubled with each read.
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
    /// Who is told of users' reads that the file answers.
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

/// Which files have index and filter in the block cache or nowhere, whatever the options say: only scans need them, and
/// read them again if there is no cache.
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
    /// Those that the job replaces; listed where the table has further files.
    pub by_job: Vec<u64>,
    /// Those that were replaced when the job began, and whose files were still there.
    pub before: Vec<u64>,
}

/// Everything that decides a table's bytes. Times, ids and numbers are given, never taken from the world, so that
/// the same input gives the same file.
#[derive(Clone)]
pub struct TableBuilderOptions {
    /// Order of keys.
    pub cmp: InternalKeyComparator,
    /// `Some` for a TPH table, with what is for such tables alone.
    pub tph: Option<TphSettings>,
    /// Files that a TPH table may go on using, newest first where their keys overlap.
    pub pieces: Arc<[KeptPiece]>,
    /// Tables that no longer count.
    pub replaced: Arc<ReplacedTables>,
    /// Of the blocks, and what is for block-based tables alone.
    pub block_based: BlockBasedSettings,
    /// Of what the kind compresses.
    pub compression: CompressionType,
    /// Level, dictionary and the like.
    pub compression_opts: CompressionOptions,
    /// Size that the table should have, in bytes; 0 unknown. Blocks held back for a dictionary are no more.
    pub target_file_size: u64,
    /// Makes the prefixes that can be asked for.
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

/// What `finish` learned.
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
    /// Files that the table goes on using beside its own.
    pub pieces: Vec<PieceUse>,
}
