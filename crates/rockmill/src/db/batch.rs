//! Write batches as users build them.

use rockmill_format::batch::{BatchRecord, BatchRep, MAX_SLICE_LEN};

use super::column_family::AsColumnFamilyRef;
use crate::error::{Error, Result};

/// Updates that are applied together or not at all (`rocksdb::WriteBatch`).
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    pub(crate) rep: BatchRep,
    /// Why the batch cannot be written: an update was longer than the format's length fields can say. The update
    /// calls return nothing, as `rocksdb`'s do, so the write tells.
    pub(crate) refused: Option<Error>,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A batch from its encoded form, as `data` gives it. The records are checked when it is written.
    pub fn from_data(data: &[u8]) -> Result<Self> {
        let rep = BatchRep::from_bytes(data.to_vec()).map_err(|e| Error::corruption(format!("write batch: {e}")))?;
        Ok(Self { rep, refused: None })
    }

    /// A batch that was read from a WAL.
    pub(crate) fn from_rep(rep: BatchRep) -> Self {
        Self { rep, refused: None }
    }

    /// The encoded form, as it stands in the WAL.
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
        self.refused = None;
    }

    fn push(&mut self, record: BatchRecord<'_>) {
        if record.fits() {
            self.rep.push(record);
        } else if self.refused.is_none() {
            self.refused = Some(Error::invalid_argument(format!(
                "a key or value in the write batch is too large: the limit is {MAX_SLICE_LEN} bytes"
            )));
        }
    }

    /// Sets `key` to `value` in the default column family.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(BatchRecord::Put { cf: 0, key: key.as_ref(), value: value.as_ref() });
    }

    /// Sets `key` to `value`.
    pub fn put_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(BatchRecord::Put { cf: cf.as_cf().id(), key: key.as_ref(), value: value.as_ref() });
    }

    /// Adds a merge operand in the default column family.
    pub fn merge(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(BatchRecord::Merge { cf: 0, key: key.as_ref(), value: value.as_ref() });
    }

    /// Adds a merge operand.
    pub fn merge_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.push(BatchRecord::Merge { cf: cf.as_cf().id(), key: key.as_ref(), value: value.as_ref() });
    }

    /// Deletes `key` in the default column family.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(BatchRecord::Delete { cf: 0, key: key.as_ref() });
    }

    /// Deletes `key`.
    pub fn delete_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) {
        self.push(BatchRecord::Delete { cf: cf.as_cf().id(), key: key.as_ref() });
    }

    /// Deletes `key`, which was put at most once since it was last deleted, in the default column family.
    pub fn single_delete(&mut self, key: impl AsRef<[u8]>) {
        self.push(BatchRecord::SingleDelete { cf: 0, key: key.as_ref() });
    }

    /// Deletes `key`, which was put at most once since it was last deleted.
    pub fn single_delete_cf(&mut self, cf: &impl AsColumnFamilyRef, key: impl AsRef<[u8]>) {
        self.push(BatchRecord::SingleDelete { cf: cf.as_cf().id(), key: key.as_ref() });
    }

    /// Deletes every key in `[from, to)` in the default column family.
    pub fn delete_range(&mut self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.push(BatchRecord::DeleteRange { cf: 0, begin: from.as_ref(), end: to.as_ref() });
    }

    /// Deletes every key in `[from, to)`.
    pub fn delete_range_cf(&mut self, cf: &impl AsColumnFamilyRef, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        self.push(BatchRecord::DeleteRange { cf: cf.as_cf().id(), begin: from.as_ref(), end: to.as_ref() });
    }

    /// Adds bytes that stand in the WAL and change nothing.
    pub fn put_log_data(&mut self, data: impl AsRef<[u8]>) {
        self.push(BatchRecord::LogData(data.as_ref()));
    }
}
