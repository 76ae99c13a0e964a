//! Which of a column family's paths a job writes to (`cf_paths`, otherwise `db_paths`): RocksDB's choice.
//!
//! - Flushes and ingestions write to the first path, and so does FIFO compaction, which has no other.
//! - Leveled: the first path into which the level fits together with all levels above it, at their target sizes; L0
//!   counts as much as L1. So each level as a whole has a path, and a job into L0 writes to the first one that has room
//!   for one level.
//! - Universal: the first path that is larger than the table, and that together with those before it has room for the
//!   data that will be there when the table is merged again.
//! - Manual compaction: the path that the caller chooses.
//!
//! If no path has room, it is the last one, whose size is ignored.

use crate::compaction::Compaction;
use crate::options::{CfOptions, CompactionStyle, DBPath};

/// The path of the tables that a job writes into `level`, which have this many bytes.
fn path_of(options: &CfOptions, level: usize, bytes: u64) -> u32 {
    let paths = &*options.cf_paths;
    if paths.len() < 2 {
        return 0;
    }
    match options.compaction_style {
        CompactionStyle::Level => path_of_level(options, paths, level),
        CompactionStyle::Universal => path_of_size(paths, bytes, options.compaction_options_universal.size_ratio),
        CompactionStyle::Fifo => 0,
    }
}

/// RocksDB's `LevelCompactionBuilder::GetPathId`.
fn path_of_level(options: &CfOptions, paths: &[DBPath], level: usize) -> u32 {
    let last = paths.len().saturating_sub(1);
    let mut path = 0;
    let mut room = paths.first().map_or(0, DBPath::target_size);
    let (mut size, mut at) = (options.max_bytes_for_level_base, 0);
    while path < last {
        if size > room {
            path += 1;
            room = paths[path].target_size();
            continue;
        }
        if at == level {
            break;
        }
        room -= size;
        if at > 0 {
            let additional = &options.max_bytes_for_level_multiplier_additional;
            let additional = match options.dynamic_levels() {
                true => 1.0,
                false => additional.get(at).copied().map_or(1.0, f64::from),
            };
            // A size beyond 64 bits fits nowhere.
            size = (size as f64 * options.max_bytes_for_level_multiplier * additional) as u64;
        }
        at += 1;
    }
    path as u32
}

/// RocksDB's `UniversalCompactionBuilder::GetPathId`.
fn path_of_size(paths: &[DBPath], bytes: u64, size_ratio: u32) -> u32 {
    let last = paths.len().saturating_sub(1);
    // The data above the table when it is merged again.
    let later = bytes.wrapping_mul(u64::from(100u32.wrapping_sub(size_ratio))) / 100;
    let mut before = 0u64;
    let fits = |path: &DBPath| {
        let target = path.target_size();
        let found = target > bytes && before.saturating_add(target - bytes) > later;
        before = before.saturating_add(target);
        found
    };
    paths[..last].iter().position(fits).unwrap_or(last) as u32
}

impl Compaction {
    /// The outputs go to the path that the options choose.
    pub(crate) fn choose_path(&mut self, options: &CfOptions) {
        self.choose_path_for(options, self.input_bytes());
    }

    /// The same, if the output counts for this many bytes.
    pub(crate) fn choose_path_for(&mut self, options: &CfOptions, bytes: u64) {
        self.write_to_path(path_of(options, self.output_level, bytes));
    }

    /// The outputs go to this path. Files in another path cannot be moved without a rewrite.
    pub(crate) fn write_to_path(&mut self, path: u32) {
        self.output_path = path;
        self.trivial_move &= self.inputs.iter().flat_map(|(_, files)| files).all(|f| f.entry.path_id == path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::strategy::testing::TreeSpec;
    use crate::compaction::strategy::{Moment, RunningCompactions, pick};

    fn paths(sizes: &[u64]) -> Vec<DBPath> {
        sizes.iter().enumerate().map(|(i, size)| DBPath::new(format!("/{i}"), *size).unwrap()).collect()
    }

    /// Levels are meant to have 100 bytes, then ten times as many each.
    fn leveled(sizes: &[u64]) -> CfOptions {
        CfOptions {
            cf_paths: paths(sizes),
            level_compaction_dynamic_level_bytes: false,
            max_bytes_for_level_base: 100,
            max_bytes_for_level_multiplier: 10.0,
            ..CfOptions::default()
        }
    }

    fn of_levels(options: &CfOptions) -> Vec<u32> {
        (0..6).map(|level| path_of(options, level, 0)).collect()
    }

    #[test]
    fn levels_fill_one_path_after_the_other() {
        assert_eq!(of_levels(&leveled(&[])), [0; 6]);
        assert_eq!(of_levels(&leveled(&[0])), [0; 6]);
        // L0 counts as L1: they have 100 each, the next 1,000, 10,000 and 100,000.
        assert_eq!(of_levels(&leveled(&[99, 0])), [1; 6]);
        assert_eq!(of_levels(&leveled(&[100, 0])), [0, 1, 1, 1, 1, 1]);
        assert_eq!(of_levels(&leveled(&[200, 0])), [0, 0, 1, 1, 1, 1]);
        assert_eq!(of_levels(&leveled(&[1200, 0])), [0, 0, 0, 1, 1, 1]);
        assert_eq!(of_levels(&leveled(&[u64::MAX, 0])), [0; 6]);
        // A deeper level does not fill the rest of a path; a path that is too small is skipped.
        assert_eq!(of_levels(&leveled(&[1199, 11_000, 0])), [0, 0, 1, 1, 2, 2]);
        assert_eq!(of_levels(&leveled(&[200, 999, 10_999, 0])), [0, 0, 2, 3, 3, 3]);
        // The last takes everything, whatever its size says.
        assert_eq!(of_levels(&leveled(&[0, 0, 0, 0])), [3; 6]);
    }

    #[test]
    fn levels_are_as_large_as_the_options_mean_them_to_be() {
        let additional = CfOptions { max_bytes_for_level_multiplier_additional: vec![1, 2], ..leveled(&[2200, 0]) };
        assert_eq!(of_levels(&additional), [0, 0, 0, 1, 1, 1]);
        let less = CfOptions { cf_paths: paths(&[2199, 0]), ..additional };
        assert_eq!(of_levels(&less), [0, 0, 1, 1, 1, 1]);
        let huge = CfOptions { max_bytes_for_level_multiplier: 1e300, ..leveled(&[u64::MAX - 1, 0]) };
        assert_eq!(of_levels(&huge), [0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn universal_tables_go_where_they_and_what_comes_have_room() {
        let of = |sizes: &[u64], bytes, ratio| path_of_size(&paths(sizes), bytes, ratio);
        // As much as the table again, less one percent, must fit in addition to it.
        let at = |bytes| of(&[1000, 3000, 0], bytes, 1);
        assert_eq!([0, 1, 501, 502, 503, 999, 1000].map(at), [0, 0, 0, 0, 1, 1, 1]);
        // The first path's room counts for the second.
        assert_eq!([2000, 2010, 2011, 3000].map(at), [1, 1, 2, 2]);
        assert_eq!([of(&[1000, 0], 999, 100), of(&[1000, 0], 1000, 100)], [0, 1]);
        assert_eq!([of(&[], 5, 1), of(&[1], 5, 1), of(&[1, 2, 3, 4], 100, 1)], [0, 0, 3]);
        assert_eq!(of(&[u64::MAX, u64::MAX, 0], u64::MAX, 1), 2);
        // FIFO has one path.
        let fifo = CfOptions { compaction_style: CompactionStyle::Fifo, ..leveled(&[0, 0]) };
        assert_eq!(path_of(&fifo, 0, 0), 0);
    }

    #[test]
    fn nothing_moves_from_one_path_to_another() {
        let v = TreeSpec::new(4).file(1, "a", "b", 150).file(2, "x", "y", 10).build();
        let job = |sizes: &[u64]| {
            let c = pick(&v, &leveled(sizes), &mut RunningCompactions::new(), &Moment::default()).unwrap();
            (c.output_level, c.output_path, c.trivial_move)
        };
        assert_eq!(job(&[1200, 0]), (2, 0, true));
        assert_eq!(job(&[200, 0]), (2, 1, false));
        // The table is in the first path, whatever room there is.
        let mut c = pick(&v, &leveled(&[1200, 0]), &mut RunningCompactions::new(), &Moment::default()).unwrap();
        c.write_to_path(1);
        assert!(!c.trivial_move && c.output_path == 1);
    }

    #[test]
    fn with_several_paths_one_table_moves_at_a_time() {
        let v = TreeSpec::new(4)
            .file(1, "a", "b", 60)
            .file(1, "c", "d", 60)
            .file(1, "e", "f", 60)
            .file(2, "x", "y", 10)
            .build();
        let moved = |sizes: &[u64]| {
            let c = pick(&v, &leveled(sizes), &mut RunningCompactions::new(), &Moment::default()).unwrap();
            assert!(c.trivial_move);
            c.inputs[0].1.len()
        };
        assert_eq!([moved(&[]) > 1, moved(&[u64::MAX]) > 1, moved(&[u64::MAX, 0]) > 1], [true, true, false]);
    }
}
