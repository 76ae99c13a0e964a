//! The event loop, in virtual time.
//!
//! Between two events every rate is constant: writers fill the memtable, jobs make progress. Events are: a memtable is
//! full, a flush or a compaction ends, the run ends. After an event that changes the tree, jobs are picked while
//! threads are free, and the pressure on writers is recomputed, both with the store's own code.

use std::sync::Arc;

use rockmill::internals::simulation::{
    CommitQueue, Compaction, FamilyNow, FileMeta, FlushBound, FlushPace, IntraDf, JOB_BYTES_PER_SECOND_MIN,
    LevelScores, Lull, MemtablesNow, MergeTicket, Moment, OneFlush, OneSchedule, Orders, PendingRun, RateControl,
    RunningCompactions, StallReason, Step, StoreNow, Ticket, Version, allowance, decide, is_flush_bound,
    memtable_left_over, pick, pick_intra_df, split_over_idle,
};
use rockmill::{CfOptions, CompactionStyle};

use crate::fast::{Fast, FastReport, Front, FullTables, Held, Use};
use crate::keys::{Cuts, Extent, KeySpace};
use crate::limits::{self, Limit};
use crate::peer::PeerControl;
use crate::pieces::{Base, FUNCTION_NS, Files, Kept, Output};
use crate::reads::Reads;
use crate::report::{Recorder, Report};
use crate::settings::{Settings, SettingsError, Split, Workload};
use crate::share::{Capacity, Cost, divide};
use crate::tree::{EPOCH_SECONDS, Tree};

/// Overhead of an entry in a memtable, in bytes.
const MEMTABLE_OVERHEAD: f64 = 40.0;
/// If the unused fraction of a memtable is less than one over this, the memtable is treated as completely filled.
const LEFT_OVER_PART: usize = 64;
/// Random variation of a job's duration, so that jobs do not stay synchronized.
const JITTER: f64 = 0.05;
/// While writers are delayed, the rate changes with time: it is recomputed at this interval, in seconds.
const CONTROL_STEP: f64 = 0.1;

/// Fraction of the work from which on it counts as done.
const DONE: f64 = 0.999_999_999;

/// After the last write, no job is deferred any more once no job has ended for this many seconds.
const REST_SECONDS: f64 = 2.0;

/// If there is nothing to do, work is searched for again at this interval, in seconds, because tables age.
const LOOK_EVERY: f64 = 60.0;

/// Threads of an index merge.
const INDEX_MERGE_THREADS: usize = 2;
/// From this many compaction threads on, there is a second flush thread, which merges index tables while the first one
/// flushes (`max_background_jobs`: a quarter of them flush).
const TWO_FLUSH_THREADS: usize = 6;

/// A job that runs.
struct Job {
    /// `None` for a flush or an index merge.
    compaction: Option<Compaction>,
    outputs: Vec<Output>,
    cost: Cost,
    /// Remaining fraction of the work.
    left: f64,
    /// Largest fraction of the work that can be done in a second.
    speed: f64,
    parts: usize,
    end: End,
}

/// What happens when a job ends.
enum End {
    Flush,
    /// An index merge.
    Index,
    Job(Ticket),
    Merge(MergeTicket, Box<IntraDf>),
}

/// What finished jobs are to commit.
struct Pending {
    jobs: Vec<Compaction>,
    tables: Vec<Arc<FileMeta>>,
}

impl Pending {
    fn as_run(&self, number: u64, depends_on: &[u64]) -> Option<PendingRun> {
        Some(PendingRun {
            number,
            depends_on: depends_on.to_vec(),
            inputs: self.jobs.iter().flat_map(|c| c.inputs.iter().cloned()).collect(),
            level: self.jobs.first().filter(|c| !c.trivial_move)?.output_level,
            run: self.tables.first().filter(|f| f.entry.extra_run > 0)?.entry.extra_run,
            tables: self.tables.clone(),
        })
    }
}

struct Engine<'s> {
    s: &'s Settings,
    options: &'s CfOptions,
    tree: Tree,
    keys: KeySpace,
    cursors: RunningCompactions,
    /// Finished jobs that wait to commit.
    commits: CommitQueue<Pending>,
    jobs: Vec<Job>,
    /// Full memtables or index tables.
    full: FullTables,
    /// With a fast device.
    fast: Option<FastReport>,
    /// Writes in the active memtable.
    filled: f64,
    written: f64,
    now: f64,
    rng: fastrand::Rng,
    record: Recorder,
    control: RateControl,
    /// RocksDB's write control instead of the store's, and whether something has changed since it was last evaluated.
    peer: Option<PeerControl>,
    changed: bool,
    bound: FlushBound,
    lull: Lull,
    /// When the last job ended.
    job_ended: f64,
    /// The last time that no job was found for an idle thread, whether writing few bytes mattered more than many jobs,
    /// and whether writers were active. It is valid until something changes.
    found_nothing: Option<(f64, bool, bool)>,
    /// A placeholder version for running jobs, so that the tree's own version can be changed in place.
    no_version: Arc<Version>,
    flush_pace: FlushPace,
}

/// Runs a simulation to its end.
///
/// # Errors
/// The settings are invalid; see [`Settings::complete`].
pub fn run(settings: &Settings) -> Result<Report, SettingsError> {
    run_telling(settings, |_, _| {})
}

/// Runs a simulation to its end, and regularly reports how many of the bytes are written.
///
/// # Errors
/// As [`run`].
pub fn run_telling(settings: &Settings, mut tell: impl FnMut(f64, f64)) -> Result<Report, SettingsError> {
    let mut settings = settings.clone();
    let notes = settings.complete()?;
    let s = &settings;
    let keys = KeySpace::new(s);
    let levels = s.options.num_levels.max(1) as usize;
    let mut tree = Tree::new(levels, s.stored_entry_bytes(), Files::of(s));
    if s.workload == Workload::Overwrite && s.options.compaction_style != CompactionStyle::Fifo {
        let last = levels - 1;
        let table = s.options.target_file_size_base as f64
            * f64::from(s.options.target_file_size_multiplier.max(1)).powi(last.saturating_sub(2) as i32);
        let path = s.options.cf_paths.len().saturating_sub(1) as u32;
        tree.fill(last, path, keys.everything(table / s.stored_entry_bytes()));
    }
    let record = Recorder::new(s, levels);
    let is_peer = s.fast.as_ref().is_some_and(|f| f.front == Front::RocksDb);
    let mut engine = Engine {
        options: &s.options,
        tree,
        keys,
        cursors: RunningCompactions::new(),
        commits: CommitQueue::new(),
        jobs: Vec::new(),
        full: FullTables::new(s.fast.as_ref()),
        fast: s.fast.as_ref().map(|_| FastReport::default()),
        filled: 0.0,
        written: 0.0,
        now: 0.0,
        rng: fastrand::Rng::with_seed(s.seed),
        record,
        control: RateControl::default(),
        peer: is_peer.then(|| PeerControl::new(s.delayed_write_rate)),
        changed: true,
        bound: FlushBound::default(),
        lull: Lull::default(),
        job_ended: 0.0,
        found_nothing: None,
        no_version: Arc::new(Version::empty(0, Default::default())),
        flush_pace: FlushPace::default(),
        s,
    };
    engine.go(&mut tell);
    let fast = engine.fast;
    Ok(Report { fast, ..engine.record.finish(s, notes) })
}

impl Engine<'_> {
    fn memtable_writes(&self) -> f64 {
        if let Some(fast) = self.index() {
            return fast.table_writes(self.s);
        }
        // For large memtables it is negligible.
        let all = self.options.write_buffer_size;
        let left_over = Some(memtable_left_over(self.options)).filter(|n| *n >= all / LEFT_OVER_PART).unwrap_or(0);
        let filled = all.saturating_sub(left_over);
        (filled as f64 / (self.s.entry_bytes() + MEMTABLE_OVERHEAD)).max(1.0)
    }

    /// The fast device, if index tables point to it.
    fn index(&self) -> Option<&Fast> {
        self.s.fast.as_ref().filter(|f| f.front == Front::Index)
    }

    /// True if tables in this path of the options are on the fast device.
    fn on_fast(&self, path: u32) -> bool {
        self.s.fast.as_ref().is_some_and(|f| f.holds(path))
    }

    fn go(&mut self, tell: &mut dyn FnMut(f64, f64)) {
        let target = self.s.write_bytes as f64 / self.s.entry_bytes();
        let capacity = Capacity {
            cores: self.s.cores,
            read: self.s.device_read,
            write: self.s.device_write,
            total: self.s.device_total,
            fast: self.s.fast.as_ref().map_or([0.0; 3], |f| [f.read, f.write, f.read + f.write]),
            workers: self.s.workers.as_ref().map_or([0.0; 3], |w| [w.cores, w.network, w.network]),
        };
        let memtable = self.memtable_writes();
        self.cursors.set_level_factor(self.full.level_factor());
        let mut scores = self.cursors.level_scores(&self.tree.version, self.options);
        loop {
            // Before any job begins, as in the store. A job that begins is no reason to change it again.
            if self.index().is_some() && self.obey_schedule(self.orders(&scores)) {
                self.cursors.set_level_factor(self.full.level_factor());
                scores = self.cursors.level_scores(&self.tree.version, self.options);
            }
            if self.start_jobs() {
                scores = self.cursors.level_scores(&self.tree.version, self.options);
            }
            let logs = self.full.logs(self.filled, self.s);
            let orders = self.orders(&scores);
            let entry = self.s.entry_bytes();
            self.control.set(self.now, &orders.tree, self.s.delayed_write_rate as f64, self.written * entry);
            let (allowed, stop, why) = match &mut self.peer {
                None => (self.control.rate(), orders.stop.map(|(_, why)| why), orders.tree.reason),
                Some(peer) => {
                    if std::mem::take(&mut self.changed) {
                        peer.recalculate(scores.load(), self.full.full_memtables(self.s), self.options);
                    }
                    (peer.rate(), peer.stop(), peer.reason())
                }
            };
            let allowed = allowed / entry;
            self.bound.set(self.now, stop == Some(StallReason::Memtables));
            let mut wish = 1.0 / (self.s.write_ns * 1e-9).max(1e-12);
            if self.s.ingest_rate > 0 {
                wish = wish.min(self.s.ingest_rate as f64 / entry);
            }
            let (tree, wanted) = (allowed, wish);
            self.flush_pace.wrote(wish, 1.0);
            let allowed = tree.min(self.allowance(memtable));
            // Fraction of the time in which writers sleep.
            let delayed = if stop.is_none() { (1.0 - allowed / wish).max(0.0) } else { 0.0 };
            wish = wish.min(allowed);
            let done = self.written >= target * DONE;
            if stop.is_some() || done {
                wish = 0.0;
            }
            let cpu = self.s.write_ns * 1e-9;
            let write = match (&self.s.fast, self.s.wal) {
                (Some(_), _) => Cost { cpu, fast_write: Fast::log_bytes(self.s), ..Cost::default() },
                (None, true) => Cost { cpu, write: self.s.entry_bytes(), ..Cost::default() },
                (None, false) => Cost { cpu, ..Cost::default() },
            };
            let mut reads = Reads::of(&self.tree, self.s, self.keys.there());
            reads.index_tables = self.index().map_or(0.0, |_| self.full.tables.len() as f64);
            let mut wishes = vec![
                (wish, write),
                (self.s.reads_per_second, reads.lookup(self.s)),
                (self.s.seeks_per_second, reads.seek(self.s)),
            ];
            let priority = if self.peer.is_some() { 0.0 } else { orders.flush_first };
            let gives_way = priority > 0.0;
            wishes.extend(self.jobs.iter().map(|j| match gives_way && j.compaction.is_some() {
                true => (j.speed.min(JOB_BYTES_PER_SECOND_MIN as f64 / priority / j.cost.write.max(1.0)), j.cost),
                false => (j.speed, j.cost),
            }));
            let rates = divide(&capacity, &wishes);

            let mut step = f64::INFINITY;
            if rates[0] > 0.0 {
                step = step.min((self.sealed_at(memtable) - self.filled).max(1.0) / rates[0]);
                let room = logs.room() as f64 / Fast::log_bytes(self.s);
                if self.index().is_some() {
                    step = step.min(room.max(1.0) / rates[0]);
                }
                step = step.min((target - self.written).max(0.0) / rates[0]);
            }
            for (job, rate) in self.jobs.iter().zip(&rates[3..]) {
                if *rate > 0.0 {
                    step = step.min(job.left / rate);
                }
            }
            if done && !step.is_finite() {
                // Nothing runs. Jobs that are deferred until writers are idle are still to come.
                if self.now >= self.job_ended.max(self.lull.rests_from()) + REST_SECONDS {
                    break;
                }
                step = REST_SECONDS / 2.0;
            }
            if !step.is_finite() {
                self.record.wedged = true;
                break; // writers are stopped, and nothing runs that could release them
            }
            let mut step = step.min(self.record.until_sample(self.now)).max(1e-9);
            if tree.is_finite() || gives_way {
                step = step.min(CONTROL_STEP);
            }
            if allowed.is_finite() {
                step = step.min(self.flush_pace.changes_in(self.now));
            }
            let for_flush = delayed > 0.0 && allowed < tree;
            let reason = match (stop, delayed > 0.0) {
                (Some(why), _) => why,
                (None, true) if for_flush => StallReason::Memtables,
                (None, true) => why,
                (None, false) => StallReason::None,
            };
            let busy = self.jobs.iter().map(|j| (j.compaction.as_ref().map(Compaction::start_level), j.parts));
            self.record.pass(step, rates[0], delayed, stop.is_some(), reason, busy);
            self.record.waited(step, rates[0], allowed, delayed, stop.is_some(), reason);
            let waits = limits::Waits {
                for_space: reason == StallReason::FastDevice,
                for_flush: reason == StallReason::Memtables,
                busy_threads: self.jobs.iter().filter(|j| j.compaction.is_some()).map(|j| j.parts).sum(),
                threads: self.s.threads,
            };
            self.record.limited(step, rates[0] / wanted, Limit::of(&capacity, &wishes, &rates, &waits));
            self.now += step;
            if for_flush {
                self.bound.waited(self.now, delayed * step);
            }
            self.filled += rates[0] * step;
            self.written += rates[0] * step;
            self.record.read(step, rates[1], rates[2]);
            self.record.waits_to_commit(step, self.commits.pending().count());
            for (job, rate) in self.jobs.iter_mut().zip(&rates[3..]) {
                job.left -= rate * step;
            }
            self.use_fast(step, &wishes, &rates);
            let distinct = match self.s.workload {
                Workload::Fill => self.keys.distinct(),
                Workload::Overwrite => self.keys.count(),
            };
            let live = distinct.max(1.0) * self.s.stored_entry_bytes();
            self.record.sample(self.now, &self.tree, &scores, live, reads);
            if self.filled >= self.sealed_at(memtable) * 0.999_999 {
                tell(self.written * self.s.entry_bytes(), self.s.write_bytes as f64);
                self.switch(memtable);
            }
            self.end_jobs();
            if self.written >= target * DONE {
                if !self.s.settle {
                    break;
                }
                self.record.written(self.now, &self.tree);
            }
        }
        match self.s.settle {
            true => self.record.settled(self.now, &self.tree),
            false => self.record.end(self.now, &self.tree),
        }
    }

    /// What the store would decide now.
    fn orders(&self, scores: &LevelScores) -> Orders {
        let now = FamilyNow {
            id: 0,
            options: self.options,
            load: scores.load(),
            memtables: self.full.full_memtables(self.s),
            flushes: self.full.flush_queue(self.filled, self.s),
            index: self.full.schedule(self.filled, self.s),
            flush_pace: &self.flush_pace,
        };
        let logs = self.full.logs(self.filled, self.s);
        decide(std::iter::once(now), StoreNow { at: self.now, logs, failed: false, without_merging: false })
    }

    /// Applies the orders for merging and flushing index tables. True if they have changed.
    fn obey_schedule(&mut self, orders: Orders) -> bool {
        let mut changed = false;
        for OneSchedule { schedule, change, .. } in orders.schedules {
            self.full.set_schedule(schedule);
            if let (Some(change), Some(fast)) = (change, &mut self.fast) {
                fast.changed(change);
                changed = true;
            }
        }
        changed
    }

    /// A flush runs, or is about to.
    fn flushing(&self) -> bool {
        match self.index() {
            Some(_) => self.full.taken > 0 || self.full.due(self.filled, self.s) > 0,
            None => !self.full.tables.is_empty(),
        }
    }

    /// Number of writes at which the active table is sealed: when it is full, or when the logs reach half of their
    /// limit and no flush is about to change that.
    fn sealed_at(&self, memtable: f64) -> f64 {
        if self.index().is_none() || self.flushing() {
            return memtable;
        }
        let logs = self.full.logs(self.filled, self.s);
        memtable.min((logs.newest_to_flush() as f64 / Fast::log_bytes(self.s)).max(1.0))
    }

    /// Records the usage over `step` seconds, if there is a fast device.
    fn use_fast(&mut self, step: f64, wishes: &[(f64, Cost)], rates: &[f64]) {
        let (Some(mut report), Some(fast)) = (self.fast.take(), &self.s.fast) else { return };
        let (mut used, mut written, mut read) = (Use::default(), [0.0; 2], [0.0; 2]);
        for (i, ((_, cost), rate)) in wishes.iter().zip(rates).enumerate() {
            let task = match i.checked_sub(3).map(|job| &self.jobs[job]) {
                None => 0,
                Some(Job { end: End::Index, .. }) => 1,
                Some(Job { end: End::Flush, .. }) => 2,
                Some(_) => 3,
            };
            used.cpu[task] += cost.cpu * rate;
            used.fast[task] += (cost.fast_read + cost.fast_write) * rate;
            used.slow[task] += (cost.read + cost.write) * rate;
            written = [written[0] + cost.fast_write * rate, written[1] + cost.write * rate];
            read = [read[0] + cost.fast_read * rate, read[1] + cost.read * rate];
        }
        let s = self.s;
        let part =
            |read: f64, write: f64, most: [f64; 3]| (read / most[0]).max(write / most[1]).max((read + write) / most[2]);
        let parts = [
            used.cpu.iter().sum::<f64>() / s.cores,
            part(read[0], written[0], [fast.read, fast.write, fast.read + fast.write]),
            part(read[1], written[1], [s.device_read, s.device_write, s.device_total]),
        ];
        // Data that is in no table is in the log. Outputs of jobs on the fast device exist there in addition to their
        // inputs.
        let logs = (self.filled + self.full.writes()) * Fast::log_bytes(s);
        let levels = self.tree.version.levels.iter().take(2).flat_map(|level| level.iter());
        let levels: u64 = levels.filter(|f| fast.holds(f.entry.path_id)).map(|f| f.size()).sum();
        let jobs: f64 = self.jobs.iter().map(|j| j.cost.fast_write * (1.0 - j.left)).sum();
        let full = if fast.front == Front::Index { self.full.tables.len() } else { 0 };
        let (triggers, changes) = (self.full.triggers(), report.changes);
        let held = Held { bytes: logs + levels as f64 + jobs, full, triggers, changes };
        report.log_bytes = logs;
        report.unfinished = self.jobs.iter().map(|j| (j.cost.fast_write + j.cost.write) * (1.0 - j.left)).sum();
        report.pass(step, &used, written, parts, held);
        self.record.used(step, &used, held);
        self.fast = Some(report);
    }

    /// Writes per second with which memtables are full when the flush in flight ends; infinite if there is none.
    fn allowance(&self, memtable: f64) -> f64 {
        if self.peer.is_some() {
            return f64::INFINITY;
        }
        let now = MemtablesNow {
            memtables: self.full.full_memtables(self.s),
            flushing: self.flushing(),
            flush_pace: &self.flush_pace,
            due: OneFlush { since: self.now, bytes: 0.0 },
            room: |more| {
                let room = more as f64 * memtable + (memtable - self.filled).max(0.0);
                let logs = self.full.logs(self.filled, self.s).room();
                room.min(logs as f64 / Fast::log_bytes(self.s))
            },
            pressure: self.full.pressure(self.filled, self.s, self.now),
        };
        allowance(std::iter::once(now), self.now, false).rate
    }

    /// True if writers wait for flushes: writing few bytes then matters more than many jobs.
    fn is_flush_bound(&self) -> bool {
        let at_work = !self.jobs.is_empty() || !self.full.tables.is_empty();
        is_flush_bound(self.bound.waits(self.now), at_work)
    }

    /// The active memtable becomes a full one.
    fn switch(&mut self, memtable: f64) {
        self.changed = true;
        let writes = std::mem::take(&mut self.filled);
        let extent = self.keys.memtable(writes);
        self.full.seal(extent, writes, writes / memtable, self.index().cloned().as_ref());
    }

    /// Starts all jobs that can be started. False if nothing was found last time and nothing has changed since.
    fn start_jobs(&mut self) -> bool {
        let due = self.full.due(self.filled, self.s);
        if due > 0 {
            self.begin_flush(due);
        }
        if let Some(fast) = self.index().filter(|_| self.full.taken == 0 || self.s.threads >= TWO_FLUSH_THREADS)
            && let ns = fast.merge_ns
            && let Some(entries) = self.full.begin_merge()
        {
            let cost = Cost { cpu: entries * ns * 1e-9, ..Cost::default() };
            self.add_job(None, Vec::new(), cost, INDEX_MERGE_THREADS, End::Index);
        }
        let (flush_bound, at_work) = (self.is_flush_bound(), !self.lull.rests(self.now));
        let same = |(at, bound, work)| (bound, work) == (flush_bound, at_work) && self.now < at + LOOK_EVERY;
        if self.found_nothing.is_some_and(same) {
            return false;
        }
        self.cursors.set_writers_at_work(at_work);
        loop {
            // Jobs that the strategy split have more than one thread.
            let compactions = self.jobs.iter().filter_map(|j| j.compaction.as_ref());
            let busy: usize = compactions.map(|c| c.subcompactions_max.max(1)).sum();
            let Some(idle) = self.s.threads.checked_sub(busy).filter(|n| *n > 0) else { break };
            self.cursors.set_threads(self.s.threads, idle);
            let flush_bound = self.is_flush_bound();
            self.cursors.set_flush_bound(flush_bound);
            let moment = Moment { now: (EPOCH_SECONDS + self.now) as u64, oldest_snapshot: 0 };
            let Some(mut c) = pick(&self.tree.version, self.options, &mut self.cursors, &moment) else {
                match self.begin_merge() {
                    true => continue,
                    false => {
                        self.found_nothing = Some((self.now, flush_bound, at_work));
                        break;
                    }
                }
            };
            match self.s.split {
                Split::Store => {}
                Split::Never => c.subcompactions_max = 0,
                Split::Idle if c.trivial_move || c.deletion || c.output_level == 0 => {}
                Split::Idle => c.subcompactions_max = split_over_idle(&c, idle),
            }
            let issued = self.cursors.start(&c);
            c.version = Arc::clone(&self.no_version);
            let ticket = self.commits.issue(issued);
            if c.trivial_move || c.deletion {
                self.record.moved(c.trivial_move);
                self.finished(ticket, c, Vec::new());
                continue;
            }
            self.add_compaction(c, End::Job(ticket));
        }
        true
    }

    /// Begins a flush of this many of the oldest full tables; an index merge of any of them ends.
    fn begin_flush(&mut self, tables: usize) {
        self.full.take(tables);
        self.jobs.retain(|j| !matches!(j.end, End::Index));
        let (extent, writes) = self.full.flush(&self.keys);
        let (read_ns, fast_read) = self.s.fast.as_ref().map_or((0.0, 0.0), |f| f.flush(extent.entries(), self.s));
        let bytes = self.own_bytes(&Output::whole(extent.clone()));
        let cost = Cost {
            cpu: (writes * self.s.flush_ns_per_entry + read_ns + self.function_ns(extent.entries())) * 1e-9,
            fast_read,
            ..self.written_to(0, bytes)
        };
        self.flush_pace.begin(self.now, writes);
        self.lull.flushes(self.now);
        self.add_job(None, vec![Output::whole(extent)], cost, 1, End::Flush);
    }

    /// The cost of writing this many bytes into a path.
    fn written_to(&self, path: u32, bytes: f64) -> Cost {
        match self.on_fast(path) {
            true => Cost { fast_write: bytes, ..Cost::default() },
            false => Cost { write: bytes, ..Cost::default() },
        }
    }

    /// Begins to merge pending output, if that is due.
    fn begin_merge(&mut self) -> bool {
        let runs = self.commits.waiting().filter_map(|(number, depends_on, p)| p.as_run(number, depends_on));
        let pending: Vec<PendingRun> = runs.collect();
        let picked = pick_intra_df(&self.tree.version, self.options, &self.cursors, &pending);
        let Some(mut merge) = picked else { return false };
        merge.compaction.version = Arc::clone(&self.no_version);
        let Some(ticket) = self.commits.begin_merge(&merge.numbers) else { return false };
        self.cursors.start_merge(&mut merge);
        self.add_compaction(merge.compaction.clone(), End::Merge(ticket, Box::new(merge)));
        true
    }

    fn add_compaction(&mut self, c: Compaction, end: End) {
        let inputs: Vec<&Extent> = c.input_files().filter_map(|f| self.tree.extent(f.number())).collect();
        let kept = self.tree.files.as_ref().map_or_else(Kept::default, |f| f.kept(&c, |n| self.tree.extent(n)));
        let merged = self.keys.merge(&inputs, &self.cuts(&c, &kept.bases));
        let (entries, read) = match &self.tree.files {
            None => (inputs.iter().map(|e| e.entries()).sum(), c.input_bytes() as f64),
            Some(files) => {
                let read = |f: &Arc<FileMeta>| Some(files.read_bytes(f.number(), self.tree.extent(f.number())?));
                let read: f64 = c.input_files().filter_map(read).sum();
                (read / self.s.stored_entry_bytes(), read)
            }
        };
        let keys: f64 = merged.iter().map(Extent::entries).sum();
        let outputs: Vec<Output> = match &self.tree.files {
            Some(files) if !kept.is_empty() => {
                let above = c.inputs.iter().flat_map(|(level, files)| files.iter().map(move |f| (*level, f)));
                let above = above.filter(|(l, f)| (*l, f.entry.extra_run) != (c.output_level, c.output_run));
                let above: Vec<&Extent> = above.filter_map(|(_, f)| self.tree.extent(f.number())).collect();
                merged.into_iter().map(|e| files.share(e, &kept, &above, &self.keys)).collect()
            }
            _ => merged.into_iter().map(Output::whole).collect(),
        };
        let merge_ns = entries * self.s.merge_ns_per_entry + read * self.s.merge_ns_per_byte;
        let on_fast = c.input_files().filter(|f| self.on_fast(f.entry.path_id));
        let fast_read: f64 = on_fast.map(|f| f.size() as f64).sum::<f64>().min(read);
        let written = outputs.iter().map(|table| self.own_bytes(table)).sum();
        let cost = Cost {
            cpu: (merge_ns + self.function_ns(keys)) * 1e-9,
            read: read - fast_read,
            fast_read,
            ..self.written_to(c.output_path, written)
        };
        // As in the store: what goes into L0, and merges of what waits, stay here.
        let goes = c.output_level > 0 && matches!(end, End::Job(_));
        let cost = match &self.s.workers {
            Some(w) if goes && read >= w.input_bytes_min => {
                Cost { cpu: cost.cpu * w.host_part, worker_cpu: cost.cpu, sent: read, received: written, ..cost }
            }
            _ => cost,
        };
        let parts = match c.output_level {
            0 => 1,
            _ => (read / c.output_file_size_target.max(1) as f64) as usize,
        };
        self.record.picked(&c, entries, keys);
        let most = self.s.subcompactions.max(c.subcompactions_max);
        self.add_job(Some(c), outputs, cost, parts.clamp(1, most), end);
    }

    /// Bytes of a new table's own file.
    fn own_bytes(&self, table: &Output) -> f64 {
        match &self.tree.files {
            Some(files) => files.own_bytes(table),
            None => table.extent.entries() * self.s.stored_entry_bytes(),
        }
    }

    /// CPU time for the functions of tables with this many keys.
    fn function_ns(&self, keys: f64) -> f64 {
        if self.tree.files.is_some() { keys * FUNCTION_NS } else { 0.0 }
    }

    /// Where a job's tables end.
    fn cuts(&self, c: &Compaction, bases: &[Base]) -> Cuts {
        let entries = |bytes: u64| (bytes as f64 / self.s.stored_entry_bytes()).max(1.0);
        let below = c.grandparents.iter().filter_map(|f| self.tree.extent(f.number())).flat_map(|e| [e.begin, e.end]);
        let mut below: Vec<u64> = below.collect();
        below.sort_unstable();
        below.dedup();
        let target = c.output_file_size_target;
        // As in the store (`compaction/output.rs`): a table that has become too large is split in two.
        let base = |b: &Base| match b.begin() {
            (begin, size) if size > target.saturating_add(target / 2) => (begin, entries((size / 2).max(target))),
            (begin, _) => (begin, entries(target.saturating_mul(2))),
        };
        let bases: Vec<_> = bases.iter().map(base).collect();
        let most = if bases.is_empty() { c.output_file_size_max } else { target.saturating_mul(2) };
        Cuts { entries: entries(target), entries_max: entries(most).max(entries(target)), below, bases }
    }

    fn add_job(&mut self, compaction: Option<Compaction>, outputs: Vec<Output>, cost: Cost, parts: usize, end: End) {
        let jitter = 1.0 + JITTER * (self.rng.f64() * 2.0 - 1.0);
        let cost = Cost { cpu: cost.cpu * jitter, worker_cpu: cost.worker_cpu * jitter, ..cost };
        let s = self.s;
        let (fast_read, fast_write) = s.fast.as_ref().map_or((1.0, 1.0), |f| (f.read, f.write));
        let network = s.workers.as_ref().map_or(1.0, |w| w.network);
        let times = [
            cost.cpu,
            cost.worker_cpu,
            cost.sent / network,
            cost.received / network,
            cost.read / s.device_read,
            cost.write / s.device_write,
            cost.fast_read / fast_read,
            cost.fast_write / fast_write,
        ];
        let seconds = match s.overlap {
            true => times.into_iter().fold(0.0, f64::max),
            false => {
                let reads = cost.read / s.readahead.max(1) as f64;
                times.iter().sum::<f64>() + reads * s.device_latency
            }
        };
        // Includes the syncs of the last table of each part, of the directory and of the MANIFEST.
        let seconds = match end {
            End::Index => seconds / parts as f64 + 1e-6,
            _ => (seconds / parts as f64).max(s.device_latency) + 3.0 * s.device_sync + 1e-6,
        };
        self.jobs.push(Job { compaction, outputs, cost, left: 1.0, speed: 1.0 / seconds, parts, end });
    }

    /// Commits finished jobs that need not wait.
    fn commit(&mut self) {
        while let Some(step) = self.commits.turn() {
            match step {
                Step::Commit(ticket, Pending { jobs, mut tables }) => {
                    for c in &jobs {
                        self.cursors.finish(ticket.number(), c);
                        self.tree.commit(c, std::mem::take(&mut tables));
                    }
                    self.commits.committed(ticket);
                }
                // No job fails here.
                Step::Drop(number, p) => {
                    p.jobs.iter().for_each(|c| self.cursors.finish(number, c));
                    self.tree.remove(&p.tables);
                }
            }
        }
    }

    /// A job's tables are durable.
    fn finished(&mut self, ticket: Ticket, c: Compaction, outputs: Vec<Output>) {
        let number = ticket.number();
        let tables = self.tree.write(&c, outputs, self.now);
        let known = self.commits.finished(ticket, Pending { jobs: vec![c], tables }).is_ok();
        debug_assert!(known, "there is one queue");
        self.commit();
        self.record.pending(self.commits.pending().count(), self.commits.pending().any(|(n, _)| n == number));
    }

    fn end_jobs(&mut self) {
        let mut i = 0;
        while i < self.jobs.len() {
            if self.jobs[i].left > 1e-9 {
                i += 1;
                continue;
            }
            let job = self.jobs.remove(i);
            (self.found_nothing, self.job_ended) = (None, self.now);
            self.changed = true;
            if let Some(c) = &job.compaction {
                let Cost { read, write, fast_read, fast_write, .. } = job.cost;
                self.record.compacted(c, read + fast_read, write + fast_write);
            }
            match (job.end, job.compaction) {
                (End::Job(ticket), Some(c)) => self.finished(ticket, c, job.outputs),
                (End::Merge(ticket, merge), _) => {
                    self.record.merged(job.cost.write + job.cost.fast_write);
                    let tables = self.tree.write(&merge.compaction, job.outputs, self.now);
                    let join = |parts: Vec<Pending>, tables| Pending {
                        jobs: parts.into_iter().flat_map(|p| p.jobs).collect(),
                        tables,
                    };
                    let done = self.commits.merged(ticket, tables, join);
                    self.cursors.finish_merge(&merge, done.is_ok());
                    match done {
                        Ok(()) => self.tree.remove(merge.compaction.input_files()),
                        Err(tables) => self.tree.remove(&tables),
                    }
                    self.commit();
                }
                (End::Index, _) => {
                    self.full.merged(&self.keys);
                    self.fast.iter_mut().for_each(|f| f.merges += 1);
                }
                _ => {
                    self.flush_pace.end(self.now, Some(job.cost.cpu));
                    self.full.flushed();
                    self.fast.iter_mut().for_each(|f| f.flushes += 1);
                    self.record.flushed(job.cost.write + job.cost.fast_write);
                    for table in job.outputs {
                        self.tree.flush(table.extent, self.now);
                    }
                }
            }
        }
    }
}
