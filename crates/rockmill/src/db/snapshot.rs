//! Snapshots: sequence numbers that reads may go back to and compactions must keep.

use std::collections::BTreeMap;

use rockmill_format::SequenceNumber;

use super::{Db, DbInner};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, RwLock, RwLockWriteGuard};

/// The live snapshots, counted by sequence number.
#[derive(Debug, Default)]
pub(crate) struct SnapshotList {
    live: Mutex<BTreeMap<SequenceNumber, (usize, u64)>>,
    /// Held by whoever needs that no snapshot is taken.
    gate: RwLock<()>,
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

    /// Lets those who want a snapshot wait as long as the result lives.
    pub fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
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
/// compactions keep what it sees. Released when dropped.
pub struct Snapshot<'a> {
    pub(crate) db: &'a DbInner,
    pub(crate) seq: SequenceNumber,
    /// One call's own: its end starts nothing.
    internal: bool,
}

impl Snapshot<'_> {
    /// The newest sequence number it sees.
    pub fn sequence_number(&self) -> SequenceNumber {
        self.seq
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        self.db.snapshots.release(self.seq);
        if !self.internal {
            self.db.look_at_bottom();
        }
    }
}

impl std::fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({})", self.seq)
    }
}

impl DbInner {
    /// After a snapshot went: has tables at the bottom rewritten that kept something for snapshots like it.
    fn look_at_bottom(&self) {
        let oldest = self.snapshots.oldest().unwrap_or_else(|| self.last_sequence());
        if oldest <= self.bottommost_threshold.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        if oldest <= state.oldest_snapshot {
            return;
        }
        state.oldest_snapshot = oldest;
        let mut due = false;
        for c in state.cfs.values_mut() {
            c.rescore(oldest);
            due |= c.aging.bottommost_due;
        }
        self.update_threshold(&state);
        drop(state);
        if due {
            self.work.notify_all();
        }
    }
}

impl Db {
    /// A view of the database as it is now.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let db = &*self.inner;
        let seq = db.snapshots.acquire(|| db.last_sequence(), db.now_seconds());
        Snapshot { db, seq, internal: false }
    }

    /// One for a call of the store's own.
    pub(super) fn internal_snapshot(&self) -> Snapshot<'_> {
        let mut snapshot = self.snapshot();
        snapshot.internal = true;
        snapshot
    }
}
