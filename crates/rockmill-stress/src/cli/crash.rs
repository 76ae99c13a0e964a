//! `crash` and `faults`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use rockmill_kernel::Pool;

use super::Outcome;
use crate::configuration::Configuration;
use crate::crash::{self, Points};
use crate::events::tables_of_several_files;
use crate::faults;

/// What both have.
#[derive(Debug, Args)]
struct Common {
    /// The first history's seed; the next ones follow [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Goes on for so long
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Threads [default: as many as the machine has]
    #[arg(long)]
    threads: Option<u64>,
    /// What all configurations have, chance choosing the rest, as engine=kernel,compression=lz4
    #[arg(long, default_value = "", value_name = "AXIS=CHOICE,...")]
    config: String,
}

impl Common {
    fn seed(&self) -> u64 {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
        println!("first seed {seed}");
        seed
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.minutes.max(0.0) * 60.0)
    }

    /// Refuses a `config` with unknown names, and reports what this machine does not support.
    fn check(&self) -> Outcome {
        let mut one = [Configuration::default()];
        self.fix(&mut one)?;
        for (what, missing) in one.iter().filter_map(Configuration::skipped) {
            println!("{}", missing.line(&what)?);
        }
        Ok(())
    }

    /// Has all configurations be what `config` says.
    fn fix(&self, configurations: &mut [Configuration]) -> Outcome {
        for c in configurations {
            *c = c.clone().with_all(&self.config)?;
        }
        Ok(())
    }

    /// Prints how much the kernel merged, if it did, and how many tables shared files.
    fn tell(&self) {
        println!("tables with several files: {}", tables_of_several_files());
        let calls = Pool::shared().calls();
        if calls > 0 {
            println!("merges in the kernel: {calls} calls of the program");
        }
    }

    fn threads(&self) -> u64 {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        self.threads.unwrap_or(all).max(1)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rockmill-stress crash --all-points --minutes 10\n  \
    rockmill-stress crash --seed 7 --steps 2000 --points 500")]
pub struct CrashArgs {
    #[command(flatten)]
    common: Common,
    /// Steps of a history
    #[arg(long, default_value_t = 150)]
    steps: usize,
    /// Cuts at every recorded point, and at every one of those recoveries that are cut
    #[arg(long)]
    all_points: bool,
    /// Cuts at about so many points of each history
    #[arg(long, default_value_t = 300)]
    points: usize,
    /// Directory that the disk of a failure is saved in
    #[arg(long, default_value = "failed.disk", value_name = "DIR")]
    output: PathBuf,
}

/// Power cuts.
pub fn run_crash(args: &CrashArgs) -> Outcome {
    args.common.check()?;
    let (seed, began) = (args.common.seed(), Instant::now());
    let plan = |seed: u64| {
        let points = if args.all_points { Points::All } else { Points::About(args.points) };
        let mut plan = crash::Plan::random(seed, args.steps, points);
        if args.all_points {
            (plan.double_points, plan.double_every) = (Points::All, 400);
        }
        plan.save = Some(args.output.clone());
        let _ = args.common.fix(&mut plan.configurations); // it was checked
        plan
    };
    let told = |n: u64, sum: &crash::Report| {
        eprintln!("{n} histories, {} s: {} points, {} disks", began.elapsed().as_secs(), sum.points, sum.images);
    };
    let (histories, report) = crash::run_for(seed, args.common.duration(), args.common.threads(), plan, told)?;
    println!("{histories} histories from seed {seed} on in {:.0} s\n{report}", began.elapsed().as_secs_f64());
    args.common.tell();
    Ok(())
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rockmill-stress faults --all-calls --minutes 10\n  \
    rockmill-stress faults --seed 7 --steps 200 --calls 500")]
pub struct FaultsArgs {
    #[command(flatten)]
    common: Common,
    /// Steps of a history
    #[arg(long, default_value_t = 60)]
    steps: usize,
    /// Lets every call fail, in every way that a call of its kind can
    #[arg(long)]
    all_calls: bool,
    /// Lets only this call of each history fail, in every way: to try a failure again
    #[arg(long, value_name = "N")]
    call: Option<usize>,
    /// Lets about so many calls of each history fail, each in one way
    #[arg(long, default_value_t = 300)]
    calls: usize,
}

/// Failing calls.
pub fn run_faults(args: &FaultsArgs) -> Outcome {
    args.common.check()?;
    let (seed, began) = (args.common.seed(), Instant::now());
    let plan = |seed: u64| {
        let calls = if args.all_calls { Points::All } else { Points::About(args.calls) };
        let calls = args.call.map_or(calls, Points::Only);
        let every_way = args.all_calls || args.call.is_some();
        let mut plan = faults::Plan { every_way, ..faults::Plan::random(seed, args.steps, calls) };
        let _ = args.common.fix(&mut plan.configurations); // it was checked
        plan
    };
    let told = |n: u64, sum: &faults::Report| eprintln!("{n} histories, {} s: {sum}", began.elapsed().as_secs());
    let (histories, report) = faults::run_for(seed, args.common.duration(), args.common.threads(), plan, told)?;
    println!("{histories} histories from seed {seed} on in {:.0} s\n{report}", began.elapsed().as_secs_f64());
    args.common.tell();
    Ok(())
}
