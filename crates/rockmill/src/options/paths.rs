//! The directories of tables: `db_paths` and `cf_paths`.

use std::path::{Path, PathBuf};

use super::value::Value;
use super::{Options, parse};
use crate::error::{Error, Result};

/// The most paths: RocksDB's MANIFEST has two bits for a path id.
pub(crate) const PATHS_MAX: usize = 4;

/// A directory for tables, and how many bytes it is meant to take (`rocksdb::DBPath`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DBPath {
    path: PathBuf,
    target_size: u64,
}

impl DBPath {
    /// Tables are put into `path` until it holds about `target_size` bytes; the last path's size is ignored. Never
    /// fails: it returns a result because the `rocksdb` crate does.
    pub fn new<P: AsRef<Path>>(path: P, target_size: u64) -> Result<Self> {
        Ok(Self { path: path.as_ref().to_owned(), target_size })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes of tables the directory is meant to hold.
    pub fn target_size(&self) -> u64 {
        self.target_size
    }
}

impl Options {
    /// The directories of tables, the fastest first, at most four; without any, the database's own. Flushes write to
    /// the first one. Compactions write to the first one with enough room. For leveled compaction that is room for the
    /// output level and all levels above it, at their target sizes; for universal compaction, room for the table and
    /// for what will be merged with it. What fits nowhere goes to the last path. FIFO compaction uses one path.
    ///
    /// The MANIFEST stores the numbers of paths, not their names. Every open needs the same paths in the same order,
    /// with the database's directory among them if it holds tables; between two opens the directories may be moved
    /// elsewhere. As with RocksDB, OPTIONS files do not store them. An open creates the directories. No other database
    /// may have its tables there: like RocksDB, an open removes tables that are not this database's.
    ///
    /// With several paths `level_compaction_dynamic_level_bytes` is taken for false.
    pub fn set_db_paths(&mut self, paths: &[DBPath]) {
        self.db.db_paths = paths.to_vec();
    }

    /// The same for the tables of a column family; without any, those of the database ([`Self::set_db_paths`]).
    pub fn set_cf_paths(&mut self, paths: &[DBPath]) {
        self.cf.cf_paths = paths.to_vec();
    }
}

/// Refuses paths that cannot be used. `of` names the option.
pub(super) fn check(of: &str, paths: &[DBPath]) -> Result<()> {
    if paths.len() > PATHS_MAX {
        return Err(Error::not_supported(format!("{of} has {} paths: there are four at most", paths.len())));
    }
    match paths.iter().any(|p| p.path.as_os_str().is_empty()) {
        true => Err(Error::invalid_argument(format!("{of} has a path without a name"))),
        false => Ok(()),
    }
}

/// `{{path=/fast;target_size=10G}:{path=/slow;target_size=0}}`. RocksDB has no text for them.
#[expect(clippy::ptr_arg, reason = "of the field's type, as every option's text")]
pub(super) fn text(paths: &Vec<DBPath>) -> String {
    if paths.is_empty() {
        return String::new();
    }
    let one =
        |p: &DBPath| format!("{{path={};target_size={}}}", parse::escape(&p.path.to_string_lossy()), p.target_size);
    format!("{{{}}}", paths.iter().map(one).collect::<Vec<_>>().join(":"))
}

/// Reads what [`text`] wrote, with or without the outer braces; false if it is not such a text.
pub(super) fn read(paths: &mut Vec<DBPath>, text: &str) -> bool {
    match parsed(text) {
        Some(read) => {
            *paths = read;
            true
        }
        None => false,
    }
}

fn parsed(text: &str) -> Option<Vec<DBPath>> {
    let text = text.trim();
    // Braces around one path alone may have been taken off.
    if text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Some(vec![one(text)?]);
    }
    let inner = text.strip_prefix('{').filter(|inner| inner.trim_start().starts_with(['{', '}']));
    let list = inner.map_or(Some(text), |inner| inner.trim_end().strip_suffix('}'))?;
    parse::elements(list).ok()?.iter().map(|element| one(element)).collect()
}

fn one(text: &str) -> Option<DBPath> {
    let (mut path, mut target_size) = (None, 0);
    for (name, value) in parse::pairs(text).ok()? {
        match name.as_str() {
            "path" => path = Some(PathBuf::from(parse::unescape(&value))),
            "target_size" => target_size = <u64 as Value>::read(&value)?,
            _ => return None,
        }
    }
    Some(DBPath { path: path?, target_size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_text() {
        let path = |path: &str, size| DBPath::new(path, size).unwrap();
        for paths in [
            vec![],
            vec![path("/fast", 10 << 30)],
            vec![path("/a:b", 0), path("c#d", u64::MAX)],
            vec![path("/1", 1), path("/2", 2), path("/3", 3), path("/4", 4)],
        ] {
            let (text, mut read_back) = (text(&paths), vec![path("other", 1)]);
            assert!(read(&mut read_back, &text) && read_back == paths, "{text} {read_back:?}");
        }
        for (text, expected) in [
            ("path=/fast;target_size=1K", vec![path("/fast", 1024)]),
            ("{path=/fast}", vec![path("/fast", 0)]),
            (" { {path=/fast;target_size=1}:{path=/slow} } ", vec![path("/fast", 1), path("/slow", 0)]),
            ("{path=/fast;target_size=1}:{path=/slow;}", vec![path("/fast", 1), path("/slow", 0)]),
            ("{}", vec![]),
        ] {
            let mut paths = vec![path("other", 1)];
            assert!(read(&mut paths, text) && paths == expected, "{text} {paths:?}");
        }
        for bad in
            ["/fast", "{target_size=1}", "{{path=/a}", "{path=/a;size=1}", "{path=/a;target_size=x}", ":", "{path"]
        {
            let mut paths = vec![path("other", 1)];
            assert!(!read(&mut paths, bad) && paths.len() == 1, "{bad}");
        }
    }

    #[test]
    fn four_paths_with_names_at_most() {
        let path = |path: &str| DBPath::new(path, 1).unwrap();
        assert!(check("db_paths", &[]).is_ok() && check("db_paths", &vec![path("/a"); 4]).is_ok());
        let e = check("cf_paths", &vec![path("/a"); 5]).unwrap_err();
        assert!(e.kind() == crate::ErrorKind::NotSupported && e.message().contains("cf_paths has 5 paths"), "{e}");
        assert!(check("db_paths", &[path("")]).is_err());
    }
}
