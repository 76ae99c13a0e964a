//! `metamorphic`, `replay` and `shrink`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::Outcome;
use crate::case::Case;
use crate::configuration::Configuration;
use crate::events::tables_of_several_files;
use crate::generate::{Profile, generate};
use crate::metamorphic::{Medium, cases, compare, has_ttl, some_configurations};
use crate::replay::Failure;
use crate::shrink::Shrinker;
use crate::watch::Watch;

/// A step that takes longer hangs.
const STEP_SECONDS_MAX: u64 = 180;

/// Where the databases are.
#[derive(Debug, Args)]
struct Where {
    /// Directory for the databases [default: in memory]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Seconds that one step may take before it counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = STEP_SECONDS_MAX)]
    step_limit: u64,
}

impl Where {
    fn medium(&self) -> Medium {
        self.disk.clone().map_or(Medium::Memory, Medium::Disk)
    }

    /// A watch that ends the process after writing the case to a file if a step hangs.
    fn watch(&self, current: &Current) -> Watch {
        let watch = Watch::default();
        let (limit, current) = (Duration::from_secs(self.step_limit), current.clone());
        watch.guard(limit, move |now| {
            eprintln!("\nstep {} ({}) has been going on for {} s: it hangs", now.step, now.text, limit.as_secs());
            if let Some(case) = &*current.lock() {
                let mut case = case.clone();
                case.history.steps.truncate(now.step + 1);
                let _ = write_case(Path::new("hang.history"), &case, &format!("hangs in step {}", now.step));
            }
            // Aborts, so that a core dump or a debugger shows where the other threads are.
            std::process::abort();
        });
        watch
    }
}

/// The running case, for code that must write it to a file.
pub(super) type Current = std::sync::Arc<parking_lot::Mutex<Option<Case>>>;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rockmill-stress metamorphic --minutes 10\n  \
    rockmill-stress metamorphic --seed 7 --steps 20000 --configurations all --disk /tmp")]
pub struct MetamorphicArgs {
    /// The first history's seed; the next ones follow [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of a history
    #[arg(long, default_value_t = 5000)]
    steps: usize,
    /// Configurations of a history: a number, or "all" of those in which every two choices meet
    #[arg(long, default_value = "6", value_name = "N|all")]
    configurations: String,
    /// What all configurations have, as table=tph-2,compression=lz4
    #[arg(long, default_value = "", value_name = "AXIS=CHOICE,...")]
    config: String,
    /// Histories [default: 1, or as many as fit into --minutes]
    #[arg(long)]
    histories: Option<u64>,
    /// Goes on for so long
    #[arg(long)]
    minutes: Option<f64>,
    /// File that a failing case is written to, after it was shrunk
    #[arg(long, default_value = "failed.history", value_name = "FILE")]
    output: PathBuf,
    /// Leaves a failing case as it is
    #[arg(long)]
    no_shrink: bool,
    #[command(flatten)]
    at: Where,
}

pub fn run(args: &MetamorphicArgs) -> Outcome {
    let first = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let count = match args.configurations.as_str() {
        "all" => Configuration::pairs().len(),
        n => n.parse().map_err(|_| format!("--configurations {n:?} is neither a number nor \"all\""))?,
    };
    let until = args.minutes.map(|m| Instant::now() + Duration::from_secs_f64(m.max(0.0) * 60.0));
    let histories = args.histories.unwrap_or(if until.is_some() { u64::MAX } else { 1 });
    let current = Current::default();
    let mut watch = args.at.watch(&current);
    let medium = args.at.medium();
    let (start, mut runs, mut steps) = (Instant::now(), 0u64, 0u64);
    let mut done = 0;
    for engine in ["kernel", "kernel-loop"] {
        if let Some((what, missing)) = Configuration::default().with("engine", engine)?.skipped() {
            println!("{}", missing.line(&what)?);
        }
    }
    let mut seen_configurations = std::collections::HashSet::new();
    for n in 0..histories {
        let seed = first.wrapping_add(n);
        let history = generate(seed, args.steps, &Profile::everything());
        let mut configurations = some_configurations(&mut fastrand::Rng::with_seed(seed), count.max(1));
        for configuration in &mut configurations {
            *configuration = configuration.clone().with_all(&args.config)?;
        }
        let mut before: Option<(Case, Vec<u64>)> = None;
        for case in cases(&history, &configurations, has_ttl(seed)) {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            *current.lock() = Some(case.clone());
            let ran = medium.run(&case, &mut watch).and_then(|seen| {
                if let Some((other, before)) = &before {
                    compare(&case, &seen, other, before)?;
                }
                Ok(seen)
            });
            watch.rest();
            match ran {
                Ok(seen) => before = Some((case.clone(), seen)),
                Err(failure) => {
                    eprintln!("\nseed {seed}: {failure}");
                    return found(args, &case, failure, &current, &mut watch);
                }
            }
            runs += 1;
            steps += history.steps.len() as u64;
            seen_configurations.extend(case.configurations);
            progress(&format!(
                "seed {seed}: {runs} runs, {steps} steps, {} configurations, {} s",
                seen_configurations.len(),
                start.elapsed().as_secs()
            ));
        }
        done = n + 1;
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
    }
    progress("");
    println!(
        "{done} histories from seed {first} on, {runs} runs under {} configurations, {steps} steps in {:.1} s: all agree",
        seen_configurations.len(),
        start.elapsed().as_secs_f64()
    );
    println!("tables with several files: {}", tables_of_several_files());
    Ok(())
}

/// A line that the next one overwrites; if the output is not a terminal, one line per minute.
pub(super) fn progress(text: &str) {
    static LAST: parking_lot::Mutex<Option<Instant>> = parking_lot::Mutex::new(None);
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r{text:<100}\r");
        let _ = err.flush();
        return;
    }
    let mut last = LAST.lock();
    if !text.is_empty() && last.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(60) {
        *last = Some(Instant::now());
        let _ = writeln!(err, "{text}");
    }
}

/// In each file that [`write_case`] makes.
const MADE_HERE: &str = "# rockmill-stress replay ";

/// Writes a case; overwrites only a file with an earlier case.
pub(super) fn write_case(path: &Path, case: &Case, remark: &str) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|old| !String::from_utf8_lossy(&old).contains(MADE_HERE)) {
        return Err(format!("{}: is not a case of rockmill-stress, and stays; the case is:\n{case}", path.display()));
    }
    let remark: Vec<String> = remark.lines().map(|line| format!("# {line}\n")).collect();
    let command = format!("{MADE_HERE}{}\n", path.display());
    let text = format!("{}{command}{case}", remark.concat());
    rockmill_io::report::write(path, &text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Shrinks a failing case and writes it to a file.
fn found(args: &MetamorphicArgs, case: &Case, failure: Failure, current: &Current, watch: &mut Watch) -> Outcome {
    let mut best = (case.clone(), failure);
    if !args.no_shrink {
        write_case(&args.output, &best.0, &best.1.to_string())?;
        match shrink_case(&args.at.medium(), case, 3, 4000, current, watch) {
            Some(smaller) => best = smaller,
            None => eprintln!("it does not fail again: a matter of timing; the case is left as it is"),
        }
    }
    write_case(&args.output, &best.0, &best.1.to_string())?;
    Err(told(&args.output, &best.0, &best.1, "replay"))
}

pub(super) fn told(output: &Path, case: &Case, failure: &Failure, command: &str) -> String {
    let steps = case.history.steps.len();
    let text = if steps <= 60 { format!("\n{case}") } else { String::new() };
    format!("{failure}\n{steps} steps in {}; again with: rockmill-stress {command} {0}{text}", output.display())
}

/// Shrinks a case; each is run `times` times before it counts as not failing.
fn shrink_case(
    medium: &Medium,
    case: &Case,
    times: usize,
    tries_max: usize,
    current: &Current,
    watch: &mut Watch,
) -> Option<(Case, Failure)> {
    let mut fails = |case: &Case| {
        *current.lock() = Some(case.clone());
        let failed = (0..times).find_map(|_| medium.fails(case, watch));
        watch.rest();
        failed
    };
    shrink_with(&mut fails, case, tries_max)
}

/// Shrinks a case with any check for failure.
pub(super) fn shrink_with(
    fails: &mut dyn FnMut(&Case) -> Option<Failure>,
    case: &Case,
    tries_max: usize,
) -> Option<(Case, Failure)> {
    // Panics are expected now; their traces are not useful.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut report = |case: &Case, tries: usize| {
        progress(&format!("shrinking: {} steps after {tries} tries", case.history.steps.len()));
    };
    let mut shrinker = Shrinker { fails, tries_max, tries: 0, progress: &mut report };
    let done = shrinker.shrink(case);
    std::panic::set_hook(hook);
    progress("");
    done
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The case: lines "configuration ...", then a step a line
    file: PathBuf,
    /// How often
    #[arg(long, default_value_t = 1)]
    times: usize,
    #[command(flatten)]
    at: Where,
}

fn read_case(path: &Path) -> Result<Case, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    text.parse().map_err(|e| format!("{}: {e}", path.display()))
}

pub fn replay(args: &ReplayArgs) -> Outcome {
    let case = read_case(&args.file)?;
    let current = Current::default();
    *current.lock() = Some(case.clone());
    let mut watch = args.at.watch(&current);
    for n in 0..args.times.max(1) {
        if let Some(failure) = args.at.medium().fails(&case, &mut watch) {
            return Err(format!("run {}: {failure}", n + 1));
        }
        watch.rest();
        progress(&format!("{} runs", n + 1));
    }
    println!("{} steps, {} runs: nothing is wrong", case.history.steps.len(), args.times.max(1));
    Ok(())
}

#[derive(Debug, Args)]
pub struct ShrinkArgs {
    /// The case
    file: PathBuf,
    /// File for the smaller one
    #[arg(long, default_value = "shrunk.history")]
    output: PathBuf,
    /// How often a case is done before it counts as not failing: more, where it is a matter of timing
    #[arg(long, default_value_t = 3)]
    times: usize,
    /// Cases tried at most
    #[arg(long, default_value_t = 4000)]
    tries: usize,
    #[command(flatten)]
    at: Where,
}

pub fn shrink(args: &ShrinkArgs) -> Outcome {
    let case = read_case(&args.file)?;
    let current = Current::default();
    let mut watch = args.at.watch(&current);
    let shrunk = shrink_case(&args.at.medium(), &case, args.times.max(1), args.tries, &current, &mut watch);
    let (case, failure) = shrunk.ok_or_else(|| format!("{}: the case does not fail", args.file.display()))?;
    write_case(&args.output, &case, &failure.to_string())?;
    println!("{}", told(&args.output, &case, &failure, "replay"));
    Ok(())
}
