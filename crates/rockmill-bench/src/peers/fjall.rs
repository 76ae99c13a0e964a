//! fjall in the benchmark: one keyspace. It has no direct I/O and no merge operators; its journal is always on.

use std::path::Path;
use std::time::Duration;

use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::store::{Session, Sought, Store};

/// The version with which the crate is built.
pub(crate) const VERSION: &str = "3.1";

impl From<fjall::Error> for Error {
    fn from(e: fjall::Error) -> Self {
        Self::Run(format!("fjall: {e}"))
    }
}

/// An open fjall database.
pub(crate) struct FjallStore {
    db: Database,
    keys: Keyspace,
    sync: bool,
}

fn compression(f: &Flags) -> CompressionType {
    if f.compression_type == "none" { CompressionType::None } else { CompressionType::Lz4 }
}

/// The settings passed to fjall; the others are its defaults.
pub(crate) fn settings(f: &Flags) -> Vec<(String, String)> {
    let all = [
        ("cache_size", f.cache_size.max(0).to_string()),
        ("max_memtable_size", f.write_buffer_size.to_string()),
        ("data_block_size", f.block_size.to_string()),
        ("data_block_compression", format!("{:?}", compression(f))),
        ("filter_bits_per_key", f.bloom_bits.max(0.0).to_string()),
        ("worker_threads", f.max_background_jobs.max(1).to_string()),
        ("journal", if f.sync { "synced with every write" } else { "on, not synced" }.to_owned()),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

impl FjallStore {
    /// Opens the database at `path`.
    pub fn open(f: &Flags, path: &Path) -> Result<Self> {
        let db = Database::builder(path.join("data"))
            .cache_size(f.cache_size.max(0) as u64)
            .worker_threads(f.max_background_jobs.max(1) as usize)
            .open()?;
        let filter = match f.bloom_bits {
            bits if bits > 0.0 => {
                FilterPolicyEntry::Bloom(fjall::config::BloomConstructionPolicy::BitsPerKey(bits as f32))
            }
            _ => FilterPolicyEntry::None,
        };
        let keys = db.keyspace("bench", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(f.write_buffer_size as u64)
                .data_block_size_policy(BlockSizePolicy::all(f.block_size as u32))
                .data_block_compression_policy(CompressionPolicy::all(compression(f)))
                .filter_policy(FilterPolicy::all(filter))
        })?;
        Ok(Self { db, keys, sync: f.sync })
    }
}

impl Store for FjallStore {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession { store: self, batch: self.db.batch() }))
    }

    fn flush(&self) -> Result<()> {
        Ok(self.keys.rotate_memtable_and_wait()?)
    }

    fn compact(&self) -> Result<()> {
        self.keys.rotate_memtable_and_wait()?;
        Ok(self.keys.major_compact()?)
    }

    fn wait_for_compaction(&self) -> Result<()> {
        // It tells only what runs, not what is due: being idle for a while counts as done.
        let mut quiet = 0;
        while quiet < 10 {
            std::thread::sleep(Duration::from_millis(10));
            let busy = self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0;
            quiet = if busy { 0 } else { quiet + 1 };
        }
        Ok(())
    }

    fn stats(&self) -> Result<String> {
        Ok(format!(
            "tables {}, of them L0 {}; journals {}; compactions {}; disk {} bytes",
            self.keys.table_count(),
            self.keys.l0_table_count(),
            self.db.journal_count(),
            self.db.compactions_completed(),
            self.db.disk_space()?
        ))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.persist(PersistMode::Buffer)?)
    }
}

struct FjallSession<'a> {
    store: &'a FjallStore,
    batch: fjall::OwnedWriteBatch,
}

impl Session for FjallSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.insert(&self.store.keys, key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.remove(&self.store.keys, key);
    }

    fn merge(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Error::Run("fjall has no merge operators".to_owned()))
    }

    fn commit(&mut self) -> Result<()> {
        let mode = self.store.sync.then_some(PersistMode::SyncData);
        let batch = std::mem::replace(&mut self.batch, self.store.db.batch());
        Ok(batch.durability(mode).commit()?)
    }

    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let got = self.store.keys.get(key)?;
        if let Some(v) = &got {
            value(v);
        }
        Ok(got.is_some())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        let (mut found, mut bytes) = (0, 0);
        for key in keys {
            found += u64::from(self.get(key, &mut |v| bytes += v.len() as u64)?);
        }
        Ok((found, bytes))
    }

    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        let mut out = Sought::default();
        for (i, guard) in self.store.keys.range(key..).enumerate() {
            let (k, v) = guard.into_inner()?;
            out.found |= i == 0 && *k == *key;
            if out.entries == entries {
                break;
            }
            out.entries += 1;
            out.bytes += (k.len() + v.len()) as u64;
        }
        Ok(out)
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        let mut iter = self.store.keys.iter();
        while let Some(guard) = if reverse { iter.next_back() } else { iter.next() } {
            let (k, v) = guard.into_inner()?;
            if !visit((k.len() + v.len()) as u64)? {
                break;
            }
        }
        Ok(())
    }
}
