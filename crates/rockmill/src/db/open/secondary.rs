//! Secondary instances: readers that follow a database which another process (the primary) has open for writing
//! (RocksDB's `DBImplSecondary`).
//!
//! A secondary takes no lock and changes nothing in the primary's directory. [`Db::try_catch_up_with_primary`] applies
//! what the primary has done meanwhile:
//!
//! 1. New edits of the MANIFEST are applied; a new MANIFEST is read whole. Tables are opened now: an open one can be
//!    read after the primary has deleted it.
//! 2. New records of the WALs go into memtables. Those of a WAL that the column family no longer needs are dropped.
//! 3. If the MANIFEST has grown during step 2, a WAL may have gone before it was read, and its data is in the new
//!    tables: back to step 1.
//! 4. The sequence number is raised, then readers get the new memtables and tables.
//!
//! Invariants: the published state is one point of the primary's history. A memtable that readers have is only ever
//! appended to, above the sequence number they may see; after a change of tables, records go into a new memtable, so
//! that readers of the old tables do not see what came after them.
//!
//! A record may be in a WAL although its write failed, because the sync failed. Nothing in the file says so, and a
//! primary that dies now finds the record when it is opened again; so a secondary shows it. A primary that resumes cuts
//! the record off, and then the secondary drops it, too: a WAL that is now shorter than what was read of it is read
//! again, and data of WALs that the MANIFEST declares obsolete is dropped.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::VersionEdit;
use rockmill_format::filename;
use rockmill_format::log::RecoveryMode;

use crate::db::catalog::column_family::CfData;
use crate::db::catalog::table_paths::purge_of;
use crate::db::open::start::{OpenMode, assemble, comparator_to_name, recover, taken_options};
use crate::db::open::take_over;
use crate::db::open::wal_owner::{self, Seeker};
use crate::db::{CfState, Db, DbInner};
use crate::env::for_database;
use crate::error::{Error, ErrorKind, Result};
use crate::front::{Followed, wal_dir_of};
use crate::info_log::{InfoLog, log_info, log_warn};
use crate::options::check::{Adjusted, LEVELS_MAX};
use crate::options::{CfOptions, ColumnFamilyDescriptor, DEFAULT_COLUMN_FAMILY_NAME, Options};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::version::{
    Level, PurgeQueue, RecoveredState, Version, VersionBuilder, current_manifest, for_each_edit_from, recover_manifest,
};

/// Times that a catch-up begins again because the primary has changed its files meanwhile.
const ROUNDS_MAX: usize = 100;

/// What makes a database a secondary instance; empty in all others.
#[derive(Default)]
pub(crate) struct Following {
    secondary: OnceLock<Mutex<Secondary>>,
    /// Held while several column families change, and by reads that look at several.
    catching_up: RwLock<()>,
}

impl Following {
    /// True for a secondary instance.
    pub fn is_one(&self) -> bool {
        self.secondary.get().is_some()
    }

    /// Keeps a secondary from catching up while the result lives, because its snapshots hold nothing back.
    pub fn hold_still(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.is_one().then(|| self.catching_up.read())
    }
}

/// How far a secondary has read.
struct Secondary {
    wanted: BTreeMap<String, CfOptions>,
    /// The MANIFEST, and where its last edit that was applied ends.
    manifest: (u64, u64),
    /// The versions are half applied: read the MANIFEST whole.
    reload: bool,
    cfs: BTreeMap<u32, SecondaryCf>,
    /// Data that is in no table.
    front: Followed,
    /// The largest sequence number that the MANIFEST names.
    tables_sequence: u64,
}

struct SecondaryCf {
    data: Arc<CfData>,
    version: Arc<Version>,
}

impl Db {
    /// Opens a database that another process has open for writing, to follow it: a secondary instance. It sees the
    /// database as it is now, until [`Self::try_catch_up_with_primary`]. `secondary_path` is a directory for its own
    /// files (its info log); it is created. `max_open_files` must be -1, since the primary deletes tables.
    ///
    /// Iterators stay at the moment at which they were made. A snapshot does not hold back the primary's compactions:
    /// use it only until the next catch-up.
    pub fn open_as_secondary(
        options: &Options,
        primary_path: impl AsRef<Path>,
        secondary_path: impl AsRef<Path>,
    ) -> Result<Self> {
        Self::open_cf_as_secondary(options, primary_path, secondary_path, [DEFAULT_COLUMN_FAMILY_NAME])
    }

    /// Opens some column families as a secondary; see [`Self::open_as_secondary`].
    pub fn open_cf_as_secondary(
        options: &Options,
        primary_path: impl AsRef<Path>,
        secondary_path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self> {
        let cfs = cfs.into_iter().map(|n| ColumnFamilyDescriptor::new(n.as_ref(), options.clone()));
        Self::open_cf_descriptors_as_secondary(options, primary_path, secondary_path, cfs)
    }

    /// Opens some column families as a secondary; see [`Self::open_as_secondary`].
    pub fn open_cf_descriptors_as_secondary(
        options: &Options,
        primary_path: impl AsRef<Path>,
        secondary_path: impl AsRef<Path>,
        cfs: impl IntoIterator<Item = ColumnFamilyDescriptor>,
    ) -> Result<Self> {
        let (path, own) = (primary_path.as_ref(), secondary_path.as_ref());
        if options.db.max_open_files != -1 {
            return Err(Error::invalid_argument(
                "a secondary instance needs max_open_files = -1: it must keep tables open that the primary deletes",
            ));
        }
        let mut adjusted = Adjusted::default();
        let (mut options, wanted) = taken_options(options, cfs.into_iter().collect(), &mut adjusted)?;
        let fs = &options.db.fs;
        fs.create_dir(own, true).map_err(|e| Error::io(format_args!("cannot create {}", own.display()), &e))?;
        options.db.fs = for_database(fs, own)?;
        take_over::keep_addresses(&mut options.db, path)?;
        let (options, fs) = (&options, &options.db.fs);
        let purge = Arc::new(PurgeQueue::default());
        let recovered = retry(&mut || recover(&options.db, path, &purge, &wanted, true))?;
        let mode = OpenMode { read_only: true, ..OpenMode::default() };
        let wal_dir = wal_dir_of(&options.db, path);
        let takes_all = options.db.wal_recovery_mode == RecoveryMode::SkipAnyCorruptedRecords;
        let found = wal_owner::refuse_if_elsewhere(&**fs, path, &wal_dir, Seeker { follows: true, takes_all })?;
        wal_owner::check(&**fs, path, &wal_dir)?;
        if fs.exists(&wal_dir).unwrap_or(false) {
            wal_owner::check_unclaimed(&**fs, path, &wal_dir)?;
        }
        let db = assemble(
            options,
            path,
            &wanted,
            Some(&recovered),
            purge,
            mode,
            InfoLog::begin(&options.db.log_settings(), own),
        )?;
        adjusted.log(&db.log);
        found.log(&db.log);
        let mut secondary = Secondary::new(&db, wanted, &recovered);
        secondary.catch_up(&db)?;
        db.catalog.publish(&db.state.lock());
        let _ = db.opened.following.secondary.set(Mutex::new(secondary));
        db.log_opened();
        db.log.write_out();
        Ok(Self { inner: db, threads: Mutex::default() })
    }

    /// Brings a secondary instance to the primary's present state. An error leaves it where it was, to be tried again.
    /// `NotSupported` for a database that was not opened as a secondary.
    pub fn try_catch_up_with_primary(&self) -> Result<()> {
        let db = &self.inner;
        let Some(secondary) = db.opened.following.secondary.get() else {
            return Err(Error::not_supported(format!("{} is not open as a secondary instance", db.path.display())));
        };
        let mut secondary = secondary.lock();
        let done = secondary.catch_up(db).map_err(|e| e.context("cannot catch up with the primary"));
        match &done {
            Ok(()) => log_info!(
                db.log,
                "caught up with MANIFEST-{:06} at offset {}, sequence number {}",
                secondary.manifest.0,
                secondary.manifest.1,
                db.last_sequence()
            ),
            Err(e) => log_warn!(db.log, "{e}"),
        }
        // No thread of a secondary does it.
        db.log.write_out();
        done
    }
}

/// Repeats `f` while it fails because a file whose name was just read no longer exists: the primary has replaced it.
fn retry<T>(f: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    let mut rounds = 0;
    loop {
        match f() {
            Err(e) if e.is_missing_file() && rounds < ROUNDS_MAX => rounds += 1,
            done => return done,
        }
    }
}

impl Secondary {
    fn new(db: &DbInner, wanted: BTreeMap<String, CfOptions>, recovered: &RecoveredState) -> Self {
        let state = db.state.lock();
        let mut front = Followed::new(&db.front);
        front.raise_bound(recovered.min_log_number_to_keep);
        for c in state.families() {
            front.add_family(c.cf().id, c.cf().cmp.clone(), c.cf().options.load_full(), c.front().log_number());
        }
        let cf = |c: &CfState| SecondaryCf { data: Arc::clone(c.cf()), version: Arc::clone(c.version()) };
        Self {
            wanted,
            manifest: (recovered.manifest_number, recovered.manifest_end),
            reload: false,
            cfs: state.families().map(|c| (c.cf().id, cf(c))).collect(),
            front,
            tables_sequence: recovered.last_sequence,
        }
    }

    fn catch_up(&mut self, db: &Arc<DbInner>) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let manifest = current_manifest(&*db.opts.fs, &db.path)?;
            match self.read_all(db) {
                Ok(true) => {
                    self.publish(db);
                    return Ok(());
                }
                Ok(false) => {}
                // The primary has replaced the file; if it has not, the file is lost.
                Err(e) if e.is_missing_file() && self.is_outdated(db, manifest)? => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::new(
            ErrorKind::TryAgain,
            format!("{}: the primary changed its tables {ROUNDS_MAX} times meanwhile", db.path.display()),
        ))
    }

    /// Reads new data. False if the primary has changed its tables in the meantime.
    fn read_all(&mut self, db: &DbInner) -> Result<bool> {
        self.read_manifest(db)?;
        self.open_tables(db)?;
        self.front.forget_cut(&db.front)?;
        Ok(self.front.read(&db.front)? && !self.manifest_has_grown(db)?)
    }

    /// True when the primary has changed its tables since CURRENT named `manifest` and that was read.
    fn is_outdated(&self, db: &DbInner, manifest: u64) -> Result<bool> {
        if current_manifest(&*db.opts.fs, &db.path)? != manifest {
            return Ok(true);
        }
        if self.manifest.0 != manifest {
            return Ok(false); // it is named, and cannot be read
        }
        match self.manifest_has_grown(db) {
            Err(e) if e.is_missing_file() => Ok(current_manifest(&*db.opts.fs, &db.path)? != manifest),
            grown => grown,
        }
    }

    fn read_manifest(&mut self, db: &DbInner) -> Result<()> {
        let fs = &*db.opts.fs;
        let number = current_manifest(fs, &db.path)?;
        if self.reload || number != self.manifest.0 {
            let mut order = |name: &str, stored: &str| {
                let (cmp, levels) = match self.wanted.get(name) {
                    Some(o) => (Arc::clone(&o.comparator), o.num_levels.max(1) as usize),
                    None => (comparator_to_name(stored), LEVELS_MAX),
                };
                Ok((InternalKeyComparator::new(cmp), levels))
            };
            let purge = |name: &str| purge_of(db.files.purge(), self.wanted.get(name), &db.opts, &db.path);
            let recovered = recover_manifest(fs, &db.path, &purge, &mut order)?;
            self.replace(recovered);
            return Ok(());
        }
        let path = db.path.join(filename::manifest(number));
        let mut edits = Vec::new();
        let end = for_each_edit_from(fs, &path, self.manifest.1, &mut |edit| {
            edits.push(edit);
            Ok(())
        })?;
        // Until all are applied, some column families are ahead of others.
        self.reload = true;
        self.apply(edits).map_err(|e| e.context(path.display()))?;
        self.reload = false;
        self.manifest.1 = end;
        Ok(())
    }

    fn apply(&mut self, edits: Vec<VersionEdit>) -> Result<()> {
        let mut builders: BTreeMap<u32, VersionBuilder> = BTreeMap::new();
        for edit in edits {
            let id = edit.column_family;
            self.tables_sequence = self.tables_sequence.max(edit.last_sequence.unwrap_or(0));
            self.front.raise_bound(edit.min_log_number_to_keep.unwrap_or(0));
            if edit.column_family_drop {
                builders.remove(&id);
                self.drop_cf(id);
            }
            let Some(cf) = self.cfs.get(&id) else { continue };
            self.front.raise_log_number(id, edit.log_number.unwrap_or(0));
            if !edit.new_files.is_empty() || !edit.deleted_files.is_empty() {
                let fresh = || VersionBuilder::new(Arc::clone(&cf.version), Arc::clone(&cf.data.purge));
                builders.entry(id).or_insert_with(fresh).apply(&edit)?;
            }
        }
        for (id, builder) in builders {
            let version = Arc::new(builder.build()?);
            if let Some(cf) = self.cfs.get_mut(&id) {
                cf.version = version;
                self.front.tables_changed(id);
            }
        }
        self.front.forget_flushed();
        Ok(())
    }

    /// Takes the state that a whole MANIFEST describes.
    fn replace(&mut self, recovered: RecoveredState) {
        self.manifest = (recovered.manifest_number, recovered.manifest_end);
        self.reload = false;
        self.tables_sequence = self.tables_sequence.max(recovered.last_sequence);
        self.front.raise_bound(recovered.min_log_number_to_keep);
        let mut gone: Vec<u32> = self.cfs.keys().copied().collect();
        for new in recovered.column_families {
            let Some(cf) = self.cfs.get_mut(&new.id) else { continue };
            gone.retain(|&id| id != new.id);
            let mut version = new.version;
            version.reserves_last_level = cf.version.reserves_last_level;
            // The same tables stay open.
            let old: BTreeMap<u64, _> = cf.version.levels.iter().flatten().map(|f| (f.number(), f)).collect();
            for f in version.levels.iter_mut().flat_map(Level::iter_mut) {
                if let Some(same) = old.get(&f.number()).filter(|o| o.entry == f.entry) {
                    *f = Arc::clone(same);
                }
            }
            cf.version = Arc::new(version);
            self.front.raise_log_number(new.id, new.log_number);
            self.front.tables_changed(new.id);
        }
        gone.into_iter().for_each(|id| self.drop_cf(id));
        self.front.forget_flushed();
    }

    fn drop_cf(&mut self, id: u32) {
        if let Some(cf) = self.cfs.remove(&id) {
            cf.data.dropped.store(true, Ordering::Release);
            self.front.drop_family(id);
        }
    }

    /// The newest update that was read.
    fn last_sequence(&self) -> u64 {
        self.tables_sequence.max(self.front.last_sequence())
    }

    fn open_tables(&self, db: &DbInner) -> Result<()> {
        for cf in self.cfs.values() {
            for f in cf.version.levels.iter().flatten().filter(|f| f.table.load().is_none()) {
                db.readers.tables().table(&cf.data, f)?;
            }
        }
        Ok(())
    }

    fn manifest_has_grown(&self, db: &DbInner) -> Result<bool> {
        let number = current_manifest(&*db.opts.fs, &db.path)?;
        if number != self.manifest.0 {
            return Ok(true);
        }
        let mut grown = false;
        let path = db.path.join(filename::manifest(number));
        for_each_edit_from(&*db.opts.fs, &path, self.manifest.1, &mut |_| {
            grown = true;
            Ok(())
        })?;
        Ok(grown)
    }

    fn publish(&mut self, db: &DbInner) {
        let _alone = db.opened.following.catching_up.write();
        // The sequence number is set first, since readers take the tables first and the number after them. The number
        // goes down if the primary has taken back a failed write.
        db.writers.in_flight().set_visible(self.last_sequence());
        let mut state = db.state.lock();
        for (&id, cf) in &self.cfs {
            let Some((front, log_number)) = self.front.publish(id) else { continue };
            if let Some(c) = state.family_mut(id) {
                c.follow(front, log_number, Arc::clone(&cf.version));
            }
        }
    }
}
