//! Opens a database with the right options: with all of its column families, its comparators, and its number of levels.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rockmill::{
    BlockBasedOptions, Cache, ChecksumType, ColumnFamily, ColumnFamilyDescriptor, ColumnFamilyTtl, CompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, Db, DbSummary, ErrorKind, KernelDriver, MergeEngine, OptionWarning, Options,
    OptionsLoader, TableKind,
};
use rockmill_format::comparator::{BYTEWISE_NAME, HASH_RANGE_NAME, REVERSE_BYTEWISE_NAME, comparator_named};
use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::args::{
    ChecksumArg, CompressionArg, DriverArg, DurabilityArgs, EngineArg, ReadArgs, ShapeArgs, StoredArgs, Switch,
    TableArgs, TableFormatArg, WriteArgs,
};
use crate::error::{CliError, EXIT_FAILED, REPAIR_HINT, Result};
use crate::{offload, output};

/// Background jobs of a database that the command creates.
const NEW_THREADS: i32 = 2;
/// Default size of the block cache in bytes.
const CACHE_BYTES: u64 = 32 << 20;

fn refuse(kind: &str, message: String) -> CliError {
    CliError { kind: kind.into(), message, hint: None, code: EXIT_FAILED, broken_pipe: false }
}

/// The hint if there is no database.
pub const CREATE_HINT: &str = "`rockmill load DB FILE` creates a database in a new or empty directory";

/// Refuses a path that is not a database; the message tells what it is instead.
pub fn check_is_database(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => refuse("NotFound", format!("{shown}: no such directory")).hint(CREATE_HINT),
        _ => CliError::io(&shown, &e),
    })?;
    if !meta.is_dir() {
        return Err(refuse("InvalidArgument", format!("{shown} is a file; a database is a directory"))
            .hint("`rockmill dump FILE` shows a single table, WAL or MANIFEST"));
    }
    match std::fs::metadata(path.join(filename::CURRENT)) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let names = std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.file_name());
            let left = |name: &OsString| {
                let file_type = name.to_str().and_then(filename::parse);
                matches!(file_type, Some(FileType::Table(_) | FileType::Manifest(_)))
            };
            if let Some(name) = names.into_iter().find(left) {
                let what = format!("{shown}: the file CURRENT is missing, and {} is there", name.display());
                return Err(refuse("Corruption", what).hint(REPAIR_HINT));
            }
            Err(refuse("InvalidArgument", format!("{shown} is not a database (it has no file CURRENT)"))
                .hint(CREATE_HINT))
        }
        Err(e) => Err(CliError::io(path.join(filename::CURRENT).display(), &e)),
    }
}

/// Tells whether a database must be created at `path`. Refuses to create one among unrelated files, or over possible
/// remains of an old one.
fn must_create(path: &Path) -> Result<bool> {
    let shown = path.display().to_string();
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return check_is_database(path).map(|()| false),
        Err(e) => return Err(CliError::io(&shown, &e)),
    };
    if path.join(filename::CURRENT).exists() {
        return Ok(false);
    }
    for entry in entries {
        let entry = entry.map_err(|e| CliError::io(&shown, &e))?;
        let name = entry.file_name();
        let what = match name.to_str().and_then(filename::parse) {
            None => "files that are not a database's",
            Some(FileType::Table(_) | FileType::Blob(_)) => "tables of a database but no file CURRENT",
            Some(FileType::Wal(_)) if entry.metadata().is_ok_and(|m| m.len() > 0) => {
                "a WAL of a database but no file CURRENT"
            }
            Some(_) => continue,
        };
        return Err(refuse("InvalidArgument", format!("{shown}: has {what} ({})", name.display()))
            .hint("give a new or an empty directory, or repair the database there (`rockmill repair DB`)"));
    }
    Ok(true)
}

/// Arguments that are keys or values, as bytes.
pub fn bytes_arg(what: &str, arg: &OsStr, is_hex: bool) -> Result<Vec<u8>> {
    let raw = arg.as_bytes();
    if !is_hex {
        return Ok(raw.to_vec());
    }
    output::unhex(raw).ok_or_else(|| {
        CliError::usage(format!("{what} {:?} is not hexadecimal", arg.display()))
            .hint("two digits for each byte, for example 00ff; without the flag for hexadecimal it is text")
    })
}

fn compression(arg: CompressionArg) -> CompressionType {
    match arg {
        CompressionArg::None => CompressionType::None,
        CompressionArg::Snappy => CompressionType::Snappy,
        CompressionArg::Lz4 => CompressionType::Lz4,
        CompressionArg::Zstd => CompressionType::Zstd,
        CompressionArg::Zlib => CompressionType::Zlib,
    }
}

/// Converts a size to `usize`, if it fits.
fn usize_of(flag: &str, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| CliError::usage(format!("--{flag} {bytes} is too large for this machine")))
}

/// Sets the tables' cache; a size of 0 means no cache.
fn set_cache(table: &mut BlockBasedOptions, bytes: u64, cache: &Cache) {
    if bytes == 0 {
        table.disable_cache();
    } else {
        table.set_block_cache(cache);
    }
}

fn new_cache(bytes: u64) -> Result<Cache> {
    Ok(Cache::new_lru_cache(usize_of("cache-size", bytes)?.max(1)))
}

/// Options of the database, and of each known column family.
pub struct Stored {
    /// Options of the database and the default column family.
    pub options: Options,
    families: Vec<ColumnFamilyDescriptor>,
    /// The OPTIONS file, if there was one.
    pub file: Option<PathBuf>,
    /// The file's options without effect.
    pub warnings: Vec<OptionWarning>,
}

impl Stored {
    /// The options of a column family; defaults for a new one.
    pub fn family(&self, name: &str) -> Options {
        let found = self.families.iter().find(|d| d.name() == name);
        let cf = found.map_or_else(|| Options::default().cf, |d| d.options().cf.clone());
        let mut options = self.options.clone();
        options.cf = cf;
        options
    }

    fn none() -> Self {
        Self { options: Options::default(), families: Vec::new(), file: None, warnings: Vec::new() }
    }
}

/// The options of the database in `path`, or of the given file, or none.
pub fn stored_options(path: &Path, args: &StoredArgs) -> Result<Stored> {
    let loader = OptionsLoader::new();
    let loaded = match &args.options_file {
        Some(file) => loader.load_file(file),
        None if args.ignore_stored_options => return Ok(Stored::none()),
        None => loader.load_latest(path),
    };
    match loaded {
        Ok(l) => {
            Ok(Stored { options: l.options, families: l.column_families, file: Some(l.path), warnings: l.warnings })
        }
        // An old database, or one whose OPTIONS file was removed.
        Err(e) if e.kind() == ErrorKind::NotFound && args.options_file.is_none() => Ok(Stored::none()),
        Err(e) => Err(CliError::from(e).hint("--ignore-stored-options takes the defaults, --options another file")),
    }
}

/// True if `--option` sets this option.
fn is_named(args: &StoredArgs, name: &str) -> bool {
    args.option.iter().any(|o| o.split_once('=').is_some_and(|(n, _)| n.trim() == name))
}

/// Refuses stored paths that lead out of the database's directory, unless the command line names the path or declares
/// stored paths as trusted. A WAL directory that is marked as belonging to this database is also allowed.
fn check_paths(options: &Options, path: &Path, args: &StoredArgs, logs: bool) -> Result<()> {
    let named = |name: &str| is_named(args, name);
    let refused = |name: &str, dir: &Path, hint: &str| {
        let what = format!(
            "{}: the stored option {name} leads out of the database's directory, to {}, and nothing there says that \
             it belongs to this database",
            path.display(),
            dir.display()
        );
        let e = refuse("InvalidArgument", what);
        e.hint(format!("{hint}; --trust-paths follows what is stored. Whoever wrote the OPTIONS file chose that place"))
    };
    let leads_out = |dir: &Path| {
        !args.trust_paths && !dir.as_os_str().is_empty() && Db::check_stored_path(options, path, dir).is_err()
    };
    let wal_dir = &options.db.wal_dir;
    let given = args.wal_dir.is_some() || args.fast_path.is_some() || named("wal_dir") || named("fast_path");
    if !given && leads_out(wal_dir) {
        return Err(refused("wal_dir", wal_dir, "--wal-dir DIR says where the WALs are"));
    }
    let log_dir = &options.db.db_log_dir;
    if logs && !named("db_log_dir") && leads_out(log_dir) {
        let hint = "--option db_log_dir=DIR names a directory for the info log, none (`db_log_dir=`) the database's";
        return Err(refused("db_log_dir", log_dir, hint));
    }
    Ok(())
}

/// Refuses options without a WAL directory for a database whose own files name one. This happens with
/// `--ignore-stored-options`, or with another OPTIONS file. The data in its WALs would not be seen, and a later open
/// with the WALs would treat them as too old.
fn check_wals_are_found(options: &Options, path: &Path, args: &StoredArgs) -> Result<()> {
    let given = args.wal_dir.is_some() || args.fast_path.is_some();
    if given || is_named(args, "wal_dir") || is_named(args, "fast_path") || !options.db.wal_dir.as_os_str().is_empty() {
        return Ok(());
    }
    let hint = "--wal-dir DIR says where the WALs are; with the database's own directory, WALs elsewhere are left out";
    match Db::find_wal_dir(options, path) {
        Ok(dir) if dir == path => Ok(()),
        Ok(dir) => {
            let what = format!(
                "{}: the WALs of this database are in {}, which the options that it is to be opened with do not say",
                path.display(),
                dir.display()
            );
            Err(refuse("InvalidArgument", what).hint(hint))
        }
        Err(e) => Err(CliError::from(e).hint(hint)),
    }
}

/// Default limit of the bytes of WALs on a fast device.
const FAST_CAPACITY: u64 = 1 << 30;

/// Applies the options that the command line sets by RocksDB's names.
pub fn with_named(options: &Options, args: &StoredArgs) -> Result<Options> {
    let mut out = options.clone();
    if let Some(dir) = &args.wal_dir {
        // Absolute, because the OPTIONS file will name it, also for commands that run in other directories.
        out.set_wal_dir(std::path::absolute(dir).map_err(|e| CliError::io(dir.display(), &e))?);
    }
    if let Some(dir) = &args.fast_path {
        let dir = std::path::absolute(dir).map_err(|e| CliError::io(dir.display(), &e))?;
        out.set_wal_dir("");
        out.set_fast_path(dir, args.fast_capacity.unwrap_or(FAST_CAPACITY));
    } else if let Some(capacity) = args.fast_capacity {
        out.set_fast_path("", capacity);
    }
    out = with_table_dirs(out, &args.db_paths, &args.cf_paths)?;
    for text in &args.option {
        let Some((name, value)) = text.split_once('=') else {
            return Err(CliError::usage(format!("option {text:?}: NAME=VALUE is expected")));
        };
        out = Options::from_pairs(&out, [(name.trim(), value.trim())]).map_err(|e| {
            let error = CliError::usage(format!("--option {text}: {}", e.message()));
            match nearest_option(name.trim()) {
                Some(near) => error.hint(format!("did you mean {near}? `rockmill options DB` lists all of them")),
                None if e.message().contains("is not known") => error.hint("`rockmill options DB` lists the options"),
                None => error,
            }
        })?;
    }
    Ok(out)
}

/// The most similar option to an unknown name.
fn nearest_option(name: &str) -> Option<String> {
    let known = Options::default().values();
    let near = rockmill_bench::nearest(name, known.iter().map(|o| o.name))?;
    let of_tables = known.iter().any(|o| o.name == near && o.section.starts_with("TableOptions"));
    match (of_tables, near == name) {
        (true, _) => Some(format!("table_factory.{near}")),
        (false, true) => None, // the name is known, so the value is wrong
        (false, false) => Some(near.to_owned()),
    }
}

/// Sets the directories of tables, if given.
pub fn with_table_dirs(mut options: Options, db_paths: &Option<String>, cf_paths: &Option<String>) -> Result<Options> {
    for (name, paths) in [("db_paths", db_paths), ("cf_paths", cf_paths)] {
        if let Some(paths) = paths {
            options = with_option(&options, name, paths)?;
        }
    }
    Ok(options)
}

/// Sets one option that has its own flag.
fn with_option(options: &Options, name: &str, value: &str) -> Result<Options> {
    let flag = name.replace('_', "-");
    Options::from_pairs(options, [(name, value)])
        .map_err(|e| CliError::usage(format!("--{flag} {value}: {}", e.message())))
}

fn set_read_options(options: &mut Options, args: &ReadArgs, cache: &Cache) {
    if args.direct {
        options.set_use_direct_reads(true);
    }
    set_cache(&mut options.cf.table, args.cache_size, cache);
}

fn set_shape(options: &mut Options, shape: ShapeArgs) -> Result<()> {
    if let Some(size) = shape.level_base_size {
        if size == 0 {
            return Err(CliError::usage("--level-base-size must not be 0"));
        }
        options.set_max_bytes_for_level_base(size);
    }
    if let Some(multiplier) = shape.level_multiplier {
        if multiplier.is_nan() || multiplier <= 1.0 {
            return Err(CliError::usage("--level-multiplier must be above 1"));
        }
        options.set_max_bytes_for_level_multiplier(multiplier);
    }
    Ok(())
}

impl EngineArg {
    /// The engine with this name.
    pub fn engine(self) -> MergeEngine {
        match self {
            Self::Auto => MergeEngine::Auto,
            Self::Pread => MergeEngine::Pread,
            Self::Uring => MergeEngine::Uring,
            Self::Kernel => MergeEngine::Kernel,
        }
    }
}

impl DriverArg {
    /// The driver with this name.
    pub fn driver(self) -> KernelDriver {
        match self {
            Self::Run => KernelDriver::Run,
            Self::Loop => KernelDriver::Loop,
        }
    }
}

/// Sets the database's options from the command line. A new database has the number of threads that the help shows.
fn set_db_options(options: &mut Options, args: &WriteArgs, new: bool) {
    if let Some(threads) = args.threads.or(new.then_some(NEW_THREADS)) {
        options.increase_parallelism(threads);
        options.set_max_subcompactions(threads.unsigned_abs().max(1));
    }
    if let Some(engine) = args.engine {
        options.set_merge_engine(engine.engine());
    }
    if let Some(driver) = args.kernel_driver {
        options.set_kernel_driver(driver.driver());
    }
    if let Some(path) = &args.kernel_program {
        options.set_kernel_merge_program(path);
    }
    if args.direct {
        options.set_use_direct_reads(true);
        options.set_use_direct_io_for_flush_and_compaction(true);
    }
}

/// Applies the command line's options of a column family.
fn set_family_options(options: &mut Options, args: &WriteArgs) -> Result<()> {
    if args.bloom_bits.is_some_and(|bits| !(0.0..=100.0).contains(&bits)) {
        return Err(CliError::usage("--bloom-bits must be between 0 and 100"));
    }
    if args.write_buffer_size.is_some_and(|n| n < 4096) {
        return Err(CliError::usage("--write-buffer-size must be at least 4K"));
    }
    if args.block_size.is_some_and(|n| n == 0 || n > 256 << 20) {
        return Err(CliError::usage("--block-size must be between 1 byte and 256M"));
    }
    if args.target_file_size == Some(0) {
        return Err(CliError::usage("--target-file-size must not be 0"));
    }
    set_shape(options, args.shape)?;
    if let Some(c) = args.compression {
        options.set_compression_type(compression(c));
    }
    if let Some(level) = args.compression_level {
        options.set_compression_level(level);
    }
    if let Some(c) = args.bottommost_compression {
        options.set_bottommost_compression_type(compression(c));
    }
    if let Some(size) = args.write_buffer_size {
        options.set_write_buffer_size(usize_of("write-buffer-size", size)?);
    }
    if let Some(n) = args.write_buffers {
        options.set_max_write_buffer_number(n);
    }
    if let Some(size) = args.target_file_size {
        options.set_target_file_size_base(size);
    }
    if let Some(trigger) = args.l0_trigger {
        options.set_level_zero_file_num_compaction_trigger(trigger);
        // RocksDB's slowdown and stop triggers are 20 and 36; a larger compaction trigger raises them, too.
        options.set_level_zero_slowdown_writes_trigger(trigger.saturating_mul(2).max(20));
        options.set_level_zero_stop_writes_trigger(trigger.saturating_mul(3).max(36));
    }
    set_tables(options, args.tables)?;
    let table = &mut options.cf.table;
    if let Some(size) = args.block_size {
        table.set_block_size(usize_of("block-size", size)?);
    }
    if let Some(version) = args.format_version {
        table.set_format_version(version);
    }
    match args.checksum {
        None => {}
        Some(ChecksumArg::Crc32c) => table.set_checksum_type(ChecksumType::Crc32c),
        Some(ChecksumArg::Xxhash64) => table.set_checksum_type(ChecksumType::XxHash64),
        Some(ChecksumArg::Xxh3) => table.set_checksum_type(ChecksumType::Xxh3),
    }
    if let Some(bits) = args.bloom_bits {
        table.set_bloom_filter(bits, false);
    }
    Ok(())
}

/// Sets the kind of tables to write, and the options of TPH tables.
pub fn set_tables(options: &mut Options, args: TableArgs) -> Result<()> {
    match args.table_format {
        None => {}
        Some(TableFormatArg::Block) => options.cf.table_factory = TableKind::BlockBased,
        Some(TableFormatArg::Tph) => options.cf.table_factory = TableKind::Tph,
    }
    if options.cf.table_factory != TableKind::Tph {
        let flags = [("piece-limit", args.piece_limit), ("garbage-percent", args.garbage_percent)];
        if let Some((flag, _)) = flags.iter().find(|(_, value)| value.is_some()) {
            return Err(CliError::usage(format!("--{flag} is for TPH tables alone"))
                .hint("--table-format=tph writes such tables; without it, the column family keeps its kind"));
        }
    }
    if let Some(files) = args.piece_limit {
        options.cf.tph.set_piece_limit(files);
    }
    if let Some(percent) = args.garbage_percent {
        options.cf.tph.set_garbage_percent(percent);
    }
    Ok(())
}

/// Options of a table that does not belong to a database yet.
pub fn table_options(args: &WriteArgs, family: Option<&str>) -> Result<Options> {
    let stored = match &args.stored.options_file {
        Some(_) => stored_options(Path::new(""), &args.stored)?,
        None => Stored::none(),
    };
    let mut options = stored.family(family.unwrap_or(DEFAULT_COLUMN_FAMILY_NAME));
    set_family_options(&mut options, args)?;
    options.set_use_direct_io_for_flush_and_compaction(args.direct);
    with_named(&options, &args.stored)
}

/// The descriptor to open this column family: `options` with its comparator and number of levels.
fn descriptor(mut options: Options, family: &DbSummary) -> Result<ColumnFamilyDescriptor> {
    let Some(comparator) = comparator_named(&family.comparator) else {
        return Err(refuse(
            "NotSupported",
            format!("column family {:?} is ordered by comparator {:?}", family.name, family.comparator),
        )
        .hint(format!(
            "the command knows {BYTEWISE_NAME}, {REVERSE_BYTEWISE_NAME} and {HASH_RANGE_NAME}; open it from a program"
        )));
    };
    options.set_comparator_object(comparator);
    options.set_num_levels(i32::try_from(family.levels).unwrap_or(i32::MAX).max(options.cf.num_levels));
    // The time to live counts only in an opening that has one.
    Ok(ColumnFamilyDescriptor::new_with_ttl(family.name.as_str(), options, ColumnFamilyTtl::SameAsDb))
}

pub fn unknown_family(name: &str, known: &[DbSummary]) -> CliError {
    let names: Vec<&str> = known.iter().map(|f| f.name.as_str()).collect();
    CliError::usage(format!("column family {name:?} does not exist")).hint(format!("there are: {}", names.join(", ")))
}

/// The column families of a database, which need not be open.
pub fn families(path: &Path) -> Result<Vec<DbSummary>> {
    check_is_database(path)?;
    Ok(Db::summary(&Options::default(), path)?)
}

/// Opens a database for reading; `family` and the default column family, or all.
pub fn open_to_read(path: &Path, args: &ReadArgs, shape: Option<ShapeArgs>, family: Option<&str>) -> Result<Db> {
    let found = families(path)?;
    if let Some(name) = family
        && !found.iter().any(|f| f.name == name)
    {
        return Err(unknown_family(name, &found));
    }
    let stored = match stored_options(path, &args.stored) {
        // Reading works without the stored options, unless a file was given explicitly.
        Err(e) if args.stored.options_file.is_none() => {
            output::tell(&format!("note: the stored options are not used: {e}"));
            Stored::none()
        }
        stored => stored?,
    };
    let cache = new_cache(args.cache_size)?;
    let options_of = |name: &str| -> Result<Options> {
        let mut options = with_named(&stored.family(name), &args.stored)?;
        set_read_options(&mut options, args, &cache);
        if let Some(shape) = shape {
            set_shape(&mut options, shape)?;
        }
        Ok(options)
    };
    let options = options_of(DEFAULT_COLUMN_FAMILY_NAME)?;
    check_paths(&options, path, &args.stored, false)?;
    check_wals_are_found(&options, path, &args.stored)?;
    let wanted = |f: &&DbSummary| f.id == 0 || family.is_none_or(|name| f.name == name);
    let descriptors: Vec<_> =
        found.iter().filter(wanted).map(|f| descriptor(options_of(&f.name)?, f)).collect::<Result<_>>()?;
    Ok(match args.stored.ttl {
        None => Db::open_cf_descriptors_read_only(&options, path, descriptors, false)?,
        Some(_) => Db::open_cf_descriptors_with_ttl_read_only(&options, path, descriptors, false)?,
    })
}

/// How to open a database for writing.
pub struct OpenToWrite<'a> {
    /// Its directory.
    pub path: &'a Path,
    /// Options of the command line.
    pub args: &'a WriteArgs,
    /// Create it, and `family`, if missing.
    pub create: bool,
    /// Column family that the command is about.
    pub family: Option<&'a str>,
    /// Another file system than the system's.
    pub fs: Option<Arc<dyn FileSystem>>,
}

/// In what manner [`OpenToWrite::open_as`] opens.
#[derive(Clone, Copy, Default)]
pub struct Manner {
    /// Open read-only: the options apply only to this command, and are not stored.
    pub read_only: bool,
    /// Write the same bytes as another run on a copy of the database.
    pub reproducible: bool,
    /// Make all column families write block-based tables from now on.
    pub block_based: bool,
    /// The command is about all column families: the command line's options apply to each of them.
    pub all_families: bool,
}

impl OpenToWrite<'_> {
    /// Opens the database with all its column families. Also returns the one that the command is about.
    pub fn open(self) -> Result<(Db, ColumnFamily)> {
        self.open_as(Manner::default())
    }

    /// The same in some manner.
    pub fn open_as(self, manner: Manner) -> Result<(Db, ColumnFamily)> {
        let name = self.family.unwrap_or(DEFAULT_COLUMN_FAMILY_NAME);
        let new = self.create && must_create(self.path)?;
        let found = if new { Vec::new() } else { families(self.path)? };
        if !self.create && !found.iter().any(|f| f.name == name) {
            return Err(unknown_family(name, &found));
        }
        // Without a database, there are no stored options; but a file may be given.
        let stored = match (new, &self.args.stored.options_file) {
            (true, None) => Stored::none(),
            _ => stored_options(self.path, &self.args.stored)?,
        };
        let bytes = self.args.cache_size.unwrap_or(CACHE_BYTES);
        let cache = new_cache(bytes)?;
        // The command line's column family options apply to the one that the command is about.
        let options_of = |family: &str| -> Result<Options> {
            let mut options = stored.family(family);
            if family == name || manner.all_families {
                set_family_options(&mut options, self.args)?;
                options = with_named(&options, &self.args.stored)?;
            }
            set_cache(&mut options.cf.table, bytes, &cache);
            if manner.block_based {
                options.cf.table_factory = TableKind::BlockBased;
            }
            Ok(options)
        };
        let own = options_of(name)?;
        let mut options = options_of(DEFAULT_COLUMN_FAMILY_NAME)?;
        options.db = own.db.clone();
        set_db_options(&mut options, self.args, new);
        offload::set_workers(&mut options, &self.args.offload)?;
        // Named flags are applied first; options set by RocksDB's names override them.
        options.db = with_named(&options, &self.args.stored)?.db;
        check_paths(&options, self.path, &self.args.stored, !manner.read_only)?;
        if !new {
            check_wals_are_found(&options, self.path, &self.args.stored)?;
        }
        options.create_if_missing(new);
        options.set_error_if_exists(false);
        options.set_reproducible(manner.reproducible);
        if let Some(fs) = self.fs {
            options.set_file_system(fs);
        }
        let ttl = self.args.stored.ttl.map(Duration::from_secs);
        let db = if new {
            match ttl {
                None => Db::open(&options, self.path),
                Some(ttl) => Db::open_with_ttl(&options, self.path, ttl),
            }
            .map_err(explain_lock)?
        } else {
            let descriptors: Vec<_> =
                found.iter().map(|f| descriptor(options_of(&f.name)?, f)).collect::<Result<_>>()?;
            match (manner.read_only, ttl) {
                (true, None) => Db::open_cf_descriptors_read_only(&options, self.path, descriptors, false)?,
                (true, Some(_)) => Db::open_cf_descriptors_with_ttl_read_only(&options, self.path, descriptors, false)?,
                (false, None) => Db::open_cf_descriptors(&options, self.path, descriptors).map_err(explain_lock)?,
                (false, Some(ttl)) => {
                    Db::open_cf_descriptors_with_ttl(&options, self.path, descriptors, ttl).map_err(explain_lock)?
                }
            }
        };
        let family = match db.cf_handle(name) {
            Some(family) => family,
            None => create_cf(&db, name, &own, &self.args.stored)?,
        };
        Ok((db, family))
    }
}

/// Creates a column family, with the time to live that the database was opened with.
pub fn create_cf(db: &Db, name: &str, options: &Options, stored: &StoredArgs) -> Result<ColumnFamily> {
    Ok(match stored.ttl {
        None => db.create_cf(name, options)?,
        Some(seconds) => db.create_cf_with_ttl(name, options, Duration::from_secs(seconds))?,
    })
}

/// Explains what to do about a locked database.
pub fn explain_lock(e: rockmill::Error) -> CliError {
    let locked = e.message().contains("cannot lock") && e.message().contains("open elsewhere");
    let mut e = CliError::from(e);
    if locked {
        e.kind = "Busy".into();
        e.hint = Some("close the other process, or use get, scan, stats or verify, which need no lock".into());
    }
    e
}

/// The handles of all column families of an open database.
pub fn all_families(db: &Db) -> Vec<ColumnFamily> {
    db.cf_names().iter().filter_map(|name| db.cf_handle(name)).collect()
}

/// The handle of the column family that the command is about, in a database opened for reading.
pub fn family(db: &Db, name: Option<&str>) -> Result<ColumnFamily> {
    let name = name.unwrap_or(DEFAULT_COLUMN_FAMILY_NAME);
    db.cf_handle(name).ok_or_else(|| CliError::usage(format!("column family {name:?} does not exist")))
}

/// The store's write options.
pub fn durability(args: DurabilityArgs) -> Result<rockmill::WriteOptions> {
    if args.sync && args.wal == Switch::Off {
        return Err(CliError::usage("--sync needs the write-ahead log; omit --wal=off"));
    }
    let mut options = rockmill::WriteOptions::default();
    options.set_sync(args.sync);
    options.disable_wal(args.wal == Switch::Off);
    Ok(options)
}
