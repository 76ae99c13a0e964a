//! Examines tables: which column family they belong to, and everything in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::edit::{FileEntry, TablePiece};
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, ParsedInternalKey};
use rockmill_format::properties::{TableProperties, UNKNOWN_COLUMN_FAMILY};
use rockmill_format::{InternalKeyComparator, ValueType};
use rockmill_io::FileSystem;

use crate::compaction::internal_unique_id;
use crate::db::files::repair::paths::Places;
use crate::error::{Error, Result};
use crate::table::{PieceUse, ReplacedTables, Table, told_by_own_file};
use crate::version::{FileMeta, TableDirs, TableSource, open_table};

/// Bytes read at a time.
const READAHEAD_BYTES: usize = 1 << 20;

/// A table file, by its properties.
pub(super) struct Found {
    pub number: u64,
    pub path: PathBuf,
    pub size: u64,
    pub properties: TableProperties,
    /// The further files that it lists as the head of a table, with the ranges of them that it refers to.
    pub pieces: Vec<TablePiece>,
    /// Tables that no longer count, where it lists any.
    pub replaced: ReplacedTables,
}

impl Found {
    /// Reads the properties.
    pub fn read(fs: &dyn FileSystem, number: u64, path: &Path) -> Result<Self> {
        let file = fs.open_random(path, false).map_err(|e| Error::io(path.display(), &e))?;
        let size = file.size();
        let own = told_by_own_file(file, path)?;
        let pieces = own.pieces.iter().map(piece_of).collect();
        let path = path.to_owned();
        Ok(Self { number, path, size, properties: own.properties, pieces, replaced: own.replaced })
    }

    /// Its column family, if the table says so; tables that an `SstFileWriter` made do not.
    pub fn column_family(&self) -> Option<u32> {
        let id = self.properties.column_family_id;
        if id == UNKNOWN_COLUMN_FAMILY { None } else { u32::try_from(id).ok() }
    }

    /// The table's comparator, where it states one.
    pub fn comparator(&self) -> Option<&str> {
        let name = self.properties.comparator_name.as_str();
        (!name.is_empty() && name != "nullptr").then_some(name)
    }
}

/// Opens tables where they are, whatever a MANIFEST says about them.
pub(super) struct Tables {
    pub fs: Arc<dyn FileSystem>,
    pub dirs: TableDirs,
    pub cmp: InternalKeyComparator,
}

impl TableSource for Tables {
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
        open_table(&*self.fs, &self.dirs, &file.entry, &self.cmp, Some(file.entry.largest_seqno))
    }
}

/// Where it is, others say.
fn piece_of(p: &PieceUse) -> TablePiece {
    TablePiece { number: p.number, size: p.size, live: p.live, path_id: 0 }
}

/// The further files of a table, according to the MANIFEST or to the table itself.
fn pieces_of(found: &Found, hint: Option<&FileEntry>) -> Vec<TablePiece> {
    hint.map_or_else(|| found.pieces.clone(), |h| h.pieces.clone())
}

/// A table that was read to its end and is sound.
#[derive(Debug, Clone)]
pub(super) struct Scanned {
    pub entry: FileEntry,
    pub entries: u64,
}

/// Reads a whole table: every block's checksum, the order of keys, and what the MANIFEST must say about it. `hint` is
/// what an old MANIFEST said.
pub(super) fn scan(
    fs: &dyn FileSystem,
    found: &Found,
    cmp: &InternalKeyComparator,
    hint: Option<&FileEntry>,
    (places, dirs): (&Places, &TableDirs),
    mut progress: impl FnMut(u64),
) -> Result<Scanned> {
    let pieces = pieces_of(found, hint);
    let mut entry = FileEntry { number: found.number, size: found.size, pieces, ..FileEntry::default() };
    places.set(fs, &mut entry, dirs)?;
    let table = open_table(fs, dirs, &entry, cmp, hint.map(|h| h.largest_seqno))?;
    let mut range = Range { cmp, ends: None, seqs: None };
    let mut entries = 0u64;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut iter = table.scan(READAHEAD_BYTES, true);
    iter.seek_to_first();
    let mut read = 0;
    while iter.valid() {
        let key = iter.key();
        let parsed = ParsedInternalKey::parse(key).map_err(|e| Error::format(&found.path, &e))?;
        if let Some(feature) = parsed.value_type.unsupported_feature() {
            return Err(Error::not_supported(format!("{}: has {feature}", found.path.display())));
        }
        if !last.is_empty() && cmp.compare(&last, key).is_ge() {
            return Err(Error::corruption(format!("{}: keys are out of order", found.path.display())));
        }
        range.sequence(parsed.sequence);
        if last.is_empty() {
            first = key.to_vec();
        }
        last.clear();
        last.extend_from_slice(key);
        entries += 1;
        iter.next();
        if entries.is_multiple_of(1024) {
            let now = iter.bytes_read();
            progress(now - read);
            read = now;
        }
    }
    iter.status()?;
    if entries > 0 {
        range.ends = Some((InternalKey::from_encoded(first), InternalKey::from_encoded(last)));
    }
    progress(entry.table_size().saturating_sub(read));
    let p = &found.properties;
    if let Some(count) = table.point_entries().filter(|count| !count.contains(&entries)) {
        return Err(Error::corruption(format!(
            "{}: {entries} entries where the properties count {}",
            found.path.display(),
            count.start()
        )));
    }
    if let Some(tombstones) = table.range_tombstones() {
        for (begin, end, seq) in tombstones.extremes() {
            range.tombstone(begin, end, seq);
        }
        entries += tombstones.len() as u64;
    }
    let (Some((smallest, largest)), Some((smallest_seqno, largest_seqno))) = (range.ends, range.seqs) else {
        return Err(Error::corruption(format!("{}: the table is empty", found.path.display())));
    };
    let unique_id = internal_unique_id(&p.db_id, &p.db_session_id, p.orig_file_number);
    let mut entry = FileEntry {
        smallest,
        largest,
        smallest_seqno,
        largest_seqno,
        oldest_ancester_time: p.creation_time,
        file_creation_time: p.file_creation_time,
        unique_id,
        tail_size: if p.tail_start_offset == 0 { 0 } else { found.size.saturating_sub(p.tail_start_offset) },
        user_defined_timestamps_persisted: true,
        ..entry
    };
    if let Some(h) = hint {
        entry.file_checksum.clone_from(&h.file_checksum);
        entry.file_checksum_func_name.clone_from(&h.file_checksum_func_name);
        // Where a level was split into tables, tombstones reach to that point and no further.
        entry.smallest.clone_from(&h.smallest);
        entry.largest.clone_from(&h.largest);
    }
    Ok(Scanned { entry, entries })
}

/// Keys and sequence numbers that a table spans.
struct Range<'a> {
    cmp: &'a InternalKeyComparator,
    ends: Option<(InternalKey, InternalKey)>,
    seqs: Option<(u64, u64)>,
}

impl Range<'_> {
    fn tombstone(&mut self, begin: &[u8], end: &[u8], seq: u64) {
        let begin = InternalKey::new(begin, seq, ValueType::RangeDeletion);
        // The end is no part of it.
        let end = InternalKey::new(end, MAX_SEQUENCE, ValueType::RangeDeletion);
        self.sequence(seq);
        let (smallest, largest) = self.ends.get_or_insert_with(|| (begin.clone(), end.clone()));
        if self.cmp.compare(begin.as_bytes(), smallest.as_bytes()).is_lt() {
            *smallest = begin;
        }
        if self.cmp.compare(end.as_bytes(), largest.as_bytes()).is_gt() {
            *largest = end;
        }
    }

    fn sequence(&mut self, seq: u64) {
        let (low, high) = self.seqs.get_or_insert((seq, seq));
        *low = (*low).min(seq);
        *high = (*high).max(seq);
    }
}
