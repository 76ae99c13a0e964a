//! What an iterator knows about the prefix of its last seek.
//!
//! Filters may exclude runs from a seek (`iter/prefix_seek.rs`). In that case, and with `prefix_same_as_start`, the
//! iterator ends where the prefix of the seek's target ends, so that it never returns keys with others missing in
//! between.

use std::sync::Arc;

use rockmill_format::SliceTransform;

use crate::db::ReadOptions;
use crate::iter::prefix_seek::PrefixSeek;

pub(crate) struct PrefixScan {
    seek: Arc<PrefixSeek>,
    same_as_start: bool,
    /// The prefix of the last seek's target. With `same_as_start`, after a seek to the first or last key: the prefix of
    /// the bound at that end or, without a bound, of the key found.
    prefix: Vec<u8>,
    has_prefix: bool,
    /// The prefix of the key found counts: the seek had neither a target nor a bound.
    by_found: bool,
    /// The iterator ends with the prefix.
    limited: bool,
}

impl PrefixScan {
    /// `None` if the options want all keys in order and nothing else. `upper` is exclusive.
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

    /// Called before the runs are moved to `target`; `ask` says whether they may ask their filters.
    pub fn begin(&mut self, target: &[u8], ask: bool) {
        let prefix = self.seek.extractor().prefix(target);
        (self.has_prefix, self.by_found) = (prefix.is_some(), false);
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix.unwrap_or_default());
        self.limited = false;
        self.seek.begin(ask);
    }

    /// Called before a seek to `key` moves the runs to `target`, which is the key, or the lower bound if that is
    /// larger. With `same_as_start` the key's prefix counts, as in RocksDB, and nothing is found if the bound has
    /// another one.
    pub fn begin_from(&mut self, key: &[u8], target: &[u8]) {
        if !self.same_as_start {
            return self.begin(target, true);
        }
        let extractor = self.seek.extractor();
        let ask = extractor.prefix(key) == extractor.prefix(target);
        self.begin(key, ask);
    }

    /// Called before the runs are moved to the first entry at or after the lower bound, if there is one. All keys up to
    /// the upper bound are wanted, so filters may be asked only if all of these have one prefix.
    pub fn begin_first(&mut self, lower: Option<&[u8]>) {
        match lower {
            Some(lower) => {
                let ask = self.same_as_start || self.seek.is_one_prefix_from(lower);
                self.begin(lower, ask);
            }
            None => self.begin_anywhere(),
        }
    }

    /// Called before the runs are moved to the last entry before the upper bound, if there is one. With `same_as_start`
    /// the bound's prefix counts then, as in RocksDB, although the bound is exclusive.
    pub fn begin_last(&mut self, upper: Option<&[u8]>) {
        match upper {
            Some(upper) if self.same_as_start => self.begin(upper, false),
            _ => self.begin_anywhere(),
        }
    }

    /// Called before the runs are moved to a place that no key determines.
    fn begin_anywhere(&mut self) {
        (self.has_prefix, self.by_found) = (false, true);
        self.limited = false;
        self.seek.begin(false);
    }

    /// Called after the runs were moved, before entries are looked at.
    pub fn moved(&mut self) {
        let limits = self.seek.end();
        self.limited = limits || (self.same_as_start && self.has_prefix);
    }

    /// Called after a seek without a key or bound to take a prefix from: from now on the prefix of the key found
    /// counts.
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
