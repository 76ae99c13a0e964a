//! Either the device of the fast path or the device of the tables is full.

use std::sync::Weak;
use std::sync::atomic::AtomicUsize;

use super::*;
use rockmill::event_listener::FlushJobInfo;
use rockmill::{CompressionType, ErrorKind, properties};

/// Logs in `/fast`; only full memory causes a flush.
fn fast(options: &mut Options) {
    options.set_fast_path("/fast", 1 << 30);
    options.set_max_index_size(1 << 20);
    options.set_data_flush_trigger_size(1 << 30);
    options.set_compression_type(CompressionType::None);
    options.enable_statistics();
}

/// A device with less than `fast_capacity`: writers wait for flushes that make room there, without an error.
#[test]
fn a_device_smaller_than_its_capacity_is_no_error() {
    let (fs, options, db, mut all) = opened(fast);
    let mut n = 0;
    // Also with a log smaller than an index table's memory, and with one that few records fill.
    for (bytes, count) in [(300_000, 800), (5_000, 100), (1 << 20, 1500)] {
        fs.set_free_space_in(Path::new("/fast"), Some(bytes)).expect("a directory");
        for i in 0..count {
            n += 1;
            let how = if i % 10 == 0 { synced() } else { WriteOptions::default() };
            all.write(&db, &format!("{n:05}"), 1000, &how).unwrap_or_else(|e| panic!("{bytes} bytes: {e}"));
            if i % 300 == 50 {
                all.check(&format!("{bytes} bytes, a crash"), &after(&fs, CrashMode::KeepAll, &options));
                let power_cut = after(&fs, CrashMode::SyncedOnly, &options);
                Acknowledged::default().check(&format!("{bytes} bytes, a power cut"), &power_cut);
            }
        }
        all.check(&format!("{bytes} bytes"), &db);
    }
    assert!(db.background_error().is_none());
    assert_eq!(options.get_ticker_count(Ticker::ErrorHandlerBgErrorCount), 0);
    all.write(&db, "synced", 10, &synced()).expect("a write");
    let log = String::from_utf8(fs.read_to_vec("/db/LOG".as_ref()).expect("the info log")).expect("text");
    assert!(log.contains("a write waits for space on the device of WALs"), "it was never full");
    for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
        all.check(&format!("{mode:?}"), &after(&fs, mode, &options));
    }
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// A flush begins when the lock is free.
struct HeldFlush(Arc<Mutex<()>>);

impl EventListener for HeldFlush {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        drop(self.0.lock());
    }
}

/// A store with something to flush, on a device that is full, and the lock that keeps flushes from it.
fn full_device() -> (MemFileSystem, Options, Db, Acknowledged, Arc<Mutex<()>>) {
    let lock = Arc::new(Mutex::new(()));
    let (fs, options, db, mut all) = opened(|o| {
        fast(o);
        o.add_event_listener(HeldFlush(Arc::clone(&lock)));
    });
    for n in 0..100 {
        all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()).expect("a write");
    }
    fs.set_free_space_in(Path::new("/fast"), Some(700)).expect("a directory");
    (fs, options, db, all, lock)
}

fn is_stopped(db: &Db) -> bool {
    db.property_int_value(properties::IS_WRITE_STOPPED).expect("a property") == Some(1)
}

/// Others fill the device, while the store's own flush takes long. A group waits, of which nothing is to be seen after
/// a crash meanwhile, and goes on as soon as others make space.
#[test]
fn a_group_waits_for_a_full_device_and_is_whole_or_not_there() {
    let (fs, options, db, mut all, lock) = full_device();
    let held = lock.lock().expect("the lock");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut own = Acknowledged::default();
            own.write(&db, "waits", 1000, &synced()).expect("no writer gets an error");
            own
        });
        wait_until("it waits", || is_stopped(&db));
        let stats = db.property_value(properties::DBSTATS).expect("a property").expect("a text");
        assert!(stats.contains("reason: bytes on the fast device (it is full)"), "{stats}");
        std::thread::sleep(Duration::from_millis(1500)); // it was tried again
        assert!(is_stopped(&db) && !writer.is_finished());
        for mode in [CrashMode::KeepAll, CrashMode::SyncedOnly] {
            let image = fs.crash_image(mode);
            let mut o = super::options(&image);
            fast(&mut o);
            let image = open(&o, path());
            match mode {
                CrashMode::KeepAll => all.check("a crash", &image),
                _ => Acknowledged::default().check("a power cut", &image),
            }
            assert_eq!(image.get("waits").expect("a get"), None, "{mode:?}: it was not acknowledged");
        }
        fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
        let own = writer.join().expect("a writer");
        all.0.extend(own.0);
    });
    drop(held);
    assert!(db.background_error().is_none());
    all.check("it has gone on", &db);
    all.check("after a crash", &after(&fs, CrashMode::SyncedOnly, &options));
}

/// Writers that do not wait are told so, and are not in the way of others. A database that is closed lets writers go.
#[test]
fn writers_that_may_not_wait_for_a_full_device_do_not() {
    let (fs, options, db, mut all, lock) = full_device();
    let held = lock.lock().expect("the lock");
    let mut how = WriteOptions::default();
    how.set_no_slowdown(true);
    for _ in 0..3 {
        let e = all.write(&db, "impatient", 1000, &how).expect_err("it would wait");
        assert!(e.kind() == ErrorKind::Incomplete && e.to_string().contains("it is full"), "{e}");
    }
    assert!(db.background_error().is_none());
    fs.set_free_space_in(Path::new("/fast"), Some(700)).expect("a directory");
    drop(held);
    all.write(&db, "patient", 1000, &WriteOptions::default()).expect("a flush makes space");
    all.check("after it", &db);
    all.check("after a crash", &after(&fs, CrashMode::KeepAll, &options));
    let held = lock.lock().expect("the lock");
    fs.set_free_space_in(Path::new("/fast"), Some(0)).expect("a directory");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| Acknowledged::default().write(&db, "late", 1000, &WriteOptions::default()));
        wait_until("it waits", || is_stopped(&db));
        db.cancel_all_background_work(false);
        let e = writer.join().expect("a writer").expect_err("the database closes");
        assert_eq!(e.kind(), ErrorKind::ShutdownInProgress, "{e}");
    });
    drop(held);
    drop(db);
    fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
    let db = open(&options, path());
    all.check("reopened", &db);
    assert_eq!((db.get("late").expect("a get"), db.get("impatient").expect("a get")), (None, None));
}

/// A new log that cannot be created is no error while a flush runs that will make space.
#[test]
fn a_log_that_cannot_be_created_is_waited_for() {
    let (fs, options, db, mut all, lock) = full_device();
    fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
    let held = lock.lock().expect("the lock");
    std::thread::scope(|scope| {
        // It runs until the lock is free.
        let flush = scope.spawn(|| db.flush());
        wait_until("it runs", || db.property_int_value(properties::NUM_RUNNING_FLUSHES).expect("known") == Some(1));
        all.write(&db, "before", 1000, &WriteOptions::default()).expect("a write");
        let creates = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Create && op.path.starts_with("/fast");
        let appends = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Write && op.path.starts_with("/fast");
        fs.set_fault(Box::new(move |op| (creates(op) || appends(op)).then(no_space)));
        let writer = scope.spawn(|| {
            let mut own = Acknowledged::default();
            own.write(&db, "waits", 1000, &synced()).expect("no writer gets an error");
            own
        });
        wait_until("it waits", || is_stopped(&db));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!writer.is_finished() && db.background_error().is_none());
        fs.clear_fault();
        drop(held);
        flush.join().expect("a flush").expect("it ends");
        all.0.extend(writer.join().expect("a writer").0);
    });
    assert!(db.background_error().is_none());
    all.check("after it", &db);
    all.check("after a crash", &after(&fs, CrashMode::SyncedOnly, &options));
}

/// Writes when a flush begins, and keeps what came of it.
#[derive(Default)]
struct WritesInFlush(Mutex<Weak<Db>>, Mutex<Vec<rockmill::Result<()>>>);

impl EventListener for WritesInFlush {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        let db = self.0.lock().expect("a lock").upgrade();
        if let Some(db) = db {
            let done = db.put("from a listener", vec![b'v'; 5000]);
            self.1.lock().expect("a lock").push(done);
        }
    }
}

/// A flush may wait for the write of a listener, which thus does not wait for a flush: it gets the error.
#[test]
fn a_write_of_a_listener_does_not_wait_for_a_full_device() {
    let writes = Arc::new(WritesInFlush::default());
    let listener = Arc::clone(&writes);
    let (fs, options, db, mut all) = opened(move |o| {
        fast(o);
        o.add_event_listener(Shared(listener));
    });
    let db = Arc::new(db);
    for n in 0..50 {
        all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()).expect("a write");
    }
    *writes.0.lock().expect("a lock") = Arc::downgrade(&db);
    fs.set_free_space_in(Path::new("/fast"), Some(700)).expect("a directory");
    // It begins a flush, whose listener finds no space either.
    let _ = all.write(&db, "maybe", 1000, &WriteOptions::default());
    wait_until("the listener is called", || !writes.1.lock().expect("a lock").is_empty());
    let first = writes.1.lock().expect("a lock").remove(0).expect_err("no space");
    assert!(first.is_no_space(), "{first}");
    fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
    *writes.0.lock().expect("a lock") = Weak::new();
    wait_until("it resumes", || db.background_error().is_none());
    all.write(&db, "later", 1000, &synced()).expect("a write");
    let db = Arc::into_inner(db).expect("the last one");
    all.check("resumed", &db);
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// A listener of which the test keeps another handle.
struct Shared(Arc<WritesInFlush>);

impl EventListener for Shared {
    fn on_flush_begin(&self, info: &FlushJobInfo) {
        self.0.on_flush_begin(info);
    }
}

/// Whatever part of a record a full device, or a quota, takes, it is cut off, and the group is appended again. Nothing
/// is retried of a sync.
#[test]
fn what_a_full_device_took_of_a_record_is_cut_off() {
    const EDQUOT: i32 = 122;
    let (fs, options, db, mut all) = opened(fast);
    let appends = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&appends);
    fs.set_hook(Box::new(move |op| {
        let log = op.path.starts_with("/fast") && op.path.extension().is_some_and(|e| e == "log");
        match op.kind == OpKind::Write && log {
            true if seen.fetch_add(1, Ordering::SeqCst) % 20 == 10 => {
                Fault::Partial(seen.load(Ordering::SeqCst) * 37 % 2100, std::io::Error::from_raw_os_error(EDQUOT))
            }
            _ => Fault::None,
        }
    }));
    for n in 0..200 {
        all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()).expect("it is tried again");
    }
    assert!(appends.load(Ordering::SeqCst) > 205 && db.background_error().is_none());
    all.check("after it", &db);
    all.check("after a crash", &after(&fs, CrashMode::KeepAll, &options));
    fs.set_fault(Box::new(|op| (op.kind == OpKind::Sync && op.path.starts_with("/fast")).then(no_space)));
    let e = all.write(&db, "synced", 1000, &synced()).expect_err("a failed sync");
    assert!(e.is_no_space(), "{e}");
    fs.clear_fault();
    wait_until("it resumes", || db.background_error().is_none());
    all.write(&db, "later", 1000, &synced()).expect("a write");
    all.check("resumed", &db);
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// Only the flush of the store's own recovery makes room there: after a failed sync nobody waits.
#[test]
fn a_full_fast_device_is_emptied_by_the_recovery() {
    let (fs, options, db, mut all) = opened(fast);
    let mut n = 0;
    for round in 0..3 {
        for _ in 0..100 {
            n += 1;
            all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()).expect("a write");
        }
        fs.set_fault(Box::new(|op| (op.kind == OpKind::Sync && op.path.starts_with("/fast")).then(no_space)));
        fs.set_free_space_in(Path::new("/fast"), Some(5000)).expect("a directory");
        let e = all.write(&db, &format!("{n:05} synced"), 1000, &synced()).expect_err("a failed sync");
        assert!(e.is_no_space() && e.to_string().contains("/fast"), "{e}");
        fs.clear_fault();
        wait_until("it resumes", || db.background_error().is_none());
        all.check(&format!("round {round}"), &db);
        fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
        all.write(&db, &format!("{n:05} again"), 100, &synced()).expect("there is space again");
    }
    for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
        all.check(&format!("{mode:?}"), &after(&fs, mode, &options));
    }
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// Other files fill the device: with nothing to flush, retries would be useless.
#[test]
fn a_fast_device_that_others_fill_is_waited_for() {
    let (fs, options, db, mut all) = opened(fast);
    fs.set_free_space_in(Path::new("/fast"), Some(0)).expect("a directory");
    let e = all.write(&db, "k", 1000, &WriteOptions::default()).expect_err("the device is full");
    assert!(e.is_no_space() && e.to_string().contains("make space there"), "{e}");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(options.get_ticker_count(Ticker::ErrorHandlerAutoresumeRetryTotalCount), 0);
    fs.set_free_space_in(Path::new("/fast"), None).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.write(&db, "k", 1000, &synced()).expect("there is space again");
    all.check("after it", &db);
}

/// A flush needs space for the values that index tables refer to, not for the tables' memory.
#[test]
fn a_full_slow_device_is_waited_for_until_the_values_fit() {
    let (fs, options, db, mut all) = opened(fast);
    for n in 0..2000 {
        all.write(&db, &format!("{n:05}"), 1000, &WriteOptions::default()).expect("a write");
    }
    let memory = db.property_int_value("rocksdb.cur-size-all-mem-tables").expect("a property").expect("known");
    assert!(memory < 1 << 20, "{memory} bytes of index tables");
    fs.set_free_space_in(path(), Some(1 << 20)).expect("a directory");
    let e = db.flush().expect_err("2 MB are written");
    assert!(e.is_no_space(), "{e}");
    wait_until("the error is known", || db.background_error_severity() == Some(ErrorSeverity::Hard));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(options.get_ticker_count(Ticker::ErrorHandlerAutoresumeRetryTotalCount), 0, "tries in vain");
    all.check("while it is full", &db);
    fs.set_free_space_in(path(), None).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.write(&db, "later", 1000, &synced()).expect("a write");
    all.check("after it", &db);
    drop(db);
    all.check("reopened", &open(&options, path()));
}

/// Writes values that compress to a tenth or less, or incompressible ones.
fn fill(all: &mut Acknowledged, db: &Db, keys: std::ops::Range<usize>, random: Option<u64>) {
    let mut rng = random.map(fastrand::Rng::with_seed);
    for n in keys {
        let value: Vec<u8> = (0..1000).map(|i| rng.as_mut().map_or((i % 10) as u8, |rng| rng.u8(..))).collect();
        let mut batch = WriteBatch::new();
        for family in FAMILIES {
            batch.put_cf(&db.cf_handle(family).expect("opened"), format!("{n:05}"), &value);
        }
        db.write(&batch).expect("a write");
        all.0.insert(format!("{n:05}"), value);
    }
}

/// Tables of compressed values need less space than the values. How much less is unknown before the first flush, and
/// after a flush of different values: then a few attempts fail, but not many.
#[test]
fn a_full_slow_device_is_waited_for_until_the_compressed_values_fit() {
    let (fs, options, db, mut all) = opened(|o| {
        fast(o);
        o.set_compression_type(CompressionType::Lz4);
        // Attempts that only determine the required space do not count.
        o.set_max_bgerror_resume_count(1);
    });
    let tries = || options.get_ticker_count(Ticker::ErrorHandlerAutoresumeRetryTotalCount);
    let fail = |db: &Db| {
        fs.set_free_space_in(path(), Some(0)).expect("a directory");
        let e = db.flush().expect_err("there is no space");
        assert!(e.is_no_space(), "{e}");
        wait_until("the error is known", || db.background_error_severity() == Some(ErrorSeverity::Hard));
    };
    // Two column families with 2 MB each.
    fill(&mut all, &db, 0..2000, None);
    fail(&db);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(tries(), 0);
    fs.set_free_space_in(path(), Some(1_300_000)).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.check("there was space for the tables, and not for the values", &db);
    fs.set_free_space_in(path(), None).expect("a directory");
    // The same amount of incompressible values, which the store cannot know.
    fill(&mut all, &db, 2000..4000, Some(1));
    let before = tries();
    fail(&db);
    fs.set_free_space_in(path(), Some(1_300_000)).expect("a directory");
    let mut seen = before;
    wait_until("it waits", || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut seen, tries()) == tries()
    });
    let in_vain = tries() - before;
    assert!((1..=6).contains(&in_vain), "{in_vain} tries in vain");
    all.check("while it is full", &db);
    fs.set_free_space_in(path(), None).expect("a directory");
    wait_until("it resumes", || db.background_error().is_none());
    all.check("after it", &db);
    drop(db);
    all.check("reopened", &open(&options, path()));
}
