//! Checkpoints: a consistent state of the database, opened by Rockmill and by RocksDB's `ldb`.

mod oracle;
mod two_families;

use std::path::Path;

use rockmill::{Checkpoint, Db, ErrorKind, IteratorMode, WriteOptions};
use two_families::{beside_writers, busy_options, open, options};

fn contents(db: &Db, family: &str) -> Vec<(String, String)> {
    let cf = db.cf_handle(family).unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    db.iterator_cf(&cf, IteratorMode::Start).map(|e| e.unwrap()).map(|(k, v)| (text(&k), text(&v))).collect()
}

/// The output of `ldb scan`, after `ldb checkconsistency`. If `ldb` is not installed, reports the skip and returns
/// `None`.
fn ldb_contents(test: &str, path: &Path, family: &str) -> Option<Vec<(String, String)>> {
    let ldb = oracle::tool("ldb").map_err(|reason| rockmill_skip::skip(test, &reason)).ok()?;
    oracle::run_tool(&ldb, &[&format!("--db={}", path.display()), "checkconsistency"]).unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    let found = oracle::content::ldb_scan(&ldb, path, family).unwrap();
    Some(found.into_iter().map(|(k, v)| (text(k), text(v))).collect())
}

fn wals(path: &Path) -> usize {
    let names = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.ends_with(".log")).count()
}

#[test]
fn a_checkpoint_is_the_database_at_one_moment_for_rockmill_and_for_ldb() {
    for log_size in [0, u64::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let db = open(&options(), &dir.path().join("db"));
        let other = db.cf_handle("other").unwrap();
        for round in 0..3 {
            for i in 0..200 {
                db.put(format!("k{i:04}"), format!("v{round}")).unwrap();
                db.put_cf(&other, format!("o{i:04}"), format!("w{round}")).unwrap();
            }
            db.delete_range_cf(&db.default_cf(), format!("k{:04}", round * 10), format!("k{:04}", round * 10 + 5))
                .unwrap();
            if round == 0 {
                db.flush().unwrap();
            }
        }
        let before = [contents(&db, "default"), contents(&db, "other")];
        let copy = dir.path().join("copy");
        Checkpoint::new(&db).unwrap().create_checkpoint_with_log_size(&copy, log_size).unwrap();
        assert_eq!(wals(&copy) > 0, log_size == u64::MAX, "only a checkpoint without a flush needs a WAL");
        assert!(!dir.path().join("copy.tmp").exists());
        let id = |name: &str| std::fs::read(dir.path().join(name).join("IDENTITY")).unwrap();
        assert_eq!(id("db"), id("copy"));

        // Neither later writes nor compactions that replace the shared tables change it.
        for i in 0..200 {
            db.put(format!("k{i:04}"), "later").unwrap();
            db.delete_cf(&other, format!("o{i:04}")).unwrap();
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        db.compact_range_cf(&other, None::<&[u8]>, None::<&[u8]>).unwrap();
        drop(db);

        for (family, before) in ["default", "other"].iter().zip(&before) {
            if let Some(found) = ldb_contents("a_checkpoint_is_the_database_at_one_moment", &copy, family) {
                assert_eq!(&found, before, "{family}, log size {log_size}");
            }
        }
        let copy = open(&options(), &copy);
        assert_eq!([contents(&copy, "default"), contents(&copy, "other")], before, "log size {log_size}");
        copy.put("k", "the copy lives").unwrap();
    }
}

/// Each batch writes its number to a key of its own and to a key of the other column family: a checkpoint must contain
/// a prefix of every writer's batches, each complete.
#[test]
fn checkpoints_beside_writers_hold_whole_batches_and_prefixes() {
    let dir = tempfile::tempdir().unwrap();
    let options = busy_options();
    let db = open(&options, &dir.path().join("db"));
    beside_writers(&db, |acknowledged| {
        for round in 0..8u64 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let at_least = acknowledged();
            let path = dir.path().join(format!("copy{round}"));
            let log_size = [0, u64::MAX, 100_000][round as usize % 3];
            Checkpoint::new(&db).unwrap().create_checkpoint_with_log_size(&path, log_size).unwrap();
            if let (0, Some(found)) = (round % 4, ldb_contents("checkpoints_beside_writers", &path, "other")) {
                assert_eq!(found.len(), 3, "{found:?}");
            }
            let copy = open(&options, &path);
            let other = copy.cf_handle("other").unwrap();
            let keys = contents(&copy, "default");
            for (w, at_least) in at_least.iter().enumerate() {
                let last = copy.get_cf(&other, format!("last{w}")).unwrap().unwrap();
                let last: u64 = String::from_utf8(last).unwrap().parse().unwrap();
                assert!(last >= *at_least, "round {round}, writer {w}: {last}, acknowledged before were {at_least}");
                let prefix = format!("w{w}-");
                let mine: Vec<_> = keys.iter().map(|(k, _)| k).filter(|k| k.starts_with(&prefix)).collect();
                assert_eq!(mine.len() as u64, last, "round {round}, writer {w}");
                assert_eq!(*mine[mine.len() - 1], format!("w{w}-{last:08}"));
            }
        }
    });
}

#[test]
fn bad_targets_are_refused_and_leftovers_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = open(&options(), &path);
    db.put("k", "v").unwrap();
    let checkpoint = Checkpoint::new(&db).unwrap();
    for bad in [path.clone(), Path::new("").to_path_buf(), Path::new("/").to_path_buf()] {
        let e = checkpoint.create_checkpoint(&bad).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let e = checkpoint.create_checkpoint(dir.path().join("no/such/parent")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::IOError, "{e}");

    // A process died during a checkpoint, and left the file that marks it: its directory is replaced.
    let temp = dir.path().join("copy.tmp");
    std::fs::create_dir(&temp).unwrap();
    std::fs::write(temp.join("000123.sst"), "half a table").unwrap();
    std::fs::write(temp.join("ROCKMILL_UNFINISHED"), "").unwrap();
    checkpoint.create_checkpoint(dir.path().join("copy")).unwrap();
    assert!(!temp.exists() && !dir.path().join("copy/000123.sst").exists());
    assert!(!dir.path().join("copy/ROCKMILL_UNFINISHED").exists() && !dir.path().join("copy/LOCK").exists());
    drop(db);

    let read_only = Db::open_for_read_only(&options(), &path, false).unwrap();
    assert_eq!(Checkpoint::new(&read_only).unwrap_err().kind(), ErrorKind::NotSupported);
}

/// A directory with a checkpoint's temporary name may belong to something else, for example be a database.
#[test]
fn a_checkpoint_removes_nothing_that_it_did_not_make() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&options(), &dir.path().join("db"));
    db.put("k", "v").unwrap();
    let checkpoint = Checkpoint::new(&db).unwrap();
    let theirs = open(&options(), &dir.path().join("copy.tmp"));
    theirs.put("theirs", "1").unwrap();
    drop(theirs);
    std::fs::create_dir(dir.path().join("copy.1.tmp")).unwrap();
    std::fs::write(dir.path().join("copy.1.tmp/letter.txt"), "not ours").unwrap();
    checkpoint.create_checkpoint(dir.path().join("copy")).unwrap();
    checkpoint.export_column_family(&db.default_cf(), dir.path().join("out")).unwrap();
    assert_eq!(open(&options(), &dir.path().join("copy")).get("k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(open(&options(), &dir.path().join("copy.tmp")).get("theirs").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(dir.path().join("copy.1.tmp/letter.txt").exists());
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["copy", "copy.1.tmp", "copy.tmp", "db", "out"]);
}

#[test]
fn deletions_wait_until_they_are_enabled_as_often_as_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&options(), dir.path());
    let table_count = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.ends_with(".sst")).count()
    };
    for round in 0..3 {
        db.put("a", format!("{round}")).unwrap();
        db.put("z", format!("{round}")).unwrap();
        db.flush().unwrap();
    }
    db.disable_file_deletions().unwrap();
    db.disable_file_deletions().unwrap();
    let (tables_before, wals_before) = (table_count(), wals(dir.path()));
    db.put("m", "another WAL").unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    db.enable_file_deletions().unwrap();
    assert!(table_count() > tables_before && wals(dir.path()) > wals_before);
    db.enable_file_deletions().unwrap();
    // A background thread that has just finished a compaction may still hold the inputs, and deletes them shortly
    // after.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while (table_count(), wals(dir.path())) != (1, 1) && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!((table_count(), wals(dir.path())), (1, 1));
    assert_eq!(db.enable_file_deletions().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn without_a_flush_only_logged_data_is_in_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&options(), &dir.path().join("db"));
    let mut unlogged = WriteOptions::default();
    unlogged.disable_wal(true);
    db.put("logged", "1").unwrap();
    db.put_opt("unlogged", "1", &unlogged).unwrap();
    let checkpoint = Checkpoint::new(&db).unwrap();
    checkpoint.create_checkpoint_with_log_size(dir.path().join("a"), u64::MAX).unwrap();
    checkpoint.create_checkpoint(dir.path().join("b")).unwrap();
    let keys = |name: &str| {
        let copy = open(&options(), &dir.path().join(name));
        contents(&copy, "default").into_iter().map(|(k, _)| k).collect::<Vec<_>>()
    };
    assert_eq!(keys("a"), ["logged"]);
    assert_eq!(keys("b"), ["logged", "unlogged"]);
}
