//! Options that an open refuses, and options that an open adjusts.
//!
//! What is changed and what is refused follows RocksDB (`SanitizeOptions`, `SanitizeCfOptions`, `InitializeOptions` and
//! `ValidateOptions` of block-based tables). A change is a line in the info log. Differences:
//! docs/rocksdb-differences.md, "Options that are adjusted".

use std::fmt::Display;

use rockmill_format::comparator::{BuiltinOrder, HASH_RANGE_NAME};
use rockmill_format::log::RecoveryMode;

use crate::error::{Error, Result};
use crate::info_log::{InfoLog, log_warn};
use crate::memtable::BLOCK_SIZE_MIN;
use crate::options::declare::TextOption;
use crate::options::known::Notes;
use crate::options::{
    BlockBasedIndexType, BlockBasedOptions, CfOptions, CompactionStyle, DataBlockIndexType, DbOptions, Options,
    TphTableOptions, parse, paths,
};

/// Levels that a tree can have.
pub(crate) const LEVELS_MAX: usize = 64;

/// Smallest memtable. RocksDB's is 64 KiB.
const WRITE_BUFFER_MIN: i128 = 4 << 10;

/// Largest memtable.
const WRITE_BUFFER_MAX: i128 = 64 << 30;

/// RocksDB's minimum for `max_open_files`; here it replaces numbers that make no sense.
const OPEN_FILES_MIN: i128 = 20;

/// `delayed_write_rate` if no option sets another.
const DELAYED_WRITE_RATE: u64 = 16 << 20;

/// `bytes_per_sync` with a rate limiter: without it, the writes that the limiter spreads out would reach the disk all
/// at once.
const LIMITED_BYTES_PER_SYNC: u64 = 1 << 20;

/// The oldest table version that is written.
const FORMAT_VERSION_MIN: i128 = 5;
const OLD_VERSIONS: &str = "older ones are read and not written; RocksDB reads it from 6.6 on";

/// The most threads of one kind, whatever an option says: more than a machine has cores, and few enough to start.
const THREADS_MAX: i128 = 1024;

/// The most bytes of one buffer.
const BUFFER_MAX: i128 = 256 << 20;

/// The most bits per key of a Bloom filter.
const BLOOM_BITS_MAX: f64 = 100.0;

/// The values that one option may have, and what happens to others.
struct Range {
    /// RocksDB's name; a dot leads into a struct.
    name: &'static str,
    least: i128,
    most: i128,
    outside: Outside,
    why: &'static str,
}

/// What happens to a value outside of its range.
#[derive(Clone, Copy)]
enum Outside {
    /// The nearest value in the range, and a line in the info log.
    Nearest,
    /// This value, and a line in the info log.
    Is(i128),
    /// The open, or the change, is refused.
    Refused,
}
use Outside::{Is, Nearest, Refused};

const fn range(name: &'static str, least: i128, most: i128, outside: Outside, why: &'static str) -> Range {
    Range { name, least, most, outside, why }
}

/// More, and less, than any integer option can be.
const ANY: i128 = i128::MAX;
const NONE: i128 = i128::MIN;

/// Every option of the database whose type allows values that make no sense. The functions below check rules that
/// involve several options.
const DB_RANGES: &[Range] = &[
    range("max_open_files", -1, ANY, Is(OPEN_FILES_MIN), "-1 is no limit, and others are at least 0"),
    range("max_background_jobs", 1, THREADS_MAX, Nearest, "there is at least one, and each has a thread"),
    range("max_subcompactions", 1, THREADS_MAX, Nearest, "a compaction has a thread, and so has each part"),
    range("compaction_helper_threads", -1, THREADS_MAX, Nearest, "-1 is idle cores"),
    range("writable_file_max_buffer_size", 0, BUFFER_MAX, Nearest, "each file that is written has such a buffer"),
    range("compaction_readahead_size", 0, BUFFER_MAX, Nearest, "each input of a compaction has such a buffer"),
    range("compaction_io_memory", 0, 64 << 30, Nearest, "each part of a compaction takes so much"),
    range("max_index_size", WRITE_BUFFER_MIN, WRITE_BUFFER_MAX, Nearest, "it is between 4 KiB and 64 GiB"),
    range("keep_log_file_num", 1, ANY, Refused, "the present file is one"),
];

/// The fewest bytes of WALs with values.
pub(crate) const FAST_CAPACITY_MIN: u64 = 64 << 10;

/// The same for column families.
const CF_RANGES: &[Range] = &[
    range("num_levels", NONE, LEVELS_MAX as i128, Refused, "a tree has so many levels at most"),
    range("write_buffer_size", WRITE_BUFFER_MIN, WRITE_BUFFER_MAX, Nearest, "it is between 4 KiB and 64 GiB"),
    range("max_write_buffer_number", 2, ANY, Nearest, "one is written to while one is flushed"),
    range("level0_file_num_compaction_trigger", 1, ANY, Nearest, "a compaction has an input"),
    range("target_file_size_base", 1, ANY, Nearest, "a table has an entry"),
    range("target_file_size_multiplier", 1, ANY, Nearest, "deeper tables are not smaller"),
    range("max_bytes_for_level_base", 1, ANY, Nearest, "a level is compacted when it is larger"),
    range("compression_opts.parallel_threads", 0, THREADS_MAX, Nearest, "a table is compressed by so many"),
    range("bottommost_compression_opts.parallel_threads", 0, THREADS_MAX, Nearest, "a table is compressed by so many"),
    range("compression_opts.max_dict_bytes", 0, BUFFER_MAX, Nearest, "a table is held in memory for it"),
    range("bottommost_compression_opts.max_dict_bytes", 0, BUFFER_MAX, Nearest, "a table is held in memory for it"),
    range("compression_opts.zstd_max_train_bytes", 0, BUFFER_MAX, Nearest, "a table is held in memory for it"),
    range(
        "bottommost_compression_opts.zstd_max_train_bytes",
        0,
        BUFFER_MAX,
        Nearest,
        "a table is held in memory for it",
    ),
];

/// The same for tables.
const TABLE_RANGES: &[Range] = &[
    range("block_size", 1, ANY, Nearest, "a block has an entry"),
    range("block_size", NONE, u32::MAX as i128, Refused, "a block is below 4 GiB"),
    range("block_size_deviation", 0, 100, Is(0), "it is a percentage"),
    range("block_restart_interval", 1, ANY, Nearest, "a restart point has an entry"),
    range("index_block_restart_interval", 1, ANY, Nearest, "a restart point has an entry"),
    range("metadata_block_size", 1, u32::MAX as i128, Nearest, "a partition has an entry"),
    range("format_version", FORMAT_VERSION_MIN, ANY, Nearest, OLD_VERSIONS),
    range("format_version", NONE, 7, Refused, "there is no later one"),
];

/// The same for TPH tables.
const TPH_RANGES: &[Range] = &[
    range("piece_limit", 1, 1024, Nearest, "a table is at least one file, and each is one to keep open"),
    range("garbage_percent", 0, 1000, Nearest, "above, nearly all of a table would be garbage"),
];

impl Range {
    /// The option's value, if it is outside of its range.
    fn broken<O>(&self, o: &O, all: &[TextOption<O>]) -> Option<i128> {
        let (outer, inner) = self.name.split_once('.').unwrap_or((self.name, ""));
        let text = all.iter().find(|option| option.name == outer).and_then(|option| (option.write)(o))?;
        let text = match inner {
            "" => text,
            // An option that is not in the text is at RocksDB's default.
            _ => parse::pairs(&text).ok()?.into_iter().find(|(name, _)| name == inner)?.1,
        };
        text.parse().ok().filter(|n| !(self.least..=self.most).contains(n))
    }

    fn set<O>(&self, o: &mut O, all: &[TextOption<O>], value: i128) {
        let (outer, text) = match self.name.split_once('.') {
            Some((outer, inner)) => (outer, format!("{{{inner}={value}}}")),
            None => (self.name, value.to_string()),
        };
        if let Some(option) = all.iter().find(|option| option.name == outer) {
            (option.read)(o, &text, &mut Notes::default());
        }
    }
}

/// Every range, by the option's name, in words: for the page of options.
#[cfg(test)]
pub(crate) fn ranges() -> impl Iterator<Item = (&'static str, String)> {
    let words = |r: &Range| {
        let (least, most) = (r.least != NONE, r.most != ANY);
        let bounds = match (least, most) {
            (true, true) => format!("{} to {}", r.least, r.most),
            (true, false) => format!("at least {}", r.least),
            _ => format!("at most {}", r.most),
        };
        let otherwise = match r.outside {
            Refused => ", others are refused".to_owned(),
            Is(value) => format!(", others are taken for {value}"),
            Nearest => String::new(),
        };
        (r.name, bounds + &otherwise)
    };
    [DB_RANGES, CF_RANGES, TABLE_RANGES, TPH_RANGES].into_iter().flatten().map(words)
}

/// Brings options into their ranges.
fn adjust_ranges<O>(of: &str, o: &mut O, all: &[TextOption<O>], ranges: &[Range], adjusted: &mut Adjusted) {
    for range in ranges {
        let Some(given) = range.broken(o, all) else { continue };
        let value = match range.outside {
            Refused => continue,
            Is(value) => value,
            Nearest => given.clamp(range.least, range.most),
        };
        range.set(o, all, value);
        adjusted.0.push(format!("{of}{} is {given}, and is taken for {value}: {}", range.name, range.why));
    }
}

/// Refuses options that are outside of their ranges.
fn check_ranges<O>(of: &str, o: &O, all: &[TextOption<O>], ranges: &[Range]) -> Result<()> {
    for range in ranges.iter().filter(|r| matches!(r.outside, Refused)) {
        if let Some(given) = range.broken(o, all) {
            let Range { name, least, most, why, .. } = range;
            let bound = if given < *least { format!("at least {least}") } else { format!("at most {most}") };
            return Err(Error::invalid_argument(format!("{of}{name} must be {bound}, and is {given}: {why}")));
        }
    }
    Ok(())
}

/// What was changed, a line for each option.
#[derive(Debug, Default)]
pub(crate) struct Adjusted(Vec<String>);

impl Adjusted {
    fn set<T: Copy + PartialEq + Display>(&mut self, of: &str, name: &str, option: &mut T, value: T, why: &str) {
        if *option != value {
            self.0.push(format!("{of}{name} is {option}, and is taken for {value}: {why}"));
            *option = value;
        }
    }

    /// Writes them to the info log.
    pub fn log(&self, log: &InfoLog) {
        for line in &self.0 {
            log_warn!(log, "{line}");
        }
    }
}

/// Adjusts the options of a database that is being opened to values that it can work with.
pub(crate) fn adjust_db_options(o: &mut DbOptions, adjusted: &mut Adjusted) {
    adjust_changed_db_options(o, adjusted);
    if o.bytes_per_sync == 0 && o.rate_limiter.is_some() {
        let why = "with a rate limiter the disk is to be written to evenly";
        adjusted.set("", "bytes_per_sync", &mut o.bytes_per_sync, LIMITED_BYTES_PER_SYNC, why);
    }
    if !o.fast_path.as_os_str().is_empty() {
        o.wal_dir.clone_from(&o.fast_path);
    }
    if o.keeps_values_in_logs() && o.fast_capacity < FAST_CAPACITY_MIN {
        let why = "with less, each write would be a flush";
        adjusted.set("", "fast_capacity", &mut o.fast_capacity, FAST_CAPACITY_MIN, why);
    }
    let mode = o.wal_recovery_mode;
    let why = match mode {
        _ if o.keeps_values_in_logs() => Some("values are read from WALs".to_owned()),
        _ if o.WAL_ttl_seconds > 0 || o.WAL_size_limit_MB > 0 => Some("obsolete WALs are archived".to_owned()),
        // After the end of a WAL in a reused file comes what the file held before. These two modes treat damage in the
        // middle as an error, and such old contents look the same.
        RecoveryMode::TolerateCorruptedTailRecords | RecoveryMode::AbsoluteConsistency => {
            Some(format!("wal_recovery_mode {mode:?} cannot tell the end of a WAL in a file that is used again"))
        }
        RecoveryMode::PointInTime | RecoveryMode::SkipAnyCorruptedRecords => None,
    };
    if let Some(why) = why {
        adjusted.set("", "recycle_log_file_num", &mut o.recycle_log_file_num, 0, &why);
    }
}

/// The same for options that are changed while the database is open.
pub(crate) fn adjust_changed_db_options(o: &mut DbOptions, adjusted: &mut Adjusted) {
    adjust_ranges("", o, DbOptions::TEXT, DB_RANGES, adjusted);
    if o.delayed_write_rate == 0 {
        let limit = o.rate_limiter.as_ref().and_then(|l| u64::try_from(l.bytes_per_second()).ok());
        let rate = limit.filter(|&rate| rate > 0).unwrap_or(DELAYED_WRITE_RATE);
        adjusted.set("", "delayed_write_rate", &mut o.delayed_write_rate, rate, "0 leaves it to the store");
    }
}

/// Refuses options of the database that contradict one another or cannot work.
pub(crate) fn check_db_options(o: &DbOptions) -> Result<()> {
    check_ranges("", o, DbOptions::TEXT, DB_RANGES)?;
    if o.use_direct_io_for_flush_and_compaction && o.writable_file_max_buffer_size == 0 {
        return Err(Error::invalid_argument(
            "use_direct_io_for_flush_and_compaction needs writable_file_max_buffer_size above 0",
        ));
    }
    paths::check("db_paths", &o.db_paths)?;
    if let Some(limiter) = &o.rate_limiter {
        limiter.check()?;
    }
    if !o.fast_path.as_os_str().is_empty() {
        if !o.keeps_values_in_logs() {
            return Err(Error::invalid_argument("fast_path needs a fast_capacity above 0"));
        }
        if !o.wal_dir.as_os_str().is_empty() && o.wal_dir != o.fast_path {
            return Err(Error::invalid_argument(format!(
                "WALs are in the fast_path {}: leave wal_dir empty, which is {}",
                o.fast_path.display(),
                o.wal_dir.display()
            )));
        }
    }
    Ok(())
}

/// Adjusts options of tables to values that work. Each line begins with `of`.
fn adjust_table_options(of: &str, o: &mut CfOptions, adjusted: &mut Adjusted) {
    adjust_ranges(of, &mut o.tph, TphTableOptions::TEXT, TPH_RANGES, adjusted);
    let t = &mut o.table;
    adjust_ranges(of, t, BlockBasedOptions::TEXT, TABLE_RANGES, adjusted);
    if t.partition_filters && t.index_type != BlockBasedIndexType::TwoLevelIndexSearch {
        let why = "it needs the index type kTwoLevelIndexSearch";
        adjusted.set(of, "partition_filters", &mut t.partition_filters, false, why);
    }
    // RocksDB's bounds. NaN is refused.
    let bits = t.bloom_bits_per_key.clamp(0.0, BLOOM_BITS_MAX);
    if !t.bloom_bits_per_key.is_nan() {
        adjusted.set(of, "filter_policy", &mut t.bloom_bits_per_key, bits, "a key has 0 to 100 bits");
    }
}

/// Adjusts options of a column family that is opened or created to values that work, and refuses what cannot work.
pub(crate) fn take_cf_options(name: &str, o: &mut CfOptions, db: &DbOptions, adjusted: &mut Adjusted) -> Result<()> {
    if o.cf_paths.is_empty() {
        o.cf_paths.clone_from(&db.db_paths);
    }
    take_changed_cf_options(name, o, db, adjusted)?;
    let of = format!("column family {name:?}: ");
    if o.cf_paths.len() > 1 && o.compaction_style == CompactionStyle::Level && o.level_compaction_dynamic_level_bytes {
        o.level_compaction_dynamic_level_bytes = false;
        let why = "with several paths the levels above say where a level has room";
        adjusted.0.push(format!("{of}level_compaction_dynamic_level_bytes is taken for false: {why}"));
    }
    let mut set = |name: &str, option: &mut i32, value, why: &str| adjusted.set(&of, name, option, value, why);
    // FIFO compaction has one level, and does not slow writers for its tables.
    if o.compaction_style != CompactionStyle::Fifo {
        let (trigger, slow) = (o.level0_file_num_compaction_trigger, o.level0_slowdown_writes_trigger);
        let why = "it must not be below level0_file_num_compaction_trigger";
        set("level0_slowdown_writes_trigger", &mut o.level0_slowdown_writes_trigger, slow.max(trigger), why);
        let (slow, stop) = (o.level0_slowdown_writes_trigger, o.level0_stop_writes_trigger);
        let why = "it must not be below level0_slowdown_writes_trigger";
        set("level0_stop_writes_trigger", &mut o.level0_stop_writes_trigger, stop.max(slow), why);
    }
    let (soft, hard) = (o.soft_pending_compaction_bytes_limit, o.hard_pending_compaction_bytes_limit);
    if soft == 0 || (hard > 0 && soft > hard) {
        let why = "it is at most hard_pending_compaction_bytes_limit, and that where it is 0";
        adjusted.set(&of, "soft_pending_compaction_bytes_limit", &mut o.soft_pending_compaction_bytes_limit, hard, why);
    }
    let levels = o.num_levels.max(levels_of_style(o, db));
    adjusted.set(&of, "num_levels", &mut o.num_levels, levels, "the compaction style needs as many");
    Ok(())
}

/// Refuses a compaction style that needs more levels than an open column family has: L0 alone cannot be compacted into
/// another level, and would be rewritten for ever.
pub(crate) fn check_style_of_open(o: &CfOptions, db: &DbOptions) -> Result<()> {
    let (has, needs) = (o.num_levels, levels_of_style(o, db));
    if has >= needs {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "compaction_style {:?}{} needs num_levels of at least {needs}, and the column family has {has}: open with more",
        o.compaction_style,
        if o.compaction_classic { " with compaction_classic" } else { "" }
    )))
}

/// The levels that a compaction style needs.
fn levels_of_style(o: &CfOptions, db: &DbOptions) -> i32 {
    match o.compaction_style {
        CompactionStyle::Fifo => 1,
        // One for L0, one for compactions, and one for files that are ingested behind (`allow_ingest_behind`).
        _ if db.allow_ingest_behind => 3,
        CompactionStyle::Level => 2,
        // Runs of L0 become one of a level below it.
        CompactionStyle::Universal if o.compaction_classic => 2,
        CompactionStyle::Universal => 1,
    }
}

/// The same for options that were changed while the column family is open. As in RocksDB, options that bound one
/// another are not adjusted: raising a trigger and putting it back leaves the others unchanged.
pub(crate) fn take_changed_cf_options(
    name: &str,
    o: &mut CfOptions,
    db: &DbOptions,
    adjusted: &mut Adjusted,
) -> Result<()> {
    let of = format!("column family {name:?}: ");
    adjust_table_options(&of, o, adjusted);
    check_cf_options(name, o)?;
    if o.compaction_style == CompactionStyle::Fifo && db.allow_ingest_behind {
        let what = "compaction_style kCompactionStyleFIFO does not go with allow_ingest_behind: it has one level";
        return Err(Error::invalid_argument(format!("{of}{what}")));
    }
    adjust_ranges(&of, o, CfOptions::TEXT, CF_RANGES, adjusted);
    let step = o.arena_block_size.min((o.write_buffer_size / 8).max(BLOCK_SIZE_MIN));
    let why = "a memtable grows by so much, and by no more than an eighth of write_buffer_size";
    adjusted.set(&of, "arena_block_size", &mut o.arena_block_size, step, why);
    let mut set = |name: &str, option: &mut i32, value, why: &str| adjusted.set(&of, name, option, value, why);
    let merged = match db.atomic_flush {
        true => 1,
        false => o.min_write_buffer_number_to_merge.min(o.max_write_buffer_number.saturating_sub(1)).max(1),
    };
    let why = if db.atomic_flush { "atomic_flush waits for none" } else { "it is below max_write_buffer_number" };
    set("min_write_buffer_number_to_merge", &mut o.min_write_buffer_number_to_merge, merged, why);
    let mut set = |name: &str, option: &mut f64, value, why: &str| adjusted.set(&of, name, option, value, why);
    let ratio = o.memtable_prefix_bloom_size_ratio.clamp(0.0, 0.25);
    let why = "it is between 0 and 0.25";
    set("memtable_prefix_bloom_size_ratio", &mut o.memtable_prefix_bloom_size_ratio, ratio, why);
    if o.max_bytes_for_level_multiplier <= 0.0 {
        set("max_bytes_for_level_multiplier", &mut o.max_bytes_for_level_multiplier, 1.0, "it is above 0");
    }
    Ok(())
}

/// Refuses options of a column family that contradict one another or cannot work.
pub(crate) fn check_cf_options(name: &str, o: &CfOptions) -> Result<()> {
    let bad = |what: &str| Err(Error::invalid_argument(format!("column family {name:?}: {what}")));
    let of = format!("column family {name:?}: ");
    check_ranges(&of, o, CfOptions::TEXT, CF_RANGES)?;
    check_ranges(&of, &o.table, BlockBasedOptions::TEXT, TABLE_RANGES)?;
    use crate::options::CompressionType::{Bzip2, Xpress};
    for (option, kinds) in [
        ("compression", std::slice::from_ref(&o.compression)),
        ("bottommost_compression", o.bottommost_compression.as_slice()),
        ("compression_per_level", &o.compression_per_level),
    ] {
        if let Some(c) = kinds.iter().find(|c| matches!(c, Bzip2 | Xpress)) {
            return bad(&format!("{option}: compression {c:?} is not supported"));
        }
    }
    for (opts, what) in
        [(&o.compression_opts, "compression_opts"), (&o.bottommost_compression_opts, "bottommost_compression_opts")]
    {
        if let Some(why) = opts.refused().filter(|_| what == "compression_opts" || opts.enabled) {
            return bad(&format!("{what}: {why}"));
        }
    }
    if o.compression_opts.zstd_max_train_bytes > 0 && o.compression_opts.max_dict_bytes == 0 {
        return bad("compression_opts: zstd_max_train_bytes needs max_dict_bytes above 0");
    }
    if let Some(extractor) = &o.prefix_extractor
        && o.comparator.builtin() == Some(BuiltinOrder::HashRange)
    {
        return bad(&format!(
            "prefix_extractor {} does not go with comparator {HASH_RANGE_NAME}: keys stand in the order of their \
             hashes, so those with one prefix do not stand together; take another comparator, or no extractor",
            extractor.name()
        ));
    }
    if let Some(why) = o.compaction_options_universal.refused(o) {
        return Err(Error::not_supported(format!("column family {name:?}: {why}")));
    }
    if o.compaction_downforce && o.compaction_style == CompactionStyle::Fifo {
        return bad(
            "compaction_downforce does not go with compaction_style kCompactionStyleFIFO, which merges nothing",
        );
    }
    if o.compaction_classic && o.compaction_style == CompactionStyle::Fifo {
        return bad("compaction_classic does not go with compaction_style kCompactionStyleFIFO, which merges nothing");
    }
    if o.compaction_classic && o.compaction_downforce {
        return bad(
            "compaction_classic does not go with compaction_downforce: in a classic strategy jobs wait for those that \
             DF-compaction overtakes; set one of them",
        );
    }
    paths::check(&format!("{of}cf_paths"), &o.cf_paths)?;
    if o.compaction_style == CompactionStyle::Fifo && o.cf_paths.len() > 1 {
        let what = "several cf_paths or db_paths do not go with compaction_style kCompactionStyleFIFO, which fills one";
        return Err(Error::not_supported(format!("{of}{what}")));
    }
    let t = &o.table;
    if t.no_block_cache {
        for (on, option) in [
            (t.cache_index_and_filter_blocks, "cache_index_and_filter_blocks"),
            (t.pin_l0_filter_and_index_blocks_in_cache, "pin_l0_filter_and_index_blocks_in_cache"),
        ] {
            if on {
                return bad(&format!("{option} needs a block cache, and no_block_cache is true"));
            }
        }
    }
    if t.data_block_index_type == DataBlockIndexType::BinaryAndHash && t.data_block_hash_table_util_ratio <= 0.0 {
        return bad("data_block_hash_table_util_ratio must be above 0 with kDataBlockBinaryAndHash");
    }
    for (option, value) in [
        ("memtable_prefix_bloom_size_ratio", o.memtable_prefix_bloom_size_ratio),
        ("max_bytes_for_level_multiplier", o.max_bytes_for_level_multiplier),
        ("data_block_hash_table_util_ratio", t.data_block_hash_table_util_ratio),
        ("filter_policy", t.bloom_bits_per_key),
    ] {
        if value.is_nan() {
            return bad(&format!("{option} is not a number"));
        }
    }
    Ok(())
}

/// The options that jobs take from a database, for options that no database was opened with.
pub(crate) fn job_db_options(o: &DbOptions) -> Result<DbOptions> {
    check_db_options(o)?;
    let mut taken = o.clone();
    adjust_changed_db_options(&mut taken, &mut Adjusted::default());
    Ok(taken)
}

/// The options that tables are written with, for options that no database was opened with.
pub(crate) fn table_writer_options(o: &Options) -> Result<(DbOptions, CfOptions)> {
    let (db, mut cf) = (job_db_options(&o.db)?, o.cf.clone());
    adjust_table_options("", &mut cf, &mut Adjusted::default());
    adjust_ranges("", &mut cf, CfOptions::TEXT, CF_RANGES, &mut Adjusted::default());
    check_cf_options("default", &cf)?;
    Ok((db, cf))
}
