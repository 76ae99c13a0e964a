//! The plan: a spec whose names its host has resolved. It says what is read (runs of files, newest first), within which
//! bounds, by which rules entries survive, and what outputs look like. All merge engines take the same plan, and none
//! looks anything up in the tree.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use rockmill_format::comparator::key_at;
use rockmill_format::key::{MAX_SEQUENCE, SequenceNumber};
use rockmill_format::{InternalKeyComparator, ValueType};

use super::file_ranges::FileRanges;
use super::filter::FilterPlan;
use super::pieces::KeptFile;
use super::spec::{JobSpec, OutputPlan, Part, SpecFile, SpecRun};
use super::subtrees::{SUBTREE_BITS_MAX, subtree_of};
use super::{JobHost, page_cache};
use crate::error::{Error, Result};
use crate::merge_operator::MergeOperator;
use crate::table::KeptPiece;

/// Which versions survive, and in which form.
#[derive(Clone)]
pub struct Rules {
    /// Order of keys.
    pub cmp: InternalKeyComparator,
    /// Live snapshots, rising.
    pub snapshots: Vec<SequenceNumber>,
    /// Nothing older than the output exists for its keys: tombstones are dropped, sequence numbers become zero.
    pub bottommost: bool,
    /// Files with older data that overlap the job, those of one sorted run in a list (`Compaction::older_runs`).
    /// `None`: older data may exist anywhere (flush, and output into L0), so that no tombstone can be dropped unless
    /// `bottommost`.
    pub below: Option<Vec<FileRanges>>,
    /// Merges operands; without one they stay as they are.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Asked about values and operands.
    pub filter: Option<FilterPlan>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("comparator", &self.cmp.user_comparator().name())
            .field("snapshots", &self.snapshots)
            .field("bottommost", &self.bottommost)
            .field("below", &self.below)
            .field("merge_operator", &self.merge_operator.as_ref().map(|m| m.name()))
            .field("filter", &self.filter)
            .finish()
    }
}

impl Rules {
    /// Rules of a job that knows nothing of older data: neither merged nor filtered.
    pub fn new(cmp: InternalKeyComparator, snapshots: Vec<SequenceNumber>) -> Self {
        Self { cmp, snapshots, bottommost: false, below: None, merge_operator: None, filter: None }
    }

    /// The newest snapshot; only the latest state sees newer entries. 0 without one.
    pub fn latest_snapshot(&self) -> SequenceNumber {
        self.snapshots.last().copied().unwrap_or(0)
    }

    /// The oldest snapshot: every reader sees the entries that it sees. Without a snapshot, every reader sees all
    /// entries.
    pub fn earliest_snapshot(&self) -> SequenceNumber {
        self.snapshots.first().copied().unwrap_or(SequenceNumber::MAX)
    }

    /// The stripe of a sequence number: the oldest snapshot that sees it (`MAX` if only the latest state does), and
    /// the newest one that does not (0 none).
    #[inline]
    pub fn stripe(&self, seq: SequenceNumber) -> (SequenceNumber, SequenceNumber) {
        if self.snapshots.is_empty() {
            return (SequenceNumber::MAX, 0);
        }
        let i = self.snapshots.partition_point(|&s| s < seq);
        let newer = self.snapshots.get(i).copied().unwrap_or(SequenceNumber::MAX);
        (newer, if i == 0 { 0 } else { self.snapshots[i - 1] })
    }
}

/// What one host does for a spec.
#[derive(Debug, Clone)]
pub struct JobPlan {
    /// Inputs, newest first: of equal entries, the one of the earlier run wins.
    pub runs: Vec<SpecRun>,
    /// Rules of survival.
    pub rules: Rules,
    /// Outputs.
    pub output: OutputPlan,
    /// The spec sets file numbers aside.
    pub leased: bool,
    /// How the key space is split over threads, in order and without gaps.
    pub parts: Vec<Part>,
    /// All inputs are in the page cache, and outputs go there.
    pub cached: bool,
    /// Not all inputs are block-based tables, or outputs may keep using some: then no engine merges blocks.
    pub by_entries: bool,
    /// Files of the inputs that outputs may keep using (TPH tables), newest first.
    pub pieces: Arc<[KeptPiece]>,
    /// The tables that these files are of: first user key, and bytes. Outputs keep within their bounds.
    pub bases: Vec<(Vec<u8>, u64)>,
}

impl JobPlan {
    /// The plan of a spec, with its parts, or as one part if it has none.
    pub(crate) fn new(spec: &JobSpec, host: &dyn JobHost) -> Result<Self> {
        let objects = &host.means().objects;
        objects.check(spec)?;
        spec.check_bases().map_err(|what| Error::invalid_argument(format!("{}: {what}", spec.what())))?;
        let mut plan = Self {
            runs: spec.runs.clone(),
            rules: Rules {
                cmp: objects.cmp.clone(),
                snapshots: spec.snapshots.clone(),
                bottommost: spec.bottommost,
                below: spec.older.clone(),
                merge_operator: objects.merge_operator.clone(),
                filter: FilterPlan::new(spec, objects),
            },
            output: spec.output.clone(),
            leased: !spec.numbers.is_empty(),
            parts: if spec.parts.is_empty() { vec![Part::default()] } else { spec.parts.clone() },
            cached: false,
            by_entries: false,
            pieces: Arc::new([]),
            bases: Vec::new(),
        };
        plan.check_parts()?;
        plan.check_numbers(spec)?;
        plan.ask_inputs(spec, host)?;
        Ok(plan)
    }

    /// Parts that overlap would write an entry twice.
    fn check_parts(&self) -> Result<()> {
        let cmp = &self.rules.cmp;
        let rises = |(begin, end): (&Vec<u8>, &Vec<u8>)| cmp.compare_user(begin, end).is_lt();
        match self.parts.iter().position(|p| !p.begin.as_ref().zip(p.end.as_ref()).is_none_or(rises)) {
            Some(i) => Err(Error::invalid_argument(format!("part {} of the job ends before it begins", i + 1))),
            None => Ok(()),
        }
    }

    /// A number given twice, or an input's, would write one file over another.
    fn check_numbers(&self, spec: &JobSpec) -> Result<()> {
        let mut ranges: Vec<(u64, u64)> =
            spec.numbers.iter().map(|r| (r.first, r.first.saturating_add(r.count))).collect();
        ranges.sort_unstable();
        let twice = ranges.windows(2).find(|pair| pair[1].0 < pair[0].1).map(|pair| pair[1].0);
        // Of ranges that do not overlap.
        let within = |n: u64| {
            let behind = ranges.partition_point(|&(first, _)| first <= n);
            behind.checked_sub(1).is_some_and(|at| n < ranges[at].1)
        };
        let inputs = self.runs.iter().flat_map(|run| &run.files).map(|f| f.number());
        match twice.or_else(|| std::iter::once(0).chain(inputs).find(|&n| within(n))) {
            Some(n) => Err(Error::invalid_argument(format!("file number {n} was set aside for the job and is in use"))),
            None => Ok(()),
        }
    }

    /// What the open inputs determine about the outputs: whether these go into the page cache, their permissions, and
    /// which files of the inputs they may keep using.
    fn ask_inputs(&mut self, spec: &JobSpec, host: &dyn JobHost) -> Result<()> {
        let (mut tables, mut pieces) = (Vec::new(), Vec::new());
        let keep: HashSet<KeptFile> = spec.keep.iter().copied().collect();
        for (run, f) in self.runs.iter().flat_map(|run| run.files.iter().map(move |f| (run, f))) {
            let table = host.open_input(f)?;
            self.by_entries |= table.block_access().is_none();
            // A table of a newer run may share such a file: the file came there before that run's table, or this one,
            // moved down. That table's entries in it are newer than those in newer files of the base.
            if spec.is_base(run, f) && !keep.is_empty() && !self.splits_user_key(run, f) {
                let kept = table.kept_pieces(f.number());
                let before = pieces.len();
                let file = |piece: &KeptPiece| KeptFile { table: f.number(), file: piece.number };
                pieces.extend(kept.into_iter().filter(|piece| keep.contains(&file(piece))));
                let elsewhere = f.entry.files().filter(|file| file.path_id != 0);
                self.output.piece_paths.extend(elsewhere.map(|file| (file.number, file.path_id)));
                if pieces.len() > before {
                    self.bases.push((f.smallest_user_key().to_vec(), f.size()));
                }
            }
            tables.push((table, f.entry.files().map(|file| file.size).sum()));
        }
        if self.output.format.tph.is_some() {
            pieces.sort_by_key(|piece| std::cmp::Reverse(piece.number));
            if !pieces.is_empty() {
                let numbers = self.runs.iter().flat_map(|run| &run.files).map(|f| f.number());
                Arc::make_mut(&mut self.output.replaced).by_job = numbers.collect();
            }
            self.pieces = pieces.into();
        }
        self.by_entries |= self.is_sharing();
        let output = &mut self.output;
        if !tables.is_empty() {
            let db = &host.means().db;
            output.page_cache = page_cache::takes_outputs(db, tables.iter().map(|(table, size)| (&**table, *size)));
            self.cached =
                output.page_cache && tables.iter().all(|(table, size)| page_cache::has_input(db, table, *size));
        }
        let modes = tables.iter().filter_map(|(table, _)| table.mode());
        let granted = modes.reduce(|a, b| a & b).map(|mode| mode | 0o600);
        output.mode_max = output.mode_max.or(granted);
        Ok(())
    }

    /// True for a table that has some versions of a user key, and a neighbour in its run others, as RocksDB writes
    /// them: as files of one table, one would hide the other.
    fn splits_user_key(&self, run: &SpecRun, file: &SpecFile) -> bool {
        let touches = |a: &SpecFile, b: &SpecFile| {
            a.entry.largest.sequence() != MAX_SEQUENCE
                && self.rules.cmp.compare_user(a.largest_user_key(), b.smallest_user_key()).is_eq()
        };
        let neighbours = |pair: &[Arc<SpecFile>]| pair.iter().any(|f| f.number() == file.number());
        run.files.windows(2).any(|pair| neighbours(pair) && touches(&pair[0], &pair[1]))
    }

    /// True if outputs may keep using files of the inputs.
    pub fn is_sharing(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The place among [`Self::pieces`] of a file of an input table.
    pub fn place_of(&self, table: u64, number: u64) -> Option<u32> {
        // They are in descending order of their numbers, and several tables may have the same one.
        let first = self.pieces.partition_point(|piece| piece.number > number);
        let same = self.pieces[first..].iter().take_while(|piece| piece.number == number);
        let place = same.zip(first..).find(|(piece, _)| piece.table == table);
        place.map(|(_, place)| place as u32)
    }

    /// Splits the plan into at most `parts_max` parts of about equal input bytes, none smaller than an output file.
    /// Boundaries come from the inputs' indexes, no data is read.
    pub(crate) fn split(&mut self, parts_max: usize, host: &dyn JobHost) -> Result<()> {
        let total = self.runs.iter().flat_map(|r| &r.files).map(|f| f.size()).fold(0, u64::saturating_add);
        let parts = (parts_max as u64).min(total / self.output.file_size_target.max(1));
        if self.output.level == 0 || parts < 2 {
            return Ok(());
        }
        // Several anchors for each part keep the parts' sizes even if inputs differ in density.
        let mut anchors: Vec<(Vec<u8>, u64)> = Vec::new();
        for f in self.runs.iter().flat_map(|r| &r.files) {
            let wanted = (u128::from(f.size()) * u128::from(parts) * 8).div_ceil(u128::from(total.max(1))).max(1);
            let mut before = 0;
            for (key, end) in host.open_input(f)?.anchors(wanted as usize)? {
                anchors.push((key, end.saturating_sub(before)));
                before = end;
            }
        }
        let cmp = &self.rules.cmp;
        anchors.sort_by(|a, b| cmp.compare_user(&a.0, &b.0));
        let bytes: u64 = anchors.iter().map(|a| a.1).sum();
        let mut bounds: Vec<Vec<u8>> = Vec::new();
        let mut reached = 0;
        for (key, size) in anchors {
            if bounds.len() as u64 + 1 >= parts {
                break;
            }
            reached += size;
            let due = u128::from(reached) * u128::from(parts) >= u128::from(bytes) * (bounds.len() as u128 + 1);
            if due && bounds.last().is_none_or(|b| cmp.compare_user(b, &key).is_lt()) {
                bounds.push(key);
            }
        }
        let bits = self.output.subtree_bits;
        if bits > 0 {
            // No table extends over the start of a subtree, so none is cut for a part.
            let mut subtrees: Vec<u32> = bounds.iter().map(|b| subtree_of(b, bits)).filter(|&s| s > 0).collect();
            subtrees.dedup();
            bounds = subtrees.into_iter().map(|s| key_at(s << (SUBTREE_BITS_MAX - bits)).to_vec()).collect();
        }
        // An anchor past the last key would leave an empty part.
        let last = self.runs.iter().flat_map(|r| r.files.last()).map(|f| f.largest_user_key());
        if let Some(last) = last.max_by(|a, b| cmp.compare_user(a, b)) {
            bounds.retain(|b| cmp.compare_user(b, last).is_le());
        }
        let mut begin = None;
        self.parts.clear();
        for end in bounds {
            self.parts.push(Part { begin: begin.replace(end.clone()), end: Some(end), blocks: None });
        }
        self.parts.push(Part { begin, ..Part::default() });
        Ok(())
    }
}

/// True for types of entries in tables that this store can resolve.
pub(super) fn is_supported(t: ValueType) -> bool {
    matches!(t, ValueType::Value | ValueType::Deletion | ValueType::SingleDeletion | ValueType::Merge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_lie_between_snapshots() {
        let rules = |snapshots: &[u64]| Rules::new(InternalKeyComparator::default(), snapshots.to_vec());
        assert_eq!(rules(&[]).stripe(7), (u64::MAX, 0));
        let r = rules(&[5, 10]);
        assert_eq!(r.stripe(5), (5, 0));
        assert_eq!(r.stripe(6), (10, 5));
        assert_eq!(r.stripe(10), (10, 5));
        assert_eq!(r.stripe(11), (u64::MAX, 10));
        assert_eq!((r.earliest_snapshot(), rules(&[]).earliest_snapshot()), (5, u64::MAX));
    }
}
