//! The facts that can be learned from an old MANIFEST, even if it is damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::filename;
use rockmill_io::FileSystem;

use crate::error::{Error, ErrorKind, Result};
use crate::options::DEFAULT_COLUMN_FAMILY_NAME;
use crate::options::load::latest_options_file;
use crate::options::parse::{unescape, without_comment};
use crate::version::{current_manifest, for_each_edit};

/// A column family that the MANIFEST knows.
#[derive(Debug, Clone, Default)]
pub(super) struct HintedFamily {
    pub name: String,
    pub comparator: Option<String>,
    pub log_number: u64,
    /// Level and description by number.
    pub files: BTreeMap<u64, (u32, FileEntry)>,
    /// The newest sequence number in any table that it has or had.
    pub newest: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Every record of the MANIFEST that CURRENT names could be read.
    pub whole: bool,
    /// Why it is not whole.
    pub damage: Option<String>,
    pub db_id: Option<String>,
    /// Its number.
    pub manifest: u64,
    /// Every file of tables that it names, or named once.
    pub named: BTreeSet<u64>,
    pub next_file_number: u64,
    /// WALs below this one may be gone.
    pub min_log_number_to_keep: u64,
    pub last_sequence: u64,
    pub max_column_family: u32,
    pub families: BTreeMap<u32, HintedFamily>,
    pub dropped: BTreeSet<u32>,
}

impl Hints {
    /// Reads the MANIFEST that CURRENT names, or the newest of `manifests`, as far as it is readable. Only features
    /// that Rockmill does not support are an error: a database with those must not be taken apart.
    pub fn read(fs: &dyn FileSystem, dir: &Path, manifests: &[u64]) -> Result<Self> {
        let mut hints = Self::default();
        hints.families.insert(0, family(DEFAULT_COLUMN_FAMILY_NAME.to_owned(), None));
        let current = current_manifest(fs, dir);
        let number = match &current {
            Ok(number) if manifests.contains(number) => *number,
            Err(e) if e.kind() == ErrorKind::NotSupported => return Err(e.clone()),
            other => {
                hints.damage = Some(match other {
                    Ok(number) => format!("CURRENT names {}, which is missing", filename::manifest(*number)),
                    Err(e) => e.message().to_owned(),
                });
                match manifests.iter().max() {
                    Some(newest) => *newest,
                    None => return Ok(hints),
                }
            }
        };
        hints.manifest = number;
        let path = dir.join(filename::manifest(number));
        let read = for_each_edit(fs, &path, &mut |edit| hints.apply(&path, edit));
        match read {
            Ok(()) if hints.next_file_number == 0 => hints.damage = Some(format!("{}: incomplete", path.display())),
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotSupported => return Err(e),
            Err(e) => hints.damage = Some(e.message().to_owned()),
        }
        hints.whole = hints.damage.is_none();
        Ok(hints)
    }

    fn apply(&mut self, path: &Path, edit: VersionEdit) -> Result<()> {
        if edit.has_blob_files {
            return Err(Error::not_supported(format!("{}: the database has blob files (BlobDB)", path.display())));
        }
        let id = edit.column_family;
        if let Some(name) = edit.column_family_add {
            if self.families.iter().any(|(&other, cf)| cf.name == name && (other, id) != (0, 0)) {
                let path = path.display();
                return Err(Error::corruption(format!("{path}: two column families have the name {name:?}")));
            }
            self.families.insert(id, family(name, edit.comparator.clone()));
        }
        if edit.column_family_drop {
            self.families.remove(&id);
            self.dropped.insert(id);
        }
        if let Some(cf) = self.families.get_mut(&id) {
            cf.comparator = edit.comparator.or(cf.comparator.take());
            cf.log_number = cf.log_number.max(edit.log_number.unwrap_or(0));
            for (level, number) in edit.deleted_files {
                if cf.files.get(&number).is_some_and(|(l, _)| *l == level) {
                    cf.files.remove(&number);
                }
            }
            for (level, entry) in edit.new_files {
                self.named.extend(entry.files().map(|f| f.number));
                cf.newest = cf.newest.max(entry.largest_seqno);
                cf.files.insert(entry.number, (level, entry));
            }
        }
        self.db_id = edit.db_id.or(self.db_id.take());
        self.min_log_number_to_keep = self.min_log_number_to_keep.max(edit.min_log_number_to_keep.unwrap_or(0));
        self.next_file_number = self.next_file_number.max(edit.next_file_number.unwrap_or(0));
        self.last_sequence = self.last_sequence.max(edit.last_sequence.unwrap_or(0));
        self.max_column_family = self.max_column_family.max(edit.max_column_family.unwrap_or(0)).max(id);
        Ok(())
    }

    /// The oldest WAL that an opening would read.
    pub fn oldest_wal(&self) -> u64 {
        let by_families = self.families.values().map(|f| f.log_number).min().unwrap_or(0);
        by_families.max(self.min_log_number_to_keep)
    }

    /// True for a column family that was dropped according to the MANIFEST.
    pub fn was_dropped(&self, id: u32) -> bool {
        self.whole && !self.families.contains_key(&id) && id <= self.max_column_family
    }

    /// True for a table that the MANIFEST never named and that was made after it: the output of an interrupted job, or
    /// of one whose edits the MANIFEST has lost.
    pub fn is_unknown(&self, number: u64) -> bool {
        number > self.manifest && !self.named.contains(&number)
    }

    /// The files that are part of some table that it names, and no table of their own.
    pub fn pieces(&self) -> BTreeSet<u64> {
        let entries = self.families.values().flat_map(|f| f.files.values());
        let pieces = entries.flat_map(|(_, entry)| &entry.pieces).map(|piece| piece.number);
        pieces.filter(|number| self.file(*number).is_none()).collect()
    }

    /// The column family and description of a table that the MANIFEST names.
    pub fn file(&self, number: u64) -> Option<(u32, &FileEntry)> {
        self.families.iter().find_map(|(id, f)| Some((*id, &f.files.get(&number)?.1)))
    }
}

fn family(name: String, comparator: Option<String>) -> HintedFamily {
    HintedFamily { name, comparator, ..HintedFamily::default() }
}

/// Column families as the newest OPTIONS file lists them: names and comparators, in the order of their ids.
pub(super) fn listed_in_options(fs: &dyn FileSystem, dir: &Path) -> Vec<(String, Option<String>)> {
    let Ok(Some((_, path))) = latest_options_file(fs, dir) else { return Vec::new() };
    let Ok(text) = fs.read_to_vec(&path) else { return Vec::new() };
    let mut out: Vec<(String, Option<String>)> = Vec::new();
    let mut inside = false;
    // Not with the OPTIONS parser, which refuses the whole file if it is damaged anywhere.
    for line in String::from_utf8_lossy(&text).lines().map(without_comment) {
        if line.starts_with('[') {
            let name = line.strip_prefix("[CFOptions \"").and_then(|l| l.strip_suffix("\"]"));
            inside = name.is_some();
            out.extend(name.map(|n| (unescape(n), None)));
        } else if let Some((_, comparator)) = out.last_mut().filter(|_| inside)
            && let Some(value) = line.strip_prefix("comparator=")
        {
            *comparator = Some(unescape(value.split(['{', ';']).next().unwrap_or(value)));
        }
    }
    out
}

/// Names for column families of which only log data is left. Ids are given in the order in which families are created
/// and OPTIONS files list them in it: if there are as many unknown names as unknown ids between two known ones, each
/// name has its id. Otherwise it is not certain, and no name is given.
pub(super) fn match_names(
    known: &BTreeMap<u32, String>,
    unknown: &BTreeSet<u32>,
    listed: &[String],
) -> Vec<(u32, usize)> {
    let id_of = |name: &String| known.iter().find(|(_, n)| *n == name).map(|(id, _)| *id);
    let mut out = Vec::new();
    let (mut from, mut gap): (u32, Vec<usize>) = (0, Vec::new());
    let mut close = |from: u32, to: u32, gap: &mut Vec<usize>| {
        let ids: Vec<u32> = unknown.iter().copied().filter(|id| (from..to).contains(id)).collect();
        if ids.len() == gap.len() {
            out.extend(ids.into_iter().zip(gap.iter().copied()));
        }
        gap.clear();
    };
    for (i, name) in listed.iter().enumerate() {
        match id_of(name) {
            Some(id) if id < from => return Vec::new(), // not in the order of ids
            Some(id) => {
                close(from, id, &mut gap);
                from = id + 1;
            }
            None => gap.push(i),
        }
    }
    close(from, u32::MAX, &mut gap);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_only_where_it_is_sure() {
        let known: BTreeMap<u32, String> = [(0, "default".to_owned()), (4, "d".to_owned())].into();
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let ids = |list: &[u32]| list.iter().copied().collect::<BTreeSet<_>>();
        let all = names(&["default", "b", "d", "e", "f"]);
        assert_eq!(match_names(&known, &ids(&[2, 5, 9]), &all), [(2, 1), (5, 3), (9, 4)]);
        assert_eq!(match_names(&known, &ids(&[2, 5]), &all), [(2, 1)], "5 is e or f");
        assert_eq!(match_names(&known, &ids(&[1, 2]), &all), [], "either was dropped");
        assert_eq!(match_names(&known, &ids(&[2]), &names(&["d", "default", "b"])), [], "another order");
        assert_eq!(match_names(&known, &ids(&[2]), &[]), []);
    }
}
