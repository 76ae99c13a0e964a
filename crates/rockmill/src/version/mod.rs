//! Versions: which tables make up each level, and the MANIFEST that records every change.

mod builder;
mod check;
mod level;
mod log_source;
mod manifest;
mod manifest_tail;
mod pieces;
mod purge;
mod table_dirs;
mod table_files;
mod table_source;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use rockmill_format::InternalKeyComparator;
use rockmill_format::edit::FileEntry;
use rockmill_format::properties::TableProperties;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{ArcSwapOption, Mutex};
use crate::table::{Table, TphTable};

pub use builder::VersionBuilder;
#[cfg(feature = "internals")]
pub use level::ExtraRun;
pub use level::{Level, SortedRun, first_reaching, search, touched};
pub use log_source::{BlockHashes, LogSource};
#[cfg(feature = "internals")]
pub use manifest::manifest_mark;
pub use manifest::{
    ManifestWriter, RecoveredCf, RecoveredState, current_manifest, for_each_edit, for_each_edit_from, recover_manifest,
    retry_while_files_vanish,
};
pub use pieces::PieceUses;
use purge::HeldFiles;
pub use purge::{PurgeQueue, TableFile, each_file, each_file_in};
pub use table_dirs::TableDirs;
pub(crate) use table_files::open_file;
pub use table_files::{open_table, table_of_files, table_path};
pub use table_source::TableSource;

/// The properties of a table that estimates need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableNumbers {
    /// Entries, tombstones of all kinds included.
    pub entries: u64,
    /// Tombstones of all kinds.
    pub deletions: u64,
    /// Range tombstones.
    pub range_deletions: u64,
    /// Bytes of internal keys and values.
    pub raw_bytes: u64,
    /// Bytes of values.
    pub raw_value_bytes: u64,
}

/// What is known of a table that was written and is not live yet.
#[derive(Debug)]
pub struct NewTable {
    /// What its properties say.
    pub numbers: TableNumbers,
    /// Files that it consists of.
    pub files: usize,
    /// The open table, if it is open.
    pub open: Option<OpenTable>,
}

/// An open table, with its number in the block cache if it has one.
pub type OpenTable = (Arc<Table>, Option<u64>);

/// Tables that were written and are not live yet, by file number.
pub type NewTables = Mutex<HashMap<u64, NewTable>>;

impl TableNumbers {
    /// From the properties.
    pub fn of(p: &TableProperties) -> Self {
        Self {
            entries: p.num_entries,
            deletions: p.num_deletions,
            range_deletions: p.num_range_deletions,
            raw_value_bytes: p.raw_value_size,
            raw_bytes: p.raw_key_size.saturating_add(p.raw_value_size),
        }
    }
}

/// A table of some version. Versions share it. When the last reference to an obsolete table goes, those of its files
/// that no other table has are queued for deletion.
pub struct FileMeta {
    /// As in the MANIFEST.
    pub entry: FileEntry,
    /// A running compaction has it as input.
    pub being_compacted: AtomicBool,
    /// Readers need everything that it holds, although all of it is visible to every reader: cleaning it up again is
    /// useless.
    pub rewrite_useless: AtomicBool,
    /// The open table, if it is open; the table cache sets and clears it.
    pub table: ArcSwapOption<Table>,
    /// The table was used since the table cache last looked at it.
    pub used: AtomicBool,
    /// Its number in the block cache, once it was open; so that a file opened again finds its blocks.
    pub cache_id: OnceLock<u64>,
    /// What the table's properties say, once it was opened.
    pub numbers: OnceLock<TableNumbers>,
    /// Bytes that its tombstones count for in addition to its size; see [`Version::weigh_tombstones`].
    pub tombstone_weight: OnceLock<u64>,
    /// Where to report when obsolete and unreferenced.
    pub purge: Arc<PurgeQueue>,
    /// The value of [`Self::size`], kept because there may be a thousand pieces to add up.
    size: u64,
    /// The files themselves, which several of these may stand for: see [`renewed`](Self::renewed).
    files: Arc<HeldFiles>,
}

impl FileMeta {
    /// A table that is not yet open.
    pub fn new(entry: FileEntry, purge: Arc<PurgeQueue>) -> Self {
        let files = Arc::new(HeldFiles::new(entry.files().collect(), &purge));
        Self {
            size: entry.table_size(),
            entry,
            being_compacted: AtomicBool::new(false),
            rewrite_useless: AtomicBool::new(false),
            table: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            cache_id: OnceLock::new(),
            numbers: OnceLock::new(),
            tombstone_weight: OnceLock::new(),
            purge,
            files,
        }
    }

    /// The same table, with the same files, as the MANIFEST describes it from now on. It shares the open table, and no
    /// file is deleted before both are unreferenced.
    #[must_use]
    pub fn renewed(&self, entry: FileEntry) -> Self {
        Self {
            size: entry.table_size(),
            entry,
            being_compacted: AtomicBool::new(false),
            rewrite_useless: AtomicBool::new(self.rewrite_useless.load(Ordering::Relaxed)),
            table: ArcSwapOption::new(self.table.load_full()),
            used: AtomicBool::new(self.used.load(Ordering::Relaxed)),
            cache_id: self.cache_id.clone(),
            numbers: self.numbers.clone(),
            tombstone_weight: self.tombstone_weight.clone(),
            purge: Arc::clone(&self.purge),
            files: Arc::clone(&self.files),
        }
    }

    /// A job has opened the table.
    pub fn set_open(&self, open: Option<OpenTable>) {
        let (table, cache_id) = open.unzip();
        let _ = cache_id.flatten().map(|id| self.cache_id.set(id));
        self.table.store(table);
    }

    /// The table is in a version: when it is dropped, its files are kept, unless it has become obsolete.
    fn set_in_version(&self) {
        self.files.set_in_version();
    }

    /// The table is no longer in the current version: the last to refer to it gives its files up.
    pub fn set_obsolete(&self) {
        self.files.set_obsolete();
    }

    /// Notes that the table is used. Read first: after the first use it hardly ever changes.
    #[inline]
    pub fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// The table's number: that of its own file.
    pub fn number(&self) -> u64 {
        self.entry.number
    }

    /// Bytes that the table counts for: those of its own file, and those that it refers to in its pieces. This size is
    /// used for the shape of the tree and the work of jobs.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of its own file; without pieces, this is the whole table.
    pub fn own_size(&self) -> u64 {
        self.entry.size
    }

    /// All files of the table, its own first. Copies, deletions and checks of existence use these; everything else
    /// about a table uses its number.
    pub fn files(&self) -> impl Iterator<Item = TableFile> {
        self.entry.files()
    }

    /// Its own file.
    pub fn own_file(&self) -> TableFile {
        self.entry.own_file()
    }

    /// Smallest user key.
    pub fn smallest_user_key(&self) -> &[u8] {
        self.entry.smallest.user_key()
    }

    /// Largest user key.
    pub fn largest_user_key(&self) -> &[u8] {
        self.entry.largest.user_key()
    }
}

impl std::fmt::Debug for FileMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:06}.sst({} bytes)", self.entry.number, self.size)
    }
}

/// The tables of one column family at one moment. For one user key, everything in a shallower place is newer than
/// anything in a deeper one: L0 newest to oldest, then of each level its extra runs, newest first, and its base run.
#[derive(Debug)]
pub struct Version {
    /// From L0 down.
    pub levels: Vec<Level>,
    /// The order in which every table has its entries and every sorted run its tables. If keys are ordered by a hash,
    /// this is that order ([`InternalKeyComparator::is_hash_range`]); runs are searched by it like by any other.
    pub cmp: InternalKeyComparator,
    /// The last level is for files ingested behind (`allow_ingest_behind`): no compaction reads or writes it, and
    /// entries that would hide such files are kept.
    pub reserves_last_level: bool,
    /// Computed when first asked for.
    pieces: OnceLock<PieceUses>,
}

impl Clone for Version {
    /// Copies are made in order to be changed, so they compute it again.
    fn clone(&self) -> Self {
        self.with_levels(self.levels.clone())
    }
}

impl Version {
    /// Of these levels, from L0 down.
    pub fn new(levels: Vec<Level>, cmp: InternalKeyComparator) -> Self {
        Self { levels, cmp, reserves_last_level: false, pieces: OnceLock::new() }
    }

    /// A next version, of these levels.
    pub fn with_levels(&self, levels: Vec<Level>) -> Self {
        Self { reserves_last_level: self.reserves_last_level, ..Self::new(levels, self.cmp.clone()) }
    }

    /// Levels that compactions may use.
    pub fn usable_levels(&self) -> usize {
        self.levels.len().saturating_sub(usize::from(self.reserves_last_level))
    }

    /// No tables.
    pub fn empty(num_levels: usize, cmp: InternalKeyComparator) -> Self {
        Self::new(vec![Level::default(); num_levels], cmp)
    }

    /// Weighs the tombstones of tables whose numbers are known and that were not weighed before (RocksDB's
    /// `ComputeCompensatedSizes`): if a table has more tombstones than other entries, each excess tombstone counts as
    /// two average values of the tree, which it is likely to free, so that the table goes down sooner.
    pub fn weigh_tombstones(&self) {
        let new = |f: &&Arc<FileMeta>| f.tombstone_weight.get().is_none() && f.numbers.get().is_some();
        let mut average = None;
        for f in self.files().filter(new) {
            let Some(n) = f.numbers.get() else { continue };
            let points = n.deletions.saturating_sub(n.range_deletions);
            let surplus = points.saturating_mul(2).saturating_sub(n.entries);
            let value = if surplus == 0 { 0 } else { *average.get_or_insert_with(|| self.average_value()) };
            let _ = f.tombstone_weight.set(surplus.saturating_mul(value).saturating_mul(2).min(1 << 48));
        }
    }

    /// Bytes that a value takes in a table, on average over the tables whose numbers are known; 0 without values.
    fn average_value(&self) -> u64 {
        let (mut values, mut raw_values, mut raw, mut stored) = (0u64, 0u64, 0u64, 0u64);
        for (f, n) in self.files().filter_map(|f| Some((f, f.numbers.get()?))) {
            values = values.saturating_add(n.entries.saturating_sub(n.deletions));
            raw_values = raw_values.saturating_add(n.raw_value_bytes);
            raw = raw.saturating_add(n.raw_bytes);
            stored = stored.saturating_add(f.size());
        }
        let Some(each) = raw_values.checked_div(values) else { return 0 };
        u128::from(each).saturating_mul(u128::from(stored)).checked_div(u128::from(raw)).unwrap_or(0) as u64
    }

    /// Bytes in a level.
    pub fn level_bytes(&self, level: usize) -> u64 {
        self.levels[level].bytes()
    }

    /// The largest epoch number of its tables; the next flush takes the one above.
    pub fn largest_epoch(&self) -> u64 {
        // RocksDB reserves the topmost numbers for "unknown".
        let known = self.levels.iter().flatten().map(|f| f.entry.epoch_number).filter(|&e| e < u64::MAX - 1024);
        known.max().unwrap_or(0)
    }

    /// Files in all levels.
    pub fn num_files(&self) -> usize {
        self.levels.iter().map(Level::len).sum()
    }

    /// Every table, level by level.
    pub fn files(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.levels.iter().flatten()
    }

    /// The pieces of its tables, as they were when this was first asked. No table has pieces of another column family.
    pub fn pieces(&self) -> &PieceUses {
        self.pieces.get_or_init(|| PieceUses::of(&self.levels))
    }

    /// See [`PieceUses::live`].
    pub fn piece_live(&self, number: u64) -> (u64, u64) {
        self.pieces().live(number)
    }

    /// Live user keys of the TPH tables that are open, and bytes of memory in which they are found.
    pub fn tph_index(&self) -> (u64, u64) {
        let open = self.files().filter_map(|f| f.table.load_full());
        let each = open.filter_map(|table| table.as_tph().map(TphTable::index_memory));
        each.fold((0, 0), |(keys, bytes), (k, b)| (keys + k, bytes + b))
    }

    /// True when some table has pieces.
    pub fn has_pieces(&self) -> bool {
        self.files().any(|f| !f.entry.pieces.is_empty())
    }

    /// True when some level has an extra run.
    pub fn has_extra_runs(&self) -> bool {
        self.levels.iter().any(|level| !level.extras.is_empty())
    }

    /// True when RocksDB refuses a MANIFEST that describes the version.
    pub fn is_refused_by_rocksdb(&self) -> bool {
        self.has_extra_runs() || self.files().any(|f| f.entry.is_refused_by_rocksdb())
    }

    /// Every sorted run of the tree, newest first: each file of L0 alone, then of each level its extra runs and its
    /// base run.
    pub fn sorted_runs(&self) -> impl Iterator<Item = SortedRun<'_>> {
        let top = self.levels.first().into_iter().flat_map(|level| &level.base);
        let top = top.map(|f| SortedRun { level: 0, run: 0, files: std::slice::from_ref(f) });
        let below = self.levels.iter().enumerate().skip(1).filter(|(_, l)| !l.is_empty()).flat_map(|(level, l)| {
            l.runs().map(move |files| SortedRun { level, run: files.first().map_or(0, |f| f.entry.extra_run), files })
        });
        top.chain(below)
    }

    /// True when the user keys of `f` touch [`begin`, `end`] (inclusive; `None` unbounded).
    pub fn touches(&self, f: &FileMeta, begin: Option<&[u8]>, end: Option<&[u8]>) -> bool {
        !begin.is_some_and(|b| self.cmp.compare_user(f.largest_user_key(), b).is_lt())
            && !end.is_some_and(|e| self.cmp.compare_user(f.smallest_user_key(), e).is_gt())
    }

    /// Files of a sorted run whose user keys touch [`begin`, `end`] (inclusive; `None` unbounded).
    pub fn touched_of<'f>(
        &self,
        run: &'f [Arc<FileMeta>],
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> &'f [Arc<FileMeta>] {
        &run[touched(&self.cmp, run, begin, end)]
    }

    /// Files of `level`, of all its runs, whose user key range touches [`begin`, `end`] (inclusive; `None` unbounded).
    /// In L0 the range grows until no further file overlaps it, so that no older version of a taken key is left behind.
    pub fn overlapping(&self, level: usize, begin: Option<&[u8]>, end: Option<&[u8]>) -> Vec<Arc<FileMeta>> {
        if level > 0 {
            let runs = self.levels[level].runs();
            return runs.flat_map(|run| self.touched_of(run, begin, end)).cloned().collect();
        }
        let (mut b, mut e) = (begin.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec));
        loop {
            let touched = |f: &&Arc<FileMeta>| self.touches(f, b.as_deref(), e.as_deref());
            let hit: Vec<_> = self.levels[level].iter().filter(touched).cloned().collect();
            let mut grown = false;
            for f in &hit {
                if let Some(x) = &b
                    && self.cmp.compare_user(f.smallest_user_key(), x).is_lt()
                {
                    b = Some(f.smallest_user_key().to_vec());
                    grown = true;
                }
                if let Some(x) = &e
                    && self.cmp.compare_user(f.largest_user_key(), x).is_gt()
                {
                    e = Some(f.largest_user_key().to_vec());
                    grown = true;
                }
            }
            if !grown {
                return hit;
            }
        }
    }
}
