//! Rockmill writes and compacts; RocksDB reads, checks and writes more; then Rockmill reads again.
//!
//! The checks are `ldb checkconsistency` and `ldb scan`, `sst_dump --command=verify` and `--command=scan` on every
//! table, and every available RocksDB library that knows the format_version.

mod oracle;
#[path = "oracle_write/styles.rs"]
mod styles;

use std::path::Path;
use std::sync::Arc;

use oracle::content::{entries, ldb_scan, open_all, read, read_at, same, sst_scan};
use oracle::ops::{Runner, Shape, Workload};
use oracle::{Outcome, Peer, Script, copy_dir, from_hex, run_tool, tables, tool};
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, ChecksumType, ColumnFamilyDescriptor,
    CompactOptions, CompactionStyle, CompressionType, DataBlockIndexType, Db, FifoCompactOptions, Options,
    WriteOptions,
};
use rockmill_format::comparator::ReverseBytewiseComparator;
use rockmill_skip::{Needs, skip, wish};

/// One way of making a database with Rockmill.
struct Case {
    name: &'static str,
    options: fn(&mut Options),
    table: fn(&mut BlockBasedOptions),
    shape: Shape,
    /// RocksDB's option string that is needed to open the result.
    rocksdb: &'static str,
    /// Newest format_version in the database.
    format_version: u32,
    writes: fn(&mut WriteOptions),
    reverse: bool,
    /// Whether the wheel can be asked.
    wheel: bool,
    /// End with a full compaction, after which the tables have exactly the contents.
    compact: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "",
            options: |_| {},
            table: |_| {},
            shape: Shape::default(),
            rocksdb: "",
            format_version: 5,
            writes: |_| {},
            reverse: false,
            wheel: true,
            compact: false,
        }
    }
}

impl Case {
    fn options(&self) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let mut table = BlockBasedOptions::default();
        (self.table)(&mut table);
        options.set_block_based_table_factory(&table);
        if self.reverse {
            options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        (self.options)(&mut options);
        options
    }

    fn header(&self, workload: &Workload, path: &Path) -> Script {
        let mut script = Script::new();
        for family in &workload.families {
            script.line(format!("cf {family} {}", self.rocksdb));
        }
        script.open(path);
        script
    }

    fn run(&self) {
        let seed = 0xface ^ self.name.bytes().fold(0, |a: u64, b| a.wrapping_mul(31).wrapping_add(u64::from(b)));
        println!("{}: seed {seed}", self.name);
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        let workload = Workload::random(seed, self.shape);
        let mut model = workload.model();
        let expected = |model: &oracle::ops::Model, n: usize| {
            let mut all = entries(&model.now[n]);
            if self.reverse {
                all.reverse();
            }
            all
        };
        let options = self.options();
        {
            let families = workload.families.iter().map(|f| ColumnFamilyDescriptor::new(f, options.clone()));
            let db = Db::open_cf_descriptors(&options, &path, families).unwrap_or_else(|e| panic!("open: {e}"));
            let mut runner = Runner::new(&db, &workload.families);
            (self.writes)(&mut runner.options);
            runner.run(&workload.ops);
            for (n, family) in workload.families.iter().enumerate() {
                same(&format!("Rockmill's own view of {family}"), &expected(&model, n), &read(&db, family));
                for (number, snapshot) in &runner.snapshots {
                    let then = entries(&model.snapshots[number][n]);
                    if !self.reverse {
                        same(&format!("snapshot {number} of {family}"), &then, &read_at(&db, family, snapshot));
                    }
                }
            }
            runner.snapshots.clear();
            if self.compact {
                let mut how = CompactOptions::default();
                how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
                for family in &workload.families {
                    let cf = db.cf_handle(family).expect("opened");
                    db.flush_cf(&cf).unwrap_or_else(|e| panic!("flush: {e}"));
                    db.compact_range_cf_opt(&cf, None::<&[u8]>, None::<&[u8]>, &how)
                        .unwrap_or_else(|e| panic!("compact: {e}"));
                }
            }
            db.wait_for_background_work().unwrap_or_else(|e| panic!("background work: {e}"));
        }
        self.check_tools(&path, home.path(), &workload, &model);

        let mut tried = 0;
        for peer in [Peer::Library, Peer::Wheel, Peer::Other] {
            let knows = match peer {
                Peer::Library => 5,
                Peer::Wheel => 6,
                Peer::Other | Peer::Loaded => u32::MAX,
            };
            if self.format_version > knows || (peer == Peer::Wheel && !self.wheel) {
                continue;
            }
            let driver = match peer.driver() {
                Ok(driver) => driver,
                Err(missing) if peer == Peer::Other => {
                    wish(self.name, &missing);
                    continue;
                }
                Err(reason) => {
                    skip(self.name, &reason);
                    continue;
                }
            };
            tried += 1;
            let copy = home.path().join(format!("{peer:?}"));
            copy_dir(&path, &copy);
            let mut after = model.clone();
            let more = Workload::random(seed + 1, Shape { ops: 800, snapshots: false, ..self.shape });
            let more = more.without_single_deletes();
            more.continue_model(&mut after);
            let mut script = self.header(&workload, &copy);
            if peer != Peer::Wheel {
                script.line("verify");
            }
            for family in &workload.families {
                script.line(format!("dump {family}"));
            }
            let all: Vec<_> = (0..workload.families.len()).flat_map(|n| expected(&model, n)).collect();
            match driver.run(&script) {
                Outcome::Done(answer) => same(&format!("{peer:?}"), &all, &answer.entries()),
                Outcome::Unsupported(what) => {
                    skip(self.name, &what);
                    continue;
                }
                Outcome::Failed(why) => panic!("{}: {why}", self.name),
            }
            // RocksDB writes more, compacts, and closes the database.
            let mut script = self.header(&workload, &copy);
            more.script(&mut script);
            script.line(format!("compact {}", workload.families.last().expect("there is the default one")));
            more.script(&mut script);
            driver.answer(self.name, &script).expect("opened before");
            let db = open_all(&options, &copy);
            for (n, family) in workload.families.iter().enumerate() {
                let what = format!("{family} after {peer:?} wrote on");
                same(&what, &expected(&after, n), &read(&db, family));
            }
        }
        if tried == 0 {
            let what = format!("no RocksDB at hand reads format_version {}", self.format_version);
            skip(self.name, &Needs::OtherRocksDb.because(what));
        }
        // Rockmill itself after a reopen, without RocksDB in between.
        let db = open_all(&options, &path);
        for (n, family) in workload.families.iter().enumerate() {
            same(&format!("{family} reopened"), &expected(&model, n), &read(&db, family));
        }
        let more = Workload::random(seed + 2, Shape { ops: 800, ..self.shape }).without_single_deletes();
        more.continue_model(&mut model);
        Runner::new(&db, &workload.families).run(&more.ops);
        for (n, family) in workload.families.iter().enumerate() {
            same(&format!("{family} written on"), &expected(&model, n), &read(&db, family));
        }
    }

    /// `sst_dump` and `ldb` on a database that is not open.
    fn check_tools(&self, path: &Path, home: &Path, workload: &Workload, model: &oracle::ops::Model) {
        if self.format_version > 5 {
            // RocksDB 7.8's tools know 5 at most.
            return;
        }
        match tool("sst_dump") {
            Err(reason) => skip(self.name, &reason),
            Ok(sst_dump) => {
                let mut in_tables = Vec::new();
                for table in tables(path) {
                    let file = format!("--file={}", table.display());
                    let said = run_tool(&sst_dump, &[&file, "--command=verify"]).unwrap_or_else(|e| panic!("{e}"));
                    assert!(!said.to_lowercase().contains("corrupt"), "sst_dump --command=verify: {said}");
                    if !self.reverse {
                        in_tables.extend(sst_scan(&sst_dump, &table).unwrap_or_else(|e| panic!("{e}")));
                    }
                }
                if self.compact && !self.reverse && workload.families.len() == 1 {
                    // Everything is on the bottommost level: one version of each key, with its sequence number zeroed.
                    in_tables.sort();
                    let keys: Vec<_> = in_tables.iter().map(|e| (e.0.clone(), e.3.clone())).collect();
                    same("the tables after a full compaction", &entries(&model.now[0]), &keys);
                    let kept = in_tables.iter().filter(|e| e.1 != 0 || e.2 != 1).count();
                    assert_eq!(kept, 0, "{kept} entries kept a sequence number or are no plain value");
                }
                self.check_raw(&sst_dump, path, home);
            }
        }
        match tool("ldb") {
            Err(reason) => skip(self.name, &reason),
            Ok(_) if self.reverse => {}
            Ok(ldb) => {
                let copy = home.join("for-ldb");
                copy_dir(path, &copy);
                let db = format!("--db={}", copy.display());
                let said = run_tool(&ldb, &[&db, "checkconsistency"]).unwrap_or_else(|e| panic!("{e}"));
                assert!(said.contains("OK"), "ldb checkconsistency: {said}");
                for (n, family) in workload.families.iter().enumerate() {
                    let found = ldb_scan(&ldb, &copy, family).unwrap_or_else(|e| panic!("{e}"));
                    same(&format!("ldb scan of {family}"), &entries(&model.now[n]), &found);
                }
            }
        }
    }

    /// `sst_dump --command=raw` walks the blocks themselves, without the table's iterator: it must find what
    /// `--command=scan` found.
    fn check_raw(&self, sst_dump: &Path, path: &Path, home: &Path) {
        // It writes its output beside the table.
        let copy = home.join("for-raw");
        copy_dir(path, &copy);
        for table in tables(&copy) {
            let file = format!("--file={}", table.display());
            run_tool(sst_dump, &[&file, "--command=raw"]).unwrap_or_else(|e| panic!("{e}"));
            let name = format!("{}_dump.txt", table.file_stem().expect("a name").to_string_lossy());
            // In addition to the hexadecimal, it prints the raw bytes.
            let dump = std::fs::read(table.with_file_name(name)).expect("sst_dump's output");
            let dump = String::from_utf8_lossy(&dump);
            for part in ["Footer Details", "Table Properties", "Index Details"] {
                assert!(dump.contains(part), "sst_dump --command=raw printed no {part}");
            }
            let (_, blocks) = dump.split_once("Data Block #").unwrap_or_default();
            let hex = |s: &str| if s.is_empty() { vec![] } else { from_hex(s) };
            let raw: Vec<_> = blocks
                .lines()
                .filter_map(|l| l.strip_prefix("  HEX    "))
                .filter_map(|l| l.split_once(':'))
                .map(|(key, value)| (hex(key.trim()), hex(value.trim())))
                .collect();
            let scanned = sst_scan(sst_dump, &table).unwrap_or_else(|e| panic!("{e}"));
            let scanned = scanned.into_iter().map(|(key, .., value)| (key, value)).collect();
            same(&format!("raw blocks of {}", table.display()), &scanned, &raw);
        }
    }
}

/// One test for each case.
macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $value:expr),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                Case { name: stringify!($name), $($field: $value,)* ..Case::default() }.run();
            }
        )*
    };
}

/// Small tables and levels, so that a few thousand operations fill several levels.
fn small_levels(options: &mut Options) {
    options.set_write_buffer_size(64 << 10);
    options.set_target_file_size_base(30_000);
    options.set_max_bytes_for_level_base(100_000);
    options.set_level_zero_file_num_compaction_trigger(2);
}

const DEEP: Shape = Shape {
    ops: 8000,
    extra_families: 0,
    keys: 5000,
    value_len_max: 300,
    delete_ranges: false,
    snapshots: false,
    flush_every: 500,
    compact_every: 0,
};

cases! {
    default_options {}
    default_options_compacted { compact: true }
    compression_none { options: |o| o.set_compression_type(CompressionType::None), compact: true }
    compression_snappy { options: |o| o.set_compression_type(CompressionType::Snappy), compact: true }
    compression_lz4 { options: |o| o.set_compression_type(CompressionType::Lz4), compact: true }
    /// The wheel's RocksDB cannot decompress with its zlib: it refuses RocksDB 7.8's tables, too.
    compression_zlib { options: |o| o.set_compression_type(CompressionType::Zlib), wheel: false, compact: true }
    compression_zstd { options: |o| o.set_compression_type(CompressionType::Zstd), compact: true }
    compression_by_level {
        options: |o| {
            small_levels(o);
            o.set_compression_per_level(&[CompressionType::None, CompressionType::Lz4, CompressionType::Snappy]);
            o.set_bottommost_compression_type(CompressionType::Zstd);
        },
        shape: DEEP,
    }
    universal {
        options: |o| {
            small_levels(o);
            o.set_compaction_style(CompactionStyle::Universal);
        },
        rocksdb: "compaction_style=kCompactionStyleUniversal;write_buffer_size=65536",
        shape: DEEP,
    }
    /// All runs are L0 tables.
    universal_in_one_level {
        options: |o| {
            small_levels(o);
            o.set_compaction_style(CompactionStyle::Universal);
            o.set_num_levels(1);
        },
        rocksdb: "compaction_style=kCompactionStyleUniversal;num_levels=1",
        shape: DEEP,
        compact: true,
    }
    /// Large enough that nothing is deleted.
    fifo {
        options: |o| {
            small_levels(o);
            o.set_compaction_style(CompactionStyle::Fifo);
            let mut fifo = FifoCompactOptions::default();
            fifo.set_allow_compaction(true);
            o.set_fifo_compaction_options(&fifo);
        },
        rocksdb: "compaction_style=kCompactionStyleFIFO;compaction_options_fifo={allow_compaction=true}",
        shape: DEEP,
    }
    /// What universal compaction leaves, another style takes.
    universal_opened_leveled {
        options: |o| {
            small_levels(o);
            o.set_compaction_style(CompactionStyle::Universal);
        },
        shape: DEEP,
    }
    checksum_none { table: |t| t.set_checksum_type(ChecksumType::None) }
    checksum_crc32c { table: |t| t.set_checksum_type(ChecksumType::Crc32c) }
    checksum_xxhash { table: |t| t.set_checksum_type(ChecksumType::XxHash) }
    checksum_xxhash64 { table: |t| t.set_checksum_type(ChecksumType::XxHash64) }
    checksum_xxh3 { table: |t| t.set_checksum_type(ChecksumType::Xxh3) }
    format_version_6 { table: |t| t.set_format_version(6), format_version: 6, shape: DEEP }
    format_version_6_two_level_index {
        table: |t| {
            t.set_format_version(6);
            t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            t.set_metadata_block_size(256);
            t.set_bloom_filter(10.0, false);
            t.set_checksum_type(ChecksumType::XxHash64);
        },
        format_version: 6,
        compact: true,
    }
    format_version_7 { table: |t| t.set_format_version(7), format_version: 7, shape: DEEP }
    bloom_filter { table: |t| t.set_bloom_filter(10.0, false), compact: true }
    bloom_filter_of_few_bits { table: |t| t.set_bloom_filter(3.5, false) }
    two_level_index {
        table: |t| {
            t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            t.set_metadata_block_size(256);
            t.set_block_size(512);
        },
        compact: true,
    }
    data_block_hash_index {
        table: |t| {
            t.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
            t.set_data_block_hash_ratio(0.75);
        },
        compact: true,
    }
    small_blocks {
        table: |t| {
            t.set_block_size(128);
            t.set_block_restart_interval(1);
            t.set_index_block_restart_interval(3);
        },
    }
    large_blocks { table: |t| { t.set_block_size(64 << 10); t.set_block_restart_interval(64); } }
    column_families { shape: Shape { extra_families: 3, ..Shape::default() } }
    column_families_without_flush { shape: Shape { extra_families: 2, flush_every: 0, ..Shape::default() } }
    range_deletes { shape: Shape { delete_ranges: true, ..Shape::default() } }
    range_deletes_compacted { shape: Shape { delete_ranges: true, ..Shape::default() }, compact: true }
    range_deletes_in_small_tables {
        options: small_levels,
        shape: Shape { delete_ranges: true, snapshots: true, ..DEEP },
    }
    range_deletes_under_snapshots {
        shape: Shape { delete_ranges: true, snapshots: true, compact_every: 500, keys: 200, ..Shape::default() },
    }
    versions_under_snapshots {
        shape: Shape { snapshots: true, compact_every: 500, keys: 100, ..Shape::default() },
    }
    versions_under_snapshots_in_small_tables {
        options: small_levels,
        shape: Shape { snapshots: true, keys: 300, ..DEEP },
        compact: true,
    }
    log_only { shape: Shape { flush_every: 0, delete_ranges: true, ..Shape::default() } }
    log_synced { shape: Shape { ops: 300, ..Shape::default() }, writes: |w| w.set_sync(true) }
    no_log { writes: |w| w.disable_wal(true) }
    recycled_logs {
        options: |o| {
            small_levels(o);
            o.set_recycle_log_file_num(3);
        },
        shape: DEEP,
    }
    dynamic_levels {
        options: |o| {
            small_levels(o);
            o.set_level_compaction_dynamic_level_bytes(true);
        },
        shape: DEEP,
    }
    static_levels {
        options: |o| {
            small_levels(o);
            o.set_level_compaction_dynamic_level_bytes(false);
        },
        shape: DEEP,
    }
    subcompactions {
        options: |o| {
            small_levels(o);
            o.set_max_subcompactions(4);
            o.set_max_background_jobs(4);
        },
        shape: Shape { delete_ranges: true, snapshots: true, ..DEEP },
        compact: true,
    }
    level_zero_only { options: |o| o.set_disable_auto_compactions(true), shape: Shape { flush_every: 200, ..DEEP } }
    many_manifest_edits { shape: Shape { flush_every: 20, ..Shape::default() } }
    manifest_rolled_over {
        options: |o| o.set_max_manifest_file_size(2000),
        shape: Shape { flush_every: 20, ..Shape::default() },
    }
    direct_io {
        options: |o| {
            small_levels(o);
            o.set_use_direct_reads(true);
            o.set_use_direct_io_for_flush_and_compaction(true);
        },
        shape: DEEP,
    }
    reverse_order {
        options: small_levels,
        shape: DEEP,
        rocksdb: "comparator=rocksdb.ReverseBytewiseComparator",
        reverse: true,
        wheel: false,
        compact: true,
    }
}

/// A merge record that Rockmill wrote is merged by RocksDB.
#[test]
fn merge_records_reach_rocksdb() {
    let test = "merge_records_reach_rocksdb";
    let driver = need!(test, Peer::Library.driver());
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("db");
    {
        let mut options = Options::default();
        options.create_if_missing(true);
        let db = Db::open(&options, &path).expect("open");
        db.put(b"list", b"a").expect("put");
        db.flush().expect("flush");
        db.merge(b"list", b"b").expect("merge");
        db.merge(b"other", b"x").expect("merge");
        db.flush().expect("flush");
        db.merge(b"list", b"c").expect("merge");
    }
    let mut script = Script::new();
    script.line("cf default merge_operator=stringappend").open(&path).line("dump default");
    let found = driver.answer(test, &script).expect("merges").entries();
    assert_eq!(found, [(b"list".to_vec(), b"a,b,c".to_vec()), (b"other".to_vec(), b"x".to_vec())]);
}

/// After a flush and a close, or an open that turns the fast path off, a database with logs on a fast device is an
/// ordinary one: RocksDB opens it and writes, and Rockmill continues without that device, or with another one. Data
/// that only the logs have is read by RocksDB with `wal_dir`.
#[test]
fn rocksdb_opens_what_had_a_fast_path() {
    let test = "rocksdb_opens_what_had_a_fast_path";
    for driver in Peer::all(test) {
        let dir = tempfile::tempdir().unwrap();
        let (path, fast) = (dir.path().join("db"), dir.path().join("fast"));
        let mut plain = Options::default();
        plain.create_if_missing(true);
        let mut options = plain.clone();
        options.set_fast_path(&fast, 64 << 20);
        options.set_max_index_size(64 << 10);
        let db = Db::open(&options, &path).unwrap();
        for n in 0..3000 {
            db.put(format!("k{n:05}"), vec![n as u8; 500]).unwrap();
        }
        db.flush().unwrap();
        let mut expected = read(&db, "default");
        drop(db);
        let mut script = Script::new();
        script.open(&path).line("dump default").put("default", "k99999", "RocksDB's").line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        same(&format!("{:?}", driver.peer), &expected, &answer.entries());
        expected.push((b"k99999".to_vec(), b"RocksDB's".to_vec()));
        let db = Db::open(&plain, &path).unwrap();
        same("without the fast device", &expected, &read(&db, "default"));
        db.flush().unwrap();
        drop(db);
        std::fs::remove_dir_all(&fast).unwrap();
        same("and without its directory", &expected, &read(&Db::open(&plain, &path).unwrap(), "default"));
        // Turned on and off with entries in WALs: what RocksDB left in its WAL, then what only the logs have.
        let mut script = Script::new();
        script.open(&path).put("default", "k99997", "in a WAL").line("close");
        let Some(_) = driver.answer(test, &script) else { continue };
        expected.insert(expected.len() - 1, (b"k99997".to_vec(), b"in a WAL".to_vec()));
        let db = Db::open(&options, &path).unwrap();
        same("turned on", &expected, &read(&db, "default"));
        db.put("k00005", vec![b'l'; 700]).unwrap();
        expected[5].1 = vec![b'l'; 700];
        drop(db);
        drop(Db::open(&plain, &path).unwrap());
        let mut script = Script::new();
        script.open(&path).line("dump default").line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        same(&format!("{:?}, turned off", driver.peer), &expected, &answer.entries());
        std::fs::remove_dir_all(&fast).unwrap();
        let other = dir.path().join("other");
        options.set_fast_path(&other, 64 << 20);
        let db = Db::open(&options, &path).unwrap();
        same("with another one", &expected, &read(&db, "default"));
        // Several logs, with values that cross their blocks; no table has any of these values.
        let tables = db.live_files().unwrap().len();
        for n in 0..3000 {
            db.put(format!("k{n:05}"), vec![!n as u8; 900]).unwrap();
        }
        db.delete("k00007").unwrap();
        expected = read(&db, "default");
        assert_eq!(db.live_files().unwrap().len(), tables, "something was flushed");
        drop(db);
        let mut script = Script::new();
        script.line(format!("db wal_dir={}", other.display())).open(&path).line("dump default");
        script.put("default", "k99998", "RocksDB's").line("close");
        let Some(answer) = driver.answer(test, &script) else { continue };
        same(&format!("{:?}, with its logs", driver.peer), &expected, &answer.entries());
        expected.insert(expected.len() - 1, (b"k99998".to_vec(), b"RocksDB's".to_vec()));
        same("after RocksDB", &expected, &read(&Db::open(&options, &path).unwrap(), "default"));
    }
}

/// `change_level`: the result of a compaction moves up or down to another level, as in RocksDB, and RocksDB can read it
/// there.
#[test]
fn a_compaction_ends_in_the_level_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, dir.path().join("db")).unwrap();
    let fill = |value: &str| {
        (0..300).for_each(|i| db.put(format!("k{i:03}"), value).unwrap());
        db.flush().unwrap();
    };
    let level = || -> Vec<usize> { db.level_stats(&db.default_cf()).iter().map(|l| l.files).collect() };
    let compact = |target: Option<i32>| {
        let mut how = CompactOptions::default();
        how.set_change_level(true);
        target.into_iter().for_each(|t| how.set_target_level(t));
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how)
    };
    fill("first");
    compact(Some(4)).unwrap();
    assert_eq!(level(), [0, 0, 0, 0, 1, 0, 0]);
    // There is nothing new: the compaction begins and ends in the level, which is then moved.
    compact(Some(2)).unwrap();
    assert_eq!(level(), [0, 0, 1, 0, 0, 0, 0]);
    compact(Some(5)).unwrap();
    assert_eq!(level(), [0, 0, 0, 0, 0, 1, 0], "down again");
    fill("second");
    compact(Some(1)).unwrap();
    assert_eq!(level(), [0, 1, 0, 0, 0, 0, 0]);
    // One table may go to level 0.
    compact(Some(0)).unwrap();
    assert_eq!(level(), [1, 0, 0, 0, 0, 0, 0]);
    fill("third");
    // The smallest level that fits.
    compact(None).unwrap();
    let at = level().iter().position(|n| *n > 0).unwrap();
    assert!((1..6).contains(&at), "{:?}", level());

    // Impossible requests are refused with the reason, and no compaction is lost because of them.
    for bad in [7, -2] {
        assert_eq!(compact(Some(bad)).unwrap_err().kind(), rockmill::ErrorKind::InvalidArgument, "{bad}");
    }
    compact(Some(6)).unwrap();
    let mut part = CompactOptions::default();
    part.set_change_level(true);
    part.set_target_level(2);
    fill("fourth");
    let before = level();
    assert_eq!((before[0], before[6]), (1, 1));
    part.set_bottommost_level_compaction(BottommostLevelCompaction::Skip);
    db.compact_range_opt(Some("x"), None::<&str>, &part).unwrap();
    assert_eq!(level(), before, "nothing in the range");
    compact(Some(3)).unwrap();
    assert_eq!(level(), [0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(db.get("k007").unwrap().as_deref(), Some(&b"fourth"[..]));
    drop(db);

    for driver in Peer::all("a_compaction_ends_in_the_level_that_is_asked_for") {
        let copy = dir.path().join(format!("{:?}", driver.peer));
        copy_dir(&dir.path().join("db"), &copy);
        let mut script = Script::new();
        script.line("cf default disable_auto_compactions=true").open(&copy).line("levels default");
        script.put("default", "k000", "fifth").line("compact default 2").line("levels default").line("dump default");
        let test = "a_compaction_ends_in_the_level_that_is_asked_for";
        let Some(answer) = driver.answer(test, script.line("close")) else { continue };
        assert_eq!(answer.levels(), [(3, 1), (2, 1)], "{:?}", driver.peer);
        assert_eq!(answer.entries().len(), 300);
        let db = Db::open(&options, &copy).unwrap();
        assert_eq!(db.level_stats(&db.default_cf())[2].files, 1);
        assert_eq!(db.get("k000").unwrap().as_deref(), Some(&b"fifth"[..]));
    }
}

/// Writers, automatic compactions and level changes at the same time.
#[test]
fn levels_move_beside_writers() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_write_buffer_size(32 << 10);
    options.set_target_file_size_base(16 << 10);
    options.set_max_bytes_for_level_base(64 << 10);
    let db = Db::open(&options, dir.path()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut n = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && n < 60_000 {
                db.put(format!("k{:05}", n.wrapping_mul(7919) % 5000), format!("{n:08}")).unwrap();
                n += 1;
            }
            n
        });
        let (mut moved, mut refused) = (0, 0);
        for round in 0..8 {
            let mut how = CompactOptions::default();
            how.set_change_level(true);
            how.set_target_level([1, -1, 3, 6][round % 4]);
            match db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &how) {
                Ok(()) => moved += 1,
                // A level between filled up meanwhile.
                Err(e) if e.kind() == rockmill::ErrorKind::NotSupported => refused += 1,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(moved > 1, "{moved} moved, {refused} refused");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap()
    });
    db.wait_for_background_work().unwrap();
    for k in 0..5000u64 {
        let last = (0..written).rev().find(|n| n.wrapping_mul(7919) % 5000 == k);
        let expected = last.map(|n| format!("{n:08}").into_bytes());
        assert_eq!(db.get(format!("k{k:05}")).unwrap(), expected, "k{k:05}");
    }
}
