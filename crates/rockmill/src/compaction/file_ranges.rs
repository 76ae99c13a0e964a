//! Key ranges and sizes of tables that a job does not read. They determine where its own tables end and which
//! tombstones may be dropped.

use std::fmt;
use std::sync::Arc;

use crate::version::FileMeta;

/// User key ranges of the tables of one sorted run, by key. Plain data in two buffers: a job may have thousands.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FileRanges {
    /// The smallest and the largest key of each table, one after the other.
    keys: Vec<u8>,
    files: Vec<RangeEnds>,
}

/// Where a table's keys are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RangeEnds {
    smallest: usize,
    largest: usize,
    end: usize,
    size: u64,
}

/// One table of a [`FileRanges`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange<'a> {
    /// Smallest user key.
    pub smallest: &'a [u8],
    /// Largest user key.
    pub largest: &'a [u8],
    /// Bytes that the table counts for.
    pub size: u64,
}

impl FileRanges {
    /// Those of `files`, which are sorted and do not overlap.
    pub fn of(files: &[Arc<FileMeta>]) -> Self {
        let key_bytes = files.iter().map(|f| f.smallest_user_key().len() + f.largest_user_key().len()).sum();
        let mut out = Self { keys: Vec::with_capacity(key_bytes), files: Vec::with_capacity(files.len()) };
        for f in files {
            out.push(FileRange { smallest: f.smallest_user_key(), largest: f.largest_user_key(), size: f.size() });
        }
        out
    }

    /// Empty, with room for this many tables.
    pub(super) fn with_capacity(tables: usize) -> Self {
        Self { keys: Vec::new(), files: Vec::with_capacity(tables) }
    }

    /// Adds a table after the others.
    pub fn push(&mut self, file: FileRange<'_>) {
        let smallest = self.keys.len();
        self.keys.extend_from_slice(file.smallest);
        let largest = self.keys.len();
        self.keys.extend_from_slice(file.largest);
        self.files.push(RangeEnds { smallest, largest, end: self.keys.len(), size: file.size });
    }

    /// How many tables.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Sizes of all tables; saturates.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).fold(0, u64::saturating_add)
    }

    /// Table `i`.
    #[inline]
    pub fn get(&self, i: usize) -> Option<FileRange<'_>> {
        let at = self.files.get(i)?;
        let smallest = self.keys.get(at.smallest..at.largest)?;
        Some(FileRange { smallest, largest: self.keys.get(at.largest..at.end)?, size: at.size })
    }

    /// All tables, by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = FileRange<'_>> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// The first table for which `before` is false; it is true for all tables ahead of that one.
    pub fn partition_point(&self, mut before: impl FnMut(FileRange<'_>) -> bool) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if self.get(middle).is_some_and(&mut before) { from = middle + 1 } else { to = middle }
        }
        from
    }
}

impl fmt::Debug for FileRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found() {
        let mut ranges = FileRanges::default();
        assert_eq!((ranges.get(0), ranges.partition_point(|_| true)), (None, 0));
        let files = [("", "b", 1), ("c", "cc", 2), ("d", "z", 3)];
        for (smallest, largest, size) in files {
            ranges.push(FileRange { smallest: smallest.as_bytes(), largest: largest.as_bytes(), size });
        }
        assert_eq!((ranges.len(), ranges.total_bytes()), (3, 6));
        for (i, (smallest, largest, size)) in files.into_iter().enumerate() {
            let file = FileRange { smallest: smallest.as_bytes(), largest: largest.as_bytes(), size };
            assert_eq!(ranges.get(i), Some(file));
        }
        assert_eq!(ranges.get(3), None);
        for (key, first) in [("", 0), ("b", 0), ("ba", 1), ("cc", 1), ("cd", 2), ("zz", 3)] {
            assert_eq!(ranges.partition_point(|f| f.largest < key.as_bytes()), first, "{key}");
        }
        assert!(format!("{ranges:?}").contains("size: 3"));
    }
}
