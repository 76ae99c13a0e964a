//! From what is observed to orders: what slows writers now, and what flushes, compactions and reads get of the device.
//!
//! Pure functions. The store calls [`decide`] whenever the tree or the memtables change, and carries out the orders
//! (`db/write/pressure.rs`). How one write waits between two changes is in `write_control.rs`. Some answers change with
//! time alone, and are asked for when they are needed:
//!
//! | function | asked |
//! |---|---|
//! | [`stop`] | by a writer that waits, each time that it looks |
//! | [`allowance`] | before each sleep of a writer, while a flush is in flight |
//! | [`is_flush_bound`] | by a compaction thread, for each job |
//! | `read_protection.rs`, `left_to_jobs` | by each job, before each piece; tables are there, which know no options |
//!
//! The simulator calls them, too. What jobs leave to reads under these orders is simulated in the tests of
//! `read_protection.rs`.

use std::ops::Deref;

use super::common::{BytesPerSecond, Seconds};
use super::flush_bound::FlushWaits;
use super::flush_pace::{FlushPace, OneFlush};
use super::write_control::{StallReason, TreeLoad, WriteControl, write_control, write_stop};
use crate::options::CfOptions;

/// A column family as it is now.
#[derive(Debug, Clone)]
pub struct FamilyNow<'a, O> {
    /// Its id.
    pub id: u32,
    /// Its options.
    pub options: O,
    /// What of its tree slows writers.
    pub load: TreeLoad,
    /// Memtables that are full, and how many there may be.
    pub memtables: FullMemtables,
    /// They are being flushed, or are about to be.
    pub flushing: bool,
    /// How long its flushes take.
    pub flush_pace: &'a FlushPace,
}

/// Memtables that are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullMemtables {
    /// So many are.
    pub full: usize,
    /// How many there may be, with the one that is filled.
    pub most: usize,
}

/// What logs hold that is in no table, where that is bounded: values stay in them until they are flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsNow {
    /// Bytes of the log in use.
    pub newest: u64,
    /// Bytes of those before it.
    pub others: u64,
    /// Bytes of all at most.
    pub capacity: u64,
}

impl LogsNow {
    /// Logs that nothing bounds.
    pub const UNBOUNDED: Self = Self { newest: 0, others: 0, capacity: u64::MAX };

    /// Bytes that still fit.
    pub fn room(self) -> u64 {
        self.capacity.saturating_sub(self.newest.saturating_add(self.others))
    }

    /// Length of the log in use from which on the oldest are flushed: one half is filled while the other is emptied.
    pub fn newest_to_flush(self) -> u64 {
        (self.capacity / 2).saturating_sub(self.others)
    }

    /// Length of the log in use from which on writers wait.
    pub fn newest_to_stop(self) -> u64 {
        self.capacity.saturating_sub(self.others)
    }
}

/// What holds until the tree or the memtables change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Orders {
    /// How the tree that is worst slows writers.
    pub tree: WriteControl,
    /// Whose tree that is; it means nothing where the pressure is 0.
    pub cause: u32,
    /// Why writers must wait, if they must, and for which column family.
    pub stop: Option<(u32, StallReason)>,
    /// Compactions are to speed up (RocksDB's `NeedSpeedupCompaction`), and writes of low priority wait.
    pub behind: bool,
    /// The first column family with a flush in flight, or due.
    pub flushing: Option<u32>,
    /// There is one: writers are paced to it.
    pub paced: bool,
    /// Writers wait for something that flushes or compactions do: reads leave them
    /// more of the device then (`read_protection.rs`).
    pub awaited: bool,
    /// What compactions leave of the device to a flush that writers wait for, or would if one more memtable were full:
    /// 1 all, 0 nothing, as where there is no such flush.
    pub flush_first: f64,
}

impl Orders {
    /// The tree slows writers.
    pub fn delayed(&self) -> bool {
        self.tree.pressure > 0.0
    }
}

/// True where a column family's compactions are behind ([`Orders::behind`]).
pub fn is_behind(load: TreeLoad, options: &CfOptions) -> bool {
    let control = write_control(load, options);
    !options.disable_auto_compactions && (control.behind || control.pressure > 0.0)
}

/// See the module's text. `failed`: the database takes no writes because of a background error.
pub fn decide<'a, O: Deref<Target = CfOptions>>(
    families: impl Iterator<Item = FamilyNow<'a, O>> + Clone,
    logs: LogsNow,
    failed: bool,
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
    let (mut stop, mut flushing, mut first) = (None, None, 0.0_f64);
    for f in families {
        stop = stop.or_else(|| stop_of(&f, logs));
        flushing = flushing.or(f.flushing.then_some(f.id));
        first = first.max(flush_first(&f, logs, behind, tree.pressure));
    }
    Orders {
        tree,
        cause,
        stop,
        behind,
        flushing,
        paced: flushing.is_some() && !failed,
        awaited: flushing.is_some() || stop.is_some(),
        flush_first: if failed { 0.0 } else { first },
    }
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
        return Some((f.id, StallReason::FastDevice));
    }
    Some((f.id, write_stop(f.load, &f.options, f.memtables)?))
}

/// The first column family with a flush in flight, or due.
pub fn flushing<'a, O>(mut families: impl Iterator<Item = FamilyNow<'a, O>>) -> Option<u32> {
    families.find(|f| f.flushing).map(|f| f.id)
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
    /// Where none is in flight, the one that is due.
    pub due: OneFlush,
    /// Bytes that writers can write until the memtable that is filled is full, and so many more are.
    pub room: R,
    /// How much of the limit writers feel: 1 all of it, 0 nothing. Less than 1 only for index tables.
    pub pressure: f64,
}

/// What writers may write at a moment, so that memtables are full when the flush in flight ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    /// What they get; infinite where they are free.
    pub rate: BytesPerSecond,
    /// Bytes until they stop.
    pub room: f64,
}

impl Allowance {
    /// No flush is in flight.
    pub const FREE: Self = Self { rate: f64::INFINITY, room: f64::INFINITY };
}

/// What the column family allows that slows writers most. `failed`: as for [`decide`].
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

/// Where less than what logs may hold over this is left, a flush goes before compactions. Derived: it is where writers
/// feel all of the limit that the flush sets them (`ROOM_END` in `index_tables.rs`). Not measured by itself.
const LOGS_LEFT_PART: u64 = 4;

/// Whether jobs of DF-compaction are to write little before they are to be many: writers wait for flushes, and are at
/// work, or a job or a flush is. Never where all rest: what was put off is due then.
pub fn is_flush_bound(waits: FlushWaits, at_work: bool) -> bool {
    waits.often && (waits.lately || at_work)
}

fn flush_first<O: Deref<Target = CfOptions>>(f: &FamilyNow<'_, O>, logs: LogsNow, behind: bool, pressure: f64) -> f64 {
    let writers_wait = f.memtables.full + 1 >= f.memtables.most || logs.room() < logs.capacity / LOGS_LEFT_PART;
    if f.flushing && writers_wait { f.flush_pace.priority(behind, pressure) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now<'a>(options: &'a CfOptions, flush_pace: &'a FlushPace, load: TreeLoad) -> FamilyNow<'a, &'a CfOptions> {
        FamilyNow { id: 7, options, load, memtables: full_of(0, options), flushing: false, flush_pace }
    }

    fn full_of(full: usize, options: &CfOptions) -> FullMemtables {
        FullMemtables { full, most: options.max_write_buffer_number as usize }
    }

    #[test]
    fn compactions_that_are_behind_leave_the_device_to_flushes_that_keep_it_busy() {
        let (o, mut flush_pace) = (CfOptions::default(), FlushPace::default());
        assert_eq!(
            flush_first(&now(&o, &flush_pace, TreeLoad::default()), LogsNow::UNBOUNDED, false, 0.0),
            0.0,
            "there is no flush"
        );
        let full = |flush_pace: &FlushPace, o: &CfOptions, behind, pressure| {
            let f = FamilyNow { memtables: full_of(1, o), flushing: true, ..now(o, flush_pace, TreeLoad::default()) };
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
            decide(families, LogsNow::UNBOUNDED, false)
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
        let full = FamilyNow { memtables: full_of(2, &o), flushing: true, ..now(&o, &flush_pace, TreeLoad::default()) };
        let of = |failed| decide(std::iter::once(full.clone()), LogsNow::UNBOUNDED, failed);
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
            let logs = LogsNow { newest: bytes, others: 0, capacity: 100 };
            decide(std::iter::once(now(&o, &flush_pace, TreeLoad::default())), logs, false).stop
        };
        assert_eq!([of(0), of(99)], [None, None]);
        assert_eq!([of(100), of(170)], [Some((7, StallReason::FastDevice)); 2]);
        let logs = LogsNow { newest: 50, others: 10, capacity: 100 };
        assert_eq!((logs.room(), logs.newest_to_flush(), logs.newest_to_stop()), (40, 40, 90));
    }

    #[test]
    fn who_rests_is_not_flush_bound() {
        let flush_bound = |often, lately, at_work| is_flush_bound(FlushWaits { often, lately }, at_work);
        assert!(flush_bound(true, true, false) && flush_bound(true, false, true));
        assert!(!flush_bound(true, false, false) && !flush_bound(false, true, true));
    }
}
