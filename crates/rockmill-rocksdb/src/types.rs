//! The parameters of the calls of [`crate::store`].

/// A compaction filter's decision about a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It stays.
    All,
    /// It goes.
    Nothing,
    /// The value without this many bytes at its start remains.
    After(usize),
}

/// A compaction filter: decides about a value.
pub type Filter = fn(value: &[u8]) -> Kept;

/// An update. Column families are identified by name.
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
    /// Deletes the keys from the first (inclusive) to the second (exclusive).
    DeleteRange(String, Vec<u8>, Vec<u8>),
    /// Is written to the WAL and is not data.
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

/// Options of an iterator or of a lookup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// The number of a snapshot; `None` for the current state.
    pub snapshot: Option<u8>,
    /// Lower bound: no key before this one.
    pub lower: Option<Vec<u8>>,
    /// Upper bound: no key at or after this one.
    pub upper: Option<Vec<u8>>,
    /// Use the order of all keys, regardless of prefix filters.
    pub total_order: bool,
    /// Only keys with the prefix of the seek's target.
    pub same_prefix: bool,
    /// Use filters if that does not change the result; total order if the library has no such mode.
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
    /// With a time to live of this many seconds.
    Ttl(i32),
    /// For reading only.
    ReadOnly,
}

/// How a range is compacted manually.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactHow {
    /// RocksDB's number for the deepest level: 0 skips it, 1 rewrites it if there is a filter, 2 rewrites it, 3
    /// rewrites what this call has not written itself.
    pub bottommost: u8,
    /// No other compaction runs at the same time.
    pub exclusive: bool,
    /// The output goes to the first level that can hold it.
    pub change_level: bool,
}
