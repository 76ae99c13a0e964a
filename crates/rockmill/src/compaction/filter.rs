//! Compaction filters: the user's word on which values stay, asked while tables are written.
//!
//! 1. A filter is set once for a column family and shared by every job, or a factory makes one for each part of each
//!    job. With both, the filter is the one that compactions ask.
//! 2. Compactions ask it; flushes only where the factory wants that.
//! 3. It is asked about the newest version of each user key in the job, if that is a value, and about merge operands
//!    that no snapshot sees. Snapshots do not protect values: what a filter removes or changes, they no longer see.
//! 4. A panic of a filter or factory is an error of the job that names it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rockmill_kernel::FilterJob;

use super::Compaction;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{CfOptions, Options};
use crate::sync::Mutex;

/// What becomes of an entry (RocksDB's `CompactionFilter::Decision`).
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// ([`Options::set_kernel_merge_program`]).
    pub now_micros: u64,
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
}

/// A factory of any kind of filter.
trait AnyFactory: Send {
    fn make(&mut self, context: CompactionFilterContext) -> Box<dyn CompactionFilter>;
    fn wanted(&self, reason: TableFileCreationReason) -> bool;
}

impl<F: CompactionFilterFactory> AnyFactory for F {
    fn make(&mut self, context: CompactionFilterContext) -> Box<dyn CompactionFilter> {
        Box::new(self.create(context))
    }

    fn wanted(&self, reason: TableFileCreationReason) -> bool {
        self.should_filter_table_file_creation(reason)
    }
}

/// A filter that all jobs share. It is asked by one thread at a time: where that is too slow, use a factory.
#[derive(Clone)]
pub struct SharedFilter {
    name: Arc<str>,
    filter: Arc<Mutex<dyn CompactionFilter>>,
}

impl SharedFilter {
    /// Shares `filter`.
    pub fn new(filter: impl CompactionFilter + 'static) -> Self {
        Self { name: filter.name().into(), filter: Arc::new(Mutex::new(filter)) }
    }

    /// The filter's name.
    pub fn name(&self) -> &str {
        &self.name
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
}

/// A factory that all jobs share.
#[derive(Clone)]
pub struct SharedFactory {
    name: Arc<str>,
    factory: Arc<Mutex<dyn AnyFactory>>,
}

impl SharedFactory {
    /// Shares `factory`.
    pub fn new(factory: impl CompactionFilterFactory + 'static) -> Self {
        Self { name: factory.name().into(), factory: Arc::new(Mutex::new(factory)) }
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
}

/// A filter made of a function.
struct FnFilter<F> {
    name: String,
    decide: F,
}

impl<F: CompactionFilterFn> CompactionFilter for FnFilter<F> {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        (self.decide)(level, key, value)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Options {
    /// Asks `filter_fn` (level, key, value) about values in compactions. Threads take turns to ask it.
    pub fn set_compaction_filter<F: CompactionFilterFn>(&mut self, name: impl Into<String>, filter_fn: F) {
        self.set_compaction_filter_object(FnFilter { name: name.into(), decide: filter_fn });
    }

    /// Asks a filter object about values and merge operands in compactions. Threads take turns to ask it.
    pub fn set_compaction_filter_object(&mut self, filter: impl CompactionFilter + 'static) {
        self.cf.compaction_filter = Some(SharedFilter::new(filter));
    }

    /// Has `factory` make a filter for each part of each compaction, and of each flush if it wants to.
    pub fn set_compaction_filter_factory(&mut self, factory: impl CompactionFilterFactory + 'static) {
        self.cf.compaction_filter_factory = Some(SharedFactory::new(factory));
    }
}

/// Where the filters of a job come from.
#[derive(Clone)]
enum Source {
    Shared(SharedFilter),
    Factory(SharedFactory, CompactionFilterContext),
}

/// The filter of a job: part of its rules.
#[derive(Clone)]
pub struct FilterPlan {
    source: Source,
    level: u32,
    now_micros: u64,
}

impl FilterPlan {
    /// That of a compaction.
    pub(super) fn of_compaction(
        compaction: &Compaction,
        cf: &CfOptions,
        cf_id: u32,
        now_micros: u64,
    ) -> Result<Option<Self>> {
        let level = compaction.start_level() as u32;
        if let Some(shared) = &cf.compaction_filter {
            return Ok(Some(Self { source: Source::Shared(shared.clone()), level, now_micros }));
        }
        let context = CompactionFilterContext {
            is_full_compaction: !compaction.is_intra_df()
                && compaction.input_files().count() == compaction.version.num_files(),
            is_manual_compaction: compaction.reason == super::CompactionReason::ManualCompaction,
            input_start_level: Some(level),
            column_family_id: cf_id,
            reason: TableFileCreationReason::Compaction,
            now_micros,
        };
        Self::of_factory(cf, context)
    }

    /// That of a flush, which a factory must have asked for.
    pub(super) fn of_flush(
        cf: &CfOptions,
        cf_id: u32,
        reason: TableFileCreationReason,
        now_micros: u64,
    ) -> Result<Option<Self>> {
        let context = CompactionFilterContext {
            is_full_compaction: false,
            is_manual_compaction: false,
            input_start_level: None,
            column_family_id: cf_id,
            reason,
            now_micros,
        };
        Self::of_factory(cf, context)
    }

    fn of_factory(cf: &CfOptions, context: CompactionFilterContext) -> Result<Option<Self>> {
        let Some(factory) = &cf.compaction_filter_factory else { return Ok(None) };
        let reason = context.reason;
        let wanted = guarded(factory.name(), None, || factory.should_filter_table_file_creation(reason))?;
        let (level, now_micros) = (context.input_start_level.unwrap_or(0), context.now_micros);
        Ok(wanted.then(|| Self { source: Source::Factory(factory.clone(), context), level, now_micros }))
    }

    /// The filter's or factory's name.
    pub fn name(&self) -> &str {
        match &self.source {
            Source::Shared(filter) => filter.name(),
            Source::Factory(factory, _) => factory.name(),
        }
    }

    /// What a filter in the kernel is told.
    pub(super) fn kernel_job(&self) -> FilterJob {
        FilterJob { level: self.level, now_micros: self.now_micros }
    }

    /// The filter for one part of the job.
    pub(super) fn begin(&self) -> Result<PartFilter> {
        let filter: Box<dyn CompactionFilter> = match &self.source {
            Source::Shared(shared) => Box::new(shared.clone()),
            Source::Factory(factory, context) => {
                let mut factory = factory.clone();
                guarded(self.name(), None, || factory.create(context.clone()))?
            }
        };
        Ok(PartFilter { filter, level: self.level })
    }
}

impl fmt::Debug for FilterPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilterPlan({:?}, level {})", self.name(), self.level)
    }
}

/// The filter that one part of a job asks.
pub(super) struct PartFilter {
    filter: Box<dyn CompactionFilter>,
    level: u32,
}

impl PartFilter {
    /// Asks about a value.
    pub fn value(&mut self, key: &[u8], value: &[u8]) -> Result<Decision> {
        let Self { filter, level } = self;
        let decision = catch_unwind(AssertUnwindSafe(|| filter.filter(*level, key, value)));
        self.checked(key, decision)
    }

    /// Asks about a merge operand.
    pub fn operand(&mut self, key: &[u8], operand: &[u8]) -> Result<Decision> {
        let Self { filter, level } = self;
        let decision = catch_unwind(AssertUnwindSafe(|| filter.filter_merge_operand(*level, key, operand)));
        self.checked(key, decision)
    }

    fn checked(&self, key: &[u8], decision: std::thread::Result<Decision>) -> Result<Decision> {
        match decision {
            Ok(Decision::Change(v)) if u32::try_from(v.len()).is_err() => Err(Error::invalid_argument(format!(
                "compaction filter {:?} made a value of {} bytes for key {}, more than the 4 GiB that a table can hold",
                self.filter.name(),
                v.len(),
                key.escape_ascii()
            ))),
            Ok(decision) => Ok(decision),
            Err(panic) => Err(panicked(self.filter.name(), Some(key), &*panic)),
        }
    }
}

/// Runs a call into the user's code; its panic is an error.
fn guarded<T>(name: &str, key: Option<&[u8]>, call: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| panicked(name, key, &*panic))
}

#[cold]
fn panicked(name: &str, key: Option<&[u8]>, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let at = key.map_or_else(String::new, |k| format!(" on key {}", k.escape_ascii()));
    Error::new(ErrorKind::Aborted, format!("compaction filter {name:?} panicked{at}: {text}"))
}
