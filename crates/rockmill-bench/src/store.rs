//! What a benchmark asks of a store. Rockmill implements it; so can its peers.

use crate::error::Result;

/// An open store.
pub trait Store: Send + Sync {
    /// The name that figures carry.
    fn name(&self) -> &str;

    /// What one thread works with: it may keep a batch, a transaction or an iterator between calls.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Writes memtables as tables.
    fn flush(&self) -> Result<()>;

    /// Compacts everything.
    fn compact(&self) -> Result<()>;

    /// Returns when no flush or compaction runs or is due.
    fn wait_for_compaction(&self) -> Result<()>;

    /// Microseconds that writers were held back since the store was opened: (delayed, stopped).
    fn stall_micros(&self) -> Result<(u64, u64)>;

    /// Why writers are held back now, or "none".
    fn stall_reason(&self) -> Result<String>;

    /// The store's own statistics, as text.
    fn stats(&self) -> Result<String>;

    /// Closes the store. What that writes belongs to the run.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's use of a store.
pub trait Session {
    /// Adds a put to the batch.
    fn put(&mut self, key: &[u8], value: &[u8]);

    /// Writes the batch and empties it.
    fn commit(&mut self) -> Result<()>;

    /// Length of the key's value, if the key is there. The value is looked at where it lies, not copied.
    fn get(&mut self, key: &[u8]) -> Result<Option<usize>>;

    /// Opens an iterator, seeks to the first key at or after `key`, takes `nexts` steps. Gives whether the very key was
    /// there, and the bytes of the keys and values seen.
    fn seek(&mut self, key: &[u8], nexts: u64) -> Result<(bool, u64)>;

    /// Visits entries from the first, or from the last backwards, until `visit`, which is given each one's bytes, says
    /// false.
    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> bool) -> Result<()>;
}
