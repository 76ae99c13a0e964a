//! A Bloom filter that is filled and asked at the same time, without locks (RocksDB's `DynamicBloom`).
//!
//! Six probes in three neighbouring words, two in each. It lives in memory only: nothing depends on its layout.

use rockmill_format::SliceTransform;
use rockmill_format::hash::hash64;

use super::arena::zeroed_words;
use crate::panics::in_words;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Words that one entry's probes lie in, rounded up to a power of two.
const BLOCK: usize = 4;
/// Words that an entry sets bits in.
const WORDS: usize = 3;

/// The parameters of a memtable's filter.
#[derive(Debug, Clone, Default)]
pub struct MemTableFilter {
    /// Bytes of the filter; 0 has none.
    pub bytes: usize,
    /// Whole keys go in.
    pub whole_keys: bool,
    /// The prefixes that this makes go in.
    pub prefixes: Option<SliceTransform>,
}

/// See the module's description.
pub(super) struct Bloom {
    words: Box<[AtomicU64]>,
    whole_keys: bool,
    prefixes: Option<SliceTransform>,
}

impl Bloom {
    /// `None` if nothing would go in.
    pub fn new(filter: &MemTableFilter) -> Option<Self> {
        if filter.bytes == 0 || (!filter.whole_keys && filter.prefixes.is_none()) {
            return None;
        }
        let words = filter.bytes.div_ceil(8).next_multiple_of(BLOCK);
        Some(Self { words: zeroed_words(words), whole_keys: filter.whole_keys, prefixes: filter.prefixes.clone() })
    }

    /// Bytes allocated.
    pub fn memory_usage(&self) -> usize {
        self.words.len() * 8
    }

    /// Adds a user key.
    pub fn add(&self, key: &[u8]) {
        if self.whole_keys {
            self.add_hash(hash64(key));
        }
        // A panic here would leave a write group without its leader, so it is caught. The prefix is then not added, and
        // readers that ask for it meet the same panic.
        let prefix = match &self.prefixes {
            Some(e) if e.is_user_defined() => in_words(|| e.prefix(key)).unwrap_or_default(),
            _ => self.prefix(key),
        };
        if let Some(prefix) = prefix {
            self.add_hash(hash64(prefix));
        }
    }

    /// False if the key was certainly not added; `None` if the filter cannot tell for this key.
    pub fn may_contain(&self, key: &[u8]) -> Option<bool> {
        let entry = if self.whole_keys { key } else { self.prefix(key)? };
        Some(self.may_contain_hash(hash64(entry)))
    }

    /// The extractor of the prefixes that are in the filter.
    pub fn prefixes(&self) -> Option<&SliceTransform> {
        self.prefixes.as_ref()
    }

    /// False when certainly no key with this prefix was added.
    pub fn may_contain_prefix(&self, prefix: &[u8]) -> bool {
        self.may_contain_hash(hash64(prefix))
    }

    fn prefix<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        self.prefixes.as_ref().and_then(|e| e.prefix(key))
    }

    /// The words of a hash and the bits in each.
    #[inline]
    fn probes(&self, hash: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        // The high half picks the block, as RocksDB's FastRange32 does; the whole remixed hash gives the bits.
        let blocks = (self.words.len() / BLOCK) as u64;
        let start = (((hash >> 32) * blocks) >> 32) as usize * BLOCK;
        let mut bits = hash.wrapping_mul(0x9e37_79b9_7f4a_7c13);
        let first = (bits >> 60) as usize;
        (0..WORDS).filter_map(move |i| {
            let mask = 1u64 << (bits & 63) | 1 << (bits >> 6 & 63);
            bits = bits.rotate_right(12);
            self.words.get(start + ((first + i) & (BLOCK - 1))).map(|word| (word, mask))
        })
    }

    // Relaxed in both: a reader queries keys that it may see, and it knows of them through an Acquire load of the
    // sequence number, which was stored (Release) after the bits were set.
    fn add_hash(&self, hash: u64) {
        for (word, mask) in self.probes(hash) {
            // Read first: most bits of a full filter are set, and a read does not take the line from others.
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn may_contain_hash(&self, hash: u64) -> bool {
        self.probes(hash).all(|(word, mask)| word.load(Ordering::Relaxed) & mask == mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(bytes: usize, whole_keys: bool, prefixes: Option<SliceTransform>) -> MemTableFilter {
        MemTableFilter { bytes, whole_keys, prefixes }
    }

    #[test]
    fn what_was_added_is_found_and_little_else_is() {
        let n = if cfg!(miri) { 200 } else { 20_000 };
        let bloom = Bloom::new(&filter(n * 10 / 8, true, None)).unwrap();
        crate::sync::thread::scope(|s| {
            for t in 0..4 {
                let bloom = &bloom;
                s.spawn(move || (t..n).step_by(4).for_each(|i| bloom.add(format!("key{i}").as_bytes())));
            }
        });
        let matches = |key: String| bloom.may_contain(key.as_bytes()) == Some(true);
        assert!((0..n).all(|i| matches(format!("key{i}"))));
        let wrong = (0..n).filter(|i| matches(format!("other{i}"))).count();
        assert!(wrong * 40 < n, "{wrong} of {n} other keys match");
    }

    #[test]
    fn prefixes_and_keys() {
        let fixed = SliceTransform::create_fixed_prefix(3);
        let both = Bloom::new(&filter(4096, true, Some(fixed.clone()))).unwrap();
        both.add(b"abc1");
        both.add(b"x");
        assert_eq!((both.may_contain(b"abc1"), both.may_contain(b"abc2")), (Some(true), Some(false)));
        assert_eq!((both.may_contain(b"x"), both.may_contain(b"y")), (Some(true), Some(false)));
        assert!(both.may_contain_prefix(b"abc") && !both.may_contain_prefix(b"abd"));
        let prefixes = Bloom::new(&filter(4096, false, Some(fixed))).unwrap();
        prefixes.add(b"abc1");
        assert_eq!((prefixes.may_contain(b"abc2"), prefixes.may_contain(b"abd1")), (Some(true), Some(false)));
        assert_eq!(prefixes.may_contain(b"y"), None, "a key without a prefix was not added");
        assert!(Bloom::new(&filter(4096, false, None)).is_none() && Bloom::new(&filter(0, true, None)).is_none());
        let smallest = Bloom::new(&filter(1, true, None)).unwrap();
        smallest.add(b"k");
        assert_eq!((smallest.may_contain(b"k"), smallest.memory_usage()), (Some(true), 32));
    }
}
