//! Index merges: full index tables that wait for their flush become one, so that reads ask fewer (DecouKV, section
//! 3.4). They are done by flush threads when no flush is due, without any lock, and readers never wait.

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

/// Threads of one index merge. Not measured against others: chosen because writers and flushes need cores, too. How
/// fast two are is in docs/notebook/benchmarks.md.
const THREADS: usize = 2;

impl State {
    /// Index tables that are to become one.
    pub(super) fn pick_index_merge(&mut self) -> Option<(Arc<CfData>, IndexMerge)> {
        if self.errors.of_writes().is_some() {
            return None;
        }
        self.cfs.values_mut().find_map(|c| Some((Arc::clone(&c.cf), c.front.take_merge()?)))
    }
}

impl DbInner {
    /// Does an index merge, unless a flush goes first. A failure changes nothing but that the column family gets no
    /// other.
    pub(super) fn do_index_merge(&self, cf: &CfData, merge: &IndexMerge) {
        let done = guarded("an index merge", || self.index_merge(cf, merge));
        if let Err(e) = &done {
            log_warn!(self.log, "[{}] index merge failed, and there will be no other: {e}", cf.name);
        }
        let mut state = self.state.lock();
        if let Some(c) = state.cfs.get_mut(&cf.id) {
            c.front.merge_ended(done.is_err());
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
            let Some(c) = state.cfs.get_mut(&cf.id) else { return Ok(()) };
            if !c.front.merged(merge, merged) {
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

    /// A flush is due and waits for a thread, or it has taken what is merged.
    fn flush_goes_first(&self, cf: &CfData, merge: &IndexMerge) -> bool {
        // Who has the lock has it for a moment: the next question is soon.
        let Some(state) = self.state.try_lock() else { return false };
        let wanted = state.cfs.get(&cf.id).is_some_and(|c| c.front.is_wanted(merge));
        !wanted || state.flush_may_begin(self.opts.atomic_flush, self.flushes_without_merging())
    }
}
