//! How jobs use the page cache: data that is there stays there, and other data does not push it out.
//!
//! Without direct I/O, the kernel keeps in memory what users read. A flush's table holds the newest data, which was in
//! memory until now, so it is written through the page cache. A compaction most of whose inputs are in the page cache
//! reads those from there and leaves its outputs there; otherwise the next lookups would find only on the device what
//! was in memory before. Any other compaction bypasses the page cache in both directions: inputs that are read once and
//! outputs that nobody asked for would push out what users read.
//!
//! RocksDB leaves everything in the page cache unless `use_direct_io_for_flush_and_compaction` is on. Here, with that
//! option or `use_direct_reads` everything bypasses it; without them, the engine `pread` never bypasses it. The engine
//! `kernel` always reads and writes past it, whatever the page cache has.

use super::MergeEngine;
use crate::options::DbOptions;
use crate::table::Table;

/// True if direct I/O is not enabled.
fn in_use(db: &DbOptions) -> bool {
    !db.use_direct_io_for_flush_and_compaction && !db.use_direct_reads
}

/// Whether a flush writes through the page cache.
pub(super) fn takes_flush(db: &DbOptions) -> bool {
    in_use(db)
}

/// Whether a compaction of these tables, of this many bytes in all, writes through the page cache: if at least half of
/// the bytes are there.
pub(super) fn takes_outputs<'a>(db: &DbOptions, inputs: impl Iterator<Item = (&'a Table, u64)>) -> bool {
    match db.merge_engine {
        MergeEngine::Pread => !db.use_direct_io_for_flush_and_compaction,
        MergeEngine::Kernel => false,
        MergeEngine::Auto | MergeEngine::Uring => {
            in_use(db) && {
                let (there, all) = inputs.fold((0, 0), |(there, all), (table, size)| {
                    (there + table.cached_bytes().unwrap_or(0).min(size), all + size)
                });
                2 * there >= all && there > 0
            }
        }
    }
}

/// Whether what a worker on another machine reads of an input goes past the page cache: as for an engine with rings,
/// and with the engine `pread` only where the options say so.
pub(super) fn worker_reads_past(db: &DbOptions, table: &Table, size: u64) -> bool {
    match db.merge_engine {
        MergeEngine::Pread => db.use_direct_reads,
        MergeEngine::Auto | MergeEngine::Uring | MergeEngine::Kernel => !has_input(db, table, size),
    }
}

/// Whether an input is read through the page cache: at least seven eighths of it must be there.
pub(super) fn has_input(db: &DbOptions, table: &Table, size: u64) -> bool {
    in_use(db) && table.cached_bytes().is_some_and(|there| there >= size - size / 8)
}
