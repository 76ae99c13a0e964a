//! Sound databases with data that is small in a file but could take much memory or time: overlapping range tombstones,
//! and many merge operands of one key. The data read is compared with the data written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rockmill::{Db, IteratorMode, Options, ReadOptions, WriteBatch};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem};

use crate::fixtures::{self, DIR, Fixture};
use crate::mutate::Dice;

/// Limit for the bytes of files that an input of these targets can create.
pub const SIZE: usize = 1 << 20;

/// Number of operations in a batch.
const BATCH: usize = 500;

fn new_database(dice: &mut Dice<'_>) -> (Arc<MemFileSystem>, Options, Db) {
    let fs = MemFileSystem::new();
    fs.create_dir(std::path::Path::new(DIR), true).expect("a directory in memory");
    let fs = Arc::new(fs);
    let mut options = fixtures::options(&fs);
    options.create_if_missing(true);
    if dice.once_in(2) {
        options.set_write_buffer_size(64 << 20); // all in one memtable
    }
    options.set_disable_auto_compactions(dice.once_in(2));
    let db = Db::open(&options, DIR).expect("a new database in memory");
    (fs, options, db)
}

enum Op {
    Put(u32),
    Delete(u32, u32),
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

/// Puts and range tombstones, in the order in which they are written.
fn ops(dice: &mut Dice<'_>) -> Vec<Op> {
    let n = dice.one_of(&[8, 100, 1_000, 5_000, 20_000]).unwrap_or(8);
    let shape = dice.among(0..6);
    let puts = dice.one_of(&[2, 16, 500]).unwrap_or(16);
    let keys = 4 * n;
    (0..n)
        .map(|i| {
            if i % puts == puts - 1 {
                return Op::Put(dice.among(0..keys as usize) as u32);
            }
            match shape {
                0 => Op::Delete(i, keys - i),           // nested, the newest innermost
                1 => Op::Delete(n - i, keys - (n - i)), // nested, the newest outermost
                2 => Op::Delete(i, i + n),              // each overlaps the next ones
                3 => Op::Delete(0, keys - i),
                4 => Op::Delete(i % 2 * 7 + i, i + 8), // few overlaps
                _ => {
                    let begin = dice.among(0..keys as usize) as u32;
                    Op::Delete(begin, begin + dice.among(0..keys as usize) as u32)
                }
            }
        })
        .collect()
}

/// Whether `at` exists after these operations: whether it has a put that no later tombstone deletes.
fn is_there(ops: &[Op], at: u32) -> bool {
    for op in ops.iter().rev() {
        match *op {
            Op::Put(n) if n == at => return true,
            Op::Delete(begin, end) if begin <= at && at < end => return false,
            _ => {}
        }
    }
    false
}

/// Range tombstones that overlap in every way, in memtables, logs and tables, with and without a snapshot.
pub fn tombstones(data: &[u8]) {
    let mut dice = Dice::new(data);
    let (fs, options, db) = new_database(&mut dice);
    let ops = ops(&mut dice);
    let (half, flushed) = (dice.among(0..ops.len()), dice.once_in(2));
    let samples: Vec<u32> = (0..24).map(|_| dice.among(0..4 * ops.len()) as u32).collect();
    let write = |ops: &[Op]| {
        for some in ops.chunks(BATCH) {
            let mut batch = WriteBatch::new();
            for op in some {
                match *op {
                    Op::Put(n) => batch.put(key(n), b"value"),
                    Op::Delete(begin, end) => batch.delete_range(key(begin), key(end)),
                }
            }
            db.write(&batch).expect("a write in memory");
        }
    };
    write(&ops[..half]);
    let snapshot = db.snapshot();
    if flushed {
        db.flush().expect("a flush in memory");
    }
    write(&ops[half..]);
    let check = |db: &Db, read: &dyn Fn() -> ReadOptions, ops: &[Op], when: &str| {
        for &n in &samples {
            let got = db.get_opt(key(n), &read()).expect("a sound database");
            assert_eq!(got.is_some(), is_there(ops, n), "key {n} {when}");
        }
        let there: Vec<Vec<u8>> =
            db.iterator_opt(IteratorMode::Start, read()).map(|e| e.expect("a sound database").0.to_vec()).collect();
        let back = db.iterator_opt(IteratorMode::End, read()).map(|e| e.expect("a sound database").0.to_vec());
        assert!(back.eq(there.iter().rev().cloned()), "both directions {when}");
        for &n in &samples {
            assert_eq!(there.binary_search(&key(n)).is_ok(), is_there(ops, n), "key {n} in a scan {when}");
        }
    };
    let at_snapshot = || {
        let mut read = ReadOptions::default();
        read.set_snapshot(&snapshot);
        read
    };
    check(&db, &ReadOptions::default, &ops, "as written");
    check(&db, &at_snapshot, &ops[..half], "as written, at the snapshot");
    if flushed {
        db.flush().expect("a flush in memory");
        check(&db, &ReadOptions::default, &ops, "flushed");
        check(&db, &at_snapshot, &ops[..half], "flushed, at the snapshot");
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction in memory");
        check(&db, &ReadOptions::default, &ops, "compacted");
        check(&db, &at_snapshot, &ops[..half], "compacted, at the snapshot");
    }
    drop(snapshot);
    drop(db);
    let again = |when: &str| {
        let db = Db::open(&options, DIR).expect("a sound database");
        check(&db, &ReadOptions::default, &ops, when);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction in memory");
        check(&db, &ReadOptions::default, &ops, when);
    };
    let _ = Db::open_for_read_only(&options, DIR, false).map(|db| check(&db, &ReadOptions::default, &ops, "to read"));
    again("opened again");
    Db::repair(&options, DIR).expect("a sound database");
    again("repaired");
    drop(fs);
}

/// Keys with many merge operands, in memtables, logs and tables, with snapshots between them.
pub fn operands(data: &[u8]) {
    let mut dice = Dice::new(data);
    let (_fs, options, db) = new_database(&mut dice);
    let n = dice.one_of(&[10, 1_000, 10_000, 50_000]).unwrap_or(10);
    let (keys, flushes) = (dice.one_of(&[1, 2, 30]).unwrap_or(1), dice.among(0..12));
    let (mut expected, mut snapshots) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), Vec::new());
    for begin in (0..n).step_by(BATCH) {
        let mut batch = WriteBatch::new();
        for i in begin..(begin + BATCH).min(n) {
            let key = key((i % keys) as u32);
            batch.merge(&key, format!("{i}"));
            let value = expected.entry(key).or_default();
            if !value.is_empty() {
                value.push(b',');
            }
            value.extend(format!("{i}").bytes());
        }
        db.write(&batch).expect("a write in memory");
        if dice.among(0..n) < flushes * BATCH {
            db.flush().expect("a flush in memory");
        }
        if dice.once_in(8) {
            snapshots.push(db.snapshot());
        }
    }
    let check = |db: &Db, when: &str| {
        for (key, value) in &expected {
            let got = db.get(key).expect("a sound database");
            assert!(got.as_deref() == Some(&value[..]), "{} {when}", key.escape_ascii());
        }
        for mode in [IteratorMode::Start, IteratorMode::End] {
            for entry in db.iterator(mode) {
                let (key, value) = entry.expect("a sound database");
                assert!(expected.get(&key[..]).is_some_and(|v| v[..] == value[..]), "{} {when}", key.escape_ascii());
            }
        }
    };
    check(&db, "as written");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction in memory");
    check(&db, "compacted below snapshots");
    drop(snapshots);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction in memory");
    check(&db, "compacted");
    drop(db);
    check(&Db::open(&options, DIR).expect("a sound database"), "opened again");
}

/// Databases as files in which something small could take much memory or time, for whole directories: overlapping range
/// tombstones in a WAL and in a table, operands of one key, many column families.
pub fn databases() -> &'static [Fixture] {
    static ALL: OnceLock<Vec<Fixture>> = OnceLock::new();
    ALL.get_or_init(|| {
        [("tombstones", false), ("tombstones", true), ("operands", true), ("families", false)].map(make).into()
    })
}

fn make((name, flushed): (&str, bool)) -> Fixture {
    let fs = MemFileSystem::new();
    fs.create_dir(Path::new(DIR), true).expect("a directory in memory");
    let fs = Arc::new(fs);
    let mut options = fixtures::options(&fs);
    options.create_if_missing(true);
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, DIR).expect("a new database in memory");
    // A column family that the commands of the harness name.
    db.create_cf("other", &options).expect("a column family in memory");
    let mut batch = WriteBatch::new();
    batch.put(b"key0001", b"value");
    const NESTED: u32 = 6_000;
    for i in 0..NESTED {
        match name {
            "tombstones" => batch.delete_range(key(i), key(2 * NESTED - i)),
            "operands" => batch.merge(b"key0002", format!("{i}")),
            _ if i < 200 => drop(db.create_cf(format!("family {i}"), &options).expect("a column family in memory")),
            _ => {}
        }
    }
    db.write(&batch).expect("a write in memory");
    if flushed {
        db.flush().expect("a flush in memory");
    }
    let files = fixtures::files_of(&fs.crash_image(CrashMode::KeepAll));
    let name = format!("{name}, {}", if flushed { "in a table" } else { "in a WAL" });
    Fixture { name, files, written: None, case: None }
}
