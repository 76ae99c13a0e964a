//! A second failure while the store recovers from the first, and failures of all kinds of writes to the MANIFEST.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};

use rockmill::event_listener::FlushJobInfo;
use rockmill::{Checkpoint, Db, Env, ErrorSeverity, EventListener, Options};
use rockmill_io::{CrashMode, Fault, MemFileSystem, Op, OpKind, SystemClock};

use crate::{no_space, options, path, synced, wait_until};

fn eio() -> std::io::Error {
    std::io::Error::from_raw_os_error(5)
}

fn is_wal(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "log")
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "sst")
}

fn is_manifest(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("MANIFEST"))
}

/// A call that waits until it is released.
#[derive(Default)]
struct Gate {
    waits: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn hold(self: &Arc<Self>) -> Fault {
        let gate = Arc::clone(self);
        Fault::After(Box::new(move || {
            gate.waits.store(true, Ordering::SeqCst);
            while !gate.open.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }))
    }

    fn wait(&self, what: &str) {
        wait_until(what, || self.waits.load(Ordering::SeqCst));
    }
}

/// A store whose compaction and recovery wait at the points that the tests examine.
struct HalfDone {
    fs: MemFileSystem,
    options: Options,
    db: Db,
    compaction: Arc<Gate>,
    flush: Arc<Gate>,
    wal_fails: Arc<AtomicBool>,
    compaction_fails: Arc<AtomicBool>,
}

/// Two tables, whose compaction waits and will run out of space. The recovery's flush waits, too. `tries`: how often
/// the store tries to resume automatically.
fn half_done(tries: i32) -> HalfDone {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_level_zero_file_num_compaction_trigger(2);
    options.set_max_background_jobs(4);
    options.set_max_bgerror_resume_count(tries);
    let db = Db::open(&options, path()).expect("a database");
    let (compaction, flush) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let (wal_fails, compaction_fails) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let hook = {
        let (compaction, flush) = (Arc::clone(&compaction), Arc::clone(&flush));
        let (wal_fails, compaction_fails) = (Arc::clone(&wal_fails), Arc::clone(&compaction_fails));
        let tables = AtomicU32::new(0);
        let output: Mutex<Option<PathBuf>> = Mutex::default();
        move |op: &Op<'_>| {
            if is_table(op.path) && op.kind == OpKind::Create {
                // Two flushes, their compaction, the recovery's flush.
                match tables.fetch_add(1, Ordering::SeqCst) {
                    2 => {
                        *output.lock().expect("no panic") = Some(op.path.to_owned());
                        return compaction.hold();
                    }
                    3 => return flush.hold(),
                    _ => {}
                }
            }
            let writes = matches!(op.kind, OpKind::Write | OpKind::Sync);
            let is_output = output.lock().expect("no panic").as_deref() == Some(op.path);
            if writes && is_output && compaction_fails.load(Ordering::SeqCst) {
                return Fault::Error(no_space());
            }
            if op.kind == OpKind::Write && is_wal(op.path) && wal_fails.swap(false, Ordering::SeqCst) {
                return Fault::Partial(5, no_space());
            }
            Fault::None
        }
    };
    fs.set_hook(Box::new(hook));
    for round in 0..2 {
        db.put("k", round.to_string()).expect("a write");
        db.flush().expect("a flush");
    }
    compaction.wait("the compaction");
    HalfDone { fs, options, db, compaction, flush, wal_fails, compaction_fails }
}

/// A compaction runs out of space while the recovery from a failed write is half done. Its error is less severe: it
/// must not admit writers before acknowledged data is in tables.
#[test]
fn a_lesser_failure_during_a_recovery_lets_no_writer_in() {
    let HalfDone { fs, options, db, compaction, flush, wal_fails, compaction_fails } = half_done(i32::MAX);
    for n in 0..5 {
        db.put(format!("u{n}"), "not synced").expect("a write");
    }
    wal_fails.store(true, Ordering::SeqCst);
    db.put("refused", "x").expect_err("the disk is full");
    flush.wait("the recovery's flush");
    compaction.open.store(true, Ordering::SeqCst);
    let errors = || db.property_int_value("rocksdb.background-errors").expect("a property").expect("known");
    wait_until("the compaction fails", || errors() > 1);
    assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Hard), "the recovery is half done");
    db.put_opt("early", "x", &synced()).expect_err("the recovery is half done");
    for mode in [CrashMode::KeepAll, CrashMode::Random(1), CrashMode::Random(2)] {
        let mut again = options.clone();
        again.set_file_system(Arc::new(fs.crash_image(mode)));
        let again = Db::open(&again, path()).unwrap_or_else(|e| panic!("{mode:?}: {e}"));
        assert_eq!(again.get("early").expect("a read"), None, "{mode:?}");
    }
    flush.open.store(true, Ordering::SeqCst);
    wait_until("writes go on", || db.background_error_severity() != Some(ErrorSeverity::Hard));
    db.put_opt("synced", "x", &synced()).expect("a write");
    for seed in 0..50 {
        let mut again = options.clone();
        again.set_file_system(Arc::new(fs.crash_image(CrashMode::Random(seed))));
        let again = Db::open(&again, path()).unwrap_or_else(|e| panic!("{seed}: {e}"));
        for key in ["u0", "u4", "synced"] {
            assert!(again.get(key).expect("a read").is_some(), "{key} is lost in power cut {seed}");
        }
    }
    compaction_fails.store(false, Ordering::SeqCst);
    wait_until("the compaction's error goes", || db.background_error().is_none());
    db.wait_for_background_work().expect("quiet");
    assert_eq!(db.get("refused").expect("a read"), None);
}

/// Like RocksDB's `Resume`, `resume` returns errors that occurred meanwhile, even those that stop no writes.
#[test]
fn resume_tells_of_a_lesser_failure_meanwhile() {
    let HalfDone { db, compaction, flush, wal_fails, compaction_fails, .. } = half_done(0);
    db.put("acknowledged", "1").expect("a write, which the recovery is to flush");
    wal_fails.store(true, Ordering::SeqCst);
    db.put("refused", "x").expect_err("the disk is full");
    let errors = || db.property_int_value("rocksdb.background-errors").expect("a property").expect("known");
    std::thread::scope(|s| {
        let resume = s.spawn(|| db.resume());
        flush.wait("the recovery's flush");
        compaction.open.store(true, Ordering::SeqCst);
        wait_until("the compaction fails", || errors() > 1);
        flush.open.store(true, Ordering::SeqCst);
        let e = resume.join().expect("no panic").expect_err("the compaction failed meanwhile");
        assert!(e.to_string().contains("compactions wait"), "{e}");
    });
    assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Soft));
    db.put("k", "taken").expect("what failed stops no writes");
    compaction_fails.store(false, Ordering::SeqCst);
    db.resume().expect("nothing fails now");
    db.wait_for_background_work().expect("quiet");
    assert_eq!(db.get("k").expect("a read").as_deref(), Some(&b"taken"[..]));
    assert_eq!(db.get("refused").expect("a read"), None);
}

/// The failed WAL cannot be truncated in the first recovery. After the second one, checkpoints, backups and readers of
/// updates know the WAL with the new writes.
#[test]
fn a_copy_after_a_recovery_in_vain_has_what_was_written_since() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(&options, path()).expect("a database");
    db.put("a", "1").expect("a write");
    let (mut write, mut truncate) = (true, true);
    fs.set_hook(Box::new(move |op| match op.kind {
        OpKind::Write if is_wal(op.path) && std::mem::take(&mut write) => Fault::Partial(5, eio()),
        OpKind::Truncate if is_wal(op.path) && std::mem::take(&mut truncate) => Fault::Error(eio()),
        _ => Fault::None,
    }));
    db.put("refused", "2").expect_err("the WAL fails");
    let wals = || {
        let names = rockmill_io::FileSystem::list_dir(&fs, path()).expect("names");
        names.iter().filter(|n| n.ends_with(".log")).count()
    };
    assert_eq!(wals(), 1);
    db.resume().expect_err("the WAL cannot be cut");
    assert_eq!(wals(), 1, "a WAL that never was in use is left");
    db.put("early", "2").expect_err("it has not resumed");
    db.resume().expect("the second time");
    fs.clear_fault();
    let keys: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    for key in &keys {
        db.put_opt(key, "3", &synced()).expect("a write");
    }
    let check = |what: &str, db: &Db| {
        for key in keys.iter().map(String::as_str).chain(["a"]) {
            assert!(db.get(key).expect("a read").is_some(), "{what}: {key} is missing");
        }
        assert_eq!(db.get("refused").expect("a read"), None, "{what}");
    };
    let checkpoint = Checkpoint::new(&db).expect("a checkpoint");
    checkpoint.create_checkpoint_with_log_size("/checkpoint", u64::MAX).expect("a checkpoint");
    check("checkpoint", &Db::open(&options, "/checkpoint").expect("a database"));
    let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
    let backups = BackupEngineOptions::new("/backups").expect("options");
    let backups = BackupEngine::open(&backups, &env).expect("backups");
    backups.create_new_backup(&db).expect("a backup");
    backups.restore_from_latest_backup("/restored", "/restored", &RestoreOptions::default()).expect("a restore");
    check("restored", &Db::open(&options, "/restored").expect("a database"));
    let updates = db.get_updates_since(1).expect("updates").map(|u| u.expect("an update").1.len()).sum::<usize>();
    assert_eq!(updates, keys.len());
}

/// The n-th sync of the MANIFEST from now on fails.
fn manifest_sync_fails(fs: &MemFileSystem) {
    let mut armed = true;
    fs.set_fault(Box::new(move |op| {
        let it = op.kind == OpKind::Sync && is_manifest(op.path);
        (it && std::mem::take(&mut armed)).then(eio)
    }));
}

/// Opens the disk's current state with the column families in it.
fn reopen(options: &Options, fs: &MemFileSystem) -> Db {
    let mut options = options.clone();
    options.create_missing_column_families(false);
    options.set_file_system(Arc::new(fs.crash_image(CrashMode::KeepAll)));
    let names = Db::list_cf(&options, path()).expect("names");
    Db::open_cf(&options, path(), names).expect("the families that the MANIFEST names")
}

/// It is unknown whether the column family was dropped: no write to it may be acknowledged until that is known.
#[test]
fn no_write_is_acknowledged_for_a_family_whose_drop_failed_half_way() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open_cf(&options, path(), ["default", "b"]).expect("a database");
    let b = db.cf_handle("b").expect("opened");
    db.put_cf_opt(&b, "k0", "0", &synced()).expect("a write");
    manifest_sync_fails(&fs);
    db.drop_cf("b").expect_err("the MANIFEST fails");
    fs.clear_fault();
    assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Fatal));
    db.put_cf_opt(&b, "k1", "1", &synced()).expect_err("whether the family is there is unknown");
    db.drop_cf("b").expect_err("no write before it has resumed");
    drop(reopen(&options, &fs));
    db.resume().expect("resume");
    db.put_cf_opt(&b, "k2", "2", &synced()).expect("the family is there");
    let again = reopen(&options, &fs);
    let b = again.cf_handle("b").expect("it was not dropped");
    for (key, value) in [("k0", Some("0")), ("k1", None), ("k2", Some("2"))] {
        assert_eq!(again.get_cf(&b, key).expect("a read").as_deref(), value.map(str::as_bytes), "{key}");
    }
}

/// The same for a failed creation: the database opens with the column families that it had reported.
#[test]
fn a_family_whose_creation_failed_half_way_is_not_there_after_a_resume() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open_cf(&options, path(), ["default"]).expect("a database");
    manifest_sync_fails(&fs);
    db.create_cf("new", &options).expect_err("the MANIFEST fails");
    fs.clear_fault();
    assert_eq!(db.cf_names(), ["default"]);
    db.put_opt("k", "v", &synced()).expect_err("which families there are is unknown");
    db.create_cf("new", &options).expect_err("no new family before it has resumed");
    drop(reopen(&options, &fs));
    db.resume().expect("resume");
    db.put_opt("k", "v", &synced()).expect("a write");
    let again = reopen(&options, &fs);
    assert_eq!(again.cf_names(), ["default"]);
    assert_eq!(again.get("k").expect("a read").as_deref(), Some(&b"v"[..]));
    let new = db.create_cf("new", &options).expect("a family");
    db.put_cf_opt(&new, "k", "v", &synced()).expect("a write");
    let again = reopen(&options, &fs);
    let new = again.cf_handle("new").expect("it was created");
    assert_eq!(again.get_cf(&new, "k").expect("a read").as_deref(), Some(&b"v"[..]));
}

/// All other calls that write to the MANIFEST: none continues as if nothing had happened.
#[test]
fn a_manifest_that_fails_is_a_background_error_whoever_wrote_to_it() {
    type Call = Box<dyn Fn(&Db) -> rockmill::Result<()>>;
    let calls: Vec<(&str, Call)> = vec![
        ("deletion of files", Box::new(|db| db.delete_file_in_range("a", "z"))),
        ("compaction by hand", Box::new(|db| db.compact_range(Some("a"), Some("z")))),
        ("flush", Box::new(|db| db.put("n", "1").and_then(|()| db.flush()))),
        ("ingestion", Box::new(|db| db.ingest_external_file(vec!["/table.sst"]))),
    ];
    for (what, call) in calls {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.set_disable_auto_compactions(true);
        let mut table = rockmill::SstFileWriter::create(&options);
        table.open("/table.sst").expect("a file");
        table.put("m", "ingested").expect("an entry");
        table.finish().expect("a table");
        let db = Db::open(&options, path()).expect("a database");
        for n in 0..2 {
            db.put("b", n.to_string()).expect("a write");
            db.put("c", n.to_string()).expect("a write");
            db.flush().expect("a flush");
        }
        if what != "compaction by hand" {
            db.compact_range(None::<&str>, None::<&str>).expect("a compaction");
        }
        manifest_sync_fails(&fs);
        call(&db).expect_err(what);
        fs.clear_fault();
        assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Fatal), "{what}");
        let errors = db.property_int_value("rocksdb.background-errors").expect("a property");
        assert_eq!(errors, Some(1), "{what}: one failure is one error");
        db.put("after", "x").expect_err(what);
        db.resume().unwrap_or_else(|e| panic!("{what}: {e}"));
        db.put_opt("after", "x", &synced()).expect(what);
        let again = reopen(&options, &fs);
        assert_eq!(again.get("after").expect("a read").as_deref(), Some(&b"x"[..]), "{what}");
        assert_eq!(again.get("b").expect("a read"), db.get("b").expect("a read"), "{what}");
    }
}

struct DropsTheOther(std::sync::OnceLock<std::sync::Weak<Db>>);

struct Teller(Arc<DropsTheOther>);

impl EventListener for Teller {
    fn on_flush_completed(&self, info: &FlushJobInfo) {
        if info.cf_name == "default"
            && let Some(db) = self.0.0.get().and_then(std::sync::Weak::upgrade)
        {
            let _ = db.drop_cf("b");
        }
    }
}

/// A column family is dropped just after the flush of its memtable has committed: reads through its handle still find
/// the table.
#[test]
fn a_table_of_a_family_that_is_dropped_after_the_commit_stays_while_it_is_read() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_atomic_flush(true);
    let teller = Arc::new(DropsTheOther(std::sync::OnceLock::new()));
    options.add_event_listener(Teller(Arc::clone(&teller)));
    let db = Arc::new(Db::open_cf(&options, path(), ["default", "b"]).expect("a database"));
    let b = db.cf_handle("b").expect("opened");
    db.put("k", "v").expect("a write");
    db.put_cf(&b, "k", "v").expect("a write");
    teller.0.set(Arc::downgrade(&db)).unwrap_or_else(|_| panic!("set once"));
    let _ = db.flush_all();
    wait_until("the family is dropped", || db.cf_handle("b").is_none());
    db.wait_for_background_work().expect("quiet");
    assert_eq!(db.get_cf(&b, "k").expect("its handle still reads").as_deref(), Some(&b"v"[..]));
}

/// A flush fails while another column family is written to. The recovery abandons that family's unsynced WAL: no column
/// family may need it afterwards, including the one whose memtable waited for its flush.
#[test]
fn no_family_needs_a_wal_that_a_recovery_has_left() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open_cf(&options, path(), ["default", "b"]).expect("a database");
    let b = db.cf_handle("b").expect("opened");
    db.put_cf(&b, "k", "v").expect("a write");
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    fs.set_hook(Box::new(move |op| match op.kind {
        OpKind::Create if is_table(op.path) => held.hold(),
        OpKind::Write if is_table(op.path) => Fault::Error(eio()),
        _ => Fault::None,
    }));
    let mut no_wait = rockmill::FlushOptions::default();
    no_wait.set_wait(false);
    db.flush_cf_opt(&b, &no_wait).expect("a flush begins");
    gate.wait("the flush");
    for n in 0..4 {
        db.put(format!("unsynced{n}"), vec![b'v'; 3000]).expect("a write");
    }
    gate.open.store(true, Ordering::SeqCst);
    wait_until("the flush fails", || db.background_error().is_some());
    fs.clear_fault();
    db.resume().expect("resume");
    db.put_opt("synced", "v", &synced()).expect("a write");
    for seed in 0..100 {
        let mut again = options.clone();
        again.set_file_system(Arc::new(fs.crash_image(CrashMode::Random(seed))));
        let again = Db::open_cf(&again, path(), ["default", "b"]).unwrap_or_else(|e| panic!("{seed}: {e}"));
        let b = again.cf_handle("b").expect("opened");
        assert!(again.get_cf(&b, "k").expect("a read").is_some(), "{seed}");
        for key in ["unsynced0", "unsynced3", "synced"] {
            assert!(again.get(key).expect("a read").is_some(), "{seed}: {key} is lost");
        }
    }
}
