//! The files of a sorted level, one behind the other (RocksDB's `LevelIterator`). A file is opened when the iterator
//! gets to it, and at most one is open at a time.

use std::sync::Arc;

use rockmill_format::InternalKeyComparator;

use crate::compaction::TableSource;
use crate::error::Result;
use crate::iter::InternalIterator;
use crate::table::{TableReadOptions, TableReader};
use crate::version::{FileMeta, Version};

/// Told of each file when it is opened, before an entry of it is seen: for its range tombstones.
pub type OpenHook = Box<dyn FnMut(&Arc<FileMeta>, &Arc<TableReader>) + Send>;

enum Files {
    Of(Arc<Version>, usize),
    List(Vec<Arc<FileMeta>>),
}

impl Files {
    #[inline]
    fn list(&self) -> &[Arc<FileMeta>] {
        match self {
            Self::Of(version, level) => version.levels.get(*level).map_or(&[], |files| files),
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
    for_compaction: bool,
    on_open: Option<OpenHook>,
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

    /// Over a sorted level (1 or deeper) of a version.
    pub fn of_level(
        version: Arc<Version>,
        level: usize,
        tables: Arc<dyn TableSource>,
        options: TableReadOptions,
    ) -> Self {
        let cmp = version.cmp.clone();
        Self::over(Files::Of(version, level), tables, options, cmp)
    }

    fn over(files: Files, tables: Arc<dyn TableSource>, options: TableReadOptions, cmp: InternalKeyComparator) -> Self {
        Self { files, tables, options, cmp, for_compaction: false, on_open: None, open: 0, iter: None, status: Ok(()) }
    }

    /// Opens files with [`TableSource::table_for_compaction`].
    #[must_use]
    pub fn for_compaction(mut self) -> Self {
        self.for_compaction = true;
        self
    }

    /// Calls `hook` for each file when it is opened, again if it is opened again.
    #[must_use]
    pub fn on_open(mut self, hook: OpenHook) -> Self {
        self.on_open = Some(hook);
        self
    }

    /// Makes file `i` the open one; past the end, none is open.
    fn open(&mut self, i: usize) {
        if self.iter.is_some() && self.open == i {
            return;
        }
        self.iter = None;
        self.open = i;
        let Some(file) = self.files.list().get(i) else { return };
        let table = if self.for_compaction { self.tables.table_for_compaction(file) } else { self.tables.table(file) };
        match table {
            Ok(table) => {
                if let Some(hook) = &mut self.on_open {
                    hook(file, &table);
                }
                self.iter = Some(table.iter(self.options));
            }
            Err(e) => self.status = Err(e),
        }
    }

    /// Opens file `i` and positions in it; a fresh start after an error.
    fn position(&mut self, i: usize, position: impl FnOnce(&mut dyn InternalIterator)) {
        self.status = Ok(());
        self.open(i);
        if let Some(iter) = &mut self.iter {
            position(&mut **iter);
        }
    }

    /// Takes an exhausted file's error; true when the iteration should go on in a neighbour.
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

    /// The first file that does not end before `target`.
    fn find(&self, target: &[u8]) -> usize {
        self.files.list().partition_point(|f| self.cmp.compare(f.entry.largest.as_bytes(), target).is_lt())
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
        self.position(self.find(target), |iter| iter.seek(target));
        self.skip_forward();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let i = self.find(target).min(self.files.list().len().saturating_sub(1));
        self.position(i, |iter| iter.seek_for_prev(target));
        self.skip_backward();
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
}
