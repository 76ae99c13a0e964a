//! Merge operators: reads of operands in memtables, tables and below snapshots, the results of flushes and compactions,
//! failing operators, and compatibility with RocksDB.

mod oracle;

use std::path::Path;
use std::sync::Arc;

use oracle::{Peer, Script, run_tool, tables, tool};
use rockmill::{
    BottommostLevelCompaction, CompactOptions, Db, ErrorKind, IteratorMode, MergeOperands, Options, ReadOptions,
    WriteBatch, merge_operator,
};

fn options(operator: &str) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_disable_auto_compactions(true);
    o.set_merge_operator_object(merge_operator::by_name(operator).expect("a built-in operator"));
    o
}

fn compact(db: &Db) {
    let mut o = CompactOptions::default();
    o.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
    db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &o).expect("compaction");
}

fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.map(|v| String::from_utf8(v).expect("text"))
}

fn walk(db: &Db, options: ReadOptions, mode: IteratorMode<'_>) -> Vec<(String, String)> {
    let string = |b: Box<[u8]>| String::from_utf8(b.into_vec()).expect("text");
    db.iterator_opt(mode, options).map(|kv| kv.expect("an entry")).map(|(k, v)| (string(k), string(v))).collect()
}

#[track_caller]
fn same(db: &Db, want: &[(&str, &str)]) {
    for (k, v) in want {
        assert_eq!(text(db.get(k).expect("get")).as_deref(), Some(*v), "get {k}");
    }
    let want: Vec<_> = want.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    assert_eq!(walk(db, ReadOptions::default(), IteratorMode::Start), want, "forward");
    let mut back = walk(db, ReadOptions::default(), IteratorMode::End);
    back.reverse();
    assert_eq!(back, want, "backward");
}

#[test]
fn operands_meet_their_base_wherever_they_lie() {
    let dir = tempfile::tempdir().expect("a folder");
    let o = options("stringappend");
    {
        let db = Db::open(&o, dir.path()).expect("open");
        db.put("a", "0").expect("put");
        db.put("covered", "0").expect("put");
        db.put("gone", "0").expect("put");
        compact(&db);
        db.merge("a", "1").expect("merge");
        db.merge("covered", "1").expect("merge");
        let mut range = WriteBatch::new();
        range.delete_range("covered", "covered\0");
        db.write(&range).expect("delete_range");
        db.merge("covered", "2").expect("merge");
        db.delete("gone").expect("delete");
        db.merge("gone", "1").expect("merge");
        db.merge("none", "1").expect("merge");
        db.flush().expect("flush");
        let mut batch = WriteBatch::new();
        for n in ["2", "3"] {
            for k in ["a", "covered", "gone", "none"] {
                batch.merge(k, n);
            }
        }
        batch.put("plain", "p");
        db.write(&batch).expect("write");
        let want = [("a", "0,1,2,3"), ("covered", "2,2,3"), ("gone", "1,2,3"), ("none", "1,2,3"), ("plain", "p")];
        same(&db, &want);
        db.flush().expect("flush");
        same(&db, &want);
        compact(&db);
        same(&db, &want);
        db.merge("a", "4").expect("merge");
    }
    let db = Db::open(&o, dir.path()).expect("open");
    assert_eq!(text(db.get("a").expect("get")).as_deref(), Some("0,1,2,3,4"));
    let mut iter = db.raw_iterator();
    iter.seek("a");
    assert_eq!(iter.value(), Some(&b"0,1,2,3,4"[..]));
    iter.next();
    assert_eq!(iter.key(), Some(&b"covered"[..]));
    iter.prev();
    assert_eq!(iter.item(), Some((&b"a"[..], &b"0,1,2,3,4"[..])));
    iter.next();
    assert_eq!(iter.key(), Some(&b"covered"[..]));
}

#[test]
fn snapshots_see_their_operands_through_compactions() {
    let dir = tempfile::tempdir().expect("a folder");
    let db = Db::open(&options("stringappend"), dir.path()).expect("open");
    let mut snapshots = Vec::new();
    for n in 0..8 {
        db.merge("k", n.to_string()).expect("merge");
        if n % 3 == 2 {
            snapshots.push((db.snapshot(), text(db.get("k").expect("get"))));
        }
        if n == 4 {
            db.delete("k").expect("delete");
        }
    }
    assert_eq!(text(db.get("k").expect("get")).as_deref(), Some("5,6,7"));
    for round in ["memtable", "flushed", "compacted"] {
        for (s, then) in &snapshots {
            assert_eq!(&text(s.get("k").expect("get")), then, "{round}");
            let mut r = ReadOptions::default();
            r.set_snapshot(s);
            let walked = walk(&db, r, IteratorMode::End);
            assert_eq!(walked.first().map(|kv| kv.1.clone()), *then, "{round}");
        }
        if round == "memtable" { db.flush().expect("flush") } else { compact(&db) }
    }
    assert_eq!(text(db.get("k").expect("get")).as_deref(), Some("5,6,7"));
}

#[test]
fn an_operator_without_partial_merge_keeps_its_operands() {
    let full = |_: &[u8], old: Option<&[u8]>, operands: &MergeOperands<'_>| {
        Some(old.into_iter().chain(operands).collect::<Vec<_>>().concat())
    };
    let dir = tempfile::tempdir().expect("a folder");
    let mut o = options("max");
    o.set_merge_operator("concat", full, |_, _, _| None);
    let db = Db::open(&o, dir.path()).expect("open");
    db.put("k", "0").expect("put");
    compact(&db);
    for n in 1..5 {
        db.merge("k", n.to_string()).expect("merge");
    }
    db.flush().expect("flush");
    let files = db.live_files().expect("files");
    let flushed = files.iter().find(|f| f.level == 0).expect("a flushed table");
    assert_eq!(flushed.largest_seqno - flushed.smallest_seqno, 3, "all four operands are in the table");
    same(&db, &[("k", "01234")]);
    compact(&db);
    same(&db, &[("k", "01234")]);
}

#[test]
fn a_failing_operator_is_named() {
    let refuses = |_: &[u8], _: Option<&[u8]>, _: &MergeOperands<'_>| None;
    let panics = |_: &[u8], _: Option<&[u8]>, operands: &MergeOperands<'_>| -> Option<Vec<u8>> {
        panic!("{} operands are too many", operands.len())
    };
    for (name, why) in [("refuses", "refused to merge 2 operands over a value"), ("panics", "2 operands are too many")]
    {
        let dir = tempfile::tempdir().expect("a folder");
        let mut o = options("max");
        if name == "refuses" {
            o.set_merge_operator_associative(name, refuses);
        } else {
            o.set_merge_operator_associative(name, panics);
        }
        let db = Db::open(&o, dir.path()).expect("open");
        db.put("key-1", "0").expect("put");
        db.merge("key-1", "1").expect("merge");
        db.merge("key-1", "2").expect("merge");
        let walked = db.iterator(IteratorMode::Start).next().expect("an item").map(|_| ());
        let back = db.iterator(IteratorMode::End).next().expect("an item").map(|_| ());
        for e in [db.get("key-1").map(|_| ()), walked, back, db.flush()] {
            let e = e.expect_err("the operator fails");
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            for part in [name, "key-1", why] {
                assert!(e.to_string().contains(part), "{part:?} is not in {e}");
            }
        }
    }
}

#[test]
fn without_an_operator_a_read_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut o = Options::default();
    o.create_if_missing(true);
    let db = Db::open(&o, dir.path()).expect("open");
    db.merge("k", "1").expect("merge");
    let e = db.get("k").expect_err("no operator");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("key k has merge operands"), "{e}");
}

/// Removes its OPTIONS files, which also name the operator.
fn forget_options(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("OPTIONS")) {
            std::fs::remove_file(path).expect("removed");
        }
    }
}

#[track_caller]
fn refused(e: &rockmill::Error, stored: &str, given: &str, file: &str) {
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    for part in [stored, given, "column family \"default\"", file] {
        assert!(e.to_string().contains(part), "{part:?} is not in {e}");
    }
}

fn without_operator() -> Options {
    let mut o = options("max");
    o.cf.merge_operator = None;
    o
}

#[test]
fn operands_of_another_operator_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    {
        let db = Db::open(&options("stringappend"), dir.path()).expect("open");
        db.put("plain", "p").expect("put");
        db.merge("k", "1").expect("merge");
        db.flush().expect("flush");
    }
    let file = tables(dir.path()).pop().expect("a table");
    forget_options(dir.path());
    for e in [
        Db::open(&options("max"), dir.path()).expect_err("another operator"),
        Db::open_for_read_only(&options("max"), dir.path(), false).expect_err("another operator"),
    ] {
        refused(&e, "StringAppendOperator", "MaxOperator", file.to_str().expect("text"));
    }
    {
        let db = Db::open(&without_operator(), dir.path()).expect("open without an operator");
        assert_eq!(text(db.get("plain").expect("get")).as_deref(), Some("p"));
        db.get("k").expect_err("needs the operator");
    }
    // After a merge with their own operator, the values no longer depend on it.
    compact(&Db::open(&options("stringappend"), dir.path()).expect("open"));
    forget_options(dir.path());
    let db = Db::open(&options("max"), dir.path()).expect("open");
    assert_eq!(text(db.get("k").expect("get")).as_deref(), Some("1"));
}

#[test]
fn an_open_does_not_look_at_every_table() {
    let dir = tempfile::tempdir().expect("a folder");
    {
        let db = Db::open(&options("stringappend"), dir.path()).expect("open");
        db.merge("k", "1").expect("merge");
        db.flush().expect("flush");
    }
    let oldest = tables(dir.path()).pop().expect("a table");
    {
        let db = Db::open(&without_operator(), dir.path()).expect("open");
        for i in 0..70 {
            db.put(format!("plain {i}"), "p").expect("put");
            db.flush().expect("flush");
        }
    }
    forget_options(dir.path());
    let db = Db::open(&options("max"), dir.path()).expect("the newest tables have no operands");
    assert_eq!(text(db.get("plain 5").expect("get")).as_deref(), Some("p"));
    let e = db.get("k").expect_err("the table is refused");
    refused(&e, "StringAppendOperator", "MaxOperator", oldest.to_str().expect("text"));
}

#[test]
fn rocksdbs_tables_name_their_operator() {
    let test = "rocksdbs_tables_name_their_operator";
    let driver = need!(test, Peer::Library.driver());
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("db");
    let mut script = scripted("stringappend", &path);
    script.put("default", "plain", "p").hex("merge", "default", &[b"k", b"1"]).line("flush default");
    driver.answer(test, &script).expect("writes");
    forget_options(&path);
    let e = Db::open(&options("uint64add"), &path).expect_err("another operator");
    refused(&e, "StringAppendOperator", "UInt64AddOperator", ".sst");
    let db = Db::open(&options("stringappend"), &path).expect("open");
    assert_eq!(text(db.get("k").expect("get")).as_deref(), Some("1"));
}

/// Operands in every place, written the same way by both sides.
fn scripted(operator: &str, path: &Path) -> Script {
    let mut script = Script::new();
    script.line(format!("cf default merge_operator={operator};disable_auto_compactions=true")).open(path);
    script
}

const NUMBERS: [[u8; 8]; 4] = [1u64.to_le_bytes(), 20u64.to_le_bytes(), 300u64.to_le_bytes(), [0xff; 8]];

#[test]
fn rocksdb_and_rockmill_merge_alike() {
    let test = "rocksdb_and_rockmill_merge_alike";
    let driver = need!(test, Peer::Library.driver());
    for operator in ["uint64add", "stringappend", "max"] {
        let home = tempfile::tempdir().expect("a folder");
        let (theirs, ours) = (home.path().join("theirs"), home.path().join("ours"));
        // Each side writes the same history.
        let mut script = scripted(operator, &theirs);
        let o = options(operator);
        {
            let db = Db::open(&o, &ours).expect("open");
            for (round, second) in NUMBERS.iter().enumerate() {
                for (i, n) in NUMBERS.iter().enumerate() {
                    let key = [b'a' + i as u8];
                    if round == 0 && i == 1 {
                        script.put("default", key, n);
                        db.put(key, n).expect("put");
                    } else if round == 2 && i == 2 {
                        script.hex("del", "default", &[&key]);
                        db.delete(key).expect("delete");
                    } else {
                        script.hex("merge", "default", &[&key, n]);
                        script.hex("merge", "default", &[&key, second]);
                        db.merge(key, n).expect("merge");
                        db.merge(key, second).expect("merge");
                    }
                }
                match round {
                    0 => {
                        script.line("compact default");
                        compact(&db);
                    }
                    3 => {}
                    _ => {
                        script.line("flush default");
                        db.flush().expect("flush");
                    }
                }
            }
        }
        script.line("dump default");
        let expected = driver.answer(test, &script).expect("merges").entries();
        assert_eq!(expected.len(), NUMBERS.len());
        // Rockmill reads both, before and after it compacts them.
        for path in [&theirs, &ours] {
            let db = Db::open(&o, path).expect("open");
            for compacted in [false, true] {
                let got: Vec<_> = db
                    .iterator(IteratorMode::Start)
                    .map(|kv| kv.expect("an entry"))
                    .map(|(k, v)| (k.into_vec(), v.into_vec()))
                    .collect();
                assert_eq!(got, expected, "{operator}, compacted: {compacted}");
                for (k, v) in &expected {
                    assert_eq!(db.get(k).expect("get").as_ref(), Some(v), "{operator}");
                }
                db.merge("a", NUMBERS[0]).expect("merge");
                db.delete("a").expect("delete");
                if !compacted {
                    let (k, v) = &expected[0];
                    db.put(k, v).expect("put");
                    compact(&db);
                }
            }
        }
        // RocksDB reads Rockmill's flushed and compacted data, and compacts it again.
        for path in [&theirs, &ours] {
            let mut script = scripted(operator, path);
            script.line("dump default").line("rdump default").line("compact default").line("dump default");
            let found = driver.answer(test, &script).expect("merges").entries();
            let rest: Vec<_> = expected[1..].to_vec();
            let back: Vec<_> = rest.iter().rev().cloned().collect();
            assert_eq!(found, [rest.clone(), back, rest].concat(), "{operator}");
        }
    }
}

#[test]
fn tables_record_the_operators_name() {
    let test = "tables_record_the_operators_name";
    let sst_dump = need!(test, tool("sst_dump"));
    let dir = tempfile::tempdir().expect("a folder");
    {
        let mut o = options("max");
        o.set_merge_operator_object(Arc::new(merge_operator::StringAppendOperator::new("|")));
        let db = Db::open(&o, dir.path()).expect("open");
        db.merge("k", "1").expect("merge");
        db.merge("k", "2").expect("merge");
        db.flush().expect("flush");
    }
    let file = tables(dir.path()).pop().expect("a table");
    let arg = format!("--file={}", file.display());
    let shown = run_tool(&sst_dump, &[&arg, "--show_properties", "--command=scan"]).expect("sst_dump");
    assert!(shown.contains("merge operator name: StringAppendOperator"), "{shown}");
    assert!(shown.contains("=> 1|2"), "the flush merges the operands of one stripe: {shown}");
}
