//! A fast path is turned on or off, or moved: the last opening left WALs in another directory than this one is to have.
//!
//! An opening for writing then is two, one after the other, under one lock: the first has its WALs where they are,
//! writes all that they hold as tables, and is closed; the second has them where the options say. So needed WALs are in
//! one directory at any time, no number is used twice, and a crash leaves what one of two usual openings leaves: the
//! next one does what is missing. The last WAL of the first opening, which is empty, goes when the second has noted
//! where its own are.
//!
//! An opening for reading reads the WALs where they are. A secondary is refused: it would not notice when its primary
//! goes on elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rockmill_io::{FileLock, FileSystem};

use crate::db::Db;
use crate::db::open::start::{OpenMode, open_files};
use crate::db::open::wal_owner;
use crate::error::Result;
use crate::front::wal_dir_of;
use crate::info_log::{InfoLog, log_info, log_warn};
use crate::options::check::FAST_CAPACITY_MIN;
use crate::options::{CfOptions, DbOptions, Options};
use crate::sync::Mutex;

/// A directory whose WALs are all in tables.
pub(super) struct Emptied {
    /// The last one, which is empty.
    log: PathBuf,
    /// Held until this is dropped: until then, the directory is the database's.
    _lock: Option<Box<dyn FileLock>>,
}

impl Emptied {
    /// Removes the last WAL: the database has its WALs elsewhere, durably.
    pub fn remove_log(&self, fs: &dyn FileSystem, log: &InfoLog) {
        if let Err(e) = fs.remove(&self.log) {
            log_warn!(log, "the WAL {} is not needed any more, and cannot be removed: {e}", self.log.display());
        }
    }
}

/// For the database in `path`, which is to be opened for writing with the WALs where `options` say: if the last opening
/// left needed ones elsewhere, and a fast path is turned on or off, writes what they hold as tables. `lock` is the lock
/// of the database's directory.
pub(super) fn empty_last_dir(
    options: &Options,
    path: &Path,
    wanted: &BTreeMap<String, CfOptions>,
    mode: OpenMode,
    log: &InfoLog,
    lock: &mut Option<Box<dyn FileLock>>,
) -> Result<Option<Emptied>> {
    wal_owner::settle(&*options.db.fs, path)?;
    let Some(dir) = wal_owner::dir_of_last(&options.db, path)? else { return Ok(None) };
    let to = wal_dir_of(&options.db, path);
    log_info!(log, "WALs are in {} and will be in {}: they are written as tables first", dir.display(), to.display());
    let mut first = options.clone();
    set_dir(&mut first.db, path, &dir);
    // Values are in memtables, and none stays there.
    first.db.fast_capacity = 0;
    first.db.avoid_flush_during_recovery = false;
    let db = open_files(&first, path, wanted.clone(), true, mode, log.clone(), lock.take())?;
    let wal = db.front.log_path(db.front.log_number());
    let locks = &db.opened.locks;
    let (own, theirs) = (locks.db.lock().take(), locks.wal_dir.lock().take());
    *lock = own;
    drop(Db { inner: db, threads: Mutex::default() });
    Ok(Some(Emptied { log: wal, _lock: theirs }))
}

/// The options for an opening for reading of the database in `path`: with the WALs where they are.
pub(super) fn for_reading(options: &Options, path: &Path) -> Result<Options> {
    let mut options = options.clone();
    if let Some(dir) = wal_owner::dir_of_last(&options.db, path)? {
        set_dir(&mut options.db, path, &dir);
    }
    keep_addresses(&mut options.db, path)?;
    Ok(options)
}

/// For a reader of the database in `path`: its logs may have far more than fits into memory if it has a fast path,
/// whether the reader's options say so or not.
pub(super) fn keep_addresses(options: &mut DbOptions, path: &Path) -> Result<()> {
    if options.fast_capacity == 0 && wal_owner::had_fast_path(&*options.fs, path)? {
        options.fast_capacity = FAST_CAPACITY_MIN; // a reader fills nothing
    }
    Ok(())
}

/// The WALs of the database in `path` are in `dir`. A directory of their own counts as a fast path: the opening notes
/// which WALs it began, and misses those that were noted.
fn set_dir(options: &mut DbOptions, path: &Path, dir: &Path) {
    options.fast_path = if dir == path { PathBuf::new() } else { dir.to_owned() };
    options.wal_dir.clone_from(&options.fast_path);
}
