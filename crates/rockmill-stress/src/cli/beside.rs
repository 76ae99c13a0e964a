//! `beside`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::Outcome;
use super::metamorphic::{Current, progress, shrink_with, told, write_case};
use crate::beside::{Beside, Tally};
use crate::case::Case;
use crate::history::Step;
use crate::replay::Observer;
use crate::watch::Watch;

/// A step that takes longer hangs.
const STEP_SECONDS_MAX: u64 = 180;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rockmill-stress beside --minutes 10\n  \
    rockmill-stress beside --library librocksdbjni-linux64.so --seed 7 --histories 1")]
pub struct BesideArgs {
    /// RocksDB's library, a shared one with its C API [default: the machine's]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// The first history's seed; the next ones follow [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of a history
    #[arg(long, default_value_t = 1500)]
    steps: usize,
    /// Histories [default: 1, or as many as fit into --minutes]
    #[arg(long)]
    histories: Option<u64>,
    /// Goes on for so long
    #[arg(long)]
    minutes: Option<f64>,
    /// Does a case from a file instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Directory for the databases
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    disk: PathBuf,
    /// File that a failing case is written to, after it was shrunk
    #[arg(long, default_value = "beside.history", value_name = "FILE")]
    output: PathBuf,
    /// Cases tried at most while one is made smaller; 0 leaves it as it is
    #[arg(long, default_value_t = 2000)]
    tries: usize,
    /// Leaves out steps that begin with this word: one whose difference is known (may be given more than once)
    #[arg(long, value_name = "WORD")]
    without: Vec<String>,
    /// Leaves the directories of cases in which they differ (with --tries 0, of that one only)
    #[arg(long)]
    keep: bool,
    /// Goes on after a difference; each is told, and left as it is
    #[arg(long)]
    keep_going: bool,
}

pub fn run(args: &BesideArgs) -> Outcome {
    let scratch = args.disk.join(format!("rockmill-beside-{}", std::process::id()));
    let mut beside = Beside::new(args.library.as_deref(), &scratch)?;
    beside.keep = args.keep;
    println!("beside {}", beside.name());
    let mut watch = Watch::default();
    let limit = Duration::from_secs(STEP_SECONDS_MAX);
    let current = Current::default();
    let hanging = current.clone();
    watch.guard(limit, move |now| {
        eprintln!("\nstep {} ({}) has been going on for {} s: it hangs", now.step, now.text, limit.as_secs());
        if let Some(case) = &*hanging.lock() {
            let _ = write_case(std::path::Path::new("hang.history"), case, "hangs");
        }
        std::process::abort();
    });
    if let Some(file) = &args.replay {
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let case: Case = text.parse().map_err(|e| format!("{}: {e}", file.display()))?;
        *current.lock() = Some(case.clone());
        return match beside.run(&case, &args.disk, &mut watch) {
            Ok(tally) => {
                println!("{} steps: both show the same", tally.steps);
                Ok(())
            }
            Err(failure) => found(args, &beside, &case, failure.to_string(), &mut watch),
        };
    }
    let first = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let (start, until) = (Instant::now(), args.minutes.map(|m| Duration::from_secs_f64(m.max(0.0) * 60.0)));
    let histories = args.histories.unwrap_or(if until.is_some() { u64::MAX } else { 1 });
    let (mut all, mut done, mut differences) = (Tally::default(), 0, 0u64);
    for n in 0..histories {
        if until.is_some_and(|until| start.elapsed() >= until) {
            break;
        }
        let seed = first.wrapping_add(n);
        let mut case = beside.case(seed, args.steps);
        let left = |step: &Step| {
            let text = step.to_string();
            !args.without.iter().any(|w| text == *w || text.starts_with(&format!("{w} ")))
        };
        case.history.steps.retain(left);
        *current.lock() = Some(case.clone());
        match beside.run(&case, &args.disk, &mut watch) {
            Ok(tally) => all.add(tally),
            Err(failure) => {
                eprintln!("\nseed {seed}: {failure}");
                if !args.keep_going {
                    return found(args, &beside, &case, failure.to_string(), &mut watch);
                }
                differences += 1;
            }
        }
        watch.rest();
        done = n + 1;
        progress(&format!("seed {seed}: {done} histories, {} steps, {} s", all.steps, start.elapsed().as_secs()));
    }
    progress("");
    for (what, times) in beside.left_out() {
        println!("left out: {what}: {times} times");
    }
    println!(
        "{done} histories from seed {first} on in {:.0} s: {} steps, {} results compared, {} openings, {} after a change \
         of directories: {differences} differences",
        start.elapsed().as_secs_f64(),
        all.steps,
        all.results,
        all.opened,
        all.swapped
    );
    if differences == 0 { Ok(()) } else { Err(format!("{differences} histories differ")) }
}

/// Shrinks a case in which they differ, and writes it to a file.
fn found(args: &BesideArgs, beside: &Beside, case: &Case, what: String, watch: &mut Watch) -> Outcome {
    write_case(&args.output, case, &what)?;
    let mut fails = |case: &Case| beside.run(case, &args.disk, watch as &mut dyn Observer).err();
    if args.tries > 0
        && let Some((smaller, failure)) = shrink_with(&mut fails, case, args.tries)
    {
        write_case(&args.output, &smaller, &failure.to_string())?;
        return Err(told(&args.output, &smaller, &failure, "beside --replay"));
    }
    Err(format!("{what}\nleft as it is in {}", args.output.display()))
}
