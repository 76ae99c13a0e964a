//! One sorted stream out of many (RocksDB's `MergingIterator`).
//!
//! The current child stands outside a binary heap of the others. A step moves the current child and compares it with
//! the heap's top. As long as it stays first, that is the only comparison; otherwise the two change places, and the
//! heap is sifted down once. Children cache the first eight bytes of their user keys (or, in the order by search key,
//! the search key), so that most comparisons are of integers.
//!
//! Forwards, equal keys come in the children's order (a lower index is newer); backwards, in the opposite order. So the
//! two directions are each other's reverse.

use std::cmp::Ordering;
use std::path::Path;

use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::search_key;
use rockmill_format::key::user_key;

use crate::error::Result;
use crate::iter::heap::RunHeap;
use crate::iter::seek_reads::SeekReads;
use crate::iter::{EmptyIterator, InternalIterator};
use crate::perf_context::{self as perf, PerfMetric};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Reverse,
}

struct Child {
    iter: Box<dyn InternalIterator>,
    /// Prefix of the current key. Different prefixes order as their keys do; zero in every child if the comparator is
    /// not bytewise.
    prefix: u64,
}

/// True if child `a` comes before child `b` in the direction of movement.
#[inline]
fn before(cmp: &InternalKeyComparator, children: &[Child], direction: Direction) -> impl Fn(usize, usize) -> bool {
    let first = if direction == Direction::Forward { Ordering::Less } else { Ordering::Greater };
    move |a, b| {
        let (x, y) = (&children[a], &children[b]);
        let order = match x.prefix.cmp(&y.prefix) {
            Ordering::Equal => cmp.compare(x.iter.key(), y.iter.key()).then(a.cmp(&b)),
            other => other,
        };
        order == first
    }
}

/// See the module's text.
pub struct MergingIterator {
    cmp: InternalKeyComparator,
    children: Vec<Child>,
    /// Valid children but the current one.
    heap: RunHeap,
    current: Option<usize>,
    direction: Direction,
    status: Result<()>,
    /// What the children's seeks read together.
    reads: Option<Box<SeekReads>>,
}

impl MergingIterator {
    /// Merges `children`, newest first.
    pub fn new(children: Vec<Box<dyn InternalIterator>>, cmp: InternalKeyComparator) -> Self {
        Self {
            cmp,
            heap: RunHeap::with_capacity(children.len()),
            children: children.into_iter().map(|iter| Child { iter, prefix: 0 }).collect(),
            current: None,
            direction: Direction::Forward,
            status: Ok(()),
            reads: None,
        }
    }

    /// Merges `children`, newest first; a single child is returned as it is. With `reads`, several children read the
    /// blocks of a seek together.
    pub fn boxed(
        mut children: Vec<Box<dyn InternalIterator>>,
        cmp: InternalKeyComparator,
        reads: Option<SeekReads>,
    ) -> Box<dyn InternalIterator> {
        if children.len() < 2 {
            return children.pop().unwrap_or_else(|| Box::new(EmptyIterator::new()));
        }
        let mut new = Box::new(Self::new(children, cmp));
        new.reads = reads.map(Box::new);
        new
    }

    /// The child that the current entry comes from.
    pub fn current_child(&self) -> Option<usize> {
        self.current
    }

    /// Updates a moved child's prefix, or takes its error. True if it is on an entry.
    #[inline]
    fn refresh(&mut self, i: usize) -> bool {
        let child = &mut self.children[i];
        if child.iter.valid() {
            if self.cmp.is_bytewise() {
                child.prefix = key_prefix(user_key(child.iter.key()));
            } else if self.cmp.is_hash_range() {
                child.prefix = search_key(user_key(child.iter.key())).into();
            }
            return true;
        }
        if self.status.is_ok() {
            self.status = child.iter.status();
        }
        false
    }

    /// Moves every child with `position`, and builds the heap again.
    fn start(&mut self, direction: Direction, mut position: impl FnMut(usize, &mut dyn InternalIterator)) {
        self.begin(direction);
        for i in 0..self.children.len() {
            position(i, &mut *self.children[i].iter);
            self.join(i);
        }
        self.finish();
    }

    fn begin(&mut self, direction: Direction) {
        self.status = Ok(());
        self.direction = direction;
        self.heap.clear();
    }

    /// Child `i` has its place.
    #[inline]
    fn join(&mut self, i: usize) {
        if self.refresh(i) {
            self.heap.append(i);
        }
    }

    /// All children have theirs.
    fn finish(&mut self) {
        let before = before(&self.cmp, &self.children, self.direction);
        self.heap.heapify(&before);
        self.current = self.heap.pop(before);
    }

    fn seek_in(&mut self, direction: Direction, target: &[u8]) {
        let backward = direction == Direction::Reverse;
        if let Some(mut reads) = self.reads.take() {
            self.seek_reading(direction, target, &mut reads);
            self.reads = Some(reads);
            return;
        }
        self.start(direction, |_, iter| {
            perf::count(PerfMetric::SeekChildSeekCount, 1);
            if backward { iter.seek_for_prev(target) } else { iter.seek(target) }
        });
    }

    /// The same, with the children's blocks read together.
    fn seek_reading(&mut self, direction: Direction, target: &[u8], reads: &mut SeekReads) {
        let backward = direction == Direction::Reverse;
        self.begin(direction);
        reads.begin();
        let mut waiting = Vec::new();
        for i in 0..self.children.len() {
            perf::count(PerfMetric::SeekChildSeekCount, 1);
            let asked = reads.asked();
            self.children[i].iter.seek_together(target, backward, reads);
            if reads.asked() > asked {
                waiting.push(i);
            } else {
                self.join(i);
            }
        }
        if !waiting.is_empty() {
            reads.read();
            for i in waiting {
                self.children[i].iter.seek_together(target, backward, reads);
                self.join(i);
            }
            reads.end();
        }
        self.finish();
    }

    /// Changes direction on the current entry: the other children go to its neighbours in the new direction, and the
    /// current child makes the step.
    fn turn(&mut self, direction: Direction) {
        let Some(current) = self.current else { return };
        let here = self.children[current].iter.key().to_vec();
        let cmp = self.cmp.clone();
        self.start(direction, |i, iter| match direction {
            _ if i == current => {
                if direction == Direction::Forward {
                    iter.next();
                } else {
                    iter.prev();
                }
            }
            // Equal keys of children before the current one were already passed.
            Direction::Forward => {
                iter.seek(&here);
                if i < current && iter.valid() && cmp.compare(iter.key(), &here).is_eq() {
                    iter.next();
                }
            }
            Direction::Reverse => {
                iter.seek_for_prev(&here);
                if i > current && iter.valid() && cmp.compare(iter.key(), &here).is_eq() {
                    iter.prev();
                }
            }
        });
    }

    /// Finds the first child after the current child has moved in the direction of movement.
    #[inline]
    fn settle(&mut self, current: usize) {
        let valid = self.refresh(current);
        let before = before(&self.cmp, &self.children, self.direction);
        if !valid {
            self.current = self.heap.pop(before);
        } else if let Some(top) = self.heap.top()
            && before(top, current)
        {
            self.current = Some(top);
            self.heap.replace_top(current, before);
        }
    }
}

impl InternalIterator for MergingIterator {
    #[inline]
    fn valid(&self) -> bool {
        self.current.is_some() && self.status.is_ok()
    }

    fn seek_to_first(&mut self) {
        self.start(Direction::Forward, |_, iter| iter.seek_to_first());
    }

    fn seek_to_last(&mut self) {
        self.start(Direction::Reverse, |_, iter| iter.seek_to_last());
    }

    fn seek(&mut self, target: &[u8]) {
        self.seek_in(Direction::Forward, target);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.seek_in(Direction::Reverse, target);
    }

    #[inline]
    fn next(&mut self) {
        let Some(current) = self.current else { return };
        if self.direction == Direction::Forward {
            self.children[current].iter.next();
            self.settle(current);
        } else {
            self.turn(Direction::Forward);
        }
    }

    #[inline]
    fn prev(&mut self) {
        let Some(current) = self.current else { return };
        if self.direction == Direction::Reverse {
            self.children[current].iter.prev();
            self.settle(current);
        } else {
            self.turn(Direction::Reverse);
        }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current.map_or(&[], |i| self.children[i].iter.key())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current.map_or(&[], |i| self.children[i].iter.value())
    }

    fn prepare_value(&mut self) -> bool {
        let Some(i) = self.current else { return false };
        let child = &mut self.children[i].iter;
        if child.prepare_value() {
            return true;
        }
        (self.status, self.current) = (child.status(), None);
        false
    }

    fn status(&self) -> Result<()> {
        self.status.clone()
    }

    fn file(&self) -> Option<&Path> {
        self.current.and_then(|i| self.children[i].iter.file())
    }
}

/// The first eight bytes as a big-endian integer; missing ones are zero.
#[inline]
fn key_prefix(user_key: &[u8]) -> u64 {
    if let Some(bytes) = user_key.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    user_key.iter().fold(0, |p, &b| p << 8 | u64::from(b)).checked_shl(64 - 8 * user_key.len() as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rockmill_format::ValueType;
    use rockmill_format::comparator::ReverseBytewiseComparator;
    use rockmill_format::key::InternalKey;

    use super::*;
    use crate::error::Error;

    /// Over a sorted vector; fails when it moves onto `fails_at`.
    struct VecIterator {
        entries: Vec<(Vec<u8>, Vec<u8>)>,
        cmp: InternalKeyComparator,
        at: Option<usize>,
        fails_at: Option<usize>,
    }

    impl VecIterator {
        fn set(&mut self, at: Option<usize>) {
            self.at = at.filter(|&i| i < self.entries.len());
        }
        fn failed(&self) -> bool {
            self.at.is_some() && self.at == self.fails_at
        }
    }

    impl InternalIterator for VecIterator {
        fn valid(&self) -> bool {
            self.at.is_some() && !self.failed()
        }
        fn seek_to_first(&mut self) {
            self.set(Some(0));
        }
        fn seek_to_last(&mut self) {
            self.set(self.entries.len().checked_sub(1));
        }
        fn seek(&mut self, target: &[u8]) {
            self.set(Some(self.entries.partition_point(|e| self.cmp.compare(&e.0, target).is_lt())));
        }
        fn seek_for_prev(&mut self, target: &[u8]) {
            self.set(self.entries.partition_point(|e| self.cmp.compare(&e.0, target).is_le()).checked_sub(1));
        }
        fn next(&mut self) {
            self.set(self.at.map(|i| i + 1));
        }
        fn prev(&mut self) {
            self.set(self.at.and_then(|i| i.checked_sub(1)));
        }
        fn key(&self) -> &[u8] {
            &self.entries[self.at.expect("valid")].0
        }
        fn value(&self) -> &[u8] {
            &self.entries[self.at.expect("valid")].1
        }
        fn status(&self) -> Result<()> {
            if self.failed() { Err(Error::corruption("block 7 is damaged")) } else { Ok(()) }
        }
    }

    fn ikey(user: &[u8], seq: u64) -> Vec<u8> {
        InternalKey::new(user, seq, ValueType::Value).as_bytes().to_vec()
    }

    fn random_user(rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut k: Vec<u8> = (0..rng.usize(0..4)).map(|_| *rng.choice(&[0u8, 1, b'x', 255]).unwrap()).collect();
        if rng.bool() {
            k.splice(0..0, b"12345678".iter().copied());
        }
        k
    }

    #[test]
    fn random_walks_agree_with_a_sorted_vector() {
        for seed in 0..200 {
            println!("seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let cmp = if rng.bool() {
                InternalKeyComparator::default()
            } else {
                InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator))
            };
            let mut model: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut children: Vec<Box<dyn InternalIterator>> = Vec::new();
            for child in 0..rng.u8(0..9) {
                let mut entries: Vec<_> =
                    (0..rng.usize(0..40)).map(|_| (ikey(&random_user(&mut rng), rng.u64(0..6)), vec![child])).collect();
                entries.sort_by(|a, b| cmp.compare(&a.0, &b.0));
                entries.dedup_by(|a, b| a.0 == b.0);
                model.extend(entries.iter().cloned());
                children.push(Box::new(VecIterator { entries, cmp: cmp.clone(), at: None, fails_at: None }));
            }
            // Stable: equal keys keep the children's order.
            model.sort_by(|a, b| cmp.compare(&a.0, &b.0));
            let mut it = MergingIterator::new(children, cmp.clone());
            assert!(!it.valid());
            let mut at: Option<usize> = None;
            for _ in 0..400 {
                let target = ikey(&random_user(&mut rng), rng.u64(0..6));
                match rng.u32(0..20) {
                    0 => {
                        it.seek_to_first();
                        at = Some(0);
                    }
                    1 => {
                        it.seek_to_last();
                        at = model.len().checked_sub(1);
                    }
                    2 => {
                        it.seek(&target);
                        at = Some(model.partition_point(|e| cmp.compare(&e.0, &target).is_lt()));
                    }
                    3 => {
                        it.seek_for_prev(&target);
                        at = model.partition_point(|e| cmp.compare(&e.0, &target).is_le()).checked_sub(1);
                    }
                    4..12 => {
                        it.next();
                        at = at.map(|i| i + 1);
                    }
                    _ => {
                        it.prev();
                        at = at.and_then(|i| i.checked_sub(1));
                    }
                }
                at = at.filter(|&i| i < model.len());
                it.status().unwrap();
                assert_eq!(it.valid(), at.is_some());
                if let Some(i) = at {
                    assert_eq!((it.key(), it.value()), (&model[i].0[..], &model[i].1[..]));
                }
            }
        }
    }

    #[test]
    fn a_childs_error_ends_the_iteration_until_the_next_seek() {
        let cmp = InternalKeyComparator::default();
        let child = |users: &[&str], fails_at| -> Box<dyn InternalIterator> {
            let entries = users.iter().map(|u| (ikey(u.as_bytes(), 1), Vec::new())).collect();
            Box::new(VecIterator { entries, cmp: cmp.clone(), at: None, fails_at })
        };
        let mut it =
            MergingIterator::new(vec![child(&["a", "c", "e"], Some(1)), child(&["b", "d"], None)], cmp.clone());
        it.seek_to_first();
        assert!(it.valid());
        it.next();
        assert!(!it.valid());
        assert!(it.status().unwrap_err().to_string().contains("block 7"));
        it.seek(&ikey(b"d", 1));
        assert!(it.valid() && it.status().is_ok());
        it.prev();
        assert!(!it.valid() && it.status().is_err());
    }

    #[test]
    fn prefixes_order_as_keys_do() {
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..10_000 {
            let mut make =
                || -> Vec<u8> { (0..rng.usize(0..11)).map(|_| *rng.choice(&[0u8, 1, 255]).unwrap()).collect() };
            let (a, b) = (make(), make());
            if key_prefix(&a) < key_prefix(&b) {
                assert!(a < b, "{a:?} {b:?}");
            }
            let mut padded = a.clone();
            padded.resize(8.max(a.len()), 0);
            assert_eq!(key_prefix(&a), u64::from_be_bytes(padded[..8].try_into().unwrap()));
        }
    }
}
