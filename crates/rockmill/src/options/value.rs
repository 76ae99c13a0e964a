//! Values of options as RocksDB's text.

use std::path::PathBuf;

use super::known::Notes;
use super::parse;
use super::{
    BlockBasedIndexType, ChecksumType, CompactionPri, CompactionStyle, CompressionType, DataBlockIndexType,
    RecoveryMode, TableKind, UniversalCompactionStopStyle,
};
use crate::info_log::LogLevel;
use crate::options::{KernelDriver, MergeEngine};

/// A type of option values.
pub(crate) trait Value: Sized {
    /// From text; `None` if the text is not such a value.
    fn read(text: &str) -> Option<Self>;

    /// As text, in the form that RocksDB writes.
    fn write(&self) -> String;

    /// Reads a value into its field; false if the text is not a value of the field's type. A struct of options changes
    /// only the fields that the text names; names that it does not know go to the notes.
    fn update(&mut self, text: &str, notes: &mut Notes) -> bool {
        let _ = notes;
        Self::read(text).map(|value| *self = value).is_some()
    }
}

/// Gives a struct of options the text that RocksDB has for it, `{name=value;...}`:
///
/// ```ignore
/// nested! { CompressionOptions as "compression_opts" { window_bits, level, strategy } }
/// ```
///
/// Each field has RocksDB's name and a type that is a [`Value`]; the struct has a default. RocksDB's other names for
/// this struct are in `known.rs` as `compression_opts.name`, and so are those that RocksDB 7.8 does not know, which
/// are left out of the text at RocksDB's default. With `or read_old`, a function of `(&mut Struct, &str) -> bool`
/// takes a text without names (`4:-14:0`).
macro_rules! nested {
    ($Name:ident as $option:literal { $($field:ident),* $(,)? } $(or $old:path)?) => {
        impl $crate::options::value::Value for $Name {
            fn read(text: &str) -> Option<Self> {
                let (mut value, mut notes) = (Self::default(), $crate::options::known::Notes::default());
                (value.update(text, &mut notes) && notes.list.is_empty()).then_some(value)
            }

            fn write(&self) -> String {
                let all = [$((stringify!($field), $crate::options::value::Value::write(&self.$field))),*];
                let written = all.into_iter().filter(|(name, value)| {
                    $crate::options::known::newer(&format!(concat!($option, ".{}"), name)).is_none_or(|n| n.0 != value)
                });
                $crate::options::parse::braced(written)
            }

            fn update(&mut self, text: &str, notes: &mut $crate::options::known::Notes) -> bool {
                $(if !text.contains('=') && !text.trim().is_empty() {
                    return $old(self, text);
                })?
                let Ok(pairs) = $crate::options::parse::pairs(text) else { return false };
                pairs.iter().all(|(name, value)| {
                    let value = $crate::options::parse::unescape(value);
                    match name.as_str() {
                        $(stringify!($field) => {
                            $crate::options::value::Value::update(&mut self.$field, &value, notes)
                        })*
                        other => {
                            let section = $crate::options::known::section_of($option);
                            notes.undeclared(section, &format!(concat!($option, ".{}"), other), &value);
                            true
                        }
                    }
                })
            }
        }
    };
}
pub(crate) use nested;

impl Value for bool {
    fn read(text: &str) -> Option<Self> {
        match text {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// RocksDB takes a binary unit after an integer: `64M`.
fn integer(text: &str) -> Option<i128> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (text.get(..at)?, 10),
        (at, 'm' | 'M') => (text.get(..at)?, 20),
        (at, 'g' | 'G') => (text.get(..at)?, 30),
        (at, 't' | 'T') => (text.get(..at)?, 40),
        _ => (text, 0),
    };
    // 64 bits shifted by at most 40 fit.
    let number = digits.parse::<i64>().map(i128::from).or_else(|_| digits.parse::<u64>().map(i128::from)).ok()?;
    Some(number << shift)
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Value for $t {
            fn read(text: &str) -> Option<Self> {
                integer(text).and_then(|n| Self::try_from(n).ok())
            }

            fn write(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
integers!(i32, u32, u64, usize);

impl Value for PathBuf {
    fn read(text: &str) -> Option<Self> {
        Some(Self::from(text))
    }

    fn write(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

impl Value for f64 {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok().filter(|n: &f64| n.is_finite())
    }

    fn write(&self) -> String {
        format!("{self:.6}")
    }
}

/// Values that are one of a list of names.
macro_rules! names {
    ($($t:ident { $($variant:ident = $name:literal),* $(,)? })*) => {$(
        impl Value for $t {
            fn read(text: &str) -> Option<Self> {
                match text {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }

            fn write(&self) -> String {
                match self {
                    $(Self::$variant => $name,)*
                }
                .to_owned()
            }
        }
    )*};
}
names! {
    RecoveryMode {
        TolerateCorruptedTailRecords = "kTolerateCorruptedTailRecords",
        AbsoluteConsistency = "kAbsoluteConsistency",
        PointInTime = "kPointInTimeRecovery",
        SkipAnyCorruptedRecords = "kSkipAnyCorruptedRecords",
    }
    TableKind { BlockBased = "BlockBasedTable", Tph = "TphTable" }
    BlockBasedIndexType { BinarySearch = "kBinarySearch", TwoLevelIndexSearch = "kTwoLevelIndexSearch" }
    DataBlockIndexType { BinarySearch = "kDataBlockBinarySearch", BinaryAndHash = "kDataBlockBinaryAndHash" }
    CompactionStyle {
        Level = "kCompactionStyleLevel",
        Universal = "kCompactionStyleUniversal",
        Fifo = "kCompactionStyleFIFO",
    }
    CompactionPri {
        ByCompensatedSize = "kByCompensatedSize",
        OldestLargestSeqFirst = "kOldestLargestSeqFirst",
        OldestSmallestSeqFirst = "kOldestSmallestSeqFirst",
        MinOverlappingRatio = "kMinOverlappingRatio",
        RoundRobin = "kRoundRobin",
    }
    UniversalCompactionStopStyle {
        Similar = "kCompactionStopStyleSimilarSize",
        Total = "kCompactionStopStyleTotalSize",
    }
    MergeEngine { Auto = "auto", Pread = "pread", Uring = "uring", Kernel = "kernel" }
    KernelDriver { Run = "run", Loop = "loop" }
    LogLevel {
        Debug = "DEBUG_LEVEL",
        Info = "INFO_LEVEL",
        Warn = "WARN_LEVEL",
        Error = "ERROR_LEVEL",
        Fatal = "FATAL_LEVEL",
        Header = "HEADER_LEVEL",
    }
}

impl Value for CompressionType {
    fn read(text: &str) -> Option<Self> {
        match text {
            "kZSTDNotFinalCompression" => Some(Self::Zstd),
            _ => Self::ALL.into_iter().find(|c| c.option_name() == text),
        }
    }

    fn write(&self) -> String {
        self.option_name().to_owned()
    }
}

impl Value for ChecksumType {
    fn read(text: &str) -> Option<Self> {
        (0..=u8::MAX).filter_map(Self::from_u8).find(|c| c.name() == text)
    }

    fn write(&self) -> String {
        self.name().to_owned()
    }
}

impl Value for Option<CompressionType> {
    fn read(text: &str) -> Option<Self> {
        if text == "kDisableCompressionOption" { Some(None) } else { CompressionType::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.as_ref().map_or_else(|| "kDisableCompressionOption".to_owned(), Value::write)
    }
}

/// A list is `a:b:c`, with or without braces.
impl<T: Value> Value for Vec<T> {
    fn read(text: &str) -> Option<Self> {
        parse::list(text).ok()?.iter().map(|element| T::read(element)).collect()
    }

    fn write(&self) -> String {
        self.iter().map(Value::write).collect::<Vec<_>>().join(":")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_units_and_limits() {
        assert_eq!(u64::read("64M"), Some(64 << 20));
        assert_eq!(u64::read("18446744073709551615"), Some(u64::MAX));
        assert_eq!(i32::read("-1"), Some(-1));
        for bad in ["", "x", "-", "M", "1.5", "ü", "99999999999999999999", "18446744073709551615T"] {
            assert_eq!(u64::read(bad), None, "{bad}");
        }
        assert_eq!(usize::read("-1"), None);
        assert_eq!(i32::read("4G"), None);
    }

    #[test]
    fn other_values() {
        assert_eq!((bool::read("true"), bool::read("0"), bool::read("yes")), (Some(true), Some(false), None));
        assert_eq!((f64::read("2.5"), f64::read("nan"), f64::read("")), (Some(2.5), None, None));
        let list = Some(vec![CompressionType::None, CompressionType::Zstd]);
        assert_eq!(Vec::<CompressionType>::read("kNoCompression:kZSTD"), list);
        assert_eq!(Vec::<CompressionType>::read("{kNoCompression:kZSTD}"), list);
        assert_eq!(Vec::<CompressionType>::read("kNoCompression:"), None);
        assert_eq!(Vec::<CompressionType>::read(""), Some(vec![]));
        assert_eq!(Option::<CompressionType>::read("kDisableCompressionOption"), Some(None));
        assert_eq!(Option::<CompressionType>::read("kZSTD"), Some(Some(CompressionType::Zstd)));
        assert_eq!(CompressionType::read("zstd"), None);
    }
}
