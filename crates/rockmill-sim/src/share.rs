//! Divides the device and the cores among jobs.

/// The cost of progress: how much of each resource a *unit* of progress (a whole job; one write) needs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// CPU seconds.
    pub cpu: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub write: f64,
    /// Bytes read from the fast device, if there is one.
    pub fast_read: f64,
    /// Bytes written to it.
    pub fast_write: f64,
    /// CPU seconds of workers on other machines.
    pub worker_cpu: f64,
    /// Bytes sent to them.
    pub sent: f64,
    /// Bytes received from them.
    pub received: f64,
}

/// Resources per second.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// CPU seconds.
    pub cores: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub write: f64,
    /// Bytes read and written.
    pub total: f64,
    /// The same three of the fast device.
    pub fast: [f64; 3],
    /// CPU seconds of workers, bytes sent to them, bytes received from them.
    pub workers: [f64; 3],
}

/// How many resources there are.
const RESOURCES: usize = 10;

impl Cost {
    /// What it needs of each resource, in the order of [`Capacity::all`].
    fn needs(&self) -> [f64; RESOURCES] {
        let fast_total = self.fast_read + self.fast_write;
        [
            self.cpu,
            self.read,
            self.write,
            self.read + self.write,
            self.fast_read,
            self.fast_write,
            fast_total,
            self.worker_cpu,
            self.sent,
            self.received,
        ]
    }

    /// Adds so many times another one.
    pub fn add(&mut self, other: &Self, times: f64) {
        self.cpu += other.cpu * times;
        self.read += other.read * times;
        self.write += other.write * times;
        self.fast_read += other.fast_read * times;
        self.fast_write += other.fast_write * times;
        self.worker_cpu += other.worker_cpu * times;
        self.sent += other.sent * times;
        self.received += other.received * times;
    }
}

impl Capacity {
    fn all(&self) -> [f64; RESOURCES] {
        let ([fast_read, fast_write, fast_total], [workers, sent, received]) = (self.fast, self.workers);
        let (cores, read, write, total) = (self.cores, self.read, self.write, self.total);
        [cores, read, write, total, fast_read, fast_write, fast_total, workers, sent, received]
    }
}

/// Units per second for each of `wishes`, (most units per second, cost of a unit): all get the same fraction of their
/// wish until a resource is used up; those that do not need it get more (progressive filling).
pub fn divide(capacity: &Capacity, wishes: &[(f64, Cost)]) -> Vec<f64> {
    let mut left = capacity.all();
    let mut rates = vec![0.0; wishes.len()];
    let mut open: Vec<usize> = (0..wishes.len()).filter(|&i| wishes[i].0 > 0.0).collect();
    let mut filled = 0.0;
    while !open.is_empty() && filled < 1.0 {
        let mut demand = [0.0; RESOURCES];
        for &i in &open {
            for (d, n) in demand.iter_mut().zip(wishes[i].1.needs()) {
                *d += wishes[i].0 * n;
            }
        }
        let step = (0..RESOURCES)
            .filter(|&r| demand[r] > 0.0)
            .map(|r| (left[r].max(0.0) / demand[r], r))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(step, _)| *step < 1.0 - filled);
        let by = step.map_or(1.0 - filled, |s| s.0);
        for &i in &open {
            rates[i] += wishes[i].0 * by;
        }
        for (l, d) in left.iter_mut().zip(demand) {
            *l -= d * by;
        }
        filled += by;
        let Some((_, used_up)) = step else { break };
        open.retain(|&i| wishes[i].1.needs()[used_up] <= 0.0);
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Capacity =
        Capacity { cores: 2.0, read: 100.0, write: 100.0, total: 150.0, fast: [10.0; 3], workers: [4.0, 20.0, 20.0] };

    #[test]
    fn what_is_free_is_given_and_what_is_short_is_shared() {
        let cpu = |cpu| Cost { cpu, ..Cost::default() };
        assert_eq!(divide(&MACHINE, &[(1.0, cpu(1.0))]), [1.0]);
        assert_eq!(divide(&MACHINE, &[(1.0, cpu(1.0)); 4]), [0.5; 4]);
        assert_eq!(divide(&MACHINE, &[(0.0, cpu(1.0)), (5.0, Cost::default())]), [0.0, 5.0]);
        // A job that needs no core continues when the cores are used up.
        let read = Cost { read: 10.0, ..Cost::default() };
        assert_eq!(divide(&MACHINE, &[(1.0, cpu(4.0)), (10.0, read)]), [0.5, 10.0]);
        // Both directions share the device.
        let (r, w) = (Cost { read: 1.0, ..Cost::default() }, Cost { write: 1.0, ..Cost::default() });
        assert_eq!(divide(&MACHINE, &[(100.0, r), (100.0, w)]), [75.0, 75.0]);
        // The fast device is another one.
        let fast = Cost { fast_read: 1.0, fast_write: 1.0, ..Cost::default() };
        assert_eq!(divide(&MACHINE, &[(100.0, w), (100.0, fast)]), [100.0, 5.0]);
        // A worker's cores are others, and the network is short before they are.
        let there = Cost { cpu: 0.25, worker_cpu: 1.0, sent: 10.0, received: 5.0, ..Cost::default() };
        assert_eq!(divide(&MACHINE, &[(4.0, there), (1.0, cpu(1.0))]), [2.0, 1.0]);
    }
}
