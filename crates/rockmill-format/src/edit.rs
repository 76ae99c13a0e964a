//! Version edits: the records of a MANIFEST (RocksDB `db/version_edit.h`).

use crate::error::Result;
use crate::key::{InternalKey, SequenceNumber};

/// A table file as a version edit describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileEntry {
    /// File number: the table is `<number>.sst`.
    pub number: u64,
    /// Index into the database's paths; only 0 is supported.
    pub path_id: u32,
    /// Size in bytes.
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
    /// Larger numbers are newer L0 files (RocksDB 7.10 and newer); 0 unknown, `u64::MAX - n` reserved as in RocksDB.
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
    /// WALs tracked in the MANIFEST: (number, synced size if known).
    pub wal_additions: Vec<(u64, Option<u64>)>,
    /// WALs below this number are no longer tracked.
    pub wal_deletions: Option<u64>,
    /// Persist user-defined timestamps.
    pub persist_user_defined_timestamps: Option<bool>,
    /// Any blob file tag was present (unsupported, refused by the store with the file's name).
    pub has_blob_files: bool,
    /// Subcompaction progress record (RocksDB 10.6 and newer) was present; ignored.
    pub has_subcompaction_progress: bool,
}

impl VersionEdit {
    /// The record's bytes, with the tags RocksDB writes.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }

    /// Decodes a record. Unknown tags that carry RocksDB's safe-to-ignore bit are skipped; others are an error that
    /// names the tag.
    pub fn decode(record: &[u8]) -> Result<Self> {
        let _ = record;
        todo!()
    }
}
