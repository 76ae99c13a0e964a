//! Reading and writing the MANIFEST, and CURRENT which names it.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::{MAX_FILE_NUMBER, VersionEdit};
use rockmill_format::filename::{self, FileType};
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, SequenceNumber};
use rockmill_format::log::{DamageKind, LogEncoder, LogEvent, LogReader};
use rockmill_io::{FileSystem, WritableFile, WriteOptions};

use super::manifest_tail::{Damage, is_unsynced};
use super::{LogSource, PurgeQueue, Version, VersionBuilder};
use crate::env::LINE_FILE_BYTES_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::options::DEFAULT_COLUMN_FAMILY_NAME;

/// No table has more bytes: 256 TiB. All tables of a database together then have less than a `u64` can hold.
const TABLE_LEN_MAX: u64 = 1 << 48;

/// A column family as the MANIFEST leaves it.
pub struct RecoveredCf {
    /// Id.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Stored comparator name.
    pub comparator_name: String,
    /// WALs below this hold nothing for it.
    pub log_number: u64,
    /// Its tables.
    pub version: Version,
    /// Compaction cursors by level.
    pub cursors: Vec<(u32, InternalKey)>,
}

/// Everything that the MANIFEST says.
pub struct RecoveredState {
    /// Number of the MANIFEST that was read.
    pub manifest_number: u64,
    /// Where its last edit ends, in bytes: a secondary instance reads on from here.
    pub manifest_end: u64,
    /// Database id, if recorded.
    pub db_id: Option<String>,
    /// Next unused file number.
    pub next_file_number: u64,
    /// Last sequence number in tables.
    pub last_sequence: SequenceNumber,
    /// Lowest WAL kept for two-phase commit.
    pub min_log_number_to_keep: u64,
    /// Largest id ever used.
    pub max_column_family: u32,
    /// WALs the MANIFEST tracks: number and synced size.
    pub tracked_wals: Vec<(u64, Option<u64>)>,
    /// Live column families by id, the default one first.
    pub column_families: Vec<RecoveredCf>,
}

impl RecoveredState {
    /// True when any column family has a table. Then the last sequence number is at least 1 for whoever opens the
    /// database: ingested entries may have number 0, which no snapshot may have.
    pub fn has_tables(&self) -> bool {
        self.column_families.iter().any(|c| c.version.num_files() > 0)
    }
}

/// RocksDB's `EncryptedEnv` puts a page in front of every file; CURRENT itself is a short line.
const ENCRYPTION_PREFIX_BYTES: usize = 4096;

/// Number of the MANIFEST that CURRENT names.
pub fn current_manifest(fs: &dyn FileSystem, dir: &Path) -> Result<u64> {
    let path = dir.join(filename::CURRENT);
    let bytes = fs.read_small(&path, LINE_FILE_BYTES_MAX);
    let bytes = bytes.map_err(|e| Error::io(format_args!("cannot read {}", path.display()), &e))?;
    if bytes.len() >= ENCRYPTION_PREFIX_BYTES {
        return Err(Error::not_supported(format!(
            "{}: has {} bytes where a name should be, as behind an encrypting Env: encryption is not supported",
            path.display(),
            bytes.len()
        )));
    }
    let name = bytes.strip_suffix(b"\n").and_then(|b| std::str::from_utf8(b).ok());
    match name.and_then(filename::parse) {
        Some(FileType::Manifest(n)) => Ok(n),
        _ => Err(Error::corruption(format!(
            "{}: must hold the MANIFEST's name and a newline, holds {:?}",
            path.display(),
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
        ))),
    }
}

/// How far the MANIFEST of a database was at some moment: between two equal marks nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestMark {
    number: u64,
    bytes: u64,
}

/// The current length of the MANIFEST that CURRENT names; `None` if there is none.
pub fn manifest_mark(fs: &dyn FileSystem, dir: &Path) -> Option<ManifestMark> {
    let number = current_manifest(fs, dir).ok()?;
    let bytes = fs.file_size(&dir.join(filename::manifest(number))).ok()?;
    Some(ManifestMark { number, bytes })
}

/// How often a reader reads a database again because a writer has changed it meanwhile.
const LOOKS_MAX: usize = 1000;
/// How often for a file that is missing although the MANIFEST does not change.
const LOOKS_FOR_MISSING_MAX: usize = 3;

/// Reads a database that another process may be writing to, without its lock. The result of `look` counts if the
/// MANIFEST was the same before and after: otherwise the data of missing WALs may be in tables that were not known yet,
/// and missing files may have been replaced. If it changed, `look` is called again, up to a limit; then the error is
/// `TryAgain`.
pub fn retry_while_files_vanish<T>(fs: &dyn FileSystem, dir: &Path, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let mut missing = 0;
    for _ in 0..LOOKS_MAX {
        let before = manifest_mark(fs, dir);
        let seen = look();
        if manifest_mark(fs, dir) != before {
            // Random, so as not to stay in step with a writer that changes it at the same pace.
            crate::sync::thread::yield_now();
            continue;
        }
        match seen {
            // It was deleted after its name was read, by a change that is known by now.
            Err(e) if e.is_missing_file() && missing < LOOKS_FOR_MISSING_MAX => missing += 1,
            seen => return seen,
        }
    }
    Err(Error::new(
        ErrorKind::TryAgain,
        format!("{}: another process changed its tables {LOOKS_MAX} times while it was being read", dir.display()),
    ))
}

struct CfState {
    name: String,
    comparator_name: String,
    log_number: u64,
    builder: VersionBuilder,
    cursors: BTreeMap<u32, InternalKey>,
}

/// From a column family's name and stored comparator name to its order and number of levels.
pub type CfOrder<'a> = dyn FnMut(&str, &str) -> Result<(InternalKeyComparator, usize)> + 'a;

/// From a column family's name to the queue that gets its tables when nothing uses them any more.
pub type CfPurge<'a> = dyn Fn(&str) -> Arc<PurgeQueue> + 'a;

/// Reads CURRENT and the MANIFEST it names. `cf_order` gives comparator and level count for a column family's name
/// and stored comparator name (an error when they do not fit; for read-only inspection a caller may accept any).
pub fn recover_manifest(
    fs: &dyn FileSystem,
    dir: &Path,
    purge: &CfPurge<'_>,
    cf_order: &mut CfOrder<'_>,
) -> Result<RecoveredState> {
    let manifest_number = current_manifest(fs, dir)?;
    let path = dir.join(filename::manifest(manifest_number));
    let mut recovery = Recovery {
        path: &path,
        purge,
        cf_order,
        cfs: BTreeMap::new(),
        names: HashSet::new(),
        db_id: None,
        next_file_number: None,
        last_sequence: None,
        log_number: 0,
        min_log_number_to_keep: 0,
        max_column_family: 0,
        wals: BTreeMap::new(),
    };
    let manifest_end = for_each_edit_from(fs, &path, 0, &mut |edit| recovery.apply(edit))?;
    recovery.finish(manifest_number, manifest_end)
}

/// Calls `f` with each edit of the MANIFEST at `path`; the edits of an atomic group come only when it is whole.
pub fn for_each_edit(fs: &dyn FileSystem, path: &Path, f: &mut dyn FnMut(VersionEdit) -> Result<()>) -> Result<()> {
    for_each_edit_from(fs, path, 0, f).map(drop)
}

/// [`for_each_edit`] from an offset where an edit ends (0: from the beginning). Returns where the last edit, or the
/// last whole atomic group, ends.
pub fn for_each_edit_from(
    fs: &dyn FileSystem,
    path: &Path,
    from: u64,
    f: &mut dyn FnMut(VersionEdit) -> Result<()>,
) -> Result<u64> {
    let open = |from| match LogSource::open(fs, path, from) {
        Ok(source) => Ok(LogReader::resume(source, 0, from, false).without_space_ahead()),
        Err(e) => {
            let hint = if e.kind() == io::ErrorKind::NotFound {
                " (CURRENT names it, but it is missing: restore a backup, or repair the database)"
            } else {
                ""
            };
            Err(Error::io(format_args!("cannot open {}{hint}", path.display()), &e))
        }
    };
    let mut reader = open(from)?;
    let mut record = Vec::new();
    let mut group: Vec<VersionEdit> = Vec::new();
    let mut end = from;
    loop {
        let event = reader.next_record(&mut record).map_err(|e| Error::io(path.display(), &e))?;
        if reader.zeros_at().is_some() || matches!(event, LogEvent::Damage { .. }) {
            reader.source_mut().check_again(fs, path)?;
        }
        let unsynced = |damage| is_unsynced(fs, path, end, damage);
        if let Some(at) = reader.zeros_at() {
            // The reader skipped them with the rest of their block, whatever may be there.
            return match unsynced(Damage::Other)? {
                true => Ok(end),
                false => Err(Error::corruption(format!(
                    "{}: zeros at offset {at} where a version edit was, and not because its write was cut short: \
                     restore a backup, or repair the database",
                    path.display()
                ))),
            };
        }
        match event {
            LogEvent::Record { offset } => {
                let edit = VersionEdit::decode(&record)
                    .map_err(|e| Error::format(path, &e).context(format_args!("version edit at offset {offset}")))?;
                check_edit(&edit).map_err(|what| {
                    Error::corruption(format!("{}: version edit at offset {offset}: {what}", path.display()))
                })?;
                let expected = group.last().map(|e| e.remaining_in_group.unwrap_or(0).checked_sub(1));
                match edit.remaining_in_group {
                    // Each edit of a group has the number of edits that follow it.
                    Some(remaining) if expected.is_some_and(|e| e != Some(remaining)) => {
                        return Err(Error::corruption(format!(
                            "{}: in an atomic group of version edits the one at offset {offset} says that {remaining} \
                             follow, which does not fit the one before",
                            path.display()
                        )));
                    }
                    None if group.is_empty() => {
                        f(edit)?;
                        end = reader.offset();
                    }
                    Some(0) => {
                        group.push(edit);
                        group.drain(..).try_for_each(&mut *f)?;
                        end = reader.offset();
                    }
                    Some(_) => group.push(edit),
                    None => {
                        return Err(Error::corruption(format!(
                            "{}: an atomic group of version edits is broken off at offset {offset}",
                            path.display()
                        )));
                    }
                }
            }
            LogEvent::Damage { kind, error, .. } => {
                let damage = if kind == DamageKind::CutTail { Damage::Cut } else { Damage::Other };
                if kind != DamageKind::Unsupported && unsynced(damage)? {
                    return Ok(end);
                }
                // Another process may be writing here: a record that was incomplete when it was read is whole now, and
                // more may follow it.
                let size = || fs.file_size(path).map_err(|e| Error::io(path.display(), &e));
                if damage == Damage::Cut && size()? > reader.source().end() {
                    reader = open(end)?;
                    group.clear();
                    continue;
                }
                return Err(Error::format(path, &error));
            }
            LogEvent::End { .. } => return Ok(end),
        }
    }
}

/// Refuses numbers that no database reaches, so that sums and successors of the others cannot overflow. Also refuses
/// edits that cannot apply to the default column family, which always exists.
fn check_edit(edit: &VersionEdit) -> std::result::Result<(), String> {
    let id = edit.column_family;
    if let Some(name) = &edit.column_family_add
        && (id == 0) != (name == DEFAULT_COLUMN_FAMILY_NAME)
    {
        return Err(format!("column family {id} has the name {name:?}"));
    }
    if edit.column_family_drop && id == 0 {
        return Err("the default column family is dropped, which nothing can do".to_owned());
    }
    let wals = edit.wal_additions.iter().map(|(number, _)| *number);
    let epochs = edit.new_files.iter().map(|(_, f)| f.epoch_number);
    let numbers = [edit.log_number, edit.next_file_number, edit.min_log_number_to_keep, edit.wal_deletions];
    if let Some(n) = numbers.into_iter().flatten().chain(wals).chain(epochs).find(|n| *n > MAX_FILE_NUMBER) {
        return Err(format!("number {n} is over the largest possible"));
    }
    let files = edit.new_files.iter().flat_map(|(_, f)| [f.smallest_seqno, f.largest_seqno]);
    if let Some(n) = edit.last_sequence.into_iter().chain(files).find(|n| *n > MAX_SEQUENCE) {
        return Err(format!("sequence number {n} is over the largest possible"));
    }
    if let Some(f) = edit.new_files.iter().flat_map(|(_, f)| f.files()).find(|f| f.size > TABLE_LEN_MAX) {
        return Err(format!("table {} has {} bytes", f.number, f.size));
    }
    match edit.new_files.iter().find(|(_, f)| f.table_size() > TABLE_LEN_MAX) {
        Some((_, f)) => Err(format!("table {} has {} bytes, those of its pieces included", f.number, f.table_size())),
        None => Ok(()),
    }
}

struct Recovery<'a> {
    path: &'a PathBuf,
    purge: &'a CfPurge<'a>,
    cf_order: &'a mut CfOrder<'a>,
    cfs: BTreeMap<u32, CfState>,
    /// Of the column families: there may be very many.
    names: HashSet<String>,
    db_id: Option<String>,
    next_file_number: Option<u64>,
    last_sequence: Option<SequenceNumber>,
    log_number: u64,
    min_log_number_to_keep: u64,
    max_column_family: u32,
    wals: BTreeMap<u64, Option<u64>>,
}

impl Recovery<'_> {
    fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corruption(format!("{}: {what}", self.path.display()))
    }

    fn apply(&mut self, edit: VersionEdit) -> Result<()> {
        if edit.has_blob_files {
            return Err(Error::not_supported(format!(
                "{}: the database has blob files (BlobDB), which Rockmill does not read",
                self.path.display()
            )));
        }
        let id = edit.column_family;
        if let Some(name) = &edit.column_family_add {
            if self.cfs.contains_key(&id) {
                return Err(self.corrupt(format_args!("column family {id} ({name}) is created twice")));
            }
            if self.names.contains(name) {
                return Err(self.corrupt(format_args!("two column families have the name {name:?}")));
            }
            self.create_cf(id, name.clone(), edit.comparator.as_deref())?;
        } else if id == 0 && !self.cfs.contains_key(&0) {
            // The first edit about the default column family carries its comparator, not its creation. Some edits
            // (database id, WAL tracking) may come before.
            if edit.comparator.is_some() || !edit.new_files.is_empty() {
                self.create_cf(0, DEFAULT_COLUMN_FAMILY_NAME.to_owned(), edit.comparator.as_deref())?;
            }
        }
        // The rest of such an edit counts, above all the oldest WAL that is still needed: without it recovery would
        // miss a WAL that only the dropped family needed, and treat the following ones as lost.
        if edit.column_family_drop {
            let Some(dropped) = self.cfs.remove(&id) else {
                return Err(self.corrupt(format_args!("column family {id} is dropped and does not exist")));
            };
            self.names.remove(&dropped.name);
        }
        let path = self.path;
        if let Some(cf) = self.cfs.get_mut(&id) {
            cf.builder.apply(&edit).map_err(|e| e.context(path.display()))?;
            if let Some(n) = edit.log_number {
                cf.log_number = cf.log_number.max(n);
            }
            for (level, key) in &edit.compact_cursors {
                cf.cursors.insert(*level, key.clone());
            }
            if let Some(name) = &edit.comparator
                && *name != cf.comparator_name
            {
                return Err(Error::invalid_argument(format!(
                    "{}: column family {} changes its comparator from {} to {name}",
                    path.display(),
                    cf.name,
                    cf.comparator_name
                )));
            }
        } else if !edit.new_files.is_empty() || !edit.deleted_files.is_empty() {
            return Err(self.corrupt(format_args!("a version edit is about column family {id}, which does not exist")));
        }
        if edit.db_id.is_some() {
            self.db_id = edit.db_id;
        }
        if let Some(n) = edit.next_file_number {
            self.next_file_number = Some(self.next_file_number.unwrap_or(0).max(n));
        }
        if let Some(n) = edit.last_sequence {
            self.last_sequence = Some(self.last_sequence.unwrap_or(0).max(n));
        }
        self.log_number = self.log_number.max(edit.log_number.unwrap_or(0));
        self.min_log_number_to_keep = self.min_log_number_to_keep.max(edit.min_log_number_to_keep.unwrap_or(0));
        self.max_column_family = self.max_column_family.max(edit.max_column_family.unwrap_or(0)).max(id);
        for (number, size) in edit.wal_additions {
            let e = self.wals.entry(number).or_insert(None);
            *e = size.or(*e);
        }
        if let Some(below) = edit.wal_deletions {
            while self.wals.first_key_value().is_some_and(|(&n, _)| n < below) {
                self.wals.pop_first();
            }
        }
        Ok(())
    }

    fn create_cf(&mut self, id: u32, name: String, comparator: Option<&str>) -> Result<()> {
        let comparator_name = comparator.unwrap_or(rockmill_format::comparator::BYTEWISE_NAME).to_owned();
        let (cmp, num_levels) = (self.cf_order)(&name, &comparator_name).map_err(|e| e.context(self.path.display()))?;
        let base = Arc::new(Version::empty(num_levels, cmp));
        let builder = VersionBuilder::new(base, (self.purge)(&name));
        self.names.insert(name.clone());
        let cf = CfState { name, comparator_name, log_number: 0, builder, cursors: BTreeMap::new() };
        self.cfs.insert(id, cf);
        Ok(())
    }

    fn finish(mut self, manifest_number: u64, manifest_end: u64) -> Result<RecoveredState> {
        if !self.cfs.contains_key(&0) {
            self.create_cf(0, DEFAULT_COLUMN_FAMILY_NAME.to_owned(), None)?;
        }
        let next_file_number = self
            .next_file_number
            .ok_or_else(|| self.corrupt("no next-file-number entry: the MANIFEST is incomplete"))?;
        let last_sequence =
            self.last_sequence.ok_or_else(|| self.corrupt("no last-sequence entry: the MANIFEST is incomplete"))?;
        let mut column_families = Vec::new();
        for (id, cf) in self.cfs {
            let version = cf
                .builder
                .build()
                .map_err(|e| e.context(format_args!("{}: column family {}", self.path.display(), cf.name)))?;
            column_families.push(RecoveredCf {
                id,
                name: cf.name,
                comparator_name: cf.comparator_name,
                log_number: cf.log_number,
                version,
                cursors: cf.cursors.into_iter().collect(),
            });
        }
        Ok(RecoveredState {
            manifest_number,
            manifest_end,
            db_id: self.db_id,
            next_file_number: next_file_number.max(manifest_number + 1).max(self.log_number + 1),
            last_sequence,
            min_log_number_to_keep: self.min_log_number_to_keep,
            max_column_family: self.max_column_family,
            tracked_wals: self.wals.into_iter().collect(),
            column_families,
        })
    }
}

/// Appends version edits to a MANIFEST.
#[derive(Debug)]
pub struct ManifestWriter {
    file: Box<dyn WritableFile>,
    encoder: LogEncoder,
    path: PathBuf,
    number: u64,
    failed: bool,
    /// Some edit in it has a field that RocksDB refuses, whatever follows.
    refused_by_rocksdb: bool,
}

impl ManifestWriter {
    /// Creates `MANIFEST-<number>` with `snapshot` (the edits that describe the present state), syncs it, points
    /// CURRENT at it (temp file, rename, directory sync).
    pub fn create(fs: &Arc<dyn FileSystem>, dir: &Path, number: u64, snapshot: &[VersionEdit]) -> Result<Self> {
        let path = dir.join(filename::manifest(number));
        let file = fs
            .create(&path, WriteOptions::default())
            .map_err(|e| Error::io(format_args!("cannot create {}", path.display()), &e))?;
        let encoder = LogEncoder::new(number, false, 0);
        let mut writer = Self { file, encoder, path, number, failed: false, refused_by_rocksdb: false };
        writer.append(snapshot)?;
        // The MANIFEST's name must be durable before CURRENT points at it.
        fs.sync_dir(dir).map_err(|e| Error::io(format_args!("cannot sync {}", dir.display()), &e))?;
        set_current(fs.as_ref(), dir, number)?;
        Ok(writer)
    }

    /// Appends edits (each already marked with its atomic group where needed) and syncs. After a failure the file's
    /// end is unknown: every later call fails, and the caller must start a new MANIFEST.
    pub fn append(&mut self, edits: &[VersionEdit]) -> Result<()> {
        if self.failed {
            return Err(Error::new(
                ErrorKind::IOError,
                format!("{}: an earlier write failed; a new MANIFEST is needed", self.path.display()),
            ));
        }
        let mut out = Vec::new();
        for edit in edits {
            self.encoder.add_record(&edit.encode(), &mut out);
            self.refused_by_rocksdb |= edit.new_files.iter().any(|(_, f)| f.is_refused_by_rocksdb());
        }
        let written = self.file.append(&out).and_then(|()| self.file.sync());
        written.map_err(|e| {
            self.failed = true;
            Error::io(format_args!("cannot write {}", self.path.display()), &e)
        })
    }

    /// True when some edit of it has what RocksDB refuses.
    pub fn is_refused_by_rocksdb(&self) -> bool {
        self.refused_by_rocksdb
    }

    /// True when no more can be appended.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Refuses every later append: a new MANIFEST is needed.
    pub fn set_failed(&mut self) {
        self.failed = true;
    }

    /// Bytes written.
    pub fn size(&self) -> u64 {
        self.file.len()
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Points CURRENT at a MANIFEST: the temp file is complete and durable before it takes CURRENT's name.
pub fn set_current(fs: &dyn FileSystem, dir: &Path, manifest_number: u64) -> Result<()> {
    let temp = dir.join(filename::temp(manifest_number));
    let current = dir.join(filename::CURRENT);
    let done = fs
        .write_all(&temp, filename::current_contents(manifest_number).as_bytes())
        .and_then(|()| fs.rename(&temp, &current))
        .and_then(|()| fs.sync_dir(dir));
    done.map_err(|e| Error::io(format_args!("cannot point {} at the new MANIFEST", current.display()), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rockmill_format::edit::{FileEntry, TablePiece};
    use rockmill_io::MemFileSystem;

    #[test]
    fn an_encrypted_current_is_refused_by_name() {
        let fs = MemFileSystem::default();
        let dir = Path::new("/db");
        fs.create_dir(dir, true).unwrap();
        fs.write_all(&dir.join(filename::CURRENT), &[0xa7; 4096 + 16]).unwrap();
        let e = current_manifest(&fs, dir).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotSupported);
        assert!(e.to_string().contains("encryption") && e.to_string().contains("CURRENT"), "{e}");
        fs.write_all(&dir.join(filename::CURRENT), b"MANIFEST-000007\n").unwrap();
        assert_eq!(current_manifest(&fs, dir).unwrap(), 7);
        fs.write_all(&dir.join(filename::CURRENT), b"MANIFEST-00\x0007\n").unwrap();
        assert_eq!(current_manifest(&fs, dir).unwrap_err().kind(), ErrorKind::Corruption);
    }

    /// The result of opening a MANIFEST with these edits.
    fn recover(edits: &[VersionEdit]) -> Result<RecoveredState> {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::default());
        let dir = Path::new("/db");
        fs.create_dir(dir, true).unwrap();
        drop(ManifestWriter::create(&fs, dir, 5, edits).unwrap());
        set_current(&*fs, dir, 5).unwrap();
        recover_manifest(&*fs, dir, &|_| Arc::default(), &mut |_, _| Ok((InternalKeyComparator::default(), 7)))
    }

    /// Looked up one by one: that many names would take a minute.
    #[test]
    fn very_many_column_families_take_no_longer_than_their_number_allows() {
        const FAMILIES: u32 = 200_000;
        let created = |id: u32, name: String| VersionEdit {
            column_family: id,
            column_family_add: Some(name),
            comparator: Some(rockmill_format::comparator::BYTEWISE_NAME.to_owned()),
            ..VersionEdit::default()
        };
        let first = VersionEdit {
            comparator: Some(rockmill_format::comparator::BYTEWISE_NAME.to_owned()),
            log_number: Some(1),
            next_file_number: Some(6),
            last_sequence: Some(0),
            ..VersionEdit::default()
        };
        let mut edits = vec![first];
        edits.extend((1..=FAMILIES).map(|id| created(id, format!("f{id}"))));
        let began = std::time::Instant::now();
        assert_eq!(recover(&edits).unwrap().column_families.len(), FAMILIES as usize + 1);
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        // A name can be used again after its column family was dropped.
        let dropped = VersionEdit { column_family: 7, column_family_drop: true, ..VersionEdit::default() };
        edits.truncate(10);
        edits.extend([dropped, created(11, "f7".to_owned())]);
        assert_eq!(recover(&edits).unwrap().column_families.len(), 10);
        edits.push(created(12, "f8".to_owned()));
        assert!(recover(&edits).err().unwrap().message().contains("two column families have the name \"f8\""));
    }

    #[test]
    fn numbers_that_no_database_reaches_are_refused_before_they_are_added_to() {
        let sound = VersionEdit { next_file_number: Some(9), last_sequence: Some(3), ..VersionEdit::default() };
        assert_eq!(recover(std::slice::from_ref(&sound)).unwrap().next_file_number, 9);
        let file = |f: FileEntry| VersionEdit { new_files: vec![(0, f)], ..sound.clone() };
        let piece = TablePiece { number: 2, size: 1, live: 1, path_id: 0 };
        for bad in [
            VersionEdit { next_file_number: Some(u64::MAX), ..sound.clone() },
            VersionEdit { log_number: Some(u64::MAX), ..sound.clone() },
            VersionEdit { last_sequence: Some(u64::MAX), ..sound.clone() },
            VersionEdit { wal_deletions: Some(u64::MAX), ..sound.clone() },
            file(FileEntry { number: 3, size: u64::MAX, ..FileEntry::default() }),
            file(FileEntry {
                pieces: vec![TablePiece { number: 2, size: u64::MAX, live: 0, path_id: 0 }],
                ..FileEntry::default()
            }),
            file(FileEntry { size: TABLE_LEN_MAX, pieces: vec![piece], ..FileEntry::default() }),
            file(FileEntry { number: 3, largest_seqno: u64::MAX, ..FileEntry::default() }),
        ] {
            let Err(e) = recover(&[sound.clone(), bad.clone()]) else { panic!("{bad:?}") };
            assert_eq!(e.kind(), ErrorKind::Corruption);
            assert!(e.to_string().contains("/db/MANIFEST-000005"), "{e}");
        }
    }

    #[test]
    fn the_default_column_family_is_there_once_and_stays() {
        let sound = VersionEdit { next_file_number: Some(9), last_sequence: Some(3), ..VersionEdit::default() };
        let family = |id, name: &str| VersionEdit {
            column_family: id,
            column_family_add: Some(name.to_owned()),
            ..sound.clone()
        };
        let first = VersionEdit { comparator: Some("leveldb.BytewiseComparator".into()), ..sound.clone() };
        assert_eq!(recover(&[first.clone(), family(1, "a"), family(2, "b")]).unwrap().column_families.len(), 3);
        for bad in [
            VersionEdit { column_family_drop: true, ..sound.clone() },
            family(1, DEFAULT_COLUMN_FAMILY_NAME),
            family(2, "a"),
        ] {
            let Err(e) = recover(&[first.clone(), family(1, "a"), bad.clone()]) else { panic!("{bad:?}") };
            assert_eq!(e.kind(), ErrorKind::Corruption);
            assert!(e.to_string().contains("/db/MANIFEST-000005"), "{e}");
        }
    }
}
