//! A user's comparator that panics while a batch is inserted into memtables, and a file system that panics while the
//! batch is logged.

use std::cmp::Ordering as KeyOrdering;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use rockmill::event_listener::BackgroundErrorReason;
use rockmill::{Comparator, Db, ErrorSeverity, IteratorMode, Options, SstFileWriter, WriteBatch, WriteOptions};
use rockmill_io::{CrashMode, Fault, MemFileSystem, OpKind};

use crate::{Listener, Told, options, path};

/// Bytewise; while armed, panics at a key that ends in `!`.
struct Panicking(Arc<AtomicBool>);

impl Comparator for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> KeyOrdering {
        let bad = a.ends_with(b"!") || b.ends_with(b"!");
        if bad && a.ends_with(b"!") != b.ends_with(b"!") && self.0.load(Ordering::SeqCst) {
            resume_unwind(Box::new("the comparator met a bad key"));
        }
        a.cmp(b)
    }
}

fn with_comparator(fs: &MemFileSystem) -> (Options, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(true));
    let mut options = options(fs);
    options.set_comparator_object(Arc::new(Panicking(Arc::clone(&armed))));
    (options, armed)
}

fn bad_batch() -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.put("a", "1");
    batch.put("bad!", "1");
    batch.put("c", "1");
    batch
}

/// Nothing of the batch ever becomes visible; writes are refused until the database is opened again.
#[test]
fn nothing_of_a_batch_that_panicked_half_way_is_ever_seen() {
    for (gathers, disable_wal) in [(false, false), (true, false), (false, true)] {
        let fs = MemFileSystem::new();
        let (mut options, armed) = with_comparator(&fs);
        options.set_manual_wal_flush(gathers);
        let told = Arc::new(Told::default());
        options.add_event_listener(Listener(Arc::clone(&told)));
        let db = Db::open(&options, path()).expect("a database");
        db.put("zzz", "0").expect("a write");
        let before = db.latest_sequence_number();
        let mut how = WriteOptions::default();
        how.disable_wal(disable_wal);
        let e = db.write_opt(&bad_batch(), &how).expect_err("the comparator panics");
        assert!(e.to_string().contains("the comparator met a bad key"), "{e}");
        armed.store(false, Ordering::SeqCst);
        assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Unrecoverable));
        let e = db.put("d", "1").expect_err("no more writes");
        assert!(e.to_string().contains("open it again"), "{e}");
        assert_eq!(db.resume().expect_err("resume does not help").to_string(), e.to_string());
        db.flush().expect_err("no flush");
        db.create_cf("new", &options).expect_err("no families");
        let check = |what: &str, db: &Db| {
            for key in ["a", "bad!", "c", "d"] {
                assert_eq!(db.get(key).expect("a read"), None, "{what}: {key}");
            }
            assert_eq!(db.get("zzz").expect("a read").as_deref(), Some(&b"0"[..]), "{what}");
        };
        check("at once", &db);
        assert_eq!(db.latest_sequence_number(), before);
        let mut again = options.clone();
        again.set_file_system(Arc::new(fs.crash_image(CrashMode::KeepAll)));
        check("after a kill", &Db::open(&again, path()).expect("a database"));
        drop(db);
        assert!(told.0.lock().expect("no panic").contains(&format!("error {:?}", BackgroundErrorReason::MemTable)));
        let db = Db::open(&options, path()).expect("a database");
        check("opened again", &db);
        db.write(&bad_batch()).expect("the comparator is well again");
        assert!(db.get("bad!").expect("a read").is_some());
    }
}

/// Whether the leader or a member panics, all members of the group get the error, and none waits for ever.
#[test]
fn a_panic_in_a_group_wakes_everybody() {
    const WRITERS: usize = 6;
    for concurrent in [true, false] {
        for round in 0..30 {
            let fs = MemFileSystem::new();
            let (mut options, armed) = with_comparator(&fs);
            options.set_allow_concurrent_memtable_write(concurrent);
            let db = Arc::new(Db::open(&options, path()).expect("a database"));
            db.put("zzz", "0").expect("a write");
            let start = Arc::new(Barrier::new(WRITERS));
            let writers: Vec<_> = (0..WRITERS)
                .map(|w| {
                    let (db, start) = (Arc::clone(&db), Arc::clone(&start));
                    std::thread::spawn(move || {
                        start.wait();
                        let mut acknowledged = Vec::new();
                        for n in 0..20 {
                            let bad = w == round % WRITERS && n == 7;
                            let key = format!("{w}-{n:02}{}", if bad { "!" } else { "" });
                            match db.put(&key, "x") {
                                Ok(()) => acknowledged.push(key),
                                Err(_) => break,
                            }
                        }
                        acknowledged
                    })
                })
                .collect();
            let acknowledged: Vec<Vec<String>> = writers.into_iter().map(|t| t.join().expect("no panic")).collect();
            assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Unrecoverable));
            armed.store(false, Ordering::SeqCst);
            drop(db);
            let db = Db::open(&options, path()).expect("a database");
            for (w, keys) in acknowledged.iter().enumerate() {
                for n in 0..20 {
                    let there = db.get(format!("{w}-{n:02}")).expect("a read").is_some();
                    assert_eq!(there, n < keys.len(), "{concurrent} {round}: writer {w}, {n} of {}", keys.len());
                }
            }
        }
    }
}

/// A panic of the file system in the middle of a record: the end of the WAL is unknown, and `resume` leaves that WAL.
#[test]
fn a_panic_while_a_record_is_written_leaves_the_wal() {
    for first in [true, false] {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let db = Db::open(&options, path()).expect("a database");
        if !first {
            db.put("before", "0").expect("a write");
        }
        let mut armed = true;
        fs.set_hook(Box::new(move |op| {
            let wal = op.kind == OpKind::Write && op.path.extension().is_some_and(|e| e == "log");
            if wal && std::mem::take(&mut armed) {
                return Fault::After(Box::new(|| resume_unwind(Box::new("the file system gave up"))));
            }
            Fault::None
        }));
        let e = db.put("refused", "1").expect_err("the file system panics");
        assert!(e.to_string().contains("the file system gave up"), "{e}");
        fs.clear_fault();
        assert_eq!(db.background_error_severity(), Some(ErrorSeverity::Fatal));
        db.put("early", "1").expect_err("it has not resumed");
        db.resume().expect("resume");
        db.put("after", "2").expect("a write");
        let mut again = options.clone();
        again.set_file_system(Arc::new(fs.crash_image(CrashMode::KeepAll)));
        for db in [db, Db::open(&again, path()).expect("a database")] {
            assert_eq!(db.get("before").expect("a read").is_some(), !first);
            assert_eq!(db.get("refused").expect("a read"), None);
            assert_eq!(db.get("after").expect("a read").as_deref(), Some(&b"2"[..]));
        }
    }
}

/// Bytewise; panics at the n-th comparison.
struct PanicsAt(Arc<AtomicU64>);

impl Comparator for PanicsAt {
    fn name(&self) -> &str {
        "panicking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> KeyOrdering {
        if self.0.load(Ordering::SeqCst) > 0 && self.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            resume_unwind(Box::new("the comparator had enough"));
        }
        a.cmp(b)
    }
}

/// Whichever comparison of an ingestion panics, no reservations or counts of it stay, so later work does not wait for
/// it; and the ingestion has happened completely or not at all.
#[test]
fn an_ingestion_that_panics_leaves_nothing_that_others_wait_for() {
    let mut whole = 0;
    for at in 1.. {
        let fs = MemFileSystem::new();
        let left = Arc::new(AtomicU64::new(0));
        let mut options = options(&fs);
        options.set_comparator_object(Arc::new(PanicsAt(Arc::clone(&left))));
        let db = Db::open(&options, path()).expect("a database");
        for key in ["a", "m", "z"] {
            db.put(key, "old").expect("a write");
            db.flush().expect("a flush");
        }
        let mut table = SstFileWriter::create(&options);
        table.open("/ext.sst").expect("a table");
        for key in ["b", "m", "y"] {
            table.put(key, "new").expect("an entry");
        }
        table.finish().expect("a table");
        left.store(at, Ordering::SeqCst);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| db.ingest_external_file(vec!["/ext.sst"])));
        let panicked = left.swap(0, Ordering::SeqCst) == 0;
        let done = matches!(done, Ok(Ok(())));
        assert!(done || panicked, "comparison {at}");
        // Waits until no job runs. The panic may have been in a compaction thread, which continues.
        let mut how = rockmill::CompactOptions::default();
        how.set_change_level(true);
        let rests = || {
            db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how)?;
            db.wait_for_background_work()
        };
        if rests().is_err() || db.background_error().is_some() {
            db.resume().expect("it resumes");
            rests().expect("the end of all work");
        }
        let shows = |db: &Db| -> Vec<String> {
            let entries = db.iterator(IteratorMode::Start).map(|e| e.expect("an entry"));
            entries.map(|(k, v)| String::from_utf8_lossy(&[&k[..], &v[..]].concat()).into_owned()).collect()
        };
        let (old, new) = (["aold", "mold", "zold"].as_slice(), ["aold", "bnew", "mnew", "ynew", "zold"].as_slice());
        let seen = shows(&db);
        assert!(seen == new || (!done && seen == old), "comparison {at}: {seen:?}");
        drop(db);
        assert_eq!(shows(&Db::open(&options, path()).expect("open again")), seen, "comparison {at}, opened again");
        if !panicked {
            whole = at;
            break;
        }
    }
    assert!(whole > 5, "{whole} comparisons");
}
