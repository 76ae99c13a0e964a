//! Prefix extractors: functions from a key to the part of it that a prefix filter holds (RocksDB's `SliceTransform`,
//! `util/slice.cc`).
//!
//! The name stands in each table's properties. A table's prefix filter can be asked only if it is known how its
//! prefixes were made; RocksDB's own extractors can be made from the name in the table.

use std::fmt;
use std::sync::Arc;

const FIXED: &str = "rocksdb.FixedPrefix";
const CAPPED: &str = "rocksdb.CappedPrefix";
const NOOP: &str = "rocksdb.Noop";

/// Gives a key's prefix: the beginning of the key.
pub type TransformFn = fn(&[u8]) -> &[u8];
/// Says whether a key has a prefix.
pub type InDomainFn = fn(&[u8]) -> bool;

/// Takes a key's prefix, for keys that have one (RocksDB's `SliceTransform`). Cheap to clone.
///
/// Filters rely on this: a key begins with its prefix, and keys with the same prefix are next to each other in the
/// order of keys.
#[derive(Clone)]
pub struct SliceTransform {
    kind: Kind,
    name: Arc<str>,
}

#[derive(Clone, Copy)]
enum Kind {
    Fixed(usize),
    Capped(usize),
    Noop,
    User(TransformFn, Option<InDomainFn>),
}

impl SliceTransform {
    /// The first `len` bytes; shorter keys have no prefix (RocksDB's `NewFixedPrefixTransform`).
    pub fn create_fixed_prefix(len: usize) -> Self {
        Self { kind: Kind::Fixed(len), name: format!("{FIXED}.{len}").into() }
    }

    /// The first `len` bytes, or the whole key if it is shorter (RocksDB's `NewCappedPrefixTransform`).
    pub fn create_capped_prefix(len: usize) -> Self {
        Self { kind: Kind::Capped(len), name: format!("{CAPPED}.{len}").into() }
    }

    /// The whole key (RocksDB's `NewNoopTransform`).
    pub fn create_noop() -> Self {
        Self { kind: Kind::Noop, name: NOOP.into() }
    }

    /// Your own prefix: `transform` is called for the keys for which `in_domain` is true (without it, for all). The
    /// name is stored in tables: give another extractor another name.
    pub fn create(name: impl Into<String>, transform: TransformFn, in_domain: Option<InDomainFn>) -> Self {
        Self { kind: Kind::User(transform, in_domain), name: name.into().into() }
    }

    /// The extractor of this name, if it is one of RocksDB's own: `rocksdb.FixedPrefix.N`, `rocksdb.CappedPrefix.N`,
    /// `rocksdb.Noop`, and in options `fixed:N` and `capped:N`.
    pub fn from_name(name: &str) -> Option<Self> {
        let number = |text: Option<&str>| text.filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?.parse().ok();
        let fixed = name.strip_prefix(FIXED).and_then(|n| n.strip_prefix('.')).or_else(|| name.strip_prefix("fixed:"));
        if let Some(len) = number(fixed) {
            return Some(Self::create_fixed_prefix(len));
        }
        let capped =
            name.strip_prefix(CAPPED).and_then(|n| n.strip_prefix('.')).or_else(|| name.strip_prefix("capped:"));
        if let Some(len) = number(capped) {
            return Some(Self::create_capped_prefix(len));
        }
        (name == NOOP).then(Self::create_noop)
    }

    /// The name that tables store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for one made by [`Self::create`].
    pub fn is_user_defined(&self) -> bool {
        matches!(self.kind, Kind::User(..))
    }

    /// The key's prefix; `None` for a key that is not in the domain.
    #[inline]
    pub fn prefix<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        match self.kind {
            Kind::Fixed(len) => key.get(..len),
            Kind::Capped(len) => key.get(..len).or(Some(key)),
            Kind::Noop => Some(key),
            Kind::User(transform, in_domain) => {
                if in_domain.is_none_or(|in_domain| in_domain(key)) {
                    Some(transform(key))
                } else {
                    None
                }
            }
        }
    }

    /// The maximum length of a prefix, if the extractor has one (RocksDB's `FullLengthEnabled`).
    pub fn full_length(&self) -> Option<usize> {
        match self.kind {
            Kind::Fixed(len) | Kind::Capped(len) => Some(len),
            Kind::Noop | Kind::User(..) => None,
        }
    }

    /// True when a filter of this extractor's prefixes may be asked about the keys from `key` to `upper` (exclusive),
    /// for every one of them has the prefix of `key` (RocksDB's `IsFilterCompatible`).
    ///
    /// That is so when `upper` has the same prefix, or is the prefix that follows on it. RocksDB also takes
    /// `61 ff` and `62 00` for neighbours, and then misses the key `62` between them; here only the last byte may
    /// differ. With `bytewise` false the second case is left out, as in RocksDB.
    pub fn covers_range(&self, key: &[u8], upper: &[u8], bytewise: bool) -> bool {
        let (Some(prefix), Some(upper_prefix)) = (self.prefix(key), self.prefix(upper)) else { return false };
        if prefix == upper_prefix {
            return true;
        }
        let full = self.full_length().is_some_and(|len| len == upper.len() && len == prefix.len());
        match (prefix.split_last(), upper.split_last()) {
            (Some((last, front)), Some((end, upper_front))) => {
                bytewise && full && front == upper_front && last.checked_add(1) == Some(*end)
            }
            _ => false,
        }
    }
}

impl fmt::Debug for SliceTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SliceTransform({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_domains() {
        let fixed = SliceTransform::create_fixed_prefix(3);
        assert_eq!((fixed.prefix(b"abcd"), fixed.prefix(b"ab")), (Some(&b"abc"[..]), None));
        assert_eq!(fixed.name(), "rocksdb.FixedPrefix.3");
        let capped = SliceTransform::create_capped_prefix(3);
        assert_eq!((capped.prefix(b"abcd"), capped.prefix(b"ab")), (Some(&b"abc"[..]), Some(&b"ab"[..])));
        assert_eq!(capped.name(), "rocksdb.CappedPrefix.3");
        let noop = SliceTransform::create_noop();
        assert_eq!((noop.prefix(b"ab"), noop.prefix(b""), noop.name()), (Some(&b"ab"[..]), Some(&b""[..]), NOOP));
        let user = SliceTransform::create("first.slash", up_to_slash, Some(|key| key.contains(&b'/')));
        assert_eq!((user.prefix(b"a/b"), user.prefix(b"ab"), user.name()), (Some(&b"a/"[..]), None, "first.slash"));
    }

    fn up_to_slash(key: &[u8]) -> &[u8] {
        key.iter().position(|&b| b == b'/').map_or(key, |at| &key[..=at])
    }

    #[test]
    fn names_give_the_extractor_back() {
        for extractor in [
            SliceTransform::create_fixed_prefix(0),
            SliceTransform::create_fixed_prefix(12),
            SliceTransform::create_capped_prefix(7),
            SliceTransform::create_noop(),
        ] {
            let again = SliceTransform::from_name(extractor.name()).unwrap();
            assert_eq!(again.name(), extractor.name());
            assert_eq!(again.prefix(b"0123456789abcdef"), extractor.prefix(b"0123456789abcdef"));
        }
        assert_eq!(SliceTransform::from_name("fixed:4").unwrap().name(), "rocksdb.FixedPrefix.4");
        assert_eq!(SliceTransform::from_name("capped:4").unwrap().name(), "rocksdb.CappedPrefix.4");
        for other in [
            "",
            "nullptr",
            "rocksdb.FixedPrefix",
            "rocksdb.FixedPrefix.",
            "rocksdb.FixedPrefix.+1",
            "fixed:x",
            "rocksdb.FixedPrefix.99999999999999999999",
            "mine",
        ] {
            assert!(SliceTransform::from_name(other).is_none(), "{other}");
        }
    }

    /// Against every key of a small world: where the answer is yes, all keys of the range have the one prefix.
    #[test]
    fn ranges_that_a_filter_may_be_asked_about() {
        let letters = [0x00, 0x61, 0x62, 0xff];
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for len in 0..3 {
            let longer: Vec<_> = keys.iter().filter(|k| k.len() == len).cloned().collect();
            keys.extend(longer.iter().flat_map(|k| letters.map(|l| [k.as_slice(), &[l]].concat())));
        }
        let mut yes = 0;
        for extractor in [SliceTransform::create_fixed_prefix(2), SliceTransform::create_capped_prefix(2)] {
            for key in &keys {
                for upper in keys.iter().filter(|u| *u > key) {
                    if extractor.covers_range(key, upper, true) {
                        yes += 1;
                        let inside = keys.iter().filter(|k| *k >= key && *k < upper);
                        for k in inside {
                            assert_eq!(extractor.prefix(k), extractor.prefix(key), "{key:02x?} {upper:02x?} {k:02x?}");
                        }
                    }
                }
            }
        }
        assert!(yes > 50, "{yes}");
        let fixed = SliceTransform::create_fixed_prefix(2);
        assert!(fixed.covers_range(b"aax", b"ab", true) && fixed.covers_range(b"aax", b"aay", true));
        assert!(!fixed.covers_range(b"aax", b"ab", false) && !fixed.covers_range(b"aax", b"ab0", true));
        assert!(!fixed.covers_range(b"aax", b"ac", true) && !fixed.covers_range(b"a\xff", b"b\0", true));
        assert!(!fixed.covers_range(b"a", b"ab", true) && !fixed.covers_range(b"aax", b"b", true));
        // An extractor with prefixes of any length knows the first case only.
        assert!(!SliceTransform::create_noop().covers_range(b"a", b"b", true));
    }
}
