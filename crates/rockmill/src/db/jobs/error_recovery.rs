//! When background work or the log fails: how severe it is, and how the store continues.
//!
//! | severity | cause | what goes on | how it ends |
//! |---|---|---|---|
//! | soft | no space for a compaction | reads, writes, flushes | by itself when there is space, or `resume` |
//! | hard | no space for the WAL, a flush or the MANIFEST | reads | by itself when there is space, or `resume` |
//! | fatal | anything else | reads | `resume`, when the cause is gone, or a new open |
//! | unrecoverable | a panic while a batch went into memtables | reads | a new open |
//!
//! Recovery from a hard or fatal error makes the store independent of files whose end is unknown:
//! 1. Running jobs end. A new MANIFEST is begun if a write to the old one failed, and a new WAL is begun.
//! 2. Every memtable is written as a table, all column families in one commit that also leaves the old WALs behind.
//! 3. Only then are writes taken again. After a failure in between the error stays, and nothing is lost: the memtables
//!    have everything that was acknowledged.
//!
//! Until step 3 the severity never falls, whatever else fails: a write accepted in between would be in a WAL without
//! predecessors, while the writes acknowledged before it are not durable anywhere.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::db::write::switch::with_data;
use crate::db::{Db, DbInner, State};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, BackgroundErrorRecoveryInfo, FlushReason};
use crate::info_log::{log_error, log_info};
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Shortest time between two tries, so that a failing disk does not keep a processor busy.
const INTERVAL_MICROS_MIN: u64 = 1000;

/// How bad a background error is (RocksDB's `Status::Severity`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorSeverity {
    /// Writes go on; compactions wait.
    Soft,
    /// No writes until the store resumes, which it does automatically.
    Hard,
    /// No writes until [`Db::resume`] or a new open.
    Fatal,
    /// No writes until a new open: the memtables do not hold what the WAL holds.
    Unrecoverable,
}

/// A background error, and what is known about it.
#[derive(Debug, Clone)]
struct BackgroundError {
    error: Error,
    reason: BackgroundErrorReason,
    severity: ErrorSeverity,
    needs: Space,
}

/// Free bytes without which a recovery is not worth a try.
#[derive(Debug, Clone, Copy, Default)]
struct Space {
    /// Where tables are.
    tables: u64,
    /// Where logs are. Nothing is needed there if the logs hold data: a recovery writes it as tables, and the logs are
    /// deleted.
    logs: u64,
}

/// Recoveries from background errors: one at a time, and a thread that waits for them to be due.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Signalled when a background error is set or cleared.
    changed: Condvar,
    /// Held while a recovery runs; before every other lock.
    running: Mutex<()>,
}

impl Recovery {
    /// A background error was set or cleared, or the database closes.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Locks out other recoveries.
    fn begin(&self) -> MutexGuard<'_, ()> {
        self.running.lock()
    }
}

/// Background errors, under the database's lock.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    /// Set by a failed background job or log write.
    worst: Option<BackgroundError>,
    /// A recovery from it runs.
    recovering: bool,
    /// The worst error since that recovery began; it remains if the recovery succeeds.
    failed_meanwhile: Option<BackgroundError>,
    /// The last failure of the MANIFEST.
    manifest_failure: Option<Error>,
    /// How many there were.
    count: u64,
    /// How many recoveries found too little space since the store last worked.
    in_vain: u32,
}

impl Errors {
    /// The worst present error.
    pub fn worst(&self) -> Option<&Error> {
        self.worst.as_ref().map(|b| &b.error)
    }

    /// The error that keeps writes from being taken.
    pub fn of_writes(&self) -> Option<&Error> {
        self.worst.as_ref().filter(|b| b.severity > ErrorSeverity::Soft).map(|b| &b.error)
    }

    /// Refuses what must not be done while there is any.
    pub fn check(&self) -> Result<()> {
        self.worst().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// Refuses what must not be done while writes are not taken.
    pub fn check_writes(&self) -> Result<()> {
        self.of_writes().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// How many there were since the database was opened.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The worst error stays, the first of equal ones.
    fn note(&mut self, new: BackgroundError) {
        self.count += 1;
        if self.recovering {
            keep_worse(&mut self.failed_meanwhile, &new);
        }
        keep_worse(&mut self.worst, &new);
    }
}

impl State {
    fn background_error_of(
        &self,
        reason: BackgroundErrorReason,
        what: &str,
        error: &Error,
        needs: Space,
    ) -> BackgroundError {
        let no_more = "the database takes no more writes since";
        let (severity, needs, context) = match (error.is_no_space(), reason) {
            (_, BackgroundErrorReason::MemTable) => {
                let context = format!("{no_more} {what} failed (close the database and open it again)");
                (ErrorSeverity::Unrecoverable, Space::default(), context)
            }
            (true, BackgroundErrorReason::Compaction) => {
                let context = format!("compactions wait since {what} failed (they go on when there is space)");
                (ErrorSeverity::Soft, needs, context)
            }
            (true, _) => {
                let context = format!("{no_more} {what} failed (it resumes when there is space, or call resume)");
                (ErrorSeverity::Hard, self.space_for_flush(), context)
            }
            (false, _) => {
                let context = format!("{no_more} {what} failed (fix the cause, then call resume or reopen)");
                (ErrorSeverity::Fatal, Space::default(), context)
            }
        };
        BackgroundError { error: error.clone().context(context), reason, severity, needs }
    }

    /// A recovery ended.
    fn end_recovery(&mut self, done: Result<()>) -> Result<()> {
        let errors = self.errors_mut();
        errors.recovering = false;
        let meanwhile = errors.failed_meanwhile.take();
        let Err(e) = done else {
            errors.in_vain = 0;
            // An error that happened meanwhile may have come after the step that would have repaired it.
            errors.worst = meanwhile;
            return errors.check();
        };
        if e.is_no_space() {
            errors.in_vain = errors.in_vain.saturating_add(1);
        }
        if e.kind() != ErrorKind::ShutdownInProgress {
            let new = self.background_error_of(BackgroundErrorReason::Flush, "recovery", &e, Space::default());
            // Of equally severe errors, the newest says how much space the next try needs.
            let worst = &mut self.errors_mut().worst;
            if worst.as_ref().is_none_or(|b| b.severity <= new.severity) {
                *worst = Some(new);
            }
        }
        Err(e)
    }

    /// What a flush of everything needs.
    fn space_for_flush(&self) -> Space {
        let tries = self.errors().in_vain;
        let tables = self.families().map(|c| c.front().space_for_flush(&c.options(), tries)).sum();
        // There was too little space for a write of any length.
        Space { tables, logs: if self.oldest_log().is_some() { 0 } else { tables.max(1) } }
    }
}

fn keep_worse(place: &mut Option<BackgroundError>, new: &BackgroundError) {
    if place.as_ref().is_none_or(|b| b.severity < new.severity) {
        *place = Some(new.clone());
    }
}

impl DbInner {
    /// Begins a recovery and tells listeners, with no lock held; false if it is an automatic one and a listener
    /// objects.
    fn recovery_begins(&self, before: &BackgroundError) -> bool {
        log_info!(self.log, "recovery from a background error begins: {}", before.error);
        let wanted = AtomicBool::new(true);
        self.notify(|l| {
            wanted.fetch_and(l.on_error_recovery_begin(before.reason, &before.error), Ordering::Relaxed);
        });
        wanted.into_inner()
    }

    /// Reports its end, with no lock held.
    fn recovery_ended(&self, before: &BackgroundError, outcome: &Result<()>) {
        match outcome {
            Ok(()) => {
                log_info!(self.log, "recovered from a background error");
                self.notify(|l| l.on_error_recovery_completed(&before.error));
            }
            Err(e) => log_error!(self.log, "recovery from a background error failed: {e}"),
        }
        let info = BackgroundErrorRecoveryInfo {
            old_bg_error: before.error.clone(),
            new_bg_error: outcome.as_ref().err().cloned(),
        };
        self.notify(|l| l.on_error_recovery_end(&info));
        self.tell_waiting();
    }

    /// Notes that something failed and stops what must stop. The worst error stays, the first of equal ones. The state
    /// lock must be free; the MANIFEST's may be held.
    pub fn set_background_error(&self, reason: BackgroundErrorReason, what: &str, error: &Error) {
        self.set_background_error_with_need(reason, what, error, 0);
    }

    /// The same for a job that needs this many bytes of space.
    pub fn set_background_error_with_need(&self, reason: BackgroundErrorReason, what: &str, error: &Error, needs: u64) {
        if error.kind() == ErrorKind::ShutdownInProgress {
            return;
        }
        let mut state = self.state.lock();
        if reason == BackgroundErrorReason::ManifestWrite {
            state.errors_mut().manifest_failure = Some(error.clone());
        } else if state.errors().manifest_failure.as_ref() == Some(error) {
            return; // a job's, which was noted when it happened, and may be mended by now
        }
        let needs = Space { tables: needs, logs: 0 };
        let new = state.background_error_of(reason, what, error, needs);
        state.errors_mut().note(new);
        self.note_background_error(reason, error);
        self.writers.leave_leader_work();
        self.update_pressure(&state); // no flush begins now: nobody waits for one
        drop(state);
        self.wake_all();
        self.recovery.wake();
    }

    /// Makes the store work again after a background error; fine if there is none. One at a time.
    pub fn recover_from_error(self: &Arc<Self>, automatic: bool) -> Result<()> {
        let _one_at_a_time = self.recovery.begin();
        let before = {
            let mut state = self.state.lock();
            let errors = state.errors_mut();
            let Some(b) = errors.worst.clone() else { return Ok(()) };
            if b.severity == ErrorSeverity::Unrecoverable {
                return Err(b.error);
            }
            errors.recovering = true;
            errors.failed_meanwhile = None;
            b
        };
        if !self.recovery_begins(&before) && automatic {
            self.state.lock().errors_mut().recovering = false;
            return Err(before.error);
        }
        let done = match before.severity {
            ErrorSeverity::Soft => Ok(()),
            _ => crate::panics::guarded("a recovery", || self.leave_failed_files()),
        };
        let outcome = self.state.lock().end_recovery(done);
        self.recovery_ended(&before, &outcome);
        self.wake_all();
        self.recovery.wake();
        if outcome.is_ok() {
            self.delete_obsolete_wals();
            self.delete_purged_files();
        }
        outcome
    }

    /// Steps 1 and 2 of a recovery.
    fn leave_failed_files(self: &Arc<Self>) -> Result<()> {
        {
            // No flush begins while there is an error.
            let mut state = self.state.lock();
            state.join_flushes();
            while state.jobs().running_flushes > 0 {
                self.check_not_closing()?;
                self.wait_for_job_end(&mut state);
            }
        }
        let pick = {
            let _alone = self.lead_alone();
            self.check_not_closing()?;
            {
                // The end of the MANIFEST may be unknown; in that case this begins a new one.
                let mut manifest = self.catalog.lock_manifest();
                let edit = rockmill_format::edit::VersionEdit { prev_log_number: Some(0), ..Default::default() };
                self.append_to_manifest(&mut manifest, &mut [edit])?;
            }
            let turn = self.front.abandon_log(&self.live(), || self.new_file_number())?;
            let mut state = self.state.lock();
            let log = state.logs_mut().turn(turn);
            let ids = with_data(&state);
            self.seal_memtables(&mut state, &ids, log, FlushReason::ErrorRecovery);
            // No column family needs an older WAL any more, even if others wait for their flush: their data is about to
            // be in tables.
            state.families_mut().for_each(|c| c.front_mut().leave_logs_before(log));
            debug_assert_eq!(state.jobs().running_flushes, 0, "a flush began while there was an error");
            let pick = state.pick_all_flushes();
            self.update_pressure(&state);
            pick
        };
        let done = crate::panics::guarded("a flush", || self.run_flush(&pick, true));
        self.end_flush(&pick);
        done
    }

    /// Whether there is space enough for a try.
    fn has_room(&self, needs: Space) -> bool {
        // If the file system cannot tell the free space, a recovery is tried.
        let free = |path: &Path, needs| self.opts.fs.free_space(path).map_or(true, |free| free >= needs);
        let tables = self.other_table_dirs();
        free(&self.path, needs.tables)
            && free(self.front.dir(), needs.logs)
            && tables.iter().all(|dir| free(dir, needs.tables))
    }
}

/// Waits for errors from which the store can recover automatically, and tries to recover at intervals.
pub(crate) fn recovery_thread(db: &Arc<DbInner>) {
    let interval = Duration::from_micros(db.opts.bgerror_resume_retry_interval.max(INTERVAL_MICROS_MIN));
    let mut tries = 0;
    loop {
        let needs = {
            let mut state = db.state.lock();
            let mut wake: Option<Instant> = None;
            loop {
                if db.shutdown.load(Ordering::Acquire) {
                    return;
                }
                match &state.errors().worst {
                    None => {
                        (tries, wake) = (0, None);
                        db.recovery.changed.wait(&mut state);
                    }
                    Some(b) if b.severity >= ErrorSeverity::Fatal || tries >= db.opts.max_bgerror_resume_count => {
                        wake = None;
                        db.recovery.changed.wait(&mut state);
                    }
                    Some(b) => {
                        let at = *wake.get_or_insert_with(|| Instant::now() + interval);
                        if Instant::now() >= at {
                            break b.needs;
                        }
                        db.recovery.changed.wait_until(&mut state, at);
                    }
                }
            }
        };
        if db.has_room(needs) {
            let statistics = &db.opts.statistics;
            if tries == 0 {
                statistics.add(Ticker::ErrorHandlerAutoresumeCount, 1);
            }
            statistics.add(Ticker::ErrorHandlerAutoresumeRetryTotalCount, 1);
            tries += 1;
            // A failure is in `Errors`.
            if db.recover_from_error(true).is_ok() {
                statistics.add(Ticker::ErrorHandlerAutoresumeSuccessCount, 1);
                statistics.record(Histogram::ErrorHandlerAutoresumeRetryCount, tries.unsigned_abs().into());
                tries = 0;
            } else if db.state.lock().errors().worst.as_ref().is_some_and(|b| b.needs.tables > needs.tables) {
                // There was too little space for this try, as is known now: `max_bgerror_resume_count` does not count
                // such tries.
                tries -= 1;
            }
        }
    }
}

impl Db {
    /// The error that keeps the database from working in full, if there is one.
    pub fn background_error(&self) -> Option<Error> {
        self.inner.state.lock().errors().worst().cloned()
    }

    /// How bad [`Self::background_error`] is.
    pub fn background_error_severity(&self) -> Option<ErrorSeverity> {
        self.inner.state.lock().errors().worst.as_ref().map(|b| b.severity)
    }

    /// Recovers from a background error once its cause is gone: begins a new WAL, and a new MANIFEST if needed, writes
    /// all memtables as tables, and lets writes and background work continue. If it returns an error, the background
    /// error remains; it also returns an error if something else failed meanwhile. [`ErrorSeverity::Unrecoverable`]
    /// errors take a new open.
    ///
    /// After a full disk the database does this automatically as soon as there is space; see
    /// `Options::set_max_bgerror_resume_count`.
    pub fn resume(&self) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.recover_from_error(false)
    }
}
