//! What a job runs with: what its spec is made from, its host, its share of the device. Also removes its tables if it
//! does not commit.

use std::sync::Arc;

use crate::compaction::describe::JobFamily;
use crate::compaction::objects::JobObjects;
use crate::compaction::{JobEvents, JobMeans, LocalHost};
use crate::compaction_filter::TableFileCreationReason;
use crate::db::DbInner;
use crate::db::catalog::column_family::CfData;
use crate::db::read::tables::CfTables;
use crate::error::{Error, ErrorKind};
use crate::options::DbOptions;
use crate::pacing::read_protection::DeviceShare;
use crate::statistics::CountedOperator;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::version::TableFile;

impl DbInner {
    /// What the specs of a column family's jobs are made from, as it is now.
    pub fn job_family(&self, cf: &CfData) -> JobFamily {
        JobFamily {
            db_id: self.opened.db_id().to_owned(),
            db_session_id: self.opened.session_id().to_owned(),
            cf_id: cf.id,
            cf_name: cf.name.clone(),
            options: cf.options.load_full(),
            snapshots: self.readers.snapshots().all(),
            past: self.files.purge().past(),
        }
    }

    /// The host of a job of a column family.
    pub fn job_host(
        self: &Arc<Self>,
        cf: &CfData,
        family: &JobFamily,
        job: u64,
        reason: TableFileCreationReason,
    ) -> LocalHost {
        let mut objects = JobObjects::of(&family.options, &cf.cmp);
        let operator = objects.merge_operator.as_ref();
        objects.merge_operator = CountedOperator::wrap(operator, self.opts.statistics.as_ref(), false);
        let (fs, clock) = (Arc::clone(&self.opts.fs), Arc::clone(&self.opts.clock));
        LocalHost {
            means: JobMeans {
                engines: Arc::clone(&self.engines),
                log: self.log.clone(),
                shutdown: Arc::clone(&self.shutdown),
                writers_wait: Arc::clone(self.pacing.writers_wait()),
                flush_priority: Arc::clone(self.pacing.flush_priority()),
                ..JobMeans::new(objects, DbOptions::clone(&self.live()), fs, clock)
            },
            dir: cf.dirs().of(0).to_owned(),
            inputs: Arc::default(),
            tables: Arc::new(CfTables::new(self, cf)),
            sealed: None,
            new_file_number: self.files.numbers().taker(),
            cancelled: Arc::default(),
            events: JobEvents {
                job,
                db_name: self.path.clone(),
                cf_name: cf.name.clone(),
                reason,
                new_tables: self.files.new_tables(),
                ..JobEvents::default()
            },
        }
    }

    /// Makes a job leave a part of the device to users' reads as long as no caller waits for it. Not used with a rate
    /// limiter, which has its own priorities.
    pub(super) fn device_share(self: &Arc<Self>, awaited: &Arc<AtomicBool>) -> Option<Arc<DeviceShare>> {
        if self.opts.rate_limiter.is_some() || awaited.load(Ordering::Acquire) {
            return None;
        }
        let db = Arc::clone(self);
        let written = Box::new(move || db.stats.bytes_written.load(Ordering::Relaxed));
        Some(self.pacing.read_protection().job(&self.shutdown, awaited, written))
    }

    /// Removes tables of a job that did not commit, unless the MANIFEST may name them. `error` is the error of the
    /// commit, whose write may have failed half-way; `None` if nothing was written to the MANIFEST.
    pub fn remove_outputs(&self, cf: &CfData, files: &[TableFile], error: Option<&Error>) {
        if error.is_some_and(|e| e.kind() == ErrorKind::IOError) {
            return; // the edit may be in the MANIFEST; if it is not, the next open removes the orphan
        }
        for &file in files {
            self.files.forget_new_table(file.number);
            let _ = self.opts.fs.remove(&cf.dirs().of_file(file).join(rockmill_format::filename::table(file.number)));
        }
    }
}
