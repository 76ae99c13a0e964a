//! Errors in PDUs, as they are reported to the peer (NVMe/TCP 1.0, the tables of H2CTermReq and C2HTermReq).

use std::fmt;

/// Fatal Error Status of a request to terminate a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalError {
    /// A header field has an invalid value.
    InvalidHeaderField,
    /// A PDU of this type is not allowed now.
    SequenceError,
    /// The header's digest does not match.
    HeaderDigest,
    /// Data outside what the command transfers.
    OutOfRange,
    /// More R2Ts or more data than the negotiated limit.
    LimitExceeded,
    /// A parameter that is not supported here.
    UnsupportedParameter,
    /// A value without a name.
    Other(u16),
}

impl FatalError {
    /// As it is sent.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::InvalidHeaderField => 1,
            Self::SequenceError => 2,
            Self::HeaderDigest => 3,
            Self::OutOfRange => 4,
            Self::LimitExceeded => 5,
            Self::UnsupportedParameter => 6,
            Self::Other(code) => code,
        }
    }

    /// From what was received.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        match code {
            1 => Self::InvalidHeaderField,
            2 => Self::SequenceError,
            3 => Self::HeaderDigest,
            4 => Self::OutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::UnsupportedParameter,
            other => Self::Other(other),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::InvalidHeaderField => "Invalid PDU Header Field",
            Self::SequenceError => "PDU Sequence Error",
            Self::HeaderDigest => "Header Digest Error",
            Self::OutOfRange => "Data Transfer Out of Range",
            Self::LimitExceeded => "Data Transfer Limit Exceeded",
            Self::UnsupportedParameter => "Unsupported Parameter",
            Self::Other(_) => "reserved status",
        }
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#x})", self.name(), self.code())
    }
}

/// An error in a PDU that ends its connection: the field, its offset, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PduError {
    /// What the peer is told.
    pub fatal: FatalError,
    /// The field's name in the specification.
    pub field: &'static str,
    /// Its offset from the start of the PDU.
    pub offset: u32,
    /// What it was.
    pub value: u64,
}

impl PduError {
    pub(crate) fn new(fatal: FatalError, field: &'static str, offset: u32, value: impl Into<u64>) -> Self {
        Self { fatal, field, offset, value: value.into() }
    }

    pub(crate) fn field(field: &'static str, offset: u32, value: impl Into<u64>) -> Self {
        Self::new(FatalError::InvalidHeaderField, field, offset, value)
    }

    /// A PDU of this type is not allowed now.
    pub(crate) fn sequence(kind: u8) -> Self {
        Self::new(FatalError::SequenceError, "PDU-Type", 0, kind)
    }

    /// Fatal Error Information: depending on the status, the field's offset, the received digest, or zero.
    #[must_use]
    pub fn information(&self) -> u32 {
        match self.fatal {
            FatalError::InvalidHeaderField | FatalError::UnsupportedParameter => self.offset,
            FatalError::HeaderDigest => self.value as u32,
            _ => 0,
        }
    }
}

impl fmt::Display for PduError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} at byte {} is {:#x}", self.fatal, self.field, self.offset, self.value)
    }
}

impl std::error::Error for PduError {}
