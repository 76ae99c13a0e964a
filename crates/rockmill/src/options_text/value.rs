//! Values of options as RocksDB's text.

use crate::options::CompressionType;

/// A type of option values.
pub(super) trait Value: Sized {
    /// From text; `None` if it is no such value.
    fn read(text: &str) -> Option<Self>;
}

impl Value for bool {
    fn read(text: &str) -> Option<Self> {
        match text {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
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
        }
    )*};
}
integers!(i32, u64, usize);

impl Value for f64 {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok().filter(|n: &f64| n.is_finite())
    }
}

impl Value for CompressionType {
    fn read(text: &str) -> Option<Self> {
        Some(match text {
            "kNoCompression" => Self::None,
            "kSnappyCompression" => Self::Snappy,
            "kZlibCompression" => Self::Zlib,
            "kBZip2Compression" => Self::Bzip2,
            "kLZ4Compression" => Self::Lz4,
            "kLZ4HCCompression" => Self::Lz4hc,
            "kXpressCompression" => Self::Xpress,
            "kZSTD" => Self::Zstd,
            _ => return None,
        })
    }
}

impl Value for Option<CompressionType> {
    fn read(text: &str) -> Option<Self> {
        if text == "kDisableCompressionOption" { Some(None) } else { CompressionType::read(text).map(Some) }
    }
}

impl Value for Vec<CompressionType> {
    fn read(text: &str) -> Option<Self> {
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        if text.is_empty() { Some(Self::new()) } else { text.split(':').map(CompressionType::read).collect() }
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
