//! Compactions: which job is next, its run, and its work. `ordered_commit.rs` says when what it wrote becomes live.

use std::sync::Arc;

use rockmill_format::edit::{FileEntry, VersionEdit};

use crate::compaction::commit::{CommitQueue, MergeTicket, Ticket};
use crate::compaction::spec::JobSpec;
use crate::compaction::strategy::aging::Moment;
use crate::compaction::strategy::intra::{self, IntraDf, PendingRun};
use crate::compaction::{Compaction, JobOutput, JobStats, job, strategy};
use crate::compaction_filter::TableFileCreationReason;
use crate::db::catalog::column_family::CfData;
use crate::db::jobs::Weighed;
use crate::db::jobs::ordered_commit::{Done, Outcome, not_wanted};
use crate::db::{CfState, DbInner, State};
use crate::error::Result;
use crate::event_listener::CompactionReason;
use crate::pacing::common::Seconds;
use crate::pacing::decide::is_flush_bound;
use crate::pacing::flush_bound::FlushWaits;
use crate::pacing::write_control::write_control;
use crate::panics::guarded;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::version::{FileMeta, Version};

impl CfState {
    /// The compaction that its options' strategy chooses now.
    pub(super) fn pick(&mut self, moment: &Moment) -> Option<Compaction> {
        let options = self.options();
        let (jobs, version) = self.jobs_and_version();
        strategy::pick(version, &options, &mut jobs.running, moment)
    }
}

/// Nothing keeps compactions from being chosen.
fn may_pick(state: &State) -> bool {
    state.errors().worst().is_none() && state.jobs().exclusive_manual == 0 && state.jobs().paused == 0
}

/// A column family in which a compaction is due, and whose tables have not been opened since the database was opened.
/// Which compaction it is depends on the tombstones in them.
pub(super) fn take_unweighed(state: &mut State) -> Option<(Arc<CfData>, Arc<Version>)> {
    if !may_pick(state) {
        return None;
    }
    let due = |c: &CfState| c.jobs().scores.needs_compaction() && !c.options().disable_auto_compactions;
    let c = state.families_mut().find(|c| c.jobs().weighed == Weighed::NotYet && due(c))?;
    c.jobs_mut().weighed = Weighed::Now;
    Some((Arc::clone(c.cf()), Arc::clone(c.version())))
}

/// What a compaction thread is to do.
pub(super) enum Picked {
    Job(Arc<CfData>, Compaction, Ticket),
    /// Finished jobs wait, and what they wrote is merged.
    Merge(Arc<CfData>, IntraDf, MergeTicket),
}

/// Computes again what is due in column families whose levels may now hold more or less than when their scores were
/// computed. True if there are any: then the decisions that depend on scores must be made again.
pub(super) fn rescore_levels(state: &mut State) -> bool {
    let oldest_snapshot = state.jobs().oldest_snapshot;
    let changed = state.families_mut().filter(|c| c.jobs().running.level_factor() != c.front().level_factor());
    changed.fold(false, |_, c| {
        c.rescore(oldest_snapshot);
        true
    })
}

/// The time of a pick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// Seconds since 1970, for the ages of tables.
    pub unix_seconds: u64,
    /// The monotonic clock, for pauses between flushes.
    pub seconds: Seconds,
}

/// The next job of a column family, if one is due and there is a thread for it.
pub(super) fn pick_compaction(state: &mut State, now: Now, threads: usize, waits: FlushWaits) -> Option<Picked> {
    if !may_pick(state) {
        return None;
    }
    // A job may use several threads; no more may work than there are.
    let busy: usize = state.families().map(|c| c.jobs().running.busy_threads()).sum();
    if busy >= threads && state.families().any(|c| c.jobs().running.has_split_jobs()) {
        return None;
    }
    let idle = threads.saturating_sub(busy).max(1);
    let moment = Moment { now: now.unix_seconds, oldest_snapshot: state.jobs().oldest_snapshot };
    let rest_awaited = state.jobs().awaiting_rest > 0;
    let at_work = state.jobs().running_compactions > 0 || state.families().any(|c| c.front().sealed_count() > 0);
    let flush_bound = is_flush_bound(waits, at_work);
    // First the column family whose debt delays writers most, then the one whose tree exceeds its shape most.
    let mut order: Vec<(f64, f64, u32)> = state
        .families()
        .filter(|c| {
            !c.options().disable_auto_compactions
                && c.jobs().weighed != Weighed::Now
                && (c.jobs().scores.needs_compaction()
                    || has_marked(c)
                    || c.is_aging_due(now.unix_seconds)
                    || c.version().has_extra_runs()
                    || state.jobs().commits.get(&c.cf().id).is_some_and(|queue| queue.waiting().next().is_some()))
        })
        .map(|c| (write_control(c.jobs().scores.load(), &c.options()).pressure, c.jobs().scores.max_score(), c.cf().id))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
    for (_, _, id) in order {
        if state.jobs().commits.get(&id).is_some_and(CommitQueue::has_cancelled) {
            // They end soon. A job picked before that would need them, fail to start, and be picked again and again.
            continue;
        }
        let c = state.family_mut(id)?;
        let has_extra_runs = c.version().has_extra_runs();
        let jobs = c.jobs_mut();
        let rests = rest_awaited || jobs.lull.rests(now.seconds);
        let running = &mut jobs.running;
        running.set_threads(threads, idle);
        running.set_writers_at_work(!rests);
        // When writers rest, the end of the last job tells.
        running.set_flush_bound(flush_bound);
        if let Some(compaction) = c.pick(&moment) {
            let cf = Arc::clone(c.cf());
            let ticket = begin_compaction(state, &cf, &compaction)?;
            return Some(Picked::Job(cf, compaction, ticket));
        }
        if let Some(merge) = begin_intra_df(state, id) {
            return Some(merge);
        }
        let jobs = state.family_mut(id)?.jobs_mut();
        jobs.aging_blocked = jobs.aging.is_due(now.unix_seconds);
        // What is put off while writers wait, or until they rest, is still to come.
        let nothing = !flush_bound && (rests || !has_extra_runs);
        let known = std::mem::replace(&mut jobs.nothing_found, nothing);
        // Those who wait for it may have looked before.
        state.jobs_mut().rest_came |= rest_awaited && nothing && !known;
    }
    None
}

/// True when a table that no job has yet is marked for compaction (RocksDB marks them in the MANIFEST).
fn has_marked(c: &CfState) -> bool {
    let mut files = c.version().files();
    files.any(|f| f.entry.marked_for_compaction && !f.being_compacted.load(Ordering::Acquire))
}

/// Marks a compaction's inputs as taken, and gives its place in the order of commits. Under the lock that it was picked
/// under; `None` where the column family is no longer there.
pub(crate) fn begin_compaction(state: &mut State, cf: &CfData, compaction: &Compaction) -> Option<Ticket> {
    let (jobs, Some(c)) = state.jobs_and_family(cf.id) else { return None };
    jobs.running_compactions += 1;
    let issued = c.jobs_mut().running.start(compaction);
    Some(jobs.commits.entry(cf.id).or_default().issue(issued))
}

/// Begins to merge the outputs of finished jobs of a column family that may not commit yet, if there are enough of
/// them.
fn begin_intra_df(state: &mut State, id: u32) -> Option<Picked> {
    let (jobs, Some(c)) = state.jobs_and_family(id) else { return None };
    let queue = jobs.commits.get_mut(&id)?;
    let pending: Vec<PendingRun> =
        queue.waiting().filter_map(|(number, depends_on, p)| p.as_run(number, depends_on)).collect();
    let mut merge = intra::pick(c.version(), &c.options(), &c.jobs().running, &pending)?;
    let ticket = queue.begin_merge(&merge.numbers)?;
    jobs.running_compactions += 1;
    c.jobs_mut().running.start_merge(&mut merge);
    Some(Picked::Merge(Arc::clone(c.cf()), merge, ticket))
}

impl DbInner {
    /// Runs a compaction that was begun, and waits until it is live or has failed.
    pub fn run_compaction(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: Arc<Compaction>,
        ticket: Ticket,
    ) -> Result<JobStats> {
        let outcome = Outcome::default();
        self.run_job(cf, compaction, ticket, Some(Arc::clone(&outcome)));
        let mut state = self.state.lock();
        loop {
            if let Some(done) = outcome.lock().take() {
                return done;
            }
            self.job_finished.wait(&mut state);
        }
    }

    /// Runs a compaction and commits what may commit now, of this job and of those that waited for it. A failure is
    /// returned to the caller if there is one; otherwise it is a background error.
    pub fn run_job(
        self: &Arc<Self>,
        cf: &Arc<CfData>,
        compaction: Arc<Compaction>,
        ticket: Ticket,
        caller: Option<Outcome>,
    ) {
        let job = self.compaction_begins(cf, &compaction);
        match guarded("a compaction", || self.compact(cf, &compaction, job, ticket.cancelled())) {
            Ok((edit, output)) => {
                self.compaction_worked(cf, edit, Done { compaction, job, output, caller }, ticket);
            }
            Err(e) => {
                let number = ticket.number();
                let unwanted = ticket.cancelled().load(Ordering::Acquire) && self.was_stopped_alone(&e);
                let mut state = self.state.lock();
                if let Some(queue) = state.jobs_mut().commits.get_mut(&cf.id) {
                    queue.failed(ticket);
                }
                self.free_inputs(&mut state, cf, number, [&*compaction]);
                drop(state);
                let e = if unwanted { not_wanted() } else { e };
                self.ended(cf, &compaction, job, caller.as_ref(), Err(e), unwanted);
            }
        }
        self.commit_in_order(cf.id);
    }

    /// Merges what finished jobs wrote and may not commit yet, and commits what may commit then.
    pub fn run_intra_df(self: &Arc<Self>, cf: &Arc<CfData>, merge: &IntraDf, ticket: MergeTicket) {
        let c = &merge.compaction;
        let job = self.compaction_begins(cf, c);
        let done = guarded("a merge of pending output", || self.compact(cf, c, job, ticket.cancelled()));
        self.merge_ended(cf, merge, job, ticket, done);
        self.commit_in_order(cf.id);
    }

    /// Does a compaction's work. When this returns, its output is durable but not live; the returned edit makes it
    /// live. It ends early when `cancelled` is set.
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
            // Tables that are in the output's run already stay where they are.
            let (to, extra_run) = (compaction.output_level, compaction.output_run);
            let stays = |level: usize, f: &FileMeta| level == to && f.entry.extra_run == extra_run;
            let all = compaction.inputs.iter().flat_map(|(level, files)| files.iter().map(move |f| (*level, f)));
            let moved: Vec<_> = all.filter(|(level, f)| !stays(*level, f)).collect();
            edit.deleted_files = moved.iter().map(|(level, f)| (*level as u32, f.number())).collect();
            let entries = moved.iter().map(|(_, f)| FileEntry { extra_run, ..f.entry.clone() });
            edit.new_files = entries.map(|entry| (to as u32, entry)).collect();
            return Ok((edit, JobOutput::default()));
        }
        let family = self.job_family(cf);
        let mut host = self.job_host(cf, &family, job, TableFileCreationReason::Compaction).with_inputs(compaction);
        host.cancelled = Arc::clone(cancelled);
        host.dir = cf.dirs().of(compaction.output_path).to_owned();
        let awaited = Arc::new(AtomicBool::new(compaction.reason == CompactionReason::ManualCompaction));
        host.means.device_share = self.device_share(&awaited);
        let _running = self.reporting.running().compaction(cf, job, compaction, &host.events.progress);
        let spec = JobSpec::of_compaction(compaction, &family, job, &host.means)?;
        let here =
            self.opts.compaction_workers.as_ref().and_then(|workers| self.pacing.keep_here(workers.here_first()));
        let elsewhere = if here.is_none() { self.compact_elsewhere(cf, compaction, &spec, &host) } else { None };
        let output = match elsewhere {
            Some(output) => output,
            None => {
                let _here = here.unwrap_or_else(|| self.pacing.compacts_here());
                job::run(&spec, &host)?
            }
        };
        self.open_new_tables(cf, compaction.output_level, &output.files);
        edit.new_files = output.files.iter().map(|f| (compaction.output_level as u32, f.clone())).collect();
        Ok((edit, output))
    }
}
