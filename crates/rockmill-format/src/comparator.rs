//! Orders of user keys and of internal keys.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::key::{self, MAX_SEQUENCE, TAG_LEN, VALUE_TYPE_FOR_SEEK};

/// A total order of user keys (RocksDB's `Comparator`). The name is stored in the MANIFEST and in each table.
///
/// Keys that compare as equal are one key: an update of one overwrites the other. Where keys of different bytes can be
/// equal, do not use filters of whole keys (`set_bloom_filter`, `set_memtable_whole_key_filtering`), and give no prefix
/// extractor that tells equal keys apart: like RocksDB's, filters compare bytes, and would not find a key that was
/// stored with other, equal bytes.
pub trait Comparator: Send + Sync {
    /// The stored name, for example `leveldb.BytewiseComparator`.
    fn name(&self) -> &str;
    /// Orders two user keys.
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering;
    /// May change `start` to a shorter key in `[start, limit)`. Not changing it, as here, is always correct.
    fn find_shortest_separator(&self, _start: &mut Vec<u8>, _limit: &[u8]) {}
    /// May change `key` to a shorter key that is not less than it. Not changing it is always correct.
    fn find_short_successor(&self, _key: &mut Vec<u8>) {}
    /// True when two keys of different bytes may compare as equal (RocksDB's method of this name). Then only `compare`
    /// distinguishes keys, and the hash index of data blocks, which finds a key by its bytes, is neither written nor
    /// used. True unless a comparator says otherwise. Return `false` only if keys are equal exactly when their bytes
    /// are: lookups and compactions then compare bytes, and would treat equal keys with different bytes as different.
    fn can_keys_with_different_byte_contents_be_equal(&self) -> bool {
        self.builtin().is_none()
    }
    /// Which of the built-in orders this is, which are compared without a call. Your own comparators should not
    /// override this.
    #[doc(hidden)]
    fn builtin(&self) -> Option<BuiltinOrder> {
        None
    }
}

/// The orders that Rockmill knows itself.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltinOrder {
    Bytewise,
    ReverseBytewise,
    HashRange,
}

/// Orders two user keys, for [`FnComparator`].
pub type CompareFn = dyn Fn(&[u8], &[u8]) -> Ordering + Send + Sync;

/// A name and a function as a comparator. Separators in indexes are whole keys, as with comparators of RocksDB's C
/// interface.
pub struct FnComparator {
    name: String,
    compare: Box<CompareFn>,
}

impl FnComparator {
    /// A comparator that orders keys by `compare`, stored by this name.
    pub fn new(name: impl Into<String>, compare: Box<CompareFn>) -> Self {
        Self { name: name.into(), compare }
    }
}

impl Comparator for FnComparator {
    fn name(&self) -> &str {
        &self.name
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        (self.compare)(a, b)
    }
}

/// Name of the default order.
pub const BYTEWISE_NAME: &str = "leveldb.BytewiseComparator";
/// Name of the reversed default order.
pub const REVERSE_BYTEWISE_NAME: &str = "rocksdb.ReverseBytewiseComparator";

/// Lexicographic order of unsigned bytes, RocksDB's default.
#[derive(Debug, Clone, Copy, Default)]
pub struct BytewiseComparator;

impl Comparator for BytewiseComparator {
    fn name(&self) -> &str {
        BYTEWISE_NAME
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }

    fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        let common = start.iter().zip(limit).take_while(|(a, b)| a == b).count();
        if common >= start.len() || common >= limit.len() {
            return; // one is a prefix of the other
        }
        let (s, l) = (start[common], limit[common]);
        if s >= l {
            return; // start is not before limit: leave it
        }
        if common + 1 < limit.len() || s + 1 < l {
            start[common] += 1;
            start.truncate(common + 1);
        } else {
            // limit is start's prefix plus one: step over it and raise the first later byte that can be raised.
            let mut i = common + 1;
            while i < start.len() {
                if start[i] < 0xff {
                    start[i] += 1;
                    start.truncate(i + 1);
                    break;
                }
                i += 1;
            }
        }
    }

    fn find_short_successor(&self, key: &mut Vec<u8>) {
        if let Some(i) = key.iter().position(|&b| b != 0xff) {
            key[i] += 1;
            key.truncate(i + 1);
        }
    }

    fn builtin(&self) -> Option<BuiltinOrder> {
        Some(BuiltinOrder::Bytewise)
    }
}

/// Reversed lexicographic order (RocksDB's `ReverseBytewiseComparator`).
#[derive(Debug, Clone, Copy, Default)]
pub struct ReverseBytewiseComparator;

impl Comparator for ReverseBytewiseComparator {
    fn name(&self) -> &str {
        REVERSE_BYTEWISE_NAME
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        b.cmp(a)
    }

    fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        let common = start.iter().zip(limit).take_while(|(a, b)| a == b).count();
        if common >= start.len() || common >= limit.len() {
            return;
        }
        // In this order a prefix sorts after its extensions, so cutting `start` behind the first difference gives a
        // key in [start, limit).
        if start[common] > limit[common] && common + 1 < start.len() {
            start.truncate(common + 1);
        }
    }

    fn builtin(&self) -> Option<BuiltinOrder> {
        Some(BuiltinOrder::ReverseBytewise)
    }
}

/// Name of the order by search key.
pub const HASH_RANGE_NAME: &str = "rockmill.HashRangeComparator";

/// Where a key stands in the order of [`HashRangeComparator`]: the upper half of its XXH3 (64 bits, seed 0). Tables are
/// sorted by it, so it never changes.
#[inline(never)] // it would make every comparison in other orders longer
pub fn search_key(user_key: &[u8]) -> u32 {
    (xxh3_64(user_key) >> 32) as u32
}

/// A key with this search key: XXH3 of eight bytes, backwards. It is a bound between keys, and next to none is written.
pub fn key_at(search_key: u32) -> [u8; 8] {
    /// The value that XXH3 combines with keys of 4 to 8 bytes, and the inverse of its multiplier.
    const SECRET: u64 = 0xc73a_b174_c5ec_d5a2;
    const INVERSE: u64 = 0x02ab_9c72_0d10_24ad;
    let mut h = u64::from(search_key) << 32;
    h ^= (h >> 28) ^ (h >> 56);
    h = h.wrapping_mul(INVERSE);
    h ^= (h >> 35) + 8; // of the bits that this changes it takes none
    h = h.wrapping_mul(INVERSE);
    // Its 64th power is the identity.
    (0..63).for_each(|_| h ^= h.rotate_left(49) ^ h.rotate_left(24));
    (h ^ SECRET).rotate_left(32).to_le_bytes()
}

/// Order by [`search_key`], then by bytes (CompassDB, section 3.4; RocksDB has none of this name). Keys that were
/// written together are spread evenly over all tables, and compactions cut tables at fixed places of the hash's range.
/// Scans go in the order of the hash: keys with a common prefix, or between two keys in the order of their bytes, are
/// not next to each other.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashRangeComparator;

impl HashRangeComparator {
    fn order(a: &[u8], b: &[u8]) -> Ordering {
        search_key(a).cmp(&search_key(b)).then_with(|| a.cmp(b))
    }
}

impl Comparator for HashRangeComparator {
    fn name(&self) -> &str {
        HASH_RANGE_NAME
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        Self::order(a, b)
    }

    fn builtin(&self) -> Option<BuiltinOrder> {
        Some(BuiltinOrder::HashRange)
    }
}

/// The order with this stored name, if it is one that Rockmill knows itself.
pub fn comparator_named(name: &str) -> Option<Arc<dyn Comparator>> {
    match name {
        BYTEWISE_NAME => Some(Arc::new(BytewiseComparator)),
        REVERSE_BYTEWISE_NAME => Some(Arc::new(ReverseBytewiseComparator)),
        HASH_RANGE_NAME => Some(Arc::new(HashRangeComparator)),
        _ => None,
    }
}

/// Orders internal keys: user key ascending by the user's comparator, then tag descending.
///
/// The bytewise orders are compared without a virtual call.
#[derive(Clone)]
pub struct InternalKeyComparator {
    builtin: Option<BuiltinOrder>,
    /// The user's comparator's word on [`Self::finds_by_bytes`].
    finds_by_bytes: bool,
    user: Arc<dyn Comparator>,
}

impl fmt::Debug for InternalKeyComparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InternalKeyComparator({})", self.user.name())
    }
}

impl Default for InternalKeyComparator {
    fn default() -> Self {
        Self::new(Arc::new(BytewiseComparator))
    }
}

impl InternalKeyComparator {
    /// Internal order over `user`.
    pub fn new(user: Arc<dyn Comparator>) -> Self {
        // Not by name: a user's comparator could have the name of a built-in one.
        let finds_by_bytes = !user.can_keys_with_different_byte_contents_be_equal();
        Self { builtin: user.builtin(), finds_by_bytes, user }
    }

    /// True when equal keys have the same bytes, so that a key can be found by a hash of them.
    #[inline]
    pub fn finds_by_bytes(&self) -> bool {
        self.finds_by_bytes
    }

    /// The user's order.
    pub fn user_comparator(&self) -> &Arc<dyn Comparator> {
        &self.user
    }

    /// True when user keys order as unsigned bytes, so that key prefixes can be compared as integers.
    pub fn is_bytewise(&self) -> bool {
        self.builtin == Some(BuiltinOrder::Bytewise)
    }

    /// True when user keys order as unsigned bytes, the largest first.
    pub fn is_reverse_bytewise(&self) -> bool {
        self.builtin == Some(BuiltinOrder::ReverseBytewise)
    }

    /// True when user keys order by their [`search_key`] first.
    #[inline]
    pub fn is_hash_range(&self) -> bool {
        self.builtin == Some(BuiltinOrder::HashRange)
    }

    /// Orders two user keys.
    #[inline]
    pub fn compare_user(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.is_bytewise() { a.cmp(b) } else { self.compare_user_otherwise(a, b) }
    }

    /// A separate function, so that the part inlined nearly everywhere is short.
    #[inline(never)]
    fn compare_user_otherwise(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.is_reverse_bytewise() { b.cmp(a) } else { self.user.compare(a, b) }
    }

    /// True where two user keys are the same one.
    #[inline]
    pub fn is_same_user_key(&self, a: &[u8], b: &[u8]) -> bool {
        a == b || (!self.finds_by_bytes && self.compare_user(a, b).is_eq())
    }

    /// Orders two encoded internal keys.
    #[inline]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.compare_user(key::user_key(a), key::user_key(b)).then_with(|| key::tag(b).cmp(&key::tag(a)))
    }

    /// [`Self::compare`] in the order by search key, where that of `b` is known: a search hashes its target once.
    #[inline]
    pub(crate) fn compare_with_search_key(a: &[u8], b: &[u8], b_search_key: u32) -> Ordering {
        let (user_a, user_b) = (key::user_key(a), key::user_key(b));
        let order = search_key(user_a).cmp(&b_search_key).then_with(|| user_a.cmp(user_b));
        order.then_with(|| key::tag(b).cmp(&key::tag(a)))
    }

    /// May shorten `start` to a key in `[start, limit)`, both encoded.
    pub fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        let mut user = key::user_key(start).to_vec();
        self.user.find_shortest_separator(&mut user, key::user_key(limit));
        self.replace_if_shorter(start, user);
    }

    /// May shorten `ikey` to a key that is not less than it.
    pub fn find_short_successor(&self, ikey: &mut Vec<u8>) {
        let mut user = key::user_key(ikey).to_vec();
        self.user.find_short_successor(&mut user);
        self.replace_if_shorter(ikey, user);
    }

    /// A shortened user key takes the earliest tag, so that it sorts before every stored version of itself.
    fn replace_if_shorter(&self, ikey: &mut Vec<u8>, user: Vec<u8>) {
        let old = ikey.len() - TAG_LEN;
        if user.len() <= old && self.compare_user(&ikey[..old], &user) == Ordering::Less {
            ikey.clear();
            key::append_internal_key(ikey, &user, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{InternalKey, ValueType};

    #[test]
    fn newest_version_sorts_first() {
        let c = InternalKeyComparator::default();
        let k = |u: &str, s| InternalKey::new(u.as_bytes(), s, ValueType::Value);
        assert_eq!(c.compare(k("a", 5).as_bytes(), k("a", 4).as_bytes()), Ordering::Less);
        assert_eq!(c.compare(k("a", 5).as_bytes(), k("b", 9).as_bytes()), Ordering::Less);
        assert_eq!(c.compare(k("aa", 5).as_bytes(), k("a", 1).as_bytes()), Ordering::Greater);
    }

    #[test]
    fn a_comparator_of_a_function_is_asked_whatever_its_name() {
        let by_len = |a: &[u8], b: &[u8]| a.len().cmp(&b.len()).then_with(|| a.cmp(b));
        for name in ["by.length", BYTEWISE_NAME, REVERSE_BYTEWISE_NAME] {
            let c = InternalKeyComparator::new(Arc::new(FnComparator::new(name, Box::new(by_len))));
            assert_eq!(c.compare_user(b"b", b"aa"), Ordering::Less, "{name}");
            assert!(!c.is_bytewise() && !c.is_reverse_bytewise());
            let a = InternalKey::new(b"longer key", 5, ValueType::Value).as_bytes().to_vec();
            let mut separator = a.clone();
            c.find_shortest_separator(&mut separator, InternalKey::new(b"much longer", 5, ValueType::Value).as_bytes());
            c.find_short_successor(&mut separator);
            assert_eq!(separator, a);
        }
    }

    /// Tables are sorted by these for ever.
    #[test]
    fn search_keys_are_fixed() {
        for (key, fixed) in
            [(&b""[..], 0x2d06_8005), (b"a", 0xe6c6_32b6), (b"abc", 0x78af_5f94), (b"abcdefgh", 0x6f45_a768)]
        {
            assert_eq!(search_key(key), fixed, "{key:?}");
        }
        for at in (0..1000).map(|i| i * 4_294_967).chain([u32::MAX]) {
            assert_eq!(search_key(&key_at(at)), at);
        }
        let c = InternalKeyComparator::new(Arc::new(HashRangeComparator));
        assert!(c.is_hash_range() && c.finds_by_bytes() && !c.is_bytewise());
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..1000 {
            let mut key = || {
                InternalKey::new(&rng.u16(..500).to_be_bytes(), rng.u64(..100), ValueType::Value).as_bytes().to_vec()
            };
            let (a, b) = (key(), key());
            let known = search_key(key::user_key(&b));
            assert_eq!(InternalKeyComparator::compare_with_search_key(&a, &b, known), c.compare(&a, &b));
            assert_eq!(c.compare(&a, &b), c.compare(&b, &a).reverse());
        }
    }

    #[test]
    fn separators_stay_between_their_keys() {
        let mut rng = fastrand::Rng::with_seed(7);
        for name in [BYTEWISE_NAME, REVERSE_BYTEWISE_NAME, HASH_RANGE_NAME] {
            let user = comparator_named(name).unwrap();
            assert_eq!(user.name(), name);
            for _ in 0..20_000 {
                let mut make = || -> Vec<u8> {
                    (0..rng.usize(0..6)).map(|_| *rng.choice(&[0u8, 1, 2, 254, 255]).unwrap()).collect()
                };
                let (mut a, mut b) = (make(), make());
                if user.compare(&a, &b) == Ordering::Greater {
                    std::mem::swap(&mut a, &mut b);
                }
                if a == b {
                    continue;
                }
                let mut s = a.clone();
                user.find_shortest_separator(&mut s, &b);
                assert_ne!(user.compare(&s, &a), Ordering::Less, "{a:?} {b:?} {s:?}");
                assert_eq!(user.compare(&s, &b), Ordering::Less, "{a:?} {b:?} {s:?}");
                let mut s = a.clone();
                user.find_short_successor(&mut s);
                assert_ne!(user.compare(&s, &a), Ordering::Less);
            }
        }
    }
}
