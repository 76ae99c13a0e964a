//! The FIFO strategy: RocksDB's `FIFOCompactionPicker`. Nothing is rewritten; the oldest tables are deleted.
//!
//! 1. *Age.* Tables of L0 that are older than `ttl`, from the oldest on, if that leaves no more than may stay.
//! 2. *Size.* While all tables together are larger than `max_table_files_size`, the oldest of L0. A tree that another
//!    strategy made has deeper levels. Then tables of the deepest level go first, by key, since it is unknown which of
//!    them is oldest.
//! 3. *Count.* With `allow_compaction`, the newest L0 files are merged into one, as many as lower the work for each
//!    file saved; files larger than a memtable, which were merged before, are left alone.
//!
//! Tables that another operation is deleting (`delete_files_in_ranges`) count as gone.
//!
//! There is only one job at a time: jobs are short, and the oldest table must be known.

use std::collections::HashMap;
use std::sync::Arc;

use super::aging;
use super::inputs::{Files, Picker, total_bytes};
use super::score::bytes_on_disk;
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, Level};

/// The next compaction of a tree in which nothing is rewritten.
pub(super) fn pick(picker: &Picker<'_>) -> Option<Compaction> {
    if picker.level0_busy() || picker.running.count() > 0 {
        return None;
    }
    // Tables that another operation is deleting (`delete_files_in_ranges`) count as gone. Counted by files: in a tree
    // of another strategy, several tables may share one.
    let all = bytes_on_disk(picker.version);
    by_age(picker, all).or_else(|| by_size(picker, all)).or_else(|| by_count(picker, all))
}

fn is_busy(f: &FileMeta) -> bool {
    f.being_compacted.load(Atomic::Acquire)
}

fn size_max(picker: &Picker<'_>) -> u64 {
    picker.options.compaction_options_fifo.max_table_files_size
}

fn by_age(picker: &Picker<'_>, all: u64) -> Option<Compaction> {
    let files = aging::fifo_expired(picker.version, picker.options, picker.moment.now);
    let rest = all.saturating_sub(total_bytes(&files));
    (!files.is_empty() && rest <= size_max(picker)).then(|| deletion(picker, 0, files, CompactionReason::FIFOTtl))
}

fn by_size(picker: &Picker<'_>, all: u64) -> Option<Compaction> {
    let deepest = picker.version.levels.iter().rposition(|files| !files.is_empty())?;
    let oldest_first: Vec<_> = match deepest {
        0 => picker.files(0).iter().rev().collect(),
        // The oldest of several runs. Nothing newer is deleted before all of it is gone, because a deletion in progress
        // may still fail.
        level => picker.version.levels[level].runs().next_back().unwrap_or_default().iter().collect(),
    };
    // A file is deleted together with the last table that uses it.
    let mut users: HashMap<u64, usize> = HashMap::new();
    for file in picker.version.files().filter(|f| !is_busy(f)).flat_map(|f| f.files()) {
        *users.entry(file.number).or_default() += 1;
    }
    let (mut rest, mut files) = (all, Files::new());
    for f in oldest_first.into_iter().filter(|f| !is_busy(f)) {
        if rest <= size_max(picker) {
            break;
        }
        for file in f.files() {
            let users = users.entry(file.number).or_default();
            *users = users.saturating_sub(1);
            rest = rest.saturating_sub(if *users == 0 { file.size } else { 0 });
        }
        files.push(Arc::clone(f));
    }
    (!files.is_empty()).then(|| deletion(picker, deepest, files, CompactionReason::FIFOMaxSize))
}

fn by_count(picker: &Picker<'_>, all: u64) -> Option<Compaction> {
    let options = picker.options;
    let files = picker.files(0);
    let one_level = picker.version.levels.iter().skip(1).all(Level::is_empty);
    if !options.compaction_options_fifo.allow_compaction || !one_level || all > size_max(picker) {
        return None;
    }
    let mut bytes = files.first().filter(|f| !is_busy(f))?.size();
    let (mut cost, mut taken) = (u64::MAX, 1);
    for f in files[1..].iter().take_while(|f| !is_busy(f)) {
        bytes += f.size();
        let next = bytes / taken as u64;
        if next > cost || bytes > picker.max_compaction_bytes() {
            break;
        }
        (cost, taken) = (next, taken + 1);
    }
    // Tables a little larger than a memtable count as flushed.
    let flushed_max = options.write_buffer_size as u64 / 10 * 11;
    if taken < options.level0_file_num_compaction_trigger.max(2) as usize || cost >= flushed_max {
        return None;
    }
    let inputs = vec![(0, files[..taken].to_vec())];
    let mut job = picker.build(CompactionReason::FIFOReduceNumFiles, inputs, 0, true);
    job.compression = options.compression;
    Some(job)
}

fn deletion(picker: &Picker<'_>, level: usize, mut files: Files, reason: CompactionReason) -> Compaction {
    if level == 0 {
        files.reverse(); // newest first, as everywhere
    }
    let job = picker.build(reason, vec![(level, files)], level, true);
    Compaction { deletion: true, trivial_move: false, ..job }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::aging::Moment;
    use crate::compaction::strategy::score::level_scores;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};
    use crate::compaction::strategy::{RunningCompactions, pick};
    use crate::options::{CfOptions, CompactionStyle, FifoCompactOptions};
    use crate::version::Version;
    use CompactionReason::{FIFOMaxSize, FIFOReduceNumFiles, FIFOTtl};

    fn options(max_table_files_size: u64, allow_compaction: bool) -> CfOptions {
        CfOptions {
            compaction_style: CompactionStyle::Fifo,
            compaction_options_fifo: FifoCompactOptions { max_table_files_size, allow_compaction },
            ..CfOptions::default()
        }
    }

    fn picked(v: &Arc<Version>, o: &CfOptions, now: u64) -> Option<Compaction> {
        pick(v, o, &mut RunningCompactions::new(), &Moment { now, oldest_snapshot: 0 })
    }

    fn shape(c: &Compaction) -> (CompactionReason, usize, Vec<u64>, bool) {
        assert!(c.inputs.len() == 1 && c.output_level == c.start_level() && !c.trivial_move);
        (c.reason, c.start_level(), numbers(&c.inputs[0].1), c.deletion)
    }

    fn l0(sizes: &[u64]) -> Arc<Version> {
        sizes.iter().fold(TreeSpec::new(1), |t, s| t.file(0, "a", "z", *s)).build()
    }

    #[test]
    fn the_oldest_tables_go_until_the_rest_may_stay() {
        let v = l0(&[10, 20, 30, 40]);
        assert!(picked(&v, &options(100, false), 0).is_none());
        assert_eq!(shape(&picked(&v, &options(99, false), 0).unwrap()), (FIFOMaxSize, 0, vec![1], true));
        assert_eq!(shape(&picked(&v, &options(65, false), 0).unwrap()), (FIFOMaxSize, 0, vec![3, 2, 1], true));
        assert_eq!(level_scores(&v, &options(50, false)).scores[0], 2.0);
        assert_eq!(level_scores(&v, &options(50, false)).runs, 0, "nobody is slowed down");
    }

    #[test]
    fn deeper_levels_go_first_by_key() {
        let v = TreeSpec::new(7)
            .file(0, "a", "z", 10)
            .file(5, "a", "b", 10)
            .file(6, "a", "b", 10)
            .file(6, "c", "d", 10)
            .build();
        assert!(picked(&v, &options(40, true), 0).is_none());
        assert_eq!(shape(&picked(&v, &options(30, true), 0).unwrap()), (FIFOMaxSize, 6, vec![3], true));
        assert_eq!(shape(&picked(&v, &options(5, true), 0).unwrap()), (FIFOMaxSize, 6, vec![3, 4], true));
    }

    #[test]
    fn a_file_that_tables_share_goes_with_the_last_of_them() {
        let tree = TreeSpec::new(7).file(5, "a", "b", 10).with_piece(10, 50);
        let v = tree.file(5, "c", "d", 10).with_piece(10, 50).file(5, "e", "f", 10).build();
        assert!(picked(&v, &options(80, true), 0).is_none());
        assert_eq!(shape(&picked(&v, &options(70, true), 0).unwrap()), (FIFOMaxSize, 5, vec![1], true));
        assert_eq!(shape(&picked(&v, &options(60, true), 0).unwrap()), (FIFOMaxSize, 5, vec![1, 2], true));
        assert!(level_scores(&v, &options(70, true)).scores[0] > 1.0);
    }

    #[test]
    fn tables_that_are_too_old_go() {
        let v = TreeSpec::new(1)
            .file(0, "a", "z", 10)
            .times(1, 100)
            .file(0, "a", "z", 10)
            .times(1, 200)
            .file(0, "a", "z", 10)
            .times(1, 300)
            .build();
        let o = CfOptions { ttl: 50, ..options(1000, false) };
        assert_eq!(aging::aging(&v, &o, 0).next_due, 151);
        assert!(picked(&v, &o, 150).is_none());
        assert_eq!(shape(&picked(&v, &o, 151).unwrap()), (FIFOTtl, 0, vec![1], true));
        assert_eq!(shape(&picked(&v, &o, 251).unwrap()), (FIFOTtl, 0, vec![2, 1], true));
        // If that is not enough, size decides.
        let o = CfOptions { ttl: 50, ..options(15, false) };
        assert_eq!(shape(&picked(&v, &o, 151).unwrap()), (FIFOMaxSize, 0, vec![2, 1], true));
        let o = CfOptions { ttl: 0, ..options(1000, false) };
        assert!(picked(&v, &o, u64::MAX).is_none() && aging::aging(&v, &o, 0).next_due == u64::MAX);
    }

    #[test]
    fn small_tables_are_merged_when_they_may() {
        let v = l0(&[10, 10, 10, 10, 10]);
        assert!(picked(&v, &options(1000, false), 0).is_none());
        let c = picked(&v, &options(1000, true), 0).unwrap();
        assert_eq!(shape(&c), (FIFOReduceNumFiles, 0, vec![5, 4, 3, 2, 1], false));
        // Up to a large one; tables larger than a memtable are left.
        let c = picked(&l0(&[900, 10, 10, 10, 10]), &options(9000, true), 0).unwrap();
        assert_eq!(shape(&c).2, [5, 4, 3, 2]);
        let o = CfOptions { write_buffer_size: 10, ..options(1000, true) };
        assert!(picked(&v, &o, 0).is_none());
        let o = CfOptions { level0_file_num_compaction_trigger: 6, ..options(1000, true) };
        assert!(picked(&v, &o, 0).is_none());
    }

    #[test]
    fn a_table_that_something_else_deletes_is_not_taken_and_counts_as_gone() {
        // `delete_files_in_ranges` marks tables below L0 while its edit is being written.
        let t = TreeSpec::new(7).file(5, "a", "z", 10).file(6, "a", "b", 10).file(6, "c", "d", 10);
        let v = t.file(6, "a", "f", 10).in_run(1).build();
        let busy = |i: usize| v.levels[6].base[i].being_compacted.store(true, Atomic::Release);
        busy(0);
        assert!(picked(&v, &options(30, true), 0).is_none());
        assert_eq!(shape(&picked(&v, &options(25, true), 0).unwrap()), (FIFOMaxSize, 6, vec![3], true));
        // Newer tables are deleted only once these are gone: if their deletion failed, old values would show again.
        busy(1);
        assert!(picked(&v, &options(5, true), 0).is_none());
    }

    #[test]
    fn one_job_at_a_time() {
        let v = l0(&[10, 10, 10, 10, 10]);
        let (mut cursors, now) = (RunningCompactions::new(), Moment::default());
        let c = pick(&v, &options(40, true), &mut cursors, &now).unwrap();
        let number = cursors.start(&c).number;
        assert!(pick(&v, &options(20, true), &mut cursors, &now).is_none());
        cursors.finish(number, &c);
        assert!(pick(&v, &options(20, true), &mut cursors, &now).is_some());
    }
}
