//! Snapshots: sequence numbers that reads may go back to and compactions must keep.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rockmill_format::SequenceNumber;

use crate::db::{Db, DbInner, ReadOptions};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, RwLockWriteGuard};

/// The live snapshots, counted by sequence number.
#[derive(Debug)]
pub(crate) struct SnapshotList {
    live: Mutex<BTreeMap<SequenceNumber, (usize, u64)>>,
    /// Held while no snapshot may be taken.
    gate: RwLock<()>,
    /// When the oldest snapshot passes this sequence number, tables of the deepest level are due
    /// ([`Aging::threshold`](crate::compaction::strategy::aging::Aging::threshold)).
    threshold: AtomicU64,
}

impl Default for SnapshotList {
    fn default() -> Self {
        // Nothing is due before the database is open.
        Self { live: Mutex::default(), gate: RwLock::new(()), threshold: AtomicU64::new(SequenceNumber::MAX) }
    }
}

impl SnapshotList {
    /// Registers the sequence number that `read` gives. It is read under the list's lock, so that a compaction that
    /// lists the snapshots afterwards cannot miss one that is older than the version it works on.
    pub fn acquire(&self, read: impl FnOnce() -> SequenceNumber, now_seconds: u64) -> SequenceNumber {
        let _open = self.gate.read();
        let mut live = self.live.lock();
        let seq = read();
        live.entry(seq).or_insert((0, now_seconds)).0 += 1;
        seq
    }

    /// Blocks calls that take a snapshot as long as the result lives.
    pub fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// Tables of the deepest level are due when the oldest snapshot passes this.
    pub fn set_threshold(&self, threshold: SequenceNumber) {
        self.threshold.store(threshold, Ordering::Release);
    }

    pub fn release(&self, seq: SequenceNumber) {
        let mut live = self.live.lock();
        if let Some(entry) = live.get_mut(&seq) {
            entry.0 -= 1;
            if entry.0 == 0 {
                live.remove(&seq);
            }
        }
    }

    /// All of them, ascending.
    pub fn all(&self) -> Vec<SequenceNumber> {
        self.live.lock().keys().copied().collect()
    }

    /// The oldest one.
    pub fn oldest(&self) -> Option<SequenceNumber> {
        self.live.lock().keys().next().copied()
    }

    pub fn count(&self) -> usize {
        self.live.lock().values().map(|e| e.0).sum()
    }

    /// Unix time in seconds of the oldest; 0 without one.
    pub fn oldest_time(&self) -> u64 {
        self.live.lock().values().next().map_or(0, |e| e.1)
    }
}

/// A consistent view of the database at one moment (`rocksdb::Snapshot`). Reads through it see nothing newer;
/// compactions keep what it sees. It is released when it and every [`ReadOptions`] that holds it are dropped.
pub struct Snapshot<'a> {
    pub(crate) db: &'a DbInner,
    pub(crate) held: Arc<HeldSnapshot>,
}

impl Snapshot<'_> {
    /// The newest sequence number it sees.
    pub fn sequence_number(&self) -> SequenceNumber {
        self.held.seq
    }
}

impl std::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({})", self.held.seq)
    }
}

/// Shared by [`Snapshot`] and [`ReadOptions`]: compactions keep what the number sees as long as one of them lives, so
/// that no read can use a released number.
pub(crate) struct HeldSnapshot {
    /// Options outlive databases and must not keep them open.
    db: Weak<DbInner>,
    seq: SequenceNumber,
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        if let Some(db) = self.db.upgrade() {
            db.readers.snapshots.release(self.seq);
            db.recheck_bottom_level();
        }
    }
}

impl std::fmt::Debug for HeldSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.seq)
    }
}

/// A snapshot for a single call. Unlike a user's snapshot, its release starts no compaction.
pub(crate) struct Moment<'a> {
    snapshots: &'a SnapshotList,
    pub seq: SequenceNumber,
}

impl Drop for Moment<'_> {
    fn drop(&mut self) {
        self.snapshots.release(self.seq);
    }
}

impl DbInner {
    /// Holds the present state for one call.
    pub(crate) fn hold_moment(&self) -> Moment<'_> {
        let snapshots = &self.readers.snapshots;
        Moment { snapshots, seq: snapshots.acquire(|| self.last_sequence(), self.now_seconds()) }
    }

    /// The newest sequence number that a read sees. Call it after taking the version: an earlier number could be older
    /// than what a compaction kept.
    #[inline]
    pub(crate) fn read_sequence(&self, snapshot: Option<&HeldSnapshot>) -> Result<SequenceNumber> {
        match snapshot {
            None => Ok(self.last_sequence()),
            Some(held) if std::ptr::eq(held.db.as_ptr(), self) => Ok(held.seq),
            Some(held) => Err(self.not_its_snapshot(held)),
        }
    }

    #[cold]
    fn not_its_snapshot(&self, held: &HeldSnapshot) -> Error {
        let of = held.db.upgrade().map_or_else(|| "one that was closed".to_owned(), |db| db.path.display().to_string());
        Error::invalid_argument(format!(
            "{}: the read options have a snapshot of another database, {of}; take one of this database as it is open \
             now",
            self.path.display()
        ))
    }

    /// Called after a snapshot was released: has tables of the deepest level rewritten that kept data for such
    /// snapshots.
    fn recheck_bottom_level(&self) {
        let snapshots = &self.readers.snapshots;
        let oldest = snapshots.oldest().unwrap_or_else(|| self.last_sequence());
        if oldest <= snapshots.threshold.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let Some(due) = state.raise_oldest_snapshot(oldest) else { return };
        self.update_threshold(&state);
        drop(state);
        if due {
            self.work_available.notify_all();
        }
    }
}

impl Db {
    /// A view of the database as it is now.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let db = &*self.inner;
        let seq = db.readers.snapshots.acquire(|| db.last_sequence(), db.now_seconds());
        Snapshot { db, held: Arc::new(HeldSnapshot { db: Arc::downgrade(&self.inner), seq }) }
    }
}

impl ReadOptions {
    /// Reads the database as `snapshot` sees it. The options keep it alive: reads with them or their clones see the
    /// same after `snapshot` is dropped, and compactions keep what it sees as long as one of them lives.
    ///
    /// Using these options with another database, or with a later opening of the same one, is `InvalidArgument`.
    pub fn set_snapshot(&mut self, snapshot: &Snapshot<'_>) {
        self.snapshot = Some(Arc::clone(&snapshot.held));
    }
}
