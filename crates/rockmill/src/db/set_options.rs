//! Options that change while the database is open.
//!
//! 1. The changes are made to a copy of the column family's options and checked as a whole: all or none take effect.
//! 2. The copy replaces the options. Jobs that run keep those they began with.
//! 3. Scores and pressure are computed anew, and whoever waits for work or for room looks again.

use std::sync::Arc;

use super::open::check_cf_options;
use super::{AsColumnFamilyRef, Db};
use crate::compaction::strategy::score::level_scores;
use crate::error::Result;
use crate::options::CfOptions;
use crate::options::known::Notes;
use crate::options::text::{Allow, Escapes, refuse, set_cf};

impl Db {
    /// Changes options of the default column family by RocksDB's names, as RocksDB's text: `[("write_buffer_size",
    /// "64M")]`. An option that is not known, or that cannot change in an open database, or a value that does not fit
    /// is `InvalidArgument`, and then none of the options changes. The changes end with the database: the next open
    /// takes the options it is given.
    pub fn set_options(&self, options: &[(&str, &str)]) -> Result<()> {
        self.set_options_cf(&self.inner.default_cf, options)
    }

    /// Changes options of a column family; see [`Self::set_options`].
    pub fn set_options_cf(&self, cf: &impl AsColumnFamilyRef, options: &[(&str, &str)]) -> Result<()> {
        let (db, cf) = (&*self.inner, cf.as_cf());
        db.check_writable()?;
        // Held throughout: of two changes at once, neither is lost.
        let mut state = db.state.lock();
        let Some(c) = state.cfs.get_mut(&cf.id()) else {
            return Err(super::write::dropped(&cf.data));
        };
        let mut changed = CfOptions::clone(&c.cf.options.load());
        let mut notes = Notes::default();
        set_cf(&mut changed, &owned(options), Allow::Mutable, Escapes::No, &mut notes)?;
        refuse(&notes)?;
        check_cf_options(cf.name(), &changed)?;
        c.scores = level_scores(&c.version, &changed);
        c.cf.options.store(Arc::new(changed));
        db.update_pressure(&state);
        drop(state);
        db.work.notify_all();
        db.progress.notify_all();
        Ok(())
    }
}

fn owned(options: &[(&str, &str)]) -> Vec<(String, String)> {
    options.iter().map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}
