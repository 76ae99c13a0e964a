//! Data blocks directly from the file in large reads, bypassing the cache, for scans and compactions.

use std::ops::Range;
use std::sync::Arc;

use rockmill_format::block::BlockLayout;
use rockmill_format::footer::BlockHandle;

use super::access::BlockAccess;
use super::block_file::Stored;
use super::index::TableIndex;
use super::iter::{Current, Source, StreamSource, Window};
use super::meta::MetaHold;
use super::reader::BlockBasedTable;
use crate::error::Result;
use crate::pacing::read_protection::DeviceShare;
use crate::rate_limiter::Limit;
use crate::statistics::{Histogram, MaybeStatistics};

/// How blocks are read straight from a file.
#[derive(Clone)]
pub(crate) struct StreamReads {
    /// Bytes of a read; 0: only what is wanted.
    pub readahead: usize,
    /// Checksums are compared.
    pub verify: bool,
    /// Is asked for every read.
    pub limit: Option<Limit>,
    /// For a job that leaves a part of the device to users' reads.
    pub device_share: Option<Arc<DeviceShare>>,
}

/// The least that a scan of several files reads of one file at once; larger steps would bring nothing.
const SHARE_MIN: usize = 64 << 10;

impl StreamReads {
    /// The share of each of this many files that a scan goes through together.
    #[must_use]
    pub(crate) fn shared_by(&self, files: usize) -> Self {
        let readahead = match self.readahead {
            all if all == 0 || files < 2 => all,
            all => (all / files).max(SHARE_MIN),
        };
        Self { readahead, ..self.clone() }
    }

    /// Reads that are not held back.
    pub(crate) fn unpaced(readahead: usize, verify: bool) -> Self {
        Self { readahead, verify, limit: None, device_share: None }
    }
}

/// Blocks straight from the file in large reads, for scans and compactions.
pub struct BlockStream {
    window: Window,
    current: Current,
    scratch: Vec<u8>,
    readahead: usize,
    verify: bool,
    /// Where the current block and its trailer are in the window.
    stored: std::ops::Range<usize>,
    /// Read-ahead stops here.
    end: u64,
    /// Steps end before this block.
    end_block: usize,
    limit: Option<Limit>,
    device_share: Option<Arc<DeviceShare>>,
}

impl BlockStream {
    /// Reads as `reads` says.
    pub(crate) fn new(reads: &StreamReads) -> Self {
        let StreamReads { readahead, verify, limit, device_share } = reads.clone();
        Self {
            window: Window::default(),
            current: Current::None,
            scratch: Vec::new(),
            readahead,
            verify,
            stored: 0..0,
            end: 0,
            end_block: usize::MAX,
            limit,
            device_share,
        }
    }

    /// Of the blocks of `file`.
    pub(crate) fn of_file(reads: &StreamReads, file: &ScanFile) -> Self {
        Self { end: file.bytes_end, end_block: file.blocks.end, ..Self::new(reads) }
    }

    /// Switches to another file, of which nothing is read ahead from `end` on.
    pub(crate) fn begin_file(&mut self, end: u64) {
        self.current = Current::None;
        self.window.bytes.clear();
        self.end = end;
    }

    /// The current block and its trailer, as they are stored in the file; nothing for a block that was put into
    /// [`Self::scratch`].
    pub(crate) fn stored(&self) -> &[u8] {
        self.window.bytes.get(self.stored.clone()).unwrap_or(&[])
    }

    /// Where the block is in the window, trailer included; reads a window from there on if it is not in this one.
    fn place(&mut self, table: &BlockBasedTable, handle: BlockHandle) -> Result<std::ops::Range<usize>> {
        let block_len = table.blocks.len_with_trailer(handle)?;
        self.current = Current::None;
        match self.window.find(handle, block_len) {
            Some(place) => Ok(place),
            None => {
                let rest = usize::try_from(self.end.saturating_sub(handle.offset)).unwrap_or(usize::MAX);
                let readahead = self.device_share.as_ref().map_or(self.readahead, |job| job.piece(self.readahead));
                let len = block_len.max(readahead.min(rest));
                if let Some(limit) = &self.limit {
                    limit.request(len as u64);
                }
                if let Some(job) = &self.device_share {
                    job.pass(len as u64);
                }
                let began = table.statistics().start_now();
                self.window.fill(table, handle.offset, len, Histogram::FileReadCompactionMicros)?;
                table.statistics().stop_now(Histogram::ReadBlockCompactionMicros, began);
                Ok(0..block_len)
            }
        }
    }

    /// A block in its stored form, with its trailer. The current block is discarded.
    pub(crate) fn raw(&mut self, table: &BlockBasedTable, handle: BlockHandle) -> Result<&[u8]> {
        let place = self.place(table, handle)?;
        Ok(&self.window.bytes[place])
    }

    /// The caller's block becomes the current one.
    pub(crate) fn scratch(&mut self) -> &mut Vec<u8> {
        self.current = Current::Scratch;
        &mut self.scratch
    }

    /// Makes block `handle` the current one.
    pub(crate) fn load_block(&mut self, table: &BlockBasedTable, handle: BlockHandle) -> Result<BlockLayout> {
        let place = self.place(table, handle)?;
        self.stored = place.clone();
        let raw = &self.window.bytes[place.clone()];
        let dictionary = table.blocks.dictionary.as_ref();
        self.current = match table.blocks.decode(handle, raw, self.verify, dictionary, &mut self.scratch)? {
            Stored::Plain => Current::Window(place.start, place.start + handle.size as usize),
            Stored::Decompressed => Current::Scratch,
        };
        table.blocks.layout(handle, self.data())
    }
}

/// One file of a table, as a scan goes through it.
#[derive(Debug)]
pub(crate) struct ScanFile {
    pub table: BlockAccess,
    /// Numbers of the data blocks that may have what is scanned.
    pub blocks: Range<usize>,
    /// Where the last of them ends, including its trailer.
    pub bytes_end: u64,
    /// The index, if it was read to find that out: the scan needs it as well.
    pub(super) meta: MetaHold,
}

impl ScanFile {
    /// All of a file.
    pub(in crate::table) fn whole(table: BlockAccess) -> Self {
        let bytes_end = table.data_end();
        Self { table, blocks: 0..usize::MAX, bytes_end, meta: MetaHold::Nothing }
    }
}

impl StreamSource for BlockStream {
    fn bytes_read(&self) -> u64 {
        self.window.bytes_read
    }
}

impl Source for BlockStream {
    #[inline]
    fn end(&self) -> usize {
        self.end_block
    }

    fn load(&mut self, table: &BlockBasedTable, index: &TableIndex, at: usize) -> Result<BlockLayout> {
        self.load_block(table, index.handle(at))
    }

    fn meta_from(&self) -> (bool, bool) {
        (false, false)
    }

    #[inline]
    fn data(&self) -> &[u8] {
        match &self.current {
            Current::Window(start, end) => &self.window.bytes[*start..*end],
            Current::Scratch => &self.scratch,
            Current::Shared(block) => block.data(),
            Current::None => &[],
        }
    }
}
