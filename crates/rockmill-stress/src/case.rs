//! A history with its configurations: the unit that is shrunk, kept as a regression test, and replayed.
//!
//! ```text
//! configuration compression=zstd,index=two-level
//! configuration default
//! create 1 merging
//! write put:1:17=5/40
//! reopen next
//! ```

use std::fmt;
use std::str::FromStr;

use crate::configuration::Configuration;
use crate::history::{History, ParseError};
use crate::model::{Model, Planted};
use crate::place::TestDir;
use crate::replay::{Failure, Observer, Run, caught, replay};

/// A history and its configurations: the first one is opened first, `reopen next` goes through them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// At least one.
    pub configurations: Vec<Configuration>,
    /// The database is one with a time to live.
    pub ttl: bool,
    /// WALs are in a separate directory.
    pub own_wals: bool,
    /// The operations.
    pub history: History,
}

/// What a configuration's line begins with.
const CONFIGURATION: &str = "configuration ";
/// The line that says that there is a time to live.
const TTL: &str = "time-to-live";
/// The line that says that WALs are in a separate directory.
const OWN_WALS: &str = "own-wals";

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.configurations.iter().try_for_each(|c| writeln!(f, "{CONFIGURATION}{c}"))?;
        let lines = [(self.ttl, TTL), (self.own_wals, OWN_WALS)];
        lines.iter().filter(|(is, _)| *is).try_for_each(|(_, line)| writeln!(f, "{line}"))?;
        write!(f, "{}", self.history)
    }
}

impl FromStr for Case {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut configurations = Vec::new();
        let (mut ttl, mut own_wals) = (false, false);
        let mut steps = String::new();
        for (n, line) in text.lines().enumerate() {
            match line.trim().strip_prefix(CONFIGURATION) {
                Some(c) => {
                    let c = c.split('#').next().unwrap_or("");
                    configurations.push(c.parse().map_err(|what| ParseError { line: n + 1, what })?);
                }
                None if line.trim() == TTL => ttl = true,
                None if line.trim() == OWN_WALS => own_wals = true,
                None => steps += line,
            }
            // An empty line for each line that is not a step keeps line numbers correct.
            steps.push('\n');
        }
        if configurations.is_empty() {
            configurations.push(Configuration::default());
        }
        Ok(Self { configurations, ttl, own_wals, history: steps.parse()? })
    }
}

impl Case {
    /// Runs the history in an empty place; returns hashes of the steps' results.
    ///
    /// # Errors
    /// The place of the failure; also of a panic.
    pub fn run(&self, place: &TestDir, observer: &mut dyn Observer) -> Result<Vec<u64>, Failure> {
        self.run_with(place, observer, None)
    }

    /// The same with a model that has a deliberate mistake.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_with(
        &self,
        place: &TestDir,
        observer: &mut dyn Observer,
        planted: Option<Planted>,
    ) -> Result<Vec<u64>, Failure> {
        let own_wals = self.own_wals || place.own_wals;
        let place = TestDir { ttl: self.ttl, own_wals, ..place.clone() };
        let mut run = Run::new(place, self.configurations.clone(), observer);
        if let Some(planted) = planted {
            run.plant(Model::with_mistake(planted).with_ttl(self.ttl));
        }
        let done = caught(|| replay(&self.history, &mut run));
        let done = done.unwrap_or_else(|trouble| {
            let step = run.model().steps;
            let text = self.history.steps.get(step).map_or_else(|| "at the end".to_owned(), ToString::to_string);
            let configuration = self.configurations.first().map(ToString::to_string).unwrap_or_default();
            Err(Failure { step, text, configuration, trouble })
        });
        done.map(|()| run.seen().to_vec())
    }
}
