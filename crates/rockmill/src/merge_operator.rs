//! Merge operators: how a merge operand changes the value below it.
//!
//! A merge writes an operand and reads nothing. The operands of a key accumulate above its last value until a reader, a
//! flush or a compaction combines them:
//!
//! 1. a *full merge* combines a value (or no value) and all operands above it into a value: in reads, and in
//!    compactions that find the value, a tombstone, or the end of the key's history;
//! 2. a *partial merge* combines operands without their base into one operand, in flushes and compactions. An operator
//!    that does not support this returns `None`, and the operands stay as they are.
//!
//! On disk, operands that different snapshots see are never merged with each other.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::panics::in_words;
use crate::perf_context::{self as perf, PerfMetric};

mod builtin;

pub use builtin::{MaxOperator, StringAppendOperator, UInt64AddOperator, by_name};

/// How operands change values (RocksDB's `MergeOperator`).
///
/// A result must depend only on the arguments: the store chooses when and how often operands are merged. A call that
/// panics, or returns `None` from [`full_merge`](Self::full_merge), makes the read or background job fail.
pub trait MergeOperator: Send + Sync {
    /// Its name, which every table records.
    fn name(&self) -> &str;

    /// The operator's form in OPTIONS files: the name, or `{id=name;property=value;}` if RocksDB defines properties.
    fn option_text(&self) -> String {
        self.name().to_owned()
    }

    /// Applies `operands`, oldest first, to `existing`, which is `None` if the key had no value. Returns `None` if they
    /// cannot be merged; the read or job then fails with `Corruption`.
    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>>;

    /// Combines `operands` (two or more, oldest first) into one operand with the same effect. `None` if there is no
    /// such operand: they are then kept separately.
    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        let _ = (key, operands);
        None
    }

    /// The name of the operator that this one wraps, if any (RocksDB's `Inner`): ingested tables may also have that
    /// operator's operands.
    fn wraps(&self) -> Option<&str> {
        None
    }
}

/// Operands of one key, oldest first (`rocksdb::MergeOperands`).
#[derive(Debug, Clone, Copy)]
pub struct MergeOperands<'a> {
    list: &'a [&'a [u8]],
}

impl<'a> MergeOperands<'a> {
    /// Makes a list of these operands, oldest first; for tests of operators.
    pub fn new(list: &'a [&'a [u8]]) -> Self {
        Self { list }
    }

    /// Each operand, oldest first.
    pub fn iter(&self) -> MergeOperandsIter<'a> {
        MergeOperandsIter { list: self.list.iter() }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl<'a> IntoIterator for &MergeOperands<'a> {
    type Item = &'a [u8];
    type IntoIter = MergeOperandsIter<'a>;

    fn into_iter(self) -> MergeOperandsIter<'a> {
        self.iter()
    }
}

/// Goes over [`MergeOperands`].
#[derive(Debug, Clone)]
pub struct MergeOperandsIter<'a> {
    list: std::slice::Iter<'a, &'a [u8]>,
}

impl<'a> Iterator for MergeOperandsIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.list.next().copied()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.list.size_hint()
    }
}

impl ExactSizeIterator for MergeOperandsIter<'_> {}

/// A function that merges (`rocksdb::merge_operator::MergeFn`): key, existing value, operands from the oldest.
pub trait MergeFn: Fn(&[u8], Option<&[u8]>, &MergeOperands<'_>) -> Option<Vec<u8>> + Send + Sync + 'static {}

impl<F> MergeFn for F where F: Fn(&[u8], Option<&[u8]>, &MergeOperands) -> Option<Vec<u8>> + Send + Sync + 'static {}

/// An operator made of two functions.
pub(crate) struct FnOperator<F, P> {
    pub(crate) name: String,
    pub(crate) full: F,
    pub(crate) partial: P,
}

impl<F: MergeFn, P: MergeFn> MergeOperator for FnOperator<F, P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        (self.full)(key, existing, operands)
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        (self.partial)(key, None, operands)
    }
}

/// Operands in a reused buffer, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct OperandList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl OperandList {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn push(&mut self, operand: &[u8]) {
        self.bytes.extend_from_slice(operand);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn get(&self, i: usize) -> &[u8] {
        let end = self.ends.get(i).copied().unwrap_or(self.bytes.len());
        let begin = i.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.bytes.get(begin..end).unwrap_or_default()
    }

    /// All operands, in the order in which they were pushed.
    pub(crate) fn pushed(&self) -> Vec<&[u8]> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    /// All, last pushed first.
    pub(crate) fn reversed(&self) -> Vec<&[u8]> {
        (0..self.len()).rev().map(|i| self.get(i)).collect()
    }
}

/// Applies `operands`, oldest first, to `existing`.
pub(crate) fn full_merge(
    operator: &dyn MergeOperator,
    key: &[u8],
    existing: Option<&[u8]>,
    operands: &[&[u8]],
) -> Result<Vec<u8>> {
    let merged = called(operator, key, || operator.full_merge(key, existing, &MergeOperands::new(operands)))?;
    merged.ok_or_else(|| {
        let base = if existing.is_some() { "a value" } else { "no value" };
        failure(operator, key, format_args!("it refused to merge {} operands over {base}", operands.len()))
    })
}

/// Combines `operands`, oldest first, into one; `None` if the operator cannot.
pub(crate) fn partial_merge(operator: &dyn MergeOperator, key: &[u8], operands: &[&[u8]]) -> Result<Option<Vec<u8>>> {
    called(operator, key, || operator.partial_merge(key, &MergeOperands::new(operands)))
}

/// Calls an operator. A panic, or a result too large for a table, is an error.
fn called(operator: &dyn MergeOperator, key: &[u8], call: impl FnOnce() -> Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    let _timer = perf::time(PerfMetric::MergeOperatorTimeNanos);
    let merged = in_words(call).map_err(|text| failure(operator, key, format_args!("it panicked: {text}")))?;
    if merged.as_ref().is_some_and(|v| u32::try_from(v.len()).is_err()) {
        return Err(failure(operator, key, format_args!("the result is longer than 4 GiB, the most a table can hold")));
    }
    Ok(merged)
}

#[cold]
fn failure(operator: &dyn MergeOperator, key: &[u8], why: std::fmt::Arguments<'_>) -> Error {
    let mut message = format!("merge operator {:?} failed on key {}", operator.name(), key.escape_ascii());
    let _ = write!(message, ": {why}");
    Error::corruption(message)
}

/// The error of a read that found operands of `key` without having a merge operator.
#[cold]
pub(crate) fn missing(key: &[u8]) -> Error {
    Error::invalid_argument(format!(
        "key {} has merge operands and no merge operator is set for its column family",
        key.escape_ascii()
    ))
}
