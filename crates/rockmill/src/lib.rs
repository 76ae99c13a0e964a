//! Rockmill: an embedded, ordered, persistent key-value store in RocksDB's formats.

pub mod backup;
pub mod compaction;
mod compaction_filter;
pub mod db;
mod env;
pub mod error;
pub mod event_listener;
mod helpers;
pub mod info_log;
pub mod iter;
pub mod memtable;
pub mod merge_operator;
pub mod options;
mod pacing;
mod panics;
pub mod perf;
mod perf_context;
pub mod properties;
pub mod range_del;
pub mod rate_limiter;
pub mod simulation;
mod sst_file_writer;
pub mod statistics;
mod sync;
pub mod table;
pub mod version;

pub use crate::db::files::delete_files::KeyRange;
pub use crate::db::files::export::{ExportImportFilesMetaData, ExportedFile, ImportColumnFamilyOptions};
pub use crate::db::files::ingest::{IngestExternalFileArg, IngestExternalFileOptions};
pub use compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, CompactionFilterFn,
    Decision as CompactionDecision, TableFileCreationReason,
};
pub use db::{
    AsColumnFamilyRef, Checkpoint, ColumnFamily, ColumnFamilyDescriptor, ColumnFamilyTtl, DB, DBWALIterator,
    DEFAULT_COLUMN_FAMILY_NAME, Db, DbCounters, DbIterator, DbPinnableSlice, DbRawIterator, DbSummary, Direction,
    ErrorSeverity, IteratorMode, LevelStats, LiveFile, MemoryParts, MemoryUsageStats, ReadOptions, RepairOptions,
    RepairReport, RunningJob, Snapshot, StallReason, WalFile, WalFileType, WriteBatch, WriteBatchIterator,
    WriteBatchIteratorCf, get_memory_usage_stats,
};
pub use db::{ColumnFamilyMetaData, LevelMetaData, Range, SizeApproximationOptions};
pub use db::{CompactionExplanation, ExplainedJob, ExplainedWork, LaterStep};
pub use env::Env;
pub use error::{Error, ErrorKind, Result};
pub use event_listener::{EventListener, Listeners};
pub use info_log::{InfoLogger, LogLevel};
pub use memtable::write_buffer_manager::WriteBufferManager;
pub use merge_operator::{MergeFn, MergeOperands, MergeOperator};
pub use options::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, CfOptions, ChecksumType, CompactOptions,
    CompactionPri, CompactionStyle, CompressionOptions, CompressionType, DataBlockIndexType, DbOptions,
    FifoCompactOptions, FlushOptions, LoadedOptions, OptionValue, OptionWarning, Options, OptionsLoader, RecoveryMode,
    UniversalCompactOptions, UniversalCompactionStopStyle, WriteOptions,
};
pub use rate_limiter::{IoPriority, RateLimiter, RateLimiterMode};
pub use rockmill_format::SliceTransform;
pub use rockmill_format::comparator::{BytewiseComparator, Comparator, ReverseBytewiseComparator};
pub use sst_file_writer::{ExternalSstFileInfo, SstFileWriter};
pub use table::{Cache, LruCacheOptions};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
