use std::collections::VecDeque;

use super::*;
use crate::options::CfOptions;
use crate::pacing::decide::{Allowance, FlushQueue, FullMemtables, LogsNow, MemtablesNow, allowance, is_flush_due};
use crate::pacing::flush_pace::{FlushPace, OneFlush};

const GIVEN: Triggers = Triggers { merge: 2, flush_bytes: 32 };

fn queues(merge: usize, flush_bytes: u64) -> IndexQueues {
    IndexQueues { merge, flush_bytes, room: 1.0, behind: false }
}

/// Decides once a second for `seconds` seconds; returns each change.
fn watch(s: &mut IndexSchedule, from: u32, seconds: u32, q: IndexQueues) -> Vec<(u32, Short, usize, u64)> {
    let all = (from..from + seconds).filter_map(|t| Some((t, s.decide(q, f64::from(t))?)));
    all.map(|(t, c)| (t, c.short, c.now.merge, c.now.flush_bytes)).collect()
}

#[test]
fn queues_that_keep_up_change_nothing_for_a_minute() {
    let mut s = IndexSchedule::new(GIVEN);
    assert_eq!(s.now(), GIVEN);
    // A queue as long as the trigger, and 3 batches of tables: neither exceeds its bound.
    assert_eq!(watch(&mut s, 0, 60, queues(3, 96)), []);
    assert_eq!(watch(&mut s, 60, 200, queues(3, 48)), [(60, Short::Nothing, 2, 16)], "bounded");
}

#[test]
fn a_core_that_is_short_gets_fewer_merges_and_more_flushes_up_to_a_bound() {
    let mut s = IndexSchedule::new(GIVEN);
    let changes = watch(&mut s, 0, 30, queues(100, 0));
    let want = [(0, Short::Core, 4, 16), (1, Short::Core, 6, 16), (2, Short::Core, 8, 16)];
    assert_eq!(changes, want);
    assert_eq!(s.decide(queues(12, 0), 31.0), None, "8 tables are merged at a time now: 12 are not too many");
    // Back step by step, while nothing is short.
    let back = watch(&mut s, 32, 1000, queues(0, 0));
    assert_eq!(back.iter().map(|c| c.2).collect::<Vec<_>>(), [6, 4, 2]);
    assert!(back.windows(2).all(|w| w[1].0 - w[0].0 == 60), "{back:?}");
}

#[test]
fn a_device_that_is_short_gets_fewer_and_larger_flushes_up_to_a_bound() {
    let mut s = IndexSchedule::new(Triggers { merge: 5, ..GIVEN });
    let changes = watch(&mut s, 0, 30, queues(1, 1000));
    assert_eq!(changes, [(0, Short::Device, 3, 64), (1, Short::Device, 2, 128)]);
    // The queue is short with the larger trigger.
    assert_eq!(s.decide(queues(1, 300), 31.0), None);
}

/// Without a part of the design: fixed triggers, or levels of fixed size.
#[test]
fn what_may_not_change_stays_as_given() {
    let fixed = Adapts { triggers: false, levels: true };
    let mut s = IndexSchedule::new(GIVEN).adapting(fixed).resumed(4);
    assert_eq!(watch(&mut s, 0, 500, queues(1, 1000)), []);
    assert_eq!((s.now(), s.level_factor()), (GIVEN, 1));
    assert_eq!(watch(&mut s, 500, 100, queues(100, 1000)), []);
    assert_eq!(s.pressure(1.0, 600.0), 1.0, "both queues are too long: writers are slowed");
    let levels_fixed = Adapts { triggers: true, levels: false };
    let mut s = IndexSchedule::new(GIVEN).adapting(levels_fixed).resumed(4);
    assert_eq!(s.now(), GIVEN, "an earlier factor is not used");
    assert_eq!(watch(&mut s, 0, 30, queues(1, 1000)), [(0, Short::Device, 2, 64), (1, Short::Device, 2, 128)]);
    assert_eq!(s.level_factor(), 1);
}

#[test]
fn where_both_are_short_writers_are_slowed_and_nothing_changes() {
    let mut s = IndexSchedule::new(GIVEN);
    assert_eq!(watch(&mut s, 0, 500, queues(100, 1000)), []);
    assert_eq!(s.now(), GIVEN);
    assert_eq!(watch(&mut s, 500, 60, queues(0, 0)), [], "the minute begins when they keep up");
    assert_eq!(watch(&mut s, 560, 1, queues(0, 0)).len(), 1);
}

#[test]
fn a_change_is_given_time_to_work() {
    let mut s = IndexSchedule::new(GIVEN);
    assert!(s.decide(queues(100, 0), 0.0).is_some());
    assert_eq!((s.decide(queues(100, 0), 0.9), s.decide(queues(0, 0), 0.95)), (None, None));
    assert_eq!(s.decide(queues(100, 0), 1.0).map(|c| c.now), Some(Triggers { merge: 6, flush_bytes: 16 }));
}

/// Relieving one resource loads the other: if each decision took effect, the next would undo it.
#[test]
fn a_core_and_the_device_that_are_short_in_turn_are_both_short() {
    let mut s = IndexSchedule::new(GIVEN);
    assert!(s.decide(queues(100, 0), 0.0).is_some());
    let in_turn = |t: u32| if t.is_multiple_of(2) { queues(100, 0) } else { queues(0, 1000) };
    assert!((1..100).all(|t| s.decide(in_turn(t), f64::from(t)).is_none()));
    assert_eq!(s.pressure(1.0, 99.0), 1.0, "writers are slowed");
    let device = (100..110).find_map(|t| Some((t, s.decide(queues(0, 1000), f64::from(t))?)));
    let (t, change) = device.expect("a core is not short any more");
    assert_eq!((t, change.now), (103, Triggers { merge: 2, flush_bytes: 32 }));
}

#[test]
fn bounds_that_are_near_are_a_device_that_is_short() {
    let mut s = IndexSchedule::new(GIVEN);
    let near = |room| IndexQueues { room, ..queues(0, 1) };
    assert_eq!(s.decide(near(ROOM_END), 0.0), None);
    assert_eq!(s.decide(near(0.2), 1.0).map(|c| c.short), Some(Short::Device));
    // While this lasts, nothing counts as idle, whatever the length of the queue.
    assert_eq!(s.decide(near(0.2), 2.0).map(|c| c.level_factor), Some(4));
    assert!((3..200).all(|t| s.decide(near(0.2), f64::from(t)).is_none()));
}

#[test]
fn compactions_that_are_behind_are_a_device_that_is_short() {
    let mut s = IndexSchedule::new(GIVEN);
    let late = IndexQueues { behind: true, ..queues(0, 1) };
    assert_eq!(s.decide(late, 0.0).map(|c| (c.short, c.level_factor)), Some((Short::Device, 2)));
    assert_eq!(s.decide(late, 1.0).map(|c| c.level_factor), Some(4));
    // While this lasts, flushes do not become smaller, although they keep up.
    assert!((2..200).all(|t| s.decide(late, f64::from(t)).is_none()));
    assert_eq!(watch(&mut s, 200, 70, queues(0, 1))[0].1, Short::Nothing);
}

#[test]
fn merges_that_are_off_stay_off() {
    let mut s = IndexSchedule::new(Triggers { merge: 0, ..GIVEN });
    assert_eq!(watch(&mut s, 0, 10, queues(100, 0)), []);
    assert_eq!(watch(&mut s, 10, 10, queues(100, 1000))[0], (10, Short::Device, 0, 64));
    assert_eq!(IndexSchedule::new(Triggers { merge: 1, ..GIVEN }).now().merge, 2, "one is never merged");
}

#[test]
fn no_option_makes_it_fail() {
    for flush_bytes in [0, 1, u64::MAX] {
        let mut s = IndexSchedule::new(Triggers { merge: usize::MAX / 2, flush_bytes });
        for (t, q) in [(0, queues(9, 9)), (100, queues(0, 0)), (200, queues(usize::MAX, u64::MAX))] {
            s.decide(q, f64::from(t));
        }
    }
}

#[test]
fn levels_grow_with_flushes_and_never_shrink() {
    let mut s = IndexSchedule::new(GIVEN);
    let factors = |s: &mut IndexSchedule, from: u32, seconds, q| {
        let all = (from..from + seconds).filter_map(|t| s.decide(q, f64::from(t)));
        all.map(|c| (c.now.flush_bytes, c.level_factor)).collect::<Vec<_>>()
    };
    assert_eq!(s.level_factor(), 1);
    assert_eq!(factors(&mut s, 0, 10, queues(1, 1000)), [(64, 2), (128, 4)], "the device is short");
    assert_eq!(factors(&mut s, 100, 300, queues(0, 0)), [(64, 2), (32, 1), (16, 1)], "nothing is");
    assert_eq!(factors(&mut s, 400, 1, queues(100, 0)), [(16, 1)], "a core is");
    assert_eq!(s.history(), ScheduleHistory { core: 1, device: 2, nothing: 3, last: Some(Short::Core) });
    assert_eq!(s.history().changes(), 6);
    assert_eq!(IndexSchedule::new(Triggers::default()).level_factor(), 1);
}

#[test]
fn writers_feel_the_pace_where_both_are_short_and_near_the_bounds() {
    let rooms = [1.0, 0.5, 0.375, 0.25, 0.1, 0.0, -1.0];
    let near = [0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0];
    for (q, short_of) in [(queues(0, 0), "nothing"), (queues(100, 0), "a core"), (queues(0, 1000), "the device")] {
        let mut s = IndexSchedule::new(GIVEN);
        s.decide(q, 5.0);
        assert_eq!(rooms.map(|room| s.pressure(room, 5.0)), near, "short of {short_of}");
    }
    let mut s = IndexSchedule::new(GIVEN);
    s.decide(queues(100, 1000), 5.0);
    assert_eq!(rooms.map(|room| s.pressure(room, 5.0)), [1.0; 7], "short of both");
    s.decide(queues(0, 1000), 5.5);
    let later = [1.0, 2.0].map(|some| s.pressure(1.0, 5.0 + some * LATELY_SECONDS - 0.1));
    assert_eq!(later, [1.0, 0.0], "both were lately");
}

/// A column family with index tables of 8 MB, each for 100 MB of data. Merges and flushes have one thread each.
struct Model {
    schedule: IndexSchedule,
    flush_pace: FlushPace,
    now: f64,
    /// Full tables, oldest first: the tier, and how many filled tables each stands for.
    full: VecDeque<(u32, f64)>,
    /// MB of data in the active table.
    filled: f64,
    /// The running flush: how many of the oldest tables, and the remaining MB.
    flush: Option<(usize, f64)>,
    /// The running merge: first table, number of tables, and remaining work.
    merge: Option<(usize, usize, f64)>,
    /// When the oldest data began to wait.
    since: f64,
    /// The pace applies in full at all times.
    always: bool,
}

/// Demand and capacity per second.
#[derive(Clone, Copy)]
struct Rates {
    /// MB that writers want to write.
    wish: f64,
    /// Tables of tier 0 whose entries are merged.
    merge: f64,
    /// MB that are flushed.
    flush: f64,
}

/// What a second saw.
#[derive(Debug, Clone, Copy)]
struct Second {
    written: f64,
    memory: f64,
    logs: f64,
    stopped: f64,
    /// The least rate, but for stops.
    slowest: f64,
    change: Option<ScheduleChange>,
}

const TABLE: f64 = 8.0;
const DATA: f64 = 100.0;
const MEMORY_MAX: f64 = 8.0 * 32.0;
const CAPACITY: f64 = 10_000.0;
const STEPS: u32 = 1000;

impl Model {
    fn new() -> Self {
        Self {
            schedule: IndexSchedule::new(GIVEN),
            flush_pace: FlushPace::default(),
            now: 0.0,
            full: VecDeque::new(),
            filled: 0.0,
            flush: None,
            merge: None,
            since: 0.0,
            always: false,
        }
    }

    fn memory(&self) -> f64 {
        self.full.iter().map(|(_, filled)| filled * TABLE).sum()
    }

    /// MB of data in full tables.
    fn waiting(&self) -> f64 {
        self.full.iter().map(|(_, filled)| filled * DATA).sum()
    }

    /// Rows of consecutive tables of one tier that no flush has: first table and number, oldest first.
    fn rows(&self) -> Vec<(usize, usize)> {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        for i in self.flush.map_or(0, |(taken, _)| taken)..self.full.len() {
            match rows.last_mut() {
                Some((from, n)) if self.full[*from].0 == self.full[i].0 => *n += 1,
                _ => rows.push((i, 1)),
            }
        }
        rows
    }

    fn room(&self, logs: f64) -> f64 {
        let memory = self.memory() + self.filled / DATA * TABLE;
        Self::logs(logs).room_part(memory, MEMORY_MAX as usize)
    }

    fn logs(others: f64) -> LogsNow {
        LogsNow { newest: 0, others: others as u64, capacity: CAPACITY as u64, of_device: false }
    }

    fn full_tables(&self) -> FullMemtables {
        FullMemtables::of_index_tables(self.memory() as usize, MEMORY_MAX as usize, TABLE as usize)
    }

    fn rate(&self, logs: f64, due: bool) -> Allowance {
        let (room_of_logs, filled) = (CAPACITY - logs, self.filled);
        let now = MemtablesNow {
            memtables: self.full_tables(),
            flushing: self.flush.is_some() || due,
            flush_pace: &self.flush_pace,
            due: OneFlush { since: self.since, bytes: self.waiting() },
            room: move |more: usize| ((more + 1) as f64 * DATA - filled).min(room_of_logs),
            pressure: if self.always { 1.0 } else { self.schedule.pressure(self.room(logs), self.now) },
        };
        allowance(std::iter::once(now), self.now, false)
    }

    fn second(&mut self, rates: Rates) -> Second {
        let dt = 1.0 / f64::from(STEPS);
        let mut seen = Second { written: 0.0, memory: 0.0, logs: 0.0, stopped: 0.0, slowest: f64::MAX, change: None };
        for _ in 0..STEPS {
            self.now += dt;
            let logs = self.waiting() + self.filled;
            let memory = self.memory();
            let (waiting, requested) = (self.full.len(), Self::logs(logs).is_flush_due());
            let queue = FlushQueue { waiting, in_flight: self.flush.is_some(), requested };
            let index = Some((self.schedule.now(), memory as u64));
            let due = is_flush_due(queue, self.full_tables(), index, &CfOptions::default(), false);
            if memory >= MEMORY_MAX + TABLE || logs >= CAPACITY {
                seen.stopped += dt;
            } else {
                let rate = self.rate(logs, due).rate.min(rates.wish);
                seen.slowest = seen.slowest.min(rate);
                seen.written += rate * dt;
                self.filled += rate * dt;
            }
            if self.filled >= DATA {
                self.filled -= DATA;
                self.full.push_back((0, 1.0));
                self.flush_pace.wrote(rates.wish, 1.0);
                if self.full.len() == 1 {
                    self.since = self.now;
                }
            }
            match &mut self.flush {
                Some((taken, left)) if *left <= rates.flush * dt => {
                    self.full.drain(..*taken);
                    self.merge = self.merge.map(|(from, n, left)| (from - *taken, n, left));
                    self.flush_pace.end(self.now, Some(0.0));
                    (self.flush, self.since) = (None, self.now);
                }
                Some((_, left)) => *left -= rates.flush * dt,
                None if due => {
                    self.flush_pace.begin(self.now, self.waiting());
                    // A merge of tables that the flush takes is useless.
                    (self.flush, self.merge) = (Some((self.full.len(), self.waiting())), None);
                }
                None => {}
            }
            match &mut self.merge {
                Some((from, n, left)) if *left <= rates.merge * dt => {
                    let merged: f64 = self.full.range(*from..*from + *n).map(|t| t.1).sum();
                    let tier = self.full[*from].0 + 1;
                    self.full.drain(*from + 1..*from + *n);
                    self.full[*from] = (tier, merged);
                    self.merge = None;
                }
                Some((.., left)) => *left -= rates.merge * dt,
                None => {
                    let row = self.rows().into_iter().rev().find(|(_, n)| *n >= self.schedule.now().merge);
                    self.merge = row.map(|(from, n)| (from, n, self.full.range(from..from + n).map(|t| t.1).sum()));
                }
            }
            let row = self.rows().into_iter().map(|(_, n)| n).max().unwrap_or(0);
            let room = self.room(self.waiting() + self.filled);
            let queues = IndexQueues { room, ..queues(row, self.memory() as u64) };
            let change = self.schedule.decide(queues, self.now);
            seen.change = change.or(seen.change);
            (seen.memory, seen.logs) = (seen.memory.max(self.memory()), seen.logs.max(logs));
        }
        // Allows for the active table when the memory is full, and for one step.
        assert!(seen.memory <= MEMORY_MAX + TABLE && seen.logs <= CAPACITY + rates.wish * dt, "{seen:?}");
        seen
    }

    fn run(&mut self, seconds: u32, rates: Rates) -> Vec<Second> {
        (0..seconds).map(|_| self.second(rates)).collect()
    }
}

fn mean(seconds: &[Second]) -> f64 {
    seconds.iter().map(|s| s.written).sum::<f64>() / seconds.len() as f64
}

/// Writers demand more than flushes can write, with merges that keep up and merges that do not. They get the flush rate
/// evenly, are not stopped, and the triggers become stable.
#[test]
fn nothing_swings_where_writers_want_more_than_flushes_take_in() {
    for merge in [200.0, 30.0, 4.0, 1.0, 0.0] {
        for wish in [500.0, 1000.0, 3000.0] {
            let mut m = Model::new();
            m.run(60, Rates { wish, merge, flush: 450.0 });
            let seen = m.run(240, Rates { wish, merge, flush: 450.0 });
            let what = format!("merges {merge}, writers {wish}");
            let (all, stopped) = (mean(&seen), seen.iter().map(|s| s.stopped).sum::<f64>());
            assert!(all > 0.97 * 450.0 && stopped == 0.0, "{what}: {all} MB/s, stopped for {stopped} s");
            let means: Vec<f64> = seen.chunks(8).map(mean).collect();
            let swing = means.iter().map(|m| (m / all - 1.0).abs()).fold(0.0, f64::max);
            let changes = seen.iter().filter(|s| s.change.is_some()).count();
            assert!(swing < 0.2 && changes == 0, "{what}: {means:?}, {changes} changes");
        }
    }
}

#[test]
fn writers_who_want_less_than_flushes_take_in_are_free() {
    for merge in [200.0, 30.0, 4.0, 1.0] {
        let mut m = Model::new();
        let seen = m.run(300, Rates { wish: 300.0, merge, flush: 450.0 });
        assert!(seen[1..].iter().all(|s| s.slowest == 300.0 && s.stopped == 0.0), "merges {merge}");
        let changes = seen.iter().filter(|s| s.change.is_some()).count();
        assert!(changes <= 3, "merges {merge}: {changes}");
    }
}

/// A burst that fits into memory is accepted at full speed; the pace alone would spread it over the flush.
#[test]
fn a_burst_that_fits_is_not_slowed() {
    let slowest = |always| {
        let mut m = Model { always, ..Model::new() };
        let rates = |wish| Rates { wish, merge: 200.0, flush: 80.0 };
        let mut slowest = 1.0_f64;
        for _ in 0..5 {
            m.run(30, rates(20.0));
            let burst = m.run(1, rates(800.0));
            slowest = slowest.min(burst[0].slowest / 800.0);
        }
        slowest
    };
    assert_eq!(slowest(false), 1.0);
    assert!(slowest(true) < 0.9, "{}", slowest(true));
}
