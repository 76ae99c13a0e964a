//! A fast device in front of the slow one, and the data on it.
//!
//! It has either logs with the values that index tables point to (docs/hybrid.md), or the WAL and the tables of L0 and
//! L1, like a RocksDB with `db_paths` and `wal_dir`. The latter is simulated with the store's write control or with
//! RocksDB's ([`crate::peer`]). Strategies and CPU costs are the same for all.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;

use rockmill::TableKind;
use rockmill::internals::simulation::{
    Adapts, FlushQueue, FullMemtables, IndexQueues, IndexSchedule, LogsNow, ScheduleChange, Short, Triggers,
    is_flush_due,
};
use serde_json::{Value, json};

use crate::engine::run_telling;
use crate::keys::{Cuts, Extent, KeySpace};
use crate::report::{Report, size};
use crate::settings::{Settings, SettingsError};

/// Bytes of a log record that are not key and value: headers of record and batch, lengths.
const RECORD_OVERHEAD: f64 = 24.0;
/// Bytes of an index table's entry in addition to the key, and of an address in it.
const ENTRY_OVERHEAD: f64 = 40.0;
const ADDRESS: f64 = 15.0;
/// Smallest size of a fast device in bytes: memtables and index tables are sized as fractions of it.
const CAPACITY_MIN: u64 = 16 << 20;
/// If L1 is on the fast device, its target size is the device's size divided by this. A job from L0 rewrites all of L1;
/// both versions exist until it ends, and L1 grows beyond its target meanwhile. Simulated with `WAITING` as below in
/// 320 runs (both fronts, 1 to 100 GB, 2 to 20 cores, a SATA SSD and a disk): up to 0.96 of the fast bytes are used.
/// With twice `WAITING` it is 1.15 times the fast bytes; with a sixth instead of a fifth, 1.03 times, with the same
/// throughput; with half of the device and six times `WAITING`, as in `scripts/bench_hybrid`, 2.6 times.
const L1_PART: u64 = 5;
/// Pending compaction bytes at which writers stop, as a multiple of the fast bytes; at half of it they are slowed down.
const WAITING: u64 = 1;

/// What is on the fast device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Logs with the values of index tables.
    Index,
    /// The WAL, L0 and L1, with the store's write control.
    Plain,
    /// The same with RocksDB's.
    RocksDb,
}

impl Front {
    /// All, and their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("index", Self::Index), ("plain", Self::Plain), ("rocksdb", Self::RocksDb)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|f| f.1 == self).map_or("", |f| f.0)
    }
}

/// The fast device, and how it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Fast {
    /// What is on it.
    pub front: Front,
    /// Bytes per second that it reads.
    pub read: f64,
    /// Bytes per second that it writes.
    pub write: f64,
    /// Most bytes of logs; or the size for which L0, L1 and the WAL are configured.
    pub capacity: u64,
    /// Bytes of memory of an index table (`max_index_size`).
    pub index_size: usize,
    /// When index tables are merged and flushed.
    pub triggers: Triggers,
    /// What the schedule may change (`adaptive_index_triggers`, `elastic_level_capacity`).
    pub adapts: Adapts,
    /// Values of up to this many bytes are stored in the index table (`index_inline_size`).
    pub inline_max: u64,
    /// CPU nanoseconds of an index merge per input entry.
    pub merge_ns: f64,
    /// CPU nanoseconds of a flush per value that it reads from a log, in addition to those of any flush.
    pub read_value_ns: f64,
}

impl Default for Fast {
    fn default() -> Self {
        Self {
            front: Front::Index,
            read: 3.0e9,
            write: 2.5e9,
            capacity: 10 << 30,
            index_size: 8 << 20,
            triggers: Triggers { merge: 2, flush_bytes: 32 << 20 },
            adapts: Adapts::ALL,
            inline_max: 64,
            merge_ns: 200.0,
            read_value_ns: 400.0,
        }
    }
}

impl Fast {
    /// Refuses invalid settings.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(&self, s: &Settings) -> Result<(), SettingsError> {
        let bad = |what: String| Err(SettingsError(what));
        for (name, v) in [("fast read", self.read), ("fast write", self.write)] {
            if !v.is_finite() || v <= 0.0 {
                return bad(format!("{name} is {v}; it must be above 0"));
            }
        }
        for (name, v) in [("index merge ns", self.merge_ns), ("read value ns", self.read_value_ns)] {
            if !v.is_finite() || v < 0.0 {
                return bad(format!("{name} is {v}; it must not be below 0"));
            }
        }
        if self.capacity < CAPACITY_MIN {
            return bad(format!("the fast device has {} bytes; it must have 16M at least", self.capacity));
        }
        if self.index_size < 64 << 10 || self.triggers.flush_bytes < 64 << 10 {
            return bad("max_index_size and data_flush_trigger_size must be 64K at least".to_owned());
        }
        if self.front != Front::Index && (s.strategy != "leveled" || s.options.table_factory != TableKind::BlockBased) {
            let name = self.front.name();
            return bad(format!("front {name}: L0 and L1 are those of the strategy leveled, with block-based tables"));
        }
        Ok(())
    }

    /// Bytes that a write takes in a log.
    pub(crate) fn log_bytes(s: &Settings) -> f64 {
        s.entry_bytes() + RECORD_OVERHEAD
    }

    /// Writes that an index table takes.
    pub(crate) fn table_writes(&self, s: &Settings) -> f64 {
        let value = if self.keeps_inline(s) { s.value_bytes as f64 } else { ADDRESS };
        (self.index_size as f64 / (s.key_bytes as f64 + ENTRY_OVERHEAD + value)).max(1.0)
    }

    fn keeps_inline(&self, s: &Settings) -> bool {
        s.value_bytes <= self.inline_max
    }

    /// CPU nanoseconds, and bytes read from logs, of a flush of this many entries.
    pub(crate) fn flush(&self, entries: f64, s: &Settings) -> (f64, f64) {
        match self.front == Front::Index && !self.keeps_inline(s) {
            true => (entries * self.read_value_ns, entries * s.value_bytes as f64),
            false => (0.0, 0.0),
        }
    }

    /// True if the tables in this path of the options are on the fast device: those in the first path, which has L0 and
    /// L1.
    pub(crate) fn holds(&self, path: u32) -> bool {
        self.front != Front::Index && path == 0
    }
}

/// A full memtable, or index table.
#[derive(Debug, Clone)]
pub(crate) struct Full {
    pub extent: Extent,
    /// Writes that it received, including those that newer ones replaced.
    pub writes: f64,
    /// Bytes of memory; only for index tables.
    memory: f64,
    tier: u32,
}

/// Full memtables, oldest first, and the rules for merging and flushing them.
pub(crate) struct FullTables {
    pub tables: VecDeque<Full>,
    /// How many of the oldest are being flushed.
    pub taken: usize,
    /// These are being merged.
    merging: Option<Range<usize>>,
    schedule: Option<IndexSchedule>,
}

impl FullTables {
    pub fn new(fast: Option<&Fast>) -> Self {
        let index = fast.filter(|f| f.front == Front::Index);
        let schedule = index.map(|f| IndexSchedule::new(f.triggers).adapting(f.adapts));
        Self { tables: VecDeque::new(), taken: 0, merging: None, schedule }
    }

    /// Adds a full memtable, with `part` of the writes that fit into it.
    pub fn seal(&mut self, extent: Extent, writes: f64, part: f64, fast: Option<&Fast>) {
        let memory = fast.map_or(0.0, |f| f.index_size as f64 * part);
        self.tables.push_back(Full { extent, writes, memory, tier: 0 });
    }

    fn memory(&self) -> f64 {
        self.tables.iter().map(|t| t.memory).sum()
    }

    pub fn writes(&self) -> f64 {
        self.tables.iter().map(|t| t.writes).sum()
    }

    /// The schedule of index tables, and the lengths of its queues; `None` for memtables with values. `filled`: writes
    /// in the active table.
    pub fn schedule(&self, filled: f64, s: &Settings) -> Option<(IndexSchedule, IndexQueues)> {
        let schedule = self.schedule?;
        let merge = self.rows().iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        // Logs that only the active table needs do not mean that flushes are behind.
        let logs = if self.tables.is_empty() { LogsNow::UNBOUNDED } else { self.logs(filled, s) };
        let room = self.room(filled, logs, s);
        Some((schedule, IndexQueues { merge, flush_bytes: self.memory() as u64, room, behind: false }))
    }

    /// Uses this schedule from now on.
    pub fn set_schedule(&mut self, schedule: IndexSchedule) {
        self.schedule = Some(schedule);
    }

    /// The triggers for merging and flushing full tables; 0 and 0 for memtables with values.
    pub fn triggers(&self) -> Triggers {
        self.schedule.map_or_else(Triggers::default, |s| s.now())
    }

    /// The remaining fraction of the limit of index tables' memory or of the logs, as the store counts it.
    fn room(&self, filled: f64, logs: LogsNow, s: &Settings) -> f64 {
        let Some(fast) = s.fast.as_ref().filter(|_| self.schedule.is_some()) else { return 1.0 };
        let memory = self.memory() + filled / fast.table_writes(s) * fast.index_size as f64;
        logs.room_part(memory, fast.triggers.memory_max(fast.index_size))
    }

    /// How strongly the pace of flushes applies to writers.
    pub fn pressure(&self, filled: f64, s: &Settings, now: f64) -> f64 {
        self.schedule.map_or(1.0, |schedule| schedule.pressure(self.room(filled, self.logs(filled, s), s), now))
    }

    /// The factor by which levels may exceed the sizes in the options.
    pub fn level_factor(&self) -> u64 {
        self.schedule.map_or(1, |schedule| schedule.level_factor())
    }

    /// The number of full memtables, and its limit.
    pub fn full_memtables(&self, s: &Settings) -> FullMemtables {
        match s.fast.as_ref().filter(|_| self.schedule.is_some()) {
            Some(f) => {
                let max = f.triggers.memory_max(f.index_size);
                FullMemtables::of_index_tables(self.memory() as usize, max, f.index_size)
            }
            None => FullMemtables { full: self.tables.len(), most: s.options.max_write_buffer_number.max(1) as usize },
        }
    }

    /// Bytes of the logs, with this many writes in the active table.
    pub fn logs(&self, filled: f64, s: &Settings) -> LogsNow {
        let Some(fast) = s.fast.as_ref().filter(|_| self.schedule.is_some()) else { return LogsNow::UNBOUNDED };
        let bytes = |writes: f64| (writes * Fast::log_bytes(s)) as u64;
        LogsNow { newest: bytes(filled), others: bytes(self.writes()), capacity: fast.capacity, of_device: false }
    }

    /// The queue for flushes. Logs request a flush when they are half full; a memtable with values is flushed alone.
    pub fn flush_queue(&self, filled: f64, s: &Settings) -> FlushQueue {
        let requested = self.schedule.is_none() || self.logs(filled, s).is_flush_due();
        FlushQueue { waiting: self.tables.len(), in_flight: self.taken > 0, requested }
    }

    /// How many of the oldest tables a flush should take now.
    pub fn due(&self, filled: f64, s: &Settings) -> usize {
        let index = self.schedule.map(|schedule| (schedule.now(), self.memory() as u64));
        let queue = self.flush_queue(filled, s);
        match !queue.in_flight && is_flush_due(queue, self.full_memtables(s), index, &s.options, false) {
            true if index.is_some() => self.tables.len(),
            true => 1,
            false => 0,
        }
    }

    /// A flush takes these tables: an index merge of them becomes useless.
    pub fn take(&mut self, tables: usize) {
        (self.taken, self.merging) = (tables, None);
    }

    /// The flush ended.
    pub fn flushed(&mut self) {
        let n = std::mem::take(&mut self.taken);
        self.tables.drain(..n);
        if let Some(m) = &mut self.merging {
            *m = m.start - n..m.end - n;
        }
    }

    /// Rows of consecutive tables of one tier that no flush has.
    fn rows(&self) -> Vec<Range<usize>> {
        let mut rows: Vec<Range<usize>> = Vec::new();
        for i in self.taken..self.tables.len() {
            match rows.last_mut() {
                Some(row) if self.tables[row.start].tier == self.tables[i].tier => row.end = i + 1,
                _ => rows.push(i..i + 1),
            }
        }
        rows
    }

    /// Begins an index merge if one is due; returns the number of input entries.
    pub fn begin_merge(&mut self) -> Option<f64> {
        let least = self.schedule?.now().merge;
        if least == 0 || self.merging.is_some() {
            return None;
        }
        let row = self.rows().into_iter().rev().find(|row| row.len() >= least.max(2))?;
        let entries = self.tables.range(row.clone()).map(|t| t.extent.entries()).sum();
        self.merging = Some(row);
        Some(entries)
    }

    /// The index merge ended.
    pub fn merged(&mut self, keys: &KeySpace) {
        let Some(row) = self.merging.take() else { return };
        let inputs: Vec<&Extent> = self.tables.range(row.clone()).map(|t| &t.extent).collect();
        let whole = whole(keys, &inputs);
        let of = |f: fn(&Full) -> f64| self.tables.range(row.clone()).map(f).sum();
        let (writes, memory) = (of(|t| t.writes), of(|t| t.memory));
        let tier = self.tables[row.start].tier + 1;
        self.tables.drain(row.start + 1..row.end);
        self.tables[row.start] = Full { extent: whole, writes, memory, tier };
    }

    /// The output of flushing the taken tables.
    pub fn flush(&self, keys: &KeySpace) -> (Extent, f64) {
        let taken = || self.tables.range(..self.taken);
        let extents: Vec<&Extent> = taken().map(|t| &t.extent).collect();
        (whole(keys, &extents), taken().map(|t| t.writes).sum())
    }
}

/// All of these as one.
fn whole(keys: &KeySpace, of: &[&Extent]) -> Extent {
    if let [one] = of {
        return (*one).clone();
    }
    let cuts = Cuts { entries: f64::MAX, entries_max: f64::MAX, below: Vec::new(), bases: Vec::new() };
    let mut all = keys.merge(of, &cuts);
    debug_assert_eq!(all.len(), 1, "nothing ends a table");
    all.swap_remove(0)
}

/// The users of the cores and the devices.
pub const TASKS: [&str; 4] = ["users", "index merge", "flush", "compaction"];

/// Seconds over which use is averaged before its deviation is taken.
const WINDOW: f64 = 1.0;

/// Use of the cores and of both devices, by task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Use {
    /// CPU seconds.
    pub cpu: [f64; 4],
    /// Bytes read from and written to the fast device.
    pub fast: [f64; 4],
    /// Bytes read from and written to the slow device.
    pub slow: [f64; 4],
}

impl Use {
    /// Adds so many times another one.
    pub fn add(&mut self, other: &Self, times: f64) {
        let of = |mine: &mut [f64; 4], more: &[f64; 4]| {
            mine.iter_mut().zip(more).for_each(|(m, n)| *m += n * times);
        };
        of(&mut self.cpu, &other.cpu);
        of(&mut self.fast, &other.fast);
        of(&mut self.slow, &other.slow);
    }

    /// So many times as much.
    pub fn scale(&mut self, by: f64) {
        let was = std::mem::take(self);
        self.add(&was, by);
    }

    /// Half of both.
    pub fn mean(&self, other: &Self) -> Self {
        let mut mean = Self::default();
        mean.add(self, 0.5);
        mean.add(other, 0.5);
        mean
    }
}

/// A mean and a standard deviation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    sum: f64,
    squares: f64,
    count: f64,
}

impl Spread {
    fn add(&mut self, v: f64) {
        (self.sum, self.squares, self.count) = (self.sum + v, self.squares + v * v, self.count + 1.0);
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    /// The standard deviation.
    pub fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1.0) - self.mean().powi(2)).max(0.0).sqrt()
    }
}

/// The data on the fast device at a moment, and the triggers of index tables.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held {
    /// Bytes on the device.
    pub bytes: f64,
    /// Full index tables.
    pub full: usize,
    /// When they are merged and flushed.
    pub triggers: Triggers,
    /// How often the triggers changed because a core was short, because the device was, and because neither was.
    pub changes: [u64; 3],
}

/// Additional figures of a run with a fast device.
#[derive(Debug, Clone, Default)]
pub struct FastReport {
    /// Used in all.
    pub used: Use,
    /// Bytes written to the fast device, and to the slow one.
    pub written: [f64; 2],
    /// Fraction of the cores in use, by windows of a second; the same for the fast and the slow device.
    pub busy: [Spread; 3],
    /// Bytes on the fast device, integrated over time.
    bytes_time: f64,
    /// The most bytes on the fast device.
    pub bytes_most: f64,
    /// Full index tables that a read asks: sum over time.
    tables_time: f64,
    seconds: f64,
    /// Bytes of logs at the end: what is in no table.
    pub log_bytes: f64,
    /// Bytes that jobs had written by then which had not ended.
    pub unfinished: f64,
    /// The triggers' means over time, and the largest.
    triggers_time: [f64; 2],
    triggers_most: Triggers,
    /// Index merges that ended.
    pub merges: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// How often the triggers changed because a core was short, because the device was, and because neither was.
    pub changes: [u64; 3],
    window: [f64; 3],
    in_window: f64,
}

impl FastReport {
    /// Records `step` seconds with these rates per second: usage, bytes written to both devices, and the fractions of
    /// cores and devices in use.
    pub(crate) fn pass(&mut self, step: f64, used: &Use, written: [f64; 2], parts: [f64; 3], held: Held) {
        self.used.add(used, step);
        self.written[0] += written[0] * step;
        self.written[1] += written[1] * step;
        self.bytes_time += held.bytes * step;
        self.bytes_most = self.bytes_most.max(held.bytes);
        self.tables_time += held.full as f64 * step;
        let Triggers { merge, flush_bytes } = held.triggers;
        self.triggers_time[0] += merge as f64 * step;
        self.triggers_time[1] += flush_bytes as f64 * step;
        self.triggers_most.merge = self.triggers_most.merge.max(merge);
        self.triggers_most.flush_bytes = self.triggers_most.flush_bytes.max(flush_bytes);
        self.seconds += step;
        let mut left = step;
        while left > 0.0 {
            let now = left.min(WINDOW - self.in_window);
            self.window.iter_mut().zip(parts).for_each(|(w, p)| *w += p * now);
            (self.in_window, left) = (self.in_window + now, left - now);
            if self.in_window >= WINDOW - 1e-9 {
                self.busy.iter_mut().zip(self.window).for_each(|(b, w)| b.add(w / WINDOW));
                (self.window, self.in_window) = ([0.0; 3], 0.0);
            }
        }
    }

    pub(crate) fn changed(&mut self, change: ScheduleChange) {
        let of = match change.short {
            Short::Core => 0,
            Short::Device => 1,
            Short::Nothing => 2,
        };
        self.changes[of] += 1;
    }

    /// Bytes on the fast device, on average.
    pub fn bytes(&self) -> f64 {
        self.bytes_time / self.seconds.max(1e-9)
    }

    /// Full index tables that a read searches, on average.
    pub fn tables(&self) -> f64 {
        self.tables_time / self.seconds.max(1e-9)
    }

    /// The triggers for merging and flushing index tables, on average.
    pub fn triggers(&self) -> [f64; 2] {
        self.triggers_time.map(|sum| sum / self.seconds.max(1e-9))
    }

    pub(crate) fn to_json(&self, s: &Settings, user: f64) -> Value {
        let r = crate::report::round;
        let [merge, flush_bytes] = self.triggers();
        let tasks = |of: &[f64; 4]| -> Value {
            TASKS.iter().zip(of).map(|(t, v)| ((*t).to_owned(), json!(r(*v)))).collect::<serde_json::Map<_, _>>().into()
        };
        let busy = |b: &Spread| json!({"mean": r(b.mean()), "deviation": r(b.deviation())});
        json!({
            "front": s.fast.as_ref().map_or("", |f| f.front.name()),
            "capacity": s.fast.as_ref().map_or(0, |f| f.capacity),
            "fast_write_amplification": r(self.written[0] / user.max(1.0)),
            "slow_write_amplification": r(self.written[1] / user.max(1.0)),
            "cpu_use": busy(&self.busy[0]), "fast_use": busy(&self.busy[1]), "slow_use": busy(&self.busy[2]),
            "fast_bytes": r(self.bytes()), "fast_bytes_most": r(self.bytes_most), "index_tables": r(self.tables()),
            "index_merges": self.merges, "flushes": self.flushes, "log_bytes_at_end": r(self.log_bytes),
            "index_merge_trigger": {"mean": r(merge), "most": self.triggers_most.merge},
            "data_flush_trigger_size": {"mean": r(flush_bytes), "most": self.triggers_most.flush_bytes},
            "changes": {"core": self.changes[0], "device": self.changes[1], "neither": self.changes[2]},
            "cpu_seconds": tasks(&self.used.cpu), "fast_device_bytes": tasks(&self.used.fast),
            "slow_device_bytes": tasks(&self.used.slow),
        })
    }

    pub(crate) fn to_text(&self, user: f64) -> String {
        let mut out = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<20} {value}");
        };
        let amplification = |device: usize| self.written[device] / user.max(1.0);
        row("write by device", format!("fast {:.2}, slow {:.2} times", amplification(0), amplification(1)));
        let busy = |b: &Spread| format!("{:.0} % +- {:.0}", b.mean() * 100.0, b.deviation() * 100.0);
        let [cpu, fast, slow] = &self.busy;
        row("in use", format!("cores {}, fast device {}, slow device {}", busy(cpu), busy(fast), busy(slow)));
        row("fast bytes", format!("{} on average, {} at most", size(self.bytes()), size(self.bytes_most)));
        row(
            "full tables",
            format!("{:.1} on average, {} merges, {} flushes", self.tables(), self.merges, self.flushes),
        );
        let [core, device, neither] = self.changes;
        if self.triggers_most.flush_bytes > 0 {
            let ([merge, flush], most) = (self.triggers(), self.triggers_most);
            row("IMTN", format!("{merge:.1} tables on average, {} at most", most.merge));
            row("DFTS", format!("{} on average, {} at most", size(flush), size(most.flush_bytes as f64)));
        }
        row("triggers changed", format!("{core} times for a core, {device} for the device, {neither} for neither"));
        for (i, task) in TASKS.iter().enumerate() {
            let cpu = self.used.cpu[i] / self.used.cpu.iter().sum::<f64>().max(1e-9) * 100.0;
            let (fast, slow) = (size(self.used.fast[i]), size(self.used.slow[i]));
            row(&format!("  {task}"), format!("{cpu:.0} % of the CPU time used; fast {fast}, slow {slow}"));
        }
        out
    }
}

/// Both fronts with several numbers of cores.
#[derive(Debug, Clone)]
pub struct FastComparison {
    /// Number of cores; the report with index tables; and that of RocksDB with its WAL, L0 and L1 on the fast device.
    pub runs: Vec<(usize, Report, Report)>,
}

impl FastComparison {
    /// Runs both with as many compaction threads as cores, and with the same memory for unflushed data.
    ///
    /// # Errors
    /// The settings are invalid, or have no fast device.
    pub fn run(settings: &Settings, cores: &[usize], mut tell: impl FnMut(f64, f64)) -> Result<Self, SettingsError> {
        let mut runs = Vec::new();
        for &cores in cores {
            let mut of = |front| {
                let mut s = Settings { cores: cores as f64, threads: cores, ..settings.clone() };
                let Some(fast) = &mut s.fast else {
                    return Err(SettingsError("there is no fast device".to_owned()));
                };
                fast.front = front;
                if front == Front::RocksDb {
                    s.strategy = "leveled".to_owned();
                    s.options.table_factory = TableKind::BlockBased;
                }
                run_telling(&s, &mut tell)
            };
            runs.push((cores, of(Front::Index)?, of(Front::RocksDb)?));
        }
        Ok(Self { runs })
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let of = |(cores, index, rocksdb): &(usize, Report, Report)| {
            json!({
                "cores": cores, "index": index.to_json(), "rocksdb": rocksdb.to_json(),
                "throughput": crate::report::round(index.throughput() / rocksdb.throughput()),
            })
        };
        json!({"runs": self.runs.iter().map(of).collect::<Vec<_>>()})
    }

    /// For people: a table of Markdown.
    pub fn to_text(&self) -> String {
        let mut out = String::from(
            "| cores | MB/s: index, rocksdb | ratio | written, fast | written, slow | stalled, % | cores in use, % | \
             slow device, % | fast GB: mean, most | runs | a lookup, us | a seek, us |\n",
        );
        out += &format!("|{}\n", "---|".repeat(12));
        for (cores, a, b) in &self.runs {
            let two = |f: &dyn Fn(&Report, &FastReport) -> String| {
                let of = |r: &Report| r.fast.as_ref().map_or_else(String::new, |fast| f(r, fast));
                format!("{}, {}", of(a), of(b))
            };
            let busy = |b: &Spread| format!("{:.0} ± {:.0}", b.mean() * 100.0, b.deviation() * 100.0);
            let stalled = |r: &Report| (r.stopped_seconds + r.delayed_seconds) / r.seconds.max(1e-9) * 100.0;
            let cells = [
                cores.to_string(),
                two(&|r, _| format!("{:.0}", r.throughput() / 1e6)),
                format!("{:.2}", a.throughput() / b.throughput()),
                two(&|r, f| format!("{:.2}", f.written[0] / r.user_bytes.max(1.0))),
                two(&|r, f| format!("{:.2}", f.written[1] / r.user_bytes.max(1.0))),
                two(&|r, _| format!("{:.0}", stalled(r))),
                two(&|_, f| busy(&f.busy[0])),
                two(&|_, f| busy(&f.busy[2])),
                two(&|_, f| format!("{:.1} {:.1}", f.bytes() / 1e9, f.bytes_most / 1e9)),
                two(&|r, f| format!("{:.1}", r.runs + f.tables())),
                two(&|r, _| format!("{:.0}", r.lookup_seconds * 1e6)),
                two(&|r, _| format!("{:.0}", r.seek_seconds * 1e6)),
            ];
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }
}

/// Sizes memtables and index tables as `scripts/bench_hybrid` does, unless the options differ from their defaults: the
/// same memory for unflushed data. With levels on the fast device, L0, L1 and pending compaction are smaller than in
/// the script, so that they never exceed the fast bytes. The script's sizes are only targets; it reports what was used.
pub(crate) fn size_up(s: &mut Settings) -> Vec<String> {
    let Some(fast) = &mut s.fast else { return Vec::new() };
    fn unless_given<T: PartialEq>(now: &mut T, usual: T, by_size: T) {
        if *now == usual {
            *now = by_size;
        }
    }
    let (o, usual, usual_fast) = (&mut s.options, rockmill::Options::default().cf, Fast::default());
    let memtable = (fast.capacity / 16).min(64 << 20);
    unless_given(&mut o.write_buffer_size, usual.write_buffer_size, memtable as usize);
    unless_given(&mut o.target_file_size_base, usual.target_file_size_base, memtable);
    // Static level sizes, as in RocksDB with several paths.
    o.level_compaction_dynamic_level_bytes = false;
    let base = match fast.front {
        Front::Index => fast.capacity.saturating_sub(2 * o.write_buffer_size as u64) / 2,
        Front::Plain | Front::RocksDb => fast.capacity / L1_PART,
    };
    unless_given(&mut o.max_bytes_for_level_base, usual.max_bytes_for_level_base, base.max(1 << 20));
    let mut note = format!(
        "write_buffer_size={}, target_file_size_base={}, max_bytes_for_level_base={}, static level sizes",
        o.write_buffer_size, o.target_file_size_base, o.max_bytes_for_level_base
    );
    if fast.front == Front::Index {
        let entry = s.key_bytes + (ENTRY_OVERHEAD + ADDRESS) as u64;
        let inline = if s.value_bytes <= fast.inline_max { s.value_bytes } else { 0 };
        let most = fast.capacity / (s.key_bytes + s.value_bytes).max(1) * (entry + inline);
        let mut flush = (fast.capacity / 32).min(usual_fast.triggers.flush_bytes);
        if most > 2 * memtable {
            flush = flush.min(2 * memtable / 8);
        }
        unless_given(&mut fast.triggers.flush_bytes, usual_fast.triggers.flush_bytes, flush);
        let size = (fast.capacity / 128).min(usual_fast.index_size as u64).min(flush);
        unless_given(&mut fast.index_size, usual_fast.index_size, size as usize);
        let _ =
            write!(note, ", max_index_size={}, data_flush_trigger_size={}", fast.index_size, fast.triggers.flush_bytes);
    } else {
        // L0 counts like L1 (`LevelCompactionBuilder::GetPathId`), and no other level fits.
        let path = |name: &str, size| rockmill::DBPath::new(name, size).into_iter();
        let both = o.max_bytes_for_level_base.saturating_mul(2);
        o.cf_paths = path("/fast", both).chain(path("/slow", u64::MAX)).collect();
        unless_given(&mut o.level0_slowdown_writes_trigger, usual.level0_slowdown_writes_trigger, 6);
        unless_given(&mut o.level0_stop_writes_trigger, usual.level0_stop_writes_trigger, 7);
        let (soft, hard) = (usual.soft_pending_compaction_bytes_limit, usual.hard_pending_compaction_bytes_limit);
        unless_given(&mut o.soft_pending_compaction_bytes_limit, soft, WAITING * fast.capacity / 2);
        unless_given(&mut o.hard_pending_compaction_bytes_limit, hard, WAITING * fast.capacity);
        let _ = write!(
            note,
            ", level0_slowdown_writes_trigger={}, level0_stop_writes_trigger={}, \
             soft_pending_compaction_bytes_limit={}, hard_pending_compaction_bytes_limit={}",
            o.level0_slowdown_writes_trigger,
            o.level0_stop_writes_trigger,
            o.soft_pending_compaction_bytes_limit,
            o.hard_pending_compaction_bytes_limit
        );
    }
    vec![note]
}
