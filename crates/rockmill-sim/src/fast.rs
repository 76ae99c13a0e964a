//! A fast device in front of the slow one, and what is on it.
//!
//! Either logs whose values index tables point to (docs/hybrid.md), or, as a RocksDB with `db_paths` and `wal_dir` has
//! it, the WAL and the tables of L0 and L1. Both have the same strategies and write control.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;

use rockmill::internals::simulation::{
    FullMemtables, IndexQueues, IndexSchedule, LogsNow, ScheduleChange, Short, Triggers,
};
use serde_json::{Value, json};

use crate::engine::run_telling;
use crate::keys::{Cuts, Extent, KeySpace};
use crate::report::{Report, size};
use crate::settings::{Settings, SettingsError};

/// Bytes of a log record that are not key and value: headers of record and batch, lengths.
const RECORD_OVERHEAD: f64 = 24.0;
/// Bytes of an index table's entry beside the key, and of an address in it.
const ENTRY_OVERHEAD: f64 = 40.0;
const ADDRESS: f64 = 15.0;
/// Memory of memtables of the other front, as much as index tables have at most by their defaults.
const LEVELS_BUFFERS: i32 = 4;

/// What is on the fast device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Logs, which hold the values of index tables.
    Index,
    /// The WAL, L0 and L1.
    Levels,
}

impl Front {
    /// All, and their names.
    pub const ALL: [(&'static str, Self); 2] = [("index", Self::Index), ("levels", Self::Levels)];

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
    /// Bytes of logs at most. L0 and L1 have no such bound: they are sized by their options.
    pub capacity: u64,
    /// Bytes of memory of an index table (`max_index_size`).
    pub index_size: usize,
    /// When index tables are merged and flushed.
    pub triggers: Triggers,
    /// Values of up to so many bytes are in the index table (`index_inline_size`).
    pub inline_max: u64,
    /// CPU nanoseconds of an index merge for each entry that goes in.
    pub merge_ns: f64,
    /// CPU nanoseconds of a flush for each value that it reads from a log, beside those of any flush.
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
            inline_max: 64,
            merge_ns: 200.0,
            read_value_ns: 400.0,
        }
    }
}

impl Fast {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// The first such setting.
    pub fn check(&self) -> Result<(), SettingsError> {
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
        if self.capacity < 64 << 20 || self.index_size < 64 << 10 || self.triggers.flush_bytes < 64 << 10 {
            return bad("the fast device needs 64M, an index table and its flush 64K each".to_owned());
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

    /// CPU nanoseconds and bytes of the logs that a flush of so many entries needs.
    pub(crate) fn flush(&self, entries: f64, s: &Settings) -> (f64, f64) {
        match self.front == Front::Index && !self.keeps_inline(s) {
            true => (entries * self.read_value_ns, entries * s.value_bytes as f64),
            false => (0.0, 0.0),
        }
    }

    /// True where the tables of a level are on the fast device.
    pub(crate) fn holds(&self, level: usize) -> bool {
        self.front == Front::Levels && level <= 1
    }
}

/// A full memtable, or index table.
#[derive(Debug, Clone)]
pub(crate) struct Full {
    pub extent: Extent,
    /// Writes that it took, those included that newer ones replace.
    pub writes: f64,
    /// Bytes of memory; of index tables only.
    memory: f64,
    tier: u32,
}

/// Full memtables, oldest first, and when something is done with them.
pub(crate) struct FullTables {
    pub tables: VecDeque<Full>,
    /// So many of the oldest are being flushed.
    pub taken: usize,
    /// These are being merged.
    merging: Option<Range<usize>>,
    schedule: Option<IndexSchedule>,
}

impl FullTables {
    pub fn new(fast: Option<&Fast>) -> Self {
        let index = fast.filter(|f| f.front == Front::Index);
        let schedule = index.map(|f| IndexSchedule::new(f.triggers));
        Self { tables: VecDeque::new(), taken: 0, merging: None, schedule }
    }

    /// One is full, with that part of the writes that it takes.
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

    /// Looks at the queues. `filled`: writes in the table that is filled.
    pub fn reschedule(&mut self, filled: f64, s: &Settings, now: f64) -> Option<ScheduleChange> {
        let merge = self.rows().iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let queues = IndexQueues { merge, flush_bytes: self.memory() as u64, room: self.room(filled, s) };
        self.schedule.as_mut()?.decide(queues, now)
    }

    /// The part that is left of what bounds the memory of full index tables, or of the logs; as the store counts it.
    fn room(&self, filled: f64, s: &Settings) -> f64 {
        let Some(fast) = s.fast.as_ref().filter(|_| self.schedule.is_some()) else { return 1.0 };
        let memory = 1.0 - self.memory() / fast.triggers.memory_max(fast.index_size).max(1) as f64;
        let logs = self.logs(filled, s);
        memory.min(logs.room() as f64 / logs.capacity.max(1) as f64)
    }

    /// How much of the pace of flushes writers feel.
    pub fn pressure(&self, filled: f64, s: &Settings, now: f64) -> f64 {
        self.schedule.map_or(1.0, |schedule| schedule.pressure(self.room(filled, s), now))
    }

    /// How many times what the options say levels may hold.
    pub fn level_factor(&self) -> u64 {
        self.schedule.map_or(1, |schedule| schedule.level_factor())
    }

    /// As the store counts them (`front/wal_memtable/family.rs`).
    pub fn full_memtables(&self, s: &Settings) -> FullMemtables {
        match s.fast.as_ref().filter(|_| self.schedule.is_some()) {
            Some(f) => {
                let size = f.index_size.max(1);
                FullMemtables { full: self.memory() as usize / size, most: 1 + f.triggers.memory_max(size) / size }
            }
            None => FullMemtables { full: self.tables.len(), most: s.options.max_write_buffer_number.max(1) as usize },
        }
    }

    /// Bytes of the logs, with so many writes in the table that is filled.
    pub fn logs(&self, filled: f64, s: &Settings) -> LogsNow {
        let Some(fast) = s.fast.as_ref().filter(|_| self.schedule.is_some()) else { return LogsNow::UNBOUNDED };
        let bytes = |writes: f64| (writes * Fast::log_bytes(s)) as u64;
        LogsNow { newest: bytes(filled), others: bytes(self.writes()), capacity: fast.capacity }
    }

    /// How many of the oldest a flush is to take now.
    pub fn due(&self, logs: LogsNow) -> usize {
        match self.schedule {
            _ if self.taken > 0 || self.tables.is_empty() => 0,
            None => 1,
            Some(s) if self.memory() >= s.now().flush_bytes as f64 => self.tables.len(),
            Some(_) if logs.others.saturating_add(logs.newest) >= logs.capacity / 2 => self.tables.len(),
            Some(_) => 0,
        }
    }

    /// A flush takes these: an index merge of them is useless.
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

    /// Tables of one tier in a row, which no flush has.
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

    /// Begins an index merge, if one is due; the entries that go in.
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

    /// What the tables that a flush takes become.
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

/// Who uses the cores and the devices.
pub const TASKS: [&str; 4] = ["users", "index merge", "flush", "compaction"];

/// Seconds over which use is averaged before its deviation is taken.
const WINDOW: f64 = 1.0;

/// Use of the cores and of both devices, by task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Use {
    /// CPU seconds.
    pub cpu: [f64; 4],
    /// Bytes to and from the fast device.
    pub fast: [f64; 4],
    /// Bytes to and from the slow one.
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

/// What a run with a fast device came to, beside the rest.
#[derive(Debug, Clone, Default)]
pub struct FastReport {
    /// Used in all.
    pub used: Use,
    /// Bytes written to the fast device, and to the slow one.
    pub written: [f64; 2],
    /// Part of the cores in use, by windows of a second; the same of the fast device and of the slow one.
    pub busy: [Spread; 3],
    /// Bytes on the fast device: sum over time, and the most.
    bytes_time: f64,
    /// The most bytes on the fast device.
    pub bytes_most: f64,
    /// Full index tables that a read asks: sum over time.
    tables_time: f64,
    seconds: f64,
    /// Index merges that ended.
    pub merges: u64,
    /// Flushes that ended.
    pub flushes: u64,
    /// How often the triggers changed since a core was short, the device was, and neither.
    pub changes: [u64; 3],
    window: [f64; 3],
    in_window: f64,
}

impl FastReport {
    /// For so long, each second: use, bytes written to both devices, parts of cores and devices in use.
    pub(crate) fn pass(&mut self, step: f64, used: &Use, written: [f64; 2], parts: [f64; 3], held: (f64, usize)) {
        self.used.add(used, step);
        self.written[0] += written[0] * step;
        self.written[1] += written[1] * step;
        self.bytes_time += held.0 * step;
        self.bytes_most = self.bytes_most.max(held.0);
        self.tables_time += held.1 as f64 * step;
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

    /// Full index tables that a read asks, on average.
    pub fn tables(&self) -> f64 {
        self.tables_time / self.seconds.max(1e-9)
    }

    pub(crate) fn to_json(&self, s: &Settings, user: f64) -> Value {
        let r = crate::report::round;
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
            "index_merges": self.merges, "flushes": self.flushes,
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
    /// Cores, with index tables, with levels.
    pub runs: Vec<(usize, Report, Report)>,
}

impl FastComparison {
    /// Runs both with as many compaction threads as cores, and as much memory for what is in no table.
    ///
    /// # Errors
    /// Settings that make no sense, or have no fast device.
    pub fn run(settings: &Settings, cores: &[usize], mut tell: impl FnMut(f64, f64)) -> Result<Self, SettingsError> {
        let mut runs = Vec::new();
        for &cores in cores {
            let mut of = |front| {
                let mut s = Settings { cores: cores as f64, threads: cores, ..settings.clone() };
                let Some(fast) = &mut s.fast else {
                    return Err(SettingsError("there is no fast device".to_owned()));
                };
                fast.front = front;
                run_telling(&s, &mut tell)
            };
            runs.push((cores, of(Front::Index)?, of(Front::Levels)?));
        }
        Ok(Self { runs })
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let of = |(cores, index, levels): &(usize, Report, Report)| {
            json!({
                "cores": cores, "index": index.to_json(), "levels": levels.to_json(),
                "throughput": crate::report::round(index.throughput() / levels.throughput()),
            })
        };
        json!({"runs": self.runs.iter().map(of).collect::<Vec<_>>()})
    }

    /// For people: a table of Markdown.
    pub fn to_text(&self) -> String {
        let mut out = String::from(
            "| cores | MiB/s: index, levels | ratio | written, fast | written, slow | stalled, % | cores in use, % | \
             slow device, % | fast GiB, most | runs | a lookup, us | a seek, us |\n",
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
                two(&|r, _| format!("{:.0}", r.throughput() / f64::from(1 << 20))),
                format!("{:.2}", a.throughput() / b.throughput()),
                two(&|r, f| format!("{:.2}", f.written[0] / r.user_bytes.max(1.0))),
                two(&|r, f| format!("{:.2}", f.written[1] / r.user_bytes.max(1.0))),
                two(&|r, _| format!("{:.0}", stalled(r))),
                two(&|_, f| busy(&f.busy[0])),
                two(&|_, f| busy(&f.busy[2])),
                two(&|_, f| format!("{:.1}", f.bytes_most / f64::from(1 << 30))),
                two(&|r, f| format!("{:.1}", r.runs + f.tables())),
                two(&|r, _| format!("{:.0}", r.lookup_seconds * 1e6)),
                two(&|r, _| format!("{:.0}", r.seek_seconds * 1e6)),
            ];
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }
}

/// Sizes levels and memtables as a RocksDB of such a fast device is set up: L0 and L1 as large as the device allows,
/// which is what `db_paths` reckons with (L0 as large as L1), and as much memory as index tables have.
pub(crate) fn size_levels(s: &mut Settings) -> Vec<String> {
    let Some(fast) = s.fast.clone().filter(|f| f.front == Front::Levels) else { return Vec::new() };
    let given = rockmill::Options::default().cf;
    let o = &mut s.options;
    // Not with several paths (`LevelCompactionBuilder::GetPathId`).
    o.level_compaction_dynamic_level_bytes = false;
    if o.max_bytes_for_level_base == given.max_bytes_for_level_base {
        // A part is left for the WAL, and for compactions, whose input stays until the output is there.
        o.max_bytes_for_level_base = (fast.capacity / 4).max(o.max_bytes_for_level_base);
    }
    if o.max_write_buffer_number == given.max_write_buffer_number {
        let memory = fast.triggers.memory_max(fast.index_size) / o.write_buffer_size.max(1);
        o.max_write_buffer_number = (memory as i32).clamp(2, LEVELS_BUFFERS.max(2));
    }
    vec![format!(
        "WAL, L0 and L1 on the fast device: max_bytes_for_level_base={}, max_write_buffer_number={}, static level sizes",
        o.max_bytes_for_level_base, o.max_write_buffer_number
    )]
}
