//! `rockmill bench offload`: one compaction, done alternately here and by a worker, for several sizes.
//!
//! 1. For each size, `compact::input` writes a database of overlapping L0 tables. Each run gets links to the tables,
//!    which are dropped from the page cache.
//! 2. A run opens it, with or without a worker, and times only `compact_range`. CPU time is that of this whole process,
//!    so it includes the threads that serve the worker's reads and writes, and the check of the results.
//! 3. The worker's reported costs (its CPU, round trips, bytes) are in the store's counters.
//! 4. The store's LOG shows that it was one job with every input; the first result of each kind is scanned and
//!    compared.
//!
//! The worker is `rockmill worker` in a separate process, or any worker (`--worker`).

mod flags;
mod report;
mod worker;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rockmill::{Db, Options};
use rockmill_io::SystemClock;
use rockmill_offload::{Workers, WorkersConfig};

use crate::compact::{Case, CompactCommand, CompactFlags, Input, JobLog, Workspace};
use crate::error::{Error, Result};
use crate::kernel;
use crate::machine::Machine;
use crate::measure::ProcessUsage;
pub(crate) use flags::help;
pub use flags::{OffloadCommand, OffloadFlags};
pub use report::{OffloadReport, OffloadRun, SizeReport};
use worker::WorkerProcess;

/// Runs every size and prints each result to `out` immediately.
///
/// # Errors
/// A problem with the command line, the disk, the worker, or a job's result.
pub fn run(flags: &OffloadFlags, out: &mut dyn Write) -> Result<OffloadReport> {
    if !flags.json.is_empty() {
        crate::place::check_output(Path::new(&flags.json), crate::place::is_result).map_err(Error::Usage)?;
    }
    let db = Path::new(&flags.db);
    Workspace::check(db)?;
    let mut cases = Vec::new();
    for &mb in &flags.mb {
        let CompactCommand::Run(of_size) = CompactFlags::parse(flags.of_size(mb))? else {
            return Err(Error::Usage("help is no run".to_owned()));
        };
        let case = of_size.cases().into_iter().next();
        cases.push((mb, *of_size, case.ok_or_else(|| Error::Usage("there is no case to run".to_owned()))?));
    }
    let worker = match flags.worker.as_str() {
        "" => WorkerProcess::start(&flags.worker_program, flags.threads, flags.tls)?,
        address => WorkerProcess::elsewhere(address)?,
    };
    let _workspace = Workspace::create(db)?;
    let mut report = OffloadReport {
        machine: Machine::here(db),
        flags: flags.clone(),
        worker: worker.address().to_string(),
        sizes: vec![],
    };
    print(out, &report.header())?;
    for (mb, of_size, case) in cases {
        let dir = db.join("input");
        let input = Input::write(&of_size.of_writer(&case, &dir.to_string_lossy()), &case, &dir)?;
        let mut size = SizeReport { mb, input_bytes: input.bytes, entries: input.entries, runs: vec![] };
        for repetition in 0..flags.repeat {
            // Another one begins each time.
            for turn in 0..2 {
                let elsewhere = (turn + repetition) % 2 == 1;
                let job = Job { flags, case: &case, input: &input, dir: &db.join("job") };
                let run = job.run(elsewhere.then_some(&worker), repetition)?;
                print(out, &size.line(&run))?;
                size.runs.push(run);
            }
        }
        remove(&dir)?;
        report.sizes.push(size);
    }
    print(out, &report.table())?;
    Ok(report)
}

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Error::io("standard output", &e))
}

fn remove(dir: &Path) -> Result<()> {
    std::fs::remove_dir_all(dir).map_err(|e| Error::io(format_args!("cannot remove {}", dir.display()), &e))?;
    kernel::sync_disks();
    Ok(())
}

/// One compaction that is to be measured.
struct Job<'a> {
    flags: &'a OffloadFlags,
    case: &'a Case,
    input: &'a Input,
    dir: &'a Path,
}

impl Job<'_> {
    fn run(&self, worker: Option<&WorkerProcess>, repetition: usize) -> Result<OffloadRun> {
        self.input.copy_to(self.dir)?;
        kernel::give_memory_back();
        kernel::sync_disks();
        let mut options = Options::from_string(&Options::default(), &self.flags.options_text())?;
        if let Some(worker) = worker {
            options.set_compaction_workers(self.workers(worker)?);
        }
        let db = Db::open(&options, self.dir)?;
        let before = ProcessUsage::now();
        let start = Instant::now();
        db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
        let wall = start.elapsed();
        let usage = ProcessUsage::now().since(&before);
        let counters = db.counters();
        drop(db);
        let done_elsewhere = counters.compactions_elsewhere;
        if done_elsewhere != u64::from(worker.is_some()) {
            // Read now, because the directory is removed before the report is read.
            let log = std::fs::read_to_string(self.dir.join("LOG")).unwrap_or_default();
            let why = log.lines().find_map(|line| line.split_once("Not done by a worker, ")).map_or("", |(_, why)| why);
            return Err(Error::Run(format!("the worker did {done_elsewhere} jobs of one: {why}")));
        }
        let label = if worker.is_some() { "worker" } else { "here" };
        let log = JobLog::read(self.dir)?;
        log.check(label, self.case.inputs, self.input.entries)?;
        if repetition == 0 {
            self.input.check_merged(label, self.dir)?;
        }
        remove(self.dir)?;
        Ok(OffloadRun {
            elsewhere: worker.is_some(),
            repetition,
            wall,
            user: usage.user,
            system: usage.system,
            output_bytes: log.output_bytes,
            worker_cpu: Duration::from_micros(counters.elsewhere_cpu_micros),
            round_trips: counters.elsewhere_round_trips,
            wire_bytes: counters.elsewhere_wire_bytes,
        })
    }

    fn workers(&self, worker: &WorkerProcess) -> Result<Arc<Workers>> {
        let config = WorkersConfig {
            input_bytes_min: 0,
            allow_unauthenticated: self.flags.allow_unauthenticated,
            check: self.flags.check,
            secrets: worker.secrets().cloned(),
            ..WorkersConfig::new(vec![worker.address()])
        };
        Workers::new(config, Arc::new(SystemClock::default()))
            .map_err(|e| Error::Usage(format!("--worker={}: {e} (--allow_unauthenticated)", worker.address())))
    }
}
