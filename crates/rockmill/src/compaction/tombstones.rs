//! The range tombstones of a job: gathered from its inputs, and cut to output files.

use std::sync::Arc;

use rockmill_format::key::{MAX_SEQUENCE, pack_tag, tag};
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, ValueType};

use super::JobHost;
use super::plan::{JobPlan, Rules};
use super::spec::{SpecFile, SpecRun};
use crate::error::Result;
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

impl Source {
    /// Up to which key, from user key `from` on, every entry of `file` is deleted; `None` if not even `from` is.
    fn covers_from<'a>(&'a self, from: &[u8], file: &SpecFile, rules: &Rules) -> Option<&'a [u8]> {
        let (cmp, entry) = (&rules.cmp, &file.entry);
        // Newer than all entries, and no snapshot sees any of them without the tombstone.
        let (mut end, seq) = self.fragments.fragment_at(from, rules.stripe(entry.smallest_seqno).0, cmp)?;
        if seq <= entry.largest_seqno {
            return None;
        }
        if let Some((smallest, largest)) = &self.bounds {
            // Some versions of the file's first user key may be in the file before it.
            let order = cmp.compare_user(from, smallest.user_key());
            if order.is_lt() || (order.is_eq() && smallest.sequence() <= entry.largest_seqno) {
                return None;
            }
            if cmp.compare_user(largest.user_key(), end).is_lt() {
                end = largest.user_key();
            }
        }
        cmp.compare_user(from, end).is_lt().then_some(end)
    }
}

impl Tombstones {
    /// Those of a plan's input tables, each cut to the part of the level that its file stands for. Input tables that
    /// newer ones delete as a whole leave the plan without being opened; they are the second part of the result.
    pub fn gather(plan: &mut JobPlan, host: &dyn JobHost) -> Result<(Self, Vec<Arc<SpecFile>>)> {
        let (mut all, mut dead) = (Self::default(), Vec::new());
        for run in &plan.runs {
            for (i, file) in run.files.iter().enumerate() {
                if all.cover(file, &plan.rules) {
                    dead.push(Arc::clone(file));
                    continue;
                }
                let table = host.open_input(file)?;
                if let Some(fragments) = table.range_tombstones() {
                    let bounds = Some(unit_bounds(run, i, &plan.rules.cmp));
                    all.sources.push(Source { fragments: Arc::clone(fragments), bounds });
                }
            }
        }
        if !dead.is_empty() {
            for run in &mut plan.runs {
                run.files.retain(|f| !dead.iter().any(|d| d.number() == f.number()));
            }
            plan.runs.retain(|run| !run.files.is_empty());
            // Their entries are not read, so no output could say that these are gone.
            let is_dead = |table: u64| dead.iter().any(|d| d.number() == table);
            if plan.pieces.iter().any(|piece| is_dead(piece.table)) {
                plan.pieces = plan.pieces.iter().filter(|piece| !is_dead(piece.table)).cloned().collect();
            }
        }
        Ok((all, dead))
    }

    /// True when together they delete all that is in `file`, for every reader. Its own range tombstones then delete
    /// nothing that these do not.
    fn cover(&self, file: &SpecFile, rules: &Rules) -> bool {
        let (cmp, largest) = (&rules.cmp, &file.entry.largest);
        let exclusive = tag(largest.as_bytes()) == pack_tag(MAX_SEQUENCE, ValueType::RangeDeletion);
        let mut from = file.smallest_user_key();
        loop {
            let ends = self.sources.iter().filter_map(|s| s.covers_from(from, file, rules));
            let Some(end) = ends.max_by(|a, b| cmp.compare_user(a, b)) else { return false };
            let order = cmp.compare_user(end, largest.user_key());
            if order.is_gt() || (exclusive && order.is_eq()) {
                return true;
            }
            from = end;
        }
    }

    /// Whole lists, not cut.
    pub fn whole(lists: Vec<Arc<FragmentedRangeTombstones>>) -> Self {
        Self { sources: lists.into_iter().map(|fragments| Source { fragments, bounds: None }).collect() }
    }

    /// Tables, or memtables, that they come from.
    pub fn tables(&self) -> usize {
        self.sources.len()
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

/// Calls `f` with each tombstone to be written into a file for user keys [`lower`, `upper`), cut to that range; start
/// keys rise, and sequence numbers fall. Those that hide nothing are left out.
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
        let i = files.partition_point(|f| cmp.compare_user(f.largest, begin).is_lt());
        files.get(i).is_some_and(|f| cmp.compare_user(f.smallest, end).is_lt())
    })
}

/// The keys that file `i` of a run and the neighbours it shares boundary keys with stand for (RocksDB's atomic
/// compaction unit): beyond them its tombstones do not hold. RocksDB may divide the versions of one user key among
/// files; only together do these show how far the key's tombstones reach.
fn unit_bounds(run: &SpecRun, i: usize, cmp: &InternalKeyComparator) -> (InternalKey, InternalKey) {
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
        let fragments = Arc::new(FragmentedRangeTombstones::new(&list.collect::<Vec<_>>(), &rules.cmp));
        Tombstones::whole(vec![fragments]).cursor(rules)
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

    fn file(smallest: InternalKey, largest: InternalKey, seqnos: (u64, u64)) -> SpecFile {
        let entry = rockmill_format::edit::FileEntry {
            smallest,
            largest,
            smallest_seqno: seqnos.0,
            largest_seqno: seqnos.1,
            ..Default::default()
        };
        SpecFile::new(entry)
    }

    #[test]
    fn a_file_is_covered_only_as_a_whole_and_for_every_reader() {
        let key = |k: &str, seq| InternalKey::new(k.as_bytes(), seq, ValueType::Value);
        let end = |k: &str| CompactionRangeDel::boundary(k.as_bytes());
        let source = |tombstones: &[(&str, &str, u64)], bounds: Option<(InternalKey, InternalKey)>| {
            let list = tombstones.iter().map(|&(b, e, seq)| RangeTombstone { begin: b.into(), end: e.into(), seq });
            let fragments =
                FragmentedRangeTombstones::new(&list.collect::<Vec<_>>(), &InternalKeyComparator::default());
            Source { fragments: Arc::new(fragments), bounds }
        };
        let f = file(key("c", 5), key("m", 3), (3, 5));
        let f_open = file(key("c", 5), end("m"), (3, 5));
        let covers = |sources: Vec<Source>, file: &SpecFile, snapshots: &[u64]| {
            Tombstones { sources }.cover(file, &rules(snapshots, false))
        };
        let whole = || vec![source(&[("a", "n", 9)], None)];
        assert!(covers(whole(), &f, &[]) && covers(whole(), &f_open, &[]));
        // Exactly up to the largest key, which is part of the file or not.
        let tight = || vec![source(&[("c", "m", 9)], None)];
        assert!(!covers(tight(), &f, &[]) && covers(tight(), &f_open, &[]));
        assert!(!covers(vec![source(&[("d", "n", 9)], None)], &f, &[]), "the first key");
        // Several that meet do, with a gap they do not.
        let parts = |gap: &str| vec![source(&[("a", "f", 9)], None), source(&[(gap, "k", 7), ("k", "z", 8)], None)];
        assert!(covers(parts("f"), &f, &[]) && covers(parts("e"), &f, &[]) && !covers(parts("g"), &f, &[]));
        // Older than an entry, or a snapshot that sees an entry and not the tombstone.
        assert!(!covers(vec![source(&[("a", "n", 5)], None)], &f, &[]));
        for (snapshot, expected) in [(2, true), (3, false), (5, false), (8, false), (9, true), (10, true)] {
            assert_eq!(covers(whole(), &f, &[snapshot]), expected, "snapshot {snapshot}");
        }
        assert!(covers(whole(), &f, &[1, 2, 12]));
        // Cut where the tombstone's own file ends: before the last key, or between two versions of the first.
        let cut = |smallest, largest| vec![source(&[("a", "z", 9)], Some((smallest, largest)))];
        assert!(covers(cut(key("b", 9), key("n", 8)), &f, &[]));
        assert!(!covers(cut(key("b", 9), key("m", 8)), &f, &[]), "part of the versions of m");
        assert!(covers(cut(key("b", 9), end("m")), &f_open, &[]) && !covers(cut(key("b", 9), end("m")), &f, &[]));
        assert!(covers(cut(key("c", 8), key("n", 8)), &f, &[]));
        assert!(!covers(cut(key("c", 4), key("n", 8)), &f, &[]), "part of the versions of c");
        assert!(!covers(Vec::new(), &f, &[]));
    }
}
