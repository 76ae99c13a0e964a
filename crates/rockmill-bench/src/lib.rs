//! A benchmark for users of RocksDB's `db_bench`: with its workloads, flags and output lines, and, for the same seed,
//! the same operations.
//!
//! A run, file by file:
//!
//! 1. `flags` reads the command line, in gflags' syntax, into [`Flags`].
//! 2. `peers/` makes the sides of `--peer`: Rockmill, RocksDB loaded at run time, other Rust stores as features.
//!    `settings` passes the same options text to Rockmill and RocksDB, and reads back the effective options.
//! 3. `workload` maps each name in `--benchmarks` to its work, which `db_bench`, `mixgraph` and `ycsb` implement.
//!    `store` is the interface of stores: [`Store`] and its per-thread [`Session`].
//! 4. `runner` opens each side in turn, starts the threads together, and joins what each `record`ed; `timeline` samples
//!    throughput, stalls and levels meanwhile. `place` decides which directories and files may be emptied or replaced.
//! 5. `measure` and `kernel` read the kernel's counts: CPU, memory, bytes, switches, system calls. `device` measures
//!    the disk's limits, `machine` describes the machine and the time. `compact/` is the benchmark of single
//!    compactions, `rockmill bench compact`, and `offload/` that of compactions by workers, `rockmill bench offload`.
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
pub use offload::{DoneBy, OffloadCommand, OffloadFlags, OffloadReport, OffloadRun, SizeReport};
pub use outcome::{EngineReport, Outcome, Report, SideReport, SpaceUse, StallTotals};
pub use pairs::{Comparison, comparisons};
pub use place::{Caches, check_output};
pub use random::{Lehmer, Mersenne64};
pub use record::{Done, Recorder};
pub use runner::run;
pub use store::{OpKind, Session, Sought, Stalls, Store};
pub use timeline::{Sample, Timeline};
pub use workload::Workload;

/// The command: help shows it as `program`, and `args` come after that. Reports go to standard output, errors to
/// standard error.
///
/// Exit codes: 0 done, 1 a benchmark failed, 2 the command line is invalid.
pub fn main_with_args(program: &str, args: impl IntoIterator<Item = String>) -> ExitCode {
    match main_result(program, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {}", rockmill_format::printable::lines(&e.to_string()));
            ExitCode::from(e.exit_code())
        }
    }
}

fn main_result(program: &str, args: impl IntoIterator<Item = String>) -> Result<()> {
    let mut args = args.into_iter().peekable();
    if args.next_if(|first| first == "compact").is_some() {
        return main_compact(program, args);
    }
    if args.next_if(|first| first == "offload").is_some() {
        return main_offload(program, args);
    }
    if args.next_if(|first| first == "nfs-worker").is_some() {
        return offload::serve_nfs(args);
    }
    let flags = match Flags::parse(args)? {
        Command::ShortHelp => return print(&flags::short_help(program)),
        Command::Help => return print(&flags::help(program)),
        Command::Run(flags) => flags,
    };
    let report = run(&flags, &mut std::io::stdout().lock())?;
    write(&flags.json, || format!("{:#}\n", report.to_json()))?;
    write(&flags.report, || report.to_html())
}

fn main_compact(program: &str, args: impl Iterator<Item = String>) -> Result<()> {
    let flags = match CompactFlags::parse(args)? {
        CompactCommand::Help => return print(&compact::help(program)),
        CompactCommand::Run(flags) => flags,
    };
    let report = run_compact(&flags, &mut std::io::stdout().lock())?;
    write(&flags.base.json, || format!("{:#}\n", report.to_json()))?;
    write(&flags.base.report, || report.to_html())
}

fn main_offload(program: &str, args: impl Iterator<Item = String>) -> Result<()> {
    let flags = match OffloadFlags::parse(args)? {
        OffloadCommand::Help => return print(&offload::help(program)),
        OffloadCommand::Run(flags) => flags,
    };
    let report = run_offload(&flags, &mut std::io::stdout().lock())?;
    write(&flags.json, || format!("{:#}\n", report.to_json()))
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|e| Error::io("standard output", &e))
}

/// Writes a text to a file, if one was requested.
fn write(path: &str, text: impl FnOnce() -> String) -> Result<()> {
    match path {
        "" => Ok(()),
        path => rockmill_io::report::write(path.as_ref(), &text())
            .map_err(|e| Error::io(format_args!("cannot write {path}"), &e)),
    }
}
