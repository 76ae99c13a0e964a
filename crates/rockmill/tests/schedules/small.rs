//! Small databases in Miri: two writers, a reader, flushes and compactions, on the in-memory file system; and index
//! tables that are merged and flushed meanwhile.

use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options, WriteOptions, properties};
use rockmill_io::MemFileSystem;

#[test]
fn a_small_database_does_nothing_undefined() {
    let fs = MemFileSystem::new();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs));
    o.set_write_buffer_size(8 << 10);
    o.set_arena_block_size(4 << 10);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_max_background_jobs(2);
    let db = Db::open(&o, "/db").expect("open");
    std::thread::scope(|s| {
        for w in 0..2u8 {
            let db = &db;
            s.spawn(move || {
                for n in 0..10u8 {
                    let mut options = WriteOptions::default();
                    options.set_sync(n % 4 == 0);
                    db.put_opt([n, w], vec![n; 100], &options).expect("a write");
                }
                db.flush().expect("a flush");
            });
        }
        s.spawn(|| {
            for _ in 0..3 {
                let all: Vec<_> = db.iterator(IteratorMode::Start).map(|kv| kv.expect("an entry")).collect();
                assert!(all.iter().all(|(k, v)| v.len() == 100 && v[0] == k[0]));
            }
        });
    });
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
    drop(db);
    let db = Db::open(&o, "/db").expect("open again");
    assert_eq!(db.iterator(IteratorMode::End).count(), 20);
    assert_eq!(db.get([3, 1]).expect("a read").map(|v| v.len()), Some(100));
}

/// Values are in the log or, for some writes, in the index, so that a few writes fill an index table.
#[test]
fn a_small_database_with_index_tables_does_nothing_undefined() {
    let fs = MemFileSystem::new();
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs));
    o.set_fast_path("/fast", 1 << 20);
    o.set_arena_block_size(4 << 10);
    o.set_max_index_size(4 << 10);
    o.set_index_inline_size(1000);
    o.set_data_flush_trigger_size(1 << 20);
    // Two threads for flushes, so that a merge can run next to a flush.
    o.set_max_background_jobs(8);
    let db = Db::open(&o, "/db").expect("open");
    std::thread::scope(|s| {
        for w in 0..2u8 {
            let db = &db;
            s.spawn(move || {
                for n in 0..16u8 {
                    let len = if n % 3 == 0 { 1200 } else { 900 };
                    db.put([n % 8, w], vec![n; len]).expect("a write");
                }
            });
        }
        s.spawn(|| {
            for _ in 0..3 {
                for kv in db.iterator(IteratorMode::Start) {
                    let (key, value) = kv.expect("an entry");
                    assert!(value[0] % 8 == key[0] && value.iter().all(|b| *b == value[0]));
                }
            }
        });
    });
    let tables = || db.property_int_value("rocksdb.num-immutable-mem-table").expect("a property").expect("a number");
    let merged = || db.counters().index_tables_merged;
    // One of each tier may rest.
    (0..100_000).take_while(|_| tables() > 4 || merged() == 0).for_each(|_| std::thread::yield_now());
    assert!(tables() <= 4 && merged() > 0, "{} tables, {} were merged", tables(), merged());
    let check = |db: &Db| {
        for (n, w) in (8..16u8).flat_map(|n| [(n, 0), (n, 1)]) {
            let value = db.get([n % 8, w]).expect("a read").expect("a value");
            assert!(value.iter().all(|b| *b == n), "{n}, {w}");
        }
        assert_eq!(db.iterator(IteratorMode::End).count(), 16);
    };
    check(&db);
    db.flush().expect("a flush");
    check(&db);
    assert_eq!(db.property_int_value(properties::INDEX_MERGE_QUEUE).expect("a property"), Some(0));
    drop(db);
    check(&Db::open(&o, "/db").expect("open again"));
}
