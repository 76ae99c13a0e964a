//! The range tombstones of a job: gathered from its inputs, and cut to output files.

use std::sync::Arc;

use rockmill_format::key::{MAX_SEQUENCE, pack_tag, tag};
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, ValueType};

use super::JobContext;
use super::plan::{InputRun, JobPlan, Rules};
use crate::error::Result;
use crate::memtable::MemTable;
use crate::range_del::{CompactionRangeDel, FragmentedRangeTombstones};

/// The tombstones of one input, and the keys that they hold for (`None` everywhere).
#[derive(Debug, Clone)]
struct Source {
    fragments: Arc<FragmentedRangeTombstones>,
    bounds: Option<(InternalKey, InternalKey)>,
}

/// Range tombstones of all inputs. Cheap to clone: the tombstones are shared.
#[derive(Debug, Clone, Default)]
pub struct Tombstones {
    sources: Vec<Source>,
}

impl Tombstones {
    /// Those of a plan's input tables, each cut to the part of the level that its file stands for.
    pub fn gather(plan: &JobPlan, ctx: &JobContext) -> Result<Self> {
        let mut sources = Vec::new();
        for run in &plan.runs {
            for (i, file) in run.files.iter().enumerate() {
                let table = ctx.tables.table(file)?;
                if let Some(fragments) = table.range_tombstones() {
                    let bounds = Some(unit_bounds(run, i, &plan.rules.cmp));
                    sources.push(Source { fragments: Arc::clone(fragments), bounds });
                }
            }
        }
        Ok(Self { sources })
    }

    /// Those of memtables.
    pub fn of_memtables(memtables: &[Arc<MemTable>]) -> Self {
        let fragments = memtables.iter().filter_map(|m| m.range_tombstones());
        Self { sources: fragments.map(|fragments| Source { fragments, bounds: None }).collect() }
    }

    /// Those of one list, not cut.
    #[cfg(test)]
    pub(super) fn of_fragments(fragments: Arc<FragmentedRangeTombstones>) -> Self {
        Self { sources: vec![Source { fragments, bounds: None }] }
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// A cursor over them for one thread.
    pub fn cursor(&self, rules: &Rules) -> CompactionRangeDel {
        let mut cursor = CompactionRangeDel::new(rules.cmp.clone(), rules.snapshots.clone());
        for source in &self.sources {
            let fragments = Arc::clone(&source.fragments);
            match &source.bounds {
                Some((smallest, largest)) => cursor.add_file(fragments, smallest, largest),
                None => cursor.add_memtable(fragments),
            }
        }
        cursor
    }
}

/// Calls `f` with each tombstone to be written into a file for user keys [`lower`, `upper`), cut to it, begins rising
/// and sequence numbers falling. Those that hide nothing are left out.
///
/// RocksDB writes tombstones whole and cuts them when it reads; a file ends between two user keys here, so that the
/// cut can be made exactly when writing.
pub(super) fn for_file(
    cursor: &CompactionRangeDel,
    lower: Option<&[u8]>,
    upper: Option<&[u8]>,
    rules: &Rules,
    mut f: impl FnMut(&[u8], &[u8], SequenceNumber) -> Result<()>,
) -> Result<()> {
    if cursor.is_empty() {
        return Ok(());
    }
    let lower = lower.map(CompactionRangeDel::boundary);
    let upper = upper.map(CompactionRangeDel::boundary);
    let may_drop = |begin: &[u8], end: &[u8]| rules.bottommost || !range_exists_below(begin, end, rules);
    let bytes = |k: &Option<InternalKey>| k.as_ref().map(|k| k.as_bytes().to_vec());
    for t in cursor.output(bytes(&lower).as_deref(), bytes(&upper).as_deref(), may_drop) {
        let (begin, end) = (t.smallest.user_key(), t.largest.user_key());
        if rules.cmp.compare_user(begin, end).is_lt() {
            f(begin, end, t.seq)?;
        }
    }
    Ok(())
}

/// True when a file below the output level may hold keys of [`begin`, `end`).
fn range_exists_below(begin: &[u8], end: &[u8], rules: &Rules) -> bool {
    let (cmp, Some(below)) = (&rules.cmp, &rules.below) else { return true };
    below.iter().any(|files| {
        let i = files.partition_point(|f| cmp.compare_user(f.largest_user_key(), begin).is_lt());
        files.get(i).is_some_and(|f| cmp.compare_user(f.smallest_user_key(), end).is_lt())
    })
}

/// The keys that file `i` of a run and the neighbours it shares boundary keys with stand for (RocksDB's atomic
/// compaction unit): beyond them its tombstones do not hold. RocksDB may part the versions of one user key between
/// files, which then only together know how far the key's tombstones reach.
fn unit_bounds(run: &InputRun, i: usize, cmp: &InternalKeyComparator) -> (InternalKey, InternalKey) {
    let shares = |left: usize| {
        let (a, b) = (&run.files[left].entry.largest, &run.files[left + 1].entry.smallest);
        let exclusive = tag(a.as_bytes()) == pack_tag(MAX_SEQUENCE, ValueType::RangeDeletion);
        !exclusive && cmp.compare_user(a.user_key(), b.user_key()).is_eq()
    };
    let (mut first, mut last) = (i, i);
    while first > 0 && shares(first - 1) {
        first -= 1;
    }
    while last + 1 < run.files.len() && shares(last) {
        last += 1;
    }
    (run.files[first].entry.smallest.clone(), run.files[last].entry.largest.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_del::RangeTombstone;

    fn rules(snapshots: &[u64], bottommost: bool) -> Rules {
        Rules { bottommost, ..Rules::new(InternalKeyComparator::default(), snapshots.to_vec()) }
    }

    fn cursor(tombstones: &[(&str, &str, u64)], rules: &Rules) -> CompactionRangeDel {
        let list = tombstones.iter().map(|&(b, e, seq)| RangeTombstone { begin: b.into(), end: e.into(), seq });
        let fragments = Arc::new(FragmentedRangeTombstones::new(list.collect(), &rules.cmp));
        Tombstones::of_fragments(fragments).cursor(rules)
    }

    fn written(c: &CompactionRangeDel, lower: &str, upper: &str, r: &Rules) -> Vec<(String, String, u64)> {
        let mut out = Vec::new();
        let bound = |s: &'static str| Some(s.as_bytes()).filter(|s| !s.is_empty());
        let (lower, upper): (&'static str, &'static str) =
            (String::leak(lower.to_owned()), String::leak(upper.to_owned()));
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        for_file(c, bound(lower), bound(upper), r, |b, e, s| {
            out.push((text(b), text(e), s));
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn files_get_their_cut() {
        let r = rules(&[], false);
        let c = cursor(&[("b", "k", 10), ("e", "f", 12)], &r);
        let s = |b: &str, e: &str, n| (b.to_owned(), e.to_owned(), n);
        assert_eq!(written(&c, "", "c", &r), [s("b", "c", 10)]);
        assert_eq!(written(&c, "c", "", &r), [s("c", "e", 10), s("e", "f", 12), s("f", "k", 10)]);
        assert_eq!(written(&c, "k", "", &r), []);
        let bottom = rules(&[11], true);
        let c = cursor(&[("b", "k", 10), ("e", "f", 12)], &bottom);
        let newest = [s("e", "f", 12)];
        assert_eq!(written(&c, "", "", &bottom), newest, "the older one is seen by all and hides nothing");
    }
}
