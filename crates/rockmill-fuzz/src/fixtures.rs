//! Sound databases to damage. Some are made here in memory, so that there is one of every shape that Rockmill writes.
//! The others are RocksDB's databases in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fastrand::Rng;
use rockmill::backup::{BackupEngine, BackupEngineOptions};
use rockmill::merge_operator::{StringAppendOperator, UInt64AddOperator};
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, ChecksumType, ColumnFamilyDescriptor, CompressionType, DataBlockIndexType,
    Db, Env, LiveFile, Options, ReverseBytewiseComparator, SliceTransform, SstFileWriter, TphTableOptions, WriteBatch,
};
use rockmill_io::{FileSystem, MemFileSystem, SystemClock};

use crate::archive::{self, Case};

/// Each database's directory in its file system in memory.
pub const DIR: &str = "/hostile/db";

/// The directory of backups.
pub const BACKUPS: &str = "/hostile/backups";

/// Column family, key, value.
pub type Entry = (String, Vec<u8>, Vec<u8>);

/// A database as files, and the contents that it may have.
#[derive(Debug)]
pub struct Fixture {
    /// For messages.
    pub name: String,
    /// Names and contents.
    pub files: BTreeMap<String, Vec<u8>>,
    /// By column family and key: every value that was ever put there. `None`: the checksums do not guarantee that.
    pub written: Option<BTreeSet<Entry>>,
    /// Its description in the repository's archive; `None` for those made here.
    pub case: Option<Case>,
}

/// How a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// `open_cf_descriptors_read_only`
    ToRead,
    /// `open_cf_descriptors`
    ToWrite,
    /// `open_cf_descriptors_as_secondary`
    AsSecondary,
    /// `open_cf_descriptors_with_ttl`
    WithTtl,
    /// `open_cf_with_ttl_for_read_only`
    WithTtlToRead,
}

impl Fixture {
    fn is_backup(&self) -> bool {
        self.case.as_ref().is_some_and(|c| c.is_backup)
    }

    /// True if its values have a time to live.
    pub fn is_with_ttl(&self) -> bool {
        self.case.as_ref().is_some_and(|c| c.ttl)
    }

    /// Options of a column family: the merge operator and the key order that it was written with.
    pub fn options(&self, fs: &Arc<MemFileSystem>, family: &str) -> Options {
        let mut options = options(fs);
        let Some(case) = &self.case else { return options };
        if case.operators.get(family).is_some_and(|o| o == "UInt64AddOperator") {
            options.set_merge_operator_object(Arc::new(UInt64AddOperator));
        }
        if let Some(&len) = case.prefixes.get(family) {
            options.set_prefix_extractor(SliceTransform::create_fixed_prefix(len));
        }
        if case.reverse.iter().any(|f| f == family) {
            options.set_comparator_object(Arc::new(ReverseBytewiseComparator));
        }
        options
    }

    /// Opens the database in [`DIR`].
    pub fn open(&self, fs: &Arc<MemFileSystem>, families: &[String], how: Open) -> rockmill::Result<Db> {
        let options = self.options(fs, "default");
        let each = families.iter().map(|name| ColumnFamilyDescriptor::new(name, self.options(fs, name)));
        let second = Duration::from_secs(1);
        match how {
            Open::ToRead => Db::open_cf_descriptors_read_only(&options, DIR, each, false),
            Open::ToWrite => Db::open_cf_descriptors(&options, DIR, each),
            Open::AsSecondary => Db::open_cf_descriptors_as_secondary(&options, DIR, "/hostile/secondary", each),
            Open::WithTtl => Db::open_cf_descriptors_with_ttl(&options, DIR, each, second),
            Open::WithTtlToRead => Db::open_cf_with_ttl_for_read_only(&options, DIR, families, false),
        }
    }
}

/// Options with which every fixture opens.
pub fn options(fs: &Arc<MemFileSystem>) -> Options {
    let mut options = Options::default();
    options.set_file_system(Arc::clone(fs) as Arc<dyn FileSystem>);
    options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
    options.set_prefix_extractor(SliceTransform::create_fixed_prefix(3));
    options.set_write_buffer_size(64 << 10);
    options.set_max_background_jobs(2);
    options
}

/// A file system with these files of a database.
pub fn file_system(files: &BTreeMap<String, Vec<u8>>) -> Arc<MemFileSystem> {
    file_system_at(DIR, files)
}

/// A file system with these files below a directory.
pub fn file_system_at(root: &str, files: &BTreeMap<String, Vec<u8>>) -> Arc<MemFileSystem> {
    let fs = MemFileSystem::new();
    let dir = Path::new(root);
    fs.create_dir(dir, true).expect("a directory in memory");
    for (name, bytes) in files {
        let path = dir.join(name);
        fs.create_dir(path.parent().unwrap_or(dir), true).expect("a directory in memory");
        fs.write_all(&path, bytes).expect("a file in memory");
    }
    Arc::new(fs)
}

pub(crate) fn files_of(fs: &dyn FileSystem) -> BTreeMap<String, Vec<u8>> {
    let dir = Path::new(DIR);
    let mut out = BTreeMap::new();
    for name in fs.list_dir(dir).expect("the directory") {
        if name != "LOCK" && !name.starts_with("LOG") {
            out.insert(name.clone(), fs.read_to_vec(&dir.join(&name)).expect("a file"));
        }
    }
    out
}

/// A way of writing tables.
struct Shape {
    name: &'static str,
    version: i32,
    checksum: ChecksumType,
    compression: CompressionType,
    partitioned: bool,
    hash_index: bool,
    bloom: bool,
    dictionary: bool,
    /// TPH tables, some of which share files.
    tph: bool,
}

impl Shape {
    fn options(&self, fs: &Arc<MemFileSystem>) -> Options {
        let mut options = options(fs);
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_compression_type(self.compression);
        options.set_disable_auto_compactions(true);
        options.set_target_file_size_base(8 << 10);
        if self.dictionary {
            options.set_compression_options(-14, 32767, 0, 1 << 10);
        }
        let mut table = BlockBasedOptions::default();
        table.set_block_size(400);
        table.set_metadata_block_size(128);
        table.set_format_version(self.version);
        table.set_checksum_type(self.checksum);
        if self.bloom {
            table.set_bloom_filter(10.0, false);
        }
        if self.partitioned {
            table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            table.set_partition_filters(true);
        }
        if self.hash_index {
            table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        }
        options.set_block_based_table_factory(&table);
        if self.tph {
            let mut tph = TphTableOptions::default();
            tph.set_garbage_percent(1000);
            options.set_tph_table_factory(&tph);
        }
        options
    }
}

const SHAPES: [Shape; 6] = [
    Shape {
        name: "v5, zstd with dictionary, partitioned index and filter",
        version: 5,
        checksum: ChecksumType::Xxh3,
        compression: CompressionType::Zstd,
        partitioned: true,
        hash_index: false,
        bloom: true,
        dictionary: true,
        tph: false,
    },
    Shape {
        name: "v6, lz4, hash index",
        version: 6,
        checksum: ChecksumType::Crc32c,
        compression: CompressionType::Lz4,
        partitioned: false,
        hash_index: true,
        bloom: true,
        dictionary: false,
        tph: false,
    },
    Shape {
        name: "v7, snappy",
        version: 7,
        checksum: ChecksumType::XxHash64,
        compression: CompressionType::Snappy,
        partitioned: false,
        hash_index: false,
        bloom: false,
        dictionary: false,
        tph: false,
    },
    Shape {
        name: "v5, no checksums, no compression",
        version: 5,
        checksum: ChecksumType::None,
        compression: CompressionType::None,
        partitioned: false,
        hash_index: true,
        bloom: true,
        dictionary: false,
        tph: false,
    },
    Shape {
        name: "v6, zlib, partitioned",
        version: 6,
        checksum: ChecksumType::XxHash,
        compression: CompressionType::Zlib,
        partitioned: true,
        hash_index: false,
        bloom: true,
        dictionary: false,
        tph: false,
    },
    Shape {
        name: "TPH",
        version: 6,
        checksum: ChecksumType::Xxh3,
        compression: CompressionType::None,
        partitioned: false,
        hash_index: false,
        bloom: false,
        dictionary: false,
        tph: true,
    },
];

fn key(n: u32) -> Vec<u8> {
    format!("key{n:04}").into_bytes()
}

/// Writes a table for ingestion: these entries, followed by a few deletions.
fn external(options: &Options, path: &str, entries: &[(Vec<u8>, Vec<u8>)]) {
    let mut writer = SstFileWriter::create(options);
    writer.open(path).expect("a file in memory");
    for (key, value) in entries {
        writer.put(key, value).expect("keys in order");
    }
    writer.delete(b"key9000").expect("keys in order");
    writer.delete_range(b"key0190", b"key0195").expect("a range");
    writer.finish().expect("a file in memory");
}

/// Tables for ingestion, one of each shape.
pub fn externals() -> Vec<Vec<u8>> {
    let path = "/hostile/external.sst";
    let one = |shape: &Shape| {
        let fs = Arc::new(MemFileSystem::new());
        fs.create_dir(Path::new("/hostile"), true).expect("a directory in memory");
        let entries: Vec<_> = (0..40).map(|n| (key(n * 3), format!("{n}#external").into_bytes())).collect();
        external(&shape.options(&fs), path, &entries);
        fs.read_to_vec(Path::new(path)).expect("the file")
    };
    SHAPES.iter().map(one).collect()
}

/// Writes a small database with this shape: two column families, overwrites, deletions of all kinds, merges, tables in
/// two levels, WALs with data.
fn make(shape: &Shape) -> Fixture {
    let fs = Arc::new(MemFileSystem::new());
    let options = shape.options(&fs);
    let names = ["default", "other"];
    let families = names.map(|name| ColumnFamilyDescriptor::new(name, options.clone()));
    let db = Db::open_cf_descriptors(&options, DIR, families).expect("a database in memory");
    let mut written = BTreeSet::new();
    let mut rng = Rng::with_seed(42);
    for round in 0..4u32 {
        for (name, keys) in [("default", 120), ("other", 30)] {
            let cf = db.cf_handle(name).expect("opened");
            let mut batch = WriteBatch::new();
            for _ in 0..keys {
                let n = rng.u32(..200);
                let key = key(n);
                let value = format!("{n}#{round}{}", "x".repeat(rng.usize(..40))).into_bytes();
                match rng.u8(0..12) {
                    0 => batch.delete_cf(&cf, &key),
                    1 => batch.single_delete_cf(&cf, &key),
                    2 => {
                        let end = self::key(n + rng.u32(..6));
                        batch.delete_range_cf(&cf, &key, &end);
                    }
                    3 | 4 => {
                        batch.merge_cf(&cf, &key, &value);
                        written.insert((name.to_owned(), key, value));
                    }
                    _ => {
                        batch.put_cf(&cf, &key, &value);
                        written.insert((name.to_owned(), key, value));
                    }
                }
            }
            batch.put_log_data(b"a remark");
            db.write(&batch).expect("a write");
        }
        match round {
            0 => {
                db.flush_all().expect("a flush");
                db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
            }
            1 | 2 => {
                db.flush_all().expect("a flush");
                let path = format!("/hostile/external{round}.sst");
                let entries = [5, 77, 300 + round].map(|n| (key(n), format!("{n}#external{round}").into_bytes()));
                external(&options, &path, &entries);
                db.ingest_external_file(vec![&path]).expect("an ingestion");
                written.extend(entries.map(|(key, value)| ("default".to_owned(), key, value)));
                if shape.tph {
                    // Entries that have not changed since round 0 stay in their files.
                    db.compact_range(None::<&[u8]>, None::<&[u8]>).expect("a compaction");
                    let shares = |file: &LiveFile| !file.pieces.is_empty();
                    assert!(db.live_files().expect("sound tables").iter().any(shares), "no table of several files");
                }
            }
            _ => {}
        }
    }
    db.wait_for_background_work().expect("background work");
    // As after the death of the process: the last writes are in a log.
    let files = files_of(&fs.crash_image(rockmill_io::CrashMode::KeepAll));
    let sound = shape.checksum != ChecksumType::None;
    Fixture { name: shape.name.to_owned(), files, written: sound.then_some(written), case: None }
}

/// The databases in the repository: of every version of RocksDB, and of Rockmill's releases.
fn kept() -> Vec<Fixture> {
    let cases = archive::archives().into_iter().flat_map(|name| archive::cases(&name));
    let of = |case: Case| Fixture { name: case.title(), files: case.files.clone(), written: None, case: Some(case) };
    cases.map(of).collect()
}

/// All databases, made once; the first [`MADE`] are made here.
pub fn all() -> &'static [Fixture] {
    static ALL: OnceLock<Vec<Fixture>> = OnceLock::new();
    let kept = || kept().into_iter().filter(|f| !f.is_backup());
    ALL.get_or_init(|| SHAPES.iter().map(make).chain(kept()).collect())
}

/// The number of databases in [`all`] that are made here.
pub const MADE: usize = SHAPES.len();

/// Directories of backups: one made here, then those of other versions.
pub fn backups() -> &'static [Fixture] {
    static ALL: OnceLock<Vec<Fixture>> = OnceLock::new();
    ALL.get_or_init(|| [make_backups()].into_iter().chain(kept().into_iter().filter(Fixture::is_backup)).collect())
}

/// Two backups of a database with two column families.
fn make_backups() -> Fixture {
    let fixture = make(&SHAPES[1]);
    let fs = file_system(&fixture.files);
    let db = fixture.open(&fs, &["default".to_owned(), "other".to_owned()], Open::ToWrite).expect("a sound database");
    let env = Env::from_parts(Arc::clone(&fs) as Arc<dyn FileSystem>, Arc::new(SystemClock::default()));
    let options = BackupEngineOptions::new(BACKUPS).expect("options");
    let engine = BackupEngine::open(&options, &env).expect("an engine");
    for n in 0..2 {
        db.put(b"key0001", format!("1#backup{n}")).expect("a write");
        engine.create_new_backup(&db).expect("a backup");
    }
    Fixture { name: "two backups".to_owned(), files: tree(&fs, Path::new(BACKUPS)), written: None, case: None }
}

/// Every file below a directory, by its relative path.
fn tree(fs: &MemFileSystem, root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for name in fs.list_dir(&root.join(&folder)).expect("a directory") {
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            match fs.read_to_vec(&root.join(&path)) {
                Ok(bytes) if name != "LOCK" => {
                    out.insert(path, bytes);
                }
                Ok(_) => {}
                Err(_) => folders.push(path),
            }
        }
    }
    out
}
