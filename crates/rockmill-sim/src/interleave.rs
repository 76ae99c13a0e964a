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
//! 4. *Tables.* There are those of the tree and those that finished jobs are to commit, and no others.
//!
//! Jobs that are done commit as the store's [`CommitQueue`] says: some wait, and some are dropped when one failed that
//! they need. What waits is merged among itself (intra-DF); such a merge ends early or late and fails like any job.
//!
//! Merges keep what the store keeps without snapshots: the newest version of each key, and a tombstone only where the
//! job's plan says that older data may lie below.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rockmill::simulation::{
    CommitQueue, Compaction, CompactionCursors, FileMeta, IntraDf, MergeTicket, Moment, PendingRun, PurgeQueue,
    Step as Turn, Ticket, Version, pick_intra_df_of, runs_due,
};
use rockmill::{CfOptions, CompactionStyle};
use rockmill_format::edit::FileEntry;
use rockmill_format::key::{InternalKey, ValueType};

/// A strategy: [`rockmill::simulation::pick`], or one that a test has broken.
pub type Pick = fn(&Arc<Version>, &CfOptions, &mut CompactionCursors, &Moment) -> Option<Compaction>;

/// What chooses merges of pending runs, from a number on: [`pick_intra_df_of`], or one that a test has broken.
pub type PickMerge = fn(&Arc<Version>, &CfOptions, &CompactionCursors, &[PendingRun], usize) -> Option<IntraDf>;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A memtable becomes a table; what is in it comes from the number.
    Flush(u32),
    /// A job is picked, if one can be; else a merge of pending runs, if one is due.
    Start,
    /// A merge of pending runs is picked, if there are two that may be merged.
    Merge,
    /// One of the running jobs ends; which, by the number.
    Finish(u8),
    /// One of the running jobs but the oldest ends: what needs that one waits.
    FinishLater(u8),
    /// One of the running jobs ends without having done anything.
    Fail(u8),
    /// The process dies: running jobs are gone, the tree is what was committed.
    Crash,
    /// Another strategy from now on, with DF-compaction or without.
    Change(CompactionStyle, bool),
    /// Writers wait for flushes from now on, or no longer.
    Sparing(bool),
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
    /// Jobs that were dropped as one that they needed failed.
    pub dropped: usize,
    /// Merges of pending runs that were carried out.
    pub merges: usize,
    /// Those that failed, or were undone as one of their jobs was to be dropped.
    pub undone: usize,
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
        // In half of them the oldest job takes long, again and again.
        let late = rng.bool();
        let one = |rng: &mut fastrand::Rng| match rng.u8(0..65) {
            0..=17 => Step::Flush(rng.u32(..)),
            18..=39 => Step::Start,
            40..=55 if late && rng.u8(0..8) > 0 => Step::FinishLater(rng.u8(..)),
            40..=55 => Step::Finish(rng.u8(..)),
            56..=59 => Step::Fail(rng.u8(..)),
            60 => Step::Crash,
            62 => Step::Merge,
            61 if style.is_none() => {
                let style = if rng.bool() { CompactionStyle::Universal } else { CompactionStyle::Level };
                Step::Change(style, rng.bool())
            }
            64 => Step::Sparing(rng.u8(..4) > 0),
            _ => Step::Wait(rng.u8(..)),
        };
        let levels = if style == Some(CompactionStyle::Fifo) { 1 } else { rng.usize(2..7) };
        options.num_levels = levels as i32;
        let steps = (0..steps).map(|_| one(&mut rng)).collect();
        Self { levels, options, steps, out_of_order: false, merge: pick_intra_df_of }
    }

    /// Goes through it; what was carried out.
    ///
    /// # Errors
    /// What did not hold, and after which step.
    pub fn run(&self, pick: Pick) -> Result<Done, String> {
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

/// What runs.
enum Work {
    Job(Ticket, Compaction),
    Merge(MergeTicket, IntraDf),
}

/// What finished jobs are to commit.
struct Pending {
    jobs: Vec<Compaction>,
    tables: Vec<Arc<FileMeta>>,
}

struct World {
    version: Version,
    contents: HashMap<u64, Vec<Entry>>,
    /// Each key's newest version; sequence number 0 where there was none.
    newest: [(u64, bool); 256],
    options: CfOptions,
    cursors: CompactionCursors,
    running: Vec<Work>,
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
            cursors: CompactionCursors::new(),
            running: Vec::new(),
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

    /// A table, which is not live yet.
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
        match *step {
            Step::Flush(seed) => self.flush(seed),
            Step::Wait(seconds) => self.now += u64::from(seconds),
            Step::Sparing(sparing) => self.cursors.set_sparing(sparing),
            Step::Change(style, downforce) => {
                self.options.compaction_style = style;
                self.options.compaction_downforce = downforce;
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
            Step::Fail(n) => {
                if let Some(i) = chosen(n, self.running.len()) {
                    match self.running.remove(i) {
                        Work::Job(ticket, c) => {
                            self.cursors.finish(&c);
                            self.commits.failed(ticket);
                        }
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
                self.cursors = CompactionCursors::new();
                self.commits = CommitQueue::new();
                // Opened again: nothing is known but what the MANIFEST says, and other tables are removed.
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
                    self.commit(pending);
                    return self.commits.committed(ticket);
                }
                let number = ticket.number();
                // There is one queue, or none after a crash, which has no jobs.
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
        }
        self.take_turns();
    }

    /// Commits and drops what is due.
    fn take_turns(&mut self) {
        while let Some(turn) = self.commits.turn() {
            match turn {
                Turn::Commit(ticket, p) => {
                    self.commit(p);
                    self.commits.committed(ticket);
                }
                Turn::Drop(_, p) => {
                    self.done.dropped += p.jobs.len();
                    p.jobs.iter().for_each(|c| self.cursors.finish(c));
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
        }
        let entries = entries.into_iter().map(|(k, (s, d))| (k, s, d)).collect();
        let table = self.table(0, entries, self.next_file);
        self.version.levels[0].push(table);
        self.sort(0);
    }

    fn start(&mut self, pick: Pick) -> Result<(), String> {
        if self.running.len() >= RUNNING_MAX {
            return Ok(());
        }
        let version = Arc::new(self.version.clone());
        let moment = Moment { now: self.now, oldest_snapshot: 0 };
        let Some(c) = pick(&version, &self.options, &mut self.cursors, &moment) else {
            self.start_merge(runs_due(&self.options));
            return Ok(());
        };
        let running = self.running.iter().filter_map(|w| match w {
            Work::Job(_, c) => Some((c, c.output_run)),
            Work::Merge(..) => None,
        });
        // Of several that were merged all go into one run.
        let pending = self.commits.pending().flat_map(|(_, p)| {
            let run = p.tables.first().map(|f| f.entry.extra_run);
            p.jobs.iter().map(move |c| (c, run.filter(|_| !c.trivial_move).unwrap_or(c.output_run)))
        });
        let busy: Vec<(&Compaction, u64)> = running.chain(pending).collect();
        let taken: HashSet<u64> = busy.iter().flat_map(|(c, _)| c.input_files()).map(|f| f.number()).collect();
        if let Some(f) = c.input_files().find(|f| taken.contains(&f.number())) {
            return Err(format!("table {} is in two jobs", f.number()));
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

    /// A merge of at least so many pending runs, if there is one.
    fn start_merge(&mut self, due: usize) {
        if self.running.len() >= RUNNING_MAX || self.out_of_order {
            return;
        }
        let run = |(number, needs, p): (u64, &[u64], &Pending)| {
            let first = p.tables.first().filter(|f| f.entry.extra_run > 0)?;
            Some(PendingRun {
                number,
                needs: needs.to_vec(),
                inputs: p.jobs.iter().flat_map(|c| c.inputs.iter().cloned()).collect(),
                level: p.jobs.first().filter(|c| !c.trivial_move)?.output_level,
                run: first.entry.extra_run,
                tables: p.tables.clone(),
            })
        };
        let pending: Vec<PendingRun> = self.commits.waiting().filter_map(run).collect();
        let version = Arc::new(self.version.clone());
        let Some(merge) = (self.merge)(&version, &self.options, &self.cursors, &pending, due) else { return };
        let Some(ticket) = self.commits.begin_merge(&merge.numbers) else { return };
        self.cursors.start_merge(&merge);
        self.running.push(Work::Merge(ticket, merge));
    }

    /// What a job's output is; nothing where tables move or are deleted.
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
        // As the job's plan says: at the bottom, or where no run with older data had the key when it was picked.
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

    fn commit(&mut self, p: Pending) {
        self.done.jobs += p.jobs.len();
        for c in &p.jobs {
            self.cursors.finish(c);
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
            self.version.levels[level].extend(p.tables);
            self.sort(level);
        }
    }

    fn check(&self) -> Result<(), String> {
        // By key: what a lookup finds, and the last version on the way down; 0 where there is none.
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
        if let Some(n) = self.contents.keys().find(|n| !tables.contains(n)) {
            return Err(format!("table {n} is in nobody's hands"));
        }
        if let Some(n) = tables.iter().find(|n| !self.contents.contains_key(n)) {
            return Err(format!("table {n} is gone"));
        }
        for (key, (newest, found)) in self.newest.iter().zip(&found).enumerate() {
            // Nothing is found where it was deleted, or lost with tables that were deleted unread.
            let ok = found == newest || (found.0 == 0 && (newest.1 || self.lossy));
            if !ok {
                return Err(format!("key {key}: {newest:?} was written last, {found:?} is found"));
            }
        }
        Ok(())
    }
}
