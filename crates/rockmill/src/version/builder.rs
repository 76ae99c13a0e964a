//! Applies version edits to a version, with consistency checks (RocksDB `db/version_builder.cc`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::VersionEdit;

use super::{FileMeta, Level, PurgeQueue, Version};
use crate::error::{Error, Result};

/// Gathers edits over a base version and gives the next one.
pub struct VersionBuilder {
    base: Arc<Version>,
    purge: Arc<PurgeQueue>,
    /// Files of the base that left, as (level, number).
    deleted: BTreeSet<(usize, u64)>,
    /// Files that joined, by level and number.
    added: BTreeMap<(usize, u64), Arc<FileMeta>>,
}

impl VersionBuilder {
    /// Starts from `base`.
    pub fn new(base: Arc<Version>, purge: Arc<PurgeQueue>) -> Self {
        Self { base, purge, deleted: BTreeSet::new(), added: BTreeMap::new() }
    }

    fn in_base(&self, level: usize, number: u64) -> Option<&Arc<FileMeta>> {
        self.base.levels.get(level)?.iter().find(|f| f.number() == number)
    }

    fn check_level(&self, level: u32) -> Result<usize> {
        // A deeper level than the tree has is kept: recovery adjusts the tree to the file, and `build` reports it.
        let level = level as usize;
        if level < self.base.levels.len() {
            return Ok(level);
        }
        Err(Error::invalid_argument(format!(
            "the MANIFEST has a table at level {level} but num_levels is {}; open with a larger num_levels",
            self.base.levels.len()
        )))
    }

    /// Applies the file changes of an edit. It is an error to delete a file that is not there, to add one twice or one
    /// that ends before it begins, or to name a level beyond the tree.
    pub fn apply(&mut self, edit: &VersionEdit) -> Result<()> {
        // A file that moves is deleted and added in one edit; deletions come first.
        let mut moved: BTreeMap<u64, Arc<FileMeta>> = BTreeMap::new();
        for &(level, number) in &edit.deleted_files {
            let level = self.check_level(level)?;
            if let Some(f) = self.added.remove(&(level, number)) {
                moved.insert(number, f);
            } else if let Some(f) = self.in_base(level, number).cloned()
                && self.deleted.insert((level, number))
            {
                moved.insert(number, f);
            } else {
                return Err(Error::corruption(format!(
                    "a version edit deletes table {number:06}.sst from level {level}, where it is not"
                )));
            }
        }
        for (level, entry) in &edit.new_files {
            let level = self.check_level(*level)?;
            let number = entry.number;
            let here = self.added.contains_key(&(level, number))
                || (self.in_base(level, number).is_some() && !self.deleted.contains(&(level, number)));
            if here {
                return Err(Error::corruption(format!(
                    "a version edit adds table {number:06}.sst to level {level} twice"
                )));
            }
            if !entry.has_sound_pieces() {
                return Err(Error::corruption(format!(
                    "a version edit adds table {number:06}.sst with too many pieces, with one twice, or with more live \
                     bytes of one than it has"
                )));
            }
            let (first, last) = (entry.smallest.user_key(), entry.largest.user_key());
            if self.base.cmp.compare_user(first, last).is_gt() {
                return Err(Error::corruption(format!(
                    "a version edit adds table {number:06}.sst to level {level} with the smallest key {}, which is \
                     behind the largest, {}",
                    first.escape_ascii(),
                    last.escape_ascii()
                )));
            }
            // The same file under a new level stays the same object, so that it is not taken for obsolete and its
            // open table is kept.
            let file = match moved.remove(&number) {
                Some(f) if f.entry == *entry => f,
                Some(f) if !f.files().eq(entry.files()) => {
                    return Err(Error::corruption(format!(
                        "a version edit gives table {number:06}.sst other files, and a table never changes"
                    )));
                }
                Some(f) => Arc::new(f.renewed(entry.clone())),
                None => Arc::new(FileMeta::new(entry.clone(), Arc::clone(&self.purge))),
            };
            self.added.insert((level, number), file);
        }
        Ok(())
    }

    /// The new version: L0 sorted newest first (by epoch number, or sequence numbers where epochs are unknown), each
    /// run of deeper levels by key; overlap inside a run is corruption. Files that left are not marked obsolete here.
    pub fn build(self) -> Result<Version> {
        let cmp = &self.base.cmp;
        let mut levels = Vec::with_capacity(self.base.levels.len());
        for (level, files) in self.base.levels.iter().enumerate() {
            let mut next = Level::default();
            files
                .iter()
                .filter(|f| !self.deleted.contains(&(level, f.number())))
                .chain(self.added.range((level, 0)..=(level, u64::MAX)).map(|(_, f)| f))
                .for_each(|f| next.push(Arc::clone(f)));
            if level == 0
                && let Some(f) = next.extras.iter().flat_map(|run| &run.files).next()
            {
                return Err(Error::corruption(format!(
                    "table {:06}.sst is in extra run {} of level 0, which has no runs",
                    f.number(),
                    f.entry.extra_run
                )));
            }
            next.sort(level, cmp);
            if level > 0 {
                next.runs().try_for_each(|run| check_run(run, level, cmp))?;
            }
            levels.push(next);
        }
        self.added.values().for_each(|table| table.set_in_version());
        Ok(self.base.with_levels(levels))
    }
}

/// Overlap of neighbours in a run is corruption.
fn check_run(files: &[Arc<FileMeta>], level: usize, cmp: &InternalKeyComparator) -> Result<()> {
    for pair in files.windows(2) {
        if cmp.compare(pair[0].entry.largest.as_bytes(), pair[1].entry.smallest.as_bytes()).is_ge() {
            let run = match pair[0].entry.extra_run {
                0 => String::new(),
                id => format!("extra run {id} of "),
            };
            return Err(Error::corruption(format!(
                "tables {:06}.sst and {:06}.sst overlap in {run}level {level}",
                pair[0].number(),
                pair[1].number()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_format::edit::FileEntry;
    use rockmill_format::{InternalKey, ValueType};

    fn file(number: u64, from: &str, to: &str, seq: u64) -> FileEntry {
        FileEntry {
            number,
            size: 100,
            smallest: InternalKey::new(from.as_bytes(), seq, ValueType::Value),
            largest: InternalKey::new(to.as_bytes(), seq, ValueType::Value),
            smallest_seqno: seq,
            largest_seqno: seq,
            epoch_number: seq,
            ..FileEntry::default()
        }
    }

    fn build(base: &Arc<Version>, edits: &[VersionEdit]) -> Result<Version> {
        let mut b = VersionBuilder::new(Arc::clone(base), Arc::default());
        for e in edits {
            b.apply(e)?;
        }
        b.build()
    }

    fn empty() -> Arc<Version> {
        Arc::new(Version::empty(3, InternalKeyComparator::default()))
    }

    #[test]
    fn l0_is_newest_first_and_deeper_levels_by_key() {
        let edit = VersionEdit {
            new_files: vec![
                (0, file(1, "a", "z", 1)),
                (0, file(2, "a", "z", 9)),
                (0, file(3, "a", "z", 5)),
                (1, file(4, "m", "p", 1)),
                (1, file(5, "a", "c", 1)),
            ],
            ..VersionEdit::default()
        };
        let v = build(&empty(), &[edit]).unwrap();
        let numbers = |l: usize| v.levels[l].iter().map(|f| f.number()).collect::<Vec<_>>();
        assert_eq!(numbers(0), [2, 3, 1]);
        assert_eq!(numbers(1), [5, 4]);
        assert_eq!(v.overlapping(1, Some(b"c"), Some(b"m")).len(), 2);
    }

    /// Otherwise it would be at a place where no search for its keys looks.
    #[test]
    fn a_table_that_ends_before_it_begins_is_refused() {
        let add = |from, to| {
            build(&empty(), &[VersionEdit { new_files: vec![(1, file(7, from, to, 3))], ..Default::default() }])
        };
        assert!(add("a", "a").is_ok());
        let e = add("b", "a").unwrap_err();
        assert!(e.kind() == crate::ErrorKind::Corruption && e.message().contains("000007.sst"), "{e}");
    }

    #[test]
    fn a_moved_file_stays_the_same_object() {
        let base = build(&empty(), &[VersionEdit { new_files: vec![(1, file(7, "a", "b", 3))], ..Default::default() }]);
        let base = Arc::new(base.unwrap());
        let edit = VersionEdit {
            deleted_files: vec![(1, 7)],
            new_files: vec![(2, file(7, "a", "b", 3))],
            ..Default::default()
        };
        let next = build(&base, &[edit]).unwrap();
        assert!(next.levels[1].is_empty());
        assert!(Arc::ptr_eq(&base.levels[1].base[0], &next.levels[2].base[0]));
    }

    fn in_run(number: u64, extra_run: u64, from: &str, to: &str) -> FileEntry {
        FileEntry { extra_run, ..file(number, from, to, number) }
    }

    #[test]
    fn extra_runs_are_newest_first_and_above_the_base_run() {
        let edit = VersionEdit {
            new_files: vec![
                (1, in_run(1, 0, "a", "z")),
                (1, in_run(3, 7, "m", "p")),
                (1, in_run(4, 7, "b", "c")),
                (1, in_run(2, 5, "a", "n")),
                (2, in_run(5, 2, "a", "n")),
                (0, in_run(6, 0, "a", "z")),
            ],
            ..VersionEdit::default()
        };
        let v = Arc::new(build(&empty(), &[edit]).unwrap());
        let places: Vec<_> =
            v.sorted_runs().map(|p| (p.level, p.run, p.files.iter().map(|f| f.number()).collect())).collect();
        let expected = [(0, 0, vec![6]), (1, 7, vec![4, 3]), (1, 5, vec![2]), (1, 0, vec![1]), (2, 2, vec![5])];
        assert_eq!(places, expected);
        assert_eq!((v.levels[1].len(), v.level_bytes(1), v.num_files()), (4, 400, 6));
        assert_eq!(v.levels[1].runs().map(<[_]>::len).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(v.levels[1].run(5)[0].number(), 2);
        assert!(v.has_extra_runs() && v.levels[1].run(6).is_empty());

        // A run without files is no run; the level and number name a file, whichever its run.
        let gone = VersionEdit { deleted_files: vec![(1, 2), (2, 5), (1, 3)], ..Default::default() };
        let v = Arc::new(build(&v, &[gone]).unwrap());
        assert_eq!(v.sorted_runs().map(|p| (p.level, p.run)).collect::<Vec<_>>(), [(0, 0), (1, 7), (1, 0)]);
        let gone = VersionEdit { deleted_files: vec![(1, 4)], ..Default::default() };
        assert!(!build(&v, &[gone]).unwrap().has_extra_runs());
    }

    #[test]
    fn a_file_that_changes_its_run_keeps_its_table_until_nobody_reads_it() {
        let queue = Arc::<PurgeQueue>::default();
        let apply = |base: &Arc<Version>, edit: VersionEdit| {
            let mut b = VersionBuilder::new(Arc::clone(base), Arc::clone(&queue));
            b.apply(&edit).unwrap();
            Arc::new(b.build().unwrap())
        };
        let old = apply(&empty(), VersionEdit { new_files: vec![(1, in_run(7, 3, "a", "b"))], ..Default::default() });
        let id = *old.levels[1].extras[0].files[0].cache_id.get_or_init(|| 17);
        let edit = VersionEdit {
            deleted_files: vec![(1, 7)],
            new_files: vec![(1, in_run(7, 0, "a", "b"))],
            ..Default::default()
        };
        let new = apply(&old, edit);
        assert!(!new.has_extra_runs());
        assert_eq!(new.levels[1].base[0].cache_id.get(), Some(&id));
        new.levels[1].base[0].set_obsolete();
        drop(new);
        assert!(queue.take().files.is_empty(), "a reader of the old version may open it");
        drop(old);
        assert_eq!(queue.take().files, [(7, std::path::PathBuf::new())]);
    }

    #[test]
    fn broken_edits_are_refused() {
        let bad = [
            VersionEdit { deleted_files: vec![(1, 7)], ..Default::default() },
            VersionEdit { new_files: vec![(0, file(1, "a", "b", 1)), (0, file(1, "a", "b", 1))], ..Default::default() },
            VersionEdit { new_files: vec![(1, file(1, "a", "c", 1)), (1, file(2, "b", "d", 1))], ..Default::default() },
            VersionEdit {
                new_files: vec![(1, in_run(1, 4, "a", "c")), (1, in_run(2, 4, "b", "d"))],
                ..Default::default()
            },
            VersionEdit { new_files: vec![(0, in_run(1, 4, "a", "c"))], ..Default::default() },
            VersionEdit { new_files: vec![(9, file(1, "a", "c", 1))], ..Default::default() },
        ];
        for edit in bad {
            assert!(build(&empty(), std::slice::from_ref(&edit)).is_err(), "{edit:?}");
        }
    }
}
