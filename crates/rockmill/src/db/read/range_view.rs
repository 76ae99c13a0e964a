//! Range tombstones as an iterator over a column family sees them.
//!
//! For each source of tombstones (memtables, L0 files, deeper levels) the view keeps the stretch of keys around the
//! current one and the tombstones that apply there. The intersection of all stretches is called *quiet* if no source
//! has a tombstone in it; in a quiet stretch, a key costs one or two comparisons. Tables are opened only when a key
//! comes into their range; the point iterators do that anyway. Asking only inside a table's range also clips its
//! tombstones to that range, as RocksDB's truncated iterators do.

use std::sync::Arc;

use rockmill_format::key::{self, MAX_SEQUENCE, ValueType};
use rockmill_format::{InternalKeyComparator, SequenceNumber};

use crate::db::catalog::super_version::SuperVersion;
use crate::error::Result;
use crate::range_del::FragmentedRangeTombstones;
use crate::version::{FileMeta, TableSource, Version, search};

/// From (inclusive) to (exclusive) user keys; `None` unbounded.
type Stretch = (Option<Vec<u8>>, Option<Vec<u8>>);
type Tombstones = Option<Arc<FragmentedRangeTombstones>>;

pub(crate) struct RangeView {
    cmp: InternalKeyComparator,
    seq: SequenceNumber,
    tables: Arc<dyn TableSource>,
    version: Arc<Version>,
    /// Tombstones of memtables, which apply everywhere.
    memory: Vec<Arc<FragmentedRangeTombstones>>,
    /// Keys around the current one where no table has tombstones: from (inclusive; `None` unbounded) to (exclusive).
    quiet: Option<Stretch>,
    /// Tombstones of the tables around the key that was asked for last, when there were any, and for which key.
    active: Vec<Arc<FragmentedRangeTombstones>>,
}

impl RangeView {
    pub fn new(
        current: &SuperVersion,
        cmp: InternalKeyComparator,
        seq: SequenceNumber,
        tables: Arc<dyn TableSource>,
    ) -> Self {
        let memory = current.front.range_tombstones().filter(|t| !t.is_empty()).collect();
        Self { cmp, seq, tables, version: Arc::clone(&current.version), memory, quiet: None, active: Vec::new() }
    }

    /// True when a tombstone that the snapshot sees deletes the entry (`user_key`, `seq`).
    #[inline]
    pub fn covers(&mut self, user_key: &[u8], seq: SequenceNumber) -> Result<bool> {
        let in_memory = |t: &Arc<FragmentedRangeTombstones>| t.max_covering(user_key, self.seq, &self.cmp) > seq;
        if self.memory.iter().any(in_memory) {
            return Ok(true);
        }
        if let Some((from, to)) = &self.quiet
            && from.as_ref().is_none_or(|f| self.cmp.compare_user(f, user_key).is_le())
            && to.as_ref().is_none_or(|t| self.cmp.compare_user(user_key, t).is_lt())
        {
            return Ok(false);
        }
        self.locate(user_key)?;
        Ok(self.active.iter().any(|t| t.max_covering(user_key, self.seq, &self.cmp) > seq))
    }

    /// Finds the tombstones that may apply at `user_key`, and the quiet stretch if there are none.
    fn locate(&mut self, user_key: &[u8]) -> Result<()> {
        self.active.clear();
        let cmp = &self.cmp;
        let (mut from, mut to): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        let mut narrow_from = |key: &[u8]| {
            if from.as_ref().is_none_or(|f| cmp.compare_user(f, key).is_lt()) {
                from = Some(key.to_vec());
            }
        };
        let mut narrow_to = |key: &[u8]| {
            if to.as_ref().is_none_or(|t| cmp.compare_user(key, t).is_lt()) {
                to = Some(key.to_vec());
            }
        };
        let version = Arc::clone(&self.version);
        for place in version.sorted_runs() {
            let files = place.files;
            let i = search(files, |f| is_past(cmp, user_key, f));
            if let Some(before) = i.checked_sub(1).and_then(|i| files.get(i)) {
                narrow_from_past(cmp, before, user_key, &mut narrow_from);
            }
            // Two neighbouring files that share a boundary user key both apply at that key.
            for f in &files[i..] {
                if cmp.compare_user(user_key, f.smallest_user_key()).is_lt() {
                    narrow_to(f.smallest_user_key());
                    break;
                }
                match tombstones(&*self.tables, f)? {
                    Some(t) => self.active.push(t),
                    None => {
                        narrow_from(f.smallest_user_key());
                        narrow_to(f.largest_user_key());
                    }
                }
            }
        }
        self.quiet = self.active.is_empty().then_some((from, to));
        Ok(())
    }
}

/// True if `user_key` is after the whole file. A file whose largest key is a range tombstone's end does not include
/// that key itself.
fn is_past(cmp: &InternalKeyComparator, user_key: &[u8], f: &FileMeta) -> bool {
    let ord = cmp.compare_user(f.largest_user_key(), user_key);
    ord.is_lt() || (ord.is_eq() && is_exclusive(f))
}

fn is_exclusive(f: &FileMeta) -> bool {
    let tag = key::tag(f.entry.largest.as_bytes());
    tag == key::pack_tag(MAX_SEQUENCE, ValueType::RangeDeletion)
}

/// The stretch after a file begins just after its largest key. If the file includes that key, `user_key` is the nearest
/// key that is known to be after it.
fn narrow_from_past(cmp: &InternalKeyComparator, f: &FileMeta, user_key: &[u8], narrow: &mut impl FnMut(&[u8])) {
    if is_exclusive(f) && cmp.compare_user(f.largest_user_key(), user_key).is_le() {
        narrow(f.largest_user_key());
    } else {
        narrow(user_key);
    }
}

fn tombstones(tables: &dyn TableSource, f: &Arc<FileMeta>) -> Result<Tombstones> {
    Ok(tables.table(f)?.range_tombstones().filter(|t| !t.is_empty()).cloned())
}
