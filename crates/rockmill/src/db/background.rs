//! Background threads: flushes and compactions.
//!
//! Threads wait on one condition and look for work themselves, so there is no queue that could disagree with the
//! state of the tree. Flushes have threads of their own: a long compaction never keeps a memtable waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rockmill_format::edit::VersionEdit;

use super::column_family::CfData;
use super::events::FlushEvent;
use super::install::add_files;
use super::tables::CfTables;
use super::{CfState, DbInner, State, timer};
use crate::compaction::filter::TableFileCreationReason;
use crate::compaction::strategy::{leveled, score};
use crate::compaction::{Compaction, JobContext, JobEvents, JobOutput, JobStats, flush, job};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, FlushReason};
use crate::memtable::MemTable;
use crate::options::{CfOptions, DbOptions};

/// RocksDB's split: a quarter of the background jobs, at least one, flush; the rest, at least one, compact.
pub(crate) fn thread_counts(max_background_jobs: i32) -> (usize, usize) {
    let jobs = max_background_jobs.max(1) as usize;
    let flushes = (jobs / 4).max(1);
    (flushes, jobs.saturating_sub(flushes).max(1))
}

/// Starts the background threads.
pub(crate) fn start(db: &Arc<DbInner>) -> Result<Vec<JoinHandle<()>>> {
    let (flushes, compactions) = thread_counts(db.live().max_background_jobs);
    let mut threads = Vec::new();
    let mut spawn = |name: String, run: fn(&Arc<DbInner>)| -> Result<()> {
        let db = Arc::clone(db);
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&db));
        threads.push(thread.map_err(|e| Error::io("cannot start a background thread", &e))?);
        Ok(())
    };
    for i in 0..flushes {
        spawn(format!("rockmill:flush{i}"), flush_thread)?;
    }
    for i in 0..compactions {
        spawn(format!("rockmill:comp{i}"), compaction_thread)?;
    }
    spawn("rockmill:timer".to_owned(), timer::run)?;
    Ok(threads)
}

/// Turns a panic of a job into an error, so that the store can say what happened and go read-only.
fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let words = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Err(Error::new(ErrorKind::Aborted, format!("{what} panicked: {words}")))
    })
}

struct FlushPick {
    cf: Arc<CfData>,
    mems: Vec<Arc<MemTable>>,
    epoch: u64,
    reason: FlushReason,
}

fn flush_thread(db: &Arc<DbInner>) {
    loop {
        let pick = {
            let mut state = db.state.lock();
            loop {
                if db.shutdown.load(Ordering::Acquire) {
                    return;
                }
                if let Some(p) = pick_flush(&mut state) {
                    break p;
                }
                db.work.wait(&mut state);
            }
        };
        let cf = Arc::clone(&pick.cf);
        let done = guarded("a flush", || db.run_flush(&pick));
        {
            let mut state = db.state.lock();
            state.running_flushes -= 1;
            if let Some(c) = state.cfs.get_mut(&cf.id) {
                c.flushing = false;
                if c.imm.is_empty() {
                    c.flush_requested = false;
                }
            }
        }
        if let Err(e) = done
            && e.kind() != ErrorKind::ColumnFamilyDropped
        {
            let what = format!("a flush of column family {:?}", cf.name);
            db.set_background_error(BackgroundErrorReason::Flush, &what, &e);
        }
        db.progress.notify_all();
        db.work.notify_all();
        drop(pick);
        db.delete_obsolete_wals();
        db.delete_purged_files();
        db.tell_waiting();
    }
}

fn pick_flush(state: &mut State) -> Option<FlushPick> {
    if state.background_error.is_some() {
        return None;
    }
    for c in state.cfs.values_mut() {
        let enough = c.imm.len() >= c.cf.options.load().min_write_buffer_number_to_merge.max(1) as usize
            || c.imm.len() >= c.cf.options.load().max_write_buffer_number.max(1) as usize
            || c.flush_requested;
        if c.flushing || c.imm.is_empty() || !enough {
            continue;
        }
        c.flushing = true;
        state.running_flushes += 1;
        c.next_epoch += 1;
        return Some(FlushPick {
            cf: Arc::clone(&c.cf),
            mems: c.imm.iter().map(|i| Arc::clone(&i.mem)).collect(),
            epoch: c.next_epoch,
            reason: std::mem::replace(&mut c.flush_reason, FlushReason::WriteBufferFull),
        });
    }
    None
}

fn compaction_thread(db: &Arc<DbInner>) {
    loop {
        let (cf, compaction) = {
            let mut state = db.state.lock();
            loop {
                if db.shutdown.load(Ordering::Acquire) {
                    return;
                }
                if let Some(p) = pick_compaction(&mut state) {
                    break p;
                }
                db.work.wait(&mut state);
            }
        };
        let done = guarded("a compaction", || db.run_compaction(&cf, &compaction));
        db.end_compaction(&cf, &compaction);
        if let Err(e) = done
            && !matches!(e.kind(), ErrorKind::ShutdownInProgress | ErrorKind::ColumnFamilyDropped)
        {
            let what = format!("a compaction of column family {:?} into level {}", cf.name, compaction.output_level);
            db.set_background_error(BackgroundErrorReason::Compaction, &what, &e);
        }
        drop(compaction);
        db.delete_purged_files();
        db.tell_waiting();
    }
}

fn pick_compaction(state: &mut State) -> Option<(Arc<CfData>, Compaction)> {
    if state.background_error.is_some() || state.exclusive_manual > 0 || state.paused > 0 {
        return None;
    }
    // The column family whose tree is furthest over its shape first.
    let mut order: Vec<(f64, u32)> = state
        .cfs
        .iter()
        .filter(|(_, c)| {
            !c.cf.options.load().disable_auto_compactions && (c.scores.needs_compaction() || has_marked(c))
        })
        .map(|(&id, c)| (c.scores.max_score(), id))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, id) in order {
        let c = state.cfs.get_mut(&id)?;
        if let Some(compaction) = leveled::pick(&c.version, &c.cf.options.load(), &mut c.cursors) {
            let cf = Arc::clone(&c.cf);
            begin_compaction(state, &cf, &compaction);
            return Some((cf, compaction));
        }
    }
    None
}

/// True when a table that no job has yet is marked for compaction (RocksDB marks them in the MANIFEST).
fn has_marked(c: &CfState) -> bool {
    let mut files = c.version.levels.iter().flatten();
    files.any(|f| f.entry.marked_for_compaction && !f.being_compacted.load(Ordering::Acquire))
}

/// Marks a compaction's inputs as taken. Under the lock that it was picked under.
pub(crate) fn begin_compaction(state: &mut State, cf: &CfData, compaction: &Compaction) {
    state.running_compactions += 1;
    if let Some(c) = state.cfs.get_mut(&cf.id) {
        c.cursors.start(compaction);
        c.compacting += 1;
    }
}

impl DbInner {
    /// Undoes `begin_compaction`, whatever the compaction's outcome.
    pub fn end_compaction(&self, cf: &CfData, compaction: &Compaction) {
        let mut state = self.state.lock();
        state.running_compactions -= 1;
        if let Some(c) = state.cfs.get_mut(&cf.id) {
            c.cursors.finish(compaction);
            c.compacting -= 1;
            c.scores = score::level_scores(&c.version, &c.cf.options.load());
        }
        drop(state);
        self.progress.notify_all();
        self.work.notify_all();
    }

    pub fn job_context(self: &Arc<Self>, cf: &CfData, job: u64, reason: TableFileCreationReason) -> JobContext {
        let next = Arc::clone(&self.next_file);
        JobContext {
            fs: Arc::clone(&self.opts.fs),
            clock: Arc::clone(&self.opts.clock),
            dir: self.path.clone(),
            db: DbOptions::clone(&self.live()),
            cf: CfOptions::clone(&cf.options.load()),
            cf_id: cf.id,
            cf_name: cf.name.clone(),
            cmp: cf.cmp.clone(),
            tables: Arc::new(CfTables { db: Arc::clone(self), cmp: cf.cmp.clone(), cache: self.cache_of(cf) }),
            new_file_number: Arc::new(move || next.fetch_add(1, Ordering::Relaxed)),
            snapshots: self.snapshots.all(),
            db_id: self.db_id.clone(),
            db_session_id: self.session_id.clone(),
            shutdown: Arc::clone(&self.shutdown),
            events: JobEvents { log: self.log.clone(), job, reason, ..JobEvents::default() },
            urgent: Arc::clone(&self.urgent),
        }
    }

    pub fn cache_of(&self, cf: &CfData) -> Option<Arc<crate::table::BlockCache>> {
        if cf.options.load().table.no_block_cache {
            return None;
        }
        cf.options.load().table.block_cache.clone().or_else(|| self.cache.clone())
    }

    fn run_flush(self: &Arc<Self>, pick: &FlushPick) -> Result<()> {
        // With several column families a batch may span them: the WAL of what becomes durable here must not end
        // before the table does, or recovery could see half a batch.
        if self.state.lock().cfs.len() > 1 {
            self.wal.lock().sync_older()?;
        }
        let event = FlushEvent { job: self.new_job(), reason: pick.reason, memtables: pick.mems.len() };
        self.flush_begins(&pick.cf, &event, &pick.mems);
        let ctx = self.job_context(&pick.cf, event.job, TableFileCreationReason::Flush);
        let built = flush::build_l0(&pick.mems, &ctx, TableFileCreationReason::Flush)?;
        self.sync_dir()?;
        let (mut entries, mut stats) = (Vec::new(), JobStats::default());
        if let Some((mut entry, s)) = built {
            entry.epoch_number = pick.epoch;
            entries.push(entry);
            stats = s;
        }
        let written: Vec<u64> = entries.iter().map(|e| e.number).collect();
        let entry = entries.first().cloned();
        let n = pick.mems.len();
        let mut edit = add_files(0, entries);
        edit.log_number = {
            let state = self.state.lock();
            state.cfs.get(&pick.cf.id).map(|c| c.imm.get(n).map_or(c.mem_wal, |i| i.wal))
        };
        let log_number = edit.log_number;
        let done = self.log_and_apply(&pick.cf, edit, |c| {
            c.imm.drain(..n);
            if let Some(l) = log_number {
                c.log_number = c.log_number.max(l);
            }
        });
        if done.is_err() {
            self.remove_outputs(&written, done.as_ref().err());
        }
        done?;
        let table = ctx.events.written.lock().pop();
        self.flush_ended(&pick.cf, &event, entry.as_ref(), &stats, table.as_ref());
        Ok(())
    }

    /// Makes the names of new tables durable, before the MANIFEST refers to them.
    fn sync_dir(&self) -> Result<()> {
        let synced = self.opts.fs.sync_dir(&self.path);
        synced.map_err(|e| Error::io(format_args!("cannot sync {}", self.path.display()), &e))
    }

    /// Removes tables of a job that did not commit, unless the MANIFEST may name them (its write failed half-way).
    fn remove_outputs(&self, numbers: &[u64], error: Option<&Error>) {
        if error.is_some_and(|e| e.kind() == ErrorKind::IOError) {
            return; // the edit may be in the MANIFEST; if it is not, the next open removes the orphan
        }
        for &n in numbers {
            let _ = self.opts.fs.remove(&self.path.join(rockmill_format::filename::table(n)));
        }
    }

    /// Runs a compaction and commits it.
    pub fn run_compaction(self: &Arc<Self>, cf: &Arc<CfData>, compaction: &Compaction) -> Result<JobStats> {
        let job = self.compaction_begins(cf, compaction);
        let done = self.compact(cf, compaction, job);
        self.compaction_ended(cf, compaction, job, &done);
        done.map(|output| output.stats)
    }

    fn compact(self: &Arc<Self>, cf: &Arc<CfData>, compaction: &Compaction, job: u64) -> Result<JobOutput> {
        let mut edit = VersionEdit::default();
        for (level, files) in &compaction.inputs {
            edit.deleted_files.extend(files.iter().map(|f| (*level as u32, f.number())));
        }
        if compaction.trivial_move {
            let files = compaction.inputs.iter().flat_map(|(_, files)| files);
            edit.new_files = files.map(|f| (compaction.output_level as u32, f.entry.clone())).collect();
            self.log_and_apply(cf, edit, |_| {})?;
            return Ok(JobOutput::default());
        }
        let ctx = self.job_context(cf, job, TableFileCreationReason::Compaction);
        let output = job::run(compaction, &ctx)?;
        self.sync_dir()?;
        let written: Vec<u64> = output.files.iter().map(|e| e.number).collect();
        edit.new_files = output.files.iter().map(|f| (compaction.output_level as u32, f.clone())).collect();
        let done = self.log_and_apply(cf, edit, |_| {});
        if done.is_err() {
            self.remove_outputs(&written, done.as_ref().err());
        }
        done.map(|()| output)
    }
}
