//! Names of the files in a database directory (RocksDB `file/filename.h`).

use crate::edit::MAX_FILE_NUMBER;

/// A file's type, as its name tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileType {
    /// `000012.log`
    Wal(u64),
    /// `000012.sst` (or the older `.ldb`)
    Table(u64),
    /// `000012.blob`
    Blob(u64),
    /// `MANIFEST-000012`
    Manifest(u64),
    /// `CURRENT`
    Current,
    /// `LOCK`
    Lock,
    /// `IDENTITY`
    Identity,
    /// `OPTIONS-000012`
    Options(u64),
    /// `LOG` or `LOG.old.<time>`
    InfoLog,
    /// `000012.dbtmp` and the like
    Temp(u64),
}

/// The type of the file `name` (without a directory), or `None` for a file that is not the database's.
pub fn parse(name: &str) -> Option<FileType> {
    if let Some(rest) = name.strip_prefix("MANIFEST-") {
        return number(rest).map(FileType::Manifest);
    }
    if let Some(rest) = name.strip_prefix("OPTIONS-") {
        return match rest.strip_suffix(".dbtmp") {
            Some(n) => number(n).map(FileType::Temp),
            None => number(rest).map(FileType::Options),
        };
    }
    match name {
        "CURRENT" => return Some(FileType::Current),
        "LOCK" => return Some(FileType::Lock),
        "IDENTITY" => return Some(FileType::Identity),
        "LOG" | "LOG.old" => return Some(FileType::InfoLog),
        _ => {}
    }
    if let Some(time) = name.strip_prefix("LOG.old.") {
        return number(time).map(|_| FileType::InfoLog);
    }
    let (stem, ext) = name.split_once('.')?;
    let n = number(stem)?;
    Some(match ext {
        "log" => FileType::Wal(n),
        "sst" | "ldb" => FileType::Table(n),
        "blob" => FileType::Blob(n),
        "dbtmp" => FileType::Temp(n),
        _ => return None,
    })
}

/// Numbers too large for a file are refused: the next number must be valid too.
fn number(s: &str) -> Option<u64> {
    let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    s.parse().ok().filter(|n| digits && *n <= MAX_FILE_NUMBER)
}

/// `000012.log`
pub fn wal(number: u64) -> String {
    format!("{number:06}.log")
}

/// `000012.sst`
pub fn table(number: u64) -> String {
    format!("{number:06}.sst")
}

/// `MANIFEST-000012`
pub fn manifest(number: u64) -> String {
    format!("MANIFEST-{number:06}")
}

/// `OPTIONS-000012`
pub fn options(number: u64) -> String {
    format!("OPTIONS-{number:06}")
}

/// `000012.dbtmp`
pub fn temp(number: u64) -> String {
    format!("{number:06}.dbtmp")
}

/// `CURRENT`
pub const CURRENT: &str = "CURRENT";
/// `LOCK`
pub const LOCK: &str = "LOCK";
/// `IDENTITY`
pub const IDENTITY: &str = "IDENTITY";

/// Contents of CURRENT for this MANIFEST.
pub fn current_contents(manifest_number: u64) -> String {
    format!("{}\n", manifest(manifest_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for n in [1, 999_999, 1_000_000, MAX_FILE_NUMBER] {
            assert_eq!(parse(&wal(n)), Some(FileType::Wal(n)));
            assert_eq!(parse(&table(n)), Some(FileType::Table(n)));
            assert_eq!(parse(&manifest(n)), Some(FileType::Manifest(n)));
            assert_eq!(parse(&options(n)), Some(FileType::Options(n)));
            assert_eq!(parse(&temp(n)), Some(FileType::Temp(n)));
        }
        assert_eq!(parse("OPTIONS-000007.dbtmp"), Some(FileType::Temp(7)));
        assert_eq!(parse("LOG.old.1700000000"), Some(FileType::InfoLog));
        for alien in
            ["", "x", ".log", "12x.log", "MANIFEST-", "MANIFEST-x", "000001.txt", "99999999999999999999999.sst"]
        {
            assert_eq!(parse(alien), None, "{alien}");
        }
        for n in [MAX_FILE_NUMBER + 1, u64::MAX] {
            assert_eq!((parse(&wal(n)), parse(&manifest(n))), (None, None), "the number after {n} must be one too");
        }
    }
}
