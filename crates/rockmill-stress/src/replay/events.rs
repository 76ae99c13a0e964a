//! A listener of every database that a history opens: what begins, ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rockmill::Error;
use rockmill::event_listener::{
    BackgroundErrorReason, CompactionJobInfo, EventListener, ExternalFileIngestionInfo, FlushJobInfo,
};

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

/// Counts what it is told. Clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Events {
    counts: Arc<Counts>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Events {
    /// Ingested files so far.
    pub fn ingested(&self) -> u64 {
        self.counts.ingested.load(Ordering::Relaxed)
    }

    /// Whether all that began has ended, now that the database is closed. Nothing is said where work failed. What a
    /// dropped column family has no use for ends without a word, as in RocksDB.
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
    }

    fn on_flush_completed(&self, _: &FlushJobInfo) {
        count(&self.counts.flushes_done);
    }

    fn on_compaction_begin(&self, _: &CompactionJobInfo) {
        count(&self.counts.compactions_begun);
    }

    fn on_compaction_completed(&self, _: &CompactionJobInfo) {
        count(&self.counts.compactions_done);
    }

    fn on_external_file_ingested(&self, _: &ExternalFileIngestionInfo) {
        count(&self.counts.ingested);
    }

    fn on_background_error(&self, _: BackgroundErrorReason, _: &Error) {
        count(&self.counts.errors);
    }
}
