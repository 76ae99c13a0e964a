//! Tables in several directories: which compaction writes where, who finds them there, and compatibility with RocksDB.

mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oracle::{Driver, Peer, Script};
use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::internals::{TableDirs, current_manifest, for_each_edit, open_table};
use rockmill::{
    BottommostLevelCompaction, Checkpoint, ColumnFamilyDescriptor, CompactOptions, CompactionStyle, CompressionType,
    DBPath, Db, Env, ErrorKind, ImportColumnFamilyOptions, IteratorMode, Options, SstFileWriter, TphTableOptions,
};
use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::FileEntry;
use rockmill_format::filename::{self, FileType};
use rockmill_io::{FileSystem, MemFileSystem, PosixFileSystem, SystemClock};
use rockmill_skip::skip;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const KB: u64 = 1 << 10;

/// A path.
fn at(path: impl AsRef<Path>, size: u64) -> DBPath {
    DBPath::new(path, size).unwrap()
}

/// Levels of 32 KiB, 128 KiB and 512 KiB; L0 counts as the first of these.
fn small() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_write_buffer_size(16 << 10);
    o.set_target_file_size_base(8 * KB);
    o.set_max_bytes_for_level_base(32 * KB);
    o.set_max_bytes_for_level_multiplier(4.0);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_compression_type(CompressionType::None);
    o
}

fn in_memory(fs: &MemFileSystem) -> Options {
    let mut o = small();
    o.set_file_system(Arc::new(fs.clone()));
    o
}

/// The first directory has room for L0 and L1, and everything else goes to the second.
fn two(o: &mut Options) {
    o.set_db_paths(&[at("/fast", 64 * KB), at("/slow", 0)]);
}

/// Overwrites random keys, and flushes now and then.
fn fill(db: &Db, rng: &mut fastrand::Rng, state: &mut Map, bytes: usize) {
    let mut written = 0;
    while written < bytes {
        let key = format!("key{:05}", rng.u32(0..4000)).into_bytes();
        let value = vec![rng.alphanumeric() as u8; rng.usize(50..200)];
        written += key.len() + value.len();
        db.put(&key, &value).unwrap();
        state.insert(key, value);
    }
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
}

fn contents(db: &Db) -> Map {
    db.iterator(IteratorMode::Start).map(|kv| kv.unwrap()).map(|(k, v)| (k.into_vec(), v.into_vec())).collect()
}

fn tables_in(fs: &dyn FileSystem, dir: &str) -> BTreeSet<u64> {
    let number = |name: &String| match filename::parse(name) {
        Some(FileType::Table(number)) => Some(number),
        _ => None,
    };
    fs.list_dir(Path::new(dir)).unwrap_or_default().iter().filter_map(number).collect()
}

/// Waits for a thread that deletes.
fn in_time<T, E: std::fmt::Debug>(mut look: impl FnMut() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(e) if begin.elapsed() > Duration::from_secs(20) => panic!("{e:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The levels whose tables are in each directory. Checks that each directory has exactly the tables that the database
/// has there.
fn levels_by_dir(fs: &dyn FileSystem, db: &Db, dirs: &[&str]) -> BTreeMap<PathBuf, BTreeSet<i32>> {
    in_time(|| {
        let mut levels: BTreeMap<PathBuf, BTreeSet<i32>> = BTreeMap::new();
        let mut files: BTreeMap<PathBuf, BTreeSet<u64>> = BTreeMap::new();
        for f in db.live_files().unwrap() {
            levels.entry(f.directory.clone()).or_default().insert(f.level);
            files.entry(f.directory).or_default().insert(f.number);
        }
        for dir in dirs {
            let named = files.remove(Path::new(dir)).unwrap_or_default();
            let there = tables_in(fs, dir);
            if there != named {
                return Err(format!("{dir}: {there:?} instead of {named:?}"));
            }
        }
        if files.is_empty() { Ok(levels) } else { Err(format!("{files:?}")) }
    })
}

/// The tables that a database's MANIFEST names.
fn manifest_tables(fs: &dyn FileSystem, dir: &Path) -> Vec<FileEntry> {
    let manifest = dir.join(filename::manifest(current_manifest(fs, dir).unwrap()));
    let mut tables = BTreeMap::new();
    for_each_edit(fs, &manifest, &mut |edit| {
        edit.deleted_files.iter().for_each(|(_, number)| drop(tables.remove(number)));
        tables.extend(edit.new_files.into_iter().map(|(_, file)| (file.number, file)));
        Ok(())
    })
    .unwrap();
    tables.into_values().collect()
}

/// A database with tables in both paths.
fn filled(fs: &MemFileSystem, seed: u64) -> (Options, Map) {
    let (mut o, mut state) = (in_memory(fs), Map::new());
    two(&mut o);
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, &mut fastrand::Rng::with_seed(seed), &mut state, 400 << 10);
    assert_eq!(levels_by_dir(fs, &db, &["/db", "/fast", "/slow"]).len(), 2);
    drop(db);
    (o, state)
}

#[test]
fn each_level_has_the_first_path_with_room_for_it() {
    let fs = MemFileSystem::new();
    let (mut o, mut state) = (in_memory(&fs), Map::new());
    two(&mut o);
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..4 {
        let db = Db::open(&o, "/db").unwrap();
        assert_eq!(contents(&db), state, "round {round}");
        fill(&db, &mut rng, &mut state, 200 << 10);
        assert_eq!(contents(&db), state, "round {round}");
        let levels = levels_by_dir(&fs, &db, &["/db", "/fast", "/slow"]);
        let of = |dir: &str| levels.get(Path::new(dir)).cloned().unwrap_or_default();
        assert!(of("/fast").iter().all(|level| *level <= 1), "{levels:?}");
        assert!(of("/slow").iter().all(|level| *level >= 2) && !of("/slow").is_empty(), "{levels:?}");
        drop(db);
        let ids: BTreeSet<u32> = manifest_tables(&fs, Path::new("/db")).iter().map(|f| f.path_id).collect();
        assert!(ids.contains(&1) && ids.iter().all(|id| *id < 2), "{ids:?}");
    }
}

/// A table in the wrong path is not just moved.
#[test]
fn a_table_goes_to_its_levels_path_even_if_nothing_is_to_be_merged() {
    let fs = MemFileSystem::new();
    let mut o = in_memory(&fs);
    o.set_db_paths(&[at("/fast", 33 * KB), at("/slow", 0)]);
    o.set_disable_auto_compactions(true);
    let db = Db::open(&o, "/db").unwrap();
    for i in 0..100 {
        db.put(format!("{i:04}"), "v").unwrap();
    }
    db.flush().unwrap();
    assert_eq!(levels_by_dir(&fs, &db, &["/fast", "/slow"])[Path::new("/fast")], BTreeSet::from([0]));
    db.set_options(&[("disable_auto_compactions", "false"), ("level0_file_num_compaction_trigger", "1")]).unwrap();
    db.wait_for_background_work().unwrap();
    let levels = levels_by_dir(&fs, &db, &["/fast", "/slow"]);
    assert_eq!(levels, BTreeMap::from([(PathBuf::from("/slow"), BTreeSet::from([1]))]));
}

#[test]
fn universal_compaction_puts_small_tables_first() {
    let fs = MemFileSystem::new();
    let (mut o, mut state) = (in_memory(&fs), Map::new());
    o.set_compaction_style(CompactionStyle::Universal);
    o.set_db_paths(&[at("/fast", 60 * KB), at("/slow", 0)]);
    let mut rng = fastrand::Rng::with_seed(2);
    let db = Db::open(&o, "/db").unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        fill(&db, &mut rng, &mut state, 20 << 10);
        seen.extend(levels_by_dir(&fs, &db, &["/fast", "/slow"]).into_keys());
        for f in db.live_files().unwrap().iter().filter(|f| f.directory == Path::new("/slow")) {
            assert!(f.level > 0, "flushes go to the first: {f:?}");
        }
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(contents(&db), state);
    drop(db);
    let db = Db::open(&o, "/db").unwrap();
    assert_eq!(contents(&db), state);
}

#[test]
fn a_column_family_may_have_paths_of_its_own() {
    let fs = MemFileSystem::new();
    let mut o = in_memory(&fs);
    two(&mut o);
    let mut own = o.clone();
    own.set_cf_paths(&[at("/own", u64::MAX)]);
    let open = || {
        let families = [("default", &o), ("own", &own)];
        let all = families.map(|(name, o)| ColumnFamilyDescriptor::new(name, o.clone()));
        Db::open_cf_descriptors(&o, "/db", all).unwrap()
    };
    let write = |db: &Db, cf: &rockmill::ColumnFamily, round: u32| {
        for i in 0..3000u32 {
            db.put_cf(cf, format!("{i:05}"), format!("{round}").repeat(60)).unwrap();
        }
        db.flush_cf(cf).unwrap();
    };
    for round in 0..3 {
        let db = open();
        for name in ["default", "own"] {
            write(&db, &db.cf_handle(name).unwrap(), round);
        }
        let late = match db.cf_handle("late") {
            Some(late) => late,
            None => {
                let mut late = o.clone();
                late.set_cf_paths(&[at("/late", 1)]);
                db.create_cf("late", &late).unwrap()
            }
        };
        write(&db, &late, round);
        db.wait_for_background_work().unwrap();
        for f in db.live_files().unwrap() {
            let dirs: &[&str] = match &*f.column_family_name {
                "own" => &["/own"],
                "late" => &["/late"],
                _ => &["/fast", "/slow"],
            };
            assert!(dirs.iter().any(|dir| f.directory == Path::new(dir)), "{f:?}");
        }
        levels_by_dir(&fs, &db, &["/db", "/fast", "/slow", "/own", "/late"]);
        // A dropped family's files go, wherever they are.
        drop(late);
        db.drop_cf("late").unwrap();
        in_time(|| if tables_in(&fs, "/late").is_empty() { Ok(()) } else { Err("its tables are there") });
    }
}

#[test]
fn paths_that_cannot_be_had_are_refused() {
    let fs = MemFileSystem::new();
    let (o, state) = filled(&fs, 3);
    let mut fifth = o.clone();
    fifth.set_db_paths(&vec![at("/fast", 1); 5]);
    let e = Db::open(&fifth, "/new").unwrap_err();
    assert!(e.kind() == ErrorKind::NotSupported && e.message().contains("four"), "{e}");
    let mut fifo = o.clone();
    fifo.set_compaction_style(CompactionStyle::Fifo);
    let e = Db::open(&fifo, "/new").unwrap_err();
    assert!(e.kind() == ErrorKind::NotSupported && e.message().contains("FIFO"), "{e}");
    // Another database's directory: its tables would be mistaken for strays.
    let mut others = in_memory(&fs);
    others.set_db_paths(&[at("/fast", 1), at("/db", 1)]);
    for e in [Db::open(&others, "/new").unwrap_err(), Db::destroy(&others, "/fast").unwrap_err()] {
        assert!(e.message().contains("/db") && e.message().contains("another database"), "{e}");
    }
    // Tables of a second path that is not given.
    let e = Db::open(&in_memory(&fs), "/db").unwrap_err();
    assert!(e.message().contains("missing"), "{e}");
    let mut one = in_memory(&fs);
    one.set_db_paths(&[at("/fast", 1)]);
    let e = Db::open(&one, "/db").unwrap_err();
    assert!(e.message().contains("missing") && e.message().contains("db_paths"), "{e}");
    // An open database does not move.
    let db = Db::open(&o, "/db").unwrap();
    for (name, done) in [
        ("cf_paths", db.set_options(&[("cf_paths", "{{path=/x}}")])),
        ("db_paths", db.set_db_options(&[("db_paths", "{{path=/x}}")])),
        ("compaction_style", db.set_options(&[("compaction_style", "kCompactionStyleFIFO")])),
    ] {
        done.expect_err(name);
    }
    assert_eq!(contents(&db), state);
}

#[test]
fn what_nobody_has_goes_from_every_path_at_the_next_opening() {
    let fs = MemFileSystem::new();
    let (o, state) = filled(&fs, 4);
    for (dir, name) in [("/fast", "900000.sst"), ("/slow", "900001.sst"), ("/slow", "900002.ldb"), ("/slow", "note")] {
        fs.write_all(&Path::new(dir).join(name), b"stray").unwrap();
    }
    let db = Db::open(&o, "/db").unwrap();
    levels_by_dir(&fs, &db, &["/db", "/fast", "/slow"]);
    assert!(fs.exists(Path::new("/slow/note")).unwrap(), "no file of a database");
    // Their numbers are not given again.
    db.put("k", "v").unwrap();
    db.flush().unwrap();
    assert!(db.live_files().unwrap().iter().any(|f| f.number > 900_002));
    assert_eq!(contents(&db).len(), state.len() + 1);
    drop(db);
    fs.remove(Path::new("/slow/note")).unwrap();
    Db::destroy(&o, "/db").unwrap();
    for dir in ["/db", "/fast", "/slow"] {
        assert!(!fs.exists(Path::new(dir)).unwrap(), "{dir}");
    }
}

/// Directories may be moved between two opens: the MANIFEST has no directory names.
#[test]
fn paths_may_have_other_names() {
    let fs = MemFileSystem::new();
    let (mut o, state) = filled(&fs, 5);
    fs.rename(Path::new("/slow"), Path::new("/elsewhere")).unwrap();
    o.set_db_paths(&[at("/fast", 64 * KB), at("/elsewhere", 0)]);
    assert_eq!(contents(&Db::open(&o, "/db").unwrap()), state);
}

#[test]
fn by_hand_tables_go_where_the_caller_says() {
    let fs = MemFileSystem::new();
    let (o, state) = filled(&fs, 6);
    let db = Db::open(&o, "/db").unwrap();
    for path in [0, 1, 0] {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        options.set_target_path_id(path);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options).unwrap();
        let dirs: Vec<_> = levels_by_dir(&fs, &db, &["/db", "/fast", "/slow"]).into_keys().collect();
        assert_eq!(dirs, [PathBuf::from(["/fast", "/slow"][path as usize])]);
        assert_eq!(contents(&db), state);
    }
    let mut options = CompactOptions::default();
    options.set_target_path_id(2);
    let e = db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    // Whole tables are deleted where they are.
    db.delete_file_in_range("", "z").unwrap();
    levels_by_dir(&fs, &db, &["/db", "/fast", "/slow"]);
}

#[test]
fn copies_have_all_tables_in_one_directory() {
    let home = tempfile::tempdir().unwrap();
    let dir = |name: &str| home.path().join(name);
    let mut o = small();
    o.set_db_paths(&[at(dir("fast"), 64 * KB), at(dir("slow"), 0)]);
    let (mut state, mut rng) = (Map::new(), fastrand::Rng::with_seed(7));
    let db = Db::open(&o, dir("db")).unwrap();
    fill(&db, &mut rng, &mut state, 300 << 10);
    Checkpoint::new(&db).unwrap().create_checkpoint(dir("copy")).unwrap();
    let env = Env::from_parts(Arc::new(PosixFileSystem::default()), Arc::new(SystemClock::default()));
    let engine = BackupEngine::open(&BackupEngineOptions::new(dir("backups")).unwrap(), &env).unwrap();
    engine.create_new_backup(&db).unwrap();
    engine.restore_from_latest_backup(dir("restored"), dir("restored"), &RestoreOptions::default()).unwrap();
    let export = Checkpoint::new(&db).unwrap().export_column_family(&db.default_cf(), dir("export")).unwrap();
    let mut how = ImportColumnFamilyOptions::default();
    how.set_move_files(true);
    let imported = db.create_column_family_with_import(&o, "imported", &how, &export).unwrap();
    let of_imported = db.live_files().unwrap().into_iter().filter(|f| f.column_family_name == "imported");
    assert!(of_imported.map(|f| f.directory).all(|d| d == dir("fast")), "as RocksDB imports");
    let all = db.iterator_cf(&imported, IteratorMode::Start).map(|kv| kv.unwrap());
    assert_eq!(all.map(|(k, v)| (k.into_vec(), v.into_vec())).collect::<Map>(), state);
    // Neither needs the paths, nor minds others.
    for copy in ["copy", "restored"] {
        assert!(manifest_tables(&PosixFileSystem::default(), &dir(copy)).iter().all(|f| f.path_id == 0));
        assert_eq!(contents(&Db::open(&small(), dir(copy)).unwrap()), state, "{copy}");
        let mut with = small();
        with.set_db_paths(&[at(dir(copy), 64 * KB), at(dir("more"), 0)]);
        let db = Db::open(&with, dir(copy)).unwrap();
        let mut state = state.clone();
        fill(&db, &mut rng, &mut state, 100 << 10);
        assert_eq!(contents(&db), state, "{copy}");
        drop(db);
        Db::destroy(&with, dir(copy)).unwrap();
    }
}

#[test]
fn ingested_tables_go_to_the_first_path() {
    let home = tempfile::tempdir().unwrap();
    let dir = |name: &str| home.path().join(name);
    let mut o = small();
    o.set_db_paths(&[at(dir("fast"), 64 * KB), at(dir("slow"), 0)]);
    let db = Db::open(&o, dir("db")).unwrap();
    let table = dir("table.sst");
    let mut writer = SstFileWriter::create(&o);
    writer.open(&table).unwrap();
    writer.put("a", "1").unwrap();
    writer.finish().unwrap();
    db.ingest_external_file(vec![&table]).unwrap();
    let live = db.live_files().unwrap();
    assert_eq!((live.len(), &live[0].directory), (1, &dir("fast")));
    let own = live[0].directory.join(live[0].name.trim_start_matches('/'));
    assert!(db.ingest_external_file(vec![&own]).unwrap_err().message().contains("own files"));
    drop(db);
    assert_eq!(contents(&Db::open(&o, dir("db")).unwrap()).len(), 1);
}

#[test]
fn readers_beside_a_writer_find_the_tables() {
    let home = tempfile::tempdir().unwrap();
    let dir = |name: &str| home.path().join(name);
    let mut o = small();
    o.set_db_paths(&[at(dir("fast"), 64 * KB), at(dir("slow"), 0)]);
    let (mut state, mut rng) = (Map::new(), fastrand::Rng::with_seed(8));
    let db = Db::open(&o, dir("db")).unwrap();
    fill(&db, &mut rng, &mut state, 200 << 10);
    let mut read = o.clone();
    read.set_max_open_files(-1);
    let secondary = Db::open_as_secondary(&read, dir("db"), dir("own")).unwrap();
    for _ in 0..4 {
        fill(&db, &mut rng, &mut state, 60 << 10);
        secondary.try_catch_up_with_primary().unwrap();
        assert_eq!(contents(&secondary), state);
        assert_eq!(contents(&Db::open_for_read_only(&read, dir("db"), false).unwrap()), state);
    }
    let e = Db::open_for_read_only(&small(), dir("db"), false).unwrap_err();
    assert!(e.message().contains("missing"), "{e}");
}

/// Tables of a path that is not given would count as lost, and the next open with that path would delete them.
#[test]
fn a_repair_without_all_paths_is_refused_and_changes_nothing() {
    let fs = MemFileSystem::new();
    let (o, state) = filled(&fs, 11);
    let mut forgot = in_memory(&fs);
    for paths in [vec![], vec![at("/fast", 200 * KB)]] {
        forgot.set_db_paths(&paths);
        let e = Db::repair(&forgot, "/db").expect_err("a repair without all paths");
        assert!(e.to_string().contains("paths"), "{e}");
    }
    assert_eq!(contents(&Db::open(&o, "/db").unwrap()), state);
}

/// The database's own directory among the paths, under another name.
#[test]
fn a_repair_knows_its_directory_by_another_name() {
    let home = tempfile::tempdir().unwrap();
    let dir = |name: &str| home.path().join(name);
    std::fs::create_dir(dir("db")).unwrap();
    std::os::unix::fs::symlink(dir("db"), dir("alias")).unwrap();
    let mut o = small();
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_db_paths(&[at(dir("alias"), 200 * KB), at(dir("slow"), 0)]);
    let mut state = Map::new();
    let db = Db::open(&o, dir("db")).unwrap();
    fill(&db, &mut fastrand::Rng::with_seed(5), &mut state, 400 << 10);
    drop(db);
    for _ in 0..2 {
        let report = Db::repair(&o, dir("db")).unwrap();
        assert_eq!((report.tables_damaged, report.tables_missing.len()), (0, 0));
        assert_eq!(contents(&Db::open(&o, dir("db")).unwrap()), state);
    }
}

#[test]
fn a_repair_finds_tables_in_every_path() {
    for (lost, seed) in [(true, 9), (false, 10)] {
        let fs = MemFileSystem::new();
        let (o, state) = filled(&fs, seed);
        let named: BTreeSet<_> = manifest_tables(&fs, Path::new("/db")).iter().map(|f| (f.number, f.path_id)).collect();
        if lost {
            for name in fs.list_dir(Path::new("/db")).unwrap() {
                if name == filename::CURRENT || matches!(filename::parse(&name), Some(FileType::Manifest(_))) {
                    fs.remove(&Path::new("/db").join(name)).unwrap();
                }
            }
        }
        // Damaged tables are moved to `lost` in their own directory.
        fs.write_all(Path::new("/slow/000777.sst"), b"no table").unwrap();
        let report = Db::repair(&o, "/db").unwrap();
        assert_eq!(report.tables_missing, [0u64; 0]);
        assert!(fs.exists(Path::new("/slow/lost/000777.sst")).unwrap());
        if !lost {
            let kept = manifest_tables(&fs, Path::new("/db")).iter().map(|f| (f.number, f.path_id)).collect();
            assert_eq!(named, kept);
        }
        let db = Db::open(&o, "/db").unwrap();
        assert_eq!(contents(&db), state, "lost {lost}");
    }
}

/// A table's additional files stay in their directories when its own file goes to another one.
#[test]
fn pieces_of_a_table_are_found_in_their_own_paths() {
    let fs = MemFileSystem::new();
    let mut o = in_memory(&fs);
    let mut tph = TphTableOptions::default();
    tph.set_piece_limit(16);
    tph.set_garbage_percent(1000);
    o.set_tph_table_factory(&tph);
    let mut rng = fastrand::Rng::with_seed(11);
    let mut state = Map::new();
    let mut mixed = 0;
    for round in 0..12 {
        // The levels change their paths from one open to the next.
        let sizes = if round % 2 == 0 { [u64::MAX, 0] } else { [40 * KB, 0] };
        o.set_db_paths(&[at("/fast", sizes[0]), at("/slow", sizes[1])]);
        let db = Db::open(&o, "/db").unwrap();
        assert_eq!(contents(&db), state, "round {round}");
        fill(&db, &mut rng, &mut state, 60 << 10);
        assert_eq!(contents(&db), state, "round {round}");
        if round == 9 {
            Checkpoint::new(&db).unwrap().create_checkpoint("/copy").unwrap();
            let mut plain = o.clone();
            plain.set_db_paths(&[]);
            assert_eq!(contents(&Db::open(&plain, "/copy").unwrap()), state);
        }
        drop(db);
        let tables = manifest_tables(&fs, Path::new("/db"));
        let dirs = TableDirs::new(["/fast", "/slow"], Path::new("/db"));
        for table in &tables {
            let cmp = InternalKeyComparator::default();
            open_table(&fs, &dirs, table, &cmp, Some(table.largest_seqno)).unwrap().verify().unwrap();
            mixed += usize::from(table.pieces.iter().any(|piece| piece.path_id != table.path_id));
        }
        for (id, dir) in [(0, "/fast"), (1, "/slow")] {
            let files = tables.iter().flat_map(|t| t.files()).filter(|f| f.path_id == id).map(|f| f.number);
            assert_eq!(files.collect::<BTreeSet<_>>(), tables_in(&fs, dir), "round {round}, {dir}");
        }
    }
    assert!(mixed > 0, "no table had files in both paths");
    let report = Db::repair(&o, "/db").unwrap();
    assert_eq!((report.tables_damaged, report.tables_missing.len()), (0, 0));
    let mut db = Db::open(&o, "/db").unwrap();
    assert_eq!(contents(&db), state);
    // As single files, RocksDB can read them again.
    db.make_tables_whole_cf(&db.default_cf()).unwrap();
    assert_eq!(contents(&db), state);
    drop(db);
    db = Db::open(&o, "/db").unwrap();
    assert_eq!(contents(&db), state);
}

/// Available RocksDB libraries: those of the other oracle tests, and those in `ROCKMILL_ROCKSDB_LIBS`.
fn drivers(test: &str) -> Vec<Driver> {
    let mut all = Vec::new();
    if let Ok(driver) = Peer::Library.driver() {
        all.push(driver);
    }
    let libraries = std::env::var_os("ROCKMILL_ROCKSDB_LIBS").map(PathBuf::from);
    let newest = libraries.map(|dir| Driver::of_library(&dir.join("11.8.1.so")));
    match newest {
        Some(Ok(driver)) => all.push(driver),
        Some(Err(missing)) => skip(test, &missing),
        None if all.is_empty() => {
            if let Err(missing) = Peer::Library.driver() {
                skip(test, &missing);
            }
        }
        None => {}
    }
    all
}

const ROCKSDB: &str = "compression=kNoCompression;write_buffer_size=16384;target_file_size_base=8192;\
    max_bytes_for_level_base=32768;max_bytes_for_level_multiplier=4;level0_file_num_compaction_trigger=2;\
    level_compaction_dynamic_level_bytes=false";

/// RocksDB writes with two paths, Rockmill reads, writes and compacts, RocksDB reads and writes again, Rockmill reads.
#[test]
fn rocksdb_and_rockmill_share_a_database_with_two_paths() {
    let test = "rocksdb_and_rockmill_share_a_database_with_two_paths";
    for (driver, universal) in drivers(test).into_iter().flat_map(|d| [(d.clone(), false), (d, true)]) {
        let home = tempfile::tempdir().unwrap();
        let dir = |name: &str| home.path().join(name);
        let (first, style) = match universal {
            true => (60 * KB, ";compaction_style=kCompactionStyleUniversal"),
            false => (64 * KB, ""),
        };
        let begin = |script: &mut Script| {
            script.line(format!("cf default {ROCKSDB}{style}"));
            script.line(format!("paths db {} {first} {} 0", dir("fast").display(), dir("slow").display()));
            script.open(&dir("db"));
        };
        let (mut state, mut rng) = (Map::new(), fastrand::Rng::with_seed(12));
        let mut script = Script::new();
        begin(&mut script);
        for i in 0..6000u32 {
            let (key, value) = (format!("key{:05}", rng.u32(0..4000)).into_bytes(), vec![i as u8; 60]);
            script.put("default", &key, &value);
            state.insert(key, value);
            if i % 200 == 199 {
                script.line("flush default").line("wait");
            }
        }
        script.line("close");
        if driver.answer(test, &script).is_none() {
            continue;
        }
        let fs = PosixFileSystem::default();
        let of_rocksdb = manifest_tables(&fs, &dir("db"));
        let ids: BTreeSet<u32> = of_rocksdb.iter().map(|f| f.path_id).collect();
        assert!(ids.contains(&1), "{ids:?}");

        let mut o = small();
        o.set_level_compaction_dynamic_level_bytes(false);
        o.set_db_paths(&[at(dir("fast"), first), at(dir("slow"), 0)]);
        if universal {
            o.set_compaction_style(CompactionStyle::Universal);
        }
        let db = Db::open(&o, dir("db")).unwrap();
        assert_eq!(contents(&db), state);
        fill(&db, &mut rng, &mut state, 200 << 10);
        assert_eq!(contents(&db), state);
        let live = db.live_files().unwrap();
        assert!(live.iter().any(|f| f.directory == dir("slow")), "{live:?}");
        drop(db);

        let mut script = Script::new();
        begin(&mut script);
        script.line("dump default");
        for i in 0..2000u32 {
            let (key, value) = (format!("key{:05}", i * 3 % 4000).into_bytes(), vec![b'r'; 70]);
            script.put("default", &key, &value);
            state.insert(key, value);
        }
        script.line("flush default").line("wait").line("close");
        let before: Map = {
            let db = Db::open_for_read_only(&o, dir("db"), false).unwrap();
            contents(&db)
        };
        let Some(answer) = driver.answer(test, &script) else { continue };
        assert_eq!(answer.entries().into_iter().collect::<Map>(), before);
        assert_eq!(contents(&Db::open(&o, dir("db")).unwrap()), state);
        // A copy by Rockmill needs no paths, also in RocksDB.
        let db = Db::open(&o, dir("db")).unwrap();
        Checkpoint::new(&db).unwrap().create_checkpoint(dir("copy")).unwrap();
        let mut script = Script::new();
        script.line(format!("cf default {ROCKSDB}{style}"));
        script.open(&dir("copy"));
        script.line("dump default").line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        assert_eq!(answer.entries().into_iter().collect::<Map>(), state);
    }
}

/// After the same flushes, each level's tables are where RocksDB has them.
#[test]
fn rocksdb_puts_each_level_where_rockmill_does() {
    let test = "rocksdb_puts_each_level_where_rockmill_does";
    for driver in drivers(test) {
        // Room for L0 and L1, for L2, and for the rest; no room in the first; everything in the first.
        for sizes in [[64 * KB, 129 * KB, 0], [1, 40 * KB, 0], [u64::MAX, 0, 0]] {
            let home = tempfile::tempdir().unwrap();
            let dir = |name: String| home.path().join(name);
            let path = |i: usize| dir(format!("path{i}"));
            let mut script = Script::new();
            script.line(format!("cf default {ROCKSDB}"));
            let paths = (0..3).map(|i| format!("{} {}", path(i).display(), sizes[i])).collect::<Vec<_>>();
            script.line(format!("paths db {}", paths.join(" ")));
            script.open(&dir("theirs".to_owned()));
            let write = |put: &mut dyn FnMut(&[u8], &[u8]), flush: u32| {
                for i in 0..100u32 {
                    let n = (u64::from(flush) << 32 | u64::from(i)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    put(format!("{n:016x}").as_bytes(), &[b'v'; 100]);
                }
            };
            for flush in 0..40 {
                let mut put = |k: &[u8], v: &[u8]| {
                    script.put("default", k, v);
                };
                write(&mut put, flush);
                script.line("flush default").line("wait");
            }
            script.line("close");
            if driver.answer(test, &script).is_none() {
                continue;
            }
            let by_level = |name: &str| {
                let fs = PosixFileSystem::default();
                let manifest = dir(name.to_owned());
                let manifest = manifest.join(filename::manifest(current_manifest(&fs, &manifest).unwrap()));
                let mut tables: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
                for_each_edit(&fs, &manifest, &mut |edit| {
                    for (_, number) in &edit.deleted_files {
                        tables.remove(number);
                    }
                    tables.extend(edit.new_files.iter().map(|(level, f)| (f.number, (*level, f.path_id))));
                    Ok(())
                })
                .unwrap();
                let mut paths: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
                for (level, path) in tables.into_values() {
                    paths.entry(level).or_default().insert(path);
                }
                paths
            };
            let theirs = by_level("theirs");
            let mut o = small();
            o.set_db_paths(&[0, 1, 2].map(|i| at(dir(format!("our-path{i}")), sizes[i])));
            let db = Db::open(&o, dir("ours".to_owned())).unwrap();
            for flush in 0..40 {
                write(&mut |k, v| db.put(k, v).unwrap(), flush);
                db.flush().unwrap();
                db.wait_for_background_work().unwrap();
            }
            drop(db);
            // When compactions happen differs between versions of RocksDB, so the final levels may differ, but not
            // their places.
            let ours = by_level("ours");
            let both: Vec<u32> = ours.keys().copied().filter(|level| theirs.contains_key(level)).collect();
            assert!(both.len() >= 3, "{ours:?} and {theirs:?} with {sizes:?}");
            for level in both {
                assert_eq!(ours[&level], theirs[&level], "paths of level {level} with {sizes:?}");
            }
        }
    }
}
