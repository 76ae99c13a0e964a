//! Prefix seeks: state that the runs of one iterator share, so that runs whose filters lack the prefix are skipped.
//!
//! A skipped run (memtable, table, level) is not positioned. There are two cases:
//!
//! - The filter was checked for the target's prefix because the iterator is a prefix iterator (RocksDB's default with
//!   an extractor). The run may contain keys of other prefixes, so the iterator's results are correct only within the
//!   prefix: `PrefixSeek::limits` records that, and the iterator ends with the prefix. Beyond it, RocksDB's results are
//!   undefined.
//! - The upper bound shows that all keys up to it have the target's prefix, so nothing is missed.

use std::sync::atomic::{AtomicBool, Ordering};

use rockmill_format::SliceTransform;

/// See the module's description.
#[derive(Debug)]
pub struct PrefixSeek {
    /// The column family's extractor.
    extractor: SliceTransform,
    /// Skip only if all keys up to the upper bound have the target's prefix (RocksDB's `auto_prefix_mode`).
    total_order: bool,
    /// Exclusive.
    upper: Option<Vec<u8>>,
    /// The order of keys is the bytewise one.
    bytewise: bool,
    /// Seeks ask filters.
    on: AtomicBool,
    /// A run that may contain keys beyond the prefix was skipped.
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

    /// True if every key from `key` up to the upper bound has the prefix of `key`.
    pub fn is_one_prefix_from(&self, key: &[u8]) -> bool {
        self.upper.as_deref().is_some_and(|upper| self.extractor.covers_range(key, upper, self.bytewise))
    }

    /// Begins a user's seek; `on`: it may skip runs.
    // Relaxed, here and below: one iterator's runs are moved by one thread at a time.
    pub fn begin(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        self.limits.store(false, Ordering::Relaxed);
    }

    /// Ends the seek: skipped runs stay skipped while the iterator is within the prefix, and no others are skipped.
    /// True if the iterator is correct only within the target's prefix.
    pub fn end(&self) -> bool {
        let limits = self.limits.load(Ordering::Relaxed);
        self.on.store(limits, Ordering::Relaxed);
        limits
    }

    /// The prefix to look up in a filter of prefixes made by `made_by`; `None` if its answer would be meaningless.
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

    /// Notes that a run was skipped after a question for `made_by`.
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
