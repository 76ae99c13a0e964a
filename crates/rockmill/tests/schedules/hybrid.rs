//! The whole store with values in the log: writers fill index tables, which are merged and flushed, while readers, an
//! older iterator and an older snapshot read; then the database is reopened.

use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options, ReadOptions};
use rockmill_io::MemFileSystem;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::explore::explore;
use crate::store::{number, open, options};

const KEYS: u8 = 4;
const WRITERS: u8 = 2;
/// The writers' last number.
const LAST: u64 = 3;

/// A few writes fill an index table, because inline values count; a flush is due now and then, or only at the end.
fn index_options(fs: &MemFileSystem) -> Options {
    let mut o = options(fs);
    o.set_fast_path("/fast", 1 << 20);
    o.set_max_index_size(4 << 10);
    o.set_index_inline_size(if thread_rng().r#gen() { 8 } else { 1 << 20 });
    o.set_data_flush_trigger_size(if thread_rng().r#gen() { 12 << 10 } else { 1 << 20 });
    // One or two threads for flushes, so that merges can run next to a flush.
    o.set_max_background_jobs(if thread_rng().r#gen() { 2 } else { 8 });
    o
}

/// A number, followed by data that stays in the log or fills an index table.
fn value(n: u64, size: usize) -> Vec<u8> {
    let mut value = n.to_be_bytes().to_vec();
    value.resize(8 + size, n as u8);
    value
}

fn checked(value: &[u8]) -> u64 {
    let (n, rest) = value.split_at(8);
    let n = number(n);
    assert!(rest.iter().all(|b| *b == n as u8), "another value's bytes");
    n
}

/// The number of each key (0 for none), from an iterator and lookups at one snapshot.
fn all(db: &Db) -> Vec<u64> {
    let snapshot = db.snapshot();
    let key = |i: u8| [i / KEYS, i % KEYS];
    let found: Vec<u64> =
        (0..WRITERS * KEYS).map(|i| snapshot.get(key(i)).expect("a read").map_or(0, |value| checked(&value))).collect();
    let mut seen = vec![0; found.len()];
    let mut read = ReadOptions::default();
    read.set_snapshot(&snapshot);
    for kv in db.iterator_opt(IteratorMode::Start, read) {
        let (key, value) = kv.expect("an entry");
        seen[usize::from(key[0] * KEYS + key[1])] = checked(&value);
    }
    assert_eq!(seen, found, "an iterator and lookups at one snapshot");
    found
}

/// No reader sees a key's number decrease, or an unreadable address; nothing is lost after a reopen.
#[test]
fn values_stay_in_the_log_while_index_tables_are_merged_and_flushed() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = index_options(&fs);
        let db = open(&options);
        let writers = (0..WRITERS).map(|w| {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 1..=LAST {
                    for key in 0..KEYS {
                        if key == 3 && n == 2 {
                            db.delete([w, key]).expect("a delete");
                            continue;
                        }
                        let size = if key == 0 { 2000 } else { 20 };
                        db.put([w, key], value(n, size)).expect("a write");
                        assert_eq!(db.get([w, key]).expect("a read").map(|v| checked(&v)), Some(n), "what it wrote");
                    }
                }
            })
        });
        let readers = (0..2).map(|_| {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let mut last = vec![0; usize::from(WRITERS * KEYS)];
                for _ in 0..3 {
                    let mut held = db.raw_iterator();
                    held.seek_to_first();
                    let now = all(&db);
                    let fell = now.iter().zip(&last).enumerate().find(|(i, (n, old))| n < old && i % 4 != 3);
                    assert_eq!(fell, None, "a value went back");
                    last = now;
                    while held.valid() {
                        checked(held.value().expect("a value"));
                        held.next();
                    }
                    held.status().expect("a sound iterator");
                }
            })
        });
        let flusher = {
            let db = Arc::clone(&db);
            thread::spawn(move || db.flush().expect("a flush"))
        };
        let threads: Vec<_> = writers.chain(readers).chain([flusher]).collect();
        for t in threads {
            t.join().expect("a thread");
        }
        assert_eq!(db.background_error(), None);
        assert_eq!(all(&db), [LAST; (WRITERS * KEYS) as usize]);
        drop(db);
        assert_eq!(all(&open(&options)), [LAST; (WRITERS * KEYS) as usize], "opened again");
    });
}
