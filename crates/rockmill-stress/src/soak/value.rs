//! Self-describing keys and values, so that one in the wrong place is recognised.
//!
//! A value is: version (4 bytes, big-endian, so that the operator `max` keeps the newest), column family (2), key (4),
//! filling, and a checksum (4) over all before. Length and filling follow from seed, family, key and version, so a
//! value can be checked without storing it anywhere. In a column family with expiring values, the expiry time in
//! seconds comes first (8 bytes, big-endian), which also follows from the version.

use rockmill_format::comparator::{key_at, search_key};

use super::expected::Slot;
use super::settings::Settings;

/// Bytes of a value's fixed parts, rounded up.
pub const LEN_MIN: u32 = 16;
/// Bytes before the filling.
const HEAD: usize = 10;

/// The largest number of ten digits.
const DIGITS_MAX: u64 = 9_999_999_999;

/// How a column family treats its keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Merges keep the newest version.
    Plain,
    /// The same, with keys in descending order.
    Reversed,
    /// The same, with keys in the order of a hash (hash range). Keys are constructed from their places in this order,
    /// and ranges are not deleted.
    Hashed,
    /// A compaction filter removes values that have expired ([`crate::kinds::Expire`]). There are no merges.
    Expiring,
    /// Merges add.
    Counters,
}

impl Kind {
    /// The kind of the column family with this number.
    pub fn of(settings: &Settings, family: usize) -> Self {
        match family {
            f if f == settings.families => Self::Counters,
            f if settings.hash_range && f + 1 == settings.families => Self::Hashed,
            f if f % 3 == 1 => Self::Reversed,
            f if f % 3 == 2 => Self::Expiring,
            _ => Self::Plain,
        }
    }

    /// The second at which a version expires; 0 for never.
    fn expires(version: u32) -> u64 {
        match version % 4 {
            0 => 1,
            1 => 0,
            _ => u64::MAX,
        }
    }

    /// True if the version has expired, so that a compaction removes it.
    fn is_expired(self, version: u32) -> bool {
        self == Self::Expiring && Self::expires(version) == 1
    }
}

/// Corrects what a reader found in a column family with filters: returns the expired version if a filter may have
/// removed it. The second result is false if it is then unknown whether an operation happened.
pub fn unfiltered(settings: &Settings, family: usize, slot: &Slot, found: Option<u32>) -> (Option<u32>, bool) {
    let kind = Kind::of(settings, family);
    if kind != Kind::Expiring || found.is_some() {
        return (found, true);
    }
    let begun = if slot.is_pending() { slot.acked + 1..slot.latest + 1 } else { 0..0 };
    let begun = begun.rev().find(|version| kind.is_expired(*version));
    match slot.exact() {
        Some(version) if kind.is_expired(version) => (Some(version), false),
        // There was nothing before, or a filter removed the deleting operation's value.
        None => (None, begun.is_none()),
        Some(_) => (begun, begun.is_none()),
    }
}

/// The same with concurrent writers, between two reads of the expected state: a compaction may have removed any expired
/// version that was begun before the second read.
pub fn unfiltered_between(
    settings: &Settings,
    family: usize,
    before: &Slot,
    after: &Slot,
    found: Option<u32>,
) -> (Option<u32>, bool) {
    let kind = Kind::of(settings, family);
    let (first, tells) = unfiltered(settings, family, before, found);
    if kind != Kind::Expiring || first.is_some() || !tells {
        return (first, tells);
    }
    let begun = (before.acked + 1..=after.latest).rev().find(|version| kind.is_expired(*version));
    (begun, begun.is_none())
}

/// The distance of neighbouring keys in the order of a hash: keys fill it completely, with one place after the last
/// key.
fn hash_step(settings: &Settings) -> u32 {
    u32::MAX / (settings.keys + 1)
}

/// The key with this number. Keys are ordered like their numbers and have several lengths, except for those in the
/// order of a hash.
pub fn key(settings: &Settings, family: usize, number: u32) -> Vec<u8> {
    let digits = match Kind::of(settings, family) {
        Kind::Hashed => return key_at(number.saturating_mul(hash_step(settings))).to_vec(),
        Kind::Reversed => DIGITS_MAX - u64::from(number),
        _ => u64::from(number),
    };
    let mut key = format!("key{digits:010}").into_bytes();
    key.resize(key.len() + (number % 7) as usize, b'.');
    key
}

/// The number of a key; `None` if it is not one of ours.
pub fn number_of(settings: &Settings, family: usize, bytes: &[u8]) -> Option<u32> {
    if Kind::of(settings, family) == Kind::Hashed {
        let number = search_key(bytes) / hash_step(settings);
        return (key(settings, family, number) == bytes).then_some(number);
    }
    let digits = bytes.strip_prefix(b"key")?.get(..10)?;
    let digits: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let number = if Kind::of(settings, family) == Kind::Reversed { DIGITS_MAX - digits } else { digits };
    let number = u32::try_from(number).ok()?;
    (key(settings, family, number) == bytes).then_some(number)
}

/// FNV-1a: short, and different from the store's checksums.
pub fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

/// The value of this version of a key.
pub fn value(settings: &Settings, family: usize, key: u32, version: u32) -> Vec<u8> {
    let mix = (u64::from(key) << 32 | u64::from(version)) ^ (family as u64).rotate_right(8);
    let mut rng = fastrand::Rng::with_seed(settings.seed ^ mix.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let len = rng.u32(settings.value_min..=settings.value_max).max(LEN_MIN) as usize;
    let mut out = Vec::with_capacity(len + 8);
    out.extend(version.to_be_bytes());
    out.extend((family as u16).to_le_bytes());
    out.extend(key.to_le_bytes());
    let body = len - HEAD - 4;
    // Half of it can be compressed.
    while out.len() < HEAD + body / 2 {
        let bytes = rng.u64(..).to_le_bytes();
        out.extend(&bytes[..bytes.len().min(HEAD + body / 2 - out.len())]);
    }
    out.resize(HEAD + body, b'a' + (version % 26) as u8);
    let sum = checksum(&out);
    out.extend(sum.to_le_bytes());
    if Kind::of(settings, family) == Kind::Expiring {
        out.splice(..0, Kind::expires(version).to_be_bytes());
    }
    out
}

/// A counter's value.
pub fn count_value(count: u32) -> Vec<u8> {
    u64::from(count).to_le_bytes().to_vec()
}

/// Determines the version of a value found under a key, and checks it byte for byte.
///
/// # Errors
/// Describes the bytes.
pub fn version_of(settings: &Settings, family: usize, key: u32, found: &[u8]) -> Result<u32, String> {
    let kind = Kind::of(settings, family);
    if kind == Kind::Counters {
        let count = <[u8; 8]>::try_from(found).ok().and_then(|b| u32::try_from(u64::from_le_bytes(b)).ok());
        return count.ok_or_else(|| describe(found));
    }
    let body = if kind == Kind::Expiring { found.get(8..).unwrap_or_default() } else { found };
    let version = body.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    match version {
        Some(version) if value(settings, family, key, version) == found => Ok(version),
        _ => Err(describe(body)),
    }
}

/// What bytes seem to be, in words.
pub fn describe(found: &[u8]) -> String {
    if found.len() < LEN_MIN as usize {
        return format!("{} bytes that are no value: {}", found.len(), hex(found));
    }
    let (body, sum) = found.split_at(found.len() - 4);
    if sum != checksum(body).to_le_bytes() {
        let start = &found[..found.len().min(24)];
        return format!("{} bytes with a wrong checksum, beginning {}", found.len(), hex(start));
    }
    let at = |from: usize| u32::from_le_bytes([found[from], found[from + 1], found[from + 2], found[from + 3]]);
    let version = at(0).swap_bytes();
    let family = u16::from_le_bytes([found[4], found[5]]);
    format!("version {version} of key {} of column family {family} ({} bytes)", at(6), found.len())
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use rockmill::{Comparator as _, HashRangeComparator};

    use super::super::expected::Change;
    use super::*;

    #[test]
    fn values_say_what_they_are() {
        let settings = Settings::default();
        for (family, version) in (0..3).flat_map(|f| (1..50).map(move |v| (f, v))) {
            let found = value(&settings, family, 77, version);
            let front = if family == 2 { 8 } else { 0 };
            assert!((20..=400).contains(&(found.len() - front)), "{}", found.len());
            assert_eq!(version_of(&settings, family, 77, &found), Ok(version));
            let misplaced = version_of(&settings, family, 78, &found).unwrap_err();
            let said = format!("version {version} of key 77 of column family {family}");
            assert!(misplaced.starts_with(&said), "{misplaced}");
            let mut damaged = found.clone();
            damaged[front + 12] ^= 1;
            assert!(version_of(&settings, family, 77, &damaged).unwrap_err().contains("wrong checksum"));
        }
        let mut other = value(&settings, 2, 77, 4);
        other[7] = 2;
        assert!(version_of(&settings, 2, 77, &other).is_err(), "another second");
        assert_eq!(version_of(&settings, settings.families, 3, &count_value(9)), Ok(9));
        assert!(version_of(&settings, settings.families, 3, b"9").unwrap_err().contains("no value"));
    }

    #[test]
    fn keys_are_ordered_as_their_numbers_in_the_order_of_their_column_family() {
        let settings = Settings::default();
        let keys = |family| (0..2000).map(move |n| key(&Settings::default(), family, n * 5));
        assert!(keys(0).is_sorted() && keys(2).is_sorted() && keys(1).rev().is_sorted());
        for (family, n) in [0, 1, 99_999, u32::MAX].into_iter().flat_map(|n| [(0, n), (1, n)]) {
            assert_eq!(number_of(&settings, family, &key(&settings, family, n)), Some(n));
        }
        for bad in [&b"key"[..], b"key0000000001", b"kex0000000000", b"key0000000000.", b"key9999999999"] {
            assert_eq!(number_of(&settings, 0, bad), None);
        }
        for keys in [16, 20_000, 100_000_000] {
            let hashed = Settings { keys, hash_range: true, ..Settings::default() };
            assert_eq!(Kind::of(&hashed, 2), Kind::Hashed);
            let numbers = [0, 1, 2, keys / 3, keys - 1, keys];
            let made = numbers.map(|n| key(&hashed, 2, n));
            assert!(made.is_sorted_by(|a, b| HashRangeComparator.compare(a, b).is_lt()), "{keys} keys");
            assert_eq!(made.map(|key| number_of(&hashed, 2, &key)), numbers.map(Some));
            assert_eq!([&b""[..], b"key0000000000", &[7; 8]].map(|bad| number_of(&hashed, 2, bad)), [None; 3]);
        }
    }

    #[test]
    fn what_a_filter_took_counts_as_there_and_tells_nothing_of_operations() {
        let settings = Settings::default();
        let put = |slot: Slot| slot.begun(1, Change::Put);
        let versions = |n: u32| (0..n).fold(Slot::default(), |slot, _| put(slot).done(Change::Put));
        let seen = |slot: &Slot, found| unfiltered(&settings, 2, slot, found);
        // Versions 4 and 8 have expired.
        assert_eq!(seen(&versions(4), None), (Some(4), false));
        assert_eq!(seen(&versions(4), Some(3)), (Some(3), true));
        assert_eq!(seen(&versions(3), None), (None, true), "which is a loss");
        assert_eq!(unfiltered(&settings, 0, &versions(4), None), (None, true), "no filter, a loss");
        assert_eq!(seen(&put(versions(3)), None), (Some(4), false), "the one that was begun");
        assert_eq!(seen(&put(versions(4)), None), (Some(4), false));
        let gone = versions(3).begun(2, Change::Delete).done(Change::Delete);
        assert_eq!(seen(&gone, None), (None, true));
        let gone = versions(2).begun(2, Change::Delete).done(Change::Delete);
        assert_eq!(seen(&put(gone), None), (None, false));
        // With concurrent writers: the expired version 4 was or was not written and removed between the two reads.
        let between = |after: &Slot| unfiltered_between(&settings, 2, &versions(3), after, None);
        assert_eq!(between(&versions(5)), (Some(4), false));
        assert_eq!(between(&versions(3)), (None, true), "which is a loss");
    }
}
