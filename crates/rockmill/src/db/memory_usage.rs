//! How much memory databases and caches hold together (RocksDB's `MemoryUtil`).

use std::sync::Arc;

use super::Db;
use crate::error::Result;
use crate::table::Cache;

/// Memory in bytes (`rocksdb::perf::MemoryUsageStats`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUsageStats {
    /// All memtables, those that are flushed and still read included, and what is kept for memtables to come.
    pub mem_table_total: u64,
    /// Memtables that are not flushed.
    pub mem_table_unflushed: u64,
    /// Index, filters and the like of open tables, outside the cache.
    pub mem_table_readers_total: u64,
    /// Block caches.
    pub cache_total: u64,
}

/// Adds up the memory of `dbs` and of `caches`, each cache counted once. Where no caches are given, those of the
/// databases' column families are counted.
pub fn get_memory_usage_stats(dbs: Option<&[&Db]>, caches: Option<&[&Cache]>) -> Result<MemoryUsageStats> {
    let mut stats = MemoryUsageStats::default();
    let mut all_caches = Vec::new();
    for db in dbs.unwrap_or(&[]) {
        stats.mem_table_total += db.inner.memory_pool.bytes() as u64;
        for cf in db.inner.cfs.load().by_name.values() {
            let number = |property| db.property_int_value_cf(cf, property).map(Option::unwrap_or_default);
            stats.mem_table_total += number("rocksdb.size-all-mem-tables")?;
            stats.mem_table_unflushed += number("rocksdb.cur-size-all-mem-tables")?;
            stats.mem_table_readers_total += number("rocksdb.estimate-table-readers-mem")?;
            if caches.is_none() {
                all_caches.extend(db.inner.cache_of(&cf.data));
            }
        }
    }
    all_caches.extend(caches.unwrap_or(&[]).iter().map(|c| Arc::clone(c)));
    all_caches.sort_by_key(|c| Arc::as_ptr(c).addr());
    all_caches.dedup_by(|a, b| Arc::ptr_eq(a, b));
    stats.cache_total = all_caches.iter().map(|c| c.usage()).sum();
    Ok(stats)
}
