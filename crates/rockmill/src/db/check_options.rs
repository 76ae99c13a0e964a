//! Options that a database is not opened with.

use rockmill_format::log::RecoveryMode;

use super::open::LEVELS_MAX;
use crate::error::{Error, Result};
use crate::options::{BlockBasedIndexType, CfOptions, CompactionStyle, DbOptions};

/// Refuses options of the database that contradict one another or that cannot be served.
pub(super) fn check_db_options(o: &DbOptions) -> Result<()> {
    if o.max_background_jobs < 1 {
        return Err(Error::invalid_argument("max_background_jobs must be at least 1"));
    }
    if o.max_subcompactions == 0 {
        return Err(Error::invalid_argument("max_subcompactions must be at least 1"));
    }
    if o.keep_log_file_num == 0 {
        return Err(Error::invalid_argument("keep_log_file_num must be at least 1"));
    }
    if o.max_open_files < -1 {
        return Err(Error::invalid_argument("max_open_files must be -1 or more"));
    }
    if o.compaction_helper_threads < -1 {
        return Err(Error::invalid_argument("compaction_helper_threads must be -1 or more"));
    }
    if let Some(limiter) = &o.rate_limiter {
        limiter.check()?;
    }
    Ok(())
}

/// Sets options that do not go together to what RocksDB takes them for (its `SanitizeOptions`). Gives what it did, in
/// words.
pub(super) fn sanitize_db_options(o: &mut DbOptions) -> Vec<String> {
    let mut done = Vec::new();
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
    if let Some(why) = why
        && o.recycle_log_file_num > 0
    {
        done.push(format!("recycle_log_file_num is 0 instead of {}: {why}", o.recycle_log_file_num));
        o.recycle_log_file_num = 0;
    }
    done
}

/// Refuses options of a column family that contradict one another or that cannot be served.
pub(crate) fn check_cf_options(name: &str, o: &CfOptions) -> Result<()> {
    let bad = |what: &str| Err(Error::invalid_argument(format!("column family {name:?}: {what}")));
    if !(1..=LEVELS_MAX as i32).contains(&o.num_levels) {
        return bad("num_levels must be between 1 and 64");
    }
    if !(5..=7).contains(&o.table.format_version) {
        return bad("format_version must be 5, 6 or 7 (2 to 7 are read)");
    }
    if o.reserve_last_level && o.num_levels < 3 {
        return bad("num_levels must be at least 3 with allow_ingest_behind, which keeps the last for itself");
    }
    if o.write_buffer_size < 4096 {
        return bad("write_buffer_size must be at least 4096 bytes");
    }
    if o.max_write_buffer_number < 1 {
        return bad("max_write_buffer_number must be at least 1");
    }
    if o.table.block_size == 0 || o.table.block_size > u32::MAX as usize {
        return bad("block_size must be between 1 and 4 GiB");
    }
    if o.table.block_restart_interval == 0 || o.table.index_block_restart_interval == 0 {
        return bad("restart intervals must be at least 1");
    }
    if o.target_file_size_base == 0 || o.max_bytes_for_level_base == 0 {
        return bad("target_file_size_base and max_bytes_for_level_base must not be 0");
    }
    if o.max_bytes_for_level_multiplier.is_nan() || o.max_bytes_for_level_multiplier <= 1.0 {
        return bad("max_bytes_for_level_multiplier must be above 1");
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
    if let Some(why) = o.compaction_options_universal.refused(o) {
        return bad(&why);
    }
    if o.compaction_style == CompactionStyle::Fifo && o.reserve_last_level {
        return bad("compaction_style kCompactionStyleFIFO does not go with allow_ingest_behind: it has one level");
    }
    if o.compaction_downforce && o.compaction_style == CompactionStyle::Fifo {
        return bad(
            "compaction_downforce does not go with compaction_style kCompactionStyleFIFO, which merges nothing",
        );
    }
    if o.max_bytes_for_level_multiplier_additional.iter().any(|&n| n < 1) {
        return bad("max_bytes_for_level_multiplier_additional must be at least 1 for each level");
    }
    let table = &o.table;
    if table.partition_filters && table.index_type != BlockBasedIndexType::TwoLevelIndexSearch {
        return bad("partition_filters needs the index type TwoLevelIndexSearch");
    }
    if o.memtable_prefix_bloom_size_ratio.is_nan()
        || table.data_block_hash_table_util_ratio.is_nan()
        || table.bloom_bits_per_key.is_nan()
    {
        return bad("a ratio is not a number");
    }
    Ok(())
}
