//! Little-endian fields of fixed layouts. Callers pass buffers whose size they have checked or chosen.

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// An ASCII field padded with spaces, cut to its width.
pub(crate) fn put_padded(bytes: &mut [u8], at: usize, width: usize, text: &str) {
    let field = &mut bytes[at..at + width];
    field.fill(b' ');
    let n = text.len().min(width);
    field[..n].copy_from_slice(&text.as_bytes()[..n]);
}

/// The text of a field, without padding spaces or trailing zeros.
pub(crate) fn text_at(bytes: &[u8], at: usize, width: usize) -> String {
    let field = &bytes[at..at + width];
    let end = field.iter().position(|&b| b == 0).unwrap_or(width);
    String::from_utf8_lossy(&field[..end]).trim_end_matches(' ').to_owned()
}

/// A qualified name (NQN): UTF-8 that ends in a zero within its 256 bytes. `None` if it is invalid.
pub(crate) fn nqn_at(bytes: &[u8], at: usize) -> Option<String> {
    let field = &bytes[at..at + NQN_FIELD_BYTES];
    let end = field.iter().position(|&b| b == 0)?;
    let text = std::str::from_utf8(&field[..end]).ok()?;
    (!text.is_empty() && text.len() <= NQN_BYTES_MAX).then(|| text.to_owned())
}

/// Writes a qualified name, truncated to fit with a terminating zero.
pub(crate) fn put_nqn(bytes: &mut [u8], at: usize, name: &str) {
    let n = name.len().min(NQN_BYTES_MAX);
    put(bytes, at, &name.as_bytes()[..n]);
}

/// Width of the field of a qualified name.
pub(crate) const NQN_FIELD_BYTES: usize = 256;
/// Longest qualified name (NVMe Base, "NVMe Qualified Names").
pub(crate) const NQN_BYTES_MAX: usize = 223;
