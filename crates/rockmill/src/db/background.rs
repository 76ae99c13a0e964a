//! Background threads: flushes and compactions.
//!
//! Threads wait on one condition and look for work themselves, so there is no queue that could disagree with the
//! state of the tree. Flushes have threads of their own: a long compaction never keeps a memtable waiting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::properties::TableProperties;

use super::column_family::CfData;
use super::error_recovery::recovery_thread;
use super::events::FlushEvent;
use super::flush_bound::REST_SECONDS;
use super::install::{Change, add_files};
use super::stall::write_control;
use super::switch::with_data;
use super::tables::CfTables;
use super::{CfState, DbInner, State, Weighed, timer};
use crate::compaction::commit::{CommitQueue, MergeTicket, Ticket};
use crate::compaction::filter::TableFileCreationReason;
use crate::compaction::strategy::intra::{self, IntraDf, PendingRun};
use crate::compaction::strategy::{self, aging::Moment};
use crate::compaction::{Compaction, CompactionReason, JobContext, JobEvents, JobOutput, JobStats, flush, job};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, FlushReason};
use crate::info_log::log_warn;
use crate::memtable::MemTable;
use crate::options::{CfOptions, DbOptions};
use crate::statistics::CountedOperator;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::version::{FileMeta, Version};
use crate::write_buffer_manager::WriteBufferManager;

/// How long compaction threads wait between looks at tables that are due: at least, so that they do not spin, and at
/// most.
const DUE_WAIT_MIN: Duration = Duration::from_secs(1);
const DUE_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long they wait where jobs are put off because writers wait for flushes.
const REST_WAIT: Duration = Duration::from_millis((REST_SECONDS * 1000.0) as u64 + 1);

/// How long the write leader waits for a flush before it looks again by itself.
const FLUSH_WAIT: Duration = Duration::from_millis(100);

/// Background threads of one database at most: four for each core, and no fewer than this. An option that somebody
/// stored starts no thousand of them.
const THREADS_MIN_MAX: usize = 64;

/// RocksDB's split: a quarter of the background jobs, at least one, flush; the rest, at least one, compact.
pub(crate) fn thread_counts(max_background_jobs: i32) -> (usize, usize) {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let jobs = (max_background_jobs.max(1) as usize).min((4 * cores).max(THREADS_MIN_MAX));
    let flushes = (jobs / 4).max(1);
    (flushes, jobs.saturating_sub(flushes).max(1))
}

/// A background thread: what it does, and its number among those that do the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worker {
    Flush(usize),
    Compaction(usize),
    /// There is one, as long as the database is open.
    Timer,
    /// The same.
    Recovery,
}

impl Worker {
    /// True if there are fewer threads of its kind now: it ends when it has nothing to do.
    fn is_too_many(self, db: &DbInner) -> bool {
        let (flushes, compactions) = thread_counts(db.live().max_background_jobs);
        match self {
            Self::Flush(i) => i >= flushes,
            Self::Compaction(i) => i >= compactions,
            Self::Timer | Self::Recovery => false,
        }
    }

    /// True if the thread is to end now. It is gone for those who start threads when the lock is given back.
    fn ends(self, db: &DbInner, state: &mut State) -> bool {
        let ends = db.shutdown.load(Ordering::Acquire) || self.is_too_many(db);
        if ends {
            state.threads.remove(&self);
        }
        ends
    }
}

/// Starts those of the background threads that should run and do not.
pub(crate) fn start(db: &Arc<DbInner>) -> Result<Vec<JoinHandle<()>>> {
    let asked = db.live().max_background_jobs;
    let (flushes, compactions) = thread_counts(asked);
    if asked as usize > (flushes + compactions).max(2) {
        let started = flushes + compactions;
        log_warn!(
            db.log,
            "max_background_jobs is {asked}, and {started} threads are started: four for each core, or 64"
        );
    }
    let mut threads = Vec::new();
    let jobs = (0..flushes).map(Worker::Flush).chain((0..compactions).map(Worker::Compaction));
    for worker in jobs.chain([Worker::Timer, Worker::Recovery]) {
        if !db.state.lock().threads.insert(worker) {
            continue;
        }
        let for_thread = Arc::clone(db);
        let (name, run): (_, fn(&Arc<DbInner>, Worker)) = match worker {
            Worker::Flush(i) => (format!("rockmill:flush{i}"), flush_thread),
            Worker::Compaction(i) => (format!("rockmill:comp{i}"), compaction_thread),
            Worker::Timer => ("rockmill:timer".to_owned(), |db, _| timer::run(db)),
            Worker::Recovery => ("rockmill:recover".to_owned(), |db, _| recovery_thread(db)),
        };
        match crate::sync::thread::Builder::new().name(name).spawn(move || run(&for_thread, worker)) {
            Ok(thread) => threads.push(thread),
            Err(e) => {
                db.state.lock().threads.remove(&worker);
                return Err(Error::io("cannot start a background thread", &e));
            }
        }
    }
    Ok(threads)
}

/// Turns a panic of a job into an error, so that the store can say what happened and go read-only.
pub(crate) fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(what, f).and_then(|done| done)
}

/// Gives a panic as an error.
#[inline]
pub(crate) fn caught<T>(what: &str, f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let words = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Error::new(ErrorKind::Aborted, format!("{what} panicked: {words}"))
    })
}

/// Memtables to be flushed and committed together: of one column family, or with `atomic_flush` of all.
pub(crate) struct FlushPick {
    parts: Vec<FlushPart>,
    /// Listeners are told when the write leader, who waits for it, has given up its place.
    told_later: bool,
    /// CPU time that the tables took, in microseconds.
    cpu_micros: AtomicU64,
}

struct FlushPart {
    cf: Arc<CfData>,
    mems: Vec<Arc<MemTable>>,
    epoch: u64,
    reason: FlushReason,
}

impl FlushPick {
    fn new(parts: Vec<FlushPart>) -> Self {
        Self { parts, told_later: false, cpu_micros: AtomicU64::new(0) }
    }
}

/// What became of a [`FlushPart`].
struct BuiltPart {
    event: FlushEvent,
    /// `None` when nothing was left to write.
    entry: Option<FileEntry>,
    stats: JobStats,
    table: Option<TableProperties>,
    /// The column family was there at the commit: the table is the tree's.
    committed: bool,
}

fn flush_thread(db: &Arc<DbInner>, worker: Worker) {
    loop {
        let pick = {
            let mut state = db.state.lock();
            loop {
                if worker.ends(db, &mut state) {
                    return;
                }
                if let Some(p) = state.pick_flush(db.opts.atomic_flush, db.flushes_at_once()) {
                    break p;
                }
                db.work.wait(&mut state);
            }
        };
        // A failure is a background error by now, which callers that wait look at.
        let _ = db.do_flush(&pick);
        drop(pick);
        db.delete_obsolete_wals();
        db.delete_purged_files();
        db.tell_waiting();
    }
}

impl CfState {
    /// True when there are immutable memtables and it is time to flush them.
    pub fn flush_due(&self, at_once: bool) -> bool {
        let o = self.cf.options.load();
        let n = self.imm.len();
        let merged = if at_once { 1 } else { o.min_write_buffer_number_to_merge.max(1) as usize };
        n > 0 && (n >= merged || n >= o.max_write_buffer_number.max(1) as usize || self.flush_requested)
    }

    /// True when there are immutable memtables that are being flushed, or are about to be.
    pub fn waits_for_flush(&self, at_once: bool) -> bool {
        !self.imm.is_empty() && (self.flushing || self.flush_due(at_once))
    }

    /// Bytes a second that writers get, who wrote `written`, so that memtables are full when the flush in flight ends,
    /// and how many that are.
    pub fn flush_pace(&self, now: f64, written: u64, at_once: bool) -> (f64, f64) {
        let o = self.cf.options.load();
        let most = o.max_write_buffer_number.max(1) as usize;
        // At the limit writers are stopped.
        let more = match most.checked_sub(self.imm.len() + 1) {
            Some(more) if self.waits_for_flush(at_once) => more,
            _ => return (f64::INFINITY, f64::INFINITY),
        };
        let (data, memory) = (self.mem.data_size(), self.mem.memory_usage());
        let room = self.fill.room(data, memory, o.write_buffer_size, written, more);
        let waiting: u64 = self.imm.iter().map(|i| i.mem.data_size()).sum();
        (self.pace.rate(now, room, (self.fill.began(), waiting as f64)), room)
    }

    fn take_flush(&mut self) -> FlushPart {
        self.flushing = true;
        self.next_epoch += 1;
        FlushPart {
            cf: Arc::clone(&self.cf),
            mems: self.imm.iter().map(|i| Arc::clone(&i.mem)).collect(),
            epoch: self.next_epoch,
            reason: std::mem::replace(&mut self.flush_reason, FlushReason::WriteBufferFull),
        }
    }
}

impl State {
    fn pick_flush(&mut self, atomic: bool, at_once: bool) -> Option<FlushPick> {
        if self.write_error().is_some() {
            return None;
        }
        if atomic {
            // One at a time. What becomes immutable together is picked together, because both happen under this lock.
            let free = self.cfs.values().all(|c| !c.flushing);
            return (free && self.cfs.values().any(|c| c.flush_due(true))).then(|| self.pick_all_flushes());
        }
        let part = self.cfs.values_mut().find(|c| !c.flushing && c.flush_due(at_once))?.take_flush();
        self.running_flushes += 1;
        Some(FlushPick::new(vec![part]))
    }

    /// Everything that is immutable, to be committed together. No flush may be running.
    pub fn pick_all_flushes(&mut self) -> FlushPick {
        self.running_flushes += 1;
        let with_data = self.cfs.values_mut().filter(|c| !c.imm.is_empty());
        FlushPick::new(with_data.map(CfState::take_flush).collect())
    }

    /// True while a flush of one of these column families runs; with `atomic`, of any.
    fn flush_runs(&self, ids: &[u32], atomic: bool) -> bool {
        self.cfs.iter().any(|(id, c)| c.flushing && (atomic || ids.contains(id)))
    }

    /// Everything of these column families that is immutable; with `atomic`, of all. No flush of one of them may run.
    fn pick_flush_of(&mut self, ids: &[u32], atomic: bool, reason: FlushReason) -> FlushPick {
        let of_them = |id: &u32| atomic || ids.contains(id);
        for (_, c) in self.cfs.iter_mut().filter(|(id, c)| of_them(id) && !c.imm.is_empty()) {
            c.flush_reason = reason;
        }
        if atomic {
            return self.pick_all_flushes();
        }
        self.running_flushes += 1;
        let picked = self.cfs.iter_mut().filter(|(id, c)| of_them(id) && !c.imm.is_empty());
        FlushPick::new(picked.map(|(_, c)| c.take_flush()).collect())
    }
}

fn compaction_thread(db: &Arc<DbInner>, worker: Worker) {
    loop {
        let picked = {
            let mut state = db.state.lock();
            loop {
                if worker.ends(db, &mut state) {
                    return;
                }
                if let Some((cf, version)) = take_unweighed(&mut state) {
                    drop(state);
                    // Without it the choice is another one, but none that does harm.
                    let _ = caught("the weighing of tombstones", || db.weigh_tombstones(&cf, &version));
                    state = db.state.lock();
                    let oldest_snapshot = state.oldest_snapshot;
                    if let Some(c) = state.cfs.get_mut(&cf.id) {
                        c.weighed = Weighed::Done;
                        c.rescore(oldest_snapshot);
                    }
                    db.update_pressure(&state);
                    db.work.notify_all();
                    continue;
                }
                let now = db.now_seconds();
                let threads = thread_counts(db.live().max_background_jobs).1;
                let (bound, lately) = db.controller.waits_for_flushes(&*db.opts.clock);
                // The comparator is the user's: without this thread nothing would ever be compacted again.
                let picked = guarded("the choice of a compaction", || {
                    Ok(pick_compaction(&mut state, now, threads, (bound, lately)))
                });
                if let Some(picked) = picked.transpose() {
                    break picked;
                }
                // What is put off is due when writers rest, of which nobody tells.
                let rest = (bound && lately).then_some(REST_WAIT);
                match next_due(&state, now).into_iter().chain(rest).min() {
                    Some(wait) => drop(db.work.wait_for(&mut state, wait)),
                    None => db.work.wait(&mut state),
                }
            }
        };
        match picked {
            Ok(Picked::Job(cf, compaction, ticket)) => db.run_job(&cf, Arc::new(compaction), ticket, None),
            Ok(Picked::Merge(cf, merge, ticket)) => db.run_intra_df(&cf, &merge, ticket),
            Err(e) => db.set_background_error(BackgroundErrorReason::Compaction, "a compaction", &e),
        }
        db.delete_purged_files();
        db.tell_waiting();
    }
}

/// How long a compaction thread may wait for the next table to be due; `None` when none will be.
fn next_due(state: &State, now: u64) -> Option<Duration> {
    let waits = |c: &&CfState| !c.aging_blocked && !c.cf.options.load().disable_auto_compactions;
    let next = state.cfs.values().filter(waits).map(|c| c.aging.next_due).min().filter(|&t| t < u64::MAX)?;
    // The clock may be set: look now and then. And never spin, whatever holds the job up.
    Some(Duration::from_secs(next.saturating_sub(now)).clamp(DUE_WAIT_MIN, DUE_WAIT_MAX))
}

/// Nothing keeps compactions from being chosen.
fn may_pick(state: &State) -> bool {
    state.background_error.is_none() && state.exclusive_manual == 0 && state.paused == 0
}

/// A column family in which a compaction is due, and whose tables nobody has looked into since the database was opened.
/// Which compaction that is depends on the tombstones in them.
fn take_unweighed(state: &mut State) -> Option<(Arc<CfData>, Arc<Version>)> {
    if !may_pick(state) {
        return None;
    }
    let due = |c: &CfState| c.scores.needs_compaction() && !c.cf.options.load().disable_auto_compactions;
    let c = state.cfs.values_mut().find(|c| c.weighed == Weighed::NotYet && due(c))?;
    c.weighed = Weighed::Now;
    Some((Arc::clone(&c.cf), Arc::clone(&c.version)))
}

/// What a compaction thread is to do.
enum Picked {
    Job(Arc<CfData>, Compaction, Ticket),
    /// Finished jobs wait, and what they wrote is merged.
    Merge(Arc<CfData>, IntraDf, MergeTicket),
}

/// Writers wait for flushes, and did so a moment ago.
fn pick_compaction(state: &mut State, now: u64, threads: usize, (bound, lately): (bool, bool)) -> Option<Picked> {
    if !may_pick(state) {
        return None;
    }
    // A job may have several threads: no more are to work than there are.
    let busy: usize = state.cfs.values().map(|c| c.cursors.busy_threads()).sum();
    if busy >= threads && state.cfs.values().any(|c| c.cursors.has_split_jobs()) {
        return None;
    }
    let idle = threads.saturating_sub(busy).max(1);
    let moment = Moment { now, oldest_snapshot: state.oldest_snapshot };
    let at_work = lately || state.running_compactions > 0 || state.cfs.values().any(|c| !c.imm.is_empty());
    // The column family whose debt delays writers most, then the one whose tree is furthest over its shape.
    let mut order: Vec<(f64, f64, u32)> = state
        .cfs
        .iter()
        .filter(|(id, c)| {
            !c.cf.options.load().disable_auto_compactions
                && c.weighed != Weighed::Now
                && (c.scores.needs_compaction()
                    || has_marked(c)
                    || c.is_aging_due(now)
                    || c.version.has_extra_runs()
                    || state.commits.get(id).is_some_and(|queue| queue.waiting().next().is_some()))
        })
        .map(|(&id, c)| (write_control(&c.scores, &c.cf.options.load()).pressure, c.scores.max_score(), id))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
    for (_, _, id) in order {
        if state.commits.get(&id).is_some_and(CommitQueue::has_doomed) {
            // They end soon. What is picked before would need them, come to nothing, and be picked again and again.
            continue;
        }
        let c = state.cfs.get_mut(&id)?;
        c.cursors.set_threads(threads, idle);
        // Never where nothing runs: what was put off is due when writers rest, and the end of the last job tells.
        c.cursors.set_sparing(bound && at_work);
        if let Some(compaction) = strategy::pick(&c.version, &c.cf.options.load(), &mut c.cursors, &moment) {
            let cf = Arc::clone(&c.cf);
            let ticket = begin_compaction(state, &cf, &compaction)?;
            return Some(Picked::Job(cf, compaction, ticket));
        }
        if let Some(merge) = begin_intra_df(state, id) {
            return Some(merge);
        }
        let c = state.cfs.get_mut(&id)?;
        c.aging_blocked = c.aging.is_due(now);
        // What is put off while writers wait is still to come.
        c.nothing_found = !c.cursors.sparing();
    }
    None
}

/// True when a table that no job has yet is marked for compaction (RocksDB marks them in the MANIFEST).
fn has_marked(c: &CfState) -> bool {
    let mut files = c.version.files();
    files.any(|f| f.entry.marked_for_compaction && !f.being_compacted.load(Ordering::Acquire))
}

/// Marks a compaction's inputs as taken, and gives its place in the order of commits. Under the lock that it was picked
/// under; `None` where the column family is no longer there.
pub(crate) fn begin_compaction(state: &mut State, cf: &CfData, compaction: &Compaction) -> Option<Ticket> {
    let c = state.cfs.get_mut(&cf.id)?;
    state.running_compactions += 1;
    c.compacting += 1;
    let issued = c.cursors.start(compaction);
    Some(state.commits.entry(cf.id).or_default().issue(issued))
}

/// Begins to merge what finished jobs of a column family wrote and may not commit yet, if there is enough of it.
fn begin_intra_df(state: &mut State, id: u32) -> Option<Picked> {
    let queue = state.commits.get_mut(&id)?;
    let pending: Vec<PendingRun> = queue.waiting().filter_map(|(number, needs, p)| p.as_run(number, needs)).collect();
    let c = state.cfs.get_mut(&id)?;
    let mut merge = intra::pick(&c.version, &c.cf.options.load(), &c.cursors, &pending)?;
    let ticket = queue.begin_merge(&merge.numbers)?;
    state.running_compactions += 1;
    c.compacting += 1;
    c.cursors.start_merge(&mut merge);
    Some(Picked::Merge(Arc::clone(&c.cf), merge, ticket))
}

impl DbInner {
    /// True when no immutable memtable waits for others to be merged with. RocksDB merges none before an atomic flush.
    /// And where writers, also of other databases, wait for memory, what holds it must not wait for a writer.
    pub fn flushes_at_once(&self) -> bool {
        self.opts.atomic_flush || self.write_buffers.as_ref().is_some_and(WriteBufferManager::allows_stall)
    }

    pub fn job_context(self: &Arc<Self>, cf: &CfData, job: u64, reason: TableFileCreationReason) -> JobContext {
        let next = Arc::clone(&self.next_file);
        let mut options = CfOptions::clone(&cf.options.load());
        let operator = options.merge_operator.as_ref();
        options.merge_operator = CountedOperator::wrap(operator, self.opts.statistics.as_ref(), false);
        JobContext {
            fs: Arc::clone(&self.opts.fs),
            clock: Arc::clone(&self.opts.clock),
            dir: self.path.clone(),
            db: DbOptions::clone(&self.live()),
            cf: options,
            cf_id: cf.id,
            cf_name: cf.name.clone(),
            cmp: cf.cmp.clone(),
            tables: Arc::new(CfTables::new(self, cf)),
            new_file_number: Arc::new(move || next.fetch_add(1, Ordering::Relaxed)),
            snapshots: self.snapshots.all(),
            db_id: self.db_id.clone(),
            db_session_id: self.session_id.clone(),
            shutdown: Arc::clone(&self.shutdown),
            cancelled: Arc::default(),
            events: JobEvents {
                log: self.log.clone(),
                job,
                reason,
                new_tables: Arc::clone(&self.new_tables),
                ..JobEvents::default()
            },
            urgent: Arc::clone(&self.urgent),
            give_way: Arc::clone(&self.give_way),
            patient: None,
            engines: Arc::clone(&self.engines),
        }
    }

    pub fn cache_of(&self, cf: &CfData) -> Option<Arc<crate::table::BlockCache>> {
        self.cache_for(&cf.options.load())
    }

    /// The cache of a column family with these options.
    pub fn cache_for(&self, options: &CfOptions) -> Option<Arc<crate::table::BlockCache>> {
        if options.table.no_block_cache {
            return None;
        }
        options.table.block_cache.clone().or_else(|| self.cache.clone())
    }

    /// Flushes what was picked; a failure is a background error.
    fn do_flush(self: &Arc<Self>, pick: &FlushPick) -> Result<()> {
        let done = guarded("a flush", || self.run_flush(pick, false));
        // Before the flush counts as ended: none begins after it, and a recovery waits for it.
        if let Err(e) = &done
            && e.kind() != ErrorKind::ColumnFamilyDropped
        {
            let names: Vec<String> = pick.parts.iter().map(|p| format!("{:?}", p.cf.name)).collect();
            let families = if names.len() == 1 { "family" } else { "families" };
            let what = format!("a flush of column {families} {}", names.join(", "));
            self.set_background_error(BackgroundErrorReason::Flush, &what, e);
        }
        self.end_flush(pick);
        self.progress.notify_all();
        self.work.notify_all();
        done
    }

    /// Writes the memtables of column families as tables (of all, with `atomic_flush`); the write leader's to call, on
    /// its own thread. Listeners that write are let in while it waits for a flush that runs, and told of this one
    /// later: nothing here waits for them.
    pub fn flush_as_leader(self: &Arc<Self>, ids: &[u32], reason: FlushReason) -> Result<()> {
        let atomic = self.opts.atomic_flush;
        let mut pick = loop {
            let wal = self.begin_wal()?;
            let mut state = self.state.lock();
            if let Some(e) = state.write_error() {
                return Err(e.clone());
            }
            // Sealed and picked at once: flush threads, whose listeners may write again, get none of it.
            if !state.flush_runs(ids, atomic) {
                let sealed = if atomic { with_data(&state) } else { ids.to_vec() };
                self.seal_memtables(&mut state, &sealed, wal, reason);
                self.update_pressure(&state);
                break state.pick_flush_of(ids, atomic, reason);
            }
            while state.flush_runs(ids, atomic) {
                if let Some(e) = state.write_error() {
                    return Err(e.clone());
                }
                if self.shutdown.load(Ordering::Acquire) {
                    return Err(Error::new(ErrorKind::ShutdownInProgress, "the database is being closed"));
                }
                if !self.queue.has_urgent() {
                    self.progress.wait_for(&mut state, FLUSH_WAIT);
                }
                if self.queue.has_urgent() {
                    drop(state);
                    self.queue.lend();
                    state = self.state.lock();
                }
            }
        };
        pick.told_later = true;
        self.do_flush(&pick)
    }

    /// Writes what was picked as tables and commits them together. With `leave_wals` the commit also says that no WAL
    /// before the present one is needed, which must be so once these memtables are in tables.
    pub fn run_flush(self: &Arc<Self>, pick: &FlushPick, leave_wals: bool) -> Result<()> {
        // With several column families a batch may span them: the WAL of what becomes durable here must not end
        // before the table does, or recovery could see half a batch.
        if self.begin_flush(pick) > 1 {
            self.wal.sync_left()?;
        }
        let mut built = Vec::new();
        let durable = self.build_flush(pick, &mut built);
        let named = durable.is_ok();
        let done = durable.and_then(|()| self.commit_flush(pick, &mut built, leave_wals));
        if let Err(e) = &done {
            let written: Vec<u64> = built.iter().filter_map(|b| b.entry.as_ref()).map(|f| f.number).collect();
            self.remove_outputs(&written, Some(e).filter(|_| named));
        }
        done?;
        for (part, b) in pick.parts.iter().zip(&built) {
            if let Some(entry) = &b.entry
                && !b.committed
            {
                // Its column family was dropped before the commit. (After it, the last reader's end deletes the table.)
                self.remove_outputs(&[entry.number], None);
            }
            self.flush_ended(&part.cf, &b.event, b.entry.as_ref(), &b.stats, b.table.as_ref(), pick.told_later);
        }
        Ok(())
    }

    /// Writes the tables of a flush, durable with their names; `built` gets what there is, one for each part, even if
    /// one fails.
    fn build_flush(self: &Arc<Self>, pick: &FlushPick, built: &mut Vec<BuiltPart>) -> Result<()> {
        for part in &pick.parts {
            let event = FlushEvent { job: self.new_job(), reason: part.reason, memtables: part.mems.len() };
            self.flush_begins(&part.cf, &event, &part.mems, pick.told_later);
            let mut ctx = self.job_context(&part.cf, event.job, TableFileCreationReason::Flush);
            ctx.events.told_later = pick.told_later.then(Arc::default);
            let bytes = part.mems.iter().map(|m| m.data_size()).sum();
            let _running = self.runs_flush(&part.cf, event.job, bytes, &ctx.events.progress);
            let table = flush::build_l0(&part.mems, &ctx, TableFileCreationReason::Flush);
            for info in ctx.events.told_later.iter().flat_map(|infos| std::mem::take(&mut *infos.lock())) {
                self.notify_later(move |l| l.on_table_file_created(&info));
            }
            let table = table?;
            let (entry, stats) = match table {
                Some((mut entry, stats)) => {
                    entry.epoch_number = part.epoch;
                    pick.cpu_micros.fetch_add(stats.cpu_micros, Ordering::Relaxed);
                    (Some(entry), stats)
                }
                None => (None, JobStats::default()),
            };
            let table = ctx.events.written.lock().pop();
            built.push(BuiltPart { event, entry, stats, table, committed: false });
        }
        Ok(())
    }

    fn commit_flush(&self, pick: &FlushPick, built: &mut [BuiltPart], leave_wals: bool) -> Result<()> {
        let state = self.state.lock();
        // Column families without a memtable to flush: number of the WAL that they need from then on.
        let others: Vec<(Arc<CfData>, u64)> = match leave_wals {
            true => {
                let idle = |c: &&CfState| c.imm.is_empty() && pick.parts.iter().all(|p| p.cf.id != c.cf.id);
                state.cfs.values().filter(idle).map(|c| (Arc::clone(&c.cf), c.mem_wal)).collect()
            }
            false => Vec::new(),
        };
        let mut changes: Vec<Change<'_>> = Vec::new();
        for (part, b) in pick.parts.iter().zip(built) {
            let n = part.mems.len();
            let mut edit = add_files(0, b.entry.clone());
            let log_number = state.cfs.get(&part.cf.id).map(|c| c.imm.get(n).map_or(c.mem_wal, |i| i.wal));
            edit.log_number = log_number;
            changes.push(Change::new(&part.cf, edit, move |c, _| {
                b.committed = true;
                c.flushed.retain(|mem| mem.strong_count() > 0);
                for mem in &part.mems {
                    // Only one flush of a column family runs at a time, so they are still the oldest.
                    let oldest = c.imm.front().is_some_and(|i| Arc::ptr_eq(&i.mem, mem));
                    debug_assert!(oldest, "another flush took a memtable");
                    if oldest {
                        c.imm.pop_front();
                    }
                    mem.mark_flushed();
                    c.flushed.push(Arc::downgrade(mem));
                }
                c.log_number = c.log_number.max(log_number.unwrap_or(0));
            }));
        }
        for (cf, n) in &others {
            let (n, edit) = (*n, VersionEdit { log_number: Some(*n), ..VersionEdit::default() });
            changes.push(Change::new(cf, edit, move |c, _| c.log_number = c.log_number.max(n)));
        }
        drop(state);
        self.log_and_apply_all(changes)
    }

    /// The flush of what was picked begins. Gives how many column families there are.
    fn begin_flush(&self, pick: &FlushPick) -> usize {
        let bytes: u64 = pick.parts.iter().flat_map(|p| &p.mems).map(|m| m.data_size()).sum();
        let mut state = self.state.lock();
        let now = self.opts.clock.monotonic_nanos() as f64 * 1e-9;
        for part in &pick.parts {
            if let Some(c) = state.cfs.get_mut(&part.cf.id) {
                c.pace.begin(now, bytes as f64);
            }
        }
        state.cfs.len()
    }

    /// Undoes `pick_flush`, whatever the flush's outcome.
    pub fn end_flush(&self, pick: &FlushPick) {
        let mut state = self.state.lock();
        state.running_flushes -= 1;
        let cpu = pick.cpu_micros.load(Ordering::Relaxed) as f64 * 1e-6;
        let now = self.opts.clock.monotonic_nanos() as f64 * 1e-9;
        for part in &pick.parts {
            if let Some(c) = state.cfs.get_mut(&part.cf.id) {
                c.flushing = false;
                let done = c.imm.front().is_none_or(|i| part.mems.iter().all(|m| !Arc::ptr_eq(m, &i.mem)));
                c.pace.end(now, done.then_some(cpu));
                c.told = part.mems.iter().map(|m| m.id()).fold(c.told, u64::max);
                if c.imm.is_empty() {
                    c.flush_requested = false;
                }
            }
        }
    }

    /// Removes tables of a job that did not commit, unless the MANIFEST may name them: `error` is that of the commit,
    /// whose write may have failed half-way; `None` where nothing was written to the MANIFEST.
    pub fn remove_outputs(&self, numbers: &[u64], error: Option<&Error>) {
        if error.is_some_and(|e| e.kind() == ErrorKind::IOError) {
            return; // the edit may be in the MANIFEST; if it is not, the next open removes the orphan
        }
        for &n in numbers {
            self.new_tables.lock().remove(&n);
            let _ = self.opts.fs.remove(&self.path.join(rockmill_format::filename::table(n)));
        }
    }

    /// Does a compaction's work: its output is durable when this returns, and not live. With the edit that makes it so.
    /// It ends early when `cancelled` is set.
    pub fn compact(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: &Compaction,
        job: u64,
        cancelled: &Arc<AtomicBool>,
    ) -> Result<(VersionEdit, JobOutput)> {
        let mut edit = VersionEdit::default();
        // What an intra-DF merge reads is not live.
        for (level, files) in compaction.inputs.iter().filter(|_| !compaction.is_intra_df()) {
            edit.deleted_files.extend(files.iter().map(|f| (*level as u32, f.number())));
        }
        edit.compact_cursors.extend(compaction.next_cursor.clone().map(|key| (compaction.start_level() as u32, key)));
        if compaction.deletion {
            return Ok((edit, JobOutput::default()));
        }
        if compaction.trivial_move {
            // Of several runs, what is in the output's already stays.
            let (to, extra_run) = (compaction.output_level, compaction.output_run);
            let stays = |level: usize, f: &FileMeta| level == to && f.entry.extra_run == extra_run;
            let all = compaction.inputs.iter().flat_map(|(level, files)| files.iter().map(move |f| (*level, f)));
            let moved: Vec<_> = all.filter(|(level, f)| !stays(*level, f)).collect();
            edit.deleted_files = moved.iter().map(|(level, f)| (*level as u32, f.number())).collect();
            let entries = moved.iter().map(|(_, f)| FileEntry { extra_run, ..f.entry.clone() });
            edit.new_files = entries.map(|entry| (to as u32, entry)).collect();
            return Ok((edit, JobOutput::default()));
        }
        let ctx = self.job_context(cf, job, TableFileCreationReason::Compaction);
        let nobody_waits = compaction.reason != CompactionReason::ManualCompaction && self.opts.rate_limiter.is_none();
        let patient = nobody_waits.then(|| {
            let db = Arc::clone(self);
            let written = Box::new(move || db.stats.bytes_written.load(Ordering::Relaxed));
            self.reads_first.job(&self.shutdown, written)
        });
        let ctx = JobContext { cancelled: Arc::clone(cancelled), patient, ..ctx };
        let _running = self.runs_compaction(cf, job, compaction, &ctx.events.progress);
        let output = job::run(compaction, &ctx)?;
        edit.new_files = output.files.iter().map(|f| (compaction.output_level as u32, f.clone())).collect();
        Ok((edit, output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_jobs_starts_threads_without_bound() {
        assert_eq!([1, 2, 4, 8, 64].map(thread_counts), [(1, 1), (1, 1), (1, 3), (2, 6), (16, 48)]);
        let cores = std::thread::available_parallelism().unwrap().get();
        let (flushes, compactions) = thread_counts(i32::MAX);
        assert_eq!(flushes + compactions, (4 * cores).max(THREADS_MIN_MAX));
    }
}
