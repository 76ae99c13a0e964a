//! What an iterator knows of the prefix that it was sought in.
//!
//! Filters may leave runs out of a seek (`iter/prefix_seek.rs`). Then, and with `prefix_same_as_start`, the iterator
//! ends where the prefix of the seek's target ends: it never gives keys between which others are missing.

use std::sync::Arc;

use rockmill_format::SliceTransform;

use crate::db::ReadOptions;
use crate::iter::prefix_seek::PrefixSeek;

pub(crate) struct PrefixScan {
    seek: Arc<PrefixSeek>,
    same_as_start: bool,
    /// Of the last seek's target; with `same_as_start`, after a seek to the first or last key, of the bound there, or
    /// without one of the key found.
    prefix: Vec<u8>,
    has_prefix: bool,
    /// The prefix of the key found counts: the seek had neither a target nor a bound.
    by_found: bool,
    /// The iterator ends with the prefix.
    limited: bool,
}

impl PrefixScan {
    /// `None` where the options want keys in their total order and nothing else. `upper` is exclusive.
    pub fn new(
        extractor: Option<&SliceTransform>,
        options: &ReadOptions,
        upper: Option<&Vec<u8>>,
        bytewise: bool,
    ) -> Option<Box<Self>> {
        let extractor = extractor?.clone();
        let same_as_start = options.prefix_same_as_start;
        if options.total_order_seek && !options.auto_prefix_mode && !same_as_start {
            return None;
        }
        let total_order = options.auto_prefix_mode && !same_as_start;
        let seek = Arc::new(PrefixSeek::new(extractor, total_order, upper.cloned(), bytewise));
        Some(Box::new(Self {
            seek,
            same_as_start,
            prefix: Vec::new(),
            has_prefix: false,
            by_found: false,
            limited: false,
        }))
    }

    /// For the runs under the iterator.
    pub fn seek(&self) -> &Arc<PrefixSeek> {
        &self.seek
    }

    /// Before the runs are moved to `target`; `ask` says whether they may ask their filters.
    pub fn begin(&mut self, target: &[u8], ask: bool) {
        let prefix = self.seek.extractor().prefix(target);
        (self.has_prefix, self.by_found) = (prefix.is_some(), false);
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix.unwrap_or_default());
        self.limited = false;
        self.seek.begin(ask);
    }

    /// Before a seek to `key` moves the runs to `target`: the key, or the lower bound where that is behind it. With
    /// `same_as_start` the key's prefix counts, as in RocksDB, and nothing is found if the bound has another one.
    pub fn begin_from(&mut self, key: &[u8], target: &[u8]) {
        if !self.same_as_start {
            return self.begin(target, true);
        }
        let extractor = self.seek.extractor();
        let ask = extractor.prefix(key) == extractor.prefix(target);
        self.begin(key, ask);
    }

    /// Before the runs are moved to the first entry at or after the lower bound, if there is one. What is wanted is all
    /// up to the upper bound: filters may be asked only if that is all of one prefix.
    pub fn begin_first(&mut self, lower: Option<&[u8]>) {
        match lower {
            Some(lower) => {
                let ask = self.same_as_start || self.seek.is_one_prefix_from(lower);
                self.begin(lower, ask);
            }
            None => self.begin_anywhere(),
        }
    }

    /// Before the runs are moved to the last entry before the upper bound, if there is one. With `same_as_start` it is
    /// then the bound's prefix that counts, as in RocksDB, though no key is the bound.
    pub fn begin_last(&mut self, upper: Option<&[u8]>) {
        match upper {
            Some(upper) if self.same_as_start => self.begin(upper, false),
            _ => self.begin_anywhere(),
        }
    }

    /// Before the runs are moved to where no key says the prefix.
    fn begin_anywhere(&mut self) {
        (self.has_prefix, self.by_found) = (false, true);
        self.limited = false;
        self.seek.begin(false);
    }

    /// After the runs were moved, before entries are looked at.
    pub fn moved(&mut self) {
        let limits = self.seek.end();
        self.limited = limits || (self.same_as_start && self.has_prefix);
    }

    /// After a seek that no key or bound could give a prefix: the one of the key found counts from now on.
    pub fn found(&mut self, key: &[u8]) {
        if self.same_as_start
            && self.by_found
            && let Some(prefix) = self.seek.extractor().prefix(key)
        {
            self.prefix.clear();
            self.prefix.extend_from_slice(prefix);
            self.has_prefix = true;
            self.limited = true;
        }
    }

    /// True when the iterator ends before this key.
    #[inline]
    pub fn is_past(&self, key: &[u8]) -> bool {
        self.limited && self.seek.extractor().prefix(key) != Some(&self.prefix)
    }
}
