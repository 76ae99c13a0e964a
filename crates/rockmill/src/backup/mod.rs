//! Backups in RocksDB's layout: Rockmill's and RocksDB's `BackupEngine` can continue, verify and restore each other's
//! backups.
//!
//! ```text
//! <backup_dir>/meta/<id>                       what backup <id> consists of, with checksums: it exists if this does
//! <backup_dir>/private/<id>/                   its MANIFEST, CURRENT, OPTIONS file and WALs
//! <backup_dir>/shared_checksum/N_sSESSION_SIZE.sst   tables, each copied once however many backups have it
//! <backup_dir>/shared/N.sst                    the same without `share_files_with_checksum`
//! <backup_dir>/LOCK                            held while a backup is made or deleted
//! ```
//!
//! | file | what happens there |
//! |---|---|
//! | `options.rs` | options, and the information that callers get |
//! | `meta.rs` | meta files and names |
//! | `create.rs` | making a backup |
//! | `restore.rs` | verifying and restoring |
//! | `copy.rs` | moving bytes: threads, rate, stop, checksums |
//!
//! Two rules of order make it crash-safe. Shared and private files are durable before the meta file gets its name. The
//! meta file is durably deleted before the files that only it needs. A crash in between leaves files that no meta file
//! names; the next deletion, or [`BackupEngine::garbage_collect`], removes them.

mod copy;
mod create;
mod meta;
mod options;
mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rockmill_format::checksum::xxh64;
use rockmill_io::error::is_not_plain;
use rockmill_io::{EntryKind, FileLock, FileSystem, View};

use crate::db::Db;
use crate::env::{Env, create_dir_durably};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use copy::Transfer;
use meta::{BackupMeta, META, PRIVATE, SHARED, SHARED_CHECKSUM};
use options::{Callback, Rate};

pub use options::{
    BackupDetails, BackupEngineInfo, BackupEngineOptions, BackupFile, BackupProgress, CreateBackupOptions, RestoreMode,
    RestoreOptions, ShareFilesNaming,
};

const LOCK: &str = "LOCK";

/// Makes, checks, restores and deletes backups (`rocksdb::backup::BackupEngine`). Calls from several threads wait for
/// each other. If another engine is changing the same directory, calls that change it fail.
///
/// ```
/// # fn main() -> rockmill::Result<()> {
/// # let scratch = tempfile::tempdir().expect("a temporary directory");
/// # let dir = scratch.path().join("db");
/// # let _ = std::fs::remove_dir_all(&dir);
/// use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
///
/// let db = rockmill::Db::open_default(dir.join("db"))?;
/// db.put("k", "v")?;
/// let engine = BackupEngine::open(&BackupEngineOptions::new(dir.join("backups"))?, &rockmill::Env::new()?)?;
/// engine.create_new_backup(&db)?;
/// drop(db);
/// engine.restore_from_latest_backup(dir.join("db"), dir.join("db"), &RestoreOptions::default())?;
/// assert_eq!(rockmill::Db::open_default(dir.join("db"))?.get("k")?.as_deref(), Some(&b"v"[..]));
/// # let _ = std::fs::remove_dir_all(dir);
/// # Ok(()) }
/// ```
pub struct BackupEngine {
    options: BackupEngineOptions,
    /// Where backups are.
    backup: Env,
    /// Where databases are restored to.
    target: Env,
    read_only: bool,
    stop: AtomicBool,
    state: Mutex<State>,
}

impl std::fmt::Debug for BackupEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackupEngine({})", self.options.dir.display())
    }
}

/// A file that backups consist of.
#[derive(Debug, Clone, Copy)]
struct FileInfo {
    size: u64,
    crc: Option<u32>,
    refs: usize,
}

/// Distinguishes backups with the same number, since the number of a deleted newest backup is used again. It is the
/// length and the hash of the meta file, which contains the backup's time, its sequence number, and the names and
/// checksums of its files.
type Identity = (usize, u64);

fn identity(meta: &[u8]) -> Identity {
    (meta.len(), xxh64(meta))
}

/// What the directory holds.
#[derive(Debug, Default)]
struct State {
    /// By path below the directory.
    files: BTreeMap<String, FileInfo>,
    backups: BTreeMap<u32, BackupMeta>,
    /// The meta files as they were when this state was read.
    seen: BTreeMap<u32, Identity>,
    /// Unusable backups, with the reason and the shared files that they may refer to.
    corrupt: BTreeMap<u32, (Error, Vec<String>)>,
    /// This engine has not collected garbage yet, or could not delete something.
    may_have_garbage: bool,
}

impl State {
    fn latest_id(&self) -> u32 {
        let last = self.backups.keys().next_back().max(self.corrupt.keys().next_back());
        last.copied().unwrap_or(0)
    }

    fn ids(&self) -> BTreeSet<u32> {
        self.backups.keys().chain(self.corrupt.keys()).copied().collect()
    }

    /// Adds a backup's files to the counts; the caller knows their sizes.
    fn add(&mut self, id: u32, meta: BackupMeta, identity: Identity, sizes: &BTreeMap<String, u64>) {
        self.seen.insert(id, identity);
        for f in &meta.files {
            let size = sizes.get(&f.path).copied().unwrap_or(0);
            let info = self.files.entry(f.path.clone()).or_insert(FileInfo { size, crc: f.crc, refs: 0 });
            info.refs += 1;
            info.crc = info.crc.or(f.crc);
        }
        self.backups.insert(id, meta);
    }

    /// Removes a backup's files from the counts; returns those that no other backup has.
    fn remove(&mut self, id: u32) -> Vec<String> {
        self.seen.remove(&id);
        let mut gone = Vec::new();
        for f in self.backups.remove(&id).into_iter().flat_map(|m| m.files) {
            if let Some(info) = self.files.get_mut(&f.path) {
                info.refs -= 1;
                if info.refs == 0 {
                    self.files.remove(&f.path);
                    gone.push(f.path);
                }
            }
        }
        gone
    }

    fn info(&self, id: u32, meta: &BackupMeta) -> BackupEngineInfo {
        BackupEngineInfo {
            timestamp: i64::try_from(meta.timestamp).unwrap_or(i64::MAX),
            backup_id: id,
            size: meta.files.iter().filter_map(|f| self.files.get(&f.path)).map(|i| i.size).sum(),
            num_files: u32::try_from(meta.files.len()).unwrap_or(u32::MAX),
        }
    }

    /// The backup, or the reason why it cannot be used.
    fn backup(&self, id: u32) -> Result<&BackupMeta> {
        if let Some((e, _)) = self.corrupt.get(&id) {
            return Err(e.clone().context(format_args!("backup {id} cannot be used")));
        }
        self.backups.get(&id).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no backup {id}")))
    }
}

impl BackupEngine {
    /// Opens the backup directory, and creates it if it is missing. `env` is where restored databases are; backups are
    /// there, too, unless the options name another place.
    pub fn open(options: &BackupEngineOptions, env: &Env) -> Result<Self> {
        let mut engine = Self::new(options, env, false)?;
        engine.create_top()?;
        engine.look_beneath()?;
        engine.create_dirs()?;
        *engine.state.lock() = engine.load()?;
        if options.destroy_old_data {
            let (_lock, mut state) = engine.begin_change()?;
            for id in state.ids() {
                engine.delete_meta(&mut state, id)?;
            }
            engine.collect(&mut state)?;
        }
        Ok(engine)
    }

    /// Opens an existing backup directory without writing to it (RocksDB `BackupEngineReadOnly`): to list, verify and
    /// restore.
    pub fn open_read_only(options: &BackupEngineOptions, env: &Env) -> Result<Self> {
        if options.destroy_old_data {
            return Err(Error::invalid_argument("destroy_old_data with a backup engine that is opened read-only"));
        }
        let mut engine = Self::new(options, env, true)?;
        let there = engine.fs().exists(&engine.path(META));
        if !there.map_err(|e| Error::io(engine.options.dir.display(), &e))? {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{}: no backup directory (it has no directory {META})", engine.options.dir.display()),
            ));
        }
        engine.look_beneath()?;
        *engine.state.lock() = engine.load()?;
        Ok(engine)
    }

    fn new(options: &BackupEngineOptions, env: &Env, read_only: bool) -> Result<Self> {
        if !options.share_table_files && options.share_files_with_checksum {
            // RocksDB asserts this. Here the second option is on by default, so turning off the first must be enough.
            let mut options = options.clone();
            options.share_files_with_checksum = false;
            return Self::new(&options, env, read_only);
        }
        Ok(Self {
            options: options.clone(),
            backup: options.env.clone().unwrap_or_else(|| env.clone()),
            target: env.clone(),
            read_only,
            stop: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// Makes a backup of the database's current state; writers continue meanwhile. Data written without a WAL that is
    /// in no table yet is not included.
    pub fn create_new_backup(&self, db: &Db) -> Result<()> {
        self.create_new_backup_flush(db, false)
    }

    /// Makes a backup, after a flush of the memtables if `flush_before_backup`.
    pub fn create_new_backup_flush(&self, db: &Db, flush_before_backup: bool) -> Result<()> {
        let mut options = CreateBackupOptions::default();
        options.set_flush_before_backup(flush_before_backup);
        self.create_new_backup_with_metadata(db, &options, b"").map(|_| ())
    }

    /// Makes a backup and stores up to 1 MiB of the caller's bytes with it; returns its number.
    pub fn create_new_backup_with_metadata(
        &self,
        db: &Db,
        options: &CreateBackupOptions,
        app_metadata: &[u8],
    ) -> Result<u32> {
        self.create(db, options, app_metadata)
            .map_err(|e| e.context(format_args!("cannot make a backup in {}", self.options.dir.display())))
    }

    /// The backups that can be used, oldest first.
    pub fn get_backup_info(&self) -> Vec<BackupEngineInfo> {
        let state = self.state.lock();
        state.backups.iter().map(|(&id, meta)| state.info(id, meta)).collect()
    }

    /// One backup in full.
    pub fn get_backup_details(&self, backup_id: u32) -> Result<BackupDetails> {
        let state = self.state.lock();
        let meta = state.backup(backup_id)?;
        let file = |f: &meta::MetaFile| {
            let info = state.files.get(&f.path)?;
            Some(BackupFile { path: f.path.clone(), size: info.size, crc32c: f.crc, backups: info.refs })
        };
        Ok(BackupDetails {
            info: state.info(backup_id, meta),
            sequence: meta.sequence,
            app_metadata: meta.app_metadata.clone(),
            files: meta.files.iter().filter_map(file).collect(),
        })
    }

    /// The unusable backups, with the reason, as found when the engine was opened (RocksDB `GetCorruptedBackups`). They
    /// can be deleted.
    pub fn get_corrupted_backups(&self) -> Vec<(u32, Error)> {
        self.state.lock().corrupt.iter().map(|(&id, (e, _))| (id, e.clone())).collect()
    }

    /// Deletes the oldest backups, except for the newest `num_backups_to_keep`.
    pub fn purge_old_backups(&self, num_backups_to_keep: usize) -> Result<()> {
        let (_lock, mut state) = self.begin_change()?;
        let extra = state.backups.len().saturating_sub(num_backups_to_keep);
        let ids: Vec<u32> = state.backups.keys().copied().take(extra).collect();
        let mut first = Ok(());
        for id in ids {
            first = first.and(self.delete_one(&mut state, id));
        }
        first.and(self.collect_if_needed(&mut state))
    }

    /// Deletes a backup, also an unusable one. If another engine has since made a new backup with this number, the call
    /// fails with `NotFound` and deletes nothing; this engine then knows the new backup.
    pub fn delete_backup(&self, backup_id: u32) -> Result<()> {
        let (_lock, mut state) = self.begin_change_of(Some(backup_id))?;
        if !state.ids().contains(&backup_id) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no backup {backup_id}")));
        }
        let deleted = self.delete_one(&mut state, backup_id);
        deleted.and(self.collect_if_needed(&mut state))
    }

    /// Removes what crashes and failures have left in the directory: files that no backup names. Files that a damaged
    /// backup may refer to stay until it is deleted.
    pub fn garbage_collect(&self) -> Result<()> {
        let (_lock, mut state) = self.begin_change()?;
        self.collect(&mut state)
    }

    /// Stops the running backup, restore or verification as soon as possible, with `Incomplete`. Can be called from any
    /// thread. As in RocksDB, this engine then refuses further ones: open another engine.
    pub fn stop_backup(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn fs(&self) -> &dyn FileSystem {
        &*self.backup.fs
    }

    fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.options.dir.join(relative)
    }

    fn meta_path(&self, id: u32) -> PathBuf {
        self.path(META).join(id.to_string())
    }

    fn transfer(&self, rate: &Rate, callback: Option<&Callback>) -> Transfer<'_> {
        let o = &self.options;
        Transfer::new(&self.stop, rate.limiter(&self.backup.clock), o.io_buffer_size, callback, o.callback_interval)
    }

    fn shared_dir(&self) -> Option<&'static str> {
        match (self.options.share_table_files, self.options.share_files_with_checksum) {
            (false, _) => None,
            (true, false) => Some(SHARED),
            (true, true) => Some(SHARED_CHECKSUM),
        }
    }

    fn create_top(&self) -> Result<()> {
        let (fs, top) = (self.fs(), &self.options.dir);
        match self.options.sync {
            true => create_dir_durably(fs, top),
            false => {
                fs.create_dir(top, true).map_err(|e| Error::io(format_args!("cannot create {}", top.display()), &e))
            }
        }
    }

    /// From here on follows no links below the directory: someone else may have put them there, and the engine would
    /// delete and copy files elsewhere.
    fn look_beneath(&mut self) -> Result<()> {
        let top = &self.options.dir;
        let failed = |e: io::Error| Error::io(top.display(), &e);
        let access = self.fs().access(top, &[]).map_err(failed)?;
        let view = self.fs().view(&View { beneath: Some(top.clone()), access }).map_err(failed)?;
        if let Some(view) = view {
            self.backup.fs = view;
        }
        Ok(())
    }

    fn create_dirs(&self) -> Result<()> {
        let top = &self.options.dir;
        let failed = |path: &Path, e: &io::Error| Error::io(format_args!("cannot create {}", path.display()), e);
        let fs = self.fs();
        for name in [PRIVATE, META].into_iter().chain(self.shared_dir()) {
            let path = self.path(name);
            fs.create_dir(&path, false).map_err(|e| failed(&path, &e))?;
        }
        if self.options.sync { self.sync_dir(top) } else { Ok(()) }
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.fs().sync_dir(path).map_err(|e| Error::io(format_args!("cannot sync {}", path.display()), &e))
    }

    fn lock_dir(&self) -> Result<Box<dyn FileLock>> {
        let path = self.path(LOCK);
        self.fs().lock(&path).map_err(|e| {
            if e.kind() == io::ErrorKind::WouldBlock {
                let what = "another backup engine is changing this directory; try again later";
                return Error::new(ErrorKind::Busy, format!("{}: {what}", self.options.dir.display()));
            }
            Error::io(format_args!("cannot lock {}", path.display()), &e)
        })
    }

    /// Locks the directory, and checks whether another engine has changed it.
    fn begin_change(&self) -> Result<(Box<dyn FileLock>, MutexGuard<'_, State>)> {
        self.begin_change_of(None)
    }

    /// The same; fails if backup `id` is no longer the one that this engine knew.
    fn begin_change_of(&self, id: Option<u32>) -> Result<(Box<dyn FileLock>, MutexGuard<'_, State>)> {
        if self.read_only {
            return Err(Error::not_supported(format!(
                "{}: this backup engine was opened read-only",
                self.options.dir.display()
            )));
        }
        let mut state = self.state.lock();
        let lock = self.lock_dir()?;
        self.refresh(&mut state, id)?;
        Ok((lock, state))
    }

    /// Reads the directory again if another engine has changed it. Then fails if backup `id` is no longer the one that
    /// `state` knew: the caller's information about it is no longer valid.
    fn refresh(&self, state: &mut State, id: Option<u32>) -> Result<()> {
        let mut now = BTreeMap::new();
        for n in self.list_ids()? {
            if let Some(text) = self.read_meta(n)? {
                now.insert(n, identity(&text));
            }
        }
        if now == state.seen {
            return Ok(());
        }
        let known = id.and_then(|id| state.seen.get(&id).copied().map(|identity| (id, identity)));
        *state = self.load()?;
        match known {
            Some((id, before)) if state.seen.get(&id).is_some_and(|now| *now != before) => Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{}: backup {id} is gone, and another engine has made a new backup of that number since; list the \
                     backups again",
                    self.options.dir.display()
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The text of a backup's meta file; `None` if there is none.
    fn read_meta(&self, id: u32) -> Result<Option<Vec<u8>>> {
        let path = self.meta_path(id);
        match self.fs().read_to_vec(&path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(format_args!("cannot read {}", path.display()), &e)),
        }
    }

    /// Numbers of the meta files.
    fn list_ids(&self) -> Result<BTreeSet<u32>> {
        let path = self.path(META);
        let names =
            self.fs().list_dir(&path).map_err(|e| Error::io(format_args!("cannot list {}", path.display()), &e))?;
        // Other names are not meta files, for example `.7.tmp` of an unfinished backup.
        let id = |n: &String| n.parse::<u32>().ok().filter(|id| *id > 0 && id.to_string() == *n);
        Ok(names.iter().filter_map(id).collect())
    }

    /// Reads all meta files. A damaged backup is recorded as such; only I/O errors make this call fail.
    fn load(&self) -> Result<State> {
        let mut state = State { may_have_garbage: true, ..State::default() };
        let mut sizes = BTreeMap::new();
        for id in self.list_ids()? {
            let Some(text) = self.read_meta(id)? else { continue }; // deleted meanwhile
            let meta = BackupMeta::decode(id, &text).map_err(|e| e.context(self.meta_path(id).display()));
            match meta.and_then(|meta| self.check_presence(&meta, &mut sizes).map(|()| meta)) {
                Ok(meta) => state.add(id, meta, identity(&text), &sizes),
                Err(e) if e.kind() == ErrorKind::IOError => return Err(e),
                Err(e) => {
                    state.seen.insert(id, identity(&text));
                    state.corrupt.insert(id, (e, meta::mentioned(&text)));
                }
            }
        }
        Ok(state)
    }

    /// Checks that every file exists and has the size that its name or the meta file states; records the sizes.
    fn check_presence(&self, meta: &BackupMeta, sizes: &mut BTreeMap<String, u64>) -> Result<()> {
        for f in &meta.files {
            let path = self.path(&f.path);
            let size = match sizes.get(&f.path) {
                Some(&size) => size,
                None => self.size_of(&path)?,
            };
            sizes.insert(f.path.clone(), size);
            if let Some(expected) = f.size.or(meta::size_in_name(&f.path))
                && size != expected
            {
                return Err(Error::corruption(format!("{}: has {size} bytes instead of {expected}", path.display())));
            }
        }
        Ok(())
    }

    fn size_of(&self, path: &Path) -> Result<u64> {
        self.fs().file_size(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::corruption(format!("{}: the file is missing", path.display())),
            // The backup is unusable, but can be deleted, which removes the link.
            _ if is_not_plain(&e) => Error::corruption(e.to_string()),
            _ => Error::io(path.display(), &e),
        })
    }

    /// Deletes a backup's meta file durably, and forgets the backup; returns the files that are no longer needed.
    fn delete_meta(&self, state: &mut State, id: u32) -> Result<Vec<String>> {
        let path = self.meta_path(id);
        match self.fs().remove(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format_args!("cannot delete backup {id}"), &e)),
        }
        if self.options.sync {
            // Otherwise a power cut could bring it back without its files.
            self.sync_dir(&self.path(META))?;
        }
        if state.corrupt.remove(&id).is_some() {
            state.may_have_garbage = true;
        }
        Ok(state.remove(id))
    }

    /// Deletes a backup. Files other than the meta file that cannot be deleted are left as garbage.
    fn delete_one(&self, state: &mut State, id: u32) -> Result<()> {
        let gone = self.delete_meta(state, id)?;
        let protected: BTreeSet<String> = state.corrupt.values().flat_map(|(_, p)| p).cloned().collect();
        for path in gone.iter().filter(|p| !protected.contains(*p)) {
            if self.fs().remove(&self.path(path)).is_err() {
                state.may_have_garbage = true;
            }
        }
        if self.fs().remove_dir(&self.path(PRIVATE).join(id.to_string())).is_err() {
            state.may_have_garbage = true;
        }
        Ok(())
    }

    fn collect_if_needed(&self, state: &mut State) -> Result<()> {
        if state.may_have_garbage { self.collect(state) } else { Ok(()) }
    }

    /// See [`Self::garbage_collect`]. Continues after a failure, and returns the first one.
    fn collect(&self, state: &mut State) -> Result<()> {
        let fs = self.fs();
        let mut first: Result<()> = Ok(());
        let mut note = |path: &Path, done: io::Result<()>| {
            if let Err(e) = done
                && e.kind() != io::ErrorKind::NotFound
                && first.is_ok()
            {
                first = Err(Error::io(format_args!("cannot remove {}", path.display()), &e));
            }
        };
        let list = |dir: &str| -> Result<Vec<String>> {
            let path = self.path(dir);
            match fs.list_dir(&path) {
                Ok(names) => Ok(names),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(e) => Err(Error::io(format_args!("cannot list {}", path.display()), &e)),
            }
        };
        let protected: BTreeSet<&String> = state.corrupt.values().flat_map(|(_, p)| p).collect();
        for dir in [SHARED, SHARED_CHECKSUM] {
            for name in list(dir)? {
                let relative = format!("{dir}/{name}");
                if !state.files.contains_key(&relative) && !protected.contains(&relative) {
                    let path = self.path(&relative);
                    note(&path, fs.remove(&path));
                }
            }
        }
        let ids = state.ids();
        for name in list(PRIVATE)? {
            // Directories with other names are not ours, except for RocksDB's older `7.tmp`.
            let id = name.strip_suffix(".tmp").unwrap_or(&name).parse::<u32>();
            let Ok(id) = id else { continue };
            if ids.contains(&id) && !name.ends_with(".tmp") {
                continue;
            }
            let dir = format!("{PRIVATE}/{name}");
            let path = self.path(&dir);
            let entry = fs.entry(&path).map_err(|e| Error::io(path.display(), &e))?;
            if entry.is_some_and(|e| e.kind != EntryKind::Directory) {
                // A link is never part of a backup: remove it, and keep what it points to.
                note(&path, fs.remove(&path));
                continue;
            }
            for file in list(&dir)? {
                let path = self.path(&dir).join(file);
                note(&path, fs.remove(&path));
            }
            note(&path, fs.remove_dir(&path));
        }
        for name in list(META)? {
            if name.ends_with(".tmp") {
                let path = self.path(META).join(name);
                note(&path, fs.remove(&path));
            }
        }
        state.may_have_garbage = first.is_err();
        first
    }
}
