//! A small database in Miri: two writers, a reader, flushes and compactions, on the memory twin.

use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options, WriteOptions};
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
