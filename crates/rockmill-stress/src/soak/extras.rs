//! Rarer operations of the child's threads: ingestion, checkpoints, backups, flushes, compactions, cleared families.

use std::path::Path;
use std::sync::{PoisonError, TryLockError};

use rockmill::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use rockmill::{Checkpoint, Db, Env, IngestExternalFileOptions, IteratorMode, ReadOptions, SstFileWriter};

use super::child;
use super::expected::{Change, Slot};
use super::judge::{self, Entry};
use super::value;
use super::work::{Done, Trouble, Worker};

/// Most keys of an ingested table.
const INGEST_MAX: u32 = 100;
/// Keys of a manual compaction, as a fraction of all.
const COMPACT_PART: u32 = 4;
/// Backups that are kept.
const BACKUPS_MAX: usize = 2;

/// Removes the remains of an earlier copy, which may not have been possible then: with few open files, a directory
/// cannot be read. False if it is still impossible.
fn is_gone(path: &Path) -> bool {
    let _ = std::fs::remove_dir_all(path);
    !path.exists()
}

impl Worker<'_, '_> {
    /// A table made outside and taken in.
    pub fn ingest(&mut self) -> Done {
        let (family, keys) = (self.any_family(), self.any_range(INGEST_MAX));
        let mut touched = Vec::new();
        for key in keys.clone() {
            match self.rng.u8(..8) {
                _ if self.is_single(family, key) => {}
                0 => touched.push((family, key, Change::Delete)),
                1..6 => touched.push((family, key, Change::Put)),
                _ => {}
            }
        }
        if touched.is_empty() {
            return Ok(());
        }
        let shared = self.shared;
        let path = self.own_path("ingest.sst");
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(self.rng.bool());
        let held = shared.expected.lock(&[(family, keys)]);
        let cf = shared.family(family);
        let done = self.change("ingestion", &touched, |versions| {
            let of_family = child::family_options(shared.settings, family, shared.options);
            let mut writer = SstFileWriter::create(&of_family);
            writer.open(&path)?;
            for (&(_, key, change), &version) in touched.iter().zip(versions) {
                match change {
                    Change::Delete => writer.delete(self.key(family, key))?,
                    _ => writer.put(self.key(family, key), value::value(shared.settings, family, key, version))?,
                }
            }
            writer.finish()?;
            shared.db.ingest_external_file_cf_opts(&cf, &options, vec![&path])
        });
        drop(held);
        let _ = std::fs::remove_file(&path);
        done
    }

    /// A flush of one column family or of all.
    pub fn flush(&mut self) -> Done {
        let cf = self.shared.family(self.rng.usize(..self.shared.expected.families()));
        let done = if self.rng.bool() { self.shared.db.flush_all() } else { self.shared.db.flush_cf(&cf) };
        self.unless_dropped("flush", done)
    }

    /// A manual compaction of a part of the keys.
    pub fn compact(&mut self) -> Done {
        let part = (self.shared.settings.keys / COMPACT_PART).max(1);
        let keys = self.any_range(part);
        let family = self.rng.usize(..self.shared.expected.families());
        let (from, to) = (self.key(family, keys.start), self.key(family, keys.end));
        let done = self.shared.db.compact_range_cf(&self.shared.family(family), Some(from), Some(to));
        self.unless_dropped("compact_range", done)
    }

    /// Drops a column family and creates it again; no other thread writes to it.
    pub fn clear(&mut self) -> Done {
        let shared = self.shared;
        // Never `default`, which cannot be dropped; and not with a limit, with which the creation might fail.
        if shared.settings.families < 2 || shared.limit.is_some() {
            return Ok(());
        }
        let family = self.rng.usize(1..shared.settings.families);
        let keys = 0..shared.settings.keys;
        let _held = shared.expected.lock(&[(family, keys.clone())]);
        let touched: Vec<_> = keys.map(|key| (family, key, Change::Delete)).collect();
        self.change("drop_cf and create_cf", &touched, |_| {
            let name = judge::family_name(shared.settings, family);
            shared.db.drop_cf(&name)?;
            let new = shared.db.create_cf(&name, &child::family_options(shared.settings, family, shared.options))?;
            *shared.families[family].write().unwrap_or_else(PoisonError::into_inner) = new;
            Ok(())
        })
    }

    fn all_slots(&self) -> Vec<Vec<Slot>> {
        let expected = self.shared.expected;
        (0..expected.families()).map(|family| expected.slots(family, 0..expected.keys())).collect()
    }

    /// Compares a copy of the database that was made between two reads of the expected state.
    fn judge_copy(&self, what: &str, path: &Path, before: &[Vec<Slot>], after: &[Vec<Slot>]) -> Done {
        let shared = self.shared;
        let failed = |e: rockmill::Error| shared.trouble(what, &e);
        // A copy has its WALs in the same directory as its tables.
        let mut options = shared.options.clone();
        options.set_wal_dir(path);
        // A column family that is being cleared may be missing then: it has no keys.
        let there = Db::list_cf(&options, path).map_err(failed)?;
        let mut families = child::families(shared.settings, &options);
        families.retain(|f| there.iter().any(|name| name == f.name()));
        let db = Db::open_cf_descriptors_read_only(&options, path, families, false).map_err(failed)?;
        let mut all: Vec<Vec<Entry>> = Vec::new();
        for family in 0..before.len() {
            let name = judge::family_name(shared.settings, family);
            let mut entries: Vec<Entry> = Vec::new();
            if let Some(cf) = db.cf_handle(&name) {
                let mut options = ReadOptions::default();
                options.set_total_order_seek(true);
                for entry in db.iterator_cf_opt(&cf, options, IteratorMode::Start) {
                    let (key, value) = entry.map_err(failed)?;
                    entries.push(Ok((key.into_vec(), value.into_vec())));
                }
            }
            all.push(entries);
        }
        let entries = |family: usize| all.get_mut(family).map(std::mem::take).unwrap_or_default();
        judge::judge_copy(what, shared.settings, (before, after), entries)?;
        Ok(())
    }

    /// A checkpoint, opened and compared.
    pub fn checkpoint(&mut self) -> Done {
        let shared = self.shared;
        let _one = match shared.copies.try_lock() {
            Ok(one) => one,
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
        };
        let path = shared.paths.own("checkpoint");
        if !is_gone(&path) {
            return Ok(());
        }
        let before = self.all_slots();
        let log_size = if self.rng.bool() { 0 } else { u64::MAX };
        let made = Checkpoint::new(shared.db).and_then(|c| c.create_checkpoint_with_log_size(&path, log_size));
        let after = self.all_slots();
        let done = made.map_err(|e| shared.trouble("checkpoint", &e));
        let done = done.and_then(|()| self.judge_copy("checkpoint", &path, &before, &after));
        if !matches!(done, Err(Trouble::Wrong(_))) {
            let _ = std::fs::remove_dir_all(&path);
        }
        done
    }

    /// Makes a backup; every fourth is restored and compared, for the others only checksums are verified.
    pub fn backup(&mut self) -> Done {
        let shared = self.shared;
        let _one = match shared.copies.try_lock() {
            Ok(one) => one,
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
        };
        let restored = shared.paths.own("restored");
        if !is_gone(&restored) {
            return Ok(());
        }
        let failed = |e: rockmill::Error| shared.trouble("backup", &e);
        let options = BackupEngineOptions::new(shared.paths.own("backups")).map_err(failed)?;
        let engine = BackupEngine::open(&options, &Env::new().map_err(failed)?).map_err(failed)?;
        // A backup interrupted by a kill must be absent, not damaged.
        if let Some((id, e)) = engine.get_corrupted_backups().first() {
            return Err(Trouble::Wrong(format!("backup {id} is damaged: {e}")));
        }
        let before = self.all_slots();
        let made = engine.create_new_backup_flush(shared.db, self.rng.bool());
        let after = self.all_slots();
        made.map_err(failed)?;
        let Some(newest) = engine.get_backup_info().last().map(|b| b.backup_id) else {
            return Err(Trouble::Wrong("a backup was made and is not listed".to_owned()));
        };
        let done = if self.rng.u8(..4) == 0 {
            let restore = engine.restore_from_backup(&restored, &restored, &RestoreOptions::default(), newest);
            let done =
                restore.map_err(failed).and_then(|()| self.judge_copy("restored backup", &restored, &before, &after));
            if !matches!(done, Err(Trouble::Wrong(_))) {
                let _ = std::fs::remove_dir_all(&restored);
            }
            done
        } else {
            engine.verify_backup_with_checksum(newest).map_err(failed)
        };
        done.and_then(|()| engine.purge_old_backups(BACKUPS_MAX).map_err(failed))
    }
}
