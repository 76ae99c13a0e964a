//! Block-based tables (SST files), RocksDB's own kind: sorted data blocks, an index over them, a filter.

mod access;
mod async_reads;
mod block_file;
mod block_places;
mod builder;
mod compress_ahead;
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
mod rows;
mod seek_span;
mod settings;
mod stream;
#[cfg(test)]
mod tests;
mod verify;

pub use access::BlockAccess;
pub(super) use block_places::BlockPlaces;
pub use builder::BlockBasedBuilder;
pub use builder::pass::{Census, StoredBlock, WholeBlock};
#[cfg(feature = "internals")]
pub use dump::TableBlockKind;
pub use dump::{TableBlock, describe_internal_key};
pub(crate) use index::TableIndex;
pub(super) use iter::TableIter;
pub(crate) use iter::{Source, StreamSource};
pub(super) use meta::TableMeta;
pub(super) use names::TPH as TPH_BLOCK;
pub use open::properties_of;
pub(super) use open::properties_with_block;
pub use reader::BlockBasedTable;
pub use settings::BlockBasedSettings;
pub(crate) use stream::{BlockStream, ScanFile, StreamReads};
pub(crate) use verify::BlockSample;
