//! The column families of the model, each with another meaning that flows through reads and compactions, and the
//! random options of a run.

use std::path::Path;
use std::sync::Arc;

use rockmill::merge_operator::StringAppendOperator;
use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, ChecksumType, ColumnFamilyDescriptor, CompactionDecision, CompressionType,
    DataBlockIndexType, Db, Options, SliceTransform, WriteBufferManager,
};
use rockmill_format::comparator::ReverseBytewiseComparator;

pub const CFS: [&str; 5] = ["default", "merging", "reversed", "filtered", "single"];
/// Appends with a comma.
pub const MERGING: usize = 1;
pub const REVERSED: usize = 2;
/// Has a compaction filter: [`filter`].
pub const FILTERED: usize = 3;
/// Its keys are put once, and deleted by single deletes.
pub const SINGLE: usize = 4;

/// Values that begin like this may vanish, with every older version of their key.
const EXPIRED: &[u8] = b"expired";
/// Values that begin like this may lose it.
const OLD: &[u8] = b"old:";

/// The compaction filter of [`FILTERED`].
fn filter(_level: u32, _key: &[u8], value: &[u8]) -> CompactionDecision {
    if value.starts_with(EXPIRED) {
        CompactionDecision::Remove
    } else if let Some(rest) = value.strip_prefix(OLD) {
        CompactionDecision::Change(rest.to_vec())
    } else {
        CompactionDecision::Keep
    }
}

/// What a value of a column family is whether or not its filter has seen it; `None` for one that may be gone.
pub fn settled(cf: usize, value: &[u8]) -> Option<&[u8]> {
    match cf {
        FILTERED if value.starts_with(EXPIRED) => None,
        FILTERED => Some(value.strip_prefix(OLD).unwrap_or(value)),
        _ => Some(value),
    }
}

/// A value for the filter to do something with.
pub fn filtered_value(rng: &mut fastrand::Rng, value: Vec<u8>) -> Vec<u8> {
    match rng.u8(0..4) {
        0 => [EXPIRED, &value].concat(),
        1 => [OLD, &value].concat(),
        _ => value,
    }
}

fn one<T: Copy>(rng: &mut fastrand::Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())]
}

/// Options of the database and those that all column families share.
pub fn random_options(rng: &mut fastrand::Rng) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.create_missing_column_families(true);
    // The levels that hold data must fit later openings too.
    o.set_num_levels(7);
    o.set_write_buffer_size(rng.usize(8..200) << 10);
    o.set_max_write_buffer_number(rng.i32(2..5));
    o.set_min_write_buffer_number_to_merge(rng.i32(1..3));
    o.set_level_zero_file_num_compaction_trigger(rng.i32(1..5));
    o.set_target_file_size_base(rng.u64(8..64) << 10);
    o.set_max_bytes_for_level_base(rng.u64(32..256) << 10);
    o.set_max_bytes_for_level_multiplier(rng.i32(2..11).into());
    o.set_level_compaction_dynamic_level_bytes(rng.bool());
    o.set_max_background_jobs(rng.i32(1..5));
    o.set_max_subcompactions(rng.u32(1..4));
    o.set_recycle_log_file_num(rng.usize(0..3));
    o.set_compaction_readahead_size(one(rng, &[0, 4096, 65536, 2 << 20]));
    o.set_use_direct_reads(rng.bool());
    o.set_use_direct_io_for_flush_and_compaction(rng.bool());
    o.set_allow_concurrent_memtable_write(rng.bool());
    o.set_max_manifest_file_size(one(rng, &[2000, 1 << 30]));
    o.set_max_open_files(one(rng, &[-1, 12, 100]));
    o.set_optimize_filters_for_hits(rng.u8(0..4) == 0);
    o.set_atomic_flush(rng.u8(0..3) == 0);
    o.set_manual_wal_flush(rng.u8(0..3) == 0);
    o.set_avoid_flush_during_recovery(rng.u8(0..3) == 0);
    if rng.u8(0..3) == 0 {
        o.enable_statistics();
    }
    if rng.u8(0..4) == 0 {
        o.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager(
            rng.usize(100..400) << 10,
            rng.bool(),
        ));
    }
    if rng.u8(0..4) == 0 {
        // Fast enough to wait seldom.
        o.set_ratelimiter(200 << 20, 10_000, 10);
    }
    use CompressionType::{Lz4, None, Snappy, Zlib, Zstd};
    o.set_compression_type(one(rng, &[None, Snappy, Lz4, Zstd, Zlib]));
    if rng.bool() {
        o.set_bottommost_compression_type(one(rng, &[None, Zstd, Lz4]));
    }
    match rng.u8(0..5) {
        0 => o.set_prefix_extractor(SliceTransform::create_fixed_prefix(rng.usize(1..6))),
        1 => o.set_prefix_extractor(SliceTransform::create_capped_prefix(rng.usize(1..25))),
        _ => {}
    }
    if rng.bool() {
        o.set_memtable_prefix_bloom_ratio(0.1);
        o.set_memtable_whole_key_filtering(rng.bool());
    }
    if rng.u8(0..3) == 0 {
        // Jobs that only age asks for; everything here is young, but the clock may not stand still.
        o.set_periodic_compaction_seconds(1);
    }
    let mut t = BlockBasedOptions::default();
    t.set_whole_key_filtering(rng.bool());
    t.set_block_size(one(rng, &[256, 1024, 4096, 16384]));
    t.set_block_restart_interval(one(rng, &[1, 2, 16]));
    t.set_index_block_restart_interval(one(rng, &[1, 4]));
    t.set_format_version(rng.i32(5..8));
    t.set_bloom_filter(one(rng, &[0.0, 3.0, 10.0]), false);
    t.set_checksum_type(one(rng, &[ChecksumType::Crc32c, ChecksumType::XxHash64, ChecksumType::Xxh3]));
    if rng.bool() {
        t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        t.set_metadata_block_size(512);
        t.set_partition_filters(rng.bool());
    }
    if rng.bool() {
        t.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    }
    if rng.u8(0..4) == 0 {
        t.disable_cache();
    }
    o.set_block_based_table_factory(&t);
    o
}

/// A column family's own part on top of `options`.
pub fn family_options(options: &Options, cf: usize) -> Options {
    let mut o = options.clone();
    match cf {
        MERGING => o.set_merge_operator_object(Arc::new(StringAppendOperator::default())),
        REVERSED => o.set_comparator_object(Arc::new(ReverseBytewiseComparator)),
        FILTERED => o.set_compaction_filter("model", filter),
        _ => {}
    }
    o
}

/// All column families, to open them.
pub fn descriptors(options: &Options) -> Vec<ColumnFamilyDescriptor> {
    let families = CFS.iter().enumerate();
    families.map(|(i, name)| ColumnFamilyDescriptor::new(*name, family_options(options, i))).collect()
}

pub fn open(path: &Path, options: &Options) -> Db {
    Db::open_cf_descriptors(options, path, descriptors(options)).unwrap()
}

/// Options at random, changed in an open database.
pub fn change_options(rng: &mut fastrand::Rng, db: &Db) {
    let cf = db.cf_handle(CFS[rng.usize(0..CFS.len())]).unwrap();
    let size = (rng.u64(8..100) << 10).to_string();
    let small = rng.u8(1..6).to_string();
    let change = match rng.u8(0..10) {
        0 => ("write_buffer_size", size.as_str()),
        1 => ("target_file_size_base", size.as_str()),
        2 => ("level0_file_num_compaction_trigger", one(rng, &["1", "2", "4"])),
        3 => ("compression", one(rng, &["kNoCompression", "kSnappyCompression", "kZSTD"])),
        4 => ("block_based_table_factory", one(rng, &["{block_size=512}", "{filter_policy=bloomfilter:8:false}"])),
        5 => ("disable_auto_compactions", one(rng, &["false", "false", "true"])),
        6 => return db.set_db_options(&[("max_background_jobs", &small)]).unwrap(),
        7 => return db.set_db_options(&[("max_subcompactions", &small)]).unwrap(),
        8 => return db.set_db_options(&[("max_open_files", one(rng, &["-1", "12"]))]).unwrap(),
        _ => return db.set_db_options(&[("max_total_wal_size", &size)]).unwrap(),
    };
    db.set_options_cf(&cf, &[change]).unwrap();
}
