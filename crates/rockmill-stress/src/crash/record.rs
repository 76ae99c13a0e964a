//! Runs a history once, and records every change of the disk and the promises at each moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use rockmill::Db;
use rockmill_io::mem::Replay;
use rockmill_io::{FileSystem, MemFileSystem};

use super::together::Together;
use crate::configuration::Configuration;
use crate::history::{History, Step, Writer};
use crate::model::Model;
use crate::place::TestDir;
use crate::replay::{Clock, Done, Failure, Observer, Run, Span};

/// A recorded run. Moments are counts of recorded changes.
pub(super) struct Recording {
    /// The disk.
    pub fs: MemFileSystem,
    /// What was done.
    pub steps: Vec<Step>,
    /// When each step began.
    begun: Vec<usize>,
    /// When it had returned.
    ended: Vec<usize>,
    /// Nothing before its end can be lost.
    durable: Vec<bool>,
    /// The expected contents before each step, and at the end.
    pub models: Vec<Model>,
    /// When the database was opened: the moment, the next step, and the number of the configuration.
    opened: Vec<(usize, usize, usize)>,
    /// Steps in which several threads write, by number.
    pub together: BTreeMap<usize, Together>,
}

/// The states that a database may show after a power cut at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The moment.
    pub point: usize,
    /// Steps that must be there.
    pub durable: usize,
    /// Steps that had returned.
    pub returned: usize,
    /// Steps that survive if only the process dies.
    pub kept: usize,
    /// Steps that had begun.
    pub started: usize,
    /// Number of the configuration with which the database was open, or being opened.
    pub configuration: usize,
    /// The database must exist.
    pub made: bool,
}

/// The root of a [`TestDir`] in memory, with a durable name.
pub(crate) fn empty_disk() -> Result<MemFileSystem, String> {
    let fs = MemFileSystem::new();
    let place = TestDir::in_memory(&fs);
    let made = fs.create_dir(&place.root, true).and_then(|()| fs.sync_dir(std::path::Path::new("/")));
    made.map_err(|e| e.to_string())?;
    Ok(fs)
}

/// The parts of the store with separate directories.
#[derive(Debug, Clone, Copy, Default)]
pub struct Where {
    /// WALs.
    pub own_wals: bool,
    /// Some tables.
    pub two_paths: bool,
}

impl Where {
    /// FIFO compaction has one path.
    pub fn may_have_two_paths(configurations: &[Configuration]) -> bool {
        configurations.iter().all(|c| c.get("strategy") != "fifo")
    }

    /// A database on a disk.
    pub fn on(self, fs: &MemFileSystem) -> TestDir {
        TestDir { own_wals: self.own_wals, two_paths: self.two_paths, ..TestDir::in_memory(fs) }
    }
}

impl Recording {
    /// Runs and records a history.
    ///
    /// # Errors
    /// The failure without any power cut.
    pub fn new(history: &History, configurations: &[Configuration], place: Where) -> Result<Self, String> {
        let fs = empty_disk()?;
        fs.start_recording();
        let mut watch = Watch {
            fs: fs.clone(),
            begun: Vec::new(),
            ended: Vec::new(),
            durable: Vec::new(),
            models: vec![Model::new()],
            opened: Vec::new(),
            next: 0,
            together: BTreeMap::new(),
        };
        let place = place.on(&fs);
        let mut run = Run::new(place, configurations.to_vec(), &mut watch);
        run.steps(&history.steps).map_err(|failure| failure.to_string())?;
        let Watch { begun, ended, durable, models, opened, together, .. } = watch;
        Ok(Self { fs, steps: history.steps.clone(), begun, ended, durable, models, opened, together })
    }

    /// The recorded changes, to be gone through.
    pub fn replay(&self) -> Result<Replay, String> {
        self.fs.replay().ok_or_else(|| "nothing was recorded".to_owned())
    }

    /// The possible states after a power cut after this many changes.
    pub fn window(&self, point: usize) -> Window {
        let returned = self.ended.partition_point(|&at| at <= point);
        let started = self.begun.partition_point(|&at| at < point).max(returned);
        let durable = self.durable[..returned].iter().rposition(|durable| *durable).map_or(0, |n| n + 1);
        // Recovered data is durable when the open has returned.
        let opened = self.opened.iter().rfind(|(at, ..)| *at <= point);
        let durable = durable.max(opened.map_or(0, |(_, step, _)| *step));
        // A synced concurrent write has made everything before its step durable.
        let synced = self.together.range(..started).rfind(|(_, all)| all.is_synced(point));
        let durable = durable.max(synced.map_or(0, |(step, _)| *step));
        // Writes without a WAL are lost with the process until the next flush has returned.
        let last = self.together.range(..returned).next_back();
        let lost = last.filter(|(step, all)| all.is_unlogged() && returned < *step + 2);
        let kept = lost.map_or(returned, |(step, _)| *step);
        let next = self.opened.iter().find(|(at, ..)| *at > point);
        let configuration = match (opened, next) {
            // Closed and not yet open again.
            (_, Some((_, step, configuration))) if started >= *step => *configuration,
            (Some((.., configuration)), _) | (None, Some((.., configuration))) => *configuration,
            (None, None) => 0,
        };
        Window { point, durable, returned, kept, started, configuration, made: opened.is_some() }
    }
}

/// Notes when what happens.
struct Watch {
    fs: MemFileSystem,
    begun: Vec<usize>,
    ended: Vec<usize>,
    durable: Vec<bool>,
    models: Vec<Model>,
    opened: Vec<(usize, usize, usize)>,
    /// Configuration of the next opening.
    next: usize,
    together: BTreeMap<usize, Together>,
}

impl Observer for Watch {
    fn before(&mut self, step: usize, what: &Step) {
        debug_assert_eq!(step, self.begun.len());
        self.begun.push(self.fs.recorded());
        if let Step::Reopen(how) = what
            && how.changes_configuration()
        {
            self.next += 1;
        }
    }

    fn after(&mut self, done: &Done<'_>) {
        let now = self.fs.recorded();
        // Steps that were passed over never began.
        self.begun.resize(done.step + 1, now);
        self.ended.push(now);
        self.durable.push(done.durable);
        self.models.push(done.model.clone());
    }

    fn opened(&mut self, step: usize, _db: &Db) {
        self.opened.push((self.fs.recorded(), step, self.next));
    }

    fn clock(&self) -> Clock {
        let fs = self.fs.clone();
        Arc::new(move || fs.recorded())
    }

    fn wrote_together(&mut self, writers: &[Writer], batches: Vec<Vec<Span>>) {
        let step = self.begun.len() - 1;
        self.together.insert(step, Together::new(writers, &batches));
    }

    fn failed(&mut self, _failure: &Failure, _db: Option<&Db>) -> crate::replay::Verdict {
        crate::replay::Verdict::Stop
    }
}
