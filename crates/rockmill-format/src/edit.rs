//! Version edits: the records of a MANIFEST (RocksDB `db/version_edit.h`).
//!
//! ```text
//! edit:      (varint32 tag | fields of that tag)*
//! new file:  varint32 103 | level | number | size | smallest | largest | smallest seqno | largest seqno
//!            | (varint32 custom tag | varint32 length | bytes)* | varint32 1
//! ```
//!
//! The numbers give forward compatibility: a tag with bit 13 is followed by its length and may be skipped; a custom tag
//! with bit 6 must not be skipped. Encoding writes tags in RocksDB's order, so that an edit that RocksDB wrote and that
//! holds nothing unknown encodes to the same bytes again.

use crate::coding::{Decoder, put_fixed64, put_length_prefixed, put_varint32, put_varint64};
use crate::error::{FormatError, Result};
use crate::key::{self, InternalKey, SequenceNumber, ValueType};

/// Tags of an edit's fields (RocksDB `enum Tag`).
mod tag {
    pub const COMPARATOR: u32 = 1;
    pub const LOG_NUMBER: u32 = 2;
    pub const NEXT_FILE_NUMBER: u32 = 3;
    pub const LAST_SEQUENCE: u32 = 4;
    pub const COMPACT_CURSOR: u32 = 5;
    pub const DELETED_FILE: u32 = 6;
    pub const NEW_FILE: u32 = 7;
    pub const PREV_LOG_NUMBER: u32 = 9;
    pub const MIN_LOG_NUMBER_TO_KEEP: u32 = 10;
    pub const NEW_FILE_2: u32 = 100;
    pub const NEW_FILE_3: u32 = 102;
    pub const NEW_FILE_4: u32 = 103;
    pub const COLUMN_FAMILY: u32 = 200;
    pub const COLUMN_FAMILY_ADD: u32 = 201;
    pub const COLUMN_FAMILY_DROP: u32 = 202;
    pub const MAX_COLUMN_FAMILY: u32 = 203;
    pub const IN_ATOMIC_GROUP: u32 = 300;
    pub const BLOB_FILE_ADDITION: u32 = 400;
    pub const BLOB_FILE_GARBAGE: u32 = 401;
    /// A tag with this bit may be skipped: its length follows it.
    pub const SAFE_TO_IGNORE: u32 = 1 << 13;
    pub const DB_ID: u32 = SAFE_TO_IGNORE + 1;
    pub const BLOB_FILE_ADDITION_DEPRECATED: u32 = SAFE_TO_IGNORE + 2;
    pub const BLOB_FILE_GARBAGE_DEPRECATED: u32 = SAFE_TO_IGNORE + 3;
    /// Without the length; RocksDB wrote it in one version only.
    pub const WAL_ADDITION: u32 = SAFE_TO_IGNORE + 4;
    /// Without the length; RocksDB wrote it in one version only.
    pub const WAL_DELETION: u32 = SAFE_TO_IGNORE + 5;
    pub const FULL_HISTORY_TS_LOW: u32 = SAFE_TO_IGNORE + 6;
    pub const WAL_ADDITION_2: u32 = SAFE_TO_IGNORE + 7;
    pub const WAL_DELETION_2: u32 = SAFE_TO_IGNORE + 8;
    pub const PERSIST_USER_DEFINED_TIMESTAMPS: u32 = SAFE_TO_IGNORE + 9;
    pub const SUBCOMPACTION_PROGRESS: u32 = SAFE_TO_IGNORE + 10;
    pub const LAST_COMPACTED_MANIFEST_FILE_SIZE: u32 = SAFE_TO_IGNORE + 11;
}

/// Tags of a new file's custom fields (RocksDB `enum NewFileCustomTag`).
mod custom {
    pub const TERMINATE: u32 = 1;
    pub const NEED_COMPACTION: u32 = 2;
    /// The edit's `min_log_number_to_keep`, once more, on its first new file, for old readers.
    pub const MIN_LOG_NUMBER_TO_KEEP_HACK: u32 = 3;
    pub const OLDEST_BLOB_FILE_NUMBER: u32 = 4;
    pub const OLDEST_ANCESTER_TIME: u32 = 5;
    pub const FILE_CREATION_TIME: u32 = 6;
    pub const FILE_CHECKSUM: u32 = 7;
    pub const FILE_CHECKSUM_FUNC_NAME: u32 = 8;
    pub const TEMPERATURE: u32 = 9;
    pub const MIN_TIMESTAMP: u32 = 10;
    pub const MAX_TIMESTAMP: u32 = 11;
    pub const UNIQUE_ID: u32 = 12;
    pub const EPOCH_NUMBER: u32 = 13;
    pub const COMPENSATED_RANGE_DELETION_SIZE: u32 = 14;
    pub const TAIL_SIZE: u32 = 15;
    pub const USER_DEFINED_TIMESTAMPS_PERSISTED: u32 = 16;
    pub const FILE_OPEN_METADATA: u32 = 17;
    /// A field with this bit must be understood.
    pub const NOT_SAFE_TO_IGNORE: u32 = 1 << 6;
    pub const PATH_ID: u32 = NOT_SAFE_TO_IGNORE + 1;
    /// Ours: RocksDB refuses a MANIFEST that has it. The number is far from those that RocksDB assigns one by one.
    pub const EXTRA_RUN: u32 = 0x5200 + NOT_SAFE_TO_IGNORE;
    /// Ours, as above.
    pub const PIECES: u32 = EXTRA_RUN + 1;
    /// Ours, as above.
    pub const PIECE_PATHS: u32 = EXTRA_RUN + 2;
}

/// Tags inside a WAL addition.
mod wal_tag {
    pub const TERMINATE: u32 = 1;
    pub const SYNCED_SIZE: u32 = 2;
}

/// Largest file number: the two bits above it hold the path id in RocksDB's memory.
pub const MAX_FILE_NUMBER: u64 = 0x3FFF_FFFF_FFFF_FFFF;
/// Largest path id: RocksDB packs it into two bits.
pub const MAX_PATH_ID: u8 = 3;
/// RocksDB has no limit on levels; this one keeps a bad number from becoming a large allocation.
pub const MAX_LEVELS: u32 = 256;
/// Largest temperature (`kIce`); RocksDB treats larger ones as unknown.
const MAX_TEMPERATURE: u8 = 0x10;
/// What RocksDB calls an unknown whole-file checksum.
const UNKNOWN_CHECKSUM_FUNC: &str = "Unknown";

/// The most further files of a table.
pub const PIECES_MAX: usize = 1024;

/// A file of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFile {
    /// File number.
    pub number: u64,
    /// Size in bytes.
    pub size: u64,
    /// Index into the column family's paths; see [`FileEntry::path_id`].
    pub path_id: u32,
}

/// A further file of a table, which other tables may share. Like [`FileEntry`] it is what a MANIFEST stores, and code
/// that makes one names each field; so it is not `#[non_exhaustive]`, and a new field is a new version of the
/// interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePiece {
    /// File number.
    pub number: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Bytes of the file that the table still refers to; at most `size`. Newer files of the table hide the rest, or it
    /// belongs to other tables.
    pub live: u64,
    /// Index into the column family's paths: where the file was written. Tables that keep using it may be elsewhere.
    pub path_id: u32,
}

impl TablePiece {
    /// The file.
    pub fn file(&self) -> TableFile {
        TableFile { number: self.number, size: self.size, path_id: self.path_id }
    }
}

/// A table as a version edit describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The table's number: its own file is `<number>.sst`.
    pub number: u64,
    /// Index into the column family's paths (RocksDB's `cf_paths`, else `db_paths`), at most [`MAX_PATH_ID`]: the
    /// directory that its own file is in. One beyond the last path stands for the last.
    pub path_id: u32,
    /// Size of its own file in bytes.
    pub size: u64,
    /// Smallest internal key, range tombstones included.
    pub smallest: InternalKey,
    /// Largest internal key, range tombstones included.
    pub largest: InternalKey,
    /// Smallest sequence number in the file.
    pub smallest_seqno: SequenceNumber,
    /// Largest sequence number in the file.
    pub largest_seqno: SequenceNumber,
    /// Marked for compaction.
    pub marked_for_compaction: bool,
    /// Oldest blob file referred to; any value but 0 is refused by the store.
    pub oldest_blob_file_number: u64,
    /// Unix time in seconds of the oldest ancestor; 0 unknown.
    pub oldest_ancester_time: u64,
    /// Unix time in seconds; 0 unknown.
    pub file_creation_time: u64,
    /// Larger numbers are newer L0 files (RocksDB 7.10 and newer); 0 unknown (not written), 1 reserved for files
    /// ingested behind.
    pub epoch_number: u64,
    /// Whole-file checksum; empty unknown.
    pub file_checksum: Vec<u8>,
    /// Its generator's name; empty unknown.
    pub file_checksum_func_name: String,
    /// 64-bit unique id halves; zero unknown.
    pub unique_id: [u64; 2],
    /// Size in bytes of the tail (index, filters, properties) that RocksDB prefetches; 0 unknown.
    pub tail_size: u64,
    /// Estimate of dead range bytes (`compensated_range_deletion_size`).
    pub compensated_range_deletion_size: u64,
    /// Temperature as RocksDB numbers it; 0 unknown.
    pub temperature: u8,
    /// Stored user-defined-timestamp flag; true unless the edit says otherwise.
    pub user_defined_timestamps_persisted: bool,
    /// Smallest user-defined timestamp; empty without them.
    pub min_timestamp: Vec<u8>,
    /// Largest user-defined timestamp; empty without them.
    pub max_timestamp: Vec<u8>,
    /// Data with which RocksDB 11's table factory opens the file faster; opaque, empty if unknown.
    pub file_open_metadata: Vec<u8>,
    /// The sorted run of its level that the file belongs to: 0 is the base run, others are extra runs, and larger ids
    /// are newer. Rockmill's own: written if it is not 0, and RocksDB then refuses the directory.
    pub extra_run: u64,
    /// Further files that the table consists of, which other tables may share; at most [`PIECES_MAX`], in an order that
    /// the kind of table gives a meaning. Rockmill's own, as `extra_run`.
    pub pieces: Vec<TablePiece>,
}

impl Default for FileEntry {
    fn default() -> Self {
        Self {
            number: 0,
            path_id: 0,
            size: 0,
            smallest: InternalKey::default(),
            largest: InternalKey::default(),
            smallest_seqno: 0,
            largest_seqno: 0,
            marked_for_compaction: false,
            oldest_blob_file_number: 0,
            oldest_ancester_time: 0,
            file_creation_time: 0,
            epoch_number: 0,
            file_checksum: Vec::new(),
            file_checksum_func_name: String::new(),
            unique_id: [0; 2],
            tail_size: 0,
            compensated_range_deletion_size: 0,
            temperature: 0,
            user_defined_timestamps_persisted: true,
            min_timestamp: Vec::new(),
            max_timestamp: Vec::new(),
            file_open_metadata: Vec::new(),
            extra_run: 0,
            pieces: Vec::new(),
        }
    }
}

/// One change of the database's state. Fields that are `None` are not in the record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionEdit {
    /// Database id (also in IDENTITY).
    pub db_id: Option<String>,
    /// Comparator's name; in each column family's first edit.
    pub comparator: Option<String>,
    /// WALs below this number hold nothing that this column family still needs.
    pub log_number: Option<u64>,
    /// Obsolete, still written by RocksDB.
    pub prev_log_number: Option<u64>,
    /// Next unused file number.
    pub next_file_number: Option<u64>,
    /// Last sequence number.
    pub last_sequence: Option<SequenceNumber>,
    /// WALs below this number are not needed for prepared transactions.
    pub min_log_number_to_keep: Option<u64>,
    /// Largest column family id ever used.
    pub max_column_family: Option<u32>,
    /// Column family this edit is about; 0 is the default one.
    pub column_family: u32,
    /// The edit creates the column family, with this name.
    pub column_family_add: Option<String>,
    /// The edit drops the column family.
    pub column_family_drop: bool,
    /// Files that leave, as (level, number).
    pub deleted_files: Vec<(u32, u64)>,
    /// Files that join, as (level, file).
    pub new_files: Vec<(u32, FileEntry)>,
    /// Compaction cursors, as (level, key).
    pub compact_cursors: Vec<(u32, InternalKey)>,
    /// Edits that follow this one in the same atomic group.
    pub remaining_in_group: Option<u32>,
    /// `full_history_ts_low`, only with user-defined timestamps.
    pub full_history_ts_low: Option<Vec<u8>>,
    /// WALs tracked in the MANIFEST: (number, synced size if known). RocksDB treats an edit with WAL additions or
    /// deletions as one about WALs alone and ignores its other fields: write them as separate edits.
    pub wal_additions: Vec<(u64, Option<u64>)>,
    /// WALs below this number are no longer tracked.
    pub wal_deletions: Option<u64>,
    /// Persist user-defined timestamps.
    pub persist_user_defined_timestamps: Option<bool>,
    /// Any blob file tag was present (unsupported, refused by the store with the file's name).
    pub has_blob_files: bool,
    /// Subcompaction progress record (RocksDB 10.6 and newer) was present; ignored.
    pub has_subcompaction_progress: bool,
    /// Size of the MANIFEST when RocksDB 11 last rewrote it whole.
    pub last_compacted_manifest_file_size: Option<u64>,
}

impl VersionEdit {
    /// The record's bytes, with the tags RocksDB writes, in its order. Blob files and subcompaction progress are not
    /// written: a database with the former is refused, and only RocksDB can use the latter.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.deleted_files.len() * 12 + self.new_files.len() * 160);
        let dst = &mut out;
        if let Some(id) = &self.db_id {
            put_bytes(dst, tag::DB_ID, id.as_bytes());
        }
        if let Some(name) = &self.comparator {
            put_bytes(dst, tag::COMPARATOR, name.as_bytes());
        }
        put_number(dst, tag::LOG_NUMBER, self.log_number);
        put_number(dst, tag::PREV_LOG_NUMBER, self.prev_log_number);
        put_number(dst, tag::NEXT_FILE_NUMBER, self.next_file_number);
        put_number(dst, tag::MAX_COLUMN_FAMILY, self.max_column_family.map(u64::from));
        put_number(dst, tag::MIN_LOG_NUMBER_TO_KEEP, self.min_log_number_to_keep);
        put_number(dst, tag::LAST_SEQUENCE, self.last_sequence);
        for (level, key) in &self.compact_cursors {
            put_varint32(dst, tag::COMPACT_CURSOR);
            put_varint32(dst, *level);
            put_length_prefixed(dst, key.as_bytes());
        }
        for (level, number) in &self.deleted_files {
            put_varint32(dst, tag::DELETED_FILE);
            put_varint32(dst, *level);
            put_varint64(dst, *number);
        }
        let mut min_log_number = self.min_log_number_to_keep;
        for (level, file) in &self.new_files {
            file.encode(*level, min_log_number.take(), dst);
        }
        for (number, synced_size) in &self.wal_additions {
            let mut body = Vec::with_capacity(24);
            put_varint64(&mut body, *number);
            put_number(&mut body, wal_tag::SYNCED_SIZE, *synced_size);
            put_varint32(&mut body, wal_tag::TERMINATE);
            put_bytes(dst, tag::WAL_ADDITION_2, &body);
        }
        put_wrapped_number(dst, tag::WAL_DELETION_2, self.wal_deletions);
        if self.column_family != 0 {
            put_varint32(dst, tag::COLUMN_FAMILY);
            put_varint32(dst, self.column_family);
        }
        if let Some(name) = &self.column_family_add {
            put_bytes(dst, tag::COLUMN_FAMILY_ADD, name.as_bytes());
        }
        if self.column_family_drop {
            put_varint32(dst, tag::COLUMN_FAMILY_DROP);
        }
        put_number(dst, tag::IN_ATOMIC_GROUP, self.remaining_in_group.map(u64::from));
        if let Some(ts) = &self.full_history_ts_low {
            put_bytes(dst, tag::FULL_HISTORY_TS_LOW, ts);
        }
        if let Some(persist) = self.persist_user_defined_timestamps {
            put_bytes(dst, tag::PERSIST_USER_DEFINED_TIMESTAMPS, &[u8::from(persist)]);
        }
        put_wrapped_number(dst, tag::LAST_COMPACTED_MANIFEST_FILE_SIZE, self.last_compacted_manifest_file_size);
        out
    }

    /// Decodes a record. Unknown tags that carry RocksDB's safe-to-ignore bit are skipped; others are an error that
    /// names the tag.
    pub fn decode(record: &[u8]) -> Result<Self> {
        Ok(Self::decode_while(record, |_| true)?.unwrap_or_default())
    }

    /// The same; `goes_on` checks the edit after each field. `None` if it ends the reading, because the decoded edit
    /// may take more memory than its bytes.
    pub fn decode_while(record: &[u8], mut goes_on: impl FnMut(&Self) -> bool) -> Result<Option<Self>> {
        let mut edit = Self::default();
        let mut d = Decoder::new(record);
        while !d.is_empty() {
            edit.decode_field(&mut d)?;
            if !goes_on(&edit) {
                return Ok(None);
            }
        }
        Ok(Some(edit))
    }

    fn decode_field(&mut self, d: &mut Decoder<'_>) -> Result<()> {
        let at = d.offset();
        match d.varint32("version edit: tag")? {
            tag::DB_ID => self.db_id = Some(text(d, "version edit: database id")?),
            tag::COMPARATOR => self.comparator = Some(text(d, "version edit: comparator name")?),
            tag::LOG_NUMBER => self.log_number = Some(d.varint64("version edit: log number")?),
            tag::PREV_LOG_NUMBER => self.prev_log_number = Some(d.varint64("version edit: previous log number")?),
            tag::NEXT_FILE_NUMBER => self.next_file_number = Some(d.varint64("version edit: next file number")?),
            tag::MAX_COLUMN_FAMILY => self.max_column_family = Some(d.varint32("version edit: max column family")?),
            tag::MIN_LOG_NUMBER_TO_KEEP => {
                self.min_log_number_to_keep = Some(d.varint64("version edit: min log number to keep")?);
            }
            tag::LAST_SEQUENCE => self.last_sequence = Some(d.varint64("version edit: last sequence")?),
            tag::COMPACT_CURSOR => {
                let level = level(d)?;
                self.compact_cursors.push((level, internal_key(d, "version edit: compaction cursor")?));
            }
            tag::DELETED_FILE => {
                let level = level(d)?;
                self.deleted_files.push((level, file_number(d)?));
            }
            t @ (tag::NEW_FILE | tag::NEW_FILE_2 | tag::NEW_FILE_3 | tag::NEW_FILE_4) => self.decode_new_file(t, d)?,
            tag::BLOB_FILE_ADDITION | tag::BLOB_FILE_ADDITION_DEPRECATED => {
                skip_blob_record(d, 3, 2)?;
                self.has_blob_files = true;
            }
            tag::BLOB_FILE_GARBAGE | tag::BLOB_FILE_GARBAGE_DEPRECATED => {
                skip_blob_record(d, 3, 0)?;
                self.has_blob_files = true;
            }
            tag::WAL_ADDITION => self.wal_additions.push(wal_addition(d)?),
            tag::WAL_ADDITION_2 => {
                let mut body = nested(d, "version edit: WAL addition")?;
                self.wal_additions.push(wal_addition(&mut body.decoder).map_err(|e| e.at(body.start))?);
            }
            tag::WAL_DELETION => self.wal_deletions = Some(d.varint64("version edit: WAL deletion")?),
            tag::WAL_DELETION_2 => {
                self.wal_deletions = Some(nested(d, "version edit: WAL deletion")?.varint64("WAL number")?);
            }
            tag::COLUMN_FAMILY => self.column_family = d.varint32("version edit: column family")?,
            tag::COLUMN_FAMILY_ADD => self.column_family_add = Some(text(d, "version edit: column family name")?),
            tag::COLUMN_FAMILY_DROP => self.column_family_drop = true,
            tag::IN_ATOMIC_GROUP => {
                self.remaining_in_group = Some(d.varint32("version edit: remaining edits of the atomic group")?);
            }
            tag::FULL_HISTORY_TS_LOW => {
                let ts = d.length_prefixed("version edit: full_history_ts_low")?;
                if ts.is_empty() {
                    return Err(FormatError::corruption("version edit: full_history_ts_low is empty", at));
                }
                self.full_history_ts_low = Some(ts.to_vec());
            }
            tag::PERSIST_USER_DEFINED_TIMESTAMPS => {
                let flag = nested(d, "version edit: persist_user_defined_timestamps")?.only_byte()?;
                self.persist_user_defined_timestamps = Some(flag == 1);
            }
            tag::SUBCOMPACTION_PROGRESS => {
                d.length_prefixed("version edit: subcompaction progress")?;
                self.has_subcompaction_progress = true;
            }
            tag::LAST_COMPACTED_MANIFEST_FILE_SIZE => {
                let mut body = nested(d, "version edit: last compacted manifest file size")?;
                self.last_compacted_manifest_file_size = Some(body.varint64("size")?);
            }
            t if t & tag::SAFE_TO_IGNORE != 0 => {
                d.length_prefixed("version edit: a field that may be ignored")?;
            }
            t => {
                return Err(FormatError::corruption(
                    format!(
                        "version edit: unknown tag {t}, not marked as safe to ignore; a newer RocksDB may have written it"
                    ),
                    at,
                ));
            }
        }
        Ok(())
    }

    fn decode_new_file(&mut self, tag: u32, d: &mut Decoder<'_>) -> Result<()> {
        let level = level(d)?;
        let mut f = FileEntry { number: file_number(d)?, ..FileEntry::default() };
        if tag == tag::NEW_FILE_3 {
            let at = d.offset();
            f.path_id = path_id(d.varint32("new file: path id")?, at)?;
        }
        f.size = d.varint64("new file: size")?;
        f.smallest = internal_key(d, "new file: smallest key")?;
        f.largest = internal_key(d, "new file: largest key")?;
        // LevelDB's form has no sequence numbers.
        if tag != tag::NEW_FILE {
            f.smallest_seqno = d.varint64("new file: smallest sequence number")?;
            f.largest_seqno = d.varint64("new file: largest sequence number")?;
        }
        if tag == tag::NEW_FILE_4 {
            f.decode_custom_fields(d, &mut self.min_log_number_to_keep)?;
        }
        self.new_files.push((level, f));
        Ok(())
    }
}

impl FileEntry {
    /// All files that the table consists of, its own first.
    pub fn files(&self) -> impl Iterator<Item = TableFile> + '_ {
        std::iter::once(self.own_file()).chain(self.pieces.iter().map(TablePiece::file))
    }

    /// Its own file.
    pub fn own_file(&self) -> TableFile {
        TableFile { number: self.number, size: self.size, path_id: self.path_id }
    }

    /// Bytes that the table counts for: its own file, and the bytes that it refers to in its pieces.
    pub fn table_size(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.live).fold(self.size, u64::saturating_add)
    }

    /// True if there are at most [`PIECES_MAX`] pieces, no file occurs twice, and the table refers to no more bytes of
    /// a piece than there are.
    pub fn has_sound_pieces(&self) -> bool {
        let mut numbers = std::collections::HashSet::from([self.number]);
        let mut sound = |piece: &TablePiece| piece.live <= piece.size && numbers.insert(piece.number);
        self.pieces.len() <= PIECES_MAX && self.pieces.iter().all(&mut sound)
    }

    /// True when RocksDB refuses a MANIFEST that has the entry.
    pub fn is_refused_by_rocksdb(&self) -> bool {
        self.extra_run != 0 || !self.pieces.is_empty()
    }

    fn encode(&self, level: u32, min_log_number_to_keep: Option<u64>, dst: &mut Vec<u8>) {
        put_varint32(dst, tag::NEW_FILE_4);
        put_varint32(dst, level);
        put_varint64(dst, self.number);
        put_varint64(dst, self.size);
        put_length_prefixed(dst, self.smallest.as_bytes());
        put_length_prefixed(dst, self.largest.as_bytes());
        put_varint64(dst, self.smallest_seqno);
        put_varint64(dst, self.largest_seqno);
        put_wrapped_number(dst, custom::OLDEST_ANCESTER_TIME, Some(self.oldest_ancester_time));
        put_wrapped_number(dst, custom::FILE_CREATION_TIME, Some(self.file_creation_time));
        put_wrapped_number(dst, custom::EPOCH_NUMBER, known(self.epoch_number));
        if !matches!(self.file_checksum_func_name.as_str(), "" | UNKNOWN_CHECKSUM_FUNC) {
            put_bytes(dst, custom::FILE_CHECKSUM, &self.file_checksum);
            put_bytes(dst, custom::FILE_CHECKSUM_FUNC_NAME, self.file_checksum_func_name.as_bytes());
        }
        if self.path_id != 0 {
            put_bytes(dst, custom::PATH_ID, &[self.path_id as u8]);
        }
        if self.temperature != 0 {
            put_bytes(dst, custom::TEMPERATURE, &[self.temperature]);
        }
        if self.marked_for_compaction {
            put_bytes(dst, custom::NEED_COMPACTION, &[1]);
        }
        if let Some(n) = min_log_number_to_keep {
            let mut body = Vec::with_capacity(8);
            put_fixed64(&mut body, n);
            put_bytes(dst, custom::MIN_LOG_NUMBER_TO_KEEP_HACK, &body);
        }
        put_wrapped_number(dst, custom::OLDEST_BLOB_FILE_NUMBER, known(self.oldest_blob_file_number));
        if self.unique_id != [0; 2] {
            let mut body = Vec::with_capacity(16);
            put_fixed64(&mut body, self.unique_id[0]);
            put_fixed64(&mut body, self.unique_id[1]);
            put_bytes(dst, custom::UNIQUE_ID, &body);
        }
        let range_deletion_size = known(self.compensated_range_deletion_size);
        put_wrapped_number(dst, custom::COMPENSATED_RANGE_DELETION_SIZE, range_deletion_size);
        put_wrapped_number(dst, custom::TAIL_SIZE, known(self.tail_size));
        if !self.user_defined_timestamps_persisted {
            put_bytes(dst, custom::USER_DEFINED_TIMESTAMPS_PERSISTED, &[0]);
        }
        for (t, bytes) in [
            (custom::MIN_TIMESTAMP, &self.min_timestamp),
            (custom::MAX_TIMESTAMP, &self.max_timestamp),
            (custom::FILE_OPEN_METADATA, &self.file_open_metadata),
        ] {
            if !bytes.is_empty() {
                put_bytes(dst, t, bytes);
            }
        }
        put_wrapped_number(dst, custom::EXTRA_RUN, known(self.extra_run));
        if !self.pieces.is_empty() {
            let mut body = Vec::with_capacity(self.pieces.len() * 12);
            for piece in &self.pieces {
                put_varint64(&mut body, piece.number);
                put_varint64(&mut body, piece.size);
                put_varint64(&mut body, piece.live);
            }
            put_bytes(dst, custom::PIECES, &body);
            if self.pieces.iter().any(|piece| piece.path_id != 0) {
                let paths: Vec<u8> = self.pieces.iter().map(|piece| piece.path_id as u8).collect();
                put_bytes(dst, custom::PIECE_PATHS, &paths);
            }
        }
        put_varint32(dst, custom::TERMINATE);
    }

    fn decode_custom_fields(&mut self, d: &mut Decoder<'_>, min_log_number_to_keep: &mut Option<u64>) -> Result<()> {
        loop {
            let at = d.offset();
            let t = d.varint32("new file: custom tag")?;
            if t == custom::TERMINATE {
                // A checksum is meaningless without its function.
                if self.file_checksum_func_name.is_empty() {
                    self.file_checksum.clear();
                }
                return Ok(());
            }
            let mut field = nested(d, "new file: custom field")?;
            match t {
                custom::NEED_COMPACTION => self.marked_for_compaction = field.only_byte()? == 1,
                custom::MIN_LOG_NUMBER_TO_KEEP_HACK => {
                    *min_log_number_to_keep = Some(field.fixed64("min log number to keep")?);
                }
                custom::OLDEST_BLOB_FILE_NUMBER => {
                    self.oldest_blob_file_number = field.varint64("oldest blob file number")?;
                }
                custom::OLDEST_ANCESTER_TIME => self.oldest_ancester_time = field.varint64("oldest ancester time")?,
                custom::FILE_CREATION_TIME => self.file_creation_time = field.varint64("file creation time")?,
                custom::FILE_CHECKSUM => self.file_checksum = field.rest().to_vec(),
                custom::FILE_CHECKSUM_FUNC_NAME => {
                    // RocksDB 7.8 writes the unknown one, later versions leave it out.
                    self.file_checksum_func_name =
                        Some(field.text()?).filter(|s| s != UNKNOWN_CHECKSUM_FUNC).unwrap_or_default();
                }
                custom::TEMPERATURE => {
                    self.temperature = Some(field.only_byte()?).filter(|&t| t <= MAX_TEMPERATURE).unwrap_or(0);
                }
                custom::MIN_TIMESTAMP => self.min_timestamp = field.rest().to_vec(),
                custom::MAX_TIMESTAMP => self.max_timestamp = field.rest().to_vec(),
                custom::UNIQUE_ID => {
                    if field.rest().len() != 16 {
                        return Err(FormatError::corruption("new file: unique id is not 16 bytes long", at));
                    }
                    self.unique_id = [field.fixed64("unique id")?, field.fixed64("unique id")?];
                }
                custom::EPOCH_NUMBER => self.epoch_number = field.varint64("epoch number")?,
                custom::COMPENSATED_RANGE_DELETION_SIZE => {
                    self.compensated_range_deletion_size = field.varint64("compensated range deletion size")?;
                }
                custom::TAIL_SIZE => self.tail_size = field.varint64("tail size")?,
                custom::USER_DEFINED_TIMESTAMPS_PERSISTED => {
                    self.user_defined_timestamps_persisted = field.only_byte()? == 1;
                }
                custom::FILE_OPEN_METADATA => self.file_open_metadata = field.rest().to_vec(),
                custom::EXTRA_RUN => self.extra_run = field.varint64("extra run")?,
                custom::PIECES => self.pieces = field.pieces(self.number)?,
                custom::PIECE_PATHS => self.set_piece_paths(field.rest(), at)?,
                custom::PATH_ID => self.path_id = path_id(u32::from(field.only_byte()?), at)?,
                t if t & custom::NOT_SAFE_TO_IGNORE != 0 => {
                    return Err(FormatError::unsupported(format!(
                        "the custom field {t} of a new file in a version edit (it must not be ignored; a newer RocksDB \
                         may have written it)"
                    )));
                }
                _ => {}
            }
        }
    }
}

impl FileEntry {
    /// One byte for each of the pieces, which stand before.
    fn set_piece_paths(&mut self, paths: &[u8], at: u64) -> Result<()> {
        if paths.len() != self.pieces.len() {
            let what = format!("new file: {} paths for {} pieces", paths.len(), self.pieces.len());
            return Err(FormatError::corruption(what, at));
        }
        for (piece, &path) in self.pieces.iter_mut().zip(paths) {
            piece.path_id = path_id(u32::from(path), at)?;
        }
        Ok(())
    }
}

/// RocksDB writes many numbers only when they are not zero.
fn known(n: u64) -> Option<u64> {
    (n != 0).then_some(n)
}

fn put_bytes(dst: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    put_varint32(dst, tag);
    put_length_prefixed(dst, bytes);
}

fn put_number(dst: &mut Vec<u8>, tag: u32, n: Option<u64>) {
    if let Some(n) = n {
        put_varint32(dst, tag);
        put_varint64(dst, n);
    }
}

/// A number with the length of its varint before it, so that readers who do not know the tag can skip it.
fn put_wrapped_number(dst: &mut Vec<u8>, tag: u32, n: Option<u64>) {
    if let Some(n) = n {
        put_varint32(dst, tag);
        put_varint32(dst, crate::coding::varint_len(n) as u32);
        put_varint64(dst, n);
    }
}

/// A length-prefixed field and its position in the edit, so that errors have offsets in the edit.
struct Nested<'a> {
    decoder: Decoder<'a>,
    start: u64,
    what: &'static str,
}

fn nested<'a>(d: &mut Decoder<'a>, what: &'static str) -> Result<Nested<'a>> {
    let bytes = d.length_prefixed(what)?;
    Ok(Nested { decoder: Decoder::new(bytes), start: d.offset() - bytes.len() as u64, what })
}

impl<'a> Nested<'a> {
    fn rest(&self) -> &'a [u8] {
        self.decoder.remaining()
    }

    fn varint64(&mut self, what: &'static str) -> Result<u64> {
        self.decoder.varint64(what).map_err(|e| e.at(self.start))
    }

    fn fixed64(&mut self, what: &'static str) -> Result<u64> {
        self.decoder.fixed64(what).map_err(|e| e.at(self.start))
    }

    fn only_byte(&self) -> Result<u8> {
        match *self.rest() {
            [b] => Ok(b),
            _ => Err(FormatError::corruption(format!("{}: expected one byte", self.what), self.start)),
        }
    }

    /// The pieces of the table `own`: each of its files once.
    fn pieces(&mut self, own: u64) -> Result<Vec<TablePiece>> {
        let (mut pieces, mut numbers) = (Vec::new(), std::collections::HashSet::from([own]));
        while !self.rest().is_empty() {
            let number = file_number(&mut self.decoder).map_err(|e| e.at(self.start))?;
            let size = self.varint64("new file: size of a piece")?;
            let live = self.varint64("new file: live bytes of a piece")?;
            if live > size {
                let what = format!("new file: {live} bytes of piece {number} are live, and it has {size}");
                return Err(FormatError::corruption(what, self.start));
            }
            if !numbers.insert(number) {
                return Err(FormatError::corruption(format!("new file: piece {number} is named twice"), self.start));
            }
            if pieces.len() == PIECES_MAX {
                let what = format!("new file: table {own} has more than {PIECES_MAX} pieces");
                return Err(FormatError::corruption(what, self.start));
            }
            pieces.push(TablePiece { number, size, live, path_id: 0 });
        }
        if pieces.is_empty() {
            return Err(FormatError::corruption(format!("new file: table {own} has no pieces"), self.start));
        }
        Ok(pieces)
    }

    fn text(&self) -> Result<String> {
        utf8(self.rest(), self.what, self.start)
    }
}

fn text(d: &mut Decoder<'_>, what: &'static str) -> Result<String> {
    nested(d, what)?.text()
}

fn utf8(bytes: &[u8], what: &'static str, at: u64) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(s) => Ok(s.to_owned()),
        Err(_) => Err(FormatError::corruption(format!("{what} is not UTF-8"), at)),
    }
}

fn level(d: &mut Decoder<'_>) -> Result<u32> {
    let at = d.offset();
    match d.varint32("version edit: level")? {
        level if level < MAX_LEVELS => Ok(level),
        level => Err(FormatError::corruption(format!("version edit: level {level} is not below {MAX_LEVELS}"), at)),
    }
}

fn file_number(d: &mut Decoder<'_>) -> Result<u64> {
    let at = d.offset();
    match d.varint64("version edit: file number")? {
        n if n <= MAX_FILE_NUMBER => Ok(n),
        n => Err(FormatError::corruption(format!("version edit: file number {n} is over the limit of 2^62 - 1"), at)),
    }
}

fn path_id(id: u32, at: u64) -> Result<u32> {
    if id <= u32::from(MAX_PATH_ID) {
        Ok(id)
    } else {
        Err(FormatError::corruption(format!("new file: path id {id} is over {MAX_PATH_ID}"), at))
    }
}

/// A file's boundary or a compaction cursor. A boundary that a range tombstone gives a file may have a type that no
/// entry has: RocksDB's `kTypeMaxValid`, one more than the largest type that its version knows (0x1a in 9 to 11), which
/// its truncated tombstones use. So any type up to `kMaxValue` counts as sound here.
fn internal_key(d: &mut Decoder<'_>, what: &'static str) -> Result<InternalKey> {
    let at = d.offset();
    let bytes = d.length_prefixed(what)?;
    if bytes.len() < key::TAG_LEN {
        return Err(FormatError::corruption(format!("{what}: internal key shorter than eight bytes"), at));
    }
    match key::tag(bytes) as u8 {
        t if t <= ValueType::Max as u8 => Ok(InternalKey::from_encoded(bytes)),
        t => Err(FormatError::corruption(format!("{what}: internal key has unknown value type {t:#x}"), at)),
    }
}

fn wal_addition(d: &mut Decoder<'_>) -> Result<(u64, Option<u64>)> {
    let number = d.varint64("WAL addition: number")?;
    let mut synced_size = None;
    loop {
        let at = d.offset();
        match d.varint32("WAL addition: tag")? {
            wal_tag::TERMINATE => return Ok((number, synced_size)),
            wal_tag::SYNCED_SIZE => synced_size = Some(d.varint64("WAL addition: synced size")?),
            t => return Err(FormatError::corruption(format!("WAL addition: unknown tag {t}"), at)),
        }
    }
}

/// Skips a blob file record: numbers, byte strings, then custom fields up to tag 0 (RocksDB
/// `db/blob/blob_file_addition.cc`, `blob_file_garbage.cc`). It has no length of its own.
fn skip_blob_record(d: &mut Decoder<'_>, numbers: usize, strings: usize) -> Result<()> {
    for _ in 0..numbers {
        d.varint64("blob file record")?;
    }
    for _ in 0..strings {
        d.length_prefixed("blob file record")?;
    }
    while d.varint32("blob file record: custom tag")? != 0 {
        d.length_prefixed("blob file record: custom field")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
