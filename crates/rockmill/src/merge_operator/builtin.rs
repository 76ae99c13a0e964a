//! RocksDB's own merge operators with its names, so that databases that use them can move between RocksDB and Rockmill.

use std::sync::Arc;

use super::{MergeOperands, MergeOperator};
use crate::options::parse;

/// The operator that RocksDB's option strings call `name`: `uint64add`, `stringappend`, `max`, or the names that
/// tables record, such as `UInt64AddOperator`.
pub fn by_name(name: &str) -> Option<Arc<dyn MergeOperator>> {
    match name {
        "uint64add" | "UInt64AddOperator" => Some(Arc::new(UInt64AddOperator)),
        "stringappend" | "StringAppendOperator" => Some(Arc::new(StringAppendOperator::default())),
        "max" | "MaxOperator" => Some(Arc::new(MaxOperator)),
        _ => None,
    }
}

/// Adds numbers of 8 bytes, little-endian, wrapping around; bytes of any other length count as 0, as in RocksDB.
#[derive(Debug, Clone, Copy, Default)]
pub struct UInt64AddOperator;

impl UInt64AddOperator {
    fn number(bytes: &[u8]) -> u64 {
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }
}

impl MergeOperator for UInt64AddOperator {
    fn name(&self) -> &str {
        "UInt64AddOperator"
    }

    fn full_merge(&self, _key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        let sum = existing.into_iter().chain(operands).map(Self::number).fold(0, u64::wrapping_add);
        Some(sum.to_le_bytes().to_vec())
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        self.full_merge(key, None, operands)
    }
}

/// Concatenates strings, separated by a delimiter.
#[derive(Debug, Clone)]
pub struct StringAppendOperator {
    delimiter: Vec<u8>,
}

impl StringAppendOperator {
    /// Puts `delimiter` between two strings.
    pub fn new(delimiter: impl Into<Vec<u8>>) -> Self {
        Self { delimiter: delimiter.into() }
    }
}

impl Default for StringAppendOperator {
    /// With a comma, as RocksDB's `stringappend`.
    fn default() -> Self {
        Self::new(",")
    }
}

impl MergeOperator for StringAppendOperator {
    fn name(&self) -> &str {
        "StringAppendOperator"
    }

    fn option_text(&self) -> String {
        match std::str::from_utf8(&self.delimiter) {
            // A delimiter with characters of the option syntax cannot be expressed.
            Ok(d) if !d.contains(['{', '}', ';']) && d.trim() == d => {
                parse::braced([("id", self.name().to_owned()), ("delimiter", parse::escape(d))])
            }
            _ => self.name().to_owned(),
        }
    }

    fn full_merge(&self, _key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        let parts = || existing.into_iter().chain(operands);
        let len = parts().map(|p| p.len() + self.delimiter.len()).sum();
        let mut out = Vec::with_capacity(len);
        for (i, part) in parts().enumerate() {
            if i > 0 {
                out.extend_from_slice(&self.delimiter);
            }
            out.extend_from_slice(part);
        }
        Some(out)
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        self.full_merge(key, None, operands)
    }
}

/// Keeps the largest bytes, in bytewise order.
#[derive(Debug, Clone, Copy, Default)]
pub struct MaxOperator;

impl MergeOperator for MaxOperator {
    fn name(&self) -> &str {
        "MaxOperator"
    }

    fn full_merge(&self, _key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        existing.into_iter().chain(operands).max().map(<[u8]>::to_vec)
    }

    fn partial_merge(&self, key: &[u8], operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        self.full_merge(key, None, operands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(name: &str, existing: Option<&[u8]>, operands: &[&[u8]]) -> Vec<u8> {
        by_name(name).unwrap().full_merge(b"k", existing, &MergeOperands::new(operands)).unwrap()
    }

    #[test]
    fn results_are_those_of_rocksdb() {
        let n = |n: u64| n.to_le_bytes();
        assert_eq!(full("uint64add", None, &[&n(1), &n(2)]), n(3));
        assert_eq!(full("uint64add", Some(&n(u64::MAX)), &[&n(2)]), n(1));
        assert_eq!(full("UInt64AddOperator", Some(b"bad"), &[&n(2), b""]), n(2));
        assert_eq!(full("stringappend", Some(b"a"), &[b"b", b""]), b"a,b,");
        assert_eq!(full("StringAppendOperator", None, &[b"", b"b"]), b",b");
        assert_eq!(full("max", Some(b"b"), &[b"a", b"ba", b""]), b"ba");
        assert_eq!(full("MaxOperator", None, &[b""]), b"");
        assert!(by_name("unknown").is_none());
        let names = ["uint64add", "stringappend", "max"].map(|n| by_name(n).unwrap().name().to_owned());
        assert_eq!(names, ["UInt64AddOperator", "StringAppendOperator", "MaxOperator"]);
    }

    #[test]
    fn another_delimiter() {
        let op = StringAppendOperator::new("; ");
        assert_eq!(op.partial_merge(b"k", &MergeOperands::new(&[b"a", b"b"])).unwrap(), b"a; b");
    }
}
