//! Databases that other versions of RocksDB wrote, kept in the repository (see `fixtures/README.md`): they open, hold
//! what that RocksDB read from them, and stay right when Rockmill writes and compacts.

mod oracle;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oracle::content::{Entries, open_all, read, same};
use oracle::{copy_dir, from_hex};
use rockmill::{Db, Options};

/// Every case: its name, its database, its contents by column family.
fn cases() -> Vec<(String, PathBuf, BTreeMap<String, Entries>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut out = Vec::new();
    for version in fs::read_dir(&root).expect("the fixtures") {
        let version = version.expect("an entry").path();
        if !version.is_dir() {
            continue;
        }
        for case in fs::read_dir(&version).expect("a version") {
            let case = case.expect("an entry").path();
            let mut contents: BTreeMap<String, Entries> = BTreeMap::new();
            for line in fs::read_to_string(case.join("contents.txt")).expect("contents").lines() {
                let words: Vec<_> = line.split(' ').collect();
                assert_eq!(words.len(), 3, "{}: {line}", case.display());
                let entry = (from_hex(words[1]), from_hex(words[2]));
                contents.entry(words[0].to_owned()).or_default().push(entry);
            }
            let name = case.strip_prefix(&root).expect("below").to_string_lossy().into_owned();
            out.push((name, case.join("db"), contents));
        }
    }
    assert!(out.len() >= 9, "the fixtures were not found");
    out
}

#[test]
fn databases_of_other_versions_open() {
    for (name, fixture, contents) in cases() {
        println!("{name}");
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        copy_dir(&fixture, &path);
        {
            let db = Db::open_cf_for_read_only(&Options::default(), &path, contents.keys(), false)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            for (family, expected) in &contents {
                same(&format!("{name}, {family}, read-only"), expected, &read(&db, family));
            }
        }
        {
            let db = open_all(&Options::default(), &path);
            for (family, expected) in &contents {
                same(&format!("{name}, {family}"), expected, &read(&db, family));
                let cf = db.cf_handle(family).expect("opened");
                db.put_cf(&cf, b"zz/new", b"1").expect("put");
                db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).expect("compaction");
            }
        }
        let db = open_all(&Options::default(), &path);
        for (family, expected) in contents {
            let mut expected = expected;
            expected.push((b"zz/new".to_vec(), b"1".to_vec()));
            same(&format!("{name}, {family}, compacted"), &expected, &read(&db, &family));
        }
    }
}

/// The fixtures are of the newest format: an older one here would leave it untested.
#[test]
fn the_fixtures_are_of_format_version_7() {
    for (name, fixture, _) in cases() {
        for table in oracle::tables(&fixture) {
            let bytes = fs::read(&table).expect("a table");
            // The footer ends in the format_version (4 bytes) and the magic number (8 bytes).
            let at = bytes.len() - 12;
            let version = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            assert_eq!(version, 7, "{name}: {}", table.display());
        }
    }
}
