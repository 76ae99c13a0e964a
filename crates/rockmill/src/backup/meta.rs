//! The text file `meta/<id>` that describes a backup (RocksDB's schema 1; 2.x can be read).
//!
//! ```text
//! [schema_version 2.1]                      absent in schema 1
//! 1700000000                                seconds since the Unix epoch
//! 4711                                      a sequence number
//! [metadata 6D79206E6F7465]                 the caller's bytes, in hexadecimal
//! 2                                         number of files
//! shared_checksum/000012_sABC_4096.sst crc32 3735928559
//! private/1/MANIFEST-000014 crc32 12345     CRC-32C in spite of the name
//! ```

use std::fmt::Write as _;

use crate::error::{Error, Result};

/// Directory of the meta files.
pub(super) const META: &str = "meta";
/// Directory of each backup's own files.
pub(super) const PRIVATE: &str = "private";
/// Directory of tables shared by number.
pub(super) const SHARED: &str = "shared";
/// Directory of tables shared by number and session or checksum.
pub(super) const SHARED_CHECKSUM: &str = "shared_checksum";

/// Readers must not ignore fields whose names begin with this.
const NOT_IGNORABLE: &str = "ni::";
const FOOTER: &str = "// FOOTER";

/// A backup as its meta file describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BackupMeta {
    pub timestamp: u64,
    pub sequence: u64,
    pub app_metadata: Vec<u8>,
    pub files: Vec<MetaFile>,
    /// Files that RocksDB's `exclude_files_callback` excluded.
    pub excluded: Vec<String>,
}

/// A line of a meta file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MetaFile {
    pub path: String,
    pub crc: Option<u32>,
    pub size: Option<u64>,
}

impl BackupMeta {
    /// The file's text, in schema 1, which every version of RocksDB reads.
    pub fn encode(&self) -> String {
        let mut out = format!("{}\n{}\n", self.timestamp, self.sequence);
        if !self.app_metadata.is_empty() {
            out.push_str("metadata ");
            for b in &self.app_metadata {
                let _ = write!(out, "{b:02X}");
            }
            out.push('\n');
        }
        let _ = writeln!(out, "{}", self.files.len());
        for f in &self.files {
            let _ = writeln!(out, "{} crc32 {}", f.path, f.crc.unwrap_or(0));
        }
        out
    }

    /// Parses the text of backup `id`. Errors do not include a path; the caller adds it.
    pub fn decode(id: u32, text: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(text).map_err(|_| bad(0, "is not text"))?;
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(Error::corruption("the last line has no end: the file was cut"));
        }
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l)).peekable();
        let mut schema = 1;
        if let Some(&(_, first)) = lines.peek()
            && let Some(version) = first.strip_prefix("schema_version ")
        {
            if version != "2" && !version.starts_with("2.") {
                return Err(Error::not_supported(format!("schema version {version} (1 and 2.x are read)")));
            }
            schema = 2;
            lines.next();
        }
        let mut meta = Self { timestamp: number(lines.next())?, sequence: number(lines.next())?, ..Self::default() };
        let count: u64 = loop {
            let line = lines.next();
            let Some((at, text)) = line else { return Err(bad(0, "has no number of files")) };
            if text.starts_with(|c: char| c.is_ascii_digit()) {
                break number(line)?;
            }
            let (name, value) = text.split_once(' ').ok_or_else(|| bad(at, "is no field"))?;
            match name {
                "metadata" => meta.app_metadata = unhex(value).ok_or_else(|| bad(at, "is not hexadecimal"))?,
                _ if schema < 2 => return Err(bad(at, "is no number of files")),
                _ => ignorable(at, name)?,
            }
        };
        let mut footer = false;
        for (at, line) in lines {
            if footer {
                let (name, _) = line.split_once(' ').ok_or_else(|| bad(at, "is no field"))?;
                ignorable(at, name)?;
            } else if schema >= 2 && line == FOOTER {
                footer = true;
            } else {
                meta.file_line(id, schema, at, line)?;
            }
        }
        if meta.files.len() as u64 != count {
            return Err(Error::corruption(format!("{} files where {count} are announced", meta.files.len())));
        }
        Ok(meta)
    }

    fn file_line(&mut self, id: u32, schema: u32, at: usize, line: &str) -> Result<()> {
        let mut words = line.split(' ');
        let path = words.next().unwrap_or_default();
        check_path(id, path).map_err(|what| bad(at, what))?;
        let mut file = MetaFile { path: path.to_owned(), crc: None, size: None };
        let mut excluded = false;
        let mut any = false;
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| bad(at, "has a field without a value"))?;
            match name {
                "crc32" => file.crc = Some(value.parse().map_err(|_| bad(at, "has a bad checksum"))?),
                "size" if schema >= 2 => file.size = Some(value.parse().map_err(|_| bad(at, "has a bad size"))?),
                "ni::excluded" if schema >= 2 => match value {
                    "true" => excluded = true,
                    "false" => {}
                    _ => return Err(Error::not_supported(format!("line {at}: value {value:?} of ni::excluded"))),
                },
                _ if schema >= 2 => ignorable(at, name)?,
                _ => return Err(bad(at, "has an unknown field")),
            }
            if schema < 2 && std::mem::replace(&mut any, true) {
                return Err(bad(at, "has more than a checksum"));
            }
        }
        if schema < 2 && file.crc.is_none() {
            return Err(bad(at, "has no checksum"));
        }
        if excluded {
            self.excluded.push(file.path);
        } else {
            self.files.push(file);
        }
        Ok(())
    }
}

/// The shared files that a damaged meta file may refer to: they must not be deleted as garbage.
pub(super) fn mentioned(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let paths = text.lines().filter_map(|l| l.split(' ').next());
    paths.filter(|p| p.starts_with(SHARED)).map(str::to_owned).collect()
}

fn bad(line: usize, what: &str) -> Error {
    match line {
        0 => Error::corruption(what),
        n => Error::corruption(format!("line {n} {what}")),
    }
}

fn number(line: Option<(usize, &str)>) -> Result<u64> {
    let Some((at, text)) = line else { return Err(bad(0, "ends before its numbers do")) };
    text.parse().map_err(|_| bad(at, "is no number"))
}

fn ignorable(at: usize, name: &str) -> Result<()> {
    if name.starts_with(NOT_IGNORABLE) {
        return Err(Error::not_supported(format!("line {at}: field {name}, which must be understood")));
    }
    Ok(())
}

/// Accepts only paths of this backup, two or three names deep: a damaged file must not lead elsewhere.
fn check_path(id: u32, path: &str) -> std::result::Result<(), &'static str> {
    let (dir, name) = path.rsplit_once('/').ok_or("has a path outside of the backup's directories")?;
    let known = dir == SHARED || dir == SHARED_CHECKSUM || dir == format!("{PRIVATE}/{id}");
    if !known {
        return Err("has a path outside of the backup's directories");
    }
    if name.is_empty() || name == "." || name == ".." || name.contains(['\\', '\0']) {
        return Err("has a path without a file's name");
    }
    Ok(())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The name of a backup's file in a database, without the parts that distinguish shared tables.
pub(super) fn database_name(path: &str) -> String {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    if dir == SHARED_CHECKSUM
        && let (Some(from), Some(to)) = (name.find('_'), name.rfind('.'))
        && from < to
    {
        return format!("{}{}", &name[..from], &name[to..]);
    }
    name.to_owned()
}

/// Whether a table's session id can be part of a name: it is not empty, and cannot lead to another directory.
pub(super) fn is_session_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// The size in a shared table's name, if there is one.
pub(super) fn size_in_name(path: &str) -> Option<u64> {
    let (dir, name) = path.rsplit_once('/')?;
    let (stem, _) = name.rsplit_once('.')?;
    let (rest, last) = stem.rsplit_once('_')?;
    // `number_session` has no size, `number_crc_size` and `number_session_size` have.
    if dir != SHARED_CHECKSUM || !rest.contains('_') { None } else { last.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_meta_file_round_trips() {
        let file = |path: &str, crc| MetaFile { path: path.to_owned(), crc: Some(crc), size: None };
        let meta = BackupMeta {
            timestamp: 1_700_000_000,
            sequence: 4711,
            app_metadata: b"my note \x00\xff".to_vec(),
            files: vec![file("shared_checksum/000012_sABC_4096.sst", u32::MAX), file("private/3/CURRENT", 0)],
            excluded: vec![],
        };
        let text = meta.encode();
        assert_eq!(
            text,
            "1700000000\n4711\nmetadata 6D79206E6F74652000FF\n2\n\
             shared_checksum/000012_sABC_4096.sst crc32 4294967295\nprivate/3/CURRENT crc32 0\n"
        );
        assert_eq!(BackupMeta::decode(3, text.as_bytes()).unwrap(), meta);
    }

    #[test]
    fn schema_two_is_read() {
        let text = "schema_version 2.1\n5\n6\nfuture field\n2\nshared/000001.sst crc32 7 size 8 temp kHot\n\
                    private/1/CURRENT\nshared_checksum/000002_sA_1.sst ni::excluded true\n// FOOTER\nfuture 1\n";
        let meta = BackupMeta::decode(1, text.as_bytes()).unwrap();
        assert_eq!((meta.timestamp, meta.sequence, meta.files.len()), (5, 6, 2));
        assert_eq!((meta.files[0].crc, meta.files[0].size), (Some(7), Some(8)));
        assert_eq!(meta.excluded, ["shared_checksum/000002_sA_1.sst"]);
        for newer in ["schema_version 3\n1\n1\n0\n", "schema_version 2\n1\n1\nni::new 1\n0\n"] {
            assert_eq!(BackupMeta::decode(1, newer.as_bytes()).unwrap_err().kind(), ErrorKind::NotSupported);
        }
    }

    #[test]
    fn damage_is_named() {
        let whole = "5\n6\n1\nprivate/1/CURRENT crc32 7\n";
        BackupMeta::decode(1, whole.as_bytes()).unwrap();
        for cut in 0..whole.len() {
            assert!(BackupMeta::decode(1, &whole.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
        for bad in [
            "5\n6\n2\nprivate/1/CURRENT crc32 7\n",
            "5\n6\n1\nprivate/2/CURRENT crc32 7\n",
            "5\n6\n1\nprivate/1/../../x crc32 7\n",
            "5\n6\n1\n/etc/passwd crc32 7\n",
            "5\n6\n1\nprivate/1/.. crc32 7\n",
            "5\n6\n1\nprivate/1/CURRENT\n",
            "5\n6\n1\nprivate/1/CURRENT crc32 x\n",
            "5\n6\n1\nprivate/1/CURRENT crc32 7 size 9\n",
            "5\n6\nmetadata 4\n1\nprivate/1/CURRENT crc32 7\n",
            "x\n6\n1\nprivate/1/CURRENT crc32 7\n",
        ] {
            assert_eq!(BackupMeta::decode(1, bad.as_bytes()).unwrap_err().kind(), ErrorKind::Corruption, "{bad}");
        }
    }

    #[test]
    fn shared_names_lead_back() {
        for (path, name, size) in [
            ("shared_checksum/000012_sABC_4096.sst", "000012.sst", Some(4096)),
            ("shared_checksum/000012_sABC.sst", "000012.sst", None),
            ("shared_checksum/000012_123_77.sst", "000012.sst", Some(77)),
            ("shared/000012.sst", "000012.sst", None),
            ("private/1/MANIFEST-000005", "MANIFEST-000005", None),
        ] {
            assert_eq!((database_name(path).as_str(), size_in_name(path)), (name, size), "{path}");
        }
    }
}
