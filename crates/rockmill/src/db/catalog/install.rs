//! Installing versions: the MANIFEST first, then memory.

use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::edit::{FileEntry, VersionEdit};
use rockmill_format::filename;

use crate::db::catalog::column_family::CfData;
use crate::db::{CfState, DbInner, State};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::BackgroundErrorReason;
use crate::statistics::{Histogram, MaybeStatistics};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::version::{ManifestWriter, Version, VersionBuilder};

/// What else to do when a change is durable.
type Install<'a> = Box<dyn FnOnce(&mut State) + 'a>;

/// A change of one column family, to be committed.
pub(crate) struct Change<'a> {
    cf: &'a CfData,
    edit: VersionEdit,
    install: Install<'a>,
}

impl<'a> Change<'a> {
    /// `install` runs under the database's lock when the edit is durable, before readers see the new version. It must
    /// not panic: the new version is in place already.
    pub fn new(cf: &'a CfData, edit: VersionEdit, install: impl FnOnce(&mut State) + 'a) -> Self {
        Self { cf, edit, install: Box::new(install) }
    }
}

/// The MANIFEST while an edit is written to it and applied in memory. If that panics half-way, memory and the MANIFEST
/// differ: then nothing more is appended to it. The next edit begins a new MANIFEST with the state in memory.
struct Writing<'a>(&'a mut Option<ManifestWriter>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(writer) = self.0
        {
            writer.set_failed();
        }
    }
}

impl DbInner {
    /// Writes changes to the MANIFEST, then installs the new versions. Changes of several column families, at most one
    /// of each, are an atomic group there, which a recovery takes as a whole or not at all. A column family that was
    /// dropped is left out; if it was the only one, that is an error.
    pub fn log_and_apply(&self, changes: Vec<Change<'_>>) -> Result<()> {
        self.log_and_apply_locked(&mut self.catalog.manifest.lock(), changes, None)
    }

    /// The same. `named` is set before the first byte is written: from then on the MANIFEST may name the edit's tables,
    /// whatever this ends with, a panic too.
    pub fn log_and_apply_noting(&self, change: Change<'_>, named: &AtomicBool) -> Result<()> {
        self.log_and_apply_noted(&mut self.catalog.manifest.lock(), vec![change], None, named)
    }

    /// The same for whoever holds the MANIFEST's lock already. Reads see sequence numbers up to `last_sequence`, where
    /// it is given, once they can see every new version and not before.
    pub fn log_and_apply_locked(
        &self,
        manifest: &mut Option<ManifestWriter>,
        changes: Vec<Change<'_>>,
        last_sequence: Option<SequenceNumber>,
    ) -> Result<()> {
        self.log_and_apply_noted(manifest, changes, last_sequence, &AtomicBool::new(false))
    }

    fn log_and_apply_noted(
        &self,
        manifest: &mut Option<ManifestWriter>,
        mut changes: Vec<Change<'_>>,
        last_sequence: Option<SequenceNumber>,
        named: &AtomicBool,
    ) -> Result<()> {
        // The lock is held throughout, so versions change one at a time and `bases` stay current.
        let (bases, bound): (Vec<Arc<Version>>, u64) = {
            let state = self.state.lock();
            if let [only] = &*changes
                && state.family(only.cf.id).is_none()
            {
                return Err(only.cf.dropped_error());
            }
            changes.retain(|change| state.family(change.cf.id).is_some());
            let flushed = changes.iter().filter(|change| change.edit.log_number.is_some());
            let flushed: Vec<_> = flushed.map(|change| (change.cf.id, change.edit.log_number)).collect();
            let bound = if flushed.is_empty() { 0 } else { state.log_bound(&flushed) };
            let states = changes.iter().filter_map(|change| state.family(change.cf.id));
            let bases = states.map(|c| Arc::clone(c.version())).collect();
            (bases, if bound > state.logs().bound() { bound } else { 0 })
        };
        if changes.is_empty() {
            return Ok(());
        }
        let (mut edits, mut versions, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (change, base)) in changes.iter_mut().zip(&bases).enumerate() {
            let mut edit = std::mem::take(&mut change.edit);
            edit.column_family = change.cf.id;
            edit.remaining_in_group = (bases.len() > 1).then(|| (bases.len() - 1 - i) as u32);
            let mut builder = VersionBuilder::new(Arc::clone(base), Arc::clone(&change.cf.purge));
            let placed = builder.apply(&edit).and_then(|()| builder.build());
            let version = placed.map_err(|e| e.context(self.path.display()))?;
            if cfg!(debug_assertions) {
                let place = self.path.display();
                version.check().map_err(|e| e.context(format_args!("{place}: a new version is out of order")))?;
            }
            opened.extend(self.files.adopt_new_tables(&version, &edit));
            versions.push(Arc::new(version));
            edits.push(edit);
        }
        if let Some(last) = edits.last_mut() {
            last.min_log_number_to_keep = (bound > 0).then_some(bound);
            last.last_sequence = last_sequence;
        }
        let new: Vec<(u32, &Arc<Version>)> = changes.iter().map(|change| change.cf.id).zip(&versions).collect();
        let manifest = Writing(manifest);
        named.store(manifest.0.is_some(), Ordering::Release);
        self.write_edits(manifest.0, &mut edits, &new)?;

        let mut state = self.state.lock();
        state.logs_mut().raise_bound(bound);
        let ids: Vec<u32> = changes.iter().map(|change| change.cf.id).collect();
        for (change, version) in changes.into_iter().zip(versions) {
            let id = change.cf.id;
            let c = state.family_mut(id).ok_or_else(|| Error::corruption("column family vanished"))?;
            c.install(version);
            (change.install)(&mut state);
            state.family(id).into_iter().for_each(CfState::publish);
        }
        // Scores compare keys, which runs users' code: a panic there must not leave some of the edits unapplied in
        // memory.
        ids.into_iter().for_each(|id| state.rescore(id));
        self.update_threshold(&state);
        if let Some(n) = last_sequence {
            // Still under the lock: a compaction that drops what the new numbers hide begins after this.
            self.writers.in_flight().raise_visible(n);
        }
        self.update_pressure(&state);
        drop(state);
        opened.iter().for_each(|file| self.readers.tables().note_open(file));
        self.wake_all();
        Ok(())
    }

    /// Appends edits with the counters that recovery needs, and begins a new MANIFEST when this one is too large or an
    /// earlier write to it failed.
    pub fn append_to_manifest(&self, manifest: &mut Option<ManifestWriter>, edits: &mut [VersionEdit]) -> Result<()> {
        self.write_edits(manifest, edits, &[])
    }

    /// The same for edits after which column families, by their ids, have `new` versions.
    ///
    /// After a failure nobody knows which edits the next open finds, whoever wrote them. So it is a background error:
    /// no write is acknowledged before a recovery has begun a MANIFEST that says what is in memory. The state lock must
    /// be free.
    ///
    /// RocksDB refuses a MANIFEST that tells of an extra run or of a table's pieces, whatever follows. So the edits
    /// that take the last of these are not appended to it: they go into the next MANIFEST, with what they leave.
    /// Whenever the process dies, RocksDB opens the database if there are none.
    pub fn write_edits(
        &self,
        manifest: &mut Option<ManifestWriter>,
        edits: &mut [VersionEdit],
        new: &[(u32, &Arc<Version>)],
    ) -> Result<()> {
        let Some(writer) = manifest.as_mut() else {
            return Err(Error::new(ErrorKind::ShutdownInProgress, "the MANIFEST is closed"));
        };
        let done = self.write_edits_to(writer, edits, new);
        if let Err(e) = &done {
            writer.set_failed();
            self.set_background_error(BackgroundErrorReason::ManifestWrite, "a write to the MANIFEST", e);
        }
        done
    }

    fn write_edits_to(
        &self,
        writer: &mut ManifestWriter,
        edits: &mut [VersionEdit],
        new: &[(u32, &Arc<Version>)],
    ) -> Result<()> {
        if !new.is_empty() && writer.is_refused_by_rocksdb() && !is_refused_by_rocksdb(&self.state.lock(), new) {
            return self.roll_manifest(writer, edits, new);
        }
        if writer.has_failed() || writer.size() > self.opts.max_manifest_file_size {
            self.roll_manifest(writer, &mut [], &[])?;
        }
        self.set_counters(edits);
        let (statistics, clock) = (&self.opts.statistics, &*self.opts.clock);
        let began = statistics.start(clock);
        let done = writer.append(edits);
        statistics.stop(Histogram::ManifestFileSyncMicros, clock, began);
        done
    }

    /// Gives the last edit the counters that recovery needs.
    fn set_counters(&self, edits: &mut [VersionEdit]) {
        if let Some(last) = edits.last_mut() {
            last.next_file_number = Some(self.files.numbers().next());
            // Sequence numbers that a table of this edit may hold are not above this.
            last.last_sequence = Some(last.last_sequence.unwrap_or(0).max(self.last_sequence()));
        }
    }

    /// Writes the state after `edits`, in which column families have `new` versions, into a new MANIFEST and points
    /// CURRENT at it. Without edits: the present state.
    fn roll_manifest(
        &self,
        writer: &mut ManifestWriter,
        edits: &mut [VersionEdit],
        new: &[(u32, &Arc<Version>)],
    ) -> Result<()> {
        let old = writer.number();
        let number = self.new_file_number();
        self.set_counters(edits);
        let mut snapshot = self.snapshot_edits_of(&self.state.lock(), new);
        // Their tables are in it, and CURRENT makes all of it live at once.
        snapshot.extend(edits.iter().map(|edit| VersionEdit {
            new_files: Vec::new(),
            deleted_files: Vec::new(),
            remaining_in_group: None,
            ..edit.clone()
        }));
        // After a failure it is unknown which of the two CURRENT names: the old one must not be continued.
        writer.set_failed();
        self.opened.note().manifest_begins(&*self.opts.fs, &self.path, number)?;
        *writer = ManifestWriter::create(&self.opts.fs, &self.path, number, &snapshot)?;
        self.opened.note().manifest_begun(number);
        if self.files.may_delete() {
            let _ = self.opts.fs.remove(&self.path.join(filename::manifest(old)));
        } // an orphan is removed at the next open
        Ok(())
    }

    /// The edits that describe the present state from nothing.
    pub fn snapshot_edits(&self, state: &State) -> Vec<VersionEdit> {
        self.snapshot_edits_of(state, &[])
    }

    /// The same where column families, by their ids, have `new` versions.
    fn snapshot_edits_of(&self, state: &State, new: &[(u32, &Arc<Version>)]) -> Vec<VersionEdit> {
        let mut edits = vec![VersionEdit { db_id: Some(self.opened.db_id().to_owned()), ..VersionEdit::default() }];
        for c in state.families() {
            let id = c.cf().id;
            edits.push(VersionEdit {
                column_family: id,
                column_family_add: (id != 0).then(|| c.cf().name.clone()),
                comparator: Some(c.cf().cmp.user_comparator().name().to_owned()),
                ..VersionEdit::default()
            });
            let log_number = Some(c.front().log_number());
            let mut files = VersionEdit { column_family: id, log_number, ..VersionEdit::default() };
            for (level, list) in version_of(c, new).levels.iter().enumerate() {
                files.new_files.extend(list.iter().map(|f| (level as u32, f.entry.clone())));
            }
            files.compact_cursors =
                c.jobs().running().round_robin().map(|(level, key)| (level as u32, key.clone())).collect();
            edits.push(files);
        }
        edits.push(VersionEdit {
            prev_log_number: Some(0),
            min_log_number_to_keep: Some(state.logs().bound()),
            next_file_number: Some(self.files.numbers().next()),
            last_sequence: Some(self.last_sequence()),
            max_column_family: Some(state.max_column_family()),
            ..VersionEdit::default()
        });
        edits
    }

    /// Notes how new the oldest snapshot must be for another table of the deepest level to become due.
    pub fn update_threshold(&self, state: &State) {
        let threshold = state.families().map(|c| c.jobs().threshold()).min();
        self.readers.snapshots().set_threshold(threshold.unwrap_or(SequenceNumber::MAX));
    }
}

/// The version that a column family has with `new` ones.
fn version_of<'a>(c: &'a CfState, new: &[(u32, &'a Arc<Version>)]) -> &'a Version {
    new.iter().find(|(id, _)| *id == c.cf().id).map_or(c.version(), |(_, version)| version)
}

/// True when RocksDB refuses what there is with `new` versions.
fn is_refused_by_rocksdb(state: &State, new: &[(u32, &Arc<Version>)]) -> bool {
    state.families().any(|c| version_of(c, new).is_refused_by_rocksdb())
}

/// An edit that adds tables to a level.
pub(crate) fn add_files(level: usize, files: impl IntoIterator<Item = FileEntry>) -> VersionEdit {
    VersionEdit { new_files: files.into_iter().map(|f| (level as u32, f)).collect(), ..VersionEdit::default() }
}
