//! The same work in Rockmill and in RocksDB: names, percentiles, tickers, properties and sizes.

use std::collections::{BTreeMap, BTreeSet};

use rockmill::statistics::{Histogram, Statistics, Ticker};
use rockmill::{
    BlockBasedOptions, BottommostLevelCompaction, CompactOptions, CompressionType, Db, IteratorMode, Options, Range,
    SizeApproximationOptions, properties,
};

use crate::need;
use crate::oracle::{Peer, Script};

/// Names in RocksDB 10.4 that do not exist in 7.8, with which the tests run.
const NEWER: &[&str] = &[
    "rocksdb.block.checksum.mismatch.count",
    "rocksdb.compaction.total.time.cpu_micros",
    "rocksdb.error.handler.bg.error.count",
    "rocksdb.error.handler.bg.io.error.count",
    "rocksdb.error.handler.bg.retryable.io.error.count",
    "rocksdb.last.level.seek.filter.match",
    "rocksdb.last.level.seek.filtered",
    "rocksdb.non.last.level.seek.filter.match",
    "rocksdb.non.last.level.seek.filtered",
    "rocksdb.table.open.prefetch.tail.read.bytes",
    "rocksdb.bloom.filter.prefix.true.positive",
    "rocksdb.bytes.compressed.from",
    "rocksdb.bytes.compressed.to",
    "rocksdb.bytes.compression.rejected",
    "rocksdb.bytes.compression_bypassed",
    "rocksdb.bytes.decompressed.from",
    "rocksdb.bytes.decompressed.to",
    "rocksdb.file.read.compaction.micros",
    "rocksdb.file.read.db.iterator.micros",
    "rocksdb.file.read.get.micros",
    "rocksdb.file.read.multiget.micros",
    "rocksdb.file.write.compaction.micros",
    "rocksdb.file.write.db.open.micros",
    "rocksdb.file.write.flush.micros",
    "rocksdb.number.block_compression_bypassed",
    "rocksdb.number.block_compression_rejected",
    "rocksdb.prefetch.bytes",
    "rocksdb.prefetch.bytes.useful",
    "rocksdb.prefetch.hits",
    "rocksdb.sst.write.micros",
    "rocksdb.table.open.prefetch.tail.hit",
    "rocksdb.table.open.prefetch.tail.miss",
];

#[test]
fn every_name_is_rocksdbs() {
    let test = "every_name_is_rocksdbs";
    let driver = need!(test, Peer::Library.driver());
    let mut script = Script::new();
    script.line("statistics").line("stats");
    let Some(answer) = driver.answer(test, &script) else { return };
    let theirs: Vec<&str> = answer.properties().iter().filter_map(|l| l.split(' ').next()).collect();
    let set: BTreeSet<&str> = theirs.iter().copied().collect();
    let ours: Vec<&str> = Ticker::iter().map(Ticker::name).chain(Histogram::iter().map(Histogram::name)).collect();
    let unknown: Vec<_> = ours.iter().filter(|n| !set.contains(**n) && !NEWER.contains(n)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // The lines have the same form. Their order is that of 10.4.
    let both: Vec<&str> = ours.iter().copied().filter(|n| set.contains(n)).collect();
    let text = Statistics::default().to_string();
    for line in answer.properties() {
        let name = line.split(' ').next().unwrap_or_default();
        if both.contains(&name) {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
    }
}

#[test]
fn percentiles_are_rocksdbs() {
    let test = "percentiles_are_rocksdbs";
    let driver = need!(test, Peer::Library.driver());
    let mut rng = fastrand::Rng::with_seed(7);
    let mut sets: Vec<Vec<u64>> = vec![vec![], vec![0], vec![1], vec![5; 10], vec![u64::from(u32::MAX), 3, 1 << 40]];
    for _ in 0..40 {
        let most = 1u64 << rng.u32(1..30);
        sets.push((0..rng.usize(1..300)).map(|_| rng.u64(0..most)).collect());
    }
    let mut script = Script::new();
    for set in &sets {
        let values: Vec<String> = set.iter().map(u64::to_string).collect();
        script.line(format!("histogram {}", values.join(" ")));
    }
    let Some(answer) = driver.answer(test, &script) else { return };
    let theirs = answer.properties();
    assert_eq!(theirs.len(), sets.len());
    for (set, line) in sets.iter().zip(theirs) {
        let statistics = Statistics::default();
        set.iter().for_each(|&v| statistics.record(Histogram::DbGet, v));
        let d = statistics.histogram_data(Histogram::DbGet);
        let n: Vec<f64> = line.split(' ').map(|w| w.parse().expect("a number")).collect();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        let ours = [d.median(), d.p95(), d.p99(), d.average(), d.std_dev(), d.max(), d.count() as f64, d.sum() as f64];
        for (what, (a, b)) in ours.iter().zip(&n).enumerate() {
            assert!(close(*a, *b), "number {what} of {set:?}: {a}, RocksDB {b}");
        }
        assert!(close(d.min(), n[8]), "smallest of {set:?}: {} {}", d.min(), n[8]);
    }
}

/// One step of the work that both do.
enum Step {
    Put(String, usize),
    Delete(String),
    Get(String),
    Scan,
    Flush,
    Compact,
}

fn work() -> Vec<Step> {
    let key = |i: usize| format!("key{i:05}");
    let mut steps = Vec::new();
    steps.extend((0..1000).map(|i| Step::Put(key(i), 100)));
    steps.push(Step::Get(key(5)));
    steps.push(Step::Get("nothing".into()));
    steps.push(Step::Flush);
    steps.extend((0..50).map(|i| Step::Delete(key(i * 3))));
    steps.extend((0..100).map(|i| Step::Put(key(i * 7), 50)));
    steps.push(Step::Flush);
    // In the newer table, in the older one, deleted, absent.
    steps.extend([7, 8, 9, 11, 500, 501].map(|i| Step::Get(key(i))));
    steps.extend((0..200).map(|i| Step::Get(format!("key{i:05}x"))));
    steps.push(Step::Scan);
    steps.push(Step::Compact);
    steps.extend((300..320).map(|i| Step::Get(key(i))));
    steps.extend((2000..2010).map(|i| Step::Put(key(i), 10)));
    steps.extend((2000..2003).map(|i| Step::Delete(key(i))));
    steps.push(Step::Get(key(2005)));
    steps.push(Step::Get(key(2001)));
    steps.push(Step::Scan);
    steps
}

/// Tickers that this work changes by the same amount in both.
const SAME: &[Ticker] = &[
    Ticker::BloomFilterUseful,
    Ticker::BloomFilterFullPositive,
    Ticker::BloomFilterFullTruePositive,
    Ticker::MemtableHit,
    Ticker::MemtableMiss,
    Ticker::GetHitL0,
    Ticker::GetHitL1,
    Ticker::GetHitL2AndUp,
    Ticker::CompactionKeyDropNewerEntry,
    Ticker::CompactionKeyDropObsolete,
    Ticker::CompactionKeyDropRangeDel,
    Ticker::NumberKeysWritten,
    Ticker::NumberKeysRead,
    Ticker::BytesWritten,
    Ticker::BytesRead,
    Ticker::NumberDbSeek,
    Ticker::NumberDbSeekFound,
    Ticker::NumberDbNext,
    Ticker::NumberDbNextFound,
    Ticker::IterBytesRead,
    Ticker::NoIteratorCreated,
    Ticker::NoIteratorDeleted,
    Ticker::WalFileBytes,
    Ticker::WriteDoneBySelf,
    Ticker::WriteDoneByOther,
    Ticker::WriteWithWal,
    Ticker::MemtablePayloadBytesAtFlush,
];

/// Properties that are the same in both after this work.
const SAME_PROPERTIES: &[&str] = &[
    properties::NUM_IMMUTABLE_MEM_TABLE,
    properties::NUM_IMMUTABLE_MEM_TABLE_FLUSHED,
    properties::MEM_TABLE_FLUSH_PENDING,
    properties::NUM_RUNNING_FLUSHES,
    properties::COMPACTION_PENDING,
    properties::NUM_RUNNING_COMPACTIONS,
    properties::BACKGROUND_ERRORS,
    properties::NUM_ENTRIES_ACTIVE_MEM_TABLE,
    properties::NUM_ENTRIES_IMM_MEM_TABLES,
    properties::NUM_DELETES_ACTIVE_MEM_TABLE,
    properties::NUM_DELETES_IMM_MEM_TABLES,
    properties::ESTIMATE_NUM_KEYS,
    properties::IS_FILE_DELETIONS_ENABLED,
    properties::NUM_SNAPSHOTS,
    properties::OLDEST_SNAPSHOT_TIME,
    properties::OLDEST_SNAPSHOT_SEQUENCE,
    properties::NUM_LIVE_VERSIONS,
    properties::BASE_LEVEL,
    properties::ESTIMATE_PENDING_COMPACTION_BYTES,
    properties::ACTUAL_DELAYED_WRITE_RATE,
    properties::IS_WRITE_STOPPED,
    properties::MIN_OBSOLETE_SST_NUMBER_TO_KEEP,
    "rocksdb.num-files-at-level0",
    "rocksdb.num-files-at-level6",
    "rocksdb.compression-ratio-at-level0",
];

#[test]
fn the_same_work_counts_the_same() {
    let test = "the_same_work_counts_the_same";
    let driver = need!(test, Peer::Library.driver());
    let dir = tempfile::tempdir().expect("a directory");
    let mut script = Script::new();
    script.line("statistics").line("cf default disable_auto_compactions=true;compression=kNoCompression");
    script.line("cf default level_compaction_dynamic_level_bytes=true");
    script.line("cf default block_based_table_factory={filter_policy=bloomfilter:10:false}");
    script.open(&dir.path().join("theirs"));

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_disable_auto_compactions(true);
    options.set_compression_type(CompressionType::None);
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    options.set_block_based_table_factory(&table);
    options.enable_statistics();
    let db = Db::open(&options, dir.path().join("ours")).expect("opens");
    for step in work() {
        match step {
            Step::Put(k, len) => {
                db.put(&k, vec![b'v'; len]).expect("put");
                script.put("default", &k, vec![b'v'; len]);
            }
            Step::Delete(k) => {
                db.delete(&k).expect("delete");
                script.hex("del", "default", &[k.as_bytes()]);
            }
            Step::Get(k) => {
                db.get(&k).expect("get");
                script.hex("get", "default", &[k.as_bytes()]);
            }
            Step::Scan => {
                db.iterator(IteratorMode::Start).for_each(|e| drop(e.expect("an entry")));
                script.line("dump default");
            }
            Step::Flush => {
                db.flush().expect("flush");
                script.line("flush default");
            }
            Step::Compact => {
                let mut how = CompactOptions::default();
                how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how).expect("compact");
                script.line("compact default");
            }
        }
    }
    let ranges = [("key00000", "key00100"), ("key00000", "key00500"), ("key00333", "key00334"), ("a", "z"), ("x", "z")];
    // RocksDB reports the end of a compaction to its caller before the thread that ran it stops counting as running.
    script.line("wait");
    script.line("stats");
    for (begin, end) in ranges {
        for margin in ["-1", "0.1"] {
            let hex = |s: &str| crate::oracle::to_hex(s.as_bytes());
            script.line(format!("approximate default {} {} {margin}", hex(begin), hex(end)));
        }
    }
    for name in SAME_PROPERTIES {
        script.line(format!("prop default {name}"));
    }
    script.line("text default rocksdb.levelstats");
    let Some(answer) = driver.answer(test, &script) else { return };
    let lines = answer.properties();

    let theirs: BTreeMap<&str, u64> = lines
        .iter()
        .filter_map(|l| l.split_once(" COUNT : "))
        .filter_map(|(name, n)| Some((name, n.parse().ok()?)))
        .collect();
    let mut wrong = Vec::new();
    for t in SAME {
        let (a, b) = (options.get_ticker_count(*t), theirs.get(t.name()).copied());
        if Some(a) != b {
            wrong.push(format!("{t}: {a}, RocksDB {b:?}"));
        }
    }
    let after_stats = lines.iter().rposition(|l| l.contains(" COUNT : ")).expect("statistics") + 1;
    let mut rest = lines.into_iter().skip(after_stats);
    let cf = db.default_cf();
    for (begin, end) in ranges {
        for margin in [-1.0, 0.1] {
            let mut how = SizeApproximationOptions::default();
            how.set_files_size_error_margin(margin);
            let range = Range::new(begin.as_bytes(), end.as_bytes());
            let ours = db.get_approximate_sizes_cf_opt(&cf, &[range], &how).expect("a size")[0];
            let theirs: u64 = rest.next().and_then(|l| l.parse().ok()).expect("a size");
            // The tables differ by some bytes of properties.
            if ours.abs_diff(theirs) > theirs / 100 + 2 {
                wrong.push(format!("{begin}..{end} margin {margin}: {ours} bytes, RocksDB {theirs}"));
            }
        }
    }
    for name in SAME_PROPERTIES {
        let (ours, theirs) = (db.property_value(name).expect("a property"), rest.next());
        if ours.as_deref() != theirs {
            wrong.push(format!("{name}: {ours:?}, RocksDB {theirs:?}"));
        }
    }
    let text: Vec<&str> = rest.collect();
    assert_eq!(db.property_value(properties::LEVELSTATS).unwrap().unwrap().lines().collect::<Vec<_>>(), text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
