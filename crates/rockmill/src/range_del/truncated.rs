//! A table's range tombstones, cut to the table's boundaries (RocksDB's `TruncatedRangeDelIterator`).
//!
//! A tombstone stands in every file that it overlaps, with the bounds it had when it was written. In a file it must
//! not say more than the file may: a neighbour of the same level may since have been compacted down, and its keys
//! are then older than the tombstone's but in a place where the tombstone no longer belongs. So a tombstone covers
//! only what lies between the file's smallest and largest internal keys.
//!
//! A user key can straddle two files: its newer versions end the one, its older ones begin the other. Hence the cut
//! is made in internal keys: of the first file's largest user key, only versions at or above that of its largest key
//! are covered; of its smallest user key, only versions at or below that of its smallest key.

use std::cmp::Ordering;
use std::sync::Arc;

use rockmill_format::key::{self, MAX_SEQUENCE};
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, ValueType};

use super::FragmentedRangeTombstones;

/// Fragmented tombstones with the internal keys at which they are cut, if at all.
#[derive(Debug, Clone)]
pub struct TruncatedRangeTombstones {
    list: Arc<FragmentedRangeTombstones>,
    /// Of this user key, versions up to this one are covered, and nothing in front of it.
    smallest: Option<(Vec<u8>, SequenceNumber)>,
    /// Of this user key, versions from this one up are covered, and nothing behind it.
    largest: Option<(Vec<u8>, SequenceNumber)>,
    /// First fragments and end of those that reach into the boundaries, gaps included.
    pieces: (usize, usize),
}

impl TruncatedRangeTombstones {
    /// All of `list`: a memtable's.
    pub fn whole(list: Arc<FragmentedRangeTombstones>) -> Self {
        let pieces = (0, list.num_pieces());
        Self { list, smallest: None, largest: None, pieces }
    }

    /// `list` cut to the boundaries of its file.
    pub fn of_file(
        list: Arc<FragmentedRangeTombstones>,
        smallest: &InternalKey,
        largest: &InternalKey,
        cmp: &InternalKeyComparator,
    ) -> Self {
        let largest_tag = key::tag(largest.as_bytes());
        let covered_from = match largest.sequence() {
            // A tombstone moved the boundary to the first user key that is not the file's: no version of it is.
            MAX_SEQUENCE if largest_tag as u8 == ValueType::RangeDeletion as u8 => SequenceNumber::MAX,
            // No two entries share a user key and a sequence number, so no tombstone reaches over this key: the
            // boundary would have been moved otherwise.
            0 => 1,
            seq => seq,
        };
        let begin = list.bounds.partition_point(|b| cmp.compare_user(b, smallest.user_key()).is_le());
        let end = list.bounds.partition_point(|b| cmp.compare_user(b, largest.user_key()).is_le());
        let pieces = (begin.saturating_sub(1), end.min(list.num_pieces()));
        Self {
            smallest: Some((smallest.user_key().to_vec(), smallest.sequence())),
            largest: Some((largest.user_key().to_vec(), covered_from)),
            list,
            pieces,
        }
    }

    /// True without a tombstone.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The newest sequence number not above `snapshot` of a tombstone over version `seq` of `user_key`; 0 when none
    /// covers it.
    pub fn max_covering(
        &self,
        user_key: &[u8],
        seq: SequenceNumber,
        snapshot: SequenceNumber,
        cmp: &InternalKeyComparator,
    ) -> SequenceNumber {
        let outside = |bound: &Option<(Vec<u8>, SequenceNumber)>, side: Ordering| {
            bound.as_ref().is_some_and(|(user, at)| {
                let order = cmp.compare_user(user_key, user);
                // Newer versions come first.
                order == side || order == Ordering::Equal && at.cmp(&seq) == side
            })
        };
        if outside(&self.smallest, Ordering::Less) || outside(&self.largest, Ordering::Greater) {
            return 0;
        }
        self.list.max_covering(user_key, snapshot, cmp)
    }

    /// The fragments that reach into the boundaries, cut to them, gaps included. An end that is cut inside a user key's
    /// versions appears as that user key, exclusive, as the neighbouring file has the rest.
    pub(super) fn cut_pieces<'a>(&'a self, cmp: &'a InternalKeyComparator) -> impl Iterator<Item = CutPiece<'a>> {
        (self.pieces.0..self.pieces.1).filter_map(move |i| {
            let (begin, end) = self.list.piece_bounds(i);
            let (mut begin, mut end) = ((begin, MAX_SEQUENCE), (end, SequenceNumber::MAX));
            if let Some((user, seq)) = &self.smallest
                && cmp.compare_user(user, begin.0).is_ge()
            {
                begin = (user, *seq);
            }
            if let Some((user, seq)) = &self.largest
                && cmp.compare_user(user, end.0).is_lt()
            {
                end = (user, *seq);
            }
            match cmp.compare_user(begin.0, end.0) {
                Ordering::Less => {}
                // Versions from begin's down to end's.
                Ordering::Equal if begin.1 >= end.1 => {}
                _ => return None,
            }
            Some(CutPiece { begin, end, piece: i })
        })
    }

    pub(super) fn list(&self) -> &FragmentedRangeTombstones {
        &self.list
    }

    pub(super) fn smallest(&self) -> Option<&[u8]> {
        self.smallest.as_ref().map(|b| &b.0[..])
    }

    pub(super) fn largest(&self) -> Option<&[u8]> {
        self.largest.as_ref().map(|b| &b.0[..])
    }
}

/// A fragment within a file's boundaries.
pub(super) struct CutPiece<'a> {
    /// First user key, and its newest version that is covered.
    pub(super) begin: (&'a [u8], SequenceNumber),
    /// Last user key, and its oldest version that is covered; `u64::MAX` none.
    pub(super) end: (&'a [u8], SequenceNumber),
    /// Which of the list's.
    pub(super) piece: usize,
}
