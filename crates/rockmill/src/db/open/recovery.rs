//! The store's part of recovery: recovered data goes into column families, and full memtables become tables. `front/`
//! reads the logs.

use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::batch::BatchRep;

use crate::compaction::job;
use crate::compaction_filter::TableFileCreationReason;
use crate::db::catalog::install::add_files;
use crate::db::{CfState, DbInner};
use crate::error::{Error, Result};
use crate::front::{CHECK_EVERY, KeptLogs, LoggedBatch, RecoveryHost, RecoveryPlan, entry_of};
use crate::info_log::log_warn;
use crate::version::VersionBuilder;

impl DbInner {
    /// Replays every WAL that may hold data that is in no table. With `flush_full`, memtables that fill up are written
    /// as tables (not yet in a MANIFEST: the caller writes a new one with the whole state).
    ///
    /// With `avoid_flush_during_recovery`, returns the WALs whose data is to stay in memtables, if it can stay there.
    ///
    /// `expected`: see [`RecoveryPlan::expected`].
    pub(crate) fn recover_wals(
        self: &Arc<Self>,
        logs: &[u64],
        flush_full: bool,
        expected: Option<Vec<u64>>,
    ) -> Result<Option<KeptLogs>> {
        let (bound, by_families) = {
            let state = self.state.lock();
            (state.logs().bound(), state.least_log_number().unwrap_or(0))
        };
        let plan = RecoveryPlan {
            mode: self.opts.wal_recovery_mode,
            bound,
            oldest: by_families.max(bound),
            next: self.last_sequence() + 1,
            flush_full,
            keep_logs: self.opts.avoid_flush_during_recovery || self.front.memory().index().is_some(),
            expected,
        };
        let recovered = self.front.recover(self, logs, &plan)?;
        if let Some(last) = recovered.last_sequence {
            self.writers.in_flight().raise_visible(last);
        }
        if let Some(e) = recovered.not_kept {
            log_warn!(self.log, "no WAL is kept, and what they hold is written as tables: {e}");
        }
        Ok(recovered.kept)
    }

    /// Writes a column family's recovered memtable as a table of L0, in memory only.
    pub(crate) fn flush_recovered(self: &Arc<Self>, id: u32) -> Result<()> {
        let (cf, runs, base, epoch) = {
            let mut state = self.state.lock();
            let Some(c) = state.family_mut(id) else { return Ok(()) };
            let options = c.options();
            let Some(runs) = c.front_mut().take_recovered(&options, self.front.memory()) else { return Ok(()) };
            (Arc::clone(c.cf()), runs, Arc::clone(c.version()), c.next_epoch())
        };
        let (reason, family) = (TableFileCreationReason::Recovery, self.job_family(&cf));
        let mut host = self.job_host(&cf, &family, 0, reason);
        if let Some(mut entry) = job::build_l0(&runs, &family, &mut host, reason)?.into_table() {
            entry.epoch_number = epoch;
            let mut builder = VersionBuilder::new(base, Arc::clone(&cf.purge));
            builder.apply(&add_files(0, [entry]))?;
            let version = Arc::new(builder.build()?);
            let mut state = self.state.lock();
            if let Some(c) = state.family_mut(id) {
                c.install(version);
            }
        }
        Ok(())
    }
}

impl RecoveryHost for Arc<DbInner> {
    fn pass_number(&self, number: u64) {
        self.files.numbers().pass(number);
    }

    fn replay(&self, log: u64, batch: &BatchRep, at: Option<&LoggedBatch>) -> rockmill_format::Result<SequenceNumber> {
        let mut seq = batch.sequence();
        let mut state = self.state.lock();
        for record in batch.iter() {
            let Some((cf, t, key, value)) = entry_of(&record?) else { continue };
            if let Some(c) = state.family_mut(cf) {
                let at = at.and_then(|at| at.value(batch, value));
                c.front_mut().replay(log, seq, t, key, value, at);
            }
            seq += 1;
        }
        Ok(seq)
    }

    fn seal_full(&self, log: u64) {
        let mut state = self.state.lock();
        for c in state.families_mut() {
            let options = c.options();
            c.front_mut().seal_recovered(log, &options, self.front.memory());
        }
    }

    fn flush_full(&self) -> Result<bool> {
        let full: Vec<u32> = {
            let state = self.state.lock();
            let pressed = self.front.memory().should_flush();
            let full = |c: &CfState| {
                let size = c.front().memory_usage() as usize;
                size >= CHECK_EVERY && (pressed || c.front().is_recovered_full())
            };
            state.families().filter(|c| full(c)).map(|c| c.cf().id).collect()
        };
        full.iter().try_for_each(|&id| self.flush_recovered(id))?;
        Ok(!full.is_empty())
    }

    /// Otherwise the database would not be at one point in time (RocksDB's check).
    fn check_tables_not_ahead(&self, hole: u64, next: SequenceNumber) -> Result<()> {
        let state = self.state.lock();
        for c in state.families() {
            let ahead = c.version().levels.iter().flatten().any(|f| f.entry.largest_seqno >= next);
            if c.front().log_number() > hole && ahead {
                return Err(Error::corruption(format!(
                    "{}: the WAL {:06}.log is damaged or missing, and tables of column family {:?} are newer than it; the \
                     database cannot be brought to one point in time (another recovery mode may open it with a loss)",
                    self.path.display(),
                    hole,
                    c.cf().name
                )));
            }
        }
        Ok(())
    }

    fn oldest_log(&self) -> Option<u64> {
        self.state.lock().oldest_log()
    }
}
