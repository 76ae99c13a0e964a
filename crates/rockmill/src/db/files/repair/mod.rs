//! Repair: rebuilds a database from the tables and WALs that are left (RocksDB `db/repair.cc`).
//!
//! 1. Everything is examined and nothing is changed: the MANIFEST as far as it is readable, the properties of every
//!    table, then the whole of every table (checksums, order of keys, counts).
//! 2. New tables are written: from WALs, and from tables whose order is unknown (`place.rs`).
//! 3. A new MANIFEST with everything is written, and CURRENT is pointed at it. This one step makes the repair take
//!    effect.
//! 4. What is not part of the database any more is moved to `lost/`: damaged tables, WALs, old MANIFESTs. Nothing is
//!    deleted.
//!
//! A crash before step 3 leaves the database as it was, with some additional tables; a crash after it leaves a repaired
//! one. Repairing again does the rest.
//!
//! If the MANIFEST is whole, it is believed for each column family whose tables are all sound, or that has no other
//! source. The family's tables then stay in their levels, and tables that the MANIFEST does not name are leftovers:
//! outputs of jobs that a kill interrupted, and tables that were about to be deleted. RocksDB never reads the MANIFEST
//! and puts every table into L0, even leftovers, whose deleted keys come back.
//!
//! A whole MANIFEST may still have lost its last edits (cut off between two of them). This shows if WALs are gone that
//! it names as needed, since no WAL is deleted before the MANIFEST says that it may be. In that case, tables that it
//! never named and that are newer than all that it did name are added on top.
//!
//! A table with pieces is opened and read with all of them. A piece stays as long as a table that stays has it. It is a
//! table of its own only if the MANIFEST names it as one and is believed.
//!
//! The new MANIFEST never calls a WAL obsolete that was not read, because nothing may name that WAL's directory any
//! more.
//!
//! | file | what happens there |
//! |---|---|
//! | `hints.rs` | the old MANIFEST |
//! | `scan.rs` | tables |
//! | `wals.rs`, `logs.rs` | WALs: where they are, and what they hold |
//! | `replaced.rs` | which tables jobs have replaced |
//! | `place.rs` | levels |

mod hints;
mod logs;
mod lost;
mod paths;
mod place;
mod replaced;
mod scan;
mod wals;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::comparator_named;
use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::compaction::describe::JobFamily;
use crate::compaction::objects::JobObjects;
use crate::compaction::rewrite::write_run;
use crate::compaction::{JobEvents, JobHost, JobMeans, LocalHost};
use crate::db::open::start::{lock_error, new_db_id};
use crate::db::open::wal_note::OwnNote;
use crate::db::open::wal_owner;
use crate::db::{Db, new_session_id};
use crate::env::{LINE_FILE_BYTES_MAX, for_database};
use crate::error::{Error, ErrorKind, Result};
use crate::iter::InternalIterator;
use crate::iter::merging::MergingIterator;
use crate::options::check::{Adjusted, job_db_options, take_cf_options};
use crate::options::{CfOptions, ColumnFamilyDescriptor, DEFAULT_COLUMN_FAMILY_NAME, DbOptions, Options};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::table::TableReadOptions;
use crate::version::{FileMeta, ManifestWriter, PurgeQueue, TableDirs, Version, VersionBuilder};

use crate::db::files::repair::hints::Hints;
use crate::db::files::repair::logs::Target;
use crate::db::files::repair::paths::Places;
use crate::db::files::repair::scan::{Found, Scanned, Tables};

/// Directory for files that are no longer part of the database.
const LOST: &str = "lost";
/// The epoch number of the deepest tables; 1 is kept for files ingested behind.
const FIRST_EPOCH: u64 = 2;
/// The column family of leftover tables whose own column family is unknown.
const NOBODY: u32 = u32::MAX;

/// How a database is repaired.
#[derive(Clone, Default)]
pub struct RepairOptions {
    families: Vec<ColumnFamilyDescriptor>,
    unknown: Option<Options>,
    wal_dir: Option<PathBuf>,
    callback: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
}

impl RepairOptions {
    /// A column family with options of its own; needed for those with a comparator of the user's.
    pub fn add_column_family(&mut self, descriptor: ColumnFamilyDescriptor) {
        self.families.push(descriptor);
    }

    /// Options of column families that are found and not described (RocksDB's `unknown_cf_opts`). Without it they have
    /// the options that the repair is given.
    pub fn set_unknown_column_family_options(&mut self, options: &Options) {
        self.unknown = Some(options.clone());
    }

    /// Where the WALs are, if no file of the database says so correctly. Without this, and without `wal_dir` in the
    /// options, the newest OPTIONS file says it; it is followed only if [`Db::check_stored_path`] allows it.
    pub fn set_wal_dir(&mut self, path: impl AsRef<Path>) {
        self.wal_dir = Some(path.as_ref().to_owned());
    }

    /// Called now and then while tables are read, with the bytes read so far and in all. It must be quick.
    pub fn set_progress_callback(&mut self, callback: impl Fn(u64, u64) + Send + Sync + 'static) {
        self.callback = Some(Arc::new(callback));
    }
}

impl std::fmt::Debug for RepairOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepairOptions").field("families", &self.families).finish_non_exhaustive()
    }
}

/// What a repair found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Column families of the repaired database.
    pub column_families: Vec<String>,
    /// Why the old MANIFEST could not be used in full; `None` if it could.
    pub manifest_damage: Option<String>,
    /// Tables that were kept.
    pub tables_kept: u64,
    /// Tables whose entries went into new ones, because it was unknown which is newer; they are in `lost`.
    pub tables_merged: u64,
    /// Tables written, from WALs and from merged tables.
    pub tables_written: u64,
    /// Sound tables that the MANIFEST does not name, or of dropped column families; they are in `lost`.
    pub tables_left_over: u64,
    /// Tables that cannot be read, and are in `lost`.
    pub tables_damaged: u64,
    /// Files of tables that the MANIFEST names and that do not exist.
    pub tables_missing: Vec<u64>,
    /// WALs read; they are in `lost`.
    pub wals_converted: u64,
    /// Where the database's WALs are, if that directory could not be read, and why. They are still needed: an opening
    /// with this `wal_dir` reads them.
    pub wals_not_read: Option<(PathBuf, String)>,
    /// Entries (versions of keys, and range tombstones) in the database's tables.
    pub entries: u64,
    /// Updates that came from WALs.
    pub wal_entries: u64,
    /// Bytes of WALs that could not be read.
    pub wal_bytes_lost: u64,
    /// Updates in WALs for column families about which nothing else is known.
    pub entries_without_column_family: u64,
    /// Bytes of the database's tables.
    pub bytes: u64,
    /// The newest sequence number.
    pub last_sequence: u64,
    /// The damage: file and reason.
    pub damaged: Vec<(String, String)>,
    /// Where files were moved to.
    pub lost: Option<PathBuf>,
}

impl Db {
    /// Makes a database that does not open, or lost files, usable again, from what is left of it
    /// (`rocksdb::DB::repair`).
    ///
    /// Damaged tables, converted WALs and old MANIFESTs go to a directory `lost` in the directory that they are in;
    /// nothing is deleted. The database must not be open. Column families are found automatically, but those with a
    /// user's comparator must be described ([`Self::repair_with`]). If files use a feature that Rockmill lacks, the
    /// repair is refused and nothing is changed.
    pub fn repair(options: &Options, path: impl AsRef<Path>) -> Result<RepairReport> {
        Self::repair_with(options, path, &RepairOptions::default())
    }

    /// [`Self::repair`] with descriptions of column families.
    pub fn repair_with(options: &Options, path: impl AsRef<Path>, how: &RepairOptions) -> Result<RepairReport> {
        let path = path.as_ref();
        repair(options, path, how).map_err(|e| e.context(format_args!("cannot repair {}", path.display())))
    }
}

/// The file's name, without its directory.
fn name_of(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A column family of the repaired database.
struct Family {
    id: u32,
    name: String,
    options: CfOptions,
    cmp: InternalKeyComparator,
    /// The MANIFEST is believed for its tables.
    as_in_manifest: bool,
    /// Tables on top of those, flushed after the MANIFEST's last edit. With their sequence numbers.
    later: BTreeMap<u64, (u64, u64)>,
}

/// The files of a directory.
#[derive(Default)]
struct Directory {
    tables: Vec<(u64, PathBuf)>,
    wals: Vec<(u64, PathBuf)>,
    manifests: Vec<u64>,
    /// Paths in addition to its own directory.
    dirs: Vec<PathBuf>,
    largest_number: u64,
}

struct Repair<'a> {
    options: &'a Options,
    how: &'a RepairOptions,
    path: &'a Path,
    fs: Arc<dyn FileSystem>,
    hints: Hints,
    /// Comparators of column families, as far as the MANIFEST and tables say.
    orders: BTreeMap<u32, String>,
    /// Tables that jobs have replaced, and files that other tables still use. They count only if a MANIFEST that is
    /// believed names them.
    replaced: BTreeSet<u64>,
    listed: BTreeSet<u64>,
    /// Column families with damaged tables; `None` stands for an unknown one.
    damaged_in: BTreeSet<Option<u32>>,
    /// Tables whose ends could be read, but not all of the rest.
    unsound: BTreeSet<u64>,
    next_file: Arc<AtomicU64>,
    places: Places,
    /// What the database notes about WALs that are not read: whether they are needed does not change, or they are given
    /// up. Otherwise empty.
    note: OwnNote,
    gives_up: bool,
    /// Rings for the tables that are written, one after another.
    engines: Arc<crate::compaction::SharedEngines>,
    db_id: String,
    session_id: String,
    report: RepairReport,
}

fn repair(options: &Options, path: &Path, how: &RepairOptions) -> Result<RepairReport> {
    let options = &Options { db: job_db_options(&options.db)?, cf: options.cf.clone() };
    let fs = &options.db.fs;
    if !fs.exists(path).map_err(|e| Error::io(path.display(), &e))? {
        return Err(Error::invalid_argument("the directory does not exist"));
    }
    let fs = for_database(fs, path)?;
    let mut options = options.clone();
    options.db.fs = Arc::clone(&fs);
    let options = &options;
    let _lock = fs.lock(&path.join(filename::LOCK)).map_err(|e| lock_error(path, &e))?;
    wal_owner::settle(&*fs, path)?;
    let mut report = RepairReport::default();
    let (wal_dir, _wal_lock) = wals::directory(options, path, how, &mut report)?;
    let described = how.families.iter().map(|d| &d.options.cf);
    let families: Vec<_> = described.chain(how.unknown.as_ref().map(|o| &o.cf)).collect();
    let elsewhere = paths::tables_elsewhere(&*fs, options, &families, path)?;
    let dir = list(&*fs, path, &wal_dir, elsewhere)?;
    if dir.tables.is_empty() && dir.wals.is_empty() && dir.manifests.is_empty() {
        return Err(Error::invalid_argument("it holds no tables, no WALs and no MANIFEST: nothing to repair"));
    }
    let hints = Hints::read(&*fs, path, &dir.manifests)?;
    paths::check_all_are_given(&hints, &dir, options, &families)?;
    if let (Some(damage), Some((wals, why))) = (&hints.damage, &report.wals_not_read) {
        // In that case it is unknown which of its WALs are in tables.
        return Err(Error::invalid_argument(format!(
            "the MANIFEST is damaged ({damage}), and its WALs in {} cannot be read ({why}): bring that directory back, \
             or say where it is (RepairOptions::set_wal_dir, `rockmill repair --wal-dir`); an empty directory gives up \
             what was in them",
            wals.display()
        )));
    }
    let note = OwnNote::default();
    // Only a repair that is told the directory itself gets here without the WALs that are needed, and reads others.
    let gives_up = report.wals_not_read.is_none() && wal_owner::needed_elsewhere(&*fs, path, &wal_dir)?.is_some();
    if report.wals_not_read.is_some() {
        note.take_if_it_counts(&*fs, path)?;
    } else if gives_up {
        note.take(&*fs, path)?;
    }
    let next = hints.next_file_number.max(dir.largest_number.max(hints.named.last().copied().unwrap_or(0)) + 1);
    let now = options.db.clock.now_micros();
    let identity = || {
        let bytes = fs.read_small(&path.join(filename::IDENTITY), LINE_FILE_BYTES_MAX).ok()?;
        String::from_utf8(bytes).ok().map(|s| s.trim_end().to_owned()).filter(|s| !s.is_empty())
    };
    let mut repair = Repair {
        options,
        how,
        path,
        db_id: hints.db_id.clone().or_else(identity).unwrap_or_else(|| new_db_id(now)),
        session_id: new_session_id(now),
        next_file: Arc::new(AtomicU64::new(next)),
        engines: Arc::default(),
        report: RepairReport { manifest_damage: hints.damage.clone(), ..report },
        orders: BTreeMap::new(),
        places: Places::default(),
        note,
        gives_up,
        replaced: BTreeSet::new(),
        listed: BTreeSet::new(),
        damaged_in: BTreeSet::new(),
        unsound: BTreeSet::new(),
        hints,
        fs,
    };
    let created = Arc::new(Mutex::new(Vec::new()));
    repair.run(dir, &wal_dir, &created).inspect_err(|_| {
        // Until the new MANIFEST counts, nothing else is changed.
        for new in created.lock().drain(..) {
            let _ = options.db.fs.remove(&new);
        }
    })?;
    Ok(repair.report)
}

fn list(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, elsewhere: Vec<(PathBuf, Vec<String>)>) -> Result<Directory> {
    let names = |dir: &Path| match fs.list_dir(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io(format_args!("cannot list {}", dir.display()), &e)),
    };
    let mut out = Directory::default();
    let mut note = |n: u64| out.largest_number = out.largest_number.max(n);
    for name in names(path)? {
        match filename::parse(&name) {
            Some(FileType::Table(n)) => {
                note(n);
                out.tables.push((n, path.join(name)));
            }
            Some(FileType::Manifest(n)) => {
                note(n);
                out.manifests.push(n);
            }
            Some(FileType::Blob(_)) => {
                return Err(Error::not_supported(format!("{}: the database has blob files (BlobDB)", name)));
            }
            Some(FileType::Options(n) | FileType::Temp(n) | FileType::Wal(n)) => note(n),
            _ => {}
        }
    }
    for name in names(wal_dir)? {
        if let Some(FileType::Wal(n)) = filename::parse(&name) {
            note(n);
            out.wals.push((n, wal_dir.join(name)));
        }
    }
    for (dir, names) in elsewhere {
        for name in names {
            if let Some(FileType::Table(n)) = filename::parse(&name) {
                note(n);
                out.tables.push((n, dir.join(name)));
            }
        }
        out.dirs.push(dir);
    }
    out.tables.sort();
    out.wals.sort();
    Ok(out)
}

impl Repair<'_> {
    fn run(&mut self, dir: Directory, wal_dir: &Path, created: &Arc<Mutex<Vec<PathBuf>>>) -> Result<()> {
        self.places = Places::new(&dir);
        let mut found = Vec::new();
        // These go where the tables go that they are part of.
        let pieces = self.hints.pieces();
        let mut sizes = BTreeMap::new();
        for (number, path) in &dir.tables {
            match Found::read(&*self.fs, *number, path) {
                Ok(f) => {
                    sizes.insert(*number, f.size);
                    if !pieces.contains(number) {
                        found.push(f);
                    }
                }
                Err(_) if pieces.contains(number) => {} // whoever has it as a piece cannot be opened
                Err(e) => self.damaged_table(*number, path, e, None)?,
            }
        }
        let (mut families, mut tables) = self.choose(&mut found, &sizes, &dir)?;
        self.believe(&mut families, &tables, &dir);

        // New tables from WALs.
        let mut targets = BTreeMap::new();
        for f in families.values() {
            let hinted = self.hints.families.get(&f.id);
            let log_number = if f.as_in_manifest { hinted.map_or(0, |h| h.log_number) } else { 0 };
            // As an opening does: a WAL below that number may have lost its end.
            let oldest = if f.as_in_manifest { self.hints.min_log_number_to_keep } else { 0 };
            let mut target = Target::new(self.job_family(f), self.host(f, created), log_number.max(oldest));
            target.in_tables = f.later.values().copied().collect();
            targets.insert(f.id, target);
        }
        let hints = &self.hints;
        let dropped = |id: u32| hints.was_dropped(id);
        logs::convert(&*self.fs, &dir.wals, &mut targets, &dropped, &mut self.report)?;

        let mut edits = vec![VersionEdit { db_id: Some(self.db_id.clone()), ..VersionEdit::default() }];
        // Above every WAL that was read, since none of those is needed any more. Other WALs may be somewhere else.
        let read = dir.wals.last().map_or(0, |(number, _)| number + 1);
        let manifest = self.new_file_number();
        let mut kept = BTreeSet::new();
        for f in families.values() {
            let from_logs = targets.remove(&f.id).map(|t| t.tables).unwrap_or_default();
            let own = tables.remove(&f.id).unwrap_or_default();
            let files = self.arrange(f, own, from_logs, &found, created)?;
            kept.extend(files.iter().flat_map(|(_, entry)| entry.files()).map(|file| file.number));
            let hinted = self.hints.families.get(&f.id).map_or(0, |h| h.log_number);
            edits.extend(self.edits_of(f, files, read.max(hinted))?);
            self.report.column_families.push(f.name.clone());
        }
        self.report.tables_left_over += tables.values().map(|left| left.len() as u64).sum::<u64>();
        self.report.last_sequence = self.report.last_sequence.max(self.hints.last_sequence);
        let largest_family = families.keys().next_back().copied().unwrap_or(0);
        edits.push(VersionEdit {
            prev_log_number: Some(0),
            min_log_number_to_keep: Some(read.max(self.hints.min_log_number_to_keep)).filter(|n| *n > 0),
            next_file_number: Some(self.next_file.load(Ordering::Acquire)),
            last_sequence: Some(self.report.last_sequence),
            max_column_family: Some(self.hints.max_column_family.max(largest_family)),
            ..VersionEdit::default()
        });
        if self.gives_up {
            self.note.give_up(manifest, PathBuf::new());
        }
        self.note.manifest_begins(&*self.fs, self.path, manifest)?;
        // If this fails, it is unknown whether CURRENT points at it: from here on the new tables must stay.
        created.lock().clear();
        // Syncs the directory, with the names of all new tables, then points CURRENT at the MANIFEST.
        ManifestWriter::create(&self.fs, self.path, manifest, &edits)?;
        self.note.given_up(&*self.fs, self.path)?;

        // By files: one that was the table of its number may still be part of others.
        let tables = dir.tables.into_iter().filter(|(number, _)| !kept.contains(number));
        let mut lost: BTreeSet<PathBuf> = tables.map(|(_, path)| path).collect();
        lost.extend(dir.manifests.iter().map(|n| self.path.join(filename::manifest(*n))));
        lost.extend(dir.wals.into_iter().map(|(_, path)| path));
        self.archive(&lost, wal_dir, &dir.dirs)
    }

    fn new_file_number(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Handles a table that cannot be used: it is damaged, or uses a feature that Rockmill lacks, which ends the
    /// repair. A table that a sound MANIFEST does not name is a leftover, as every interrupted job leaves some.
    /// `family` is its column family if no MANIFEST names it.
    fn damaged_table(&mut self, number: u64, path: &Path, e: Error, family: Option<u32>) -> Result<()> {
        if self.hints.whole && self.hints.file(number).is_none() {
            self.report.tables_left_over += 1;
            return Ok(());
        }
        if matches!(e.kind(), ErrorKind::NotSupported | ErrorKind::InvalidArgument) {
            return Err(e);
        }
        self.report.damaged.push((name_of(path), e.message().to_owned()));
        self.report.tables_damaged += 1;
        self.damaged_in.insert(self.hints.file(number).map(|(id, _)| id).or(family));
        Ok(())
    }

    /// The same of one whose end could be read.
    fn unsound_table(&mut self, f: &Found, e: Error) -> Result<()> {
        self.unsound.insert(f.number);
        let family = self.owner(f);
        self.damaged_table(f.number, &f.path, e, family)
    }

    /// The column family of a table. If nothing says it (the table was ingested, and is no longer named), it is the
    /// default one, as in RocksDB. If the table has another key order than that, it is the one with this order, or
    /// [`NOBODY`] if several have it.
    fn family_of(&self, f: &Found) -> u32 {
        if let Some(id) = self.hints.file(f.number).map(|(id, _)| id).or(f.column_family()) {
            return id;
        }
        let described = self.how.families.iter().find(|d| d.name == DEFAULT_COLUMN_FAMILY_NAME);
        let given = described.map_or(self.options, |d| &d.options).cf.comparator.name();
        match f.comparator() {
            Some(stored) if stored != self.orders.get(&0).map_or(given, String::as_str) => {
                let mut like_it = self.orders.iter().filter(|(_, order)| *order == stored);
                match (like_it.next(), like_it.next()) {
                    (Some((id, _)), None) => *id,
                    (None, _) if !self.hints.whole => 0, // the default's, which is to be described
                    _ => NOBODY,
                }
            }
            _ => 0,
        }
    }

    /// The column families: those of the MANIFEST, and those that only tables name.
    fn families(&self, found: &[Found], wals: &[(u64, PathBuf)]) -> Result<BTreeMap<u32, Family>> {
        let mut named: BTreeMap<u32, (String, Option<String>)> = BTreeMap::new();
        for (id, h) in &self.hints.families {
            named.insert(*id, (h.name.clone(), h.comparator.clone()));
        }
        for f in found {
            let id = self.family_of(f);
            if id == NOBODY {
                continue;
            }
            // A family that the MANIFEST says was dropped stays dropped, if the MANIFEST can be believed.
            if self.hints.was_dropped(id) {
                continue;
            }
            let entry = named.entry(id).or_insert_with(|| (f.properties.column_family_name.clone(), None));
            if entry.1.is_none() {
                entry.1 = f.comparator().map(str::to_owned);
            }
        }
        if !self.hints.whole {
            self.add_families_of_logs(&mut named, wals);
        }
        // Of several with one name the newest counts: the others were dropped.
        let mut newest: BTreeMap<String, u32> = BTreeMap::new();
        for (id, (name, _)) in &named {
            if !name.is_empty() {
                newest.insert(name.clone(), *id);
            }
        }
        let mut out = BTreeMap::new();
        for (id, (name, comparator)) in named {
            if newest.get(&name) != Some(&id) {
                continue;
            }
            let options = self.options_of(&name, comparator.as_deref())?;
            let cmp = InternalKeyComparator::new(Arc::clone(&options.comparator));
            out.insert(id, Family { id, name, options, cmp, as_in_manifest: false, later: BTreeMap::new() });
        }
        Ok(out)
    }

    /// Adds column families of which only log data is left, if the OPTIONS file has their names.
    fn add_families_of_logs(&self, named: &mut BTreeMap<u32, (String, Option<String>)>, wals: &[(u64, PathBuf)]) {
        let listed = hints::listed_in_options(&*self.fs, self.path);
        let known: BTreeMap<u32, String> = named.iter().map(|(id, (name, _))| (*id, name.clone())).collect();
        if listed.iter().all(|(name, _)| known.values().any(|k| k == name)) {
            return;
        }
        let mut unknown = logs::column_families(&*self.fs, wals);
        unknown.retain(|id| !known.contains_key(id) && !self.hints.dropped.contains(id));
        let names: Vec<String> = listed.iter().map(|(name, _)| name.clone()).collect();
        for (id, at) in hints::match_names(&known, &unknown, &names) {
            named.insert(id, listed[at].clone());
        }
    }

    /// Options for a column family, with the comparator that it was written with.
    fn options_of(&self, name: &str, stored: Option<&str>) -> Result<CfOptions> {
        let described = self.how.families.iter().find(|d| d.name == name);
        let mut options = match described {
            Some(d) => d.options.cf.clone(),
            None if name == DEFAULT_COLUMN_FAMILY_NAME => self.options.cf.clone(),
            None => self.how.unknown.as_ref().unwrap_or(self.options).cf.clone(),
        };
        let given = options.comparator.name();
        match stored {
            Some(stored) if stored != given => {
                options.comparator = match comparator_named(stored) {
                    Some(comparator) if described.is_none() => comparator,
                    _ => {
                        return Err(Error::invalid_argument(format!(
                            "column family {name:?} was written with comparator {stored} and is given {given}: describe \
                             it with that comparator"
                        )));
                    }
                };
            }
            _ => {}
        }
        // Nothing may be merged or filtered away here: it is not certain yet which entries are newest.
        options.merge_operator = None;
        options.compaction_filter = None;
        options.compaction_filter_factory = None;
        // Tables may be put into every level.
        let db = DbOptions { allow_ingest_behind: false, ..self.options.db.clone() };
        take_cf_options(name, &mut options, &db, &mut Adjusted::default())?;
        Ok(options)
    }

    /// What the MANIFEST says about a table, if the file can be that table.
    fn hint_of(&self, f: &Found) -> Option<&FileEntry> {
        self.hints.file(f.number).map(|(_, e)| e).filter(|e| e.size == f.size)
    }

    /// Reads all tables except those that `read` has already, by column family. Tables of dropped column families are
    /// included.
    fn scan_all(
        &mut self,
        found: &[Found],
        families: &BTreeMap<u32, Family>,
        read: &mut BTreeMap<u64, (u32, Scanned)>,
    ) -> Result<BTreeMap<u32, Vec<Scanned>>> {
        let total: u64 = found.iter().map(|f| self.hint_of(f).map_or(f.size, FileEntry::table_size)).sum();
        let mut done = 0;
        let bytewise = InternalKeyComparator::default();
        let mut out: BTreeMap<u32, Vec<Scanned>> = BTreeMap::new();
        for f in found {
            if self.unsound.contains(&f.number) {
                continue;
            }
            let id = self.family_of(f);
            if id == NOBODY && !self.hints.whole {
                let what = format!("{}: nothing says which column family it belongs to", f.path.display());
                self.unsound_table(f, Error::corruption(what))?;
                continue;
            }
            let family = families.get(&id);
            let hint = self.hint_of(f);
            if let Some(family) = family
                && f.column_family() == Some(id)
                && !f.properties.column_family_name.is_empty()
                && f.properties.column_family_name != family.name
            {
                let what =
                    format!("{}: a table of column family {:?}", f.path.display(), f.properties.column_family_name);
                self.unsound_table(f, Error::corruption(what))?;
                continue;
            }
            let Some(family) = family else {
                out.entry(id)
                    .or_default()
                    .push(Scanned { entry: FileEntry { number: f.number, ..FileEntry::default() }, entries: 0 });
                continue;
            };
            if let Some((_, scanned)) = read.get(&f.number).filter(|(of, _)| *of == id) {
                done += scanned.entry.table_size();
                out.entry(id).or_default().push(scanned.clone());
                continue;
            }
            let callback = self.how.callback.clone();
            let progress = |bytes: u64| {
                done += bytes;
                if let Some(callback) = &callback {
                    callback(done, total);
                }
            };
            let cmp = if f.comparator().is_some() { &family.cmp } else { &bytewise };
            match scan::scan(&*self.fs, f, cmp, hint, (&self.places, &self.dirs_of(family)), progress) {
                Ok(scanned) => {
                    read.insert(f.number, (id, scanned.clone()));
                    out.entry(id).or_default().push(scanned);
                }
                Err(e) => self.unsound_table(f, e)?,
            }
        }
        Ok(out)
    }

    /// Decides for which column families the MANIFEST is believed: it must be whole, and either all tables that it
    /// names are sound, or nothing else could replace those that are not. A table that it does not name is no reason to
    /// doubt it, whatever its number: a kill during any flush, compaction or ingestion leaves such a table.
    fn believe(&mut self, families: &mut BTreeMap<u32, Family>, tables: &BTreeMap<u32, Vec<Scanned>>, dir: &Directory) {
        let wals = &dir.wals;
        let oldest = self.hints.oldest_wal();
        // The MANIFEST says that this WAL is needed, and the WAL is gone: later edits are lost. (Or unsynced WALs were
        // lost in a power cut. Then the tables that are added have the data that the WALs would have had.)
        let outdated = self.hints.whole
            && self.report.wals_not_read.is_none()
            && oldest > 0
            && !wals.iter().any(|(number, _)| *number == oldest);
        for family in families.values_mut() {
            let Some(hinted) = self.hints.families.get(&family.id) else { continue };
            let sound: BTreeSet<u64> = tables.get(&family.id).into_iter().flatten().map(|t| t.entry.number).collect();
            let there = |n: &u64| dir.tables.iter().any(|(number, _)| number == n);
            let named = hinted.files.values().flat_map(|(_, entry)| entry.files()).map(|file| file.number);
            self.report.tables_missing.extend(named.filter(|n| !there(n)));
            let all_sound = hinted.files.keys().all(|n| sound.contains(n));
            let unnamed = sound.iter().any(|n| !hinted.files.contains_key(n));
            let flushed_logs = wals.iter().any(|(n, _)| *n < hinted.log_number);
            // A job that ended replaced one: later edits are lost.
            let replaced = hinted.files.keys().any(|n| self.replaced.contains(n));
            family.as_in_manifest = self.hints.whole && !replaced && (all_sound || (!unnamed && !flushed_logs));
            if outdated && all_sound && !replaced {
                let all = tables.get(&family.id).into_iter().flatten().map(|t| &t.entry);
                let unknown = all.filter(|e| self.hints.is_unknown(e.number));
                let (later, mixed): (Vec<_>, Vec<_>) = unknown.partition(|e| e.smallest_seqno > hinted.newest);
                family.later = later.iter().map(|e| (e.number, (e.smallest_seqno, e.largest_seqno))).collect();
                let mut ranges: Vec<(u64, u64)> = family.later.values().copied().collect();
                ranges.sort_unstable();
                // A table made from others: it is unknown which of them count.
                if !mixed.is_empty() || ranges.windows(2).any(|two| two[1].0 <= two[0].1) {
                    family.as_in_manifest = false;
                    family.later.clear();
                }
            }
        }
        self.report.tables_missing.sort_unstable();
        self.report.tables_missing.dedup();
    }

    /// The levels of a column family's tables.
    fn arrange(
        &mut self,
        family: &Family,
        mut own: Vec<Scanned>,
        from_logs: Vec<FileEntry>,
        found: &[Found],
        created: &Arc<Mutex<Vec<PathBuf>>>,
    ) -> Result<Vec<(u32, FileEntry)>> {
        let hinted = self.hints.families.get(&family.id).cloned().unwrap_or_default();
        let mut later: Vec<FileEntry> = Vec::new();
        self.report.tables_written += from_logs.len() as u64;
        let entries_of: BTreeMap<u64, u64> = own.iter().map(|s| (s.entry.number, s.entries)).collect();
        let mut placed: Vec<(u32, FileEntry)> = Vec::new();
        if family.as_in_manifest {
            for s in own {
                match hinted.files.get(&s.entry.number) {
                    Some(kept) => placed.push(kept.clone()),
                    None if family.later.contains_key(&s.entry.number) => later.push(s.entry),
                    None => self.report.tables_left_over += 1,
                }
            }
            let mut epoch = placed.iter().map(|(_, e)| e.epoch_number).filter(|e| *e < u64::MAX - 1024).max();
            // Where RocksDB before 7.10 wrote none, sequence numbers say it.
            epoch =
                epoch.filter(|_| placed.iter().all(|(_, e)| e.epoch_number != 0)).or(placed.is_empty().then_some(1));
            later.extend(from_logs);
            later.sort_by_key(|e| (e.largest_seqno, e.number));
            for mut entry in later {
                epoch = epoch.map(|e| e + 1);
                entry.epoch_number = epoch.unwrap_or(0);
                placed.push((0, entry));
            }
        } else {
            let last_level = family.options.num_levels.max(1) as usize - 1;
            let superseded = |n: &u64| self.replaced.contains(n) || self.listed.contains(n);
            own.retain(|s| !superseded(&s.entry.number));
            let own_tables = own.len();
            let all: Vec<FileEntry> = own.into_iter().map(|s| s.entry).chain(from_logs).collect();
            placed = match place::place(all.clone(), last_level, &family.cmp) {
                Some(placed) => placed,
                None => self.merge(family, &all, own_tables, last_level, found, created)?,
            };
            number_epochs(&mut placed);
        }
        let dirs = self.dirs_of(family);
        for (_, e) in &mut placed {
            self.places.set(&*self.fs, e, &dirs)?;
            self.report.bytes += e.table_size();
            self.report.last_sequence = self.report.last_sequence.max(e.largest_seqno);
            match entries_of.get(&e.number) {
                Some(entries) => {
                    self.report.tables_kept += 1;
                    self.report.entries += entries;
                }
                None => self.report.entries += self.count_entries(e, &dirs)?,
            }
        }
        Ok(placed)
    }

    fn count_entries(&self, table: &FileEntry, dirs: &TableDirs) -> Result<u64> {
        let path = dirs.of(table.path_id).join(filename::table(table.number));
        Ok(Found::read(&*self.fs, table.number, &path)?.properties.num_entries)
    }

    /// All tables of a column family as one sorted run of the last level; those from `own_tables` on come from logs.
    fn merge(
        &mut self,
        family: &Family,
        files: &[FileEntry],
        own_tables: usize,
        last_level: usize,
        found: &[Found],
        created: &Arc<Mutex<Vec<PathBuf>>>,
    ) -> Result<Vec<(u32, FileEntry)>> {
        let host = self.host(family, created);
        let mut children: Vec<Box<dyn InternalIterator>> = Vec::new();
        let mut tombstones = Vec::new();
        let options = TableReadOptions { fill_cache: false, ..TableReadOptions::default() };
        // If two tables have a key at the same sequence number (bottommost entries lose theirs), the newer table is
        // right.
        let (own, from_logs) = files.split_at(own_tables);
        for entry in own.iter().rev().chain(from_logs) {
            let table = host.tables.table(&Arc::new(FileMeta::new(entry.clone(), Arc::default())))?;
            tombstones.extend(table.range_tombstones().cloned());
            children.push(table.iter(options));
        }
        let mut merged = MergingIterator::new(children, family.cmp.clone());
        // If tables are lost, the older entries of a key may be only in the log.
        let flushed_logs = (self.report.tables_damaged == 0).then_some(own_tables);
        let output = self.job_family(family);
        let written = write_run(&mut merged, flushed_logs, tombstones, last_level, &output, &host)?;
        self.report.tables_written += written.len() as u64;
        for entry in files {
            match found.iter().any(|f| f.number == entry.number) {
                true => self.report.tables_merged += 1,
                // One that was made of WALs a moment ago.
                false => {
                    self.report.tables_written -= 1;
                    let _ = self.fs.remove(&host.output_path(entry.number));
                }
            }
        }
        Ok(written.into_iter().map(|e| (last_level as u32, e)).collect())
    }

    /// What the specs of jobs that write a column family's tables are made from.
    fn job_family(&self, family: &Family) -> JobFamily {
        JobFamily {
            db_id: self.db_id.clone(),
            db_session_id: self.session_id.clone(),
            cf_id: family.id,
            cf_name: family.name.clone(),
            options: Arc::new(family.options.clone()),
            snapshots: Vec::new(),
            past: Vec::new(),
        }
    }

    fn host(&self, family: &Family, created: &Arc<Mutex<Vec<PathBuf>>>) -> LocalHost {
        let (next, created) = (Arc::clone(&self.next_file), Arc::clone(created));
        let dirs = self.dirs_of(family);
        let dir = dirs.of(0).to_owned();
        let tables = Tables { fs: Arc::clone(&self.fs), dirs, cmp: family.cmp.clone() };
        let objects = JobObjects::of(&family.options, &family.cmp);
        let (fs, clock) = (Arc::clone(&self.fs), Arc::clone(&self.options.db.clock));
        let means = JobMeans::new(objects, self.options.db.clone(), fs, clock);
        LocalHost {
            means: JobMeans { engines: Arc::clone(&self.engines), ..means },
            dir: dir.clone(),
            inputs: Arc::default(),
            tables: Arc::new(tables),
            sealed: None,
            new_file_number: Arc::new(move || {
                let number = next.fetch_add(1, Ordering::Relaxed);
                created.lock().push(dir.join(filename::table(number)));
                Ok(number)
            }),
            cancelled: Arc::default(),
            events: JobEvents { db_name: self.path.to_owned(), cf_name: family.name.clone(), ..JobEvents::default() },
        }
    }

    /// What the MANIFEST says about a column family, tried out first.
    fn edits_of(&self, family: &Family, files: Vec<(u32, FileEntry)>, log_number: u64) -> Result<[VersionEdit; 2]> {
        let head = VersionEdit {
            column_family: family.id,
            column_family_add: (family.id != 0).then(|| family.name.clone()),
            comparator: Some(family.cmp.user_comparator().name().to_owned()),
            ..VersionEdit::default()
        };
        let files = VersionEdit {
            column_family: family.id,
            log_number: Some(log_number),
            new_files: files,
            ..VersionEdit::default()
        };
        let levels = files.new_files.iter().map(|(l, _)| *l as usize + 1).max().unwrap_or(1);
        let base = Arc::new(Version::empty(levels, family.cmp.clone()));
        let mut builder = VersionBuilder::new(base, Arc::new(PurgeQueue::default()));
        builder.apply(&files)?;
        builder.build()?;
        Ok([head, files])
    }
}

/// Epoch numbers that rise from the deepest level up, and in L0 from the oldest table on.
fn number_epochs(placed: &mut [(u32, FileEntry)]) {
    let deepest = placed.iter().map(|(l, _)| *l).max().unwrap_or(0);
    let mut l0 = FIRST_EPOCH + u64::from(deepest);
    for (level, entry) in placed {
        entry.epoch_number = FIRST_EPOCH + u64::from(deepest - *level);
        if *level == 0 {
            entry.epoch_number = l0;
            l0 += 1;
        }
    }
}
