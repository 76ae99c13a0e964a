//! Lookups in a full cache: they report their reads to it, and keep rows or blocks as it decides
//! (`table/cache/rows.rs`).

use std::sync::Arc;

use rockmill_format::block::{BlockBuilder, BlockBuilderOptions, BlockCursor, BlockLayout};
use rockmill_format::footer::BlockHandle;
use rockmill_format::hash::hash64;
use rockmill_format::key::{self, InternalKey, MAX_SEQUENCE, ValueType};

use super::reader::{BlockBasedTable, reset_cursor};
use crate::error::Result;
use crate::iter::get::GetContext;
use crate::table::cache::{BlockCache, BlockUse, CachedBlock, RowOf, row_charge};
use crate::table::options::TableReadOptions;

impl BlockBasedTable {
    /// The cache and the table's number in it, if reads should be reported to it.
    #[inline]
    pub(super) fn watching_cache(&self) -> Option<(&BlockCache, u64)> {
        self.cache.as_ref().filter(|(cache, _)| cache.row_choice().watches()).map(|(cache, id)| (&**cache, *id))
    }

    /// [`Self::get_in_block`] with a cache to which reads are reported.
    #[inline(never)]
    pub(super) fn get_in_watched_block(
        &self,
        handle: BlockHandle,
        at: usize,
        ikey: &[u8],
        ro: TableReadOptions,
        ctx: &mut GetContext<'_>,
        cursor: &mut Option<Box<BlockCursor>>,
    ) -> Result<bool> {
        let (block, undecided) = match self.offer_cached_row(handle, ikey, ctx, cursor)? {
            Some(row) => row,
            None => {
                let Some(block) = self.block_for(handle, at, ikey, ro, ctx)? else { return Ok(false) };
                let undecided = self.offer_entries(handle, &block, ikey, ctx, cursor)?;
                (block, undecided)
            }
        };
        if let Some((cache, id)) = self.watching_cache().filter(|_| ro.fill_cache) {
            cache.tell_read(id, handle.offset, || self.use_by_lookup(&block, ikey));
        }
        Ok(undecided)
    }

    /// How a lookup's read of a block or a row is reported to the cache.
    fn use_by_lookup(&self, block: &CachedBlock, ikey: &[u8]) -> BlockUse {
        let key = || hash64(key::user_key(ikey));
        match block.row_of() {
            Some(of) => BlockUse { block_charge: of.block_charge, row: Some((key(), block.charge() as u32)) },
            None => {
                let row = self.entries_of_key(block, ikey, |_, _| {});
                let row = row.map(|row| (key(), row_charge(row.bytes) as u32));
                BlockUse { block_charge: block.charge() as u32, row }
            }
        }
    }

    /// Reports an iterator's read of a block.
    #[inline]
    pub(super) fn tell_block_read(&self, handle: BlockHandle, block: &CachedBlock, ro: TableReadOptions) {
        if let Some((cache, id)) = self.watching_cache().filter(|_| ro.fill_cache) {
            let block_charge = block.charge() as u32;
            cache.tell_read(id, handle.offset, || BlockUse { block_charge, row: None });
        }
    }

    /// Offers the entries of a lookup's row (its user key in a block), if the cache has it. Returns the row, and the
    /// result of [`Self::offer_entries`].
    fn offer_cached_row(
        &self,
        handle: BlockHandle,
        ikey: &[u8],
        ctx: &mut GetContext<'_>,
        cursor: &mut Option<Box<BlockCursor>>,
    ) -> Result<Option<(Arc<CachedBlock>, bool)>> {
        let Some((cache, id)) = self.watching_cache().filter(|(cache, _)| cache.row_choice().has_rows()) else {
            return Ok(None);
        };
        let user_key = key::user_key(ikey);
        let Some(row) = cache.get_row(id, handle.offset, user_key) else { return Ok(None) };
        if row.row_of().is_none_or(|of| of.offset != handle.offset) {
            return Ok(None);
        }
        let cursor = reset_cursor(cursor, row.layout(), self.data_kind());
        let is_there = cursor.seek_to_first(row.data()).is_ok() && cursor.valid();
        if !is_there || !self.cmp.is_same_user_key(key::user_key(cursor.key()), user_key) {
            return Ok(None);
        }
        cache.row_answers();
        self.count_hit(&row);
        if let Some(waiting) = &mut ctx.waiting {
            waiting.arrived = None;
        }
        // The cursor is at the newest entry. Most rows have no other one; a snapshot may be older than it.
        if key::tag(cursor.key()) > key::tag(ikey) {
            cursor.seek(row.data(), ikey, &self.cmp).map_err(|e| self.blocks.error(handle, &e))?;
        }
        let undecided = self.offer_from(cursor, row.data(), handle, &row, ikey, ctx)?;
        Ok(Some((row, undecided)))
    }

    /// Puts the block that a lookup of `ikey` read, or its row, into the cache, and returns it: then the memory that
    /// the lookup's value points into is counted by the cache.
    pub(super) fn keep(
        &self,
        handle: BlockHandle,
        block: Arc<CachedBlock>,
        ikey: &[u8],
        ro: TableReadOptions,
    ) -> Result<Arc<CachedBlock>> {
        let Some((cache, id)) = self.cache.as_ref().filter(|_| ro.fill_cache) else { return Ok(block) };
        if cache.row_choice().keeps_rows()
            && let Some(row) = self.row_out_of(handle, &block, ikey)
        {
            let row = Arc::new(row);
            self.count_add(&row);
            cache.insert_row(*id, handle.offset, key::user_key(ikey), Arc::clone(&row))?;
            return Ok(row);
        }
        self.count_add(&block);
        cache.insert(*id, handle.offset, Arc::clone(&block))?;
        Ok(block)
    }

    /// The row of a lookup's user key. `None` where [`Self::entries_of_key`] gives none.
    fn row_out_of(&self, handle: BlockHandle, block: &CachedBlock, ikey: &[u8]) -> Option<CachedBlock> {
        let mut entries = BlockBuilder::new(BlockBuilderOptions::default());
        let row = self.entries_of_key(block, ikey, |key, value| entries.add(key, value, None))?;
        let bytes: Box<[u8]> = entries.finish().into();
        let layout = BlockLayout::parse(&bytes).ok()?;
        let of = RowOf { offset: handle.offset, block_charge: block.charge() as u32, is_last: row.is_last };
        Some(CachedBlock::row(bytes, layout, of))
    }

    /// Calls `each` with all entries of a lookup's user key in a block. `None` if it has none, or they are most of it,
    /// or it is damaged, which the lookup will find.
    fn entries_of_key(&self, block: &CachedBlock, ikey: &[u8], mut each: impl FnMut(&[u8], &[u8])) -> Option<RowSize> {
        let (data, user_key) = (block.data(), key::user_key(ikey));
        let mut cursor = BlockCursor::new(block.layout(), self.data_kind());
        let newest = InternalKey::new(user_key, MAX_SEQUENCE, ValueType::Max);
        cursor.seek(data, newest.as_bytes(), &self.cmp).ok()?;
        let mut bytes = 0;
        while cursor.valid() && self.cmp.is_same_user_key(key::user_key(cursor.key()), user_key) {
            bytes += cursor.key().len() + cursor.value_range().len();
            if !is_worth_it(row_charge(bytes), block.charge()) {
                return None;
            }
            each(cursor.key(), cursor.value(data));
            cursor.next(data).ok()?;
        }
        (bytes > 0).then_some(RowSize { bytes, is_last: !cursor.valid() })
    }
}

/// The entries of a row.
struct RowSize {
    /// Of keys and values.
    bytes: usize,
    /// They are the last ones of their block.
    is_last: bool,
}

/// True for a row that takes at most half of what its block would.
fn is_worth_it(row_charge: usize, block_charge: usize) -> bool {
    row_charge * 2 <= block_charge
}
