//! Groups of writers that are in the WAL, and that become visible in its order.

use std::sync::Arc;

use rockmill_format::SequenceNumber;

use crate::db::write::queue::Slot;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Backoff, Mutex};

/// A group's place among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupSpan {
    pub first: SequenceNumber,
    /// The next group's first.
    pub next: SequenceNumber,
    /// Length of the WAL before the group, in bytes.
    pub wal_size: u64,
}

/// Groups that are in the WAL and not yet visible.
///
/// They become visible in order. A group that is inserted before its turn is left here. The thread that makes the group
/// before it visible then does the same for it, because its own thread may be waiting for a core.
#[derive(Default)]
pub(crate) struct InFlight {
    /// The newest sequence number that reads may see.
    visible: AtomicU64,
    groups: AtomicUsize,
    /// The last sequence number of the newest group. Only the leader uses it.
    newest: AtomicU64,
    inserted: Mutex<Vec<Inserted>>,
    /// True if there may be something in `inserted`.
    has_inserted: AtomicBool,
    /// The first sequence number of the oldest group that failed. Nothing from it on ever becomes visible.
    failed: Mutex<Option<(SequenceNumber, Error)>>,
    has_failed: AtomicBool,
    /// For threads that sleep until something here changes.
    sleepers: Mutex<Vec<Thread>>,
    has_sleepers: AtomicBool,
}

/// A group that is in the memtables and whose turn has not come yet.
struct Inserted {
    place: GroupSpan,
    members: Vec<Arc<Slot>>,
    leader: Thread,
}

impl InFlight {
    /// Everything up to `visible` is visible from the beginning.
    pub fn new(visible: SequenceNumber) -> Self {
        Self { visible: AtomicU64::new(visible), ..Self::default() }
    }

    /// The newest sequence number that reads may see.
    #[inline]
    pub fn visible(&self) -> SequenceNumber {
        self.visible.load(Ordering::Acquire)
    }

    /// Notes that everything up to this sequence number is visible, although no writer wrote it.
    pub fn raise_visible(&self, to: SequenceNumber) {
        self.visible.fetch_max(to, Ordering::AcqRel);
    }

    /// Sets what is visible in an instance without writers.
    pub fn set_visible(&self, to: SequenceNumber) {
        self.visible.store(to, Ordering::Release);
    }

    /// True if everything before a group is visible.
    fn has_turn(&self, place: GroupSpan) -> bool {
        self.visible.load(Ordering::SeqCst) + 1 >= place.first
    }

    fn is_visible(&self, place: GroupSpan) -> bool {
        self.visible.load(Ordering::SeqCst) + 1 >= place.next
    }

    /// Makes a group visible. It must be its turn.
    fn show(&self, place: GroupSpan) {
        // A group without updates has the same turn as the next one, and must not lower the number again. Release: a
        // reader that sees this number sees every entry up to it.
        if place.next > place.first {
            self.visible.store(place.next - 1, Ordering::SeqCst);
        }
    }

    /// True if another group is in flight. For a group's leader.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.groups.load(Ordering::Relaxed) > 1
    }

    /// The last sequence number that was assigned. For the leader.
    #[inline]
    pub fn newest(&self) -> SequenceNumber {
        // Acquire: if none is in flight, all of their changes are visible.
        match self.groups.load(Ordering::Acquire) {
            0 => self.visible(),
            _ => self.newest.load(Ordering::Relaxed),
        }
    }

    /// Notes that a group is in the WAL. For its leader.
    #[inline]
    pub(crate) fn begin(&self, place: GroupSpan) {
        self.newest.store(place.next - 1, Ordering::Relaxed);
        self.groups.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes an inserted group visible when its turn comes, and tells its members. The error is that of a failed
    /// earlier group: later groups fail with it, because their records are removed from the WAL together.
    #[inline]
    pub(crate) fn publish(&self, place: GroupSpan, members: Vec<Arc<Slot>>) -> Result<()> {
        let members = match self.has_turn(place) {
            true => members,
            false => match self.leave(place, members) {
                Some(members) => members,
                None => return self.wait_visible(place),
            },
        };
        self.show(place);
        self.end();
        members.iter().for_each(|m| m.finish(&Ok(())));
        Ok(())
    }

    /// Leaves a group to the thread that makes the one before it visible; returns its members if its turn has come.
    #[cold]
    fn leave(&self, place: GroupSpan, members: Vec<Arc<Slot>>) -> Option<Vec<Arc<Slot>>> {
        let mut inserted = self.inserted.lock();
        // Set before the check, so that a thread that makes something visible after the check sees it.
        self.has_inserted.store(true, Ordering::SeqCst);
        if self.has_turn(place) {
            return Some(members);
        }
        inserted.push(Inserted { place, members, leader: thread::current() });
        None
    }

    #[cold]
    fn wait_visible(&self, place: GroupSpan) -> Result<()> {
        let mut backoff = Backoff::new();
        while !self.is_visible(place) {
            if let Some(e) = self.failed_before(place) {
                // No other thread will take it.
                let own = {
                    let mut inserted = self.inserted.lock();
                    let at = inserted.iter().position(|i| i.place == place);
                    at.map(|at| inserted.swap_remove(at))
                };
                let failed = Err(e);
                own.iter().flat_map(|i| &i.members).for_each(|m| m.finish(&failed));
                self.end();
                return failed;
            }
            if !backoff.wait() {
                self.sleep(|| !self.is_visible(place));
            }
        }
        Ok(())
    }

    /// Called when a group became visible or failed for ever: does the same for the groups whose turn has now come.
    #[inline]
    fn end(&self) {
        self.groups.fetch_sub(1, Ordering::SeqCst);
        if self.has_inserted.load(Ordering::SeqCst) {
            self.publish_inserted();
        }
        if self.has_sleepers.load(Ordering::SeqCst) {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn publish_inserted(&self) {
        let mut ended = Vec::new();
        {
            let mut inserted = self.inserted.lock();
            while let Some(at) = inserted.iter().position(|i| self.has_turn(i.place)) {
                let next = inserted.swap_remove(at);
                self.show(next.place);
                self.groups.fetch_sub(1, Ordering::SeqCst);
                ended.push(next);
            }
            if inserted.is_empty() {
                self.has_inserted.store(false, Ordering::SeqCst);
            }
        }
        for group in ended {
            group.members.iter().for_each(|m| m.finish(&Ok(())));
            group.leader.unpark();
        }
    }

    /// The error of a group before this one.
    fn failed_before(&self, place: GroupSpan) -> Option<Error> {
        if !self.has_failed.load(Ordering::SeqCst) {
            return None;
        }
        let failed = self.failed.lock();
        failed.as_ref().filter(|(first, _)| *first < place.first).map(|(_, e)| e.clone())
    }

    /// Notes that a group that is in the WAL failed, and returns the error for its members. `undo` is called when
    /// everything before the group is visible, unless something before it failed as well.
    #[cold]
    pub(crate) fn fail(&self, place: GroupSpan, e: Error, undo: impl FnOnce(&Error)) -> Error {
        {
            let mut failed = self.failed.lock();
            if failed.as_ref().is_none_or(|(first, _)| place.first < *first) {
                *failed = Some((place.first, e.clone()));
            }
            self.has_failed.store(true, Ordering::SeqCst);
        }
        self.wake_sleepers();
        let mut backoff = Backoff::new();
        let e = loop {
            if self.has_turn(place) {
                undo(&e);
                break e;
            }
            if let Some(before) = self.failed_before(place) {
                break before;
            }
            if !backoff.wait() {
                self.sleep(|| !self.has_turn(place));
            }
        };
        self.end();
        e
    }

    /// Waits until no group is in flight. For the leader: while it leads, none begins.
    #[inline]
    pub fn drain(&self) {
        if self.groups.load(Ordering::SeqCst) != 0 {
            self.wait_for_all();
        }
    }

    #[cold]
    fn wait_for_all(&self) {
        let mut backoff = Backoff::new();
        while self.groups.load(Ordering::SeqCst) != 0 {
            if !backoff.wait() {
                self.sleep(|| self.groups.load(Ordering::SeqCst) != 0);
            }
        }
    }

    /// Sleeps until the next change, if `waits` is still true.
    #[cold]
    fn sleep(&self, waits: impl Fn() -> bool) {
        self.sleepers.lock().push(thread::current());
        // Set before the check, so that a thread that changes something after the check sees it.
        self.has_sleepers.store(true, Ordering::SeqCst);
        if waits() {
            thread::park();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let sleepers = {
            let mut sleepers = self.sleepers.lock();
            self.has_sleepers.store(false, Ordering::SeqCst);
            std::mem::take(&mut *sleepers)
        };
        for thread in sleepers {
            thread.unpark();
        }
    }
}
