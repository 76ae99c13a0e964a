//! A table's range tombstones, truncated to the table's boundaries (RocksDB's `TruncatedRangeDelIterator`).
//!
//! Every file that a tombstone overlaps contains it with its original bounds. It must not apply outside the file's own
//! range. A neighbouring file of the same level may have been compacted down since, with entries to which the tombstone
//! no longer applies. So a tombstone covers only what lies between its file's smallest and largest internal keys.
//!
//! A user key can straddle two files: one ends with its newer versions, the other begins with its older ones. Therefore
//! tombstones are truncated at internal keys. Of a file's largest user key, only versions at or above the version of
//! its largest key are covered; of its smallest user key, only versions at or below the version of its smallest key.

use std::cmp::Ordering;
use std::sync::Arc;

use rockmill_format::key::{self, MAX_SEQUENCE};
use rockmill_format::{InternalKey, InternalKeyComparator, SequenceNumber, ValueType};

use super::FragmentedRangeTombstones;

/// Fragmented tombstones, with the internal keys at which they are truncated, if at all.
#[derive(Debug, Clone)]
pub struct TruncatedRangeTombstones {
    list: Arc<FragmentedRangeTombstones>,
    /// Of this user key, versions up to this one are covered; nothing before the key is.
    smallest: Option<(Vec<u8>, SequenceNumber)>,
    /// Of this user key, versions from this one up are covered; nothing after the key is.
    largest: Option<(Vec<u8>, SequenceNumber)>,
    /// The range of fragments within the boundaries (first and end), including gaps.
    pieces: (usize, usize),
}

impl TruncatedRangeTombstones {
    /// All of `list`: a memtable's.
    pub fn whole(list: Arc<FragmentedRangeTombstones>) -> Self {
        let pieces = (0, list.num_pieces());
        Self { list, smallest: None, largest: None, pieces }
    }

    /// Truncates `list` to the boundaries of its file.
    pub fn of_file(
        list: Arc<FragmentedRangeTombstones>,
        smallest: &InternalKey,
        largest: &InternalKey,
        cmp: &InternalKeyComparator,
    ) -> Self {
        let largest_tag = key::tag(largest.as_bytes());
        let covered_from = match largest.sequence() {
            // A tombstone extended the boundary to the first user key after the file: the file has no version of that
            // key.
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

    /// The newest sequence number, at most `snapshot`, of a tombstone over version `seq` of `user_key`; 0 if none
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

    /// The fragments within the boundaries, truncated to them, including gaps. If an end is truncated between a user
    /// key's versions, that user key is the exclusive end, because the neighbouring file has the rest.
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
