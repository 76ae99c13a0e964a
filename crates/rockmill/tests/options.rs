//! Options that change while the database is open, and OPTIONS files, beside RocksDB.

mod oracle;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oracle::{Peer, Script, copy_dir, run_tool, skip, tool};
use rockmill::merge_operator::{MaxOperator, StringAppendOperator, UInt64AddOperator};
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, Checkpoint, ChecksumType, ColumnFamilyDescriptor, CompressionType, Db,
    ErrorKind, Options, OptionsLoader,
};
use rockmill_format::comparator::ReverseBytewiseComparator;

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

/// OPTIONS files of a directory, oldest first.
fn options_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-")).collect();
    files.sort();
    files
}

/// Options that are not the defaults, those of a column family with another order, and its name with characters that
/// mean something in a file.
fn unusual() -> (Options, Vec<ColumnFamilyDescriptor>) {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_max_background_jobs(5);
    o.set_max_total_wal_size(123_456_789);
    o.set_wal_recovery_mode(rockmill::RecoveryMode::AbsoluteConsistency);
    o.set_write_buffer_size(3 << 20);
    o.set_compression_type(CompressionType::Zstd);
    o.set_max_bytes_for_level_multiplier(7.5);
    o.set_merge_operator_object(Arc::new(StringAppendOperator::new("#:")));
    let mut table = BlockBasedOptions::default();
    table.set_block_size(16 << 10);
    table.set_bloom_filter(10.5, false);
    table.set_checksum_type(ChecksumType::Crc32c);
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    o.set_block_based_table_factory(&table);
    let mut reverse = Options::default();
    reverse.set_comparator(Arc::new(ReverseBytewiseComparator));
    reverse.set_num_levels(4);
    reverse.set_compression_per_level(&[CompressionType::None, CompressionType::Lz4, CompressionType::Zstd]);
    reverse.set_bottommost_compression_type(CompressionType::Zlib);
    let families =
        vec![ColumnFamilyDescriptor::new("default", o.clone()), ColumnFamilyDescriptor::new("a#b:c\\d;{e}", reverse)];
    (o, families)
}

/// The same text of every option of the database and of each column family.
fn same_options(a: &Db, b: &rockmill::LoadedOptions) {
    let names: Vec<String> = b.column_families.iter().map(|d| d.name().to_owned()).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, a.cf_names());
    for d in &b.column_families {
        let cf = a.cf_handle(d.name()).unwrap();
        let (of_db, of_file) = (a.get_options_cf(&cf).values(), d.options().values());
        for (x, y) in of_db.iter().zip(&of_file) {
            assert_eq!(x, y, "column family {:?}", d.name());
        }
    }
}

#[test]
fn what_is_written_is_loaded_by_us_and_by_rocksdb() {
    const TEST: &str = "what_is_written_is_loaded_by_us_and_by_rocksdb";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (o, families) = unusual();
    let db = Db::open_cf_descriptors(&o, &path, families).unwrap();
    db.put("k", "v").unwrap();
    db.merge("m", "1").unwrap();
    db.merge("m", "2").unwrap();
    let reverse = db.cf_handle("a#b:c\\d;{e}").unwrap();
    db.put_cf(&reverse, "r", "1").unwrap();
    db.set_options_cf(&reverse, &[("level0_file_num_compaction_trigger", "9")]).unwrap();
    db.set_db_options(&[("max_subcompactions", "3")]).unwrap();
    let loaded = OptionsLoader::new().load_latest(&path).unwrap();
    assert_eq!(loaded.warnings, []);
    same_options(&db, &loaded);
    assert_eq!(loaded.options.db.max_subcompactions, 3);
    assert_eq!(loaded.column_families[1].options().cf.level0_file_num_compaction_trigger, 9);
    drop(db);

    // What was loaded opens the database, and is the same afterwards.
    let db = Db::open_cf_descriptors(&loaded.options, &path, loaded.column_families).unwrap();
    let again = OptionsLoader::new().load_latest(&path).unwrap();
    same_options(&db, &again);
    assert_eq!(db.get("m").unwrap().as_deref(), Some(&b"1#:2"[..]));
    drop(db);

    if let Ok(driver) = Peer::Library.driver().inspect_err(|e| skip(TEST, e)) {
        let copy = dir.path().join("library");
        copy_dir(&path, &copy);
        let mut script = Script::new();
        script.line(format!("load {}", copy.display())).line("options db").line("options default");
        script.open(&copy).hex("get", "default", &[b"m"]).line("close");
        if let Some(answer) = driver.answer(TEST, &script) {
            assert_eq!(answer.values(), [Some(b"1#:2".to_vec())]);
            let options = answer.options();
            for expected in [
                "max_background_jobs=5",
                "max_subcompactions=3",
                "max_total_wal_size=123456789",
                "wal_recovery_mode=kAbsoluteConsistency",
                "write_buffer_size=3145728",
                "compression=kZSTD",
                "max_bytes_for_level_multiplier=7.500000",
                "block_size=16384",
                "filter_policy=bloomfilter:10.5:false",
                "checksum=kCRC32c",
                "index_type=kTwoLevelIndexSearch",
            ] {
                assert!(options.iter().any(|o| o.trim() == expected), "{expected} is not in {options:#?}");
            }
        }
    }
    if let Ok(driver) = Peer::Wheel.driver().inspect_err(|e| skip(TEST, e)) {
        let mut script = Script::new();
        script.line(format!("load {}", path.display()));
        driver.answer(TEST, &script);
    }
    if let Ok(ldb) = tool("ldb").inspect_err(|e| skip(TEST, e)) {
        let db = format!("--db={}", path.display());
        assert_eq!(run_tool(&ldb, &[db.as_str(), "--try_load_options", "get", "k"]).unwrap().trim(), "v");
    }
}
