//! When full index tables are merged, and when they are flushed (DecouKV, sections 3.5 and 3.7).
//!
//! Index merges take a core and no device; flushes take the slow device. Two queues show which of the two is the
//! bottleneck ("short"):
//!
//! | queue | length | too long | then |
//! |---|---|---|---|
//! | index merge | full tables of one tier in a row | over 1.5 times [`Triggers::merge`] | a core is short |
//! | data flush | how often full tables have [`Triggers::flush_bytes`] | over 3 | the device is short |
//!
//! The second queue also counts as too long in two more cases. First, if less than a quarter of the memory or of the
//! logs is left while a flush is due or runs: with large triggers or large values writers reach these bounds first.
//! Second, if compactions cannot keep up: then it is they that lack the device, and larger flushes leave them fewer
//! runs and less to write. Without this, flushes that keep up were taken as a sign that nothing is short. Simulated
//! with fills of 100 GB: up to a third more throughput with 4 cores, a tenth or nothing with 8 and 20. If this applied
//! only when a tree already slows writers, the triggers would go up and down each minute at some rates.
//!
//! Tables that are being merged or flushed count. The paper's first queue has all tables that are too small for a
//! flush. With tiers, some of them wait for nothing: one of each tier may stay. So here the queue is the longest row,
//! which is shorter than the trigger at rest, and as long as the trigger while merges keep up.
//!
//! | short | merge at | flush at |
//! |---|---|---|
//! | a core | 2 more | half |
//! | the device | 2 fewer | twice |
//! | both within some seconds | as it is: writers are slowed | as it is |
//! | neither, for 60 s | 2 fewer | half |
//!
//! Both are bounded around what the options say. After a change nothing changes for a second, so that the change has an
//! effect first.
//!
//! **Levels** grow by the same factor as flushes compared with what the options say ([`IndexSchedule::level_factor`];
//! section 3.6): compactions that can wait do so while the device is short, and the ratio of a level to what comes into
//! it stays the same. Levels never hold less than the options say: a level is one sorted run whatever its size, so
//! readers gain nothing from a smaller one.
//!
//! **Writers** are slowed only if both are short, and near the bounds ([`IndexSchedule::pressure`]): if only one is
//! short, the other takes more of the work. The pressure p is 1 if both queues were too long lately: relieving one
//! fills the other, so both would be too long in turn. Otherwise it rises from 0, when half of the memory or of the
//! logs is left, to 1 at a quarter. Writers get what `flush_pace.rs` says, divided by p^2, as below a slowdown trigger
//! (`write_control.rs`): the rate has no cliff, and neither memory nor logs are full before the flush ends.
//!
//! A pure state machine in given times.

use crate::pacing::common::{LATELY_SECONDS, Seconds};

/// A queue is too long above these lengths, which the paper found best (section 3.5).
const MERGE_SCORE: f64 = 1.5;
const FLUSH_SCORE: f64 = 3.0;
/// Both queues were short for this long: there is time for more of both kinds of work. The paper's (section 3.7).
const IDLE_SECONDS: Seconds = 60.0;
/// Time for a change to have an effect. An index merge takes some hundredths of a second. Simulated (44 fills and
/// overwrites of 10 and 100 GB, 2 to 20 cores, a SATA SSD and a disk): half or twice of it changes throughput in three
/// or four of them, by 6 % at most, as another seed does there. Without it triggers go two steps at once: -11 to +4 %,
/// in 31 of them less than 0.5 %, and the longest wait is 70 ms instead of 50.
const SETTLE_SECONDS: Seconds = 1.0;
/// By how many tables the merge trigger changes: the paper's (section 3.7).
const MERGE_STEP: usize = 2;
/// The most steps above what the option says. The paper caps its triggers and does not say where. A read asks each
/// table of a row, and this adds six. Simulated (64 fills and overwrites of 10 and 100 GB, 2 to 20 cores, a SATA SSD
/// and a disk, little and much memory): one or six change nothing, no core is short for so long.
const MERGE_STEPS: usize = 3;
/// Fewer are not merged. Derived: merging one table alone would change nothing.
const MERGE_MIN: usize = 2;
/// The flush trigger is at least the option's bytes over this, and at most the option's bytes times the other. It is
/// halved and doubled, as in the paper (section 3.7). Simulated in the same cases: two steps down change nothing, none
/// -4 to +19 % (less than 0.5 % in 58); three steps up nothing, one -32 to +3 % (-3 % in the median), none -36 to +5 %
/// (-8 %), since smaller flushes give compactions more to write.
const FLUSH_BYTES_LESS: u64 = 2;
const FLUSH_BYTES_MORE: u64 = 4;
/// Parts of the bounds that are left where the slope for writers begins, and where it ends. Flushes begin when half of
/// the logs is left. Simulated: from 0.3 to 0.75, and from 0.125 to 0.5, throughput changes by less than 0.5 %.
const ROOM_BEGIN: f64 = 0.5;
pub(super) const ROOM_END: f64 = 0.25;
/// This many flushes of the option's size may be due before writers stop. Derived: the queue is too long at 3
/// ([`FLUSH_SCORE`]), and once the trigger has been doubled at 6, so that it is doubled twice before memory ends.
/// Simulated in the same cases: half of it 0 to -43 % (-6 % in the median), twice of it, for twice the memory, 0 to
/// +20 % (less than 0.5 % in 48).
const FLUSHES_MAX: usize = 8;

/// When something is done with full index tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Triggers {
    /// This many tables of a tier in a row become one (the paper's `index_merge_trigger_num`, IMTN); 0: none are
    /// merged.
    pub merge: usize,
    /// Full tables with this much memory are flushed (the paper's `data_flush_trigger_size`, DFTS).
    pub flush_bytes: u64,
}

impl Triggers {
    /// Bytes of memory of full tables, of `size` each, at which writers stop.
    pub fn memory_max(self, size: usize) -> usize {
        (self.flush_bytes as usize).max(size).saturating_mul(FLUSHES_MAX)
    }
}

/// What the schedule may change. Each part of the paper's design can be left out (its section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapts {
    /// The triggers; otherwise they stay as given.
    pub triggers: bool,
    /// What levels may hold, with the trigger for flushes; otherwise what the options say.
    pub levels: bool,
}

impl Adapts {
    /// Both.
    pub const ALL: Self = Self { triggers: true, levels: true };
}

impl Default for Adapts {
    fn default() -> Self {
        Self::ALL
    }
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IndexQueues {
    /// Full tables of one tier in a row: the most.
    pub merge: usize,
    /// Bytes of memory of full tables.
    pub flush_bytes: u64,
    /// The part that is left of the memory of tables, or of the logs, whichever is less.
    pub room: f64,
    /// Compactions of this column family do not keep up with what flushes give them
    /// ([`Orders::behind`](super::decide::Orders::behind)): `decide` says so.
    pub behind: bool,
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
    /// For the info log and statistics.
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
    /// The triggers from now on.
    pub now: Triggers,
    /// How many times what the options say levels may hold.
    pub level_factor: u64,
}

/// What changed since the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScheduleHistory {
    /// Changes since a core was short.
    pub core: u64,
    /// Since the device was.
    pub device: u64,
    /// Since nothing was.
    pub nothing: u64,
    /// Why the last one was.
    pub last: Option<Short>,
}

impl ScheduleHistory {
    /// How many there were.
    pub fn changes(&self) -> u64 {
        self.core + self.device + self.nothing
    }

    fn add(&mut self, short: Short) {
        *match short {
            Short::Core => &mut self.core,
            Short::Device => &mut self.device,
            Short::Nothing => &mut self.nothing,
        } += 1;
        self.last = Some(short);
    }
}

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IndexSchedule {
    given: Triggers,
    adapts: Adapts,
    now: Triggers,
    /// When the triggers changed last.
    changed: Seconds,
    /// Since when no queue is too long, as far as is known, and nothing has changed.
    calm: Option<Seconds>,
    /// When the merge queue and the flush queue were too long last.
    long: [Seconds; 2],
    history: ScheduleHistory,
}

impl IndexSchedule {
    /// As the options say; changes both triggers and levels.
    pub fn new(given: Triggers) -> Self {
        let merge = if given.merge == 0 { 0 } else { given.merge.max(MERGE_MIN) };
        let given = Triggers { merge, ..given };
        let (never, history) = (Seconds::NEG_INFINITY, ScheduleHistory::default());
        Self { given, adapts: Adapts::ALL, now: given, changed: never, calm: None, long: [never; 2], history }
    }

    /// The same, which changes only this.
    #[must_use]
    pub fn adapting(self, adapts: Adapts) -> Self {
        Self { adapts, ..self }
    }

    /// For a tree whose levels an earlier opening allowed to hold `factor` times what the options say: begins as if the
    /// device had been short until now. Otherwise each opening would at once run compactions that nobody waits for.
    /// After a while of calm the factor falls step by step, as it would have without a new opening.
    #[must_use]
    pub fn resumed(self, factor: u64) -> Self {
        if self.adapts != Adapts::ALL {
            return self;
        }
        let flush_bytes = self.given.flush_bytes.saturating_mul(factor.clamp(1, FLUSH_BYTES_MORE));
        Self { now: Triggers { flush_bytes, ..self.now }, ..self }
    }

    /// The factors that levels may have, the smallest first.
    pub fn level_factors() -> impl Iterator<Item = u64> {
        std::iter::successors(Some(1), |factor| Some(factor * 2)).take_while(|factor| *factor <= FLUSH_BYTES_MORE)
    }

    /// When something is done now.
    pub fn now(&self) -> Triggers {
        self.now
    }

    /// How many times what the options say levels may hold.
    pub fn level_factor(&self) -> u64 {
        if !self.adapts.levels {
            return 1;
        }
        // Rounded, since halves of odd numbers are a little less.
        let given = self.given.flush_bytes.max(1);
        (self.now.flush_bytes.saturating_add(given / 2) / given).clamp(1, FLUSH_BYTES_MORE)
    }

    /// What changed so far.
    pub fn history(&self) -> ScheduleHistory {
        self.history
    }

    /// How much the pace of flushes slows writers: 0 not at all, 1 fully. `room`: see [`IndexQueues::room`].
    pub fn pressure(&self, room: f64, now: Seconds) -> f64 {
        if self.long.iter().all(|at| now - at < LATELY_SECONDS) {
            return 1.0;
        }
        ((ROOM_BEGIN - room) / (ROOM_BEGIN - ROOM_END)).clamp(0.0, 1.0)
    }

    /// Examines the queues; returns what has changed. Calling it less often gives the same results a little later.
    pub fn decide(&mut self, queues: IndexQueues, now: Seconds) -> Option<ScheduleChange> {
        let merges = self.now.merge > 0 && queues.merge as f64 > MERGE_SCORE * self.now.merge as f64;
        // With large triggers or large values, writers reach the bounds first.
        let flushes = queues.flush_bytes as f64 > FLUSH_SCORE * self.now.flush_bytes as f64
            || queues.room < ROOM_END
            || queues.behind;
        for (at, long) in self.long.iter_mut().zip([merges, flushes]) {
            if long {
                *at = now;
            }
        }
        let calm = if merges || flushes {
            self.calm = None;
            0.0
        } else {
            now - *self.calm.get_or_insert(now)
        };
        if !self.adapts.triggers || now - self.changed < SETTLE_SECONDS {
            return None;
        }
        let [core, device] = self.long.map(|at| now - at < LATELY_SECONDS);
        let short = match (merges, flushes) {
            (true, _) | (_, true) if core && device => return None,
            (true, _) => Short::Core,
            (_, true) => Short::Device,
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
        self.history.add(short);
        Some(ScheduleChange { short, now: next, level_factor: self.level_factor() })
    }
}

#[cfg(test)]
mod tests;
