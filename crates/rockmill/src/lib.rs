//! Rockmill: an embedded, ordered, persistent key-value store in RocksDB's formats.
//!
//! Names and meanings are those of the `rocksdb` crate, so that a program can change from one to the other. So can a
//! database directory, in both directions. [`Options`] says how a database behaves; [`Db`] is an open one.
//!
//! # The life of a database
//!
//! ```
//! use rockmill::{Db, Direction, IteratorMode, Options, WriteBatch, WriteOptions};
//!
//! # let scratch = tempfile::tempdir().expect("a temporary directory");
//! # let path = scratch.path().join("db");
//! let mut options = Options::default();
//! options.create_if_missing(true);
//! options.create_missing_column_families(true);
//! let db = Db::open_cf(&options, &path, ["default", "users"])?;
//!
//! // In the log when the call returns, so it survives a crash of this process.
//! db.put("greeting", "hello")?;
//!
//! // Several updates at once: after a crash all are there, or none. With `sync` they survive a crash of the machine.
//! let users = db.cf_handle("users").expect("it was opened");
//! let mut batch = WriteBatch::default();
//! batch.put_cf(&users, "ada", "1815");
//! batch.put_cf(&users, "grace", "1906");
//! batch.delete("greeting");
//! let mut durable = WriteOptions::default();
//! durable.set_sync(true);
//! db.write_opt(&batch, &durable)?;
//!
//! // A snapshot sees what was there when it was taken.
//! let snapshot = db.snapshot();
//! db.delete_cf(&users, "ada")?;
//! assert_eq!(snapshot.get_cf(&users, "ada")?.as_deref(), Some(&b"1815"[..]));
//! drop(snapshot);
//!
//! // Keys in order, starting at a given one.
//! for entry in db.iterator_cf(&users, IteratorMode::From(b"a", Direction::Forward)) {
//!     let (key, value) = entry?;
//!     assert_eq!((&*key, &*value), (&b"grace"[..], &b"1906"[..]));
//! }
//!
//! // Closing waits for background work. The next open reads back what is only in the log.
//! drop(db);
//! # Ok::<(), rockmill::Error>(())
//! ```
//!
//! # Where to look
//!
//! | for | see |
//! |---|---|
//! | reading and writing | [`Db`], [`WriteBatch`], [`ReadOptions`], [`WriteOptions`], [`Snapshot`], [`DbRawIterator`] |
//! | options | [`Options`], [`BlockBasedOptions`], [`TphTableOptions`], [`OptionsLoader`] |
//! | column families | [`ColumnFamilyDescriptor`], [`ColumnFamily`] |
//! | your own code in the store | [`MergeOperator`], [`CompactionFilter`], [`Comparator`], [`SliceTransform`] |
//! | notifications | [`EventListener`], [`InfoLogger`] |
//! | copies | [`Checkpoint`], [`backup`], [`SstFileWriter`] |
//! | figures of the store | [`statistics`], [`perf`], [`properties`], [`Db::counters`] |
//! | limits shared by databases | [`Cache`], [`WriteBufferManager`], [`RateLimiter`] |

// Dead code is reported only with the features `internals` and `kernel`, as in the workspace's build.
#![cfg_attr(
    not(feature = "internals"),
    expect(dead_code, reason = "some of it only tools use; with both features, what nothing uses is reported")
)]
#![cfg_attr(
    all(feature = "internals", not(feature = "kernel")),
    expect(dead_code, reason = "some of it is the engine's; with the feature `kernel` the rest is reported")
)]

pub mod backup;
mod compaction;
mod compaction_filter;
mod compaction_workers;
mod db;
mod env;
mod error;
pub mod event_listener;
mod front;
mod helpers;
mod info_log;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod iter;
mod memtable;
pub mod merge_operator;
mod options;
mod pacing;
mod panics;
pub mod perf;
mod perf_context;
pub mod properties;
mod range_del;
mod rate_limiter;
mod sst_file_writer;
pub mod statistics;
mod sync;
mod table;
mod version;

pub use compaction::EngineParts;
#[cfg(feature = "kernel")]
pub use compaction::probe_kernel_engine;
pub use compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, CompactionFilterFn,
    Decision as CompactionDecision, SharedFactory as SharedCompactionFilterFactory,
    SharedFilter as SharedCompactionFilter, TableFileCreationReason,
};
#[cfg(feature = "prometheus")]
pub use db::PrometheusCollector;
pub use db::files::delete_files::KeyRange;
pub use db::files::export::{ExportImportFilesMetaData, ExportedFile, ImportColumnFamilyOptions};
pub use db::files::ingest::{IngestExternalFileArg, IngestExternalFileOptions};
pub use db::{
    AsColumnFamilyRef, Checkpoint, ColumnFamily, ColumnFamilyDescriptor, ColumnFamilyMetaData, ColumnFamilyTtl, DB,
    DBWALIterator, DEFAULT_COLUMN_FAMILY_NAME, Db, DbCounters, DbIterator, DbPinnableSlice, DbRawIterator, DbSummary,
    Direction, ErrorSeverity, IteratorMode, KeyVersion, KeyVersions, LevelMetaData, LevelStats, LiveFile, MemoryParts,
    MemoryUsageStats, Metric, MetricKind, MetricSample, MetricValue, Range, ReadOptions, RepairOptions, RepairReport,
    RunningJob, SizeApproximationOptions, Snapshot, WalFile, WalFileType, WriteBatch, WriteBatchIterator,
    WriteBatchIteratorCf, get_memory_usage_stats,
};
pub use env::Env;
pub use error::{Error, ErrorKind, Result};
pub use event_listener::{EventListener, Listeners};
pub use info_log::{InfoLogger, LogLevel};
pub use memtable::write_buffer_manager::WriteBufferManager;
pub use merge_operator::{MergeFn, MergeOperands, MergeOperator};
pub use options::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, CfOptions, ChecksumType, CompactOptions,
    CompactionPri, CompactionStyle, CompressionOptions, CompressionType, DBPath, DataBlockIndexType, DbOptions,
    FifoCompactOptions, FlushOptions, KernelDriver, LoadedOptions, MergeEngine, OptionValue, OptionWarning, Options,
    OptionsLoader, RecoveryMode, TableKind, TphTableOptions, UniversalCompactOptions, UniversalCompactionStopStyle,
    WriteOptions,
};
pub use rate_limiter::{IoPriority, RateLimiter, RateLimiterMode};
pub use rockmill_format::SliceTransform;
pub use rockmill_format::comparator::{BytewiseComparator, Comparator, HashRangeComparator, ReverseBytewiseComparator};
pub use rockmill_format::edit::TablePiece;
pub use sst_file_writer::{ExternalSstFileInfo, SstFileWriter};
pub use table::{Cache, LruCacheOptions};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
