//! Opening, creating, listing and destroying databases.
//!
//! 1. Check options, make the directory, take the lock.
//! 2. Recover the versions from the MANIFEST (or begin an empty database).
//! 3. Replay the WALs; write what they held as tables.
//! 4. Write a new MANIFEST with the whole state and point CURRENT at it: from here on the old WALs are not needed.
//! 5. Remove orphans, start the background threads.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::{BytewiseComparator, Comparator, comparator_named};
use rockmill_format::filename::{self, FileType};
use rockmill_format::key::InternalKey;
use rockmill_format::log::RecoveryMode;
use rockmill_io::FileLock;

use crate::compaction::SharedEngines;
use crate::compaction::engine::Prepared;
use crate::db::catalog::Catalog;
use crate::db::catalog::column_family::ColumnFamily;
use crate::db::catalog::families::check_new_name;
use crate::db::catalog::table_paths::{self, TablesThere, names_in, other_dirs, purge_of};
use crate::db::files::Files;
use crate::db::jobs::error_recovery::Recovery;
use crate::db::jobs::{Jobs, threads};
use crate::db::open::log as begin_log;
use crate::db::open::secondary::Following;
use crate::db::open::wal_note::{Began, OwnNote};
use crate::db::open::wal_owner::Seeker;
use crate::db::open::{DirLocks, Opened, take_over, wal_owner};
use crate::db::read::Readers;
use crate::db::report::Reporting;
use crate::db::write::Writers;
use crate::db::{CfState, Db, DbInner, FamilyContext, State};
use crate::env::{LINE_FILE_BYTES_MAX, create_dir_durably, for_database};
use crate::error::{Error, ErrorKind, Result};
use crate::front::{Front, KeptLogs, Logs, destroy_wals, misses_logs, wal_dir_of, wal_numbers};
use crate::info_log::{InfoLog, log_error, log_info, remove_logs};
use crate::options::check::{Adjusted, LEVELS_MAX, adjust_db_options, check_db_options, take_cf_options};
use crate::options::{CfOptions, ColumnFamilyDescriptor, DEFAULT_COLUMN_FAMILY_NAME, DbOptions, Options};
use crate::pacing::Pacing;
use crate::sync::atomic::AtomicBool;
use crate::sync::{Condvar, Mutex, unique_number};
use crate::table::BlockCache;
use crate::version::{
    ManifestWriter, PurgeQueue, RecoveredCf, RecoveredState, Version, each_file, recover_manifest,
    retry_while_files_vanish,
};

/// Bytes of block cache that a database without one of its own options gets (RocksDB's default).
const DEFAULT_CACHE_BYTES: usize = 32 << 20;

impl Db {
    /// Opens a database, creating it if needed.
    pub fn open_default(path: impl AsRef<Path>) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        Self::open(&options, path)
    }

    /// Opens a database that has the default column family only.
    pub fn open(options: &Options, path: impl AsRef<Path>) -> Result<Self> {
        Self::open_cf(options, path, [DEFAULT_COLUMN_FAMILY_NAME])
    }

    /// Opens a database with these column families, all with the same options. Every one that exists must be named.
    pub fn open_cf(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self> {
        let cfs = cfs.into_iter().map(|n| ColumnFamilyDescriptor::new(n.as_ref(), options.clone()));
        Self::open_cf_descriptors(options, path, cfs)
    }

    /// Opens a database with these column families. Every one that exists must be described.
    pub fn open_cf_descriptors(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = ColumnFamilyDescriptor>,
    ) -> Result<Self> {
        open(options, path.as_ref(), cfs.into_iter().collect(), OpenMode::default())
    }

    /// Opens a database for reading, without taking its lock. It sees the whole database as it is now, even while
    /// another process writes to it. With `error_if_wal_exists`, refuses a database that has a WAL.
    ///
    /// With `max_open_files` -1, up to a thousand tables are opened now and stay readable after a writer deletes them.
    /// Other tables are opened when they are read, which fails if a writer has replaced them.
    pub fn open_for_read_only(options: &Options, path: impl AsRef<Path>, error_if_wal_exists: bool) -> Result<Self> {
        Self::open_cf_for_read_only(options, path, [DEFAULT_COLUMN_FAMILY_NAME], error_if_wal_exists)
    }

    /// Opens some column families of a database for reading; see [`Self::open_for_read_only`].
    pub fn open_cf_for_read_only(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = impl AsRef<str>>,
        error_if_wal_exists: bool,
    ) -> Result<Self> {
        let cfs = cfs.into_iter().map(|n| ColumnFamilyDescriptor::new(n.as_ref(), options.clone()));
        Self::open_cf_descriptors_read_only(options, path, cfs, error_if_wal_exists)
    }

    /// Opens some column families of a database for reading; see [`Self::open_for_read_only`].
    pub fn open_cf_descriptors_read_only(
        options: &Options,
        path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = ColumnFamilyDescriptor>,
        error_if_wal_exists: bool,
    ) -> Result<Self> {
        let mode = OpenMode { read_only: true, error_if_wal_exists, ..OpenMode::default() };
        open(options, path.as_ref(), cfs.into_iter().collect(), mode)
    }

    /// Deletes a database: its files, and its directory if nothing else is in it.
    pub fn destroy(options: &Options, path: impl AsRef<Path>) -> Result<()> {
        let (fs, path) = (&options.db.fs, path.as_ref());
        if !fs.exists(path).unwrap_or(false) {
            return Ok(());
        }
        let fs = &for_database(fs, path)?;
        let lock_path = path.join(filename::LOCK);
        let lock = fs.lock(&lock_path).map_err(|e| lock_error(path, &e))?;
        let wal_dir = wal_dir_of(&options.db, path);
        if wal_dir != path && fs.exists(&wal_dir).unwrap_or(false) {
            // Checked before the lock as well: locking would leave a file in a directory that belongs to somebody else.
            wal_owner::check(&**fs, path, &wal_dir)?;
            wal_owner::check_unclaimed(&**fs, path, &wal_dir)?;
        }
        let wal_lock = match wal_dir != path && fs.exists(&wal_dir).unwrap_or(false) {
            true => Some(wal_owner::lock(&**fs, &wal_dir)?),
            false => None,
        };
        wal_owner::check(&**fs, path, &wal_dir)?;
        let other_dirs = other_dirs([&options.cf], &options.db, path);
        other_dirs.iter().try_for_each(|dir| table_paths::check(&**fs, dir, path))?;
        let sync = || fs.sync_dir(path).map_err(|e| Error::io(format_args!("cannot sync {}", path.display()), &e));
        // CURRENT goes first: if this is interrupted, there is a whole database or none, never one that lacks files.
        let current = path.join(filename::CURRENT);
        match fs.remove(&current) {
            Ok(()) => sync()?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io(format_args!("cannot remove {}", current.display()), &e)),
        }
        let names = fs.list_dir(path).map_err(|e| Error::io(path.display(), &e))?;
        for name in names {
            if filename::parse(&name).is_some_and(|t| t != FileType::Lock) {
                let file = path.join(&name);
                fs.remove(&file).map_err(|e| Error::io(format_args!("cannot remove {}", file.display()), &e))?;
            }
        }
        table_paths::destroy(&**fs, &other_dirs)?;
        destroy_wals(&**fs, path, &wal_dir)?;
        wal_owner::release(&**fs, path, &wal_dir);
        if let Some(lock) = wal_lock {
            drop(lock);
            let _ = fs.remove(&wal_dir.join(filename::LOCK));
            let _ = fs.remove_dir(&wal_dir); // stays if the user keeps other files in it
        }
        remove_logs(&options.db.log_settings(), path);
        // A WAL that came back would keep the next database out of the directory.
        sync()?;
        drop(lock);
        let _ = fs.remove(&lock_path);
        let _ = fs.remove_dir(path); // stays if the user keeps other files in it
        Ok(())
    }
}

/// How a database is opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OpenMode {
    /// Without the lock, and nothing is changed.
    pub read_only: bool,
    /// Refuse a database that has a WAL.
    pub error_if_wal_exists: bool,
    /// Values carry the time of their writing.
    pub with_ttl: bool,
}

/// The options of the database after adjustment, and the column families to open, by name; refuses options that make no
/// sense.
pub(crate) fn taken_options(
    options: &Options,
    cfs: Vec<ColumnFamilyDescriptor>,
    adjusted: &mut Adjusted,
) -> Result<(Options, BTreeMap<String, CfOptions>)> {
    check_db_options(&options.db)?;
    let mut options = options.clone();
    adjust_db_options(&mut options.db, adjusted);
    let mut wanted: BTreeMap<String, CfOptions> = BTreeMap::new();
    for mut d in cfs {
        take_cf_options(&d.name, &mut d.options.cf, &options.db, adjusted)?;
        if wanted.insert(d.name.clone(), d.options.cf).is_some() {
            return Err(Error::invalid_argument(format!("column family {:?} is given twice", d.name)));
        }
    }
    if !wanted.contains_key(DEFAULT_COLUMN_FAMILY_NAME) {
        return Err(Error::invalid_argument("the default column family must be opened too"));
    }
    Ok((options, wanted))
}

pub(crate) fn open(options: &Options, path: &Path, cfs: Vec<ColumnFamilyDescriptor>, mode: OpenMode) -> Result<Db> {
    let read_only = mode.read_only;
    let mut adjusted = Adjusted::default();
    let (mut options, wanted) = taken_options(options, cfs, &mut adjusted)?;
    let mut engines = None;
    if !read_only {
        engines = Some(SharedEngines::read(&mut options.db)?);
        let fs = &options.db.fs;
        if options.db.create_if_missing {
            if !fs.exists(&path.join(filename::CURRENT)).map_err(|e| Error::io(path.display(), &e))? {
                create_dir_durably(&**fs, path)?;
            }
        } else {
            check_is_database(&options.db, path)?;
        }
        options.db.fs = for_database(fs, path)?;
    }
    let (options, db_options) = (&options, &options.db);
    let fs = &db_options.fs;
    let mut writer = None;
    if let Some(engines) = engines {
        let lock = fs.lock(&path.join(filename::LOCK)).map_err(|e| lock_error(path, &e))?;
        writer = Some(Writer { lock, engines });
    }
    let exists = fs.exists(&path.join(filename::CURRENT)).map_err(|e| Error::io(path.display(), &e))?;
    if exists && !read_only && db_options.error_if_exists {
        return Err(Error::invalid_argument(format!("{}: exists (error_if_exists is true)", path.display())));
    }
    if !exists && read_only {
        check_is_readable(db_options, path)?;
    }
    if !exists && !db_options.create_if_missing {
        check_is_database(db_options, path)?;
    }

    let log = if read_only { InfoLog::default() } else { InfoLog::begin(&db_options.log_settings(), path) };
    begin_log::begin(&log, db_options, &wanted, path);
    adjusted.log(&log);
    let opened = match writer {
        // The lock is not held: a writer may be at work.
        None => retry_while_files_vanish(&**fs, path, || {
            let options = take_over::for_reading(options, path)?;
            let db = open_files(&options, path, wanted.clone(), exists, mode, log.clone(), None)?;
            Ok(Db { inner: db, threads: Mutex::default() })
        }),
        Some(writer) => open_to_write(options, path, wanted, exists, mode, &log, writer),
    };
    if let Err(e) = &opened {
        log_error!(log, "DB::Open() failed: {e}");
    }
    opened
}

/// What an opening for writing prepares before it looks at the database.
struct Writer {
    lock: Box<dyn FileLock>,
    /// What the options ask of the engines.
    engines: Prepared,
}

/// Steps 2 to 5 of opening for writing.
fn open_to_write(
    options: &Options,
    path: &Path,
    wanted: BTreeMap<String, CfOptions>,
    exists: bool,
    mode: OpenMode,
    log: &InfoLog,
    writer: Writer,
) -> Result<Db> {
    let Writer { lock, engines } = writer;
    let mut lock = Some(lock);
    let emptied = match exists {
        true => take_over::empty_last_dir(options, path, &wanted, mode, log, &mut lock)?,
        false => None,
    };
    let db = open_files(options, path, wanted, exists, mode, log.clone(), lock)?;
    if let Some(emptied) = emptied {
        emptied.remove_log(&*db.opts.fs, &db.log);
    }
    db.log_opened();
    db.engines.open(engines, &db.live(), &db.log)?;
    db.files.numbers().begin();
    let threads = threads::start(&db)?;
    log_info!(db.log, "DB opened, version {}", env!("CARGO_PKG_VERSION"));
    Ok(Db { inner: db, threads: Mutex::new(threads) })
}

/// Steps 2 to 5 of opening, without the threads. `lock` is the one of the database's directory, for writing.
pub(super) fn open_files(
    options: &Options,
    path: &Path,
    wanted: BTreeMap<String, CfOptions>,
    exists: bool,
    mode: OpenMode,
    log: InfoLog,
    lock: Option<Box<dyn FileLock>>,
) -> Result<Arc<DbInner>> {
    let OpenMode { read_only, error_if_wal_exists, .. } = mode;
    let (db_options, fs) = (&options.db, &options.db.fs);
    let purge = Arc::new(PurgeQueue::default());
    purge.set_alarm(log.alarm());
    let recovered = if exists { Some(recover(db_options, path, &purge, &wanted, read_only)?) } else { None };
    let db = assemble(options, path, &wanted, recovered.as_ref(), purge, mode, log)?;
    *db.opened.locks.db.lock() = lock;

    let list = |dir: &Path| fs.list_dir(dir).map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e));
    let mut names = list(path)?;
    let other_dirs = other_dirs(wanted.values(), db_options, path);
    if !read_only {
        table_paths::prepare(&**fs, &other_dirs, path)?;
    }
    let mut tables = TablesThere::default();
    tables.add(path, &names);
    for dir in &other_dirs {
        tables.add(dir, &names_in(&**fs, dir)?);
    }
    if recovered.is_some() {
        db.check_files(&tables)?;
    }
    // A file number is used only once, even if a crash kept the MANIFEST from recording it: an orphan may have a second
    // name outside of the database (an ingested file), so it must not be overwritten.
    tables.numbers().for_each(|n| db.files.numbers().pass(n));
    db.pass_options_files(&names);
    if !read_only {
        db.front.check_archive()?;
    }
    let wal_dir = db.front.dir();
    if !read_only {
        wal_owner::settle(&**fs, path)?;
    }
    let takes_all = db_options.wal_recovery_mode == RecoveryMode::SkipAnyCorruptedRecords;
    let found = wal_owner::refuse_if_elsewhere(&**fs, path, wal_dir, Seeker { follows: false, takes_all })?;
    found.log(&db.log);
    // Before the directory is claimed, which may write another note.
    let expected = match &recovered {
        Some(state) if !read_only && found.is_here() && misses_logs(db_options, path) => {
            expected_logs(&db, state.manifest_number)?
        }
        _ => None,
    };
    if wal_dir != path {
        if !read_only {
            create_dir_durably(&**fs, wal_dir)?;
            if recovered.is_none() {
                refuse_wals(&db, &list(wal_dir)?)?;
            }
            let token = new_db_id(db_options.clock.now_micros());
            *db.opened.locks.wal_dir.lock() = Some(wal_owner::claim(&**fs, path, wal_dir, token, &found)?);
        } else if !fs.exists(wal_dir).map_err(|e| Error::io(wal_dir.display(), &e))? {
            let what = format!("{}: wal_dir does not exist", wal_dir.display());
            return Err(Error::invalid_argument(what));
        }
        names = list(wal_dir)?;
    }
    if !read_only && (wal_dir != path || found.is_given_up()) {
        db.opened.note().take(&**fs, path)?;
    }
    if read_only {
        wal_owner::check(&**fs, path, wal_dir)?;
        wal_owner::check_unclaimed(&**fs, path, wal_dir)?;
    }
    let logs = wal_numbers(&names);
    if recovered.is_none() {
        refuse_wals(&db, &names)?;
    }
    db.check_merge_operators()?;
    db.check_table_operators()?;
    if read_only {
        if error_if_wal_exists && logs.iter().any(|_| true) {
            return Err(Error::new(ErrorKind::Corruption, format!("{}: the database has a WAL", path.display())));
        }
        // Listing a directory is not atomic: the list may have the newest WAL and lack the one before it if both were
        // made meanwhile. WALs older than the newest one of the first list existed when the second listing began.
        let mut again = wal_numbers(&list(wal_dir)?);
        again.retain(|n| logs.last().is_some_and(|newest| n <= newest));
        db.recover_wals(&again, false, None)?; // into memtables; nothing is kept or written
        db.open_tables_to_read()?;
        let state = db.state.lock();
        state.families().for_each(CfState::publish);
        db.catalog.publish(&state);
        drop(state);
        return Ok(db);
    }
    let kept = db.recover_wals(&logs, true, expected)?;
    if let Some(kept) = &kept {
        let (logs, anew) = (kept.logs.len(), &kept.anew);
        log_info!(db.log, "{logs} WALs are kept, of which {} were written anew", anew.len());
        if !anew.is_empty() {
            log_info!(db.log, "the device lacked these WALs, or cannot tell: {anew:?}");
        }
        if let Some(torn) = kept.torn {
            log_info!(db.log, "a torn record was cut off WAL {:06}.log, at {} bytes", torn.log, torn.end);
        }
    }
    finish_open(&db, &wanted, recovered.is_none(), kept, found.is_given_up())?;
    if wal_dir == path {
        wal_owner::leave_elsewhere(&**fs, path, &found)?;
    }
    db.write_options_file(&db.catalog.options_turn())?;
    db.remove_orphans();
    Ok(db)
}

/// The logs that must exist, if the last opening noted them: it made this MANIFEST, whose log numbers are those of logs
/// that existed. `None` if it did not note them, as with copies and after RocksDB.
fn expected_logs(db: &DbInner, manifest: u64) -> Result<Option<Vec<u64>>> {
    let Some(began) = wal_owner::read_began(&*db.opts.fs, &db.path)?.filter(|b| b.manifest == manifest) else {
        return Ok(None);
    };
    let state = db.state.lock();
    let families = state.families().map(|c| c.front().log_number());
    // The log number of a column family without data is not advanced.
    Ok(Some(families.chain([began.log]).chain(began.kept).filter(|n| *n >= state.logs().bound()).collect()))
}

/// Refuses to create a database where there are WALs.
fn refuse_wals(db: &DbInner, names: &[String]) -> Result<()> {
    let Some(wal) = wal_numbers(names).first().copied() else { return Ok(()) };
    let hint = match db.front.dir() == db.path {
        true => "",
        false => "is the device of that directory mounted? ",
    };
    Err(Error::corruption(format!(
        "{}: a WAL, and {} has no database: {hint}If it lost its CURRENT file, `rockmill repair` makes it usable again. If \
         the WAL is another database's, give a wal_dir (or fast_path) of its own",
        db.front.log_path(wal).display(),
        db.path.display()
    )))
}

/// Steps 3 (its end) and 4 of opening for writing. `kept` are WALs whose data stays in memtables. With `gives_up`, WALs
/// that cannot be found are left out for good.
fn finish_open(
    db: &Arc<DbInner>,
    wanted: &BTreeMap<String, CfOptions>,
    new: bool,
    kept: Option<KeptLogs>,
    gives_up: bool,
) -> Result<()> {
    if kept.is_none() {
        let ids: Vec<u32> = db.state.lock().families().map(|c| c.cf().id).collect();
        for id in ids {
            db.flush_recovered(id)?;
        }
    }
    // Column families that are asked for and do not exist.
    let missing: Vec<&String> = {
        let state = db.state.lock();
        let there: HashSet<&str> = state.families().map(|c| c.cf().name.as_str()).collect();
        wanted.keys().filter(|n| !there.contains(n.as_str())).collect()
    };
    for name in missing {
        check_new_name(name)?;
        if !db.opts.create_missing_column_families {
            return Err(Error::invalid_argument(format!(
                "column family {name:?} does not exist (create_missing_column_families is false)"
            )));
        }
        let options = wanted[name].clone();
        let cmp = InternalKeyComparator::new(Arc::clone(&options.comparator));
        let version = Version::empty(options.num_levels.max(1) as usize, cmp.clone());
        let mut state = db.state.lock();
        let id = state.next_family_id();
        let c = CfState::new(id, name.clone(), options, cmp, version, 0, db.opened.number, FamilyContext::of(db));
        state.insert_family(c);
    }
    let identity = db.path.join(filename::IDENTITY);
    if new || !db.opts.fs.exists(&identity).unwrap_or(false) {
        db.opts
            .fs
            .write_all(&identity, db.opened.db_id.as_bytes())
            .map_err(|e| Error::io(format_args!("cannot write {}", identity.display()), &e))?;
    }
    let manifest_number = db.new_file_number();
    let wal_number = db.new_file_number();
    let snapshot = {
        let mut state = db.state.lock();
        for c in state.families_mut() {
            c.front_mut().recovered(wal_number);
            c.resume_levels();
            c.rescore(0);
            c.publish();
        }
        db.update_threshold(&state);
        db.catalog.publish(&state);
        let bound = state.least_log_number().unwrap_or(wal_number);
        state.logs_mut().raise_bound(bound);
        db.snapshot_edits(&state)
    };
    if gives_up {
        db.opened.note().give_up(manifest_number, wal_owner::other_of(&db.path, db.front.dir()));
    }
    db.opened.note().manifest_begins(&*db.opts.fs, &db.path, manifest_number)?;
    let writer = ManifestWriter::create(&db.opts.fs, &db.path, manifest_number, &snapshot)?;
    db.opened.note().manifest_begun(manifest_number);
    db.opened.note().given_up(&*db.opts.fs, &db.path)?;
    *db.catalog.lock_manifest() = Some(writer);
    db.front.open_log(&db.live(), wal_number, kept.as_ref().map(|k| k.follows))?;
    // MANIFEST and log are durable. This note is written with the OPTIONS file; after a crash before that, the old note
    // remains, which is about another MANIFEST.
    let began = misses_logs(&db.opts, &db.path).then(|| {
        let last = kept.as_ref().map(|k| k.follows.wal);
        let kept = last.filter(|last| kept.iter().flat_map(|k| &k.logs).any(|(number, _)| number == last));
        Began { manifest: manifest_number, log: wal_number, kept }
    });
    db.opened.note().logs_begun(began);
    let mut state = db.state.lock();
    state.logs_mut().opened(kept.map(|k| k.logs).unwrap_or_default(), wal_number);
    db.update_pressure(&state);
    Ok(())
}

pub(crate) fn recover(
    options: &DbOptions,
    path: &Path,
    purge: &Arc<PurgeQueue>,
    wanted: &BTreeMap<String, CfOptions>,
    read_only: bool,
) -> Result<RecoveredState> {
    let mut order = |name: &str, stored: &str| -> Result<(InternalKeyComparator, usize)> {
        let Some(o) = wanted.get(name) else {
            // This column family is not to be opened; it is read anyway, because edits about it follow. Whether it may
            // stay closed is checked below.
            return Ok((InternalKeyComparator::new(comparator_to_name(stored)), LEVELS_MAX));
        };
        if stored.ends_with(".u64ts") {
            return Err(Error::not_supported(format!(
                "column family {name:?} has user-defined timestamps (comparator {stored})"
            )));
        }
        let given = o.comparator.name();
        if given != stored {
            return Err(Error::invalid_argument(format!(
                "column family {name:?} was written with comparator {stored} and is opened with {given}"
            )));
        }
        Ok((InternalKeyComparator::new(Arc::clone(&o.comparator)), o.num_levels.max(1) as usize))
    };
    let of_family = |name: &str| purge_of(purge, wanted.get(name), options, path);
    let state = recover_manifest(&*options.fs, path, &of_family, &mut order)?;
    if !read_only {
        let unopened: Vec<&str> =
            state.column_families.iter().map(|c| &*c.name).filter(|n| !wanted.contains_key(*n)).collect();
        if !unopened.is_empty() {
            return Err(Error::invalid_argument(format!(
                "column families not opened: {} (open them all, or open read-only)",
                unopened.join(", ")
            )));
        }
    } else {
        let names: HashSet<&str> = state.column_families.iter().map(|c| &*c.name).collect();
        if let Some(missing) = wanted.keys().find(|n| !names.contains(&***n)) {
            return Err(Error::invalid_argument(format!("column family {missing:?} does not exist")));
        }
    }
    Ok(state)
}

/// A comparator that only has to carry its name (for column families that are not opened).
pub(crate) fn comparator_to_name(name: &str) -> Arc<dyn Comparator> {
    comparator_named(name).unwrap_or_else(|| Arc::new(BytewiseComparator))
}

pub(crate) fn assemble(
    options: &Options,
    path: &Path,
    wanted: &BTreeMap<String, CfOptions>,
    recovered: Option<&RecoveredState>,
    purge: Arc<PurgeQueue>,
    mode: OpenMode,
    log: InfoLog,
) -> Result<Arc<DbInner>> {
    let front = Front::new(&options.db, path, log.alarm());
    let opening = unique_number();
    let logs = Logs::new(recovered.map_or(0, |r| r.min_log_number_to_keep));
    let max_column_family = recovered.map_or(0, |r| r.max_column_family);
    let mut state = State::new(logs, max_column_family, Jobs::new(options.db.reproducible));
    let mut add = |id: u32, name: &str, version: Version, log_number: u64, cursors: &[(u32, InternalKey)]| {
        let o = wanted.get(name).cloned().unwrap_or_default();
        let cmp = version.cmp.clone();
        let context = FamilyContext { memory: front.memory(), db: &options.db, path, purge: &purge };
        let mut c = CfState::new(id, name.to_owned(), o, cmp, version, log_number, opening, context);
        for (level, key) in cursors {
            c.jobs_mut().set_cursor(*level as usize, key.clone());
        }
        state.insert_family(c);
    };
    match recovered {
        Some(r) => {
            for c in r.column_families.iter().filter(|c| wanted.contains_key(&c.name)) {
                let RecoveredCf { id, name, log_number, version, cursors, .. } = c;
                add(*id, name, version.clone(), *log_number, cursors);
            }
        }
        None => {
            let o = &wanted[DEFAULT_COLUMN_FAMILY_NAME];
            let cmp = InternalKeyComparator::new(Arc::clone(&o.comparator));
            add(0, DEFAULT_COLUMN_FAMILY_NAME, Version::empty(o.num_levels.max(1) as usize, cmp), 0, &[]);
        }
    }
    let Some(default) = state.family(0) else {
        return Err(Error::corruption(format!("{}: the MANIFEST has no default column family", path.display())));
    };
    let default_cf = ColumnFamily { data: Arc::clone(default.cf()) };
    let db_id = recovered
        .and_then(|r| r.db_id.clone())
        .or_else(|| {
            let bytes = options.db.fs.read_small(&path.join(filename::IDENTITY), LINE_FILE_BYTES_MAX).ok()?;
            let id = String::from_utf8(bytes).ok()?.trim_end().to_owned();
            (!id.is_empty()).then_some(id)
        })
        .unwrap_or_else(|| match options.db.reproducible {
            true => REPRODUCIBLE_DB_ID.to_owned(),
            false => new_db_id(options.db.clock.now_micros()),
        });
    let session_id = match options.db.reproducible {
        true => REPRODUCIBLE_SESSION_ID.to_owned(),
        false => new_session_id(options.db.clock.now_micros()),
    };
    let needs_default_cache = wanted.values().any(|o| o.table.block_cache.is_none() && !o.table.no_block_cache);
    let default_cache = needs_default_cache.then(|| BlockCache::new(DEFAULT_CACHE_BYTES));
    let last_sequence = recovered.map_or(0, |r| r.last_sequence.max(u64::from(r.has_tables())));
    let pacing = Pacing::new(&options.db.clock);
    Ok(Arc::new(DbInner {
        path: path.to_owned(),
        opts: options.db.clone(),
        opened: Opened {
            number: opening,
            read_only: mode.read_only,
            with_ttl: mode.with_ttl,
            db_id,
            session_id,
            locks: DirLocks::default(),
            note: OwnNote::default(),
            following: Following::default(),
        },
        catalog: Catalog::new(default_cf, &options.db),
        state: Mutex::new(state),
        job_finished: Condvar::new(),
        work_available: Condvar::new(),
        recovery: Recovery::default(),
        front,
        writers: Writers::new(last_sequence, &options.db),
        readers: Readers::new(&options.db, default_cache, pacing.read_protection()),
        files: Files::new(recovered.map_or(1, |r| r.next_file_number), purge),
        shutdown: Arc::new(AtomicBool::new(false)),
        pacing,
        engines: Arc::default(),
        stats: crate::db::report::stats::InternalStats::default(),
        log,
        reporting: Reporting::new(&options.db.clock),
    }))
}

impl DbInner {
    /// Every file of the tables that the MANIFEST names must be there, with its size.
    fn check_files(&self, there: &TablesThere) -> Result<()> {
        let state = self.state.lock();
        for c in state.families() {
            for (level, files) in c.version().levels.iter().enumerate() {
                for f in files.iter().flat_map(|table| table.files()) {
                    let dir = c.cf().dirs().of_file(f);
                    let path = dir.join(filename::table(f.number));
                    if !there.has(dir, f.number, &self.path) {
                        let hint = match f.path_id as usize >= c.cf().dirs().all().len() {
                            true => "; it is of another path: give all db_paths, or cf_paths, that there were",
                            false => "",
                        };
                        return Err(Error::corruption(format!(
                            "{}: missing, and the MANIFEST names it in level {level} of column family {:?}{hint}",
                            path.display(),
                            c.cf().name
                        )));
                    }
                    if self.opts.paranoid_checks
                        && let Ok(size) = self.opts.fs.file_size(&self.table_path(c.cf().dirs(), f))
                        && size != f.size
                    {
                        return Err(Error::corruption(format!(
                            "{}: the file has {size} bytes, the MANIFEST says {}",
                            path.display(),
                            f.size
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes the database's files that nothing refers to: tables of jobs that did not commit, old MANIFESTs and
    /// WALs, temporary files. Files that are not the database's stay.
    fn remove_orphans(&self) {
        let Ok(names) = self.opts.fs.list_dir(&self.path) else { return };
        let manifest = self.catalog.lock_manifest().as_ref().map_or(0, ManifestWriter::number);
        let dirs = self.other_table_dirs();
        let (wals, live): (Vec<u64>, HashSet<u64>) = {
            let state = self.state.lock();
            let files = each_file(state.families().flat_map(|c| c.version().files()));
            let wals = state.logs().lengths(None).map(|(number, _)| number).collect();
            (wals, files.map(|f| f.number).collect())
        };
        for name in names {
            let orphan = match filename::parse(&name) {
                Some(FileType::Table(n)) => !live.contains(&n),
                // One with a larger number was made just before a crash, and CURRENT never named it.
                Some(FileType::Manifest(n)) => n != manifest,
                Some(FileType::Temp(_)) => true,
                _ => false,
            };
            if orphan {
                let _ = self.opts.fs.remove(&self.path.join(&name)); // tried again at the next open
            }
        }
        // In the other directories of tables, as RocksDB, tables alone.
        for dir in dirs {
            for name in names_in(&*self.opts.fs, &dir).unwrap_or_default() {
                if matches!(filename::parse(&name), Some(FileType::Table(n)) if !live.contains(&n)) {
                    let _ = self.opts.fs.remove(&dir.join(&name));
                }
            }
        }
        self.tell_stuck_logs(&self.front.remove_orphans(&wals));
    }
}

fn check_is_database(options: &DbOptions, path: &Path) -> Result<()> {
    let exists = |p: &Path| options.fs.exists(p).map_err(|e| Error::io(p.display(), &e));
    if !exists(path)? {
        return Err(Error::invalid_argument(format!(
            "{}: does not exist (create_if_missing is false)",
            path.display()
        )));
    }
    if !exists(&path.join(filename::CURRENT))? {
        let names = options.fs.list_dir(path).unwrap_or_default();
        let left = |name: &&String| matches!(filename::parse(name), Some(FileType::Table(_) | FileType::Manifest(_)));
        if let Some(name) = names.iter().find(left) {
            return Err(Error::invalid_argument(format!(
                "{}: the file CURRENT is missing, and {name} is there: restore a backup, or repair the database",
                path.display()
            )));
        }
        return Err(Error::invalid_argument(format!(
            "{}: not a database (it has no CURRENT file; create_if_missing is false)",
            path.display()
        )));
    }
    Ok(())
}

/// As [`check_is_database`], for readers, which get RocksDB's error kind for a file that cannot be read.
pub(crate) fn check_is_readable(options: &DbOptions, path: &Path) -> Result<()> {
    let exists = |p: &Path| options.fs.exists(p).map_err(|e| Error::io(p.display(), &e));
    let why = match (exists(path)?, exists(&path.join(filename::CURRENT))?) {
        (_, true) => return Ok(()),
        (true, false) => "not a database (it has no CURRENT file)",
        (false, false) => "does not exist",
    };
    Err(Error::io(format_args!("{}: {why}", path.display()), &io::ErrorKind::NotFound.into()))
}

pub(crate) fn lock_error(path: &Path, e: &std::io::Error) -> Error {
    let why = match e.kind() {
        std::io::ErrorKind::WouldBlock => ": the database is open elsewhere, and one process at a time may write to it",
        _ => "",
    };
    Error::io(format_args!("cannot lock {}{why}", path.display()), e)
}

/// Bits that differ between processes and calls. `RandomState` is seeded by the operating system.
fn random_bits(salt: u64) -> u64 {
    let mut h = RandomState::new().build_hasher();
    h.write_u64(salt);
    h.finish()
}

/// A database id in the shape of a UUID (version 4), as RocksDB's IDENTITY holds.
pub(crate) fn new_db_id(now: u64) -> String {
    let (a, b) = (random_bits(now), random_bits(now ^ 1));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | ((b >> 48) & 0x3fff),
        b & 0xffff_ffff_ffff
    )
}

/// The id of a database that has none, where runs must give the same bytes.
const REPRODUCIBLE_DB_ID: &str = "00000000-0000-4000-8000-000000000000";
/// The session's id in that case: twenty base-36 digits that say so.
const REPRODUCIBLE_SESSION_ID: &str = "REPRODUCIBLE00000000";

/// A session id in RocksDB's shape: twenty base-36 digits.
pub(crate) fn new_session_id(now: u64) -> String {
    let mut n = (u128::from(random_bits(now)) << 64) | u128::from(random_bits(now ^ 2));
    let mut digits = Vec::with_capacity(20);
    for _ in 0..20 {
        let d = (n % 36) as u8;
        digits.push(if d < 10 { b'0' + d } else { b'A' + d - 10 });
        n /= 36;
    }
    digits.into_iter().map(char::from).collect()
}
