//! Turns observations into orders: what slows writers now, and what share of the device flushes, compactions and reads
//! get.
//!
//! Pure functions. The store calls [`decide`] whenever the tree or the memtables change, and carries out the orders
//! (`db/write/pressure.rs`). How one write waits between two changes is in `write_control.rs`. Some answers are needed
//! at other moments, too, or change with time alone, and are asked for then:
//!
//! | function | asked |
//! |---|---|
//! | [`is_flush_due`], [`flushes_without_merging`] | by a flush thread that looks for work |
//! | [`stop`], [`stop_of_leader`] | by a writer that waits, each time that it looks |
//! | [`allowance`] | before each sleep of a writer, while a flush is in flight |
//! | [`is_flush_bound`] | by a compaction thread, for each job |
//! | [`stays_here`] | by a compaction thread, for each job that a worker could do |
//! | `read_protection.rs`, `left_to_jobs` | by each job, before each piece; tables are there, which know no options |
//!
//! The code that carries out an order has its own clock and decides nothing: the buckets of `write_control.rs` meter
//! rates, and a job waits for each megabyte in `flush_priority.rs`, and for each piece in `read_protection.rs`. What
//! they measure comes back as observations. [`RateControl`](super::rate_control::RateControl), [`FlushPace`] and
//! [`FlushBound`](super::flush_bound::FlushBound) learn from it, and are pure, too.
//!
//! Some decisions are made elsewhere, because neither the device nor the speed of writers depends on them: which
//! memtables keep logs alive that are too large (`front/wal_memtable/logs.rs`), which compaction is next
//! (`db/jobs/compact.rs`), and how writers' threads wait for each other (`db/write/commit_delay.rs`, `turn.rs`).
//!
//! The simulator calls them, too. What jobs leave to reads under these orders is simulated in the tests of
//! `read_protection.rs`.

use std::ops::Deref;

use super::common::{BytesPerSecond, Seconds};
use super::flush_bound::FlushWaits;
use super::flush_pace::{FlushPace, OneFlush};
use super::index_tables::{IndexQueues, IndexSchedule, ROOM_END, ScheduleChange, Triggers};
use super::write_control::{StallReason, TreeLoad, WriteControl, write_control, write_stop};
use crate::options::CfOptions;

/// A column family as it is now.
#[derive(Debug, Clone)]
pub struct FamilyNow<'a, O> {
    /// Its id.
    pub id: u32,
    /// Its options.
    pub options: O,
    /// The part of its tree that slows writers.
    pub load: TreeLoad,
    /// Memtables that are full, and how many there may be.
    pub memtables: FullMemtables,
    /// Which of them are being flushed, or must be.
    pub flushes: FlushQueue,
    /// When index tables are merged and flushed, and what waits, before this decision; `None` for memtables with
    /// values.
    pub index: Option<(IndexSchedule, IndexQueues)>,
    /// How long its flushes take.
    pub flush_pace: &'a FlushPace,
}

/// Memtables that are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullMemtables {
    /// How many are full.
    pub full: usize,
    /// How many there may be, including the one that is being filled.
    pub most: usize,
}

impl FullMemtables {
    /// Index tables of `size` bytes each that have this many bytes of memory, and may have `max`. There may be many of
    /// them: their memory is bounded instead, since it may contain values, and each table holds a file open.
    pub fn of_index_tables(bytes: usize, max: usize, size: usize) -> Self {
        let size = size.max(1);
        Self { full: bytes / size, most: 1 + max / size }
    }
}

/// Full memtables that wait for a flush, or for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushQueue {
    /// How many, including those that are being flushed.
    pub waiting: usize,
    /// Some of them are.
    pub in_flight: bool,
    /// A caller requested their flush, or it is due because logs grew too large.
    pub requested: bool,
}

/// What bounds the memory of all memtables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNow {
    /// They are index tables.
    pub index_tables: bool,
    /// Some are to be flushed, since all together hold too much.
    pub short: bool,
    /// Writers, including those of other databases, may have to wait for it.
    pub may_stall: bool,
}

/// The store as it is now, without its column families.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoreNow {
    /// The present time.
    pub at: Seconds,
    /// What its logs hold.
    pub logs: LogsNow,
    /// It takes no writes because of a background error.
    pub failed: bool,
    /// See `flushes_without_merging`.
    pub without_merging: bool,
}

/// What logs hold that is in no table, if that is bounded: values stay in them until they are flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsNow {
    /// Bytes of the log in use.
    pub newest: u64,
    /// Bytes of those before it.
    pub others: u64,
    /// The most bytes of all logs.
    pub capacity: u64,
    /// It is less than users gave since the device has no more.
    pub of_device: bool,
}

impl LogsNow {
    /// Logs that nothing bounds.
    pub const UNBOUNDED: Self = Self { newest: 0, others: 0, capacity: u64::MAX, of_device: false };

    /// Bytes that still fit.
    pub fn room(self) -> u64 {
        self.capacity.saturating_sub(self.newest.saturating_add(self.others))
    }

    /// The part that still fits, of what logs may hold or of `max` bytes of memory of which `memory` are used,
    /// whichever is less.
    pub fn room_part(self, memory: f64, max: usize) -> f64 {
        (1.0 - memory / max.max(1) as f64).min(self.room() as f64 / self.capacity.max(1) as f64)
    }

    /// The length of the log in use at which the oldest logs are flushed: one half is filled while the other is
    /// emptied.
    pub fn newest_to_flush(self) -> u64 {
        (self.capacity / FLUSH_PART).saturating_sub(self.others)
    }

    /// They must be flushed.
    pub fn is_flush_due(self) -> bool {
        self.newest >= self.newest_to_flush()
    }

    /// The length of the log in use at which writers wait.
    pub fn newest_to_stop(self) -> u64 {
        self.capacity.saturating_sub(self.others)
    }
}

/// Orders that hold until the tree or the memtables change.
#[derive(Debug, Clone, PartialEq)]
pub struct Orders {
    /// How the worst tree slows writers.
    pub tree: WriteControl,
    /// The column family of that tree; meaningless if the pressure is 0.
    pub cause: u32,
    /// Why writers must wait, if they must, and for which column family.
    pub stop: Option<(u32, StallReason)>,
    /// Compactions should speed up (RocksDB's `NeedSpeedupCompaction`), and writes of low priority wait.
    pub behind: bool,
    /// The first column family with a flush in flight, or due.
    pub flushing: Option<u32>,
    /// There is one: writers are paced to it.
    pub paced: bool,
    /// Writers wait for flushes or compactions, so reads leave these more of the device (`read_protection.rs`).
    pub awaited: bool,
    /// The share of the device that compactions leave to a flush that writers wait for, or would wait for if one more
    /// memtable were full: 1 all of it, 0 nothing. 0 also if there is no such flush.
    pub flush_first: f64,
    /// When index tables are merged and flushed, and how much levels may hold, for each column family that has some.
    pub schedules: Vec<OneSchedule>,
}

/// When index tables of a column family are merged and flushed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneSchedule {
    /// Its id.
    pub id: u32,
    /// From now on.
    pub schedule: IndexSchedule,
    /// What of it is new.
    pub change: Option<ScheduleChange>,
}

impl Orders {
    /// The tree slows writers.
    pub fn delayed(&self) -> bool {
        self.tree.pressure > 0.0
    }

    /// Writers are delayed or stopped, so that background work goes first at the rate limiter.
    pub fn writers_wait(&self) -> bool {
        self.stop.is_some() || self.delayed()
    }

    /// Writers are stopped until a flush ends.
    pub fn stopped_for_flush(&self) -> bool {
        self.stop.is_some_and(|(_, why)| why == StallReason::Memtables)
    }
}

/// See the module's text.
pub fn decide<'a, O: Deref<Target = CfOptions>>(
    families: impl Iterator<Item = FamilyNow<'a, O>> + Clone,
    store: StoreNow,
) -> Orders {
    let (mut tree, mut cause, mut behind) = (WriteControl::default(), 0, false);
    // Without compactions nothing would ever lower the debt.
    for f in families.clone().filter(|f| !f.options.disable_auto_compactions) {
        let control = write_control(f.load, &f.options);
        behind |= control.behind;
        if control.pressure > tree.pressure {
            (tree, cause) = (control, f.id);
        }
    }
    behind |= tree.pressure > 0.0;
    let (mut stop, mut flushing, mut first, mut schedules) = (None, None, 0.0_f64, Vec::new());
    for mut f in families {
        if let Some(new) = reschedule(&mut f, store) {
            schedules.push(new);
        }
        stop = stop.or_else(|| stop_of(&f, store.logs));
        if is_flushing(&f, store.without_merging) {
            flushing = flushing.or(Some(f.id));
            first = first.max(flush_first(&f, store.logs, behind, tree.pressure));
        }
    }
    Orders {
        tree,
        cause,
        stop,
        behind,
        flushing,
        paced: flushing.is_some() && !store.failed,
        awaited: flushing.is_some() || stop.is_some(),
        flush_first: if store.failed { 0.0 } else { first },
        schedules,
    }
}

/// Decides again when a column family's index tables are merged and flushed; from then on this determines what is due.
fn reschedule<O: Deref<Target = CfOptions>>(f: &mut FamilyNow<'_, O>, store: StoreNow) -> Option<OneSchedule> {
    // Little room means that flushes are late only if there is one to wait for.
    let flushing = is_flushing(f, store.without_merging);
    let (schedule, queues) = f.index.as_mut()?;
    let control = write_control(f.load, &f.options);
    let behind = !f.options.disable_auto_compactions && (control.behind || control.pressure > 0.0);
    let room = if flushing { queues.room } else { 1.0 };
    let change = schedule.decide(IndexQueues { behind, room, ..*queues }, store.at);
    Some(OneSchedule { id: f.id, schedule: *schedule, change })
}

/// Flushes begin when this part of what memtables and logs may hold is used, so that one half is filled while the other
/// is flushed: long before writers stop. Derived: with two of the same size, neither waits for the other. Simulated in
/// the cases of `index_tables.rs`: a quarter -29 to +4 % (-5 % in the median), three quarters -22 to +28 % (-2 %).
const FLUSH_PART: u64 = 2;

/// True if a flush of full memtables must begin, or another one after the flush in flight. `index`: when index tables
/// are flushed, and the bytes of memory of full ones; `None` of memtables with values. `without_merging`: see
/// `flushes_without_merging`.
pub fn is_flush_due(
    queue: FlushQueue,
    memtables: FullMemtables,
    index: Option<(Triggers, u64)>,
    options: &CfOptions,
    without_merging: bool,
) -> bool {
    if queue.waiting == 0 || queue.requested || without_merging {
        return queue.waiting > 0;
    }
    match index {
        // With many memtables, regardless of their contents.
        Some((now, bytes)) => bytes >= now.flush_bytes || memtables.full >= memtables.most / FLUSH_PART as usize,
        // RocksDB's rule.
        None => {
            queue.waiting >= options.min_write_buffer_number_to_merge.max(1) as usize || queue.waiting >= memtables.most
        }
    }
}

/// True if no full memtable waits for others to be merged with. RocksDB merges none before an atomic flush; index
/// tables are always merged, unless their memory is needed. And if writers wait for memory, the memtables that hold it
/// must not wait for a writer.
pub fn flushes_without_merging(memory: MemoryNow, atomic_flush: bool) -> bool {
    memory.may_stall || if memory.index_tables { memory.short } else { atomic_flush }
}

fn is_flushing<O: Deref<Target = CfOptions>>(f: &FamilyNow<'_, O>, without_merging: bool) -> bool {
    let index = f.index.map(|(schedule, queues)| (schedule.now(), queues.flush_bytes));
    f.flushes.waiting > 0
        && (f.flushes.in_flight || is_flush_due(f.flushes, f.memtables, index, &f.options, without_merging))
}

/// Why writers must wait, if they must, and for which column family.
pub fn stop<'a, O: Deref<Target = CfOptions>>(
    mut families: impl Iterator<Item = FamilyNow<'a, O>>,
    logs: LogsNow,
) -> Option<(u32, StallReason)> {
    families.find_map(|f| stop_of(&f, logs))
}

fn stop_of<O: Deref<Target = CfOptions>>(f: &FamilyNow<'_, O>, logs: LogsNow) -> Option<(u32, StallReason)> {
    if logs.room() == 0 {
        let why = if logs.of_device { StallReason::FastDeviceSpace } else { StallReason::FastDevice };
        return Some((f.id, why));
    }
    Some((f.id, write_stop(f.load, &f.options, f.memtables)?))
}

/// Why the writer that makes room for others must wait, if it must. `stop`: the result of [`stop`] for column families;
/// `seals`: it has memtables to seal first, which can then be flushed, so that logs and memory are freed;
/// `memory_full`: the write buffer manager stops writers.
pub fn stop_of_leader(stop: Option<StallReason>, seals: bool, memory_full: bool) -> Option<StallReason> {
    match stop {
        Some(StallReason::FastDevice | StallReason::FastDeviceSpace) if seals => None,
        None if memory_full && !seals => Some(StallReason::WriteBufferManager),
        stop => stop,
    }
}

/// The first column family with a flush in flight, or due, as index tables are flushed so far. `without_merging`: see
/// [`flushes_without_merging`].
pub fn flushing<'a, O: Deref<Target = CfOptions>>(
    mut families: impl Iterator<Item = FamilyNow<'a, O>>,
    without_merging: bool,
) -> Option<u32> {
    families.find(|f| is_flushing(f, without_merging)).map(|f| f.id)
}

/// A column family's memtables at a moment.
#[derive(Debug, Clone, Copy)]
pub struct MemtablesNow<'a, R> {
    /// Those that are full, and how many there may be.
    pub memtables: FullMemtables,
    /// The full ones are being flushed, or are about to be.
    pub flushing: bool,
    /// How long its flushes take.
    pub flush_pace: &'a FlushPace,
    /// If none is in flight, the flush that is due.
    pub due: OneFlush,
    /// Bytes that writers can write until the memtable that is being filled is full and as many more as allowed are.
    pub room: R,
    /// How much of the limit applies to writers: 1 all of it, 0 nothing. Less than 1 only for index tables.
    pub pressure: f64,
}

/// What writers may write at a moment, so that memtables are full when the flush in flight ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    /// The rate that they get; infinite if they are not limited.
    pub rate: BytesPerSecond,
    /// Bytes until they stop.
    pub room: f64,
}

impl Allowance {
    /// No flush is in flight.
    pub const FREE: Self = Self { rate: f64::INFINITY, room: f64::INFINITY };

    /// Bytes that may be saved up, and written at once.
    pub fn saved_max(self) -> f64 {
        (self.rate * CREDIT_SECONDS).min(self.room * CREDIT_ROOM)
    }
}

/// Seconds of a rate that may be saved up: what sleeps overshoot is given back as far as this. Derived: more
/// than a scheduler's tick (4 ms), by which sleeps overshoot, and too short for a burst. In a model of paced writers
/// whose sleeps end up to 4 ms late, half of it costs them 5 to 9 % of their rate, nothing of it 54 to 66 %, and twice
/// of it changes nothing; where sleeps end up to 1 ms late, half of it changes nothing either.
const CREDIT_SECONDS: Seconds = 0.005;
/// And at most this part of the room until writers stop: if little time is left, a few milliseconds of the rate would
/// be all of the room. Simulated: half or twice of it changes throughput by less than 0.5 %; without it the longest
/// wait is twice as long (70 to 96 ms instead of 33 to 38).
const CREDIT_ROOM: f64 = 1.0 / 16.0;

/// The allowance of the column family that slows writers most. `failed`: as in [`StoreNow`].
pub fn allowance<'a, R: FnOnce(usize) -> f64>(
    families: impl Iterator<Item = MemtablesNow<'a, R>>,
    now: Seconds,
    failed: bool,
) -> Allowance {
    if failed {
        return Allowance::FREE;
    }
    let allowances = families.map(|f| match f.memtables.most.checked_sub(f.memtables.full + 1) {
        Some(more) if f.flushing && f.pressure > 0.0 => {
            let room = (f.room)(more);
            Allowance { rate: f.flush_pace.rate(now, room, f.due) / (f.pressure * f.pressure), room }
        }
        // At the limit writers are stopped.
        _ => Allowance::FREE,
    });
    allowances.min_by(|a, b| a.rate.total_cmp(&b.rate)).unwrap_or(Allowance::FREE)
}

/// Whether a compaction that a worker could do stays here: `running_here` others do, and the store keeps `here_first`.
///
/// By the simulator (docs/offload.md, "When it pays"), a store whose cores are busy gains more than twice its
/// throughput by workers, and one with idle cores loses where the network is slower than its device.
pub fn stays_here(running_here: usize, here_first: usize) -> bool {
    running_here < here_first
}

/// Whether it is more important that jobs of DF-compaction write little than that there are many: writers wait for
/// flushes, and writers, a job or a flush are at work. Never if all are idle: deferred merges are due then.
pub fn is_flush_bound(waits: FlushWaits, at_work: bool) -> bool {
    waits.often && (waits.lately || at_work)
}

/// What compactions are to leave to this column family's flush ([`Orders::flush_first`]): something where writers wait
/// for it, or would if one more memtable were full, and where they feel all of the limit that it sets them since little
/// is left of the logs.
fn flush_first<O: Deref<Target = CfOptions>>(f: &FamilyNow<'_, O>, logs: LogsNow, behind: bool, pressure: f64) -> f64 {
    let little_left = (logs.room() as f64) < logs.capacity as f64 * ROOM_END;
    if little_left || f.memtables.full + 1 >= f.memtables.most { f.flush_pace.priority(behind, pressure) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: StoreNow = StoreNow { at: 0.0, logs: LogsNow::UNBOUNDED, failed: false, without_merging: false };
    const NO_FLUSH: FlushQueue = FlushQueue { waiting: 0, in_flight: false, requested: false };
    const FLUSH: FlushQueue = FlushQueue { waiting: 1, in_flight: true, requested: false };

    fn now<'a>(options: &'a CfOptions, flush_pace: &'a FlushPace, load: TreeLoad) -> FamilyNow<'a, &'a CfOptions> {
        let memtables = full_of(0, options);
        FamilyNow { id: 7, options, load, memtables, flushes: NO_FLUSH, index: None, flush_pace }
    }

    fn full_of(full: usize, options: &CfOptions) -> FullMemtables {
        FullMemtables { full, most: options.max_write_buffer_number as usize }
    }

    #[test]
    fn compactions_that_are_behind_leave_the_device_to_flushes_that_keep_it_busy() {
        let (o, mut flush_pace) = (CfOptions::default(), FlushPace::default());
        let first = |flushes, flush_pace: &FlushPace| {
            let f = FamilyNow { memtables: full_of(1, &o), flushes, ..now(&o, flush_pace, TreeLoad::default()) };
            decide(std::iter::once(f), CALM).flush_first
        };
        assert_eq!([NO_FLUSH, FLUSH].map(|flushes| first(flushes, &flush_pace)), [0.0, 1.0], "there is no flush");
        let full = |flush_pace: &FlushPace, o: &CfOptions, behind, pressure| {
            let f = FamilyNow { memtables: full_of(1, o), ..now(o, flush_pace, TreeLoad::default()) };
            flush_first(&f, LogsNow::UNBOUNDED, behind, pressure)
        };
        let unknown = [full(&flush_pace, &o, false, 0.0), full(&flush_pace, &o, true, 0.0)];
        assert_eq!(unknown, [1.0, 0.0], "how long flushes take is not known");
        flush_pace.begin(0.0, 1e6);
        flush_pace.end(0.1, Some(0.007));
        assert_eq!([0.0, 0.25, 1.5].map(|pressure| full(&flush_pace, &o, true, pressure)), [1.0, 0.75, 0.0]);
        let more = CfOptions { max_write_buffer_number: 3, ..CfOptions::default() };
        assert_eq!(full(&flush_pace, &more, false, 0.0), 0.0, "there is room for a memtable more");
    }

    #[test]
    fn the_worst_tree_slows_writers_and_the_first_that_stops_them_is_named() {
        let (o, flush_pace) = (CfOptions::default(), FlushPace::default());
        let off = CfOptions { disable_auto_compactions: true, ..CfOptions::default() };
        let runs = |runs| TreeLoad { runs, pending_bytes: 0 };
        let all = |loads: [(&'static str, usize); 3]| {
            let families = loads.iter().zip(1..).map(|((kind, n), id)| {
                let options = if *kind == "off" { &off } else { &o };
                FamilyNow { id, ..now(options, &flush_pace, runs(*n)) }
            });
            decide(families, CALM)
        };
        let calm = all([("on", 0), ("on", 3), ("off", 100)]);
        assert!(!calm.delayed() && !calm.behind && calm.stop.is_none(), "a tree without compactions slows nobody");
        assert!(!calm.paced && calm.flushing.is_none() && !calm.awaited && calm.flush_first == 0.0);
        let slow = all([("on", 14), ("on", 20), ("off", 100)]);
        assert!(slow.behind && slow.cause == 2 && slow.tree.pressure == 1.0 && slow.stop.is_none());
        assert_eq!(slow.tree.reason, StallReason::L0Files);
        let stopped = all([("on", 14), ("on", 20), ("on", 36)]);
        assert_eq!((stopped.stop, stopped.cause, stopped.awaited), (Some((3, StallReason::L0Files)), 3, true));
    }

    #[test]
    fn a_store_that_takes_no_writes_paces_nobody() {
        let (o, flush_pace) = (CfOptions::default(), FlushPace::default());
        let full = FamilyNow { memtables: full_of(2, &o), flushes: FLUSH, ..now(&o, &flush_pace, TreeLoad::default()) };
        let of = |failed| decide(std::iter::once(full.clone()), StoreNow { failed, ..CALM });
        assert!(of(false).paced && of(false).flush_first == 1.0);
        assert_eq!(of(false).stop, Some((7, StallReason::Memtables)));
        assert!(!of(true).paced && of(true).flush_first == 0.0 && of(true).awaited);
    }

    #[test]
    fn the_slowest_column_family_with_a_flush_gives_the_pace() {
        let mut flush = FlushPace::default();
        flush.begin(0.0, 1e6);
        flush.end(1.0, Some(0.0));
        flush.begin(10.0, 1e6);
        let of = |full, flushing, room: f64| MemtablesNow {
            memtables: FullMemtables { full, most: 2 },
            flushing,
            flush_pace: &flush,
            due: OneFlush { since: 10.0, bytes: 1e6 },
            room: move |more: usize| room * (more + 1) as f64,
            pressure: 1.0,
        };
        assert_eq!(allowance([of(1, false, 1.0)].into_iter(), 10.0, false), Allowance::FREE, "no flush");
        assert_eq!(allowance([of(2, true, 1.0)].into_iter(), 10.0, false), Allowance::FREE, "writers are stopped");
        let all = || [of(1, true, 3e6), of(1, true, 2e6), of(1, false, 1e6)].into_iter();
        assert_eq!(allowance(all(), 10.0, true), Allowance::FREE, "nobody writes");
        let slowest = allowance(all(), 10.0, false);
        assert_eq!(slowest, Allowance { rate: flush.rate(10.0, 2e6, of(0, true, 0.0).due), room: 2e6 });
        assert!(allowance(all(), 20.0, false).rate < slowest.rate, "it is late");
        assert_eq!(allowance([of(0, true, 2e6)].into_iter(), 10.0, false).room, 4e6, "one more may be full");
        let felt = |pressure| allowance([MemtablesNow { pressure, ..of(1, true, 2e6) }].into_iter(), 10.0, false);
        assert_eq!((felt(0.0), felt(1.0)), (Allowance::FREE, slowest), "nothing, and all of it");
        assert_eq!(felt(0.5), Allowance { rate: slowest.rate * 4.0, room: 2e6 });
    }

    #[test]
    fn logs_that_are_full_stop_writers_and_flushes_begin_before() {
        let (o, flush_pace) = (CfOptions::default(), FlushPace::default());
        let of = |bytes| {
            let logs = LogsNow { newest: bytes, others: 0, capacity: 100, of_device: false };
            decide(std::iter::once(now(&o, &flush_pace, TreeLoad::default())), StoreNow { logs, ..CALM }).stop
        };
        assert_eq!([of(0), of(99)], [None, None]);
        assert_eq!([of(100), of(170)], [Some((7, StallReason::FastDevice)); 2]);
        let logs = LogsNow { newest: 50, others: 10, capacity: 100, of_device: false };
        assert_eq!((logs.room(), logs.newest_to_flush(), logs.newest_to_stop()), (40, 40, 90));
        assert!(logs.is_flush_due() && !LogsNow { newest: 39, ..logs }.is_flush_due());
        assert_eq!((logs.room_part(30.0, 100), logs.room_part(90.0, 100)), (0.4, 1.0 - 0.9), "whichever is less");
    }

    /// RocksDB's rule for memtables, and another for index tables.
    #[test]
    fn a_flush_is_due_when_enough_waits_or_somebody_asks() {
        let o = CfOptions { min_write_buffer_number_to_merge: 2, max_write_buffer_number: 4, ..CfOptions::default() };
        let of = |waiting, requested, index, without_merging| {
            let queue = FlushQueue { waiting, in_flight: false, requested };
            is_flush_due(queue, full_of(waiting, &o), index, &o, without_merging)
        };
        assert_eq!([0, 1, 2].map(|n| of(n, false, None, false)), [false, false, true]);
        assert_eq!([0, 1].map(|n| of(n, true, None, false)), [false, true], "asked for");
        assert_eq!([0, 1].map(|n| of(n, false, None, true)), [false, true], "without merging");
        let index = |bytes| Some((Triggers { merge: 2, flush_bytes: 100 }, bytes));
        assert_eq!([99, 100].map(|bytes| of(1, false, index(bytes), false)), [false, true]);
        assert_eq!([1, 2].map(|n| of(n, false, index(0), false)), [false, true], "half of those that there may be");
        assert_eq!([0, 1].map(|n| of(n, false, index(0), true)), [false, true]);
        let memory = |index_tables, short, may_stall| MemoryNow { index_tables, short, may_stall };
        let of = |memory, atomic| flushes_without_merging(memory, atomic);
        assert!(!of(memory(false, true, false), false) && of(memory(false, false, false), true), "an atomic flush");
        assert!(!of(memory(true, false, false), true) && of(memory(true, true, false), false), "memory is needed");
        assert!(of(memory(false, false, true), false) && of(memory(true, false, true), false), "writers wait");
    }

    /// Without a flush, the device cannot be what is short: only a new one makes room.
    #[test]
    fn little_room_counts_only_while_a_flush_is_due_or_runs() {
        let (o, flush_pace) = (CfOptions::default(), FlushPace::default());
        let of = |flushes| {
            let schedule = IndexSchedule::new(Triggers { merge: 2, flush_bytes: 100 });
            let queues = IndexQueues { merge: 0, flush_bytes: 60, room: 0.1, behind: false };
            let memtables = FullMemtables { full: 1, most: 100 };
            let index = Some((schedule, queues));
            let f = FamilyNow { memtables, flushes, index, ..now(&o, &flush_pace, TreeLoad::default()) };
            decide(std::iter::once(f), CALM).schedules[0].change.map(|change| change.now.flush_bytes)
        };
        let waiting = FlushQueue { waiting: 1, ..NO_FLUSH };
        assert_eq!(of(waiting), None, "nobody asks for a flush");
        assert_eq!([FlushQueue { requested: true, ..waiting }, FLUSH].map(of), [Some(200); 2]);
    }

    /// In one decision: triggers change, what is due by the new ones is flushed, and writers are paced to it.
    #[test]
    fn what_is_due_by_new_triggers_is_what_writers_are_paced_to() {
        let (o, flush_pace) = (CfOptions::default(), FlushPace::default());
        let schedule = IndexSchedule::new(Triggers { merge: 2, flush_bytes: 100 });
        let of = |merge, load, at| {
            let queues = IndexQueues { merge, flush_bytes: 60, room: 1.0, behind: false };
            let memtables = FullMemtables { full: 1, most: 100 };
            let flushes = FlushQueue { waiting: 1, ..NO_FLUSH };
            let f = FamilyNow { memtables, flushes, index: Some((schedule, queues)), ..now(&o, &flush_pace, load) };
            decide(std::iter::once(f), StoreNow { at, ..CALM })
        };
        let calm = of(2, TreeLoad::default(), 1.0);
        assert!(!calm.paced && calm.schedules.len() == 1 && calm.schedules[0].change.is_none(), "{calm:?}");
        let core = of(4, TreeLoad::default(), 1.0);
        assert!(core.paced && core.flushing == Some(7) && core.awaited, "half of the bytes are enough: {core:?}");
        let one = core.schedules[0];
        assert_eq!((one.id, one.schedule.now()), (7, Triggers { merge: 4, flush_bytes: 50 }));
        assert_eq!(one.change.map(|change| change.now), Some(one.schedule.now()));
        let behind = of(2, TreeLoad { runs: 10, pending_bytes: 0 }, 1.0);
        assert!(behind.behind && !behind.paced, "larger flushes: {behind:?}");
        assert_eq!(behind.schedules[0].schedule.now(), Triggers { merge: 2, flush_bytes: 200 });
    }

    #[test]
    fn the_writer_that_makes_room_seals_before_it_waits_for_what_that_frees() {
        use StallReason::{FastDevice, Memtables, WriteBufferManager};
        let all = |stop| {
            [(false, false), (true, false), (false, true), (true, true)].map(|(a, b)| stop_of_leader(stop, a, b))
        };
        assert_eq!(all(None), [None, None, Some(WriteBufferManager), None]);
        assert_eq!(all(Some(FastDevice)), [Some(FastDevice), None, Some(FastDevice), None]);
        assert_eq!(all(Some(Memtables)), [Some(Memtables); 4]);
    }

    #[test]
    fn little_is_saved_up() {
        assert_eq!(Allowance { rate: 1e6, room: 1e6 }.saved_max(), 5e3);
        assert_eq!(Allowance { rate: 1e6, room: 1600.0 }.saved_max(), 100.0);
    }

    #[test]
    fn who_rests_is_not_flush_bound() {
        let flush_bound = |often, lately, at_work| is_flush_bound(FlushWaits { often, lately }, at_work);
        assert!(flush_bound(true, true, false) && flush_bound(true, false, true));
        assert!(!flush_bound(true, false, false) && !flush_bound(false, true, true));
    }
}
