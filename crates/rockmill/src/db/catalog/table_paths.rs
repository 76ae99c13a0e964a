//! The directories of tables: `db_paths` and `cf_paths`.
//!
//! A path belongs to one database, but nothing in it says to which: RocksDB writes no such file, and deletes tables
//! that its MANIFEST does not name in any directory that a path names. What can be detected is refused: the directory
//! of another database.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::db::DbInner;
use crate::env::create_dir_durably;
use crate::error::{Error, Result};
use crate::options::{CfOptions, DBPath, DbOptions};
use crate::version::{self, PurgeQueue, TableDirs, TableFile};

/// The directories of the tables of a column family of the database in `path`.
pub(crate) fn dirs_of(options: &CfOptions, db: &DbOptions, path: &Path) -> TableDirs {
    let paths = if options.cf_paths.is_empty() { &db.db_paths } else { &options.cf_paths };
    TableDirs::new(paths.iter().map(DBPath::path), path)
}

/// A column family's view of the queue of files to delete; without options for a column family that is not opened.
pub(crate) fn purge_of(
    queue: &PurgeQueue,
    options: Option<&CfOptions>,
    db: &DbOptions,
    path: &Path,
) -> Arc<PurgeQueue> {
    let other = CfOptions::default();
    queue.of_dirs(dirs_of(options.unwrap_or(&other), db, path))
}

/// Every directory of these column families and of the database's options that is not `path` itself, once.
pub(crate) fn other_dirs<'o>(
    families: impl IntoIterator<Item = &'o CfOptions>,
    db: &DbOptions,
    path: &Path,
) -> Vec<PathBuf> {
    let all = families.into_iter().flat_map(|o| &o.cf_paths).chain(&db.db_paths);
    let mut seen = HashSet::new();
    let mut dirs: Vec<PathBuf> = all.map(|p| p.path().to_owned()).filter(|dir| seen.insert(dir.clone())).collect();
    dirs.retain(|dir| dir != path && !db.fs.same_file(dir, path).unwrap_or(false));
    dirs
}

/// Makes directories of tables that are not there, and refuses those of another database than the one in `path`.
pub(crate) fn prepare(fs: &dyn FileSystem, dirs: &[PathBuf], path: &Path) -> Result<()> {
    for dir in dirs {
        check(fs, dir, path)?;
        create_dir_durably(fs, dir)?;
    }
    Ok(())
}

/// Refuses the directory of another database. Changes nothing.
pub(crate) fn check(fs: &dyn FileSystem, dir: &Path, path: &Path) -> Result<()> {
    let is_databases =
        |name: &String| name == filename::CURRENT || matches!(filename::parse(name), Some(FileType::Manifest(_)));
    match names_in(fs, dir)?.iter().find(|name| is_databases(name)) {
        None => Ok(()),
        Some(name) => Err(Error::invalid_argument(format!(
            "{}: one of db_paths or cf_paths of {}, and the directory of another database (it has {name}), whose tables \
             would be deleted; give it one of its own",
            dir.display(),
            path.display()
        ))),
    }
}

/// The names in a directory of tables; none if it does not exist, since a missing table is reported elsewhere.
pub(crate) fn names_in(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<String>> {
    match fs.list_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e)),
    }
}

/// Removes the tables in the paths of a database that is destroyed, and those paths that are empty then.
pub(crate) fn destroy(fs: &dyn FileSystem, dirs: &[PathBuf]) -> Result<()> {
    for dir in dirs {
        for name in names_in(fs, dir)? {
            if let Some(FileType::Table(_)) = filename::parse(&name) {
                let file = dir.join(&name);
                fs.remove(&file).map_err(|e| Error::io(format_args!("cannot remove {}", file.display()), &e))?;
            }
        }
        let _ = fs.remove_dir(dir); // stays if the user keeps other files in it
    }
    Ok(())
}

/// The numbers of the tables in each directory.
#[derive(Default)]
pub(crate) struct TablesThere(BTreeMap<PathBuf, HashSet<u64>>);

impl TablesThere {
    /// Of the names in a directory.
    pub fn add(&mut self, dir: &Path, names: &[String]) {
        let number = |name: &String| match filename::parse(name) {
            Some(FileType::Table(number)) => Some(number),
            _ => None,
        };
        self.0.entry(dir.to_owned()).or_default().extend(names.iter().filter_map(number));
    }

    /// Those in all directories.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.values().flatten().copied()
    }

    /// True if a directory has the table. A directory that was not listed under this name is the database's own, under
    /// another name.
    pub fn has(&self, dir: &Path, number: u64, own: &Path) -> bool {
        self.0.get(dir).or_else(|| self.0.get(own)).is_some_and(|numbers| numbers.contains(&number))
    }
}

impl DbInner {
    /// Where a file of a table of a column family is.
    pub fn table_path(&self, dirs: &TableDirs, file: TableFile) -> PathBuf {
        version::table_path(&*self.opts.fs, dirs, file)
    }

    /// The directories of tables other than the database's own. The state lock must not be held, since this accesses
    /// directories.
    pub fn other_table_dirs(&self) -> Vec<PathBuf> {
        let families: Vec<_> = self.state.lock().families().map(|c| c.cf().options.load_full()).collect();
        other_dirs(families.iter().map(|o| &**o), &self.opts, &self.path)
    }
}
