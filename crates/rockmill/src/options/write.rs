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
