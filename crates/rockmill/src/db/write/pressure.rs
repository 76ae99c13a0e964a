//! What slows writers and what background work gets of the device: observed, decided in `pacing/decide.rs`, obeyed.

use crate::db::{CfState, DbInner, State};
use crate::event_listener::WriteStallCondition;
use crate::pacing::decide::{FamilyNow, Orders, decide};
use crate::pacing::write_control::{StallReason, write_stop};
use crate::sync::atomic::Ordering;

impl CfState {
    /// See [`FamilyFront::paced_rate`](crate::front::FamilyFront::paced_rate).
    fn paced_rate(&self, now: f64, written: u64, at_once: bool) -> (f64, f64) {
        self.front.paced_rate(&self.cf.options.load(), now, written, at_once)
    }
}

impl DbInner {
    /// Decides again how writers are slowed, and what jobs and reads get of the device. Called after every change of
    /// the tree, of the memtables, or of an option that counts.
    pub fn update_pressure(&self, state: &State) {
        self.front.set_log_room(self.log_room(state));
        let at_once = self.flushes_at_once();
        let families = state.cfs.iter().map(|(&id, c)| FamilyNow {
            id,
            options: c.cf.options.load_full(),
            load: c.jobs.scores().load(),
            full_memtables: c.front.sealed_count(),
            flushing: c.waits_for_flush(at_once),
            pace: c.front.pace(),
        });
        self.obey(state, &decide(families, state.errors.worst().is_some()));
    }

    fn obey(&self, state: &State, orders: &Orders) {
        let written = self.stats.bytes_written.load(Ordering::Relaxed);
        self.pacing.obey(orders, self.live().delayed_write_rate, written);
        if orders.stop.is_some() {
            self.leader_has_work.store(true, Ordering::Release);
        }
        match orders.stop {
            Some(cause) => self.note_stall(state, WriteStallCondition::Stopped, Some(cause)),
            None if orders.delayed() => {
                self.note_stall(state, WriteStallCondition::Delayed, Some((orders.cause, orders.tree.reason)));
            }
            None if self.pacing.writers().is_paced() => {
                let cause = self.paced_by(state).map(|id| (id, StallReason::Memtables));
                self.note_stall(state, WriteStallCondition::Delayed, cause);
            }
            None => self.note_stall(state, WriteStallCondition::Normal, None),
        }
    }

    /// Bytes a second that writers get while flushes are in flight, without bound when none is, and for how many there
    /// is room.
    pub fn paced_rate(&self, now: f64, written: u64) -> (f64, f64) {
        let (at_once, state) = (self.flushes_at_once(), self.state.lock());
        let free = (f64::INFINITY, f64::INFINITY);
        if state.errors.worst().is_some() {
            return free;
        }
        let paces = state.cfs.values().map(|c| c.paced_rate(now, written, at_once));
        paces.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or(free)
    }

    /// The column family whose flush writers wait for.
    pub fn paced_by(&self, state: &State) -> Option<u32> {
        let at_once = self.flushes_at_once();
        state.cfs.iter().find(|(_, c)| c.waits_for_flush(at_once)).map(|(&id, _)| id)
    }

    /// Why writers must wait now, if they must.
    pub fn stop_reason(&self, state: &State) -> Option<StallReason> {
        let stop = |c: &CfState| write_stop(c.jobs.scores().load(), &c.cf.options.load(), c.front.sealed_count());
        state.cfs.values().find_map(stop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rockmill_io::MemFileSystem;

    use crate::db::Db;
    use crate::options::Options;

    /// Else compactions would go on at full speed beside users' reads, until the next of them ends.
    #[test]
    fn nobody_waits_for_a_flush_that_has_committed() {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.set_file_system(Arc::new(MemFileSystem::new()));
        let db = Db::open(&o, "/db").unwrap();
        db.put("key", "value").unwrap();
        db.flush().unwrap();
        assert!(!db.inner.pacing.read_protection().is_awaited());
    }
}
