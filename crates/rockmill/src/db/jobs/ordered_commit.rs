//! How compactions end: durable first, then live in the order that [`CommitQueue`] keeps.
//!
//! `compact.rs` runs them, and comes here when their work is done or has failed.
//!
//! Job B *depends on* job A if B's output would lie above data that the earlier, still running A holds. B then commits
//! after A. B's thread does not wait: it takes other work, and the thread that commits A commits B, too. If A fails,
//! the jobs that depend on it are dropped: those that run stop when they next check the flag, their tables are removed,
//! their inputs are free again, and they are picked again. After a crash such tables are orphans, which the next open
//! removes.
//!
//! The outputs of several waiting jobs may be merged meanwhile (*intra-DF*, `strategy/intra.rs`). Then they commit as
//! one; if the merge fails, they commit as they were.
//!
//! The queue and the list of running jobs change together, under the state's lock: a pick must never see a job that
//! runs but can no longer commit.
//!
//! [`CommitQueue`]: crate::compaction::commit::CommitQueue

use std::sync::Arc;

use rockmill_format::edit::{FileEntry, VersionEdit};

use crate::compaction::commit::{MergeTicket, Step, Ticket};
use crate::compaction::strategy::intra::{IntraDf, PendingRun};
use crate::compaction::{Compaction, JobOutput, JobStats};
use crate::db::catalog::column_family::CfData;
use crate::db::catalog::install::Change;
use crate::db::{DbInner, State};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, CompactionReason};
use crate::panics::guarded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::version::{FileMeta, TableFile};

/// A job's end, for a caller that waits for it.
pub(super) type Outcome = Arc<Mutex<Option<Result<JobStats>>>>;

/// What one finished job, or several whose output was merged, is to commit.
pub(crate) struct Pending {
    cf: Arc<CfData>,
    /// At least one; the oldest first.
    jobs: Vec<Done>,
    edit: VersionEdit,
    /// The tables that the edit adds, if they may be merged with others before that.
    tables: Vec<Arc<FileMeta>>,
}

/// A job that has done its work.
pub(super) struct Done {
    pub compaction: Arc<Compaction>,
    /// Its number in events.
    pub job: u64,
    pub output: JobOutput,
    pub caller: Option<Outcome>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let jobs: Vec<u64> = self.jobs.iter().map(|j| j.job).collect();
        write!(f, "jobs {jobs:?} of {:?}", self.cf.name)
    }
}

impl Pending {
    fn new(db: &DbInner, cf: &Arc<CfData>, edit: VersionEdit, done: Done) -> Self {
        let c = &done.compaction;
        let files = done.output.files.iter().filter(|_| c.output_level > 0 && c.output_run > 0);
        let tables = tables(db, cf, files);
        Self { cf: Arc::clone(cf), jobs: vec![done], edit, tables }
    }

    /// As the strategies see it; `None` if it cannot be merged with others.
    pub fn as_run(&self, number: u64, depends_on: &[u64]) -> Option<PendingRun> {
        let first = self.tables.first()?;
        Some(PendingRun {
            number,
            depends_on: depends_on.to_vec(),
            inputs: self.jobs.iter().flat_map(|j| j.compaction.inputs.iter().cloned()).collect(),
            level: self.jobs.first()?.compaction.output_level,
            run: first.entry.extra_run,
            tables: self.tables.clone(),
        })
    }

    /// All of `parts`, with the tables that theirs were merged into; `replaced` gets those.
    fn join(parts: Vec<Self>, whole: IntraDfOutput, replaced: &mut Vec<Arc<FileMeta>>) -> Self {
        let IntraDfOutput { cf, tables, new_files, mut files } = whole;
        let mut all = Self { cf, jobs: Vec::new(), edit: VersionEdit { new_files, ..VersionEdit::default() }, tables };
        for part in parts {
            replaced.extend(part.tables);
            all.edit.deleted_files.extend(part.edit.deleted_files);
            all.edit.compact_cursors.extend(part.edit.compact_cursors);
            for mut job in part.jobs {
                // The oldest one's event names the tables that go live.
                job.output.files = std::mem::take(&mut files);
                all.jobs.push(job);
            }
        }
        all
    }

    fn compactions(&self) -> impl Iterator<Item = &Compaction> {
        self.jobs.iter().map(|job| &*job.compaction)
    }

    fn table_files(&self) -> Vec<TableFile> {
        self.jobs.iter().flat_map(|j| &j.output.files).map(FileEntry::own_file).collect()
    }
}

/// What an intra-DF merge wrote.
struct IntraDfOutput {
    cf: Arc<CfData>,
    tables: Vec<Arc<FileMeta>>,
    new_files: Vec<(u32, FileEntry)>,
    files: Vec<FileEntry>,
}

fn tables<'e>(db: &DbInner, cf: &CfData, files: impl IntoIterator<Item = &'e FileEntry>) -> Vec<Arc<FileMeta>> {
    let table = |f: &FileEntry| {
        let table = FileMeta::new(f.clone(), Arc::clone(&cf.purge));
        table.set_open(db.files.open_new_table(f.number));
        Arc::new(table)
    };
    files.into_iter().map(table).collect()
}

/// Why a job ends without a commit although it did not fail itself.
pub(super) fn not_wanted() -> Error {
    Error::new(ErrorKind::Aborted, "a compaction that had to commit before this one failed")
}

impl DbInner {
    /// Adds a job that has done its work to those that commit in order; `edit` makes it live.
    pub(super) fn compaction_worked(self: &Arc<Self>, cf: &Arc<CfData>, edit: VersionEdit, done: Done, ticket: Ticket) {
        let (number, several_threads) = (ticket.number(), done.compaction.subcompactions_max > 1);
        let pending = Pending::new(self, cf, edit, done);
        let mut state = self.state.lock();
        if let Some(c) = state.family_mut(cf.id) {
            c.jobs_mut().running.worked(number);
            if several_threads {
                self.work_available.notify_all(); // its threads are free, whether it commits now or not
            }
        }
        let unknown = match state.jobs_mut().commits.get_mut(&cf.id) {
            Some(queue) => queue.finished(ticket, pending).err().map(|u| u.output),
            None => Some(pending),
        };
        let Some(pending) = unknown else { return };
        self.free_inputs(&mut state, cf, number, pending.compactions());
        drop(state);
        self.remove_outputs(cf, &pending.table_files(), None);
        let what = "a finished compaction is not among those that may commit; its output was removed";
        let e = Error::new(ErrorKind::Corruption, what);
        for j in pending.jobs {
            if j.caller.is_some() {
                // The store's record of its jobs is wrong, regardless of who requested this job.
                self.set_background_error(BackgroundErrorReason::Compaction, "a compaction", &e);
            }
            self.ended(cf, &j.compaction, j.job, j.caller.as_ref(), Err(e.clone()), false);
        }
    }

    /// True for the end of a job that was told to stop, when the database goes on.
    pub(super) fn was_stopped_alone(&self, e: &Error) -> bool {
        e.kind() == ErrorKind::ShutdownInProgress && !self.shutdown.load(Ordering::Acquire)
    }

    /// Replaces the inputs of a merge of pending output by its result, or leaves them unchanged.
    pub(super) fn merge_ended(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        merge: &IntraDf,
        job: u64,
        ticket: MergeTicket,
        done: Result<(VersionEdit, JobOutput)>,
    ) {
        let (mut replaced, mut undone, mut dropped) = (Vec::new(), Vec::new(), false);
        let done = {
            let mut state = self.state.lock();
            let (jobs, c) = state.jobs_and_family(cf.id);
            let done = match (jobs.commits.get_mut(&cf.id), done) {
                (Some(queue), Ok((edit, output))) => {
                    let whole = IntraDfOutput {
                        cf: Arc::clone(cf),
                        tables: tables(self, cf, &output.files),
                        new_files: edit.new_files,
                        files: output.files.clone(),
                    };
                    match queue.merged(ticket, whole, |parts, whole| Pending::join(parts, whole, &mut replaced)) {
                        Ok(()) => Ok(output),
                        Err(whole) => {
                            dropped = true;
                            undone.extend(whole.files.iter().map(FileEntry::own_file));
                            Err(not_wanted())
                        }
                    }
                }
                (Some(queue), Err(e)) => {
                    dropped = ticket.cancelled().load(Ordering::Acquire) && self.was_stopped_alone(&e);
                    queue.merge_failed(ticket);
                    Err(if dropped { not_wanted() } else { e })
                }
                (None, done) => done.and_then(|(_, output)| {
                    undone.extend(output.files.iter().map(FileEntry::own_file));
                    Err(not_wanted())
                }),
            };
            if let Some(c) = c {
                c.jobs_mut().running.finish_merge(merge, done.is_ok());
            }
            done
        };
        self.remove_outputs(cf, &undone, None);
        // The last one that reads them deletes them.
        for table in &replaced {
            self.files.forget_new_table(table.number());
            table.set_obsolete();
        }
        drop(replaced);
        self.ended(cf, &merge.compaction, job, None, done, dropped);
    }

    /// Commits and drops jobs of a column family until none can.
    pub(super) fn commit_in_order(self: &Arc<Self>, id: u32) {
        loop {
            let step = {
                let mut state = self.state.lock();
                let Some(queue) = state.jobs_mut().commits.get_mut(&id) else { return };
                let step = queue.turn();
                match &step {
                    None if queue.is_empty() => drop(state.jobs_mut().commits.remove(&id)),
                    // It has left the queue: no job may depend on it from now on.
                    Some(Step::Drop(number, p)) => self.free_inputs(&mut state, &p.cf, *number, p.compactions()),
                    _ => {}
                }
                step
            };
            match step {
                None => return,
                Some(Step::Drop(_, p)) => {
                    self.remove_outputs(&p.cf, &p.table_files(), None);
                    for j in p.jobs {
                        self.ended(&p.cf, &j.compaction, j.job, j.caller.as_ref(), Err(not_wanted()), true);
                    }
                }
                Some(Step::Commit(ticket, p)) => self.commit(ticket, p),
            }
        }
    }

    fn commit(self: &Arc<Self>, ticket: Ticket, mut p: Pending) {
        let (cf, edit) = (Arc::clone(&p.cf), std::mem::take(&mut p.edit));
        let (number, named) = (ticket.number(), AtomicBool::new(false));
        let mut ticket = Some(ticket);
        let written = p.table_files();
        let cleaned = p.jobs.iter().any(|j| j.compaction.reason == CompactionReason::BottommostFiles);
        let output_level = p.jobs.first().map_or(0, |j| j.compaction.output_level);
        let done = guarded("the commit of a compaction", || {
            let install = |state: &mut State| {
                let (jobs, Some(c)) = state.jobs_and_family(cf.id) else { return };
                // Entries that still have sequence numbers after a cleaning keep them: cleaning them again would never
                // end.
                let outputs = c.version().levels.get(output_level).into_iter().flatten();
                for f in outputs.filter(|f| cleaned && f.entry.largest_seqno > 0 && written.contains(&f.own_file())) {
                    f.rewrite_useless.store(true, Ordering::Release);
                }
                for compaction in p.jobs.iter().map(|j| &j.compaction) {
                    if let Some(key) = &compaction.next_cursor {
                        c.jobs_mut().running.set_cursor(compaction.start_level(), key.clone());
                    }
                }
                // In one step with the new version: a table that moved is input to the next job from now on, and
                // nobody must see it there while the job that moved it still counts as running.
                if let (Some(queue), Some(ticket)) = (jobs.commits.get_mut(&cf.id), ticket.take()) {
                    queue.committed(ticket);
                }
                p.compactions().for_each(|compaction| c.jobs_mut().running.finish(number, compaction));
            };
            self.log_and_apply_noting(Change::new(&cf, edit, install), &named)
        });
        if let Some(ticket) = ticket {
            let mut state = self.state.lock();
            if let Some(queue) = state.jobs_mut().commits.get_mut(&cf.id) {
                queue.failed(ticket);
            }
            self.free_inputs(&mut state, &cf, number, p.compactions());
        }
        if done.is_err() && !named.into_inner() {
            self.remove_outputs(&cf, &written, None);
        }
        for Done { compaction, job, output, caller } in p.jobs {
            let done = done.as_ref().map(|()| output).map_err(Error::clone);
            self.ended(&cf, &compaction, job, caller.as_ref(), done, false);
        }
    }

    /// Reports a job's end, and wakes the threads that wait for it. `dropped`: another job failed, not this one. If
    /// that one was stopped because the database is being closed, so was this one.
    pub(super) fn ended(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: &Compaction,
        job: u64,
        caller: Option<&Outcome>,
        mut done: Result<JobOutput>,
        mut dropped: bool,
    ) {
        if dropped && self.shutdown.load(Ordering::Acquire) {
            done = Err(Error::new(ErrorKind::ShutdownInProgress, "the database is being closed"));
            dropped = false;
        }
        self.compaction_ended(cf, compaction, job, &done, dropped);
        match (caller, &done) {
            (None, Err(e))
                if !dropped && !matches!(e.kind(), ErrorKind::ShutdownInProgress | ErrorKind::ColumnFamilyDropped) =>
            {
                let what =
                    format!("a compaction of column family {:?} into level {}", cf.name, compaction.output_level);
                let bytes = compaction.input_bytes();
                self.set_background_error_with_need(BackgroundErrorReason::Compaction, &what, e, bytes);
            }
            _ => {}
        }
        if let Some(outcome) = caller {
            *outcome.lock() = Some(done.map(|output| output.stats));
        }
        let mut state = self.state.lock();
        state.jobs_mut().running_compactions -= 1;
        drop(state);
        self.wake_all();
    }

    /// Undoes what `begin_compaction` marked.
    pub(super) fn free_inputs<'c>(
        &self,
        state: &mut State,
        cf: &CfData,
        number: u64,
        compactions: impl IntoIterator<Item = &'c Compaction>,
    ) {
        if let Some(c) = state.family_mut(cf.id) {
            compactions.into_iter().for_each(|compaction| c.jobs_mut().running.finish(number, compaction));
        }
        state.rescore(cf.id);
        self.update_threshold(state);
        self.update_pressure(state);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use rockmill_io::{Clock, FileSystem, MemFileSystem, SystemClock};

    use super::*;
    use crate::compaction::commit::CommitQueue;
    use crate::compaction::strategy::Issued;
    use crate::compaction::strategy::aging::Moment;
    use crate::db::Db;
    use crate::db::jobs::compact::begin_compaction;
    use crate::options::Options;

    /// A job whose end the queue does not know has written tables that nothing will ever name. They are removed; and
    /// because the store's record of its jobs is wrong, it reports an error and takes no more writes.
    #[test]
    fn an_output_that_the_queue_does_not_expect_is_removed_and_is_a_background_error() {
        let fs = MemFileSystem::new();
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(fs.clone()));
        o.set_disable_auto_compactions(true);
        o.set_level_zero_file_num_compaction_trigger(2);
        let db = Db::open(&o, "/db").unwrap();
        for round in 0..2 {
            db.put("key", format!("{round}")).unwrap();
            db.flush().unwrap();
        }
        let tables = || {
            let mut names = fs.list_dir(std::path::Path::new("/db")).unwrap();
            names.retain(|n| n.ends_with(".sst"));
            names.sort();
            names
        };
        let (before, inner) = (tables(), &db.inner);
        let (cf, compaction, expected) = {
            let mut state = inner.state.lock();
            let c = state.family_mut(0).unwrap();
            let (cf, picked) = (Arc::clone(c.cf()), c.pick(&Moment::default()).unwrap());
            let ticket = begin_compaction(&mut state, &cf, &picked).unwrap();
            (cf, picked, ticket)
        };
        let other = CommitQueue::<()>::new().issue(Issued { number: expected.number(), depends_on: Vec::new() });
        inner.run_job(&cf, Arc::new(compaction), other, None);
        let e = db.background_error().expect("an error of the database");
        assert!(e.to_string().contains("is not among those that may commit"), "{e}");
        assert_eq!((before.len(), tables()), (2, before.clone()));
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
        db.put("key", "2").unwrap_err();
        assert!(
            inner.state.lock().family(0).unwrap().version().files().all(|f| !f.being_compacted.load(Ordering::Acquire))
        );
        inner.state.lock().jobs_mut().commits.get_mut(&0).unwrap().failed(expected);
    }

    thread_local! {
        /// The next look at the clock on this thread panics.
        static PANICS: Cell<bool> = const { Cell::new(false) };
    }

    #[derive(Debug, Default)]
    struct PanickingClock(SystemClock);

    impl Clock for PanickingClock {
        fn now_micros(&self) -> u64 {
            self.0.now_micros()
        }

        fn monotonic_nanos(&self) -> u64 {
            assert!(!PANICS.take(), "the clock panics");
            self.0.monotonic_nanos()
        }

        fn sleep(&self, duration: Duration) {
            self.0.sleep(duration);
        }
    }

    /// The MANIFEST names what the job wrote from the write on, however its commit ends: the tables must stay, and the
    /// MANIFEST and memory must not drift apart.
    #[test]
    fn a_panic_after_the_manifest_was_written_removes_no_table_that_it_names() {
        let fs = MemFileSystem::new();
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(fs));
        o.set_clock(Arc::new(PanickingClock::default()));
        o.set_disable_auto_compactions(true);
        o.set_level_zero_file_num_compaction_trigger(2);
        let db = Db::open(&o, "/db").unwrap();
        for round in 0..2 {
            db.put("key", format!("{round}")).unwrap();
            db.flush().unwrap();
        }
        let inner = &db.inner;
        let (cf, compaction, ticket) = {
            let mut state = inner.state.lock();
            let c = state.family_mut(0).unwrap();
            let (cf, picked) = (Arc::clone(c.cf()), c.pick(&Moment::default()).unwrap());
            let ticket = begin_compaction(&mut state, &cf, &picked).unwrap();
            (cf, Arc::new(picked), ticket)
        };
        let job = inner.compaction_begins(&cf, &compaction);
        let (edit, output) = inner.compact(&cf, &compaction, job, ticket.cancelled()).unwrap();
        let pending = Pending::new(inner, &cf, edit, Done { compaction, job, output, caller: None });
        let step = {
            let mut state = inner.state.lock();
            let queue = state.jobs_mut().commits.get_mut(&0).unwrap();
            queue.finished(ticket, pending).unwrap();
            queue.turn()
        };
        let Some(Step::Commit(ticket, pending)) = step else { panic!("{step:?}") };
        PANICS.set(true);
        inner.commit(ticket, pending);
        assert!(!PANICS.get());
        let e = db.background_error().expect("an error of the database");
        assert!(e.to_string().contains("the clock panics"), "{e}");
        db.put("key", "2").unwrap_err();
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
        {
            let state = inner.state.lock();
            let c = state.family(0).unwrap();
            assert_eq!(
                (c.version().num_files(), c.jobs().running.count(), state.jobs().running_compactions),
                (1, 0, 0)
            );
            assert!(state.jobs().commits.get(&0).is_none_or(CommitQueue::is_empty));
        }
        // The database continues with a new MANIFEST, and can be opened again.
        let manifest = |db: &Db| db.inner.catalog.lock_manifest().as_ref().map(|m| m.number());
        let before = manifest(&db);
        db.resume().unwrap();
        assert_ne!(manifest(&db), before);
        db.put("other", "2").unwrap();
        drop(db);
        let db = Db::open(&o, "/db").unwrap();
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(db.get("other").unwrap().as_deref(), Some(&b"2"[..]));
    }
}
