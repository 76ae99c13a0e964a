//! The block cache: uncompressed data blocks by (file, offset), bounded in bytes, shared by column families and
//! databases.

use std::sync::Arc;

use rockmill_format::block::BlockLayout;

/// An uncompressed block with its layout found.
#[derive(Debug)]
pub struct CachedBlock {
    data: Box<[u8]>,
    layout: BlockLayout,
}

impl CachedBlock {
    /// Wraps a block's contents.
    pub fn new(data: Box<[u8]>, layout: BlockLayout) -> Self {
        Self { data, layout }
    }

    /// The contents.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Its layout.
    #[inline]
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// Bytes to charge.
    pub fn charge(&self) -> usize {
        self.data.len() + size_of::<Self>()
    }
}

/// Counters of a cache.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheStats {
    /// Lookups that found the block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes held.
    pub usage: u64,
    /// Bytes allowed.
    pub capacity: u64,
}

/// The cache. Clone the `Arc` to share it.
pub struct BlockCache {
    _private: (),
}

impl BlockCache {
    /// A cache of `capacity` bytes (RocksDB's `NewLRUCache`).
    pub fn new(capacity: usize) -> Arc<Self> {
        let _ = capacity;
        todo!()
    }

    /// A number that no other table of this cache has: the first half of its keys.
    pub fn new_id(&self) -> u64 {
        todo!()
    }

    /// The block at `offset` of table `id`.
    pub fn get(&self, id: u64, offset: u64) -> Option<Arc<CachedBlock>> {
        let _ = (id, offset);
        todo!()
    }

    /// Keeps a block.
    pub fn insert(&self, id: u64, offset: u64, block: Arc<CachedBlock>) {
        let _ = (id, offset, block);
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> CacheStats {
        todo!()
    }
}
