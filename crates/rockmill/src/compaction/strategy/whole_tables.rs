//! Rewrites tables that consist of several files, on request, as tables of one file each in the same place: RocksDB has
//! no others. Jobs have the size of manual compactions, and change nothing else.

use super::extra_runs::{MergeDown, merge_down};
use super::inputs::{Files, Picker, any_busy};
use super::manual::ManualPick;
use crate::event_listener::CompactionReason;
use crate::version::FileMeta;

/// True for a table that has to be rewritten.
fn is_meant(f: &FileMeta) -> bool {
    !f.entry.pieces.is_empty()
}

/// The next job: extra runs first, whose tables go into base runs.
pub(super) fn pick(picker: &Picker<'_>) -> ManualPick {
    let mut found = ManualPick::None;
    if !picker.version.files().any(|f| is_meant(f)) {
        return found;
    }
    for level in 1..picker.version.levels.len() {
        match merge_down(picker, level, None, None, u64::MAX) {
            MergeDown::Job(mut job) => {
                job.keep_pieces = false;
                return ManualPick::First(job);
            }
            MergeDown::Busy => return ManualPick::Conflict,
            MergeDown::Nothing => {}
        }
    }
    for level in 0..picker.version.levels.len() {
        let run = picker.files(level);
        for (at, _) in run.iter().enumerate().filter(|(_, f)| is_meant(f)) {
            found = ManualPick::Conflict;
            let Some(files) = inputs(picker, level, at) else { continue };
            let inputs = vec![(level, files)];
            if !picker.output_conflict(&inputs, level) {
                let mut job = picker.build(CompactionReason::ManualCompaction, inputs, level, true);
                job.keep_pieces = false;
                return ManualPick::First(Box::new(job));
            }
        }
    }
    found
}

/// The table at a position of a run and the following ones that must be rewritten, up to the size of a job. In L0 it is
/// alone, and keeps its age. `None` if another operation holds them.
fn inputs(picker: &Picker<'_>, level: usize, at: usize) -> Option<Files> {
    let run = picker.files(level);
    let first = run.get(at)?;
    let mut files = vec![first.clone()];
    if level == 0 {
        return (!picker.level0_busy()).then_some(files);
    }
    let mut bytes = first.size();
    for f in run[at + 1..].iter().take_while(|f| is_meant(f)) {
        bytes = bytes.saturating_add(f.size());
        if bytes > picker.max_compaction_bytes() || any_busy(std::slice::from_ref(f)) {
            break;
        }
        files.push(f.clone());
    }
    picker.expand_in(run, &mut files).then_some(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::Compaction;
    use crate::compaction::strategy::RunningCompactions;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};
    use crate::options::CfOptions;

    fn options() -> CfOptions {
        CfOptions { level_compaction_dynamic_level_bytes: false, max_compaction_bytes: 250, ..CfOptions::default() }
    }

    fn job(picker: &Picker<'_>) -> Compaction {
        match pick(picker) {
            ManualPick::First(job) => *job,
            other => panic!("expected a job, got {other:?}"),
        }
    }

    #[test]
    fn each_is_rewritten_where_it_is_and_no_other() {
        let v = TreeSpec::new(4)
            .file(0, "a", "z", 10) // 1
            .file(0, "a", "z", 10)
            .with_piece(90, 5) // 2
            .file(0, "a", "z", 10) // 3
            .file(2, "a", "b", 60) // 4
            .file(2, "c", "d", 60)
            .with_piece(90, 40) // 5
            .file(2, "e", "f", 60)
            .with_piece(91, 40) // 6
            .file(2, "g", "h", 60)
            .with_piece(91, 40) // 7
            .file(3, "a", "z", 60) // 8
            .build();
        let (options, mut running) = (options(), RunningCompactions::new());
        let expected = [(0, vec![2]), (2, vec![5, 6]), (2, vec![7])];
        for (level, files) in expected.clone() {
            let c = job(&Picker::new(&v, &options, &running));
            assert_eq!((c.inputs.len(), c.output_level, numbers(&c.inputs[0].1)), (1, level, files));
            assert!(!c.keep_pieces && !c.trivial_move && !c.bottommost && c.output_run == 0, "{c:?}");
            running.start(&c);
        }
        assert!(matches!(pick(&Picker::new(&v, &options, &running)), ManualPick::Conflict));
    }

    #[test]
    fn extra_runs_go_first() {
        let spec = || TreeSpec::new(4).file(2, "a", "f", 60).file(2, "b", "c", 60).in_run(2);
        let (options, running) = (options(), RunningCompactions::new());
        let none = spec().build();
        assert!(matches!(pick(&Picker::new(&none, &options, &running)), ManualPick::None));
        let v = spec().file(3, "a", "z", 60).with_piece(90, 1).build();
        let c = job(&Picker::new(&v, &options, &running));
        assert_eq!(c.inputs.iter().map(|(_, f)| numbers(f)).collect::<Vec<_>>(), [[2], [1]]);
        assert!(!c.keep_pieces);
    }
}
