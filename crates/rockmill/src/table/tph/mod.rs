//! TPH tables: block-based files under one perfect hash function (CompassDB, sections 3.2 to 3.5). `docs/tph.md` has
//! the format byte by byte, and why each guarantee holds.
//!
//! 1. Each file of a table is a block-based table of its own: entries in key order, in blocks. The newest, the head,
//!    has one meta block more: the list of the other files, and a function from live user keys to data blocks.
//! 2. A compaction writes the changed entries into a new head, and keeps using the files of the table that it replaces.
//!    It only has to record in the new head where everything is.
//! 3. Among the files of a table, the newest that has a user key has all of its entries that count. A placeholder there
//!    says that there are none. Entries of a file outside of the bounds that the head gives it do not count.
//!
//! A block-based table can be a piece of a TPH table, and a TPH table that is one file is a block-based table to
//! RocksDB.

mod builder;
mod columns;
mod iter;
mod layout;
mod reader;
mod settings;
#[cfg(test)]
mod tests;
mod verify;

use std::path::Path;
use std::sync::Arc;

use rockmill_format::properties::TableProperties;
use rockmill_io::RandomAccessFile;

use super::block_based::{BlockBasedTable, StreamSource, TPH_BLOCK, TableIter, properties_with_block};
use super::{ReplacedTables, Table, TableScan};
use crate::error::{Error, Result};
use iter::PieceScan;

pub use builder::{KeptPiece, Origin, TphBuilder};
pub use layout::PieceUse;
pub use reader::TphTable;
pub use settings::TphSettings;

/// The most files of a table.
pub(crate) const PIECES_MAX: usize = 1024;

/// What a table's own file says about the table.
#[derive(Debug, Default)]
pub struct OwnFile {
    /// Its properties; for a TPH table, those that count entries are sums over all files.
    pub properties: TableProperties,
    /// The further files that it lists as the head of a TPH table.
    pub pieces: Vec<PieceUse>,
    /// Tables that no longer count, if it lists any as a TPH table.
    pub replaced: ReplacedTables,
    /// What else it says as the head of a TPH table.
    pub head: Option<TphSummary>,
}

/// What the head of a TPH table says of all its files together.
#[derive(Debug, Clone, Copy)]
pub struct TphSummary {
    /// User keys with at least one entry.
    pub user_keys: u64,
    /// Their entries.
    pub entries: u64,
    /// Data blocks of the own file.
    pub own_blocks: u64,
    /// Data blocks of all files.
    pub blocks: u64,
    /// `None` where lookups search the files.
    pub function: Option<FunctionSummary>,
}

/// The function of a TPH table.
#[derive(Debug, Clone, Copy)]
pub struct FunctionSummary {
    /// The kind's name (docs/phash.md).
    pub kind: &'static str,
    /// Keys that it was built from, including deleted ones that some file still has.
    pub keys: u64,
    /// Slots.
    pub slots: u64,
    /// Bytes of the function alone.
    pub bytes: u64,
    /// Bits of a slot's locator.
    pub locator_bits: u32,
}

/// Reads what a table's own file says about the table.
pub fn told_by_own_file(file: Arc<dyn RandomAccessFile>, path: &Path) -> Result<OwnFile> {
    let (mut properties, block) = properties_with_block(file, path, Some(TPH_BLOCK))?;
    let Some(block) = block else { return Ok(OwnFile { properties, ..OwnFile::default() }) };
    let (head, finder) = layout::Head::decode(block)
        .map_err(|what| Error::corruption(format!("{}: block {TPH_BLOCK:?} {what}", path.display())))?;
    if !head.pieces.is_empty() {
        head.totals.write_to(&mut properties);
    }
    let summary = TphSummary {
        user_keys: head.totals.user_keys,
        entries: head.totals.entries,
        own_blocks: head.own_blocks,
        blocks: head.blocks(),
        function: finder.map(|finder| finder.summary()),
    };
    Ok(OwnFile { properties, pieces: head.pieces, replaced: head.replaced, head: Some(summary) })
}

/// A block-based table, for a new TPH table that may keep using it.
pub(super) fn kept(table: &BlockBasedTable, number: u64) -> Vec<KeptPiece> {
    table
        .data_handles()
        .map(|handles| vec![table.as_kept(number, number, handles.len() as u64, None)])
        .unwrap_or_default()
}

/// The entries of a block-based table, `file`, for a compaction whose outputs may keep using it.
pub(super) fn scan_one<S>(table: &Table, file: TableIter<S>, place: Option<u32>) -> Box<dyn TableScan>
where
    S: StreamSource + 'static,
{
    Box::new(PieceScan::new(vec![(file, None)], table.comparator().clone(), vec![place]))
}
