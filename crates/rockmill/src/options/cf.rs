//! Options of a column family.

use std::sync::Arc;

use rockmill_format::SliceTransform;
use rockmill_format::comparator::{BytewiseComparator, Comparator, CompareFn, FnComparator, comparator_named};

use super::declare::declare_options;
use super::file::Carried;
use super::{
    BlockBasedOptions, CompactionPri, CompactionStyle, CompressionOptions, CompressionType, DBPath, DataBlockIndexType,
    FifoCompactOptions, Options, TableKind, TphTableOptions, UniversalCompactOptions,
};
use super::{parse, paths};
use crate::compaction_filter::{CompactionFilterFactory as _, SharedFactory, SharedFilter};
use crate::merge_operator::{self, MergeOperator, StringAppendOperator};
use crate::table::Cache;

/// A value of `ttl` and `periodic_compaction_seconds` that leaves the choice to the store.
pub const DEFAULT_AGE: u64 = u64::MAX - 1;

declare_options! {
    /// Options of a column family (RocksDB's `ColumnFamilyOptions`).
    pub struct CfOptions;
    setters of Options at cf;
    beside {
        /// What an OPTIONS file had in addition; it stays with the options when they are copied.
        carried: Carried,
    }

    /// Order of user keys; its name is stored and checked.
    comparator: Arc<dyn Comparator> = Arc::new(BytewiseComparator), object(|c| c.name().to_owned(), comparator_named);
    /// What merge operands do to values; its name is stored in tables.
    merge_operator: Option<Arc<dyn MergeOperator>> = None, object(merge_operator_text, merge_operator_named);
    /// Decides about values in compactions; takes precedence over the factory.
    compaction_filter: Option<SharedFilter> = None, object(|f| named(f.as_ref().map(SharedFilter::name)));
    /// Makes the filters of compactions and flushes.
    compaction_filter_factory: Option<SharedFactory> = None, object(|f| named(f.as_ref().map(|f| f.name())));
    /// Makes the prefixes that filters hold. A table's prefixes are used only while the extractor has the name stored
    /// in the table. `set_options` takes `fixed:N` and `capped:N`.
    prefix_extractor: Option<SliceTransform> = None, mutable_object(extractor_text, extractor_named);
    /// Size of a memtable's Bloom filter as a part of the memtable's: 0 is none, more than 0.25 counts as 0.25, and 16
    /// MiB is the most. It holds prefixes if there is a prefix extractor, and whole keys with
    /// `memtable_whole_key_filtering`.
    memtable_prefix_bloom_size_ratio: f64 = 0.0, mutable, set_memtable_prefix_bloom_ratio;
    /// Let a memtable's Bloom filter hold whole keys, for lookups.
    memtable_whole_key_filtering: bool = false, mutable, set_memtable_whole_key_filtering;
    /// Write no filters into tables of the deepest level: for lookups that nearly always find their key.
    optimize_filters_for_hits: bool = false, fixed, set_optimize_filters_for_hits;
    /// Kind of table written. Tables of the other kind stay until compactions rewrite them. RocksDB refuses a database
    /// with TPH tables of several files (docs/tph.md).
    table_factory: TableKind = TableKind::BlockBased, fixed;
    /// Of block-based tables, and of TPH tables what they share with those.
    table: BlockBasedOptions = BlockBasedOptions::default(), part;
    /// Of TPH tables alone.
    tph: TphTableOptions = TphTableOptions::default(), part;
    /// Size of a memtable, in bytes; at least 4 KiB.
    write_buffer_size: usize = 64 << 20, mutable, set_write_buffer_size;
    /// How many range tombstones make a memtable full; 0 sets no limit. Reads look at all of them after each new one.
    memtable_max_range_deletions: u32 = 0, mutable, set_memtable_max_range_deletions;
    /// How many memtables, the active one included, there may be before writers stop; at least 2.
    max_write_buffer_number: i32 = 2, mutable, set_max_write_buffer_number;
    /// How many immutable memtables a flush waits for: fewer than `max_write_buffer_number`, and 1 with `atomic_flush`.
    min_write_buffer_number_to_merge: i32 = 1, fixed, set_min_write_buffer_number_to_merge;
    /// Number of L0 files that starts a compaction.
    level0_file_num_compaction_trigger: i32 = 4, mutable, set_level_zero_file_num_compaction_trigger;
    /// Number of L0 files at which the delay of writers is near its limit.
    level0_slowdown_writes_trigger: i32 = 20, mutable, set_level_zero_slowdown_writes_trigger;
    /// Number of L0 files that stops writers.
    level0_stop_writes_trigger: i32 = 36, mutable, set_level_zero_stop_writes_trigger;
    /// Levels of the tree: at least 2 with leveled compaction, 3 with `allow_ingest_behind`; at most 64.
    num_levels: i32 = 7, fixed, set_num_levels;
    /// Size of tables in the base level, in bytes.
    target_file_size_base: u64 = 64 << 20, mutable, set_target_file_size_base;
    /// How many times larger tables are in each deeper level.
    target_file_size_multiplier: i32 = 1, mutable, set_target_file_size_multiplier;
    /// Size of the base level, in bytes.
    max_bytes_for_level_base: u64 = 256 << 20, mutable, set_max_bytes_for_level_base;
    /// How much larger a level is than the one above.
    max_bytes_for_level_multiplier: f64 = 10.0, mutable, set_max_bytes_for_level_multiplier;
    /// A further size factor for each level, from L1 on; missing ones are 1. Only without dynamic level sizes.
    max_bytes_for_level_multiplier_additional: Vec<i32> = vec![1; 7], mutable;
    /// The rules by which tables are compacted. Unlike in RocksDB, an open database can change between
    /// `kCompactionStyleLevel` and `kCompactionStyleUniversal`, and from `kCompactionStyleFIFO` to either, without
    /// rewriting tables.
    compaction_style: CompactionStyle = CompactionStyle::Level, mutable, set_compaction_style;
    /// Which table of a level leveled compaction takes first. In RocksDB, only an open can change it.
    compaction_pri: CompactionPri = CompactionPri::MinOverlappingRatio, mutable, set_compaction_pri;
    /// DF-compaction: a level that is full again does not wait for a job into the next one, but begins another whose
    /// output is an extra run there. `kCompactionStyleLevel` then means df-leveled, `kCompactionStyleUniversal`
    /// df-tiered. While a level has extra runs, RocksDB refuses the directory.
    compaction_downforce: bool = false, own, set_compaction_downforce;
    /// With df-leveled, how much of a base run a merge of extra runs may rewrite while writers are active, in percent.
    /// 100 is what `level0_file_num_compaction_trigger` runs of the largest size of the level above would rewrite. A
    /// lower number writes fewer bytes and leaves more sorted runs; 0 merges only where a writer would otherwise wait.
    /// Once writers rest, all are merged. Figures: docs/simulator.md, "Bytes against runs".
    compaction_downforce_merge_percent: u32 = 150, own, set_compaction_downforce_merge_percent;
    /// With df-leveled, merge a level's extra runs as soon as no job holds any of the level, whatever that costs, as in
    /// the paper. For comparison: it writes more and leaves fewer sorted runs.
    compaction_downforce_merge_at_once: bool = false, own, set_compaction_downforce_merge_at_once;
    /// The strategies of textbooks, for comparison: only one job at a time reads from a level, and a full level accepts
    /// no input. With `kCompactionStyleLevel` each level is one sorted run, and each L0 table goes down alone; with
    /// `kCompactionStyleUniversal` a level has up to `level0_file_num_compaction_trigger` sorted runs, which then
    /// become one of the next level. While there are such extra runs, RocksDB refuses the directory.
    compaction_classic: bool = false, own, set_compaction_classic;
    /// The options of FIFO compaction.
    compaction_options_fifo: FifoCompactOptions = FifoCompactOptions::default(), mutable;
    /// The options of universal compaction.
    compaction_options_universal: UniversalCompactOptions = UniversalCompactOptions::default(), mutable;
    /// Derive level sizes from the last one upwards. Leveled compaction only.
    level_compaction_dynamic_level_bytes: bool = true, fixed, set_level_compaction_dynamic_level_bytes;
    /// Compaction debt, in bytes, at which the delay of writers is near its limit; 0 takes
    /// `hard_pending_compaction_bytes_limit`.
    soft_pending_compaction_bytes_limit: u64 = 64 << 30, mutable, set_soft_pending_compaction_bytes_limit;
    /// Compaction debt, in bytes, that stops writers.
    hard_pending_compaction_bytes_limit: u64 = 256 << 30, mutable, set_hard_pending_compaction_bytes_limit;
    /// The most bytes of input and overlap of one compaction; 0 means 25 times the table size.
    max_compaction_bytes: u64 = 0, mutable, set_max_compaction_bytes;
    /// Compact only on request.
    disable_auto_compactions: bool = false, mutable, set_disable_auto_compactions;
    /// Directories of the column family's tables, and how many bytes each is meant to take; empty takes `db_paths`.
    /// Give them at every open: no OPTIONS file has them.
    cf_paths: Vec<DBPath> = Vec::new(), paths(paths::text, paths::read);
    /// Compression of table blocks, unless an option for their level says otherwise.
    compression: CompressionType = CompressionType::Snappy, mutable, set_compression_type;
    /// Compression of blocks of the deepest level.
    bottommost_compression: Option<CompressionType> = None, mutable;
    /// How blocks are compressed.
    compression_opts: CompressionOptions = CompressionOptions::default(), mutable;
    /// The same for the deepest level, used if `enabled` is set.
    bottommost_compression_opts: CompressionOptions = CompressionOptions::default(), mutable;
    /// Compression of each level (with dynamic levels: L0, then the base level, …); empty uses `compression`.
    compression_per_level: Vec<CompressionType> = Vec::new(), mutable;
    /// Seconds after which a table's data moves down a level; 0 is never, the default 30 days.
    ttl: u64 = DEFAULT_AGE, mutable, set_ttl;
    /// Seconds after which a table is rewritten; 0 is never. The default is 30 days with a compaction filter, otherwise
    /// never.
    periodic_compaction_seconds: u64 = DEFAULT_AGE, mutable, set_periodic_compaction_seconds;
    /// Bytes by which the arena of a memtable grows; 0 lets the store choose.
    arena_block_size: usize = 0, mutable, set_arena_block_size;
}

/// An object as OPTIONS files have it.
fn named(name: Option<&str>) -> String {
    name.unwrap_or("nullptr").to_owned()
}

impl CfOptions {
    /// True when compactions ask a filter.
    pub(crate) fn has_compaction_filter(&self) -> bool {
        self.compaction_filter.is_some() || self.compaction_filter_factory.is_some()
    }
}

/// RocksDB's prefix extractors by their names.
fn extractor_named(name: &str) -> Option<Option<SliceTransform>> {
    if name.is_empty() || name == "nullptr" { Some(None) } else { SliceTransform::from_name(name).map(Some) }
}

/// As OPTIONS files have it.
fn extractor_text(extractor: &Option<SliceTransform>) -> String {
    named(extractor.as_ref().map(|e| e.name()))
}

/// As OPTIONS files have it.
fn merge_operator_text(operator: &Option<Arc<dyn MergeOperator>>) -> String {
    operator.as_ref().map_or_else(|| named(None), |o| o.option_text())
}

/// RocksDB's merge operators as OPTIONS files have them: `uint64add`, `{id=StringAppendOperator;delimiter=,;}`.
pub(crate) fn merge_operator_named(text: &str) -> Option<Option<Arc<dyn MergeOperator>>> {
    if text.is_empty() || text == "nullptr" {
        return Some(None);
    }
    let (id, properties) = parse::object(text).ok()?;
    match properties.as_slice() {
        [] => merge_operator::by_name(&id).map(Some),
        [(name, delimiter)] if name == "delimiter" && matches!(&*id, "StringAppendOperator" | "stringappend") => {
            Some(Some(Arc::new(StringAppendOperator::new(parse::unescape(delimiter)))))
        }
        _ => None,
    }
}

impl CfOptions {
    /// True when level sizes follow from the last level's.
    pub(crate) fn dynamic_levels(&self) -> bool {
        self.level_compaction_dynamic_level_bytes && self.compaction_style == CompactionStyle::Level
    }
}

impl Options {
    /// Compression of the deepest level.
    pub fn set_bottommost_compression_type(&mut self, value: CompressionType) {
        self.cf.bottommost_compression = Some(value);
    }

    /// How much larger each level is than `max_bytes_for_level_multiplier` says, from L0 on.
    pub fn set_max_bytes_for_level_multiplier_additional(&mut self, level_values: &[i32]) {
        self.cf.max_bytes_for_level_multiplier_additional = level_values.to_vec();
    }

    /// Compression of each level.
    pub fn set_compression_per_level(&mut self, levels: &[CompressionType]) {
        self.cf.compression_per_level = levels.to_vec();
    }

    /// Writes block-based tables, with these options.
    pub fn set_block_based_table_factory(&mut self, table: &BlockBasedOptions) {
        self.cf.table_factory = TableKind::BlockBased;
        self.cf.table = table.clone();
    }

    /// Writes TPH tables, with these options. Existing block-based tables stay readable. RocksDB refuses a database
    /// with TPH tables.
    pub fn set_tph_table_factory(&mut self, table: &TphTableOptions) {
        let mut tph = table.clone();
        if let Some(block_based) = tph.block_based.take() {
            self.cf.table = block_based;
        }
        self.cf.table_factory = TableKind::Tph;
        self.cf.tph = tph;
    }

    /// Orders keys by a function. The name is stored in the database, which opens with a comparator of this name only.
    pub fn set_comparator(&mut self, name: impl Into<String>, compare: Box<CompareFn>) {
        self.cf.comparator = Arc::new(FnComparator::new(name, compare));
    }

    /// Orders keys by a comparator that is an object: `ReverseBytewiseComparator`, `HashRangeComparator`, or one that
    /// shortens separators.
    pub fn set_comparator_object(&mut self, comparator: Arc<dyn Comparator>) {
        self.cf.comparator = comparator;
    }

    /// Makes the prefixes that filters hold.
    pub fn set_prefix_extractor(&mut self, extractor: SliceTransform) {
        self.cf.prefix_extractor = Some(extractor);
    }

    /// RocksDB's shorthand for lookups by key: a Bloom filter of 10 bits a key, a hash index in data blocks, a cache of
    /// the given number of MiB, and a Bloom filter in memtables.
    pub fn optimize_for_point_lookup(&mut self, block_cache_mb: u64) {
        let bytes = usize::try_from(block_cache_mb.saturating_mul(1 << 20)).unwrap_or(usize::MAX);
        let mut table = BlockBasedOptions::default();
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        table.set_data_block_hash_ratio(0.75);
        table.set_bloom_filter(10.0, false);
        table.set_block_cache(&Cache::new_lru_cache(bytes));
        self.set_block_based_table_factory(&table);
        self.cf.memtable_prefix_bloom_size_ratio = 0.02;
        self.cf.memtable_whole_key_filtering = true;
    }
}
