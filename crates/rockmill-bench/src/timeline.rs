//! Samples throughput, stalls and levels during a benchmark in a separate thread, and shows them in a live line.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::record::Progress;
use crate::store::{Stalls, Store};
use crate::usage::{Begun, Places, Use};
pub(crate) use rockmill_page::short;

/// Interval for levels, which change slowly and are more expensive to query.
const BETWEEN_LEVELS: Duration = Duration::from_millis(900);
/// How often the live line changes.
const BETWEEN_LINES: Duration = Duration::from_millis(250);

/// One look at a running benchmark.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Seconds since the measured part began.
    pub seconds: f64,
    /// Operations that count, so far.
    pub ops: u64,
    /// Operations of background threads so far.
    pub background_ops: u64,
    /// Microseconds of stalls of writers so far.
    pub stall_micros: u64,
    /// The current reason; empty if there is none.
    pub reason: String,
    /// Bytes of each level, in the samples that query them.
    pub levels: Option<Vec<u64>>,
    /// Jobs that run: flushes, then compactions by the level that they begin at; empty if the store does not tell.
    pub jobs: Vec<u64>,
    /// Threads that compact.
    pub threads: u64,
    /// What process and devices used.
    pub used: Use,
}

/// The samples of a benchmark, from its beginning to its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    /// In order.
    pub samples: Vec<Sample>,
}

impl Timeline {
    /// Operations in each whole second; a partial second at the end is scaled to a second if it is long enough.
    pub fn per_second(&self) -> Vec<f64> {
        let Some(end) = self.samples.last() else { return vec![] };
        let at = |t: f64| {
            let i = self.samples.partition_point(|s| s.seconds < t);
            match (i.checked_sub(1).map(|i| &self.samples[i]), self.samples.get(i)) {
                (_, None) => end.ops as f64,
                (None, Some(s)) => s.ops as f64 * t / s.seconds.max(1e-9),
                (Some(a), Some(b)) => {
                    let part = (t - a.seconds) / (b.seconds - a.seconds).max(1e-9);
                    a.ops as f64 + (b.ops - a.ops) as f64 * part
                }
            }
        };
        let mut out = Vec::new();
        let mut t = 0.0;
        while t < end.seconds {
            let to = (t + 1.0).min(end.seconds);
            if to - t > 0.25 || out.is_empty() {
                out.push((at(to) - at(t)) / (to - t).max(1e-9));
            }
            t += 1.0;
        }
        out
    }

    /// Average number of concurrent jobs: flushes, then compactions by the level that they began at.
    pub fn mean_jobs(&self) -> Vec<f64> {
        let places = self.samples.iter().map(|s| s.jobs.len()).max().unwrap_or(0);
        mean_jobs(&self.samples, places)
    }

    /// Their standard deviation over the samples.
    pub fn jobs_deviation(&self) -> Vec<f64> {
        let of = |(place, mean): (usize, &f64)| {
            let seen = self.samples.iter().map(|s| s.jobs.get(place).map_or(0.0, |n| *n as f64));
            (seen.map(|n| (n - mean).powi(2)).sum::<f64>() / self.samples.len().max(1) as f64).sqrt()
        };
        self.mean_jobs().iter().enumerate().map(of).collect()
    }

    /// Fractions of the samples in which at most 0, 1, 2, … threads compacted; empty if the store does not tell.
    pub fn threads_at_most(&self) -> Vec<f64> {
        let told: Vec<&Sample> = self.samples.iter().filter(|s| !s.jobs.is_empty()).collect();
        let most = told.iter().map(|s| s.threads).max();
        let part = |n: u64| told.iter().filter(|s| s.threads <= n).count() as f64 / told.len() as f64;
        most.map_or_else(Vec::new, |most| (0..=most).map(part).collect())
    }

    /// Mean and standard deviation of the number of compacting threads in the samples.
    pub fn threads(&self) -> (f64, f64) {
        let told: Vec<f64> = self.samples.iter().filter(|s| !s.jobs.is_empty()).map(|s| s.threads as f64).collect();
        let all = told.len().max(1) as f64;
        let mean = told.iter().sum::<f64>() / all;
        (mean, (told.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / all).sqrt())
    }

    /// Stalled microseconds by reason: the increase between two samples is attributed to the reason in either.
    pub fn stalls_by_reason(&self) -> Vec<(String, u64)> {
        let mut out: Vec<(String, u64)> = Vec::new();
        let (mut before, mut reason_before) = (0, "");
        for s in &self.samples {
            let added = s.stall_micros.saturating_sub(before);
            if added > 0 {
                let reason = [s.reason.as_str(), reason_before].into_iter().find(|r| !r.is_empty());
                let reason = reason.unwrap_or("over before it was looked at");
                match out.iter_mut().find(|(r, _)| r == reason) {
                    Some((_, micros)) => *micros += added,
                    None => out.push((reason.to_owned(), added)),
                }
            }
            (before, reason_before) = (s.stall_micros, &s.reason);
        }
        out.sort_by_key(|(_, micros)| std::cmp::Reverse(*micros));
        out
    }
}

/// The mean number of running jobs in the samples, for each of `places` kinds.
pub(crate) fn mean_jobs(samples: &[Sample], places: usize) -> Vec<f64> {
    let sum = |place: usize| samples.iter().filter_map(|s| s.jobs.get(place)).sum::<u64>();
    (0..places).map(|place| sum(place) as f64 / samples.len().max(1) as f64).collect()
}

/// The parts of the live line other than the throughput.
pub(crate) struct Live<'a> {
    /// The benchmark, its store and the repetition.
    pub title: String,
    /// Total operations; 0 if the duration is fixed.
    pub total_ops: u64,
    /// Duration in seconds; 0 if the number of operations is fixed.
    pub seconds: u64,
    pub store: &'a dyn Store,
    pub places: Places,
    pub sample_every: Duration,
    /// Print the line.
    pub show: bool,
}

impl Live<'_> {
    /// True where a line that changes can be shown.
    pub fn is_shown(quiet: bool) -> bool {
        !quiet && std::io::stderr().is_terminal()
    }

    /// Samples until `stop`. `begun` tells when the measured part has begun; `progress` has an entry per thread, of
    /// which the first `counted` count.
    pub fn watch(&self, progress: &[Progress], counted: usize, begun: &AtomicBool, stop: &AtomicBool) -> Timeline {
        let stalled_before = self.stalls().micros();
        while !begun.load(Ordering::Acquire) && !stop.load(Ordering::Acquire) {
            thread::park_timeout(Duration::from_millis(1));
        }
        let start = Instant::now();
        let used_before = Begun::now(&self.places, self.store);
        let mut out = Timeline::default();
        let (mut levels_at, mut line_at) = (None::<Instant>, start);
        for tick in 1.. {
            let due = start + self.sample_every * tick;
            while Instant::now() < due && !stop.load(Ordering::Acquire) {
                thread::park_timeout(due.saturating_duration_since(Instant::now()));
            }
            let ended = stop.load(Ordering::Acquire);
            let sum = |of: &[Progress]| of.iter().map(Progress::get).sum();
            let stalls = self.stalls();
            let running = self.store.running_jobs();
            let levels_due = ended || levels_at.is_none_or(|at| at.elapsed() >= BETWEEN_LEVELS);
            let sample = Sample {
                seconds: start.elapsed().as_secs_f64(),
                ops: sum(&progress[..counted.min(progress.len())]),
                background_ops: sum(&progress[counted.min(progress.len())..]),
                stall_micros: stalls.micros().saturating_sub(stalled_before),
                reason: stalls.reason,
                levels: levels_due.then(|| self.store.levels().unwrap_or_default()),
                jobs: running.jobs,
                threads: running.threads,
                used: used_before.since(&self.places, levels_due, self.store, out.samples.last().map(|s| &s.used)),
            };
            if levels_due {
                levels_at = Some(Instant::now());
            }
            if self.show && line_at.elapsed() >= BETWEEN_LINES {
                line_at = Instant::now();
                self.print(&sample, out.samples.last());
            }
            out.samples.push(sample);
            if ended {
                break;
            }
        }
        if self.show {
            eprint!("\r\x1b[K");
        }
        out
    }

    fn stalls(&self) -> Stalls {
        self.store.stalls().unwrap_or_default()
    }

    fn print(&self, now: &Sample, before: Option<&Sample>) {
        let (then, ops) = before.map_or((0.0, 0), |b| (b.seconds, b.ops));
        let rate = (now.ops - ops) as f64 / (now.seconds - then).max(1e-9);
        let part = match (self.total_ops, self.seconds) {
            (_, s) if s > 0 => now.seconds / s as f64,
            (n, _) if n > 0 => now.ops as f64 / n as f64,
            _ => 0.0,
        };
        let part = if part > 0.0 { format!(" {:3.0} %", (part * 100.0).min(100.0)) } else { String::new() };
        let rate = if now.ops > 0 { format!("  {} ops/s", short(rate)) } else { String::new() };
        let held = if now.reason.is_empty() { String::new() } else { format!("  held back: {}", now.reason) };
        let mut err = std::io::stderr().lock();
        // The line is only for an interactive user; write errors are ignored.
        let _ = write!(err, "\r\x1b[K{}{part}  {:.0} s{rate}{held}", self.title, now.seconds);
        let _ = err.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, ops: u64, stall_micros: u64, reason: &str) -> Sample {
        let reason = reason.to_owned();
        Sample { seconds, ops, stall_micros, reason, ..Sample::default() }
    }

    #[test]
    fn operations_fall_into_their_seconds() {
        let t = Timeline {
            samples: vec![
                sample(0.5, 100, 0, ""),
                sample(1.5, 300, 0, ""),
                sample(2.0, 300, 0, ""),
                sample(2.1, 999, 0, ""),
            ],
        };
        assert_eq!(t.per_second(), [200.0, 100.0], "the last tenth of a second is no second");
        let short = Timeline { samples: vec![sample(0.1, 50, 0, "")] };
        assert_eq!(short.per_second(), [500.0], "but all there is is better than nothing");
        assert!(Timeline::default().per_second().is_empty());
    }

    #[test]
    fn stalls_go_to_the_reason_seen() {
        let t = Timeline {
            samples: vec![
                sample(1.0, 0, 10, ""),
                sample(2.0, 0, 50, "memtables"),
                sample(3.0, 0, 80, ""),
                sample(4.0, 0, 180, "L0 files"),
            ],
        };
        let wanted = [("L0 files", 100), ("memtables", 70), ("over before it was looked at", 10)];
        let wanted: Vec<_> = wanted.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect();
        assert_eq!(t.stalls_by_reason(), wanted);
    }

    #[test]
    fn jobs_are_averaged() {
        let seen = |jobs: &[u64]| Sample { jobs: jobs.to_vec(), ..sample(1.0, 0, 0, "") };
        let t = Timeline { samples: vec![seen(&[1]), seen(&[0, 2]), seen(&[1, 1, 0, 3]), seen(&[])] };
        assert_eq!(t.mean_jobs(), [0.5, 0.75, 0.0, 0.75]);
        assert!(Timeline::default().mean_jobs().is_empty());
        let deviation: Vec<f64> = t.jobs_deviation().iter().map(|d| d * d).collect();
        assert!((deviation[0] - 0.25).abs() < 1e-9 && (deviation[1] - 0.6875).abs() < 1e-9, "{deviation:?}");
    }

    #[test]
    fn threads_add_up_to_all_samples() {
        let seen = |threads| Sample { jobs: vec![0, 1], threads, ..sample(1.0, 0, 0, "") };
        let mut t = Timeline { samples: vec![seen(0), seen(2), seen(2), seen(4)] };
        assert_eq!(t.threads_at_most(), [0.25, 0.25, 0.75, 0.75, 1.0]);
        assert_eq!(t.threads(), (2.0, 2f64.sqrt()));
        t.samples.push(sample(2.0, 0, 0, ""));
        assert_eq!(t.threads(), (2.0, 2f64.sqrt()), "a sample that tells nothing does not count");
        assert!(Timeline::default().threads_at_most().is_empty());
    }
}
