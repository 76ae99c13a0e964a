//! The one error type of every decoder in this crate.

use std::borrow::Cow;
use std::fmt;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatError {
    /// The bytes break the format.
    Corruption {
        /// The problem, in words that help a user.
        what: Cow<'static, str>,
        /// Offset of the damage in the decoded buffer, in bytes.
        offset: u64,
    },
    /// The bytes are well-formed but use a feature that Rockmill does not support.
    Unsupported {
        /// The feature's name in RocksDB's documentation.
        feature: Cow<'static, str>,
    },
}

/// Result of a decoder.
pub type Result<T> = std::result::Result<T, FormatError>;

impl FormatError {
    /// A corruption at `offset` of the decoded buffer.
    pub fn corruption(what: impl Into<Cow<'static, str>>, offset: u64) -> Self {
        Self::Corruption { what: what.into(), offset }
    }

    /// An error for a known feature that is not supported.
    pub fn unsupported(feature: impl Into<Cow<'static, str>>) -> Self {
        Self::Unsupported { feature: feature.into() }
    }

    /// The same error with `base` added to its offset, for a caller that decoded part of a larger buffer.
    #[must_use]
    pub fn at(self, base: u64) -> Self {
        match self {
            Self::Corruption { what, offset } => Self::Corruption { what, offset: offset.saturating_add(base) },
            other => other,
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corruption { what, offset } => write!(f, "{what} (at offset {offset})"),
            Self::Unsupported { feature } => write!(f, "{feature} is not supported"),
        }
    }
}

impl std::error::Error for FormatError {}
