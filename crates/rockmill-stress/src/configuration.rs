//! The list of configurations for the crash, fault, metamorphic and stress tests.
//!
//! A configuration is one choice on each axis ([`AXES`]). It is written as `engine=pread,compression=lz4`: axes not
//! named have their first choice. To let an engine, a strategy or a format join all tests, add a choice here.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rockmill::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ChecksumType, CompactionPri, CompactionStyle, CompressionType,
    DataBlockIndexType, FifoCompactOptions, KernelDriver, MergeEngine, Options, SliceTransform, TphTableOptions,
    UniversalCompactOptions, WriteBufferManager, probe_kernel_engine,
};
use rockmill_kernel::Pool;
use rockmill_kernel::instance::{COUNTERS_EXAMPLE, EXPIRE_EXAMPLE, REVERSE_EXAMPLE};
use rockmill_skip::{Missing, Needs};

use crate::workers::workers;

/// The options that a configuration sets. Table options are separate because they are put into the database's options
/// as a whole at the end.
#[derive(Default)]
pub struct Draft {
    /// Of the database and its column families.
    pub options: Options,
    /// Of the tables.
    pub table: BlockBasedOptions,
    /// Of TPH tables, where those are written.
    pub tph: Option<TphTableOptions>,
}

impl Draft {
    /// Tables are TPH tables.
    fn tph(&mut self, piece_limit: u32, garbage_percent: u32) {
        let mut tph = TphTableOptions::default();
        tph.set_piece_limit(piece_limit);
        tph.set_garbage_percent(garbage_percent);
        self.tph = Some(tph);
    }
}

/// One possible value of an axis.
pub struct Choice {
    /// Its name, without `,` and `=`.
    pub name: &'static str,
    /// What it sets.
    pub apply: fn(&mut Draft),
}

/// A property of a store with several choices.
pub struct Axis {
    /// Its name, without `,` and `=`.
    pub name: &'static str,
    /// Its choices; the first one is the default.
    pub choices: &'static [Choice],
}

/// Short for a [`Choice`].
const fn is(name: &'static str, apply: fn(&mut Draft)) -> Choice {
    Choice { name, apply }
}

/// Keeps the kernel engine's instances for the life of the process: tests open thousands of databases, and the kernel
/// needs a third of a second to verify the program of each new instance.
fn hold_instances() {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    POOL.get_or_init(Pool::shared);
}

/// The reason if the kernel cannot merge with a driver; the kernel is asked only once.
fn missing_driver(driver: KernelDriver) -> Option<String> {
    static KNOWN: [OnceLock<Option<String>>; KernelDriver::ALL.len()] =
        [const { OnceLock::new() }; KernelDriver::ALL.len()];
    KNOWN[driver as usize].get_or_init(|| probe_kernel_engine(driver).err().map(|e| e.reason)).clone()
}

/// Every axis. Sizes are small, so that short histories already have flushes, compactions and several levels.
pub const AXES: &[Axis] = &[
    Axis {
        name: "engine",
        choices: &[
            is("pread", |d| d.options.set_merge_engine(MergeEngine::Pread)),
            is("uring", |d| d.options.set_merge_engine(MergeEngine::Uring)),
            // If it is not available, `auto` does its work and reports that in the log.
            is("kernel", |d| {
                hold_instances();
                d.options.set_merge_engine(MergeEngine::Kernel);
            }),
            // Separate from the choice above, so that a machine without this driver merges in the kernel equally often.
            is("kernel-loop", |d| {
                hold_instances();
                d.options.set_merge_engine(MergeEngine::Kernel);
                d.options.set_kernel_driver(KernelDriver::Loop);
            }),
        ],
    },
    Axis {
        // The merge program of the engine `kernel`. `expire` filters as column families of the kind `expiring` do,
        // `reverse` orders as those of the kind `reversed`, and `counters` combines operands as those of the kind
        // `counting` do: the kernel then merges these, by a program of their own.
        name: "program",
        choices: &[
            is("builtin", |_| {}),
            is("expire", |d| d.options.set_kernel_merge_program_object("expire.bpf.o", EXPIRE_EXAMPLE)),
            is("reverse", |d| d.options.set_kernel_merge_program_object("reverse.bpf.o", REVERSE_EXAMPLE)),
            is("counters", |d| d.options.set_kernel_merge_program_object("counters.bpf.o", COUNTERS_EXAMPLE)),
        ],
    },
    Axis {
        name: "strategy",
        choices: &[
            is("leveled", |_| {}),
            is("dynamic-levels", |d| {
                d.options.set_level_compaction_dynamic_level_bytes(true);
            }),
            is("tiered", |d| d.options.set_compaction_style(CompactionStyle::Universal)),
            is("tiered-moves", |d| {
                d.options.set_compaction_style(CompactionStyle::Universal);
                let mut universal = UniversalCompactOptions::default();
                universal.set_allow_trivial_move(true);
                universal.set_size_ratio(50);
                universal.set_max_size_amplification_percent(400);
                d.options.set_universal_compaction_options(&universal);
            }),
            is("df-leveled", |d| d.options.set_compaction_downforce(true)),
            is("df-tiered", |d| {
                d.options.set_compaction_style(CompactionStyle::Universal);
                d.options.set_compaction_downforce(true);
            }),
            is("classic-leveled", |d| d.options.set_compaction_classic(true)),
            is("classic-tiered", |d| {
                d.options.set_compaction_style(CompactionStyle::Universal);
                d.options.set_compaction_classic(true);
            }),
            // So large that nothing has to be dropped: a separate test (`fifo.rs`) covers that.
            is("fifo", |d| {
                d.options.set_compaction_style(CompactionStyle::Fifo);
                let mut fifo = FifoCompactOptions::default();
                fifo.set_max_table_files_size(1 << 40);
                fifo.set_allow_compaction(true);
                d.options.set_fifo_compaction_options(&fifo);
            }),
        ],
    },
    Axis {
        name: "memtable",
        choices: &[
            is("16k", |d| d.options.set_write_buffer_size(16 << 10)),
            is("64k", |d| d.options.set_write_buffer_size(64 << 10)),
            is("1m", |d| d.options.set_write_buffer_size(1 << 20)),
            is("merged", |d| {
                d.options.set_write_buffer_size(24 << 10);
                d.options.set_max_write_buffer_number(4);
                d.options.set_min_write_buffer_number_to_merge(2);
            }),
        ],
    },
    Axis {
        name: "memory",
        choices: &[
            is("own", |_| {}),
            is("shared", |d| {
                d.options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager(200 << 10, false));
            }),
            is("stalls", |d| {
                d.options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager(150 << 10, true));
            }),
            is("bounded", |d| d.options.set_db_write_buffer_size(100 << 10)),
        ],
    },
    Axis {
        name: "memtable-filter",
        choices: &[
            is("no", |_| {}),
            is("yes", |d| {
                d.options.set_memtable_prefix_bloom_ratio(0.1);
                d.options.set_memtable_whole_key_filtering(true);
            }),
            is("prefix", |d| d.options.set_memtable_prefix_bloom_ratio(0.1)),
        ],
    },
    Axis {
        name: "inserts",
        choices: &[
            is("together", |_| {}),
            is("one-by-one", |d| d.options.set_allow_concurrent_memtable_write(false)),
            is("small-groups", |d| d.options.set_max_write_batch_group_size_bytes(200)),
        ],
    },
    Axis {
        name: "files",
        choices: &[
            is("small", |d| {
                d.options.set_target_file_size_base(8 << 10);
                d.options.set_max_bytes_for_level_base(32 << 10);
                d.options.set_max_bytes_for_level_multiplier(4.0);
            }),
            is("large", |d| {
                d.options.set_target_file_size_base(256 << 10);
                d.options.set_max_bytes_for_level_base(1 << 20);
            }),
            is("short-jobs", |d| {
                d.options.set_target_file_size_base(10 << 10);
                d.options.set_max_bytes_for_level_base(20 << 10);
                d.options.set_max_bytes_for_level_multiplier(2.0);
                d.options.set_max_compaction_bytes(30 << 10);
            }),
        ],
    },
    Axis {
        name: "stalls",
        choices: &[
            is("seldom", |_| {}),
            is("often", |d| {
                d.options.set_level_zero_slowdown_writes_trigger(3);
                d.options.set_level_zero_stop_writes_trigger(5);
                d.options.set_soft_pending_compaction_bytes_limit(100 << 10);
                d.options.set_hard_pending_compaction_bytes_limit(400 << 10);
            }),
        ],
    },
    Axis {
        name: "aging",
        choices: &[
            is("no", |_| {}),
            // All data is young, but time passes.
            is("yes", |d| {
                d.options.set_periodic_compaction_seconds(1);
                d.options.set_ttl(2);
            }),
        ],
    },
    Axis {
        name: "compression",
        choices: &[
            is("none", |d| d.options.set_compression_type(CompressionType::None)),
            is("snappy", |d| d.options.set_compression_type(CompressionType::Snappy)),
            is("lz4", |d| d.options.set_compression_type(CompressionType::Lz4)),
            is("zstd", |d| d.options.set_compression_type(CompressionType::Zstd)),
            is("zlib", |d| d.options.set_compression_type(CompressionType::Zlib)),
            is("by-level", |d| {
                use CompressionType::{Lz4, None, Zstd};
                d.options.set_compression_per_level(&[None, None, Lz4, Zstd]);
            }),
            is("dictionary", |d| {
                d.options.set_compression_type(CompressionType::Zstd);
                d.options.set_compression_options(-14, 3, 0, 4 << 10);
                d.options.set_zstd_max_train_bytes(16 << 10);
            }),
        ],
    },
    Axis {
        // Blocks that are passed to other threads, for all engines and compressions.
        name: "helpers",
        choices: &[
            is("none", |d| d.options.set_compaction_helper_threads(0)),
            is("one", |d| d.options.set_compaction_helper_threads(1)),
            is("three", |d| d.options.set_compaction_helper_threads(3)),
            is("idle", |d| d.options.set_compaction_helper_threads(-1)),
        ],
    },
    Axis {
        name: "bottommost",
        choices: &[
            is("same", |_| {}),
            is("zstd", |d| d.options.set_bottommost_compression_type(CompressionType::Zstd)),
            is("none", |d| d.options.set_bottommost_compression_type(CompressionType::None)),
        ],
    },
    Axis {
        // The kind of tables; TPH tables with their file limit and the allowed percentage of stale data.
        name: "table",
        choices: &[
            is("block-based", |_| {}),
            is("tph", |d| d.tph(16, 20)),
            is("tph-1", |d| d.tph(1, 0)),
            is("tph-2", |d| d.tph(2, 100)),
            is("tph-4", |d| d.tph(4, 0)),
            is("tph-16", |d| d.tph(16, 100)),
        ],
    },
    Axis {
        name: "block",
        choices: &[
            is("4k", |d| d.table.set_block_size(4096)),
            is("256", |d| d.table.set_block_size(256)),
            is("16k", |d| d.table.set_block_size(16384)),
        ],
    },
    Axis {
        name: "restarts",
        choices: &[
            is("16", |_| {}),
            is("1", |d| d.table.set_block_restart_interval(1)),
            is("4", |d| {
                d.table.set_block_restart_interval(4);
                d.table.set_index_block_restart_interval(3);
            }),
        ],
    },
    Axis {
        name: "format",
        choices: &[
            is("6", |d| d.table.set_format_version(6)),
            is("5", |d| d.table.set_format_version(5)),
            is("7", |d| d.table.set_format_version(7)),
        ],
    },
    Axis {
        name: "checksum",
        choices: &[
            is("xxh3", |d| d.table.set_checksum_type(ChecksumType::Xxh3)),
            is("crc32c", |d| d.table.set_checksum_type(ChecksumType::Crc32c)),
            is("xxhash64", |d| d.table.set_checksum_type(ChecksumType::XxHash64)),
        ],
    },
    Axis {
        name: "index",
        choices: &[
            is("binary", |_| {}),
            is("two-level", |d| {
                d.table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
                d.table.set_partition_filters(true);
                d.table.set_metadata_block_size(512);
            }),
            is("hash", |d| d.table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash)),
        ],
    },
    Axis {
        name: "filter",
        choices: &[
            is("bloom", |d| d.table.set_bloom_filter(10.0, false)),
            is("none", |_| {}),
            is("poor", |d| d.table.set_bloom_filter(2.0, false)),
            is("prefix", |d| {
                d.table.set_bloom_filter(10.0, false);
                d.table.set_whole_key_filtering(false);
            }),
            is("hits", |d| {
                d.table.set_bloom_filter(10.0, false);
                d.options.set_optimize_filters_for_hits(true);
            }),
        ],
    },
    Axis {
        name: "prefix",
        choices: &[
            is("none", |_| {}),
            is("fixed", |d| d.options.set_prefix_extractor(SliceTransform::create_fixed_prefix(4))),
            is("capped", |d| d.options.set_prefix_extractor(SliceTransform::create_capped_prefix(24))),
        ],
    },
    Axis {
        name: "cache",
        choices: &[
            is("shared", |_| {}),
            is("tiny", |d| d.table.set_block_cache(&Cache::new_lru_cache(64 << 10))),
            is("none", |d| d.table.disable_cache()),
            is("rows", |d| {
                let cache = Cache::new_lru_cache(64 << 10);
                rockmill::internals::keep_rows(&cache);
                d.table.set_block_cache(&cache);
            }),
            is("index", |d| {
                d.table.set_block_cache(&Cache::new_lru_cache(256 << 10));
                d.table.set_cache_index_and_filter_blocks(true);
                d.table.set_pin_l0_filter_and_index_blocks_in_cache(true);
            }),
        ],
    },
    Axis {
        name: "direct",
        choices: &[
            is("no", |_| {}),
            is("yes", |d| {
                d.options.set_use_direct_reads(true);
                d.options.set_use_direct_io_for_flush_and_compaction(true);
            }),
        ],
    },
    Axis {
        name: "open-files",
        choices: &[is("all", |d| d.options.set_max_open_files(-1)), is("12", |d| d.options.set_max_open_files(12))],
    },
    Axis {
        name: "jobs",
        choices: &[
            is("2", |d| d.options.set_max_background_jobs(2)),
            is("4", |d| {
                d.options.set_max_background_jobs(4);
                d.options.set_max_subcompactions(3);
            }),
            is("1", |d| d.options.set_max_background_jobs(1)),
        ],
    },
    Axis {
        name: "readahead",
        choices: &[
            is("2m", |_| {}),
            is("none", |d| {
                d.options.set_compaction_readahead_size(0);
                d.table.set_max_auto_readahead_size(0);
            }),
            is("4k", |d| {
                d.options.set_compaction_readahead_size(4096);
                d.table.set_initial_auto_readahead_size(1000);
                d.table.set_max_auto_readahead_size(4096);
            }),
        ],
    },
    Axis {
        name: "rate",
        // Fast enough to wait seldom.
        choices: &[is("free", |_| {}), is("limited", |d| d.options.set_ratelimiter(200 << 20, 10_000, 10))],
    },
    Axis {
        name: "write-back",
        choices: &[
            is("late", |_| {}),
            is("early", |d| {
                d.options.set_bytes_per_sync(4096);
                d.options.set_wal_bytes_per_sync(4096);
                d.options.set_strict_bytes_per_sync(true);
                d.options.set_writable_file_max_buffer_size(2000);
                d.options.set_use_fsync(true);
            }),
        ],
    },
    Axis { name: "counts", choices: &[is("no", |_| {}), is("yes", |d| d.options.enable_statistics())] },
    Axis {
        name: "wal",
        choices: &[
            is("new", |_| {}),
            is("recycled", |d| d.options.set_recycle_log_file_num(2)),
            is("kept", |d| {
                d.options.set_avoid_flush_during_recovery(true);
                d.options.set_wal_ttl_seconds(3600);
            }),
            is("manual", |d| d.options.set_manual_wal_flush(true)),
            is("short", |d| d.options.set_max_total_wal_size(30 << 10)),
        ],
    },
    Axis {
        // Where values are until they are flushed: in memtables, or in WALs with a size limit.
        name: "front",
        choices: &[
            is("memtables", |_| {}),
            is("logs", |d| {
                d.options.set_fast_path("", 300 << 10);
                d.options.set_max_index_size(16 << 10);
                d.options.set_data_flush_trigger_size(50 << 10);
                d.options.set_index_inline_size(8);
            }),
            is("short-logs", |d| {
                d.options.set_fast_path("", 64 << 10);
                d.options.set_max_index_size(16 << 10);
                d.options.set_index_inline_size(0);
            }),
        ],
    },
    Axis {
        // Who does compactions: the store, or a worker over NVMe/TCP.
        name: "worker",
        choices: &[is("none", |_| {}), is("loopback", |d| d.options.set_compaction_workers(workers()))],
    },
    Axis { name: "flush", choices: &[is("each", |_| {}), is("atomic", |d| d.options.set_atomic_flush(true))] },
    Axis {
        name: "manifest",
        choices: &[is("large", |_| {}), is("rolls", |d| d.options.set_max_manifest_file_size(1500))],
    },
    Axis {
        // Which table of a level is compacted first.
        name: "priority",
        choices: &[
            is("overlap", |_| {}),
            is("round-robin", |d| d.options.set_compaction_pri(CompactionPri::RoundRobin)),
            is("size", |d| d.options.set_compaction_pri(CompactionPri::ByCompensatedSize)),
            is("oldest-largest", |d| d.options.set_compaction_pri(CompactionPri::OldestLargestSeqFirst)),
            is("oldest-smallest", |d| d.options.set_compaction_pri(CompactionPri::OldestSmallestSeqFirst)),
        ],
    },
];

/// One choice on each axis.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// For each axis, the index of the choice.
    chosen: Vec<usize>,
}

impl Default for Configuration {
    /// The first choice everywhere.
    fn default() -> Self {
        Self { chosen: vec![0; AXES.len()] }
    }
}

impl Configuration {
    /// The same without a worker: its jobs mostly wait for messages, which is slow where thousands of databases are
    /// opened.
    pub fn without_worker(self) -> Self {
        self.clone().with("worker", "none").unwrap_or(self)
    }

    /// Any configuration. One in eight has a worker.
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        let choose = |axis: &Axis| match axis.name {
            "worker" => usize::from(rng.u8(..8) == 0),
            _ => rng.usize(..axis.choices.len()),
        };
        Self { chosen: AXES.iter().map(choose).collect() }
    }

    /// A few configurations that together contain every pair of choices of different axes.
    pub fn pairs() -> Vec<Self> {
        let mut missing: Vec<(usize, usize, usize, usize)> = Vec::new();
        for (a, first) in AXES.iter().enumerate() {
            for (b, second) in AXES.iter().enumerate().skip(a + 1) {
                for i in 0..first.choices.len() {
                    missing.extend((0..second.choices.len()).map(|j| (a, i, b, j)));
                }
            }
        }
        let mut all = Vec::new();
        while let Some(&(a, i, b, j)) = missing.first() {
            // Greedy: a pair that is still missing, then on each other axis the choice that covers most missing pairs.
            let mut chosen: Vec<Option<usize>> = vec![None; AXES.len()];
            (chosen[a], chosen[b]) = (Some(i), Some(j));
            for c in 0..AXES.len() {
                if chosen[c].is_some() {
                    continue;
                }
                let gain = |k: usize| {
                    let met = |x: usize, y: usize| chosen[x] == Some(y);
                    let hits = |&&(p, q, r, s): &&(usize, usize, usize, usize)| {
                        (p == c && q == k && met(r, s)) || (r == c && s == k && met(p, q))
                    };
                    missing.iter().filter(hits).count()
                };
                // The first of the best, so that the list is deterministic.
                let best = (0..AXES[c].choices.len()).rev().max_by_key(|&k| gain(k));
                chosen[c] = best.or(Some(0));
            }
            let chosen: Vec<usize> = chosen.into_iter().map(|k| k.unwrap_or(0)).collect();
            missing.retain(|&(p, q, r, s)| chosen[p] != q || chosen[r] != s);
            all.push(Self { chosen });
        }
        all
    }

    /// The configuration with another choice on one axis.
    ///
    /// # Errors
    /// The axis or the choice is unknown; the message lists the known ones.
    pub fn with(mut self, axis: &str, choice: &str) -> Result<Self, String> {
        let list = |names: Vec<&str>| names.join(", ");
        let Some(a) = AXES.iter().position(|known| known.name == axis) else {
            let known = list(AXES.iter().map(|a| a.name).collect());
            return Err(format!("no axis of configurations is called {axis:?}: there are {known}"));
        };
        let Some(c) = AXES[a].choices.iter().position(|known| known.name == choice) else {
            let known = list(AXES[a].choices.iter().map(|c| c.name).collect());
            return Err(format!("{axis} cannot be {choice:?}: it can be {known}"));
        };
        self.chosen[a] = c;
        Ok(self)
    }

    /// Sets each `AXIS=CHOICE` of a comma-separated list.
    pub fn with_all(mut self, text: &str) -> Result<Self, String> {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty() && *part != "default") {
            let (axis, choice) = part.split_once('=').ok_or_else(|| format!("{part:?} is not AXIS=CHOICE"))?;
            self = self.with(axis, choice)?;
        }
        Ok(self)
    }

    /// For each axis that is not at its first choice: the axis and its first choice, for [`Self::with`].
    pub fn plainer(&self) -> Vec<(&'static str, &'static str)> {
        let all = AXES.iter().zip(&self.chosen).filter(|(_, c)| **c != 0);
        all.map(|(axis, _)| (axis.name, axis.choices[0].name)).collect()
    }

    /// The choice on an axis; empty for an unknown axis.
    pub fn get(&self, axis: &str) -> &'static str {
        let found = AXES.iter().zip(&self.chosen).find(|(known, _)| known.name == axis);
        found.map_or("", |(axis, &c)| axis.choices[c].name)
    }

    /// True if its strategy makes extra runs in levels, which RocksDB refuses.
    pub fn makes_extra_runs(&self) -> bool {
        let strategy = self.get("strategy");
        strategy.starts_with("df-") || strategy == "classic-tiered"
    }

    /// True if tables can consist of several files, which RocksDB does not support.
    pub fn shares_files(&self) -> bool {
        self.get("table").starts_with("tph")
    }

    /// What this machine does not support of it, and why.
    pub fn skipped(&self) -> Option<(String, Missing)> {
        let (driver, needs) = match self.get("engine") {
            "kernel" => (KernelDriver::Run, Needs::Kernel),
            "kernel-loop" => (KernelDriver::Loop, Needs::KernelLoop),
            _ => return None,
        };
        let by = match self.get("program") {
            "builtin" => String::new(),
            program => format!(" by the program {program}"),
        };
        let why = missing_driver(driver)?;
        Some((format!("merges in the kernel{by}, driver {driver}, which other engines do"), needs.because(why)))
    }

    /// The options of this configuration. The caller adds file system, clock, and the column families' objects.
    pub fn options(&self) -> Options {
        let mut draft = Draft::default();
        draft.options.create_if_missing(true);
        draft.options.create_missing_column_families(true);
        draft.options.set_level_zero_file_num_compaction_trigger(2);
        for (axis, &c) in AXES.iter().zip(&self.chosen) {
            (axis.choices[c].apply)(&mut draft);
        }
        let Draft { mut options, table, tph } = draft;
        if options.cf.compaction_style == CompactionStyle::Fifo {
            // With other strategies, old data then moves down; here it would be deleted.
            options.set_ttl(0);
        }
        options.set_block_based_table_factory(&table);
        if let Some(tph) = tph {
            options.set_tph_table_factory(&tph);
        }
        options
    }
}

/// The default with the kernel engine and the driver under test: `ROCKMILL_KERNEL_DRIVER`, or `run`.
///
/// # Panics
/// If there is no such driver.
pub fn kernel_engine() -> Configuration {
    let engine = match std::env::var("ROCKMILL_KERNEL_DRIVER").as_deref() {
        Ok("loop") => "kernel-loop",
        Err(_) | Ok("run") => "kernel",
        // invariant: the variable must name an existing driver.
        Ok(other) => panic!("ROCKMILL_KERNEL_DRIVER is run or loop, not {other:?}"),
    };
    Configuration::default().with("engine", engine).unwrap_or_default()
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = AXES.iter().zip(&self.chosen).filter(|(_, c)| **c != 0);
        let all: Vec<String> = all.map(|(axis, &c)| format!("{}={}", axis.name, axis.choices[c].name)).collect();
        f.write_str(if all.is_empty() { "default" } else { "" })?;
        f.write_str(&all.join(","))
    }
}

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Configuration({self})")
    }
}

impl std::str::FromStr for Configuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::default().with_all(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_configuration_gives_it_back() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..100 {
            let c = Configuration::random(&mut rng);
            assert_eq!(c.to_string().parse(), Ok(c));
        }
        assert_eq!("default".parse(), Ok(Configuration::default()));
        assert!("engine=steam".parse::<Configuration>().unwrap_err().contains("pread"));
        assert!("motor=pread".parse::<Configuration>().unwrap_err().contains("engine"));
    }

    #[test]
    fn every_two_choices_meet() {
        let all = Configuration::pairs();
        println!("{} configurations", all.len());
        for (a, first) in AXES.iter().enumerate() {
            for (b, second) in AXES.iter().enumerate().skip(a + 1) {
                for i in 0..first.choices.len() {
                    for j in 0..second.choices.len() {
                        assert!(all.iter().any(|c| c.chosen[a] == i && c.chosen[b] == j));
                    }
                }
            }
        }
        // The least possible number: each choice of the largest axis must be paired with each choice of the next
        // largest.
        let mut sizes: Vec<usize> = AXES.iter().map(|axis| axis.choices.len()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let least = sizes[0] * sizes[1];
        assert!(all.len() <= 2 * least, "{} configurations, of which {least} would do at best", all.len());
    }
}
