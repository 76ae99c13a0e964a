//! Options of writes and flushes.

/// Options of a write (RocksDB's `WriteOptions`).
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Return only when the WAL is on the disk.
    pub sync: bool,
    /// Write no WAL: the data is lost by a crash before the next flush.
    pub disable_wal: bool,
    /// Fail with `Incomplete` rather than wait when writers are delayed or stopped.
    pub no_slowdown: bool,
    /// Pass over updates of column families that do not exist (any more) rather than refuse the batch.
    pub ignore_missing_column_families: bool,
    /// Slow this write down to 1 MiB/s, all such writes together, while compaction is behind.
    pub low_pri: bool,
}

impl WriteOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `sync`.
    pub fn set_sync(&mut self, sync: bool) {
        self.sync = sync;
    }

    /// Sets `disable_wal`.
    pub fn disable_wal(&mut self, disable: bool) {
        self.disable_wal = disable;
    }

    /// Sets `no_slowdown`.
    pub fn set_no_slowdown(&mut self, no_slowdown: bool) {
        self.no_slowdown = no_slowdown;
    }

    /// Sets `ignore_missing_column_families`.
    pub fn set_ignore_missing_column_families(&mut self, ignore: bool) {
        self.ignore_missing_column_families = ignore;
    }

    /// Sets `low_pri`.
    pub fn set_low_pri(&mut self, low_pri: bool) {
        self.low_pri = low_pri;
    }
}

/// Whether `flush` waits (RocksDB's `FlushOptions`).
#[derive(Debug, Clone, Copy)]
pub struct FlushOptions {
    /// Return when the data is in tables.
    pub wait: bool,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self { wait: true }
    }
}
