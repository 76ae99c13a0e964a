//! A job's compaction filter: which one is used, what it gets to know, and how its panics are handled.

use std::fmt;

use super::objects::{JobFactory, JobObjects};
use super::spec::{FilterSpec, JobSpec};
use super::{Compaction, CompactionReason};
use crate::compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision, SharedFactory, SharedFilter,
    TableFileCreationReason,
};
use crate::error::{Error, ErrorKind, Result};
use crate::panics::{caught, in_words};

impl FilterSpec {
    /// The filter of a compaction; `None` if it has none.
    pub(super) fn of_compaction(
        compaction: &Compaction,
        objects: &JobObjects,
        now_micros: u64,
    ) -> Result<Option<Self>> {
        let mut spec = Self {
            is_full_compaction: !compaction.is_intra_df()
                && compaction.input_files().count() == compaction.version.num_files(),
            is_manual_compaction: compaction.reason == CompactionReason::ManualCompaction,
            input_start_level: Some(compaction.start_level() as u32),
            now_micros,
            ..Self::default()
        };
        if let Some(shared) = &objects.filter {
            (spec.name, spec.options) = (shared.name().to_owned(), shared.options().to_owned());
            return Ok(Some(spec));
        }
        spec.of_factory(objects, TableFileCreationReason::Compaction)
    }

    /// The filter of a flush; flushes are filtered only if a factory asks for it.
    pub(super) fn of_flush(
        objects: &JobObjects,
        reason: TableFileCreationReason,
        now_micros: u64,
    ) -> Result<Option<Self>> {
        Self { now_micros, ..Self::default() }.of_factory(objects, reason)
    }

    fn of_factory(mut self, objects: &JobObjects, reason: TableFileCreationReason) -> Result<Option<Self>> {
        let Some(JobFactory { factory, options }) = &objects.filter_factory else { return Ok(None) };
        if !caught(named(factory.name()), || factory.should_filter_table_file_creation(reason))? {
            return Ok(None);
        }
        (self.name, self.options, self.from_factory) = (factory.name().to_owned(), options.clone()?, true);
        Ok(Some(self))
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
    /// The lowest level that the job reads.
    pub(super) level: u32,
    /// When it began, in microseconds since 1970.
    pub(super) now_micros: u64,
}

impl FilterPlan {
    /// The filter that `spec` names, which is among these objects.
    pub(super) fn new(spec: &JobSpec, objects: &JobObjects) -> Option<Self> {
        let filter = spec.filter.as_ref()?;
        let context = CompactionFilterContext {
            is_full_compaction: filter.is_full_compaction,
            is_manual_compaction: filter.is_manual_compaction,
            input_start_level: filter.input_start_level,
            column_family_id: spec.output.owner.cf_id,
            reason: spec.reason,
            now_micros: filter.now_micros,
            options: filter.options.clone(),
        };
        let source = match filter.from_factory {
            true => Source::Factory(objects.filter_factory.as_ref()?.factory.clone(), context),
            false => Source::Shared(objects.filter.clone()?),
        };
        Some(Self { source, level: filter.input_start_level.unwrap_or(0), now_micros: filter.now_micros })
    }

    /// A filter that all jobs share; `level` is the lowest level that the job reads.
    #[cfg(test)]
    pub(super) fn shared(filter: SharedFilter, level: u32) -> Self {
        Self { source: Source::Shared(filter), level, now_micros: 0 }
    }

    /// The filter's or factory's name.
    pub fn name(&self) -> &str {
        match &self.source {
            Source::Shared(filter) => filter.name(),
            Source::Factory(factory, _) => factory.name(),
        }
    }

    /// The name, and after it in braces the [`option_text`](CompactionFilter::option_text), if there is one: the same
    /// text, the same decisions.
    #[cfg(feature = "kernel")]
    pub fn text(&self) -> String {
        let options = match &self.source {
            Source::Shared(filter) => filter.options(),
            Source::Factory(_, context) => &context.options,
        };
        if options.is_empty() { self.name().to_owned() } else { format!("{}{{{options}}}", self.name()) }
    }

    /// The filter for one part of the job.
    pub(super) fn begin(&self) -> Result<PartFilter> {
        let filter: Box<dyn CompactionFilter> = match &self.source {
            Source::Shared(shared) => Box::new(shared.clone()),
            Source::Factory(factory, context) => {
                let mut factory = factory.clone();
                caught(named(self.name()), || factory.create(context.clone()))?
            }
        };
        Ok(PartFilter { filter, level: self.level })
    }
}

impl fmt::Debug for FilterPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilterPlan({:?}, level {}, at {} us)", self.name(), self.level, self.now_micros)
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
            Err(words) => Err(panicked(self.filter.name(), key, &words)),
        }
    }
}

/// A filter in a message.
fn named(name: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "compaction filter {name:?}"))
}

#[cold]
fn panicked(name: &str, key: &[u8], words: &str) -> Error {
    let message = format!("{} panicked on key {}: {words}", named(name), key.escape_ascii());
    Error::new(ErrorKind::Aborted, message)
}
