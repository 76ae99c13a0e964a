//! Runs: the sorted inputs of a merge.

use std::path::Path;

use rockmill_format::block::BlockEntries;
use rockmill_format::key::{InternalKey, user_key};
use rockmill_format::{FormatError, InternalKeyComparator};

use super::feed::BlockFeed;
use super::{KeyPrefixes, Run};
use crate::error::Result;
use crate::iter::InternalIterator;
use crate::table::WholeBlock;

/// A run of tables, over the blocks that a feed gives one after another.
pub struct TableRun<F> {
    feed: F,
    entries: BlockEntries,
    /// The current entry's position in `entries`; after its last at the end of the run.
    at: usize,
    /// It waits between two blocks.
    waiting: bool,
    /// It does so now.
    waits: bool,
}

impl<F: BlockFeed> TableRun<F> {
    /// The entries that `feed` gives, from user key `begin` on. `waiting`: it waits between two blocks, so that whole
    /// blocks can pass.
    pub fn new(
        feed: F,
        begin: Option<&[u8]>,
        prefixes: KeyPrefixes,
        cmp: &InternalKeyComparator,
        waiting: bool,
    ) -> Result<Self> {
        let entries = BlockEntries::new(prefixes.skip());
        let mut new = Self { feed, entries, at: 0, waiting: false, waits: false };
        new.more()?;
        if let Some(begin) = begin.map(InternalKey::min_possible) {
            // The first block may begin before that; few of its entries are unwanted.
            while new.valid() && cmp.compare(new.key(), begin.as_bytes()).is_lt() {
                new.advance()?;
            }
        }
        // Prefixes decide whether a block may pass, so they must exist.
        new.waiting = waiting && prefixes.skip().is_some();
        Ok(new)
    }

    /// The next entries of the block, or of the next block that has any.
    #[cold]
    fn more(&mut self) -> Result<()> {
        self.at = 0;
        if self.entries.fill(self.feed.data()).map_err(|e| self.feed.error(&e))? {
            return Ok(());
        }
        self.waits = self.waiting;
        if self.waits { Ok(()) } else { self.begin_block() }
    }

    /// The first entries of the next block that has any.
    fn begin_block(&mut self) -> Result<()> {
        while let Some((layout, kind)) = self.feed.next_block()? {
            self.entries.reset(layout, kind);
            if self.entries.fill(self.feed.data()).map_err(|e| self.feed.error(&e))? {
                break;
            }
        }
        Ok(())
    }
}

impl<F: BlockFeed> Run for TableRun<F> {
    #[inline]
    fn valid(&self) -> bool {
        self.at < self.entries.len()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        if self.at < self.entries.len() { Ok(()) } else { self.more() }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.entries.key(self.at)
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.feed.data().get(self.entries.value_range(self.at)).unwrap_or(&[])
    }

    #[inline]
    fn prefix(&self, prefixes: KeyPrefixes) -> u64 {
        if prefixes.are_hashed() { prefixes.of(user_key(self.key())) } else { self.entries.prefix(self.at) }
    }

    fn waits(&self) -> bool {
        self.waits
    }

    fn key_before(&self) -> &[u8] {
        self.entries.key_before()
    }

    fn next_block(&mut self) -> Result<()> {
        self.waits = false;
        self.begin_block()
    }

    fn fill_whole(&mut self, prefix: u64) -> bool {
        let below = |entries: &BlockEntries| entries.prefix(entries.len().saturating_sub(1)) < prefix;
        below(&self.entries) && self.entries.fill_whole(self.feed.data()) && below(&self.entries)
    }

    fn whole_block(&self) -> Option<WholeBlock<'_>> {
        let stored = self.feed.stored()?;
        Some(WholeBlock { entries: &self.entries, data: self.feed.data(), layout: self.entries.layout(), stored })
    }

    fn skip_block(&mut self) -> Result<()> {
        self.at = 0;
        // Nothing follows in the block; this keeps its last key.
        if self.entries.fill(self.feed.data()).map_err(|e| self.feed.error(&e))? {
            return Err(self.feed.error(&FormatError::corruption("block goes on where it ended", 0)));
        }
        self.waits = true;
        Ok(())
    }

    fn file(&self) -> Option<&Path> {
        self.feed.place().map(|(table, _)| table.path())
    }
}

/// A run over a general iterator: a memtable.
pub struct IteratorRun(Box<dyn InternalIterator>);

impl IteratorRun {
    /// All entries of `iter`.
    pub fn new(mut iter: Box<dyn InternalIterator>) -> Result<Self> {
        iter.seek_to_first();
        iter.status()?;
        Ok(Self(iter))
    }
}

impl Run for IteratorRun {
    #[inline]
    fn valid(&self) -> bool {
        self.0.valid()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.0.next();
        if self.0.valid() { Ok(()) } else { self.0.status() }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.0.key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.0.value()
    }
}
