//! What the MANIFEST of a database that is not open says about its column families.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use rockmill_format::comparator::BYTEWISE_NAME;
use rockmill_format::filename;

use crate::db::Db;
use crate::db::open::start::check_is_readable;
use crate::error::{Error, Result};
use crate::options::{DEFAULT_COLUMN_FAMILY_NAME, Options};
use crate::version::{current_manifest, for_each_edit, retry_while_files_vanish};

/// Deepest level that a summary has tables of.
const LEVELS_SHOWN_MAX: usize = 1000;

/// A column family of a database that is not open, as the MANIFEST describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DbSummary {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Name of its comparator.
    pub comparator: String,
    /// How many levels are in use: the number of the deepest level with tables, plus one.
    pub levels: u32,
    /// Tables of each level, and the bytes of their own files.
    pub level_files: Vec<(u64, u64)>,
}

impl Db {
    /// Names of the column families of a database that is not open.
    pub fn list_cf(options: &Options, path: impl AsRef<Path>) -> Result<Vec<String>> {
        Ok(Self::summary(options, path)?.into_iter().map(|c| c.name).collect())
    }

    /// The column families of a database that is not open, with the data needed to open them.
    pub fn summary(options: &Options, path: impl AsRef<Path>) -> Result<Vec<DbSummary>> {
        let path = path.as_ref();
        check_is_readable(&options.db, path)?;
        retry_while_files_vanish(&*options.db.fs, path, || Self::summary_now(options, path))
    }

    fn summary_now(options: &Options, path: &Path) -> Result<Vec<DbSummary>> {
        let manifest = path.join(filename::manifest(current_manifest(&*options.db.fs, path)?));
        let mut found: BTreeMap<u32, DbSummary> = BTreeMap::new();
        let entry = |id: u32, name: &str| DbSummary {
            name: name.to_owned(),
            id,
            comparator: BYTEWISE_NAME.to_owned(),
            levels: 1,
            level_files: Vec::new(),
        };
        // Level and size of each table, by column family and number.
        let mut tables: BTreeMap<(u32, u64), (u32, u64)> = BTreeMap::new();
        found.insert(0, entry(0, DEFAULT_COLUMN_FAMILY_NAME));
        let mut names = HashSet::from([DEFAULT_COLUMN_FAMILY_NAME.to_owned()]);
        for_each_edit(&*options.db.fs, &manifest, &mut |edit| {
            if let Some(name) = &edit.column_family_add {
                // The default column family may be created a second time, since it always exists.
                let again = found.get(&0).filter(|cf| edit.column_family == 0 && cf.name == *name).is_some();
                if !names.insert(name.clone()) && !again {
                    let path = manifest.display();
                    return Err(Error::corruption(format!("{path}: two column families have the name {name:?}")));
                }
                found.insert(edit.column_family, entry(edit.column_family, name));
            }
            if edit.column_family_drop
                && let Some(dropped) = found.remove(&edit.column_family)
            {
                names.remove(&dropped.name);
            }
            for &(level, number) in &edit.deleted_files {
                if tables.get(&(edit.column_family, number)).is_some_and(|(of, _)| *of == level) {
                    tables.remove(&(edit.column_family, number));
                }
            }
            for (level, file) in &edit.new_files {
                tables.insert((edit.column_family, file.number), (*level, file.size));
            }
            if let Some(cf) = found.get_mut(&edit.column_family) {
                if let Some(c) = edit.comparator {
                    cf.comparator = c;
                }
                cf.levels = edit.new_files.iter().map(|(l, _)| l + 1).fold(cf.levels, u32::max);
            }
            Ok(())
        })?;
        for ((family, _), (level, size)) in tables {
            let Some(cf) = found.get_mut(&family) else { continue };
            let level = level as usize;
            // A damaged MANIFEST must not make a long list.
            if level > LEVELS_SHOWN_MAX {
                continue;
            }
            cf.level_files.resize(cf.level_files.len().max(level + 1), (0, 0));
            cf.level_files[level].0 += 1;
            cf.level_files[level].1 += size;
        }
        Ok(found.into_values().collect())
    }
}
