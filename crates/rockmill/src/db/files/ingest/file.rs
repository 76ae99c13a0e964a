//! External files: their contents, and how they get into the database's directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::coding;
use rockmill_format::edit::FileEntry;
use rockmill_format::filename::{self, FileType};
use rockmill_format::properties::{EXTERNAL_VERSION, GLOBAL_SEQNO, TableProperties, UNKNOWN_COLUMN_FAMILY};
use rockmill_format::{InternalKey, SequenceNumber};
use rockmill_io::{Entry, EntryKind};

use super::IngestExternalFileOptions;
use crate::compaction::internal_unique_id;
use crate::db::catalog::column_family::CfData;
use crate::db::catalog::merge_names::ExpectedOperator;
use crate::db::catalog::value_times::VALUES_WITH_TIMES;
use crate::db::files::checkpoint::{cannot_link, copy_checked};
use crate::db::{Db, DbInner};
use crate::error::{Error, Result};
use crate::table::{Table, TableOpenOptions};

/// A file to be ingested. Its entries have sequence number 0 until it is placed.
#[derive(Debug, Default)]
pub(crate) struct ExternalFile {
    pub path: PathBuf,
    pub size: u64,
    /// Number in the database.
    pub number: u64,
    /// Range tombstones included.
    pub smallest: InternalKey,
    pub largest: InternalKey,
    pub unique_id: [u64; 2],
    pub tail_size: u64,
    /// It holds one range tombstone and nothing else: the data that it covers is worth compacting soon.
    pub only_tombstone: bool,
    pub properties: TableProperties,
    /// Where it goes, once that is decided.
    pub level: usize,
    /// Sequence number of its entries, likewise.
    pub sequence: SequenceNumber,
    /// Its path in the database, once a file may exist there.
    pub inside: Option<PathBuf>,
}

impl ExternalFile {
    /// First and last user key; a range tombstone's end counts as if it were covered.
    pub fn range(&self) -> (&[u8], &[u8]) {
        (self.smallest.user_key(), self.largest.user_key())
    }

    /// As the MANIFEST will name it.
    pub fn entry(&self, now: u64) -> FileEntry {
        FileEntry {
            number: self.number,
            size: self.size,
            smallest: self.smallest.clone(),
            largest: self.largest.clone(),
            smallest_seqno: self.sequence,
            largest_seqno: self.sequence,
            marked_for_compaction: self.only_tombstone,
            oldest_ancester_time: now,
            file_creation_time: now,
            unique_id: self.unique_id,
            tail_size: self.tail_size,
            ..FileEntry::default()
        }
    }

    /// Notes where it goes, and gives the boundaries the sequence number of its entries.
    pub fn set_place(&mut self, level: usize, seq: SequenceNumber) {
        (self.level, self.sequence) = (level, seq);
        for key in [&mut self.smallest, &mut self.largest] {
            // The end of a range tombstone has a number of its own.
            if key.sequence() == 0
                && let Ok(parsed) = key.parse()
            {
                *key = InternalKey::new(parsed.user_key, seq, parsed.value_type);
            }
        }
    }

    /// Reads what must be known about a file, and refuses a file that cannot be ingested. Changes nothing.
    pub fn inspect(db: &DbInner, cf: &CfData, path: &Path, options: &IngestExternalFileOptions) -> Result<Self> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let is_own = |dir: &Path| dir == db.path || db.other_table_dirs().iter().any(|own| own == dir);
        if path.parent().is_some_and(is_own) && matches!(filename::parse(name), Some(FileType::Table(_))) {
            return Err(Error::invalid_argument(format!(
                "{}: is among the database's own files; ingest from another directory",
                path.display()
            )));
        }
        let file = db
            .opts
            .fs
            .open_random(path, false)
            .map_err(|e| Error::io(format_args!("cannot open external file {}", path.display()), &e))?;
        let size = file.size();
        let open = TableOpenOptions {
            path: path.to_owned(),
            cmp: cf.cmp.clone(),
            cache: None,
            // A file with another global sequence number comes from another database.
            largest_seqno: Some(0),
            statistics: None,
            read_protection: None,
            prefix_extractor: None,
        };
        let table = Table::open(file, open).map_err(|e| e.context("external file"))?;
        check_properties(&table, cf)?;
        check_times(&table, db.opened.with_ttl(), options.values_with_times)?;
        if let Some(operator) = &cf.merge_operator {
            let expected = ExpectedOperator::new(&cf.name, Arc::clone(operator));
            expected.check(&table).map_err(|e| e.context(path.display()))?;
        }
        if options.verify_checksums_before_ingest {
            table.verify().map_err(|e| e.context("external file"))?;
        }
        let Some((smallest, largest)) = table.boundaries()? else {
            return Err(Error::invalid_argument(format!("{}: external file without entries", path.display())));
        };
        let p = table.properties();
        Ok(Self {
            path: path.to_owned(),
            size,
            smallest,
            largest,
            unique_id: internal_unique_id(&p.db_id, &p.db_session_id, p.orig_file_number),
            tail_size: if p.tail_start_offset > 0 { size.saturating_sub(p.tail_start_offset) } else { 0 },
            only_tombstone: p.num_entries == 1 && p.num_range_deletions == 1,
            properties: p.clone(),
            ..Self::default()
        })
    }

    /// Brings the file into a directory of tables, under its number. Its contents are durable then, its name is not
    /// yet.
    pub fn bring_in(&mut self, db: &DbInner, dir: &Path, options: &IngestExternalFileOptions) -> Result<()> {
        let fs = &db.opts.fs;
        let to = dir.join(filename::table(self.number));
        self.inside = Some(to.clone()); // whatever happens from here on, it is looked for
        if options.move_files || options.link_files {
            let linked = fs.hard_link(&self.path, &to).and_then(|()| match fs.entry(&to)? {
                Some(Entry { kind: EntryKind::File, ours: true, .. }) => Ok(()),
                // The owner of the file could change it later. The file is checked here, where nobody can exchange it
                // any more.
                _ => {
                    fs.remove(&to)?;
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user may write to it"))
                }
            });
            match linked {
                // It is unknown whether its writer synced it.
                Ok(()) => {
                    return fs.sync_file(&to).map_err(|e| Error::io(format_args!("cannot sync {}", to.display()), &e));
                }
                Err(e) if cannot_link(&e) && options.failed_move_fall_back_to_copy => {}
                Err(e) => {
                    let hint = if cannot_link(&e) { " (failed_move_fall_back_to_copy would copy it)" } else { "" };
                    let (from, to) = (self.path.display(), to.display());
                    return Err(Error::io(format_args!("cannot link {from} to {to}{hint}"), &e));
                }
            }
        }
        // The file belongs to the database now, so the permissions of the directory that it was made in do not matter.
        copy_checked(db, &self.path, &to, self.size, None)
    }

    /// Removes the file from the database's directory again.
    pub fn take_out(&self, db: &DbInner) {
        if let Some(inside) = &self.inside {
            let _ = db.opts.fs.remove(inside); // an orphan goes at the next open
        }
    }
}

/// Refuses values without times in a database with a time to live, and values with them in others.
fn check_times(table: &Table, with_ttl: bool, values_with_times: bool) -> Result<()> {
    let (p, path) = (table.properties(), table.path().display());
    let says_so = p.other.contains_key(VALUES_WITH_TIMES);
    let has_values = p.num_entries > p.num_deletions;
    if with_ttl && has_values && !says_so && !values_with_times {
        return Err(Error::invalid_argument(format!(
            "{path}: its values do not end with the times of their writing, which a database with a time to live needs: \
             write it with SstFileWriter::create_with_ttl or create_for_cf; or set values_with_times, if they do"
        )));
    }
    if !with_ttl && (says_so || values_with_times) {
        return Err(Error::invalid_argument(format!(
            "{path}: its values end with the times of their writing, and the database has no time to live: they would \
             be read as part of the values"
        )));
    }
    Ok(())
}

/// Refuses files that `SstFileWriter` did not write, that were written for another column family, or that have sequence
/// numbers of their own.
fn check_properties(table: &Table, cf: &CfData) -> Result<()> {
    let (p, path) = (table.properties(), table.path().display());
    match p.other.get(EXTERNAL_VERSION).map(|v| coding::fixed32_at(v, 0)) {
        Some(Some(2)) => {}
        None => {
            return Err(Error::corruption(format!(
                "{path}: external file version not found: only tables of SstFileWriter can be ingested"
            )));
        }
        Some(version) => {
            let version = version.map_or_else(|| "unknown".to_owned(), |v| v.to_string());
            return Err(Error::invalid_argument(format!("{path}: external file version {version} is not supported")));
        }
    }
    match p.global_seqno() {
        Some(0) => {}
        None => return Err(Error::corruption(format!("{path}: property {GLOBAL_SEQNO} is missing"))),
        Some(n) => return Err(Error::corruption(format!("{path}: external file has the sequence number {n}, not 0"))),
    }
    if let Some(n) = p.key_largest_seqno.filter(|&n| n > 0) {
        return Err(Error::corruption(format!(
            "{path}: external file has keys with sequence numbers up to {n}, not 0"
        )));
    }
    if p.column_family_id != UNKNOWN_COLUMN_FAMILY && p.column_family_id != u64::from(cf.id) {
        return Err(Error::invalid_argument(format!(
            "{path}: was written for column family {} ({:?}), not for {} ({:?})",
            p.column_family_id, p.column_family_name, cf.id, cf.name
        )));
    }
    Ok(())
}

impl Db {
    /// Removes the names of files outside of the database, once they are in it.
    pub(crate) fn remove_moved<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) {
        for path in paths {
            let _ = self.inner.opts.fs.remove(path); // the data is in the database; a name too many does no harm
        }
    }
}
