//! When full index tables are merged, and when they are flushed (DecouKV, sections 3.5 and 3.7).
//!
//! Index merges take a core and no device; flushes take the slow device. Two queues say which of the two is short:
//!
//! | queue | length | too long | then |
//! |---|---|---|---|
//! | index merge | full tables of one tier in a row | over 1.5 times [`Triggers::merge`] | a core is short |
//! | data flush | how often full tables have [`Triggers::flush_bytes`] | over 3 | the device is short |
//!
//! Tables that are being merged or flushed count. The paper's first queue has all tables that are too small for a
//! flush. With tiers, some of them wait for nothing: one of each tier may rest. So here it is the longest row, which is
//! shorter than the trigger at rest, and as long while merges keep up.
//!
//! | short | merge at | flush at |
//! |---|---|---|
//! | a core | 2 more | half |
//! | the device | 2 fewer | twice |
//! | both | as it is: writers are slowed by what the logs have room for (`flush_pace.rs`) | as it is |
//! | neither, for 60 s | 2 fewer | half |
//!
//! Both are bounded around what the options say. After a change nothing changes for a second: it is to have an effect
//! first.
//!
//! A pure state machine in given times.

use crate::pacing::common::Seconds;

/// Lengths from which on a queue is too long: the paper's, its best for both.
const MERGE_SCORE: f64 = 1.5;
const FLUSH_SCORE: f64 = 3.0;
/// Both queues were short for so long: there is time for more of both kinds of work.
const IDLE_SECONDS: Seconds = 60.0;
/// Time for a change to have an effect. An index merge takes some hundredths of a second.
const SETTLE_SECONDS: Seconds = 1.0;
/// Steps of tables to be merged, and of these at most above what the option says.
const MERGE_STEP: usize = 2;
const MERGE_STEPS: usize = 3;
/// Fewer are not merged.
const MERGE_MIN: usize = 2;
/// Parts and times of the option's bytes that are flushed together.
const FLUSH_BYTES_LESS: u64 = 2;
const FLUSH_BYTES_MORE: u64 = 4;
/// So many flushes of full index tables may be due before writers stop.
const FLUSHES_MAX: usize = 8;

/// When something is done with full index tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Triggers {
    /// So many of a tier in a row become one (the paper's `index_merge_trigger_num`, IMTN); 0: none are merged.
    pub merge: usize,
    /// Those with so much memory are flushed (the paper's `data_flush_trigger_size`, DFTS).
    pub flush_bytes: u64,
}

impl Triggers {
    /// Bytes of memory of full tables, of `size` each, at which writers stop.
    pub fn memory_max(self, size: usize) -> usize {
        (self.flush_bytes as usize).max(size).saturating_mul(FLUSHES_MAX)
    }
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexQueues {
    /// Full tables of one tier in a row: the most.
    pub merge: usize,
    /// Bytes of memory of full tables.
    pub flush_bytes: u64,
}

/// Why the triggers changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// Merges do not keep up.
    Core,
    /// Flushes do not keep up.
    Device,
    /// Both did for a while.
    Nothing,
}

impl Short {
    /// For the info log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Core => "index merges do not keep up",
            Self::Device => "flushes do not keep up",
            Self::Nothing => "both index merges and flushes keep up",
        }
    }
}

/// A change of the triggers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleChange {
    /// Why.
    pub short: Short,
    /// What holds from now on.
    pub now: Triggers,
}

/// See the module's text.
#[derive(Debug, Clone, Copy)]
pub struct IndexSchedule {
    given: Triggers,
    now: Triggers,
    /// When the triggers changed last.
    changed: Seconds,
    /// Since when no queue is too long, as far as is known, and nothing has changed.
    calm: Option<Seconds>,
}

impl IndexSchedule {
    /// As the options say.
    pub fn new(given: Triggers) -> Self {
        let merge = if given.merge == 0 { 0 } else { given.merge.max(MERGE_MIN) };
        let given = Triggers { merge, ..given };
        Self { given, now: given, changed: Seconds::NEG_INFINITY, calm: None }
    }

    /// When something is done now.
    pub fn now(&self) -> Triggers {
        self.now
    }

    /// Looks at the queues; gives what has changed. Whoever asks seldom gets the same a little later.
    pub fn decide(&mut self, queues: IndexQueues, now: Seconds) -> Option<ScheduleChange> {
        let merges = self.now.merge > 0 && queues.merge as f64 > MERGE_SCORE * self.now.merge as f64;
        let flushes = queues.flush_bytes as f64 > FLUSH_SCORE * self.now.flush_bytes as f64;
        let calm = if merges || flushes {
            self.calm = None;
            0.0
        } else {
            now - *self.calm.get_or_insert(now)
        };
        if now - self.changed < SETTLE_SECONDS {
            return None;
        }
        let short = match (merges, flushes) {
            (true, true) => return None,
            (true, false) => Short::Core,
            (false, true) => Short::Device,
            (false, false) if calm >= IDLE_SECONDS => Short::Nothing,
            (false, false) => return None,
        };
        let (fewer, half) = (self.now.merge.saturating_sub(MERGE_STEP), self.now.flush_bytes / 2);
        let (merge, flush_bytes) = match short {
            Short::Core => (self.now.merge.saturating_add(MERGE_STEP), half),
            Short::Device => (fewer, self.now.flush_bytes.saturating_mul(2)),
            Short::Nothing => (fewer, half),
        };
        let most = self.given.merge.saturating_add(MERGE_STEPS * MERGE_STEP);
        let merge = if self.given.merge == 0 { 0 } else { merge.clamp(MERGE_MIN, most) };
        let given = self.given.flush_bytes;
        let flush_bytes = flush_bytes.clamp(given / FLUSH_BYTES_LESS, given.saturating_mul(FLUSH_BYTES_MORE));
        let next = Triggers { merge, flush_bytes };
        self.calm = Some(now);
        if next == self.now {
            return None;
        }
        (self.now, self.changed) = (next, now);
        Some(ScheduleChange { short, now: next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: Triggers = Triggers { merge: 2, flush_bytes: 32 };

    fn queues(merge: usize, flush_bytes: u64) -> IndexQueues {
        IndexQueues { merge, flush_bytes }
    }

    /// Looks once a second for so long; gives each change.
    fn watch(s: &mut IndexSchedule, from: u32, seconds: u32, q: IndexQueues) -> Vec<(u32, Short, usize, u64)> {
        let all = (from..from + seconds).filter_map(|t| Some((t, s.decide(q, f64::from(t))?)));
        all.map(|(t, c)| (t, c.short, c.now.merge, c.now.flush_bytes)).collect()
    }

    #[test]
    fn queues_that_keep_up_change_nothing_for_a_minute() {
        let mut s = IndexSchedule::new(GIVEN);
        assert_eq!(s.now(), GIVEN);
        // As long as the trigger, and 3 lots of tables: neither is over its bound.
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
        // Step by step back, when all is calm.
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
        assert_eq!((s.decide(queues(100, 0), 0.5), s.decide(queues(0, 1000), 0.9)), (None, None));
        assert_eq!(s.decide(queues(0, 1000), 1.0).map(|c| c.now), Some(Triggers { merge: 2, flush_bytes: 32 }));
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
}
