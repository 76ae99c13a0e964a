//! Logs of a fast path after a crash: logs that recovery keeps are durable, and missing ones are noticed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::{Checkpoint, Db, Env, ErrorKind, IteratorMode, Options, RecoveryMode, WriteOptions};
use rockmill_io::{
    CountingFileSystem, CrashMode, Fault, FileSystem, MemFileSystem, OpKind, PosixFileSystem, SystemClock,
};
use rockmill_skip::{Needs, skip};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn options(fs: &MemFileSystem) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_fast_path("/fast", 1 << 30);
    o.set_max_index_size(16 << 10);
    // No flush comes by itself.
    o.set_data_flush_trigger_size(1 << 30);
    o
}

fn open(fs: &MemFileSystem) -> rockmill::Result<Db> {
    Db::open(&options(fs), "/db")
}

fn synced() -> WriteOptions {
    let mut o = WriteOptions::default();
    o.set_sync(true);
    o
}

fn key(i: usize) -> String {
    format!("key{i:05}")
}

fn value(i: usize) -> Vec<u8> {
    vec![b'a' + (i % 26) as u8; 300 + i % 500]
}

fn write(db: &Db, range: std::ops::Range<usize>) {
    range.for_each(|i| db.put(key(i), value(i)).expect("a put"));
}

type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

fn entries(db: &Db) -> Entries {
    db.iterator(IteratorMode::Start).map(|e| e.expect("an entry")).collect()
}

/// Number of writes that exist; checks that they are the first ones.
fn prefix(db: &Db, what: &str) -> usize {
    let all = entries(db);
    for (i, (k, v)) in all.iter().enumerate() {
        assert_eq!((&k[..], &v[..]), (key(i).as_bytes(), &value(i)[..]), "{what}: no prefix");
    }
    all.len()
}

/// The logs with records, oldest first.
fn logs(fs: &MemFileSystem) -> Vec<PathBuf> {
    let mut names = fs.list_dir(Path::new("/fast")).expect("a list");
    names.retain(|n| n.ends_with(".log"));
    names.sort();
    let paths = names.iter().map(|n| Path::new("/fast").join(n));
    paths.filter(|p| fs.file_size(p).expect("a size") > 0).collect()
}

/// A database whose process has died: 1,500 writes in several logs, the first third of them durable.
fn died() -> MemFileSystem {
    died_after(1500)
}

/// The same after `count` writes, of which 500 are durable.
fn died_after(count: usize) -> MemFileSystem {
    let fs = MemFileSystem::new();
    let db = open(&fs).expect("open");
    write(&db, 0..500);
    db.flush_wal(true).expect("a sync");
    write(&db, 500..count);
    let next = fs.next_process();
    assert!(logs(&next).len() > 3, "{:?}", logs(&next));
    next
}

/// Checks what a power cut leaves after an open and one synced write.
fn check_durable(fs: &MemFileSystem, what: &str) {
    check_durable_after(fs, 1500, what);
}

/// The same, where `count` writes were there.
fn check_durable_after(fs: &MemFileSystem, count: usize, what: &str) {
    let db = open(fs).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(prefix(&db, what), count);
    db.put_opt(key(count), value(count), &synced()).expect("a synced write");
    for mode in [CrashMode::SyncedOnly, CrashMode::Random(1), CrashMode::Random(2)] {
        let after = fs.crash_image(mode);
        let db = open(&after).unwrap_or_else(|e| panic!("{what}, {mode:?}: {e}"));
        assert_eq!(prefix(&db, what), count + 1, "{mode:?}");
        // Also after a flush, without index tables.
        db.flush().expect("a flush");
        assert_eq!(prefix(&db, what), count + 1, "{mode:?}");
    }
}

#[test]
fn kept_logs_are_written_anew_only_where_the_device_lacks_them() {
    let anew = |fs: &MemFileSystem| fs.calls_of(OpKind::Reuse);
    let fs = died();
    check_durable(&fs, "what was dirty");
    assert_eq!(anew(&fs), 0, "a sync was enough");
    let count = logs(&died()).len();
    for lost in (0..count).map(|i| vec![i]).chain([(0..count).collect()]) {
        let fs = died();
        let dirty: Vec<PathBuf> = lost.iter().map(|&i| logs(&fs)[i].clone()).collect();
        dirty.iter().for_each(|log| fs.fail_write_back(log).expect("a log"));
        check_durable(&fs, &format!("the write-back of {dirty:?} failed"));
        // The first ones were durable already.
        assert!(anew(&fs) <= lost.len() as u64, "{} for {dirty:?}", anew(&fs));
        assert!(anew(&fs) > 0 || lost[0] < count / 2, "{dirty:?}");
    }
    // The kernel reports a failed write-back to the open.
    let fs = died();
    let mut told = 0;
    fs.set_fault(Box::new(move |op| {
        let hit = op.kind == OpKind::Sync && op.path.extension().is_some_and(|e| e == "log") && told < 2;
        told += u64::from(hit);
        hit.then(|| io::Error::from_raw_os_error(EIO))
    }));
    check_durable(&fs, "two syncs failed");
    assert_eq!(anew(&fs), 2);
    // The device cannot be asked.
    let fs = died();
    let direct = |op: &rockmill_io::Op<'_>| op.kind == OpKind::ReadAt && op.len >= 4096;
    fs.set_fault(Box::new(move |op| direct(op).then(|| io::Error::from_raw_os_error(EIO))));
    let db = open(&fs).expect("open");
    fs.clear_fault();
    assert_eq!(anew(&fs), logs(&fs).len() as u64);
    drop(db);
    check_durable(&fs, "direct reads failed");
}

/// From 4 MiB of logs on, a thread compares replayed logs with the device while later ones are replayed. Its results
/// have the same effects as without the thread, and logs that are not kept in the end are not harmed.
#[test]
fn the_device_is_asked_while_later_logs_are_replayed() {
    const COUNT: usize = 16_000;
    /// Opens the database; also returns how many logs a separate thread has synced.
    fn opened(fs: &MemFileSystem, what: &str) -> (Db, u64) {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        fs.set_hook(Box::new(move |op| {
            let by_thread = std::thread::current().name() == Some("rockmill:logs");
            count.fetch_add(u64::from(by_thread && op.kind == OpKind::Sync), Ordering::SeqCst);
            Fault::None
        }));
        let db = open(fs).unwrap_or_else(|e| panic!("{what}: {e}"));
        fs.clear_fault();
        (db, asked.load(Ordering::SeqCst))
    }
    let whole = died_after(COUNT);
    let anew = |fs: &MemFileSystem| fs.calls_of(OpKind::Reuse);
    let count = logs(&whole).len();
    let fs = whole.next_process();
    let (db, asked) = opened(&fs, "nothing is lost");
    // At least those of the first 4 MiB; the last ones only if the thread was free again.
    assert!(asked as usize > count / 4 && asked as usize <= count, "{asked} of {count} logs");
    assert_eq!((prefix(&db, "nothing is lost"), anew(&fs)), (COUNT, 0));
    drop(db);
    check_durable_after(&fs, COUNT, "opened twice");
    for (what, lost) in [("an early log", count / 3), ("the last log", count - 1)] {
        let fs = whole.next_process();
        fs.fail_write_back(&logs(&fs)[lost]).expect("a log");
        check_durable_after(&fs, COUNT, what);
        assert_eq!(anew(&fs), 1, "{what}");
    }
    // The kernel reports a failed write-back to the thread's sync.
    let fs = whole.next_process();
    let mut told = false;
    fs.set_fault(Box::new(move |op| {
        let by_thread = std::thread::current().name() == Some("rockmill:logs");
        let hit = by_thread && op.kind == OpKind::Sync && !std::mem::replace(&mut told, true);
        hit.then(|| io::Error::from_raw_os_error(EIO))
    }));
    check_durable_after(&fs, COUNT, "a sync failed");
    assert_eq!(anew(&fs), 1);
    // A torn end is truncated as without the thread.
    let fs = whole.next_process();
    let log = logs(&fs).pop().expect("a log");
    fs.truncate(&log, fs.file_size(&log).expect("a size") - 100).expect("a cut");
    let fs = fs.next_process();
    let (db, asked) = opened(&fs, "torn");
    assert!(asked > 0 && db.live_files().expect("a list").is_empty(), "torn: {asked} logs");
    drop(db);
    check_durable_after(&fs, COUNT - 1, "torn");
    // Records in the middle are lost: the rest is written as tables, regardless of the thread's results.
    let fs = whole.next_process();
    let log = &logs(&fs)[count - 3];
    fs.truncate(log, fs.file_size(log).expect("a size") - 100).expect("a cut");
    let fs = fs.next_process();
    let (db, asked) = opened(&fs, "a log in the middle");
    let found = prefix(&db, "a log in the middle");
    assert!(asked > 0 && !db.live_files().expect("a list").is_empty(), "{asked} logs");
    drop(db);
    assert!((COUNT / 2..COUNT).contains(&found), "{found}");
    check_durable_after(&fs, found, "a log in the middle");
}

/// The database directory of the logs is missing or empty because its device is not mounted. No new database is created
/// over the logs, and nothing changes on the fast device.
#[test]
fn a_missing_slow_device_is_an_error() {
    let whole = died();
    let (home, fast) = (Path::new("/db"), Path::new("/fast"));
    let contents = |fs: &MemFileSystem, dir: &Path| -> BTreeMap<String, Vec<u8>> {
        let names = fs.list_dir(dir).expect("a list").into_iter();
        names.map(|name| (name.clone(), fs.read_to_vec(&dir.join(name)).expect("a file"))).collect()
    };
    for lost in ["the directory", "all files"] {
        let fs = whole.next_process();
        for name in fs.list_dir(home).expect("a list") {
            fs.remove(&home.join(name)).expect("a removal");
        }
        if lost == "the directory" {
            fs.remove_dir(home).expect("a removal");
        }
        let repaired = Db::repair(&options(&fs), home).map(drop);
        let refused = [("opened", open(&fs).map(drop)), ("repaired", repaired)];
        for (what, result) in refused {
            let e = result.err().unwrap_or_else(|| panic!("{lost}: {what}")).to_string();
            let names_it = e.contains("/fast") && e.contains("mounted");
            assert!(e.contains("/db") && (names_it || (what == "repaired" && lost == "the directory")), "{lost}: {e}");
        }
        assert_eq!(contents(&fs, fast), contents(&whole, fast), "{lost}");
        // The device is there again.
        fs.create_dir(home, true).expect("a directory");
        for (name, bytes) in contents(&whole, home) {
            fs.write_all(&home.join(name), &bytes).expect("a file");
        }
        assert_eq!(prefix(&open(&fs).unwrap_or_else(|e| panic!("{lost}: {e}")), lost), 1500);
    }
}

/// Power cuts at all points of an open, after another process died with dirty logs or a write-back lost data.
#[test]
fn the_power_may_go_at_any_point_of_an_opening_that_keeps_logs() {
    for lost in [false, true] {
        let fs = died();
        if lost {
            logs(&fs).iter().for_each(|log| fs.fail_write_back(log).expect("a log"));
        }
        fs.start_recording();
        let db = open(&fs).expect("open");
        write(&db, 1500..1510);
        db.put_opt(key(1510), value(1510), &synced()).expect("a synced write");
        let durable = fs.recorded();
        write(&db, 1511..1600);
        let mut disk = fs.replay().expect("a recording");
        let points = disk.points();
        for point in (0..points).filter(|p| p % 7 == 0 || *p == durable) {
            disk.advance_to(point);
            for mode in [CrashMode::SyncedOnly, CrashMode::Random(point as u64)] {
                let what = format!("lost: {lost}, {point} of {points}, {mode:?}");
                let after = disk.crash_image(mode);
                let db = open(&after).unwrap_or_else(|e| panic!("{what}: {e}"));
                let found = prefix(&db, &what);
                assert!(found >= 500 && (point < durable || found >= 1511), "{what}: {found}");
            }
        }
    }
}

/// A log with a second name (hard link) is not written to: its contents are written as a table instead.
#[test]
fn a_log_with_a_second_name_is_not_written_anew() {
    for lost in [false, true] {
        let fs = died();
        let last = logs(&fs).pop().expect("a log");
        fs.hard_link(&last, Path::new("/fast/kept by somebody")).expect("a second name");
        if lost {
            fs.fail_write_back(&last).expect("a log");
        }
        let fault = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Write && op.path.starts_with("/fast");
        fs.set_fault(Box::new(move |op| fault(op).then(|| io::Error::from_raw_os_error(EIO))));
        let db = open(&fs).expect("open");
        fs.clear_fault();
        assert_eq!(db.live_files().expect("a list").is_empty(), !lost);
        drop(db);
        check_durable(&fs, "a log has a second name");
    }
}

/// A log that cannot be rewritten (a copy-on-write file system is full) does not keep the database closed: what logs
/// hold is written as tables, and the info log says why. The same if a torn record cannot be cut off.
#[test]
fn what_logs_hold_becomes_tables_if_one_cannot_be_rewritten() {
    for kind in [OpKind::Reuse, OpKind::Write, OpKind::Sync, OpKind::Truncate] {
        let cuts = kind == OpKind::Truncate;
        let (fs, count) = if cuts { (torn(100, false), 1499) } else { (died(), 1500) };
        let last = logs(&fs).pop().expect("a log");
        if !cuts {
            fs.fail_write_back(&last).expect("a log");
        }
        let is_log = move |op: &rockmill_io::Op<'_>| op.kind == kind && op.path == last;
        fs.set_fault(Box::new(move |op| is_log(op).then(|| io::Error::from_raw_os_error(ENOSPC))));
        let db = open(&fs).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        fs.clear_fault();
        assert!(!db.live_files().expect("a list").is_empty(), "{kind:?}");
        drop(db);
        let log = String::from_utf8(fs.read_to_vec("/db/LOG".as_ref()).expect("the info log")).expect("text");
        assert!(log.contains("no WAL is kept, and what they hold is written as tables: IO error: cannot "), "{kind:?}");
        check_durable_after(&fs, count, &format!("{kind:?}"));
    }
}

/// Values that stay in memory at an opening may be many times what the last one had there: with a larger
/// `index_inline_size`, or of a database that had no fast path. A recovery writes tables before it takes more memory
/// than writers may.
#[test]
fn a_recovery_takes_no_more_memory_than_writers_may() {
    let fs = MemFileSystem::new();
    let db = open(&fs).expect("open");
    const COUNT: usize = 60_000;
    (0..COUNT).for_each(|i| db.put(key(i), vec![b'v'; 200]).expect("a put"));
    drop(db);
    let mut o = options(&fs);
    o.set_data_flush_trigger_size(16 << 10);
    o.set_index_inline_size(1000);
    let db = Db::open(&o, "/db").expect("open");
    let tables = db.live_files().expect("a list").len();
    assert!(tables > 2, "{tables} tables");
    assert_eq!(db.iterator(IteratorMode::Start).count(), COUNT);
    drop(db);
    assert_eq!(open(&fs).expect("open").iterator(IteratorMode::Start).count(), COUNT);
}

/// As [`died`], with the last `lost` bytes of the newest log's last record missing: truncated, or zeros.
fn torn(lost: u64, zeros: bool) -> MemFileSystem {
    let fs = died();
    let log = logs(&fs).pop().expect("a log");
    let whole = fs.file_size(&log).expect("a size");
    fs.truncate(&log, whole - lost).expect("a cut");
    if zeros {
        fs.truncate(&log, whole + 9000).expect("zeros");
    }
    fs.next_process()
}

/// A torn record is truncated, and the records before it stay in the logs.
#[test]
fn a_torn_record_is_cut_off_and_nothing_is_flushed() {
    let record = 7 + 12 + 1 + 1 + key(1499).len() as u64 + 2 + value(1499).len() as u64;
    // Zeros that begin in the record's last sector do not count as unwritten space.
    for (lost, zeros) in [(1, false), (200, false), (record - 3, false), (600, true), (record - 9, true)] {
        let what = format!("{lost} bytes, zeros: {zeros}");
        let fs = torn(lost, zeros);
        let log = logs(&fs).pop().expect("a log");
        fs.start_recording();
        let db = open(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(db.live_files().expect("a list").is_empty(), "{what}: it was flushed");
        assert_eq!(prefix(&db, &what), 1499, "{what}");
        let end = fs.file_size(&log).expect("a size");
        write(&db, 1499..1520);
        db.put_opt(key(1520), value(1520), &synced()).expect("a synced write");
        let durable = fs.recorded();
        drop(db);
        // Once more, as if nothing had been.
        let db = open(&fs).unwrap_or_else(|e| panic!("{what}, again: {e}"));
        assert!(db.live_files().expect("a list").is_empty(), "{what}: it was flushed later");
        assert_eq!(prefix(&db, &what), 1521, "{what}");
        assert_eq!(fs.file_size(&log).expect("a size"), end, "{what}");
        drop(db);
        // The power goes anywhere in both openings.
        let mut disk = fs.replay().expect("a recording");
        let points = disk.points();
        for point in 0..points {
            disk.advance_to(point);
            for mode in [CrashMode::SyncedOnly, CrashMode::Random(point as u64), CrashMode::KeepAll] {
                let what = format!("{what}, {point} of {points}, {mode:?}");
                let after = disk.crash_image(mode);
                let db = open(&after).unwrap_or_else(|e| panic!("{what}: {e}"));
                let found = prefix(&db, &what);
                // Before the first sync of these opens, the dead process had synced a third.
                let least = match mode {
                    _ if point >= durable => 1521,
                    CrashMode::KeepAll => 1499,
                    _ => 500,
                };
                assert!(found >= least, "{what}: {found}");
                if point % 9 == 0 {
                    db.put_opt(key(found), value(found), &synced()).expect("a synced write");
                    drop(db);
                    let db = open(&after).unwrap_or_else(|e| panic!("{what}, again: {e}"));
                    assert_eq!(prefix(&db, &what), found + 1, "{what}");
                }
            }
        }
    }
}

/// The next log was begun and is empty: it does not show that the torn record was complete.
#[test]
fn a_torn_record_before_an_empty_log_is_cut_off() {
    let fs = torn(100, false);
    let log = logs(&fs).pop().expect("a log");
    let number: u64 = log.file_stem().and_then(|n| n.to_str()).and_then(|n| n.parse().ok()).expect("a number");
    fs.write_all(&Path::new("/fast").join(format!("{:06}.log", number + 1)), b"").expect("an empty log");
    for round in 0..3 {
        let db = open(&fs).expect("open");
        assert!(db.live_files().expect("a list").is_empty(), "opening {round} flushed");
        assert_eq!(prefix(&db, "before an empty log"), 1499);
    }
}

/// If more than the end of the last record is lost, the rest is written as tables, because the next open could not
/// detect the loss.
#[test]
fn a_torn_record_before_others_is_not_cut_off() {
    let fs = died();
    let all = logs(&fs);
    let log = &all[all.len() - 2];
    fs.truncate(log, fs.file_size(log).expect("a size") - 100).expect("a cut");
    let fs = fs.next_process();
    let db = open(&fs).expect("open");
    let found = prefix(&db, "a log in the middle");
    assert!((500..1499).contains(&found), "{found}");
    assert!(!db.live_files().expect("a list").is_empty());
    drop(db);
    assert_eq!(prefix(&open(&fs).expect("open"), "again"), found);
}

/// A torn log with a second name keeps its contents under that name.
#[test]
fn a_torn_log_with_a_second_name_is_not_cut() {
    let fs = torn(100, false);
    let (last, other) = (logs(&fs).pop().expect("a log"), Path::new("/fast/kept by somebody"));
    let contents = fs.read_to_vec(&last).expect("a read");
    fs.hard_link(&last, other).expect("a second name");
    let db = open(&fs).expect("open");
    assert!(!db.live_files().expect("a list").is_empty());
    assert_eq!(prefix(&db, "a second name"), 1499);
    assert!(fs.read_to_vec(other).expect("a read") == contents);
}

/// A page that counted as written leaves the cache between the replay and the comparison with the device. Both then
/// agree, but differ from the memtables' contents.
#[test]
fn a_log_that_left_the_cache_after_its_replay_is_no_base_to_build_on() {
    let fs = died();
    let last = logs(&fs).pop().expect("a log");
    fs.fail_write_back(&last).expect("a log");
    let (other, evicted) = (fs.clone(), last.clone());
    fs.set_hook(Box::new(move |op| {
        if op.kind != OpKind::Sync || op.path != evicted {
            return Fault::None;
        }
        let (fs, path) = (other.clone(), evicted.clone());
        Fault::After(Box::new(move || fs.drop_cache(&path).expect("a log")))
    }));
    let e = open(&fs).expect_err("the log changed").to_string();
    assert!(e.contains("differently") && e.contains(&last.display().to_string()), "{e}");
    fs.clear_fault();
    // What was lost was never durable: what is left is a prefix.
    let found = prefix(&open(&fs).expect("open"), "opened again");
    assert!((500..1500).contains(&found), "{found}");
}

/// On a real disk, an open rewrites no log.
#[test]
fn an_opening_reads_kept_logs_and_writes_none() {
    let test = "an_opening_reads_kept_logs_and_writes_none";
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    let fast = home.path().join("fast");
    o.set_fast_path(&fast, 1 << 30);
    o.set_data_flush_trigger_size(1 << 30);
    o.set_max_index_size(64 << 10);
    let path = home.path().join("db");
    let values = |db: &Db| (0..9000_u32).filter(|i| db.get(i.to_be_bytes()).expect("a get").is_some()).count();
    {
        let db = Db::open(&o, &path).expect("open");
        for i in 0..9000_u32 {
            db.put(i.to_be_bytes(), vec![i as u8; 1000]).expect("a put");
        }
    }
    let log = std::fs::read_dir(&fast).expect("a list").map(|e| e.expect("an entry").path());
    let log = log.filter(|p| p.extension().is_some_and(|e| e == "log")).min().expect("a log");
    if !fs.open_random(&log, true).expect("open").reads_device() {
        return skip(test, &Needs::DirectIo.because("nothing says that direct reads ask the device"));
    }
    for round in 0..2 {
        let before = fs.counts();
        let db = Db::open(&o, &path).expect("open again");
        let written = fs.counts().write_bytes - before.write_bytes;
        assert!(written < 100_000, "opening {round} wrote {written} bytes");
        assert_eq!(values(&db), 9000);
    }
}

/// A name, and how to bring a database into this state.
type State = (&'static str, fn(&MemFileSystem, Db));

/// An open names a single missing log, whatever the other logs contain, and whatever the state of the database was.
#[test]
fn a_missing_log_is_named() {
    let states: [State; 7] = [
        ("closed", |_, db| drop(db)),
        ("opened twice", |fs, db| {
            drop(db);
            drop(open(fs).expect("open"));
        }),
        ("opened and written to", |fs, db| {
            drop(db);
            write(&open(fs).expect("open"), 1500..1600);
        }),
        ("opened, written to a little, and opened", |fs, db| {
            drop(db);
            write(&open(fs).expect("open"), 1500..1510);
            drop(open(fs).expect("open"));
        }),
        ("written to a little, and opened often", |fs, db| {
            drop(db);
            write(&open(fs).expect("open"), 1500..1510);
            write(&open(fs).expect("open"), 1510..1515);
            (0..3).for_each(|_| drop(open(fs).expect("open")));
        }),
        ("flushed", |_, db| {
            db.flush().expect("a flush");
            write(&db, 1500..1600);
            db.wait_for_background_work().expect("no error");
        }),
        ("flushed and opened", |fs, db| {
            db.flush().expect("a flush");
            write(&db, 1500..2600);
            db.wait_for_background_work().expect("no error");
            drop(db);
            write(&open(fs).expect("open"), 2600..2700);
        }),
    ];
    for (state, reach) in states {
        let fs = MemFileSystem::new();
        let db = open(&fs).expect("open");
        write(&db, 0..1500);
        reach(&fs, db);
        let whole = prefix(&open(&fs.next_process()).expect("open"), state);
        let all = logs(&fs);
        assert!(!all.is_empty(), "{state}");
        for log in &all {
            let fs = fs.next_process();
            let contents = fs.read_to_vec(log).expect("a read");
            fs.remove(log).expect("a removal");
            let e = open(&fs).err().unwrap_or_else(|| panic!("{state}: opened without {}", log.display()));
            assert_eq!(e.kind(), ErrorKind::Corruption, "{state}: {e}");
            let name = log.display().to_string();
            assert!(e.to_string().contains(&name) && e.to_string().contains("missing"), "{state}, {name}: {e}");
            // Nothing was changed: with the log restored, all data is there.
            let back = fs.next_process();
            back.write_all(log, &contents).expect("a write");
            assert_eq!(prefix(&open(&back).expect("open"), state), whole, "{state}, {name}");
            // The ways to continue without it: each is needed once, and later opens are normal.
            for way in 0..3 {
                let fs = fs.next_process();
                let mut once = options(&fs);
                if way == 0 {
                    once.set_wal_recovery_mode(RecoveryMode::SkipAnyCorruptedRecords);
                } else {
                    once.set_fast_path("", 0);
                    once.set_wal_dir("/fast");
                    once.set_avoid_flush_during_recovery(way == 2);
                }
                let what = format!("{state}, {name}, {way}");
                let left = entries(&Db::open(&once, "/db").unwrap_or_else(|e| panic!("{what}: {e}")));
                assert!(left.len() <= whole, "{what}");
                for _ in 0..3 {
                    let db = open(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert!(entries(&db) == left, "{what}");
                }
            }
        }
        assert!(whole >= 1500, "{state}");
    }
}

/// Logs that a copy, a restored backup or another way to open does not need are not missed.
#[test]
fn logs_that_were_never_there_are_not_missed() {
    let fs = MemFileSystem::new();
    let db = open(&fs).expect("open");
    write(&db, 0..1500);
    db.flush().expect("a flush");
    Checkpoint::new(&db).and_then(|c| c.create_checkpoint("/copy")).expect("a checkpoint");
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let engine = BackupEngineOptions::new("/backup").and_then(|o| BackupEngine::open(&o, &env));
    let engine = engine.expect("a backup engine");
    engine.create_new_backup(&db).expect("a backup");
    write(&db, 1500..3000);
    drop(db);
    let mut other = options(&fs);
    other.set_fast_path("/fast2", 1 << 30);
    for _ in 0..2 {
        assert_eq!(prefix(&Db::open(&other, "/copy").expect("open"), "a checkpoint"), 1500);
    }
    // Without the option in between, and with it again.
    let mut plain = options(&fs);
    plain.set_fast_path("", 0);
    plain.set_wal_dir("/fast");
    assert_eq!(prefix(&Db::open(&plain, "/db").expect("open"), "as a wal_dir"), 3000);
    assert_eq!(prefix(&open(&fs).expect("open"), "as before"), 3000);
    engine.restore_from_latest_backup("/db", "/fast", &RestoreOptions::default()).expect("restored");
    assert_eq!(prefix(&open(&fs).expect("open"), "restored"), 1500);
}

/// Moves all logs from one directory to another, which then contains only these and `others`.
fn move_logs(fs: &MemFileSystem, from: &str, to: &str, others: &[&str]) {
    fs.create_dir(Path::new(to), true).expect("a directory");
    for name in fs.list_dir(Path::new(from)).expect("a list") {
        if name.ends_with(".log") || others.contains(&&*name) {
            fs.rename(&Path::new(from).join(&name), &Path::new(to).join(&name)).expect("a rename");
        }
    }
}

/// A copy lacks empty logs to which other logs refer. No data is lost, so no open misses them.
#[test]
fn logs_that_copies_lack_since_they_were_empty_are_not_missed() {
    let cfs = ["default", "b"];
    let fs = MemFileSystem::new();
    let mut o = options(&fs);
    o.create_missing_column_families(true);
    let db = Db::open_cf(&o, "/db", cfs).expect("open");
    let b = db.cf_handle("b").expect("a column family");
    write(&db, 0..20);
    db.put_cf(&b, "only", "in the log").expect("a put");
    // A new log begins, and the previous one stays for the other column family.
    db.flush().expect("a flush");
    let newest = fs.list_dir(Path::new("/fast")).expect("a list").into_iter().filter(|n| n.ends_with(".log")).max();
    let newest = Path::new("/fast").join(newest.expect("a log"));
    assert!(fs.file_size(&newest).expect("a size") == 0 && logs(&fs).len() == 1, "{:?}", logs(&fs));
    let named = fs.read_to_vec(&logs(&fs)[0]).expect("a read");
    assert!(named.windows(17).any(|w| w == b"rockmill.precedes"));
    Checkpoint::new(&db).and_then(|c| c.create_checkpoint_with_log_size("/copy", u64::MAX)).expect("a checkpoint");
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let engine = BackupEngineOptions::new("/backup").and_then(|o| BackupEngine::open(&o, &env));
    let engine = engine.expect("a backup engine");
    engine.create_new_backup(&db).expect("a backup");
    engine.restore_from_latest_backup("/restored", "/fast2", &RestoreOptions::default()).expect("restored");
    move_logs(&fs, "/copy", "/fast3", &[]);
    for (path, fast) in [("/restored", "/fast2"), ("/copy", "/fast3")] {
        let newest = Path::new(fast).join(newest.file_name().expect("a name"));
        assert!(!fs.exists(&newest).expect("a look"), "{path} has the empty log");
        let mut o = options(&fs);
        o.set_fast_path(fast, 1 << 30);
        for round in 0..4 {
            let db = Db::open_cf(&o, path, cfs).unwrap_or_else(|e| panic!("{path}, opening {round}: {e}"));
            assert_eq!(prefix(&db, path), 20 + round);
            let b = db.cf_handle("b").expect("a column family");
            assert_eq!(db.get_cf(&b, "only").expect("a get").as_deref(), Some(&b"in the log"[..]), "{path}, {round}");
            write(&db, 20 + round..21 + round);
        }
    }
}

/// The fast device is mounted elsewhere, and a log is missing: an open that fails changes nothing for later ones.
#[test]
fn an_opening_that_refused_leaves_the_next_one_what_it_needs_to_refuse() {
    for last in [false, true] {
        let fs = MemFileSystem::new();
        write(&open(&fs).expect("open"), 0..1500);
        write(&open(&fs).expect("open"), 1500..1600);
        let all = logs(&fs);
        let lost = if last { all.last() } else { all.first() }.expect("a log").clone();
        let contents = fs.read_to_vec(&lost).expect("a read");
        move_logs(&fs, "/fast", "/elsewhere", &["WAL_OWNER"]);
        let lost = Path::new("/elsewhere").join(lost.file_name().expect("a name"));
        fs.remove(&lost).expect("a removal");
        let mut o = options(&fs);
        o.set_fast_path("/elsewhere", 1 << 30);
        for round in 0..3 {
            let e = Db::open(&o, "/db").err().unwrap_or_else(|| panic!("opening {round}, last: {last}")).to_string();
            assert!(e.contains(&lost.display().to_string()) && e.contains("missing"), "{round}, {last}: {e}");
        }
        fs.write_all(&lost, &contents).expect("a write");
        for _ in 0..2 {
            assert_eq!(prefix(&Db::open(&o, "/db").expect("open"), "all is back"), 1600);
        }
    }
}

/// The record that names the next log is written, but the call fails nevertheless, and the process dies.
#[test]
fn a_log_whose_name_was_written_in_a_call_that_failed_is_there() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs);
    o.set_max_bgerror_resume_count(0);
    let db = Db::open(&o, "/db").expect("open");
    write(&db, 0..10);
    let mut fresh = None;
    fs.set_hook(Box::new(move |op| {
        let is_log = op.path.extension().is_some_and(|e| e == "log");
        match op.kind {
            OpKind::Create if is_log => fresh = Some(op.path.to_owned()),
            OpKind::Write if is_log && fresh.as_ref().is_some_and(|fresh| fresh != op.path) => {
                return Fault::Partial(usize::MAX, io::Error::from_raw_os_error(EIO));
            }
            _ => {}
        }
        Fault::None
    }));
    let e = db.flush().expect_err("a write fails").to_string();
    assert!(e.contains("cannot write /fast/"), "{e}");
    let next = fs.next_process();
    let named = next.read_to_vec(&logs(&next)[0]).expect("a read");
    assert!(named.windows(17).any(|w| w == b"rockmill.precedes"));
    for _ in 0..2 {
        assert_eq!(prefix(&open(&next).expect("open"), "after a failed write"), 10);
    }
    fs.clear_fault();
}
