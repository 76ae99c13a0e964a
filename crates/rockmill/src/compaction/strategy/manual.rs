//! Manual compaction (`compact_range`): the levels to go through, and the jobs of each (RocksDB's
//! `CompactRangeInternal`, `RunManualCompaction` and `PickCompactionForCompactRange`).
//!
//! 1. [`ManualWalk`] starts at the first level that overlaps the range and names one step after another: this level
//!    into the next one, down to the last; then, if asked, the last level into itself.
//! 2. For each step the store calls [`pick`] until nothing of the range is left in the level: a job takes at most
//!    `max_compaction_bytes`, and says where the next one begins.

use std::sync::Arc;

use rockmill_format::key::InternalKey;

use super::aging::Moment;
use super::extra_runs::{MergeDown, merge_down};
use super::inputs::{Files, Picker, any_busy, key_range, total_bytes};
use super::score::level_scores;
use super::tiered;
use super::{RunningCompactions, fifo, whole_tables};
use crate::compaction::Compaction;
use crate::event_listener::CompactionReason;
use crate::options::{BottommostLevelCompaction, CfOptions, CompactionStyle};
use crate::version::Version;

/// What `pick` found.
#[derive(Debug)]
pub enum ManualPick {
    /// Nothing of the range is in the level: the step is done.
    None,
    /// A running job holds files that this one needs: try again when a job has ended.
    Conflict,
    /// A job that must be done before the step can continue: it merges an extra run, or rewrites tables.
    First(Box<Compaction>),
    /// A job, and the user key where the rest of the range begins (`None`: it covers the whole range).
    Pick(Box<Compaction>, Option<Vec<u8>>),
}

/// Chooses the next job of a manual compaction of `level` into `output_level` over user keys [`begin`, `end`] (both
/// inclusive, `None` unbounded). From L0 the output is always the current base level. When both levels are the same,
/// files with numbers from `file_number_limit` on are left alone: this manual compaction made them.
#[expect(clippy::too_many_arguments, reason = "each one is a separate fact of the request")]
pub fn pick(
    version: &Arc<Version>,
    options: &CfOptions,
    running: &RunningCompactions,
    level: usize,
    output_level: usize,
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
    file_number_limit: u64,
) -> ManualPick {
    let picker = Picker::new(version, options, running);
    let output_level = if level == 0 && output_level != 0 { picker.scores.base_level } else { output_level };
    if let Some(merge) = first_merge(&picker, [output_level, level], begin, end, u64::MAX) {
        return merge;
    }
    let begin_key = begin.map(InternalKey::min_possible);
    let end_key = end.map(InternalKey::max_possible);
    let mut files = picker.overlapping(level, begin_key.as_ref(), end_key.as_ref());
    if files.is_empty() {
        return ManualPick::None;
    }
    if level == 0 && picker.level0_busy() {
        return ManualPick::Conflict;
    }
    let mut whole_range = limit_bytes(&picker, level, output_level, &mut files);
    if level == output_level && !keep_older_files(&mut files, file_number_limit, &mut whole_range) {
        return ManualPick::None;
    }
    if !picker.expand_to_clean_cut(level, &mut files) {
        return ManualPick::Conflict;
    }
    // Whole tables may extend beyond the range, and so may the tables that they overlap below.
    if level != output_level
        && let Some((s, l)) = key_range(picker.cmp(), &files)
        && let Some(merge) = first_merge(&picker, [output_level], Some(s.user_key()), Some(l.user_key()), u64::MAX)
    {
        return merge;
    }
    let last = files.last().map(|f| f.number());
    let rest = picker.files(level).iter().skip_while(|f| Some(f.number()) != last).nth(1);
    let next_begin = rest.filter(|_| !whole_range).map(|f| f.smallest_user_key().to_vec());

    let Some(output) = picker.setup_other_inputs(level, &mut files, output_level, false) else {
        return ManualPick::Conflict;
    };
    let inputs = vec![(level, files), (output_level, output)];
    if inputs.iter().any(|(_, f)| any_busy(f)) || picker.output_conflict(&inputs, output_level) {
        return ManualPick::Conflict;
    }
    let compaction = picker.build(CompactionReason::ManualCompaction, inputs, output_level, true);
    ManualPick::Pick(Box::new(compaction), next_begin)
}

/// What must first be done about extra runs of the range in `levels`; `None` if no extra run has files with numbers
/// below the limit.
fn first_merge(
    picker: &Picker<'_>,
    levels: impl IntoIterator<Item = usize>,
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
    file_number_limit: u64,
) -> Option<ManualPick> {
    levels.into_iter().find_map(|level| match merge_down(picker, level, begin, end, file_number_limit) {
        MergeDown::Nothing => None,
        MergeDown::Busy => Some(ManualPick::Conflict),
        MergeDown::Job(job) => Some(ManualPick::First(job)),
    })
}

/// Cuts the inputs of a sorted level off where the job would grow beyond `max_compaction_bytes`; the first file
/// always stays. True when nothing was cut.
fn limit_bytes(picker: &Picker<'_>, level: usize, output_level: usize, files: &mut Files) -> bool {
    let (true, Some(first)) = (level > 0, files.first()) else { return true };
    let mut bytes = first.size();
    for i in 1..files.len() {
        bytes += files[i].size();
        let (smallest, largest) = (&files[0].entry.smallest, &files[i].entry.largest);
        let below = if output_level == level {
            0
        } else {
            total_bytes(&picker.overlapping(output_level, Some(smallest), Some(largest)))
        };
        if bytes.saturating_add(below) > picker.max_compaction_bytes() {
            files.truncate(i);
            return false;
        }
    }
    true
}

/// Keeps the first unbroken stretch of files older than the limit. False when there is none.
fn keep_older_files(files: &mut Files, limit: u64, whole_range: &mut bool) -> bool {
    let Some(from) = files.iter().position(|f| f.number() < limit) else { return false };
    files.drain(..from);
    if let Some(to) = files.iter().position(|f| f.number() >= limit) {
        if files[to..].iter().any(|f| f.number() < limit) {
            *whole_range = false;
        }
        files.truncate(to);
    }
    true
}

/// How a step picks its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The range of one level, into itself or the next one.
    Range,
    /// Everything into one run, because universal compaction has no ranges.
    Everything,
    /// What FIFO compaction would do by itself.
    Fifo,
    /// Extra runs of the range into the base runs of their levels.
    ExtraRuns,
    /// Tables of several files into tables of one, of all levels.
    WholeTables,
}

/// One step of a manual compaction: all of the range in `level` goes to `output_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManualStep {
    /// How.
    pub kind: StepKind,
    /// From.
    pub level: usize,
    /// To.
    pub output_level: usize,
    /// For `pick`; of extra runs only files with numbers below it are merged, and what these need.
    pub file_number_limit: u64,
    /// Rewrite even files that could be moved (a step of a level into itself).
    pub rewrite: bool,
}

impl ManualStep {
    /// All of the range in a level into another one.
    pub(crate) fn new(level: usize, output_level: usize) -> Self {
        Self { kind: StepKind::Range, level, output_level, file_number_limit: u64::MAX, rewrite: false }
    }

    /// All extra runs into the base runs of their levels.
    pub(crate) fn extra_runs() -> Self {
        Self { kind: StepKind::ExtraRuns, ..Self::new(0, 0) }
    }

    /// All tables of several files into tables of one.
    pub(crate) fn whole_tables() -> Self {
        Self { kind: StepKind::WholeTables, ..Self::new(0, 0) }
    }

    /// The step's next job, over user keys [`begin`, `end`]; see [`pick`].
    pub fn pick(
        &self,
        version: &Arc<Version>,
        options: &CfOptions,
        running: &RunningCompactions,
        moment: &Moment,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> ManualPick {
        match self.kind {
            StepKind::Fifo => match fifo::pick(&Picker::new(version, options, running).at(moment)) {
                Some(job) => ManualPick::Pick(Box::new(job), None),
                // Tables that it deletes exist until it commits.
                None if running.count() > 0 => ManualPick::Conflict,
                None => ManualPick::None,
            },
            StepKind::Everything => tiered::everything(version, options, running),
            StepKind::ExtraRuns => {
                let picker = Picker::new(version, options, running);
                let (levels, limit) = (1..version.levels.len(), self.file_number_limit);
                first_merge(&picker, levels, begin, end, limit).unwrap_or(ManualPick::None)
            }
            StepKind::WholeTables => whole_tables::pick(&Picker::new(version, options, running)),
            StepKind::Range => {
                let (level, to, limit) = (self.level, self.output_level, self.file_number_limit);
                pick(version, options, running, level, to, begin, end, limit)
            }
        }
    }
}

/// Goes through the levels of a manual compaction.
#[derive(Debug)]
pub struct ManualWalk {
    state: State,
    bottommost: BottommostLevelCompaction,
    first_new_file: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Extra runs are merged, then it steps down from this level.
    ExtraRuns(usize),
    /// Steps down from this level.
    At(usize),
    /// L0 was compacted: go on from the base level.
    AtBase,
    Done,
}

impl ManualWalk {
    /// A walk over user keys [`begin`, `end`]. `next_file_number` distinguishes files that the walk itself makes from
    /// older ones.
    pub fn new(
        version: &Version,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
        bottommost: BottommostLevelCompaction,
        next_file_number: u64,
    ) -> Self {
        let first = (0..version.levels.len()).find(|&l| !version.overlapping(l, begin, end).is_empty());
        let begun = if version.has_extra_runs() { State::ExtraRuns } else { State::At };
        let state = first.map_or(State::Done, begun);
        Self { state, bottommost, first_new_file: next_file_number }
    }

    /// The next step, seen from the current version; `None` at the end.
    pub fn next_step(&mut self, version: &Version, options: &CfOptions) -> Option<ManualStep> {
        let level = match self.state {
            State::Done => return None,
            State::ExtraRuns(level) if options.compaction_style == CompactionStyle::Level => {
                self.state = State::At(level);
                return Some(ManualStep { kind: StepKind::ExtraRuns, ..ManualStep::new(level, level) });
            }
            State::At(level) | State::ExtraRuns(level) => level,
            State::AtBase => level_scores(version, options).base_level,
        };
        let last = version.usable_levels().saturating_sub(1);
        if options.compaction_style == CompactionStyle::Universal {
            self.state = State::Done;
            let filled = (0..=last).find(|&l| !version.levels[l].is_empty());
            return filled.map(|l| ManualStep {
                kind: StepKind::Everything,
                rewrite: true,
                ..ManualStep::new(l, last)
            });
        }
        if options.compaction_style == CompactionStyle::Fifo {
            self.state = State::Done;
            return Some(ManualStep { kind: StepKind::Fifo, ..ManualStep::new(0, 0) });
        }
        if level > last {
            self.state = State::Done; // what was ingested behind stays
            return None;
        }
        if level == 0 {
            self.state = State::AtBase;
            let output_level = level_scores(version, options).base_level;
            return Some(ManualStep::new(level, output_level));
        }
        let deepest = version.levels[..=last].iter().rposition(|f| !f.is_empty()).unwrap_or(0);
        let at_bottom = if options.dynamic_levels() { level >= last } else { level >= deepest.min(last) };
        if !at_bottom {
            self.state = State::At(level + 1);
            return Some(ManualStep::new(level, level + 1));
        }
        self.state = State::Done;
        let file_number_limit = match self.bottommost {
            BottommostLevelCompaction::Skip => return None,
            BottommostLevelCompaction::IfHaveCompactionFilter if !options.has_compaction_filter() => return None,
            BottommostLevelCompaction::Force => u64::MAX,
            // The walk's outputs were filtered on the way down.
            BottommostLevelCompaction::ForceOptimized | BottommostLevelCompaction::IfHaveCompactionFilter => {
                self.first_new_file
            }
        };
        Some(ManualStep { file_number_limit, rewrite: true, ..ManualStep::new(level, level) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::testing::{TreeSpec, numbers};

    fn options() -> CfOptions {
        CfOptions { level_compaction_dynamic_level_bytes: false, max_compaction_bytes: 100, ..CfOptions::default() }
    }

    fn job(pick: ManualPick) -> (Compaction, Option<Vec<u8>>) {
        match pick {
            ManualPick::Pick(c, next) => (*c, next),
            other => panic!("expected a job, got {other:?}"),
        }
    }

    #[test]
    fn the_range_is_cut_at_the_byte_limit_and_resumes() {
        let v = TreeSpec::new(4)
            .file(1, "a", "b", 40)
            .file(1, "c", "d", 40)
            .file(1, "e", "f", 40)
            .file(2, "a", "d", 15)
            .build();
        let (o, mut cursors) = (options(), RunningCompactions::new());
        let (c, next) = job(pick(&v, &o, &cursors, 1, 2, None, None, u64::MAX));
        assert_eq!(numbers(&c.inputs[0].1), [1, 2]);
        assert_eq!(numbers(&c.inputs[1].1), [4]);
        assert_eq!(next.as_deref(), Some(&b"e"[..]));
        cursors.start(&c);
        let again = pick(&v, &o, &cursors, 1, 2, None, None, u64::MAX);
        assert!(matches!(again, ManualPick::Conflict));
        let (c, next) = job(pick(&v, &o, &cursors, 1, 2, next.as_deref(), None, u64::MAX));
        assert_eq!(numbers(&c.inputs[0].1), [3]);
        assert!(c.trivial_move && next.is_none());
    }

    /// Otherwise `compact_range` would return while the files are still there.
    #[test]
    fn a_deletion_that_runs_is_waited_for() {
        let v = TreeSpec::new(1).file(0, "a", "z", 60).file(0, "a", "z", 60).build();
        let mut o = CfOptions { compaction_style: CompactionStyle::Fifo, ..options() };
        o.compaction_options_fifo.max_table_files_size = 100;
        let step = ManualStep { kind: StepKind::Fifo, ..ManualStep::new(0, 0) };
        let moment = Moment { now: 0, oldest_snapshot: 0 };
        let mut cursors = RunningCompactions::new();
        let (c, _) = job(step.pick(&v, &o, &cursors, &moment, None, None));
        cursors.start(&c);
        assert!(matches!(step.pick(&v, &o, &cursors, &moment, None, None), ManualPick::Conflict));
        o.compaction_options_fifo.max_table_files_size = 1000;
        let idle = RunningCompactions::new();
        assert!(matches!(step.pick(&v, &o, &idle, &moment, None, None), ManualPick::None));
    }

    #[test]
    fn only_files_that_touch_the_range_are_taken() {
        let v = TreeSpec::new(4).file(1, "a", "b", 1).open_file(1, "c", "e", 1).file(1, "e", "f", 1).build();
        let o = options();
        let cursors = RunningCompactions::new();
        let (c, _) = job(pick(&v, &o, &cursors, 1, 2, Some(b"e"), Some(b"e"), u64::MAX));
        assert_eq!(numbers(&c.inputs[0].1), [3], "a file that ends before e has no e");
        assert!(matches!(pick(&v, &o, &cursors, 1, 2, Some(b"x"), None, u64::MAX), ManualPick::None));
    }

    #[test]
    fn force_optimized_skips_what_the_walk_wrote() {
        let v = TreeSpec::new(4).file(2, "a", "b", 1).file(2, "c", "d", 1).file(2, "e", "f", 1).build();
        let o = options();
        let cursors = RunningCompactions::new();
        let (c, next) = job(pick(&v, &o, &cursors, 2, 2, None, None, 3));
        assert_eq!(numbers(&c.inputs[0].1), [1, 2]);
        assert!(next.is_none() && !c.trivial_move && c.bottommost);
        assert!(matches!(pick(&v, &o, &cursors, 2, 2, None, None, 1), ManualPick::None));
    }

    #[test]
    fn a_walk_goes_down_level_by_level() {
        let v = TreeSpec::new(4).file(0, "a", "b", 1).file(1, "c", "d", 1).file(2, "a", "z", 1).build();
        let o = options();
        let steps = |b| {
            let mut walk = ManualWalk::new(&v, None, None, b, 7);
            std::iter::from_fn(|| walk.next_step(&v, &o).map(|s| (s.level, s.output_level, s.file_number_limit)))
                .collect::<Vec<_>>()
        };
        let down = [(0, 1, u64::MAX), (1, 2, u64::MAX)];
        assert_eq!(steps(BottommostLevelCompaction::Skip), down);
        assert_eq!(steps(BottommostLevelCompaction::ForceOptimized), [down[0], down[1], (2, 2, 7)]);
        assert_eq!(steps(BottommostLevelCompaction::Force), [down[0], down[1], (2, 2, u64::MAX)]);
        let mut walk = ManualWalk::new(&v, Some(b"zz"), None, BottommostLevelCompaction::Force, 7);
        assert_eq!(walk.next_step(&v, &o), None);
    }
}
