//! Options that a database is not opened with, and those that it is opened with otherwise than they were given.
//!
//! What is changed and what is refused follows RocksDB (`SanitizeOptions`, `SanitizeCfOptions`, `InitializeOptions` and
//! `ValidateOptions` of block-based tables). A change is a line in the info log. Differences: docs/rocksdb.md, "Options
//! that are adjusted".

use std::fmt::Display;

use rockmill_format::log::RecoveryMode;

use super::open::LEVELS_MAX;
use crate::error::{Error, Result};
use crate::info_log::{InfoLog, log_warn};
use crate::options::{
    BlockBasedIndexType, BlockBasedOptions, CfOptions, CompactionStyle, DataBlockIndexType, DbOptions,
};

/// Smallest memtable. RocksDB's is 64 KiB.
const WRITE_BUFFER_MIN: usize = 4 << 10;

/// Largest memtable.
const WRITE_BUFFER_MAX: usize = 64 << 30;

/// RocksDB's least for `max_open_files`; here it stands for numbers that mean nothing.
const OPEN_FILES_MIN: i32 = 20;

/// `delayed_write_rate` where nothing says another.
const DELAYED_WRITE_RATE: u64 = 16 << 20;

/// `bytes_per_sync` beside a rate limiter: without it, what the limiter spreads out would reach the disk in one go.
const LIMITED_BYTES_PER_SYNC: u64 = 1 << 20;

/// The version of tables from which on they are written.
const FORMAT_VERSION_MIN: u32 = 5;

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

    /// Tells the info log.
    pub fn log(&self, log: &InfoLog) {
        for line in &self.0 {
            log_warn!(log, "{line}");
        }
    }
}

/// Brings options of a database that is opened to values that can be served.
pub(super) fn adjust_db_options(o: &mut DbOptions, adjusted: &mut Adjusted) {
    adjust_changed_db_options(o, adjusted);
    if o.bytes_per_sync == 0 && o.rate_limiter.is_some() {
        let why = "with a rate limiter the disk is to be written to evenly";
        adjusted.set("", "bytes_per_sync", &mut o.bytes_per_sync, LIMITED_BYTES_PER_SYNC, why);
    }
    let mode = o.wal_recovery_mode;
    let why = match mode {
        _ if o.WAL_ttl_seconds > 0 || o.WAL_size_limit_MB > 0 => Some("obsolete WALs are archived".to_owned()),
        // Behind the end of a WAL in a file that is used again stands what it held before. These two modes take damage
        // in the middle for an error, and it looks the same.
        RecoveryMode::TolerateCorruptedTailRecords | RecoveryMode::AbsoluteConsistency => {
            Some(format!("wal_recovery_mode {mode:?} cannot tell the end of a WAL in a file that is used again"))
        }
        RecoveryMode::PointInTime | RecoveryMode::SkipAnyCorruptedRecords => None,
    };
    if let Some(why) = why {
        adjusted.set("", "recycle_log_file_num", &mut o.recycle_log_file_num, 0, &why);
    }
}

/// The same for options that were changed while the database is open.
pub(super) fn adjust_changed_db_options(o: &mut DbOptions, adjusted: &mut Adjusted) {
    let mut set = |name: &str, option: &mut i32, value: i32, why: &str| adjusted.set("", name, option, value, why);
    if o.max_open_files < -1 {
        set("max_open_files", &mut o.max_open_files, OPEN_FILES_MIN, "-1 is no limit, and others are at least 0");
    }
    if o.max_background_jobs < 1 {
        set("max_background_jobs", &mut o.max_background_jobs, 1, "there is at least one");
    }
    if o.compaction_helper_threads < -1 {
        set("compaction_helper_threads", &mut o.compaction_helper_threads, -1, "-1 is idle cores");
    }
    if o.max_subcompactions == 0 {
        adjusted.set("", "max_subcompactions", &mut o.max_subcompactions, 1, "a compaction has a thread");
    }
    if o.delayed_write_rate == 0 {
        let limit = o.rate_limiter.as_ref().and_then(|l| u64::try_from(l.bytes_per_second()).ok());
        let rate = limit.filter(|&rate| rate > 0).unwrap_or(DELAYED_WRITE_RATE);
        adjusted.set("", "delayed_write_rate", &mut o.delayed_write_rate, rate, "0 leaves it to the store");
    }
}

/// Refuses options of the database that contradict one another or that cannot be served.
pub(super) fn check_db_options(o: &DbOptions) -> Result<()> {
    if o.keep_log_file_num == 0 {
        return Err(Error::invalid_argument("keep_log_file_num must be at least 1"));
    }
    if o.use_direct_io_for_flush_and_compaction && o.writable_file_max_buffer_size == 0 {
        return Err(Error::invalid_argument(
            "use_direct_io_for_flush_and_compaction needs writable_file_max_buffer_size above 0",
        ));
    }
    if let Some(limiter) = &o.rate_limiter {
        limiter.check()?;
    }
    Ok(())
}

/// Brings options of tables to values that can be served. `of` begins each line.
fn adjust_table_options(of: &str, t: &mut BlockBasedOptions, adjusted: &mut Adjusted) {
    let mut set = |name: &str, option: &mut usize, value, why: &str| adjusted.set(of, name, option, value, why);
    if t.block_size == 0 {
        set("block_size", &mut t.block_size, 1, "a block has an entry");
    }
    if t.block_size_deviation > 100 {
        set("block_size_deviation", &mut t.block_size_deviation, 0, "it is a percentage");
    }
    if t.block_restart_interval == 0 {
        set("block_restart_interval", &mut t.block_restart_interval, 1, "a restart point has an entry");
    }
    if t.index_block_restart_interval == 0 {
        set("index_block_restart_interval", &mut t.index_block_restart_interval, 1, "a restart point has an entry");
    }
    if t.partition_filters && t.index_type != BlockBasedIndexType::TwoLevelIndexSearch {
        let why = "it needs the index type kTwoLevelIndexSearch";
        adjusted.set(of, "partition_filters", &mut t.partition_filters, false, why);
    }
    if t.format_version < FORMAT_VERSION_MIN {
        let why = "older ones are read and not written; RocksDB reads it from 6.6 on";
        adjusted.set(of, "format_version", &mut t.format_version, FORMAT_VERSION_MIN, why);
    }
}

/// Brings options of a column family to values that can be served, those for the last opening or creation, and
/// refuses what cannot be.
pub(crate) fn take_cf_options(
    name: &str,
    o: &mut CfOptions,
    atomic_flush: bool,
    adjusted: &mut Adjusted,
) -> Result<()> {
    take_changed_cf_options(name, o, atomic_flush, adjusted)?;
    let of = format!("column family {name:?}: ");
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
    let least = match o.compaction_style {
        CompactionStyle::Fifo => 1,
        // One for L0, one for compactions, and one for files that are ingested behind.
        _ if o.reserve_last_level => 3,
        CompactionStyle::Level => 2,
        CompactionStyle::Universal => 1,
    };
    let levels = o.num_levels.max(least);
    adjusted.set(&of, "num_levels", &mut o.num_levels, levels, "the compaction style needs as many");
    Ok(())
}

/// The same for options that were changed while the column family is open. As in RocksDB, those that bound one another
/// stay as they are: who raises a trigger and puts it back finds the others unchanged.
pub(super) fn take_changed_cf_options(
    name: &str,
    o: &mut CfOptions,
    atomic_flush: bool,
    adjusted: &mut Adjusted,
) -> Result<()> {
    let of = format!("column family {name:?}: ");
    adjust_table_options(&of, &mut o.table, adjusted);
    check_cf_options(name, o)?;
    let buffer = o.write_buffer_size.clamp(WRITE_BUFFER_MIN, WRITE_BUFFER_MAX);
    adjusted.set(&of, "write_buffer_size", &mut o.write_buffer_size, buffer, "it is between 4 KiB and 64 GiB");
    let mut set = |name: &str, option: &mut i32, value, why: &str| adjusted.set(&of, name, option, value, why);
    let merged = match atomic_flush {
        true => 1,
        false => o.min_write_buffer_number_to_merge.min(o.max_write_buffer_number.saturating_sub(1)).max(1),
    };
    let why = if atomic_flush { "atomic_flush waits for none" } else { "it is below max_write_buffer_number" };
    set("min_write_buffer_number_to_merge", &mut o.min_write_buffer_number_to_merge, merged, why);
    let buffers = o.max_write_buffer_number.max(2);
    set("max_write_buffer_number", &mut o.max_write_buffer_number, buffers, "one is written to while one is flushed");
    if o.level0_file_num_compaction_trigger == 0 {
        let why = "a compaction has an input";
        set("level0_file_num_compaction_trigger", &mut o.level0_file_num_compaction_trigger, 1, why);
    }
    let mut set = |name: &str, option: &mut f64, value, why: &str| adjusted.set(&of, name, option, value, why);
    let ratio = o.memtable_prefix_bloom_size_ratio.clamp(0.0, 0.25);
    let why = "it is between 0 and 0.25";
    set("memtable_prefix_bloom_size_ratio", &mut o.memtable_prefix_bloom_size_ratio, ratio, why);
    if o.max_bytes_for_level_multiplier <= 0.0 {
        set("max_bytes_for_level_multiplier", &mut o.max_bytes_for_level_multiplier, 1.0, "it is above 0");
    }
    let mut set = |name: &str, option: &mut u64, value, why: &str| adjusted.set(&of, name, option, value, why);
    let size = o.target_file_size_base.max(1);
    set("target_file_size_base", &mut o.target_file_size_base, size, "a table has an entry");
    let size = o.max_bytes_for_level_base.max(1);
    set("max_bytes_for_level_base", &mut o.max_bytes_for_level_base, size, "a level is compacted when it is larger");
    Ok(())
}

/// Refuses options of a column family that contradict one another or that cannot be served.
pub(crate) fn check_cf_options(name: &str, o: &CfOptions) -> Result<()> {
    let bad = |what: &str| Err(Error::invalid_argument(format!("column family {name:?}: {what}")));
    if o.num_levels > LEVELS_MAX as i32 {
        return bad("num_levels must be at most 64");
    }
    use crate::options::CompressionType::{Bzip2, Xpress};
    let all = o.compression_per_level.iter().chain(&o.bottommost_compression).chain([&o.compression]);
    if let Some(c) = all.into_iter().find(|c| matches!(c, Bzip2 | Xpress)) {
        return bad(&format!("compression {c:?} is not supported"));
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
    if let Some(why) = o.compaction_options_universal.refused(o) {
        return Err(Error::not_supported(format!("column family {name:?}: {why}")));
    }
    if o.compaction_style == CompactionStyle::Fifo && o.reserve_last_level {
        return bad("compaction_style kCompactionStyleFIFO does not go with allow_ingest_behind: it has one level");
    }
    if o.compaction_downforce && o.compaction_style == CompactionStyle::Fifo {
        return bad(
            "compaction_downforce does not go with compaction_style kCompactionStyleFIFO, which merges nothing",
        );
    }
    let t = &o.table;
    if t.format_version > 7 {
        return bad("format_version must be at most 7");
    }
    if t.block_size > u32::MAX as usize {
        return bad("block_size must be below 4 GiB");
    }
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
    if o.memtable_prefix_bloom_size_ratio.is_nan()
        || o.max_bytes_for_level_multiplier.is_nan()
        || t.data_block_hash_table_util_ratio.is_nan()
        || t.bloom_bits_per_key.is_nan()
    {
        return bad("a ratio is not a number");
    }
    Ok(())
}

/// What a table is written with, of options that no database was opened with.
pub(crate) fn table_writer_options(o: &CfOptions) -> Result<CfOptions> {
    let mut taken = o.clone();
    adjust_table_options("", &mut taken.table, &mut Adjusted::default());
    check_cf_options("default", &taken)?;
    Ok(taken)
}
