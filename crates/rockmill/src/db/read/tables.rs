//! The table cache: opens table files when they are first needed and keeps them open.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use rockmill_format::edit::FileEntry;
use rockmill_format::{InternalKeyComparator, SliceTransform};
use rockmill_io::{AccessPattern, FileSystem};

use crate::db::DbInner;
use crate::db::catalog::column_family::CfData;
use crate::db::catalog::merge_names::ExpectedOperator;
use crate::db::catalog::super_version::SuperVersion;
use crate::error::{ErrorKind, Result};
use crate::options::{CfOptions, DbOptions, TableKind};
use crate::pacing::read_protection::ReadProtection;
use crate::panics::guarded;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics, Statistics, Ticker};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::table::{AutoReadahead, BlockCache, MetaCaching, OnDemand, OpenFile, Table, TableOpenOptions};
use crate::version::{self, FileMeta, TableDirs, TableFile, TableNumbers, TableSource, Version};

/// Descriptors that `max_open_files` leaves for WALs, MANIFEST and the like (as in RocksDB).
const RESERVED_FILES: usize = 10;

/// The most tables that are opened to weigh the tombstones of a tree before its first compaction: with `max_open_files`
/// (as in RocksDB), and without a limit (where RocksDB opens all tables when it opens the database).
const WEIGHED_MAX_OF_LIMITED: usize = 20;
const WEIGHED_MAX: usize = 1000;

/// Which tables are open, and the blocks of those whose options name no cache.
pub(crate) struct TableCache {
    fs: Arc<dyn FileSystem>,
    statistics: Option<Arc<Statistics>>,
    /// [`DbOptions::use_direct_reads`] and [`DbOptions::advise_random_on_open`].
    direct: bool,
    advise_random: bool,
    default_cache: Option<Arc<BlockCache>>,
    read_protection: Arc<ReadProtection>,
    /// Those that `max_open_files` bounds. A leaf lock.
    open: Mutex<OpenTables>,
    /// Files that tables share, as they are open. A leaf lock.
    pieces: Mutex<OpenPieces>,
}

/// Open tables, oldest first, and how many files each has; a file that several tables share counts for each of them.
#[derive(Debug, Default)]
struct OpenTables {
    tables: VecDeque<(Weak<FileMeta>, usize)>,
    files: usize,
    /// How many files may be open at once; `None` without a limit, and then nothing is listed.
    max: Option<usize>,
}

impl OpenTables {
    /// None, with the option `max_open_files`.
    fn bounded(max: i32) -> Self {
        let max = usize::try_from(max).ok().map(|max| max.saturating_sub(RESERVED_FILES).max(1));
        Self { max, ..Self::default() }
    }

    /// Lists open tables, and closes some if too many files are open: the oldest of those that were not used since they
    /// were last looked at. One table may be open in any case.
    fn note<'a>(&mut self, opened: impl IntoIterator<Item = &'a Arc<FileMeta>>) {
        let Some(max) = self.max else { return };
        opened.into_iter().for_each(|file| self.push(Arc::downgrade(file), files_of(&file.entry)));
        if self.files > max {
            self.clean();
        }
        let mut chances = self.tables.len();
        while self.files > max && self.tables.len() > 1 {
            let Some((oldest, files)) = self.pop() else { return };
            let Some(file) = oldest.upgrade() else { continue };
            if chances > 0 && file.used.swap(false, Ordering::Relaxed) {
                chances -= 1;
                self.push(oldest, files);
            } else {
                // Readers that hold the table keep using it; the file closes when the last of them is done.
                file.table.store(None);
            }
        }
    }

    fn push(&mut self, table: Weak<FileMeta>, files: usize) {
        self.tables.push_back((table, files));
        self.files += files;
    }

    fn pop(&mut self) -> Option<(Weak<FileMeta>, usize)> {
        let (table, files) = self.tables.pop_front()?;
        self.files -= files;
        Some((table, files))
    }

    /// Forgets tables that are gone or that another call has closed.
    fn clean(&mut self) {
        let is_open = |file: &Weak<FileMeta>| file.upgrade().is_some_and(|f| f.table.load().is_some());
        self.tables.retain(|(file, _)| is_open(file));
        self.files = self.tables.iter().map(|(_, files)| files).sum();
    }
}

/// Files of a table.
fn files_of(entry: &FileEntry) -> usize {
    1 + entry.pieces.len()
}

/// The open pieces by number; those that nobody uses any more stay listed for a while.
#[derive(Debug, Default)]
struct OpenPieces {
    open: HashMap<u64, Weak<Table>>,
    /// When this many pieces are listed, the unused ones are removed.
    clean_at: usize,
}

/// With fewer listed pieces than this, none is removed.
const LISTED_PIECES_MIN: usize = 64;

impl OpenPieces {
    fn get(&self, number: u64) -> Option<Arc<Table>> {
        self.open.get(&number)?.upgrade()
    }

    /// The open table with this number, if it serves as a piece.
    fn piece(&self, number: u64) -> Option<Arc<Table>> {
        self.get(number).filter(|table| table.serves_as_piece())
    }

    /// The number under which the cache has the blocks of an open file.
    fn cache_id(&self, number: u64) -> Option<u64> {
        self.get(number)?.cache_id()
    }

    /// Lists a piece that was opened, unless it is open already. Returns the one that all share from now on.
    fn share(&mut self, number: u64, opened: &Arc<Table>) -> Arc<Table> {
        if let Some(shared) = self.piece(number) {
            return shared;
        }
        self.open.insert(number, Arc::downgrade(opened));
        if self.open.len() >= self.clean_at.max(LISTED_PIECES_MIN) {
            self.open.retain(|_, piece| piece.strong_count() > 0);
            // Each removal has as many insertions before it as it looks at pieces.
            self.clean_at = 2 * self.open.len();
        }
        Arc::clone(opened)
    }
}

impl TableCache {
    /// No table is open yet. Reads of tables are reported to `read_protection`.
    pub fn new(
        options: &DbOptions,
        default_cache: Option<Arc<BlockCache>>,
        read_protection: &Arc<ReadProtection>,
    ) -> Self {
        Self {
            fs: Arc::clone(&options.fs),
            statistics: options.statistics.clone(),
            direct: options.use_direct_reads,
            advise_random: options.advise_random_on_open,
            default_cache,
            read_protection: Arc::clone(read_protection),
            open: Mutex::new(OpenTables::bounded(options.max_open_files)),
            pieces: Mutex::default(),
        }
    }

    /// The open piece with this number, which all tables that have it share; `open` opens it if it is not open. No lock
    /// is held meanwhile: if several threads open it at once, all of them get the one that is done first.
    ///
    /// A file that is open as a block-based table of its own keeps its index in memory, and is opened again as a piece:
    /// `open` gets the number under which the cache has its blocks.
    pub fn piece(&self, number: u64, open: impl FnOnce(Option<u64>) -> Result<Arc<Table>>) -> Result<Arc<Table>> {
        let listed = self.pieces.lock().get(number);
        let cache_id = match listed {
            Some(piece) if piece.serves_as_piece() => return Ok(piece),
            listed => listed.and_then(|table| table.cache_id()),
        };
        let opened = open(cache_id)?;
        let shared = self.pieces.lock().share(number, &opened);
        Ok(shared)
    }

    /// The own file of a table of a column family that has TPH tables. A head may be a piece of other tables; a
    /// block-based table may become one, and is listed for its blocks in the cache.
    fn own_file(&self, number: u64, open: impl FnOnce() -> Result<Arc<Table>>) -> Result<Arc<Table>> {
        if let Some(head) = self.pieces.lock().piece(number).filter(|table| table.is_tph_head()) {
            return Ok(head);
        }
        let opened = open()?;
        let mut pieces = self.pieces.lock();
        if opened.is_tph_head() {
            return Ok(pieces.share(number, &opened));
        }
        if pieces.get(number).is_none() {
            pieces.share(number, &opened);
        }
        Ok(opened)
    }
}

/// What the tables of one column family are opened with.
pub(crate) struct TableSettings {
    /// Where they are.
    dirs: TableDirs,
    cmp: InternalKeyComparator,
    cache: Option<Arc<BlockCache>>,
    prefix_extractor: Option<SliceTransform>,
    /// `None` if there is no merge operator: any table is accepted.
    operator: Option<ExpectedOperator>,
    auto_readahead: AutoReadahead,
    caching: MetaCaching,
    /// TPH tables are written; tables of any kind may become pieces of them.
    tph: bool,
    /// The memory for finding the entries of TPH tables counts in the block cache.
    charged: bool,
    /// Used to find out whether a table is in L0, if that matters and is not known.
    level0: Option<Arc<SuperVersion>>,
}

/// Opens tables of one column family.
pub(crate) struct CfTables {
    db: Arc<DbInner>,
    settings: TableSettings,
}

impl CfTables {
    pub fn new(db: &Arc<DbInner>, cf: &CfData) -> Self {
        Self { db: Arc::clone(db), settings: db.readers.tables.settings(cf) }
    }

    /// The database.
    pub fn db(&self) -> &DbInner {
        &self.db
    }

    /// The column family's prefix extractor as it is now.
    pub fn prefix_extractor(&self) -> Option<&SliceTransform> {
        self.settings.prefix_extractor.as_ref()
    }
}

impl TableCache {
    /// The open table of a file of a column family; opens it if it is not.
    pub fn table(&self, cf: &CfData, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
        self.used(file).map_or_else(|| self.open_and_keep(file, &self.settings(cf)), Ok)
    }

    /// The same with the settings of its column family.
    #[inline]
    pub fn table_with(&self, settings: &TableSettings, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
        self.used(file).map_or_else(|| self.open_and_keep(file, settings), Ok)
    }

    #[inline]
    fn used(&self, file: &FileMeta) -> Option<Arc<Table>> {
        file.table.load_full().inspect(|_| file.touch())
    }

    /// The cache of a column family.
    pub fn cache_of(&self, cf: &CfData) -> Option<Arc<BlockCache>> {
        self.cache_for(&cf.options.load())
    }

    fn cache_for(&self, options: &CfOptions) -> Option<Arc<BlockCache>> {
        if options.table.no_block_cache {
            return None;
        }
        options.table.block_cache.clone().or_else(|| self.default_cache.clone())
    }

    /// What the tables of a column family are opened with.
    pub fn settings(&self, cf: &CfData) -> TableSettings {
        let options = cf.options.load();
        let caching = MetaCaching::new(&options.table, true);
        let caching = MetaCaching { pin: caching.pin && caching.in_cache, ..caching };
        TableSettings {
            dirs: cf.dirs().clone(),
            cmp: cf.cmp.clone(),
            cache: self.cache_for(&options),
            prefix_extractor: options.prefix_extractor.clone(),
            operator: cf.merge_operator.clone().map(|o| ExpectedOperator::new(&cf.name, o)),
            auto_readahead: AutoReadahead::new(&options.table),
            caching,
            tph: options.table_factory == TableKind::Tph,
            charged: options.table.cache_index_and_filter_blocks,
            level0: caching.pin.then(|| cf.current.load_full()),
        }
    }

    fn open_table(&self, file: &FileMeta, settings: &TableSettings) -> Result<Arc<Table>> {
        let own = file.own_file();
        // The file may be open as a piece of another table; its blocks in the cache are used here as well.
        let new_id = |c: &BlockCache| self.pieces.lock().cache_id(file.number()).unwrap_or_else(|| c.new_id());
        let cache_id = settings.cache.as_ref().map(|c| match file.cache_id.get() {
            Some(id) => *id,
            None => {
                // Not inside the cell's initialization: other threads that open the table would wait for this lock,
                // too.
                let id = new_id(c);
                *file.cache_id.get_or_init(|| id)
            }
        });
        let is_there = |c: &Arc<SuperVersion>| c.version.levels[0].base.iter().any(|l0| l0.number() == file.number());
        let pin = settings.caching.pin && settings.level0.as_ref().is_none_or(is_there);
        let caching = MetaCaching { pin, ..settings.caching };
        let open_own = || self.open_one(own, Some(file.entry.largest_seqno), cache_id, settings, caching);
        let shared = settings.tph || !file.entry.pieces.is_empty();
        let own = if shared { self.own_file(file.number(), open_own)? } else { open_own()? };
        let mut pieces = Vec::with_capacity(file.entry.pieces.len());
        let caching = MetaCaching { on_demand: OnDemand::All, ..settings.caching };
        for piece in &file.entry.pieces {
            let open = |cache_id| self.open_one(piece.file(), None, cache_id, settings, caching);
            pieces.push(self.piece(piece.number, open)?);
        }
        let table = Table::with_pieces(own, &pieces, settings.charged)?;
        if let Some(operator) = &settings.operator {
            operator.check(&table).map_err(|e| e.context(table.path().display()))?;
        }
        Ok(table)
    }

    /// Opens one file of a table.
    fn open_one(
        &self,
        file: TableFile,
        largest_seqno: Option<u64>,
        cache_id: Option<u64>,
        settings: &TableSettings,
        caching: MetaCaching,
    ) -> Result<Arc<Table>> {
        let OpenFile { path, file } = version::open_file(&*self.fs, &settings.dirs, file, self.direct)?;
        if !self.advise_random {
            file.advise(AccessPattern::Normal);
        }
        let options = TableOpenOptions {
            path,
            cmp: settings.cmp.clone(),
            cache: settings.cache.clone(),
            largest_seqno,
            statistics: self.statistics.clone(),
            read_protection: Some(Arc::clone(&self.read_protection)),
            prefix_extractor: settings.prefix_extractor.clone(),
        };
        Table::open_file(file, options, cache_id, settings.auto_readahead, caching)
    }

    /// Opens a table, counted and timed.
    fn open_counted(&self, file: &FileMeta, settings: &TableSettings) -> Result<Arc<Table>> {
        let statistics = &self.statistics;
        statistics.add(Ticker::NoFileOpens, 1);
        let began = statistics.start_now();
        let opened = self.open_table(file, settings);
        statistics.stop_now(Histogram::TableOpenIoMicros, began);
        opened.inspect_err(|_| statistics.add(Ticker::NoFileErrors, 1))
    }

    #[cold]
    fn open_and_keep(&self, file: &Arc<FileMeta>, settings: &TableSettings) -> Result<Arc<Table>> {
        let _timer = perf::time(PerfMetric::FindTableNanos);
        let table = self.open_counted(file, settings)?;
        let _ = file.numbers.set(TableNumbers::of(table.properties())); // the same each time
        file.table.store(Some(Arc::clone(&table)));
        self.note_open(file);
        Ok(table)
    }

    /// Counts a file's table as open, and closes others if too many are open.
    pub fn note_open(&self, file: &Arc<FileMeta>) {
        self.open.lock().note([file]);
    }

    /// True if this many more files may be opened without closing any.
    fn may_open_more(&self, files: usize) -> bool {
        let mut open = self.open.lock();
        let Some(max) = open.max else { return true };
        if open.files + files > max {
            open.clean();
        }
        open.files + files <= max
    }

    /// Called when `max_open_files` has changed, with all tables: lists those that are open, and closes some if there
    /// are too many.
    pub fn set_max_open_files<'a>(&self, max: i32, tables: impl Iterator<Item = &'a Arc<FileMeta>>) {
        let mut open = self.open.lock();
        *open = OpenTables::bounded(max);
        open.note(tables.filter(|f| f.table.load().is_some()));
    }
}

impl DbInner {
    /// Opens the tables of a database that is open for reading only, all of them unless `max_open_files` has a limit: a
    /// writer in another process may delete them at any moment. Damaged tables are left for their readers to report.
    pub fn open_tables_to_read(&self) -> Result<()> {
        if self.live().max_open_files >= 0 {
            return Ok(());
        }
        let families: Vec<_> =
            self.state.lock().families().map(|c| (Arc::clone(c.cf()), Arc::clone(c.version()))).collect();
        let files = families.iter().flat_map(|(cf, v)| v.levels.iter().flatten().map(move |file| (cf, file)));
        for (cf, file) in files {
            match self.readers.tables.table(cf, file) {
                Err(e) if e.is_missing_file() => return Err(e),
                // If there are not enough file handles for all of them, the rest is opened when it is read.
                Err(e) if e.kind() == ErrorKind::IOError => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens tables that were there when the database was opened, from L0 down, and weighs their tombstones (RocksDB's
    /// `UpdateAccumulatedStats`). Others are weighed when they are read. Errors are left for the readers of a table to
    /// report.
    pub fn weigh_tombstones(&self, cf: &CfData, version: &Version) {
        let most = if self.live().max_open_files >= 0 { WEIGHED_MAX_OF_LIMITED } else { WEIGHED_MAX };
        for file in version.files().filter(|f| f.numbers.get().is_none()).take(most) {
            if self.shutdown.load(Ordering::Acquire) {
                return;
            }
            let _ = self.readers.tables.table(cf, file);
        }
        version.weigh_tombstones();
    }

    /// Opens the tables that a job wrote for a level before they are live, so that no read has to (RocksDB's
    /// `LoadTableHandlers`); but no others are closed for them. Errors are left for the readers of a table to report.
    pub fn open_new_tables(&self, cf: &CfData, level: usize, files: &[FileEntry]) {
        let tables = &self.readers.tables;
        let _ = guarded("opening new tables", || {
            let mut settings = tables.settings(cf);
            settings.caching.pin &= level == 0;
            settings.level0 = None;
            for entry in files {
                if !tables.may_open_more(files_of(entry) + self.files.new_files_open()) {
                    break;
                }
                let file = FileMeta::new(entry.clone(), Arc::clone(&cf.purge));
                let table = tables.open_counted(&file, &settings)?;
                self.files.set_new_table_open(entry.number, (table, file.cache_id.get().copied()));
            }
            Ok(())
        });
    }
}

impl TableSource for CfTables {
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<Table>> {
        self.db.readers.tables.table_with(&self.settings, file)
    }
}

#[cfg(test)]
mod tests {
    use rockmill_io::MemFileSystem;

    use super::*;
    use crate::{Db, Error, Options};

    /// A database with one table.
    fn with_a_table() -> (Db, Arc<CfData>, Arc<Version>) {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_file_system(Arc::new(MemFileSystem::new()));
        let db = Db::open(&options, "/db").unwrap();
        db.put("key", "value").unwrap();
        db.flush().unwrap();
        let (cf, version) = {
            let state = db.inner.state.lock();
            (Arc::clone(state.family(0).unwrap().cf()), Arc::clone(state.family(0).unwrap().version()))
        };
        (db, cf, version)
    }

    #[test]
    fn a_table_whose_file_is_open_as_a_piece_finds_its_blocks_in_the_cache() {
        let (db, cf, version) = with_a_table();
        let file = version.files().next().unwrap();
        let cache = Some(BlockCache::new(1 << 20));
        for tph in [false, true] {
            let tables = TableCache::new(&db.inner.opts, cache.clone(), db.inner.pacing.read_protection());
            let settings = TableSettings { tph, ..tables.settings(&cf) };
            let caching = MetaCaching { on_demand: OnDemand::All, ..settings.caching };
            let open = |id| tables.open_one(file.own_file(), None, id, &settings, caching);
            let piece = tables.piece(file.number(), open).unwrap();
            let opened = || {
                let file = FileMeta::new(file.entry.clone(), Arc::clone(&cf.purge));
                let table = tables.open_table(&file, &settings).unwrap();
                assert!(file.cache_id.get().is_some() && file.cache_id.get().copied() == table.cache_id());
                table
            };
            let table = opened();
            assert!(!Arc::ptr_eq(&table, &piece) && table.cache_id() == piece.cache_id(), "tph: {tph}");
            assert_eq!(opened().cache_id(), piece.cache_id());
            // As long as it is open somewhere.
            let id = piece.cache_id();
            drop((table, piece));
            assert_ne!(opened().cache_id(), id);
        }
    }

    #[test]
    fn a_piece_is_open_once_as_long_as_somebody_uses_it() {
        let (db, cf, version) = with_a_table();
        let file = version.files().next().unwrap();
        let tables = &db.inner.readers.tables;
        let settings = tables.settings(&cf);
        let caching = MetaCaching { on_demand: OnDemand::All, ..settings.caching };
        let open = |_| tables.open_one(file.own_file(), None, None, &settings, caching);
        let never = |_| panic!("it is open");

        let cache = TableCache::new(&db.inner.opts, None, db.inner.pacing.read_protection());
        let listed = || cache.pieces.lock().open.len();
        assert!(cache.piece(7, |_| Err(Error::corruption("damaged"))).is_err());
        let piece = cache.piece(7, open).unwrap();
        assert!(Arc::ptr_eq(&piece, &cache.piece(7, never).unwrap()));
        // Somebody else is quicker; the lock is free meanwhile.
        let mut quicker = None;
        let other = cache.piece(8, |_| {
            quicker = Some(cache.piece(8, open)?);
            open(None)
        });
        assert!(Arc::ptr_eq(&other.unwrap(), quicker.as_ref().unwrap()));
        assert!(!Arc::ptr_eq(&piece, quicker.as_ref().unwrap()));

        // It is no longer in use, so it is opened again. Unused entries do not pile up.
        drop(piece);
        let piece = cache.piece(7, open).unwrap();
        assert_eq!(listed(), 2);
        let alive: Vec<_> = (100..150).map(|number| cache.piece(number, open).unwrap()).collect();
        for number in 1000..2000 {
            cache.piece(number, open).unwrap();
            assert!(listed() < 2 * (alive.len() + 2) + LISTED_PIECES_MIN, "{} are listed", listed());
        }
        assert!(Arc::ptr_eq(&piece, &cache.piece(7, never).unwrap()));
        assert!(alive.iter().zip(100..).all(|(piece, n)| Arc::ptr_eq(piece, &cache.piece(n, never).unwrap())));
    }
}
