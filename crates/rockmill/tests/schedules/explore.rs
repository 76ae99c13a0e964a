//! Runs a test under many schedules, and one of them again.
//!
//! Schedules come in batches of one seed each. Every second batch chooses the next thread at random (many switches,
//! uniformly distributed); the others use PCT, which runs the thread with the highest priority and changes priorities
//! at 1 to 4 random points (few switches, anywhere). Environment variables:
//!
//! - `ROCKMILL_SCHEDULE_SECONDS`: how long each test runs (10).
//! - `ROCKMILL_SCHEDULE_SEED`: the first seed (1), so that long runs do not repeat short ones.
//! - `ROCKMILL_SCHEDULE`: runs one batch once, as named by a failure (`random:17`, `pct3:18`).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Schedules per seed. From the first one, PCT learns their length.
const BATCH: usize = 25;
/// Switches after which a run counts as endless.
const STEPS_MAX: usize = 400_000;
/// Size of each thread's stack; all threads are in one process.
const STACK_BYTES: usize = 1 << 20;

/// How the next thread is chosen.
#[derive(Debug, Clone, Copy)]
enum Chooser {
    Random,
    Pct(usize),
}

impl std::fmt::Display for Chooser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Pct(depth) => write!(f, "pct{depth}"),
        }
    }
}

fn chooser_of(seed: u64) -> Chooser {
    if seed % 2 == 1 { Chooser::Random } else { Chooser::Pct(1 + (seed / 2 % 4) as usize) }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str, or: u64) -> u64 {
    variable(name).map_or(or, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

fn run_batch(test: &Arc<dyn Fn() + Send + Sync>, chooser: Chooser, seed: u64) -> usize {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    let ran = Arc::new(AtomicUsize::new(0));
    let body = {
        let (test, ran) = (Arc::clone(test), Arc::clone(&ran));
        move || {
            ran.fetch_add(1, Ordering::Relaxed);
            test();
        }
    };
    let done = catch_unwind(AssertUnwindSafe(|| match chooser {
        Chooser::Random => Runner::new(RandomScheduler::new_from_seed(seed, BATCH), config).run(body),
        Chooser::Pct(depth) => Runner::new(PctScheduler::new_from_seed(seed, depth, BATCH), config).run(body),
    }));
    done.unwrap_or_else(|panic| {
        let name = std::thread::current().name().unwrap_or("this test").to_owned();
        let at = ran.load(Ordering::Relaxed);
        eprintln!("schedule {at} of a batch failed; again: ROCKMILL_SCHEDULE={chooser}:{seed} (test {name})");
        resume_unwind(panic)
    })
}

/// Runs `test` under one schedule after another until its time is over.
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    let test: Arc<dyn Fn() + Send + Sync> = Arc::new(test);
    if let Some(wanted) = variable("ROCKMILL_SCHEDULE") {
        let (how, seed) = wanted.split_once(':').expect("ROCKMILL_SCHEDULE is CHOOSER:SEED");
        let chooser = match how.strip_prefix("pct") {
            Some(depth) => Chooser::Pct(depth.parse().expect("a depth after pct")),
            None => Chooser::Random,
        };
        let seed = seed.parse().expect("a seed is a number");
        println!("{} schedules of {chooser}:{seed}", run_batch(&test, chooser, seed));
        return;
    }
    let began = Instant::now();
    let time = Duration::from_secs(number("ROCKMILL_SCHEDULE_SECONDS", 10));
    let first = number("ROCKMILL_SCHEDULE_SEED", 1);
    let (mut seed, mut ran) = (first, 0);
    // Runs both choosers at least once, however slow the machine is.
    while seed < first + 2 || began.elapsed() < time {
        ran += run_batch(&test, chooser_of(seed), seed);
        seed += 1;
    }
    println!("{ran} schedules of seeds {first} to {} in {:.1} s", seed - 1, began.elapsed().as_secs_f64());
}
