//! How a flush reads sealed memtables: it reads values in logs through its job's ring if there is one, otherwise with
//! plain calls.

use std::sync::Arc;

use rockmill_io::FileSystem;
use rockmill_io::ring::{BatchIo, BatchKind, BatchLimits};

use super::view::SealedRuns;
use crate::error::{Error, Result};
use crate::memtable::log_read_ahead::{LogReadCounts, LogReads, READS_IN_FLIGHT, Throttle};
use crate::rate_limiter::Limit;
use crate::sync::Share;

/// What a flush has to read with.
pub(crate) struct ReadMeans<'a> {
    /// The flushing thread's ring.
    pub ring: Option<&'a BatchIo>,
    /// Makes what plain calls go through.
    pub fs: &'a dyn FileSystem,
    /// The most bytes of reads in flight, through the ring or with plain calls. With plain calls, one table gets what
    /// it wants.
    pub memory: usize,
    /// Is asked before each read.
    pub limit: Option<Limit>,
    /// Where memory is counted that is not the ring's.
    pub counted: Share,
}

/// How it reads. It must be dropped before the ring.
#[derive(Default)]
pub(crate) struct SealedReads {
    /// Used if there are values in logs.
    logs: Option<LogReads>,
    /// Memory of plain reads in flight. Windows are counted as they grow.
    _in_flight: Option<Share>,
}

impl SealedReads {
    pub(super) fn of_logs(&self) -> Option<&LogReads> {
        self.logs.as_ref()
    }

    /// Values read from logs so far.
    pub fn counts(&self) -> LogReadCounts {
        self.logs.as_ref().map_or_else(LogReadCounts::default, |reads| *reads.counts.lock())
    }
}

impl SealedRuns {
    /// How many of them have values in logs.
    pub fn with_values_in_logs(&self) -> usize {
        self.tables().iter().filter(|table| table.log_values().is_some()).count()
    }

    /// Bytes that its reads in flight want; 0 if no value is in a log.
    pub fn read_memory(&self) -> usize {
        LogReads::memory_for(self.with_values_in_logs())
    }

    /// Readies the reads of a flush.
    ///
    /// # Errors
    /// Plain calls that are not available.
    pub fn begin_reads(&self, means: ReadMeans<'_>) -> Result<SealedReads> {
        let together = self.with_values_in_logs();
        if together == 0 {
            return Ok(SealedReads::default());
        }
        let ReadMeans { ring, fs, memory, limit, counted } = means;
        let wanted = LogReads::memory_for(together);
        let mut in_flight = counted.another();
        let (io, memory) = match ring {
            Some(ring) => (ring.clone(), wanted.min(memory)),
            None => {
                let memory = wanted.min(memory.max(LogReads::memory_for(1)));
                in_flight.set(memory);
                (plain_calls(fs, memory)?, memory)
            }
        };
        let throttle = limit.map(|limit| Arc::new(move |bytes| limit.request(bytes)) as Throttle);
        let windows = Arc::new(counted);
        let logs = LogReads { io, throttle, together, memory, windows, counts: Arc::default() };
        Ok(SealedReads { logs: Some(logs), _in_flight: Some(in_flight) })
    }
}

fn plain_calls(fs: &dyn FileSystem, memory_bytes: usize) -> Result<BatchIo> {
    // Unused pages are not allocated.
    let limits = BatchLimits {
        memory_bytes,
        depth: READS_IN_FLIGHT as u32,
        huge_pages: false,
        register: false,
        ..BatchLimits::default()
    };
    let io = fs.batch_io(BatchKind::Pread, &limits);
    io.map_err(|e| Error::io("cannot read values that are in logs", &e))
}
