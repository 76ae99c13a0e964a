//! Range tombstones: fragmented so that ranges do not overlap, and asked for the newest one over a key
//! (RocksDB `db/range_tombstone_fragmenter.h`, `db/range_del_aggregator.h`).
//!
//! - [`FragmentedRangeTombstones`]: one memtable's or table's tombstones, made to be searched.
//! - [`TruncatedRangeTombstones`]: a table's, cut to the table's boundaries.
//! - [`CompactionRangeDel`]: those of a compaction's inputs, by snapshot stripe, and what goes into its outputs.

mod compaction;
mod coverage;
mod truncated;

use std::collections::BTreeMap;

use rockmill_format::{InternalKeyComparator, SequenceNumber};

pub use compaction::{CompactionRangeDel, OutputTombstone};
pub use truncated::TruncatedRangeTombstones;

/// `delete_range(begin, end)` at a sequence number, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeTombstone {
    /// First user key covered.
    pub begin: Vec<u8>,
    /// First user key not covered.
    pub end: Vec<u8>,
    /// Entries below this sequence number are covered.
    pub seq: SequenceNumber,
}

/// Range tombstones cut into fragments that either coincide or do not overlap; each fragment has its sequence
/// numbers, newest first.
///
/// ```text
/// tombstones   [a ------- e)5      fragments  [a - c)  [c --- e)  [e - g)  [k - m)
///                  [c --------- g)3             5        5,3        3        9
///                                      [k - m)9
/// bounds  a c e g k m        offsets  0 1 3 4 4 5        seqs  5 5 3 3 9
/// ```
#[derive(Debug, Clone, Default)]
pub struct FragmentedRangeTombstones {
    /// Begins and ends of the fragments, rising, each once.
    bounds: Vec<Vec<u8>>,
    /// The piece from `bounds[i]` to `bounds[i + 1]` has `seqs[offsets[i]..offsets[i + 1]]`; none means a gap. As
    /// long as `bounds`.
    offsets: Vec<usize>,
    /// Falling and without repetition within a piece.
    seqs: Vec<SequenceNumber>,
}

impl FragmentedRangeTombstones {
    /// Fragments `tombstones`, in any order. Empty ranges (begin >= end) are left out.
    pub fn new(tombstones: Vec<RangeTombstone>, cmp: &InternalKeyComparator) -> Self {
        Self::build(tombstones, cmp, None)
    }

    /// Fragments `tombstones` and keeps, of each fragment's sequence numbers, only the newest for each of the
    /// `snapshots` (rising) and for the latest state: what a compaction writes.
    pub fn for_compaction(
        tombstones: Vec<RangeTombstone>,
        cmp: &InternalKeyComparator,
        snapshots: &[SequenceNumber],
    ) -> Self {
        Self::build(tombstones, cmp, Some(snapshots))
    }

    fn build(
        mut tombstones: Vec<RangeTombstone>,
        cmp: &InternalKeyComparator,
        snapshots: Option<&[SequenceNumber]>,
    ) -> Self {
        tombstones.retain(|t| cmp.compare_user(&t.begin, &t.end).is_lt());
        if tombstones.is_empty() {
            return Self::default();
        }
        let mut bounds: Vec<&[u8]> = tombstones.iter().flat_map(|t| [&t.begin[..], &t.end[..]]).collect();
        bounds.sort_unstable_by(|a, b| cmp.compare_user(a, b));
        bounds.dedup_by(|a, b| cmp.compare_user(a, b).is_eq());

        let mut begins: Vec<&RangeTombstone> = tombstones.iter().collect();
        let mut ends = begins.clone();
        begins.sort_unstable_by(|a, b| cmp.compare_user(&a.begin, &b.begin));
        ends.sort_unstable_by(|a, b| cmp.compare_user(&a.end, &b.end));

        // Sweep over the bounds; `open` counts the tombstones of each sequence number over the present piece.
        let mut open: BTreeMap<SequenceNumber, usize> = BTreeMap::new();
        let (mut begins, mut ends) = (begins.into_iter().peekable(), ends.into_iter().peekable());
        let (mut offsets, mut seqs) = (Vec::with_capacity(bounds.len()), Vec::new());
        for bound in &bounds {
            while let Some(t) = ends.next_if(|t| cmp.compare_user(&t.end, bound).is_le()) {
                if let Some(n) = open.get_mut(&t.seq) {
                    *n -= 1;
                    if *n == 0 {
                        open.remove(&t.seq);
                    }
                }
            }
            while let Some(t) = begins.next_if(|t| cmp.compare_user(&t.begin, bound).is_le()) {
                *open.entry(t.seq).or_default() += 1;
            }
            offsets.push(seqs.len());
            let newest_first = open.keys().rev().copied();
            match snapshots {
                None => seqs.extend(newest_first),
                Some(snapshots) => keep_newest_of_stripes(newest_first, snapshots, &mut seqs),
            }
        }
        let bounds = bounds.into_iter().map(<[u8]>::to_vec).collect();
        Self { bounds, offsets, seqs }
    }

    /// True without a fragment.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Fragments, each counted once for each of its sequence numbers.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Bytes held, about.
    pub fn memory_usage(&self) -> usize {
        let bounds: usize = self.bounds.iter().map(|b| b.capacity() + size_of::<Vec<u8>>()).sum();
        size_of::<Self>() + bounds + self.offsets.len() * size_of::<usize>() + self.seqs.len() * 8
    }

    /// The newest sequence number not above `snapshot` of a tombstone over `user_key`; 0 when none covers it.
    pub fn max_covering(
        &self,
        user_key: &[u8],
        snapshot: SequenceNumber,
        cmp: &InternalKeyComparator,
    ) -> SequenceNumber {
        match self.piece_of(user_key, cmp) {
            Some(piece) => self.newest_visible(piece, snapshot),
            None => 0,
        }
    }

    /// The end of the fragment that `user_key` lies in, and its sequence numbers, newest first; `None` in a gap.
    pub fn fragment_at(&self, user_key: &[u8], cmp: &InternalKeyComparator) -> Option<(&[u8], &[SequenceNumber])> {
        let piece = self.piece_of(user_key, cmp)?;
        let seqs = self.piece_seqs(piece);
        (!seqs.is_empty()).then(|| (self.piece_bounds(piece).1, seqs))
    }

    /// All fragments with each of their sequence numbers, in order of (begin ascending, sequence descending): what a
    /// flush or compaction writes.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], SequenceNumber)> {
        (0..self.num_pieces()).flat_map(move |i| {
            let (begin, end) = self.piece_bounds(i);
            self.piece_seqs(i).iter().map(move |&seq| (begin, end, seq))
        })
    }

    /// Pieces between bounds, gaps included.
    fn num_pieces(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Begin and end of a piece.
    fn piece_bounds(&self, piece: usize) -> (&[u8], &[u8]) {
        (&self.bounds[piece], &self.bounds[piece + 1])
    }

    /// Sequence numbers over a piece, newest first.
    fn piece_seqs(&self, piece: usize) -> &[SequenceNumber] {
        &self.seqs[self.offsets[piece]..self.offsets[piece + 1]]
    }

    /// The piece that `user_key` lies in.
    fn piece_of(&self, user_key: &[u8], cmp: &InternalKeyComparator) -> Option<usize> {
        let after = self.bounds.partition_point(|b| cmp.compare_user(b, user_key).is_le());
        (after > 0 && after < self.bounds.len()).then(|| after - 1)
    }

    /// The newest sequence number over a piece that is not above `snapshot`; 0 if there is none.
    fn newest_visible(&self, piece: usize, snapshot: SequenceNumber) -> SequenceNumber {
        let seqs = self.piece_seqs(piece);
        seqs.get(seqs.partition_point(|&s| s > snapshot)).copied().unwrap_or(0)
    }
}

/// Of sequence numbers that fall, keeps the first of each stripe between neighbouring snapshots.
fn keep_newest_of_stripes(
    newest_first: impl Iterator<Item = SequenceNumber>,
    snapshots: &[SequenceNumber],
    out: &mut Vec<SequenceNumber>,
) {
    let mut next_snapshot = SequenceNumber::MAX;
    for seq in newest_first {
        if seq > next_snapshot {
            continue; // a newer one of the same stripe stands for it
        }
        out.push(seq);
        match snapshots.partition_point(|&s| s < seq) {
            0 => break, // the oldest stripe has its one
            older => next_snapshot = snapshots[older - 1],
        }
    }
}

#[cfg(test)]
mod tests;
