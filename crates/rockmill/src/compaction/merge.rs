//! The merge: many sorted runs in, one sorted stream of internal entries out.
//!
//! Engines differ in how bytes arrive; they share [`MergeStream`], the interface that resolution reads. Here is the
//! simplest engine, `pread`: each run reads its tables through a read-ahead window of `compaction_readahead_size`.
//!
//! How runs are merged:
//!
//! 1. The heads of the runs stand in an array sorted by their current keys; the first is the smallest.
//! 2. After a step of the first run its new key is compared with the second head only. Where one run holds a long
//!    stretch, that is all (galloping).
//! 3. Otherwise it moves to its place by binary search among the others: log2(runs) comparisons, and one move of a
//!    few 16-byte heads, with less to go wrong than in a loser tree.
//! 4. A comparison looks at eight bytes of the user key as one number first (bytewise order only), taken behind the
//!    prefix that all keys of the job share. Only ties look at the keys.
//!
//! No step allocates. A key or value is valid until the next step.

use std::path::Path;
use std::sync::Arc;

use rockmill_format::InternalKeyComparator;
use rockmill_format::key::{InternalKey, user_key};

use super::plan::{InputRun, Part};
use super::{JobContext, TableSource};
use crate::error::Result;
use crate::iter::InternalIterator;
use crate::rate_limiter::{IoPriority, Limit};
use crate::table::CompactionIter;
use crate::version::FileMeta;

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
    /// The file that the current entry is in, for messages about it; nothing for what is in memory.
    fn file(&self) -> Option<&Path> {
        None
    }
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
    /// The file that the current entry is in, for messages about it; nothing for what is in memory.
    fn file(&self) -> Option<&Path> {
        None
    }
}

/// A run of table files, opened one after another.
pub struct TableRun {
    files: std::vec::IntoIter<Arc<FileMeta>>,
    current: Option<CompactionIter>,
    tables: Arc<dyn TableSource>,
    readahead: usize,
    /// What reads are asked of, where they are limited.
    limit: Option<Limit>,
    /// Sorts after everything that is wanted: reads stop there.
    end: Option<InternalKey>,
}

impl TableRun {
    /// The entries of `run` inside `part`.
    pub fn open(run: &InputRun, part: &Part, ctx: &JobContext) -> Result<Self> {
        let cmp = &ctx.cmp;
        let files: Vec<_> = run
            .files
            .iter()
            .filter(|f| {
                part.begin.as_ref().is_none_or(|b| cmp.compare_user(f.largest_user_key(), b).is_ge())
                    && part.end.as_ref().is_none_or(|e| cmp.compare_user(f.smallest_user_key(), e).is_lt())
            })
            .cloned()
            .collect();
        let mut new = Self {
            files: files.into_iter(),
            current: None,
            tables: Arc::clone(&ctx.tables),
            readahead: ctx.db.compaction_readahead_size,
            limit: ctx.limit(IoPriority::Low).filter(|l| l.limiter.mode().limits_reads()),
            end: part.end.as_deref().map(InternalKey::min_possible),
        };
        new.next_file(part.begin.as_deref().map(InternalKey::min_possible).as_ref())?;
        Ok(new)
    }

    /// Goes on to the first file that has an entry (at or after `from`).
    fn next_file(&mut self, from: Option<&InternalKey>) -> Result<()> {
        loop {
            self.current = None; // frees its window before the next one is made
            let Some(file) = self.files.next() else { return Ok(()) };
            let table = self.tables.table_for_compaction(&file)?;
            let mut iter = table.compaction_iter(self.readahead, true);
            if let Some(limit) = &self.limit {
                iter.limit_rate(limit.clone());
            }
            if let Some(end) = &self.end {
                iter.limit_readahead(end.as_bytes());
            }
            match from {
                Some(key) => iter.seek(key.as_bytes()),
                None => iter.seek_to_first(),
            }
            iter.status()?;
            if iter.valid() {
                self.current = Some(iter);
                return Ok(());
            }
        }
    }

    #[cold]
    fn end_of_file(&mut self) -> Result<()> {
        if let Some(iter) = &self.current {
            iter.status()?;
        }
        self.next_file(None)
    }
}

impl Run for TableRun {
    #[inline]
    fn valid(&self) -> bool {
        self.current.is_some()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if let Some(iter) = &mut self.current {
            iter.next();
            if iter.valid() {
                return Ok(());
            }
        }
        self.end_of_file()
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |i| i.key())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |i| i.value())
    }

    fn file(&self) -> Option<&Path> {
        self.current.as_ref().and_then(|i| i.file())
    }
}

/// A run behind the general iterator: a memtable.
pub struct IteratorRun(Box<dyn InternalIterator>);

impl IteratorRun {
    /// All entries of `iter`.
    pub fn new(mut iter: Box<dyn InternalIterator>) -> Result<Self> {
        iter.seek_to_first();
        iter.status()?;
        Ok(Self(iter))
    }
}

impl Run for IteratorRun {
    #[inline]
    fn valid(&self) -> bool {
        self.0.valid()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.0.next();
        if self.0.valid() { Ok(()) } else { self.0.status() }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.0.key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.0.value()
    }
}

/// The head of a run in the sorted array.
#[derive(Clone, Copy)]
struct Head {
    prefix: u64,
    run: u32,
}

/// Merges runs.
pub struct Merger<R> {
    runs: Vec<R>,
    /// Runs that are not at their end, by current key.
    heads: Vec<Head>,
    cmp: InternalKeyComparator,
    prefixes: Prefixes,
    /// User key where the stream ends, with its prefix (0 where prefixes say nothing of it).
    end: Option<(Vec<u8>, u64)>,
}

/// How eight bytes of a user key are taken as a number that orders like the keys.
#[derive(Debug, Clone, Copy)]
struct Prefixes {
    /// Off where keys do not order bytewise.
    on: bool,
    /// Bytes that all keys have in common.
    skip: usize,
}

impl Prefixes {
    #[inline]
    fn of(self, user_key: &[u8]) -> u64 {
        if !self.on {
            return 0;
        }
        let rest = user_key.get(self.skip..).unwrap_or(&[]);
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

impl<R: Run> Merger<R> {
    /// Merges `runs`, newest first, up to user key `end`. `range` holds the smallest and largest user key of all
    /// runs, if known.
    pub fn new(
        runs: Vec<R>,
        cmp: InternalKeyComparator,
        range: Option<(&[u8], &[u8])>,
        end: Option<&[u8]>,
    ) -> Result<Self> {
        let common = range.map_or(0, |(a, b)| a.iter().zip(b).take_while(|(a, b)| a == b).count());
        let prefixes = Prefixes { on: cmp.is_bytewise(), skip: common };
        let end = end.map(|e| {
            let shares = range.is_some_and(|(a, _)| a.get(..common) == e.get(..common));
            (e.to_vec(), if shares || common == 0 { prefixes.of(e) } else { 0 })
        });
        let mut merger = Self { heads: Vec::with_capacity(runs.len()), runs, cmp, prefixes, end };
        for run in 0..merger.runs.len() {
            if merger.runs[run].valid() {
                let head = merger.head_of(run as u32);
                let at = merger.heads.partition_point(|h| merger.before(*h, head));
                merger.heads.insert(at, head);
            }
        }
        merger.stop_at_end();
        Ok(merger)
    }

    #[inline]
    fn head_of(&self, run: u32) -> Head {
        Head { prefix: self.prefixes.of(user_key(self.runs[run as usize].key())), run }
    }

    /// True when head `a` comes before head `b`; equal keys go by run, newest first.
    #[inline]
    fn before(&self, a: Head, b: Head) -> bool {
        if a.prefix != b.prefix {
            return a.prefix < b.prefix;
        }
        let (ka, kb) = (self.runs[a.run as usize].key(), self.runs[b.run as usize].key());
        self.cmp.compare(ka, kb).then(a.run.cmp(&b.run)).is_lt()
    }

    /// Empties the stream when it has reached its end key.
    #[inline]
    fn stop_at_end(&mut self) {
        if let (Some((end, prefix)), Some(head)) = (&self.end, self.heads.first())
            && head.prefix >= *prefix
            && self.cmp.compare_user(user_key(self.runs[head.run as usize].key()), end).is_ge()
        {
            self.heads.clear();
        }
    }
}

impl<R: Run> MergeStream for Merger<R> {
    #[inline]
    fn valid(&self) -> bool {
        !self.heads.is_empty()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        let Some(&Head { run, .. }) = self.heads.first() else { return Ok(()) };
        self.runs[run as usize].advance()?;
        if !self.runs[run as usize].valid() {
            self.heads.remove(0);
        } else {
            let head = self.head_of(run);
            self.heads[0] = head;
            if self.heads.len() > 1 && self.before(self.heads[1], head) {
                let at = 2 + self.heads[2..].partition_point(|h| self.before(*h, head));
                self.heads.copy_within(1..at, 0);
                self.heads[at - 1] = head;
            }
        }
        self.stop_at_end();
        Ok(())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.heads.first().map_or(&[], |h| self.runs[h.run as usize].key())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.heads.first().map_or(&[], |h| self.runs[h.run as usize].value())
    }

    fn file(&self) -> Option<&Path> {
        self.heads.first().and_then(|h| self.runs[h.run as usize].file())
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
    use rockmill_format::comparator::ReverseBytewiseComparator;

    #[test]
    fn merges_like_a_sort() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let cmp = match rng.u8(0..3) {
                0 => InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator)),
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
            let mut merger = Merger::new(runs, cmp, range, end.as_deref()).unwrap();
            for (key, value) in &all {
                assert!(merger.valid(), "seed {seed}");
                assert_eq!((merger.key(), merger.value()), (&key[..], &value[..]), "seed {seed}");
                merger.advance().unwrap();
            }
            assert!(!merger.valid(), "seed {seed}");
        }
    }
}
