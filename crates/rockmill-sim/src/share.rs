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
}

/// Units per second for each of `wishes`, (most units per second, cost of a unit): all get the same fraction of their
/// wish until a resource is used up; those that do not need it get more (progressive filling).
pub fn divide(capacity: &Capacity, wishes: &[(f64, Cost)]) -> Vec<f64> {
    let [fast_read, fast_write, fast_total] = capacity.fast;
    let mut left = [capacity.cores, capacity.read, capacity.write, capacity.total, fast_read, fast_write, fast_total];
    let needs =
        |c: &Cost| [c.cpu, c.read, c.write, c.read + c.write, c.fast_read, c.fast_write, c.fast_read + c.fast_write];
    let mut rates = vec![0.0; wishes.len()];
    let mut open: Vec<usize> = (0..wishes.len()).filter(|&i| wishes[i].0 > 0.0).collect();
    let mut filled = 0.0;
    while !open.is_empty() && filled < 1.0 {
        let mut demand = [0.0; 7];
        for &i in &open {
            for (d, n) in demand.iter_mut().zip(needs(&wishes[i].1)) {
                *d += wishes[i].0 * n;
            }
        }
        let step = (0..7)
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
        open.retain(|&i| needs(&wishes[i].1)[used_up] <= 0.0);
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Capacity = Capacity { cores: 2.0, read: 100.0, write: 100.0, total: 150.0, fast: [10.0; 3] };

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
    }
}
