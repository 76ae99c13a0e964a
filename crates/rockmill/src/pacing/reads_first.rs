//! Compactions that nobody waits for leave most of the device to users' reads.
//!
//! A compaction keeps a device as busy as it can, and a read that comes meanwhile waits behind all that is in flight:
//! one thread that has 20,000 reads a second alone may have 200. Where writers wait for compactions there is no way
//! around that. Elsewhere, while users read, all compactions together read and write [`SHARE`] of what they do when
//! they have the device for themselves, evenly in small pieces: a read then waits for one piece at most.
//!
//! 1. *Users read* for a while after the end of a read from a table file that took as long as a device takes; what the
//!    page cache answers does not count. The while is [`HOLD`], or longer than the read took: one that waited behind
//!    compactions takes long, and these would go on meanwhile.
//! 2. *What compactions do alone* is learned while nothing holds them back.
//! 3. *Nobody waits* where no flush is due and no writer was delayed for [`CALM`], and the tree is not behind or nobody
//!    wrote for so long. For each byte that users write meanwhile [`CREDIT`] go unhindered: as many as it costs in many
//!    trees, so that debt does not grow.
//!
//! Who asked for a compaction waits for it: manual ones do not come here. Nor do any where a rate limiter is set.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::Clock;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Part of what compactions do alone that they do while users read.
const SHARE: f64 = 0.25;
/// Bytes per second, read and written, that they may do whatever they have done before.
const RATE_MIN: f64 = 4.0 * 1024.0 * 1024.0;
/// A read that took as long was answered by a device.
const DEVICE_NANOS: u64 = 20_000;
/// So long after the end of a read users still read;
const HOLD: u64 = 20_000_000;
/// or as many times as long as it took,
const HOLD_OF_READ: u64 = 4;
/// and not longer than this.
const HOLD_MAX: u64 = 1_000_000_000;
/// Bytes that compactions may read and write unhindered for each byte that users write.
const CREDIT: u64 = 16;
/// So long after a write compactions that are behind are waited for, and so long after a writer was delayed all are.
const CALM: u64 = 1_000_000_000;
/// Written bytes are paid for in pieces of so many: while one is written, no read gets through.
pub(super) const PIECE: usize = 256 << 10;
/// Rates are learned over so long, and older ones fade by a quarter with each.
const WINDOW: u64 = 200_000_000;
/// A pause after which a window begins anew. A device may answer in bursts: the kernel's throttle, for one, lets go
/// what it holds every 100 ms.
const PAUSE: u64 = 1_000_000_000;
/// A longer sleep would keep a database from closing, or a device idle when users have stopped reading.
const SLICE: u64 = 10_000_000;

/// What all compactions of a database may do while users read. A pure state machine in given times (nanoseconds).
#[derive(Debug, Default)]
struct Share {
    /// Bytes a nanosecond while nothing holds them back; 0: not known.
    rate: f64,
    window_began: u64,
    window_bytes: u64,
    last: u64,
    /// When what was let go is done at the share's rate.
    free_at: u64,
    /// Bytes that users wrote so far.
    written: u64,
    credit: u64,
}

impl Share {
    /// Nanoseconds until `bytes` may be read or written.
    fn take(&mut self, now: u64, bytes: u64, users_read: bool) -> u64 {
        let held = users_read && self.rate > 0.0;
        if held && self.credit < bytes {
            self.window_bytes = 0;
            let begin = self.free_at.max(now);
            self.free_at = begin + (bytes as f64 / (self.rate * SHARE).max(RATE_MIN * 1e-9)) as u64;
            return begin - now;
        }
        self.free_at = 0;
        if held {
            (self.credit, self.window_bytes) = (self.credit - bytes, 0);
        } else {
            self.credit = 0; // what came up to now was not hindered
            self.learn(now, bytes);
        }
        0
    }

    /// Notes how many bytes users have written. True if that is more than before.
    fn note_written(&mut self, written: u64) -> bool {
        let more = written.saturating_sub(self.written);
        self.written = written;
        self.credit = self.credit.saturating_add(more.saturating_mul(CREDIT));
        more > 0
    }

    /// No job runs any more: the time until the next one says nothing about the device.
    fn rests(&mut self) {
        self.window_bytes = 0;
    }

    fn learn(&mut self, now: u64, bytes: u64) {
        if self.window_bytes == 0 || now.saturating_sub(self.last) > PAUSE {
            (self.window_began, self.window_bytes) = (now, 0);
        }
        self.last = now;
        let took = now.saturating_sub(self.window_began);
        if took >= WINDOW {
            let rate = self.window_bytes as f64 / took as f64;
            self.rate = if self.rate > 0.0 { 0.75 * self.rate + 0.25 * rate } else { rate };
            (self.window_began, self.window_bytes) = (now, 0);
        }
        self.window_bytes += bytes;
    }
}

/// One for each database.
pub struct ReadsFirst {
    clock: Arc<dyn Clock>,
    /// The tree is not behind.
    calm: AtomicBool,
    /// A flush is due, or writers are stopped.
    awaited: AtomicBool,
    /// Jobs that may have to wait.
    jobs: AtomicUsize,
    /// Until when users read, as far as is known.
    users_read_until: AtomicU64,
    last_write: AtomicU64,
    last_delay: AtomicU64,
    /// A leaf lock.
    share: Mutex<Share>,
    waited_micros: AtomicU64,
}

impl fmt::Debug for ReadsFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadsFirst").field(&self.waited_micros()).finish()
    }
}

impl ReadsFirst {
    /// Of a database with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            calm: AtomicBool::new(true),
            awaited: AtomicBool::new(false),
            jobs: AtomicUsize::new(0),
            users_read_until: AtomicU64::new(0),
            last_write: AtomicU64::new(0),
            last_delay: AtomicU64::new(0),
            share: Mutex::new(Share::default()),
            waited_micros: AtomicU64::new(0),
        }
    }

    /// Says whether compactions are behind, and whether a flush is due or writers are stopped, from now on.
    pub fn set(&self, behind: bool, awaited: bool) {
        self.calm.store(!behind, Ordering::Relaxed);
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Whether somebody waits for compactions, as last set.
    #[cfg(test)]
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// Notes that a writer was delayed or stopped.
    pub fn writer_delayed(&self) {
        self.last_delay.store(self.clock.monotonic_nanos().max(1), Ordering::Relaxed);
    }

    /// A read of a user begins: when, if it matters how long it takes.
    #[inline]
    pub fn read_begins(&self) -> Option<u64> {
        (self.jobs.load(Ordering::Relaxed) > 0).then(|| self.clock.monotonic_nanos())
    }

    /// It has ended.
    #[inline]
    pub fn read_ends(&self, began: Option<u64>) {
        let Some(began) = began else { return };
        let now = self.clock.monotonic_nanos();
        let took = now.saturating_sub(began);
        if took >= DEVICE_NANOS {
            let hold = took.saturating_mul(HOLD_OF_READ).clamp(HOLD, HOLD_MAX);
            self.users_read_until.fetch_max(now.saturating_add(hold), Ordering::Relaxed);
        }
    }

    /// Time that compactions have waited for reads.
    pub fn waited_micros(&self) -> u64 {
        self.waited_micros.load(Ordering::Relaxed)
    }

    /// What a job that nobody waits for asks before it reads and writes, until `stop` is set. `written` says how many
    /// bytes users have written.
    pub fn job(self: &Arc<Self>, stop: &Arc<AtomicBool>, written: Written) -> Arc<PatientJob> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        Arc::new(PatientJob { of: Arc::clone(self), stop: Arc::clone(stop), written })
    }

    /// True while users read and nobody waits for compactions.
    fn holds(&self, now: u64) -> bool {
        let since = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => u64::MAX,
            at => now.saturating_sub(at),
        };
        now < self.users_read_until.load(Ordering::Relaxed)
            && !self.awaited.load(Ordering::Relaxed)
            && since(&self.last_delay) >= CALM
            && (self.calm.load(Ordering::Relaxed) || since(&self.last_write) >= CALM)
    }
}

/// Gives the number of bytes that users have written.
type Written = Box<dyn Fn() -> u64 + Send + Sync>;

/// A job that nobody waits for.
pub struct PatientJob {
    of: Arc<ReadsFirst>,
    /// The database closes.
    stop: Arc<AtomicBool>,
    written: Written,
}

impl fmt::Debug for PatientJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PatientJob").field(&self.of).finish()
    }
}

impl PatientJob {
    /// Of `len` bytes that would be read at once, as many as may be while users read.
    pub fn piece(&self, len: usize) -> usize {
        if self.of.holds(self.of.clock.monotonic_nanos()) { len.min(PIECE) } else { len }
    }

    /// Waits until `bytes` may be read or written.
    pub fn pass(&self, bytes: u64) {
        let (of, began) = (&self.of, self.of.clock.monotonic_nanos());
        let wait = {
            let mut share = of.share.lock();
            if share.note_written((self.written)()) {
                of.last_write.store(began.max(1), Ordering::Relaxed);
            }
            share.take(began, bytes, of.holds(began))
        };
        let mut now = began;
        while now - began < wait && !self.stop.load(Ordering::Acquire) && of.holds(now) {
            let piece = (wait - (now - began)).min(SLICE);
            of.clock.sleep(Duration::from_nanos(piece));
            // Whatever the clock says, this ends.
            now = of.clock.monotonic_nanos().max(now + piece);
        }
        if now > began {
            of.waited_micros.fetch_add((now - began) / 1000, Ordering::Relaxed);
        }
    }
}

impl Drop for PatientJob {
    fn drop(&mut self) {
        if self.of.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.of.share.lock().rests();
        }
    }
}

#[cfg(test)]
mod tests;
