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

/// One job.
#[derive(Debug, Clone)]
pub struct OffloadRun {
    /// A worker did it.
    pub elsewhere: bool,
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
    /// Their bytes on the network in both directions, as reported by the worker.
    pub wire_bytes: u64,
}

impl OffloadRun {
    /// CPU time of this process, in seconds.
    pub fn cpu(&self) -> f64 {
        (self.user + self.system).as_secs_f64()
    }
}

impl SizeReport {
    /// A figure of all runs here or elsewhere, by repetition.
    fn values(&self, elsewhere: bool, of: &dyn Fn(&OffloadRun) -> f64) -> Vec<f64> {
        let mut its: Vec<&OffloadRun> = self.runs.iter().filter(|run| run.elsewhere == elsewhere).collect();
        its.sort_by_key(|run| run.repetition);
        its.into_iter().map(of).collect()
    }

    /// Elsewhere over here, repetition by repetition.
    fn ratios(&self, of: &dyn Fn(&OffloadRun) -> f64) -> Vec<f64> {
        let (there, here) = (self.values(true, of), self.values(false, of));
        there.iter().zip(&here).filter(|(_, here)| **here > 0.0).map(|(there, here)| there / here).collect()
    }

    fn cpu_ratios(&self) -> Vec<f64> {
        self.ratios(&OffloadRun::cpu)
    }

    fn wall_ratios(&self) -> Vec<f64> {
        self.ratios(&|run| run.wall.as_secs_f64())
    }

    fn mb_per_second(&self, run: &OffloadRun) -> f64 {
        self.input_bytes as f64 / 1e6 / run.wall.as_secs_f64().max(1e-9)
    }

    pub(super) fn line(&self, run: &OffloadRun) -> String {
        let mut line = format!(
            "{:>5} MiB {:<6} : {:.3} s; {:.0} MB/s of input; CPU of this process {:.3} s ({:.0} % kernel)",
            self.mb,
            if run.elsewhere { "worker" } else { "here" },
            run.wall.as_secs_f64(),
            self.mb_per_second(run),
            run.cpu(),
            100.0 * run.system.as_secs_f64() / run.cpu().max(1e-9)
        );
        if run.elsewhere {
            line += &format!(
                "; worker {:.3} s; {} round trips; {:.1} MB on the wire",
                run.worker_cpu.as_secs_f64(),
                run.round_trips,
                run.wire_bytes as f64 / 1e6
            );
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
            "runs": self.runs.iter().map(|run| json!({
                "worker": run.elsewhere,
                "repetition": run.repetition,
                "wall_seconds": run.wall.as_secs_f64(),
                "input_mb_per_second": self.mb_per_second(run),
                "host_user_seconds": run.user.as_secs_f64(),
                "host_kernel_seconds": run.system.as_secs_f64(),
                "output_bytes": run.output_bytes,
                "worker_cpu_seconds": run.worker_cpu.as_secs_f64(),
                "round_trips": run.round_trips,
                "wire_bytes": run.wire_bytes,
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
        format!("{}\nworker at {}, {whose}\n", self.machine.to_text(), self.worker)
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
            let cell = |elsewhere: bool, digits: usize, of: &dyn Fn(&OffloadRun) -> f64| {
                format!("{:.digits$}", median(&size.values(elsewhere, of)))
            };
            let (wall, speed) = (|run: &OffloadRun| run.wall.as_secs_f64(), |run: &OffloadRun| size.mb_per_second(run));
            rows.push(vec![
                size.mb.to_string(),
                cell(false, 3, &wall),
                cell(true, 3, &wall),
                cell(false, 0, &speed),
                cell(true, 0, &speed),
                cell(false, 3, &OffloadRun::cpu),
                cell(true, 3, &OffloadRun::cpu),
                spread_text(&size.cpu_ratios()),
                cell(true, 3, &|run| run.worker_cpu.as_secs_f64()),
                cell(true, 0, &|run| run.round_trips as f64),
                cell(true, 1, &|run| run.wire_bytes as f64 / 1e6),
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
        if self.flags.worker.is_empty() {
            text += &format!(
                "Both share {} cores and loopback has no delay: seconds say little about two machines.\n",
                self.machine.cores
            );
        }
        text
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
                "check": self.flags.check.to_string(),
                "options": self.flags.options_text(),
            },
            "host_cpu_below_here_from_mib": self.crossover(1.0, &SizeReport::cpu_ratios),
            "host_cpu_goal": CPU_GOAL,
            "host_cpu_goal_met_from_mib": self.crossover(CPU_GOAL + f64::EPSILON, &SizeReport::cpu_ratios),
            "wall_below_here_from_mib": self.crossover(1.0, &SizeReport::wall_ratios),
            "sizes": self.sizes.iter().map(SizeReport::to_json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(mb: u64, part: f64) -> SizeReport {
        let run = |elsewhere: bool, repetition: usize, seconds: f64| OffloadRun {
            elsewhere,
            repetition,
            wall: Duration::from_secs_f64(seconds),
            user: Duration::from_secs_f64(seconds),
            system: Duration::ZERO,
            output_bytes: 1,
            worker_cpu: Duration::from_secs(1),
            round_trips: 7,
            wire_bytes: 2_000_000,
        };
        // The pairs are by repetition, whatever the order.
        let runs = vec![run(false, 0, 1.0), run(true, 1, 2.0 * part), run(true, 0, part), run(false, 1, 2.0)];
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
    fn the_table_and_the_json_have_every_figure() {
        let report = report(vec![size(4, 1.5), size(16, 0.25)]);
        let text = report.table();
        for part in ["0.25 (0.25..0.25)", "from 16 MiB on", "at no size of these", "2.0", "7", "share"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = report.to_json();
        assert_eq!(json["host_cpu_below_here_from_mib"], 16);
        assert_eq!(json["sizes"][1]["host_cpu_worker_over_here"]["median"], 0.25);
        assert_eq!(json["sizes"][0]["runs"].as_array().map(Vec::len), Some(4));
        assert!(crate::place::is_result(&format!("{json:#}")));
    }
}
