//! Runs the benchmarks of a command line: all sides in turn, repetition by repetition, each time beginning with a
//! different side.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rockmill_io::{FileSystem, PosixFileSystem};

use crate::device::{self, DeviceLimits};
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::generate::ValueGenerator;
use crate::kernel::{self, SyscallCounters};
use crate::machine::Machine;
use crate::measure::{self, ProcessUsage, Snapshot};
use crate::outcome::{self, EngineReport, Outcome, Report, SideReport, SpaceUse, StallTotals};
use crate::peers::{self, Side};
use crate::place::{self, Caches};
use crate::random::Mersenne64;
use crate::record::{Done, Progress, Recorder};
use crate::settings;
use crate::store::{OpKind, Store};
use crate::timeline::{Live, Timeline};
use crate::usage::Places;
use crate::workload::{Pace, Shared, Thread, Workload};

/// Runs the benchmarks in `flags.benchmarks` on every side and prints each result to `out` immediately.
///
/// Problems with the command line, the libraries or the disk are found before any work starts.
pub fn run(flags: &Flags, out: &mut dyn Write) -> Result<Report> {
    let workloads = Workload::parse_list(&flags.benchmarks)?;
    // Before any thread is started, so that all are counted.
    let counters = SyscallCounters::start();
    let sides = peers::sides(flags)?;
    check(flags, &workloads, &sides)?;
    let mut flags = flags.clone();
    let mut sides = sides;
    if flags.seed == 0 {
        flags.seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_micros() as u64);
        sides.iter_mut().filter(|s| s.flags.seed == 0).for_each(|s| s.flags.seed = flags.seed);
        print(out, &format!("Set seed to {} because --seed was 0\n", flags.seed))?;
    }
    let mut report = Report {
        machine: Machine::here(Path::new(&flags.db)),
        sides: sides.iter().map(SideReport::of).collect(),
        outcomes: vec![],
        spaces: vec![],
        devices: vec![],
        caches: None,
        calls_not_by_tracepoints: counters.as_ref().err().cloned(),
        flags,
    };
    let flags = report.flags.clone();
    print(out, &report.header())?;
    let counters = counters.ok();
    if sides.len() > 1 && !flags.use_existing_db {
        place::make(Path::new(&flags.db))?;
    }
    for repetition in 0..flags.repeat {
        if flags.measures_device() {
            let limits = probe_device(&flags)?;
            print(out, &limits.to_text())?;
            report.devices.push(limits);
        }
        for turn in 0..sides.len() {
            // A different side begins each time, so that no side always has the same position.
            let index = (turn + repetition) % sides.len();
            let side = &sides[index];
            if sides.len() > 1 || flags.repeat > 1 {
                print(out, &format!("--- {} ({} of {})\n", side.label, repetition + 1, flags.repeat))?;
                let dirs: Vec<PathBuf> = sides.iter().map(|side| side.dir.clone()).collect();
                let caches = Caches::drop_now(&dirs);
                if report.caches.as_ref() != Some(&caches) {
                    print(out, &format!("Page cache: {}\n", caches.to_text()))?;
                    report.caches = Some(caches);
                }
            }
            kernel::give_memory_back();
            let mut run = SideRun {
                side,
                index,
                repetition,
                out,
                counters: counters.as_ref(),
                store: None,
                threads: 0,
                rss_without_store: ProcessUsage::now().rss_bytes,
                engine: side.engine().map(EngineReport::asked),
            };
            for (position, workload) in workloads.iter().enumerate() {
                if let Some(mut outcome) = run.one(*workload)? {
                    outcome.position = position;
                    run.print(&outcome.to_text())?;
                    report.outcomes.push(outcome);
                }
            }
            report.spaces.extend(run.space()?);
            run.close()?;
            let engine = run.engine.take();
            let known = &mut report.sides[index];
            (known.version, known.settings) = (side.version(), side.settings());
            known.add_engine(engine);
        }
    }
    print(out, &report.settings_text())?;
    if sides.len() > 1 || flags.repeat > 1 {
        print(out, &report.table())?;
    }
    Ok(report)
}

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Error::io("standard output", &e))
}

/// Refuses what cannot end well.
fn check(flags: &Flags, workloads: &[Workload], sides: &[Side]) -> Result<()> {
    for side in sides {
        if workloads.contains(&Workload::MergeRandom) && side.flags.merge_operator.is_empty() {
            return Err(Error::Usage("mergerandom wants --merge_operator (uint64add, stringappend or max)".to_owned()));
        }
        side.check_for(workloads)?;
    }
    check_places(flags, sides)?;
    check_space(flags, workloads, sides)
}

/// Refuses to empty or replace directories and files that no benchmark created.
fn check_places(flags: &Flags, sides: &[Side]) -> Result<()> {
    check_outputs(flags)?;
    if sides.len() > 1 && !flags.use_existing_db {
        place::check_above(Path::new(&flags.db))?;
    }
    sides.iter().try_for_each(Side::check_place)?;
    for (i, side) in sides.iter().enumerate() {
        if let Some(dir) = side.wal_dir().filter(|dir| sides[..i].iter().any(|s| s.wal_dir().as_ref() == Some(dir))) {
            return Err(Error::Usage(format!(
                "wal_dir={}: two sides would mix their WALs there; give it to one with --peer NAME,options_string=...",
                dir.display()
            )));
        }
    }
    Ok(())
}

/// Refuses to write results over something else.
pub(crate) fn check_outputs(flags: &Flags) -> Result<()> {
    let files = [&flags.json, &flags.report].into_iter().filter(|file| !file.is_empty());
    files.into_iter().try_for_each(|file| place::check_output(Path::new(file), place::is_result).map_err(Error::Usage))
}

/// Refuses fills that cannot fit. Compaction needs more than the data itself; this is the least.
fn check_space(flags: &Flags, workloads: &[Workload], sides: &[Side]) -> Result<()> {
    let needed: f64 = sides.iter().map(|side| least_bytes(&side.flags, workloads)).sum();
    if needed == 0.0 {
        return Ok(());
    }
    // The directory may not exist yet: its nearest existing ancestor is on the same disk.
    let path = Path::new(&flags.db);
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let Ok(free) = PosixFileSystem::default().free_space(there) else { return Ok(()) };
    if needed > free as f64 {
        return Err(Error::Run(format!(
            "{} has {} MB free and the data needs at least {} MB{}: lower --num or --value_size, or choose another --db",
            if there.as_os_str().is_empty() { ".".into() } else { there.display().to_string() },
            free >> 20,
            (needed / f64::from(1 << 20)) as u64,
            if sides.len() > 1 { format!(" for {} stores", sides.len()) } else { String::new() },
        )));
    }
    Ok(())
}

fn least_bytes(f: &Flags, workloads: &[Workload]) -> f64 {
    let stored_part = if f.compression_type == "none" { 1.0 } else { f.compression_ratio.min(1.0) };
    let mut most = 0f64;
    for workload in workloads.iter().filter(|w| w.wants_fresh_database()) {
        let bytes = if workload.is_ycsb() {
            f.records() as f64 * (24.0 + (f.fieldcount * f.fieldlength) as f64 * stored_part)
        } else {
            let writes = (f.writes() as f64 * f.threads as f64).min(f.num as f64);
            writes * (f.key_size as f64 + f.value_size as f64 * stored_part)
        };
        most = most.max(bytes);
    }
    most
}

fn probe_device(flags: &Flags) -> Result<DeviceLimits> {
    let dir = Path::new(&flags.db).with_extension("device");
    let limits = device::probe(&dir, flags.device_bytes, flags.seed);
    // Created by the probe; stays if it is not empty.
    let _ = std::fs::remove_dir(&dir);
    limits
}

/// One side's run of all benchmarks.
struct SideRun<'a> {
    side: &'a Side,
    index: usize,
    repetition: usize,
    out: &'a mut dyn Write,
    counters: Option<&'a SyscallCounters>,
    store: Option<Box<dyn Store>>,
    /// Each thread of each benchmark has its own random numbers: the seed plus its number among all threads so far.
    threads: u64,
    rss_without_store: u64,
    /// The work of the store's engines, over all opens.
    engine: Option<EngineReport>,
}

impl SideRun<'_> {
    fn print(&mut self, text: &str) -> Result<()> {
        print(self.out, text)
    }

    fn close(&mut self) -> Result<()> {
        let Some(store) = self.store.take() else { return Ok(()) };
        if let (Some(engine), Some(parts)) = (&mut self.engine, store.engine_parts()) {
            engine.add(parts, store.engine_text());
        }
        store.close()
    }

    fn snapshot(&self) -> Snapshot {
        let of_store = self.store.as_ref().and_then(|s| s.counted_calls());
        Snapshot::now(&self.side.dir, self.counters, of_store)
    }

    fn one(&mut self, workload: Workload) -> Result<Option<Outcome>> {
        let flags = &self.side.flags;
        if workload == Workload::Device {
            let mut outcome = self.outcome(workload);
            outcome.device = Some(probe_device(flags)?);
            return Ok(Some(outcome));
        }
        if workload.wants_fresh_database() {
            if flags.use_existing_db {
                self.print(&format!("{:<12} : skipped (--use_existing_db is true)\n", workload.name()))?;
                return Ok(None);
            }
            self.close()?;
            self.side.destroy()?;
            // Pending writes and discards of the previous run are not part of this one.
            kernel::sync_disks();
        }
        let mut opened = None;
        if self.store.is_none() {
            let start = Instant::now();
            self.store = Some(self.side.open(self.counters.is_none())?);
            opened = Some(start.elapsed());
        }
        let Some(store) = self.store.as_deref() else {
            return Err(Error::Run("the database is not open".to_owned()));
        };
        let mut outcome = self.outcome(workload);
        outcome.opened = opened;
        let stalls_before = store.stalls()?;
        let parts_before = store.engine_parts();
        outcome.peak_is_of_phase = measure::reset_peak_memory();
        let before = self.snapshot();
        if workload == Workload::Stats {
            outcome.stats = Some(store.stats()?);
        } else if workload.is_threaded() {
            let first_seed = flags.seed.wrapping_add(self.threads + 1);
            let ran = run_threads(workload, flags, store, first_seed, &self.title(workload))?;
            (outcome.record, outcome.background, outcome.timeline) = ran;
        } else {
            (outcome.record, outcome.timeline) = run_job(workload, flags, store, &self.title(workload))?;
        }
        outcome.cost = self.snapshot().since(&before);
        outcome.rss_without_store_bytes = self.rss_without_store;
        outcome.parts = parts_before.zip(store.engine_parts()).map(|(before, now)| outcome::parts_since(now, before));
        outcome.stalls = StallTotals::between(&stalls_before, &store.stalls()?, &outcome.timeline);
        if workload.is_threaded() {
            self.threads += workload.thread_count(flags.threads) as u64;
        }
        Ok(Some(outcome))
    }

    fn title(&self, workload: Workload) -> String {
        let repeat = self.side.flags.repeat;
        let of = if repeat > 1 { format!(" {}/{repeat}", self.repetition + 1) } else { String::new() };
        format!("{} {}{of}", self.side.label, workload.name())
    }

    fn outcome(&self, workload: Workload) -> Outcome {
        let threads = if workload.is_threaded() { self.side.flags.threads } else { 1 };
        Outcome::new(workload, self.index, self.repetition, threads)
    }

    /// Scans the database, to compare the users' data with its disk usage.
    fn space(&mut self) -> Result<Option<SpaceUse>> {
        if !self.side.flags.measures_space() {
            return Ok(None);
        }
        let Some(store) = self.store.as_deref() else { return Ok(None) };
        let (mut entries, mut bytes) = (0, 0);
        let (file_bytes, disk_bytes) = measure::space_of(&self.side.dir);
        let levels = store.levels()?;
        store.session()?.scan(false, &mut |n| {
            (entries, bytes) = (entries + 1, bytes + n);
            Ok(true)
        })?;
        Ok(Some(SpaceUse {
            side: self.index,
            repetition: self.repetition,
            entries,
            bytes,
            file_bytes,
            disk_bytes,
            levels,
        }))
    }
}

fn live<'a>(workload: Workload, f: &Flags, store: &'a dyn Store, title: &str) -> Live<'a> {
    let ops = |w: Workload| (0..f.threads).map(|i| w.operations(f, i)).sum();
    Live {
        title: title.to_owned(),
        total_ops: if workload.is_threaded() { ops(workload) } else { 0 },
        seconds: if workload.is_threaded() { f.duration } else { 0 },
        store,
        places: Places::new(f),
        sample_every: Duration::from_millis(f.sample_ms),
        show: Live::is_shown(f.quiet),
    }
}

/// Runs a benchmark that is one call to the store.
fn run_job(workload: Workload, f: &Flags, store: &dyn Store, title: &str) -> Result<(Recorder, Timeline)> {
    let (begun, stop) = (AtomicBool::new(true), AtomicBool::new(false));
    let live = live(workload, f, store, title);
    thread::scope(|scope| {
        let watcher = thread::Builder::new().name("bench-watch".into());
        let watcher = watcher.spawn_scoped(scope, || live.watch(&[], 0, &begun, &stop));
        let start = Instant::now();
        let mut record = Recorder::new(f.timed());
        let done = match workload {
            Workload::Flush => store.flush(),
            Workload::Compact => store.compact(),
            _ => store.wait_for_compaction(),
        };
        record.finished(Done { kind: OpKind::Job, ops: 1, wrote: 0, read: 0 });
        (record.elapsed, record.thread_time) = (start.elapsed(), start.elapsed());
        let timeline = end_watch(watcher, &stop)?;
        done.map(|()| (record, timeline))
    })
}

fn end_watch(watcher: std::io::Result<thread::ScopedJoinHandle<'_, Timeline>>, stop: &AtomicBool) -> Result<Timeline> {
    stop.store(true, Ordering::Release);
    let watcher = watcher.map_err(|e| Error::io("cannot start a thread", &e))?;
    watcher.thread().unpark();
    watcher.join().map_err(|_| Error::Run("the sampling thread panicked".to_owned()))
}

/// Runs the threads of a benchmark, started together, and sums up their work, separately for counted and background
/// threads.
pub(crate) fn run_threads(
    workload: Workload,
    flags: &Flags,
    store: &dyn Store,
    first_seed: u64,
    title: &str,
) -> Result<(Recorder, Recorder, Timeline)> {
    let count = workload.thread_count(flags.threads);
    // Held until every thread has started or failed to start: a barrier would wait for ever for a missing thread.
    let (gate, shared) = (RwLock::new(()), Shared::default());
    let progress: Vec<Progress> = (0..count).map(|_| Progress::default()).collect();
    let stop = AtomicBool::new(false);
    let live = live(workload, flags, store, title);
    let run = |index: usize| -> Result<Recorder> {
        let session = store.session();
        let random = Mersenne64::new(first_seed.wrapping_add(index as u64));
        let values = ValueGenerator::new(flags.compression_ratio, flags.value_size.max(flags.fieldlength).max(1 << 20));
        drop(gate.read());
        let record = Recorder::new(flags.timed());
        let done = session.and_then(|session| {
            let mut thread = Thread {
                flags,
                session,
                shared: &shared,
                progress: &progress[index],
                index,
                seed: flags.seed,
                random,
                values,
                key: vec![0; flags.key_size],
                record,
                pace: Pace::new(flags),
                started: Instant::now(),
            };
            workload.run(&mut thread)?;
            let time = thread.started.elapsed();
            (thread.record.elapsed, thread.record.thread_time) = (time, time);
            Ok(thread.record)
        });
        if done.is_err() {
            shared.failed.store(true, Ordering::Relaxed);
        }
        if index < flags.threads {
            shared.done.fetch_add(1, Ordering::Release);
        }
        done
    };
    let (results, timeline) = thread::scope(|scope| {
        let run = &run;
        let spawn =
            |index| thread::Builder::new().name(format!("bench-{index}")).spawn_scoped(scope, move || run(index));
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let handles: Vec<_> = (0..count).map(spawn).collect();
        shared.failed.store(handles.iter().any(std::io::Result::is_err), Ordering::Relaxed);
        let watcher = thread::Builder::new().name("bench-watch".into());
        let watcher = watcher.spawn_scoped(scope, || live.watch(&progress, flags.threads, &shared.measuring, &stop));
        drop(closed);
        let join = |handle: std::io::Result<thread::ScopedJoinHandle<'_, Result<Recorder>>>| match handle {
            Ok(h) => h.join().unwrap_or_else(|_| Err(Error::Run("a benchmark thread panicked".to_owned()))),
            Err(e) => Err(Error::io("cannot start a thread", &e)),
        };
        let results: Vec<Result<Recorder>> = handles.into_iter().map(join).collect();
        (results, end_watch(watcher, &stop))
    });
    let (mut counted, mut background) = (None::<Recorder>, Recorder::new(flags.timed()));
    for (index, result) in results.into_iter().enumerate() {
        let record = result?;
        match &mut counted {
            _ if index >= flags.threads => background.merge(&record),
            Some(total) => total.merge(&record),
            None => counted = Some(record),
        }
    }
    let counted = counted.ok_or_else(|| Error::Run("no thread ran".to_owned()))?;
    Ok((counted, background, timeline?))
}

impl SideReport {
    pub(crate) fn of(side: &Side) -> Self {
        let engine = side.engine().map(EngineReport::asked);
        Self { label: side.label.clone(), version: String::new(), notes: side.notes.clone(), settings: vec![], engine }
    }
}

impl Report {
    /// Compares the settings of the sides: differences, and each side's notes.
    fn settings_text(&self) -> String {
        let warnings: String = self.sides.iter().filter_map(SideReport::engine_warning).map(|w| w + "\n").collect();
        if self.sides.len() < 2 {
            return warnings;
        }
        let mut text = String::from("------------------------------------------------\n");
        for side in &self.sides {
            text += &format!("{} {}", side.label, side.version);
            for note in &side.all_notes() {
                text += &format!("; {note}");
            }
            text += "\n";
        }
        text + &warnings + &settings::differences_text(&self.sides)
    }
}
