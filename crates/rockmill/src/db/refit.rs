//! `change_level` of `compact_range`: after the compaction, the level that it ended in moves to another one, without a
//! copy (RocksDB's `ReFitLevel`).
//!
//! No compaction may run meanwhile: what it chose its inputs by, and which level is the base, would change under it.

use std::sync::Arc;
use std::time::Duration;

use super::background::begin_compaction;
use super::column_family::CfData;
use super::{CfState, DbInner, State};
use crate::compaction::strategy::score::level_scores;
use crate::compaction::{Compaction, CompactionReason};
use crate::error::{Error, ErrorKind, Result};
use crate::options::CfOptions;
use crate::sync::atomic::Ordering;
use crate::version::Version;

/// How long a wait lasts before the condition is looked at again by itself.
const WAIT: Duration = Duration::from_millis(200);

/// Keeps automatic compactions from beginning while it lives.
struct Paused<'a>(&'a DbInner);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.paused = state.paused.saturating_sub(1);
        drop(state);
        self.0.work.notify_all();
    }
}

/// Refuses a target that no tree of these options has, before anything is compacted.
pub(super) fn check_target(options: &CfOptions, target: i32) -> Result<()> {
    let levels = options.usable_levels(options.num_levels.max(1) as usize);
    if target >= 0 && target as usize >= levels {
        return Err(Error::invalid_argument(format!(
            "compact_range: target_level {target}, but the column family has levels 0 to {}",
            levels - 1
        )));
    }
    if target < -1 {
        return Err(Error::invalid_argument(format!(
            "compact_range: target_level {target}; -1 stands for the smallest possible"
        )));
    }
    Ok(())
}

impl DbInner {
    /// Moves all of `level` to `target`, or with -1 to the smallest empty level above that it fits. Refused where
    /// levels between are not empty.
    pub fn refit_level(self: &Arc<Self>, cf: &Arc<CfData>, level: usize, target: i32) -> Result<()> {
        let compaction = {
            let mut state = self.state.lock();
            state.paused += 1;
            let paused = Paused(self);
            while state.running_compactions > 0 {
                if self.shutdown.load(Ordering::Acquire) {
                    drop(state);
                    return Err(Error::new(ErrorKind::ShutdownInProgress, "the database is being closed"));
                }
                self.progress.wait_for(&mut state, WAIT);
            }
            let chosen = choose(&mut state, cf, level, target);
            // Manual compactions that begin now find its files taken.
            let begun = chosen.map(|c| c.and_then(|c| Some((begin_compaction(&mut state, cf, &c)?, c))));
            drop(state);
            match begun? {
                Some(begun) => (begun, paused),
                None => return Ok(()),
            }
        };
        let ((ticket, compaction), _paused) = compaction;
        self.run_compaction(cf, Arc::new(compaction), ticket).map(|_| ())
    }
}

fn choose(state: &mut State, cf: &CfData, level: usize, target: i32) -> Result<Option<Compaction>> {
    if let Some(b) = &state.background_error {
        return Err(b.error.clone());
    }
    let Some(CfState { version, .. }) = state.cfs.get(&cf.id) else { return Ok(None) };
    let options = cf.options.load();
    let to = match usize::try_from(target) {
        Ok(target) => target,
        Err(_) => smallest_fitting(version, &options, level),
    };
    if to == level || version.levels[level].is_empty() {
        return Ok(None);
    }
    let between = if to > level { level + 1..=to } else { to..=level - 1 };
    check(version, level, to, between.clone())?;
    Ok(Some(Compaction {
        reason: CompactionReason::RefitLevel,
        inputs: vec![(level, version.levels[level].base.clone())],
        output_level: to,
        output_run: 0,
        grandparents: Vec::new(),
        version: Arc::clone(version),
        bottommost: false,
        trivial_move: true,
        deletion: false,
        output_file_size_target: u64::MAX,
        output_file_size_max: u64::MAX,
        grandparent_overlap_max: u64::MAX,
        compression: options.compression,
        subcompactions_max: 1,
        next_cursor: None,
        split_key: None,
        score: 0.0,
    }))
}

fn check(version: &Version, level: usize, to: usize, between: std::ops::RangeInclusive<usize>) -> Result<()> {
    let refuse = |kind, what: String| Err(Error::new(kind, format!("change_level from {level} to {to}: {what}")));
    if to >= version.levels.len() {
        return refuse(ErrorKind::InvalidArgument, format!("there are levels 0 to {}", version.levels.len() - 1));
    }
    if level == 0 {
        return refuse(ErrorKind::NotSupported, "tables of level 0 can only be compacted".to_owned());
    }
    if to == 0 && version.levels[level].len() > 1 {
        let files = version.levels[level].len();
        return refuse(ErrorKind::Aborted, format!("{files} tables; more than one in level 0 would help no one"));
    }
    if !version.levels[level].extras.is_empty() {
        return refuse(ErrorKind::Aborted, format!("level {level} has extra runs that are not merged yet"));
    }
    match between.into_iter().find(|&l| !version.levels[l].is_empty()) {
        Some(l) => refuse(ErrorKind::NotSupported, format!("level {l} is not empty")),
        None => Ok(()),
    }
}

/// The smallest level above `level`, all levels on the way being empty, whose target size the data fits.
fn smallest_fitting(version: &Version, options: &CfOptions, level: usize) -> usize {
    let targets = level_scores(version, options).targets;
    let bytes = version.level_bytes(level);
    let fits = |l: &usize| version.levels[*l].is_empty() && targets.get(*l).is_none_or(|t| *t >= bytes);
    (1..level).rev().take_while(fits).last().unwrap_or(level)
}
