//! Strategies: they choose the next job from the shape of the tree and the running jobs. They are pure functions over
//! metadata without I/O, so that they can be tested and simulated at any scale.
//!
//! Every job chosen here keeps this invariant: for one user key, everything in a shallower place is newer than anything
//! in a deeper one. It follows from three rules:
//!
//! 1. *Clean cuts.* Neighbours in a sorted level that share a boundary user key are taken together, so that no older
//!    version of a key stays behind in the level while a newer one moves down.
//! 2. *Closed L0 sets.* An L0 file is compacted down with every L0 file that overlaps it (and those that overlap
//!    these), newer and older.
//! 3. *No crossing outputs.* A job's key range does not touch that of a running job with the same output level, nor
//!    that of a level that moves past it (`refit.rs`), and no file is input to two jobs.

pub mod aging;
mod classic;
pub mod df;
mod extra_runs;
pub mod fifo;
mod inputs;
pub mod intra;
pub mod leveled;
pub mod manual;
mod order;
mod paths;
mod priority;
pub mod refit;
pub mod score;
pub mod tiered;
mod tree_index;
mod whole_tables;

#[cfg(test)]
pub(crate) mod testing;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::InternalKey;

use std::sync::Arc;

use super::Compaction;
use crate::event_listener::CompactionReason;
use crate::options::{CfOptions, CompactionStyle};
use crate::sync::atomic::Ordering as Atomic;
use crate::version::Version;
use aging::Moment;
use inputs::Picker;
use score::LevelScores;
use tree_index::{ByRatio, LevelSums, OverlapBelow, TreeIndex};

pub(crate) use inputs::files_within;
#[cfg(feature = "internals")]
pub(crate) use inputs::inputs_of_levels;

/// Chooses the next compaction by the strategy of the options, if one is due and possible. The caller registers it with
/// [`RunningCompactions::start`] before anything else is picked.
///
/// Another strategy may have shaped the tree, and its jobs may still run: every strategy accepts any tree, and never
/// picks busy files.
pub fn pick(
    version: &Arc<Version>,
    options: &CfOptions,
    running: &mut RunningCompactions,
    moment: &Moment,
) -> Option<Compaction> {
    let picker = Picker::new(version, options, running).at(moment);
    let by_levels = options.compaction_downforce || options.compaction_classic;
    let goes_down = options.compaction_style == CompactionStyle::Level || by_levels;
    if goes_down && picker.num_levels() < 2 {
        return None;
    }
    let extra_runs = || options.compaction_downforce || version.has_extra_runs() || running.writes_extra_runs();
    match options.compaction_style {
        CompactionStyle::Level if extra_runs() => df::leveled::pick(&picker),
        CompactionStyle::Level if options.compaction_classic => classic::leveled(&picker),
        CompactionStyle::Level => leveled::pick(&picker),
        CompactionStyle::Universal if options.compaction_downforce => df::tiered::pick(picker),
        CompactionStyle::Universal if options.compaction_classic => classic::tiered(picker),
        CompactionStyle::Universal => tiered::pick(picker),
        CompactionStyle::Fifo => fifo::pick(&picker),
    }
}

/// What a strategy remembers about one column family between picks: the jobs now running.
///
/// The store calls [`start`](Self::start) under its lock when it takes a picked job, and [`finish`](Self::finish)
/// when the job's edit is in the version or the job failed.
#[derive(Debug, Default)]
pub struct RunningCompactions {
    running: Vec<Running>,
    /// Jobs issued so far.
    issued: u64,
    /// The number of threads for jobs; 0: not known.
    threads: usize,
    /// How many of them are idle, including the one that asks for a job.
    idle: usize,
    /// By level, the smallest key that `kRoundRobin` has not reached.
    round_robin: BTreeMap<usize, InternalKey>,
    /// Writing few bytes matters more than running many jobs.
    flush_bound: bool,
    /// Writers do not rest: the next flush is to come.
    writers_at_work: bool,
    /// The multiple of the options' sizes that levels may hold; 0 means 1.
    level_factor: u64,
    /// The tree at the last pick: a cache. Picks do not depend on it; debug builds compare it with the tree. It is in a
    /// `RefCell` because parts of it are computed only when a strategy asks for them: a `&mut` would have to go through
    /// every function of every strategy, and it would be hard to distinguish functions that only look something up from
    /// those that change something. The database's lock guards it with the rest.
    index: RefCell<TreeIndex>,
}

/// A job's number, in the order in which jobs of the column family were issued, and what it waits for at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Larger than the numbers of all earlier jobs.
    pub number: u64,
    /// Numbers of the jobs that must have committed before this one does; see
    /// [`CommitQueue`](super::commit::CommitQueue).
    pub depends_on: Vec<u64>,
}

/// Start level of a job that reads no level.
const NO_LEVEL: usize = usize::MAX;

/// A running job, as far as other jobs must know it.
#[derive(Debug)]
struct Running {
    /// Its place in the order of issue. Only this identifies the job, since a file that moves may be input to the next
    /// job as soon as it has arrived. Jobs whose output was merged have one number.
    number: u64,
    /// Numbers of its input files.
    inputs: HashSet<u64>,
    /// Threads that work on it: one, or as many as it was split over; 0 when it is done and waits for others.
    threads: usize,
    start_level: usize,
    output_level: usize,
    output_run: u64,
    /// The levels that a moving level passes. Nothing else may be written to any run of them between its keys, or newer
    /// data could lie below it afterwards.
    passes: Option<RangeInclusive<usize>>,
    smallest: Vec<u8>,
    largest: Vec<u8>,
}

impl Running {
    /// True when nothing else may be written to any run of `level` between its keys.
    fn shuts(&self, level: usize) -> bool {
        let reserved = self.start_level == NO_LEVEL && self.output_level == level;
        reserved || self.passes.as_ref().is_some_and(|passed| passed.contains(&level))
    }

    /// True when it touches user keys in [`smallest`, `largest`].
    fn touches(&self, cmp: &InternalKeyComparator, smallest: &[u8], largest: &[u8]) -> bool {
        cmp.compare_user(smallest, &self.largest) != Ordering::Greater
            && cmp.compare_user(largest, &self.smallest) != Ordering::Less
    }
}

impl RunningCompactions {
    /// Nothing running.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that `compaction` runs and marks its inputs as busy. The result is for the commit queue.
    pub fn start(&mut self, compaction: &Compaction) -> Issued {
        let number = self.next_number();
        let version = &compaction.version;
        let depends_on = self.depends_on(version, &compaction.inputs, compaction.output_level, compaction.output_run);
        let issued = Issued { number, depends_on: depends_on.unwrap_or_default() };
        let Some((smallest, largest)) = compaction.user_key_range() else { return issued };
        let (smallest, largest) = (smallest.to_vec(), largest.to_vec());
        let (from, to) = (compaction.start_level(), compaction.output_level);
        self.running.push(Running {
            number,
            inputs: compaction.input_files().map(|f| f.number()).collect(),
            threads: match compaction.reason {
                CompactionReason::ManualCompaction => 1, // its threads are its caller's
                _ => compaction.subcompactions_max.max(1),
            },
            start_level: from,
            output_level: to,
            output_run: compaction.output_run,
            passes: (compaction.reason == CompactionReason::RefitLevel).then(|| from.min(to)..=from.max(to)),
            smallest,
            largest,
        });
        self.set_busy(compaction, true);
        issued
    }

    fn next_number(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    fn set_busy(&mut self, compaction: &Compaction, busy: bool) {
        let index = self.index.get_mut();
        for (level, files) in &compaction.inputs {
            files.iter().for_each(|f| f.being_compacted.store(busy, Atomic::Release));
            if let (Some(first), Some(last)) = (files.first(), files.last()) {
                index.mark_stale(*level, first.smallest_user_key(), last.largest_user_key());
            }
        }
        // Files that move may be there already.
        if let Some((smallest, largest)) = compaction.user_key_range().filter(|_| compaction.trivial_move) {
            index.mark_stale(compaction.output_level, smallest, largest);
        }
    }

    /// Notes that something other than a job took files of the tree, or gave them back.
    pub fn files_taken(&mut self) {
        self.index.get_mut().forget();
    }

    /// The scores of a version, as [`level_scores`](score::level_scores) computes them. Their inputs are kept, so that
    /// only tables that are new since the last time are examined.
    pub fn level_scores(&self, version: &Arc<Version>, options: &CfOptions) -> LevelScores {
        score::scores_of(version, options, &self.sums(version), self.level_factor())
    }

    /// Positions in a level's base run, in order of how little their tables overlap below relative to their bytes.
    /// Marked and old tables get no preference. The version is that of the last [`level_scores`](Self::level_scores).
    fn by_ratio(&self, version: &Version, level: usize) -> ByRatio {
        ByRatio::new(self.index.borrow_mut().ratios(version, level).to_vec())
    }

    /// What lies above and below a table of an extra run of a level; the earlier result if nothing of it changed.
    fn overlap_below(
        &self,
        level: usize,
        number: u64,
        find: impl FnOnce() -> OverlapBelow,
    ) -> Option<(u64, u64, usize)> {
        if let Some(overlap) = self.index.borrow().overlap_below(level, number) {
            return overlap.found;
        }
        let overlap = find();
        let found = overlap.found;
        self.index.borrow_mut().set_overlap_below(level, number, overlap);
        found
    }

    /// True when tables of a level's base run may be marked for compaction.
    fn may_have_marked(&self, level: usize) -> bool {
        self.index.borrow().may_have_marked(level)
    }

    /// True when some table of a level may have data from before `time`, or be older itself.
    fn may_have_older(&self, level: usize, time: u64) -> bool {
        self.index.borrow().may_have_older(level, time)
    }

    /// The sums of the levels of a version.
    fn sums(&self, version: &Arc<Version>) -> Vec<LevelSums> {
        let sums = self.index.borrow_mut().update(version).to_vec();
        // Nothing is kept for L0, since its tables may be weighed meanwhile.
        debug_assert!(
            sums[1..] == LevelSums::of(version)[1..] || self.weighs_more(version),
            "{sums:?} {:?}",
            LevelSums::of(version)
        );
        sums
    }

    /// True when tables were opened since the last pick, and their tombstones weighed: other threads do that.
    fn weighs_more(&self, version: &Version) -> bool {
        self.index.borrow().unweighed() != tree_index::unweighed(version)
    }

    /// Notes that `compaction`, the job with the number that [`start`](Self::start) gave it, has ended, with or without
    /// success, and frees its inputs. One that waits to commit has not ended; one that commits ends as its version
    /// becomes the current one, under the same lock. Jobs whose output was merged have the number of the oldest one.
    pub fn finish(&mut self, number: u64, compaction: &Compaction) {
        self.running.retain(|r| r.number != number);
        self.set_busy(compaction, false);
    }

    /// Where `kRoundRobin` continues in a level; `None` at the beginning.
    pub fn cursor(&self, level: usize) -> Option<&InternalKey> {
        self.round_robin.get(&level)
    }

    /// All cursors, as in the MANIFEST.
    pub fn round_robin(&self) -> impl Iterator<Item = (usize, &InternalKey)> {
        self.round_robin.iter().map(|(level, key)| (*level, key))
    }

    /// Sets the cursor of a level, either from the MANIFEST or after the commit of a job that changes it.
    pub fn set_cursor(&mut self, level: usize, key: InternalKey) {
        self.round_robin.insert(level, key);
    }

    /// Notes that something other than a compaction (an ingestion) is about to put a file into `level`. Returns a
    /// number for [`unreserve`](Self::unreserve).
    pub fn reserve(&mut self, level: usize, smallest: &[u8], largest: &[u8]) -> u64 {
        let number = self.next_number();
        self.running.push(Running {
            number,
            inputs: HashSet::new(),
            threads: 0,
            start_level: NO_LEVEL,
            output_level: level,
            output_run: 0,
            passes: None,
            smallest: smallest.to_vec(),
            largest: largest.to_vec(),
        });
        number
    }

    /// Undoes [`reserve`](Self::reserve), whether the file was added or not.
    pub fn unreserve(&mut self, number: u64) {
        self.running.retain(|r| r.number != number);
    }

    /// Sets how many threads there are for jobs of all column families, and how many of them are idle, including the
    /// one that asks for a job.
    pub fn set_threads(&mut self, threads: usize, idle: usize) {
        (self.threads, self.idle) = (threads, idle);
    }

    /// The number of idle threads, as it was set.
    pub fn idle_threads(&self) -> usize {
        self.idle
    }

    /// Threads that work on jobs of this column family.
    pub fn busy_threads(&self) -> usize {
        self.running.iter().map(|r| r.threads).sum()
    }

    /// True while some job has more than one thread.
    pub fn has_split_jobs(&self) -> bool {
        self.running.iter().any(|r| r.threads > 1)
    }

    /// Notes that the work of the job with this number is done. It has not ended before [`finish`](Self::finish).
    pub fn worked(&mut self, number: u64) {
        self.running.iter_mut().filter(|r| r.number == number).for_each(|r| r.threads = 0);
    }

    /// Sets whether writers wait for flushes and not for compactions. In that case the device or the cores are the
    /// bottleneck, and for DF-compaction it is more important that jobs write little than that there are many.
    pub fn set_flush_bound(&mut self, flush_bound: bool) {
        self.flush_bound = flush_bound;
    }

    /// True if writing few bytes matters more than running many jobs.
    pub fn is_flush_bound(&self) -> bool {
        self.flush_bound
    }

    /// Says whether more is to be flushed soon: then merges that serve readers alone wait, which cost many bytes for
    /// each that they move and would have to be made again. Until it is said, writers rest.
    pub fn set_writers_at_work(&mut self, at_work: bool) {
        self.writers_at_work = at_work;
    }

    /// True when writers do not rest, as it was set.
    pub fn writers_at_work(&self) -> bool {
        self.writers_at_work
    }

    /// Sets the multiple of the options' sizes that levels may hold. Scores must then be computed again.
    pub fn set_level_factor(&mut self, times: u64) {
        self.level_factor = times;
    }

    /// The factor, as it was set.
    pub fn level_factor(&self) -> u64 {
        self.level_factor.max(1)
    }

    /// The number of threads for jobs, as it was set; 0: not known.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Jobs running.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// True while a job that reads L0 runs, because a second one could overtake it.
    fn level0_busy(&self) -> bool {
        self.running.iter().any(|r| r.start_level == 0)
    }

    /// True when a running job writes to `level` inside [`smallest`, `largest`], or moves a level past it.
    pub fn output_conflict(&self, cmp: &InternalKeyComparator, level: usize, smallest: &[u8], largest: &[u8]) -> bool {
        let writes = |r: &&Running| r.output_level == level || r.shuts(level);
        self.running.iter().filter(writes).any(|r| r.touches(cmp, smallest, largest))
    }
}
