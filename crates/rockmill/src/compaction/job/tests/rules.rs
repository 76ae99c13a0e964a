//! User code for these tests' jobs: a merge operator, a filter that removes and changes entries, and a factory whose
//! filters use all information about the job. Other processes find them by name.

use std::collections::BTreeSet;

use super::*;
use crate::compaction::model::Seen;
use crate::compaction::objects::JobRegistry;
use crate::compaction_filter::{
    CompactionFilter, CompactionFilterContext, CompactionFilterFactory, Decision, SharedFactory, SharedFilter,
};
use crate::merge_operator::{MergeOperator, StringAppendOperator};

/// Ends what a filter has changed.
const MARK: u8 = b'!';

/// Puts a space between operands, which its option text cannot express: only a registry can provide it.
pub(super) fn operator() -> Arc<dyn MergeOperator> {
    Arc::new(StringAppendOperator::new(" "))
}

/// True for keys whose entries the filters decide on: a third of a random history's keys, but none that is
/// single-deleted.
fn is_decided(key: &[u8]) -> bool {
    matches!(key, [k @ 100..130] if k % 3 == 0)
}

/// Decides by the bytes of key and value, and by the job.
struct Decides {
    name: &'static str,
    job: u32,
}

impl Decides {
    fn decide(&self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        if !is_decided(key) {
            return Decision::Keep;
        }
        let sum = key.iter().chain(value).fold(self.job + level, |sum, byte| sum + u32::from(*byte));
        match sum % 4 {
            0 => Decision::Remove,
            1 if !value.ends_with(&[MARK]) => Decision::Change([value, &[MARK]].concat()),
            _ => Decision::Keep,
        }
    }
}

impl CompactionFilter for Decides {
    fn filter(&mut self, level: u32, key: &[u8], value: &[u8]) -> Decision {
        self.decide(level, key, value)
    }

    fn filter_merge_operand(&mut self, level: u32, key: &[u8], operand: &[u8]) -> Decision {
        self.decide(level + 1, key, operand)
    }

    fn name(&self) -> &str {
        self.name
    }
}

/// Filters flushes, too.
struct DecidesByJob;

impl CompactionFilterFactory for DecidesByJob {
    type Filter = Decides;

    fn create(&mut self, context: CompactionFilterContext) -> Decides {
        let flags = u32::from(context.is_full_compaction) + 2 * u32::from(context.is_manual_compaction);
        let place = context.input_start_level.map_or(5, |level| 7 * level) + context.column_family_id;
        let time = (context.now_micros / 1_000_000 % 1000) as u32;
        Decides { name: "a filter of test.DecidesByJob", job: flags + place + time + context.reason as u32 }
    }

    fn should_filter_table_file_creation(&self, _: TableFileCreationReason) -> bool {
        true
    }

    fn name(&self) -> &str {
        "test.DecidesByJob"
    }
}

fn filter() -> SharedFilter {
    SharedFilter::new(Decides { name: "test.Decides", job: 0 })
}

/// Removes values shorter than a limit.
struct Limited(u32);

impl CompactionFilter for Limited {
    fn filter(&mut self, _: u32, _: &[u8], value: &[u8]) -> Decision {
        if value.len() < self.0 as usize { Decision::Remove } else { Decision::Keep }
    }

    fn name(&self) -> &str {
        "test.Limited"
    }

    fn option_text(&self) -> String {
        if self.0 == 0 { String::new() } else { format!("limit {}", self.0) }
    }
}

pub(super) fn limited(limit: u32) -> SharedFilter {
    SharedFilter::new(Limited(limit))
}

/// Registers what these tests use by name, for another process.
pub(super) fn register(known: &mut JobRegistry) {
    known.merge_operators.push(operator());
    known.filters.push(filter());
    known.filter_factories.push(SharedFactory::new(DecidesByJob));
}

impl Tree {
    /// From now on, the filter decides, or the factory's filters, or none.
    pub(super) fn change_filter(&mut self, which: usize) {
        (self.cf.compaction_filter, self.cf.compaction_filter_factory) = match which % 3 {
            0 => (Some(filter()), None),
            1 => (None, Some(SharedFactory::new(DecidesByJob))),
            _ => (None, None),
        };
        self.filtered |= which % 3 < 2;
    }

    /// Readers see the history, merged by [`operator`] where that is the column family's. For keys that filters decided
    /// on, checks only that readers see nothing that was never written.
    pub(super) fn check_history(&self, snapshots: &[u64], what: &str) {
        let (before, after) = (&self.history, self.all());
        if self.cf.merge_operator.is_none() && !self.filtered {
            return before.assert_same(&after, snapshots, what);
        }
        let keys: BTreeSet<_> = before.keys().into_iter().chain(after.keys()).collect();
        for snapshot in snapshots.iter().copied().chain([u64::MAX]) {
            for key in &keys {
                let (written, seen) = (before.seen(key, snapshot), after.seen(key, snapshot));
                let what = || format!("{what}: key {key:?} at snapshot {snapshot}");
                if self.filtered && is_decided(key) {
                    let of_key = before.entries.iter().filter(|e| e.0 == *key && e.1 <= snapshot);
                    let known: BTreeSet<&[u8]> = of_key.map(|e| e.3.as_slice()).collect();
                    let text = read(&seen).unwrap_or_default();
                    let words = text.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
                    let mut unmarked = words.map(|word| word.strip_suffix(&[MARK]).unwrap_or(word));
                    assert!(unmarked.all(|word| known.contains(word)), "{}: {seen:?}", what());
                } else if self.cf.merge_operator.is_some() {
                    assert_eq!(read(&written), read(&seen), "{}", what());
                } else {
                    assert_eq!(written, seen, "{}", what());
                }
            }
        }
    }
}

/// What the operator makes of it.
fn read(seen: &Seen) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> = seen.base.iter().chain(seen.operands.iter().rev()).map(Vec::as_slice).collect();
    (!words.is_empty()).then(|| words.join(&b' '))
}
