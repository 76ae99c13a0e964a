//! The benchmarks: what each name does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::flags::{Flags, distance};
use crate::generate::{KeyGenerator, ValueGenerator, write_key};
use crate::random::Mersenne64;
use crate::record::Recorder;
use crate::store::Session;

/// Operations between two looks at the clock when `--duration` limits a benchmark.
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
    ReadSeq "readseq" "scan forwards from the first key"
    ReadReverse "readreverse" "scan backwards from the last key"
    SeekRandom "seekrandom" "open an iterator, seek to a random key, take seek_nexts steps"
    ReadWhileWriting "readwhilewriting" "readrandom while one more thread overwrites"
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
    /// The benchmarks of a list separated by commas.
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
        if let Some(w) = known().find(|w| w.name() == name) {
            return Ok(w);
        }
        let near = known().min_by_key(|w| distance(name, w.name()));
        let hint = near.filter(|w| distance(name, w.name()) <= 4);
        let hint = hint.map(|w| format!("; did you mean {}?", w.name())).unwrap_or_default();
        Err(Error::Usage(format!("there is no benchmark {name:?}{hint}")))
    }

    /// True when the database is destroyed and made anew first.
    pub fn wants_fresh_database(self) -> bool {
        matches!(self, Self::FillSeq | Self::FillRandom | Self::FillUniqueRandom)
    }

    /// True for those that `--threads` threads run, with operations that are counted.
    pub fn is_threaded(self) -> bool {
        !matches!(self, Self::Flush | Self::Compact | Self::WaitForCompaction | Self::Stats | Self::Device)
    }

    /// Threads that run it when `--threads` says `threads`.
    pub fn thread_count(self, threads: usize) -> usize {
        if self == Self::ReadWhileWriting { threads + 1 } else { threads }
    }

    /// What the histogram's values are of.
    pub fn operation(self) -> &'static str {
        match self {
            Self::FillSeq | Self::FillRandom | Self::FillUniqueRandom | Self::Overwrite => "write",
            Self::SeekRandom => "seek",
            _ => "read",
        }
    }

    /// Runs one thread's part of a threaded benchmark. The thread with the last index of `readwhilewriting` writes.
    pub(crate) fn run(self, t: &mut Thread<'_>) -> Result<()> {
        let num = t.flags.num as u64;
        match self {
            Self::FillSeq => t.write(KeyGenerator::Sequential(0), Duration::ZERO),
            Self::FillUniqueRandom => t.write(KeyGenerator::unique_random(num, t.seed), Duration::ZERO),
            Self::FillRandom | Self::Overwrite => t.write(KeyGenerator::Random, Duration::from_secs(t.flags.duration)),
            Self::ReadRandom => t.read_random(),
            Self::ReadSeq => t.read_in_order(false),
            Self::ReadReverse => t.read_in_order(true),
            Self::SeekRandom => t.seek_random(),
            Self::ReadWhileWriting if t.index == t.flags.threads => t.write_until_others_end(),
            Self::ReadWhileWriting => {
                let done = t.read_random();
                t.shared.readers_done.fetch_add(1, Ordering::Release);
                done
            }
            _ => Err(Error::Run(format!("{} is not run by threads", self.name()))),
        }
    }
}

/// What the threads of a benchmark share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// A thread failed: the others stop.
    pub failed: AtomicBool,
    /// Readers of `readwhilewriting` that ended.
    pub readers_done: AtomicUsize,
}

/// One thread of a benchmark.
pub(crate) struct Thread<'a> {
    pub flags: &'a Flags,
    pub session: Box<dyn Session + 'a>,
    pub shared: &'a Shared,
    pub index: usize,
    /// Of this run, the same for all threads.
    pub seed: u64,
    pub random: Mersenne64,
    pub record: Recorder,
}

/// When a benchmark ends: after so many operations or, when a duration is given, after that time alone.
struct Limit {
    ops_left: u64,
    until: Option<Instant>,
    ops_to_clock: u64,
}

impl Limit {
    fn new(ops: u64, duration: Duration) -> Self {
        let until = (!duration.is_zero()).then(|| Instant::now() + duration);
        Self { ops_left: ops, until, ops_to_clock: OPS_BETWEEN_CLOCK_READS }
    }

    /// True while `ops` more may be done.
    #[inline]
    fn take(&mut self, ops: u64, shared: &Shared) -> bool {
        let Some(until) = self.until else {
            let more = self.ops_left > 0;
            self.ops_left = self.ops_left.saturating_sub(ops);
            return more && !shared.failed.load(Ordering::Relaxed);
        };
        if self.ops_to_clock > ops {
            self.ops_to_clock -= ops;
            return true;
        }
        self.ops_to_clock = OPS_BETWEEN_CLOCK_READS;
        Instant::now() < until && !shared.failed.load(Ordering::Relaxed)
    }
}

impl Thread<'_> {
    fn write(&mut self, mut keys: KeyGenerator, duration: Duration) -> Result<()> {
        let f = self.flags;
        let mut values = ValueGenerator::new(f.compression_ratio, f.value_size);
        let mut key = vec![0; f.key_size];
        let (num, batch) = (f.num as u64, f.batch_size as u64);
        let mut limit = Limit::new(f.writes(), duration);
        while limit.take(batch, self.shared) {
            if !matches!(keys, KeyGenerator::Sequential(_)) {
                // db_bench draws a number here, to choose one of several databases.
                self.random.next_u64();
            }
            let mut entries = 0;
            while entries < batch {
                let Some(n) = keys.next_key(&mut self.random, num) else { break };
                write_key(n, &mut key);
                self.session.put(&key, values.next_value(f.value_size));
                entries += 1;
            }
            if entries == 0 {
                break;
            }
            self.session.commit()?;
            self.record.bytes += entries * (f.key_size + f.value_size) as u64;
            self.record.finished(entries);
        }
        Ok(())
    }

    fn read_random(&mut self) -> Result<()> {
        let f = self.flags;
        let mut key = vec![0; f.key_size];
        let num = f.num as u64;
        let mut found = 0;
        let mut limit = Limit::new(f.reads(), Duration::from_secs(f.duration));
        while limit.take(1, self.shared) {
            // As in `write`: db_bench's choice of a database.
            self.random.next_u64();
            write_key(self.random.next_u64() % num, &mut key);
            if let Some(value_len) = self.session.get(&key)? {
                found += 1;
                self.record.bytes += (f.key_size + value_len) as u64;
            }
            self.record.finished(1);
        }
        self.record.found = Some(found);
        Ok(())
    }

    fn read_in_order(&mut self, reverse: bool) -> Result<()> {
        let reads = self.flags.reads();
        let Self { record, session, shared, .. } = self;
        session.scan(reverse, &mut |bytes| {
            record.bytes += bytes;
            record.finished(1);
            record.ops < reads && !shared.failed.load(Ordering::Relaxed)
        })
    }

    fn seek_random(&mut self) -> Result<()> {
        let f = self.flags;
        let mut key = vec![0; f.key_size];
        let mut found = 0;
        let mut limit = Limit::new(f.reads(), Duration::from_secs(f.duration));
        while limit.take(1, self.shared) {
            write_key(self.random.next_u64() % f.num as u64, &mut key);
            let (hit, bytes) = self.session.seek(&key, f.seek_nexts)?;
            found += u64::from(hit);
            self.record.bytes += bytes;
            self.record.finished(1);
        }
        self.record.found = Some(found);
        Ok(())
    }

    /// Overwrites random keys until every reader ended. Its operations are not part of the figure.
    fn write_until_others_end(&mut self) -> Result<()> {
        let f = self.flags;
        let mut values = ValueGenerator::new(f.compression_ratio, f.value_size);
        let mut key = vec![0; f.key_size];
        let (start, mut bytes) = (Instant::now(), 0u64);
        let others_run =
            |s: &Shared| s.readers_done.load(Ordering::Acquire) < f.threads && !s.failed.load(Ordering::Relaxed);
        while others_run(self.shared) {
            write_key(self.random.next_u64() % f.num as u64, &mut key);
            self.session.put(&key, values.next_value(f.value_size));
            self.session.commit()?;
            bytes += (f.key_size + f.value_size) as u64;
            if f.benchmark_write_rate_limit > 0 {
                let due = Duration::from_secs_f64(bytes as f64 / f.benchmark_write_rate_limit as f64);
                while others_run(self.shared) && start.elapsed() < due {
                    std::thread::sleep((due - start.elapsed().min(due)).min(Duration::from_millis(5)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_typos_explained() {
        let all = Workload::parse_list("fillrandom, compact,readrandom,").unwrap();
        assert_eq!(all, [Workload::FillRandom, Workload::Compact, Workload::ReadRandom]);
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
        assert!(limit.take(3, &shared) && limit.take(3, &shared), "db_bench writes the last batch whole");
        assert!(!limit.take(3, &shared));
        assert!(!Limit::new(0, Duration::ZERO).take(1, &shared));
    }

    #[test]
    fn a_duration_ends_by_the_clock_and_a_failure_ends_at_once() {
        let shared = Shared::default();
        let mut limit = Limit::new(0, Duration::from_millis(20));
        let start = Instant::now();
        while limit.take(1, &shared) {}
        assert!(start.elapsed() >= Duration::from_millis(20));
        let mut limit = Limit::new(100, Duration::ZERO);
        assert!(limit.take(1, &shared));
        shared.failed.store(true, Ordering::Relaxed);
        assert!(!limit.take(1, &shared));
    }
}
