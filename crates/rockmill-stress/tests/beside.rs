//! Random histories on Rockmill and on this machine's RocksDB at once: a few seconds of what `rockmill-stress beside`
//! does for any length of time. And a test of the test: a mistake on one side is found, and the case shrinks.
//!
//! `ROCKMILL_SEED` sets the first history, `ROCKMILL_ROCKSDB_LIBRARY` the library. By default, the histories are always
//! the same: known bugs and aborts of RocksDB are excluded, and this test should not find new ones.

use std::path::PathBuf;

use rockmill_skip::{Needs, skip};
use rockmill_stress::beside::{Beside, Mistake, Tally};
use rockmill_stress::case::Case;
use rockmill_stress::replay::Silent;
use rockmill_stress::shrink::Shrinker;

/// The first history, how many, and their steps.
const SEED: u64 = 1;
const HISTORIES: u64 = 6;
const STEPS: usize = 400;

/// The library, with a directory for databases; without a library, reports the skip and returns `None`.
fn beside(test: &str) -> Option<(Beside, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let library = std::env::var_os("ROCKMILL_ROCKSDB_LIBRARY").map(PathBuf::from);
    match Beside::new(library.as_deref(), &dir.path().join("first")) {
        Ok(beside) => Some((beside, dir)),
        Err(why) => {
            skip(test, &Needs::LibRocksDb.because(why));
            None
        }
    }
}

#[test]
fn both_stores_show_the_same() {
    let Some((beside, dir)) = beside("both_stores_show_the_same") else { return };
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(SEED);
    println!("ROCKMILL_SEED={seed}, {}", beside.name());
    let mut all = Tally::default();
    for seed in seed..seed + HISTORIES {
        let case = beside.case(seed, STEPS);
        match beside.run(&case, dir.path(), &mut Silent) {
            Ok(tally) => all.add(tally),
            Err(failure) => panic!(
                "{failure}\nagain and smaller: rockmill-stress beside --seed {seed} --steps {STEPS} --histories 1"
            ),
        }
    }
    println!("{all:?}, left out: {:?}", beside.left_out());
    assert!(all.results > 1000 && all.opened > HISTORIES, "{all:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "nothing stays: {left:?}");
}

/// A shrunk case that shows a mistake of one side.
fn shrunk(beside: &Beside, dir: &tempfile::TempDir, mistake: Mistake) -> Case {
    let mut fails = |case: &Case| beside.run_with(case, dir.path(), &mut Silent, Some(mistake)).err();
    for seed in 0..20 {
        let case = beside.case(seed, 1200);
        if fails(&case).is_none() {
            continue;
        }
        let mut progress = |_: &Case, _: usize| {};
        let mut shrinker = Shrinker { fails: &mut fails, tries_max: 300, tries: 0, progress: &mut progress };
        if let Some((case, failure)) = shrinker.shrink(&case) {
            println!("{failure}\n{case}");
            return case;
        }
    }
    panic!("{mistake:?} is never found");
}

#[test]
fn a_range_deletion_that_takes_its_end_is_found_and_shrinks() {
    let Some((beside, dir)) = beside("a_range_deletion_that_takes_its_end_is_found_and_shrinks") else { return };
    let case = shrunk(&beside, &dir, Mistake::RangeTakesItsEnd);
    assert!(case.history.steps.len() <= 6, "{case}");
    assert!(case.history.to_string().contains("range:"), "{case}");
}

#[test]
fn a_walk_that_leaves_its_prefix_is_found_and_shrinks() {
    let Some((beside, dir)) = beside("a_walk_that_leaves_its_prefix_is_found_and_shrinks") else { return };
    let case = shrunk(&beside, &dir, Mistake::AnyPrefix);
    assert!(case.history.steps.len() <= 8, "{case}");
    assert!(case.history.to_string().contains("same-prefix"), "{case}");
}
