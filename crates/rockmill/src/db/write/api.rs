//! What users call to write: each call checks its records, and hands them to `group.rs` as a batch.

use std::cell::RefCell;

use rockmill_format::batch::{BatchRecord, BatchRep};
use rockmill_format::block::ENTRY_LEN_MAX;
use rockmill_format::{InternalKeyComparator, ValueType};

use crate::db::write::group::Families;
use crate::db::{AsColumnFamilyRef, Db, WriteBatch};
use crate::error::{Error, Result};
use crate::front::entry_of;
use crate::options::WriteOptions;
use crate::range_del::refuse_hashed_range;

/// The most bytes of key and value together: an entry is in one block, which is addressed with 32 bits, and gets a few
/// more bytes on its way there (those of the internal key, a time to live).
const LENGTH_MAX: usize = ENTRY_LEN_MAX - 64;

crate::sync::thread_local! {
    /// The batch that single-record writes are built in; kept for its memory.
    static SCRATCH: RefCell<BatchRep> = RefCell::new(BatchRep::default());
}

/// Keeps the scratch batch from holding on to the memory of one huge value.
const SCRATCH_KEEP_BYTES: usize = 1 << 20;

/// A range of keys to delete, in the column family's order.
fn check_range(cmp: &InternalKeyComparator, begin: &[u8], end: &[u8]) -> Result<()> {
    refuse_hashed_range(cmp, "delete_range")?;
    match cmp.compare_user(begin, end).is_gt() {
        true => Err(Error::invalid_argument("delete_range: the end comes before the start")),
        false => Ok(()),
    }
}

#[inline]
fn check_length(key: &[u8], value: &[u8]) -> Result<()> {
    let len = key.len().saturating_add(value.len());
    if len > LENGTH_MAX { Err(too_long(len)) } else { Ok(()) }
}

#[cold]
fn too_long(len: usize) -> Error {
    Error::invalid_argument(format!("key and value are too large together: {len} bytes, and the limit is {LENGTH_MAX}"))
}

impl Db {
    fn write_one(&self, record: BatchRecord<'_>, options: &WriteOptions) -> Result<()> {
        self.inner.check_writable()?;
        let (_, _, key, value) = entry_of(&record).ok_or_else(|| Error::invalid_argument("an empty record"))?;
        check_length(key, value)?;
        SCRATCH.with(|scratch| {
            // A user's comparator or clock that writes to a database would find the scratch batch in use.
            let Ok(mut rep) = scratch.try_borrow_mut() else {
                let mut rep = BatchRep::default();
                rep.push(record);
                return self.inner.write_rep(&mut rep, options);
            };
            rep.clear();
            rep.push(record);
            let done = self.inner.write_rep(&mut rep, options);
            if rep.len_bytes() > SCRATCH_KEEP_BYTES {
                *rep = BatchRep::default();
            }
            done
        })
    }

    fn live(&self, cf: &impl AsColumnFamilyRef) -> Result<u32> {
        let cf = cf.as_cf();
        self.inner.check_family(&cf.data)?;
        if cf.data.is_dropped() {
            // RocksDB's error kind for a write to a column family that does not exist.
            let what = format!("column family {:?} was dropped", cf.data.name);
            return Err(Error::invalid_argument(what));
        }
        Ok(cf.id())
    }

    /// Sets `key` to `value`.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_opt(key, value, &WriteOptions::default())
    }

    /// Sets `key` to `value`.
    pub fn put_opt(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: &WriteOptions) -> Result<()> {
        self.write_one(BatchRecord::Put { cf: 0, key: key.as_ref(), value: value.as_ref() }, options)
    }

    /// Sets `key` to `value` in a column family.
    pub fn put_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_cf_opt(cf, key, value, &WriteOptions::default())
    }

    /// Sets `key` to `value` in a column family.
    pub fn put_cf_opt(
        &self,
        cf: &impl AsColumnFamilyRef,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<()> {
        let cf = self.live(cf)?;
        self.write_one(BatchRecord::Put { cf, key: key.as_ref(), value: value.as_ref() }, options)
    }

    /// Deletes `key`; fine if it is not there.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_opt(key, &WriteOptions::default())
    }

    /// Deletes `key`; fine if it is not there.
    pub fn delete_opt(&self, key: impl AsRef<[u8]>, options: &WriteOptions) -> Result<()> {
        self.write_one(BatchRecord::Delete { cf: 0, key: key.as_ref() }, options)
    }

    /// Deletes `key` from a column family.
    pub fn delete_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_cf_opt(cf, key, &WriteOptions::default())
    }

    /// Deletes `key` from a column family.
    pub fn delete_cf_opt(
        &self,
        cf: &impl AsColumnFamilyRef,
        key: impl AsRef<[u8]>,
        options: &WriteOptions,
    ) -> Result<()> {
        let cf = self.live(cf)?;
        self.write_one(BatchRecord::Delete { cf, key: key.as_ref() }, options)
    }

    /// Deletes `key`, which was put at most once since it was last deleted.
    pub fn single_delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write_one(BatchRecord::SingleDelete { cf: 0, key: key.as_ref() }, &WriteOptions::default())
    }

    /// Deletes `key`, which was put at most once since it was last deleted, from a column family.
    pub fn single_delete_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) -> Result<()> {
        let cf = self.live(cf)?;
        self.write_one(BatchRecord::SingleDelete { cf, key: key.as_ref() }, &WriteOptions::default())
    }

    /// Adds a merge operand; the column family's merge operator applies it to the value when the key is read. Without
    /// an operator, reading the key fails until it is overwritten or deleted.
    pub fn merge(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let record = BatchRecord::Merge { cf: 0, key: key.as_ref(), value: value.as_ref() };
        self.write_one(record, &WriteOptions::default())
    }

    /// Adds a merge operand in a column family; see [`Self::merge`].
    pub fn merge_cf(&self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let cf = self.live(cf)?;
        let record = BatchRecord::Merge { cf, key: key.as_ref(), value: value.as_ref() };
        self.write_one(record, &WriteOptions::default())
    }

    /// Deletes every key in `[from, to)` of a column family. `from` after `to` is an error.
    pub fn delete_range_cf(
        &self,
        cf: &impl AsColumnFamilyRef,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
    ) -> Result<()> {
        let id = self.live(cf)?;
        let (begin, end) = (from.as_ref(), to.as_ref());
        check_range(&cf.as_cf().data.cmp, begin, end)?;
        self.write_one(BatchRecord::DeleteRange { cf: id, begin, end }, &WriteOptions::default())
    }

    /// Applies a batch, all of it or nothing.
    pub fn write(&self, batch: &WriteBatch) -> Result<()> {
        self.write_opt(batch, &WriteOptions::default())
    }

    /// Applies a batch without the WAL.
    pub fn write_without_wal(&self, batch: &WriteBatch) -> Result<()> {
        self.write_opt(batch, &WriteOptions { disable_wal: true, ..WriteOptions::default() })
    }

    /// Applies a batch, all of it or nothing.
    pub fn write_opt(&self, batch: &WriteBatch, options: &WriteOptions) -> Result<()> {
        self.inner.check_writable()?;
        if let Some(e) = &batch.refused {
            return Err(e.clone());
        }
        if let Some((opening, id)) = batch.family
            && opening != self.inner.opened.number()
        {
            return Err(Error::invalid_argument(format!(
                "{}: the write batch was given the handle of a column family (id {id}) of another database, or of an \
                 earlier opening of this one",
                self.inner.path.display()
            )));
        }
        let mut families = Families::of(&self.inner);
        for record in batch.rep.iter() {
            let record = record.map_err(|e| Error::corruption(format!("write batch: {e}")))?;
            let Some((cf, t, key, value)) = entry_of(&record) else { continue };
            let Some(cf) = families.get(cf) else {
                if options.ignore_missing_column_families {
                    continue; // the insertion passes it over, too
                }
                return Err(Error::invalid_argument(format!(
                    "the write batch names column family {cf}, which does not exist"
                )));
            };
            check_length(key, value)?;
            if t == ValueType::RangeDeletion {
                check_range(&cf.data.cmp, key, value)?;
            }
        }
        drop(families);
        self.inner.write_shared(&batch.rep, options)
    }

    /// Hands the records that `manual_wal_flush` keeps in memory to the kernel, so that they survive the process, and
    /// with `sync` makes every write so far durable.
    pub fn flush_wal(&self, sync: bool) -> Result<()> {
        let db = &self.inner;
        db.check_writable()?;
        let _alone = db.lead_alone();
        db.flush_wal_as_leader(sync, false)
    }

    /// Makes every write so far durable; the same as [`Self::flush_wal`] with `sync` (RocksDB's `SyncWAL`).
    pub fn sync_wal(&self) -> Result<()> {
        self.flush_wal(true)
    }
}
