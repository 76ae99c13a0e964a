//! The state that the database's lock guards. Every room changes it, so it belongs to none: each room has its part in a
//! separate struct, and this file changes the parts that must change together.

use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, Values, ValuesMut};
use std::path::Path;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;

use crate::db::DbInner;
use crate::db::catalog::column_family::CfData;
use crate::db::catalog::super_version::SuperVersion;
use crate::db::catalog::table_paths::purge_of;
use crate::db::jobs::error_recovery::Errors;
use crate::db::jobs::{FamilyJobs, Jobs};
use crate::db::report::events::CfJobStats;
use crate::front::{FamilyFront, FrontMemory, FrontView, Logs};
use crate::options::{CfOptions, DbOptions};
use crate::statistics::CountedOperator;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{ArcSwap, Guard};
use crate::version::{PurgeQueue, Version};

/// What the database's lock guards.
pub(crate) struct State {
    families: BTreeMap<u32, CfState>,
    /// Which WALs exist, and which may be deleted.
    logs: Logs,
    /// The largest id that a column family got.
    max_column_family: u32,
    /// What failed in the background.
    errors: Errors,
    /// What runs in the background.
    jobs: Jobs,
}

/// The mutable part of a column family.
pub(crate) struct CfState {
    cf: Arc<CfData>,
    /// Data that is in no table, and its flush.
    front: FamilyFront,
    version: Arc<Version>,
    /// What compactions work on, and what is due.
    jobs: FamilyJobs,
    /// The last epoch number that a table got.
    epoch: u64,
    /// What they did, for reports.
    job_stats: CfJobStats,
}

impl State {
    /// A state without column families; `max_column_family` is the largest id that one ever had.
    pub fn new(logs: Logs, max_column_family: u32, jobs: Jobs) -> Self {
        Self { families: BTreeMap::new(), logs, max_column_family, errors: Errors::default(), jobs }
    }

    /// The column families, by id.
    pub fn families(&self) -> Values<'_, u32, CfState> {
        self.families.values()
    }

    pub fn families_mut(&mut self) -> ValuesMut<'_, u32, CfState> {
        self.families.values_mut()
    }

    /// One of them, if it is still there.
    pub fn family(&self, id: u32) -> Option<&CfState> {
        self.families.get(&id)
    }

    pub fn family_mut(&mut self, id: u32) -> Option<&mut CfState> {
        self.families.get_mut(&id)
    }

    /// The jobs, and one of the column families.
    pub fn jobs_and_family(&mut self, id: u32) -> (&mut Jobs, Option<&mut CfState>) {
        (&mut self.jobs, self.families.get_mut(&id))
    }

    /// The id of a new column family: none is given twice.
    pub fn next_family_id(&mut self) -> u32 {
        self.max_column_family += 1;
        self.max_column_family
    }

    pub fn max_column_family(&self) -> u32 {
        self.max_column_family
    }

    pub fn insert_family(&mut self, family: CfState) {
        let id = family.cf.id;
        self.max_column_family = self.max_column_family.max(id);
        self.families.insert(id, family);
    }

    /// It can no longer be found; its tables are deleted when their last reader is done.
    pub fn drop_family(&mut self, id: u32) {
        if let Some(c) = self.families.remove(&id) {
            c.cf.dropped.store(true, Ordering::Release);
            c.version.files().for_each(|f| f.set_obsolete());
            c.front.leave();
        }
    }

    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    pub fn logs_mut(&mut self) -> &mut Logs {
        &mut self.logs
    }

    pub fn errors(&self) -> &Errors {
        &self.errors
    }

    pub fn errors_mut(&mut self) -> &mut Errors {
        &mut self.errors
    }

    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub fn jobs_mut(&mut self) -> &mut Jobs {
        &mut self.jobs
    }

    /// The oldest WAL that holds data of any column family that is in no table.
    pub fn oldest_log(&self) -> Option<u64> {
        self.families().filter_map(|c| c.front.oldest_log()).min()
    }

    /// The smallest log number of all column families.
    pub fn least_log_number(&self) -> Option<u64> {
        self.families().map(|c| c.front.log_number()).min()
    }

    /// The oldest WAL that is needed if the column families with these ids need the given WAL and later ones, or none.
    pub fn log_bound(&self, changed: &[(u32, Option<u64>)]) -> u64 {
        let unchanged = |id: u32| changed.iter().all(|(other, _)| *other != id);
        let others = self.families().filter(|c| unchanged(c.cf.id)).filter_map(|c| c.front.oldest_log());
        // New writes go to the WAL in use or a later one.
        others.chain(changed.iter().filter_map(|(_, log)| *log)).chain([self.logs.newest()]).min().unwrap_or(0)
    }
}

/// What a column family of a database shares with the others.
pub(crate) struct FamilyContext<'a> {
    pub memory: &'a FrontMemory,
    pub db: &'a DbOptions,
    pub path: &'a Path,
    pub purge: &'a PurgeQueue,
}

impl<'a> FamilyContext<'a> {
    /// In an open database.
    pub fn of(db: &'a DbInner) -> Self {
        Self { memory: db.front.memory(), db: &db.opts, path: &db.path, purge: db.files.purge() }
    }
}

impl CfState {
    /// The state of a column family that is opened or created, with this version.
    #[expect(clippy::too_many_arguments, reason = "each is a field of what it makes")]
    pub fn new(
        id: u32,
        name: String,
        options: CfOptions,
        cmp: InternalKeyComparator,
        mut version: Version,
        log_number: u64,
        opening: u64,
        FamilyContext { memory, db, path, purge }: FamilyContext<'_>,
    ) -> Self {
        let purge = purge_of(purge, Some(&options), db, path);
        version.reserves_last_level = db.allow_ingest_behind;
        let version = Arc::new(version);
        let front = FamilyFront::new(&cmp, &options, memory, log_number);
        let current = SuperVersion { front: front.view(), version: Arc::clone(&version) };
        let jobs = FamilyJobs::new(&version, &options);
        Self {
            cf: Arc::new(CfData {
                id,
                name,
                opening,
                merge_operator: CountedOperator::wrap(options.merge_operator.as_ref(), db.statistics.as_ref(), true),
                time_to_live: options.compaction_filter_factory.as_ref().and_then(|f| f.time_to_live.clone()),
                options: ArcSwap::from_pointee(options),
                cmp,
                current: ArcSwap::from_pointee(current),
                dropped: AtomicBool::new(false),
                purge,
                published: Default::default(),
            }),
            front,
            // RocksDB keeps epoch 1 for files ingested behind.
            epoch: version.largest_epoch().max(u64::from(version.reserves_last_level)),
            version,
            jobs,
            job_stats: Default::default(),
        }
    }

    /// What it shares with its readers and writers.
    pub fn cf(&self) -> &Arc<CfData> {
        &self.cf
    }

    /// Its options as they are now.
    pub fn options(&self) -> Guard<Arc<CfOptions>> {
        self.cf.options.load()
    }

    /// Changes them, for memtables as well: what is published tells writers when a memtable is full.
    pub fn set_options(&mut self, options: CfOptions) {
        self.front.take_options(&options);
        self.cf.options.store(Arc::new(options));
        self.publish();
    }

    pub fn front(&self) -> &FamilyFront {
        &self.front
    }

    /// Readers see changes only after [`Self::publish`].
    pub fn front_mut(&mut self) -> &mut FamilyFront {
        &mut self.front
    }

    pub fn version(&self) -> &Arc<Version> {
        &self.version
    }

    /// Replaces the present version; files that only the old one has are deleted after their last readers. Must be
    /// published afterwards.
    pub fn install(&mut self, version: Arc<Version>) {
        let live: HashSet<u64> = version.files().map(|f| f.number()).collect();
        self.version.files().filter(|f| !live.contains(&f.number())).for_each(|f| f.set_obsolete());
        self.version = version;
    }

    /// Shows readers the present memtables and version.
    pub fn publish(&self) {
        let (front, version) = (self.front.view(), Arc::clone(&self.version));
        self.cf.current.store(Arc::new(SuperVersion { front, version }));
        self.cf.note_published(&self.version);
    }

    /// Shows readers what another process has; deleting replaced tables is left to that process.
    pub fn follow(&mut self, front: FrontView, log_number: u64, version: Arc<Version>) {
        self.front.show(&front, log_number);
        self.version = Arc::clone(&version);
        self.cf.current.store(Arc::new(SuperVersion { front, version }));
    }

    /// An epoch number for a new table of L0: later ones have larger numbers.
    pub fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    pub fn jobs(&self) -> &FamilyJobs {
        &self.jobs
    }

    pub fn jobs_mut(&mut self) -> &mut FamilyJobs {
        &mut self.jobs
    }

    /// What jobs have of it, and what they choose from.
    pub fn jobs_and_version(&mut self) -> (&mut FamilyJobs, &Arc<Version>) {
        (&mut self.jobs, &self.version)
    }

    pub fn job_stats(&self) -> &CfJobStats {
        &self.job_stats
    }

    pub fn job_stats_mut(&mut self) -> &mut CfJobStats {
        &mut self.job_stats
    }
}
