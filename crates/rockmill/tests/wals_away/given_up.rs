//! Databases that continued without their WAL directory (`kSkipAnyCorruptedRecords`), which then reappears: its
//! contents belong to an abandoned state.

use std::path::Path;

use rockmill::{Db, Options, RepairOptions};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem};

use crate::support::{
    OPENINGS, WAYS, Way, files, is_log, key, mount, noted, plain, prefix, synced, taking_all, unmount, value,
};

/// Number of writes in tables, and of all writes before the device is lost.
const IN_TABLES: usize = 10;
const WRITES: usize = 1000;

/// A killed database whose device is away, if possible with several WALs begun since the last edit of its MANIFEST.
fn without_its_device(way: Way) -> MemFileSystem {
    let fs = MemFileSystem::new();
    let mut apart = way.apart(&fs, "/fast");
    if way == Way::FastPath {
        apart.set_max_index_size(16 << 10);
    }
    let db = Db::open(&apart, "/db").expect("open");
    let put = |range: std::ops::Range<usize>| {
        range.for_each(|i| db.put_opt(key(i), value(i), &synced()).expect("a synced write"));
    };
    put(0..IN_TABLES);
    db.flush().expect("a flush");
    put(IN_TABLES..WRITES);
    let killed = fs.next_process();
    drop(db);
    let wals = files(&killed, "/fast").into_iter().filter(|(name, bytes)| is_log(name) && !bytes.is_empty()).count();
    assert!(way == Way::WalDir || wals > 2, "{wals} WALs");
    unmount(&killed, false);
    killed.sync_dir(Path::new("/")).expect("a sync");
    killed
}

fn elsewhere(fs: &MemFileSystem, way: Way, dir: Option<&str>) -> Options {
    dir.map_or_else(|| plain(fs), |dir| way.apart(fs, dir))
}

/// Checks that every way to use the WALs on the device is refused, and changes nothing.
fn check_stale(fs: &MemFileSystem, way: Way, what: &str) {
    let (database, device) = (files(fs, "/db"), files(fs, "/fast"));
    let apart = way.apart(fs, "/fast");
    for (opening, open) in OPENINGS {
        for o in [apart.clone(), taking_all(apart.clone())] {
            let e = open(&o).err().unwrap_or_else(|| panic!("{what}, {opening}: opened")).to_string();
            // A secondary first misses the current WALs.
            let told = opening == "a secondary" || e.contains("opened without");
            assert!(told && e.contains("/fast"), "{what}, {opening}: {e}");
        }
    }
    let mut how = RepairOptions::default();
    how.set_wal_dir("/fast");
    for (o, how) in [(&apart, &RepairOptions::default()), (&plain(fs), &how)] {
        let e = Db::repair_with(o, "/db", how).expect_err("repaired with old WALs").to_string();
        assert!(e.contains("opened without"), "{what}: {e}");
    }
    assert!(files(fs, "/db") == database && files(fs, "/fast") == device, "{what}: a refusal changed something");
}

/// The device is no longer required, and its WALs are not mistaken for those of the database.
#[test]
fn a_device_that_comes_back_after_it_was_given_up_is_somebody_elses() {
    for (way, dir) in WAYS.into_iter().flat_map(|way| [None, Some("/elsewhere")].map(|dir| (way, dir))) {
        for (after, closed) in [(0, true), (2, true), (2, false), (40, true)] {
            let what = format!("{way:?}, {dir:?}, {after}, {closed}");
            let fs = without_its_device(way);
            let without = elsewhere(&fs, way, dir);
            let db = Db::open(&taking_all(without.clone()), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(prefix(&db, &what), IN_TABLES, "{what}");
            for i in IN_TABLES..IN_TABLES + after {
                db.put_opt(key(i), value(i), &synced()).expect("a write");
            }
            db.flush().expect("a flush");
            let killed = fs.next_process();
            drop(db);
            let fs = if closed { fs } else { killed };
            let without = elsewhere(&fs, way, dir);
            mount(&fs);
            check_stale(&fs, way, &what);
            for (opening, open) in OPENINGS.into_iter().chain(OPENINGS) {
                let db = open(&without).unwrap_or_else(|e| panic!("{what}, {opening}: {e}"));
                assert_eq!(prefix(&db, &what), IN_TABLES + after, "{what}, {opening}");
            }
            check_stale(&fs, way, &what);
            // Its old WALs are removed: the device is like a new one.
            for name in files(&fs, "/fast").into_keys().filter(|name| is_log(name)) {
                fs.remove(&Path::new("/fast").join(name)).expect("removed");
            }
            for _ in 0..2 {
                let db = Db::open(&way.apart(&fs, "/fast"), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(prefix(&db, &what), IN_TABLES + after, "{what}");
                db.put(key(0), value(0)).expect("a write");
            }
            unmount(&fs, true);
            let e = Db::open(&plain(&fs), "/db").err().unwrap_or_else(|| panic!("{what}: opened")).to_string();
            assert!(e.contains("mounted"), "{what}: {e}");
            // Given up once more.
            let db = Db::open(&taking_all(plain(&fs)), "/db").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(prefix(&db, &what), IN_TABLES + after, "{what}");
            drop(db);
            mount(&fs);
            check_stale(&fs, way, &what);
        }
    }
}

/// A power cut at each point of the open that abandons the device: either the device is still needed and has
/// everything, or it is abandoned.
#[test]
fn the_power_may_go_while_a_device_is_given_up() {
    for (way, dir) in WAYS.into_iter().flat_map(|way| [None, Some("/elsewhere")].map(|dir| (way, dir))) {
        let fs = without_its_device(way);
        fs.start_recording();
        let db = Db::open(&taking_all(elsewhere(&fs, way, dir)), "/db").expect("open");
        let opened = fs.recorded();
        db.put_opt(key(IN_TABLES), value(IN_TABLES), &synced()).expect("a write");
        let acknowledged = fs.recorded();
        drop(db);
        let mut disk = fs.replay().expect("a recording");
        let points = disk.points();
        let mut needed = 0;
        for point in 0..points {
            disk.advance_to(point);
            for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Random(point as u64)] {
                let what = format!("{way:?}, {dir:?}, {point} of {points}, {mode:?}");
                let after = disk.crash_image(mode);
                let least = IN_TABLES + usize::from(point >= acknowledged);
                let is_of_it = |found: usize| (least..=IN_TABLES + 1).contains(&found);
                // Without the device, and without the option to abandon it.
                let away = after.next_process();
                let is_given_up = match Db::open(&elsewhere(&away, way, dir), "/db") {
                    Ok(db) => {
                        assert!(is_of_it(prefix(&db, &what)), "{what}");
                        true
                    }
                    Err(e) => {
                        assert!(e.to_string().contains("mounted") && noted(&away, "open"), "{what}: {e}");
                        needed += 1;
                        false
                    }
                };
                assert!(is_given_up || point < opened, "{what}: given up, and refused");
                assert!(!is_given_up || point > 0, "{what}: nothing is given up yet");
                if is_given_up {
                    mount(&away);
                    assert!(Db::open(&way.apart(&away, "/fast"), "/db").is_err(), "{what}: old WALs are taken");
                }
                // The same with the word.
                let again = after.next_process();
                for _ in 0..2 {
                    let db = Db::open(&taking_all(elsewhere(&again, way, dir)), "/db");
                    assert!(is_of_it(prefix(&db.unwrap_or_else(|e| panic!("{what}: {e}")), &what)), "{what}");
                }
                mount(&again);
                assert!(Db::open(&way.apart(&again, "/fast"), "/db").is_err(), "{what}: old WALs are taken");
                // The device is there again.
                mount(&after);
                match Db::open(&way.apart(&after, "/fast"), "/db") {
                    Ok(db) => assert!(!is_given_up && prefix(&db, &what) == WRITES, "{what}: old WALs are taken"),
                    Err(e) => assert!(is_given_up, "{what}: {e}"),
                }
            }
        }
        assert!(needed > 0, "{way:?}, {dir:?}: at no point it is needed");
        println!("{way:?}, {dir:?}: {needed} of {} are refused", 3 * points);
    }
}
