//! TPH tables: compactions leave entries in files that readers, iterators and other tables use, while unused files are
//! deleted.

use std::sync::Arc;

use rockmill::{BlockBasedOptions, Db, IteratorMode, Options, ReadOptions, TphTableOptions};
use rockmill_io::{FileSystem, MemFileSystem};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::explore::explore;
use crate::store::{number, open, options};

const KEYS: u8 = 24;

/// Tables with small blocks, whose files are kept for long.
fn tph_options(fs: &MemFileSystem) -> Options {
    let mut o = options(fs);
    o.set_disable_auto_compactions(true);
    o.set_write_buffer_size(1 << 20);
    o.set_num_levels(2);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(64);
    let mut tph = TphTableOptions::default();
    tph.set_block_based_options(&blocks);
    tph.set_garbage_percent(if thread_rng().r#gen() { 1000 } else { 20 });
    tph.set_piece_limit(thread_rng().gen_range(2..6));
    o.set_tph_table_factory(&tph);
    if thread_rng().r#gen() {
        // Tables and shared files are opened again and again.
        o.set_max_open_files(1);
    }
    o
}

fn put(db: &Db, key: u8, n: u64) {
    db.put([key], n.to_be_bytes()).expect("a write");
}

fn compact(db: &Db) {
    db.flush().expect("a flush");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
}

/// The number of each key (0 for none), with every way of reading at one snapshot. `n` increases for each key; key 1
/// has one more or nothing.
fn all(db: &Db, o: impl Fn() -> ReadOptions) -> Vec<u64> {
    let mut seen = vec![0; usize::from(KEYS)];
    for kv in db.iterator_opt(IteratorMode::Start, o()) {
        let (key, value) = kv.expect("an entry");
        seen[usize::from(key[0])] = number(&value);
    }
    let mut back = vec![0; usize::from(KEYS)];
    for kv in db.iterator_opt(IteratorMode::End, o()) {
        let (key, value) = kv.expect("an entry");
        back[usize::from(key[0])] = number(&value);
    }
    assert_eq!(seen, back, "forward and backward");
    let found: Vec<u64> = (0..KEYS).map(|k| db.get_opt([k], &o()).expect("a read").map_or(0, |v| number(&v))).collect();
    assert_eq!(seen, found, "iterators and lookups");
    seen
}

/// Readers, an iterator that lives through several compactions, compactions that keep pieces, and deletions of files,
/// with occasional delays.
#[test]
fn pieces_stay_as_long_as_anybody_has_them() {
    explore(|| {
        let fs = MemFileSystem::new();
        let options = tph_options(&fs);
        let db = open(&options);
        (0..KEYS).for_each(|key| put(&db, key, 1));
        compact(&db);
        put(&db, 5, 2);
        compact(&db);
        let pieces = || db.live_files().expect("files").iter().map(|f| f.pieces.len()).sum::<usize>();
        assert!(pieces() > 0, "the table is written as a whole");

        let writer = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                for n in 3..=4 {
                    [2, 5, 17].into_iter().for_each(|key| put(&db, key, n));
                    if n == 3 {
                        db.delete([1]).expect("a write");
                    } else {
                        put(&db, 1, n);
                    }
                    compact(&db);
                }
            })
        };
        let reader = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let mut last = vec![0; usize::from(KEYS)];
                for _ in 0..2 {
                    let snapshot = db.snapshot();
                    let at = || {
                        let mut o = ReadOptions::default();
                        o.set_snapshot(&snapshot);
                        o
                    };
                    let seen = all(&db, at);
                    for key in (0..usize::from(KEYS)).filter(|&key| key != 1) {
                        assert!(
                            seen[key] >= last[key].max(1),
                            "key {key} went back from {} to {}",
                            last[key],
                            seen[key]
                        );
                    }
                    assert_eq!(all(&db, at), seen, "a snapshot changed");
                    last = seen;
                }
            })
        };
        let holder = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                let mut iterator = db.raw_iterator();
                iterator.seek_to_first();
                let mut keys = Vec::new();
                while let Some((key, value)) = iterator.item() {
                    keys.push(key[0]);
                    assert!((1..=4).contains(&number(value)), "key {} has {}", key[0], number(value));
                    iterator.next();
                    if keys.len() == 9 {
                        thread::yield_now();
                    }
                }
                iterator.status().expect("a scan");
                let without: Vec<u8> = (0..KEYS).filter(|&key| key != 1).collect();
                let whole: Vec<u8> = (0..KEYS).collect();
                assert!(keys == whole || keys == without, "{keys:?}");
            })
        };
        let deletions = {
            let db = Arc::clone(&db);
            thread::spawn(move || {
                db.disable_file_deletions().expect("a hold");
                let files: Vec<u64> = db
                    .live_files()
                    .expect("files")
                    .iter()
                    .flat_map(|f| f.pieces.iter().map(|p| p.number).chain([f.number]).collect::<Vec<_>>())
                    .collect();
                thread::yield_now();
                files
            })
        };
        let held = deletions.join().expect("deletions");
        let exists = |n: &u64| fs.exists(std::path::Path::new(&format!("/db/{n:06}.sst"))).expect("a look");
        assert!(held.iter().all(exists), "a file went while deletions were held up");
        db.enable_file_deletions().expect("no hold");
        for t in [writer, reader, holder] {
            t.join().expect("a thread");
        }
        let seen = all(&db, ReadOptions::default);
        let want: Vec<u64> = (0..KEYS).map(|key| if [1, 2, 5, 17].contains(&key) { 4 } else { 1 }).collect();
        assert_eq!(seen, want);
        assert_eq!(db.background_error(), None);
        drop(db);
        let again = Db::open_for_read_only(&options, "/db", false).expect("open again");
        assert_eq!(all(&again, ReadOptions::default), want);
    });
}
