//! Finds the WALs that a repair reads.

use std::path::{Path, PathBuf};

use rockmill_io::FileLock;

use super::{RepairOptions, RepairReport};
use crate::db::open::wal_owner;
use crate::error::{Error, Result};
use crate::front::wal_dir_of;
use crate::options::Options;

/// The WAL directory, and its lock if it is not the database's own. If the database's files name a directory that may
/// not be followed, its WALs are not read, and the report says so. The same holds if the options give a directory other
/// than the one whose WALs are needed: reading those WALs would make the needed ones look too old.
pub(super) fn directory(
    options: &Options,
    path: &Path,
    how: &RepairOptions,
    report: &mut RepairReport,
) -> Result<(PathBuf, Option<Box<dyn FileLock>>)> {
    let (dir, lock) = given_or_stored(options, path, how, report)?;
    if how.wal_dir.is_some() || report.wals_not_read.is_some() {
        return Ok((dir, lock));
    }
    let Some(needed) = wal_owner::needed_elsewhere(&*options.db.fs, path, &dir)? else { return Ok((dir, lock)) };
    let why = format!("they are not in {}, where the options say that they are", dir.display());
    report.wals_not_read = Some((needed, why));
    Ok((path.to_owned(), None))
}

/// The same by what is given and stored alone.
fn given_or_stored(
    options: &Options,
    path: &Path,
    how: &RepairOptions,
    report: &mut RepairReport,
) -> Result<(PathBuf, Option<Box<dyn FileLock>>)> {
    let fs = &*options.db.fs;
    let open = |dir: &Path| -> Result<Option<Box<dyn FileLock>>> {
        if dir == path {
            return Ok(None);
        }
        if !fs.exists(dir).map_err(|e| Error::io(dir.display(), &e))? {
            return Err(Error::invalid_argument(format!("{}: wal_dir does not exist", dir.display())));
        }
        // Before the lock, too, which would leave a file in a directory of somebody else.
        wal_owner::check(fs, path, dir)?;
        let lock = wal_owner::lock(fs, dir)?;
        wal_owner::check(fs, path, dir)?;
        Ok(Some(lock))
    };
    let mut given = options.db.clone();
    let fast = std::mem::take(&mut given.fast_path);
    if let Some(dir) = how.wal_dir.as_ref().or(Some(&fast).filter(|fast| !fast.as_os_str().is_empty())) {
        given.wal_dir.clone_from(dir);
    }
    if !given.wal_dir.as_os_str().is_empty() {
        let dir = wal_dir_of(&given, path);
        let lock = open(&dir)?;
        return Ok((dir, lock));
    }
    let Some(stored) = wal_owner::stored_wal_dir(fs, path) else { return Ok((path.to_owned(), None)) };
    match wal_owner::refuse_unasked(fs, path, &stored).and_then(|()| open(&stored)) {
        Ok(lock) => Ok((stored, lock)),
        Err(e) => {
            report.wals_not_read = Some((stored, e.message().to_owned()));
            Ok((path.to_owned(), None))
        }
    }
}
