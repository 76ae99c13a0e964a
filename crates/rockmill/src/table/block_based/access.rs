//! Block access: what the engines that merge blocks, and their SST-Map, need from a table in addition to what all kinds
//! have. Nothing else uses it.

use std::ops::{Deref, Range};
use std::sync::Arc;

use rockmill_format::FormatError;
use rockmill_format::block::BlockKind;
use rockmill_format::compression::names_compression;
use rockmill_format::footer::BlockHandle;
use rockmill_format::key::InternalKey;

use super::block_file::Stored;
use super::reader::BlockBasedTable;
use super::stream::ScanFile;
use crate::error::{Error, Result};
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics, Started};
use crate::table::Table;

/// A block-based table that stays open while this lives.
#[derive(Clone)]
pub struct BlockAccess(Arc<Table>);

impl BlockAccess {
    /// Of `table`, which is block-based.
    pub(in crate::table) fn of(table: &Arc<Table>) -> Self {
        Self(Arc::clone(table))
    }

    /// The table, as any kind of table.
    pub fn table(&self) -> &Table {
        &self.0
    }

    /// What a scan goes through between two internal keys, both included.
    pub(in crate::table) fn scanned(
        &self,
        first: Option<&InternalKey>,
        last: Option<&InternalKey>,
    ) -> Result<ScanFile> {
        let meta = self.meta(false, false)?;
        let (index, cmp) = (&meta.index, &self.cmp);
        let first = first.map_or(0, |key| index.seek(key.as_bytes(), cmp));
        let end = last.map_or(index.len(), |key| index.len().min(index.seek(key.as_bytes(), cmp) + 1));
        let bytes_end = if first < end { index.handle(end - 1).end() } else { 0 };
        let blocks = if first < end { first..end } else { 0..0 };
        Ok(ScanFile { table: self.clone(), blocks, bytes_end, meta: meta.into() })
    }

    /// True where both are the same open table.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for BlockAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for BlockAccess {
    type Target = BlockBasedTable;

    #[inline]
    fn deref(&self) -> &BlockBasedTable {
        match &*self.0 {
            Table::BlockBased(table) => table,
            Table::Tph(_) => unreachable!("access is given to block-based tables alone"),
        }
    }
}

impl BlockBasedTable {
    /// How data blocks are decoded.
    #[inline]
    pub(crate) fn data_kind(&self) -> BlockKind {
        BlockKind::Data { global_seqno: self.global_seqno }
    }

    /// The data blocks that may hold user keys from `begin` to before `end`, in order.
    pub(crate) fn blocks_between(&self, begin: Option<&[u8]>, end: Option<&[u8]>) -> Result<Vec<BlockHandle>> {
        let meta = self.meta(false, false)?;
        let index = &meta.index;
        let place = |key: &[u8]| index.seek(InternalKey::min_possible(key).as_bytes(), &self.cmp);
        let first = begin.map_or(0, place);
        // The block that would hold the end may begin before it.
        let last = end.map_or(index.len(), |e| index.len().min(place(e) + 1));
        Ok((first..last).map(|i| index.handle(i)).collect())
    }

    /// Where the blocks of these numbers are.
    pub(crate) fn handles_of(&self, blocks: Range<usize>) -> Result<Vec<BlockHandle>> {
        if let Some(places) = &self.places {
            return Ok((blocks.start..blocks.end.min(places.len())).map(|i| places.get(i)).collect());
        }
        let meta = self.meta(false, false)?;
        Ok((blocks.start..blocks.end.min(meta.index.len())).map(|i| meta.index.handle(i)).collect())
    }

    /// Checks `raw`, a data block with its trailer as it is stored at `handle`. True if its first bytes are the block's
    /// contents; otherwise these were decompressed into `out`.
    #[inline]
    pub(crate) fn check_block(&self, handle: BlockHandle, raw: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let stored = self.blocks.decode(handle, raw, true, self.blocks.dictionary.as_ref(), out)?;
        Ok(stored == Stored::Plain)
    }

    /// False if no block is compressed, according to the properties.
    pub(crate) fn has_compressed_blocks(&self) -> bool {
        names_compression(self.blocks.footer.format_version, &self.properties.compression_name)
    }

    /// A compaction's read, or its wait for one, begins.
    pub(crate) fn compaction_read_begins(&self) -> Started {
        self.blocks.statistics.start_now()
    }

    /// It has ended, and read this many bytes.
    pub(crate) fn compaction_read_ends(&self, began: Started, bytes: usize) {
        perf::count(PerfMetric::BlockReadCount, 1);
        perf::count(PerfMetric::BlockReadByte, bytes as u64);
        let read =
            [Histogram::SstReadMicros, Histogram::FileReadCompactionMicros, Histogram::ReadBlockCompactionMicros];
        for histogram in read {
            self.blocks.statistics.stop_now(histogram, began);
        }
    }

    /// The error for a damaged block, with its place.
    #[cold]
    pub(crate) fn block_error(&self, handle: BlockHandle, e: &FormatError) -> Error {
        self.blocks.error(handle, e)
    }
}
