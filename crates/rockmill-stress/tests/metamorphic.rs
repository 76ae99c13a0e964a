//! One random history, many configurations: every result must be the model's, and the same in all.
//!
//! `ROCKMILL_SEED` sets the history, `ROCKMILL_STEPS` its length; `ROCKMILL_CONFIGURATIONS=all` takes all of
//! [`Configuration::pairs`] rather than a few.

use rockmill_io::MemFileSystem;
use rockmill_stress::configuration::Configuration;
use rockmill_stress::generate::{Profile, generate};
use rockmill_stress::history::History;
use rockmill_stress::place::Place;
use rockmill_stress::replay::{Run, Silent, replay};

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn one_history_is_the_same_in_many_configurations() {
    let seed = env("ROCKMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let steps = env("ROCKMILL_STEPS").unwrap_or(1500) as usize;
    println!("ROCKMILL_SEED={seed} ROCKMILL_STEPS={steps}");
    let history = generate(seed, steps, &Profile::everything());
    assert_eq!(history.to_string().parse(), Ok(history.clone()));
    let mut all = Configuration::pairs();
    let mut rng = fastrand::Rng::with_seed(seed);
    rng.shuffle(&mut all);
    if std::env::var("ROCKMILL_CONFIGURATIONS").as_deref() != Ok("all") {
        all.truncate(5);
    }
    let mut seen: Option<Vec<u64>> = None;
    for n in 0..all.len() {
        all.rotate_left(1);
        let fs = MemFileSystem::new();
        let mut silent = Silent;
        let mut run = Run::new(Place::in_memory(&fs), all.clone(), &mut silent);
        let start = std::time::Instant::now();
        if let Err(failure) = replay(&history, &mut run) {
            panic!("ROCKMILL_SEED={seed} ROCKMILL_STEPS={steps}, configuration {n}: {failure}");
        }
        println!("{:?} {}", start.elapsed(), all[0]);
        let now = run.seen().to_vec();
        if let Some(first) = &seen {
            assert_eq!(first, &now, "ROCKMILL_SEED={seed}: runs saw different things");
        }
        seen = Some(now);
    }
}

#[test]
fn a_history_in_text_is_the_same_history() {
    for seed in 0..20 {
        let history = generate(seed, 300, &Profile::everything());
        assert_eq!(history.to_string().parse::<History>().unwrap(), history);
    }
}
