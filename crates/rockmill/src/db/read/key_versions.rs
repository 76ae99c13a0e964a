//! Every version of every key, as tools show them (RocksDB's `GetAllKeyVersions`, and `ldb idump`).

use std::sync::Arc;

use rockmill_format::key::{MAX_SEQUENCE, ParsedInternalKey, VALUE_TYPE_FOR_SEEK, append_internal_key};
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use crate::db::catalog::super_version::SuperVersion;
use crate::db::read::iterator::{in_file, sorted_runs};
use crate::db::read::range_view::RangeView;
use crate::db::read::tables::CfTables;
use crate::db::{AsColumnFamilyRef, Db, DbInner, ReadOptions};
use crate::error::{Error, Result};
use crate::iter::InternalIterator;
use crate::iter::merging::MergingIterator;
use crate::version::TableSource;

/// One version of a key (RocksDB's `KeyVersion`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyVersion {
    /// The user key.
    pub user_key: Vec<u8>,
    /// The value or the merge operand; empty for a deletion. In a database with a time to live its last four bytes are
    /// the time of its writing.
    pub value: Vec<u8>,
    /// The number of the write.
    pub sequence: u64,
    /// RocksDB's number of the type (`db/dbformat.h`): 0 a deletion, 1 a value, 2 a merge operand, 7 a single deletion.
    pub value_type: u8,
}

/// The versions of a range of keys: by key in the order of the comparator, and the newest of each key first.
///
/// Made by [`Db::key_versions_cf`]. It sees the column family as it was then, and ends after an error.
pub struct KeyVersions<'a> {
    iter: Box<dyn InternalIterator>,
    view: RangeView,
    cmp: InternalKeyComparator,
    /// Later writes are left out.
    seq: SequenceNumber,
    to: Option<Vec<u8>>,
    ended: bool,
    /// Keeps what `iter` reads alive, and the database open.
    _pin: (Arc<SuperVersion>, &'a DbInner),
}

impl Db {
    /// Every version of the keys from `from` to the one before `to` that the column family still stores, deletions
    /// included (RocksDB's `GetAllKeyVersions`, whose end is inclusive). Versions that a range deletion hides are left
    /// out, as RocksDB leaves them out; the range deletion itself is no version of a key.
    ///
    /// For tools and tests: which old versions there are depends on flushes and compactions.
    pub fn key_versions_cf(
        &self,
        cf: &impl AsColumnFamilyRef,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<KeyVersions<'_>> {
        let inner = &self.inner;
        let cf = &cf.as_cf().data;
        inner.check_family(cf)?;
        let current = cf.current.load_full();
        let seq = inner.read_sequence(None)?;
        let tables: Arc<dyn TableSource> = Arc::new(CfTables::new(inner, cf));
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let runs = sorted_runs(&current, &tables, options.table(), &cf.cmp, None);
        let mut iter = MergingIterator::boxed(runs, cf.cmp.clone(), None);
        match from {
            None => iter.seek_to_first(),
            Some(from) => {
                let mut target = Vec::with_capacity(from.len() + 8);
                append_internal_key(&mut target, from, MAX_SEQUENCE, VALUE_TYPE_FOR_SEEK);
                iter.seek(&target);
            }
        }
        Ok(KeyVersions {
            iter,
            view: RangeView::new(&current, cf.cmp.clone(), seq, tables),
            cmp: cf.cmp.clone(),
            seq,
            to: to.map(<[u8]>::to_vec),
            ended: false,
            _pin: (current, inner),
        })
    }
}

impl KeyVersions<'_> {
    /// The next version that no range deletion hides; `None` at the end of the range.
    fn advance(&mut self) -> Result<Option<KeyVersion>> {
        while self.iter.valid() {
            let key = ParsedInternalKey::parse(self.iter.key())
                .map_err(|e| in_file(&*self.iter, Error::corruption(e.to_string())))?;
            if self.to.as_ref().is_some_and(|to| self.cmp.compare_user(key.user_key, to).is_ge()) {
                return Ok(None);
            }
            if key.sequence > self.seq || self.view.covers(key.user_key, key.sequence)? {
                self.iter.next();
                continue;
            }
            let (sequence, value_type) = (key.sequence, key.value_type as u8);
            let mut version = KeyVersion { user_key: key.user_key.to_vec(), value: Vec::new(), sequence, value_type };
            if !self.iter.prepare_value() {
                break;
            }
            version.value.extend_from_slice(self.iter.value());
            self.iter.next();
            return Ok(Some(version));
        }
        self.iter.status()?;
        Ok(None)
    }
}

impl Iterator for KeyVersions<'_> {
    type Item = Result<KeyVersion>;

    fn next(&mut self) -> Option<Result<KeyVersion>> {
        if self.ended {
            return None;
        }
        let next = self.advance().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
