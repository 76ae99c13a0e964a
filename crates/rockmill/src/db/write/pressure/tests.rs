//! When the store repeats its decisions, and the results if values stay in logs.

use std::time::{Duration, Instant};

use rockmill_io::{Clock, ManualClock, MemFileSystem};

use super::*;
use crate::db::Db;
use crate::event_listener::{EventListener, FlushJobInfo, FlushReason};
use crate::options::{CompressionType, Options, WriteOptions};
use crate::sync::Mutex;

/// Otherwise compactions would compete with users' reads at full speed until the next one ends.
#[test]
fn nobody_waits_for_a_flush_that_has_committed() {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(MemFileSystem::new()));
    let db = Db::open(&o, "/db").unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    assert!(!db.inner.pacing.read_protection().is_awaited());
}

/// Index tables of some hundred entries, which are flushed at `flush_bytes` of memory or because of the logs, and not
/// merged.
fn index_tables(capacity: u64, flush_bytes: usize) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(MemFileSystem::new()));
    o.set_fast_path("/fast", capacity);
    o.set_max_index_size(4 << 10);
    o.set_data_flush_trigger_size(flush_bytes);
    o.set_index_merge_trigger_num(0);
    o.set_disable_auto_compactions(true);
    o.set_compression_type(CompressionType::None);
    o
}

/// A flush begins when the lock is free.
struct HeldFlush(Arc<Mutex<()>>);

impl EventListener for HeldFlush {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        drop(self.0.lock());
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A held flush must not block this write.
fn put(db: &Db, i: usize, len: usize) {
    let mut at_once = WriteOptions::default();
    at_once.set_no_slowdown(true);
    db.put_opt(format!("key{i:06}"), vec![i as u8; len], &at_once).unwrap();
}

/// True if writers are paced to a flush and reads know that. Checks that a decision now would give the same.
fn is_paced(db: &Db, what: &str) -> bool {
    let (db, state) = (&db.inner, db.inner.state.lock());
    let store = db.store_now(&state);
    let orders = decide(db.families_now(&state, store.logs), store);
    let obeyed = (db.pacing.read_protection().is_awaited(), db.pacing.writers().is_pacing(u64::MAX - 1));
    assert_eq!(obeyed, (orders.awaited, orders.paced), "{what}: what was decided last does not hold");
    assert_eq!(db.pacing.writers().is_behind(), orders.behind, "{what}");
    orders.paced
}

/// The state of the default column family: whether it is being flushed, and the number of full tables.
fn front(db: &Db) -> (bool, usize) {
    let state = db.inner.state.lock();
    (state.family(0).unwrap().front().is_flushing(), state.family(0).unwrap().front().sealed_count())
}

/// A flush that is due because of the logs, a request, or the memory of tables paces writers from that moment until it
/// ends, even if the next table is sealed much later.
#[test]
fn writers_are_paced_to_what_is_due_and_to_nothing_else() {
    for (capacity, flush_bytes) in [(1 << 20, 1 << 30), (1 << 30, 100 << 10)] {
        let flush = Arc::new(Mutex::new(()));
        let mut o = index_tables(capacity, flush_bytes);
        o.add_event_listener(HeldFlush(Arc::clone(&flush)));
        let db = Db::open(&o, "/db").unwrap();
        let what = format!("{capacity} bytes of logs, {flush_bytes} of memory");
        let mut n = 0;
        for round in 0..3 {
            let held = flush.lock();
            while !is_paced(&db, &what) {
                put(&db, n, 1000);
                n += 1;
                assert!(n < 10_000, "{what}: no flush is due");
            }
            until("a flush", || front(&db).0);
            // One more table that is in no flush and is not due.
            let before = front(&db).1;
            while front(&db).1 == before {
                put(&db, n, 100);
                n += 1;
            }
            drop(held);
            until("its end", || !front(&db).0);
            assert!(front(&db).1 > 0 && !is_paced(&db, &what), "{what}, round {round}");
        }
        let held = flush.lock();
        std::thread::scope(|s| {
            s.spawn(|| db.flush().unwrap());
            until("a flush by hand", || front(&db).0);
            assert!(is_paced(&db, &what), "{what}: by hand");
            drop(held);
        });
        assert!(!is_paced(&db, &what), "{what}: by hand, and done");
    }
}

/// Time alone changes the triggers: a flush that becomes due then begins immediately, and writers are paced to it.
#[test]
fn a_change_of_the_triggers_begins_what_is_due() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let flush = Arc::new(Mutex::new(()));
    let flush_bytes = 256 << 10;
    let mut o = index_tables(1 << 30, flush_bytes);
    o.set_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    o.add_event_listener(HeldFlush(Arc::clone(&flush)));
    let db = Db::open(&o, "/db").unwrap();
    let memory = || {
        let (db, state) = (&db.inner, db.inner.state.lock());
        let queues = state.family(0).unwrap().front().schedule(db.logs_now(&state)).unwrap().1;
        queues.flush_bytes as usize
    };
    let mut n = 0;
    while memory() < flush_bytes / 2 {
        put(&db, n, 100);
        n += 1;
    }
    assert!(memory() < flush_bytes && !is_paced(&db, "nothing is due") && !front(&db).0);
    let held = flush.lock();
    clock.advance(Duration::from_secs(61));
    until("a flush of half as much", || front(&db).0);
    assert!(is_paced(&db, "it is due"));
    drop(held);
    until("its end", || front(&db) == (false, 0));
    assert!(!is_paced(&db, "it is done"));
}

/// If levels may hold more, compactions are no longer behind, whether one runs or not.
#[test]
fn what_levels_may_hold_counts_at_once() {
    let mut o = index_tables(1 << 30, 1 << 30);
    o.set_disable_auto_compactions(false);
    o.set_level_compaction_dynamic_level_bytes(false);
    o.set_max_bytes_for_level_base(16 << 10);
    o.set_soft_pending_compaction_bytes_limit(96 << 10);
    let db = Db::open(&o, "/db").unwrap();
    db.pause_background_work();
    (0..40).for_each(|i| put(&db, i, 1000));
    db.flush().unwrap();
    let factor = || db.inner.state.lock().family(0).unwrap().jobs().running().level_factor();
    // L0 has more than a level may hold, so compactions are behind: that alone gives levels more room.
    until("levels hold twice as much", || factor() >= 2);
    let mut n = 0;
    while front(&db).1 == 0 {
        put(&db, n, 100);
        n += 1;
    }
    // As if logs were full. After a second it may already have happened.
    let full = LogsNow { newest: 100, others: 0, capacity: 100, of_device: false };
    let change = {
        let state = db.inner.state.lock();
        let front = state.family(0).unwrap().front();
        let (mut schedule, queues) = front.schedule(full).unwrap();
        let change = schedule.decide(queues, 1e9);
        front.set_schedule(schedule);
        change
    };
    assert!(change.is_none_or(|change| change.level_factor == 4), "{change:?}");
    db.inner.work_available.notify_all();
    until("levels hold more", || factor() == 4);
    assert!(!is_paced(&db, "levels hold more") && !db.inner.pacing.writers().is_behind());
}

/// An open does not immediately compact what an earlier open allowed levels to hold; after a calm period, their limits
/// decrease.
#[test]
fn an_opening_goes_on_with_what_levels_hold() {
    for (bytes, want) in [(8 << 10, 1), (24 << 10, 2), (48 << 10, 4)] {
        let mut o = index_tables(1 << 30, 1 << 30);
        o.set_level_compaction_dynamic_level_bytes(false);
        let db = Db::open(&o, "/db").unwrap();
        // The second level has data, and the first level the data that follows.
        put(&db, 0, 1000);
        db.flush().unwrap();
        let mut second = crate::CompactOptions::default();
        second.set_change_level(true);
        second.set_target_level(2);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &second).unwrap();
        (0..bytes / 1000).for_each(|i| put(&db, i, 1000));
        db.flush().unwrap();
        drop(db);
        o.set_disable_auto_compactions(false);
        o.set_level_zero_file_num_compaction_trigger(1);
        let db = Db::open(&o, "/db").unwrap();
        let files = |level: usize| db.inner.state.lock().family(0).unwrap().version().levels[level].len();
        until("the first level has it", || files(0) == 0 && files(1) > 0);
        assert!(files(2) > 0);
        drop(db);
        o.set_max_bytes_for_level_base(16 << 10);
        let db = Db::open(&o, "/db").unwrap();
        let factor = db.inner.state.lock().family(0).unwrap().front().level_factor();
        assert_eq!(factor, want, "{bytes} bytes in the first level");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(db.inner.stats.compactions.load(Ordering::Relaxed), 0, "{bytes} bytes: nothing is due");
        let state = db.inner.state.lock();
        let front = state.family(0).unwrap().front();
        let (mut schedule, queues) = front.schedule(LogsNow::UNBOUNDED).unwrap();
        let calm = (0..1000).filter_map(|second| schedule.decide(queues, f64::from(second)));
        assert_eq!(calm.last().map_or(want, |change| change.level_factor), 1, "{bytes} bytes: after a while");
    }
}

/// Flushes empty logs of dead values. Of keys that are overwritten again and again, a flush writes only the last
/// values; what a cold column family holds back is flushed as a small separate table. So few bytes go to the slow
/// device, and logs never exceed their limit.
#[test]
fn logs_of_dead_values_are_emptied_for_few_bytes() {
    const CAPACITY: u64 = 1 << 20;
    const HOT: usize = 20;
    const COLD: usize = 4;
    // Logs are full before the memory of index tables is, and vice versa; merged values are dead earlier.
    for (flush_bytes, merge, atomic) in [(1 << 30, 0, false), (1 << 30, 2, true), (64 << 10, 2, false)] {
        let what = format!("{flush_bytes} bytes of memory, {merge}, atomic: {atomic}");
        let mut o = index_tables(CAPACITY, flush_bytes);
        o.set_index_merge_trigger_num(merge);
        o.set_atomic_flush(atomic);
        let db = Db::open(&o, "/db").unwrap();
        let cold: Vec<_> = (0..COLD).map(|i| db.create_cf(format!("cold{i}"), &o).unwrap()).collect();
        let (mut written, mut most) = (0, 0);
        for i in 0..20_000 {
            db.put(format!("key{:06}", i % HOT), vec![i as u8; 1000]).unwrap();
            written += 1000;
            // Each keeps a separate log alive.
            if i % 100 == 50 && i / 100 < COLD {
                db.put_cf(&cold[i / 100], "key", vec![1; 5000]).unwrap();
                if !atomic {
                    db.inner.switch_memtables(&[0], FlushReason::WriteBufferFull).unwrap();
                }
            }
            let logs = db.inner.logs_now(&db.inner.state.lock());
            most = most.max(logs.newest + logs.others);
        }
        // A batch is written completely if there is any room.
        assert!(most < CAPACITY + 6000, "{what}: {most} bytes of logs");
        let flushed = db.counters().flush_bytes;
        assert!(flushed > 0 && flushed * 10 < written, "{what}: {flushed} bytes flushed for {written}");
        let state = db.inner.state.lock();
        for cf in &cold {
            let c = state.family(cf.id()).unwrap();
            assert_eq!((c.front().oldest_log(), c.version().levels[0].len()), (None, 1), "{what}: {}", c.cf().name);
        }
    }
}
