//! Seeks by prefix: what the runs under one iterator share, so that those whose filter lacks the prefix are left out.
//!
//! A run (memtable, table, level) that is left out is not positioned. Two cases:
//!
//! - The filter was asked about the target's prefix because the iterator is a prefix iterator (RocksDB's default with
//!   an extractor). The run may hold keys of other prefixes, so what the iterator gives is right within the prefix
//!   only: `PrefixSeek::limits` says so, and the iterator ends there. RocksDB's result is undefined there.
//! - The upper bound shows that all keys up to it have the target's prefix. Then nothing is missed.

use std::sync::atomic::{AtomicBool, Ordering};

use rockmill_format::SliceTransform;

/// See the module's description.
#[derive(Debug)]
pub struct PrefixSeek {
    /// The column family's extractor.
    extractor: SliceTransform,
    /// Where all keys up to the upper bound must have the target's prefix (RocksDB's `auto_prefix_mode`).
    total_order: bool,
    /// Exclusive.
    upper: Option<Vec<u8>>,
    /// The order of keys is the bytewise one.
    bytewise: bool,
    /// Seeks ask filters.
    on: AtomicBool,
    /// A run was left out that may hold keys beyond the prefix.
    limits: AtomicBool,
}

impl PrefixSeek {
    /// For an iterator up to `upper` (exclusive).
    pub fn new(extractor: SliceTransform, total_order: bool, upper: Option<Vec<u8>>, bytewise: bool) -> Self {
        let (on, limits) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { extractor, total_order, upper, bytewise, on, limits }
    }

    /// The column family's extractor.
    pub fn extractor(&self) -> &SliceTransform {
        &self.extractor
    }

    /// True when every key from `key` up to the upper bound has the prefix of `key`.
    pub fn is_one_prefix_from(&self, key: &[u8]) -> bool {
        self.upper.as_deref().is_some_and(|upper| self.extractor.covers_range(key, upper, self.bytewise))
    }

    /// Before a seek of the user's: whether it may leave runs out.
    // Relaxed, here and below: one iterator's runs are moved by one thread at a time.
    pub fn begin(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        self.limits.store(false, Ordering::Relaxed);
    }

    /// After it: runs that were left out stay out while the iterator is in the prefix, and no other is left out.
    /// True when the iterator is right within the target's prefix only.
    pub fn end(&self) -> bool {
        let limits = self.limits.load(Ordering::Relaxed);
        self.on.store(limits, Ordering::Relaxed);
        limits
    }

    /// The prefix to ask a filter for that holds prefixes made by `made_by`; `None` where its answer would mean
    /// nothing.
    pub(crate) fn question<'k>(&self, key: &'k [u8], made_by: &SliceTransform, backward: bool) -> Option<&'k [u8]> {
        if !self.on.load(Ordering::Relaxed) {
            return None;
        }
        if !self.is_limited_by(made_by) {
            // Backwards there is no such bound, as in RocksDB.
            let upper = self.upper.as_deref().filter(|_| !backward)?;
            if !made_by.covers_range(key, upper, self.bytewise) {
                return None;
            }
        }
        made_by.prefix(key)
    }

    /// A run was left out after a question for `made_by`.
    pub(crate) fn left_out(&self, made_by: &SliceTransform) {
        if self.is_limited_by(made_by) {
            self.limits.store(true, Ordering::Relaxed);
        }
    }

    fn is_limited_by(&self, made_by: &SliceTransform) -> bool {
        !self.total_order && made_by.name() == self.extractor.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_filters_are_asked() {
        let fixed = SliceTransform::create_fixed_prefix(2);
        let other = SliceTransform::create_fixed_prefix(1);
        let seek = PrefixSeek::new(fixed.clone(), false, Some(b"ab".to_vec()), true);
        assert_eq!(seek.question(b"aax", &fixed, false), None, "off");
        seek.begin(true);
        assert_eq!(seek.question(b"aax", &fixed, false), Some(&b"aa"[..]));
        assert_eq!(seek.question(b"aax", &fixed, true), Some(&b"aa"[..]));
        assert_eq!(seek.question(b"a", &fixed, false), None, "not in the domain");
        // Another extractor's prefixes: all keys up to the bound have this one, forwards.
        assert_eq!(seek.question(b"aax", &other, false), Some(&b"a"[..]));
        assert_eq!(seek.question(b"aax", &other, true), None);
        seek.left_out(&other);
        assert!(!seek.end());
        assert_eq!(seek.question(b"aax", &fixed, false), None, "off again");
        seek.begin(true);
        seek.left_out(&fixed);
        assert!(seek.end());
        assert_eq!(seek.question(b"aax", &fixed, false), Some(&b"aa"[..]), "what is out stays out");

        let auto = PrefixSeek::new(fixed.clone(), true, Some(b"ab".to_vec()), true);
        auto.begin(true);
        assert_eq!(auto.question(b"aax", &fixed, false), Some(&b"aa"[..]));
        assert_eq!(auto.question(b"Aax", &fixed, false), None, "keys of other prefixes are before the bound");
        auto.left_out(&fixed);
        assert!(!auto.end());
        let unbounded = PrefixSeek::new(fixed.clone(), true, None, true);
        unbounded.begin(true);
        assert_eq!(unbounded.question(b"aax", &fixed, false), None);
    }
}
