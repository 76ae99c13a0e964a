//! Reads one TPH table.
//!
//! A lookup checks the range tombstones, then the function, which says which data block of which file has the key's
//! entries, if any. It reads only that block. Without a function, or if different keys have the same hash, it searches
//! the files one after another, newest first, and the first that knows the user key decides.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rockmill_format::checksum::ChecksumType;
use rockmill_format::filename::{self, FileType};
use rockmill_format::key::{self, InternalKey, MAX_SEQUENCE, ParsedInternalKey, ValueType};
use rockmill_format::properties::TableProperties;
use rockmill_format::{InternalKeyComparator, SequenceNumber, SliceTransform};

use super::builder::KeptPiece;
use super::iter::{PieceScan, TphIter};
use super::layout::{Finder, Head, PieceUse};
use crate::error::{Error, ErrorKind, Result};
use crate::iter::InternalIterator;
use crate::iter::get::{GetContext, Resume};
use crate::perf_context::{self as perf, PerfMetric};
use crate::range_del::FragmentedRangeTombstones;
use crate::statistics::{MaybeStatistics, Statistics, Ticker};
use crate::sync::{Condvar, Mutex};
use crate::table::block_based::{
    BlockAccess, BlockBasedTable, BlockPlaces, ScanFile, StreamSource, TPH_BLOCK, TableIter,
};
use crate::table::options::TableReadOptions;
use crate::table::{Reservation, Table, TableScan};

/// One file of a table, as a block-based table.
#[derive(Debug)]
pub(super) struct Piece {
    pub table: BlockAccess,
    pub places: BlockPlaces,
    /// Number of its first data block, counted over all files.
    first: u64,
    /// Bytes of it that the table refers to.
    live: u64,
    /// First and last user key for which it counts; `None` for the own file.
    pub bounds: Option<(Vec<u8>, Vec<u8>)>,
}

/// What lookups need in addition to the files.
#[derive(Debug)]
pub(super) struct Held {
    /// `None` where the table has no function.
    pub finder: Option<Finder>,
    /// What the block cache counts.
    _charge: Option<Reservation>,
}

/// An open table.
pub struct TphTable {
    /// The own file, then the others: newest first, where their keys overlap.
    pub(super) pieces: Vec<Piece>,
    pub(super) head: Head,
    /// If the block cache had no room for it when the table was opened, it is not in memory; a lookup that finds room
    /// for it reads it. Compactions do without it.
    pub(super) held: OnceLock<Held>,
    /// A lookup is about to read it. Others wait, because the block cache may have room for one copy, but not for one
    /// for each of them.
    loading: Mutex<bool>,
    loaded: Condvar,
    /// Bytes that the block cache counts of the table as long as the function is held.
    charged: Option<usize>,
    properties: TableProperties,
}

impl std::fmt::Debug for TphTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TphTable")
            .field("path", &self.path())
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}

/// The only lookup that reads a table's function at a time. No lock is held meanwhile.
struct Loading<'a>(&'a TphTable);

impl<'a> Loading<'a> {
    /// Waits for the previous one.
    fn begin(table: &'a TphTable) -> Self {
        let mut loading = table.loading.lock();
        while *loading {
            table.loaded.wait(&mut loading);
        }
        *loading = true;
        Self(table)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        *self.0.loading.lock() = false;
        self.0.loaded.notify_one();
    }
}

impl TphTable {
    /// A table whose own file is `own`, with the others in the order of its list; `None` if `own` is not a head, and so
    /// is a whole table. The open files are block-based tables.
    ///
    /// # Errors
    /// A head that is damaged, or is not of these files.
    pub(in crate::table) fn new(own: &Arc<Table>, others: &[Arc<Table>], charged: bool) -> Result<Option<Self>> {
        let Some(own_blocks) = own.as_block_based() else { return Ok(None) };
        let Some(block) = own_blocks.take_tph_block()? else { return Ok(None) };
        others.iter().filter_map(|file| file.as_block_based()).for_each(BlockBasedTable::leave_tph_block);
        let bad = |what: String| Error::corruption(format!("{}: block {TPH_BLOCK:?} {what}", own.path().display()));
        let (head, finder) = Head::decode(block).map_err(bad)?;
        if others.len() != head.pieces.len() {
            let (listed, given) = (head.pieces.len(), others.len());
            return Err(bad(format!("lists {listed} further files, and the table is opened with {given}")));
        }
        let mut pieces = Vec::with_capacity(others.len() + 1);
        let mut first = 0;
        let uses = || std::iter::once(None).chain(head.pieces.iter().map(Some));
        for (table, listed) in std::iter::once(own).chain(others).zip(uses()) {
            let expected = listed.map_or(head.own_blocks, |p| p.blocks);
            let piece = Piece::new(table, first, listed)?;
            if piece.places.len() as u64 != expected {
                let (path, found) = (table.path().display(), piece.places.len());
                return Err(bad(format!("says that {path} has {expected} data blocks; it has {found}")));
            }
            first += expected;
            pieces.push(piece);
        }
        let mut properties = own_blocks.properties().clone();
        if !head.pieces.is_empty() {
            head.totals.write_to(&mut properties);
        }
        let (held, loading, loaded) = (OnceLock::new(), Mutex::default(), Condvar::default());
        let mut table = Self { pieces, head, held, loading, loaded, charged: None, properties };
        if charged {
            // Files count in full even if other tables share them, because the others may be dropped first.
            let places: usize = table.pieces.iter().map(|p| p.places.memory_usage()).sum();
            table.charged = Some(places + finder.as_ref().map_or(0, Finder::memory_usage));
        }
        if let Ok(charge) = table.reserve() {
            table.held = Held { finder, _charge: charge }.into();
        }
        Ok(Some(table))
    }

    /// Makes the block cache count what lookups need, if it should.
    fn reserve(&self) -> Result<Option<Reservation>> {
        self.charged.map_or(Ok(None), |bytes| self.own().reserve(bytes))
    }

    /// The function; `None` where the table has none. `cache_only` forbids reading it.
    #[inline]
    pub(super) fn finder(&self, cache_only: bool) -> Result<Option<&Finder>> {
        match self.held.get() {
            Some(held) => Ok(held.finder.as_ref()),
            None => self.load_finder(cache_only),
        }
    }

    #[cold]
    fn load_finder(&self, cache_only: bool) -> Result<Option<&Finder>> {
        let bad = |what: &str| Error::corruption(format!("{}: block {TPH_BLOCK:?} {what}", self.path().display()));
        if cache_only {
            let what = format!("{}: block {TPH_BLOCK:?} is not in memory", self.path().display());
            return Err(Error::new(ErrorKind::Incomplete, what));
        }
        let _turn = Loading::begin(self);
        if let Some(held) = self.held.get() {
            return Ok(held.finder.as_ref());
        }
        let charge = self.reserve()?;
        let block = self.own().meta_block(TPH_BLOCK)?.ok_or_else(|| bad("is gone"))?;
        let (_, finder) = Head::decode(block).map_err(|what| bad(&what))?;
        Ok(self.held.get_or_init(|| Held { finder, _charge: charge }).finder.as_ref())
    }

    fn own(&self) -> &BlockBasedTable {
        // There is always the own file.
        &self.pieces[0].table
    }

    fn statistics(&self) -> Option<&Statistics> {
        self.own().statistics()
    }

    /// True where the table is more than its own file.
    pub(in crate::table) fn has_pieces(&self) -> bool {
        self.pieces.len() > 1
    }

    /// See [`Table::get`].
    pub fn get(&self, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        if let Some(resume) = ctx.waiting.as_mut().and_then(|w| w.resume.take()) {
            return self.get_in(resume, ikey, ro, ctx);
        }
        let user_key = key::user_key(ikey);
        if let Some(tombstones) = self.range_tombstones() {
            let seq = tombstones.max_covering(user_key, key::sequence(ikey), self.comparator());
            if seq > 0 {
                ctx.cover(seq);
            }
        }
        if self.head.totals.user_keys == 0 {
            return Ok(());
        }
        let Some(finder) = self.finder(ro.cache_only)? else { return self.get_without_function(ikey, ro, ctx) };
        let found = finder.find(finder.hash(user_key));
        let ticker = if found.is_some() { Ticker::BloomFilterFullPositive } else { Ticker::BloomFilterUseful };
        self.statistics().add(ticker, 1);
        perf::count(if found.is_some() { PerfMetric::BloomSstHitCount } else { PerfMetric::BloomSstMissCount }, 1);
        match found {
            Some(block) => self.get_in(Resume { at: block as usize, filtered: true }, ikey, ro, ctx),
            None => Ok(()),
        }
    }

    /// Searches a block, counted over all files, and the following ones as long as they have the same user key.
    fn get_in(&self, from: Resume, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        let place = self.pieces.partition_point(|p| p.first <= from.at as u64).saturating_sub(1);
        let piece = &self.pieces[place];
        let mut block = (from.at as u64 - piece.first) as usize;
        if block >= piece.places.len() {
            if from.at as u64 == self.head.blocks() {
                return self.get_without_function(ikey, ro, ctx);
            }
            let path = self.path().display();
            return Err(Error::corruption(format!("{path}: the function leads to block {}, which is none", from.at)));
        }
        // Outside of its bounds the file has entries that do not belong to this table.
        if !piece.counts_for(key::user_key(ikey), self.comparator()) {
            return Ok(());
        }
        let before = ctx.offered;
        while piece.table.get_at(piece.places.get(block), piece.first as usize + block, ikey, ro, ctx)? {
            block += 1;
            if block == piece.places.len() || piece.table.has_whole_user_keys() {
                break;
            }
        }
        let found = ctx.offered != before;
        if from.filtered && found {
            self.statistics().add(Ticker::BloomFilterFullTruePositive, 1);
        }
        if let Some(resume) = ctx.waiting.as_mut().and_then(|w| w.resume.as_mut()) {
            resume.filtered = from.filtered && !found;
        }
        Ok(())
    }

    /// The first file that knows the user key has all of its entries that count.
    #[cold]
    fn get_without_function(&self, ikey: &[u8], ro: TableReadOptions, ctx: &mut GetContext<'_>) -> Result<()> {
        if let Some(waiting) = &mut ctx.waiting {
            waiting.alone = true;
        }
        let user_key = key::user_key(ikey);
        let newest = InternalKey::new(user_key, MAX_SEQUENCE, ValueType::Max);
        for piece in self.pieces.iter().filter(|p| p.counts_for(user_key, self.comparator())) {
            let mut iter = TableIter::cached(piece.table.clone(), ro);
            iter.seek(newest.as_bytes());
            iter.status()?;
            let same = |ikey: &[u8]| self.comparator().compare_user(key::user_key(ikey), user_key).is_eq();
            if !iter.valid() || !same(iter.key()) {
                continue;
            }
            while iter.valid() && same(iter.key()) {
                let key = ParsedInternalKey::parse(iter.key()).map_err(|e| Error::format(self.path(), &e))?;
                if key.value_type == ValueType::Placeholder {
                    break;
                }
                let seen = self.comparator().compare(iter.key(), ikey).is_ge();
                if seen && !ctx.offer(key, crate::iter::get::ValueSource::Bytes(iter.value())) {
                    break;
                }
                iter.next();
                iter.status()?;
            }
            return Ok(());
        }
        Ok(())
    }

    /// See [`Table::iter`].
    pub(in crate::table) fn iter(&self, ro: TableReadOptions) -> Box<dyn InternalIterator> {
        if !self.has_pieces() {
            return Box::new(TableIter::cached(self.pieces[0].table.clone(), ro));
        }
        let file = |p: &Piece| (TableIter::cached_among_others(p.table.clone(), ro), p.bounds.clone());
        let files = self.pieces.iter().map(file).collect();
        Box::new(TphIter::new(files, self.comparator().clone()))
    }

    /// See [`Table::scan_files`].
    pub(in crate::table) fn scan_files(&self, begin: Option<&[u8]>, end: Option<&[u8]>) -> Result<Vec<ScanFile>> {
        let cmp = self.comparator();
        let (begin, end) = (begin.map(InternalKey::min_possible), end.map(InternalKey::min_possible));
        let file = |p: &Piece| {
            let (mut first, mut last) = (begin.clone(), end.clone());
            if let Some((low, high)) = &p.bounds {
                let (low, high) = (InternalKey::min_possible(low), InternalKey::max_possible(high));
                first = first.filter(|k| cmp.compare(k.as_bytes(), low.as_bytes()).is_gt()).or(Some(low));
                last = last.filter(|k| cmp.compare(k.as_bytes(), high.as_bytes()).is_lt()).or(Some(high));
            }
            p.table.scanned(first.as_ref(), last.as_ref())
        };
        self.pieces.iter().map(file).collect()
    }

    /// All of each file.
    pub(in crate::table) fn whole_files(&self) -> Vec<ScanFile> {
        self.pieces.iter().map(|p| ScanFile::whole(p.table.clone())).collect()
    }

    /// See [`Table::scan_from`]. `files` are the table's.
    pub(in crate::table) fn scan_of<S: StreamSource + 'static>(
        &self,
        files: impl Iterator<Item = TableIter<S>>,
        place: &dyn Fn(usize) -> Option<u32>,
    ) -> Box<dyn TableScan> {
        let places = (0..self.pieces.len()).map(place).collect();
        let files = files.zip(&self.pieces).map(|(file, p)| (file, p.bounds.clone())).collect();
        Box::new(PieceScan::new(files, self.comparator().clone(), places))
    }

    /// The files of this table that a new table may keep using: the own file, whose number is `own`, then the others.
    pub(in crate::table) fn kept_pieces(&self, own: u64) -> Vec<KeptPiece> {
        let numbers = std::iter::once(own).chain(self.head.pieces.iter().map(|p| p.number));
        let kept = |(p, number): (&Piece, u64)| p.table.as_kept(number, own, p.places.len() as u64, p.bounds.clone());
        self.pieces.iter().zip(numbers).map(kept).collect()
    }

    /// See [`Table::file_paths`].
    pub(in crate::table) fn file_paths(&self) -> Vec<&Path> {
        self.pieces.iter().map(|p| p.table.path()).collect()
    }

    /// See [`Table::has_checksums`].
    pub(in crate::table) fn has_checksums(&self) -> bool {
        self.pieces.iter().all(|piece| piece.table.footer().checksum != ChecksumType::None)
    }

    /// See [`Table::further_files`].
    pub(in crate::table) fn further_files(&self) -> &[PieceUse] {
        &self.head.pieces
    }

    /// Its own file, as the block-based table that it is.
    pub(crate) fn own_file(&self) -> &BlockBasedTable {
        self.own()
    }

    /// The range tombstones, fragmented; `None` when there are none.
    pub fn range_tombstones(&self) -> Option<&Arc<FragmentedRangeTombstones>> {
        self.own().range_tombstones()
    }

    /// How many entries the table has, range tombstones not counted.
    pub fn point_entries(&self) -> Option<RangeInclusive<u64>> {
        if !self.has_pieces() {
            return self.own().point_entries();
        }
        Some(self.head.totals.entries..=self.head.totals.entries)
    }

    /// The properties, of all files together where they count entries.
    pub fn properties(&self) -> &TableProperties {
        &self.properties
    }

    /// The sequence number that all keys of an ingested file have.
    pub fn global_seqno(&self) -> Option<SequenceNumber> {
        self.own().global_seqno()
    }

    /// The order of its keys.
    pub fn comparator(&self) -> &InternalKeyComparator {
        self.own().comparator()
    }

    /// The own file's path, as given to `open`.
    pub fn path(&self) -> &Path {
        self.own().path()
    }

    /// The own file's permission bits; of all files together, those that each grants.
    pub fn mode(&self) -> Option<u32> {
        self.pieces.iter().filter_map(|p| p.table.mode()).reduce(|a, b| a & b)
    }

    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        self.pieces.iter().map(|p| p.table.cached_bytes()).sum()
    }

    /// How many of `size` bytes each file counts for: the live bytes for the shared ones, and the rest for the own
    /// file.
    fn weights(&self, size: u64) -> impl Iterator<Item = (&Piece, u64)> {
        let shared = self.pieces.iter().skip(1).map(|p| p.live).fold(0, u64::saturating_add);
        let own = size.saturating_sub(shared);
        self.pieces.iter().enumerate().map(move |(i, p)| (p, if i == 0 { own } else { p.live }))
    }

    /// See [`Table::approximate_offset_of`].
    pub fn approximate_offset_of(&self, size: u64, ikey: &[u8]) -> u64 {
        let part = |(piece, weight): (&Piece, u64)| match &piece.bounds {
            None => piece.table.approximate_offset_of(weight, ikey),
            Some((first, _)) => {
                let first = InternalKey::new(first, MAX_SEQUENCE, ValueType::Max);
                self.part_between(piece, weight, first.as_bytes(), ikey)
            }
        };
        self.weights(size).map(part).fold(0, u64::saturating_add)
    }

    /// See [`Table::approximate_size`].
    pub fn approximate_size(&self, size: u64, start: &[u8], end: &[u8]) -> u64 {
        let part = |(piece, weight)| self.part_between(piece, weight, start, end);
        self.weights(size).map(part).fold(0, u64::saturating_add)
    }

    /// About how many of the `weight` bytes that a file counts for belong to keys from `start` up to `end`.
    fn part_between(&self, piece: &Piece, weight: u64, start: &[u8], end: &[u8]) -> u64 {
        let Some((first, last)) = &piece.bounds else { return piece.table.approximate_size(weight, start, end) };
        let cmp = self.comparator();
        let first = InternalKey::new(first, MAX_SEQUENCE, ValueType::Max);
        let last = InternalKey::new(last, 0, ValueType::Deletion);
        let (first, last) = (first.as_bytes(), last.as_bytes());
        let within = |k| match () {
            () if cmp.compare(k, first).is_lt() => first,
            () if cmp.compare(k, last).is_gt() => last,
            () => k,
        };
        let all = piece.table.approximate_size(1 << 40, first, last).max(1);
        let some = piece.table.approximate_size(1 << 40, within(start), within(end)).min(all);
        (u128::from(weight) * u128::from(some) / u128::from(all)) as u64
    }

    /// See [`Table::anchors`]: those of the file that has most of the table.
    pub fn anchors(&self, max: usize) -> Result<Vec<(Vec<u8>, u64)>> {
        if !self.has_pieces() {
            return self.own().anchors(max);
        }
        let own = self.own().data_end();
        let size = self.pieces.iter().skip(1).map(|p| p.live).fold(own, u64::saturating_add);
        let Some((piece, _)) = self.weights(size).max_by_key(|(_, weight)| *weight) else { return Ok(Vec::new()) };
        let cmp = self.comparator();
        // If it is shared with other tables, it has anchors of theirs.
        let mut keys: Vec<_> = piece.table.anchors(max.saturating_mul(4))?.into_iter().map(|(key, _)| key).collect();
        keys.retain(|k| piece.counts_for(k, cmp));
        let step = keys.len().div_ceil(max.max(1)).max(1);
        let mut keys: Vec<_> = keys.into_iter().skip(step - 1).step_by(step).collect();
        let last = self.last_user_key()?;
        keys.retain(|k| cmp.compare_user(k, &last).is_lt());
        keys.truncate(max.saturating_sub(1));
        keys.push(last);
        let parts = keys.len() as u64;
        Ok(keys.into_iter().zip(1..).map(|(key, i): (_, u64)| (key, size / parts * i)).collect())
    }

    /// The last user key, or one after it.
    fn last_user_key(&self) -> Result<Vec<u8>> {
        let cmp = self.comparator();
        let own = self.own().anchors(1)?.pop().map(|(key, _)| key);
        let others = self.pieces.iter().filter_map(|p| p.bounds.as_ref()).map(|(_, last)| last.clone());
        Ok(own.into_iter().chain(others).max_by(|a, b| cmp.compare_user(a, b)).unwrap_or_default())
    }

    /// TPH tables have no filter for prefixes.
    pub(crate) fn filter_prefixes(&self) -> Option<&SliceTransform> {
        None
    }

    /// See [`Table::prefix_may_match`].
    pub(crate) fn prefix_may_match(&self, _: &[u8], _: &[u8], _: bool) -> bool {
        true
    }

    /// See [`Table::count_seek`].
    pub(crate) fn count_seek(&self, may_match: bool, last_level: bool) {
        self.own().count_seek(may_match, last_level);
    }

    /// See [`Table::describe`]: the own file's.
    pub fn describe(&self) -> Vec<crate::table::TableBlock> {
        self.own().describe()
    }

    /// Bytes that the table holds in memory. The positions of blocks of shared files count in part, the files in full.
    pub fn memory_usage(&self) -> usize {
        let files: usize = self.pieces.iter().map(|p| p.table.memory_usage()).sum();
        size_of::<Self>() + files + self.index_memory().1 as usize
    }

    fn function_memory(&self) -> usize {
        self.held.get().and_then(|held| held.finder.as_ref()).map_or(0, Finder::memory_usage)
    }

    /// The number of a file's data block, counted over all files.
    pub(super) fn block_number(&self, file: usize, block: u64) -> u64 {
        self.pieces[file].first + block
    }

    /// Live user keys, and bytes of memory for finding them. If tables share memory, each counts its part.
    pub fn index_memory(&self) -> (u64, u64) {
        let places: usize = self.pieces.iter().map(|p| p.places.memory_share()).sum();
        (self.head.totals.user_keys, (places + self.function_memory()) as u64)
    }
}

impl Piece {
    /// `listed`: what the head says about it; `None` for the own file.
    fn new(table: &Arc<Table>, first: u64, listed: Option<&PieceUse>) -> Result<Self> {
        let Some(blocks) = table.as_block_based() else {
            return Err(Error::corruption(format!("{}: is a piece of a piece", table.path().display())));
        };
        if let Some(listed) = listed {
            let number = table.path().file_name().and_then(|name| filename::parse(&name.to_string_lossy()));
            let other = matches!(number, Some(FileType::Table(n)) if n != listed.number);
            if other || blocks.file_size() != listed.size {
                let (path, size) = (table.path().display(), blocks.file_size());
                let what = format!("lists file {} of {} bytes", listed.number, listed.size);
                return Err(Error::corruption(format!(
                    "{path}: is a file of {size} bytes where the table's head {what}"
                )));
            }
        }
        let places = blocks.places()?;
        let (live, bounds) = (listed.map_or(u64::MAX, |p| p.live), listed.map(|p| p.bounds.clone()));
        Ok(Self { table: BlockAccess::of(table), places, first, live, bounds })
    }

    /// True where the file counts for a user key.
    #[inline]
    fn counts_for(&self, user_key: &[u8], cmp: &InternalKeyComparator) -> bool {
        self.bounds.as_ref().is_none_or(|(first, last)| {
            cmp.compare_user(user_key, first).is_ge() && cmp.compare_user(user_key, last).is_le()
        })
    }
}

impl BlockBasedTable {
    /// The file, for a new table that may keep using it.
    pub(in crate::table) fn as_kept(
        &self,
        number: u64,
        table: u64,
        blocks: u64,
        bounds: Option<(Vec<u8>, Vec<u8>)>,
    ) -> KeptPiece {
        let p = self.properties();
        let bytes = p.raw_key_size.saturating_add(p.raw_value_size).max(1);
        let stored_per_byte = self.data_end() as f64 / bytes as f64;
        KeptPiece { number, table, bounds, size: self.file_size(), blocks, stored_per_byte }
    }
}
