//! The benchmarks: their names, and their execution by a thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::db_bench::{self, Fill};
use crate::error::{Error, Result};
use crate::flags::{Flags, distance};
use crate::generate::{KeyGenerator, ValueGenerator};
use crate::mixgraph::MixGraph;
use crate::nutanix::Nutanix;
use crate::random::Mersenne64;
use crate::record::{Done, Progress, Recorder};
use crate::store::{OpKind, Session};
use crate::ycsb::Ycsb;

/// Operations between two reads of the clock if `--duration` limits a benchmark that does not time its operations.
const OPS_BETWEEN_CLOCK_READS: u64 = 1000;

macro_rules! workloads {
    ($($variant:ident $name:literal $help:literal)*) => {
        /// A benchmark of `--benchmarks`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Workload {
            $(#[doc = $help] $variant,)*
        }

        impl Workload {
            /// The name in `--benchmarks` and in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            const ALL: &[(Self, &str)] = &[$((Self::$variant, $help)),*];
        }
    };
}

workloads! {
    FillSeq "fillseq" "write num keys in order into a fresh database"
    FillRandom "fillrandom" "write num random keys into a fresh database"
    FillUniqueRandom "filluniquerandom" "write each of num keys once, shuffled, into a fresh database"
    Overwrite "overwrite" "write num random keys into the database that is there"
    ReadRandom "readrandom" "get random keys"
    ReadMissing "readmissing" "get random keys that are not there: one byte longer"
    ReadSeq "readseq" "scan forwards from the first key"
    ReadReverse "readreverse" "scan backwards from the last key"
    SeekRandom "seekrandom" "open an iterator, seek to a random key, visit seek_nexts entries"
    MultiReadRandom "multireadrandom" "get batch_size random keys in one call"
    DeleteRandom "deleterandom" "delete random keys, batch_size in a batch"
    ReadWhileWriting "readwhilewriting" "readrandom while one more thread overwrites"
    SeekRandomWhileWriting "seekrandomwhilewriting" "seekrandom while one more thread overwrites"
    ReadRandomWriteRandom "readrandomwriterandom" "readwritepercent gets of 100, then puts, over and over"
    UpdateRandom "updaterandom" "get a random key, then put it"
    MergeRandom "mergerandom" "merge operands into random keys (wants --merge_operator)"
    MixGraph "mixgraph" "gets, puts and seeks as in Facebook's social graph (mix_*, key_dist_*, value_*, iter_*)"
    Nutanix "nutanix" "57 % updates, 41 % gets, 2 % scans of minscanlength to maxscanlength entries (not in db_bench)"
    YcsbLoad "ycsb-load" "YCSB: insert every record into a fresh database"
    YcsbA "ycsb-a" "YCSB A: 50 % reads, 50 % updates, zipfian"
    YcsbB "ycsb-b" "YCSB B: 95 % reads, 5 % updates, zipfian"
    YcsbC "ycsb-c" "YCSB C: reads, zipfian"
    YcsbD "ycsb-d" "YCSB D: 95 % reads of the latest, 5 % inserts"
    YcsbE "ycsb-e" "YCSB E: 95 % short scans, 5 % inserts, zipfian"
    YcsbF "ycsb-f" "YCSB F: 50 % reads, 50 % read-modify-writes, zipfian"
    Flush "flush" "write memtables as tables"
    Compact "compact" "compact the whole database"
    WaitForCompaction "waitforcompaction" "wait until no flush or compaction runs or is due"
    Stats "stats" "print the store's statistics"
    Device "device" "measure the device: direct sequential writes and reads, random reads (not in db_bench)"
}

/// Names and what they do, for help.
pub(crate) fn descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
    Workload::ALL.iter().map(|(w, help)| (w.name(), *help))
}

impl Workload {
    /// The benchmarks of a comma-separated list. YCSB's may also be called `workloada` and so on.
    pub fn parse_list(list: &str) -> Result<Vec<Self>> {
        let all: Vec<Self> = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(Self::from_name)
            .collect::<Result<_>>()?;
        if all.is_empty() {
            return Err(Error::Usage("--benchmarks names none".to_owned()));
        }
        Ok(all)
    }

    fn from_name(name: &str) -> Result<Self> {
        let known = || Self::ALL.iter().map(|(w, _)| *w);
        let plain = name.replace('_', "-");
        let plain = match plain.strip_prefix("workload") {
            Some(letter) if letter.len() == 1 => format!("ycsb-{letter}"),
            _ => plain,
        };
        if let Some(w) = known().find(|w| w.name() == plain) {
            return Ok(w);
        }
        let near = known().min_by_key(|w| distance(name, w.name()));
        let hint = near.filter(|w| distance(name, w.name()) <= 4);
        let hint = hint.map(|w| format!("; did you mean {}?", w.name())).unwrap_or_default();
        Err(Error::Usage(format!("there is no benchmark {name:?}{hint}")))
    }

    /// True if the database is first destroyed and created again.
    pub fn wants_fresh_database(self) -> bool {
        matches!(self, Self::FillSeq | Self::FillRandom | Self::FillUniqueRandom | Self::YcsbLoad)
    }

    /// True for those of YCSB.
    pub fn is_ycsb(self) -> bool {
        self.name().starts_with("ycsb")
    }

    /// True for those that run on `--threads` threads, with counted operations.
    pub fn is_threaded(self) -> bool {
        !matches!(self, Self::Flush | Self::Compact | Self::WaitForCompaction | Self::Stats | Self::Device)
    }

    /// Threads that run it when `--threads` says `threads`.
    pub fn thread_count(self, threads: usize) -> usize {
        if self.has_writer() { threads + 1 } else { threads }
    }

    /// True for those with one more thread, which overwrites until the others end.
    fn has_writer(self) -> bool {
        matches!(self, Self::ReadWhileWriting | Self::SeekRandomWhileWriting)
    }

    /// Operations of one thread, if the flags and not the duration determine them.
    pub(crate) fn operations(self, f: &Flags, index: usize) -> u64 {
        let share = |n: u64| n / f.threads as u64 + u64::from((index as u64) < n % f.threads as u64);
        match self {
            Self::FillSeq | Self::FillRandom | Self::FillUniqueRandom | Self::Overwrite => f.writes(),
            Self::DeleteRandom => f.deletes(),
            Self::ReadRandomWriteRandom | Self::UpdateRandom | Self::MergeRandom | Self::Nutanix => f.read_writes(),
            Self::YcsbLoad => share(f.records()),
            w if w.is_ycsb() => share(f.operations()),
            _ => f.reads(),
        }
    }

    /// How long it runs, if the duration is fixed.
    fn duration(self, f: &Flags) -> Duration {
        let by_count =
            matches!(self, Self::FillSeq | Self::FillUniqueRandom | Self::YcsbLoad | Self::ReadSeq | Self::ReadReverse);
        Duration::from_secs(if by_count { 0 } else { f.duration })
    }

    /// The work of one thread.
    fn work(self, t: &Thread<'_>) -> Result<Box<dyn Work>> {
        let (f, num) = (t.flags, t.flags.num as u64);
        Ok(match self {
            Self::FillSeq => Box::new(Fill::new(KeyGenerator::Sequential(0))),
            Self::FillUniqueRandom => Box::new(Fill::new(KeyGenerator::unique_random(num, t.seed))),
            Self::FillRandom | Self::Overwrite => Box::new(Fill::new(KeyGenerator::drawn(f.hot_keys, f.hot_writes))),
            Self::ReadRandom => Box::new(db_bench::ReadRandom),
            Self::ReadMissing => Box::new(db_bench::ReadMissing),
            Self::ReadSeq => Box::new(db_bench::ReadInOrder { reverse: false }),
            Self::ReadReverse => Box::new(db_bench::ReadInOrder { reverse: true }),
            Self::SeekRandom => Box::new(db_bench::SeekRandom),
            Self::MultiReadRandom => Box::new(db_bench::MultiReadRandom::new(f)),
            Self::DeleteRandom => Box::new(db_bench::DeleteRandom),
            w if w.has_writer() && t.is_background() => Box::new(db_bench::WriteUntilOthersEnd),
            Self::ReadWhileWriting => Box::new(db_bench::ReadRandom),
            Self::SeekRandomWhileWriting => Box::new(db_bench::SeekRandom),
            Self::ReadRandomWriteRandom => Box::new(db_bench::ReadRandomWriteRandom::default()),
            Self::UpdateRandom => Box::new(db_bench::UpdateRandom),
            Self::MergeRandom => Box::new(db_bench::MergeRandom),
            Self::MixGraph => Box::new(MixGraph::new(f)),
            Self::Nutanix => Box::new(Nutanix::new(f)),
            w if w.is_ycsb() => Box::new(Ycsb::new(w, f, t.index)),
            _ => return Err(Error::Run(format!("{} is not run by threads", self.name()))),
        })
    }

    /// True if a warm-up makes sense: for a fill, it would only make the fill larger.
    fn warms_up(self) -> bool {
        self.is_threaded() && !self.wants_fresh_database() && !matches!(self, Self::ReadSeq | Self::ReadReverse)
    }

    /// Runs one thread's part of a threaded benchmark: the warm-up, then the measured part.
    pub(crate) fn run(self, t: &mut Thread<'_>) -> Result<()> {
        let mut work = self.work(t)?;
        t.record.expect(work.kinds());
        if t.flags.warmup > 0 && self.warms_up() {
            // The writer beside readers continues unchanged.
            if !t.is_background() {
                let mut limit = Limit::new(0, Duration::from_secs(t.flags.warmup));
                work.run(t, &mut limit)?;
            }
            t.record = Recorder::new(t.record.is_timed());
            t.record.expect(work.kinds());
            t.progress.set(0);
        }
        // Also without a warm-up: preparations such as shuffling a list of keys take different times.
        t.shared.wait_until_all_are_warm(t.flags.threads, t.is_background());
        t.pace = Pace::new(t.flags);
        t.started = Instant::now();
        t.record.starts(t.started);
        t.shared.measuring.store(true, Ordering::Release);
        let mut limit = Limit::new(self.operations(t.flags, t.index), self.duration(t.flags));
        work.run(t, &mut limit)
    }
}

/// The work of a thread, one step at a time.
pub(crate) trait Work {
    /// Kinds of operations that steps do.
    fn kinds(&self) -> &'static [OpKind];

    /// Operations that the next step does.
    fn next_ops(&self, _flags: &Flags) -> u64 {
        1
    }

    /// Does some operations; `None` if nothing is left to do.
    fn step(&mut self, t: &mut Thread<'_>) -> Result<Option<Done>>;

    /// Steps until the limit.
    fn run(&mut self, t: &mut Thread<'_>, limit: &mut Limit) -> Result<()> {
        while limit.take(self.next_ops(t.flags), t) {
            if let Some(due) = t.pace.wait() {
                t.record.starts(due);
            }
            let Some(done) = self.step(t)? else { break };
            t.finished(done);
        }
        Ok(())
    }
}

/// What the threads of a benchmark share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// A thread failed: the others stop.
    pub failed: AtomicBool,
    /// Threads whose operations count that ended.
    pub done: AtomicUsize,
    /// Threads that are ready to be measured.
    warm: AtomicUsize,
    /// The measured part has begun.
    pub measuring: AtomicBool,
}

impl Shared {
    /// Returns when every counted thread has finished its warm-up, or one has failed.
    fn wait_until_all_are_warm(&self, threads: usize, background: bool) {
        if !background {
            self.warm.fetch_add(1, Ordering::AcqRel);
        }
        while self.warm.load(Ordering::Acquire) < threads && !self.failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// One thread of a benchmark.
pub(crate) struct Thread<'a> {
    pub flags: &'a Flags,
    pub session: Box<dyn Session + 'a>,
    pub shared: &'a Shared,
    pub progress: &'a Progress,
    pub index: usize,
    /// Of this run, the same for all threads.
    pub seed: u64,
    pub random: Mersenne64,
    pub values: ValueGenerator,
    /// Room for a key.
    pub key: Vec<u8>,
    pub record: Recorder,
    pub pace: Pace,
    /// When the measured part began.
    pub started: Instant,
}

impl Thread<'_> {
    /// True for the writer beside readers (readwhilewriting), whose operations are only load.
    pub fn is_background(&self) -> bool {
        self.index >= self.flags.threads
    }

    /// Operations ended together.
    #[inline]
    pub fn finished(&mut self, done: Done) {
        self.record.finished(done);
        self.progress.set(self.record.ops);
        if let Some(at) = self.pace.owe(&done) {
            self.record.starts(at);
        }
    }

    /// Looks up `self.key`. Returns the bytes of key and value, if it exists.
    #[inline]
    pub fn get(&mut self) -> Result<Option<u64>> {
        let mut len = 0;
        let found = self.session.get(&self.key, &mut |value| len = value.len())?;
        let count = self.record.found.get_or_insert(0);
        *count += u64::from(found);
        Ok(found.then_some((self.key.len() + len) as u64))
    }

    /// Puts the next value of `len` bytes under `self.key` and writes it. Returns the bytes of both.
    #[inline]
    pub fn put(&mut self, len: usize) -> Result<u64> {
        self.session.put(&self.key, self.values.next_value(len));
        self.session.commit()?;
        Ok((self.key.len() + len) as u64)
    }
}

/// When a benchmark ends: after a number of operations or, if a duration is given, only after that time.
pub(crate) struct Limit {
    ops_left: u64,
    until: Option<Instant>,
    ops_to_clock: u64,
}

impl Limit {
    pub fn new(ops: u64, duration: Duration) -> Self {
        let until = (!duration.is_zero()).then(|| Instant::now() + duration);
        Self { ops_left: ops, until, ops_to_clock: OPS_BETWEEN_CLOCK_READS }
    }

    /// No limit but the work's own.
    pub fn none() -> Self {
        Self::new(u64::MAX, Duration::ZERO)
    }

    /// True while `ops` more may be done.
    #[inline]
    pub fn take(&mut self, ops: u64, t: &Thread<'_>) -> bool {
        // Timed operations end with a read of the clock, which can be used here.
        let known = (t.record.is_timed() && t.record.ops > 0).then(|| t.record.last());
        self.take_at(ops, t.shared, known)
    }

    #[inline]
    fn take_at(&mut self, ops: u64, shared: &Shared, now: Option<Instant>) -> bool {
        let Some(until) = self.until else {
            let more = self.ops_left > 0;
            self.ops_left = self.ops_left.saturating_sub(ops);
            return more && !shared.failed.load(Ordering::Relaxed);
        };
        if let Some(now) = now {
            return now < until && !shared.failed.load(Ordering::Relaxed);
        }
        if self.ops_to_clock > ops {
            self.ops_to_clock -= ops;
            return true;
        }
        self.ops_to_clock = OPS_BETWEEN_CLOCK_READS;
        Instant::now() < until && !shared.failed.load(Ordering::Relaxed)
    }
}

/// Enforces a thread's share of the limits. A fixed `--target` gives each operation a start time from which its latency
/// counts, so a store that falls behind cannot hide that. db_bench's two limits only make the thread wait.
pub(crate) struct Pace {
    start: Instant,
    /// Between two operations of this thread; zero: no target.
    interval: Duration,
    begun: u32,
    read_ops_per_second: f64,
    write_bytes_per_second: f64,
    reads: u64,
    wrote: u64,
}

impl Pace {
    pub fn new(f: &Flags) -> Self {
        let share = |n: u64| n as f64 / f.threads as f64;
        Self {
            start: Instant::now(),
            interval: match f.target {
                0 => Duration::ZERO,
                n => Duration::from_secs_f64(1.0 / share(n)),
            },
            begun: 0,
            read_ops_per_second: share(f.benchmark_read_rate_limit),
            write_bytes_per_second: share(f.benchmark_write_rate_limit),
            reads: 0,
            wrote: 0,
        }
    }

    /// Waits until the next operation is due, and returns that time; `None` without a target.
    #[inline]
    fn wait(&mut self) -> Option<Instant> {
        if self.interval.is_zero() {
            return None;
        }
        let due = self.start + self.interval * self.begun;
        self.begun += 1;
        sleep_until(due);
        Some(due)
    }

    /// Waits after an operation as long as the limits require; returns the end of the wait, if there was one.
    #[inline]
    pub fn owe(&mut self, done: &Done) -> Option<Instant> {
        if self.read_ops_per_second == 0.0 && self.write_bytes_per_second == 0.0 {
            return None;
        }
        self.reads += if done.read > 0 || done.wrote == 0 { done.ops } else { 0 };
        self.wrote += done.wrote;
        let due = |n: u64, rate: f64| if rate > 0.0 { n as f64 / rate } else { 0.0 };
        let seconds = due(self.reads, self.read_ops_per_second).max(due(self.wrote, self.write_bytes_per_second));
        let until = self.start + Duration::from_secs_f64(seconds);
        (Instant::now() < until).then(|| sleep_until(until))
    }
}

fn sleep_until(due: Instant) -> Instant {
    let mut now = Instant::now();
    while now < due {
        std::thread::sleep(due - now);
        now = Instant::now();
    }
    now
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod operations;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_typos_explained() {
        let all = Workload::parse_list("fillrandom, compact,readrandom,workloada,ycsb_load,").unwrap();
        let wanted =
            [Workload::FillRandom, Workload::Compact, Workload::ReadRandom, Workload::YcsbA, Workload::YcsbLoad];
        assert_eq!(all, wanted);
        let e = Workload::parse_list("fillrandm").expect_err("a typo").to_string();
        assert!(e.contains("did you mean fillrandom?"), "{e}");
        assert!(Workload::parse_list(" , ").is_err());
        for (name, _) in descriptions() {
            assert_eq!(Workload::parse_list(name).unwrap()[0].name(), name);
        }
    }

    #[test]
    fn a_limit_counts_operations_in_batches() {
        let shared = Shared::default();
        let mut limit = Limit::new(5, Duration::ZERO);
        assert!(limit.take_at(3, &shared, None) && limit.take_at(3, &shared, None), "the last batch is whole");
        assert!(!limit.take_at(3, &shared, None));
        assert!(!Limit::new(0, Duration::ZERO).take_at(1, &shared, None));
    }

    #[test]
    fn a_duration_ends_by_the_clock_and_a_failure_ends_at_once() {
        let shared = Shared::default();
        let start = Instant::now();
        let mut limit = Limit::new(0, Duration::from_millis(20));
        while limit.take_at(1, &shared, None) {}
        assert!(start.elapsed() >= Duration::from_millis(20));
        let mut limit = Limit::new(0, Duration::from_millis(20));
        assert!(limit.take_at(1, &shared, Some(Instant::now())));
        assert!(!limit.take_at(1, &shared, Some(Instant::now() + Duration::from_millis(30))), "at the first look");
        let mut limit = Limit::new(100, Duration::ZERO);
        assert!(limit.take_at(1, &shared, None));
        shared.failed.store(true, Ordering::Relaxed);
        assert!(!limit.take_at(1, &shared, None));
    }

    #[test]
    fn a_target_and_a_limit_hold_a_thread_back() {
        let mut pace = Pace::new(&Flags { target: 200, threads: 2, ..Flags::default() });
        let start = Instant::now();
        let dues: Vec<Instant> = (0..4).map(|_| pace.wait().expect("a target")).collect();
        assert_eq!(dues[3] - dues[0], Duration::from_millis(30), "100 a second for this thread");
        assert!(start.elapsed() >= Duration::from_millis(29));
        let mut pace = Pace::new(&Flags { benchmark_write_rate_limit: 10_000, ..Flags::default() });
        let start = Instant::now();
        assert!(pace.owe(&Done::write(1, 300)).is_some());
        assert!(start.elapsed() >= Duration::from_millis(29));
        assert!(Pace::new(&Flags::default()).wait().is_none());
    }

    #[test]
    fn ycsb_divides_operations_among_threads_and_db_bench_does_not() {
        let f = Flags { num: 10, threads: 3, ..Flags::default() };
        let of = |w: Workload| (0..3).map(|i| w.operations(&f, i)).collect::<Vec<_>>();
        assert_eq!(of(Workload::YcsbA), [4, 3, 3]);
        assert_eq!(of(Workload::FillRandom), [10, 10, 10]);
    }
}
