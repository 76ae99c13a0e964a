//! Results of `rockmill bench compact`: as text and as JSON. The page is in `page/compact.rs`.

use std::time::Duration;

use rockmill::EngineParts;
use serde_json::{Map, Value, json};

use super::flags::{Case, CompactFlags};
use super::job_log::JobLog;
use crate::device::MixedLimit;
use crate::machine::Machine;
use crate::measure::{Calls, Snapshot};
use crate::outcome::{EngineReport, MIB, SideReport, parts_json, parts_text};
use crate::pairs::median;
use crate::{settings, tables};

/// Bytes of a decimal gigabyte, as used for devices and in papers.
const GB: f64 = 1e9;

/// A whole run.
#[derive(Debug)]
pub struct CompactReport {
    /// Where and when.
    pub machine: Machine,
    /// The flags.
    pub flags: CompactFlags,
    /// The stores, in the order of the command line.
    pub sides: Vec<SideReport>,
    /// What each case gave.
    pub cases: Vec<CaseReport>,
    /// Why the kernel's tracepoints did not count the system calls, if they did not.
    pub calls_not_by_tracepoints: Option<String>,
}

/// One case.
#[derive(Debug)]
pub struct CaseReport {
    /// Which.
    pub case: Case,
    /// Who wrote the inputs.
    pub written_by: String,
    /// Bytes of the input tables.
    pub input_bytes: u64,
    /// Entries in them.
    pub entries: u64,
    /// Jobs of all sides and repetitions.
    pub runs: Vec<JobRun>,
    /// The device's limit, once a repetition.
    pub limits: Vec<MixedLimit>,
}

/// One job.
#[derive(Debug, Clone)]
pub struct JobRun {
    /// The side, by its place in [`CompactReport::sides`].
    pub side: usize,
    /// The repetition, from 0.
    pub repetition: usize,
    /// What the caller of `compact_range` waited.
    pub wall: Duration,
    /// What it cost.
    pub cost: Snapshot,
    /// Which engine did its parts, for stores with several engines.
    pub parts: Option<EngineParts>,
    /// The store's report about its engine afterwards.
    pub engine: Option<String>,
    /// What the store says of the job.
    pub job: JobLog,
}

impl JobRun {
    /// CPU time of the process, in seconds.
    pub fn cpu(&self) -> f64 {
        (self.cost.usage.user + self.cost.usage.system).as_secs_f64()
    }
}

/// Two sides on one case, repetition by repetition.
#[derive(Debug, Clone)]
pub struct JobPair {
    /// The first side.
    pub first: usize,
    /// The other.
    pub other: usize,
    /// The other's time divided by the first's: the speedup of the first.
    pub speedup: Vec<f64>,
    /// The first's CPU time over the other's.
    pub cpu: Vec<f64>,
    /// The first's system calls over the other's.
    pub calls: Vec<f64>,
}

/// Median, least and most.
pub(crate) fn spread(all: &[f64]) -> (f64, f64, f64) {
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (median(all), least, most)
}

/// `2.31 (2.20..2.44)`
pub(crate) fn spread_text(all: &[f64]) -> String {
    if all.is_empty() {
        return "-".to_owned();
    }
    let (middle, least, most) = spread(all);
    format!("{middle:.2} ({least:.2}..{most:.2})")
}

impl CaseReport {
    /// A figure of a side, in the order of repetitions.
    pub(crate) fn values(&self, side: usize, of: &dyn Fn(&JobRun) -> f64) -> Vec<f64> {
        let mut its: Vec<&JobRun> = self.runs.iter().filter(|r| r.side == side).collect();
        its.sort_by_key(|r| r.repetition);
        its.into_iter().map(of).collect()
    }

    /// Gigabytes of input.
    pub fn input_gb(&self) -> f64 {
        self.input_bytes as f64 / GB
    }

    /// Gigabytes of input for each second.
    pub fn gb_per_second(&self, run: &JobRun) -> f64 {
        self.input_gb() / run.wall.as_secs_f64().max(1e-9)
    }

    /// CPU seconds for each gigabyte of input.
    pub fn cpu_per_gb(&self, run: &JobRun) -> f64 {
        run.cpu() / self.input_gb()
    }

    /// System calls for each gigabyte of input.
    pub fn calls_per_gb(&self, run: &JobRun) -> f64 {
        run.cost.calls.total() as f64 / self.input_gb()
    }

    /// The device's time for the same bytes, divided by the job's; `None` before it was measured.
    pub fn share_of_limit(&self, run: &JobRun) -> Option<f64> {
        Some(self.limits.get(run.repetition)?.seconds / run.wall.as_secs_f64().max(1e-9))
    }

    /// Each side with each one behind it.
    pub fn pairs(&self, sides: usize) -> Vec<JobPair> {
        let mut out = Vec::new();
        for first in 0..sides {
            for other in first + 1..sides {
                let over = |of: &dyn Fn(&JobRun) -> f64| -> Vec<f64> {
                    let (a, b) = (self.values(first, of), self.values(other, of));
                    a.iter().zip(&b).filter(|(_, b)| **b > 0.0).map(|(a, b)| a / b).collect()
                };
                out.push(JobPair {
                    first,
                    other,
                    speedup: over(&|r| 1.0 / r.wall.as_secs_f64().max(1e-9)),
                    cpu: over(&JobRun::cpu),
                    calls: over(&|r| r.cost.calls.total() as f64),
                });
            }
        }
        out
    }

    pub(super) fn header(&self) -> String {
        format!(
            "--- {}: {} entries, {:.0} MB in tables, written by {}\n",
            self.case.name(),
            self.entries,
            self.input_bytes as f64 / MIB,
            self.written_by
        )
    }

    pub(super) fn line(&self, label: &str, run: &JobRun) -> String {
        format!(
            "{label:<12} : {:.3} s; {:.2} GB/s of input; CPU {:.3} s/GB ({:.0} % kernel); {:.0} system calls/GB; {:.0} MB \
             read, {:.0} MB written; {} tables{}\n",
            run.wall.as_secs_f64(),
            self.gb_per_second(run),
            self.cpu_per_gb(run),
            100.0 * run.cost.usage.system.as_secs_f64() / run.cpu().max(1e-9),
            self.calls_per_gb(run),
            run.cost.usage.device_read_bytes as f64 / MIB,
            run.cost.usage.device_write_bytes as f64 / MIB,
            run.job.output_files,
            run.parts.as_ref().and_then(parts_text).map_or(String::new(), |parts| format!("; {parts}")),
        )
    }

    /// The engines that did a side's jobs, with their parts: `uring 4, kernel 1 (1 handed over)`.
    pub(crate) fn engines(&self, side: usize) -> String {
        let mut all = EngineReport::default();
        let its = self.runs.iter().filter(|r| r.side == side).filter_map(|r| r.parts);
        its.for_each(|parts| all.add(parts, None));
        let p = all.parts;
        let named = [("pread", p.pread), ("uring", p.uring), ("kernel", p.kernel)];
        let named: Vec<String> = named.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
        match (named.is_empty(), p.handed_over) {
            (true, _) => "-".to_owned(),
            (false, 0) => named.join(", "),
            (false, n) => format!("{} ({n} handed over)", named.join(", ")),
        }
    }

    pub(super) fn limit_line(&self, limit: &MixedLimit) -> String {
        format!(
            "{:<12} : {:.3} s for the same bytes ({:.0} MB read, {:.0} MB written at once); {:.2} GB/s of input{}\n",
            "device",
            limit.seconds,
            limit.read as f64 / MIB,
            limit.written as f64 / MIB,
            self.input_gb() / limit.seconds.max(1e-9),
            if limit.ring { "" } else { "; by plain calls, there is no io_uring here" }
        )
    }

    fn to_json(&self, sides: &[SideReport]) -> Value {
        let label = |side: usize| sides.get(side).map_or("", |s| s.label.as_str());
        let of_side = |side: usize| {
            let middle = |of: &dyn Fn(&JobRun) -> f64| median(&self.values(side, of));
            json!({
                "store": label(side),
                "wall_seconds": middle(&|r| r.wall.as_secs_f64()),
                "input_gb_per_second": middle(&|r| self.gb_per_second(r)),
                "cpu_seconds_per_gb": middle(&|r| self.cpu_per_gb(r)),
                "system_calls_per_gb": middle(&|r| self.calls_per_gb(r)),
                "share_of_device": middle(&|r| self.share_of_limit(r).unwrap_or(0.0)),
            })
        };
        let ratio = |all: &[f64]| {
            let (middle, least, most) = spread(all);
            json!({ "median": middle, "least": least, "most": most, "pairs": all })
        };
        json!({
            "name": self.case.name(),
            "value_bytes": self.case.value_size,
            "inputs": self.case.inputs,
            "bloom_bits": self.case.bloom_bits,
            "compression": self.case.compression,
            "written_by": self.written_by,
            "entries": self.entries,
            "input_bytes": self.input_bytes,
            "medians": (0..sides.len()).map(of_side).collect::<Vec<_>>(),
            "ratios": self.pairs(sides.len()).iter().map(|p| json!({
                "first": label(p.first),
                "other": label(p.other),
                "times_as_fast": ratio(&p.speedup),
                "cpu_first_over_other": ratio(&p.cpu),
                "system_calls_first_over_other": ratio(&p.calls),
            })).collect::<Vec<_>>(),
            "runs": self.runs.iter().map(|r| {
                let calls: Map<String, Value> =
                    r.cost.calls.counts.iter().map(|(n, c)| ((*n).to_owned(), (*c).into())).collect();
                json!({
                    "store": label(r.side),
                    "repetition": r.repetition,
                    "wall_seconds": r.wall.as_secs_f64(),
                    "job_micros_by_the_store": r.job.micros,
                    "user_seconds": r.cost.usage.user.as_secs_f64(),
                    "kernel_seconds": r.cost.usage.system.as_secs_f64(),
                    "context_switches": r.cost.usage.voluntary_switches + r.cost.usage.involuntary_switches,
                    "bytes_read": r.cost.usage.device_read_bytes,
                    "bytes_written": r.cost.usage.device_write_bytes,
                    "device_bytes_read_by_all": r.cost.device.map(|d| d.read),
                    "device_bytes_written_by_all": r.cost.device.map(|d| d.written),
                    "system_calls": calls,
                    "engines": r.parts.as_ref().map(parts_json),
                    "output_bytes": r.job.output_bytes,
                    "output_files": r.job.output_files,
                    "output_entries": r.job.output_records,
                })
            }).collect::<Vec<_>>(),
            "device": self.limits.iter().map(|l| json!({
                "seconds": l.seconds, "bytes_read": l.read, "bytes_written": l.written, "io_uring": l.ring,
            })).collect::<Vec<_>>(),
        })
    }
}

impl CompactReport {
    /// Who counted the system calls, in words.
    pub(crate) fn counted_by(&self) -> String {
        let mut by: Vec<&str> = Vec::new();
        for counted in self.cases.iter().flat_map(|c| &c.runs).map(|r| r.cost.calls.counted_by) {
            if !by.contains(&counted) {
                by.push(counted);
            }
        }
        let mut text = format!("System calls counted by {}", by.join(" and "));
        if let Some(why) = &self.calls_not_by_tracepoints {
            text += &format!(": {why}");
        }
        if by.contains(&Calls::IO_LAYER) {
            text += "; it counts transfers, of which a ring hands over several with one system call";
        }
        text + "."
    }

    pub(super) fn header(&self) -> String {
        let mut text = format!("{}\n", self.machine.to_text());
        let cores = self.machine.cores as f64;
        if self.machine.load > cores * 0.5 {
            text += "The machine is busy: times are not to be quoted; counts are.\n";
        }
        for side in &self.sides {
            text += &format!("{}: {}\n", side.label, side.notes.join("; "));
        }
        text
    }

    /// The table at the end: medians of each case and side, then the ratios pair by pair, then differing settings.
    pub fn table(&self) -> String {
        let mut text = String::from("------------------------------------------------\n");
        let repeat = self.flags.base.repeat;
        text += &format!("Medians of {repeat} repetitions, the sides in turn; GB are 10^9 bytes of input tables.\n");
        let heads = [
            "case",
            "store",
            "wall s",
            "GB/s",
            "CPU s/GB",
            "calls/GB",
            "of the device",
            "read MB",
            "written MB",
            "parts by engine",
        ];
        let mut rows = Vec::new();
        for case in &self.cases {
            for (side, known) in self.sides.iter().enumerate() {
                let cell =
                    |of: &dyn Fn(&JobRun) -> f64, digits: usize| format!("{:.digits$}", median(&case.values(side, of)));
                rows.push(vec![
                    case.case.name(),
                    known.label.clone(),
                    cell(&|r| r.wall.as_secs_f64(), 3),
                    cell(&|r| case.gb_per_second(r), 2),
                    cell(&|r| case.cpu_per_gb(r), 3),
                    cell(&|r| case.calls_per_gb(r), 0),
                    cell(&|r| 100.0 * case.share_of_limit(r).unwrap_or(0.0), 0) + " %",
                    cell(&|r| r.cost.usage.device_read_bytes as f64 / MIB, 0),
                    cell(&|r| r.cost.usage.device_write_bytes as f64 / MIB, 0),
                    case.engines(side),
                ]);
            }
        }
        text += &format!("{}\n", tables::text(&heads, 2, &rows));
        if self.sides.len() > 1 {
            let heads = ["case", "of", "times as fast", "CPU, part of", "calls, part of"];
            let mut rows = Vec::new();
            for case in &self.cases {
                for p in case.pairs(self.sides.len()) {
                    rows.push(vec![
                        case.case.name(),
                        format!("{} / {}", self.sides[p.first].label, self.sides[p.other].label),
                        spread_text(&p.speedup),
                        spread_text(&p.cpu),
                        spread_text(&p.calls),
                    ]);
                }
            }
            let table = tables::text(&heads, 2, &rows);
            text += &format!("\nRatios pair by pair, median (least..most):\n{table}\n");
        }
        text += &format!("{}\n", self.counted_by());
        text + &self.settings_text()
    }

    fn settings_text(&self) -> String {
        let sides = self.sides.iter();
        let mut text: String =
            sides.map(|side| format!("{} {}; {}\n", side.label, side.version, side.all_notes().join("; "))).collect();
        text.extend(self.sides.iter().filter_map(SideReport::engine_warning).map(|warning| warning + "\n"));
        text + &settings::differences_text(&self.sides)
    }

    /// The settings of the run, by name.
    pub(crate) fn all_flags(&self) -> Vec<(String, String)> {
        fn joined<T: ToString>(all: &[T]) -> String {
            all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        let f = &self.flags;
        let own = [
            ("values", joined(&f.values)),
            ("inputs", joined(&f.inputs)),
            ("bloom", joined(&f.bloom)),
            ("compression", f.compression.join(",")),
            ("mb", f.mb.to_string()),
            ("engines", f.engines.join(",")),
            ("pause_ms", f.pause_ms.to_string()),
            ("warm_up", u8::from(f.warm_up).to_string()),
        ];
        let common = f.base.settings().into_iter().map(|(n, v)| (n.to_owned(), v));
        own.into_iter().map(|(n, v)| (n.to_owned(), v)).chain(common).collect()
    }

    /// What the command line changed.
    pub(crate) fn changed_flags(&self) -> Vec<String> {
        let defaults = super::flags::default_settings();
        let peers = self.flags.base.peer.0.iter().map(|p| format!("--peer {p}"));
        let changed = self.all_flags().into_iter().filter(|(name, value)| {
            !matches!(name.as_str(), "peer" | "json" | "report")
                && defaults.iter().find(|(n, _)| n == name).is_none_or(|(_, v)| v != value)
        });
        peers.chain(changed.map(|(name, value)| format!("--{name}={value}"))).collect()
    }

    /// The page with charts.
    pub fn to_html(&self) -> String {
        crate::page::compact_page(self)
    }

    /// Everything, for other programs.
    pub fn to_json(&self) -> Value {
        let map = |all: Vec<(String, String)>| -> Map<String, Value> {
            all.into_iter().map(|(n, v)| (n, v.into())).collect()
        };
        let first = self.sides.first().map(|s| s.settings.clone()).unwrap_or_default();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine.to_json(),
            "settings": map(self.all_flags()),
            "stores": self.sides.iter().map(|s| json!({
                "name": s.label,
                "version": s.version,
                "notes": s.notes,
                "engine": s.engine_json(),
                "settings": map(s.settings.clone()),
                "differs_from_first": settings::differences(&first, &s.settings).into_iter()
                    .map(|(name, a, b)| json!({ "option": name, "first": a, "here": b })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "system_calls": self.counted_by(),
            "cases": self.cases.iter().map(|c| c.to_json(&self.sides)).collect::<Vec<_>>(),
        })
    }
}
