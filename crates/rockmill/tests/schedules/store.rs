//! Writers, readers, flushes, compactions, snapshots and the close of one database at the same time.

use std::sync::Arc;

use rockmill::event_listener::{FlushJobInfo, MemTableInfo};
use rockmill::{
    Cache, Db, ErrorKind, EventListener, IteratorMode, LruCacheOptions, Options, ReadOptions, SstFileWriter,
    WriteBatch, WriteBatchIterator, WriteOptions,
};
use rockmill_io::{Clock, ManualClock, MemFileSystem};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::explore::explore;

/// A sleeping thread lets others run, whatever their priority: a paced writer sleeps until its flush is done.
#[derive(Debug)]
struct SleepingClock(ManualClock);

impl Clock for SleepingClock {
    fn now_micros(&self) -> u64 {
        self.0.now_micros()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.monotonic_nanos()
    }

    fn sleep(&self, duration: std::time::Duration) {
        self.0.sleep(duration);
        thread::yield_now();
    }
}

/// Small, so that a few writes fill memtables and L0.
pub fn options(fs: &MemFileSystem) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_clock(Arc::new(SleepingClock(ManualClock::new(1_700_000_000_000_000))));
    o.set_write_buffer_size(4 << 10);
    o.set_arena_block_size(4 << 10);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_max_background_jobs(2);
    if thread_rng().gen_range(0..4) == 0 {
        // Groups of one or a few batches, and batches that are too large for any group.
        o.set_max_write_batch_group_size_bytes(thread_rng().gen_range(1..400));
    }
    if thread_rng().gen_range(0..3) == 0 {
        // Several compactions at once; some wait for others, and waiting outputs are merged.
        o.set_max_background_jobs(4);
        o.set_compaction_downforce(true);
    }
    o
}

pub fn open(options: &Options) -> Arc<Db> {
    Arc::new(Db::open(options, "/db").expect("open"))
}

pub fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

pub fn get(db: &Db, key: impl AsRef<[u8]>) -> u64 {
    db.get(key).expect("a read").map_or(0, |v| number(&v))
}

/// One number under two keys, with a long value now and then, so that memtables fill.
pub fn pair(w: u8, n: u64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.put([w, 0], n.to_be_bytes());
    batch.put([w, 1], n.to_be_bytes());
    batch.put([w, 2], vec![w; if n == 2 { 5000 } else { 10 }]);
    batch
}

/// Random write options: all three determine which writers can share a group.
pub fn any_options() -> WriteOptions {
    let mut o = WriteOptions::default();
    match thread_rng().gen_range(0..6) {
        0..2 => o.set_sync(true),
        2..4 => o.disable_wal(true),
        _ => {}
    }
    o.set_no_slowdown(thread_rng().gen_range(0..3) == 0);
    o
}

/// Writes. If the write is refused instead of waiting, calls `refused` and writes again, this time waiting.
pub fn write_at_last(db: &Db, batch: &WriteBatch, o: &WriteOptions, refused: impl Fn()) {
    match db.write_opt(batch, o) {
        Err(e) if o.no_slowdown && e.kind() == ErrorKind::Incomplete => {
            refused();
            let mut o = *o;
            o.set_no_slowdown(false);
            db.write_opt(batch, &o).expect("a write that may wait");
        }
        done => done.expect("a write"),
    }
}

/// Each writer puts the same increasing number under two keys in one batch, and reads it back. A reader never sees half
/// of a batch or an older number than before. In the end, the newest numbers exist, also after a reopen.
#[test]
fn batches_are_seen_whole_and_values_never_go_back() {
    const WRITERS: u8 = 2;
    const EACH: u64 = 4;
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        if thread_rng().r#gen() {
            // Blocks and tables come and go.
            options.set_max_open_files(1);
            let mut table = rockmill::BlockBasedOptions::default();
            let mut cache = LruCacheOptions::default();
            cache.set_capacity(2048);
            cache.set_num_shard_bits(0);
            table.set_block_cache(&Cache::new_lru_cache_opts(&cache));
            table.set_block_size(64);
            options.set_block_based_table_factory(&table);
        }
        let db = open(&options);
        let writers = (0..WRITERS).map(|w| {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 1..=EACH {
                    // A refused write has no effect. Writes without a WAL are flushed by the close.
                    let refused = || assert_eq!(get(&db, [w, 1]), n - 1, "what was refused is there");
                    write_at_last(&db, &pair(w, n), &any_options(), refused);
                    assert_eq!(get(&db, [w, 1]), n, "a writer does not see what it wrote");
                }
            })
        });
        let reader = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let mut last = [0; WRITERS as usize];
                for round in 0..4 {
                    let snapshot = db.snapshot();
                    for w in 0..WRITERS {
                        let a = snapshot.get([w, 0]).expect("a read");
                        let b = snapshot.get([w, 1]).expect("a read");
                        assert_eq!(a, b, "half a batch is visible at {}", snapshot.sequence_number());
                        let n = b.map_or(0, |v| number(&v));
                        assert!(n >= last[w as usize], "a value went back from {} to {n}", last[w as usize]);
                        last[w as usize] = n;
                    }
                    let mode = if round % 2 == 0 { IteratorMode::Start } else { IteratorMode::End };
                    let seen: Vec<_> = db.iterator(mode).map(|kv| kv.expect("an entry")).collect();
                    for w in 0..WRITERS {
                        let of = |i| seen.iter().find(|(k, _)| **k == [w, i]).map_or(0, |(_, v)| number(v));
                        assert_eq!(of(0), of(1), "an iterator sees half a batch");
                        assert!(of(0) >= last[w as usize], "an iterator goes back");
                    }
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
        let threads: Vec<_> = writers.chain([reader, maintenance]).collect();
        for t in threads {
            t.join().expect("a thread");
        }
        assert_eq!(db.background_error(), None);
        drop(db);
        let again = Db::open_for_read_only(&options, "/db", false).expect("open again");
        for w in 0..WRITERS {
            assert_eq!(get(&again, [w, 0]), EACH);
        }
    });
}

/// Puts of a log, by what they put.
#[derive(Default)]
struct Puts(Vec<(u64, u64)>);

impl WriteBatchIterator for Puts {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.push((u64::from(key[0]), number(value)));
    }
    fn delete(&mut self, _: &[u8]) {}
}

/// Everything in the logs, with its sequence numbers. At a gap in the numbers, the updates end, and begin again after
/// it.
fn logged(db: &Db) -> Vec<(u64, (u64, u64))> {
    let (mut all, mut since): (Vec<(u64, (u64, u64))>, u64) = (Vec::new(), 0);
    while since < db.latest_sequence_number() {
        for update in db.get_updates_since(since).expect("updates") {
            match update {
                Ok((first, batch)) => {
                    assert!(first > since, "{first} comes twice, or late");
                    let mut puts = Puts::default();
                    batch.iterate(&mut puts);
                    assert_eq!(puts.0.len(), batch.len());
                    since = first + puts.0.len() as u64 - 1;
                    all.extend((first..).zip(puts.0));
                }
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::TryAgain), "{e}");
                    assert!(e.message().contains("disable_wal") || e.kind() == ErrorKind::TryAgain, "{e}");
                    since += 1;
                }
            }
        }
    }
    all
}

/// Writers in groups, some synced, some without the log, some that do not wait; every update has its own number. In
/// this order, the log has each update that asked for a log exactly once, and no others.
#[test]
fn groups_number_every_update_once() {
    const WRITERS: u64 = 3;
    const EACH: u64 = 3;
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.set_write_buffer_size(1 << 20); // one log
        let db = open(&options);
        let all_logged: bool = thread_rng().r#gen();
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let db = Arc::clone(&db);
                thread::spawn(move || {
                    let mut logged = Vec::new();
                    for n in 1..=EACH {
                        let mut o = any_options();
                        o.disable_wal &= !all_logged;
                        // No writer is slowed down here, so none may be refused.
                        db.put_opt([w as u8], n.to_be_bytes(), &o).expect("a write");
                        assert_eq!(get(&db, [w as u8]), n, "a writer does not see what it wrote");
                        if !o.disable_wal {
                            logged.push((w, n));
                        }
                    }
                    db.flush_wal(w == 0).expect("a sync");
                    logged
                })
            })
            .collect();
        let mut asked: Vec<(u64, u64)> = writers.into_iter().flat_map(|t| t.join().expect("a writer")).collect();
        assert_eq!(db.latest_sequence_number(), EACH * WRITERS);
        let logged = logged(&db);
        let numbers: Vec<u64> = logged.iter().map(|(number, _)| *number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "out of order, or twice: {numbers:?}");
        assert!(numbers.last().is_none_or(|last| *last <= EACH * WRITERS), "beyond the last: {numbers:?}");
        let mut found: Vec<(u64, u64)> = logged.into_iter().map(|(_, put)| put).collect();
        for w in 0..WRITERS {
            assert!(found.iter().filter(|put| put.0 == w).is_sorted(), "a writer's own are out of order");
        }
        found.sort_unstable();
        asked.sort_unstable();
        assert_eq!(found, asked, "the log has not what asked for it");
    });
}

/// A snapshot or an iterator always shows the same, whatever is overwritten, flushed and compacted meanwhile.
#[test]
fn snapshots_repeat_themselves() {
    explore(|| {
        let fs = MemFileSystem::new();
        let db = open(&options(&fs));
        db.write(&pair(0, 1)).expect("a write");
        let writer = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 2..=4 {
                    db.write(&pair(0, n)).expect("a write");
                    if n == 3 {
                        db.delete([0, 1]).expect("a write");
                    }
                }
            })
        };
        let maintenance = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for _ in 0..2 {
                    db.flush().expect("a flush");
                    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
                }
            })
        };
        let readers = (0..2).map(|_| {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let snapshot = db.snapshot();
                let read = || (0..3).map(|i| snapshot.get([0, i]).expect("a read")).collect::<Vec<_>>();
                let first = read();
                let mut o = ReadOptions::default();
                o.set_snapshot(&snapshot);
                let scan: Vec<_> = db.iterator_opt(IteratorMode::Start, o).map(|kv| kv.expect("an entry").1).collect();
                assert_eq!(scan, first.iter().flatten().map(|v| v.clone().into()).collect::<Vec<_>>());
                assert_eq!(read(), first, "a snapshot changed");
            })
        });
        let threads: Vec<_> = readers.chain([writer, maintenance]).collect();
        for t in threads {
            t.join().expect("a thread");
        }
        assert_eq!(get(&db, [0, 0]), 4);
        assert_eq!(get(&db, [0, 1]), 4);
    });
}

/// A key that is overwritten and never deleted is always found, although flushes drop its older versions: a read must
/// not use an old sequence number with newer tables, and a snapshot must be registered before they are written. Little
/// else happens, so few schedules are needed.
#[test]
fn lookups_find_what_was_always_there() {
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.set_disable_auto_compactions(true);
        let db = open(&options);
        db.put("k", 0u64.to_be_bytes()).expect("a write");
        let writer = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 1..=2u64 {
                    db.put("k", n.to_be_bytes()).expect("a write");
                    db.flush().expect("a flush");
                }
            })
        };
        let mut last = 0;
        let mut seen = |n: Option<u64>| {
            let n = n.expect("the key was always there");
            assert!(n >= last, "a value went back from {last} to {n}");
            last = n;
        };
        // Many reads of one kind: the larger their share of a run, the more likely is a switch at the critical point.
        let kind = thread_rng().gen_range(0..3);
        for _ in 0..60 {
            seen(match kind {
                0 => db.get("k").expect("a read").map(|v| number(&v)),
                1 => db.iterator(IteratorMode::Start).next().map(|kv| number(&kv.expect("an entry").1)),
                _ => db.snapshot().get("k").expect("a read").map(|v| number(&v)),
            });
        }
        writer.join().expect("the writer");
        seen(db.get("k").expect("a read").map(|v| number(&v)));
    });
}

/// A snapshot is registered before a flush or a compaction can drop what it sees, not after its number was read.
/// Snapshots are read only if something newer was written, so that a large part of each run is between the two.
#[test]
fn snapshots_see_what_their_number_says() {
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.set_disable_auto_compactions(true);
        let db = open(&options);
        db.put("k", 1u64.to_be_bytes()).expect("a write");
        let compacts = thread_rng().r#gen::<bool>();
        let writer = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 2..=3u64 {
                    db.put("k", n.to_be_bytes()).expect("a write");
                    if compacts || n == 3 {
                        db.flush().expect("a flush");
                    }
                }
                if compacts {
                    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
                }
            })
        };
        for _ in 0..100 {
            let snapshot = db.snapshot();
            let number_of = snapshot.sequence_number();
            if db.latest_sequence_number() > number_of {
                let seen = snapshot.get("k").expect("a read").map(|v| number(&v));
                assert_eq!(seen, Some(number_of), "the snapshot's own version is gone");
            }
        }
        writer.join().expect("the writer");
        assert_eq!(get(&db, "k"), 3);
    });
}

/// Writes at a notification, a limited number of times: memtables are so small here that each write may cause another
/// flush.
#[derive(Clone, Default)]
struct Writes {
    /// Never locked over a switch.
    db: Arc<std::sync::Mutex<std::sync::Weak<Db>>>,
    written: Arc<std::sync::atomic::AtomicU32>,
}

impl Writes {
    fn write(&self, key: &str) {
        let db = self.db.lock().expect("no panic").upgrade();
        let more = self.written.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 8;
        if let Some(db) = db.filter(|_| more) {
            db.put(key, "told").expect("a write of a listener's");
        }
    }
}

impl EventListener for Writes {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        self.write("m begin");
    }
    fn on_flush_completed(&self, _: &FlushJobInfo) {
        self.write("m completed");
    }
    fn on_memtable_sealed(&self, _: &MemTableInfo) {
        self.write("m sealed");
    }
}

/// Stopped writers, a listener that writes during the flush that they wait for, and ingestions that overlap its writes:
/// no thread waits for ever.
#[test]
fn listeners_that_write_hold_nobody_up() {
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        let listener = Writes::default();
        options.add_event_listener(listener.clone());
        options.set_max_write_buffer_number(2);
        options.set_disable_auto_compactions(true);
        let db = open(&options);
        let mut table = SstFileWriter::create(&options);
        table.open("/table.sst").expect("a table");
        ["a", "m begin", "z"].into_iter().for_each(|key| table.put(key, "ingested").expect("an entry"));
        table.finish().expect("a table");
        *listener.db.lock().expect("no panic") = Arc::downgrade(&db);
        let writers = (0..2u8).map(|w| {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 0..2u8 {
                    db.put([w], vec![n; 4200]).expect("a write");
                }
            })
        });
        let ingests = {
            let db = Arc::clone(&db);
            thread::spawn(move || db.ingest_external_file(vec!["/table.sst"]).expect("an ingestion"))
        };
        for t in writers.chain([ingests]).collect::<Vec<_>>() {
            t.join().expect("a thread");
        }
        assert_eq!(db.get("z").expect("a read").as_deref(), Some(&b"ingested"[..]));
        *listener.db.lock().expect("no panic") = std::sync::Weak::new();
        // The last calls may hold the database.
        while Arc::strong_count(&db) > 1 {
            thread::yield_now();
        }
        assert_eq!(db.background_error(), None);
    });
}

/// Writers that stop because memtables or L0 are full continue when there is room: no wake-up is lost. The tester
/// reports an endless wait as a deadlock. A writer that prefers an error to waiting leaves nothing behind.
#[test]
fn stopped_writers_go_on() {
    explore(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.set_max_write_buffer_number(2);
        options.set_level_zero_file_num_compaction_trigger(1);
        options.set_level_zero_slowdown_writes_trigger(1);
        options.set_level_zero_stop_writes_trigger(2);
        let db = open(&options);
        let writers: Vec<_> = (0..2u8)
            .map(|w| {
                let db = Arc::clone(&db);
                thread::spawn(move || {
                    let newest = || db.get([w]).expect("a read").map_or(0, |v| v[0]);
                    for n in 1..=3u8 {
                        let mut batch = WriteBatch::new();
                        batch.put([w], vec![n; 4200]);
                        let refused = || assert_eq!(newest(), n - 1, "what was refused is there");
                        write_at_last(&db, &batch, &any_options(), refused);
                        assert_eq!(newest(), n);
                    }
                })
            })
            .collect();
        let changes = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                db.set_options(&[("level0_stop_writes_trigger", "3")]).expect("an option");
                db.set_db_options(&[("max_background_jobs", "3")]).expect("an option");
            })
        };
        for t in writers {
            t.join().expect("a writer");
        }
        changes.join().expect("changes");
        db.wait_for_background_work().expect("quiet");
        assert_eq!(db.background_error(), None);
    });
}

/// Background work ends while writers write and flushes wait, and column families are created and dropped. If a call
/// reports success, its effect is there.
#[test]
fn work_may_end_at_any_moment() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let db = open(&options);
        let other = db.create_cf("other", &options).expect("a column family");
        let writer = {
            let (db, other) = (Arc::clone(&db), other.clone());
            thread::spawn(move || {
                let mut done = 0;
                for n in 1..=3u64 {
                    let mut batch = pair(0, n);
                    batch.put_cf(&other, "k", n.to_be_bytes());
                    if db.write(&batch).is_err() {
                        break;
                    }
                    done = n;
                }
                done
            })
        };
        let families = {
            let (db, options) = (Arc::clone(&db), options.clone());
            thread::spawn(move || {
                let Ok(cf) = db.create_cf("passing", &options) else { return };
                if db.put_cf(&cf, "k", "v").is_ok() {
                    assert_eq!(db.get_cf(&cf, "k").expect("a read").as_deref(), Some(&b"v"[..]));
                }
                db.drop_cf("passing").expect("a drop");
                assert!(db.put_cf(&cf, "k", "v").is_err());
            })
        };
        let flush = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let _ = db.flush_all();
                let _ = db.compact_range(None::<&[u8]>, None::<&[u8]>);
            })
        };
        let end = {
            let db = Arc::clone(&db);
            thread::spawn(move || db.cancel_all_background_work(true))
        };
        let done = writer.join().expect("the writer");
        families.join().expect("column families");
        flush.join().expect("the flush");
        end.join().expect("the end");
        drop((db, other));
        let again = Db::open_cf_for_read_only(&options, "/db", ["default", "other"], false).expect("open again");
        let cf = again.cf_handle("other").expect("it is there");
        let seen = get(&again, [0, 0]);
        assert!(seen >= done, "{done} was acknowledged, {seen} is there");
        assert_eq!(again.get_cf(&cf, "k").expect("a read").map_or(0, |v| number(&v)), seen, "half a batch");
    });
}

/// A table ingested next to writers and readers is completely visible once the call returns, is newer than earlier
/// writes, and never appears in an earlier snapshot.
#[test]
fn an_ingestion_is_one_moment() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let mut table = SstFileWriter::create(&options);
        table.open("/table.sst").expect("a file");
        table.put([0, 0], 100u64.to_be_bytes()).expect("an entry");
        table.put([0, 1], 100u64.to_be_bytes()).expect("an entry");
        table.finish().expect("a table");
        let db = open(&options);
        let writer = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 1..=2 {
                    db.write(&pair(1, n)).expect("a write");
                }
            })
        };
        let ingestion = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                db.write(&pair(0, 1)).expect("a write");
                db.ingest_external_file(vec!["/table.sst"]).expect("an ingestion");
                assert_eq!((get(&db, [0, 0]), get(&db, [0, 1])), (100, 100), "what was ingested is not there");
            })
        };
        let maintenance = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                db.flush().expect("a flush");
                db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
            })
        };
        let reader = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let mut last = 0;
                for _ in 0..3 {
                    let snapshot = db.snapshot();
                    let read = |i| snapshot.get([0, i]).expect("a read").map_or(0, |v| number(&v));
                    let (a, b) = (read(0), read(1));
                    assert_eq!(a, b, "half of what was ingested");
                    assert!(a >= last, "went back from {last} to {a}");
                    last = a;
                    assert_eq!(read(0), a, "a snapshot changed");
                }
            })
        };
        for t in [writer, ingestion, maintenance, reader] {
            t.join().expect("a thread");
        }
        assert_eq!((get(&db, [0, 0]), get(&db, [1, 0])), (100, 2));
    });
}
