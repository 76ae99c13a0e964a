//! Databases that are read while another process writes to them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rockmill::{Db, ErrorKind, IteratorMode, Options, WriteOptions};
use rockmill_io::{Fault, MemFileSystem, OpKind};

fn options(fs: &MemFileSystem) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(Arc::new(fs.clone()));
    options.set_disable_auto_compactions(true);
    options
}

/// Between reading the MANIFEST and reading the WALs, a flush may move data from the WALs to a table.
#[test]
fn a_reader_beside_a_flush_sees_what_was_acknowledged_before_it_began() {
    for compacts in [false, true] {
        for at in 0..60 {
            let fs = MemFileSystem::new();
            let o = options(&fs);
            let db = Arc::new(Db::open(&o, "/db").expect("open"));
            let mut synced = WriteOptions::default();
            synced.set_sync(true);
            for round in 0..2 {
                (0..100).for_each(|i| db.put(format!("k{i:04}"), format!("{round}")).expect("a write"));
                if round == 0 {
                    db.flush().expect("a flush");
                }
            }
            db.put_opt("last", "synced", &synced).expect("a write");
            let (left, writer) = (Arc::new(AtomicUsize::new(at)), Arc::clone(&db));
            fs.set_hook(Box::new(move |op| {
                let reads = matches!(
                    op.kind,
                    OpKind::ListDir | OpKind::OpenSequential | OpKind::OpenRandom | OpKind::Read | OpKind::FileSize
                );
                let due = reads && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1);
                if !due {
                    return Fault::None;
                }
                let db = Arc::clone(&writer);
                Fault::After(Box::new(move || {
                    db.flush().expect("a flush");
                    if compacts {
                        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
                    }
                    db.put("next", "1").expect("a write");
                }))
            }));
            let reader = Db::open_for_read_only(&o, "/db", false).unwrap_or_else(|e| panic!("at {at}: {e}"));
            fs.clear_fault();
            db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
            assert_eq!(reader.get("k0001").expect("a read").as_deref(), Some(&b"1"[..]), "at {at}");
            assert_eq!(reader.get("last").expect("a read").as_deref(), Some(&b"synced"[..]), "at {at}");
            let seen: Result<Vec<_>, _> = reader.iterator(IteratorMode::Start).collect();
            let seen = seen.expect("entries").len();
            assert!((101..=102).contains(&seen), "at {at}: {seen}");
        }
    }
}

/// A continuously active writer does not block a reader for ever, and a file that is really missing is reported.
#[test]
fn a_reader_gives_up_at_last() {
    let fs = MemFileSystem::new();
    let o = options(&fs);
    let db = Arc::new(Db::open(&o, "/db").expect("open"));
    db.put("k", "v").expect("a write");
    let (busy, writer) = (Arc::new(AtomicBool::new(false)), Arc::clone(&db));
    fs.set_hook(Box::new(move |op| {
        let now = op.kind == OpKind::ListDir && !busy.swap(true, Ordering::SeqCst);
        if !now {
            return Fault::None;
        }
        let (db, busy) = (Arc::clone(&writer), Arc::clone(&busy));
        Fault::After(Box::new(move || {
            db.put("k", "v").and_then(|()| db.flush()).expect("a flush");
            busy.store(false, Ordering::SeqCst);
        }))
    }));
    let e = Db::open_for_read_only(&o, "/db", false).expect_err("never the same twice");
    assert_eq!(e.kind(), ErrorKind::TryAgain, "{e}");
    fs.clear_fault();
    drop(db);
    let table = rockmill_io::FileSystem::list_dir(&fs, Path::new("/db")).expect("a list");
    let table = table.iter().find(|n| n.ends_with(".sst")).expect("a table");
    rockmill_io::FileSystem::remove(&fs, &Path::new("/db").join(table)).expect("removed");
    let e = Db::open_for_read_only(&o, "/db", false).expect_err("a table is gone");
    assert!(e.to_string().contains(table.as_str()), "{e}");
}

/// With `max_open_files` of -1, all tables are opened immediately, as in RocksDB, however many there are: compactions
/// cannot remove any of them from the reader.
#[test]
fn a_reader_keeps_all_its_tables_whatever_a_writer_deletes() {
    const TABLES: u32 = 1100;
    let fs = MemFileSystem::new();
    let mut o = options(&fs);
    o.set_max_open_files(-1);
    let db = Db::open(&o, "/db").expect("open");
    for i in 0..TABLES {
        db.put(format!("k{i:04}"), "v").expect("a write");
        db.flush().expect("a flush");
    }
    let reader = Db::open_for_read_only(&o, "/db", false).expect("a reader");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
    let mut read = 0;
    for entry in reader.iterator(IteratorMode::Start) {
        entry.expect("an entry");
        read += 1;
    }
    assert_eq!(read, TABLES);
}
