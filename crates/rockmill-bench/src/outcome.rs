//! Results of a benchmark, as text in db_bench's form and as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use rockmill::EngineParts;
use serde_json::{Map, Value, json};

use crate::device::DeviceLimits;
use crate::flags::Flags;
use crate::machine::Machine;
use crate::measure::{Calls, ProcessUsage, Snapshot};
use crate::pairs;
use crate::place::Caches;
use crate::record::Recorder;
use crate::settings;
use crate::store::{OpKind, Stalls};
use crate::timeline::{Sample, Timeline};
use crate::usage;
use crate::workload::Workload;

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// A whole run.
#[derive(Debug)]
pub struct Report {
    /// Where and when.
    pub machine: Machine,
    /// The flags of the run; a side's own changes are in its notes.
    pub flags: Flags,
    /// The stores, in the order of their turns.
    pub sides: Vec<SideReport>,
    /// Every benchmark of every side and repetition.
    pub outcomes: Vec<Outcome>,
    /// The space of each side's data, if measured.
    pub spaces: Vec<SpaceUse>,
    /// The device's limits in each repetition, if measured.
    pub devices: Vec<DeviceLimits>,
    /// Whether the page cache was emptied between the sides, if there were several turns.
    pub caches: Option<Caches>,
    /// Why the kernel's tracepoints did not count the system calls, if they did not.
    pub calls_not_by_tracepoints: Option<String>,
}

/// A store of a run.
#[derive(Debug, Clone, Default)]
pub struct SideReport {
    /// Its name in this run.
    pub label: String,
    /// Its version.
    pub version: String,
    /// What readers of a figure must know.
    pub notes: Vec<String>,
    /// The settings that it says it has.
    pub settings: Vec<(String, String)>,
    /// Which of its engines were used, for stores with several engines.
    pub engine: Option<EngineReport>,
}

/// The engine that a side should use, and the work of each of the store's engines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineReport {
    /// The requested name.
    pub asked: String,
    /// Parts of jobs, over all repetitions.
    pub parts: EngineParts,
    /// The store's report about its engine when it was last closed.
    pub said: String,
}

impl EngineReport {
    /// Nothing done yet.
    pub(crate) fn asked(name: &str) -> Self {
        Self { asked: name.to_owned(), ..Self::default() }
    }

    /// Adds what a store did.
    pub(crate) fn add(&mut self, parts: EngineParts, said: Option<String>) {
        let p = &mut self.parts;
        p.pread += parts.pread;
        p.uring += parts.uring;
        p.kernel += parts.kernel;
        p.flushes_pread += parts.flushes_pread;
        p.flushes_uring += parts.flushes_uring;
        p.handed_over += parts.handed_over;
        self.said = said.unwrap_or_default();
    }

    /// Parts of compactions that another engine than the requested one did. Flushes are not merges: `kernel` is never
    /// used for them, and `uring` only with direct I/O (`use_direct_io_for_flush_and_compaction`).
    fn by_others(&self) -> u64 {
        let p = &self.parts;
        match self.asked.as_str() {
            "kernel" => p.pread + p.uring,
            "uring" => p.pread,
            _ => 0,
        }
    }
}

/// The difference between two snapshots.
pub(crate) fn parts_since(now: EngineParts, before: EngineParts) -> EngineParts {
    let mut out = now;
    out.pread -= before.pread;
    out.uring -= before.uring;
    out.kernel -= before.kernel;
    out.flushes_pread -= before.flushes_pread;
    out.flushes_uring -= before.flushes_uring;
    out.handed_over -= before.handed_over;
    out
}

/// The work of each engine as text; `None` if no job ran.
pub(crate) fn parts_text(p: &EngineParts) -> Option<String> {
    let list = |what: &str, all: &[(&str, u64)]| {
        let all: Vec<String> = all.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        (!all.is_empty()).then(|| format!("{what} {}", all.join(", ")))
    };
    let compactions = list("compaction parts", &[("pread", p.pread), ("uring", p.uring), ("kernel", p.kernel)]);
    let flushes = list("flushes", &[("pread", p.flushes_pread), ("uring", p.flushes_uring)]);
    let handed = (p.handed_over > 0).then(|| format!("handed over by kernel {}", p.handed_over));
    let all: Vec<String> = [compactions, flushes, handed].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn sample_json(s: &Sample) -> Value {
    json!({
        "seconds": s.seconds,
        "operations": s.ops,
        "background_operations": s.background_ops,
        "stall_micros": s.stall_micros,
        "held_back_by": s.reason,
        "level_bytes": s.levels,
        "running_jobs": s.jobs,
        "compaction_threads": s.threads,
        "use": usage::sample_json(&s.used),
    })
}

pub(crate) fn parts_json(p: &EngineParts) -> Value {
    json!({
        "compaction_parts": { "pread": p.pread, "uring": p.uring, "kernel": p.kernel },
        "flushes": { "pread": p.flushes_pread, "uring": p.flushes_uring },
        "handed_over_by_kernel": p.handed_over,
    })
}

impl SideReport {
    /// Adds the engines' work of another repetition.
    pub(crate) fn add_engine(&mut self, more: Option<EngineReport>) {
        if let (Some(known), Some(more)) = (&mut self.engine, more) {
            known.add(more.parts, Some(more.said));
        }
    }

    /// The notes, and which engines worked.
    pub(crate) fn all_notes(&self) -> Vec<String> {
        let engines = self.engine.as_ref().and_then(|e| parts_text(&e.parts));
        self.notes.iter().cloned().chain(engines).collect()
    }

    /// A warning if another engine than the requested one was used, with the store's reason.
    pub(crate) fn engine_warning(&self) -> Option<String> {
        let engine = self.engine.as_ref()?;
        let others = engine.by_others();
        (others > 0).then(|| {
            format!(
                "WARNING: {}: {others} of the parts that engine {} was to do were done by another (the store says: {})",
                self.label, engine.asked, engine.said
            )
        })
    }

    pub(crate) fn engine_json(&self) -> Value {
        self.engine.as_ref().map_or(Value::Null, |e| {
            let mut v = parts_json(&e.parts);
            v["asked"] = e.asked.as_str().into();
            v["said"] = e.said.as_str().into();
            v["warning"] = self.engine_warning().into();
            v
        })
    }
}

/// What one benchmark gave.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub workload: Workload,
    /// Its place in the list of benchmarks.
    pub position: usize,
    /// The side, by its place in [`Report::sides`].
    pub side: usize,
    /// The repetition, from 0.
    pub repetition: usize,
    /// Threads whose operations are counted.
    pub threads: usize,
    /// Operations, bytes, time and latencies of all of them.
    pub record: Recorder,
    /// The same of threads that are only load.
    pub background: Recorder,
    /// What process and device did meanwhile.
    pub cost: Snapshot,
    /// The peak of memory is of this benchmark alone.
    pub peak_is_of_phase: bool,
    /// Resident memory before the side's store was first opened: of the harness, and left by other sides.
    pub rss_without_store_bytes: u64,
    /// The work of each engine meanwhile, for stores with several engines.
    pub parts: Option<EngineParts>,
    /// How long writers were delayed or stopped meanwhile, and why.
    pub stalls: StallTotals,
    /// Throughput, stalls and levels over time.
    pub timeline: Timeline,
    /// The time to open the database, if this benchmark did: includes the recovery of its logs, if there were any.
    pub opened: Option<Duration>,
    /// Of `stats`.
    pub stats: Option<String>,
    /// Of `device`.
    pub device: Option<DeviceLimits>,
}

/// Stalls of one benchmark.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StallTotals {
    /// Microseconds that writers were delayed; the total for a store that does not distinguish delays from stops.
    pub delayed_micros: u64,
    /// Microseconds that they were stopped.
    pub stopped_micros: u64,
    /// Microseconds by reason, as far as samples showed one.
    pub by_reason: Vec<(String, u64)>,
    /// Delayed or stopped writes by reason, as counted by the store.
    pub counts: Vec<(String, u64)>,
}

impl StallTotals {
    /// The difference between two snapshots.
    pub fn between(before: &Stalls, after: &Stalls, timeline: &Timeline) -> Self {
        let of = |name: &str| before.counts.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
        let counts = after.counts.iter().map(|(name, n)| (name.clone(), n.saturating_sub(of(name))));
        Self {
            delayed_micros: after.delayed_micros.saturating_sub(before.delayed_micros),
            stopped_micros: after.stopped_micros.saturating_sub(before.stopped_micros),
            by_reason: timeline.stalls_by_reason(),
            counts: counts.filter(|(_, n)| *n > 0).collect(),
        }
    }

    /// Both kinds together.
    pub fn micros(&self) -> u64 {
        self.delayed_micros + self.stopped_micros
    }
}

/// The space of data: on the disk, and as stored by users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceUse {
    /// The side.
    pub side: usize,
    /// The repetition.
    pub repetition: usize,
    /// Entries that a scan finds.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Bytes of the database's files.
    pub file_bytes: u64,
    /// Their current disk usage: preallocated space counts, holes do not.
    pub disk_bytes: u64,
    /// Bytes of each level.
    pub levels: Vec<u64>,
}

impl SpaceUse {
    /// Bytes of files for each byte that users stored.
    pub fn amplification(&self) -> f64 {
        self.file_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// The latencies that reports show, in microseconds.
pub(crate) fn latency_numbers(h: &Histogram<u64>) -> [(&'static str, f64); 7] {
    let at = |q: f64| h.value_at_quantile(q) as f64 / 1e3;
    [
        ("mean", h.mean() / 1e3),
        ("p50", at(0.5)),
        ("p95", at(0.95)),
        ("p99", at(0.99)),
        ("p99.9", at(0.999)),
        ("p99.99", at(0.9999)),
        ("max", h.max() as f64 / 1e3),
    ]
}

impl Outcome {
    /// Nothing done yet.
    pub(crate) fn new(workload: Workload, side: usize, repetition: usize, threads: usize) -> Self {
        let cost = Snapshot { usage: ProcessUsage::default(), device: None, calls: Calls::default() };
        Self {
            workload,
            position: 0,
            side,
            repetition,
            threads,
            record: Recorder::new(false),
            background: Recorder::new(false),
            cost,
            peak_is_of_phase: false,
            rss_without_store_bytes: 0,
            parts: None,
            stalls: StallTotals::default(),
            timeline: Timeline::default(),
            opened: None,
            stats: None,
            device: None,
        }
    }

    /// Operations per second of elapsed time.
    pub fn ops_per_second(&self) -> f64 {
        self.record.ops.max(1) as f64 / self.record.elapsed.as_secs_f64().max(1e-9)
    }

    /// Microseconds of a thread per operation.
    pub fn micros_per_op(&self) -> f64 {
        self.record.thread_time.as_secs_f64() * 1e6 / self.record.ops.max(1) as f64
    }

    /// Peak of memory above what was resident before the store was opened.
    pub fn memory_bytes(&self) -> u64 {
        self.cost.usage.peak_rss_bytes.saturating_sub(self.rss_without_store_bytes)
    }

    /// Bytes that the process made the device write for each byte that users wrote; `None` if they wrote nothing.
    pub fn write_amplification(&self) -> Option<f64> {
        let wrote = self.record.wrote + self.background.wrote;
        (wrote > 0).then(|| self.cost.usage.device_write_bytes as f64 / wrote as f64)
    }

    /// Bytes that the process made the device read for each byte that users got; `None` if they got nothing.
    pub fn read_amplification(&self) -> Option<f64> {
        let read = self.record.read + self.background.read;
        (read > 0).then(|| self.cost.usage.device_read_bytes as f64 / read as f64)
    }

    /// The text after the rate in db_bench's line: what was found and done.
    fn message(&self) -> String {
        let r = &self.record;
        let (found, of) = (r.found.unwrap_or(0), |kind| r.of_kind(kind));
        match self.workload {
            Workload::ReadRandomWriteRandom => {
                format!(" ( reads:{} writes:{} total:{} found:{found})", of(OpKind::Read), of(OpKind::Write), r.ops)
            }
            Workload::UpdateRandom => format!(" ( updates:{} found:{found})", r.ops),
            Workload::MergeRandom => format!(" ( updates:{})", r.ops),
            Workload::MixGraph => format!(
                " ( Gets:{} Puts:{} Seek:{}, reads {found} in {} found, avg size: {:.1} value, {:.1} scan)",
                of(OpKind::Read),
                of(OpKind::Write),
                of(OpKind::Seek),
                of(OpKind::Read) + of(OpKind::Seek),
                r.value_bytes as f64 / of(OpKind::Write).max(1) as f64,
                r.scanned as f64 / of(OpKind::Seek).max(1) as f64
            ),
            w if w.is_ycsb() => {
                let kinds = OpKind::ALL.into_iter().filter(|k| of(*k) > 0);
                let kinds: Vec<String> = kinds.map(|k| format!("{}:{}", k.name(), of(k))).collect();
                format!(" ( {} )", kinds.join(" "))
            }
            _ => r.found.map(|found| format!(" ({found} of {} found)", r.ops)).unwrap_or_default(),
        }
    }

    /// The text: db_bench's line, then additional figures, indented.
    pub fn to_text(&self) -> String {
        if let Some(d) = &self.device {
            return d.to_text();
        }
        if let Some(stats) = &self.stats {
            return format!("{stats}\n");
        }
        let seconds = self.record.elapsed.as_secs_f64();
        let mut extra = String::new();
        if self.record.bytes() > 0 {
            extra = format!(" {:6.1} MB/s", self.record.bytes() as f64 / MIB / seconds.max(1e-9));
        }
        extra += &self.message();
        let mut text = format!(
            "{:<12} : {:11.3} micros/op {} ops/sec {seconds:.3} seconds {} operations;{extra}\n",
            self.workload.name(),
            self.micros_per_op(),
            self.ops_per_second() as u64,
            self.record.ops.max(1),
        );
        for (kind, h) in self.record.latencies().filter(|(kind, _)| *kind != OpKind::Job) {
            text += &histogram_text(kind, h);
        }
        text + &self.cost_text()
    }

    fn cost_text(&self) -> String {
        let u = &self.cost.usage;
        let mut text = format!(
            "  cpu {:.2} s user {:.2} s system; peak RSS {:.1} MB; device {:.1} MB read {:.1} MB written; switches {} \
             voluntary {} forced\n",
            u.user.as_secs_f64(),
            u.system.as_secs_f64(),
            u.peak_rss_bytes as f64 / MIB,
            u.device_read_bytes as f64 / MIB,
            u.device_write_bytes as f64 / MIB,
            u.voluntary_switches,
            u.involuntary_switches,
        );
        let calls = &self.cost.calls;
        if calls.total() > 0 {
            let each = calls.counts.iter().filter(|(name, n)| *n > 0 && *name != "all");
            let each: Vec<String> = each.map(|(name, n)| format!("{name} {n}")).collect();
            text += &format!("  calls {}: {} ({})\n", calls.total(), each.join(", "), calls.counted_by);
        }
        let amplification: Vec<String> = [("write", self.write_amplification()), ("read", self.read_amplification())]
            .into_iter()
            .filter_map(|(name, x)| Some(format!("{name} {:.2}", x?)))
            .collect();
        if !amplification.is_empty() {
            text += &format!("  amplification: {}", amplification.join(", "));
            if let Some(d) = &self.cost.device {
                text += &format!(
                    "; the whole device, whoever used it: {:.1} MB read {:.1} MB written",
                    d.read as f64 / MIB,
                    d.written as f64 / MIB
                );
            }
            text += "\n";
        }
        if let Some(parts) = self.parts.as_ref().and_then(parts_text) {
            text += &format!("  engines: {parts}\n");
        }
        text += &usage::text(&self.timeline);
        let s = &self.stalls;
        if s.micros() > 0 {
            let list = |all: &[(String, u64)], unit: &str| {
                let all: Vec<String> = all.iter().map(|(name, n)| format!("{name} {n}{unit}")).collect();
                all.join(", ")
            };
            text += &format!("  stalls: {} us delayed, {} us stopped", s.delayed_micros, s.stopped_micros);
            if !s.by_reason.is_empty() {
                text += &format!("; by the reason seen: {}", list(&s.by_reason, " us"));
            }
            if !s.counts.is_empty() {
                text += &format!("; counted: {}", list(&s.counts, ""));
            }
            text += "\n";
        }
        text
    }

    fn to_json(&self, sides: &[SideReport]) -> Value {
        let seconds = |d: Duration| d.as_secs_f64();
        let u = &self.cost.usage;
        let names = |all: &[(String, u64)]| -> Map<String, Value> {
            all.iter().map(|(name, n)| (name.clone(), (*n).into())).collect()
        };
        let mut v = json!({
            "benchmark": self.workload.name(),
            "position": self.position,
            "store": sides.get(self.side).map_or("", |s| s.label.as_str()),
            "repetition": self.repetition,
            "threads": self.threads,
            "operations": self.record.ops,
            "bytes": self.record.bytes(),
            "bytes_written_by_user": self.record.wrote + self.background.wrote,
            "bytes_read_by_user": self.record.read + self.background.read,
            "seconds": seconds(self.record.elapsed),
            "ops_per_second": self.ops_per_second(),
            "micros_per_op": self.micros_per_op(),
            "cpu_user_seconds": seconds(u.user),
            "cpu_system_seconds": seconds(u.system),
            "voluntary_switches": u.voluntary_switches,
            "involuntary_switches": u.involuntary_switches,
            "peak_rss_bytes": u.peak_rss_bytes,
            "peak_rss_is_of_this_benchmark": self.peak_is_of_phase,
            "rss_without_store_bytes": self.rss_without_store_bytes,
            "memory_bytes": self.memory_bytes(),
            "device_read_bytes": u.device_read_bytes,
            "device_write_bytes": u.device_write_bytes,
            "read_calls": u.read_calls,
            "write_calls": u.write_calls,
            "calls": self.cost.calls.counts.iter().map(|(n, c)| ((*n).to_owned(), (*c).into()))
                .collect::<Map<String, Value>>(),
            "calls_counted_by": self.cost.calls.counted_by,
            "write_amplification": self.write_amplification(),
            "read_amplification": self.read_amplification(),
            "stall_delayed_micros": self.stalls.delayed_micros,
            "stall_stopped_micros": self.stalls.stopped_micros,
            "stall_micros_by_reason": names(&self.stalls.by_reason),
            "stall_counts": names(&self.stalls.counts),
            "ops_per_second_of_each_second": self.timeline.per_second(),
            "samples": self.timeline.samples.iter().map(sample_json).collect::<Vec<_>>(),
        });
        // Flushes, then compactions by the level that they began at, from L0.
        v["mean_running_jobs"] = self.timeline.mean_jobs().into();
        v["running_jobs_deviation"] = self.timeline.jobs_deviation().into();
        let (mean, deviation) = self.timeline.threads();
        v["compaction_threads"] = json!({
            "mean": mean,
            "deviation": deviation,
            "at_most_share_of_samples": self.timeline.threads_at_most(),
        });
        v["use"] = usage::to_json(&self.timeline);
        if let Some(took) = self.opened {
            v["opened_in_seconds"] = seconds(took).into();
        }
        if let Some(d) = &self.cost.device {
            v["whole_device"] = json!({ "read_bytes": d.read, "written_bytes": d.written });
        }
        if let Some(found) = self.record.found {
            v["found"] = found.into();
        }
        if let Some(parts) = &self.parts {
            v["engines"] = parts_json(parts);
        }
        let kinds: Map<String, Value> = self
            .record
            .latencies()
            .map(|(kind, h)| {
                let mut numbers: Map<String, Value> =
                    latency_numbers(h).into_iter().map(|(n, x)| (n.to_owned(), x.into())).collect();
                numbers.insert("count".to_owned(), h.len().into());
                numbers.insert("p90".to_owned(), (h.value_at_quantile(0.9) as f64 / 1e3).into());
                (kind.name().to_owned(), numbers.into())
            })
            .collect();
        if !kinds.is_empty() {
            v["latency_micros"] = kinds.into();
        }
        if let Some(stats) = &self.stats {
            v["stats"] = stats.as_str().into();
        }
        if let Some(d) = &self.device {
            v["device"] = d.to_json();
        }
        v
    }
}

/// A histogram in db_bench's words.
fn histogram_text(kind: OpKind, h: &Histogram<u64>) -> String {
    let at = |p: f64| h.value_at_percentile(p) as f64 / 1e3;
    format!(
        "Microseconds per {}:\nCount: {} Average: {:.4}  StdDev: {:.2}\nMin: {:.3}  Median: {:.4}  Max: {:.3}\n\
         Percentiles: P50: {:.2} P75: {:.2} P95: {:.2} P99: {:.2} P99.9: {:.2} P99.99: {:.2}\n",
        kind.name(),
        h.len(),
        h.mean() / 1e3,
        h.stdev() / 1e3,
        h.min() as f64 / 1e3,
        at(50.0),
        h.max() as f64 / 1e3,
        at(50.0),
        at(75.0),
        at(95.0),
        at(99.0),
        at(99.9),
        at(99.99)
    )
}

impl Report {
    /// The header of the results: versions, sizes, machine.
    pub(crate) fn header(&self) -> String {
        let f = &self.flags;
        let raw = f.num as f64 * (f.key_size + f.value_size) as f64 / MIB;
        let calls = match &self.calls_not_by_tracepoints {
            None => format!("counted by the {}", Calls::TRACEPOINTS),
            Some(why) => format!("not counted by the {}: {why}", Calls::TRACEPOINTS),
        };
        let sides: Vec<&str> = self.sides.iter().map(|s| s.label.as_str()).collect();
        format!(
            "Rockmill:   version {}\nMachine:    {}\nStores:     {}; settings: {}\nKeys:       {} bytes each\n\
             Values:     {} bytes each ({} bytes after compression)\nEntries:    {}\nRawSize:    {raw:.1} MB \
             (estimated)\nCompression: {}\nThreads:    {}\nCalls:      {calls}\n\
             ------------------------------------------------\n",
            env!("CARGO_PKG_VERSION"),
            self.machine.to_text(),
            sides.join(", "),
            f.settings,
            f.key_size,
            f.value_size,
            (f.value_size as f64 * f.compression_ratio + 0.5) as u64,
            f.num,
            f.compression_type,
            f.threads,
        )
    }

    /// A page with charts, in one file.
    pub fn to_html(&self) -> String {
        crate::page::page(self)
    }

    /// The whole run: machine, settings, results, comparisons.
    pub fn to_json(&self) -> Value {
        let map = |all: &[(String, String)]| -> Map<String, Value> {
            all.iter().map(|(n, v)| (n.clone(), v.as_str().into())).collect()
        };
        let flags: Map<String, Value> =
            self.flags.settings().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let first = self.sides.first().map(|s| s.settings.clone()).unwrap_or_default();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine.to_json(),
            "settings": flags,
            "stores": self.sides.iter().map(|s| json!({
                "name": s.label,
                "version": s.version,
                "notes": s.notes,
                "engine": s.engine_json(),
                "settings": map(&s.settings),
                "differs_from_first": settings::differences(&first, &s.settings).into_iter()
                    .map(|(name, a, b)| json!({ "option": name, "first": a, "here": b })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "page_cache": self.caches.as_ref().map(Caches::to_text),
            "system_calls_not_by_tracepoints_because": self.calls_not_by_tracepoints,
            "devices": self.devices.iter().map(|d| d.to_json()).collect::<Vec<_>>(),
            "results": self.outcomes.iter().map(|o| o.to_json(&self.sides)).collect::<Vec<_>>(),
            "space": self.spaces.iter().map(|s| json!({
                "store": self.sides.get(s.side).map_or("", |side| side.label.as_str()),
                "repetition": s.repetition,
                "entries": s.entries,
                "bytes_of_keys_and_values": s.bytes,
                "file_bytes": s.file_bytes,
                "disk_bytes": s.disk_bytes,
                "space_amplification": s.amplification(),
                "level_bytes": s.levels,
            })).collect::<Vec<_>>(),
            "comparisons": pairs::comparisons(self).iter().map(pairs::Comparison::to_json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Done;

    fn outcome(timed: bool) -> Outcome {
        let mut o = Outcome::new(Workload::FillRandom, 0, 0, 1);
        o.record = Recorder::new(timed);
        o.record.finished(Done::write(1_000_000, 116_000_000));
        o.record.elapsed = Duration::from_millis(2345);
        o.record.thread_time = o.record.elapsed;
        o.cost.usage.device_write_bytes = 232_000_000;
        o.stalls = StallTotals {
            delayed_micros: 5,
            stopped_micros: 7,
            by_reason: vec![("memtables".to_owned(), 12)],
            counts: vec![],
        };
        o
    }

    fn report(outcomes: Vec<Outcome>) -> Report {
        let side = |label: &str| SideReport { label: label.into(), version: "1".into(), ..SideReport::default() };
        Report {
            machine: Machine::default(),
            flags: Flags::default(),
            sides: vec![side("rockmill"), side("rocksdb")],
            outcomes,
            spaces: vec![],
            devices: vec![],
            caches: Some(Caches::OwnFiles("no permission".to_owned())),
            calls_not_by_tracepoints: Some("no permission".to_owned()),
        }
    }

    #[test]
    fn the_line_is_db_benchs() {
        let text = outcome(false).to_text();
        let line = text.lines().next().unwrap();
        assert_eq!(
            line,
            "fillrandom   :       2.345 micros/op 426439 ops/sec 2.345 seconds 1000000 operations;   47.2 MB/s"
        );
        assert!(text.contains("5 us delayed, 7 us stopped; by the reason seen: memtables 12 us"), "{text}");
        assert!(text.contains("amplification: write 2.00"), "{text}");
        assert!(!text.contains("Percentiles"));
        let timed = outcome(true).to_text();
        assert!(timed.contains("Microseconds per write:\nCount: 1 Average: ") && timed.contains(" P99.9: "), "{timed}");
    }

    #[test]
    fn another_engine_than_was_asked_for_is_said() {
        let mut parts = EngineParts::default();
        (parts.uring, parts.kernel, parts.flushes_uring, parts.handed_over) = (2, 5, 3, 1);
        let side = |asked: &str, parts: EngineParts| {
            let mut engine = EngineReport::asked(asked);
            engine.add(parts, Some("its words".to_owned()));
            SideReport { label: "rockmill".to_owned(), engine: Some(engine), ..SideReport::default() }
        };
        let kernel = side("kernel", parts);
        let warning = kernel.engine_warning().expect("a warning");
        assert!(warning.contains("2 of the parts that engine kernel was to do") && warning.contains("its words"));
        assert_eq!(
            kernel.all_notes(),
            ["compaction parts uring 2, kernel 5; flushes uring 3; handed over by kernel 1".to_owned()]
        );
        assert_eq!(kernel.engine_json()["handed_over_by_kernel"], 1);
        assert_eq!(kernel.engine_json()["warning"], warning);
        (parts.uring, parts.handed_over) = (0, 0);
        assert_eq!(side("kernel", parts).engine_warning(), None, "a flush is no merge");
        assert_eq!(side("auto", parts).engine_warning(), None);
        (parts.uring, parts.kernel, parts.flushes_pread) = (1, 0, 1);
        assert_eq!(side("uring", parts).engine_warning(), None, "a flush goes through the page cache");
        parts.pread = 1;
        assert!(side("uring", parts).engine_warning().is_some());
        assert_eq!(parts_text(&EngineParts::default()), None);
    }

    #[test]
    fn messages_are_db_benchs() {
        let line = |workload: Workload, done: &[Done], found: Option<u64>| {
            let mut o = Outcome::new(workload, 0, 0, 1);
            done.iter().for_each(|d| o.record.finished(*d));
            o.record.found = found;
            o.message()
        };
        let (read, write) = (Done::read(0), Done::write(1, 0));
        assert_eq!(line(Workload::ReadRandom, &[read, read], Some(1)), " (1 of 2 found)");
        let both = line(Workload::ReadRandomWriteRandom, &[read, write, read], Some(2));
        assert_eq!(both, " ( reads:2 writes:1 total:3 found:2)");
        assert_eq!(line(Workload::MergeRandom, &[write], None), " ( updates:1)");
        let mix = line(Workload::MixGraph, &[read, write], Some(1));
        assert_eq!(mix, " ( Gets:1 Puts:1 Seek:0, reads 1 in 1 found, avg size: 0.0 value, 0.0 scan)");
        assert_eq!(line(Workload::YcsbA, &[read, read], Some(2)), " ( read:2 )");
    }

    #[test]
    fn json_holds_settings_and_figures() {
        let v = report(vec![outcome(true)]).to_json();
        assert_eq!(v["settings"]["value_size"], "100");
        let r = &v["results"][0];
        assert_eq!((r["benchmark"].as_str(), r["store"].as_str()), (Some("fillrandom"), Some("rockmill")));
        assert_eq!(r["operations"], 1_000_000);
        assert!((r["ops_per_second"].as_f64().unwrap() - 426_439.0).abs() < 1.0);
        assert!(r["latency_micros"]["write"]["p99.9"].is_number() && r["stall_stopped_micros"] == 7);
        assert_eq!(r["stall_micros_by_reason"]["memtables"], 12);
        assert_eq!(r["write_amplification"], 2.0);
        assert_eq!(v["system_calls_not_by_tracepoints_because"], "no permission");
    }
}
