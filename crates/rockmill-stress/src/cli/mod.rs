//! The `rockmill-stress` command. Each test is a module with its arguments and a `run`.

mod beside;
mod crash;
mod metamorphic;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Everything that tries to make a Rockmill store lose data.
#[derive(Debug, Parser)]
#[command(name = "rockmill-stress", version, about, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Does random histories under many configurations; all must agree with a model and with each other
    Metamorphic(metamorphic::MetamorphicArgs),
    /// Does a case from a file (one that was shrunk, say)
    Replay(metamorphic::ReplayArgs),
    /// Makes a failing case in a file smaller
    Shrink(metamorphic::ShrinkArgs),
    /// Does random histories on Rockmill and on RocksDB's library at once; both must show the same
    Beside(beside::BesideArgs),
    /// Cuts the power at points of random histories, and again in the recoveries
    Crash(crash::CrashArgs),
    /// Lets the I/O calls of random histories fail, one in each run
    Faults(crash::FaultsArgs),
    /// Lists the axes of configurations and their choices
    Configurations,
}

/// The result of a command.
type Outcome = Result<(), String>;

/// Runs the command line.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Metamorphic(args) => metamorphic::run(&args),
        Command::Replay(args) => metamorphic::replay(&args),
        Command::Shrink(args) => metamorphic::shrink(&args),
        Command::Beside(args) => beside::run(&args),
        Command::Crash(args) => crash::run_crash(&args),
        Command::Faults(args) => crash::run_faults(&args),
        Command::Configurations => {
            configurations();
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn configurations() {
    use crate::configuration::{AXES, Configuration};
    for axis in AXES {
        let choices: Vec<_> = axis.choices.iter().map(|choice| choice.name).collect();
        println!("{:<16} {}", axis.name, choices.join(" "));
    }
    println!("\n{} configurations let every two choices meet:", Configuration::pairs().len());
    for configuration in Configuration::pairs() {
        println!("{configuration}");
    }
}
