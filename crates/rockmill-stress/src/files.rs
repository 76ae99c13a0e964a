//! Checks which files a database has and should have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rockmill::internals::{current_manifest, for_each_edit, open_table};
use rockmill::{Comparator, Db, HashRangeComparator, ReverseBytewiseComparator};
use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::FileEntry;
use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::configuration::Configuration;
use crate::kinds::{FoldedComparator, Kind, named_family};
use crate::place::TestDir;

/// Time limit for a thread to delete files that it has just made obsolete.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file that names the owner of a WAL directory, in both directories.
const WAL_OWNER: &str = "WAL_OWNER";

/// Number of WALs that are kept for recycling.
fn recycled(configuration: &Configuration) -> usize {
    if configuration.get("wal") == "recycled" { 2 } else { 0 }
}

/// Checks that the directory of an open database without background work has every file that it needs, complete, and no
/// others.
///
/// # Errors
/// What is missing, has the wrong size, or should not be there.
pub fn check(place: &TestDir, db: &Db, configuration: &Configuration) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match check_once(place, db, configuration) {
            Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

fn check_once(place: &TestDir, db: &Db, configuration: &Configuration) -> Result<(), String> {
    let (fs, dir, wals) = (&*place.fs, place.db(), place.wals());
    let failed = |e: std::io::Error| e.to_string();
    let live = db.live_files().map_err(|e| e.to_string())?;
    let dirs = place.table_dirs();
    let pieces = live.iter().flat_map(|f| &f.pieces);
    let pieces = pieces.map(|piece| (piece.number, (piece.size, dirs.of(piece.path_id).to_owned())));
    let own = live.iter().map(|f| (f.number, (f.size as u64, f.directory.clone())));
    let mut tables: BTreeMap<u64, (u64, PathBuf)> = own.chain(pieces).collect();
    let oldest = db.property_int_value("rocksdb.min-log-number-to-keep").map_err(|e| e.to_string())?.unwrap_or(0);
    let current = fs.read_to_vec(&dir.join(filename::CURRENT)).map_err(failed)?;
    let (mut manifests, mut options, mut obsolete_wals) = (0, 0, 0);
    let mut names = fs.list_dir(&dir).map_err(failed)?;
    if wals != dir {
        let (here, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| !is_wal(name));
        if let Some(name) = others.first() {
            return Err(format!("{name} is there, and WALs are in {}", wals.display()));
        }
        names = here;
        for name in fs.list_dir(&wals).map_err(failed)? {
            if !is_wal(&name) && !matches!(&*name, "archive" | filename::LOCK | WAL_OWNER) {
                return Err(format!("{name} is there, and only WALs are in {}", wals.display()));
            }
            names.push(name);
        }
    }
    if place.two_paths {
        for name in fs.list_dir(&place.slow()).map_err(failed)? {
            match filename::parse(&name) {
                Some(FileType::Table(n)) => take_table(fs, &mut tables, n, &place.slow(), &name)?,
                _ => return Err(format!("{name} is in {}, where only tables are", place.slow().display())),
            }
        }
    }
    for name in names {
        let stray = |why: &str| Err(format!("{name} is there, {why}"));
        match filename::parse(&name) {
            Some(FileType::Table(n)) => take_table(fs, &mut tables, n, &dir, &name)?,
            Some(FileType::Manifest(n)) => {
                manifests += 1;
                if current != filename::current_contents(n).into_bytes() {
                    return stray("and CURRENT names another");
                }
            }
            Some(FileType::Wal(n)) if n < oldest => {
                obsolete_wals += 1;
                if obsolete_wals > recycled(configuration) {
                    return stray(&format!("and WALs are needed from {oldest} on"));
                }
            }
            Some(FileType::Options(_)) => {
                options += 1;
                if options > 2 {
                    return stray("beside two other files of options");
                }
            }
            Some(FileType::Temp(_) | FileType::Blob(_)) => return stray("and nothing is being written"),
            Some(FileType::Wal(_) | FileType::Current | FileType::Lock | FileType::Identity | FileType::InfoLog) => {}
            // Some configuration before this one kept WALs.
            None if name == "archive" || (name == WAL_OWNER && wals != dir) => {}
            None => return stray("and is no file of a database"),
        }
    }
    if let Some(n) = tables.keys().next() {
        return Err(format!("table {n} is missing"));
    }
    if (manifests, options) < (1, 1) {
        return Err(format!("there are {manifests} MANIFESTs and {options} files of options"));
    }
    Ok(())
}

/// Removes a found table from the list of expected ones.
fn take_table(
    fs: &dyn FileSystem,
    tables: &mut BTreeMap<u64, (u64, PathBuf)>,
    number: u64,
    dir: &Path,
    name: &str,
) -> Result<(), String> {
    let Some((size, expected)) = tables.remove(&number) else {
        return Err(format!("{name} is in {}, and no column family has this table", dir.display()));
    };
    if expected != dir {
        return Err(format!("{name} is in {}, and belongs into {}", dir.display(), expected.display()));
    }
    let found = fs.file_size(&dir.join(name)).map_err(|e| e.to_string())?;
    if found != size {
        return Err(format!("{name} has {found} bytes instead of {size}"));
    }
    Ok(())
}

/// Checks that every table of a closed database is intact, with all of its files.
///
/// # Errors
/// The first that is not.
pub fn verify_tables(place: &TestDir) -> rockmill::Result<()> {
    let (fs, dir) = (&*place.fs, place.db());
    for (name, tables) in tables_of(fs, &dir)?.values() {
        let cmp = match named_family(name) {
            Some((_, Kind::Reversed)) => InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator)),
            Some((_, Kind::Hashed)) => InternalKeyComparator::new(Arc::new(HashRangeComparator)),
            Some((_, Kind::Folded)) => InternalKeyComparator::new(Arc::new(FoldedComparator) as Arc<dyn Comparator>),
            _ => InternalKeyComparator::default(),
        };
        for file in tables.values() {
            open_table(fs, &place.table_dirs(), file, &cmp, Some(file.largest_seqno))?.verify()?;
        }
    }
    Ok(())
}

/// Number of tables of a closed database that have several files.
///
/// # Errors
/// The MANIFEST is missing or invalid.
pub fn count_shared(fs: &dyn FileSystem, dir: &Path) -> rockmill::Result<u64> {
    let families = tables_of(fs, dir)?;
    let tables = families.values().flat_map(|(_, tables)| tables.values());
    Ok(tables.filter(|file| !file.pieces.is_empty()).count() as u64)
}

/// The column families of a closed database by their ids: names, and tables by their numbers.
type Families = BTreeMap<u32, (String, BTreeMap<u64, FileEntry>)>;

fn tables_of(fs: &dyn FileSystem, dir: &Path) -> rockmill::Result<Families> {
    let manifest = dir.join(filename::manifest(current_manifest(fs, dir)?));
    let mut families = Families::new();
    for_each_edit(fs, &manifest, &mut |edit| {
        if edit.column_family_drop {
            families.remove(&edit.column_family);
            return Ok(());
        }
        let (name, tables) = families.entry(edit.column_family).or_default();
        if let Some(added) = edit.column_family_add {
            *name = added;
        }
        edit.deleted_files.iter().for_each(|(_, number)| drop(tables.remove(number)));
        tables.extend(edit.new_files.into_iter().map(|(_, file)| (file.number, file)));
        Ok(())
    })?;
    Ok(families)
}

/// Opening a table reads at most this much of its end.
const TAIL_BYTES: u64 = 64 << 10;

fn is_wal(name: &str) -> bool {
    matches!(filename::parse(name), Some(FileType::Wal(_)))
}

/// Bytes of logs that a recovery reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogBytes {
    /// Of all WALs.
    pub wals: u64,
    /// How many WALs.
    pub wal_files: u64,
    /// Of the MANIFESTs.
    pub manifest: u64,
    /// How many tables there are.
    pub tables: u64,
    /// Bytes of the ends of tables, which contain everything that an open reads.
    pub tails: u64,
}

/// Measures the logs of a database; all 0 if there is none.
pub fn log_bytes(place: &TestDir) -> LogBytes {
    let mut sum = LogBytes::default();
    let mut paths = Vec::new();
    for dir in BTreeSet::from([place.db(), place.wals()]) {
        paths.extend(place.fs.list_dir(&dir).unwrap_or_default().into_iter().map(|name| (dir.join(&name), name)));
    }
    for (path, name) in paths {
        let size = place.fs.file_size(&path).unwrap_or(0);
        match filename::parse(&name) {
            Some(FileType::Wal(_)) => {
                sum.wals += size;
                sum.wal_files += 1;
            }
            Some(FileType::Manifest(_)) => sum.manifest += size,
            Some(FileType::Table(_)) => {
                sum.tables += 1;
                sum.tails += size.min(TAIL_BYTES);
            }
            _ => {}
        }
    }
    sum
}
