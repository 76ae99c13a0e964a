//! Copies of the database or of parts of it, and external tables.

use std::collections::BTreeMap;
use std::path::Path;

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::{
    Checkpoint, ColumnFamily, Db, ErrorKind, ExportImportFilesMetaData, ImportColumnFamilyOptions,
    IngestExternalFileArg, IngestExternalFileOptions, Options, SstFileWriter, TableKind,
};

use super::Trouble;
use super::reads::all_of;
use super::session::Session;
use crate::contents::{Difference, matches, matches_state, same};
use crate::history::{External, Update};
use crate::kinds::{Slot, family_name, key_bytes};
use crate::model::Family;
use crate::place::{descriptors, existing};

impl Session<'_, '_, '_> {
    /// Options for opening a copy, which has its WALs and tables in one directory.
    fn options_of_copy(&self, path: &Path) -> Options {
        let mut options = existing(self.options());
        options.set_wal_dir(path);
        options.set_db_paths(&[]);
        options
    }

    /// A checkpoint shows the same.
    pub fn checkpoint(&self, flush: bool) -> Result<(), Trouble> {
        let path = self.place().path("checkpoint");
        // Without a flush, a checkpoint does not include unlogged data.
        let log_size = if flush || self.run.model.unlogged { 0 } else { u64::MAX };
        Checkpoint::new(self.db)?.create_checkpoint_with_log_size(&path, log_size)?;
        let options = self.options_of_copy(&path);
        let copy = self.place().open_families(&options, &path, descriptors(&self.run.model.state, &options))?;
        matches(&copy, &self.run.model).map_err(|d| in_copy("checkpoint", d))?;
        drop(copy);
        Db::destroy(&options, &path)?;
        Ok(self.place().remove_tree(&path)?)
    }

    /// A backup, restored, shows the same.
    pub fn backup(&self, flush: bool) -> Result<(), Trouble> {
        let (home, path) = (self.place().path("backups"), self.place().path("restored"));
        let env = self.place().env();
        let engine = BackupEngine::open(&BackupEngineOptions::new(home)?, &env)?;
        engine.create_new_backup_flush(self.db, flush || self.run.model.unlogged)?;
        if let Some(newest) = engine.get_backup_info().iter().map(|info| info.backup_id).max() {
            engine.verify_backup_with_checksum(newest)?;
        }
        engine.restore_from_latest_backup(&path, &path, &RestoreOptions::default())?;
        let options = self.options_of_copy(&path);
        let copy = self.place().open_families(&options, &path, descriptors(&self.run.model.state, &options))?;
        matches(&copy, &self.run.model).map_err(|d| in_copy("backup", d))?;
        drop(copy);
        engine.purge_old_backups(2)?;
        Db::destroy(&options, &path)?;
        Ok(self.place().remove_tree(&path)?)
    }

    /// Checks that a secondary has the same contents, for all column families that existed when it was opened and still
    /// do.
    pub fn secondary(&mut self) -> Result<(), Trouble> {
        self.db.flush_wal(false)?;
        if self.secondary.is_none() {
            let mut options = existing(self.options());
            options.set_max_open_files(-1);
            let (primary, own) = (self.place().db(), self.place().path("secondary"));
            let all = descriptors(&self.run.model.state, &options);
            let db = Db::open_cf_descriptors_as_secondary(&options, primary, own, all)?;
            let births: BTreeMap<Slot, usize> = self.run.model.state.iter().map(|(&s, f)| (s, f.born)).collect();
            self.secondary = Some((db, births));
        }
        let Some((db, births)) = &self.secondary else { return Ok(()) };
        db.try_catch_up_with_primary()?;
        let mut state = self.run.model.state.clone();
        state.retain(|slot, family| births.get(slot) == Some(&family.born));
        matches_state(db, &state, None, "secondary, ").map_err(Trouble::from)
    }

    /// Makes one table outside.
    fn write_file(&self, file: &External, path: &Path) -> Result<(), Trouble> {
        let (family, _) = self.family(file.slot)?;
        let kind = family.kind;
        let options = kind.options(&self.options());
        let mut writer = match self.place().ttl {
            true => SstFileWriter::create_with_ttl(&options),
            false => SstFileWriter::create(&options),
        };
        writer.open(path)?;
        if let Some((from, to)) = file.range {
            let (from, to) = Family::ordered(kind, from, to);
            writer.delete_range(from, to)?;
        }
        let mut updates: Vec<(Vec<u8>, &Update)> = Vec::new();
        for update in &file.updates {
            if let Update::Put(_, key, _) | Update::Merge(_, key, _) | Update::Delete(_, key) = update {
                updates.push((key_bytes(*key), update));
            }
        }
        updates.sort_by(|a, b| kind.order(&a.0, &b.0));
        for (key, update) in updates {
            match update {
                Update::Put(.., value) => writer.put(key, kind.value_bytes(*value))?,
                Update::Merge(.., value) => writer.merge(key, kind.value_bytes(*value))?,
                Update::Delete(..) => writer.delete(key)?,
                Update::SingleDelete(..) | Update::DeleteRange(..) | Update::LogData(_) => {}
            }
        }
        Ok(writer.finish()?)
    }

    /// Ingests external tables, all at once.
    pub fn ingest(&self, moved: bool, files: &[External]) -> Result<(), Trouble> {
        let mut args: Vec<(Slot, IngestExternalFileArg)> = Vec::new();
        let mut paths = Vec::new();
        for (n, file) in files.iter().enumerate() {
            let path = self.place().path(&format!("ingest-{n}.sst"));
            self.write_file(file, &path)?;
            paths.push(path.clone());
            if let Some((_, arg)) = args.iter_mut().find(|(slot, _)| *slot == file.slot) {
                arg.external_files.push(path);
                continue;
            }
            let mut options = IngestExternalFileOptions::default();
            options.set_move_files(moved);
            options.set_verify_checksums_before_ingest(n % 2 == 0);
            let column_family = self.handle(file.slot)?;
            args.push((file.slot, IngestExternalFileArg::new(column_family, vec![path], options)));
        }
        let args: Vec<_> = args.into_iter().map(|(_, arg)| arg).collect();
        let before = self.run.events.ingested();
        let done = self.db.ingest_external_files(&args);
        for path in &paths {
            self.place().remove_tree(path)?;
        }
        done?;
        let (told, must) = (self.run.events.ingested() - before, files.len() as u64);
        if told != must {
            let what = format!("were told of {told} ingested files of {must}");
            return Err(Trouble::Wrong(Difference::new("listeners", what)));
        }
        Ok(())
    }

    /// Exports, after merging extra runs and rewriting tables of several files, as users have to do.
    fn export(&self, cf: &ColumnFamily, dir: &Path) -> Result<ExportImportFilesMetaData, Trouble> {
        loop {
            match Checkpoint::new(self.db)?.export_column_family(cf, dir) {
                // A running job may still leave some.
                Err(e) if e.kind() == ErrorKind::NotSupported && e.message().contains("extra runs") => {
                    self.db
                        .set_options_cf(cf, &[("compaction_downforce", "false"), ("compaction_classic", "false")])?;
                    self.db.merge_extra_runs_cf(cf)?;
                }
                Err(e) if e.kind() == ErrorKind::NotSupported && e.message().contains("several files") => {
                    if self.db.get_options_cf(cf).cf.table_factory == TableKind::Tph {
                        self.db.set_options_cf(cf, &[("tph_table_factory", "{piece_limit=1}")])?;
                    }
                    self.db.make_tables_whole_cf(cf)?;
                }
                done => return Ok(done?),
            }
        }
    }

    /// Checks that a column family that was exported and imported under another name has the same contents.
    pub fn copy(&self, from: Slot, to: Slot, moved: bool) -> Result<(), Trouble> {
        let dir = self.place().path("export");
        let (family, cf) = self.family(from)?;
        let exported = self.export(&cf, &dir)?;
        let options = family.kind.options(&self.options());
        let mut how = ImportColumnFamilyOptions::default();
        how.set_move_files(moved);
        let name = family_name(to, family.kind);
        let done = self.db.create_column_family_with_import(&options, &name, &how, &exported);
        self.place().remove_tree(&dir)?;
        let got = all_of(self.db, &done?, family.kind)?;
        Ok(same(&format!("{name}, imported"), &got, &family.sorted())?)
    }
}

fn in_copy(what: &str, difference: Difference) -> Trouble {
    Trouble::Wrong(Difference::new(format!("{what}, {}", difference.place), difference.what))
}
