//! Counts the calls and the time of merge operators.

use std::sync::Arc;

use super::{Histogram, Statistics, Ticker};
use crate::merge_operator::{MergeOperands, MergeOperator};
use crate::perf_context::now_nanos;

/// A merge operator whose calls are counted.
pub(crate) struct CountedOperator {
    operator: Arc<dyn MergeOperator>,
    statistics: Arc<Statistics>,
    /// True if it merges for users' reads, false for jobs.
    reads: bool,
}

impl CountedOperator {
    /// `operator`, with counters if statistics are enabled.
    pub fn wrap(
        operator: Option<&Arc<dyn MergeOperator>>,
        statistics: Option<&Arc<Statistics>>,
        reads: bool,
    ) -> Option<Arc<dyn MergeOperator>> {
        let operator = Arc::clone(operator?);
        Some(match statistics {
            Some(s) => Arc::new(Self { operator, statistics: Arc::clone(s), reads }),
            None => operator,
        })
    }
}

impl MergeOperator for CountedOperator {
    fn name(&self) -> &str {
        self.operator.name()
    }

    fn option_text(&self) -> String {
        self.operator.option_text()
    }

    fn wraps(&self) -> Option<&str> {
        self.operator.wraps()
    }

    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        if self.reads {
            self.statistics.record(Histogram::ReadNumMergeOperands, operands.len() as u64);
        }
        let before = now_nanos();
        let merged = self.operator.full_merge(key, existing, operands);
        self.statistics.add(Ticker::MergeOperationTotalTime, now_nanos().saturating_sub(before));
        if merged.is_none() {
            self.statistics.add(Ticker::NumberMergeFailures, 1);
        }
        merged
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        let before = now_nanos();
        let merged = self.operator.partial_merge(key, operands);
        self.statistics.add(Ticker::MergeOperationTotalTime, now_nanos().saturating_sub(before));
        merged
    }
}
