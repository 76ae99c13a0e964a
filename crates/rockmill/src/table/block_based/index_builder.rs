//! Builds a table's index: separators between data blocks, then one block, or partitions and an index over them.
//!
//! RocksDB decides late whether an index stores user keys or internal keys: one pair of neighbouring blocks that split
//! the versions of a user key makes all of it store internal keys. So entries are gathered first and encoded at the
//! end.

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions};
use rockmill_format::footer::BlockHandle;
use rockmill_format::{InternalKeyComparator, key};

use super::builder::FlushPolicy;
use super::settings::BlockBasedSettings;
use crate::error::Result;

/// Gathers index entries; see the module's description.
pub(super) struct IndexBuilder {
    restart_interval: usize,
    /// Separators as internal keys, one after another.
    separators: Vec<u8>,
    ends: Vec<usize>,
    handles: Vec<BlockHandle>,
    /// A user key spans two blocks: separators keep their tag.
    internal_keys: bool,
    separator: Vec<u8>,
    partitions: Option<Partitions>,
}

/// Where partitions are cut.
struct Partitions {
    policy: FlushPolicy,
    /// The current partition as it would be written, to know its size.
    current: BlockBuilder,
    /// First entry of the current partition.
    start: usize,
    /// First entries of all partitions but the first.
    cuts: Vec<usize>,
    /// The filter builder wants the current partition to end.
    cut_requested: bool,
    /// A partition ended, which the filter builder has not followed yet.
    filter_cut: bool,
}

/// What was written.
pub(super) struct FinishedIndex {
    /// The index block, or the index over partitions.
    pub handle: BlockHandle,
    /// Uncompressed bytes of all its blocks.
    pub size: u64,
    /// Number of partitions; 0 without.
    pub partitions: u64,
    /// Uncompressed bytes of the index over partitions; 0 without.
    pub top_level_size: u64,
    /// Separators are user keys.
    pub user_keys: bool,
}

impl IndexBuilder {
    pub fn new(settings: &BlockBasedSettings) -> Self {
        let restart_interval = settings.index_block_restart_interval;
        Self {
            restart_interval,
            separators: Vec::new(),
            ends: Vec::new(),
            handles: Vec::new(),
            internal_keys: false,
            separator: Vec::new(),
            partitions: settings.two_level_index.then(|| Partitions {
                policy: FlushPolicy::new(settings.metadata_block_size, settings.block_size_deviation),
                current: index_block(restart_interval),
                start: 0,
                cuts: Vec::new(),
                cut_requested: false,
                filter_cut: false,
            }),
        }
    }

    /// Adds the entry of the block at `handle`, which ends with `last`; `next` is the key after it.
    pub fn add(&mut self, last: &[u8], next: Option<&[u8]>, handle: BlockHandle, cmp: &InternalKeyComparator) {
        if let Some(p) = &mut self.partitions {
            // As RocksDB: the last entry never starts a partition.
            if next.is_some() && !p.current.is_empty() {
                let mut value = Vec::with_capacity(20);
                handle.encode(&mut value);
                if p.cut_requested || p.policy.ends_before(&p.current, last.len(), value.len()) {
                    p.start = self.handles.len();
                    p.cuts.push(p.start);
                    p.current.reset();
                    p.filter_cut = true;
                }
            }
            if p.current.is_empty() {
                p.cut_requested = false;
            }
        }
        self.separator.clear();
        self.separator.extend_from_slice(last);
        let mut now_internal = false;
        if let Some(next) = next {
            cmp.find_shortest_separator(&mut self.separator, next);
            let splits = cmp.compare_user(key::user_key(last), key::user_key(next)).is_eq();
            now_internal = splits && !self.internal_keys;
            self.internal_keys |= splits;
        }
        self.separators.extend_from_slice(&self.separator);
        self.ends.push(self.separators.len());
        self.handles.push(handle);
        if let Some(mut p) = self.partitions.take() {
            if now_internal {
                // The sizes so far were those of user keys.
                p.current.reset();
                for i in p.start..self.handles.len() {
                    self.encode_entry(&mut p.current, p.start, i);
                }
            } else {
                self.encode_entry(&mut p.current, p.start, self.handles.len() - 1);
            }
            self.partitions = Some(p);
        }
    }

    /// Ends the current partition before the next entry, if it has one.
    pub fn request_cut(&mut self) {
        if let Some(p) = &mut self.partitions {
            p.cut_requested = true;
        }
    }

    /// True once for each partition that ended: the filter's partition ends with it.
    pub fn take_filter_cut(&mut self) -> bool {
        self.partitions.as_mut().is_some_and(|p| std::mem::take(&mut p.filter_cut))
    }

    /// The separator added last, an internal key; empty before the first.
    pub fn last_separator(&self) -> &[u8] {
        self.handles.len().checked_sub(1).map_or(&[], |last| self.separator(last))
    }

    /// A separator as the index stores it, now that it has all of them.
    pub fn as_stored<'s>(&self, separator: &'s [u8]) -> &'s [u8] {
        if self.internal_keys { separator } else { key::user_key(separator) }
    }

    fn separator(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.separators[start..self.ends[i]]
    }

    /// Appends entry `i` to `block`, whose first entry is `start`.
    fn encode_entry(&self, block: &mut BlockBuilder, start: usize, i: usize) {
        let previous = (i > start).then(|| self.handles[i - 1]);
        add_entry(block, self.stored(i), self.handles[i], previous);
    }

    /// Separator `i` as the index stores it.
    fn stored(&self, i: usize) -> &[u8] {
        self.as_stored(self.separator(i))
    }

    /// Writes all blocks with `write`.
    pub fn finish(&self, mut write: impl FnMut(&[u8]) -> Result<BlockHandle>) -> Result<FinishedIndex> {
        let count = self.handles.len();
        let mut block = index_block(self.restart_interval);
        let mut finished = FinishedIndex {
            handle: BlockHandle::default(),
            size: 0,
            partitions: 0,
            top_level_size: 0,
            user_keys: !self.internal_keys,
        };
        let Some(p) = &self.partitions else {
            for i in 0..count {
                self.encode_entry(&mut block, 0, i);
            }
            let contents = block.finish();
            finished.size = contents.len() as u64;
            finished.handle = write(contents)?;
            return Ok(finished);
        };
        let mut top = index_block(self.restart_interval);
        let mut previous = None;
        let mut start = 0;
        for &end in p.cuts.iter().chain((count > 0).then_some(&count)) {
            block.reset();
            for i in start..end {
                self.encode_entry(&mut block, start, i);
            }
            let contents = block.finish();
            finished.size += contents.len() as u64;
            finished.partitions += 1;
            let handle = write(contents)?;
            add_entry(&mut top, self.stored(end - 1), handle, previous);
            previous = Some(handle);
            start = end;
        }
        let contents = top.finish();
        finished.top_level_size = contents.len() as u64;
        finished.size += finished.top_level_size;
        finished.handle = write(contents)?;
        Ok(finished)
    }
}

pub(super) fn index_block(restart_interval: usize) -> BlockBuilder {
    BlockBuilder::new(BlockBuilderOptions {
        restart_interval,
        value_delta_encoding: true,
        ..BlockBuilderOptions::default()
    })
}

pub(super) fn add_entry(block: &mut BlockBuilder, key: &[u8], handle: BlockHandle, previous: Option<BlockHandle>) {
    let mut value = Vec::with_capacity(20);
    handle.encode(&mut value);
    match previous {
        Some(previous) => {
            let mut delta = Vec::with_capacity(10);
            handle.encode_size_delta(&previous, &mut delta);
            block.add(key, &value, Some(&delta));
        }
        None => block.add(key, &value, None),
    }
}
