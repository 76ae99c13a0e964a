//! LMDB, through heed, in the benchmark: one database in a sufficiently large map. A B-tree in a memory map: no
//! compaction, no levels, no log, no own cache; without `--sync`, commits stay in the page cache.

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::store::{Session, Sought, Store};

/// The version of heed that the crate is built with.
pub(crate) const VERSION: &str = "0.9 (heed 0.22)";
/// Half-full pages and old versions take space: the map's size is this many times the data.
const MAP_FOR_DATA: f64 = 4.0;
const MAP_BYTES_MIN: usize = 1 << 30;
const PAGE: usize = 4096;

fn failed(e: heed::Error) -> Error {
    Error::Run(format!("LMDB: {e}"))
}

/// An open LMDB environment.
pub(crate) struct LmdbStore {
    env: Env<WithoutTls>,
    keys: Database<Bytes, Bytes>,
}

fn map_bytes(f: &Flags) -> usize {
    let entry = (f.key_size + f.value_size).max(24 + f.fieldcount * f.fieldlength) as f64 + 16.0;
    let bytes = (f.num as f64).max(f.records() as f64) * f.threads as f64 * entry * MAP_FOR_DATA;
    (bytes as usize).max(MAP_BYTES_MIN).next_multiple_of(PAGE)
}

/// The data passed to LMDB.
pub(crate) fn settings(f: &Flags) -> Vec<(String, String)> {
    let all = [
        ("map_size", map_bytes(f).to_string()),
        ("flags", if f.sync { "none" } else { "NO_SYNC" }.to_owned()),
        ("max_readers", (f.threads + 8).to_string()),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

impl LmdbStore {
    /// Opens the environment at `path`.
    pub fn open(f: &Flags, path: &Path) -> Result<Self> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes(f)).max_readers((f.threads + 8) as u32);
        if !f.sync {
            // SAFETY: the flag gives up durability after a crash of the machine, not memory safety.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: the folder is the benchmark's own, and nobody else changes the file while it is mapped.
        let env = unsafe { options.open(path) }.map_err(failed)?;
        let mut begun = env.write_txn().map_err(failed)?;
        let keys = env.create_database(&mut begun, None).map_err(failed)?;
        begun.commit().map_err(failed)?;
        Ok(Self { env, keys })
    }
}

impl Store for LmdbStore {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession { store: self, batch: vec![] }))
    }

    fn flush(&self) -> Result<()> {
        self.env.force_sync().map_err(failed)
    }

    fn compact(&self) -> Result<()> {
        self.flush()
    }

    fn wait_for_compaction(&self) -> Result<()> {
        self.flush()
    }

    fn stats(&self) -> Result<String> {
        let reader = self.env.read_txn().map_err(failed)?;
        Ok(format!("{:?}", self.keys.stat(&reader).map_err(failed)?))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.flush()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct LmdbSession<'a> {
    store: &'a LmdbStore,
    /// Keys with their values; without one: deletions.
    batch: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Session for LmdbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.push((key.to_vec(), Some(value.to_vec())));
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.push((key.to_vec(), None));
    }

    fn merge(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Error::Run("LMDB has no merge operators".to_owned()))
    }

    fn commit(&mut self) -> Result<()> {
        let mut begun = self.store.env.write_txn().map_err(failed)?;
        for (key, value) in self.batch.drain(..) {
            match value {
                Some(value) => self.store.keys.put(&mut begun, &key, &value).map_err(failed)?,
                None => self.store.keys.delete(&mut begun, &key).map(drop).map_err(failed)?,
            }
        }
        begun.commit().map_err(failed)
    }

    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let reader = self.store.env.read_txn().map_err(failed)?;
        let got = self.store.keys.get(&reader, key).map_err(failed)?;
        if let Some(v) = got {
            value(v);
        }
        Ok(got.is_some())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        let reader = self.store.env.read_txn().map_err(failed)?;
        let (mut found, mut bytes) = (0, 0);
        for key in keys {
            if let Some(v) = self.store.keys.get(&reader, key).map_err(failed)? {
                (found, bytes) = (found + 1, bytes + v.len() as u64);
            }
        }
        Ok((found, bytes))
    }

    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        let reader = self.store.env.read_txn().map_err(failed)?;
        let mut out = Sought::default();
        let bounds = (std::ops::Bound::Included(key), std::ops::Bound::Unbounded);
        for (i, entry) in self.store.keys.range(&reader, &bounds).map_err(failed)?.enumerate() {
            let (k, v) = entry.map_err(failed)?;
            out.found |= i == 0 && k == key;
            if out.entries == entries {
                break;
            }
            out.entries += 1;
            out.bytes += (k.len() + v.len()) as u64;
        }
        Ok(out)
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        let reader = self.store.env.read_txn().map_err(failed)?;
        let mut see = |entry: heed::Result<(&[u8], &[u8])>| -> Result<bool> {
            let (k, v) = entry.map_err(failed)?;
            visit((k.len() + v.len()) as u64)
        };
        if reverse {
            for entry in self.store.keys.rev_iter(&reader).map_err(failed)? {
                if !see(entry)? {
                    break;
                }
            }
        } else {
            for entry in self.store.keys.iter(&reader).map_err(failed)? {
                if !see(entry)? {
                    break;
                }
            }
        }
        Ok(())
    }
}
