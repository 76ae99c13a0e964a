//! Whole tables deleted by key range, without a compaction (RocksDB's `DeleteFilesInRanges`).

use std::sync::Arc;

use rockmill_format::edit::VersionEdit;
use rockmill_format::key::InternalKey;

use crate::compaction::strategy::files_within;
use crate::db::catalog::install::Change;
use crate::db::{AsColumnFamilyRef, Db};
use crate::error::{Error, Result};
use crate::panics::guarded;
use crate::range_del::refuse_hashed_range;
use crate::sync::atomic::Ordering;
use crate::version::{FileMeta, SortedRun};

/// A range of user keys; `None` is unbounded.
pub type KeyRange<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

impl Db {
    /// Deletes the tables of the default column family that hold nothing outside of `[from, to]`; see
    /// [`Self::delete_files_in_ranges_cf`].
    pub fn delete_file_in_range<K: AsRef<[u8]>>(&self, from: K, to: K) -> Result<()> {
        self.delete_file_in_range_cf(&self.default_cf(), from, to)
    }

    /// Deletes the tables of a column family that hold nothing outside of `[from, to]`; see
    /// [`Self::delete_files_in_ranges_cf`].
    pub fn delete_file_in_range_cf<K: AsRef<[u8]>>(&self, cf: &impl AsColumnFamilyRef, from: K, to: K) -> Result<()> {
        self.delete_files_in_ranges_cf(cf, &[(Some(from.as_ref()), Some(to.as_ref()))], true)
    }

    /// Deletes the tables that hold nothing outside of one of `ranges` (with their ends if `include_end`), at once and
    /// for every reader, snapshots included. This frees space quickly but does not delete the keys: those in other
    /// tables, in L0, in memtables and in tables being compacted stay, and older versions of keys in deeper levels may
    /// appear again. To delete the keys, call `delete_range_cf` afterwards.
    pub fn delete_files_in_ranges_cf(
        &self,
        cf: &impl AsColumnFamilyRef,
        ranges: &[KeyRange<'_>],
        include_end: bool,
    ) -> Result<()> {
        let db = &self.inner;
        db.check_writable()?;
        let cf = &cf.as_cf().data;
        db.check_family(cf)?;
        if ranges.iter().any(|(from, to)| from.is_some() || to.is_some()) {
            refuse_hashed_range(&cf.cmp, "delete_files_in_ranges")?;
        }
        for (from, to) in ranges {
            if let (Some(from), Some(to)) = (from, to)
                && cf.cmp.compare_user(from, to).is_gt()
            {
                return Err(Error::invalid_argument("delete_files_in_ranges: the end comes before the start"));
            }
        }
        let (mut edit, mut taken): (VersionEdit, Vec<Arc<FileMeta>>) = Default::default();
        {
            let mut state = db.state.lock();
            state.errors().check_writes()?;
            let Some(c) = state.family(cf.id) else { return Err(cf.dropped_error()) };
            for &(from, to) in ranges {
                let (begin, end) = (from.map(InternalKey::min_possible), to.map(InternalKey::max_possible));
                for SortedRun { level, run, .. } in c.version().sorted_runs().filter(|place| place.level > 0) {
                    for file in files_within(c.version(), level, run, begin.as_ref(), end.as_ref()) {
                        let at_end = to.is_some_and(|to| cf.cmp.compare_user(file.largest_user_key(), to).is_eq());
                        // Taken ones are marked below, and not taken twice.
                        if (at_end && !include_end) || file.being_compacted.swap(true, Ordering::AcqRel) {
                            continue;
                        }
                        edit.deleted_files.push((level as u32, file.number()));
                        taken.push(file);
                    }
                }
            }
            if taken.is_empty() {
                return Ok(());
            }
            state.jobs_mut().begin_table_change();
            if let Some(c) = state.family_mut(cf.id) {
                c.jobs_mut().files_taken();
            }
        }
        // A panic must not leave the tables taken.
        let done = guarded("a deletion of files", || db.log_and_apply(vec![Change::new(cf, edit, |_| {})]));
        {
            let mut state = db.state.lock();
            taken.iter().for_each(|file| file.being_compacted.store(false, Ordering::Release));
            if let Some(c) = state.family_mut(cf.id) {
                c.jobs_mut().files_taken();
            }
            state.jobs_mut().end_table_change();
        }
        drop(taken);
        db.wake_all();
        db.delete_purged_files_and_wait();
        db.tell_waiting();
        done
    }
}
