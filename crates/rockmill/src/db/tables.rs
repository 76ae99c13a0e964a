//! The table cache: opens table files when they are first needed and keeps them open.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use rockmill_format::{InternalKeyComparator, filename};

use super::DbInner;
use crate::compaction::TableSource;
use crate::error::{Error, Result};
use crate::perf::{self, PerfMetric};
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::table::{BlockCache, TableOpenOptions, TableReader};
use crate::version::FileMeta;

/// Descriptors that `max_open_files` leaves for WALs, MANIFEST and the like (as in RocksDB).
const RESERVED_FILES: usize = 10;

/// Opens tables of one column family.
pub(crate) struct CfTables {
    pub db: Arc<DbInner>,
    pub cmp: InternalKeyComparator,
    pub cache: Option<Arc<BlockCache>>,
}

impl DbInner {
    pub fn table_path(&self, number: u64) -> PathBuf {
        let path = self.path.join(filename::table(number));
        // LevelDB and old RocksDB wrote `.ldb`.
        if !self.opts.fs.exists(&path).unwrap_or(true) {
            let old = path.with_extension("ldb");
            if self.opts.fs.exists(&old).unwrap_or(false) {
                return old;
            }
        }
        path
    }

    fn open_table(
        &self,
        file: &FileMeta,
        cmp: &InternalKeyComparator,
        cache: Option<&Arc<BlockCache>>,
        direct: bool,
    ) -> Result<Arc<TableReader>> {
        let path = self.table_path(file.number());
        let f = self
            .opts
            .fs
            .open_random(&path, direct)
            .map_err(|e| Error::io(format_args!("cannot open table {}", path.display()), &e))?;
        if f.size() != file.size() {
            return Err(Error::corruption(format!(
                "{}: the file has {} bytes, the MANIFEST says {}",
                path.display(),
                f.size(),
                file.size()
            )));
        }
        let options = TableOpenOptions {
            path,
            cmp: cmp.clone(),
            cache: cache.cloned(),
            largest_seqno: Some(file.entry.largest_seqno),
            statistics: self.opts.statistics.clone(),
        };
        let cache_id = cache.map(|c| *file.cache_id.get_or_init(|| c.new_id()));
        TableReader::open_as(f, options, cache_id)
    }

    /// The open table of a file; opens it if it is not.
    #[inline]
    pub fn table(
        &self,
        file: &Arc<FileMeta>,
        cmp: &InternalKeyComparator,
        cache: Option<&Arc<BlockCache>>,
    ) -> Result<Arc<TableReader>> {
        match file.table.load_full() {
            Some(t) => Ok(t),
            None => self.open_and_keep(file, cmp, cache),
        }
    }

    #[cold]
    fn open_and_keep(
        &self,
        file: &Arc<FileMeta>,
        cmp: &InternalKeyComparator,
        cache: Option<&Arc<BlockCache>>,
    ) -> Result<Arc<TableReader>> {
        let _timer = perf::time(PerfMetric::FindTableNanos);
        self.opts.statistics.add(Ticker::NoFileOpens, 1);
        let began = self.opts.statistics.start_now();
        let opened = self.open_table(file, cmp, cache, self.opts.use_direct_reads);
        self.opts.statistics.stop_now(Histogram::TableOpenIoMicros, began);
        let table = opened.inspect_err(|_| self.opts.statistics.add(Ticker::NoFileErrors, 1))?;
        file.table.store(Some(Arc::clone(&table)));
        if self.live().max_open_files >= 0 {
            let mut open = self.open_tables.lock();
            open.push_back(Arc::downgrade(file));
            self.close_tables_above_limit(&mut open);
        }
        Ok(table)
    }

    /// Closes the oldest of the open tables where there are more than `max_open_files` allows.
    pub fn close_tables_above_limit(&self, open: &mut VecDeque<Weak<FileMeta>>) {
        let Ok(max) = usize::try_from(self.live().max_open_files) else { return };
        let limit = max.saturating_sub(RESERVED_FILES).max(1);
        while open.len() > limit {
            // Readers that hold the table go on with it; the file closes when the last of them is done.
            if let Some(old) = open.pop_front().and_then(|w| w.upgrade()) {
                old.table.store(None);
            }
        }
    }
}

impl TableSource for CfTables {
    fn table(&self, file: &Arc<FileMeta>) -> Result<Arc<TableReader>> {
        self.db.table(file, &self.cmp, self.cache.as_ref())
    }

    fn table_for_compaction(&self, file: &Arc<FileMeta>) -> Result<Arc<TableReader>> {
        self.db.table(file, &self.cmp, self.cache.as_ref())
    }
}
