//! What limited a run: for each moment, how much writers were slowed down, and by what.

use crate::share::{Capacity, Cost};

/// From this utilization on, a resource counts as used up: the rest is due to jobs that end between two events.
const USED_UP: f64 = 0.98;

/// What limits writers, possibly only themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Nothing: they write as fast as they can or want.
    Writers,
    /// All cores are in use.
    Cores,
    /// The device is fully used.
    Device,
    /// The fast device in front is fully used, or full of logs.
    FastDevice,
    /// Workers on other machines have no free core, or the network to them is fully used.
    Workers,
    /// Flushes: only one runs at a time.
    Flushes,
    /// All compaction threads have jobs.
    Threads,
    /// Dependencies between jobs: compaction threads are idle because possible jobs must wait for running ones.
    Jobs,
}

impl Limit {
    /// All.
    pub const ALL: [Self; 8] = [
        Self::Writers,
        Self::Cores,
        Self::Device,
        Self::FastDevice,
        Self::Workers,
        Self::Flushes,
        Self::Threads,
        Self::Jobs,
    ];

    /// For programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Writers => "writers",
            Self::Cores => "cores",
            Self::Device => "device",
            Self::FastDevice => "fast_device",
            Self::Workers => "workers",
            Self::Flushes => "flushes",
            Self::Threads => "threads",
            Self::Jobs => "jobs",
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Writers => "writers, who are not held up",
            Self::Cores => "the cores",
            Self::Device => "the device",
            Self::FastDevice => "the fast device",
            Self::Workers => "workers or the network to them",
            Self::Flushes => "flushes, one at a time",
            Self::Threads => "compaction threads, all busy",
            Self::Jobs => "jobs that must wait for others",
        }
    }

    /// What limits slowed or stopped writers: a resource that is used up, or otherwise what they wait for.
    pub fn of(capacity: &Capacity, wishes: &[(f64, Cost)], rates: &[f64], waits: &Waits) -> Self {
        let mut used = Cost::default();
        for ((_, cost), rate) in wishes.iter().zip(rates) {
            used.add(cost, *rate);
        }
        let full = |used: f64, of: f64| of > 0.0 && used >= of * USED_UP;
        let ([fast_read, fast_write, fast_total], [workers, sent, received]) = (capacity.fast, capacity.workers);
        if full(used.cpu, capacity.cores) {
            Self::Cores
        } else if full(used.read, capacity.read)
            || full(used.write, capacity.write)
            || full(used.read + used.write, capacity.total)
        {
            Self::Device
        } else if full(used.fast_read, fast_read)
            || full(used.fast_write, fast_write)
            || full(used.fast_read + used.fast_write, fast_total)
            || waits.for_space
        {
            Self::FastDevice
        } else if full(used.worker_cpu, workers) || full(used.sent, sent) || full(used.received, received) {
            Self::Workers
        } else if waits.for_flush {
            Self::Flushes
        } else if waits.busy_threads >= waits.threads {
            Self::Threads
        } else {
            Self::Jobs
        }
    }
}

/// What writers wait for, if they do.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// Logs that fill the fast device.
    pub for_space: bool,
    /// A flush, and not compactions.
    pub for_flush: bool,
    /// Compaction threads that have a job.
    pub busy_threads: usize,
    /// Compaction threads.
    pub threads: usize,
}

/// Fraction of the time for each limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits([f64; Limit::ALL.len()]);

impl Limits {
    /// Records `seconds` in which writers got `part` of what they wanted because of `limit`.
    pub fn pass(&mut self, seconds: f64, part: f64, limit: Limit) {
        let part = part.clamp(0.0, 1.0);
        self.0[Limit::Writers as usize] += seconds * part;
        self.0[limit as usize] += seconds * (1.0 - part);
    }

    /// The same as parts of `seconds`.
    pub fn of(&self, seconds: f64) -> Self {
        Self(self.0.map(|s| s / seconds.max(1e-9)))
    }

    /// What a limit has of it.
    pub fn part(&self, limit: Limit) -> f64 {
        self.0[limit as usize]
    }

    /// Those that matter, the largest first.
    pub fn largest(&self) -> Vec<(Limit, f64)> {
        let mut all: Vec<(Limit, f64)> = Limit::ALL.into_iter().map(|l| (l, self.part(l))).collect();
        all.retain(|(_, part)| *part >= 0.01);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Capacity =
        Capacity { cores: 2.0, read: 100.0, write: 100.0, total: 150.0, fast: [10.0, 10.0, 20.0], workers: [0.0; 3] };

    #[test]
    fn what_is_used_up_comes_before_what_is_waited_for() {
        let none = Waits { for_space: false, for_flush: false, busy_threads: 1, threads: 2 };
        let one = |cost: Cost, waits: Waits| Limit::of(&MACHINE, &[(1.0, cost)], &[1.0], &waits);
        let cost = Cost { cpu: 1.0, read: 10.0, ..Cost::default() };
        assert_eq!(one(cost, none), Limit::Jobs);
        assert_eq!(one(cost, Waits { busy_threads: 2, ..none }), Limit::Threads);
        assert_eq!(one(cost, Waits { for_flush: true, ..none }), Limit::Flushes);
        assert_eq!(one(Cost { cpu: 2.0, ..cost }, Waits { for_flush: true, ..none }), Limit::Cores);
        assert_eq!(one(Cost { read: 75.0, write: 74.0, ..cost }, none), Limit::Device);
        assert_eq!(one(Cost { fast_write: 10.0, ..cost }, none), Limit::FastDevice);
    }

    #[test]
    fn parts_add_up() {
        let mut all = Limits::default();
        all.pass(3.0, 0.75, Limit::Device);
        all.pass(1.0, 0.0, Limit::Jobs);
        let parts = all.of(4.0);
        assert_eq!(parts.part(Limit::Writers), 0.5625);
        assert_eq!(parts.largest(), [(Limit::Writers, 0.5625), (Limit::Jobs, 0.25), (Limit::Device, 0.1875)]);
        assert!((Limit::ALL.into_iter().map(|l| parts.part(l)).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
