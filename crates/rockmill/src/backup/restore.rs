//! Verifies and restores backups.
//!
//! A restore never begins by destroying. It first checks the backup's files; if it will replace a database, it reads
//! them completely and compares checksums. Then it deletes CURRENT, so that a half-restored directory is not a
//! database, and then the other files. Finally it copies the backup's files, compares the checksum of each, and writes
//! CURRENT last.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rockmill_format::filename::{self, FileType};
use rockmill_io::{Access, FileSystem};

use super::copy::{Contents, Transfer, in_parallel};
use super::meta::{BackupMeta, MetaFile, PRIVATE, database_name, is_session_id};
use super::{BackupEngine, RestoreMode, RestoreOptions, State};
use crate::db::new_db_id;
use crate::db::open::wal_owner::{self, Found, WAL_OWNER};
use crate::env::{LINE_FILE_BYTES_MAX, beneath, create_dir_durably, narrower, with_access};
use crate::error::{Error, ErrorKind, Result};
use crate::front::ARCHIVE;
use crate::options::file::with_wal_dir;
use crate::sync::MutexGuard;
use crate::table::properties_of;
use crate::version::{current_manifest, for_each_edit};

/// A file to bring back.
struct Piece<'a> {
    file: &'a MetaFile,
    to: PathBuf,
    size: u64,
}

impl BackupEngine {
    /// Checks that every file of a backup exists and has its size.
    pub fn verify_backup(&self, backup_id: u32) -> Result<()> {
        let state = self.look_at(backup_id)?;
        self.verify_sizes(&state, backup_id).map(|_| ())
    }

    /// Also reads every file of a backup and compares its checksum.
    pub fn verify_backup_with_checksum(&self, backup_id: u32) -> Result<()> {
        self.verify_backup_with_progress(backup_id, &RestoreOptions::default())
    }

    /// The same, with the progress callback of `options`.
    pub fn verify_backup_with_progress(&self, backup_id: u32, options: &RestoreOptions) -> Result<()> {
        let state = self.look_at(backup_id)?;
        let meta = self.verify_sizes(&state, backup_id)?;
        let transfer = self.transfer(&self.options.backup_rate, options.callback.as_ref());
        let pieces: Vec<&MetaFile> = meta.files.iter().collect();
        self.verify_checksums(&state, &pieces, &transfer)
    }

    /// Restores the newest usable backup to `db_dir`, with its WALs in `wal_dir` (usually the same). See
    /// [`Self::restore_from_backup`].
    pub fn restore_from_latest_backup(
        &self,
        db_dir: impl AsRef<Path>,
        wal_dir: impl AsRef<Path>,
        options: &RestoreOptions,
    ) -> Result<()> {
        let latest = {
            let mut state = self.state.lock();
            self.refresh(&mut state, None)?;
            state.backups.keys().next_back().copied()
        };
        let Some(id) = latest else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{}: holds no backup that can be used", self.options.dir.display()),
            ));
        };
        self.restore_from_backup(db_dir, wal_dir, options, id)
    }

    /// Restores a backup to `db_dir`, with its WALs in `wal_dir` (usually the same directory).
    ///
    /// An existing database there is deleted, but only after the backup was found to be complete; other files stay.
    /// Fails with `Busy` while that database is open. Afterwards the OPTIONS file names `wal_dir` if that is another
    /// directory, and no WAL directory otherwise, regardless of the backed-up database's setting. A `wal_dir` that
    /// belongs to another database is refused.
    ///
    /// A restore that fails half-way leaves a directory without CURRENT, which cannot be opened; restoring again
    /// completes it. In a new or empty directory, a failed restore leaves nothing.
    pub fn restore_from_backup(
        &self,
        db_dir: impl AsRef<Path>,
        wal_dir: impl AsRef<Path>,
        options: &RestoreOptions,
        backup_id: u32,
    ) -> Result<()> {
        let (db_dir, wal_dir) = (db_dir.as_ref(), wal_dir.as_ref());
        let fresh = Fresh::look(&*self.target.fs, [db_dir, wal_dir]);
        let done = self.restore(db_dir, wal_dir, options, backup_id, &fresh);
        if done.is_err() {
            fresh.clear(&*self.target.fs);
        }
        done.map_err(|e| {
            let what = format_args!("cannot restore backup {backup_id} of {}", self.options.dir.display());
            e.context(format_args!("{what} to {}", db_dir.display()))
        })
    }

    /// The directory's current state; fails if backup `id` is not the one that this engine knew.
    fn look_at(&self, id: u32) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        self.refresh(&mut state, Some(id))?;
        Ok(state)
    }

    /// Checks the presence and size of every file of a backup.
    fn verify_sizes<'s>(&self, state: &'s State, id: u32) -> Result<&'s BackupMeta> {
        let meta = state.backup(id)?;
        let mut sizes = BTreeMap::new();
        self.check_presence(meta, &mut sizes)?;
        for (path, size) in sizes {
            if let Some(info) = state.files.get(&path)
                && info.size != size
            {
                let path = self.path(path);
                return Err(Error::corruption(format!(
                    "{}: has {size} bytes instead of {}",
                    path.display(),
                    info.size
                )));
            }
        }
        Ok(meta)
    }

    fn verify_checksums(&self, state: &State, files: &[&MetaFile], transfer: &Transfer<'_>) -> Result<()> {
        for f in files {
            transfer.expect(state.files.get(&f.path).map_or(0, |i| i.size));
        }
        in_parallel(self.options.threads, files, |file| {
            let path = self.path(&file.path);
            let found = transfer.checksum(self.fs(), &path)?;
            check_crc(&path, file, found)
        })?;
        Ok(())
    }

    fn restore(&self, db_dir: &Path, wal_dir: &Path, options: &RestoreOptions, id: u32, fresh: &Fresh) -> Result<()> {
        let state = self.look_at(id)?;
        let meta = self.verify_sizes(&state, id)?;
        if let Some(missing) = meta.excluded.first() {
            return Err(Error::not_supported(format!(
                "it was made without {missing} (exclude_files_callback), to be found in another backup directory"
            )));
        }
        let transfer = self.transfer(&self.options.restore_rate, options.callback.as_ref());
        transfer.check_stop()?;
        // As private as the backup's files, and as the directory and its old contents.
        let theirs = self.access(id, meta)?;
        let fs = &with_access(&self.target.fs, db_dir, theirs)?;
        for dir in [db_dir, wal_dir] {
            create_dir_durably(&**fs, dir)?;
        }
        let own = fs.access(db_dir, &[&db_dir.join(filename::CURRENT)]);
        let own = own.map_err(|e| Error::io(db_dir.display(), &e))?;
        let fs = &*with_access(fs, db_dir, narrower(own, theirs))?;
        let _lock = lock_database(fs, db_dir)?;
        let own_wals = wal_dir != db_dir && !fs.same_file(wal_dir, db_dir).unwrap_or(false);
        if own_wals {
            // Also before locking, because the lock would leave a file in someone else's directory.
            wal_owner::check(fs, db_dir, wal_dir)?;
        }
        let _wal_lock = if own_wals { Some(wal_owner::lock(fs, wal_dir)?) } else { None };
        fresh.locked.set(true);
        if own_wals {
            wal_owner::check(fs, db_dir, wal_dir)?;
            if !options.keep_log_files {
                wal_owner::check_before_restore(fs, db_dir, wal_dir)?;
            }
        }
        if options.same_database_only {
            self.check_identity(fs, db_dir, meta)?;
        }

        let pieces = pieces(&state, meta, db_dir, wal_dir)?;
        let kept = self.tables_to_keep(fs, &pieces, options.mode, &transfer)?;
        let current = db_dir.join(filename::CURRENT);
        let (last, mut pieces): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|p| p.to == current);
        let [last] = last.as_slice() else {
            return Err(Error::corruption(format!("backup {id} has no file CURRENT")));
        };
        pieces.retain(|p| !kept.contains(&p.to));
        if fs.exists(&current).map_err(|e| Error::io(current.display(), &e))? {
            let files: Vec<&MetaFile> = pieces.iter().chain([last]).map(|p| p.file).collect();
            self.verify_checksums(&state, &files, &transfer)?;
        }
        clear(fs, db_dir, wal_dir, &kept, options.keep_log_files)?;
        wal_owner::forget_elsewhere(fs, db_dir, wal_dir)?;
        if own_wals {
            let token = new_db_id(self.target.clock.now_micros());
            wal_owner::mark(fs, db_dir, wal_dir, token, &Found::Here)?;
        }
        if options.keep_log_files {
            unarchive(fs, wal_dir)?;
            pieces.retain(|p| !is_wal(&p.to) || !fs.exists(&p.to).unwrap_or(false));
        }

        pieces.iter().for_each(|p| transfer.expect(p.size));
        let sync = self.options.sync;
        in_parallel(self.options.threads, &pieces, |p| self.bring_back(fs, p, &p.to, &transfer))?;
        for piece in pieces.iter().filter(|p| matches!(file_type(&p.to), Some(FileType::Options(_)))) {
            set_wal_dir(fs, &piece.to, if own_wals { wal_dir } else { Path::new("") })?;
        }
        let sync_dir = |dir: &Path| match sync {
            true => fs.sync_dir(dir).map_err(|e| Error::io(format_args!("cannot sync {}", dir.display()), &e)),
            false => Ok(()),
        };
        sync_dir(db_dir)?;
        sync_dir(wal_dir)?;
        if own_wals {
            wal_owner::note_restored(fs, db_dir, wal_dir)?;
        }
        let temp = db_dir.join(filename::temp(u64::from(id)));
        self.bring_back(fs, last, &temp, &transfer)?;
        fs.rename(&temp, &current).map_err(|e| Error::io(format_args!("cannot rename {}", temp.display()), &e))?;
        sync_dir(db_dir)
    }

    /// Refuses to replace a database other than the backup's.
    fn check_identity(&self, fs: &dyn FileSystem, db_dir: &Path, meta: &BackupMeta) -> Result<()> {
        let current = db_dir.join(filename::CURRENT);
        let exists = fs.exists(&current).map_err(|e| Error::io(current.display(), &e))?;
        let there = current_manifest(fs, db_dir)
            .ok()
            .and_then(|number| database_id(fs, &db_dir.join(filename::manifest(number))))
            .or_else(|| {
                let bytes = fs.read_small(&db_dir.join(filename::IDENTITY), LINE_FILE_BYTES_MAX).ok()?;
                Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()).filter(|id| !id.is_empty())
            });
        if there.is_none() && !exists {
            return Ok(()); // no database, or the remains of an interrupted restore
        }
        let manifest = meta.files.iter().find(|f| {
            let name = database_name(&f.path);
            matches!(filename::parse(&name), Some(FileType::Manifest(_)))
        });
        let own = manifest.and_then(|f| database_id(self.fs(), &self.path(&f.path)));
        // MANIFESTs of older RocksDB have no id, its tables do.
        let own = own.or_else(|| {
            let is_table = |f: &&MetaFile| matches!(filename::parse(&database_name(&f.path)), Some(FileType::Table(_)));
            let path = self.path(&meta.files.iter().find(is_table)?.path);
            let id = properties_of(self.fs().open_random(&path, false).ok()?, &path).ok()?.db_id;
            (!id.is_empty()).then_some(id)
        });
        if own.is_some() && own == there {
            return Ok(());
        }
        let text = |id: Option<String>| id.unwrap_or_else(|| "not known".to_owned());
        Err(Error::invalid_argument(format!(
            "{}: the database there (its id: {}) is not the one of the backup (its id: {}), and would be lost",
            db_dir.display(),
            text(there),
            text(own)
        )))
    }

    /// The access rights common to all files of a backup and to its private directory.
    fn access(&self, id: u32, meta: &BackupMeta) -> Result<Option<Access>> {
        let files: Vec<PathBuf> = meta.files.iter().map(|f| self.path(&f.path)).collect();
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let private = self.path(PRIVATE).join(id.to_string());
        match self.fs().access(&private, &files) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map_err(|e| Error::io(private.display(), &e)),
        }
    }

    fn bring_back(&self, target: &dyn FileSystem, piece: &Piece<'_>, to: &Path, transfer: &Transfer<'_>) -> Result<()> {
        let from = self.path(&piece.file.path);
        let copied = transfer.copy((self.fs(), &from), (target, to), Some(piece.size), self.options.sync)?;
        check_crc(&from, piece.file, copied)
    }

    /// The existing tables that match the backup's, as far as `mode` checks.
    fn tables_to_keep(
        &self,
        fs: &dyn FileSystem,
        pieces: &[Piece<'_>],
        mode: RestoreMode,
        transfer: &Transfer<'_>,
    ) -> Result<BTreeSet<PathBuf>> {
        let same = |p: &&Piece<'_>| -> Result<bool> {
            if !matches!(file_type(&p.to), Some(FileType::Table(_))) || fs.file_size(&p.to).ok() != Some(p.size) {
                return Ok(false);
            }
            match mode {
                RestoreMode::PurgeAllFiles => Ok(false),
                RestoreMode::VerifyChecksum => {
                    transfer.expect(p.size);
                    // A table that cannot be read is replaced.
                    match transfer.checksum(fs, &p.to) {
                        Ok(found) => Ok(p.file.crc == Some(found.crc)),
                        Err(e) if e.kind() == ErrorKind::Incomplete => Err(e),
                        Err(_) => Ok(false),
                    }
                }
                RestoreMode::KeepLatestDbSessionIdFiles => {
                    let file = fs.open_random(&p.to, false).ok();
                    let session = file.and_then(|f| properties_of(f, &p.to).ok()).map(|p| p.db_session_id);
                    let Some(session) = session.filter(|s| is_session_id(s)) else { return Ok(false) };
                    Ok(p.file.path.contains(&format!("_s{session}_{}.", p.size)))
                }
            }
        };
        let all: Vec<&Piece<'_>> = pieces.iter().collect();
        let found = in_parallel(self.options.threads, &all, same)?;
        Ok(all.iter().zip(found).filter(|(_, same)| *same).map(|(p, _)| p.to.clone()).collect())
    }
}

/// Directories that were empty or missing before a restore.
struct Fresh {
    /// Those that existed and were empty.
    empty: Vec<PathBuf>,
    /// Those that were missing, parents first.
    missing: Vec<PathBuf>,
    /// They are locked, so no one else adds files there.
    locked: Cell<bool>,
}

impl Fresh {
    fn look(fs: &dyn FileSystem, dirs: [&Path; 2]) -> Self {
        let (mut empty, mut missing) = (Vec::new(), BTreeSet::new());
        for dir in dirs {
            match fs.list_dir(dir) {
                Ok(names) if !names.is_empty() => continue,
                Err(e) if e.kind() != io::ErrorKind::NotFound => continue,
                _ => empty.push(dir.to_owned()),
            }
            let above = dir.ancestors().filter(|d| !d.as_os_str().is_empty());
            missing.extend(above.take_while(|d| matches!(fs.exists(d), Ok(false))).map(Path::to_owned));
        }
        // A path sorts after its parents.
        Self { empty, missing: missing.into_iter().collect(), locked: Cell::new(false) }
    }

    /// Removes what a failed restore has written; what cannot be removed stays.
    fn clear(&self, fs: &dyn FileSystem) {
        for dir in self.empty.iter().filter(|_| self.locked.get()) {
            for name in fs.list_dir(dir).unwrap_or_default() {
                if filename::parse(&name).is_some() || name == WAL_OWNER {
                    let _ = fs.remove(&dir.join(name));
                }
            }
        }
        self.missing.iter().rev().for_each(|dir| drop(fs.remove_dir(dir)));
    }
}

/// The database id in a MANIFEST.
fn database_id(fs: &dyn FileSystem, manifest: &Path) -> Option<String> {
    let mut id = None;
    for_each_edit(fs, manifest, &mut |edit| {
        id = edit.db_id.or(id.take());
        Ok(())
    })
    .ok()?;
    id.filter(|id| !id.is_empty())
}

/// Sets this WAL directory in an OPTIONS file.
fn set_wal_dir(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    let failed = |e| Error::io(format_args!("cannot rewrite {}", path.display()), &e);
    let bytes = fs.read_to_vec(path).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    match with_wal_dir(&text, &wal_dir.to_string_lossy()) {
        Some(text) => fs.write_all(path, text.as_bytes()).map_err(failed),
        None => Ok(()),
    }
}

fn check_crc(path: &Path, file: &MetaFile, found: Contents) -> Result<()> {
    match file.crc {
        Some(expected) if expected != found.crc => Err(Error::corruption(format!(
            "{}: the backup is damaged: the file's checksum is {:08x} instead of {expected:08x}",
            path.display(),
            found.crc
        ))),
        _ => Ok(()),
    }
}

fn file_type(path: &Path) -> Option<FileType> {
    filename::parse(path.file_name()?.to_str()?)
}

fn is_wal(path: &Path) -> bool {
    matches!(file_type(path), Some(FileType::Wal(_)))
}

fn lock_database(fs: &dyn FileSystem, dir: &Path) -> Result<Box<dyn rockmill_io::FileLock>> {
    fs.lock(&dir.join(filename::LOCK)).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            Error::new(ErrorKind::Busy, format!("{}: the database is open; close it first", dir.display()))
        }
        _ => Error::io(format_args!("cannot lock {}", dir.display()), &e),
    })
}

/// The destination of each file.
fn pieces<'m>(state: &State, meta: &'m BackupMeta, db_dir: &Path, wal_dir: &Path) -> Result<Vec<Piece<'m>>> {
    let mut taken = BTreeSet::new();
    let mut out = Vec::new();
    for file in &meta.files {
        let name = database_name(&file.path);
        let dir = match filename::parse(&name) {
            Some(FileType::Wal(_)) => wal_dir,
            Some(_) => db_dir,
            None => return Err(Error::corruption(format!("{}: is not a database's file", file.path))),
        };
        let to = dir.join(name);
        if !taken.insert(to.clone()) {
            return Err(Error::corruption(format!("{}: a second file for {}", file.path, to.display())));
        }
        let size = state.files.get(&file.path).map_or(0, |i| i.size);
        out.push(Piece { file, to, size });
    }
    Ok(out)
}

/// Removes an existing database: CURRENT first and durably, so that the rest is not a database any more.
fn clear(
    fs: &dyn FileSystem,
    db_dir: &Path,
    wal_dir: &Path,
    kept: &BTreeSet<PathBuf>,
    keep_log_files: bool,
) -> Result<()> {
    let remove = |fs: &dyn FileSystem, path: &Path| match fs.remove(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format_args!("cannot remove {}", path.display()), &e))
        }
        _ => Ok(()),
    };
    remove(fs, &db_dir.join(filename::CURRENT))?;
    fs.sync_dir(db_dir).map_err(|e| Error::io(format_args!("cannot sync {}", db_dir.display()), &e))?;
    let mut dirs = vec![db_dir.to_owned()];
    if !keep_log_files {
        dirs.push(wal_dir.join(ARCHIVE));
        if wal_dir != db_dir {
            dirs.push(wal_dir.to_owned());
        }
    }
    for dir in dirs {
        let fs = beneath(fs, if dir == db_dir { db_dir } else { wal_dir })?;
        let remove = |path: &Path| remove(&*fs, path);
        let names = match fs.list_dir(&dir) {
            Ok(names) => names,
            // An archive that is a link is left alone.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(e) => return Err(Error::io(format_args!("cannot list {}", dir.display()), &e)),
        };
        for name in names {
            let path = dir.join(&name);
            match filename::parse(&name) {
                None | Some(FileType::Lock) => {}
                Some(FileType::Wal(_)) if keep_log_files => {}
                Some(_) if kept.contains(&path) => {}
                Some(_) => remove(&path)?,
            }
        }
    }
    Ok(())
}

/// Moves archived WALs back to the WAL directory.
fn unarchive(fs: &dyn FileSystem, wal_dir: &Path) -> Result<()> {
    let archive = wal_dir.join(ARCHIVE);
    let fs = beneath(fs, wal_dir)?;
    let names = match fs.list_dir(&archive) {
        Ok(names) => names,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(Error::io(format_args!("cannot list {}", archive.display()), &e)),
    };
    for name in names.iter().filter(|n| matches!(filename::parse(n), Some(FileType::Wal(_)))) {
        let from = archive.join(name);
        fs.rename(&from, &wal_dir.join(name))
            .map_err(|e| Error::io(format_args!("cannot move {} back", from.display()), &e))?;
    }
    Ok(())
}
