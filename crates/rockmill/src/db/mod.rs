//! The database: the handle that users hold, and the folders ("rooms") that do its work.
//!
//! | room | what happens there |
//! |---|---|
//! | `open/` | open, MANIFEST and WAL recovery, orphan removal; secondary instances; databases with a time to live |
//! | `files/` | numbers of files, their deletion; checkpoints, exports, ingestion, repair |
//! | `jobs/` | flushes and compactions, their threads, the order in which they become live, recovery from errors |
//! | `write/` | batches, groups of writers, what their leader does between groups |
//! | `read/` | lookups, iterators, snapshots, the table cache |
//! | `report/` | what users ask about the store, and what listeners and the info log are told |
//! | `catalog/` | versions installed, column families, options that change, OPTIONS files |
//!
//! A room uses only those below it in this table; a test checks that (`tests/style/layers.rs`). The catalogue knows
//! what exists, and needs no other room. All rooms count and report. Reads need no writer. Writers begin no job: they
//! leave work for jobs to find. Jobs switch memtables as writers do. Files are added and removed as a whole between
//! jobs, and an opening starts all of it.
//!
//! Some files belong to a different layer than their room. Below all rooms are file numbers and the deletion of files.
//! Between writers and jobs are the calls by which users change and query an open database: column families, options,
//! sizes and files. Above jobs are reports that need them: properties, texts and memory, and which compactions would
//! run (`report/explain.rs`). Above the opening are `files/repair/` and `report/summary.rs`: they are for databases
//! that are not open, and read them as an opening does.
//!
//! The few calls that go up through [`DbInner`], and through `State` and `CfState`, are listed in the test with their
//! reasons: a version that the catalogue installs changes which jobs are due (`rescore`) and what writers may do
//! (`update_pressure`); a writer's log that fails stops the jobs (`set_background_error`), and a job that fails stops
//! writers (`errors`).
//!
//! Each room keeps what it owns in a struct of its own, whose fields other rooms cannot see: `Opened`, `Files`,
//! `Writers`, `Readers`, `Reporting`, `Catalog`, and under the database's lock `Jobs`, `FamilyJobs` and `Errors`.
//! `DbInner` puts them together; `State` and `CfState` (`state.rs`) have what the lock guards. What belongs to the
//! whole database is in `DbInner` itself: its path, options, info log and counters, `shutdown`, and the two signals
//! that go with the state lock, since every room waits for others.
//!
//! `pacing/` decides what slows writers, and what share of the device jobs and reads get. The log and the memtables, up
//! to their flush, are in `front/`.
//!
//! # Locks
//!
//! In the order in which they may be taken:
//!
//! | lock | held by | across I/O |
//! |---|---|---|
//! | `recovery` | a recovery from a background error | yes |
//! | `options_turn` (`Catalog`) | a change of options or column families, until the OPTIONS file has it | yes |
//! | write leadership (`Writers`) | the leader of a group, a switch of memtables, an ingestion | its group's |
//! | `manifest` (`Catalog`) | a change of the tree, until its edit is durable | the MANIFEST's |
//! | `note` (`Opened`) | a change of what `WAL_OWNER` says | that file's |
//! | `state` (`State`) | any thread, briefly | never, once the database is open |
//! | leaves: lists in `Readers` and `front`, `purge` and `new_tables` (`Files`), others | any thread, briefly | never |
//!
//! No lock is held across the I/O of tables, except that an ingestion reads the few blocks that show whether its keys
//! overlap. Only the write leader writes to the WAL in use and does the syncs that writers asked for
//! (`front/wal_memtable/wal.rs` says how older WALs are synced at the same time).

pub(crate) mod catalog;
pub(crate) mod files;
pub(crate) mod jobs;
pub(crate) mod open;
pub(crate) mod read;
pub(crate) mod report;
mod state;
pub(crate) mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rockmill_format::SequenceNumber;

use crate::compaction::EngineParts;
use crate::db::catalog::Catalog;
use crate::db::files::Files;
use crate::db::jobs::error_recovery::Recovery;
use crate::db::report::Reporting;
use crate::error::{Error, Result};
use crate::event_listener::{BackgroundErrorReason, EventListener};
use crate::front::Front;
use crate::info_log::{InfoLog, log_error, log_info};
use crate::options::DbOptions;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex, MutexGuard};

pub use crate::db::catalog::column_family::{AsColumnFamilyRef, ColumnFamily};
pub use crate::db::files::checkpoint::Checkpoint;
pub use crate::db::files::repair::{RepairOptions, RepairReport};
pub use crate::db::jobs::error_recovery::ErrorSeverity;
pub use crate::db::read::get::{DbPinnableSlice, ReadOptions};
pub use crate::db::read::iterator::{DbIterator, DbRawIterator, Direction, IteratorMode};
pub use crate::db::read::key_versions::{KeyVersion, KeyVersions};
pub use crate::db::read::snapshot::Snapshot;
pub use crate::db::report::approximate_sizes::{Range, SizeApproximationOptions};
pub use crate::db::report::live_files::{ColumnFamilyMetaData, LevelMetaData, LiveFile};
pub use crate::db::report::memory_usage::{MemoryParts, MemoryUsageStats, get_memory_usage_stats};
pub use crate::db::report::metrics::{Metric, MetricKind, MetricSample, MetricValue};
#[cfg(feature = "prometheus")]
pub use crate::db::report::prometheus::PrometheusCollector;
pub use crate::db::report::properties::LevelStats;
pub use crate::db::report::running::RunningJob;
pub use crate::db::report::stats::DbCounters;
pub use crate::db::report::summary::DbSummary;
pub use crate::db::write::batch::{WriteBatch, WriteBatchIterator, WriteBatchIteratorCf};
pub use crate::db::write::wal_iterator::DBWALIterator;
pub use crate::front::{WalFile, WalFileType};
pub use crate::options::ColumnFamilyTtl;
pub(crate) use crate::options::check::table_writer_options;
pub use crate::options::{ColumnFamilyDescriptor, DEFAULT_COLUMN_FAMILY_NAME};

use crate::db::catalog::column_family::CfData;
use crate::db::open::Opened;
pub(crate) use crate::db::open::start::{new_db_id, new_session_id};
use crate::db::read::Readers;
use crate::db::report::stats::InternalStats;
use crate::db::write::Writers;
use crate::pacing::Pacing;
use state::{CfState, FamilyContext, State};

/// An open database (`rocksdb::DB`). All methods take `&self` and may be called from any thread.
///
/// Dropping it stops background work, flushes data that was written without a WAL, and releases the lock.
pub struct Db {
    pub(crate) inner: Arc<DbInner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The name of the `rocksdb` crate for the same.
pub type DB = Db;

/// What an open database is made of.
pub(crate) struct DbInner {
    pub path: PathBuf,
    /// As they were at open: for options that are fixed. Those that `set_db_options` changes are read from `live()`.
    pub opts: DbOptions,
    /// Column families and options as they are now, and the MANIFEST.
    catalog: Catalog,
    state: Mutex<State>,
    /// Signalled when a job ends, a memtable or version is installed, or an error is set: for threads that wait for
    /// room.
    job_finished: Condvar,
    /// Signalled when there may be work for a background thread.
    work_available: Condvar,
    /// Recovery from background errors.
    recovery: Recovery,
    /// Makes writes durable and findable until tables hold them.
    front: Front,
    /// Who leads the next write group, and what of the last ones can be seen.
    writers: Writers,
    /// Which tables are open, and which snapshots there are.
    readers: Readers,
    /// Numbers of files, and which may be deleted.
    files: Files,
    shutdown: Arc<AtomicBool>,
    /// What slows writers, and what share of the device jobs and reads get.
    pacing: Pacing,
    /// What compactions and flushes read and write through.
    pub engines: Arc<crate::compaction::SharedEngines>,
    stats: InternalStats,
    log: InfoLog,
    reporting: Reporting,
    /// This opening. It is the last field, so that the directory stays locked until the rest is dropped.
    opened: Opened,
}

/// How long a wait for a job or for memory lasts before its condition is checked again. This is a safety net: whatever
/// ends a wait must notify; only what becomes due by the clock does not. Measured: with half of this, twice this, or a
/// minute, the tests of `db/` take the same time.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl DbInner {
    /// The options as they are now.
    #[inline]
    pub fn live(&self) -> crate::sync::Guard<Arc<DbOptions>> {
        self.catalog.options()
    }

    pub fn last_sequence(&self) -> SequenceNumber {
        self.writers.in_flight().visible()
    }

    pub fn new_file_number(&self) -> u64 {
        self.files.numbers().take()
    }

    /// Tells the listeners. No lock may be held: they may use the database.
    pub fn notify(&self, tell: impl Fn(&dyn EventListener)) {
        self.opts.listeners.notify(&self.log, tell);
    }

    pub fn now_seconds(&self) -> u64 {
        self.opts.clock.now_micros() / 1_000_000
    }

    /// Refuses a handle of another database or of an earlier opening.
    #[inline]
    pub fn check_family(&self, cf: &CfData) -> Result<()> {
        if cf.opening == self.opened.number() { Ok(()) } else { Err(self.foreign_family(&cf.name)) }
    }

    #[cold]
    fn foreign_family(&self, name: &str) -> Error {
        Error::invalid_argument(format!(
            "{}: the handle of column family {name:?} is of another database, or of an earlier opening of this one: get \
             one from cf_handle",
            self.path.display()
        ))
    }

    /// Refuses what changes a read-only database.
    pub fn check_writable(&self) -> Result<()> {
        if self.opened.read_only() {
            let how = if self.opened.is_secondary() { "as a secondary instance" } else { "read-only" };
            return Err(Error::not_supported(format!(
                "{} was opened {how}; open it with Db::open to change it",
                self.path.display()
            )));
        }
        Ok(())
    }

    /// Refuses what must not be done while the database takes no writes because of a background error.
    pub fn check_takes_writes(&self) -> Result<()> {
        self.state.lock().errors().check_writes()
    }

    /// Waits until a job ends or something that others wait for changes, or for [`LOOK_AGAIN`].
    fn wait_for_job_end(&self, state: &mut MutexGuard<'_, State>) {
        self.job_finished.wait_for(state, LOOK_AGAIN);
    }

    /// Makes all threads that wait for room or for work check again.
    pub fn wake_all(&self) {
        self.job_finished.notify_all();
        self.work_available.notify_all();
    }

    /// Refuses a wait that could never end.
    pub fn check_not_closing(&self) -> Result<()> {
        if self.shutdown.load(Ordering::Acquire) { Err(Error::closing()) } else { Ok(()) }
    }
}

impl Db {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The newest sequence number.
    pub fn latest_sequence_number(&self) -> SequenceNumber {
        self.inner.last_sequence()
    }

    /// The handle of a column family, if it exists.
    pub fn cf_handle(&self, name: &str) -> Option<ColumnFamily> {
        self.inner.catalog.families().named(name).cloned()
    }

    /// Names of the column families, sorted.
    pub fn cf_names(&self) -> Vec<String> {
        self.inner.catalog.families().all().map(|cf| cf.name().to_owned()).collect()
    }

    /// The default column family.
    pub fn default_cf(&self) -> ColumnFamily {
        self.inner.catalog.default_cf().clone()
    }

    /// What the database did since it was opened. Always counted; more is in [`crate::statistics`].
    pub fn counters(&self) -> DbCounters {
        self.inner.stats.read()
    }

    /// Which engine did each part of the jobs since the database was opened.
    pub fn engine_parts(&self) -> EngineParts {
        self.inner.engines.stats.counts()
    }

    fn stop_threads(&self) {
        self.inner.shutdown.store(true, Ordering::Release);
        // Taking the lock between the store and the notification: a thread that saw `shutdown` unset under the lock is
        // waiting by the time we notify.
        drop(self.inner.state.lock());
        self.inner.wake_all();
        self.inner.recovery.wake();
        self.inner.pacing.flush_priority().wake();
        self.inner.log.alarm().ring();
        // Not the present thread, if a listener calls this: it cannot wait for itself.
        let me = crate::sync::thread::current().id();
        let (own, others): (Vec<_>, Vec<_>) = self.threads.lock().drain(..).partition(|t| t.thread().id() == me);
        for t in others {
            let _ = t.join();
        }
        self.threads.lock().extend(own);
        self.inner.engines.close();
    }

    /// Stops flushes and compactions. With `wait`, waits for those that run; a call from a listener does not wait for
    /// the job that called the listener. The database can still be read.
    pub fn cancel_all_background_work(&self, wait: bool) {
        if wait {
            self.stop_threads();
        } else {
            self.inner.shutdown.store(true, Ordering::Release);
            self.inner.work_available.notify_all();
            self.inner.recovery.wake();
            self.inner.pacing.flush_priority().wake();
            self.inner.log.alarm().ring();
        }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // A listener may have had the last handle, and be called by one of the database's own threads.
        match self.is_own_thread() {
            true => self.close_elsewhere(),
            false => self.close(),
        }
    }
}

impl Db {
    fn is_own_thread(&self) -> bool {
        let me = crate::sync::thread::current().id();
        self.threads.lock().iter().any(|thread| thread.thread().id() == me)
    }

    /// Closes the database on a thread of its own: it waits for the present one, which has a job to end.
    #[cold]
    fn close_elsewhere(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        let db = Arc::new(Mutex::new(Some(Self { inner: Arc::clone(&self.inner), threads: Mutex::new(threads) })));
        let there = Arc::clone(&db);
        let close = move || {
            let db = there.lock().take();
            drop(db);
        };
        if let Err(e) = crate::sync::thread::Builder::new().name("rockmill:close".to_owned()).spawn(close) {
            log_error!(self.inner.log, "the database stays open: no thread can be had to close it: {e}");
            // On this thread it would wait for itself.
            std::mem::forget(db.lock().take());
        }
    }

    fn close(&self) {
        let db = &self.inner;
        if !db.opened.read_only() {
            log_info!(db.log, "Shutdown: canceling all background work");
            if db.front.has_unlogged() && !db.live().avoid_flush_during_shutdown && !db.shutdown.load(Ordering::Acquire)
            {
                // Nobody can be told of a failure here; the data was written without a WAL, so its loss in a crash was
                // accepted.
                let _ = self.flush_all();
            }
        }
        self.stop_threads();
        db.state.lock().families().for_each(|c| c.front().leave());
        db.delete_purged_files_and_wait();
        // This also writes what `manual_wal_flush` gathered.
        match db.front.close() {
            Ok(()) => db.note_closed(),
            // There is no caller left to tell that the gathered data is lost; listeners and the info log are told.
            Err(e) => db.note_background_error(BackgroundErrorReason::WriteCallback, &e),
        }
        db.tell_waiting();
        log_info!(db.log, "Shutdown complete");
        db.log.write_out();
        db.opened.let_go();
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.cf_names();
        f.debug_struct("Db").field("path", &self.path()).field("column_families", &names).finish_non_exhaustive()
    }
}
