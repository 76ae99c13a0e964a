//! What users can query about the store: `rocksdb.*` properties and levels. The texts of several lines are in
//! `stats_text.rs`, tables in `live_files.rs`.

use std::fmt::Write;
use std::sync::Arc;

use crate::db::catalog::column_family::CfData;
use crate::db::report::approximate_sizes::estimate_live_data_size;
use crate::db::{AsColumnFamilyRef, CfState, Db, DbInner};
use crate::error::Result;
use crate::options::CompactionStyle;
use crate::pacing::decide::stop_of_leader;
use crate::pacing::index_tables::{IndexQueues, IndexSchedule};
use crate::properties as names;
use crate::sync::atomic::Ordering;
use crate::version::{Level, Version, each_file};

/// A level of a column family's tree.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LevelStats {
    /// 0 is the newest.
    pub level: usize,
    /// Tables.
    pub files: usize,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes that the level should hold; `None` for L0 and levels that are not in use.
    pub target_bytes: Option<u64>,
    /// Compaction score: a compaction is due at 1.
    pub score: f64,
    /// Tables that a compaction is reading.
    pub compacting: usize,
    /// Sorted runs above the level's base run, which DF-compaction and classic tiered compaction leave.
    pub extra_runs: usize,
    /// Bytes in them.
    pub extra_run_bytes: u64,
}

impl Db {
    /// A property of the default column family, as text; `None` for one that does not exist. The names are in
    /// [`crate::properties`].
    pub fn property_value(&self, name: impl AsRef<str>) -> Result<Option<String>> {
        self.property_value_cf(self.inner.catalog.default_cf(), name)
    }

    /// A property of a column family, as text; `None` for one that does not exist.
    pub fn property_value_cf(&self, cf: &impl AsColumnFamilyRef, name: impl AsRef<str>) -> Result<Option<String>> {
        let (db, cf, name) = (&self.inner, cf.as_cf(), name.as_ref());
        if let Some(n) = self.property_int_value_cf(cf, name)? {
            return Ok(Some(n.to_string()));
        }
        let version = || Arc::clone(&cf.data.current.load().version);
        if let Some(level) = name.strip_prefix("rocksdb.num-files-at-level") {
            return Ok(level_of(level, &version()).map(|files| files.len().to_string()));
        }
        if let Some(level) = name.strip_prefix("rocksdb.compression-ratio-at-level") {
            let version = version();
            let Some(files) = level_of(level, &version) else { return Ok(None) };
            return Ok(Some(format!("{:.6}", db.compression_ratio(&cf.data, files))));
        }
        if let Some(level) = name.strip_prefix("rocksdb.aggregated-table-properties-at-level") {
            let version = version();
            let Some(files) = level_of(level, &version) else { return Ok(None) };
            return db.aggregated_properties(&cf.data, &files.iter().collect::<Vec<_>>()).map(Some);
        }
        Ok(match name {
            names::AGGREGATED_TABLE_PROPERTIES => {
                let version = version();
                let files: Vec<_> = version.levels.iter().flatten().collect();
                Some(db.aggregated_properties(&cf.data, &files)?)
            }
            names::MERGE_ENGINE => Some(db.engines.describe(&db.live())),
            names::LEVELSTATS => Some(level_text(&version())),
            names::SSTABLES => Some(db.tables_text(&version(), cf.data.super_version_number())),
            names::STATS => db.cf_stats_text(cf.id(), false).map(|s| s + &db.db_stats_text()),
            names::CFSTATS | names::CFSTATS_NO_FILE_HISTOGRAM => db.cf_stats_text(cf.id(), false),
            names::DBSTATS => Some(db.db_stats_text()),
            names::OPTIONS_STATISTICS => db.opts.statistics.as_ref().map(ToString::to_string),
            "rockmill.write-stall-reason" => Some(db.pacing.writers().reason().name().to_owned()),
            "rockmill.background-error" => {
                Some(db.state.lock().errors().worst().map_or_else(String::new, ToString::to_string))
            }
            _ => None,
        })
    }

    /// A property of the default column family, as a number; `None` for one that does not exist or is text.
    pub fn property_int_value(&self, name: impl AsRef<str>) -> Result<Option<u64>> {
        self.property_int_value_cf(self.inner.catalog.default_cf(), name)
    }

    /// A property of a column family, as a number; `None` for one that does not exist or is text.
    pub fn property_int_value_cf(&self, cf: &impl AsColumnFamilyRef, name: impl AsRef<str>) -> Result<Option<u64>> {
        let (db, cf) = (&self.inner, &cf.as_cf().data);
        db.check_family(cf)?;
        Ok(db.int_property(cf, name.as_ref()).or_else(|| {
            let state = db.state.lock();
            state.family(cf.id).and_then(|c| db.locked_property(&state, c, name.as_ref()))
        }))
    }

    /// The levels of a column family.
    pub fn level_stats(&self, cf: &impl AsColumnFamilyRef) -> Vec<LevelStats> {
        let state = self.inner.state.lock();
        let cf = Some(&cf.as_cf().data).filter(|cf| self.inner.check_family(cf).is_ok());
        cf.and_then(|cf| state.family(cf.id)).map(levels).unwrap_or_default()
    }

    /// Bytes that compactions must still rewrite until a column family's tree has its shape.
    pub fn compaction_debt(&self, cf: &impl AsColumnFamilyRef) -> u64 {
        let state = self.inner.state.lock();
        let cf = Some(&cf.as_cf().data).filter(|cf| self.inner.check_family(cf).is_ok());
        cf.and_then(|cf| state.family(cf.id)).map_or(0, |c| c.jobs().scores().pending_bytes)
    }
}

impl DbInner {
    /// Numbers that need no lock of the database, or must not be gathered under it.
    pub(crate) fn int_property(&self, cf: &CfData, name: &str) -> Option<u64> {
        let current = cf.current.load_full();
        let version = &current.version;
        let files = || version.levels.iter().flatten();
        let bytes = || each_file(files()).map(|f| f.size).sum();
        let pieces = || version.pieces().totals();
        let tph_index = || version.tph_index();
        let cache = || self.readers.tables().cache_of(cf);
        Some(match name {
            names::ESTIMATE_NUM_KEYS => {
                let front = current.front.stats();
                (front.entries + self.keys_in_tables(cf, version)).saturating_sub(2 * front.deletes)
            }
            names::ESTIMATE_TABLE_READERS_MEM => {
                files().filter_map(|f| f.table.load_full()).map(|t| t.memory_usage() as u64).sum()
            }
            names::ESTIMATE_LIVE_DATA_SIZE => estimate_live_data_size(version),
            names::LIVE_SST_FILES_SIZE => bytes(),
            names::TOTAL_SST_FILES_SIZE => {
                each_file(cf.live_versions().iter().flat_map(|v| v.files())).map(|f| f.size).sum()
            }
            names::OBSOLETE_SST_FILES_SIZE => self.files.purge().bytes(),
            names::NUM_BLOB_FILES
            | names::TOTAL_BLOB_FILE_SIZE
            | names::LIVE_BLOB_FILE_SIZE
            | names::LIVE_BLOB_FILE_GARBAGE_SIZE => 0,
            names::TABLES_WITH_PIECES => pieces().tables as u64,
            names::PIECE_FILES => pieces().files as u64,
            names::PIECE_FILES_SIZE => pieces().bytes,
            names::PIECE_FILES_LIVE_SIZE => pieces().live_bytes,
            names::TPH_KEYS => tph_index().0,
            names::TPH_INDEX_MEMORY => tph_index().1,
            names::IO_MEMORY => self.engines.memory_bytes() as u64,
            names::KERNEL_MEMORY => self.engines.program_memory_bytes() as u64,
            names::NUM_LIVE_VERSIONS => cf.live_versions().len() as u64,
            names::CURRENT_SUPER_VERSION_NUMBER => cf.super_version_number(),
            names::BLOCK_CACHE_CAPACITY => cache()?.stats().capacity,
            names::BLOCK_CACHE_USAGE => cache()?.stats().usage,
            // This looks at every entry of the cache.
            names::BLOCK_CACHE_PINNED_USAGE => cache()?.pinned_usage(),
            names::KEPT_MEMTABLE_MEMORY => self.front.memory().kept_bytes(),
            names::COMPACTIONS_GAVE_WAY => self.pacing.flush_priority().waits(),
            names::COMPACTIONS_WAITED_FOR_READS => self.pacing.read_protection().waited_micros(),
            "rockmill.block-cache-hits" => cache().map_or(0, |c| c.stats().hits),
            "rockmill.block-cache-misses" => cache().map_or(0, |c| c.stats().misses),
            _ => return None,
        })
    }

    /// Numbers that the database's lock guards.
    pub(crate) fn locked_property(&self, state: &crate::db::State, c: &CfState, name: &str) -> Option<u64> {
        Some(match name {
            names::NUM_IMMUTABLE_MEM_TABLE => c.front().sealed_count() as u64,
            names::NUM_IMMUTABLE_MEM_TABLE_FLUSHED => 0,
            names::MEM_TABLE_FLUSH_PENDING => {
                u64::from(!c.front().is_flushing() && c.flush_due(self.flushes_without_merging()))
            }
            names::COMPACTION_PENDING => u64::from(c.jobs().scores().needs_compaction()),
            names::BACKGROUND_ERRORS => state.errors().count(),
            names::CUR_SIZE_ACTIVE_MEM_TABLE => c.front().active_stats().memory,
            names::CUR_SIZE_ALL_MEM_TABLES => c.front().memory_usage(),
            // Readers keep flushed memtables in memory.
            names::SIZE_ALL_MEM_TABLES => c.front().memory_usage() + c.front().flushed_memory(),
            names::NUM_ENTRIES_ACTIVE_MEM_TABLE => c.front().active_stats().entries,
            names::NUM_ENTRIES_IMM_MEM_TABLES => c.front().sealed_stats().entries,
            names::NUM_DELETES_ACTIVE_MEM_TABLE => c.front().active_stats().deletes,
            names::NUM_DELETES_IMM_MEM_TABLES => c.front().sealed_stats().deletes,
            names::IS_FILE_DELETIONS_ENABLED => u64::from(self.files.may_delete()),
            names::NUM_SNAPSHOTS => self.readers.snapshots().count() as u64,
            names::OLDEST_SNAPSHOT_TIME => self.readers.snapshots().oldest_time(),
            names::OLDEST_SNAPSHOT_SEQUENCE => self.readers.snapshots().oldest().unwrap_or(0),
            names::MIN_LOG_NUMBER_TO_KEEP => state.logs().oldest(),
            // Only the jobs know the tables that they write, so no file number is held back.
            names::MIN_OBSOLETE_SST_NUMBER_TO_KEEP => u64::MAX,
            // RocksDB's -1, as an unsigned number, where L0 is compacted into no one level.
            names::BASE_LEVEL => match c.options().compaction_style {
                CompactionStyle::Level => c.jobs().scores().base_level as u64,
                CompactionStyle::Universal | CompactionStyle::Fifo => u64::MAX,
            },
            names::ESTIMATE_PENDING_COMPACTION_BYTES => c.jobs().scores().pending_bytes,
            names::NUM_RUNNING_COMPACTIONS => state.jobs().running_compactions() as u64,
            names::NUM_RUNNING_FLUSHES => state.jobs().running_flushes() as u64,
            names::ACTUAL_DELAYED_WRITE_RATE => self.pacing.writers().rate(),
            names::IS_WRITE_STOPPED => {
                let full = self.front.memory().stalls_writers();
                u64::from(stop_of_leader(self.stop_reason(state), false, full).is_some())
            }
            "rockmill.stall-delayed-micros" => self.pacing.writers().delayed_micros.load(Ordering::Relaxed),
            names::SUSTAINED_WRITE_RATE => self.pacing.writers().sustained(),
            names::INDEX_MERGE_TRIGGER
            | names::DATA_FLUSH_TRIGGER_SIZE
            | names::LEVEL_CAPACITY_FACTOR
            | names::INDEX_MERGE_QUEUE
            | names::DATA_FLUSH_QUEUE_SIZE
            | names::INDEX_SCHEDULE_CHANGES
            | names::INDEX_SCHEDULE_CHANGES_CORE
            | names::INDEX_SCHEDULE_CHANGES_DEVICE
            | names::INDEX_SCHEDULE_CHANGES_IDLE => {
                c.front().schedule(self.logs_now(state)).map_or(0, |s| of_schedule(s, name))
            }
            names::LOGS_LIVE_BYTES => self.live_and_dead(state).0,
            names::LOGS_DEAD_BYTES => self.live_and_dead(state).1,
            names::LONGEST_STALL_MICROS => self.pacing.writers().longest_micros.load(Ordering::Relaxed),
            "rockmill.stall-stopped-micros" => self.pacing.writers().stopped_micros.load(Ordering::Relaxed),
            _ => return None,
        })
    }

    /// About how many live keys the tables have: each tombstone hides an entry. Computed from the tables whose numbers
    /// are known and scaled to all tables, as RocksDB does.
    fn keys_in_tables(&self, cf: &CfData, version: &Version) -> u64 {
        let known = self.sampled_numbers(cf, version);
        let entries: u64 = known.iter().map(|n| n.entries).sum();
        let deletions: u64 = known.iter().map(|n| n.deletions).sum();
        let live = entries.saturating_sub(deletions).saturating_sub(deletions);
        match (known.len(), version.num_files()) {
            (0, _) => 0,
            (samples, all) if samples < all => (live as f64 * all as f64 / samples as f64) as u64,
            _ => live,
        }
    }

    /// Bytes of keys and values over bytes of tables; -1 without tables.
    fn compression_ratio(&self, cf: &CfData, files: &Level) -> f64 {
        let version = Version::new(vec![files.clone()], cf.cmp.clone());
        let raw: u64 = self.sampled_numbers(cf, &version).iter().map(|n| n.raw_bytes).sum();
        let stored: u64 = files.iter().filter(|f| f.numbers.get().is_some()).map(|f| f.size()).sum();
        if stored == 0 { -1.0 } else { raw as f64 / stored as f64 }
    }
}

/// A number of the schedule of index tables, or of those that wait.
fn of_schedule((schedule, queues): (IndexSchedule, IndexQueues), name: &str) -> u64 {
    match name {
        names::INDEX_MERGE_TRIGGER => schedule.now().merge as u64,
        names::DATA_FLUSH_TRIGGER_SIZE => schedule.now().flush_bytes,
        names::LEVEL_CAPACITY_FACTOR => schedule.level_factor(),
        names::INDEX_MERGE_QUEUE => queues.merge as u64,
        names::DATA_FLUSH_QUEUE_SIZE => queues.flush_bytes,
        names::INDEX_SCHEDULE_CHANGES_CORE => schedule.history().core,
        names::INDEX_SCHEDULE_CHANGES_DEVICE => schedule.history().device,
        names::INDEX_SCHEDULE_CHANGES_IDLE => schedule.history().nothing,
        _ => schedule.history().changes(),
    }
}

/// The tables of the level that `text` is the number of.
fn level_of<'v>(text: &str, version: &'v Version) -> Option<&'v Level> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None; // Rust takes a sign
    }
    version.levels.get(text.parse::<usize>().ok()?)
}

/// The levels with what the strategy makes of them.
pub(crate) fn levels(c: &CfState) -> Vec<LevelStats> {
    let level = |(level, files): (usize, &Level)| LevelStats {
        level,
        files: files.len(),
        bytes: c.version().level_bytes(level),
        target_bytes: c.jobs().scores().targets.get(level).copied().filter(|&t| level > 0 && t != u64::MAX && t != 0),
        score: c.jobs().scores().scores.get(level).copied().unwrap_or(0.0),
        extra_runs: files.extras.len(),
        extra_run_bytes: files.extras.iter().flat_map(|run| &run.files).map(|f| f.size()).sum(),
        compacting: files.iter().filter(|f| f.being_compacted.load(Ordering::Acquire)).count(),
    };
    c.version().levels.iter().enumerate().map(level).collect()
}

fn level_text(version: &Version) -> String {
    let mut s = String::from("Level Files Size(MB)\n--------------------\n");
    for (l, files) in version.levels.iter().enumerate() {
        let _ = writeln!(s, "{l:>3} {:>8} {:>8.0}", files.len(), version.level_bytes(l) as f64 / 1_048_576.0);
    }
    s
}
