//! Internal keys: user key, then sequence number and value type packed in eight bytes (RocksDB `db/dbformat.h`).
//!
//! ```text
//! +----------------------+---------------------------------------------+
//! | user key (any bytes) | u64 little-endian: (sequence << 8) | type   |
//! +----------------------+---------------------------------------------+
//! ```
//!
//! Internal keys order by user key ascending, then by the packed tag descending, so that the newest version of a
//! user key comes first.

use crate::error::{FormatError, Result};

/// A version number: each write takes the next one. 56 bits.
pub type SequenceNumber = u64;

/// The largest sequence number: 2^56 - 1.
pub const MAX_SEQUENCE: SequenceNumber = (1 << 56) - 1;

/// Length of the packed tag at the end of an internal key, in bytes.
pub const TAG_LEN: usize = 8;

/// The type of a record. The values are RocksDB's and are stored on disk; those with `Cf` occur only in write batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ValueType {
    Deletion = 0x0,
    Value = 0x1,
    Merge = 0x2,
    LogData = 0x3,
    CfDeletion = 0x4,
    CfValue = 0x5,
    CfMerge = 0x6,
    SingleDeletion = 0x7,
    CfSingleDeletion = 0x8,
    BeginPrepareXid = 0x9,
    EndPrepareXid = 0xA,
    CommitXid = 0xB,
    RollbackXid = 0xC,
    Noop = 0xD,
    CfRangeDeletion = 0xE,
    RangeDeletion = 0xF,
    CfBlobIndex = 0x10,
    BlobIndex = 0x11,
    BeginPersistedPrepareXid = 0x12,
    BeginUnprepareXid = 0x13,
    DeletionWithTimestamp = 0x14,
    CommitXidAndTimestamp = 0x15,
    WideColumnEntity = 0x16,
    CfWideColumnEntity = 0x17,
    ValuePreferredSeqno = 0x18,
    CfValuePreferredSeqno = 0x19,
    /// Rockmill's own, in pieces of TPH tables: a placeholder. Older pieces of the table may still have entries of the
    /// user key, and none of them counts.
    Placeholder = 0x7E,
    /// Never on disk: the largest type, used to build seek keys.
    Max = 0x7F,
}

/// The type that sorts before every stored entry of the same user key and sequence number: use it to build the key
/// of a seek (RocksDB's `kValueTypeForSeek`).
pub const VALUE_TYPE_FOR_SEEK: ValueType = ValueType::ValuePreferredSeqno;

impl ValueType {
    /// The type with this number, if there is one.
    pub fn from_u8(v: u8) -> Option<Self> {
        use ValueType::*;
        Some(match v {
            0x0 => Deletion,
            0x1 => Value,
            0x2 => Merge,
            0x3 => LogData,
            0x4 => CfDeletion,
            0x5 => CfValue,
            0x6 => CfMerge,
            0x7 => SingleDeletion,
            0x8 => CfSingleDeletion,
            0x9 => BeginPrepareXid,
            0xA => EndPrepareXid,
            0xB => CommitXid,
            0xC => RollbackXid,
            0xD => Noop,
            0xE => CfRangeDeletion,
            0xF => RangeDeletion,
            0x10 => CfBlobIndex,
            0x11 => BlobIndex,
            0x12 => BeginPersistedPrepareXid,
            0x13 => BeginUnprepareXid,
            0x14 => DeletionWithTimestamp,
            0x15 => CommitXidAndTimestamp,
            0x16 => WideColumnEntity,
            0x17 => CfWideColumnEntity,
            0x18 => ValuePreferredSeqno,
            0x19 => CfValuePreferredSeqno,
            0x7E => Placeholder,
            0x7F => Max,
            _ => return None,
        })
    }

    /// The name of the RocksDB feature a stored entry of this type needs, when Rockmill does not have it.
    pub fn unsupported_feature(self) -> Option<&'static str> {
        use ValueType::*;
        match self {
            BlobIndex | CfBlobIndex => Some("blob files (BlobDB)"),
            WideColumnEntity | CfWideColumnEntity => Some("wide columns (PutEntity)"),
            DeletionWithTimestamp => Some("user-defined timestamps"),
            ValuePreferredSeqno | CfValuePreferredSeqno => Some("TimedPut (preferred sequence numbers)"),
            _ => None,
        }
    }
}

/// Packs a sequence number and a type into an internal key's tag.
#[inline]
pub fn pack_tag(seq: SequenceNumber, t: ValueType) -> u64 {
    (seq << 8) | t as u64
}

/// The user key of an internal key; empty if `ikey` is shorter than a tag.
#[inline]
pub fn user_key(ikey: &[u8]) -> &[u8] {
    &ikey[..ikey.len().saturating_sub(TAG_LEN)]
}

/// The tag of an internal key; zero if `ikey` is shorter than a tag.
#[inline]
pub fn tag(ikey: &[u8]) -> u64 {
    match ikey.last_chunk::<TAG_LEN>() {
        Some(b) => u64::from_le_bytes(*b),
        None => 0,
    }
}

/// The sequence number of an internal key.
#[inline]
pub fn sequence(ikey: &[u8]) -> SequenceNumber {
    tag(ikey) >> 8
}

/// Appends the internal key for (`user_key`, `seq`, `t`).
#[inline]
pub fn append_internal_key(dst: &mut Vec<u8>, user_key: &[u8], seq: SequenceNumber, t: ValueType) {
    dst.reserve(user_key.len() + TAG_LEN);
    dst.extend_from_slice(user_key);
    dst.extend_from_slice(&pack_tag(seq, t).to_le_bytes());
}

/// The parts of an internal key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsedInternalKey<'a> {
    /// The user's key.
    pub user_key: &'a [u8],
    /// Its version.
    pub sequence: SequenceNumber,
    /// What the record is.
    pub value_type: ValueType,
}

impl<'a> ParsedInternalKey<'a> {
    /// Splits `ikey` into its parts; refuses one that is too short or whose type is unknown.
    #[inline]
    pub fn parse(ikey: &'a [u8]) -> Result<Self> {
        if ikey.len() < TAG_LEN {
            return Err(FormatError::corruption("internal key shorter than eight bytes", 0));
        }
        let t = tag(ikey);
        match ValueType::from_u8(t as u8) {
            Some(value_type) => Ok(Self { user_key: user_key(ikey), sequence: t >> 8, value_type }),
            None => Err(FormatError::corruption(
                format!("internal key has unknown value type {:#x}", t as u8),
                (ikey.len() - TAG_LEN) as u64,
            )),
        }
    }
}

/// An owned internal key. Compare with [`crate::InternalKeyComparator`], never bytewise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct InternalKey(Vec<u8>);

impl InternalKey {
    /// The key for (`user_key`, `seq`, `t`).
    pub fn new(user_key: &[u8], seq: SequenceNumber, t: ValueType) -> Self {
        let mut v = Vec::with_capacity(user_key.len() + TAG_LEN);
        append_internal_key(&mut v, user_key, seq, t);
        Self(v)
    }

    /// The key that sorts before every version of `user_key`.
    pub fn min_possible(user_key: &[u8]) -> Self {
        Self::new(user_key, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK)
    }

    /// The key that sorts after every version of `user_key`.
    pub fn max_possible(user_key: &[u8]) -> Self {
        Self::new(user_key, 0, ValueType::Deletion)
    }

    /// Takes encoded bytes as they are.
    pub fn from_encoded(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The user key.
    pub fn user_key(&self) -> &[u8] {
        user_key(&self.0)
    }

    /// The sequence number.
    pub fn sequence(&self) -> SequenceNumber {
        sequence(&self.0)
    }

    /// Taken apart, checked.
    pub fn parse(&self) -> Result<ParsedInternalKey<'_>> {
        ParsedInternalKey::parse(&self.0)
    }

    /// True for the empty key that `Default` gives.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
