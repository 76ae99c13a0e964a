//! Block-based tables (SST files): builder, reader, iterators, block cache.

mod async_reads;
mod block_file;
mod builder;
mod cache;
mod compress_ahead;
mod compression;
mod dump;
mod filter;
mod filter_builder;
mod index;
mod index_builder;
mod iter;
mod meta;
mod names;
mod open;
mod reader;
mod syncing;
#[cfg(test)]
mod tests;
mod verify;

pub use builder::pass::{Census, StoredBlock, WholeBlock};
pub use builder::{TableBuilder, TableBuilderOptions, TableSummary};
pub(crate) use cache::Reservation;
pub use cache::{BlockCache, Cache, CachedBlock, LruCacheOptions};
pub use compression::CompressionOptions;
pub use dump::{TableBlock, TableBlockKind, describe_internal_key};
pub(crate) use iter::{BlockStream, Source};
pub(crate) use meta::MetaCaching;
pub use open::properties_of;
pub(crate) use reader::AutoReadahead;
pub use reader::{TableOpenOptions, TableReadOptions, TableReader};
pub(crate) use syncing::SyncingTable;
