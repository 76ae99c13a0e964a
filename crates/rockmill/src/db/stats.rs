//! Counters of a database since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Ticker {
    KeysWritten,
    BytesWritten,
    Writes,
    WriteGroups,
    WalBytes,
    WalSyncs,
    Flushes,
    FlushBytes,
    Compactions,
    TrivialMoves,
    CompactReadBytes,
    CompactWriteBytes,
    CompactMicros,
    CompactCpuMicros,
}

const NAMES: [&str; 14] = [
    "rocksdb.number.keys.written",
    "rocksdb.bytes.written",
    "rocksdb.write.self",
    "rockmill.write.groups",
    "rocksdb.wal.bytes",
    "rocksdb.wal.synced",
    "rockmill.flushes",
    "rocksdb.flush.write.bytes",
    "rockmill.compactions",
    "rockmill.trivial.moves",
    "rocksdb.compact.read.bytes",
    "rocksdb.compact.write.bytes",
    "rockmill.compact.micros",
    "rockmill.compact.cpu.micros",
];

/// The tickers. Relaxed atomics: exact in sum, not ordered with anything else.
#[derive(Debug, Default)]
pub struct Statistics {
    tickers: [AtomicU64; NAMES.len()],
}

impl Statistics {
    #[inline]
    pub(crate) fn add(&self, t: Ticker, n: u64) {
        self.tickers[t as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self, t: Ticker) -> u64 {
        self.tickers[t as usize].load(Ordering::Relaxed)
    }

    /// All of them by name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.iter().zip(&self.tickers).map(|(n, t)| (*n, t.load(Ordering::Relaxed)))
    }
}
