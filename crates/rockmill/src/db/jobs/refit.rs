//! `change_level` of `compact_range`: after the compaction, the level that it ended in moves to another one, without a
//! copy (RocksDB's `ReFitLevel`).
//!
//! It begins when no compaction runs, and no automatic one begins before it has ended: otherwise the basis on which
//! they choose their inputs, and the base level, would change during their run. Manual compactions and ingestions may
//! begin meanwhile; they keep out of the levels that it passes (`strategy/refit.rs`).

use std::sync::Arc;

use crate::compaction::{Compaction, strategy};
use crate::db::catalog::column_family::CfData;
use crate::db::jobs::compact::begin_compaction;
use crate::db::{DbInner, State};
use crate::error::{Error, Result};
use crate::version::Version;

/// Keeps automatic compactions from beginning while it lives.
struct Paused<'a>(&'a DbInner);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.end_pause();
    }
}

/// Refuses a target that the tree does not have, before anything is compacted.
pub(crate) fn check_target(version: &Version, target: i32) -> Result<()> {
    let levels = version.usable_levels();
    if target >= 0 && target as usize >= levels {
        return Err(Error::invalid_argument(format!(
            "compact_range: target_level {target}, but the column family has levels 0 to {}",
            levels - 1
        )));
    }
    if target < -1 {
        return Err(Error::invalid_argument(format!(
            "compact_range: target_level {target}; -1 stands for the smallest possible"
        )));
    }
    Ok(())
}

impl DbInner {
    /// Moves all of `level` to `target`, or with -1 to the smallest empty level above that it fits. Refused where
    /// levels between are not empty.
    pub fn refit_level(self: &Arc<Self>, cf: &Arc<CfData>, level: usize, target: i32) -> Result<()> {
        let compaction = {
            let mut state = self.state.lock();
            state.jobs_mut().paused += 1;
            let paused = Paused(self);
            self.wait_for_compactions(&mut state);
            let chosen = match state.jobs().running_compactions {
                0 => choose(&state, cf, level, target),
                _ => Err(Error::closing()),
            };
            // Manual compactions that begin now find its files taken.
            let begun = chosen.map(|c| c.and_then(|c| Some((begin_compaction(&mut state, cf, &c)?, c))));
            drop(state);
            match begun? {
                Some(begun) => (begun, paused),
                None => return Ok(()),
            }
        };
        let ((ticket, compaction), _paused) = compaction;
        self.run_compaction(cf, Arc::new(compaction), ticket).map(|_| ())
    }
}

fn choose(state: &State, cf: &CfData, level: usize, target: i32) -> Result<Option<Compaction>> {
    state.errors().check()?;
    let Some(c) = state.family(cf.id) else { return Ok(None) };
    strategy::refit::pick(c.version(), &cf.options.load(), level, usize::try_from(target).ok())
}

#[cfg(test)]
mod tests {
    use rockmill_io::{FileSystem, MemFileSystem, PosixFileSystem};

    use super::*;
    use crate::compaction::commit::Ticket;
    use crate::compaction::strategy::aging::Moment;
    use crate::compaction::strategy::manual::{ManualPick, ManualStep};
    use crate::db::Db;
    use crate::options::Options;

    /// Old values in the last level, the one above it is the base.
    fn filled(fs: Arc<dyn FileSystem>, path: &std::path::Path) -> (Db, Options) {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(fs);
        o.set_disable_auto_compactions(true);
        o.set_level_compaction_dynamic_level_bytes(true);
        o.set_max_bytes_for_level_base(4096);
        let db = Db::open(&o, path).unwrap();
        for i in 0..2000 {
            db.put(format!("{i:05}"), "old".repeat(20)).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        assert_eq!(levels(&db), [0, 0, 0, 0, 0, 0, 1]);
        (db, o)
    }

    fn levels(db: &Db) -> Vec<usize> {
        db.inner.state.lock().family(0).unwrap().version().levels.iter().map(|level| level.len()).collect()
    }

    /// A refit to level 2, begun and not done.
    fn begun(db: &Db) -> (Ticket, Compaction) {
        let mut state = db.inner.state.lock();
        state.jobs_mut().paused += 1;
        assert_eq!(state.jobs().running_compactions, 0);
        let cf = Arc::clone(state.family(0).unwrap().cf());
        let c = choose(&state, &cf, 6, 2).unwrap().unwrap();
        (begin_compaction(&mut state, &cf, &c).unwrap(), c)
    }

    fn finish(db: &Db, (ticket, c): (Ticket, Compaction)) {
        let cf = Arc::clone(db.inner.state.lock().family(0).unwrap().cf());
        db.inner.run_compaction(&cf, Arc::new(c), ticket).unwrap();
        db.inner.state.lock().jobs_mut().paused -= 1;
    }

    #[test]
    fn a_manual_compaction_puts_nothing_below_a_level_that_moves_up() {
        let (db, _) = filled(Arc::new(MemFileSystem::new()), "/db".as_ref());
        let refit = begun(&db);
        for (key, value) in [("00999x", ""), ("01000", "new"), ("01000x", "")] {
            db.put(key, value).unwrap();
        }
        db.flush().unwrap();
        {
            let mut state = db.inner.state.lock();
            let c = state.family_mut(0).unwrap();
            assert_eq!(c.jobs().scores.base_level, 5);
            let (options, moment) = (c.options(), Moment::default());
            let picked = ManualStep::new(0, 5).pick(c.version(), &options, &c.jobs().running, &moment, None, None);
            assert!(matches!(picked, ManualPick::Conflict), "{picked:?}");
        }
        finish(&db, refit);
        assert_eq!(levels(&db), [1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(db.get("01000").unwrap().as_deref(), Some(&b"new"[..]));
        db.compact_range(None::<&[u8]>, None::<&[u8]>).unwrap();
        assert_eq!(db.get("01000").unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn nothing_is_ingested_below_a_level_that_moves_up() {
        let dir = tempfile::tempdir().unwrap();
        let (db, o) = filled(Arc::new(PosixFileSystem::default()), &dir.path().join("db"));
        let file = dir.path().join("x.sst");
        let mut w = crate::SstFileWriter::create(&o);
        w.open(&file).unwrap();
        for (key, value) in [("00999x", ""), ("01000", "new"), ("01000x", "")] {
            w.put(key, value).unwrap();
        }
        w.finish().unwrap();
        let refit = begun(&db);
        db.ingest_external_file(vec![&file]).unwrap();
        assert_eq!(db.get("01000").unwrap().as_deref(), Some(&b"new"[..]));
        finish(&db, refit);
        assert_eq!(db.get("01000").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(levels(&db).iter().sum::<usize>(), 2);
    }
}
