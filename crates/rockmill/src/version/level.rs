//! A level's sorted runs: its base run, and extra runs above it.
//!
//! An extra run is what a DF-compaction leaves where the base run of the level below is busy: a run of its own in that
//! level, newer than the base run and than extra runs with smaller ids. Classic strategies leave none. RocksDB has no
//! extra runs, and the field of the MANIFEST for them keeps it from opening the directory (`docs/format.md`).

use std::ops::Range;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;

use super::FileMeta;

/// Position in a sorted run of the first table for which `before` is false; it must be true for all tables before that
/// one. This is the only search of runs (a style test checks that).
#[inline]
pub fn search(run: &[Arc<FileMeta>], before: impl FnMut(&Arc<FileMeta>) -> bool) -> usize {
    run.partition_point(before)
}

/// Place in a sorted run of the first table that does not end before `ikey`.
#[inline]
pub fn first_reaching(cmp: &InternalKeyComparator, run: &[Arc<FileMeta>], ikey: &[u8]) -> usize {
    search(run, |f| cmp.compare(f.entry.largest.as_bytes(), ikey).is_lt())
}

/// Places in a sorted run of the files whose user keys touch [`begin`, `end`] (inclusive; `None` unbounded), by binary
/// search: a run may have tens of thousands.
pub fn touched(
    cmp: &InternalKeyComparator,
    run: &[Arc<FileMeta>],
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
) -> Range<usize> {
    let from = begin.map_or(0, |b| search(run, |f| cmp.compare_user(f.largest_user_key(), b).is_lt()));
    let to = end.map_or(run.len(), |e| search(run, |f| cmp.compare_user(f.smallest_user_key(), e).is_le()));
    from..to.max(from)
}

/// A sorted run above a level's base run.
#[derive(Debug, Clone)]
pub struct ExtraRun {
    /// Larger ids are newer; never 0, which means the base run.
    pub id: u64,
    /// Its files, by key, without overlap; at least one.
    pub files: Vec<Arc<FileMeta>>,
}

/// The tables of one level. L0 has only `base`, which is not one sorted run there but files that may overlap, newest
/// first; deeper levels have a base run and perhaps extra runs.
#[derive(Debug, Clone, Default)]
pub struct Level {
    /// The base run, by key and without overlap; in L0 all files, newest first.
    pub base: Vec<Arc<FileMeta>>,
    /// Extra runs, newest first: their ids fall.
    pub extras: Vec<ExtraRun>,
}

/// One sorted run of a tree, and its place.
#[derive(Debug, Clone, Copy)]
pub struct SortedRun<'a> {
    /// The level.
    pub level: usize,
    /// The extra run's id; 0 for a base run and for a file of L0.
    pub run: u64,
    /// Its files, by key, without overlap: never empty.
    pub files: &'a [Arc<FileMeta>],
}

/// The files of a level: those of extra runs, newest run first, then the base run's.
pub type LevelFiles<'a> = std::iter::Chain<
    std::iter::FlatMap<std::slice::Iter<'a, ExtraRun>, std::slice::Iter<'a, Arc<FileMeta>>, FilesOf<'a>>,
    std::slice::Iter<'a, Arc<FileMeta>>,
>;

type FilesOf<'a> = fn(&'a ExtraRun) -> std::slice::Iter<'a, Arc<FileMeta>>;

impl From<Vec<Arc<FileMeta>>> for Level {
    /// A level without extra runs.
    fn from(base: Vec<Arc<FileMeta>>) -> Self {
        Self { base, extras: Vec::new() }
    }
}

impl Level {
    /// All files: those of extra runs, newest run first, then the base run's. They are in the order of keys, or of age,
    /// only if there are no extra runs.
    pub fn iter(&self) -> LevelFiles<'_> {
        let of: FilesOf<'_> = |run| run.files.iter();
        self.extras.iter().flat_map(of).chain(self.base.iter())
    }

    /// The same, to be replaced.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Arc<FileMeta>> {
        self.extras.iter_mut().flat_map(|run| run.files.iter_mut()).chain(self.base.iter_mut())
    }

    /// Files.
    pub fn len(&self) -> usize {
        self.extras.iter().map(|run| run.files.len()).sum::<usize>() + self.base.len()
    }

    /// True without files.
    pub fn is_empty(&self) -> bool {
        self.base.is_empty() && self.extras.iter().all(|run| run.files.is_empty())
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|f| f.size()).sum()
    }

    /// Sorted runs with files, newest first. For levels below L0, whose `base` is not one run.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = &[Arc<FileMeta>]> {
        let extras = self.extras.iter().map(|run| run.files.as_slice());
        extras.chain(std::iter::once(self.base.as_slice())).filter(|files| !files.is_empty())
    }

    /// The files of a run by its id; 0 is the base run.
    pub fn run(&self, id: u64) -> &[Arc<FileMeta>] {
        if id == 0 {
            return &self.base;
        }
        self.extras.iter().find(|run| run.id == id).map_or(&[], |run| &run.files)
    }

    /// Adds a file to the run that its entry names, at the end of the run's files.
    pub fn push(&mut self, file: Arc<FileMeta>) {
        let id = file.entry.extra_run;
        if id == 0 {
            self.base.push(file);
            return;
        }
        match self.extras.binary_search_by(|run| id.cmp(&run.id)) {
            Ok(i) => self.extras[i].files.push(file),
            Err(i) => self.extras.insert(i, ExtraRun { id, files: vec![file] }),
        }
    }

    /// Sorts added files into their places: those of L0 by age, those of each run of another level by key.
    pub fn sort(&mut self, level: usize, cmp: &InternalKeyComparator) {
        if level == 0 {
            sort_newest_first(&mut self.base);
            return;
        }
        for run in self.extras.iter_mut().map(|run| &mut run.files).chain([&mut self.base]) {
            run.sort_by(|a, b| cmp.compare(a.entry.smallest.as_bytes(), b.entry.smallest.as_bytes()));
        }
    }

    /// Keeps the files for which `keep` says so, and no run without files.
    pub fn retain(&mut self, mut keep: impl FnMut(&Arc<FileMeta>) -> bool) {
        self.extras.iter_mut().for_each(|run| run.files.retain(&mut keep));
        self.extras.retain(|run| !run.files.is_empty());
        self.base.retain(keep);
    }
}

/// By epoch number, or by sequence numbers where epochs are unknown.
fn sort_newest_first(files: &mut [Arc<FileMeta>]) {
    let epochs = files.iter().all(|f| f.entry.epoch_number != 0);
    files.sort_by(|a, b| {
        let (a, b) = (&a.entry, &b.entry);
        let by_seq = b
            .largest_seqno
            .cmp(&a.largest_seqno)
            .then(b.smallest_seqno.cmp(&a.smallest_seqno))
            .then(b.number.cmp(&a.number));
        if epochs { b.epoch_number.cmp(&a.epoch_number).then(by_seq) } else { by_seq }
    });
}

impl Extend<Arc<FileMeta>> for Level {
    /// Adds files to the runs that their entries name; [`Level::sort`] then puts them where they belong.
    fn extend<I: IntoIterator<Item = Arc<FileMeta>>>(&mut self, files: I) {
        files.into_iter().for_each(|f| self.push(f));
    }
}

impl FromIterator<Arc<FileMeta>> for Level {
    fn from_iter<I: IntoIterator<Item = Arc<FileMeta>>>(files: I) -> Self {
        let mut level = Self::default();
        level.extend(files);
        level
    }
}

impl<'a> IntoIterator for &'a Level {
    type Item = &'a Arc<FileMeta>;
    type IntoIter = LevelFiles<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
