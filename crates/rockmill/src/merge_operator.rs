//! Merge operators: what a merge operand does to the value under it.
//!
//! A merge writes an operand and reads nothing. The operands of a key pile up over its last value until a reader, a
//! flush or a compaction brings them together:
//!
//! 1. a *full merge* turns a value (or nothing) and every operand over it into a value: at reads, and in compactions
//!    that meet the value, a tombstone, or the end of the key's history;
//! 2. a *partial merge* turns operands whose base is not there into one operand, in flushes and compactions. An
//!    operator that cannot do it says so and the operands stay as they are.
//!
//! Operands that different snapshots see are never merged with one another on disk.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::panics::in_words;
use crate::perf_context::{self as perf, PerfMetric};

mod builtin;

pub use builtin::{MaxOperator, StringAppendOperator, UInt64AddOperator, by_name};

/// How operands change values (RocksDB's `MergeOperator`).
///
/// A result must depend on nothing but the arguments: when and how often operands are merged is the store's choice.
/// A call that panics fails the read or the background job that made it, as one that returns `None` from
/// [`full_merge`](Self::full_merge) does.
pub trait MergeOperator: Send + Sync {
    /// Its name, which every table records.
    fn name(&self) -> &str;

    /// The operator as OPTIONS files have it: the name, or `{id=name;property=value;}` where RocksDB has properties.
    fn option_text(&self) -> String {
        self.name().to_owned()
    }

    /// The value that `operands`, oldest first, make of `existing`; `existing` is `None` when the key had no value.
    /// `None` when they cannot be merged: the read or job then fails with `Corruption`.
    fn full_merge(&self, key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>>;

    /// One operand that does what all of `operands`, two or more and oldest first, do. `None` when there is no such
    /// operand: they are kept one by one.
    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        let _ = (key, operands);
        None
    }

    /// The name of the operator that this one is wrapped around, if it is (RocksDB's `Inner`): tables that are ingested
    /// may have operands of that one, too.
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
    /// Over these operands, oldest first; for tests of operators.
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

/// Operands in one buffer that is used again and again, in the order in which they were met.
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

    /// All, in the order in which they were pushed.
    pub(crate) fn pushed(&self) -> Vec<&[u8]> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    /// All, last pushed first.
    pub(crate) fn reversed(&self) -> Vec<&[u8]> {
        (0..self.len()).rev().map(|i| self.get(i)).collect()
    }
}

/// The value that `operands`, oldest first, make of `existing`.
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

/// One operand for all of `operands`, oldest first; `None` when the operator knows none.
pub(crate) fn partial_merge(operator: &dyn MergeOperator, key: &[u8], operands: &[&[u8]]) -> Result<Option<Vec<u8>>> {
    called(operator, key, || operator.partial_merge(key, &MergeOperands::new(operands)))
}

/// Calls an operator: a panic of its, or a result that no table can hold, is an error.
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

/// A read met operands of `key` and has nothing to merge them with.
#[cold]
pub(crate) fn missing(key: &[u8]) -> Error {
    Error::invalid_argument(format!(
        "key {} has merge operands and no merge operator is set for its column family",
        key.escape_ascii()
    ))
}
