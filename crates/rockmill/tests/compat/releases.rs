//! Rockmill's own fixtures, one archive per release, written once by that release:
//!
//! ```sh
//! ROCKMILL_WRITE_FIXTURE=1 cargo test -p rockmill --test compat this_release_has_a_fixture
//! ```
//!
//! writes `tests/fixtures/rockmill-VERSION` and `rockmill-VERSION-tph` (TPH tables of several files), if they do not
//! exist yet. After a new version in the workspace's manifest, the test fails until that was done; the archives of
//! earlier releases stay.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rockmill::backup::{BackupEngine, BackupEngineOptions};

use rockmill::merge_operator::{StringAppendOperator, UInt64AddOperator};
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, Checkpoint, ChecksumType, ColumnFamilyDescriptor, CompressionType,
    DataBlockIndexType, Db, Env, IteratorMode, Options, ReverseBytewiseComparator, SliceTransform, SstFileWriter,
    TphTableOptions, WriteBatch,
};
use rockmill_io::{CrashMode, FileSystem, MemFileSystem, SystemClock};

use super::archive;
use super::oracle::to_hex;
use super::{BACKUPS, DIR};

const WORDS: [&str; 8] = ["compaction", "memtable", "level", "rock", "mill", "stone", "grain", "flour"];

/// A case being made.
struct Maker {
    fs: Arc<MemFileSystem>,
    rng: fastrand::Rng,
    notes: String,
    families: Vec<(String, Options)>,
    /// Name and bytes of every file of the archive.
    archive: Vec<(String, Vec<u8>)>,
    index: String,
}

impl Maker {
    /// Begins a case with a default column family.
    fn begin(&mut self, about: &str) {
        self.fs = Arc::new(MemFileSystem::new());
        self.rng = fastrand::Rng::with_seed(7);
        self.notes = format!("about {about}\n");
        self.families.clear();
        self.family("default", |_, _| {});
    }

    /// Adds a column family, or changes the default one.
    fn family(&mut self, name: &str, change: impl FnOnce(&mut Options, &mut BlockBasedOptions)) {
        let mut options = Options::default();
        options.set_file_system(Arc::clone(&self.fs) as Arc<dyn FileSystem>);
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_disable_auto_compactions(true);
        let mut table = BlockBasedOptions::default();
        table.set_block_size(256);
        table.set_metadata_block_size(64);
        change(&mut options, &mut table);
        options.set_block_based_table_factory(&table);
        self.families.retain(|(n, _)| n != name);
        self.families.push((name.to_owned(), options));
    }

    /// Adds a column family with TPH tables.
    fn tph_family(&mut self, name: &str, piece_limit: u32, change: impl FnOnce(&mut Options)) {
        self.family(name, |o, _| change(o));
        let options = &mut self.families.last_mut().expect("just added").1;
        let mut tph = TphTableOptions::default();
        tph.set_piece_limit(piece_limit);
        tph.set_garbage_percent(100);
        options.set_tph_table_factory(&tph);
        self.note(&format!("tph {name}"));
    }

    /// Writes of all kinds, each round compacted into the last level, so that tables continue to use files of earlier
    /// rounds; then a table above them, and data in the log.
    fn shared_histories(&mut self, db: &Db) {
        let names: Vec<String> = self.families.iter().map(|(n, _)| n.clone()).collect();
        for name in names {
            let cf = db.cf_handle(&name).expect("opened");
            let key = |n: u32| format!("key{n:04}").into_bytes();
            let merges = self.notes.contains(&format!("operator {name} "));
            self.rng = fastrand::Rng::with_seed(7);
            db.put_cf(&cf, b"", format!("the empty key of {name}")).expect("put");
            // The iterator keeps files of earlier rounds, which heads list as replaced.
            let slow = db.raw_iterator_cf(&cf);
            for round in 0..6 {
                let (from, to) = if round == 0 { (0, 120) } else { (round * 17, round * 17 + 9) };
                for n in from..to {
                    let value = self.value(n, round);
                    match n % 5 {
                        2 if round > 1 => db.delete_cf(&cf, key(n)).expect("delete"),
                        3 if round > 1 && merges => db.merge_cf(&cf, key(n), &value).expect("merge"),
                        _ => db.put_cf(&cf, key(n), &value).expect("put"),
                    }
                }
                db.flush_cf(&cf).expect("flush");
                if round < 5 {
                    db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).expect("compaction");
                }
            }
            drop(slow);
            let shared = db.live_files().expect("open").into_iter().filter(|f| f.column_family_name == name);
            assert!(shared.map(|f| f.pieces.len()).sum::<usize>() > 0, "{name} has no table of several files");
            let mut batch = WriteBatch::new();
            for n in (1..120).step_by(31) {
                let value = self.value(n, 9);
                batch.put_cf(&cf, key(n), value);
            }
            batch.delete_cf(&cf, key(0));
            db.write(&batch).expect("write");
        }
    }

    fn note(&mut self, line: &str) {
        self.notes += line;
        self.notes.push('\n');
    }

    /// Opens the database with the column families given so far.
    fn open(&self) -> Db {
        let default = &self.families.iter().find(|(n, _)| n == "default").expect("always there").1;
        let descriptors = self.families.iter().map(|(name, o)| ColumnFamilyDescriptor::new(name, o.clone()));
        Db::open_cf_descriptors(default, DIR, descriptors).expect("a database in memory")
    }

    fn value(&mut self, n: u32, generation: u32) -> Vec<u8> {
        if self.rng.u8(..10) == 0 {
            return (0..self.rng.usize(..24)).map(|_| self.rng.u8(..)).collect();
        }
        let words: Vec<_> = (0..self.rng.usize(3..9)).map(|_| WORDS[self.rng.usize(..WORDS.len())]).collect();
        format!("{n} of generation {generation}: {}", words.join(" ")).into_bytes()
    }

    /// All kinds of writes in two tables and the log, in every column family.
    fn histories(&mut self, db: &Db) {
        let names: Vec<String> = self.families.iter().map(|(n, _)| n.clone()).collect();
        for name in names {
            let cf = db.cf_handle(&name).expect("opened");
            let key = |n: u32| format!("key{n:04}").into_bytes();
            // The same in every column family, so that the archive compresses well; but one value names the family.
            self.rng = fastrand::Rng::with_seed(7);
            db.put_cf(&cf, b"", format!("the empty key of {name}")).expect("put");
            for n in 0..48 {
                let value = self.value(n, 0);
                db.put_cf(&cf, key(n), value).expect("put");
                if n % 9 == 0 {
                    db.put_cf(&cf, format!("single{n:04}"), b"put once").expect("put");
                }
            }
            db.flush_cf(&cf).expect("flush");
            db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).expect("compaction");
            let held = db.snapshot();
            for n in (0..48).step_by(3) {
                let value = self.value(n, 1);
                db.put_cf(&cf, key(n), value).expect("put");
            }
            for n in (0..48).step_by(7) {
                db.delete_cf(&cf, key(n)).expect("delete");
            }
            for n in (0..48).step_by(18) {
                db.single_delete_cf(&cf, format!("single{n:04}")).expect("single_delete");
            }
            if !self.notes.contains(&format!("order {name} reverse")) {
                db.delete_range_cf(&cf, key(31), key(38)).expect("delete_range");
            }
            db.flush_cf(&cf).expect("flush");
            drop(held);
            let mut batch = WriteBatch::new();
            for n in (1..48).step_by(11) {
                let value = self.value(n, 2);
                batch.put_cf(&cf, key(n), value);
            }
            batch.delete_cf(&cf, key(2));
            batch.put_log_data(b"a remark");
            db.write(&batch).expect("write");
        }
    }

    /// Adds the contents of the database, and its files as a killed process leaves them, to the archive.
    fn end(&mut self, name: &str, db: Db) {
        let contents = contents(&db);
        let left = self.fs.crash_image(CrashMode::KeepAll);
        self.add(name, "db", &left, DIR, &contents);
    }

    fn add(&mut self, name: &str, kind: &str, fs: &MemFileSystem, root: &str, contents: &str) {
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let dir = Path::new(root).join(&folder);
            for entry in fs.list_dir(&dir).expect("a folder") {
                let relative = if folder.is_empty() { entry.clone() } else { format!("{folder}/{entry}") };
                match fs.read_to_vec(&dir.join(&entry)) {
                    Ok(_) if entry == "LOCK" || entry.starts_with("LOG") => {}
                    Ok(bytes) => self.archive.push((format!("{name}/{kind}/{relative}"), bytes)),
                    Err(_) => folders.push(relative),
                }
            }
        }
        self.archive.push((format!("{name}/case.txt"), self.notes.clone().into_bytes()));
        self.archive.push((format!("{name}/contents.txt"), contents.as_bytes().to_vec()));
        let mut families: Vec<&str> = self.families.iter().map(|(n, _)| n.as_str()).collect();
        families.sort_unstable();
        let (count, digest) = (contents.lines().count(), archive::fnv1a(contents));
        let _ = writeln!(self.index, "{name} entries {count} fnv1a {digest:016x} {}", families.join(" "));
    }
}

/// The contents of a database, in the archives' form.
fn contents(db: &Db) -> String {
    let mut out = String::new();
    let mut names = db.cf_names();
    names.sort();
    for name in names {
        let cf = db.cf_handle(&name).expect("its own");
        for entry in db.iterator_cf(&cf, IteratorMode::Start) {
            let (key, value) = entry.expect("sound");
            let _ = writeln!(out, "{name} {} {}", to_hex(&key), to_hex(&value));
        }
    }
    out
}

fn maker() -> Maker {
    Maker {
        fs: Arc::default(),
        rng: fastrand::Rng::new(),
        notes: String::new(),
        families: vec![],
        archive: vec![],
        index: String::new(),
    }
}

/// Cases with TPH tables of several files.
fn make_tph() -> Maker {
    let mut m = maker();
    m.begin("TPH tables of several files, with placeholders, operands, and in the reverse order");
    m.tph_family("default", 16, |_| {});
    m.tph_family("four", 4, |_| {});
    m.tph_family("lists", 16, |o| o.set_merge_operator_object(Arc::new(StringAppendOperator::default())));
    m.note("operator lists StringAppendOperator");
    m.tph_family("reverse", 16, |o| o.set_comparator_object(Arc::new(ReverseBytewiseComparator)));
    m.note("order reverse reverse");
    m.tph_family("lz4", 16, |o| o.set_compression_type(CompressionType::Lz4));
    let db = m.open();
    m.shared_histories(&db);
    m.end("tph", db);

    m.begin("block-based tables as files of TPH tables");
    let db = m.open();
    for n in 0..120 {
        let value = m.value(n, 0);
        db.put(format!("key{n:04}"), value).expect("put");
    }
    db.flush().expect("flush");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
    drop(db);
    m.tph_family("default", 16, |_| {});
    let db = m.open();
    for n in 40..50 {
        let value = m.value(n, 1);
        db.put(format!("key{n:04}"), value).expect("put");
    }
    db.delete("key0060").expect("delete");
    db.flush().expect("flush");
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
    m.end("mixed", db);
    m
}

/// All cases of this version except those with TPH tables.
fn make() -> Maker {
    let mut m = maker();
    m.begin("defaults, several families, operands, several versions of keys, data in the log");
    m.family("other", |_, _| {});
    let db = m.open();
    m.histories(&db);
    m.end("defaults", db);

    m.begin("merge operands in tables and in the log");
    m.family("lists", |o, _| o.set_merge_operator_object(Arc::new(StringAppendOperator::default())));
    m.family("counters", |o, _| o.set_merge_operator_object(Arc::new(UInt64AddOperator)));
    m.note("operator lists StringAppendOperator");
    m.note("operator counters UInt64AddOperator");
    let db = m.open();
    let (lists, counters) = (db.cf_handle("lists").expect("opened"), db.cf_handle("counters").expect("opened"));
    for generation in 0..4u64 {
        for n in generation..12 {
            db.merge_cf(&lists, format!("list{n:02}"), format!("{generation}.{n}")).expect("merge");
            db.merge_cf(&counters, format!("counter{n:02}"), (generation * 100 + n).to_le_bytes()).expect("merge");
        }
        if generation < 3 {
            db.flush_cf(&lists).expect("flush");
            db.flush_cf(&counters).expect("flush");
        }
    }
    m.end("merges", db);

    m.begin("every format_version and checksum that is written");
    for version in [5, 6, 7] {
        m.family(&format!("v{version}"), |_, t| {
            t.set_format_version(version);
            t.set_bloom_filter(10.0, false);
        });
    }
    for (name, kind) in [
        ("none", ChecksumType::None),
        ("crc32c", ChecksumType::Crc32c),
        ("xxhash", ChecksumType::XxHash),
        ("xxhash64", ChecksumType::XxHash64),
        ("xxh3", ChecksumType::Xxh3),
    ] {
        m.family(name, |_, t| t.set_checksum_type(kind));
    }
    let db = m.open();
    m.histories(&db);
    m.end("formats", db);

    m.begin("every compression, with and without a dictionary");
    for (name, kind) in [
        ("none", CompressionType::None),
        ("snappy", CompressionType::Snappy),
        ("zlib", CompressionType::Zlib),
        ("lz4", CompressionType::Lz4),
        ("zstd", CompressionType::Zstd),
    ] {
        m.family(name, |o, _| o.set_compression_type(kind));
        if matches!(kind, CompressionType::Zlib | CompressionType::Lz4 | CompressionType::Zstd) {
            m.family(&format!("{name}-dictionary"), |o, _| {
                o.set_compression_type(kind);
                o.set_compression_options(-14, 32767, 0, 1024);
            });
        }
    }
    let db = m.open();
    m.histories(&db);
    m.end("compressions", db);

    m.begin("indexes and filters");
    m.family("hash", |_, t| t.set_data_block_index_type(DataBlockIndexType::BinaryAndHash));
    m.family("bloom", |_, t| t.set_bloom_filter(10.0, false));
    for name in ["prefix", "partitioned-prefix"] {
        m.family(name, |o, t| {
            o.set_prefix_extractor(SliceTransform::create_fixed_prefix(5));
            t.set_bloom_filter(10.0, false);
            t.set_whole_key_filtering(name == "prefix");
            if name != "prefix" {
                t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
                t.set_partition_filters(true);
            }
        });
        m.note(&format!("prefix {name} 5"));
    }
    m.family("partitioned", |_, t| {
        t.set_bloom_filter(10.0, false);
        t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        t.set_partition_filters(true);
    });
    let db = m.open();
    m.histories(&db);
    m.end("indexes", db);

    m.begin("the reverse bytewise comparator");
    m.family("default", |o, _| o.set_comparator_object(Arc::new(ReverseBytewiseComparator)));
    m.note("order default reverse");
    let db = m.open();
    m.histories(&db);
    m.end("reverse", db);

    m.begin("recycled logs, several of them");
    m.family("default", |o, _| o.set_recycle_log_file_num(2));
    m.family("other", |_, _| {});
    let db = m.open();
    for generation in 0..4 {
        for name in ["default", "other"] {
            let cf = db.cf_handle(name).expect("opened");
            for n in (0..50).step_by(generation as usize + 1) {
                let value = m.value(n, generation);
                db.put_cf(&cf, format!("key{n:04}"), value).expect("put");
            }
        }
        db.flush().expect("flush");
    }
    db.put_cf(&db.cf_handle("other").expect("opened"), b"long", "long value ".repeat(9000)).expect("put");
    m.end("logs", db);

    m.begin("ingested tables, and column families that went");
    m.family("other", |_, _| {});
    let db = m.open();
    m.histories(&db);
    let options = m.families[0].1.clone();
    let mut writer = SstFileWriter::create(&options);
    writer.open("/compat/one.sst").expect("a file in memory");
    for n in (0..48).step_by(5) {
        writer.put(format!("key{n:04}"), format!("ingested {n}")).expect("in order");
    }
    writer.delete_range(b"key0046", b"key0047").expect("in order");
    writer.finish().expect("a file in memory");
    let held = db.snapshot();
    db.ingest_external_file(vec!["/compat/one.sst"]).expect("ingestion");
    drop(held);
    for n in 0..3 {
        let name = format!("gone{n}");
        db.create_cf(&name, &options).expect("create_cf");
        db.put_cf(&db.cf_handle(&name).expect("made"), b"key", b"value").expect("put");
        db.flush_all().expect("flush");
        db.drop_cf(&name).expect("drop_cf");
    }
    m.end("ingested", db);

    m.begin("a time to live");
    m.note("ttl");
    let db = Db::open_with_ttl(&m.families[0].1, DIR, Duration::ZERO).expect("a database in memory");
    m.histories(&db);
    m.end("ttl", db);

    m.begin("atomic flushes");
    m.family("default", |o, _| o.set_atomic_flush(true));
    m.family("other", |_, _| {});
    let db = m.open();
    m.histories(&db);
    db.flush_all().expect("flush");
    db.put(b"last", b"in the log").expect("put");
    m.end("atomic-flush", db);

    m.begin("closed as it should be");
    m.family("other", |_, _| {});
    let db = m.open();
    m.histories(&db);
    let text = contents(&db);
    drop(db);
    let fs = Arc::clone(&m.fs);
    m.add("closed", "db", &fs, DIR, &text);

    m.begin("a checkpoint of an open database");
    m.family("other", |_, _| {});
    let db = m.open();
    m.histories(&db);
    let text = contents(&db);
    Checkpoint::new(&db).expect("a checkpoint").create_checkpoint("/compat/checkpoint").expect("a checkpoint");
    let fs = Arc::clone(&m.fs);
    m.add("checkpoint", "db", &fs, "/compat/checkpoint", &text);

    m.begin("a directory of two backups");
    let db = m.open();
    let env = Env::from_parts(Arc::clone(&m.fs) as Arc<dyn FileSystem>, Arc::new(SystemClock::default()));
    let engine = BackupEngine::open(&BackupEngineOptions::new(BACKUPS).expect("options"), &env).expect("an engine");
    db.put(b"before", b"all else").expect("put");
    engine.create_new_backup(&db).expect("a backup");
    m.histories(&db);
    engine.create_new_backup(&db).expect("a backup");
    let text = contents(&db);
    let fs = Arc::clone(&m.fs);
    m.add("backup", "backup", &fs, BACKUPS, &text);
    m
}

/// A tar archive (ustar) of plain files.
fn tar(files: &BTreeMap<&String, &Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        let mut header = [0u8; 512];
        let mut set = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        assert!(name.len() < 100, "{name}");
        set(0, name);
        set(100, "0000644\0");
        set(108, "0000000\0");
        set(116, "0000000\0");
        set(124, &format!("{:011o}\0", bytes.len()));
        set(136, "00000000000\0");
        // The checksum counts its own field as spaces.
        set(148, "        ");
        set(156, "0");
        set(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

#[test]
fn this_release_has_a_fixture() {
    let name = format!("rockmill-{}", env!("CARGO_PKG_VERSION"));
    write_unless_there(&name, 10, make);
    write_unless_there(&format!("{name}-tph"), 2, make_tph);
}

fn write_unless_there(name: &str, cases: usize, make: fn() -> Maker) {
    let path = archive::home().join(format!("{name}.tar.zst"));
    if path.exists() {
        assert!(archive::cases(name).len() >= cases, "{name} has few cases");
        return;
    }
    assert!(
        std::env::var_os("ROCKMILL_WRITE_FIXTURE").is_some(),
        "{name} is not among the fixtures: ROCKMILL_WRITE_FIXTURE=1 with this test writes it (see tests/fixtures/README.md)"
    );
    let made = make();
    let files: BTreeMap<_, _> = made.archive.iter().map(|(name, bytes)| (name, bytes)).collect();
    assert_eq!(files.len(), made.archive.len(), "a file twice");
    let packed = zstd::encode_all(&*tar(&files), 19).expect("ZSTD");
    let text = format!(
        "# Rockmill {}: each case, with the digest of its contents.txt.\n{}",
        env!("CARGO_PKG_VERSION"),
        made.index
    );
    std::fs::write(path.with_file_name(format!("{name}.txt")), text).expect("the index");
    std::fs::write(&path, packed).expect("the archive");
    println!("{}", path.display());
}
