//! Flushes and compactions leave a part of the device to users' reads.
//!
//! A compaction keeps a device as busy as it can, and a read that comes meanwhile waits behind all that is in flight:
//! one thread that has 20,000 reads a second alone may have 200. So while users read, all background jobs together read
//! and write a part of what they do when they have the device to themselves, evenly in small pieces: a read then waits
//! for one piece at most.
//!
//! - If nobody waits for jobs, that part is [`SHARE`]. For each byte that users write meanwhile, [`BYTES_OF_A_BYTE`]
//!   bytes pass unhindered: as many as it costs in many trees, so that debt does not grow. Of what was written a while
//!   ago nothing is left of that ([`LATELY_NANOS`]), or all that a long load once earned would pass at once beside
//!   reads that come later.
//! - If writers wait for jobs or soon will (a flush is due, the tree is behind, a writer was delayed), readers that
//!   keep the device busy leave jobs [`SHARE`], too; readers that are busy for a tenth of the time take a tenth of the
//!   rest. Jobs may run ahead by what they do in [`WINDOW_NANOS`], so that writers who need less than that part on
//!   average are not delayed. Writers who want more share the device with the readers. Without this rule the deeper
//!   queue wins, which is the background's: four readers next to a writer without a limit had 0.6 times RocksDB's
//!   reads, and that writer 3.6 times RocksDB's writes.
//!
//! The terms:
//!
//! 1. *Users read* for a while after the end of a read from a table file that took as long as a device takes; reads
//!    that the page cache answers do not count. The while is [`HOLD_NANOS`], or longer than the read took: a read that
//!    waited for compactions takes long, and otherwise these would continue in the meantime.
//! 2. *What jobs do alone* is learned while nothing holds them back, syncs included: writes into the page cache alone
//!    say nothing about the device. Flushes count as well: what they write goes to the device in the end, while
//!    compactions may read from the page cache, whose speed alone would be learned otherwise.
//! 3. *Nobody waits* if no flush is due and no writer was delayed for [`LATELY_NANOS`], and the tree is not behind or
//!    nobody wrote for that long.
//!
//! Jobs that a caller waits for are not held back: manual compactions, flushes that somebody asked for, and running
//! ones from the moment that a caller joins them. With a rate limiter no job is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rockmill_io::Clock;

use super::common::{BYTES_OF_A_BYTE, JOB_BYTES_PER_SECOND_MIN, SLEEP_MAX};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Part of what jobs do alone that they do while users read. Measured on a slowed device: reads then have 15,000 to
/// 21,000 a second where the device alone gives 20,000, and 80 to 5,000 without it. Next to a writer without a limit, a
/// half gave readers 1.05 to 1.2 times RocksDB's reads, a third 1.0 to 1.5, a quarter 1.2 to 2.1, and the device still
/// got more writes a second.
const SHARE: f64 = 0.25;
// "The model" is that of the tests (`readers_jobs_and_writers_share_a_device`), run by hand for 40 cases: one to four
// readers who read again at once or after up to 60 ms, next to writers who want 1 to 20 MB/s or all that they can get.

/// If writers wait, readers that are busy for a smaller part of the time than this hold no job back, so that what jobs
/// do alone is learned even with a trickle of reads. A choice: small, so that what such readers lose is little. In the
/// model half of it changes nothing. Twice and four times of it change one case: a reader who reads every 15 ms next to
/// a writer without a limit loses a quarter of its reads.
const BUSY_MIN: f64 = 0.02;
/// A read that took this many nanoseconds was answered by a device. Measured: the page cache takes a few microseconds
/// for a block, a virtual NVMe disk 58. Half or twice of it tells them apart, too, and changes nothing in the model.
const DEVICE_NANOS: u64 = 20_000;
/// Users count as reading for this many nanoseconds after the end of a read, at least. A choice: longer than most
/// programs take from one read to the next. In the model it matters next to a writer without a limit: with half of it a
/// reader who reads every 15 ms has 46 % fewer reads; with twice of it one who reads every 30 ms has 44 % more, and the
/// writer 2 % less.
const HOLD_NANOS: u64 = 20_000_000;
/// And for this many times as long as the read took, at most for [`LATELY_NANOS`]. It cannot be 0: where reads of 90 ms
/// counted for 20 ms, compactions went on in between, and there were 200 reads a second; in the model readers then lose
/// up to 72 %. Half of it changes reads and writes by less than 1 % there; twice of it gives four readers who read
/// every 60 ms 4 % more and the writer 6 % less.
const HOLD_OF_READ: u64 = 4;
/// Events longer ago than this many nanoseconds no longer count: a write and what it earned for jobs, the delay of a
/// writer, a read that hangs. A longer pause of jobs says nothing about the device. Measured: a device may answer in
/// bursts (the kernel's throttle releases what it holds every 100 ms), and with 50 ms no rate was ever learned. In the
/// model half or twice of it changes nothing.
const LATELY_NANOS: u64 = 1_000_000_000;
/// Bytes that are read or written at once. Derived: 1 ms of a device with 250 MB/s, which a read has to wait for. In
/// the model, whose device takes small pieces as fast as large ones, half of it gives up to 18 % more reads and twice
/// of it up to 21 % fewer, and writers up to 19 % more and 14 % less.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// In nanoseconds: how far jobs may run ahead if writers wait for them; the working time over which their rate is
/// learned; and about the time over which the busyness of readers is averaged. In the model half or twice of it changes
/// reads by less than 1 %, and writes by less than 3 %.
const WINDOW_NANOS: u64 = 500_000_000;
/// With each window, the rate that is known counts this much. In the model, also with a device that is three times as
/// slow every 300 ms: 0.5 or 0.875 change reads by 6 % and writes by 4 %, with 0 reads have 10 % more and writes 5 %
/// less.
const RATE_MEMORY: f64 = 0.75;
/// The busyness of readers is measured again after this many nanoseconds. In the model half or twice of it changes
/// reads and writes by less than 4 %; with the device that becomes slower, reads by 5 % at most.
const LOOK_NANOS: u64 = WINDOW_NANOS / 4;

/// What users do at a moment, and what they wait for.
#[derive(Debug, Clone, Copy)]
struct UsersNow {
    /// They read.
    read: bool,
    /// The part of the time in which readers waited for the device.
    busy: f64,
    /// Compactions are behind.
    behind: bool,
    /// They wrote within [`LATELY_NANOS`].
    wrote: bool,
    /// A flush is due, or writers are stopped.
    awaited: bool,
    /// A writer was delayed within [`LATELY_NANOS`].
    delayed: bool,
}

/// What users leave to background jobs at a moment. Pure; see the module's text.
fn left_to_jobs(users: &UsersNow) -> Leave {
    if !users.read {
        Leave::All
    } else if !((users.behind && users.wrote) || users.awaited || users.delayed) {
        Leave::Least
    } else if users.busy < BUSY_MIN {
        Leave::All
    } else {
        Leave::Part(1.0 - users.busy * (1.0 - SHARE))
    }
}

/// What users leave to background jobs at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leave {
    /// All.
    All,
    /// This part of what jobs do alone, on average: users read, and writers wait.
    Part(f64),
    /// [`SHARE`], and what users' writes have earned: users read, and nobody waits.
    Least,
}

/// What all jobs of a database may do while users read. A pure state machine in given times (nanoseconds).
#[derive(Debug, Default)]
struct Share {
    /// Bytes a nanosecond while nothing holds them back; 0: not known.
    rate: f64,
    /// Of the rate that is being learned: time at work, and bytes read and written in it.
    busy_nanos: u64,
    busy_bytes: u64,
    /// When a job that was not held back last asked; `None` if there is none, or the last one was held back.
    last: Option<u64>,
    /// When the allowed bytes are done at the share's rate.
    free_at: u64,
    /// Bytes that users wrote so far, and when that was looked at.
    written: u64,
    written_seen: u64,
    /// Bytes that pass unhindered for them.
    credit: u64,
    /// Which part of the time readers waited for the device, 1 at most: on average, and when it was last looked at
    /// with the sum of their waits.
    readers: f64,
    readers_seen: (u64, u64),
}

impl Share {
    /// Nanoseconds until `bytes` may be read or written.
    fn take(&mut self, now: u64, bytes: u64, leave: Leave) -> u64 {
        // The part, and how far jobs may run ahead.
        let part = match leave {
            Leave::Part(part) => {
                self.credit = 0; // it is for writers that wait for nothing
                Some((part, WINDOW_NANOS))
            }
            Leave::Least => (self.credit < bytes).then_some((SHARE, 0)),
            Leave::All => None,
        };
        if let Some((part, ahead)) = part.filter(|_| self.rate > 0.0) {
            self.forget_window();
            let begin = self.free_at.max(now.saturating_sub(ahead));
            self.free_at =
                begin + (bytes as f64 / (self.rate * part).max(JOB_BYTES_PER_SECOND_MIN as f64 * 1e-9)) as u64;
            return begin.saturating_sub(now);
        }
        self.free_at = 0;
        if self.rate > 0.0 && leave == Leave::Least {
            self.credit -= bytes;
            self.last = None;
        } else {
            self.credit = 0; // what came up to now was not hindered
            self.learn(now, bytes);
        }
        0
    }

    /// Notes how many bytes users have written. True if that is more than before.
    fn note_written(&mut self, now: u64, written: u64) -> bool {
        let (time, more) = (now.saturating_sub(self.written_seen), written.saturating_sub(self.written));
        (self.written_seen, self.written) = (now.max(self.written_seen), written);
        // What is there fades, and of what is new, taken as written evenly since then, the last part counts.
        let windows = time as f64 / LATELY_NANOS as f64;
        let earned = more as f64 * BYTES_OF_A_BYTE as f64 / windows.max(1.0);
        self.credit = (self.credit as f64 * (1.0 - windows).max(0.0) + earned) as u64;
        more > 0
    }

    /// Notes for how long all reads of users together have waited for the device so far.
    fn note_reads(&mut self, now: u64, waited: u64) {
        let (seen, before) = self.readers_seen;
        let (time, more) = (now.saturating_sub(seen), waited.saturating_sub(before));
        if time >= LOOK_NANOS {
            let busy = (more as f64 / time as f64).min(1.0);
            let weight = (time as f64 / WINDOW_NANOS as f64).min(1.0);
            self.readers += (busy - self.readers) * weight;
            self.readers_seen = (now, waited);
        }
    }

    /// No job runs any more: the time until the next one says nothing about the device.
    fn rests(&mut self, now: u64) {
        if self.last.is_some() {
            self.learn(now, 0);
            self.last = None;
        }
    }

    /// What is being learned says nothing about the device.
    fn forget_window(&mut self) {
        (self.busy_nanos, self.busy_bytes, self.last) = (0, 0, None);
    }

    fn learn(&mut self, now: u64, bytes: u64) {
        let since = self.last.map_or(0, |last| now.saturating_sub(last));
        if since <= LATELY_NANOS {
            self.busy_nanos += since;
        }
        self.last = Some(now);
        if self.busy_nanos >= WINDOW_NANOS {
            let rate = self.busy_bytes as f64 / self.busy_nanos as f64;
            self.rate = match self.rate > 0.0 {
                true => RATE_MEMORY * self.rate + (1.0 - RATE_MEMORY) * rate,
                false => rate,
            };
            (self.busy_nanos, self.busy_bytes) = (0, 0);
        }
        self.busy_bytes += bytes;
    }
}

/// The protection of one database's reads.
pub struct ReadProtection {
    clock: Arc<dyn Clock>,
    /// Compactions are behind.
    behind: AtomicBool,
    /// A flush is due, or writers are stopped.
    awaited: AtomicBool,
    /// Jobs that may have to wait.
    jobs: AtomicUsize,
    /// Until when users count as reading.
    users_read_until: AtomicU64,
    /// How long all their reads from the device took together.
    read_nanos: AtomicU64,
    /// [`Share::readers`] as it was last, in thousandths.
    readers_busy: AtomicU64,
    last_write: AtomicU64,
    last_delay: AtomicU64,
    /// A leaf lock.
    share: Mutex<Share>,
    waited_micros: AtomicU64,
}

impl fmt::Debug for ReadProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadProtection").field(&self.waited_micros()).finish()
    }
}

impl ReadProtection {
    /// Of a database with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            behind: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            jobs: AtomicUsize::new(0),
            users_read_until: AtomicU64::new(0),
            read_nanos: AtomicU64::new(0),
            readers_busy: AtomicU64::new(0),
            last_write: AtomicU64::new(0),
            last_delay: AtomicU64::new(0),
            share: Mutex::new(Share::default()),
            waited_micros: AtomicU64::new(0),
        }
    }

    /// Sets whether compactions are behind, and whether a flush is due or writers are stopped, from now on.
    pub fn set(&self, behind: bool, awaited: bool) {
        self.behind.store(behind, Ordering::Relaxed);
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

    /// Called when a user's read begins; returns the time, if the duration matters.
    #[inline]
    pub fn read_begins(&self) -> Option<u64> {
        (self.jobs.load(Ordering::Relaxed) > 0).then(|| self.clock.monotonic_nanos())
    }

    /// Called when it has ended.
    #[inline]
    pub fn read_ends(&self, began: Option<u64>) {
        let Some(began) = began else { return };
        let now = self.clock.monotonic_nanos();
        let took = now.saturating_sub(began);
        if took >= DEVICE_NANOS {
            let hold = took.saturating_mul(HOLD_OF_READ).clamp(HOLD_NANOS, LATELY_NANOS);
            self.users_read_until.fetch_max(now.saturating_add(hold), Ordering::Relaxed);
            self.read_nanos.fetch_add(took, Ordering::Relaxed);
        }
    }

    /// Time that jobs have waited for reads.
    pub fn waited_micros(&self) -> u64 {
        self.waited_micros.load(Ordering::Relaxed)
    }

    /// The gate that a job asks before it reads and writes, until `stop` or `joined` is set. `written` returns how many
    /// bytes users have written.
    pub fn job(
        self: &Arc<Self>,
        stop: &Arc<AtomicBool>,
        joined: &Arc<AtomicBool>,
        written: Written,
    ) -> Arc<DeviceShare> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        let (of, stop, joined) = (Arc::clone(self), Arc::clone(stop), Arc::clone(joined));
        Arc::new(DeviceShare { of, stop, joined, written, waited_nanos: AtomicU64::new(0) })
    }

    /// What users leave to jobs now.
    fn leave(&self, now: u64) -> Leave {
        let lately = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => false,
            at => now.saturating_sub(at) < LATELY_NANOS,
        };
        left_to_jobs(&UsersNow {
            read: now < self.users_read_until.load(Ordering::Relaxed),
            busy: self.readers_busy.load(Ordering::Relaxed) as f64 * 1e-3,
            behind: self.behind.load(Ordering::Relaxed),
            wrote: lately(&self.last_write),
            awaited: self.awaited.load(Ordering::Relaxed),
            delayed: lately(&self.last_delay),
        })
    }
}

/// Returns the number of bytes that users have written.
type Written = Box<dyn Fn() -> u64 + Send + Sync>;

/// A job that leaves a part of the device to reads.
pub struct DeviceShare {
    of: Arc<ReadProtection>,
    /// The database closes.
    stop: Arc<AtomicBool>,
    /// A caller waits for the job.
    joined: Arc<AtomicBool>,
    written: Written,
    waited_nanos: AtomicU64,
}

impl fmt::Debug for DeviceShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceShare").field(&self.of).finish()
    }
}

impl DeviceShare {
    /// How long it has waited so far, in nanoseconds.
    pub fn waited_nanos(&self) -> u64 {
        self.waited_nanos.load(Ordering::Relaxed)
    }

    /// How many of `len` bytes may be read at once while users read.
    pub fn piece(&self, len: usize) -> usize {
        if self.is_free(self.of.clock.monotonic_nanos()) { len } else { len.min(PIECE_BYTES) }
    }

    /// Nothing holds it back now.
    fn is_free(&self, now: u64) -> bool {
        self.joined.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire) || self.of.leave(now) == Leave::All
    }

    /// Nanoseconds until `bytes` may be read or written, if nothing changes.
    fn ask(&self, now: u64, bytes: u64) -> u64 {
        let of = &self.of;
        let mut share = of.share.lock();
        if share.note_written(now, (self.written)()) {
            of.last_write.store(now.max(1), Ordering::Relaxed);
        }
        share.note_reads(now, of.read_nanos.load(Ordering::Relaxed));
        of.readers_busy.store((share.readers * 1e3) as u64, Ordering::Relaxed);
        share.take(now, bytes, of.leave(now))
    }

    /// Waits until `bytes` may be read or written.
    pub fn pass(&self, bytes: u64) {
        if self.joined.load(Ordering::Acquire) {
            self.of.share.lock().forget_window(); // what it does is not counted from here on
            return;
        }
        let (of, began) = (&self.of, self.of.clock.monotonic_nanos());
        let (wait, mut now) = (self.ask(began, bytes), began);
        while now - began < wait && !self.is_free(now) {
            let piece = (wait - (now - began)).min(SLEEP_MAX.as_nanos() as u64);
            of.clock.sleep(Duration::from_nanos(piece));
            // Whatever the clock says, this ends.
            now = of.clock.monotonic_nanos().max(now + piece);
        }
        if now > began {
            of.waited_micros.fetch_add((now - began) / 1000, Ordering::Relaxed);
            self.waited_nanos.fetch_add(now - began, Ordering::Relaxed);
        }
    }
}

impl Drop for DeviceShare {
    fn drop(&mut self) {
        if self.of.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.of.share.lock().rests(self.of.clock.monotonic_nanos());
        }
    }
}

#[cfg(test)]
mod tests;
