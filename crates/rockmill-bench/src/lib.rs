//! A benchmark that users of RocksDB's `db_bench` already know: its workloads, its flags, its output lines, and, given
//! the same seed, its very operations.
//!
//! How a run goes, by file:
//!
//! 1. `flags` reads the command line, in gflags' syntax, into [`Flags`].
//! 2. `workload` knows what each name in `--benchmarks` does and whether it wants a fresh database.
//! 3. `store` is what a benchmark asks of a store: [`Store`] and its per-thread [`Session`]. Peers implement it.
//! 4. `runner` opens the store, starts the threads together, and joins what each `record`ed.
//! 5. `measure` reads what the kernel knows of the process: CPU, peak memory, bytes read and written.
//! 6. `report` prints db_bench's lines and the JSON; `device` measures what the disk could do at best.
#![forbid(unsafe_code)]

mod device;
mod error;
mod flags;
mod generate;
mod measure;
mod random;
mod record;
mod report;
mod rockmill_store;
mod runner;
mod store;
mod workload;

use std::io::Write;
use std::process::ExitCode;

pub use device::{DeviceLimits, probe};
pub use error::{Error, Result};
pub use flags::{Command, Flags};
pub use generate::{KeyGenerator, ValueGenerator};
pub use measure::ProcessUsage;
pub use random::{Lehmer, Mersenne64};
pub use record::Recorder;
pub use report::{Outcome, to_json};
pub use rockmill_store::RockmillStore;
pub use runner::run;
pub use store::{Session, Store};
pub use workload::Workload;

/// The command: `args` without the program's name. Reports go to standard output, errors to standard error.
///
/// Exit codes: 0 done, 1 a benchmark failed, 2 the command line makes no sense.
pub fn main_with_args(args: impl IntoIterator<Item = String>) -> ExitCode {
    let stdout = std::io::stdout();
    let done = Flags::parse(args).and_then(|command| match command {
        Command::Help => {
            stdout.lock().write_all(flags::help().as_bytes()).map_err(|e| Error::io("standard output", &e))
        }
        Command::Run(flags) => {
            let outcomes = run(&flags, &mut stdout.lock())?;
            match &flags.json {
                path if path.is_empty() => Ok(()),
                path => std::fs::write(path, format!("{:#}\n", to_json(&flags, &outcomes)))
                    .map_err(|e| Error::io(format_args!("cannot write {path}"), &e)),
            }
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rockmill-bench: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
