//! Tables: sorted entries in files, whatever the kind.
//!
//! The store, its versions, its iterators and its compactions use a table as a [`Table`] and build one with a
//! [`TableBuilder`]. Both are enums over the kinds, so that a call is a match: `block_based`, RocksDB's own, or `tph`.
//! A further kind needs a folder next to them, a variant in each of the two enums, and an arm in each match of this
//! file and of `builder.rs`.
//!
//! [`Table`]'s methods say what a kind must do. For all kinds:
//!
//! 1. A table is immutable, and readers share it: every method takes `&self`, from any thread.
//! 2. Its entries are in the order of the column family's comparator, each internal key once; range tombstones are
//!    separate from them.
//! 3. It consists of a file of its own, whose number is the table's, and perhaps of older files that it shares with
//!    other tables. Versions count files, not tables ([`FileMeta::files`](crate::version::FileMeta::files)).
//! 4. Damage is an error that names the file and the place in it, never a panic and never other data.
//!
//! Engines that merge whole blocks ask for [`BlockAccess`], an additional interface that only block-based tables have;
//! only compaction's merge and its SST-Map use it. The block cache serves all kinds.

mod block_based;
mod builder;
mod cache;
mod compression;
mod held_blocks;
mod options;
mod syncing;
mod tph;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::checksum::ChecksumType;
use rockmill_format::key::{InternalKey, MAX_SEQUENCE, ParsedInternalKey, ValueType};
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKeyComparator, SequenceNumber, SliceTransform};
use rockmill_io::RandomAccessFile;

use crate::error::{Error, Result};
use crate::iter::InternalIterator;
use crate::iter::get::GetContext;
use crate::range_del::FragmentedRangeTombstones;
use block_based::TableIter;

#[cfg(feature = "internals")]
pub use block_based::TableBlockKind;
pub use block_based::{
    BlockAccess, BlockBasedSettings, BlockBasedTable, Census, StoredBlock, TableBlock, WholeBlock,
    describe_internal_key, properties_of,
};
pub(crate) use block_based::{BlockSample, BlockStream, ScanFile, Source, StreamReads, StreamSource, TableIndex};
pub use builder::TableBuilder;
pub(crate) use cache::Reservation;
pub use cache::{BlockCache, Cache, CachedBlock, LruCacheOptions};
pub use compression::CompressionOptions;
pub(crate) use held_blocks::HeldBlocks;
pub(crate) use options::{AutoReadahead, MetaCaching, OnDemand};
pub use options::{ReplacedTables, TableBuilderOptions, TableOpenOptions, TableReadOptions, TableSummary};
pub(crate) use syncing::SyncingTable;
#[cfg(feature = "internals")]
pub use tph::{FunctionSummary, OwnFile, TphSummary};
pub(crate) use tph::{KeptPiece, Origin, PieceUse};
pub use tph::{TphSettings, TphTable, told_by_own_file};

/// An open file of a table.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub path: PathBuf,
    pub file: Arc<dyn RandomAccessFile>,
}

/// Entries of a table from the first to the last, bypassing the cache. Only `seek_to_first`, `seek` and `next` move it.
pub trait TableScan: InternalIterator {
    /// Bytes read of the table's files so far.
    fn bytes_read(&self) -> u64;

    /// Bytes of the current value.
    fn value_len(&self) -> usize {
        self.value().len()
    }

    /// Where the current entry is, if a compaction's outputs may leave it there.
    fn origin(&self) -> Option<Origin> {
        None
    }

    /// What the current user key leaves in files that outputs keep using, if no entry of it survives.
    fn leaves(&self) -> Leaves {
        Leaves::Nothing
    }
}

/// What a user key leaves in files that the outputs of a compaction keep using, if no entry of it survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// Nothing.
    Nothing,
    /// Entries, which a placeholder has to hide.
    Entries,
    /// Entries that a placeholder in the piece at this position hides already.
    Placeholder(u32),
}

/// An open table, of one kind or another.
#[expect(clippy::large_enum_variant, reason = "the usual kind is reached without a further pointer")]
#[derive(Debug)]
pub enum Table {
    /// RocksDB's own kind.
    BlockBased(BlockBasedTable),
    /// Pieces under one perfect hash function.
    Tph(Box<TphTable>),
}

/// What a table's kind makes of a call.
macro_rules! of_kind {
    ($table:expr, $it:ident => $call:expr) => {
        match $table {
            Table::BlockBased($it) => $call,
            Table::Tph($it) => $call,
        }
    };
}

impl Table {
    /// Opens a table that is one file: reads what must be in memory, and refuses what this store cannot read.
    pub fn open(file: Arc<dyn RandomAccessFile>, options: TableOpenOptions) -> Result<Arc<Self>> {
        let table = BlockBasedTable::open(file, options)?;
        Self::with_pieces(Arc::new(Self::BlockBased(table)), &[], false)
    }

    /// Opens one file of a table; [`Self::with_pieces`] makes the table from its files. If the file was open before
    /// with `cache_id`, its blocks in the cache are used again.
    pub(crate) fn open_file(
        file: Arc<dyn RandomAccessFile>,
        options: TableOpenOptions,
        cache_id: Option<u64>,
        auto_readahead: AutoReadahead,
        caching: MetaCaching,
    ) -> Result<Arc<Self>> {
        let table = BlockBasedTable::open_as(file, options, cache_id, auto_readahead, caching)?;
        Ok(Arc::new(Self::BlockBased(table)))
    }

    /// The table whose own file is `own`, and which shares the files `others` with other tables, in the order of the
    /// MANIFEST. All are from [`Self::open_file`]. `charged`: the memory for finding entries counts in the block cache,
    /// which then keeps that much less.
    pub(crate) fn with_pieces(own: Arc<Self>, others: &[Arc<Self>], charged: bool) -> Result<Arc<Self>> {
        if let Some(table) = TphTable::new(&own, others, charged)? {
            return Ok(Arc::new(Self::Tph(Box::new(table))));
        }
        match others.first() {
            None => Ok(own),
            Some(other) => {
                let (path, other) = (own.path().display(), other.path().display());
                Err(Error::corruption(format!(
                    "{path}: a block-based table is one file, and the MANIFEST says that {other} is part of it"
                )))
            }
        }
    }

    /// Looks up `ikey` (a user key with the snapshot's sequence number): gives `ctx` the newest range tombstone over it
    /// at or below the snapshot, and offers it the entries of that user key, newest first, until it has enough. A
    /// lookup that is suspended leaves in `ctx` the bytes that it needs and its position, and continues from there
    /// later.
    #[inline]
    pub fn get(&self, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        of_kind!(self, table => table.get(ikey, ro, ctx))
    }

    /// Iterates over the point entries, for a read; the table stays open while the iterator lives.
    pub fn iter(self: &Arc<Self>, ro: TableReadOptions) -> Box<dyn InternalIterator> {
        match &**self {
            Self::BlockBased(_) => Box::new(TableIter::cached(BlockAccess::of(self), ro)),
            Self::Tph(table) => table.iter(ro),
        }
    }

    /// Goes over the point entries once, bypassing the cache, `readahead` bytes at a time (0: only what is wanted).
    pub fn scan(self: &Arc<Self>, readahead: usize, verify: bool) -> Box<dyn TableScan> {
        self.scan_keeping(&StreamReads::unpaced(readahead, verify), &|_| None)
    }

    /// The same for a compaction whose outputs may keep using some of the table's files: those of [`Self::kept_pieces`]
    /// for which `place` returns a position among the outputs' pieces.
    pub(crate) fn scan_keeping(
        self: &Arc<Self>,
        reads: &StreamReads,
        place: &dyn Fn(usize) -> Option<u32>,
    ) -> Box<dyn TableScan> {
        let files = match &**self {
            Self::BlockBased(_) => vec![ScanFile::whole(BlockAccess::of(self))],
            Self::Tph(table) => table.whole_files(),
        };
        let reads = reads.shared_by(files.len());
        self.scan_from(files, |_, file| BlockStream::of_file(&reads, file), place)
    }

    /// The same of `files`, which are what [`Self::scan_files`] gives, out of a source for each of them.
    pub(crate) fn scan_from<S: StreamSource + 'static>(
        &self,
        files: Vec<ScanFile>,
        mut source: impl FnMut(usize, &ScanFile) -> S,
        place: &dyn Fn(usize) -> Option<u32>,
    ) -> Box<dyn TableScan> {
        let mut files = files.into_iter().enumerate().map(|(i, file)| {
            let source = source(i, &file);
            TableIter::streaming(file, source)
        });
        match self {
            Self::Tph(table) => table.scan_of(files, place),
            Self::BlockBased(_) => match (files.next(), place(0)) {
                (Some(file), None) => Box::new(file),
                (Some(file), place) => tph::scan_one(self, file, place),
                (None, _) => unreachable!("a table has a file of its own"),
            },
        }
    }

    /// The parts of each of the table's files, its own first, that a scan of the user keys from `begin` to before `end`
    /// goes through.
    pub(crate) fn scan_files(self: &Arc<Self>, begin: Option<&[u8]>, end: Option<&[u8]>) -> Result<Vec<ScanFile>> {
        match &**self {
            Self::Tph(table) => table.scan_files(begin, end),
            Self::BlockBased(_) => {
                let (begin, end) = (begin.map(InternalKey::min_possible), end.map(InternalKey::min_possible));
                Ok(vec![BlockAccess::of(self).scanned(begin.as_ref(), end.as_ref())?])
            }
        }
    }

    /// The files that outputs of a compaction of this table may keep using, its own first, whose number is `own`; none
    /// if entries of a file cannot be read correctly without this table.
    pub(crate) fn kept_pieces(&self, own: u64) -> Vec<KeptPiece> {
        match self {
            _ if self.global_seqno().is_some() || !self.comparator().finds_by_bytes() => Vec::new(),
            Self::BlockBased(table) => tph::kept(table, own),
            Self::Tph(table) => table.kept_pieces(own),
        }
    }

    /// The paths of its files, its own first, in the order of the MANIFEST.
    pub(crate) fn file_paths(&self) -> Vec<&Path> {
        match self {
            Self::BlockBased(table) => vec![table.path()],
            Self::Tph(table) => table.file_paths(),
        }
    }

    /// Its further files, as it lists them.
    pub(crate) fn further_files(&self) -> &[PieceUse] {
        match self {
            Self::BlockBased(_) => &[],
            Self::Tph(table) => table.further_files(),
        }
    }

    /// The range tombstones, fragmented; `None` when there are none.
    pub fn range_tombstones(&self) -> Option<&Arc<FragmentedRangeTombstones>> {
        of_kind!(self, table => table.range_tombstones())
    }

    /// The data blocks, for an engine that merges blocks; `None` where the kind has none.
    pub(crate) fn block_access(self: &Arc<Self>) -> Option<BlockAccess> {
        match &**self {
            Self::BlockBased(_) => Some(BlockAccess::of(self)),
            Self::Tph(_) => None,
        }
    }

    /// True for an open file that is a TPH table's own file.
    pub(crate) fn is_tph_head(&self) -> bool {
        self.as_block_based().is_some_and(BlockBasedTable::is_tph_head)
    }

    /// True for an open file that keeps no index in memory, so that it serves as a piece as it is.
    pub(crate) fn serves_as_piece(&self) -> bool {
        self.as_block_based().is_some_and(BlockBasedTable::leaves_meta_to_cache)
    }

    /// The number under which the cache has the blocks of an open file.
    pub(crate) fn cache_id(&self) -> Option<u64> {
        self.as_block_based().and_then(BlockBasedTable::cache_id)
    }

    /// True if the blocks of all its files have checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        match self {
            Self::BlockBased(table) => table.footer().checksum != ChecksumType::None,
            Self::Tph(table) => table.has_checksums(),
        }
    }

    /// The table as what it is, for tools and tests of that kind.
    pub fn as_block_based(&self) -> Option<&BlockBasedTable> {
        match self {
            Self::BlockBased(table) => Some(table),
            Self::Tph(_) => None,
        }
    }

    /// The table as what it is, for tools and tests of that kind.
    pub fn as_tph(&self) -> Option<&TphTable> {
        match self {
            Self::BlockBased(_) => None,
            Self::Tph(table) => Some(table),
        }
    }

    /// Smallest and largest internal key, range tombstones included; `None` for an empty table. Read from the table
    /// itself, for tables about which no MANIFEST says it.
    pub fn boundaries(self: &Arc<Self>) -> Result<Option<(InternalKey, InternalKey)>> {
        let cmp = self.comparator();
        let mut found: Option<(InternalKey, InternalKey)> = None;
        let mut widen = |smallest: InternalKey, largest: InternalKey| match &mut found {
            Some((s, l)) => {
                if cmp.compare(smallest.as_bytes(), s.as_bytes()).is_lt() {
                    *s = smallest;
                }
                if cmp.compare(largest.as_bytes(), l.as_bytes()).is_gt() {
                    *l = largest;
                }
            }
            none => *none = Some((smallest, largest)),
        };
        let mut iter = self.iter(TableReadOptions { fill_cache: false, ..TableReadOptions::default() });
        let key = |iter: &dyn InternalIterator| -> Result<InternalKey> {
            ParsedInternalKey::parse(iter.key()).map_err(|e| Error::format(self.path(), &e))?;
            Ok(InternalKey::from_encoded(iter.key()))
        };
        iter.seek_to_first();
        iter.status()?;
        if iter.valid() {
            let smallest = key(&*iter)?;
            iter.seek_to_last();
            iter.status()?;
            if !iter.valid() {
                return Err(Error::corruption(format!("{}: its last key cannot be found", self.path().display())));
            }
            widen(smallest, key(&*iter)?);
        }
        if let Some(tombstones) = self.range_tombstones() {
            for (begin, end, seq) in tombstones.extremes() {
                widen(
                    InternalKey::new(begin, seq, ValueType::RangeDeletion),
                    InternalKey::new(end, MAX_SEQUENCE, ValueType::RangeDeletion),
                );
            }
        }
        Ok(found)
    }

    /// How many entries without range tombstones the properties count: one number, or a lower and an upper bound;
    /// `None` if they do not say.
    pub fn point_entries(&self) -> Option<RangeInclusive<u64>> {
        of_kind!(self, table => table.point_entries())
    }

    /// The properties: RocksDB's for every kind, as far as they apply to the kind.
    pub fn properties(&self) -> &TableProperties {
        of_kind!(self, table => table.properties())
    }

    /// The sequence number that all keys of an ingested file have.
    pub fn global_seqno(&self) -> Option<SequenceNumber> {
        of_kind!(self, table => table.global_seqno())
    }

    /// The comparator, which is the one that the table was opened with.
    pub fn comparator(&self) -> &InternalKeyComparator {
        of_kind!(self, table => table.comparator())
    }

    /// The path of the table's own file, as given to `open`.
    pub fn path(&self) -> &Path {
        of_kind!(self, table => table.path())
    }

    /// The own file's permission bits when it was opened; `None` where there are none.
    pub fn mode(&self) -> Option<u32> {
        of_kind!(self, table => table.mode())
    }

    /// About how many bytes of the table's files are in the page cache; `None` where that is not known.
    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        of_kind!(self, table => table.cached_bytes())
    }

    /// About how many of the `size` bytes that the table counts for belong to keys before `ikey`.
    pub fn approximate_offset_of(&self, size: u64, ikey: &[u8]) -> u64 {
        of_kind!(self, table => table.approximate_offset_of(size, ikey))
    }

    /// About how many of the `size` bytes that the table counts for belong to keys from `start` up to `end`.
    pub fn approximate_size(&self, size: u64, start: &[u8], end: &[u8]) -> u64 {
        of_kind!(self, table => table.approximate_size(size, start, end))
    }

    /// User keys that cut the table into parts of about equal bytes, for subcompactions: (key, bytes up to it), at most
    /// `max` of them. The last is at or after the table's last point key.
    pub fn anchors(&self, max: usize) -> Result<Vec<(Vec<u8>, u64)>> {
        of_kind!(self, table => table.anchors(max))
    }

    /// The extractor of the prefixes that the table can be asked for, if it knows any.
    pub(crate) fn filter_prefixes(&self) -> Option<&SliceTransform> {
        of_kind!(self, table => table.filter_prefixes())
    }

    /// False if the table certainly has no key with this prefix at or after `ikey`; with `backward`, at or before it.
    /// `prefix` is what [`Self::filter_prefixes`] makes of the user key of `ikey`.
    pub(crate) fn prefix_may_match(&self, prefix: &[u8], ikey: &[u8], backward: bool) -> bool {
        of_kind!(self, table => table.prefix_may_match(prefix, ikey, backward))
    }

    /// Counts what a seek was told of a prefix.
    pub(crate) fn count_seek(&self, may_match: bool, last_level: bool) {
        of_kind!(self, table => table.count_seek(may_match, last_level))
    }

    /// Reads everything and checks it: checksums, the order of keys, that the index or function finds all entries, that
    /// the filter has every key, the counts in the properties.
    pub fn verify(&self) -> Result<()> {
        of_kind!(self, table => table.verify())
    }

    /// What the table consists of, in the order of the file. Everything is read; a damaged part is listed with its
    /// error.
    pub fn describe(&self) -> Vec<TableBlock> {
        of_kind!(self, table => table.describe())
    }

    /// Bytes that the table holds in memory outside of the cache: index or function, filters, tombstones.
    pub fn memory_usage(&self) -> usize {
        of_kind!(self, table => table.memory_usage())
    }
}
