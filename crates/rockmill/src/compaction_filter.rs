//! Compaction filters: the user's code that decides which values stay, called while tables are written.
//!
//! 1. Either one filter is set for a column family and shared by all jobs, or a factory makes one for each part of each
//!    job. If both are set, compactions use the filter.
//! 2. Compactions call it; flushes only if the factory asks for that.
//! 3. It is called for the newest version of each user key in the job, if that is a value, and for merge operands that
//!    no snapshot sees. Snapshots do not protect values: they no longer see what a filter removes or changes.
//! 4. A panic of a filter or factory is an error of the job that names it.

use std::fmt;
use std::sync::Arc;

use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;

pub(crate) mod ttl;

/// What becomes of an entry (RocksDB's `CompactionFilter::Decision`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// It stays.
    Keep,
    /// Deletes a value with all older versions of its key; drops a merge operand.
    Remove,
    /// Keeps the entry with this value (or operand).
    Change(Vec<u8>),
    /// Drops all keys from this entry's key up to, not including, the given key. No tombstones are left, so older
    /// versions outside of the job become visible again. If the given key is not after the entry's key, this is
    /// [`Self::Keep`].
    RemoveAndSkipUntil(Vec<u8>),
    /// Deletes a value as a single delete does: for keys that are put only once. Drops a merge operand.
    Purge,
}

/// Why tables are written (RocksDB's `TableFileCreationReason`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableFileCreationReason {
    /// A memtable is flushed.
    Flush,
    /// A compaction.
    Compaction,
    /// A memtable that was filled from the WAL during an open is written.
    Recovery,
}

/// Information about the job that a filter is made for (RocksDB's `CompactionFilter::Context`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionFilterContext {
    /// It reads every table of the column family.
    pub is_full_compaction: bool,
    /// It was asked for by `compact_range`.
    pub is_manual_compaction: bool,
    /// The lowest level that it reads; `None` if it reads memtables.
    pub input_start_level: Option<u32>,
    /// The column family.
    pub column_family_id: u32,
    /// Why it writes tables.
    pub reason: TableFileCreationReason,
    /// When it began, in microseconds since 1970, by the database's clock. A filter that decides by age should use this
    /// time: its decisions are then the same for all entries of the job, and the same as a merge program's
    /// (`Options::set_kernel_merge_program`).
    pub now_micros: u64,
    /// The factory's settings at the time when the job was made ([`CompactionFilterFactory::option_text`]). A factory
    /// whose settings change should use these: all parts of the job then decide in the same way, wherever they run.
    pub options: String,
}

/// Decides on entries (`rocksdb::compaction_filter::CompactionFilter`). It must not wait for the database's background
/// work, because that work waits for the filter.
pub trait CompactionFilter: Send {
    /// Decides on the newest version of `key`, a value. `level`: the lowest level that the job reads; 0 in a flush.
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision;

    /// Decides on a merge operand of `key`; all stay by default.
    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        let _ = (level, key, operand);
        Decision::Keep
    }

    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Its settings as text of at most 64 KiB: limits, lists, the filter that it wraps. Empty by default. A job is sent
    /// to another process or machine only if a filter of the same name has the same text there. Called once, when the
    /// filter is set.
    fn option_text(&self) -> String {
        String::new()
    }
}

impl<F: CompactionFilter + ?Sized> CompactionFilter for Box<F> {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        (**self).filter(level, key, value)
    }

    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        (**self).filter_merge_operand(level, key, operand)
    }

    fn name(&self) -> &str {
        (**self).name()
    }

    fn option_text(&self) -> String {
        (**self).option_text()
    }
}

/// A function that decides on values: level, key, value (`rocksdb::compaction_filter::CompactionFilterFn`).
pub trait CompactionFilterFn: FnMut(u32, &[u8], &[u8]) -> Decision + Send + 'static {}

impl<F> CompactionFilterFn for F where F: FnMut(u32, &[u8], &[u8]) -> Decision + Send + 'static {}

/// Makes a filter for each part of a job (`rocksdb::compaction_filter_factory::CompactionFilterFactory`).
pub trait CompactionFilterFactory: Send {
    /// What it makes.
    type Filter: CompactionFilter + 'static;

    /// Makes a filter for one part of a job; one thread uses it.
    fn create(&mut self, context: CompactionFilterContext) -> Self::Filter;

    /// True if jobs of this kind should be filtered; by default, only compactions.
    fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
        reason == TableFileCreationReason::Compaction
    }

    /// Its name, for messages.
    fn name(&self) -> &str;

    /// The settings of its filters, as [`CompactionFilter::option_text`]. Called for each job; [`create`](Self::create)
    /// gets the result.
    fn option_text(&self) -> String {
        String::new()
    }
}

/// A factory of any kind of filter.
trait AnyFactory: Send {
    fn make(&mut self, context: CompactionFilterContext) -> Box<dyn CompactionFilter>;
    fn wanted(&self, reason: TableFileCreationReason) -> bool;
    fn options(&self) -> String;
}

impl<F: CompactionFilterFactory> AnyFactory for F {
    fn make(&mut self, context: CompactionFilterContext) -> Box<dyn CompactionFilter> {
        Box::new(self.create(context))
    }

    fn wanted(&self, reason: TableFileCreationReason) -> bool {
        self.should_filter_table_file_creation(reason)
    }

    fn options(&self) -> String {
        self.option_text()
    }
}

/// A filter that all jobs share. Only one thread calls it at a time: if that is too slow, use a factory.
#[derive(Clone)]
pub struct SharedFilter {
    name: Arc<str>,
    options: Arc<str>,
    filter: Arc<Mutex<dyn CompactionFilter>>,
}

impl SharedFilter {
    /// Shares `filter`.
    pub fn new(filter: impl CompactionFilter + 'static) -> Self {
        let (name, options) = (filter.name().into(), filter.option_text().into());
        Self { name, options, filter: Arc::new(Mutex::new(filter)) }
    }

    /// The filter's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The filter's settings as text.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }
}

impl fmt::Debug for SharedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedFilter").field(&self.name).finish()
    }
}

impl CompactionFilter for SharedFilter {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        self.filter.lock().filter(level, key, value)
    }

    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        self.filter.lock().filter_merge_operand(level, key, operand)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn option_text(&self) -> String {
        self.options.to_string()
    }
}

/// A factory that all jobs share.
#[derive(Clone)]
pub struct SharedFactory {
    name: Arc<str>,
    factory: Arc<Mutex<dyn AnyFactory>>,
    /// For a factory that expires values: their time to live in seconds, 0 for ever. An open database can change it. It
    /// is stored here because the factory's own type is hidden.
    pub(crate) time_to_live: Option<Arc<AtomicU64>>,
}

impl SharedFactory {
    /// Shares `factory`.
    pub fn new(factory: impl CompactionFilterFactory + 'static) -> Self {
        Self { name: factory.name().into(), factory: Arc::new(Mutex::new(factory)), time_to_live: None }
    }
}

impl fmt::Debug for SharedFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedFactory").field(&self.name).finish()
    }
}

impl CompactionFilterFactory for SharedFactory {
    type Filter = Box<dyn CompactionFilter>;

    fn create(&mut self, context: CompactionFilterContext) -> Self::Filter {
        self.factory.lock().make(context)
    }

    fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
        self.factory.lock().wanted(reason)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn option_text(&self) -> String {
        self.factory.lock().options()
    }
}

/// A filter made of a function.
pub(crate) struct FnFilter<F> {
    pub(crate) name: String,
    pub(crate) decide: F,
}

impl<F: CompactionFilterFn> CompactionFilter for FnFilter<F> {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        (self.decide)(level, key, value)
    }

    fn name(&self) -> &str {
        &self.name
    }
}
