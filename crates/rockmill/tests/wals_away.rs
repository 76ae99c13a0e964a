//! Databases whose WAL directory cannot be found: its device is not mounted. Tables list the result of each history.

#[path = "wals_away/given_up.rs"]
mod given_up;
mod oracle;
#[path = "wals_away/support.rs"]
mod support;
#[path = "wals_away/while_open.rs"]
mod while_open;

use std::io;
use std::path::Path;
use std::sync::Arc;

use oracle::{Peer, Script};
use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::{Checkpoint, Db, Env, Options, RepairOptions, WriteOptions};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem, OpKind, SystemClock};
use rockmill_skip::skip;
use support::{
    OPENINGS, WARNING, WAYS, Way, copy, files, half_flushed, is_log, key, log, mount, noted, options_files, plain,
    prefix, synced, taking_all, unmount, value, write,
};

/// The result of an open without the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is refused. With the recovery mode that ignores missing WALs, this many writes exist.
    Refused { in_tables: usize },
    /// It sees everything, without a warning.
    Whole,
}

const REFUSED: Outcome = Outcome::Refused { in_tables: 0 };

/// The operations on a new database until its process ends, and the number of writes.
struct History {
    name: &'static str,
    /// Returns the still open database, if the process is killed.
    run: fn(&dyn Fn() -> Db) -> Option<Db>,
    writes: usize,
    with_fast_path: Outcome,
    with_wal_dir: Outcome,
}

const HISTORIES: [History; 14] = [
    History {
        // Cannot be distinguished from the next but one.
        name: "killed before the first write",
        run: |open| Some(open()),
        writes: 0,
        with_fast_path: REFUSED,
        with_wal_dir: REFUSED,
    },
    History {
        name: "closed without a write",
        run: |open| {
            drop(open());
            None
        },
        writes: 0,
        with_fast_path: Outcome::Whole,
        with_wal_dir: Outcome::Whole,
    },
    History {
        name: "killed before a flush",
        run: |open| {
            let db = open();
            write(&db, 0..100);
            Some(db)
        },
        writes: 100,
        with_fast_path: REFUSED,
        with_wal_dir: REFUSED,
    },
    History {
        name: "closed before a flush",
        run: |open| {
            write(&open(), 0..100);
            None
        },
        writes: 100,
        with_fast_path: REFUSED,
        with_wal_dir: REFUSED,
    },
    History {
        // There may have been more writes: the newest WAL is missing with the device.
        name: "killed after a flush",
        run: |open| {
            let db = open();
            write(&db, 0..100);
            db.flush().expect("a flush");
            Some(db)
        },
        writes: 100,
        with_fast_path: Outcome::Refused { in_tables: 100 },
        with_wal_dir: Outcome::Refused { in_tables: 100 },
    },
    History {
        name: "closed after a flush",
        run: |open| {
            let db = open();
            write(&db, 0..100);
            db.flush().expect("a flush");
            None
        },
        writes: 100,
        with_fast_path: Outcome::Whole,
        with_wal_dir: Outcome::Whole,
    },
    History {
        name: "closed after a flush and more writes",
        run: |open| {
            let db = open();
            write(&db, 0..60);
            db.flush().expect("a flush");
            write(&db, 60..100);
            None
        },
        writes: 100,
        with_fast_path: Outcome::Refused { in_tables: 60 },
        with_wal_dir: Outcome::Refused { in_tables: 60 },
    },
    History {
        // An open with data in WALs writes it as tables.
        name: "closed, opened and closed",
        run: |open| {
            write(&open(), 0..100);
            drop(open());
            None
        },
        writes: 100,
        with_fast_path: REFUSED,
        with_wal_dir: Outcome::Whole,
    },
    History {
        name: "closed after a flush, then opened and killed",
        run: |open| {
            let db = open();
            write(&db, 0..100);
            db.flush().expect("a flush");
            drop(db);
            Some(open())
        },
        writes: 100,
        with_fast_path: Outcome::Refused { in_tables: 100 },
        with_wal_dir: Outcome::Refused { in_tables: 100 },
    },
    History {
        name: "killed after options were changed",
        run: |open| {
            let db = open();
            for size in ["1000000", "2000000", "3000000"] {
                db.set_options(&[("write_buffer_size", size)]).expect("an option");
            }
            write(&db, 0..100);
            Some(db)
        },
        writes: 100,
        with_fast_path: REFUSED,
        with_wal_dir: REFUSED,
    },
    History {
        name: "killed after the MANIFEST was begun anew",
        run: |open| {
            let db = open();
            for i in 0..5 {
                write(&db, 20 * i..20 * i + 20);
                db.flush().expect("a flush");
            }
            write(&db, 100..110);
            Some(db)
        },
        writes: 110,
        with_fast_path: Outcome::Refused { in_tables: 100 },
        with_wal_dir: Outcome::Refused { in_tables: 100 },
    },
    History {
        name: "closed after the MANIFEST was begun anew",
        run: |open| {
            let db = open();
            db.set_options(&[("write_buffer_size", "1000000")]).expect("an option");
            for i in 0..5 {
                write(&db, 20 * i..20 * i + 20);
                db.flush().expect("a flush");
            }
            None
        },
        writes: 100,
        with_fast_path: Outcome::Whole,
        with_wal_dir: Outcome::Whole,
    },
    History {
        // A close flushes them.
        name: "closed after writes without a WAL",
        run: |open| {
            let (db, mut without) = (open(), WriteOptions::default());
            without.disable_wal(true);
            (0..100).for_each(|i| db.put_opt(key(i), value(i), &without).expect("a put"));
            None
        },
        writes: 100,
        with_fast_path: Outcome::Whole,
        with_wal_dir: Outcome::Whole,
    },
    History {
        name: "closed after a flush of another column family",
        run: |open| {
            let db = open();
            write(&db, 0..100);
            let other = db.create_cf("other", &Options::default()).expect("a column family");
            db.put_cf(&other, "k", "v").expect("a put");
            db.flush_cf(&other).expect("a flush");
            db.drop_cf("other").expect("dropped");
            None
        },
        writes: 100,
        with_fast_path: REFUSED,
        with_wal_dir: REFUSED,
    },
];

/// Runs each history; then the device is not mounted, and the database is opened without it in every way.
#[test]
fn an_opening_without_the_device_is_refused_or_sees_everything() {
    for (way, history) in WAYS.into_iter().flat_map(|way| HISTORIES.iter().map(move |history| (way, history))) {
        let fs = MemFileSystem::new();
        let mut apart = way.apart(&fs, "/fast");
        // In some histories, each edit begins another MANIFEST.
        if history.name.contains("MANIFEST") {
            apart.set_max_manifest_file_size(1);
        }
        let open = || Db::open(&apart, "/db").expect("open");
        let killed = (history.run)(&open);
        let fs = fs.next_process();
        drop(killed);
        let outcome = if way == Way::FastPath { history.with_fast_path } else { history.with_wal_dir };
        for mount_point in [false, true] {
            for elsewhere in [None, Some("/elsewhere")] {
                let what = format!("{way:?}, {}, {mount_point}, {elsewhere:?}", history.name);
                let fs = fs.next_process();
                unmount(&fs, mount_point);
                let without = elsewhere.map_or_else(|| plain(&fs), |dir| way.apart(&fs, dir));
                match outcome {
                    Outcome::Refused { in_tables } => {
                        check_refused(&fs, (way, elsewhere.is_some()), &without, (in_tables, history.writes), &what);
                    }
                    Outcome::Whole => check_whole(&fs, way, elsewhere, &without, history.writes, &what),
                }
            }
        }
    }
}

fn check_refused(
    fs: &MemFileSystem,
    (way, elsewhere): (Way, bool),
    without: &Options,
    (in_tables, writes): (usize, usize),
    what: &str,
) {
    let before = files(fs, "/db");
    for (opening, open) in OPENINGS {
        // One that reads makes no directory.
        if elsewhere && opening != "for writing" {
            fs.create_dir(Path::new("/elsewhere"), true).expect("a directory");
        }
        for _ in 0..2 {
            let e = open(without).err().unwrap_or_else(|| panic!("{what}, {opening}: opened")).to_string();
            let told = ["in /fast,", "/fast/0", ".log", "mounted", "kSkipAnyCorruptedRecords"];
            assert!(told.iter().all(|part| e.contains(part)), "{what}, {opening}: {e}");
        }
    }
    let mut after = files(fs, "/db");
    after.retain(|name, _| before.contains_key(name));
    assert!(after == before, "{what}: a refusal changed something");
    // The device is back.
    let back = fs.next_process();
    mount(&back);
    for _ in 0..2 {
        let db = Db::open(&way.apart(&back, "/fast"), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(prefix(&db, what), writes, "{what}");
    }
    // The WALs are abandoned. Later opens are then not affected.
    let all = taking_all(without.clone());
    for (opening, open) in OPENINGS {
        let db = open(&all).unwrap_or_else(|e| panic!("{what}, {opening}: {e}"));
        assert_eq!(prefix(&db, what), in_tables, "{what}, {opening}");
        drop(db);
        let dir = match opening {
            "for reading" => continue,
            "a secondary" => "/second",
            _ => "/db",
        };
        let told = log(fs, dir);
        let line = told.lines().find(|line| line.contains(WARNING));
        let line = line.unwrap_or_else(|| panic!("{what}, {opening}: {told}"));
        assert!(line.contains("/fast/0") && line.contains(".log"), "{what}, {opening}: {line}");
    }
    for _ in 0..2 {
        let db = Db::open(without, "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(prefix(&db, what), in_tables, "{what}");
    }
}

fn check_whole(fs: &MemFileSystem, way: Way, elsewhere: Option<&str>, without: &Options, writes: usize, what: &str) {
    if let Some(dir) = elsewhere {
        fs.create_dir(Path::new(dir), true).expect("a directory");
    }
    for (opening, open) in OPENINGS {
        let db = open(without).unwrap_or_else(|e| panic!("{what}, {opening}: {e}"));
        assert_eq!(prefix(&db, what), writes, "{what}, {opening}");
    }
    for round in 0..3 {
        let db = Db::open(without, "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(prefix(&db, what), writes + round, "{what}");
        write(&db, writes + round..writes + round + 1);
        drop(db);
        let told = log(fs, "/db");
        assert!(!told.contains(WARNING), "{what}: {told}");
    }
    // The device is mounted again: it is not required, and can be used again.
    mount(fs);
    let db = Db::open(without, "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(prefix(&db, what), writes + 3, "{what}");
    db.flush().expect("a flush");
    drop(db);
    let apart = way.apart(fs, "/fast");
    let db = Db::open(&apart, "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
    write(&db, writes + 3..writes + 5);
    drop(db);
    unmount(fs, false);
    assert!(Db::open(without, "/db").is_err(), "{what}: its WALs are needed again");
}

/// A power cut at each point of a history with the device, which is then not mounted: if the database opens, it has
/// every acknowledged write.
#[test]
fn no_point_of_a_history_leads_to_a_silent_loss() {
    let ends = [(false, true), (true, true), (true, false), (false, false)];
    for (way, (flushed_before, flushed_after)) in WAYS.into_iter().flat_map(|way| ends.map(|ends| (way, ends))) {
        let fs = MemFileSystem::new();
        let mut apart = way.apart(&fs, "/fast");
        apart.set_max_manifest_file_size(1);
        apart.set_avoid_flush_during_recovery(true);
        let put = |db: &Db, i: usize| db.put_opt(key(i), value(i), &synced()).expect("a synced write");
        let db = Db::open(&apart, "/db").expect("open");
        (0..10).for_each(|i| put(&db, i));
        if flushed_before {
            db.flush().expect("a flush");
        }
        drop(db);
        assert_eq!(noted(&fs, "flushed"), flushed_before);
        fs.start_recording();
        let mut acknowledged = vec![(0, 10)];
        let db = Db::open(&apart, "/db").expect("open");
        for i in 10..16 {
            put(&db, i);
            acknowledged.push((fs.recorded(), i + 1));
            match i {
                10 => db.set_options(&[("write_buffer_size", "1000000")]).expect("an option"),
                12 | 15 => db.flush().expect("a flush"),
                13 => drop(db.create_cf("other", &Options::default()).expect("a column family")),
                14 => db.drop_cf("other").expect("dropped"),
                _ => {}
            }
        }
        if !flushed_after {
            put(&db, 16);
            acknowledged.push((fs.recorded(), 17));
        }
        drop(db);
        let mut disk = fs.replay().expect("a recording");
        let points = disk.points();
        let (mut opened, mut refused) = (0, 0);
        for point in 0..points {
            disk.advance_to(point);
            for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Random(point as u64)] {
                let what = format!("{way:?}, {flushed_before}, {flushed_after}, {point} of {points}, {mode:?}");
                let after = disk.crash_image(mode);
                let least = acknowledged.iter().rev().find(|(at, _)| *at <= point).map_or(0, |(_, writes)| *writes);
                // The results of the first and the last point are known.
                let must_open = match point {
                    0 => Some(flushed_before),
                    _ if point + 1 == points => Some(flushed_after),
                    _ => None,
                };
                if after.exists(Path::new("/fast")).expect("a look") {
                    unmount(&after, false);
                }
                let without = plain(&after);
                // A column family may or may not exist; a database that does not open for that reason loses nothing.
                let names = Db::list_cf(&without, "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
                match Db::open_cf(&without, "/db", names) {
                    Ok(db) => {
                        let found = prefix(&db, &what);
                        assert!(found >= least, "{what}: {found} of {least}");
                        assert_ne!(must_open, Some(false), "{what}: opened");
                        opened += 1;
                    }
                    Err(e) => {
                        assert!(e.to_string().contains("mounted"), "{what}: {e}");
                        assert_ne!(must_open, Some(true), "{what}: {e}");
                        refused += 1;
                    }
                }
            }
        }
        // Some writes are only in WALs for a while.
        assert!(refused > 0, "{way:?}, {flushed_before}, {flushed_after}: none of {points} points is refused");
        println!("{way:?}, {flushed_before}, {flushed_after}: {opened} opened, {refused} refused");
    }
}

/// A power cut at each point of the first open without a device that is not needed: the next open is not refused.
#[test]
fn the_power_may_go_while_a_device_is_turned_off() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
        write(&db, 0..50);
        db.flush().expect("a flush");
        drop(db);
        let fs = fs.next_process();
        unmount(&fs, true);
        for elsewhere in [None, Some("/elsewhere")] {
            let fs = fs.next_process();
            let without = |fs: &MemFileSystem| elsewhere.map_or_else(|| plain(fs), |dir| way.apart(fs, dir));
            fs.start_recording();
            let db = Db::open(&without(&fs), "/db").expect("open");
            let begun = fs.recorded();
            db.put_opt(key(50), value(50), &synced()).expect("a write");
            let acknowledged = fs.recorded();
            let mut disk = fs.replay().expect("a recording");
            for point in 0..disk.points() {
                disk.advance_to(point);
                for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Random(point as u64)] {
                    let what = format!("{way:?}, {elsewhere:?}, {point}, {mode:?}");
                    let after = disk.crash_image(mode);
                    let least = 50 + usize::from(point >= acknowledged);
                    let most = 50 + usize::from(point > begun);
                    for _ in 0..2 {
                        let db = Db::open(&without(&after), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
                        let found = prefix(&db, &what);
                        assert!((least..=most).contains(&found), "{what}: {found} of {least} to {most}");
                    }
                }
            }
        }
    }
}

/// The device is available, and the database continues with another directory: nothing on the device is needed, however
/// the process ended.
#[test]
fn another_directory_is_not_refused_where_nothing_is_missing() {
    for (from, to) in WAYS.into_iter().flat_map(|from| WAYS.map(|to| (from, to))) {
        for (writes, closed) in [(0, false), (0, true), (50, false), (50, true)] {
            let what = format!("{from:?} to {to:?}, {writes}, {closed}");
            let fs = MemFileSystem::new();
            let db = Db::open(&from.apart(&fs, "/fast"), "/db").expect("open");
            write(&db, 0..writes);
            db.flush().expect("a flush");
            let fs = if closed {
                drop(db);
                fs
            } else {
                fs.next_process()
            };
            // Also killed at any point of the open with the other directory.
            fs.start_recording();
            let other = Db::open(&to.apart(&fs, "/other"), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut disk = fs.replay().expect("a recording");
            for point in (0..disk.points()).step_by(3) {
                disk.advance_to(point);
                let after = disk.crash_image(CrashMode::KeepAll);
                for (way, dir) in [(from, "/fast"), (to, "/other"), (to, "/third"), (from, "/fast")] {
                    let what = format!("{what}, {point}, then {dir}");
                    let db = Db::open(&way.apart(&after, dir), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(prefix(&db, &what), writes, "{what}");
                }
            }
            drop(other);
            // The second directory is away, and the first one is used again: its WALs are obsolete.
            let db = Db::open(&to.apart(&fs, "/other"), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
            write(&db, writes..writes + 5);
            drop(db);
            fs.rename(Path::new("/other"), Path::new("/gone")).expect("a rename");
            let e = Db::open(&from.apart(&fs, "/fast"), "/db").err();
            let e = e.unwrap_or_else(|| panic!("{what}: opened without /other")).to_string();
            assert!(e.contains("/other") && e.contains("mounted"), "{what}: {e}");
        }
    }
}

/// The directory has another name: its device is mounted elsewhere, or its contents were moved.
#[test]
fn wals_that_are_where_they_are_looked_for_are_found() {
    for way in WAYS {
        for (writes, flushed, killed) in
            [(0, false, true), (50, false, false), (50, false, true), (50, true, true), (50, true, false)]
        {
            let fs = MemFileSystem::new();
            let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
            write(&db, 0..writes);
            if flushed {
                db.flush().expect("a flush");
            }
            let fs = if killed { fs.next_process() } else { fs.clone() };
            drop(db);
            for (case, to) in [("mounted elsewhere", "/mnt"), ("WALs alone", "/mnt"), ("at home", "/db")] {
                let what = format!("{way:?}, {writes}, {flushed}, {killed}, {case}");
                let fs = fs.next_process();
                copy(&fs, "/fast", to, |name| is_log(name) || (case == "mounted elsewhere" && name == "WAL_OWNER"));
                unmount(&fs, false);
                let o = if to == "/db" { plain(&fs) } else { way.apart(&fs, to) };
                for (opening, open) in OPENINGS {
                    let db = open(&o).unwrap_or_else(|e| panic!("{what}, {opening}: {e}"));
                    assert_eq!(prefix(&db, &what), writes, "{what}, {opening}");
                }
                assert_eq!(prefix(&Db::open(&o, "/db").unwrap_or_else(|e| panic!("{what}: {e}")), &what), writes);
            }
            // The database moved, and the device did not. Or both did.
            let what = format!("{way:?}, {writes}, {flushed}, {killed}, moved");
            let moved = fs.next_process();
            moved.rename(Path::new("/db"), Path::new("/new")).expect("a rename");
            let db = Db::open(&way.apart(&moved, "/fast"), "/new").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(prefix(&db, &what), writes, "{what}");
            let moved = fs.next_process();
            moved.rename(Path::new("/db"), Path::new("/new")).expect("a rename");
            moved.rename(Path::new("/fast"), Path::new("/new-fast")).expect("a rename");
            let db = Db::open(&way.apart(&moved, "/new-fast"), "/new").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(prefix(&db, &what), writes, "{what}");
        }
    }
}

/// A secondary uses another path of the device, while its primary flushes and begins new WALs.
#[test]
fn a_secondary_may_see_the_device_under_another_path() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        let primary = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
        for round in 0..4 {
            write(&primary, round * 10..round * 10 + 10);
            let seen = fs.next_process();
            seen.rename(Path::new("/fast"), Path::new("/mnt")).expect("a rename");
            let db = Db::open_as_secondary(&way.apart(&seen, "/mnt"), "/db", "/second").expect("a secondary");
            assert_eq!(prefix(&db, "a secondary"), round * 10 + 10);
            primary.flush().expect("a flush");
            let seen = fs.next_process();
            seen.rename(Path::new("/fast"), Path::new("/mnt")).expect("a rename");
            let db = Db::open_as_secondary(&way.apart(&seen, "/mnt"), "/db", "/second").expect("a secondary");
            assert_eq!(prefix(&db, "a secondary"), round * 10 + 10);
        }
    }
}

/// Copies have no note, and a restored database has the note of the backup's database.
#[test]
fn copies_miss_nothing_and_restored_databases_what_was_restored() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
        let env = Env::from_parts(Arc::new(fs.clone()), Arc::new(SystemClock::default()));
        let engine = |dir: &str| {
            let engine = BackupEngineOptions::new(dir).and_then(|o| BackupEngine::open(&o, &env));
            engine.expect("a backup engine")
        };
        write(&db, 0..50);
        engine("/with-wals").create_new_backup(&db).expect("a backup");
        db.flush().expect("a flush");
        Checkpoint::new(&db).and_then(|c| c.create_checkpoint("/copy")).expect("a checkpoint");
        engine("/without").create_new_backup_flush(&db, true).expect("a backup");
        write(&db, 50..60);
        drop(db);
        let how = RestoreOptions::default();
        for (backup, wals, refused) in
            [("/with-wals", "/fast", true), ("/with-wals", "/db", false), ("/without", "/db", false)]
        {
            let what = format!("{way:?}, {backup}, {wals}");
            engine(backup).restore_from_latest_backup("/db", wals, &how).expect("restored");
            let other = fs.next_process();
            unmount(&other, false);
            for (opening, open) in OPENINGS {
                match open(&plain(&other)) {
                    Ok(db) => {
                        assert!(!refused, "{what}, {opening}: opened");
                        assert_eq!(prefix(&db, &what), 50, "{what}, {opening}");
                    }
                    Err(e) => assert!(refused && e.to_string().contains("mounted"), "{what}, {opening}: {e}"),
                }
            }
            if wals == "/fast" {
                let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
                assert_eq!(prefix(&db, &what), 50, "{what}");
            }
        }
        unmount(&fs, false);
        assert_eq!(prefix(&Db::open(&plain(&fs), "/copy").expect("open"), "a checkpoint"), 50);
    }
}

/// A copy of only the database's directory, made with `cp`, lacks the data of its WALs.
#[test]
fn a_copy_of_the_files_is_as_the_original() {
    for way in WAYS {
        for flushed in [false, true] {
            let fs = MemFileSystem::new();
            let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
            write(&db, 0..50);
            if flushed {
                db.flush().expect("a flush");
            }
            drop(db);
            copy(&fs, "/db", "/copy", |name| name != "LOCK");
            unmount(&fs, false);
            match Db::open(&plain(&fs), "/copy") {
                Ok(db) => assert!(flushed && prefix(&db, "a copy") == 50, "{way:?}, {flushed}"),
                Err(e) => assert!(!flushed && e.to_string().contains("mounted"), "{way:?}, {flushed}: {e}"),
            }
        }
    }
}

/// The state after RocksDB with `reuse_manifest_on_open`: the old MANIFEST, and RocksDB's OPTIONS file.
#[test]
fn a_note_does_not_count_after_somebody_wrote_other_options() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        write(&Db::open(&way.apart(&fs, "/fast"), "/db").expect("open"), 0..50);
        let newest = fs.read_to_vec(options_files(&fs).last().expect("an OPTIONS file")).expect("a read");
        fs.write_all(Path::new("/db/OPTIONS-000999"), &newest).expect("a write");
        unmount(&fs, true);
        assert!(noted(&fs, "open"));
        for (opening, open) in OPENINGS {
            let db = open(&plain(&fs)).unwrap_or_else(|e| panic!("{way:?}, {opening}: {e}"));
            assert_eq!(prefix(&db, opening), 0, "{way:?}");
        }
        let told = log(&fs, "/db");
        assert!(told.contains("/fast, which cannot be found") && told.contains(WARNING), "{told}");
        // It is told once.
        assert!(!noted(&fs, "open"));
        drop(Db::open(&plain(&fs), "/db").expect("open"));
        assert!(!log(&fs, "/db").contains(WARNING));
    }
}

/// A MANIFEST by a program that does not write notes: RocksDB, or an older version of the store.
#[test]
fn a_note_does_not_count_after_somebody_began_a_manifest() {
    let fs = MemFileSystem::new();
    write(&Db::open(&Way::WalDir.apart(&fs, "/fast"), "/db").expect("open"), 0..50);
    let note = fs.read_to_vec(Path::new("/db/WAL_OWNER")).expect("a note");
    // The other one has the device.
    drop(Db::open(&Way::WalDir.apart(&fs, "/fast"), "/db").expect("open"));
    fs.write_all(Path::new("/db/WAL_OWNER"), &note).expect("a write");
    unmount(&fs, false);
    assert_eq!(prefix(&Db::open(&plain(&fs), "/db").expect("open"), "flushed since"), 50);
    assert!(log(&fs, "/db").contains(WARNING));
}

/// Notes of a version without the fourth line, and how that version reads ours.
#[test]
fn notes_of_older_versions_expect_nothing() {
    for way in WAYS {
        let fs = MemFileSystem::new();
        write(&Db::open(&way.apart(&fs, "/fast"), "/db").expect("open"), 0..50);
        let note = String::from_utf8(fs.read_to_vec(Path::new("/db/WAL_OWNER")).expect("a note")).expect("text");
        let lines: Vec<&str> = note.lines().collect();
        // It accepts two or three numbers in the third line, or nothing.
        assert_eq!(lines[2].split(' ').all(|word| word.parse::<u64>().is_ok()), way == Way::FastPath, "{note}");
        let older = if way == Way::FastPath { &lines[..3] } else { &lines[..2] };
        fs.write_all(Path::new("/db/WAL_OWNER"), (older.join("\n") + "\n").as_bytes()).expect("a write");
        let back = fs.next_process();
        unmount(&fs, false);
        assert_eq!(prefix(&Db::open(&plain(&fs), "/db").expect("open"), "without them"), 0);
        assert_eq!(prefix(&Db::open(&way.apart(&back, "/fast"), "/db").expect("open"), "with them"), 50);
    }
}

/// After a repair with the WALs, they are no longer needed; after a repair without them, they still are.
#[test]
fn a_repair_that_read_no_wals_leaves_them_needed() {
    for way in WAYS {
        let fs = half_flushed(way);
        // They are there.
        let there = fs.next_process();
        Db::repair(&way.apart(&there, "/fast"), "/db").expect("a repair");
        unmount(&there, false);
        assert_eq!(prefix(&Db::open(&plain(&there), "/db").expect("open"), "repaired"), 50);
        // They are not.
        let away = fs.next_process();
        unmount(&away, false);
        for _ in 0..2 {
            let report = Db::repair(&plain(&away), "/db").expect("a repair");
            assert!(report.wals_not_read.is_some(), "{way:?}: {report:?}");
            assert!(noted(&away, "open") && !noted(&away, "flushed"), "{way:?}");
            let e = Db::open(&plain(&away), "/db").expect_err("opened without its WALs").to_string();
            assert!(e.contains("/fast") && e.contains("mounted"), "{way:?}: {e}");
        }
        // Another, wrong directory exists: empty, or with an old WAL.
        let old = files(&away, "/away").into_iter().find(|(name, _)| is_log(name)).expect("a WAL").1;
        for contents in [None, Some(old)] {
            let other = Path::new("/other");
            away.create_dir(other, true).expect("a directory");
            if let Some(contents) = &contents {
                away.write_all(&other.join("000001.log"), contents).expect("a write");
            }
            let wrong = way.apart(&away, "/other");
            let report = Db::repair(&wrong, "/db").expect("a repair");
            let (dir, _) = report.wals_not_read.expect("WALs that are not read");
            assert_eq!(dir, Path::new("/fast"), "{way:?}");
            assert!(noted(&away, "open") && !noted(&away, "flushed"), "{way:?}");
            for o in [plain(&away), wrong] {
                let e = Db::open(&o, "/db").expect_err("opened without its WALs").to_string();
                assert!(e.contains("/fast"), "{way:?}: {e}");
            }
        }
        // Unless the repair is told that it is the right one, or the WALs are there.
        let given = away.next_process();
        let mut how = RepairOptions::default();
        given.create_dir(Path::new("/empty"), true).expect("a directory");
        how.set_wal_dir("/empty");
        assert_eq!(Db::repair_with(&plain(&given), "/db", &how).expect("a repair").wals_not_read, None, "{way:?}");
        assert_eq!(prefix(&Db::open(&plain(&given), "/db").expect("open"), "given up"), 20, "{way:?}");
        mount(&given);
        let e = Db::open(&way.apart(&given, "/fast"), "/db").expect_err("old WALs are taken").to_string();
        assert!(e.contains("opened without"), "{way:?}: {e}");
        assert_eq!(prefix(&Db::open(&plain(&given), "/db").expect("open"), "given up"), 20, "{way:?}");
        let moved = away.next_process();
        copy(&moved, "/away", "/mnt", is_log);
        let report = Db::repair(&way.apart(&moved, "/mnt"), "/db").expect("a repair");
        assert_eq!(report.wals_not_read, None, "{way:?}");
        assert_eq!(prefix(&Db::open(&plain(&moved), "/db").expect("open"), "moved"), 50, "{way:?}");
        mount(&away);
        let db = Db::open(&way.apart(&away, "/fast"), "/db").unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert_eq!(prefix(&db, "with them"), 50, "{way:?}");
        drop(db);
        // They are not needed either if the repair did not need them.
        let fs = fs.next_process();
        let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
        db.flush().expect("a flush");
        drop(db);
        unmount(&fs, false);
        assert!(Db::repair(&plain(&fs), "/db").expect("a repair").wals_not_read.is_some());
        assert_eq!(prefix(&Db::open(&plain(&fs), "/db").expect("open"), "flushed"), 50);
    }
}

/// The media are read-only, and the device is lost: data in tables can be read.
#[test]
fn what_tables_have_can_be_read_on_media_that_take_no_writes() {
    for way in WAYS {
        let fs = half_flushed(way);
        let fs = fs.next_process();
        unmount(&fs, true);
        let writes = [OpKind::Create, OpKind::Write, OpKind::Rename, OpKind::Remove, OpKind::Sync];
        fs.set_fault(Box::new(move |op| {
            (writes.contains(&op.kind) && op.path.starts_with("/db")).then(|| io::Error::from_raw_os_error(30))
        }));
        let e = Db::open_for_read_only(&plain(&fs), "/db", false).expect_err("refused").to_string();
        assert!(e.contains("kSkipAnyCorruptedRecords"), "{way:?}: {e}");
        let e = Db::open_for_read_only(&way.apart(&fs, "/fast"), "/db", false).expect_err("refused").to_string();
        assert!(e.contains("kSkipAnyCorruptedRecords"), "{way:?}: {e}");
        for (opening, open) in &OPENINGS[..2] {
            let db = open(&taking_all(plain(&fs))).unwrap_or_else(|e| panic!("{way:?}, {opening}: {e}"));
            assert_eq!(prefix(&db, opening), 20, "{way:?}");
        }
    }
}

/// RocksDB does not check: without the directory, it continues without the WALs. With it, nothing shows what it left
/// there.
#[test]
fn after_rocksdb_nothing_is_expected() {
    let test = "after_rocksdb_nothing_is_expected";
    let driver = match Peer::Library.driver() {
        Ok(driver) => driver,
        Err(reason) => return skip(test, &reason),
    };
    let get = |db: &Db, key: &str| db.get(key).expect("a get").is_some();
    let cases = [false, true].map(|flushed| {
        [(false, "close"), (false, "crash"), (true, "close"), (true, "crash")].map(|case| (flushed, case))
    });
    for (flushed, (had_device, end)) in cases.into_iter().flatten() {
        let what = format!("flushed before: {flushed}, with the device: {had_device}, {end}");
        let home = tempfile::tempdir().expect("a folder");
        let (path, wals, away) = (home.path().join("db"), home.path().join("wals"), home.path().join("away"));
        let mut plain = Options::default();
        plain.create_if_missing(true);
        let mut apart = plain.clone();
        apart.set_wal_dir(&wals);
        let db = Db::open(&apart, &path).expect("open");
        db.put("table", "v").expect("a write");
        db.flush().expect("a flush");
        db.put("wal", "v").expect("a write");
        if flushed {
            db.flush().expect("a flush");
        }
        drop(db);
        std::fs::rename(&wals, &away).expect("a rename");
        match Db::open_for_read_only(&plain, &path, false) {
            Ok(db) => assert!(flushed && get(&db, "wal"), "{what}"),
            Err(e) => assert!(!flushed && e.to_string().contains("mounted"), "{what}: {e}"),
        }
        let mut script = Script::new();
        if had_device {
            std::fs::rename(&away, &wals).expect("a rename");
            script.line(format!("db wal_dir={}", wals.display()));
        }
        script.open(&path).put("default", "theirs", "v").line(end);
        let _ = driver.run(&script);
        if had_device {
            std::fs::rename(&wals, &away).expect("a rename");
        }
        for round in 0..2 {
            let db = Db::open(&plain, &path).unwrap_or_else(|e| panic!("{what}, {round}: {e}"));
            // RocksDB wrote the WALs' data as a table when it opened with them.
            let there = ["table", "wal", "theirs"].map(|key| get(&db, key));
            assert_eq!(there, [true, had_device || flushed, !had_device], "{what}, {round}");
            db.put("round", round.to_string()).expect("a write");
            drop(db);
            let log = std::fs::read_to_string(path.join("LOG")).expect("a LOG");
            assert_eq!(log.contains(WARNING), round == 0, "{what}, {round}");
        }
    }
    // A reader of RocksDB's changes nothing.
    let home = tempfile::tempdir().expect("a folder");
    let (path, wals) = (home.path().join("db"), home.path().join("wals"));
    let mut apart = Options::default();
    apart.create_if_missing(true);
    apart.set_wal_dir(&wals);
    Db::open(&apart, &path).and_then(|db| db.put("wal", "v")).expect("a write");
    let mut script = Script::new();
    script.line(format!("db wal_dir={}", wals.display())).line(format!("open_ro {}", path.display())).line("close");
    let _ = driver.run(&script);
    std::fs::rename(&wals, home.path().join("away")).expect("a rename");
    let e = Db::open(&Options::default(), &path).expect_err("opened without its WALs").to_string();
    assert!(e.contains("wals") && e.contains("mounted"), "{e}");
}
