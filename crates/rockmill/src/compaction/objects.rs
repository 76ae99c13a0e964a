//! Code that a job calls by name: comparator, merge operator, compaction filter, prefix extractor. A spec has the
//! names, the host has the objects.

use std::fmt;
use std::sync::Arc;

use rockmill_format::comparator::{Comparator, comparator_named};
use rockmill_format::{InternalKeyComparator, SliceTransform};

use super::spec::{FilterSpec, JobSpec};
use crate::compaction_filter::{CompactionFilterFactory as _, SharedFactory, SharedFilter, ttl};
use crate::compaction_workers::JobCode;
use crate::error::{Error, Result};
use crate::merge_operator::MergeOperator;
use crate::options::{CfOptions, merge_operator_named};
use crate::panics::caught;

/// The objects of one job, or of a column family.
#[derive(Clone, Default)]
pub struct JobObjects {
    /// Order of keys.
    pub cmp: InternalKeyComparator,
    /// Merges operands.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Asked about entries, before the factory where both are set.
    pub filter: Option<SharedFilter>,
    /// Makes filters.
    pub filter_factory: Option<JobFactory>,
    /// Makes the prefixes that tables' filters hold.
    pub prefix_extractor: Option<SliceTransform>,
}

/// A factory of filters, and its settings at the time when a job's objects were gathered. The job uses these from its
/// spec to its last part, whatever the factory says meanwhile.
#[derive(Debug, Clone)]
pub struct JobFactory {
    /// The factory.
    pub factory: SharedFactory,
    /// What it said of its settings; an error if it panicked.
    pub options: Result<String>,
}

impl JobFactory {
    /// Asks the factory for its settings.
    pub fn new(factory: &SharedFactory) -> Self {
        let asked = caught(format_args!("compaction filter {:?}", factory.name()), || factory.option_text());
        Self { factory: factory.clone(), options: asked }
    }
}

impl JobObjects {
    /// Those of a column family with these options.
    pub fn of(cf: &CfOptions, cmp: &InternalKeyComparator) -> Self {
        Self {
            cmp: cmp.clone(),
            merge_operator: cf.merge_operator.clone(),
            filter: cf.compaction_filter.clone(),
            filter_factory: cf.compaction_filter_factory.as_ref().map(JobFactory::new),
            prefix_extractor: cf.prefix_extractor.clone(),
        }
    }

    /// Refuses a spec that names other objects: its tables would not be those that its maker expects.
    pub(super) fn check(&self, spec: &JobSpec) -> Result<()> {
        let (wanted, wanted_options) = spec.filter.as_ref().map_or(("", ""), |f| (f.name.as_str(), f.options.as_str()));
        let (filter, filter_options) = match (&spec.filter, &self.filter, &self.filter_factory) {
            (Some(f), _, Some(here)) if f.from_factory => {
                (Some(here.factory.name()), Some(here.options.as_deref().map_err(Error::clone)?))
            }
            (Some(f), Some(here), _) if !f.from_factory => (Some(here.name()), Some(here.options())),
            _ => (None, None),
        };
        let operator = self.merge_operator.as_ref().map(|m| m.name());
        let operator_text = self.merge_operator.as_ref().map(|m| m.option_text());
        let extractor = self.prefix_extractor.as_ref().map(SliceTransform::name);
        let all = [
            ("comparator", (spec.comparator.as_str(), Some(self.cmp.user_comparator().name()))),
            ("merge operator", (spec.output.owner.merge_operator.as_str(), operator)),
            ("merge operator", (spec.merge_operator.as_str(), operator_text.as_deref())),
            ("compaction filter", (wanted, filter)),
            ("compaction filter with options", (wanted_options, filter_options)),
            ("prefix extractor", (spec.output.format.prefix_extractor.as_str(), extractor)),
        ];
        for (what, (wanted, here)) in all {
            if wanted != here.unwrap_or("") {
                let here = here.map_or_else(|| "none".to_owned(), |name| format!("{name:?}"));
                return Err(Error::invalid_argument(format!(
                    "the job needs the {what} {wanted:?}, and there is {here}: give its host the one that it names"
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for JobObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobObjects")
            .field("comparator", &self.cmp.user_comparator().name())
            .field("merge_operator", &self.merge_operator.as_ref().map(|m| m.name()))
            .field("filter", &self.filter.as_ref().map(SharedFilter::name))
            .field("filter_factory", &self.filter_factory.as_ref().map(|f| f.factory.name()))
            .field("prefix_extractor", &self.prefix_extractor)
            .finish()
    }
}

/// What a host that runs others' jobs knows by name, in addition to RocksDB's own comparators, merge operators and
/// prefix extractors, and the factory of values that expire (`Db::open_with_ttl`). If two objects of one kind have the
/// same name and options, the first counts.
#[derive(Clone, Default)]
pub struct JobRegistry {
    /// Orders of keys.
    pub comparators: Vec<Arc<dyn Comparator>>,
    /// Merge operators; each is known by its [`option_text`](MergeOperator::option_text), properties included.
    pub merge_operators: Vec<Arc<dyn MergeOperator>>,
    /// Filters; each is known by its name and its [`option_text`](crate::CompactionFilter::option_text).
    pub filters: Vec<SharedFilter>,
    /// Factories of filters; each is known by its name and by what its `option_text` is when a job comes.
    pub filter_factories: Vec<SharedFactory>,
    /// Prefix extractors.
    pub prefix_extractors: Vec<SliceTransform>,
}

impl JobRegistry {
    /// The objects that `spec` names, if it is a job that a host can do.
    ///
    /// # Errors
    /// `NotSupported`, with its name, for an object that is not known here: the job is for another host.
    /// `InvalidArgument` for tables that no database writes.
    pub fn objects(&self, spec: &JobSpec) -> Result<JobObjects> {
        spec.output.format.check(spec.output.compression, &spec.output.compression_opts)?;
        let mut out = JobObjects::default();
        let name = spec.comparator.as_str();
        let cmp = self.comparator(name).ok_or_else(|| unknown("comparator", name))?;
        out.cmp = InternalKeyComparator::new(cmp);
        let text = spec.merge_operator.as_str();
        out.merge_operator = self.merge_operator(text).ok_or_else(|| unknown("merge operator", text))?;
        if let Some(FilterSpec { name, options, from_factory, .. }) = &spec.filter {
            let missing = || {
                let known = self.filters.iter().map(SharedFilter::name);
                let mut known = known.chain(self.filter_factories.iter().map(|f| f.name())).chain([ttl::NAME]);
                match known.any(|known| known == name) {
                    true => unknown("compaction filter with options", options),
                    false => unknown("compaction filter", name),
                }
            };
            if *from_factory {
                out.filter_factory = Some(self.filter_factory(name, options).ok_or_else(missing)?);
            } else {
                out.filter = Some(self.filter(name, options).ok_or_else(missing)?);
            }
        }
        let name = spec.output.format.prefix_extractor.as_str();
        if !name.is_empty() {
            out.prefix_extractor = Some(self.prefix_extractor(name).ok_or_else(|| unknown("prefix extractor", name))?);
        }
        Ok(out)
    }

    /// Whether it has this code.
    pub fn knows(&self, code: JobCode<'_>) -> bool {
        match code {
            JobCode::Comparator(name) => self.comparator(name).is_some(),
            JobCode::MergeOperator(text) => self.merge_operator(text).is_some(),
            JobCode::Filter { name, options } => self.filter(name, options).is_some(),
            JobCode::FilterFactory { name, options } => self.filter_factory(name, options).is_some(),
            JobCode::PrefixExtractor(name) => self.prefix_extractor(name).is_some(),
        }
    }

    fn comparator(&self, name: &str) -> Option<Arc<dyn Comparator>> {
        self.comparators.iter().find(|c| c.name() == name).cloned().or_else(|| comparator_named(name))
    }

    /// The inner value is `None` for a job without one.
    fn merge_operator(&self, text: &str) -> Option<Option<Arc<dyn MergeOperator>>> {
        if let Some(operator) = self.merge_operators.iter().find(|m| m.option_text() == text) {
            return Some(Some(Arc::clone(operator)));
        }
        // A text that does not fully describe an operator (a delimiter that cannot be spelled) would find another one.
        merge_operator_named(text).filter(|found| found.as_ref().map_or_else(String::new, |m| m.option_text()) == text)
    }

    fn filter(&self, name: &str, options: &str) -> Option<SharedFilter> {
        self.filters.iter().find(|f| f.name() == name && f.options() == options).cloned()
    }

    fn filter_factory(&self, name: &str, options: &str) -> Option<JobFactory> {
        let named = self.filter_factories.iter().filter(|f| f.name() == name);
        let says = |f: &JobFactory| f.options.as_ref().is_ok_and(|says| says == options);
        let known = named.map(JobFactory::new).find(says);
        // That of values that expire is the store's own.
        known.or_else(|| {
            let here = (name == ttl::NAME).then(|| ttl::factory_with(options, &self.filters, &self.filter_factories));
            here.flatten().map(|factory| JobFactory::new(&factory)).filter(says)
        })
    }

    fn prefix_extractor(&self, name: &str) -> Option<SliceTransform> {
        let known = self.prefix_extractors.iter().find(|e| e.name() == name).cloned();
        known.or_else(|| SliceTransform::from_name(name))
    }
}

fn unknown(what: &str, name: &str) -> Error {
    let what = format!("the job's {what} {name:?} is not known here");
    Error::not_supported(format!("{what}: register it, or run the job elsewhere"))
}

impl JobSpec {
    /// The code that it calls.
    pub(super) fn code(&self) -> impl Iterator<Item = JobCode<'_>> {
        let filter = self.filter.as_ref().map(|filter| {
            let (name, options) = (filter.name.as_str(), filter.options.as_str());
            match filter.from_factory {
                true => JobCode::FilterFactory { name, options },
                false => JobCode::Filter { name, options },
            }
        });
        let extractor = Some(self.output.format.prefix_extractor.as_str()).filter(|name| !name.is_empty());
        let always = [JobCode::Comparator(&self.comparator), JobCode::MergeOperator(&self.merge_operator)];
        always.into_iter().chain(filter).chain(extractor.map(JobCode::PrefixExtractor))
    }
}

impl fmt::Debug for JobRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobRegistry")
            .field("comparators", &self.comparators.iter().map(|c| c.name()).collect::<Vec<_>>())
            .field("merge_operators", &self.merge_operators.iter().map(|m| m.name()).collect::<Vec<_>>())
            .field("filters", &self.filters.iter().map(SharedFilter::name).collect::<Vec<_>>())
            .field("filter_factories", &self.filter_factories.iter().map(|f| f.name()).collect::<Vec<_>>())
            .field("prefix_extractors", &self.prefix_extractors)
            .finish()
    }
}
