//! RocksDB as oracle, both ways: Debian's library and `sst_dump` (7.8), and the Python wheel `rocksdict` (9.8). A test
//! whose tool is missing reports that and passes.

use std::collections::BTreeMap;
use std::process::Command;

use rockmill_format::comparator::ReverseBytewiseComparator;
use rockmill_format::properties::{EXTERNAL_VERSION, GLOBAL_SEQNO, IndexType};
use rockmill_io::PosixFileSystem;
use rockmill_skip::{Needs, python_with_rocksdict, skip};

use super::*;

/// Standard output of a command; if it cannot be run, prints the reason and returns `None`.
fn output_of(command: &mut Command, what: &str, needs: Needs) -> Option<String> {
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => {
            skip(what, &needs.because(e));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

/// All point entries of the tables in a directory (or of one file), by file name, as RocksDB sees them.
fn sst_dump(path: &Path) -> Option<BTreeMap<String, Entries>> {
    let mut command = Command::new("sst_dump");
    command.arg(format!("--file={}", path.display())).args(["--command=scan", "--output_hex"]);
    let text = output_of(&mut command, "sst_dump", Needs::Ldb)?;
    let mut files = BTreeMap::new();
    let mut current: &mut Entries = files.entry(String::new()).or_default();
    for line in text.lines() {
        if let Some(file) = line.strip_prefix("Process ") {
            current = files.entry(Path::new(file).file_name().unwrap().to_string_lossy().into_owned()).or_default();
        } else if let Some(rest) = line.strip_prefix('\'') {
            current.push(parse_line(rest).unwrap_or_else(|| panic!("line {line:?}")));
        }
    }
    files.remove("");
    Some(files)
}

/// `HEX' seq:5, type:1 => HEX`
fn parse_line(line: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let (user_key, rest) = line.split_once("' seq:")?;
    let (seq, rest) = rest.split_once(", type:")?;
    let (t, value) = rest.split_once(" => ")?;
    let t = ValueType::from_u8(t.parse().ok()?)?;
    let ikey = InternalKey::new(&unhex(user_key)?, seq.parse().ok()?, t);
    Some((ikey.as_bytes().to_vec(), unhex(value)?))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    text.as_bytes().chunks(2).map(|c| u8::from_str_radix(std::str::from_utf8(c).ok()?, 16).ok()).collect()
}

fn tables_in(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "sst"));
    files.sort();
    files
}

/// The databases of `write_tables.cc`.
fn rocksdb_tables() -> Option<(tempfile::TempDir, Vec<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/table/block_based/tests/write_tables.cc");
    let program = dir.path().join("write_tables");
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-lrocksdb")
        .output()
        .is_ok_and(|o| o.status.success());
    if !compiled {
        let reason = "g++ with RocksDB's library (librocksdb-dev) is missing";
        skip("tables of RocksDB's library", &Needs::RocksDb.because(reason));
        return None;
    }
    let text = output_of(Command::new(&program).arg(dir.path()), "write_tables", Needs::RocksDb)?;
    Some((dir, text.lines().map(|l| l.split(' ').next().unwrap().to_string()).collect()))
}

#[test]
fn tables_of_rocksdb_read_as_rocksdb_reads_them() {
    let Some((dir, names)) = rocksdb_tables() else { return };
    assert!(names.len() > 25);
    let fs = PosixFileSystem::default();
    for name in names {
        println!("{name}");
        let cmp = match name.as_str() {
            "reverse" => InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator)),
            _ => InternalKeyComparator::default(),
        };
        let db = dir.path().join(&name);
        let Some(dump) = sst_dump(&db) else { return };
        let tables = tables_in(&db);
        assert_eq!(tables.len(), 2);
        for path in tables {
            let entries = &dump[path.file_name().unwrap().to_str().unwrap()];
            assert!(entries.len() > 1000);
            let table = open_at(&fs, &path, &cmp, Some(BlockCache::new(1 << 20))).unwrap();
            let tombstones: Tombstones = match table.range_tombstones() {
                Some(t) => t.iter().map(|(b, e, s)| (b.to_vec(), e.to_vec(), s)).collect(),
                None => Vec::new(),
            };
            let p = table.properties();
            assert_eq!(tombstones.is_empty(), p.num_range_deletions == 0);
            check(&table, entries, &tombstones, &mut fastrand::Rng::with_seed(1));
            for (k, _) in entries {
                let (user_key, seq) = (key::user_key(k), key::sequence(k));
                assert_eq!(
                    table_get(&table, TableReadOptions::default(), user_key, seq),
                    model_get(entries, &tombstones, &cmp, user_key, seq)
                );
            }
            check_features(&name, blocks_of(&table));
            // Prefixes alone, and partitions with prefixes, differ from version to version of RocksDB.
            const REBUILT: [&str; 13] = [
                "both_filters",
                "capped_prefix",
                "unique_partitions",
                "plain",
                "bloom",
                "two_level",
                "hash_index",
                "small_blocks",
                "crc32c",
                "reverse",
                "unique",
                "unique_two_level",
                "unique_small_blocks",
            ];
            if REBUILT.contains(&&*name) {
                rebuild_is_equal(&path, blocks_of(&table), entries);
            }
        }
    }
}

/// Checks that a database has the features in its name; otherwise its test would prove nothing.
fn check_features(name: &str, table: &BlockBasedTable) {
    use super::super::filter::Filter;
    let (p, meta) = (table.properties(), table.meta(false, false).unwrap());
    match name {
        "bloom" | "ribbon" | "both_filters" | "version_2" | "version_4" => {
            let Filter::Full(filter) = &meta.filter else { panic!("no filter") };
            let absent = (0..1000).filter(|i| filter.may_match(format!("absent{i}").as_bytes())).count();
            assert!(absent < 50, "{absent} of 1000 absent keys pass the {} filter", filter.kind_name());
        }
        "two_level_filters" | "two_level_filters_3" => {
            let Filter::Partitioned(_, partitions) = &meta.filter else { panic!("no partitions") };
            assert!(!partitions.is_empty() && p.index_partitions > 0);
        }
        "prefix_filter" => {
            let Filter::Full(_) = &meta.filter else { panic!("no filter") };
            assert_eq!(table.filter_prefixes().unwrap().name(), "rocksdb.FixedPrefix.5");
            assert!(!table.filter_keys.whole && p.filter_size > 0);
        }
        "unique_partitions" | "partition_prefixes" | "unique_partition_prefixes" => {
            let Filter::Partitioned(_, partitions) = &meta.filter else { panic!("no partitions") };
            assert!(partitions.len() > 3 && partitions.iter().all(|f| f.kind_name() == "fast local bloom"));
            assert_eq!(table.filter_prefixes().is_some(), name != "unique_partitions");
            assert_eq!(table.filter_keys.whole, name != "unique_partition_prefixes");
        }
        "two_level" => assert!(table.index_type == IndexType::TwoLevelIndexSearch && p.index_partitions > 2),
        "hash_search" => assert_eq!(table.index_type, IndexType::HashSearch),
        "first_key" => assert_eq!(table.index_type, IndexType::BinarySearchWithFirstKey),
        "zstd_dictionary" => assert!(table.blocks.dictionary.is_some()),
        "snappy" | "lz4" | "lz4hc" | "zlib" | "zstd" => assert_ne!(p.compression_name, "NoCompression"),
        _ => {}
    }
}

/// From the same entries, the builder makes the same data, filter and index blocks.
fn rebuild_is_equal(path: &Path, table: &BlockBasedTable, entries: &Entries) {
    let p = table.properties();
    let mut o = options(table.cmp.clone());
    o.block_based.checksum = table.footer().checksum;
    o.path = path.with_extension("rebuilt");
    if p.filter_size > 0 {
        o.block_based.bloom_bits_per_key = 10.0;
    }
    match path.parent().unwrap().file_name().unwrap().to_str().unwrap() {
        "two_level" | "unique_two_level" => {
            o.block_based.two_level_index = true;
            o.block_based.metadata_block_size = 200;
        }
        "hash_index" => o.block_based.hash_index_util_ratio = Some(0.75),
        "small_blocks" | "unique_small_blocks" => {
            o.block_based.block_size = 100;
            o.block_based.block_restart_interval = 2;
            o.block_based.index_block_restart_interval = 7;
        }
        "unique_partitions" => {
            o.block_based.two_level_index = true;
            o.block_based.metadata_block_size = 200;
            o.block_based.partition_filters = true;
        }
        _ => {}
    }
    o.prefix_extractor = SliceTransform::from_name(&p.prefix_extractor_name);
    o.block_based.whole_key_filtering = p.whole_key_filtering();
    let fs = PosixFileSystem::default();
    let summary = build(&fs, &o, entries, &Vec::new());
    let ours = std::fs::read(&o.path).unwrap();
    let theirs = std::fs::read(path).unwrap();
    // Range tombstones and properties come after the index. Shortened internal keys carry the largest value type that
    // the writer knows, so that an index of internal keys differs between versions, though not in length.
    let end =
        if p.index_key_is_user_key != 0 { table.index_handle.end() } else { p.data_size + p.filter_size } as usize;
    let rebuilt = open_at(&fs, &o.path, &table.cmp, None).unwrap();
    let rebuilt = blocks_of(&rebuilt);
    assert_eq!(rebuilt.index_handle, table.index_handle);
    let (new, old) = (rebuilt.meta(false, false).unwrap(), table.meta(false, false).unwrap());
    assert_eq!(new.index.len(), old.index.len());
    for i in 0..old.index.len() {
        assert_eq!(new.index.handle(i), old.index.handle(i));
        assert_eq!(new.index.user_key(i), old.index.user_key(i));
    }
    let differs = ours.iter().zip(&theirs[..end]).position(|(a, b)| a != b);
    assert_eq!(differs, None, "first different byte; data ends at {}, index at {end}", p.data_size);
    let q = &summary.properties;
    assert_eq!(
        (q.data_size, q.index_size, q.filter_size, q.num_data_blocks, q.num_filter_entries, q.index_partitions),
        (p.data_size, p.index_size, p.filter_size, p.num_data_blocks, p.num_filter_entries, p.index_partitions)
    );
    assert_eq!(
        (q.top_level_index_size, q.index_key_is_user_key, q.index_value_is_delta_encoded),
        (p.top_level_index_size, p.index_key_is_user_key, p.index_value_is_delta_encoded)
    );
    assert_eq!((&q.filter_policy_name, &q.compression_options), (&p.filter_policy_name, &p.compression_options));
    assert_eq!(q.prefix_extractor_name, p.prefix_extractor_name);
    assert_eq!((q.whole_key_filtering(), q.prefix_filtering()), (p.whole_key_filtering(), p.prefix_filtering()));
    std::fs::remove_file(&o.path).unwrap();
}

#[test]
fn rocksdb_reads_our_tables() {
    let dir = tempfile::tempdir().unwrap();
    let fs = PosixFileSystem::default();
    let mut written = BTreeMap::new();
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = if seed % 5 == 4 {
            InternalKeyComparator::new(Arc::new(ReverseBytewiseComparator))
        } else {
            InternalKeyComparator::default()
        };
        let mut o = random_options(&mut rng, cmp.clone());
        // 7.8 knows no other.
        o.block_based.format_version = 5;
        o.path = dir.path().join(format!("{seed:06}.sst"));
        println!("seed {seed}: {o:?}");
        let entries = random_entries(&mut rng, 300, &cmp);
        build(
            &fs,
            &o,
            &entries,
            &vec![(b"a".to_vec(), b"b".to_vec(), 9)].into_iter().filter(|_| seed % 5 < 2).collect(),
        );
        written.insert(o.path.file_name().unwrap().to_string_lossy().into_owned(), entries);
    }
    let Some(dump) = sst_dump(dir.path()) else { return };
    assert_eq!(dump.len(), written.len());
    for (file, entries) in &written {
        assert!(dump[file] == *entries, "{file}");
    }
    for command in ["verify", "raw"] {
        let mut sst_dump = Command::new("sst_dump");
        sst_dump.current_dir(dir.path()).arg(format!("--file={}", dir.path().display()));
        let text = output_of(sst_dump.arg(format!("--command={command}")), "sst_dump", Needs::Ldb).unwrap();
        if command == "verify" {
            assert_eq!(text.matches("The file is ok").count(), written.len(), "{text}");
        }
    }
    let raw = std::fs::read(dir.path().join("000000_dump.txt")).unwrap();
    let raw = String::from_utf8_lossy(&raw);
    assert!(raw.contains("Range deletions") || raw.contains("Range Del"), "{raw:.2000}");
    let mut show = Command::new("sst_dump");
    show.arg(format!("--file={}/000000.sst", dir.path().display())).args(["--command=none", "--show_properties"]);
    let text = output_of(&mut show, "sst_dump", Needs::Ldb).unwrap();
    for line in ["# range deletions: 1", "column family name: default", "original file number: 7"] {
        assert!(text.contains(line), "{text}");
    }
}

fn python(script: &str, args: &[&Path]) -> Option<String> {
    let python = python_with_rocksdict().inspect_err(|missing| skip("tables with rocksdict", missing)).ok()?;
    output_of(Command::new(python).arg("-c").arg(script).args(args), "rocksdict", Needs::RocksDict)
}

/// RocksDB ingests our table and reads it through its filter and index: lookups and a scan.
#[test]
fn newer_rocksdb_ingests_our_tables() {
    let fs = PosixFileSystem::default();
    for seed in 0..6u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let cmp = InternalKeyComparator::default();
        let mut o = random_options(&mut rng, cmp.clone());
        o.block_based.format_version = 5 + (seed % 2) as u32;
        o.block_based.bloom_bits_per_key = 10.0;
        if o.compression == CompressionType::Zlib {
            // The wheel is built without zlib: it cannot read Debian's zlib tables either.
            o.compression = CompressionType::Zstd;
        }
        o.path = dir.path().join("000007.sst");
        o.properties.other.insert(EXTERNAL_VERSION.into(), 2u32.to_le_bytes().to_vec());
        o.properties.other.insert(GLOBAL_SEQNO.into(), 0u64.to_le_bytes().to_vec());
        println!("seed {seed}: {o:?}");
        let mut entries: Entries = (0..400u32)
            .map(|i| {
                let user_key = format!("key{:05}", i * 7 + rng.u32(0..7));
                let ikey = InternalKey::new(user_key.as_bytes(), 0, ValueType::Value);
                (ikey.as_bytes().to_vec(), format!("value {i} {}", rng.u64(..)).into_bytes())
            })
            .collect();
        entries.dedup_by(|a, b| a.0 == b.0);
        build(&fs, &o, &entries, &Vec::new());
        let script = r#"
import sys
from rocksdict import Rdict, Options, BlockBasedOptions
options = Options(raw_mode=True)
table = BlockBasedOptions()
table.set_bloom_filter(10, False)
options.set_block_based_table_factory(table)
db = Rdict(sys.argv[1] + "/db", options)
db.ingest_external_file([sys.argv[1] + "/000007.sst"])
items = list(db.items())
for k, v in items:
    assert db.get(k) == v, k
    assert db.get(k + b"x") is None, k
    print(k.hex(), v.hex())
"#;
        let Some(text) = python(script, &[dir.path()]) else { return };
        let expected: String =
            entries.iter().map(|(k, v)| format!("{} {}\n", verify::hex(key::user_key(k)), verify::hex(v))).collect();
        assert_eq!(text, expected);

        // Ingested, the file has one sequence number for all keys: the MANIFEST's.
        let ingested = tables_in(&dir.path().join("db"));
        let file = fs.open_random(&ingested[0], false).unwrap();
        let options = TableOpenOptions {
            path: ingested[0].clone(),
            cmp: cmp.clone(),
            cache: None,
            largest_seqno: Some(5),
            statistics: None,
            read_protection: None,
            prefix_extractor: None,
        };
        let table = Table::open(file, options).unwrap();
        let numbered: Entries = entries
            .iter()
            .map(|(k, v)| (InternalKey::new(key::user_key(k), 5, ValueType::Value).as_bytes().to_vec(), v.clone()))
            .collect();
        check(&table, &numbered, &Vec::new(), &mut rng);
    }
}

#[test]
fn tables_of_newer_rocksdb_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
import sys, random
from rocksdict import Rdict, Options, BlockBasedOptions, BlockBasedIndexType, ChecksumType, DBCompressionType, \
    DataBlockIndexType
random.seed(1)
for n in range(8):
    options = Options(raw_mode=True)
    table = BlockBasedOptions()
    table.set_format_version(5 + n % 2)
    if n & 2:
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_metadata_block_size(300)
    if n & 4:
        table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_bloom_filter(10, False)
    table.set_block_size(1000)
    options.set_block_based_table_factory(table)
    options.set_compression_type([DBCompressionType.none(), DBCompressionType.zstd()][n // 4])
    db = Rdict(f"{sys.argv[1]}/{n}", options)
    for i in range(2000):
        k = b"key%05d" % random.randrange(3000)
        v = b"v" * random.randrange(50) + b"%d" % i
        db.put(k, v)
    db.flush()
    for k, v in db.items():
        print(n, k.hex(), v.hex())
    db.close()
"#;
    let Some(text) = python(script, &[dir.path()]) else { return };
    let fs = PosixFileSystem::default();
    let cmp = InternalKeyComparator::default();
    for n in 0..8 {
        let expected: Vec<_> = text
            .lines()
            .filter_map(|l| l.strip_prefix(&format!("{n} ")))
            .map(|l| l.split_once(' ').unwrap())
            .map(|(k, v)| (unhex(k).unwrap(), unhex(v).unwrap()))
            .collect();
        assert!(expected.len() > 1000);
        let paths = tables_in(&dir.path().join(n.to_string()));
        assert_eq!(paths.len(), 1);
        let table = open_at(&fs, &paths[0], &cmp, None).unwrap();
        assert_eq!(blocks_of(&table).footer().format_version, 5 + n % 2);
        let entries = forward(table.iter(TableReadOptions::default()));
        let users: Vec<_> = entries.iter().map(|(k, v)| (key::user_key(k).to_vec(), v.clone())).collect();
        assert!(users == expected);
        check(&table, &entries, &Vec::new(), &mut fastrand::Rng::with_seed(3));
    }
}
