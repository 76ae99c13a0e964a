//! Where a table's index and filter are: with the open table, or in the block cache (`cache_index_and_filter_blocks`),
//! which then bounds them together with data blocks.
//!
//! In the cache the two are one entry, as the table's reader uses them: separators and positions in arrays, filters
//! parsed. Operations that need them take them from there, or read them again from the file's end. Entries in use are
//! pinned like any block; an iterator keeps them as long as it is in the table.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use super::block_places::BlockPlaces;
use super::filter::Filter;
use super::index::TableIndex;
use super::open;
use super::reader::BlockBasedTable;
use crate::error::Result;
use crate::statistics::{MaybeStatistics, Ticker};
use crate::table::cache::{BlockCache, CachedBlock, Priority};
use crate::table::options::{MetaCaching, OnDemand};

/// A table's index and filter.
#[derive(Debug, Default)]
pub(in crate::table) struct TableMeta {
    pub(super) index: TableIndex,
    pub(super) filter: Filter,
}

impl TableMeta {
    pub fn memory_usage(&self) -> usize {
        self.index.memory_usage() + self.filter.memory_usage()
    }
}

/// See the module's description.
pub(super) enum MetaPlace {
    Here(TableMeta),
    InCache {
        priority: Priority,
        /// Kept in the cache as long as the table is open.
        pinned: Option<Arc<CachedBlock>>,
    },
}

/// Index and filter of an open table in the cache, if they are there. They are removed with the table: those of tables
/// that were compacted away were used as often as any, and would stay longer than blocks that are read once.
#[derive(Debug)]
pub(super) struct CachedMeta {
    cache: Arc<BlockCache>,
    id: u64,
    priority: Priority,
}

impl Drop for CachedMeta {
    fn drop(&mut self) {
        self.cache.remove_meta(self.id, self.priority);
    }
}

/// Index and filter for one operation.
pub(super) enum MetaRef<'a> {
    Here(&'a TableMeta),
    Cached(Arc<CachedBlock>),
    /// Read for this operation alone.
    Loaded(Box<TableMeta>),
}

impl Deref for MetaRef<'_> {
    type Target = TableMeta;

    #[inline]
    fn deref(&self) -> &TableMeta {
        match self {
            Self::Here(meta) => meta,
            Self::Loaded(meta) => meta,
            Self::Cached(block) => of(block),
        }
    }
}

/// Index and filter for as long as an iterator lives.
#[derive(Debug, Default)]
pub(super) enum MetaHold {
    /// Not asked for yet.
    #[default]
    Nothing,
    /// The table has them.
    Table,
    Cached(Arc<CachedBlock>),
    Loaded(Box<TableMeta>),
}

impl From<MetaRef<'_>> for MetaHold {
    fn from(meta: MetaRef<'_>) -> Self {
        match meta {
            MetaRef::Here(_) => Self::Table,
            MetaRef::Cached(block) => Self::Cached(block),
            MetaRef::Loaded(meta) => Self::Loaded(meta),
        }
    }
}

/// What an iterator without an index stands in.
static NO_INDEX: LazyLock<TableIndex> = LazyLock::new(TableIndex::default);

impl MetaHold {
    /// Takes hold of them; a second call does nothing.
    #[inline]
    pub fn take(&mut self, table: &BlockBasedTable, cache_only: bool, fill: bool) -> Result<()> {
        if matches!(self, Self::Nothing) {
            *self = table.meta(cache_only, fill)?.into();
        }
        Ok(())
    }

    /// The index; an empty one while nothing is held.
    #[inline]
    pub fn index<'a>(&'a self, table: &'a BlockBasedTable) -> &'a TableIndex {
        match (self, &table.meta) {
            (Self::Table, MetaPlace::Here(meta)) => &meta.index,
            (Self::Table, MetaPlace::InCache { pinned: Some(block), .. }) | (Self::Cached(block), _) => {
                &of(block).index
            }
            (Self::Loaded(meta), _) => &meta.index,
            (Self::Nothing | Self::Table, _) => &NO_INDEX,
        }
    }
}

/// The index and filter in a cache's entry.
#[inline]
pub(super) fn of(block: &CachedBlock) -> &TableMeta {
    match block.meta() {
        Some(meta) => meta,
        None => unreachable!("an entry under a key for index and filter is one"),
    }
}

impl BlockBasedTable {
    /// Index and filter. `cache_only` forbids reading them, `fill` keeps in the cache what was read.
    #[inline]
    pub(super) fn meta(&self, cache_only: bool, fill: bool) -> Result<MetaRef<'_>> {
        match &self.meta {
            MetaPlace::Here(meta) => Ok(MetaRef::Here(meta)),
            MetaPlace::InCache { pinned: Some(block), .. } => Ok(MetaRef::Here(of(block))),
            MetaPlace::InCache { pinned: None, priority } => self.cached_meta(*priority, cache_only, fill),
        }
    }

    fn cached_meta(&self, priority: Priority, cache_only: bool, fill: bool) -> Result<MetaRef<'_>> {
        if let Some((cache, id)) = &self.cache
            && let Some(block) = cache.get_meta(*id, priority)
        {
            self.count_meta(of(&block), Ticker::BlockCacheIndexHit, Ticker::BlockCacheFilterHit);
            return Ok(MetaRef::Cached(block));
        }
        if cache_only {
            return Err(self.not_in_cache(self.index_handle));
        }
        let meta = open::load_meta(self)?;
        self.count_meta(&meta, Ticker::BlockCacheIndexMiss, Ticker::BlockCacheFilterMiss);
        if !fill {
            return Ok(MetaRef::Loaded(Box::new(meta)));
        }
        self.insert_meta(meta, priority).map(MetaRef::Cached)
    }

    fn insert_meta(&self, meta: TableMeta, priority: Priority) -> Result<Arc<CachedBlock>> {
        self.count_meta(&meta, Ticker::BlockCacheIndexAdd, Ticker::BlockCacheFilterAdd);
        self.statistics().add(Ticker::BlockCacheIndexBytesInsert, meta.index.memory_usage() as u64);
        self.statistics().add(Ticker::BlockCacheFilterBytesInsert, meta.filter.memory_usage() as u64);
        let block = Arc::new(CachedBlock::of_meta(meta));
        if let Some((cache, id)) = &self.cache {
            cache.insert_meta(*id, Arc::clone(&block), priority)?;
        }
        Ok(block)
    }

    fn count_meta(&self, meta: &TableMeta, index: Ticker, filter: Ticker) {
        self.statistics().add(index, 1);
        if !matches!(meta.filter, Filter::None) {
            self.statistics().add(filter, 1);
        }
    }

    /// True where neither index nor filter stays in memory as long as the table is open.
    pub(in crate::table) fn leaves_meta_to_cache(&self) -> bool {
        matches!(self.meta, MetaPlace::InCache { pinned: None, .. })
    }

    /// Moves index and filter, which opening has read, to the cache, if the table has one and its options want that. If
    /// only scans need them, they are not put there until one does: jobs open every table that they write, and indexes
    /// that nobody asks for would push out blocks that are read, or take the memory.
    pub(super) fn place_meta(&mut self, how: MetaCaching) -> Result<()> {
        let on_demand = match how.on_demand {
            OnDemand::None => false,
            OnDemand::TphHeads => self.is_tph_head(),
            OnDemand::All => true,
        };
        if !on_demand && (!how.in_cache || self.cache.is_none()) {
            return Ok(());
        }
        let priority = if how.high_priority { Priority::High } else { Priority::Low };
        let place = MetaPlace::InCache { priority, pinned: None };
        let cached = |(cache, id): &(Arc<BlockCache>, u64)| CachedMeta { cache: Arc::clone(cache), id: *id, priority };
        self.cached_meta = self.cache.as_ref().map(cached);
        let MetaPlace::Here(meta) = std::mem::replace(&mut self.meta, place) else { return Ok(()) };
        if on_demand {
            self.places = Some(BlockPlaces::new((0..meta.index.len()).map(|i| meta.index.handle(i))));
            return Ok(());
        }
        let block = self.insert_meta(meta, priority);
        if how.pin {
            self.meta = MetaPlace::InCache { priority, pinned: Some(block?) };
        }
        // Otherwise the next read reports a full cache, because compactions can do without these.
        Ok(())
    }
}
