//! Files that no longer belong to the database go to `lost`, in the directory that they are in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rockmill_io::FileSystem;

use super::{LOST, Repair, name_of};
use crate::env::beneath;
use crate::error::{Error, Result};

impl Repair<'_> {
    /// Moves files to `lost` in their directory.
    pub(super) fn archive(&mut self, files: &BTreeSet<PathBuf>, wal_dir: &Path, others: &[PathBuf]) -> Result<()> {
        let dirs: BTreeSet<&Path> =
            [self.path, wal_dir].into_iter().chain(others.iter().map(PathBuf::as_path)).collect();
        for dir in dirs {
            let mut here = files.iter().filter(|f| f.parent() == Some(dir)).peekable();
            if here.peek().is_none() {
                continue;
            }
            let lost = dir.join(LOST);
            // A link of that name would move files out of the directory.
            let fs = &*beneath(&*self.fs, dir)?;
            fs.create_dir(&lost, false).map_err(|e| Error::io(format_args!("cannot create {}", lost.display()), &e))?;
            for from in here {
                let to = free_name(fs, &lost, &name_of(from))?;
                fs.rename(from, &to).map_err(|e| Error::io(format_args!("cannot move {}", from.display()), &e))?;
            }
            for dir in [&*lost, dir] {
                fs.sync_dir(dir).map_err(|e| Error::io(format_args!("cannot sync {}", dir.display()), &e))?;
            }
            if self.report.lost.is_none() {
                self.report.lost = Some(lost);
            }
        }
        Ok(())
    }
}

/// A name in `lost` that takes no other file's place: an earlier repair may have moved one of that name.
fn free_name(fs: &dyn FileSystem, lost: &Path, name: &str) -> Result<PathBuf> {
    let mut to = lost.join(name);
    for n in 1u32.. {
        if !fs.exists(&to).map_err(|e| Error::io(to.display(), &e))? {
            break;
        }
        to = lost.join(format!("{name}.{n}"));
    }
    Ok(to)
}
