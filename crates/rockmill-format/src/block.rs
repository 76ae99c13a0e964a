//! Key-value blocks: prefix-compressed entries, restart points, the optional hash index, and the key-value-separated
//! layout of RocksDB 11. Data, index, meta-index and range-deletion blocks all have this shape.

use crate::comparator::InternalKeyComparator;
use crate::error::Result;
use crate::key::SequenceNumber;

/// How a [`BlockBuilder`] lays out entries.
#[derive(Debug, Clone)]
pub struct BlockBuilderOptions {
    /// Entries between two restart points.
    pub restart_interval: usize,
    /// Store only the part of a key that differs from the one before.
    pub delta_encoding: bool,
    /// Index blocks of format_version 4 and newer: between restart points a handle is stored as its size's change.
    pub value_delta_encoding: bool,
    /// Entries per hash bucket of the data block hash index; `None` writes none.
    pub hash_index_util_ratio: Option<f64>,
}

/// Builds one block.
pub struct BlockBuilder {
    _private: (),
}

impl BlockBuilder {
    /// An empty block.
    pub fn new(options: BlockBuilderOptions) -> Self {
        let _ = options;
        todo!()
    }

    /// Appends an entry; keys come in order. `delta_value` replaces `value` between restart points when
    /// `value_delta_encoding` is on.
    pub fn add(&mut self, key: &[u8], value: &[u8], delta_value: Option<&[u8]>) {
        let _ = (key, value, delta_value);
        todo!()
    }

    /// Completes the block and gives its bytes; `reset` before the next use.
    pub fn finish(&mut self) -> &[u8] {
        todo!()
    }

    /// Starts an empty block, keeping the memory.
    pub fn reset(&mut self) {
        todo!()
    }

    /// Size in bytes if finished now.
    pub fn current_size_estimate(&self) -> usize {
        todo!()
    }

    /// Size in bytes if an entry of these lengths were added and the block finished.
    pub fn estimate_size_after(&self, key_len: usize, value_len: usize) -> usize {
        let _ = (key_len, value_len);
        todo!()
    }

    /// True when nothing was added since the last reset.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
}

/// What the entries of a block are, which decides how keys and values are decoded and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Internal keys, plain values. With `global_seqno`, every key's sequence number reads as that number
    /// (ingested files).
    Data {
        /// Overriding sequence number.
        global_seqno: Option<SequenceNumber>,
    },
    /// Index block: values are block handles.
    Index {
        /// Handles are delta-encoded between restart points (format_version 4 and newer).
        value_delta: bool,
        /// Keys are user keys without a tag (format_version 3 and newer, when the properties say so).
        user_keys: bool,
    },
    /// Plain bytewise keys (meta-index, properties).
    Meta,
}

/// Where the parts of a block are; found once per block, then every cursor over the block uses it.
#[derive(Debug, Clone, Copy)]
pub struct BlockLayout {
    _private: (),
}

impl BlockLayout {
    /// Reads the block's tail. Checks that the restart array lies inside the block.
    pub fn parse(data: &[u8]) -> Result<Self> {
        let _ = data;
        todo!()
    }

    /// Restart points in the block.
    pub fn num_restarts(&self) -> u32 {
        todo!()
    }
}

/// A position in one block. It owns only the current key; the block's bytes are passed to each call and must be the
/// same ones (a read buffer, a cached block), so that no block is copied to be read.
#[derive(Debug, Clone)]
pub struct BlockCursor {
    _private: (),
}

impl BlockCursor {
    /// A cursor that is not yet on an entry.
    pub fn new(layout: BlockLayout, kind: BlockKind) -> Self {
        let _ = (layout, kind);
        todo!()
    }

    /// Re-targets the cursor to another block, keeping the key buffer's memory.
    pub fn reset(&mut self, layout: BlockLayout, kind: BlockKind) {
        let _ = (layout, kind);
        todo!()
    }

    /// True on an entry.
    pub fn valid(&self) -> bool {
        todo!()
    }

    /// The current key: for data an internal key, for an index what the block stores (see [`BlockKind`]).
    pub fn key(&self) -> &[u8] {
        todo!()
    }

    /// The current value as stored. For index blocks use [`Self::handle`].
    pub fn value<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        let _ = data;
        todo!()
    }

    /// The current value's place in `data`, for a caller that pins the block.
    pub fn value_range(&self) -> std::ops::Range<usize> {
        todo!()
    }

    /// The current block handle of an index block, with the first internal key of that block where the index
    /// stores it (kBinarySearchWithFirstKey is decoded past, its key ignored).
    pub fn handle(&self) -> crate::footer::BlockHandle {
        todo!()
    }

    /// To the first entry.
    pub fn seek_to_first(&mut self, data: &[u8]) -> Result<()> {
        let _ = data;
        todo!()
    }

    /// To the last entry.
    pub fn seek_to_last(&mut self, data: &[u8]) -> Result<()> {
        let _ = data;
        todo!()
    }

    /// To the first entry at or after `target` (an encoded internal key; bytewise for `Meta`). For an index with
    /// `user_keys`, the entry's user key is compared with the target's.
    pub fn seek(&mut self, data: &[u8], target: &[u8], cmp: &InternalKeyComparator) -> Result<()> {
        let _ = (data, target, cmp);
        todo!()
    }

    /// To the last entry at or before `target`.
    pub fn seek_for_prev(&mut self, data: &[u8], target: &[u8], cmp: &InternalKeyComparator) -> Result<()> {
        let _ = (data, target, cmp);
        todo!()
    }

    /// Point lookup in a data block: like `seek`, but may use the hash index, and answers `false` when the block
    /// certainly does not hold the target's user key (then the cursor is not valid).
    pub fn seek_for_get(&mut self, data: &[u8], target: &[u8], cmp: &InternalKeyComparator) -> Result<bool> {
        let _ = (data, target, cmp);
        todo!()
    }

    /// To the next entry; past the last the cursor is no longer valid.
    pub fn next(&mut self, data: &[u8]) -> Result<()> {
        let _ = data;
        todo!()
    }

    /// To the entry before; before the first the cursor is no longer valid.
    pub fn prev(&mut self, data: &[u8]) -> Result<()> {
        let _ = data;
        todo!()
    }
}
