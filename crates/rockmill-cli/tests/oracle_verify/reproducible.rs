//! Reproducible compactions (`rockmill compact --reproducible`): on the repository's databases, on databases of
//! Debian's RocksDB, and on random databases with random configurations, two runs and two engines write identical
//! tables with the same numbers.
//!
//! Each run uses a third of the fixtures. `ROCKMILL_SEED` repeats one. `ROCKMILL_REPRODUCIBLE=all` merges every fixture
//! with every configuration of the list in which all pairs of choices occur, also on disk; this takes minutes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use rockmill::internals::merge_into_extra_run;
use rockmill::merge_operator::{StringAppendOperator, UInt64AddOperator};
use rockmill::properties::MERGE_ENGINE;
use rockmill::{
    BottommostLevelCompaction, ColumnFamilyDescriptor, CompactOptions, Db, ErrorKind, KernelDriver, MergeEngine,
    Options, ReverseBytewiseComparator, SliceTransform, probe_kernel_engine,
};
use rockmill_io::{FileSystem, MemFileSystem, PosixFileSystem};
use rockmill_skip::{Needs, program, skip};
use rockmill_stress::configuration::Configuration;

use super::archive::{self, Case};

/// Makes a configuration repeatable. Without a limit on the memory of memtables, because flushes would then depend on
/// timing. And without a MANIFEST that is replaced after a few edits, because each one uses a file number.
fn repeatable(configuration: Configuration) -> Configuration {
    let with = |c: Configuration, axis, choice| c.with(axis, choice).expect("an axis of the list");
    with(with(configuration, "memory", "own"), "manifest", "large")
}

/// The files of a database, or its tables alone.
type Files = BTreeMap<String, Vec<u8>>;

fn seed() -> u64 {
    let seed = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("ROCKMILL_SEED={seed}");
    seed
}

fn is_everything() -> bool {
    std::env::var("ROCKMILL_REPRODUCIBLE").is_ok_and(|v| v == "all")
}

/// What a failure printed behind `merged as`, if it is to be tried again for every case.
fn configuration_of_a_failure() -> Option<Configuration> {
    let text = std::env::var("ROCKMILL_CONFIGURATION").ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("ROCKMILL_CONFIGURATION={text}: {e}")))
}

/// Where a database is merged.
struct TestDir {
    fs: Arc<dyn FileSystem>,
    dir: tempfile::TempDir,
}

impl TestDir {
    fn in_memory() -> Self {
        let place = Self { fs: Arc::new(MemFileSystem::new()), dir: tempfile::tempdir().expect("a directory") };
        place.fs.create_dir(place.dir.path(), true).expect("a directory in memory");
        place
    }

    fn on_disk() -> Self {
        Self { fs: Arc::new(PosixFileSystem::default()), dir: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn files(&self, wanted: impl Fn(&str) -> bool) -> Files {
        let mut names = self.fs.list_dir(self.path()).expect("the database");
        // Archived WALs are in their own directory.
        names.retain(|n| wanted(n) && n != "archive");
        let names = names.into_iter();
        names.map(|n| (n.clone(), self.fs.read_to_vec(&self.path().join(&n)).expect("a file"))).collect()
    }
}

/// A database to be merged.
struct Subject {
    title: String,
    files: Files,
    /// The options of a column family, without what a run sets.
    options: Box<dyn Fn(&str) -> Options>,
}

/// Compacts every column family of a copy, writes a little, and compacts again. Returns the tables.
fn merge(subject: &Subject, place: &TestDir, engine: MergeEngine) -> Files {
    let title = &subject.title;
    for (name, bytes) in &subject.files {
        place.fs.write_all(&place.path().join(name), bytes).expect("a file");
    }
    let options = |family: &str| {
        let mut options = (subject.options)(family);
        options.set_file_system(Arc::clone(&place.fs));
        options.set_merge_engine(engine);
        options.set_reproducible(true);
        options
    };
    let mut families = Db::list_cf(&options("default"), place.path()).unwrap_or_else(|e| panic!("{title}: {e}"));
    families.sort();
    let descriptors = families.iter().map(|name| ColumnFamilyDescriptor::new(name, options(name)));
    let db = Db::open_cf_descriptors(&options("default"), place.path(), descriptors)
        .unwrap_or_else(|e| panic!("{title}: {e}"));
    let mut how = CompactOptions::default();
    how.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
    for round in 0..2u64 {
        for name in &families {
            let cf = db.cf_handle(name).expect("it was opened");
            if round > 0 {
                for i in 0..20u64 {
                    // Numbers, so that they are operands of any operator.
                    db.put_cf(&cf, format!("written-{}", i * 7 % 11), i.to_le_bytes()).expect("a put");
                }
            }
            db.compact_range_cf_opt(&cf, None::<&[u8]>, None::<&[u8]>, &how)
                .unwrap_or_else(|e| panic!("{title}, {}: {e}", engine.name()));
        }
    }
    let used = db.property_value(MERGE_ENGINE).expect("a property").unwrap_or_default();
    // The kernel engine leaves some jobs to the others, and reports that itself.
    assert!(used == engine.name() || engine == MergeEngine::Kernel, "{title}: {used} did the work");
    drop(db);
    place.files(|name| name.ends_with(".sst"))
}

/// Checks that all runs give the same tables.
fn agree(subject: &Subject, on_disk: bool) {
    let first = merge(subject, &TestDir::in_memory(), MergeEngine::Pread);
    let mut others = vec![
        ("pread again", TestDir::in_memory(), MergeEngine::Pread),
        ("the memory's ring", TestDir::in_memory(), MergeEngine::Uring),
    ];
    if on_disk {
        others.push(("pread on the disk", TestDir::on_disk(), MergeEngine::Pread));
        others.push(("uring on the disk", TestDir::on_disk(), MergeEngine::Uring));
    }
    if has_kernel() {
        others.push(("kernel in memory", TestDir::in_memory(), MergeEngine::Kernel));
        if on_disk {
            others.push(("kernel on the disk", TestDir::on_disk(), MergeEngine::Kernel));
        }
    }
    for (name, place, engine) in others {
        let other = merge(subject, &place, engine);
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&first), names(&other), "{}: {name} writes other tables", subject.title);
        for (table, bytes) in &first {
            let at = bytes.iter().zip(&other[table]).position(|(a, b)| a != b);
            let (a, b) = (bytes.len(), other[table].len());
            assert!(a == b && at.is_none(), "{}: {name}: {table} differs at {at:?} ({a}, {b} bytes)", subject.title);
        }
    }
}

/// True if the kernel can merge; otherwise reports the skip.
fn has_kernel() -> bool {
    // The pool is kept, so that programs are not loaded for each database.
    static POOL: OnceLock<(Arc<rockmill_kernel::Pool>, bool)> = OnceLock::new();
    let probe = || match probe_kernel_engine(KernelDriver::Run) {
        Ok(()) => true,
        Err(e) => {
            skip("merges by the engine kernel", &Needs::Kernel.because(e));
            false
        }
    };
    POOL.get_or_init(|| (rockmill_kernel::Pool::shared(), probe())).1
}

/// True if rings are available; otherwise reports the skip.
fn has_rings() -> bool {
    let probe = PosixFileSystem::default().batch_probe();
    if !probe.available {
        skip("uring on the disk", &Needs::Uring.because(probe.reason));
    }
    probe.available
}

fn fixture(case: &Case, configuration: &Configuration) -> Subject {
    let title = format!("{} merged as {configuration}", case.title());
    let (noted, configuration) = (case.clone(), configuration.clone());
    let options = move |family: &str| {
        let mut options = configuration.options();
        match noted.operators.get(family).map(String::as_str) {
            Some("StringAppendOperator") => {
                options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
            }
            Some("UInt64AddOperator") => options.set_merge_operator_object(Arc::new(UInt64AddOperator)),
            other => assert_eq!(other, None, "{}", noted.title()),
        }
        if let Some(&length) = noted.prefixes.get(family) {
            options.set_prefix_extractor(SliceTransform::create_fixed_prefix(length));
        }
        if noted.reverse.iter().any(|f| f == family) {
            options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        options
    };
    Subject { title, files: case.files.clone(), options: Box::new(options) }
}

#[test]
fn fixtures_of_every_version_are_merged_to_the_same_bytes() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let (rings, everything) = (has_rings(), is_everything());
    let (mut merged, mut versions) = (0, 0);
    for archive in archive::archives() {
        let mut cases = archive::cases(&archive);
        cases.retain(|c| c.refused.is_none() && !c.is_backup);
        versions += usize::from(!cases.is_empty());
        // One of each archive on the disk, where every sync counts.
        let on_disk = rng.usize(..cases.len().max(1));
        let third = rng.usize(..3);
        for (i, case) in cases.iter().enumerate() {
            if !everything && i != on_disk && i % 3 != third {
                continue;
            }
            let configurations = match (configuration_of_a_failure(), everything) {
                (Some(configuration), _) => vec![configuration],
                (None, true) => Configuration::pairs(),
                (None, false) => vec![Configuration::random(&mut rng)],
            };
            for configuration in configurations.into_iter().map(repeatable) {
                agree(&fixture(case, &configuration), rings && (everything || i == on_disk));
                merged += 1;
            }
        }
    }
    println!("{merged} merges of databases of {versions} versions");
    assert!(versions >= 12 && merged >= versions, "{merged} of {versions}");
}

/// A database with every kind of entry, in the state in which background work left it, plus extra runs on top.
fn random_database(rng: &mut fastrand::Rng, configuration: &Configuration) -> Files {
    let place = TestDir::in_memory();
    let mut options = configuration.options();
    options.set_file_system(Arc::clone(&place.fs));
    options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
    let db = Db::open(&options, place.path()).expect("a new database");
    let default = db.cf_handle("default").expect("always there");
    for _ in 0..4 {
        for _ in 0..rng.usize(200..1500) {
            let key = format!("key{:05}", rng.u32(..3000));
            let value = "v".repeat(rng.usize(..60)) + &rng.u64(..).to_string();
            match rng.u32(..20) {
                0..=1 => db.delete(&key).expect("a deletion"),
                2..=4 => db.merge(&key, &value).expect("an operand"),
                5 if rng.u32(..20) == 0 => {
                    let to = format!("key{:05}", rng.u32(..3000));
                    let (from, to) = if key < to { (key, to) } else { (to, key) };
                    db.delete_range_cf(&default, from, to).expect("a range deletion");
                }
                _ => db.put(&key, &value).expect("a put"),
            }
        }
        if rng.bool() {
            db.flush().expect("a flush");
        }
    }
    drop((default, db));
    // So that the strategy does not merge extra runs, and no writer has to wait for that.
    options = Options::default();
    options.set_file_system(Arc::clone(&place.fs));
    options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
    options.set_disable_auto_compactions(true);
    let db = Db::open(&options, place.path()).expect("what was closed");
    let default = db.cf_handle("default").expect("always there");
    for round in 0..rng.u32(..4) {
        for _ in 0..300 {
            db.put(format!("key{:05}", rng.u32(..3000)), format!("run {round}")).expect("a put");
        }
        db.flush().expect("a flush");
        let bottom = db.level_stats(&default).iter().rposition(|l| l.files > 0).unwrap_or(1).max(1);
        match merge_into_extra_run(&db, &default, &[0], rng.usize(1..=bottom)) {
            Err(e) => assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}"),
            Ok(id) => assert!(id > 0),
        }
    }
    drop((default, db));
    place.files(|name| name != "LOCK" && !name.starts_with("LOG"))
}

#[test]
fn random_databases_are_merged_to_the_same_bytes() {
    let mut rng = fastrand::Rng::with_seed(seed());
    let (rings, everything) = (has_rings(), is_everything());
    let mut writing = match everything {
        true => Configuration::pairs(),
        false => (0..8).map(|_| Configuration::random(&mut rng)).collect(),
    };
    writing.push(Configuration::default());
    for (i, written) in writing.iter().enumerate() {
        let files = random_database(&mut rng, written);
        // With other options than it was written with: formats, sizes and compressions are those of the output.
        let merged = repeatable(Configuration::random(&mut rng));
        let title = format!("written as {written}, merged as {merged}");
        let options = move |_: &str| {
            let mut options = merged.options();
            options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
            options
        };
        agree(&Subject { title, files, options: Box::new(options) }, rings && (everything || i < 2));
    }
}

#[test]
fn databases_of_the_installed_rocksdb_are_merged_to_the_same_bytes() {
    if let Err(missing) = program("db_bench", Needs::Ldb) {
        return skip("databases_of_the_installed_rocksdb", &missing);
    }
    let mut rng = fastrand::Rng::with_seed(seed());
    let rings = has_rings();
    for line in [
        "--benchmarks=fillrandom,overwrite --compression_type=none --bloom_bits=10 --disable_auto_compactions",
        "--benchmarks=fillrandom,deleterandom --compression_type=lz4 --value_size=30",
        "--benchmarks=filluniquerandom,overwrite --compression_type=zstd --block_size=1024 --disable_auto_compactions",
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let out = Command::new("db_bench")
            .args([format!("--db={}", dir.path().display()), "--seed=7".into(), "--num=6000".into()])
            .args(["--write_buffer_size=200000", "--target_file_size_base=100000"])
            .args(line.split_whitespace())
            .output()
            .expect("db_bench");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let written = TestDir { fs: Arc::new(PosixFileSystem::default()), dir };
        let files = written.files(|name| name != "LOCK" && !name.starts_with("LOG") && !name.starts_with("OPTIONS"));
        assert!(files.keys().filter(|name| name.ends_with(".sst")).count() > 1, "{:?}", files.keys());
        let configuration = repeatable(Configuration::random(&mut rng));
        let title = format!("db_bench {line}, merged as {configuration}");
        let options = move |_: &str| configuration.options();
        agree(&Subject { title, files, options: Box::new(options) }, rings);
    }
}
