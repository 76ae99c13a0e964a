//! Making room: full memtables become immutable, new WALs begin, writers wait or are slowed. Only a leader runs this
//! code, so there are no other writes meanwhile: that of a write group or, if nobody writes, the timer.

use std::cell::Cell;

use crate::db::report::stats::count;
use crate::db::{DbInner, LOOK_AGAIN, State};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, FlushReason, WriteStallCondition, in_listener};
use crate::front::{FamilyFront, LogRelease, WritersNow};
use crate::info_log::log_info;
use crate::options::WriteOptions;
use crate::pacing::decide::stop_of_leader;
use crate::pacing::log_garbage::LogsToEmpty;
use crate::pacing::write_control::StallReason;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, Ticker};
use crate::sync::atomic::Ordering;

impl DbInner {
    /// Reports a background error, switches full memtables, waits while writers are stopped, sleeps while they are
    /// delayed. True if other writers must wait longer: a write from within a listener's call is not stopped.
    pub fn make_room(&self, options: &WriteOptions, bytes: u64) -> Result<bool> {
        let _timer = perf::time(PerfMetric::WriteDelayTime);
        let mut stopped = 0;
        // What writers wait for may be the work that waits for this one.
        let never_waits = in_listener();
        loop {
            self.writers.leader_has_work.store(false, Ordering::Release);
            let (full, stop, reason) = {
                let mut state = self.state.lock();
                if let Some(e) = state.errors().of_writes() {
                    self.writers.leave_leader_work();
                    return Err(e.clone());
                }
                if self.shutdown.load(Ordering::Acquire) && self.stop_reason(&state).is_some() {
                    return Err(Error::closing());
                }
                let (mut full, reason) = self.full_memtables(&mut state);
                let families = state.families().map(|c| (c.cf().id, c.front(), c.cf().options.load_full()));
                let victim = self.front.memory().family_to_seal(families, self.flushes_without_merging());
                if victim.is_some() && self.opts.atomic_flush {
                    full = with_data(&state);
                }
                full.extend(victim.filter(|id| !full.contains(id)));
                let reason = if victim.is_some() { FlushReason::WriteBufferManager } else { reason };
                (full, self.stop_reason(&state), reason)
            };
            if let Some(reason) = stop_of_leader(stop, !full.is_empty(), self.front.memory().stalls_writers()) {
                if reason == StallReason::WriteBufferManager {
                    self.check_not_closing()?;
                }
                self.writers.leave_leader_work();
                if never_waits {
                    return Ok(true);
                }
                if options.no_slowdown {
                    return Err(Error::new(ErrorKind::Incomplete, format!("write stall: too many {}", reason.name())));
                }
                let before = self.opts.clock.monotonic_nanos();
                if reason == StallReason::WriteBufferManager {
                    self.work_available.notify_all();
                    self.front.memory().wait(LOOK_AGAIN, || self.writers.has_from_listener());
                } else {
                    let mut state = self.state.lock();
                    // Checked again under the lock that the wait releases: whoever changes one of these conditions
                    // notifies afterwards.
                    let closing = self.shutdown.load(Ordering::Acquire);
                    let waits = state.errors().of_writes().is_none() && !closing && !self.writers.has_from_listener();
                    if waits && self.stop_reason(&state).is_some() {
                        self.work_available.notify_all();
                        self.wait_for_job_end(&mut state);
                    }
                }
                self.writers.lend();
                let waited = self.opts.clock.monotonic_nanos().saturating_sub(before) / 1000;
                stopped += waited;
                self.pacing.writers().note_wait(stopped);
                self.pacing.writers().stopped_micros.fetch_add(waited, Ordering::Relaxed);
                self.count_stall(waited);
                continue;
            }
            if full.is_empty() {
                break;
            }
            if !self.switch_or_wait(&full, reason, never_waits)? {
                self.writers.lend();
            }
        }
        if never_waits {
            return Ok(true);
        }
        let written = self.stats.bytes_written.load(Ordering::Relaxed);
        let lent = Cell::new(false);
        let lend = || lent.set(self.writers.lend() | lent.get());
        if self.pacing.writers().is_delaying() {
            if options.no_slowdown {
                let reason = self.pacing.writers().reason().name();
                return Err(Error::new(ErrorKind::Incomplete, format!("write stall: too many {reason}")));
            }
            let slept = self.pacing.writers().delay(bytes, written, &self.shutdown, &*self.opts.clock, lend);
            if slept > 0 {
                self.count_stall(slept);
            }
        }
        // Writers that must not be slowed continue until memory is full.
        if !options.no_slowdown && self.pacing.writers().is_pacing(written) {
            self.wait_for_flush(written, lend);
        }
        match lent.get() {
            // A write that came between may have failed, and left the WAL as it is.
            true => self.check_takes_writes().map(|()| false),
            false => Ok(false),
        }
    }

    /// Waits until the flush in flight has progressed enough.
    fn wait_for_flush(&self, written: u64, lend: impl Fn()) {
        let allowance = |now| {
            lend();
            self.allowance(now, written)
        };
        let (slept, first) =
            self.pacing.writers().wait_for_allowance(written, &self.shutdown, &*self.opts.clock, allowance);
        if slept > 0 {
            self.count_stall(slept);
        }
        if first {
            let state = self.state.lock();
            if let Some(cause) = self.paced_by(&state) {
                self.note_stall(&state, WriteStallCondition::Delayed, Some((cause, StallReason::Memtables)));
            }
        }
    }

    /// A writer waited or was delayed.
    fn count_stall(&self, micros: u64) {
        count(&self.stats.stall_micros, micros);
        self.pacing.read_protection().writer_delayed();
        if let Some(s) = &self.opts.statistics {
            s.add(Ticker::StallMicros, micros);
            s.record_time(Histogram::WriteStall, micros);
        }
    }

    /// Column families whose memtable is full, or keeps old WALs alive when all WALs together are too large; and which
    /// of the two it is. Immutable memtables that keep such WALs alive become due for a flush.
    fn full_memtables(&self, state: &mut State) -> (Vec<u32>, FlushReason) {
        let mut reason = FlushReason::WriteBufferFull;
        let mut full: Vec<u32> = state.families().filter(|c| c.front().is_full()).map(|c| c.cf().id).collect();
        let room = self.log_room(state);
        let release = self.front.release_logs(room, state.families_mut().map(|c| (c.cf().id, c.front_mut())));
        let large = release.is_some();
        if let Some(release) = release.or_else(|| self.empty_logs(state)) {
            for id in &release.seal {
                if !full.contains(id) {
                    full.push(*id);
                    reason = FlushReason::WalFull;
                }
            }
            if release.flush_due {
                self.update_pressure(state); // writers are paced to it
                self.work_available.notify_all();
            }
        }
        // Nothing to switch: running or queued flushes free WAL space and reset this limit when they finish.
        let waits = full.is_empty() && large;
        self.front.set_log_room(if waits { self.logs_now(state).newest_to_stop().saturating_sub(1) } else { room });
        if self.opts.atomic_flush && !full.is_empty() {
            full = with_data(state);
        }
        (full, reason)
    }

    /// What is to be flushed so that WALs can go of which most is in tables already, if that is worth it.
    fn empty_logs(&self, state: &mut State) -> Option<LogRelease> {
        let LogsToEmpty { before, freed, live } = self.logs_to_empty(state)?;
        let keeps = |front: &FamilyFront| front.log_need().is_some_and(|need| need.oldest < before);
        let names: Vec<_> = state.families().filter(|c| keeps(c.front())).map(|c| c.cf().name.clone()).collect();
        let families = state.families_mut().map(|c| (c.cf().id, c.front_mut()));
        let release = LogRelease::up_to(before.saturating_sub(1), families);
        if release.is_some() {
            count(&self.stats.logs_emptied, 1);
            let dead = freed.saturating_sub(live);
            log_info!(
                self.log,
                "column families {names:?} are flushed: they have {live} bytes of WALs with {freed} bytes, and keep \
                 {dead} that are in tables already"
            );
        }
        Some(release)
    }

    /// Begins the flushes that are due because values stay in WALs and these are too large, or mostly in tables
    /// already, if no flush does that already and nobody writes: otherwise the next writer does it. Without writers
    /// this is so after an opening, and when a flush has left WALs that other column families need. Called by the
    /// timer.
    pub fn release_logs_without_writers(&self) {
        let is_due = |state: &State| {
            self.front.memory().index().is_some()
                && (self.logs_now(state).is_flush_due() || self.logs_to_empty(state).is_some())
                && self.paced_by(state).is_none()
                && state.errors().of_writes().is_none()
        };
        if !is_due(&self.state.lock()) {
            return;
        }
        let Some(_leadership) = self.writers.queue.try_lead_alone() else { return };
        self.writers.in_flight.drain();
        let (full, reason) = {
            let mut state = self.state.lock();
            if !is_due(&state) {
                return;
            }
            self.full_memtables(&mut state)
        };
        if !full.is_empty() {
            let _ = self.switch_memtables(&full, reason); // a failure was told, and stops writers
        }
    }

    /// The length of the present WAL at which all WALs together become too large.
    pub fn log_room(&self, state: &State) -> u64 {
        match self.front.memory().index() {
            Some(_) => self.logs_now(state).newest_to_flush(),
            None => {
                state.logs().room(self.live().max_total_wal_size, state.families().map(|c| c.cf().options.load_full()))
            }
        }
    }

    /// Makes these column families' memtables immutable and begins new ones, and a new WAL if the present one is not
    /// empty. All are switched at once, so that no flush can have only some of them.
    pub fn switch_memtables(&self, ids: &[u32], reason: FlushReason) -> Result<()> {
        let log = self.begin_wal()?;
        self.switch_to(log, ids, reason);
        Ok(())
    }

    /// The same once the new WAL has begun.
    pub fn switch_to(&self, log: u64, ids: &[u32], reason: FlushReason) {
        let mut state = self.state.lock();
        self.seal_memtables(&mut state, ids, log, reason);
        self.update_pressure(&state);
        drop(state);
        self.work_available.notify_all();
    }

    /// Makes these column families' memtables immutable, and begins new ones whose data is in WAL `log` and later.
    pub fn seal_memtables(&self, state: &mut State, ids: &[u32], log: u64, reason: FlushReason) {
        // Memtables without data follow the new WAL: they hold back no older one. The column family's log number does
        // not: if a MANIFEST said so while an older WAL is not durable, its tables would be ahead of that WAL, and
        // after a power cut recovery would refuse the database.
        state.families_mut().for_each(|c| c.front_mut().log_begins(log));
        let writers = WritersNow {
            written: self.stats.bytes_written.load(Ordering::Relaxed),
            now: self.opts.clock.monotonic_nanos() as f64 * 1e-9,
            waited: self.pacing.writers().waited_seconds(),
        };
        for id in ids {
            let Some(c) = state.family_mut(*id) else { continue };
            let options = c.options();
            let Some(sealed) = c.front_mut().seal(&options, self.front.memory(), log, reason, &writers) else {
                continue;
            };
            self.memtable_sealed(c.cf(), &sealed);
            c.publish();
        }
    }

    /// Begins a new WAL unless the present one is empty; returns the number of the one in use afterwards.
    pub fn begin_wal(&self) -> Result<u64> {
        self.begin_wal_unless(|_| false).map(|begun| begun.unwrap_or_default())
    }

    /// The same; `None` if that has failed, nothing has changed, and `passes` says of the error that it is none.
    pub fn begin_wal_unless(&self, passes: impl FnOnce(&Error) -> bool) -> Result<Option<u64>> {
        // The present one may end in a record that does not count; a recovery leaves it.
        self.check_takes_writes()?;
        let next = self.writers.in_flight.newest() + 1;
        let turn = match self.front.begin_log(next, &self.live(), || self.new_file_number()) {
            Ok(turn) => turn,
            Err(failed) if !failed.changed && passes(&failed.error) => return Ok(None),
            Err(failed) => {
                self.set_background_error(BackgroundErrorReason::WriteCallback, failed.what, &failed.error);
                return Err(failed.error);
            }
        };
        let number = self.state.lock().logs_mut().turn(turn);
        if self.front.bounds_archive() {
            self.log.alarm().ring();
        }
        Ok(Some(number))
    }
}

/// Column families whose memtables have data.
pub(crate) fn with_data(state: &State) -> Vec<u32> {
    state.families().filter(|c| !c.front().is_empty()).map(|c| c.cf().id).collect()
}
