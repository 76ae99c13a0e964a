//! Write batches as they are stored in the WAL (RocksDB `db/write_batch.cc`).
//!
//! ```text
//! u64 sequence of the first record | u32 count | records
//!
//! record:  u8 type | varint32 column family (only `Cf` types) | slices, each with a varint32 length before it
//! ```
//!
//! Invariants: `count` is the number of records that take a sequence number; record `i` of those has sequence
//! `sequence + i`. Decoding hands out slices of the batch and allocates nothing unless it fails.

use crate::coding::varint32;
use crate::error::{FormatError, Result};
use crate::key::{SequenceNumber, ValueType};

/// Length of a batch's header, in bytes.
pub const HEADER_LEN: usize = 12;

/// Offset of the count in the header.
const COUNT_AT: usize = 8;

/// Longest key or value: its length is a 32-bit varint.
pub const MAX_SLICE_LEN: usize = u32::MAX as usize;

/// The name of the feature that the markers of prepared transactions belong to.
pub const TWO_PHASE_COMMIT: &str = "two-phase commit (TransactionDB) in a write batch";

/// One record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BatchRecord<'a> {
    Put {
        cf: u32,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        cf: u32,
        key: &'a [u8],
    },
    SingleDelete {
        cf: u32,
        key: &'a [u8],
    },
    Merge {
        cf: u32,
        key: &'a [u8],
        value: &'a [u8],
    },
    DeleteRange {
        cf: u32,
        begin: &'a [u8],
        end: &'a [u8],
    },
    /// Not applied; kept for replication.
    LogData(&'a [u8]),
    /// Placeholder that transactions leave at the start of a batch; it does nothing. The real two-phase commit
    /// markers decode to [`FormatError::Unsupported`].
    Noop,
}

impl<'a> BatchRecord<'a> {
    /// True for the records that take a sequence number (all but `LogData` and `Noop`).
    #[inline]
    pub fn counts(&self) -> bool {
        !matches!(self, BatchRecord::LogData(_) | BatchRecord::Noop)
    }

    /// The column family the record changes; `None` for `LogData` and `Noop`.
    #[inline]
    pub fn column_family(&self) -> Option<u32> {
        match *self {
            BatchRecord::Put { cf, .. }
            | BatchRecord::Delete { cf, .. }
            | BatchRecord::SingleDelete { cf, .. }
            | BatchRecord::Merge { cf, .. }
            | BatchRecord::DeleteRange { cf, .. } => Some(cf),
            BatchRecord::LogData(_) | BatchRecord::Noop => None,
        }
    }

    /// The type of the record without `Cf`, as it stands in an internal key.
    #[inline]
    pub fn value_type(&self) -> ValueType {
        match self {
            BatchRecord::Put { .. } => ValueType::Value,
            BatchRecord::Delete { .. } => ValueType::Deletion,
            BatchRecord::SingleDelete { .. } => ValueType::SingleDeletion,
            BatchRecord::Merge { .. } => ValueType::Merge,
            BatchRecord::DeleteRange { .. } => ValueType::RangeDeletion,
            BatchRecord::LogData(_) => ValueType::LogData,
            BatchRecord::Noop => ValueType::Noop,
        }
    }

    /// The record's one or two byte strings: key and value, begin and end, or the log data.
    #[inline]
    fn slices(&self) -> (&'a [u8], Option<&'a [u8]>) {
        match *self {
            BatchRecord::Put { key, value, .. } | BatchRecord::Merge { key, value, .. } => (key, Some(value)),
            BatchRecord::DeleteRange { begin, end, .. } => (begin, Some(end)),
            BatchRecord::Delete { key, .. } | BatchRecord::SingleDelete { key, .. } => (key, None),
            BatchRecord::LogData(data) => (data, None),
            BatchRecord::Noop => (&[], None),
        }
    }

    /// True when each byte string is at most [`MAX_SLICE_LEN`] bytes, so that [`BatchRep::push`] can take it.
    #[inline]
    pub fn fits(&self) -> bool {
        let (a, b) = self.slices();
        a.len() <= MAX_SLICE_LEN && b.is_none_or(|b| b.len() <= MAX_SLICE_LEN)
    }
}

/// An encoded write batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRep {
    /// Never shorter than [`HEADER_LEN`].
    rep: Vec<u8>,
}

impl Default for BatchRep {
    fn default() -> Self {
        Self { rep: vec![0; HEADER_LEN] }
    }
}

impl BatchRep {
    /// An empty batch with room for `capacity` bytes, header included.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut rep = Vec::with_capacity(capacity.max(HEADER_LEN));
        rep.resize(HEADER_LEN, 0);
        Self { rep }
    }

    /// Takes encoded bytes, for example a WAL record; checks the header only.
    pub fn from_bytes(rep: Vec<u8>) -> Result<Self> {
        check_header(&rep)?;
        Ok(Self { rep })
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.rep
    }

    /// The encoded bytes, taken out.
    pub fn into_bytes(self) -> Vec<u8> {
        self.rep
    }

    /// Sequence number of the first counted record.
    #[inline]
    pub fn sequence(&self) -> SequenceNumber {
        header_sequence(&self.rep)
    }

    /// Sets the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, seq: SequenceNumber) {
        self.rep[..COUNT_AT].copy_from_slice(&seq.to_le_bytes());
    }

    /// Number of counted records.
    #[inline]
    pub fn count(&self) -> u32 {
        header_count(&self.rep)
    }

    /// Adds to the count.
    ///
    /// # Panics
    /// When a batch holds more than 2^32 - 1 records.
    #[inline]
    fn add_count(&mut self, n: u32) {
        let count = self.count().checked_add(n).expect("a write batch holds at most 2^32 - 1 records");
        self.rep[COUNT_AT..HEADER_LEN].copy_from_slice(&count.to_le_bytes());
    }

    /// Empties the batch; keeps its memory.
    pub fn clear(&mut self) {
        self.rep.clear();
        self.rep.resize(HEADER_LEN, 0);
    }

    /// True when the batch holds no record at all, counted or not.
    pub fn is_empty(&self) -> bool {
        self.rep.len() == HEADER_LEN
    }

    /// Appends a record (column family 0 takes the short form).
    ///
    /// # Panics
    /// When a byte string is longer than [`MAX_SLICE_LEN`]: callers that take user data ask
    /// [`BatchRecord::fits`] first.
    #[inline]
    pub fn push(&mut self, record: BatchRecord<'_>) {
        use ValueType as T;
        let (plain, with_cf) = match record {
            BatchRecord::Put { .. } => (T::Value, T::CfValue),
            BatchRecord::Delete { .. } => (T::Deletion, T::CfDeletion),
            BatchRecord::SingleDelete { .. } => (T::SingleDeletion, T::CfSingleDeletion),
            BatchRecord::Merge { .. } => (T::Merge, T::CfMerge),
            BatchRecord::DeleteRange { .. } => (T::RangeDeletion, T::CfRangeDeletion),
            BatchRecord::LogData(_) => (T::LogData, T::LogData),
            BatchRecord::Noop => {
                self.rep.push(T::Noop as u8);
                return;
            }
        };
        let (a, b) = record.slices();
        // One growth at most, and each piece in one copy: the lengths are gathered on the stack first.
        let mut head = Head::default();
        match record.column_family() {
            None | Some(0) => head.byte(plain as u8),
            Some(cf) => {
                head.byte(with_cf as u8);
                head.varint(cf);
            }
        }
        head.len(a);
        self.rep.reserve(head.used + a.len() + b.map_or(0, |b| b.len() + 5));
        self.rep.extend_from_slice(head.bytes());
        self.rep.extend_from_slice(a);
        if let Some(b) = b {
            let mut head = Head::default();
            head.len(b);
            self.rep.extend_from_slice(head.bytes());
            self.rep.extend_from_slice(b);
        }
        if record.counts() {
            self.add_count(1);
        }
    }

    /// Appends all records of `other` (write groups). The sequence number stays.
    #[inline]
    pub fn append(&mut self, other: &BatchRep) {
        self.rep.extend_from_slice(&other.rep[HEADER_LEN..]);
        self.add_count(other.count());
    }

    /// Drops what was appended since the batch had this length and count (save points). Does nothing when the batch
    /// is shorter.
    pub fn truncate(&mut self, len_bytes: usize, count: u32) {
        if (HEADER_LEN..=self.rep.len()).contains(&len_bytes) {
            self.rep.truncate(len_bytes);
            self.rep[COUNT_AT..HEADER_LEN].copy_from_slice(&count.to_le_bytes());
        }
    }

    /// The records in order; each item may be an error (then the iterator ends). Checks at the end that the header's
    /// count is right.
    #[inline]
    pub fn iter(&self) -> BatchIter<'_> {
        BatchIter { rep: &self.rep, pos: HEADER_LEN, expected: self.count(), found: 0, done: false }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.rep.len()
    }

    /// How far after the header `part`, a slice of one of the batch's records, begins.
    #[inline]
    pub fn offset_in_records(&self, part: &[u8]) -> usize {
        (part.as_ptr() as usize).wrapping_sub(self.rep.as_ptr() as usize).wrapping_sub(HEADER_LEN)
    }
}

impl<'a> IntoIterator for &'a BatchRep {
    type Item = Result<BatchRecord<'a>>;
    type IntoIter = BatchIter<'a>;

    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}

/// Reads an encoded batch in place, for example a WAL record: its sequence number and its records. Checks the header;
/// the iterator checks the rest.
pub fn decode(rep: &[u8]) -> Result<(SequenceNumber, BatchIter<'_>)> {
    check_header(rep)?;
    Ok((header_sequence(rep), BatchIter { rep, pos: HEADER_LEN, expected: header_count(rep), found: 0, done: false }))
}

fn check_header(rep: &[u8]) -> Result<()> {
    if rep.len() < HEADER_LEN {
        return Err(FormatError::corruption(
            format!("write batch of {} bytes is shorter than its header of {HEADER_LEN}", rep.len()),
            0,
        ));
    }
    let (seq, count) = (header_sequence(rep), u64::from(header_count(rep)));
    if seq.saturating_add(count.saturating_sub(1)) > crate::key::MAX_SEQUENCE {
        return Err(FormatError::corruption(
            format!("write batch of {count} records has sequence {seq}: over the limit of 2^56 - 1"),
            0,
        ));
    }
    Ok(())
}

/// `rep` holds a header.
#[inline]
fn header_sequence(rep: &[u8]) -> SequenceNumber {
    rep.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b))
}

/// `rep` holds a header.
#[inline]
fn header_count(rep: &[u8]) -> u32 {
    crate::coding::fixed32_at(rep, COUNT_AT).unwrap_or(0)
}

/// Type, column family and one length, gathered on the stack: 1 + 5 + 5 bytes at most.
#[derive(Default)]
struct Head {
    buf: [u8; 16],
    used: usize,
}

impl Head {
    #[inline]
    fn byte(&mut self, b: u8) {
        self.buf[self.used] = b;
        self.used += 1;
    }

    #[inline]
    fn varint(&mut self, mut v: u32) {
        while v >= 0x80 {
            self.byte((v as u8) | 0x80);
            v >>= 7;
        }
        self.byte(v as u8);
    }

    #[inline]
    fn len(&mut self, s: &[u8]) {
        assert!(s.len() <= MAX_SLICE_LEN, "a key or value in a write batch is at most 2^32 - 1 bytes");
        self.varint(s.len() as u32);
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.buf[..self.used]
    }
}

/// Iterator over a batch's records.
#[derive(Debug, Clone)]
pub struct BatchIter<'a> {
    rep: &'a [u8],
    /// Offset of the next record in `rep`; at most `rep.len()`.
    pos: usize,
    expected: u32,
    found: u32,
    done: bool,
}

impl<'a> BatchIter<'a> {
    /// Number of records that the header promises. Untrusted: do not allocate by it alone.
    pub fn promised(&self) -> u32 {
        self.expected
    }

    #[inline]
    fn varint(&mut self, what: &'static str) -> Result<u32> {
        match varint32(self.rep.get(self.pos..).unwrap_or(&[])) {
            Some((v, n)) => {
                self.pos += n;
                Ok(v)
            }
            None => Err(self.bad(what)),
        }
    }

    #[inline(always)]
    fn slice(&mut self, what: &'static str) -> Result<&'a [u8]> {
        // Most have less than 128 bytes, so that the length is one.
        if let Some((&n, rest)) = self.rep.get(self.pos..).and_then(<[u8]>::split_first)
            && n < 0x80
            && let Some(s) = rest.get(..usize::from(n))
        {
            self.pos += 1 + s.len();
            return Ok(s);
        }
        self.long_slice(what)
    }

    fn long_slice(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let n = self.varint(what)? as usize;
        let rest = self.rep.get(self.pos..).unwrap_or(&[]);
        match rest.get(..n) {
            Some(s) => {
                self.pos += n;
                Ok(s)
            }
            None => Err(self.bad(what)),
        }
    }

    #[cold]
    fn bad(&self, what: &'static str) -> FormatError {
        FormatError::corruption(format!("write batch: {what} is cut short"), self.pos as u64)
    }

    #[inline]
    fn decode_one(&mut self) -> Result<BatchRecord<'a>> {
        use ValueType as T;
        let at = self.pos;
        let tag = self.rep.get(at).copied().unwrap_or(0);
        self.pos += 1;
        let Some(t) = ValueType::from_u8(tag) else { return Err(unknown_tag(tag, at)) };
        let cf = match t {
            T::CfValue | T::CfDeletion | T::CfSingleDeletion | T::CfMerge | T::CfRangeDeletion => {
                self.varint("column family")?
            }
            _ => 0,
        };
        Ok(match t {
            T::Value | T::CfValue => BatchRecord::Put { cf, key: self.slice("key")?, value: self.slice("value")? },
            T::Deletion | T::CfDeletion => BatchRecord::Delete { cf, key: self.slice("key")? },
            T::SingleDeletion | T::CfSingleDeletion => BatchRecord::SingleDelete { cf, key: self.slice("key")? },
            T::Merge | T::CfMerge => BatchRecord::Merge { cf, key: self.slice("key")?, value: self.slice("operand")? },
            T::RangeDeletion | T::CfRangeDeletion => {
                BatchRecord::DeleteRange { cf, begin: self.slice("begin key")?, end: self.slice("end key")? }
            }
            T::LogData => BatchRecord::LogData(self.slice("log data")?),
            T::Noop => BatchRecord::Noop,
            other => return Err(unsupported(other, tag, at)),
        })
    }
}

#[cold]
fn unknown_tag(tag: u8, at: usize) -> FormatError {
    FormatError::corruption(format!("write batch: unknown record type {tag:#x}"), at as u64)
}

#[cold]
fn unsupported(t: ValueType, tag: u8, at: usize) -> FormatError {
    use ValueType as T;
    match t {
        T::BeginPrepareXid
        | T::EndPrepareXid
        | T::CommitXid
        | T::RollbackXid
        | T::BeginPersistedPrepareXid
        | T::BeginUnprepareXid => FormatError::unsupported(TWO_PHASE_COMMIT),
        T::CommitXidAndTimestamp => FormatError::unsupported("user-defined timestamps (commit with timestamp)"),
        t => match t.unsupported_feature() {
            Some(feature) => FormatError::unsupported(feature),
            None => unknown_tag(tag, at),
        },
    }
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<BatchRecord<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.pos >= self.rep.len() {
            self.done = true;
            return (self.found != self.expected).then(|| {
                Err(FormatError::corruption(
                    format!("write batch has {} records but its header says {}", self.found, self.expected),
                    COUNT_AT as u64,
                ))
            });
        }
        let item = self.decode_one();
        match &item {
            Ok(r) => self.found = self.found.wrapping_add(u32::from(r.counts())),
            Err(_) => self.done = true,
        }
        Some(item)
    }
}

impl std::iter::FusedIterator for BatchIter<'_> {}

#[cfg(test)]
mod tests;
