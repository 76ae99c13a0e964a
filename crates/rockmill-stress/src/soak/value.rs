//! Keys and values that say themselves what they are, so that one in the wrong place is recognised.
//!
//! A value is: version (4 bytes, big-endian, so that the operator `max` keeps the newest), column family (2), key (4),
//! filling, and a checksum (4) over all before. Its length and filling follow from seed, family, key and version: a
//! value can be compared with what was written without that being stored anywhere.

use super::settings::Settings;

/// Bytes of a value's fixed parts, rounded up.
pub const LEN_MIN: u32 = 16;
/// Bytes before the filling.
const HEAD: usize = 10;

/// The key with this number. Keys are ordered as their numbers, and of several lengths.
pub fn key(number: u32) -> Vec<u8> {
    let mut key = format!("key{number:010}").into_bytes();
    key.resize(key.len() + (number % 7) as usize, b'.');
    key
}

/// The number of a key; `None` when it is none of ours.
pub fn number_of(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.strip_prefix(b"key")?.get(..10)?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (key(number) == bytes).then_some(number)
}

/// FNV-1a: short, and none of the store's checksums.
pub fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

/// The value that this version of a key has.
pub fn value(settings: &Settings, family: usize, key: u32, version: u32) -> Vec<u8> {
    let mix = (u64::from(key) << 32 | u64::from(version)) ^ (family as u64).rotate_right(8);
    let mut rng = fastrand::Rng::with_seed(settings.seed ^ mix.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let len = rng.u32(settings.value_min..=settings.value_max).max(LEN_MIN) as usize;
    let mut out = Vec::with_capacity(len);
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
    out
}

/// A counter's value.
pub fn count_value(count: u32) -> Vec<u8> {
    u64::from(count).to_le_bytes().to_vec()
}

/// The version that bytes found under a key are, checked byte for byte; else what they are.
///
/// # Errors
/// Describes the bytes.
pub fn version_of(settings: &Settings, family: usize, key: u32, found: &[u8]) -> Result<u32, String> {
    if family == settings.families {
        let count = <[u8; 8]>::try_from(found).ok().and_then(|b| u32::try_from(u64::from_le_bytes(b)).ok());
        return count.ok_or_else(|| describe(found));
    }
    let version = found.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    match version {
        Some(version) if value(settings, family, key, version) == found => Ok(version),
        _ => Err(describe(found)),
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
    use super::*;

    #[test]
    fn values_say_what_they_are() {
        let settings = Settings::default();
        for version in 1..50 {
            let found = value(&settings, 2, 77, version);
            assert!((20..=400).contains(&found.len()), "{}", found.len());
            assert_eq!(version_of(&settings, 2, 77, &found), Ok(version));
            let misplaced = version_of(&settings, 2, 78, &found).unwrap_err();
            assert!(misplaced.starts_with(&format!("version {version} of key 77 of column family 2")), "{misplaced}");
            let mut damaged = found.clone();
            damaged[12] ^= 1;
            assert!(version_of(&settings, 2, 77, &damaged).unwrap_err().contains("wrong checksum"));
        }
        assert_eq!(version_of(&settings, settings.families, 3, &count_value(9)), Ok(9));
        assert!(version_of(&settings, settings.families, 3, b"9").unwrap_err().contains("no value"));
    }

    #[test]
    fn keys_are_ordered_as_their_numbers() {
        let keys: Vec<_> = (0..2000).map(|n| key(n * 5)).collect();
        assert!(keys.is_sorted());
        for n in [0, 1, 99_999, u32::MAX] {
            assert_eq!(number_of(&key(n)), Some(n));
        }
        for bad in [&b"key"[..], b"key0000000001", b"kex0000000000", b"key0000000000."] {
            assert_eq!(number_of(bad), None);
        }
    }
}
