//! Read-only instances and secondaries of a database with a fast path: values stay in the logs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options};
use rockmill_io::{FileSystem, MemFileSystem};

type Model = BTreeMap<String, Vec<u8>>;

fn plain(fs: &MemFileSystem) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    // As a secondary needs it.
    o.set_max_open_files(-1);
    o.set_max_index_size(16 << 10);
    o.set_merge_operator_associative("append", |_, old, operands| {
        let mut all = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|o| all.extend_from_slice(o));
        Some(all)
    });
    o
}

/// With a fast path, and no flush that comes by itself.
fn fast(fs: &MemFileSystem) -> Options {
    let mut o = plain(fs);
    o.set_fast_path("/fast", 1 << 30);
    o.set_data_flush_trigger_size(1 << 30);
    o
}

fn logs(fs: &MemFileSystem) -> Vec<(String, u64)> {
    let mut names = fs.list_dir(Path::new("/fast")).expect("a list");
    names.retain(|name| name.ends_with(".log"));
    // A log deleted since it was listed is left out.
    let size = |name: &String| fs.file_size(&Path::new("/fast").join(name)).ok();
    names.into_iter().filter_map(|name| size(&name).map(|bytes| (name, bytes))).collect()
}

/// Writes of all kinds: long and short values, merge operands, deletions of single keys and of a range.
fn fill(db: &Db, model: &mut Model, round: u8) {
    for i in 0..500 {
        let value = vec![round.wrapping_add(i as u8); 20_000 + i];
        db.put(format!("key{i:04}"), &value).expect("a put");
        model.insert(format!("key{i:04}"), value);
    }
    for i in (0..500).step_by(7) {
        let (key, operand) = (format!("key{i:04}"), vec![b'+'; i]);
        db.merge(&key, &operand).expect("a merge");
        model.entry(key).or_default().extend(operand);
    }
    for i in (0..500).step_by(11) {
        let key = format!("key{i:04}");
        match i % 2 {
            0 => db.delete(&key).expect("a deletion"),
            _ => db.put(&key, "short").expect("a put"),
        }
        match i % 2 {
            0 => _ = model.remove(&key),
            _ => _ = model.insert(key, b"short".to_vec()),
        }
    }
    let (from, to) = ("key0100".to_owned(), "key0120".to_owned());
    db.delete_range_cf(&db.default_cf(), &from, &to).expect("a range deletion");
    model.retain(|key, _| *key < from || *key >= to);
}

fn check(db: &Db, model: &Model, what: &str) {
    let all: Vec<_> = db.iterator(IteratorMode::Start).map(|e| e.unwrap_or_else(|e| panic!("{what}: {e}"))).collect();
    assert_eq!(all.len(), model.len(), "{what}: forward");
    for ((key, value), (k, v)) in all.iter().zip(model) {
        assert!(key[..] == *k.as_bytes() && value[..] == v[..], "{what}: {k}");
    }
    let mut back: Vec<_> = db.iterator(IteratorMode::End).map(|e| e.expect("an entry")).collect();
    back.reverse();
    assert!(all == back, "{what}: backward");
    for i in 0..500 {
        let key = format!("key{i:04}");
        let found = db.get(&key).unwrap_or_else(|e| panic!("{what}: {key}: {e}"));
        assert!(found.as_ref() == model.get(&key), "{what}: {key}");
    }
    for (found, key) in db.multi_get(model.keys()).into_iter().zip(model.keys()) {
        assert!(found.expect("a get").as_ref() == model.get(key), "{what}: {key}");
    }
}

fn memory(db: &Db) -> u64 {
    let bytes = db.property_int_value("rocksdb.size-all-mem-tables").expect("a property");
    bytes.expect("a number")
}

/// A reader takes little memory, whether its options name the fast path or only its directory, or nothing. What it sees
/// stays the same while the writer flushes everything and deletes its logs.
#[test]
fn a_reader_keeps_addresses_and_reads_logs_that_the_writer_deletes() {
    let fs = MemFileSystem::new();
    let writer = Db::open(&fast(&fs), "/db").expect("open");
    let mut model = Model::new();
    fill(&writer, &mut model, 0);
    let all = logs(&fs).iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(all > 9 << 20 && writer.live_files().expect("a list").is_empty(), "{all}");
    let mut with_dir = plain(&fs);
    with_dir.set_wal_dir("/fast");
    let readers = [
        ("with the fast path", Db::open_for_read_only(&fast(&fs), "/db", false)),
        ("with its directory", Db::open_for_read_only(&with_dir, "/db", false)),
        ("without", Db::open_for_read_only(&plain(&fs), "/db", false)),
        ("a secondary", Db::open_as_secondary(&fast(&fs), "/db", "/second")),
        ("a secondary with its directory", Db::open_as_secondary(&with_dir, "/db", "/third")),
    ]
    .map(|(what, reader)| (what, reader.unwrap_or_else(|e| panic!("{what}: {e}"))));
    for (what, reader) in &readers {
        check(reader, &model, what);
        assert!(memory(reader) < all / 8, "{what}: {} bytes of memory for {all} bytes of logs", memory(reader));
    }
    let mut iters: Vec<_> = readers.iter().map(|(_, reader)| reader.iterator(IteratorMode::Start)).collect();
    let before: Vec<_> = logs(&fs).into_iter().map(|(name, _)| name).collect();
    let old = model.clone();
    for round in 1..4 {
        fill(&writer, &mut model, round);
        writer.flush().expect("a flush");
    }
    // The last of them may go just after the flush has returned.
    let are_gone = || logs(&fs).iter().all(|(name, _)| !before.contains(name));
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !are_gone() {
        assert!(std::time::Instant::now() < until, "the writer has deleted its logs");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for (what, reader) in &readers {
        check(reader, &old, what);
    }
    for (what, reader) in &readers[3..] {
        reader.try_catch_up_with_primary().unwrap_or_else(|e| panic!("{what}: {e}"));
        check(reader, &model, what);
        fill(&writer, &mut model, 9);
        reader.try_catch_up_with_primary().unwrap_or_else(|e| panic!("{what}: {e}"));
        check(reader, &model, what);
        let all = logs(&fs).iter().map(|(_, bytes)| bytes).sum::<u64>();
        assert!(memory(reader) < all / 8, "{what}: {} bytes of memory for {all} bytes of logs", memory(reader));
    }
    for iter in &mut iters {
        let seen = iter.map(|e| e.expect("an entry"));
        assert!(seen.eq(old.iter().map(|(k, v)| (k.as_bytes().into(), v[..].into()))), "an iterator of before");
    }
}

/// A log that the writer may use again is not read later: its values are in memory.
#[test]
fn values_of_logs_that_are_used_again_are_in_memory() {
    let fs = MemFileSystem::new();
    let mut recycling = plain(&fs);
    recycling.set_recycle_log_file_num(2);
    let writer = Db::open(&recycling, "/db").expect("open");
    let mut model = Model::new();
    // The files of the first logs become later ones.
    for round in 0..4 {
        fill(&writer, &mut model, round);
        writer.flush().expect("a flush");
    }
    fill(&writer, &mut model, 4);
    let mut o = plain(&fs);
    o.set_fast_path("", 1 << 30);
    let readers = [
        ("a reader", Db::open_for_read_only(&o, "/db", false).expect("open")),
        ("a secondary", Db::open_as_secondary(&o, "/db", "/second").expect("open")),
    ];
    let old = model.clone();
    for round in 5..9 {
        fill(&writer, &mut model, round);
        writer.flush().expect("a flush");
    }
    for (what, reader) in &readers {
        check(reader, &old, what);
    }
}

/// A value that is lost in a log is an error, and no wrong value.
#[test]
fn a_reader_names_the_log_that_lost_a_value() {
    let fs = MemFileSystem::new();
    let writer = Db::open(&fast(&fs), "/db").expect("open");
    writer.put("key", vec![b'v'; 5000]).expect("a put");
    let reader = Db::open_for_read_only(&fast(&fs), "/db", false).expect("open");
    let secondary = Db::open_as_secondary(&fast(&fs), "/db", "/second").expect("open");
    let log = Path::new("/fast").join(&logs(&fs).last().expect("a log").0);
    fs.flip_stored_bit(&log, 8 * 2500).expect("a flipped bit");
    for db in [&reader, &secondary] {
        let e = db.get("key").expect_err("a damaged value").to_string();
        assert!(e.contains(".log") && e.contains("not what was written"), "{e}");
    }
}
