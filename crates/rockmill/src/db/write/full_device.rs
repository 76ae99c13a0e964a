//! The fast device is full although its logs have not reached `fast_capacity`: others fill it, or it is smaller.
//!
//! An append that finds no space is no error while a flush can free some. What it left is cut off; then the leader
//! waits as it does for logs that have reached their capacity ([`DbInner::make_room`]): what needs the oldest logs is
//! flushed, and the append is tried again when logs were deleted, and each second. Nothing of the group was
//! acknowledged, so nothing that was promised is at stake.
//!
//! It is an error if nothing is left that a flush could free, if the write comes from a listener's call, for which a
//! flush may wait, or if values do not stay in the logs. A failed sync is always one.

use crate::db::{DbInner, State};
use crate::error::{Error, Result};
use crate::event_listener::{BackgroundErrorReason, FlushReason, in_listener};
use crate::info_log::{log_info, log_warn};
use crate::options::WriteOptions;
use crate::sync::atomic::Ordering;

/// A group whose append found no space.
#[derive(Debug, Default)]
pub(crate) struct NoSpace {
    /// How often the timer had looked at the device when that happened first.
    since: Option<u64>,
    /// The info log says that it waits.
    told: bool,
}

impl DbInner {
    /// Looks how much space the fast device has, and says if that bounds the logs now and did not before, or the other
    /// way round. Called by the timer, and after logs were deleted.
    pub fn look_at_fast_device(&self) {
        if self.front.memory().index().is_none() {
            return;
        }
        let (held, before) = {
            let state = self.state.lock();
            let from = state.oldest_log().unwrap_or_else(|| state.logs().newest());
            (state.logs().left_bytes_from(from) + self.front.log_size(), self.logs_now(&state))
        };
        self.front.look_at_device(held);
        let state = self.state.lock();
        let now = self.logs_now(&state);
        match (before.of_device, now.of_device) {
            (false, true) => log_warn!(
                self.log,
                "WALs in {} may have {} bytes in all, which is less than fast_capacity: the device has no more space",
                self.front.dir().display(),
                now.capacity
            ),
            (true, false) => log_info!(self.log, "the device of WALs has space for fast_capacity again"),
            _ => {}
        }
        if before != now {
            self.update_pressure(&state);
        }
        drop(state);
        if before.of_device {
            self.job_finished.notify_all(); // writers may wait for this
        }
    }

    /// Called by the leader after an append that found no space and left nothing: waits until another try may succeed.
    ///
    /// # Errors
    /// Nothing would make space, the leader must not wait, or it waited in vain; the group fails.
    #[cold]
    pub fn wait_for_space(&self, wait: &mut NoSpace, error: Error, options: &WriteOptions, bytes: u64) -> Result<()> {
        let rounds = self.front.device().rounds();
        let since = *wait.since.get_or_insert(rounds);
        // A round may have begun before; the one after it has looked at everything, the archive too.
        let looked = rounds >= since + 2;
        let may_free = self.may_free_space(&self.state.lock());
        let hopeless = looked && !may_free;
        if in_listener() || hopeless {
            self.front.fail_log();
            let error = match hopeless {
                true => error.context(format!(
                    "the device of {} is full, and a flush would not change that: make space there",
                    self.front.dir().display()
                )),
                false => error,
            };
            self.set_background_error(BackgroundErrorReason::WriteCallback, "a write to the WAL", &error);
            return Err(error);
        }
        self.writers.in_flight().drain();
        self.note_full_device();
        if !wait.told {
            wait.told = true;
            log_info!(self.log, "a write waits for space on the device of WALs, and is tried again: {error}");
            self.log.alarm().ring();
        } else if !may_free {
            self.log.alarm().ring(); // only another look is waited for
        }
        self.make_room(options, bytes).map(drop)
    }

    /// Nothing more is appended until there was another look at the device.
    fn note_full_device(&self) {
        let state = self.state.lock();
        self.front.device().set_full();
        self.writers.leave_leader_work();
        self.update_pressure(&state);
    }

    /// A flush or a deletion that runs or could begin may free space on the fast device.
    fn may_free_space(&self, state: &State) -> bool {
        state.oldest_log().is_some() || self.frees_space(state)
    }

    /// A flush or a deletion that runs may free space there.
    fn frees_space(&self, state: &State) -> bool {
        let obsolete = self.files.may_delete() && state.logs().has_obsolete(state.oldest_log());
        let flushing = state.families().any(|c| c.front().is_flushing());
        flushing || obsolete || self.front.device().is_deleting()
    }

    /// [`Self::switch_memtables`]; false if there was no space for a new WAL, but a flush that runs or is due may make
    /// some, for which this has waited.
    pub fn switch_or_wait(&self, ids: &[u32], reason: FlushReason, never_waits: bool) -> Result<bool> {
        let waits = |error: &Error| {
            let values_stay = self.front.memory().index().is_some();
            if never_waits || !values_stay || !error.is_no_space() {
                return false;
            }
            let state = self.state.lock();
            let due = state.families().any(|c| c.front().waits_for_flush(&c.options(), self.flushes_without_merging()));
            due || self.frees_space(&state)
        };
        if let Some(log) = self.begin_wal_unless(waits)? {
            self.switch_to(log, ids, reason);
            return Ok(true);
        }
        self.note_full_device();
        let mut state = self.state.lock();
        let closing = self.shutdown.load(Ordering::Acquire);
        if self.front.device().is_full() && !closing && !self.writers.has_from_listener() {
            self.work_available.notify_all();
            self.wait_for_job_end(&mut state);
        }
        Ok(false)
    }
}
