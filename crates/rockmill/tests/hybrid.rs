//! Values that stay in the log until they are flushed (`fast_path`, `fast_capacity`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rockmill::event_listener::FlushJobInfo;
use rockmill::{
    ColumnFamilyDescriptor, Db, EventListener, IteratorMode, MergeEngine, Options, WriteBatch, WriteOptions, properties,
};
use rockmill_io::ring::CallOrder;
use rockmill_io::{Clock, CrashMode, FileSystem, ManualClock, MemFileSystem, OpKind};

fn options(fs: &MemFileSystem, capacity: u64) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_fast_path("/fast", capacity);
    o.set_max_index_size(16 << 10);
    o.set_data_flush_trigger_size(100 << 10);
    o.set_target_file_size_base(64 << 10);
    o.set_max_bytes_for_level_base(256 << 10);
    o.set_merge_operator_associative("append", |_, old, operands| {
        let mut all = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|o| all.extend_from_slice(o));
        Some(all)
    });
    o
}

/// The logs, oldest first.
fn logs_of(fs: &MemFileSystem) -> Vec<PathBuf> {
    let mut names = fs.list_dir(Path::new("/fast")).expect("a list");
    names.retain(|n| n.ends_with(".log"));
    names.sort();
    names.into_iter().map(|n| Path::new("/fast").join(n)).collect()
}

fn logs(fs: &MemFileSystem) -> u64 {
    // A log deleted since it was listed has no bytes.
    logs_of(fs).iter().map(|log| fs.file_size(log).unwrap_or(0)).sum()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(db: &Db, model: &Model, what: &str) {
    let all: Vec<_> = db.iterator(IteratorMode::Start).map(|e| e.expect("an entry")).collect();
    assert_eq!(all.len(), model.len(), "{what}: forward");
    for ((key, value), (k, v)) in all.iter().zip(model) {
        assert_eq!((&key[..], &value[..]), (&k[..], &v[..]), "{what}");
    }
    let mut back: Vec<_> = db.iterator(IteratorMode::End).map(|e| e.expect("an entry")).collect();
    back.reverse();
    assert_eq!(all, back, "{what}: backward");
    for (k, v) in model {
        assert_eq!(db.get(k).expect("a get").as_ref(), Some(v), "{what}");
    }
}

/// Random operations of all kinds, with values that span blocks of the log, and many flushes.
#[test]
fn what_was_written_is_read_and_recovered() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = MemFileSystem::new();
        let o = options(&fs, 2 << 20);
        let mut db = Db::open(&o, "/db").expect("open");
        let mut model = Model::new();
        for step in 0..3000 {
            let key = format!("key{:04}", rng.u32(0..400)).into_bytes();
            let len = match rng.u32(0..10) {
                0 => rng.usize(20_000..70_000),
                1..4 => rng.usize(0..100),
                _ => rng.usize(100..3000),
            };
            let value = vec![rng.u8(..); len];
            match rng.u32(0..20) {
                0 => {
                    db.delete(&key).expect("a delete");
                    model.remove(&key);
                }
                1 => {
                    let end = format!("key{:04}", rng.u32(0..400)).into_bytes();
                    let (a, b) = if key < end { (key, end) } else { (end, key) };
                    let cf = db.cf_handle("default").expect("a column family");
                    db.delete_range_cf(&cf, &a, &b).expect("a range");
                    model.retain(|k, _| *k < a || *k >= b);
                }
                2..5 => {
                    db.merge(&key, &value).expect("a merge");
                    model.entry(key).or_default().extend_from_slice(&value);
                }
                5..8 => {
                    let mut batch = WriteBatch::new();
                    for i in 0..rng.u32(1..6) {
                        let key = [&key[..], &[b'0' + i as u8]].concat();
                        batch.put(&key, &value);
                        model.insert(key, value.clone());
                    }
                    db.write(&batch).expect("a batch");
                }
                8 => {
                    let mut unlogged = WriteOptions::default();
                    unlogged.disable_wal(true);
                    db.put_opt(&key, &value, &unlogged).expect("a put");
                    model.insert(key, value);
                }
                _ => {
                    db.put(&key, &value).expect("a put");
                    model.insert(key, value);
                }
            }
            if step % 700 == 699 {
                check(&db, &model, &format!("seed {seed}, step {step}"));
            }
            if rng.u32(0..400) == 0 {
                db.flush().expect("a flush");
            }
            if rng.u32(0..500) == 0 {
                drop(db);
                db = Db::open(&o, "/db").expect("open again");
                check(&db, &model, &format!("seed {seed}, step {step}, opened again"));
            }
        }
        check(&db, &model, &format!("seed {seed}"));
        // Needed logs are bounded by the capacity; logs that a flush has just made obsolete may still exist.
        assert!(logs(&fs) <= 4 << 20, "{} bytes of logs", logs(&fs));
    }
}

/// One long log of a database without a fast path fills more than one index table. Its flushed part must not be
/// replayed in addition to its table: a merge operand would count twice.
#[test]
fn operands_count_once_after_a_recovery_a_flush_and_another_recovery() {
    let fs = MemFileSystem::new();
    let mut plain = options(&fs, 0);
    plain.set_fast_path("", 0);
    plain.set_wal_dir("/fast");
    plain.set_write_buffer_size(64 << 20);
    let db = Db::open(&plain, "/db").expect("open");
    for i in 0..6000 {
        db.merge(format!("key{:04}", i % 3000), vec![b'0' + (i / 3000) as u8; 100]).expect("a merge");
    }
    drop(db);
    let fast = options(&fs, 10 << 20);
    let expected = [[b'0'; 100], [b'1'; 100]].concat();
    for round in 0..3 {
        let db = Db::open(&fast, "/db").expect("open with a fast path");
        // The sealed tables are due: they have more memory than one flush takes.
        for i in 0..100 {
            db.put(format!("other{i}"), vec![b'x'; 500]).expect("a put");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for i in 0..3000 {
            assert_eq!(db.get(format!("key{i:04}")).expect("a get"), Some(expected.clone()), "round {round}, {i}");
        }
    }
}

/// The memory is bounded even without a log that bounds it.
#[test]
fn unlogged_writes_wait_for_memory() {
    let fs = MemFileSystem::new();
    let o = options(&fs, 1 << 30);
    let db = Db::open(&o, "/db").expect("open");
    let mut unlogged = WriteOptions::default();
    unlogged.disable_wal(true);
    let mut most = 0;
    for i in 0..5000 {
        db.put_opt(format!("key{i:05}"), vec![b'v'; 2000], &unlogged).expect("a put");
        let now = db.property_int_value("rocksdb.cur-size-all-mem-tables").expect("a property");
        most = most.max(now.unwrap_or(0));
    }
    // Eight flushes of 100 KiB or of the smallest memtable's size, and the active memtable.
    assert!(most < 9 << 20, "{most} bytes of memtables");
    assert_eq!(db.get("key00000").expect("a get"), Some(vec![b'v'; 2000]));
}

/// Merged tables that contain only range tombstones have almost no other memory: the tombstones must count for the
/// flush trigger, or writers would stop for memory with no flush due.
#[test]
fn range_deletions_alone_are_flushed_before_writers_stop() {
    let fs = MemFileSystem::new();
    let db = Db::open(&options(&fs, 1 << 30), "/db").expect("open");
    let cf = db.cf_handle("default").expect("a column family");
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..40_000 {
                db.delete_range_cf(&cf, format!("key{i:06}"), format!("key{i:06}x")).expect("a range");
            }
            done.send(()).expect("somebody waits");
        });
        let in_time = waits.recv_timeout(std::time::Duration::from_secs(120));
        if in_time.is_err() {
            db.cancel_all_background_work(false); // the writer gets an error, and the test ends
        }
        in_time.expect("writers wait for ever");
    });
    assert!(db.get("key000007").expect("a get").is_none());
}

/// The logs that a snapshot, an iterator and a pinned view read may be deleted meanwhile.
#[test]
fn readers_keep_what_they_read() {
    let fs = MemFileSystem::new();
    let o = options(&fs, 1 << 20);
    let db = Db::open(&o, "/db").expect("open");
    for i in 0..200 {
        db.put(format!("key{i:04}"), vec![b'a'; 1000]).expect("a put");
    }
    let snapshot = db.snapshot();
    let mut iter = db.raw_iterator();
    iter.seek_to_first();
    for round in 0..20u8 {
        for i in 0..200 {
            db.put(format!("key{i:04}"), vec![b'b' + round; 1000]).expect("a put");
        }
    }
    db.flush().expect("a flush");
    let mut n = 0;
    while iter.valid() {
        assert_eq!(iter.value(), Some(&[b'a'; 1000][..]));
        n += 1;
        iter.next();
    }
    iter.status().expect("a sound iterator");
    assert_eq!(n, 200);
    assert_eq!(snapshot.get("key0007").expect("a get"), Some(vec![b'a'; 1000]));
    assert_eq!(db.get("key0007").expect("a get"), Some(vec![b'b' + 19; 1000]));
}

/// Without the option, the same directory is an ordinary database whose WALs are elsewhere.
#[test]
fn it_can_be_turned_on_and_off() {
    let fs = MemFileSystem::new();
    let fast = options(&fs, 10 << 20);
    let mut plain = options(&fs, 0);
    plain.set_fast_path("", 0);
    let mut with_logs = plain.clone();
    with_logs.set_wal_dir("/fast");
    let check = |db: &Db, upto: u32| {
        for i in 0..upto {
            assert_eq!(db.get(format!("key{i:05}")).expect("a get"), Some(vec![b'v'; 500]), "{i}");
        }
    };
    let fill = |db: &Db, from: u32| {
        for i in from..from + 1000 {
            db.put(format!("key{i:05}"), vec![b'v'; 500]).expect("a put");
        }
    };
    let db = Db::open(&plain, "/db").expect("open");
    fill(&db, 0);
    drop(db);
    // Nothing was flushed: its WALs are in its own directory.
    let db = Db::open(&fast, "/db").expect("open with a fast path");
    check(&db, 1000);
    fill(&db, 1000);
    check(&db, 2000);
    drop(db);
    let db = Db::open(&with_logs, "/db").expect("open as an ordinary database");
    check(&db, 2000);
    fill(&db, 2000);
    drop(db);
    let db = Db::open(&fast, "/db").expect("open with a fast path again");
    check(&db, 3000);
    fill(&db, 3000);
    drop(db);
    check(&Db::open_for_read_only(&plain, "/db", false).expect("read without it"), 4000);
    assert!(!logs_of(&fs).is_empty());
    check(&Db::open(&plain, "/db").expect("open without it"), 4000);
    assert_eq!(logs_of(&fs), [""; 0].map(PathBuf::from));
    for round in 0..3 {
        let db = Db::open(&fast, "/db").expect("open with a fast path");
        check(&db, 4000);
        db.put("last", round.to_string()).expect("a put");
        db.flush().expect("a flush");
        if round == 1 {
            // This log names the one before it, and has nothing else.
            db.flush_wal(true).expect("a sync");
        }
        drop(db);
        assert!(!logs_of(&fs).is_empty(), "the last log stays");
        let db = Db::open_for_read_only(&plain, "/db", false).expect("read without it");
        check(&db, 4000);
        drop(db);
        // A secondary may miss what the other process writes there next.
        let mut follows = plain.clone();
        follows.set_max_open_files(-1);
        let second = |at: &str| Db::open_as_secondary(&follows, "/db", at).map(drop);
        assert!(second("/second").is_err_and(|e| e.to_string().contains("/fast")));
        let db = Db::open(&plain, "/db").expect("open without it");
        check(&db, 4000);
        assert_eq!(db.get("last").expect("a get"), Some(round.to_string().into_bytes()));
        second("/second").expect("its logs are at home now");
        db.put("home", "1").expect("a put");
        drop(db);
        let db = Db::open(&fast, "/db").expect("open with it again");
        assert_eq!(db.get("home").expect("a get"), Some(b"1".to_vec()));
        drop(db);
        drop(Db::open(&plain, "/db").expect("open without it again"));
        if round == 2 {
            // What is left there is nobody's.
            for name in fs.list_dir(Path::new("/fast")).expect("a list") {
                fs.remove(&Path::new("/fast").join(name)).expect("a removal");
            }
        }
    }
    drop(Db::open(&plain, "/db").expect("open without the directory"));
    let db = Db::open(&fast, "/db").expect("with it once more");
    check(&db, 4000);
}

/// A log with a damaged end may have contained data.
#[test]
fn it_is_not_turned_off_while_a_log_is_damaged() {
    let fs = MemFileSystem::new();
    let mut plain = options(&fs, 0);
    plain.set_fast_path("", 0);
    let db = Db::open(&options(&fs, 10 << 20), "/db").expect("open");
    db.put("k", "v").expect("a put");
    db.flush().expect("a flush");
    drop(db);
    let log = logs_of(&fs).pop().expect("a log");
    fs.write_all(&log, b"torn").expect("a file");
    assert!(Db::open(&plain, "/db").is_err_and(|e| e.to_string().contains("/fast")));
    fs.write_all(&log, b"").expect("a file");
    drop(Db::open(&plain, "/db").expect("open"));
}

#[test]
fn it_is_not_turned_off_while_a_needed_log_is_missing() {
    let fs = MemFileSystem::new();
    let fast = options(&fs, 10 << 20);
    let mut plain = options(&fs, 0);
    plain.set_fast_path("", 0);
    let db = Db::open(&fast, "/db").expect("open");
    db.put("k", "v").expect("a put");
    drop(db);
    // A copy has its original's marker; after the original's flush, no log has an update.
    let copy = Path::new("/copy");
    fs.create_dir(copy, false).expect("a directory");
    for name in fs.list_dir(Path::new("/db")).expect("a list") {
        let bytes = fs.read_small(&Path::new("/db").join(&name), 1 << 20).expect("a file");
        fs.write_all(&copy.join(&name), &bytes).expect("a file");
    }
    let db = Db::open(&fast, "/db").expect("open");
    db.flush().expect("a flush");
    drop(db);
    assert!(Db::open(&plain, copy).is_err_and(|e| e.to_string().contains("/fast")), "a copy opens without its logs");
    let db = Db::open(&fast, "/db").expect("open");
    db.put("k", "w").expect("a put");
    drop(db);
    for log in logs_of(&fs) {
        fs.remove(&log).expect("removed");
    }
    assert!(Db::open(&plain, "/db").is_err_and(|e| e.to_string().contains("/fast")), "it opens without its logs");
}

/// Several column families share logs; a log that only one of them needs must stay.
#[test]
fn column_families_share_logs() {
    let fs = MemFileSystem::new();
    let o = options(&fs, 1 << 20);
    let families = ["default", "busy", "idle"];
    let open = || {
        let cfs = families.map(|name| ColumnFamilyDescriptor::new(name, o.clone()));
        Db::open_cf_descriptors(&o, "/db", cfs).expect("open")
    };
    let db = open();
    let cf = |name| db.cf_handle(name).expect("a column family");
    db.put_cf(&cf("idle"), "k", vec![b'i'; 5000]).expect("a put");
    for i in 0..4000 {
        db.put_cf(&cf("busy"), format!("key{i:05}"), vec![b'b'; 1000]).expect("a put");
    }
    assert_eq!(db.get_cf(&cf("idle"), "k").expect("a get"), Some(vec![b'i'; 5000]));
    assert!(logs(&fs) < 2 << 20, "{} bytes of logs are held back", logs(&fs));
    drop(db);
    let db = open();
    let cf = |name| db.cf_handle(name).expect("a column family");
    assert_eq!(db.get_cf(&cf("idle"), "k").expect("a get"), Some(vec![b'i'; 5000]));
    for i in 0..4000 {
        let value = db.get_cf(&cf("busy"), format!("key{i:05}")).expect("a get");
        assert_eq!(value, Some(vec![b'b'; 1000]), "{i}");
    }
}

/// A log that loses bytes while the database is open gives an error, and no wrong value.
#[test]
fn damage_in_a_log_is_an_error() {
    let fs = MemFileSystem::new();
    let o = options(&fs, 10 << 20);
    let db = Db::open(&o, "/db").expect("open");
    db.put("key", vec![b'v'; 500]).expect("a put");
    let log = fs.list_dir(Path::new("/fast")).expect("a list").into_iter().find(|n| n.ends_with(".log"));
    let log = Path::new("/fast").join(log.expect("a log"));
    let end = fs.file_size(&log).expect("a size");
    fs.flip_stored_bit(&log, (end - 10) * 8).expect("damage");
    let e = db.get("key").expect_err("a damaged value");
    assert!(e.to_string().contains(".log"), "{e}");
    let mut iter = db.raw_iterator();
    iter.seek_to_first();
    assert!(!iter.valid() && iter.status().is_err());
    assert!(db.flush().is_err());
    assert!(db.put("other", "x").is_err(), "writes go on after a failed flush");
}

/// The numbers of a line of `rocksdb.stats`.
fn numbers(db: &Db, line: &str) -> Vec<u64> {
    let stats = db.property_value("rocksdb.stats").expect("a property").expect("stats");
    let line = stats.lines().find_map(|l| l.strip_prefix(line)).expect("a line");
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// A flush reads values through a ring whose reads complete in any order, or with plain calls, and with every engine;
/// its table is written through the ring or not.
#[test]
fn flushes_read_values_with_every_engine() {
    let rings = [Some(CallOrder::Oldest), Some(CallOrder::Newest), Some(CallOrder::Random(3)), None];
    for (case, order) in rings.into_iter().enumerate() {
        for (engine, direct) in [(MergeEngine::Auto, true), (MergeEngine::Kernel, false), (MergeEngine::Pread, false)] {
            let fs = MemFileSystem::new();
            match order {
                Some(order) => fs.set_batch_order(order),
                None => fs.refuse_rings(Some("there is none")),
            }
            let mut o = unflushed(&fs);
            o.set_index_merge_trigger_num(if case % 2 == 0 { 2 } else { 0 });
            o.set_merge_engine(engine);
            o.set_use_direct_io_for_flush_and_compaction(direct);
            let db = Db::open(&o, "/db").expect("open");
            let (mut rng, mut model) = (fastrand::Rng::with_seed(case as u64), Model::new());
            for i in 0..6000_u32 {
                let len = if i % 500 == 7 { rng.usize(60_000..200_000) } else { rng.usize(0..1500) };
                let (key, value) = (rng.u32(..).to_be_bytes().to_vec(), vec![rng.u8(..); len]);
                db.put(&key, &value).expect("a put");
                model.insert(key, value);
            }
            let what = format!("{order:?}, {engine}");
            let resting = db.memory_parts().io;
            db.flush().expect("a flush");
            let read = numbers(&db, "Flushes read from logs: ");
            let in_logs = model.values().filter(|v| v.len() > 64).count() as u64;
            assert!(read[0] >= in_logs && read[1] > 20, "{what}: {read:?}, {in_logs} values");
            let parts = db.engine_parts();
            let by_ring = order.is_some() && engine != MergeEngine::Pread;
            assert_eq!((parts.flushes_uring > 0, parts.flushes_pread > 0), (by_ring, !by_ring), "{what}: {parts:?}");
            // A ring is kept for the next job; windows and the memory of plain calls are freed.
            let kept = db.memory_parts().io - resting;
            assert!(kept <= if by_ring { 20 << 20 } else { 0 }, "{what}: {kept} bytes are counted after the flush");
            check(&db, &model, &what);
        }
    }
}

/// Many lookups read their values together, whether a key has a value, operands, or a base in a log or in a table.
#[test]
fn multi_get_reads_values_of_logs_together() {
    for order in [Some(CallOrder::Newest), Some(CallOrder::Random(5)), None] {
        let fs = MemFileSystem::new();
        match order {
            Some(order) => fs.set_batch_order(order),
            None => fs.refuse_rings(Some("there is none")),
        }
        let db = Db::open(&unflushed(&fs), "/db").expect("open");
        let (mut rng, mut model) = (fastrand::Rng::with_seed(8), Model::new());
        for step in 0..6000 {
            let key = format!("key{:04}", rng.u32(0..700)).into_bytes();
            let value = vec![rng.u8(..); rng.usize(0..700) * rng.usize(1..20)];
            match rng.u32(0..8) {
                0 => {
                    db.delete(&key).expect("a delete");
                    model.remove(&key);
                }
                1..4 => {
                    db.merge(&key, &value).expect("a merge");
                    model.entry(key).or_default().extend_from_slice(&value);
                }
                _ => {
                    db.put(&key, &value).expect("a put");
                    model.insert(key, value);
                }
            }
            if step == 2000 {
                db.flush().expect("a flush");
            }
        }
        let mut keys: Vec<Vec<u8>> = (0..700).map(|i| format!("key{i:04}").into_bytes()).collect();
        rng.shuffle(&mut keys);
        let many = db.multi_get(&keys);
        for (key, value) in keys.iter().zip(many) {
            assert_eq!(value.expect("a get").as_ref(), model.get(key), "{order:?}");
        }
        // A damaged value is an error of its key only.
        let (key, value) = (b"key damaged", vec![b'#'; 3000]);
        db.put(key, &value).expect("a put");
        let names = fs.list_dir(Path::new("/fast")).expect("a list");
        let log = names.into_iter().filter(|n| n.ends_with(".log")).max().expect("a log");
        let log = Path::new("/fast").join(log);
        let end = fs.file_size(&log).expect("a size");
        fs.flip_stored_bit(&log, (end - 10) * 8).expect("damage");
        keys.insert(300, key.to_vec());
        for (key, value) in keys.iter().zip(db.multi_get(&keys)) {
            match &key[..] == b"key damaged" {
                true => assert!(value.expect_err("damage").to_string().contains(".log")),
                false => assert_eq!(value.expect("a get").as_ref(), model.get(key), "{order:?}"),
            }
        }
    }
}

/// Values written in key order are in key order in the logs, so they are read in large pieces.
#[test]
fn neighbours_in_a_log_are_read_together() {
    let fs = MemFileSystem::new();
    let db = Db::open(&unflushed(&fs), "/db").expect("open");
    for i in 0..5000 {
        db.put(format!("key{i:05}"), vec![b'v'; 1000]).expect("a put");
    }
    let before = fs.calls_of(OpKind::ReadAt);
    db.flush().expect("a flush");
    let read = numbers(&db, "Flushes read from logs: ");
    assert!(read[0] == 5000 && read[1] < 300, "{read:?}");
    assert!(fs.calls_of(OpKind::ReadAt) - before < 400, "values are read by themselves");
}

/// Whichever read of a flush fails: the error names the log, no table is written, and nothing is lost.
#[test]
fn a_failed_read_of_a_flush_names_the_log() {
    for (engine, nth) in [(MergeEngine::Auto, 0), (MergeEngine::Auto, 10), (MergeEngine::Pread, 10)] {
        let fs = MemFileSystem::new();
        let mut o = unflushed(&fs);
        o.set_merge_engine(engine);
        let db = Db::open(&o, "/db").expect("open");
        let (mut rng, mut model) = (fastrand::Rng::with_seed(nth), Model::new());
        for _ in 0..3000 {
            let (key, value) = (rng.u32(..).to_be_bytes().to_vec(), vec![rng.u8(..); 500]);
            db.put(&key, &value).expect("a put");
            model.insert(key, value);
        }
        let mut left = nth;
        fs.set_fault(Box::new(move |op| {
            let hit = op.kind == OpKind::ReadAt && op.path.extension().is_some_and(|e| e == "log");
            let due = hit && left == 0;
            left = left.saturating_sub(u64::from(hit));
            due.then(|| std::io::Error::from_raw_os_error(5))
        }));
        let e = db.flush().expect_err("a read failed").to_string();
        assert!(e.contains("/fast/") && e.contains(".log") && e.contains("read"), "{engine}, {nth}: {e}");
        assert!(db.put("other", "x").is_err(), "writes go on after a failed flush");
        fs.clear_fault();
        check(&db, &model, "after a failed flush");
        drop(db);
        check(&Db::open(&o, "/db").expect("open again"), &model, "opened again");
    }
}

/// The figures of index merges in `rocksdb.stats`: merged tables, and dropped entries.
fn merges(db: &Db) -> (u64, u64) {
    let numbers = numbers(db, "Index merges: ");
    (numbers[0], numbers[2])
}

fn number(db: &Db, property: &str) -> u64 {
    let text = db.property_value(property).expect("a property").expect("a value");
    text.parse().expect("a number")
}

/// Waits, for a minute at most.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed().as_secs() < 60, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Options with which many index tables wait for a flush that does not come.
fn unflushed(fs: &MemFileSystem) -> Options {
    let mut o = options(fs, 1 << 30);
    o.set_data_flush_trigger_size(1 << 30);
    o
}

/// Full index tables are merged into few while earlier readers, iterators and snapshots continue, and what these see is
/// kept. Nothing is lost when the database is reopened or flushed.
#[test]
fn index_tables_are_merged_under_readers() {
    for seed in 0..3 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = MemFileSystem::new();
        let mut o = unflushed(&fs);
        o.set_memtable_prefix_bloom_ratio(if seed == 1 { 0.1 } else { 0.0 });
        o.set_memtable_whole_key_filtering(seed == 1);
        let mut db = Db::open(&o, "/db").expect("open");
        let mut model = Model::new();
        let mut once = Vec::new();
        for round in 0..2 {
            let mut snapshots = Vec::new();
            for step in 0..12_000 {
                let key = format!("key{:04}", rng.u32(0..900)).into_bytes();
                let value = vec![rng.u8(..); rng.usize(0..300)];
                match rng.u32(0..40) {
                    0..4 => {
                        db.delete(&key).expect("a delete");
                        model.remove(&key);
                    }
                    4..8 => {
                        db.merge(&key, &value).expect("a merge");
                        model.entry(key).or_default().extend_from_slice(&value);
                    }
                    8 if step % 10 == 0 => {
                        let end = [&key[..], b"~"].concat();
                        let cf = db.cf_handle("default").expect("a column family");
                        db.delete_range_cf(&cf, &key, &end).expect("a range");
                        model.retain(|k, _| *k < key || *k >= end);
                    }
                    9 => {
                        let key = format!("once{round}{step:05}").into_bytes();
                        db.put(&key, &value).expect("a put");
                        model.insert(key.clone(), value);
                        once.push(key);
                    }
                    10 if !once.is_empty() => {
                        let key = once.swap_remove(rng.usize(..once.len()));
                        db.single_delete(&key).expect("a single deletion");
                        model.remove(&key);
                    }
                    _ => {
                        db.put(&key, &value).expect("a put");
                        model.insert(key, value);
                    }
                }
                if step % 3000 == 1000 {
                    let mut iter = db.raw_iterator();
                    iter.seek_to_first();
                    snapshots.push((db.snapshot(), iter, model.clone()));
                }
            }
            // One of each tier may remain; more if merges did not keep up within the last minute.
            wait_until("there are few tables", || {
                let of_a_tier = number(&db, "rockmill.index-merge-trigger") - 1;
                number(&db, "rocksdb.num-immutable-mem-table") <= 8 * of_a_tier
            });
            let what = format!("seed {seed}, round {round}");
            let (tables, left_out) = merges(&db);
            assert!(tables > 10 && left_out > 100, "{what}: {tables} tables, {left_out} entries");
            assert_eq!(number(&db, "rocksdb.num-files-at-level0"), 0, "{what}: nothing was flushed");
            check(&db, &model, &what);
            for (snapshot, iter, then) in &mut snapshots {
                for (k, v) in then.iter() {
                    assert_eq!(snapshot.get(k).expect("a get").as_ref(), Some(v), "{what}");
                }
                let mut of_then = then.iter();
                while iter.valid() {
                    assert_eq!(iter.item(), of_then.next().map(|(k, v)| (&k[..], &v[..])), "{what}: an iterator");
                    iter.next();
                }
                iter.status().expect("a sound iterator");
                assert_eq!(of_then.next(), None, "{what}");
            }
            drop(snapshots);
            if round == 0 {
                drop(db);
                db = Db::open(&o, "/db").expect("open again");
                check(&db, &model, &format!("{what}, opened again"));
            }
        }
        db.flush().expect("a flush");
        check(&db, &model, "flushed");
        assert_eq!(number(&db, "rocksdb.num-immutable-mem-table"), 0);
        // The thread that flushed releases them last.
        wait_until("nobody holds what is flushed", || {
            number(&db, "rocksdb.cur-size-all-mem-tables") == number(&db, "rocksdb.size-all-mem-tables")
        });
        drop(db);
        check(&Db::open(&o, "/db").expect("open again"), &model, "opened again");
    }
}

/// Flushes of several column families happen while index tables are merged and threads read their own writes.
#[test]
fn flushes_and_index_merges_take_turns() {
    let fs = MemFileSystem::new();
    let mut o = options(&fs, 4 << 20);
    o.set_max_background_jobs(8);
    o.set_data_flush_trigger_size(300 << 10);
    let families = ["default", "other"];
    let open = || {
        let cfs = families.map(|name| ColumnFamilyDescriptor::new(name, o.clone()));
        Db::open_cf_descriptors(&o, "/db", cfs).expect("open")
    };
    let db = open();
    let value = |i: u32, round: u32| format!("{i:08}-{round}-").repeat(20).into_bytes();
    std::thread::scope(|s| {
        for (name, keys) in families.into_iter().zip([0..700_u32, 0..2000]) {
            let (db, value) = (&db, &value);
            s.spawn(move || {
                let cf = db.cf_handle(name).expect("a column family");
                for round in 0..10 {
                    for i in keys.clone() {
                        db.put_cf(&cf, format!("key{i:05}"), value(i, round)).expect("a put");
                        let back = i / 2;
                        let seen = db.get_cf(&cf, format!("key{back:05}")).expect("a get");
                        assert_eq!(seen, Some(value(back, round)), "{name}, round {round}");
                    }
                    if round % 3 == 2 {
                        db.flush_cf(&cf).expect("a flush");
                    }
                }
            });
        }
    });
    let (tables, _) = merges(&db);
    assert!(tables > 0, "no index tables were merged");
    let check = |db: &Db| {
        for (name, keys) in families.into_iter().zip([0..700_u32, 0..2000]) {
            let cf = db.cf_handle(name).expect("a column family");
            for i in keys {
                let seen = db.get_cf(&cf, format!("key{i:05}")).expect("a get");
                assert_eq!(seen, Some(value(i, 9)), "{name}");
            }
        }
    };
    check(&db);
    drop(db);
    check(&open());
}

/// 0 merges none.
#[test]
fn index_merges_can_be_turned_off() {
    let fs = MemFileSystem::new();
    let mut o = unflushed(&fs);
    o.set_index_merge_trigger_num(0);
    let db = Db::open(&o, "/db").expect("open");
    for i in 0..3000 {
        db.put(format!("key{i:05}"), vec![b'v'; 100]).expect("a put");
    }
    assert!(number(&db, "rocksdb.num-immutable-mem-table") > 5);
    assert_eq!(merges(&db), (0, 0));
}

/// Changes of the merge and flush triggers appear in properties, statistics and the info log, with their reason; and
/// time alone can change them.
#[test]
fn changes_of_the_schedule_are_told_with_their_reason() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let mut o = options(&fs, 1 << 30);
    o.set_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let db = Db::open(&o, "/db").expect("open");
    let all = |db: &Db| {
        let names = [properties::INDEX_MERGE_TRIGGER, properties::DATA_FLUSH_TRIGGER_SIZE];
        let more = [properties::LEVEL_CAPACITY_FACTOR, properties::INDEX_SCHEDULE_CHANGES];
        (names.map(|name| number(db, name)), more.map(|name| number(db, name)))
    };
    assert_eq!(all(&db), ([2, 100 << 10], [1, 0]));
    let queues = [properties::INDEX_MERGE_QUEUE, properties::DATA_FLUSH_QUEUE_SIZE];
    assert_eq!(queues.map(|name| number(&db, name)), [0, 0]);
    let line = || {
        let stats = db.property_value("rocksdb.stats").expect("a property").expect("stats");
        stats.lines().find(|l| l.starts_with("Index tables: ")).expect("a line").to_owned()
    };
    assert!(line().ends_with("changed 0 times (core 0, device 0, idle 0), last since the beginning"), "{}", line());
    db.put("key", vec![b'v'; 100]).expect("a put");
    clock.advance(std::time::Duration::from_secs(61));
    wait_until("nothing is short", || number(&db, properties::INDEX_SCHEDULE_CHANGES) > 0);
    assert_eq!(all(&db), ([2, 50 << 10], [1, 1]), "half of it is flushed together");
    let reasons = [
        properties::INDEX_SCHEDULE_CHANGES_CORE,
        properties::INDEX_SCHEDULE_CHANGES_DEVICE,
        properties::INDEX_SCHEDULE_CHANGES_IDLE,
    ];
    assert_eq!(reasons.map(|name| number(&db, name)), [0, 0, 1]);
    let idle = "changed 1 times (core 0, device 0, idle 1), last since both index merges and flushes keep up";
    assert!(line().ends_with(idle), "{}", line());
    assert_eq!(db.counters().index_schedule_changes, 1);
    drop(db);
    let log = String::from_utf8(fs.read_to_vec("/db/LOG".as_ref()).expect("the info log")).expect("text");
    let told = "[default] both index merges and flushes keep up: index tables are merged when 2 are full, and flushed \
                with 51200 bytes of memory; levels may hold 1 times what the options say";
    assert!(log.contains(told), "{log}");

    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs));
    assert_eq!(all(&Db::open(&o, "/without").expect("open without")), ([0, 0], [0, 0]));
}

/// A flush begins when the lock is free.
struct HeldFlush(Arc<Mutex<()>>);

impl EventListener for HeldFlush {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        drop(self.0.lock());
    }
}

/// While the device is short, levels may hold more; afterwards, no more than the options say. The excess is then
/// compacted even without writes.
#[test]
fn levels_hold_more_while_flushes_do_not_keep_up() {
    const BASE: u64 = 16 << 10;
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let flush = Arc::new(Mutex::new(()));
    let mut o = options(&fs, 1 << 20);
    o.add_event_listener(HeldFlush(Arc::clone(&flush)));
    o.set_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    o.set_index_merge_trigger_num(0);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_max_bytes_for_level_base(BASE);
    o.set_target_file_size_base(4 << 10);
    o.set_compression_type(rockmill::CompressionType::None);
    let db = Db::open(&o, "/db").expect("open");
    let (factor, default) = (|| number(&db, properties::LEVEL_CAPACITY_FACTOR), db.cf_handle("default").expect("it"));
    let level = |n: usize| db.level_stats(&default).swap_remove(n);
    assert_eq!((factor(), level(1).target_bytes), (1, Some(BASE)));

    let held = flush.lock().expect("the lock");
    for i in 0..800 {
        // Most of it is overwritten, so that the flushed data fits into L1 at its current size.
        db.put(format!("key{:05}", i % 40), vec![i as u8; 1000]).expect("a put");
    }
    for times in [2, 4] {
        clock.advance(std::time::Duration::from_secs(2));
        wait_until("the logs are full", || factor() >= times);
    }
    drop(held);
    db.flush().expect("a flush");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
    db.wait_for_background_work().expect("all is done");
    assert_eq!((factor(), level(1).target_bytes), (4, Some(4 * BASE)));
    let bytes = level(1).bytes;
    assert!((2 * BASE..4 * BASE).contains(&bytes), "L1 has {bytes} bytes");

    for times in [2, 1] {
        clock.advance(std::time::Duration::from_secs(61));
        wait_until("nothing is short", || factor() <= times);
    }
    wait_until("L1 has what the options say", || level(1).bytes <= BASE && level(2).bytes > 0);
    assert_eq!(level(1).target_bytes, Some(BASE));
}

/// The logs have data that is in no table: without their device the database does not open, and creates nothing there.
#[test]
fn a_missing_fast_device_is_an_error() {
    let fs = MemFileSystem::new();
    let db = Db::open(&options(&fs, 10 << 20), "/db").expect("open");
    (0..100).for_each(|i| db.put(format!("key{i:05}"), vec![b'v'; 500]).expect("a put"));
    drop(db);
    let whole = fs.crash_image(CrashMode::KeepAll);
    let fast = Path::new("/fast");
    for lost in ["the directory", "all files"] {
        let fs = whole.crash_image(CrashMode::KeepAll);
        for name in fs.list_dir(fast).expect("a list") {
            fs.remove(&fast.join(name)).expect("a removal");
        }
        if lost == "the directory" {
            fs.remove_dir(fast).expect("a removal");
        }
        let o = options(&fs, 10 << 20);
        let second = Path::new("/second");
        for refused in [
            Db::open(&o, "/db"),
            Db::open_for_read_only(&o, "/db", false),
            Db::open_as_secondary(&o, Path::new("/db"), second),
        ] {
            let e = refused.err().unwrap_or_else(|| panic!("{lost}: opened"));
            assert!(e.to_string().contains("/fast") && e.to_string().contains("/db/WAL_OWNER"), "{lost}: {e}");
        }
        assert_eq!(fs.list_dir(fast).unwrap_or_default(), [""; 0], "{lost}");
        // The device is there again.
        fs.create_dir(fast, true).expect("a directory");
        for name in whole.list_dir(fast).expect("a list") {
            let contents = whole.read_to_vec(&fast.join(&name)).expect("a read");
            fs.write_all(&fast.join(&name), &contents).expect("a write");
        }
        let db = Db::open(&o, "/db").unwrap_or_else(|e| panic!("{lost}: {e}"));
        (0..100).for_each(|i| assert!(db.get(format!("key{i:05}")).expect("a get").is_some(), "{lost}: {i}"));
    }
}
