//! What users can ask about the store: `rocksdb.*` properties, levels, live files.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::{AsColumnFamilyRef, CfState, Db};
use crate::error::Result;

/// A level of a column family's tree.
#[derive(Debug, Clone, PartialEq)]
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
}

/// A table file in use (`rocksdb::LiveFile`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFile {
    /// Column family it belongs to.
    pub column_family_name: String,
    /// File name.
    pub name: String,
    /// File number.
    pub number: u64,
    /// Size in bytes.
    pub size: u64,
    /// Level.
    pub level: i32,
    /// Smallest user key.
    pub start_key: Option<Vec<u8>>,
    /// Largest user key.
    pub end_key: Option<Vec<u8>>,
    /// Smallest sequence number.
    pub smallest_seqno: u64,
    /// Largest sequence number.
    pub largest_seqno: u64,
}

impl Db {
    /// A property of the default column family, as text; `None` for one that does not exist.
    pub fn property_value(&self, name: &str) -> Result<Option<String>> {
        self.property_value_cf(&self.inner.default_cf.clone(), name)
    }

    /// A property of a column family, as text; `None` for one that does not exist.
    pub fn property_value_cf(&self, cf: &impl AsColumnFamilyRef, name: &str) -> Result<Option<String>> {
        if let Some(n) = self.property_int_value_cf(cf, name)? {
            return Ok(Some(n.to_string()));
        }
        let state = self.inner.state.lock();
        let Some(c) = state.cfs.get(&cf.as_cf().id()) else { return Ok(None) };
        if let Some(level) = name.strip_prefix("rocksdb.num-files-at-level") {
            let level: Option<usize> = level.parse().ok();
            return Ok(level.and_then(|l| c.version.levels.get(l)).map(|l| l.len().to_string()));
        }
        let text = match name {
            "rocksdb.levelstats" => {
                let mut s = String::from("Level Files Size(MB)\n--------------------\n");
                for (l, files) in c.version.levels.iter().enumerate() {
                    let _ = writeln!(s, "{l:5} {:5} {:8}", files.len(), c.version.level_bytes(l) >> 20);
                }
                s
            }
            "rocksdb.sstables" => {
                let mut s = String::new();
                for (l, files) in c.version.levels.iter().enumerate() {
                    let _ = writeln!(s, "--- level {l} ---");
                    for f in files {
                        let _ = writeln!(s, " {}:{}", f.number(), f.size());
                    }
                }
                s
            }
            "rocksdb.stats" | "rocksdb.cfstats" | "rocksdb.cfstats-no-file-histogram" => {
                let mut s = level_table(c);
                let _ = writeln!(s, "{:?}", self.inner.stats.read());
                s
            }
            "rocksdb.dbstats" => {
                let mut s = String::new();
                let _ = writeln!(s, "{:?}", self.inner.stats.read());
                s
            }
            "rockmill.write-stall-reason" => self.inner.controller.reason().name().to_owned(),
            "rockmill.background-error" => {
                state.background_error.as_ref().map_or_else(String::new, |b| b.error.to_string())
            }
            _ => return Ok(None),
        };
        Ok(Some(text))
    }

    /// A property of the default column family, as a number.
    pub fn property_int_value(&self, name: &str) -> Result<Option<u64>> {
        self.property_int_value_cf(&self.inner.default_cf.clone(), name)
    }

    /// A property of a column family, as a number.
    pub fn property_int_value_cf(&self, cf: &impl AsColumnFamilyRef, name: &str) -> Result<Option<u64>> {
        let db = &self.inner;
        let cache = db.cache_of(&cf.as_cf().data).map(|c| c.stats()).unwrap_or_default();
        if name == "rocksdb.block-cache-pinned-usage" {
            // Without the lock: it looks at every entry of the cache.
            return Ok(Some(db.cache_of(&cf.as_cf().data).map_or(0, |c| c.pinned_usage())));
        }
        let state = db.state.lock();
        let Some(c) = state.cfs.get(&cf.as_cf().id()) else { return Ok(None) };
        let files = || c.version.levels.iter().flatten();
        let imm_bytes: u64 = c.imm.iter().map(|i| i.mem.memory_usage() as u64).sum();
        let sst_bytes: u64 = files().map(|f| f.size()).sum();
        Ok(Some(match name {
            "rocksdb.num-immutable-mem-table" => c.imm.len() as u64,
            "rocksdb.mem-table-flush-pending" => u64::from(!c.imm.is_empty() && !c.flushing),
            "rocksdb.compaction-pending" => u64::from(c.scores.needs_compaction()),
            "rocksdb.background-errors" => state.background_errors,
            "rocksdb.cur-size-active-mem-table" => c.mem.memory_usage() as u64,
            "rocksdb.cur-size-all-mem-tables" => c.mem.memory_usage() as u64 + imm_bytes,
            "rocksdb.size-all-mem-tables" => {
                // Readers keep flushed memtables in memory.
                let held = c.flushed.iter().filter_map(std::sync::Weak::upgrade).map(|m| m.memory_usage() as u64);
                c.mem.memory_usage() as u64 + imm_bytes + held.sum::<u64>()
            }
            "rocksdb.num-entries-active-mem-table" => c.mem.num_entries(),
            "rocksdb.num-entries-imm-mem-tables" => c.imm.iter().map(|i| i.mem.num_entries()).sum(),
            "rocksdb.num-deletes-active-mem-table" => c.mem.num_deletes(),
            "rocksdb.num-deletes-imm-mem-tables" => c.imm.iter().map(|i| i.mem.num_deletes()).sum(),
            "rocksdb.estimate-num-keys" => estimate_keys(c),
            "rocksdb.estimate-table-readers-mem" => {
                files().filter_map(|f| f.table.load_full()).map(|t| t.memory_usage() as u64).sum()
            }
            "rocksdb.is-file-deletions-enabled" => 1,
            "rocksdb.num-snapshots" => db.snapshots.count() as u64,
            "rocksdb.oldest-snapshot-time" => db.snapshots.oldest_time(),
            "rocksdb.oldest-snapshot-sequence" => db.snapshots.all().first().copied().unwrap_or(0),
            "rocksdb.num-live-versions" => std::sync::Arc::strong_count(&c.version) as u64,
            "rocksdb.current-super-version-number" => c.next_mem_id,
            "rocksdb.estimate-live-data-size" | "rocksdb.live-sst-files-size" | "rocksdb.total-sst-files-size" => {
                sst_bytes
            }
            "rocksdb.min-log-number-to-keep" => state.wals.front().map_or(0, |w| w.0),
            "rocksdb.base-level" => c.scores.base_level as u64,
            "rocksdb.estimate-pending-compaction-bytes" => c.scores.pending_bytes,
            "rocksdb.num-running-compactions" => state.running_compactions as u64,
            "rocksdb.num-running-flushes" => state.running_flushes as u64,
            "rocksdb.actual-delayed-write-rate" => db.controller.rate(),
            "rocksdb.is-write-stopped" => u64::from(db.stop_reason(&state).is_some() || db.memory_stalls()),
            "rocksdb.block-cache-capacity" => cache.capacity,
            "rocksdb.block-cache-usage" => cache.usage,
            "rockmill.block-cache-hits" => cache.hits,
            "rockmill.block-cache-misses" => cache.misses,
            "rockmill.stall-delayed-micros" => db.controller.delayed_micros.load(Ordering::Relaxed),
            "rockmill.stall-stopped-micros" => db.controller.stopped_micros.load(Ordering::Relaxed),
            _ => return Ok(None),
        }))
    }

    /// The levels of a column family.
    pub fn level_stats(&self, cf: &impl AsColumnFamilyRef) -> Vec<LevelStats> {
        let state = self.inner.state.lock();
        state.cfs.get(&cf.as_cf().id()).map(levels).unwrap_or_default()
    }

    /// Bytes that compactions must still rewrite until a column family's tree has its shape.
    pub fn compaction_debt(&self, cf: &impl AsColumnFamilyRef) -> u64 {
        let state = self.inner.state.lock();
        state.cfs.get(&cf.as_cf().id()).map_or(0, |c| c.scores.pending_bytes)
    }

    /// Every table in use.
    pub fn live_files(&self) -> Result<Vec<LiveFile>> {
        let state = self.inner.state.lock();
        let mut all = Vec::new();
        for c in state.cfs.values() {
            for (level, files) in c.version.levels.iter().enumerate() {
                all.extend(files.iter().map(|f| LiveFile {
                    column_family_name: c.cf.name.clone(),
                    name: format!("/{}", rockmill_format::filename::table(f.number())),
                    number: f.number(),
                    size: f.size(),
                    level: level as i32,
                    start_key: Some(f.smallest_user_key().to_vec()),
                    end_key: Some(f.largest_user_key().to_vec()),
                    smallest_seqno: f.entry.smallest_seqno,
                    largest_seqno: f.entry.largest_seqno,
                }));
            }
        }
        Ok(all)
    }
}

fn levels(c: &CfState) -> Vec<LevelStats> {
    let level = |(level, files): (usize, &Vec<std::sync::Arc<crate::version::FileMeta>>)| LevelStats {
        level,
        files: files.len(),
        bytes: c.version.level_bytes(level),
        target_bytes: c.scores.targets.get(level).copied().filter(|&t| level > 0 && t != u64::MAX && t != 0),
        score: c.scores.scores.get(level).copied().unwrap_or(0.0),
        compacting: files.iter().filter(|f| f.being_compacted.load(Ordering::Acquire)).count(),
    };
    c.version.levels.iter().enumerate().map(level).collect()
}

impl super::DbInner {
    /// `rocksdb.stats` of every column family.
    pub(crate) fn stats_text(&self) -> String {
        let state = self.state.lock();
        let mut s = format!("{:?}\n", self.stats.read());
        for c in state.cfs.values() {
            s.push_str(&level_table(c));
        }
        s
    }
}

fn level_table(c: &CfState) -> String {
    let mut s = String::from("Level    Files        Bytes       Target    Score  Compacting\n");
    for l in levels(c) {
        let target = l.target_bytes.map_or_else(|| "-".to_owned(), |t| t.to_string());
        let _ = writeln!(
            s,
            "L{:<5} {:>7} {:>12} {:>12} {:>8.2} {:>11}",
            l.level, l.files, l.bytes, target, l.score, l.compacting
        );
    }
    s
}

/// Entries minus twice the deletions (each hides another entry), as RocksDB estimates it; from the memtables and
/// those tables whose properties are in memory, scaled to all tables.
fn estimate_keys(c: &CfState) -> u64 {
    let mems = || c.imm.iter().map(|i| &i.mem).chain([&c.mem]);
    let entries: u64 = mems().map(|m| m.num_entries()).sum();
    let deletes: u64 = mems().map(|m| m.num_deletes()).sum();
    let (mut known_bytes, mut all_bytes, mut table_entries, mut table_deletes) = (0u64, 0u64, 0u64, 0u64);
    for f in c.version.levels.iter().flatten() {
        all_bytes += f.size();
        if let Some(t) = f.table.load_full() {
            known_bytes += f.size();
            table_entries += t.properties().num_entries;
            table_deletes += t.properties().num_deletions;
        }
    }
    let live = table_entries.saturating_sub(2 * table_deletes);
    let scaled = if known_bytes == 0 { 0 } else { (live as f64 * all_bytes as f64 / known_bytes as f64) as u64 };
    (entries + scaled).saturating_sub(2 * deletes)
}
