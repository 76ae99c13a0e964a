//! How much memory databases and caches hold together (RocksDB's `MemoryUtil`).

use std::sync::Arc;

use crate::db::{Db, DbInner};
use crate::error::Result;
use crate::table::Cache;

/// Memory in bytes (`rocksdb::perf::MemoryUsageStats`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsageStats {
    /// All memtables, including flushed ones that are still read, and memory kept for future memtables.
    pub mem_table_total: u64,
    /// Memtables that are not flushed.
    pub mem_table_unflushed: u64,
    /// Index, filters and the like of open tables, outside the cache.
    pub mem_table_readers_total: u64,
    /// Block caches.
    pub cache_total: u64,
}

/// Where a database's memory goes, in bytes. Rockmill's own; `rocksdb.stats` and `rockmill stats` show it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryParts {
    /// Memtables that are not flushed, of all column families: their arenas' blocks.
    pub memtables: u64,
    /// The part of `memtables` that no entry uses yet: the ends of the blocks that are being filled, one for each core.
    pub memtables_unfilled: u64,
    /// Flushed memtables that readers still hold.
    pub flushed_memtables: u64,
    /// Kept for future memtables.
    pub kept_for_memtables: u64,
    /// Index, filters and the like of open tables, outside the cache.
    pub table_readers: u64,
    /// Blocks in the caches of the column families, each cache once; other databases may share one.
    pub block_cache: u64,
    /// Set up for reads and writes in flight of jobs, of flushes and of batches of lookups.
    pub io: u64,
    /// Memory that merge programs in the kernel work on, of the whole process.
    pub kernel: u64,
}

impl MemoryParts {
    /// Each part with its name, in the order of the fields; none is counted twice.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("memtables", self.memtables.saturating_sub(self.memtables_unfilled)),
            ("blocks of memtables that are not full", self.memtables_unfilled),
            ("flushed memtables that readers hold", self.flushed_memtables),
            ("kept for memtables to come", self.kept_for_memtables),
            ("indexes and filters of open tables", self.table_readers),
            ("block cache", self.block_cache),
            ("reads and writes of jobs in flight", self.io),
            ("merge programs in the kernel", self.kernel),
        ]
    }

    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Db {
    /// Where the database's memory goes.
    pub fn memory_parts(&self) -> MemoryParts {
        self.inner.memory_parts()
    }
}

impl DbInner {
    /// See [`Db::memory_parts`].
    pub(crate) fn memory_parts(&self) -> MemoryParts {
        let mut parts = MemoryParts {
            kept_for_memtables: self.front.memory().kept_bytes(),
            io: self.engines.memory_bytes() as u64,
            kernel: self.engines.program_memory_bytes() as u64,
            ..MemoryParts::default()
        };
        let mut caches = Vec::new();
        for cf in self.catalog.families().all() {
            let tables = cf.data.current.load_full();
            let files = tables.version.levels.iter().flatten();
            let open = files.filter_map(|f| f.table.load_full());
            parts.table_readers += open.map(|t| t.memory_usage() as u64).sum::<u64>();
            caches.extend(self.readers.tables().cache_of(&cf.data));
        }
        for c in self.state.lock().families() {
            let (all, unfilled) = (c.front().memory_usage(), c.front().unfilled_memory());
            parts.memtables += all;
            parts.memtables_unfilled += unfilled.min(all);
            parts.flushed_memtables += c.front().flushed_memory();
        }
        caches.sort_by_key(|c| Arc::as_ptr(c).addr());
        caches.dedup_by(|a, b| Arc::ptr_eq(a, b));
        parts.block_cache = caches.iter().map(|c| c.usage()).sum();
        parts
    }
}

/// Adds up the memory of `dbs` and of `caches`, counting each cache once. If no caches are given, those of the
/// databases' column families are counted.
pub fn get_memory_usage_stats(dbs: Option<&[&Db]>, caches: Option<&[&Cache]>) -> Result<MemoryUsageStats> {
    let mut stats = MemoryUsageStats::default();
    let mut all_caches = Vec::new();
    for db in dbs.unwrap_or(&[]) {
        stats.mem_table_total += db.inner.front.memory().kept_bytes();
        for cf in db.inner.catalog.families().all() {
            let number = |property| db.property_int_value_cf(cf, property).map(Option::unwrap_or_default);
            stats.mem_table_total += number("rocksdb.size-all-mem-tables")?;
            stats.mem_table_unflushed += number("rocksdb.cur-size-all-mem-tables")?;
            stats.mem_table_readers_total += number("rocksdb.estimate-table-readers-mem")?;
            if caches.is_none() {
                all_caches.extend(db.inner.readers.tables().cache_of(&cf.data));
            }
        }
    }
    all_caches.extend(caches.unwrap_or(&[]).iter().map(|c| Arc::clone(&c.0)));
    all_caches.sort_by_key(|c| Arc::as_ptr(c).addr());
    all_caches.dedup_by(|a, b| Arc::ptr_eq(a, b));
    stats.cache_total = all_caches.iter().map(|c| c.usage()).sum();
    Ok(stats)
}
