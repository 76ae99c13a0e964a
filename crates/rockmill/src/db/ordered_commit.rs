//! How compactions end: durable first, then live in the order that [`CommitQueue`] keeps.
//!
//! A job whose output would come to lie above what an earlier, still running job holds waits for that job's commit. It
//! is not its thread that waits: the thread goes on to other work, and whoever commits the earlier job commits the
//! later one, too. If the earlier one fails, those that counted on it are dropped: their tables are removed, their
//! inputs are free again, and they are picked anew. After a crash such tables are orphans, which the next open removes.
//!
//! What the queue and the running jobs say changes together, under the state's lock: a pick must never see a job that
//! runs but can no longer commit.

use std::sync::Arc;

use rockmill_format::edit::VersionEdit;

use super::background::guarded;
use super::column_family::CfData;
use super::{DbInner, State};
use crate::compaction::commit::Step;
use crate::compaction::{Compaction, CompactionReason, JobOutput, JobStats};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::BackgroundErrorReason;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

/// A job's end, for a caller who waits for it.
type Outcome = Arc<Mutex<Option<Result<JobStats>>>>;

/// What a finished job is to commit.
pub(crate) struct Pending {
    cf: Arc<CfData>,
    compaction: Arc<Compaction>,
    /// Its number in events.
    job: u64,
    edit: VersionEdit,
    output: JobOutput,
    caller: Option<Outcome>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {} of {:?}", self.job, self.cf.name)
    }
}

impl DbInner {
    /// Runs a compaction that was begun under `number`, and waits until it is live or has failed.
    pub fn run_compaction(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: Arc<Compaction>,
        number: u64,
    ) -> Result<JobStats> {
        let outcome = Outcome::default();
        self.run_job(cf, compaction, number, Some(Arc::clone(&outcome)));
        let mut state = self.state.lock();
        loop {
            if let Some(done) = outcome.lock().take() {
                return done;
            }
            self.progress.wait(&mut state);
        }
    }

    /// Runs a compaction and commits what may commit now, of this job and of those that waited for it. A failure is
    /// the caller's where there is one, else the database's.
    pub fn run_job(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: Arc<Compaction>,
        number: u64,
        caller: Option<Outcome>,
    ) {
        let job = self.compaction_begins(cf, &compaction);
        match guarded("a compaction", || self.compact(cf, &compaction, job)) {
            Ok((edit, output)) => {
                let pending = Pending { cf: Arc::clone(cf), compaction, job, edit, output, caller };
                self.state.lock().commits.entry(cf.id).or_default().finished(number, pending);
            }
            Err(e) => {
                {
                    let mut state = self.state.lock();
                    state.commits.entry(cf.id).or_default().failed(number);
                    self.free_inputs(&mut state, cf, &compaction);
                }
                self.ended(cf, &compaction, job, caller.as_ref(), Err(e), false);
            }
        }
        self.commit_in_order(cf.id);
    }

    /// Commits and drops jobs of a column family until none can.
    fn commit_in_order(self: &Arc<Self>, id: u32) {
        loop {
            let step = {
                let mut state = self.state.lock();
                let Some(queue) = state.commits.get_mut(&id) else { return };
                let step = queue.turn();
                match &step {
                    None if queue.is_empty() => drop(state.commits.remove(&id)),
                    // It has left the queue: nobody may count on it from now on.
                    Some(Step::Drop(_, p)) => self.free_inputs(&mut state, &p.cf, &p.compaction),
                    _ => {}
                }
                step
            };
            match step {
                None => return,
                Some(Step::Drop(_, p)) => {
                    let numbers: Vec<u64> = p.output.files.iter().map(|f| f.number).collect();
                    self.remove_outputs(&numbers, None);
                    let why = Error::new(ErrorKind::Aborted, "a compaction that had to commit before this one failed");
                    self.ended(&p.cf, &p.compaction, p.job, p.caller.as_ref(), Err(why), true);
                }
                Some(Step::Commit(number, p)) => self.commit(number, p),
            }
        }
    }

    fn commit(self: &Arc<Self>, number: u64, p: Pending) {
        let Pending { cf, compaction, job, edit, output, caller } = p;
        let written: Vec<u64> = output.files.iter().map(|e| e.number).collect();
        let cleaned = compaction.reason == CompactionReason::BottommostFiles;
        let done = guarded("the commit of a compaction", || {
            self.log_and_apply(&cf, edit, |c| {
                // What still has sequence numbers after a cleaning keeps them: cleaning it again would go on for ever.
                let outputs = c.version.levels.get(compaction.output_level).into_iter().flatten();
                for f in outputs.filter(|f| cleaned && f.entry.largest_seqno > 0 && written.contains(&f.number())) {
                    f.settled.store(true, Ordering::Release);
                }
                if let Some(key) = &compaction.next_cursor {
                    c.cursors.set_cursor(compaction.start_level(), key.clone());
                }
            })
        });
        {
            let mut state = self.state.lock();
            if let Some(queue) = state.commits.get_mut(&cf.id) {
                match &done {
                    Ok(()) => queue.committed(number),
                    Err(_) => queue.failed(number),
                }
            }
            self.free_inputs(&mut state, &cf, &compaction);
        }
        if done.is_err() {
            self.remove_outputs(&written, done.as_ref().err());
        }
        self.ended(&cf, &compaction, job, caller.as_ref(), done.map(|()| output), false);
    }

    /// Tells of a job's end, and whoever waits that it is over. `dropped`: what failed was another job.
    fn ended(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: &Compaction,
        job: u64,
        caller: Option<&Outcome>,
        done: Result<JobOutput>,
        dropped: bool,
    ) {
        self.compaction_ended(cf, compaction, job, &done);
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
        state.running_compactions -= 1;
        if let Some(c) = state.cfs.get_mut(&cf.id) {
            c.compacting -= 1;
        }
        drop(state);
        self.progress.notify_all();
        self.work.notify_all();
    }

    /// Undoes what `begin_compaction` marked.
    fn free_inputs(&self, state: &mut State, cf: &CfData, compaction: &Compaction) {
        let oldest_snapshot = state.oldest_snapshot;
        if let Some(c) = state.cfs.get_mut(&cf.id) {
            c.cursors.finish(compaction);
            c.rescore(oldest_snapshot);
        }
        self.update_threshold(state);
    }
}
