//! Background work: flushes, compactions, in which order they become live, and recovery from errors.
//!
//! | file | what happens there |
//! |---|---|
//! | `threads.rs` | the threads: what they wait for, and when they end |
//! | `flush.rs` | which memtables become tables together, the tables, their commit |
//! | `index_merge.rs` | index tables that become one before they are flushed |
//! | `compact.rs` | which compaction is next, its run, and its work |
//! | `elsewhere.rs` | compactions that another machine does |
//! | `host.rs` | what a job runs with, and the removal of what does not commit |
//! | `ordered_commit.rs` | when what a compaction wrote becomes live |
//! | `manual.rs`, `refit.rs` | what users ask for: `flush`, `compact_range`, levels that move |
//! | `extra_runs.rs` | extra runs made for tests |
//! | `error_recovery.rs` | background errors, and how the store resumes |
//! | `timer.rs` | what is done now and then |

pub(crate) mod compact;
pub(crate) mod elsewhere;
pub(crate) mod error_recovery;
#[cfg(feature = "internals")]
pub(crate) mod extra_runs;
pub(crate) mod flush;
pub(crate) mod host;
pub(crate) mod index_merge;
pub(crate) mod manual;
pub(crate) mod ordered_commit;
pub(crate) mod refit;
pub(crate) mod threads;
pub(crate) mod timer;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::key::InternalKey;

use crate::compaction::commit::CommitQueue;
use crate::compaction::strategy::RunningCompactions;
use crate::compaction::strategy::aging::{Aging, aging};
use crate::compaction::strategy::score::{LevelScores, level_scores};
use crate::db::{CfState, State};
use crate::options::CfOptions;
use crate::pacing::common::Seconds;
use crate::pacing::index_tables::IndexSchedule;
use crate::pacing::lull::Lull;
use crate::sync::atomic::AtomicBool;
use crate::version::Version;
use ordered_commit::Pending;
use threads::Worker;

/// What jobs have under the database's lock.
#[derive(Default)]
pub(crate) struct Jobs {
    running_flushes: usize,
    /// Flush threads that have nothing to do. They look for work whenever there may be some.
    idle_flush_threads: usize,
    /// The column family that was the last to get an index merge.
    merged_last: u32,
    running_compactions: usize,
    /// Compactions that began and are not live yet, in the order of their commits, by column family.
    commits: HashMap<u32, CommitQueue<Pending>>,
    /// Manual compactions during which no automatic ones may run.
    exclusive_manual: usize,
    /// How many reasons there are not to begin automatic compactions: `pause_background_work`, levels that move.
    paused: usize,
    /// Background threads that run.
    threads: BTreeSet<Worker>,
    /// How many wait until nothing is due: for them writers rest.
    awaiting_rest: usize,
    /// Whether a column family was found to have no work since then, so that the waiters must be notified.
    rest_came: bool,
    /// See [`Moment::oldest_snapshot`](crate::compaction::strategy::aging::Moment).
    oldest_snapshot: SequenceNumber,
}

impl Jobs {
    /// For a database that is being opened. With `reproducible` it is paused by the option itself until
    /// `continue_background_work`.
    pub fn new(reproducible: bool) -> Self {
        Self { paused: usize::from(reproducible), ..Self::default() }
    }

    /// How many flushes run.
    pub fn running_flushes(&self) -> usize {
        self.running_flushes
    }

    /// How many compactions run, and other changes of tables.
    pub fn running_compactions(&self) -> usize {
        self.running_compactions
    }

    /// Tables are added or removed, but not by a compaction. Callers that move whole levels and need that no compaction
    /// runs wait for this, too.
    pub fn begin_table_change(&mut self) {
        self.running_compactions += 1;
    }

    /// It is over; `job_finished` must still be signalled.
    pub fn end_table_change(&mut self) {
        self.running_compactions -= 1;
    }

    fn idle(&self) -> bool {
        (self.running_flushes, self.running_compactions) == (0, 0)
    }
}

/// Whether the tombstones are counted of the tables that existed when the database was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weighed {
    NotYet,
    /// A thread opens the tables. No compaction begins meanwhile.
    Now,
    Done,
}

/// What jobs have of a column family: those that run, and what is due.
pub(crate) struct FamilyJobs {
    running: RunningCompactions,
    scores: LevelScores,
    /// When tables are due for another reason than the tree's shape.
    aging: Aging,
    /// Something is due but no job for it was found: the search is not repeated until the tree changes.
    aging_blocked: bool,
    /// The present tree was searched and no job was found: with universal compaction, a score of 1 need not mean that
    /// there is one.
    nothing_found: bool,
    weighed: Weighed,
    /// When it was flushed: whether its writers rest.
    lull: Lull,
    /// Somebody waits for the flush that runs, or that ran last.
    flush_awaited: Arc<AtomicBool>,
}

impl FamilyJobs {
    /// For a column family without jobs.
    pub fn new(version: &Arc<Version>, options: &CfOptions) -> Self {
        Self {
            running: RunningCompactions::new(),
            scores: level_scores(version, options),
            aging: aging(version, options, 0),
            aging_blocked: false,
            nothing_found: false,
            weighed: Weighed::NotYet,
            lull: Lull::default(),
            flush_awaited: Arc::default(),
        }
    }

    /// What compactions that run read and write, for those who only look.
    pub fn running(&self) -> &RunningCompactions {
        &self.running
    }

    /// A flush begins.
    pub fn flushes(&mut self, now: Seconds) {
        self.lull.flushes(now);
    }

    /// From when on a pause of the writers is due to merge extra runs, if there are any and it has not come.
    fn rest_due(&self, version: &Version, now: Seconds) -> Option<Seconds> {
        (version.has_extra_runs() && !self.lull.rests(now)).then(|| self.lull.rests_from())
    }

    /// How far the levels are from their shape.
    pub fn scores(&self) -> &LevelScores {
        &self.scores
    }

    /// How new the oldest snapshot must be for another table of the deepest level to become due.
    pub fn threshold(&self) -> SequenceNumber {
        self.aging.threshold
    }

    /// Where the next compaction of a level begins, as the MANIFEST says.
    pub fn set_cursor(&mut self, level: usize, key: InternalKey) {
        self.running.set_cursor(level, key);
    }

    /// Reserves keys of a level for a file that will be added there. Returns the number for [`Self::unreserve`].
    pub fn reserve(&mut self, level: usize, smallest: &[u8], largest: &[u8]) -> u64 {
        self.running.reserve(level, smallest, largest)
    }

    /// Ends a reservation: the file was added, or will not be.
    pub fn unreserve(&mut self, number: u64) {
        self.running.unreserve(number);
    }

    /// Called when tables were taken from compactions, or given back to them.
    pub fn files_taken(&mut self) {
        self.running.files_taken();
    }
}

impl State {
    /// Computes again what is due in a column family, if it still exists.
    pub fn rescore(&mut self, id: u32) {
        if let (jobs, Some(c)) = self.jobs_and_family(id) {
            c.rescore(jobs.oldest_snapshot);
        }
    }

    /// The oldest snapshot is a newer one: whether tables at the bottom are due. `None` where it was known.
    pub fn raise_oldest_snapshot(&mut self, oldest: SequenceNumber) -> Option<bool> {
        if oldest <= self.jobs().oldest_snapshot {
            return None;
        }
        self.jobs_mut().oldest_snapshot = oldest;
        self.families_mut().for_each(|c| c.look_at_ages(oldest));
        Some(self.families().any(|c| c.jobs().aging.bottommost_due))
    }
}

impl CfState {
    /// Recomputes what is due, after a change of the version, the options, the running jobs or the sizes of levels. The
    /// scores determine how fast writers may go, so the caller must also call `update_pressure`.
    pub fn rescore(&mut self, oldest_snapshot: SequenceNumber) {
        let (level_factor, options) = (self.front().level_factor(), self.options());
        let (jobs, version) = self.jobs_and_version();
        jobs.running.set_level_factor(level_factor);
        jobs.scores = jobs.running.level_scores(version, &options);
        self.look_at_ages(oldest_snapshot);
    }

    /// Called when a database is opened. If levels may hold more than the options say, they keep doing so, with the
    /// smallest factor at which the least is to be compacted.
    pub fn resume_levels(&mut self) {
        let Some(schedule) = self.front().schedule_at_open() else { return };
        let options = self.options();
        let (jobs, version) = self.jobs_and_version();
        let factor = IndexSchedule::level_factors().min_by_key(|factor| {
            jobs.running.set_level_factor(*factor);
            jobs.running.level_scores(version, &options).pending_bytes
        });
        self.front().set_schedule(schedule.resumed(factor.unwrap_or(1)));
    }

    /// Computes anew which tables are due for another reason than the tree's shape.
    fn look_at_ages(&mut self, oldest_snapshot: SequenceNumber) {
        let options = self.options();
        let (jobs, version) = self.jobs_and_version();
        jobs.aging = aging(version, &options, oldest_snapshot);
        (jobs.aging_blocked, jobs.nothing_found) = (false, false);
    }

    /// True if a table is due because of its age or a released snapshot, and a job for it may be found.
    fn is_aging_due(&self, now: u64) -> bool {
        !self.jobs().aging_blocked && self.jobs().aging.is_due(now)
    }
}
