//! Repair: makes a database from its remains, and RocksDB agrees.

mod oracle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oracle::{Script, content};
use rockmill::{ColumnFamilyDescriptor, Db, ErrorKind, IteratorMode, Options, RepairOptions};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem};

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;
/// Of each column family.
type All = BTreeMap<String, Contents>;

fn options(fs: &Arc<dyn FileSystem>) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_file_system(Arc::clone(fs));
    options.set_write_buffer_size(16 << 10);
    options.set_target_file_size_base(8 << 10);
    options.set_max_bytes_for_level_base(32 << 10);
    options.set_level_zero_file_num_compaction_trigger(3);
    options
}

fn posix() -> Arc<dyn FileSystem> {
    Arc::new(rockmill_io::PosixFileSystem::default())
}

fn memory() -> (MemFileSystem, Arc<dyn FileSystem>) {
    let fs = MemFileSystem::new();
    (fs.clone(), Arc::new(fs))
}

fn open(options: &Options, path: &Path) -> Db {
    try_open(options, path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn try_open(options: &Options, path: &Path) -> rockmill::Result<Db> {
    let families = Db::list_cf(options, path).unwrap_or_else(|_| vec!["default".into(), "other".into()]);
    Db::open_cf_descriptors(options, path, families.iter().map(|n| ColumnFamilyDescriptor::new(n, options.clone())))
}

/// Everything, read forwards, and each key separately.
fn contents(db: &Db) -> All {
    let mut out = All::new();
    for name in db.cf_names() {
        let cf = db.cf_handle(&name).unwrap();
        let found: Contents = db
            .iterator_cf(&cf, IteratorMode::Start)
            .map(|e| e.unwrap())
            .map(|(k, v)| (k.into_vec(), v.into_vec()))
            .collect();
        for (k, v) in found.iter().step_by(7) {
            assert_eq!(db.get_cf(&cf, k).unwrap().as_ref(), Some(v), "{name} {}", String::from_utf8_lossy(k));
        }
        out.insert(name, found);
    }
    out
}

/// A database with several levels, deletions of both kinds, two column families, and data that is only in the WAL.
fn fill(db: &Db, seed: u64, rounds: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let other = db.cf_handle("other").unwrap();
    for round in 0..rounds {
        for i in 0..150 {
            let key = format!("key{:04}", rng.u32(..1500));
            match rng.u8(..12) {
                0 => db.delete(&key).unwrap(),
                1 if i % 3 == 0 => {
                    db.delete_range_cf(&db.default_cf(), &key, format!("{key}5")).unwrap();
                }
                _ => db.put(&key, format!("{round}-{i}-{}", "v".repeat(rng.usize(..100)))).unwrap(),
            }
            if i % 5 == 0 {
                db.put_cf(&other, format!("o{:04}", rng.u32(..400)), format!("{round}-{i}")).unwrap();
            }
        }
        if rng.bool() {
            db.flush().unwrap();
        }
    }
    db.put("in the WAL", "only").unwrap();
    db.put_cf(&other, "in the WAL", "only").unwrap();
}

fn settle(db: &Db) {
    db.wait_for_background_work().unwrap();
}

fn files(fs: &dyn FileSystem, dir: &Path, part: &str) -> Vec<PathBuf> {
    let mut names = fs.list_dir(dir).unwrap_or_default();
    names.retain(|n| n.contains(part));
    names.sort();
    names.iter().map(|n| dir.join(n)).collect()
}

fn without_manifest(fs: &dyn FileSystem, dir: &Path) {
    fs.remove(&dir.join("CURRENT")).unwrap();
    files(fs, dir, "MANIFEST").iter().for_each(|m| fs.remove(m).unwrap());
}

#[test]
fn without_a_manifest_everything_comes_back() {
    for seed in 0..4 {
        let (_, fs) = memory();
        let (options, path) = (options(&fs), Path::new("/db"));
        let db = open(&options, path);
        fill(&db, seed, 12);
        settle(&db);
        let expected = contents(&db);
        let sequence = db.latest_sequence_number();
        drop(db);
        without_manifest(&*fs, path);
        assert!(
            try_open(
                &{
                    let mut o = options.clone();
                    o.create_if_missing(false);
                    o
                },
                path
            )
            .is_err()
        );
        let report = Db::repair(&options, path).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(report.column_families, ["default", "other"]);
        assert!(report.manifest_damage.is_some() && report.damaged.is_empty(), "{report:?}");
        assert!(report.wal_entries >= 2 && report.tables_kept + report.tables_merged > 2, "{report:?}");
        assert_eq!(report.last_sequence, sequence);
        let db = open(&options, path);
        assert!(contents(&db) == expected, "seed {seed}: {report:?}");
        // It continues to work: newer writes win, compaction changes nothing.
        db.put("in the WAL", "no more").unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let mut expected = expected;
        expected.get_mut("default").unwrap().insert(b"in the WAL".to_vec(), b"no more".to_vec());
        assert!(contents(&db) == expected, "seed {seed}, later");
        // The WALs are kept.
        assert!(!files(&*fs, &path.join("lost"), ".log").is_empty());
    }
}

#[test]
fn a_sound_database_is_the_same_afterwards_and_keeps_its_levels() {
    let (_, fs) = memory();
    let (options, path) = (options(&fs), Path::new("/db"));
    let db = open(&options, path);
    fill(&db, 1, 12);
    settle(&db);
    let expected = contents(&db);
    let levels = |db: &Db| -> Vec<usize> { db.level_stats(&db.default_cf()).iter().map(|l| l.files).collect() };
    let before = levels(&db);
    drop(db);
    let report = Db::repair(&options, path).unwrap();
    assert_eq!((report.manifest_damage.as_ref(), report.tables_merged, report.tables_damaged), (None, 0, 0));
    let db = open(&options, path);
    assert!(contents(&db) == expected);
    let after = levels(&db);
    assert_eq!(before[1..], after[1..], "deeper levels");
    drop(db);
    // A second repair finds only the tables.
    let report = Db::repair(&options, path).unwrap();
    assert!(report.damaged.is_empty() && report.wal_entries == 0, "{report:?}");
    assert!(contents(&open(&options, path)) == expected);
}

#[test]
fn damaged_and_missing_tables_cost_only_what_was_in_them() {
    for missing in [false, true] {
        let (mem, fs) = memory();
        let (mut options, path) = (options(&fs), Path::new("/db"));
        options.set_disable_auto_compactions(true);
        let db = open(&options, path);
        let mut expected = Contents::new();
        for table in 0..5 {
            for i in 0..50 {
                db.put(format!("t{table}-{i:02}"), format!("{table}")).unwrap();
                if table != 2 {
                    expected.insert(format!("t{table}-{i:02}").into_bytes(), format!("{table}").into_bytes());
                }
            }
            db.flush().unwrap();
        }
        drop(db);
        let bad = files(&*fs, path, ".sst")[2].clone();
        if missing {
            fs.remove(&bad).unwrap();
        } else {
            mem.flip_stored_bit(&bad, 300).unwrap();
        }
        let report = Db::repair(&options, path).unwrap();
        assert_eq!((report.tables_kept, report.tables_merged), (4, 0), "{report:?}");
        if missing {
            assert_eq!(report.tables_missing.len(), 1, "{report:?}");
        } else {
            assert_eq!((report.tables_damaged, report.tables_missing.len()), (1, 0), "{report:?}");
            assert_eq!(report.damaged[0].0, bad.file_name().unwrap().to_str().unwrap());
            assert!(fs.exists(&path.join("lost").join(bad.file_name().unwrap())).unwrap());
        }
        let db = open(&options, path);
        assert!(contents(&db)["default"] == expected);
    }
}

/// A flipped bit anywhere in the MANIFEST, or the MANIFEST truncated anywhere: everything is recovered.
#[test]
fn whatever_is_left_of_the_manifest_nothing_is_lost() {
    let (mem, fs) = memory();
    let (options, path) = (options(&fs), Path::new("/db"));
    let db = open(&options, path);
    fill(&db, 3, 8);
    settle(&db);
    let expected = contents(&db);
    drop(db);
    let manifest = files(&*fs, path, "MANIFEST").pop().unwrap();
    let size = fs.file_size(&manifest).unwrap();
    for at in (0..size).step_by(size as usize / 25) {
        for cut in [false, true] {
            let image = mem.crash_image(CrashMode::KeepAll);
            if cut {
                FileSystem::truncate(&image, &manifest, at).unwrap();
            } else {
                image.flip_stored_bit(&manifest, at * 8 + 1).unwrap();
            }
            let shared: Arc<dyn FileSystem> = Arc::new(image.clone());
            let mut options = options.clone();
            options.set_file_system(shared);
            let what = format!("at {at} of {size}, {}", if cut { "cut" } else { "flipped" });
            let report = Db::repair(&options, path).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(contents(&open(&options, path)) == expected, "{what}: {report:?}");
        }
    }
}

#[test]
fn damaged_logs_lose_only_the_damaged_records() {
    let (mem, fs) = memory();
    let (mut options, path) = (options(&fs), Path::new("/db"));
    options.set_write_buffer_size(1 << 20);
    let db = open(&options, path);
    db.put("first", "1").unwrap();
    db.put("hit", "x".repeat(5000)).unwrap();
    // The rest of a damaged block is skipped.
    db.put("long", "y".repeat(40_000)).unwrap();
    db.put("last", "1").unwrap();
    drop(db);
    let wal = files(&*fs, path, ".log").pop().unwrap();
    mem.flip_stored_bit(&wal, 3000 * 8).unwrap();
    let report = Db::repair(&options, path).unwrap();
    assert!(report.wal_bytes_lost >= 5000 && !report.damaged.is_empty(), "{report:?}");
    let found = contents(&open(&options, path));
    assert!(found["default"].contains_key(&b"first"[..]) && found["default"].contains_key(&b"last"[..]));
    assert!(!found["default"].contains_key(&b"hit"[..]));
}

/// A WAL is kept while one column family needs it: data of the others is already in tables, where a flush may have
/// merged it.
#[test]
fn operands_in_a_table_and_in_a_kept_log_count_once() {
    let (_, fs) = memory();
    let (mut o, path) = (options(&fs), Path::new("/db"));
    o.set_write_buffer_size(1 << 20);
    let operator = |_: &[u8], old: Option<&[u8]>, operands: &rockmill::MergeOperands| -> Option<Vec<u8>> {
        let number = |b: &[u8]| std::str::from_utf8(b).unwrap().parse::<u64>().unwrap();
        Some((old.map_or(0, number) + operands.into_iter().map(number).sum::<u64>()).to_string().into_bytes())
    };
    o.set_merge_operator_associative("sum", operator);
    let db = open(&o, path);
    let other = db.cf_handle("other").unwrap();
    db.put_cf(&other, "not flushed", "1").unwrap();
    for n in 1..=10 {
        db.merge("without a base", n.to_string()).unwrap();
        db.merge("with one", n.to_string()).unwrap();
        if n == 3 {
            db.put("with one", "1000").unwrap();
        }
        if n == 7 {
            db.flush().unwrap();
        }
    }
    db.flush().unwrap();
    db.merge("without a base", "100").unwrap();
    db.merge("new", "5").unwrap();
    let expected = contents(&db);
    assert_eq!(expected["default"][&b"without a base"[..]], b"155");
    drop(db);
    without_manifest(&*fs, path);
    let report = Db::repair(&o, path).unwrap();
    assert!(report.tables_merged > 0 && report.wal_entries > 20, "the WAL was kept: {report:?}");
    assert!(contents(&open(&o, path)) == expected, "{report:?}");
}

#[test]
fn power_cuts_and_failures_in_a_repair_are_repaired_again() {
    for lost_manifest in [false, true] {
        let (mem, fs) = memory();
        let (mut o, path) = (options(&fs), Path::new("/db"));
        o.set_target_file_size_base(64 << 10);
        let db = open(&o, path);
        fill(&db, 5, 4);
        settle(&db);
        let expected = contents(&db);
        drop(db);
        if lost_manifest {
            without_manifest(&*fs, path);
        }
        let start = mem.crash_image(CrashMode::KeepAll);
        let with = |fs: &MemFileSystem| {
            let mut o = o.clone();
            o.set_file_system(Arc::new(fs.clone()));
            o
        };
        let check = |what: &str, image: &MemFileSystem| {
            let o = with(image);
            let report = Db::repair(&o, path).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(contents(&open(&o, path)) == expected, "{what}: {report:?}");
        };
        let run = start.crash_image(CrashMode::KeepAll);
        run.start_recording();
        let before = run.calls();
        Db::repair(&with(&run), path).unwrap();
        let calls = run.calls() - before;
        let mut replay = run.replay().unwrap();
        let points = replay.points();
        let step = points / 40 + 1;
        for point in (0..replay.points()).filter(|p| p % step == 0 || p + 30 > points) {
            replay.advance_to(point);
            for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Random(point as u64)] {
                check(
                    &format!("manifest lost: {lost_manifest}, power cut at {point}, {mode:?}"),
                    &replay.crash_image(mode),
                );
            }
        }
        for at in (0..calls).step_by(calls as usize / 30 + 1) {
            let image = start.crash_image(CrashMode::KeepAll);
            image.fail_after(at, 5);
            let failed = Db::repair(&with(&image), path);
            image.clear_fault();
            assert!(failed.is_err(), "call {at} of {calls}");
            check(&format!("manifest lost: {lost_manifest}, from call {at} all failed"), &image);
        }
    }
}

#[test]
fn what_cannot_be_repaired_is_refused_and_left_alone() {
    let (_, fs) = memory();
    let (options, path) = (options(&fs), Path::new("/db"));
    assert_eq!(Db::repair(&options, path).unwrap_err().kind(), ErrorKind::InvalidArgument);
    fs.create_dir(path, true).unwrap();
    assert_eq!(Db::repair(&options, path).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let db = open(&options, path);
    db.put("k", "v").unwrap();
    let e = Db::repair(&options, path).unwrap_err();
    assert!(e.to_string().contains("open elsewhere"), "{e}");
    drop(db);
    fs.write_all(&path.join("000999.blob"), b"values").unwrap();
    let names = fs.list_dir(path).unwrap();
    let e = Db::repair(&options, path).unwrap_err();
    assert!(e.kind() == ErrorKind::NotSupported && e.to_string().contains("blob"), "{e}");
    assert_eq!(fs.list_dir(path).unwrap(), names, "nothing was changed");
    fs.remove(&path.join("000999.blob")).unwrap();
    Db::repair(&options, path).unwrap();
    assert_eq!(open(&options, path).get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn column_families_keep_their_order_of_keys() {
    use rockmill_format::comparator::{Comparator, ReverseBytewiseComparator};
    #[derive(Debug)]
    struct ByLength;
    impl Comparator for ByLength {
        fn name(&self) -> &str {
            "ByLength"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            (a.len(), a).cmp(&(b.len(), b))
        }
        fn find_shortest_separator(&self, _: &mut Vec<u8>, _: &[u8]) {}
        fn find_short_successor(&self, _: &mut Vec<u8>) {}
    }
    let (_, fs) = memory();
    let (base, path) = (options(&fs), Path::new("/db"));
    let descriptors = || {
        let (mut reverse, mut length) = (base.clone(), base.clone());
        reverse.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        length.set_comparator_object(Arc::new(ByLength));
        [
            ColumnFamilyDescriptor::new("default", base.clone()),
            ColumnFamilyDescriptor::new("reverse", reverse),
            ColumnFamilyDescriptor::new("length", length),
        ]
    };
    let db = Db::open_cf_descriptors(&base, path, descriptors()).unwrap();
    for (i, name) in ["default", "reverse", "length"].into_iter().enumerate() {
        let cf = db.cf_handle(name).unwrap();
        for n in 0..300 {
            db.put_cf(&cf, n.to_string(), format!("{name}{n}")).unwrap();
            if n == 200 && i > 0 {
                db.flush_cf(&cf).unwrap();
            }
        }
    }
    let expected = contents(&db);
    drop(db);
    without_manifest(&*fs, path);
    let names = fs.list_dir(path).unwrap();
    let e = Db::repair(&base, path).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("ByLength"), "{e}");
    assert_eq!(fs.list_dir(path).unwrap(), names, "nothing was changed");
    let mut how = RepairOptions::default();
    how.add_column_family(descriptors().into_iter().next_back().unwrap());
    let report = Db::repair_with(&base, path, &how).unwrap();
    assert_eq!(report.column_families.len(), 3, "{report:?}");
    let db = Db::open_cf_descriptors(&base, path, descriptors()).unwrap();
    assert!(contents(&db) == expected);
}

#[test]
fn ingested_tables_of_another_order_are_their_column_familys_or_left_over() {
    let (_, fs) = memory();
    let (base, path) = (options(&fs), Path::new("/db"));
    let mut reverse = base.clone();
    reverse.set_comparator_object(Arc::new(rockmill::ReverseBytewiseComparator));
    let open = || {
        let families = [("default", &base), ("reverse", &reverse)];
        let families = families.map(|(name, o)| ColumnFamilyDescriptor::new(name, o.clone()));
        Db::open_cf_descriptors(&base, path, families).unwrap()
    };
    let ingest = |db: &Db, keys: [&str; 2]| {
        let mut writer = rockmill::SstFileWriter::create(&reverse);
        writer.open("/table.sst").unwrap();
        keys.iter().for_each(|k| writer.put(k, "ingested").unwrap());
        writer.finish().unwrap();
        db.ingest_external_file_cf(&db.cf_handle("reverse").unwrap(), vec!["/table.sst"]).unwrap();
    };
    let db = open();
    db.put("k", "default's").unwrap();
    db.put_cf(&db.cf_handle("reverse").unwrap(), "b", "put").unwrap();
    db.flush_all().unwrap();
    ingest(&db, ["c", "a"]);
    db.disable_file_deletions().unwrap();
    let mut force = rockmill::CompactOptions::default();
    force.set_bottommost_level_compaction(rockmill::BottommostLevelCompaction::Force);
    db.compact_range_cf_opt(&db.cf_handle("reverse").unwrap(), None::<&str>, None::<&str>, &force).unwrap();
    let expected = contents(&db);
    drop(db);
    // A table that is no longer in use tells nothing about its column family.
    let report = Db::repair(&base, path).unwrap();
    assert!(report.tables_left_over > 0 && report.damaged.is_empty(), "{report:?}");
    let db = open();
    assert!(contents(&db) == expected);
    // A table in use does not either, if the MANIFEST is lost, but only one column family has this order. (With
    // separate keys, because only the MANIFEST knew how new the table is.)
    ingest(&db, ["e", "d"]);
    let expected = contents(&db);
    drop(db);
    without_manifest(&*fs, path);
    let report = Db::repair(&base, path).unwrap();
    assert!(report.damaged.is_empty(), "{report:?}");
    assert!(contents(&open()) == expected);
}

/// RocksDB's view of a database that Rockmill repaired.
fn rocksdb_dump(test: &str, driver: &oracle::Driver, path: &Path, family: &str) -> Option<Contents> {
    let mut script = Script::new();
    script.line("cf other ").open(path);
    if driver.peer != oracle::Peer::Wheel {
        script.line("verify");
    }
    script.line(format!("dump {family}")).line("close");
    Some(driver.answer(test, &script)?.entries().into_iter().collect())
}

#[test]
fn rocksdb_opens_what_was_repaired() {
    let test = "rocksdb_opens_what_was_repaired";
    for driver in oracle::Peer::all(test) {
        for seed in 10..13 {
            let dir = tempfile::tempdir().unwrap();
            let (options, path) = (options(&posix()), dir.path());
            let db = open(&options, path);
            fill(&db, seed, 10);
            if seed % 2 == 0 {
                settle(&db);
            }
            let expected = contents(&db);
            drop(db);
            without_manifest(&*posix(), path);
            let report = Db::repair(&options, path).unwrap();
            for family in ["default", "other"] {
                let Some(found) = rocksdb_dump(test, &driver, path, family) else { continue };
                assert!(found == expected[family], "seed {seed}, {family}, {:?}: {report:?}", driver.peer);
            }
            assert!(contents(&open(&options, path)) == expected, "and back");
        }
    }
}

/// Databases of RocksDB that lost their MANIFEST, repaired by Rockmill and by RocksDB.
#[test]
fn databases_of_rocksdb_are_repaired_as_rocksdb_repairs_them() {
    let test = "databases_of_rocksdb_are_repaired";
    for driver in oracle::Peer::all(test) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let mut rng = fastrand::Rng::with_seed(77);
        let mut script = Script::new();
        script.line("cf default write_buffer_size=65536;target_file_size_base=16384;max_bytes_for_level_base=65536");
        script.line("cf other ").open(&path);
        // `ldb repair` knows column families only from tables.
        script.put("other", "o", "first").line("flush other");
        for i in 0..3000 {
            let key = format!("key{:04}", rng.u32(..1500));
            if i % 11 == 0 {
                script.hex("del", "default", &[key.as_bytes()]);
            } else {
                script.put("default", &key, format!("{i}-{}", "v".repeat(rng.usize(..60))));
            }
            if i % 700 == 699 {
                script.line("flush default");
            }
            if i % 9 == 0 {
                script.put("other", format!("o{i}"), i.to_string());
            }
        }
        script.line("wait").line("dump default").line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        let expected: Contents = answer.entries().into_iter().collect();
        let theirs = dir.path().join("theirs");
        oracle::copy_dir(&path, &theirs);
        for dir in [&path, &theirs] {
            without_manifest(&*posix(), dir);
        }
        let report = Db::repair(&options(&posix()), &path).unwrap();
        assert!(report.damaged.is_empty() && report.column_families == ["default", "other"], "{report:?}");
        let db = open(&options(&posix()), &path);
        assert!(contents(&db)["default"] == expected, "{:?}: {report:?}", driver.peer);
        assert_eq!(contents(&db)["other"].len(), 335);
        drop(db);
        assert!(rocksdb_dump(test, &driver, &path, "default").is_none_or(|found| found == expected));
        // The same with `ldb repair`, as far as possible: it recovers the same data as we do.
        let ldb = need!(test, oracle::tool("ldb"));
        if let Err(e) = oracle::run_tool(&ldb, &["repair", &format!("--db={}", theirs.display())]) {
            println!("ldb repair: {e}");
            continue;
        }
        let found: Contents = content::ldb_scan(&ldb, &theirs, "default").unwrap().into_iter().collect();
        if found != expected {
            let wrong = expected.iter().filter(|(k, v)| found.get(*k) != Some(v)).count();
            println!("ldb repair brings back {wrong} of {} keys wrong", expected.len());
        }
        // And our repair of what RocksDB repaired changes nothing in it.
        Db::repair(&options(&posix()), &theirs).unwrap();
        assert!(contents(&open(&options(&posix()), &theirs))["default"] == found);
    }
}

/// Keeps an image of the disk at the moment when a table is complete but not yet in the MANIFEST.
#[derive(Clone)]
struct KillAfterTable {
    fs: MemFileSystem,
    armed: Arc<std::sync::atomic::AtomicBool>,
    image: Arc<std::sync::Mutex<Option<MemFileSystem>>>,
}

impl rockmill::EventListener for KillAfterTable {
    fn on_table_file_created(&self, info: &rockmill::event_listener::TableFileCreationInfo) {
        if self.armed.load(std::sync::atomic::Ordering::SeqCst) && info.status.is_ok() {
            self.image.lock().unwrap().get_or_insert_with(|| self.fs.crash_image(CrashMode::KeepAll));
        }
    }
}

/// A copy of the disk, and options for it.
fn copy_of(image: &MemFileSystem, options: &Options) -> (MemFileSystem, Options) {
    let copy = image.crash_image(CrashMode::KeepAll);
    let mut options = options.clone();
    options.set_file_system(Arc::new(copy.clone()));
    (copy, options)
}

/// A killed job leaves a table that is not in the MANIFEST, with a number above the MANIFEST's next number; and an
/// iterator has kept tables that a compaction had replaced. Neither may be recovered: deleted keys and old values would
/// reappear, and operands would count twice.
#[test]
fn what_a_kill_during_a_job_leaves_beside_a_sound_manifest_is_left_over() {
    for by_compaction in [false, true] {
        let (mem, fs) = memory();
        let (mut o, path) = (options(&fs), Path::new("/db"));
        o.set_disable_auto_compactions(true);
        o.set_merge_operator_object(rockmill::merge_operator::by_name("uint64add").unwrap());
        let listener = KillAfterTable { fs: mem, armed: Arc::default(), image: Arc::default() };
        let plain = o.clone();
        o.add_event_listener(listener.clone());
        let db = open(&o, path);
        let one = 1u64.to_le_bytes();
        for (gone, over) in [("data", "old"), ("", "new")] {
            db.merge("counted", one).unwrap();
            db.put("over", over).unwrap();
            if gone.is_empty() {
                db.delete("gone").unwrap()
            } else {
                db.put("gone", gone).unwrap()
            }
            db.flush().unwrap();
        }
        let mut holds_tables = db.raw_iterator();
        holds_tables.seek_to_first();
        let mut compact = rockmill::CompactOptions::default();
        compact.set_bottommost_level_compaction(rockmill::BottommostLevelCompaction::Force);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &compact).unwrap();
        db.put("later", "1").unwrap();
        db.merge("counted", one).unwrap();
        if by_compaction {
            db.flush().unwrap();
        }
        listener.armed.store(true, std::sync::atomic::Ordering::SeqCst);
        if by_compaction {
            db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &compact).unwrap();
        } else {
            db.flush().unwrap();
        }
        let expected = contents(&db);
        let image = listener.image.lock().unwrap().take().expect("a table was made");
        let (_, opened) = copy_of(&image, &plain);
        assert!(contents(&open(&opened, path)) == expected, "an opening");
        let (_, repaired) = copy_of(&image, &plain);
        let report = Db::repair(&repaired, path).unwrap();
        assert!(report.manifest_damage.is_none() && report.damaged.is_empty(), "{report:?}");
        assert!(report.tables_left_over >= 3, "{report:?}");
        assert!(contents(&open(&repaired, path)) == expected, "by a compaction: {by_compaction}, {report:?}");
    }
}

/// If the MANIFEST has lost its last edits and the WALs of flushed data are gone, that data is only in tables.
#[test]
fn tables_whose_edits_the_manifest_lost_are_taken_in() {
    let (mem, fs) = memory();
    let (mut o, path) = (options(&fs), Path::new("/db"));
    o.set_disable_auto_compactions(true);
    o.set_merge_operator_object(rockmill::merge_operator::by_name("uint64add").unwrap());
    let db = open(&o, path);
    let manifest = files(&*fs, path, "MANIFEST").pop().unwrap();
    db.put_cf(&db.cf_handle("other").unwrap(), "k", "1").unwrap();
    for n in 0..5u64 {
        db.merge("counted", n.to_le_bytes()).unwrap();
        db.put(format!("key{n}"), "1").unwrap();
        db.delete(format!("key{}", n / 2)).unwrap();
        db.flush_all().unwrap();
    }
    db.merge("counted", 7u64.to_le_bytes()).unwrap();
    let expected = contents(&db);
    drop(db);
    let size = fs.file_size(&manifest).unwrap();
    for cut in (1..size).step_by(3) {
        let (image, o) = copy_of(&mem, &o);
        FileSystem::truncate(&image, &manifest, size - cut).unwrap();
        let report = Db::repair(&o, path).unwrap_or_else(|e| panic!("{cut} cut: {e}"));
        assert!(contents(&open(&o, path)) == expected, "{cut} of {size} cut: {report:?}");
    }
}

/// Column families keep their names even if OPTIONS files escape them.
#[test]
fn families_of_which_only_logs_are_left_keep_their_names_with_special_characters() {
    let (_, fs) = memory();
    let (mut o, path) = (options(&fs), Path::new("/db"));
    o.create_missing_column_families(false);
    let names = ["user:events", "#1", "back\\slash", "a\"b", "line\nbreak"];
    {
        let db = Db::open(&o, path).unwrap();
        for name in names {
            let cf = db.create_cf(name, &o).unwrap();
            db.put_cf(&cf, "k", name).unwrap();
        }
    }
    without_manifest(&*fs, path);
    let report = Db::repair(&o, path).unwrap();
    assert_eq!(report.entries_without_column_family, 0, "{report:?}");
    let db = open(&o, path);
    for name in names {
        let cf = db.cf_handle(name).unwrap_or_else(|| panic!("{name:?} is not there: {:?}", db.cf_names()));
        assert_eq!(db.get_cf(&cf, "k").unwrap().as_deref(), Some(name.as_bytes()));
    }
}

/// WALs in another directory are found through the OPTIONS file, the directory's owner file, or an argument; if they
/// cannot be found, they are still required.
#[test]
fn a_repair_reads_wals_in_a_directory_of_their_own_or_leaves_them_needed() {
    let (mem, fs) = memory();
    let (plain, path) = (options(&fs), Path::new("/db"));
    let mut o = plain.clone();
    o.set_wal_dir("/wals");
    let db = open(&o, path);
    let mut synced = rockmill::WriteOptions::default();
    synced.set_sync(true);
    db.put("flushed", "1").unwrap();
    db.put_cf(&db.cf_handle("other").unwrap(), "flushed", "1").unwrap();
    db.flush_all().unwrap();
    db.put_opt("k", "synced", &synced).unwrap();
    let expected = contents(&db);
    drop(db);
    let no_options = |fs: &MemFileSystem| {
        files(fs, path, "OPTIONS").iter().for_each(|f| fs.remove(f).unwrap());
    };
    let with = |o: &Options, fs: &MemFileSystem| {
        let mut o = o.clone();
        o.set_file_system(Arc::new(fs.clone()));
        o
    };
    for case in ["stored", "owner", "given", "told"] {
        let image = mem.crash_image(CrashMode::KeepAll);
        let mut how = RepairOptions::default();
        match case {
            "owner" => no_options(&image),
            "told" => {
                no_options(&image);
                image.remove(&path.join("WAL_OWNER")).unwrap();
                image.remove(Path::new("/wals/WAL_OWNER")).unwrap();
                how.set_wal_dir("/wals");
            }
            _ => {}
        }
        let given = if case == "given" { &o } else { &plain };
        let report = Db::repair_with(&with(given, &image), path, &how).unwrap();
        assert_eq!((report.wals_converted, report.wal_entries, &report.wals_not_read), (1, 1, &None), "{case}");
        assert!(contents(&open(&with(&o, &image), path)) == expected, "{case}: {report:?}");
    }
    // The directory was temporarily moved away, or nothing refers to it.
    for case in ["away", "unknown", "without a MANIFEST", "given up"] {
        let image = mem.crash_image(CrashMode::KeepAll);
        if case == "unknown" {
            no_options(&image);
            image.remove(&path.join("WAL_OWNER")).unwrap();
            image.remove(Path::new("/wals/WAL_OWNER")).unwrap();
        } else {
            image.rename(Path::new("/wals"), Path::new("/away")).unwrap();
        }
        let mut how = RepairOptions::default();
        match case {
            "without a MANIFEST" => {
                without_manifest(&image, path);
                let e = Db::repair(&with(&plain, &image), path).unwrap_err();
                assert!(e.to_string().contains("/wals") && e.to_string().contains("--wal-dir"), "{e}");
                continue;
            }
            "given up" => {
                without_manifest(&image, path);
                image.create_dir(Path::new("/empty"), false).unwrap();
                how.set_wal_dir("/empty");
                let report = Db::repair_with(&with(&plain, &image), path, &how).unwrap();
                assert_eq!(report.tables_kept, 2, "{report:?}");
                continue;
            }
            _ => {}
        }
        let report = Db::repair_with(&with(&plain, &image), path, &how).unwrap();
        assert_eq!(report.wals_not_read.is_some(), case != "unknown", "{case}: {report:?}");
        assert_eq!(report.wals_converted, 0, "{case}");
        if case != "unknown" {
            image.rename(Path::new("/away"), Path::new("/wals")).unwrap();
        }
        assert!(contents(&open(&with(&o, &image), path)) == expected, "{case}: {report:?}");
    }
}

/// Records whose sequence numbers occurred before: the same records again, and different ones, as from a diverged copy.
#[test]
fn numbers_that_come_again_make_no_table_of_each_record() {
    let (fs, shared) = memory();
    let path = Path::new("/db");
    let mut o = options(&shared);
    o.set_avoid_flush_during_shutdown(true);
    o.set_write_buffer_size(64 << 20);
    let write = |path: &Path, value: &str| {
        let db = open(&o, path);
        for i in 0..2000 {
            db.put(format!("{value}{i:04}"), value).unwrap();
        }
        db.put("both", value).unwrap();
    };
    write(path, "own");
    write(Path::new("/copy"), "copy's");
    let wals = |dir: &str| {
        let mut names = fs.list_dir(Path::new(dir)).unwrap();
        names.retain(|name| name.ends_with(".log"));
        names
    };
    let (own, copys) = (wals("/db"), wals("/copy"));
    let bytes = |dir: &str, name: &str| fs.read_to_vec(&Path::new(dir).join(name)).unwrap();
    fs.write_all(&path.join("000901.log"), &bytes("/db", &own[0])).unwrap();
    fs.write_all(&path.join("000902.log"), &bytes("/copy", &copys[0])).unwrap();
    fs.remove(&path.join("CURRENT")).unwrap();
    let report = Db::repair(&o, path).unwrap();
    assert_eq!(report.wals_converted, 3, "{report:?}");
    // Numbers from 903 on: tables from the WALs, tables into which they are merged, and a MANIFEST.
    let names = fs.list_dir(path).unwrap();
    let largest = names.iter().filter_map(|name| name.strip_suffix(".sst")?.parse::<u64>().ok()).max();
    assert!(largest.is_some_and(|n| n < 950), "{largest:?}");
    let db = open(&o, path);
    assert_eq!(db.iterator(IteratorMode::Start).count(), 4001);
    assert_eq!(db.get("copy's1999").unwrap().as_deref(), Some(&b"copy's"[..]));
}
