//! The databases that the repository keeps (`tests/fixtures`): tar archives compressed with ZSTD, one for each version
//! that wrote them.
//!
//! Each folder of an archive is a case: `case.txt` describes it, `contents.txt` has what its writer read from it, and
//! `db/` or `backup/` has the files. Next to each archive is a text index, with a digest of every `contents.txt`.
#![allow(dead_code)] // each crate that includes this uses a different part of it

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Keys and values in order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// One database, or directory of backups.
#[derive(Debug, Clone, Default)]
pub struct Case {
    /// The archive's name without its ending: `rocksdb-7.10.2`.
    pub archive: String,
    /// The case's folder.
    pub name: String,
    /// What it is there for.
    pub about: String,
    /// The files, by their path in the database's directory.
    pub files: BTreeMap<String, Vec<u8>>,
    /// They are a directory of backups.
    pub is_backup: bool,
    /// Names of merge operators by column family.
    pub operators: BTreeMap<String, String>,
    /// Lengths of prefixes by column family.
    pub prefixes: BTreeMap<String, usize>,
    /// Column families in the reverse order of bytes.
    pub reverse: Vec<String>,
    /// Column families with TPH tables of several files.
    pub tph: Vec<String>,
    /// Values have a time to live (`open_with_ttl`).
    pub ttl: bool,
    /// A word of the error message, if Rockmill refuses it.
    pub refused: Option<String>,
    /// The contents of each column family, as the writer read them.
    pub contents: BTreeMap<String, Entries>,
    /// The text of that.
    pub contents_text: String,
}

impl Case {
    /// For messages.
    pub fn title(&self) -> String {
        format!("{}/{}", self.archive, self.name)
    }

    /// The version of RocksDB that wrote it; `None` for Rockmill.
    pub fn rocksdb(&self) -> Option<(u32, u32)> {
        let mut parts = self.archive.strip_prefix("rocksdb-")?.split(['.', '-']).map(|n| n.parse().ok());
        Some((parts.next()??, parts.next()??))
    }

    fn note(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let pair = || {
            let pair = rest.split_once(' ').unwrap_or_else(|| panic!("{}: {line}", self.title()));
            (pair.0.to_owned(), pair.1.to_owned())
        };
        match what {
            "about" => self.about = rest.to_owned(),
            "operator" => {
                let (family, operator) = pair();
                self.operators.insert(family, operator);
            }
            "prefix" => {
                let (family, length) = pair();
                self.prefixes.insert(family, length.parse().expect("a length"));
            }
            "order" => self.reverse.push(pair().0),
            "tph" => self.tph.push(rest.to_owned()),
            "ttl" => self.ttl = true,
            "refused" => self.refused = Some(rest.to_owned()),
            _ => panic!("{}: {line}", self.title()),
        }
    }

    fn read_contents(&mut self, text: &str) {
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let &[family, key, value] = words.as_slice() else { panic!("{}: {line}", self.title()) };
            self.contents.entry(family.to_owned()).or_default().push((hex(key), hex(value)));
        }
        self.contents_text = text.to_owned();
    }
}

/// "-" is empty.
fn hex(text: &str) -> Vec<u8> {
    if text == "-" {
        return vec![];
    }
    let digits = text.as_bytes().chunks(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("ASCII"), 16).expect("hex")).collect()
}

/// Where the archives are.
pub fn home() -> PathBuf {
    // Both this crate and those that include this file are folders of `crates`.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rockmill/tests/fixtures")
}

/// The archives' names without their ending, sorted.
pub fn archives() -> Vec<String> {
    let entries = fs::read_dir(home()).expect("the fixtures").map(|e| e.expect("an entry").file_name());
    let names = entries.map(|n| n.into_string().expect("a name"));
    let mut all: Vec<_> = names.filter_map(|n| n.strip_suffix(".tar.zst").map(str::to_owned)).collect();
    all.sort();
    assert!(!all.is_empty(), "no fixtures in {}", home().display());
    all
}

/// The cases of an archive.
pub fn cases(archive: &str) -> Vec<Case> {
    let path = home().join(format!("{archive}.tar.zst"));
    let packed = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let tar = zstd::decode_all(&*packed).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut all: BTreeMap<String, Case> = BTreeMap::new();
    for (name, bytes) in untar(&tar) {
        let (folder, rest) = name.split_once('/').unwrap_or_else(|| panic!("{archive}: {name} is in no folder"));
        let case = all.entry(folder.to_owned()).or_insert_with(|| Case {
            archive: archive.to_owned(),
            name: folder.to_owned(),
            ..Case::default()
        });
        let text = || String::from_utf8(bytes.clone()).expect("UTF-8");
        match rest.split_once('/') {
            None if rest == "case.txt" => text().lines().for_each(|line| case.note(line)),
            None if rest == "contents.txt" => case.read_contents(&text()),
            Some((kind @ ("db" | "backup"), file)) => {
                case.is_backup = kind == "backup";
                case.files.insert(file.to_owned(), bytes);
            }
            _ => panic!("{archive}: {name} is no part of a case"),
        }
    }
    all.into_values().collect()
}

/// Names and bytes of the files in a tar archive (ustar, plain files).
fn untar(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8(bytes[..end].to_vec()).expect("names in UTF-8")
    };
    let mut out = Vec::new();
    let mut at = 0;
    while tar.len() >= at + 512 && tar[at] != 0 {
        let header = &tar[at..at + 512];
        let size = usize::from_str_radix(text(&header[124..136]).trim(), 8).expect("a size");
        let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if matches!(header[156], b'0' | 0) {
            out.push((name, tar[at + 512..at + 512 + size].to_vec()));
        }
        at += 512 + size.next_multiple_of(512);
    }
    out
}

/// The digest that indexes have.
pub fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
