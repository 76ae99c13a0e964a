//! Internals of the store for its own tools, tests and benchmarks: the simulator, the checks of `rockmill verify`, and
//! the fuzzing of decoders.
//!
//! The feature `internals` enables them. **They are not part of the public interface**: semantic versioning does not
//! cover them, and names and shapes change without notice.

pub mod simulation;

pub use crate::compaction::file_ranges::{FileRange, FileRanges};
pub use crate::compaction::objects::JobRegistry;
pub use crate::compaction::pieces::KeptFile;
pub use crate::compaction::plan::JobPlan;
pub use crate::compaction::result::JobResult;
pub use crate::compaction::spec::{
    Extent, FilterSpec, FurtherFile, JobSpec, NumberRange, OutputPlan, Part, SpecFile, SpecRun,
};
pub use crate::compaction::sst_map::{MapFile, SstMap};
pub use crate::compaction::table_format::{TableFormat, TableOwner};
pub use crate::compaction::worker::{DeviceFile, DeviceOp, WorkerDevice, WorkerJob, WorkerMachine};
pub use crate::compaction::{Compaction, JobOutput, JobStats};
pub use crate::compaction_workers::{
    CompactionWorkers, DEVICE_BLOCK, DeviceExtent, JobCode, JobDevice, RemoteDone, RemoteJob, RemoteUsage, TableCheck,
    TakenWorker,
};
pub use crate::db::jobs::extra_runs::merge_into_extra_run;
pub use crate::db::jobs::manual::compact_range_since_open;
pub use crate::db::report::explain::{
    CompactionExplanation, ExplainedJob, ExplainedWork, LaterStep, explain_compact_range_cf_opt,
};
pub use crate::iter::InternalIterator;
pub use crate::iter::get::GetContext;
pub use crate::memtable::{LeftOut, MemTable, MemTableFilter, MergePlan, MergedMemTable, SealedTable};
pub use crate::table::{
    BlockBasedSettings, BlockCache, FunctionSummary, OwnFile, ReplacedTables, Table, TableBlock, TableBlockKind,
    TableBuilder, TableBuilderOptions, TableOpenOptions, TableReadOptions, TphSummary, TphTable, properties_of,
    told_by_own_file,
};
pub use crate::version::{
    FileMeta, LogSource, ManifestWriter, RecoveredCf, RecoveredState, TableDirs, current_manifest, each_file,
    for_each_edit, manifest_mark, open_table, recover_manifest, retry_while_files_vanish, table_of_files, table_path,
};

use crate::options::Options;

/// Carries over from `stored`, which was read from an OPTIONS file: options without effect here, and names of objects
/// that were not given. A database opened with `options` then keeps them in its files.
pub fn carry_options(options: &mut Options, stored: Options) {
    options.db.carried = stored.db.carried;
    options.db.load_warnings = stored.db.load_warnings;
    options.cf.carried = stored.cf.carried;
    options.cf.table.carried = stored.cf.table.carried;
}

/// Makes all lookups keep rows in a cache, until its capacity is changed.
pub fn keep_rows(cache: &crate::Cache) {
    cache.0.row_choice().force_rows();
}
