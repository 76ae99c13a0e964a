//! Strategies under random interleavings of jobs: started, finished early or late, failed, cut off by a crash.
//!
//! A small tree has contents here: every table holds versions of keys, with sequence numbers. A [`History`] is a list
//! of steps, so that a failure can be shrunk: steps that it does without are left out. After each step must hold:
//!
//! 1. *Order.* For one user key, everything in a shallower place is newer than anything in a deeper one, and tables of
//!    a run below L0 do not overlap.
//! 2. *Contents.* A lookup from the top finds each key's newest version, or nothing where that is a tombstone. FIFO
//!    compaction may have deleted it: then it finds nothing, never an older one.
//! 3. *Jobs.* No table is input to two running jobs, and no running job writes where another one does.
//!
//! Jobs that are done commit as the store's [`CommitQueue`] says: some wait, and some are dropped when one failed that
//! they need.
//!
//! Merges keep what the store keeps without snapshots: the newest version of each key, and a tombstone only where the
//! job's plan says that older data may lie below.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rockmill::simulation::{
    CommitQueue, Compaction, CompactionCursors, FileMeta, Moment, PurgeQueue, Step as Turn, Version,
};
use rockmill::{CfOptions, CompactionStyle};
use rockmill_format::edit::FileEntry;
use rockmill_format::key::{InternalKey, ValueType};

/// A strategy: [`rockmill::simulation::pick`], or one that a test has broken.
pub type Pick = fn(&Arc<Version>, &CfOptions, &mut CompactionCursors, &Moment) -> Option<Compaction>;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A memtable becomes a table; what is in it comes from the number.
    Flush(u32),
    /// A job is picked, if one can be.
    Start,
    /// One of the running jobs ends; which, by the number.
    Finish(u8),
    /// One of the running jobs ends without having done anything.
    Fail(u8),
    /// The process dies: running jobs are gone, the tree is what was committed.
    Crash,
    /// Another strategy from now on, with DF-compaction or without.
    Change(CompactionStyle, bool),
    /// So many seconds go by.
    Wait(u8),
}

/// What happens, in a tree of so many levels.
#[derive(Debug, Clone)]
pub struct History {
    /// Levels.
    pub levels: usize,
    /// Options at the beginning.
    pub options: CfOptions,
    /// Steps.
    pub steps: Vec<Step>,
    /// What is done commits at once, whatever it needs: this must go wrong.
    pub out_of_order: bool,
}

/// A strategy and whether it is with DF-compaction.
pub type Strategy = (CompactionStyle, bool);

/// (key, sequence number, whether it is a tombstone).
type Entry = (u8, u64, bool);

/// Most jobs at once.
const RUNNING_MAX: usize = 5;

impl History {
    /// A random one for a strategy; `None`: strategies change, FIFO not among them.
    pub fn random(seed: u64, strategy: Option<Strategy>, steps: usize) -> Self {
        let style = strategy.map(|s| s.0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut options = CfOptions {
            compaction_style: style.unwrap_or(CompactionStyle::Level),
            compaction_downforce: strategy.is_some_and(|s| s.1),
            level_compaction_dynamic_level_bytes: rng.bool(),
            max_bytes_for_level_base: 400,
            max_bytes_for_level_multiplier: 3.0,
            target_file_size_base: 60,
            max_compaction_bytes: if rng.bool() { 0 } else { 500 },
            level0_file_num_compaction_trigger: rng.i32(2..5),
            write_buffer_size: 4096,
            ttl: if rng.u8(0..4) == 0 { 200 } else { 0 },
            periodic_compaction_seconds: if rng.u8(0..4) == 0 { 300 } else { 0 },
            ..CfOptions::default()
        };
        options.compaction_options_universal.allow_trivial_move = rng.bool();
        options.compaction_options_universal.max_size_amplification_percent = [60, 200, 900][rng.usize(0..3)];
        options.compaction_options_universal.size_ratio = [1, 50][rng.usize(0..2)];
        options.compaction_options_fifo.max_table_files_size = 3000;
        options.compaction_options_fifo.allow_compaction = rng.bool();
        let one = |rng: &mut fastrand::Rng| match rng.u8(0..64) {
            0..=17 => Step::Flush(rng.u32(..)),
            18..=39 => Step::Start,
            40..=55 => Step::Finish(rng.u8(..)),
            56..=59 => Step::Fail(rng.u8(..)),
            60 => Step::Crash,
            61 if style.is_none() => {
                let style = if rng.bool() { CompactionStyle::Universal } else { CompactionStyle::Level };
                Step::Change(style, rng.bool())
            }
            _ => Step::Wait(rng.u8(..)),
        };
        let levels = if style == Some(CompactionStyle::Fifo) { 1 } else { rng.usize(2..7) };
        options.num_levels = levels as i32;
        let steps = (0..steps).map(|_| one(&mut rng)).collect();
        Self { levels, options, steps, out_of_order: false }
    }

    /// Goes through it; the number of jobs that were carried out.
    ///
    /// # Errors
    /// What did not hold, and after which step.
    pub fn run(&self, pick: Pick) -> Result<usize, String> {
        let mut world = World::new(self);
        for (n, step) in self.steps.iter().enumerate() {
            world.step(step, pick).and_then(|()| world.check()).map_err(|e| format!("step {n}, {step:?}: {e}"))?;
        }
        Ok(world.done)
    }

    /// The same failure in fewer steps: parts are left out, ever smaller ones, as long as it still fails.
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

struct World {
    version: Version,
    contents: HashMap<u64, Vec<Entry>>,
    /// Each key's newest version.
    newest: BTreeMap<u8, (u64, bool)>,
    options: CfOptions,
    cursors: CompactionCursors,
    /// Jobs that run, by their numbers.
    running: Vec<(u64, Compaction)>,
    commits: CommitQueue<Compaction>,
    out_of_order: bool,
    purge: Arc<PurgeQueue>,
    next_file: u64,
    next_seq: u64,
    now: u64,
    /// Tables were deleted unread.
    lossy: bool,
    done: usize,
}

impl World {
    fn new(h: &History) -> Self {
        Self {
            version: Version::empty(h.levels, rockmill_format::InternalKeyComparator::default()),
            contents: HashMap::new(),
            newest: BTreeMap::new(),
            options: h.options.clone(),
            cursors: CompactionCursors::new(),
            running: Vec::new(),
            commits: CommitQueue::new(),
            out_of_order: h.out_of_order,
            purge: Arc::default(),
            next_file: 1,
            next_seq: 0,
            now: 1000,
            lossy: false,
            done: 0,
        }
    }

    fn add(&mut self, level: usize, run: u64, entries: Vec<Entry>, epoch: u64) {
        if entries.is_empty() {
            return;
        }
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
        self.version.levels[level].push(Arc::new(FileMeta::new(entry, Arc::clone(&self.purge))));
        self.sort(level);
    }

    fn sort(&mut self, level: usize) {
        self.version.levels[level].sort(level, &self.version.cmp);
    }

    fn step(&mut self, step: &Step, pick: Pick) -> Result<(), String> {
        let chosen = |n: u8, all: usize| (all > 0).then(|| n as usize % all);
        match *step {
            Step::Flush(seed) => self.flush(seed),
            Step::Wait(seconds) => self.now += u64::from(seconds),
            Step::Change(style, downforce) => {
                self.options.compaction_style = style;
                self.options.compaction_downforce = downforce;
            }
            Step::Start => self.start(pick)?,
            Step::Finish(n) => {
                if let Some(i) = chosen(n, self.running.len()) {
                    let (number, c) = self.running.remove(i);
                    if self.out_of_order {
                        self.cursors.finish(&c);
                        self.commit(&c);
                        self.commits.committed(number);
                    } else {
                        self.commits.finished(number, c);
                        self.take_turns();
                    }
                }
            }
            Step::Fail(n) => {
                if let Some(i) = chosen(n, self.running.len()) {
                    let (number, c) = self.running.remove(i);
                    self.cursors.finish(&c);
                    self.commits.failed(number);
                    self.take_turns();
                }
            }
            Step::Crash => {
                self.running.clear();
                self.cursors = CompactionCursors::new();
                self.commits = CommitQueue::new();
                // Opened again: nothing is known but what the MANIFEST says.
                let reopen = |f: &Arc<FileMeta>| Arc::new(FileMeta::new(f.entry.clone(), Arc::clone(&f.purge)));
                for level in &mut self.version.levels {
                    *level = level.iter().map(reopen).collect();
                }
            }
        }
        Ok(())
    }

    /// Commits and drops what is due.
    fn take_turns(&mut self) {
        while let Some(turn) = self.commits.turn() {
            match turn {
                Turn::Commit(number, c) => {
                    self.cursors.finish(&c);
                    self.commit(&c);
                    self.commits.committed(number);
                }
                Turn::Drop(_, c) => self.cursors.finish(&c),
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
            self.newest.insert(key, (self.next_seq, deleted));
        }
        let entries = entries.into_iter().map(|(k, (s, d))| (k, s, d)).collect();
        self.add(0, 0, entries, self.next_file);
    }

    fn start(&mut self, pick: Pick) -> Result<(), String> {
        if self.running.len() >= RUNNING_MAX {
            return Ok(());
        }
        let version = Arc::new(self.version.clone());
        let moment = Moment { now: self.now, oldest_snapshot: 0 };
        let Some(c) = pick(&version, &self.options, &mut self.cursors, &moment) else { return Ok(()) };
        let busy = || self.running.iter().map(|(_, c)| c).chain(self.commits.waiting().map(|(_, c)| c));
        let taken: HashSet<u64> = busy().flat_map(Compaction::input_files).map(|f| f.number()).collect();
        if let Some(f) = c.input_files().find(|f| taken.contains(&f.number())) {
            return Err(format!("table {} is in two jobs", f.number()));
        }
        let range = c.user_key_range().ok_or("a job without tables")?;
        let crosses = |r: &&Compaction| {
            r.user_key_range().is_some_and(|other| range.0 <= other.1 && range.1 >= other.0)
                && (r.output_level, r.output_run) == (c.output_level, c.output_run)
                && c.output_level > 0
        };
        if let Some(r) = busy().find(crosses) {
            return Err(format!("two jobs write to {range:?} of level {}: {r:?} and {c:?}", c.output_level));
        }
        let issued = self.cursors.start(&c);
        self.running.push((issued.number, c));
        self.commits.issue(issued);
        Ok(())
    }

    fn commit(&mut self, c: &Compaction) {
        self.done += 1;
        let epoch = c.input_files().map(|f| f.entry.epoch_number).min().unwrap_or(1);
        let numbers: Vec<u64> = c.input_files().map(|f| f.number()).collect();
        for (level, _) in &c.inputs {
            self.version.levels[*level].retain(|f| !numbers.contains(&f.number()));
        }
        if c.trivial_move {
            self.version.levels[c.output_level].extend(c.input_files().map(|f| crate::tree::moved(f, c)));
            return self.sort(c.output_level);
        }
        let inputs: Vec<Entry> = numbers.iter().filter_map(|n| self.contents.remove(n)).flatten().collect();
        if c.deletion {
            self.lossy = true;
            return;
        }
        let mut newest: BTreeMap<u8, Entry> = BTreeMap::new();
        for e in inputs {
            let slot = newest.entry(e.0).or_insert(e);
            if e.1 > slot.1 {
                *slot = e;
            }
        }
        // As the job's plan says: at the bottom, or where no run with older data had the key when it was picked.
        let older = c.older_runs();
        let has =
            |f: &Arc<FileMeta>, key: u8| f.smallest_user_key() <= &[key][..] && f.largest_user_key() >= &[key][..];
        let may_be_below = |key: u8| c.output_level == 0 || older.iter().flatten().any(|f| has(f, key));
        let survives = |e: &Entry| !e.2 || (!c.bottommost && may_be_below(e.0));
        let out: Vec<Entry> = newest.into_values().filter(survives).collect();
        let at_once = if c.output_level == 0 { out.len().max(1) } else { 6 };
        for part in out.chunks(at_once) {
            self.add(c.output_level, c.output_run, part.to_vec(), epoch);
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut found: BTreeMap<u8, (u64, bool)> = BTreeMap::new();
        let mut shallower: BTreeMap<u8, u64> = BTreeMap::new();
        for (level, files) in self.version.levels.iter().enumerate() {
            for pair in files.runs().filter(|_| level > 0).flat_map(|run| run.windows(2)) {
                let (a, b) = (pair[0].entry.largest.as_bytes(), pair[1].entry.smallest.as_bytes());
                if self.version.cmp.compare(a, b).is_ge() {
                    return Err(format!("tables overlap in level {level}: {pair:?}"));
                }
            }
            for f in files {
                for &(key, seq, deleted) in self.contents.get(&f.number()).into_iter().flatten() {
                    if shallower.get(&key).is_some_and(|&above| above <= seq) {
                        return Err(format!("key {key}@{seq} of level {level} is newer than what is above it"));
                    }
                    shallower.insert(key, seq);
                    found.entry(key).or_insert((seq, deleted));
                }
            }
        }
        for (key, newest) in &self.newest {
            let ok = match found.get(key) {
                Some(have) => have == newest,
                None => newest.1 || self.lossy,
            };
            if !ok {
                return Err(format!("key {key}: {newest:?} was written last, {:?} is found", found.get(key)));
            }
        }
        Ok(())
    }
}
