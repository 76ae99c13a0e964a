//! What slows writers, and what share of the device background work gets: this file observes the store,
//! `pacing/decide.rs` decides, and this file applies the decision.

use std::sync::Arc;

use crate::db::report::stats::count;
use crate::db::{DbInner, State};
use crate::event_listener::WriteStallCondition;
use crate::info_log::log_info;
use crate::options::CfOptions;
use crate::pacing::common::Seconds;
use crate::pacing::decide::{self, Allowance, FamilyNow, LogsNow, MemoryNow, OneSchedule, Orders, StoreNow, decide};
use crate::pacing::index_tables::Triggers;
use crate::pacing::log_garbage::{LogNeed, LogsToEmpty, are_few, logs_to_empty};
use crate::pacing::write_control::StallReason;
use crate::sync::atomic::Ordering;

impl DbInner {
    /// Decides again how writers are slowed, and what share of the device jobs and reads get. Called after every change
    /// of the tree or its scores, of the memtables or their flush requests, and of an option that matters here.
    pub fn update_pressure(&self, state: &State) {
        let empties = self.logs_to_empty(state).is_some();
        self.front.set_log_room(if empties { 0 } else { self.log_room(state) });
        let store = self.store_now(state);
        self.obey(state, &decide(self.families_now(state, store.logs), store));
    }

    /// Without writes, it is only the passing of time that changes when index tables are merged and flushed.
    pub fn look_at_schedule(&self) {
        if self.front.memory().index().is_some() {
            self.update_pressure(&self.state.lock());
        }
    }

    /// The logs with data that is in no table. Other logs are about to be deleted, or their deletion is disabled: no
    /// flush would free them. Those that cannot be deleted leave less capacity, and so does a device that is full.
    pub fn logs_now(&self, state: &State) -> LogsNow {
        if self.front.memory().index().is_none() {
            return LogsNow::UNBOUNDED;
        }
        let others = state.oldest_log().map(|oldest| state.logs().left_bytes_from(oldest));
        let (newest, others) = others.map_or((0, 0), |others| (self.front.log_size(), others));
        let (capacity, of_device) = self.front.log_capacity(newest.saturating_add(others));
        LogsNow { newest, others, capacity, of_device }
    }

    /// Logs to be emptied by a flush, since most of what is in them is in tables already.
    pub fn logs_to_empty(&self, state: &State) -> Option<LogsToEmpty> {
        let logs = self.logs_now(state);
        if self.front.memory().index().is_none()
            || are_few(logs.newest.saturating_add(logs.others), logs.capacity)
            || state.errors().worst().is_some()
        {
            return None;
        }
        let mut needs: Vec<LogNeed> = state.families().filter_map(|c| c.front().log_need()).collect();
        if self.opts.atomic_flush {
            // Nothing is flushed alone.
            let both = |a: LogNeed, b: LogNeed| LogNeed { oldest: a.oldest.min(b.oldest), live: a.live + b.live };
            needs = needs.into_iter().reduce(both).into_iter().collect();
        }
        let in_use = (state.logs().newest(), self.front.log_size());
        logs_to_empty(needs, state.logs().lengths(Some(in_use)), logs.capacity)
    }

    /// Bytes in needed logs that are in no table, and those that are only kept with them. About: see
    /// [`FamilyFront::logged`](crate::front::FamilyFront::logged).
    pub fn live_and_dead(&self, state: &State) -> (u64, u64) {
        let LogsNow { newest, others, .. } = self.logs_now(state);
        let all = newest.saturating_add(others);
        let live = state.families().map(|c| c.front().logged()).sum::<u64>().min(all);
        (live, all - live)
    }

    /// True when no immutable memtable waits for others to be merged with.
    pub fn flushes_without_merging(&self) -> bool {
        let memory = self.front.memory();
        let now = MemoryNow {
            index_tables: memory.index().is_some(),
            short: memory.should_flush(),
            may_stall: memory.may_stall_writers(),
        };
        decide::flushes_without_merging(now, self.opts.atomic_flush)
    }

    /// What is observed of the store.
    fn store_now(&self, state: &State) -> StoreNow {
        StoreNow {
            at: self.opts.clock.monotonic_nanos() as f64 * 1e-9,
            logs: self.logs_now(state),
            failed: state.errors().worst().is_some(),
            without_merging: self.flushes_without_merging(),
        }
    }

    /// What is observed of each column family.
    fn families_now<'a>(
        &self,
        state: &'a State,
        logs: LogsNow,
    ) -> impl Iterator<Item = FamilyNow<'a, Arc<CfOptions>>> + Clone + use<'a> {
        state.families().map(move |c| {
            let options = c.cf().options.load_full();
            FamilyNow {
                id: c.cf().id,
                load: c.jobs().scores().load(),
                memtables: c.front().full_memtables(&options),
                flushes: c.front().flush_queue(),
                index: c.front().schedule(logs),
                flush_pace: c.front().flush_pace(),
                options,
            }
        })
    }

    fn obey(&self, state: &State, orders: &Orders) {
        orders.schedules.iter().for_each(|one| self.obey_schedule(state, one));
        let written = self.stats.bytes_written.load(Ordering::Relaxed);
        self.pacing.obey(orders, self.live().delayed_write_rate, written);
        if orders.stop.is_some() {
            self.writers.leave_leader_work();
        }
        match orders.stop {
            Some(cause) => self.note_stall(state, WriteStallCondition::Stopped, Some(cause)),
            None if orders.delayed() => {
                self.note_stall(state, WriteStallCondition::Delayed, Some((orders.cause, orders.tree.reason)));
            }
            None if self.pacing.writers().is_paced() => {
                let cause = orders.flushing.map(|id| (id, StallReason::Memtables));
                self.note_stall(state, WriteStallCondition::Delayed, cause);
            }
            None => self.note_stall(state, WriteStallCondition::Normal, None),
        }
    }

    /// After a change threads look for work, and compaction threads use the room that levels have now
    /// (`db/jobs/threads.rs`).
    fn obey_schedule(&self, state: &State, one: &OneSchedule) {
        let Some(c) = state.family(one.id) else { return };
        c.front().set_schedule(one.schedule);
        let Some(change) = one.change else { return };
        let Triggers { merge, flush_bytes } = change.now;
        log_info!(
            self.log,
            "[{}] {}: index tables are merged when {merge} are full, and flushed with {flush_bytes} bytes of memory; \
             levels may hold {} times what the options say",
            c.cf().name,
            change.short.name(),
            change.level_factor
        );
        count(&self.stats.index_schedule_changes, 1);
        self.work_available.notify_all();
    }

    /// How much writers may write at the time `now`, after users wrote `written` bytes in all.
    pub fn allowance(&self, now: Seconds, written: u64) -> Allowance {
        let (without_merging, state) = (self.flushes_without_merging(), self.state.lock());
        let logs = self.logs_now(&state);
        let families =
            state.families().map(|c| c.front().memtables_now(&c.options(), written, without_merging, logs, now));
        decide::allowance(families, now, state.errors().worst().is_some())
    }

    /// The column family whose flush writers wait for.
    pub fn paced_by(&self, state: &State) -> Option<u32> {
        let logs = self.logs_now(state);
        decide::flushing(self.families_now(state, logs), self.flushes_without_merging())
    }

    /// Why column families make writers wait now, if they do.
    pub fn stop_reason(&self, state: &State) -> Option<StallReason> {
        let logs = self.logs_now(state);
        decide::stop(self.families_now(state, logs), logs).map(|(_, why)| why)
    }
}

#[cfg(test)]
mod tests;
