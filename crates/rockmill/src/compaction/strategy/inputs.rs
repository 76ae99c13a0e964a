//! The steps that all strategies share: which files a key range takes, how a set of inputs grows to a clean cut, what
//! the output level adds, and the resulting job. Semantics are RocksDB's (`CompactionPicker`, `Compaction`).

use std::cmp::Ordering;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::compression::CompressionType;
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, ValueType, pack_tag, tag};

use super::RunningCompactions;
use super::aging::Moment;
use super::score::{LevelScores, scores_of};
use super::tree_index::LevelSums;
use crate::compaction::{Compaction, has_older_runs};
use crate::event_listener::CompactionReason;
use crate::options::CfOptions;
use crate::sync::atomic::Ordering as Atomic;
use crate::version::{FileMeta, Level, Version, search};

/// Files of one level.
pub(super) type Files = Vec<Arc<FileMeta>>;

/// One pick in progress: the tree, its options, its scores, and what already runs.
pub(super) struct Picker<'a> {
    pub version: &'a Arc<Version>,
    pub options: &'a CfOptions,
    pub scores: LevelScores,
    /// The sums of the levels.
    pub sums: Vec<LevelSums>,
    pub running: &'a RunningCompactions,
    pub moment: Moment,
}

/// True when `key` ends a file without containing its user key: the exclusive end of a range tombstone.
fn is_sentinel(key: &InternalKey) -> bool {
    tag(key.as_bytes()) == pack_tag(MAX_SEQUENCE, ValueType::RangeDeletion)
}

/// Orders file boundaries: by user key, and an exclusive end before anything else at its user key.
pub(super) fn compare_boundaries(cmp: &InternalKeyComparator, a: &InternalKey, b: &InternalKey) -> Ordering {
    cmp.compare_user(a.user_key(), b.user_key()).then_with(|| is_sentinel(b).cmp(&is_sentinel(a)))
}

/// Files of a sorted run whose range touches [`begin`, `end`] (`None` unbounded).
pub(super) fn overlapping_of_run<'f>(
    cmp: &InternalKeyComparator,
    run: &'f [Arc<FileMeta>],
    begin: Option<&InternalKey>,
    end: Option<&InternalKey>,
) -> &'f [Arc<FileMeta>] {
    let from = begin.map_or(0, |b| search(run, |f| compare_boundaries(cmp, &f.entry.largest, b) == Ordering::Less));
    let to =
        end.map_or(run.len(), |e| search(run, |f| compare_boundaries(cmp, &f.entry.smallest, e) != Ordering::Greater));
    run.get(from..to).unwrap_or_default()
}

/// True when a running job holds one of `files`.
pub(super) fn any_busy(files: &[Arc<FileMeta>]) -> bool {
    files.iter().any(|f| f.being_compacted.load(Atomic::Acquire))
}

/// Bytes of `files`.
pub(super) fn total_bytes(files: &[Arc<FileMeta>]) -> u64 {
    files.iter().map(|f| f.size()).sum()
}

/// Smallest and largest key of a set of files, in any order.
pub(super) fn key_range<'f>(
    cmp: &InternalKeyComparator,
    files: impl IntoIterator<Item = &'f Arc<FileMeta>>,
) -> Option<(&'f InternalKey, &'f InternalKey)> {
    files.into_iter().map(|f| (&f.entry.smallest, &f.entry.largest)).reduce(|(s, l), (fs, fl)| {
        (
            if cmp.compare(fs.as_bytes(), s.as_bytes()).is_lt() { fs } else { s },
            if cmp.compare(fl.as_bytes(), l.as_bytes()).is_gt() { fl } else { l },
        )
    })
}

/// Files of a sorted run that lie wholly inside the range (`None` unbounded), trimmed to clean cuts; none for L0.
pub(crate) fn files_within(
    version: &Version,
    level: usize,
    run: u64,
    begin: Option<&InternalKey>,
    end: Option<&InternalKey>,
) -> Files {
    let cmp = &version.cmp;
    let files = match version.levels.get(level) {
        Some(files) if level > 0 => files.run(run),
        _ => return Vec::new(),
    };
    let mut from =
        begin.map_or(0, |b| search(files, |f| compare_boundaries(cmp, &f.entry.smallest, b) == Ordering::Less));
    let mut to = end
        .map_or(files.len(), |e| search(files, |f| compare_boundaries(cmp, &f.entry.largest, e) != Ordering::Greater));
    to = to.max(from);
    let touch =
        |i: usize| compare_boundaries(cmp, &files[i - 1].entry.largest, &files[i].entry.smallest) == Ordering::Equal;
    while from < to && from > 0 && touch(from) {
        from += 1;
    }
    while to > from && to < files.len() && touch(to) {
        to -= 1;
    }
    files[from..to].to_vec()
}

/// All runs of `levels`, as the inputs of a job: newest run first, L0 as one.
#[cfg(feature = "internals")]
pub(crate) fn inputs_of_levels(version: &Version, levels: &[usize]) -> Vec<(usize, Files)> {
    let of = |level: usize, files: &[Arc<FileMeta>]| (level, files.to_vec());
    let mut inputs = Vec::new();
    for (level, tables) in version.levels.iter().enumerate().filter(|(level, _)| levels.contains(level)) {
        match level {
            0 => inputs.push(of(0, &tables.base)),
            _ => inputs.extend(tables.runs().map(|run| of(level, run))),
        }
    }
    inputs.retain(|(_, files)| !files.is_empty());
    inputs
}

impl<'a> Picker<'a> {
    pub fn new(version: &'a Arc<Version>, options: &'a CfOptions, running: &'a RunningCompactions) -> Self {
        let sums = running.sums(version);
        let scores = scores_of(version, options, &sums, running.level_factor());
        Self { version, options, scores, sums, running, moment: Moment::default() }
    }

    /// The same at a given time, for files that are due by age.
    pub fn at(self, moment: &Moment) -> Self {
        Self { moment: *moment, ..self }
    }

    pub fn cmp(&self) -> &'a InternalKeyComparator {
        &self.version.cmp
    }

    /// Levels that a job may read and write.
    pub fn num_levels(&self) -> usize {
        self.version.usable_levels()
    }

    /// Files of a level's base run; all of L0.
    pub fn files(&self, level: usize) -> &'a [Arc<FileMeta>] {
        self.version.levels.get(level).map_or(&[], |level| &level.base)
    }

    /// Bytes of a level's base run.
    pub fn base_bytes(&self, level: usize) -> u64 {
        let base = self.sums.get(level).and_then(|sums| sums.runs.last()).filter(|run| run.id == 0);
        base.map_or(0, |run| run.bytes)
    }

    /// Limit on the bytes of one job.
    pub fn max_compaction_bytes(&self) -> u64 {
        match self.options.max_compaction_bytes {
            0 => self.options.target_file_size_base.saturating_mul(25),
            n => n,
        }
    }

    /// True while some job that reads L0 runs.
    pub fn level0_busy(&self) -> bool {
        self.running.level0_busy() || any_busy(self.files(0))
    }

    /// Files of a level's base run whose range touches [`begin`, `end`] (`None` unbounded). In L0 the range grows with
    /// every file taken until no other file overlaps it.
    pub fn overlapping(&self, level: usize, begin: Option<&InternalKey>, end: Option<&InternalKey>) -> Files {
        if level == 0 {
            return self.version.overlapping(0, begin.map(InternalKey::user_key), end.map(InternalKey::user_key));
        }
        self.overlapping_in(self.files(level), begin, end)
    }

    /// Files of a sorted run whose range touches [`begin`, `end`] (`None` unbounded).
    pub fn overlapping_in(
        &self,
        files: &[Arc<FileMeta>],
        begin: Option<&InternalKey>,
        end: Option<&InternalKey>,
    ) -> Files {
        overlapping_of_run(self.cmp(), files, begin, end).to_vec()
    }

    fn overlapping_files(&self, level: usize, files: &[Arc<FileMeta>]) -> Files {
        match key_range(self.cmp(), files) {
            Some((s, l)) => self.overlapping(level, Some(s), Some(l)),
            None => Vec::new(),
        }
    }

    /// True if extra runs of `level` have tables in the range of `files`. Their data is older than what would come into
    /// the base run from above, so they must be merged first.
    pub fn extra_runs_touch(&self, level: usize, files: &[Arc<FileMeta>]) -> bool {
        let Some(extras) = self.version.levels.get(level).map(|l| &l.extras).filter(|e| !e.is_empty()) else {
            return false;
        };
        let Some((s, l)) = key_range(self.cmp(), files) else { return false };
        let (s, l) = (Some(s.user_key()), Some(l.user_key()));
        extras.iter().any(|run| !self.version.touched_of(&run.files, s, l).is_empty())
    }

    /// Adds the neighbours that share a boundary user key with `files`, until the cut is clean on both sides. False
    /// when that takes in a busy file.
    pub fn expand_to_clean_cut(&self, level: usize, files: &mut Files) -> bool {
        if level == 0 || files.is_empty() {
            return true; // an L0 set is closed by `overlapping`
        }
        self.expand_in(self.files(level), files)
    }

    /// The same in a sorted run.
    pub fn expand_in(&self, run: &[Arc<FileMeta>], files: &mut Files) -> bool {
        loop {
            let Some((s, l)) = key_range(self.cmp(), &*files) else { return true };
            let wider = self.overlapping_in(run, Some(s), Some(l));
            let grown = wider.len() > files.len();
            *files = wider;
            if !grown {
                return !any_busy(files);
            }
        }
    }

    /// Files of a sorted level that lie wholly inside the range, trimmed to clean cuts.
    fn within(&self, level: usize, begin: &InternalKey, end: &InternalKey) -> Files {
        files_within(self.version, level, 0, Some(begin), Some(end))
    }

    /// The output level's part of a job, and perhaps more of the start level if that costs no further output file
    /// (`SetupOtherInputs`). `None` when a busy file stands in the way. `rightwards`: first tries to take only files
    /// with larger keys.
    pub fn setup_other_inputs(
        &self,
        level: usize,
        inputs: &mut Files,
        output_level: usize,
        rightwards: bool,
    ) -> Option<Files> {
        if level == output_level {
            return Some(Vec::new());
        }
        if self.extra_runs_touch(output_level, inputs) {
            return None;
        }
        let mut output = self.overlapping_files(output_level, inputs);
        if any_busy(&output) || !self.expand_to_clean_cut(output_level, &mut output) {
            return None;
        }
        if output.is_empty() {
            return Some(output); // likely a trivial move: keep it one
        }
        let limit = self.max_compaction_bytes().saturating_mul(2);
        let output_bytes = total_bytes(&output);
        let fits = |f: &Files| f.len() > inputs.len() && !any_busy(f) && output_bytes + total_bytes(f) < limit;
        let (start, end) = key_range(self.cmp(), inputs.iter().chain(&output))?;
        let first = if rightwards { key_range(self.cmp(), &*inputs)?.0 } else { start };
        let mut wider = self.overlapping(level, Some(first), Some(end));
        let mut expand = false;
        if self.expand_to_clean_cut(level, &mut wider) && fits(&wider) {
            let mut wider_output = self.overlapping_files(output_level, &wider);
            expand = self.expand_to_clean_cut(output_level, &mut wider_output) && wider_output.len() == output.len();
        }
        if !expand {
            wider = self.within(level, start, end);
            // Files inside the range cannot add output files. Take a set only if it still has all the first inputs.
            expand = fits(&wider) && inputs.iter().all(|f| wider.iter().any(|w| w.number() == f.number()));
        }
        if expand && !self.extra_runs_touch(output_level, &wider) {
            *inputs = wider;
        }
        Some(output)
    }

    /// True when the range of `inputs` touches a running job's output in `level`.
    pub fn output_conflict(&self, inputs: &[(usize, Files)], level: usize) -> bool {
        match key_range(self.cmp(), inputs.iter().flat_map(|(_, f)| f)) {
            Some((s, l)) => self.running.output_conflict(self.cmp(), level, s.user_key(), l.user_key()),
            None => false,
        }
    }

    /// Files of the first level below the output that overlap the job: an output that overlaps too many of them
    /// would be expensive to compact later.
    pub fn grandparents(&self, inputs: &[(usize, Files)], output_level: usize) -> Files {
        let Some((s, l)) = key_range(self.cmp(), inputs.iter().flat_map(|(_, f)| f)) else { return Vec::new() };
        (output_level + 1..self.num_levels())
            .map(|level| self.overlapping(level, Some(s), Some(l)))
            .find(|f| !f.is_empty())
            .unwrap_or_default()
    }

    /// True when no data older than the job's output can exist for its keys.
    fn bottommost(&self, inputs: &[(usize, Files)], output_level: usize) -> bool {
        if self.version.reserves_last_level {
            return false; // older data may come at any time
        }
        if output_level == 0 {
            let oldest = self.files(0).last().map(|f| f.number());
            let last = inputs.first().and_then(|(_, f)| f.last()).map(|f| f.number());
            if oldest != last {
                return false;
            }
            // The oldest L0 run is bottommost only over an empty tree, as in RocksDB. Extra runs are data as well.
            return self.version.levels.iter().skip(1).all(Level::is_empty);
        }
        let Some((s, l)) = key_range(self.cmp(), inputs.iter().flat_map(|(_, f)| f)) else { return false };
        if self.version.has_extra_runs() || self.running.writes_extra_runs() {
            return !has_older_runs(self.version, inputs, output_level, 0);
        }
        (output_level + 1..self.num_levels())
            .all(|level| self.version.overlapping(level, Some(s.user_key()), Some(l.user_key())).is_empty())
    }

    /// Compression of tables in a level (`GetCompressionType`).
    pub fn compression(&self, level: usize) -> CompressionType {
        compression_for_level(self.version, self.options, level, self.scores.base_level)
    }

    /// Size of output tables of a level (`MaxFileSizeForLevel`).
    pub fn target_file_size(&self, level: usize) -> u64 {
        let base = self.scores.base_level;
        let steps = if self.options.dynamic_levels() && level >= base { level - base } else { level };
        let factor = self.options.target_file_size_multiplier.max(1) as u64;
        (1..steps).fold(self.options.target_file_size_base.max(1), |size, _| size.checked_mul(factor).unwrap_or(size))
    }

    /// True when the inputs can become live in the output level as they are.
    fn trivial_move(&self, inputs: &[(usize, Files)], output_level: usize, l0_may_overlap: bool) -> bool {
        let [(level, files)] = inputs else { return false };
        // Files of an extra run may move into the base run of their own level.
        let same_run = *level == output_level && files.first().is_none_or(|f| f.entry.extra_run == 0);
        if same_run || self.compression(*level) != self.compression(output_level) {
            return false;
        }
        if *level == 0 && l0_may_overlap && !self.level0_disjoint() {
            return false;
        }
        output_level + 1 >= self.num_levels()
            || files.iter().all(|f| {
                let below = self.overlapping(output_level + 1, Some(&f.entry.smallest), Some(&f.entry.largest));
                f.size() + total_bytes(&below) <= self.max_compaction_bytes()
            })
    }

    /// True when no two L0 files overlap.
    pub fn level0_disjoint(&self) -> bool {
        let mut files: Vec<_> = self.files(0).iter().collect();
        let cmp = self.cmp();
        files.sort_by(|a, b| cmp.compare(a.entry.smallest.as_bytes(), b.entry.smallest.as_bytes()));
        files.windows(2).all(|w| cmp.compare_user(w[0].largest_user_key(), w[1].smallest_user_key()).is_lt())
    }

    /// The job, with everything derived from its inputs filled in.
    pub fn build(
        &self,
        reason: CompactionReason,
        mut inputs: Vec<(usize, Files)>,
        output_level: usize,
        l0_may_overlap: bool,
    ) -> Compaction {
        inputs.retain(|(_, f)| !f.is_empty());
        let bottommost = self.bottommost(&inputs, output_level);
        // A user who asks for a compaction and has a filter wants everything to pass it.
        let must_filter = reason == CompactionReason::ManualCompaction && self.options.has_compaction_filter();
        let trivial_move = !must_filter && self.trivial_move(&inputs, output_level, l0_may_overlap);
        let grandparents = if output_level == 0 { Vec::new() } else { self.grandparents(&inputs, output_level) };
        let target = if output_level == 0 { u64::MAX } else { self.target_file_size(output_level) };
        let start_level = inputs.first().map_or(0, |(l, _)| *l);
        let split_key = self.split_key(&inputs, output_level);
        let mut c = Compaction {
            bottommost,
            trivial_move,
            output_file_size_target: target,
            // Above the bottom, an output may continue up to a boundary of the level below.
            output_file_size_max: if bottommost || grandparents.is_empty() { target } else { target.saturating_mul(2) },
            grandparents,
            grandparent_overlap_max: self.max_compaction_bytes(),
            split_key,
            score: self.scores.scores.get(start_level).copied().unwrap_or(0.0),
            ..Compaction::new(self.version, reason, inputs, output_level, self.compression(output_level))
        };
        // For manual compactions, the caller chooses the path.
        if reason != CompactionReason::ManualCompaction {
            c.choose_path(self.options);
        }
        c
    }

    /// True if the column family has several paths: then it is not known in advance which files may move without a
    /// rewrite.
    pub fn several_paths(&self) -> bool {
        self.options.cf_paths.len() > 1
    }
}

/// Compression of the tables written to `level` (RocksDB's `GetCompressionType`).
pub(crate) fn compression_for_level(
    version: &Version,
    options: &CfOptions,
    level: usize,
    base_level: usize,
) -> CompressionType {
    let last_full = version.levels.iter().rposition(|f| !f.is_empty());
    if let Some(bottom) = options.bottommost_compression
        && last_full.is_none_or(|l| level >= l)
    {
        return bottom;
    }
    let index = if level == 0 { 0 } else { (level + 1).saturating_sub(base_level) };
    let per_level = &options.compression_per_level;
    per_level.get(index).or(per_level.last()).copied().unwrap_or(options.compression)
}
