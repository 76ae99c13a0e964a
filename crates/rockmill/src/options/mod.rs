//! Options of databases, column families, tables, reads and writes, with RocksDB's names and meanings.
//!
//! Each option is declared once, in `db.rs`, `cf.rs` or `table.rs` (the macro: `declare.rs`); setters have the names of
//! the `rocksdb` crate. `text.rs` and `value.rs` have options as text.

mod callbacks;
mod cf;
pub(crate) mod check;
mod compact;
mod compression;
mod db;
pub(crate) mod declare;
mod descriptor;
pub(crate) mod engine;
pub(crate) mod file;
pub(crate) mod known;
pub(crate) mod load;
mod operations;
#[cfg(test)]
mod page;
pub(crate) mod parse;
mod paths;
pub(crate) mod setters;
mod style;
mod table;
pub(crate) mod text;
pub(crate) mod value;
mod write;

pub use rockmill_format::checksum::ChecksumType;
pub use rockmill_format::compression::CompressionType;
pub use rockmill_format::log::RecoveryMode;

pub(crate) use cf::merge_operator_named;
pub use cf::{CfOptions, DEFAULT_AGE};
pub use compact::{BottommostLevelCompaction, CompactOptions};
pub use compression::CompressionOptions;
pub use db::DbOptions;
pub use descriptor::{ColumnFamilyDescriptor, ColumnFamilyTtl, DEFAULT_COLUMN_FAMILY_NAME};
pub use engine::{KernelDriver, MergeEngine};
pub use load::{LoadedOptions, OptionValue, OptionWarning, OptionsLoader};
pub use paths::DBPath;
pub use style::{
    CompactionPri, CompactionStyle, FifoCompactOptions, UniversalCompactOptions, UniversalCompactionStopStyle,
};
pub use table::{BlockBasedIndexType, BlockBasedOptions, DataBlockIndexType, TableKind, TphTableOptions};
pub use write::{FlushOptions, WriteOptions};

/// Options of a database and of the column families opened with it, as in the `rocksdb` crate.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// The database's part.
    pub db: DbOptions,
    /// The column family's part.
    pub cf: CfOptions,
}
