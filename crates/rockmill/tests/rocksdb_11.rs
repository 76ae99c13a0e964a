//! Databases that RocksDB 11.8.1 made, newer than any that a machine has, kept in `rocksdb_11/fixtures`: what Rockmill
//! reads is read in every way, written and compacted; what it does not read is refused by name.
//!
//! `make_rocksdb_11.cc` beside them made them and says what each holds. With `ROCKMILL_ROCKSDB_FLAGS` naming a RocksDB
//! of that version (see `oracle`), what Rockmill left is checked by it, too.

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oracle::content::{Entries, open_all, read, same, try_open_all, try_read};
use oracle::{Peer, Script, copy_dir, from_hex};
use rockmill::table::{TableOpenOptions, TableReader};
use rockmill::version::recover_manifest;
use rockmill::{BottommostLevelCompaction, ColumnFamily, CompactOptions, Db, ErrorKind, IteratorMode, Options};
use rockmill_format::InternalKeyComparator;
use rockmill_format::comparator::BytewiseComparator;
use rockmill_format::filename;
use rockmill_io::{FileSystem as _, PosixFileSystem};

/// The family in which keys that begin with [`OPERAND`] have merge operands.
const MERGES: &str = "merges";
const OPERAND: &[u8] = b"operand";

/// Contents by column family.
type Expected = BTreeMap<String, Entries>;

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rocksdb_11/fixtures")
}

/// A copy to work on, without the list of what is expected.
fn copy(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(name);
    copy_dir(&home().join(name), &path);
    let _ = fs::remove_file(path.join("expected.txt"));
    (dir, path)
}

fn expected(name: &str) -> Expected {
    let path = home().join(name).join("expected.txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut all = Expected::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let &[families, key, value] = words.as_slice() else { panic!("{}: {line}", path.display()) };
        for family in families.split(',') {
            all.entry(family.to_owned()).or_default().push((from_hex(key), from_hex(value)));
        }
    }
    assert!(!all.is_empty(), "{} is empty", path.display());
    all
}

fn family(db: &Db, name: &str) -> ColumnFamily {
    db.cf_handle(name).unwrap_or_else(|| panic!("no column family {name}"))
}

/// Compares all contents with what is expected, in every way of reading.
fn compare(db: &Db, expected: &Expected, what: &str) {
    for (name, entries) in expected {
        let what = format!("{what}, {name}");
        if name != MERGES {
            same(&what, entries, &read(db, name));
            let cf = family(db, name);
            for (key, value) in entries {
                let found = db.get_cf(&cf, key).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(found.as_ref(), Some(value), "{what}: get of {}", key.escape_ascii());
            }
            continue;
        }
        // Without a merge operator, keys without operands are read, and the others refused.
        let (merged, plain): (Entries, Entries) = entries.iter().cloned().partition(|(k, _)| k.starts_with(OPERAND));
        assert!(!merged.is_empty(), "{what}: no key with operands");
        let cf = family(db, name);
        let found: Vec<_> = db.iterator_cf(&cf, IteratorMode::Start).collect();
        let found: Entries =
            found.into_iter().map_while(|e| e.ok().map(|(k, v)| (k.into_vec(), v.into_vec()))).collect();
        same(&what, &plain, &found);
        for (key, _) in &merged {
            let e = db.get_cf(&cf, key).expect_err("a merge operator is missing");
            assert!(e.message().contains("merge operator"), "{what}: {e}");
        }
    }
}

/// Every table of a database, open.
fn open_tables(dir: &Path) -> Vec<Arc<TableReader>> {
    let fs = PosixFileSystem::default();
    let order = InternalKeyComparator::new(Arc::new(BytewiseComparator));
    let state = recover_manifest(&fs, dir, &Arc::default(), &mut |_, _| Ok((order.clone(), 7)))
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let files = state.column_families.iter().flat_map(|cf| cf.version.levels.iter().flatten());
    let open = |number, largest_seqno| {
        let path = dir.join(filename::table(number));
        let file = fs.open_random(&path, false).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let largest_seqno = Some(largest_seqno);
        TableReader::open(
            file,
            TableOpenOptions {
                path,
                cmp: order.clone(),
                cache: None,
                largest_seqno,
                prefix_extractor: None,
                statistics: None,
            },
        )
        .unwrap_or_else(|e| panic!("{e}"))
    };
    let all: Vec<_> = files.map(|f| open(f.number(), f.entry.largest_seqno)).collect();
    assert!(!all.is_empty(), "{}: no table", dir.display());
    all
}

/// Verifies every table, alone.
fn verify_tables(dir: &Path, what: &str) {
    for table in open_tables(dir) {
        table.verify().unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Every file with its bytes.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(dir).expect("a folder").map(|e| e.expect("a file").path());
    files.map(|p| (p.clone(), fs::read(&p).expect("a readable file"))).collect()
}

/// Writes by Rockmill, and the same to what is expected.
fn write(db: &Db, expected: &mut Expected) {
    for (name, entries) in expected {
        let cf = family(db, name);
        let mut model: BTreeMap<_, _> = std::mem::take(entries).into_iter().collect();
        let old: Vec<Vec<u8>> = model.keys().filter(|k| !k.starts_with(OPERAND)).step_by(4).cloned().collect();
        for (i, key) in old.into_iter().enumerate() {
            if i % 3 == 0 {
                db.delete_cf(&cf, &key).expect("delete");
                model.remove(&key);
            } else {
                db.put_cf(&cf, &key, b"written by Rockmill").expect("put");
                model.insert(key, b"written by Rockmill".to_vec());
            }
        }
        for n in 0..50 {
            let key = format!("key-new{n:03}").into_bytes();
            db.put_cf(&cf, &key, &key).expect("put");
            model.insert(key.clone(), key);
        }
        db.delete_range_cf(&cf, b"key-new010", b"key-new020").expect("delete_range");
        model.retain(|k, _| !(b"key-new010".as_slice()..b"key-new020".as_slice()).contains(&k.as_slice()));
        *entries = model.into_iter().collect();
    }
}

/// What the newer RocksDB makes of the directory, where there is one.
fn judge(name: &str, path: &Path, expected: &Expected) {
    let Ok(driver) = Peer::Other.driver() else { return };
    let mut script = Script::new();
    for family in expected.keys() {
        script.line(format!("cf {family} {}", if family == MERGES { "merge_operator=stringappend" } else { "" }));
    }
    // It writes to what it opens.
    let judged = path.with_extension("judged");
    copy_dir(path, &judged);
    for (family, entries) in expected {
        let mut script = script.clone();
        script.open(&judged).line("verify").line(format!("dump {family}"));
        let answer = driver.answer(name, &script).expect("the newer RocksDB has everything");
        same(&format!("{name}, {family}, RocksDB's view"), entries, &answer.entries());
    }
}

/// One database, read, written and compacted.
fn check(name: &str) {
    let mut expected = expected(name);
    let (_dir, path) = copy(name);
    verify_tables(&path, name);
    let families: Vec<String> = expected.keys().cloned().collect();
    let listed: BTreeSet<String> = Db::list_cf(&Options::default(), &path).expect("list_cf").into_iter().collect();
    assert_eq!(listed, families.iter().cloned().collect(), "{name}: column families");
    let before = snapshot(&path);
    {
        let db = Db::open_cf_for_read_only(&Options::default(), &path, &families, false)
            .unwrap_or_else(|e| panic!("{name}, read-only: {e}"));
        compare(&db, &expected, &format!("{name}, read-only"));
    }
    assert!(before == snapshot(&path), "{name}: reading changed a file");
    {
        let db = open_all(&Options::default(), &path);
        compare(&db, &expected, &format!("{name}, as it was"));
        write(&db, &mut expected);
        compare(&db, &expected, &format!("{name}, written"));
    }
    {
        let db = open_all(&Options::default(), &path);
        compare(&db, &expected, &format!("{name}, written and reopened"));
        let options = CompactOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactOptions::default()
        };
        for family_name in expected.keys() {
            let cf = family(&db, family_name);
            db.compact_range_cf_opt(&cf, None::<&[u8]>, None::<&[u8]>, &options)
                .unwrap_or_else(|e| panic!("{name}: compact {family_name}: {e}"));
        }
        compare(&db, &expected, &format!("{name}, compacted"));
    }
    let db = open_all(&Options::default(), &path);
    compare(&db, &expected, &format!("{name}, compacted and reopened"));
    drop(db);
    verify_tables(&path, &format!("{name}, compacted"));
    judge(name, &path, &expected);
}

#[test]
fn every_fixture_has_a_test() {
    let entries = fs::read_dir(home()).expect("fixtures").map(|e| e.expect("a folder"));
    let folders = entries.filter(|e| e.file_type().expect("a type").is_dir());
    let found: BTreeSet<String> = folders.map(|e| e.file_name().into_string().expect("a name")).collect();
    let tested = READ.iter().copied().chain(REFUSED.iter().map(|r| r.0)).map(str::to_owned).collect();
    assert_eq!(found, tested);
}

const READ: &[&str] = &["defaults", "separated", "indexes", "compressions-6", "compressions-7", "logs"];

/// RocksDB 11's defaults: format_version 7, several versions of keys, data in the log, merge operands.
#[test]
fn defaults() {
    check("defaults");
}

/// Data blocks with keys apart from values, with and without hash index, restart points and older formats.
#[test]
fn separated_keys_and_values() {
    check("separated");
}

/// Partitioned indexes and filters, Ribbon, first keys, index blocks marked uniform, padded blocks, a trie beside the
/// index.
#[test]
fn indexes_and_filters() {
    check("indexes");
}

#[test]
fn compressions_in_format_version_6() {
    check("compressions-6");
}

#[test]
fn compressions_in_format_version_7() {
    check("compressions-7");
}

/// Logs that verify each other, as a killed process left them; an ingested table; a dropped column family.
#[test]
fn logs_of_a_killed_process() {
    check("logs");
}

/// The fixtures really have what they are there for.
#[test]
fn tables_use_the_new_formats() {
    let mut found = BTreeSet::new();
    for name in READ {
        for table in open_tables(&home().join(name)) {
            let p = table.properties();
            found.extend(p.other.keys().map(String::clone));
            found.extend(table.blocks().into_iter().map(|b| b.kind.to_string()));
            if p.separate_key_value_in_data_block > 0 {
                found.insert("keys apart from values".to_owned());
            }
            found.insert(format!("format_version {}", table.footer().format_version));
            if p.num_uniform_blocks > 0 {
                found.insert("uniform index blocks".to_owned());
            }
        }
    }
    for wanted in [
        "format_version 6",
        "format_version 7",
        "uniform index blocks",
        "keys apart from values",
        "rocksdb.seqno.time.map",
        "rocksdb.udi.is.primary.index",
        "compression dictionary",
        "filter partition",
        "index partition",
    ] {
        assert!(found.contains(wanted), "no table with {wanted} among {found:#?}");
    }
}

/// Database, where it is refused, a file that the message names, words that it has.
const REFUSED: &[(&str, &str, &str)] = &[
    ("blob-files", "MANIFEST-", "blob files"),
    ("compression-manager", "000009.sst", "OtherManager"),
    ("embedded-blobs", ".sst", "blob"),
    ("log-compression", "000004.log", "wal_compression"),
    ("plain-table", "000009.sst", "plain table"),
    ("prepared-transaction", "000004.log", "TransactionDB"),
    ("timed-put-log", "000004.log", "TimedPut"),
    ("timed-put-table", "000009.sst", "TimedPut"),
    ("timestamps", "MANIFEST-", "user-defined timestamps"),
    ("timestamps-in-memory-log", "MANIFEST-", "user-defined timestamps"),
    ("timestamps-in-memory-table", "MANIFEST-", "user-defined timestamps"),
    ("wide-columns-log", "000004.log", "wide columns"),
    ("wide-columns-table", "000009.sst", "wide columns"),
];

/// Opens, reads all and compacts; the errors, each with where it came up.
fn refusals(path: &Path) -> Vec<(&'static str, rockmill::Error)> {
    let families = match Db::list_cf(&Options::default(), path) {
        Ok(families) => families,
        Err(e) => return vec![("list_cf", e)],
    };
    let mut errors = Vec::new();
    match Db::open_cf_for_read_only(&Options::default(), path, &families, false) {
        Err(e) => errors.push(("read-only open", e)),
        Ok(db) => {
            let cf = family(&db, "default");
            errors.extend(try_read(&db, "default").err().map(|e| ("read-only read", e)));
            for key in [b"wide".as_slice(), b"timed", b"key000001"] {
                errors.extend(db.get_cf(&cf, key).err().map(|e| ("get", e)));
            }
        }
    }
    match try_open_all(&Options::default(), path) {
        Err(e) => errors.push(("open", e)),
        Ok(db) => {
            errors.extend(try_read(&db, "default").err().map(|e| ("read", e)));
            let cf = family(&db, "default");
            let backwards = db.iterator_cf(&cf, IteratorMode::End).find_map(Result::err);
            errors.extend(backwards.map(|e| ("read backwards", e)));
            let options = CompactOptions {
                bottommost_level_compaction: BottommostLevelCompaction::Force,
                ..CompactOptions::default()
            };
            let compacted = db.compact_range_cf_opt(&cf, None::<&[u8]>, None::<&[u8]>, &options);
            errors.extend(compacted.err().map(|e| ("compact", e)));
        }
    }
    errors
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let mut bad = Vec::new();
    for &(name, file, words) in REFUSED {
        let (_dir, path) = copy(name);
        let before = snapshot(&path);
        let errors = refusals(&path);
        let for_writing = errors.iter().any(|(at, _)| ["list_cf", "open", "read"].contains(at));
        if errors.len() < 2 && errors.iter().all(|(at, _)| *at != "list_cf") || !for_writing {
            bad.push(format!("{name}: not refused everywhere: {errors:?}"));
        }
        for (at, e) in errors {
            println!("{name}: {at}: {e}");
            let message = e.message();
            if e.kind() != ErrorKind::NotSupported || !message.contains(file) || !message.contains(words) {
                bad.push(format!("{name}: {at}: no {words:?} of {file:?} in: {e}"));
            }
        }
        // The data is still there, for a RocksDB that knows the feature.
        let after = snapshot(&path);
        for (p, bytes) in before.iter().filter(|(p, _)| p.extension().is_some_and(|e| e != "log")) {
            if after.get(p) != Some(bytes) {
                bad.push(format!("{name}: {} changed", p.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
