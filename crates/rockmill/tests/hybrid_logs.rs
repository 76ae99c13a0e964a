//! What the logs of a fast path cost and what is kept of them: calls of an append, and the archive.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rockmill::{Db, Options, WalFileType, WriteOptions};
use rockmill_io::{CountingFileSystem, Fault, FileSystem, MemFileSystem, OpKind, PosixFileSystem};

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
    // One that was deleted since it was listed has no bytes.
    let sizes = logs.map(|n| fs.file_size(&Path::new(dir).join(n)).unwrap_or(0));
    sizes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
}

/// Updates from a sequence number on: how many, and the first.
fn updates(db: &Db, since: u64) -> (u64, u64) {
    let all = db.get_updates_since(since).expect("an iterator").map(|u| u.expect("a batch").0);
    all.fold((0, 0), |(count, first), seq| (count + 1, if count == 0 { seq } else { first }))
}

/// Archived logs are on the fast device and count: the oldest go while all logs have more than it is to hold. What is
/// there is what `get_updates_since` finds.
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
    // A device that is to hold less has less after the next opening.
    o.set_fast_path("/fast", capacity / 2);
    let db = Db::open(&o, "/db").expect("open");
    wait_until("the archive is too large", || all() <= capacity / 2);
    assert_eq!(db.get("key09999").expect("a get"), Some(vec![9999_u32 as u8; 1000]));
    // As long as files may not be deleted, none is.
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

/// Whoever has forbidden deletions copies what is there: a deletion from the archive that had begun has ended by then,
/// and none begins.
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
    // A smaller device: many go at once, each slowly.
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

/// Values in the log or not, an append of a group is one call, and with `sync` one more.
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
