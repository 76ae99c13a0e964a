//! RocksDB writes, Rockmill reads; then Rockmill writes and compacts, and RocksDB reads.
//!
//! Every test makes a database with real RocksDB and one set of options, in each available RocksDB. The operations are
//! random (the seed is in every message), and the expected contents come from a plain ordered map. RocksDB's own view
//! is first compared with that map, so that a bug of the harness is not mistaken for one of Rockmill.

mod oracle;

use std::path::Path;
use std::sync::Arc;

use oracle::content::{Entries, entries, open_all, read, read_at, same, try_open_all};
use oracle::ops::{Model, Runner, Shape, Workload};
use oracle::{Driver, Outcome, Peer, Script, copy_dir};
use rockmill::{Db, IteratorMode, Options};
use rockmill_format::comparator::ReverseBytewiseComparator;
use rockmill_skip::{Needs, skip, wish};

/// One way of making a database with RocksDB.
struct Case<'a> {
    name: &'a str,
    /// RocksDB's option string of the database.
    db: &'a str,
    /// RocksDB's option string of every column family.
    cf: &'a str,
    shape: Shape,
    peers: &'a [Peer],
    /// After the operations, before the database is closed.
    end: &'a [&'a str],
    /// End as after `kill -9`, without flushing or closing anything.
    crash: bool,
    /// Keys are in reverse order.
    reverse: bool,
}

const EVERY: &[Peer] = &[Peer::Library, Peer::Wheel, Peer::Other];
/// Those with the C++ driver, which accepts any option.
const CPP: &[Peer] = &[Peer::Library, Peer::Other];
/// RocksDB 8 and later.
const NEWER: &[Peer] = &[Peer::Wheel, Peer::Other];

impl Default for Case<'_> {
    fn default() -> Self {
        Self { name: "", db: "", cf: "", shape: Shape::default(), peers: EVERY, end: &[], crash: false, reverse: false }
    }
}

impl Case<'_> {
    fn header(&self, workload: &Workload, path: &Path) -> Script {
        let mut script = Script::new();
        if !self.db.is_empty() {
            script.line(format!("db {}", self.db));
        }
        for family in &workload.families {
            script.line(format!("cf {family} {}", self.cf));
        }
        script.open(path);
        script
    }

    fn options(&self) -> Options {
        let mut options = Options::default();
        if self.reverse {
            options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        options
    }

    fn expected(&self, model: &Model, family: usize) -> Entries {
        let mut all = entries(&model.now[family]);
        if self.reverse {
            all.reverse();
        }
        all
    }

    /// Compares what a RocksDB sees with the model.
    fn check_peer(&self, driver: &Driver, workload: &Workload, model: &Model, path: &Path, what: &str) {
        for (n, family) in workload.families.iter().enumerate() {
            let mut script = self.header(workload, path);
            if driver.peer != Peer::Wheel {
                script.line("verify");
            }
            script.line(format!("dump {family}"));
            if let Some(answer) = driver.answer(self.name, &script) {
                same(&format!("{what}, {family}, {:?}", driver.peer), &self.expected(model, n), &answer.entries());
            }
        }
    }

    fn check_rockmill(&self, db: &Db, workload: &Workload, model: &Model, what: &str) {
        for (n, family) in workload.families.iter().enumerate() {
            same(&format!("{what}, {family}"), &self.expected(model, n), &read(db, family));
        }
    }

    fn run(&self) {
        for &peer in self.peers {
            match peer.driver() {
                Ok(driver) => self.run_with(&driver),
                Err(missing) if peer == Peer::Other => wish(self.name, &missing),
                Err(reason) => skip(self.name, &reason),
            }
        }
    }

    fn run_with(&self, driver: &Driver) {
        let seed = 0x5eed ^ self.name.bytes().fold(0, |a: u64, b| a.wrapping_mul(31).wrapping_add(u64::from(b)));
        println!("{}: {:?}, seed {seed}", self.name, driver.peer);
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        let mut workload = Workload::random(seed, self.shape);
        if driver.peer == Peer::Wheel {
            workload = workload.without_single_deletes();
        }
        let mut model = workload.model();

        let mut script = self.header(&workload, &path);
        workload.script(&mut script);
        for line in self.end {
            script.line(line);
        }
        if self.crash {
            script.line("crash");
        }
        let Outcome::Done(_) = (match driver.run(&script) {
            Outcome::Unsupported(what) => return skip(self.name, &what),
            Outcome::Failed(why) => panic!("{}: {why}", self.name),
            done => done,
        }) else {
            return;
        };
        let pristine = home.path().join("pristine");
        copy_dir(&path, &pristine);
        self.check_peer(driver, &workload, &model, &path, "RocksDB's own view");

        // Read-only first: that must not change a byte, so the same copy is used for writing afterwards.
        {
            let families = Db::list_cf(&self.options(), &pristine).unwrap_or_else(|e| panic!("list_cf: {e}"));
            let db = Db::open_cf_for_read_only(&self.options(), &pristine, &families, false)
                .unwrap_or_else(|e| panic!("read-only open: {e}"));
            self.check_rockmill(&db, &workload, &model, "read-only");
        }
        let more = Workload::random(seed + 1, Shape { ops: 1500, snapshots: false, compact_every: 800, ..self.shape })
            .without_single_deletes();
        {
            let db = open_all(&self.options(), &pristine);
            self.check_rockmill(&db, &workload, &model, "as RocksDB left it");
            let mut runner = Runner::new(&db, &more.families);
            runner.run(&more.ops);
        }
        more.continue_model(&mut model);
        {
            let db = open_all(&self.options(), &pristine);
            self.check_rockmill(&db, &workload, &model, "after more writes by Rockmill");
            for family in &workload.families {
                let cf = db.cf_handle(family).expect("listed");
                db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>).unwrap_or_else(|e| panic!("compact: {e}"));
            }
            self.check_rockmill(&db, &workload, &model, "compacted by Rockmill");
        }
        self.check_peer(driver, &workload, &model, &pristine, "handed back to RocksDB");
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

cases! {
    default_options {}
    compression_none { cf: "compression=kNoCompression" }
    compression_snappy { cf: "compression=kSnappyCompression" }
    compression_lz4 { cf: "compression=kLZ4Compression" }
    compression_lz4hc { cf: "compression=kLZ4HCCompression" }
    compression_zlib { cf: "compression=kZlibCompression" }
    compression_zstd { cf: "compression=kZSTD" }
    compression_zstd_dictionary {
        cf: "compression=kZSTD;compression_opts={level=3;max_dict_bytes=4096;zstd_max_train_bytes=65536};\
             block_based_table_factory={block_size=1024}",
        shape: Shape { compact_every: 1000, ..Shape::default() },
    }
    /// A dictionary that was not trained: raw samples.
    compression_zstd_raw_dictionary {
        cf: "compression=kZSTD;compression_opts={level=3;max_dict_bytes=4096};\
             block_based_table_factory={block_size=1024}",
        shape: Shape { compact_every: 1000, ..Shape::default() },
    }
    compression_lz4_dictionary {
        cf: "compression=kLZ4Compression;compression_opts={max_dict_bytes=4096};\
             block_based_table_factory={block_size=1024}",
        shape: Shape { compact_every: 1000, ..Shape::default() },
    }
    compression_zlib_dictionary {
        cf: "compression=kZlibCompression;compression_opts={max_dict_bytes=4096};\
             block_based_table_factory={block_size=1024}",
        shape: Shape { compact_every: 1000, ..Shape::default() },
    }
    checksum_none { cf: "block_based_table_factory={checksum=kNoChecksum}" }
    checksum_crc32c { cf: "block_based_table_factory={checksum=kCRC32c}" }
    checksum_xxhash { cf: "block_based_table_factory={checksum=kxxHash}" }
    checksum_xxhash64 { cf: "block_based_table_factory={checksum=kxxHash64}" }
    checksum_xxh3 { cf: "block_based_table_factory={checksum=kXXH3}" }
    format_version_2 { cf: "block_based_table_factory={format_version=2;filter_policy=bloomfilter:10}" }
    format_version_3 { cf: "block_based_table_factory={format_version=3;filter_policy=bloomfilter:10}" }
    format_version_4 {
        cf: "block_based_table_factory={format_version=4;filter_policy=bloomfilter:10;index_block_restart_interval=4}",
    }
    format_version_5 { cf: "block_based_table_factory={format_version=5;filter_policy=bloomfilter:10}" }
    format_version_6 {
        cf: "block_based_table_factory={format_version=6;filter_policy=bloomfilter:10}",
        peers: NEWER,
    }
    format_version_6_each_checksum_xxh3 {
        cf: "block_based_table_factory={format_version=6;checksum=kxxHash64;index_type=kTwoLevelIndexSearch}",
        peers: NEWER,
    }
    small_blocks {
        cf: "block_based_table_factory={block_size=128;block_restart_interval=1;index_block_restart_interval=3}",
    }
    long_restart_interval { cf: "block_based_table_factory={block_size=16384;block_restart_interval=64}" }
    two_level_index {
        cf: "block_based_table_factory={index_type=kTwoLevelIndexSearch;metadata_block_size=256;block_size=512}",
    }
    partitioned_filters {
        cf: "block_based_table_factory={index_type=kTwoLevelIndexSearch;partition_filters=true;\
             filter_policy=bloomfilter:10;metadata_block_size=256;block_size=512}",
    }
    index_with_first_keys {
        cf: "block_based_table_factory={index_type=kBinarySearchWithFirstKey;block_size=512}",
        peers: CPP,
    }
    full_index_keys {
        cf: "block_based_table_factory={index_shortening=kNoShortening;enable_index_compression=false}",
        peers: CPP,
    }
    bloom_filter { cf: "block_based_table_factory={filter_policy=bloomfilter:10}" }
    ribbon_filter { cf: "block_based_table_factory={filter_policy=ribbonfilter:10}", peers: CPP }
    partitioned_ribbon_filters {
        cf: "block_based_table_factory={index_type=kTwoLevelIndexSearch;partition_filters=true;\
             filter_policy=ribbonfilter:10;metadata_block_size=256;block_size=512}",
        peers: CPP,
    }
    legacy_bloom_filter {
        cf: "block_based_table_factory={filter_policy=rocksdb.internal.LegacyBloomFilter:10}",
        peers: CPP,
    }
    prefix_bloom_filter {
        cf: "prefix_extractor=fixed:4;block_based_table_factory={filter_policy=bloomfilter:10;\
             whole_key_filtering=false}",
        peers: CPP,
    }
    hash_index {
        cf: "prefix_extractor=capped:4;block_based_table_factory={index_type=kHashSearch}",
        peers: CPP,
    }
    data_block_hash_index {
        cf: "block_based_table_factory={data_block_index_type=kDataBlockBinaryAndHash;\
             data_block_hash_table_util_ratio=0.75}",
    }
    aligned_blocks { cf: "compression=kNoCompression;block_based_table_factory={block_align=true}", peers: CPP }
    column_families { shape: Shape { extra_families: 3, ..Shape::default() } }
    column_families_flushed_together {
        db: "atomic_flush=true",
        shape: Shape { extra_families: 2, ..Shape::default() },
        peers: CPP,
    }
    /// Ids of dropped column families are not reused.
    dropped_column_family {
        end: &["create_cf gone compression=kNoCompression", "put gone 61 62", "flush gone", "put gone 63 64", "drop_cf gone"],
        peers: CPP,
    }
    range_deletes { shape: Shape { delete_ranges: true, ..Shape::default() } }
    range_deletes_compacted { shape: Shape { delete_ranges: true, compact_every: 900, ..Shape::default() } }
    range_deletes_under_snapshots {
        shape: Shape { delete_ranges: true, snapshots: true, compact_every: 600, keys: 200, ..Shape::default() },
    }
    versions_under_snapshots {
        shape: Shape { snapshots: true, compact_every: 600, keys: 100, ..Shape::default() },
    }
    range_deletes_in_small_tables {
        cf: "target_file_size_base=20000;max_bytes_for_level_base=60000;compression=kNoCompression",
        shape: Shape { delete_ranges: true, snapshots: true, ops: 6000, ..Shape::default() },
    }
    log_only { shape: Shape { flush_every: 0, ..Shape::default() } }
    log_only_killed { shape: Shape { flush_every: 0, extra_families: 1, ..Shape::default() }, crash: true }
    log_and_tables_killed { shape: Shape { extra_families: 2, delete_ranges: true, ..Shape::default() }, crash: true }
    several_logs_killed {
        db: "max_background_jobs=1",
        cf: "write_buffer_size=65536;max_write_buffer_number=20;min_write_buffer_number_to_merge=15",
        shape: Shape { flush_every: 0, ..Shape::default() },
        peers: CPP,
        crash: true,
    }
    recycled_logs {
        db: "recycle_log_file_num=4",
        cf: "write_buffer_size=65536",
        shape: Shape { flush_every: 300, ..Shape::default() },
    }
    recycled_logs_killed {
        db: "recycle_log_file_num=4",
        cf: "write_buffer_size=65536",
        shape: Shape { flush_every: 300, ..Shape::default() },
        crash: true,
    }
    logs_in_the_manifest {
        db: "track_and_verify_wals_in_manifest=true",
        shape: Shape { flush_every: 200, ..Shape::default() },
        peers: CPP,
        crash: true,
    }
    two_write_queues { db: "two_write_queues=true", peers: CPP, crash: true }
    pipelined_writes { db: "enable_pipelined_write=true", peers: CPP, crash: true }
    unordered_writes { db: "unordered_write=true", peers: CPP }
    many_manifest_edits { shape: Shape { flush_every: 10, ..Shape::default() } }
    manifest_rolled_over { db: "max_manifest_file_size=2000", shape: Shape { flush_every: 20, ..Shape::default() } }
    file_checksums_in_the_manifest {
        db: "file_checksum_gen_factory=FileChecksumGenCrc32cFactory",
        shape: Shape { flush_every: 200, compact_every: 1000, ..Shape::default() },
        peers: CPP,
    }
    dynamic_levels {
        cf: "level_compaction_dynamic_level_bytes=true;write_buffer_size=65536;target_file_size_base=30000;\
             max_bytes_for_level_base=100000;compression=kNoCompression",
        shape: Shape { ops: 8000, keys: 5000, flush_every: 0, ..Shape::default() },
    }
    static_levels {
        cf: "level_compaction_dynamic_level_bytes=false;write_buffer_size=65536;target_file_size_base=30000;\
             max_bytes_for_level_base=100000;compression=kNoCompression",
        shape: Shape { ops: 8000, keys: 5000, flush_every: 0, ..Shape::default() },
    }
    level_zero_only {
        cf: "disable_auto_compactions=true",
        shape: Shape { flush_every: 200, ..Shape::default() },
    }
    compacted { shape: Shape { compact_every: 500, ..Shape::default() }, end: &["compact default"] }
    compacted_to_level_one { end: &["compact default 1"], cf: "level_compaction_dynamic_level_bytes=false" }
    universal {
        cf: "compaction_style=kCompactionStyleUniversal;write_buffer_size=65536",
        shape: Shape { ops: 8000, keys: 5000, flush_every: 300, ..Shape::default() },
    }
    reverse_order { cf: "comparator=rocksdb.ReverseBytewiseComparator", peers: CPP, reverse: true }
    reverse_order_killed {
        cf: "comparator=rocksdb.ReverseBytewiseComparator",
        peers: CPP,
        reverse: true,
        crash: true,
    }
}

/// Ingested tables have one sequence number for all their entries, outside of the keys.
#[test]
fn ingested_tables_have_their_own_sequence_number() {
    for peer in [Peer::Library, Peer::Other] {
        let driver = match peer.driver() {
            Ok(driver) => driver,
            Err(missing) if peer == Peer::Other => {
                wish("ingested_tables", &missing);
                continue;
            }
            Err(missing) => return skip("ingested_tables", &missing),
        };
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        let mut script = Script::new();
        script.line("cf default disable_auto_compactions=true").open(&path);
        script.put("default", "apple", "old").put("default", "cherry", "kept").line("flush default");
        script.hex("ingest", "default", &[b"apple", b"ingested", b"banana", b"ingested too"]);
        script.put("default", "banana", "newest").line("dump default");
        let answer = driver.answer("ingested_tables", &script).expect("the driver can ingest");
        let db = open_all(&Options::default(), &path);
        same("ingested", &answer.entries(), &read(&db, "default"));
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
        same("ingested, compacted", &answer.entries(), &read(&db, "default"));
        let value = db.get(b"apple").expect("get");
        assert_eq!(value.as_deref(), Some(&b"ingested"[..]));
    }
}

/// Rockmill's snapshots of RocksDB's data keep their contents through writes and compactions.
#[test]
fn snapshots_over_a_database_of_rocksdb() {
    let test = "snapshots_over_a_database_of_rocksdb";
    let driver = need!(test, Peer::Library.driver());
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("db");
    let workload = Workload::random(7, Shape { delete_ranges: true, ..Shape::default() });
    let mut script = Script::new();
    script.open(&path);
    workload.script(&mut script);
    driver.answer(test, &script).expect("plain operations");
    let mut model = workload.model();
    let db = open_all(&Options::default(), &path);
    let before = db.snapshot();
    let then = entries(&model.now[0]);
    let more = Workload::random(8, Shape { delete_ranges: true, compact_every: 700, ..Shape::default() });
    Runner::new(&db, &more.families).run(&more.clone().without_single_deletes().ops);
    more.continue_model(&mut model);
    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
    same("the snapshot", &then, &read_at(&db, "default", &before));
    same("now", &entries(&model.now[0]), &read(&db, "default"));
}

/// Merge operands pass through Rockmill unchanged; reading one gives an error that names the operator.
#[test]
fn merge_operands_pass_through() {
    let test = "merge_operands_pass_through";
    let driver = need!(test, Peer::Library.driver());
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().join("db");
    let header = |script: &mut Script| {
        script.line("cf default merge_operator=stringappend;disable_auto_compactions=true").open(&path);
    };
    let mut script = Script::new();
    header(&mut script);
    script.put("default", "m", "base").line("flush default");
    script.hex("merge", "default", &[b"m", b"one"]).line("flush default");
    script.hex("merge", "default", &[b"m", b"two"]).line("flush default");
    script.hex("merge", "default", &[b"alone", b"operand"]).put("default", "plain", "value");
    script.line("dump default");
    let expected = driver.answer(test, &script).expect("merges").entries();
    {
        let db = open_all(&Options::default(), &path);
        assert_eq!(db.get(b"plain").expect("a plain key").as_deref(), Some(&b"value"[..]));
        let e = db.get(b"m").expect_err("there is no merge operator");
        assert!(e.to_string().to_lowercase().contains("merge"), "does not name the feature: {e}");
        let walked: Result<Vec<_>, _> = db.iterator(IteratorMode::Start).collect();
        assert!(walked.is_err(), "an iterator went over a merge operand in silence");
        db.merge(b"m", b"three").expect("a merge record");
        db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("compaction");
    }
    let mut script = Script::new();
    header(&mut script);
    script.line("dump default");
    let found = driver.answer(test, &script).expect("merges").entries();
    let mut wanted = expected;
    for (key, value) in &mut wanted {
        if key == b"m" {
            value.extend_from_slice(b",three");
        }
    }
    same("merge operands", &wanted, &found);
}

/// Unsupported features are refused by name, at open or at the read, and never misread.
#[test]
fn unsupported_features_are_named() {
    let test = "unsupported_features_are_named";
    let driver = need!(test, Peer::Library.driver());
    let cases: &[(&str, &str, &str, &[&str])] = &[
        ("blob files", "", "enable_blob_files=true;min_blob_size=1", &["blob"]),
        ("bzip2", "", "compression=kBZip2Compression", &["bzip2"]),
        (
            "plain tables",
            "allow_mmap_reads=true",
            "plain_table_factory={};prefix_extractor=fixed:1",
            &["table", "magic"],
        ),
        ("timestamps", "", "comparator=leveldb.BytewiseComparator.u64ts", &["comparator", "timestamp"]),
    ];
    for (name, db_options, cf_options, words) in cases {
        let home = tempfile::tempdir().expect("a folder");
        let path = home.path().join("db");
        let mut script = Script::new();
        if !db_options.is_empty() {
            script.line(format!("db {db_options}"));
        }
        script.line(format!("cf default {cf_options}")).open(&path);
        if *name != "timestamps" {
            for i in 0..300 {
                script.put("default", format!("key{i:05}"), "a value that repeats a value that repeats");
            }
            script.line("flush default");
        }
        match driver.run(&script) {
            Outcome::Done(_) => {}
            Outcome::Unsupported(missing) => {
                skip(test, &missing);
                continue;
            }
            Outcome::Failed(why) => {
                let first = why.lines().next().unwrap_or_default();
                skip(test, &Needs::PeerFeature.because(format!("{name}: {first}")));
                continue;
            }
        }
        let refused = try_open_all(&Options::default(), &path).and_then(|db| {
            db.get(b"key00000")?;
            oracle::content::try_read(&db, "default")
        });
        let e = match refused {
            Ok(entries) => panic!("{name}: read {} entries", entries.len()),
            Err(e) => e.to_string(),
        };
        let lower = e.to_lowercase();
        assert!(words.iter().any(|w| lower.contains(w)), "{name}: the error does not name it: {e}");
        println!("{name}: {e}");
    }
}

/// Neither Debian's RocksDB nor the wheel's writes format_version 7; the fixtures have such tables (see `fixtures.rs`).
#[test]
fn format_version_7_by_another_rocksdb() {
    let test = "format_version_7_by_another_rocksdb";
    for checksum in ["kCRC32c", "kxxHash64", "kXXH3"] {
        let cf =
            format!("block_based_table_factory={{format_version=7;checksum={checksum};filter_policy=bloomfilter:10}}");
        if let Err(reason) = Peer::Other.driver() {
            return skip(test, &reason);
        }
        Case { name: test, cf: &cf, peers: &[Peer::Other], ..Case::default() }.run();
    }
}
