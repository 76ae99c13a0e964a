//! Where ingested files go: memtables and levels that they overlap, and the deepest level that can take them
//! (RocksDB's `AssignLevelAndSeqnoForIngestedFile`).
//!
//! A file must lie above everything that it overlaps, running compactions' outputs included, and then needs a
//! sequence number of its own. A file that overlaps nothing keeps the number 0.

use std::sync::Arc;

use rockmill_format::key::{MAX_SEQUENCE, user_key};
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber};

use super::Family;
use super::file::ExternalFile;
use crate::compaction::strategy::RunningCompactions;
use crate::db::CfState;
use crate::error::{Error, ErrorKind, Result};
use crate::front::FrontView;
use crate::iter::InternalIterator;
use crate::iter::level::LevelIterator;
use crate::options::CompactionStyle;
use crate::range_del::FragmentedRangeTombstones;
use crate::table::TableReadOptions;
use crate::version::{FileMeta, TableSource, Version};

/// RocksDB's epoch number of every file ingested behind: older than any other.
const EPOCH_BEHIND: u64 = 1;

/// True when an iterator has a key in [`start`, `limit`].
fn has_key(iter: &mut dyn InternalIterator, start: &[u8], limit: &[u8], cmp: &InternalKeyComparator) -> Result<bool> {
    iter.seek(InternalKey::min_possible(start).as_bytes());
    iter.status()?;
    Ok(iter.valid() && cmp.compare_user(user_key(iter.key()), limit).is_le())
}

/// True when a tombstone reaches into [`start`, `limit`].
fn has_tombstone(
    tombstones: Option<&Arc<FragmentedRangeTombstones>>,
    start: &[u8],
    limit: &[u8],
    cmp: &InternalKeyComparator,
) -> bool {
    tombstones.is_some_and(|t| t.reaches(start, limit, cmp))
}

/// True if data that is in no table has a key or a tombstone in the range of one of `files`.
pub(super) fn overlaps_front(front: &FrontView, files: &[ExternalFile], cmp: &InternalKeyComparator) -> Result<bool> {
    let (mut iters, tombstones): (Vec<_>, Vec<_>) =
        (front.iterators(None).collect(), front.range_tombstones().collect());
    for file in files {
        let (start, limit) = file.range();
        for iter in &mut iters {
            if has_key(&mut **iter, start, limit, cmp)? {
                return Ok(true);
            }
        }
        if tombstones.iter().any(|t| has_tombstone(Some(t), start, limit, cmp)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first level that has a key or a tombstone in [`start`, `limit`]; the number of levels if none has. Reads the
/// blocks that show it.
pub(super) fn first_overlap(
    version: &Arc<Version>,
    tables: &Arc<dyn TableSource>,
    start: &[u8],
    limit: &[u8],
) -> Result<usize> {
    let cmp = &version.cmp;
    let ro = TableReadOptions { fill_cache: false, ..TableReadOptions::default() };
    let touches = |f: &&Arc<FileMeta>| {
        cmp.compare_user(f.smallest_user_key(), limit).is_le() && cmp.compare_user(f.largest_user_key(), start).is_ge()
    };
    for (level, files) in version.levels.iter().enumerate() {
        for file in files.iter().filter(touches) {
            let mut iter = LevelIterator::new(vec![Arc::clone(file)], Arc::clone(tables), ro, cmp.clone());
            if has_key(&mut iter, start, limit, cmp)?
                || has_tombstone(tables.table(file)?.range_tombstones(), start, limit, cmp)
            {
                return Ok(level);
            }
        }
    }
    Ok(version.levels.len())
}

/// Where a file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TargetLevel {
    pub level: usize,
    /// 0: the entries keep theirs.
    pub sequence: SequenceNumber,
    pub epoch: u64,
}

/// Decides for the files of one column family. `overlaps` has the result of [`first_overlap`] for each file.
/// `new_sequences`: every file needs a sequence number. `last`: the last sequence number in use, which rises with those
/// given here.
pub(super) fn place(
    c: &mut CfState,
    family: &Family<'_>,
    overlaps: &[usize],
    new_sequences: bool,
    last: &mut SequenceNumber,
) -> Result<Vec<TargetLevel>> {
    let options = family.options;
    let levels = c.version().levels.len();
    let mut places = Vec::with_capacity(family.files.len());
    // Files that overlap each other go above one another, in the order in which they are given.
    let mut below: Option<usize> = None;
    let mut batch: Vec<usize> = Vec::new();
    let mut batch_level = levels;
    for (i, file) in family.files.iter().enumerate() {
        if batch.iter().any(|&b| overlap(&family.files[b], file, &c.version().cmp)) {
            batch.clear();
            below = Some(batch_level);
            batch_level = levels;
        }
        batch.push(i);
        let place = if options.ingest_behind {
            place_behind(c, file)?
        } else {
            let (jobs, end) = (c.jobs(), below.unwrap_or(levels));
            let (level, overlaps) = match c.options().compaction_style {
                CompactionStyle::Fifo => (0, true), // it has one level, and the file is the newest in it
                _ => {
                    deepest_place(c.version(), jobs.running(), jobs.scores().base_level, file.range(), overlaps[i], end)
                }
            };
            if options.fail_if_not_bottommost_level && level + 1 < levels {
                return Err(Error::new(
                    ErrorKind::TryAgain,
                    format!(
                        "{}: can go to level {level}, not to the last one: keys of the last level, or of a compaction \
                         into it, overlap it",
                        file.path.display()
                    ),
                ));
            }
            let needs_one = overlaps || new_sequences || family.overlap;
            let sequence = if needs_one { *last + 1 } else { 0 };
            TargetLevel { level, sequence, epoch: c.next_epoch() }
        };
        if place.sequence > 0 {
            if !options.allow_global_seqno {
                return Err(Error::invalid_argument(format!(
                    "{}: global seqno is required, but disabled: the file overlaps what is in the database, or a \
                     snapshot must not see it",
                    file.path.display()
                )));
            }
            if place.sequence > MAX_SEQUENCE {
                return Err(Error::new(
                    ErrorKind::Aborted,
                    format!("{}: no sequence numbers are left", file.path.display()),
                ));
            }
            *last = place.sequence;
        }
        batch_level = batch_level.min(place.level);
        places.push(place);
    }
    Ok(places)
}

/// The deepest level for a file with the keys [`start`, `limit`], above `end`: above the first level that has some of
/// them, and above those that running jobs write to. Also returns whether there is any such level below it.
pub fn deepest_place(
    version: &Version,
    running: &RunningCompactions,
    base_level: usize,
    (start, limit): (&[u8], &[u8]),
    first_overlap: usize,
    end: usize,
) -> (usize, bool) {
    let mut level = 0;
    for l in 0..end {
        if l > 0 && l < base_level {
            continue; // nothing is kept there
        }
        if l >= first_overlap || running.output_conflict(&version.cmp, l, start, limit) {
            return (level, true);
        }
        if l == 0 || version.overlapping(l, Some(start), Some(limit)).is_empty() {
            level = l;
        }
    }
    (level, false)
}

/// Under everything: the last level, with sequence number 0.
fn place_behind(c: &CfState, file: &ExternalFile) -> Result<TargetLevel> {
    let (start, limit) = file.range();
    let last = c.version().levels.len() - 1;
    if !c.version().overlapping(last, Some(start), Some(limit)).is_empty()
        || c.jobs().running().output_conflict(&c.version().cmp, last, start, limit)
    {
        return Err(Error::invalid_argument(format!(
            "{}: cannot be ingested behind: it does not fit into the last level, which has keys of its range",
            file.path.display()
        )));
    }
    let upper = c.version().levels.iter().take(last).flatten();
    if let Some(f) = upper.into_iter().find(|f| f.entry.smallest_seqno == 0) {
        return Err(Error::invalid_argument(format!(
            "{}: cannot be ingested behind: table {:06}.sst above the last level has sequence number 0; the database \
             was written to without allow_ingest_behind",
            file.path.display(),
            f.number()
        )));
    }
    Ok(TargetLevel { level: last, sequence: 0, epoch: EPOCH_BEHIND })
}

/// True when two files may have keys in common.
pub(super) fn overlap(a: &ExternalFile, b: &ExternalFile, cmp: &InternalKeyComparator) -> bool {
    let ends_before = |a: &ExternalFile, b: &ExternalFile| {
        // The end of a range tombstone is not part of it.
        let order = cmp.compare_user(a.largest.user_key(), b.smallest.user_key());
        order.is_lt() || (order.is_eq() && a.largest.sequence() == MAX_SEQUENCE)
    };
    !ends_before(a, b) && !ends_before(b, a)
}
