//! Chooses the levels of tables when no MANIFEST names them.
//!
//! Of two tables with keys in common, the one with the newer sequence numbers must be found first. If their numbers do
//! not interleave, that determines which is above; each table then goes as deep as the ones below it allow, and a table
//! that fits into no level goes into L0. If they do interleave (which is common after compactions), the order is
//! unknown, and all tables are merged into one sorted run.

use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::FileEntry;

/// Levels for tables, or `None` if they must be merged. L0 comes oldest first.
pub(super) fn place(
    mut files: Vec<FileEntry>,
    last_level: usize,
    cmp: &InternalKeyComparator,
) -> Option<Vec<(u32, FileEntry)>> {
    files.sort_by_key(|f| (f.largest_seqno, f.smallest_seqno, f.number));
    // By key, without overlap.
    let mut levels: Vec<Vec<FileEntry>> = vec![Vec::new(); last_level + 1];
    let mut l0: Vec<FileEntry> = Vec::new();
    for file in files {
        let mut level = last_level;
        for (l, placed) in levels.iter().enumerate().skip(1) {
            for below in overlapping(placed, &file, cmp) {
                if below.largest_seqno >= file.smallest_seqno {
                    return None;
                }
                level = level.min(l - 1);
            }
        }
        // RocksDB asks this of neighbours in L0 whether they overlap or not.
        let above_l0 = l0.last().is_none_or(|newest| newest.largest_seqno < file.smallest_seqno);
        if level == 0 || l0.iter().any(|f| overlap(f, &file, cmp)) {
            if !above_l0 {
                return None;
            }
            l0.push(file);
        } else {
            let at = levels[level]
                .partition_point(|f| cmp.compare_user(f.largest.user_key(), file.smallest.user_key()).is_lt());
            levels[level].insert(at, file);
        }
    }
    let deep = levels.into_iter().enumerate().flat_map(|(l, files)| files.into_iter().map(move |f| (l as u32, f)));
    Some(deep.chain(l0.into_iter().map(|f| (0, f))).collect())
}

/// The files of a level that touch the user keys of `file`. A key that ends one file and begins the next counts for
/// both.
fn overlapping<'a>(
    level: &'a [FileEntry],
    file: &'a FileEntry,
    cmp: &'a InternalKeyComparator,
) -> impl Iterator<Item = &'a FileEntry> {
    let from = level.partition_point(|f| cmp.compare_user(f.largest.user_key(), file.smallest.user_key()).is_lt());
    level[from..].iter().take_while(|f| overlap(f, file, cmp))
}

fn overlap(a: &FileEntry, b: &FileEntry, cmp: &InternalKeyComparator) -> bool {
    cmp.compare_user(a.smallest.user_key(), b.largest.user_key()).is_le()
        && cmp.compare_user(b.smallest.user_key(), a.largest.user_key()).is_le()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_format::{InternalKey, ValueType};

    fn file(number: u64, keys: [&str; 2], seqs: [u64; 2]) -> FileEntry {
        let key = |k: &str, s| InternalKey::new(k.as_bytes(), s, ValueType::Value);
        FileEntry {
            number,
            smallest: key(keys[0], seqs[1]),
            largest: key(keys[1], seqs[0]),
            smallest_seqno: seqs[0],
            largest_seqno: seqs[1],
            ..FileEntry::default()
        }
    }

    fn placed(files: &[FileEntry], last: usize) -> Option<Vec<(u32, u64)>> {
        let all = place(files.to_vec(), last, &InternalKeyComparator::default())?;
        Some(all.into_iter().map(|(l, f)| (l, f.number)).collect())
    }

    #[test]
    fn newer_tables_lie_above() {
        let files = [
            file(9, ["a", "m"], [5, 9]),
            file(1, ["a", "c"], [0, 0]),
            file(2, ["d", "z"], [0, 4]),
            file(3, ["n", "p"], [5, 30]),
            file(4, ["b", "b"], [10, 10]),
        ];
        assert_eq!(placed(&files, 3), Some(vec![(1, 4), (2, 9), (2, 3), (3, 1), (3, 2)]));
        // Without enough levels, they are stacked in L0, oldest first, if possible.
        assert_eq!(placed(&files[..1], 0), Some(vec![(0, 9)]));
        assert_eq!(placed(&[files[0].clone(), files[4].clone()], 1), Some(vec![(1, 9), (0, 4)]));
        assert_eq!(placed(&files, 1), None, "3 and 4 would be neighbours in L0 with numbers that interleave");
    }

    #[test]
    fn interleaved_numbers_say_nothing() {
        assert_eq!(placed(&[file(1, ["a", "m"], [0, 90]), file(2, ["b", "c"], [50, 50])], 6), None);
        assert_eq!(placed(&[file(1, ["a", "m"], [0, 90]), file(2, ["m", "z"], [90, 91])], 6), None);
        let apart = [file(1, ["a", "m"], [0, 90]), file(2, ["n", "z"], [50, 91])];
        assert_eq!(placed(&apart, 6), Some(vec![(6, 1), (6, 2)]));
    }
}
