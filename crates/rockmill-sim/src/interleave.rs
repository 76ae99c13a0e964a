//! Strategies under random interleavings of jobs: started, finished early or late, failed, cut off by a crash.
//!
//! Here a small tree has contents: every table holds versions of keys, with sequence numbers. A [`History`] is a list
//! of steps, so that a failing one can be shrunk by omitting unnecessary steps. After each step, the following must
//! hold:
//!
//! 1. *Order.* For one user key, everything in a shallower place is newer than anything in a deeper one, and tables of
//!    a run below L0 do not overlap.
//! 2. *Contents.* A lookup from the top finds each key's newest version, or nothing if that is a tombstone. If FIFO
//!    compaction has deleted the newest version, the lookup finds nothing, never an older version. Deleting files by
//!    range may show an older one, until the key is written again.
//! 3. *Jobs.* No table belongs to two jobs, and no two running jobs write to the same place. The strategy knows each
//!    job that runs or waits to commit.
//! 4. *Tables.* Only the tree's tables and those that finished jobs will commit exist.
//!
//! At the end of a history:
//!
//! 5. *Rest.* Eventually no more jobs are due, and no table is left that is due because of its age.
//!
//! In addition to the strategy's jobs, there are operations of users: manual compactions, moves of levels
//! (`change_level`), ingestions, and deletions of files by range. Each follows the store's rules. A level moves only
//! when nothing else runs, and no job of the strategy begins before that. Versions do not change between an ingestion's
//! choice of a level and its commit, but jobs can be picked.
//!
//! In half of the histories, the strategy is told of a job's end some time after its version is in place, and other
//! jobs are picked in between. The store does both in one step, but a strategy must not depend on that.
//!
//! Finished jobs commit in the order of the store's [`CommitQueue`]: some wait, and some are dropped because a job that
//! they depend on failed. Waiting outputs are merged with each other (intra-DF); such a merge can end early or late, or
//! fail, like any job.
//!
//! Merges keep what the store keeps without snapshots: the newest version of each key, and a tombstone only if the
//! job's plan says that older data may be below.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rockmill::internals::simulation::{
    CommitQueue, Compaction, CompactionReason, FileMeta, IntraDf, ManualPick, ManualStep, MergeTicket, Moment,
    PendingRun, PurgeQueue, RunningCompactions, Step as Turn, StepKind, Ticket, Version, deepest_place, level_scores,
    pick_intra_df_of, pick_refit, runs_due,
};
use rockmill::{CfOptions, CompactionStyle};
use rockmill_format::edit::FileEntry;
use rockmill_format::key::{InternalKey, ValueType};

use crate::settings::Manner;

/// A strategy: [`rockmill::internals::simulation::pick`], or one that a test has broken.
pub type Pick = fn(&Arc<Version>, &CfOptions, &mut RunningCompactions, &Moment) -> Option<Compaction>;

/// Chooses merges of at least a given number of pending runs: [`pick_intra_df_of`], or one that a test has broken.
pub type PickMerge = fn(&Arc<Version>, &CfOptions, &RunningCompactions, &[PendingRun], usize) -> Option<IntraDf>;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A memtable becomes a table; the number determines its contents.
    Flush(u32),
    /// A job is picked if possible; otherwise a merge of pending runs, if one is due.
    Start,
    /// A merge of pending runs is picked, if two can be merged.
    Merge,
    /// One of the running jobs ends; the number selects it.
    Finish(u8),
    /// One of the running jobs except the oldest ends; jobs that depend on the oldest wait.
    FinishLater(u8),
    /// One of the running jobs fails.
    Fail(u8),
    /// The process dies: running jobs are lost, the committed tree remains.
    Crash,
    /// Another strategy from now on.
    Change(CompactionStyle, Manner),
    /// Writers wait for flushes from now on, or no longer.
    FlushBound(bool),
    /// This many seconds pass. From then on, writers are active if the number is odd, and idle otherwise.
    Wait(u8),
    /// A manual compaction of one level begins; the number selects the level and the keys.
    Manual(u32),
    /// A level moves to another one when running jobs have ended; the number selects the levels.
    Refit(u8),
    /// A table is ingested; the number determines its contents. Its level is chosen immediately, and it becomes live
    /// before anything else changes the tree.
    Ingest(u32),
    /// Files in a key range will be deleted; the number determines the range.
    DeleteFiles(u32),
}

/// A sequence of steps, in a tree with this many levels.
#[derive(Debug, Clone)]
pub struct History {
    /// Levels.
    pub levels: usize,
    /// Options at the beginning.
    pub options: CfOptions,
    /// Steps.
    pub steps: Vec<Step>,
    /// Finished jobs commit immediately, without regard to dependencies: this must fail.
    pub out_of_order: bool,
    /// A committed job is removed from the strategy only with the next step that changes the tree.
    pub lingering: bool,
    /// With leveled compaction only, tables are due when they are a minute old.
    pub aged: bool,
    /// Chooses merges of pending runs.
    pub merge: PickMerge,
}

/// What a history came to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Jobs that committed.
    pub jobs: usize,
    /// Jobs that were finished and had to wait.
    pub waited: usize,
    /// Jobs that were dropped because a job that they depend on failed.
    pub dropped: usize,
    /// Merges of pending runs that were carried out.
    pub merges: usize,
    /// Merges that failed, or were undone because one of their jobs was dropped.
    pub undone: usize,
    /// Levels that moved.
    pub refits: usize,
    /// Tables that were ingested.
    pub ingested: usize,
    /// Tables that were, or should have been, deleted by range.
    pub deleted: usize,
}

/// A strategy: its style and its manner.
pub type Strategy = (CompactionStyle, Manner);

/// (key, sequence number, whether it is a tombstone).
type Entry = (u8, u64, bool);

/// Most jobs at once.
const RUNNING_MAX: usize = 5;

/// Most jobs that a tree may need to come to rest.
const REST_JOBS_MAX: usize = 1000;

impl History {
    /// A random history for a strategy; with `None` strategies change, excluding FIFO.
    pub fn random(seed: u64, strategy: Option<Strategy>, steps: usize) -> Self {
        let style = strategy.map(|s| s.0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut options = CfOptions::default();
        options.compaction_style = style.unwrap_or(CompactionStyle::Level);
        strategy.map_or(Manner::Usual, |s| s.1).set(&mut options);
        options.level_compaction_dynamic_level_bytes = rng.bool();
        options.max_bytes_for_level_base = 400;
        options.max_bytes_for_level_multiplier = 3.0;
        options.target_file_size_base = 60;
        options.max_compaction_bytes = if rng.bool() { 0 } else { 500 };
        options.level0_file_num_compaction_trigger = rng.i32(2..5);
        options.write_buffer_size = 4096;
        options.ttl = if rng.u8(0..4) == 0 { 200 } else { 0 };
        options.periodic_compaction_seconds = [0, 0, 300, 60][rng.usize(0..4)];
        options.compaction_options_universal.allow_trivial_move = rng.bool();
        options.compaction_options_universal.max_size_amplification_percent = [60, 200, 900][rng.usize(0..3)];
        options.compaction_options_universal.size_ratio = [1, 50][rng.usize(0..2)];
        options.compaction_options_fifo.max_table_files_size = 3000;
        options.compaction_options_fifo.allow_compaction = rng.bool();
        // In half of the histories, the oldest job repeatedly takes long.
        let late = rng.bool();
        let fifo = style == Some(CompactionStyle::Fifo);
        // A tree made by another strategy has deeper levels. If tables are deleted because of their age, those of L0 go
        // first, as in RocksDB, although deeper ones may be older.
        let levels = if fifo && rng.bool() { 1 } else { rng.usize(2..7) };
        if fifo && levels > 1 {
            options.ttl = 0;
            options.compaction_style = CompactionStyle::Level;
        }
        let lingering = rng.bool();
        // Leveled compaction gets a tree without base runs, whose tables are due because of their age.
        let aged = style.is_none() && rng.u8(0..3) == 0;
        if aged {
            options.compaction_style = CompactionStyle::Universal;
            Manner::DownForce.set(&mut options);
            (options.level_compaction_dynamic_level_bytes, options.periodic_compaction_seconds) = (false, 0);
        }
        let one = |rng: &mut fastrand::Rng| match rng.u8(0..78) {
            0..=9 if aged && rng.bool() => Step::Wait(rng.u8(..)),
            0..=17 => Step::Flush(rng.u32(..)),
            18..=39 => Step::Start,
            40..=55 if late && rng.u8(0..8) > 0 => Step::FinishLater(rng.u8(..)),
            40..=55 => Step::Finish(rng.u8(..)),
            56..=59 => Step::Fail(rng.u8(..)),
            60 => Step::Crash,
            62 => Step::Merge,
            61 | 63 if style.is_none() => {
                let style = if rng.bool() { CompactionStyle::Universal } else { CompactionStyle::Level };
                Step::Change(style, Manner::ALL[rng.usize(0..3)])
            }
            61 if fifo && levels > 1 => {
                Step::Change(if rng.bool() { CompactionStyle::Level } else { CompactionStyle::Fifo }, Manner::Usual)
            }
            64 => Step::FlushBound(rng.u8(..4) > 0),
            65..=72 if aged => Step::Start, // others make base runs
            65..=68 => Step::Manual(rng.u32(..)),
            69 => Step::Refit(rng.u8(..)),
            70..=72 => Step::Ingest(rng.u32(..)),
            73..=74 => Step::DeleteFiles(rng.u32(..)),
            _ => Step::Wait(rng.u8(..)),
        };
        options.num_levels = levels as i32;
        let steps = (0..steps).map(|_| one(&mut rng)).collect();
        Self { levels, options, steps, out_of_order: false, lingering, aged, merge: pick_intra_df_of }
    }

    /// Runs the history; returns counts of what was done.
    ///
    /// # Errors
    /// The condition that did not hold, and after which step.
    pub fn run(&self, pick: Pick) -> Result<Done, String> {
        self.run_watching(pick, |_, _| Ok(()))
    }

    /// The same. After each step, `watch` checks further conditions, given the tree and the number of jobs that run or
    /// wait.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and of `watch`.
    pub fn run_watching(
        &self,
        pick: Pick,
        mut watch: impl FnMut(&Version, usize) -> Result<(), String>,
    ) -> Result<Done, String> {
        let mut world = World::new(self);
        for (n, step) in self.steps.iter().enumerate() {
            let done = world.step(step, pick).and_then(|()| world.check());
            let done = done.and_then(|()| watch(&world.version, world.cursors.count()));
            done.map_err(|e| format!("step {n}, {step:?}: {e}"))?;
        }
        if !self.out_of_order {
            world.rest(pick).map_err(|e| format!("at the end: {e}"))?;
        }
        Ok(world.done)
    }

    /// Shrinks a failing history: omits smaller and smaller parts as long as it still fails.
    pub fn shrink(&self, pick: Pick) -> Self {
        let mut best = self.clone();
        let mut size = best.steps.len().div_ceil(2);
        while size > 0 {
            let (mut at, mut any) = (0, false);
            while at < best.steps.len() {
                let mut fewer = best.clone();
                fewer.steps.drain(at..(at + size).min(best.steps.len()));
                if fewer.run(pick).is_err() {
                    (best, any) = (fewer, true);
                } else {
                    at += size;
                }
            }
            if !any {
                size /= 2;
            }
        }
        best
    }
}

/// What runs.
enum Work {
    Job(Ticket, Compaction),
    Merge(MergeTicket, IntraDf),
    Delete(Vec<Arc<FileMeta>>),
}

/// An ingestion.
enum Ingestion {
    /// It has a level.
    Placed(Arc<FileMeta>, usize),
    /// Its table is live, but its reservations are not released yet.
    Live,
}

/// What finished jobs are to commit.
struct Pending {
    jobs: Vec<Compaction>,
    tables: Vec<Arc<FileMeta>>,
}

struct World {
    version: Version,
    contents: HashMap<u64, Vec<Entry>>,
    /// Each key's newest version; sequence number 0 if there was none.
    newest: [(u64, bool); 256],
    options: CfOptions,
    cursors: RunningCompactions,
    running: Vec<Work>,
    /// Committed, and not forgotten yet.
    lingering: Vec<(Ticket, Pending)>,
    lingers: bool,
    aged: bool,
    ingestion: Option<(u64, Ingestion)>,
    /// Keys whose newest version was deleted with its file: an older one may be found.
    loose: [bool; 256],
    commits: CommitQueue<Pending>,
    out_of_order: bool,
    merge: PickMerge,
    purge: Arc<PurgeQueue>,
    next_file: u64,
    next_seq: u64,
    now: u64,
    /// Tables were deleted unread.
    lossy: bool,
    done: Done,
}

impl World {
    fn new(h: &History) -> Self {
        Self {
            version: Version::empty(h.levels, rockmill_format::InternalKeyComparator::default()),
            contents: HashMap::new(),
            newest: [(0, false); 256],
            options: h.options.clone(),
            cursors: RunningCompactions::new(),
            running: Vec::new(),
            lingering: Vec::new(),
            lingers: h.lingering,
            aged: h.aged,
            ingestion: None,
            loose: [false; 256],
            commits: CommitQueue::new(),
            out_of_order: h.out_of_order,
            merge: h.merge,
            purge: Arc::default(),
            next_file: 1,
            next_seq: 0,
            now: 1000,
            lossy: false,
            done: Done::default(),
        }
    }

    /// Creates a table that is not live yet.
    fn table(&mut self, run: u64, entries: Vec<Entry>, epoch: u64) -> Arc<FileMeta> {
        let number = self.next_file;
        self.next_file += 1;
        let key = |e: &Entry| {
            let kind = if e.2 { ValueType::Deletion } else { ValueType::Value };
            InternalKey::new(&[e.0], e.1, kind)
        };
        let (first, last) = (&entries[0], &entries[entries.len() - 1]);
        let seqs = || entries.iter().map(|e| e.1);
        let entry = FileEntry {
            number,
            size: 10 * entries.len() as u64,
            smallest: key(first),
            largest: key(last),
            smallest_seqno: seqs().min().unwrap_or(0),
            largest_seqno: seqs().max().unwrap_or(0),
            epoch_number: epoch,
            extra_run: run,
            oldest_ancester_time: self.now,
            file_creation_time: self.now,
            ..FileEntry::default()
        };
        self.contents.insert(number, entries);
        Arc::new(FileMeta::new(entry, Arc::clone(&self.purge)))
    }

    fn sort(&mut self, level: usize) {
        self.version.levels[level].sort(level, &self.version.cmp);
    }

    fn step(&mut self, step: &Step, pick: Pick) -> Result<(), String> {
        let chosen = |n: u8, all: usize| (all > 0).then(|| n as usize % all);
        let changes_nothing = matches!(step, Step::Start | Step::Manual(_) | Step::Wait(_) | Step::FlushBound(_));
        if !changes_nothing {
            self.go_on_with_ingestion();
            self.forget_committed();
        }
        match *step {
            Step::Flush(seed) => self.flush(seed),
            Step::Wait(seconds) => {
                self.now += u64::from(seconds);
                self.cursors.set_writers_at_work(seconds % 2 == 1);
            }
            Step::FlushBound(flush_bound) => self.cursors.set_flush_bound(flush_bound),
            Step::Change(style, manner) => {
                self.options.compaction_style = style;
                manner.set(&mut self.options);
                if self.aged {
                    self.options.periodic_compaction_seconds = if style == CompactionStyle::Level { 60 } else { 0 };
                }
            }
            Step::Start => self.start(pick)?,
            Step::Merge => self.start_merge(2),
            Step::Finish(n) => {
                if let Some(i) = chosen(n, self.running.len()) {
                    self.finish(i);
                }
            }
            Step::FinishLater(n) => {
                if let Some(i) = chosen(n, self.running.len().saturating_sub(1)) {
                    self.finish(i + 1);
                }
            }
            Step::Manual(n) => self.manual(n)?,
            Step::Refit(n) => self.refit(n)?,
            Step::Ingest(seed) => self.ingest(seed),
            Step::DeleteFiles(seed) => self.delete_files(seed),
            Step::Fail(n) => {
                if let Some(i) = chosen(n, self.running.len()) {
                    match self.running.remove(i) {
                        Work::Job(ticket, c) => {
                            self.cursors.finish(ticket.number(), &c);
                            self.commits.failed(ticket);
                        }
                        Work::Delete(files) => self.give_back(&files),
                        Work::Merge(ticket, merge) => {
                            self.cursors.finish_merge(&merge, false);
                            self.commits.merge_failed(ticket);
                            self.done.undone += 1;
                        }
                    }
                    self.take_turns();
                }
            }
            Step::Crash => {
                self.running.clear();
                self.lingering.clear();
                self.ingestion = None;
                self.cursors = RunningCompactions::new();
                self.commits = CommitQueue::new();
                // After reopening, only the MANIFEST's contents are known, and other tables are removed.
                let reopen = |f: &Arc<FileMeta>| Arc::new(FileMeta::new(f.entry.clone(), Arc::clone(&f.purge)));
                for level in &mut self.version.levels {
                    *level = level.iter().map(reopen).collect();
                }
                let live: HashSet<u64> = self.version.files().map(|f| f.number()).collect();
                self.contents.retain(|n, _| live.contains(n));
            }
        }
        Ok(())
    }

    /// A job, or a merge, has done its work.
    fn finish(&mut self, i: usize) {
        match self.running.remove(i) {
            Work::Job(ticket, c) => {
                let tables = self.write(&c);
                let pending = Pending { jobs: vec![c], tables };
                if self.out_of_order {
                    self.commit(&pending);
                    return self.forget(ticket, &pending);
                }
                let number = ticket.number();
                // There is one queue; after a crash, a new one without jobs.
                let known = self.commits.finished(ticket, pending).is_ok();
                debug_assert!(known, "job {number} is not in the queue");
                self.take_turns();
                self.done.waited += usize::from(self.commits.pending().any(|(n, _)| n == number));
                return;
            }
            Work::Merge(ticket, merge) => {
                let tables = self.write(&merge.compaction);
                let join = |parts: Vec<Pending>, tables| Pending {
                    jobs: parts.into_iter().flat_map(|p| p.jobs).collect(),
                    tables,
                };
                let done = self.commits.merged(ticket, tables, join);
                self.cursors.finish_merge(&merge, done.is_ok());
                let gone: Vec<u64> = match done {
                    Ok(()) => {
                        self.done.merges += 1;
                        merge.compaction.input_files().map(|f| f.number()).collect()
                    }
                    Err(tables) => {
                        self.done.undone += 1;
                        tables.iter().map(|f| f.number()).collect()
                    }
                };
                self.contents.retain(|n, _| !gone.contains(n));
            }
            Work::Delete(files) => {
                let gone: Vec<u64> = files.iter().map(|f| f.number()).collect();
                self.version.levels.iter_mut().for_each(|level| level.retain(|f| !gone.contains(&f.number())));
                for (key, seq, _) in gone.iter().filter_map(|n| self.contents.remove(n)).flatten() {
                    let key = usize::from(key);
                    self.loose[key] |= self.newest[key].0 == seq;
                }
                self.give_back(&files);
            }
        }
        self.take_turns();
    }

    /// Runs all jobs that are due; no more steps follow.
    fn rest(&mut self, pick: Pick) -> Result<(), String> {
        self.cursors.set_flush_bound(false);
        self.cursors.set_writers_at_work(false);
        for _ in 0..REST_JOBS_MAX {
            while !self.running.is_empty() || self.ingestion.is_some() || !self.lingering.is_empty() {
                self.go_on_with_ingestion();
                if !self.running.is_empty() {
                    self.finish(0);
                }
                self.forget_committed();
                self.check()?;
            }
            self.start(pick)?;
            if self.running.is_empty() {
                let due = |f: &Arc<FileMeta>| f.entry.file_creation_time + self.options.periodic_compaction_seconds;
                let is_old = |f: &&Arc<FileMeta>| due(f) < self.now;
                if self.options.compaction_classic && level_scores(&self.version, &self.options).needs_compaction() {
                    let levels: Vec<_> = self.version.sorted_runs().map(|p| (p.level, p.run)).collect();
                    return Err(format!("a level is full, and no job takes anything of it: {levels:?}"));
                }
                let ages = self.options.periodic_compaction_seconds > 0;
                let ages = ages && self.options.compaction_style != CompactionStyle::Fifo;
                return match self.version.files().find(|f| ages && is_old(f)) {
                    Some(f) => {
                        let tree: Vec<_> = self.version.sorted_runs().map(|p| (p.level, p.run, p.files)).collect();
                        Err(format!("table {} is due for its age, and no job takes it: {tree:?}", f.number()))
                    }
                    None => Ok(()),
                };
            }
        }
        Err(format!("after {REST_JOBS_MAX} jobs there is one more that is due"))
    }

    /// Releases these files: their job has ended.
    fn give_back(&mut self, files: &[Arc<FileMeta>]) {
        files.iter().for_each(|f| f.being_compacted.store(false, Ordering::Release));
        self.cursors.files_taken();
    }

    /// What follows a commit.
    fn forget(&mut self, ticket: Ticket, p: &Pending) {
        p.jobs.iter().for_each(|c| self.cursors.finish(ticket.number(), c));
        self.commits.committed(ticket);
    }

    fn forget_committed(&mut self) {
        while !self.lingering.is_empty() {
            for (ticket, p) in std::mem::take(&mut self.lingering) {
                self.forget(ticket, &p);
            }
            self.take_turns();
        }
    }

    /// Commits and drops what is due.
    fn take_turns(&mut self) {
        while let Some(turn) = self.commits.turn() {
            match turn {
                Turn::Commit(ticket, p) => {
                    self.commit(&p);
                    match self.lingers {
                        true => self.lingering.push((ticket, p)),
                        false => self.forget(ticket, &p),
                    }
                }
                Turn::Drop(number, p) => {
                    self.done.dropped += p.jobs.len();
                    p.jobs.iter().for_each(|c| self.cursors.finish(number, c));
                    for f in p.tables {
                        self.contents.remove(&f.number());
                    }
                }
            }
        }
    }

    fn flush(&mut self, seed: u32) {
        let mut rng = fastrand::Rng::with_seed(u64::from(seed));
        let (from, width) = (rng.u8(..), [40, 4][rng.usize(0..2)]);
        let mut entries = BTreeMap::new();
        for _ in 0..rng.usize(1..20) {
            self.next_seq += 1;
            let (key, deleted) = (from.saturating_add(rng.u8(0..width)), rng.u8(0..5) == 0);
            entries.insert(key, (self.next_seq, deleted));
            self.newest[usize::from(key)] = (self.next_seq, deleted);
            self.loose[usize::from(key)] = false;
        }
        let entries = entries.into_iter().map(|(k, (s, d))| (k, s, d)).collect();
        let table = self.table(0, entries, self.next_file);
        self.version.levels[0].push(table);
        self.sort(0);
    }

    fn start(&mut self, pick: Pick) -> Result<(), String> {
        if self.running.len() >= RUNNING_MAX || self.is_refitting() {
            return Ok(());
        }
        let version = Arc::new(self.version.clone());
        let moment = self.moment();
        let Some(c) = pick(&version, &self.options, &mut self.cursors, &moment) else {
            self.start_merge(runs_due(&self.options));
            return Ok(());
        };
        self.begin(c)
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now, oldest_snapshot: 0 }
    }

    /// A level moves.
    fn is_refitting(&self) -> bool {
        let is = |c: &Compaction| c.reason == CompactionReason::RefitLevel;
        self.running.iter().any(|w| matches!(w, Work::Job(_, c) if is(c)))
            || self.lingering.iter().any(|(_, p)| p.jobs.iter().any(is))
    }

    /// One step of a manual compaction.
    fn manual(&mut self, n: u32) -> Result<(), String> {
        if self.running.len() >= RUNNING_MAX {
            return Ok(());
        }
        let version = Arc::new(self.version.clone());
        let [level, kind, a, b] = n.to_le_bytes();
        let level = usize::from(level) % version.levels.len();
        let last = version.levels.len() - 1;
        let (kind, output_level) = match (self.options.compaction_style, kind % 4) {
            (CompactionStyle::Universal, _) => (StepKind::Everything, last),
            (CompactionStyle::Fifo, _) => (StepKind::Fifo, 0),
            (CompactionStyle::Level, 0) => (StepKind::ExtraRuns, 0),
            (CompactionStyle::Level, 1) if level > 0 => (StepKind::Range, level),
            (CompactionStyle::Level, _) if level == 0 => {
                (StepKind::Range, level_scores(&version, &self.options).base_level)
            }
            _ => (StepKind::Range, (level + 1).min(last)),
        };
        let step = ManualStep { kind, level, output_level, file_number_limit: u64::MAX, rewrite: false };
        let (begin, end) = ([a], [b]);
        let range = (a < b).then_some((&begin[..], &end[..])).unzip();
        match step.pick(&version, &self.options, &self.cursors, &self.moment(), range.0, range.1) {
            ManualPick::Pick(c, _) | ManualPick::First(c) => self.begin(*c),
            ManualPick::None | ManualPick::Conflict => Ok(()),
        }
    }

    /// Begins when all running jobs have ended; meanwhile, no jobs are picked.
    fn refit(&mut self, n: u8) -> Result<(), String> {
        while !self.running.is_empty() {
            self.finish(0);
            self.forget_committed();
        }
        while self.ingestion.is_some() {
            self.go_on_with_ingestion();
        }
        let version = Arc::new(self.version.clone());
        let levels = 0..version.levels.len();
        let all = levels.clone().flat_map(|from| levels.clone().map(move |to| (from, to)));
        let possible = all.filter_map(|(from, to)| pick_refit(&version, &self.options, from, Some(to)).ok()?);
        let mut possible: Vec<Compaction> = possible.collect();
        if possible.is_empty() {
            return Ok(());
        }
        self.begin(possible.swap_remove(usize::from(n) % possible.len()))
    }

    fn ingest(&mut self, seed: u32) {
        while self.ingestion.is_some() {
            self.go_on_with_ingestion();
        }
        let mut rng = fastrand::Rng::with_seed(u64::from(seed));
        let (from, width) = (rng.u8(..), [40, 4][rng.usize(0..2)]);
        self.next_seq += 1;
        let keys: BTreeSet<u8> = (0..rng.usize(1..8)).map(|_| from.saturating_add(rng.u8(0..width))).collect();
        let entries: Vec<Entry> = keys.into_iter().map(|key| (key, self.next_seq, false)).collect();
        let (start, limit) = (entries[0].0, entries[entries.len() - 1].0);
        let has = |f: &Arc<FileMeta>| self.contents[&f.number()].iter().any(|e| (start..=limit).contains(&e.0));
        let levels = self.version.levels.len();
        let first_overlap = self.version.levels.iter().position(|level| level.iter().any(has)).unwrap_or(levels);
        let base = level_scores(&self.version, &self.options).base_level;
        let level = match self.options.compaction_style {
            CompactionStyle::Fifo => 0,
            _ => deepest_place(&self.version, &self.cursors, base, (&[start], &[limit]), first_overlap, levels).0,
        };
        let table = self.table(0, entries, self.next_file);
        let reserved = self.cursors.reserve(level, &[start], &[limit]);
        self.ingestion = Some((reserved, Ingestion::Placed(table, level)));
    }

    fn go_on_with_ingestion(&mut self) {
        match self.ingestion.take() {
            Some((reserved, Ingestion::Placed(table, level))) => {
                for &(key, seq, deleted) in &self.contents[&table.number()] {
                    self.newest[usize::from(key)] = (seq, deleted);
                    self.loose[usize::from(key)] = false;
                }
                self.version.levels[level].push(table);
                self.sort(level);
                self.done.ingested += 1;
                self.ingestion = Some((reserved, Ingestion::Live));
            }
            Some((reserved, Ingestion::Live)) => self.cursors.unreserve(reserved),
            None => {}
        }
    }

    /// As the store does: whole tables below L0 that nothing else has.
    fn delete_files(&mut self, seed: u32) {
        let [a, b, ..] = seed.to_le_bytes();
        let (from, to) = ([a.min(b)], [a.max(b)]);
        let inside = |f: &&Arc<FileMeta>| f.smallest_user_key() >= &from[..] && f.largest_user_key() <= &to[..];
        let free = |f: &&Arc<FileMeta>| !f.being_compacted.swap(true, Ordering::AcqRel);
        let tables = self.version.levels.iter().skip(1).flat_map(|level| level.iter());
        let files: Vec<_> = tables.filter(inside).filter(free).cloned().collect();
        if !files.is_empty() {
            self.cursors.files_taken();
            self.done.deleted += files.len();
            self.running.push(Work::Delete(files));
        }
    }

    /// A job that was picked.
    fn begin(&mut self, c: Compaction) -> Result<(), String> {
        let deleted = self.running.iter().filter_map(|w| match w {
            Work::Delete(files) => Some(files),
            Work::Job(..) | Work::Merge(..) => None,
        });
        let deleted: HashSet<u64> = deleted.flatten().map(|f| f.number()).collect();
        let running = self.running.iter().filter_map(|w| match w {
            Work::Job(_, c) => Some((c, c.output_run)),
            Work::Merge(..) | Work::Delete(_) => None,
        });
        // Several merged jobs all go into one run.
        let pending = self.commits.pending().flat_map(|(_, p)| {
            let run = p.tables.first().map(|f| f.entry.extra_run);
            p.jobs.iter().map(move |c| (c, run.filter(|_| !c.trivial_move).unwrap_or(c.output_run)))
        });
        let busy: Vec<(&Compaction, u64)> = running.chain(pending).collect();
        let taken: HashSet<u64> = busy.iter().flat_map(|(c, _)| c.input_files()).map(|f| f.number()).collect();
        if let Some(f) = c.input_files().find(|f| taken.contains(&f.number()) || deleted.contains(&f.number())) {
            return Err(format!("table {} is in the hands of two", f.number()));
        }
        let range = c.user_key_range().ok_or("a job without tables")?;
        let crosses = |(r, run): &&(&Compaction, u64)| {
            r.user_key_range().is_some_and(|other| range.0 <= other.1 && range.1 >= other.0)
                && (r.output_level, *run) == (c.output_level, c.output_run)
                && c.output_level > 0
        };
        if let Some((r, _)) = busy.iter().find(crosses) {
            return Err(format!("two jobs write to {range:?} of level {}: {r:?} and {c:?}", c.output_level));
        }
        let issued = self.cursors.start(&c);
        self.running.push(Work::Job(self.commits.issue(issued), c));
        Ok(())
    }

    /// Starts a merge of at least `due` pending runs, if there is one.
    fn start_merge(&mut self, due: usize) {
        if self.running.len() >= RUNNING_MAX || self.out_of_order {
            return;
        }
        let run = |(number, depends_on, p): (u64, &[u64], &Pending)| {
            let first = p.tables.first().filter(|f| f.entry.extra_run > 0)?;
            Some(PendingRun {
                number,
                depends_on: depends_on.to_vec(),
                inputs: p.jobs.iter().flat_map(|c| c.inputs.iter().cloned()).collect(),
                level: p.jobs.first().filter(|c| !c.trivial_move)?.output_level,
                run: first.entry.extra_run,
                tables: p.tables.clone(),
            })
        };
        let pending: Vec<PendingRun> = self.commits.waiting().filter_map(run).collect();
        let version = Arc::new(self.version.clone());
        let Some(mut merge) = (self.merge)(&version, &self.options, &self.cursors, &pending, due) else { return };
        let Some(ticket) = self.commits.begin_merge(&merge.numbers) else { return };
        self.cursors.start_merge(&mut merge);
        self.running.push(Work::Merge(ticket, merge));
    }

    /// A job's output; nothing if tables are moved or deleted.
    fn write(&mut self, c: &Compaction) -> Vec<Arc<FileMeta>> {
        if c.trivial_move || c.deletion {
            return Vec::new();
        }
        let epoch = c.input_files().map(|f| f.entry.epoch_number).min().unwrap_or(1);
        let mut newest: BTreeMap<u8, Entry> = BTreeMap::new();
        for &e in c.input_files().filter_map(|f| self.contents.get(&f.number())).flatten() {
            let slot = newest.entry(e.0).or_insert(e);
            if e.1 > slot.1 {
                *slot = e;
            }
        }
        // According to the job's plan: at the bottom, or if no run with older data had the key when the job was picked.
        let knows = c.output_level > 0 && !c.is_intra_df();
        let older = c.older_runs();
        let has =
            |f: &Arc<FileMeta>, key: u8| f.smallest_user_key() <= &[key][..] && f.largest_user_key() >= &[key][..];
        let may_be_below = |key: u8| !knows || older.iter().flatten().any(|f| has(f, key));
        let survives = |e: &Entry| !e.2 || (!c.bottommost && may_be_below(e.0));
        let out: Vec<Entry> = newest.into_values().filter(survives).collect();
        let at_once = if c.output_level == 0 { out.len().max(1) } else { 6 };
        out.chunks(at_once).map(|part| self.table(c.output_run, part.to_vec(), epoch)).collect()
    }

    fn commit(&mut self, p: &Pending) {
        self.done.jobs += p.jobs.len();
        for c in &p.jobs {
            self.done.refits += usize::from(c.reason == CompactionReason::RefitLevel);
            let numbers: Vec<u64> = c.input_files().map(|f| f.number()).collect();
            for (level, _) in &c.inputs {
                self.version.levels[*level].retain(|f| !numbers.contains(&f.number()));
            }
            self.lossy |= c.deletion;
            match c.trivial_move {
                true => {
                    self.version.levels[c.output_level].extend(c.input_files().map(|f| crate::tree::moved(f, c)));
                    self.sort(c.output_level);
                }
                false => self.contents.retain(|n, _| !numbers.contains(n)),
            }
        }
        if let Some(level) = p.jobs.first().map(|c| c.output_level) {
            self.version.levels[level].extend(p.tables.iter().cloned());
            self.sort(level);
        }
    }

    fn check(&self) -> Result<(), String> {
        // For each key: the result of a lookup, and the last version on the way down; 0 if there is none.
        let mut found = [(0u64, false); 256];
        let mut shallower = [0u64; 256];
        for (level, files) in self.version.levels.iter().enumerate() {
            for pair in files.runs().filter(|_| level > 0).flat_map(|run| run.windows(2)) {
                let (a, b) = (pair[0].entry.largest.as_bytes(), pair[1].entry.smallest.as_bytes());
                if self.version.cmp.compare(a, b).is_ge() {
                    return Err(format!("tables overlap in level {level}: {pair:?}"));
                }
            }
            for f in files {
                for &(key, seq, deleted) in self.contents.get(&f.number()).into_iter().flatten() {
                    let at = usize::from(key);
                    if (1..=seq).contains(&shallower[at]) {
                        return Err(format!("key {key}@{seq} of level {level} is newer than what is above it"));
                    }
                    shallower[at] = seq;
                    if found[at].0 == 0 {
                        found[at] = (seq, deleted);
                    }
                }
            }
        }
        let mut tables: HashSet<u64> = self.version.files().map(|f| f.number()).collect();
        tables.extend(self.commits.pending().flat_map(|(_, p)| &p.tables).map(|f| f.number()));
        if let Some((_, Ingestion::Placed(table, _))) = &self.ingestion {
            tables.insert(table.number());
        }
        let waiting = self.commits.pending().map(|(_, p)| p.jobs.len()).sum::<usize>();
        let lingering = self.lingering.iter().map(|(_, p)| p.jobs.len()).sum::<usize>();
        let running = self.running.iter().filter(|w| !matches!(w, Work::Delete(_))).count();
        let jobs = running + waiting + lingering + usize::from(self.ingestion.is_some());
        if jobs != self.cursors.count() {
            return Err(format!("the strategy knows of {} jobs, and there are {jobs}", self.cursors.count()));
        }
        if let Some(n) = self.contents.keys().find(|n| !tables.contains(n)) {
            return Err(format!("table {n} is in nobody's hands"));
        }
        if let Some(n) = tables.iter().find(|n| !self.contents.contains_key(n)) {
            return Err(format!("table {n} is gone"));
        }
        for (key, (newest, found)) in self.newest.iter().zip(&found).enumerate() {
            // Nothing is found if the key was deleted, or lost with tables that were deleted unread.
            let older = self.loose[key] && found.0 < newest.0;
            let ok = found == newest || older || (found.0 == 0 && (newest.1 || self.lossy));
            if !ok {
                return Err(format!("key {key}: {newest:?} was written last, {found:?} is found"));
            }
        }
        Ok(())
    }
}
