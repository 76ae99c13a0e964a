//! The `rockmill` command: loads, reads, writes, compacts, checks and inspects databases in RocksDB's formats.
//!
//! | file | what it does |
//! |---|---|
//! | `args.rs` | the command line |
//! | `store.rs` | opens a database with the right options |
//! | `input/`, `load.rs` | records from tsv, csv, jsonl and plain lines; writing them |
//! | `ingest.rs` | tables written outside of a database, and ingested |
//! | `kv.rs`, `scan.rs` | put, merge, get, delete; scans |
//! | `stats.rs`, `flush.rs`, `compact.rs` | levels and amplification; manual flushes and compactions |
//! | `tree_page.rs` | a picture of the tree |
//! | `top/`, `running.rs` | a database that another process has open |
//! | `downgrade.rs` | making a database readable by RocksDB |
//! | `options.rs`, `set_options.rs` | the options that a database has stored |
//! | `backup.rs`, `repair.rs` | backups and checkpoints; repair |
//! | `verify/`, `dump/` | checking all files; showing one |
//! | `offload.rs` | compactions on other machines: the worker, and the options to use workers |
//! | `stress.rs` | a database under load, killed and checked |
//! | `simulate.rs`, `calibrate.rs` | compaction strategies in virtual time; comparison with a real run |
//! | `prompt/` | the query shell: commands on one database, line by line |
//! | `shell.rs` | short and long help, completions, man pages |
//! | `ldb/` | calls in the style of RocksDB's `ldb` |
//! | `output.rs`, `progress.rs`, `error.rs`, `interrupt.rs` | output, progress bars, errors and interrupts |

mod args;
mod backup;
mod calibrate;
mod compact;
mod cpu;
mod downgrade;
mod dump;
mod error;
mod families;
mod flush;
mod hex;
mod ingest;
mod input;
mod interrupt;
mod kv;
mod ldb;
mod load;
mod offload;
mod options;
mod output;
mod progress;
mod prompt;
mod repair;
mod running;
mod scan;
mod set_options;
mod shell;
mod simulate;
mod stats;
mod store;
mod stress;
mod top;
mod tree_page;
mod verify;
mod worker_config;

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use clap::error::ErrorKind as ClapErrorKind;

use args::{Cli, Command};
use error::{CliError, EXIT_OK, EXIT_USAGE, Result};
use output::Out;
use rockmill_format::printable;

/// A panic message may contain someone else's key or path.
fn escape_panics() {
    std::panic::set_hook(Box::new(|info| {
        top::give_screen_back();
        let thread = std::thread::current();
        let text = format!("thread '{}' {info}", thread.name().unwrap_or("without a name"));
        let mut stderr = std::io::stderr().lock();
        let _ = writeln!(stderr, "{}", printable::lines(&text));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            let _ = writeln!(stderr, "stack backtrace:\n{trace}");
        }
    }));
}

fn main() -> ExitCode {
    escape_panics();
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == "bench") {
        // Its flags have db_bench's syntax, which clap does not parse.
        return rockmill_bench::main_with_args("rockmill bench", args.map(|a| a.to_string_lossy().into_owned()));
    }
    let command = shell::command();
    let args = match ldb::translate(std::env::args_os().collect(), &command) {
        Ok(args) => args,
        Err(e) => {
            report(&e, std::env::args_os().any(|a| a == "--json"));
            return ExitCode::from(e.code);
        }
    };
    let parsed = command.try_get_matches_from(args).and_then(|matches| {
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        Ok((Cli::from_arg_matches(&matches)?, name))
    });
    let (cli, name) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return usage_error(&e),
    };
    if let Some(family) = cli.column_family.as_deref().filter(|_| shell::takes_no_family(&name)) {
        output::tell(&format!("note: --column-family {family} is ignored: it does not apply to {name}"));
    }
    let mut out = Out::new(cli.json, cli.quiet);
    let done = run(&cli, &mut out).map_err(|e| match e.broken_pipe && !only_shows(&cli.command) {
        true => e.unread(),
        false => e,
    });
    // Output printed before a failure is still useful.
    let done = done.and(out.flush());
    match done {
        Ok(()) => ExitCode::from(EXIT_OK),
        // `rockmill scan ... | head` is not a failure; neither is completed work whose report is not read.
        Err(e) if e.broken_pipe => ExitCode::from(EXIT_OK),
        Err(e) => {
            let _ = out.flush();
            report(&e, cli.json);
            ExitCode::from(e.code)
        }
    }
}

/// True for a command that only prints: if its output is no longer read, nothing is left to do. Other commands change
/// or check something, and ending early is a failure.
fn only_shows(command: &Command) -> bool {
    match command {
        Command::Get(_)
        | Command::MultiGet(_)
        | Command::Scan(_)
        | Command::Stats(_)
        | Command::Top(_)
        | Command::Dump(_)
        | Command::Options(_)
        | Command::ListCf(_)
        | Command::Completions(_)
        | Command::Simulate(_) => true,
        Command::Ldb(call) => call.only_shows(),
        Command::Backup(args) => matches!(args.command, backup::BackupCommand::List(_)),
        Command::Compact(args) => args.explain.is_some(),
        _ => false,
    }
}

/// What an interrupted command leaves behind; `None` for one that is quick, or has its own message.
fn what_is_kept(command: &Command) -> Option<String> {
    let text = match command {
        Command::WriteSst(_) => "the table is incomplete and cannot be used: run the same command again, with --force",
        Command::Ingest(_) => "the database has all of the tables, or none of them",
        Command::Flush(_) => "no data is lost; what is not in a table yet is still in the log",
        Command::Compact(args) if args.explain.is_none() => {
            "no data is lost; what compactions have finished stays, and the same command does the rest"
        }
        Command::Downgrade(_) => "no data is lost; RocksDB may still refuse the database: run the same command again",
        Command::Verify(_) => "not everything was checked; nothing was changed",
        Command::Backup(args) => match args.command {
            backup::BackupCommand::Create(_) => {
                "the new backup is complete only if `rockmill backup list` lists it; earlier backups are unchanged"
            }
            backup::BackupCommand::Restore(_) => "the database is not restored in full: run the same command again",
            _ => return None,
        },
        Command::Checkpoint(_) => {
            "the checkpoint is complete if its directory is there; the next attempt removes what is left otherwise"
        }
        Command::Repair(_) => "the database is as it was, or repaired; nothing was deleted: run the same command again",
        Command::Stress(args) => return Some(stress::kept(args)),
        Command::Simulate(args) => return Some(simulate::kept(args)),
        _ => return None,
    };
    Some(text.to_owned())
}

fn run(cli: &Cli, out: &mut Out) -> Result<()> {
    if let Command::Load(args) = &cli.command {
        interrupt::say_records_at_end(args.durability.wal == args::Switch::On);
    } else if let Some(text) = what_is_kept(&cli.command) {
        interrupt::say_at_end(text);
    }
    dispatch(cli, out)
}

/// Runs a command. The shell calls this for each line, so signal handling is set up in [`run`] instead.
fn dispatch(cli: &Cli, out: &mut Out) -> Result<()> {
    let cf = cli.column_family.as_deref();
    match &cli.command {
        Command::Load(args) => load::run(args, cf, out),
        Command::WriteSst(args) => ingest::write_sst(args, cf, out),
        Command::Ingest(args) => ingest::run(args, cf, out),
        Command::Put(args) => kv::put(args, cf, out),
        Command::Merge(args) => kv::merge(args, cf, out),
        Command::Get(args) => kv::get(args, cf, out),
        Command::MultiGet(args) => kv::multi_get(args, cf, out),
        Command::Delete(args) => kv::delete(args, cf, out),
        Command::Scan(args) => scan::run(args, cf, out),
        Command::Stats(args) => stats::run(args, cf, out),
        Command::Top(args) => top::run(args, out),
        Command::Flush(args) => flush::run(args, cf, out),
        Command::Compact(args) => compact::run(args, cf, out),
        Command::Downgrade(args) => downgrade::run(args, out),
        Command::Verify(args) => verify::run(args, out),
        Command::Dump(args) => dump::run(args, out),
        Command::Options(args) => options::run(args, cf, out),
        Command::SetOptions(args) => set_options::run(args, cf, out),
        Command::ListCf(args) => families::list(args, out),
        Command::CreateCf(args) => families::create(args, out),
        Command::DropCf(args) => families::drop(args, out),
        Command::Backup(args) => backup::run(args, out),
        Command::Checkpoint(args) => backup::checkpoint(args, out),
        Command::Repair(args) => repair::run(args, out),
        Command::Stress(args) => stress::run(args, out),
        Command::Simulate(args) => simulate::run(args, out),
        Command::Shell(args) => prompt::run(args, cf, out),
        Command::Worker(args) => offload::worker(args, out),
        Command::Completions(args) => shell::completions(args, out),
        Command::ManPages(args) => shell::man_pages(args, out),
        Command::Ldb(call) => ldb::calls::run(call, cf, out),
        Command::StressChild(args) => stress::child(args),
        Command::Bench { .. } => Err(CliError::usage("bench must come before every flag: rockmill bench --help")),
    }
}

/// Prints an error; a failure to print it cannot be reported.
fn report(e: &CliError, json: bool) {
    if json {
        let _ = writeln!(std::io::stderr(), "{}", printable::json(&output::error_json(e).to_string()));
        return;
    }
    output::tell(&format!("error: {}", e.message));
    if let Some(hint) = &e.hint {
        output::tell(&format!("hint: {hint}"));
    }
}

/// Help and version are not errors. Other errors are printed as JSON if `--json` is anywhere on the command line.
fn usage_error(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ClapErrorKind::DisplayHelp | ClapErrorKind::DisplayVersion) {
        let _ = e.print();
        return ExitCode::from(EXIT_OK);
    }
    if std::env::args_os().any(|a| a == "--json") {
        let text = e.render().to_string();
        let message = text.split("\n\n").next().unwrap_or_default().trim();
        let message = message.strip_prefix("error: ").unwrap_or(message);
        let error = CliError::usage(message).hint("`rockmill --help` shows the commands and their flags");
        report(&error, true);
    } else {
        // In clap's colours, unless an argument contains control characters or line breaks.
        let acts = |a: std::ffi::OsString| matches!(printable::line(&a.to_string_lossy()), Cow::Owned(_));
        if std::env::args_os().any(acts) {
            output::tell(e.render().to_string().trim_end());
        } else {
            let _ = e.print();
        }
    }
    ExitCode::from(EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn long_commands_say_what_they_leave() {
        let kept = |line: &str| {
            let words = std::iter::once("rockmill").chain(line.split(' '));
            what_is_kept(&Cli::try_parse_from(words).expect(line).command)
        };
        for line in [
            "write-sst t.sst a.tsv",
            "ingest db t.sst",
            "flush db",
            "compact db",
            "downgrade db",
            "verify db",
            "backup create db b",
            "backup restore b db",
            "checkpoint db c",
            "repair db",
            "stress db",
            "simulate --compare",
        ] {
            assert!(kept(line).is_some_and(|text| !text.ends_with('.')), "{line}");
        }
        assert!(kept("simulate --calibrate disk").is_some_and(|text| text.ends_with("* in disk may be deleted")));
        for line in ["get db key", "backup list b", "stats db"] {
            assert_eq!(kept(line), None, "{line}");
        }
    }
}
