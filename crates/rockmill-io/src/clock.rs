//! Time.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Source of time and of sleep.
pub trait Clock: Send + Sync + Debug {
    /// Microseconds since the Unix epoch.
    fn now_micros(&self) -> u64;
    /// Monotonic nanoseconds from an arbitrary start.
    fn monotonic_nanos(&self) -> u64;
    /// Sleeps at least this long.
    fn sleep(&self, duration: Duration);
}

/// The system's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now_micros(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
    }

    fn monotonic_nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock that moves only when told to, for tests. A sleep advances it immediately. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
    epoch_micros: u64,
}

impl ManualClock {
    /// Starts at this many microseconds since the Unix epoch; the monotonic time starts at 0.
    pub fn new(epoch_micros: u64) -> Self {
        Self { nanos: Arc::default(), epoch_micros }
    }

    /// Moves the time on.
    pub fn advance(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // Stops at the largest value instead of wrapping around.
        let _ = self.nanos.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| Some(now.saturating_add(nanos)));
    }
}

impl Clock for ManualClock {
    fn now_micros(&self) -> u64 {
        self.epoch_micros.saturating_add(self.monotonic_nanos() / 1000)
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::SeqCst)
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told_and_by_sleeping() {
        let clock = ManualClock::new(1_000_000);
        let other = clock.clone();
        assert_eq!((clock.now_micros(), clock.monotonic_nanos()), (1_000_000, 0));
        clock.sleep(Duration::from_micros(5));
        other.advance(Duration::from_nanos(500));
        assert_eq!((clock.now_micros(), clock.monotonic_nanos()), (1_000_005, 5_500));
        clock.advance(Duration::MAX);
        assert_eq!(clock.monotonic_nanos(), u64::MAX);
    }

    #[test]
    fn the_system_clock_goes_forward() {
        let clock = SystemClock::default();
        let before = clock.monotonic_nanos();
        clock.sleep(Duration::from_millis(2));
        assert!(clock.monotonic_nanos() - before >= 2_000_000);
        assert!(clock.now_micros() > 1_600_000_000_000_000, "the year is after 2020");
    }
}
