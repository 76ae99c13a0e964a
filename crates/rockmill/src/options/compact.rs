//! Options of manual compactions.

use super::setters::setters;

/// What a manual compaction does with the deepest level (RocksDB's `BottommostLevelCompaction`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BottommostLevelCompaction {
    /// Leave it.
    Skip,
    /// Compact it when there is a compaction filter, except tables that were written since the call began.
    #[default]
    IfHaveCompactionFilter,
    /// Compact it.
    Force,
    /// Compact it, except tables that were written since the call began, by it or by an automatic compaction.
    ForceOptimized,
}

/// Options of `compact_range` (RocksDB's `CompactRangeOptions`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CompactOptions {
    /// Run no automatic compactions during this one.
    pub exclusive_manual_compaction: bool,
    /// After the compaction, move the whole output level to `target_level` without copying. The levels between must be
    /// empty.
    pub change_level: bool,
    /// With `change_level`: the level, or -1 (the default) for the smallest empty one that the data fits.
    pub target_level: i32,
    /// The deepest level.
    pub bottommost_level_compaction: BottommostLevelCompaction,
    /// Threads; 0 takes the database's `max_subcompactions`.
    pub max_subcompactions: u32,
    /// The path that tables are written to, of `cf_paths` or `db_paths`, counted from 0.
    pub target_path_id: u32,
}

impl Default for CompactOptions {
    fn default() -> Self {
        Self {
            exclusive_manual_compaction: false,
            change_level: false,
            target_level: -1,
            bottommost_level_compaction: BottommostLevelCompaction::default(),
            max_subcompactions: 0,
            target_path_id: 0,
        }
    }
}

setters! {
    impl CompactOptions;

    /// Sets what happens to the deepest level.
    set_bottommost_level_compaction(v: BottommostLevelCompaction) bottommost_level_compaction;
    set_exclusive_manual_compaction(v: bool) exclusive_manual_compaction;
    set_change_level(v: bool) change_level;
    set_target_level(v: i32) target_level;
    set_max_subcompactions(v: u32) max_subcompactions;
    /// Writes tables to a path of `cf_paths` or `db_paths`, counted from 0, instead of the first.
    set_target_path_id(v: u32) target_path_id;
}
