//! Tables made by `SstFileWriter` and ingested: by RocksDB, and what RocksDB wrote by Rockmill.

mod oracle;

use std::path::Path;

use oracle::{Peer, Script, skip};
use rockmill::{Db, ErrorKind, Options, SstFileWriter};

fn options() -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options
}

/// Writes a table of puts.
fn write_sst(options: &Options, path: &Path, entries: &[(&str, &str)]) {
    let mut writer = SstFileWriter::create(options);
    writer.open(path).unwrap();
    for (k, v) in entries {
        writer.put(k, v).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_writer_refuses_what_makes_no_table() {
    let dir = tempfile::tempdir().unwrap();
    let (options, path) = (options(), dir.path().join("t.sst"));
    let mut w = SstFileWriter::create(&options);
    assert_eq!(w.put("a", "1").unwrap_err().kind(), ErrorKind::InvalidArgument, "nothing is open");
    w.open(&path).unwrap();
    let e = w.finish().unwrap_err();
    assert!(e.to_string().contains("without entries") && e.to_string().contains("t.sst"), "{e}");
    w.put("b", "1").unwrap();
    for bad in ["a", "b"] {
        let e = w.merge(bad, "2").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains(&format!("key \"{bad}\" is not after the one before, \"b\"")), "{e}");
    }
    assert!(w.delete_range("z", "y").unwrap_err().to_string().contains("\"z\" to \"y\""));
    w.delete_range("x", "x").unwrap();
    w.delete_range("m", "p").unwrap();
    w.delete_range("c", "n").unwrap();
    w.delete("c").unwrap();
    assert!(w.file_size() > 0);
    let info = w.finish_with_info().unwrap();
    assert_eq!((info.num_entries, info.num_range_del_entries, info.version), (2, 2, 2));
    assert_eq!((&info.smallest_key[..], &info.largest_key[..]), (&b"b"[..], &b"c"[..]));
    assert_eq!((&info.smallest_range_del_key[..], &info.largest_range_del_key[..]), (&b"c"[..], &b"p"[..]));
    assert_eq!(info.file_size, std::fs::metadata(&path).unwrap().len());
    assert_eq!(w.file_size(), info.file_size);
    assert!(w.put("d", "1").is_err(), "finished");
    // A table that is not finished leaves nothing.
    w.open(dir.path().join("unfinished.sst")).unwrap();
    w.put("a", "1").unwrap();
    drop(w);
    assert!(!dir.path().join("unfinished.sst").exists() && path.exists());
}

/// RocksDB takes our tables in, whatever is in them, and says of them what it says of its own.
#[test]
fn rocksdb_ingests_tables_of_rockmill() {
    let test = "rocksdb_ingests_tables_of_rockmill";
    for driver in Peer::all(test) {
        let dir = tempfile::tempdir().unwrap();
        let file = |n: &str| dir.path().join(n);
        let mut options = options();
        options.set_merge_operator_associative("stringappend", |_, _, _| None);
        let mut w = SstFileWriter::create(&options);
        w.open(file("a.sst")).unwrap();
        for i in 0..5000 {
            w.put(format!("key{i:05}"), format!("new{i}")).unwrap();
        }
        w.delete("old1").unwrap();
        w.delete_range("old3", "old5").unwrap();
        w.delete_range("old2", "old4").unwrap();
        w.finish().unwrap();
        w.open(file("b.sst")).unwrap();
        w.put("key00003", "newest").unwrap();
        w.finish().unwrap();
        let mut script = Script::new();
        script.open(&file("db"));
        for i in 0..9 {
            script.put("default", format!("old{i}"), "before");
        }
        script.put("default", "key00007", "before");
        for name in ["a.sst", "b.sst"] {
            script.line(format!("ingest_files default - {}", file(name).display()));
        }
        script.line("dump default").line("compact default").line("dump default").line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> =
            (0..5000).map(|i| (format!("key{i:05}").into_bytes(), format!("new{i}").into_bytes())).collect();
        expected[3].1 = b"newest".to_vec();
        expected.extend([0, 5, 6, 7, 8].map(|i| (format!("old{i}").into_bytes(), b"before".to_vec())));
        let twice = [expected.clone(), expected].concat();
        assert!(answer.entries() == twice, "{:?}", driver.peer);
    }
    let Ok(ldb) = oracle::tool("ldb").map_err(|reason| skip(test, &reason)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (db, table) = (dir.path().join("db"), dir.path().join("t.sst"));
    write_sst(&options(), &table, &[("k1", "v1"), ("k2", "v2")]);
    let at = format!("--db={}", db.display());
    oracle::run_tool(&ldb, &[&at, "--create_if_missing", "ingest_extern_sst", &table.display().to_string()]).unwrap();
    let opened = Db::open_default(&db).unwrap();
    assert_eq!(opened.get("k2").unwrap().as_deref(), Some(&b"v2"[..]));
}
