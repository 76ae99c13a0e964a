//! Options that change while the database is open, and OPTIONS files, compared with RocksDB.

mod oracle;
#[path = "options/table_kind.rs"]
mod table_kind;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oracle::{Outcome, Peer, Script, copy_dir, run_tool, tool};
use rockmill::merge_operator::{MaxOperator, StringAppendOperator, UInt64AddOperator};
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, Checkpoint, ChecksumType, ColumnFamilyDescriptor, CompactOptions,
    CompressionType, Db, ErrorKind, Options, OptionsLoader,
};
use rockmill_format::comparator::ReverseBytewiseComparator;
use rockmill_io::{CrashMode, MemFileSystem, OpKind};
use rockmill_skip::skip;

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
    // No write follows, so the change itself must start the compaction.
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
        ("compression", "zstd"),
        ("compression", "kBZip2Compression"),
        ("prefix_extractor", "MyExtractor"),
        ("max_bytes_for_level_multiplier", "NaN"),
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
    let size = |db: &Db| db.live_files().unwrap().iter().map(|f| f.size).sum::<usize>();
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

/// Non-default options, a column family with another order, and a name with characters that have a meaning in the file.
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
    reverse.set_comparator_object(Arc::new(ReverseBytewiseComparator));
    reverse.set_num_levels(4);
    reverse.set_compression_per_level(&[CompressionType::None, CompressionType::Lz4, CompressionType::Zstd]);
    reverse.set_bottommost_compression_type(CompressionType::Zlib);
    let families =
        vec![ColumnFamilyDescriptor::new("default", o.clone()), ColumnFamilyDescriptor::new("a#b:c\\d;{e}", reverse)];
    (o, families)
}

/// Checks that every option of the database and of each column family has the same text.
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

    // The loaded options open the database, and are the same afterwards.
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

#[test]
fn what_rocksdb_wrote_is_loaded_and_opens_the_database() {
    const TEST: &str = "what_rocksdb_wrote_is_loaded_and_opens_the_database";
    let driver = need!(TEST, Peer::Library.driver());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut script = Script::new();
    script.line("db max_background_jobs=6;max_open_files=333;use_fsync=true;table_cache_numshardbits=4");
    script.line("db wal_recovery_mode=kSkipAnyCorruptedRecords;enable_pipelined_write=true");
    script.line(
        "cf default write_buffer_size=1M;compression=kZSTD;merge_operator=uint64add;num_levels=5;\
         compression_per_level=kNoCompression:kLZ4Compression;max_bytes_for_level_multiplier=4;\
         block_based_table_factory={block_size=8K;filter_policy=bloomfilter:7.5:false;index_type=kHashSearch;\
         checksum=kCRC32c;format_version=4};memtable_prefix_bloom_size_ratio=0.1;prefix_extractor=fixed:2",
    );
    script.line("cf one#two comparator=rocksdb.ReverseBytewiseComparator;merge_operator={id=stringappend;delimiter=+}");
    script.open(&path);
    script.put("default", "key", "v").hex("merge", "one#two", &[b"m", b"1"]).hex("merge", "one#two", &[b"m", b"2"]);
    script.line("flush default").line("flush one#two");
    script.line("set default level0_stop_writes_trigger=77").line("set db max_subcompactions=3").line("close");
    if driver.answer(TEST, &script).is_none() {
        return;
    }
    let loaded = OptionsLoader::new().load_latest(&path).unwrap();
    let (db, cf) = (&loaded.options.db, &loaded.options.cf);
    assert_eq!((db.max_background_jobs, db.max_open_files, db.use_fsync), (6, 333, true));
    assert_eq!(db.wal_recovery_mode, rockmill::RecoveryMode::SkipAnyCorruptedRecords);
    assert_eq!((db.max_subcompactions, cf.level0_stop_writes_trigger), (3, 77));
    assert_eq!((cf.write_buffer_size, cf.compression, cf.num_levels), (1 << 20, CompressionType::Zstd, 5));
    assert_eq!(cf.compression_per_level, [CompressionType::None, CompressionType::Lz4]);
    assert_eq!(cf.max_bytes_for_level_multiplier, 4.0);
    assert_eq!((cf.table.block_size, cf.table.checksum), (8192, ChecksumType::Crc32c));
    assert!(loaded.options.values().iter().any(|v| v.value == "bloomfilter:7.5:false"));
    assert_eq!(cf.merge_operator.as_ref().unwrap().name(), "UInt64AddOperator");
    assert_eq!(loaded.column_families[1].name(), "one#two");
    let second = &loaded.column_families[1].options().cf;
    assert_eq!(second.comparator.name(), "rocksdb.ReverseBytewiseComparator");
    assert_eq!(second.merge_operator.as_ref().unwrap().name(), "StringAppendOperator");
    // Options without effect here, or with a different effect, cause warnings; those at RocksDB's default do not.
    let said: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    for name in ["table_cache_numshardbits=4", "index_type=kHashSearch", "format_version=4"] {
        assert!(said.iter().any(|s| s.contains(name)), "{name} is not in {said:#?}");
    }
    assert!(said.len() <= 8, "{said:#?}");

    let families = loaded.column_families;
    let db = Db::open_cf_descriptors(&loaded.options, &path, families).unwrap();
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"v"[..]));
    let second = db.cf_handle("one#two").unwrap();
    assert_eq!(db.get_cf(&second, "m").unwrap().as_deref(), Some(&b"1+2"[..]));
    drop(db);
    // And back: options that only RocksDB has are still in the file.
    let mut script = Script::new();
    script.line(format!("load {}", path.display())).line("options db").open(&path).line("close");
    let answer = driver.answer(TEST, &script).unwrap();
    for option in ["table_cache_numshardbits=4", "max_open_files=333", "enable_pipelined_write=true"] {
        assert!(answer.options().iter().any(|o| o.trim() == option), "{option}: {:#?}", answer.options());
    }
}

#[test]
fn the_default_options_of_every_rocksdb_load_without_a_word() {
    const TEST: &str = "the_default_options_of_every_rocksdb_load_without_a_word";
    for driver in Peer::all(TEST) {
        let dir = tempfile::tempdir().unwrap();
        let mut script = Script::new();
        script.line("cf default ").line("cf second ").open(dir.path()).put("default", "k", "v").line("close");
        match driver.run(&script) {
            Outcome::Done(_) => {}
            other => panic!("{other:?}"),
        }
        let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
        assert_eq!(loaded.warnings, [], "{:?} {:?}", driver.peer, loaded.rocksdb_version);
        assert_eq!(loaded.column_families.len(), 2);
        drop(Db::open_cf_descriptors(&loaded.options, dir.path(), loaded.column_families).unwrap());
    }
}

/// A database with one changed line in its OPTIONS file.
fn with_line(line: &str, section: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir, |_| {}));
    let file = options_files(dir.path()).pop().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let name = line.split('=').next().unwrap();
    let kept: Vec<&str> = text.lines().filter(|l| l.trim().split('=').next() != Some(name)).collect();
    let text = kept.join("\n").replace(section, &format!("{section}\n  {line}"));
    std::fs::write(file, text).unwrap();
    dir
}

#[test]
fn nothing_in_a_file_is_passed_over_silently() {
    const CF: &str = "[CFOptions \"default\"]";
    const TABLE: &str = "[TableOptions/BlockBasedTable \"default\"]";
    let load = |line: &str, section: &str| OptionsLoader::new().load_latest(with_line(line, section).path());
    for (line, section, kind) in [
        ("a_new_option=1", "[DBOptions]", ErrorKind::InvalidArgument),
        ("a_new_option=1", CF, ErrorKind::InvalidArgument),
        ("a_new_option=1", TABLE, ErrorKind::InvalidArgument),
        ("compression_opts={level=3;a_new_option=1;}", CF, ErrorKind::InvalidArgument),
        ("write_buffer_size=many", CF, ErrorKind::InvalidArgument),
        ("enable_blob_files=true", CF, ErrorKind::NotSupported),
        ("persist_user_defined_timestamps=false", CF, ErrorKind::NotSupported),
        ("table_factory=PlainTable", CF, ErrorKind::NotSupported),
        ("no equals sign", CF, ErrorKind::Corruption),
    ] {
        let e = load(line, section).unwrap_err();
        assert_eq!(e.kind(), kind, "{line}: {e}");
        let name = line.split('=').next().unwrap();
        assert!(e.message().contains("OPTIONS-"), "{e}");
        assert!(kind == ErrorKind::Corruption || e.message().contains(name), "{e}");
    }
    for (line, section) in [
        ("two_write_queues=true", "[DBOptions]"),
        ("comparator=my.Comparator", CF),
        ("merge_operator=MyOperator", CF),
        ("prefix_extractor=MyExtractor", CF),
        ("compaction_filter=MyFilter", CF),
        ("sample_for_compression=7", CF),
        ("block_align=true", TABLE),
    ] {
        let loaded = load(line, section).unwrap();
        assert_eq!(loaded.warnings.len(), 1, "{line}: {:?}", loaded.warnings);
        assert!(loaded.warnings[0].to_string().contains(line), "{}", loaded.warnings[0]);
        assert_eq!(loaded.options.load_warnings(), loaded.warnings);
    }
    let dir = with_line("a_new_option=1", CF);
    let loaded = OptionsLoader::new().ignore_unknown_options(true).load_latest(dir.path()).unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert_eq!(OptionsLoader::new().load_latest("/no/such").unwrap_err().kind(), ErrorKind::NotFound);
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(OptionsLoader::new().load_latest(empty.path()).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Both values of these options have no effect here, but they do in RocksDB. The same for parts of options.
#[test]
fn what_is_taken_without_a_word_stays_in_the_file() {
    const TABLE: &str = "[TableOptions/BlockBasedTable \"default\"]";
    const CF: &str = "[CFOptions \"default\"]";
    for (line, kept, section) in [
        ("unordered_write=true", "unordered_write=true", "[DBOptions]"),
        ("enable_write_thread_adaptive_yield=false", "adaptive_yield=false", "[DBOptions]"),
        ("strict_max_successive_merges=true", "merges=true", CF),
        ("optimize_filters_for_memory=true", "memory=true", TABLE),
        ("compaction_options_universal={size_ratio=7;reduce_file_locking=true;}", ";reduce_file_locking=true;", CF),
    ] {
        let dir = with_line(line, section);
        for _ in 0..2 {
            let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
            assert_eq!(loaded.warnings, [], "{line}");
            drop(Db::open_cf_descriptors(&loaded.options, dir.path(), loaded.column_families).unwrap());
            let written = std::fs::read_to_string(options_files(dir.path()).pop().unwrap()).unwrap();
            let name = line.split('=').next().unwrap();
            let found = written.lines().find(|l| l.trim().split('=').next() == Some(name)).unwrap_or_default();
            assert!(found.contains(kept), "{line}: {found}");
        }
    }
}

/// A file may be untrusted: it cannot choose an engine, load a program, or slow down anything with RocksDB's shorthands
/// for objects, which no real file contains.
#[test]
fn what_is_the_callers_is_never_taken_from_a_file() {
    let own: Vec<_> = Options::default().values().into_iter().filter(|o| !o.in_files).collect();
    for name in [
        "merge_engine",
        "kernel_driver",
        "kernel_merge_program",
        "compaction_downforce",
        "compaction_downforce_merge_percent",
        "compaction_classic",
    ] {
        assert!(own.iter().any(|o| o.name == name), "{name}");
    }
    for option in own {
        let section = if option.section == "CFOptions" { "[CFOptions \"default\"]" } else { "[DBOptions]" };
        for value in [&*option.value, "kernel", "loop", "/evil.o", "true", "17"] {
            let line = format!("{}={value}", option.name);
            let dir = with_line(&line, section);
            let e = OptionsLoader::new().load_latest(dir.path()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            assert!(e.message().contains(&format!("option {:?} ", option.name)), "{e}");
            assert!(e.message().contains("OPTIONS-") && e.message().contains("remove the line"), "{e}");
            // Ignored on request: with a warning, without effect, and not written again.
            let loaded = OptionsLoader::new().ignore_unknown_options(true).load_latest(dir.path()).unwrap();
            assert!(loaded.warnings.len() == 1 && loaded.warnings[0].name == option.name, "{:?}", loaded.warnings);
            let taken = loaded.options.values().into_iter().find(|o| o.name == option.name).unwrap();
            assert_eq!(taken.value, taken.default, "{line}");
            drop(Db::open_cf_descriptors(&loaded.options, dir.path(), loaded.column_families).unwrap());
            let written = std::fs::read_to_string(options_files(dir.path()).pop().unwrap()).unwrap();
            assert!(!written.contains(option.name), "{written}");
        }
    }
    // Shorthands for objects are for strings.
    let dir = with_line("rate_limiter_bytes_per_sec=1", "[DBOptions]");
    let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
    assert!(loaded.options.db.rate_limiter.is_none());
    let dir = with_line("block_cache={capacity=1T}", "[TableOptions/BlockBasedTable \"default\"]");
    let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
    assert!(loaded.options.cf.table.block_cache.is_none() && loaded.warnings.len() == 1, "{:?}", loaded.warnings);
}

/// As in RocksDB, a string can create a cache; earlier, such a string was refused.
#[test]
fn a_string_makes_a_block_cache_of_its_own() {
    for text in ["64M", "{capacity=67108864}"] {
        let text = format!("block_based_table_factory={{block_cache={text};block_size=8K}}");
        let o = Options::from_string(&Options::default(), &text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(o.cf.table.block_cache.as_ref().map(|c| c.stats().capacity), Some(64 << 20), "{text}");
        assert_eq!(o.cf.table.block_size, 8192, "{text}");
    }
    let e = Options::from_string(&Options::default(), "block_based_table_factory={block_cache=many}");
    assert!(e.is_err());
}

#[test]
fn options_come_from_strings() {
    let base = Options::default();
    let o = Options::from_string(
        &base,
        "max_background_jobs=9; write_buffer_size = 8M; block_based_table_factory={block_size=16K;filter_policy=\
         bloomfilter:12:false}; merge_operator=max; comparator=rocksdb.ReverseBytewiseComparator; atomic_flush=false;",
    )
    .unwrap();
    assert_eq!((o.db.max_background_jobs, o.cf.write_buffer_size, o.cf.table.block_size), (9, 8 << 20, 16 << 10));
    assert_eq!(o.cf.merge_operator.unwrap().name(), "MaxOperator");
    assert_eq!(o.cf.comparator.name(), "rocksdb.ReverseBytewiseComparator");
    let o = Options::from_pairs(&base, [("block_based_table_factory.block_size", "4096"), ("max_open_files", "-1")]);
    assert_eq!(o.unwrap().cf.table.block_size, 4096);
    for (text, named) in [
        ("no_such=1", "no_such"),
        ("write_buffer_size", "write_buffer_size"),
        ("write_buffer_size={1", "brace"),
        ("two_write_queues=true", "two_write_queues"),
        ("block_based_table_factory={no_such=1}", "no_such"),
        ("block_based_table_factory={block_size=x}", "block_size"),
        ("merge_operator=mine", "mine"),
        ("enable_blob_files=1", "enable_blob_files"),
    ] {
        let e = Options::from_string(&base, text).unwrap_err();
        assert!(e.message().contains(named), "{text}: {e}");
    }
    assert!(Options::from_string(&base, "two_write_queues=false").is_ok(), "RocksDB's default is no request");
}

/// Number of background threads of this process with this name prefix.
fn threads(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.unwrap().path().join("comm")).ok());
    names.filter(|n| n.starts_with(prefix)).count()
}

/// Sorted runs: L0 tables, and deeper levels that have tables.
fn runs(db: &Db) -> usize {
    let levels = db.level_stats(&db.cf_handle("default").unwrap());
    let below = levels.iter().skip(1).filter(|l| l.files > 0).count();
    levels[0].files + below
}

/// From leveled to universal and back, without a rewrite: existing tables stay where they are.
#[test]
fn the_compaction_style_changes_while_the_database_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_level_compaction_dynamic_level_bytes(false));
    write_tables(&db, 9);
    db.wait_for_background_work().unwrap();
    let before = db.level_stats(&db.cf_handle("default").unwrap());
    db.set_options(&[("compaction_style", "kCompactionStyleUniversal")]).unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(db.level_stats(&db.cf_handle("default").unwrap())[1].files, before[1].files, "nothing is due");
    for round in 0..12 {
        write_tables(&db, 1);
        db.wait_for_background_work().unwrap();
        assert!(runs(&db) <= 4, "round {round}: {} runs", runs(&db));
    }
    assert_eq!(db.get_options().cf.compaction_style, rockmill::CompactionStyle::Universal);
    db.set_options(&[("compaction_options_universal", "{size_ratio=5}")]).unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    let levels = db.level_stats(&db.cf_handle("default").unwrap());
    assert_eq!(levels.iter().position(|l| l.files > 0), Some(6), "one run, in the last level");
    db.set_options(&[("compaction_style", "kCompactionStyleLevel")]).unwrap();
    write_tables(&db, 9);
    db.wait_for_background_work().unwrap();
    assert!(l0_files(&db) < 4);
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&8_u32.to_be_bytes()[..]));
    for refused in ["kCompactionStyleFIFO", "kCompactionStyleNone", "tiered"] {
        let e = db.set_options(&[("compaction_style", refused)]).unwrap_err();
        assert!(e.message().contains("compaction_style"), "{e}");
    }
    let e = db.set_options(&[("compaction_style", "kCompactionStyleUniversal"), (READ_AMP, "2")]).unwrap_err();
    assert!(e.message().contains("max_read_amp is 2"), "{e}");
    let e = db.set_options(&[(READ_AMP, "-2"), ("compaction_style", "kCompactionStyleUniversal")]).unwrap_err();
    assert!(e.message().contains("at least -1"), "{e}");
    // Options without effect in DF-compaction are not silently accepted.
    let df = [("compaction_style", "kCompactionStyleUniversal"), ("compaction_downforce", "true")];
    for (name, value) in
        [("max_read_amp", "9"), ("stop_style", "kCompactionStopStyleSimilarSize"), ("compression_size_percent", "50")]
    {
        let name = format!("compaction_options_universal.{name}");
        let e = db.set_options(&[&df[..], &[(&*name, value)]].concat()).unwrap_err();
        assert!(e.message().contains(&format!("{name} has no effect with compaction_downforce")), "{e}");
        db.set_options(&[(&*name, value)]).unwrap_or_else(|e| panic!("without DF-compaction: {e}"));
        let e = db.set_options(&df).unwrap_err();
        assert!(e.message().contains(&name), "{e}");
        let usual = rockmill::UniversalCompactOptions::default();
        let usual = match value {
            "9" => usual.max_read_amp.to_string(),
            "50" => usual.compression_size_percent.to_string(),
            _ => "kCompactionStopStyleTotalSize".to_owned(),
        };
        db.set_options(&[(&*name, &*usual)]).unwrap();
    }
    assert_eq!(db.get_options().cf.compaction_style, rockmill::CompactionStyle::Level);
}

/// FIFO compaction deletes the oldest tables, including those of another style. A change back to another style rewrites
/// nothing.
#[test]
fn fifo_compaction_keeps_to_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let fill = |db: &Db, from: u32, tables: u32| {
        for n in from..from + tables {
            for i in 0..10 {
                let value: Vec<u8> = (0..1000_u32).map(|b| (b.wrapping_mul(n * 31 + i + 7) >> 3) as u8).collect();
                db.put(format!("{n:04} {i}"), value).unwrap();
            }
            db.flush().unwrap();
        }
        db.wait_for_background_work().unwrap();
    };
    let leveled = |o: &mut Options| {
        o.set_compression_type(rockmill::CompressionType::None);
        o.set_level_zero_file_num_compaction_trigger(2);
    };
    drop({
        let db = open(&dir, leveled);
        fill(&db, 0, 8);
        db
    });
    let fifo = |o: &mut Options| {
        leveled(o);
        o.set_compaction_style(rockmill::CompactionStyle::Fifo);
        let mut fifo = rockmill::FifoCompactOptions::default();
        fifo.set_max_table_files_size(60_000);
        o.set_fifo_compaction_options(&fifo);
        o.set_level_zero_stop_writes_trigger(3);
    };
    let db = open(&dir, fifo);
    fill(&db, 100, 12);
    let sizes = |db: &Db| db.level_stats(&db.cf_handle("default").unwrap()).iter().map(|l| l.bytes).sum::<u64>();
    assert!(sizes(&db) <= 60_000 && sizes(&db) > 30_000, "{}", sizes(&db));
    assert_eq!((db.get("0000 0").unwrap(), db.get("0100 0").unwrap()), (None, None));
    assert!(db.get("0111 0").unwrap().is_some() && l0_files(&db) >= 4);
    // The same with a manual change: a smaller size takes effect immediately.
    db.set_options(&[("compaction_options_fifo", "{max_table_files_size=25000}")]).unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(sizes(&db) <= 25_000, "{}", sizes(&db));
    let mut how = CompactOptions::default();
    how.set_change_level(true);
    assert!(db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how).unwrap_err().message().contains("FIFO"));
    db.set_options(&[("compaction_style", "kCompactionStyleLevel")]).unwrap();
    fill(&db, 200, 6);
    assert!(l0_files(&db) < 3 && db.get("0111 0").unwrap().is_some());
    drop(db);
    let mut o = Options::default();
    fifo(&mut o);
    o.set_allow_ingest_behind(true);
    let e = Db::open(&o, dir.path()).map(drop).expect_err("one level").message().to_owned();
    assert!(e.contains("allow_ingest_behind"), "{e}");
}

const READ_AMP: &str = "compaction_options_universal.max_read_amp";

#[test]
fn the_merge_engine_changes_with_either_call() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |_| {});
    db.set_options(&[("merge_engine", "pread")]).unwrap();
    assert_eq!(db.get_db_options().merge_engine, rockmill::MergeEngine::Pread);
    write_tables(&db, 5);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    db.set_db_options(&[("merge_engine", "auto")]).unwrap();
    assert_eq!(db.get_options().db.merge_engine, rockmill::MergeEngine::Auto);
    assert!(db.set_options(&[("merge_engine", "warp")]).is_err());
    let text = std::fs::read_to_string(options_files(dir.path()).pop().unwrap()).unwrap();
    assert!(!text.contains("merge_engine"), "RocksDB does not know it");
}

#[test]
fn options_of_the_database_change_while_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_max_background_jobs(2));
    // Thread names are truncated to 15 bytes; other tests have their own threads, with lower numbers.
    assert_eq!(threads("rockmill:comp17"), 0);
    db.set_db_options(&[("max_background_jobs", "24")]).unwrap();
    let eventually = |what: &str, done: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    eventually("no thread was started", &|| threads("rockmill:comp17") == 1 && threads("rockmill:flush5") == 1);
    db.set_db_options(&[("max_background_jobs", "2")]).unwrap();
    eventually("no thread ended", &|| threads("rockmill:comp17") == 0 && threads("rockmill:flush5") == 0);
    write_tables(&db, 6); // those that are left still work
    db.set_db_options(&[("max_open_files", "11"), ("delayed_write_rate", "1M"), ("wal_bytes_per_sync", "4096")])
        .unwrap();
    assert_eq!(db.get_db_options().max_open_files, 11);
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&5_u32.to_be_bytes()[..]));
    for (name, value, kind) in [
        ("no_such", "1", ErrorKind::NotFound),
        ("create_if_missing", "true", ErrorKind::NotFound),
        ("max_background_jobs", "many", ErrorKind::InvalidArgument),
        ("two_write_queues", "true", ErrorKind::NotSupported),
        ("write_buffer_size", "1M", ErrorKind::NotFound),
    ] {
        let e = db.set_db_options(&[("max_open_files", "99"), (name, value)]).unwrap_err();
        assert_eq!(e.kind(), kind, "{name}: {e}");
        assert!(e.message().contains(name), "{e}");
    }
    assert_eq!(db.set_db_options(&[]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(db.get_db_options().max_open_files, 11, "one of the refused changes took effect");
    let loaded = OptionsLoader::new().load_latest(dir.path()).unwrap();
    assert_eq!((loaded.options.db.max_open_files, loaded.options.db.delayed_write_rate), (11, 1 << 20));
}

#[test]
fn the_wal_bound_takes_effect_with_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |o| o.set_disable_auto_compactions(true));
    let cf = db.create_cf("other", &Options::default()).unwrap();
    db.put_cf(&cf, b"old", b"value").unwrap();
    for i in 0..100_u32 {
        db.put(i.to_be_bytes(), [7; 1000]).unwrap();
    }
    assert_eq!(l0_files(&db), 0);
    db.set_db_options(&[("max_total_wal_size", "10000")]).unwrap();
    db.put(b"k", b"v").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while l0_files(&db) == 0 {
        assert!(Instant::now() < end, "nothing was flushed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn options_of_tables_change_for_tables_written_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, |_| {});
    let change = [("block_based_table_factory", "{block_size=32K;filter_policy=bloomfilter:9:false}")];
    db.set_options(&change).unwrap();
    db.set_options(&[("table_factory.block_restart_interval", "8")]).unwrap();
    let table = db.get_options().cf.table;
    assert_eq!((table.block_size, table.block_restart_interval), (32 << 10, 8));
    for i in 0..2000_u32 {
        db.put(i.to_be_bytes(), [1; 100]).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(db.get(1999_u32.to_be_bytes()).unwrap().as_deref(), Some(&[1; 100][..]));
    for bad in ["{block_size=5000000000}", "{no_block_cache=true}", "{nonsense=1}", "{format_version=99}"] {
        let e = db.set_options(&[("block_based_table_factory", bad)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{bad}: {e}");
    }
}

#[test]
fn two_files_stay_and_copies_take_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut o = Options::default();
    o.create_if_missing(true);
    let db = Db::open(&o, &path).unwrap();
    assert_eq!(options_files(&path).len(), 1);
    db.create_cf("other", &o).unwrap();
    db.drop_cf("other").unwrap();
    for n in 5..9 {
        db.set_options(&[("level0_file_num_compaction_trigger", &n.to_string())]).unwrap();
    }
    let files = options_files(&path);
    assert_eq!(files.len(), 2, "{files:?}");
    Checkpoint::new(&db).unwrap().create_checkpoint(dir.path().join("copy")).unwrap();
    drop(db);
    let copied = options_files(&dir.path().join("copy"));
    assert_eq!(copied.len(), 1);
    assert_eq!(std::fs::read(&copied[0]).unwrap(), std::fs::read(&files[1]).unwrap());

    let before = options_files(&path);
    drop(Db::open_for_read_only(&o, &path, false).unwrap());
    assert_eq!(options_files(&path), before, "a read-only open wrote one");
    // A number above all numbers in the MANIFEST, and remains of a crash.
    std::fs::rename(&before[1], path.join("OPTIONS-000900")).unwrap();
    std::fs::write(path.join("OPTIONS-000901.dbtmp"), "[DBOpt").unwrap();
    drop(Db::open(&o, &path).unwrap());
    let files = options_files(&path);
    assert!(files.len() == 2 && files[1] > path.join("OPTIONS-000900"), "{files:?}");
    Db::destroy(&o, &path).unwrap();
    assert!(!path.exists());
}

#[test]
fn compatibility_is_checked_by_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (o, families) = unusual();
    drop(Db::open_cf_descriptors(&o, &path, families.clone()).unwrap());
    let check = |change: &dyn Fn(&mut Vec<ColumnFamilyDescriptor>)| {
        let mut families = families.clone();
        change(&mut families);
        OptionsLoader::new().check_compatibility(&path, &families)
    };
    check(&|_| {}).unwrap();
    check(&|f| f.reverse()).unwrap();
    check(&|f| f[0].options_mut().set_write_buffer_size(1 << 20)).unwrap();
    check(&|f| f[1].options_mut().set_merge_operator_object(Arc::new(MaxOperator))).unwrap();
    for (named, error) in [
        ("merge_operator", check(&|f| f[0].options_mut().set_merge_operator_object(Arc::new(MaxOperator)))),
        ("merge_operator", check(&|f| f[0].options_mut().cf.merge_operator = None)),
        ("comparator", check(&|f| f[1].options_mut().cf.comparator = Options::default().cf.comparator)),
        ("a#b", check(&|f| drop(f.pop()))),
        ("more", check(&|f| f.push(ColumnFamilyDescriptor::new("more", Options::default())))),
    ] {
        let e = error.unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(named), "{named}: {e}");
    }
}

#[test]
fn another_merge_operator_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let with = |operator: Option<Arc<dyn rockmill::MergeOperator>>| {
        let mut o = Options::default();
        o.create_if_missing(true);
        if let Some(operator) = operator {
            o.set_merge_operator_object(operator);
        }
        Db::open(&o, dir.path())
    };
    let db = with(Some(Arc::new(UInt64AddOperator))).unwrap();
    db.merge(b"k", 1_u64.to_le_bytes()).unwrap();
    db.flush().unwrap();
    drop(db);
    let e = with(Some(Arc::new(MaxOperator))).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    for part in ["MaxOperator", "UInt64AddOperator", "OPTIONS-"] {
        assert!(e.message().contains(part), "{e}");
    }
    drop(with(Some(Arc::new(UInt64AddOperator))).unwrap());
    // A tool that stored its own operator in the file does not lock out the operator that wrote the tables.
    let file = options_files(dir.path()).pop().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let other = "merge_operator={id=StringAppendOperator;delimiter=,;}";
    std::fs::write(&file, text.replace("merge_operator=UInt64AddOperator", other)).unwrap();
    drop(with(Some(Arc::new(UInt64AddOperator))).unwrap());
    drop(with(None).unwrap());
}

#[test]
fn after_a_power_cut_the_newest_file_is_whole() {
    let fs = MemFileSystem::new();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    let path = Path::new("/db");
    drop(Db::open(&o, path).unwrap());
    fs.start_recording();
    let db = Db::open(&o, path).unwrap();
    let mut acknowledged = Vec::new();
    for n in 5..8 {
        db.set_options(&[("level0_file_num_compaction_trigger", &n.to_string())]).unwrap();
        acknowledged.push((fs.recorded(), n));
    }
    drop(db);
    for point in 0..=fs.recorded() {
        for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Hostile(point as u64)] {
            let image = fs.crash_image_at(point, mode).unwrap();
            let mut loader = OptionsLoader::new();
            loader.file_system(Arc::new(image.clone()));
            let loaded = loader.load_latest(path).unwrap_or_else(|e| panic!("point {point}, {mode:?}: {e}"));
            let least = acknowledged.iter().filter(|a| a.0 <= point).map(|a| a.1).max().unwrap_or(4);
            let found = loaded.options.cf.level0_file_num_compaction_trigger;
            assert!((least..=7).contains(&found), "point {point}, {mode:?}: {found}, {least} was acknowledged");
            drop(Db::open(&loaded.options, path).unwrap_or_else(|e| panic!("point {point}, {mode:?}: {e}")));
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_that_names_it() {
    let fs = MemFileSystem::new();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    let db = Db::open(&o, "/db").unwrap();
    let fail = || {
        fs.set_fault(Box::new(|op| {
            let options = op.path.to_string_lossy().contains("OPTIONS-");
            (options && op.kind == OpKind::Write).then(|| std::io::Error::from_raw_os_error(28))
        }));
    };
    fail();
    let e = db.set_options(&[("level0_file_num_compaction_trigger", "6")]).unwrap_err();
    assert!(e.message().contains("OPTIONS-") && e.is_no_space(), "{e}");
    assert_eq!(db.get_options().cf.level0_file_num_compaction_trigger, 6, "in effect until the database is closed");
    let e = db.create_cf("other", &o).unwrap_err();
    assert!(e.message().contains("OPTIONS-"), "{e}");
    assert!(db.cf_handle("other").is_some());
    db.put("k", "v").unwrap();
    drop(db);
    let e = Db::open_cf(&o, "/db", ["default", "other"]).unwrap_err();
    assert!(e.message().contains("OPTIONS-"), "{e}");
    fs.clear_fault();
    let db = Db::open_cf(&o, "/db", ["default", "other"]).unwrap();
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// A synced write needs a record in a WAL; a synced write without a WAL is refused by every call.
#[test]
fn a_write_cannot_be_synced_without_a_wal() {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_file_system(std::sync::Arc::new(rockmill_io::MemFileSystem::new()));
    let db = Db::open(&options, "/db").expect("a database");
    let cf = db.cf_handle("default").expect("it is there");
    let mut both = rockmill::WriteOptions::default();
    both.set_sync(true);
    both.disable_wal(true);
    let mut batch = rockmill::WriteBatch::new();
    batch.put("k", "v");
    for (what, done) in [
        ("put", db.put_opt("k", "v", &both)),
        ("put_cf", db.put_cf_opt(&cf, "k", "v", &both)),
        ("delete", db.delete_opt("k", &both)),
        ("delete_cf", db.delete_cf_opt(&cf, "k", &both)),
        ("write", db.write_opt(&batch, &both)),
    ] {
        assert_eq!(done.expect_err(what).kind(), rockmill::ErrorKind::InvalidArgument, "{what}");
    }
    assert_eq!(db.get("k").expect("a read"), None);
    assert_eq!(db.background_error(), None);
}
