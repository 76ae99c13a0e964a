//! A history: operations on a database, as plain data.
//!
//! Keys, values, column families, snapshots and iterators have small numbers. Any subset of the steps of a history is a
//! history too: a step, or an update of a batch, that would violate a contract is skipped
//! ([`Model::admit`](crate::model::Model::admit)). So a failing history can be shortened by omitting steps.
//!
//! The text form has one step per line; `text` below writes and reads it.

mod text;

use crate::kinds::{Kind, Slot, Value};

pub use text::ParseError;

/// Number of a key, see [`crate::kinds::key_bytes`].
pub type Key = u16;

/// An update of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// A new value.
    Put(Slot, Key, Value),
    /// A merge operand, if the column family's kind has them.
    Merge(Slot, Key, Value),
    /// Deletes a key.
    Delete(Slot, Key),
    /// Deletes a key that was put once.
    SingleDelete(Slot, Key),
    /// Deletes from the smaller key up to, not including, the larger one.
    DeleteRange(Slot, Key, Key),
    /// Log data: goes into the WAL, but is not an entry.
    LogData(u32),
}

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    /// On the disk when it returns.
    pub sync: bool,
    /// Without the WAL.
    pub disable_wal: bool,
    /// Prefer an error to a delay; after an error, the batch is written again without this.
    pub no_slowdown: bool,
    /// Behind compactions.
    pub low_pri: bool,
    /// With the calls for single updates, one by one.
    pub alone: bool,
}

/// One of several threads that write at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writer {
    /// How it writes each of its batches.
    pub how: How,
    /// Updates of its own keys, three in a batch.
    pub updates: Vec<Update>,
}

/// Where a read looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// A snapshot; `None` is the present.
    pub snapshot: Option<u8>,
}

/// What an iterator is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Nothing before this key.
    pub lower: Option<Key>,
    /// Nothing from this key on.
    pub upper: Option<Key>,
    /// Only keys that begin with this many bytes of this key.
    pub prefix: Option<(Key, u8)>,
    /// `auto_prefix_mode` in place of `total_order_seek`.
    pub auto_prefix: bool,
    /// Bytes read ahead.
    pub readahead: u32,
}

/// A move of an iterator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// To the first key.
    First,
    /// To the last key.
    Last,
    /// To this key or the next.
    Seek(Key),
    /// To this key or the one before.
    SeekForPrev(Key),
    /// Forward so often.
    Next(u8),
    /// Backward so often.
    Prev(u8),
}

/// A table made outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    /// Column family that it goes to.
    pub slot: Slot,
    /// A range that the file deletes; older than its other updates.
    pub range: Option<(Key, Key)>,
    /// Updates of this column family, of different keys: no single deletes and no ranges.
    pub updates: Vec<Update>,
}

/// What a manual compaction does with the deepest level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bottom {
    /// As the store likes.
    #[default]
    Filtered,
    /// Leaves it.
    Skip,
    /// Rewrites it.
    Force,
    /// Rewrites what this compaction has not made.
    ForceOptimized,
}

/// What is opened after a close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopen {
    /// The same configuration.
    Same,
    /// The next of the run's configurations.
    Next,
    /// With the options of the OPTIONS file, and then with the same configuration.
    Stored,
    /// With the same configuration, after a repair of the directory.
    Repaired,
    /// First read-only, then with the same configuration.
    ReadOnly,
    /// With RocksDB, each store opens the other's directory; otherwise with the same configuration.
    Swapped,
}

/// One thing done with a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A batch.
    Write(How, Vec<Update>),
    /// Several threads at once.
    Together(Vec<Writer>),
    /// A lookup, in every way.
    Get(Slot, Key, View),
    /// Lookups at once.
    MultiGet(View, Vec<(Slot, Key)>),
    /// A walk of an iterator.
    Walk(Slot, View, Bounds, Vec<Move>),
    /// All keys from this one on with the same prefix, if the column family has a prefix extractor.
    Prefix(Slot, Key),
    /// Everything, in both directions.
    Check(View),
    /// Takes a snapshot.
    Snapshot(u8),
    /// Reads everything that it sees, and releases it.
    Release(u8),
    /// Opens an iterator that stays.
    Iterator(u8, Slot, Bounds),
    /// Moves an iterator that stayed.
    Move(u8, Vec<Move>),
    /// Closes it.
    Close(u8),
    /// Flushes column families, all when none is named; waits or not.
    Flush(Vec<Slot>, bool),
    /// A manual compaction; unbounded if a key is missing.
    Compact(Slot, Option<Key>, Option<Key>, Bottom, bool),
    /// A manual compaction whose output then changes its level.
    Refit(Slot),
    /// Waits until no background work is due.
    Wait,
    /// Changes an option of a column family.
    SetOptions(Slot, String, String),
    /// Changes an option of the database.
    SetDbOptions(String, String),
    /// Ingests external tables, all or none; moved or copied.
    Ingest(bool, Vec<External>),
    /// Exports a column family and imports it into a free slot, with its tables moved or copied.
    Copy(Slot, Slot, bool),
    /// Checks that a checkpoint has the same contents; with a flush or not.
    Checkpoint(bool),
    /// Checks that a restored backup has the same contents; with a flush or not.
    Backup(bool),
    /// Checks that a secondary catches up and has the same contents.
    Secondary,
    /// Creates a column family.
    Create(Slot, Kind),
    /// Drops one.
    Drop(Slot),
    /// Hands the WAL's buffer on; and syncs.
    FlushWal(bool),
    /// Remembers this moment for [`Step::Updates`].
    Mark,
    /// Checks the updates since the mark according to the WALs.
    Updates,
    /// Deletes the tables within a range, and then the range.
    DeleteFiles(Slot, Key, Key),
    /// Keeps files that are not needed, or deletes them again.
    KeepFiles(bool),
    /// Looks at properties, sizes and files.
    Inspect(Slot),
    /// Closes and opens.
    Reopen(Reopen),
    /// With RocksDB only: ingests external tables behind everything.
    Behind(Vec<External>),
    /// With RocksDB only: a walk over the keys that share the prefix of the seek target.
    SamePrefix(Slot, View, Bounds, Vec<Move>),
    /// With RocksDB only: a call that both must refuse, or neither; see `beside`.
    Wrong(u8),
    /// With RocksDB only, with a time to live: waits until all entries have expired, and compacts them.
    Age,
}

/// Steps in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// What is done.
    pub steps: Vec<Step>,
}
