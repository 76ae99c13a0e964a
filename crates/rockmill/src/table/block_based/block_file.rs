//! Reads the blocks of one table file: bounds, checksum, decompression, and errors that say where.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::FormatError;
use rockmill_format::block::BlockLayout;
use rockmill_format::compression::{Dictionary, decompress_into};
use rockmill_format::footer::{BLOCK_TRAILER_LEN, BlockHandle, Footer};
use rockmill_io::RandomAccessFile;

use crate::error::{Error, Result};
use crate::pacing::read_protection::ReadProtection;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics, Statistics, Ticker};
use crate::table::cache::CachedBlock;

/// A table file and what is needed to read a block of it.
#[derive(Debug)]
pub(super) struct BlockFile {
    pub file: Arc<dyn RandomAccessFile>,
    pub path: PathBuf,
    pub footer: Footer,
    /// For data blocks.
    pub dictionary: Option<Dictionary>,
    /// No block of this table can be larger uncompressed.
    pub block_len_max: usize,
    /// Where reads are counted.
    pub statistics: Option<Arc<Statistics>>,
    /// Gets reports of users' reads.
    pub read_protection: Option<Arc<ReadProtection>>,
}

/// The form of a block whose checksum was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// The bytes are the block.
    Plain,
    /// The bytes were decompressed into the caller's buffer.
    Decompressed,
}

impl BlockFile {
    /// Fills `buf` from `offset`; an end of file inside is corruption.
    pub fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        read_exact(&*self.file, &self.path, offset, buf)
    }

    /// The same for a user's read or a compaction, counted.
    pub fn read_counted(&self, offset: u64, buf: &mut [u8], histogram: Histogram) -> Result<()> {
        let began = self.statistics.start_now();
        let timer = perf::time(PerfMetric::BlockReadTime);
        let users = self.read_protection.as_ref().filter(|_| histogram != Histogram::FileReadCompactionMicros);
        let users_began = users.and_then(|r| r.read_begins());
        let done = self.read_exact(offset, buf);
        users.inspect(|r| r.read_ends(users_began));
        drop(timer);
        perf::count(PerfMetric::BlockReadCount, 1);
        perf::count(PerfMetric::BlockReadByte, buf.len() as u64);
        self.statistics.stop_now(Histogram::SstReadMicros, began);
        self.statistics.stop_now(histogram, began);
        done
    }

    /// Checks that a block lies in the file, and gives its length with trailer.
    pub fn len_with_trailer(&self, handle: BlockHandle) -> Result<usize> {
        if handle.end() > self.file.size() {
            return Err(Error::corruption(format!(
                "{}: block at offset {} of {} bytes ends after the file's {} bytes",
                self.path.display(),
                handle.offset,
                handle.size,
                self.file.size()
            )));
        }
        Ok(handle.size as usize + BLOCK_TRAILER_LEN)
    }

    /// Checks `raw`, a block with its trailer as it is stored at `handle`, and decompresses it into `out` if it is
    /// compressed.
    #[inline]
    pub fn decode(
        &self,
        handle: BlockHandle,
        raw: &[u8],
        verify: bool,
        dictionary: Option<&Dictionary>,
        out: &mut Vec<u8>,
    ) -> Result<Stored> {
        let Some((data, trailer)) = raw.split_last_chunk::<BLOCK_TRAILER_LEN>() else {
            return Err(self.error(handle, &FormatError::corruption("block without a trailer", 0)));
        };
        if verify {
            self.statistics.add(Ticker::BlockChecksumComputeCount, 1);
            let _timer = perf::time(PerfMetric::BlockChecksumTime);
            if let Err(e) = self.footer.verify_block(raw, handle.offset) {
                self.statistics.add(Ticker::BlockChecksumMismatchCount, 1);
                return Err(self.error(handle, &e));
            }
        }
        if trailer[0] == 0 {
            return Ok(Stored::Plain);
        }
        let _timer = perf::time(PerfMetric::BlockDecompressTime);
        let began = self.statistics.start_detailed();
        decompress_into(trailer[0], data, dictionary, self.block_len_max, out).map_err(|e| self.error(handle, &e))?;
        if let Some(s) = &self.statistics {
            self.statistics.stop_nanos(Histogram::DecompressionTimesNanos, began);
            s.add_all([
                (Ticker::NumberBlockDecompressed, 1),
                (Ticker::BytesDecompressedFrom, data.len() as u64),
                (Ticker::BytesDecompressedTo, out.len() as u64),
            ]);
        }
        Ok(Stored::Decompressed)
    }

    /// One data block, read alone.
    pub fn read_data_block(&self, handle: BlockHandle, verify: bool) -> Result<CachedBlock> {
        let mut raw = vec![0; self.len_with_trailer(handle)?];
        self.read_counted(handle.offset, &mut raw, Histogram::FileReadGetMicros)?;
        self.decode_data_block(handle, raw, verify)
    }

    /// One data block from its bytes with the trailer, which the caller has read.
    pub fn decode_data_block(&self, handle: BlockHandle, raw: Vec<u8>, verify: bool) -> Result<CachedBlock> {
        let mut out = Vec::new();
        match self.decode(handle, &raw, verify, self.dictionary.as_ref(), &mut out)? {
            Stored::Plain => {
                let len = handle.size as usize;
                let layout = self.layout(handle, &raw[..len])?;
                Ok(CachedBlock::with_trailer(raw.into_boxed_slice(), len, layout))
            }
            Stored::Decompressed => {
                let layout = self.layout(handle, &out)?;
                Ok(CachedBlock::new(out.into_boxed_slice(), layout))
            }
        }
    }

    /// The layout of a block's contents.
    #[inline]
    pub fn layout(&self, handle: BlockHandle, contents: &[u8]) -> Result<BlockLayout> {
        BlockLayout::parse(contents).map_err(|e| self.error(handle, &e))
    }

    /// An error about a block.
    #[cold]
    pub fn error(&self, handle: BlockHandle, error: &FormatError) -> Error {
        let place =
            format!("{}: block at offset {} of {} bytes: {error}", self.path.display(), handle.offset, handle.size);
        match error {
            FormatError::Corruption { .. } => Error::corruption(place),
            FormatError::Unsupported { .. } => Error::not_supported(place),
        }
    }
}

/// Fills `buf` from `offset` of `file`; an end of file inside is corruption.
pub(super) fn read_exact(file: &dyn RandomAccessFile, path: &Path, offset: u64, buf: &mut [u8]) -> Result<()> {
    let n = file
        .read_at(offset, buf)
        .map_err(|e| Error::io(format!("{}: reading {} bytes at offset {offset}", path.display(), buf.len()), &e))?;
    if n < buf.len() {
        return Err(Error::corruption(format!(
            "{}: the file ends at offset {}, inside a block of {} bytes at offset {offset}",
            path.display(),
            offset + n as u64,
            buf.len()
        )));
    }
    Ok(())
}
