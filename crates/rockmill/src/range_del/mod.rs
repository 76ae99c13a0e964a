//! Range tombstones: fragmented so that ranges do not overlap, and searched for the newest one over a key (RocksDB
//! `db/range_tombstone_fragmenter.h`, `db/range_del_aggregator.h`).
//!
//! - [`FragmentedRangeTombstones`]: the tombstones of one memtable or table, prepared for searches.
//! - [`TruncatedRangeTombstones`]: a table's tombstones, truncated to the table's boundaries.
//! - [`CompactionRangeDel`]: the tombstones of a compaction's inputs, by snapshot stripe, and those for its outputs.

mod compaction;
mod coverage;
mod layers;
mod truncated;

use std::collections::BTreeMap;

use rockmill_format::comparator::HASH_RANGE_NAME;
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use crate::error::{Error, Result};
use layers::Layers;

pub use compaction::CompactionRangeDel;
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
///
/// If many tombstones overlap, such lists would be quadratic; `Layers` are then used instead.
#[derive(Debug, Clone, Default)]
pub struct FragmentedRangeTombstones {
    /// Begins and ends of the fragments, in ascending order, without duplicates.
    bounds: Vec<Vec<u8>>,
    /// The piece from `bounds[i]` to `bounds[i + 1]` has `seqs[offsets[i]..offsets[i + 1]]`; none means a gap. As
    /// long as `bounds`, but empty with `layers`.
    offsets: Vec<usize>,
    /// Within a piece in descending order, without duplicates. Empty with `layers`.
    seqs: Vec<SequenceNumber>,
    layers: Option<Box<Layers>>,
    /// Fragments, each counted once for each of its sequence numbers.
    len: usize,
}

/// Limits of sequence numbers in plain lists, per tombstone and in total: if both are exceeded, [`Layers`] are used.
const LISTED_PER_TOMBSTONE: usize = 16;
const LISTED: usize = 4096;

impl FragmentedRangeTombstones {
    /// Fragments `tombstones`, in any order. Empty ranges (begin >= end) are omitted.
    pub fn new(tombstones: &[RangeTombstone], cmp: &InternalKeyComparator) -> Self {
        Self::listing(tombstones, cmp, LISTED.max(LISTED_PER_TOMBSTONE.saturating_mul(tombstones.len())))
    }

    /// Lists at most `listed` sequence numbers.
    fn listing(tombstones: &[RangeTombstone], cmp: &InternalKeyComparator, listed: usize) -> Self {
        let Some((bounds, spans)) = cut(tombstones, cmp) else { return Self::default() };
        if let Some((offsets, seqs)) = sweep(&spans, bounds.len(), None, listed) {
            let len = seqs.len();
            return Self { bounds: owned(&bounds), offsets, seqs, layers: None, len };
        }
        let len = count(&spans, bounds.len());
        let layers = Some(Box::new(Layers::new(spans)));
        Self { bounds: owned(&bounds), offsets: Vec::new(), seqs: Vec::new(), layers, len }
    }

    /// Fragments `tombstones` and keeps, for each fragment, only the newest sequence number for each of the `snapshots`
    /// (ascending) and for the latest state, as a compaction writes them.
    pub fn for_compaction(
        tombstones: &[RangeTombstone],
        cmp: &InternalKeyComparator,
        snapshots: &[SequenceNumber],
    ) -> Self {
        let Some((bounds, spans)) = cut(tombstones, cmp) else { return Self::default() };
        let (offsets, seqs) = sweep(&spans, bounds.len(), Some(snapshots), usize::MAX).unwrap_or_default();
        let len = seqs.len();
        Self { bounds: owned(&bounds), offsets, seqs, layers: None, len }
    }

    /// True without a fragment.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fragments, each counted once for each of its sequence numbers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes held, about.
    pub fn memory_usage(&self) -> usize {
        let bounds: usize = self.bounds.iter().map(|b| b.capacity() + size_of::<Vec<u8>>()).sum();
        let lists = self.offsets.len() * size_of::<usize>() + self.seqs.len() * 8;
        size_of::<Self>() + bounds + lists + self.layers.as_ref().map_or(0, |l| l.memory_usage())
    }

    /// The newest sequence number, at most `snapshot`, of a tombstone over `user_key`; 0 if none covers it.
    pub fn max_covering(
        &self,
        user_key: &[u8],
        snapshot: SequenceNumber,
        cmp: &InternalKeyComparator,
    ) -> SequenceNumber {
        match self.piece_of(user_key, cmp) {
            Some(piece) => self.newest(piece, snapshot).unwrap_or(0),
            None => 0,
        }
    }

    /// The end of the fragment that contains `user_key`, and its newest sequence number that is at most `snapshot`;
    /// `None` if there is none.
    pub fn fragment_at(
        &self,
        user_key: &[u8],
        snapshot: SequenceNumber,
        cmp: &InternalKeyComparator,
    ) -> Option<(&[u8], SequenceNumber)> {
        let piece = self.piece_of(user_key, cmp)?;
        Some((self.piece_bounds(piece).1, self.newest(piece, snapshot)?))
    }

    /// True if a fragment has keys of [`start`, `limit`].
    pub fn reaches(&self, start: &[u8], limit: &[u8], cmp: &InternalKeyComparator) -> bool {
        let first = self.bounds.partition_point(|b| cmp.compare_user(b, start).is_le()).saturating_sub(1);
        (first..self.num_pieces())
            .take_while(|&i| cmp.compare_user(&self.bounds[i], limit).is_le())
            .any(|i| cmp.compare_user(&self.bounds[i + 1], start).is_gt() && self.newest(i, MAX).is_some())
    }

    /// All fragments with each of their sequence numbers, in order of (begin ascending, sequence descending). For
    /// nested tombstones, their number is quadratic.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], SequenceNumber)> {
        self.iter_pieces(0)
    }

    /// As [`Self::iter`], from the fragment that contains `user_key`; with `None` from the first.
    fn iter_from(
        &self,
        user_key: Option<&[u8]>,
        cmp: &InternalKeyComparator,
    ) -> impl Iterator<Item = (&[u8], &[u8], SequenceNumber)> {
        let not_after = |key| self.bounds.partition_point(|b| cmp.compare_user(b, key).is_le());
        self.iter_pieces(user_key.map_or(0, |key| not_after(key).saturating_sub(1)))
    }

    fn iter_pieces(&self, first: usize) -> impl Iterator<Item = (&[u8], &[u8], SequenceNumber)> {
        (first..self.num_pieces()).flat_map(move |i| {
            let (begin, end) = self.piece_bounds(i);
            let older = move |&s: &SequenceNumber| self.newest(i, s.checked_sub(1)?);
            std::iter::successors(self.newest(i, MAX), older).map(move |seq| (begin, end, seq))
        })
    }

    /// All fragments with the newest and the oldest of their sequence numbers.
    pub fn extremes(&self) -> impl Iterator<Item = (&[u8], &[u8], SequenceNumber)> {
        (0..self.num_pieces()).flat_map(move |i| {
            let (begin, end) = self.piece_bounds(i);
            let newest = self.newest(i, MAX);
            let oldest = self.oldest(i).filter(|_| newest != self.oldest(i));
            newest.into_iter().chain(oldest).map(move |seq| (begin, end, seq))
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

    /// The listed sequence numbers over a piece, newest first.
    fn piece_seqs(&self, piece: usize) -> &[SequenceNumber] {
        &self.seqs[self.offsets[piece]..self.offsets[piece + 1]]
    }

    /// The piece that `user_key` lies in.
    fn piece_of(&self, user_key: &[u8], cmp: &InternalKeyComparator) -> Option<usize> {
        let after = self.bounds.partition_point(|b| cmp.compare_user(b, user_key).is_le());
        (after > 0 && after < self.bounds.len()).then(|| after - 1)
    }

    /// The newest sequence number over a piece that is not above `snapshot`.
    #[inline]
    fn newest(&self, piece: usize, snapshot: SequenceNumber) -> Option<SequenceNumber> {
        if let Some(layers) = &self.layers {
            return layers.newest(piece, snapshot);
        }
        let seqs = self.piece_seqs(piece);
        seqs.get(seqs.partition_point(|&s| s > snapshot)).copied()
    }

    fn oldest(&self, piece: usize) -> Option<SequenceNumber> {
        match &self.layers {
            Some(layers) => layers.oldest(piece),
            None => self.piece_seqs(piece).last().copied(),
        }
    }

    /// Of a piece's sequence numbers, the newest of each stripe between neighbouring `snapshots`, newest first.
    fn newest_of_stripes(&self, piece: usize, snapshots: &[SequenceNumber], out: &mut Vec<SequenceNumber>) {
        newest_of_stripes(|snapshot| self.newest(piece, snapshot), snapshots, out);
    }
}

/// Every sequence number is visible to it.
const MAX: SequenceNumber = SequenceNumber::MAX;

/// A tombstone's sequence number, and from (inclusive) to (exclusive) piece.
type Span = (SequenceNumber, (u32, u32));

/// The bounds of `tombstones`, in ascending order without duplicates, and the pieces that each tombstone covers. `None`
/// if there are no tombstones.
fn cut<'a>(tombstones: &'a [RangeTombstone], cmp: &InternalKeyComparator) -> Option<(Vec<&'a [u8]>, Vec<Span>)> {
    let full = || tombstones.iter().filter(|t| cmp.compare_user(&t.begin, &t.end).is_lt());
    // Both ends of each tombstone: the key, the tombstone, and whether it is the begin.
    let mut ends: Vec<(&[u8], u32, bool)> = Vec::new();
    let mut spans: Vec<Span> = Vec::new();
    for t in full() {
        let number = u32::try_from(spans.len()).ok()?; // memory ends long before
        spans.push((t.seq, (0, 0)));
        ends.extend([(&t.begin[..], number, true), (&t.end[..], number, false)]);
    }
    ends.sort_unstable_by(|a, b| cmp.compare_user(a.0, b.0));
    let mut bounds: Vec<&[u8]> = Vec::new();
    for (key, number, is_begin) in ends {
        if bounds.last().is_none_or(|last| cmp.compare_user(last, key).is_ne()) {
            bounds.push(key);
        }
        let at = u32::try_from(bounds.len() - 1).ok()?;
        let span = &mut spans[number as usize].1;
        *(if is_begin { &mut span.0 } else { &mut span.1 }) = at;
    }
    (!spans.is_empty()).then_some((bounds, spans))
}

fn owned(bounds: &[&[u8]]) -> Vec<Vec<u8>> {
    bounds.iter().map(|b| b.to_vec()).collect()
}

/// Calls `f` for each bound with the sequence numbers over the piece that begins there, and how many tombstones have
/// each number. Ends when `f` returns `None`.
fn over_pieces(
    spans: &[Span],
    bounds: usize,
    mut f: impl FnMut(&BTreeMap<SequenceNumber, usize>) -> Option<()>,
) -> Option<()> {
    let mut begins: Vec<&Span> = spans.iter().collect();
    let mut ends = begins.clone();
    begins.sort_unstable_by_key(|s| s.1.0);
    ends.sort_unstable_by_key(|s| s.1.1);
    let mut open: BTreeMap<SequenceNumber, usize> = BTreeMap::new();
    let (mut begins, mut ends) = (begins.into_iter().peekable(), ends.into_iter().peekable());
    for bound in 0..bounds as u32 {
        while let Some(s) = ends.next_if(|s| s.1.1 <= bound) {
            if let Some(n) = open.get_mut(&s.0) {
                *n -= 1;
                if *n == 0 {
                    open.remove(&s.0);
                }
            }
        }
        while let Some(s) = begins.next_if(|s| s.1.0 <= bound) {
            *open.entry(s.0).or_default() += 1;
        }
        f(&open)?;
    }
    Some(())
}

/// The lists of all pieces: all sequence numbers, or the newest of each stripe. `None` if there would be more than
/// `limit`.
fn sweep(
    spans: &[Span],
    bounds: usize,
    snapshots: Option<&[SequenceNumber]>,
    limit: usize,
) -> Option<(Vec<usize>, Vec<SequenceNumber>)> {
    let (mut offsets, mut seqs) = (Vec::with_capacity(bounds), Vec::new());
    over_pieces(spans, bounds, |open| {
        offsets.push(seqs.len());
        match snapshots {
            None if seqs.len() + open.len() > limit => return None,
            None => seqs.extend(open.keys().rev()),
            Some(snapshots) => {
                let newest = |snapshot| open.range(..=snapshot).next_back().map(|(&seq, _)| seq);
                newest_of_stripes(newest, snapshots, &mut seqs);
            }
        }
        Some(())
    })?;
    Some((offsets, seqs))
}

/// Refuses to delete a range of keys if keys are ordered by their hashes: the keys between the two bounds would not be
/// the ones that the caller means.
pub(crate) fn refuse_hashed_range(cmp: &InternalKeyComparator, what: &str) -> Result<()> {
    match cmp.is_hash_range() {
        true => Err(Error::not_supported(format!(
            "{what}: with comparator {HASH_RANGE_NAME} keys stand in the order of their hashes, so a range from one key \
             to another has keys that nobody means; delete the keys one by one"
        ))),
        false => Ok(()),
    }
}

/// How many sequence numbers all pieces have together.
fn count(spans: &[Span], bounds: usize) -> usize {
    let mut len = 0;
    let _ = over_pieces(spans, bounds, |open| {
        len += open.len();
        Some(())
    });
    len
}

/// Returns the newest sequence number of each stripe between neighbouring snapshots. `newest` finds the newest one that
/// is at most a given number; stepping from stripe to stripe skips the numbers in between.
fn newest_of_stripes(
    newest: impl Fn(SequenceNumber) -> Option<SequenceNumber>,
    snapshots: &[SequenceNumber],
    out: &mut Vec<SequenceNumber>,
) {
    let mut top = MAX;
    while let Some(seq) = newest(top) {
        out.push(seq);
        match snapshots.partition_point(|&s| s < seq) {
            0 => break, // the oldest stripe has its one
            older => top = snapshots[older - 1],
        }
    }
}

#[cfg(test)]
mod tests;
