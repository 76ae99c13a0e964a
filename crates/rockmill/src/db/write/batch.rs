//! Write batches as users build them.

use rockmill_format::batch::{BatchRecord, BatchRep, MAX_SLICE_LEN};

use crate::db::catalog::column_family::AsColumnFamilyRef;
use crate::error::{Error, ErrorKind, Result};

/// Updates that are applied together or not at all (`rocksdb::WriteBatch`).
///
/// A batch that was given handles of column families can be written only to the database, in its present opening, that
/// the handles are of; any other refuses it. A batch without handles, or one made from [`Self::data`] of another, can
/// be written to any database.
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    pub(crate) rep: BatchRep,
    /// Why the batch cannot be written: an update was longer than the format's length fields allow, or there was one
    /// update too many for the count. The update calls return nothing, as in the `rocksdb` crate, so the write reports
    /// this.
    pub(crate) refused: Option<Error>,
    /// The opening of the database whose column family handles the batch was given, and the id of the first one.
    pub(crate) family: Option<(u64, u32)>,
    /// Length in bytes and count at each save point, whether the batch was refused then, and its `family`.
    save_points: Vec<SavePoint>,
}

type SavePoint = (usize, u32, bool, Option<(u64, u32)>);

/// Gets the updates of a batch in their order, without column families (`rocksdb::WriteBatchIterator`).
pub trait WriteBatchIterator {
    /// `key` was set to `value`.
    fn put(&mut self, key: &[u8], value: &[u8]);
    /// `key` was deleted.
    fn delete(&mut self, key: &[u8]);
    /// An operand was added to `key`.
    fn merge(&mut self, _key: &[u8], _value: &[u8]) {}
    /// `key`, put at most once, was deleted.
    fn single_delete(&mut self, key: &[u8]) {
        self.delete(key);
    }
    /// Every key in `[begin, end)` was deleted.
    fn delete_range(&mut self, _begin: &[u8], _end: &[u8]) {}
    /// Bytes for the WAL only.
    fn log_data(&mut self, _data: &[u8]) {}
}

/// Gets the updates of a batch in their order, with the ids of column families (`rocksdb::WriteBatchIteratorCf`).
pub trait WriteBatchIteratorCf {
    /// `key` was set to `value`.
    fn put_cf(&mut self, cf_id: u32, key: &[u8], value: &[u8]);
    /// `key` was deleted.
    fn delete_cf(&mut self, cf_id: u32, key: &[u8]);
    /// An operand was added to `key`.
    fn merge_cf(&mut self, cf_id: u32, key: &[u8], value: &[u8]);
    /// `key`, put at most once, was deleted.
    fn single_delete_cf(&mut self, cf_id: u32, key: &[u8]) {
        self.delete_cf(cf_id, key);
    }
    /// Every key in `[begin, end)` was deleted.
    fn delete_range_cf(&mut self, _cf_id: u32, _begin: &[u8], _end: &[u8]) {}
    /// Bytes for the WAL only.
    fn log_data(&mut self, _data: &[u8]) {}
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A batch from its encoded form, as `data` gives it. The records are checked when it is written.
    pub fn from_data(data: &[u8]) -> Result<Self> {
        let rep = BatchRep::from_bytes(data.to_vec()).map_err(|e| Error::corruption(format!("write batch: {e}")))?;
        Ok(Self { rep, ..Self::default() })
    }

    /// A batch that was read from a WAL.
    pub(crate) fn from_rep(rep: BatchRep) -> Self {
        Self { rep, ..Self::default() }
    }

    /// The encoded form, as in the WAL.
    pub fn data(&self) -> &[u8] {
        self.rep.as_bytes()
    }

    /// Number of updates.
    pub fn len(&self) -> usize {
        self.rep.count() as usize
    }

    /// True without an update.
    pub fn is_empty(&self) -> bool {
        self.rep.count() == 0
    }

    /// Length of the encoded form, in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.rep.len_bytes()
    }

    /// Removes every update.
    pub fn clear(&mut self) {
        self.rep.clear();
        (self.refused, self.family) = (None, None);
        self.save_points.clear();
    }

    /// Remembers the batch as it is now, for [`Self::rollback_to_save_point`]. Save points stack.
    pub fn set_save_point(&mut self) {
        self.save_points.push((self.rep.len_bytes(), self.rep.count(), self.refused.is_some(), self.family));
    }

    /// Removes the updates added since the last save point, and the save point. `NotFound` without one.
    pub fn rollback_to_save_point(&mut self) -> Result<()> {
        let (len, count, refused, family) = self.last_save_point()?;
        self.rep.truncate(len, count);
        self.family = family;
        if !refused {
            self.refused = None;
        }
        Ok(())
    }

    /// Removes the last save point and keeps the updates added since. `NotFound` without one.
    pub fn pop_save_point(&mut self) -> Result<()> {
        self.last_save_point().map(drop)
    }

    fn last_save_point(&mut self) -> Result<SavePoint> {
        let none = || Error::new(ErrorKind::NotFound, "the write batch has no save point");
        self.save_points.pop().ok_or_else(none)
    }

    /// Gives the updates to `callbacks`. A batch from damaged bytes, or one that names a column family other than the
    /// default one, ends before the first such record; [`Self::iterate_cf`] has ids.
    pub fn iterate(&self, callbacks: &mut dyn WriteBatchIterator) {
        for record in self.rep.iter() {
            match record {
                Ok(BatchRecord::Put { cf: 0, key, value }) => callbacks.put(key, value),
                Ok(BatchRecord::Delete { cf: 0, key }) => callbacks.delete(key),
                Ok(BatchRecord::SingleDelete { cf: 0, key }) => callbacks.single_delete(key),
                Ok(BatchRecord::Merge { cf: 0, key, value }) => callbacks.merge(key, value),
                Ok(BatchRecord::DeleteRange { cf: 0, begin, end }) => callbacks.delete_range(begin, end),
                Ok(BatchRecord::LogData(data)) => callbacks.log_data(data),
                Ok(BatchRecord::Noop) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Gives the updates with their column families to `callbacks`. A batch from damaged bytes ends before the damage.
    pub fn iterate_cf(&self, callbacks: &mut dyn WriteBatchIteratorCf) {
        for record in self.rep.iter() {
            match record {
                Ok(BatchRecord::Put { cf, key, value }) => callbacks.put_cf(cf, key, value),
                Ok(BatchRecord::Delete { cf, key }) => callbacks.delete_cf(cf, key),
                Ok(BatchRecord::SingleDelete { cf, key }) => callbacks.single_delete_cf(cf, key),
                Ok(BatchRecord::Merge { cf, key, value }) => callbacks.merge_cf(cf, key, value),
                Ok(BatchRecord::DeleteRange { cf, begin, end }) => callbacks.delete_range_cf(cf, begin, end),
                Ok(BatchRecord::LogData(data)) => callbacks.log_data(data),
                Ok(BatchRecord::Noop) => {}
                Err(_) => return,
            }
        }
    }

    fn push(&mut self, record: BatchRecord<'_>) {
        if record.fits() && self.rep.count() < u32::MAX {
            self.rep.push(record);
        } else if self.refused.is_none() {
            self.refused = Some(Error::invalid_argument(if record.fits() {
                format!("the write batch has too many updates: the limit is {}", u32::MAX)
            } else {
                format!("a key or value in the write batch is too large: the limit is {MAX_SLICE_LEN} bytes")
            }));
        }
    }

    /// The id of a column family; also notes which database it belongs to.
    #[inline]
    fn of(&mut self, cf: &impl AsColumnFamilyRef) -> u32 {
        let (opening, id) = (cf.as_cf().data.opening, cf.as_cf().id());
        let (first, _) = *self.family.get_or_insert((opening, id));
        if first != opening && self.refused.is_none() {
            self.refused = Some(Error::invalid_argument(format!(
                "the write batch was given handles of one database and of another database (or of two openings of one): \
                 {:?} (id {id}) is not of the first",
                cf.as_cf().name()
            )));
        }
        id
    }

    /// Sets `key` to `value` in the default column family.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(BatchRecord::Put { cf: 0, key: key.as_ref(), value: value.as_ref() });
    }

    /// Sets `key` to `value`.
    pub fn put_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let cf = self.of(cf);
        self.push(BatchRecord::Put { cf, key: key.as_ref(), value: value.as_ref() });
    }

    /// Adds a merge operand in the default column family.
    pub fn merge(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(BatchRecord::Merge { cf: 0, key: key.as_ref(), value: value.as_ref() });
    }

    /// Adds a merge operand.
    pub fn merge_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let cf = self.of(cf);
        self.push(BatchRecord::Merge { cf, key: key.as_ref(), value: value.as_ref() });
    }

    /// Deletes `key` in the default column family.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(BatchRecord::Delete { cf: 0, key: key.as_ref() });
    }

    /// Deletes `key`.
    pub fn delete_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) {
        let cf = self.of(cf);
        self.push(BatchRecord::Delete { cf, key: key.as_ref() });
    }

    /// Deletes `key`, which was put at most once since it was last deleted, in the default column family.
    pub fn single_delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(BatchRecord::SingleDelete { cf: 0, key: key.as_ref() });
    }

    /// Deletes `key`, which was put at most once since it was last deleted.
    pub fn single_delete_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) {
        let cf = self.of(cf);
        self.push(BatchRecord::SingleDelete { cf, key: key.as_ref() });
    }

    /// Deletes every key in `[from, to)` in the default column family.
    pub fn delete_range(&mut self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.push(BatchRecord::DeleteRange { cf: 0, begin: from.as_ref(), end: to.as_ref() });
    }

    /// Deletes every key in `[from, to)`.
    pub fn delete_range_cf(&mut self, cf: &impl AsColumnFamilyRef, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        let cf = self.of(cf);
        self.push(BatchRecord::DeleteRange { cf, begin: from.as_ref(), end: to.as_ref() });
    }

    /// Adds bytes that go into the WAL and change nothing.
    pub fn put_log_data(&mut self, data: impl AsRef<[u8]>) {
        self.push(BatchRecord::LogData(data.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_update_too_many_for_the_count_is_refused_by_the_write() {
        let mut header = [0; 12];
        header[8..].fill(0xff);
        let mut batch = WriteBatch::from_data(&header).unwrap();
        assert_eq!(batch.len(), u32::MAX as usize);
        batch.set_save_point();
        batch.put("k", "v");
        batch.delete("k");
        let e = batch.refused.clone().expect("it is refused");
        assert!(e.to_string().contains("too many updates"), "{e}");
        assert_eq!(batch.data(), header, "nothing was added");
        batch.rollback_to_save_point().unwrap();
        assert_eq!(batch.refused, None);
    }
}
