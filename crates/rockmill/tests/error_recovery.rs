//! Full disks and failed background work: the store reports it, loses nothing acknowledged, and continues automatically
//! when there is space again.

#[path = "error_recovery/fast_path.rs"]
mod fast_path;
#[path = "error_recovery/panics.rs"]
mod panics;
#[path = "error_recovery/twice.rs"]
mod twice;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rockmill::event_listener::{BackgroundErrorReason, BackgroundErrorRecoveryInfo};
use rockmill::statistics::Ticker;
use rockmill::{
    ColumnFamilyDescriptor, Db, Error, ErrorSeverity, EventListener, IteratorMode, Options, WriteBatch, WriteOptions,
};
use rockmill_io::{CrashMode, Fault, FileSystem, MemFileSystem, OpKind};
use rockmill_skip::{Needs, skip};

const FAMILIES: [&str; 2] = ["default", "second"];

fn path() -> &'static Path {
    Path::new("/db")
}

fn options(fs: &MemFileSystem) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_file_system(Arc::new(fs.clone()));
    options.set_bgerror_resume_retry_interval(5_000);
    options
}

fn open(options: &Options, path: &Path) -> Db {
    let families = FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
    Db::open_cf_descriptors(options, path, families).unwrap_or_else(|e| panic!("open: {e}"))
}

/// A new, empty store in memory.
fn opened(set: impl FnOnce(&mut Options)) -> (MemFileSystem, Options, Db, Acknowledged) {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    set(&mut options);
    let db = open(&options, path());
    (fs, options, db, Acknowledged::default())
}

/// A third table in L0 is one too many.
fn compacts_three(o: &mut Options) {
    o.set_level_zero_file_num_compaction_trigger(3);
    o.set_atomic_flush(true);
}

/// What was acknowledged.
#[derive(Default)]
struct Acknowledged(BTreeMap<String, Vec<u8>>);

impl Acknowledged {
    /// Writes to both column families; false if that failed.
    fn write(&mut self, db: &Db, key: &str, len: usize, how: &WriteOptions) -> rockmill::Result<()> {
        let mut batch = WriteBatch::new();
        let value: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        for family in FAMILIES {
            batch.put_cf(&db.cf_handle(family).expect("opened"), key, &value);
        }
        db.write_opt(&batch, how)?;
        self.0.insert(key.to_owned(), value);
        Ok(())
    }

    /// Both column families have everything that was acknowledged, and have the same.
    #[track_caller]
    fn check(&self, what: &str, db: &Db) {
        let read = |family: &str| -> BTreeMap<String, Vec<u8>> {
            let cf = db.cf_handle(family).expect("opened");
            let entries = db.iterator_cf(&cf, IteratorMode::Start);
            entries
                .map(|entry| {
                    let (key, value) = entry.unwrap_or_else(|e| panic!("{what}: {e}"));
                    (String::from_utf8_lossy(&key).into_owned(), value.into_vec())
                })
                .collect()
        };
        let (first, second) = (read(FAMILIES[0]), read(FAMILIES[1]));
        assert!(first == second, "{what}: the column families differ");
        for (key, value) in &self.0 {
            assert!(first.get(key) == Some(value), "{what}: {key} was acknowledged and is lost");
        }
    }
}

fn synced() -> WriteOptions {
    let mut how = WriteOptions::default();
    how.set_sync(true);
    how
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "{what}: not within 20 seconds");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn no_space() -> std::io::Error {
    std::io::Error::from_raw_os_error(28)
}

/// The image of a crash, opened.
fn after(fs: &MemFileSystem, mode: CrashMode, options: &Options) -> Db {
    let mut options = options.clone();
    options.set_file_system(Arc::new(fs.crash_image(mode)));
    open(&options, path())
}

/// Lets calls run out of space, one kind of file after the other, then makes space again.
#[test]
fn the_store_resumes_when_there_is_space_again() {
    let wal = |p: &Path| p.extension().is_some_and(|e| e == "log");
    let table = |p: &Path| p.extension().is_some_and(|e| e == "sst");
    let manifest = |p: &Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("MANIFEST"));
    type Which = Box<dyn Fn(OpKind, &Path) -> bool + Send + Sync>;
    let cases: Vec<(&str, Which)> = vec![
        ("a write to the WAL", Box::new(move |k, p| k == OpKind::Write && wal(p))),
        ("a sync of the WAL", Box::new(move |k, p| k == OpKind::Sync && wal(p))),
        ("the creation of a WAL", Box::new(move |k, p| k == OpKind::Create && wal(p))),
        ("a write of a flush", Box::new(move |k, p| k == OpKind::Write && table(p))),
        ("the creation of a table", Box::new(move |k, p| k == OpKind::Create && table(p))),
        ("a sync of a table", Box::new(move |k, p| k == OpKind::Sync && table(p))),
        ("a write to the MANIFEST", Box::new(move |k, p| k == OpKind::Write && manifest(p))),
        ("a sync of the MANIFEST", Box::new(move |k, p| k == OpKind::Sync && manifest(p))),
    ];
    for (what, which) in cases {
        let which = Arc::new(which);
        for manual in [false, true] {
            let (fs, options, db, mut all) = opened(|o| {
                if manual {
                    o.set_max_bgerror_resume_count(0);
                }
            });
            for n in 0..20 {
                all.write(&db, &format!("before{n:03}"), 500, &synced()).expect("a write");
            }
            // From now on the disk is full for these calls; half of a write is still performed.
            fs.set_free_space(Some(1 << 30));
            let hook = Arc::clone(&which);
            fs.set_hook(Box::new(move |op| match hook(op.kind, op.path) {
                true => rockmill_io::Fault::Partial(op.len as usize / 2, no_space()),
                false => rockmill_io::Fault::None,
            }));
            let mut failed = None;
            for n in 0..50 {
                let done = all.write(&db, &format!("full{n:03}"), 500, &synced());
                let flushed = done.and_then(|()| if n % 10 == 9 { db.flush() } else { Ok(()) });
                if let Err(e) = flushed {
                    failed = Some(e);
                    break;
                }
            }
            let e = failed.unwrap_or_else(|| panic!("{what}: nothing failed"));
            assert!(e.is_no_space(), "{what}: {e}");
            wait_until(what, || db.background_error().is_some());
            assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Hard), "{what}");
            let e = all.write(&db, "refused", 10, &WriteOptions::default()).expect_err("no writes now");
            assert!(e.is_no_space(), "{what}: {e}");
            all.check(&format!("{what}, read while full"), &db);
            // The process dies here: no synced data is lost.
            for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
                all.check(&format!("{what}, {mode:?} while full"), &after(&fs, mode, &options));
            }
            if manual {
                assert!(e.to_string().contains("takes no more writes"), "{what}: {e}");
                // If the recovery needs the failing call, it fails; otherwise the next write does.
                let tried = db.resume();
                assert_eq!(tried.is_err(), !what.contains("of the WAL") && !what.contains("to the WAL"), "{what}");
                all.write(&db, "again", 10, &synced()).expect_err("the disk is still full");
                assert!(db.background_error().is_some());
                all.check(&format!("{what}, after a resume in vain"), &db);
            }
            std::thread::sleep(Duration::from_millis(20)); // tries in vain
            all.check(&format!("{what}, SyncedOnly after tries"), &after(&fs, CrashMode::SyncedOnly, &options));
            fs.clear_fault();
            if manual {
                std::thread::sleep(Duration::from_millis(20));
                assert!(db.background_error().is_some(), "{what}: max_bgerror_resume_count is 0");
                db.resume().unwrap_or_else(|e| panic!("{what}: resume: {e}"));
            }
            wait_until(what, || db.background_error().is_none());
            for n in 0..20 {
                all.write(&db, &format!("later{n:03}"), 500, &synced()).unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll] {
                all.check(&format!("{what}, {mode:?} after it"), &after(&fs, mode, &options));
            }
            db.flush_all().expect("a flush");
            db.wait_for_background_work().expect("background work");
            all.check(&format!("{what}, at the end"), &db);
            drop(db);
            all.check(&format!("{what}, reopened"), &open(&options, path()));
        }
    }
}

#[test]
fn a_disk_that_is_full_and_is_emptied_again() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_write_buffer_size(32 << 10);
    options.set_level_zero_file_num_compaction_trigger(3);
    let mut all = Acknowledged::default();
    let db = open(&options, path());
    for round in 0..4 {
        fs.set_free_space(Some(150_000 + round * 50_000));
        let mut n = 0;
        let e = loop {
            if let Err(e) = all.write(&db, &format!("{round}-{n:05}"), 1000, &WriteOptions::default()) {
                break e;
            }
            n += 1;
            assert!(n < 10_000, "the disk never became full");
        };
        assert!(e.is_no_space(), "{e}");
        assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Hard), "round {round}: {e}");
        all.check(&format!("full {round}"), &db);
        fs.set_free_space(None);
        wait_until("space again", || all.write(&db, &format!("{round}-again"), 10, &WriteOptions::default()).is_ok());
        all.check(&format!("again {round}"), &db);
    }
    drop(db);
    all.check("reopened", &open(&options, path()));
}

#[test]
fn a_compaction_without_space_does_not_stop_writes() {
    let (fs, _, db, mut all) = opened(compacts_three);
    db.pause_background_work();
    for n in 0..3 {
        all.write(&db, "same", 2000 + n, &WriteOptions::default()).expect("a write");
        all.write(&db, &format!("key{n}"), 2000, &WriteOptions::default()).expect("a write");
        db.flush_all().expect("a flush");
    }
    // Tables of compactions cannot be written: those with a number above the last one.
    let newest = fs_tables(&fs).into_iter().max().expect("tables");
    fs.set_fault(Box::new(move |op| {
        let number = op.path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u64>().ok());
        let table = op.path.extension().is_some_and(|e| e == "sst") && number.is_some_and(|n| n > newest);
        (table && op.kind == OpKind::Write).then(no_space)
    }));
    db.continue_background_work();
    wait_until("the compaction fails", || db.background_error().is_some());
    assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Soft));
    let e = db.background_error().expect("an error");
    assert!(e.is_no_space() && e.to_string().contains("compactions wait since a compaction of"), "{e}");
    for n in 10..20 {
        all.write(&db, &format!("key{n}"), 2000, &WriteOptions::default()).expect("writes go on");
    }
    all.check("while compactions wait", &db);
    fs.clear_fault();
    wait_until("compactions go on", || db.background_error().is_none());
    db.wait_for_background_work().expect("background work");
    let l0 = db.property_value("rocksdb.num-files-at-level0").expect("a property").expect("known");
    assert!(l0.parse::<u32>().expect("a number") < 3, "{l0} tables are left in L0");
    all.check("after it", &db);
}

fn fs_tables(fs: &MemFileSystem) -> Vec<u64> {
    let names = rockmill_io::FileSystem::list_dir(fs, path()).expect("a directory");
    names.iter().filter_map(|n| n.strip_suffix(".sst")?.parse().ok()).collect()
}

/// A job that could not make its tables' names durable leaves none of them: otherwise repeated jobs would fill a nearly
/// full disk.
#[test]
fn tables_of_a_job_whose_directory_could_not_be_synced_do_not_stay() {
    let (fs, options, db, mut all) = opened(compacts_three);
    db.pause_background_work();
    for n in 0..3 {
        all.write(&db, "same", 2000 + n, &WriteOptions::default()).expect("a write");
        db.flush_all().expect("a flush");
    }
    let sorted = |mut numbers: Vec<u64>| {
        numbers.sort_unstable();
        numbers
    };
    let live = || sorted(db.live_files().expect("a list").iter().map(|f| f.number).collect());
    let on_disk = || sorted(fs_tables(&fs));
    let asked = Arc::new(AtomicU32::new(0));
    let refuse = |from: u32, with: fn() -> std::io::Error| {
        asked.store(0, Ordering::Relaxed);
        let asked = Arc::clone(&asked);
        fs.set_fault(Box::new(move |op| {
            let sync = op.kind == OpKind::SyncDir && op.path == path();
            (sync && asked.fetch_add(1, Ordering::Relaxed) >= from).then(with)
        }));
    };
    refuse(0, no_space);
    db.continue_background_work();
    // It is retried again and again, because the file system reports free space.
    wait_until("compactions fail", || asked.load(Ordering::Relaxed) > 3);
    db.pause_background_work();
    assert_eq!((live().len(), on_disk()), (6, live()), "after compactions");
    fs.clear_fault();
    all.write(&db, "flushed", 2000, &WriteOptions::default()).expect("writes go on");
    // The second column family's table fails: the first one's is there already.
    refuse(2, || std::io::Error::from_raw_os_error(5));
    db.flush_all().expect_err("the directory cannot be synced");
    wait_until("the error is known", || db.background_error_severity() == Some(ErrorSeverity::Fatal));
    wait_until("no table stays", || on_disk() == live());
    assert_eq!(live().len(), 6);
    db.continue_background_work();
    fs.clear_fault();
    db.resume().expect("resume");
    db.wait_for_background_work().expect("background work");
    all.check("after it", &db);
    drop(db);
    all.check("opened again", &after(&fs, CrashMode::SyncedOnly, &options));
}

#[test]
fn other_failures_wait_for_resume() {
    let (fs, options, db, mut all) = opened(|_| ());
    all.write(&db, "before", 100, &WriteOptions::default()).expect("a write");
    let wal = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Write && op.path.extension().is_some_and(|e| e == "log");
    fs.set_fault(Box::new(move |op| wal(op).then(|| std::io::Error::from_raw_os_error(5))));
    all.write(&db, "failed", 100, &WriteOptions::default()).expect_err("an I/O error");
    fs.clear_fault();
    assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Fatal));
    std::thread::sleep(Duration::from_millis(50));
    let e = all.write(&db, "refused", 100, &WriteOptions::default()).expect_err("no writes before resume");
    assert!(e.to_string().contains("call resume"), "{e}");
    db.resume().expect("resume");
    db.resume().expect("nothing to do");
    all.write(&db, "after", 100, &WriteOptions::default()).expect("a write");
    all.check("after resume", &db);
    assert_eq!(db.get("failed").expect("a read"), None);
    for mode in [CrashMode::KeepAll, CrashMode::SyncedOnly] {
        let db = after(&fs, mode, &options);
        assert_eq!(db.get("failed").expect("a read"), None, "{mode:?}: a write that failed came back");
    }
}

/// A write that failed half-way must not reappear, neither from the WAL nor from the archive.
#[test]
fn a_failed_write_is_not_in_the_updates() {
    let (fs, _, db, mut all) = opened(|o| o.set_wal_ttl_seconds(3600));
    all.write(&db, "a", 100, &synced()).expect("a write");
    let wal = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Sync && op.path.extension().is_some_and(|e| e == "log");
    fs.set_fault(Box::new(move |op| wal(op).then(no_space)));
    all.write(&db, "failed", 100, &synced()).expect_err("no space");
    fs.clear_fault();
    wait_until("space again", || db.background_error().is_none());
    all.write(&db, "b", 100, &synced()).expect("a write");
    let updates: Vec<u64> = db.get_updates_since(0).expect("an iterator").map(|u| u.expect("a batch").0).collect();
    assert_eq!(updates, [1, 3], "two batches of two updates");
}

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn push(&self, what: String) {
        self.0.lock().expect("no panic").push(what);
    }
}

struct Listener(Arc<Told>);

impl EventListener for Listener {
    fn on_background_error(&self, reason: BackgroundErrorReason, _: &Error) {
        self.0.push(format!("error {reason:?}"));
    }

    fn on_error_recovery_begin(&self, reason: BackgroundErrorReason, _: &Error) -> bool {
        self.0.push(format!("begin {reason:?}"));
        true
    }

    fn on_error_recovery_completed(&self, _: &Error) {
        self.0.push("completed".to_owned());
    }

    fn on_error_recovery_end(&self, info: &BackgroundErrorRecoveryInfo) {
        self.0.push(format!("end {}", info.new_bg_error.is_none()));
    }
}

#[test]
fn listeners_are_told() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    let told = Arc::new(Told::default());
    options.add_event_listener(Listener(Arc::clone(&told)));
    options.enable_statistics();
    let db = open(&options, path());
    let wal = |op: &rockmill_io::Op<'_>| op.kind == OpKind::Write && op.path.extension().is_some_and(|e| e == "log");
    fs.set_fault(Box::new(move |op| wal(op).then(no_space)));
    db.put("k", "v").expect_err("no space");
    fs.clear_fault();
    wait_until("recovery", || told.0.lock().expect("no panic").len() >= 4);
    let told = told.0.lock().expect("no panic").clone();
    assert_eq!(told[0], "error WriteCallback");
    assert_eq!(told[1], "begin WriteCallback");
    assert_eq!(told[told.len() - 2..], ["completed", "end true"]);
    wait_until("the count", || options.get_ticker_count(Ticker::ErrorHandlerAutoresumeSuccessCount) == 1);
}

/// A small separate file system, if this process may mount one.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: &Path, kib: u32) -> Result<Self, String> {
        let size = format!("size={kib}k");
        let dir = dir.to_owned();
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let out = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&dir).output();
        let out = out.map_err(|e| format!("mount: {e}"))?;
        if !out.status.success() {
            return Err(format!("mount: {}", String::from_utf8_lossy(&out.stderr).trim()));
        }
        Ok(Self(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_real_disk_that_is_full() {
    let home = tempfile::tempdir().expect("a folder");
    let tmpfs = match Tmpfs::mount(&home.path().join("small"), 4096) {
        Ok(tmpfs) => tmpfs,
        Err(reason) => return skip("a_real_disk_that_is_full", &Needs::Mount.because(reason)),
    };
    let ballast = tmpfs.0.join("ballast");
    std::fs::write(&ballast, vec![1; 2 << 20]).expect("two of four MiB");
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_write_buffer_size(256 << 10);
    options.set_bgerror_resume_retry_interval(20_000);
    let mut all = Acknowledged::default();
    let dir = tmpfs.0.join("db");
    let db = open(&options, &dir);
    let mut value = 0;
    let e = loop {
        // Values that do not compress.
        value += 1;
        let key = format!("{value:06}-{:016x}", fastrand::u64(..));
        if let Err(e) = all.write(&db, &key, 2000, &WriteOptions::default()) {
            break e;
        }
        assert!(value < 100_000, "the disk never became full");
    };
    assert!(e.is_no_space(), "{e}");
    all.check("full", &db);
    std::fs::remove_file(&ballast).expect("room");
    wait_until("room again", || all.write(&db, "again", 10, &WriteOptions::default()).is_ok());
    all.check("again", &db);
    drop(db);
    all.check("reopened", &open(&options, &dir));
}

#[test]
fn a_store_resumes_after_a_wal_that_was_left_could_not_be_synced() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let mut known = Acknowledged::default();
    let db = open(&options, path());
    known.write(&db, "first", 10, &WriteOptions::default()).expect("a write");
    // The flush switches to a new WAL, which is never written to, and needs the old one to be durable.
    fs.set_fault(Box::new(|op| {
        let wal = op.path.extension().is_some_and(|e| e == "log");
        (op.kind == OpKind::Sync && wal).then(|| std::io::Error::from_raw_os_error(5))
    }));
    db.flush().expect_err("the flush needs the WAL durable");
    fs.clear_fault();
    assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Fatal));
    db.resume().expect("what the WAL holds is written as tables");
    known.write(&db, "second", 10, &synced()).expect("a write after the recovery");
    known.check("resumed", &db);
    known.check("a power cut", &after(&fs, CrashMode::SyncedOnly, &options));
}

#[test]
fn a_manifest_that_current_never_named_does_not_stay() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    drop(open(&options, path()));
    let orphan = path().join("MANIFEST-000900");
    fs.write_all(&orphan, b"cut short").expect("a file");
    let db = open(&options, path());
    assert!(!fs.exists(&orphan).expect("an answer"));
    drop(db);
}

#[test]
fn tables_whose_last_reader_goes_are_deleted_without_waiting_for_other_work() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let mut known = Acknowledged::default();
    let db = open(&options, path());
    known.write(&db, "a", 10, &WriteOptions::default()).expect("a write");
    db.flush_all().expect("a flush");
    let tables = || fs.list_dir(path()).expect("names").iter().filter(|n| n.ends_with(".sst")).count();
    let before = tables();
    let mut reader = db.raw_iterator();
    reader.seek_to_first();
    known.write(&db, "a", 20, &WriteOptions::default()).expect("a write");
    db.flush_all().expect("a flush");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
    db.wait_for_background_work().expect("no error");
    let held = tables();
    assert!(held > before, "the iterator still needs the first table");
    // By now the compaction's thread has deleted what it could.
    std::thread::sleep(Duration::from_millis(20));
    drop(reader);
    wait_until("the first table is deleted", || tables() < held);
}

#[test]
fn a_bit_that_flips_on_the_way_from_the_disk_loses_no_write_at_an_opening() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let mut known = Acknowledged::default();
    let db = open(&options, path());
    for n in 0..20 {
        known.write(&db, &format!("key{n}"), 100, &synced()).expect("a write");
    }
    let fs = fs.crash_image(CrashMode::SyncedOnly);
    drop(db);
    let mut options = options;
    // Every read of the opening, each with some bits; every 7th of a file's bits is more than enough.
    let reads = {
        let fs = fs.crash_image(CrashMode::KeepAll);
        options.set_file_system(Arc::new(fs.clone()));
        drop(open(&options, path()));
        fs.calls_of(OpKind::Read) + fs.calls_of(OpKind::ReadAt)
    };
    let mut refused = 0;
    for read in 0..reads {
        for n in 0..40_u64 {
            let fs = fs.crash_image(CrashMode::KeepAll);
            options.set_file_system(Arc::new(fs.clone()));
            let mut seen = 0;
            fs.set_hook(Box::new(move |op| {
                let is_read = matches!(op.kind, OpKind::Read | OpKind::ReadAt);
                seen += u64::from(is_read);
                let bits = 8 * op.len.clamp(1, 3000);
                if is_read && seen == read + 1 { Fault::FlipBit((n * 977 + 13) % bits) } else { Fault::None }
            }));
            let families = FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
            let opened = Db::open_cf_descriptors(&options, path(), families);
            fs.clear_fault();
            refused += u64::from(opened.is_err());
            let db = opened.unwrap_or_else(|_| open(&options, path()));
            known.check(&format!("read {read} of {reads} with another bit, {n}"), &db);
        }
    }
    assert!(refused > 0, "no flipped bit was noticed");
}

#[test]
fn a_kept_wal_whose_sync_had_failed_is_durable_after_the_next_opening() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_avoid_flush_during_recovery(true);
    let mut known = Acknowledged::default();
    let db = open(&options, path());
    known.write(&db, "first", 10, &WriteOptions::default()).expect("a write");
    fs.set_fault(Box::new(|op| (op.kind == OpKind::Sync).then(|| std::io::Error::from_raw_os_error(5))));
    let mut refused = Acknowledged::default();
    refused.write(&db, "second", 10, &synced()).expect_err("the sync fails");
    fs.clear_fault();
    drop(db);
    // The kernel still has the WAL's contents in its cache, and regards them as written.
    let db = open(&options, path());
    known.check("after the process's end", &db);
    known.write(&db, "third", 10, &synced()).expect("a write");
    known.check("after a power cut", &after(&fs, CrashMode::SyncedOnly, &options));
}

#[test]
fn a_close_that_cannot_hand_over_the_gathered_log_is_told_to_listeners() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.set_manual_wal_flush(true);
    let told = Arc::new(Told::default());
    options.add_event_listener(Listener(Arc::clone(&told)));
    let db = open(&options, path());
    Acknowledged::default().write(&db, "gathered", 10, &WriteOptions::default()).expect("a write");
    fs.set_fault(Box::new(|op| {
        let wal = op.path.extension().is_some_and(|e| e == "log");
        (op.kind == OpKind::Write && wal).then(no_space)
    }));
    drop(db);
    let told = told.0.lock().expect("no panic");
    assert!(told.iter().any(|what| what == "error WriteCallback"), "{told:?}");
}
