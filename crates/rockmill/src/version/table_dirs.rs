//! Which directory each file of a table is in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::TableFile;

/// The directories of a column family's tables, by path id: RocksDB's `cf_paths`, or else `db_paths`, or else only the
/// database's own directory. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDirs(Arc<[PathBuf]>);

impl TableDirs {
    /// These directories; without any, `dir` is the only one.
    pub fn new<P: Into<PathBuf>>(dirs: impl IntoIterator<Item = P>, dir: &Path) -> Self {
        let dirs: Vec<PathBuf> = dirs.into_iter().map(Into::into).collect();
        Self(if dirs.is_empty() { [dir.to_owned()].into() } else { dirs.into() })
    }

    /// One directory.
    pub fn one(dir: &Path) -> Self {
        Self([dir.to_owned()].into())
    }

    /// All of them.
    pub fn all(&self) -> &[PathBuf] {
        &self.0
    }

    /// The directory of an id. An id beyond the last path means the last one (RocksDB's `TableFileName`), so that a
    /// copy of all tables in one directory opens, whatever the ids in its MANIFEST.
    pub fn of(&self, path_id: u32) -> &Path {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last.min(path_id as usize)).map_or(Path::new(""), PathBuf::as_path)
    }

    /// The directory of a file.
    pub fn of_file(&self, file: TableFile) -> &Path {
        self.of(file.path_id)
    }
}

/// For a table that is never looked for.
impl Default for TableDirs {
    fn default() -> Self {
        Self::one(Path::new(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_beyond_the_last_path_is_the_last() {
        let (db, none): (&Path, [&str; 0]) = (Path::new("/db"), []);
        assert_eq!(TableDirs::new(none, db), TableDirs::one(db));
        let dirs = TableDirs::new(["/fast", "/slow"], db);
        assert_eq!([0, 1, 2, 3].map(|id| dirs.of(id)), ["/fast", "/slow", "/slow", "/slow"].map(Path::new));
        let one = TableDirs::one(db);
        assert_eq!([0, 3].map(|id| one.of(id)), [db; 2]);
    }
}
