//! The timer thread: writes the info log to its file, dumps statistics into it now and then, writes the status file,
//! deletes tables whose last user was a reader, archived WALs for which there is no room and obsolete WALs for which
//! that failed, begins flushes of logs that no writer begins, releases unused rings and memory, and makes calls of
//! listeners that no other thread has made yet.

use std::sync::Arc;
use std::time::Duration;

use crate::db::DbInner;
use crate::db::report::StatusFile;
use crate::info_log::{LogLevel, log_warn};
use crate::sync::atomic::Ordering;

/// Time between two rounds. Derived: the timer's work is due in whole seconds (`stats_dump_period_sec`, ages of files),
/// and nothing waits for it. Measured: a wake-up takes 24 us of CPU, 0.002 % of a core; the checks are a few locks.
const PERIOD: Duration = Duration::from_secs(1);

/// How long memory that no memtable uses is kept for one that may, in nanoseconds. Derived: between one [`PERIOD`] and
/// two, so that the second round after the one that saw the last use frees it. Writers that fill a piece of 2 MiB in
/// less time keep their memory; for others each piece is allocated again. Measured: that takes 0.45 ms of CPU, 0.03 %
/// of a core at most; with half of the time 0.06 %, with twice of it 0.015 %.
const MEMORY_KEPT_NANOS: u64 = 3 * PERIOD.as_nanos() as u64 / 2;

/// What the thread runs.
pub(crate) fn run(db: &Arc<DbInner>) {
    let mut dumped = db.reporting.opened_micros();
    let mut memory_used = (0, 0);
    let mut status = StatusFile::default();
    while !db.shutdown.load(Ordering::Acquire) {
        db.log.alarm().wait(PERIOD);
        db.front.memory().prepare();
        db.delete_purged_files();
        db.retry_stuck_logs();
        db.trim_archived_wals();
        db.look_at_fast_device();
        db.front.device().end_round();
        db.tell_waiting();
        db.engines.trim(&*db.opts.clock);
        db.give_memory_back(&mut memory_used);
        // These flush because time passes, which `reproducible` excludes.
        if !db.opts.reproducible {
            db.release_logs_without_writers();
            db.look_at_schedule();
        }
        let period = u64::from(db.live().stats_dump_period_sec) * 1_000_000;
        let now = db.opts.clock.now_micros();
        if period > 0 && now.saturating_sub(dumped) >= period {
            dumped = now;
            db.dump_stats();
        }
        db.update_status_file(&mut status);
        db.log.write_out();
    }
    db.remove_status_file(&mut status);
}

impl DbInner {
    /// Returns the memory of deleted memtables to the system if no memtable has requested any for a while. `used`: the
    /// number of uses seen, and when.
    fn give_memory_back(&self, used: &mut (u64, u64)) {
        let (uses, now) = (self.front.memory().uses(), self.opts.clock.monotonic_nanos());
        if uses != used.0 {
            *used = (uses, now);
        } else if now.saturating_sub(used.1) >= MEMORY_KEPT_NANOS {
            self.front.memory().give_back();
        }
    }

    /// Writes `rocksdb.stats` and the statistics, if they are on, into the info log.
    pub fn dump_stats(&self) {
        if !self.log.wants(LogLevel::Warn) {
            return;
        }
        log_warn!(self.log, "------- DUMPING STATS -------");
        self.log.log_lines(LogLevel::Warn, format_args!("{}", self.stats_text()));
        if let Some(s) = &self.opts.statistics {
            self.log.log_lines(LogLevel::Warn, format_args!("STATISTICS:\n {s}"));
        }
    }
}
