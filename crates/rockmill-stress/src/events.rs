//! A listener of every database that a history opens, and of every second life of a soak. It checks that everything
//! that begins also ends, and it writes at every notification. It writes log data, which takes the path of every write
//! but changes nothing.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use rockmill::event_listener::{
    BackgroundErrorReason, CompactionJobInfo, EventListener, ExternalFileIngestionInfo, FlushJobInfo, MemTableInfo,
    TableFileCreationInfo, TableFileDeletionInfo, WriteStallInfo,
};
use rockmill::{Db, Error, WriteBatch};

/// What was told.
#[derive(Debug, Default)]
struct Counts {
    flushes_begun: AtomicU64,
    flushes_done: AtomicU64,
    compactions_begun: AtomicU64,
    compactions_done: AtomicU64,
    ingested: AtomicU64,
    errors: AtomicU64,
}

/// Counts notifications, and writes. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Events {
    counts: Arc<Counts>,
    /// The database while it is open. It is removed before the close.
    db: Arc<RwLock<Weak<Db>>>,
}

/// Number of tables with several files that all histories of this process have written.
static TABLES_OF_SEVERAL_FILES: AtomicU64 = AtomicU64::new(0);

/// How many tables of several files histories of this process have written so far: without any, the special features of
/// TPH tables were not tested.
pub fn tables_of_several_files() -> u64 {
    TABLES_OF_SEVERAL_FILES.load(Ordering::Relaxed)
}

thread_local! {
    /// The thread is in a write of this listener, and gets the resulting notifications.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Events {
    /// From here until [`Self::close`], notifications write to this database.
    pub fn open(&self, db: &Arc<Db>) {
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(db);
    }

    /// When this returns, no notification writes any more or keeps the database open.
    pub fn close(&self) {
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = Weak::new();
    }

    /// Writes if possible; after an error, it may not be.
    fn write(&self) {
        if WRITES.replace(true) {
            return;
        }
        let open = self.db.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(db) = open.upgrade() {
            let mut batch = WriteBatch::new();
            batch.put_log_data("a listener was told");
            let _ = db.write(&batch);
        }
        drop(open);
        WRITES.set(false);
    }

    /// Ingested files so far.
    pub fn ingested(&self) -> u64 {
        self.counts.ingested.load(Ordering::Relaxed)
    }

    /// Checks after the close that everything that began has ended. Skipped if background work failed. As in RocksDB,
    /// useless work of a dropped column family ends without a notification.
    pub fn check_closed(&self, dropped: bool) -> Result<(), String> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &*self.counts;
        for (what, begun, done) in
            [("flushes", &c.flushes_begun, &c.flushes_done), ("compactions", &c.compactions_begun, &c.compactions_done)]
        {
            let (begun, done) = (get(begun), get(done));
            if get(&c.errors) == 0 && (done > begun || (done < begun && !dropped)) {
                return Err(format!("listeners were told of {begun} {what} that began and of {done} that ended"));
            }
        }
        Ok(())
    }
}

impl EventListener for Events {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        count(&self.counts.flushes_begun);
        self.write();
    }

    fn on_flush_completed(&self, _: &FlushJobInfo) {
        count(&self.counts.flushes_done);
        self.write();
    }

    fn on_compaction_begin(&self, _: &CompactionJobInfo) {
        count(&self.counts.compactions_begun);
        self.write();
    }

    fn on_compaction_completed(&self, _: &CompactionJobInfo) {
        count(&self.counts.compactions_done);
        self.write();
    }

    fn on_external_file_ingested(&self, _: &ExternalFileIngestionInfo) {
        count(&self.counts.ingested);
        self.write();
    }

    fn on_background_error(&self, _: BackgroundErrorReason, _: &Error) {
        count(&self.counts.errors);
        self.write();
    }

    fn on_table_file_created(&self, info: &TableFileCreationInfo) {
        if info.status.is_ok() && !info.pieces.is_empty() {
            count(&TABLES_OF_SEVERAL_FILES);
        }
        self.write();
    }

    fn on_table_file_deleted(&self, _: &TableFileDeletionInfo) {
        self.write();
    }

    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        self.write();
    }

    fn on_stall_conditions_changed(&self, _: &WriteStallInfo) {
        self.write();
    }
}
