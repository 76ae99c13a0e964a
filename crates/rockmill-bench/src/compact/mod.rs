//! `rockmill bench compact`: one job that merges several overlapping L0 tables into L1, alternately with Rockmill's
//! engines and with RocksDB.
//!
//! 1. `flags` makes cases of the lists on the command line.
//! 2. For each case, `input` writes one database, with RocksDB if available, so that every side reads files that its
//!    peer made. Each side and repetition gets links to the tables, and thus reads the same blocks of the disk.
//! 3. Before a job, outputs of the previous one are removed, everything is synced, and the tables are dropped from the
//!    page cache. The database is open, with its indexes in memory, and has merged as many small tables of another
//!    column family. Only `compact_range` is timed.
//! 4. `job_log` verifies with the store's own LOG that it was one job with every input. In the first repetition,
//!    `input` scans each side's result.
//! 5. After the sides of a repetition the device's limit for the same bytes is measured (`device::mixed`).
//! 6. `report` compares the sides, repetition by repetition.

mod flags;
mod input;
mod job_log;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rockmill::{KernelDriver, probe_kernel_engine};
use rockmill_io::{FileSystem, PosixFileSystem};
use rockmill_kernel::{Driver, Instance, Program};

use crate::device;
use crate::error::{Error, Result};
use crate::kernel::{self, SyscallCounters};
use crate::machine::Machine;
use crate::measure::Snapshot;
use crate::outcome::{SideReport, parts_since};
use crate::peers::{self, Side};
pub(crate) use flags::help;
use flags::spec_of;
pub use flags::{Case, CompactCommand, CompactFlags};
pub(crate) use input::{Input, Workspace};
pub use job_log::JobLog;
pub(crate) use report::spread_text;
pub use report::{CaseReport, CompactReport, JobPair, JobRun};

/// Runs every case and prints each result to `out` immediately.
///
/// Problems with the command line, the libraries, the engines or the disk are found before any work starts.
pub fn run(flags: &CompactFlags, out: &mut dyn Write) -> Result<CompactReport> {
    // Before any thread is started, so that all are counted.
    let counters = SyscallCounters::start();
    let cases = flags.cases();
    let first = check(flags, &cases)?;
    let db = Path::new(&flags.base.db);
    let mut report = CompactReport {
        machine: Machine::here(db),
        flags: flags.clone(),
        sides: first.iter().map(SideReport::of).collect(),
        cases: vec![],
        calls_not_by_tracepoints: counters.as_ref().err().cloned(),
    };
    for (name, side) in flags.engines.iter().zip(&mut report.sides) {
        side.notes.extend(kernel_driver(name).and_then(verifier_cost));
    }
    let counters = counters.ok();
    let _workspace = Workspace::create(db)?;
    print(out, &report.header())?;
    for case in cases {
        let mut runner = Runner { flags, counters: counters.as_ref(), db, out };
        let done = runner.case(case, &mut report.sides)?;
        report.cases.push(done);
    }
    print(out, &report.table())?;
    Ok(report)
}

/// The driver of a side that merges in the kernel.
fn kernel_driver(name: &str) -> Option<KernelDriver> {
    let (engine, _, options) = spec_of(name);
    let is_it = |d: &KernelDriver| options == format!("kernel_driver={d}");
    (engine == "kernel").then(|| KernelDriver::ALL.into_iter().find(is_it).unwrap_or_default())
}

/// The time that the kernel's verifier needs for the merge program.
fn verifier_cost(driver: KernelDriver) -> Option<String> {
    let driver = Driver::from(driver);
    let program = Arc::new(Program::read(driver.object(), driver.entry()).ok()?);
    // The first one after other work is not representative.
    let _first = Instance::new(&program, driver, VERIFIED_WITH_BYTES).ok()?;
    let start = Instant::now();
    let instance = Instance::new(&program, driver, VERIFIED_WITH_BYTES).ok()?;
    let (took, steps) = (start.elapsed().as_millis(), instance.verified_instructions()?);
    Some(format!("the verifier goes over {steps} steps of its program in {took} ms, whatever the number of inputs"))
}

/// Memory of the instance for this measurement: small, so that little of the time is for memory.
const VERIFIED_WITH_BYTES: usize = 1 << 20;

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Error::io("standard output", &e))
}

/// Refuses runs that cannot succeed. Returns the sides of the first case.
fn check(flags: &CompactFlags, cases: &[Case]) -> Result<Vec<Side>> {
    if flags.engines.iter().any(|e| e == "uring") {
        let probe = PosixFileSystem::default().batch_probe();
        if !probe.available {
            return Err(Error::Run(format!("--engines: uring: {}; omit it to measure the others", probe.reason)));
        }
    }
    for name in &flags.engines {
        if let Some(driver) = kernel_driver(name)
            && let Err(e) = probe_kernel_engine(driver)
        {
            return Err(Error::Run(format!("--engines: {name}: {e}; omit it to measure the others")));
        }
    }
    crate::runner::check_outputs(&flags.base)?;
    let db = Path::new(&flags.base.db);
    Workspace::check(db)?;
    let mut first = None;
    for case in cases {
        let sides = sides(flags, case, db)?;
        if let Some(other) = sides.iter().find(|s| !s.has_rocksdb_files()) {
            return Err(Error::Usage(format!("--peer {}: it does not read RocksDB's files", other.label)));
        }
        first.get_or_insert(sides);
    }
    // Inputs, one side's outputs, and the same again while the device is measured.
    let needed = flags.mb * 3 + 64;
    let there = db.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    if let Ok(free) = PosixFileSystem::default().free_space(there)
        && free >> 20 < needed
    {
        return Err(Error::Run(format!(
            "{} has {} MB free and inputs of {} MB need {needed} MB: lower --mb, or choose another --db",
            there.display(),
            free >> 20,
            flags.mb
        )));
    }
    first.ok_or_else(|| Error::Usage("there is no case to run".to_owned()))
}

fn sides(flags: &CompactFlags, case: &Case, db: &Path) -> Result<Vec<Side>> {
    let mut sides = peers::sides(&flags.of_case(case))?;
    for side in &mut sides {
        side.dir = db.join(&side.label); // also when it is the only one
    }
    Ok(sides)
}

struct Runner<'a> {
    flags: &'a CompactFlags,
    counters: Option<&'a SyscallCounters>,
    db: &'a Path,
    out: &'a mut dyn Write,
}

impl Runner<'_> {
    fn case(&mut self, case: Case, known: &mut [SideReport]) -> Result<CaseReport> {
        let sides = sides(self.flags, &case, self.db)?;
        let dir = self.db.join("input");
        let input = Input::write(&self.flags.of_writer(&case, &dir.to_string_lossy()), &case, &dir)?;
        let mut done = CaseReport {
            case,
            written_by: input.written_by.clone(),
            input_bytes: input.bytes,
            entries: input.entries,
            runs: vec![],
            limits: vec![],
        };
        print(self.out, &done.header())?;
        for repetition in 0..self.flags.base.repeat {
            for turn in 0..sides.len() {
                // A different side begins each time, so that no side always has the same position.
                let index = (turn + repetition) % sides.len();
                let run = self.job(&sides[index], index, repetition, &input, &done.case)?;
                let side = &mut known[index];
                if let (Some(engine), Some(parts)) = (&mut side.engine, run.parts) {
                    engine.add(parts, run.engine.clone());
                }
                if side.version.is_empty() {
                    (side.version, side.settings) = (sides[index].version(), sides[index].settings());
                }
                remove(&sides[index].dir)?;
                print(self.out, &done.line(&known[index].label, &run))?;
                done.runs.push(run);
            }
            let output_bytes = done.runs.last().map_or(0, |run| run.job.output_bytes);
            self.settle();
            let limit = device::mixed(&input.tables, &device::probe_path(self.db), output_bytes)?;
            print(self.out, &done.limit_line(&limit))?;
            done.limits.push(limit);
        }
        remove(&dir)?;
        Ok(done)
    }

    /// Waits until the disk has finished earlier work.
    fn settle(&self) {
        kernel::sync_disks();
        thread::sleep(Duration::from_millis(self.flags.pause_ms));
    }

    fn job(&self, side: &Side, index: usize, repetition: usize, input: &Input, case: &Case) -> Result<JobRun> {
        input.copy_to(&side.dir)?;
        kernel::give_memory_back();
        self.settle();
        let store = side.open(self.counters.is_none())?;
        let levels = store.levels()?;
        if levels.iter().skip(1).any(|b| *b > 0) || levels.first().is_none_or(|b| *b != input.bytes) {
            return Err(Error::Run(format!("{} opened the inputs with {levels:?} bytes by level", side.label)));
        }
        if self.flags.warm_up {
            store.warm_up(case.inputs)?;
            self.settle();
        }
        let snapshot = || Snapshot::now(&side.dir, self.counters, store.counted_calls());
        // The cost of the measurement is not part of the job.
        let (before_looking, before) = (snapshot(), snapshot());
        let parts_before = store.engine_parts();
        let start = Instant::now();
        store.compact()?;
        let wall = start.elapsed();
        let parts = parts_before.zip(store.engine_parts()).map(|(before, now)| parts_since(now, before));
        let engine = store.engine_text();
        let mut cost = snapshot().since(&before);
        cost.calls = cost.calls.since(&before.since(&before_looking).calls);
        store.close()?;
        let job = JobLog::read(&side.dir)?;
        job.check(&side.label, case.inputs, input.entries)?;
        if repetition == 0 {
            input.check_merged(&side.label, &side.dir)?;
        }
        Ok(JobRun { side: index, repetition, wall, cost, parts, engine, job })
    }
}

fn remove(dir: &PathBuf) -> Result<()> {
    std::fs::remove_dir_all(dir).map_err(|e| Error::io(format_args!("cannot remove {}", dir.display()), &e))?;
    kernel::sync_disks();
    Ok(())
}
