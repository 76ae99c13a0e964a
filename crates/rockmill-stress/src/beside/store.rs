//! The common interface of both stores.

use std::fmt;
use std::path::{Path, PathBuf};

use rockmill::ErrorKind;
use rockmill_rocksdb::store::{CompactHow, Go, Look, Op, WriteHow};

use crate::kinds::Kind;

/// A call that was refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// In which both must agree.
    pub kind: ErrorKind,
    /// In which they need not.
    pub text: String,
}

impl PartialEq for Refusal {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.kind, self.text)
    }
}

impl From<rockmill::Error> for Refusal {
    fn from(error: rockmill::Error) -> Self {
        Self { kind: error.kind(), text: error.message().to_owned() }
    }
}

/// The kinds, by the prefixes of RocksDB's messages.
const KINDS: [ErrorKind; 15] = [
    ErrorKind::NotFound,
    ErrorKind::Corruption,
    ErrorKind::NotSupported,
    ErrorKind::InvalidArgument,
    ErrorKind::IOError,
    ErrorKind::MergeInProgress,
    ErrorKind::Incomplete,
    ErrorKind::ShutdownInProgress,
    ErrorKind::TimedOut,
    ErrorKind::Aborted,
    ErrorKind::Busy,
    ErrorKind::Expired,
    ErrorKind::TryAgain,
    ErrorKind::CompactionTooLarge,
    ErrorKind::ColumnFamilyDropped,
];

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        let kind = KINDS.into_iter().find(|kind| text.starts_with(kind.prefix()));
        Self { kind: kind.unwrap_or(ErrorKind::Unknown), text }
    }
}

/// What a call says.
pub type Said<T> = Result<T, Refusal>;

/// A key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Batches of WALs: the sequence number of each, and its bytes.
pub type Batches = Vec<(u64, Vec<u8>)>;

/// An open database. Snapshots and iterators have numbers, column families names.
pub trait Store {
    /// Writes a batch.
    fn write(&mut self, how: WriteHow, ops: &[Op]) -> Said<()>;
    /// Several threads write, each its own batches.
    fn write_together(&mut self, writers: &[Vec<Vec<Op>>]) -> Said<()>;
    /// Looks a key up.
    fn get(&mut self, family: &str, key: &[u8], snapshot: Option<u8>) -> Said<Option<Vec<u8>>>;
    /// Looks keys up at once.
    fn multi_get(&mut self, keys: &[(String, Vec<u8>)], snapshot: Option<u8>) -> Vec<Said<Option<Vec<u8>>>>;
    /// Takes a snapshot.
    fn snapshot(&mut self, id: u8) -> Said<()>;
    /// Releases it.
    fn release(&mut self, id: u8) -> Said<()>;
    /// Opens an iterator.
    fn iterator(&mut self, id: u8, family: &str, look: &Look) -> Said<()>;
    /// Moves the iterator; an invalid iterator has no neighbours.
    fn go(&mut self, id: u8, to: &Go) -> Said<Option<Pair>>;
    /// Closes it.
    fn close(&mut self, id: u8);
    /// Flushes column families.
    fn flush(&mut self, families: &[String], wait: bool) -> Said<()>;
    /// Compacts a range by hand.
    fn compact(&mut self, family: &str, from: Option<&[u8]>, to: Option<&[u8]>, how: CompactHow) -> Said<()>;
    /// Changes an option of a column family.
    fn set_option(&mut self, family: &str, name: &str, value: &str) -> Said<()>;
    /// Changes an option of the database; `None` if the interface does not support it.
    fn set_db_option(&mut self, name: &str, value: &str) -> Said<Option<()>>;
    /// Writes an external table. Updates are in the order of the column family's kind, ranges first.
    fn write_table(&mut self, kind: Kind, path: &Path, ops: &[Op]) -> Said<()>;
    /// Takes tables in.
    fn ingest(&mut self, family: &str, files: &[PathBuf], moved: bool, behind: bool) -> Said<()>;
    /// Creates a column family.
    fn create(&mut self, name: &str, kind: Kind) -> Said<()>;
    /// Drops one.
    fn drop_family(&mut self, name: &str) -> Said<()>;
    /// The names of those that there are, in order.
    fn names(&mut self) -> Vec<String>;
    /// Hands the WAL's buffer on; and syncs.
    fn flush_wal(&mut self, sync: bool) -> Said<()>;
    /// The newest sequence number.
    fn latest_sequence(&mut self) -> u64;
    /// The batches after a sequence number, with what ended them.
    fn updates_since(&mut self, sequence: u64) -> Said<(Batches, Said<()>)>;
    /// A property's text.
    fn property(&mut self, family: &str, name: &str) -> Option<String>;
    /// Makes a checkpoint.
    fn checkpoint(&mut self, path: &Path, log_size: u64) -> Said<()>;
}
