//! `change_level`: a level moves to another one unchanged, without a copy (RocksDB's `ReFitLevel`).
//!
//! The job is chosen when no other one runs. It is the only job that may move tables *up*, which breaks an assumption
//! of other jobs: they put newer data above older data, and would put it above the place that the level leaves. So
//! while it runs, no other job may write, between its keys, to any level from the one that it leaves to the one that it
//! goes to, both included ([`RunningCompactions::output_conflict`](super::RunningCompactions)). Data written above all
//! of these levels stays above. Data written below the level that it leaves is older than the level's.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::inputs::any_busy;
use super::score::level_scores;
use crate::compaction::Compaction;
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::CompactionReason;
use crate::options::CfOptions;
use crate::version::Version;

/// The job that moves all of `level` to `target`; with `None` to the smallest empty level above that it fits. `None`
/// where there is nothing to move.
///
/// # Errors
/// If levels between are not empty, the level has extra runs, or a tree with these options has no such target.
pub fn pick(
    version: &Arc<Version>,
    options: &CfOptions,
    level: usize,
    target: Option<usize>,
) -> Result<Option<Compaction>> {
    let to = target.unwrap_or_else(|| smallest_fitting(version, options, level));
    if to == level || version.levels[level].is_empty() {
        return Ok(None);
    }
    let between = if to > level { level + 1..=to } else { to..=level - 1 };
    check(version, level, to, between)?;
    let inputs = vec![(level, version.levels[level].base.clone())];
    let job = Compaction::new(version, CompactionReason::RefitLevel, inputs, to, options.compression);
    Ok(Some(Compaction { trivial_move: true, subcompactions_max: 1, ..job }))
}

fn check(version: &Version, level: usize, to: usize, between: RangeInclusive<usize>) -> Result<()> {
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
    if any_busy(&version.levels[level].base) {
        return refuse(ErrorKind::Aborted, format!("something else has tables of level {level}; try again"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::RunningCompactions;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};

    #[test]
    fn nothing_else_is_written_where_a_level_moves_past_until_it_has() {
        let v = TreeSpec::new(7).file(5, "c", "f", 10).file(5, "k", "m", 10).build();
        let (o, mut cursors) = (CfOptions::default(), RunningCompactions::new());
        let up = pick(&v, &o, 5, Some(2)).unwrap().unwrap();
        assert_eq!((numbers(&up.inputs[0].1), up.output_level), (vec![1, 2], 2));
        let number = cursors.start(&up).number;
        let shut = |c: &RunningCompactions, begin: &[u8], end: &[u8]| -> Vec<usize> {
            (0..7).filter(|&level| c.output_conflict(&v.cmp, level, begin, end)).collect()
        };
        assert_eq!(shut(&cursors, b"a", b"c"), [2, 3, 4, 5]);
        assert_eq!(shut(&cursors, b"g", b"h"), [2, 3, 4, 5], "also between its tables");
        assert!(shut(&cursors, b"a", b"b").is_empty() && shut(&cursors, b"n", b"z").is_empty());
        // Nor into an extra run of one of these levels.
        let new = TreeSpec::new(7).file(0, "d", "e", 1).file(5, "c", "f", 10).build();
        let inputs = vec![(0, new.levels[0].base.clone())];
        assert!(cursors.depends_on(&new, &inputs, 4, 3).is_none());
        assert!(cursors.depends_on(&new, &inputs, 1, 3).is_some());
        cursors.finish(number, &up);
        assert!(shut(&cursors, b"a", b"z").is_empty() && cursors.depends_on(&new, &inputs, 4, 3).is_some());
        let down = pick(&v, &o, 5, Some(6)).unwrap().unwrap();
        cursors.start(&down);
        assert_eq!(shut(&cursors, b"a", b"z"), [5, 6]);
        assert!(pick(&v, &o, 5, Some(3)).is_err(), "its tables are taken");
    }
}
