//! Event listeners: the user's code, called when a store flushes, compacts, stalls or fails (RocksDB's
//! `EventListener`).
//!
//! A listener is called by the thread on which the event happened, or by another thread shortly after. No lock of the
//! database is held. Listeners may read and write. They must not wait for background work (`flush`, `compact_range`, an
//! ingestion) or for another writing thread, because that may be the very work that their call delays. A panic in a
//! listener is caught and written to the info log.
//!
//! A listener's write takes precedence over those of other threads, and is neither stopped nor slowed: the flush that
//! stopped writers wait for may be the one whose listener writes. Memtables may therefore exceed their limits by what
//! listeners write. (RocksDB hangs in this case.) An ingestion reports its flushes only at its end, because it blocks
//! writers until then.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::compression::CompressionType;
use rockmill_format::edit::TablePiece;
use rockmill_format::properties::TableProperties;

pub use crate::compaction_filter::TableFileCreationReason;
use crate::error::Error;
use crate::info_log::{InfoLog, log_error};
use crate::panics::in_words;
use crate::sync::thread_local;

/// Why a compaction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum CompactionReason {
    LevelL0FilesNum,
    LevelMaxLevelSize,
    UniversalSizeAmplification,
    UniversalSizeRatio,
    UniversalSortedRunNum,
    FIFOMaxSize,
    FIFOReduceNumFiles,
    FIFOTtl,
    ManualCompaction,
    FilesMarkedForCompaction,
    BottommostFiles,
    Ttl,
    PeriodicCompaction,
    RefitLevel,
    RoundRobinTtl,
    /// Pending outputs of DF jobs are merged with each other; RocksDB has no such reason.
    IntraDf,
}

/// Why a memtable is flushed (RocksDB's `FlushReason`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FlushReason {
    /// None of the others.
    #[default]
    Others,
    /// The list of live files was requested with a flush.
    GetLiveFiles,
    /// The database closes.
    ShutDown,
    /// A file with overlapping keys is ingested.
    ExternalFileIngestion,
    /// `compact_range` was called.
    ManualCompaction,
    /// The write buffer manager's memory is used up.
    WriteBufferManager,
    /// The memtable is full.
    WriteBufferFull,
    /// Files of a key range are deleted.
    DeleteFiles,
    /// `flush` was called.
    ManualFlush,
    /// `resume` writes out what the old WAL held.
    ErrorRecovery,
    /// The WALs together are too large.
    WalFull,
}

impl FlushReason {
    /// RocksDB's words for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Others => "Other Reasons",
            Self::GetLiveFiles => "Get Live Files",
            Self::ShutDown => "Shut down",
            Self::ExternalFileIngestion => "External File Ingestion",
            Self::ManualCompaction => "Manual Compaction",
            Self::WriteBufferManager => "Write Buffer Manager",
            Self::WriteBufferFull => "Write Buffer Full",
            Self::DeleteFiles => "Delete Files",
            Self::ManualFlush => "Manual Flush",
            Self::ErrorRecovery => "Error Recovery",
            Self::WalFull => "WAL Full",
        }
    }
}

/// What failed in the background (RocksDB's `BackgroundErrorReason`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackgroundErrorReason {
    /// A flush.
    Flush,
    /// A compaction.
    Compaction,
    /// A write to a WAL.
    WriteCallback,
    /// An insertion into a memtable.
    MemTable,
    /// A write to the MANIFEST.
    ManifestWrite,
}

/// How writers are treated (RocksDB's `WriteStallCondition`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WriteStallCondition {
    /// They run free.
    #[default]
    Normal,
    /// They are slowed.
    Delayed,
    /// They wait.
    Stopped,
}

/// A flush. `file_*`, `table_properties` and the numbers are known when it is done. If no entry survives the flush, it
/// writes no file, and `file_number` is 0.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FlushJobInfo {
    /// Id of the column family.
    pub cf_id: u32,
    /// Its name.
    pub cf_name: String,
    /// The table.
    pub file_path: PathBuf,
    /// Its number.
    pub file_number: u64,
    /// The job's number, as in the info log.
    pub job_id: u64,
    /// Memtables that went into it.
    pub memtables: usize,
    /// The flush made L0 so large that writers are slowed.
    pub triggered_writes_slowdown: bool,
    /// The flush made L0 so large that writers wait.
    pub triggered_writes_stop: bool,
    /// Smallest sequence number in the table.
    pub smallest_seqno: SequenceNumber,
    /// Largest sequence number in the table.
    pub largest_seqno: SequenceNumber,
    /// The table's properties.
    pub table_properties: Option<TableProperties>,
    /// Why.
    pub flush_reason: FlushReason,
}

/// A table of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionFileInfo {
    /// Its level.
    pub level: usize,
    /// Its number.
    pub file_number: u64,
}

/// What a compaction did (the parts of RocksDB's `CompactionJobStats` that are known here).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionJobStats {
    /// Wall time.
    pub elapsed_micros: u64,
    /// CPU time of all its threads.
    pub cpu_micros: u64,
    /// Entries read.
    pub num_input_records: u64,
    /// Tables read.
    pub num_input_files: usize,
    /// The part of them in the output level.
    pub num_input_files_at_output_level: usize,
    /// Entries written.
    pub num_output_records: u64,
    /// Tables written.
    pub num_output_files: usize,
    /// Requested by `compact_range` or a similar call.
    pub is_manual_compaction: bool,
    /// Bytes of the tables read.
    pub total_input_bytes: u64,
    /// Bytes of the tables written.
    pub total_output_bytes: u64,
    /// Entries dropped because a newer entry of their key exists.
    pub num_records_replaced: u64,
    /// Tombstones dropped because nothing older exists.
    pub num_expired_deletion_records: u64,
}

/// A compaction. Outputs and statistics are known only at its end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactionJobInfo {
    /// Id of the column family.
    pub cf_id: u32,
    /// Its name.
    pub cf_name: String,
    /// How it ended; `Ok` at the beginning.
    pub status: Result<(), Error>,
    /// The job's number, as in the info log.
    pub job_id: u64,
    /// Files in L0 when it began.
    pub num_l0_files: usize,
    /// Smallest level of the inputs.
    pub base_input_level: usize,
    /// Level of the outputs.
    pub output_level: usize,
    /// Paths of the inputs.
    pub input_files: Vec<PathBuf>,
    /// Levels and numbers of the inputs.
    pub input_file_infos: Vec<CompactionFileInfo>,
    /// Paths of the outputs.
    pub output_files: Vec<PathBuf>,
    /// Levels and numbers of the outputs.
    pub output_file_infos: Vec<CompactionFileInfo>,
    /// Why.
    pub compaction_reason: CompactionReason,
    /// Of the outputs' blocks.
    pub compression: CompressionType,
    /// What it did.
    pub stats: CompactionJobStats,
}

/// A table file that was written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TableFileCreationInfo {
    /// The database's directory.
    pub db_name: PathBuf,
    /// Name of the column family.
    pub cf_name: String,
    /// The file.
    pub file_path: PathBuf,
    /// The job's number, as in the info log.
    pub job_id: u64,
    /// Why.
    pub reason: TableFileCreationReason,
    /// Bytes.
    pub file_size: u64,
    /// Older files that are also part of the table, and the part of each that it refers to.
    pub pieces: Vec<TablePiece>,
    /// The table's properties.
    pub table_properties: TableProperties,
    /// Whether it was written whole.
    pub status: Result<(), Error>,
}

/// A table file that was deleted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TableFileDeletionInfo {
    /// The database's directory.
    pub db_name: PathBuf,
    /// The file.
    pub file_path: PathBuf,
    /// The job's number, as in the info log.
    pub job_id: u64,
    /// Whether it is gone.
    pub status: Result<(), Error>,
}

/// A memtable that takes no more writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemTableInfo {
    /// Name of the column family.
    pub cf_name: String,
    /// Sequence number of its first entry.
    pub first_seqno: SequenceNumber,
    /// No entry of the memtable is older than this.
    pub earliest_seqno: SequenceNumber,
    /// Entries.
    pub num_entries: u64,
    /// Of them, tombstones.
    pub num_deletes: u64,
}

/// A change of how writers are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteStallInfo {
    /// Name of the column family that caused it.
    pub cf_name: String,
    /// How writers are treated now.
    pub cur: WriteStallCondition,
    /// How they were treated before.
    pub prev: WriteStallCondition,
}

/// A table that was ingested.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ExternalFileIngestionInfo {
    /// Name of the column family.
    pub cf_name: String,
    /// Where it was.
    pub external_file_path: PathBuf,
    /// Where it is.
    pub internal_file_path: PathBuf,
    /// Sequence number assigned to its keys; 0 if none was.
    pub global_seqno: SequenceNumber,
    /// Its properties.
    pub table_properties: TableProperties,
}

/// An end of error recovery.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BackgroundErrorRecoveryInfo {
    /// The error that the database had.
    pub old_bg_error: Error,
    /// The error that it has now; `None` if it has recovered.
    pub new_bg_error: Option<Error>,
}

/// A listener (RocksDB's `EventListener`); see the module. By default, every call does nothing.
pub trait EventListener: Send + Sync {
    /// A flush begins.
    fn on_flush_begin(&self, info: &FlushJobInfo) {
        let _ = info;
    }
    /// A flush is done and its table installed.
    fn on_flush_completed(&self, info: &FlushJobInfo) {
        let _ = info;
    }
    /// A compaction begins.
    fn on_compaction_begin(&self, info: &CompactionJobInfo) {
        let _ = info;
    }
    /// A compaction ended, with or without success.
    fn on_compaction_completed(&self, info: &CompactionJobInfo) {
        let _ = info;
    }
    /// A table file was written, or could not be.
    fn on_table_file_created(&self, info: &TableFileCreationInfo) {
        let _ = info;
    }
    /// A table file was deleted, or could not be.
    fn on_table_file_deleted(&self, info: &TableFileDeletionInfo) {
        let _ = info;
    }
    /// A memtable became immutable.
    fn on_memtable_sealed(&self, info: &MemTableInfo) {
        let _ = info;
    }
    /// Writers are slowed, stopped, or free again.
    fn on_stall_conditions_changed(&self, info: &WriteStallInfo) {
        let _ = info;
    }
    /// The database refuses writes until it recovers.
    fn on_background_error(&self, reason: BackgroundErrorReason, error: &Error) {
        let _ = (reason, error);
    }
    /// Recovery from a background error begins; false stops the automatic recovery.
    fn on_error_recovery_begin(&self, reason: BackgroundErrorReason, error: &Error) -> bool {
        let _ = (reason, error);
        true
    }
    /// The database recovered from `old_error`.
    fn on_error_recovery_completed(&self, old_error: &Error) {
        let _ = old_error;
    }
    /// Recovery ended, with or without success.
    fn on_error_recovery_end(&self, info: &BackgroundErrorRecoveryInfo) {
        let _ = info;
    }
    /// A table was ingested.
    fn on_external_file_ingested(&self, info: &ExternalFileIngestionInfo) {
        let _ = info;
    }
    /// A column family was dropped; its handles are still usable for reads.
    fn on_column_family_handle_deletion_started(&self, cf_name: &str) {
        let _ = cf_name;
    }
}

/// The listeners of a database, in the order in which they were added.
#[derive(Clone, Default)]
pub struct Listeners {
    list: Vec<Arc<dyn EventListener>>,
}

impl Listeners {
    /// Adds one.
    pub fn push(&mut self, listener: Arc<dyn EventListener>) {
        self.list.push(listener);
    }

    /// True if there are no listeners; events then need not be collected.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Calls every listener. The caller must not hold a lock of the database.
    pub(crate) fn notify(&self, log: &InfoLog, tell: impl Fn(&dyn EventListener)) {
        let _inside = Inside::enter();
        for listener in &self.list {
            if let Err(words) = in_words(|| tell(&**listener)) {
                log_error!(log, "an event listener panicked: {words}");
            }
        }
    }
}

thread_local! {
    /// How many calls of listeners the thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Marks a call of a listener while it exists.
struct Inside;

impl Inside {
    fn enter() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// True if the thread is in a call of a listener of any database; background work may wait for that call.
pub(crate) fn in_listener() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.list.len())
    }
}
