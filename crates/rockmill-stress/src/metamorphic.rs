//! Runs one history with many configurations: each must agree with the model, and all must have the same results.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rockmill_io::MemFileSystem;

use crate::case::Case;
use crate::configuration::Configuration;
use crate::contents::Difference;
use crate::history::History;
use crate::place::TestDir;
use crate::replay::{Failure, Observer, Trouble};

/// Where databases are made.
#[derive(Debug, Clone)]
pub enum Medium {
    /// In memory, each on a separate file system.
    Memory,
    /// In new directories below this one, which are removed afterwards.
    Disk(PathBuf),
}

static DIRECTORIES: AtomicU64 = AtomicU64::new(0);

impl Medium {
    /// Lends an empty place. Everything created there is removed afterwards.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn with_place<T>(&self, use_it: impl FnOnce(&TestDir) -> T) -> std::io::Result<T> {
        match self {
            Self::Memory => Ok(use_it(&TestDir::in_memory(&MemFileSystem::new()))),
            Self::Disk(dir) => {
                let n = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
                let place = TestDir::on_disk(dir.join(format!("rockmill-stress-{}-{n}", std::process::id())));
                let used = use_it(&place);
                place.remove_tree(&place.root)?;
                Ok(used)
            }
        }
    }

    /// Runs a case; `None` if it succeeds.
    pub fn fails(&self, case: &Case, observer: &mut dyn Observer) -> Option<Failure> {
        self.run(case, observer).err()
    }

    /// Runs a case; returns its steps' results.
    ///
    /// # Errors
    /// The place of the failure.
    pub fn run(&self, case: &Case, observer: &mut dyn Observer) -> Result<Vec<u64>, Failure> {
        self.with_place(|place| case.run(place, observer)).unwrap_or_else(|e| {
            let configuration = case.configurations.first().map(ToString::to_string).unwrap_or_default();
            let step = case.history.steps.len();
            Err(Failure { step, text: "removing the files".to_owned(), configuration, trouble: e.into() })
        })
    }
}

/// The configurations for one history: some of the covering set in random order, and beyond that random ones.
pub fn some_configurations(rng: &mut fastrand::Rng, count: usize) -> Vec<Configuration> {
    let mut all = Configuration::pairs();
    rng.shuffle(&mut all);
    all.truncate(count);
    all.extend((all.len()..count).map(|_| Configuration::random(rng)));
    all
}

/// One history in this many has a time to live.
const TTL_OF: u64 = 6;

/// Whether a seed's history runs on a database with a time to live.
pub fn has_ttl(seed: u64) -> bool {
    seed % TTL_OF == 1
}

/// Number of configurations through which `reopen next` of a run cycles.
const ROUND: usize = 4;

/// The cases of one history: each begins with another configuration, and every second one has its WALs in a separate
/// directory.
pub fn cases(history: &History, configurations: &[Configuration], ttl: bool) -> Vec<Case> {
    let each = (0..configurations.len()).map(|n| {
        let round =
            (0..ROUND.min(configurations.len())).map(|k| configurations[(n + k) % configurations.len()].clone());
        Case { configurations: round.collect(), ttl, own_wals: n % 2 == 1, history: history.clone() }
    });
    each.collect()
}

/// Compares the results of two cases.
///
/// # Errors
/// The first step with different results.
pub fn compare(case: &Case, seen: &[u64], other: &Case, before: &[u64]) -> Result<(), Failure> {
    let Some(step) = (0..seen.len().max(before.len())).find(|&n| seen.get(n) != before.get(n)) else { return Ok(()) };
    let name = |case: &Case| case.configurations.first().map(ToString::to_string).unwrap_or_default();
    let what = format!("it saw something else under {}, and the model agreed with both", name(other));
    Err(Failure {
        step,
        text: case.history.steps.get(step).map(ToString::to_string).unwrap_or_default(),
        configuration: name(case),
        trouble: Trouble::Wrong(Difference::new("two runs", what)),
    })
}
