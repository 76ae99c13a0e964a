//! Options that change while the database is open.

use std::time::{Duration, Instant};

use rockmill::{Db, ErrorKind, Options};

fn open(dir: &tempfile::TempDir, change: impl FnOnce(&mut Options)) -> Db {
    let mut o = Options::default();
    o.create_if_missing(true);
    change(&mut o);
    Db::open(&o, dir.path()).unwrap()
}

fn l0_files(db: &Db) -> u64 {
    db.property_value("rocksdb.num-files-at-level0").unwrap().unwrap().parse().unwrap()
}

fn write_tables(db: &Db, n: u32) {
    for i in 0..n {
        db.put(b"a", i.to_be_bytes()).unwrap();
        db.put(b"z", i.to_be_bytes()).unwrap();
        db.flush().unwrap();
    }
}

#[test]
fn compactions_begin_when_they_are_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_disable_auto_compactions(true));
    write_tables(&db, 6);
    assert_eq!(l0_files(&db), 6);
    // No write follows: the change itself has to start the compaction.
    db.set_options(&[("disable_auto_compactions", "false")]).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while l0_files(&db) != 0 {
        assert!(Instant::now() < end, "no compaction began; {} tables in L0", l0_files(&db));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&5_u32.to_be_bytes()[..]));
}

#[test]
fn a_smaller_write_buffer_is_switched() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_disable_auto_compactions(true));
    let fill = |from: u32| {
        for i in from..from + 300 {
            db.put(i.to_be_bytes(), [7; 4096]).unwrap();
        }
    };
    fill(0);
    assert_eq!(l0_files(&db), 0);
    db.set_options(&[("write_buffer_size", "64K")]).unwrap();
    fill(1000);
    let end = Instant::now() + Duration::from_secs(60);
    while l0_files(&db) == 0 {
        assert!(Instant::now() < end, "nothing was flushed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_the_named_column_family_changes() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_disable_auto_compactions(true));
    let mut o = Options::default();
    o.set_disable_auto_compactions(true);
    let cf = db.create_cf("other", &o).unwrap();
    write_tables(&db, 5);
    db.set_options_cf(&cf, &[("disable_auto_compactions", "false")]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(l0_files(&db), 5);
    db.drop_cf("other").unwrap();
    let e = db.set_options_cf(&cf, &[("disable_auto_compactions", "true")]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ColumnFamilyDropped, "{e}");
}

#[test]
fn bad_changes_are_named_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_disable_auto_compactions(true));
    write_tables(&db, 5);
    for (name, value) in [
        ("no_such_option", "1"),
        ("num_levels", "3"),
        ("comparator", "x"),
        ("write_buffer_size", "many"),
        ("write_buffer_size", "1"),
        ("compression", "zstd"),
        ("compression", "kBZip2Compression"),
        ("max_bytes_for_level_multiplier", "0.5"),
        ("level0_stop_writes_trigger", "99999999999"),
    ] {
        let e = db.set_options(&[("disable_auto_compactions", "false"), (name, value)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{name}={value}: {e}");
        assert!(e.message().contains(name) || e.message().contains("Bzip2"), "{name}={value}: {e}");
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(l0_files(&db), 5, "one of the refused changes took effect");
    drop(db);

    let db = Db::open_for_read_only(&Options::default(), dir.path(), false).unwrap();
    let e = db.set_options(&[("write_buffer_size", "64M")]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotSupported, "{e}");
}

#[test]
fn tables_are_written_with_the_compression_set() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_compression_type(rockmill::CompressionType::None));
    let size = |db: &Db| db.live_files().unwrap().iter().map(|f| f.size).sum::<u64>();
    for i in 0..1000_u32 {
        db.put(i.to_be_bytes(), [1; 200]).unwrap();
    }
    db.flush().unwrap();
    let plain = size(&db);
    db.set_options(&[("compression", "kZSTD")]).unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    for i in 0..1000_u32 {
        db.put(i.to_be_bytes(), [1; 200]).unwrap();
    }
    db.flush().unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(size(&db) < plain / 4, "{} bytes, uncompressed {plain}", size(&db));
}
