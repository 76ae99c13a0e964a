//! Writes any tables of a column family as one sorted run, for repair. Nothing is resolved, dropped or merged, so it
//! need not be known which table is older. Only an entry that occurs twice is written once.

use std::sync::Arc;

use rockmill_format::edit::FileEntry;
use rockmill_format::key::{ParsedInternalKey, user_key};
use rockmill_format::{InternalKeyComparator, ValueType};

use super::JobHost;
use super::describe::JobFamily;
use super::output::{Created, OutputFiles, Outputs};
use super::plan::Rules;
use super::spec::{OutputPlan, Part};
use super::tombstones::Tombstones;
use crate::compaction_filter::TableFileCreationReason;
use crate::error::{Error, Result};
use crate::iter::InternalIterator;
use crate::iter::merging::MergingIterator;
use crate::panics::guarded;
use crate::range_del::FragmentedRangeTombstones;
use crate::sync::atomic::AtomicBool;

/// Writes what `entries` gives and these range tombstones as tables of a column family that do not overlap (as one
/// table for level 0), synced together with their directory.
///
/// Children of `entries` from `flushed_logs` on are log data, some of which may be in the other children, too. If an
/// entry is there, so are the older ones of its key, which a flush may have merged into it; then their operands are
/// left out.
pub(crate) fn write_run(
    entries: &mut MergingIterator,
    flushed_logs: Option<usize>,
    tombstones: Vec<Arc<FragmentedRangeTombstones>>,
    level: usize,
    family: &JobFamily,
    host: &dyn JobHost,
) -> Result<Vec<FileEntry>> {
    let files = OutputFiles::new(host, TableFileCreationReason::Compaction, Vec::new());
    let created = Created::new(&files);
    let written = guarded("it", || write(entries, flushed_logs, tombstones, level, family, &created));
    let done = written.and_then(|files| {
        if !files.is_empty() {
            host.sync_outputs()?;
        }
        Ok(files)
    });
    done.inspect_err(|_| created.remove())
}

fn write(
    entries: &mut MergingIterator,
    flushed_logs: Option<usize>,
    tombstones: Vec<Arc<FragmentedRangeTombstones>>,
    level: usize,
    family: &JobFamily,
    created: &Created<'_>,
) -> Result<Vec<FileEntry>> {
    let means = created.files.host.means();
    let cmp = &means.objects.cmp;
    let target = family.options.target_file_size_base;
    let plan = OutputPlan {
        file_size_target: target,
        file_size_max: target,
        ..OutputPlan::of_new_entries(family.owner(), &family.options, level, means.db.reproducible)
    };
    let rules = Rules::new(cmp.clone(), Vec::new());
    let (tombstones, part) = (Tombstones::whole(tombstones), Part::default());
    let never = AtomicBool::new(false);
    let mut outputs = Outputs::new(&plan, &rules, &tombstones, &part, created, None, [&never; 3]);

    // Entries of one user key and sequence number, of which one is written.
    let mut same = Same::default();
    entries.seek_to_first();
    while entries.valid() {
        let parsed = ParsedInternalKey::parse(entries.key()).map_err(|e| Error::corruption(e.to_string()))?;
        if !same.takes(&parsed, cmp) {
            same.write(&mut outputs)?;
            same.begin(&parsed, entries.key(), cmp);
        }
        let from_log = flushed_logs.zip(entries.current_child()).is_some_and(|(logs, child)| child >= logs);
        same.add(&parsed, entries.key(), entries.value(), from_log);
        entries.next();
    }
    entries.status()?;
    same.write(&mut outputs)?;
    Ok(outputs.finish()?.0)
}

/// One user key at one sequence number.
#[derive(Default)]
struct Same {
    any: bool,
    new_user_key: bool,
    sequence: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    is_merge: bool,
    /// Nothing was taken yet.
    fresh: bool,
    /// It is in a table, and it is in a log.
    sources: [bool; 2],
    /// A newer entry of the user key is in both.
    flushed: bool,
}

impl Same {
    fn takes(&self, next: &ParsedInternalKey<'_>, cmp: &InternalKeyComparator) -> bool {
        self.any && self.sequence == next.sequence && cmp.compare_user(user_key(&self.key), next.user_key).is_eq()
    }

    fn begin(&mut self, next: &ParsedInternalKey<'_>, ikey: &[u8], cmp: &InternalKeyComparator) {
        self.new_user_key = !self.any || cmp.compare_user(user_key(&self.key), next.user_key).is_ne();
        self.flushed = !self.new_user_key && (self.flushed || self.sources == [true; 2]);
        self.sources = [false; 2];
        self.sequence = next.sequence;
        self.key.clear();
        self.key.extend_from_slice(ikey);
        self.any = true;
        self.fresh = true;
    }

    /// Takes an entry if there is none yet, or if it replaces an operand that a compaction has since merged into a
    /// value.
    fn add(&mut self, parsed: &ParsedInternalKey<'_>, ikey: &[u8], value: &[u8], from_log: bool) {
        self.sources[usize::from(from_log)] = true;
        let merge = parsed.value_type == ValueType::Merge;
        if std::mem::take(&mut self.fresh) || (self.is_merge && !merge) {
            self.key.clear();
            self.key.extend_from_slice(ikey);
            self.value.clear();
            self.value.extend_from_slice(value);
            self.is_merge = merge;
        }
    }

    fn write(&mut self, outputs: &mut Outputs<'_>) -> Result<()> {
        let merged_above = self.flushed && self.is_merge && self.sources == [false, true];
        if self.any && !merged_above { outputs.add(&self.key, &self.value, self.new_user_key) } else { Ok(()) }
    }
}
