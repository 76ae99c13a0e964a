//! The read after an iterator's window, in flight while the iterator goes through the window (RocksDB's `async_io`).
//!
//! Each iterator over a table that gets this far has its own small ring, which takes some 200 us to make and is dropped
//! with it. An iterator may be moved to another thread, so the ring accepts operations from any thread. Its memory is
//! on huge pages: reads into small pages are split, and the kernel does not start split reads at once. Without a ring,
//! and after a failed read, the iterator reads for itself and reports errors.

use std::sync::Arc;

use rockmill_io::ring::{BatchIo, BatchLimits, ReadOptions, ReadPlan, ReadStream, Span};

use super::block_file::BlockFile;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics};

/// Shorter reads are not done in flight: most scans that have not got further end soon.
const BYTES_MIN: usize = 32 << 10;

/// Memory in addition to the data read at once: for blocks of any usual size.
const SLACK: usize = 256 << 10;

/// What an iterator has in flight.
#[derive(Default)]
pub(super) struct AsyncReads {
    /// What it reads from, and up to where.
    pending: Option<(Span, ReadStream)>,
    ring: Option<BatchIo>,
    /// No ring is available, or one has failed.
    refused: bool,
}

impl AsyncReads {
    /// True while something is in flight.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Begins to read `len` bytes from `offset`, if that is worth it. At most `most` bytes will be asked for at once.
    pub fn begin(&mut self, blocks: &BlockFile, offset: u64, len: usize, most: usize) {
        self.pending = None;
        let Some(len) = u32::try_from(len).ok().filter(|len| *len as usize >= BYTES_MIN) else { return };
        if self.refused || !blocks.file.is_direct() {
            return;
        }
        if self.ring.is_none() {
            let limits = BatchLimits {
                memory_bytes: most.saturating_add(SLACK),
                depth: 2,
                register: false,
                any_thread: true,
                ..BatchLimits::default()
            };
            self.ring = blocks.file.ring(&limits).ok();
        }
        let mut plan = ReadPlan::new();
        let file = plan.add_file(Arc::clone(&blocks.file), &blocks.path);
        let span = Span { file, offset, len };
        plan.add_run(vec![span]);
        let begun = self.ring.as_ref().and_then(|io| io.read(plan, ReadOptions::default()).ok());
        self.refused = begun.is_none();
        self.pending = begun.map(|stream| (span, stream));
    }

    /// If the read in flight has all of the `len` bytes at `offset`, puts it into `bytes` and returns where it begins.
    pub fn take(&mut self, blocks: &BlockFile, offset: u64, len: usize, bytes: &mut Vec<u8>) -> Option<u64> {
        let (span, mut stream) = self.pending.take()?;
        let end = offset.checked_add(len as u64)?;
        if offset < span.offset || end > span.offset + u64::from(span.len) {
            return None;
        }
        let began = blocks.statistics.start_now();
        let timer = perf::time(PerfMetric::BlockReadTime);
        let window = stream.next(0);
        drop(timer);
        let Ok(Some(window)) = window else {
            self.refused = true;
            return None;
        };
        bytes.clear();
        bytes.extend_from_slice(&window);
        perf::count(PerfMetric::BlockReadCount, 1);
        perf::count(PerfMetric::BlockReadByte, u64::from(span.len));
        blocks.statistics.stop_now(Histogram::SstReadMicros, began);
        blocks.statistics.stop_now(Histogram::FileReadDbIteratorMicros, began);
        Some(span.offset)
    }
}
