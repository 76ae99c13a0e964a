//! Tables written outside of a database, to be ingested into one (RocksDB's `SstFileWriter`).
//!
//! Every entry has sequence number 0, and two properties mark the table: its version, and a global sequence number of
//! 0. When the table is ingested, the MANIFEST may give all its entries another number, without a byte of the file
//! changing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::key::append_internal_key;
use rockmill_format::properties::{EXTERNAL_VERSION, GLOBAL_SEQNO, TableProperties, UNKNOWN_COLUMN_FAMILY};
use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};
use rockmill_io::WriteOptions;

use crate::compaction::table_format::TableFormat;
use crate::db::catalog::value_times::{TTL_MERGE_OPERATOR, VALUES_WITH_TIMES, stamp_now};
use crate::db::{AsColumnFamilyRef, new_session_id, table_writer_options};
use crate::error::{Error, Result};
use crate::options::{CfOptions, CompressionType, Options};
use crate::range_del::{FragmentedRangeTombstones, RangeTombstone, refuse_hashed_range};
use crate::table::{TableBuilder, TableBuilderOptions};

/// Version of the tables written here: it may be given a global sequence number.
const VERSION: u32 = 2;
/// Takes the place of the database's id in other tables.
const DB_ID: &str = "SST Writer";
/// Keys and values are shorter than this (their length is a 32-bit varint, and a key gets eight more bytes).
const LENGTH_MAX: usize = u32::MAX as usize - 8;
/// Sequence number of every entry.
const SEQ: SequenceNumber = 0;

/// What a finished table holds (RocksDB's `ExternalSstFileInfo`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExternalSstFileInfo {
    /// Where it is.
    pub file_path: PathBuf,
    /// Smallest user key of the point entries; empty if there are none.
    pub smallest_key: Vec<u8>,
    /// Largest user key of the point entries; empty if there are none.
    pub largest_key: Vec<u8>,
    /// First user key that a range tombstone deletes; empty if there are none.
    pub smallest_range_del_key: Vec<u8>,
    /// End of the last range tombstone (exclusive); empty if there are none.
    pub largest_range_del_key: Vec<u8>,
    /// Size in bytes.
    pub file_size: u64,
    /// Point entries.
    pub num_entries: u64,
    /// Range tombstones, as they were added.
    pub num_range_del_entries: u64,
    /// Version of the table's format as an external file.
    pub version: i32,
}

/// Writes a table of sorted entries, for [`Db::ingest_external_file`](crate::Db::ingest_external_file)
/// (`rocksdb::SstFileWriter`).
///
/// ```
/// # fn main() -> rockmill::Result<()> {
/// # let scratch = tempfile::tempdir().expect("a temporary directory");
/// # let dir = scratch.path().join("db");
/// # std::fs::create_dir_all(&dir).unwrap();
/// let options = rockmill::Options::default();
/// let mut writer = rockmill::SstFileWriter::create(&options);
/// writer.open(dir.join("batch.sst"))?;
/// writer.put("ada", "1815")?;
/// writer.put("grace", "1906")?;
/// assert!(writer.put("bob", "").is_err(), "keys must rise");
/// writer.finish()?;
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok(()) }
/// ```
pub struct SstFileWriter<'a> {
    options: &'a Options,
    cmp: InternalKeyComparator,
    /// Id and name of the column family that the tables are meant for.
    column_family: Option<(u32, String)>,
    session_id: String,
    next_number: u64,
    /// Appends the time to each value and merge operand, as in a database with a time to live.
    with_times: bool,
    open: Option<OpenTable>,
    /// Size of the last finished table.
    finished_size: u64,
}

struct OpenTable {
    builder: TableBuilder,
    tombstones: Vec<RangeTombstone>,
    info: ExternalSstFileInfo,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for SstFileWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.open.as_ref().map(|o| &o.info.file_path);
        f.debug_struct("SstFileWriter").field("open", &path).finish_non_exhaustive()
    }
}

impl<'a> SstFileWriter<'a> {
    /// Creates a writer of tables with these options: comparator, compression, table options. It uses their file
    /// system, too.
    pub fn create(options: &'a Options) -> Self {
        Self {
            cmp: InternalKeyComparator::new(Arc::clone(&options.cf.comparator)),
            options,
            column_family: None,
            session_id: new_session_id(options.db.clock.now_micros()),
            next_number: 1,
            with_times: false,
            open: None,
            finished_size: 0,
        }
    }

    /// As [`Self::create`], but only for databases with a time to live
    /// ([`Db::open_with_ttl`](crate::Db::open_with_ttl)). A value's time is when it is added here.
    pub fn create_with_ttl(options: &'a Options) -> Self {
        let mut new = Self::create(options);
        new.with_times = true;
        new
    }

    /// As [`Self::create`], for one column family: the tables name it, and other column families refuse them. For a
    /// database with a time to live: as [`Self::create_with_ttl`].
    pub fn create_for_cf(options: &'a Options, cf: &impl AsColumnFamilyRef) -> Self {
        let cf = cf.as_cf();
        let mut new = Self::create(options);
        new.column_family = Some((cf.id(), cf.name().to_owned()));
        new.with_times = cf.data.time_to_live.is_some();
        new
    }

    /// Begins a table. An existing file is replaced. An unfinished table is removed.
    pub fn open(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.abandon();
        let path = path.as_ref();
        let (db, cf) = table_writer_options(self.options)?;
        let (fs, cf) = (&self.options.db.fs, &cf);
        let failed = |e: &io::Error| Error::io(format_args!("cannot create {}", path.display()), e);
        let how = WriteOptions {
            mode_max: None,
            direct: db.use_direct_io_for_flush_and_compaction,
            buffer_size: db.writable_file_max_buffer_size,
            bytes_per_sync: db.bytes_per_sync,
            strict_bytes_per_sync: db.strict_bytes_per_sync,
            preallocate: 0,
        };
        let file = fs.create(path, how).map_err(|e| failed(&e))?;
        let options = TableBuilderOptions {
            cmp: self.cmp.clone(),
            tph: TableFormat::of(cf).tph,
            pieces: Arc::new([]),
            replaced: Arc::default(),
            block_based: TableFormat::of(cf).block_based,
            compression: compression(cf),
            compression_opts: cf.compression_opts.clone(),
            target_file_size: 0,
            prefix_extractor: cf.prefix_extractor.clone(),
            properties: self.properties(self.next_number),
            path: path.to_owned(),
            statistics: None,
        };
        self.next_number += 1;
        self.finished_size = 0;
        self.open = Some(OpenTable {
            builder: TableBuilder::new(options, file),
            tombstones: Vec::new(),
            info: ExternalSstFileInfo {
                file_path: path.to_owned(),
                version: VERSION as i32,
                ..ExternalSstFileInfo::default()
            },
            scratch: Vec::new(),
        });
        Ok(())
    }

    /// The properties that mark the table as an external one.
    fn properties(&self, number: u64) -> TableProperties {
        let (column_family_id, column_family_name) = match &self.column_family {
            Some((id, name)) => (u64::from(*id), name.clone()),
            None => (UNKNOWN_COLUMN_FAMILY, String::new()),
        };
        let merge_operator = self.options.cf.merge_operator.as_ref();
        let mut properties = TableProperties {
            column_family_id,
            column_family_name,
            orig_file_number: number,
            db_id: DB_ID.to_owned(),
            db_session_id: self.session_id.clone(),
            merge_operator_name: match merge_operator {
                Some(_) if self.with_times => TTL_MERGE_OPERATOR.to_owned(),
                Some(m) => m.name().to_owned(),
                None => String::new(),
            },
            ..TableProperties::default()
        };
        properties.other.insert(EXTERNAL_VERSION.into(), VERSION.to_le_bytes().to_vec());
        properties.other.insert(GLOBAL_SEQNO.into(), SEQ.to_le_bytes().to_vec());
        if self.with_times {
            properties.other.insert(VALUES_WITH_TIMES.into(), vec![1]);
        }
        properties
    }

    /// Sets `key` to `value`. Keys of puts, merges and deletions must be strictly ascending.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add_value(ValueType::Value, key.as_ref(), value.as_ref())
    }

    /// Adds a merge operand.
    pub fn merge(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add_value(ValueType::Merge, key.as_ref(), value.as_ref())
    }

    /// Deletes `key` from the database that ingests the table.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.add(ValueType::Deletion, key.as_ref(), &[])
    }

    /// Deletes every key in `[from, to)` from the database that ingests the table; the table's own entries stay. Ranges
    /// may come in any order. `from` after `to` is an error; an empty range has no effect.
    pub fn delete_range(&mut self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let (begin, end) = (from.as_ref(), to.as_ref());
        let cmp = self.cmp.clone();
        refuse_hashed_range(&cmp, "delete_range")?;
        let open = self.open_table()?;
        let order = cmp.compare_user(begin, end);
        if order.is_gt() {
            return Err(Error::invalid_argument(format!(
                "{}: delete_range from {} to {}: the end comes before the start",
                open.info.file_path.display(),
                show(begin),
                show(end)
            )));
        }
        if order.is_eq() {
            return Ok(());
        }
        check_length(&open.info.file_path, "a key", begin)?;
        check_length(&open.info.file_path, "a key", end)?;
        let info = &mut open.info;
        let first = info.num_range_del_entries == 0;
        if first || cmp.compare_user(begin, &info.smallest_range_del_key).is_lt() {
            info.smallest_range_del_key = begin.to_vec();
        }
        if first || cmp.compare_user(end, &info.largest_range_del_key).is_gt() {
            info.largest_range_del_key = end.to_vec();
        }
        info.num_range_del_entries += 1;
        open.tombstones.push(RangeTombstone { begin: begin.to_vec(), end: end.to_vec(), seq: SEQ });
        Ok(())
    }

    fn open_table(&mut self) -> Result<&mut OpenTable> {
        self.open.as_mut().ok_or_else(|| Error::invalid_argument("SstFileWriter: no table is open; call open first"))
    }

    fn add_value(&mut self, t: ValueType, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.with_times {
            return self.add(t, key, value);
        }
        let time = stamp_now(&*self.options.db.clock);
        self.add(t, key, &[value, &time].concat())
    }

    fn add(&mut self, t: ValueType, key: &[u8], value: &[u8]) -> Result<()> {
        let cmp = self.cmp.clone();
        let open = self.open_table()?;
        let info = &mut open.info;
        check_length(&info.file_path, "a key", key)?;
        check_length(&info.file_path, "a value", value)?;
        if info.num_entries > 0 && cmp.compare_user(key, &info.largest_key).is_le() {
            return Err(Error::invalid_argument(format!(
                "{}: key {} is not after the one before, {}: keys must be added in strictly rising order",
                info.file_path.display(),
                show(key),
                show(&info.largest_key)
            )));
        }
        open.scratch.clear();
        append_internal_key(&mut open.scratch, key, SEQ, t);
        open.builder.add(&open.scratch, value)?;
        if info.num_entries == 0 {
            info.smallest_key.extend_from_slice(key);
        }
        info.largest_key.clear();
        info.largest_key.extend_from_slice(key);
        info.num_entries += 1;
        info.file_size = open.builder.file_size_estimate();
        Ok(())
    }

    /// Completes the table and makes its contents durable. The caller has to sync the directory if necessary; an
    /// ingestion does not need that. An error if nothing was added; the table then stays open.
    pub fn finish(&mut self) -> Result<()> {
        self.finish_with_info().map(drop)
    }

    /// As [`Self::finish`]; returns a summary of the table.
    pub fn finish_with_info(&mut self) -> Result<ExternalSstFileInfo> {
        let open = self.open_table()?;
        if open.info.num_entries == 0 && open.info.num_range_del_entries == 0 {
            return Err(Error::invalid_argument(format!(
                "{}: a table without entries cannot be made",
                open.info.file_path.display()
            )));
        }
        let Some(OpenTable { mut builder, tombstones, mut info, .. }) = self.open.take() else {
            return Err(Error::invalid_argument("SstFileWriter: no table is open"));
        };
        // Fragmented where they overlap: a table has each pair of begin and sequence number only once.
        let fragments = FragmentedRangeTombstones::new(&tombstones, &self.cmp);
        let done = fragments
            .iter()
            .try_for_each(|(begin, end, seq)| builder.add_range_tombstone(begin, end, seq))
            .and_then(|()| builder.finish());
        match done {
            Ok(summary) => {
                info.file_size = summary.file_size;
                self.finished_size = summary.file_size;
                Ok(info)
            }
            Err(e) => {
                let _ = self.options.db.fs.remove(&info.file_path); // it is of no use
                Err(e)
            }
        }
    }

    /// The table's size in bytes so far, or the size of the last finished table.
    pub fn file_size(&self) -> u64 {
        self.open.as_ref().map_or(self.finished_size, |o| o.info.file_size)
    }

    fn abandon(&mut self) {
        if let Some(open) = self.open.take() {
            open.builder.abandon();
            let _ = self.options.db.fs.remove(&open.info.file_path); // unfinished, it is of no use
        }
    }
}

impl Drop for SstFileWriter<'_> {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// The table will be deep in the tree, so it gets the deepest level's compression.
fn compression(cf: &CfOptions) -> CompressionType {
    cf.bottommost_compression.or(cf.compression_per_level.last().copied()).unwrap_or(cf.compression)
}

fn check_length(path: &Path, what: &str, bytes: &[u8]) -> Result<()> {
    if bytes.len() > LENGTH_MAX {
        return Err(Error::invalid_argument(format!(
            "{}: {what} of {} bytes is too large: the limit is {LENGTH_MAX}",
            path.display(),
            bytes.len()
        )));
    }
    Ok(())
}

/// A key as people read it.
fn show(key: &[u8]) -> String {
    let most = 64;
    let shown = key[..key.len().min(most)].escape_ascii();
    if key.len() > most { format!("\"{shown}\"... ({} bytes)", key.len()) } else { format!("\"{shown}\"") }
}
