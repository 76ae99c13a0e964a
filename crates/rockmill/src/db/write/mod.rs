//! The write path: from a batch to the front (`front/`), which makes it durable and findable.
//!
//! | file | what happens there |
//! |---|---|
//! | `api.rs` | what users call: single updates and batches, checked |
//! | `batch.rs` | batches of updates |
//! | `group.rs` | how a batch gets in: its group is logged, inserted and made visible |
//! | `queue.rs` | who leads a group, and who inserts its batches |
//! | `in_flight.rs` | groups that are in the WAL, and when they become visible |
//! | `turn.rs`, `commit_delay.rs` | how long a writer goes on before others run; what a synced group waits for |
//! | `switch.rs` | what the leader does between groups: memtables that are full, writers that must wait |
//! | `full_device.rs` | an append finds no space on the fast device, and waits for a flush |
//! | `pressure.rs` | what slows writers and what jobs get of the device: observed, and obeyed |
//! | `wal_iterator.rs` | updates read back from the logs |

mod api;
pub(crate) mod batch;
pub(crate) mod commit_delay;
mod full_device;
pub(crate) mod group;
pub(crate) mod in_flight;
pub(crate) mod pressure;
pub(crate) mod queue;
pub(crate) mod switch;
pub(crate) mod turn;
pub(crate) mod wal_iterator;

use crate::options::DbOptions;
use crate::sync::atomic::{AtomicBool, Ordering};
use in_flight::InFlight;
use queue::WriteQueue;
use rockmill_format::SequenceNumber;

/// What the writers of an open database share.
pub(crate) struct Writers {
    /// Who leads the next group.
    queue: WriteQueue,
    in_flight: InFlight,
    /// The leader has something to do before the next group: switch a memtable, wait, report an error.
    leader_has_work: AtomicBool,
}

impl Writers {
    /// For a database that is being opened; its newest sequence number is `last_sequence`.
    pub fn new(last_sequence: SequenceNumber, options: &DbOptions) -> Self {
        Self {
            queue: WriteQueue::new(options.max_write_batch_group_size_bytes),
            in_flight: InFlight::new(last_sequence),
            leader_has_work: AtomicBool::new(false),
        }
    }

    /// What is logged, and how much of it reads may see.
    #[inline]
    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Makes the next leader check for work (`switch.rs`) before it begins with its group.
    pub fn leave_leader_work(&self) {
        self.leader_has_work.store(true, Ordering::Release);
    }

    /// True when a writer in a call of a listener wants to lead.
    pub fn has_from_listener(&self) -> bool {
        self.queue.has_from_listener()
    }

    /// Lets writers in calls of listeners lead; see [`WriteQueue::lend`].
    pub fn lend(&self) -> bool {
        self.queue.lend(&self.in_flight)
    }
}
