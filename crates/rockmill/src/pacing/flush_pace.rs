//! Paces writers to the flush that frees the memory they write into.
//!
//! Writers stop when every memtable is full. On a slow device, a memtable of 16 MiB is full in ten milliseconds and
//! flushed in a hundred: without a slope writers would run for a tenth of the time and stand still for the rest. So
//! while a flush is in flight they get
//!
//! > what still fits into memtables / the time that the flush still takes
//!
//! bytes a second: at this rate, writers fill the last byte when the flush ends. How long flushes take is learned: a
//! flush is taken to last as long as its bytes did lately (T), and one that takes longer than [`AIM`] T to last as much
//! longer as it already has. With [`MARGIN`] T on top, the rate never falls suddenly, and never to nothing before
//! memory runs out: during a flush that takes twice as long as expected, writers still get a hundredth of the memtable.
//! If flushes keep up, the rate is above what writers want, and nobody waits; if no flush is in flight, there is no
//! limit.
//!
//! The rest of the memtable when the flush ends is filled before the next flush begins; if writers are as fast as
//! flushes, this time is lost. So the tail is steeper the closer both speeds are ([`FlushPace::tail`]); the speed of
//! writers that are not slowed is learned, too.
//!
//! A pure state machine in given times, for the store and the simulator alike.

use super::common::{BytesPerSecond, Seconds};

/// Writers are to reach the limit after this part of the expected time of the flush: a flush that ends early then finds
/// its successor nearly full, and one that is late still has the tail of the slope. Simulated: with 0.5 or 0.85
/// throughput changes by less than 4 %.
const AIM: f64 = 0.75;
/// Each estimate of the time left is longer by this part of the expected time, so that the rate never falls at once.
/// Simulated: half or twice of it changes throughput by less than 4 %.
const MARGIN: f64 = 0.1;
/// The steepest tail, as a factor of the time left; 1 is the flattest. Simulated: with half of it some writes wait for
/// a second, with twice of it writers as fast as flushes lose 2 %, and 5 % if all tails are flat.
const TAIL_MIN: f64 = 0.2;
/// CPU time of flushes, as a part of their time, up to which they go before compactions that are behind. From
/// [`CPU_BOUND`] on they do not, and in between in part. Measured on a slow device and a fast one: where flushes need
/// cores, compactions that waited cost up to a third of the throughput (docs/compaction.md, "Slow writers").
const DEVICE_BOUND: f64 = 0.12;
/// See [`DEVICE_BOUND`].
const CPU_BOUND: f64 = 0.25;
/// With each flush that ends, what earlier ones taught counts this much: about the last four flushes count.
/// Simulated: with two or eight throughput changes by less than 4 %.
const MEMORY: f64 = 0.75;
/// With each memtable that is filled, what is known of how fast writers are who do not wait counts this much.
/// Simulated, with writers who are up to three times as fast from one memtable to the next: half or one and a half
/// times of it changes throughput by less than 1 %; with 0 some writes wait for 120 ms instead of 2.
const FREE_MEMORY: f64 = 0.5;
/// No memtable is filled in less time. Derived: so that a coarse clock does not give an unbounded rate.
const FILL_SECONDS_MIN: Seconds = 1e-6;
/// The smallest part of a memtable that its entries are assumed to fill. Derived: an entry of one byte takes some
/// fifty.
const PART_MIN: f64 = 0.01;
/// The least room, as a part of the unused memory. Derived: writers must not wait although there is memory, if entries
/// are larger than those of the last memtable. Simulated: half or twice of it changes throughput by less than 0.5 %.
const ROOM_MIN: f64 = 1.0 / 16.0;
/// How much of the last memtable counts for how much is written for a whole one. Simulated: half or twice of it changes
/// throughput by less than 0.5 % and the longest wait by a fifth; with 0, small memtables take 2 % less.
const LAST_PART: f64 = 1.0 / 8.0;

/// How long flushes take, and the one in flight.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlushPace {
    /// Bytes of the last flushes and seconds that they took, older ones counting less.
    bytes: f64,
    seconds: Seconds,
    /// The CPU time that they took.
    cpu: Seconds,
    flight: Option<OneFlush>,
    /// The rate of writers that are not slowed; 0 if it is not known yet.
    free: BytesPerSecond,
}

/// A flush that is in flight, or due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneFlush {
    /// It is since then.
    pub since: Seconds,
    /// Bytes of the memtables that it writes.
    pub bytes: f64,
}

impl FlushPace {
    /// A flush of this many bytes of memtables begins.
    pub fn begin(&mut self, now: Seconds, bytes: f64) {
        self.flight = Some(OneFlush { since: now, bytes: bytes.max(1.0) });
    }

    /// The flush in flight ended; if it was done, its duration is learned, with this much CPU time (0: unknown).
    pub fn end(&mut self, now: Seconds, done: Option<Seconds>) {
        let (Some(flush), Some(cpu)) = (self.flight.take(), done) else { return };
        self.cpu = self.cpu * MEMORY + cpu;
        self.bytes = self.bytes * MEMORY + flush.bytes;
        self.seconds = self.seconds * MEMORY + (now - flush.since).max(0.0);
    }

    /// How long a flush of this many bytes probably takes; 0 if nothing is known.
    pub fn expected(&self, bytes: f64) -> Seconds {
        if self.bytes > 0.0 { bytes * self.seconds / self.bytes } else { 0.0 }
    }

    /// Writers wrote this many bytes in a time in which they did not wait.
    pub fn wrote(&mut self, bytes: f64, seconds: Seconds) {
        let free = bytes / seconds.max(FILL_SECONDS_MIN);
        self.free = match self.free > 0.0 {
            true => self.free * FREE_MEMORY + free * (1.0 - FREE_MEMORY),
            false => free,
        };
    }

    /// The speed of flushes as a multiple of that of writers that do not wait; 0 if it is not known.
    fn ahead(&self) -> f64 {
        let time = self.free * self.seconds;
        if time > 0.0 { self.bytes / time } else { 0.0 }
    }

    /// How much compactions are to leave to a flush that writers wait for: 1 all of the device, 0 nothing.
    ///
    /// Compactions that are not `behind` leave all of it. Those that are behind leave it if a flush alone keeps the
    /// device busy, but less the higher the pressure of the tree is (it slows writers, because they wait for
    /// compactions), down to nothing at RocksDB's slowdown trigger. If flushes need a core for much of their time,
    /// compactions leave nothing: otherwise device and cores would be idle during a flush.
    pub fn priority(&self, behind: bool, pressure: f64) -> f64 {
        if !behind {
            return 1.0;
        }
        if self.cpu <= 0.0 || self.seconds <= 0.0 {
            return 0.0; // not known
        }
        ((CPU_BOUND - self.cpu / self.seconds) / (CPU_BOUND - DEVICE_BOUND)).clamp(0.0, 1.0)
            * (1.0 - pressure).clamp(0.0, 1.0)
    }

    /// How flat the slope's tail is. It is 1 if writers fill a memtable in half of the time of its flush, so that the
    /// rest of it is soon filled, and also if they take so much longer that a flush of the usual length does not reach
    /// the tail.
    fn tail(&self) -> f64 {
        let f = self.ahead();
        (2.0 * (1.0 - f)).max((f - 1.0) / (1.0 - AIM + MARGIN)).clamp(TAIL_MIN, 1.0)
    }

    /// The time until the flush in flight ends, as used for writers. `due`: if none is in flight, one that has not
    /// begun.
    pub fn left(&self, now: Seconds, due: OneFlush) -> Seconds {
        let Some(flush) = self.flight else {
            // It waits for a thread, and probably as long again.
            return (AIM + MARGIN) * self.expected(due.bytes) + (now - due.since).max(0.0);
        };
        let (expected, gone) = (self.expected(flush.bytes), (now - flush.since).max(0.0));
        let over = AIM * expected - gone;
        over.max(0.0) + self.tail() * (MARGIN * expected - over.min(0.0))
    }

    /// Time until [`Self::left`] begins to change in another way, for a simulator that goes from event to event.
    pub fn changes_in(&self, now: Seconds) -> Seconds {
        let Some(flush) = self.flight else { return f64::INFINITY };
        let turn = flush.since + AIM * self.expected(flush.bytes) - now;
        if turn > 1e-9 { turn } else { (self.left(now, flush) / 8.0).max(1e-4) }
    }

    /// The rate of writers that have `room` bytes until they stop. `due`: see [`Self::left`].
    pub fn rate(&self, now: Seconds, room: f64, due: OneFlush) -> BytesPerSecond {
        room.max(0.0) / self.left(now, due).max(1e-9)
    }
}

/// How much of a memtable is filled, judged by its entries, because its memory grows in large steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemtableFill {
    /// Bytes of entries that the last memtable held when it was full, as a part of its size.
    part: f64,
    /// Bytes that users wrote, to any column family, while the last memtable was filled.
    last: f64,
    /// Bytes written until this memtable began, the time at which it began, and how long writers had waited until then.
    since: u64,
    began: Seconds,
    waited: Seconds,
}

/// What is in a memtable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// Bytes of entries.
    pub data: u64,
    /// Bytes of memory that it has taken.
    pub memory: usize,
    /// Bytes of memory at which it is full.
    pub size: usize,
}

impl MemtableFill {
    /// When the memtable began.
    pub fn began(&self) -> Seconds {
        self.began
    }

    pub fn new(size: usize) -> Self {
        Self { part: 1.0, last: size as f64, since: 0, began: 0.0, waited: 0.0 }
    }

    /// A memtable ends; users have written `written` bytes until now, and waited for the given time. If it is full,
    /// returns the time in which they filled it and did not wait.
    pub fn sealed(&mut self, mem: Filled, written: u64, now: Seconds, waited: Seconds) -> Option<Seconds> {
        let Filled { data, memory, size } = mem;
        let seconds = now - self.began - (waited - self.waited);
        let full = memory >= size && data > 0;
        if full {
            self.part = (data as f64 / size.max(1) as f64).clamp(PART_MIN, 1.0);
            self.last = written.saturating_sub(self.since) as f64;
        }
        (self.since, self.waited) = (written, waited);
        let known = std::mem::replace(&mut self.began, now) > 0.0;
        (full && known).then_some(seconds.max(0.0))
    }

    /// Bytes that users can write, to any column family, until this memtable is full and `more` of them are.
    pub fn room(&self, Filled { data, memory, size }: Filled, written: u64, more: usize) -> f64 {
        let size = size.max(1) as f64;
        // Its memory is ahead of its contents by less than one step.
        let most = (1.0 - memory as f64 / size).max(0.0);
        let left = (1.0 - data as f64 / (size * self.part)).min(most).max(most * ROOM_MIN);
        let filled = 1.0 - left;
        // How much users write for a whole memtable: as much as for the last one, until this one shows otherwise.
        let whole = (written.saturating_sub(self.since) as f64 + self.last * LAST_PART) / (filled + LAST_PART);
        (left + more as f64) * whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;
    const NONE_DUE: OneFlush = OneFlush { since: 0.0, bytes: 0.0 };

    /// Writers that want `want` bytes a second, two memtables of `size`, and flushes that take these times.
    struct Model {
        pace: FlushPace,
        size: f64,
        now: f64,
    }

    /// What one flush saw.
    struct Seen {
        /// The time for which writers were stopped since the memtable was full.
        stopped: f64,
        /// The memtable's fill at the end of the flush.
        filled: f64,
        /// The longest that a write of 1 KB took.
        longest: f64,
        /// The rates, every thousandth of the flush.
        rates: Vec<f64>,
    }

    impl Model {
        fn new(size: f64) -> Self {
            Self { pace: FlushPace::default(), size, now: 0.0 }
        }

        fn flush(&mut self, seconds: f64, want: f64) -> Seen {
            self.pace.begin(self.now, self.size);
            let (mut filled, step) = (0.0, seconds / 1000.0);
            let mut seen = Seen { stopped: 0.0, filled: 0.0, longest: 0.0, rates: Vec::new() };
            for _ in 0..1000 {
                let rate = self.pace.rate(self.now, self.size - filled, NONE_DUE).min(want);
                if filled >= self.size - 1.0 {
                    seen.stopped += step;
                } else {
                    seen.longest = f64::max(seen.longest, 1e3 / rate);
                    filled = f64::min(filled + rate * step, self.size);
                }
                seen.rates.push(rate);
                self.now += step;
            }
            self.pace.end(self.now, Some(0.0));
            self.pace.wrote(want, 1.0);
            seen.filled = filled / self.size;
            self.now += (self.size - filled) / want;
            seen
        }
    }

    #[test]
    fn writers_arrive_at_the_limit_when_the_flush_ends() {
        let mut m = Model::new(16.0 * MB);
        (0..20).for_each(|_| drop(m.flush(0.1, 1000.0 * MB)));
        let seen = m.flush(0.1, 1000.0 * MB);
        assert!(seen.filled > 0.9 && seen.stopped == 0.0, "{} filled, {} s stopped", seen.filled, seen.stopped);
        assert!(seen.longest < 1e-3, "{} s for a write", seen.longest);
    }

    #[test]
    fn the_rate_falls_without_a_cliff() {
        // Also of the first flush, of which nothing is known, and of one that takes five times as long as those before.
        for (before, seconds) in [(0, 0.1), (20, 0.1), (20, 0.5)] {
            let mut m = Model::new(64.0 * MB);
            (0..before).for_each(|_| drop(m.flush(0.1, 1000.0 * MB)));
            let seen = m.flush(seconds, 1000.0 * MB);
            for pair in seen.rates.windows(2) {
                assert!(pair[1] <= pair[0] * 1.001, "{before}, {seconds} s: {} to {}", pair[0], pair[1]);
                assert!(pair[1] > pair[0] * 0.8, "{before}, {seconds} s: {} to {}", pair[0], pair[1]);
            }
            assert!(seen.stopped == 0.0 && seen.longest < 0.02, "{before}, {seconds} s: {} s", seen.longest);
        }
    }

    /// The longer it takes and the less room there is, the slower.
    #[test]
    fn the_rate_is_monotone_in_room_and_lateness() {
        let mut pace = FlushPace::default();
        pace.begin(0.0, MB);
        pace.end(1.0, Some(0.0));
        pace.begin(10.0, MB);
        for late in 0..100 {
            let now = 10.0 + AIM + f64::from(late) / 10.0;
            assert!(pace.rate(now, MB, NONE_DUE) > pace.rate(now + 0.1, MB, NONE_DUE));
            assert!(pace.rate(now, MB, NONE_DUE) > pace.rate(now, 0.9 * MB, NONE_DUE));
        }
        assert_eq!(pace.rate(10.5, 0.0, NONE_DUE), 0.0, "no room");
    }

    #[test]
    fn nobody_is_delayed_where_flushes_keep_up() {
        let mut m = Model::new(64.0 * MB);
        // Memtables are filled in 0.1 s and flushed in 0.052 to 0.068 s.
        for i in 0..50 {
            let seen = m.flush(0.052 + 0.004 * f64::from(i % 5), 640.0 * MB);
            let slowed = seen.rates.iter().filter(|r| **r < 640.0 * MB).count();
            assert!(i == 0 || slowed == 0, "flush {i}: {slowed} of 1,000 moments");
        }
    }

    #[test]
    fn flushes_come_first_where_they_keep_the_device_busy() {
        let of = |cpu: f64| {
            let mut pace = FlushPace::default();
            for i in 0..20 {
                pace.begin(f64::from(i), MB);
                pace.end(f64::from(i) + 0.1, Some(cpu));
            }
            pace
        };
        let (device, core) = (of(0.007), of(0.05));
        assert_eq!([device, core].map(|p| p.priority(false, 0.0)), [1.0, 1.0], "nobody is behind");
        assert_eq!([device, core].map(|p| p.priority(true, 0.0)), [1.0, 0.0]);
        assert_eq!([0.25, 0.75, 1.0, 2.0].map(|pressure| device.priority(true, pressure)), [0.75, 0.25, 0.0, 0.0]);
        let between = of(0.0185).priority(true, 0.0);
        assert!((between - 0.5).abs() < 1e-6, "{between}");
        assert_eq!(of(0.0).priority(true, 0.0), 0.0, "CPU time is not known");
        assert_eq!(FlushPace::default().priority(true, 0.0), 0.0);
    }

    /// Who wants less than flushes take in is slowed by one that takes three times as long, and not stopped.
    #[test]
    fn a_late_flush_slows_writers_who_want_little_and_stops_none() {
        let mut m = Model::new(16.0 * MB);
        (0..20).for_each(|_| drop(m.flush(0.1, 107.0 * MB)));
        let seen = m.flush(0.3, 107.0 * MB);
        assert!(seen.stopped == 0.0 && seen.longest < 0.002, "{} s, {} s stopped", seen.longest, seen.stopped);
    }

    #[test]
    fn writers_lose_little_where_they_are_as_fast_as_flushes() {
        for part in [0.1, 0.5, 0.8, 0.9, 1.0, 1.1, 1.3] {
            let mut m = Model::new(64.0 * MB);
            (0..20).for_each(|_| drop(m.flush(0.1, 640.0 * MB / part)));
            let from = m.now;
            (0..100).for_each(|_| drop(m.flush(0.1, 640.0 * MB / part)));
            let lost = (m.now - from) / (10.0 * f64::max(part, 1.0)) - 1.0;
            assert!(lost < 0.03, "memtables filled in {part} of a flush: {lost}");
        }
    }

    #[test]
    fn the_fill_is_that_of_the_entries_and_keeps_to_the_memory() {
        let mut fill = MemtableFill::new(16 << 20);
        let filled = |data, memory| Filled { data, memory, size: 16 << 20 };
        assert_eq!(fill.room(filled(0, 0), 0, 0), (16 << 20) as f64);
        // The last memtable was full with 15 MB of entries, for which users wrote 30 MB to two column families.
        assert_eq!(fill.sealed(filled(15_000_000, 16 << 20), 30_000_000, 7.0, 1.0), None, "since when is not known");
        let at = |data: u64, more| fill.room(filled(data, data as usize), 30_000_000 + 2 * data, more);
        assert!((at(7_500_000, 0) / 15.0e6 - 1.0).abs() < 0.01, "{}", at(7_500_000, 0));
        assert!((at(7_500_000, 2) / 75.0e6 - 1.0).abs() < 0.01, "{}", at(7_500_000, 2));
        // The memory limit counts: there is little room if it is nearly used up, but always some before that.
        assert!(fill.room(filled(0, 15 << 20), 30_000_000, 0) <= 2.0e6);
        assert!(fill.room(filled(15_000_000, 15 << 20), 60_000_000, 0) > 0.0);
        // How long writers took for one: without the time that they waited.
        let mut again = fill;
        assert_eq!(again.sealed(filled(15_000_000, 16 << 20), 60_000_000, 9.0, 2.5), Some(0.5));
        assert_eq!(again.sealed(filled(1_000, 1 << 20), 60_001_000, 10.0, 2.5), None, "not full");
        // A column family without writes delays nobody.
        assert!(fill.room(filled(10_000_000, 10 << 20), 1 << 40, 0) > 1e11);
    }
}
