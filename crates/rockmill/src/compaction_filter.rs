//! Compaction filters: the user's word on which values stay, asked while tables are written.
//!
//! 1. A filter is set once for a column family and shared by every job, or a factory makes one for each part of each
//!    job. With both, the filter is the one that compactions ask.
//! 2. Compactions ask it; flushes only where the factory wants that.
//! 3. It is asked about the newest version of each user key in the job, if that is a value, and about merge operands
//!    that no snapshot sees. Snapshots do not protect values: what a filter removes or changes, they no longer see.
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
    /// A value is deleted, with every older version of its key; a merge operand goes.
    Remove,
    /// It stays with this value (or operand).
    Change(Vec<u8>),
    /// Everything from its key to this one, which stays, goes without a trace: no tombstone is left, so that older
    /// versions outside the job come back to light. A key that is not behind its own means [`Self::Keep`].
    RemoveAndSkipUntil(Vec<u8>),
    /// A value is deleted as by a single delete: for keys that are put once. A merge operand goes.
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
    /// A memtable is written that an open filled from the WAL.
    Recovery,
}

/// The job that a filter is made for (RocksDB's `CompactionFilter::Context`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionFilterContext {
    /// It reads every table of the column family.
    pub is_full_compaction: bool,
    /// It was asked for by `compact_range`.
    pub is_manual_compaction: bool,
    /// The lowest level that it reads; `None` when it reads memtables.
    pub input_start_level: Option<u32>,
    /// The column family.
    pub column_family_id: u32,
    /// Why it writes tables.
    pub reason: TableFileCreationReason,
    /// When it began, in microseconds since 1970, by the database's clock. A filter that decides by age and goes by
    /// this decides alike for all entries of the job, and as a merge program does
    /// (`Options::set_kernel_merge_program`).
    pub now_micros: u64,
    /// What the factory said of its settings when the job was made ([`CompactionFilterFactory::option_text`]). A
    /// factory whose settings change goes by this: then all parts of the job decide alike, wherever they run.
    pub options: String,
}

/// Decides on entries (`rocksdb::compaction_filter::CompactionFilter`). It must not wait for the database's
/// background work, which waits for it.
pub trait CompactionFilter: Send {
    /// Decides on the newest version of `key`, a value. `level`: the lowest one that the job reads; 0 in a flush.
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision;

    /// Decides on a merge operand of `key`; all stay by default.
    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        let _ = (level, key, operand);
        Decision::Keep
    }

    /// Its name, for messages.
    fn name(&self) -> &str;

    /// What it decides by besides its name, as text of at most 64 KiB: limits, lists, the filter that it is wrapped
    /// around. Nothing by default. A job goes to another process or machine only where a filter of this name says the
    /// same. It is asked once, when the filter is set.
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

    /// A filter for one part of a job; one thread uses it.
    fn create(&mut self, context: CompactionFilterContext) -> Self::Filter;

    /// True when jobs of this kind are to be filtered; compactions only by default.
    fn should_filter_table_file_creation(&self, reason: TableFileCreationReason) -> bool {
        reason == TableFileCreationReason::Compaction
    }

    /// Its name, for messages.
    fn name(&self) -> &str;

    /// What its filters decide by besides its name, as [`CompactionFilter::option_text`]. It is asked for each job, and
    /// [`create`](Self::create) is told what it said.
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

/// A filter that all jobs share. It is asked by one thread at a time: where that is too slow, use a factory.
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

    /// What it decides by besides its name.
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
    /// Where it ends the lives of values: after so many seconds, 0 for ever. An open database changes them; they are
    /// here as nobody can look for them in the factory itself.
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
