//! A controller: what the connections of one host share.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::command::{EVENT_DISCOVERY, EVENT_NAMESPACES, Sqe, log_page};
use crate::fabrics::{Configuration, STATUS_FATAL, STATUS_READY, STATUS_SHUT_DOWN};
use crate::identify::{ControllerKind, NAMESPACE_LIST_MAX};
use crate::logs::{ErrorEntry, SmartLog};
use crate::status::Status;

/// Entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 64;
/// Granularity of the keep alive timer: one unit of KAS in the Identify data.
pub(super) const KEEP_ALIVE_UNIT: Duration = Duration::from_millis(100);
/// The epoch of a controller that has ended.
const GONE: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Controller {
    pub(super) id: u16,
    pub(super) kind: ControllerKind,
    /// Name and identifier of the host. Its I/O queues must have the same.
    pub(super) host: (String, [u8; 16]),
    /// Counts resets: a connection of an I/O queue ends when its epoch is no longer the current one.
    epoch: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) configuration: Configuration,
    pub(super) status: u32,
    /// Zero for none.
    pub(super) keep_alive: Duration,
    /// When the host last sent Keep Alive.
    pub(super) heard: Duration,
    /// I/O queues that are connected.
    pub(super) queues: BTreeSet<u16>,
    /// Which events the host wants.
    pub(super) events: u32,
    namespaces: Notice<BTreeSet<u32>>,
    discovery: Notice<()>,
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
}

/// An event that is reported once, and again only after its log page was read.
#[derive(Debug, Default)]
struct Notice<T> {
    what: T,
    pending: bool,
    told: bool,
}

impl<T> Notice<T> {
    /// The result of an event request, if there is something to report.
    fn tell(&mut self, information: u64, page: u8) -> Option<u64> {
        let tell = self.pending && !self.told;
        tell.then(|| {
            self.pending = false;
            self.told = true;
            // Type 2 is a notice.
            2 | information << 8 | u64::from(page) << 16
        })
    }
}

impl Controller {
    pub(super) fn new(id: u16, kind: ControllerKind, host: (String, [u8; 16])) -> Self {
        Self {
            id,
            kind,
            host,
            epoch: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.epoch() == GONE
    }

    /// Called when the admin queue is lost or the host was silent for too long.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.status |= STATUS_FATAL;
        self.epoch.store(GONE, Ordering::Release);
    }

    /// Ends the I/O queues. The caller holds the state's lock.
    fn reset(&self, state: &mut State) {
        state.queues.clear();
        if !self.is_gone() {
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Sets the property CC. True if completed writes must be made durable first.
    pub(super) fn configure(&self, new: Configuration) -> bool {
        let mut state = self.state.lock();
        let old = std::mem::replace(&mut state.configuration, new);
        if new.enable() && !old.enable() {
            // A discovery controller has no I/O queues, so entry sizes do not matter.
            let supported = new.is_supported() || self.kind == ControllerKind::Discovery;
            state.status = if supported { STATUS_READY } else { STATUS_FATAL };
        }
        if !new.enable() && old.enable() {
            state.status = 0;
            self.reset(&mut state);
        }
        if new.shutdown() == 0 && old.shutdown() != 0 {
            state.status &= !STATUS_SHUT_DOWN;
        }
        let shuts_down = new.shutdown() != 0 && old.shutdown() == 0;
        if shuts_down {
            state.status |= STATUS_SHUT_DOWN;
            self.reset(&mut state);
        }
        shuts_down && new.shutdown() == 1
    }

    /// True if it accepts commands other than Fabrics commands.
    pub(super) fn is_ready(&self) -> bool {
        self.state.lock().status & (STATUS_READY | STATUS_FATAL) == STATUS_READY
    }

    pub(super) fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_write(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn smart(&self) -> SmartLog {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        SmartLog {
            units_read: get(&self.bytes_read).div_ceil(512_000),
            units_written: get(&self.bytes_written).div_ceil(512_000),
            reads: get(&self.reads),
            writes: get(&self.writes),
            errors: self.state.lock().error_count,
        }
    }

    /// Notes a command that failed.
    pub(super) fn failed(&self, queue: u16, sqe: &Sqe, status: Status) {
        let mut state = self.state.lock();
        state.error_count += 1;
        let entry = ErrorEntry {
            count: state.error_count,
            queue,
            command_id: sqe.command_id(),
            status,
            block: if queue == 0 { 0 } else { sqe.qword(10) },
            namespace: sqe.namespace(),
        };
        state.errors.truncate(ERROR_ENTRIES - 1);
        state.errors.push_front(entry);
    }

    /// The error log, newest first.
    pub(super) fn error_log(&self) -> Vec<u8> {
        self.state.lock().errors.iter().flat_map(ErrorEntry::encode).collect()
    }

    pub(super) fn namespace_changed(&self, id: u32) {
        let mut state = self.state.lock();
        // One more than fits in a list: the list then reports that there are too many.
        if self.kind == ControllerKind::Io && state.namespaces.what.len() <= NAMESPACE_LIST_MAX {
            state.namespaces.what.insert(id);
            state.namespaces.pending = true;
        }
    }

    pub(super) fn discovery_changed(&self) {
        self.state.lock().discovery.pending = self.kind == ControllerKind::Discovery;
    }

    /// The ids of the changed namespace list. Unless the host retains the page, the list is cleared.
    pub(super) fn changed_namespaces(&self, retain: bool) -> Vec<u32> {
        let mut state = self.state.lock();
        let ids: Vec<u32> = state.namespaces.what.iter().copied().collect();
        if !retain {
            state.namespaces = Notice::default();
        }
        if ids.len() > NAMESPACE_LIST_MAX { vec![crate::command::ALL_NAMESPACES] } else { ids }
    }

    /// The discovery log was read.
    pub(super) fn discovery_read(&self, retain: bool) {
        if !retain {
            self.state.lock().discovery.told = false;
        }
    }

    /// The next event to report to the host.
    pub(super) fn event(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let events = state.events;
        let wanted = |mask: u32| events & mask != 0;
        if wanted(EVENT_NAMESPACES)
            && let Some(told) = state.namespaces.tell(0, log_page::CHANGED_NAMESPACES)
        {
            return Some(told);
        }
        if wanted(EVENT_DISCOVERY) { state.discovery.tell(0xf0, log_page::DISCOVERY) } else { None }
    }

    /// True if the host has been silent for too long.
    pub(super) fn is_silent(&self, now: Duration) -> bool {
        let state = self.state.lock();
        !state.keep_alive.is_zero() && now.saturating_sub(state.heard) > state.keep_alive
    }
}

/// A keep alive timeout, rounded up to the granularity.
pub(super) fn keep_alive(milliseconds: u32) -> Duration {
    KEEP_ALIVE_UNIT * milliseconds.div_ceil(100)
}
