//! Limits of memory: the write buffer manager, and the capacity of the block cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rockmill::properties::{IO_MEMORY, KEPT_MEMTABLE_MEMORY, TPH_INDEX_MEMORY};
use rockmill::{
    BlockBasedOptions, Cache, Db, ErrorKind, IteratorMode, LruCacheOptions, MergeEngine, RateLimiter, RateLimiterMode,
    ReadOptions, WriteBufferManager, WriteOptions, get_memory_usage_stats,
};
use rockmill_io::{FileSystem, ManualClock};

use super::watch::WatchedFileSystem;
use super::{fill, filled_before_a_change_of_kind, key, memory, noise, options, set_tph};

pub(crate) fn number(db: &Db, property: &str) -> u64 {
    db.property_int_value(property).unwrap().unwrap()
}

/// Waits for what the background does.
fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::yield_now();
    }
}

#[test]
fn databases_share_the_memory_of_memtables() {
    let manager = WriteBufferManager::new_write_buffer_manager(1 << 20, false);
    let dbs: Vec<Db> = (0..2)
        .map(|_| {
            let mut o = options(&memory());
            o.set_write_buffer_manager(&manager);
            Db::open(&o, "/db").unwrap()
        })
        .collect();
    let mut most = 0;
    for n in 0..4000 {
        fill(&dbs[(n % 2) as usize], n..n + 1, 1000);
        // While a memtable waits for its flush, no other is sealed: wait for it first.
        until(|| dbs.iter().all(|db| number(db, "rocksdb.num-immutable-mem-table") == 0));
        most = most.max(manager.get_mutable_usage());
    }
    // Without the manager nothing would be flushed before 64 MiB.
    assert!(most <= (1 << 20) * 7 / 8 + (64 << 10), "{most}");
    for db in &dbs {
        assert!(number(db, "rocksdb.cur-size-active-mem-table") < 1 << 20);
        db.flush().unwrap();
        let files: u64 = db.property_value("rocksdb.num-files-at-level0").unwrap().unwrap().parse().unwrap();
        assert!((2..20).contains(&files), "{files} tables");
    }
    for n in 0..4000 {
        assert_eq!(dbs[(n % 2) as usize].get(key(n)).unwrap(), Some(noise(n, 1000)));
    }
    drop(dbs);
    assert_eq!((manager.get_usage(), manager.get_mutable_usage()), (0, 0));
}

#[test]
fn the_oldest_memtable_of_a_database_goes_first() {
    let mut o = options(&memory());
    o.set_db_write_buffer_size(1 << 20);
    o.create_missing_column_families(true);
    // The memory is needed now, regardless of the number of memtables to merge.
    o.set_min_write_buffer_number_to_merge(3);
    o.set_max_write_buffer_number(5);
    let db = Db::open_cf(&o, "/db", ["default", "old", "new"]).unwrap();
    let (old, new) = (db.cf_handle("old").unwrap(), db.cf_handle("new").unwrap());
    db.put_cf(&old, "k", noise(1, 10_000)).unwrap();
    for n in 0..1000 {
        db.put_cf(&new, key(n), noise(n, 1000)).unwrap();
    }
    let tables = |cf: &rockmill::ColumnFamily| {
        db.property_value_cf(cf, "rocksdb.num-files-at-level0").unwrap().unwrap().parse::<u32>().unwrap()
    };
    until(|| tables(&old) > 0);
    assert_eq!(db.get_cf(&old, "k").unwrap(), Some(noise(1, 10_000)));
    assert!((0..1000).all(|n| db.get_cf(&new, key(n)).unwrap() == Some(noise(n, 1000))));
}

#[test]
fn writers_wait_until_a_flush_has_freed_memory() {
    let manager = WriteBufferManager::new_write_buffer_manager(256 << 10, true);
    let limiter = RateLimiter::new(1000, 10_000, 10, RateLimiterMode::KWritesOnly, false);
    let mut o = options(&memory());
    o.set_write_buffer_manager(&manager);
    o.set_shared_ratelimiter(&limiter); // flushes hang
    let db = Db::open(&o, "/db").unwrap();
    let mut at_once = WriteOptions::default();
    at_once.set_no_slowdown(true);
    let mut written = 0;
    let refused = loop {
        match db.put_opt(key(written), noise(written, 1000), &at_once) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 1000, "writers are not stopped");
    };
    assert!(refused.kind() == ErrorKind::Incomplete && refused.to_string().contains("write buffer"), "{refused}");
    assert!(manager.get_usage() >= 256 << 10 && manager.get_usage() < 400 << 10, "{}", manager.get_usage());
    assert_eq!(number(&db, "rocksdb.is-write-stopped"), 1);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| fill(&db, written..written + 500, 1000));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "a writer did not wait");
        limiter.set_bytes_per_second(1 << 30).unwrap();
    });
    assert_eq!(number(&db, "rocksdb.is-write-stopped"), 0);
    assert!((0..written + 500).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 1000))));
}

#[test]
fn a_writer_does_not_wait_for_a_memtable_that_waits_to_be_merged() {
    let manager = WriteBufferManager::new_write_buffer_manager(256 << 10, true);
    let mut o = options(&memory());
    o.set_write_buffer_manager(&manager);
    o.set_write_buffer_size(160 << 10);
    o.set_max_write_buffer_number(4);
    o.set_min_write_buffer_number_to_merge(2);
    // Two databases: the memory of one stops the writers of the other.
    let (idle, busy) = (Db::open(&o, "/idle").unwrap(), Db::open(&o, "/busy").unwrap());
    let (done, ended) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        for n in 0..170 {
            idle.put(key(n), noise(n, 1000)).unwrap(); // one memtable is full, and the next one has little
        }
        fill(&busy, 0..2000, 1000);
        done.send((idle, busy)).unwrap();
    });
    let Ok((_idle, _busy)) = ended.recv_timeout(Duration::from_secs(60)) else {
        panic!("a writer waits for ever: {manager:?}");
    };
    writer.join().unwrap();
}

/// A kept handle also keeps the memtables.
#[test]
fn nobody_waits_for_the_memory_of_what_is_dropped_or_closed() {
    let manager = WriteBufferManager::new_write_buffer_manager(1 << 20, true);
    let mut o = options(&memory());
    o.set_write_buffer_manager(&manager);
    let (db, other) = (Db::open(&o, "/db").unwrap(), Db::open(&o, "/other").unwrap());
    db.create_cf("dropped", &o).unwrap();
    let kept = db.cf_handle("dropped").unwrap();
    (0..700).for_each(|n| db.put_cf(&kept, key(n), noise(n, 1000)).unwrap());
    assert!(manager.get_mutable_usage() > 700 << 10, "{manager:?}");
    db.drop_cf("dropped").unwrap();
    assert!(manager.get_usage() > 700 << 10 && manager.get_mutable_usage() < 100 << 10, "{manager:?}");
    let (done, ended) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        fill(&db, 0..2000, 1000);
        done.send(db).unwrap();
    });
    let Ok(db) = ended.recv_timeout(Duration::from_secs(60)) else { panic!("a writer waits for ever: {manager:?}") };
    writer.join().unwrap();
    let of_default = db.cf_handle("default").unwrap();
    fill(&db, 0..200, 1000);
    drop(db);
    assert!(manager.get_mutable_usage() < 100 << 10, "closed: {manager:?}");
    fill(&other, 0..2000, 1000);
    drop((other, of_default, kept));
    assert_eq!((manager.get_usage(), manager.get_mutable_usage()), (0, 0));
}

#[test]
fn a_writer_does_not_wait_for_its_own_iterator() {
    let manager = WriteBufferManager::new_write_buffer_manager(256 << 10, true);
    let mut o = options(&memory());
    o.set_write_buffer_manager(&manager);
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, 0..150, 1000);
    let before = db.iterator(IteratorMode::Start); // keeps that memtable in memory
    fill(&db, 150..2000, 1000);
    db.flush().unwrap();
    let stats = get_memory_usage_stats(Some(&[&db]), None).unwrap();
    assert!(stats.mem_table_total >= stats.mem_table_unflushed + 150_000, "{stats:?}");
    assert_eq!(before.count(), 150);
    assert!((0..2000).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 1000))));
}

#[test]
fn the_parts_of_memory_are_named() {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(8 << 20));
    let mut o = options(&memory());
    o.set_block_based_table_factory(&table);
    let db = Db::open(&o, "/db").unwrap();
    let other = db.create_cf("other", &o).unwrap();
    fill(&db, 0..500, 1000);
    let before = db.iterator(IteratorMode::Start); // keeps that memtable in memory
    db.flush().unwrap();
    fill(&db, 500..600, 1000);
    for n in 0..100 {
        db.put_cf(&other, key(n), noise(n, 1000)).unwrap();
    }
    let parts = db.memory_parts();
    let sum = |property| {
        [&db.cf_handle("default").unwrap(), &other].map(|cf| db.property_int_value_cf(cf, property).unwrap().unwrap())
    };
    assert_eq!(parts.memtables, sum("rocksdb.cur-size-all-mem-tables").iter().sum::<u64>());
    assert!(parts.memtables > 200_000 && parts.flushed_memtables > 500_000, "{parts:?}");
    // Two memtables with 100 entries of somewhat over a thousand bytes, in blocks of which each core fills one.
    let entries = parts.memtables - parts.memtables_unfilled;
    assert!((200_000..300_000).contains(&entries) && parts.memtables_unfilled > 0, "{parts:?}");
    assert_eq!(parts.table_readers, sum("rocksdb.estimate-table-readers-mem").iter().sum::<u64>());
    drop(before);
    // The thread that flushed may still hold the memtable when the call returns.
    until(|| db.memory_parts().flushed_memtables == 0);
    assert_eq!(db.get(key(3)).unwrap(), Some(noise(3, 1000)));
    let parts = db.memory_parts();
    // Both column families have one cache.
    assert_eq!(parts.block_cache, number(&db, "rocksdb.block-cache-usage"));
    assert!(parts.block_cache > 1000, "{parts:?}");
    assert_eq!(parts.total(), parts.named().iter().map(|(_, bytes)| bytes).sum::<u64>());
    let text = db.property_value("rocksdb.stats").unwrap().unwrap();
    assert!(text.contains("\nMemory: ") && text.contains("indexes and filters of open tables"), "{text}");
}

#[test]
fn memory_of_flushed_memtables_is_kept_for_the_next_and_given_back_when_none_comes() {
    const READY: u64 = 2 << 20;
    // More than the next memtable may leave of a memtable's pieces: threads that change cores use other blocks.
    const FEW: u64 = 3 * READY;
    let clock = ManualClock::new(0);
    let mut o = options(&memory());
    o.set_write_buffer_size(32 << 20);
    o.set_clock(Arc::new(clock.clone()));
    let db = Db::open(&o, "/db").unwrap();
    let kept = || number(&db, KEPT_MEMTABLE_MEMORY);
    assert_eq!(kept(), 0);
    fill(&db, 0..10, 1000);
    db.flush().unwrap();
    assert_eq!(kept(), 0, "a few entries take no piece");
    fill(&db, 0..18_000, 1000);
    let held = number(&db, "rocksdb.cur-size-all-mem-tables");
    db.flush().unwrap();
    // The thread that flushed may still hold the memtable when the call returns; prepared memory does not prove its
    // end.
    until(|| kept() > FEW);
    // Its pieces, the last one not quite full, and the one that was prepared for it.
    assert!(kept() <= held.next_multiple_of(READY) + READY, "{} of {held}", kept());
    let usage = get_memory_usage_stats(Some(&[&db]), None).unwrap();
    assert_eq!(usage.mem_table_total, number(&db, "rocksdb.size-all-mem-tables") + kept());
    fill(&db, 0..18_000, 1000);
    until(|| kept() <= FEW); // the next one took the others
    db.flush().unwrap();
    until(|| kept() > FEW);
    until(|| {
        clock.advance(Duration::from_secs(11));
        std::thread::sleep(Duration::from_millis(50));
        kept() == 0
    });
    assert_eq!(db.get(key(17_999)).unwrap(), Some(noise(17_999, 1000)));
}

#[test]
fn memtables_take_room_from_the_block_cache() {
    let cache = Cache::new_lru_cache(8 << 20);
    let manager = WriteBufferManager::new_write_buffer_manager_with_cache(4 << 20, false, cache.clone());
    let mut o = options(&memory());
    o.set_write_buffer_manager(&manager);
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, 0..2000, 1000);
    assert!(cache.get_usage() >= manager.get_usage() && manager.get_usage() > 2_000_000);
    assert_eq!(cache.get_usage(), manager.get_cache_usage());
    assert_eq!(cache.get_pinned_usage(), manager.get_cache_usage());
    db.flush().unwrap();
    until(|| cache.get_usage() < 1 << 20);
    db.get(key(1)).unwrap();
    let stats = get_memory_usage_stats(Some(&[&db]), Some(&[&cache, &cache.clone()])).unwrap();
    assert_eq!(stats.cache_total, cache.get_usage() as u64);
    assert_eq!(stats.mem_table_total, manager.get_usage() as u64);
    assert!(stats.mem_table_readers_total > 0);
}

fn one_shard(capacity: usize) -> LruCacheOptions {
    let mut shape = LruCacheOptions::default();
    shape.set_capacity(capacity);
    shape.set_num_shard_bits(0);
    shape
}

#[test]
fn a_strict_cache_refuses_reads_and_nothing_else() {
    let fs = memory();
    let mut shape = one_shard(64 << 10);
    shape.set_strict_capacity_limit(true);
    let mut cache = Cache::new_lru_cache_opts(&shape);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    let mut o = options(&fs);
    o.set_block_based_table_factory(&table);
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, 0..200, 1000);
    db.flush().unwrap();
    fill(&db, 100..300, 1000);
    db.flush().unwrap();

    // Values that point into blocks keep them in use.
    let mut held = Vec::new();
    let refused = (0..300).map(|n| db.get_pinned(key(n))).find_map(|v| match v {
        Ok(v) => {
            held.push(v.unwrap());
            None
        }
        Err(e) => Some(e),
    });
    let refused = refused.expect("the cache holds 300 kB in 64 KiB");
    assert!(refused.kind() == ErrorKind::Aborted && refused.to_string().contains("memory limit"), "{refused}");
    assert!(held.len() >= 40, "{}", held.len());
    assert!(cache.get_usage() <= 64 << 10 && cache.get_pinned_usage() > 50 << 10);
    assert_eq!(number(&db, "rocksdb.block-cache-pinned-usage"), cache.get_pinned_usage() as u64);
    assert_eq!(number(&db, "rocksdb.block-cache-usage"), cache.get_usage() as u64);
    assert_eq!(number(&db, "rocksdb.block-cache-capacity"), 64 << 10);
    // Iterators fail with the same error, instead of ending as if there were no more entries.
    let failed = db.iterator(IteratorMode::Start).find_map(Result::err).expect("an iterator found room");
    assert_eq!(failed.kind(), ErrorKind::Aborted);
    // Reads that do not fill the cache need no room; neither do compactions.
    let mut past = ReadOptions::default();
    past.fill_cache(false);
    assert_eq!(db.get_opt(key(299), &past).unwrap(), Some(noise(299, 1000)));
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(held.iter().enumerate().all(|(n, v)| **v == noise(n as u64, 1000)));
    drop(held);
    assert!((0..300).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 1000))));
    assert!(cache.get_usage() <= 64 << 10);
    cache.set_capacity(0);
    assert_eq!(cache.get_usage(), 0);
}

/// A database of several tables with filters, whose index and filter blocks are in `cache`.
fn with_meta_in(cache: &Cache, pin: bool) -> (rockmill::Options, Db) {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(256);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(pin);
    let mut o = options(&memory());
    o.set_block_based_table_factory(&table);
    o.enable_statistics();
    let db = Db::open(&o, "/db").unwrap();
    for part in 0..4 {
        (part..8000).step_by(4).for_each(|n| db.put(key(n), noise(n, 100)).unwrap());
        db.flush().unwrap();
    }
    (o, db)
}

/// A store with 20,000 keys in a TPH table, whose index may be charged to the cache.
fn with_tph_index_in(cache: &Cache, counts: bool) -> (rockmill::Options, Db) {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(cache);
    blocks.set_cache_index_and_filter_blocks(counts);
    let mut o = options(&memory());
    set_tph(&mut o, &blocks);
    let db = Db::open(&o, "/db").unwrap();
    fill(&db, 0..20_000, 20);
    db.flush().unwrap();
    (o, db)
}

/// The key indexes of TPH tables stay in memory, and are charged to the cache like index and filter blocks.
#[test]
fn the_index_of_tph_tables_may_count_in_the_cache() {
    for counts in [false, true] {
        let mut cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
        let (_, db) = with_tph_index_in(&cache, counts);
        assert_eq!(db.get(key(7)).unwrap(), Some(noise(7, 20)));
        let index = number(&db, TPH_INDEX_MEMORY) as usize;
        assert!((20_000..100_000).contains(&index), "{index} bytes for 20,000 keys");
        assert_eq!(cache.get_pinned_usage() >= index, counts, "{} of {index}", cache.get_pinned_usage());
        // Nobody needs blocks; the table is open.
        cache.set_capacity(0);
        assert_eq!(cache.get_usage() >= index, counts, "{} of {index}", cache.get_usage());
        drop(db);
        assert_eq!(cache.get_usage(), 0);
    }
}

/// The key index of a TPH table is charged to the cache or not kept: if a strict cache has no room for it, lookups fail
/// like those of block-based tables, and compactions continue.
#[test]
fn the_index_of_tph_tables_needs_room_in_a_strict_cache() {
    let mut cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
    let (o, db) = with_tph_index_in(&cache, true);
    drop(db);
    cache.set_strict_capacity_limit(true);
    cache.set_capacity(20_000);
    let db = Db::open(&o, "/db").unwrap();
    for _ in 0..2 {
        let refused = db.get(key(7)).unwrap_err();
        assert!(refused.kind() == ErrorKind::Aborted && refused.to_string().contains("memory limit"), "{refused}");
        assert!(cache.get_usage() <= 20_000);
        let index = number(&db, TPH_INDEX_MEMORY);
        assert!(index < 10_000, "{index} bytes are held, and count nowhere");
    }
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert_eq!(db.get(key(7)).unwrap_err().kind(), ErrorKind::Aborted);
    cache.set_capacity(4 << 20);
    let mut only = ReadOptions::default();
    only.set_cache_only(true);
    assert_eq!(db.get_opt(key(7), &only).unwrap_err().kind(), ErrorKind::Incomplete);
    assert!((0..20_000).step_by(7).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 20))));
    let index = number(&db, TPH_INDEX_MEMORY) as usize;
    assert!((20_000..100_000).contains(&index) && cache.get_pinned_usage() >= index, "{index}");
    drop(db);
    cache.set_capacity(0);
    assert_eq!(cache.get_usage(), 0);
}

/// Only scans need the indexes of TPH tables: writes, opens and lookups do not use the cache for them. A compaction
/// reads the index of each file once, and keeps none.
#[test]
fn indexes_of_tph_tables_are_in_the_cache_once_a_scan_needs_them() {
    use rockmill::statistics::Ticker;
    for engine in [MergeEngine::Uring, MergeEngine::Pread] {
        let cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&cache);
        let mut o = options(&memory());
        set_tph(&mut o, &blocks);
        o.set_merge_engine(engine);
        o.enable_statistics();
        let db = Db::open(&o, "/db").unwrap();
        let count = |ticker| o.get_ticker_count(ticker);
        fill(&db, 0..20_000, 20);
        db.flush().unwrap();
        for round in 0..3u64 {
            (round..20_000).step_by(20).for_each(|n| db.put(key(n), noise(n, 20)).unwrap());
            db.flush().unwrap();
            let files: usize = db.live_files().unwrap().iter().map(|f| 1 + f.pieces.len()).sum();
            let misses = count(Ticker::BlockCacheIndexMiss);
            db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            let read = count(Ticker::BlockCacheIndexMiss) - misses;
            assert_eq!(read, files as u64, "{engine:?}, round {round}: indexes read");
        }
        let files = 1 + db.live_files().unwrap()[0].pieces.len() as u64;
        assert!(files > 1, "a table of several files");
        assert_eq!((cache.get_usage(), count(Ticker::BlockCacheIndexAdd)), (0, 0), "{engine:?}");
        assert!((0..20_000).step_by(7).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 20))));
        assert_eq!(count(Ticker::BlockCacheIndexAdd), 0, "{engine:?}: lookups need none");
        for _ in 0..2 {
            assert_eq!(db.iterator(IteratorMode::Start).map(Result::unwrap).count(), 20_000);
            assert_eq!(count(Ticker::BlockCacheIndexAdd), files, "{engine:?}");
        }
        // Places that tables share are counted once.
        let index = number(&db, TPH_INDEX_MEMORY);
        assert!((20_000 * 2..20_000 * 4).contains(&index), "{index} bytes for 20,000 keys");
    }
}

/// Block-based tables keep their indexes in memory if a column family now writes TPH tables, and drop them when they
/// become pieces of TPH tables.
#[test]
fn block_based_tables_among_tph_tables_keep_their_index_where_it_was() {
    let mut cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
    let (mut o, db) = with_meta_in(&cache, true);
    drop(db);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&cache);
    blocks.set_block_size(256);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    set_tph(&mut o, &blocks);
    let db = Db::open(&o, "/db").unwrap();
    let all = |db: &Db| (0..8000).step_by(50).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 100)));
    assert!(all(&db));
    cache.set_capacity(0);
    let pinned = cache.get_usage();
    assert!(pinned > 4 * 30_000 && cache.get_pinned_usage() == pinned, "{pinned}");
    assert!(all(&db));
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(all(&db));
    drop(db);

    // Without room in the cache, they are kept with the open tables.
    cache.set_capacity(4 << 20);
    let fs = memory();
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&cache);
    blocks.set_block_size(256);
    let db = filled_before_a_change_of_kind(&fs, &blocks, false, 8000);
    assert!(all(&db));
    let readers = |db: &Db| number(db, "rocksdb.estimate-table-readers-mem");
    let as_such = readers(&db);
    assert!(as_such > 100_000, "{as_such}");
    fill(&db, 7990..8000, 100);
    db.flush().unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert_eq!(db.live_files().unwrap()[0].pieces.len(), 1);
    assert!(all(&db));
    // 8,000 keys take three bytes each, and the places of 3,300 blocks a few bits.
    assert!(readers(&db) < as_such / 2, "{} of {as_such}", readers(&db));
}

#[test]
fn index_and_filter_may_live_in_the_cache() {
    use rockmill::statistics::Ticker;
    let mut cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
    let (o, db) = with_meta_in(&cache, false);
    let check = || {
        assert!((0..8000).step_by(7).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 100))));
        assert!((0..500).all(|n| db.get(&key(n)[..6]).unwrap().is_none()));
        assert_eq!(db.iterator(IteratorMode::Start).map(Result::unwrap).count(), 8000);
        assert_eq!(db.iterator(IteratorMode::End).map(Result::unwrap).count(), 8000);
    };
    check();
    // Four indexes of 1,000 blocks, and the filters.
    assert!(cache.get_usage() > 4 * 30_000);
    let readers = number(&db, "rocksdb.estimate-table-readers-mem");
    assert!(readers < 20_000, "{readers} bytes are with the open tables");
    assert!(o.get_ticker_count(Ticker::BlockCacheIndexHit) > 1000);
    assert!(o.get_ticker_count(Ticker::BlockCacheFilterHit) > 1000);
    assert_eq!(o.get_ticker_count(Ticker::BlockCacheFilterAdd), 4);
    assert!(o.get_ticker_count(Ticker::BlockCacheIndexBytesInsert) > 4 * 20_000);
    assert!(o.get_ticker_count(Ticker::BlockCacheFilterBytesInsert) >= 4 * 2500);

    // They are evicted with everything else, and read again when needed.
    cache.set_capacity(0);
    assert_eq!(cache.get_usage(), 0);
    let misses = o.get_ticker_count(Ticker::BlockCacheIndexMiss);
    assert_eq!(db.get(key(5)).unwrap(), Some(noise(5, 100)));
    assert!(o.get_ticker_count(Ticker::BlockCacheIndexMiss) > misses);
    assert!(o.get_ticker_count(Ticker::BlockCacheFilterMiss) > 0);
    assert!(o.get_ticker_count(Ticker::BlockCacheMiss) > o.get_ticker_count(Ticker::BlockCacheDataMiss));
    let mut only = ReadOptions::default();
    only.set_cache_only(true);
    assert_eq!(db.get_opt(key(5), &only).unwrap_err().kind(), ErrorKind::Incomplete);
    let failed = db.iterator_opt(IteratorMode::Start, only).next().unwrap().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Incomplete);
    cache.set_capacity(4 << 20);
    check();
    // An iterator holds the index that it uses.
    let mut it = db.raw_iterator();
    it.seek_to_first();
    assert!(cache.get_pinned_usage() > 4 * 30_000);
    cache.set_capacity(0);
    let mut count = 0;
    while it.valid() {
        count += 1;
        it.next();
    }
    it.status().unwrap();
    assert_eq!(count, 8000);
    drop(it);
    assert_eq!(db.get(key(4000)).unwrap(), Some(noise(4000, 100)));
    assert!(cache.get_usage() < 45_000, "what the iterator held is gone: one index is in use while a block is read");
    // Compactions need no room in a cache that is full and strict.
    cache.set_strict_capacity_limit(true);
    assert_eq!(db.get(key(5)).unwrap_err().kind(), ErrorKind::Aborted);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    cache.set_capacity(4 << 20);
    check();
}

/// Index and filter of a table leave the cache with the table: those of obsolete tables are useless.
#[test]
fn indexes_of_tables_that_are_gone_leave_the_cache() {
    let cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
    let (_, db) = with_meta_in(&cache, false);
    let four = cache.get_usage();
    assert!(four > 4 * 30_000, "{four}");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    // The remaining table has as many keys, and no block was read through the cache.
    until(|| cache.get_usage() < four * 3 / 2);
    assert!(cache.get_usage() > four / 2);
    assert!((0..8000).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 100))));
    drop(db);
    assert_eq!(cache.get_pinned_usage(), 0);
}

#[test]
fn l0_may_be_pinned_and_indexes_have_their_own_part() {
    let mut cache = Cache::new_lru_cache_opts(&one_shard(4 << 20));
    let (_, db) = with_meta_in(&cache, true);
    db.get(key(5)).unwrap();
    let all = |db: &Db| (0..8000).step_by(50).all(|n| db.get(key(n)).unwrap() == Some(noise(n, 100)));
    assert!(all(&db));
    cache.set_capacity(0);
    let pinned = cache.get_usage();
    assert!(pinned > 4 * 30_000 && cache.get_pinned_usage() == pinned, "{pinned}");
    assert!(all(&db));
    // In deeper levels nothing is pinned.
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(all(&db));
    until(|| cache.get_pinned_usage() == 0);
    drop(db);

    // Data blocks do not push indexes out of their part of the cache.
    let mut shape = one_shard(2 << 20);
    shape.set_high_pri_pool_ratio(0.5);
    let cache = Cache::new_lru_cache_opts(&shape);
    let (o, db) = with_meta_in(&cache, false);
    for _ in 0..3 {
        assert_eq!(db.iterator(IteratorMode::Start).map(Result::unwrap).count(), 8000);
    }
    assert!(cache.get_usage() <= 2 << 20);
    let added = o.get_ticker_count(rockmill::statistics::Ticker::BlockCacheIndexAdd);
    assert_eq!(added, 4);
}

#[test]
fn memory_of_rings_is_that_of_jobs_at_a_time_whoever_runs_them_and_goes_when_it_is_idle() {
    let fs = memory();
    let clock = ManualClock::new(1_700_000_000_000_000);
    let mut o = options(&fs);
    o.set_clock(Arc::new(clock.clone()));
    o.set_merge_engine(MergeEngine::Uring);
    // A flush that writes through the page cache has no ring.
    o.set_use_direct_io_for_flush_and_compaction(true);
    let db = Db::open(&o, "/db").unwrap();
    let io = || number(&db, IO_MEMORY);
    assert_eq!(io(), 0, "a store that does nothing has none");
    fill(&db, 0..100, 100);
    db.flush().unwrap();
    let flush = io();
    assert!((1..=10 << 20).contains(&flush), "{flush}");
    // Jobs one after another, each in its own thread.
    let mut most = 0;
    for round in 0..8 {
        fill(&db, 0..100, 100);
        db.flush().unwrap();
        std::thread::scope(|scope| {
            let job = || db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
            scope.spawn(job).join().unwrap();
        });
        assert!(round == 0 || io() == most, "round {round}: {} and {most} before", io());
        most = io();
        assert!(most >= flush && most <= 24 << 20, "{most}");
    }
    // Lookups have theirs.
    db.multi_get((0..100).map(key)).into_iter().for_each(|v| assert!(v.unwrap().is_some()));
    assert_eq!(io(), most + (2 << 20));
    // Other options: the next job uses no more memory than they allow.
    db.set_options(&[("merge_engine", "pread")]).unwrap();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    clock.advance(Duration::from_secs(61));
    until(|| io() == 0);
    fill(&db, 0..100, 100);
    db.flush().unwrap();
    assert_eq!(io(), 0, "pread needs none");
}

#[cfg(feature = "kernel")]
#[test]
fn memory_of_merges_in_the_kernel_is_counted_and_goes_when_it_is_idle() {
    use rockmill::properties::KERNEL_MEMORY;
    use rockmill::{KernelDriver, probe_kernel_engine};
    if let Err(e) = probe_kernel_engine(KernelDriver::Run) {
        return rockmill_skip::skip("memory of merges in the kernel", &rockmill_skip::Needs::Kernel.because(e));
    }
    let fs = memory();
    let clock = ManualClock::new(1_700_000_000_000_000);
    let mut o = options(&fs);
    o.set_clock(Arc::new(clock.clone()));
    let db = Db::open(&o, "/db").unwrap();
    let kernel = || number(&db, KERNEL_MEMORY);
    db.set_options(&[("merge_engine", "uring")]).unwrap();
    assert_eq!(kernel(), 0, "a store without the engine has none");
    db.set_options(&[("merge_engine", "kernel")]).unwrap();
    let mut most = 0;
    for round in 0..3 {
        for _ in 0..2 {
            fill(&db, 0..100, 100);
            db.flush().unwrap();
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        assert!(round == 0 || kernel() == most, "round {round}: {} and {most} before", kernel());
        most = kernel();
        assert!((4 << 20..=25 << 20).contains(&most), "{most}");
    }
    clock.advance(Duration::from_secs(61));
    until(|| kernel() == 0);
}

/// A value of zeros that takes no memory until it is read.
fn zeros(len: usize) -> Vec<u8> {
    vec![0; len]
}

/// An entry too large for a block is refused by every call that would add it, before anything is written.
#[test]
fn a_value_of_almost_4_gib_that_no_block_can_hold_is_refused() {
    let options = crate::options(&crate::memory());
    let db = rockmill::Db::open(&options, "/db").expect("a database");
    let value = zeros(u32::MAX as usize - 300);
    for (what, done) in [("put", db.put("key", &value)), ("delete", db.delete(&value))] {
        let e = done.expect_err(what);
        assert_eq!(e.kind(), rockmill::ErrorKind::InvalidArgument, "{what}: {e}");
        assert!(e.to_string().contains("the limit is"), "{what}: {e}");
    }
    assert_eq!(db.background_error(), None);
    assert_eq!(db.latest_sequence_number(), 0);
    let mut table = rockmill::SstFileWriter::create(&options);
    table.open("/table.sst").expect("a file");
    table.put("a", "1").expect("an entry");
    let e = table.put("b", zeros(u32::MAX as usize - 200)).expect_err("no block holds it");
    assert!(e.to_string().contains("a block holds"), "{e}");
}

/// Without a ring, a flush reads each value with a plain call when it needs it, and announces later reads to the
/// kernel: no more than a ring would have in flight, and no more bytes than `compaction_io_memory`, whatever the number
/// of index tables.
#[test]
fn plain_reads_of_a_flush_are_bounded() {
    // A read of 64 KiB, aligned, and the reads that are in flight.
    const SLOT: usize = (64 + 8) << 10;
    const READS: usize = 64;
    for (tables, io_memory) in [(1, 1 << 20), (8, 24 << 20), (40, 1 << 20), (100, 1 << 20), (100, 10 << 20)] {
        let fs = WatchedFileSystem::new(memory());
        let mut o = options(&(Arc::clone(&fs) as Arc<dyn FileSystem>));
        o.set_fast_path("/fast", 1 << 30);
        o.set_max_index_size((512 << 10) / tables);
        o.set_data_flush_trigger_size(1 << 30);
        o.set_index_merge_trigger_num(0);
        o.set_merge_engine(MergeEngine::Pread);
        o.set_compaction_io_memory(io_memory);
        let db = Db::open(&o, "/db").unwrap();
        // In random order, so that the values of a table's window are all over its log.
        let key = |n: u64| key(n * 7919 % 1_000_003);
        let (mut n, resting) = (0, number(&db, IO_MEMORY));
        while number(&db, "rocksdb.num-immutable-mem-table") < tables as u64 {
            db.put(key(n), noise(n % 100, 1000)).unwrap();
            n += 1;
        }
        let what = format!("{tables} tables, {io_memory} bytes");
        db.flush().unwrap();
        // The last was begun when the one before it was full.
        let together = tables + 1;
        let wanted = together * ((READS / together).max(2) + 1) * SLOT;
        let memory = wanted.min(io_memory.max((READS + 1) * SLOT));
        assert_eq!(fs.seen.plain_memory.lock().unwrap()[..], [memory], "{what}");
        let ahead = fs.seen.ahead.lock().unwrap();
        assert!((READS / 2..=READS).contains(&ahead.most), "{what}: {} reads in flight", ahead.most);
        // One read of each table is in flight in any case.
        assert!(ahead.most_bytes <= (memory + together * SLOT) as u64, "{what}: {ahead:?}");
        assert!(ahead.all > 100, "{what}: {ahead:?}");
        drop(ahead);
        assert_eq!(number(&db, IO_MEMORY), resting, "{what}: it is given back");
        for i in (0..n).step_by(17) {
            assert_eq!(db.get(key(i)).unwrap(), Some(noise(i % 100, 1000)), "{what}: {i}");
        }
    }
}
