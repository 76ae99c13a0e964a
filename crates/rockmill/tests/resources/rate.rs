//! The rate limiter in flushes and compactions, and priorities without one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rockmill::event_listener::FlushJobInfo;
use rockmill::properties::{COMPACTIONS_GAVE_WAY, COMPACTIONS_WAITED_FOR_READS};
use rockmill::{
    BlockBasedOptions, Cache, Db, EventListener, FlushOptions, IoPriority, Options, RateLimiter, RateLimiterMode,
    TphTableOptions,
};
use rockmill_io::{Clock, FileSystem, ManualClock};

use super::watch::WatchedFileSystem;
use super::{fill, key, memory, noise, options, table_bytes};

const MB: i64 = 1 << 20;

fn limiter(mode: RateLimiterMode) -> (Arc<RateLimiter>, ManualClock) {
    let clock = ManualClock::new(1_000_000);
    (RateLimiter::with_clock(MB, 100_000, 10, mode, false, Arc::new(clock.clone())), clock)
}

#[test]
fn flushes_ask_with_high_and_compactions_with_low_priority() {
    let fs = memory();
    let dir = Path::new("/db");
    let (limiter, clock) = limiter(RateLimiterMode::KWritesOnly);
    let mut o = options(&fs);
    o.set_shared_ratelimiter(&limiter);
    let db = Db::open(&o, dir).unwrap();
    fill(&db, 0..2000, 1000);
    db.flush().unwrap();
    let flushed = table_bytes(&*fs, dir);
    assert!(flushed > 2_000_000);
    assert_eq!(limiter.total_bytes_through(Some(IoPriority::High)), flushed);
    assert_eq!(limiter.total_bytes_through(None), flushed);
    let took = clock.monotonic_nanos() as f64 / 1e9;
    let wanted = flushed as f64 / MB as f64;
    assert!((wanted - 0.3..wanted + 0.3).contains(&took), "{flushed} bytes at 1 MiB/s took {took} s");

    fill(&db, 1000..1500, 1000);
    db.flush().unwrap();
    let before = limiter.total_bytes_through(Some(IoPriority::High));
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    let compacted = table_bytes(&*fs, dir);
    assert_eq!(limiter.total_bytes_through(Some(IoPriority::Low)), compacted);
    assert_eq!(limiter.total_bytes_through(Some(IoPriority::High)), before);
    // No request is larger than the bytes of one period.
    assert!(limiter.total_requests(Some(IoPriority::Low)) >= compacted.div_ceil(limiter.single_burst_bytes() as u64));
    for n in [0, 1234, 1999] {
        assert_eq!(db.get(key(n)).unwrap(), Some(noise(n, 1000)));
    }
}

#[test]
fn reads_of_compactions_are_limited_when_asked() {
    let modes = [RateLimiterMode::KReadsOnly, RateLimiterMode::KAllIo];
    for (mode, tph) in modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let fs = memory();
        let dir = Path::new("/db");
        let (limiter, _) = limiter(mode);
        let mut o = options(&fs);
        o.set_shared_ratelimiter(&limiter);
        o.set_compaction_readahead_size(64 << 10);
        if tph {
            o.set_tph_table_factory(&TphTableOptions::default());
        }
        let db = Db::open(&o, dir).unwrap();
        fill(&db, 0..500, 1000);
        db.flush().unwrap();
        fill(&db, 0..500, 1000);
        db.flush().unwrap();
        let inputs = table_bytes(&*fs, dir);
        let flushed = limiter.total_bytes_through(Some(IoPriority::High));
        assert_eq!(flushed > 0, mode == RateLimiterMode::KAllIo);
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        let low = limiter.total_bytes_through(Some(IoPriority::Low));
        let written = if mode == RateLimiterMode::KAllIo { table_bytes(&*fs, dir) } else { 0 };
        let read = low - written;
        // Only data blocks are read; index and properties were read when the tables were opened.
        assert!(read > inputs * 9 / 10 && read < inputs * 12 / 10, "{mode:?}, TPH {tph}: {read} of {inputs}");
    }
}

#[test]
fn databases_share_a_limiter_and_closing_ends_waits() {
    let limiter = RateLimiter::new(1000, 100_000, 10, RateLimiterMode::KWritesOnly, false);
    let dbs: Vec<Db> = (0..2)
        .map(|_| {
            let mut o = options(&memory());
            o.set_shared_ratelimiter(&limiter);
            Db::open(&o, "/db").unwrap()
        })
        .collect();
    let mut no_wait = FlushOptions::default();
    no_wait.set_wait(false);
    for db in &dbs {
        fill(db, 0..200, 1000);
        db.flush_opt(&no_wait).unwrap(); // 200 s at this rate
    }
    let started = Instant::now();
    while limiter.total_pending_requests(None) < 2 {
        assert!(started.elapsed() < Duration::from_secs(10), "the flushes do not ask");
        std::thread::yield_now();
    }
    let started = Instant::now();
    drop(dbs);
    assert!(started.elapsed() < Duration::from_secs(5), "closing took {:?}", started.elapsed());
    assert_eq!(limiter.total_pending_requests(None), 0);
}

#[test]
fn a_limiter_that_makes_no_sense_is_refused_at_open() {
    let mut o = options(&memory());
    o.set_ratelimiter(0, 100_000, 10);
    let e = Db::open(&o, "/db").unwrap_err().to_string();
    assert!(e.contains("rate limiter"), "{e}");
    o.set_ratelimiter(1, 1, 1);
    o.set_auto_tuned_ratelimiter(10 * MB, 100_000, 10);
    let _: &Options = &o;
    drop(Db::open(&o, "/db").unwrap());
}

/// Blocks flushes from a signal until the sender is dropped.
#[derive(Clone)]
struct HoldFlushes {
    armed: Arc<AtomicBool>,
    held: Arc<AtomicBool>,
    until: Arc<Mutex<Receiver<()>>>,
}

impl EventListener for HoldFlushes {
    fn on_flush_begin(&self, _: &FlushJobInfo) {
        if self.armed.load(Ordering::SeqCst) {
            self.held.store(true, Ordering::SeqCst);
            let _ = self.until.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_compaction_lets_a_flush_go_first_that_writers_would_wait_for() {
    for memtables in [2, 6] {
        let (release, until) = channel();
        let until = Arc::new(Mutex::new(until));
        let hold = HoldFlushes { armed: Arc::default(), held: Arc::default(), until };
        let mut o = options(&memory());
        o.set_level_zero_file_num_compaction_trigger(2);
        o.set_write_buffer_size(4 << 20);
        o.set_max_write_buffer_number(memtables);
        o.add_event_listener(hold.clone());
        let db = Db::open(&o, "/db").unwrap();
        for begin in [0, 1000] {
            fill(&db, begin..begin + 2000, 1000);
            db.flush().unwrap();
        }
        let waited = || db.property_int_value(COMPACTIONS_GAVE_WAY).unwrap().unwrap();
        hold.armed.store(true, Ordering::SeqCst);
        let mut n = 3000;
        while !hold.held.load(Ordering::SeqCst) {
            fill(&db, n..n + 1, 1000);
            n += 1;
        }
        assert_eq!(waited(), 0);
        db.set_options(&[("disable_auto_compactions", "false")]).unwrap();
        // It pauses for a limited time after each megabyte, and continues: even a flush that never ends does not block
        // a compaction.
        let started = Instant::now();
        while db.property_value("rocksdb.num-files-at-level0").unwrap().as_deref() != Some("0") {
            assert!(started.elapsed() < Duration::from_secs(20), "the compaction does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        // With room for more memtables, writers are far from having to wait.
        assert_eq!(waited() > 0, memtables == 2, "{} times", waited());
        hold.armed.store(false, Ordering::SeqCst);
        drop(release);
        assert_eq!(db.get(key(n - 1)).unwrap(), Some(noise(n - 1, 1000)));
    }
}

/// What starts the compaction, and what happens at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Reads,
    Nothing,
    ReadsOfWhatIsCached,
    ReadsWhileSomebodyWaits,
    ReadsWithALimiter,
}

/// Merges two L0 tables of 3 MB each on a device that writes 10 MB/s. Returns the microseconds that the compaction
/// waited for reads.
fn waited_for_reads(beside: Beside) -> u64 {
    let watched = WatchedFileSystem::new(memory());
    let seen = Arc::clone(&watched.seen);
    let fs: Arc<dyn FileSystem> = watched;
    let mut o = options(&fs);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(64 << 20));
    table.set_format_version(5);
    if beside != Beside::ReadsOfWhatIsCached {
        table.disable_cache();
    }
    o.set_block_based_table_factory(&table);
    o.set_level_zero_file_num_compaction_trigger(2);
    if beside == Beside::ReadsWithALimiter {
        o.set_ratelimiter(1 << 40, 100_000, 10);
    }
    let db = Db::open(&o, "/db").unwrap();
    for begin in [0, 1500] {
        fill(&db, begin..begin + 3000, 1000);
        db.flush().unwrap();
    }
    drop(db);
    let db = Db::open(&o, "/db").unwrap();
    (0..4500).for_each(|n| assert!(db.get(key(n)).unwrap().is_some()));
    seen.slow.store(true, Ordering::SeqCst);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut n = 0;
            while beside != Beside::Nothing && !done.load(Ordering::SeqCst) {
                n = (n + 7) % 4500;
                // The compaction's output is not in the cache.
                let n = if beside == Beside::ReadsOfWhatIsCached { 0 } else { n };
                assert_eq!(db.get(key(n)).unwrap().map(|v| v.len()), Some(1000));
            }
        });
        if beside == Beside::ReadsWhileSomebodyWaits {
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        } else {
            db.set_options(&[("disable_auto_compactions", "false")]).unwrap();
        }
        let started = Instant::now();
        while db.property_value("rocksdb.num-files-at-level0").unwrap().as_deref() != Some("0") {
            assert!(started.elapsed() < Duration::from_secs(30), "the compaction does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        done.store(true, Ordering::SeqCst);
    });
    for n in [0, 1234, 1999, 4499] {
        assert_eq!(db.get(key(n)).unwrap(), Some(noise(n, 1000)));
    }
    db.property_int_value(COMPACTIONS_WAITED_FOR_READS).unwrap().unwrap()
}

#[test]
fn compactions_that_nobody_waits_for_leave_the_device_to_reads() {
    // The scheduler may not run the reader during a compaction, so several attempts are allowed.
    assert!((0..10).any(|_| waited_for_reads(Beside::Reads) > 20_000));
    for beside in [Beside::Nothing, Beside::ReadsOfWhatIsCached, Beside::ReadsWhileSomebodyWaits] {
        assert_eq!(waited_for_reads(beside), 0, "{beside:?}");
    }
    assert_eq!(waited_for_reads(Beside::ReadsWithALimiter), 0, "it has priorities of its own");
}
