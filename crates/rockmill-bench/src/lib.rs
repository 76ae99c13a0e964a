//! A benchmark that users of RocksDB's `db_bench` already know: its workloads, its flags, its output lines, and, given
//! the same seed, its very operations.
//!
//! How a run goes, by file:
//!
//! 1. `flags` reads the command line, in gflags' syntax, into [`Flags`].
//! 2. `peers/` makes the sides of `--peer`: Rockmill, RocksDB loaded at run time, other Rust stores as features.
//!    `settings` gives Rockmill and RocksDB one text of options, and reads back what they took.
//! 3. `workload` knows what each name in `--benchmarks` does; `db_bench`, `mixgraph` and `ycsb` do it. `store` is what
//!    they ask of a store: [`Store`] and its per-thread [`Session`].
//! 4. `runner` opens each side in turn, starts the threads together, and joins what each `record`ed; `timeline`
//!    samples throughput, stalls and levels meanwhile. `place` says what may be emptied or replaced for that.
//! 5. `measure` and `kernel` read what the kernel counted: CPU, memory, bytes, switches, system calls. `device` says
//!    what the disk could do at best, `machine` where and when.
//!    `compact/` is the benchmark of single compactions, `rockmill bench compact`, and `offload/` that of compactions
//!    by workers, `rockmill bench offload`.
//! 6. `outcome` prints db_bench's lines and the JSON, `pairs` the table with ratios, `page/` the page with charts.

mod compact;
mod db_bench;
mod device;
mod error;
mod flags;
mod generate;
mod kernel;
mod machine;
mod measure;
mod mixgraph;
mod nutanix;
mod offload;
mod outcome;
mod page;
mod pairs;
mod peers;
mod place;
mod random;
mod record;
mod runner;
mod settings;
mod store;
mod tables;
mod timeline;
mod usage;
mod workload;
mod ycsb;

use std::io::Write;
use std::process::ExitCode;

pub use compact::run as run_compact;
pub use compact::{Case, CaseReport, CompactCommand, CompactFlags, CompactReport, JobLog, JobPair, JobRun};
pub use device::{DeviceLimits, MixedLimit, mixed, probe};
pub use error::{Error, Result};
pub use flags::{Auto, Command, Flags, List, nearest};
pub use generate::{KeyGenerator, ValueGenerator};
pub use machine::{Machine, today};
pub use measure::{Calls, DeviceBytes, ProcessUsage, Snapshot};
pub use offload::run as run_offload;
pub use offload::{OffloadCommand, OffloadFlags, OffloadReport, OffloadRun, SizeReport};
pub use outcome::{EngineReport, Outcome, Report, SideReport, SpaceUse, StallTotals};
pub use pairs::{Comparison, comparisons};
pub use place::{Caches, check_output};
pub use random::{Lehmer, Mersenne64};
pub use record::{Done, Recorder};
pub use runner::run;
pub use store::{OpKind, Session, Sought, Stalls, Store};
pub use timeline::{Sample, Timeline};
pub use workload::Workload;

/// The command: `args` without the program's name. Reports go to standard output, errors to standard error.
///
/// Exit codes: 0 done, 1 a benchmark failed, 2 the command line makes no sense.
pub fn main_with_args(args: impl IntoIterator<Item = String>) -> ExitCode {
    match main_result(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {}", rockmill_format::printable::lines(&e.to_string()));
            ExitCode::from(e.exit_code())
        }
    }
}

fn main_result(args: impl IntoIterator<Item = String>) -> Result<()> {
    let stdout = std::io::stdout();
    let mut args = args.into_iter().peekable();
    if args.next_if(|first| first == "compact").is_some() {
        return main_compact(args);
    }
    if args.next_if(|first| first == "offload").is_some() {
        return main_offload(args);
    }
    let flags = match Flags::parse(args)? {
        Command::Help => {
            let written = stdout.lock().write_all(flags::help().as_bytes());
            return written.map_err(|e| Error::io("standard output", &e));
        }
        Command::Run(flags) => flags,
    };
    let report = run(&flags, &mut stdout.lock())?;
    write(&flags.json, || format!("{:#}\n", report.to_json()))?;
    write(&flags.report, || report.to_html())
}

fn main_compact(args: impl Iterator<Item = String>) -> Result<()> {
    let stdout = std::io::stdout();
    let flags = match CompactFlags::parse(args)? {
        CompactCommand::Help => {
            let written = stdout.lock().write_all(compact::help().as_bytes());
            return written.map_err(|e| Error::io("standard output", &e));
        }
        CompactCommand::Run(flags) => flags,
    };
    let report = run_compact(&flags, &mut stdout.lock())?;
    write(&flags.base.json, || format!("{:#}\n", report.to_json()))?;
    write(&flags.base.report, || report.to_html())
}

fn main_offload(args: impl Iterator<Item = String>) -> Result<()> {
    let stdout = std::io::stdout();
    let flags = match OffloadFlags::parse(args)? {
        OffloadCommand::Help => {
            let written = stdout.lock().write_all(offload::help().as_bytes());
            return written.map_err(|e| Error::io("standard output", &e));
        }
        OffloadCommand::Run(flags) => flags,
    };
    let report = run_offload(&flags, &mut stdout.lock())?;
    write(&flags.json, || format!("{:#}\n", report.to_json()))
}

/// Writes a text to a file; nothing where no file was asked for.
fn write(path: &str, text: impl FnOnce() -> String) -> Result<()> {
    match path {
        "" => Ok(()),
        path => rockmill_io::report::write(path.as_ref(), &text())
            .map_err(|e| Error::io(format_args!("cannot write {path}"), &e)),
    }
}
