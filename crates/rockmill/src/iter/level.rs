//! The files of a sorted run, one after another (RocksDB's `LevelIterator`). A file is opened when the iterator gets to
//! it, and at most one is open at a time.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::key::user_key;
use rockmill_format::{InternalKeyComparator, SliceTransform};

use crate::error::Result;
use crate::iter::InternalIterator;
use crate::iter::prefix_seek::PrefixSeek;
use crate::iter::seek_reads::SeekReads;
use crate::table::TableReadOptions;
use crate::version::{FileMeta, TableSource, Version, first_reaching};

enum Files {
    /// A level of a version, and which of its runs.
    Of(Arc<Version>, usize, u64),
    List(Vec<Arc<FileMeta>>),
}

impl Files {
    fn is_last_level(&self) -> bool {
        matches!(self, Self::Of(version, level, 0) if level + 1 == version.levels.len())
    }

    #[inline]
    fn list(&self) -> &[Arc<FileMeta>] {
        match self {
            Self::Of(version, level, run) => version.levels.get(*level).map_or(&[], |level| level.run(*run)),
            Self::List(files) => files,
        }
    }
}

/// See the module's text.
pub struct LevelIterator {
    files: Files,
    tables: Arc<dyn TableSource>,
    options: TableReadOptions,
    cmp: InternalKeyComparator,
    prefix: Option<Arc<PrefixSeek>>,
    /// Place in `files` of the file that `iter` reads.
    open: usize,
    iter: Option<Box<dyn InternalIterator>>,
    status: Result<()>,
}

impl LevelIterator {
    /// Over `files`, which are in key order and do not overlap.
    pub fn new(
        files: Vec<Arc<FileMeta>>,
        tables: Arc<dyn TableSource>,
        options: TableReadOptions,
        cmp: InternalKeyComparator,
    ) -> Self {
        Self::over(Files::List(files), tables, options, cmp)
    }

    /// Over a sorted run of a level (1 or deeper) of a version.
    pub fn of_run(
        version: Arc<Version>,
        level: usize,
        run: u64,
        tables: Arc<dyn TableSource>,
        options: TableReadOptions,
    ) -> Self {
        let cmp = version.cmp.clone();
        Self::over(Files::Of(version, level, run), tables, options, cmp)
    }

    fn over(files: Files, tables: Arc<dyn TableSource>, options: TableReadOptions, cmp: InternalKeyComparator) -> Self {
        Self { files, tables, options, cmp, prefix: None, open: 0, iter: None, status: Ok(()) }
    }

    /// With `prefix`, seeks that may use filters skip files that lack the target's prefix.
    #[must_use]
    pub fn by_prefix(mut self, prefix: Option<Arc<PrefixSeek>>) -> Self {
        self.prefix = prefix;
        self
    }

    /// File `i`, or the next one whose filter does not exclude the target's prefix; `None` if no file is left.
    #[inline]
    fn not_left_out(&self, i: usize, target: &[u8], backward: bool) -> Option<usize> {
        match &self.prefix {
            None => Some(i),
            Some(seek) => self.ask_filters(seek, i, target, backward),
        }
    }

    fn ask_filters(&self, seek: &PrefixSeek, mut i: usize, target: &[u8], backward: bool) -> Option<usize> {
        let key = user_key(target);
        while let Some(file) = self.files.list().get(i) {
            // An error is reported when the file is opened.
            let Ok(table) = self.tables.table(file) else { return Some(i) };
            let Some(extractor) = table.filter_prefixes() else { return Some(i) };
            let Some(prefix) = seek.question(key, extractor, backward) else { return Some(i) };
            let may_match = table.prefix_may_match(prefix, target, backward);
            table.count_seek(may_match, self.files.is_last_level());
            if may_match {
                return Some(i);
            }
            seek.left_out(extractor);
            i = self.neighbour(i, backward).filter(|&next| self.may_go_on(next, prefix, extractor, backward))?;
        }
        Some(i)
    }

    fn neighbour(&self, i: usize, backward: bool) -> Option<usize> {
        if backward { i.checked_sub(1) } else { Some(i + 1).filter(|&next| next < self.files.list().len()) }
    }

    /// True if a prefix that file `i`'s neighbour lacks may still begin (backwards: end) in file `i`. This is possible
    /// because the neighbour's boundary, which the target is past, can be a range tombstone's.
    fn may_go_on(&self, i: usize, prefix: &[u8], extractor: &SliceTransform, backward: bool) -> bool {
        let Some(file) = self.files.list().get(i) else { return false };
        let nearest = if backward { file.largest_user_key() } else { file.smallest_user_key() };
        extractor.prefix(nearest).is_none_or(|p| p == prefix)
    }

    /// No file is positioned, and none has failed.
    fn leave_out(&mut self) {
        self.status = Ok(());
        self.iter = None;
    }

    /// Opens file `i`; past the end, no file is open.
    fn open(&mut self, i: usize) {
        if self.iter.is_some() && self.open == i {
            return;
        }
        self.iter = None;
        self.open = i;
        let Some(file) = self.files.list().get(i) else { return };
        match self.tables.table(file) {
            Ok(table) => self.iter = Some(table.iter(self.options)),
            Err(e) => self.status = Err(e),
        }
    }

    /// Opens file `i` and positions in it; clears an earlier error.
    fn position(&mut self, i: usize, position: impl FnOnce(&mut dyn InternalIterator)) {
        self.status = Ok(());
        self.open(i);
        if let Some(iter) = &mut self.iter {
            position(&mut **iter);
        }
    }

    /// Takes an exhausted file's error; true if the iteration should continue in a neighbour.
    fn exhausted(&mut self) -> bool {
        match &self.iter {
            Some(iter) if !iter.valid() => {
                self.status = iter.status();
                self.status.is_ok()
            }
            _ => false,
        }
    }

    fn skip_forward(&mut self) {
        while self.exhausted() {
            self.open(self.open + 1);
            if let Some(iter) = &mut self.iter {
                iter.seek_to_first();
            }
        }
    }

    fn skip_backward(&mut self) {
        while self.exhausted() {
            let Some(previous) = self.open.checked_sub(1) else {
                self.iter = None;
                return;
            };
            self.open(previous);
            if let Some(iter) = &mut self.iter {
                iter.seek_to_last();
            }
        }
    }

    /// The file that a seek goes to: the first that does not end before `target` and that filters do not exclude.
    #[inline]
    fn find(&self, target: &[u8], backward: bool) -> Option<usize> {
        let i = first_reaching(&self.cmp, self.files.list(), target);
        let i = if backward { i.min(self.files.list().len().saturating_sub(1)) } else { i };
        self.not_left_out(i, target, backward)
    }
}

impl InternalIterator for LevelIterator {
    #[inline]
    fn valid(&self) -> bool {
        self.iter.as_ref().is_some_and(|i| i.valid())
    }

    fn seek_to_first(&mut self) {
        self.position(0, |iter| iter.seek_to_first());
        self.skip_forward();
    }

    fn seek_to_last(&mut self) {
        self.position(self.files.list().len().saturating_sub(1), |iter| iter.seek_to_last());
        self.skip_backward();
    }

    fn seek(&mut self, target: &[u8]) {
        let Some(i) = self.find(target, false) else { return self.leave_out() };
        self.position(i, |iter| iter.seek(target));
        self.skip_forward();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let Some(i) = self.find(target, true) else { return self.leave_out() };
        self.position(i, |iter| iter.seek_for_prev(target));
        self.skip_backward();
    }

    fn seek_together(&mut self, target: &[u8], backward: bool, reads: &mut SeekReads) {
        // Continues in the file that asked for a block: filters are used only once.
        let file = if reads.is_asking() { self.find(target, backward) } else { Some(self.open) };
        let Some(i) = file else { return self.leave_out() };
        let asked = reads.asked();
        self.position(i, |iter| iter.seek_together(target, backward, reads));
        if reads.asked() > asked {
            return;
        }
        if backward { self.skip_backward() } else { self.skip_forward() }
    }

    #[inline]
    fn next(&mut self) {
        if let Some(iter) = &mut self.iter {
            iter.next();
            if !iter.valid() {
                self.skip_forward();
            }
        }
    }

    #[inline]
    fn prev(&mut self) {
        if let Some(iter) = &mut self.iter {
            iter.prev();
            if !iter.valid() {
                self.skip_backward();
            }
        }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.iter.as_ref().map_or(&[], |i| i.key())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.iter.as_ref().map_or(&[], |i| i.value())
    }

    fn status(&self) -> Result<()> {
        self.status.clone()
    }

    fn file(&self) -> Option<&Path> {
        self.iter.as_ref().and_then(|i| i.file())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use parking_lot::Mutex;
    use rockmill_format::compression::CompressionType;
    use rockmill_format::edit::FileEntry;
    use rockmill_format::properties::TableProperties;
    use rockmill_format::{InternalKey, ValueType};
    use rockmill_io::{FileSystem, MemFileSystem, WriteOptions};

    use super::*;
    use crate::error::Error;
    use crate::table::{BlockBasedSettings, Table, TableBuilder, TableBuilderOptions, TableOpenOptions};
    use crate::version::PurgeQueue;

    /// Tables in memory; file number `fails` cannot be opened.
    struct Tables {
        fs: MemFileSystem,
        cmp: InternalKeyComparator,
        fails: Mutex<Option<u64>>,
        /// Numbers of the requested files, in order.
        opened: Mutex<Vec<u64>>,
    }

    fn path(number: u64) -> PathBuf {
        PathBuf::from(format!("/{number:06}.sst"))
    }

    impl TableSource for Tables {
        fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
            if *self.fails.lock() == Some(file.number()) {
                return Err(Error::corruption("footer is damaged"));
            }
            self.opened.lock().push(file.number());
            let random = self.fs.open_random(&path(file.number()), false).unwrap();
            let path = path(file.number());
            Table::open(
                random,
                TableOpenOptions {
                    path,
                    cmp: self.cmp.clone(),
                    cache: None,
                    largest_seqno: None,
                    prefix_extractor: None,
                    statistics: None,
                    read_protection: None,
                },
            )
        }
    }

    impl Tables {
        fn new() -> Arc<Self> {
            let cmp = InternalKeyComparator::default();
            Arc::new(Self { fs: MemFileSystem::new(), cmp, fails: Mutex::new(None), opened: Mutex::default() })
        }

        /// Writes a table; `covers` adds a range tombstone over this range of user keys.
        fn write(&self, number: u64, keys: &[Vec<u8>], covers: Option<(&str, &str)>) -> Arc<FileMeta> {
            let options = TableBuilderOptions {
                cmp: self.cmp.clone(),
                tph: None,
                pieces: Arc::new([]),
                replaced: Arc::default(),
                block_based: BlockBasedSettings { block_size: 64, ..BlockBasedSettings::default() },
                compression: CompressionType::None,
                compression_opts: crate::CompressionOptions::default(),
                target_file_size: 0,
                prefix_extractor: None,
                properties: TableProperties::default(),
                path: path(number),
                statistics: None,
            };
            let file = self.fs.create(&options.path, WriteOptions::default()).unwrap();
            let mut builder = TableBuilder::new(options, file);
            for k in keys {
                builder.add(k, &number.to_le_bytes()).unwrap();
            }
            if let Some((begin, end)) = covers {
                builder.add_range_tombstone(begin.as_bytes(), end.as_bytes(), 5).unwrap();
            }
            let s = builder.finish().unwrap();
            let entry = FileEntry {
                number,
                size: s.file_size,
                smallest: s.smallest,
                largest: s.largest,
                ..FileEntry::default()
            };
            Arc::new(FileMeta::new(entry, Arc::new(PurgeQueue::default())))
        }

        fn iter(self: &Arc<Self>, files: Vec<Arc<FileMeta>>) -> LevelIterator {
            LevelIterator::new(files, Arc::clone(self) as _, TableReadOptions::default(), self.cmp.clone())
        }
    }

    fn ikey(i: u32, seq: u64) -> Vec<u8> {
        InternalKey::new(format!("k{i:04}").as_bytes(), seq, ValueType::Value).as_bytes().to_vec()
    }

    #[test]
    fn random_walks_agree_with_a_sorted_vector() {
        for seed in 0..20 {
            println!("seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let tables = Tables::new();
            let mut keys: Vec<Vec<u8>> = (0..200).map(|_| ikey(rng.u32(0..300), rng.u64(1..4))).collect();
            keys.sort_by(|a, b| tables.cmp.compare(a, b));
            keys.dedup();
            // A file may begin with older versions of the last user key of the file before.
            let mut files = Vec::new();
            let mut rest = &keys[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rng.usize(1..40).min(rest.len()));
                files.push(tables.write(files.len() as u64 + 1, now, None));
                rest = later;
            }
            let mut it = tables.iter(files);
            let mut at: Option<usize> = None;
            for _ in 0..500 {
                let target = ikey(rng.u32(0..300), rng.u64(0..5));
                match rng.u32(0..30) {
                    0 => {
                        it.seek_to_first();
                        at = Some(0);
                    }
                    1 => {
                        it.seek_to_last();
                        at = Some(keys.len() - 1);
                    }
                    2 => {
                        it.seek(&target);
                        at = Some(keys.partition_point(|k| tables.cmp.compare(k, &target).is_lt()));
                    }
                    3 => {
                        it.seek_for_prev(&target);
                        at = keys.partition_point(|k| tables.cmp.compare(k, &target).is_le()).checked_sub(1);
                    }
                    4..18 if at.is_some() => {
                        it.next();
                        at = at.map(|i| i + 1);
                    }
                    18.. if at.is_some() => {
                        it.prev();
                        at = at.and_then(|i| i.checked_sub(1));
                    }
                    _ => {}
                }
                at = at.filter(|&i| i < keys.len());
                it.status().unwrap();
                assert_eq!(it.valid().then(|| it.key()), at.map(|i| &keys[i][..]));
            }
        }
    }

    #[test]
    fn no_files_no_entries() {
        let mut it = Tables::new().iter(Vec::new());
        it.seek_to_first();
        assert!(!it.valid());
        it.seek_to_last();
        assert!(!it.valid());
        it.seek(&ikey(1, 1));
        assert!(!it.valid());
        it.seek_for_prev(&ikey(1, 1));
        assert!(!it.valid());
        it.status().unwrap();
    }

    #[test]
    fn files_are_opened_when_reached_and_those_without_points_are_passed() {
        let tables = Tables::new();
        let files = vec![
            tables.write(1, &[ikey(1, 1), ikey(2, 1)], None),
            tables.write(2, &[], Some(("k0003", "k0004"))),
            tables.write(3, &[ikey(5, 1)], None),
        ];
        let mut it = tables.iter(files);
        let opened = &tables.opened;
        it.seek(&ikey(2, 9));
        assert_eq!(it.key(), ikey(2, 1));
        assert_eq!(*opened.lock(), [1]);
        it.next();
        assert_eq!(it.key(), ikey(5, 1));
        assert_eq!(*opened.lock(), [1, 2, 3]);
        it.prev();
        assert_eq!(it.key(), ikey(2, 1));
        it.seek(&ikey(3, 9));
        assert_eq!(it.key(), ikey(5, 1));
        it.seek_for_prev(&ikey(4, 9));
        assert_eq!(it.key(), ikey(2, 1));
    }

    #[test]
    fn a_file_that_cannot_be_opened_ends_the_iteration_with_its_error() {
        let tables = Tables::new();
        let files = (1..=3u64).map(|n| tables.write(n, &[ikey(n as u32, 1)], None)).collect();
        let mut it = tables.iter(files);
        *tables.fails.lock() = Some(2);
        it.seek_to_first();
        assert!(it.valid());
        it.next();
        assert!(!it.valid());
        assert!(it.status().unwrap_err().to_string().contains("footer is damaged"));
        it.seek_to_last();
        assert!(it.valid() && it.status().is_ok());
        it.prev();
        assert!(!it.valid() && it.status().is_err());
        *tables.fails.lock() = None;
        it.seek(&ikey(2, 1));
        assert!(it.valid() && it.status().is_ok());
    }
}
