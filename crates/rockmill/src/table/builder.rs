//! Building a table, whatever the kind.

use rockmill_format::SequenceNumber;
use rockmill_io::WritableFile;

use super::block_based::{BlockBasedBuilder, Census, WholeBlock};
use super::compression::CompressionOptions;
use super::options::{TableBuilderOptions, TableSummary};
use super::syncing::SyncingTable;
use super::tph::{Origin, TphBuilder};
use crate::error::Result;
use crate::helpers::Help;

/// The help for one table. `parallel_threads` bounds its threads, including the job's own; 1 is RocksDB's default and
/// does not forbid the use of idle cores.
pub(crate) fn help_for_table(help: Option<&Help>, options: &CompressionOptions) -> Option<Help> {
    match options.parallel_threads {
        0 | 1 => help.cloned(),
        threads => help.cloned().and_then(|h| h.at_most(threads as usize - 1)),
    }
}

/// Returns whether a table is no longer wanted.
pub(crate) type StopBuild<'a> = &'a (dyn Fn() -> bool + Sync);

/// Builds a table of one kind or another: entries in order, range tombstones in order (at any time), `finish`.
///
/// After a failure every later call returns the same error. A builder that is dropped leaves an incomplete file, which
/// the caller must remove.
#[expect(clippy::large_enum_variant, reason = "the usual kind is reached without a further pointer")]
pub enum TableBuilder {
    /// RocksDB's own kind.
    BlockBased(BlockBasedBuilder),
    /// Pieces under one perfect hash function.
    Tph(Box<TphBuilder>),
}

/// What a builder's kind makes of a call.
macro_rules! of_kind {
    ($builder:expr, $it:ident => $call:expr) => {
        match $builder {
            TableBuilder::BlockBased($it) => $call,
            TableBuilder::Tph($it) => $call,
        }
    };
}

impl TableBuilder {
    /// A builder that appends to `file`, the table's own.
    pub fn new(options: TableBuilderOptions, file: Box<dyn WritableFile>) -> Self {
        match options.tph {
            None => Self::BlockBased(BlockBasedBuilder::new(options, file)),
            Some(_) => Self::Tph(Box::new(TphBuilder::new(options, file))),
        }
    }

    /// Lets helpers compress, as many as `parallel_threads` allows, and build a function; before the first entry.
    pub(crate) fn set_help(&mut self, help: Option<&Help>) {
        of_kind!(self, builder => builder.set_help(help))
    }

    /// Adds a point entry. Keys rise strictly; a key out of order is an error, not a bad table.
    #[inline]
    pub fn add(&mut self, ikey: &[u8], value: &[u8]) -> Result<()> {
        of_kind!(self, builder => builder.add(ikey, value))
    }

    /// Adds all entries of `block`, which `census` sums up, by copying the block unchanged. False, without any effect,
    /// if it does not fit here; it never does in a kind without blocks.
    pub fn pass_block(&mut self, block: &WholeBlock<'_>, census: &Census) -> Result<bool> {
        match self {
            Self::BlockBased(builder) => builder.pass_block(block, census),
            Self::Tph(_) => Ok(false),
        }
    }

    /// Adds a point entry, the only one of its user key, that stays where it is in a file of
    /// [`TableBuilderOptions::pieces`]. False if it cannot stay there and has to be added.
    pub(crate) fn keep(&mut self, ikey: &[u8], value_len: usize, origin: Origin) -> Result<bool> {
        match self {
            Self::BlockBased(_) => Ok(false),
            Self::Tph(builder) => builder.keep(ikey, value_len, origin),
        }
    }

    /// Notes that a user key after the last entry has no entry any more, although those files may have some. If none of
    /// them has a placeholder (`held_by`), the table gets one.
    pub(crate) fn gone(&mut self, user_key: &[u8], held_by: Option<u32>) {
        if let Self::Tph(builder) = self {
            builder.gone(user_key, held_by);
        }
    }

    /// Adds a range tombstone; begins rise.
    pub fn add_range_tombstone(&mut self, begin: &[u8], end: &[u8], seq: SequenceNumber) -> Result<()> {
        of_kind!(self, builder => builder.add_range_tombstone(begin, end, seq))
    }

    /// Bytes written so far and buffered: near the final size, as far as it is known.
    #[inline]
    pub fn file_size_estimate(&self) -> u64 {
        of_kind!(self, builder => builder.file_size_estimate())
    }

    /// What [`Self::file_size_estimate`] is at most when everything that helpers have is written.
    #[inline]
    pub(crate) fn file_size_most(&self) -> u64 {
        of_kind!(self, builder => builder.file_size_most())
    }

    /// [`Self::file_size_estimate`] when everything that helpers have is written: exact, as without help. If that
    /// fails, the next entry will say so.
    pub(crate) fn file_size_settled(&mut self) -> u64 {
        of_kind!(self, builder => builder.file_size_settled())
    }

    /// Writes the rest, syncs and closes the file.
    pub fn finish(self) -> Result<TableSummary> {
        let (summary, file) = self.finish_without_waiting(&|| false)?;
        file.wait()?;
        Ok(summary)
    }

    /// Writes the rest and begins to sync the file: the table is not durable before `SyncingTable::wait` returns. What
    /// takes long ends with an error soon after `stop` returns true; several threads may call it.
    pub(crate) fn finish_without_waiting(self, stop: StopBuild<'_>) -> Result<(TableSummary, SyncingTable)> {
        match self {
            Self::BlockBased(builder) => builder.finish_without_waiting(),
            Self::Tph(builder) => builder.finish_without_waiting(stop),
        }
    }

    /// Gives up: closes the file, whose contents are meaningless.
    pub fn abandon(self) {
        of_kind!(self, builder => builder.abandon())
    }
}
