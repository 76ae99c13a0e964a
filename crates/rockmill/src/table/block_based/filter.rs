//! A table's filter in memory, and the questions that reads ask it.

use rockmill_format::filter::FilterReader;
use rockmill_format::key;
use rockmill_format::{InternalKeyComparator, SliceTransform};

use super::index::TableIndex;
use super::reader::BlockBasedTable;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{MaybeStatistics, Ticker};

/// Filter blocks.
#[derive(Debug, Default)]
pub(super) enum Filter {
    /// There is none that can be used.
    #[default]
    None,
    /// One for all keys.
    Full(FilterReader),
    /// Several, each for the keys up to its separator.
    Partitioned(TableIndex, Vec<FilterReader>),
}

/// What stands in a table's filter.
#[derive(Debug)]
pub(super) struct FilterKeys {
    /// Whole keys. Also true without a filter, so that lookups have fewer cases to distinguish.
    pub whole: bool,
    /// Prefixes made by this extractor; `None` if there are none or their extractor is unknown.
    pub prefixes: Option<SliceTransform>,
}

impl Filter {
    /// False when the filter certainly lacks `entry`, which is the user key of `ikey` or its prefix.
    #[inline]
    pub fn may_match(&self, entry: &[u8], ikey: &[u8], cmp: &InternalKeyComparator) -> bool {
        match self {
            Self::None => true,
            Self::Full(filter) => filter.may_match(entry),
            Self::Partitioned(index, partitions) => {
                partitions.get(partition(index, partitions, ikey, cmp)).is_none_or(|f| f.may_match(entry))
            }
        }
    }

    /// False if the table certainly has no key with this prefix at or after `ikey`, which has the prefix as well; with
    /// `backward`, none at or before it.
    pub fn may_match_prefix(&self, prefix: &[u8], ikey: &[u8], backward: bool, cmp: &InternalKeyComparator) -> bool {
        let Self::Partitioned(index, partitions) = self else { return self.may_match(prefix, ikey, cmp) };
        // The partition that contains `ikey` may end before the prefix starts (backwards: start after it ends).
        // Rockmill adds the neighbour's prefix to it, but not every version of RocksDB does, so the neighbour is
        // queried too. A partition without entries (none of its keys has a prefix) says nothing about the next one.
        let mut at = partition(index, partitions, ikey, cmp);
        let mut neighbours = 0;
        while let Some(filter) = partitions.get(at) {
            if filter.may_match(prefix) {
                return true;
            }
            neighbours += usize::from(!filter.is_empty());
            at = match at.checked_sub(1) {
                _ if !backward => at + 1,
                Some(before) => before,
                None => return false,
            };
            if neighbours == 2 {
                return false;
            }
        }
        partitions.is_empty()
    }

    pub fn memory_usage(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Full(filter) => filter.memory_usage(),
            Self::Partitioned(index, partitions) => {
                index.memory_usage() + partitions.iter().map(FilterReader::memory_usage).sum::<usize>()
            }
        }
    }
}

/// The partition that `ikey` is in. Keys after the last separator belong to the last partition.
#[inline]
fn partition(index: &TableIndex, partitions: &[FilterReader], ikey: &[u8], cmp: &InternalKeyComparator) -> usize {
    index.seek(ikey, cmp).min(partitions.len().saturating_sub(1))
}

impl BlockBasedTable {
    /// What the filter says of the user key of `ikey`: false when the table certainly lacks it. `None` without a filter
    /// that can be asked.
    #[inline]
    pub(super) fn ask_filter(&self, filter: &Filter, ikey: &[u8]) -> Option<bool> {
        if matches!(filter, Filter::None) {
            return None;
        }
        if !self.filter_keys.whole {
            return self.ask_prefix_filter(filter, ikey);
        }
        let may_match = filter.may_match(key::user_key(ikey), ikey, &self.cmp);
        let ticker = if may_match { Ticker::BloomFilterFullPositive } else { Ticker::BloomFilterUseful };
        self.count_filter(may_match, ticker);
        Some(may_match)
    }

    /// The same by the key's prefix, where the filter holds no whole keys.
    fn ask_prefix_filter(&self, filter: &Filter, ikey: &[u8]) -> Option<bool> {
        let prefix = self.filter_keys.prefixes.as_ref()?.prefix(key::user_key(ikey))?;
        let may_match = filter.may_match(prefix, ikey, &self.cmp);
        if !may_match {
            self.statistics().add(Ticker::BloomFilterPrefixUseful, 1);
        }
        self.count_filter(may_match, Ticker::BloomFilterPrefixChecked);
        Some(may_match)
    }

    #[inline]
    fn count_filter(&self, may_match: bool, ticker: Ticker) {
        self.statistics().add(ticker, 1);
        perf::count(if may_match { PerfMetric::BloomSstHitCount } else { PerfMetric::BloomSstMissCount }, 1);
    }

    /// A lookup found the key that the filter had let through.
    #[inline]
    pub(super) fn count_true_positive(&self) {
        let whole = self.filter_keys.whole;
        let ticker = if whole { Ticker::BloomFilterFullTruePositive } else { Ticker::BloomFilterPrefixTruePositive };
        self.statistics().add(ticker, 1);
    }

    /// The extractor of the prefixes in the filter, if it has any that can be asked for.
    pub(crate) fn filter_prefixes(&self) -> Option<&SliceTransform> {
        self.filter_keys.prefixes.as_ref()
    }

    /// False if the table certainly has no key with this prefix at or after `ikey`; with `backward`, at or before it.
    /// `prefix` is what [`Self::filter_prefixes`] makes of the user key of `ikey`.
    pub(crate) fn prefix_may_match(&self, prefix: &[u8], ikey: &[u8], backward: bool) -> bool {
        // If the filter cannot be read, reading the table itself will report why.
        let Ok(meta) = self.meta(false, true) else { return true };
        meta.filter.may_match_prefix(prefix, ikey, backward, &self.cmp)
    }

    /// Counts the result of a seek's query for a prefix.
    pub(crate) fn count_seek(&self, may_match: bool, last_level: bool) {
        let ticker = match (last_level, may_match) {
            (true, true) => Ticker::LastLevelSeekFilterMatch,
            (true, false) => Ticker::LastLevelSeekFiltered,
            (false, true) => Ticker::NonLastLevelSeekFilterMatch,
            (false, false) => Ticker::NonLastLevelSeekFiltered,
        };
        self.count_filter(may_match, ticker);
    }
}
