//! What users start by hand: flushes and compactions of ranges.

use std::sync::Arc;

use crate::compaction::Compaction;
use crate::compaction::strategy::aging::Moment;
use crate::compaction::strategy::manual::{ManualPick, ManualStep, ManualWalk, StepKind};
use crate::db::catalog::column_family::CfData;
use crate::db::jobs::compact::begin_compaction;
use crate::db::jobs::refit;
use crate::db::{AsColumnFamilyRef, Db, DbInner, State};
use crate::error::{Error, Result};
use crate::event_listener::FlushReason;
use crate::options::{CompactOptions, CompactionStyle, FlushOptions};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

impl Db {
    /// Writes the default column family's memtables as tables.
    pub fn flush(&self) -> Result<()> {
        self.flush_opt(&FlushOptions::default())
    }

    /// Writes the default column family's memtables as tables.
    pub fn flush_opt(&self, options: &FlushOptions) -> Result<()> {
        let cf = self.inner.catalog.default_cf().clone();
        self.flush_cfs_opt(&[cf], options)
    }

    /// Writes the memtables of every column family as tables.
    pub fn flush_all(&self) -> Result<()> {
        let unlogged = self.inner.front.take_unlogged();
        let done =
            self.flush_which(None::<&[crate::db::ColumnFamily]>, &FlushOptions::default(), FlushReason::ManualFlush);
        if done.is_err() && unlogged {
            self.inner.front.note_unlogged();
        }
        done
    }

    /// Writes a column family's memtables as tables.
    pub fn flush_cf(&self, cf: &impl AsColumnFamilyRef) -> Result<()> {
        self.flush_cfs_opt(&[cf.as_cf().clone()], &FlushOptions::default())
    }

    /// Writes a column family's memtables as tables.
    pub fn flush_cf_opt(&self, cf: &impl AsColumnFamilyRef, options: &FlushOptions) -> Result<()> {
        self.flush_cfs_opt(&[cf.as_cf().clone()], options)
    }

    /// Writes the memtables of several column families as tables; with the option `atomic_flush` all together or none.
    pub fn flush_cfs_opt<C: AsColumnFamilyRef>(&self, cfs: &[C], options: &FlushOptions) -> Result<()> {
        self.flush_cfs_for(cfs, options, FlushReason::ManualFlush)
    }

    /// The same, for a reason that listeners are told.
    pub(crate) fn flush_cfs_for<C: AsColumnFamilyRef>(
        &self,
        cfs: &[C],
        options: &FlushOptions,
        reason: FlushReason,
    ) -> Result<()> {
        self.flush_which(Some(cfs), options, reason)
    }

    /// Without a list: all column families that exist once no write, creation or drop is in progress. As in RocksDB, it
    /// is not an error if one is dropped at the same time.
    fn flush_which<C: AsColumnFamilyRef>(
        &self,
        cfs: Option<&[C]>,
        options: &FlushOptions,
        reason: FlushReason,
    ) -> Result<()> {
        let db = &self.inner;
        db.check_writable()?;
        cfs.into_iter().flatten().try_for_each(|cf| db.check_family(&cf.as_cf().data))?;
        let waiting_for = {
            let _alone = db.lead_alone();
            let all: Vec<_> = match cfs {
                Some(cfs) => cfs.iter().map(|cf| cf.as_cf().clone()).collect(),
                None => db.catalog.families().all().filter(|cf| !cf.data.is_dropped()).cloned().collect(),
            };
            let cfs: Vec<_> = all.iter().map(|cf| &*cf.data).collect();
            db.request_flush(&cfs, reason)?
        };
        db.tell_waiting();
        let done = if options.wait { db.wait_flushed(&waiting_for) } else { Ok(()) };
        db.tell_waiting();
        done
    }

    /// Compacts the keys in `[start, end]` (`None`: unbounded) of the default column family.
    pub fn compact_range<S: AsRef<[u8]>, E: AsRef<[u8]>>(&self, start: Option<S>, end: Option<E>) -> Result<()> {
        self.compact_range_opt(start, end, &CompactOptions::default())
    }

    /// Compacts the keys in `[start, end]` of the default column family.
    pub fn compact_range_opt<S: AsRef<[u8]>, E: AsRef<[u8]>>(
        &self,
        start: Option<S>,
        end: Option<E>,
        options: &CompactOptions,
    ) -> Result<()> {
        self.compact_range_cf_opt(self.inner.catalog.default_cf(), start, end, options)
    }

    /// Compacts the keys in `[start, end]` of a column family.
    pub fn compact_range_cf<S: AsRef<[u8]>, E: AsRef<[u8]>>(
        &self,
        cf: &impl AsColumnFamilyRef,
        start: Option<S>,
        end: Option<E>,
    ) -> Result<()> {
        self.compact_range_cf_opt(cf, start, end, &CompactOptions::default())
    }

    /// Compacts the keys in `[start, end]` of a column family.
    pub fn compact_range_cf_opt<S: AsRef<[u8]>, E: AsRef<[u8]>>(
        &self,
        cf: &impl AsColumnFamilyRef,
        start: Option<S>,
        end: Option<E>,
        options: &CompactOptions,
    ) -> Result<()> {
        let since = self.inner.files.numbers().next();
        self.compact_range_since(cf, start, end, options, since)
    }

    /// Merges the extra runs of a column family into the base runs of their levels. With `compaction_downforce` and
    /// `compaction_classic` off for every column family, no new ones are made, and once the last is gone RocksDB opens
    /// the database again.
    ///
    /// # Errors
    /// Those of compactions.
    pub fn merge_extra_runs_cf(&self, cf: &impl AsColumnFamilyRef) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.check_family(&cf.as_cf().data)?;
        self.inner.merge_extra_runs(&cf.as_cf().data)
    }

    /// Rewrites the tables of a column family that consist of several files, so that each is one file. If there is such
    /// a table, extra runs are merged as well. Automatic compactions may make new ones; [`Self::pause_background_work`]
    /// prevents that. RocksDB opens a database that has neither extra runs nor tables of several files.
    ///
    /// # Errors
    /// Those of compactions.
    pub fn make_tables_whole_cf(&self, cf: &impl AsColumnFamilyRef) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.check_family(&cf.as_cf().data)?;
        self.inner.make_tables_whole(&cf.as_cf().data)
    }

    /// Tables with numbers from `since` on were written by this call, or by jobs that ran at the same time.
    fn compact_range_since<S: AsRef<[u8]>, E: AsRef<[u8]>>(
        &self,
        cf: &impl AsColumnFamilyRef,
        start: Option<S>,
        end: Option<E>,
        options: &CompactOptions,
        since: u64,
    ) -> Result<()> {
        let db = &self.inner;
        db.check_writable()?;
        let cf = &cf.as_cf().data;
        db.check_family(cf)?;
        let (start, end) = (start.as_ref().map(AsRef::as_ref), end.as_ref().map(AsRef::as_ref));
        if let (Some(s), Some(e)) = (start, end)
            && cf.cmp.compare_user(s, e).is_gt()
        {
            return Err(Error::invalid_argument("compact_range: the end comes before the start"));
        }
        let paths = cf.options.load().cf_paths.len().max(1);
        if options.target_path_id as usize >= paths {
            return Err(Error::invalid_argument(format!(
                "compact_range: target_path_id is {}, and the column family has {paths} paths",
                options.target_path_id
            )));
        }
        if options.change_level {
            if cf.options.load().compaction_style == CompactionStyle::Fifo {
                return Err(Error::not_supported(
                    "compact_range: FIFO compaction has one level, there is none to change",
                ));
            }
            refit::check_target(&cf.current.load().version, options.target_level)?;
        }
        let whole = crate::db::ColumnFamily { data: Arc::clone(cf) };
        // Merges take memory, and the memory kept for future memtables would be held in addition to it.
        db.front.memory().give_back();
        self.flush_cfs_for(&[whole], &FlushOptions::default(), FlushReason::ManualCompaction)?;
        db.front.memory().give_back();
        if options.exclusive_manual_compaction {
            let mut state = db.state.lock();
            state.jobs_mut().exclusive_manual += 1;
            db.wait_for_compactions(&mut state);
        }
        let done = db.compact_levels(cf, (start, end), options, since);
        if options.exclusive_manual_compaction {
            db.state.lock().jobs_mut().exclusive_manual -= 1;
            db.work_available.notify_all();
        }
        done
    }

    /// Waits until no flush and no compaction runs or is due.
    pub fn wait_for_background_work(&self) -> Result<()> {
        // Writers rest for those who wait until nothing is due.
        self.inner.state.lock().jobs_mut().awaiting_rest += 1;
        let done = self.wait_until_nothing_is_due();
        self.inner.state.lock().jobs_mut().awaiting_rest -= 1;
        done
    }

    fn wait_until_nothing_is_due(&self) -> Result<()> {
        let db = &self.inner;
        let mut state = db.state.lock();
        loop {
            state.errors().check()?;
            db.check_not_closing()?;
            let now = db.now_seconds();
            let due = state.families().any(|c| {
                c.flush_due(db.flushes_without_merging())
                    || (!c.options().disable_auto_compactions
                        && (((c.jobs().scores.needs_compaction() || c.version().has_extra_runs())
                            && !c.jobs().nothing_found)
                            || c.is_aging_due(now))
                        && state.jobs().paused == 0)
            });
            if !due && state.jobs().idle() {
                return Ok(());
            }
            // Threads may not have noticed yet what became due by the clock alone.
            db.work_available.notify_all();
            db.wait_for_job_end(&mut state);
        }
    }

    /// Keeps automatic compactions from beginning until [`Self::continue_background_work`]; waits for those that run.
    pub fn pause_background_work(&self) {
        let db = &self.inner;
        let mut state = db.state.lock();
        state.jobs_mut().paused += 1;
        db.wait_for_compactions(&mut state);
    }

    /// Undoes one [`Self::pause_background_work`].
    pub fn continue_background_work(&self) {
        self.inner.end_pause();
    }
}

/// [`Db::compact_range_cf_opt`], which counts tables that this database wrote since it was opened as its own: with
/// [`ForceOptimized`](crate::BottommostLevelCompaction::ForceOptimized) they are not written again. For commands that
/// open a database to compact it, because automatic compactions begin at the open.
///
/// # Errors
/// Those of [`Db::compact_range_cf_opt`].
#[cfg(feature = "internals")]
pub fn compact_range_since_open<S: AsRef<[u8]>, E: AsRef<[u8]>>(
    db: &Db,
    cf: &impl AsColumnFamilyRef,
    start: Option<S>,
    end: Option<E>,
    options: &CompactOptions,
) -> Result<()> {
    db.compact_range_since(cf, start, end, options, db.inner.files.numbers().first())
}

/// How often a manual compaction gives way to automatic ones before its next job: it merges extra runs that they have
/// made, or waits for tables that they hold. Under steady writes they would make more as long as they run, so after
/// that none begins until the job has begun.
struct Patience<'a> {
    db: &'a DbInner,
    left: u32,
    holds: bool,
}

impl<'a> Patience<'a> {
    const TURNS: u32 = 16;

    fn new(db: &'a DbInner) -> Self {
        Self { db, left: Self::TURNS, holds: false }
    }

    fn wears_out(&mut self, state: &mut State) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && !self.holds {
            state.jobs_mut().exclusive_manual += 1;
            self.holds = true;
        }
    }

    fn renew(&mut self, state: &mut State) {
        self.left = Self::TURNS;
        if std::mem::take(&mut self.holds) {
            state.jobs_mut().exclusive_manual -= 1;
            self.db.work_available.notify_all();
        }
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if self.holds {
            self.renew(&mut self.db.state.lock());
        }
    }
}

impl DbInner {
    /// Waits until no compaction runs, or the database is being closed.
    pub(super) fn wait_for_compactions(&self, state: &mut MutexGuard<'_, State>) {
        while state.jobs().running_compactions > 0 && !self.shutdown.load(Ordering::Acquire) {
            self.wait_for_job_end(state);
        }
    }

    /// Undoes one pause of automatic compactions.
    pub(super) fn end_pause(&self) {
        let mut state = self.state.lock();
        let paused = &mut state.jobs_mut().paused;
        *paused = paused.saturating_sub(1);
        drop(state);
        self.work_available.notify_all();
    }

    /// Makes the memtables of column families immutable and asks for their flush. Only the write leader calls this.
    /// Returns (column family, last memtable) for [`Self::wait_flushed`].
    pub fn request_flush(&self, cfs: &[&CfData], reason: FlushReason) -> Result<Vec<(u32, u64)>> {
        let (mut waiting_for, mut full) = (Vec::new(), Vec::new());
        {
            let state = self.state.lock();
            state.errors().check_writes()?;
            if let Some(cf) = cfs.iter().find(|cf| cf.is_dropped()) {
                return Err(cf.dropped_error());
            }
            // Of an atomic flush, only one by hand may be of some column families, as in RocksDB.
            let all = self.opts.atomic_flush && reason != FlushReason::ManualFlush;
            for c in state.families().filter(|c| all || cfs.iter().any(|cf| cf.id == c.cf().id)) {
                let cf = c.cf();
                waiting_for.push((cf.id, c.front().newest_id()));
                if !c.front().is_empty() {
                    full.push(cf.id);
                }
            }
        }
        if !full.is_empty() {
            self.switch_memtables(&full, reason)?;
        }
        let mut state = self.state.lock();
        for (id, _) in &waiting_for {
            if let Some(c) = state.family_mut(*id) {
                c.front_mut().request_flush(reason);
            }
        }
        state.join_flushes();
        self.update_pressure(&state);
        drop(state);
        self.work_available.notify_all();
        Ok(waiting_for)
    }

    /// Waits until memtables are tables.
    pub fn wait_flushed(&self, waiting_for: &[(u32, u64)]) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            state.errors().check_writes()?;
            // When a flush returns, listeners have been told of it.
            let tell = !self.opts.listeners.is_empty();
            let is_open =
                |(id, mem): &(u32, u64)| state.family(*id).is_some_and(|c| c.front().is_unflushed(*mem, tell));
            let open = waiting_for.iter().any(is_open);
            if !open {
                return Ok(());
            }
            self.check_not_closing()?;
            state.join_flushes(); // each time: another may have begun
            self.wait_for_job_end(&mut state);
        }
    }

    /// Walks down the tree: each level that holds keys of the range is compacted into the next one that the tree
    /// uses; the deepest one is compacted into itself if asked for.
    fn compact_levels(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        (start, end): (Option<&[u8]>, Option<&[u8]>),
        options: &CompactOptions,
        since: u64,
    ) -> Result<()> {
        let version = || self.state.lock().family(cf.id).map(|c| Arc::clone(c.version()));
        let Some(first) = version() else { return Ok(()) };
        // Of the extra runs that automatic compactions make from now on, only those that are in the way are merged:
        // under steady writes there would always be more.
        let next_file = self.files.numbers().next();
        let mut walk = ManualWalk::new(&first, start, end, options.bottommost_level_compaction, since);
        let mut ended_in = (0..first.levels.len()).find(|&l| !first.overlapping(l, start, end).is_empty());
        drop(first);
        while let Some(now) = version() {
            let Some(mut step) = walk.next_step(&now, &cf.options.load()) else { break };
            if step.kind == StepKind::ExtraRuns {
                step.file_number_limit = next_file;
            }
            drop(now);
            self.compact_level(cf, &step, start, end, options, Some(options.target_path_id))?;
            if step.kind != StepKind::ExtraRuns {
                ended_in = Some(step.output_level);
            }
        }
        match ended_in {
            Some(level) if options.change_level => self.refit_level(cf, level, options.target_level),
            _ => Ok(()),
        }
    }

    /// Merges the extra runs of all levels into their base runs.
    pub fn merge_extra_runs(self: &Arc<Self>, cf: &Arc<CfData>) -> Result<()> {
        let options = CompactOptions::default();
        self.compact_level(cf, &ManualStep::extra_runs(), None, None, &options, None)
    }

    /// Rewrites the tables of several files, of all levels, as tables of one.
    pub fn make_tables_whole(self: &Arc<Self>, cf: &Arc<CfData>) -> Result<()> {
        self.compact_level(cf, &ManualStep::whole_tables(), None, None, &CompactOptions::default(), None)
    }

    /// Does one step of the walk, in as many jobs as the size limit asks for. Tables go to `path`; without one to that
    /// which the options choose.
    fn compact_level(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        step: &ManualStep,
        start: Option<&[u8]>,
        end: Option<&[u8]>,
        options: &CompactOptions,
        path: Option<u32>,
    ) -> Result<()> {
        let place = |c: &mut Compaction| match path {
            Some(path) => c.write_to_path(path),
            None => c.choose_path(&cf.options.load()),
        };
        let mut from = start.map(<[u8]>::to_vec);
        let mut patience = Patience::new(self);
        loop {
            let moment = Moment { now: self.now_seconds(), ..Moment::default() };
            let picked = {
                let mut state = self.state.lock();
                loop {
                    state.errors().check()?;
                    self.check_not_closing()?;
                    let Some(c) = state.family_mut(cf.id) else { return Ok(()) };
                    match step.pick(c.version(), &cf.options.load(), &c.jobs().running, &moment, from.as_deref(), end) {
                        ManualPick::None => break None,
                        ManualPick::First(mut compaction) => {
                            place(&mut compaction);
                            match step.kind {
                                // These run out.
                                StepKind::ExtraRuns | StepKind::WholeTables => patience.renew(&mut state),
                                _ => patience.wears_out(&mut state),
                            }
                            let Some(ticket) = begin_compaction(&mut state, cf, &compaction) else { return Ok(()) };
                            break Some((compaction, ticket, None, true));
                        }
                        ManualPick::Pick(mut compaction, next) => {
                            patience.renew(&mut state);
                            place(&mut compaction);
                            compaction.subcompactions_max = match options.max_subcompactions {
                                0 => self.live().max_subcompactions.max(1) as usize,
                                n => n as usize,
                            };
                            let Some(ticket) = begin_compaction(&mut state, cf, &compaction) else { return Ok(()) };
                            break Some((compaction, ticket, next, false));
                        }
                        // Files are taken by running jobs: wait for one to end.
                        ManualPick::Conflict => {
                            patience.wears_out(&mut state);
                            self.wait_for_job_end(&mut state);
                        }
                    }
                }
            };
            let Some((compaction, ticket, next, again)) = picked else { return Ok(()) };
            let done = self.run_compaction(cf, Arc::from(compaction), ticket);
            self.delete_purged_files_and_wait();
            self.tell_waiting();
            done?;
            match next {
                _ if again => {}
                Some(next) => from = Some(next),
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::MemFileSystem;

    use super::*;
    use crate::sync::atomic::AtomicBool;
    use crate::{BottommostLevelCompaction, Options};

    #[test]
    fn a_manual_compaction_that_is_not_exclusive_ends_beside_steady_writes() {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(MemFileSystem::new()));
        o.set_compaction_downforce(true);
        o.set_level_compaction_dynamic_level_bytes(false);
        o.set_max_background_jobs(8);
        o.set_write_buffer_size(64 << 10);
        o.set_target_file_size_base(16 << 10);
        o.set_max_bytes_for_level_base(64 << 10);
        o.set_max_bytes_for_level_multiplier(4.0);
        o.set_level_zero_file_num_compaction_trigger(2);
        let db = Db::open(&o, "/db").unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(7);
                while !done.load(Ordering::Acquire) {
                    let key = rng.u64(0..200_000);
                    db.put(format!("{key:010}"), "v".repeat(100)).unwrap();
                }
            });
            while !db.inner.state.lock().family(0).unwrap().version().has_extra_runs() {
                std::thread::yield_now();
            }
            let began = std::time::Instant::now();
            for _ in 0..2 {
                db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            }
            println!("{:?}", began.elapsed());
            done.store(true, Ordering::Release);
            writer.join().unwrap();
        });
        db.wait_for_background_work().unwrap();
        let state = db.inner.state.lock();
        assert_eq!((state.jobs().exclusive_manual, state.jobs().running_compactions), (0, 0));
        assert!(!state.family(0).unwrap().version().has_extra_runs(), "at rest there is none");
    }

    /// Either an automatic compaction begins at the open, or the call's own does the work; in both cases it is done
    /// once.
    #[test]
    fn what_was_written_since_the_opening_is_not_written_again_unless_forced() {
        for (how, times) in [(BottommostLevelCompaction::ForceOptimized, 1), (BottommostLevelCompaction::Force, 2)] {
            let mut o = Options::default();
            o.create_if_missing(true);
            o.set_file_system(Arc::new(MemFileSystem::new()));
            o.set_disable_auto_compactions(true);
            o.set_compression_type(crate::CompressionType::None);
            let db = Db::open(&o, "/db").unwrap();
            for round in 0..4 {
                for i in 0..500 {
                    db.put(format!("{i:05}"), format!("{round}").repeat(100)).unwrap();
                }
                db.flush().unwrap();
            }
            drop(db);
            o.set_disable_auto_compactions(false);
            let db = Db::open(&o, "/db").unwrap();
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(true);
            options.set_bottommost_level_compaction(how);
            let cf = db.default_cf();
            compact_range_since_open(&db, &cf, None::<&[u8]>, None::<&[u8]>, &options).unwrap();
            let live: u64 = db.inner.state.lock().family(0).unwrap().version().files().map(|f| f.size()).sum();
            let written = db.counters().compact_write_bytes;
            assert_eq!((written + live / 2) / live, times, "{how:?}: {written} bytes written for {live}");
        }
    }
}
