//! WAL files: buffered in memory until a flush, archived, in a separate directory, read back, kept across an open; and
//! writers do not wait for operations on older WALs.

mod oracle;
#[path = "wal/support.rs"]
mod support;
#[path = "wal/updates.rs"]
mod updates;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use oracle::{Peer, Script, run_tool, tool};
use rockmill::{
    Checkpoint, ColumnFamilyDescriptor, Db, ErrorKind, Options, SstFileWriter, WalFileType, WriteBatch,
    WriteBatchIterator, WriteBatchIteratorCf, WriteOptions,
};
use rockmill_io::{CrashMode, Fault, FileSystem, ManualClock, MemFileSystem, OpKind};
use rockmill_skip::skip;
use support::{FAMILIES, get, names, open_two, options, path, synced};

/// The same options on the file system after a crash.
fn after(fs: &MemFileSystem, mode: CrashMode, options: &Options) -> Options {
    let mut options = options.clone();
    options.set_file_system(Arc::new(fs.crash_image(mode)));
    options
}

fn unlogged() -> WriteOptions {
    let mut how = WriteOptions::default();
    how.disable_wal(true);
    how
}

#[test]
fn manual_wal_flush_keeps_records_in_memory_until_told() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_manual_wal_flush(true);
    let db = open_two(&options);
    let seen = |what: &str, mode, expected: &[(&str, bool)]| {
        let db = open_two(&after(&fs, mode, &options));
        for (key, there) in expected {
            assert_eq!(get(&db, key).is_some(), *there, "{what}: {key} under {mode:?}");
        }
    };
    // KeepAll is the state after the process's death, SyncedOnly a possible state after a power cut.
    db.put("a", "1").expect("a write");
    assert_eq!(get(&db, "a").as_deref(), Some("1"), "readers see it at once");
    seen("buffered", CrashMode::KeepAll, &[("a", false)]);
    db.flush_wal(false).expect("flush_wal");
    seen("flushed", CrashMode::KeepAll, &[("a", true)]);
    seen("flushed", CrashMode::SyncedOnly, &[("a", false)]);
    db.put("b", "2").expect("a write");
    db.flush_wal(true).expect("flush_wal");
    seen("synced", CrashMode::SyncedOnly, &[("a", true), ("b", true)]);
    // A synced write also writes everything buffered before it.
    db.put("c", "3").expect("a write");
    db.put_opt("d", "4", &synced()).expect("a synced write");
    seen("a synced write", CrashMode::SyncedOnly, &[("c", true), ("d", true)]);
    db.put("e", "5").expect("a write");
    db.sync_wal().expect("sync_wal");
    seen("sync_wal", CrashMode::SyncedOnly, &[("e", true)]);
    // The next WAL: the previous WAL's buffer is written when the WAL is switched, so a batch over two column families
    // is complete even if only one is flushed.
    let second = db.cf_handle("second").expect("opened");
    let mut batch = WriteBatch::new();
    batch.put("f", "6");
    batch.put_cf(&second, "f", "6");
    db.write(&batch).expect("a batch");
    db.flush_cf(&second).expect("a flush");
    seen("a new WAL", CrashMode::SyncedOnly, &[("f", true)]);
    // A checkpoint has all writes, also if its WAL is copied.
    db.put("g", "7").expect("a write");
    let copy = Path::new("/copy");
    let checkpoint = Checkpoint::new(&db).expect("a checkpoint");
    checkpoint.create_checkpoint_with_log_size(copy, u64::MAX).expect("a checkpoint");
    let families = FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
    let copied = Db::open_cf_descriptors(&options, copy, families).expect("the copy");
    assert_eq!(get(&copied, "g").as_deref(), Some("7"));
    // A close.
    db.put("h", "8").expect("a write");
    drop(db);
    seen("closed", CrashMode::KeepAll, &[("h", true)]);
}

#[test]
fn a_full_buffer_goes_out_by_itself() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_manual_wal_flush(true);
    options.set_writable_file_max_buffer_size(4096);
    let db = Db::open(&options, path()).expect("open");
    for n in 0..100 {
        db.put(format!("key{n:03}"), vec![b'x'; 200]).expect("a write");
    }
    let db = Db::open(&after(&fs, CrashMode::KeepAll, &options), path()).expect("open");
    let there = (0..100).filter(|n| get(&db, &format!("key{n:03}")).is_some()).count();
    assert!((60..100).contains(&there), "{there} of 100 records left a buffer of 4 KiB");
    assert!((0..there).all(|n| get(&db, &format!("key{n:03}")).is_some()), "not a prefix");
}

/// A database whose WALs were left one by one: `rounds` flushes of `per` records each.
fn rounds(db: &Db, from: usize, rounds: usize, per: usize) {
    for round in from..from + rounds {
        for n in 0..per {
            db.put(format!("{round:03}-{n:03}"), vec![b'v'; 100]).expect("a write");
        }
        db.flush().expect("a flush");
    }
    settle(db);
}

/// Waits until the flush thread has processed obsolete WALs.
fn settle(db: &Db) {
    db.wait_for_background_work().expect("background work");
    for _ in 0..200 {
        let alive = db.get_sorted_wal_files().expect("WAL files");
        if alive.iter().all(|f| f.file_type != WalFileType::Alive) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn obsolete_wals_are_archived_and_go_by_age() {
    let fs = MemFileSystem::new();
    let clock = ManualClock::new(1_700_000_000_000_000);
    fs.set_clock(Arc::new(clock.clone()));
    let mut options = options(&fs);
    options.set_clock(Arc::new(clock.clone()));
    options.set_wal_ttl_seconds(1000);
    options.set_recycle_log_file_num(4); // not beside an archive, as in RocksDB
    let db = Db::open(&options, path()).expect("open");
    rounds(&db, 0, 3, 10);
    let archived = names(&fs, "/db/archive", ".log");
    assert_eq!(archived.len(), 3, "{archived:?}");
    let files = db.get_sorted_wal_files().expect("WAL files");
    assert!(files.iter().all(|f| f.file_type == WalFileType::Archived), "the live one has no update yet");
    assert!(files.windows(2).all(|w| w[0].log_number < w[1].log_number && w[0].start_sequence < w[1].start_sequence));
    assert_eq!((files[0].start_sequence, files[1].start_sequence), (1, 11));
    assert!(files.iter().all(|f| f.size > 1000 && f.path.starts_with("/db/archive")));
    // Checked: nothing is old enough; the next check is in 500 seconds.
    clock.advance(Duration::from_secs(990));
    rounds(&db, 3, 1, 10);
    assert_eq!(names(&fs, "/db/archive", ".log").len(), 4);
    clock.advance(Duration::from_secs(499));
    rounds(&db, 4, 1, 10);
    assert_eq!(names(&fs, "/db/archive", ".log").len(), 5, "three are too old, and the archive is not looked through");
    clock.advance(Duration::from_secs(1));
    rounds(&db, 5, 1, 10);
    let left = names(&fs, "/db/archive", ".log");
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(archived.iter().all(|a| !left.contains(a)));
    drop(db);
    // WALs that an open finds obsolete are archived, too.
    let db = Db::open(&options, path()).expect("open");
    db.put("last", "1").expect("a write");
    drop(db);
    drop(Db::open(&options, path()).expect("open"));
    assert_eq!(names(&fs, "/db/archive", ".log").len(), 5, "the WAL with a record, and the empty one");
    Db::destroy(&options, path()).expect("destroy");
    assert!(!fs.exists(path()).expect("a look"), "destroy leaves {:?}", fs.list_dir(path()));
}

#[test]
fn the_archive_goes_by_size() {
    let fs = MemFileSystem::new();
    let clock = ManualClock::new(1_700_000_000_000_000);
    let mut options = options(&fs);
    options.set_clock(Arc::new(clock.clone()));
    options.set_wal_size_limit_mb(1);
    let db = Db::open(&options, path()).expect("open");
    for round in 0..6 {
        clock.advance(Duration::from_secs(1));
        for n in 0..30 {
            db.put(format!("{round}-{n}"), vec![b'v'; 10_000]).expect("a write");
        }
        db.flush().expect("a flush");
        settle(&db);
    }
    let all = names(&fs, "/db/archive", ".log");
    assert_eq!(all.len(), 6, "nothing is deleted before ten minutes have passed");
    clock.advance(Duration::from_secs(600));
    rounds(&db, 7, 1, 1);
    // Seven now, 300 kB the largest: three of that size fit.
    let left = names(&fs, "/db/archive", ".log");
    assert_eq!(left.len(), 3, "{left:?}");
    assert_eq!(left[..2], all[4..], "the newest stay");
}

#[test]
fn without_a_limit_nothing_is_archived() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(&options, path()).expect("open");
    rounds(&db, 0, 2, 5);
    assert!(!fs.exists(Path::new("/db/archive")).expect("a look"));
    assert_eq!(names(&fs, "/db", ".log").len(), 1);
}

#[test]
fn a_memtable_that_waits_for_others_does_not_hold_wals_back_for_ever() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_max_total_wal_size(1 << 20);
    let mut waits = options.clone();
    waits.set_write_buffer_size(64 << 10);
    waits.set_min_write_buffer_number_to_merge(2);
    waits.set_max_write_buffer_number(6);
    let mut busy = options.clone();
    busy.set_write_buffer_size(256 << 10);
    let families = [ColumnFamilyDescriptor::new("default", busy), ColumnFamilyDescriptor::new("waits", waits)];
    let db = Db::open_cf_descriptors(&options, path(), families).expect("open");
    let family = db.cf_handle("waits").expect("opened");
    for i in 0..80 {
        db.put_cf(&family, format!("{i:06}"), vec![1; 1000]).expect("a write");
    }
    for i in 0..12_000 {
        db.put(format!("{i:06}"), vec![2; 1000]).expect("a write");
    }
    let bytes = || db.get_sorted_wal_files().expect("files").iter().map(|f| f.size).sum::<u64>();
    // Flushes that are due may still run.
    let within = std::time::Instant::now() + Duration::from_secs(60);
    while bytes() > 2 << 20 {
        assert!(std::time::Instant::now() < within, "{} bytes of WALs, and the limit is 1 MiB", bytes());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn wals_in_a_directory_of_their_own() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_wal_dir("/wals/here");
    options.set_wal_ttl_seconds(3600);
    let db = open_two(&options);
    rounds(&db, 0, 2, 5);
    db.put("kept", "in the WAL").expect("a write");
    assert_eq!(names(&fs, "/db", ".log"), [""; 0]);
    assert_eq!(names(&fs, "/wals/here", ".log").len(), 1);
    assert_eq!(names(&fs, "/wals/here/archive", ".log").len(), 2);
    assert_eq!(db.get_updates_since(0).expect("an iterator").filter(|u| u.is_ok()).count(), 11);
    // Checkpoints hold their WALs themselves.
    let checkpoint = Checkpoint::new(&db).expect("a checkpoint");
    checkpoint.create_checkpoint_with_log_size("/copy", u64::MAX).expect("a checkpoint");
    let mut plain = options.clone();
    plain.set_wal_dir("");
    let families = FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, plain.clone()));
    let copy = Db::open_cf_descriptors(&plain, "/copy", families).expect("the copy");
    assert_eq!(get(&copy, "kept").as_deref(), Some("in the WAL"));
    drop(copy);
    // Power cuts; the directory itself is durable, too.
    db.put_opt("synced", "1", &synced()).expect("a write");
    let image = open_two(&after(&fs, CrashMode::SyncedOnly, &options));
    assert_eq!(get(&image, "kept").as_deref(), Some("in the WAL"));
    assert_eq!(get(&image, "synced").as_deref(), Some("1"));
    drop((image, db));
    let read_only = Db::open_cf_for_read_only(&options, path(), FAMILIES, false).expect("a read-only open");
    assert_eq!(get(&read_only, "synced").as_deref(), Some("1"));
    let db = open_two(&options);
    assert_eq!(get(&db, "kept").as_deref(), Some("in the WAL"));
    drop(db);
    // Another database's WALs are not mistaken for its own.
    let mut other = options.clone();
    other.set_error_if_exists(true);
    let e = Db::open(&other, "/other").expect_err("WALs without a database");
    assert!(e.kind() == ErrorKind::Corruption && e.to_string().contains("wal_dir"), "{e}");
    other.set_wal_dir("/nowhere");
    let e = Db::open_cf_for_read_only(&other, path(), FAMILIES, false).expect_err("no such directory");
    assert!(e.to_string().contains("/nowhere"), "{e}");
    fs.remove(Path::new("/other/LOG")).ok();
    fs.remove(Path::new("/other/LOCK")).ok();
    Db::destroy(&options, path()).expect("destroy");
    assert!(!fs.exists(Path::new("/wals/here")).expect("a look"), "WALs are left");
    assert!(!fs.exists(path()).expect("a look"));
}

/// Blocks the first call that `which` wants, until released.
fn block(
    fs: &MemFileSystem,
    which: impl Fn(&rockmill_io::Op<'_>) -> bool + Send + 'static,
) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let mut released = Some(released);
    fs.set_hook(Box::new(move |op| {
        if !which(op) {
            return Fault::None;
        }
        let Some(released) = released.take() else { return Fault::None };
        let blocked = blocked.clone();
        Fault::After(Box::new(move || {
            let _ = blocked.send(());
            let _ = released.recv();
        }))
    }));
    (is_blocked, release)
}

/// Writes from another thread, so that a test does not hang for ever.
fn write_within(db: &Arc<Db>, what: &str, write: impl FnOnce(&Db) + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let db = Arc::clone(db);
    std::thread::spawn(move || {
        write(&db);
        let _ = done.send(());
    });
    is_done
        .recv_timeout(Duration::from_secs(20))
        .unwrap_or_else(|_| panic!("{what}: a writer waits for the WAL's I/O"));
}

#[test]
fn writers_go_on_while_a_left_wal_is_synced_for_a_flush() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_max_total_wal_size(50_000);
    let db = Arc::new(open_two(&options));
    let second = db.cf_handle("second").expect("opened");
    db.put("a", "1").expect("a write");
    db.put_cf(&second, "a", "1").expect("a write");
    let (is_blocked, release) =
        block(&fs, |op| op.kind == OpKind::Sync && op.path.extension().is_some_and(|e| e == "log"));
    let flushing = {
        let db = Arc::clone(&db);
        std::thread::spawn(move || db.flush())
    };
    is_blocked.recv_timeout(Duration::from_secs(20)).expect("the flush syncs the WAL that it left");
    write_within(&db, "a sync of a left WAL", |db| {
        for n in 0..50 {
            db.put(format!("key{n}"), vec![b'x'; 100]).expect("a write");
        }
    });
    // Also the check of the WALs' total size, which holds the state's lock.
    write_within(&db, "the WALs' total size", move |db| {
        for n in 0..500 {
            db.put_cf(&second, format!("key{n}"), vec![b'x'; 100]).expect("a write");
        }
        assert!(db.property_value("rocksdb.num-immutable-mem-table").expect("a property").is_some());
    });
    release.send(()).expect("the flush waits");
    flushing.join().expect("no panic").expect("a flush");
    fs.clear_fault();
    // A synced write does wait, because everything before it must be durable; now it is.
    db.put_opt("z", "1", &synced()).expect("a write");
    let image = open_two(&after(&fs, CrashMode::SyncedOnly, &options));
    assert!(get(&image, "key49").is_some() && get(&image, "z").is_some());
}

#[test]
fn writers_go_on_while_an_obsolete_wal_is_deleted() {
    for archive in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        if archive {
            options.set_wal_ttl_seconds(1000);
        }
        let db = Arc::new(open_two(&options));
        db.put("a", "1").expect("a write");
        let (is_blocked, release) = block(&fs, |op| {
            matches!(op.kind, OpKind::Remove | OpKind::Rename) && op.path.extension().is_some_and(|e| e == "log")
        });
        let flushing = {
            let db = Arc::clone(&db);
            std::thread::spawn(move || db.flush())
        };
        is_blocked.recv_timeout(Duration::from_secs(20)).expect("the WAL goes");
        write_within(&db, "the deletion of a WAL", |db| {
            for n in 0..50 {
                db.put_opt(format!("key{n}"), "1", &synced()).expect("a write");
            }
        });
        release.send(()).expect("the deletion waits");
        flushing.join().expect("no panic").expect("a flush");
    }
}

#[test]
fn recovered_data_stays_in_memtables_if_so_asked() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_avoid_flush_during_recovery(true);
    let write = |db: &Db, n: u32| {
        let mut batch = WriteBatch::new();
        for family in FAMILIES {
            let cf = db.cf_handle(family).expect("opened");
            batch.put_cf(&cf, format!("key{n}"), n.to_string());
            batch.put_cf(&cf, "newest", n.to_string());
        }
        db.write(&batch).expect("a batch");
    };
    let check = |db: &Db, what: &str, upto: u32| {
        for family in FAMILIES {
            let cf = db.cf_handle(family).expect("opened");
            for n in 1..=upto {
                assert!(db.get_cf(&cf, format!("key{n}")).expect("a read").is_some(), "{what}: {family} key{n}");
            }
            let newest = db.get_cf(&cf, "newest").expect("a read").expect("there");
            assert_eq!(newest, upto.to_string().as_bytes(), "{what}: {family}");
        }
    };
    for round in 1..=4 {
        let db = open_two(&options);
        if round > 1 {
            check(&db, "reopened", round - 1);
        }
        write(&db, round);
        drop(db);
        assert_eq!(names(&fs, "/db", ".sst"), [""; 0], "tables after {round} opens");
    }
    assert!(names(&fs, "/db", ".log").len() >= 4, "the WALs stay: {:?}", names(&fs, "/db", ".log"));
    // A power cut after a synced write: data that only the previous process had written also exists.
    let db = open_two(&options);
    write(&db, 5);
    db.flush_wal(true).expect("a sync");
    for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
        check(&open_two(&after(&fs, mode, &options)), "power cut", 5);
    }
    // Once flushed, the kept WALs go.
    db.flush_all().expect("a flush");
    settle(&db);
    assert_eq!(names(&fs, "/db", ".log").len(), 1);
    drop(db);
    check(&open_two(&options), "after the flush", 5);
    // One column family flushed, the other not.
    let db = open_two(&options);
    write(&db, 6);
    drop(db);
    let db = open_two(&options);
    db.flush_cf(&db.cf_handle("second").expect("opened")).expect("a flush");
    write(&db, 7);
    for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
        let image = open_two(&after(&fs, mode, &options));
        let upto = if mode == CrashMode::KeepAll { 7 } else { 6 };
        check(&image, "one column family flushed", upto);
    }
    drop(db);
    // Full memtables are written nevertheless; nothing is duplicated.
    options.set_write_buffer_size(16 << 10);
    let db = open_two(&options);
    for n in 0..300 {
        db.put_opt(format!("much{n}"), vec![b'x'; 100], &WriteOptions::default()).expect("a write");
    }
    drop(db);
    let db = open_two(&options);
    assert!(!names(&fs, "/db", ".sst").is_empty());
    check(&db, "full memtables", 7);
    assert_eq!(get(&db, "much299").map(|v| v.len()), Some(100));
}

#[test]
fn a_close_flushes_unlogged_data_unless_told_not_to() {
    for avoid in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.set_avoid_flush_during_shutdown(avoid);
        let db = Db::open(&options, path()).expect("open");
        db.put("logged", "1").expect("a write");
        db.put_opt("unlogged", "1", &unlogged()).expect("a write");
        drop(db);
        let db = Db::open(&options, path()).expect("open");
        assert!(get(&db, "logged").is_some());
        assert_eq!(get(&db, "unlogged").is_some(), !avoid, "avoid_flush_during_shutdown = {avoid}");
    }
}

#[test]
fn updates_of_missing_column_families_can_be_passed_over() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = open_two(&options);
    let second = db.cf_handle("second").expect("opened");
    let mut batch = WriteBatch::new();
    batch.put("a", "1");
    batch.put_cf(&second, "b", "2");
    batch.delete_range_cf(&second, "x", "y");
    batch.put("c", "3");
    db.drop_cf("second").expect("a drop");
    let e = db.write(&batch).expect_err("a dropped column family");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert_eq!(get(&db, "a"), None, "none of the batch");
    let mut how = WriteOptions::default();
    how.set_ignore_missing_column_families(true);
    db.write_opt(&batch, &how).expect("a write");
    assert_eq!((get(&db, "a").as_deref(), get(&db, "c").as_deref()), (Some("1"), Some("3")));
    drop(db);
    let db = Db::open(&options, path()).expect("open");
    assert_eq!((get(&db, "a").as_deref(), get(&db, "c").as_deref()), (Some("1"), Some("3")), "after recovery");
}

#[test]
fn writes_of_low_priority_wait_while_compaction_is_behind() {
    let fs = MemFileSystem::new();
    let clock = ManualClock::new(1_700_000_000_000_000);
    let mut options = options(&fs);
    options.set_clock(Arc::new(clock.clone()));
    options.set_level_zero_file_num_compaction_trigger(2);
    let db = Db::open(&options, path()).expect("open");
    let mut low = WriteOptions::default();
    low.set_low_pri(true);
    let took = |db: &Db, how: &WriteOptions| {
        let before = rockmill_io::Clock::monotonic_nanos(&clock);
        db.put_opt("k", vec![b'x'; 1 << 20], how).expect("a write");
        (rockmill_io::Clock::monotonic_nanos(&clock) - before) / 1_000_000
    };
    assert_eq!(took(&db, &low), 0, "compaction keeps up");
    db.pause_background_work();
    for n in 0..5 {
        db.put(format!("{n}"), "1").expect("a write");
        db.flush().expect("a flush");
    }
    assert_eq!(took(&db, &WriteOptions::default()), 0, "others are not slowed yet");
    assert!((900..1100).contains(&took(&db, &low)), "1 MiB/s");
    low.set_no_slowdown(true);
    assert_eq!(db.put_opt("k", "v", &low).expect_err("it would wait").kind(), ErrorKind::Incomplete);
    db.continue_background_work();
}

#[derive(Default)]
struct Seen(Vec<String>);

impl WriteBatchIterator for Seen {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.push(format!("put {} {}", String::from_utf8_lossy(key), String::from_utf8_lossy(value)));
    }

    fn delete(&mut self, key: &[u8]) {
        self.0.push(format!("delete {}", String::from_utf8_lossy(key)));
    }
}

impl WriteBatchIteratorCf for Seen {
    fn put_cf(&mut self, cf: u32, key: &[u8], _: &[u8]) {
        self.0.push(format!("put {cf} {}", String::from_utf8_lossy(key)));
    }

    fn delete_cf(&mut self, cf: u32, key: &[u8]) {
        self.0.push(format!("delete {cf} {}", String::from_utf8_lossy(key)));
    }

    fn merge_cf(&mut self, cf: u32, key: &[u8], _: &[u8]) {
        self.0.push(format!("merge {cf} {}", String::from_utf8_lossy(key)));
    }

    fn delete_range_cf(&mut self, cf: u32, begin: &[u8], end: &[u8]) {
        self.0.push(format!("range {cf} {} {}", String::from_utf8_lossy(begin), String::from_utf8_lossy(end)));
    }
}

#[test]
fn batches_have_save_points_and_can_be_looked_through() {
    let fs = MemFileSystem::new();
    let db = open_two(&options(&fs));
    let second = db.cf_handle("second").expect("opened");
    let mut batch = WriteBatch::new();
    assert_eq!(batch.rollback_to_save_point().expect_err("none").kind(), ErrorKind::NotFound);
    batch.put("a", "1");
    batch.set_save_point();
    batch.put("b", "2");
    batch.set_save_point();
    batch.put_cf(&second, "c", "3");
    batch.rollback_to_save_point().expect("a save point");
    assert_eq!(batch.len(), 2);
    batch.delete("d");
    let mut seen = Seen::default();
    batch.iterate(&mut seen);
    assert_eq!(seen.0, ["put a 1", "put b 2", "delete d"]);
    batch.set_save_point();
    batch.merge_cf(&second, "e", "5");
    batch.delete_range_cf(&second, "f", "g");
    batch.pop_save_point().expect("a save point");
    let mut seen = Seen::default();
    batch.iterate_cf(&mut seen);
    assert_eq!(seen.0, ["put 0 a", "put 0 b", "delete 0 d", "merge 1 e", "range 1 f g"]);
    batch.rollback_to_save_point().expect("the first one");
    assert_eq!(batch.pop_save_point().expect_err("none left").kind(), ErrorKind::NotFound);
    db.write(&batch).expect("a write");
    assert_eq!((get(&db, "a").as_deref(), get(&db, "b")), (Some("1"), None));
}

#[test]
fn rocksdb_reads_our_archive_and_we_its() {
    let test = "rocksdb_reads_our_archive_and_we_its";
    let home = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (home.path().join("ours"), home.path().join("theirs"));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_wal_ttl_seconds(3600);
    let db = Db::open(&options, &ours).expect("open");
    for round in 0..3 {
        for n in 0..10 {
            db.put(format!("{round}{n}"), "v").expect("a write");
        }
        if round < 2 {
            db.flush().expect("a flush");
        }
    }
    settle(&db);
    drop(db);
    let archived: Vec<_> = std::fs::read_dir(ours.join("archive")).expect("an archive").flatten().collect();
    assert_eq!(archived.len(), 2);
    match tool("ldb") {
        Ok(ldb) => {
            let walfile = format!("--walfile={}", archived[0].path().display());
            let said = run_tool(&ldb, &["dump_wal", &walfile, "--header"]).unwrap_or_else(|e| panic!("{e}"));
            assert!(said.lines().filter(|l| l.contains("PUT")).count() == 10, "{said}");
        }
        Err(reason) => skip(test, &reason),
    }
    let driver = match Peer::Library.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let mut script = Script::new();
    script.line("db WAL_ttl_seconds=3600").open(&ours).line("updates 1").line("close");
    let answer = driver.answer(test, &script).expect("the library has it all");
    assert_eq!(answer.updates().iter().map(|(_, n)| n).sum::<u64>(), 30, "{:?}", answer.updates());

    let mut script = Script::new();
    script.line("db WAL_ttl_seconds=3600").open(&theirs);
    for round in 0..3 {
        for n in 0..10 {
            script.put("default", format!("{round}{n}"), "v");
        }
        if round < 2 {
            script.line("flush default");
        }
    }
    script.line("crash");
    let _ = driver.run(&script);
    let db = Db::open(&options, &theirs).expect("RocksDB's database");
    let updates: Vec<_> = db.get_updates_since(0).expect("an iterator").map(|u| u.expect("a batch").0).collect();
    assert_eq!(updates, (1..=30).collect::<Vec<u64>>());
}

#[test]
fn rocksdb_and_we_share_a_wal_directory_and_kept_wals() {
    let test = "rocksdb_and_we_share_a_wal_directory_and_kept_wals";
    let driver = match Peer::Library.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let home = tempfile::tempdir().expect("a folder");
    let (path, wals) = (home.path().join("db"), home.path().join("wals"));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_wal_dir(&wals);
    options.set_avoid_flush_during_recovery(true);
    let logs = || std::fs::read_dir(&wals).expect("the WALs").flatten().count();
    // Rockmill writes in four sessions without a flush; RocksDB replays the four WALs, writes, and dies.
    for n in 0..4 {
        let db = Db::open(&options, &path).expect("open");
        db.put(format!("ours{n}"), "v").expect("a write");
        db.put("newest", format!("ours{n}")).expect("a write");
    }
    assert!(logs() >= 4);
    let mut script = Script::new();
    script.line(format!("db wal_dir={};avoid_flush_during_recovery=true", wals.display())).open(&path);
    script.line("dump default").put("default", "theirs", "v").put("default", "newest", "theirs");
    let mut closed = script.clone();
    closed.line("close");
    script.line("crash");
    let _ = driver.run(&script);
    // Rockmill replays those and RocksDB's.
    let db = Db::open(&options, &path).expect("RocksDB's WAL directory");
    for key in ["ours0", "ours1", "ours2", "ours3", "theirs"] {
        assert!(get(&db, key).is_some(), "{key}");
    }
    assert_eq!(get(&db, "newest").as_deref(), Some("theirs"));
    db.put("newest", "ours again").expect("a write");
    drop(db);
    let answer = driver.answer(test, &closed).expect("the library has it all");
    let entries = answer.entries();
    assert_eq!(entries.len(), 6, "{entries:?}");
    assert_eq!(entries[0], (b"newest".to_vec(), b"ours again".to_vec()));
}

/// A directory on the real file system, and options for a database in it.
fn on_disk() -> (tempfile::TempDir, Options) {
    let mut options = Options::default();
    options.create_if_missing(true);
    (tempfile::tempdir().unwrap_or_else(|e| panic!("{e}")), options)
}

#[test]
fn a_recycled_wal_that_somebody_keeps_under_another_name_stays_as_it_is() {
    let (dir, mut options) = on_disk();
    options.set_recycle_log_file_num(2);
    let db = Db::open(&options, dir.path().join("db")).unwrap();
    let wals = || {
        let names = std::fs::read_dir(dir.path().join("db")).unwrap().map(|e| e.unwrap().path());
        let mut wals: Vec<_> = names.filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
        wals.sort();
        wals
    };
    db.put("first", "1").unwrap();
    let kept = dir.path().join("kept.log");
    std::fs::hard_link(wals().last().unwrap(), &kept).unwrap();
    let held = std::fs::read(&kept).unwrap();
    assert!(!held.is_empty());
    for round in 0..6 {
        db.put(format!("key{round}"), "x".repeat(500)).unwrap();
        db.flush().unwrap();
    }
    let now = std::fs::read(&kept).unwrap();
    assert_eq!(now[..held.len()], held, "the other name holds what it held");
    assert!(!String::from_utf8_lossy(&now).contains("key5"));
    drop(db);
    let db = Db::open(&options, dir.path().join("db")).unwrap();
    assert_eq!(db.get("key5").unwrap().map(|v| v.len()), Some(500));
}

#[test]
fn wals_are_archived_in_no_directory_that_a_link_leads_to() {
    let (dir, mut options) = on_disk();
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("000001.log"), "precious").unwrap();
    let path = dir.path().join("db");
    drop(Db::open(&options, &path).unwrap());
    std::os::unix::fs::symlink(&outside, path.join("archive")).unwrap();
    options.set_wal_size_limit_mb(1);
    let e = Db::open(&options, &path).unwrap_err();
    assert!(e.to_string().contains("archive") && e.to_string().contains("link"), "{e}");
    options.set_wal_size_limit_mb(0);
    drop(Db::open(&options, &path).unwrap());
    Db::destroy(&options, &path).unwrap();
    assert_eq!(std::fs::read(outside.join("000001.log")).unwrap(), b"precious");
}
