//! The merge: many sorted runs in, one sorted stream of internal entries out.
//!
//! Engines differ in how blocks arrive ([`feed`]); they share everything after that: runs over decoded entries
//! ([`run`]), the choice of the smallest (`order`), and [`MergeStream`], the interface that resolution reads.
//!
//! 1. A run decodes its blocks some entries at a time, and each entry has a *key prefix*: eight bytes of its user key
//!    as a number, taken after the bytes that all keys of the job share (bytewise order only). Prefixes order as keys
//!    do; keys are compared only where two prefixes are equal.
//! 2. The run with the smallest prefix gives the next entry. As long as its prefixes stay below the smallest of the
//!    others', it continues without looking at them (galloping).
//! 3. Then the smallest is determined again: among few runs by scanning their prefixes, which are in one or two cache
//!    lines and need no branches; among many with a tree of losers.
//!
//! No step allocates. A key or value is valid until the next step.

use std::path::Path;

use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::search_key;
use rockmill_format::key::user_key;

use crate::error::Result;
use crate::table::{Leaves, Origin, WholeBlock};
use order::{Keys, Order};

mod ahead;
pub mod feed;
mod order;
pub mod ring_feed;
pub(super) mod ring_scan;
pub mod run;
pub(super) mod scan_run;

/// A sorted stream of internal entries.
pub trait MergeStream {
    /// True on an entry.
    fn valid(&self) -> bool;
    /// To the next entry.
    fn advance(&mut self) -> Result<()>;
    /// The current internal key.
    fn key(&self) -> &[u8];
    /// The current value.
    fn value(&self) -> &[u8];
    /// True if the current user key certainly differs from the previous entry's; false means unknown.
    fn surely_new_user_key(&self) -> bool;
    /// True if the stream has asked the job's filter about the current value, and the filter keeps it.
    fn filter_kept(&self) -> bool {
        false
    }
    /// The file that the current entry is in, for messages about it; nothing for what is in memory.
    fn file(&self) -> Option<&Path>;
    /// Bytes of the current value.
    fn value_len(&self) -> usize {
        self.value().len()
    }
    /// Where the current entry is, if outputs may leave it there ([`TableScan::origin`](crate::table::TableScan)).
    fn origin(&self) -> Option<Origin> {
        None
    }
    /// What the current user key leaves if it goes ([`TableScan::leaves`](crate::table::TableScan)).
    fn leaves(&self) -> Leaves {
        Leaves::Nothing
    }
    /// A block whose entries the stream would give one after another with nothing in between, and whose first user key
    /// is not the last one given. While there is one, the stream is not [`Self::valid`]; it continues with
    /// [`Self::take_block`].
    fn block(&self) -> Option<WholeBlock<'_>>;
    /// Continues after the block if its entries were `taken`, otherwise at its first entry.
    fn take_block(&mut self, taken: bool) -> Result<()>;
}

/// One input of a merge.
pub trait Run {
    /// True on an entry.
    fn valid(&self) -> bool;
    /// To the next entry.
    fn advance(&mut self) -> Result<()>;
    /// The current internal key.
    fn key(&self) -> &[u8];
    /// The current value.
    fn value(&self) -> &[u8];
    /// True if the run is between two blocks, on no entry, and waits for [`Self::next_block`]. Most runs never do.
    fn waits(&self) -> bool {
        false
    }
    /// The previous internal key, if it waits; empty if that is not known.
    fn key_before(&self) -> &[u8] {
        &[]
    }
    /// To the next block's first entry, if it waits.
    fn next_block(&mut self) -> Result<()> {
        Ok(())
    }
    /// Decodes the whole block on whose first entry the run is, if all prefixes in it are below `prefix`. If true,
    /// [`Self::whole_block`] then returns it.
    fn fill_whole(&mut self, prefix: u64) -> bool {
        let _ = prefix;
        false
    }
    /// The block that was decoded as a whole.
    fn whole_block(&self) -> Option<WholeBlock<'_>> {
        None
    }
    /// To the position after that block, if it waits.
    fn skip_block(&mut self) -> Result<()> {
        Ok(())
    }
    /// Bytes of the current value.
    fn value_len(&self) -> usize {
        self.value().len()
    }
    /// See [`MergeStream::origin`].
    fn origin(&self) -> Option<Origin> {
        None
    }
    /// See [`MergeStream::leaves`].
    fn leaves(&self) -> Leaves {
        Leaves::Nothing
    }
    /// The prefix of the current key.
    #[inline]
    fn prefix(&self, prefixes: KeyPrefixes) -> u64 {
        prefixes.of(user_key(self.key()))
    }
    /// The file that the current entry is in, for messages about it; nothing for what is in memory.
    fn file(&self) -> Option<&Path> {
        None
    }
}

/// How eight bytes of a user key, or its search key, are taken as a number that orders as the keys do.
#[derive(Debug, Clone, Copy)]
pub struct KeyPrefixes {
    /// Off if keys do not order bytewise: then all prefixes are 0, or search keys.
    on: bool,
    /// Keys order by their search keys.
    hashed: bool,
    /// Bytes that all keys have in common.
    common: usize,
    /// Bits that all prefixes have in common.
    shared_bits: u32,
}

impl KeyPrefixes {
    /// For keys of this order from the smallest to the largest of `range`; `None` where it is not known.
    pub fn new(cmp: &InternalKeyComparator, range: Option<(&[u8], &[u8])>) -> Self {
        let on = cmp.is_bytewise();
        let common = range.map_or(0, |(a, b)| a.iter().zip(b).take_while(|(a, b)| a == b).count());
        let common = if on { common } else { 0 };
        let prefixes = Self { on, hashed: cmp.is_hash_range(), common, shared_bits: 0 };
        // The prefix of a key between the two is between theirs.
        let shared_bits = range.map_or(0, |(a, b)| (prefixes.of(a) ^ prefixes.of(b)).leading_zeros());
        Self { shared_bits, ..prefixes }
    }

    /// Upper bits that the prefixes of all keys inside the range have in common, 64 where they are the same.
    pub fn shared_bits(self) -> u32 {
        self.shared_bits
    }

    /// True where prefixes are search keys.
    pub fn are_hashed(self) -> bool {
        self.hashed
    }

    /// Bytes of a user key before its prefix; `None` if prefixes are not bytes of keys.
    pub fn skip(self) -> Option<usize> {
        self.on.then_some(self.common)
    }

    /// A prefix such that no key at or after `end` has a smaller one: `MAX` without an end. `range` as for
    /// [`Self::new`].
    pub fn of_end(self, range: Option<(&[u8], &[u8])>, end: Option<&[u8]>) -> u64 {
        let Some(end) = end else { return u64::MAX };
        // A prefix says something of an end only if that shares what all keys share.
        let common = self.common;
        let shares = range.is_some_and(|(a, _)| end.len() >= common && a.get(..common) == end.get(..common));
        if shares || common == 0 { self.of(end) } else { 0 }
    }

    /// The prefix of a user key inside the range; 0 where there are no prefixes.
    #[inline]
    pub fn of(self, user_key: &[u8]) -> u64 {
        if !self.on {
            return if self.hashed { search_key(user_key).into() } else { 0 };
        }
        let rest = user_key.get(self.common..).unwrap_or(&[]);
        match rest.first_chunk::<8>() {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => {
                let mut bytes = [0; 8];
                bytes[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(bytes)
            }
        }
    }
}

/// Merges runs.
pub struct Merger<R> {
    runs: Vec<R>,
    order: Order,
    cmp: InternalKeyComparator,
    prefixes: KeyPrefixes,
    /// User key where the stream ends.
    end: Option<Vec<u8>>,
    /// Keys with a smaller prefix are before the end.
    end_prefix: u64,
    /// The run that has the current entry; `NONE` at the end.
    current: usize,
    /// The current run continues while its prefixes are below this: those of all other runs are at or above it.
    others: u64,
    /// The prefix of the current entry.
    prefix: u64,
    /// It differs from the previous entry's prefix.
    another: bool,
    /// The run that began a block last, if no other gave an entry since; `NONE` otherwise.
    began: usize,
    /// The run whose block is offered; `NONE` without. There is no current one then.
    offered: usize,
    /// The user key before that block.
    before: Vec<u8>,
}

const NONE: usize = usize::MAX;

impl<R: Run> Merger<R> {
    /// Merges `runs`, newest first, up to user key `end`. `range` holds the smallest and largest user key of all runs,
    /// if known, from which `prefixes` was made.
    pub fn new(
        runs: Vec<R>,
        cmp: InternalKeyComparator,
        prefixes: KeyPrefixes,
        range: Option<(&[u8], &[u8])>,
        end: Option<&[u8]>,
    ) -> Result<Self> {
        let end_prefix = prefixes.of_end(range, end);
        let first: Vec<Option<u64>> = runs.iter().map(|run| run.valid().then(|| run.prefix(prefixes))).collect();
        let end = end.map(<[u8]>::to_vec);
        let order = Order::new(&first);
        let mut merger = Self {
            runs,
            order,
            cmp,
            prefixes,
            end,
            end_prefix,
            current: NONE,
            others: 0,
            prefix: 0,
            another: false,
            began: NONE,
            offered: NONE,
            before: Vec::new(),
        };
        merger.order.build(keys(&merger.runs, &merger.cmp));
        merger.pick();
        Ok(merger)
    }

    /// Finds the run with the smallest key.
    #[inline]
    fn pick(&mut self) {
        match self.order.pick(keys(&self.runs, &self.cmp)) {
            Some((run, prefix, others)) => {
                if run != self.began {
                    self.began = NONE;
                }
                self.current = run;
                self.others = others;
                self.arrive(prefix);
            }
            None => self.current = NONE,
        }
    }

    /// The current run begins its next block, which is offered as a whole if nothing of another run comes in between.
    ///
    /// It is offered only after a block during which no other run gave an entry: with interleaved runs that almost
    /// never happens, so this costs next to nothing. It depends only on the entries, not on how the smallest is found,
    /// so that every engine offers the same blocks.
    #[cold]
    fn next_block(&mut self) -> Result<()> {
        let at = self.current;
        let Some(run) = self.runs.get_mut(at) else { return Ok(()) };
        let alone = self.began == at;
        if alone {
            self.before.clear();
            self.before.extend_from_slice(user_key(run.key_before()));
        }
        run.next_block()?;
        self.began = at;
        if !run.valid() {
            self.order.ended(at);
            self.pick();
            return Ok(());
        }
        if alone
            && !self.before.is_empty()
            && user_key(run.key()) != self.before
            && run.fill_whole(self.order.others().min(self.end_prefix))
        {
            self.offered = at;
            self.current = NONE;
            return Ok(());
        }
        let prefix = run.prefix(self.prefixes);
        if prefix < self.others {
            self.arrive(prefix);
            return Ok(());
        }
        self.order.moved(at, prefix);
        self.pick();
        Ok(())
    }

    /// The current run's entry, which has this prefix, becomes the current one.
    #[inline(always)]
    fn arrive(&mut self, prefix: u64) {
        self.another = prefix != self.prefix;
        self.prefix = prefix;
        if prefix >= self.end_prefix {
            self.stop_at_end();
        }
    }

    /// Empties the stream when it has reached its end key.
    #[cold]
    fn stop_at_end(&mut self) {
        if let Some(end) = &self.end
            && self.cmp.compare_user(user_key(self.runs[self.current].key()), end).is_ge()
        {
            self.current = NONE;
        }
    }
}

/// The keys of the runs' current entries.
#[inline]
fn keys<'a, R: Run>(runs: &'a [R], cmp: &'a InternalKeyComparator) -> Keys<'a, impl Fn(usize) -> &'a [u8]> {
    Keys { of: |run: usize| runs[run].key(), cmp }
}

impl<R: Run> MergeStream for Merger<R> {
    #[inline]
    fn valid(&self) -> bool {
        self.current != NONE
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let Some(run) = self.runs.get_mut(self.current) else { return Ok(()) };
        run.advance()?;
        if run.valid() {
            let prefix = run.prefix(self.prefixes);
            if prefix < self.others {
                self.arrive(prefix);
                return Ok(());
            }
            self.order.moved(self.current, prefix);
        } else if run.waits() {
            return self.next_block();
        } else {
            self.order.ended(self.current);
        }
        self.pick();
        Ok(())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.runs.get(self.current).map_or(&[], |r| r.key())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.runs.get(self.current).map_or(&[], |r| r.value())
    }

    #[inline]
    fn surely_new_user_key(&self) -> bool {
        self.another
    }

    fn file(&self) -> Option<&Path> {
        self.runs.get(self.current).and_then(|r| r.file())
    }

    fn value_len(&self) -> usize {
        self.runs.get(self.current).map_or(0, |r| r.value_len())
    }

    fn origin(&self) -> Option<Origin> {
        self.runs.get(self.current)?.origin()
    }

    fn leaves(&self) -> Leaves {
        self.runs.get(self.current).map_or(Leaves::Nothing, |r| r.leaves())
    }

    fn block(&self) -> Option<WholeBlock<'_>> {
        self.runs.get(self.offered).and_then(|r| r.whole_block())
    }

    fn take_block(&mut self, taken: bool) -> Result<()> {
        self.current = std::mem::replace(&mut self.offered, NONE);
        let Some(run) = self.runs.get_mut(self.current) else { return Ok(()) };
        if taken {
            run.skip_block()?;
            self.next_block()?;
        } else {
            self.prefix = run.prefix(self.prefixes);
        }
        // The previous entry's prefix is not known.
        self.another = false;
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A run over entries in memory.
    pub(crate) struct VecRun {
        pub entries: Vec<(Vec<u8>, Vec<u8>)>,
        pub at: usize,
    }

    impl VecRun {
        pub(crate) fn new(cmp: &InternalKeyComparator, mut entries: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
            entries.sort_by(|a, b| cmp.compare(&a.0, &b.0));
            Self { entries, at: 0 }
        }
    }

    impl Run for VecRun {
        fn valid(&self) -> bool {
            self.at < self.entries.len()
        }
        fn advance(&mut self) -> Result<()> {
            self.at += 1;
            Ok(())
        }
        fn key(&self) -> &[u8] {
            &self.entries[self.at].0
        }
        fn value(&self) -> &[u8] {
            &self.entries[self.at].1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::VecRun;
    use super::*;
    use rockmill_format::ValueType;
    use rockmill_format::comparator::{HashRangeComparator, ReverseBytewiseComparator};
    use rockmill_format::key::InternalKey;
    use std::sync::Arc;

    #[test]
    fn merges_like_a_sort() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let cmp = match rng.u8(0..4) {
                0 => InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator)),
                1 => InternalKeyComparator::new(Arc::new(HashRangeComparator)),
                _ => InternalKeyComparator::default(),
            };
            let common = &b"shared-prefix"[..rng.usize(0..13)];
            let mut seq = 0;
            let mut all = Vec::new();
            let runs: Vec<Vec<_>> = (0..rng.usize(0..20))
                .map(|_| {
                    (0..rng.usize(0..50))
                        .map(|_| {
                            seq += 1;
                            let mut user = common.to_vec();
                            user.extend((0..rng.usize(0..12)).map(|_| *rng.choice(&[0, 1, 255]).unwrap()));
                            let key = InternalKey::new(&user, seq, ValueType::Value).as_bytes().to_vec();
                            all.push((key.clone(), vec![seq as u8]));
                            (key, vec![seq as u8])
                        })
                        .collect()
                })
                .collect();
            let runs = runs.into_iter().map(|r| VecRun::new(&cmp, r)).collect();
            all.sort_by(|a, b| cmp.compare(&a.0, &b.0));
            let range = all.first().zip(all.last()).map(|(a, b)| (user_key(&a.0).to_vec(), user_key(&b.0).to_vec()));
            let end = match rng.u8(0..4) {
                0 => all.get(all.len() / 2).map(|e| user_key(&e.0).to_vec()),
                1 => Some(b"zzz".to_vec()),
                _ => None,
            };
            if let Some(end) = &end {
                all.retain(|e| cmp.compare_user(user_key(&e.0), end).is_lt());
            }
            let range = range.as_ref().map(|(a, b)| (&a[..], &b[..]));
            let prefixes = KeyPrefixes::new(&cmp, range);
            let mut merger = Merger::new(runs, cmp, prefixes, range, end.as_deref()).unwrap();
            let mut before: Option<&[u8]> = None;
            for (key, value) in &all {
                assert!(merger.valid(), "seed {seed}");
                let another = before.is_none_or(|before| user_key(before) != user_key(key));
                assert!(another || !merger.surely_new_user_key(), "seed {seed}: a further version of {before:?}");
                before = Some(key);
                assert_eq!((merger.key(), merger.value()), (&key[..], &value[..]), "seed {seed}");
                merger.advance().unwrap();
            }
            assert!(!merger.valid(), "seed {seed}");
        }
    }
}
