//! Checks and decompresses a run's blocks ahead of the merge, on other threads.
//!
//! A feed copies some of its next blocks, as they are stored, into a batch and hands that over; the merge gets them in
//! order, each in the feed's own buffer. Copying compressed data costs little compared with decompressing it, and
//! windows are free for reads sooner. A damaged block or a failed read is reported when the merge reaches it.
//!
//! Blocks are not sent ahead beyond the end of a file, in a file without compressed blocks, or while no core is idle.

use std::ops::Range;
use std::slice::Iter;

use rockmill_format::footer::BlockHandle;

use crate::error::{Error, Result};
use crate::helpers::{Ahead, Help, Piece};
use crate::table::BlockAccess;

/// Stored bytes that go to another thread at once: enough to pay for the hand-over, few enough for many runs.
/// Tests have small tables.
const BATCH_BYTES: usize = if cfg!(test) { 512 } else { 64 << 10 };
/// The fewest batches of a run that are in flight.
const BATCHES_MIN: usize = 2;
/// About how many batches of all runs are in flight.
const BATCHES_MAX: usize = 32;

/// See the module's description.
#[derive(Default)]
pub(super) struct DecompressAhead {
    help: Option<Help>,
    batches_max: usize,
    /// Blocks of the current file go ahead.
    on: bool,
    /// Made with the first file that has compressed blocks.
    ahead: Option<Ahead<Batch>>,
    /// The batch that the merge is in, and its next block.
    current: Option<Batch>,
    at: usize,
    spare: Vec<Batch>,
    /// Reading failed after what was handed over.
    broken: Option<Error>,
}

/// Blocks of one table.
#[derive(Default)]
pub(super) struct Batch {
    table: Option<BlockAccess>,
    raw: Vec<u8>,
    blocks: Vec<(BlockHandle, Range<usize>)>,
    /// The result for each, up to the first that is damaged. There may be more buffers than blocks, because buffers are
    /// kept.
    out: Vec<Vec<u8>>,
    /// How many are whole, and what is wrong with the next.
    whole: usize,
    failed: Option<Error>,
}

impl Batch {
    /// Adds a block as it is stored, trailer included.
    pub fn add(&mut self, handle: BlockHandle, raw: &[u8]) {
        let start = self.raw.len();
        self.raw.extend_from_slice(raw);
        self.blocks.push((handle, start..self.raw.len()));
    }

    /// True when it should not get this block, too.
    fn is_full(&self, next: BlockHandle) -> bool {
        !self.blocks.is_empty() && self.raw.len() as u64 + next.size > BATCH_BYTES as u64
    }

    fn clear(&mut self) {
        self.table = None;
        self.raw.clear();
        self.blocks.clear();
        (self.whole, self.failed) = (0, None);
    }
}

impl Piece for Batch {
    fn run(&mut self) -> Result<()> {
        let Some(table) = &self.table else { return Ok(()) };
        if self.out.len() < self.blocks.len() {
            self.out.resize_with(self.blocks.len(), Vec::new);
        }
        for ((handle, place), out) in self.blocks.iter().zip(&mut self.out) {
            let raw = &self.raw[place.clone()];
            match table.check_block(*handle, raw, out) {
                Ok(true) => {
                    out.clear();
                    out.extend_from_slice(raw.get(..handle.size as usize).unwrap_or(raw));
                }
                Ok(false) => {}
                Err(e) => {
                    self.failed = Some(e);
                    break;
                }
            }
            self.whole += 1;
        }
        Ok(())
    }
}

impl DecompressAhead {
    /// For one of `runs` runs.
    pub fn new(help: Option<&Help>, runs: usize) -> Self {
        let most = help.map_or(0, Help::most);
        let wanted = (2 * most + 2).min(BATCHES_MAX).div_ceil(runs.max(1));
        Self { help: help.cloned(), batches_max: wanted.max(BATCHES_MIN), ..Self::default() }
    }

    /// The next blocks are those of `table`.
    pub fn begin_file(&mut self, table: &BlockAccess) {
        self.on = self.help.is_some() && table.has_compressed_blocks();
        if let Some(help) = self.help.as_ref().filter(|_| self.on) {
            self.ahead.get_or_insert_with(|| Ahead::new(help));
        }
    }

    /// The last returned block as it is stored, trailer included.
    pub fn stored(&self) -> Option<&[u8]> {
        let batch = self.current.as_ref()?;
        let (_, place) = batch.blocks.get(self.at.checked_sub(1)?)?;
        batch.raw.get(place.clone())
    }

    /// True if a block that was already read is on its way.
    pub fn has_more(&self) -> bool {
        let at_hand = self.current.as_ref().is_some_and(|batch| self.at < batch.whole);
        at_hand || self.ahead.as_ref().is_some_and(|ahead| ahead.len() > 0)
    }

    /// True where [`Self::next`] may give the next block.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// The next block of `table`, checked and decompressed in `out`; `None` if the caller must do that. `blocks` are
    /// those that were not read yet, and `read` adds one of them to a batch.
    pub fn next(
        &mut self,
        table: &BlockAccess,
        blocks: &mut Iter<'_, BlockHandle>,
        read: impl FnMut(&mut Batch, BlockHandle) -> Result<()>,
        out: &mut Vec<u8>,
    ) -> Result<Option<BlockHandle>> {
        if self.current.is_none() || self.at_end() {
            self.hand_over(table, blocks, read);
        }
        loop {
            if let Some(batch) = &mut self.current {
                if let Some(block) = batch.out.get_mut(self.at).filter(|_| self.at < batch.whole) {
                    std::mem::swap(block, out);
                    self.at += 1;
                    return Ok(Some(batch.blocks[self.at - 1].0));
                }
                if let Some(e) = &batch.failed {
                    return Err(e.clone());
                }
                if let Some(mut done) = self.current.take() {
                    done.clear();
                    self.spare.push(done);
                }
            }
            match self.ahead.as_mut().and_then(Ahead::take) {
                Some(batch) => self.current = Some(batch?),
                None => return self.broken.take().map_or(Ok(None), Err),
            }
            self.at = 0;
        }
    }

    /// The merge has come to the end of a batch.
    fn at_end(&self) -> bool {
        self.current.as_ref().is_some_and(|batch| self.at == batch.whole)
    }

    /// Reads and hands over as much as there is room for.
    fn hand_over(
        &mut self,
        table: &BlockAccess,
        blocks: &mut Iter<'_, BlockHandle>,
        mut read: impl FnMut(&mut Batch, BlockHandle) -> Result<()>,
    ) {
        let Some((ahead, help)) = self.ahead.as_mut().zip(self.help.as_ref()) else { return };
        while self.broken.is_none()
            && !blocks.as_slice().is_empty()
            && ahead.len() < self.batches_max
            && help.is_there()
        {
            let mut batch = self.spare.pop().unwrap_or_default();
            batch.table = Some(table.clone());
            while let Some(&block) = blocks.as_slice().first() {
                if batch.is_full(block) {
                    break;
                }
                if let Err(e) = read(&mut batch, block) {
                    self.broken = Some(e);
                    break;
                }
                blocks.next();
            }
            if batch.blocks.is_empty() {
                self.spare.push(batch);
            } else {
                ahead.push(batch);
            }
        }
    }
}
