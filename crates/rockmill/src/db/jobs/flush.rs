//! Flushes: which memtables become tables together, the tables, and their commit.
//!
//! [`State::pick_flush`] says what is due, `run_flush` writes it without any lock, and `commit_flush` installs the
//! tables and lets the memtables go. Threads that wait for a flush are woken by `job_finished`.

use std::sync::Arc;

use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::properties::TableProperties;

use crate::compaction::{JobStats, job};
use crate::compaction_filter::TableFileCreationReason;
use crate::db::catalog::column_family::CfData;
use crate::db::catalog::install::{Change, add_files};
use crate::db::report::events::FlushEvent;
use crate::db::write::switch::with_data;
use crate::db::{CfState, DbInner, State};
use crate::error::{ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, FlushReason};
use crate::front::SealedRuns;
use crate::panics::guarded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memtables to be flushed and committed together: of one column family, or with `atomic_flush` of all.
pub(crate) struct FlushPick {
    parts: Vec<FlushPart>,
    /// A caller asked for it or joined it, and waits: it is not held back for users' reads.
    awaited: Arc<AtomicBool>,
    /// Listeners are told only when the write leader, which waits for it, has given up leadership.
    deferred: bool,
    /// CPU time that the tables took, in microseconds.
    cpu_micros: AtomicU64,
    /// How long they were held back for users' reads.
    waited_nanos: AtomicU64,
}

struct FlushPart {
    cf: Arc<CfData>,
    runs: SealedRuns,
    epoch: u64,
    reason: FlushReason,
}

impl FlushPick {
    /// What `families` have sealed.
    fn of<'c>(families: impl Iterator<Item = &'c mut CfState>) -> Self {
        let awaited = Arc::<AtomicBool>::default();
        let parts: Vec<_> = families.map(|c| c.take_flush(&awaited)).collect();
        let automatic = |reason| {
            matches!(reason, FlushReason::WriteBufferFull | FlushReason::WriteBufferManager | FlushReason::WalFull)
        };
        awaited.store(!parts.iter().all(|part| automatic(part.reason)), Ordering::Release);
        Self { parts, awaited, deferred: false, cpu_micros: AtomicU64::new(0), waited_nanos: AtomicU64::new(0) }
    }
}

/// What became of a [`FlushPart`].
struct BuiltPart {
    event: FlushEvent,
    /// `None` when nothing was left to write.
    entry: Option<FileEntry>,
    stats: JobStats,
    table: Option<TableProperties>,
    /// The column family existed at the commit, so the table is part of the tree.
    committed: bool,
}

impl CfState {
    /// True when there are immutable memtables and it is time to flush them.
    pub fn flush_due(&self, without_merging: bool) -> bool {
        self.front().flush_due(&self.options(), without_merging)
    }

    fn take_flush(&mut self, awaited: &Arc<AtomicBool>) -> FlushPart {
        let (runs, reason) = self.front_mut().take_sealed();
        self.jobs_mut().flush_awaited = Arc::clone(awaited);
        FlushPart { cf: Arc::clone(self.cf()), runs, epoch: self.next_epoch(), reason }
    }

    fn has_sealed(&self) -> bool {
        self.front().sealed_count() > 0
    }
}

impl State {
    /// A flush is due, and no running flush keeps it from beginning.
    pub(super) fn flush_may_begin(&self, atomic: bool, without_merging: bool) -> bool {
        if self.errors().of_writes().is_some() {
            return false;
        }
        if atomic {
            // One at a time. What becomes immutable together is picked together, because both happen under this lock.
            let free = self.families().all(|c| !c.front().is_flushing());
            return free && self.families().any(|c| c.flush_due(without_merging));
        }
        self.families().any(|c| !c.front().is_flushing() && c.flush_due(without_merging))
    }

    pub(super) fn pick_flush(&mut self, atomic: bool, without_merging: bool) -> Option<FlushPick> {
        if !self.flush_may_begin(atomic, without_merging) {
            return None;
        }
        if atomic {
            return Some(self.pick_all_flushes());
        }
        let due = self.families_mut().find(|c| !c.front().is_flushing() && c.flush_due(without_merging))?;
        let pick = FlushPick::of(std::iter::once(due));
        self.jobs_mut().running_flushes += 1;
        Some(pick)
    }

    /// Everything that is immutable, to be committed together. No flush may be running.
    pub fn pick_all_flushes(&mut self) -> FlushPick {
        self.jobs_mut().running_flushes += 1;
        FlushPick::of(self.families_mut().filter(|c| c.has_sealed()))
    }

    /// True while a flush of one of these column families runs; with `atomic`, of any.
    fn flush_runs(&self, ids: &[u32], atomic: bool) -> bool {
        self.families().any(|c| c.front().is_flushing() && (atomic || ids.contains(&c.cf().id)))
    }

    /// A caller waits for a flush. The flushes that run are the one it waits for or come before it, whatever column
    /// family they are of.
    pub fn join_flushes(&self) {
        self.families().for_each(|c| c.jobs().flush_awaited.store(true, Ordering::Release));
    }

    /// Everything of these column families that is immutable; with `atomic`, of all. No flush of one of them may run.
    fn pick_flush_of(&mut self, ids: &[u32], atomic: bool, reason: FlushReason) -> FlushPick {
        let of_them = |c: &&mut CfState| (atomic || ids.contains(&c.cf().id)) && c.has_sealed();
        for c in self.families_mut().filter(of_them) {
            c.front_mut().set_flush_reason(reason);
        }
        if atomic {
            return self.pick_all_flushes();
        }
        self.jobs_mut().running_flushes += 1;
        FlushPick::of(self.families_mut().filter(of_them))
    }
}

impl DbInner {
    /// Flushes what was picked; a failure is a background error.
    pub(super) fn do_flush(self: &Arc<Self>, pick: &FlushPick) -> Result<()> {
        let done = guarded("a flush", || self.run_flush(pick, false));
        // Before the flush counts as ended, so that no other begins after it and a recovery waits for it.
        if let Err(e) = &done
            && e.kind() != ErrorKind::ColumnFamilyDropped
        {
            let names: Vec<String> = pick.parts.iter().map(|p| format!("{:?}", p.cf.name)).collect();
            let families = if names.len() == 1 { "family" } else { "families" };
            let what = format!("a flush of column {families} {}", names.join(", "));
            self.set_background_error(BackgroundErrorReason::Flush, &what, e);
        }
        self.end_flush(pick);
        self.wake_all();
        done
    }

    /// Writes the memtables of column families as tables (of all, with `atomic_flush`). Only the write leader calls
    /// this, on its own thread. While it waits for a running flush, listeners may write; they are told about this flush
    /// later, so nothing here waits for them.
    pub fn flush_as_leader(self: &Arc<Self>, ids: &[u32], reason: FlushReason) -> Result<()> {
        let atomic = self.opts.atomic_flush;
        let mut pick = loop {
            let wal = self.begin_wal()?;
            let mut state = self.state.lock();
            state.errors().check_writes()?;
            // Sealed and picked in one step, so that flush threads, whose listeners may write again, get none of it.
            if !state.flush_runs(ids, atomic) {
                let sealed = if atomic { with_data(&state) } else { ids.to_vec() };
                self.seal_memtables(&mut state, &sealed, wal, reason);
                let pick = state.pick_flush_of(ids, atomic, reason);
                self.update_pressure(&state);
                break pick;
            }
            while state.flush_runs(ids, atomic) {
                state.join_flushes(); // each time: another may have begun
                state.errors().check_writes()?;
                self.check_not_closing()?;
                if !self.writers.has_from_listener() {
                    self.wait_for_job_end(&mut state);
                }
                if self.writers.has_from_listener() {
                    drop(state);
                    self.writers.lend();
                    state = self.state.lock();
                }
            }
        };
        pick.deferred = true;
        pick.awaited.store(true, Ordering::Release);
        self.do_flush(&pick)
    }

    /// Writes what was picked as tables and commits them together. With `leave_wals` the commit also says that no WAL
    /// before the present one is needed, which must be so once these memtables are in tables.
    pub fn run_flush(self: &Arc<Self>, pick: &FlushPick, leave_wals: bool) -> Result<()> {
        if leave_wals {
            pick.awaited.store(true, Ordering::Release); // writers wait for the recovery
        }
        // With several column families a batch may span them: the WAL of what becomes durable here must not end
        // before the table does, or recovery could see half a batch.
        if self.begin_flush(pick) > 1 {
            self.front.sync_left()?;
        }
        let mut built = Vec::new();
        let durable = self.build_flush(pick, &mut built);
        let named = durable.is_ok();
        let done = durable.and_then(|()| self.commit_flush(pick, &mut built, leave_wals));
        if let Err(e) = &done {
            for (part, b) in pick.parts.iter().zip(&built) {
                self.flush_failed(&part.cf, b.event.job, e);
                let written = b.entry.as_ref().map(FileEntry::own_file);
                self.remove_outputs(&part.cf, written.as_slice(), Some(e).filter(|_| named));
            }
        }
        done?;
        for (part, b) in pick.parts.iter().zip(&built) {
            if let Some(entry) = &b.entry
                && !b.committed
            {
                // Its column family was dropped before the commit. (After it, the last reader's end deletes the table.)
                self.remove_outputs(&part.cf, &[entry.own_file()], None);
            }
            self.flush_ended(&part.cf, &b.event, b.entry.as_ref(), &b.stats, b.table.as_ref(), pick.deferred);
        }
        Ok(())
    }

    /// Writes the tables of a flush, durable with their names; `built` gets what there is, one for each part, even if
    /// one fails.
    fn build_flush(self: &Arc<Self>, pick: &FlushPick, built: &mut Vec<BuiltPart>) -> Result<()> {
        for part in &pick.parts {
            let event = FlushEvent { job: self.reporting.new_job(), reason: part.reason, memtables: part.runs.count() };
            self.flush_begins(&part.cf, &event, &part.runs, pick.deferred);
            let family = self.job_family(&part.cf);
            let mut host = self.job_host(&part.cf, &family, event.job, TableFileCreationReason::Flush);
            host.events.deferred = pick.deferred.then(Arc::default);
            host.means.device_share = self.device_share(&pick.awaited);
            let (running, bytes) = (self.reporting.running(), part.runs.data_size());
            let _running = running.flush(&part.cf, event.job, bytes, &host.events.progress);
            let made = job::build_l0(&part.runs, &family, &mut host, TableFileCreationReason::Flush);
            let waited = host.means.device_share.as_ref().map_or(0, |job| job.waited_nanos());
            pick.waited_nanos.fetch_add(waited, Ordering::Relaxed);
            for info in host.events.deferred.iter().flat_map(|infos| std::mem::take(&mut *infos.lock())) {
                self.notify_later(move |l| l.on_table_file_created(&info));
            }
            let mut made = made.inspect_err(|e| self.flush_failed(&part.cf, event.job, e))?;
            let (table, stats) = (made.properties.pop(), made.stats);
            let entry = made.into_table().map(|entry| FileEntry { epoch_number: part.epoch, ..entry });
            self.open_new_tables(&part.cf, 0, entry.as_slice());
            let stats = if entry.is_some() { stats } else { JobStats::default() };
            pick.cpu_micros.fetch_add(stats.cpu_micros, Ordering::Relaxed);
            built.push(BuiltPart { event, entry, stats, table, committed: false });
        }
        Ok(())
    }

    fn commit_flush(&self, pick: &FlushPick, built: &mut [BuiltPart], leave_wals: bool) -> Result<()> {
        let state = self.state.lock();
        // Column families without a memtable to flush: the number of the first WAL that they need from then on.
        let others: Vec<(Arc<CfData>, u64)> = match leave_wals {
            true => {
                let idle = |c: &&CfState| !c.has_sealed() && pick.parts.iter().all(|p| p.cf.id != c.cf().id);
                state.families().filter(idle).map(|c| (Arc::clone(c.cf()), c.front().active_log())).collect()
            }
            false => Vec::new(),
        };
        let mut changes: Vec<Change<'_>> = Vec::new();
        for (part, b) in pick.parts.iter().zip(built) {
            let mut edit = add_files(0, b.entry.clone());
            let log_number = state.family(part.cf.id).map(|c| c.front().log_number_after(&part.runs));
            edit.log_number = log_number;
            changes.push(Change::new(&part.cf, edit, move |state| {
                b.committed = true;
                self.count_flush(&b.stats, b.table.as_ref());
                if let Some(c) = state.family_mut(part.cf.id) {
                    c.job_stats_mut().add_flush(&b.stats);
                    c.front_mut().table_has(&part.runs, b.entry.as_ref().map_or(0, |entry| entry.size));
                    c.front_mut().flushed(&part.runs, log_number.unwrap_or(0));
                }
            }));
        }
        for (cf, n) in &others {
            let (n, edit) = (*n, VersionEdit { log_number: Some(*n), ..VersionEdit::default() });
            changes.push(Change::new(cf, edit, move |state| {
                state.family_mut(cf.id).into_iter().for_each(|c| c.front_mut().raise_log_number(n));
            }));
        }
        drop(state);
        self.log_and_apply(changes)
    }

    /// The flush of what was picked begins. Gives how many column families there are.
    fn begin_flush(&self, pick: &FlushPick) -> usize {
        let bytes: u64 = pick.parts.iter().map(|p| p.runs.data_size()).sum();
        let mut state = self.state.lock();
        let now = self.opts.clock.monotonic_nanos() as f64 * 1e-9;
        for part in &pick.parts {
            if let Some(c) = state.family_mut(part.cf.id) {
                c.front_mut().flush_begins(now, bytes as f64);
                c.jobs_mut().flushes(now);
            }
        }
        state.families().len()
    }

    /// Undoes `pick_flush`, whatever the flush's outcome.
    pub fn end_flush(&self, pick: &FlushPick) {
        let mut state = self.state.lock();
        state.jobs_mut().running_flushes -= 1;
        let cpu = pick.cpu_micros.load(Ordering::Relaxed) as f64 * 1e-6;
        // The learned duration of a flush excludes the time for which it was held back.
        let waited = pick.waited_nanos.load(Ordering::Relaxed);
        let now = self.opts.clock.monotonic_nanos().saturating_sub(waited) as f64 * 1e-9;
        for part in &pick.parts {
            if let Some(c) = state.family_mut(part.cf.id) {
                c.front_mut().flush_ended(&part.runs, now, cpu);
            }
        }
        // Memtables sealed in the meantime need not be due; then no caller waits for a flush any more.
        self.update_pressure(&state);
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::MemFileSystem;

    use super::*;
    use crate::db::Db;
    use crate::options::Options;

    fn with_memtables(atomic: bool) -> (Db, FlushPick) {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_atomic_flush(atomic);
        o.set_file_system(Arc::new(MemFileSystem::new()));
        let db = Db::open(&o, "/db").unwrap();
        db.put("key", "value").unwrap();
        let inner = &db.inner;
        let log = inner.begin_wal().unwrap();
        let pick = {
            // Flush threads see nothing of it before it is picked.
            let mut state = inner.state.lock();
            inner.seal_memtables(&mut state, &[0], log, FlushReason::WriteBufferFull);
            state.pick_flush(atomic, true).unwrap()
        };
        (db, pick)
    }

    /// An automatic flush leaves a part of the device to reads until a caller waits for it.
    #[test]
    fn who_joins_a_flush_that_runs_releases_it() {
        for atomic in [false, true] {
            let (db, pick) = with_memtables(atomic);
            assert!(!pick.awaited.load(Ordering::Acquire) && db.inner.device_share(&pick.awaited).is_some());
            std::thread::scope(|s| {
                let caller = s.spawn(|| db.flush());
                while !pick.awaited.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                assert!(db.inner.device_share(&pick.awaited).is_none());
                db.inner.do_flush(&pick).unwrap();
                caller.join().unwrap().unwrap();
            });
        }
    }

    #[test]
    fn a_recovery_waits_for_its_flush() {
        let (db, pick) = with_memtables(false);
        db.inner.run_flush(&pick, true).unwrap();
        db.inner.end_flush(&pick);
        assert!(pick.awaited.load(Ordering::Acquire));
    }
}
