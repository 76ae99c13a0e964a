//! Index merges: full index tables that wait for their flush are merged into one, so that reads have fewer to ask
//! (DecouKV, section 3.4). Flush threads do this when no flush is due, without any lock; readers never wait.

use std::sync::Arc;
use std::thread::available_parallelism;

use crate::db::catalog::column_family::CfData;
use crate::db::report::stats::count;
use crate::db::{DbInner, State};
use crate::error::Result;
use crate::front::{IndexMerge, MergeMeans};
use crate::info_log::{log_info, log_warn};
use crate::panics::guarded;
use crate::sync::atomic::Ordering;

/// Threads of one index merge. Simulated with 1, 2 and 4 (100 GB; SATA, disk, NVMe; 2 to 8 cores): writers differ by
/// less than 0.5 %, since a merge is seldom what they wait for. With all addresses in memory and 20 cores they get 276,
/// 288 and 284 MB/s. How fast two are is in docs/notebook/benchmarks.md.
const THREADS: usize = 2;

impl State {
    /// Index tables that are to become one. Column families take turns, so that one with constant writes does not keep
    /// others from getting a merge.
    pub(super) fn pick_index_merge(&mut self) -> Option<(Arc<CfData>, IndexMerge)> {
        if self.errors().of_writes().is_some() {
            return None;
        }
        let last = self.jobs().merged_last;
        for later in [true, false] {
            let mut turn = self.families_mut().filter(|c| (c.cf().id > last) == later);
            if let Some((cf, merge)) = turn.find_map(|c| Some((Arc::clone(c.cf()), c.front_mut().take_merge()?))) {
                self.jobs_mut().merged_last = cf.id;
                return Some((cf, merge));
            }
        }
        None
    }

    /// A flush is due, and no thread is free for it.
    fn flush_lacks_a_thread(&self, atomic: bool, without_merging: bool) -> bool {
        self.jobs().idle_flush_threads == 0 && self.flush_may_begin(atomic, without_merging)
    }
}

impl DbInner {
    /// Does an index merge, unless a flush goes first. After a failure the column family gets no further index merges
    /// until its next flush; nothing else changes.
    pub(super) fn do_index_merge(&self, cf: &CfData, merge: &IndexMerge) {
        let done = guarded("an index merge", || self.index_merge(cf, merge));
        if let Err(e) = &done {
            count(&self.stats.index_merges_failed, 1);
            log_warn!(self.log, "[{}] an index merge failed, and there is no other until a flush: {e}", cf.name);
        }
        let mut state = self.state.lock();
        if let Some(c) = state.family_mut(cf.id) {
            c.front_mut().merge_ended(done.is_err());
        }
        self.update_pressure(&state);
    }

    fn index_merge(&self, cf: &CfData, merge: &IndexMerge) -> Result<()> {
        let began = self.opts.clock.monotonic_nanos();
        // In this order: see `memtable/merged.rs`.
        let visible = self.last_sequence();
        let snapshots = self.readers.snapshots().all();
        let stop = || self.shutdown.load(Ordering::Acquire) || self.flush_goes_first(cf, merge);
        let threads = available_parallelism().map_or(1, |n| n.get().min(THREADS));
        let means = MergeMeans { visible, snapshots: &snapshots, threads, stop: &stop };
        let built = merge.build(self.front.memory(), &cf.options.load(), &means)?;
        let Some(merged) = built else {
            count(&self.stats.index_merges_stopped, 1);
            return Ok(());
        };
        let (left_out, left_bytes) = (merged.left_out(), merged.left_bytes());
        {
            let mut state = self.state.lock();
            let Some(c) = state.family_mut(cf.id) else { return Ok(()) };
            if !c.front_mut().merged(merge, merged) {
                count(&self.stats.index_merges_stopped, 1);
                return Ok(());
            }
            c.publish();
        }
        let micros = self.opts.clock.monotonic_nanos().saturating_sub(began) / 1000;
        count(&self.stats.index_tables_merged, merge.count() as u64);
        count(&self.stats.index_entries_merged, merge.entries());
        count(&self.stats.index_entries_left_out, left_out);
        count(&self.stats.index_bytes_left_out, left_bytes);
        count(&self.stats.index_merge_micros, micros);
        log_info!(
            self.log,
            "[{}] {} index tables became one in {micros} us: {} entries, {left_out} left out with {left_bytes} bytes \
             in logs",
            cf.name,
            merge.count(),
            merge.entries()
        );
        Ok(())
    }

    /// A flush is due and waits for a thread, or it has taken the memtables that are being merged.
    fn flush_goes_first(&self, cf: &CfData, merge: &IndexMerge) -> bool {
        // If the lock is taken, it is held only for a moment, and the next check comes soon.
        let Some(state) = self.state.try_lock() else { return false };
        let wanted = state.family(cf.id).is_some_and(|c| c.front().is_wanted(merge));
        let (atomic, without_merging) = (self.opts.atomic_flush, self.flushes_without_merging());
        if !wanted || state.flush_lacks_a_thread(atomic, without_merging) {
            return true;
        }
        if state.flush_may_begin(atomic, without_merging) {
            // The event that made it due, such as another database's use of memory, may not have woken any thread.
            self.work_available.notify_all();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rockmill_io::MemFileSystem;

    use super::*;
    use crate::db::Db;
    use crate::event_listener::FlushReason;
    use crate::options::Options;

    /// Two column families with two full index tables each, which no thread has seen: it is done under the lock.
    fn with_full_tables(then: impl FnOnce(&DbInner, &mut State)) {
        let mut o = Options::default();
        o.create_if_missing(true);
        o.create_missing_column_families(true);
        o.set_file_system(Arc::new(MemFileSystem::new()));
        o.set_fast_path("/fast", 1 << 30);
        o.set_max_background_jobs(8);
        let db = Db::open_cf(&o, "/db", ["default", "second"]).unwrap();
        let inner = &db.inner;
        for round in 0..2 {
            for name in ["default", "second"] {
                db.put_cf(&db.cf_handle(name).unwrap(), "key", "value").unwrap();
            }
            let log = inner.begin_wal().unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            let mut state = loop {
                let state = inner.state.lock();
                if state.jobs().idle_flush_threads == 2 {
                    break state;
                }
                assert!(Instant::now() < until, "two flush threads never rest");
                drop(state);
                std::thread::yield_now();
            };
            inner.seal_memtables(&mut state, &[0, 1], log, FlushReason::WriteBufferFull);
            if round == 1 {
                return then(inner, &mut state);
            }
        }
    }

    #[test]
    fn column_families_take_turns() {
        with_full_tables(|_, state| {
            let mut ids = Vec::new();
            for _ in 0..4 {
                let (cf, _) = state.pick_index_merge().expect("a merge");
                // It ended, and there is another to do.
                state.family_mut(cf.id).expect("it is there").front_mut().merge_ended(false);
                ids.push(cf.id);
            }
            assert_eq!(ids, [1, 0, 1, 0]);
            let pair = [state.pick_index_merge(), state.pick_index_merge(), state.pick_index_merge()];
            assert_eq!(pair.each_ref().map(|p| p.as_ref().map(|(cf, _)| cf.id)), [Some(1), Some(0), None]);
        });
    }

    #[test]
    fn a_merge_goes_on_where_another_thread_takes_the_flush() {
        with_full_tables(|_, state| {
            state.family_mut(1).expect("it is there").front_mut().request_flush(FlushReason::WalFull);
            assert!(state.flush_may_begin(false, false) && !state.flush_lacks_a_thread(false, false));
            let idle = std::mem::take(&mut state.jobs_mut().idle_flush_threads);
            assert!(state.flush_lacks_a_thread(false, false), "nobody else is there");
            state.jobs_mut().idle_flush_threads = idle;
        });
    }
}
