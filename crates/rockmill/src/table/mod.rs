//! Block-based tables (SST files): builder, reader, iterators, block cache.

mod builder;
mod cache;
mod reader;

pub use builder::{TableBuilder, TableBuilderOptions, TableSummary};
pub use cache::{BlockCache, CacheStats, CachedBlock};
pub use reader::{TableOpenOptions, TableReadOptions, TableReader};
