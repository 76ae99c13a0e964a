//! Tables that are dropped as a whole: deleted by key range, or by compactions because of range tombstones.

use rockmill::{BottommostLevelCompaction, CompactOptions, Db, ErrorKind, Options};
use rockmill_io::MemFileSystem;

use super::oracle::content::{entries, read, read_at, same};
use super::oracle::ops::{Contents, Model, Runner, Shape, Workload};
use super::oracle::{self, Peer, Script};
use super::{mem_options, options};

/// Many small tables in each of two levels; the deeper one has all keys.
fn tree(options: &Options, path: &str) -> Db {
    let db = Db::open(options, path).unwrap();
    let down = |levels| {
        for i in (0..1000).step_by(if levels == 2 { 1 } else { 3 }) {
            db.put(format!("key{i:04}"), format!("{levels}{}", "x".repeat(80))).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    };
    down(2);
    down(1);
    db
}

fn small_tables(options: &mut Options) {
    options.set_target_file_size_base(4 << 10);
    options.set_disable_auto_compactions(true);
    options.set_compression_type(rockmill::CompressionType::None);
}

fn files(db: &Db) -> Vec<(i32, String, String)> {
    let text = |k: Option<Vec<u8>>| String::from_utf8(k.unwrap()).unwrap();
    db.live_files().unwrap().into_iter().map(|f| (f.level, text(f.start_key), text(f.end_key))).collect()
}

#[test]
fn files_in_a_range_go_at_once_and_others_stay() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    small_tables(&mut options);
    let db = tree(&options, "/db");
    db.put("key0500", "in L0").unwrap();
    db.flush().unwrap();
    db.put("key0501", "in the memtable").unwrap();
    let before = files(&db);
    assert!(before.len() > 20, "{before:?}");
    let snapshot = db.snapshot();
    let held = db.iterator(rockmill::IteratorMode::Start);
    db.delete_file_in_range("key0100", "key0899").unwrap();
    let inside = |f: &(i32, String, String)| f.0 > 0 && *f.1 >= *"key0100" && *f.2 <= *"key0899";
    let expected: Vec<_> = before.iter().filter(|f| !inside(f)).cloned().collect();
    assert_eq!(files(&db), expected);
    assert_eq!(held.count(), 1000, "an iterator keeps what it began with");
    assert_eq!(db.get("key0500").unwrap().as_deref(), Some(&b"in L0"[..]));
    assert_eq!(db.get("key0501").unwrap().as_deref(), Some(&b"in the memtable"[..]));
    assert_eq!((db.get("key0400").unwrap(), snapshot.get("key0400").unwrap()), (None, None));
    // The end of a range may be exclusive; bounds may be missing; there may be several ranges.
    let cf = db.default_cf();
    let last = files(&db).into_iter().rfind(|f| f.0 > 0).unwrap();
    let to_last: &[rockmill::KeyRange] = &[(Some(last.1.as_bytes()), Some(last.2.as_bytes()))];
    db.delete_files_in_ranges_cf(&cf, to_last, false).unwrap();
    assert!(files(&db).contains(&last));
    db.delete_files_in_ranges_cf(&cf, to_last, true).unwrap();
    assert!(!files(&db).contains(&last));
    let e = db.delete_file_in_range("b", "a").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    drop(snapshot);
    let left = read(&db, "default");
    drop(db);
    let db = Db::open(&options, "/db").unwrap();
    same("after reopening", &left, &read(&db, "default"));
    db.delete_files_in_ranges_cf(&db.default_cf(), &[(None, Some(b"key05")), (Some(b"key05"), None)], true).unwrap();
    assert!(files(&db).iter().all(|f| f.0 == 0), "{:?}", files(&db));
    // Nothing is left of them in the directory.
    let tables = rockmill_io::FileSystem::list_dir(&fs, std::path::Path::new("/db")).unwrap();
    assert_eq!(tables.iter().filter(|n| n.ends_with(".sst")).count(), files(&db).len());
}

/// RocksDB deletes the same tables of the same tree, and can read the rest of ours.
#[test]
fn rocksdb_deletes_the_same_files() {
    let test = "rocksdb_deletes_the_same_files";
    let driver = crate::need!(test, Peer::Library.driver());
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    small_tables(&mut options);
    let ours = dir.path().join("ours");
    let db = tree(&options, ours.to_str().unwrap());
    drop(db);
    let theirs = dir.path().join("theirs");
    oracle::copy_dir(&ours, &theirs);
    let db = Db::open(&options, &ours).unwrap();
    db.delete_file_in_range("key0123", "key0777").unwrap();
    let left = read(&db, "default");
    assert!(left.len() < 900 && !left.is_empty());
    drop(db);
    let mut script = Script::new();
    script.line("cf default disable_auto_compactions=true").open(&theirs);
    script.hex("delete_files", "default", &[b"key0123", b"key0777"]).line("dump default").line("close");
    same("RocksDB's deletion", &left, &driver.answer(test, &script).expect("it can").entries());
    let mut script = Script::new();
    script.open(&ours).line("dump default").line("compact default").line("dump default").line("close");
    same("our deletion", &[left.clone(), left].concat(), &driver.answer(test, &script).expect("it can").entries());
}

#[test]
fn tables_under_a_range_tombstone_are_dropped_unread() {
    let fs = MemFileSystem::new();
    let mut options = mem_options(&fs);
    small_tables(&mut options);
    for (subcompactions, with_snapshot) in [(1, false), (4, false), (1, true)] {
        options.set_max_subcompactions(subcompactions);
        let path = format!("/db{subcompactions}{with_snapshot}");
        let db = tree(&options, &path);
        let before = db.counters();
        let all = read(&db, "default");
        let snapshot = with_snapshot.then(|| db.snapshot());
        let cf = db.default_cf();
        // Two adjacent ranges, and one inside of a table.
        db.delete_range_cf(&cf, "key0100", "key0500").unwrap();
        db.delete_range_cf(&cf, "key0500", "key0900").unwrap();
        db.delete_range_cf(&cf, "key0950", "key0953").unwrap();
        db.put("key0600", "after").unwrap();
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let after = db.counters();
        let (covered, read_bytes) =
            (after.files_covered - before.files_covered, after.compact_read_bytes - before.compact_read_bytes);
        let what = format!("{subcompactions} subcompactions, snapshot {with_snapshot}: {covered} tables");
        assert_eq!(covered > 10, !with_snapshot, "{what}");
        assert_eq!(read_bytes < 60_000, !with_snapshot, "{what}, {read_bytes} bytes read");
        let deleted = |k: &[u8]| {
            (k >= &b"key0100"[..] && k < &b"key0900"[..] && k != b"key0600")
                || (k >= &b"key0950"[..] && k < &b"key0953"[..])
        };
        let mut left: Vec<_> = all.iter().filter(|(k, _)| !deleted(k)).cloned().collect();
        left.iter_mut().filter(|(k, _)| k == b"key0600").for_each(|(_, v)| *v = b"after".to_vec());
        same(&what, &left, &read(&db, "default"));
        if let Some(snapshot) = &snapshot {
            same(&what, &all, &read_at(&db, "default", snapshot));
        }
        drop(snapshot);
        let mut force = CompactOptions::default();
        force.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &force).unwrap();
        same(&what, &left, &read(&db, "default"));
        drop(db);
        same(&what, &left, &read(&Db::open(&options, &path).unwrap(), "default"));
    }
}

/// One database, written and compacted by RocksDB and by Rockmill in turn: few keys, many versions held by snapshots
/// (so that RocksDB splits a key's versions over tables), wide range tombstones, small tables, subcompactions.
#[test]
fn trees_full_of_range_tombstones_change_hands() {
    let test = "trees_full_of_range_tombstones_change_hands";
    let driver = crate::need!(test, Peer::Library.driver());
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed} (set ROCKMILL_SEED to repeat)");
    let shape = Shape {
        ops: 600,
        keys: 150,
        value_len_max: 150,
        delete_ranges: true,
        snapshots: true,
        flush_every: 60,
        compact_every: 400,
        ..Shape::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut options = options();
    options.set_target_file_size_base(2000);
    options.set_max_bytes_for_level_base(6000);
    options.set_level_compaction_dynamic_level_bytes(false);
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_max_subcompactions(3);
    let theirs = "target_file_size_base=2000;max_bytes_for_level_base=6000;level_compaction_dynamic_level_bytes=false;\
                  level0_file_num_compaction_trigger=2";
    let mut model = Model { now: vec![Contents::new()], snapshots: Default::default() };
    for round in 0..4 {
        let workload = Workload::random(seed.wrapping_add(round), shape).without_single_deletes();
        workload.continue_model(&mut model);
        let now = entries(&model.now[0]);
        let what = format!("seed {seed}, round {round}");
        if round % 2 == 0 {
            let mut script = Script::new();
            script.line("db max_subcompactions=3").line(format!("cf default {theirs}")).open(&path);
            workload.script(&mut script);
            for name in model.snapshots.keys() {
                script.line(format!("dump default s{name}"));
            }
            script.line("dump default").line("verify").line("close");
            let held = model.snapshots.values().flat_map(|s| entries(&s[0]));
            let expected: Vec<_> = held.chain(now.clone()).collect();
            same(&format!("{what}, RocksDB"), &expected, &driver.answer(test, &script).expect("it can").entries());
            model.snapshots.clear();
            let db = Db::open(&options, &path).unwrap();
            same(&format!("{what}, as RocksDB left it"), &now, &read(&db, "default"));
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            same(&format!("{what}, compacted by Rockmill"), &now, &read(&db, "default"));
        } else {
            let db = Db::open(&options, &path).unwrap();
            let mut runner = Runner::new(&db, &workload.families);
            runner.run(&workload.ops);
            for (name, snapshot) in &runner.snapshots {
                let held = entries(&model.snapshots[name][0]);
                same(&format!("{what}, snapshot {name}"), &held, &read_at(&db, "default", snapshot));
            }
            same(&what, &now, &read(&db, "default"));
            runner.snapshots.clear();
            model.snapshots.clear();
        }
    }
    let mut script = Script::new();
    script.open(&path).line("dump default").line("compact default").line("dump default").line("verify").line("close");
    let now = entries(&model.now[0]);
    let found = driver.answer(test, &script).expect("it can").entries();
    same(&format!("seed {seed}, at last"), &[now.clone(), now].concat(), &found);
}
