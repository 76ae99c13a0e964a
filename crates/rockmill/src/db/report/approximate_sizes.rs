//! About how many bytes a key range takes: in tables by their indexes, in memtables by a sample of their entries.

use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::{MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK, append_internal_key};

use crate::db::catalog::column_family::CfData;
use crate::db::{AsColumnFamilyRef, Db, DbInner};
use crate::error::{Error, Result};
use crate::options::setters::setters;
use crate::version::{FileMeta, SortedRun, Version, first_reaching};

/// Keys from `start_key` up to, not including, `end_key` (`rocksdb::Range`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range<'a> {
    start_key: &'a [u8],
    end_key: &'a [u8],
}

impl<'a> Range<'a> {
    /// The range.
    pub fn new(start_key: &'a [u8], end_key: &'a [u8]) -> Self {
        Self { start_key, end_key }
    }
}

/// What counts in an estimate, and how exact it is (RocksDB's `SizeApproximationOptions`).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SizeApproximationOptions {
    /// Data in memtables. Off by default.
    pub include_memtables: bool,
    /// Data in tables. On by default.
    pub include_files: bool,
    /// Tables that lie only partly in the range count half, without reading their indexes, as long as together they are
    /// less than this fraction of the tables that lie wholly in it. 0 or less always reads the indexes. -1 by default.
    pub files_size_error_margin: f64,
}

impl Default for SizeApproximationOptions {
    fn default() -> Self {
        Self { include_memtables: false, include_files: true, files_size_error_margin: -1.0 }
    }
}

setters! {
    impl SizeApproximationOptions;

    set_include_memtables(v: bool) include_memtables;
    set_include_files(v: bool) include_files;
    set_files_size_error_margin(v: f64) files_size_error_margin;
}

impl Db {
    /// About how many bytes of tables each key range takes, compression included. A range whose end is not after its
    /// start takes none.
    pub fn get_approximate_sizes(&self, ranges: &[Range<'_>]) -> Vec<u64> {
        self.get_approximate_sizes_cf(self.inner.catalog.default_cf(), ranges)
    }

    /// The same of a column family.
    pub fn get_approximate_sizes_cf(&self, cf: &impl AsColumnFamilyRef, ranges: &[Range<'_>]) -> Vec<u64> {
        let options = SizeApproximationOptions::default();
        self.get_approximate_sizes_cf_opt(cf, ranges, &options).unwrap_or_default()
    }

    /// The same of a column family, with options; an error if they ask for nothing.
    pub fn get_approximate_sizes_cf_opt(
        &self,
        cf: &impl AsColumnFamilyRef,
        ranges: &[Range<'_>],
        options: &SizeApproximationOptions,
    ) -> Result<Vec<u64>> {
        if !options.include_files && !options.include_memtables {
            return Err(Error::invalid_argument("approximate sizes: neither files nor memtables are to be counted"));
        }
        let cf = &cf.as_cf().data;
        self.inner.check_family(cf)?;
        let current = cf.current.load_full();
        let size = |range: &Range<'_>| {
            if cf.cmp.compare_user(range.start_key, range.end_key).is_ge() {
                return 0;
            }
            let (start, end) = (seek_key(range.start_key), seek_key(range.end_key));
            let mut size = 0;
            if options.include_files {
                size += self.inner.size_in_files(cf, &current.version, &start, &end, options.files_size_error_margin);
            }
            if options.include_memtables {
                size += current.front.approximate_stats(&start, &end).1;
            }
            size
        };
        Ok(ranges.iter().map(size).collect())
    }

    /// About how many entries of the memtables lie in a key range of the default column family, and their bytes.
    pub fn get_approximate_memtable_stats(&self, range: &Range<'_>) -> (u64, u64) {
        self.get_approximate_memtable_stats_cf(self.inner.catalog.default_cf(), range)
    }

    /// The same of a column family.
    pub fn get_approximate_memtable_stats_cf(&self, cf: &impl AsColumnFamilyRef, range: &Range<'_>) -> (u64, u64) {
        let cf = &cf.as_cf().data;
        if self.inner.check_family(cf).is_err() || cf.cmp.compare_user(range.start_key, range.end_key).is_ge() {
            return (0, 0);
        }
        let current = cf.current.load_full();
        let (start, end) = (seek_key(range.start_key), seek_key(range.end_key));
        current.front.approximate_stats(&start, &end)
    }
}

/// Sorts before every version of the key.
fn seek_key(user_key: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(user_key.len() + 8);
    append_internal_key(&mut key, user_key, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
    key
}

impl DbInner {
    /// Bytes of tables between two internal keys (RocksDB's `VersionSet::ApproximateSize`).
    fn size_in_files(&self, cf: &CfData, version: &Version, start: &[u8], end: &[u8], margin: f64) -> u64 {
        let cmp = &cf.cmp;
        // Tables that lie wholly in the range count in full. Only the first and the last table of a level may lie
        // partly in it.
        let (mut full, mut first, mut last) = (0u64, Vec::new(), Vec::new());
        for SortedRun { level, files, .. } in version.sorted_runs() {
            if level == 0 {
                first.extend(files);
                continue;
            }
            let at = |key: &[u8]| first_reaching(cmp, files, key).min(files.len() - 1);
            let (from, to) = (at(start), at(end).max(at(start)));
            full += files[from..to].iter().skip(1).map(|f| f.size()).sum::<u64>();
            first.push(&files[from]);
            if from != to {
                last.push(&files[to]);
            }
        }
        let touching: u64 = first.iter().chain(&last).map(|f| f.size()).sum();
        if margin > 0.0 && touching < (full as f64 * margin) as u64 {
            return full + touching / 2;
        }
        let firsts = first.into_iter().map(|f| self.size_in_file(cf, f, start, end)).sum::<u64>();
        full + firsts + last.into_iter().map(|f| self.offset_in_file(cf, f, end)).sum::<u64>()
    }

    fn size_in_file(&self, cf: &CfData, f: &Arc<FileMeta>, start: &[u8], end: &[u8]) -> u64 {
        let (smallest, largest) = (f.entry.smallest.as_bytes(), f.entry.largest.as_bytes());
        let cmp = &cf.cmp;
        if cmp.compare(largest, start).is_le() || cmp.compare(smallest, end).is_gt() {
            return 0;
        }
        if cmp.compare(smallest, start).is_ge() {
            return self.offset_in_file(cf, f, end);
        }
        if cmp.compare(largest, end).is_lt() {
            return f.size().saturating_sub(self.offset_in_file(cf, f, start));
        }
        match self.readers.tables().table(cf, f) {
            Ok(table) => table.approximate_size(f.size(), start, end),
            Err(_) => 0,
        }
    }

    /// Bytes of a table before an internal key.
    fn offset_in_file(&self, cf: &CfData, f: &Arc<FileMeta>, key: &[u8]) -> u64 {
        let cmp: &InternalKeyComparator = &cf.cmp;
        if cmp.compare(f.entry.largest.as_bytes(), key).is_le() {
            return f.size();
        }
        if cmp.compare(f.entry.smallest.as_bytes(), key).is_gt() {
            return 0;
        }
        match self.readers.tables().table(cf, f) {
            Ok(table) => table.approximate_offset_of(f.size(), key),
            Err(_) => 0,
        }
    }
}

/// Bytes of the tables that hold the live data, estimated as in RocksDB: from the last level up, a table counts if it
/// overlaps none that was counted before.
pub(crate) fn estimate_live_data_size(version: &Version) -> u64 {
    let cmp = &version.cmp;
    let mut counted: Vec<&Arc<FileMeta>> = Vec::new();
    let mut bytes = 0;
    for level in version.levels.iter().rev() {
        for f in level.base.iter().chain(level.extras.iter().rev().flat_map(|run| &run.files)) {
            // The counted ones do not overlap: they are sorted by their largest keys as by their smallest.
            let smallest = f.entry.smallest.as_bytes();
            let at = counted.partition_point(|c| cmp.compare(c.entry.largest.as_bytes(), smallest).is_lt());
            let free = counted
                .get(at)
                .is_none_or(|c| cmp.compare(f.entry.largest.as_bytes(), c.entry.smallest.as_bytes()).is_lt());
            if free {
                counted.insert(at, f);
                bytes += f.size();
            }
        }
    }
    bytes
}
