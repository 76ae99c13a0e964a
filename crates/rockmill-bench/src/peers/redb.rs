//! redb in the benchmark: one table, a transaction per batch. A B-tree: no background compaction, no levels, no log;
//! without `--sync`, commits are not durable, except for one durable commit at the end of the run.

use std::path::Path;

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};

use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::store::{Session, Sought, Store};

/// The version with which the crate is built.
pub(crate) const VERSION: &str = "4";
const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bench");

fn failed(e: impl std::fmt::Display) -> Error {
    Error::Run(format!("redb: {e}"))
}

/// An open redb database.
pub(crate) struct RedbStore {
    db: Database,
    durability: Durability,
}

/// The settings passed to redb; the others are its defaults.
pub(crate) fn settings(f: &Flags) -> Vec<(String, String)> {
    let durability = if f.sync { "immediate" } else { "none, and one durable commit at the end" };
    let all = [("cache_size", f.cache_size.max(0).to_string()), ("durability", durability.to_owned())];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

impl RedbStore {
    /// Opens the database at `path`.
    pub fn open(f: &Flags, path: &Path) -> Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(f.cache_size.max(0) as usize);
        let db = builder.create(path.join("data.redb")).map_err(failed)?;
        // The table must exist before the first read.
        let begun = db.begin_write().map_err(failed)?;
        begun.open_table(TABLE).map(drop).map_err(failed)?;
        begun.commit().map_err(failed)?;
        Ok(Self { db, durability: if f.sync { Durability::Immediate } else { Durability::None } })
    }

    fn durable_commit(&self) -> Result<()> {
        self.db.begin_write().map_err(failed)?.commit().map_err(failed)
    }

    fn reader(&self) -> Result<ReadTransaction> {
        self.db.begin_read().map_err(failed)
    }
}

impl Store for RedbStore {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession { store: self, batch: vec![] }))
    }

    fn flush(&self) -> Result<()> {
        self.durable_commit()
    }

    fn compact(&self) -> Result<()> {
        // Its compaction needs exclusive access, which is impossible for a store shared by threads.
        self.durable_commit()
    }

    fn wait_for_compaction(&self) -> Result<()> {
        self.durable_commit()
    }

    fn stats(&self) -> Result<String> {
        let begun = self.db.begin_write().map_err(failed)?;
        let stats = begun.stats().map_err(failed)?;
        begun.abort().map_err(failed)?;
        Ok(format!("{stats:?}"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.durable_commit()
    }
}

struct RedbSession<'a> {
    store: &'a RedbStore,
    /// Keys with their values; without one: deletions.
    batch: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Session for RedbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.push((key.to_vec(), Some(value.to_vec())));
    }

    fn delete(&mut self, key: &[u8]) {
        self.batch.push((key.to_vec(), None));
    }

    fn merge(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Error::Run("redb has no merge operators".to_owned()))
    }

    fn commit(&mut self) -> Result<()> {
        let mut begun = self.store.db.begin_write().map_err(failed)?;
        begun.set_durability(self.store.durability).map_err(failed)?;
        {
            let mut table = begun.open_table(TABLE).map_err(failed)?;
            for (key, value) in self.batch.drain(..) {
                match value {
                    Some(value) => table.insert(key.as_slice(), value.as_slice()).map(drop).map_err(failed)?,
                    None => table.remove(key.as_slice()).map(drop).map_err(failed)?,
                }
            }
        }
        begun.commit().map_err(failed)
    }

    fn get(&mut self, key: &[u8], value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let table = self.store.reader()?.open_table(TABLE).map_err(failed)?;
        let got = table.get(key).map_err(failed)?;
        if let Some(v) = &got {
            value(v.value());
        }
        Ok(got.is_some())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>]) -> Result<(u64, u64)> {
        let table = self.store.reader()?.open_table(TABLE).map_err(failed)?;
        let (mut found, mut bytes) = (0, 0);
        for key in keys {
            if let Some(v) = table.get(key.as_slice()).map_err(failed)? {
                (found, bytes) = (found + 1, bytes + v.value().len() as u64);
            }
        }
        Ok((found, bytes))
    }

    fn seek(&mut self, key: &[u8], entries: u64) -> Result<Sought> {
        let table = self.store.reader()?.open_table(TABLE).map_err(failed)?;
        let mut out = Sought::default();
        for (i, entry) in table.range(key..).map_err(failed)?.enumerate() {
            let (k, v) = entry.map_err(failed)?;
            out.found |= i == 0 && k.value() == key;
            if out.entries == entries {
                break;
            }
            out.entries += 1;
            out.bytes += (k.value().len() + v.value().len()) as u64;
        }
        Ok(out)
    }

    fn scan(&mut self, reverse: bool, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<()> {
        let table = self.store.reader()?.open_table(TABLE).map_err(failed)?;
        let mut iter = table.iter().map_err(failed)?;
        while let Some(entry) = if reverse { iter.next_back() } else { iter.next() } {
            let (k, v) = entry.map_err(failed)?;
            if !visit((k.value().len() + v.value().len()) as u64)? {
                break;
            }
        }
        Ok(())
    }
}
