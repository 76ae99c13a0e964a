//! Feeds: where the blocks of a run come from, one after another in the order of the SST-Map.
//!
//! Here is the simplest, `pread`: windows of `compaction_readahead_size`, read when the first block in them is wanted.

use std::slice::Iter;
use std::sync::Arc;

use rockmill_format::FormatError;
use rockmill_format::block::{BlockKind, BlockLayout};
use rockmill_format::footer::BlockHandle;

use super::ahead::DecompressAhead;
use crate::compaction::sst_map::{MapFile, MapRun, SstMap, blocks_of};
use crate::compaction::{JobHost, JobProgress};
use crate::error::{Error, Result};
use crate::helpers::Help;
use crate::sync::atomic::Ordering;
use crate::table::{BlockAccess, BlockStream, Source, StoredBlock};

/// Gives the blocks of a run, checked and decompressed.
pub trait BlockFeed {
    /// To the next block; `None` after the last.
    fn next_block(&mut self) -> Result<Option<(BlockLayout, BlockKind)>>;
    /// The current block's contents; empty before the first.
    fn data(&self) -> &[u8];
    /// The current block as it is stored.
    fn stored(&self) -> Option<StoredBlock<'_>>;
    /// True if the next block is not there yet, so that asking for it may have to wait.
    fn next_waits(&self) -> bool {
        false
    }
    /// The ring's transfer that reads the next block, if the block is not there yet.
    fn awaited(&self) -> Option<u64> {
        None
    }
    /// The table of the current block, and the block's handle.
    fn place(&self) -> Option<(&BlockAccess, BlockHandle)>;
    /// Says that the current block is damaged, and where it is.
    #[cold]
    fn error(&self, e: &FormatError) -> Error {
        match self.place() {
            Some((table, block)) => table.block_error(block, e),
            None => Error::corruption(e.to_string()),
        }
    }
}

/// Positioned reads, in the thread that merges.
pub struct PreadFeed<'a> {
    host: &'a dyn JobHost,
    files: Iter<'a, MapFile>,
    table: Option<BlockAccess>,
    blocks: Iter<'a, BlockHandle>,
    current: BlockHandle,
    stream: BlockStream,
    ahead: DecompressAhead,
    /// The current block went ahead.
    went_ahead: bool,
    progress: Arc<JobProgress>,
}

/// Feeds for all runs of `map`.
pub(crate) fn feeds<'a>(map: &'a SstMap, host: &'a dyn JobHost, help: Option<&Help>) -> Vec<PreadFeed<'a>> {
    map.runs.iter().map(|run| PreadFeed::new(run, host, help, map.runs.len())).collect()
}

impl<'a> PreadFeed<'a> {
    /// The blocks of `run`, which is one of `runs`.
    fn new(run: &'a MapRun, host: &'a dyn JobHost, help: Option<&Help>, runs: usize) -> Self {
        let means = host.means();
        let stream = BlockStream::new(&means.reads(means.db.compaction_readahead_size));
        Self {
            host,
            files: run.files.iter(),
            table: None,
            blocks: Iter::default(),
            current: BlockHandle::default(),
            stream,
            ahead: DecompressAhead::new(help, runs),
            went_ahead: false,
            progress: Arc::clone(host.progress()),
        }
    }

    /// The next block, if it went ahead.
    fn next_ahead(&mut self, table: &BlockAccess) -> Result<Option<BlockHandle>> {
        let mut out = std::mem::take(self.stream.scratch());
        let (ahead, blocks, stream) = (&mut self.ahead, &mut self.blocks, &mut self.stream);
        let next = ahead.next(table, blocks, |b, at| stream.raw(table, at).map(|raw| b.add(at, raw)), &mut out);
        *self.stream.scratch() = out;
        next
    }
}

impl BlockFeed for PreadFeed<'_> {
    fn next_block(&mut self) -> Result<Option<(BlockLayout, BlockKind)>> {
        loop {
            if let Some(table) = self.table.clone().filter(|_| self.ahead.is_on())
                && let Some(block) = self.next_ahead(&table)?
            {
                (self.current, self.went_ahead) = (block, true);
                self.progress.bytes.fetch_add(block.size, Ordering::Relaxed);
                let layout = BlockLayout::parse(self.data()).map_err(|e| self.error(&e))?;
                return Ok(Some((layout, table.data_kind())));
            }
            if let (Some(table), Some(&block)) = (&self.table, self.blocks.next()) {
                (self.current, self.went_ahead) = (block, false);
                self.progress.bytes.fetch_add(block.size, Ordering::Relaxed);
                let layout = self.stream.load_block(table, block)?;
                return Ok(Some((layout, table.data_kind())));
            }
            let Some(file) = self.files.next() else { return Ok(None) };
            self.stream.begin_file(file.end());
            let table = blocks_of(self.host, &file.file)?;
            self.ahead.begin_file(&table);
            self.table = Some(table);
            self.blocks = file.blocks.iter();
        }
    }

    #[inline]
    fn data(&self) -> &[u8] {
        self.stream.data()
    }

    fn stored(&self) -> Option<StoredBlock<'_>> {
        let table = self.table.as_ref()?;
        let bytes = if self.went_ahead { self.ahead.stored()? } else { self.stream.stored() };
        Some(StoredBlock { table, handle: self.current, bytes })
    }

    fn place(&self) -> Option<(&BlockAccess, BlockHandle)> {
        Some((self.table.as_ref()?, self.current))
    }
}
