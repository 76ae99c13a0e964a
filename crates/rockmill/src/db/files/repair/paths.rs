//! The path that a file is in. A repair trusts what it finds, whatever an old MANIFEST said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rockmill_format::edit::FileEntry;
use rockmill_io::FileSystem;

use super::hints::Hints;
use super::{Directory, Family, Repair};
use crate::db::catalog::table_paths::{check, dirs_of, names_in, other_dirs};
use crate::error::{Error, Result};
use crate::options::{CfOptions, Options};
use crate::version::TableDirs;

/// Where tables were found, by number.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<u64, PathBuf>);

impl Places {
    pub fn new(dir: &Directory) -> Self {
        let parent = |path: &Path| path.parent().unwrap_or(Path::new(".")).to_owned();
        Self(dir.tables.iter().map(|(number, path)| (*number, parent(path))).collect())
    }

    /// Gives a table's files the ids of the paths that they are in. New tables, which were not found, are in the first.
    ///
    /// # Errors
    /// A file in a directory that is none of the column family's: not all paths were given.
    pub fn set(&self, fs: &dyn FileSystem, entry: &mut FileEntry, dirs: &TableDirs) -> Result<()> {
        let id_of = |number: u64, id: &mut u32| {
            let Some(found) = self.0.get(&number) else { return Ok(()) };
            // One directory may have two names, as `db` and `/data/db`.
            let is_it = |dir: &PathBuf| dir == found || fs.same_file(dir, found).unwrap_or(false);
            let at = dirs.all().iter().position(is_it).ok_or_else(|| {
                let dir = found.display();
                let what = format!("{dir}: a table is here, and {dir} is none of the paths of its column family");
                Error::invalid_argument(format!("{what}: give all db_paths, or cf_paths, that there were"))
            })?;
            *id = at as u32;
            Ok(())
        };
        id_of(entry.number, &mut entry.path_id)?;
        entry.pieces.iter_mut().try_for_each(|piece| id_of(piece.number, &mut piece.path_id))
    }
}

impl Repair<'_> {
    /// The directories of a column family's tables.
    pub(super) fn dirs_of(&self, family: &Family) -> TableDirs {
        dirs_of(&family.options, &self.options.db, self.path)
    }
}

/// Refuses to continue without the paths that tables of the old MANIFEST are in: these tables would count as lost, and
/// the next open with those paths would delete them.
pub(super) fn check_all_are_given(
    hints: &Hints,
    dir: &Directory,
    options: &Options,
    families: &[&CfOptions],
) -> Result<()> {
    let of_families = families.iter().copied().chain([&options.cf]).map(|o| o.cf_paths.len());
    let given = of_families.chain([options.db.db_paths.len(), 1]).max().unwrap_or(1);
    let files = hints.families.values().flat_map(|f| f.files.values()).flat_map(|(_, entry)| entry.files());
    let there = |number: u64| dir.tables.iter().any(|(n, _)| *n == number);
    match { files }.find(|file| file.path_id as usize >= given && !there(file.number)) {
        Some(file) => Err(Error::invalid_argument(format!(
            "table {:06} is in path {} of its column family, and {given} are given: give all db_paths, or cf_paths, \
             that there were",
            file.number,
            file.path_id + 1
        ))),
        None => Ok(()),
    }
}

/// The tables in paths other than the database's own directory.
pub(super) fn tables_elsewhere(
    fs: &dyn FileSystem,
    options: &Options,
    families: &[&CfOptions],
    path: &Path,
) -> Result<Vec<(PathBuf, Vec<String>)>> {
    let dirs = other_dirs(families.iter().copied().chain([&options.cf]), &options.db, path);
    let names = |dir: PathBuf| {
        check(fs, &dir, path)?;
        names_in(fs, &dir).map(|names| (dir, names))
    };
    dirs.into_iter().map(names).collect()
}
