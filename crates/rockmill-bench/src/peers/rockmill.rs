//! Rockmill as the benchmark sees it.

use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::sync::Arc;

use rockmill::internals::carry_options;
use rockmill::{
    BottommostLevelCompaction, ColumnFamily, ColumnFamilyDescriptor, CompactOptions, DBPath, Db, EngineParts, Env,
    MergeEngine, Options, OptionsLoader, ReadOptions, WriteBatch, WriteOptions, probe_kernel_engine, properties,
};
use rockmill_io::{CountingFileSystem, FileSystem, PosixFileSystem, SystemClock, ThrottledFileSystem};
use rockmill_offload::{Secrets, Workers, WorkersConfig};

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::store::{
    RunningNow, Session, Sought, Stalls, Store, TaskUse, WARM_UP, family_names, place_of, warm_up_entries,
};

/// An open Rockmill database.
pub(crate) struct RockmillStore {
    db: Db,
    /// The default column family first.
    families: Vec<ColumnFamily>,
    write: WriteOptions,
    read: ReadOptions,
    counting: Option<CountingFileSystem>,
    /// Values are in logs on a faster device.
    index_tables: bool,
}

/// Properties of index tables.
const INDEX_TABLE_NUMBERS: [&str; 9] = [
    properties::INDEX_MERGE_TRIGGER,
    properties::DATA_FLUSH_TRIGGER_SIZE,
    properties::LEVEL_CAPACITY_FACTOR,
    properties::INDEX_MERGE_QUEUE,
    properties::DATA_FLUSH_QUEUE_SIZE,
    properties::CUR_SIZE_ALL_MEM_TABLES,
    properties::INDEX_SCHEDULE_CHANGES_CORE,
    properties::INDEX_SCHEDULE_CHANGES_DEVICE,
    properties::INDEX_SCHEDULE_CHANGES_IDLE,
];

/// The engine of this name.
pub(crate) fn engine(name: &str) -> Result<MergeEngine> {
    MergeEngine::ALL.into_iter().find(|e| e.name() == name).ok_or_else(|| {
        let names = MergeEngine::ALL.map(MergeEngine::name).join(", ");
        Error::Usage(format!("--engine={name}: there are {names}"))
    })
}

/// A note about the effective engine on this machine, if it is not obvious. Refuses an unavailable engine, because
/// another one would do its work.
pub(crate) fn engine_note(flags: &Flags, options_text: &str) -> Result<Option<String>> {
    let probe = PosixFileSystem::default().batch_probe();
    let refuse = |name: &str, why: &str| {
        Err(Error::Run(format!("--engine={name} is not available on this machine: {why}; --engine=auto uses another")))
    };
    match engine(&flags.engine)? {
        MergeEngine::Pread => Ok(None),
        MergeEngine::Auto if probe.available => Ok(Some("engine auto: uring".to_owned())),
        MergeEngine::Auto => Ok(Some(format!("engine auto: pread, for want of uring: {}", probe.reason))),
        MergeEngine::Uring if probe.available => Ok(None),
        MergeEngine::Uring => refuse("uring", &probe.reason),
        MergeEngine::Kernel => match probe_kernel_engine(options(flags, options_text)?.db.kernel_driver) {
            Ok(()) => Ok(None),
            Err(e) => refuse("kernel", &e.to_string()),
        },
        other => refuse(other.name(), "the benchmark does not know it"),
    }
}

/// The options of the flags and the text.
pub(crate) fn options(flags: &Flags, options_text: &str) -> Result<Options> {
    let mut o =
        Options::from_string(&Options::default(), options_text).map_err(|e| Error::Usage(format!("Rockmill: {e}")))?;
    if flags.statistics {
        o.enable_statistics();
    }
    o.set_merge_engine(engine(&flags.engine)?);
    Ok(o)
}

/// Sets the paths on the faster device, according to the flags.
fn set_paths(options: &mut Options, flags: &Flags, dir: &Path) -> Result<()> {
    if flags.fast_capacity.0 > 0 {
        options.set_fast_path(&flags.fast_path, flags.fast_capacity.0);
    } else if !flags.fast_path.is_empty() {
        options.set_wal_dir(&flags.fast_path);
        let paths = flags.table_paths(dir).into_iter().map(|(path, bytes)| DBPath::new(path, bytes));
        options.set_db_paths(&paths.collect::<std::result::Result<Vec<_>, _>>()?);
    }
    Ok(())
}

/// Delegates compactions to the workers that the flags name.
fn set_workers(options: &mut Options, flags: &Flags) -> Result<()> {
    if flags.compaction_workers.is_empty() {
        return Ok(());
    }
    let usage = |e: &dyn std::fmt::Display| Error::Usage(format!("--compaction_workers: {e}"));
    let addresses = flags.compaction_workers.split(',').map(|address| {
        let found = address.to_socket_addrs().map_err(|e| usage(&format_args!("{address:?}: {e}")))?.next();
        found.ok_or_else(|| usage(&format_args!("{address:?} is not an address and port")))
    });
    let secrets = match flags.worker_secrets.as_str() {
        "" => None,
        path => {
            let bad = |e: &dyn std::fmt::Display| Error::Usage(format!("--worker_secrets: {path}: {e}"));
            let text = rockmill_offload::read_private(Path::new(path)).map_err(|e| bad(&e))?;
            Some(Secrets::parse(&text).map_err(|e| bad(&e))?)
        }
    };
    let config = WorkersConfig {
        secrets,
        allow_unauthenticated: flags.allow_unauthenticated,
        input_bytes_min: flags.worker_input_min.0,
        here_first: flags.worker_here_first,
        jobs_max: flags.worker_jobs,
        ..WorkersConfig::new(addresses.collect::<Result<_>>()?)
    };
    let workers = Workers::new(config, Arc::new(SystemClock::default()));
    let workers = workers.map_err(|e| usage(&format_args!("{e} (--worker_secrets, --allow_unauthenticated)")))?;
    options.set_compaction_workers(workers);
    Ok(())
}

/// Leaves names of objects that a database has and the benchmark does not in the OPTIONS file that opening writes.
fn keep_names(options: &mut Options, path: &Path) {
    if let Ok(stored) = OptionsLoader::new().load_latest(path) {
        carry_options(options, stored.options);
    }
}

impl RockmillStore {
    /// Opens the database at `path`. With `count`, calls of the I/O layer are counted.
    pub fn open(flags: &Flags, options_text: &str, path: &Path, count: bool) -> Result<Self> {
        let mut options = options(flags, options_text)?;
        set_paths(&mut options, flags, path)?;
        set_workers(&mut options, flags)?;
        if flags.use_existing_db {
            keep_names(&mut options, path);
        }
        let mut fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::default());
        let model = flags.device_model();
        let slowed = !model.is_unlimited();
        if slowed {
            fs = Arc::new(ThrottledFileSystem::new(fs, model, Arc::new(SystemClock::default())));
        }
        let counting = count.then(|| CountingFileSystem::new(Arc::clone(&fs)));
        if let Some(counting) = &counting {
            fs = Arc::new(counting.clone());
        }
        if slowed || count {
            options.set_env(&Env::from_parts(fs, Arc::new(SystemClock::default())));
        }
        let names = family_names(flags);
        options.create_missing_column_families(names.len() > 1);
        let families = names.iter().map(|name| ColumnFamilyDescriptor::new(name, options.clone()));
        let db = Db::open_cf_descriptors(&options, path, families)?;
        let families = names.iter().filter_map(|name| db.cf_handle(name)).collect();
        let mut write = WriteOptions::default();
        write.set_sync(flags.sync);
        write.disable_wal(flags.disable_wal);
        let mut read = ReadOptions::default();
        read.set_verify_checksums(flags.verify_checksum);
        read.set_async_io(flags.async_io);
        Ok(Self { db, families, write, read, counting, index_tables: flags.fast_capacity.0 > 0 })
    }

    /// Deletes the database at `path`, if there is one.
    pub fn destroy(flags: &Flags, path: &Path) -> Result<()> {
        let mut options = Options::default();
        set_paths(&mut options, flags, path)?;
        Ok(Db::destroy(&options, path)?)
    }

    fn number(&self, property: &str) -> Result<u64> {
        Ok(self.db.property_int_value(property)?.unwrap_or(0))
    }

    #[inline]
    fn family(&self, key: &[u8]) -> &ColumnFamily {
        &self.families[place_of(key, self.families.len())]
    }
}

/// Tables in a separate column family, merged by one job and dropped: the store has then done all setup of its first
/// job.
fn merge_elsewhere(db: &Db, inputs: usize, write: &WriteOptions) -> std::result::Result<(), rockmill::Error> {
    let mut options = Options::default();
    options.set_disable_auto_compactions(true);
    let cf = db.create_cf(WARM_UP, &options)?;
    for i in 0..inputs {
        for (key, value) in warm_up_entries(i) {
            db.put_cf_opt(&cf, key, value, write)?;
        }
        db.flush_cf(&cf)?;
    }
    db.compact_range_cf(&cf, None::<&[u8]>, None::<&[u8]>)?;
    db.drop_cf(WARM_UP)
}

impl Store for RockmillStore {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RockmillSession { store: self, batch: WriteBatch::new() }))
    }

    fn flush(&self) -> Result<()> {
        Ok(self.families.iter().try_for_each(|cf| self.db.flush_cf(cf))?)
    }

    fn compact(&self) -> Result<()> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::IfHaveCompactionFilter);
        let compact = |cf| self.db.compact_range_cf_opt(cf, None::<&[u8]>, None::<&[u8]>, &options);
        Ok(self.families.iter().try_for_each(compact)?)
    }

    fn warm_up(&self, inputs: usize) -> Result<()> {
        Ok(merge_elsewhere(&self.db, inputs, &self.write)?)
    }

    fn wait_for_compaction(&self) -> Result<()> {
        // Properties that are queried one after the other can all be 0 between two jobs. They do not show deferred work
        // either.
        Ok(self.db.wait_for_background_work()?)
    }

    fn stalls(&self) -> Result<Stalls> {
        let reason = self.db.property_value("rockmill.write-stall-reason")?.unwrap_or_default();
        Ok(Stalls {
            delayed_micros: self.number("rockmill.stall-delayed-micros")?,
            stopped_micros: self.number("rockmill.stall-stopped-micros")?,
            reason: if reason == "none" { String::new() } else { reason },
            counts: vec![],
        })
    }

    fn levels(&self) -> Result<Vec<u64>> {
        Ok(self.db.get_column_family_metadata().levels.iter().map(|l| l.size).collect())
    }

    fn running_jobs(&self) -> RunningNow {
        let (mut jobs, mut threads) = (vec![0], 0);
        for job in self.db.running_jobs() {
            let place = job.start_level.map_or(0, |level| level + 1);
            jobs.resize(jobs.len().max(place + 1), 0);
            jobs[place] += 1;
            if place > 0 {
                threads += job.parts.max(1);
            }
        }
        RunningNow { jobs, threads }
    }

    fn tasks(&self) -> Vec<TaskUse> {
        // Running jobs first: a job that ends meanwhile is counted twice, but never lost.
        let (mut flushes, mut compactions) = ((0, 0), (0, 0));
        for job in self.db.running_jobs() {
            let sum = if job.start_level.is_some() { &mut compactions } else { &mut flushes };
            *sum = (sum.0 + job.micros, sum.1 + job.bytes_done);
        }
        let c = self.db.counters();
        vec![
            TaskUse {
                name: "append",
                busy_micros: c.wal_sync_micros,
                bytes_in: c.bytes_written,
                bytes_out: c.wal_bytes,
                ..TaskUse::default()
            },
            TaskUse { name: "index merge", busy_micros: c.index_merge_micros, ..TaskUse::default() },
            TaskUse {
                name: "flush",
                busy_micros: c.flush_micros + flushes.0,
                cpu_micros: Some(c.flush_cpu_micros),
                bytes_in: c.flush_input_bytes + flushes.1,
                bytes_out: c.flush_bytes,
            },
            TaskUse {
                name: "compaction",
                busy_micros: c.compact_micros + compactions.0,
                cpu_micros: Some(c.compact_cpu_micros),
                bytes_in: c.compact_read_bytes + compactions.1,
                bytes_out: c.compact_write_bytes,
            },
        ]
    }

    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let of = |name: &&'static str| Some((*name, self.db.property_int_value(*name).ok()??));
        if self.index_tables { INDEX_TABLE_NUMBERS.iter().filter_map(of).collect() } else { vec![] }
    }

    fn stats(&self) -> Result<String> {
        let stats = self.db.property_value(properties::STATS)?.unwrap_or_default();
        let statistics = self.db.property_value(properties::OPTIONS_STATISTICS)?.unwrap_or_default();
        Ok(if statistics.is_empty() { stats } else { format!("{stats}\nSTATISTICS:\n{statistics}") })
    }

    fn counted_calls(&self) -> Option<Vec<(&'static str, u64)>> {
        Some(self.counting.as_ref()?.counts().calls_by_kind().collect())
    }

    fn engine_parts(&self) -> Option<EngineParts> {
        Some(self.db.engine_parts())
    }

    fn engine_text(&self) -> Option<String> {
        let engine = self.db.property_value(properties::MERGE_ENGINE).ok().flatten()?;
        let c = self.db.counters();
        let workers = c.compactions_elsewhere + c.compactions_returned > 0;
        Some(match workers {
            true => format!(
                "{engine}; workers did {} of {} compactions, and did not do {}",
                c.compactions_elsewhere, c.compactions, c.compactions_returned
            ),
            false => engine,
        })
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct RockmillSession<'a> {
    store: &'a RockmillStore,
    batch: WriteBatch,
}

impl Session for RockmillSession<'_> {
    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.put_cf(self.store.family(key), key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.delete_cf(self.store.family(key), key);
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.batch.merge_cf(self.store.family(key), key, operand);
        Ok(())
    }

    #[inline]
    fn commit(&mut self) -> Result<()> {
        let done = self.store.db.write_opt(&self.batch, &self.store.write);
        self.batch.clear();
        Ok(done?)
    }

    #[inline]
    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let got = self.store.db.get_pinned_cf_opt(self.store.family(key), key, &self.store.read)?;
        if let Some(pinned) = &got {
            value(pinned);
        }
        Ok(got.is_some())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        let (mut found, mut bytes) = (0, 0);
        for value in self.store.db.multi_get_opt(keys, &self.store.read) {
            if let Some(value) = value? {
                (found, bytes) = (found + 1, bytes + value.len() as u64);
            }
        }
        Ok((found, bytes))
    }

    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        let mut iter = self.store.db.raw_iterator_cf_opt(self.store.family(key), self.store.read.clone());
        iter.seek(key);
        let mut out = Sought { found: iter.key() == Some(key), ..Sought::default() };
        while out.entries < entries {
            let Some((k, v)) = iter.item() else { break };
            out.bytes += (k.len() + v.len()) as u64;
            out.entries += 1;
            iter.next();
        }
        iter.status()?;
        Ok(out)
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        for cf in &self.store.families {
            let mut iter = self.store.db.raw_iterator_cf_opt(cf, self.store.read.clone());
            if reverse {
                iter.seek_to_last()
            } else {
                iter.seek_to_first()
            }
            while let Some((k, v)) = iter.item() {
                if !visit((k.len() + v.len()) as u64)? {
                    return Ok(());
                }
                if reverse { iter.prev() } else { iter.next() }
            }
            iter.status()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rockmill::{ChecksumType, CompressionType};

    use super::*;
    use crate::settings::options_text;

    fn of(flags: &Flags) -> Result<Options> {
        options(flags, &options_text(flags, &[])?)
    }

    #[test]
    fn flags_become_options() {
        let flags = Flags {
            write_buffer_size: 1 << 20,
            bloom_bits: 10.0,
            cache_size: 0,
            compression_type: "ZSTD".to_owned(),
            checksum_type: 1,
            use_direct_reads: true,
            max_background_jobs: 3,
            ..Flags::default()
        };
        let o = of(&flags).unwrap();
        assert_eq!(o.cf.write_buffer_size, 1 << 20);
        assert_eq!(o.cf.table.bloom_bits_per_key, 10.0);
        assert!(o.cf.table.no_block_cache && o.db.use_direct_reads);
        assert_eq!(o.cf.compression, CompressionType::Zstd);
        assert_eq!(o.cf.table.checksum, ChecksumType::Crc32c);
        assert_eq!(o.db.max_background_jobs, 3);
        let defaults = of(&Flags::default()).unwrap();
        assert_eq!(defaults.cf.table.bloom_bits_per_key, 0.0, "-1 is no filter");
        assert!(defaults.cf.table.block_cache.is_some());
    }

    /// Written and synced data cannot be complete before the device described by the flags would have accepted it.
    #[test]
    fn a_slowed_device_takes_its_time() {
        let args = ["--db=d", "--device_write=1M", "--device_read=2m", "--device_latency_us=100", "--sync"];
        let crate::flags::Command::Run(flags) = Flags::parse(args.map(str::to_owned)).unwrap() else { panic!("a run") };
        let model = flags.device_model();
        assert_eq!((model.read_bytes_per_second, model.write_bytes_per_second), (2 << 20, 1 << 20));
        let dir = tempfile::tempdir().unwrap();
        let text = options_text(&flags, &[]).unwrap();
        let store = RockmillStore::open(&flags, &text, dir.path(), true).unwrap();
        let began = std::time::Instant::now();
        for key in 0u64..4 {
            store.db.put_opt(key.to_be_bytes(), [b'v'; 64 << 10], &store.write).unwrap();
        }
        // A quarter of a second for 256 KiB of log.
        assert!(began.elapsed().as_millis() >= 240, "{:?}", began.elapsed());
        Box::new(store).close().unwrap();
        let peers = |spec: &str| {
            let args = ["--db=d", "--device_read=300M", spec].map(str::to_owned);
            let crate::flags::Command::Run(flags) = Flags::parse(args).unwrap() else { panic!("a run") };
            crate::peers::sides(&flags).map(|sides| sides.len()).map_err(|e| e.to_string())
        };
        assert_eq!(peers("--peer=rockmill,options_string=compaction_downforce=true"), Ok(2));
        assert!(Flags::parse(["--db=d", "--device_read=3X"].map(str::to_owned)).is_err());
    }

    #[test]
    fn bad_choices_are_named() {
        let bad = |f: Flags| of(&f).expect_err("a bad choice").to_string();
        assert!(bad(Flags { engine: "magic".into(), ..Flags::default() }).contains("magic"));
        for name in ["auto", "pread", "uring"] {
            let o = of(&Flags { engine: name.into(), ..Flags::default() }).unwrap();
            assert_eq!(o.db.merge_engine.name(), name);
        }
        let unknown = Flags { options_string: "no_such_option=1".into(), ..Flags::default() };
        assert!(bad(unknown).contains("no_such_option"));
    }
}
