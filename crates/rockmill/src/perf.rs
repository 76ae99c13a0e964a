//! The cost of the calling thread's operations, and the store's memory usage (`rocksdb::perf`).

pub use crate::db::{MemoryUsageStats, get_memory_usage_stats};
pub use crate::perf_context::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
