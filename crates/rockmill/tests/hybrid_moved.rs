//! A fast path is turned on, turned off or moved while WALs have data that is in no table.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options, RecoveryMode, WriteOptions};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem, OpKind};

/// Where a database has its WALs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Home,
    WalDir(&'static str),
    Fast(&'static str),
}

use Place::{Fast, Home, WalDir};

/// From where to where.
const MOVES: [(Place, Place); 5] = [
    (Home, Fast("/fast")),
    (Fast("/fast"), Home),
    (Fast("/fast"), Fast("/other")),
    (WalDir("/wals"), Fast("/fast")),
    (Fast("/fast"), WalDir("/wals")),
];

impl Place {
    fn options(self, fs: &MemFileSystem) -> Options {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(fs.clone()));
        o.set_write_buffer_size(64 << 10);
        match self {
            Home => {}
            WalDir(dir) => o.set_wal_dir(dir),
            Fast(dir) => {
                o.set_fast_path(dir, 1 << 30);
                // No flush comes by itself.
                o.set_data_flush_trigger_size(1 << 30);
            }
        }
        o
    }

    fn dir(self) -> &'static str {
        match self {
            Home => "/db",
            WalDir(dir) | Fast(dir) => dir,
        }
    }

    fn open(self, fs: &MemFileSystem) -> rockmill::Result<Db> {
        Db::open(&self.options(fs), "/db")
    }
}

fn key(i: usize) -> String {
    format!("key{i:05}")
}

fn value(i: usize) -> Vec<u8> {
    vec![b'a' + (i % 26) as u8; 100 + i % 300]
}

fn put(db: &Db, i: usize) {
    let mut synced = WriteOptions::default();
    synced.set_sync(true);
    db.put_opt(key(i), value(i), &synced).expect("a synced write");
}

/// Number of writes that exist; checks that they are the first ones.
fn prefix(db: &Db, what: &str) -> usize {
    let all = db.iterator(IteratorMode::Start).map(|e| e.unwrap_or_else(|e| panic!("{what}: {e}")));
    all.enumerate()
        .map(|(i, (k, v))| assert_eq!((&k[..], &v[..]), (key(i).as_bytes(), &value(i)[..]), "{what}: no prefix"))
        .count()
}

/// Names of the WALs in a directory.
fn wals(fs: &MemFileSystem, dir: &str) -> Vec<String> {
    let mut names = fs.list_dir(Path::new(dir)).unwrap_or_default();
    names.retain(|name| name.ends_with(".log"));
    names
}

/// A closed database: its 20 oldest entries are in a table, and 30 more are in WALs.
fn half_flushed(place: Place) -> MemFileSystem {
    let fs = MemFileSystem::new();
    let db = place.open(&fs).expect("open");
    (0..20).for_each(|i| put(&db, i));
    db.flush().expect("a flush");
    (20..50).for_each(|i| put(&db, i));
    drop(db);
    fs
}

#[test]
fn an_open_that_moves_the_wals_writes_what_they_hold_as_tables() {
    for (from, to) in MOVES {
        for killed in [false, true] {
            let what = format!("{from:?} to {to:?}, {killed}");
            let mut fs = half_flushed(from);
            if killed {
                let db = from.open(&fs).expect("open");
                put(&db, 50);
                fs = fs.next_process();
                drop(db);
            } else {
                put(&from.open(&fs).expect("open"), 50);
            }
            // For reading it changes nothing.
            let before = (wals(&fs, from.dir()), wals(&fs, to.dir()));
            let db = Db::open_for_read_only(&to.options(&fs), "/db", false).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(prefix(&db, &what), 51, "{what}");
            drop(db);
            assert_eq!((wals(&fs, from.dir()), wals(&fs, to.dir())), before, "{what}");
            // A secondary would not notice where its primary goes on.
            let mut follows = to.options(&fs);
            follows.set_max_open_files(-1);
            let e = Db::open_as_secondary(&follows, "/db", "/second").expect_err("a secondary").to_string();
            assert!(e.contains(from.dir()) && e.contains(".log"), "{what}: {e}");

            let db = to.open(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(wals(&fs, from.dir()), [""; 0], "{what}");
            assert_eq!(prefix(&db, &what), 51, "{what}");
            (51..60).for_each(|i| put(&db, i));
            drop(db);
            // There and back, with data in WALs again and again.
            for (round, place) in [from, to, to, from].into_iter().enumerate() {
                let db = place.open(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(prefix(&db, &what), 60 + round, "{what}");
                put(&db, 60 + round);
            }
        }
    }
}

/// A power cut at each point of such an open and of what is written after it. Then the database opens with its WALs in
/// either directory, or in a third one, and has every acknowledged write.
#[test]
fn the_power_may_go_at_any_point_of_a_move() {
    for (from, to) in MOVES {
        let fs = half_flushed(from);
        fs.start_recording();
        let db = to.open(&fs).expect("open");
        let mut acknowledged = vec![(0, 50), (fs.recorded(), 50)];
        for i in 50..53 {
            put(&db, i);
            acknowledged.push((fs.recorded(), i + 1));
        }
        drop(db);
        let mut disk = fs.replay().expect("a recording");
        let points = disk.points();
        let both = |fs: &MemFileSystem| !wals(fs, from.dir()).is_empty() && !wals(fs, to.dir()).is_empty();
        let mut in_both = 0;
        for point in 0..points {
            disk.advance_to(point);
            for mode in [CrashMode::SyncedOnly, CrashMode::KeepAll, CrashMode::Random(point as u64)] {
                let after = disk.crash_image(mode);
                in_both += usize::from(both(&after));
                let least = acknowledged.iter().rev().find(|(at, _)| *at <= point).map_or(50, |(_, writes)| *writes);
                for next in [[to, from], [from, to], [Fast("/third"), to]] {
                    let fs = after.crash_image(CrashMode::KeepAll);
                    let mut found = 0;
                    for (round, place) in next.into_iter().enumerate() {
                        let what = format!("{from:?} to {to:?}, {point} of {points}, {mode:?}, then {place:?}");
                        let db = place.open(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
                        let now = prefix(&db, &what);
                        assert!(now >= least && (round == 0 || now == found), "{what}: {now} of {least}, {found}");
                        put(&db, now);
                        found = now + 1;
                    }
                }
            }
        }
        assert!(in_both > 0, "{from:?} to {to:?}: at no point were there WALs in both directories");
    }
}

/// Any call of such an open fails: the open succeeds or says so, and the next one has everything.
#[test]
fn any_call_of_a_move_may_fail() {
    for (from, to) in MOVES {
        let whole = half_flushed(from);
        let mut failed = 0;
        for call in 0.. {
            let fs = whole.crash_image(CrashMode::KeepAll);
            fs.fail_once_after(call, 28);
            let what = format!("{from:?} to {to:?}, call {call}");
            let opened = to.open(&fs);
            let done = fs.calls() < call;
            fs.clear_fault();
            match opened {
                Ok(db) => assert_eq!(prefix(&db, &what), 50, "{what}"),
                Err(_) => failed += 1,
            }
            for place in [to, from] {
                let db = place.open(&fs).unwrap_or_else(|e| panic!("{what}, then {place:?}: {e}"));
                assert_eq!(prefix(&db, &what), 50, "{what}, then {place:?}");
            }
            if done {
                break;
            }
        }
        assert!(failed > 10, "{from:?} to {to:?}: {failed}");
    }
}

/// What would be lost, or is of somebody else, is refused as without a move, and changes nothing.
#[test]
fn a_move_is_refused_where_wals_are_missing_or_of_another_database() {
    let names =
        |fs: &MemFileSystem, dirs: &[&str]| -> Vec<Vec<String>> { dirs.iter().map(|dir| wals(fs, dir)).collect() };
    // The new directory is another database's.
    let fs = half_flushed(Home);
    put(&Db::open(&Fast("/fast").options(&fs), "/another").expect("another database"), 0);
    let before = names(&fs, &["/db", "/fast"]);
    for read_only in [false, true] {
        let o = Fast("/fast").options(&fs);
        let refused = if read_only { Db::open_for_read_only(&o, "/db", false) } else { Db::open(&o, "/db") };
        let e = refused.expect_err("another database's directory").to_string();
        assert!(e.contains("/fast") && e.contains("/another"), "{e}");
    }
    assert_eq!(names(&fs, &["/db", "/fast"]), before);
    // A copy made file by file, whose original has the WALs.
    let fs = half_flushed(Fast("/fast"));
    fs.create_dir(Path::new("/copy"), true).expect("a directory");
    for name in fs.list_dir(Path::new("/db")).expect("a list") {
        let bytes = fs.read_to_vec(&Path::new("/db").join(&name)).expect("a file");
        fs.write_all(&Path::new("/copy").join(&name), &bytes).expect("a copy");
    }
    let before = names(&fs, &["/fast"]);
    for place in [Home, Fast("/other")] {
        let e = Db::open(&place.options(&fs), "/copy").expect_err("the original's WALs").to_string();
        assert!(e.contains("/fast"), "{e}");
    }
    assert_eq!(names(&fs, &["/fast"]), before);
    // A needed WAL is missing.
    let fs = half_flushed(Fast("/fast"));
    put(&Fast("/fast").open(&fs).expect("open"), 50);
    let newest = wals(&fs, "/fast").into_iter().max().expect("a log");
    fs.remove(&Path::new("/fast").join(&newest)).expect("removed");
    for place in [Home, Fast("/other")] {
        let e = place.open(&fs).expect_err("a log is missing").to_string();
        assert!(e.contains("/fast"), "{e}");
    }
    // Somebody has moved some of them.
    let fs = half_flushed(Home);
    put(&Home.open(&fs).expect("open"), 50);
    let old = half_flushed(Home);
    put(&Home.open(&old).expect("open"), 50);
    fs.create_dir(Path::new("/fast"), true).expect("a directory");
    let log = wals(&fs, "/db").into_iter().max().expect("a log");
    let bytes = fs.read_to_vec(&Path::new("/db").join(&log)).expect("a log");
    fs.write_all(&Path::new("/fast").join(&log), &bytes).expect("a log");
    let e = Fast("/fast").open(&fs).expect_err("WALs in both").to_string();
    assert!(e.contains("/fast") && e.contains("own"), "{e}");
    assert_eq!(prefix(&Home.open(&fs).expect("open"), "in both"), 51);
    // Plain `wal_dir`, which RocksDB has, too: whoever changes it has to know where the WALs are.
    for (from, to) in [(Home, WalDir("/wals")), (WalDir("/wals"), Home), (WalDir("/wals"), WalDir("/other"))] {
        let fs = half_flushed(from);
        let e = to.open(&fs).expect_err("WALs elsewhere").to_string();
        assert!(e.contains("wal_dir"), "{e}");
    }
}

/// RocksDB had the database open, with a `wal_dir`: its OPTIONS file says where WALs are, and no note.
#[test]
fn a_fast_path_is_not_turned_on_over_wals_that_rocksdb_left() {
    let fs = half_flushed(WalDir("/wals"));
    for name in ["/wals/WAL_OWNER", "/wals/LOCK", "/db/WAL_OWNER"] {
        fs.remove(Path::new(name)).expect("there");
    }
    for _ in 0..2 {
        let e = Fast("/fast").open(&fs).expect_err("WALs are elsewhere").to_string();
        assert!(e.contains("OPTIONS") && e.contains("/wals") && e.contains(".log"), "{e}");
    }
    // Once with it, which notes them.
    put(&WalDir("/wals").open(&fs).expect("open"), 50);
    assert_eq!(prefix(&Fast("/fast").open(&fs).expect("turned on"), "turned on"), 51);
}

/// The recovery mode says what happens where a log is damaged, and a log that cannot be read is an error.
#[test]
fn a_move_obeys_the_recovery_mode_and_names_what_it_cannot_read() {
    let fs = half_flushed(Fast("/fast"));
    let log = wals(&fs, "/fast").into_iter().max().expect("a log");
    let at = Path::new("/fast").join(&log);
    let bytes = fs.read_to_vec(&at).expect("a log");
    let broken = log.clone();
    fs.set_fault(Box::new(move |op| {
        let hit = op.kind == OpKind::Read && op.path.ends_with(&broken);
        hit.then(|| io::Error::from_raw_os_error(5))
    }));
    let e = Home.open(&fs).expect_err("a log that cannot be read").to_string();
    assert!(e.contains(&log), "{e}");
    fs.clear_fault();
    // Damage in the middle.
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    fs.write_all(&at, &damaged).expect("a log");
    let mut strict = Home.options(&fs);
    strict.set_wal_recovery_mode(RecoveryMode::AbsoluteConsistency);
    let e = Db::open(&strict, "/db").expect_err("damage").to_string();
    assert!(e.contains("AbsoluteConsistency") && e.contains(&log), "{e}");
    fs.write_all(&at, &bytes).expect("a log");
    assert_eq!(prefix(&Db::open(&strict, "/db").expect("open"), "sound"), 50);
}
