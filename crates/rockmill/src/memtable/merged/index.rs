//! Finds the position of a key among sorted keys, by eight bytes of each.
//!
//! All keys of a merged memtable lie between its first and its last, so in the bytewise orders they begin with the
//! bytes that these two have in common. The eight bytes after that are a key's *prefix* here, as a number that orders
//! as the keys do: keys of one table of an application, or `user000017`, differ early, but not in their first eight
//! bytes. In other orders prefixes would be meaningless, so there are none.
//!
//! The prefixes are a static B-tree without pointers. They are stored in groups of sixteen, two cache lines; the first
//! of each group is repeated in the level above, and so on up to a single group. A search counts the smaller numbers of
//! one group on each level, without a branch. It waits for memory only for one group of the lowest level and one
//! pointer, which are fetched together, and sometimes for a group of the level above: the rest stays in the caches.

use std::ops::Range;

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::user_key;

use crate::memtable::skiplist::{PrefixOrder, first_bytes};

/// Prefixes of a group.
pub(super) const GROUP: usize = 16;

/// How the prefixes of some keys are made.
#[derive(Clone)]
pub(super) struct KeyPrefixes {
    /// Every key begins with this.
    common: Box<[u8]>,
    order: PrefixOrder,
}

impl KeyPrefixes {
    /// Of user keys from `first` to `last`.
    pub fn new(cmp: &InternalKeyComparator, first: &[u8], last: &[u8]) -> Self {
        let order = PrefixOrder::new(cmp);
        let len = if order.is_known() { first.iter().zip(last).take_while(|(a, b)| a == b).count() } else { 0 };
        Self { common: first[..len].into(), order }
    }

    /// False when no key has a prefix.
    pub fn are_known(&self) -> bool {
        self.order.is_known()
    }

    /// True if both make the same prefixes.
    pub fn same_as(&self, other: &Self) -> bool {
        self.common == other.common
    }

    /// That of an internal key within the bounds.
    #[inline]
    pub fn of(&self, ikey: &[u8]) -> u64 {
        ikey.get(self.common.len()..).map_or(0, |rest| self.order.of(first_bytes(rest)))
    }

    /// Bytes allocated.
    fn memory_usage(&self) -> usize {
        self.common.len()
    }
}

/// One level of the tree, in whole groups that begin at a cache line where the allocator allows.
struct Level {
    words: Box<[u64]>,
    start: usize,
    len: usize,
}

impl Level {
    fn new(len: usize) -> Self {
        let padded = len.next_multiple_of(GROUP);
        let mut words = vec![0; padded + GROUP - 1].into_boxed_slice();
        let start = words.as_ptr().align_offset(GROUP * size_of::<u64>());
        let start = if start < GROUP { start } else { 0 };
        // No prefix is larger than the numbers that fill up the last group.
        words[start + len..].fill(u64::MAX);
        Self { words, start, len }
    }

    fn as_slice(&self) -> &[u64] {
        &self.words[self.start..self.start + self.len]
    }

    /// How many of a group are below `prefix`.
    #[inline]
    fn below(&self, group: usize, prefix: u64) -> usize {
        let group = self.words.get(self.start + group * GROUP..).and_then(|words| words.first_chunk::<GROUP>());
        group.map_or(0, |group| group.iter().map(|p| usize::from(*p < prefix)).sum())
    }
}

/// See the module's text.
pub(super) struct PrefixIndex {
    prefixes: KeyPrefixes,
    /// The lowest first; without known prefixes there is none.
    levels: Vec<Level>,
    len: usize,
}

impl PrefixIndex {
    /// Of `len` keys, whose prefixes `fill` writes, rising; it gets nothing where there are none.
    pub fn new(prefixes: KeyPrefixes, len: usize, fill: impl FnOnce(&mut [u64])) -> Self {
        let mut levels = Vec::new();
        if prefixes.are_known() {
            let mut lowest = Level::new(len);
            fill(&mut lowest.words[lowest.start..][..len]);
            levels.push(lowest);
            while let Some(below) = levels.last().filter(|l| l.len > GROUP) {
                let mut level = Level::new(below.len.div_ceil(GROUP));
                for (to, from) in level.words[level.start..].iter_mut().zip(below.as_slice().iter().step_by(GROUP)) {
                    *to = *from;
                }
                levels.push(level);
            }
        } else {
            fill(&mut []);
        }
        Self { prefixes, levels, len }
    }

    /// How the prefixes are made.
    pub fn prefixes(&self) -> &KeyPrefixes {
        &self.prefixes
    }

    /// All of them.
    pub fn all(&self) -> &[u64] {
        self.levels.first().map_or(&[], Level::as_slice)
    }

    /// The range of keys that must be compared with `ikey`: keys before the range are before it, keys after the range
    /// are after it. `coming` is called with a group of positions as soon as it is known that the range begins there or
    /// at the position after it.
    #[inline]
    pub fn candidates(&self, ikey: &[u8], cmp: &InternalKeyComparator, coming: impl FnOnce(usize)) -> Range<usize> {
        let common = &self.prefixes.common;
        if !self.prefixes.are_known() {
            return 0..self.len;
        }
        if !user_key(ikey).starts_with(common) {
            // It differs from all keys in their common bytes, or is shorter than these.
            let at = if cmp.compare_user(user_key(ikey), common).is_lt() { 0 } else { self.len };
            return at..at;
        }
        let prefix = self.prefixes.of(ikey);
        let start = self.lower_bound(prefix, coming);
        start..start + self.equal_from(start, prefix)
    }

    /// How many are below `prefix`.
    #[inline]
    fn lower_bound(&self, prefix: u64, coming: impl FnOnce(usize)) -> usize {
        let Some((lowest, above)) = self.levels.split_first() else { return 0 };
        let mut group = 0;
        for level in above.iter().rev() {
            let below = group * GROUP + level.below(group, prefix);
            if below == 0 {
                return 0;
            }
            // The last that is below: its group has the first that is not, or ends before it.
            group = below - 1;
        }
        coming(group * GROUP);
        group * GROUP + lowest.below(group, prefix)
    }

    /// How many from `start` on are `prefix`; none before `start` is.
    #[inline]
    fn equal_from(&self, start: usize, prefix: u64) -> usize {
        let rest = &self.all()[start..];
        if rest.get(1) != Some(&prefix) {
            return usize::from(rest.first() == Some(&prefix));
        }
        let mut bound = 2;
        while rest.get(bound) == Some(&prefix) {
            bound *= 2;
        }
        // The one at half the bound is equal.
        let half = bound / 2;
        let end = bound.min(rest.len());
        half + rest[half..end].partition_point(|p| *p == prefix)
    }

    /// Bytes allocated.
    pub fn memory_usage(&self) -> usize {
        self.prefixes.memory_usage() + self.levels.iter().map(|l| size_of_val(&*l.words)).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_finds_what_a_plain_search_finds() {
        let seed = 6;
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = InternalKeyComparator::default();
        let prefixes = KeyPrefixes::new(&cmp, b"", b"");
        let most = if cfg!(miri) { 40 } else { 5000 };
        let lengths = [0, 1, 15, 16, 17, 255, 256, 257].into_iter().filter(|n| *n < most);
        for len in lengths.chain((0..20).map(|_| rng.usize(0..most))).collect::<Vec<_>>() {
            let range = *rng.choice(&[3, 100, u64::MAX]).unwrap();
            let mut all: Vec<u64> = (0..len).map(|_| rng.u64(0..range)).collect();
            if rng.bool() && len > 2 {
                (all[0], all[1]) = (u64::MAX, u64::MAX); // what fills the last group
            }
            all.sort_unstable();
            let index = PrefixIndex::new(prefixes.clone(), len, |out| out.copy_from_slice(&all));
            assert_eq!(index.all(), all);
            let asked = all.iter().step_by(7).flat_map(|p| [p.saturating_sub(1), *p, p.saturating_add(1)]);
            for p in asked.chain([0, u64::MAX]).collect::<Vec<_>>() {
                let mut told = None;
                let start = index.lower_bound(p, |at| told = Some(at));
                assert_eq!(start, all.partition_point(|x| *x < p), "{p} among {len}");
                assert!(told.is_none_or(|at| (at..=at + GROUP).contains(&start)));
                let equal = all.iter().filter(|x| **x == p).count();
                assert_eq!(index.equal_from(start, p), equal, "{p} among {len}");
            }
        }
    }
}
