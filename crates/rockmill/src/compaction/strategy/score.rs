//! How full each level is: target sizes, compaction scores and compaction debt, by RocksDB's formulas
//! (`VersionStorageInfo::CalculateBaseBytes`, `ComputeCompactionScore`, `EstimateCompactionBytesNeeded`).
//!
//! With universal compaction the score of L0 is that of the whole tree: the number of sorted runs (each L0 table and
//! each level that has tables) divided by `level0_file_num_compaction_trigger`. There is no debt then; only runs slow
//! writers. With FIFO compaction it is the bytes of all tables divided by the bytes that may stay, and nothing slows
//! writers.

use crate::options::{CfOptions, CompactionStyle};
use crate::pacing::write_control::TreeLoad;
use crate::sync::atomic::Ordering;
use crate::version::{FileMeta, Level, Version, each_file};

use super::tree_index::LevelSums;

/// With dynamic level sizes a score of 1 and more is stretched by this, which leaves room to lower a score for
/// priority without going below the trigger at 1.
const SCORE_SCALE: f64 = 10.0;

/// How full the tree is.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelScores {
    /// Level that L0 compacts into.
    pub base_level: usize,
    /// With dynamic level sizes: levels from the base to this one should be emptied.
    pub lowest_unnecessary_level: Option<usize>,
    /// Target size of each level, in bytes; `u64::MAX` if nothing is compacted because of its size.
    pub targets: Vec<u64>,
    /// Score of each level; a compaction is due at 1. The last level has none (0).
    pub scores: Vec<f64>,
    /// Compaction debt: bytes that compactions must still rewrite until every level is within its target.
    pub pending_bytes: u64,
    /// Sorted runs that count towards the triggers `level0_slowdown_writes_trigger` and
    /// `level0_stop_writes_trigger`: L0's files, and with universal compaction the levels that have files, too.
    pub runs: usize,
}

impl LevelScores {
    /// Levels with their scores, the most pressing first.
    pub fn by_priority(&self) -> Vec<(usize, f64)> {
        let inputs = self.scores.len().saturating_sub(1);
        let mut order: Vec<(usize, f64)> = self.scores.iter().copied().enumerate().take(inputs).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        order
    }

    /// The levels among the first `levels` whose score requires a compaction, the most pressing first. The last level
    /// counts, too, because it may have runs to merge.
    pub(super) fn by_fullness(&self, levels: usize) -> Vec<usize> {
        let mut due: Vec<usize> = (0..self.scores.len().min(levels)).filter(|l| self.scores[*l] >= 1.0).collect();
        due.sort_by(|a, b| self.scores[*b].total_cmp(&self.scores[*a]));
        due
    }

    /// The highest score.
    pub fn max_score(&self) -> f64 {
        self.scores.iter().copied().fold(0.0, f64::max)
    }

    /// The part of it that slows writers.
    pub fn load(&self) -> TreeLoad {
        TreeLoad { runs: self.runs, pending_bytes: self.pending_bytes }
    }

    /// True when some level's score asks for a compaction.
    pub fn needs_compaction(&self) -> bool {
        self.max_score() >= 1.0
    }
}

/// Computes the scores of a version. Where they are needed again and again,
/// [`RunningCompactions::level_scores`](super::RunningCompactions::level_scores) is quicker.
pub fn level_scores(version: &Version, options: &CfOptions) -> LevelScores {
    scores_of(version, options, &LevelSums::of(version), 1)
}

/// The scores of a version whose levels have these sums, if levels may hold `times` what the options say. The level
/// that L0 goes to, and the levels to be emptied, do not depend on `times`: a level that became unnecessary would have
/// to be rewritten just when there is no time for it.
pub(super) fn scores_of(version: &Version, options: &CfOptions, sums: &[LevelSums], times: u64) -> LevelScores {
    let usable = version.usable_levels();
    let sizes: Vec<u64> = sums.iter().take(usable).map(LevelSums::bytes).collect();
    let mut base = base_bytes(&sizes, options);
    let times = times_allowed(version, options, &sizes, &base, times);
    base.targets.iter_mut().for_each(|target| *target = target.saturating_mul(times));
    base.l0_bytes = base.l0_bytes.saturating_mul(times);
    base.targets.resize(version.levels.len(), u64::MAX);
    let l0_files = version.levels.first().map_or(0, Level::len);
    let (mut scores, pending_bytes, mut runs) = match options.compaction_style {
        CompactionStyle::Universal if options.compaction_downforce || options.compaction_classic => {
            let (scores, runs) = by_runs_of_levels(version, options, sums);
            (scores, 0, l0_files + runs)
        }
        CompactionStyle::Universal => {
            let below = version.levels.iter().take(usable).skip(1).map(|level| level.runs().count()).sum::<usize>();
            (universal_scores(version, options), 0, l0_files + below)
        }
        // Excess data is deleted, so writers never have to wait.
        CompactionStyle::Fifo => (fifo_scores(version, options, sums), 0, 0),
        CompactionStyle::Level => {
            let of = if options.compaction_classic { classic_scores } else { scores };
            (of(options, &base, sums, usable), debt_of(version, options, &sizes, &base), l0_files)
        }
    };
    if options.compaction_style == CompactionStyle::Level && version.has_extra_runs() {
        runs += extra_runs(options, &mut scores, sums, usable);
    }
    LevelScores {
        base_level: base.level,
        lowest_unnecessary_level: base.lowest_unnecessary,
        targets: base.targets,
        scores,
        pending_bytes,
        runs,
    }
}

/// Levels may hold more only up to a size that would not slow writers once the extra room ends: after a while without
/// load, and when RocksDB opens the directory. If levels have paths of their own, they may not hold more, because the
/// paths were sized by the options.
fn times_allowed(version: &Version, options: &CfOptions, sizes: &[u64], base: &Base, times: u64) -> u64 {
    let limits = [options.soft_pending_compaction_bytes_limit, options.hard_pending_compaction_bytes_limit];
    let limit = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(u64::MAX);
    let put_off = times > 1 && options.cf_paths.len() < 2 && debt_of(version, options, sizes, base) <= limit / 2;
    if put_off { times } else { 1 }
}

/// Raises the scores of levels with extra runs: free runs, which no job holds, count like L0's files. When no job runs
/// and nothing else is due, one extra run is enough, so that what a burst of writes left is merged for readers; and, if
/// the options want merges at once, in a level that no job holds any of. For
/// writers, the runs of a level beyond the trigger count as files of L0; the function returns their number.
fn extra_runs(options: &CfOptions, scores: &mut [f64], sums: &[LevelSums], usable: usize) -> usize {
    let due = super::df::runs_due(options);
    let scale = if options.dynamic_levels() { SCORE_SCALE } else { 1.0 };
    let mut too_many = 0;
    let at_rest = scores.iter().all(|score| *score < 1.0) && sums.iter().all(|level| level.busy() == 0);
    let at_once = super::df::merges_at_once(options);
    for (score, level) in scores.iter_mut().zip(sums).take(usable).skip(1) {
        if !level.has_extras() {
            continue;
        }
        let free = level.free_depth;
        let mut by_runs = free as f64 / due as f64;
        if by_runs >= 1.0 {
            by_runs *= scale;
        } else if free > 0 && (at_rest || (at_once && level.busy() == 0)) {
            by_runs = 1.0;
        }
        *score = score.max(by_runs);
        too_many += level.depth.saturating_sub(due);
    }
    too_many
}

/// The number of runs that no job holds divided by the trigger, as the score of L0. A run is taken as a whole.
fn universal_scores(version: &Version, options: &CfOptions) -> Vec<f64> {
    let idle = |f: &FileMeta| !f.being_compacted.load(Ordering::Acquire);
    let mut scores = vec![0.0; version.levels.len()];
    let usable = version.usable_levels();
    let mut levels = version.levels.iter().take(usable);
    let l0 = levels.next().map_or(0, |files| files.iter().filter(|f| idle(f)).count());
    let below: usize = levels.map(|l| l.runs().filter(|files| files.first().is_some_and(|f| idle(f))).count()).sum();
    if let Some(score) = scores.first_mut() {
        *score = (l0 + below) as f64 / f64::from(options.level0_file_num_compaction_trigger.max(1));
    }
    scores
}

/// For each level its free runs divided by the trigger; with DF-compaction also 1 for the oldest run's level if all
/// others are too large for it. Also returns the runs that levels below L0 have beyond the trigger.
fn by_runs_of_levels(version: &Version, options: &CfOptions, sums: &[LevelSums]) -> (Vec<f64>, usize) {
    let mut scores = vec![0.0; version.levels.len()];
    let trigger = match options.compaction_classic {
        true => super::classic::runs_most(options),
        false => options.level0_file_num_compaction_trigger.max(1) as usize,
    };
    let usable = version.usable_levels();
    let mut too_many = 0;
    for (number, (score, level)) in scores.iter_mut().zip(sums).take(usable).enumerate() {
        let free = match number {
            0 => level.tables() - level.busy(),
            _ => level.runs.iter().filter(|run| run.busy == 0).count(),
        };
        *score = free as f64 / trigger as f64;
        if number > 0 {
            too_many += level.runs.len().saturating_sub(trigger);
        }
    }
    if options.compaction_classic {
        return (scores, too_many);
    }
    let oldest = sums.iter().take(usable).enumerate().skip(1).rev();
    let oldest = oldest.filter_map(|(number, level)| level.runs.last().map(|run| (number, run.bytes))).next();
    if let Some((number, size)) = oldest {
        let all: u64 = sums.iter().take(usable).map(LevelSums::bytes).sum();
        let percent = u128::from(options.compaction_options_universal.max_size_amplification_percent);
        if u128::from(all - size) * 100 >= u128::from(size) * percent {
            scores[number] = scores[number].max(1.0);
        }
    }
    (scores, too_many)
}

/// All bytes divided by those that may stay, as the score of L0; or its files divided by the trigger, if they may be
/// merged. Counts all files of tables that are not being deleted, as a whole, since several tables may share a file and
/// need only parts of it.
pub(super) fn bytes_on_disk(version: &Version) -> u64 {
    let files = version.files().filter(|f| !f.being_compacted.load(Ordering::Acquire));
    each_file(files).map(|file| file.size).sum()
}

fn fifo_scores(version: &Version, options: &CfOptions, sums: &[LevelSums]) -> Vec<f64> {
    let mut scores = vec![0.0; sums.len()];
    let bytes: u64 = match version.has_pieces() {
        false => sums.iter().map(LevelSums::free_bytes).sum(),
        true => bytes_on_disk(version),
    };
    let mut score = bytes as f64 / options.compaction_options_fifo.max_table_files_size.max(1) as f64;
    if score < 1.0 && options.compaction_options_fifo.allow_compaction {
        let files = sums.first().map_or(0, |l0| l0.tables() - l0.busy());
        score = score.max(files as f64 / f64::from(options.level0_file_num_compaction_trigger.max(1)));
    }
    if let Some(first) = scores.first_mut() {
        *first = score;
    }
    scores
}

/// Multiplies a size; past the largest number it stays as it was (RocksDB's `MultiplyCheckOverflow`).
fn grow(bytes: u64, factor: f64) -> u64 {
    let grown = bytes as f64 * factor;
    if grown >= u64::MAX as f64 { bytes } else { grown as u64 }
}

struct Base {
    level: usize,
    /// Bytes at which L0 is compacted, however few files it has.
    l0_bytes: u64,
    lowest_unnecessary: Option<usize>,
    targets: Vec<u64>,
}

fn base_bytes(sizes: &[u64], options: &CfOptions) -> Base {
    let levels = sizes.len();
    let factor = options.max_bytes_for_level_multiplier;
    let factor = if factor > 0.0 { factor } else { 1.0 };
    let l0_bytes = options.max_bytes_for_level_base;
    let base_max = l0_bytes.max(1);
    if !options.dynamic_levels() {
        let mut targets = vec![base_max; levels];
        for i in 2..levels {
            let more = options.max_bytes_for_level_multiplier_additional.get(i - 1).copied().unwrap_or(1);
            targets[i] = grow(grow(targets[i - 1], factor), f64::from(more.max(0))).max(1);
        }
        let level = 1.min(levels.saturating_sub(1));
        return Base { level, l0_bytes, lowest_unnecessary: None, targets };
    }

    let mut targets = vec![u64::MAX; levels];
    let first_full = (1..levels).find(|&l| sizes[l] > 0);
    let largest = sizes.iter().skip(1).copied().max().unwrap_or(0);
    let Some(first_full) = first_full else {
        // Nothing below L0: it compacts straight into the last level.
        return Base { level: levels.saturating_sub(1), l0_bytes, lowest_unnecessary: None, targets };
    };
    let base_min = (base_max as f64 / factor) as u64;

    // If the last level's target were the size of the largest level, how large would the first non-empty one be?
    let mut size = largest;
    let mut lowest_unnecessary = None;
    for i in (first_full..levels - 1).rev() {
        size = (size as f64 / factor) as u64;
        if lowest_unnecessary.is_none() && size <= base_min {
            lowest_unnecessary = Some(i);
        }
    }
    let mut level = first_full;
    let base_size = if size <= base_min {
        base_min.saturating_add(1)
    } else {
        while level > 1 && size > base_max {
            level -= 1;
            size = (size as f64 / factor) as u64;
        }
        if size > base_max { base_max } else { size.max(1) }
    };
    let mut size = base_size;
    for (i, target) in targets.iter_mut().enumerate().skip(level) {
        if i > level {
            size = grow(size, factor);
        }
        // Never below the base size: an hourglass-shaped tree would favour deeper levels over a full L0.
        *target = size.max(base_max);
    }
    Base { level, l0_bytes, lowest_unnecessary, targets }
}

/// A file's size with what its tombstones will free added, so that they sink sooner.
pub(super) fn compensated_size(file: &FileMeta) -> u64 {
    // The last two are hints: whatever their values, the sum over all files must stay a number.
    let points = file.tombstone_weight.get().copied().unwrap_or(0);
    file.size() + points + file.entry.compensated_range_deletion_size.min(1 << 48)
}

fn scores(options: &CfOptions, base: &Base, sums: &[LevelSums], usable: usize) -> Vec<f64> {
    let dynamic = options.dynamic_levels();
    let mut scores = vec![0.0; sums.len()];
    // Bytes that levels above will send down soon.
    let mut coming: f64 = 0.0;
    for (level, of_level) in sums.iter().enumerate().take(usable.saturating_sub(1)) {
        let (all, free) = (of_level.bytes(), of_level.free_compensated());
        if level == 0 {
            coming += all as f64;
            let runs = of_level.tables() - of_level.busy();
            let mut score = runs as f64 / f64::from(options.level0_file_num_compaction_trigger.max(1));
            if dynamic {
                if free >= base.l0_bytes {
                    score = score.max(1.01);
                }
                let base_target = base.targets.get(base.level).copied().unwrap_or(u64::MAX);
                if free > base_target {
                    let base_size = sums[base.level].compensated();
                    score = score.max(free as f64 / base_size.max(base_target) as f64);
                }
                if score > 1.0 {
                    score *= SCORE_SCALE;
                }
            } else {
                score = score.max(free as f64 / base.l0_bytes.max(1) as f64);
            }
            scores[0] = score;
            continue;
        }
        let target = base.targets[level];
        let unnecessary = base.lowest_unnecessary.filter(|&l| level <= l);
        scores[level] = if !dynamic || free < target {
            free as f64 / target as f64
        } else {
            // A level that is about to receive much data waits; otherwise it would be rewritten twice.
            free as f64 / (target as f64 + coming) * SCORE_SCALE
        };
        if let Some(lowest) = unnecessary
            && dynamic
            && free > 0
        {
            let drain = SCORE_SCALE * (1.001 + 0.001 * (lowest - level) as f64);
            scores[level] = scores[level].max(drain);
        }
        if unnecessary.is_some() {
            coming += all as f64;
        } else if all > target {
            coming += (all - target) as f64;
        }
    }
    scores
}

/// For the classic strategy: L0 is due with its first table, and other levels when they are full, whatever they will
/// receive. A full level takes nothing, so nothing else may go before it.
fn classic_scores(_: &CfOptions, base: &Base, sums: &[LevelSums], usable: usize) -> Vec<f64> {
    let mut scores = vec![0.0; sums.len()];
    for (level, of_level) in sums.iter().enumerate().take(usable.saturating_sub(1)) {
        let free = of_level.free_compensated();
        scores[level] = match level {
            0 => (of_level.tables() - of_level.busy()) as f64,
            _ => free as f64 / base.targets[level].max(1) as f64,
        };
        if level > 0 && free > 0 && base.lowest_unnecessary.is_some_and(|lowest| level <= lowest) {
            scores[level] = scores[level].max(1.0);
        }
    }
    scores
}

/// Tables of L0 at which they are due.
fn l0_due(options: &CfOptions) -> i64 {
    let classic = options.compaction_classic && options.compaction_style == CompactionStyle::Level;
    if classic { 1 } else { i64::from(options.level0_file_num_compaction_trigger) }
}

/// Bytes that must still be rewritten: what leaves each level, and what is rewritten below because of that.
fn debt_of(version: &Version, options: &CfOptions, sizes: &[u64], base: &Base) -> u64 {
    let Some(&l0_bytes) = sizes.first() else { return 0 };
    let l0_due = version.levels[0].len() as i64 >= l0_due(options) || l0_bytes >= base.l0_bytes;
    let mut debt = if l0_due { l0_bytes } else { 0 };
    let mut incoming = debt;
    for level in base.level.max(1)..sizes.len().saturating_sub(1) {
        if level == base.level && l0_due {
            debt = debt.saturating_add(sizes[level]);
        }
        let size = sizes[level].saturating_add(incoming);
        incoming = 0;
        if size > base.targets[level] {
            incoming = size - base.targets[level];
            let next = sizes[level + 1];
            if next > 0 {
                let fan_out = next as f64 / size as f64 + 1.0;
                debt = debt.saturating_add((incoming as f64 * fan_out) as u64);
            }
        }
    }
    debt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::testing::TreeSpec;
    use crate::options::DBPath;

    const MB: u64 = 1 << 20;

    fn options(dynamic: bool) -> CfOptions {
        CfOptions {
            level_compaction_dynamic_level_bytes: dynamic,
            max_bytes_for_level_base: 100 * MB,
            max_bytes_for_level_multiplier: 10.0,
            ..CfOptions::default()
        }
    }

    #[test]
    fn static_targets_grow_by_the_multiplier() {
        let v = TreeSpec::new(5).build();
        let s = level_scores(&v, &options(false));
        assert_eq!(s.base_level, 1);
        assert_eq!(s.targets, [100 * MB, 100 * MB, 1000 * MB, 10_000 * MB, 100_000 * MB]);
        assert_eq!(s.pending_bytes, 0);
        assert!(!s.needs_compaction());
    }

    #[test]
    fn an_empty_dynamic_tree_compacts_into_its_last_level() {
        let v = TreeSpec::new(7).file(0, "a", "b", 10 * MB).build();
        let s = level_scores(&v, &options(true));
        assert_eq!(s.base_level, 6);
        assert_eq!(s.lowest_unnecessary_level, None);
        assert!(s.targets.iter().all(|&t| t == u64::MAX));
    }

    #[test]
    fn dynamic_base_rises_as_the_last_level_fills() {
        // Largest level 2,000 MB: L5 would be 200 MB, above the base size of 100 MB, so L4 (20 MB) becomes the base.
        let v = TreeSpec::new(7).file(6, "a", "b", 2000 * MB).build();
        let s = level_scores(&v, &options(true));
        assert_eq!(s.base_level, 4, "{s:?}");
        assert_eq!(s.targets[4], 100 * MB);
        assert_eq!(s.targets[5], 200 * MB);
        assert_eq!(s.targets[6], 2000 * MB);
        assert_eq!(s.targets[3], u64::MAX);
    }

    #[test]
    fn unnecessary_levels_drain() {
        let v = TreeSpec::new(7).file(3, "a", "b", MB).file(6, "a", "b", 50 * MB).build();
        let s = level_scores(&v, &options(true));
        assert_eq!(s.base_level, 3);
        assert_eq!(s.lowest_unnecessary_level, Some(5));
        assert!(s.scores[3] > 10.0, "{s:?}");
    }

    #[test]
    fn l0_counts_files_and_bytes() {
        let mut t = TreeSpec::new(7);
        for _ in 0..4 {
            t = t.file(0, "a", "z", MB);
        }
        let s = level_scores(&t.build(), &options(false));
        assert_eq!(s.scores[0], 1.0);
        assert_eq!(s.runs, 4);
        assert_eq!(s.pending_bytes, 4 * MB);
        let s = level_scores(&TreeSpec::new(7).file(0, "a", "z", 300 * MB).build(), &options(true));
        assert!(s.scores[0] >= 10.1, "{s:?}");
        let s = level_scores(&TreeSpec::new(7).file(0, "a", "z", 300 * MB).build(), &options(false));
        assert_eq!(s.scores[0], 3.0);
    }

    fn scores_times(t: TreeSpec, dynamic: bool, times: u64) -> LevelScores {
        let v = t.build();
        scores_of(&v, &options(dynamic), &LevelSums::of(&v), times)
    }

    #[test]
    fn levels_that_may_hold_more_have_lower_scores_and_less_debt() {
        let tree = || {
            TreeSpec::new(7).file(0, "a", "z", 150 * MB).file(4, "a", "b", 150 * MB).file(5, "a", "b", 900 * MB).file(
                6,
                "a",
                "b",
                5000 * MB,
            )
        };
        for dynamic in [false, true] {
            let [once, twice] = [1, 2].map(|times| scores_times(tree(), dynamic, times));
            assert_eq!((once.base_level, twice.base_level), (if dynamic { 4 } else { 1 }, once.base_level));
            assert_eq!(once.lowest_unnecessary_level, twice.lowest_unnecessary_level);
            for (level, (a, b)) in once.targets.iter().zip(&twice.targets).enumerate() {
                assert_eq!(*b, a.saturating_mul(2), "level {level}");
            }
            assert!(once.scores[0] >= 1.0 && twice.scores[0] < 1.0, "L0 has fewer bytes than 200 MB: {twice:?}");
            assert!(once.pending_bytes > twice.pending_bytes, "{dynamic}");
        }
        let (once, twice) = (scores_times(tree(), true, 1), scores_times(tree(), true, 2));
        assert!(once.scores[4] >= 1.0 && once.scores[5] >= 1.0, "{once:?}");
        assert!(twice.scores[4] < 1.0 && twice.scores[5] < 1.0, "{twice:?}");
    }

    #[test]
    fn nothing_is_put_off_that_would_stop_writers_later() {
        let tree =
            TreeSpec::new(7).file(4, "a", "b", 150 * MB).file(5, "a", "b", 900 * MB).file(6, "a", "b", 5000 * MB);
        let v = tree.build();
        let of = |options: &CfOptions, times| scores_of(&v, options, &LevelSums::of(&v), times);
        let debt = of(&options(true), 1).pending_bytes;
        assert!(debt > 0 && of(&options(true), 4).pending_bytes < debt);
        let limited = |limit| CfOptions { soft_pending_compaction_bytes_limit: limit, ..options(true) };
        assert!(of(&limited(2 * debt), 4).pending_bytes < debt);
        assert_eq!(of(&limited(2 * debt - 1), 4), of(&limited(2 * debt - 1), 1));
        let path = |dir: &str| DBPath::new(dir, 10 << 30).expect("a path");
        let several = CfOptions { cf_paths: vec![path("/a"), path("/b")], ..options(true) };
        assert_eq!(of(&several, 4), of(&several, 1));
    }

    /// With a base of 400 MB instead of 100 MB, L4 with its 20 MB would have to be emptied.
    #[test]
    fn no_level_is_emptied_since_levels_may_hold_more() {
        let tree = || TreeSpec::new(7).file(4, "a", "b", 20 * MB).file(6, "a", "b", 2000 * MB);
        let four = scores_times(tree(), true, 4);
        assert_eq!((four.base_level, four.lowest_unnecessary_level), (4, None));
        let v = tree().build();
        let as_option = CfOptions { max_bytes_for_level_base: 400 * MB, ..options(true) };
        assert_eq!(level_scores(&v, &as_option).lowest_unnecessary_level, Some(4), "what is avoided");
        assert_eq!(scores_times(TreeSpec::new(7), true, 4), scores_times(TreeSpec::new(7), true, 1), "an empty tree");
    }

    #[test]
    fn debt_flows_down_the_levels() {
        // L1 is 100 MB over; L2 has 1,500 MB against 1,000 MB and receives those 100 MB.
        let v = TreeSpec::new(5)
            .file(1, "a", "b", 200 * MB)
            .file(2, "a", "b", 1500 * MB)
            .file(3, "a", "b", 8000 * MB)
            .build();
        let s = level_scores(&v, &options(false));
        let l1 = (100 * MB) as f64 * (1500.0 / 200.0 + 1.0);
        let l2 = (600 * MB) as f64 * (8000.0 / 1600.0 + 1.0);
        assert_eq!(s.pending_bytes, (l1 + l2) as u64);
        assert_eq!(s.by_priority()[0].0, 1);
    }
}
