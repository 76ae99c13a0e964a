//! What the calls of [`crate::store`] take.

/// What becomes of a value in a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It stays.
    All,
    /// It goes.
    Nothing,
    /// What comes after so many of its bytes stays.
    After(usize),
}

/// A compaction filter: says what becomes of a value.
pub type Filter = fn(value: &[u8]) -> Kept;

/// An update. Column families go by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A new value.
    Put(String, Vec<u8>, Vec<u8>),
    /// An operand.
    Merge(String, Vec<u8>, Vec<u8>),
    /// Deletes a key.
    Delete(String, Vec<u8>),
    /// Deletes a key that was put once.
    SingleDelete(String, Vec<u8>),
    /// Deletes from the one key to before the other.
    DeleteRange(String, Vec<u8>, Vec<u8>),
    /// Goes into the WAL and is no data.
    LogData(Vec<u8>),
}

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct WriteHow {
    pub sync: bool,
    pub disable_wal: bool,
    pub no_slowdown: bool,
    pub low_pri: bool,
}

/// How an iterator looks, or a lookup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// The number of a snapshot; none for the present.
    pub snapshot: Option<u8>,
    /// Nothing before this key.
    pub lower: Option<Vec<u8>>,
    /// Nothing from this key on.
    pub upper: Option<Vec<u8>>,
    /// In the order of all keys, whatever filters know of prefixes.
    pub total_order: bool,
    /// Only keys with the prefix of the seek's target.
    pub same_prefix: bool,
    /// Filters are asked where that changes nothing; total order where the library has no such mode.
    pub auto_prefix: bool,
    /// Bytes read ahead.
    pub readahead: usize,
}

/// A move of an iterator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Go {
    First,
    Last,
    Seek(Vec<u8>),
    SeekForPrev(Vec<u8>),
    Next,
    Prev,
}

/// How a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// As usual.
    Plain,
    /// With a time to live of so many seconds.
    Ttl(i32),
    /// For reading only.
    ReadOnly,
}

/// How a range is compacted by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactHow {
    /// RocksDB's number for the deepest level: 0 leaves it, 1 rewrites it where there is a filter, 2 rewrites it, 3
    /// does so with what this call has not made.
    pub bottommost: u8,
    /// No other compaction runs meanwhile.
    pub exclusive: bool,
    /// The output goes to the first level that can take it.
    pub change_level: bool,
}
