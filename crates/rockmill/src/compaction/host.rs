//! The host of a job: all that a runner uses besides the spec.
//!
//! | service | methods of [`JobHost`] |
//! |---|---|
//! | open inputs | `open_input`, `input_bytes`, `memtables` |
//! | create outputs | `next_number`, `output_path`, `create_output`, `sync_outputs`, `remove_output` |
//! | replace outputs | `outputs_begin_again` |
//! | stop | `cancelled` |
//! | progress | `progress`, `output_done` |
//! | the machine | `means`, `device` |
//!
//! A runner calls them for a job, a part or a file, never for a block or an entry. A host needs neither a directory nor
//! a version: inputs are identified as the spec describes them, extents included, and an output is anything that takes
//! writes. What a runner works with, and no other host needs to know, is plain data ([`JobMeans`]).
//!
//! The store's is in `local_host.rs`. The tests have another one (`job/tests/elsewhere.rs`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::TablePiece;
use rockmill_io::ring::{BatchIo, DeviceFacts};
use rockmill_io::{Clock, FileSystem, RandomAccessFile, WritableFile, WriteOptions};

use super::SharedEngines;
use super::objects::JobObjects;
use super::spec::SpecFile;
use crate::error::{Error, Result};
use crate::front::SealedRuns;
use crate::helpers::Help;
use crate::info_log::InfoLog;
use crate::options::DbOptions;
use crate::pacing::flush_priority::FlushPriority;
use crate::pacing::read_protection::DeviceShare;
use crate::rate_limiter::{IoPriority, Limit};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::table::{StreamReads, Table, TableSummary};

/// The host of one job. See the module.
pub(crate) trait JobHost: Send + Sync {
    /// What the job is done with.
    fn means(&self) -> &JobMeans;

    /// An input as a table. Each part asks when it comes to the file.
    ///
    /// # Errors
    /// A file that is not there, or no table.
    fn open_input(&self, file: &SpecFile) -> Result<Arc<Table>>;

    /// The bytes of an input's file, for a ring that reads them itself; `direct`: past the page cache. `path` is the
    /// file's own: of the table, or of one of its further files.
    ///
    /// # Errors
    /// A file that is not there.
    fn input_bytes(&self, file: &SpecFile, path: &Path, direct: bool) -> Result<Arc<dyn RandomAccessFile>>;

    /// The memtables of a flush.
    ///
    /// # Errors
    /// A host that does not have them.
    fn memtables(&self, ids: &[u64]) -> Result<SealedRuns> {
        Err(Error::not_supported(format!("memtables {ids:?} are not here: the flush has to be run where they are")))
    }

    /// The number of the next output, after those that the spec sets aside are used up.
    ///
    /// # Errors
    /// A host that has no more to give.
    fn next_number(&self) -> Result<u64>;

    /// Where messages and events say that an output is.
    fn output_path(&self, number: u64) -> PathBuf;

    /// Creates an output, which is written through `ring` if there is one.
    ///
    /// # Errors
    /// A file that cannot be created.
    fn create_output(
        &self,
        number: u64,
        options: WriteOptions,
        ring: Option<&BatchIo>,
    ) -> Result<Box<dyn WritableFile>>;

    /// Makes all complete and synced outputs durable, including their names.
    ///
    /// # Errors
    /// A failed sync.
    fn sync_outputs(&self) -> Result<()>;

    /// Removes an output of a failed job, if it exists.
    fn remove_output(&self, number: u64);

    /// Whether an output that was removed can be created and written once more, with the same number.
    fn outputs_begin_again(&self) -> bool {
        true
    }

    /// Set when the job's output is no longer wanted: then the job ends early.
    fn cancelled(&self) -> &AtomicBool;

    /// Where the job reports its progress.
    fn progress(&self) -> &Arc<JobProgress>;

    /// An output is durable except for its name, or could not be written. `pieces`: the further files of its table.
    fn output_done(&self, _number: u64, _path: &Path, _pieces: &[TablePiece], _done: &Result<TableSummary>) {}

    /// What the device with the job's files prefers, if known.
    fn device(&self) -> Option<DeviceFacts> {
        None
    }
}

/// How far a job is.
#[derive(Debug, Default)]
pub struct JobProgress {
    /// Stored bytes of its input that the merge has taken.
    pub(crate) bytes: AtomicU64,
    /// Parts that have begun.
    pub(crate) parts: AtomicU64,
}

/// What a machine does jobs with. Only the clock and the objects influence a table's bytes.
#[derive(Clone)]
pub(crate) struct JobMeans {
    /// What the spec names.
    pub objects: JobObjects,
    /// How this machine works: engine, memory, threads, checks, rate limits, listeners.
    pub db: DbOptions,
    /// Makes rings.
    pub fs: Arc<dyn FileSystem>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Objects that take long to make, and counters of the engines: shared by the jobs of the machine.
    pub engines: Arc<SharedEngines>,
    /// The log in which engines report unsupported features.
    pub log: InfoLog,
    /// Set when the machine does no more jobs: this one ends with `ShutdownInProgress`.
    pub shutdown: Arc<AtomicBool>,
    /// The most parts of the job that run in parallel. The spec may say fewer.
    pub parallel_parts_max: usize,
    /// Writers are delayed or stopped until background work catches up, so the rate limiter lets this job go first.
    pub writers_wait: Arc<AtomicBool>,
    /// Writers would soon wait for a flush, so compactions let it go first at the device.
    pub flush_priority: Arc<FlushPriority>,
    /// No caller waits for the job: it leaves a part of the device to users' reads (`pacing/read_protection.rs`).
    pub device_share: Option<Arc<DeviceShare>>,
}

impl JobMeans {
    /// Those of a machine that does nothing else.
    pub fn new(objects: JobObjects, db: DbOptions, fs: Arc<dyn FileSystem>, clock: Arc<dyn Clock>) -> Self {
        Self {
            objects,
            db,
            fs,
            clock,
            engines: Arc::default(),
            log: InfoLog::default(),
            shutdown: Arc::default(),
            parallel_parts_max: usize::MAX,
            writers_wait: Arc::default(),
            flush_priority: Arc::default(),
            device_share: None,
        }
    }

    /// The rate limiter, to be asked as a job of this priority asks.
    pub fn limit(&self, priority: IoPriority) -> Option<Limit> {
        let limiter = Arc::clone(self.db.rate_limiter.as_ref()?);
        let (writers_wait, stop) = (Arc::clone(&self.writers_wait), Arc::clone(&self.shutdown));
        Some(Limit { limiter, priority, writers_wait, stop, statistics: self.db.statistics.clone() })
    }

    /// How a job reads its inputs without a ring, `readahead` bytes at a time.
    pub(crate) fn reads(&self, readahead: usize) -> StreamReads {
        let limit = self.limit(IoPriority::Low).filter(|l| l.limiter.mode().limits_reads());
        StreamReads { readahead, verify: true, limit, device_share: self.device_share.clone() }
    }

    /// The help that a part of a job may have.
    pub fn help(&self) -> Option<Help> {
        self.engines.helpers.help(self.db.compaction_helper_threads)
    }
}

/// A new file of a job, written through its ring if it has one.
pub(super) fn create_file(
    fs: &dyn FileSystem,
    path: &Path,
    options: WriteOptions,
    ring: Option<&BatchIo>,
) -> std::io::Result<Box<dyn WritableFile>> {
    match ring {
        Some(ring) => ring.create(fs, path, options).map(|file| Box::new(file) as _),
        None => fs.create(path, options),
    }
}
