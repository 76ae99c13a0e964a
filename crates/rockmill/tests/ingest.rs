//! Tables made by `SstFileWriter` and ingested, also by RocksDB; and RocksDB's tables ingested by Rockmill.

#[path = "ingest/crash.rs"]
mod crash;
#[path = "ingest/export.rs"]
mod export;
mod oracle;
#[path = "ingest/ranges.rs"]
mod ranges;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use oracle::content::{read, read_at, same};
use oracle::{Peer, Script};
use rockmill::{
    BottommostLevelCompaction, CompactOptions, Db, ErrorKind, IngestExternalFileArg, IngestExternalFileOptions,
    MergeOperands, MergeOperator, Options, SstFileWriter,
};
use rockmill_io::{FileSystem, MemFileSystem, OpKind};
use rockmill_skip::skip;

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
    // An unfinished table leaves no file.
    w.open(dir.path().join("unfinished.sst")).unwrap();
    w.put("a", "1").unwrap();
    drop(w);
    assert!(!dir.path().join("unfinished.sst").exists() && path.exists());
}

/// RocksDB ingests our tables with all kinds of contents, and reports the same about them as about its own.
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

/// (level, smallest, largest sequence number) of every table, by level and key.
fn places(db: &Db) -> Vec<(i32, u64, u64)> {
    db.live_files().unwrap().into_iter().map(|f| (f.level, f.smallest_seqno, f.largest_seqno)).collect()
}

fn get(db: &Db, key: &str) -> Option<String> {
    db.get(key).unwrap().map(|v| String::from_utf8(v).unwrap())
}

fn mem_options(fs: &MemFileSystem) -> Options {
    let mut options = options();
    options.set_file_system(Arc::new(fs.clone()));
    options
}

#[test]
fn a_file_goes_as_deep_as_it_can() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, "/db").unwrap();
    let file = |n: usize| PathBuf::from(format!("/t{n}.sst"));
    // The database is empty: the table goes to the last level, without a sequence number.
    write_sst(&options, &file(1), &[("b", "1"), ("y", "1")]);
    db.ingest_external_file(vec![file(1)]).unwrap();
    assert_eq!((places(&db), db.latest_sequence_number()), (vec![(6, 0, 0)], 1));
    // Into a gap between the keys of that file: no common key, but not the same level.
    write_sst(&options, &file(2), &[("d", "2"), ("f", "2")]);
    db.ingest_external_file(vec![file(2)]).unwrap();
    assert_eq!(places(&db), [(0, 0, 0), (6, 0, 0)]);
    // Over a key of it.
    write_sst(&options, &file(3), &[("f", "3"), ("g", "3")]);
    db.ingest_external_file(vec![file(3)]).unwrap();
    assert_eq!(places(&db), [(0, 2, 2), (0, 0, 0), (6, 0, 0)]);
    assert_eq!(db.latest_sequence_number(), 2);
    // Overlaps the memtable, which is flushed first.
    db.put("g", "memtable").unwrap();
    write_sst(&options, &file(4), &[("g", "4"), ("h", "4")]);
    let mut no_flush = IngestExternalFileOptions::default();
    no_flush.set_allow_blocking_flush(false);
    let e = db.ingest_external_file_opts(&no_flush, vec![file(4)]).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("requires flush"), "{e}");
    let mut no_seqno = IngestExternalFileOptions::default();
    no_seqno.set_allow_global_seqno(false);
    let e = db.ingest_external_file_opts(&no_seqno, vec![file(4)]).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("required, but disabled"), "{e}");
    db.ingest_external_file(vec![file(4)]).unwrap();
    assert_eq!((get(&db, "f").as_deref(), get(&db, "g").as_deref()), (Some("3"), Some("4")));
    // A snapshot must not see a new file, even without overlap, unless the options allow it.
    let snapshot = db.snapshot();
    write_sst(&options, &file(5), &[("za", "5")]);
    write_sst(&options, &file(6), &[("zb", "6")]);
    db.ingest_external_file(vec![file(5)]).unwrap();
    let mut inconsistent = IngestExternalFileOptions::default();
    inconsistent.set_snapshot_consistency(false);
    db.ingest_external_file_opts(&inconsistent, vec![file(6)]).unwrap();
    assert_eq!((snapshot.get("za").unwrap(), snapshot.get("zb").unwrap()), (None, Some(b"6".to_vec())));
    assert_eq!((get(&db, "za").as_deref(), get(&db, "zb").as_deref()), (Some("5"), Some("6")));
    assert!(places(&db).contains(&(6, 5, 5)) && places(&db).contains(&(6, 0, 0)), "{:?}", places(&db));
    drop(snapshot);
    // An option requires that a file goes to the last level.
    let mut bottom = IngestExternalFileOptions::default();
    bottom.set_fail_if_not_bottommost_level(true);
    write_sst(&options, &file(7), &[("c", "7")]);
    let e = db.ingest_external_file_opts(&bottom, vec![file(7)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TryAgain, "{e}");
    let before = read(&db, "default");
    drop(db);
    let db = Db::open(&options, "/db").unwrap();
    same("after reopening", &before, &read(&db, "default"));
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    same("after a compaction", &before, &read(&db, "default"));
    // Failed ingestions left no files.
    let tables = fs.list_dir(Path::new("/db")).unwrap().iter().filter(|n| n.ends_with(".sst")).count();
    assert_eq!(tables, db.live_files().unwrap().len());
}

#[test]
fn files_of_one_call_may_overlap_and_later_ones_win() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, "/db").unwrap();
    let files: Vec<_> = (0..5).map(|n| PathBuf::from(format!("/t{n}.sst"))).collect();
    write_sst(&options, &files[0], &[("a", "0"), ("c", "0")]);
    write_sst(&options, &files[1], &[("d", "1"), ("e", "1")]);
    write_sst(&options, &files[2], &[("c", "2"), ("d", "2")]);
    write_sst(&options, &files[3], &[("x", "3")]);
    let mut w = SstFileWriter::create(&options);
    w.open(&files[4]).unwrap();
    w.delete_range("a", "d").unwrap();
    w.put("b", "4").unwrap();
    w.finish().unwrap();
    let mut no_seqno = IngestExternalFileOptions::default();
    no_seqno.set_allow_global_seqno(false);
    assert!(db.ingest_external_file_opts(&no_seqno, files.clone()).is_err());
    db.ingest_external_file(files.clone()).unwrap();
    let expect = |what: &str| {
        let found: Vec<_> = ["a", "b", "c", "d", "e", "x"].map(|k| get(&db, k)).into_iter().collect();
        let wanted = [None, Some("4"), None, Some("2"), Some("1"), Some("3")].map(|v| v.map(str::to_owned));
        assert_eq!(found, wanted, "{what}");
    };
    expect("ingested");
    assert_eq!(db.latest_sequence_number(), 5);
    // The last files are above the earlier ones; a file of one range tombstone alone is marked for compaction.
    assert_eq!(places(&db), [(0, 5, 5), (0, 4, 4), (0, 3, 3), (6, 1, 1), (6, 2, 2)]);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    expect("compacted");
    // A tombstone that ends where another file begins does not overlap it.
    let neighbours = ["/n1.sst", "/n2.sst"];
    w.open(neighbours[0]).unwrap();
    w.delete_range("m", "p").unwrap();
    w.finish().unwrap();
    write_sst(&options, Path::new(neighbours[1]), &[("p", "new")]);
    db.ingest_external_file_opts(&no_seqno, neighbours.to_vec()).unwrap();
    assert_eq!(get(&db, "p").as_deref(), Some("new"));
}

#[test]
fn what_cannot_be_ingested_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n);
    let options = options();
    let db = Db::open_cf(&options, file("db"), ["default", "other"]).unwrap();
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    let good = file("good.sst");
    write_sst(&options, &good, &[("a", "1"), ("b", "1")]);
    let refused = |path: &Path, kind: ErrorKind, words: &str| {
        // Together with a good one, which must not become visible.
        let e = db.ingest_external_file(vec![good.clone(), path.to_owned()]).unwrap_err();
        assert!(e.kind() == kind && e.to_string().contains(words), "{words}: {e}");
        assert_eq!(get(&db, "a"), None);
        assert_eq!(oracle::tables(&file("db")).len(), 1);
    };
    refused(&file("absent.sst"), ErrorKind::IOError, "absent.sst");
    std::fs::write(file("text.sst"), "not a table at all, whatever its name may say".repeat(9)).unwrap();
    refused(&file("text.sst"), ErrorKind::Corruption, "text.sst");
    let live = oracle::tables(&file("db")).remove(0);
    refused(&live, ErrorKind::InvalidArgument, "own files");
    std::fs::copy(&live, file("flushed.sst")).unwrap();
    refused(&file("flushed.sst"), ErrorKind::Corruption, "only tables of SstFileWriter");
    let mut reversed = options.clone();
    reversed.set_comparator_object(Arc::new(rockmill_format::comparator::ReverseBytewiseComparator));
    write_sst(&reversed, &file("reversed.sst"), &[("z", "1"), ("y", "1")]);
    refused(&file("reversed.sst"), ErrorKind::InvalidArgument, "comparator");
    let other = db.cf_handle("other").unwrap();
    let mut w = SstFileWriter::create_for_cf(&options, &other);
    w.open(file("other.sst")).unwrap();
    w.put("o", "1").unwrap();
    w.finish().unwrap();
    refused(&file("other.sst"), ErrorKind::InvalidArgument, "\"other\"");
    db.ingest_external_file_cf(&other, vec![file("other.sst")]).unwrap();
    assert_eq!(db.get_cf(&other, "o").unwrap().as_deref(), Some(&b"1"[..]));
    let empty: Vec<PathBuf> = vec![];
    assert_eq!(db.ingest_external_file(empty).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // Damage in a block is found if checksums are verified.
    let mut bytes = std::fs::read(&good).unwrap();
    bytes[3] ^= 1;
    std::fs::write(file("damaged.sst"), bytes).unwrap();
    let mut verify = IngestExternalFileOptions::default();
    verify.set_verify_checksums_before_ingest(true);
    let e = db.ingest_external_file_opts(&verify, vec![file("damaged.sst")]).unwrap_err();
    assert!(e.kind() == ErrorKind::Corruption && e.to_string().contains("damaged.sst"), "{e}");
    for set in [IngestExternalFileOptions::set_write_global_seqno, IngestExternalFileOptions::set_ingest_behind] {
        let mut bad = IngestExternalFileOptions::default();
        set(&mut bad, true);
        assert!(db.ingest_external_file_opts(&bad, vec![&good]).is_err());
    }
    // Two column families: with one bad file, neither gets any file.
    let arg = |cf: &rockmill::ColumnFamily, path: PathBuf| {
        IngestExternalFileArg::new(cf.clone(), vec![path], IngestExternalFileOptions::default())
    };
    let bad = [arg(&db.default_cf(), good.clone()), arg(&other, file("text.sst"))];
    assert!(db.ingest_external_files(&bad).is_err());
    assert_eq!(get(&db, "a"), None);
    db.ingest_external_files(&[arg(&db.default_cf(), good.clone()), arg(&other, good.clone())]).unwrap();
    assert_eq!((get(&db, "a").as_deref(), db.get_cf(&other, "b").unwrap()), (Some("1"), Some(b"1".to_vec())));
    db.drop_cf("other").unwrap();
    let e = db.ingest_external_file_cf(&other, vec![&good]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ColumnFamilyDropped);
}

#[test]
fn moved_files_are_linked_and_lose_their_old_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n);
    let options = options();
    let db = Db::open(&options, file("db")).unwrap();
    let inode = |p: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(p).unwrap());
    write_sst(&options, &file("linked.sst"), &[("a", "1")]);
    let mut link = IngestExternalFileOptions::default();
    link.set_link_files(true);
    db.ingest_external_file_opts(&link, vec![file("linked.sst")]).unwrap();
    assert_eq!(inode(&file("linked.sst")), inode(&oracle::tables(&file("db"))[0]));
    // A writer that reuses the name does not change the database's file.
    write_sst(&options, &file("linked.sst"), &[("b", "2")]);
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    let mut moves = IngestExternalFileOptions::default();
    moves.set_move_files(true);
    db.ingest_external_file_opts(&moves, vec![file("linked.sst")]).unwrap();
    assert!(!file("linked.sst").exists());
    assert_eq!(get(&db, "b").as_deref(), Some("2"));

    // If links are impossible: a copy, or an error.
    let fs = MemFileSystem::new();
    let options = mem_options(&fs);
    let db = Db::open(&options, "/db").unwrap();
    write_sst(&options, Path::new("/far.sst"), &[("a", "1")]);
    let far = |op: &rockmill_io::Op<'_>| {
        (op.kind == OpKind::HardLink).then(|| std::io::Error::from_raw_os_error(18)) // EXDEV
    };
    fs.set_fault(Box::new(far));
    moves.set_failed_move_fall_back_to_copy(false);
    let e = db.ingest_external_file_opts(&moves, vec!["/far.sst"]).unwrap_err();
    assert!(e.to_string().contains("failed_move_fall_back_to_copy"), "{e}");
    assert!(fs.exists(Path::new("/far.sst")).unwrap());
    moves.set_failed_move_fall_back_to_copy(true);
    db.ingest_external_file_opts(&moves, vec!["/far.sst"]).unwrap();
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    assert!(!fs.exists(Path::new("/far.sst")).unwrap());
}

/// Rockmill ingests tables of RocksDB; RocksDB then reads the database.
#[test]
fn tables_of_rocksdb_are_ingested() {
    let test = "tables_of_rocksdb_are_ingested";
    for driver in Peer::all(test) {
        let dir = tempfile::tempdir().unwrap();
        let (path, table) = (dir.path().join("db"), dir.path().join("t.sst"));
        let hex = |s: &str| oracle::to_hex(s.as_bytes());
        let mut line = format!("write_sst default {}", table.display());
        for i in 0..500 {
            line += &format!(" p {} {}", hex(&format!("key{i:04}")), hex(&format!("new{i}")));
        }
        line += &format!(" d {}", hex("old1"));
        if driver.peer != Peer::Wheel {
            line += &format!(" r {} {}", hex("old3"), hex("old5"));
        }
        let mut script = Script::new();
        script.line(line);
        if driver.answer(test, &script).is_none() {
            continue;
        }
        let db = Db::open(&options(), &path).unwrap();
        for i in 0..9 {
            db.put(format!("old{i}"), "before").unwrap();
        }
        db.put("key0007", "before").unwrap();
        db.ingest_external_file(vec![&table]).unwrap();
        assert_eq!((get(&db, "old1"), get(&db, "old2").as_deref()), (None, Some("before")));
        assert_eq!(get(&db, "old4").is_none(), driver.peer != Peer::Wheel);
        assert_eq!(get(&db, "key0007").as_deref(), Some("new7"));
        db.put("key0009", "newest").unwrap();
        let ours = read(&db, "default");
        drop(db);
        let mut script = Script::new();
        script.open(&path).line("dump default").line("compact default").line("dump default").line("close");
        let answer = driver.answer(test, &script).expect("it could open databases before");
        same("RocksDB's view", &[ours.clone(), ours].concat(), &answer.entries());
    }
    let Ok(ldb) = oracle::tool("ldb").map_err(|reason| skip(test, &reason)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, table) = (format!("--db={}", dir.path().join("from").display()), dir.path().join("t.sst"));
    oracle::run_tool(&ldb, &[&from, "--create_if_missing", "put", "k", "of ldb"]).unwrap();
    // `write_extern_sst` reads its entries from standard input.
    let mut child = std::process::Command::new(&ldb)
        .args([&from, "--create_if_missing", "write_extern_sst", &table.display().to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"k1 ==> v1\nk2 ==> v2\n").unwrap();
    assert!(child.wait().unwrap().success());
    let db = Db::open(&options(), dir.path().join("db")).unwrap();
    db.ingest_external_file(vec![&table]).unwrap();
    assert_eq!((get(&db, "k1").as_deref(), get(&db, "k2").as_deref()), (Some("v1"), Some("v2")));
}

/// Writes, tables and deletions of ranges in any order, with compactions and snapshots, against a map.
#[test]
fn random_ingestions_agree_with_a_map() {
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed} (set ROCKMILL_SEED to repeat)");
    for round in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed ^ round);
        let fs = MemFileSystem::new();
        let mut options = mem_options(&fs);
        options.set_write_buffer_size(16 << 10);
        options.set_target_file_size_base(4 << 10);
        options.set_max_bytes_for_level_base(16 << 10);
        options.set_level_zero_file_num_compaction_trigger(3);
        options.set_max_background_jobs(4);
        options.set_max_subcompactions(1 + (round % 2) as u32 * 3);
        options.set_level_compaction_dynamic_level_bytes(round % 3 != 0);
        let mut db = Db::open(&options, "/db").unwrap();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let key = |rng: &mut fastrand::Rng| format!("key{:04}", rng.u32(..1500)).into_bytes();
        let mut number = 0u32;
        for _ in 0..6 {
            {
                let mut snapshots = Vec::new();
                for _ in 0..30 {
                    number += 1;
                    let value = format!("value{number}").into_bytes();
                    match rng.u8(..10) {
                        0..3 => {
                            for _ in 0..rng.usize(1..120) {
                                let k = key(&mut rng);
                                let v = [value.clone(), vec![b'.'; rng.usize(..200)]].concat();
                                db.put(&k, &v).unwrap();
                                model.insert(k, v);
                            }
                        }
                        3 => {
                            let (a, b) = (key(&mut rng), key(&mut rng));
                            let (a, b) = if a < b { (a, b) } else { (b, a) };
                            db.delete_range_cf(&db.default_cf(), &a, &b).unwrap();
                            model.retain(|k, _| *k < a || *k >= b);
                        }
                        4 if snapshots.len() < 3 => {
                            let now: Vec<_> = model.clone().into_iter().collect();
                            snapshots.push((db.snapshot(), now));
                        }
                        5 => drop(snapshots.pop()),
                        _ => ingest(&db, &options, &mut model, &mut rng, number),
                    }
                }
                for (snapshot, expected) in &snapshots {
                    same(&format!("seed {seed}, snapshot"), expected, &read_at(&db, "default", snapshot));
                }
            }
            let expected: Vec<_> = model.clone().into_iter().collect();
            same(&format!("seed {seed}, round {round}"), &expected, &read(&db, "default"));
            if rng.bool() {
                db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
                same(&format!("seed {seed}, round {round}, compacted"), &expected, &read(&db, "default"));
            }
            drop(db);
            db = Db::open(&options, "/db").unwrap();
            same(&format!("seed {seed}, round {round}, reopened"), &expected, &read(&db, "default"));
        }
    }
}

/// Ingests one to three tables of random entries, also into the model.
fn ingest(db: &Db, options: &Options, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, rng: &mut fastrand::Rng, number: u32) {
    let mut files = Vec::new();
    for part in 0..rng.usize(1..4) {
        let path = format!("/t{number}-{part}.sst");
        let mut w = SstFileWriter::create(options);
        w.open(&path).unwrap();
        let from = rng.u32(..1500);
        if rng.u8(..3) == 0 {
            for _ in 0..rng.usize(1..4) {
                let (a, b) = (from + rng.u32(..50), from + 50 + rng.u32(..50));
                let (a, b) = (format!("key{a:04}").into_bytes(), format!("key{b:04}").into_bytes());
                w.delete_range(&a, &b).unwrap();
                model.retain(|k, _| *k < a || *k >= b);
            }
        }
        let mut at = from;
        for _ in 0..rng.usize(1..60) {
            at += rng.u32(1..4);
            let (k, v) = (format!("key{at:04}").into_bytes(), format!("ingested{number}-{part}").into_bytes());
            if rng.u8(..5) == 0 {
                w.delete(&k).unwrap();
                model.remove(&k);
            } else {
                w.put(&k, &v).unwrap();
                model.insert(k, v);
            }
        }
        w.finish().unwrap();
        files.push(path);
    }
    let mut how = IngestExternalFileOptions::default();
    how.set_move_files(rng.bool());
    db.ingest_external_file_opts(&how, files).unwrap();
}

/// Ingestions while others write, read at snapshots and compact: each becomes visible completely at one moment, and
/// never in an earlier snapshot.
#[test]
fn ingestions_appear_at_once_to_concurrent_readers() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    options.set_write_buffer_size(32 << 10);
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_target_file_size_base(8 << 10);
    let db = Db::open_cf(&options, "/db", ["default", "other"]).unwrap();
    let other = db.cf_handle("other").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                db.put(format!("w{:03}", i % 500), vec![b'x'; 100]).unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    let once = [snapshot.get("k1").unwrap(), snapshot.get("k9").unwrap()];
                    let over = snapshot.get_cf(&other, "k5").unwrap();
                    assert_eq!(once[0], once[1]);
                    assert_eq!(once[0], over, "the column families show different ingestions");
                    std::thread::yield_now();
                    assert_eq!(snapshot.get("k1").unwrap(), once[0], "the snapshot changed");
                    let rows = db.multi_get(["k1", "k9"]);
                    assert_eq!(rows[0], rows[1]);
                }
            });
        }
        for n in 0..60 {
            let value = format!("{n:04}");
            let mut args = Vec::new();
            for cf in [&db.default_cf(), &other] {
                let path = PathBuf::from(format!("/{}-{n}.sst", cf.name()));
                write_sst(&options, &path, &[("k1", &value), ("k5", &value), ("k9", &value)]);
                let how = IngestExternalFileOptions::default();
                args.push(IngestExternalFileArg::new(cf.clone(), vec![path], how));
            }
            db.ingest_external_files(&args).unwrap();
            assert_eq!(get(&db, "k5"), Some(value));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn files_ingested_behind_give_way_to_everything_else() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    options.set_allow_ingest_behind(true);
    options.set_num_levels(2);
    assert_eq!(Db::open(&options, "/db").unwrap().get_options().cf.num_levels, 3);
    options.set_num_levels(4);
    options.set_level_zero_file_num_compaction_trigger(2);
    for dynamic in [false, true] {
        options.set_level_compaction_dynamic_level_bytes(dynamic);
        let db = Db::open(&options, format!("/db{dynamic}")).unwrap();
        let mut behind = IngestExternalFileOptions::default();
        behind.set_ingest_behind(true);
        let snapshot = db.snapshot();
        for round in 0..5 {
            db.put("put", format!("{round}")).unwrap();
            db.delete("deleted").unwrap();
            db.delete_range_cf(&db.default_cf(), "r1", "r3").unwrap();
            db.flush().unwrap();
        }
        let mut force = CompactOptions::default();
        force.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &force).unwrap();
        assert!(places(&db).iter().all(|&(level, smallest, _)| level < 3 && smallest > 0), "{:?}", places(&db));
        write_sst(
            &options,
            Path::new("/t.sst"),
            &[("deleted", "b"), ("new", "b"), ("put", "b"), ("r2", "b"), ("r3", "b")],
        );
        db.ingest_external_file_opts(&behind, vec!["/t.sst"]).unwrap();
        let expect = |what: &str| {
            let found: Vec<_> = ["deleted", "new", "put", "r2", "r3"].map(|k| get(&db, k)).into_iter().collect();
            let wanted = [None, Some("b"), Some("4"), None, Some("b")].map(|v| v.map(str::to_owned));
            assert_eq!(found, wanted, "{what}, dynamic {dynamic}");
        };
        expect("ingested");
        assert!(places(&db).contains(&(3, 0, 0)));
        let e = db.ingest_external_file_opts(&behind, vec!["/t.sst"]).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("last level"), "{e}");
        drop(snapshot);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &force).unwrap();
        expect("compacted");
        assert_eq!(places(&db).iter().filter(|p| p.0 == 3).count(), 1, "the last level is left alone");
        // An ordinary ingestion goes over all.
        write_sst(&options, Path::new("/u.sst"), &[("deleted", "u"), ("new", "u")]);
        db.ingest_external_file(vec!["/u.sst"]).unwrap();
        assert_eq!((get(&db, "deleted").as_deref(), get(&db, "new").as_deref()), (Some("u"), Some("u")));
    }
    // Without the option, sequence numbers became 0 on the way down, so that files ingested behind could not be
    // distinguished.
    let dir = "/late";
    options.set_allow_ingest_behind(false);
    options.set_level_compaction_dynamic_level_bytes(false);
    let db = Db::open(&options, dir).unwrap();
    for value in ["0", "1"] {
        db.put("a", value).unwrap();
        db.flush().unwrap();
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    drop(db);
    options.set_allow_ingest_behind(true);
    let db = Db::open(&options, dir).unwrap();
    let mut behind = IngestExternalFileOptions::default();
    behind.set_ingest_behind(true);
    write_sst(&options, Path::new("/t.sst"), &[("a", "behind")]);
    let e = db.ingest_external_file_opts(&behind, vec!["/t.sst"]).unwrap_err();
    assert!(e.to_string().contains("without allow_ingest_behind"), "{e}");
}

/// Merges as one called `theirs` does.
struct AroundTheirs;

impl MergeOperator for AroundTheirs {
    fn name(&self) -> &str {
        "around"
    }

    fn wraps(&self) -> Option<&str> {
        Some("theirs")
    }

    fn full_merge(&self, _: &[u8], existing: Option<&[u8]>, operands: &MergeOperands<'_>) -> Option<Vec<u8>> {
        Some([existing.unwrap_or_default(), &operands.iter().flatten().copied().collect::<Vec<_>>()].concat())
    }
}

#[test]
fn operands_of_another_merge_operator_are_refused() {
    let fs = MemFileSystem::new();
    let named = |name: &str| {
        let mut options = mem_options(&fs);
        options.set_merge_operator_associative(name, |_, old, new| {
            Some([old.unwrap_or_default(), &new.iter().flatten().copied().collect::<Vec<_>>()].concat())
        });
        options
    };
    let (ours, theirs) = (named("ours"), named("theirs"));
    let table = |options: &Options, path: &str| {
        let mut w = SstFileWriter::create(options);
        w.open(path).unwrap();
        w.merge("k", "2").unwrap();
        w.finish().unwrap();
    };
    let db = Db::open(&ours, "/db").unwrap();
    db.put("k", "1").unwrap();
    table(&theirs, "/theirs.sst");
    let e = db.ingest_external_file(vec!["/theirs.sst"]).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("\"theirs\""), "{e}");
    table(&ours, "/ours.sst");
    db.ingest_external_file(vec!["/ours.sst"]).unwrap();
    assert_eq!(get(&db, "k").as_deref(), Some("12"));

    let mut around = mem_options(&fs);
    around.set_merge_operator_object(Arc::new(AroundTheirs));
    let db = Db::open(&around, "/around").unwrap();
    let e = db.ingest_external_file(vec!["/ours.sst"]).unwrap_err();
    assert!(e.to_string().contains("\"ours\""), "{e}");
    db.ingest_external_file(vec!["/theirs.sst"]).unwrap();
    assert_eq!(get(&db, "k").as_deref(), Some("2"));
}

/// In a database with a time to live, values end with the time of their writing. The last bytes of values without times
/// in an external table would be mistaken for times, and lost.
#[test]
fn a_database_with_a_time_to_live_takes_values_with_times_only() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    options.set_merge_operator_associative("join", |_, old, operands| {
        let mut all = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|o| all.extend_from_slice(o));
        Some(all)
    });
    let db = Db::open_with_ttl(&options, "/db", Duration::from_secs(1000)).unwrap();
    let plain = Db::open(&options, "/plain").unwrap();
    let write = |mut writer: SstFileWriter<'_>, name: &str, time: &[u8]| {
        let path = format!("/{name}.sst");
        writer.open(&path).unwrap();
        writer.put("a", [&b"long enough for a time"[..], time].concat()).unwrap();
        writer.merge("b", [&b"1"[..], time].concat()).unwrap();
        writer.delete("c").unwrap();
        writer.finish().unwrap();
        path
    };
    let expect = |db: &Db| {
        assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"long enough for a time"[..]));
        assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"01"[..]));
        assert_eq!(db.get("c").unwrap(), None);
    };
    let refused = |db: &Db, path: &str, how: &IngestExternalFileOptions, what: &str| {
        let e = db.ingest_external_file_opts(how, vec![path]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.to_string().contains(what) && e.to_string().contains(path), "{e}");
    };
    let usual = IngestExternalFileOptions::default();
    let without = write(SstFileWriter::create(&options), "without", b"");
    refused(&db, &without, &usual, "create_with_ttl");
    for (name, writer) in [
        ("with", SstFileWriter::create_with_ttl(&options)),
        ("family", SstFileWriter::create_for_cf(&options, &db.default_cf())),
    ] {
        for key in ["b", "c"] {
            db.put(key, "0").unwrap();
        }
        let path = write(writer, name, b"");
        refused(&plain, &path, &usual, "no time to live");
        db.ingest_external_file(vec![path]).unwrap();
        expect(&db);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        expect(&db);
    }
    // RocksDB's own writer does not know times: a caller that appends them sets an option.
    let mut says_so = IngestExternalFileOptions::default();
    says_so.set_values_with_times(true);
    let mut without_operator = options.clone();
    without_operator.cf.merge_operator = None;
    // Not old times: a compaction could drop expired values at any moment.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let time = u32::try_from(now).unwrap().to_le_bytes();
    // With an operator, the table names that operator, not the one that wraps it.
    for (name, options) in [("appended", &options), ("nameless", &without_operator)] {
        let path = write(SstFileWriter::create(options), name, &time);
        refused(&plain, &path, &says_so, "no time to live");
        refused(&db, &path, &usual, "values_with_times");
        db.put("b", "0").unwrap();
        db.ingest_external_file_opts(&says_so, vec![path]).unwrap();
        expect(&db);
    }
    drop(db);
    let db = Db::open_with_ttl(&options, "/db", Duration::from_secs(1000)).unwrap();
    expect(&db);
    // Tables of a database without a time to live have values without times.
    plain.merge("b", "longer than a time").unwrap();
    plain.flush().unwrap();
    drop(plain);
    let e = Db::open_with_ttl(&options, "/plain", Duration::from_secs(1000)).err().unwrap();
    assert!(e.to_string().contains("TtlMergeOperator"), "{e}");
    // A table without values cannot lack times.
    let mut writer = SstFileWriter::create(&options);
    writer.open("/deletions.sst").unwrap();
    writer.delete_range("a", "b").unwrap();
    writer.finish().unwrap();
    db.ingest_external_file(vec!["/deletions.sst"]).unwrap();
    assert_eq!(db.get("a").unwrap(), None);
}
