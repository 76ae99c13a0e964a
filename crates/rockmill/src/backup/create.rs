//! Makes backups.
//!
//! 1. Flush if requested. Disable the deletion of files. Between two write groups, record versions, counters and the
//!    lengths of WALs, as for a checkpoint.
//! 2. With several threads, copy tables that no backup has under a temporary name and rename them, and copy WALs up to
//!    the recorded length. Write a new MANIFEST of the recorded state.
//! 3. Sync directories. Then write the meta file under a temporary name, sync it and rename it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::filename;
use rockmill_format::log::LogEncoder;
use rockmill_io::FileSystem;

use super::copy::{Contents, in_parallel};
use super::meta::{self, BackupMeta, META, MetaFile, PRIVATE, SHARED_CHECKSUM};
use super::{BackupEngine, CreateBackupOptions, ShareFilesNaming, State, Transfer, identity};
use crate::db::files::checkpoint::{Moment, moment, newest_options};
use crate::db::files::deletion::DeletionsOff;
use crate::db::{Db, DbInner};
use crate::env::{narrower, with_access};
use crate::error::{Error, Result};
use crate::table::properties_of;
use crate::version::each_file_in;

/// Bytes that a caller may store with a backup (RocksDB's limit).
const APP_METADATA_BYTES_MAX: usize = 1 << 20;
/// RocksDB's name of the whole-file checksum that a MANIFEST may contain.
const FILE_CHECKSUM_CRC32C: &str = "FileChecksumCrc32c";

/// A file to put into a backup. For a table's file: the checksum in the MANIFEST, if there is one, and whether the file
/// is only a piece of other tables.
enum Item {
    Table { path: PathBuf, size: u64, crc: Option<u32>, is_piece: bool },
    File { path: PathBuf, size: u64 },
    Bytes { name: String, bytes: Vec<u8> },
}

/// One backup being made.
struct Making<'a> {
    engine: &'a BackupEngine,
    /// Creates files that are as private as the database.
    fs: Arc<dyn FileSystem>,
    state: &'a State,
    db: &'a DbInner,
    transfer: &'a Transfer<'a>,
    id: u32,
}

impl BackupEngine {
    pub(super) fn create(&self, db: &Db, options: &CreateBackupOptions, app_metadata: &[u8]) -> Result<u32> {
        db.inner.check_writable()?;
        if app_metadata.len() > APP_METADATA_BYTES_MAX {
            return Err(Error::invalid_argument(format!(
                "{} bytes of metadata; {APP_METADATA_BYTES_MAX} are possible",
                app_metadata.len()
            )));
        }
        if self.options.dir == db.inner.path {
            return Err(Error::invalid_argument("the backup directory is the database's own"));
        }
        let mut transfer = self.transfer(&self.options.backup_rate, options.callback.as_ref());
        transfer.statistics = db.inner.opts.statistics.clone();
        transfer.check_stop()?;
        let (_lock, mut state) = self.begin_change()?;
        let id = state.latest_id().checked_add(1).ok_or_else(|| Error::invalid_argument("no number is left"))?;
        let private = self.path(PRIVATE).join(id.to_string());
        let leftover = self.fs().exists(&private).map_err(|e| Error::io(private.display(), &e))?;
        if leftover {
            self.collect(&mut state)?;
        }
        if options.flush_before_backup {
            db.flush_all()?;
        }
        let made = {
            let fs = self.fs_for(&db.inner)?;
            let making = Making { engine: self, fs, state: &state, db: &db.inner, transfer: &transfer, id };
            making.run(app_metadata)
        };
        match made {
            Ok((meta, sizes)) => {
                let identity = identity(meta.encode().as_bytes());
                state.add(id, meta, identity, &sizes);
                Ok(id)
            }
            Err(e) => {
                // If even this fails, the next deletion or backup removes it.
                state.may_have_garbage = true;
                let _ = self.fs().remove(&self.meta_path(id)).and_then(|()| self.fs().sync_dir(&self.path(META)));
                let _ = self.collect(&mut state);
                Err(e)
            }
        }
    }
}

impl BackupEngine {
    /// The backup directory's file system, for files that are as private as the directory and the database.
    fn fs_for(&self, db: &DbInner) -> Result<Arc<dyn FileSystem>> {
        let own = self.fs().access(&self.options.dir, &[]);
        let own = own.map_err(|e| Error::io(self.options.dir.display(), &e))?;
        let theirs = db.opts.fs.access(&db.path, &[&db.path.join(filename::CURRENT)]);
        let theirs = theirs.map_err(|e| Error::io(db.path.display(), &e))?;
        with_access(&self.backup.fs, &self.options.dir, narrower(own, theirs))
    }
}

impl Making<'_> {
    fn run(&self, app_metadata: &[u8]) -> Result<(BackupMeta, BTreeMap<String, u64>)> {
        let (engine, fs) = (self.engine, &*self.fs);
        let private = engine.path(PRIVATE).join(self.id.to_string());
        fs.create_dir(&private, false)
            .map_err(|e| Error::io(format_args!("cannot create {}", private.display()), &e))?;

        let deletions_off = DeletionsOff::new(self.db);
        // Taken before the state is recorded, so that it is below the next file number in the backup.
        let manifest = self.db.new_file_number();
        let now = moment(self.db)?;
        let sequence = now.edits.iter().filter_map(|e| e.last_sequence).max().unwrap_or(0);
        let items = self.items(&now, manifest)?;
        let copied = in_parallel(engine.options.threads, &items, |item| self.put(item))?;
        drop(deletions_off);

        let mut sizes = BTreeMap::new();
        let mut meta = BackupMeta {
            timestamp: engine.backup.clock.now_micros() / 1_000_000,
            sequence,
            app_metadata: app_metadata.to_vec(),
            ..BackupMeta::default()
        };
        for (path, contents) in copied {
            sizes.insert(path.clone(), contents.size);
            meta.files.push(MetaFile { path, crc: Some(contents.crc), size: None });
        }
        self.install(&meta, &private)?;
        Ok((meta, sizes))
    }

    /// Makes everything durable, then gives the meta file its name: from there on the backup exists.
    fn install(&self, meta: &BackupMeta, private: &Path) -> Result<()> {
        let (engine, fs, sync) = (self.engine, &*self.fs, self.engine.options.sync);
        if sync {
            engine.sync_dir(private)?;
            engine.sync_dir(&engine.path(PRIVATE))?;
            if let Some(shared) = engine.shared_dir() {
                engine.sync_dir(&engine.path(shared))?;
            }
        }
        let temp = engine.path(META).join(format!(".{}.tmp", self.id));
        self.transfer.write(fs, &temp, meta.encode().as_bytes(), sync)?;
        let path = engine.meta_path(self.id);
        fs.rename(&temp, &path).map_err(|e| Error::io(format_args!("cannot rename {}", temp.display()), &e))?;
        if sync { engine.sync_dir(&engine.path(META)) } else { Ok(()) }
    }

    fn items(&self, now: &Moment, manifest: u64) -> Result<Vec<Item>> {
        let db = self.db;
        let mut items = Vec::new();
        let tables: Vec<_> = now.versions.iter().flat_map(|v| v.files()).collect();
        // An entry's checksum is that of its table's own file.
        let crcs: HashMap<u64, Option<u32>> = tables.iter().map(|t| (t.number(), stated_crc(&t.entry))).collect();
        for (dirs, file) in each_file_in(tables) {
            let (path, crc) = (db.table_path(dirs, file), crcs.get(&file.number));
            items.push(Item::Table { path, size: file.size, crc: crc.copied().flatten(), is_piece: crc.is_none() });
        }
        // The largest first, so that it is not the last file of a single thread.
        items.sort_by_key(|i| match i {
            Item::Table { size, .. } => std::cmp::Reverse(*size),
            _ => std::cmp::Reverse(0),
        });
        if self.engine.options.backup_log_files {
            for &(number, size) in &now.wals {
                items.push(Item::File { path: db.log_path(number), size });
            }
        }
        if let Some(options) = newest_options(db)? {
            items.push(match options.rewritten {
                None => Item::File { path: db.path.join(options.name), size: options.size },
                Some(text) => Item::Bytes { name: options.name, bytes: text.into_bytes() },
            });
        }
        items.push(Item::Bytes { name: filename::manifest(manifest), bytes: manifest_bytes(manifest, &now.edits) });
        let current = filename::current_contents(manifest).into_bytes();
        items.push(Item::Bytes { name: filename::CURRENT.to_owned(), bytes: current });
        Ok(items)
    }

    /// Puts a file into the backup, unless an earlier backup has it; returns its path there.
    fn put(&self, item: &Item) -> Result<(String, Contents)> {
        let (engine, fs, sync) = (self.engine, &*self.fs, self.engine.options.sync);
        let private = |name: &str| format!("{PRIVATE}/{}/{name}", self.id);
        match item {
            Item::Bytes { name, bytes } => {
                let path = private(name);
                self.transfer.expect(bytes.len() as u64);
                let contents = self.transfer.write(fs, &engine.path(&path), bytes, sync)?;
                Ok((path, contents))
            }
            Item::File { path, size } => {
                let to = private(&file_name(path));
                self.transfer.expect(*size);
                let contents = self.copy(path, &engine.path(&to), *size)?;
                Ok((to, contents))
            }
            Item::Table { path, size, crc, is_piece } => self.put_table(path, *size, *crc, *is_piece),
        }
    }

    fn copy(&self, from: &Path, to: &Path, size: u64) -> Result<Contents> {
        let (engine, source) = (self.engine, &*self.db.opts.fs);
        self.transfer.copy((source, from), (&*self.fs, to), Some(size), engine.options.sync)
    }

    fn put_table(&self, from: &Path, size: u64, stated: Option<u32>, is_piece: bool) -> Result<(String, Contents)> {
        let engine = self.engine;
        let name = file_name(from);
        let Some(shared) = engine.shared_dir() else {
            let path = format!("{PRIVATE}/{}/{name}", self.id);
            self.transfer.expect(size);
            let contents = self.copy(from, &engine.path(&path), size)?;
            check_crc(from, stated, contents)?;
            return Ok((path, contents));
        };
        let with_session = shared == SHARED_CHECKSUM;
        let (name, known) = if with_session { self.unique_name(from, &name, size, is_piece)? } else { (name, None) };
        let path = format!("{shared}/{name}");
        let target = engine.path(&path);
        if let Some(info) = self.state.files.get(&path) {
            let there = engine.size_of(&target)?;
            if there == size && info.size == size {
                // If its name has the session, it is this table. By number alone, it may be another table.
                let crc = match (with_session, info.crc) {
                    (true, Some(crc)) => crc,
                    (_, expected) => {
                        self.transfer.expect(size);
                        let crc = self.transfer.checksum(&*self.db.opts.fs, from)?.crc;
                        if expected.is_some_and(|e| e != crc) {
                            return Err(another(&target, from));
                        }
                        crc
                    }
                };
                return Ok((path, Contents { size, crc }));
            }
            return Err(another(&target, from));
        }
        // A file with that name that belongs to no backup is left from a crash: it is replaced.
        self.transfer.expect(size);
        let temp = engine.path(shared).join(format!(".{name}.tmp"));
        let contents = self.copy(from, &temp, size)?;
        check_crc(from, stated, contents)?;
        if known.is_some_and(|k: Contents| k != contents) {
            return Err(Error::corruption(format!("{}: two reads gave different contents", from.display())));
        }
        let renamed = engine.fs().rename(&temp, &target);
        renamed.map_err(|e| Error::io(format_args!("cannot rename {}", temp.display()), &e))?;
        Ok((path, contents))
    }

    /// The name that distinguishes this table from others with its number, and its contents if they had to be read for
    /// that.
    fn unique_name(&self, from: &Path, name: &str, size: u64, is_piece: bool) -> Result<(String, Option<Contents>)> {
        let source = &*self.db.opts.fs;
        let (stem, extension) = name.rsplit_once('.').unwrap_or((name, "sst"));
        let naming = self.engine.options.naming;
        if naming != ShareFilesNaming::LegacyCrc32cAndFileSize {
            let file = source
                .open_random(from, false)
                .map_err(|e| Error::io(format_args!("cannot open table {}", from.display()), &e))?;
            let session = match properties_of(file, from) {
                // A piece need not be a table of its own.
                Err(_) if is_piece => String::new(),
                properties => properties?.db_session_id,
            };
            // RocksDB before 6.12 wrote none.
            if meta::is_session_id(&session) {
                let with_size = naming == ShareFilesNaming::UseDbSessionIdAndFileSize;
                let size = if with_size { format!("_{size}") } else { String::new() };
                return Ok((format!("{stem}_s{session}{size}.{extension}"), None));
            }
        }
        self.transfer.expect(size);
        let contents = self.transfer.checksum(source, from)?;
        Ok((format!("{stem}_{}_{}.{extension}", contents.crc, contents.size), Some(contents)))
    }
}

/// The MANIFEST's checksum of a table's own file, if there is one of this kind.
fn stated_crc(entry: &FileEntry) -> Option<u32> {
    let stated: [u8; 4] = entry.file_checksum.as_slice().try_into().ok()?;
    (entry.file_checksum_func_name == FILE_CHECKSUM_CRC32C).then(|| u32::from_be_bytes(stated))
}

/// Checks that the copy has the MANIFEST's checksum.
fn check_crc(path: &Path, stated: Option<u32>, contents: Contents) -> Result<()> {
    if let Some(stated) = stated
        && stated != contents.crc
    {
        return Err(Error::corruption(format!(
            "{}: its checksum is {:08x}, the MANIFEST says {stated:08x}",
            path.display(),
            contents.crc
        )));
    }
    Ok(())
}

fn another(target: &Path, from: &Path) -> Error {
    Error::corruption(format!(
        "{} in the backup directory is not the same as {}; if the database's table is sound (rockmill verify), delete \
         the old backups or back up to another directory",
        target.display(),
        from.display()
    ))
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A MANIFEST with these edits.
fn manifest_bytes(number: u64, edits: &[VersionEdit]) -> Vec<u8> {
    let mut encoder = LogEncoder::new(number, false, 0);
    let mut out = Vec::new();
    for edit in edits {
        encoder.add_record(&edit.encode(), &mut out);
    }
    out
}
