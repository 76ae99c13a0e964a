//! The owner of a WAL directory, and copies of databases with one.

#[path = "wal/support.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;

use rockmill::{Checkpoint, Db, Options};
use rockmill_io::{FileSystem, MemFileSystem};
use support::{FAMILIES, get, names, open_two, options, path, synced};

/// A new database whose WALs are in a separate directory.
fn with_wals_apart() -> (MemFileSystem, Options, Db) {
    let fs = MemFileSystem::new();
    let mut o = options(&fs);
    o.set_wal_dir("/wals");
    let db = open_two(&o);
    (fs, o, db)
}

/// Copies a directory's files as RocksDB would: without the file that names the WALs' owner.
fn copy(fs: &MemFileSystem, from: &str, to: &str) {
    let (from, to) = (Path::new(from), Path::new(to));
    fs.create_dir(to, true).expect("a directory");
    for name in fs.list_dir(from).expect("a list") {
        if !matches!(&*name, "LOCK" | "WAL_OWNER") {
            let bytes = fs.read_to_vec(&from.join(&name)).expect("a file");
            fs.write_all(&to.join(&name), &bytes).expect("a copy");
        }
    }
}

/// The options of a copy may name the original's WAL directory: opening the copy with it would replay the original's
/// WALs into the copy and then delete them.
#[test]
fn a_wal_directory_belongs_to_one_database() {
    let (fs, o, db) = with_wals_apart();
    db.put("flushed", "1").expect("a write");
    db.flush_all().expect("a flush");
    db.put_opt("k", "synced", &synced()).expect("a write");
    copy(&fs, "/db", "/copy");
    let refused = |what: &str, done: rockmill::Result<()>| {
        let e = done.err().unwrap_or_else(|| panic!("{what}: done"));
        assert!(e.to_string().contains("/wals"), "{what}: {e}");
    };
    let all_refused = |open: bool| {
        refused("open", Db::open_cf(&o, "/copy", FAMILIES).map(drop));
        if !open {
            refused("read", Db::open_cf_for_read_only(&o, "/copy", FAMILIES, false).map(drop));
        }
        refused("repair", Db::repair(&o, "/copy").map(drop));
        refused("destroy", Db::destroy(&o, "/copy"));
        let mut new = o.clone();
        new.create_missing_column_families(true);
        refused("create", Db::open_cf(&new, "/new", FAMILIES).map(drop));
    };
    all_refused(true);
    drop(db);
    let before = names(&fs, "/wals", ".log");
    all_refused(false);
    assert_eq!(names(&fs, "/wals", ".log"), before);
    let mut of_another = options(&fs);
    of_another.set_wal_dir("/db");
    refused_in_db(&of_another);
    let mut elsewhere = options(&fs);
    elsewhere.set_wal_dir("/others");
    drop(Db::open_cf(&elsewhere, "/copy", FAMILIES).expect("with a directory of its own"));
    // A moved database still has its WALs, also after a restart.
    fs.rename(path(), Path::new("/moved")).expect("a rename");
    for _ in 0..2 {
        let db = Db::open_cf(&o, "/moved", FAMILIES).expect("open");
        assert_eq!(get(&db, "k").as_deref(), Some("synced"));
    }
    fs.remove(Path::new("/copy/LOG")).ok();
    Db::destroy(&o, "/moved").expect("destroy");
    assert!(!fs.exists(Path::new("/wals")).expect("a look") && !fs.exists(Path::new("/moved")).expect("a look"));
}

fn refused_in_db(options: &Options) {
    let e = Db::open_cf(options, "/copy", FAMILIES).expect_err("the directory of a database");
    assert!(e.to_string().contains("/db"), "{e}");
}

/// Copies of a database contain their own WALs, and their options say so: opened with these, they do not touch the
/// original.
#[test]
fn copies_do_not_inherit_the_wal_directory() {
    use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
    let (fs, o, db) = with_wals_apart();
    db.put_opt("k", "synced", &synced()).expect("a write");
    Checkpoint::new(&db)
        .and_then(|c| c.create_checkpoint_with_log_size("/checkpoint", u64::MAX))
        .expect("a checkpoint");
    let env = rockmill::Env::from_parts(Arc::new(fs.clone()), Arc::new(rockmill_io::SystemClock::default()));
    let engine = BackupEngine::open(&BackupEngineOptions::new("/backups").expect("options"), &env).expect("an engine");
    engine.create_new_backup(&db).expect("a backup");
    let how = RestoreOptions::default();
    engine.restore_from_latest_backup("/restored", "/restored", &how).expect("restored");
    engine.restore_from_latest_backup("/apart", "/apart-wals", &how).expect("restored");
    db.put_opt("later", "synced", &synced()).expect("a write");
    for copy in ["/checkpoint", "/restored", "/apart"] {
        let loaded =
            rockmill::OptionsLoader::new().file_system(Arc::new(fs.clone())).load_latest(copy).expect("options");
        let wal_dir = if copy == "/apart" { "/apart-wals" } else { "" };
        assert_eq!(loaded.options.db.wal_dir.to_str(), Some(wal_dir), "{copy}");
        let opened = Db::open_cf_descriptors(&loaded.options, copy, loaded.column_families).expect("open");
        assert_eq!(get(&opened, "k").as_deref(), Some("synced"), "{copy}");
        assert_eq!(get(&opened, "later"), None, "{copy}");
        opened.put_opt("own", "1", &synced()).expect("a write");
    }
    drop(db);
    let db = open_two(&o);
    assert_eq!(get(&db, "later").as_deref(), Some("synced"));
    assert_eq!(get(&db, "own"), None);
}

/// Without `wal_dir`, a user would see the database without the data in its WALs, and continue to write without it.
#[test]
fn a_database_is_not_opened_without_its_wals() {
    let (fs, o, db) = with_wals_apart();
    db.put_opt("k", "synced", &synced()).expect("a write");
    drop(db);
    let forgot = options(&fs);
    let mut another = options(&fs);
    another.set_wal_dir("/others");
    for wrong in [&forgot, &another] {
        for refused in [
            Db::open_cf(wrong, path(), FAMILIES),
            Db::open_cf_for_read_only(wrong, path(), FAMILIES, false),
            Db::open_cf_as_secondary(wrong, path(), Path::new("/second"), FAMILIES),
        ] {
            let e = refused.expect_err("opened without its WALs");
            assert!(e.to_string().contains("/wals") && e.to_string().contains("wal_dir"), "{e}");
        }
    }
    assert_eq!(get(&open_two(&o), "k").as_deref(), Some("synced"));
    // Moved manually, they are found.
    for name in names(&fs, "/wals", ".log") {
        fs.rename(&Path::new("/wals").join(&name), &path().join(&name)).expect("moved");
    }
    assert_eq!(get(&open_two(&forgot), "k").as_deref(), Some("synced"));
}

/// RocksDB does not write `WAL_OWNER`: only the database's MANIFEST shows whether the WALs belong to it.
#[test]
fn unclaimed_wals_of_another_database_are_neither_read_nor_deleted() {
    for (flushes, other_flushes) in [(0, 20), (20, 0), (3, 3)] {
        let (fs, o, db) = with_wals_apart();
        for n in 0..flushes {
            db.put("flushed", n.to_string()).expect("a write");
            db.flush_all().expect("a flush");
        }
        db.put_opt("k", "synced", &synced()).expect("a write");
        drop(db);
        let other = Db::open_cf(&options(&fs), "/other", FAMILIES).expect("another database");
        for n in 0..other_flushes {
            other.put("flushed", n.to_string()).expect("a write");
            other.flush_all().expect("a flush");
        }
        drop(other);
        // As RocksDB would have left it.
        for name in ["/wals/WAL_OWNER", "/wals/LOCK", "/db/WAL_OWNER"] {
            fs.remove(Path::new(name)).expect("there");
        }
        let before = fs.list_dir(Path::new("/wals")).expect("a list");
        let refused = |what: &str, done: rockmill::Result<()>| {
            let e = done.err().unwrap_or_else(|| panic!("{flushes} {other_flushes}: {what}: done"));
            assert!(e.to_string().contains("/wals"), "{what}: {e}");
            assert_eq!(fs.list_dir(Path::new("/wals")).expect("a list"), before, "{what}");
        };
        refused("open", Db::open_cf(&o, "/other", FAMILIES).map(drop));
        refused("read", Db::open_cf_for_read_only(&o, "/other", FAMILIES, false).map(drop));
        let second = Db::open_cf_as_secondary(&o, "/other", "/second", FAMILIES);
        refused("a secondary", second.map(drop));
        refused("find", Db::find_wal_dir(&o, "/other").map(drop));
        refused("destroy", Db::destroy(&o, "/other"));
        refused("create", Db::open_cf(&o, "/new", FAMILIES).map(drop));
        // Their own database reads them, again after a restart, and they are then claimed.
        for _ in 0..2 {
            let db = open_two(&o);
            assert_eq!(get(&db, "k").as_deref(), Some("synced"));
        }
        let e = Db::open_cf(&o, "/other", FAMILIES).expect_err("claimed");
        assert!(e.to_string().contains("/wals"), "{e}");
    }
}

/// A copy made by RocksDB has its WALs in its own directory, the same MANIFEST, and options that name the original's
/// directory.
#[test]
fn a_copy_with_wals_of_its_own_does_not_claim_those_of_the_original() {
    let (fs, o, db) = with_wals_apart();
    db.put_opt("k", "synced", &synced()).expect("a write");
    drop(db);
    for dir in ["/db", "/wals"] {
        copy(&fs, dir, "/copy");
    }
    for name in ["/wals/WAL_OWNER", "/wals/LOCK", "/db/WAL_OWNER"] {
        fs.remove(Path::new(name)).expect("there");
    }
    let before = fs.list_dir(Path::new("/wals")).expect("a list");
    let e = Db::open_cf(&o, "/copy", FAMILIES).expect_err("the WALs of the original");
    assert!(e.to_string().contains("/wals") && e.to_string().contains("WALs in its own directory"), "{e}");
    assert_eq!(fs.list_dir(Path::new("/wals")).expect("a list"), before);
    let copy = Db::open_cf(&options(&fs), "/copy", FAMILIES).expect("in its own directory");
    assert_eq!(get(&copy, "k").as_deref(), Some("synced"));
    assert_eq!(get(&open_two(&o), "k").as_deref(), Some("synced"));
}

/// The directory of a database that lost its CURRENT cannot be a WAL directory either.
#[test]
fn the_directory_of_a_damaged_database_is_no_wal_directory() {
    let fs = MemFileSystem::new();
    drop(Db::open_cf(&options(&fs), "/damaged", FAMILIES).expect("a database"));
    fs.remove(Path::new("/damaged/CURRENT")).expect("removed");
    let before = fs.list_dir(Path::new("/damaged")).expect("a list");
    let mut o = options(&fs);
    drop(open_two(&o));
    o.set_wal_dir("/damaged");
    let e = Db::open_cf(&o, path(), FAMILIES).expect_err("the directory of a database");
    assert!(e.to_string().contains("another database"), "{e}");
    assert_eq!(fs.list_dir(Path::new("/damaged")).expect("a list"), before);
}

/// When `wal_dir` is first set, the previous WALs are in the database's own directory. RocksDB would ignore their data.
#[test]
fn a_new_wal_directory_does_not_hide_the_wals_of_before() {
    let fs = MemFileSystem::new();
    let o = options(&fs);
    let db = open_two(&o);
    db.put("flushed", "1").expect("a write");
    db.flush_all().expect("a flush");
    db.put_opt("k", "synced", &synced()).expect("a write");
    drop(db);
    let mut elsewhere = options(&fs);
    elsewhere.set_wal_dir("/wals");
    for read_only in [false, true] {
        let opened = match read_only {
            true => Db::open_cf_for_read_only(&elsewhere, path(), FAMILIES, false),
            false => Db::open_cf(&elsewhere, path(), FAMILIES),
        };
        let e = opened.expect_err("refused").to_string();
        assert!(e.contains("in its own directory") && e.contains(".log"), "{e}");
    }
    assert_eq!(get(&open_two(&o), "k").as_deref(), Some("synced"));
    // Moved, they are found; and obsolete WALs are no problem.
    fs.create_dir(Path::new("/wals"), true).expect("a directory");
    for name in names(&fs, "/db", ".log") {
        fs.rename(&path().join(&name), &Path::new("/wals").join(&name)).expect("a rename");
    }
    let db = open_two(&elsewhere);
    assert_eq!(get(&db, "k").as_deref(), Some("synced"));
    db.flush_all().expect("a flush");
    drop(db);
    fs.write_all(&path().join("000001.log"), b"left behind").expect("a file");
    assert_eq!(get(&open_two(&elsewhere), "k").as_deref(), Some("synced"));
}
