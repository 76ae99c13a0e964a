//! Bounds the bytes per second that background work writes (and, if asked, reads), by priority: RocksDB's
//! `GenericRateLimiter`.
//!
//! 1. Time is cut into periods (`refill_period_us`). Each period provides `rate * period` bytes; unused bytes are
//!    available to the first requests of the next period.
//! 2. A request that finds enough bytes takes them and returns. Otherwise it joins the queue of its priority.
//! 3. One of the waiting threads, the leader, sleeps until the period ends. It then hands out the new bytes:
//!    [`IoPriority::User`] first, then High, Mid, Low. Once in `fairness` times a lower priority goes first, so that
//!    none starves. A request may get its bytes over several periods.
//! 4. Waits end when the requesting database is closing; the rest of the request then goes through without a limit.
//!
//! Sleeps are short (`SLICE`), so that all threads notice a shutdown soon. Time comes from a [`Clock`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::{Clock, SystemClock};

use crate::error::{Error, Result};
use crate::statistics::{MaybeStatistics, Statistics, Ticker};
use crate::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// How urgent a read or write of files is (RocksDB's `Env::IOPriority`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
#[non_exhaustive]
pub enum IoPriority {
    /// Compactions.
    Low = 0,
    /// Between the two; for the application's own use.
    Mid = 1,
    /// Flushes.
    High = 2,
    /// Work that users wait for: flushes and compactions while writers are delayed or stopped.
    User = 3,
}

impl IoPriority {
    /// Every priority, lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Mid, Self::High, Self::User];
}

/// What a rate limiter counts (RocksDB's `RateLimiter::Mode`), with the names of the `rocksdb` crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RateLimiterMode {
    /// Reads of compactions.
    KReadsOnly,
    /// Writes of flushes and compactions.
    #[default]
    KWritesOnly,
    /// Both.
    KAllIo,
}

impl RateLimiterMode {
    /// True when reads are limited.
    pub fn limits_reads(self) -> bool {
        self != Self::KWritesOnly
    }

    /// True when writes are limited.
    pub fn limits_writes(self) -> bool {
        self != Self::KReadsOnly
    }
}

/// Longest sleep before a waiter checks its stop flag again; closing a database may have to wait this long. Measured: a
/// wake-up takes 24 us of CPU, so a waiter uses 0.24 % of a core. With half of this value it uses 0.43 %, with twice
/// this value 0.13 %.
const SLICE: Duration = Duration::from_millis(10);
/// Periods between adjustments of an auto-tuned limiter. This and the next four values are RocksDB's
/// (`GenericRateLimiter`: `kRefillsPerTune`, `kAllowedRangeFactor`, `kAdjustFactorPct`, `kLowWatermarkPct`,
/// `kHighWatermarkPct`), so that an auto-tuned limiter behaves as in RocksDB.
const PERIODS_PER_TUNE: u64 = 100;
/// An auto-tuned rate is at least the largest rate divided by this.
const TUNE_RANGE: i64 = 20;
/// Step of a change in percent, and the percentages of drained periods below and above which the rate changes.
const TUNE_STEP: i64 = 5;
const TUNE_LOW: u64 = 50;
const TUNE_HIGH: u64 = 90;

/// Bounds bytes per second; see the module. To share it between databases, clone the `Arc`.
pub struct RateLimiter {
    clock: Arc<dyn Clock>,
    mode: RateLimiterMode,
    refill_period_us: i64,
    fairness: i32,
    auto_tuned: bool,
    /// Bytes per second now.
    rate: AtomicI64,
    state: Mutex<State>,
    /// Bytes were handed out, or the leader's place is free.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    available: i64,
    next_refill_us: u64,
    queues: [VecDeque<Waiting>; 4],
    next_id: u64,
    /// Somebody sleeps until the next refill.
    led: bool,
    requests: [u64; 4],
    bytes: [u64; 4],
    /// For an auto-tuned limiter: the largest rate, the time of the last adjustment, and in how many periods since then
    /// a request had to wait.
    rate_max: i64,
    tuned_us: u64,
    drains: u64,
    rng: u64,
}

struct Waiting {
    id: u64,
    /// Still to come.
    left: i64,
    /// All that it queued up for.
    bytes: i64,
}

impl RateLimiter {
    /// Creates a limiter of `rate_bytes_per_sec` that hands out bytes every `refill_period_us` (RocksDB's default:
    /// 100,000). Longer periods cause bursts, shorter ones cost CPU time. A lower priority goes first once in
    /// `fairness` periods (RocksDB's default: 10). All three must be above 0; a database does not open with other
    /// values.
    ///
    /// With `auto_tuned`, the rate follows demand, between a twentieth of `rate_bytes_per_sec` and all of it.
    pub fn new(
        rate_bytes_per_sec: i64,
        refill_period_us: i64,
        fairness: i32,
        mode: RateLimiterMode,
        auto_tuned: bool,
    ) -> Arc<Self> {
        let clock = Arc::new(SystemClock::default());
        Self::with_clock(rate_bytes_per_sec, refill_period_us, fairness, mode, auto_tuned, clock)
    }

    /// [`Self::new`] with a given clock, for tests.
    pub fn with_clock(
        rate_bytes_per_sec: i64,
        refill_period_us: i64,
        fairness: i32,
        mode: RateLimiterMode,
        auto_tuned: bool,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let now = clock.monotonic_nanos() / 1000;
        let rate = if auto_tuned { rate_bytes_per_sec / 2 } else { rate_bytes_per_sec };
        let state = State {
            next_refill_us: now,
            tuned_us: now,
            rate_max: rate_bytes_per_sec,
            rng: 0x2545_f491_4f6c_dd1d,
            ..State::default()
        };
        Arc::new(Self {
            clock,
            mode,
            refill_period_us,
            fairness: fairness.min(100),
            auto_tuned,
            rate: AtomicI64::new(rate),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Refuses numbers that limit nothing or everything.
    pub(crate) fn check(&self) -> Result<()> {
        let rate = self.state.lock().rate_max;
        if rate <= 0 || self.refill_period_us <= 0 || self.fairness <= 0 {
            return Err(Error::invalid_argument(format!(
                "rate limiter: bytes per second ({rate}), refill period ({} us) and fairness ({}) must be above 0",
                self.refill_period_us, self.fairness
            )));
        }
        Ok(())
    }

    /// The kinds of I/O that it limits.
    pub fn mode(&self) -> RateLimiterMode {
        self.mode
    }

    /// Bytes per second now (`GetBytesPerSecond`).
    pub fn bytes_per_second(&self) -> i64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Changes the rate from the next period on (`SetBytesPerSecond`); for an auto-tuned limiter the largest rate.
    pub fn set_bytes_per_second(&self, rate_bytes_per_sec: i64) -> Result<()> {
        if rate_bytes_per_sec <= 0 {
            return Err(Error::invalid_argument(format!("a rate of {rate_bytes_per_sec} bytes per second")));
        }
        let mut state = self.state.lock();
        state.rate_max = rate_bytes_per_sec;
        self.rate.store(rate_bytes_per_sec, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of one period: the most that one request gets at once (`GetSingleBurstBytes`).
    pub fn single_burst_bytes(&self) -> i64 {
        let bytes = i128::from(self.bytes_per_second()) * i128::from(self.refill_period_us) / 1_000_000;
        i64::try_from(bytes).unwrap_or(i64::MAX).max(1)
    }

    /// Bytes that went through, of one priority or of all.
    pub fn total_bytes_through(&self, priority: Option<IoPriority>) -> u64 {
        let bytes = self.state.lock().bytes;
        priority.map_or_else(|| bytes.iter().sum(), |p| bytes[p as usize])
    }

    /// Requests made, of one priority or of all.
    pub fn total_requests(&self, priority: Option<IoPriority>) -> u64 {
        let requests = self.state.lock().requests;
        priority.map_or_else(|| requests.iter().sum(), |p| requests[p as usize])
    }

    /// Requests that wait now, of one priority or of all.
    pub fn total_pending_requests(&self, priority: Option<IoPriority>) -> u64 {
        let state = self.state.lock();
        let len = |p: IoPriority| state.queues[p as usize].len() as u64;
        priority.map_or_else(|| IoPriority::ALL.into_iter().map(len).sum(), len)
    }

    /// Waits until `bytes` may go through.
    pub fn request(&self, bytes: u64, priority: IoPriority) {
        self.request_until(bytes, priority, &|| false);
    }

    /// Waits until `bytes` may go through, or `stop` says that the caller need not wait any more. Returns how many
    /// periods the caller, as leader, waited for because their bytes were used up.
    pub(crate) fn request_until(&self, bytes: u64, priority: IoPriority, stop: &dyn Fn() -> bool) -> u64 {
        let mut left = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut drains = 0;
        while left > 0 {
            let part = left.min(self.single_burst_bytes());
            drains += self.request_part(part, priority, stop);
            left -= part;
        }
        drains
    }

    fn now_us(&self) -> u64 {
        self.clock.monotonic_nanos() / 1000
    }

    fn request_part(&self, mut bytes: i64, priority: IoPriority, stop: &dyn Fn() -> bool) -> u64 {
        let p = priority as usize;
        let mut state = self.state.lock();
        self.tune(&mut state);
        state.requests[p] += 1;
        let granted = bytes.min(state.available);
        state.available -= granted;
        state.bytes[p] += granted as u64;
        bytes -= granted;
        let mut drains = 0;
        if bytes == 0 {
            return 0;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.queues[p].push_back(Waiting { id, left: bytes, bytes });
        loop {
            if stop() {
                let bytes_left = bytes as u64;
                state.queues[p].retain(|w| w.id != id);
                state.bytes[p] += bytes_left;
                break;
            }
            if self.now_us() >= state.next_refill_us {
                self.refill(&mut state);
                self.changed.notify_all();
            } else if state.led {
                self.changed.wait_for(&mut state, SLICE);
            } else {
                drains += 1;
                self.lead(&mut state, stop);
            }
            if !state.queues[p].iter().any(|w| w.id == id) {
                break;
            }
        }
        // One of the remaining threads must lead now.
        self.changed.notify_all();
        drains
    }

    /// Sleeps until the next refill is due.
    fn lead(&self, state: &mut MutexGuard<'_, State>, stop: &dyn Fn() -> bool) {
        state.led = true;
        state.drains += 1;
        loop {
            let now = self.now_us();
            if now >= state.next_refill_us || stop() {
                break;
            }
            let wait = Duration::from_micros(state.next_refill_us - now).min(SLICE);
            MutexGuard::unlocked(state, || self.clock.sleep(wait));
        }
        state.led = false;
    }

    /// Begins a period and hands its bytes out.
    fn refill(&self, state: &mut State) {
        state.next_refill_us = self.now_us().saturating_add(self.refill_period_us.max(1) as u64);
        state.available = self.single_burst_bytes();
        for p in order(one_in(state, self.fairness), one_in(state, self.fairness)) {
            while let Some(first) = state.queues[p].front_mut() {
                let part = first.left.min(state.available);
                first.left -= part;
                state.available -= part;
                if first.left > 0 {
                    return; // all handed out
                }
                state.bytes[p] += first.bytes as u64;
                state.queues[p].pop_front();
            }
        }
    }

    /// Adjusts the rate of an auto-tuned limiter: down if few periods are drained, up if nearly all are.
    fn tune(&self, state: &mut State) {
        let period = self.refill_period_us.max(1) as u64;
        let now = self.now_us();
        let since = now.saturating_sub(state.tuned_us);
        if !self.auto_tuned || since < period.saturating_mul(PERIODS_PER_TUNE) {
            return;
        }
        let dry = state.drains * 100 / since.div_ceil(period).max(1);
        let rate = self.bytes_per_second();
        let min = (state.rate_max / TUNE_RANGE).max(1);
        let tuned = if dry == 0 {
            min
        } else if dry < TUNE_LOW {
            min.max((i128::from(rate) * 100 / i128::from(100 + TUNE_STEP)) as i64)
        } else if dry > TUNE_HIGH {
            state.rate_max.min((i128::from(rate) * i128::from(100 + TUNE_STEP) / 100) as i64)
        } else {
            rate
        };
        self.rate.store(tuned, Ordering::Relaxed);
        state.tuned_us = now;
        state.drains = 0;
    }
}

/// The order in which priorities get their bytes.
fn order(high_last: bool, mid_last: bool) -> [usize; 4] {
    let [low, mid, high, user] = IoPriority::ALL.map(|p| p as usize);
    let (third, fourth) = if mid_last { (low, mid) } else { (mid, low) };
    if high_last { [user, third, fourth, high] } else { [user, high, third, fourth] }
}

/// True once in `n` times (xorshift).
fn one_in(state: &mut State, n: i32) -> bool {
    let mut x = state.rng;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    state.rng = x;
    x.is_multiple_of(n.max(1) as u64)
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("bytes_per_second", &self.bytes_per_second())
            .field("refill_period_us", &self.refill_period_us)
            .field("fairness", &self.fairness)
            .field("mode", &self.mode)
            .field("auto_tuned", &self.auto_tuned)
            .finish_non_exhaustive()
    }
}

/// How a job uses a limiter: its priority, and when it stops waiting.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    pub limiter: Arc<RateLimiter>,
    pub priority: IoPriority,
    /// Writers wait for background work, so it uses [`IoPriority::User`].
    pub writers_wait: Arc<AtomicBool>,
    /// The store closes.
    pub stop: Arc<AtomicBool>,
    /// Where drained periods are counted.
    pub statistics: Option<Arc<Statistics>>,
}

impl Limit {
    /// Waits until `bytes` may go through.
    pub fn request(&self, bytes: u64) {
        let priority = if self.writers_wait.load(Ordering::Relaxed) { IoPriority::User } else { self.priority };
        let drains = self.limiter.request_until(bytes, priority, &|| self.stop.load(Ordering::Acquire));
        if drains > 0 {
            self.statistics.add(Ticker::NumberRateLimiterDrains, drains);
        }
    }

    /// Bytes to request at once if writes are buffered up to `buffer` bytes.
    pub fn chunk(&self, buffer: usize) -> usize {
        let burst = usize::try_from(self.limiter.single_burst_bytes()).unwrap_or(usize::MAX);
        let buffer = if buffer == 0 { 1 << 20 } else { buffer };
        buffer.min(burst).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_io::ManualClock;

    const PERIOD: i64 = 100_000;

    fn limiter(rate: i64, fairness: i32, auto: bool) -> (Arc<RateLimiter>, ManualClock) {
        let clock = ManualClock::new(0);
        let mode = RateLimiterMode::KAllIo;
        (RateLimiter::with_clock(rate, PERIOD, fairness, mode, auto, Arc::new(clock.clone())), clock)
    }

    #[test]
    fn the_rate_holds_and_everything_is_counted() {
        let (limiter, clock) = limiter(1_000_000, 10, false);
        assert_eq!(limiter.single_burst_bytes(), 100_000);
        for _ in 0..100 {
            limiter.request(30_000, IoPriority::Low);
        }
        limiter.request(250_000, IoPriority::High); // more than a burst
        let took = clock.monotonic_nanos() as f64 / 1e9;
        // The first period's bytes are available immediately.
        assert!((took - 3.15).abs() < 0.11, "{took} s for 3.25 MB at 1 MB/s");
        assert_eq!(limiter.total_bytes_through(None), 3_250_000);
        assert_eq!(limiter.total_bytes_through(Some(IoPriority::High)), 250_000);
        assert_eq!(limiter.total_requests(Some(IoPriority::Low)), 100);
        assert_eq!(limiter.total_requests(Some(IoPriority::High)), 3);
        assert_eq!((limiter.total_pending_requests(None), limiter.total_requests(None)), (0, 103));

        // Faster from the next period on.
        limiter.set_bytes_per_second(10_000_000).unwrap();
        let before = clock.monotonic_nanos();
        limiter.request(10_000_000, IoPriority::Low);
        let took = (clock.monotonic_nanos() - before) as f64 / 1e9;
        assert!((0.9..1.2).contains(&took), "{took} s for 10 MB at 10 MB/s");
        assert!(limiter.set_bytes_per_second(0).is_err());
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        for (rate, period, fairness) in [(0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, -5)] {
            let l = RateLimiter::new(rate, period, fairness, RateLimiterMode::KWritesOnly, false);
            assert!(l.check().is_err(), "{rate} {period} {fairness}");
        }
        assert!(limiter(1, 1, false).0.check().is_ok());
        // Tiny rates still let bytes through.
        let (tiny, _) = limiter(1, 1, false);
        tiny.request(3, IoPriority::User);
        assert_eq!(tiny.total_bytes_through(None), 3);
    }

    /// Queues the requests that do not fit, as if each were a waiting thread, and begins a period.
    fn refill_with(limiter: &RateLimiter, waiting: &[(IoPriority, i64)]) -> Vec<i64> {
        let mut state = limiter.state.lock();
        for (i, &(p, bytes)) in waiting.iter().enumerate() {
            state.queues[p as usize].push_back(Waiting { id: 1000 + i as u64, left: bytes, bytes });
        }
        limiter.refill(&mut state);
        let left = |i: usize, p: IoPriority| {
            let id = 1000 + i as u64;
            state.queues[p as usize].iter().find(|w| w.id == id).map_or(0, |w| w.left)
        };
        let all = waiting.iter().enumerate().map(|(i, &(p, _))| left(i, p)).collect();
        state.queues.iter_mut().for_each(VecDeque::clear);
        all
    }

    #[test]
    fn higher_priorities_go_first_and_lower_ones_do_not_starve() {
        use IoPriority::{High, Low, Mid, User};
        assert_eq!(order(false, false), [3, 2, 1, 0]);
        assert_eq!(order(false, true), [3, 2, 0, 1]);
        assert_eq!(order(true, false), [3, 1, 0, 2]);
        assert_eq!(order(true, true), [3, 0, 1, 2]);
        let (l, _) = limiter(1_000_000, 10, false);
        let waiting = [(Low, 60_000), (Mid, 60_000), (High, 60_000), (User, 60_000)];
        let mut low_had_some = 0;
        for _ in 0..1000 {
            let left = refill_with(&l, &waiting);
            assert_eq!(left[3], 0, "users' bytes always come first");
            assert_eq!(left.iter().sum::<i64>(), 140_000);
            low_had_some += u32::from(left[0] < 60_000);
        }
        // One in a hundred: both random choices must turn out this way.
        assert!((1..60).contains(&low_had_some), "{low_had_some}");
        // Within a priority in order of arrival; the last one in parts.
        assert_eq!(refill_with(&l, &[(Low, 70_000), (Low, 70_000), (Low, 1)]), [0, 40_000, 1]);
    }

    #[test]
    fn an_auto_tuned_rate_follows_demand() {
        let (l, clock) = limiter(1_000_000, 10, true);
        assert_eq!(l.bytes_per_second(), 500_000);
        for _ in 0..400 {
            l.request(l.single_burst_bytes() as u64, IoPriority::Low); // as fast as it lets us
        }
        let busy = l.bytes_per_second();
        assert!(busy > 500_000, "{busy}");
        for _ in 0..5 {
            clock.advance(Duration::from_secs(20));
            l.request(1, IoPriority::Low);
        }
        assert_eq!(l.bytes_per_second(), 50_000);
    }

    #[test]
    fn waits_end_when_told_and_threads_share_the_rate() {
        let l = RateLimiter::new(1_000, PERIOD, 10, RateLimiterMode::KWritesOnly, false);
        let stop = AtomicBool::new(false);
        crate::sync::thread::scope(|s| {
            for p in [IoPriority::Low, IoPriority::Low, IoPriority::High] {
                let (l, stop) = (&l, &stop);
                s.spawn(move || l.request_until(1_000_000, p, &|| stop.load(Ordering::Acquire)));
            }
            while l.total_pending_requests(None) < 3 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Release);
        });
        assert_eq!(l.total_pending_requests(None), 0);
        assert_eq!(l.total_bytes_through(None), 3_000_000, "what is not waited for goes through");

        let l = RateLimiter::new(2_000_000, 10_000, 10, RateLimiterMode::KWritesOnly, false);
        let before = std::time::Instant::now();
        crate::sync::thread::scope(|s| {
            for p in IoPriority::ALL {
                let l = &l;
                s.spawn(move || (0..50).for_each(|_| l.request(2_000, p)));
            }
        });
        let took = before.elapsed();
        assert!(took >= Duration::from_millis(170), "400 kB at 2 MB/s took {took:?}");
        assert_eq!(l.total_bytes_through(None), 400_000);
    }
}
