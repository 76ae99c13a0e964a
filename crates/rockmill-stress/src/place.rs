//! The location of a test's database, and how to open it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rockmill::internals::TableDirs;
use rockmill::{ColumnFamilyDescriptor, ColumnFamilyTtl, DBPath, Db, Env, Options, Result};
use rockmill_io::{Clock, FileSystem, MemFileSystem, PosixFileSystem, SystemClock};

use crate::configuration::Configuration;
use crate::kinds::{family_name, named_family};
use crate::model::State;

/// A directory on some file system: the database is in `db` below it, with backups and copies next to it.
#[derive(Debug, Clone)]
pub struct TestDir {
    /// Of all files.
    pub fs: Arc<dyn FileSystem>,
    /// Of the store.
    pub clock: Arc<dyn Clock>,
    /// Where everything is.
    pub root: PathBuf,
    /// The database has a time to live, so long that nothing expires.
    pub ttl: bool,
    /// WALs are in a separate directory, `wals` below the root.
    pub own_wals: bool,
    /// Tables have a second path, `slow` below the root, for tables that exceed the first path's size.
    pub two_paths: bool,
}

/// Target size of the first of two paths: L0 and one or two levels of most configurations.
const FIRST_PATH_BYTES: u64 = 64 << 10;

/// The time to live, if there is one: no clock reaches its end.
const TIME_TO_LIVE: Duration = Duration::from_secs(1_000_000_000);

impl TestDir {
    /// A directory on the machine's file system.
    pub fn on_disk(root: impl Into<PathBuf>) -> Self {
        let fs = Arc::new(PosixFileSystem::default());
        Self { fs, root: root.into(), ..Self::in_memory(&MemFileSystem::new()) }
    }

    /// A directory in memory; `fs` keeps showing its files.
    pub fn in_memory(fs: &MemFileSystem) -> Self {
        let clock = Arc::new(SystemClock::default());
        let (fs, root) = (Arc::new(fs.clone()), PathBuf::from("/test"));
        Self { fs, clock, root, own_wals: false, two_paths: false, ttl: false }
    }

    /// A name below the root.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The database's directory.
    pub fn db(&self) -> PathBuf {
        self.path("db")
    }

    /// The directory of WALs.
    pub fn wals(&self) -> PathBuf {
        if self.own_wals { self.path("wals") } else { self.db() }
    }

    /// The second path.
    pub fn slow(&self) -> PathBuf {
        self.path("slow")
    }

    /// The directories of tables.
    pub fn table_dirs(&self) -> TableDirs {
        let dirs = [self.db(), self.slow()].into_iter().take(1 + usize::from(self.two_paths));
        TableDirs::new(dirs, &self.db())
    }

    /// File system and clock.
    pub fn env(&self) -> Env {
        Env::from_parts(Arc::clone(&self.fs), Arc::clone(&self.clock))
    }

    /// A configuration's options, here.
    pub fn options(&self, configuration: &Configuration) -> Options {
        let mut options = configuration.options();
        options.set_file_system(Arc::clone(&self.fs));
        options.set_clock(Arc::clone(&self.clock));
        if self.own_wals {
            options.set_wal_dir(self.wals());
        }
        if self.two_paths {
            let path = |dir, size| DBPath::new(dir, size).ok();
            let paths = [path(self.db(), FIRST_PATH_BYTES), path(self.slow(), 0)];
            options.set_db_paths(&paths.into_iter().flatten().collect::<Vec<_>>());
        }
        options
    }

    /// Makes the root, if there is none.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn make_root(&self) -> Result<()> {
        self.fs.create_dir(&self.root, true).map_err(|e| rockmill::Error::io(self.root.display(), &e))
    }

    /// Opens a database below this directory, with a time to live if it has one.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open_families(&self, options: &Options, path: &Path, all: Vec<ColumnFamilyDescriptor>) -> Result<Db> {
        if !self.ttl {
            return Db::open_cf_descriptors(options, path, all);
        }
        let same = ColumnFamilyTtl::SameAsDb;
        let all = all.into_iter().map(|d| ColumnFamilyDescriptor::new_with_ttl(d.name(), d.options().clone(), same));
        Db::open_cf_descriptors_with_ttl(options, path, all, TIME_TO_LIVE)
    }

    /// Creates a column family, with a time to live if the database has one.
    ///
    /// # Errors
    /// Those of the store.
    pub fn create_family(&self, db: &Db, name: &str, options: &Options) -> Result<()> {
        if self.ttl {
            db.create_cf_with_ttl(name, options, TIME_TO_LIVE)?;
        } else {
            db.create_cf(name, options)?;
        }
        Ok(())
    }

    /// Opens the database, and creates it if it is missing.
    ///
    /// # Errors
    /// Those of the store.
    pub fn create(&self, configuration: &Configuration) -> Result<Db> {
        self.make_root()?;
        let options = self.options(configuration);
        self.open_families(&options, &self.db(), vec![ColumnFamilyDescriptor::new("default", options.clone())])
    }

    /// Opens the existing database with all of its column families, whatever they are; for use after a crash.
    pub fn open(&self, configuration: &Configuration) -> Result<Db> {
        let options = existing(self.options(configuration));
        self.open_families(&options, &self.db(), self.families_on_disk(&options)?)
    }

    /// The existing column families, each with the options of its kind. Column families that no history makes get the
    /// given options.
    pub fn families_on_disk(&self, options: &Options) -> Result<Vec<ColumnFamilyDescriptor>> {
        let names = Db::list_cf(options, self.db())?;
        let describe = |name: String| {
            let own = named_family(&name).map_or_else(|| options.clone(), |(_, kind)| kind.options(options));
            ColumnFamilyDescriptor::new(name, own)
        };
        Ok(names.into_iter().map(describe).collect())
    }

    /// Removes a directory or file and all below it; succeeds if there is none.
    pub fn remove_tree(&self, path: &Path) -> io::Result<()> {
        if !self.fs.exists(path)? {
            return Ok(());
        }
        match self.fs.list_dir(path) {
            Ok(names) => {
                names.iter().try_for_each(|name| self.remove_tree(&path.join(name)))?;
                self.fs.remove_dir(path)
            }
            Err(_) => self.fs.remove(path),
        }
    }
}

/// Options that create nothing: everything must exist.
pub fn existing(mut options: Options) -> Options {
    options.create_if_missing(false);
    options.create_missing_column_families(false);
    options
}

/// The descriptors to open the column families of a state.
pub fn descriptors(state: &State, options: &Options) -> Vec<ColumnFamilyDescriptor> {
    let all = state.iter().map(|(&slot, family)| {
        ColumnFamilyDescriptor::new(family_name(slot, family.kind), family.kind.options(options))
    });
    all.collect()
}
