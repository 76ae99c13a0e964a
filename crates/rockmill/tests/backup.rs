//! Backups: incremental, verified, restored, deleted; damage found; RocksDB's `BackupEngine` on both sides.
//! `backup_crash.rs` tests power cuts and failing calls.

mod oracle;
mod two_families;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oracle::Script;
use rockmill::backup::{
    BackupEngine, BackupEngineOptions, CreateBackupOptions, RestoreMode, RestoreOptions, ShareFilesNaming,
};
use rockmill::{Db, Env, ErrorKind, IteratorMode, WriteOptions};
use rockmill_io::{Clock, FileSystem, ManualClock, MemFileSystem, SystemClock};
use two_families::{beside_writers, busy_options, open, options};

type Contents = BTreeMap<String, String>;

fn contents(db: &Db, family: &str) -> Contents {
    let cf = db.cf_handle(family).unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    db.iterator_cf(&cf, IteratorMode::Start).map(|e| e.unwrap()).map(|(k, v)| (text(&k), text(&v))).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(found) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> = found.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn engine(dir: &Path) -> BackupEngine {
    BackupEngine::open(&BackupEngineOptions::new(dir).unwrap(), &Env::new().unwrap()).unwrap()
}

/// Puts keys that only this round has into both column families; the last ones are not flushed.
fn write_round(db: &Db, round: u64) {
    let other = db.cf_handle("other").unwrap();
    for i in 0..300 {
        db.put(format!("k{:04}", (i + round * 37) % 1000), format!("round {round} {}", "x".repeat(50))).unwrap();
        db.put_cf(&other, format!("o{round}-{i:04}"), format!("{round}")).unwrap();
        if i == 250 {
            db.flush().unwrap();
            db.flush_cf(&other).unwrap();
        }
    }
    db.delete_range_cf(&other, format!("o{round}-0010"), format!("o{round}-0020")).unwrap();
}

fn both(db: &Db) -> [Contents; 2] {
    [contents(db, "default"), contents(db, "other")]
}

#[test]
fn backups_are_incremental_and_each_restores_its_own_moment() {
    for threads in [1, 4] {
        let dir = tempfile::tempdir().unwrap();
        let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
        let mut options = options();
        options.set_disable_auto_compactions(true); // so that the tables can be counted
        let db = open(&options, &path);
        let mut o = BackupEngineOptions::new(&backups).unwrap();
        o.set_max_background_operations(threads);
        let engine = BackupEngine::open(&o, &Env::new().unwrap()).unwrap();
        let mut moments = Vec::new();
        for round in 0..3 {
            write_round(&db, round);
            moments.push(both(&db));
            engine.create_new_backup_flush(&db, round == 1).unwrap();
        }
        // Each round added two tables, and the flush before the second backup another two: each exists once.
        let shared = names(&backups.join("shared_checksum"));
        assert_eq!(shared.len(), 8, "{shared:?}");
        let info = engine.get_backup_info();
        assert_eq!(info.iter().map(|i| i.backup_id).collect::<Vec<_>>(), [1, 2, 3]);
        let details = engine.get_backup_details(2).unwrap();
        assert_eq!(details.files.iter().map(|f| f.size).sum::<u64>(), info[1].size);
        assert_eq!(details.files.iter().filter(|f| f.backups == 3).count(), 2);
        assert!(details.info.timestamp > 1_600_000_000 && details.sequence >= 1200);

        drop(db);
        // Another engine sees the same.
        let engine = BackupEngine::open(&o, &Env::new().unwrap()).unwrap();
        assert_eq!(engine.get_backup_info(), info);
        for (id, moment) in [1, 2, 3].into_iter().zip(&moments).rev() {
            engine.verify_backup_with_checksum(id).unwrap();
            engine.restore_from_backup(&path, &path, &RestoreOptions::default(), id).unwrap();
            let db = open(&options, &path);
            assert!(both(&db) == *moment, "backup {id}");
            db.put("after", "the restore").unwrap();
        }
        // The database was restored and then changed: its new tables reuse old numbers and must not be mistaken for the
        // old ones.
        let db = open(&options, &path);
        write_round(&db, 7);
        engine.create_new_backup(&db).unwrap();
        let now = both(&db);
        drop(db);
        engine
            .restore_from_latest_backup(dir.path().join("new"), dir.path().join("wals"), &Default::default())
            .unwrap();
        for own in ["LOCK", "WAL_OWNER"] {
            std::fs::remove_file(dir.path().join("wals").join(own)).unwrap();
        }
        assert_eq!(names(&dir.path().join("wals")).len(), 1, "one WAL");
        for wal in names(&dir.path().join("wals")) {
            std::fs::rename(dir.path().join("wals").join(&wal), dir.path().join("new").join(&wal)).unwrap();
        }
        assert!(both(&open(&options, &dir.path().join("new"))) == now);

        engine.delete_backup(2).unwrap();
        engine.purge_old_backups(1).unwrap();
        assert_eq!(engine.get_backup_info().len(), 1);
        let needed = engine.get_backup_details(4).unwrap().files.len();
        let there = names(&backups.join("shared_checksum")).len() + names(&backups.join("private/4")).len();
        assert_eq!((there, names(&backups.join("private"))), (needed, vec!["4".to_owned()]));
        engine.verify_backup_with_checksum(4).unwrap();
        engine.purge_old_backups(0).unwrap();
        assert!(names(&backups.join("shared_checksum")).is_empty() && names(&backups.join("meta")).is_empty());
    }
}

/// Each batch writes its number to a key of its own and to one of the other column family: a backup must contain a
/// prefix of every writer's batches, each complete.
#[test]
fn backups_beside_writers_hold_whole_batches_and_prefixes() {
    let dir = tempfile::tempdir().unwrap();
    let options = busy_options();
    let db = open(&options, &dir.path().join("db"));
    let engine = engine(&dir.path().join("backups"));
    let mut floors = Vec::new();
    beside_writers(&db, |acknowledged| {
        for round in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(25));
            floors.push(acknowledged());
            engine.create_new_backup_flush(&db, round % 2 == 1).unwrap();
        }
    });
    drop(db);
    for (id, floor) in (1..).zip(&floors) {
        let path = dir.path().join("restored");
        engine.restore_from_backup(&path, &path, &RestoreOptions::default(), id).unwrap();
        let copy = open(&options, &path);
        let (keys, last) = (contents(&copy, "default"), contents(&copy, "other"));
        for (w, at_least) in floor.iter().enumerate() {
            // A writer that had not begun yet has nothing.
            let last: u64 = last.get(&format!("last{w}")).map_or(0, |n| n.parse().unwrap());
            assert!(last >= *at_least, "backup {id}, writer {w}: {last}, acknowledged before were {at_least}");
            let prefix = format!("w{w}-");
            let mine: Vec<_> = keys.keys().filter(|k| k.starts_with(&prefix)).collect();
            let newest = (last > 0).then(|| format!("w{w}-{last:08}"));
            assert_eq!((mine.len() as u64, mine.last().copied()), (last, newest.as_ref()), "backup {id}");
        }
    }
}

/// Damages every file of a backup in turn.
#[test]
fn damage_is_found_and_a_damaged_backup_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
    let db = open(&options(), &path);
    write_round(&db, 1);
    engine(&backups).create_new_backup(&db).unwrap();
    db.put("only", "in the database").unwrap();
    let now = both(&db);
    drop(db);
    let files = engine(&backups).get_backup_details(1).unwrap().files;
    assert!(files.len() >= 5, "{files:?}");
    for file in &files {
        let damaged = backups.join(&file.path);
        let whole = std::fs::read(&damaged).unwrap();
        let restore = |e: &BackupEngine| {
            let e = e.restore_from_latest_backup(&path, &path, &RestoreOptions::default()).unwrap_err();
            assert!(both(&open(&options(), &path)) == now, "{}: the database was touched", file.path);
            e
        };
        let named = |e: rockmill::Error, kind| {
            assert_eq!(e.kind(), kind, "{e}");
            assert!(e.to_string().contains(damaged.to_str().unwrap()), "{e}");
        };
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 4;
        std::fs::write(&damaged, &flipped).unwrap();
        let e = engine(&backups);
        e.verify_backup(1).unwrap();
        named(e.verify_backup_with_checksum(1).unwrap_err(), ErrorKind::Corruption);
        named(restore(&e), ErrorKind::Corruption);
        // Without an existing database, the copy notices the damage and leaves nothing.
        let fresh = dir.path().join("fresh/deep");
        let error = e.restore_from_latest_backup(&fresh, fresh.join("wals"), &RestoreOptions::default()).unwrap_err();
        named(error, ErrorKind::Corruption);
        assert!(!dir.path().join("fresh").exists());

        // An open engine notices that a file was truncated or removed.
        std::fs::write(&damaged, &whole).unwrap();
        let e = engine(&backups);
        std::fs::write(&damaged, &whole[..whole.len() - 1]).unwrap();
        named(e.verify_backup(1).unwrap_err(), ErrorKind::Corruption);
        named(restore(&e), ErrorKind::Corruption);
        std::fs::remove_file(&damaged).unwrap();
        named(e.verify_backup(1).unwrap_err(), ErrorKind::Corruption);
        // So does the next one.
        let e = engine(&backups);
        assert!(e.get_backup_info().is_empty());
        let corrupt = e.get_corrupted_backups();
        assert_eq!((corrupt.len(), corrupt[0].0), (1, 1));
        named(corrupt[0].1.clone(), ErrorKind::Corruption);
        named(e.verify_backup(1).unwrap_err(), ErrorKind::Corruption);
        std::fs::write(&damaged, &whole).unwrap();
        engine(&backups).verify_backup_with_checksum(1).unwrap();
    }

    // A damaged meta file: the backup is reported as damaged, other backups can be made, and its files are kept.
    let meta = backups.join("meta/1");
    let whole = std::fs::read_to_string(&meta).unwrap();
    std::fs::write(&meta, whole.replacen("crc32", "crc33", 1)).unwrap();
    let e = engine(&backups);
    assert_eq!(e.get_corrupted_backups().len(), 1);
    let db = open(&options(), &path);
    e.create_new_backup(&db).unwrap();
    e.garbage_collect().unwrap();
    assert_eq!(e.get_backup_info()[0].backup_id, 2);
    std::fs::write(&meta, whole).unwrap();
    let e = engine(&backups);
    e.verify_backup_with_checksum(1).unwrap();
    e.verify_backup_with_checksum(2).unwrap();
    std::fs::write(&meta, "nonsense").unwrap();
    let e = engine(&backups);
    e.delete_backup(1).unwrap();
    assert!(e.get_corrupted_backups().is_empty() && !meta.exists() && !backups.join("private/1").exists());
    e.verify_backup_with_checksum(2).unwrap();
}

#[test]
fn tables_are_shared_as_the_options_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = open(&options(), &path);
    write_round(&db, 1);
    let moment = both(&db);
    let sessions = |n: &String| n.contains("_s");
    type Choice = fn(&mut BackupEngineOptions);
    type Check = fn(&Path);
    let cases: [(Choice, Check); 5] = [
        (
            |o| o.set_share_table_files(false),
            |b| {
                assert!(!b.join("shared_checksum").exists() && !b.join("shared").exists());
                assert_eq!(names(&b.join("private/2")).iter().filter(|n| n.ends_with(".sst")).count(), 2);
            },
        ),
        (|o| o.set_share_files_with_checksum(false), |b| assert_eq!(names(&b.join("shared")).len(), 2)),
        (
            |o| o.set_share_files_with_checksum_naming(ShareFilesNaming::LegacyCrc32cAndFileSize),
            |b| {
                assert!(
                    names(&b.join("shared_checksum")).iter().all(|n| !n.contains("_s") && n.matches('_').count() == 2)
                );
            },
        ),
        (
            |o| o.set_share_files_with_checksum_naming(ShareFilesNaming::UseDbSessionId),
            |b| {
                assert!(names(&b.join("shared_checksum")).iter().all(|n| n.matches('_').count() == 1));
            },
        ),
        (|o| o.set_sync(false), |b| assert_eq!(names(&b.join("shared_checksum")).len(), 2)),
    ];
    for (i, (choose, check)) in cases.iter().enumerate() {
        let backups = dir.path().join(format!("backups{i}"));
        let mut o = BackupEngineOptions::new(&backups).unwrap();
        choose(&mut o);
        let e = BackupEngine::open(&o, &Env::new().unwrap()).unwrap();
        e.create_new_backup(&db).unwrap();
        e.create_new_backup(&db).unwrap();
        check(&backups);
        e.verify_backup_with_checksum(2).unwrap();
        let to = dir.path().join(format!("restored{i}"));
        e.restore_from_latest_backup(&to, &to, &RestoreOptions::default()).unwrap();
        assert!(both(&open(&options(), &to)) == moment, "case {i}");
    }
    assert!(names(&dir.path().join("backups4/shared_checksum")).iter().all(sessions));

    // Tables shared by number alone: a different table with the same number is noticed, not mistaken for the same one.
    let backups = dir.path().join("backups1");
    let table = backups.join("shared").join(&names(&backups.join("shared"))[0]);
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    for meta in ["1", "2"] {
        let meta = backups.join("meta").join(meta);
        let name = table.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&meta).unwrap();
        let line = text.lines().find(|l| l.contains(name)).unwrap();
        std::fs::write(&meta, text.replace(line, &format!("shared/{name} crc32 1"))).unwrap();
    }
    let mut o = BackupEngineOptions::new(&backups).unwrap();
    o.set_share_files_with_checksum(false);
    let e = BackupEngine::open(&o, &Env::new().unwrap()).unwrap();
    let error = e.create_new_backup(&db).unwrap_err();
    assert!(error.kind() == ErrorKind::Corruption && error.to_string().contains("not the same"), "{error}");
    assert_eq!(e.get_backup_info().len(), 2);
}

#[test]
fn logs_that_are_kept_are_replayed_over_the_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
    let db = open(&options(), &path);
    db.put("flushed", "1").unwrap();
    let mut o = BackupEngineOptions::new(&backups).unwrap();
    o.set_backup_log_files(false);
    let e = BackupEngine::open(&o, &Env::new().unwrap()).unwrap();
    e.create_new_backup_flush(&db, true).unwrap();
    assert!(!names(&backups.join("private/1")).iter().any(|n| n.ends_with(".log")));
    db.put("logged", "2").unwrap();
    drop(db);
    let mut keep = RestoreOptions::default();
    keep.set_keep_log_files(true);
    e.restore_from_latest_backup(&path, &path, &keep).unwrap();
    assert_eq!(contents(&open(&options(), &path), "default").len(), 2);
    // The same from the archive.
    e.restore_from_latest_backup(&path, &path, &RestoreOptions::default()).unwrap();
    let db = open(&options(), &path);
    assert_eq!(contents(&db, "default").len(), 1);
    db.put("logged", "3").unwrap();
    drop(db);
    let wal = names(&path).into_iter().rfind(|n| n.ends_with(".log")).unwrap();
    std::fs::create_dir(path.join("archive")).unwrap();
    std::fs::rename(path.join(&wal), path.join("archive").join(&wal)).unwrap();
    e.restore_from_latest_backup(&path, &path, &keep).unwrap();
    assert_eq!(contents(&open(&options(), &path), "default")["logged"], "3");
}

/// WALs in another directory, buffered before they are written: all of them are in the backup.
#[test]
fn logs_in_a_directory_of_their_own_come_along() {
    let env = Env::mem_env().unwrap();
    let mut options = options();
    options.set_env(&env);
    options.set_wal_dir("/wals");
    options.set_manual_wal_flush(true);
    let db = open(&options, Path::new("/db"));
    write_round(&db, 1);
    db.put("gathered", "in memory").unwrap();
    let moment = both(&db);
    let e = BackupEngine::open(&BackupEngineOptions::new("/backups").unwrap(), &env).unwrap();
    e.create_new_backup(&db).unwrap();
    drop(db);
    for wal_dir in ["/new/wals", "/new"] {
        e.restore_from_latest_backup("/new", wal_dir, &RestoreOptions::default()).unwrap();
        options.set_wal_dir(wal_dir);
        assert!(both(&open(&options, Path::new("/new"))) == moment, "{wal_dir}");
    }
}

/// With this option, a database other than the backup's is not replaced; the same one is, whatever its state.
#[test]
fn a_restore_can_be_kept_to_the_database_of_the_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other, backups) = (dir.path().join("db"), dir.path().join("other"), dir.path().join("backups"));
    let db = open(&options(), &path);
    write_round(&db, 1);
    let moment = both(&db);
    let e = engine(&backups);
    e.create_new_backup(&db).unwrap();
    drop(db);
    open(&options(), &other).put("precious", "1").unwrap();
    let mut how = RestoreOptions::default();
    how.set_same_database_only(true);
    let kept = |what: &str| {
        let e = e.restore_from_latest_backup(&other, &other, &how).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("not the one of the backup"), "{e}");
        assert_eq!(open(&options(), &other).get("precious").unwrap().as_deref(), Some(&b"1"[..]), "{what}");
    };
    kept("by its MANIFEST");
    std::fs::remove_file(other.join("IDENTITY")).unwrap();
    kept("without IDENTITY");
    let current = std::fs::read(other.join("CURRENT")).unwrap();
    std::fs::remove_file(other.join("CURRENT")).unwrap();
    let error = e.restore_from_latest_backup(&other, &other, &how).unwrap_err();
    assert!(error.to_string().contains("not the one of the backup"), "{error}");
    std::fs::write(other.join("CURRENT"), current).unwrap();
    kept("after that");
    for damage in ["none", "MANIFEST", "CURRENT", "all"] {
        match damage {
            "MANIFEST" => {
                let manifest = names(&path).into_iter().find(|n| n.starts_with("MANIFEST")).unwrap();
                std::fs::remove_file(path.join(manifest)).unwrap();
            }
            "CURRENT" => std::fs::remove_file(path.join("CURRENT")).unwrap(),
            "all" => std::fs::remove_dir_all(&path).unwrap(),
            _ => {}
        }
        e.restore_from_latest_backup(&path, &path, &how).unwrap_or_else(|e| panic!("{damage}: {e}"));
        assert!(both(&open(&options(), &path)) == moment, "{damage}");
    }
    e.restore_from_latest_backup(&other, &other, &RestoreOptions::default()).unwrap();
    assert!(both(&open(&options(), &other)) == moment);
}

#[test]
fn restores_keep_the_tables_that_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
    let db = open(&options(), &path);
    write_round(&db, 1);
    let moment = both(&db);
    let e = engine(&backups);
    e.create_new_backup_flush(&db, true).unwrap();
    drop(db);
    let tables: Vec<PathBuf> = oracle::tables(&path);
    assert!(tables.len() >= 4);
    for mode in [RestoreMode::KeepLatestDbSessionIdFiles, RestoreMode::VerifyChecksum, RestoreMode::PurgeAllFiles] {
        // Changes a table without changing its size, which only the checksum mode notices.
        let mut bytes = std::fs::read(&tables[0]).unwrap();
        bytes[20] ^= 1;
        if mode != RestoreMode::KeepLatestDbSessionIdFiles {
            std::fs::write(&tables[0], &bytes).unwrap();
        }
        let inode = |p: &PathBuf| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(p).unwrap());
        // Inode numbers of removed files are reused: links keep them.
        let links = dir.path().join(format!("{mode:?}"));
        std::fs::create_dir(&links).unwrap();
        tables.iter().for_each(|t| std::fs::hard_link(t, links.join(t.file_name().unwrap())).unwrap());
        let before: Vec<u64> = tables.iter().map(inode).collect();
        let mut o = RestoreOptions::default();
        o.set_mode(mode);
        e.restore_from_latest_backup(&path, &path, &o).unwrap();
        let kept = tables.iter().zip(&before).filter(|(t, i)| inode(t) == **i).count();
        let expected = match mode {
            RestoreMode::KeepLatestDbSessionIdFiles => tables.len(),
            RestoreMode::VerifyChecksum => tables.len() - 1,
            _ => 0,
        };
        assert_eq!(kept, expected, "{mode:?}");
        let copy = dir.path().join(format!("copy-{mode:?}"));
        oracle::copy_dir(&path, &copy);
        assert!(both(&open(&options(), &copy)) == moment, "{mode:?}");
    }
}

#[test]
fn rates_progress_metadata_and_stop() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    let clock = ManualClock::new(1_700_000_000_000_000);
    let timed: Arc<dyn Clock> = Arc::new(clock.clone());
    let mut options = options();
    options.set_file_system(Arc::clone(&fs));
    let db = open(&options, Path::new("/db"));
    let mut rng = fastrand::Rng::with_seed(7);
    let mut noise = |n: usize| (0..n).map(|_| rng.alphanumeric()).collect::<String>();
    (0..100).for_each(|i| db.put(format!("{i:03}"), noise(1000)).unwrap());
    db.flush().unwrap();
    let mut o = BackupEngineOptions::new("/backups").unwrap();
    o.set_backup_rate_limit(10_000);
    o.set_restore_rate_limit(20_000);
    o.set_callback_trigger_interval_size(5000);
    let env = Env::from_parts(Arc::clone(&fs), timed);
    let e = BackupEngine::open(&o, &env).unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&seen);
    let mut how = CreateBackupOptions::default();
    how.set_progress_callback(move |p| {
        assert!(p.bytes_done <= p.bytes_total);
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(e.create_new_backup_with_metadata(&db, &how, b"the night's\n\x00").unwrap(), 1);
    let info = &e.get_backup_info()[0];
    assert_eq!(info.timestamp, 1_700_000_000 + clock.monotonic_nanos() as i64 / 1_000_000_000);
    let seconds = clock.monotonic_nanos() / 1_000_000_000;
    assert!(seconds.abs_diff(info.size / 10_000) <= 2, "{seconds} s for {} bytes", info.size);
    assert!(seen.load(Ordering::Relaxed).abs_diff(info.size / 5000) <= 2);
    assert_eq!(e.get_backup_details(1).unwrap().app_metadata, b"the night's\n\x00");
    let before = clock.monotonic_nanos();
    e.restore_from_latest_backup("/new", "/new", &RestoreOptions::default()).unwrap();
    let seconds = (clock.monotonic_nanos() - before) / 1_000_000_000;
    assert!(seconds.abs_diff(info.size / 20_000) <= 2, "{seconds} s for {} bytes", info.size);

    // A panic in a callback makes the backup fail and nothing else; the same holds for a callback that stops it.
    db.put("more", noise(20_000)).unwrap();
    let mut panics = CreateBackupOptions::default();
    panics.set_flush_before_backup(true);
    panics.set_progress_callback(|_| panic!("the user's fault"));
    let error = e.create_new_backup_with_metadata(&db, &panics, b"").unwrap_err();
    assert!(error.kind() == ErrorKind::Aborted && error.to_string().contains("the user's fault"), "{error}");
    let too_much = e.create_new_backup_with_metadata(&db, &how, &vec![0; (1 << 20) + 1]).unwrap_err();
    assert_eq!(too_much.kind(), ErrorKind::InvalidArgument);
    let e = Arc::new(e);
    let mut stops = CreateBackupOptions::default();
    let other = Arc::clone(&e);
    stops.set_progress_callback(move |_| other.stop_backup());
    let error = e.create_new_backup_with_metadata(&db, &stops, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incomplete, "{error}");
    assert_eq!(e.create_new_backup(&db).unwrap_err().kind(), ErrorKind::Incomplete, "stopped is stopped");
    assert_eq!(e.get_backup_info().len(), 1);
    let mut o = BackupEngineOptions::new("/backups").unwrap();
    let fast = Env::from_parts(Arc::clone(&fs), Arc::new(SystemClock::default()));
    let e = BackupEngine::open(&o, &fast).unwrap();
    e.create_new_backup(&db).unwrap();
    e.verify_backup_with_checksum(2).unwrap();
    o.set_destroy_old_data(true);
    let e = BackupEngine::open(&o, &fast).unwrap();
    assert!(e.get_backup_info().is_empty() && fs.list_dir(Path::new("/backups/shared_checksum")).unwrap().is_empty());
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
    let env = Env::new().unwrap();
    assert_eq!(BackupEngineOptions::new("").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let o = BackupEngineOptions::new(&backups).unwrap();
    assert_eq!(BackupEngine::open_read_only(&o, &env).unwrap_err().kind(), ErrorKind::NotFound);
    let e = BackupEngine::open(&o, &env).unwrap();
    let plain = RestoreOptions::default();
    assert_eq!(e.restore_from_latest_backup(&path, &path, &plain).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!path.exists(), "nothing to restore, nothing made");

    let db = open(&options(), &path);
    db.put("k", "v").unwrap();
    let mut unlogged = WriteOptions::default();
    unlogged.disable_wal(true);
    db.put_opt("unlogged", "v", &unlogged).unwrap();
    e.create_new_backup(&db).unwrap();
    for missing in [e.verify_backup(2), e.delete_backup(2), e.restore_from_backup(&path, &path, &plain, 2)] {
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    }
    let error = e.restore_from_latest_backup(&path, &path, &plain).unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("is open"), "{error}");
    assert_eq!(contents(&db, "default").len(), 2);
    let own = BackupEngine::open(&BackupEngineOptions::new(&path).unwrap(), &env).unwrap();
    assert_eq!(own.create_new_backup(&db).unwrap_err().kind(), ErrorKind::InvalidArgument);

    // Read-only engines do not write; if another engine is busy, calls fail instead of waiting.
    let reader = BackupEngine::open_read_only(&o, &env).unwrap();
    assert_eq!(reader.create_new_backup(&db).unwrap_err().kind(), ErrorKind::NotSupported);
    assert_eq!(reader.delete_backup(1).unwrap_err().kind(), ErrorKind::NotSupported);
    reader.verify_backup_with_checksum(1).unwrap();
    let second = BackupEngine::open(&o, &env).unwrap();
    second.create_new_backup_flush(&db, true).unwrap();
    e.create_new_backup(&db).unwrap();
    assert_eq!(e.get_backup_info().len(), 3, "it saw what the other engine did");
    second.delete_backup(1).unwrap();
    let held = env_lock(&backups);
    assert_eq!(e.create_new_backup(&db).unwrap_err().kind(), ErrorKind::Busy);
    drop(held);
    drop(db);
    let read_only = Db::open_cf_for_read_only(&options(), &path, ["default"], false).unwrap();
    assert_eq!(e.create_new_backup(&read_only).unwrap_err().kind(), ErrorKind::NotSupported);
    // Files of others in the directory stay.
    let to = dir.path().join("to");
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("letter.txt"), "not ours").unwrap();
    e.restore_from_latest_backup(&to, &to, &plain).unwrap();
    assert!(to.join("letter.txt").exists());
    assert_eq!(contents(&open(&options(), &to), "default").len(), 2, "flushed before");
}

/// A backup number is used again once the newest backup is deleted. An engine that has not noticed this must not
/// mistake the new backup for the old one.
#[test]
fn an_engine_that_has_not_looked_since_leaves_other_engines_backups_alone() {
    type Step = fn(&BackupEngine, &Db);
    let steps: [(&str, Step); 4] = [
        ("garbage_collect", |e, _| e.garbage_collect().unwrap()),
        ("purge_old_backups", |e, _| e.purge_old_backups(2).unwrap()),
        ("delete_backup", |e, _| e.delete_backup(1).unwrap()),
        ("create_new_backup", |e, db| e.create_new_backup(db).unwrap()),
    ];
    for (what, step) in steps {
        let dir = tempfile::tempdir().unwrap();
        let backups = dir.path().join("backups");
        let db = open(&options(), &dir.path().join("db"));
        let stale = engine(&backups);
        for value in ["1", "2"] {
            db.put("k", value).unwrap();
            stale.create_new_backup_flush(&db, true).unwrap();
        }
        let other = engine(&backups);
        other.delete_backup(2).unwrap();
        db.put("k", "3").unwrap();
        other.create_new_backup_flush(&db, true).unwrap();
        let restore = |engine: &BackupEngine, to: &str| {
            let to = dir.path().join(to);
            engine.restore_from_backup(&to, &to, &RestoreOptions::default(), 2)?;
            Ok::<_, rockmill::Error>(open(&options(), &to).get("k").unwrap())
        };

        step(&stale, &db);
        other.verify_backup_with_checksum(2).unwrap_or_else(|e| panic!("after {what}: {e}"));
        assert_eq!(restore(&engine(&backups), "fresh").unwrap().as_deref(), Some(&b"3"[..]), "after {what}");
        assert_eq!(restore(&stale, "stale").unwrap().as_deref(), Some(&b"3"[..]), "{what} looked again");
    }
    // A call must refer to the backup that the engine has shown, or fail.
    for step in [
        |e: &BackupEngine| e.delete_backup(2),
        |e: &BackupEngine| e.verify_backup(2),
        |e: &BackupEngine| e.verify_backup_with_checksum(2),
        |e: &BackupEngine| {
            let dir = tempfile::tempdir().unwrap();
            let to = dir.path().join("never-made");
            e.restore_from_backup(&to, &to, &RestoreOptions::default(), 2)
        },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let backups = dir.path().join("backups");
        let db = open(&options(), &dir.path().join("db"));
        let stale = engine(&backups);
        stale.create_new_backup(&db).unwrap();
        stale.create_new_backup(&db).unwrap();
        let other = engine(&backups);
        other.delete_backup(2).unwrap();
        db.put("k", "new").unwrap();
        other.create_new_backup(&db).unwrap();
        let refused = step(&stale).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
        assert!(refused.message().contains("another engine"), "{refused}");
        other.verify_backup_with_checksum(2).unwrap();
        stale.delete_backup(2).unwrap(); // it has looked
        assert!(stale.get_backup_info().iter().map(|b| b.backup_id).eq([1]));
    }
}

/// Several engines on one directory, each with its own view: every backup that was not deleted stays complete and
/// restores the state at which it was made.
#[test]
fn engines_that_take_turns_harm_no_backup_that_was_not_deleted() {
    for seed in 0..30 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
        let env = || Env::from_parts(Arc::clone(&fs), Arc::new(SystemClock::default()));
        let mut o = options();
        o.set_file_system(Arc::clone(&fs));
        let db = open(&o, Path::new("/db"));
        let engine = || BackupEngine::open(&BackupEngineOptions::new("/backups").unwrap(), &env()).unwrap();
        let mut engines = [engine(), engine(), engine()];
        // By number, the value of "k" at that moment.
        let mut expected: BTreeMap<u32, String> = BTreeMap::new();
        for step in 0..40 {
            let which = rng.usize(0..engines.len());
            let e = &engines[which];
            match rng.u8(0..10) {
                0..=3 => {
                    db.put("k", format!("{step}")).unwrap();
                    let mut how = CreateBackupOptions::default();
                    how.set_flush_before_backup(rng.bool());
                    let id = e.create_new_backup_with_metadata(&db, &how, b"").unwrap();
                    assert_eq!(expected.insert(id, format!("{step}")), None, "seed {seed}: backup {id} was there");
                }
                4 | 5 => {
                    let shown: Vec<u32> = e.get_backup_info().iter().map(|b| b.backup_id).collect();
                    let Some(&id) = rng.choice(&shown) else { continue };
                    match e.delete_backup(id) {
                        Ok(()) => drop(expected.remove(&id).unwrap_or_else(|| panic!("seed {seed}: {id} was gone"))),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "seed {seed}: {e}"),
                    }
                }
                6 => {
                    let keep = rng.usize(1..4);
                    e.purge_old_backups(keep).unwrap();
                    while expected.len() > keep {
                        expected.pop_first();
                    }
                }
                7 => e.garbage_collect().unwrap(),
                8 => engines[which] = engine(),
                _ => {
                    // The newest backup may be deleted immediately, so that its number is used again.
                    let Some((&id, _)) = expected.last_key_value() else { continue };
                    let fresh = engine();
                    fresh.delete_backup(id).unwrap();
                    expected.remove(&id);
                }
            }
            let fresh = engine();
            assert!(fresh.get_corrupted_backups().is_empty(), "seed {seed}, step {step}");
            let there: Vec<u32> = fresh.get_backup_info().iter().map(|b| b.backup_id).collect();
            assert!(there.iter().eq(expected.keys()), "seed {seed}, step {step}: {there:?} and {expected:?}");
        }
        for (&id, value) in &expected {
            let to = PathBuf::from(format!("/r{id}"));
            engine().restore_from_backup(&to, &to, &RestoreOptions::default(), id).unwrap();
            assert_eq!(open(&o, &to).get("k").unwrap().as_deref(), Some(value.as_bytes()), "seed {seed}: backup {id}");
        }
    }
}

fn env_lock(backups: &Path) -> Box<dyn rockmill_io::FileLock> {
    rockmill_io::PosixFileSystem::default().lock(&backups.join("LOCK")).unwrap()
}

/// RocksDB and Rockmill take turns in one backup directory: each adds backups, and each checks and restores all of
/// them.
#[test]
fn rocksdb_and_rockmill_share_a_backup_directory() {
    let test = "rocksdb_and_rockmill_share_a_backup_directory";
    for driver in oracle::Peer::all(test) {
        let dir = tempfile::tempdir().unwrap();
        let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
        let mut expected: Vec<[Contents; 2]> = Vec::new();
        let mut skipped = false;
        for round in 0..4u64 {
            if round % 2 == 0 {
                let db = open(&options(), &path);
                write_round(&db, round);
                expected.push(both(&db));
                engine(&backups).create_new_backup_flush(&db, round == 2).unwrap();
                continue;
            }
            let mut script = Script::new();
            script.line("cf other ");
            script.open(&path).put("default", format!("rocksdb {round}"), "1").put("other", "by", "rocksdb");
            script.line("flush default").put("default", "not flushed", round.to_string());
            script.line(format!("backup {}", backups.display())).line("dump default").line("close");
            let oracle::Outcome::Done(_) = driver.run(&script) else {
                match driver.run(&script) {
                    oracle::Outcome::Unsupported(what) => rockmill_skip::skip(test, &what),
                    other => panic!("{other:?}"),
                }
                skipped = true;
                break;
            };
            let e = engine(&backups);
            let id = round as u32 + 1;
            e.verify_backup_with_checksum(id).unwrap();
            let to = dir.path().join(format!("of-rocksdb-{round}"));
            e.restore_from_backup(&to, &to, &RestoreOptions::default(), id).unwrap();
            let mut moment = expected[round as usize - 1].clone();
            moment[0].insert(format!("rocksdb {round}"), "1".into());
            moment[0].insert("not flushed".into(), round.to_string());
            moment[1].insert("by".into(), "rocksdb".into());
            assert!(both(&open(&options(), &to)) == moment, "backup {id}, made by {:?}", driver.peer);
            expected.push(moment);
        }
        if skipped {
            continue;
        }
        // Tables that both sides wrote are shared between their backups.
        let e = engine(&backups);
        assert!(e.get_backup_details(4).unwrap().files.iter().any(|f| f.backups == 4));
        for (id, moment) in (1..).zip(&expected) {
            let to = dir.path().join(format!("by-rocksdb-{id}"));
            std::fs::create_dir(&to).unwrap();
            let mut script = Script::new();
            script.line(format!("backup_verify {} {id}", backups.display()));
            script.line(format!("restore {} {id} {}", backups.display(), to.display()));
            script.line("cf other ").open(&to).line("verify").line("dump default").line("close");
            let answer = driver.answer(test, &script).unwrap();
            let found: Contents = answer
                .entries()
                .into_iter()
                .map(|(k, v)| (String::from_utf8(k).unwrap(), String::from_utf8(v).unwrap()))
                .collect();
            assert!(found == moment[0], "backup {id} restored by {:?}", driver.peer);
        }
        // RocksDB deletes one of our backups and we one of RocksDB's; the others stay complete.
        let mut script = Script::new();
        script.line(format!("backup_delete {} 1", backups.display()));
        driver.answer(test, &script).unwrap();
        let e = engine(&backups);
        e.delete_backup(2).unwrap();
        assert_eq!(e.get_backup_info().len(), 2);
        e.verify_backup_with_checksum(3).unwrap();
        let mut script = Script::new();
        script.line(format!("backup_verify {} 4", backups.display())).line(format!("backups {}", backups.display()));
        driver.answer(test, &script).unwrap();
    }
}

/// `ldb backup` and `ldb restore`, as an administrator uses them.
#[test]
fn ldb_backs_up_and_restores_beside_rockmill() {
    let ldb = need!("ldb_backs_up_and_restores_beside_rockmill", oracle::tool("ldb"));
    let dir = tempfile::tempdir().unwrap();
    let (path, backups) = (dir.path().join("db"), dir.path().join("backups"));
    let db = Db::open(&options(), &path).unwrap();
    (0..500).for_each(|i| db.put(format!("k{i:04}"), format!("v{i}")).unwrap());
    engine(&backups).create_new_backup(&db).unwrap();
    let moment = contents(&db, "default");
    drop(db);
    let arg = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let to = dir.path().join("by-ldb");
    oracle::run_tool(&ldb, &["restore", &arg("db", &to), &arg("backup_dir", &backups)]).unwrap();
    let found = oracle::content::ldb_scan(&ldb, &to, "default").unwrap();
    assert_eq!(found.len(), moment.len());
    oracle::run_tool(&ldb, &["put", &arg("db", &to), "by", "ldb"]).unwrap();
    oracle::run_tool(&ldb, &["backup", &arg("db", &to), &arg("backup_dir", &backups)]).unwrap();
    let e = engine(&backups);
    e.verify_backup_with_checksum(2).unwrap();
    e.restore_from_latest_backup(&path, &path, &RestoreOptions::default()).unwrap();
    let db = Db::open(&options(), &path).unwrap();
    assert_eq!(contents(&db, "default").len(), moment.len() + 1);
}
