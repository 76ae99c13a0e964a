//! Write control: compaction debt becomes delay as a slope, not a cliff.
//!
//! **Target.** While writers want more than compactions can take in, L0 files and pending compaction bytes stay between
//! where the slope begins and their stop triggers, near the slowdown trigger, and writers get what compactions take in.
//!
//! 1. Each change of the tree or of the memtables gives a *pressure* p: 0 while there is no reason to slow writers,
//!    1 at RocksDB's slowdown trigger, 2 at its stop trigger. L0 files and pending compaction bytes each give one, the
//!    largest counts.
//! 2. [`RateControl`] turns p into a rate: the *sustained* rate, which it learns, divided by p^2 below the slowdown
//!    trigger and times (2 - p)^2 above it. A write waits until the rate has room for it.
//! 3. While a flush is in flight, `flush_pace.rs` gives a second rate, by what still fits into memory.
//! 4. Writers stop (waiting on a condition, woken by the job that ends it) only when memory would run out (every
//!    memtable is full) or a stop trigger is reached.

use std::time::Duration;

use rockmill_io::Clock;

use super::decide::FullMemtables;
use crate::options::{CfOptions, CompactionStyle};
use crate::pacing::common::{BYTES_OF_A_BYTE, BytesPerSecond, SLEEP_MAX, SLEEP_MIN, Seconds};
use crate::pacing::decide::{Allowance, Orders};
use crate::pacing::flush_bound::{FlushBound, FlushWaits};
use crate::pacing::rate_control::RateControl;
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
    /// The logs on the fast device have reached their capacity.
    FastDevice = 5,
    /// The fast device has no space for more logs, although these have not reached their capacity.
    FastDeviceSpace = 6,
}

impl StallReason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::L0Files,
        Self::PendingCompactionBytes,
        Self::Memtables,
        Self::WriteBufferManager,
        Self::FastDevice,
        Self::FastDeviceSpace,
    ];

    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::L0Files => "L0 files",
            Self::PendingCompactionBytes => "pending compaction bytes",
            Self::Memtables => "memtables",
            Self::WriteBufferManager => "bytes in memtables (write buffer manager)",
            Self::FastDevice => "bytes on the fast device (fast_capacity)",
            Self::FastDeviceSpace => "bytes on the fast device (it is full)",
        }
    }

    fn from_u8(v: u8) -> Self {
        match v {
            1 => Self::L0Files,
            2 => Self::PendingCompactionBytes,
            3 => Self::Memtables,
            4 => Self::WriteBufferManager,
            5 => Self::FastDevice,
            6 => Self::FastDeviceSpace,
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

/// Where slopes begin: that part of the way to the slowdown trigger, from the compaction trigger or from no debt.
/// Simulated, on devices with 200 and 600 MB/s: a quarter has 0 to 7 % less throughput; three quarters up to 4 % more
/// for debt, and -10 to +6 % for L0.
const SLOPE_BEGIN: f64 = 0.5;
/// Compaction should speed up from this part of the way on: RocksDB's, for runs (from the compaction trigger to the
/// slowdown trigger) and for debt (of the slowdown trigger).
const BEHIND_PART: f64 = 0.25;
/// And from this many times the compaction trigger on. RocksDB's.
const BEHIND_TRIGGERS: f64 = 2.0;

/// The parts of a tree that slow writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeLoad {
    /// Sorted runs that count towards the triggers of L0.
    pub runs: usize,
    /// Compaction debt, in bytes.
    pub pending_bytes: u64,
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
    /// About how many bytes can be written between the slowdown trigger and the stop trigger.
    pub span_bytes: f64,
}

impl Default for WriteControl {
    fn default() -> Self {
        Self { pressure: 0.0, reason: StallReason::None, behind: false, span_bytes: 1e9 }
    }
}

/// The pressure of a tree with automatic compactions.
pub fn write_control(load: TreeLoad, o: &CfOptions) -> WriteControl {
    let trigger = f64::from(o.level0_file_num_compaction_trigger);
    let slow = match o.level0_slowdown_writes_trigger {
        // As in RocksDB, files of L0 do not slow writers.
        ..0 => f64::from(o.level0_stop_writes_trigger),
        slow => f64::from(slow),
    };
    let stop = f64::from(runs_that_stop(o)).max(slow + 1.0);
    let begin = trigger.max(trigger + (slow - trigger) * SLOPE_BEGIN).min(slow - 1.0);
    let l0 = Slope { begin, slowdown: slow, stop };
    let runs = load.runs as f64;
    let mark = (trigger * BEHIND_TRIGGERS).min(trigger + (slow - trigger) * BEHIND_PART);
    let file = o.write_buffer_size as f64 * f64::from(o.min_write_buffer_number_to_merge.max(1));
    let mut control = WriteControl {
        pressure: l0.pressure(runs),
        reason: StallReason::L0Files,
        behind: runs >= mark,
        span_bytes: (stop - slow) * file,
    };
    let (soft, hard) = (o.soft_pending_compaction_bytes_limit as f64, o.hard_pending_compaction_bytes_limit as f64);
    if soft > 0.0 {
        let pending = load.pending_bytes as f64;
        control.behind |= pending >= soft * BEHIND_PART;
        let debt = Slope { begin: soft * SLOPE_BEGIN, slowdown: soft, stop: hard.max(soft + 1.0) }.pressure(pending);
        if debt > control.pressure {
            (control.pressure, control.reason) = (debt, StallReason::PendingCompactionBytes);
            control.span_bytes = (hard.max(soft + 1.0) - soft) / BYTES_OF_A_BYTE as f64;
        }
    }
    control
}

/// Runs that stop writers: never fewer than begin a compaction, and more than universal compaction leaves, which merges
/// down to one. Otherwise writers would never continue. An open adjusts the triggers, `set_options` does not.
fn runs_that_stop(o: &CfOptions) -> i32 {
    let left = if o.compaction_style == CompactionStyle::Universal { 2 } else { 1 };
    o.level0_stop_writes_trigger.max(o.level0_file_num_compaction_trigger).max(left)
}

/// Why writers must wait, if they must, with this many full memtables.
pub fn write_stop(load: TreeLoad, o: &CfOptions, memtables: FullMemtables) -> Option<StallReason> {
    if memtables.full >= memtables.most {
        return Some(StallReason::Memtables);
    }
    if o.disable_auto_compactions {
        return None;
    }
    if load.runs >= runs_that_stop(o) as usize {
        return Some(StallReason::L0Files);
    }
    let hard = o.hard_pending_compaction_bytes_limit;
    (hard > 0 && load.pending_bytes >= hard).then_some(StallReason::PendingCompactionBytes)
}

/// Turns the allowed rate into sleep, and counts it.
#[derive(Debug)]
pub(crate) struct WriteController {
    /// A leaf lock.
    bucket: Mutex<Bucket>,
    /// A leaf lock.
    flush_bound: Mutex<FlushBound>,
    /// Writes ask the bucket.
    delaying: AtomicBool,
    reason: AtomicU8,
    /// Why writers are stopped.
    stopped_by: AtomicU8,
    /// Compaction has so much work that writes of low priority should wait (RocksDB's `NeedSpeedupCompaction`).
    behind: AtomicBool,
    /// What writers may write while a flush is in flight. A leaf lock.
    flush_bucket: Mutex<FlushBucket>,
    /// When users have written this many bytes, the allowance of the flush in flight is checked again; the maximum
    /// means never.
    look_at: AtomicU64,
    /// Writers had to wait for the flush in flight.
    paced: AtomicBool,
    /// When the next write of low priority may go, in the clock's monotonic nanoseconds.
    low_pri_free_at: Mutex<u64>,
    pub delayed_micros: AtomicU64,
    pub stopped_micros: AtomicU64,
    /// The longest time that a write waited at once, in microseconds.
    pub longest_micros: AtomicU64,
}

/// The rate that writers may use, and the one that they have.
#[derive(Debug, Default)]
struct Bucket {
    control: RateControl,
    /// Bytes that may be written at once; below 0 when too much was.
    credit: f64,
    /// When `credit` was right, in the clock's monotonic nanoseconds.
    at: u64,
}

impl Bucket {
    /// Adds what the time since the last update allows. Returns the rate.
    fn look(&mut self, now: u64) -> BytesPerSecond {
        let rate = self.control.rate();
        let seconds = now.saturating_sub(self.at) as f64 * 1e-9;
        self.at = self.at.max(now);
        // Only little is saved up: unused rate is not available later.
        let most = Allowance { rate, ..Allowance::FREE }.saved_max();
        self.credit = if rate.is_finite() { (self.credit + rate * seconds).min(most) } else { 0.0 };
        rate
    }
}

/// What writers may write while a flush is in flight ([`FlushPace`](super::flush_pace::FlushPace)).
#[derive(Debug, Default)]
struct FlushBucket {
    /// Bytes that may be written at once; below 0 when too much was.
    credit: f64,
    /// When `credit` was right, in the clock's monotonic nanoseconds, and what users had written then.
    at: u64,
    written: u64,
    /// At the last look.
    rate: BytesPerSecond,
}

impl Default for WriteController {
    fn default() -> Self {
        Self {
            bucket: Mutex::default(),
            flush_bound: Mutex::default(),
            delaying: AtomicBool::new(false),
            reason: AtomicU8::new(0),
            stopped_by: AtomicU8::new(0),
            behind: AtomicBool::new(false),
            flush_bucket: Mutex::default(),
            look_at: AtomicU64::new(u64::MAX),
            paced: AtomicBool::new(false),
            low_pri_free_at: Mutex::default(),
            delayed_micros: AtomicU64::new(0),
            stopped_micros: AtomicU64::new(0),
            longest_micros: AtomicU64::new(0),
        }
    }
}

/// Bytes per second for all writers of low priority together while compaction is behind. RocksDB's rate.
const LOW_PRI_BYTES_PER_SECOND: u64 = 1 << 20;
/// [`SLEEP_MIN`] and [`SLEEP_MAX`] in nanoseconds.
const SLEEP_NS: (u64, u64) = (SLEEP_MIN.as_nanos() as u64, SLEEP_MAX.as_nanos() as u64);
/// The most bytes that users write between two checks of the flush in flight. Derived: a writer may overshoot by it, a
/// sixty-fourth of a small memtable (16 MiB). In a model of paced writers half or twice of it changes no rate. At 300
/// MB/s and more, half of it takes up to twice the looks, and with twice of it the longest wait after a rate that falls
/// is 16 ms instead of 11.
const LOOK_BYTES: f64 = 262_144.0;

impl WriteController {
    /// Carries out `orders` from now on. `written`: all bytes that users wrote so far.
    pub fn obey(&self, orders: &Orders, delayed_write_rate: u64, written: u64, clock: &dyn Clock) {
        self.set_behind(orders.behind);
        self.stopped_by.store(orders.stop.map_or(0, |(_, why)| why as u8), Ordering::Relaxed);
        self.set(&orders.tree, delayed_write_rate, written, clock);
        self.flush_bound.lock().set(clock.monotonic_nanos() as f64 * 1e-9, orders.stopped_for_flush());
        self.set_pacing(orders.paced, written, clock);
    }

    fn set(&self, control: &WriteControl, delayed_write_rate: u64, written: u64, clock: &dyn Clock) {
        let mut bucket = self.bucket.lock();
        let now = clock.monotonic_nanos();
        if !self.delaying.load(Ordering::Relaxed) {
            (bucket.credit, bucket.at) = (0.0, now);
        }
        bucket.look(now);
        bucket.control.set(now as f64 * 1e-9, control, delayed_write_rate as f64, written as f64);
        let delaying = control.pressure > 0.0;
        self.delaying.store(delaying, Ordering::Relaxed);
        self.reason.store(if delaying { control.reason as u8 } else { 0 }, Ordering::Relaxed);
    }

    /// How writers wait for flushes rather than for compactions.
    pub fn waits_for_flushes(&self, clock: &dyn Clock) -> FlushWaits {
        self.flush_bound.lock().waits(clock.monotonic_nanos() as f64 * 1e-9)
    }

    /// True when writers may have to wait.
    #[inline]
    pub fn is_delaying(&self) -> bool {
        self.delaying.load(Ordering::Relaxed)
    }

    /// Why.
    pub fn reason(&self) -> StallReason {
        let stopped_by = StallReason::from_u8(self.stopped_by.load(Ordering::Relaxed));
        if stopped_by != StallReason::None {
            return stopped_by;
        }
        if self.paced.load(Ordering::Relaxed) {
            return StallReason::Memtables;
        }
        StallReason::from_u8(self.reason.load(Ordering::Relaxed))
    }

    /// Bytes per second that writers get now; 0 when they are free.
    pub fn rate(&self) -> u64 {
        let mut rate = self.bucket.lock().control.rate();
        if self.paced.load(Ordering::Relaxed) {
            rate = rate.min(self.flush_bucket.lock().rate);
        }
        if rate.is_finite() { (rate as u64).max(1) } else { 0 }
    }

    /// Bytes per second that compactions can take in, as far as is known.
    pub fn sustained(&self) -> u64 {
        self.bucket.lock().control.sustained as u64
    }

    /// How long writers waited.
    pub fn waited_seconds(&self) -> Seconds {
        let micros = self.delayed_micros.load(Ordering::Relaxed) + self.stopped_micros.load(Ordering::Relaxed);
        micros as f64 * 1e-6
    }

    /// Notes that a write waited for this long.
    pub fn note_wait(&self, micros: u64) {
        self.longest_micros.fetch_max(micros, Ordering::Relaxed);
    }

    fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Relaxed);
    }

    /// True when writes of low priority should wait.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// Makes a writer of low priority sleep long enough that all of them together write `LOW_PRI_BYTES_PER_SECOND`.
    pub fn delay_low_pri(&self, bytes: u64, clock: &dyn Clock, stop: &AtomicBool) {
        let now = clock.monotonic_nanos();
        let until = {
            let mut free_at = self.low_pri_free_at.lock();
            *free_at = (*free_at).max(now) + bytes.saturating_mul(1_000_000_000) / LOW_PRI_BYTES_PER_SECOND;
            *free_at
        };
        // In pieces: compaction may catch up meanwhile.
        let mut now = now;
        while now < until && self.is_behind() && !stop.load(Ordering::Acquire) {
            let piece = (until - now).min(SLEEP_NS.1);
            clock.sleep(Duration::from_nanos(piece));
            // Whatever the clock says, this ends.
            now = clock.monotonic_nanos().max(now + piece);
        }
    }

    /// Sets whether a flush that writers may have to wait for is in flight, or due. `written`: all bytes that users
    /// wrote before.
    fn set_pacing(&self, pacing: bool, written: u64, clock: &dyn Clock) {
        let mut bucket = self.flush_bucket.lock();
        let before = self.look_at.load(Ordering::Relaxed) != u64::MAX;
        if pacing && !before {
            *bucket = FlushBucket { credit: 0.0, at: clock.monotonic_nanos(), written, rate: f64::INFINITY };
        }
        if pacing != before {
            self.look_at.store(if pacing { written } else { u64::MAX }, Ordering::Relaxed);
            self.paced.store(false, Ordering::Relaxed);
        }
    }

    /// True while writers have to wait for the flush in flight.
    pub fn is_paced(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }

    /// True when the next writer is to call [`Self::wait_for_allowance`].
    #[inline]
    pub fn is_pacing(&self, written: u64) -> bool {
        written >= self.look_at.load(Ordering::Relaxed)
    }

    /// Makes the leader of a group wait until what was written before is allowed, or `closing` is set. `allowance` is
    /// asked before each sleep. Gives the microseconds slept, and true if nobody had to wait for this flush before.
    pub fn wait_for_allowance(
        &self,
        written: u64,
        closing: &AtomicBool,
        clock: &dyn Clock,
        allowance: impl Fn(Seconds) -> Allowance,
    ) -> (u64, bool) {
        let began = clock.monotonic_nanos();
        let (mut now, mut first) = (began, false);
        while !closing.load(Ordering::Acquire) {
            let allowed = allowance(now as f64 * 1e-9);
            let rate = allowed.rate;
            let short = {
                let mut bucket = self.flush_bucket.lock();
                if bucket.rate.is_infinite() {
                    // Nobody has checked since the flush began, so the time until now earns no credit.
                    bucket.at = now;
                }
                let (seconds, more) =
                    (now.saturating_sub(bucket.at) as f64 * 1e-9, written.saturating_sub(bucket.written));
                (bucket.at, bucket.written, bucket.rate) = (bucket.at.max(now), bucket.written.max(written), rate);
                if !rate.is_finite() {
                    // The end of the flush sets this as well, or the flush is of a column family without writes.
                    bucket.credit = 0.0;
                    self.set_next_look(written, LOOK_BYTES);
                    break;
                }
                bucket.credit = (bucket.credit + rate * seconds).min(allowed.saved_max()) - more as f64;
                let short = (-bucket.credit / rate * 1e9).max(0.0) as u64;
                if short < SLEEP_NS.0 {
                    self.set_next_look(written, bucket.credit + rate * SLEEP_NS.0 as f64 * 1e-9);
                    break;
                }
                short
            };
            first |= !self.paced.swap(true, Ordering::Relaxed);
            let piece = short.min(SLEEP_NS.1);
            clock.sleep(Duration::from_nanos(piece));
            // Whatever the clock says, this ends.
            now = clock.monotonic_nanos().max(now + piece);
        }
        let slept = now.saturating_sub(began) / 1000;
        if first || slept > 0 {
            self.delayed_micros.fetch_add(slept, Ordering::Relaxed);
            self.note_wait(slept);
            self.flush_bound.lock().waited(now as f64 * 1e-9, slept as f64 * 1e-6);
        }
        (slept, first)
    }

    /// The next check is after this many more bytes were written, unless no flush is in flight any more.
    fn set_next_look(&self, written: u64, bytes: f64) {
        let next = written.saturating_add(bytes.clamp(1.0, LOOK_BYTES) as u64).min(u64::MAX - 1);
        let set = |at| (at != u64::MAX).then_some(next);
        // A failure means that there is none, which stays.
        let _ = self.look_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    /// Makes the leader of a group of `bytes` wait until the rate has room for it, or `closing` is set. `written`: all
    /// bytes that users wrote before. `meanwhile` is called before each sleep. Gives the microseconds slept.
    pub fn delay(
        &self,
        bytes: u64,
        written: u64,
        closing: &AtomicBool,
        clock: &dyn Clock,
        meanwhile: impl Fn(),
    ) -> u64 {
        let began = clock.monotonic_nanos();
        let (mut now, mut taken) = (began, false);
        while !closing.load(Ordering::Acquire) {
            let short = {
                let mut bucket = self.bucket.lock();
                bucket.control.observe(now as f64 * 1e-9, written as f64);
                let rate = bucket.look(now);
                if !rate.is_finite() {
                    break;
                }
                if !std::mem::replace(&mut taken, true) {
                    bucket.credit -= bytes as f64;
                }
                (-bucket.credit / rate * 1e9).max(0.0) as u64
            };
            if short < SLEEP_NS.0 {
                break;
            }
            meanwhile();
            let piece = short.min(SLEEP_NS.1);
            clock.sleep(Duration::from_nanos(piece));
            // Whatever the clock says, this ends.
            now = clock.monotonic_nanos().max(now + piece);
        }
        let slept = now.saturating_sub(began) / 1000;
        self.delayed_micros.fetch_add(slept, Ordering::Relaxed);
        self.note_wait(slept);
        slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        c.delay_low_pri(10 << 20, &clock, &AtomicBool::new(false));
        assert_eq!(clock.monotonic_nanos(), 0, "compaction keeps up");
        let c = WriteController::default();
        c.set_behind(true);
        for _ in 0..8 {
            c.delay_low_pri(256 << 10, &clock, &AtomicBool::new(false));
        }
        assert_eq!(clock.monotonic_nanos() / 1_000_000, 2000, "2 MiB at 1 MiB/s");
    }

    #[test]
    fn a_paced_rate_is_kept_by_short_sleeps_and_ends_with_the_flush() {
        let (c, closing) = (WriteController::default(), AtomicBool::new(false));
        let clock = rockmill_io::ManualClock::new(0);
        assert!(!c.is_pacing(u64::MAX - 1), "no flush is in flight");
        c.set_pacing(true, 0, &clock);
        // 10 MB at 100 MB/s, by writes of 1 KB: few looks, fewer sleeps, none long.
        let (mut looks, asked) = (0, std::cell::Cell::new(0));
        let rate = |_: f64| {
            asked.set(asked.get() + 1);
            Allowance { rate: 1e8, room: 16e6 }
        };
        for i in 0..10_000u64 {
            if c.is_pacing(i * 1000) {
                looks += 1;
                c.wait_for_allowance(i * 1000, &closing, &clock, rate);
            }
        }
        let took = clock.monotonic_nanos() / 1_000_000;
        assert!((95..=100).contains(&took), "{took} ms");
        assert!(looks <= 200 && asked.get() <= 400, "{looks} looks, asked {} times", asked.get());
        assert!(c.longest_micros.load(Ordering::Relaxed) < 3000);
        assert_eq!((c.reason(), c.rate()), (StallReason::Memtables, 100_000_000));
        assert!(c.waits_for_flushes(&clock).lately, "a moment ago");
        // The flush ends while a writer sleeps for a batch that was too large.
        let until = clock.monotonic_nanos() as f64 * 1e-9 + 0.05;
        let ends = |now: f64| if now < until { Allowance { rate: 1e8, room: 16e6 } } else { Allowance::FREE };
        let (slept, first) = c.wait_for_allowance(1 << 30, &closing, &clock, ends);
        assert!((50_000..53_000).contains(&slept) && !first, "{slept}");
        // If the saved-up rate would be all of the room, none of it is saved up.
        c.set_pacing(false, 1 << 30, &clock);
        c.set_pacing(true, 1 << 30, &clock);
        clock.sleep(Duration::from_millis(10));
        let fast = |_: f64| Allowance { rate: 1e9, room: 1e6 };
        c.wait_for_allowance(1 << 30, &closing, &clock, fast);
        clock.sleep(Duration::from_millis(10));
        let (slept, _) = c.wait_for_allowance((1 << 30) + 3_000_000, &closing, &clock, fast);
        assert!((2_000..3_100).contains(&slept), "{slept}");
        c.set_pacing(false, 1 << 30, &clock);
        assert_eq!((c.reason(), c.rate()), (StallReason::None, 0));
        assert!(!c.is_pacing(1 << 40));
    }

    #[test]
    fn the_delayed_rate_is_kept_and_counted() {
        let (c, closing) = (WriteController::default(), AtomicBool::new(false));
        let clock = rockmill_io::ManualClock::new(0);
        let slow = WriteControl { pressure: 1.0, reason: StallReason::L0Files, ..WriteControl::default() };
        c.set(&slow, 100 << 20, 0, &clock);
        assert_eq!(c.reason(), StallReason::L0Files);
        assert_eq!(c.rate(), 100 << 20);
        for i in 0..1000 {
            c.delay(10 << 10, i * (10 << 10), &closing, &clock, || {}); // 10 MB at 100 MB/s: 98 ms
        }
        let took = clock.monotonic_nanos() / 1_000_000;
        assert!((95..100).contains(&took), "{took} ms");
        assert!(c.longest_micros.load(Ordering::Relaxed) < 3000, "many short waits, not few long ones");
        // A batch too large for the rate waits for all of it, in pieces, unless the database closes.
        let before = clock.monotonic_nanos();
        c.delay(50 << 20, 0, &closing, &clock, || {});
        assert!((490..510).contains(&((clock.monotonic_nanos() - before) / 1_000_000)));
        closing.store(true, Ordering::Release);
        assert_eq!(c.delay(50 << 20, 0, &closing, &clock, || {}), 0);
        // A flush that is over leaves nothing.
        c.set(&WriteControl::default(), 100 << 20, 0, &clock);
        assert_eq!(c.rate(), 0);
        closing.store(false, Ordering::Release);
        assert_eq!(c.delay(10 << 20, 0, &closing, &clock, || {}), 0);
        assert!(!c.is_delaying());
        assert_eq!(c.reason(), StallReason::None);
    }
}
