//! Rockmill as the benchmark sees it.

use std::path::Path;
use std::time::Duration;

use rockmill::compaction::MergeEngine;
use rockmill::table::BlockCache;
use rockmill::{
    BlockBasedOptions, BottommostLevelCompaction, ChecksumType, CompactOptions, CompressionType, Db, Options,
    ReadOptions, WriteBatch, WriteOptions, properties,
};

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::store::{Session, Store};

/// An open Rockmill database.
pub struct RockmillStore {
    db: Db,
    write: WriteOptions,
    read: ReadOptions,
    auto_compactions: bool,
}

fn compression(name: &str) -> Result<CompressionType> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "none" => CompressionType::None,
        "snappy" => CompressionType::Snappy,
        "zlib" => CompressionType::Zlib,
        "lz4" => CompressionType::Lz4,
        "lz4hc" => CompressionType::Lz4hc,
        "zstd" => CompressionType::Zstd,
        _ => return Err(Error::Usage(format!("--compression_type={name}: none, snappy, zlib, lz4, lz4hc or zstd"))),
    })
}

fn engine(name: &str) -> Result<MergeEngine> {
    [MergeEngine::Auto, MergeEngine::Pread]
        .into_iter()
        .find(|e| e.name() == name)
        .ok_or_else(|| Error::Usage(format!("--engine={name}: auto or pread")))
}

/// The options that the flags ask for.
pub(crate) fn options(flags: &Flags) -> Result<Options> {
    let checksum = u8::try_from(flags.checksum_type).ok().and_then(ChecksumType::from_u8);
    let Some(checksum) = checksum else {
        return Err(Error::Usage(format!("--checksum_type={}: 0 to 4", flags.checksum_type)));
    };
    let mut table = BlockBasedOptions::default();
    table.set_block_size(flags.block_size);
    table.set_block_restart_interval(flags.block_restart_interval);
    table.set_format_version(flags.format_version);
    table.set_checksum_type(checksum);
    table.set_bloom_filter(flags.bloom_bits.max(0.0), false);
    if flags.cache_size > 0 {
        table.set_block_cache(&BlockCache::new(flags.cache_size as usize));
    } else {
        table.disable_cache();
    }
    let mut o = Options::default();
    o.create_if_missing(!flags.use_existing_db);
    if flags.statistics {
        o.enable_statistics();
    }
    o.set_block_based_table_factory(&table);
    o.set_max_open_files(flags.open_files);
    o.set_max_background_jobs(flags.max_background_jobs);
    o.set_max_subcompactions(flags.subcompactions);
    o.set_use_fsync(flags.use_fsync);
    o.set_use_direct_reads(flags.use_direct_reads);
    o.set_use_direct_io_for_flush_and_compaction(flags.use_direct_io_for_flush_and_compaction);
    o.set_bytes_per_sync(flags.bytes_per_sync);
    o.set_wal_bytes_per_sync(flags.wal_bytes_per_sync);
    o.set_compaction_readahead_size(flags.compaction_readahead_size);
    o.set_delayed_write_rate(flags.delayed_write_rate);
    o.set_writable_file_max_buffer_size(flags.writable_file_max_buffer_size);
    o.set_allow_concurrent_memtable_write(flags.allow_concurrent_memtable_write);
    o.set_merge_engine(engine(&flags.engine)?);
    o.set_write_buffer_size(flags.write_buffer_size);
    o.set_max_write_buffer_number(flags.max_write_buffer_number);
    o.set_min_write_buffer_number_to_merge(flags.min_write_buffer_number_to_merge);
    o.set_level_zero_file_num_compaction_trigger(flags.level0_file_num_compaction_trigger);
    o.set_level_zero_slowdown_writes_trigger(flags.level0_slowdown_writes_trigger);
    o.set_level_zero_stop_writes_trigger(flags.level0_stop_writes_trigger);
    o.set_num_levels(flags.num_levels);
    o.set_target_file_size_base(flags.target_file_size_base);
    o.set_target_file_size_multiplier(flags.target_file_size_multiplier);
    o.set_max_bytes_for_level_base(flags.max_bytes_for_level_base);
    o.set_max_bytes_for_level_multiplier(flags.max_bytes_for_level_multiplier);
    o.set_level_compaction_dynamic_level_bytes(flags.level_compaction_dynamic_level_bytes);
    o.set_soft_pending_compaction_bytes_limit(flags.soft_pending_compaction_bytes_limit);
    o.set_hard_pending_compaction_bytes_limit(flags.hard_pending_compaction_bytes_limit);
    o.set_disable_auto_compactions(flags.disable_auto_compactions);
    o.set_compression_type(compression(&flags.compression_type)?);
    Ok(o)
}

impl RockmillStore {
    /// Opens the database at `path`.
    pub fn open(flags: &Flags, path: &Path) -> Result<Self> {
        let db = Db::open(&options(flags)?, path)?;
        let write = WriteOptions { sync: flags.sync, disable_wal: flags.disable_wal, ..WriteOptions::default() };
        let mut read = ReadOptions::default();
        read.set_verify_checksums(flags.verify_checksum);
        Ok(Self { db, write, read, auto_compactions: !flags.disable_auto_compactions })
    }

    /// Deletes the database at `path`, if there is one.
    pub fn destroy(flags: &Flags, path: &Path) -> Result<()> {
        Ok(Db::destroy(&options(flags)?, path)?)
    }

    fn number(&self, property: &str) -> Result<u64> {
        Ok(self.db.property_int_value(property)?.unwrap_or(0))
    }
}

impl Store for RockmillStore {
    fn name(&self) -> &str {
        "rockmill"
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RockmillSession { store: self, batch: WriteBatch::new() }))
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn compact(&self) -> Result<()> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::IfHaveCompactionFilter);
        Ok(self.db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options)?)
    }

    fn wait_for_compaction(&self) -> Result<()> {
        const BUSY: [&str; 5] = [
            "rocksdb.num-immutable-mem-table",
            "rocksdb.mem-table-flush-pending",
            "rocksdb.num-running-flushes",
            "rocksdb.num-running-compactions",
            "rocksdb.compaction-pending",
        ];
        loop {
            if let Some(e) = self.db.background_error() {
                return Err(e.into());
            }
            let mut busy = 0;
            // Without automatic compactions, what is due stays due.
            let asked = if self.auto_compactions { &BUSY[..] } else { &BUSY[..BUSY.len() - 1] };
            for property in asked {
                busy += self.number(property)?;
            }
            if busy == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stall_micros(&self) -> Result<(u64, u64)> {
        Ok((self.number("rockmill.stall-delayed-micros")?, self.number("rockmill.stall-stopped-micros")?))
    }

    fn stall_reason(&self) -> Result<String> {
        Ok(self.db.property_value("rockmill.write-stall-reason")?.unwrap_or_default())
    }

    fn stats(&self) -> Result<String> {
        let stats = self.db.property_value(properties::STATS)?.unwrap_or_default();
        let statistics = self.db.property_value(properties::OPTIONS_STATISTICS)?.unwrap_or_default();
        Ok(if statistics.is_empty() { stats } else { format!("{stats}\nSTATISTICS:\n{statistics}") })
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
        self.batch.put(key, value);
    }

    #[inline]
    fn commit(&mut self) -> Result<()> {
        let done = self.store.db.write_opt(&self.batch, &self.store.write);
        self.batch.clear();
        Ok(done?)
    }

    #[inline]
    fn get(&mut self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.store.db.get_pinned_opt(key, &self.store.read)?.map(|value| value.len()))
    }

    fn seek(&mut self, key: &[u8], nexts: u64) -> Result<(bool, u64)> {
        let mut iter = self.store.db.raw_iterator_opt(self.store.read.clone());
        iter.seek(key);
        let found = iter.key() == Some(key);
        let mut bytes = 0;
        for step in 0..=nexts {
            let Some((k, v)) = iter.item() else { break };
            bytes += (k.len() + v.len()) as u64;
            if step < nexts {
                iter.next();
            }
        }
        iter.status()?;
        Ok((found, bytes))
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let mut iter = self.store.db.raw_iterator_opt(self.store.read.clone());
        if reverse {
            iter.seek_to_last()
        } else {
            iter.seek_to_first()
        }
        while let Some((k, v)) = iter.item() {
            if !visit((k.len() + v.len()) as u64) {
                break;
            }
            if reverse { iter.prev() } else { iter.next() }
        }
        Ok(iter.status()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let o = options(&flags).unwrap();
        assert_eq!(o.cf.write_buffer_size, 1 << 20);
        assert_eq!(o.cf.table.bloom_bits_per_key, 10.0);
        assert!(o.cf.table.no_block_cache && o.db.use_direct_reads);
        assert_eq!(o.cf.compression, CompressionType::Zstd);
        assert_eq!(o.cf.table.checksum, ChecksumType::Crc32c);
        assert_eq!(o.db.max_background_jobs, 3);
        let defaults = options(&Flags::default()).unwrap();
        assert_eq!(defaults.cf.table.bloom_bits_per_key, 0.0, "-1 is no filter");
        assert!(defaults.cf.table.block_cache.is_some());
    }

    #[test]
    fn bad_choices_are_named() {
        let bad = |f: Flags| options(&f).expect_err("a bad choice").to_string();
        assert!(bad(Flags { compression_type: "rar".into(), ..Flags::default() }).contains("rar"));
        assert!(bad(Flags { checksum_type: 9, ..Flags::default() }).contains("0 to 4"));
        assert!(bad(Flags { engine: "magic".into(), ..Flags::default() }).contains("magic"));
    }
}
