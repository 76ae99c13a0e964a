use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use rockmill_io::{FileSystem, ManualClock, MemFileSystem, WritableFile as _, WriteOptions};

use super::*;
use crate::options::CfOptions;
use crate::pacing::decide::{FamilyNow, FlushQueue, FullMemtables, LogsNow, StoreNow, decide};
use crate::pacing::file::{Gate, JobFile};
use crate::pacing::flush_pace::FlushPace;
use crate::pacing::rate_control::RateControl;
use crate::pacing::write_control::TreeLoad;

const MS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The reader's read is done, and it asks for the next.
    Read,
    /// A compaction wants to read or write a piece.
    Ask,
    /// It may.
    Submit,
}

/// A device that does one operation at a time, with compactions that have 16 pieces in flight and, after a second, a
/// reader that reads continuously. Returns the reader's and the compactions' shares of the device's time.
fn beside_a_reader(held: bool) -> (f64, f64) {
    const SECONDS: u64 = 5;
    let (read, piece) = (40_000, PIECE_BYTES as u64 * 4); // 250 MB/s
    let (begin, end) = (1000 * MS, (1 + SECONDS) * 1000 * MS);
    let (mut share, mut free_at, mut reads, mut pieces) = (Share::default(), 0u64, 0u64, 0u64);
    let mut events = BinaryHeap::from(vec![Reverse((0, Event::Ask)); 16]);
    events.push(Reverse((begin, Event::Read)));
    while let Some(Reverse((now, event))) = events.pop().filter(|e| e.0.0 < end) {
        match event {
            Event::Ask => {
                let leave = if held && now >= begin { Leave::Least } else { Leave::All };
                let wait = share.take(now, PIECE_BYTES as u64, leave);
                events.push(Reverse((now + wait, Event::Submit)));
            }
            Event::Read => {
                (free_at, reads) = (free_at.max(now) + read, reads + 1);
                events.push(Reverse((free_at, Event::Read)));
            }
            Event::Submit => {
                free_at = free_at.max(now) + piece;
                pieces += u64::from(now >= begin);
                events.push(Reverse((free_at, Event::Ask)));
            }
        }
    }
    let time = (end - begin) as f64;
    ((reads * read) as f64 / time, (pieces * piece) as f64 / time)
}

#[test]
fn a_reader_has_most_of_the_device() {
    let (reader, compactions) = beside_a_reader(true);
    assert!(reader > 0.72 && (0.2..0.28).contains(&compactions), "{reader} and {compactions}");
    let (reader, compactions) = beside_a_reader(false);
    assert!(reader < 0.02 && compactions > 0.9, "without it: {reader} and {compactions}");
}

/// A load earns nothing for what is compacted later, beside reads.
#[test]
fn what_users_wrote_long_ago_earns_nothing() {
    let mut share = Share { rate: 0.1, ..Share::default() };
    // A gigabyte in ten seconds, looked at once, and again and again.
    assert!(share.note_written(10_000 * MS, 1 << 30));
    assert_eq!(share.credit, (1 << 30) * BYTES_OF_A_BYTE / 10);
    for ms in 10_000..20_000 {
        share.note_written(ms * MS, (1 << 30) / 10_000 * ms);
    }
    let earned = share.credit as f64 / ((1u64 << 30) * BYTES_OF_A_BYTE / 10) as f64;
    assert!((0.98..1.02).contains(&earned), "the last second's: {earned}");
    // A second later a third is left if it is looked at all the time, and nothing if nobody looked.
    let written = share.written;
    let mut other = Share { rate: 0.1, credit: share.credit, written, written_seen: 20_000 * MS, ..Share::default() };
    for ms in 20_000..21_000 {
        assert!(!share.note_written(ms * MS, written));
    }
    let left = share.credit as f64 / other.credit as f64;
    assert!((0.36..0.38).contains(&left), "{left}");
    assert!(!other.note_written(21_000 * MS, written));
    assert_eq!(other.credit, 0);
    let waits: Vec<u64> = (0..2).map(|_| other.take(21_000 * MS, 100_000, Leave::Least) / MS).collect();
    assert_eq!(waits, [0, 4], "25 MB/s");
}

#[test]
fn what_users_write_may_be_compacted_beside_reads() {
    let mut share = Share::default();
    for ms in 0..600 {
        assert_eq!(share.take(ms * MS, 100_000, Leave::All), 0);
    }
    assert!((share.rate - 0.1).abs() < 0.01, "100 MB/s: {}", share.rate);
    let written = 350_000 / BYTES_OF_A_BYTE;
    assert!(share.note_written(600 * MS, written) && !share.note_written(600 * MS, written));
    let waits: Vec<u64> = (0..6).map(|_| share.take(600 * MS, 100_000, Leave::Least) / MS).collect();
    assert_eq!(waits, [0, 0, 0, 0, 4, 8], "three are paid for, one begins at once, and then 25 MB/s");
    // Delayed operations say nothing about the device.
    for _ in 0..1000 {
        share.take(900 * MS, 100_000, Leave::Least);
    }
    assert!((share.rate - 0.1).abs() < 0.01, "{}", share.rate);
    assert_eq!(share.take(901 * MS, 100_000, Leave::All), 0, "nobody reads any more");
    assert_eq!(share.take(902 * MS, 100_000, Leave::Least), 0, "and nothing is owed");
}

#[test]
fn a_device_that_answers_in_bursts_is_learned() {
    let mut share = Share::default();
    for burst in 0..10 {
        for piece in 0..10 {
            assert_eq!(share.take((burst * 100 + piece) * MS, 1_000_000, Leave::All), 0);
        }
    }
    assert!((0.08..0.13).contains(&share.rate), "100 MB/s: {}", share.rate);
    assert_eq!(share.take(920 * MS, 1_000_000, Leave::Least), 0);
    assert!(share.take(920 * MS, 1_000_000, Leave::Least) > 30 * MS);
    // The time between two jobs does not count, and that of the sync at the end of each does.
    for at in (2000..8000).step_by(500) {
        for piece in 0..5 {
            assert_eq!(share.take((at + piece) * MS, 1_000_000, Leave::All), 0);
        }
        share.rests((at + 50) * MS);
    }
    assert!((0.09..0.11).contains(&share.rate), "5 MB in 50 ms: {}", share.rate);
}

fn at_work() -> (ManualClock, Arc<ReadProtection>, Arc<DeviceShare>, Arc<AtomicBool>, Arc<AtomicU64>) {
    let (clock, stop, written) = (ManualClock::new(0), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    clock.advance(Duration::from_secs(10));
    let first = Arc::new(ReadProtection::new(Arc::new(clock.clone())));
    let of_users = Arc::clone(&written);
    let job = first.job(&stop, &Arc::default(), Box::new(move || of_users.load(Ordering::Relaxed)));
    for _ in 0..600 {
        job.pass(100_000);
        clock.advance(Duration::from_millis(1));
    }
    (clock, first, job, stop, written)
}

fn read(clock: &ManualClock, first: &ReadProtection, micros: u64) {
    let began = first.read_begins();
    clock.advance(Duration::from_micros(micros));
    first.read_ends(began);
}

#[test]
fn compactions_hold_back_where_users_read_from_the_device_and_nobody_waits() {
    let (clock, first, job, _, written) = at_work();
    let holds = || first.leave(clock.monotonic_nanos()) == Leave::Least;
    assert!(!holds(), "nobody reads");
    read(&clock, &first, 2);
    assert!(!holds(), "the page cache has it");
    read(&clock, &first, 100);
    assert!(holds());
    assert_eq!((job.piece(2 << 20), job.piece(4096)), (PIECE_BYTES, 4096));
    clock.advance(Duration::from_millis(25));
    assert!(!holds(), "users have stopped reading");
    assert_eq!(job.piece(2 << 20), 2 << 20);
    read(&clock, &first, 80_000);
    clock.advance(Duration::from_millis(300));
    assert!(holds(), "a read that waited long: the next one may, too");
    clock.advance(Duration::from_millis(25));
    assert!(!holds());
    let again = || read(&clock, &first, 100);
    for (behind, awaited, wanted) in [(false, true, false), (true, false, true), (true, true, false)] {
        first.set(behind, awaited);
        again();
        assert_eq!(holds(), wanted, "behind: {behind}, somebody waits: {awaited}");
    }
    // Compactions are behind, and users have just written.
    first.set(true, false);
    again();
    written.store(1, Ordering::Relaxed);
    job.pass(1);
    again();
    assert!(!holds());
    first.set(false, false);
    assert!(holds());
    first.writer_delayed();
    assert!(!holds(), "somebody waits");
    clock.advance(Duration::from_millis(1100));
    first.set(true, false);
    again();
    assert!(holds(), "writers are gone");
    drop(job);
    assert_eq!(first.read_begins(), None, "no job runs: times are not taken");
}

#[test]
fn where_writers_wait_readers_get_the_more_the_busier_they_are() {
    let (clock, first, job, ..) = at_work();
    first.set(true, true);
    // For three seconds, reads take `busy` milliseconds of every ten.
    let leave_next_to = |busy: u64| {
        for _ in 0..300 {
            (0..busy).for_each(|_| read(&clock, &first, 1000));
            clock.advance(Duration::from_millis(10 - busy));
            job.pass(1);
        }
        first.leave(clock.monotonic_nanos())
    };
    let part = |leave| if let Leave::Part(part) = leave { part } else { panic!("{leave:?}") };
    let busy = part(leave_next_to(9));
    assert!((0.25..0.4).contains(&busy), "{busy}");
    let trickle = part(leave_next_to(1));
    assert!((0.9..0.95).contains(&trickle), "{trickle}");
    first.set(false, false);
    assert_eq!(first.leave(clock.monotonic_nanos()), Leave::Least, "nobody waits any more");
    first.set(true, true);
    leave_next_to(0);
    read(&clock, &first, 100);
    assert_eq!(first.leave(clock.monotonic_nanos()), Leave::All, "one read does not hold anybody back");
}

/// With half of 100 MB/s: the unused share of half a second may be used at once; older credit is lost.
#[test]
fn jobs_that_writers_wait_for_may_run_ahead() {
    let mut share = Share { rate: 0.1, credit: 1 << 30, ..Share::default() };
    let mut take = |ms: u64, bytes| share.take(ms * MS, bytes, Leave::Part(0.5)) / MS;
    assert_eq!([take(1000, 20_000_000), take(1000, 10_000_000), take(1000, 5_000_000)], [0, 0, 100]);
    assert_eq!([take(1300, 1_000_000), take(9000, 25_000_000), take(9000, 1)], [0, 0, 0]);
    assert!(take(9000, 1_000_000) == 0 && take(9000, 1) == 20);
    assert_eq!(share.credit, 0);
}

#[test]
fn waits_end_when_users_stop_reading_and_when_the_database_closes() {
    let (clock, first, job, stop, _) = at_work();
    read(&clock, &first, 100);
    let before = clock.monotonic_nanos();
    for _ in 0..100 {
        job.pass(1 << 20); // 40 ms each
    }
    let waited = (clock.monotonic_nanos() - before) / MS;
    assert!((20..=30).contains(&waited), "{waited} ms");
    assert_eq!(first.waited_micros() / 1000, waited);
    read(&clock, &first, 100);
    stop.store(true, Ordering::Release);
    let before = clock.monotonic_nanos();
    (0..100).for_each(|_| job.pass(1 << 20));
    assert_eq!(clock.monotonic_nanos(), before);
}

#[test]
fn a_job_that_a_caller_joins_is_released() {
    let (clock, first, ..) = at_work();
    let joined = Arc::<AtomicBool>::default();
    let job = first.job(&Arc::default(), &joined, Box::new(|| 0));
    read(&clock, &first, 100);
    job.pass(1 << 20);
    assert_eq!(job.piece(2 << 20), PIECE_BYTES);
    let before = clock.monotonic_nanos();
    job.pass(1 << 20);
    assert!(clock.monotonic_nanos() > before);
    read(&clock, &first, 100);
    joined.store(true, Ordering::Release);
    let before = clock.monotonic_nanos();
    (0..100).for_each(|_| job.pass(1 << 20));
    assert_eq!((clock.monotonic_nanos(), job.piece(2 << 20)), (before, 2 << 20));
}

/// The operations of a released job are not counted, and neither is their time.
#[test]
fn a_released_job_teaches_nothing() {
    let (clock, first, job, ..) = at_work();
    drop(job);
    let (learned, joined) = (first.share.lock().rate, Arc::<AtomicBool>::default());
    let job = first.job(&Arc::default(), &joined, Box::new(|| 0));
    for i in 0..800 {
        job.pass(100_000);
        clock.advance(Duration::from_millis(1));
        joined.store(i >= 100, Ordering::Release);
    }
    drop(job);
    let rate = first.share.lock().rate;
    assert!((rate / learned - 1.0).abs() < 0.01, "{learned} bytes a nanosecond became {rate}");
}

#[test]
fn a_file_asks_for_all_that_it_gets() {
    let (clock, first, job, ..) = at_work();
    let fs = MemFileSystem::default();
    let inner = fs.create(Path::new("/f"), WriteOptions::default()).unwrap();
    let mut file = JobFile::new(inner, [Gate::DeviceShare(job)], None, None);
    let before = clock.monotonic_nanos();
    for _ in 0..1024 {
        read(&clock, &first, 20);
        file.append(&[7; 4096]).unwrap();
    }
    // 4 MiB at a quarter of 100 MB/s, except for the first piece.
    let took = (clock.monotonic_nanos() - before) / MS;
    assert!((145..175).contains(&took), "{took} ms");
    assert_eq!(file.len(), 4 << 20);
    file.close().unwrap();
    assert_eq!(fs.file_size(Path::new("/f")).unwrap(), 4 << 20);
}

/// A writer, its flushes and compactions, and readers on one device that does one operation at a time, controlled as in
/// the store.
struct Shared {
    clock: ManualClock,
    first: Arc<ReadProtection>,
    /// The shares of the flush and of compactions, each with its most pieces in flight and its remaining bytes.
    jobs: [(Arc<DeviceShare>, usize, u64); 2],
    written: Arc<AtomicU64>,
    /// When the device will have finished its queue.
    free_at: u64,
    /// The number of full memtables, and the bytes in the active one.
    sealed: usize,
    active: u64,
    control: RateControl,
    events: BinaryHeap<Reverse<(u64, Happens)>>,
    held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    /// The read that began at this time is done.
    Read(u64),
    /// A reader begins one.
    Think,
    /// A piece of a job may begin at this time, or when nothing holds it back.
    Wait(usize, u64),
    /// It is done.
    Done(usize),
    /// Writers write for a millisecond.
    Write,
}

/// What they got in a second.
#[derive(Debug, Default)]
struct Got {
    reads: f64,
    written: f64,
    jobs: f64,
    /// Part of the time in which writers were stopped.
    stopped: f64,
}

impl Shared {
    const MEMTABLE: u64 = 16 << 20;
    const READ_NANOS: u64 = 50_000;
    /// Bytes that compactions read and write for each that is flushed.
    const COMPACTED: u64 = 5;

    /// Runs `readers` readers, each of which reads again after `think` nanoseconds, next to a writer that wants `want`
    /// bytes per second.
    fn run(held: bool, readers: usize, think: u64, want: u64) -> Got {
        let (clock, stop, written) = (ManualClock::new(0), Arc::default(), Arc::<AtomicU64>::default());
        clock.advance(Duration::from_secs(10));
        let first = Arc::new(ReadProtection::new(Arc::new(clock.clone())));
        let job = || {
            let of_users = Arc::clone(&written);
            first.job(&stop, &Arc::default(), Box::new(move || of_users.load(Ordering::Relaxed)))
        };
        let jobs = [(job(), 4, 0), (job(), 12, 0)];
        let (control, events) = (RateControl::default(), BinaryHeap::new());
        let (first, written) = (Arc::clone(&first), Arc::clone(&written));
        let mut all = Self { clock, first, jobs, written, free_at: 0, sealed: 0, active: 0, control, events, held };
        let start = all.clock.monotonic_nanos();
        // Readers begin after five seconds, and are measured after ten.
        all.events.push(Reverse((start, Happens::Write)));
        (0..readers as u64).for_each(|i| all.events.push(Reverse((start + 5000 * MS + i, Happens::Think))));
        let (from, until) = (start + 10_000 * MS, start + 40_000 * MS);
        let (mut got, mut before) = (Got::default(), None);
        while let Some(Reverse((now, what))) = all.events.pop().filter(|e| e.0.0 < until) {
            all.clock.advance(Duration::from_nanos(now - all.clock.monotonic_nanos()));
            if now >= from {
                before.get_or_insert_with(|| all.written.load(Ordering::Relaxed));
                got.reads += f64::from(u8::from(matches!(what, Happens::Read(_))));
                got.jobs += if matches!(what, Happens::Done(_)) { PIECE_BYTES as f64 } else { 0.0 };
                got.stopped += if what == Happens::Write && all.sealed > 1 { 1e-3 } else { 0.0 };
            }
            all.happens(now, what, think, want);
        }
        let seconds = (until - from) as f64 * 1e-9;
        got.written = (all.written.load(Ordering::Relaxed) - before.unwrap()) as f64;
        let of = |sum: f64| sum / seconds;
        Got { reads: of(got.reads), written: of(got.written), jobs: of(got.jobs), stopped: of(got.stopped) }
    }

    fn happens(&mut self, now: u64, what: Happens, think: u64, want: u64) {
        match what {
            Happens::Think => {
                self.free_at = self.free_at.max(now) + Self::READ_NANOS;
                self.events.push(Reverse((self.free_at, Happens::Read(now))));
            }
            Happens::Read(began) => {
                self.first.read_ends(Some(began));
                self.events.push(Reverse((now + think, Happens::Think)));
            }
            Happens::Wait(job, until) => {
                if now < until && !self.jobs[job].0.is_free(now) && self.held {
                    let next = until.min(now + SLEEP_MAX.as_nanos() as u64);
                    self.events.push(Reverse((next, Happens::Wait(job, until))));
                    return;
                }
                self.free_at = self.free_at.max(now) + PIECE_BYTES as u64 * 4; // 250 MB/s
                self.events.push(Reverse((self.free_at, Happens::Done(job))));
            }
            Happens::Done(job) => {
                self.jobs[job].1 += 1;
                if job == 0 && self.jobs[0].2 == 0 && self.jobs[0].1 == 4 {
                    self.sealed -= 1;
                    self.jobs[1].2 += Self::COMPACTED * Self::MEMTABLE;
                }
                self.begin_pieces(now);
            }
            Happens::Write => {
                self.write(now, want);
                self.events.push(Reverse((now + MS, Happens::Write)));
            }
        }
    }

    fn begin_pieces(&mut self, now: u64) {
        if self.sealed > 0 && self.jobs[0].2 == 0 && self.jobs[0].1 == 4 {
            self.jobs[0].2 = Self::MEMTABLE;
        }
        for (i, (job, free, left)) in self.jobs.iter_mut().enumerate() {
            while *free > 0 && *left > 0 {
                (*free, *left) = (*free - 1, left.saturating_sub(PIECE_BYTES as u64));
                let wait = if self.held { job.ask(now, PIECE_BYTES as u64) } else { 0 };
                let first = now + wait.min(SLEEP_MAX.as_nanos() as u64);
                self.events.push(Reverse((first, Happens::Wait(i, now + wait))));
            }
        }
    }

    fn write(&mut self, now: u64, want: u64) {
        let (options, flush_pace) = (CfOptions::default(), FlushPace::default());
        let runs = self.jobs[1].2.div_ceil(Self::COMPACTED * Self::MEMTABLE) as usize;
        let family = FamilyNow {
            id: 0,
            options: &options,
            load: TreeLoad { runs, pending_bytes: 0 },
            memtables: FullMemtables { full: self.sealed, most: options.max_write_buffer_number as usize },
            flushes: FlushQueue { waiting: self.sealed, in_flight: false, requested: true },
            index: None,
            flush_pace: &flush_pace,
        };
        let (seconds, written) = (now as f64 * 1e-9, self.written.load(Ordering::Relaxed));
        let store = StoreNow { at: seconds, logs: LogsNow::UNBOUNDED, failed: false, without_merging: false };
        let orders = decide(std::iter::once(family), store);
        self.first.set(orders.behind, orders.awaited);
        self.control.set(seconds, &orders.tree, 16e6, written as f64);
        let rate = if orders.stop.is_some() { 0.0 } else { self.control.rate() };
        if rate < want as f64 {
            self.first.writer_delayed();
        }
        let more = (rate.min(want as f64) * 1e-3) as u64;
        self.written.fetch_add(more, Ordering::Relaxed);
        self.active += more;
        if self.active >= Self::MEMTABLE {
            (self.sealed, self.active) = (self.sealed + 1, 0);
        }
        self.begin_pieces(now);
    }
}

/// Without the rule, the deeper queue wins, which is the jobs'.
#[test]
fn readers_jobs_and_writers_share_a_device() {
    let alone = 1e9 / Shared::READ_NANOS as f64;
    let all_that_it_can = 1 << 30;
    let run = |readers, think, want| [true, false].map(|held| Shared::run(held, readers, think, want));
    // Busy readers get most of the device; writers that want more than the rest get the rest.
    let [with, without] = run(4, 0, all_that_it_can);
    assert!(with.reads > 0.7 * alone && without.reads < 0.05 * alone, "{with:?}, {without:?}");
    assert!((13e6..20e6).contains(&with.written) && with.jobs > 55e6, "{with:?}");
    // Writers that need no more than readers leave are not delayed.
    let [with, _] = run(4, 0, 6_000_000);
    assert!(with.written > 5.9e6 && with.stopped == 0.0 && with.reads > 0.8 * alone, "{with:?}");
    // The less readers read, the more writers get.
    let [often, without] = run(1, 400_000, all_that_it_can);
    assert!(often.reads > 10.0 * without.reads && often.written > 0.6 * without.written, "{often:?}, {without:?}");
    let [seldom, without] = run(1, 5 * MS, all_that_it_can);
    assert!(seldom.reads > 2.0 * without.reads && seldom.written > 0.85 * without.written, "{seldom:?}, {without:?}");
    let [with, without] = run(0, 0, all_that_it_can);
    assert!((with.written / without.written - 1.0).abs() < 0.01, "nobody reads: {with:?}, {without:?}");
}
