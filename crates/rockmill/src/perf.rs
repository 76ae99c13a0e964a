//! What operations of the calling thread cost, and what memory the store takes (`rocksdb::perf`).

pub use crate::db::{MemoryUsageStats, get_memory_usage_stats};
pub use crate::perf_context::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
