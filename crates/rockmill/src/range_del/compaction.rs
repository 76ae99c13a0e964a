//! Range tombstones in a compaction (RocksDB's `CompactionRangeDelAggregator` and `CompactionOutputs::AddRangeDels`).

use std::cell::OnceCell;
use std::sync::Arc;

use rockmill_format::key::MAX_SEQUENCE;
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, ValueType};

use super::coverage::Coverage;
use super::{FragmentedRangeTombstones, RangeTombstone, TruncatedRangeTombstones};

/// The tombstones of a compaction's (or flush's) inputs.
///
/// Snapshots cut the sequence numbers into stripes: `(.., s0]`, `(s0, s1]`, ..., `(sn, ..)`. An entry may be dropped if
/// a newer tombstone of its own stripe covers it, because then no snapshot sees it.
#[derive(Debug)]
pub struct CompactionRangeDel {
    coverage: Coverage,
    /// All of them merged, as they are written if nothing is truncated or dropped. Computed when the first file ends.
    merged: OnceCell<FragmentedRangeTombstones>,
}

/// A tombstone to write into an output file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputTombstone {
    /// First user key covered. It may be before the file; then the file's boundary truncates it.
    pub begin: Vec<u8>,
    /// First user key not covered. It may be after the file.
    pub end: Vec<u8>,
    /// Its version.
    pub seq: SequenceNumber,
    /// The file's smallest key must not be above this.
    pub smallest: InternalKey,
    /// The file's largest key must not be below this.
    pub largest: InternalKey,
}

impl CompactionRangeDel {
    /// Without tombstones so far. `snapshots` rise.
    pub fn new(cmp: InternalKeyComparator, snapshots: Vec<SequenceNumber>) -> Self {
        Self { coverage: Coverage::new(cmp, snapshots), merged: OnceCell::new() }
    }

    /// Adds a memtable's tombstones.
    pub fn add_memtable(&mut self, list: Arc<FragmentedRangeTombstones>) {
        self.add(TruncatedRangeTombstones::whole(list));
    }

    /// Adds an input file's tombstones, truncated to its boundaries.
    pub fn add_file(&mut self, list: Arc<FragmentedRangeTombstones>, smallest: &InternalKey, largest: &InternalKey) {
        let cut = TruncatedRangeTombstones::of_file(list, smallest, largest, self.coverage.cmp());
        self.add(cut);
    }

    fn add(&mut self, tombstones: TruncatedRangeTombstones) {
        self.coverage.add(tombstones);
        self.merged.take();
    }

    /// True without a tombstone.
    pub fn is_empty(&self) -> bool {
        self.coverage.is_empty()
    }

    /// True if a tombstone of its snapshot stripe deletes version `seq` of `user_key`. Calls in key order are cheapest.
    #[inline]
    pub fn covers(&mut self, user_key: &[u8], seq: SequenceNumber) -> bool {
        if self.coverage.is_empty() {
            return false;
        }
        let snapshots = self.coverage.snapshots();
        let stripe = snapshots.partition_point(|&s| s < seq);
        let newest = snapshots.get(stripe).copied().unwrap_or(SequenceNumber::MAX);
        let seqs = self.coverage.over(user_key, seq);
        seqs.get(seqs.partition_point(|&s| s > newest)).is_some_and(|&s| s > seq)
    }

    /// The tombstones for an output file that is responsible for the internal keys from `lower` to `upper` (encoded;
    /// `None` no bound), in order of (begin ascending, sequence descending).
    ///
    /// The bounds, as RocksDB chooses them:
    /// - `lower` of a (sub)compaction's first file: its begin with [`CompactionRangeDel::boundary`], or none; of the
    ///   others: their own smallest point key.
    /// - `upper` of the last file: the (sub)compaction's end with `boundary`, or none; of the others: the user key of
    ///   the next file's first point with `boundary`, unless this file's last point has the same user key: then that
    ///   point's key.
    ///
    /// Of several tombstones over the same keys, only the newest of each snapshot stripe is kept. One that every
    /// snapshot sees is dropped if `may_drop`, called with its range within the file, returns that nothing older can
    /// exist below the output level: `|_, _| true` for the bottommost level.
    pub fn output(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        mut may_drop: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Vec<OutputTombstone> {
        let cmp = self.coverage.cmp();
        if let (Some(l), Some(u)) = (lower, upper)
            && cmp.compare(l, u).is_gt()
        {
            return Vec::new(); // a file without point keys, with whose user key the next file begins
        }
        let fragments = self.merged.get_or_init(|| self.merge());
        let earliest_snapshot = self.coverage.snapshots().first().copied().unwrap_or(MAX_SEQUENCE);
        let mut out = Vec::new();
        for (begin, end, seq) in fragments.iter_from(lower.map(rockmill_format::key::user_key), cmp) {
            let mut largest = Self::boundary(end);
            if lower.is_some_and(|l| cmp.compare(largest.as_bytes(), l).is_le()) {
                continue;
            }
            let mut smallest = InternalKey::new(begin, seq, ValueType::RangeDeletion);
            if let Some(l) = lower
                && cmp.compare_user(begin, rockmill_format::key::user_key(l)).is_lt()
            {
                smallest = InternalKey::new(rockmill_format::key::user_key(l), seq, ValueType::RangeDeletion);
            }
            if upper.is_some_and(|u| cmp.compare(u, smallest.as_bytes()).is_lt()) {
                break;
            }
            if let Some(l) = lower
                && cmp.compare(smallest.as_bytes(), l).is_lt()
            {
                smallest = InternalKey::from_encoded(l);
            }
            if let Some(u) = upper
                && cmp.compare(u, largest.as_bytes()).is_lt()
            {
                largest = InternalKey::from_encoded(u);
            }
            if seq <= earliest_snapshot && may_drop(smallest.user_key(), largest.user_key()) {
                continue;
            }
            out.push(OutputTombstone { begin: begin.to_vec(), end: end.to_vec(), seq, smallest, largest });
        }
        out
    }

    /// Merges all lists into one, with the newest sequence number of each stripe per piece. Each list is first reduced
    /// to those: for nested tombstones, the number of all sequence numbers of all pieces is quadratic.
    fn merge(&self) -> FragmentedRangeTombstones {
        let (cmp, snapshots) = (self.coverage.cmp(), self.coverage.snapshots());
        let (mut all, mut seqs) = (Vec::new(), Vec::new());
        for list in self.coverage.lists() {
            for piece in list.cut_pieces(cmp) {
                seqs.clear();
                list.list().newest_of_stripes(piece.piece, snapshots, &mut seqs);
                let tombstone = |&seq| RangeTombstone { begin: piece.begin.0.into(), end: piece.end.0.into(), seq };
                all.extend(seqs.iter().map(tombstone));
            }
        }
        FragmentedRangeTombstones::for_compaction(&all, cmp, snapshots)
    }

    /// The internal key before all versions of `user_key`. As a file's boundary that tombstones extended, it says that
    /// the file ends before that user key.
    pub fn boundary(user_key: &[u8]) -> InternalKey {
        InternalKey::new(user_key, MAX_SEQUENCE, ValueType::RangeDeletion)
    }
}
