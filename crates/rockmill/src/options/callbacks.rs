//! The user's own code as options: merge operators and compaction filters.

use std::sync::Arc;

use super::Options;
use crate::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, CompactionFilterFn, FnFilter, SharedFactory, SharedFilter,
};
use crate::merge_operator::{FnOperator, MergeFn, MergeOperator};

impl Options {
    /// Merges with `full_merge_fn`, and operands without a base with `partial_merge_fn`, which gets no existing value
    /// and may return `None`.
    pub fn set_merge_operator<F: MergeFn, P: MergeFn>(
        &mut self,
        name: impl Into<String>,
        full_merge_fn: F,
        partial_merge_fn: P,
    ) {
        let operator = FnOperator { name: name.into(), full: full_merge_fn, partial: partial_merge_fn };
        self.cf.merge_operator = Some(Arc::new(operator));
    }

    /// Merges with one function, for operands that are values themselves. What the function makes of operands without
    /// an existing value must itself be a valid operand.
    pub fn set_merge_operator_associative<F: MergeFn + Clone>(&mut self, name: impl Into<String>, full_merge_fn: F) {
        self.set_merge_operator(name, full_merge_fn.clone(), full_merge_fn);
    }

    /// Merges with an operator object: your own [`MergeOperator`] or one of RocksDB's
    /// ([`by_name`](crate::merge_operator::by_name)).
    pub fn set_merge_operator_object(&mut self, operator: Arc<dyn MergeOperator>) {
        self.cf.merge_operator = Some(operator);
    }

    /// Calls `filter_fn` (level, key, value) for values in compactions. Only one thread calls it at a time.
    pub fn set_compaction_filter<F: CompactionFilterFn>(&mut self, name: impl Into<String>, filter_fn: F) {
        self.set_compaction_filter_object(FnFilter { name: name.into(), decide: filter_fn });
    }

    /// Calls a filter object for values and merge operands in compactions. Only one thread calls it at a time.
    pub fn set_compaction_filter_object(&mut self, filter: impl CompactionFilter + 'static) {
        self.cf.compaction_filter = Some(SharedFilter::new(filter));
    }

    /// Lets `factory` make a filter for each part of each compaction, and of each flush if it wants to.
    pub fn set_compaction_filter_factory(&mut self, factory: impl CompactionFilterFactory + 'static) {
        self.cf.compaction_filter_factory = Some(SharedFactory::new(factory));
    }
}
