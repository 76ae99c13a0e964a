//! The tables of the tree, for users: live files, levels, column families, and totals over tables.

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_format::edit::TablePiece;
use rockmill_format::properties::TableProperties;

use crate::db::catalog::column_family::CfData;
use crate::db::{AsColumnFamilyRef, Db, DbInner};
use crate::error::Result;
use crate::sync::atomic::Ordering;
use crate::version::{FileMeta, TableNumbers, Version};

/// The most tables that are opened for an estimate (RocksDB's number).
const OPENED_FOR_ESTIMATE_MAX: usize = 20;

/// A table file in use (`rocksdb::LiveFile`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveFile {
    /// Column family it belongs to.
    pub column_family_name: String,
    /// The directory that it is in.
    pub directory: PathBuf,
    /// File name, with a leading slash.
    pub name: String,
    /// File number.
    pub number: u64,
    /// Size of the file in bytes.
    pub size: usize,
    /// Further files that the table consists of, and the part of each that it refers to; other tables may share them.
    pub pieces: Vec<TablePiece>,
    /// Level.
    pub level: i32,
    /// Smallest user key.
    pub start_key: Option<Vec<u8>>,
    /// Largest user key.
    pub end_key: Option<Vec<u8>>,
    /// Smallest sequence number.
    pub smallest_seqno: u64,
    /// Largest sequence number.
    pub largest_seqno: u64,
    /// Entries, tombstones of all kinds included.
    pub num_entries: u64,
    /// Tombstones of all kinds.
    pub num_deletions: u64,
    /// A compaction reads it.
    pub being_compacted: bool,
    /// The sorted run above the level's base run that it belongs to; larger ones are newer. 0: the base run, or L0.
    pub extra_run: u64,
    /// When it was written, in seconds since 1970; `None` if the MANIFEST does not say.
    pub creation_time: Option<u64>,
}

/// A level of a column family (RocksDB's `LevelMetaData`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelMetaData {
    /// Its number.
    pub level: i32,
    /// Bytes of its tables; of a file that tables share, the bytes that each of them refers to.
    pub size: u64,
    /// Its tables: those of L0 newest first, others by key.
    pub files: Vec<LiveFile>,
}

/// A column family's tables (`rocksdb::ColumnFamilyMetaData`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ColumnFamilyMetaData {
    /// Bytes of its tables.
    pub size: u64,
    /// Its name.
    pub name: String,
    /// How many tables it has.
    pub file_count: usize,
    /// Its levels, including empty ones.
    pub levels: Vec<LevelMetaData>,
}

impl Db {
    /// Every table in use. Tables that are not open yet are opened: their properties say how many entries they have.
    pub fn live_files(&self) -> Result<Vec<LiveFile>> {
        let cfs: Vec<_> = self.inner.catalog.families().all().cloned().collect();
        let mut all = Vec::new();
        let mut cfs: Vec<&Arc<CfData>> = cfs.iter().map(|c| &c.data).collect();
        cfs.sort_by_key(|c| c.id);
        for cf in cfs {
            let version = Arc::clone(&cf.current.load().version);
            for (level, files) in version.levels.iter().enumerate() {
                for f in files {
                    all.push(LiveFile::new(cf, level, f, self.inner.numbers_of(cf, f)?));
                }
            }
        }
        Ok(all)
    }

    /// The tables of the default column family.
    pub fn get_column_family_metadata(&self) -> ColumnFamilyMetaData {
        self.get_column_family_metadata_cf(self.inner.catalog.default_cf())
    }

    /// The tables of a column family. A table that cannot be opened is shown without entries. The result is empty if
    /// the handle is of another database.
    pub fn get_column_family_metadata_cf(&self, cf: &impl AsColumnFamilyRef) -> ColumnFamilyMetaData {
        let cf = &cf.as_cf().data;
        if self.inner.check_family(cf).is_err() {
            return ColumnFamilyMetaData::default();
        }
        let version = Arc::clone(&cf.current.load().version);
        let mut levels = Vec::new();
        for (level, files) in version.levels.iter().enumerate() {
            let one = |f: &Arc<FileMeta>| LiveFile::new(cf, level, f, self.inner.numbers_of(cf, f).unwrap_or_default());
            let files = files.iter().map(one).collect();
            levels.push(LevelMetaData { level: level as i32, size: version.level_bytes(level), files });
        }
        ColumnFamilyMetaData {
            size: levels.iter().map(|l| l.size).sum(),
            name: cf.name.clone(),
            file_count: version.num_files(),
            levels,
        }
    }
}

impl LiveFile {
    fn new(cf: &CfData, level: usize, f: &FileMeta, numbers: TableNumbers) -> Self {
        Self {
            column_family_name: cf.name.clone(),
            directory: cf.dirs().of_file(f.own_file()).to_owned(),
            name: format!("/{}", rockmill_format::filename::table(f.number())),
            number: f.number(),
            size: f.own_size() as usize,
            pieces: f.entry.pieces.clone(),
            level: level as i32,
            start_key: Some(f.smallest_user_key().to_vec()),
            end_key: Some(f.largest_user_key().to_vec()),
            smallest_seqno: f.entry.smallest_seqno,
            largest_seqno: f.entry.largest_seqno,
            num_entries: numbers.entries,
            num_deletions: numbers.deletions,
            being_compacted: f.being_compacted.load(Ordering::Acquire),
            extra_run: f.entry.extra_run,
            creation_time: (f.entry.file_creation_time > 0).then_some(f.entry.file_creation_time),
        }
    }
}

impl DbInner {
    /// Numbers from a table's properties; opens the table if it is not open yet.
    fn numbers_of(&self, cf: &CfData, f: &Arc<FileMeta>) -> Result<TableNumbers> {
        match f.numbers.get() {
            Some(numbers) => Ok(*numbers),
            None => Ok(TableNumbers::of(self.readers.tables().table(cf, f)?.properties())),
        }
    }

    /// Numbers of the tables for estimates: those that are known, and those of a few more tables that are opened for
    /// it. `version` has the count of all tables.
    pub(crate) fn sampled_numbers(&self, cf: &CfData, version: &Version) -> Vec<TableNumbers> {
        let mut opened = 0;
        let mut known = |f: &Arc<FileMeta>| {
            f.numbers.get().copied().or_else(|| {
                opened += 1;
                if opened > OPENED_FOR_ESTIMATE_MAX { None } else { self.numbers_of(cf, f).ok() }
            })
        };
        version.levels.iter().flatten().filter_map(&mut known).collect()
    }

    /// RocksDB's text of table properties, added up over some tables.
    pub(crate) fn aggregated_properties(&self, cf: &CfData, files: &[&Arc<FileMeta>]) -> Result<String> {
        let mut sum = TableProperties::default();
        // The numbers in a file may be anything.
        let add = |to: &mut u64, n: u64| *to = to.saturating_add(n);
        for f in files {
            let table = self.readers.tables().table(cf, f)?;
            let p = table.properties();
            add(&mut sum.data_size, p.data_size);
            add(&mut sum.index_size, p.index_size);
            add(&mut sum.index_partitions, p.index_partitions);
            add(&mut sum.top_level_index_size, p.top_level_index_size);
            add(&mut sum.index_key_is_user_key, p.index_key_is_user_key);
            add(&mut sum.index_value_is_delta_encoded, p.index_value_is_delta_encoded);
            add(&mut sum.filter_size, p.filter_size);
            add(&mut sum.raw_key_size, p.raw_key_size);
            add(&mut sum.raw_value_size, p.raw_value_size);
            add(&mut sum.num_data_blocks, p.num_data_blocks);
            add(&mut sum.num_entries, p.num_entries);
            add(&mut sum.num_filter_entries, p.num_filter_entries);
            add(&mut sum.num_deletions, p.num_deletions);
            add(&mut sum.num_merge_operands, p.num_merge_operands);
            add(&mut sum.num_range_deletions, p.num_range_deletions);
        }
        Ok(text(&sum))
    }
}

/// The numbers of `TableProperties::ToString` that add up, in RocksDB's form.
fn text(p: &TableProperties) -> String {
    let average = |bytes: u64| if p.num_entries == 0 { 0.0 } else { bytes as f64 / p.num_entries as f64 };
    let index = format!(
        "index block size (user-key? {}, delta-value? {})",
        p.index_key_is_user_key, p.index_value_is_delta_encoded
    );
    let mut text = format!(
        "# data blocks={}; # entries={}; # deletions={}; # merge operands={}; # range deletions={}; raw key size={}; \
         raw average key size={:.6}; raw value size={}; raw average value size={:.6}; data block size={}; {index}={}; ",
        p.num_data_blocks,
        p.num_entries,
        p.num_deletions,
        p.num_merge_operands,
        p.num_range_deletions,
        p.raw_key_size,
        average(p.raw_key_size),
        p.raw_value_size,
        average(p.raw_value_size),
        p.data_size,
        p.index_size
    );
    if p.index_partitions != 0 {
        text +=
            &format!("# index partitions={}; top-level index size={}; ", p.index_partitions, p.top_level_index_size);
    }
    text + &format!(
        "filter block size={}; # entries for filter={}; (estimated) table size={}; ",
        p.filter_size,
        p.num_filter_entries,
        p.data_size.saturating_add(p.index_size).saturating_add(p.filter_size)
    )
}
