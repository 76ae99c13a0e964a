//! RocksDB in the benchmark: any version with its C API, loaded at run time.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rockmill_rocksdb as ffi;

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::store::{Session, Sought, Stalls, Store, WARM_UP, family_names, place_of, warm_up_entries};

/// A loaded library, and what can be known about it without opening a database.
#[derive(Clone)]
pub(crate) struct RocksDbLibrary {
    library: Arc<ffi::Library>,
    /// The library contains assertions, which make it slower than necessary.
    pub assertions: bool,
}

impl RocksDbLibrary {
    /// Loads `path`, or the system's library.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let library = ffi::find(path).map_err(|e| missing(&e))?;
        let assertions = has_assertions(&fs::read(&library.path).unwrap_or_default());
        Ok(Self { library, assertions })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.library.path
    }

    /// Deletes the database at `path`.
    pub fn destroy(&self, flags: &Flags, path: &Path) -> Result<()> {
        let options = self.library.options("create_if_missing=true", false).map_err(Error::Run)?;
        set_paths(&options, flags, path).map_err(Error::Run)?;
        self.library.destroy(&options, path).map_err(Error::Run)
    }
}

/// Sets the paths on the faster device, according to the flags.
fn set_paths(options: &ffi::DbOptions, flags: &Flags, dir: &Path) -> std::result::Result<(), String> {
    if flags.fast_path.is_empty() {
        return Ok(());
    }
    options.set_wal_dir(Path::new(&flags.fast_path))?;
    options.set_db_paths(&flags.table_paths(dir))
}

fn missing(why: &str) -> Error {
    Error::Run(format!(
        "--peer rocksdb: cannot load RocksDB's library: {why}; install it (Debian: apt-get install librocksdb7.8), \
         build a newer one with scripts/build_rocksdb, or name one with --peer rocksdb=PATH"
    ))
}

/// True for a library whose own code has assertions. A build without NDEBUG contains, for each assertion's message, the
/// signature of its function. Calls of `__assert_fail` prove nothing: a linked compression library may contain them.
fn has_assertions(library: &[u8]) -> bool {
    const OF_ITS_OWN: &[u8] = b"rocksdb::DBImpl::";
    let mut texts = library.split(|b| *b == 0).filter(|text| text.contains(&b'('));
    texts.any(|text| {
        let at = text.windows(OF_ITS_OWN.len()).position(|part| part == OF_ITS_OWN);
        at.is_some_and(|at| text[at..].contains(&b'('))
    })
}

/// An open RocksDB database.
pub(crate) struct RocksDbStore {
    db: ffi::Db,
    auto_compactions: bool,
    multiread_batched: bool,
    statistics: bool,
}

impl RocksDbStore {
    /// Opens the database at `path` with options in RocksDB's text form.
    pub fn open(library: &RocksDbLibrary, flags: &Flags, options_text: &str, path: &Path) -> Result<Self> {
        let at = |e: String| Error::Run(format!("RocksDB, {}: {e}", path.display()));
        let options = library.library.options(options_text, flags.statistics).map_err(at)?;
        set_paths(&options, flags, path).map_err(at)?;
        let names = family_names(flags);
        let db = ffi::Db::open(&options, path, &names, flags.sync, flags.disable_wal, flags.verify_checksum);
        let db = db.map_err(at)?;
        Ok(Self {
            db,
            auto_compactions: !flags.disable_auto_compactions,
            multiread_batched: flags.multiread_batched,
            statistics: flags.statistics,
        })
    }

    /// Checks the options without a database.
    pub fn check(library: &RocksDbLibrary, options_text: &str) -> Result<()> {
        library.library.options(options_text, false).map(drop).map_err(|e| Error::Usage(format!("RocksDB: {e}")))
    }

    /// A number of the default column family, or the database.
    fn number(&self, property: &str) -> u64 {
        self.number_of(0, property)
    }

    fn number_of(&self, family: usize, property: &str) -> u64 {
        self.db.property(family, property).and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }

    #[inline]
    fn family(&self, key: &[u8]) -> usize {
        place_of(key, self.db.families())
    }
}

impl Store for RocksDbStore {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksDbSession { store: self, batch: self.db.batch(), multi: self.db.multi() }))
    }

    fn flush(&self) -> Result<()> {
        self.db.flush().map_err(Error::Run)
    }

    fn compact(&self) -> Result<()> {
        self.db.compact_all();
        Ok(())
    }

    fn warm_up(&self, inputs: usize) -> Result<()> {
        let tables = (0..inputs).map(warm_up_entries);
        self.db.merge_elsewhere(WARM_UP, tables).map_err(Error::Run)
    }

    fn wait_for_compaction(&self) -> Result<()> {
        const BUSY: [&str; 5] = [
            "rocksdb.num-immutable-mem-table",
            "rocksdb.mem-table-flush-pending",
            "rocksdb.num-running-flushes",
            "rocksdb.num-running-compactions",
            "rocksdb.compaction-pending",
        ];
        let asked = if self.auto_compactions { &BUSY[..] } else { &BUSY[..BUSY.len() - 1] };
        let mut idle = 0;
        loop {
            if self.number("rocksdb.background-errors") > 0 {
                return Err(Error::Run("RocksDB reports an error of background work; its LOG says more".to_owned()));
            }
            // They are queried one after the other, so all of them can be 0 once between two jobs.
            let quiet = |family| asked.iter().all(|p| self.number_of(family, p) == 0);
            idle = if (0..self.db.families()).all(quiet) { idle + 1 } else { 0 };
            if idle == 3 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stalls(&self) -> Result<Stalls> {
        let db_stats = self.db.property(0, "rocksdb.dbstats").unwrap_or_default();
        let cf_stats = self.db.property(0, "rocksdb.cfstats-no-file-histogram").unwrap_or_default();
        let stopped = self.number("rocksdb.is-write-stopped") > 0;
        let delayed = self.number("rocksdb.actual-delayed-write-rate") > 0;
        Ok(Stalls {
            delayed_micros: cumulative_stall_micros(&db_stats),
            stopped_micros: 0,
            reason: if stopped {
                "writes stopped"
            } else if delayed {
                "writes delayed"
            } else {
                ""
            }
            .to_owned(),
            counts: stall_counts(&cf_stats),
        })
    }

    fn levels(&self) -> Result<Vec<u64>> {
        let mut out = vec![];
        for (level, bytes) in self.db.tables() {
            if out.len() <= level {
                out.resize(level + 1, 0);
            }
            out[level] += bytes;
        }
        Ok(out)
    }

    fn stats(&self) -> Result<String> {
        let stats = self.db.property(0, "rocksdb.stats").unwrap_or_default();
        if !self.statistics {
            return Ok(stats);
        }
        let all = self.db.property(0, "rocksdb.options-statistics").unwrap_or_default();
        Ok(format!("{stats}\nSTATISTICS:\n{all}"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The line `Cumulative stall: HH:MM:SS.mmm H:M:S, p percent` of RocksDB's statistics of a database.
fn cumulative_stall_micros(text: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix("Cumulative stall:"));
    let Some(time) = line.and_then(|l| l.split_whitespace().next()) else { return 0 };
    let parts: Vec<f64> = time.split(':').filter_map(|p| p.parse().ok()).collect();
    match parts[..] {
        [h, m, s] => ((h * 3600.0 + m * 60.0 + s) * 1e6) as u64,
        _ => 0,
    }
}

/// The counts by reason, in the form of RocksDB 7 (`Stalls(count): 3 level0_slowdown, ...`) or later (`Write Stall
/// (count): cf-l0-file-count-limit-delays-...: 3, ...`). Reasons with count 0, and totals, are omitted.
fn stall_counts(text: &str) -> Vec<(String, u64)> {
    let line = text.lines().find_map(|l| {
        l.trim().strip_prefix("Stalls(count):").or_else(|| l.trim().strip_prefix("Write Stall (count):"))
    });
    let mut out = Vec::new();
    for part in line.unwrap_or_default().split(',').map(str::trim) {
        let pair = match part.rsplit_once(": ") {
            Some((name, n)) => Some((name, n)),
            None => part.split_once(' ').map(|(n, name)| (name, n)),
        };
        if let Some((name, n)) = pair
            && let Ok(n) = n.trim().parse::<u64>()
            && n > 0
            && !name.starts_with("total-")
            && !name.starts_with("interval")
        {
            out.push((name.to_owned(), n));
        }
    }
    out
}

struct RocksDbSession<'a> {
    store: &'a RocksDbStore,
    batch: ffi::Batch<'a>,
    multi: ffi::Multi<'a>,
}

impl Session for RocksDbSession<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.put(self.store.family(key), key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.delete(self.store.family(key), key);
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.batch.merge(self.store.family(key), key, operand);
        Ok(())
    }

    #[inline]
    fn commit(&mut self) -> Result<()> {
        self.batch.commit().map_err(Error::Run)
    }

    #[inline]
    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.store.db.get(self.store.family(key), key, value).map_err(Error::Run)
    }

    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        self.multi.get(keys, self.store.multiread_batched).map_err(Error::Run)
    }

    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        let mut iter = self.store.db.iterator(self.store.family(key));
        iter.seek(key);
        let mut out = Sought { found: iter.item().is_some_and(|(k, _)| k == key), ..Sought::default() };
        while out.entries < entries {
            let Some((k, v)) = iter.item() else { break };
            out.bytes += (k.len() + v.len()) as u64;
            out.entries += 1;
            iter.step(false);
        }
        iter.status().map_err(Error::Run)?;
        Ok(out)
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        for family in 0..self.store.db.families() {
            let mut iter = self.store.db.iterator(family);
            iter.seek_to_end(reverse);
            while let Some((k, v)) = iter.item() {
                if !visit((k.len() + v.len()) as u64)? {
                    return Ok(());
                }
                iter.step(reverse);
            }
            iter.status().map_err(Error::Run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_lines_of_all_versions_are_read() {
        assert_eq!(cumulative_stall_micros("x\nCumulative stall: 00:01:2.500 H:M:S, 3.0 percent\n"), 62_500_000);
        assert_eq!(cumulative_stall_micros(""), 0);
        let old = "Stalls(count): 0 level0_slowdown, 2 level0_slowdown_with_compaction, 3 memtable_compaction, \
            interval 5 total count";
        assert_eq!(
            stall_counts(old),
            [("level0_slowdown_with_compaction".to_owned(), 2), ("memtable_compaction".to_owned(), 3)]
        );
        let new = "Write Stall (count): cf-l0-file-count-limit-stops: 0, memtable-limit-stops: 4, total-stops: 4, \
            interval: 4 total count";
        assert_eq!(stall_counts(new), [("memtable-limit-stops".to_owned(), 4)]);
    }

    /// A linked compression library with assertions does not make RocksDB slower.
    #[test]
    fn only_rocksdbs_own_assertions_count() {
        let linked_in = b"\x7fELF\0__assert_fail\0ZSTD_isError(x)\0N7rocksdb6DBImplE\0lib/zstd.c\0".as_slice();
        assert!(!has_assertions(linked_in));
        let own = b"virtual rocksdb::Status rocksdb::DBImpl::Get(const rocksdb::ReadOptions&)\0";
        assert!(has_assertions(&[linked_in, own].concat()));
        assert!(!has_assertions(b"rocksdb::DBImpl:: without arguments\0f(x)\0"));
        assert!(!has_assertions(b""));
    }

    #[test]
    fn a_library_that_is_not_there_is_explained() {
        let e = RocksDbLibrary::load(Some(Path::new("/no/such/librocksdb.so"))).err().expect("not there").to_string();
        assert!(e.contains("/no/such/librocksdb.so") && e.contains("scripts/build_rocksdb"), "{e}");
    }
}
