//! Options of writes and flushes.

use super::setters::setters;

/// Options of a write (RocksDB's `WriteOptions`).
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Return only when the WAL is on the disk.
    pub sync: bool,
    /// Write no WAL: the data is lost by a crash before the next flush.
    pub disable_wal: bool,
    /// Fail with `Incomplete` rather than wait when writers are delayed or stopped.
    pub no_slowdown: bool,
    /// Skip updates of column families that do not exist (any more) instead of refusing the batch.
    pub ignore_missing_column_families: bool,
    /// While compaction cannot keep up, slow this write down: all such writes together get 1 MiB/s.
    pub low_pri: bool,
}

impl WriteOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }
}

setters! {
    impl WriteOptions;

    set_sync(sync: bool) sync;
    disable_wal(disable: bool) disable_wal;
    set_no_slowdown(no_slowdown: bool) no_slowdown;
    set_ignore_missing_column_families(ignore: bool) ignore_missing_column_families;
    set_low_pri(low_pri: bool) low_pri;
}

/// Whether `flush` waits (RocksDB's `FlushOptions`).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct FlushOptions {
    /// Return when the data is in tables.
    pub wait: bool,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self { wait: true }
    }
}

impl FlushOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }
}

setters! {
    impl FlushOptions;

    set_wait(wait: bool) wait;
}
