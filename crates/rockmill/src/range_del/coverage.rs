//! Several lists of range tombstones, searched for one key after another.
//!
//! Between two neighbouring bounds of any of the lists, the tombstones over a key are the same. [`Coverage`] keeps that
//! interval and the sequence numbers over it. As long as keys stay inside, in whatever direction they move, a lookup
//! takes two comparisons. For a key outside, the piece of each list is searched again, starting at the list's cursor.

use std::cmp::Ordering as KeyOrdering;

use rockmill_format::{InternalKeyComparator, SequenceNumber};

use super::TruncatedRangeTombstones;

/// A bound of the interval: the list, and the bound's number in it.
#[derive(Debug, Clone, Copy)]
struct Bound {
    list: usize,
    at: At,
}

#[derive(Debug, Clone, Copy)]
enum At {
    Piece(usize),
    Smallest,
    Largest,
}

#[derive(Debug)]
struct List {
    tombstones: TruncatedRangeTombstones,
    /// Number of bounds that are at or before the last key.
    cursor: usize,
}

/// Lists of tombstones that are searched for the sequence numbers over a key.
#[derive(Debug)]
pub(super) struct Coverage {
    cmp: InternalKeyComparator,
    /// The snapshots that divide sequence numbers into stripes, ascending.
    snapshots: Vec<SequenceNumber>,
    lists: Vec<List>,
    /// True if the fields below are valid.
    known: bool,
    /// The interval's beginning; with `true`, exclusive. `None`: no bound.
    from: Option<(Bound, bool)>,
    /// The interval's end, exclusive.
    to: Option<Bound>,
    /// The sequence numbers over the interval, newest first: the newest of each stripe of each list.
    seqs: Vec<SequenceNumber>,
}

impl Coverage {
    pub(super) fn new(cmp: InternalKeyComparator, snapshots: Vec<SequenceNumber>) -> Self {
        Self { cmp, snapshots, lists: Vec::new(), known: false, from: None, to: None, seqs: Vec::new() }
    }

    pub(super) fn cmp(&self) -> &InternalKeyComparator {
        &self.cmp
    }

    pub(super) fn snapshots(&self) -> &[SequenceNumber] {
        &self.snapshots
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    pub(super) fn lists(&self) -> impl Iterator<Item = &TruncatedRangeTombstones> {
        self.lists.iter().map(|l| &l.tombstones)
    }

    pub(super) fn add(&mut self, tombstones: TruncatedRangeTombstones) {
        if !tombstones.is_empty() {
            self.lists.push(List { tombstones, cursor: 0 });
            self.known = false;
        }
    }

    /// Sequence numbers of the tombstones over version `seq` of `user_key`: the newest of each list and stripe, newest
    /// first.
    #[inline]
    pub(super) fn over(&mut self, user_key: &[u8], seq: SequenceNumber) -> &[SequenceNumber] {
        if !self.lists.is_empty() && !self.is_inside(user_key) {
            self.find(user_key, seq);
        }
        &self.seqs
    }

    #[inline]
    fn is_inside(&self, user_key: &[u8]) -> bool {
        self.known
            && self.from.is_none_or(|(bound, exclusive)| match self.cmp.compare_user(self.bound(bound), user_key) {
                KeyOrdering::Less => true,
                KeyOrdering::Equal => !exclusive,
                KeyOrdering::Greater => false,
            })
            && self.to.is_none_or(|bound| self.cmp.compare_user(user_key, self.bound(bound)).is_lt())
    }

    #[inline]
    fn bound(&self, bound: Bound) -> &[u8] {
        let t = &self.lists[bound.list].tombstones;
        match bound.at {
            At::Piece(i) => &t.list().bounds[i],
            At::Smallest => t.smallest().unwrap_or_default(),
            At::Largest => t.largest().unwrap_or_default(),
        }
    }

    fn raise_from(&mut self, bound: Bound, exclusive: bool) {
        let higher = match self.from {
            None => true,
            Some((old, old_exclusive)) => match self.cmp.compare_user(self.bound(bound), self.bound(old)) {
                KeyOrdering::Greater => true,
                KeyOrdering::Equal => exclusive && !old_exclusive,
                KeyOrdering::Less => false,
            },
        };
        if higher {
            self.from = Some((bound, exclusive));
        }
    }

    fn lower_to(&mut self, bound: Bound) {
        if self.to.is_none_or(|old| self.cmp.compare_user(self.bound(bound), self.bound(old)).is_lt()) {
            self.to = Some(bound);
        }
    }

    /// Finds the interval around `user_key`. At a user key where a file's tombstones are truncated, the answer depends
    /// on the version and is not kept.
    #[cold]
    fn find(&mut self, user_key: &[u8], seq: SequenceNumber) {
        (self.known, self.from, self.to) = (true, None, None);
        self.seqs.clear();
        for list in 0..self.lists.len() {
            let cmp = self.cmp.clone();
            let t = &self.lists[list].tombstones;
            let side = |bound: Option<&[u8]>| bound.map(|b| cmp.compare_user(user_key, b));
            match side(t.smallest()) {
                Some(KeyOrdering::Less) => {
                    self.lower_to(Bound { list, at: At::Smallest });
                    continue;
                }
                order => {
                    let after_largest = side(t.largest());
                    match after_largest {
                        Some(KeyOrdering::Greater) => {
                            self.raise_from(Bound { list, at: At::Largest }, true);
                            continue;
                        }
                        Some(KeyOrdering::Less) => self.lower_to(Bound { list, at: At::Largest }),
                        Some(KeyOrdering::Equal) => self.known = false,
                        None => {}
                    }
                    match order {
                        Some(KeyOrdering::Equal) => self.known = false,
                        Some(_) => self.raise_from(Bound { list, at: At::Smallest }, true),
                        None => {}
                    }
                }
            }
            let t = &self.lists[list].tombstones;
            let n = t.list().bounds.len();
            let after = locate(&t.list().bounds, self.lists[list].cursor, user_key, &cmp);
            if after > 0 && after < n && t.max_covering(user_key, seq, SequenceNumber::MAX, &cmp) > 0 {
                t.list().newest_of_stripes(after - 1, &self.snapshots, &mut self.seqs);
            }
            self.lists[list].cursor = after;
            if after > 0 {
                self.raise_from(Bound { list, at: At::Piece(after - 1) }, false);
            }
            if after < n {
                self.lower_to(Bound { list, at: At::Piece(after) });
            }
        }
        self.seqs.sort_unstable_by(|a, b| b.cmp(a));
        self.seqs.dedup();
    }
}

/// Number of `bounds` at or before `key`: the cursor or a neighbouring place if that still fits, otherwise by binary
/// search.
fn locate(bounds: &[Vec<u8>], cursor: usize, key: &[u8], cmp: &InternalKeyComparator) -> usize {
    let fits = |n: usize| {
        (n == 0 || cmp.compare_user(&bounds[n - 1], key).is_le())
            && (n == bounds.len() || cmp.compare_user(&bounds[n], key).is_gt())
    };
    let near = [Some(cursor), cursor.checked_add(1), cursor.checked_sub(1)];
    near.into_iter()
        .flatten()
        .find(|&n| n <= bounds.len() && fits(n))
        .unwrap_or_else(|| bounds.partition_point(|b| cmp.compare_user(b, key).is_le()))
}
