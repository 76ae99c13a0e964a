//! The range tombstones of a job: gathered from its inputs, asked about each entry, and cut to output files.

use rockmill_format::{InternalKeyComparator, SequenceNumber};

use super::JobContext;
use super::plan::{InputRun, JobPlan, Rules};
use crate::error::Result;
use crate::range_del::{FragmentedRangeTombstones, RangeTombstone};

/// Range tombstones of all inputs.
#[derive(Debug, Default)]
pub struct Tombstones {
    /// With every sequence number, to decide about entries.
    all: FragmentedRangeTombstones,
    /// Only the newest of each stripe, to be written.
    kept: FragmentedRangeTombstones,
}

impl Tombstones {
    /// Those of `tombstones`.
    pub fn new(tombstones: Vec<RangeTombstone>, rules: &Rules) -> Self {
        if tombstones.is_empty() {
            return Self::default();
        }
        Self {
            kept: FragmentedRangeTombstones::for_compaction(tombstones.clone(), &rules.cmp, &rules.snapshots),
            all: FragmentedRangeTombstones::new(tombstones, &rules.cmp),
        }
    }

    /// Those of a plan's input tables, each cut to the part of the level that its file stands for.
    pub fn gather(plan: &JobPlan, ctx: &JobContext) -> Result<Self> {
        let cmp = &plan.rules.cmp;
        let mut tombstones = Vec::new();
        for run in &plan.runs {
            for (i, file) in run.files.iter().enumerate() {
                let table = ctx.tables.table(file)?;
                let Some(fragments) = table.range_tombstones() else { continue };
                let (lower, upper) = unit_bounds(run, i, cmp);
                for (begin, end, seq) in fragments.iter() {
                    let begin = if cmp.compare_user(begin, lower).is_lt() { lower } else { begin };
                    let end = match &upper {
                        Some(u) if cmp.compare_user(end, u).is_gt() => u,
                        _ => end,
                    };
                    tombstones.push(RangeTombstone { begin: begin.to_vec(), end: end.to_vec(), seq });
                }
            }
        }
        Ok(Self::new(tombstones, &plan.rules))
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True when a newer tombstone of the same stripe covers the entry: no reader sees it. `stripe` is the oldest
    /// snapshot that sees the entry.
    #[inline]
    pub fn covers(&self, user_key: &[u8], seq: SequenceNumber, stripe: SequenceNumber, rules: &Rules) -> bool {
        !self.all.is_empty() && self.all.max_covering(user_key, stripe, &rules.cmp) > seq
    }

    /// Calls `f` with each tombstone to be written into a file for user keys [`lower`, `upper`), cut to it, begins
    /// rising and sequence numbers falling. Those that hide nothing are left out.
    pub fn for_file(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        rules: &Rules,
        mut f: impl FnMut(&[u8], &[u8], SequenceNumber) -> Result<()>,
    ) -> Result<()> {
        let cmp = &rules.cmp;
        for (begin, end, seq) in self.kept.iter() {
            let begin = lower.filter(|l| cmp.compare_user(begin, l).is_lt()).unwrap_or(begin);
            let end = upper.filter(|u| cmp.compare_user(end, u).is_gt()).unwrap_or(end);
            if cmp.compare_user(begin, end).is_ge() {
                continue;
            }
            let seen_by_all = seq <= rules.earliest_snapshot();
            if seen_by_all && (rules.bottommost || !range_exists_below(begin, end, rules)) {
                continue;
            }
            f(begin, end, seq)?;
        }
        Ok(())
    }
}

/// True when a file below the output level may hold keys of [`begin`, `end`).
fn range_exists_below(begin: &[u8], end: &[u8], rules: &Rules) -> bool {
    let (cmp, Some(below)) = (&rules.cmp, &rules.below) else { return true };
    below.iter().any(|files| {
        let i = files.partition_point(|f| cmp.compare_user(f.largest_user_key(), begin).is_lt());
        files.get(i).is_some_and(|f| cmp.compare_user(f.smallest_user_key(), end).is_lt())
    })
}

/// The user keys, [first, second), that file `i` of a run and the neighbours it shares boundary keys with stand for
/// (RocksDB's atomic compaction unit): beyond them its tombstones do not hold. `None` where the end cannot be named.
///
/// RocksDB may part the versions of one user key between files, which then only together know how far the key's
/// tombstones reach; and it writes tombstones uncut. Outputs of this store need neither.
fn unit_bounds<'r>(run: &'r InputRun, i: usize, cmp: &InternalKeyComparator) -> (&'r [u8], Option<Vec<u8>>) {
    let shares = |left: usize| {
        let (a, b) = (&run.files[left].entry.largest, &run.files[left + 1].entry.smallest);
        !is_exclusive(a) && cmp.compare_user(a.user_key(), b.user_key()).is_eq()
    };
    let (mut first, mut last) = (i, i);
    while first > 0 && shares(first - 1) {
        first -= 1;
    }
    while last + 1 < run.files.len() && shares(last) {
        last += 1;
    }
    let largest = &run.files[last].entry.largest;
    let upper = if is_exclusive(largest) {
        Some(largest.user_key().to_vec())
    } else if cmp.is_bytewise() {
        // The first key after it, so that the key itself stays covered.
        let mut next = largest.user_key().to_vec();
        next.push(0);
        Some(next)
    } else {
        None
    };
    (run.files[first].smallest_user_key(), upper)
}

/// True for the key that ends a file at a range tombstone's end, which is not part of the file.
fn is_exclusive(key: &rockmill_format::InternalKey) -> bool {
    use rockmill_format::key::{MAX_SEQUENCE, ValueType, pack_tag, tag};
    tag(key.as_bytes()) == pack_tag(MAX_SEQUENCE, ValueType::RangeDeletion)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(snapshots: &[u64], bottommost: bool) -> Rules {
        let cmp = InternalKeyComparator::default();
        Rules { cmp, snapshots: snapshots.to_vec(), bottommost, below: None }
    }

    fn tombstone(begin: &str, end: &str, seq: u64) -> RangeTombstone {
        RangeTombstone { begin: begin.into(), end: end.into(), seq }
    }

    fn written(t: &Tombstones, lower: Option<&str>, upper: Option<&str>, r: &Rules) -> Vec<(String, String, u64)> {
        let mut out = Vec::new();
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        t.for_file(lower.map(str::as_bytes), upper.map(str::as_bytes), r, |b, e, s| {
            out.push((text(b), text(e), s));
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn an_entry_is_covered_only_inside_its_stripe() {
        let r = rules(&[5], false);
        let t = Tombstones::new(vec![tombstone("b", "d", 10)], &r);
        assert!(t.covers(b"c", 7, u64::MAX, &r));
        assert!(!t.covers(b"c", 11, u64::MAX, &r), "newer than the tombstone");
        assert!(!t.covers(b"c", 4, 5, &r), "snapshot 5 still sees it");
        assert!(!t.covers(b"d", 7, u64::MAX, &r), "the end is not covered");
    }

    #[test]
    fn files_get_their_cut() {
        let r = rules(&[], false);
        let t = Tombstones::new(vec![tombstone("b", "k", 10), tombstone("e", "f", 12)], &r);
        let s = |b: &str, e: &str, n| (b.to_owned(), e.to_owned(), n);
        assert_eq!(written(&t, None, Some("c"), &r), [s("b", "c", 10)]);
        assert_eq!(written(&t, Some("c"), None, &r), [s("c", "e", 10), s("e", "f", 12), s("f", "k", 10)]);
        assert_eq!(written(&t, Some("k"), None, &r), []);
        let bottom = rules(&[11], true);
        assert_eq!(
            written(&t, None, None, &bottom),
            [s("e", "f", 12)],
            "the older one is seen by all and hides nothing"
        );
    }
}
