//! Ingestion: tables that `SstFileWriter` wrote become part of the database without being rewritten (RocksDB's
//! `IngestExternalFile`).
//!
//! 1. The files are examined, and linked or copied into the directory under new numbers; all of that is durable before
//!    step 4. A crash leaves orphans that the next open removes.
//! 2. All writers wait. Memtables that overlap a file are flushed. The WAL is synced, so that the durable updates
//!    remain a prefix of those written.
//! 3. Each file gets the deepest level above everything that it overlaps. If it overlaps anything, or a snapshot must
//!    not see it, all its entries get a sequence number above all others. While the MANIFEST is written, compactions
//!    keep out of the files' ranges in their levels.
//! 4. One atomic group in the MANIFEST names the files of all column families and raises the last sequence number.
//!    Readers see the new numbers once they can see the files.
//!
//! If step 4 fails, the MANIFEST's end is unknown: the files stay, and the database takes no more writes until `resume`
//! has begun a new MANIFEST.

mod file;
mod options;
mod place;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::SequenceNumber;
use rockmill_format::edit::{FileEntry, VersionEdit};

use crate::db::catalog::column_family::CfData;
use crate::db::catalog::install::Change;
use crate::db::files::ingest::place::TargetLevel;
#[cfg(feature = "internals")]
pub use crate::db::files::ingest::place::deepest_place;
use crate::db::read::tables::CfTables;
use crate::db::report::stats::count;
use crate::db::{AsColumnFamilyRef, Db, DbInner};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{ExternalFileIngestionInfo, FlushReason};
use crate::info_log::log_info;
use crate::panics::guarded;
use crate::sync::MutexGuard;
use crate::version::{ManifestWriter, TableSource, Version};

pub(crate) use crate::db::files::ingest::file::ExternalFile;
pub use crate::db::files::ingest::options::{IngestExternalFileArg, IngestExternalFileOptions};

/// What one column family gets.
struct Family<'a> {
    cf: Arc<CfData>,
    options: &'a IngestExternalFileOptions,
    files: Vec<ExternalFile>,
    /// Files have keys in common.
    overlap: bool,
}

/// Why an ingestion did not happen.
struct Failure {
    error: Error,
    /// What was written of the MANIFEST is unknown: the files must stay.
    files_may_be_named: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, files_may_be_named: false }
    }
}

impl Db {
    /// Makes tables of [`SstFileWriter`](crate::SstFileWriter) part of the default column family, all or none. Their
    /// entries are newer than everything written before. The files are copied; see
    /// [`IngestExternalFileOptions::move_files`].
    ///
    /// Of files that overlap each other, later ones are newer. If a file is refused, nothing is changed: it was not
    /// written by an `SstFileWriter`, is damaged, or is for another comparator or column family.
    pub fn ingest_external_file<P: AsRef<Path>>(&self, paths: Vec<P>) -> Result<()> {
        self.ingest_external_file_opts(&IngestExternalFileOptions::default(), paths)
    }

    /// Ingests files into the default column family; see [`Self::ingest_external_file`].
    pub fn ingest_external_file_opts<P: AsRef<Path>>(
        &self,
        options: &IngestExternalFileOptions,
        paths: Vec<P>,
    ) -> Result<()> {
        self.ingest_external_file_cf_opts(&self.default_cf(), options, paths)
    }

    /// Ingests files into a column family; see [`Self::ingest_external_file`].
    pub fn ingest_external_file_cf<P: AsRef<Path>>(&self, cf: &impl AsColumnFamilyRef, paths: Vec<P>) -> Result<()> {
        self.ingest_external_file_cf_opts(cf, &IngestExternalFileOptions::default(), paths)
    }

    /// Ingests files into a column family; see [`Self::ingest_external_file`].
    pub fn ingest_external_file_cf_opts<P: AsRef<Path>>(
        &self,
        cf: &impl AsColumnFamilyRef,
        options: &IngestExternalFileOptions,
        paths: Vec<P>,
    ) -> Result<()> {
        let external_files: Vec<PathBuf> = paths.iter().map(|p| p.as_ref().to_owned()).collect();
        let column_family = cf.as_cf().clone();
        self.ingest_external_files(&[IngestExternalFileArg { column_family, external_files, options: options.clone() }])
    }

    /// Ingests files into several column families, all or none (RocksDB's `IngestExternalFiles`); see
    /// [`Self::ingest_external_file`].
    pub fn ingest_external_files(&self, args: &[IngestExternalFileArg]) -> Result<()> {
        let db = &self.inner;
        db.check_writable()?;
        check_args(db, args)?;
        let mut families = Vec::with_capacity(args.len());
        for arg in args {
            families.push(inspect(db, arg)?);
        }
        let done = db.bring_in(&mut families).map_err(Failure::from);
        let done = done.and_then(|()| db.commit_ingestion(&mut families));
        // Tells listeners about its flushes. They may write, because this thread does not lead here.
        db.delete_obsolete_wals();
        db.tell_waiting();
        if let Err(failure) = done {
            if !failure.files_may_be_named {
                families.iter().flat_map(|f| &f.files).for_each(|f| f.take_out(db));
            }
            return Err(failure.error.context("ingestion"));
        }
        for family in &families {
            count(&db.stats.ingested_files, family.files.len() as u64);
            count(&db.stats.ingested_bytes, family.files.iter().map(|f| f.size).sum());
            if family.options.move_files {
                self.remove_moved(family.files.iter().map(|f| &*f.path));
            }
        }
        db.tell_ingested(&families);
        Ok(())
    }
}

fn check_args(db: &DbInner, args: &[IngestExternalFileArg]) -> Result<()> {
    let bad = |what: String| Err(Error::invalid_argument(format!("ingestion: {what}")));
    if args.is_empty() {
        return bad("no column family is given".to_owned());
    }
    for (i, arg) in args.iter().enumerate() {
        let (cf, o) = (&arg.column_family, &arg.options);
        db.check_family(&cf.data)?;
        if cf.data.is_dropped() {
            return Err(cf.data.dropped_error());
        }
        if args[..i].iter().any(|a| a.column_family.id() == cf.id()) {
            return bad(format!("column family {:?} is given twice", cf.name()));
        }
        if arg.external_files.is_empty() {
            return bad(format!("the list of files for column family {:?} is empty", cf.name()));
        }
        if o.move_files && o.link_files {
            return bad("move_files and link_files exclude each other".to_owned());
        }
        if o.write_global_seqno {
            return Err(Error::not_supported(
                "ingestion: write_global_seqno is not supported: sequence numbers stand in the MANIFEST, where RocksDB \
                 looks for them since 5.16",
            ));
        }
        if o.ingest_behind && !db.opts.allow_ingest_behind {
            return bad("ingest_behind needs a database with the option allow_ingest_behind".to_owned());
        }
    }
    Ok(())
}

/// Looks at the files of one column family.
fn inspect<'a>(db: &DbInner, arg: &'a IngestExternalFileArg) -> Result<Family<'a>> {
    let cf = Arc::clone(&arg.column_family.data);
    let (options, mut files) = (&arg.options, Vec::with_capacity(arg.external_files.len()));
    for path in &arg.external_files {
        files.push(ExternalFile::inspect(db, &cf, path, options)?);
    }
    let mut sorted: Vec<&ExternalFile> = files.iter().collect();
    sorted.sort_by(|a, b| cf.cmp.compare(a.smallest.as_bytes(), b.smallest.as_bytes()));
    let overlap = sorted.windows(2).any(|w| place::overlap(w[0], w[1], &cf.cmp));
    if overlap && options.ingest_behind {
        return Err(Error::not_supported("ingestion: files that overlap each other cannot be ingested behind"));
    }
    if overlap && !options.allow_global_seqno {
        return Err(Error::invalid_argument(
            "ingestion: global seqno is required, but disabled: the files overlap each other",
        ));
    }
    Ok(Family { cf, options, files, overlap })
}

impl DbInner {
    /// Says in the info log what was ingested, and to the listeners.
    fn tell_ingested(&self, families: &[Family<'_>]) {
        self.tell_waiting();
        for family in families {
            for file in &family.files {
                let info = ExternalFileIngestionInfo {
                    cf_name: family.cf.name.clone(),
                    external_file_path: file.path.clone(),
                    internal_file_path: file.inside.clone().unwrap_or_default(),
                    global_seqno: file.sequence,
                    table_properties: file.properties.clone(),
                };
                log_info!(
                    self.log,
                    "[AddFile] External SST file {} was ingested in L{} with path {} (global_seqno={})",
                    file.path.display(),
                    file.level,
                    info.internal_file_path.display(),
                    file.sequence
                );
                self.notify(|l| l.on_external_file_ingested(&info));
            }
        }
    }

    /// Step 1.
    fn bring_in(&self, families: &mut [Family<'_>]) -> Result<()> {
        families.iter_mut().try_for_each(|f| self.bring_in_files(&mut f.files, f.cf.dirs().of(0), f.options))
    }

    /// Gives files numbers and brings them into the directory, their column family's first path; durable, names
    /// included, when it returns.
    pub(crate) fn bring_in_files(
        &self,
        files: &mut [ExternalFile],
        dir: &Path,
        options: &IngestExternalFileOptions,
    ) -> Result<()> {
        files.iter_mut().for_each(|f| f.number = self.new_file_number());
        if options.move_files || options.link_files {
            // The numbers must not be used again after a crash: writing to such a file would change the linked file
            // outside, too.
            self.append_to_manifest(&mut self.catalog.lock_manifest(), &mut [VersionEdit::default()])?;
        }
        files.iter_mut().try_for_each(|f| f.bring_in(self, dir, options))?;
        let synced = self.opts.fs.sync_dir(dir);
        synced.map_err(|e| Error::io(format_args!("cannot sync {}", dir.display()), &e))
    }

    /// Steps 2 to 4.
    fn commit_ingestion(self: &Arc<Self>, families: &mut [Family<'_>]) -> std::result::Result<(), Failure> {
        let _alone = self.lead_alone();
        self.flush_overlapped(families)?;
        self.flush_wal_as_leader(true, true)?;
        // Versions change only under this lock, so what is found out about one stays true.
        let mut manifest = self.catalog.lock_manifest();
        let done = self.place_and_commit(families, &mut manifest);
        let cut_short = manifest.as_ref().is_some_and(ManifestWriter::has_failed);
        drop(manifest);
        done.map_err(|error| {
            // Aborted: a panic.
            let files_may_be_named = cut_short && matches!(error.kind(), ErrorKind::IOError | ErrorKind::Aborted);
            Failure { files_may_be_named, error }
        })
    }

    /// Flushes the memtables that files overlap, until there are none: listeners may write while this waits for a flush
    /// that runs.
    fn flush_overlapped(self: &Arc<Self>, families: &[Family<'_>]) -> Result<()> {
        loop {
            let mut flush = Vec::new();
            {
                let state = self.state.lock();
                state.errors().check_writes()?;
                for family in families {
                    let Some(c) = state.family(family.cf.id) else {
                        return Err(family.cf.dropped_error());
                    };
                    if place::overlaps_front(&c.front().view(), &family.files, &family.cf.cmp)? {
                        flush.push(family);
                    }
                }
            }
            if flush.is_empty() {
                return Ok(());
            }
            if let Some(family) = flush.iter().find(|f| !f.options.allow_blocking_flush) {
                return Err(Error::invalid_argument(format!(
                    "external file requires flush of column family {:?}, and allow_blocking_flush is false",
                    family.cf.name
                )));
            }
            let ids: Vec<u32> = flush.iter().map(|f| f.cf.id).collect();
            self.flush_as_leader(&ids, FlushReason::ExternalFileIngestion)?;
        }
    }

    fn place_and_commit(
        self: &Arc<Self>,
        families: &mut [Family<'_>],
        manifest: &mut MutexGuard<'_, Option<ManifestWriter>>,
    ) -> Result<()> {
        let mut overlaps = Vec::with_capacity(families.len());
        for family in families.iter() {
            overlaps.push(self.first_overlaps(family)?);
        }
        // A snapshot taken while files with sequence number 0 are added would change.
        let consistent = families.iter().any(|f| f.options.snapshot_consistency);
        let no_new_snapshot = consistent.then(|| self.readers.snapshots().close());
        self.state.lock().jobs_mut().begin_table_change();
        let mut reserved = Vec::new();
        // After a panic of the user's comparator, neither that nor the reservation may remain.
        let done = guarded("an ingestion", || {
            let (last, places) = self.place_all(families, &overlaps, &mut reserved)?;
            let edits: Vec<_> = families.iter_mut().zip(places).map(|(f, places)| self.edit(f, &places)).collect();
            let changes = families.iter().zip(edits).map(|(f, edit)| Change::new(&f.cf, edit, |_| {})).collect();
            // Entries with number 0 must be older than any snapshot that sees them.
            self.log_and_apply_locked(manifest, changes, Some(last.max(1)))
        });
        drop(no_new_snapshot);
        let mut state = self.state.lock();
        for (cf, number) in reserved {
            if let Some(c) = state.family_mut(cf) {
                c.jobs_mut().unreserve(number);
            }
        }
        state.jobs_mut().end_table_change();
        drop(state);
        self.wake_all();
        done
    }

    /// For each file of a column family, the first level that it overlaps.
    fn first_overlaps(self: &Arc<Self>, family: &Family<'_>) -> Result<Vec<usize>> {
        let cf = &family.cf;
        let version: Option<Arc<Version>> = self.state.lock().family(cf.id).map(|c| Arc::clone(c.version()));
        let version = version.ok_or_else(|| cf.dropped_error())?;
        let tables: Arc<dyn TableSource> = Arc::new(CfTables::new(self, cf));
        let ranges = family.files.iter().map(ExternalFile::range);
        ranges.map(|(start, limit)| place::first_overlap(&version, &tables, start, limit)).collect()
    }

    /// Step 3. Returns the last sequence number and each file's place; notes what it reserves, even if it fails.
    fn place_all(
        &self,
        families: &[Family<'_>],
        overlaps: &[Vec<usize>],
        reserved: &mut Vec<(u32, u64)>,
    ) -> Result<(SequenceNumber, Vec<Vec<TargetLevel>>)> {
        let mut state = self.state.lock();
        let (before, snapshots) = (self.last_sequence(), self.readers.snapshots().oldest().is_some());
        let (mut last, mut all) = (before, Vec::new());
        for (family, overlaps) in families.iter().zip(overlaps) {
            let Some(c) = state.family_mut(family.cf.id) else {
                return Err(family.cf.dropped_error());
            };
            // Column families share no keys: each begins with the same number.
            let (mut own, new_sequences) = (before, family.options.snapshot_consistency && snapshots);
            let places = place::place(c, family, overlaps, new_sequences, &mut own)?;
            for (file, place) in family.files.iter().zip(&places) {
                let (start, limit) = file.range();
                reserved.push((family.cf.id, c.jobs_mut().reserve(place.level, start, limit)));
            }
            last = last.max(own);
            all.push(places);
        }
        Ok((last, all))
    }

    /// The version edit that adds the files of one column family.
    fn edit(&self, family: &mut Family<'_>, places: &[TargetLevel]) -> VersionEdit {
        let now = self.now_seconds();
        let entry = |(file, place): (&mut ExternalFile, &TargetLevel)| {
            file.set_place(place.level, place.sequence);
            (place.level as u32, FileEntry { epoch_number: place.epoch, ..file.entry(now) })
        };
        VersionEdit { new_files: family.files.iter_mut().zip(places).map(entry).collect(), ..VersionEdit::default() }
    }
}
