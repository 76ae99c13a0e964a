//! Results of `rockmill bench offload`, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::flags::OffloadFlags;
use crate::compact::spread_text;
use crate::machine::Machine;
use crate::pairs::median;
use crate::tables;

/// The goal for a job on a worker: the host's CPU time, as a fraction of its CPU time for the job without a worker.
const CPU_GOAL: f64 = 0.10;
/// The goal against NFS: the throughput of a job on a worker, as a multiple of that through NFS.
const NFS_GOAL: f64 = 2.0;

/// A whole run.
#[derive(Debug)]
pub struct OffloadReport {
    /// Where and when.
    pub machine: Machine,
    /// The flags.
    pub flags: OffloadFlags,
    /// Where the worker listens.
    pub worker: String,
    /// What each size gave.
    pub sizes: Vec<SizeReport>,
}

/// Jobs of one size.
#[derive(Debug)]
pub struct SizeReport {
    /// MiB of keys and values.
    pub mb: u64,
    /// Bytes of the input tables.
    pub input_bytes: u64,
    /// Entries in them.
    pub entries: u64,
    /// The runs, in chronological order.
    pub runs: Vec<OffloadRun>,
}

/// Who does a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoneBy {
    /// This process.
    Here,
    /// A worker over NVMe/TCP.
    Worker,
    /// A worker through NFS.
    Nfs,
}

impl DoneBy {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Worker => "worker",
            Self::Nfs => "nfs",
        }
    }
}

/// One job.
#[derive(Debug, Clone)]
pub struct OffloadRun {
    /// Who did it.
    pub by: DoneBy,
    /// The repetition, from 0.
    pub repetition: usize,
    /// What the caller of `compact_range` waited.
    pub wall: Duration,
    /// CPU time of this process outside the kernel.
    pub user: Duration,
    /// CPU time of this process in the kernel.
    pub system: Duration,
    /// Bytes of the tables that were written.
    pub output_bytes: u64,
    /// CPU time of the worker's merge, as reported by the worker.
    pub worker_cpu: Duration,
    /// Round trips of its reads and writes, as reported by the worker.
    pub round_trips: u64,
    /// Their bytes on the network in both directions, as reported by the worker; through NFS, those of data alone.
    pub wire_bytes: u64,
    /// CPU time of the worker's whole process, if it is one of this machine.
    pub worker_process_cpu: Option<Duration>,
    /// CPU time of the NFS server's process, if it is known.
    pub server_cpu: Option<Duration>,
}

impl OffloadRun {
    /// CPU time of this process, in seconds.
    pub fn cpu(&self) -> f64 {
        (self.user + self.system).as_secs_f64()
    }
}

impl SizeReport {
    /// A figure of all runs of one side, by repetition.
    fn values(&self, by: DoneBy, of: &dyn Fn(&OffloadRun) -> f64) -> Vec<f64> {
        let mut its: Vec<&OffloadRun> = self.runs.iter().filter(|run| run.by == by).collect();
        its.sort_by_key(|run| run.repetition);
        its.into_iter().map(of).collect()
    }

    /// One side over another one, repetition by repetition.
    fn ratios(&self, one: DoneBy, other: DoneBy, of: &dyn Fn(&OffloadRun) -> f64) -> Vec<f64> {
        let (ones, others) = (self.values(one, of), self.values(other, of));
        ones.iter().zip(&others).filter(|(_, other)| **other > 0.0).map(|(one, other)| one / other).collect()
    }

    fn cpu_ratios(&self) -> Vec<f64> {
        self.ratios(DoneBy::Worker, DoneBy::Here, &OffloadRun::cpu)
    }

    fn wall_ratios(&self) -> Vec<f64> {
        self.ratios(DoneBy::Worker, DoneBy::Here, &|run| run.wall.as_secs_f64())
    }

    /// The time of a job on a worker, as a part of its time through NFS.
    fn nfs_ratios(&self) -> Vec<f64> {
        self.ratios(DoneBy::Worker, DoneBy::Nfs, &|run| run.wall.as_secs_f64())
    }

    fn mb_per_second(&self, run: &OffloadRun) -> f64 {
        self.input_bytes as f64 / 1e6 / run.wall.as_secs_f64().max(1e-9)
    }

    pub(super) fn line(&self, run: &OffloadRun) -> String {
        let mut line = format!(
            "{:>5} MiB {:<6} : {:.3} s; {:.0} MB/s of input; CPU of this process {:.3} s ({:.0} % kernel)",
            self.mb,
            run.by.name(),
            run.wall.as_secs_f64(),
            self.mb_per_second(run),
            run.cpu(),
            100.0 * run.system.as_secs_f64() / run.cpu().max(1e-9)
        );
        if run.by != DoneBy::Here {
            line += &format!(
                "; worker {:.3} s; {} round trips; {:.1} MB on the wire",
                run.worker_cpu.as_secs_f64(),
                run.round_trips,
                run.wire_bytes as f64 / 1e6
            );
            for (whose, cpu) in [("worker's process", run.worker_process_cpu), ("NFS server", run.server_cpu)] {
                if let Some(cpu) = cpu.filter(|_| whose != "NFS server" || run.by == DoneBy::Nfs) {
                    line += &format!("; {whose} {:.2} s", cpu.as_secs_f64());
                }
            }
        }
        line + "\n"
    }

    fn to_json(&self) -> Value {
        let spread = |all: &[f64]| json!({ "median": median(all), "pairs": all });
        json!({
            "mib": self.mb,
            "input_bytes": self.input_bytes,
            "entries": self.entries,
            "host_cpu_worker_over_here": spread(&self.cpu_ratios()),
            "wall_worker_over_here": spread(&self.wall_ratios()),
            "wall_worker_over_nfs": (!self.nfs_ratios().is_empty()).then(|| spread(&self.nfs_ratios())),
            "runs": self.runs.iter().map(|run| json!({
                "worker": run.by == DoneBy::Worker,
                "by": run.by.name(),
                "repetition": run.repetition,
                "wall_seconds": run.wall.as_secs_f64(),
                "input_mb_per_second": self.mb_per_second(run),
                "host_user_seconds": run.user.as_secs_f64(),
                "host_kernel_seconds": run.system.as_secs_f64(),
                "output_bytes": run.output_bytes,
                "worker_cpu_seconds": run.worker_cpu.as_secs_f64(),
                "round_trips": run.round_trips,
                "wire_bytes": run.wire_bytes,
                "worker_process_cpu_seconds": run.worker_process_cpu.map(|cpu| cpu.as_secs_f64()),
                "nfs_server_cpu_seconds": run.server_cpu.map(|cpu| cpu.as_secs_f64()),
            })).collect::<Vec<_>>(),
        })
    }
}

impl OffloadReport {
    pub(super) fn header(&self) -> String {
        let whose = match self.flags.worker.as_str() {
            "" => "another process of this machine",
            _ => "given by --worker",
        };
        let nfs = match self.flags.nfs.as_str() {
            "" => String::new(),
            url => format!("; another one through {url}"),
        };
        format!("{}\nworker at {}, {whose}{nfs}\n", self.machine.to_text(), self.worker)
    }

    /// The smallest size from which on a ratio's median stays below `limit`.
    fn crossover(&self, limit: f64, ratios: &dyn Fn(&SizeReport) -> Vec<f64>) -> Option<u64> {
        let mut sizes: Vec<&SizeReport> = self.sizes.iter().collect();
        sizes.sort_by_key(|size| std::cmp::Reverse(size.mb));
        let below = sizes.into_iter().take_while(|size| {
            let all = ratios(size);
            !all.is_empty() && median(&all) < limit
        });
        below.last().map(|size| size.mb)
    }

    fn crossover_text(&self, what: &str, limit: f64, ratios: &dyn Fn(&SizeReport) -> Vec<f64>) -> String {
        match self.crossover(limit, ratios) {
            Some(mb) => format!("{what}: from {mb} MiB on.\n"),
            None => format!("{what}: at no size of these.\n"),
        }
    }

    /// The table at the end.
    pub fn table(&self) -> String {
        let heads = [
            "MiB",
            "here s",
            "worker s",
            "here MB/s",
            "worker MB/s",
            "host CPU s here",
            "with a worker",
            "part of it",
            "worker CPU s",
            "round trips",
            "MB on the wire",
        ];
        let mut rows = Vec::new();
        for size in &self.sizes {
            let cell = |by: DoneBy, digits: usize, of: &dyn Fn(&OffloadRun) -> f64| {
                format!("{:.digits$}", median(&size.values(by, of)))
            };
            let (wall, speed) = (|run: &OffloadRun| run.wall.as_secs_f64(), |run: &OffloadRun| size.mb_per_second(run));
            rows.push(vec![
                size.mb.to_string(),
                cell(DoneBy::Here, 3, &wall),
                cell(DoneBy::Worker, 3, &wall),
                cell(DoneBy::Here, 0, &speed),
                cell(DoneBy::Worker, 0, &speed),
                cell(DoneBy::Here, 3, &OffloadRun::cpu),
                cell(DoneBy::Worker, 3, &OffloadRun::cpu),
                spread_text(&size.cpu_ratios()),
                cell(DoneBy::Worker, 3, &|run| run.worker_cpu.as_secs_f64()),
                cell(DoneBy::Worker, 0, &|run| run.round_trips as f64),
                cell(DoneBy::Worker, 1, &|run| run.wire_bytes as f64 / 1e6),
            ]);
        }
        let table = tables::text(&heads, 1, &rows);
        let mut text = format!(
            "------------------------------------------------\n\
             Medians of {} repetitions, in turn; MB are 10^6 bytes of input tables. Host CPU is that of this whole\n\
             process: serving the worker's reads and writes and checking its tables ({}) included.\n{table}\n",
            self.flags.repeat, self.flags.check
        );
        text += &self.crossover_text("The host spends less CPU with a worker", 1.0, &SizeReport::cpu_ratios);
        let goal = format!("The host spends at most {:.0} % of it (the goal)", 100.0 * CPU_GOAL);
        text += &self.crossover_text(&goal, CPU_GOAL + f64::EPSILON, &SizeReport::cpu_ratios);
        text += &self.crossover_text("The job takes less time with a worker", 1.0, &SizeReport::wall_ratios);
        text += &self.nfs_text();
        if self.flags.worker.is_empty() {
            let link = match self.flags.worker_listen.ip().is_loopback() {
                true => " and loopback has no delay",
                false => "",
            };
            let cores = self.machine.cores;
            text += &format!("All share {cores} cores{link}: seconds say little about two machines.\n");
        }
        text
    }

    /// The table of the jobs through NFS; nothing where there were none.
    fn nfs_text(&self) -> String {
        if self.flags.nfs.is_empty() {
            return String::new();
        }
        let heads = [
            "MiB",
            "NFS s",
            "NFS MB/s",
            "worker times as fast",
            "host CPU s with NFS",
            "NFS server CPU s",
            "its worker CPU s",
            "worker process CPU s over NVMe/TCP",
            "over NFS",
            "calls",
            "MB of data",
        ];
        let rows = self.sizes.iter().map(|size| {
            let cell = |by: DoneBy, digits: usize, of: &dyn Fn(&OffloadRun) -> f64| {
                format!("{:.digits$}", median(&size.values(by, of)))
            };
            let seconds = |cpu: Option<Duration>| cpu.map_or(f64::NAN, |cpu| cpu.as_secs_f64());
            let faster: Vec<f64> = size.nfs_ratios().into_iter().map(|part| 1.0 / part).collect();
            vec![
                size.mb.to_string(),
                cell(DoneBy::Nfs, 3, &|run| run.wall.as_secs_f64()),
                cell(DoneBy::Nfs, 0, &|run| size.mb_per_second(run)),
                spread_text(&faster),
                cell(DoneBy::Nfs, 3, &OffloadRun::cpu),
                cell(DoneBy::Nfs, 2, &|run| seconds(run.server_cpu)),
                cell(DoneBy::Nfs, 3, &|run| run.worker_cpu.as_secs_f64()),
                cell(DoneBy::Worker, 2, &|run| seconds(run.worker_process_cpu)),
                cell(DoneBy::Nfs, 2, &|run| seconds(run.worker_process_cpu)),
                cell(DoneBy::Nfs, 0, &|run| run.round_trips as f64),
                cell(DoneBy::Nfs, 1, &|run| run.wire_bytes as f64 / 1e6),
            ]
        });
        let table = tables::text(&heads, 1, &rows.collect::<Vec<_>>());
        let goal = format!("The job has at least {NFS_GOAL} times the throughput through NFS with a worker (the goal)");
        format!(
            "The same jobs through NFS; host CPU is that of this process, without the server's.\n{table}\n{}{}",
            self.crossover_text("The job takes less time with a worker than through NFS", 1.0, &SizeReport::nfs_ratios),
            self.crossover_text(&goal, 1.0 / NFS_GOAL + f64::EPSILON, &SizeReport::nfs_ratios)
        )
    }

    /// Everything, for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine.to_json(),
            "worker": self.worker,
            "worker_is_on_this_machine": self.flags.worker.is_empty(),
            "settings": {
                "value_size": self.flags.value_size,
                "inputs": self.flags.inputs,
                "compression": self.flags.compression,
                "repeat": self.flags.repeat,
                "threads": self.flags.threads,
                "worker_engine": self.flags.worker_engine.name(),
                "worker_listen": self.flags.worker_listen.to_string(),
                "nfs": self.flags.nfs,
                "check": self.flags.check.to_string(),
                "options": self.flags.options_text(),
            },
            "host_cpu_below_here_from_mib": self.crossover(1.0, &SizeReport::cpu_ratios),
            "host_cpu_goal": CPU_GOAL,
            "host_cpu_goal_met_from_mib": self.crossover(CPU_GOAL + f64::EPSILON, &SizeReport::cpu_ratios),
            "wall_below_here_from_mib": self.crossover(1.0, &SizeReport::wall_ratios),
            "worker_over_nfs_goal": NFS_GOAL,
            "worker_over_nfs_goal_met_from_mib": self.crossover(1.0 / NFS_GOAL + f64::EPSILON, &SizeReport::nfs_ratios),
            "sizes": self.sizes.iter().map(SizeReport::to_json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(mb: u64, part: f64) -> SizeReport {
        let run = |by: DoneBy, repetition: usize, seconds: f64| OffloadRun {
            by,
            repetition,
            wall: Duration::from_secs_f64(seconds),
            user: Duration::from_secs_f64(seconds),
            system: Duration::ZERO,
            output_bytes: 1,
            worker_cpu: Duration::from_secs(1),
            round_trips: 7,
            wire_bytes: 2_000_000,
            worker_process_cpu: Some(Duration::from_secs(3)),
            server_cpu: Some(Duration::from_millis(870)),
        };
        // The pairs are by repetition, whatever the order.
        let (here, worker, nfs) = (DoneBy::Here, DoneBy::Worker, DoneBy::Nfs);
        let runs = vec![
            run(here, 0, 1.0),
            run(worker, 1, 2.0 * part),
            run(worker, 0, part),
            run(nfs, 0, 2.0 * part),
            run(nfs, 1, 5.0 * part),
            run(here, 1, 2.0),
        ];
        SizeReport { mb, input_bytes: mb << 20, entries: 9, runs }
    }

    fn report(sizes: Vec<SizeReport>) -> OffloadReport {
        let line = ["--db=d".to_owned()];
        let Ok(super::super::OffloadCommand::Run(flags)) = OffloadFlags::parse(line) else { panic!("flags") };
        OffloadReport { machine: Machine::default(), flags: *flags, worker: "w".to_owned(), sizes }
    }

    #[test]
    fn the_crossover_is_where_it_stays_below() {
        let crossover = |parts: &[f64], limit: f64| {
            let sizes = parts.iter().enumerate().map(|(i, part)| size(4 << (2 * i), *part)).collect();
            report(sizes).crossover(limit, &SizeReport::cpu_ratios)
        };
        assert_eq!(crossover(&[1.5, 0.9, 0.5], 1.0), Some(16));
        assert_eq!(crossover(&[0.5, 1.1, 0.5], 1.0), Some(64));
        assert_eq!(crossover(&[0.5, 0.9, 1.2], 1.0), None);
        assert_eq!(crossover(&[0.5], 1.0), Some(4));
        assert_eq!(crossover(&[], 1.0), None);
    }

    #[test]
    fn nfs_has_a_table_of_its_own() {
        let mut report = report(vec![size(4, 0.5)]);
        assert!(!report.table().contains("NFS"), "it was not asked for");
        report.flags.nfs = "nfs://host/db".to_owned();
        let text = report.table();
        for part in ["2.25 (2.00..2.50)", "0.87", "the throughput through NFS with a worker (the goal): from 4 MiB on"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(report.header().contains("another one through nfs://host/db"));
        assert_eq!(report.to_json()["worker_over_nfs_goal_met_from_mib"], 4);
    }

    #[test]
    fn the_table_and_the_json_have_every_figure() {
        let report = report(vec![size(4, 1.5), size(16, 0.25)]);
        let text = report.table();
        for part in ["0.25 (0.25..0.25)", "from 16 MiB on", "at no size of these", "2.0", "7", "share"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = report.to_json();
        assert_eq!(json["host_cpu_below_here_from_mib"], 16);
        assert_eq!(json["sizes"][1]["host_cpu_worker_over_here"]["median"], 0.25);
        assert_eq!(json["sizes"][0]["runs"].as_array().map(Vec::len), Some(6));
        assert!(crate::place::is_result(&format!("{json:#}")));
    }
}
