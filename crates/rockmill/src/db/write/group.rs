//! The write path: writers join a group, its leader logs the group, and all of them insert. Which writer leads, and how
//! the others wait, is in `queue.rs`.
//!
//! 1. A writer that finds no leader becomes one. Other writers put their batches into slots, queue up and wait.
//! 2. The leader makes room (`switch.rs`), then takes the waiting writers into its group, up to a size limit.
//! 3. One WAL record holds the whole group; one sync, if any member asked for it. Then the next writer may lead.
//! 4. Members that are awake insert their batches; the leader inserts its own and the rest. Other groups are inserted
//!    at the same time (with `allow_concurrent_memtable_write`).
//! 5. When all groups before it are visible, the group's last sequence number becomes visible, and members are
//!    released.
//!
//! Sequence numbers follow the order of the log, so what recovery finds is a prefix of what was written. Groups become
//! visible in the same order. A writer that leads alone first waits until no group is in flight, so that memtables and
//! WALs are switched only between groups.
//!
//! A panic in steps 2 to 4, for example of a user's comparator, becomes an error of all members and of the database.
//! Before step 4 that error is fatal. From step 4 on, it is unknown which records are in the memtables. So the sequence
//! numbers of this group and of all later ones never become visible, their records are cut off the WAL, and writes are
//! refused until the database is opened again.

use std::sync::Arc;
use std::time::Instant;

use rockmill_format::batch::BatchRep;
use rockmill_format::{MAX_SEQUENCE, SequenceNumber};

use crate::db::catalog::CfMap;
use crate::db::catalog::super_version::SuperVersion;
use crate::db::catalog::value_times;
use crate::db::report::stats::count;
use crate::db::write::full_device::NoSpace;
use crate::db::write::in_flight::GroupSpan;
use crate::db::write::queue::{Joined, Leadership, Slot, insert_group};
use crate::db::write::turn;
use crate::db::{ColumnFamily, DbInner};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, in_listener};
use crate::front::{LoggedBatch, entry_of};
use crate::info_log::log_error;
use crate::options::WriteOptions;
use crate::panics::caught;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::sync::Guard;
use crate::sync::atomic::Ordering;

/// The batch of the writer that leads.
enum Own<'a> {
    /// The leader may change it.
    Lent(&'a mut BatchRep),
    /// It belongs to a user, who may be writing it to another database at the same time.
    Shared(&'a BatchRep),
}

impl Own<'_> {
    fn get(&self) -> &BatchRep {
        match self {
            Own::Lent(rep) => rep,
            Own::Shared(rep) => rep,
        }
    }

    /// Sets the sequence number, if the batch may be changed.
    fn set_sequence(&mut self, first: SequenceNumber) {
        if let Own::Lent(rep) = self {
            rep.set_sequence(first);
        }
    }
}

/// How far a leader has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The group is neither in the WAL nor in memtables.
    MakesRoom,
    /// The group may be in the WAL in part.
    Logs,
    /// The group is in flight: it is logged, and memtables may have a part of it.
    Inserts(GroupSpan),
}

impl DbInner {
    /// Called when a writer in a call of a listener has queued up, so that a waiting leader lends it its place
    /// ([`WriteQueue::lend`](crate::db::write::queue::WriteQueue::lend)).
    #[cold]
    pub fn wake_waiting_leader(&self) {
        // The locks keep a leader from missing this between its check and its sleep.
        drop(self.state.lock());
        self.job_finished.notify_all();
        self.front.memory().wake();
    }

    /// Leads alone: no other writer writes while the result lives.
    pub fn lead_alone(&self) -> Leadership<'_> {
        let mut none = BatchRep::default();
        match self.writers.queue.join(self, &mut none, WriteOptions::default(), true) {
            Joined::Leads(leadership) => {
                self.writers.in_flight.drain();
                leadership
            }
            Joined::Done(_) => unreachable!("a barrier is never taken into a group"),
        }
    }

    /// Writes a batch whose records were checked, and returns it with its sequence number set.
    pub fn write_rep(&self, rep: &mut BatchRep, options: &WriteOptions) -> Result<()> {
        check_write_options(options)?;
        let (statistics, clock) = (&self.opts.statistics, &*self.opts.clock);
        let began = statistics.start(clock);
        let done = self.write_timed(rep, options);
        statistics.stop(Histogram::DbWrite, clock, began);
        done
    }

    /// Writes a batch that stays with its owner. It is copied only if it has to wait for a leader.
    pub fn write_shared(&self, rep: &BatchRep, options: &WriteOptions) -> Result<()> {
        check_write_options(options)?;
        let waits = self.opened.with_ttl() || options.low_pri;
        let free = if waits { None } else { self.writers.queue.try_lead(options, rep.len_bytes()) };
        let Some(leadership) = free else { return self.write_rep(&mut rep.clone(), options) };
        let (statistics, clock) = (&self.opts.statistics, &*self.opts.clock);
        let began = statistics.start(clock);
        let result = self.lead_group(leadership, Own::Shared(rep), options);
        self.tell_waiting();
        statistics.stop(Histogram::DbWrite, clock, began);
        result
    }

    fn write_timed(&self, rep: &mut BatchRep, options: &WriteOptions) -> Result<()> {
        self.wait_for_compaction(rep, options)?;
        if self.opened.with_ttl() {
            let mut stamped = value_times::stamped(rep, self.now_seconds())?;
            let done = self.write_stamped(&mut stamped, options);
            rep.set_sequence(stamped.sequence());
            return done;
        }
        self.write_stamped(rep, options)
    }

    /// Delays a write of low priority.
    fn wait_for_compaction(&self, rep: &BatchRep, options: &WriteOptions) -> Result<()> {
        if options.low_pri && self.pacing.writers().is_behind() && !in_listener() {
            if options.no_slowdown {
                return Err(Error::new(ErrorKind::Incomplete, "low priority write stall: compaction is behind"));
            }
            self.pacing.writers().delay_low_pri(rep.len_bytes() as u64, &*self.opts.clock, &self.shutdown);
        }
        Ok(())
    }

    /// Writes a batch in the form that goes into the WAL.
    fn write_stamped(&self, rep: &mut BatchRep, options: &WriteOptions) -> Result<()> {
        let leadership = match self.writers.queue.join(self, rep, *options, false) {
            Joined::Leads(leadership) => leadership,
            Joined::Done(done) => return done,
        };
        let result = self.lead_group(leadership, Own::Lent(rep), options);
        self.tell_waiting();
        result
    }

    /// Writes a group. Every member gets a result, even after a panic.
    fn lead_group(&self, leadership: Leadership<'_>, own: Own<'_>, options: &WriteOptions) -> Result<()> {
        let (mut leadership, mut members, mut stage) = (Some(leadership), Vec::new(), Stage::MakesRoom);
        let written = caught("a write", || self.write_group(&mut leadership, own, options, &mut members, &mut stage));
        let done = match (stage, written) {
            (Stage::Inserts(place), Ok(Ok(()))) => {
                let met_others = !members.is_empty() || self.writers.in_flight.has_others();
                let done = self.writers.in_flight.publish(place, members);
                turn::end_group(place.next - place.first, met_others);
                return done;
            }
            (Stage::Inserts(place), Ok(Err(panic)) | Err(panic)) => Err(self.panicked_behind(place, panic)),
            (_, Ok(done)) => done,
            (_, Err(panic)) => Err(self.panicked_before(panic)),
        };
        members.iter().for_each(|m| m.finish(&done));
        done
    }

    /// Makes room, numbers, logs and inserts. Leadership is given back when the group is in the WAL.
    fn write_group(
        &self,
        leadership: &mut Option<Leadership<'_>>,
        mut own: Own<'_>,
        options: &WriteOptions,
        members: &mut Vec<Arc<Slot>>,
        stage: &mut Stage,
    ) -> Result<()> {
        let in_flight = &self.writers.in_flight;
        let written = self.stats.bytes_written.load(Ordering::Relaxed);
        let slowed = self.pacing.writers().is_delaying() || self.pacing.writers().is_pacing(written);
        let mut alone = false;
        if slowed || self.writers.leader_has_work.load(Ordering::Acquire) || self.front.memory().is_short() {
            // Memtables may be switched, so no group may be inserting.
            in_flight.drain();
            alone = self.make_room(options, own.get().len_bytes() as u64)?;
        }
        *stage = Stage::Logs;
        if !alone {
            *members = self.writers.queue.gather(*options, own.get().len_bytes());
        }
        let sync = options.sync || members.iter().any(|m| m.options.sync);
        if sync && let Some(leadership) = leadership {
            leadership.syncs();
        }
        let mut no_space = NoSpace::default();
        let (place, logged) = loop {
            let place = self.number_group(&mut own, members);
            let timer = perf::time(PerfMetric::WriteWalTime);
            let logged = if place.next > MAX_SEQUENCE {
                let used = format!("{}: no sequence numbers are left after {}", self.path.display(), place.first - 1);
                Err(Error::new(ErrorKind::Aborted, used))
            } else {
                self.log_group(own.get(), place.first, members, options.disable_wal, sync)
            };
            drop(timer);
            match logged {
                Ok(logged) => break (place, logged),
                // Others may write meanwhile, so it is numbered again.
                Err(e) if e.is_no_space() && self.front.append_was_undone() => {
                    self.wait_for_space(&mut no_space, e, options, own.get().len_bytes() as u64)?;
                }
                Err(e) => {
                    self.set_background_error(BackgroundErrorReason::WriteCallback, "a write to the WAL", &e);
                    return Err(e);
                }
            }
        };
        let own = own.get();
        in_flight.begin(place);
        *stage = Stage::Inserts(place);
        let shared = self.opts.allow_concurrent_memtable_write;
        if shared {
            *leadership = None;
        }
        let timer = perf::time(PerfMetric::WriteMemtableTime);
        insert_group(self, own, place.first, members, shared, logged)?;
        drop(timer);
        self.count_group(own, members, place.next - place.first);
        Ok(())
    }

    /// Gives the next sequence numbers to a group, which is then to be logged.
    fn number_group(&self, own: &mut Own<'_>, members: &[Arc<Slot>]) -> GroupSpan {
        let first = self.writers.in_flight.newest() + 1;
        own.set_sequence(first);
        let mut next = first + u64::from(own.get().count());
        for m in members {
            let mut rep = m.rep.lock();
            rep.set_sequence(next);
            next += u64::from(rep.count());
        }
        GroupSpan { first, next, wal_size: self.front.log_size() }
    }

    /// Notes that a panic ended a group before it was in the WAL, and gives the error that its members get.
    #[cold]
    fn panicked_before(&self, panic: Error) -> Error {
        // Members wait for what comes after this, so it must be reached.
        let _ = caught("the end of a write", || {
            // Nothing may be written after what may be there now.
            self.front.fail_log();
            self.set_background_error(BackgroundErrorReason::WriteCallback, "a write", &panic);
        });
        panic
    }

    /// Notes that a panic ended a group that is in the WAL, and returns the error that its members get. Nothing after
    /// the group ever becomes visible. Its members have inserted all that they will.
    #[cold]
    fn panicked_behind(&self, place: GroupSpan, panic: Error) -> Error {
        self.writers.in_flight.fail(place, panic, |panic| {
            let _ = caught("the end of a write", || {
                self.set_background_error(BackgroundErrorReason::MemTable, "a write", panic);
            });
            let _ = caught("the end of a write", || self.take_back_records(place.wal_size));
        })
    }

    /// Called when a panic ended a write that the WAL has after its first `size` bytes. It is unknown what the
    /// memtables have of it. Neither this write nor any that was logged after it may become visible, now or after the
    /// next open. So nothing more is written to that WAL, and these records are cut off.
    #[cold]
    fn take_back_records(&self, size: u64) {
        let Some((size, cut)) = self.front.take_back(size) else { return };
        self.state.lock().logs_mut().cut_newest(size);
        if let Err(e) = cut {
            log_error!(self.log, "records of writes that panicked stay in the WAL: {e}");
        }
    }

    fn count_group(&self, own: &BatchRep, members: &[Arc<Slot>], keys: u64) {
        let bytes = own.len_bytes() + members.iter().map(|m| m.bytes).sum::<usize>();
        if let Some(s) = &self.opts.statistics {
            s.add_all([
                (Ticker::NumberKeysWritten, keys),
                (Ticker::BytesWritten, bytes as u64),
                (Ticker::WriteDoneBySelf, 1),
                (Ticker::WriteDoneByOther, members.len() as u64),
            ]);
            s.record(Histogram::BytesPerWrite, bytes as u64);
        }
        count(&self.stats.keys_written, keys);
        count(&self.stats.bytes_written, bytes as u64);
        count(&self.stats.writes_by_self, 1);
        if !members.is_empty() {
            count(&self.stats.writes_by_other, members.len() as u64);
        }
    }

    /// Returns where the group is in the log, if values stay there.
    fn log_group(
        &self,
        own: &BatchRep,
        first: SequenceNumber,
        members: &[Arc<Slot>],
        disable_wal: bool,
        sync: bool,
    ) -> Result<Option<LoggedBatch>> {
        if disable_wal {
            self.front.note_unlogged();
            return Ok(None);
        }
        let Some(mut log) = self.front.lead() else {
            // A group in flight may have failed since the check for an error, and have taken the WAL away.
            let failed = self.state.lock().errors().of_writes().cloned();
            return Err(failed.unwrap_or_else(Error::closing));
        };
        let n = if members.is_empty() && own.sequence() == first {
            log.append(own)?
        } else {
            log.append_group(first, |merged| {
                merged.append(own);
                members.iter().for_each(|m| merged.append(&m.rep.lock()));
            })?
        };
        count(&self.stats.wal_bytes, n);
        count(&self.stats.write_groups, 1);
        count(&self.stats.writes_with_wal, members.len() as u64 + 1);
        if self.front.log_is_large() {
            self.writers.leave_leader_work();
        }
        if let Some(s) = &self.opts.statistics {
            let bytes = own.len_bytes() + members.iter().map(|m| m.bytes).sum::<usize>();
            let writes = members.len() as u64 + 1;
            s.add_all([(Ticker::WalFileBytes, bytes as u64), (Ticker::WriteWithWal, writes)]);
        }
        if sync {
            let (statistics, clock) = (&self.opts.statistics, &*self.opts.clock);
            let (began, sync_began) = (statistics.start(clock), Instant::now());
            log.sync()?;
            statistics.stop(Histogram::WalFileSyncMicros, clock, began);
            let writers = members.iter().filter(|m| m.options.sync).count() + 1;
            self.writers.queue.has_synced(writers, sync_began);
            statistics.add(Ticker::WalFileSynced, 1);
            count(&self.stats.wal_syncs, 1);
            count(&self.stats.wal_sync_micros, sync_began.elapsed().as_micros() as u64);
        }
        log.acknowledge();
        Ok(log.values_of_last())
    }

    /// [`Self::insert_batch`] with a panic as an error.
    pub fn try_insert_batch(&self, rep: &BatchRep, first: SequenceNumber, logged: Option<&LoggedBatch>) -> Result<()> {
        caught("an insertion into a memtable", || self.insert_batch(rep, first, logged))
    }

    /// Inserts a batch that was logged. Records of column families that were dropped in the meantime are skipped, as
    /// recovery would skip them.
    fn insert_batch(&self, rep: &BatchRep, first: SequenceNumber, logged: Option<&LoggedBatch>) {
        let mut seq = first;
        let mut families = Families::of(self);
        let mut at: Option<(u32, CurrentVersion)> = None;
        let mut full = false;
        for record in rep.iter() {
            let Ok(record) = record else { break }; // the batch was checked when it was built
            let Some((cf, t, key, value)) = entry_of(&record) else { continue };
            if at.as_ref().is_none_or(|(id, ..)| *id != cf) {
                full |= at.take().is_some_and(|(_, sv)| sv.front.is_full());
                at = families.get(cf).map(|c| (cf, c.data.current.load()));
            }
            if let Some((_, sv)) = &at {
                let at = logged.and_then(|batch| batch.value(rep, value));
                sv.front.insert(seq, t, key, value, at);
            }
            seq += 1;
        }
        full |= at.is_some_and(|(_, sv)| sv.front.is_full());
        if full {
            self.writers.leave_leader_work();
        }
    }

    /// [`Db::flush_wal`](crate::Db::flush_wal) for the write leader. With `begin`, a WAL without records first gets the
    /// record that says which WAL it follows.
    pub fn flush_wal_as_leader(&self, sync: bool, begin: bool) -> Result<()> {
        self.check_takes_writes()?;
        let (statistics, clock) = (&self.opts.statistics, &*self.opts.clock);
        let began = statistics.start(clock);
        let done = self.front.flush_log(sync, begin);
        if sync && done.is_ok() {
            statistics.stop(Histogram::WalFileSyncMicros, clock, began);
            statistics.add(Ticker::WalFileSynced, 1);
        }
        match &done {
            Err(e) => self.set_background_error(
                BackgroundErrorReason::WriteCallback,
                if sync { "a sync of the WAL" } else { "a write to the WAL" },
                e,
            ),
            Ok(()) if sync => count(&self.stats.wal_syncs, 1),
            Ok(()) => {}
        }
        done
    }
}

/// What is current in a column family, without a reference count.
type CurrentVersion = Guard<Arc<SuperVersion>>;

/// Finds the column families of a batch's records. Most batches have the default one's only.
pub(super) struct Families<'a> {
    db: &'a DbInner,
    others: Option<Guard<Arc<CfMap>>>,
}

impl<'a> Families<'a> {
    pub fn of(db: &'a DbInner) -> Self {
        Self { db, others: None }
    }

    #[inline]
    pub fn get(&mut self, id: u32) -> Option<&ColumnFamily> {
        if id == 0 {
            return Some(self.db.catalog.default_cf());
        }
        self.others.get_or_insert_with(|| self.db.catalog.families()).get(id)
    }
}

#[inline]
fn check_write_options(options: &WriteOptions) -> Result<()> {
    if options.sync && options.disable_wal {
        return Err(Error::invalid_argument("sync asks for a durable WAL and disable_wal for none"));
    }
    Ok(())
}
