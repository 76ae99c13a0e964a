//! `rockmill bench offload`: one compaction, done in turn here, by a worker and, with `--nfs`, by a worker that reads
//! and writes through NFS (`nfs/`), for several sizes.
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
mod nfs;
mod report;
mod worker;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rockmill::internals::{CompactionWorkers, TableCheck};
use rockmill::{Db, Options};
use rockmill_io::SystemClock;
use rockmill_offload::{Check, Workers, WorkersConfig};

use crate::compact::{Case, CompactCommand, CompactFlags, Input, JobLog, Workspace};
use crate::error::{Error, Result};
use crate::kernel;
use crate::machine::Machine;
use crate::measure::{ProcessUsage, cpu_of};
pub(crate) use flags::help;
pub use flags::{OffloadCommand, OffloadFlags};
pub(crate) use nfs::serve as serve_nfs;
use nfs::{NfsWorker, NfsWorkers, Start};
pub use report::{DoneBy, OffloadReport, OffloadRun, SizeReport};
use worker::WorkerProcess;

/// Directories in `--db`: of the database that each run copies, and of the copy.
const INPUT: &str = "input";
const JOB: &str = "job";

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
        "" => {
            let program = worker::program(&flags.worker_program)?;
            WorkerProcess::start(&program, flags)?
        }
        address => WorkerProcess::elsewhere(address)?,
    };
    let nfs = match flags.nfs.as_str() {
        "" => None,
        url => {
            let program = worker::program(&flags.worker_program)?;
            let start = Start { program: &program, url, threads: flags.threads, engine: flags.worker_engine };
            Some(NfsWorker::start(start)?)
        }
    };
    let sides: Vec<Side<'_>> =
        [Side::Here, Side::Worker(&worker)].into_iter().chain(nfs.iter().map(Side::Nfs)).collect();
    let _workspace = Workspace::create(db)?;
    let mut report = OffloadReport {
        machine: Machine::here(db),
        flags: flags.clone(),
        worker: worker.address().to_string(),
        sizes: vec![],
    };
    print(out, &report.header())?;
    for (mb, of_size, case) in cases {
        let dir = db.join(INPUT);
        let input = Input::write(&of_size.of_writer(&case, &dir.to_string_lossy()), &case, &dir)?;
        let mut size = SizeReport { mb, input_bytes: input.bytes, entries: input.entries, runs: vec![] };
        for repetition in 0..flags.repeat {
            // Another one begins each time.
            for turn in 0..sides.len() {
                let Some(side) = sides.get((turn + repetition) % sides.len()) else { continue };
                let job = Job { flags, case: &case, input: &input, dir: &db.join(JOB) };
                let run = job.run(*side, repetition)?;
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

/// Who does a job.
#[derive(Debug, Clone, Copy)]
enum Side<'a> {
    Here,
    Worker(&'a WorkerProcess),
    Nfs(&'a Arc<NfsWorker>),
}

impl Side<'_> {
    fn by(self) -> DoneBy {
        match self {
            Self::Here => DoneBy::Here,
            Self::Worker(_) => DoneBy::Worker,
            Self::Nfs(_) => DoneBy::Nfs,
        }
    }

    /// The worker's process, if it is one of this machine.
    fn process(self) -> Option<u32> {
        match self {
            Self::Here => None,
            Self::Worker(worker) => worker.id(),
            Self::Nfs(worker) => Some(worker.id()),
        }
    }
}

/// One compaction that is to be measured.
struct Job<'a> {
    flags: &'a OffloadFlags,
    case: &'a Case,
    input: &'a Input,
    dir: &'a Path,
}

impl Job<'_> {
    fn run(&self, side: Side<'_>, repetition: usize) -> Result<OffloadRun> {
        self.input.copy_to(self.dir)?;
        kernel::give_memory_back();
        kernel::sync_disks();
        let mut options = Options::from_string(&Options::default(), &self.flags.options_text())?;
        let mut through_nfs = None;
        match side {
            Side::Here => {}
            Side::Worker(worker) => options.set_compaction_workers(self.workers(worker)?),
            Side::Nfs(worker) => {
                let workers = NfsWorkers::new(worker, Path::new(&self.flags.db), JOB, self.table_check());
                options.set_file_system(workers.file_system());
                options.set_compaction_workers(Arc::clone(&workers) as Arc<dyn CompactionWorkers>);
                through_nfs = Some(workers);
            }
        }
        let db = Db::open(&options, self.dir)?;
        let others = [side.process(), Some(self.flags.nfs_server).filter(|server| *server != 0)];
        let others_before = others.map(|process| process.and_then(cpu_of));
        let before = ProcessUsage::now();
        let start = Instant::now();
        db.compact_range(None::<&[u8]>, None::<&[u8]>)?;
        let wall = start.elapsed();
        let usage = ProcessUsage::now().since(&before);
        let others_after = others.map(|process| process.and_then(cpu_of));
        let counters = db.counters();
        drop(db);
        let done_elsewhere = counters.compactions_elsewhere;
        if done_elsewhere != u64::from(side.by() != DoneBy::Here) {
            // Read now, because the directory is removed before the report is read.
            let log = std::fs::read_to_string(self.dir.join("LOG")).unwrap_or_default();
            let why = log.lines().find_map(|line| line.split_once("Not done by a worker, ")).map_or("", |(_, why)| why);
            return Err(Error::Run(format!("the worker did {done_elsewhere} jobs of one: {why}")));
        }
        let label = side.by().name();
        let log = JobLog::read(self.dir)?;
        log.check(label, self.case.inputs, self.input.entries)?;
        if repetition == 0 {
            self.input.check_merged(label, self.dir)?;
            if let Some(workers) = through_nfs {
                workers.verify(INPUT)?;
            }
        }
        remove(self.dir)?;
        let took = |i: usize| Some(others_after.get(i).copied()??.saturating_sub(others_before.get(i).copied()??));
        Ok(OffloadRun {
            by: side.by(),
            repetition,
            wall,
            user: usage.user,
            system: usage.system,
            output_bytes: log.output_bytes,
            worker_cpu: Duration::from_micros(counters.elsewhere_cpu_micros),
            round_trips: counters.elsewhere_round_trips,
            wire_bytes: counters.elsewhere_wire_bytes,
            worker_process_cpu: took(0),
            server_cpu: took(1),
        })
    }

    /// What the store reads of the tables of a worker over NFS, as [`Check`] has it.
    fn table_check(&self) -> TableCheck {
        match self.flags.check {
            Check::All => TableCheck::All,
            // That worker is this command's own, and guesses nothing.
            Check::Sample { percent } => TableCheck::Sample { percent, seed: 0 },
        }
    }

    fn workers(&self, worker: &WorkerProcess) -> Result<Arc<Workers>> {
        let config = WorkersConfig {
            input_bytes_min: 0,
            allow_unauthenticated: self.flags.allow_unauthenticated,
            check: self.flags.check,
            external: self.flags.external_target.clone(),
            secrets: worker.secrets().cloned(),
            ..WorkersConfig::new(vec![worker.address()])
        };
        Workers::new(config, Arc::new(SystemClock::default()))
            .map_err(|e| Error::Usage(format!("--worker={}: {e} (--allow_unauthenticated)", worker.address())))
    }
}
