//! The queue of writers: which of them leads the next group, and how the group's batches get into the memtables.
//!
//! A group of writers goes through two stages. In the first, one writer holds *leadership*: it makes room, numbers the
//! updates of its group and logs them. When the group is in the WAL, the leader gives leadership back and the second
//! stage begins: the group's batches are inserted into the memtables, at the same time as those of other groups. Groups
//! become visible in the order of the WAL (`in_flight.rs`). So the next leader logs while earlier groups insert.
//!
//! **No writer is woken to lead** unless all of them sleep. When leadership becomes free, a writer that is running
//! takes it, together with the batches of the writers that have waited longest. They cannot starve, because they always
//! come along. No switch of threads is needed while there are many more writers than cores. A barrier (a memtable
//! switch, a flush, a sync of the WAL) cannot join a group. It gets leadership when it is at the front of the queue; so
//! does a writer in a listener's call.
//!
//! **A waiting writer** first spins, then yields to other threads for some tens of microseconds, then sleeps; if its
//! group is to be synced it sleeps at once. A writer that is awake when its group is logged inserts its own batch; the
//! leader inserts the batches that are left. `turn.rs` decides how long a writer that need not wait continues.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rockmill_format::SequenceNumber;
use rockmill_format::batch::{self, BatchRep};

use crate::db::DbInner;
use crate::db::write::commit_delay::{CommitDelay, Company};
use crate::db::write::in_flight::InFlight;
use crate::db::write::turn;
use crate::error::{Error, Result};
use crate::event_listener::in_listener;
use crate::front::LoggedBatch;
use crate::options::WriteOptions;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Backoff, Mutex, MutexGuard};

/// A batch of up to the largest group's size divided by this is small. A leader with a small batch adds at most this
/// much to its group, so that small writes do not wait for large ones (RocksDB's rule).
const SMALL_BATCH_PART: usize = 8;

/// In the queue.
const WAITING: u8 = 0;
/// Leads, or is about to.
const LEADER: u8 = 1;
/// In a group that is being logged.
const TAKEN: u8 = 2;
/// In a group that is being logged and synced.
const SYNCED: u8 = 6;
/// In a group that is logged. The thread that changes this to `INSERTING` inserts the batch.
const INSERT: u8 = 3;
const INSERTING: u8 = 4;
const DONE: u8 = 5;

/// No writer leads.
const FREE: u8 = 0;
/// A writer leads.
const LED: u8 = 1;
/// A writer leads, and waits for the device.
const SYNCS: u8 = 2;

/// A waiting writer.
pub(crate) struct Slot {
    state: AtomicU8,
    thread: Thread,
    pub options: WriteOptions,
    pub bytes: usize,
    /// Owned by the slot from queueing until `DONE` (or until its writer leads).
    pub rep: Mutex<BatchRep>,
    group: Mutex<Option<Arc<Group>>>,
    /// Where the batch's records begin in the group's record, if its values stay in the log.
    base: AtomicU64,
    result: Mutex<Result<()>>,
    /// Wants to lead alone (memtable switches, WAL syncs).
    barrier: bool,
    /// How many groups had been synced when it joined the queue.
    since: u64,
    /// Sleeps in the queue. Changed under the queue's lock.
    asleep: AtomicBool,
}

/// Batches of a group that are being inserted.
struct Group {
    /// How many batches are not inserted yet.
    running: AtomicUsize,
    leader: Thread,
    /// Where the group is in the log, if its values stay in the log.
    logged: Option<LoggedBatch>,
    /// The first panic.
    failed: OnceLock<Error>,
}

impl Group {
    /// Notes that one batch was inserted, or that this failed.
    fn ended(&self, inserted: Result<()>) {
        if let Err(e) = inserted {
            let _ = self.failed.set(e); // the first error is the one that is returned
        }
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leader.unpark();
        }
    }
}

pub(crate) struct WriteQueue {
    inner: Mutex<QueueInner>,
    /// [`FREE`], [`LED`] or [`SYNCS`]. It changes under the lock; waiting writers look at it without the lock.
    led: AtomicU8,
}

/// Writers in the queue whose group is to be synced.
#[derive(Default)]
struct ToBeSynced {
    writers: usize,
    /// How many of them were there before the last sync ended.
    earlier: usize,
    /// Size of their batches.
    bytes: usize,
}

#[derive(Default)]
struct QueueInner {
    waiting: VecDeque<Arc<Slot>>,
    /// How many of them sleep.
    asleep: usize,
    /// Writers in calls of listeners. They lead next, and a leader that waits for background work lends them its place.
    from_listeners: VecDeque<Arc<Slot>>,
    /// The option `max_write_batch_group_size_bytes`.
    group_bytes_max: usize,
    delay: CommitDelay,
    /// The writer at the front waits for others, to be in one group with them, as its leader or as a member.
    company: Option<Company>,
    /// The next group has waited for others already.
    company_over: bool,
}

impl QueueInner {
    /// The waiting writers whose group is to be synced.
    fn to_be_synced(&self) -> ToBeSynced {
        let synced = self.delay.synced();
        let mut all = ToBeSynced::default();
        for slot in self.waiting.iter().filter(|s| s.options.sync) {
            all.writers += 1;
            all.earlier += usize::from(slot.since < synced);
            all.bytes += slot.bytes;
        }
        all
    }

    /// True if a synced group should not begin yet, because more writers will join it; for the reason see
    /// [`crate::db::write::commit_delay`]. `new` is the size of the asking writer's batch, if it is not in the queue.
    fn waits_for_company(&mut self, new: Option<usize>) -> bool {
        if self.company_over {
            return false;
        }
        let waiting = self.to_be_synced();
        let present = waiting.writers + usize::from(new.is_some());
        if waiting.bytes + new.unwrap_or(0) >= self.group_limit(0) {
            self.end_company(present); // there is no room for many more
            return false;
        }
        if self.company.is_none() {
            self.company = self.delay.company(present, waiting.earlier, Instant::now());
        }
        match self.company {
            Some(company) if company.is_whole(present) => self.end_company(present),
            Some(_) => return true,
            None => {}
        }
        false
    }

    fn end_company(&mut self, present: usize) {
        if let Some(company) = self.company.take() {
            self.delay.has_waited(company, present, Instant::now());
            self.company_over = true;
        }
    }

    /// Notes that a writer leads now.
    fn begin_group(&mut self) {
        (self.company, self.company_over) = (None, false);
    }

    /// How long the writer at the front should sleep until others have come; `None` for other writers.
    fn company_until(&mut self, slot: &Arc<Slot>) -> Option<Instant> {
        let is_front = self.waiting.front().is_some_and(|front| Arc::ptr_eq(front, slot));
        let company = self.company.as_mut().filter(|_| is_front)?;
        Some(company.sleep(Instant::now()))
    }

    /// Notes that the writer at the front has waited for the next one to come.
    fn company_waited(&mut self) {
        let present = self.to_be_synced().writers;
        let waits = |company: &mut Company| company.waits_on(present, Instant::now());
        if !self.company.as_mut().is_some_and(waits) {
            self.end_company(present);
        }
    }

    /// Removes the writer at the front.
    fn pop(&mut self) -> Option<Arc<Slot>> {
        let slot = self.waiting.pop_front()?;
        self.no_longer_sleeps(&slot);
        Some(slot)
    }

    fn no_longer_sleeps(&mut self, slot: &Slot) {
        if slot.asleep.swap(false, Ordering::Relaxed) {
            self.asleep -= 1;
        }
    }

    /// Wakes the writer at the front if it sleeps. It leads, unless another writer takes it along.
    fn wake_front(&mut self) {
        if let Some(front) = self.waiting.front().map(Arc::clone) {
            if front.asleep.load(Ordering::Relaxed) {
                self.no_longer_sleeps(&front);
            }
            front.thread.unpark();
        }
    }

    /// The most bytes of a group whose leader's batch has `leader_bytes`.
    fn group_limit(&self, leader_bytes: usize) -> usize {
        let small = self.group_bytes_max / SMALL_BATCH_PART;
        if leader_bytes <= small { leader_bytes + small } else { self.group_bytes_max }
    }

    /// True if a writer may take leadership, which is free. The writer that has waited longest must be able to come
    /// along, or it would wait for ever; and a synced group may have to wait for others. `new`: the writer is not in
    /// the queue.
    fn may_lead(&mut self, options: &WriteOptions, bytes: usize, barrier: bool, new: bool) -> bool {
        let limit = self.group_limit(bytes);
        self.waiting.front().is_none_or(|front| !barrier && front.may_join(options, bytes, limit))
            && !(options.sync && self.waits_for_company(new.then_some(bytes)))
    }

    /// Ends the wait for others: a writer has come that cannot be in their group.
    fn interrupt_company(&mut self) {
        if self.company.is_some() {
            self.end_company(0);
            self.wake_front();
        }
    }
}

/// How a writer left the queue.
pub(crate) enum Joined<'a> {
    /// It leads.
    Leads(Leadership<'a>),
    /// Another writer's group included its batch.
    Done(Result<()>),
}

/// Leadership; dropping it (also in a panic) lets the next writer lead.
pub(crate) struct Leadership<'a> {
    queue: &'a WriteQueue,
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        let mut q = self.queue.lock();
        let at_front = |q: &QueueInner| q.waiting.front().is_some_and(|front| front.barrier);
        let next = q.from_listeners.pop_front().or_else(|| if at_front(&q) { q.pop() } else { None });
        if let Some(slot) = next {
            self.queue.led.store(LED, Ordering::Relaxed);
            drop(q);
            slot.wake(LEADER);
            return;
        }
        // Release: the next leader sees what this one did.
        self.queue.led.store(FREE, Ordering::Release);
        // A waiting writer that is awake will take leadership; if all sleep, one must be woken.
        if q.asleep == q.waiting.len() {
            q.wake_front();
        }
    }
}

impl Slot {
    fn new(rep: &mut BatchRep, options: WriteOptions, barrier: bool, since: u64) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(WAITING),
            thread: thread::current(),
            options,
            bytes: rep.len_bytes(),
            rep: Mutex::new(std::mem::take(rep)),
            group: Mutex::new(None),
            base: AtomicU64::new(0),
            result: Mutex::new(Ok(())),
            barrier,
            since,
            asleep: AtomicBool::new(false),
        })
    }

    fn wake(&self, state: u8) {
        // Release: a thread that sees the new state also sees what was stored before it.
        self.state.store(state, Ordering::Release);
        self.thread.unpark();
    }

    /// True if it may join the group of a leader with these options. The group has `group_bytes` so far, and may have
    /// `limit`.
    fn may_join(&self, leader: &WriteOptions, group_bytes: usize, limit: usize) -> bool {
        !self.barrier
            && group_bytes + self.bytes <= limit
            && self.options.disable_wal == leader.disable_wal
            && (leader.sync || !self.options.sync)
            && leader.no_slowdown == self.options.no_slowdown
    }

    /// True for the one thread that gets to insert the batch.
    fn claim(&self) -> bool {
        self.state.load(Ordering::Relaxed) == INSERT
            && self.state.compare_exchange(INSERT, INSERTING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sleeps in the queue, at the longest until `until`.
    fn sleep_until(&self, until: Instant) {
        if cfg!(rockmill_shuttle) {
            return thread::yield_now(); // the explorer has no time
        }
        while self.asleep.load(Ordering::Relaxed) && self.state.load(Ordering::Acquire) == WAITING {
            // The wake-up may have been meant for an earlier sleep.
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Tells the writer that its group is finished.
    pub fn finish(&self, done: &Result<()>) {
        if let Err(e) = done {
            *self.result.lock() = Err(e.clone());
        }
        self.wake(DONE);
    }

    /// Inserts the batch.
    fn insert(&self, db: &DbInner, group: Option<&LoggedBatch>) -> Result<()> {
        let rep = self.rep.lock();
        // Relaxed: it was stored before the state became `INSERT`.
        let at = group.map(|group| LoggedBatch { base: self.base.load(Ordering::Relaxed), ..group.clone() });
        db.try_insert_batch(&rep, rep.sequence(), at.as_ref())
    }

    /// Waits until its group is finished, and inserts its batch if no other thread does.
    fn wait_done(&self, db: &DbInner) {
        let mut backoff = Backoff::new();
        loop {
            match self.state.load(Ordering::Acquire) {
                DONE => return,
                INSERT if self.claim() => {
                    let group = self.group.lock().take();
                    let inserted = self.insert(db, group.as_ref().and_then(|group| group.logged.as_ref()));
                    if let Some(group) = group {
                        group.ended(inserted);
                    }
                }
                state => {
                    let awake = if state == SYNCED { backoff.wait_for_device() } else { backoff.wait() };
                    if !awake {
                        thread::park();
                    }
                }
            }
        }
    }
}

impl Leadership<'_> {
    /// Notes that the leader waits for the device from now on.
    pub fn syncs(&self) {
        self.queue.led.store(SYNCS, Ordering::Relaxed);
    }
}

impl WriteQueue {
    /// A queue whose groups have at most `group_bytes_max` bytes of batches.
    pub fn new(group_bytes_max: u64) -> Self {
        let group_bytes_max = usize::try_from(group_bytes_max).unwrap_or(usize::MAX);
        let inner = QueueInner { group_bytes_max, ..QueueInner::default() };
        Self { inner: Mutex::new(inner), led: AtomicU8::new(FREE) }
    }

    /// Takes the lock of the queue, which is never held for long: waits awake, as [`Backoff`] does, before it sleeps.
    /// A leader holds it while it looks at each member, which is longer than the ten tries of parking_lot. With a core
    /// for each writer, those who sleep here cost half of the throughput (docs/benchmarks/writers.md).
    fn lock(&self) -> MutexGuard<'_, QueueInner> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(q) = self.inner.try_lock() {
                return q;
            }
            if !backoff.wait() {
                return self.inner.lock();
            }
        }
    }

    /// Becomes leader if no writer leads.
    #[inline]
    pub fn try_lead(&self, options: &WriteOptions, bytes: usize) -> Option<Leadership<'_>> {
        if self.led.load(Ordering::Relaxed) != FREE {
            return None; // without the lock: the caller queues then, and looks again under it
        }
        self.lead_now(&mut self.lock(), |q| q.may_lead(options, bytes, false, true))
    }

    /// Becomes leader if no writer leads or waits.
    pub fn try_lead_alone(&self) -> Option<Leadership<'_>> {
        self.lead_now(&mut self.lock(), |q| q.waiting.is_empty())
    }

    fn lead_now(
        &self,
        q: &mut MutexGuard<'_, QueueInner>,
        may: impl FnOnce(&mut QueueInner) -> bool,
    ) -> Option<Leadership<'_>> {
        if self.led.load(Ordering::Relaxed) != FREE || !may(q) {
            return None;
        }
        q.begin_group();
        self.led.store(LED, Ordering::Relaxed);
        Some(Leadership { queue: self })
    }

    /// Becomes leader at once, or queues `rep` and waits until the writer leads or its batch is inserted. Either way
    /// `rep` is back in its place then.
    pub fn join(&self, db: &DbInner, rep: &mut BatchRep, options: WriteOptions, barrier: bool) -> Joined<'_> {
        let slot = {
            let mut q = self.lock();
            let from_listener = in_listener();
            if let Some(leadership) =
                self.lead_now(&mut q, |q| from_listener || q.may_lead(&options, rep.len_bytes(), barrier, true))
            {
                return Joined::Leads(leadership);
            }
            let slot = Slot::new(rep, options, barrier, q.delay.synced());
            let queue = if from_listener { &mut q.from_listeners } else { &mut q.waiting };
            queue.push_back(Arc::clone(&slot));
            if !from_listener && !options.sync {
                q.interrupt_company();
            }
            if from_listener {
                drop(q);
                db.wake_waiting_leader();
            }
            slot
        };
        let leads = self.wait_in_queue(&slot);
        if !leads {
            slot.wait_done(db);
        }
        turn::begin();
        std::mem::swap(rep, &mut slot.rep.lock());
        if leads {
            return Joined::Leads(Leadership { queue: self });
        }
        Joined::Done(std::mem::replace(&mut *slot.result.lock(), Ok(())))
    }

    /// Waits until the slot's writer leads (true), or is in the group of another writer.
    fn wait_in_queue(&self, slot: &Arc<Slot>) -> bool {
        let mut backoff = Backoff::new();
        loop {
            match slot.state.load(Ordering::Acquire) {
                WAITING => {}
                state => return state == LEADER,
            }
            let led = self.led.load(Ordering::Acquire);
            if led == FREE {
                // If the lock is taken, its holder takes leadership, or looks once more before it sleeps.
                let mut waits_for_company = false;
                if let Some(mut q) = self.inner.try_lock() {
                    if self.take_out_to_lead(&mut q, slot) {
                        return true;
                    }
                    waits_for_company = q.company.is_some();
                }
                if !waits_for_company {
                    thread::yield_now();
                    continue;
                }
            }
            let awake = if led == LED { backoff.wait() } else { backoff.wait_for_device() };
            if !awake {
                let mut q = self.lock();
                if self.take_out_to_lead(&mut q, slot) {
                    return true;
                }
                // Under the lock, a slot that is not in the queue is no longer `WAITING`.
                if slot.state.load(Ordering::Acquire) != WAITING {
                    continue;
                }
                if !slot.asleep.swap(true, Ordering::Relaxed) {
                    q.asleep += 1;
                }
                let until = q.company_until(slot);
                drop(q);
                match until {
                    Some(until) => slot.sleep_until(until),
                    None => thread::park(),
                }
                // From here on the writer counts as awake when leadership is given back.
                let mut q = self.lock();
                q.no_longer_sleeps(slot);
                if until.is_some() && slot.state.load(Ordering::Acquire) == WAITING {
                    q.company_waited();
                }
                backoff = Backoff::new();
            }
        }
    }

    /// Makes a waiting writer leader if leadership is free and it may lead. If it may not, this makes sure that the
    /// writer that has waited longest is awake.
    fn take_out_to_lead(&self, q: &mut QueueInner, slot: &Arc<Slot>) -> bool {
        if self.led.load(Ordering::Relaxed) != FREE || slot.state.load(Ordering::Acquire) != WAITING {
            return false;
        }
        let is_front = q.waiting.front().is_some_and(|front| Arc::ptr_eq(front, slot));
        let may = match is_front {
            true => !(slot.options.sync && q.waits_for_company(None)),
            false => q.may_lead(&slot.options, slot.bytes, slot.barrier, false),
        };
        if !may {
            if !is_front && !q.company.as_ref().is_some_and(Company::has_sleeper) {
                q.wake_front();
            }
            return false;
        }
        q.begin_group();
        let Some(at) = q.waiting.iter().position(|s| Arc::ptr_eq(s, slot)) else { return false };
        q.waiting.remove(at);
        q.no_longer_sleeps(slot);
        self.led.store(LED, Ordering::Relaxed);
        slot.state.store(LEADER, Ordering::Relaxed);
        true
    }

    /// Notes that a group was synced. `writers` of its members had asked for it, and the sync began at `began`.
    pub fn has_synced(&self, writers: usize, began: Instant) {
        let now = Instant::now();
        self.lock().delay.has_synced(writers, now.saturating_duration_since(began), now);
    }

    /// True if a writer in a call of a listener waits to lead.
    pub fn has_from_listener(&self) -> bool {
        !self.lock().from_listeners.is_empty()
    }

    /// Lets writers in calls of listeners lead. This is for a leader that waits for background work, which may in turn
    /// wait for those calls, and that has not begun with its group. True if there were any such writers: what the
    /// leader knew may have changed.
    pub fn lend(&self, in_flight: &InFlight) -> bool {
        let mut lent = false;
        loop {
            let (next, own) = {
                let mut q = self.lock();
                let Some(next) = q.from_listeners.pop_front() else { return lent };
                // This leader comes next after them, and joins none of their groups.
                let own = Slot::new(&mut BatchRep::default(), WriteOptions::default(), true, q.delay.synced());
                q.waiting.push_front(Arc::clone(&own));
                (next, own)
            };
            next.wake(LEADER);
            self.wait_in_queue(&own);
            in_flight.drain();
            lent = true;
        }
    }

    /// Takes from the front the waiting writers that may join the group of a leader with these options.
    #[inline]
    pub(crate) fn gather(&self, leader: WriteOptions, leader_bytes: usize) -> Vec<Arc<Slot>> {
        let mut q = self.lock();
        if q.waiting.is_empty() {
            return Vec::new();
        }
        let limit = q.group_limit(leader_bytes);
        let mut bytes = leader_bytes;
        let mut members = Vec::new();
        while q.waiting.front().is_some_and(|s| s.may_join(&leader, bytes, limit)) {
            let Some(member) = q.pop() else { break };
            bytes += member.bytes;
            member.state.store(if leader.sync { SYNCED } else { TAKEN }, Ordering::Relaxed);
            members.push(member);
        }
        members
    }
}

/// Inserts a group's batches: the leader's, whose first sequence number is `first`, and those of the members, which
/// have their numbers already. With `shared`, members that are awake insert their own.
#[inline]
pub(crate) fn insert_group(
    db: &DbInner,
    own: &BatchRep,
    first: SequenceNumber,
    members: &[Arc<Slot>],
    shared: bool,
    logged: Option<LoggedBatch>,
) -> Result<()> {
    let of_own = logged.as_ref();
    if members.is_empty() {
        return db.try_insert_batch(own, first, of_own);
    }
    if let Some(logged) = of_own {
        let records = |bytes: usize| (bytes - batch::HEADER_LEN) as u64;
        let mut base = logged.base + records(own.len_bytes());
        for m in members {
            m.base.store(base, Ordering::Relaxed);
            base += records(m.bytes);
        }
    }
    if !shared {
        let own = db.try_insert_batch(own, first, of_own);
        return own.and_then(|()| members.iter().try_for_each(|m| m.insert(db, of_own)));
    }
    // The leader counts as one, so that the group cannot end before all members know of it.
    let running = AtomicUsize::new(members.len() + 1);
    let group = Arc::new(Group { running, leader: thread::current(), logged, failed: OnceLock::new() });
    let of_own = group.logged.as_ref();
    for m in members {
        *m.group.lock() = Some(Arc::clone(&group));
        m.state.store(INSERT, Ordering::Release);
    }
    group.ended(db.try_insert_batch(own, first, of_own));
    for m in members {
        if m.claim() {
            group.ended(m.insert(db, of_own));
        }
    }
    let mut backoff = Backoff::new();
    while group.running.load(Ordering::Acquire) != 0 {
        if !backoff.wait() {
            thread::park();
        }
    }
    group.failed.get().map_or(Ok(()), |e| Err(e.clone()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn to_be_synced() -> WriteOptions {
        WriteOptions { sync: true, ..WriteOptions::default() }
    }

    /// The last group had two synced writers. One of them is back and sleeps until the other one comes: syncs take so
    /// long here that the wait never ends by itself.
    fn one_of_two_is_back() -> (WriteQueue, Arc<Slot>) {
        let queue = WriteQueue::new(1 << 20);
        queue.inner.lock().delay.has_synced(2, Duration::from_secs(3600), Instant::now());
        assert!(queue.try_lead(&to_be_synced(), 100).is_none(), "it leads without the other");
        let mut q = queue.inner.lock();
        let slot = Slot::new(&mut BatchRep::default(), to_be_synced(), false, q.delay.synced());
        q.waiting.push_back(Arc::clone(&slot));
        slot.asleep.store(true, Ordering::Relaxed);
        q.asleep += 1;
        assert!(q.company_until(&slot).is_some() && !queue.take_out_to_lead(&mut q, &slot));
        drop(q);
        (queue, slot)
    }

    #[test]
    fn the_last_one_of_a_company_leads_at_once() {
        let (queue, slot) = one_of_two_is_back();
        let leadership = queue.try_lead(&to_be_synced(), 100);
        assert!(leadership.is_some(), "all are there, and the last one to come waits");
        let members = queue.gather(to_be_synced(), 100);
        assert!(members.len() == 1 && Arc::ptr_eq(&members[0], &slot));
        assert_eq!((slot.state.load(Ordering::Relaxed), queue.inner.lock().asleep), (SYNCED, 0));
    }

    /// The schedule explorer cannot test this, because a thread that sleeps there may wake by itself.
    #[test]
    fn a_writer_that_may_not_lead_wakes_the_one_that_waits_longest() {
        let queue = WriteQueue::new(1 << 20);
        let mut q = queue.inner.lock();
        let slots = [true, false].map(|disable_wal| {
            let options = WriteOptions { disable_wal, ..WriteOptions::default() };
            Slot::new(&mut BatchRep::default(), options, false, 0)
        });
        q.waiting.extend(slots.iter().cloned());
        slots[0].asleep.store(true, Ordering::Relaxed);
        q.asleep += 1;
        assert!(!queue.take_out_to_lead(&mut q, &slots[1]), "the first cannot come along, and would wait for ever");
        assert!(!slots[0].asleep.load(Ordering::Relaxed) && q.asleep == 0, "leadership is free, and nobody takes it");
        assert!(queue.take_out_to_lead(&mut q, &slots[0]));
    }

    #[test]
    fn a_writer_that_cannot_come_along_ends_the_wait_for_company() {
        let (queue, slot) = one_of_two_is_back();
        let mut q = queue.inner.lock();
        q.interrupt_company();
        assert!(q.company.is_none() && q.company_over);
        assert!(!slot.asleep.load(Ordering::Relaxed) && q.asleep == 0, "the writer that waits for others still sleeps");
        assert!(queue.take_out_to_lead(&mut q, &slot), "and then waits again");
    }
}
