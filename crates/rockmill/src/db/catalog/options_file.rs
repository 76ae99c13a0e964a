//! OPTIONS files of a database: written at open, when a column family is created or dropped, and when options change.

use std::sync::Arc;

use rockmill_format::filename::{self, FileType};

use crate::db::DbInner;
use crate::db::catalog::column_family::CfData;
use crate::error::{Error, Result};
use crate::merge_operator;
use crate::options::load::{latest_options_file, options_files, read_file};
use crate::options::{CfOptions, file, parse};
use crate::sync::MutexGuard;
use crate::version::FileMeta;

/// How many OPTIONS files are kept: the newest, and the one before it (as RocksDB keeps them).
const KEPT: usize = 2;

impl DbInner {
    /// Writes the options as they are now into a new OPTIONS file. `_turn` is held so that a later state never gets a
    /// lower file number.
    ///
    /// The file is complete and durable before it gets its name, so that after a power cut the newest one is whole.
    pub fn write_options_file(&self, _turn: &MutexGuard<'_, ()>) -> Result<()> {
        let fs = &self.opts.fs;
        let text = {
            let state = self.state.lock();
            let families: Vec<(Arc<CfData>, Arc<CfOptions>)> =
                state.families().map(|c| (Arc::clone(c.cf()), c.cf().options.load_full())).collect();
            drop(state);
            let families: Vec<(&str, &CfOptions)> = families.iter().map(|(cf, o)| (cf.name.as_str(), &**o)).collect();
            file::text(&self.live(), &families)
        };
        let number = self.new_file_number();
        let path = self.path.join(filename::options(number));
        let temp = self.path.join(format!("{}.dbtmp", filename::options(number)));
        self.opened.note().options_begin(&**fs, &self.path, number)?;
        let written = fs
            .write_all(&temp, text.as_bytes())
            .and_then(|()| fs.rename(&temp, &path))
            .and_then(|()| fs.sync_dir(&self.path));
        if let Err(e) = written {
            let _ = fs.remove(&temp); // otherwise the next open removes it
            return Err(Error::io(format_args!("cannot write {}", path.display()), &e));
        }
        self.opened.note().options_begun(number);
        self.remove_old_options_files();
        Ok(())
    }

    fn remove_old_options_files(&self) {
        if !self.files.may_delete() {
            return; // the next OPTIONS file removes them
        }
        let Ok(mut files) = options_files(&*self.opts.fs, &self.path) else { return };
        files.truncate(files.len().saturating_sub(KEPT));
        for (_, old) in files {
            let _ = self.opts.fs.remove(&old); // tried again with the next one
        }
    }

    /// Refuses a merge operator other than the one that the OPTIONS file names, unless a table has been written with
    /// the given one: tools leave operators of their own in that file. A file that cannot be read is ignored.
    pub fn check_merge_operators(self: &Arc<Self>) -> Result<()> {
        let fs = &*self.opts.fs;
        let Some((_, path)) = latest_options_file(fs, &self.path)? else { return Ok(()) };
        let Ok(stored) = read_file(fs, &path) else { return Ok(()) };
        let state = self.state.lock();
        let opened: Vec<_> = state.families().map(|c| (Arc::clone(c.cf()), Arc::clone(c.version()))).collect();
        drop(state);
        for (cf, version) in opened {
            let Some(given) = &cf.merge_operator else { continue };
            let family = stored.families.iter().find(|f| f.name == cf.name);
            let entry = family.and_then(|f| f.options.iter().find(|(name, _)| name == "merge_operator"));
            let Some(id) = entry.and_then(|(_, v)| parse::object(&parse::unescape(v)).ok()).map(|o| o.0) else {
                continue;
            };
            let known_as = merge_operator::by_name(&id).map_or(id.clone(), |o| o.name().to_owned());
            if matches!(&*id, "" | "nullptr") || known_as == given.name() {
                continue;
            }
            let wrote = |file: &Arc<FileMeta>| -> Result<bool> {
                Ok(self.readers.tables().table(&cf, file)?.properties().merge_operator_name == given.name())
            };
            let mut files = version.levels.iter().flatten();
            if !files.any(|f| wrote(f).unwrap_or(false)) {
                return Err(Error::invalid_argument(format!(
                    "column family {:?}: the merge operator {:?} is given, and {} names {id:?}; open the database \
                     with that one, or once with none",
                    cf.name,
                    given.name(),
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// File numbers continue above every OPTIONS file, since the MANIFEST may not have recorded the last numbers.
    pub fn pass_options_files(&self, names: &[String]) {
        let newest = names.iter().filter_map(|name| match filename::parse(name) {
            Some(FileType::Options(number)) => Some(number),
            _ => None,
        });
        if let Some(newest) = newest.max() {
            self.files.numbers().pass(newest);
        }
    }
}
