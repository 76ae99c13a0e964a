//! Fixed-width little-endian integers, varints and length-prefixed slices (RocksDB `util/coding.h`).

use crate::error::{FormatError, Result};

/// Longest encoding of a 32-bit varint, in bytes.
pub const MAX_VARINT32_LEN: usize = 5;
/// Longest encoding of a 64-bit varint, in bytes.
pub const MAX_VARINT64_LEN: usize = 10;

/// Appends `v` as four little-endian bytes.
#[inline]
pub fn put_fixed32(dst: &mut Vec<u8>, v: u32) {
    dst.extend_from_slice(&v.to_le_bytes());
}

/// Appends `v` as eight little-endian bytes.
#[inline]
pub fn put_fixed64(dst: &mut Vec<u8>, v: u64) {
    dst.extend_from_slice(&v.to_le_bytes());
}

/// Appends `v` as a varint of one to five bytes.
#[inline]
pub fn put_varint32(dst: &mut Vec<u8>, v: u32) {
    put_varint64(dst, u64::from(v));
}

/// Appends `v` as a varint of one to ten bytes.
#[inline]
pub fn put_varint64(dst: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        dst.push((v as u8) | 0x80);
        v >>= 7;
    }
    dst.push(v as u8);
}

/// Appends a signed integer as RocksDB's zigzag varint.
#[inline]
pub fn put_varsigned64(dst: &mut Vec<u8>, v: i64) {
    put_varint64(dst, ((v as u64) << 1) ^ ((v >> 63) as u64));
}

/// Appends the length of `s` as a varint, then `s`.
#[inline]
pub fn put_length_prefixed(dst: &mut Vec<u8>, s: &[u8]) {
    put_varint32(dst, s.len() as u32);
    dst.extend_from_slice(s);
}

/// Number of bytes that [`put_varint64`] writes for `v`.
#[inline]
pub fn varint_len(v: u64) -> usize {
    ((64 - (v | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Reads a little-endian `u32` at `offset`, or `None` past the end.
#[inline]
pub fn fixed32_at(buf: &[u8], offset: usize) -> Option<u32> {
    let bytes = buf.get(offset..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Reads a little-endian `u64` at `offset`, or `None` past the end.
#[inline]
pub fn fixed64_at(buf: &[u8], offset: usize) -> Option<u64> {
    let bytes = buf.get(offset..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Decodes a 32-bit varint at the start of `buf`: the value and its length in bytes, or `None` if it is truncated or
/// does not fit 32 bits.
#[inline]
pub fn varint32(buf: &[u8]) -> Option<(u32, usize)> {
    if let Some(&b) = buf.first()
        && b < 0x80
    {
        return Some((u32::from(b), 1));
    }
    let (v, n) = varint64(buf)?;
    if n > MAX_VARINT32_LEN { None } else { u32::try_from(v).ok().map(|v| (v, n)) }
}

/// Decodes a 64-bit varint at the start of `buf`: the value and its length in bytes.
#[inline]
pub fn varint64(buf: &[u8]) -> Option<(u64, usize)> {
    let mut v = 0u64;
    for (i, &b) in buf.iter().take(MAX_VARINT64_LEN).enumerate() {
        let bits = u64::from(b & 0x7f);
        if i == 9 && bits > 1 {
            return None;
        }
        v |= bits << (7 * i);
        if b < 0x80 {
            return Some((v, i + 1));
        }
    }
    None
}

/// A cursor over bytes. It knows its offset, so that every error can report it.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    buf: &'a [u8],
    pos: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `buf`.
    pub fn new(buf: &'a [u8]) -> Self {
        Self { buf, pos: 0 }
    }

    /// Bytes consumed so far.
    pub fn offset(&self) -> u64 {
        self.pos as u64
    }

    /// Bytes not yet consumed.
    pub fn remaining(&self) -> &'a [u8] {
        self.buf.get(self.pos..).unwrap_or(&[])
    }

    /// True if everything is consumed.
    pub fn is_empty(&self) -> bool {
        self.pos >= self.buf.len()
    }

    /// A corruption error at the current offset.
    pub fn error(&self, what: impl Into<std::borrow::Cow<'static, str>>) -> FormatError {
        FormatError::corruption(what, self.pos as u64)
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8]> {
        let end = self.pos.checked_add(n).filter(|&e| e <= self.buf.len());
        match end {
            Some(end) => {
                let s = &self.buf[self.pos..end];
                self.pos = end;
                Ok(s)
            }
            None => Err(self.error(format!("{what} is cut short"))),
        }
    }

    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8> {
        Ok(self.bytes(1, what)?[0])
    }

    /// A little-endian `u32`.
    pub fn fixed32(&mut self, what: &'static str) -> Result<u32> {
        let b = self.bytes(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// A little-endian `u64`.
    pub fn fixed64(&mut self, what: &'static str) -> Result<u64> {
        let b = self.bytes(8, what)?;
        Ok(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }

    /// A 32-bit varint.
    pub fn varint32(&mut self, what: &'static str) -> Result<u32> {
        match varint32(self.remaining()) {
            Some((v, n)) => {
                self.pos += n;
                Ok(v)
            }
            None => Err(self.error(format!("{what}: bad varint32"))),
        }
    }

    /// A 64-bit varint.
    pub fn varint64(&mut self, what: &'static str) -> Result<u64> {
        match varint64(self.remaining()) {
            Some((v, n)) => {
                self.pos += n;
                Ok(v)
            }
            None => Err(self.error(format!("{what}: bad varint64"))),
        }
    }

    /// A zigzag varint.
    pub fn varsigned64(&mut self, what: &'static str) -> Result<i64> {
        let u = self.varint64(what)?;
        Ok(((u >> 1) as i64) ^ -((u & 1) as i64))
    }

    /// A slice preceded by its length as a varint32.
    pub fn length_prefixed(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let n = self.varint32(what)?;
        self.bytes(n as usize, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_at_every_length() {
        for shift in 0..64 {
            for delta in [-1i64, 0, 1] {
                let v = (1u64 << shift).wrapping_add(delta as u64);
                let mut b = Vec::new();
                put_varint64(&mut b, v);
                assert_eq!(b.len(), varint_len(v));
                assert_eq!(varint64(&b), Some((v, b.len())));
                assert_eq!(varint64(&b[..b.len() - 1]), None);
                assert_eq!(varint32(&b).map(|x| x.0), u32::try_from(v).ok());
                let mut s = Vec::new();
                put_varsigned64(&mut s, v as i64);
                assert_eq!(Decoder::new(&s).varsigned64("v").unwrap(), v as i64);
            }
        }
    }

    #[test]
    fn overlong_varints_are_refused() {
        assert_eq!(varint64(&[0xff; 10]), None);
        assert_eq!(varint64(&[0x80; 11]), None);
        assert_eq!(varint32(&[0xff, 0xff, 0xff, 0xff, 0x7f]), None);
    }
}
