//! RocksDB's options that Rockmill does not have, by name, and what a value of each means here.
//!
//! A declared option (`db.rs`, `cf.rs`, `table.rs`) is never looked up here, so an entry whose option was declared
//! later does no harm. The tables have every name that OPTIONS files of RocksDB 4 to 11 hold (the test `compat` reads
//! some of each version).

/// Which section of an OPTIONS file an option stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Db,
    Cf,
    Table,
}

/// What to report about an option that RocksDB has and Rockmill does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Nothing at one of these values, separated by `|`, RocksDB's default first. Any other has no effect here; the
    /// second text says why.
    NoEffect(&'static str, &'static str),
    /// Nothing at these values; any other names an object that the caller has to provide.
    Object(&'static str),
    /// Nothing at these values. With any other the database cannot be opened; the second text says why.
    Refused(&'static str, &'static str),
    /// A struct of options, each with an entry `struct.name` of its own.
    Struct,
    /// RocksDB itself reads it and does nothing with it, or an earlier Rockmill had it.
    Retired,
}
use Meaning::{NoEffect, Object, Refused, Retired, Struct};

/// Something to report about an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// With the names of the structs that it is nested in, separated by dots.
    pub name: String,
    pub value: String,
    pub what: What,
}

/// What a [`Note`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// Neither RocksDB nor Rockmill has the option, as far as this version knows.
    Unknown,
    /// It is RocksDB's and does nothing here.
    NoEffect(&'static str),
    /// It names an object that is not built in.
    Object,
    /// It asks for what Rockmill cannot do.
    Refused(&'static str),
    /// It is Rockmill's own, and was found in a file.
    Own,
}

/// What reading options found to report.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub list: Vec<Note>,
    /// Options whose value has as little effect here as RocksDB's default, so that nothing is reported. Files keep
    /// them, since they mean something to RocksDB.
    pub silent: Vec<(String, String)>,
}

impl Notes {
    pub fn add(&mut self, name: &str, value: &str, what: What) {
        self.list.push(Note { name: name.to_owned(), value: value.to_owned(), what });
    }

    /// Reports an option that is not declared.
    pub fn undeclared(&mut self, section: Section, name: &str, value: &str) {
        let Some(meaning) = meaning(section, name) else {
            return self.add(name, value, What::Unknown);
        };
        match meaning {
            Retired => {}
            Struct => match super::parse::pairs(value) {
                Ok(pairs) if value.contains('=') => {
                    for (inner, value) in pairs {
                        self.undeclared(section, &format!("{name}.{inner}"), &super::parse::unescape(&value));
                    }
                }
                _ if value.is_empty() => {}
                _ => self.add(name, value, What::NoEffect("the older form of this option's text")),
            },
            NoEffect(usual, why) => {
                if !is_one_of(usual, value) {
                    self.add(name, value, What::NoEffect(why));
                } else if !is_one_of(usual.split('|').next().unwrap_or_default(), value) {
                    self.silent.push((name.to_owned(), value.to_owned()));
                }
            }
            Object(usual) => {
                if !is_one_of(usual, value) {
                    self.add(name, value, What::Object);
                }
            }
            Refused(usual, why) => {
                if !is_one_of(usual, value) {
                    self.add(name, value, What::Refused(why));
                }
            }
        }
    }
}

/// True if `value` is one of the values separated by `|`. Numbers may be written in several ways.
fn is_one_of(usual: &str, value: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    usual.split('|').any(|u| u == value || number(u).is_some_and(|n| number(value) == Some(n)))
}

/// What RocksDB's option `name` means here; `None` for a name that no RocksDB has.
pub(crate) fn meaning(section: Section, name: &str) -> Option<Meaning> {
    let table = match section {
        Section::Db => DB,
        Section::Cf => CF,
        Section::Table => TABLE,
    };
    table.iter().find(|(n, _)| *n == name).map(|&(_, m)| m)
}

/// The section of an option that is a struct of options.
pub(crate) fn section_of(option: &str) -> Section {
    use super::{CfOptions, DbOptions};
    match option {
        _ if DbOptions::TEXT.iter().any(|o| o.name == option) => Section::Db,
        _ if CfOptions::TEXT.iter().any(|o| o.name == option) => Section::Cf,
        _ => Section::Table,
    }
}

/// Names of options that RocksDB has and Rockmill does not, without those that do nothing in RocksDB itself.
#[cfg(test)]
pub(crate) fn names(section: Section) -> impl Iterator<Item = (&'static str, Meaning)> {
    let table = match section {
        Section::Db => DB,
        Section::Cf => CF,
        Section::Table => TABLE,
    };
    table.iter().copied().filter(|(_, m)| *m != Retired)
}

/// RocksDB's value of an option that RocksDB 7.8 does not know, and the version that brought it.
pub(crate) fn newer(name: &str) -> Option<(&'static str, (u32, u32))> {
    NEWER.iter().find(|(n, ..)| *n == name).map(|&(_, value, version)| (value, version))
}

/// The first version that reads all of the struct of options `name` with this text.
pub(crate) fn version_of_nested(name: &str, text: &str) -> (u32, u32, u32) {
    let Ok(pairs) = super::parse::pairs(text) else { return (0, 0, 0) };
    let versions = pairs.iter().filter_map(|(inner, _)| newer(&format!("{name}.{inner}")));
    versions.map(|(_, (major, minor))| (major, minor, 0)).max().unwrap_or((0, 0, 0))
}

/// A value of a declared option that RocksDB takes and Rockmill does not, and why another is as good. Such a value is
/// never read: a change that makes Rockmill take it must remove it here.
pub(crate) fn other_value(name: &str, value: &str) -> Option<&'static str> {
    OTHER_VALUES.iter().find(|(n, values, _)| *n == name && is_one_of(values, value)).map(|&(_, _, why)| why)
}

const OTHER_VALUES: &[(&str, &str, &str)] = &[
    ("index_type", "kHashSearch|kBinarySearchWithFirstKey", "such tables are read; tables written get a binary index"),
    ("format_version", "0|1|2|3|4", "such tables are read; tables written get the given or the default version"),
];

/// The page of options says it once.
pub(super) const ONE_WAY: &str = "Rockmill has one way of doing this";
const WRITERS_WAIT: &str = "a waiting writer yields at most a hundred times, then sleeps";
const LOG: &str = "Rockmill writes no such log";
const BLOB: &str = "there are no blob files";
const TEMPERATURE: &str = "files have no temperatures";
const HINT: &str = "the operating system gets no such hint";

const DB: &[(&str, Meaning)] = &[
    ("access_hint_on_compaction_start", Retired),
    ("allow_2pc", NoEffect("false", "there are no transactions")),
    ("allow_data_in_errors", NoEffect("false", "errors name keys")),
    ("allow_mmap_reads", NoEffect("false", "files are read, never mapped")),
    ("allow_mmap_writes", NoEffect("false", "files are written, never mapped")),
    ("allow_os_buffer", Retired),
    ("async_wal_precreate", NoEffect("false", ONE_WAY)),
    ("avoid_unnecessary_blocking_io", NoEffect("false", ONE_WAY)),
    ("background_close_inactive_wals", NoEffect("false", ONE_WAY)),
    ("base_background_compactions", Retired),
    ("best_efforts_recovery", NoEffect("false", "a damaged database is not opened in part")),
    ("calculate_sst_write_lifetime_hint_set", NoEffect("kCompactionStyleLevel|", HINT)),
    ("compaction_io_sqpoll_idle_ms", Retired), // Rockmill's own, once
    ("compaction_service", Object("nullptr")),
    ("compaction_verify_record_count", NoEffect("true|false", ONE_WAY)),
    ("concurrent_prepare", Retired),
    ("daily_offpeak_time_utc", NoEffect("", "compactions ignore the time of day")),
    ("db_host_id", NoEffect("__hostname__", "tables record no host")),
    ("delete_obsolete_files_period_micros", NoEffect("21600000000", "obsolete files are deleted at once")),
    ("disableDataSync", Retired),
    ("disable_data_sync", Retired),
    ("dump_malloc_stats", NoEffect("false", LOG)),
    ("enable_pipelined_write", NoEffect("false|true", "a group is always logged while others are inserted")),
    ("enable_thread_tracking", NoEffect("false", ONE_WAY)),
    ("enable_write_thread_adaptive_yield", NoEffect("true|false", WRITERS_WAIT)),
    ("enforce_single_del_contracts", NoEffect("true", ONE_WAY)),
    ("enforce_write_buffer_manager_during_recovery", NoEffect("true|false", ONE_WAY)),
    ("env", Object("|nullptr|Default|DefaultEnv")),
    ("experimental_allow_mempurge", Retired),
    ("experimental_mempurge_policy", Retired),
    ("experimental_mempurge_threshold", Retired),
    ("fail_if_options_file_error", Retired),
    ("fast_sst_open", NoEffect("false", ONE_WAY)),
    ("file_checksum_gen_factory", Object("nullptr")),
    ("flush_verify_memtable_count", NoEffect("true|false", ONE_WAY)),
    ("follower_catchup_retry_count", NoEffect("10", "there are no followers")),
    ("follower_catchup_retry_wait_ms", NoEffect("100", "there are no followers")),
    ("follower_refresh_catchup_period_ms", NoEffect("10000", "there are no followers")),
    ("is_fd_close_on_exec", NoEffect("true", "started programs never inherit files")),
    ("kernel_reads_in_place", Retired), // Rockmill's own, once
    ("listeners", Object("|nullptr|{}")),
    ("log_readahead_size", NoEffect("0", ONE_WAY)),
    ("lowest_used_cache_tier", NoEffect("kNonVolatileBlockTier", "there is one tier of cache")),
    ("manifest_preallocation_size", NoEffect("4194304", "space is not reserved ahead")),
    ("max_background_compactions", NoEffect("-1", "give max_background_jobs")),
    ("max_background_flushes", NoEffect("-1", "give max_background_jobs")),
    ("max_compaction_trigger_wakeup_seconds", NoEffect("43200", ONE_WAY)),
    ("max_file_opening_threads", NoEffect("16", ONE_WAY)),
    ("max_manifest_space_amp_pct", NoEffect("500", "a new MANIFEST is begun at max_manifest_file_size")),
    ("metadata_write_temperature", NoEffect("kUnknown", TEMPERATURE)),
    ("new_table_reader_for_compaction_inputs", Retired),
    ("open_files_async", NoEffect("false", ONE_WAY)),
    ("optimize_manifest_for_recovery", NoEffect("false|true", ONE_WAY)),
    ("persist_stats_to_disk", NoEffect("false", "no statistics history is kept")),
    ("prefix_seek_opt_in_only", NoEffect("false", ONE_WAY)),
    ("preserve_deletes", Retired),
    ("random_access_max_buffer_size", Retired),
    ("rate_limiter", Retired),
    ("rate_limiter_bytes_per_sec", Retired), // taken by option strings; never in files
    ("read_io_executor_threads", NoEffect("1", ONE_WAY)),
    ("reuse_manifest_on_open", NoEffect("false", "each open begins a new MANIFEST")),
    ("row_cache", Object("nullptr")),
    ("seq_per_batch", Retired),
    ("skip_checking_sst_file_sizes_on_db_open", NoEffect("false", ONE_WAY)),
    ("skip_log_error_on_recovery", Retired),
    ("skip_stats_update_on_db_open", NoEffect("false", ONE_WAY)),
    ("statistics", NoEffect("nullptr|", "enable_statistics turns statistics on")),
    ("stats_history_buffer_size", NoEffect("1048576", "no statistics history is kept")),
    ("stats_persist_period_sec", NoEffect("600|0", "no statistics history is kept")),
    ("table_cache_numshardbits", NoEffect("6", ONE_WAY)),
    ("track_and_verify_wals", NoEffect("false", "each WAL says where the one before it ended")),
    ("track_and_verify_wals_in_manifest", NoEffect("false", "each WAL says where the one before it ended")),
    ("two_write_queues", NoEffect("false", "there are no transactions")),
    ("unordered_write", NoEffect("false|true", "groups are inserted in parallel anyway, and snapshots hold")),
    ("use_adaptive_mutex", NoEffect("false", ONE_WAY)),
    ("use_direct_io_for_compaction_reads", NoEffect("false", "give use_direct_io_for_flush_and_compaction")),
    ("use_direct_writes", Retired),
    ("verify_manifest_content_on_close", NoEffect("false", ONE_WAY)),
    ("verify_sst_unique_id_in_manifest", NoEffect("true", ONE_WAY)),
    ("wal_compression", NoEffect("kNoCompression", "WALs are not compressed")),
    ("wal_filter", Object("nullptr")),
    ("wal_write_temperature", NoEffect("kUnknown", TEMPERATURE)),
    ("write_dbid_to_manifest", NoEffect("false|true", ONE_WAY)),
    ("write_identity_file", NoEffect("true", "the file is always written")),
    ("write_thread_max_yield_usec", NoEffect("100", WRITERS_WAIT)),
    ("write_thread_slow_yield_usec", NoEffect("3", WRITERS_WAIT)),
];

const CF: &[(&str, Meaning)] = &[
    ("blob_cache", NoEffect("nullptr|", BLOB)),
    ("blob_compaction_readahead_size", NoEffect("0", BLOB)),
    ("blob_compression_opts", Struct),
    ("blob_compression_opts.checksum", NoEffect("false", BLOB)),
    ("blob_compression_opts.enabled", NoEffect("false", BLOB)),
    ("blob_compression_opts.level", NoEffect("32767", BLOB)),
    ("blob_compression_opts.max_compressed_bytes_per_kb", NoEffect("896", BLOB)),
    ("blob_compression_opts.max_dict_buffer_bytes", NoEffect("0", BLOB)),
    ("blob_compression_opts.max_dict_bytes", NoEffect("0", BLOB)),
    ("blob_compression_opts.parallel_threads", NoEffect("1", BLOB)),
    ("blob_compression_opts.strategy", NoEffect("0", BLOB)),
    ("blob_compression_opts.use_zstd_dict_trainer", NoEffect("true", BLOB)),
    ("blob_compression_opts.window_bits", NoEffect("-14", BLOB)),
    ("blob_compression_opts.zstd_max_train_bytes", NoEffect("0", BLOB)),
    ("blob_compression_type", NoEffect("kNoCompression", BLOB)),
    ("blob_direct_write_partitions", NoEffect("1", BLOB)),
    ("blob_file_size", NoEffect("268435456", BLOB)),
    ("blob_file_starting_level", NoEffect("0", BLOB)),
    ("blob_garbage_collection_age_cutoff", NoEffect("0.25", BLOB)),
    ("blob_garbage_collection_force_threshold", NoEffect("1", BLOB)),
    ("block_protection_bytes_per_key", NoEffect("0", "keys in memory have no checksums")),
    ("bloom_locality", NoEffect("0", ONE_WAY)),
    ("bottommost_file_compaction_delay", NoEffect("0", ONE_WAY)),
    ("bottommost_temperature", Retired),
    ("cf_allow_ingest_behind", Refused("false", "allow_ingest_behind is the whole database's")),
    ("check_flush_compaction_key_order", Retired),
    ("compaction_filter", Object("nullptr")),
    ("compaction_filter_factory", Object("nullptr")),
    ("compaction_measure_io_stats", Retired),
    ("compaction_options_fifo.age_for_warm", NoEffect("0", TEMPERATURE)),
    ("compaction_options_fifo.allow_trivial_copy_when_change_temperature", NoEffect("false", TEMPERATURE)),
    ("compaction_options_fifo.file_temperature_age_thresholds", NoEffect("", TEMPERATURE)),
    ("compaction_options_fifo.max_data_files_size", NoEffect("0", BLOB)),
    ("compaction_options_fifo.trivial_copy_buffer_size", NoEffect("4096", TEMPERATURE)),
    ("compaction_options_fifo.ttl", Retired),
    ("compaction_options_fifo.use_kv_ratio_compaction", NoEffect("false", BLOB)),
    ("compaction_options_universal.incremental", NoEffect("false", "universal compactions take whole sorted runs")),
    ("compaction_options_universal.reduce_file_locking", NoEffect("false|true", "no compaction waits for a thread")),
    ("compaction_thread_limiter", Object("nullptr")),
    ("compression_manager", Refused("nullptr|BuiltinV2", "all compression is built in")),
    ("default_temperature", NoEffect("kUnknown", TEMPERATURE)),
    ("default_write_temperature", NoEffect("kUnknown", TEMPERATURE)),
    ("disallow_memtable_writes", Refused("false", "every column family can be written")),
    ("enable_blob_direct_write", Refused("false", BLOB)),
    ("enable_blob_files", Refused("false", BLOB)),
    ("enable_blob_garbage_collection", NoEffect("false|true", BLOB)),
    ("expanded_compaction_factor", Retired),
    ("experimental_mempurge_threshold", NoEffect("0", ONE_WAY)),
    ("filter_deletes", Retired),
    ("force_consistency_checks", NoEffect("true", "the tree is always checked")),
    ("hard_rate_limit", Retired),
    ("ignore_max_compaction_bytes_for_input", Retired),
    ("inplace_update_num_locks", NoEffect("10000", "values are never changed in place")),
    ("inplace_update_support", NoEffect("false", "values are never changed in place")),
    ("last_level_temperature", NoEffect("kUnknown", TEMPERATURE)),
    ("level_compaction_dynamic_file_size", Retired),
    ("max_grandparent_overlap_factor", Retired),
    ("max_mem_compaction_level", Retired),
    ("max_sequential_skip_in_iterations", NoEffect("8", ONE_WAY)),
    ("max_successive_merges", NoEffect("0", "operands are merged by reads, flushes and compactions")),
    ("max_write_buffer_number_to_maintain", NoEffect("0", "there are no transactions")),
    ("max_write_buffer_size_to_maintain", NoEffect("0", "there are no transactions")),
    ("memtable", Object("|nullptr|SkipListFactory|skip_list")),
    ("memtable_avg_op_scan_flush_trigger", NoEffect("0", ONE_WAY)),
    ("memtable_batch_lookup_optimization", NoEffect("false|true", ONE_WAY)),
    ("memtable_factory", NoEffect("SkipListFactory|skip_list", "memtables are skip lists")),
    ("memtable_huge_page_size", NoEffect("0", HINT)),
    ("memtable_insert_with_hint_prefix_extractor", NoEffect("nullptr", ONE_WAY)),
    ("memtable_op_scan_flush_trigger", NoEffect("0", ONE_WAY)),
    ("memtable_prefix_bloom_bits", Retired),
    ("memtable_prefix_bloom_huge_page_tlb_size", Retired),
    ("memtable_prefix_bloom_probes", Retired),
    ("memtable_protection_bytes_per_key", NoEffect("0", "keys in memory have no checksums")),
    ("memtable_veirfy_per_key_checksum_on_seek", NoEffect("false", "keys in memory have no checksums")),
    ("memtable_verify_per_key_checksum_on_seek", NoEffect("false", "keys in memory have no checksums")),
    ("min_blob_size", NoEffect("0", BLOB)),
    ("min_partial_merge_operands", Retired),
    ("min_tombstones_for_range_conversion", NoEffect("0", ONE_WAY)),
    ("paranoid_file_checks", NoEffect("false", "written tables are not read back")),
    ("paranoid_memory_checks", NoEffect("false", ONE_WAY)),
    ("persist_user_defined_timestamps", Refused("true", "there are no user-defined timestamps")),
    ("plain_table_factory", Refused("", "tables are block-based or TPH")),
    ("preclude_last_level_data_seconds", NoEffect("0", TEMPERATURE)),
    ("prepopulate_blob_cache", NoEffect("kDisable", BLOB)),
    ("preserve_internal_time_seconds", NoEffect("0", TEMPERATURE)),
    ("purge_redundant_kvs_while_flush", Retired),
    ("rate_limit_delay_max_milliseconds", Retired),
    ("read_triggered_compaction_threshold", NoEffect("0", ONE_WAY)),
    ("report_bg_io_stats", NoEffect("false", ONE_WAY)),
    ("sample_for_compression", NoEffect("0", ONE_WAY)),
    ("snap_refresh_nanos", Retired),
    ("soft_rate_limit", Retired),
    ("source_compaction_factor", Retired),
    ("sst_partitioner_factory", Object("nullptr")),
    ("strict_max_successive_merges", NoEffect("false|true", "operands are merged by reads, flushes and compactions")),
    ("table_properties_collectors", Object("|nullptr|{}")),
    ("target_file_size_is_upper_bound", NoEffect("false", ONE_WAY)),
    ("uncache_aggressiveness", NoEffect("0", "blocks of deleted tables age out of the cache")),
    ("verify_checksums_in_compaction", Retired),
    ("verify_output_flags", NoEffect("0", "written tables are not read back")),
];

const TABLE: &[(&str, Meaning)] = &[
    ("block_align", NoEffect("false", "blocks follow one another without gaps")),
    ("block_cache", NoEffect("nullptr|", "give a cache when loading")),
    ("block_cache_compressed", Retired),
    ("decouple_partitioned_filters", NoEffect("false|true", "filters written are not partitioned")),
    ("detect_filter_construct_corruption", NoEffect("false", ONE_WAY)),
    ("enable_index_compression", NoEffect("true", ONE_WAY)),
    ("fail_if_no_udi_on_open", Refused("false", "indexes are the built-in ones")),
    ("flush_block_policy_factory", Object("FlushBlockBySizePolicyFactory|nullptr")),
    ("hash_index_allow_collision", Retired),
    ("index_block_search_type", NoEffect("kBinary", "index blocks are searched by binary search")),
    ("index_per_partition", Retired),
    ("index_shortening", NoEffect("kShortenSeparators", ONE_WAY)),
    ("metadata_cache_options", Struct),
    ("metadata_cache_options.partition_pinning", NoEffect("kFallback", ONE_WAY)),
    ("metadata_cache_options.top_level_index_pinning", NoEffect("kFallback", ONE_WAY)),
    ("metadata_cache_options.unpartitioned_pinning", NoEffect("kFallback", ONE_WAY)),
    ("optimize_filters_for_memory", NoEffect("false|true", "filters have the requested size")),
    ("persistent_cache", Object("nullptr")),
    ("pin_top_level_index_and_filter", NoEffect("true|false", "index and filter blocks stay in memory")),
    ("prepopulate_block_cache", NoEffect("kDisable", "blocks are cached when they are read")),
    ("read_amp_bytes_per_bit", NoEffect("0", "read amplification is not measured by block")),
    ("reserve_table_builder_memory", Retired),
    ("reserve_table_reader_memory", Retired),
    ("separate_key_value_in_data_block", NoEffect("false", "such tables are read, not written")),
    ("skip_table_builder_flush", Retired),
    ("super_block_alignment_size", NoEffect("0", "such tables are read, not written")),
    ("super_block_alignment_space_overhead_ratio", NoEffect("128", "such tables are read, not written")),
    ("uniform_cv_threshold", NoEffect("-1|0.2", "index blocks are searched by binary search")),
    ("use_delta_encoding", NoEffect("true", ONE_WAY)),
    ("use_udi_as_primary_index", Refused("false", "indexes are the built-in ones")),
    ("user_defined_index_factory", Object("nullptr")),
    ("verify_compression", NoEffect("false", ONE_WAY)),
];

/// Options, and options nested in others, that are not in RocksDB 7.8: RocksDB's default and the first version.
const NEWER: &[(&str, &str, (u32, u32))] = &[
    ("background_close_inactive_wals", "false", (9, 5)),
    ("block_protection_bytes_per_key", "0", (8, 1)),
    ("bottommost_file_compaction_delay", "0", (8, 9)),
    ("calculate_sst_write_lifetime_hint_set", "kCompactionStyleLevel", (10, 4)),
    ("cf_allow_ingest_behind", "false", (10, 6)),
    ("compaction_verify_record_count", "true", (8, 6)),
    ("compression_manager", "nullptr", (10, 3)),
    ("compression_opts.checksum", "false", (8, 2)),
    ("compression_opts.max_compressed_bytes_per_kb", "896", (8, 0)),
    ("bottommost_compression_opts.checksum", "false", (8, 2)),
    ("bottommost_compression_opts.max_compressed_bytes_per_kb", "896", (8, 0)),
    ("compaction_options_fifo.allow_trivial_copy_when_change_temperature", "false", (10, 1)),
    ("compaction_options_fifo.file_temperature_age_thresholds", "", (8, 9)),
    ("compaction_options_fifo.max_data_files_size", "0", (11, 0)),
    ("compaction_options_fifo.trivial_copy_buffer_size", "4096", (10, 1)),
    ("compaction_options_fifo.use_kv_ratio_compaction", "false", (11, 0)),
    ("compaction_options_universal.max_read_amp", "-1", (9, 4)),
    ("compaction_options_universal.reduce_file_locking", "false", (10, 3)),
    ("daily_offpeak_time_utc", "", (8, 9)),
    ("decouple_partitioned_filters", "false", (9, 8)),
    ("default_temperature", "kUnknown", (8, 6)),
    ("default_write_temperature", "kUnknown", (8, 11)),
    ("disallow_memtable_writes", "false", (9, 9)),
    ("follower_catchup_retry_count", "10", (9, 3)),
    ("follower_catchup_retry_wait_ms", "100", (9, 3)),
    ("follower_refresh_catchup_period_ms", "10000", (9, 3)),
    ("max_compaction_trigger_wakeup_seconds", "43200", (11, 0)),
    ("max_manifest_space_amp_pct", "500", (10, 10)),
    ("memtable_avg_op_scan_flush_trigger", "0", (10, 2)),
    ("memtable_max_range_deletions", "0", (8, 9)),
    ("memtable_op_scan_flush_trigger", "0", (10, 1)),
    ("metadata_write_temperature", "kUnknown", (9, 8)),
    ("paranoid_memory_checks", "false", (9, 7)),
    ("persist_user_defined_timestamps", "true", (8, 4)),
    ("prefix_seek_opt_in_only", "false", (9, 7)),
    ("separate_key_value_in_data_block", "false", (11, 0)),
    ("strict_max_successive_merges", "false", (9, 0)),
    ("super_block_alignment_size", "0", (10, 7)),
    ("target_file_size_is_upper_bound", "false", (10, 10)),
    ("track_and_verify_wals", "false", (9, 11)),
    ("uncache_aggressiveness", "0", (9, 6)),
    ("use_delta_encoding", "true", (9, 5)),
    ("verify_output_flags", "0", (10, 8)),
    ("wal_write_temperature", "kUnknown", (9, 8)),
    ("write_identity_file", "true", (9, 7)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_silent_and_other_values_are_named() {
        let mut notes = Notes::default();
        notes.undeclared(Section::Cf, "blob_garbage_collection_age_cutoff", "0.250000");
        notes.undeclared(Section::Cf, "blob_compression_opts", "window_bits=-14;enabled=false;");
        notes.undeclared(Section::Db, "fail_if_options_file_error", "whatever");
        notes.undeclared(Section::Db, "unordered_write", "false");
        assert_eq!((notes.list.len(), notes.silent.len()), (0, 0));
        notes.undeclared(Section::Db, "unordered_write", "true");
        assert_eq!((notes.list.len(), &*notes.silent), (0, &[("unordered_write".to_owned(), "true".to_owned())][..]));
        notes.undeclared(Section::Cf, "blob_compression_opts", "level=16384;nonsense=1");
        notes.undeclared(Section::Cf, "compaction_filter", "mine");
        notes.undeclared(Section::Cf, "enable_blob_files", "true");
        notes.undeclared(Section::Db, "enable_blob_files", "true");
        let found: Vec<(&str, &What)> = notes.list.iter().map(|n| (n.name.as_str(), &n.what)).collect();
        assert_eq!(
            found,
            [
                ("blob_compression_opts.level", &What::NoEffect(BLOB)),
                ("blob_compression_opts.nonsense", &What::Unknown),
                ("compaction_filter", &What::Object),
                ("enable_blob_files", &What::Refused(BLOB)),
                ("enable_blob_files", &What::Unknown),
            ]
        );
    }

    #[test]
    fn every_name_of_rocksdb_10_4_is_known() {
        const DB_NAMES: &str = "\
        WAL_size_limit_MB WAL_ttl_seconds access_hint_on_compaction_start advise_random_on_open allow_2pc \
        allow_concurrent_memtable_write allow_data_in_errors allow_fallocate allow_ingest_behind allow_mmap_reads \
        allow_mmap_writes allow_os_buffer atomic_flush avoid_flush_during_recovery avoid_flush_during_shutdown \
        avoid_unnecessary_blocking_io background_close_inactive_wals base_background_compactions \
        best_efforts_recovery bgerror_resume_retry_interval bytes_per_sync compaction_readahead_size \
        compaction_verify_record_count concurrent_prepare create_if_missing create_missing_column_families \
        daily_offpeak_time_utc db_host_id db_log_dir db_write_buffer_size delayed_write_rate \
        delete_obsolete_files_period_micros disableDataSync disable_data_sync dump_malloc_stats \
        enable_pipelined_write enable_thread_tracking enable_write_thread_adaptive_yield \
        enforce_single_del_contracts env error_if_exists experimental_allow_mempurge experimental_mempurge_policy \
        experimental_mempurge_threshold fail_if_options_file_error file_checksum_gen_factory \
        flush_verify_memtable_count follower_catchup_retry_count follower_catchup_retry_wait_ms \
        follower_refresh_catchup_period_ms info_log_level is_fd_close_on_exec keep_log_file_num listeners \
        log_file_time_to_roll log_readahead_size lowest_used_cache_tier manifest_preallocation_size manual_wal_flush \
        max_background_compactions max_background_flushes max_background_jobs max_bgerror_resume_count \
        max_file_opening_threads max_log_file_size max_manifest_file_size max_open_files max_subcompactions \
        max_total_wal_size max_write_batch_group_size_bytes metadata_write_temperature \
        new_table_reader_for_compaction_inputs paranoid_checks persist_stats_to_disk prefix_seek_opt_in_only \
        preserve_deletes random_access_max_buffer_size rate_limiter rate_limiter_bytes_per_sec recycle_log_file_num \
        seq_per_batch skip_checking_sst_file_sizes_on_db_open skip_log_error_on_recovery \
        skip_stats_update_on_db_open statistics stats_dump_period_sec stats_history_buffer_size \
        stats_persist_period_sec strict_bytes_per_sync table_cache_numshardbits track_and_verify_wals \
        track_and_verify_wals_in_manifest two_write_queues unordered_write use_adaptive_mutex \
        use_direct_io_for_flush_and_compaction use_direct_reads use_direct_writes use_fsync \
        verify_sst_unique_id_in_manifest wal_bytes_per_sync wal_compression wal_dir wal_filter wal_recovery_mode \
        wal_write_temperature writable_file_max_buffer_size write_dbid_to_manifest write_identity_file \
        write_thread_max_yield_usec write_thread_slow_yield_usec \
        ";
        const CF_NAMES: &str = "\
        arena_block_size blob_cache blob_compaction_readahead_size blob_compression_type blob_file_size \
        blob_file_starting_level blob_garbage_collection_age_cutoff blob_garbage_collection_force_threshold \
        block_protection_bytes_per_key bloom_locality bottommost_compression bottommost_compression_opts \
        bottommost_file_compaction_delay bottommost_temperature check_flush_compaction_key_order compaction_filter \
        compaction_filter_factory compaction_measure_io_stats compaction_options_fifo compaction_options_universal \
        compaction_pri compaction_style comparator compression compression_manager compression_opts \
        compression_per_level default_temperature default_write_temperature disable_auto_compactions \
        disallow_memtable_writes enable_blob_files enable_blob_garbage_collection expanded_compaction_factor \
        experimental_mempurge_threshold filter_deletes force_consistency_checks hard_pending_compaction_bytes_limit \
        hard_rate_limit ignore_max_compaction_bytes_for_input inplace_update_num_locks inplace_update_support \
        last_level_temperature level0_file_num_compaction_trigger level0_slowdown_writes_trigger \
        level0_stop_writes_trigger level_compaction_dynamic_file_size level_compaction_dynamic_level_bytes \
        max_bytes_for_level_base max_bytes_for_level_multiplier max_bytes_for_level_multiplier_additional \
        max_compaction_bytes max_grandparent_overlap_factor max_mem_compaction_level \
        max_sequential_skip_in_iterations max_successive_merges max_write_buffer_number \
        max_write_buffer_number_to_maintain max_write_buffer_size_to_maintain memtable \
        memtable_avg_op_scan_flush_trigger memtable_factory memtable_huge_page_size \
        memtable_insert_with_hint_prefix_extractor memtable_max_range_deletions memtable_op_scan_flush_trigger \
        memtable_prefix_bloom_bits memtable_prefix_bloom_huge_page_tlb_size memtable_prefix_bloom_probes \
        memtable_prefix_bloom_size_ratio memtable_protection_bytes_per_key memtable_whole_key_filtering \
        merge_operator min_blob_size min_partial_merge_operands min_write_buffer_number_to_merge num_levels \
        optimize_filters_for_hits paranoid_file_checks paranoid_memory_checks periodic_compaction_seconds \
        persist_user_defined_timestamps plain_table_factory preclude_last_level_data_seconds prefix_extractor \
        prepopulate_blob_cache preserve_internal_time_seconds purge_redundant_kvs_while_flush \
        rate_limit_delay_max_milliseconds report_bg_io_stats sample_for_compression snap_refresh_nanos \
        soft_pending_compaction_bytes_limit soft_rate_limit source_compaction_factor sst_partitioner_factory \
        strict_max_successive_merges table_properties_collectors target_file_size_base target_file_size_multiplier \
        ttl uncache_aggressiveness verify_checksums_in_compaction write_buffer_size \
        ";
        const TABLE_NAMES: &str = "\
        block_align block_cache block_cache_compressed block_restart_interval block_size block_size_deviation \
        cache_index_and_filter_blocks cache_index_and_filter_blocks_with_high_priority checksum \
        data_block_hash_table_util_ratio data_block_index_type decouple_partitioned_filters \
        detect_filter_construct_corruption enable_index_compression filter_policy flush_block_policy_factory \
        format_version hash_index_allow_collision index_block_restart_interval index_per_partition index_shortening \
        index_type initial_auto_readahead_size max_auto_readahead_size metadata_block_size metadata_cache_options \
        no_block_cache num_file_reads_for_auto_readahead optimize_filters_for_memory partition_filters \
        pin_l0_filter_and_index_blocks_in_cache pin_top_level_index_and_filter prepopulate_block_cache \
        read_amp_bytes_per_bit reserve_table_builder_memory reserve_table_reader_memory skip_table_builder_flush \
        use_delta_encoding verify_compression whole_key_filtering \
        ";

        use super::super::{BlockBasedOptions, CfOptions, DbOptions};
        let unknown = |names: &str, section: Section, declared: &dyn Fn(&str) -> bool| {
            let names = names.split_whitespace().filter(|n| meaning(section, n).is_none() && !declared(n));
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(unknown(DB_NAMES, Section::Db, &|n| DbOptions::TEXT.iter().any(|o| o.name == n)), [""; 0]);
        assert_eq!(unknown(CF_NAMES, Section::Cf, &|n| CfOptions::TEXT.iter().any(|o| o.name == n)), [""; 0]);
        let of_tables = |n: &str| BlockBasedOptions::TEXT.iter().any(|o| o.name == n);
        assert_eq!(unknown(TABLE_NAMES, Section::Table, &of_tables), [""; 0]);
    }

    /// A declared name has its meaning in its declaration: an entry here would never be looked up.
    #[test]
    fn nothing_here_is_declared() {
        use crate::options::declare::{Kind, TextOption};
        use crate::options::{BlockBasedOptions, CfOptions, DbOptions};
        fn twice<O>(declared: &[TextOption<O>], known: &[(&'static str, Meaning)]) -> Vec<&'static str> {
            let own = declared.iter().filter(|o| matches!(o.kind, Kind::Mutable | Kind::Fixed));
            let own: Vec<&str> = own.map(|o| o.name).collect();
            known.iter().map(|k| k.0).filter(|n| own.contains(n)).collect()
        }
        let found = [twice(DbOptions::TEXT, DB), twice(CfOptions::TEXT, CF), twice(BlockBasedOptions::TEXT, TABLE)];
        assert_eq!(found.concat(), Vec::<&str>::new());
    }

    #[test]
    fn the_tables_are_in_order() {
        for table in [DB, CF, TABLE] {
            let sorted = table.windows(2).all(|w| w[0].0 < w[1].0);
            assert!(sorted, "{:?}", table.windows(2).find(|w| w[0].0 >= w[1].0).map(|w| w[1].0));
        }
    }
}
