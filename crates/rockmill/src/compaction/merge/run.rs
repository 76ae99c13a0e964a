//! Runs: the sorted inputs of a merge.

use std::path::Path;

use rockmill_format::InternalKeyComparator;
use rockmill_format::block::BlockEntries;
use rockmill_format::key::InternalKey;

use super::feed::BlockFeed;
use super::{Heads, Run};
use crate::error::Result;
use crate::iter::InternalIterator;

/// A run of tables, over the blocks that a feed gives one after another.
pub struct TableRun<F> {
    feed: F,
    entries: BlockEntries,
    /// The current entry's place in `entries`; behind its last at the end of the run.
    at: usize,
}

impl<F: BlockFeed> TableRun<F> {
    /// The entries that `feed` gives, from user key `begin` on.
    pub fn new(feed: F, begin: Option<&[u8]>, heads: Heads, cmp: &InternalKeyComparator) -> Result<Self> {
        let mut new = Self { feed, entries: BlockEntries::new(heads.skip()), at: 0 };
        new.more()?;
        if let Some(begin) = begin.map(InternalKey::min_possible) {
            // The first block begins before; what is not wanted of it is not much.
            while new.valid() && cmp.compare(new.key(), begin.as_bytes()).is_lt() {
                new.advance()?;
            }
        }
        Ok(new)
    }

    /// The next entries of the block, or of the next block that has any.
    #[cold]
    fn more(&mut self) -> Result<()> {
        self.at = 0;
        loop {
            if self.entries.fill(self.feed.data()).map_err(|e| self.feed.error(&e))? {
                return Ok(());
            }
            let Some((layout, kind)) = self.feed.next_block()? else { return Ok(()) };
            self.entries.reset(layout, kind);
        }
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
    fn head(&self, _: Heads) -> u64 {
        self.entries.head(self.at)
    }

    fn file(&self) -> Option<&Path> {
        self.feed.file()
    }
}

/// A run behind the general iterator: a memtable.
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
