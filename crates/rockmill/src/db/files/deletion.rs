//! Obsolete files: when they are deleted, and what delays that.

use std::path::PathBuf;

use rockmill_format::filename;

use crate::db::files::Files;
use crate::db::{Db, DbInner};
use crate::error::{Error, Result};
use crate::front::Retired;
use crate::info_log::{log_info, log_warn};
use crate::sync::atomic::Ordering;

impl Files {
    /// False while no file may be deleted.
    pub fn may_delete(&self) -> bool {
        self.deletions_off.load(Ordering::Acquire) == 0
    }

    fn hold_deletions(&self) {
        self.deletions_off.fetch_add(1, Ordering::AcqRel);
    }
}

/// Keeps files from being deleted while it lives.
pub(crate) struct DeletionsOff<'a>(&'a DbInner);

impl<'a> DeletionsOff<'a> {
    pub fn new(db: &'a DbInner) -> Self {
        db.hold_deletions();
        Self(db)
    }
}

impl Drop for DeletionsOff<'_> {
    fn drop(&mut self) {
        self.0.allow_deletions();
    }
}

impl Db {
    /// Keeps files of the database from being deleted until [`Self::enable_file_deletions`] was called as many times,
    /// so that they can be copied. The database grows meanwhile.
    pub fn disable_file_deletions(&self) -> Result<()> {
        self.inner.check_writable()?;
        self.inner.hold_deletions();
        Ok(())
    }

    /// Undoes one [`Self::disable_file_deletions`]; the last one deletes what was kept. An error if there was none.
    pub fn enable_file_deletions(&self) -> Result<()> {
        self.inner.check_writable()?;
        if !self.inner.allow_deletions() {
            return Err(Error::invalid_argument("enable_file_deletions: file deletions are not disabled"));
        }
        Ok(())
    }
}

impl DbInner {
    /// Keeps files from being deleted. Once this has returned, no archived WAL is deleted either.
    fn hold_deletions(&self) {
        self.files.hold_deletions();
        self.front.await_archive();
    }

    /// Undoes one disabling of deletions; false if there was none.
    fn allow_deletions(&self) -> bool {
        let less = |n: usize| n.checked_sub(1);
        match self.files.deletions_off.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
            Ok(1) => {
                self.delete_obsolete_wals();
                self.delete_purged_files_and_wait();
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// Deletes WALs whose data is all in tables, or archives them; true if there were any. Holds no lock that a writer
    /// needs meanwhile.
    pub fn delete_obsolete_wals(&self) -> bool {
        let gone = {
            let mut state = self.state.lock();
            // Under the lock: whoever sees a WAL in `state` after forbidding deletions keeps it.
            if !self.files.may_delete() {
                return false;
            }
            let oldest = state.oldest_log();
            self.front.device().begin_deletion();
            state.logs_mut().take_obsolete(oldest)
        };
        let Retired { failed, freed } = self.front.retire_logs(&gone, || self.files.may_delete());
        self.front.device().end_deletion();
        self.tell_stuck_logs(&failed);
        self.logs_were_freed(&freed);
        !gone.is_empty()
    }

    /// Says which obsolete WALs could not be deleted or archived.
    pub fn tell_stuck_logs(&self, failed: &[Error]) {
        for e in failed {
            log_warn!(self.log, "{e}; it keeps its space, and is tried again every second");
        }
        if !failed.is_empty() {
            // The next leader looks how much room there is. Under the lock: one that looks now may not know of these.
            let _state = self.state.lock();
            self.front.set_log_room(0);
        }
    }

    /// Tries again to delete or archive obsolete WALs for which that failed. Called by the timer.
    pub fn retry_stuck_logs(&self) {
        if self.front.has_stuck_logs() {
            self.logs_were_freed(&self.front.retry_stuck(|| self.files.may_delete()));
        }
    }

    fn logs_were_freed(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        log_info!(self.log, "obsolete WALs for which that had failed were deleted or archived: {numbers:?}");
        self.wake_all(); // writers may have waited for their space
    }

    /// If values stay in WALs: deletes archived WALs for which there is no room. Called by the timer.
    pub fn trim_archived_wals(&self) {
        if !self.front.bounds_archive() {
            return;
        }
        let live = self.state.lock().logs().left_bytes() + self.front.log_size();
        let (trimmed, failed) = self.front.trim_archive(live, || self.files.may_delete());
        if let Some(number) = trimmed {
            log_info!(
                self.log,
                "archived WALs up to {number:06}.log were deleted: fast_capacity has no room for more, or the device no \
                 space"
            );
        }
        if let Some(e) = failed {
            log_warn!(self.log, "{e}; it is tried again every second");
        }
    }

    /// Deletes tables that no version and no reader refers to any more. An orphan left by a failure here is removed
    /// at the next open.
    pub fn delete_purged_files(&self) {
        if !self.files.may_delete() {
            return; // they stay queued
        }
        let mut taken = self.files.purge.take();
        if taken.files.is_empty() {
            return;
        }
        let remove = |(number, dir): &(u64, PathBuf)| {
            let path = dir.join(filename::table(*number));
            let mut done = self.opts.fs.remove(&path);
            if done.is_err() && self.opts.fs.remove(&path.with_extension("ldb")).is_ok() {
                done = Ok(());
            }
            (*number, path, done)
        };
        let removed: Vec<_> = taken.files.iter().map(remove).collect();
        taken.deleted();
        for (number, path, done) in &removed {
            self.table_deleted(*number, path, done);
        }
    }

    /// The same for users' calls: when it returns, the files are deleted, even if another thread had started to delete
    /// them. Listeners were notified as well, unless the caller is a listener.
    pub fn delete_purged_files_and_wait(&self) {
        self.delete_purged_files();
        self.files.purge.wait_deleted();
    }
}
