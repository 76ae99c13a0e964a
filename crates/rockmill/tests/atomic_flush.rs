//! Atomic flushes: all column families' tables are committed together, or none is.
//!
//! Each batch without a WAL writes its own number to all three column families. Whenever a power cut happens, all of
//! them must show the same number.

mod oracle;

use std::path::Path;
use std::sync::Arc;

use oracle::{Peer, Script, run_tool, to_hex, tool};
use rockmill::internals::for_each_edit;
use rockmill::{ColumnFamilyDescriptor, Db, FlushOptions, Options, WriteBatch, WriteOptions};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem, OpKind, PosixFileSystem};
use rockmill_skip::{skip, wish};

const FAMILIES: [&str; 3] = ["default", "second", "third"];

fn options(fs: Arc<dyn FileSystem>) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_file_system(fs);
    options.set_atomic_flush(true);
    options
}

fn open(options: &Options, path: &Path) -> rockmill::Result<Db> {
    Db::open_cf_descriptors(options, path, FAMILIES.map(|f| ColumnFamilyDescriptor::new(f, options.clone())))
}

fn unlogged() -> WriteOptions {
    let mut how = WriteOptions::default();
    how.disable_wal(true);
    how
}

/// Writes one batch that puts its number into each column family.
fn write(db: &Db, n: u32, how: &WriteOptions) -> rockmill::Result<()> {
    let mut batch = WriteBatch::new();
    for family in FAMILIES {
        let cf = db.cf_handle(family).expect("opened");
        batch.put_cf(&cf, "number", n.to_be_bytes());
        batch.put_cf(&cf, format!("key{n:05}"), vec![b'x'; 100]);
    }
    db.write_opt(&batch, how)
}

/// The number that all column families show; checks that they show the same and every key up to it.
#[track_caller]
fn number(what: &str, db: &Db) -> u32 {
    let shown: Vec<u32> = FAMILIES
        .iter()
        .map(|f| {
            let cf = db.cf_handle(f).expect("opened");
            let value = db.get_cf(&cf, "number").unwrap_or_else(|e| panic!("{what}: {e}"));
            value.map_or(0, |v| u32::from_be_bytes(v.try_into().expect("four bytes")))
        })
        .collect();
    assert!(shown.iter().all(|n| *n == shown[0]), "{what}: the column families show {shown:?}");
    for family in FAMILIES {
        let cf = db.cf_handle(family).expect("opened");
        let n = db.iterator_cf(&cf, rockmill::IteratorMode::Start).filter(|e| e.is_ok()).count() as u32;
        assert_eq!(n, if shown[0] == 0 { 0 } else { shown[0] + 1 }, "{what}: keys of {family}");
    }
    shown[0]
}

/// Sizes of the atomic groups in the newest MANIFEST.
fn groups(fs: &dyn FileSystem, path: &Path) -> Vec<usize> {
    let mut names = fs.list_dir(path).expect("a directory");
    names.retain(|n| n.starts_with("MANIFEST-"));
    let newest = names.iter().max().expect("a MANIFEST");
    let mut groups = Vec::new();
    for_each_edit(fs, &path.join(newest), &mut |edit| {
        // The first edit of a group tells how many follow it.
        match (edit.remaining_in_group, groups.last_mut()) {
            (Some(n), Some((seen, all))) if *seen < *all => {
                assert_eq!(n as usize, *all - *seen - 1);
                *seen += 1;
            }
            (Some(n), _) => groups.push((1, n as usize + 1)),
            (None, _) => {}
        }
        Ok(())
    })
    .expect("a sound MANIFEST");
    groups.into_iter().map(|(_, all)| all).collect()
}

#[test]
fn power_cuts_leave_all_column_families_at_one_moment() {
    let fs = MemFileSystem::new();
    let path = Path::new("/db");
    let mut options = options(Arc::new(fs.clone()));
    options.set_write_buffer_size(16 << 10);
    options.set_max_manifest_file_size(4000);
    options.set_level_zero_file_num_compaction_trigger(3);
    drop(open(&options, path).expect("a new database"));
    fs.start_recording();
    let mut flushed = vec![(0, 0)];
    {
        let db = open(&options, path).expect("open");
        for n in 1..=400 {
            write(&db, n, &unlogged()).unwrap_or_else(|e| panic!("batch {n}: {e}"));
            if n % 67 == 0 {
                // The flush is requested for a single column family, but all others are flushed too.
                let all: Vec<_> = FAMILIES.iter().map(|f| db.cf_handle(f).expect("opened")).collect();
                db.flush_cfs_opt(&all, &FlushOptions::default()).unwrap_or_else(|e| panic!("flush: {e}"));
                flushed.push((fs.recorded(), n));
            }
        }
        assert_eq!(number("before the close", &db), 400);
    } // flushes the data that is not in a WAL
    flushed.push((fs.recorded(), 400));
    let mut replay = fs.replay().expect("recording");
    let points = replay.points();
    let step = (points / 300).max(1);
    let (mut opened, mut seen) = (0, std::collections::BTreeSet::new());
    for point in (0..=points).step_by(step) {
        replay.advance_to(point);
        let at_least = flushed.iter().take_while(|(at, _)| *at <= point).map(|(_, n)| *n).last().unwrap_or(0);
        for mode in [CrashMode::KeepAll, CrashMode::SyncedOnly] {
            let what = format!("power cut at {point} of {points}, {mode:?}");
            let image = replay.crash_image(mode);
            let mut o = options.clone();
            o.set_file_system(Arc::new(image));
            let db = open(&o, path).unwrap_or_else(|e| panic!("{what}: does not open: {e}"));
            let n = number(&what, &db);
            assert!(n >= at_least, "{what}: shows batch {n}, {at_least} was flushed");
            opened += 1;
            seen.insert(n);
        }
    }
    println!("{opened} images of {points} points, {} different moments", seen.len());
    assert!(seen.len() > 6, "only the moments {seen:?} were seen: the small memtables were not flushed by themselves");
}

#[test]
fn without_atomic_flush_the_same_run_tears_batches() {
    // The counterpart: shows that the test above can fail.
    let fs = MemFileSystem::new();
    let path = Path::new("/db");
    let mut options = options(Arc::new(fs.clone()));
    options.set_atomic_flush(false);
    let db = open(&options, path).expect("a new database");
    write(&db, 1, &unlogged()).expect("a write");
    db.flush().expect("a flush of the default column family");
    let mut o = options.clone();
    o.set_file_system(Arc::new(fs.crash_image(CrashMode::SyncedOnly)));
    let db = open(&o, path).expect("open");
    let second = db.cf_handle("second").expect("opened");
    assert!(db.get("number").expect("a read").is_some() && db.get_cf(&second, "number").expect("a read").is_none());
}

#[test]
fn every_kind_of_flush_is_one_group() {
    let fs = MemFileSystem::new();
    let path = Path::new("/db");
    let mut options = options(Arc::new(fs.clone()));
    options.set_write_buffer_size(16 << 10);
    options.set_disable_auto_compactions(true);
    let db = open(&options, path).expect("open");
    // By size.
    let mut n = 0;
    while groups(&fs, path).is_empty() {
        n += 1;
        assert!(n < 10_000, "no memtable was flushed");
        write(&db, n, &unlogged()).expect("a write");
        if n % 100 == 0 {
            db.wait_for_background_work().expect("flushes");
        }
    }
    db.wait_for_background_work().expect("flushes");
    assert!(groups(&fs, path).iter().all(|g| *g == 3), "{:?}", groups(&fs, path));
    // A manual flush of all; and the flush before a manual compaction.
    let before = groups(&fs, path).len();
    write(&db, n + 1, &unlogged()).expect("a write");
    db.flush_all().expect("a flush");
    write(&db, n + 2, &unlogged()).expect("a write");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
    assert_eq!(groups(&fs, path)[before..], [3, 3]);
    // Only the named ones, as in RocksDB; a single one needs no atomic group.
    write(&db, n + 3, &unlogged()).expect("a write");
    let two = ["default", "third"].map(|f| db.cf_handle(f).expect("opened"));
    db.flush_cfs_opt(&two, &FlushOptions::default()).expect("a flush");
    db.flush_cf(&db.cf_handle("second").expect("opened")).expect("a flush");
    assert_eq!(groups(&fs, path)[before + 2..], [2]);
    drop(db);
    let db = open(&options, path).expect("open");
    assert_eq!(number("after it all", &db), n + 3);
}

#[test]
fn a_wal_that_grows_too_large_flushes_all_together() {
    let fs = MemFileSystem::new();
    let path = Path::new("/db");
    let mut options = options(Arc::new(fs.clone()));
    options.set_max_total_wal_size(20_000);
    let db = open(&options, path).expect("open");
    let mut n = 0;
    while groups(&fs, path).is_empty() {
        n += 1;
        assert!(n < 10_000, "the WAL's size flushed nothing");
        write(&db, n, &WriteOptions::default()).expect("a write");
        if n % 100 == 0 {
            db.wait_for_background_work().expect("flushes");
        }
    }
    assert_eq!(groups(&fs, path)[0], 3);
    db.wait_for_background_work().expect("flushes");
    assert_eq!(number("after it all", &db), n);
}

#[test]
fn a_failed_atomic_flush_leaves_none_of_it() {
    let fs = MemFileSystem::new();
    let path = Path::new("/db");
    let options = options(Arc::new(fs.clone()));
    let db = open(&options, path).expect("open");
    write(&db, 1, &unlogged()).expect("a write");
    db.flush_all().expect("a flush");
    write(&db, 2, &unlogged()).expect("a write");
    // The second of three tables cannot be written.
    let mut tables = 0;
    fs.set_fault(Box::new(move |op| {
        let table = op.kind == OpKind::Create && op.path.extension().is_some_and(|e| e == "sst");
        tables += u32::from(table);
        (table && tables == 2).then(|| std::io::Error::from_raw_os_error(5))
    }));
    let e = db.flush_all().expect_err("an I/O error");
    assert!(e.to_string().contains("column families") && e.to_string().contains("second"), "{e}");
    fs.clear_fault();
    let image = |what: &str, expected| {
        let mut o = options.clone();
        o.set_file_system(Arc::new(fs.crash_image(CrashMode::KeepAll)));
        assert_eq!(number(what, &open(&o, path).expect("open")), expected, "{what}");
    };
    image("after the failure", 1);
    db.resume().expect("resume");
    image("after resume", 2);
    assert_eq!(number("in memory", &db), 2);
    write(&db, 3, &unlogged()).expect("writes go on");
}

#[test]
fn a_dropped_column_family_is_left_out() {
    let fs = MemFileSystem::new();
    let path = Path::new("/db");
    let options = options(Arc::new(fs.clone()));
    let db = open(&options, path).expect("open");
    write(&db, 1, &unlogged()).expect("a write");
    let third = db.cf_handle("third").expect("opened");
    db.drop_cf("third").expect("a drop");
    db.flush_all().expect("a flush");
    assert_eq!(groups(&fs, path), [2]);
    assert!(db.get_cf(&third, "number").expect("a read").is_some(), "the handle still reads");
}

#[test]
fn rocksdb_reads_the_groups() {
    let test = "rocksdb_reads_the_groups";
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("db");
    let options = options(Arc::new(PosixFileSystem::default()));
    {
        let db = open(&options, &path).expect("open");
        for n in 1..=50 {
            write(&db, n, &unlogged()).expect("a write");
        }
        db.flush_all().expect("a flush");
        write(&db, 51, &unlogged()).expect("a write");
    }
    assert_eq!(groups(&PosixFileSystem::default(), &path), [3, 3]);
    match tool("ldb") {
        Ok(ldb) => {
            let mut names: Vec<_> = std::fs::read_dir(&path).expect("a directory").flatten().collect();
            names.retain(|e| e.file_name().to_string_lossy().starts_with("MANIFEST-"));
            let manifest = names.iter().map(|e| e.path()).max().expect("a MANIFEST");
            let arg = format!("--path={}", manifest.display());
            let out = run_tool(&ldb, &["manifest_dump", "--verbose", &arg]).unwrap_or_else(|e| panic!("{e}"));
            for left in ["AtomicGroup: 2", "AtomicGroup: 1", "AtomicGroup: 0"] {
                assert_eq!(out.matches(left).count(), 2, "{left} in\n{out}");
            }
        }
        Err(reason) => skip(test, &reason),
    }
    for driver in Peer::all(test) {
        let mut script = Script::new();
        for family in FAMILIES {
            script.line(format!("cf {family} "));
        }
        script.line("db atomic_flush=true");
        script.open(&path);
        for family in FAMILIES {
            script.line(format!("dump {family}"));
        }
        script.line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        assert_eq!(answer.entries().len(), 3 * 52);
        let db = open(&options, &path).expect("open again");
        assert_eq!(number("back from RocksDB", &db), 51);
    }
}

#[test]
fn rocksdbs_groups_are_read() {
    let test = "rocksdbs_groups_are_read";
    for peer in [Peer::Library, Peer::Other] {
        let driver = match peer.driver() {
            Ok(driver) => driver,
            Err(missing) => {
                if peer == Peer::Library {
                    skip(test, &missing)
                } else {
                    wish(test, &missing)
                }
                continue;
            }
        };
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        let mut script = Script::new();
        for family in FAMILIES {
            script.line(format!("cf {family} "));
        }
        script.line("db atomic_flush=true");
        script.open(&path);
        script.line("wopt nowal");
        for n in 1..=3u32 {
            script.line("begin");
            for family in FAMILIES {
                script.line(format!("put {family} {} {n:08x}", to_hex(b"number")));
                script.line(format!("put {family} {} 78", to_hex(format!("key{n:05}").as_bytes())));
            }
            script.line("commit");
            if n < 3 {
                script.line("flush_all");
            }
        }
        script.line("crash");
        let _ = driver.run(&script);
        let fs = PosixFileSystem::default();
        // Some versions add an edit about the WALs.
        let groups = groups(&fs, &path);
        assert!(groups.len() == 2 && groups.iter().all(|g| (3..=4).contains(g)), "RocksDB's groups are {groups:?}");
        let db = open(&options(Arc::new(fs)), &path).expect("open");
        assert_eq!(number("RocksDB's atomic flushes", &db), 2);
    }
}
