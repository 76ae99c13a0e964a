//! A job's compaction filter: which one it asks, what it is told, and what becomes of its panics.

use std::fmt;

use rockmill_kernel::FilterJob;

use super::Compaction;
use crate::compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision, SharedFactory, SharedFilter,
    TableFileCreationReason,
};
use crate::error::{Error, ErrorKind, Result};
use crate::options::CfOptions;
use crate::panics::in_words;

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
        let decision = in_words(|| filter.filter(*level, key, value));
        self.checked(key, decision)
    }

    /// Asks about a merge operand.
    pub fn operand(&mut self, key: &[u8], operand: &[u8]) -> Result<Decision> {
        let Self { filter, level } = self;
        let decision = in_words(|| filter.filter_merge_operand(*level, key, operand));
        self.checked(key, decision)
    }

    fn checked(&self, key: &[u8], decision: std::result::Result<Decision, String>) -> Result<Decision> {
        match decision {
            Ok(Decision::Change(v)) if u32::try_from(v.len()).is_err() => Err(Error::invalid_argument(format!(
                "compaction filter {:?} made a value of {} bytes for key {}, more than the 4 GiB that a table can hold",
                self.filter.name(),
                v.len(),
                key.escape_ascii()
            ))),
            Ok(decision) => Ok(decision),
            Err(words) => Err(panicked(self.filter.name(), Some(key), &words)),
        }
    }
}

/// Runs a call into the user's code; its panic is an error.
fn guarded<T>(name: &str, key: Option<&[u8]>, call: impl FnOnce() -> T) -> Result<T> {
    in_words(call).map_err(|words| panicked(name, key, &words))
}

#[cold]
fn panicked(name: &str, key: Option<&[u8]>, words: &str) -> Error {
    let at = key.map_or_else(String::new, |k| format!(" on key {}", k.escape_ascii()));
    Error::new(ErrorKind::Aborted, format!("compaction filter {name:?} panicked{at}: {words}"))
}
