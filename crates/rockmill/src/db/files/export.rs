//! Column families copied from one database to another by their tables; levels and sequence numbers are kept (RocksDB's
//! `ExportColumnFamily` and `CreateColumnFamilyWithImport`).
//!
//! An export is a directory of tables and a description of them that the caller keeps. An import creates the column
//! family and names its tables in one atomic group of the MANIFEST.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::filename;
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, ParsedInternalKey};
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use crate::compaction::internal_unique_id;
use crate::db::catalog::merge_names::ExpectedOperator;
use crate::db::catalog::table_paths::{self, dirs_of};
use crate::db::files::checkpoint::link_tables;
use crate::db::files::ingest::{ExternalFile, IngestExternalFileOptions};
use crate::db::{AsColumnFamilyRef, Checkpoint, ColumnFamily, Db, DbInner};
use crate::error::{Error, Result};
use crate::info_log::log_info;
use crate::options::Options;
use crate::options::setters::setters;
use crate::table::{Table, TableOpenOptions};
use crate::version::{FileMeta, Version, VersionBuilder};

/// A table of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportedFile {
    /// Directory that it is in.
    pub directory: PathBuf,
    /// Its name in there.
    pub name: String,
    /// Level that it was in.
    pub level: usize,
    /// Size in bytes.
    pub size: u64,
    /// Smallest sequence number of its entries.
    pub smallest_seqno: SequenceNumber,
    /// Largest sequence number of its entries.
    pub largest_seqno: SequenceNumber,
    /// Larger is newer, among tables of L0; 0 unknown.
    pub epoch_number: u64,
    /// Smallest internal key that it stands for; if empty, the table's own smallest key.
    pub smallest: Vec<u8>,
    /// Largest internal key that it stands for; if empty, the table's own largest key.
    pub largest: Vec<u8>,
}

/// What an export holds (`rocksdb::ExportImportFilesMetaData`). As in RocksDB it is not stored in a file: the caller
/// passes it to the import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportImportFilesMetaData {
    /// Name of the column family's comparator.
    pub db_comparator_name: String,
    /// Its tables, by level; those of L0 newest first.
    pub files: Vec<ExportedFile>,
}

impl ExportImportFilesMetaData {
    /// Name of the column family's comparator.
    pub fn get_db_comparator_name(&self) -> String {
        self.db_comparator_name.clone()
    }
}

setters! {
    impl ExportImportFilesMetaData;

    set_db_comparator_name(name: &str) db_comparator_name = name.to_owned();
}

/// How a column family is imported (`rocksdb::ImportColumnFamilyOptions`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportColumnFamilyOptions {
    /// Link the tables instead of copying them, and remove the export's names afterwards.
    pub move_files: bool,
}

impl ImportColumnFamilyOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }
}

setters! {
    impl ImportColumnFamilyOptions;

    set_move_files(v: bool) move_files;
}

impl Checkpoint<'_> {
    /// Flushes a column family and gives its tables a second name in the new directory `path` (a copy where links are
    /// impossible). The result says how they fit together; an import needs it.
    pub fn export_column_family(
        &self,
        cf: &impl AsColumnFamilyRef,
        path: impl AsRef<Path>,
    ) -> Result<ExportImportFilesMetaData> {
        let (db, path, cf) = (&*self.db.inner, path.as_ref(), cf.as_cf());
        db.check_family(&cf.data)?;
        let flush = || self.db.flush_cf(cf);
        self.stage(path, "export", flush, |dir| {
            let fs = &db.opts.fs;
            fs.create_dir(dir, false).map_err(|e| Error::io(format_args!("cannot create {}", dir.display()), &e))?;
            let version = db.state.lock().family(cf.id()).map(|c| Arc::clone(c.version()));
            let version = version.ok_or_else(|| cf.data.dropped_error())?;
            if version.has_extra_runs() {
                return Err(Error::not_supported(
                    "an export has no place for extra runs of a level, which the column family has: set \
                     compaction_downforce and compaction_classic to false and compact it, then export it",
                ));
            }
            if let Some(table) = version.files().find(|table| !table.entry.pieces.is_empty()) {
                return Err(Error::not_supported(format!(
                    "an export has no place for tables of several files, as {table:?} is one: copy the database with a \
                     checkpoint or a backup",
                )));
            }
            link_tables(db, version.files(), dir)?;
            fs.sync_dir(dir).map_err(|e| Error::io(format_args!("cannot sync {}", dir.display()), &e))?;
            let mut meta = ExportImportFilesMetaData {
                db_comparator_name: version.cmp.user_comparator().name().to_owned(),
                files: Vec::new(),
            };
            for (level, files) in version.levels.iter().enumerate() {
                meta.files.extend(files.iter().map(|f| exported(db, f, level, path)));
            }
            Ok(meta)
        })
    }
}

fn exported(db: &DbInner, file: &FileMeta, level: usize, directory: &Path) -> ExportedFile {
    let (name, e) = (db.table_path(file.purge.dirs(), file.own_file()), &file.entry);
    ExportedFile {
        directory: directory.to_owned(),
        name: name.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        level,
        size: e.size,
        smallest_seqno: e.smallest_seqno,
        largest_seqno: e.largest_seqno,
        epoch_number: e.epoch_number,
        smallest: e.smallest.as_bytes().to_vec(),
        largest: e.largest.as_bytes().to_vec(),
    }
}

impl Db {
    /// Creates a column family from the tables of an export, all or nothing. They keep their levels and sequence
    /// numbers; the database's last sequence number rises to theirs.
    ///
    /// If a table is missing, damaged, of another comparator, or does not fit into the tree, nothing is changed. An
    /// error about an OPTIONS file is as in [`Self::create_cf`].
    pub fn create_column_family_with_import(
        &self,
        options: &Options,
        name: impl AsRef<str>,
        import_options: &ImportColumnFamilyOptions,
        metadata: &ExportImportFilesMetaData,
    ) -> Result<ColumnFamily> {
        let (db, name) = (&*self.inner, name.as_ref());
        let failed = |e: Error| e.context(format_args!("import of column family {name:?}"));
        db.check_writable()?;
        db.check_takes_writes()?;
        if db.opened.with_ttl() {
            return Err(failed(Error::not_supported("the database has a time to live, which imported values lack")));
        }
        if metadata.db_comparator_name != options.cf.comparator.name() {
            return Err(failed(Error::invalid_argument(format!(
                "the export's comparator is {}, the options' is {}",
                metadata.db_comparator_name,
                options.cf.comparator.name()
            ))));
        }
        if metadata.files.is_empty() {
            return Err(failed(Error::invalid_argument("the list of files is empty")));
        }
        let cmp = InternalKeyComparator::new(Arc::clone(&options.cf.comparator));
        let mut files = Vec::new();
        let operator = options.cf.merge_operator.as_ref().map(|o| ExpectedOperator::new(name, Arc::clone(o)));
        for f in &metadata.files {
            files.push(inspect(db, f, &cmp, options.cf.num_levels, operator.as_ref()).map_err(failed)?);
        }
        let how = IngestExternalFileOptions { move_files: import_options.move_files, ..Default::default() };
        let take_out = |files: &[ExternalFile]| files.iter().for_each(|f| f.take_out(db));
        let dirs = dirs_of(&options.cf, &db.opts, &db.path);
        let others = table_paths::other_dirs([&options.cf], &db.opts, &db.path);
        let entries = table_paths::prepare(&*db.opts.fs, &others, &db.path)
            .and_then(|()| db.bring_in_files(&mut files, dirs.of(0), &how))
            .and_then(|()| entries(db, options, &cmp, metadata, &files))
            .inspect_err(|_| take_out(&files))
            .map_err(failed)?;
        let last = metadata.files.iter().map(|f| f.largest_seqno).max().unwrap_or(0);
        let done = self.create_cf_of_files(name, options, entries, last);
        if let Err(e) = &done {
            // After an I/O error the MANIFEST may name them; those that it does not name are removed at the next open.
            if e.kind() != crate::error::ErrorKind::IOError {
                take_out(&files);
            }
            return done.map_err(failed);
        }
        log_info!(db.log, "Imported column family {name:?}: {} files", files.len());
        if import_options.move_files {
            self.remove_moved(files.iter().map(|f| &*f.path));
        }
        done
    }
}

/// Looks at a table of an export.
fn inspect(
    db: &DbInner,
    f: &ExportedFile,
    cmp: &InternalKeyComparator,
    num_levels: i32,
    operator: Option<&ExpectedOperator>,
) -> Result<ExternalFile> {
    // RocksDB puts a slash in front.
    let path = f.directory.join(f.name.trim_start_matches('/'));
    let file = db
        .opts
        .fs
        .open_random(&path, false)
        .map_err(|e| Error::io(format_args!("cannot open exported file {}", path.display()), &e))?;
    let size = file.size();
    let bad = |what: String| Err(Error::corruption(format!("{}: {what}", path.display())));
    if f.level >= num_levels.max(1) as usize {
        return Err(Error::invalid_argument(format!(
            "{}: it was in level {}, num_levels is {num_levels}: import with a larger num_levels",
            path.display(),
            f.level
        )));
    }
    if f.size != 0 && f.size != size {
        return bad(format!("the file has {size} bytes, the export says {}", f.size));
    }
    let open = TableOpenOptions {
        path: path.clone(),
        cmp: cmp.clone(),
        cache: None,
        largest_seqno: Some(f.largest_seqno),
        prefix_extractor: None,
        statistics: None,
        read_protection: None,
    };
    let table = Table::open(file, open)?;
    if let Some(operator) = operator {
        operator.check(&table).map_err(|e| e.context(path.display()))?;
    }
    let p = table.properties();
    if f.smallest_seqno > f.largest_seqno || f.largest_seqno > MAX_SEQUENCE {
        return bad(format!("sequence numbers {} to {} are none", f.smallest_seqno, f.largest_seqno));
    }
    if table.global_seqno().is_none()
        && let Some(n) = p.key_largest_seqno.filter(|&n| n > f.largest_seqno)
    {
        return bad(format!("it has sequence number {n}, the export says {} is the largest", f.largest_seqno));
    }
    let (smallest, largest) = match (f.smallest.is_empty(), f.largest.is_empty()) {
        (false, false) => {
            let key = |bytes: &[u8]| {
                let parsed = ParsedInternalKey::parse(bytes).map_err(|e| Error::format(&path, &e));
                parsed.map(|_| InternalKey::from_encoded(bytes))
            };
            (key(&f.smallest)?, key(&f.largest)?)
        }
        (true, true) => match table.boundaries()? {
            Some(found) => found,
            None => return bad("it has no entries".to_owned()),
        },
        _ => return bad("the export has one boundary of it and not the other".to_owned()),
    };
    Ok(ExternalFile {
        size,
        smallest,
        largest,
        unique_id: internal_unique_id(&p.db_id, &p.db_session_id, p.orig_file_number),
        tail_size: if p.tail_start_offset > 0 { size.saturating_sub(p.tail_start_offset) } else { 0 },
        properties: p.clone(),
        path,
        ..ExternalFile::default()
    })
}

/// The tables as the MANIFEST will name them. Epoch numbers begin anew, from the last level up, as in RocksDB.
fn entries(
    db: &DbInner,
    options: &Options,
    cmp: &InternalKeyComparator,
    metadata: &ExportImportFilesMetaData,
    files: &[ExternalFile],
) -> Result<Vec<(u32, FileEntry)>> {
    let now = db.now_seconds();
    let entry = |(f, file): (&ExportedFile, &ExternalFile)| {
        let entry = FileEntry {
            smallest_seqno: f.smallest_seqno,
            largest_seqno: f.largest_seqno,
            epoch_number: f.epoch_number,
            ..file.entry(now)
        };
        (f.level as u32, entry)
    };
    let edit = VersionEdit { new_files: metadata.files.iter().zip(files).map(entry).collect(), ..Default::default() };
    let empty = Arc::new(Version::empty(options.cf.num_levels.max(1) as usize, cmp.clone()));
    // Checks that they fit together, and sorts them.
    let mut builder = VersionBuilder::new(empty, Arc::default());
    // What does not fit is named by the numbers that the tables would get here.
    let named = |e: Error| {
        let names = files.iter().map(|f| format!("{} is {}", filename::table(f.number), f.path.display()));
        e.context(names.collect::<Vec<_>>().join(", "))
    };
    builder.apply(&edit).map_err(named)?;
    let version = builder.build().map_err(named)?;
    let mut epoch = u64::from(db.opts.allow_ingest_behind);
    let mut out = Vec::new();
    for (level, files) in version.levels.iter().enumerate().rev() {
        if level > 0 && !files.is_empty() {
            epoch += 1;
        }
        for file in files.iter().rev() {
            if level == 0 {
                epoch += 1;
            }
            out.push((level as u32, FileEntry { epoch_number: epoch, ..file.entry.clone() }));
        }
    }
    Ok(out)
}
