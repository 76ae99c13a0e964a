//! Extra runs for tests, made of whole levels as DF-compaction would leave them.

use std::sync::Arc;

use crate::compaction::strategy::inputs_of_levels;
use crate::compaction::{Compaction, older_runs};
use crate::db::jobs::compact::begin_compaction;
use crate::db::{AsColumnFamilyRef, CfState, Db};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::CompactionReason;

/// Merges all of `from` (one level, or several neighbouring ones) into a new extra run of `to`, and returns its id. For
/// tests; waits until no compaction runs.
///
/// # Errors
/// `InvalidArgument` if the output would be below older data or above newer data than its own.
pub fn merge_into_extra_run(db: &Db, cf: &impl AsColumnFamilyRef, from: &[usize], to: usize) -> Result<u64> {
    let (db, cf) = (&db.inner, &cf.as_cf().data);
    db.check_writable()?;
    db.check_family(cf)?;
    let compaction = {
        let mut state = db.state.lock();
        db.wait_for_compactions(&mut state);
        let Some(c) = state.family(cf.id) else { return Err(cf.dropped_error()) };
        let compaction = choose(c, from, to)?;
        let ticket = begin_compaction(&mut state, cf, &compaction).ok_or_else(|| cf.dropped_error())?;
        (ticket, compaction)
    };
    let (ticket, compaction) = compaction;
    let id = compaction.output_run;
    let done = db.run_compaction(cf, Arc::new(compaction), ticket);
    db.delete_purged_files_and_wait();
    done.map(|_| id)
}

fn choose(c: &CfState, from: &[usize], to: usize) -> Result<Compaction> {
    let version = c.version();
    let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidArgument, format!("an extra run: {what}")));
    if to == 0 || to >= version.levels.len() || from.iter().any(|&l| l > to) {
        return refuse("the output must be in a level below L0, and the inputs not below it");
    }
    let inputs = inputs_of_levels(version, from);
    let Some(top) = inputs.first().map(|(level, _)| *level) else { return refuse("there is nothing to merge") };
    let last = from.iter().max().copied().unwrap_or(top);
    // A remaining base run must be below the output; levels between inputs and output must be empty.
    if (top..to).any(|l| (!from.contains(&l) || l > last) && !version.levels[l].is_empty()) {
        return refuse("levels between the inputs and the output are not empty");
    }
    let output_run = version.levels[to].extras.first().map_or(0, |run| run.id) + 1;
    let options = c.options();
    Ok(Compaction {
        output_run,
        bottommost: !version.reserves_last_level && older_runs(version, &inputs, to, output_run).is_empty(),
        output_file_size_target: options.target_file_size_base,
        output_file_size_max: options.target_file_size_base,
        ..Compaction::new(version, CompactionReason::ManualCompaction, inputs, to, options.compression)
    })
}
