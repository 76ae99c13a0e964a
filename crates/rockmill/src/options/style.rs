//! Compaction styles and the options of each (RocksDB's `CompactionStyle`, `CompactionOptionsUniversal`,
//! `CompactionOptionsFIFO`).

use super::setters::setters;
use super::value::{Value, nested};
use super::{CfOptions, Options};

/// The rules by which tables are compacted (RocksDB's `CompactionStyle`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CompactionStyle {
    /// One sorted run for each level, each level several times larger than the one above.
    #[default]
    Level,
    /// A few sorted runs of rising size, merged when they become many or similar in size: tiered compaction.
    Universal,
    /// Nothing is merged; the oldest tables are deleted when there is too much data.
    Fifo,
}

/// Which file of a level leveled compaction takes first (RocksDB's `CompactionPri`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CompactionPri {
    /// The largest one; tombstones count as the bytes that they will free.
    ByCompensatedSize,
    /// The one whose newest entry is oldest: the key range that has gone longest without a write.
    OldestLargestSeqFirst,
    /// The one whose oldest entry is oldest: the key range that has gone longest without a compaction into the next
    /// level.
    OldestSmallestSeqFirst,
    /// The one that overlaps the least of the next level, relative to its own size.
    #[default]
    MinOverlappingRatio,
    /// One after another through the key space. The MANIFEST stores where each level continues.
    RoundRobin,
}

/// How universal compaction decides that a run is too large to be merged with those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum UniversalCompactionStopStyle {
    /// It is compared with the last run that was taken.
    Similar,
    /// It is compared with all runs taken so far together.
    #[default]
    Total,
}

/// The options of universal compaction (RocksDB's `CompactionOptionsUniversal`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UniversalCompactOptions {
    /// The next run is taken, too, if it is at most this many percent larger than what was taken before.
    pub size_ratio: u32,
    /// The fewest runs merged at once.
    pub min_merge_width: u32,
    /// The most runs merged at once; a compaction that frees space may take more.
    pub max_merge_width: u32,
    /// Everything is merged when all runs but the oldest together reach this percentage of the oldest run's size.
    pub max_size_amplification_percent: u32,
    /// Output is left uncompressed when older runs already make up this percentage of all data; -1 always compresses.
    pub compression_size_percent: i32,
    /// How many sorted runs may stay: -1 means `level0_file_num_compaction_trigger`, 0 the number that follows from
    /// sizes and `size_ratio`.
    pub max_read_amp: i32,
    /// What the next run is compared with.
    pub stop_style: UniversalCompactionStopStyle,
    /// Runs whose tables do not overlap are moved instead of rewritten.
    pub allow_trivial_move: bool,
}

impl Default for UniversalCompactOptions {
    fn default() -> Self {
        Self {
            size_ratio: 1,
            min_merge_width: 2,
            max_merge_width: u32::MAX,
            max_size_amplification_percent: 200,
            compression_size_percent: -1,
            max_read_amp: -1,
            stop_style: UniversalCompactionStopStyle::Total,
            allow_trivial_move: false,
        }
    }
}

nested! {
    UniversalCompactOptions as "compaction_options_universal" {
        allow_trivial_move,
        compression_size_percent,
        max_merge_width,
        max_read_amp,
        max_size_amplification_percent,
        min_merge_width,
        size_ratio,
        stop_style,
    }
}

impl UniversalCompactOptions {
    /// Why no tree can be kept by these options; `None` if one can, or if the style is not universal.
    pub(crate) fn refused(&self, cf: &CfOptions) -> Option<String> {
        let (runs, trigger) = (self.max_read_amp, cf.level0_file_num_compaction_trigger);
        if cf.compaction_style != CompactionStyle::Universal {
            return None;
        }
        if runs < -1 {
            return Some(format!("compaction_options_universal.max_read_amp is {runs}; it must be at least -1"));
        }
        if cf.compaction_downforce || cf.compaction_classic {
            // Levels say there which runs are merged, how many may stay and how they are compressed.
            let (usual, by_levels) = (Self::default(), "levels say which runs are merged");
            let everywhere = [
                ("max_read_amp", runs != -1, "level0_file_num_compaction_trigger says how many runs a level may have"),
                ("stop_style", self.stop_style != usual.stop_style, by_levels),
                ("compression_size_percent", self.compression_size_percent >= 0, "set compression_per_level instead"),
            ];
            let classic = [
                ("size_ratio", self.size_ratio != usual.size_ratio, by_levels),
                ("min_merge_width", self.min_merge_width != usual.min_merge_width, by_levels),
                ("max_merge_width", self.max_merge_width != usual.max_merge_width, by_levels),
                (
                    "max_size_amplification_percent",
                    self.max_size_amplification_percent != usual.max_size_amplification_percent,
                    "nothing is merged for space",
                ),
            ];
            let (option, more) = match cf.compaction_classic {
                true => ("compaction_classic", &classic[..]),
                false => ("compaction_downforce", &[][..]),
            };
            if let Some((name, _, instead)) = everywhere.iter().chain(more).find(|(_, set, _)| *set) {
                return Some(format!("compaction_options_universal.{name} has no effect with {option}: {instead}"));
            }
        }
        (0 < runs && runs < trigger).then(|| {
            format!(
                "compaction_options_universal.max_read_amp is {runs}, below level0_file_num_compaction_trigger, \
                 {trigger}: compactions would begin when there are more sorted runs than may stay"
            )
        })
    }
}

setters! {
    impl UniversalCompactOptions;

    set_size_ratio(percent: i32) size_ratio = percent.max(0) as u32;
    set_min_merge_width(runs: i32) min_merge_width = runs.max(0) as u32;
    set_max_merge_width(runs: i32) max_merge_width = runs.max(0) as u32;
    set_max_size_amplification_percent(percent: i32) max_size_amplification_percent = percent.max(0) as u32;
    set_compression_size_percent(percent: i32) compression_size_percent;
    set_max_read_amp(runs: i32) max_read_amp;
    set_stop_style(style: UniversalCompactionStopStyle) stop_style;
    set_allow_trivial_move(allow: bool) allow_trivial_move;
}

/// The options of FIFO compaction (RocksDB's `CompactionOptionsFIFO`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FifoCompactOptions {
    /// When all tables together have more bytes than this, the oldest are deleted.
    pub max_table_files_size: u64,
    /// Merge small tables, at least `level0_file_num_compaction_trigger` at once.
    pub allow_compaction: bool,
}

impl Default for FifoCompactOptions {
    fn default() -> Self {
        Self { max_table_files_size: 1 << 30, allow_compaction: false }
    }
}

nested! {
    FifoCompactOptions as "compaction_options_fifo" { allow_compaction, max_table_files_size } or read_size
}

/// RocksDB's older text, the size alone.
fn read_size(options: &mut FifoCompactOptions, text: &str) -> bool {
    u64::read(text).map(|bytes| options.max_table_files_size = bytes).is_some()
}

setters! {
    impl FifoCompactOptions;

    set_max_table_files_size(bytes: u64) max_table_files_size;
    set_allow_compaction(allow: bool) allow_compaction;
}

impl Options {
    /// Sets the options of FIFO compaction.
    pub fn set_fifo_compaction_options(&mut self, options: &FifoCompactOptions) {
        self.cf.compaction_options_fifo = options.clone();
    }

    /// Sets the options of universal compaction.
    pub fn set_universal_compaction_options(&mut self, options: &UniversalCompactOptions) {
        self.cf.compaction_options_universal = options.clone();
    }

    /// RocksDB's shorthand for universal compaction with this many bytes of memtables.
    pub fn optimize_universal_style_compaction(&mut self, memtable_memory_budget: usize) {
        let cf = &mut self.cf;
        cf.write_buffer_size = memtable_memory_budget / 4;
        cf.min_write_buffer_number_to_merge = 2;
        cf.max_write_buffer_number = 6;
        cf.compaction_style = CompactionStyle::Universal;
        cf.compaction_options_universal.compression_size_percent = 80;
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::Notes;
    use super::super::text::{Allow, Source, set_cf};
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> (CfOptions, Vec<String>, bool) {
        let (mut o, mut notes) = (CfOptions::default(), Notes::default());
        let pairs: Vec<_> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let done = set_cf(&mut o, &pairs, Allow::All, Source::Caller, &mut notes).is_ok();
        (o, notes.list.iter().map(|n| n.name.clone()).collect(), done)
    }

    #[test]
    fn universal_options_are_read_as_rocksdb_writes_them() {
        let (o, notes, done) = set(&[
            ("compaction_style", "kCompactionStyleUniversal"),
            (
                "compaction_options_universal",
                "{allow_trivial_move=true;stop_style=kCompactionStopStyleSimilarSize;min_merge_width=3;\
                 compression_size_percent=70;max_size_amplification_percent=150;incremental=false;\
                 max_merge_width=4294967295;size_ratio=10;reduce_file_locking=true;}",
            ),
        ]);
        assert!(done && notes.is_empty(), "{notes:?}");
        assert_eq!(o.compaction_style, CompactionStyle::Universal);
        let u = &o.compaction_options_universal;
        assert_eq!((u.size_ratio, u.min_merge_width, u.max_merge_width), (10, 3, u32::MAX));
        assert_eq!((u.compression_size_percent, u.max_size_amplification_percent), (70, 150));
        assert!(u.allow_trivial_move && u.stop_style == UniversalCompactionStopStyle::Similar);
        // An option nested in it is given by its full name; the others keep their values.
        let (o, _, done) = set(&[("compaction_options_universal.size_ratio", "7")]);
        assert!(done && o.compaction_options_universal.size_ratio == 7);
        assert_eq!(o.compaction_options_universal.min_merge_width, 2);
        // An option that RocksDB 7.8 does not know is written only if it is not at its default.
        assert!(!Value::write(&UniversalCompactOptions::default()).contains("max_read_amp"));
        let u = UniversalCompactOptions { max_read_amp: 5, ..UniversalCompactOptions::default() };
        assert!(Value::write(&u).contains("max_read_amp=5"));
    }

    #[test]
    fn fifo_options_are_read_in_both_forms() {
        for text in ["{max_table_files_size=5000;allow_compaction=true;ttl=7;age_for_warm=0;}", "5000"] {
            let (o, notes, done) =
                set(&[("compaction_style", "kCompactionStyleFIFO"), ("compaction_options_fifo", text)]);
            assert!(done && notes.is_empty(), "{notes:?}");
            assert_eq!(o.compaction_style, CompactionStyle::Fifo);
            let named = text.starts_with('{');
            let expected = FifoCompactOptions { max_table_files_size: 5000, allow_compaction: named };
            assert_eq!(o.compaction_options_fifo, expected);
        }
        let (_, notes, done) = set(&[(
            "compaction_options_fifo",
            "{file_temperature_age_thresholds={{temperature=kCold;age=5;}};max_data_files_size=9;}",
        )]);
        assert!(done && notes.len() == 2, "{notes:?}");
    }

    #[test]
    fn what_is_not_there_is_said() {
        let (_, notes, done) = set(&[("compaction_options_universal", "{incremental=true}")]);
        assert!(done);
        assert_eq!(notes, ["compaction_options_universal.incremental"]);
        assert!(!set(&[("compaction_options_universal", "{stop_style=kNonsense}")]).2);
        assert!(!set(&[("compaction_style", "kCompactionStyleNonsense")]).2);
    }
}
