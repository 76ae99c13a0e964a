//! The same with power cuts and failing calls at any moment of a schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rockmill::{Comparator, Db, Error, ErrorKind, IteratorMode, Options, WriteBatch, WriteOptions};
use rockmill_io::{CrashMode, MemFileSystem, OpKind};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::explore::explore;
use crate::store::{get, number, open, options, pair, write_at_last};

const WRITERS: usize = 2;

/// The newest acknowledged write of each kind, for each writer. Plain atomics of the standard library: no part of the
/// store.
#[derive(Default)]
struct Told {
    written: [AtomicU64; WRITERS],
    synced: [AtomicU64; WRITERS],
}

impl Told {
    fn read(of: &[AtomicU64; WRITERS]) -> [u64; WRITERS] {
        [0, 1].map(|w| of[w].load(Ordering::Relaxed))
    }
}

/// Two column families, so that batches span them.
fn two_families(fs: &MemFileSystem) -> Options {
    let mut o = options(fs);
    o.create_missing_column_families(true);
    o
}

/// It is impossible to know whether a last edit with a partly lost sector was acknowledged, so it is refused
/// (docs/testing.md).
fn may_be_refused(mode: CrashMode, e: &Error) -> bool {
    matches!(mode, CrashMode::Random(_) | CrashMode::Hostile(_))
        && e.kind() == ErrorKind::Corruption
        && e.message().contains("MANIFEST-")
}

/// For each writer, a bit for each of its writes without a WAL.
type Unlogged = [u64; WRITERS];

fn is_logged(unlogged: Unlogged, w: usize, n: u64) -> bool {
    (unlogged[w] >> n) & 1 == 0
}

/// A writer's last write up to this one that has a WAL, 0 for none.
fn last_logged(unlogged: Unlogged, w: usize, n: u64) -> u64 {
    (1..=n).rev().find(|n| is_logged(unlogged, w, *n)).unwrap_or(0)
}

/// Opens the database after a power cut, and checks its contents for each writer. Writes without a WAL may be lost, or
/// exist as far as a column family was flushed, independently for each. Writes with a WAL that precede an existing
/// write are complete.
fn check_image(
    image: &MemFileSystem,
    mode: CrashMode,
    written: [u64; WRITERS],
    synced: [u64; WRITERS],
    unlogged: Unlogged,
) {
    let db = match Db::open_cf_for_read_only(&two_families(image), "/db", ["default", "other"], false) {
        Ok(db) => db,
        Err(e) if may_be_refused(mode, &e) => return,
        Err(e) => panic!("{mode:?}: {e}"),
    };
    let other = db.cf_handle("other").expect("it is there");
    let found = [0, 1].map(|w| get(&db, [w as u8, 0]));
    for w in 0..WRITERS {
        let of = |key| db.get_cf(&other, [w as u8, key]).expect("a read").map_or(0, |v| number(&v));
        assert_eq!(found[w], get(&db, [w as u8, 1]), "{mode:?}: a part of a batch of writer {w}");
        let (least, most) = (found[w].min(of(0)), found[w].max(of(0)));
        let whole = last_logged(unlogged, w, most);
        assert!(least >= whole, "{mode:?}: half of batch {whole} of writer {w}: {least} and {most}");
        let told = if mode == CrashMode::KeepAll { last_logged(unlogged, w, written[w]) } else { synced[w] };
        assert!(least >= told, "{mode:?}: writer {w} was told {told}, {least} is there");
        // The other writer's value that this write saw was written before it.
        let seen = last_logged(unlogged, 1 - w, of(1));
        assert!(found[1 - w] >= seen, "{mode:?}: {seen} of writer {} is lost, what saw it is not", 1 - w);
    }
}

/// A power cut at a random moment: synced writes exist, batches over column families are complete, and the rest is a
/// prefix of the writes. In half of the runs, some writes have no WAL, and may be lost separately.
#[test]
fn the_power_may_go_at_any_moment() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = two_families(&fs);
        let db = Arc::new(Db::open_cf(&options, "/db", ["default", "other"]).expect("open"));
        let other = db.cf_handle("other").expect("it is there");
        let told = Arc::new(Told::default());
        let some: bool = thread_rng().r#gen();
        let unlogged: Unlogged = [0, 1].map(|_| if some { thread_rng().gen_range(0..16) } else { 0 });
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let (db, other, told) = (Arc::clone(&db), other.clone(), Arc::clone(&told));
                thread::spawn(move || {
                    for n in 1..=3_u64 {
                        let mut batch = pair(w as u8, n);
                        batch.put_cf(&other, [w as u8, 0], n.to_be_bytes());
                        batch.put_cf(&other, [w as u8, 1], get(&db, [1 - w as u8, 0]).to_be_bytes());
                        let mut o = WriteOptions::default();
                        o.disable_wal(!is_logged(unlogged, w, n));
                        o.set_sync(!o.disable_wal && thread_rng().r#gen());
                        o.set_no_slowdown(thread_rng().gen_range(0..3) == 0);
                        write_at_last(&db, &batch, &o, || ());
                        told.written[w].store(n, Ordering::Relaxed);
                        if o.sync {
                            told.synced[w].store(n, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let flush = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                db.flush_all().expect("a flush");
                db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
            })
        };
        let cut = thread::spawn(move || {
            for _ in 0..3 {
                let mode = match thread_rng().gen_range(0..4) {
                    0 => CrashMode::SyncedOnly,
                    1 => CrashMode::KeepAll,
                    2 => CrashMode::Random(thread_rng().r#gen()),
                    _ => CrashMode::Hostile(thread_rng().r#gen()),
                };
                let (written, synced) = (Told::read(&told.written), Told::read(&told.synced));
                check_image(&fs.crash_image(mode), mode, written, synced, unlogged);
            }
        });
        for t in writers {
            t.join().expect("a writer");
        }
        flush.join().expect("the flush");
        cut.join().expect("power cuts");
        assert_eq!(db.background_error(), None);
    });
}

/// One call on a log, table or MANIFEST fails at a random moment; writers get errors until `resume`. Afterwards
/// acknowledged writes exist, and refused ones do not reappear.
#[test]
fn a_failing_call_loses_nothing_acknowledged() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let db = open(&options);
        let kind = [OpKind::Write, OpKind::Sync, OpKind::Create, OpKind::SyncDir][thread_rng().gen_range(0..4)];
        let mut calls = thread_rng().gen_range(0..8);
        fs.set_fault(Box::new(move |op| {
            if op.kind != kind {
                return None;
            }
            calls -= 1;
            (calls == -1).then(|| std::io::Error::from_raw_os_error(5))
        }));
        let writers: Vec<_> = (0..WRITERS as u8)
            .map(|w| {
                let db = Arc::clone(&db);
                thread::spawn(move || {
                    let mut newest = 0;
                    for n in 1..=4 {
                        let mut o = WriteOptions::default();
                        o.set_sync(n % 2 == 0);
                        if db.write_opt(&pair(w, n), &o).is_ok() {
                            newest = n;
                        }
                    }
                    newest
                })
            })
            .collect();
        let flush = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let _ = db.flush();
                let _ = db.compact_range(None::<&[u8]>, None::<&[u8]>);
            })
        };
        let resume = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for _ in 0..3 {
                    let _ = db.resume();
                }
            })
        };
        let newest: Vec<u64> = writers.into_iter().map(|t| t.join().expect("a writer")).collect();
        flush.join().expect("the flush");
        resume.join().expect("resume");
        fs.clear_fault();
        db.resume().expect("resume");
        for (w, &n) in newest.iter().enumerate() {
            assert_eq!((get(&db, [w as u8, 0]), get(&db, [w as u8, 1])), (n, n), "writer {w}");
        }
        drop(db);
        let again = Db::open_for_read_only(&options, "/db", false).expect("open again");
        for (w, &n) in newest.iter().enumerate() {
            assert_eq!((get(&again, [w as u8, 0]), get(&again, [w as u8, 1])), (n, n), "writer {w}, opened again");
        }
    });
}

/// A write to the log fails, and another one of a compaction or of the recovery fails during `resume`; mostly for lack
/// of space, which is a less severe error in a compaction. After a power cut at any time, synced writes exist with
/// everything before them, whichever writers were admitted.
#[test]
fn two_failures_close_to_one_another_lose_nothing_synced() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let db = open(&options);
        for n in 0..2_u64 {
            db.put("compacted", n.to_be_bytes()).expect("a write");
            db.flush().expect("a flush");
        }
        let mut failing = [(".log", thread_rng().gen_range(0..5)), (".sst", thread_rng().gen_range(0..4))];
        let code = if thread_rng().gen_range(0..4) == 0 { 5 } else { 28 };
        fs.set_fault(Box::new(move |op| {
            let name = op.path.to_string_lossy();
            let (_, calls) = failing.iter_mut().find(|(end, _)| name.ends_with(end))?;
            if !matches!(op.kind, OpKind::Write | OpKind::Sync) {
                return None;
            }
            *calls -= 1;
            (*calls == -1).then(|| std::io::Error::from_raw_os_error(code))
        }));
        let told = Arc::new(Told::default());
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let (db, told) = (Arc::clone(&db), Arc::clone(&told));
                thread::spawn(move || {
                    let mut n = 0;
                    for _ in 0..12 {
                        let mut o = WriteOptions::default();
                        o.set_sync(thread_rng().r#gen());
                        let mut batch = pair(w as u8, n + 1);
                        batch.put([w as u8, 10 + n as u8], "kept");
                        if db.write_opt(&batch, &o).is_ok() {
                            n += 1;
                            told.written[w].store(n, Ordering::Relaxed);
                            if o.sync {
                                told.synced[w].store(n, Ordering::Relaxed);
                            }
                        }
                    }
                })
            })
            .collect();
        let resume = {
            let db = Arc::clone(&db);
            thread::spawn(move || (0..8).for_each(|_| drop(db.resume())))
        };
        let cut = {
            let (fs, told) = (fs.clone(), Arc::clone(&told));
            thread::spawn(move || {
                for _ in 0..8 {
                    let (written, synced) = (Told::read(&told.written), Told::read(&told.synced));
                    let random = CrashMode::Random(thread_rng().r#gen());
                    for (mode, least) in
                        [(CrashMode::SyncedOnly, synced), (CrashMode::KeepAll, written), (random, synced)]
                    {
                        let image = crate::store::options(&fs.crash_image(mode));
                        let db = match Db::open_for_read_only(&image, "/db", false) {
                            Ok(db) => db,
                            Err(e) if may_be_refused(mode, &e) => continue,
                            Err(e) => panic!("{mode:?}: {e}"),
                        };
                        for (w, least) in least.into_iter().enumerate() {
                            let found = [0, 1].map(|key| get(&db, [w as u8, key]));
                            assert_eq!(found[0], found[1], "{mode:?}: half a batch of writer {w}");
                            assert!(found[0] >= least, "{mode:?}: writer {w} was told {least}, not {}", found[0]);
                            let lost = (0..found[0]).find(|&n| db.get([w as u8, 10 + n as u8]) == Ok(None));
                            assert_eq!(lost, None, "{mode:?}: of writer {w} there is {}, and not this", found[0]);
                        }
                    }
                }
            })
        };
        writers.into_iter().chain([resume, cut]).for_each(|t| t.join().expect("a thread"));
        fs.clear_fault();
        // The first call may return the error of a job that failed meanwhile.
        let _ = db.resume();
        db.resume().expect("resume");
        for w in 0..WRITERS {
            assert_eq!(get(&db, [w as u8, 0]), told.written[w].load(Ordering::Relaxed), "writer {w}");
        }
    });
}

/// Bytewise order; panics at a key of three bytes, a given number of times.
struct Panicking(Arc<AtomicU64>);

impl Comparator for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        if (a.len() == 3) != (b.len() == 3) && self.0.load(Ordering::Relaxed) > 0 {
            self.0.fetch_sub(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("a bad key"));
        }
        a.cmp(b)
    }
}

/// A comparator panics while a group inserts, in the leader or in members. All members get an error, no reader sees a
/// part of the group, and nothing of it exists after a reopen.
#[test]
fn a_panic_in_a_group_is_told_to_all_and_leaves_nothing() {
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        let panics = Arc::new(AtomicU64::new(0));
        options.set_comparator_object(Arc::new(Panicking(Arc::clone(&panics))));
        options.set_allow_concurrent_memtable_write(thread_rng().gen_range(0..4) > 0);
        // No memtable may be dropped while a panic unwinds, because the tester's locks cannot be used then.
        options.set_write_buffer_size(1 << 20);
        let db = open(&options);
        db.put([9, 9], "z").expect("a write");
        panics.store(thread_rng().gen_range(1..3), Ordering::Relaxed);
        let writers: Vec<_> = (0..3_u8)
            .map(|w| {
                let db = Arc::clone(&db);
                thread::spawn(move || {
                    let mut newest = 0;
                    for n in 1..=3_u64 {
                        let mut batch = WriteBatch::new();
                        batch.put([w, 0], n.to_be_bytes());
                        if w == 0 && n == 2 {
                            batch.put([0, 5, 5], "bad");
                        }
                        batch.put([w, 1], n.to_be_bytes());
                        match db.write(&batch) {
                            Ok(()) => newest = n,
                            Err(_) => break,
                        }
                    }
                    newest
                })
            })
            .collect();
        let reader = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for _ in 0..4 {
                    let snapshot = db.snapshot();
                    for w in 0..3 {
                        let read = |i| snapshot.get([w, i]).expect("a read").map_or(0, |v| number(&v));
                        assert_eq!(read(0), read(1), "half a batch is visible");
                    }
                }
            })
        };
        let newest: Vec<u64> = writers.into_iter().map(|t| t.join().expect("a writer")).collect();
        reader.join().expect("the reader");
        let failed = db.background_error().is_some();
        panics.store(0, Ordering::Relaxed);
        let check = |db: &Db, what: &str| {
            for (w, &n) in newest.iter().enumerate() {
                assert_eq!((get(db, [w as u8, 0]), get(db, [w as u8, 1])), (n, n), "writer {w}, {what}");
            }
        };
        check(&db, "at once");
        assert_eq!(db.put("one more", "x").is_err(), failed);
        drop(db);
        check(&Db::open_for_read_only(&options, "/db", false).expect("open again"), "opened again");
    });
}

/// A secondary instance that follows a busy primary shows complete batches, and never an older state.
#[test]
fn a_secondary_never_goes_back() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let db = open(&options);
        db.write(&pair(0, 1)).expect("a write");
        let writer = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 2..=4 {
                    db.write(&pair(0, n)).expect("a write");
                }
            })
        };
        let maintenance = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                db.flush().expect("a flush");
                db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
            })
        };
        let mut own = options.clone();
        own.set_max_open_files(-1);
        let follower = Arc::new(Db::open_as_secondary(&own, "/db", "/secondary").expect("a secondary"));
        let catching_up = {
            let follower = Arc::clone(&follower);
            thread::spawn(move || {
                for _ in 0..3 {
                    // The primary may delete a file during a catch-up; the next catch-up continues.
                    let _ = follower.try_catch_up_with_primary();
                }
            })
        };
        let reader = {
            let follower = Arc::clone(&follower);
            thread::spawn(move || {
                let mut last = 0;
                for _ in 0..4 {
                    // One state; a snapshot of a secondary is valid only until its next catch-up.
                    let seen = follower.iterator(IteratorMode::Start).take(2).map(|kv| kv.expect("an entry").1);
                    let seen: Vec<_> = seen.map(|v| number(&v)).collect();
                    let n = seen[0];
                    assert_eq!(seen, [n, n], "half a batch");
                    assert!(n >= last.max(1), "went back from {last} to {n}");
                    last = n;
                }
            })
        };
        for t in [writer, maintenance, catching_up, reader] {
            t.join().expect("a thread");
        }
        follower.try_catch_up_with_primary().expect("catch up");
        assert_eq!(get(&follower, [0, 0]), 4);
    });
}
