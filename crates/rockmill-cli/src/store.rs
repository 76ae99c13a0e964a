//! Opens a database the way it needs to be opened: with all its column families, in the order it was written in, and
//! with as many levels as it has.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rockmill::compaction::MergeEngine;
use rockmill::table::BlockCache;
use rockmill::{
    BlockBasedOptions, ChecksumType, ColumnFamily, ColumnFamilyDescriptor, CompressionType, DEFAULT_COLUMN_FAMILY_NAME,
    Db, DbSummary, Options,
};
use rockmill_format::comparator::{
    BYTEWISE_NAME, BytewiseComparator, Comparator, REVERSE_BYTEWISE_NAME, ReverseBytewiseComparator,
};
use rockmill_format::filename::{self, FileType};
use rockmill_io::FileSystem;

use crate::args::{ChecksumArg, CompressionArg, DurabilityArgs, EngineArg, ReadArgs, ShapeArgs, Switch, WriteArgs};
use crate::error::{CliError, EXIT_FAILED, Result};
use crate::output;

/// Levels of a new tree; an existing one may have more.
const NUM_LEVELS: u32 = 7;

/// The comparator with this stored name; databases with others cannot be opened, since their order is not known.
pub fn comparator_named(name: &str) -> Option<Arc<dyn Comparator>> {
    match name {
        BYTEWISE_NAME => Some(Arc::new(BytewiseComparator)),
        REVERSE_BYTEWISE_NAME => Some(Arc::new(ReverseBytewiseComparator)),
        _ => None,
    }
}

fn refuse(kind: &str, message: String) -> CliError {
    CliError { kind: kind.into(), message, hint: None, code: EXIT_FAILED, broken_pipe: false }
}

/// Refuses a path that is no database, in words that say what it is instead.
pub fn check_is_database(path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            refuse("NotFound", format!("{shown}: no such directory")).hint("`rockmill load DB FILE` creates a database")
        }
        _ => CliError::io(&shown, &e),
    })?;
    if !meta.is_dir() {
        return Err(refuse("InvalidArgument", format!("{shown}: is a file; a database is a directory"))
            .hint("`rockmill dump FILE` shows a single table, WAL or MANIFEST"));
    }
    match std::fs::metadata(path.join(filename::CURRENT)) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(refuse("InvalidArgument", format!("{shown}: is no database (it has no file CURRENT)"))
                .hint("`rockmill load DB FILE` creates a database in a new or empty directory"))
        }
        Err(e) => Err(CliError::io(path.join(filename::CURRENT).display(), &e)),
    }
}

/// Says whether a database must be created at `path`, and refuses to create one among files that are not its own or
/// over what may be left of an old one.
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
            .hint("give a new or an empty directory, or repair the database there"));
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
            .hint("two digits for each byte, for example 00ff; leave --hex out to give it as text")
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

/// A size that must fit the machine.
fn usize_of(flag: &str, bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| CliError::usage(format!("--{flag} {bytes} is too large for this machine")))
}

fn set_cache(table: &mut BlockBasedOptions, bytes: usize) {
    if bytes == 0 {
        table.disable_cache();
    } else {
        table.set_block_cache(&BlockCache::new(bytes));
    }
}

fn read_options(args: &ReadArgs, shape: Option<ShapeArgs>) -> Result<Options> {
    let mut options = Options::default();
    options.set_use_direct_reads(args.direct);
    let mut table = BlockBasedOptions::default();
    set_cache(&mut table, usize_of("cache-size", args.cache_size)?);
    options.set_block_based_table_factory(&table);
    if let Some(shape) = shape {
        set_shape(&mut options, shape)?;
    }
    Ok(options)
}

fn set_shape(options: &mut Options, shape: ShapeArgs) -> Result<()> {
    if shape.level_base_size == 0 {
        return Err(CliError::usage("--level-base-size must not be 0"));
    }
    if shape.level_multiplier.is_nan() || shape.level_multiplier <= 1.0 {
        return Err(CliError::usage("--level-multiplier must be above 1"));
    }
    options.set_max_bytes_for_level_base(shape.level_base_size);
    options.set_max_bytes_for_level_multiplier(shape.level_multiplier);
    Ok(())
}

fn write_options(args: &WriteArgs) -> Result<Options> {
    if !(0.0..=100.0).contains(&args.bloom_bits) {
        return Err(CliError::usage("--bloom-bits must be between 0 and 100"));
    }
    if args.write_buffer_size < 4096 {
        return Err(CliError::usage("--write-buffer-size must be at least 4K"));
    }
    if args.block_size == 0 || args.block_size > 256 << 20 {
        return Err(CliError::usage("--block-size must be between 1 byte and 256M"));
    }
    if args.target_file_size == 0 {
        return Err(CliError::usage("--target-file-size must not be 0"));
    }
    let mut options = Options::default();
    set_shape(
        &mut options,
        ShapeArgs { level_base_size: args.level_base_size, level_multiplier: args.level_multiplier },
    )?;
    options.set_compression_type(compression(args.compression));
    if let Some(level) = args.compression_level {
        options.set_compression_level(level);
    }
    if let Some(c) = args.bottommost_compression {
        options.set_bottommost_compression_type(compression(c));
    }
    options.set_write_buffer_size(usize_of("write-buffer-size", args.write_buffer_size)?);
    options.set_max_write_buffer_number(args.write_buffers);
    options.set_target_file_size_base(args.target_file_size);
    options.set_level_zero_file_num_compaction_trigger(args.l0_trigger);
    // RocksDB's slowdown and stop triggers stand at 20 and 36; a larger compaction trigger moves them along.
    options.set_level_zero_slowdown_writes_trigger(args.l0_trigger.saturating_mul(2).max(20));
    options.set_level_zero_stop_writes_trigger(args.l0_trigger.saturating_mul(3).max(36));
    options.increase_parallelism(args.threads);
    options.set_max_subcompactions(args.threads.unsigned_abs().max(1));
    options.set_merge_engine(match args.engine {
        EngineArg::Auto => MergeEngine::Auto,
        EngineArg::Pread => MergeEngine::Pread,
    });
    options.set_use_direct_reads(args.direct);
    options.set_use_direct_io_for_flush_and_compaction(args.direct);
    let mut table = BlockBasedOptions::default();
    table.set_block_size(usize_of("block-size", args.block_size)?);
    table.set_format_version(args.format_version);
    table.set_checksum_type(match args.checksum {
        ChecksumArg::Crc32c => ChecksumType::Crc32c,
        ChecksumArg::Xxhash64 => ChecksumType::XxHash64,
        ChecksumArg::Xxh3 => ChecksumType::Xxh3,
    });
    table.set_bloom_filter(args.bloom_bits, false);
    set_cache(&mut table, usize_of("cache-size", args.cache_size)?);
    options.set_block_based_table_factory(&table);
    Ok(options)
}

/// What opens this column family: `options` with its order and depth.
fn descriptor(options: &Options, family: &DbSummary) -> Result<ColumnFamilyDescriptor> {
    let Some(comparator) = comparator_named(&family.comparator) else {
        return Err(refuse(
            "NotSupported",
            format!("column family {:?} is ordered by comparator {:?}", family.name, family.comparator),
        )
        .hint(format!("the command knows {BYTEWISE_NAME} and {REVERSE_BYTEWISE_NAME}; open it from a program")));
    };
    let mut options = options.clone();
    options.set_comparator_object(comparator);
    options.set_num_levels(i32::try_from(family.levels.max(NUM_LEVELS)).unwrap_or(i32::MAX));
    Ok(ColumnFamilyDescriptor::new(family.name.as_str(), options))
}

fn unknown_family(name: &str, known: &[DbSummary]) -> CliError {
    let names: Vec<&str> = known.iter().map(|f| f.name.as_str()).collect();
    CliError::usage(format!("column family {name:?} does not exist")).hint(format!("there are: {}", names.join(", ")))
}

/// The column families of a database that need not be open.
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
    let options = read_options(args, shape)?;
    let wanted = |f: &&DbSummary| f.id == 0 || family.is_none_or(|name| f.name == name);
    let descriptors: Vec<_> = found.iter().filter(wanted).map(|f| descriptor(&options, f)).collect::<Result<_>>()?;
    Ok(Db::open_cf_descriptors_read_only(&options, path, descriptors, false)?)
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

impl OpenToWrite<'_> {
    /// Opens the database with all its column families. Gives also the one the command is about.
    pub fn open(self) -> Result<(Db, ColumnFamily)> {
        let mut options = write_options(self.args)?;
        if let Some(fs) = self.fs {
            options.set_file_system(fs);
        }
        let name = self.family.unwrap_or(DEFAULT_COLUMN_FAMILY_NAME);
        let db = if self.create && must_create(self.path)? {
            options.create_if_missing(true);
            Db::open(&options, self.path).map_err(explain_lock)?
        } else {
            let found = families(self.path)?;
            if !self.create && !found.iter().any(|f| f.name == name) {
                return Err(unknown_family(name, &found));
            }
            let descriptors: Vec<_> = found.iter().map(|f| descriptor(&options, f)).collect::<Result<_>>()?;
            Db::open_cf_descriptors(&options, self.path, descriptors).map_err(explain_lock)?
        };
        let family = match db.cf_handle(name) {
            Some(family) => family,
            None => db.create_cf(name, &options)?,
        };
        Ok((db, family))
    }
}

/// Says what to do about a locked database.
fn explain_lock(e: rockmill::Error) -> CliError {
    let locked = e.message().contains("cannot lock") && e.message().contains("open elsewhere");
    let mut e = CliError::from(e);
    if locked {
        e.kind = "Busy".into();
        e.hint = Some("close the other process, or use get, scan, stats or verify, which need no lock".into());
    }
    e
}

/// The handle of the column family that the command is about, in a database opened for reading.
pub fn family(db: &Db, name: Option<&str>) -> Result<ColumnFamily> {
    let name = name.unwrap_or(DEFAULT_COLUMN_FAMILY_NAME);
    db.cf_handle(name).ok_or_else(|| CliError::usage(format!("column family {name:?} does not exist")))
}

/// The store's write options.
pub fn durability(args: DurabilityArgs) -> Result<rockmill::WriteOptions> {
    if args.sync && args.wal == Switch::Off {
        return Err(CliError::usage("--sync needs the write-ahead log; leave --wal=off out"));
    }
    let mut options = rockmill::WriteOptions::default();
    options.set_sync(args.sync);
    options.disable_wal(args.wal == Switch::Off);
    Ok(options)
}
