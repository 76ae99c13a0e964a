//! Write control: compaction debt becomes delay as a slope, not a cliff.
//!
//! 1. Each change of the tree or of the memtables gives a *pressure* p: 0 while there is no reason to slow writers,
//!    1 at RocksDB's slowdown trigger, 2 at its stop trigger. L0 files and pending compaction bytes each give one, the
//!    largest counts.
//! 2. A write of n bytes owes n * p^2 / `delayed_write_rate` of time: nothing at first, RocksDB's delayed rate at its
//!    slowdown trigger, a quarter of it at the stop trigger.
//! 3. Debts add up until they are worth a sleep of a millisecond; then the leader of the write group sleeps.
//! 4. Writers stop (waiting on a condition, woken by the job that ends it) only when memory would run out (every
//!    memtable is full) or a stop trigger is reached.

use std::time::Duration;

use rockmill_io::Clock;

use crate::compaction::strategy::score::LevelScores;
use crate::options::CfOptions;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Why writers are delayed or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StallReason {
    /// They are not.
    None = 0,
    /// Too many L0 files.
    L0Files = 1,
    /// Too many bytes wait for compaction.
    PendingCompactionBytes = 2,
    /// Every memtable is full.
    Memtables = 3,
    /// All memtables together hold too much: the write buffer manager stops writers.
    WriteBufferManager = 4,
}

impl StallReason {
    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::L0Files => "L0 files",
            Self::PendingCompactionBytes => "pending compaction bytes",
            Self::Memtables => "memtables",
            Self::WriteBufferManager => "bytes in memtables (write buffer manager)",
        }
    }

    fn from_u8(v: u8) -> Self {
        match v {
            1 => Self::L0Files,
            2 => Self::PendingCompactionBytes,
            3 => Self::Memtables,
            4 => Self::WriteBufferManager,
            _ => Self::None,
        }
    }
}

/// Where a cause's slope begins, reaches RocksDB's slowdown trigger, and its stop trigger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slope {
    pub begin: f64,
    pub slowdown: f64,
    pub stop: f64,
}

impl Slope {
    /// Pressure of `value`: 0 below `begin`, 1 at `slowdown`, 2 at `stop` and beyond.
    pub fn pressure(&self, value: f64) -> f64 {
        if value <= self.begin {
            0.0
        } else if value < self.slowdown {
            (value - self.begin) / (self.slowdown - self.begin)
        } else if value < self.stop {
            1.0 + (value - self.slowdown) / (self.stop - self.slowdown)
        } else {
            2.0
        }
    }
}

/// How a column family's tree is to slow writers: a pure function of its scores and options, for the store and the
/// simulator alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteControl {
    /// 0 not at all, 1 at RocksDB's slowdown trigger, 2 at its stop trigger.
    pub pressure: f64,
    /// What gives the pressure.
    pub reason: StallReason,
    /// Compaction should speed up (RocksDB's `NeedSpeedupCompaction`).
    pub behind: bool,
}

/// The pressure of a tree with automatic compactions.
pub fn write_control(scores: &LevelScores, o: &CfOptions) -> WriteControl {
    let (trigger, slow) =
        (f64::from(o.level0_file_num_compaction_trigger), f64::from(o.level0_slowdown_writes_trigger));
    let stop = f64::from(o.level0_stop_writes_trigger).max(slow + 1.0);
    let l0 = Slope { begin: trigger.max((trigger + slow) / 2.0).min(slow - 1.0), slowdown: slow, stop };
    let runs = scores.runs as f64;
    // RocksDB's marks where compaction is to speed up.
    let mark = (trigger * 2.0).min(trigger + (slow - trigger) / 4.0);
    let mut control = WriteControl { pressure: l0.pressure(runs), reason: StallReason::L0Files, behind: runs >= mark };
    let (soft, hard) = (o.soft_pending_compaction_bytes_limit as f64, o.hard_pending_compaction_bytes_limit as f64);
    if soft > 0.0 {
        let pending = scores.pending_bytes as f64;
        control.behind |= pending >= soft / 4.0;
        let debt = Slope { begin: soft * 0.5, slowdown: soft, stop: hard.max(soft + 1.0) }.pressure(pending);
        if debt > control.pressure {
            (control.pressure, control.reason) = (debt, StallReason::PendingCompactionBytes);
        }
    }
    control
}

/// Why writers must wait, if they must, with so many full memtables.
pub fn write_stop(scores: &LevelScores, o: &CfOptions, full_memtables: usize) -> Option<StallReason> {
    if full_memtables >= o.max_write_buffer_number.max(1) as usize {
        return Some(StallReason::Memtables);
    }
    if o.disable_auto_compactions {
        return None;
    }
    if scores.runs >= o.level0_stop_writes_trigger.max(1) as usize {
        return Some(StallReason::L0Files);
    }
    let hard = o.hard_pending_compaction_bytes_limit;
    (hard > 0 && scores.pending_bytes >= hard).then_some(StallReason::PendingCompactionBytes)
}

/// Nanoseconds that a writer owes for each KiB at a pressure; 0 when writers run free.
pub fn delay_ns_per_kib(pressure: f64, delayed_write_rate: u64) -> u64 {
    if pressure <= 0.0 {
        return 0;
    }
    (pressure * pressure * 1024.0 * 1e9 / delayed_write_rate.max(1) as f64) as u64
}

/// Turns pressure into sleep, and counts it.
#[derive(Debug, Default)]
pub(crate) struct WriteController {
    /// Nanoseconds owed per KiB written; 0 when writers run free.
    delay_ns_per_kib: AtomicU64,
    reason: AtomicU8,
    /// Delay owed and not yet slept, in nanoseconds.
    owed_ns: AtomicU64,
    /// Compaction has work enough that writes which can wait should (RocksDB's `NeedSpeedupCompaction`).
    behind: AtomicBool,
    /// When the next write of low priority may go, in the clock's monotonic nanoseconds.
    low_pri_free_at: Mutex<u64>,
    pub delayed_micros: AtomicU64,
    pub stopped_micros: AtomicU64,
}

/// What writers of low priority get while compaction is behind (RocksDB's rate).
const LOW_PRI_BYTES_PER_SECOND: u64 = 1 << 20;
/// A sleep shorter than this costs more in wake-ups than it is worth.
const SLEEP_NS_MIN: u64 = 1_000_000;
/// Longest single sleep: pressure may have fallen meanwhile.
const SLEEP_NS_MAX: u64 = 20_000_000;

impl WriteController {
    /// Sets the pressure that holds from now on.
    pub fn set(&self, pressure: f64, reason: StallReason, delayed_write_rate: u64) {
        let per_kib = delay_ns_per_kib(pressure, delayed_write_rate);
        self.delay_ns_per_kib.store(per_kib, Ordering::Relaxed);
        self.reason.store(if per_kib == 0 { 0 } else { reason as u8 }, Ordering::Relaxed);
        if per_kib == 0 {
            self.owed_ns.store(0, Ordering::Relaxed);
        }
    }

    /// True when writers owe delay.
    #[inline]
    pub fn is_delaying(&self) -> bool {
        self.delay_ns_per_kib.load(Ordering::Relaxed) != 0
    }

    /// Why.
    pub fn reason(&self) -> StallReason {
        StallReason::from_u8(self.reason.load(Ordering::Relaxed))
    }

    /// Bytes per second that writers get now; 0 when they are free.
    pub fn rate(&self) -> u64 {
        match self.delay_ns_per_kib.load(Ordering::Relaxed) {
            0 => 0,
            ns => 1024 * 1_000_000_000 / ns,
        }
    }

    /// Says whether compaction is behind.
    pub fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Relaxed);
    }

    /// True when writes of low priority should wait.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// Makes a writer of low priority sleep so long that all of them together write `LOW_PRI_BYTES_PER_SECOND`.
    pub fn delay_low_pri(&self, bytes: u64, clock: &dyn Clock) {
        let now = clock.monotonic_nanos();
        let until = {
            let mut free_at = self.low_pri_free_at.lock();
            *free_at = (*free_at).max(now) + bytes.saturating_mul(1_000_000_000) / LOW_PRI_BYTES_PER_SECOND;
            *free_at
        };
        // In pieces: compaction may catch up meanwhile.
        let mut now = now;
        while now < until && self.is_behind() {
            clock.sleep(Duration::from_nanos((until - now).min(SLEEP_NS_MAX)));
            now = clock.monotonic_nanos();
        }
    }

    /// Makes the leader of a group of `bytes` sleep off what the group owes.
    /// Gives the microseconds slept.
    pub fn delay(&self, bytes: u64, clock: &dyn Clock) -> u64 {
        let owe = bytes * self.delay_ns_per_kib.load(Ordering::Relaxed) / 1024;
        let owed = self.owed_ns.fetch_add(owe, Ordering::Relaxed) + owe;
        if owed < SLEEP_NS_MIN {
            return 0;
        }
        let before = clock.monotonic_nanos();
        clock.sleep(Duration::from_nanos(owed.min(SLEEP_NS_MAX)));
        // Sleeps overshoot; what was slept too long is taken off the next one.
        let slept = clock.monotonic_nanos().saturating_sub(before);
        self.delayed_micros.fetch_add(slept / 1000, Ordering::Relaxed);
        let _ = self.owed_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |o| Some(o.saturating_sub(slept)));
        slept / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_io::SystemClock;

    #[test]
    fn pressure_is_a_slope_without_a_step() {
        let s = Slope { begin: 12.0, slowdown: 20.0, stop: 36.0 };
        assert_eq!(s.pressure(0.0), 0.0);
        assert_eq!(s.pressure(12.0), 0.0);
        assert_eq!(s.pressure(20.0), 1.0);
        assert_eq!(s.pressure(36.0), 2.0);
        assert_eq!(s.pressure(1e9), 2.0);
        let mut last = 0.0;
        for i in 0..4000 {
            let p = s.pressure(f64::from(i) / 100.0);
            assert!(p >= last && p - last < 0.01, "step at {i}: {last} to {p}");
            last = p;
        }
    }

    #[test]
    fn writes_of_low_priority_share_a_megabyte_a_second_while_compaction_is_behind() {
        let c = WriteController::default();
        let clock = rockmill_io::ManualClock::new(0);
        c.delay_low_pri(10 << 20, &clock);
        assert_eq!(clock.monotonic_nanos(), 0, "compaction keeps up");
        let c = WriteController::default();
        c.set_behind(true);
        for _ in 0..8 {
            c.delay_low_pri(256 << 10, &clock);
        }
        assert_eq!(clock.monotonic_nanos() / 1_000_000, 2000, "2 MiB at 1 MiB/s");
    }

    #[test]
    fn the_delayed_rate_is_kept_and_counted() {
        let c = WriteController::default();
        let clock = SystemClock::default();
        c.set(1.0, StallReason::L0Files, 100 << 20);
        assert_eq!(c.reason(), StallReason::L0Files);
        assert!((c.rate() as f64 / (100 << 20) as f64 - 1.0).abs() < 0.01);
        let before = clock.monotonic_nanos();
        for _ in 0..1000 {
            c.delay(10 << 10, &clock); // 10 MB at 100 MB/s: 98 ms
        }
        let took = (clock.monotonic_nanos() - before) / 1_000_000;
        assert!((80..1000).contains(&took), "{took} ms");
        c.set(0.0, StallReason::L0Files, 100 << 20);
        assert!(!c.is_delaying());
        assert_eq!(c.reason(), StallReason::None);
    }
}
