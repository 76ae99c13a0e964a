//! Decoding an entry's header: the most frequently executed instructions of reads and compactions.

use crate::coding;

/// The varints before an entry's key bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) shared: usize,
    pub(super) unshared: usize,
    /// Zero if the block does not store it (`value_delta`).
    pub(super) value_len: usize,
    /// Where the key bytes start in the block.
    pub(super) key_at: usize,
}

/// Decodes the header at `pos` of `keys`, the part of a block up to the end of its keys. `None` if it is damaged. The
/// caller must still check that the key bytes are inside `keys`.
#[inline(always)]
pub(super) fn header(keys: &[u8], pos: usize, value_delta: bool) -> Option<Header> {
    if value_delta {
        let [shared, unshared] = *keys.get(pos..)?.first_chunk::<2>()?;
        if (shared | unshared) < 0x80 {
            return Some(Header { shared: shared.into(), unshared: unshared.into(), value_len: 0, key_at: pos + 2 });
        }
    } else if let Some([shared, unshared, low, high]) = keys.get(pos..)?.first_chunk::<4>()
        && (shared | unshared) < 0x80
    {
        // Keys up to 127 bytes, values up to 16 KiB.
        let (shared, unshared) = (usize::from(*shared), usize::from(*unshared));
        if *low < 0x80 {
            return Some(Header { shared, unshared, value_len: usize::from(*low), key_at: pos + 3 });
        }
        if *high < 0x80 {
            let value_len = usize::from(*low & 0x7f) | usize::from(*high) << 7;
            return Some(Header { shared, unshared, value_len, key_at: pos + 4 });
        }
    }
    header_slow(keys, pos, value_delta)
}

#[inline(never)]
fn header_slow(keys: &[u8], pos: usize, value_delta: bool) -> Option<Header> {
    let mut at = pos;
    let mut next = || {
        let (v, n) = coding::varint32(keys.get(at..)?)?;
        at += n;
        Some(v as usize)
    };
    let shared = next()?;
    let unshared = next()?;
    let value_len = if value_delta { 0 } else { next()? };
    Some(Header { shared, unshared, value_len, key_at: at })
}
