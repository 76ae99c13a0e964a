//! Many threads on one database: write groups with parallel inserts, readers that must see complete batches and never
//! older values, iterators over one state, and meanwhile flushes, compactions, and new and dropped column families.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rockmill::statistics::Ticker;
use rockmill::{Db, IteratorMode, Options, ReadOptions, WriteBatch, WriteOptions};

fn small_options() -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_write_buffer_size(128 << 10);
    o.set_target_file_size_base(64 << 10);
    o.set_max_bytes_for_level_base(256 << 10);
    o.set_max_background_jobs(3);
    o.set_max_subcompactions(2);
    o
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

#[test]
fn batches_are_seen_whole_and_values_never_go_back() {
    const WRITERS: usize = 4;
    const PAIRS: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&small_options(), dir.path()).unwrap();
    let other = db.create_cf("other", &small_options()).unwrap();
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let key = |w: usize, i: usize| format!("w{w}/{i:03}");
    thread::scope(|s| {
        for w in 0..WRITERS {
            let (db, other, stop, written) = (&db, &other, &stop, &written);
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(w as u64);
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let i = rng.usize(0..PAIRS);
                    // The same number in both column families, or nothing.
                    let mut b = WriteBatch::new();
                    b.put(key(w, i), n.to_be_bytes());
                    b.put_cf(other, key(w, i), n.to_be_bytes());
                    b.put(format!("pad/{w}/{}", rng.u32(..)), vec![b'x'; rng.usize(0..400)]);
                    let mut o = WriteOptions::default();
                    o.set_sync(n.is_multiple_of(500));
                    db.write_opt(&b, &o).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for r in 0..2 {
            let (db, other, stop) = (&db, &other, &stop);
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(100 + r);
                let mut last = vec![0u64; WRITERS * PAIRS];
                while !stop.load(Ordering::Relaxed) {
                    let (w, i) = (rng.usize(0..WRITERS), rng.usize(0..PAIRS));
                    let snapshot = db.snapshot();
                    let a = snapshot.get(key(w, i)).unwrap();
                    let b = snapshot.get_cf(other, key(w, i)).unwrap();
                    assert_eq!(a, b, "half a batch is visible at {}", snapshot.sequence_number());
                    if let Some(v) = db.get(key(w, i)).unwrap() {
                        let (v, seen) = (number(&v), &mut last[w * PAIRS + i]);
                        assert!(v >= *seen, "a value went back from {seen} to {v}");
                        *seen = v;
                    }
                }
            });
        }
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                db.flush().unwrap();
                db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
                let name = "passing";
                let cf = db.create_cf(name, &small_options()).unwrap();
                db.put_cf(&cf, "k", "v").unwrap();
                assert_eq!(db.get_cf(&cf, "k").unwrap().as_deref(), Some(&b"v"[..]));
                db.drop_cf(name).unwrap();
                assert!(db.put_cf(&cf, "k", "v").is_err());
            }
        });
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(4) || written.load(Ordering::Relaxed) < 2000 {
            thread::sleep(Duration::from_millis(20));
            assert!(begin.elapsed() < Duration::from_secs(120), "the writers are stuck");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.background_error(), None);
}

#[test]
fn an_iterator_sees_one_moment_of_a_bank() {
    const ACCOUNTS: u64 = 200;
    const EACH: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&small_options(), dir.path()).unwrap();
    for a in 0..ACCOUNTS {
        db.put(format!("{a:04}"), EACH.to_be_bytes()).unwrap();
    }
    let stop = AtomicBool::new(false);
    let teller = Mutex::new(());
    let sums = AtomicU64::new(0);
    thread::scope(|s| {
        for t in 0..3 {
            let (db, stop, teller) = (&db, &stop, &teller);
            s.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(t);
                while !stop.load(Ordering::Relaxed) {
                    let (from, to) = (rng.u64(0..ACCOUNTS), rng.u64(0..ACCOUNTS));
                    if from == to {
                        continue;
                    }
                    let (from, to) = (format!("{from:04}"), format!("{to:04}"));
                    let _one = teller.lock().unwrap();
                    let (a, b) = (number(&db.get(&from).unwrap().unwrap()), number(&db.get(&to).unwrap().unwrap()));
                    let amount = rng.u64(0..=a);
                    let mut batch = WriteBatch::new();
                    // Deleting first leaves tombstones for compactions to carry.
                    batch.delete(&from);
                    batch.put(&from, (a - amount).to_be_bytes());
                    batch.put(&to, (b + amount).to_be_bytes());
                    db.write(&batch).unwrap();
                }
            });
        }
        for r in 0..2 {
            let (db, stop, sums) = (&db, &stop, &sums);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mode = if r == 0 { IteratorMode::Start } else { IteratorMode::End };
                    let mut o = ReadOptions::default();
                    o.set_iterate_upper_bound("9999");
                    let values: Vec<u64> = db.iterator_opt(mode, o).map(|kv| number(&kv.unwrap().1)).collect();
                    assert_eq!(values.len() as u64, ACCOUNTS);
                    assert_eq!(values.iter().sum::<u64>(), ACCOUNTS * EACH);
                    sums.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                db.flush().unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) || sums.load(Ordering::Relaxed) < 20 {
            thread::sleep(Duration::from_millis(20));
            assert!(begin.elapsed() < Duration::from_secs(120), "the readers are stuck");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn without_automatic_compactions_l0_files_stop_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mut o = small_options();
    o.set_disable_auto_compactions(true);
    o.set_level_zero_stop_writes_trigger(4);
    let db = Db::open(&o, dir.path()).unwrap();
    let mut w = WriteOptions::default();
    w.set_no_slowdown(true);
    for i in 0..8u32 {
        db.put_opt(i.to_be_bytes(), [0u8; 100], &w).unwrap();
        db.flush().unwrap();
    }
    assert_eq!(db.level_stats(&db.default_cf())[0].files, 8);
    assert_eq!(db.property_int_value("rocksdb.is-write-stopped").unwrap(), Some(0));
}

#[test]
fn a_writer_that_may_not_wait_is_told_of_a_stall() {
    let dir = tempfile::tempdir().unwrap();
    let mut o = small_options();
    // Two L0 files are both due for compaction and stop writers, so writers are stopped sooner or later.
    o.set_write_buffer_size(16 << 10);
    o.set_level_zero_file_num_compaction_trigger(1);
    o.set_level_zero_slowdown_writes_trigger(1);
    o.set_level_zero_stop_writes_trigger(1);
    let db = Db::open(&o, dir.path()).unwrap();
    let mut w = WriteOptions::default();
    w.set_no_slowdown(true);
    let told = (0..200_000u32).find_map(|i| db.put_opt(i.to_be_bytes(), [0u8; 1000], &w).err());
    let e = told.expect("no stall in 200 MB with a stop trigger of one file");
    assert_eq!(e.kind(), rockmill::ErrorKind::Incomplete, "{e}");
    // One that may wait gets through.
    db.put("patient", "yes").unwrap();
    assert_eq!(db.get("patient").unwrap().as_deref(), Some(&b"yes"[..]));
}

/// During a long flush, writers are slowed down before memory is full and they must be stopped, and they can find out
/// why.
#[test]
fn a_slow_flush_slows_writers_before_they_are_stopped() {
    let (fs, mut o) = (rockmill_io::MemFileSystem::new(), small_options());
    o.set_file_system(Arc::new(fs.clone()));
    o.set_write_buffer_size(1 << 20);
    let db = Db::open(&o, "/db").unwrap();
    let (held, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (held_by_hook, released) = (Arc::clone(&held), Arc::clone(&go_on));
    fs.set_hook(Box::new(move |op| {
        let table = op.path.extension().is_some_and(|e| e == "sst");
        if !table || op.kind != rockmill_io::OpKind::Sync || released.load(Ordering::Acquire) {
            return rockmill_io::Fault::None;
        }
        let (held, released) = (Arc::clone(&held_by_hook), Arc::clone(&released));
        rockmill_io::Fault::After(Box::new(move || {
            held.store(true, Ordering::Release);
            while !released.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
        }))
    }));
    let number = |name: &str| db.property_int_value(name).unwrap().unwrap();
    let mut w = WriteOptions::default();
    w.disable_wal(true);
    let mut keys = 0u64;
    thread::scope(|s| {
        // Observes: the flush is released when the writer waits, and the writer must not wait for ever.
        let seen = s.spawn(|| {
            let reason = || db.property_value("rockmill.write-stall-reason").unwrap().unwrap();
            while reason() == "none" && number("rocksdb.is-write-stopped") == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let seen = (reason(), number("rocksdb.actual-delayed-write-rate") > 0);
            let text = db.property_value("rocksdb.dbstats").unwrap().unwrap();
            go_on.store(true, Ordering::Release);
            (seen, text)
        });
        let mut put = || {
            db.put_opt(keys.to_be_bytes(), [7u8; 1000], &w).unwrap();
            keys += 1;
        };
        while number("rocksdb.num-immutable-mem-table") == 0 {
            put();
        }
        while !held.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        while !go_on.load(Ordering::Acquire) {
            put();
        }
        let (seen, text) = seen.join().expect("who looks on");
        assert_eq!(seen, ("memtables".to_owned(), true), "after {keys} writes");
        assert!(text.contains("reason: memtables"), "{text}");
    });
    assert!(number("rockmill.stall-delayed-micros") > 0);
    db.wait_for_background_work().unwrap();
    assert_eq!(db.iterator(IteratorMode::Start).count() as u64, keys);
    assert_eq!(db.property_value("rockmill.write-stall-reason").unwrap().unwrap(), "none", "the flush is done");
}

/// A batch that several threads write to several databases at once does not change: no thread numbers it in place.
#[test]
fn one_batch_is_written_by_many() {
    let mut batch = rockmill::WriteBatch::new();
    for n in 0..50 {
        batch.put(format!("key{n:02}"), "value");
    }
    let before = batch.data().to_vec();
    let dbs: Vec<Arc<Db>> = (0..2)
        .map(|_| {
            let mut options = Options::default();
            options.create_if_missing(true);
            options.set_file_system(Arc::new(rockmill_io::MemFileSystem::new()));
            Arc::new(Db::open(&options, "/db").expect("open"))
        })
        .collect();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (batch, db) = (&batch, &dbs[t % 2]);
            scope.spawn(move || {
                for n in 0..200 {
                    db.write(batch).expect("a write");
                    db.put(format!("{t}-{n}"), "1").expect("a write");
                }
            });
        }
    });
    assert_eq!(batch.data(), before);
    for db in dbs {
        assert_eq!(db.latest_sequence_number(), 2 * 200 * 51);
        let updates = db.get_updates_since(0).expect("an iterator");
        let total: usize = updates.map(|u| u.expect("in order, without a gap").1.len()).sum();
        assert_eq!(total, 2 * 200 * 51);
    }
}

/// A flush of everything, and operations that begin with one (checkpoints, backups), take the existing column families:
/// one that is dropped at the same moment is no error, as in RocksDB.
#[test]
fn flush_all_does_not_fail_for_a_column_family_that_goes() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&small_options(), dir.path().join("db")).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let cf = db.create_cf("brief", &small_options()).unwrap();
                db.put_cf(&cf, "k", "v").unwrap();
                db.drop_cf("brief").unwrap();
            }
        });
        let until = Instant::now() + Duration::from_millis(1500);
        let mut rounds = 0;
        while Instant::now() < until {
            let done = db.put("k", "v").and_then(|()| db.flush_all());
            if done.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            done.unwrap_or_else(|e| panic!("after {rounds} rounds: {e}"));
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(rounds > 5, "{rounds}");
    });
}

#[test]
fn a_group_has_no_more_bytes_than_the_option_says() {
    // Most bytes of a group, and most batches of 1 KiB in it.
    for (bytes, most) in [(1, 1), (2000, 1), (2500, 2), (9 << 10, 2), (1 << 20, 8)] {
        let dir = tempfile::tempdir().unwrap();
        let mut o = small_options();
        o.set_write_buffer_size(8 << 20);
        o.set_max_write_batch_group_size_bytes(bytes);
        o.enable_statistics();
        let db = Db::open(&o, dir.path()).unwrap();
        thread::scope(|s| {
            for w in 0..8u8 {
                let db = &db;
                s.spawn(move || {
                    for n in 0..50u8 {
                        let mut o = WriteOptions::default();
                        o.set_sync(true);
                        db.put_opt([w, n], [n; 1 << 10], &o).unwrap();
                    }
                });
            }
        });
        let count = |ticker| o.get_ticker_count(ticker);
        let (groups, all) = (count(Ticker::WriteDoneBySelf), 400);
        assert_eq!(groups + count(Ticker::WriteDoneByOther), all);
        assert!(groups >= all.div_ceil(most), "{groups} groups of at most {most} batches ({bytes} bytes)");
        assert_eq!(db.iterator(IteratorMode::Start).filter_map(Result::ok).count(), 400);
    }
}
