//! Writers, readers, flushes, compactions and snapshots of one database at the same time.

use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options, WriteBatch, WriteOptions};
use rockmill_io::{ManualClock, MemFileSystem};
use shuttle::thread;

use crate::explore::explore;

/// Small, so that a few writes fill memtables and L0.
pub fn options(fs: &MemFileSystem) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    o.set_clock(Arc::new(ManualClock::new(1_700_000_000_000_000)));
    o.set_write_buffer_size(4 << 10);
    o.set_arena_block_size(4 << 10);
    o.set_level_zero_file_num_compaction_trigger(2);
    o.set_max_background_jobs(2);
    o
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Each writer puts the same rising number under two keys in one batch, and reads it back; a reader never sees half of
/// a batch nor an older number than before; in the end the newest are there, also for who opens the database again.
#[test]
fn batches_are_seen_whole_and_values_never_go_back() {
    const WRITERS: u8 = 2;
    const EACH: u64 = 4;
    explore(|| {
        let fs = MemFileSystem::new();
        let db = Arc::new(Db::open(&options(&fs), "/db").expect("open"));
        let writers = (0..WRITERS).map(|w| {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 1..=EACH {
                    let mut batch = WriteBatch::new();
                    batch.put([w, 0], n.to_be_bytes());
                    batch.put([w, 1], n.to_be_bytes());
                    // Fills a memtable now and then.
                    batch.put([w, 2], vec![w; if n == 2 { 5000 } else { 10 }]);
                    let o = WriteOptions { sync: n % 3 == 0, ..WriteOptions::default() };
                    db.write_opt(&batch, &o).expect("a write");
                    let read = db.get([w, 1]).expect("a read").map(|v| number(&v));
                    assert_eq!(read, Some(n), "a writer does not see what it wrote");
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
        let again = Db::open_for_read_only(&options(&fs), "/db", false).expect("open again");
        for w in 0..WRITERS {
            assert_eq!(again.get([w, 0]).expect("a read").map(|v| number(&v)), Some(EACH));
        }
    });
}
