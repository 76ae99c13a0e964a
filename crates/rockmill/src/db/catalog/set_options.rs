//! Options that change while the database is open.
//!
//! 1. The changes are made to a copy of the options and checked as a whole: all or none take effect.
//! 2. The copy replaces the options. Jobs that run keep those they began with.
//! 3. Scores and pressure are computed again, and threads that wait for work or for room check again.
//! 4. A new OPTIONS file is written.

use std::sync::Arc;

use crate::db::{AsColumnFamilyRef, Db};
use crate::error::{Error, Result};
use crate::options::check::{
    Adjusted, adjust_changed_db_options, check_db_options, check_style_of_open, take_changed_cf_options,
};
use crate::options::engine;
use crate::options::known::Notes;
use crate::options::text::{Allow, Source, refuse, set_cf, set_db};
use crate::options::{CfOptions, CompactionStyle, DbOptions, Options};
use crate::sync::atomic::Ordering;

impl Db {
    /// Changes options of the default column family by RocksDB's names, as RocksDB's text: `[("write_buffer_size",
    /// "64M")]`; those of its tables as `("block_based_table_factory", "{block_size=16K}")`, with TPH tables as
    /// `("tph_table_factory", "{piece_limit=8;block_size=16K}")`, and with both as `("table_factory.block_size", "16K")`.
    /// Tables written from then on have them. `merge_engine`, which is the database's, may be among them.
    ///
    /// An unknown option, an option that cannot change in an open database, or an invalid value is `InvalidArgument`;
    /// then none of the options changes. The changes are in the database's OPTIONS file when this returns; if that file
    /// cannot be written, the error says so, and the changes hold until the database is closed. The next open takes the
    /// options that it is given, which are those of the file only if they are loaded from it
    /// ([`OptionsLoader`](crate::OptionsLoader)).
    pub fn set_options(&self, options: &[(&str, &str)]) -> Result<()> {
        self.set_options_cf(self.inner.catalog.default_cf(), options)
    }

    /// Changes options of a column family; see [`Self::set_options`].
    pub fn set_options_cf(&self, cf: &impl AsColumnFamilyRef, options: &[(&str, &str)]) -> Result<()> {
        let (db, cf) = (&*self.inner, cf.as_cf());
        db.check_writable()?;
        db.check_family(&cf.data)?;
        let mut options = owned(options)?;
        // Held throughout, so that of two concurrent changes neither is lost.
        let turn = db.catalog.options_turn();
        // The engine belongs to the whole database, but to try one out it may be given here as well.
        let mut of_db = DbOptions::clone(&db.live());
        let of_engine: Vec<_> = options.extract_if(.., |(name, _)| engine::OPTIONS.contains(&name.as_str())).collect();
        set_db(&mut of_db, &of_engine, Allow::Mutable, Source::Caller, &mut Notes::default())?;
        let prepared = db.engines.prepare(&mut of_db, &of_engine, &db.log)?;
        let mut state = db.state.lock();
        let Some(c) = state.family_mut(cf.id()) else {
            return Err(cf.data.dropped_error());
        };
        let mut changed = CfOptions::clone(&c.options());
        let mut notes = Notes::default();
        set_cf(&mut changed, &options, Allow::Mutable, Source::Caller, &mut notes)?;
        refuse(&notes)?;
        let mut adjusted = Adjusted::default();
        take_changed_cf_options(cf.name(), &mut changed, &db.opts, &mut adjusted)?;
        check_style_of_open(&changed, &db.opts)?;
        if changed.compaction_style == CompactionStyle::Fifo && c.options().compaction_style != CompactionStyle::Fifo {
            return Err(Error::invalid_argument(
                "compaction_style cannot change to kCompactionStyleFIFO while the database is open: it would begin to \
                 delete the oldest tables; give it when opening",
            ));
        }
        adjusted.log(&db.log);
        c.set_options(changed);
        db.catalog.options.store(Arc::new(of_db));
        db.engines.take(prepared);
        state.rescore(cf.id());
        db.update_threshold(&state);
        db.update_pressure(&state);
        drop(state);
        db.wake_all();
        db.write_options_file(&turn)
    }

    /// Changes options of the database (RocksDB's `SetDBOptions`): `[("max_background_jobs", "8")]`. Errors, and what
    /// is stored, as with [`Self::set_options`].
    ///
    /// Background threads that are added start at once; those that are too many end after their present work.
    /// `bytes_per_sync`, `compaction_readahead_size` and the like apply to jobs that begin afterwards, and
    /// `wal_bytes_per_sync` to a new WAL, which this call begins.
    pub fn set_db_options(&self, options: &[(&str, &str)]) -> Result<()> {
        let db = &*self.inner;
        db.check_writable()?;
        let options = owned(options)?;
        let turn = db.catalog.options_turn();
        let before = db.catalog.options.load_full();
        let mut changed = DbOptions::clone(&before);
        let mut notes = Notes::default();
        set_db(&mut changed, &options, Allow::Mutable, Source::Caller, &mut notes)?;
        refuse(&notes)?;
        check_db_options(&changed)?;
        let mut adjusted = Adjusted::default();
        adjust_changed_db_options(&mut changed, &mut adjusted);
        let prepared = db.engines.prepare(&mut changed, &options, &db.log)?;
        adjusted.log(&db.log);
        db.catalog.options.store(Arc::new(changed));
        let now = db.catalog.options.load_full();
        db.engines.take(prepared);
        {
            let state = db.state.lock();
            db.update_pressure(&state);
            if now.max_open_files != before.max_open_files {
                let tables = state.families().flat_map(|c| c.version().levels.iter().flatten());
                db.readers.tables().set_max_open_files(now.max_open_files, tables);
            }
        }
        // The next write checks which memtables keep old WALs alive.
        db.writers.leave_leader_work();
        db.wake_all();
        if !db.shutdown.load(Ordering::Acquire) {
            self.start_missing_threads()?;
        }
        if now.wal_bytes_per_sync != before.wal_bytes_per_sync {
            let _alone = db.lead_alone();
            db.begin_wal()?;
        }
        db.write_options_file(&turn)
    }

    /// The options of the database and of the default column family as they are now (RocksDB's `GetOptions`).
    pub fn get_options(&self) -> Options {
        self.get_options_cf(self.inner.catalog.default_cf())
    }

    /// The options of the database and of a column family as they are now.
    pub fn get_options_cf(&self, cf: &impl AsColumnFamilyRef) -> Options {
        let cf = CfOptions::clone(&cf.as_cf().data.options.load());
        Options { db: self.get_db_options(), cf }
    }

    /// The options of the database as they are now (RocksDB's `GetDBOptions`).
    pub fn get_db_options(&self) -> DbOptions {
        DbOptions::clone(&self.inner.live())
    }
}

fn owned(options: &[(&str, &str)]) -> Result<Vec<(String, String)>> {
    if options.is_empty() {
        return Err(Error::invalid_argument("no option is given"));
    }
    Ok(options.iter().map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect())
}
