//! The iterator over internal entries that memtables, tables, levels and merges all implement.

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
/// A fresh iterator is not valid. A failed step makes it invalid and `status` says why. `key` and `value` are read
/// only while `valid`, and stay as they are until the next step.
pub trait InternalIterator: Send {
    /// True on an entry.
    fn valid(&self) -> bool;
    /// To the first entry.
    fn seek_to_first(&mut self);
    /// To the last entry.
    fn seek_to_last(&mut self);
    /// To the first entry at or after `target`, an encoded internal key.
    fn seek(&mut self, target: &[u8]);
    /// To the last entry at or before `target`.
    fn seek_for_prev(&mut self, target: &[u8]);
    /// [`Self::seek`], or `backward` [`Self::seek_for_prev`]. Where a block has to be read for it, it may be asked for
    /// instead: then this is called again when it was read.
    fn seek_together(&mut self, target: &[u8], backward: bool, _reads: &mut SeekReads) {
        if backward { self.seek_for_prev(target) } else { self.seek(target) }
    }
    /// Forward by one.
    fn next(&mut self);
    /// Back by one.
    fn prev(&mut self);
    /// The current internal key.
    fn key(&self) -> &[u8];
    /// The current value. Some iterators have it only after [`Self::prepare_value`].
    fn value(&self) -> &[u8];
    /// Makes the current value ready, where it is read when it is wanted (RocksDB's `PrepareValue`). False if that
    /// failed: the iterator is not valid any more, and `status` says why.
    fn prepare_value(&mut self) -> bool {
        true
    }
    /// The error that ended the iteration, if one did.
    fn status(&self) -> Result<()>;
    /// The file that the current entry is in, for messages about it; nothing for what is in memory.
    fn file(&self) -> Option<&Path> {
        None
    }
}

/// An iterator over nothing, with a status.
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
