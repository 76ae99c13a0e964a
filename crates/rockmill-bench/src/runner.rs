//! Runs the benchmarks of a command line, one after the other.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Instant, SystemTime};

use rockmill_io::{FileSystem, PosixFileSystem};

use crate::device;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::measure::ProcessUsage;
use crate::random::Mersenne64;
use crate::record::Recorder;
use crate::report::Outcome;
use crate::rockmill_store::{self, RockmillStore};
use crate::store::Store;
use crate::workload::{Shared, Thread, Workload};

/// Runs what `flags.benchmarks` names and prints each result to `out` as soon as it is there.
///
/// What can be wrong with the command line or the disk is found before any work starts.
pub fn run(flags: &Flags, out: &mut dyn Write) -> Result<Vec<Outcome>> {
    let workloads = Workload::parse_list(&flags.benchmarks)?;
    rockmill_store::options(flags)?;
    let path = PathBuf::from(&flags.db);
    check_space(flags, &workloads, &path)?;
    let mut runner = Runner { flags, path, out, store: None, seed: flags.seed, threads_started: 0 };
    if flags.seed == 0 {
        runner.seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_micros() as u64);
        let seed = runner.seed;
        runner.print(&format!("Set seed to {seed} because --seed was 0\n"))?;
    }
    runner.header()?;
    let mut outcomes = Vec::new();
    for workload in workloads {
        outcomes.extend(runner.run_one(workload)?);
    }
    runner.close()?;
    Ok(outcomes)
}

/// Refuses a fill that cannot fit. Compaction needs more than the data itself; this is the least.
fn check_space(flags: &Flags, workloads: &[Workload], path: &Path) -> Result<()> {
    if !workloads.iter().any(|w| w.wants_fresh_database()) {
        return Ok(());
    }
    let stored_part = if flags.compression_type == "none" { 1.0 } else { flags.compression_ratio.min(1.0) };
    let writes = (flags.writes() as f64 * flags.threads as f64).min(flags.num as f64);
    let needed = writes * (flags.key_size as f64 + flags.value_size as f64 * stored_part);
    // The directory may not be there yet: its nearest ancestor is on the same disk.
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let Ok(free) = PosixFileSystem::default().free_space(there) else { return Ok(()) };
    if needed > free as f64 {
        return Err(Error::Run(format!(
            "{} has {} MB free and the data needs at least {} MB: lower --num or --value_size, or choose another --db",
            there.display(),
            free >> 20,
            (needed / f64::from(1 << 20)) as u64
        )));
    }
    Ok(())
}

struct Runner<'a> {
    flags: &'a Flags,
    path: PathBuf,
    out: &'a mut dyn Write,
    store: Option<Box<dyn Store>>,
    seed: u64,
    /// Each thread of each benchmark has its own random numbers: the seed plus its number among all threads so far.
    threads_started: u64,
}

impl Runner<'_> {
    fn print(&mut self, text: &str) -> Result<()> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|e| Error::io("standard output", &e))
    }

    fn header(&mut self) -> Result<()> {
        let f = self.flags;
        let raw = f.num as f64 * (f.key_size + f.value_size) as f64 / f64::from(1 << 20);
        let text = format!(
            "Rockmill:   version {}\nKeys:       {} bytes each\nValues:     {} bytes each ({} bytes after \
             compression)\nEntries:    {}\nRawSize:    {raw:.1} MB (estimated)\nCompression: {}\nThreads:    {}\n\
             ------------------------------------------------\n",
            env!("CARGO_PKG_VERSION"),
            f.key_size,
            f.value_size,
            (f.value_size as f64 * f.compression_ratio + 0.5) as u64,
            f.num,
            f.compression_type,
            f.threads,
        );
        self.print(&text)
    }

    fn close(&mut self) -> Result<()> {
        match self.store.take() {
            Some(store) => store.close(),
            None => Ok(()),
        }
    }

    fn open(&mut self) -> Result<()> {
        if self.store.is_none() {
            let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
            if let Some(parent) = parent {
                std::fs::create_dir_all(parent)
                    .map_err(|e| Error::io(format_args!("cannot create {}", parent.display()), &e))?;
            }
            self.store = Some(Box::new(RockmillStore::open(self.flags, &self.path)?));
        }
        Ok(())
    }

    fn run_one(&mut self, workload: Workload) -> Result<Option<Outcome>> {
        if workload == Workload::Device {
            return self.run_device().map(Some);
        }
        if workload.wants_fresh_database() {
            if self.flags.use_existing_db {
                self.print(&format!("{:<12} : skipped (--use_existing_db is true)\n", workload.name()))?;
                return Ok(None);
            }
            self.close()?;
            RockmillStore::destroy(self.flags, &self.path)?;
        }
        self.open()?;
        let Some(store) = self.store.as_deref() else {
            return Err(Error::Run("the database is not open".to_owned()));
        };
        let before = (ProcessUsage::now(), store.stall_micros()?);
        let mut stats = None;
        let record = if workload.is_threaded() {
            let first_seed = self.seed.wrapping_add(self.threads_started + 1);
            self.threads_started += workload.thread_count(self.flags.threads) as u64;
            run_threads(workload, self.flags, store, self.seed, first_seed)?
        } else {
            let start = Instant::now();
            match workload {
                Workload::Flush => store.flush()?,
                Workload::Compact => store.compact()?,
                Workload::WaitForCompaction => store.wait_for_compaction()?,
                _ => stats = Some(store.stats()?),
            }
            let mut record = Recorder::new(false);
            record.finished(1);
            (record.elapsed, record.thread_time) = (start.elapsed(), start.elapsed());
            record
        };
        let stalls = store.stall_micros()?;
        let outcome = Outcome {
            workload,
            store: store.name().to_owned(),
            threads: if workload.is_threaded() { self.flags.threads } else { 1 },
            record,
            usage: ProcessUsage::now().since(&before.0),
            stall_micros: (stalls.0.saturating_sub(before.1.0), stalls.1.saturating_sub(before.1.1)),
            stall_reason: store.stall_reason()?,
            stats,
            device: None,
        };
        self.print(&outcome.to_text())?;
        Ok(Some(outcome))
    }

    fn run_device(&mut self) -> Result<Outcome> {
        let before = ProcessUsage::now();
        let limits = device::probe(&self.path.with_extension("device"), self.flags.device_bytes, self.seed)?;
        // Made by the probe; stays if somebody put something there.
        let _ = std::fs::remove_dir(self.path.with_extension("device"));
        let outcome = Outcome {
            workload: Workload::Device,
            store: "device".to_owned(),
            threads: 1,
            record: Recorder::new(false),
            usage: ProcessUsage::now().since(&before),
            stall_micros: (0, 0),
            stall_reason: "none".to_owned(),
            stats: None,
            device: Some(limits),
        };
        self.print(&outcome.to_text())?;
        Ok(outcome)
    }
}

/// Runs the threads of a benchmark, started together, and adds up what they did.
fn run_threads(workload: Workload, flags: &Flags, store: &dyn Store, seed: u64, first_seed: u64) -> Result<Recorder> {
    let count = workload.thread_count(flags.threads);
    // Held until every thread is there, or could not be started: a barrier would wait for that one for ever.
    let (gate, shared) = (RwLock::new(()), Shared::default());
    let run = |index: usize| -> Result<Recorder> {
        let session = store.session();
        let random = Mersenne64::new(first_seed.wrapping_add(index as u64));
        drop(gate.read());
        let record = Recorder::new(flags.histogram);
        let start = Instant::now();
        let mut thread = Thread { flags, session: session?, shared: &shared, index, seed, random, record };
        let done = workload.run(&mut thread);
        if done.is_err() {
            shared.failed.store(true, Ordering::Relaxed);
        }
        let mut record = thread.record;
        (record.elapsed, record.thread_time) = (start.elapsed(), start.elapsed());
        done.map(|()| record)
    };
    let results: Vec<Result<Recorder>> = thread::scope(|scope| {
        let run = &run;
        let spawn =
            |index| thread::Builder::new().name(format!("bench-{index}")).spawn_scoped(scope, move || run(index));
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let handles: Vec<_> = (0..count).map(spawn).collect();
        shared.failed.store(handles.iter().any(std::io::Result::is_err), Ordering::Relaxed);
        drop(closed);
        let join = |handle: std::io::Result<thread::ScopedJoinHandle<'_, Result<Recorder>>>| match handle {
            Ok(h) => h.join().unwrap_or_else(|_| Err(Error::Run("a benchmark thread panicked".to_owned()))),
            Err(e) => Err(Error::io("cannot start a thread", &e)),
        };
        handles.into_iter().map(join).collect()
    });
    let mut total: Option<Recorder> = None;
    for (index, result) in results.into_iter().enumerate() {
        let record = result?;
        // The writer of readwhilewriting is load, not figure.
        if index >= flags.threads {
            continue;
        }
        match &mut total {
            Some(total) => total.merge(&record),
            None => total = Some(record),
        }
    }
    total.ok_or_else(|| Error::Run("no thread ran".to_owned()))
}
