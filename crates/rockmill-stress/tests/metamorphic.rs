//! One random history, many configurations: every result must be the model's, and the same in all. Earlier failing
//! histories are kept in `histories/`. And a test of the test: mistakes are found, and the cases shrink.
//!
//! `ROCKMILL_SEED` sets the history, `ROCKMILL_STEPS` its length; `ROCKMILL_CONFIGURATIONS` the number of
//! configurations, `all` for those that contain every pair of choices. For longer runs, and to shrink failures, use the
//! command `rockmill-stress metamorphic`.

use std::io::Write;
use std::time::Duration;

use rockmill_kernel::Pool;
use rockmill_skip::skip;
use rockmill_stress::case::Case;
use rockmill_stress::configuration::{Configuration, kernel_engine};
use rockmill_stress::generate::{Profile, generate};
use rockmill_stress::history::{History, Step};
use rockmill_stress::metamorphic::{Medium, cases, compare, has_ttl, some_configurations};
use rockmill_stress::model::Planted;
use rockmill_stress::replay::{Failure, Silent, Trouble};
use rockmill_stress::shrink::Shrinker;
use rockmill_stress::watch::Watch;
use rockmill_stress::workers;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a history in several configurations, and compares all runs.
fn all_agree(medium: &Medium, seed: u64, steps: usize, count: usize) {
    agree(medium, seed, steps, &some_configurations(&mut fastrand::Rng::with_seed(seed), count));
}

fn agree(medium: &Medium, seed: u64, steps: usize, configurations: &[Configuration]) {
    let again = format!("ROCKMILL_SEED={seed} ROCKMILL_STEPS={steps}");
    println!("{again}");
    let history = generate(seed, steps, &Profile::everything());
    let mut watch = Watch::default();
    let hanging = again.clone();
    watch.guard(Duration::from_secs(120), move |now| {
        // Bypasses the test's output capture, which would be lost.
        let text = format!("{hanging} hangs in step {} ({})\n", now.step, now.text);
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::abort();
    });
    let mut before: Option<(Case, Vec<u64>)> = None;
    for case in cases(&history, configurations, has_ttl(seed)) {
        let ran = medium.run(&case, &mut watch).and_then(|seen| {
            if let Some((other, before)) = &before {
                compare(&case, &seen, other, before)?;
            }
            Ok(seen)
        });
        let seen = ran.unwrap_or_else(|failure| {
            panic!("{failure}\nagain and smaller: rockmill-stress metamorphic --seed {seed} --steps {steps} ({again})")
        });
        before = Some((case, seen));
    }
    watch.rest();
}

#[test]
fn one_history_is_the_same_in_many_configurations() {
    let seed = env("ROCKMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let steps = env("ROCKMILL_STEPS").unwrap_or(1500) as usize;
    let count = match std::env::var("ROCKMILL_CONFIGURATIONS").as_deref() {
        Ok("all") => Configuration::pairs().len(),
        Ok(n) => n.parse().expect("ROCKMILL_CONFIGURATIONS is a number or \"all\""),
        Err(_) => 5,
    };
    all_agree(&Medium::Memory, seed, steps, count);
}

/// With and without a worker, in tables of each kind: the worker must have done some of the compactions.
#[test]
fn one_history_is_the_same_with_compactions_done_by_a_worker() {
    let seed = env("ROCKMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let steps = env("ROCKMILL_STEPS").unwrap_or(600) as usize;
    let done = workers::counters().done;
    let configurations = [
        "default",
        "worker=loopback",
        "worker=loopback,table=tph-4,compression=zstd",
        "worker=loopback,engine=uring,strategy=df-leveled,front=logs",
    ];
    let configurations = configurations.map(|text| text.parse::<Configuration>().expect("they are known"));
    agree(&Medium::Memory, seed, steps, &configurations);
    let done = workers::counters().done - done;
    assert!(done > 0, "no compaction was done by the worker");
}

/// Merge programs change at each `reopen next`; they must do the same as other engines with the equivalent user code.
#[test]
fn one_history_is_the_same_with_every_merge_program() {
    if let Some((_, missing)) = kernel_engine().skipped() {
        return skip("one_history_is_the_same_with_every_merge_program", &missing);
    }
    // Kept, so that calls are counted.
    let pool = Pool::shared();
    let seed = env("ROCKMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut rng = fastrand::Rng::with_seed(seed);
    // TPH tables are merged elsewhere.
    let kernel = format!("engine={},table=block-based", kernel_engine().get("engine"));
    let programs = ["reverse", "expire", "counters"].map(|program| format!("{kernel},program={program}"));
    let engines = [&programs[..], &["engine=pread".to_owned(), kernel]].concat();
    let with = |engine: &String| Configuration::random(&mut rng).with_all(engine).unwrap();
    let configurations: Vec<Configuration> = engines.iter().map(with).collect();
    // Also on a disk, where the driver `loop` reads through the program's ring.
    let dir = tempfile::tempdir().unwrap();
    for (medium, steps) in [(Medium::Memory, 1000), (Medium::Disk(dir.path().to_owned()), 300)] {
        let before = pool.calls();
        agree(&medium, seed, env("ROCKMILL_STEPS").map_or(steps, |n| n as usize), &configurations);
        let calls = pool.calls() - before;
        println!("{calls} calls of the programs");
        assert!(calls > 0);
    }
}

#[test]
fn one_history_is_the_same_on_a_disk() {
    let seed = env("ROCKMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let dir = tempfile::tempdir().unwrap();
    all_agree(&Medium::Disk(dir.path().to_owned()), seed, 500, 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing stays");
}

#[test]
fn histories_that_failed_once_do_not_again() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let case: Case = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        for _ in 0..3 {
            if let Some(failure) = Medium::Memory.fails(&case, &mut Silent) {
                panic!("{}: {failure}", file.display());
            }
        }
    }
}

#[test]
fn a_history_in_text_is_the_same_history() {
    for seed in 0..30 {
        let history = generate(seed, 300, &Profile::everything());
        assert_eq!(history.to_string().parse::<History>().unwrap(), history);
        let configurations = some_configurations(&mut fastrand::Rng::with_seed(seed), 3);
        let case = Case { configurations, ttl: seed % 2 == 0, own_wals: seed % 3 == 0, history };
        assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
    }
    for (text, line, word) in [
        ("check\nfly 3", 2, "fly"),
        ("configuration default\n\n# remark\nwrite put:0:9=1", 4, "SEED/LENGTH"),
        ("configuration engine=steam", 1, "steam"),
        ("get 0 5000", 1, "5000"),
        ("ingest put:0:4=1/1", 1, "file:"),
        ("wait and see", 1, "too many"),
    ] {
        let e = text.parse::<Case>().unwrap_err();
        assert!(e.line == line && e.what.contains(word), "{text:?}: {e}");
    }
}

/// Finds a planted mistake in a long history, and shrinks the history.
fn shrunk(planted: Planted, seeds: std::ops::Range<u64>) -> (Case, Failure, usize) {
    let mut fails = |case: &Case| {
        let ran = Medium::Memory.with_place(|place| case.run_with(place, &mut Silent, Some(planted)));
        ran.unwrap().err()
    };
    let configurations = vec![Configuration::pairs().swap_remove(7), Configuration::pairs().swap_remove(9)];
    for seed in seeds {
        let history = generate(seed, 1200, &Profile::everything());
        let case = Case { configurations: configurations.clone(), ttl: false, own_wals: false, history };
        let mut tries = 0;
        let mut progress = |_: &Case, n: usize| tries = n;
        let mut shrinker = Shrinker { fails: &mut fails, tries_max: 3000, tries: 0, progress: &mut progress };
        if let Some((case, failure)) = shrinker.shrink(&case) {
            return (case, failure, tries);
        }
    }
    panic!("{planted:?} is never found");
}

#[test]
fn a_range_delete_that_takes_its_end_is_found_and_shrinks_to_a_few_steps() {
    let (case, failure, tries) = shrunk(Planted::RangeTakesItsEnd, 1..9);
    println!("after {tries} tries: {failure}\n{case}");
    assert!(case.history.steps.len() <= 3, "{case}");
    assert_eq!(case.configurations, [Configuration::default()]);
    assert!(matches!(failure.trouble, Trouble::Wrong(_)), "{failure}");
    let is_range = |step: &Step| step.to_string().contains("range:");
    assert!(case.history.steps.iter().any(is_range), "{case}");
}

#[test]
fn a_merge_that_forgets_is_found_and_shrinks_to_a_few_steps() {
    let (case, failure, tries) = shrunk(Planted::MergeReplaces, 1..3);
    println!("after {tries} tries: {failure}\n{case}");
    // The column family, a value and an operand, a read.
    assert!(case.history.steps.len() <= 4, "{case}");
}

#[test]
fn a_snapshot_that_moves_is_found_and_shrinks_to_a_few_steps() {
    let (case, failure, tries) = shrunk(Planted::SnapshotMoves, 1..3);
    println!("after {tries} tries: {failure}\n{case}");
    assert!(case.history.steps.len() <= 3, "{case}");
}
