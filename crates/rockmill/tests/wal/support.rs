//! Shared by the tests of WAL files and of WAL directories.

use std::path::Path;
use std::sync::Arc;

use rockmill::{ColumnFamilyDescriptor, Db, Options, WriteOptions};
use rockmill_io::{FileSystem, MemFileSystem};

/// The column families of [`open_two`].
pub const FAMILIES: [&str; 2] = ["default", "second"];

/// Where the database is.
pub fn path() -> &'static Path {
    Path::new("/db")
}

/// Options of a new database in this file system, with both column families.
pub fn options(fs: &MemFileSystem) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_file_system(Arc::new(fs.clone()));
    options
}

/// The database with both column families.
pub fn open_two(options: &Options) -> Db {
    let families = FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
    Db::open_cf_descriptors(options, path(), families).unwrap_or_else(|e| panic!("open: {e}"))
}

/// The value of a key as text.
pub fn get(db: &Db, key: &str) -> Option<String> {
    db.get(key).unwrap_or_else(|e| panic!("{key}: {e}")).map(|v| String::from_utf8_lossy(&v).into_owned())
}

/// Write options with which a power cut loses nothing.
pub fn synced() -> WriteOptions {
    let mut how = WriteOptions::default();
    how.set_sync(true);
    how
}

/// The sorted names in a directory with this ending; none if the directory is missing.
pub fn names(fs: &MemFileSystem, dir: &str, end: &str) -> Vec<String> {
    let mut names = fs.list_dir(Path::new(dir)).unwrap_or_default();
    names.retain(|n| n.ends_with(end));
    names.sort();
    names
}
