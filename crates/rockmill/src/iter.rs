//! The interface of iterators over internal entries, which memtables, tables, levels and merges implement.

pub mod get;
pub mod heap;
pub mod level;
pub mod merging;
pub mod prefix_seek;
pub mod seek_reads;

use std::path::Path;

use crate::error::Result;
use crate::iter::seek_reads::SeekReads;

/// Entries in internal-key order (RocksDB's `InternalIterator`).
///
/// A new iterator is not valid. A failed step makes it invalid, and `status` returns the error. `key` and `value` may
/// be called only while it is `valid`; they do not change until the next step.
pub trait InternalIterator: Send {
    /// True on an entry.
    fn valid(&self) -> bool;
    /// To the first entry.
    fn seek_to_first(&mut self);
    /// To the last entry.
    fn seek_to_last(&mut self);
    /// Moves to the first entry at or after `target`, an encoded internal key.
    fn seek(&mut self, target: &[u8]);
    /// Moves to the last entry at or before `target`.
    fn seek_for_prev(&mut self, target: &[u8]);
    /// [`Self::seek`], or with `backward` [`Self::seek_for_prev`]. If a block has to be read, the iterator may request
    /// it from `reads` instead; then this is called again after the read.
    fn seek_together(&mut self, target: &[u8], backward: bool, _reads: &mut SeekReads) {
        if backward { self.seek_for_prev(target) } else { self.seek(target) }
    }
    /// Forward by one.
    fn next(&mut self);
    /// Back by one.
    fn prev(&mut self);
    /// The current internal key.
    fn key(&self) -> &[u8];
    /// The current value. Some iterators provide it only after [`Self::prepare_value`].
    fn value(&self) -> &[u8];
    /// Loads the current value if values are read on demand (RocksDB's `PrepareValue`). False if that failed: the
    /// iterator is then invalid, and `status` returns the error.
    fn prepare_value(&mut self) -> bool {
        true
    }
    /// The error that ended the iteration, if one did.
    fn status(&self) -> Result<()>;
    /// The file of the current entry, for error messages; `None` for entries in memory.
    fn file(&self) -> Option<&Path> {
        None
    }
}

/// An empty iterator with a status.
pub struct EmptyIterator {
    status: Result<()>,
}

impl EmptyIterator {
    /// No entries, no error.
    pub fn new() -> Self {
        Self { status: Ok(()) }
    }

    /// No entries, because of this error.
    pub fn with_error(e: crate::error::Error) -> Self {
        Self { status: Err(e) }
    }
}

impl Default for EmptyIterator {
    fn default() -> Self {
        Self::new()
    }
}

impl InternalIterator for EmptyIterator {
    fn valid(&self) -> bool {
        false
    }
    fn seek_to_first(&mut self) {}
    fn seek_to_last(&mut self) {}
    fn seek(&mut self, _target: &[u8]) {}
    fn seek_for_prev(&mut self, _target: &[u8]) {}
    fn next(&mut self) {}
    fn prev(&mut self) {}
    fn key(&self) -> &[u8] {
        &[]
    }
    fn value(&self) -> &[u8] {
        &[]
    }
    fn status(&self) -> Result<()> {
        self.status.clone()
    }
}
