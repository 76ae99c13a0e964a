//! The unique id of a table in the MANIFEST (RocksDB `table/unique_id.cc`): from the database's id, the session's id
//! and the file's number, so that the MANIFEST and the file's properties can be checked against each other.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The internal unique id; zeros (unknown) if the session id does not have RocksDB's form.
pub(crate) fn internal_unique_id(db_id: &str, session_id: &str, file_number: u64) -> [u64; 2] {
    let Some((upper, lower)) = decode_session_id(session_id) else { return [0, 0] };
    if db_id.is_empty() || file_number == 0 {
        return [0, 0];
    }
    let hash = xxh3_128_with_seed(db_id.as_bytes(), upper);
    [lower, (hash >> 64) as u64 ^ file_number]
}

/// Twenty base-36 digits: eight for the upper bits, twelve for the lower 62.
fn decode_session_id(id: &str) -> Option<(u64, u64)> {
    if !id.is_ascii() || !(13..=24).contains(&id.len()) {
        return None;
    }
    let parse = |digits: &str| {
        digits.chars().try_fold(0u64, |n, c| {
            let digit = c.to_digit(36)?;
            Some(n.wrapping_mul(36).wrapping_add(u64::from(digit)))
        })
    };
    let (a, b) = (parse(&id[..id.len() - 12])?, parse(&id[id.len() - 12..])?);
    Some((a >> 2, (b & (u64::MAX >> 2)) | (a << 62)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_decode() {
        assert_eq!(decode_session_id("00000000000000000001"), Some((0, 1)));
        assert_eq!(decode_session_id("00000004000000000000"), Some((1, 0)));
        assert_eq!(decode_session_id("00000001000000000000"), Some((0, 1 << 62)));
        assert_eq!(decode_session_id("0000000Z00000000000Z"), Some((35 >> 2, 35 | 3 << 62)));
        assert_eq!(decode_session_id("short"), None);
        assert_eq!(decode_session_id("!0000001000000000000"), None);
        assert_eq!(internal_unique_id("", "00000000000000000001", 1), [0, 0]);
        assert_ne!(
            internal_unique_id("a", "00000000000000000001", 1),
            internal_unique_id("a", "00000000000000000001", 2)
        );
    }
    /// From the MANIFEST of a database that RocksDB 7.8 made.
    #[test]
    fn ids_are_rocksdbs() {
        let id = |n| internal_unique_id("ace8b5b6-8a97-432a-9b95-7b5f300d444a", "GJ83GN6PF9OYRWIH0KNA", n);
        assert_eq!(id(8), [6621452545325293958, 2441384898124080327]);
        assert_eq!(id(13), [6621452545325293958, 2441384898124080322]);
    }
}
