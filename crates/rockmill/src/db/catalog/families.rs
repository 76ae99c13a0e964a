//! Creating and dropping column families of an open database.

use std::sync::Arc;

use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use crate::db::catalog::column_family::ColumnFamily;
use crate::db::catalog::table_paths::{self, purge_of};
use crate::db::catalog::{Catalog, CfMap};
use crate::db::{CfState, Db, FamilyContext, State};
use crate::error::{Error, Result};
use crate::info_log::log_info;
use crate::options::check::{Adjusted, take_cf_options};
use crate::options::{DEFAULT_COLUMN_FAMILY_NAME, Options};
use crate::version::{Version, VersionBuilder};

impl Db {
    /// Creates a column family. After an I/O error that names an OPTIONS file, the family exists and only that file is
    /// missing. An error that names the MANIFEST is a background error: after the database has resumed, the family does
    /// not exist. If the database is opened again without resuming, it may exist; [`Self::list_cf`] says whether it
    /// does.
    pub fn create_cf(&self, name: impl AsRef<str>, options: &Options) -> Result<ColumnFamily> {
        if self.inner.opened.with_ttl() {
            return self.create_cf_with_ttl(name, options, std::time::Duration::ZERO);
        }
        self.create_wrapped_cf(name.as_ref(), options)
    }

    /// Creates a column family. In a database with a time to live, its options must be ones that handle the times.
    pub(crate) fn create_wrapped_cf(&self, name: &str, options: &Options) -> Result<ColumnFamily> {
        self.create_cf_of_files(name, options, Vec::new(), 0)
    }

    /// Creates a column family with these tables, which are durable in the directory; the last sequence number becomes
    /// at least `last_sequence`.
    pub(crate) fn create_cf_of_files(
        &self,
        name: &str,
        options: &Options,
        files: Vec<(u32, FileEntry)>,
        last_sequence: SequenceNumber,
    ) -> Result<ColumnFamily> {
        let db = &*self.inner;
        db.check_writable()?;
        let mut options = options.cf.clone();
        check_new_name(name)?;
        let mut adjusted = Adjusted::default();
        take_cf_options(name, &mut options, &db.opts, &mut adjusted)?;
        adjusted.log(&db.log);
        let dirs = table_paths::other_dirs([&options], &db.opts, &db.path);
        table_paths::prepare(&*db.opts.fs, &dirs, &db.path)?;
        let turn = db.catalog.options_turn();
        let alone = db.lead_alone();
        db.check_takes_writes()?;
        if !files.is_empty() {
            // As with an ingestion: when the tables are there, so is everything written before them.
            db.flush_wal_as_leader(true, true)?;
        }
        let mut manifest = db.catalog.lock_manifest();
        let id = {
            let mut state = db.state.lock();
            if state.families().any(|c| c.cf().name == name) {
                return Err(Error::invalid_argument(format!("column family {name:?} already exists")));
            }
            state.next_family_id()
        };
        let wal = db.front.log_number();
        let cmp = InternalKeyComparator::new(Arc::clone(&options.comparator));
        let mut edits = vec![VersionEdit {
            column_family: id,
            column_family_add: Some(name.to_owned()),
            comparator: Some(cmp.user_comparator().name().to_owned()),
            log_number: Some(wal),
            max_column_family: Some(id),
            ..VersionEdit::default()
        }];
        let mut version = Version::empty(options.num_levels.max(1) as usize, cmp.clone());
        // Entries with number 0 must be older than any snapshot that sees them.
        let last_sequence = if files.is_empty() { 0 } else { last_sequence.max(1) };
        if !files.is_empty() {
            let edit = VersionEdit {
                column_family: id,
                new_files: files,
                last_sequence: Some(last_sequence),
                ..VersionEdit::default()
            };
            let purge = purge_of(db.files.purge(), Some(&options), &db.opts, &db.path);
            let mut builder = VersionBuilder::new(Arc::new(version), purge);
            builder.apply(&edit)?;
            version = builder.build()?;
            edits.push(edit);
            // After a crash the family exists with all its tables or not at all.
            (edits[0].remaining_in_group, edits[1].remaining_in_group) = (Some(1), Some(0));
        }
        if let Err(e) = db.append_to_manifest(&mut manifest, &mut edits) {
            drop((manifest, alone, turn));
            db.tell_waiting();
            return Err(e);
        }
        let c =
            CfState::new(id, name.to_owned(), options, cmp, version, wal, db.opened.number(), FamilyContext::of(db));
        let handle = ColumnFamily { data: Arc::clone(c.cf()) };
        let mut state = db.state.lock();
        state.insert_family(c);
        db.catalog.publish(&state);
        db.writers.in_flight().raise_visible(last_sequence);
        db.update_pressure(&state);
        drop(state);
        db.work_available.notify_all();
        drop(manifest);
        drop(alone);
        db.write_options_file(&turn)?;
        Ok(handle)
    }

    /// Drops a column family by name; errors about an OPTIONS file or the MANIFEST as in [`Self::create_cf`]. Its data
    /// is deleted when the last handle, snapshot or iterator on it is dropped.
    pub fn drop_cf(&self, name: &str) -> Result<()> {
        let db = &*self.inner;
        db.check_writable()?;
        if name == DEFAULT_COLUMN_FAMILY_NAME {
            return Err(Error::invalid_argument("the default column family cannot be dropped"));
        }
        let turn = db.catalog.options_turn();
        let alone = db.lead_alone();
        db.check_takes_writes()?;
        let mut manifest = db.catalog.lock_manifest();
        let cf = self
            .cf_handle(name)
            .ok_or_else(|| Error::invalid_argument(format!("column family {name:?} does not exist")))?;
        let bound = db.state.lock().log_bound(&[(cf.id(), None)]);
        let edit = VersionEdit {
            column_family: cf.id(),
            column_family_drop: true,
            min_log_number_to_keep: Some(bound),
            ..VersionEdit::default()
        };
        // The database's last extra run may have been in it.
        let levels = cf.data.options.load().num_levels.max(1) as usize;
        let empty = Arc::new(Version::empty(levels, cf.data.cmp.clone()));
        if let Err(e) = db.write_edits(&mut manifest, &mut [edit], &[(cf.id(), &empty)]) {
            drop((manifest, alone, turn));
            db.tell_waiting();
            return Err(e);
        }
        let mut state = db.state.lock();
        state.logs_mut().raise_bound(bound);
        state.drop_family(cf.id());
        db.catalog.publish(&state);
        db.update_pressure(&state);
        drop((state, manifest, alone));
        db.job_finished.notify_all();
        db.delete_obsolete_wals();
        log_info!(db.log, "Dropped column family with id {}", cf.id());
        let name = name.to_owned();
        db.notify_later(move |l| l.on_column_family_handle_deletion_started(&name));
        let done = db.write_options_file(&turn);
        drop(turn);
        db.tell_waiting();
        done
    }
}

impl Catalog {
    /// Makes the column families of `state` the ones that readers and writers find.
    pub fn publish(&self, state: &State) {
        let mut map = CfMap::default();
        for c in state.families() {
            let handle = ColumnFamily { data: Arc::clone(c.cf()) };
            map.by_name.insert(c.cf().name.clone(), handle.clone());
            map.by_id.insert(c.cf().id, handle);
        }
        self.families.store(Arc::new(map));
    }
}

/// Refuses names that no new column family may have. RocksDB's MANIFESTs do not keep the empty name.
pub(crate) fn check_new_name(name: &str) -> Result<()> {
    match name {
        "" => Err(Error::invalid_argument("the name of a column family must not be empty")),
        _ => Ok(()),
    }
}
