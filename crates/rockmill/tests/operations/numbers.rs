//! Statistics, perf context, properties, sizes and live files, without comparison with RocksDB.

use std::time::Duration;

use rockmill::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
use rockmill::statistics::{Histogram, StatsLevel, Ticker};
use rockmill::{
    BlockBasedOptions, CompressionType, Db, ErrorKind, IteratorMode, MergeEngine, Range, ReadOptions,
    SizeApproximationOptions, properties,
};

use rockmill_io::FileSystem;

use crate::{in_memory, path};

fn fill(db: &Db, keys: std::ops::Range<usize>) {
    for i in keys {
        db.put(format!("key{i:05}"), vec![b'v'; 100]).unwrap();
    }
}

#[test]
fn statistics_are_off_by_default_and_shared_by_clones() {
    let (mut options, _) = in_memory();
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    assert_eq!(options.get_statistics(), None);
    assert_eq!(options.get_ticker_count(Ticker::NumberKeysWritten), 0);
    drop(db);
    options.enable_statistics();
    let copy = options.clone();
    let db = Db::open(&options, path()).unwrap();
    db.put("k", "v").unwrap();
    assert_eq!(copy.get_ticker_count(Ticker::NumberKeysWritten), 1);
    assert!(copy.get_statistics().unwrap().contains("rocksdb.number.keys.written COUNT : 1\n"));
    assert_eq!(db.property_value(properties::OPTIONS_STATISTICS).unwrap(), options.get_statistics());
    options.set_statistics_level(StatsLevel::DisableAll);
    db.put("k", "v").unwrap();
    assert_eq!(copy.get_ticker_count(Ticker::NumberKeysWritten), 1);
}

#[test]
fn reads_writes_and_jobs_move_tickers_and_histograms() {
    let (mut options, _) = in_memory();
    options.enable_statistics();
    options.set_statistics_level(StatsLevel::All);
    options.set_compression_type(CompressionType::Lz4);
    options.set_disable_auto_compactions(true);
    options.set_merge_operator_associative("join", |_, old, operands| {
        let mut all = old.unwrap_or_default().to_vec();
        operands.iter().for_each(|o| all.extend_from_slice(o));
        Some(all)
    });
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..2000);
    db.merge("m", "a").unwrap();
    db.merge("m", "b").unwrap();
    db.flush().unwrap();
    db.flush_wal(true).unwrap();
    fill(&db, 0..10);
    db.flush().unwrap();
    for _ in 0..2 {
        db.multi_get(["key00003", "key01500", "none"]);
        assert_eq!(db.get("m").unwrap().as_deref(), Some(&b"ab"[..]));
    }
    let mut it = db.raw_iterator();
    it.seek_to_last();
    it.prev();
    it.seek("key00005");
    drop(it);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    db.get("key00003").unwrap();
    let count = |t| options.get_ticker_count(t);
    for t in [
        Ticker::BlockCacheMiss,
        Ticker::BlockCacheHit,
        Ticker::BlockCacheDataHit,
        Ticker::BlockCacheAdd,
        Ticker::BlockCacheBytesRead,
        Ticker::BlockCacheBytesWrite,
        Ticker::NoFileOpens,
        Ticker::CompactReadBytes,
        Ticker::CompactWriteBytes,
        Ticker::FlushWriteBytes,
        Ticker::NumberBlockCompressed,
        Ticker::NumberBlockDecompressed,
        Ticker::BytesCompressedFrom,
        Ticker::BytesDecompressedTo,
        Ticker::BlockChecksumComputeCount,
        Ticker::WalFileSynced,
        Ticker::MergeOperationTotalTime,
        Ticker::NumberDbPrev,
        Ticker::NumberDbPrevFound,
        Ticker::GetHitL2AndUp,
        Ticker::TableOpenPrefetchTailHit,
    ] {
        assert!(count(t) > 0, "{t}");
    }
    assert_eq!(count(Ticker::BlockChecksumMismatchCount), 0);
    db.put("last", "v").unwrap();
    drop(db.get_updates_since(db.latest_sequence_number()).unwrap());
    assert_eq!(count(Ticker::GetUpdatesSinceCalls), 1);
    assert_eq!(count(Ticker::NumberMultigetCalls), 2);
    assert_eq!((count(Ticker::NumberMultigetKeysRead), count(Ticker::NumberMultigetKeysFound)), (6, 4));
    assert_eq!(count(Ticker::NumberMultigetBytesRead), 400);
    assert_eq!(count(Ticker::CompactionKeyDropNewerEntry), 10);
    assert!(count(Ticker::BytesCompressedTo) < count(Ticker::BytesCompressedFrom));
    for h in [
        Histogram::DbGet,
        Histogram::DbWrite,
        Histogram::DbSeek,
        Histogram::DbMultiget,
        Histogram::CompactionTime,
        Histogram::FlushTime,
        Histogram::TableSyncMicros,
        Histogram::CompactionOutfileSyncMicros,
        Histogram::WalFileSyncMicros,
        Histogram::ManifestFileSyncMicros,
        Histogram::TableOpenIoMicros,
        Histogram::ReadBlockGetMicros,
        Histogram::ReadBlockCompactionMicros,
        Histogram::SstReadMicros,
        Histogram::SstWriteMicros,
        Histogram::FileReadGetMicros,
        Histogram::FileReadCompactionMicros,
        Histogram::FileWriteFlushMicros,
        Histogram::FileWriteCompactionMicros,
        Histogram::NumFilesInSingleCompaction,
        Histogram::NumSubcompactionsScheduled,
        Histogram::SubcompactionSetupTime,
        Histogram::BytesPerRead,
        Histogram::BytesPerWrite,
        Histogram::BytesPerMultiget,
        Histogram::CompressionTimesNanos,
        Histogram::DecompressionTimesNanos,
        Histogram::ReadNumMergeOperands,
        Histogram::TableOpenPrefetchTailReadBytes,
    ] {
        assert!(options.get_histogram_data(h).count() > 0, "{h}");
    }
    assert_eq!(options.get_histogram_data(Histogram::NumFilesInSingleCompaction).max(), 2.0);
    assert_eq!(options.get_histogram_data(Histogram::DbMultiget).count(), 2);
}

#[test]
fn iterators_count_what_they_pass_over_when_they_go() {
    let (mut options, _) = in_memory();
    options.enable_statistics();
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..10);
    fill(&db, 0..10);
    for i in 0..5 {
        db.delete(format!("key{i:05}")).unwrap();
    }
    for i in 0..30 {
        db.put("key00009", format!("{i}")).unwrap();
    }
    db.put("z", "last").unwrap();
    let it = db.iterator(IteratorMode::Start);
    assert_eq!(options.get_ticker_count(Ticker::NoIteratorCreated), 1);
    assert_eq!(it.count(), 6);
    let count = |t| options.get_ticker_count(t);
    assert_eq!(count(Ticker::NoIteratorDeleted), 1);
    assert_eq!((count(Ticker::NumberDbSeek), count(Ticker::NumberDbSeekFound)), (1, 1));
    assert_eq!((count(Ticker::NumberDbNext), count(Ticker::NumberDbNextFound)), (6, 5));
    assert!(count(Ticker::NumberIterSkip) >= 15, "{}", count(Ticker::NumberIterSkip));
    assert_eq!(count(Ticker::NumberOfReseeksInIteration), 1);
}

#[test]
fn the_perf_context_counts_for_this_thread() {
    let (mut options, _) = in_memory();
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    options.set_block_based_table_factory(&table);
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..1000);
    db.flush().unwrap();
    let mut context = PerfContext::default();
    db.get("key00001").unwrap();
    assert_eq!(context.report(true), "", "off by default");
    set_perf_stats(PerfStatsLevel::EnableCount);
    context.reset();
    db.get("key00500").unwrap();
    db.get("key00500").unwrap();
    db.get("key00500x").unwrap();
    db.put("m", "v").unwrap();
    let metric = |m| PerfContext::default().metric(m);
    assert_eq!((metric(PerfMetric::BlockReadCount), metric(PerfMetric::BlockCacheHitCount)), (1, 1));
    assert!(metric(PerfMetric::BlockReadByte) > 4000);
    assert_eq!((metric(PerfMetric::BloomSstHitCount), metric(PerfMetric::BloomSstMissCount)), (2, 1));
    assert_eq!((metric(PerfMetric::GetFromMemtableCount), metric(PerfMetric::GetReadBytes)), (3, 200));
    assert_eq!(metric(PerfMetric::GetFromMemtableTime), 0, "no times at this level");
    set_perf_stats(PerfStatsLevel::EnableTime);
    context.reset();
    let mut it = db.raw_iterator();
    it.seek("key00999");
    it.next();
    assert_eq!(it.key(), Some(&b"m"[..]));
    db.get("key00700").unwrap();
    db.put("n", "v").unwrap();
    assert_eq!(metric(PerfMetric::SeekOnMemtableCount), 1);
    assert_eq!(metric(PerfMetric::SeekChildSeekCount), 2);
    assert!(metric(PerfMetric::IterReadBytes) > 0);
    for m in [
        PerfMetric::SeekInternalSeekTime,
        PerfMetric::GetFromMemtableTime,
        PerfMetric::GetFromOutputFilesTime,
        PerfMetric::BlockReadTime,
        PerfMetric::BlockChecksumTime,
        PerfMetric::WriteWalTime,
        PerfMetric::WriteMemtableTime,
    ] {
        assert!(metric(m) > 0, "{}", m.name());
    }
    let report = context.report(true);
    assert!(report.contains("seek_on_memtable_count = 1, ") && !report.contains(" = 0"), "{report}");
    set_perf_stats(PerfStatsLevel::Disable);
}

#[test]
fn every_property_has_a_value_and_strange_names_have_none() {
    let (mut options, _) = in_memory();
    options.enable_statistics();
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..100);
    db.flush().unwrap();
    for name in properties::ALL {
        assert!(db.property_value(name).unwrap().is_some(), "{name}");
    }
    for name in
        ["rocksdb.", "rocksdb.nothing", "", "stats", "rocksdb.num-files-at-level7", "rocksdb.num-files-at-levelx"]
    {
        assert_eq!(db.property_value(name).unwrap(), None, "{name}");
        assert_eq!(db.property_int_value(name).unwrap(), None, "{name}");
    }
    assert_eq!(db.property_int_value(properties::STATS).unwrap(), None, "text is no number");
    assert_eq!(db.property_value(properties::num_files_at_level(0)).unwrap().as_deref(), Some("1"));
    assert_eq!(db.property_value(properties::compression_ratio_at_level(3)).unwrap().as_deref(), Some("-1.000000"));
    let sum = db.property_value(properties::aggregated_table_properties_at_level(0)).unwrap().unwrap();
    assert!(sum.contains("# entries=100; # deletions=0; "), "{sum}");
    let text = db.property_value(properties::STATS).unwrap().unwrap();
    for part in
        ["** Compaction Stats [default] **", "  L0      1/0 ", "** DB Stats **", "Cumulative writes: 100 writes"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn properties_follow_what_happens() {
    let (mut options, _) = in_memory();
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, path()).unwrap();
    let int = |name| db.property_int_value(name).unwrap().unwrap();
    fill(&db, 0..100);
    db.delete("key00003").unwrap();
    assert_eq!(int(properties::NUM_ENTRIES_ACTIVE_MEM_TABLE), 101);
    assert_eq!(int(properties::ESTIMATE_NUM_KEYS), 99);
    let before = int(properties::CURRENT_SUPER_VERSION_NUMBER);
    db.flush().unwrap();
    assert!(int(properties::CURRENT_SUPER_VERSION_NUMBER) > before);
    assert_eq!(int(properties::NUM_ENTRIES_ACTIVE_MEM_TABLE), 0);
    let (one, live) = (int(properties::TOTAL_SST_FILES_SIZE), int(properties::LIVE_SST_FILES_SIZE));
    assert_eq!(one, live);
    fill(&db, 0..100);
    db.flush().unwrap();
    // The newer table hides the older one.
    assert!(int(properties::ESTIMATE_LIVE_DATA_SIZE) < int(properties::LIVE_SST_FILES_SIZE));
    // The job that wrote the table releases the previous version shortly after.
    let until =
        |name, value| (0..500).any(|_| int(name) == value || (std::thread::sleep(Duration::from_millis(10)), false).1);
    assert!(until(properties::NUM_LIVE_VERSIONS, 1));
    let it = db.raw_iterator();
    db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
    assert!(until(properties::NUM_LIVE_VERSIONS, 2), "an iterator holds the one before");
    assert!(int(properties::TOTAL_SST_FILES_SIZE) > int(properties::LIVE_SST_FILES_SIZE));
    drop(it);
    assert_eq!(int(properties::TOTAL_SST_FILES_SIZE), int(properties::LIVE_SST_FILES_SIZE));
    assert_eq!(int(properties::ESTIMATE_NUM_KEYS), 100);
    let snapshot = db.snapshot();
    assert_eq!(int(properties::NUM_SNAPSHOTS), 1);
    assert_eq!(int(properties::OLDEST_SNAPSHOT_SEQUENCE), db.latest_sequence_number());
    drop(snapshot);
    assert_eq!((int(properties::NUM_SNAPSHOTS), int(properties::OLDEST_SNAPSHOT_SEQUENCE)), (0, 0));
}

#[test]
fn live_files_say_what_is_in_them() {
    let (mut options, _) = in_memory();
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..50);
    db.flush().unwrap();
    db.delete("key00001").unwrap();
    db.delete_range_cf(&db.default_cf(), "key00002", "key00004").unwrap();
    db.put("zz", "v").unwrap();
    db.flush().unwrap();
    drop(db);
    // Also if the tables are not open yet.
    let db = Db::open(&options, path()).unwrap();
    let mut files = db.live_files().unwrap();
    files.sort_by_key(|f| f.number);
    assert_eq!(files.len(), 2);
    assert_eq!((files[0].num_entries, files[0].num_deletions, files[0].level), (50, 0, 0));
    assert_eq!((files[1].num_entries, files[1].num_deletions), (3, 2));
    assert_eq!(files[0].start_key.as_deref(), Some(&b"key00000"[..]));
    assert_eq!(files[1].end_key.as_deref(), Some(&b"zz"[..]));
    assert_eq!(files[0].name, format!("/{:06}.sst", files[0].number));
    let cf = db.get_column_family_metadata();
    assert_eq!((cf.name.as_str(), cf.file_count, cf.levels.len()), ("default", 2, 7));
    assert_eq!(cf.size, files.iter().map(|f| f.size as u64).sum::<u64>());
    assert_eq!(cf.levels[0].files.len(), 2);
}

#[test]
fn sizes_of_ranges_add_up_and_memtables_count_if_asked() {
    let (mut options, _) = in_memory();
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..10_000);
    let cf = db.default_cf();
    let all = Range::new(b"key00000", b"key99999");
    assert_eq!(db.get_approximate_sizes(&[all]), [0], "all is in the memtable");
    let mut mems = SizeApproximationOptions::default();
    mems.set_include_memtables(true);
    mems.set_include_files(false);
    let bytes = db.get_approximate_sizes_cf_opt(&cf, &[all], &mems).unwrap()[0];
    assert!((1_000_000..1_500_000).contains(&bytes), "{bytes}");
    let (entries, bytes) = db.get_approximate_memtable_stats(&Range::new(b"key02000", b"key04000"));
    assert!((1400..2600).contains(&entries), "{entries} of 2000");
    assert!(bytes / entries > 100);
    assert_eq!(db.get_approximate_memtable_stats(&Range::new(b"key02000", b"key02003")).0, 3, "few are counted");
    db.flush().unwrap();
    let file = db.live_files().unwrap()[0].size as u64;
    let parts = [
        Range::new(b"key00000", b"key02500"),
        Range::new(b"key02500", b"key09000"),
        Range::new(b"key09000", b"key99999"),
        Range::new(b"b", b"a"),
        Range::new(b"x", b"y"),
    ];
    let sizes = db.get_approximate_sizes(&parts);
    assert_eq!(&sizes[3..], [0, 0]);
    assert!(sizes[0].abs_diff(file / 4) < file / 50, "{sizes:?} of {file}");
    assert!(sizes.iter().sum::<u64>().abs_diff(file) < file / 50, "{sizes:?} of {file}");
    let mut none = SizeApproximationOptions::default();
    none.set_include_files(false);
    let e = db.get_approximate_sizes_cf_opt(&cf, &[all], &none).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_cache_only_read_counts_as_a_miss_and_reads_nothing() {
    let (mut options, _) = in_memory();
    options.enable_statistics();
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..100);
    db.flush().unwrap();
    let mut cached = ReadOptions::default();
    cached.set_cache_only(true);
    assert!(db.get_opt("key00001", &cached).is_err());
    assert_eq!(options.get_ticker_count(Ticker::BlockCacheDataMiss), 1);
    assert_eq!(options.get_ticker_count(Ticker::BlockCacheDataAdd), 0);
}

#[test]
fn background_work_that_waits_or_fails_is_counted() {
    let (mut options, fs) = in_memory();
    options.enable_statistics();
    options.set_ratelimiter(1 << 20, 10_000, 10);
    let db = Db::open(&options, path()).unwrap();
    fill(&db, 0..1000);
    db.flush().unwrap();
    let count = |t| options.get_ticker_count(t);
    assert!(count(Ticker::NumberRateLimiterDrains) > 0);
    db.put("k", "v").unwrap();
    fs.set_fault(Box::new(|op| {
        op.path.extension().is_some_and(|e| e == "sst").then(|| std::io::Error::from_raw_os_error(5))
    }));
    assert!(db.flush().is_err());
    fs.clear_fault();
    assert_eq!((count(Ticker::ErrorHandlerBgErrorCount), count(Ticker::ErrorHandlerBgIoErrorCount)), (1, 1));
    assert_eq!(count(Ticker::ErrorHandlerBgRetryableIoErrorCount), 0);
    // A missing table cannot be opened.
    db.resume().unwrap();
    let files = db.live_files().unwrap();
    let file = files.iter().find(|f| f.start_key.as_deref() == Some(b"key00000")).unwrap();
    drop(db);
    let db = Db::open(&options, path()).unwrap();
    fs.remove(&path().join(file.name.trim_start_matches('/'))).unwrap();
    assert!(db.get("key00001").is_err());
    assert_eq!(count(Ticker::NoFileErrors), 1);
}

/// Jobs open the tables that they write, so that no read waits for that; but they close no other table for it.
#[test]
fn jobs_open_the_tables_that_they_write() {
    for (max_open_files, opened) in [(-1, [1, 2, 3]), (12, [1, 2, 2])] {
        let (mut options, _) = in_memory();
        options.enable_statistics();
        options.set_disable_auto_compactions(true);
        options.set_max_open_files(max_open_files);
        let db = Db::open(&options, path()).unwrap();
        let opens = || options.get_ticker_count(Ticker::NoFileOpens);
        let mut found = Vec::new();
        for _ in 0..2 {
            fill(&db, 0..10);
            db.flush().unwrap();
            found.push(opens());
        }
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        found.push(opens());
        assert_eq!(found, opened, "max_open_files {max_open_files}");
        assert_eq!(db.get("key00003").unwrap().as_deref(), Some(&[b'v'; 100][..]));
        assert_eq!(opens() - found[2], u64::from(max_open_files > 0), "max_open_files {max_open_files}");
    }
}

/// Older stores call tables `.ldb`; every engine finds them.
#[test]
fn tables_of_the_old_name_are_compacted() {
    for engine in [MergeEngine::Pread, MergeEngine::Uring, MergeEngine::Auto] {
        let (mut options, fs) = in_memory();
        options.set_disable_auto_compactions(true);
        options.set_merge_engine(engine);
        options.set_use_direct_io_for_flush_and_compaction(true);
        let db = Db::open(&options, path()).unwrap();
        for _ in 0..2 {
            fill(&db, 0..100);
            db.flush().unwrap();
        }
        let tables: Vec<_> = db.live_files().unwrap().iter().map(|f| path().join(&f.name[1..])).collect();
        drop(db);
        assert_eq!(tables.len(), 2);
        for table in &tables {
            fs.rename(table, &table.with_extension("ldb")).unwrap();
        }
        let db = Db::open(&options, path()).unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        assert_eq!(db.get("key00003").unwrap().as_deref(), Some(&[b'v'; 100][..]), "{engine:?}");
        assert!(!fs.exists(&tables[0].with_extension("ldb")).unwrap(), "{engine:?}");
    }
}
