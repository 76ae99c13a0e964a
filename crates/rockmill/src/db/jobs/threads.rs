//! Background threads: who starts them, what they wait for, and when they end.
//!
//! Threads wait on one condition and look for work themselves, so there is no queue that could disagree with the
//! state of the tree. Flushes have threads of their own: a long compaction never keeps a memtable waiting. Index merges
//! are theirs too, when no flush is due.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::db::jobs::Weighed;
use crate::db::jobs::compact::{Now, Picked, pick_compaction, rescore_levels, take_unweighed};
use crate::db::jobs::error_recovery::recovery_thread;
use crate::db::jobs::timer;
use crate::db::{CfState, Db, DbInner, State};
use crate::error::{Error, Result};
use crate::event_listener::BackgroundErrorReason;
use crate::info_log::log_warn;
use crate::pacing::common::Seconds;
use crate::pacing::decide::is_flush_bound;
use crate::pacing::flush_bound::REST_SECONDS;
use crate::panics::{caught, guarded};
use crate::sync::atomic::Ordering;
use crate::sync::has_ended;
use crate::sync::thread::JoinHandle;

/// How long compaction threads wait between looks at tables that are due: at least, so that they do not spin, and at
/// most. Derived: ages are counted in whole seconds; and a clock that was set meanwhile is noticed within a minute, for
/// which a thread wakes once (24 us of CPU).
const DUE_WAIT_MIN: Duration = Duration::from_secs(1);
const DUE_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long they wait if jobs are deferred because writers wait for flushes.
const REST_WAIT: Duration = Duration::from_millis((REST_SECONDS * 1000.0) as u64 + 1);

/// The most background threads of one database are four for each core, but at least this many, so that a stored option
/// cannot start a thousand threads.
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

    /// True if the thread must end now. When the lock is released, it no longer counts for those who start threads.
    fn ends(self, db: &DbInner, state: &mut State) -> bool {
        let ends = db.shutdown.load(Ordering::Acquire) || self.is_too_many(db);
        if ends {
            state.jobs_mut().threads.remove(&self);
        }
        ends
    }
}

impl Db {
    /// Called when the number of background threads changes; surplus threads end by themselves.
    pub(crate) fn start_missing_threads(&self) -> Result<()> {
        let mut threads = self.threads.lock();
        threads.retain(|t| !has_ended(t));
        threads.extend(start(&self.inner)?);
        Ok(())
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
        if !db.state.lock().jobs_mut().threads.insert(worker) {
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
                db.state.lock().jobs_mut().threads.remove(&worker);
                return Err(Error::io("cannot start a background thread", &e));
            }
        }
    }
    Ok(threads)
}

fn flush_thread(db: &Arc<DbInner>, worker: Worker) {
    loop {
        let pick = {
            let mut state = db.state.lock();
            loop {
                if worker.ends(db, &mut state) {
                    return;
                }
                if let Some(p) = state.pick_flush(db.opts.atomic_flush, db.flushes_without_merging()) {
                    break Ok(p);
                }
                if let Some(merge) = state.pick_index_merge() {
                    break Err(merge);
                }
                state.jobs_mut().idle_flush_threads += 1;
                db.work_available.wait(&mut state);
                state.jobs_mut().idle_flush_threads -= 1;
            }
        };
        let pick = match pick {
            Ok(flush) => flush,
            Err((cf, merge)) => {
                db.do_index_merge(&cf, &merge);
                continue;
            }
        };
        // A failure is a background error by now, and callers that wait check for that.
        let _ = db.do_flush(&pick);
        drop(pick);
        if db.delete_obsolete_wals() {
            db.look_at_fast_device(); // writers may wait for their space
        }
        db.delete_purged_files();
        db.tell_waiting();
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
                    if let Some(c) = state.family_mut(cf.id) {
                        c.jobs_mut().weighed = Weighed::Done;
                    }
                    state.rescore(cf.id);
                    db.update_pressure(&state);
                    db.work_available.notify_all();
                    continue;
                }
                let seconds = db.opts.clock.monotonic_nanos() as f64 * 1e-9;
                let now = Now { unix_seconds: db.now_seconds(), seconds };
                let threads = thread_counts(db.live().max_background_jobs).1;
                let waits = db.pacing.writers().waits_for_flushes(&*db.opts.clock);
                // The user's comparator may panic; without this thread nothing would ever be compacted again.
                let picked = guarded("the choice of a compaction", || {
                    // A decision may itself change how much levels may hold, and nothing would wake this thread for
                    // that.
                    while rescore_levels(&mut state) {
                        db.update_pressure(&state);
                    }
                    Ok(pick_compaction(&mut state, now, threads, waits))
                });
                if let Some(picked) = picked.transpose() {
                    break picked;
                }
                if std::mem::take(&mut state.jobs_mut().rest_came) {
                    db.job_finished.notify_all();
                }
                // Deferred merges become due when writers go idle; nothing signals that, so we poll.
                let rest = is_flush_bound(waits, false).then_some(REST_WAIT);
                let rest = rest.into_iter().chain(next_rest(&state, now.seconds));
                match next_due(&state, now.unix_seconds).into_iter().chain(rest).min() {
                    Some(wait) => drop(db.work_available.wait_for(&mut state, wait)),
                    None => db.work_available.wait(&mut state),
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
    let waits = |c: &&CfState| !c.jobs().aging_blocked && !c.options().disable_auto_compactions;
    let next = state.families().filter(waits).map(|c| c.jobs().aging.next_due).min().filter(|&t| t < u64::MAX)?;
    // The clock may be set, so check now and then. And never spin, whatever delays the job.
    Some(Duration::from_secs(next.saturating_sub(now)).clamp(DUE_WAIT_MIN, DUE_WAIT_MAX))
}

/// How long until the writers of a column family with extra runs rest, if no flush comes before.
fn next_rest(state: &State, now: Seconds) -> Option<Duration> {
    let automatic = |c: &&CfState| !c.options().disable_auto_compactions;
    let due = state.families().filter(automatic).filter_map(|c| c.jobs().rest_due(c.version(), now));
    due.map(|at| Duration::from_secs_f64((at - now).max(0.0)) + REST_WAIT).min()
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
