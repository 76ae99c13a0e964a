//! How external files are ingested.

use std::path::PathBuf;

use crate::db::ColumnFamily;
use crate::options::setters::setters;

/// How external files are ingested (`rocksdb::IngestExternalFileOptions`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestExternalFileOptions {
    /// Give the files a second name (hard link) in the database instead of copying them, and remove the first name
    /// afterwards. Off by default.
    pub move_files: bool,
    /// As `move_files`, but the first name stays. The file must not be written to any more. Off by default.
    pub link_files: bool,
    /// With `move_files` or `link_files`: copy if the file system cannot link (another device). On by default.
    pub failed_move_fall_back_to_copy: bool,
    /// Snapshots taken before do not see the files' entries; without this option they may. On by default.
    pub snapshot_consistency: bool,
    /// The files' entries may be given a sequence number, which they need if they overlap data of the database. Without
    /// this option such files are refused. On by default.
    pub allow_global_seqno: bool,
    /// Memtables that the files overlap may be flushed, while all writers wait. Without this option such files are
    /// refused. On by default.
    pub allow_blocking_flush: bool,
    /// Put the files below everything else: keys that are in the database keep their value. Needs a database with the
    /// option `allow_ingest_behind`. Off by default.
    pub ingest_behind: bool,
    /// The files' values and merge operands end with the times of their writing (four bytes, little-endian, Unix time),
    /// as in a database with a time to live. Without this option, such a database takes only files that say so
    /// themselves, as those of [`SstFileWriter::create_with_ttl`](crate::SstFileWriter::create_with_ttl) do. Off by
    /// default.
    pub values_with_times: bool,
    /// Write sequence numbers into the files, as RocksDB before 5.16 needs it. Not supported: the MANIFEST has them.
    pub write_global_seqno: bool,
    /// Read and check every block of the files first. Without this option, damage is found when the block is read. Off
    /// by default.
    pub verify_checksums_before_ingest: bool,
    /// Refuse files that cannot go to the last level, with `TryAgain`. `ingest_behind` has precedence. Off by default.
    pub fail_if_not_bottommost_level: bool,
}

impl Default for IngestExternalFileOptions {
    fn default() -> Self {
        Self {
            move_files: false,
            link_files: false,
            failed_move_fall_back_to_copy: true,
            snapshot_consistency: true,
            allow_global_seqno: true,
            allow_blocking_flush: true,
            ingest_behind: false,
            values_with_times: false,
            write_global_seqno: false,
            verify_checksums_before_ingest: false,
            fail_if_not_bottommost_level: false,
        }
    }
}

setters! {
    impl IngestExternalFileOptions;

    set_move_files(v: bool) move_files;
    set_link_files(v: bool) link_files;
    set_failed_move_fall_back_to_copy(v: bool) failed_move_fall_back_to_copy;
    set_snapshot_consistency(v: bool) snapshot_consistency;
    set_values_with_times(v: bool) values_with_times;
    set_allow_global_seqno(v: bool) allow_global_seqno;
    set_allow_blocking_flush(v: bool) allow_blocking_flush;
    set_ingest_behind(v: bool) ingest_behind;
    set_write_global_seqno(v: bool) write_global_seqno;
    set_verify_checksums_before_ingest(v: bool) verify_checksums_before_ingest;
    set_fail_if_not_bottommost_level(v: bool) fail_if_not_bottommost_level;
}

/// What one column family gets of an ingestion into several (RocksDB's `IngestExternalFileArg`).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IngestExternalFileArg {
    /// The column family; each at most once in a call.
    pub column_family: ColumnFamily,
    /// Its files; of those that overlap, the oldest first.
    pub external_files: Vec<PathBuf>,
    /// How they are ingested.
    pub options: IngestExternalFileOptions,
}

impl IngestExternalFileArg {
    /// These files for this column family; of those that overlap, the oldest first.
    pub fn new(column_family: ColumnFamily, external_files: Vec<PathBuf>, options: IngestExternalFileOptions) -> Self {
        Self { column_family, external_files, options }
    }
}
