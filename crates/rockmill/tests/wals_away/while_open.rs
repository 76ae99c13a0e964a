//! Notes of an open database: failures to write them, and concurrent readers.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rockmill::Db;
use rockmill_io::{FileSystem, MemFileSystem, Op, OpKind};

use crate::support::{WAYS, Way, mount, options_files, plain, prefix, unmount, write};

/// If a note cannot be written, MANIFEST and OPTIONS file do not change.
#[test]
fn a_file_that_cannot_be_noted_does_not_count() {
    let fs = MemFileSystem::new();
    let mut apart = Way::WalDir.apart(&fs, "/fast");
    apart.set_max_bgerror_resume_count(0);
    let db = Db::open(&apart, "/db").expect("open");
    write(&db, 0..20);
    let before = options_files(&fs);
    let is_note = |op: &Op<'_>| op.kind == OpKind::Create && op.path.ends_with("WAL_OWNER.dbtmp");
    fs.set_fault(Box::new(move |op| is_note(op).then(|| io::Error::from_raw_os_error(5))));
    for _ in 0..10 {
        let e = db.set_options(&[("write_buffer_size", "1000000")]).expect_err("the note fails").to_string();
        assert!(e.contains("WAL_OWNER"), "{e}");
    }
    assert_eq!(options_files(&fs), before);
    fs.clear_fault();
    db.set_options(&[("write_buffer_size", "1000000")]).expect("an option");
    let fs = fs.next_process();
    drop(db);
    unmount(&fs, false);
    assert!(Db::open(&plain(&fs), "/db").is_err_and(|e| e.to_string().contains("mounted")));
    mount(&fs);
    assert_eq!(prefix(&Db::open(&Way::WalDir.apart(&fs, "/fast"), "/db").expect("open"), "with them"), 20);
}

/// The same for a MANIFEST that is replaced while the database is open.
#[test]
fn a_manifest_that_cannot_be_noted_does_not_count() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        let mut apart = way.apart(&fs, "/fast");
        apart.set_max_bgerror_resume_count(0);
        apart.set_max_manifest_file_size(1);
        let db = Db::open(&apart, "/db").expect("open");
        let current = || fs.read_to_vec(Path::new("/db/CURRENT")).expect("a read");
        let before = current();
        let is_note = |op: &Op<'_>| op.kind == OpKind::Create && op.path.ends_with("WAL_OWNER.dbtmp");
        for round in 0..10 {
            write(&db, 2 * round..2 * round + 2);
            fs.set_fault(Box::new(move |op| is_note(op).then(|| io::Error::from_raw_os_error(5))));
            let e = db.flush().expect_err("the note fails").to_string();
            assert!(e.contains("WAL_OWNER"), "{way:?}: {e}");
            fs.clear_fault();
            assert!(round > 0 || current() == before, "{way:?}");
            check_needed(&fs, way, 2 * round + 2);
            db.resume().unwrap_or_else(|e| panic!("{way:?}: {e}"));
            check_needed(&fs, way, 2 * round + 2);
        }
        db.flush().expect("a flush");
        assert!(current() != before);
        write(&db, 20..30);
        check_needed(&fs, way, 30);
        db.flush().expect("a flush");
        drop(db);
        unmount(&fs, false);
        assert_eq!(prefix(&Db::open(&plain(&fs), "/db").expect("open"), "flushed"), 30, "{way:?}");
    }
}

/// After a kill here, the database does not open without the device, and has these writes with it.
fn check_needed(fs: &MemFileSystem, way: Way, writes: usize) {
    let killed = fs.next_process();
    unmount(&killed, false);
    let e = Db::open(&plain(&killed), "/db").err().unwrap_or_else(|| panic!("{way:?}, {writes}: opened")).to_string();
    assert!(e.contains("mounted"), "{way:?}, {writes}: {e}");
    mount(&killed);
    let db = Db::open(&way.apart(&killed, "/fast"), "/db").unwrap_or_else(|e| panic!("{way:?}, {writes}: {e}"));
    assert_eq!(prefix(&db, "with them"), writes, "{way:?}");
}

/// A reader opens without the device while the writing process begins new MANIFESTs and OPTIONS files.
#[test]
fn a_reader_is_refused_whatever_the_writer_does_meanwhile() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        let mut apart = way.apart(&fs, "/fast");
        apart.set_max_manifest_file_size(1);
        let db = Db::open(&apart, "/db").expect("open");
        write(&db, 0..10);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let reader = std::thread::current().id();
                // It does not see the device.
                fs.set_fault(Box::new(move |op| {
                    let is_away = std::thread::current().id() == reader && op.path.starts_with("/fast");
                    is_away.then(|| io::Error::from(io::ErrorKind::NotFound))
                }));
                let (mut opened, mut refused) = (0, 0);
                while !is_done.load(Ordering::Acquire) {
                    match Db::open_for_read_only(&plain(&fs), "/db", false) {
                        Ok(_) => opened += 1,
                        Err(e) => refused += usize::from(e.to_string().contains("mounted")),
                    }
                }
                (opened, refused)
            });
            for i in 0..100 {
                let size = (1_000_000 + i).to_string();
                db.set_options(&[("write_buffer_size", &size)]).expect("an option");
                write(&db, 10 + i..11 + i);
                db.flush().expect("a flush");
            }
            is_done.store(true, Ordering::Release);
            let (opened, refused) = reader.join().expect("the reader");
            assert!(opened == 0 && refused > 0, "{way:?}: {opened} opened, {refused} refused");
        });
    }
}
