//! RocksDB as the oracle: this crate's modules read its tables block by block, and RocksDB reads tables that they
//! wrote. Debian's RocksDB 7.8 (through a small C++ program) supports format_version 2 to 5, the Python package
//! rocksdict (RocksDB 9.8) format_version 6. If a tool is missing, its tests report that.

mod oracle;
mod table;

use std::collections::BTreeSet;

use rockmill_format::compression::CompressionType;
use rockmill_format::filter::{BloomBuilder, FilterReader};
use rockmill_format::key::{self, ValueType, append_internal_key};
use rockmill_format::properties::IndexType;
use table::{Entries, Table, WriteOptions, write_table};

const KEYS: u64 = 3000;

/// The i-th key of the oracle programs.
fn user_key(i: u64) -> Vec<u8> {
    format!("user{:06}", i * 7).into_bytes()
}

fn value(i: u64) -> Vec<u8> {
    format!("value-{}-", i % 50).repeat((i % 12) as usize).into_bytes()
}

/// The contents that the oracle programs flush. Every key is put; then, above a snapshot, every tenth is deleted and so
/// is the range of keys 100 to 199. The flush drops the point deletions that the range deletion covers.
fn expected_entries() -> Entries {
    let mut entries = Vec::new();
    for i in 0..KEYS {
        let mut ikey = Vec::new();
        if i % 10 == 0 && !(100..200).contains(&i) {
            append_internal_key(&mut ikey, &user_key(i), KEYS + i / 10 + 1, ValueType::Deletion);
            entries.push((std::mem::take(&mut ikey), Vec::new()));
        }
        append_internal_key(&mut ikey, &user_key(i), i + 1, ValueType::Value);
        entries.push((ikey, value(i)));
    }
    entries
}

/// Reads and checks everything in a table that the oracle wrote.
fn check_table(name: &str, data: Vec<u8>) -> Table {
    let table = Table::open(data).unwrap_or_else(|e| panic!("{name}: {e}"));
    let expected = expected_entries();
    assert!(table.entries().unwrap_or_else(|e| panic!("{name}: {e}")) == expected, "{name}: other entries");
    table.check_seeks(&expected);

    let p = &table.properties;
    assert_eq!(p.num_entries, expected.len() as u64 + 1, "{name}: range deletion counts as an entry");
    assert_eq!((p.num_deletions, p.num_range_deletions), (KEYS / 10 - 10 + 1, 1), "{name}");
    assert_eq!(p.comparator_name, "leveldb.BytewiseComparator", "{name}");
    assert_eq!(p.column_family_name, "default", "{name}");
    assert_eq!(p.raw_key_size, expected.iter().map(|e| e.0.len() as u64).sum::<u64>() + 18, "{name}");
    assert!(p.for_display().iter().any(|(n, v)| n == "rocksdb.num.range-deletions" && v == "1"));

    let range_deletions = table.range_deletions().unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(range_deletions.len(), 1, "{name}");
    assert_eq!(key::user_key(&range_deletions[0].0), user_key(100));
    assert_eq!(range_deletions[0].1, user_key(200));
    table
}

/// Queries a table's filter for all its keys and for as many others. Returns the share of false positives.
fn check_filter(name: &str, table: &Table, kind: &str) -> f64 {
    let filters = table.filters().unwrap();
    assert!(!filters.is_empty(), "{name} has no filter");
    for filter in &filters {
        assert_eq!(filter.kind_name(), kind, "{name}");
    }
    let may_match = |key: &[u8]| filters.iter().any(|f: &FilterReader| f.may_match(key));
    for i in 0..KEYS {
        assert!(may_match(&user_key(i)), "{name}: filter misses key {i}");
    }
    let wrong = (0..20_000).filter(|i| may_match(format!("absent{i}").as_bytes())).count();
    wrong as f64 / 20_000.0
}

fn bloom_of_all_keys(bits_per_key: f64) -> Vec<u8> {
    let mut builder = BloomBuilder::new(bits_per_key);
    for i in 0..KEYS {
        builder.add_key(&user_key(i));
    }
    builder.finish()
}

#[test]
fn tables_of_rocksdb_7_read_back() {
    let Some(oracle) = oracle::Cpp::build() else { return };
    let names = oracle.write_tables();
    assert!(names.len() > 40);
    let mut kinds_of_compression = BTreeSet::new();
    for name in &names {
        let data = oracle.table(name);
        if name == "compression3" {
            let error = Table::open(data).err().expect("bzip2 is refused").to_string();
            assert!(error.contains("BZip2") && error.contains("not supported"), "{error}");
            continue;
        }
        let table = check_table(name, data);
        kinds_of_compression.extend(table.compression_bytes.borrow().iter().copied());
        if let Some(version) = name.strip_prefix("version") {
            assert_eq!(table.footer.format_version.to_string(), version);
        }
        if let Some(kind) = name.strip_prefix("checksum") {
            assert_eq!((table.footer.checksum as u8).to_string(), kind);
        }
        if name.starts_with("firstkey") {
            assert_eq!(table.properties.index_type(), Some(IndexType::BinarySearchWithFirstKey));
        }
        if name.starts_with("dictionary") {
            assert!(table.has_dictionary(), "{name}");
        }
        if name == "hashindex" {
            assert!(table.any_hash_index.get());
        }
        if name == "partitioned" {
            assert_eq!(table.properties.index_type(), Some(IndexType::TwoLevelIndexSearch));
            assert!(table.properties.index_partitions > 1);
            check_filter(name, &table, "fast local bloom");
        }
        let bits = |prefix: &str| name.strip_prefix(prefix).map(|b| b.parse::<f64>().unwrap());
        if let Some(bits) = bits("bloom") {
            let wrong = check_filter(name, &table, "fast local bloom");
            assert!(wrong < 2.0 * 0.62f64.powf(bits) + 0.001, "{name}: {wrong}");
            assert!(bloom_of_all_keys(bits) == table.filter_bytes().unwrap(), "{name}: not the bits of RocksDB");
        }
        if let Some(bits) = bits("ribbon") {
            let wrong = check_filter(name, &table, "ribbon");
            assert!(wrong < 2.0 * 0.62f64.powf(bits) + 0.001, "{name}: {wrong}");
        }
        if let Some(bits) = bits("legacybloom") {
            let wrong = check_filter(name, &table, "legacy bloom");
            assert!(wrong < 2.0 * 0.62f64.powf(bits) + 0.005, "{name}: {wrong}");
        }
    }
    assert_eq!(kinds_of_compression.into_iter().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 7]);
}

#[test]
fn rocksdb_7_reads_our_tables() {
    let Some(oracle) = oracle::Cpp::build() else { return };
    let mut entries = Entries::new();
    for i in 0..KEYS {
        let mut ikey = Vec::new();
        append_internal_key(&mut ikey, &user_key(i), 0, ValueType::Value);
        entries.push((ikey, value(i)));
    }
    let mut options = Vec::new();
    for compression in [
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Zlib,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ] {
        // Also blocks larger than the 16 KiB window with which RocksDB inflates.
        for block_size in [1000, 100_000] {
            options.push(WriteOptions { compression, block_size, ..Default::default() });
        }
    }
    for checksum in table::CHECKSUMS {
        options.push(WriteOptions { checksum, ..Default::default() });
    }
    options.push(WriteOptions { hash_index: true, ..Default::default() });
    options.push(WriteOptions { restart_interval: 1, index_restart_interval: 1, ..Default::default() });
    options.push(WriteOptions { restart_interval: 7, index_restart_interval: 5, ..Default::default() });
    let tables: Vec<Vec<u8>> = options.iter().map(|o| write_table(&entries, o)).collect();
    for (data, options) in tables.iter().zip(&options) {
        let table = Table::open(data.clone()).unwrap();
        assert!(table.entries().unwrap() == entries, "{options:?}");
        check_filter("ours", &table, "fast local bloom");
    }
    let users: Entries = entries.iter().map(|(k, v)| (key::user_key(k).to_vec(), v.clone())).collect();
    for (read, options) in oracle.read_tables(&tables).into_iter().zip(&options) {
        assert!(read == users, "RocksDB reads other entries: {options:?}");
    }
}

#[test]
fn tables_of_rocksdb_9_read_back() {
    let Some(oracle) = oracle::Python::find() else { return };
    for (name, data) in oracle.write_tables() {
        let table = check_table(&name, data);
        assert_eq!(table.footer.format_version, 6, "{name}");
        assert_ne!(table.footer.base_context_checksum, 0);
        assert!(table.properties.key_largest_seqno.is_some() || !table.properties.other.is_empty());
        if name.contains("bloom") {
            check_filter(&name, &table, "fast local bloom");
        }
    }
}

#[test]
fn rocksdb_9_reads_our_tables() {
    let Some(oracle) = oracle::Python::find() else { return };
    let mut entries = Entries::new();
    for i in 0..KEYS {
        let mut ikey = Vec::new();
        append_internal_key(&mut ikey, &user_key(i), 0, ValueType::Value);
        entries.push((ikey, value(i)));
    }
    let users: Entries = entries.iter().map(|(k, v)| (key::user_key(k).to_vec(), v.clone())).collect();
    // Not Zlib: rocksdict's build fails even on RocksDB's own Zlib blocks.
    for compression in [
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ] {
        let options = WriteOptions { format_version: 6, compression, ..Default::default() };
        let data = write_table(&entries, &options);
        assert!(Table::open(data.clone()).unwrap().entries().unwrap() == entries);
        assert!(oracle.ingest_and_read(&data) == users, "{options:?}");
    }
}

#[test]
fn every_damaged_byte_of_a_table_is_seen() {
    let mut entries = Entries::new();
    for i in 0..200 {
        let mut ikey = Vec::new();
        append_internal_key(&mut ikey, &user_key(i), 9, ValueType::Value);
        entries.push((ikey, value(i)));
    }
    let seed = 4;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for format_version in [5, 6, 7] {
        let options = WriteOptions { format_version, compression: CompressionType::Lz4, ..Default::default() };
        let good = write_table(&entries, &options);
        assert!(Table::open(good.clone()).unwrap().entries().unwrap() == entries);
        for _ in 0..1500 {
            let mut bad = good.clone();
            let at = rng.usize(0..bad.len());
            bad[at] ^= 1 << rng.u32(0..8);
            let read = Table::open(bad).and_then(|t| t.filters().and_then(|_| t.entries()));
            // Only the padding of an old footer has no meaning.
            let padding = format_version == 5 && at > good.len() - 53;
            assert!(padding || read.is_err(), "format_version {format_version}: byte {at} of {}", good.len());
            if let Ok(read) = read {
                assert!(read == entries);
            }
        }
    }
}
