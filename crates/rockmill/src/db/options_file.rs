//! OPTIONS files of a database.

use std::path::{Path, PathBuf};

use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::error::{Error, Result};

/// OPTIONS files in a directory, the newest (highest number) last.
pub(crate) fn options_files(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let names = fs.list_dir(dir).map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e))?;
    let mut files: Vec<(u64, PathBuf)> = names
        .iter()
        .filter_map(|name| match filename::parse(name) {
            Some(FileType::Options(number)) => Some((number, dir.join(name))),
            _ => None,
        })
        .collect();
    files.sort();
    Ok(files)
}

/// The newest OPTIONS file of a database, if it has one: its number and path.
pub(crate) fn latest_options_file(fs: &dyn FileSystem, dir: &Path) -> Result<Option<(u64, PathBuf)>> {
    Ok(options_files(fs, dir)?.pop())
}
