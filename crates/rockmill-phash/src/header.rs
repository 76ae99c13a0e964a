//! The first 32 bytes of every function, and reading numbers from bytes.

use crate::build::Kind;
use crate::error::OpenError;

/// Length of the header.
pub(crate) const LEN: usize = 32;
/// The first four bytes.
const MAGIC: [u8; 4] = *b"RMPH";
/// The version of the encoding.
const VERSION: u8 = 1;

/// The fields that all kinds have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub attempt: u8,
    /// Its meaning depends on the kind.
    pub parameter: u8,
    pub seed: u64,
    pub keys: u64,
    pub slots: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&[VERSION, self.kind as u8, self.attempt, self.parameter]);
        out[8..16].copy_from_slice(&self.seed.to_le_bytes());
        out[16..24].copy_from_slice(&self.keys.to_le_bytes());
        out[24..].copy_from_slice(&self.slots.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, OpenError> {
        if bytes.len() < LEN {
            return Err(OpenError::at(bytes.len(), "the header is cut off"));
        }
        if bytes[..4] != MAGIC {
            return Err(OpenError::at(0, "no perfect hash function begins"));
        }
        if bytes[4] != VERSION {
            return Err(OpenError::at(4, "an unknown version"));
        }
        let kind = Kind::from_u8(bytes[5]).ok_or(OpenError::at(5, "an unknown kind"))?;
        let header = Self {
            kind,
            attempt: bytes[6],
            parameter: bytes[7],
            seed: fixed64(bytes, 8),
            keys: fixed64(bytes, 16),
            slots: fixed64(bytes, 24),
        };
        if header.slots == 0 || header.keys > header.slots || usize::try_from(header.slots).is_err() {
            return Err(OpenError::at(24, "a number of slots that cannot be"));
        }
        Ok(header)
    }
}

/// The little-endian number at `at`; zero past the end, which no validated offset reaches.
#[inline(always)]
pub(crate) fn fixed64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

/// See [`fixed64`].
#[inline(always)]
pub(crate) fn fixed32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}
