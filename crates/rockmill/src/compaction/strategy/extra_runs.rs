//! Merges extra runs away, for a manual compaction or a downgrade: into the base run of their level, oldest run first,
//! in jobs of the size of leveled compaction's. After that RocksDB can read the tree.
//!
//! The oldest extra run lies directly above the base run. A table of it merges with what it overlaps there, and newer
//! extra runs stay above the output.

use std::sync::Arc;

use super::inputs::{Files, Picker, any_busy, key_range};
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::version::{FileMeta, Level, Version};

/// What [`merge_down`] found.
pub(super) enum MergeDown {
    /// No extra run has a table of the range.
    Nothing,
    /// Some have, but running jobs hold tables that are needed.
    Busy,
    Job(Box<Compaction>),
}

/// A job that merges tables of the oldest extra run of `level` that has some in the range of user keys [`begin`,
/// `end`] (inclusive; `None` unbounded) into the base run. Files with numbers from the limit on are merged only if they
/// lie below others that are merged.
pub(super) fn merge_down<'a>(
    picker: &Picker<'a>,
    level: usize,
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
    file_number_limit: u64,
) -> MergeDown {
    let version: &'a Version = picker.version;
    let Some(tables) = version.levels.get(level) else { return MergeDown::Nothing };
    let mut found = MergeDown::Nothing;
    for (i, run) in tables.extras.iter().enumerate().rev() {
        let meant = |f: &&Arc<FileMeta>| f.number() < file_number_limit && version.touches(f, begin, end);
        for f in run.files.iter().filter(meant) {
            found = MergeDown::Busy;
            if let Some(job) = merge_from(picker, level, i, f) {
                return MergeDown::Job(Box::new(job));
            }
        }
    }
    found
}

/// A job for `f` of extra run number `i`. If `f` overlaps tables in older extra runs, the job is for those first, since
/// their data is older.
fn merge_from<'a>(picker: &Picker<'a>, level: usize, mut i: usize, mut f: &'a Arc<FileMeta>) -> Option<Compaction> {
    let version: &'a Version = picker.version;
    let Level { base, extras } = &version.levels[level];
    loop {
        let mut files = vec![Arc::clone(f)];
        if !picker.expand_in(&extras[i].files, &mut files) {
            return None;
        }
        let (s, l) = key_range(picker.cmp(), &files)?;
        let older = extras.iter().enumerate().skip(i + 1).rev();
        let mut older = older.flat_map(|(i, run)| run.files.iter().map(move |f| (i, f)));
        if let Some(next) = older.find(|(_, f)| version.touches(f, Some(s.user_key()), Some(l.user_key()))) {
            (i, f) = next;
            continue;
        }
        let mut below: Files = picker.overlapping_in(base, Some(s), Some(l));
        if any_busy(&below) || !picker.expand_in(base, &mut below) {
            return None;
        }
        let inputs = vec![(level, files), (level, below)];
        let reason = CompactionReason::LevelMaxLevelSize;
        return (!picker.output_conflict(&inputs, level)).then(|| picker.build(reason, inputs, level, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::RunningCompactions;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};
    use crate::options::CfOptions;
    use crate::sync::atomic::Ordering;

    fn inputs(c: &Compaction) -> Vec<(usize, u64, Vec<u64>)> {
        c.inputs.iter().map(|(l, f)| (*l, f[0].entry.extra_run, numbers(f))).collect()
    }

    fn pick(v: &Arc<Version>, options: &CfOptions, cursors: &RunningCompactions) -> Option<Compaction> {
        match merge_down(&Picker::new(v, options, cursors), 2, None, None, u64::MAX) {
            MergeDown::Job(job) => Some(*job),
            MergeDown::Nothing | MergeDown::Busy => None,
        }
    }

    fn tree() -> Arc<Version> {
        TreeSpec::new(4)
            .file(2, "a", "f", 100) // 1
            .file(2, "g", "m", 100)
            .file(2, "n", "z", 100)
            .file(2, "c", "h", 50)
            .in_run(1) // 4
            .file(2, "p", "q", 50)
            .in_run(1) // 5
            .file(2, "d", "e", 50)
            .in_run(2) // 6
            .file(2, "o", "r", 50)
            .in_run(2) // 7
            .file(1, "b", "y", 10) // 8
            .build()
    }

    #[test]
    fn the_oldest_run_goes_first_and_takes_what_it_overlaps_below() {
        let v = tree();
        let options = CfOptions { level_compaction_dynamic_level_bytes: false, ..CfOptions::default() };
        let mut cursors = RunningCompactions::new();
        let first = pick(&v, &options, &cursors).unwrap();
        assert_eq!(inputs(&first), [(2, 1, vec![4]), (2, 0, vec![1, 2])]);
        assert_eq!((first.output_level, first.output_run, first.bottommost), (2, 0, true));
        cursors.start(&first);
        let second = pick(&v, &options, &cursors).unwrap();
        assert_eq!(inputs(&second), [(2, 1, vec![5]), (2, 0, vec![3])]);
        cursors.start(&second);
        assert!(pick(&v, &options, &cursors).is_none(), "what is left lies above running jobs");
        cursors.finish(1, &first);
        cursors.finish(2, &second);
        assert!(!v.levels[2].base[0].being_compacted.load(Ordering::Acquire));
    }

    /// Tables that it overlaps in an older extra run go first, even if they lie outside of the range.
    #[test]
    fn a_range_draws_in_older_runs() {
        let v = tree();
        let options = CfOptions { level_compaction_dynamic_level_bytes: false, ..CfOptions::default() };
        let cursors = RunningCompactions::new();
        let merge = |begin, end| match merge_down(&Picker::new(&v, &options, &cursors), 2, begin, end, u64::MAX) {
            MergeDown::Job(job) => inputs(&job),
            MergeDown::Nothing | MergeDown::Busy => Vec::new(),
        };
        assert_eq!(merge(Some(b"r"), Some(b"s")), [(2, 1, vec![5]), (2, 0, vec![3])]);
        assert_eq!(merge(Some(b"i"), Some(b"n")), []);
    }

    #[test]
    fn a_table_that_overlaps_nothing_moves_into_the_base_run() {
        let v = TreeSpec::new(4).file(2, "a", "f", 100).file(2, "g", "m", 100).in_run(3).build();
        let options = CfOptions { level_compaction_dynamic_level_bytes: false, ..CfOptions::default() };
        let c = pick(&v, &options, &RunningCompactions::new()).unwrap();
        assert!(c.trivial_move && c.output_run == 0, "{c:?}");
        assert_eq!(inputs(&c), [(2, 3, vec![2])]);
    }
}
