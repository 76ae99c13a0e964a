//! What users can ask about the store, and what listeners and the info log are told.
//!
//! | file | what happens there |
//! |---|---|
//! | `events.rs` | calls of listeners, and lines of LOG |
//! | `stats.rs`, `stats_text.rs` | what is always counted; its text |
//! | `properties.rs`, `summary.rs` | properties by name; a database that is not open, in brief |
//! | `live_files.rs`, `running.rs` | which tables there are; which jobs run |
//! | `approximate_sizes.rs`, `memory_usage.rs` | sizes of key ranges; memory by what has it |
//! | `metrics.rs`, `prometheus.rs` | all numbers for Prometheus, and the status file; the same for a registry |
//! | `explain.rs` | what a compaction would do |

pub(crate) mod approximate_sizes;
pub(crate) mod events;
#[cfg(feature = "internals")]
pub(crate) mod explain;
pub(crate) mod live_files;
pub(crate) mod memory_usage;
pub(crate) mod metrics;
#[cfg(feature = "prometheus")]
pub(crate) mod prometheus;
pub(crate) mod properties;
pub(crate) mod running;
pub(crate) mod stats;
pub(crate) mod stats_text;
pub(crate) mod summary;

use std::path::PathBuf;
use std::sync::Arc;

use rockmill_io::Clock;

use crate::event_listener::WriteStallCondition;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use events::DeferredEvents;
use running::RunningJobs;
use stats::DbCounters;

/// What the last text of the database's counters said, and when.
#[derive(Debug, Default)]
struct Reported {
    micros: u64,
    counters: DbCounters,
}

/// The present status file.
#[derive(Debug, Default)]
pub(crate) struct StatusFile {
    /// Empty without one.
    path: PathBuf,
    /// It could not be written the last time.
    failed: bool,
    /// It was written, so the existing file belongs to this database.
    ours: bool,
}

/// Which events of an open database were reported, and which are still to be reported.
pub(crate) struct Reporting {
    opened_micros: u64,
    /// What the last text of counters said. A leaf lock.
    reported: Mutex<Reported>,
    /// Calls of listeners that wait until no lock is held.
    deferred: DeferredEvents,
    /// How writers were treated when listeners were last told. A leaf lock.
    stall_condition: Mutex<WriteStallCondition>,
    /// Number of the last background job, for the info log and listeners.
    last_job: AtomicU64,
    running: RunningJobs,
}

impl Reporting {
    /// Of a database that is opened now.
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            opened_micros: clock.now_micros(),
            reported: Mutex::default(),
            deferred: DeferredEvents::default(),
            stall_condition: Mutex::default(),
            last_job: AtomicU64::new(0),
            running: RunningJobs::new(clock),
        }
    }

    /// When the database was opened, in microseconds since 1970.
    pub fn opened_micros(&self) -> u64 {
        self.opened_micros
    }

    /// A number for a background job.
    pub fn new_job(&self) -> u64 {
        self.last_job.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The jobs that run.
    pub fn running(&self) -> &RunningJobs {
        &self.running
    }
}
