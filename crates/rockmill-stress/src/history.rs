//! A history: what is done with a database, as plain data.
//!
//! Keys, values, column families, snapshots and iterators have small numbers. Any subset of the steps of a history is a
//! history too: a step, or an update of a batch, whose contract would be broken is passed over
//! ([`Model::admit`](crate::model::Model::admit)). So a failing history can be shortened by leaving steps out.
//!
//! The text form has one step a line; `text` below writes and reads it.

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
    /// An operand, where the kind of the column family has them.
    Merge(Slot, Key, Value),
    /// Deletes a key.
    Delete(Slot, Key),
    /// Deletes a key that was put once.
    SingleDelete(Slot, Key),
    /// Deletes from the one key to before the other, whichever comes first.
    DeleteRange(Slot, Key, Key),
    /// Goes into the WAL and is no data.
    LogData(u32),
}

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    /// On the disk when it returns.
    pub sync: bool,
    /// Without the WAL.
    pub disable_wal: bool,
    /// Refused rather than delayed; it is then written again without this.
    pub no_slowdown: bool,
    /// Behind compactions.
    pub low_pri: bool,
    /// By the calls for one update, each on its own.
    pub alone: bool,
}

/// One of several threads that write at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writer {
    /// How it writes each of its batches.
    pub how: How,
    /// Of keys that are its own, three in a batch.
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
    /// Only keys that begin with so many bytes of this key.
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
    /// Deleted by the file; older than its other updates.
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
    /// What the OPTIONS file says, and after that the same configuration.
    Stored,
    /// The same configuration, after a repair of the directory.
    Repaired,
    /// First for reading only, then the same configuration.
    ReadOnly,
    /// Beside RocksDB, each store opens what the other one wrote; elsewhere the same configuration.
    Swapped,
}

/// One thing done with a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A batch.
    Write(How, Vec<Update>),
    /// Several threads at once.
    Together(Vec<Writer>),
    /// A lookup, in each way that there is.
    Get(Slot, Key, View),
    /// Lookups at once.
    MultiGet(View, Vec<(Slot, Key)>),
    /// A walk of an iterator.
    Walk(Slot, View, Bounds, Vec<Move>),
    /// All keys from this one on with the same prefix, where the column family has a prefix extractor.
    Prefix(Slot, Key),
    /// Everything, in both directions.
    Check(View),
    /// Takes a snapshot.
    Snapshot(u8),
    /// Looks at everything that it sees, and releases it.
    Release(u8),
    /// Opens an iterator that stays.
    Iterator(u8, Slot, Bounds),
    /// Moves an iterator that stayed.
    Move(u8, Vec<Move>),
    /// Closes it.
    Close(u8),
    /// Flushes column families, all when none is named; waits or not.
    Flush(Vec<Slot>, bool),
    /// A manual compaction; unbounded where a key is missing.
    Compact(Slot, Option<Key>, Option<Key>, Bottom, bool),
    /// A manual compaction whose output then changes its level.
    Refit(Slot),
    /// Waits until no background work is due.
    Wait,
    /// Changes an option of a column family.
    SetOptions(Slot, String, String),
    /// Changes an option of the database.
    SetDbOptions(String, String),
    /// Tables made outside come in, all or none; moved or copied.
    Ingest(bool, Vec<External>),
    /// A column family is exported and imported into a free slot, its tables moved or copied.
    Copy(Slot, Slot, bool),
    /// A checkpoint shows the same; with a flush or not.
    Checkpoint(bool),
    /// A backup, restored, shows the same; with a flush or not.
    Backup(bool),
    /// A secondary catches up and shows the same.
    Secondary,
    /// Creates a column family.
    Create(Slot, Kind),
    /// Drops one.
    Drop(Slot),
    /// Hands the WAL's buffer on; and syncs.
    FlushWal(bool),
    /// Remembers this moment for [`Step::Updates`].
    Mark,
    /// What the WALs say was written since the mark is what was written.
    Updates,
    /// Deletes the tables within a range, and then the range.
    DeleteFiles(Slot, Key, Key),
    /// Keeps files that are not needed, or deletes them again.
    KeepFiles(bool),
    /// Looks at properties, sizes and files.
    Inspect(Slot),
    /// Closes and opens.
    Reopen(Reopen),
    /// Beside RocksDB only: tables made outside come in behind all that is there.
    Behind(Vec<External>),
    /// Beside RocksDB only: a walk over the keys that share the prefix of what was sought.
    SamePrefix(Slot, View, Bounds, Vec<Move>),
    /// Beside RocksDB only: a call that must be refused, or not, by both; see `beside`.
    Wrong(u8),
    /// Beside RocksDB only, with a time to live: waits until all that is there has reached its age, and compacts it.
    Age,
}

/// Steps in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// What is done.
    pub steps: Vec<Step>,
}
