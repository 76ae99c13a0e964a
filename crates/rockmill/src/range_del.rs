//! Range tombstones: fragmented so that ranges do not overlap, and asked for the newest one over a key
//! (RocksDB `db/range_tombstone_fragmenter.h`).

use rockmill_format::{InternalKeyComparator, SequenceNumber};

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
#[derive(Debug, Clone, Default)]
pub struct FragmentedRangeTombstones {
    _private: (),
}

impl FragmentedRangeTombstones {
    /// Fragments `tombstones`, in any order. Empty ranges (begin >= end) are left out.
    pub fn new(tombstones: Vec<RangeTombstone>, cmp: &InternalKeyComparator) -> Self {
        let _ = (tombstones, cmp);
        todo!()
    }

    /// True without a fragment.
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// The newest sequence number not above `snapshot` of a tombstone over `user_key`; 0 when none covers it.
    pub fn max_covering(
        &self,
        user_key: &[u8],
        snapshot: SequenceNumber,
        cmp: &InternalKeyComparator,
    ) -> SequenceNumber {
        let _ = (user_key, snapshot, cmp);
        todo!()
    }

    /// All fragments with each of their sequence numbers, in order of (begin ascending, sequence descending): what a
    /// flush or compaction writes.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], SequenceNumber)> {
        std::iter::empty()
    }
}
