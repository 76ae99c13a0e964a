//! Delays a remote worker's reads and writes like those of the store's own jobs: by the rate limiter, in favour of
//! users' reads, and for a flush that has priority.

use std::sync::Arc;
use std::time::Duration;

use rockmill_io::Clock;

use super::file::Gate;
use crate::compaction_workers::DevicePace;
use crate::rate_limiter::Limit;
use crate::sync::Mutex;

/// See the module's text.
pub(crate) struct JobDevicePace {
    /// Asked before reads.
    pub read_limit: Option<Limit>,
    /// Asked before writes.
    pub write_limit: Option<Limit>,
    /// Passed before reads.
    pub read_gates: Vec<Gate>,
    /// Passed before writes.
    pub write_gates: Vec<Gate>,
    pub clock: Arc<dyn Clock>,
    pub held: Mutex<Held>,
}

/// Total delay. Simultaneous delays count once.
#[derive(Debug, Default)]
pub(crate) struct Held {
    waiting: u32,
    since: u64,
    nanos: u64,
}

impl JobDevicePace {
    fn hold(&self, limit: Option<&Limit>, gates: &[Gate], bytes: u64) {
        if limit.is_none() && gates.is_empty() {
            return;
        }
        let now = self.clock.monotonic_nanos();
        {
            let mut held = self.held.lock();
            if held.waiting == 0 {
                held.since = now;
            }
            held.waiting += 1;
        }
        gates.iter().for_each(|gate| gate.pass(usize::try_from(bytes).unwrap_or(usize::MAX)));
        if let Some(limit) = limit {
            limit.request(bytes);
        }
        let now = self.clock.monotonic_nanos();
        let mut held = self.held.lock();
        held.waiting -= 1;
        if held.waiting == 0 {
            held.nanos += now.saturating_sub(held.since);
        }
    }
}

impl DevicePace for JobDevicePace {
    fn read(&self, bytes: u64) {
        self.hold(self.read_limit.as_ref(), &self.read_gates, bytes);
    }

    fn write(&self, bytes: u64) {
        self.hold(self.write_limit.as_ref(), &self.write_gates, bytes);
    }

    fn held(&self) -> Duration {
        let held = self.held.lock();
        let now = if held.waiting > 0 { self.clock.monotonic_nanos() } else { held.since };
        Duration::from_nanos(held.nanos.saturating_add(now.saturating_sub(held.since)))
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::ManualClock;

    use super::*;
    use crate::rate_limiter::{IoPriority, RateLimiter, RateLimiterMode};

    #[test]
    fn what_is_held_up_is_counted() {
        let clock = ManualClock::new(0);
        let of_limiter = Arc::new(clock.clone());
        let limiter = RateLimiter::with_clock(1_000_000, 100_000, 10, RateLimiterMode::KAllIo, false, of_limiter);
        let limit = Limit {
            limiter,
            priority: IoPriority::Low,
            writers_wait: Arc::default(),
            stop: Arc::default(),
            statistics: None,
        };
        let pace = JobDevicePace {
            read_limit: None,
            write_limit: Some(limit),
            read_gates: Vec::new(),
            write_gates: Vec::new(),
            clock: Arc::new(clock),
            held: Mutex::default(),
        };
        pace.read(1 << 30);
        assert_eq!(pace.held(), Duration::ZERO, "nothing limits reads");
        // A tenth of a second's bytes are available immediately.
        pace.write(1_000_000);
        let once = pace.held();
        assert!((800..=1200).contains(&once.as_millis()), "{once:?}");
        pace.write(1_000_000);
        assert!((1600..=2400).contains(&pace.held().as_millis()), "{:?}", pace.held());
    }
}
