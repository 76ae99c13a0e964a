//! The logs of a fast path: the cost and failures of appends, limits, archives, and all kinds of readers: every
//! strategy, engine and kind of table, and copies of the database.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::event_listener::FlushJobInfo;
use rockmill::statistics::Ticker;
use rockmill::{
    Checkpoint, ColumnFamilyDescriptor, CompactionStyle, Db, Env, EventListener, IteratorMode, MergeEngine, Options,
    TphTableOptions, WalFileType, WriteBatch, WriteOptions, properties,
};
use rockmill_io::{
    CountingFileSystem, CrashMode, Fault, FileSystem, MemFileSystem, OpKind, PosixFileSystem, SystemClock,
};
use rockmill_skip::{Needs, skip};

fn options(fs: &MemFileSystem, capacity: u64) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_fast_path("/fast", capacity);
    o.set_max_index_size(16 << 10);
    o.set_data_flush_trigger_size(50 << 10);
    o
}

/// Waits, for a minute at most.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed().as_secs() < 60, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Number and bytes of the logs in a directory.
fn logs(fs: &MemFileSystem, dir: &str) -> (usize, u64) {
    let names = fs.list_dir(Path::new(dir)).unwrap_or_default();
    let logs = names.iter().filter(|n| n.ends_with(".log"));
    // A log deleted since it was listed has no bytes.
    let sizes = logs.map(|n| fs.file_size(&Path::new(dir).join(n)).unwrap_or(0));
    sizes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
}

/// Updates from a sequence number on: how many, and the first.
fn updates(db: &Db, since: u64) -> (u64, u64) {
    let all = db.get_updates_since(since).expect("an iterator").map(|u| u.expect("a batch").0);
    all.fold((0, 0), |(count, first), seq| (count + 1, if count == 0 { seq } else { first }))
}

/// Archived logs are on the fast device and count: the oldest are deleted while all logs together exceed the capacity.
/// `get_updates_since` finds the remaining ones.
#[test]
fn an_archive_has_what_the_logs_leave_of_the_capacity() {
    let fs = MemFileSystem::new();
    let capacity = 2 << 20;
    let mut o = options(&fs, capacity);
    o.set_wal_ttl_seconds(1_000_000);
    let db = Db::open(&o, "/db").expect("open");
    let all = || logs(&fs, "/fast").1 + logs(&fs, "/fast/archive").1;
    for i in 0..10_000_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
        if i % 1000 == 999 {
            wait_until("logs and archive are too large", || all() <= capacity);
        }
    }
    db.flush().expect("a flush");
    wait_until("logs and archive are too large", || all() <= capacity);
    let (archived, bytes) = logs(&fs, "/fast/archive");
    assert!(archived > 1 && bytes > capacity / 4, "{archived} archived logs of {bytes} bytes");
    assert_eq!(logs(&fs, "/db").0 + logs(&fs, "/db/archive").0, 0);
    let files = db.get_sorted_wal_files().expect("a list");
    let in_archive = files.iter().filter(|f| f.file_type == WalFileType::Archived);
    assert!(in_archive.clone().all(|f| f.path.starts_with("/fast/archive")) && in_archive.count() > 1, "{files:?}");
    let newest = db.latest_sequence_number();
    let since = newest - 500;
    assert_eq!(updates(&db, since), (500, since + 1));
    let (count, first) = updates(&db, 0);
    assert!(first > 1 && count == newest + 1 - first, "{count} updates from {first} on");
    drop(db);
    // With a smaller capacity, fewer bytes remain after the next open.
    o.set_fast_path("/fast", capacity / 2);
    let db = Db::open(&o, "/db").expect("open");
    wait_until("the archive is too large", || all() <= capacity / 2);
    assert_eq!(db.get("key09999").expect("a get"), Some(vec![9999_u32 as u8; 1000]));
    // While file deletions are disabled, none is deleted.
    db.disable_file_deletions().expect("deletions are off");
    for i in 0..3000_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
        if i % 500 == 499 {
            db.flush().expect("a flush");
        }
    }
    assert!(all() > capacity, "{} bytes", all());
    db.enable_file_deletions().expect("deletions are on");
    wait_until("the archive is too large", || all() <= capacity / 2);
    let since = db.latest_sequence_number() - 300;
    assert_eq!(updates(&db, since), (300, since + 1));
}

/// Waits until the info log has this.
fn wait_for_log_line(fs: &MemFileSystem, wanted: &str) {
    let has = || String::from_utf8(fs.read_to_vec("/db/LOG".as_ref()).expect("the info log")).expect("text");
    wait_until(&format!("the info log has no {wanted:?}"), || has().contains(wanted));
}

/// Fails what `hit` says with this error number.
fn fail(fs: &MemFileSystem, error: i32, hit: impl Fn(&rockmill_io::Op<'_>) -> bool + Send + 'static) {
    fs.set_fault(Box::new(move |op| hit(op).then(|| io::Error::from_raw_os_error(error))));
}

const EACCES: i32 = 13;
const EXDEV: i32 = 18;

/// Obsolete logs that cannot be deleted take space: so writers wait, rather than exceed the capacity, and go on as soon
/// as the logs can be deleted.
#[test]
fn obsolete_logs_that_cannot_be_deleted_count() {
    let fs = MemFileSystem::new();
    let capacity = 256 << 10;
    let mut o = options(&fs, capacity);
    o.set_data_flush_trigger_size(1 << 20);
    let db = Db::open(&o, "/db").expect("open");
    let stopped = || db.property_int_value(properties::IS_WRITE_STOPPED).expect("a property") == Some(1);
    let (done, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    fail(&fs, EACCES, |op| op.kind == OpKind::Remove && op.path.starts_with("/fast"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..).take_while(|_| !done.load(Ordering::SeqCst)) {
                db.put(format!("{i:07}"), vec![b'v'; 1000]).expect("no writer gets an error");
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Writers may have had room before the first failure was known.
        let most = capacity * 2;
        let now = || (stopped(), written.load(Ordering::SeqCst), logs(&fs, "/fast").1);
        wait_until("writers wait for ever", || {
            let before = now();
            std::thread::sleep(Duration::from_millis(500));
            before.2 > most || before.0 && before == now()
        });
        let (stopped, before, bytes) = now();
        fs.clear_fault();
        wait_until("writers go on", || written.load(Ordering::SeqCst) > before + 1000);
        done.store(true, Ordering::SeqCst);
        assert!(stopped && bytes <= most, "{stopped}, {bytes} bytes");
    });
    wait_for_log_line(&fs, "cannot delete the obsolete WAL /fast/");
    wait_for_log_line(&fs, "obsolete WALs for which that had failed were deleted or archived: ");
    assert_eq!(db.iterator(IteratorMode::Start).count(), written.into_inner());
    db.flush().expect("a flush");
    wait_until("obsolete logs are deleted", || logs(&fs, "/fast").0 == 1);
}

/// The same at an opening.
#[test]
fn orphans_that_cannot_be_deleted_are_told_and_tried_again() {
    let fs = MemFileSystem::new();
    let o = options(&fs, 1 << 20);
    let db = Db::open(&o, "/db").expect("open");
    db.put("key", "value").expect("a put");
    let held = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Remove && op.path.starts_with("/fast");
    fail(&fs, EACCES, held);
    db.flush().expect("a flush");
    drop(db);
    let (before, _) = logs(&fs, "/fast");
    let db = Db::open(&o, "/db").expect("open");
    wait_for_log_line(&fs, "cannot delete the obsolete WAL /fast/");
    assert!(before > 1 && logs(&fs, "/fast").0 > 1, "{before}");
    fs.clear_fault();
    wait_until("obsolete logs are deleted", || logs(&fs, "/fast").0 == 1);
    drop(db);
}

/// An archive on another device gets nothing. Its logs count as if they were there: writers do not wait, and the oldest
/// are deleted.
#[test]
fn logs_that_cannot_be_archived_do_not_exceed_the_capacity() {
    let fs = MemFileSystem::new();
    let capacity = 1 << 20;
    let mut o = options(&fs, capacity);
    o.set_wal_ttl_seconds(1_000_000);
    let db = Db::open(&o, "/db").expect("open");
    fail(&fs, EXDEV, |op| op.kind == OpKind::Rename && op.path.starts_with("/fast"));
    for i in 0..5000_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
        if i % 1000 == 999 {
            wait_until("logs are too large", || logs(&fs, "/fast").1 <= capacity);
        }
    }
    assert_eq!(logs(&fs, "/fast/archive").0, 0);
    wait_for_log_line(&fs, "cannot archive the obsolete WAL /fast/");
    wait_for_log_line(&fs, "(/fast/archive is on another device; ");
    wait_for_log_line(&fs, "fast_capacity has no room for more");
    let since = db.latest_sequence_number() - 300;
    assert_eq!(updates(&db, since), (300, since + 1), "they are still read");
    fs.clear_fault();
    db.flush().expect("a flush");
    wait_until("logs are archived", || logs(&fs, "/fast/archive").0 > 0 && logs(&fs, "/fast").0 == 1);
    assert_eq!(updates(&db, since), (300, since + 1));
}

#[test]
fn an_archive_that_cannot_be_read_is_told() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 1 << 20);
    o.set_wal_ttl_seconds(1_000_000);
    fail(&fs, EACCES, |op| op.kind == OpKind::ListDir && op.path.starts_with("/fast/archive"));
    let db = Db::open(&o, "/db").expect("open");
    db.put("key", "value").expect("a put");
    db.flush().expect("a flush");
    wait_for_log_line(&fs, "it is not known how much the archive of WALs has: cannot list /fast/archive");
}

/// Logs that have more than half of the capacity are flushed although nobody writes: after an opening with a smaller
/// capacity (without `reproducible`), and until no column family holds back too much.
#[test]
fn an_opening_flushes_logs_that_are_too_large() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 1 << 30);
    o.set_data_flush_trigger_size(1 << 30);
    o.set_index_merge_trigger_num(0);
    let db = Db::open(&o, "/db").expect("open");
    let second = db.create_cf("second", &o).expect("a column family");
    for i in 0..600 {
        let cf = if i < 300 { None } else { Some(&second) };
        let (key, value) = (format!("key{i:05}"), vec![b'v'; 1000]);
        cf.map_or_else(|| db.put(&key, &value), |cf| db.put_cf(cf, &key, &value)).expect("a put");
    }
    drop((second, db));
    let bytes = logs(&fs, "/fast").1;
    assert!(bytes > 600_000, "{bytes}");
    let capacity = 650_000;
    o.set_fast_path("/fast", capacity);
    // Not with `reproducible`: when the timer does that depends on the machine.
    let mut reproducible = o.clone();
    reproducible.set_reproducible(true);
    let db = Db::open_cf(&reproducible, "/db", ["default", "second"]).expect("open");
    std::thread::sleep(Duration::from_millis(1500)); // longer than the timer rests
    assert!(logs(&fs, "/fast").1 >= bytes, "they are flushed");
    drop(db);
    let db = Db::open_cf(&o, "/db", ["default", "second"]).expect("open");
    let second = db.cf_handle("second").expect("it is there");
    wait_until("logs are flushed", || logs(&fs, "/fast").1 < capacity / 2);
    assert_eq!(db.iterator(IteratorMode::Start).count(), 300);
    assert_eq!(db.iterator_cf(&second, IteratorMode::Start).count(), 300);
    drop((second, db));
    // With an even smaller one, also what the second one holds back.
    o.set_fast_path("/fast", 128 << 10);
    let db = Db::open_cf(&o, "/db", ["default", "second"]).expect("open");
    wait_until("logs are flushed", || logs(&fs, "/fast").1 < 64 << 10);
    let changes = db.property_int_value(properties::INDEX_SCHEDULE_CHANGES_DEVICE).expect("a property");
    assert!(changes <= Some(1), "the device is not short for ever: {changes:?}");
}

/// After deletions are disabled, files can be copied: a running deletion from the archive has ended by then, and no new
/// one begins.
#[test]
fn nothing_leaves_the_archive_once_deletions_are_off() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 4 << 20);
    o.set_wal_ttl_seconds(1_000_000);
    let db = Db::open(&o, "/db").expect("open");
    for i in 0..3000_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
    }
    db.flush().expect("a flush");
    drop(db);
    // A smaller capacity: many are deleted at once, each slowly.
    let removed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&removed);
    fs.set_hook(Box::new(move |op| {
        if op.kind == OpKind::Remove && op.path.starts_with("/fast/archive") {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
        Fault::None
    }));
    o.set_fast_path("/fast", 256 << 10);
    let db = Db::open(&o, "/db").expect("open");
    wait_until("nothing is deleted", || removed.load(Ordering::SeqCst) > 0);
    db.disable_file_deletions().expect("deletions are off");
    let (before, there) = (removed.load(Ordering::SeqCst), logs(&fs, "/fast/archive"));
    std::thread::sleep(Duration::from_millis(1500)); // longer than the timer rests
    assert_eq!((removed.load(Ordering::SeqCst), logs(&fs, "/fast/archive")), (before, there));
    drop(db);
    assert!(before > 3, "{before} files were deleted: too few for one to be seen on its way");
}

/// Whether values stay in the log or not, an append of a group is one call, plus one with `sync`.
#[test]
fn a_group_is_appended_by_one_call() {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let fs = CountingFileSystem::new(Arc::new(PosixFileSystem::default()));
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_fast_path(home.path().join("fast"), 1 << 30);
    let db = Db::open(&o, home.path().join("db")).expect("open");
    db.put("first", "1").expect("a put");
    for threads in [1, 16] {
        for sync in [false, true] {
            let mut how = WriteOptions::default();
            how.set_sync(sync);
            let (counters, calls) = (db.counters(), fs.counts());
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (db, how) = (&db, &how);
                    scope.spawn(move || {
                        for i in 0..3200 / threads {
                            db.put_opt(format!("{thread} {i}"), vec![b'v'; 1000], how).expect("a put");
                        }
                    });
                }
            });
            let calls = fs.counts() - calls;
            let groups = db.counters().write_groups - counters.write_groups;
            let what = format!("{threads} threads, sync {sync}: {groups} groups of 3200 writes, {calls:?}");
            println!("{what}");
            // The info log may be written meanwhile.
            let writes = groups..=groups + 8;
            assert!(writes.contains(&calls.writes) && calls.ring_writes == 0, "{what}");
            assert_eq!(calls.syncs, if sync { groups } else { 0 }, "{what}");
            assert!(if threads == 1 { groups == 3200 } else { groups <= 3200 }, "{what}");
        }
    }
}

/// How a call on a log fails.
struct Failing {
    what: &'static str,
    kind: OpKind,
    /// Number of its bytes that are written nevertheless.
    written: Option<usize>,
}

/// An append or a sync fails, after writing none, some or all of its bytes. Each writer of the group gets the error
/// with the reason and the log; nothing more is written to that log, and later writers get the same reason. Exactly the
/// acknowledged writes are there, immediately, after `resume` and after a crash.
#[test]
fn a_failed_or_short_append_is_told_once_and_no_more_is_written() {
    const WRITERS: usize = 4;
    for Failing { what, kind, written } in [
        Failing { what: "an append", kind: OpKind::Write, written: None },
        Failing { what: "an append that is cut short", kind: OpKind::Write, written: Some(700) },
        Failing { what: "an append that fails when all is written", kind: OpKind::Write, written: Some(usize::MAX) },
        Failing { what: "a sync", kind: OpKind::Sync, written: None },
    ] {
        let fs = MemFileSystem::new();
        let mut o = options(&fs, 100 << 20);
        o.set_max_index_size(8 << 20);
        let db = Db::open(&o, "/db").expect("open");
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&calls);
        fs.set_hook(Box::new(move |op| {
            let on_log = op.kind == kind && op.path.extension().is_some_and(|e| e == "log");
            if !on_log || seen.fetch_add(1, Ordering::SeqCst) != 20 {
                return Fault::None;
            }
            let e = io::Error::from_raw_os_error(5);
            match written {
                None => Fault::Error(e),
                Some(bytes) => Fault::Partial(bytes, e),
            }
        }));
        let mut how = WriteOptions::default();
        how.set_sync(kind == OpKind::Sync);
        let key = |writer: usize, i: usize| format!("{writer} {i:04}");
        // For each writer: the number of acknowledged writes before the failed one.
        let acknowledged: Vec<usize> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (db, how) = (&db, &how);
                    scope.spawn(move || {
                        let put = |i| db.put_opt(key(writer, i), vec![b'v'; 1000], how);
                        let (done, e) = (0..1000).find_map(|i| Some((i, put(i).err()?))).expect("a call fails");
                        let again = put(done).expect_err("no more is written").to_string();
                        (done, e.to_string(), again)
                    })
                })
                .collect();
            let all: Vec<_> = writers.into_iter().map(|w| w.join().expect("a writer")).collect();
            assert!(all.iter().any(|(_, e, _)| e.contains("/fast/") && e.contains(".log")), "{what}: {all:?}");
            let reason = db.background_error().unwrap_or_else(|| panic!("{what}: the store goes on")).to_string();
            for (_, e, again) in &all {
                assert!(again.contains("resume") && again.contains("/fast/"), "{what}: {again}");
                assert!(e.contains("/fast/") && reason.contains("/fast/"), "{what}: {e}; {reason}");
            }
            all.into_iter().map(|(done, ..)| done).collect()
        });
        assert_eq!(calls.load(Ordering::SeqCst), 21, "{what}: that log got more");
        assert!(acknowledged.iter().sum::<usize>() >= 20, "{what}: {acknowledged:?}");
        let check = |db: &Db, when: &str| {
            let all = db.iterator(IteratorMode::Start).map(|e| e.expect("an entry").0);
            let want = (0..WRITERS).flat_map(|w| (0..acknowledged[w]).map(move |i| key(w, i)));
            assert!(all.eq(want.map(|key| key.into_bytes().into_boxed_slice())), "{what}, {when}: another content");
            for (writer, &done) in acknowledged.iter().enumerate() {
                assert_eq!(db.get(key(writer, done)).expect("a get"), None, "{what}, {when}: it was refused");
            }
        };
        check(&db, "read-only");
        db.resume().expect("the device is well again");
        check(&db, "resumed");
        for mode in [CrashMode::KeepAll, CrashMode::SyncedOnly] {
            let mut o = o.clone();
            o.set_file_system(Arc::new(fs.crash_image(mode)));
            check(&Db::open(&o, "/db").expect("open"), "after a crash");
        }
        db.put_opt("more", "1", &how).expect("writes go on");
    }
}

/// A flush begins when the lock is free.
struct HeldFlush(Arc<Mutex<()>>);

impl EventListener for HeldFlush {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        drop(self.0.lock());
    }
}

/// While the slow device accepts nothing, logs fill up to `fast_capacity`, plus the group that was written when there
/// was still room. Then writers wait, without an error.
#[test]
fn needed_logs_never_have_more_than_the_capacity() {
    const WRITERS: usize = 3;
    const RECORD: u64 = 1100;
    let fs = MemFileSystem::new();
    let flush = Arc::new(Mutex::new(()));
    let capacity = 256 << 10;
    let mut o = options(&fs, capacity);
    o.set_data_flush_trigger_size(1 << 20);
    o.add_event_listener(HeldFlush(Arc::clone(&flush)));
    let db = Db::open(&o, "/db").expect("open");
    let stopped = || db.property_int_value(properties::IS_WRITE_STOPPED).expect("a property") == Some(1);
    let (done, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, done, written) = (&db, &done, &written);
            scope.spawn(move || {
                for i in (0..).take_while(|_| !done.load(Ordering::SeqCst)) {
                    db.put(format!("{writer} {i:07}"), vec![b'v'; 1000]).expect("no writer gets an error");
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 0..5 {
            let held = flush.lock().expect("the lock");
            // Obsolete logs of the last flush are deleted meanwhile.
            let bytes = || logs(&fs, "/fast").1;
            wait_until("writers wait", || {
                let before = (stopped(), written.load(Ordering::SeqCst), bytes());
                std::thread::sleep(Duration::from_millis(100));
                before.0 && before == (stopped(), written.load(Ordering::SeqCst), bytes())
            });
            let held_bytes = bytes();
            let bounds = capacity - RECORD..=capacity + RECORD * WRITERS as u64;
            assert!(bounds.contains(&held_bytes), "round {round}: {held_bytes} bytes of logs");
            drop(held);
            let before = written.load(Ordering::SeqCst);
            wait_until("writers go on", || written.load(Ordering::SeqCst) > before + 100);
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(db.iterator(IteratorMode::Start).count(), written.into_inner());
}

/// Keys that are overwritten again and again: each flush writes the last value of each, and dead values are deleted
/// with their logs, long before these are full.
#[test]
fn dead_values_go_with_their_logs_and_are_not_written_again() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 1 << 20);
    o.set_max_index_size(64 << 10);
    o.set_data_flush_trigger_size(32 << 20);
    o.set_compression_type(rockmill::CompressionType::None);
    o.enable_statistics();
    let db = Db::open(&o, "/db").expect("open");
    let mut most = 0;
    let count = 20_000_u32;
    for i in 0..count {
        db.put(format!("key{:02}", i % 20), vec![i as u8; 1000]).expect("a put");
        if i % 64 == 0 {
            most = most.max(logs(&fs, "/fast").1);
        }
    }
    let (written, flushed) = (u64::from(count) * 1000, o.get_ticker_count(Ticker::FlushWriteBytes));
    assert!(flushed > 0 && flushed < written * 8 / 100, "{flushed} of {written} bytes went to the slow device");
    assert!(most < 2 << 20, "{most} bytes of logs");
    for n in 0..20_u32 {
        let last = count - 20 + n;
        assert_eq!(db.get(format!("key{n:02}")).expect("a get"), Some(vec![last as u8; 1000]));
    }
}

/// Column families that are seldom written to do not keep what a hot one has written: they are flushed when much of it
/// is in tables, and not more often than that is worth it.
#[test]
fn logs_that_are_mostly_in_tables_are_emptied() {
    const CAPACITY: u64 = 192 << 20;
    const RECORD: u64 = 1030;
    let fs = MemFileSystem::new();
    let o = options(&fs, CAPACITY);
    let db = Db::open(&o, "/db").expect("open");
    let cold: Vec<_> = ["a", "b", "c"].map(|name| db.create_cf(name, &o).expect("a column family")).into();
    let number = |name| db.property_int_value(name).expect("a property").expect("a number");
    let (count, mut most, mut most_dead) = (150_000_u32, 0, 0);
    for i in 0..count {
        // Each of them has a little in an old log, and they are in different ones.
        if i % 10_000 < 300 && i % 100 == 0 {
            db.put_cf(&cold[i as usize / 100 % 3], format!("{i:06}"), vec![i as u8; 1000]).expect("a put");
        }
        db.put(format!("key{i:06}"), vec![i as u8; 1000]).expect("a put");
        if i % 64 == 0 {
            most = most.max(logs(&fs, "/fast").1);
            most_dead = most_dead.max(number(properties::LOGS_DEAD_BYTES));
        }
    }
    // An eighth of the capacity, and what waits for flushes.
    assert!(most < CAPACITY / 4, "{most} bytes of logs");
    assert!(most_dead > CAPACITY / 16 && most_dead < CAPACITY / 4, "{most_dead} dead bytes");
    let emptied = db.counters().logs_emptied;
    let worth = u64::from(count) * RECORD / (CAPACITY / 8);
    assert!((2..=worth).contains(&emptied), "emptied {emptied} times, and it is worth it {worth} times");
    wait_for_log_line(&fs, "that are in tables already");
    let text = db.property_value(properties::STATS).expect("a property").expect("a text");
    assert!(text.contains(&format!("dead; emptied {emptied} times")), "{text}");
    assert!(number(properties::LOGS_LIVE_BYTES) > 0);
    drop((cold, db));
    let db = Db::open_cf(&o, "/db", ["default", "a", "b", "c"]).expect("open");
    assert_eq!(db.iterator(IteratorMode::Start).count(), count as usize);
    for i in (0..count).filter(|i| i % 10_000 < 300 && i % 100 == 0) {
        let cold = db.cf_handle(["a", "b", "c"][i as usize / 100 % 3]).expect("it is there");
        assert_eq!(db.get_cf(&cold, format!("{i:06}")).expect("a get"), Some(vec![i as u8; 1000]));
    }
}

/// Where the device has less than `fast_capacity`, flushes begin at half of what it has: no append finds it full. What
/// is archived leaves a log's space.
#[test]
fn logs_take_no_more_than_the_device_has() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 1 << 30);
    o.set_data_flush_trigger_size(1 << 30);
    o.set_index_merge_trigger_num(0);
    let db = Db::open(&o, "/db").expect("open");
    fs.set_free_space_in(Path::new("/fast"), Some(2 << 20)).expect("a directory");
    wait_for_log_line(&fs, "which is less than fast_capacity");
    for i in 0..1200_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
    }
    wait_until("there is a flush", || db.counters().flushes > 0);
    let log = String::from_utf8(fs.read_to_vec("/db/LOG".as_ref()).expect("the info log")).expect("text");
    assert!(!log.contains("a write waits for space"), "{log}");
    fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
    wait_for_log_line(&fs, "the device of WALs has space for fast_capacity again");
    drop(db);
    o.set_wal_ttl_seconds(1_000_000);
    let db = Db::open(&o, "/db").expect("open");
    for i in 0..2000_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
    }
    db.flush().expect("a flush");
    wait_until("logs are archived", || logs(&fs, "/fast").0 == 1);
    let (_, bytes) = logs(&fs, "/fast/archive");
    fs.set_free_space(Some(1000));
    wait_until("the archive leaves space", || logs(&fs, "/fast/archive").1 < bytes);
    wait_for_log_line(&fs, "fast_capacity has no room for more, or the device no space");
    assert!(logs(&fs, "/fast/archive").1 > 0);
    fs.set_free_space(None);
    assert_eq!(db.iterator(IteratorMode::Start).count(), 2000);
}

/// The same without writers: what an earlier opening left is emptied after a while, and other column families are left
/// alone.
#[test]
fn an_opening_empties_logs_that_are_mostly_in_tables() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 1 << 30);
    o.set_data_flush_trigger_size(1 << 30);
    o.set_index_merge_trigger_num(0);
    let db = Db::open(&o, "/db").expect("open");
    let cold = db.create_cf("cold", &o).expect("a column family");
    let later = db.create_cf("later", &o).expect("a column family");
    db.put_cf(&cold, "key", "value").expect("a put");
    for i in 0..3000_u32 {
        db.put(format!("key{i:05}"), vec![i as u8; 1000]).expect("a put");
    }
    db.flush().expect("a flush");
    db.put_cf(&later, "key", "value").expect("a put");
    drop((cold, later, db));
    assert!(logs(&fs, "/fast").1 > 3_000_000, "{:?}", logs(&fs, "/fast"));
    let capacity = 16 << 20; // not half of it
    o.set_fast_path("/fast", capacity);
    let db = Db::open_cf(&o, "/db", ["default", "cold", "later"]).expect("open");
    wait_until("logs are emptied", || logs(&fs, "/fast").1 < capacity / 8);
    assert_eq!(db.counters().logs_emptied, 1);
    let memory = |name| {
        let cf = db.cf_handle(name).expect("it is there");
        let entries = db.property_int_value_cf(&cf, properties::NUM_ENTRIES_ACTIVE_MEM_TABLE);
        (entries.expect("a property"), db.get_cf(&cf, "key").expect("a get"))
    };
    assert_eq!(memory("cold"), (Some(0), Some(b"value".to_vec())));
    assert_eq!(memory("later"), (Some(1), Some(b"value".to_vec())));
}

/// Copies, secondaries, readers and repairs get the data that only logs have.
#[test]
fn copies_readers_and_repairs_have_what_the_logs_have() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 100 << 20);
    o.set_max_open_files(-1);
    o.set_data_flush_trigger_size(1 << 30);
    let mut plain = Options::default();
    plain.set_file_system(Arc::new(fs.clone()));
    let db = Db::open(&o, "/db").expect("open");
    let fill = |from: u32| {
        (from..from + 300).for_each(|i| db.put(format!("key{i:04}"), vec![i as u8; 500]).expect("a put"));
    };
    let check = |db: &Db, count: u32, what: &str| {
        let all: Vec<_> = db.iterator(IteratorMode::Start).map(|e| e.expect("an entry")).collect();
        assert_eq!(all.len(), count as usize, "{what}");
        for (i, (key, value)) in all.iter().enumerate() {
            assert_eq!((&key[..], &value[..]), (format!("key{i:04}").as_bytes(), &[i as u8; 500][..]), "{what}");
        }
        assert_eq!(db.get("key0123").expect("a get"), Some(vec![123; 500]), "{what}");
    };
    fill(0);
    let secondary = Db::open_as_secondary(&o, "/db", "/second").expect("a secondary");
    check(&secondary, 300, "a secondary");
    fill(300);
    secondary.try_catch_up_with_primary().expect("caught up");
    check(&secondary, 600, "a secondary later");
    drop(secondary);
    check(&Db::open_for_read_only(&o, "/db", false).expect("open"), 600, "for reading");
    assert_eq!(updates(&db, 0), (600, 1));
    let checkpoint = Checkpoint::new(&db).expect("a checkpoint");
    checkpoint.create_checkpoint_with_log_size("/with logs", u64::MAX).expect("a checkpoint");
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let engine = BackupEngineOptions::new("/backup").and_then(|o| BackupEngine::open(&o, &env));
    let engine = engine.expect("a backup engine");
    engine.create_new_backup(&db).expect("a backup");
    assert!(db.live_files().expect("a list").is_empty(), "nothing was flushed for any of them");
    checkpoint.create_checkpoint("/with tables").expect("a checkpoint");
    fill(600);
    engine.restore_from_latest_backup("/restored", "/restored", &RestoreOptions::default()).expect("restored");
    for copy in ["/with logs", "/with tables", "/restored"] {
        check(&Db::open(&plain, copy).expect("open"), 600, copy);
    }
    drop(db);
    // Only tables and logs are left.
    for name in fs.list_dir(Path::new("/db")).expect("a list") {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove(&Path::new("/db").join(name)).expect("a removal");
        }
    }
    let report = Db::repair(&o, "/db").expect("repaired");
    assert!(report.wal_entries > 0 && report.wals_not_read.is_none(), "{report:?}");
    check(&Db::open(&o, "/db").expect("open"), 900, "repaired");
}

/// A view keeps the logs that it may read open: a flush removes their names, and their space is freed when the view
/// ends.
#[test]
fn logs_take_no_space_once_nobody_reads_them() {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let home = home.path().canonicalize().expect("its name");
    let nameless = || {
        let open = std::fs::read_dir("/proc/self/fd").ok()?;
        let names = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        Some(names.filter(|n| n.starts_with(&home) && n.to_string_lossy().ends_with(".log (deleted)")).count())
    };
    if nameless().is_none() {
        let test = "logs_take_no_space_once_nobody_reads_them";
        return skip(test, &Needs::Proc.because("/proc/self/fd cannot be read"));
    }
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_fast_path(home.join("fast"), 10 << 20);
    o.set_max_index_size(16 << 10);
    let db = Db::open(&o, home.join("db")).expect("open");
    for i in 0..2000 {
        db.put(format!("key{i:04}"), vec![b'v'; 500]).expect("a put");
    }
    let mut iter = db.raw_iterator();
    iter.seek_to_first();
    db.flush().expect("a flush");
    wait_until("logs are deleted", || nameless() > Some(2));
    let mut read = 0;
    while iter.valid() {
        assert_eq!(iter.value(), Some(&[b'v'; 500][..]));
        read += 1;
        iter.next();
    }
    iter.status().expect("a sound iterator");
    assert_eq!(read, 2000);
    drop(iter);
    wait_until("nobody has them open", || nameless() == Some(0));
}

/// Values in logs with each strategy, engine and kind of table, and with two column families that are flushed
/// separately or together.
#[test]
fn every_strategy_engine_and_kind_of_table_takes_values_from_logs() {
    type Strategy = (&'static str, fn(&mut Options));
    type Model = BTreeMap<Vec<u8>, Vec<u8>>;
    let strategies: [Strategy; 8] = [
        ("leveled", |o| o.set_level_compaction_dynamic_level_bytes(false)),
        ("dynamic levels", |o| o.set_level_compaction_dynamic_level_bytes(true)),
        ("tiered", |o| o.set_compaction_style(CompactionStyle::Universal)),
        ("df-leveled", |o| o.set_compaction_downforce(true)),
        ("df-tiered", |o| {
            o.set_compaction_style(CompactionStyle::Universal);
            o.set_compaction_downforce(true);
        }),
        ("classic leveled", |o| o.set_compaction_classic(true)),
        ("classic tiered", |o| {
            o.set_compaction_style(CompactionStyle::Universal);
            o.set_compaction_classic(true);
        }),
        ("FIFO", |o| o.set_compaction_style(CompactionStyle::Fifo)),
    ];
    let engines = [MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Kernel, MergeEngine::Auto];
    let families = ["default", "other"];
    for (n, (strategy, set)) in strategies.into_iter().enumerate() {
        for tph in [false, true] {
            // Each strategy is combined with both ways to flush, and each kind of table with all engines.
            let (engine, atomic) = (engines[n % engines.len()], tph ^ (n / engines.len() == 1));
            let what = format!("{strategy}, {engine}, tph: {tph}, atomic: {atomic}");
            let fs = MemFileSystem::new();
            let mut o = options(&fs, 200 << 10);
            o.create_missing_column_families(true);
            o.set_merge_engine(engine);
            o.set_atomic_flush(atomic);
            o.set_level_zero_file_num_compaction_trigger(2);
            o.set_target_file_size_base(20 << 10);
            o.set_max_bytes_for_level_base(80 << 10);
            if tph {
                o.set_tph_table_factory(&TphTableOptions::default());
            }
            set(&mut o);
            let open = || {
                let cfs = families.map(|name| ColumnFamilyDescriptor::new(name, o.clone()));
                Db::open_cf_descriptors(&o, "/db", cfs).unwrap_or_else(|e| panic!("{what}: {e}"))
            };
            let mut models = [Model::new(), Model::new()];
            let mut rng = fastrand::Rng::with_seed(n as u64);
            for round in 0..2 {
                let db = open();
                for _ in 0..800 {
                    // Both column families in one batch.
                    let mut batch = WriteBatch::new();
                    for (name, model) in families.iter().zip(&mut models) {
                        let cf = db.cf_handle(name).expect("a column family");
                        let key = format!("key{:03}", rng.u32(0..300)).into_bytes();
                        if rng.u8(0..6) == 0 {
                            batch.delete_cf(&cf, &key);
                            model.remove(&key);
                        } else {
                            let value = vec![rng.u8(..); rng.usize(0..900)];
                            batch.put_cf(&cf, &key, &value);
                            model.insert(key, value);
                        }
                    }
                    db.write(&batch).unwrap_or_else(|e| panic!("{what}: {e}"));
                }
                let check = |db: &Db, when: &str| {
                    for (name, model) in families.iter().zip(&models) {
                        let cf = db.cf_handle(name).expect("a column family");
                        let all = db.iterator_cf(&cf, IteratorMode::Start).map(|e| e.expect("an entry"));
                        let all: Model = all.map(|(key, value)| (key.into_vec(), value.into_vec())).collect();
                        assert!(all == *model, "{what}, {name}, round {round}, {when}");
                        for (key, value) in model.iter().step_by(9) {
                            assert_eq!(db.get_cf(&cf, key).expect("a get").as_ref(), Some(value), "{what}, {when}");
                        }
                    }
                };
                check(&db, "written");
                db.wait_for_background_work().expect("no error");
                check(&db, "at rest");
                assert!(!db.live_files().expect("a list").is_empty(), "{what}: nothing was flushed");
                drop(db);
                check(&open(), "opened again");
            }
        }
    }
}
