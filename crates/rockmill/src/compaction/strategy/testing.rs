//! Trees from short descriptions, for tests of strategies.

use std::sync::Arc;

use rockmill_format::edit::{FileEntry, TablePiece};
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, ValueType};
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use crate::version::{FileMeta, Level, PurgeQueue, Version};

/// A tree under construction. L0 files are given oldest first, as they would be flushed.
pub(crate) struct TreeSpec {
    levels: Vec<Level>,
    purge: Arc<PurgeQueue>,
    next: u64,
}

impl TreeSpec {
    pub(crate) fn new(levels: usize) -> Self {
        Self { levels: vec![Level::default(); levels], purge: Arc::default(), next: 1 }
    }

    /// Adds a file whose boundary keys are puts. Files get numbers 1, 2, 3 … in order of addition.
    pub(crate) fn file(self, level: usize, smallest: &str, largest: &str, size: u64) -> Self {
        let n = self.next;
        self.keys(
            level,
            InternalKey::new(smallest.as_bytes(), n * 100 + 99, ValueType::Value),
            InternalKey::new(largest.as_bytes(), n * 100, ValueType::Value),
            size,
            (n * 100, n * 100 + 99),
        )
    }

    /// Adds a file that ends with a range tombstone's exclusive sentinel at `largest`.
    pub(crate) fn open_file(self, level: usize, smallest: &str, largest: &str, size: u64) -> Self {
        let n = self.next;
        self.keys(
            level,
            InternalKey::new(smallest.as_bytes(), n * 100 + 99, ValueType::Value),
            InternalKey::new(largest.as_bytes(), MAX_SEQUENCE, ValueType::RangeDeletion),
            size,
            (n * 100, n * 100 + 99),
        )
    }

    pub(crate) fn keys(
        mut self,
        level: usize,
        smallest: InternalKey,
        largest: InternalKey,
        size: u64,
        seqs: (SequenceNumber, SequenceNumber),
    ) -> Self {
        let entry = FileEntry {
            number: self.next,
            size,
            smallest,
            largest,
            smallest_seqno: seqs.0,
            largest_seqno: seqs.1,
            epoch_number: self.next,
            ..FileEntry::default()
        };
        self.next += 1;
        self.levels[level].push(Arc::new(FileMeta::new(entry, Arc::clone(&self.purge))));
        self
    }

    /// Sets the times of the last added file: when its oldest data and when the file itself were written.
    pub(crate) fn times(mut self, data: u64, written: u64) -> Self {
        let number = self.next - 1;
        for f in self.levels.iter_mut().flat_map(Level::iter_mut).filter(|f| f.number() == number) {
            let entry = FileEntry { oldest_ancester_time: data, file_creation_time: written, ..f.entry.clone() };
            *f = Arc::new(FileMeta::new(entry, Arc::clone(&self.purge)));
        }
        self
    }

    /// Puts the last added file into an extra run.
    pub(crate) fn in_run(mut self, extra_run: u64) -> Self {
        let number = self.next - 1;
        for level in &mut self.levels {
            if let Some(i) = level.base.iter().position(|f| f.number() == number) {
                let f = level.base.remove(i);
                level.push(Arc::new(f.renewed(FileEntry { extra_run, ..f.entry.clone() })));
            }
        }
        self
    }

    /// Gives the last added file a piece: another file, of which it refers to all bytes.
    pub(crate) fn with_piece(mut self, piece: u64, live: u64) -> Self {
        let number = self.next - 1;
        for f in self.levels.iter_mut().flat_map(Level::iter_mut).filter(|f| f.number() == number) {
            let mut entry = f.entry.clone();
            entry.pieces.push(TablePiece { number: piece, size: live, live, path_id: 0 });
            *f = Arc::new(FileMeta::new(entry, Arc::clone(&self.purge)));
        }
        self
    }

    pub(crate) fn build(mut self) -> Arc<Version> {
        let cmp = InternalKeyComparator::default();
        self.levels[0].base.reverse();
        for (level, files) in self.levels.iter_mut().enumerate().skip(1) {
            files.sort(level, &cmp);
        }
        Arc::new(Version::new(self.levels, cmp))
    }
}

/// Numbers of files, for comparisons.
pub(crate) fn numbers(files: &[Arc<FileMeta>]) -> Vec<u64> {
    files.iter().map(|f| f.number()).collect()
}
