//! The state of a point lookup, which searches from the newest place to the oldest.

use std::sync::Arc;

use rockmill_format::key::{ParsedInternalKey, SequenceNumber, ValueType};

use crate::error::{Error, Result};
pub(crate) use crate::iter::seek_reads::WantedBlock;
use crate::merge_operator::{self, MergeOperator};
use crate::table::{CachedBlock, HeldBlocks};

/// A value found by a lookup: pinned in its block, or copied.
#[derive(Debug, Clone)]
pub enum PinnedValue {
    /// Bytes of a cached block, kept alive by it.
    Block(Arc<CachedBlock>, std::ops::Range<usize>),
    /// Own bytes.
    Owned(Vec<u8>),
}

impl PinnedValue {
    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Block(b, r) => &b.data()[r.start..r.end],
            Self::Owned(v) => v,
        }
    }

    /// The bytes as an owned vector.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Owned(v) => v,
            pinned => pinned.as_slice().to_vec(),
        }
    }
}

/// Where a value comes from while it is offered to a [`GetContext`].
pub(crate) enum ValueSource<'a> {
    /// In a cached block: may be pinned.
    Block(&'a Arc<CachedBlock>, std::ops::Range<usize>),
    /// Elsewhere: copied if wanted.
    Bytes(&'a [u8]),
    /// In a file: read if wanted.
    Lazy(&'a dyn LazyValue),
}

/// A value that is read on demand.
pub(crate) trait LazyValue {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn read(&self) -> Result<Vec<u8>>;

    /// Returns an object that reads it later.
    ///
    /// # Errors
    /// It cannot be read.
    fn later(&self) -> Result<Box<dyn LateValue>>;
}

/// A value that is read together with others.
pub(crate) trait LateValue {
    /// The block that it needs.
    fn wanted(&self) -> WantedBlock;

    /// Extracts the value from bytes that were read.
    ///
    /// # Errors
    /// The bytes are damaged.
    fn join(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// Reads it by itself.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn read(&self) -> Result<Vec<u8>>;
}

/// Values that are read later, each with its place among the pinned values.
pub(crate) type LateValues = Vec<(usize, Box<dyn LateValue>)>;

impl ValueSource<'_> {
    /// Pins the value, after `before` other pinned values. A lazy value may be added to `late` instead of being read.
    #[inline]
    fn pin(self, before: usize, late: &mut Option<LateValues>) -> Result<PinnedValue> {
        Ok(match (self, late) {
            (ValueSource::Block(b, r), _) => PinnedValue::Block(Arc::clone(b), r),
            (ValueSource::Bytes(b), _) => PinnedValue::Owned(b.to_vec()),
            (ValueSource::Lazy(value), None) => PinnedValue::Owned(value.read()?),
            (ValueSource::Lazy(value), Some(late)) => {
                late.push((before, value.later()?));
                PinnedValue::Owned(Vec::new())
            }
        })
    }
}

/// State of a lookup.
#[derive(Debug)]
pub enum GetState {
    /// Nothing found yet: continue with the next older place.
    NotFound,
    /// The value.
    Found(PinnedValue),
    /// A tombstone hides everything older.
    Deleted,
    /// Merge operands, newest first, and no base value yet: continue.
    Merge(Vec<PinnedValue>),
    /// Merge operands and their base: a value, or none (`None`).
    MergeDone(Vec<PinnedValue>, Option<PinnedValue>),
    /// Cannot be answered.
    Failed(Error),
}

/// A lookup of one user key, from newest to oldest.
pub struct GetContext<'a> {
    /// The key looked up.
    pub user_key: &'a [u8],
    /// Sequence number of the newest range tombstone over the key in the places searched so far; 0 if none.
    pub max_covering: SequenceNumber,
    /// Outcome so far.
    pub state: GetState,
    /// Sequence number of the entry that decided.
    pub found_seq: SequenceNumber,
    /// Entries of the key that were offered.
    pub offered: u32,
    /// Set for a lookup in a batch: it may suspend instead of reading a block.
    pub(crate) waiting: Option<Box<Waiting<'a>>>,
    /// Set for a lookup whose values in files are read at its end, together with those of others.
    pub(crate) late: Option<LateValues>,
}

/// What a lookup in a batch waits for, and where it continues.
#[derive(Debug, Default)]
pub(crate) struct Waiting<'a> {
    /// The block that it needs; the reader of the block takes this out.
    pub wanted: Option<WantedBlock>,
    /// The bytes of that block, with its trailer.
    pub arrived: Option<Vec<u8>>,
    /// From here on, it reads blocks itself.
    pub alone: bool,
    /// Where in the table it continues.
    pub resume: Option<Resume>,
    /// The blocks that earlier lookups have read.
    pub held: Option<&'a HeldBlocks>,
}

/// A place in a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resume {
    /// In a block-based table, the data block's number; other kinds use their own numbering.
    pub at: usize,
    /// The filter let the key through, which was not counted as a true positive yet.
    pub filtered: bool,
}

impl<'a> GetContext<'a> {
    /// A lookup that has seen nothing.
    pub fn new(user_key: &'a [u8]) -> Self {
        Self {
            user_key,
            max_covering: 0,
            state: GetState::NotFound,
            found_seq: 0,
            offered: 0,
            waiting: None,
            late: None,
        }
    }

    /// True while a block must be read before it can go on.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.as_ref().is_some_and(|w| w.wanted.is_some())
    }

    /// Notes that a range tombstone with this sequence number covers the key, in the place about to be searched or a
    /// newer one.
    #[inline]
    pub fn cover(&mut self, seq: SequenceNumber) {
        self.max_covering = self.max_covering.max(seq);
    }

    /// True if older places need not be searched.
    #[inline]
    pub fn is_done(&self) -> bool {
        !matches!(self.state, GetState::NotFound | GetState::Merge(_))
    }

    /// Offers the next older entry of the user key. Returns true if even older entries are needed.
    pub(crate) fn offer(&mut self, key: ParsedInternalKey<'_>, value: ValueSource<'_>) -> bool {
        let covered = key.sequence < self.max_covering;
        let value_type = if covered { ValueType::RangeDeletion } else { key.value_type };
        self.found_seq = key.sequence;
        self.offered = self.offered.wrapping_add(1);
        let operands = match std::mem::replace(&mut self.state, GetState::Deleted) {
            GetState::Merge(operands) => Some(operands),
            _ => None,
        };
        let before = operands.as_ref().map_or(0, Vec::len);
        self.state = match value_type {
            ValueType::Value => match (value.pin(before, &mut self.late), operands) {
                (Ok(value), Some(ops)) => GetState::MergeDone(ops, Some(value)),
                (Ok(value), None) => GetState::Found(value),
                (Err(e), _) => GetState::Failed(e),
            },
            ValueType::Deletion | ValueType::SingleDeletion | ValueType::RangeDeletion => match operands {
                Some(ops) => GetState::MergeDone(ops, None),
                None => GetState::Deleted,
            },
            ValueType::Merge => match value.pin(before, &mut self.late) {
                Ok(value) => {
                    let mut ops = operands.unwrap_or_default();
                    ops.push(value);
                    self.state = GetState::Merge(ops);
                    return true;
                }
                Err(e) => GetState::Failed(e),
            },
            other => GetState::Failed(match other.unsupported_feature() {
                Some(feature) => Error::not_supported(format!("the value uses {feature}")),
                None => Error::corruption(format!("unexpected value type {other:?} in a lookup")),
            }),
        };
        false
    }

    /// Inserts a value that was read late.
    pub(crate) fn fill(&mut self, place: usize, value: Vec<u8>) {
        let value = PinnedValue::Owned(value);
        match &mut self.state {
            GetState::Found(found) => *found = value,
            GetState::Merge(operands) | GetState::MergeDone(operands, _) if place < operands.len() => {
                operands[place] = value;
            }
            GetState::MergeDone(_, base) => *base = Some(value),
            _ => {}
        }
    }

    /// Ends the search: every place was searched. Operands are merged with `operator`.
    pub fn finish(self, operator: Option<&dyn MergeOperator>) -> Result<Option<PinnedValue>> {
        match self.state {
            GetState::NotFound | GetState::Deleted => Ok(None),
            GetState::Found(v) => Ok(Some(v)),
            GetState::Merge(operands) => merge(self.user_key, &operands, None, operator).map(Some),
            GetState::MergeDone(operands, base) => merge(self.user_key, &operands, base, operator).map(Some),
            GetState::Failed(e) => Err(e),
        }
    }
}

/// Merges `operands`, newest first, into `base`.
#[cold]
fn merge(
    key: &[u8],
    operands: &[PinnedValue],
    base: Option<PinnedValue>,
    operator: Option<&dyn MergeOperator>,
) -> Result<PinnedValue> {
    let Some(operator) = operator else { return Err(merge_operator::missing(key)) };
    let operands: Vec<&[u8]> = operands.iter().rev().map(PinnedValue::as_slice).collect();
    let existing = base.as_ref().map(PinnedValue::as_slice);
    merge_operator::full_merge(operator, key, existing, &operands).map(PinnedValue::Owned)
}
