//! Rockmill's side.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rockmill::{
    BottommostLevelCompaction, Checkpoint, ColumnFamily, CompactOptions, Db, DbRawIterator, Error, FlushOptions,
    IngestExternalFileOptions, Options, ReadOptions, Snapshot, SstFileWriter, TableKind, WriteBatch, WriteOptions,
};
use rockmill_rocksdb::store::{CompactHow, Go, Look, Op, WriteHow};

use super::store::{Batches, Pair, Said, Store};
use crate::kinds::Kind;

/// An open Rockmill.
pub(super) struct Ours<'db> {
    pub db: &'db Db,
    /// Options of a column family, without those that its kind adds.
    pub options: Options,
    pub ttl: Option<Duration>,
    pub snapshots: BTreeMap<u8, Snapshot<'db>>,
    pub iterators: BTreeMap<u8, DbRawIterator<'db>>,
}

impl<'db> Ours<'db> {
    /// With nothing held.
    pub fn new(db: &'db Db, options: Options, ttl: Option<Duration>) -> Self {
        Self { db, options, ttl, snapshots: BTreeMap::new(), iterators: BTreeMap::new() }
    }

    fn family(&self, name: &str) -> Result<ColumnFamily, Error> {
        let found = self.db.cf_handle(name);
        found.ok_or_else(|| Error::invalid_argument(format!("there is no column family {name:?}")))
    }

    fn writes_tph(&self, cf: &ColumnFamily) -> bool {
        self.db.get_options_cf(cf).cf.table_factory == TableKind::Tph
    }

    fn batch(&self, ops: &[Op]) -> Result<WriteBatch, Error> {
        let mut batch = WriteBatch::new();
        for op in ops {
            match op {
                Op::Put(cf, key, value) => batch.put_cf(&self.family(cf)?, key, value),
                Op::Merge(cf, key, value) => batch.merge_cf(&self.family(cf)?, key, value),
                Op::Delete(cf, key) => batch.delete_cf(&self.family(cf)?, key),
                Op::SingleDelete(cf, key) => batch.single_delete_cf(&self.family(cf)?, key),
                Op::DeleteRange(cf, from, to) => batch.delete_range_cf(&self.family(cf)?, from, to),
                Op::LogData(data) => batch.put_log_data(data),
            }
        }
        Ok(batch)
    }

    fn read_options(&self, look: &Look) -> Result<ReadOptions, Error> {
        let mut options = ReadOptions::default();
        if let Some(id) = look.snapshot {
            let found = self.snapshots.get(&id);
            options.set_snapshot(found.ok_or_else(|| Error::invalid_argument("there is no such snapshot"))?);
        }
        if let Some(key) = &look.lower {
            options.set_iterate_lower_bound(key.clone());
        }
        if let Some(key) = &look.upper {
            options.set_iterate_upper_bound(key.clone());
        }
        options.set_total_order_seek(look.total_order);
        if look.auto_prefix {
            options.set_auto_prefix_mode(true);
        }
        options.set_prefix_same_as_start(look.same_prefix);
        options.set_readahead_size(look.readahead);
        Ok(options)
    }

    /// Makes the directory readable for RocksDB before a swap: without extra runs, and with each table in one file.
    pub fn downgrade(&self) -> Result<(), Error> {
        for name in self.db.cf_names() {
            let cf = self.family(&name)?;
            let now = self.db.get_options_cf(&cf).cf;
            if now.compaction_downforce || now.compaction_classic {
                let off = [("compaction_downforce", "false"), ("compaction_classic", "false")];
                self.db.set_options_cf(&cf, &off)?;
            }
            if self.writes_tph(&cf) {
                self.db.set_options_cf(&cf, &[("tph_table_factory", "{piece_limit=1}")])?;
            }
            // A running job may still leave one.
            self.db.wait_for_background_work()?;
            while self.db.level_stats(&cf).iter().any(|level| level.extra_runs > 0) {
                self.db.merge_extra_runs_cf(&cf)?;
            }
            self.db.make_tables_whole_cf(&cf)?;
        }
        Ok(())
    }
}

impl Store for Ours<'_> {
    fn write(&mut self, how: WriteHow, ops: &[Op]) -> Said<()> {
        let mut options = WriteOptions::default();
        options.set_sync(how.sync);
        options.disable_wal(how.disable_wal);
        options.set_no_slowdown(how.no_slowdown);
        options.set_low_pri(how.low_pri);
        Ok(self.db.write_opt(&self.batch(ops)?, &options)?)
    }

    fn write_together(&mut self, writers: &[Vec<Vec<Op>>]) -> Said<()> {
        let mut all = Vec::new();
        for batches in writers {
            all.push(batches.iter().map(|ops| self.batch(ops)).collect::<Result<Vec<WriteBatch>, Error>>()?);
        }
        let (db, failed) = (self.db, Mutex::new(None));
        std::thread::scope(|scope| {
            for batches in all {
                let failed = &failed;
                scope.spawn(move || {
                    if let Err(e) = batches.iter().try_for_each(|batch| db.write(batch)) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    }
                });
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |e: Error| Err(e.into()))
    }

    fn get(&mut self, family: &str, key: &[u8], snapshot: Option<u8>) -> Said<Option<Vec<u8>>> {
        let options = self.read_options(&Look { snapshot, ..Look::default() })?;
        Ok(self.db.get_cf_opt(&self.family(family)?, key, &options)?)
    }

    fn multi_get(&mut self, keys: &[(String, Vec<u8>)], snapshot: Option<u8>) -> Vec<Said<Option<Vec<u8>>>> {
        let asked = || -> Said<_> {
            let families = keys.iter().map(|(cf, _)| self.family(cf)).collect::<Result<Vec<_>, Error>>()?;
            let options = self.read_options(&Look { snapshot, ..Look::default() })?;
            Ok(self.db.multi_get_cf_opt(families.iter().zip(keys.iter().map(|(_, key)| key)), &options))
        };
        match asked() {
            Ok(all) => all.into_iter().map(|one| Ok(one?)).collect(),
            Err(refusal) => vec![Err(refusal)],
        }
    }

    fn snapshot(&mut self, id: u8) -> Said<()> {
        self.snapshots.insert(id, self.db.snapshot());
        Ok(())
    }

    fn release(&mut self, id: u8) -> Said<()> {
        self.snapshots.remove(&id);
        Ok(())
    }

    fn iterator(&mut self, id: u8, family: &str, look: &Look) -> Said<()> {
        let options = self.read_options(look)?;
        self.iterators.insert(id, self.db.raw_iterator_cf_opt(&self.family(family)?, options));
        Ok(())
    }

    fn go(&mut self, id: u8, to: &Go) -> Said<Option<Pair>> {
        let iterator = self.iterators.get_mut(&id);
        let iterator = iterator.ok_or_else(|| Error::invalid_argument("there is no such iterator"))?;
        match to {
            Go::First => iterator.seek_to_first(),
            Go::Last => iterator.seek_to_last(),
            Go::Seek(key) => iterator.seek(key),
            Go::SeekForPrev(key) => iterator.seek_for_prev(key),
            Go::Next if iterator.valid() => iterator.next(),
            Go::Prev if iterator.valid() => iterator.prev(),
            Go::Next | Go::Prev => {}
        }
        iterator.status()?;
        Ok(iterator.item().map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    fn close(&mut self, id: u8) {
        self.iterators.remove(&id);
    }

    fn flush(&mut self, families: &[String], wait: bool) -> Said<()> {
        let handles = families.iter().map(|name| self.family(name)).collect::<Result<Vec<_>, Error>>()?;
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        for handle in handles {
            self.db.flush_cfs_opt(&[handle], &options)?;
        }
        Ok(())
    }

    fn compact(&mut self, family: &str, from: Option<&[u8]>, to: Option<&[u8]>, how: CompactHow) -> Said<()> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(match how.bottommost {
            0 => BottommostLevelCompaction::Skip,
            1 => BottommostLevelCompaction::IfHaveCompactionFilter,
            2 => BottommostLevelCompaction::Force,
            _ => BottommostLevelCompaction::ForceOptimized,
        });
        options.set_exclusive_manual_compaction(how.exclusive);
        options.set_change_level(how.change_level);
        Ok(self.db.compact_range_cf_opt(&self.family(family)?, from, to, &options)?)
    }

    fn set_option(&mut self, family: &str, name: &str, value: &str) -> Said<()> {
        let cf = self.family(family)?;
        // Options common to both kinds of tables apply to the kind that is written.
        let tph = name == "block_based_table_factory" && self.writes_tph(&cf);
        Ok(self.db.set_options_cf(&cf, &[(if tph { "tph_table_factory" } else { name }, value)])?)
    }

    fn set_db_option(&mut self, name: &str, value: &str) -> Said<Option<()>> {
        Ok(Some(self.db.set_db_options(&[(name, value)])?))
    }

    fn write_table(&mut self, kind: Kind, path: &Path, ops: &[Op]) -> Said<()> {
        let options = kind.options(&self.options);
        let mut writer = match self.ttl {
            Some(_) => SstFileWriter::create_with_ttl(&options),
            None => SstFileWriter::create(&options),
        };
        writer.open(path)?;
        for op in ops {
            match op {
                Op::Put(_, key, value) => writer.put(key, value)?,
                Op::Merge(_, key, value) => writer.merge(key, value)?,
                Op::Delete(_, key) => writer.delete(key)?,
                Op::DeleteRange(_, from, to) => writer.delete_range(from, to)?,
                Op::SingleDelete(..) | Op::LogData(_) => {}
            }
        }
        Ok(writer.finish()?)
    }

    fn ingest(&mut self, family: &str, files: &[PathBuf], moved: bool, behind: bool) -> Said<()> {
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(moved);
        options.set_ingest_behind(behind);
        options.set_values_with_times(self.ttl.is_some());
        Ok(self.db.ingest_external_file_cf_opts(&self.family(family)?, &options, files.to_vec())?)
    }

    fn create(&mut self, name: &str, kind: Kind) -> Said<()> {
        let options = kind.options(&self.options);
        match self.ttl {
            Some(ttl) => drop(self.db.create_cf_with_ttl(name, &options, ttl)?),
            None => drop(self.db.create_cf(name, &options)?),
        }
        Ok(())
    }

    fn drop_family(&mut self, name: &str) -> Said<()> {
        Ok(self.db.drop_cf(name)?)
    }

    fn names(&mut self) -> Vec<String> {
        self.db.cf_names()
    }

    fn flush_wal(&mut self, sync: bool) -> Said<()> {
        Ok(self.db.flush_wal(sync)?)
    }

    fn latest_sequence(&mut self) -> u64 {
        self.db.latest_sequence_number()
    }

    fn updates_since(&mut self, sequence: u64) -> Said<(Batches, Said<()>)> {
        let mut out = Vec::new();
        for update in self.db.get_updates_since(sequence)? {
            match update {
                Ok((at, batch)) => out.push((at, batch.data().to_vec())),
                Err(e) => return Ok((out, Err(e.into()))),
            }
        }
        Ok((out, Ok(())))
    }

    fn property(&mut self, family: &str, name: &str) -> Option<String> {
        self.db.property_value_cf(&self.family(family).ok()?, name).ok()?
    }

    fn checkpoint(&mut self, path: &Path, log_size: u64) -> Said<()> {
        Ok(Checkpoint::new(self.db)?.create_checkpoint_with_log_size(path, log_size)?)
    }
}
