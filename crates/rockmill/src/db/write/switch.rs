//! Making room: full memtables become immutable, WALs begin, writers wait or are slowed. Only the write leader is
//! here, so nobody writes meanwhile.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rockmill_format::InternalKeyComparator;
use rockmill_io::WriteOptions as FileWriteOptions;

use crate::db::report::stats::count;
use crate::db::write::wal::{WalKind, WalWriter};
use crate::db::{CfState, DbInner, ImmTable, State};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{BackgroundErrorReason, FlushReason, WriteStallCondition, in_listener};
use crate::memtable::write_buffer_manager::WriteBufferManager;
use crate::memtable::{
    BLOCK_SIZE_MIN, MemTable, MemTableFilter, MemoryPool, arena_step, memory_when_full_min, step_of_shards,
};
use crate::options::{CfOptions, WriteOptions};
use crate::pacing::write_control::StallReason;
use crate::perf_context::{self as perf, PerfMetric};
use crate::statistics::{Histogram, Ticker};
use crate::sync::atomic::Ordering;

/// How long a stopped writer waits before it looks again by itself.
const STOP_WAIT: Duration = Duration::from_millis(100);

impl DbInner {
    /// Reports a background error, switches full memtables, waits while writers are stopped, sleeps off delay. True
    /// where others are to wait for longer: a write in a call of a listener is not stopped.
    pub fn make_room(&self, options: &WriteOptions, bytes: u64) -> Result<bool> {
        let _timer = perf::time(PerfMetric::WriteDelayTime);
        let mut stopped = 0;
        // What writers wait for may be the work that waits for this one.
        let never_waits = in_listener();
        loop {
            self.attention.store(false, Ordering::Release);
            let (full, stop, reason) = {
                let mut state = self.state.lock();
                if let Some(e) = state.write_error() {
                    self.attention.store(true, Ordering::Release);
                    return Err(e.clone());
                }
                if self.shutdown.load(Ordering::Acquire) && self.stop_reason(&state).is_some() {
                    return Err(Error::new(ErrorKind::ShutdownInProgress, "the database is being closed"));
                }
                let (mut full, reason) = self.full_memtables(&mut state);
                let victim = self.memory_victim(&state);
                if victim.is_some() && self.opts.atomic_flush {
                    full = with_data(&state);
                }
                full.extend(victim.filter(|id| !full.contains(id)));
                let reason = if victim.is_some() { FlushReason::WriteBufferManager } else { reason };
                (full, self.stop_reason(&state), reason)
            };
            let stalled = full.is_empty() && self.memory_stalls();
            if stalled && self.shutdown.load(Ordering::Acquire) {
                return Err(Error::new(ErrorKind::ShutdownInProgress, "the database is being closed"));
            }
            let stop = stop.or(stalled.then_some(StallReason::WriteBufferManager));
            if let Some(reason) = stop {
                self.attention.store(true, Ordering::Release);
                if never_waits {
                    return Ok(true);
                }
                if options.no_slowdown {
                    return Err(Error::new(ErrorKind::Incomplete, format!("write stall: too many {}", reason.name())));
                }
                let before = self.opts.clock.monotonic_nanos();
                if let (StallReason::WriteBufferManager, Some(manager)) = (reason, &self.write_buffers) {
                    self.work.notify_all();
                    manager.wait(STOP_WAIT, || self.queue.has_urgent());
                } else {
                    let mut state = self.state.lock();
                    // Looked at again under the lock that the wait gives back: who changes one of them tells after.
                    let closing = self.shutdown.load(Ordering::Acquire);
                    let waits = state.write_error().is_none() && !closing && !self.queue.has_urgent();
                    if waits && self.stop_reason(&state).is_some() {
                        self.work.notify_all();
                        self.progress.wait_for(&mut state, STOP_WAIT);
                    }
                }
                self.queue.lend();
                let waited = self.opts.clock.monotonic_nanos().saturating_sub(before) / 1000;
                stopped += waited;
                self.pacing.writers().note_wait(stopped);
                self.pacing.writers().stopped_micros.fetch_add(waited, Ordering::Relaxed);
                self.count_stall(waited);
                continue;
            }
            if full.is_empty() {
                break;
            }
            self.switch_memtables(&full, reason)?;
        }
        if never_waits {
            return Ok(true);
        }
        let written = self.stats.bytes_written.load(Ordering::Relaxed);
        let lent = Cell::new(false);
        let lend = || lent.set(self.queue.lend() | lent.get());
        if self.pacing.writers().is_delaying() {
            if options.no_slowdown {
                let reason = self.pacing.writers().reason().name();
                return Err(Error::new(ErrorKind::Incomplete, format!("write stall: too many {reason}")));
            }
            let slept = self.pacing.writers().delay(bytes, written, &self.shutdown, &*self.opts.clock, lend);
            if slept > 0 {
                self.count_stall(slept);
            }
        }
        // Who must not be slowed goes on until memory is full.
        if !options.no_slowdown && self.pacing.writers().is_pacing(written) {
            self.pace(written, lend);
        }
        match lent.get() {
            // A write that came between may have failed, and left the WAL as it is.
            true => self.state.lock().write_error().map_or(Ok(false), |e| Err(e.clone())),
            false => Ok(false),
        }
    }

    /// Lets the flush in flight come nearer to its end.
    fn pace(&self, written: u64, lend: impl Fn()) {
        let rate = |now: f64| {
            lend();
            self.paced_rate(now, written)
        };
        let (slept, first) = self.pacing.writers().pace(written, &self.shutdown, &*self.opts.clock, rate);
        if slept > 0 {
            self.count_stall(slept);
        }
        if first {
            let state = self.state.lock();
            if let Some(cause) = self.paced_by(&state) {
                self.note_stall(&state, WriteStallCondition::Delayed, Some((cause, StallReason::Memtables)));
            }
        }
    }

    /// A writer waited or was delayed.
    fn count_stall(&self, micros: u64) {
        count(&self.stats.stall_micros, micros);
        self.pacing.reads_first().writer_delayed();
        if let Some(s) = &self.opts.statistics {
            s.add(Ticker::StallMicros, micros);
            s.record_time(Histogram::WriteStall, micros);
        }
    }

    /// Column families whose memtable is full, or holds back WALs that have grown too large together; and which of the
    /// two it is. Immutable memtables that hold them back are due from here on.
    fn full_memtables(&self, state: &mut State) -> (Vec<u32>, FlushReason) {
        let mut reason = FlushReason::WriteBufferFull;
        let is_full = |c: &CfState| MemTableLimit::of(&c.cf.options.load()).is_reached(&c.mem);
        let mut full: Vec<u32> =
            state.cfs.iter().filter(|(_, c)| !c.mem.is_empty() && is_full(c)).map(|(&id, _)| id).collect();
        let room = self.wal_room(state);
        if self.wal.size() > room
            && let Some(oldest) = state.cfs.values().filter_map(CfState::oldest_wal).min()
        {
            for (&id, c) in &mut state.cfs {
                if !c.mem.is_empty() && c.mem_wal <= oldest && !full.contains(&id) {
                    full.push(id);
                    reason = FlushReason::WalFull;
                }
                // They may wait for others to be merged with, which need never come.
                if c.imm.front().is_some_and(|i| i.wal <= oldest) && !c.flushing && !c.flush_requested {
                    (c.flush_requested, c.flush_reason) = (true, FlushReason::WalFull);
                    self.work.notify_all();
                }
            }
        }
        // With nothing to switch, flushes that run or wait make room: the end of one sets this again.
        self.wal.set_room(if full.is_empty() && self.wal.size() > room { u64::MAX } else { room });
        if self.opts.atomic_flush && !full.is_empty() {
            full = with_data(state);
        }
        (full, reason)
    }

    /// Length of the present WAL at which all together are too large.
    pub fn wal_room(&self, state: &State) -> u64 {
        if state.cfs.len() <= 1 {
            return u64::MAX; // the WAL goes with the memtable
        }
        let memtables = |c: &CfState| {
            let o = c.cf.options.load();
            (o.write_buffer_size as u64).saturating_mul(o.max_write_buffer_number.max(1) as u64)
        };
        let limit = match self.live().max_total_wal_size {
            0 => state.cfs.values().map(memtables).fold(0, u64::saturating_add).saturating_mul(4),
            n => n,
        };
        limit.saturating_sub(state.wals.iter().map(|w| w.1).sum())
    }

    /// When all memtables together hold too much: the column family with the oldest one, of those that do not wait for
    /// a flush already.
    fn memory_victim(&self, state: &State) -> Option<u32> {
        if !self.write_buffers.as_ref()?.should_flush() {
            return None;
        }
        let at_once = self.flushes_at_once();
        let idle = |c: &crate::db::CfState| c.imm.is_empty() || (!c.flushing && !c.flush_due(at_once));
        let candidates = state.cfs.iter().filter(|(_, c)| !c.mem.is_empty() && idle(c));
        candidates.min_by_key(|(_, c)| c.mem.first_sequence()).map(|(&id, _)| id)
    }

    /// True when writers wait until flushes have freed memory.
    pub fn memory_stalls(&self) -> bool {
        self.write_buffers.as_ref().is_some_and(WriteBufferManager::should_stall)
    }

    /// True when the memory of all memtables asks for a flush, or for writers to wait.
    #[inline]
    pub fn memory_is_short(&self) -> bool {
        self.write_buffers.as_ref().is_some_and(|m| m.should_flush() || m.should_stall())
    }

    /// For new memtables.
    pub fn memory(&self) -> MemTableMemory<'_> {
        MemTableMemory { manager: self.write_buffers.as_ref(), pool: Some(&self.memory_pool) }
    }

    /// Makes these column families' memtables immutable and begins new ones, and a new WAL if the present one is not
    /// empty. All of them at once: nothing can be flushed that has only some.
    pub fn switch_memtables(&self, ids: &[u32], reason: FlushReason) -> Result<()> {
        let wal_number = self.begin_wal()?;
        let mut state = self.state.lock();
        self.seal_memtables(&mut state, ids, wal_number, reason);
        self.update_pressure(&state);
        drop(state);
        self.work.notify_all();
        Ok(())
    }

    /// Makes these column families' memtables immutable, and begins new ones whose data is in WAL `wal` and later.
    pub fn seal_memtables(&self, state: &mut State, ids: &[u32], wal: u64, reason: FlushReason) {
        // Memtables without data follow the new WAL: they hold back no older one. The column family's log number does
        // not: a MANIFEST that said so while an older WAL is not durable would put its tables ahead of that WAL, and
        // recovery would refuse what is behind a power cut.
        for c in state.cfs.values_mut() {
            if c.mem.is_empty() && c.imm.is_empty() {
                c.mem_wal = wal;
            }
        }
        let written = self.stats.bytes_written.load(Ordering::Relaxed);
        let (now, waited) = (self.opts.clock.monotonic_nanos() as f64 * 1e-9, self.pacing.writers().waited_seconds());
        for id in ids {
            let Some(c) = state.cfs.get_mut(id) else { continue };
            if c.mem.is_empty() {
                continue;
            }
            c.next_mem_id += 1;
            let fresh = new_memtable(c.next_mem_id, &c.cf.cmp, &c.cf.options.load(), self.memory());
            let full = std::mem::replace(&mut c.mem, fresh);
            full.mark_immutable();
            let size = c.cf.options.load().write_buffer_size;
            let data = full.data_size();
            if let Some(seconds) = c.fill.sealed((data, full.memory_usage(), size), written, now, waited) {
                c.pace.wrote(data as f64, seconds);
            }
            self.memtable_sealed(&c.cf, &full);
            c.imm.push_back(ImmTable { mem: full, wal: c.mem_wal });
            c.mem_wal = wal;
            c.flush_reason = reason;
            // Also where several memtables are to be merged: the WAL is to go, or the memory is needed, now.
            c.flush_requested |= matches!(reason, FlushReason::WalFull | FlushReason::WriteBufferManager);
            c.publish();
        }
    }

    /// Begins a new WAL unless the present one is empty; gives the number of the one in use afterwards.
    pub fn begin_wal(&self) -> Result<u64> {
        // The present one may end in a record that does not count; a recovery leaves it.
        if let Some(e) = self.state.lock().write_error() {
            return Err(e.clone());
        }
        let mut current = self.wal.lead();
        if let Some(w) = current.as_mut() {
            // Tables come of the switch, and may have numbers that no WAL has.
            let marked = w.mark_end(self.queue.in_flight.newest(&self.last_sequence) + 1);
            if marked.is_ok() && w.is_unused() {
                return Ok(w.number);
            }
            // What gathered in it must not be behind what the next one holds.
            if let Err(e) = marked.and_then(|()| w.flush()) {
                drop(current);
                self.set_background_error(BackgroundErrorReason::WriteCallback, "a write to the WAL", &e);
                return Err(e);
            }
        }
        let number = self.new_file_number();
        let mut fresh = match self.create_wal(number, self.wal.take_for_reuse()) {
            Ok(w) => w,
            Err(e) => {
                drop(current);
                self.set_background_error(BackgroundErrorReason::WriteCallback, "the creation of a WAL", &e);
                return Err(e);
            }
        };
        if let Some(before) = &*current {
            fresh.follow(before);
        }
        let left = self.wal.begin(&mut current, fresh);
        let size = left.as_ref().map_or(0, WalWriter::size);
        if let Some(old) = left {
            self.wal.leave(old);
        }
        drop(current);
        let mut state = self.state.lock();
        if let Some(last) = state.wals.back_mut() {
            last.1 = size;
        }
        state.wals.push_back((number, 0));
        Ok(number)
    }

    pub fn create_wal(&self, number: u64, recycle: Option<u64>) -> Result<WalWriter> {
        let live = self.live();
        let options = FileWriteOptions {
            bytes_per_sync: live.wal_bytes_per_sync,
            strict_bytes_per_sync: live.strict_bytes_per_sync,
            buffer_size: live.writable_file_max_buffer_size,
            ..FileWriteOptions::default()
        };
        let kind = WalKind { recyclable: self.recycled_wals() > 0, gathers: self.opts.manual_wal_flush };
        WalWriter::create(&self.opts.fs, &self.wal_dir, number, options, recycle, kind)
    }
}

/// Column families whose memtables have data.
pub(crate) fn with_data(state: &State) -> Vec<u32> {
    state.cfs.iter().filter(|(_, c)| !c.mem.is_empty()).map(|(&id, _)| id).collect()
}

/// What makes a memtable full.
#[derive(Clone, Copy)]
pub(crate) struct MemTableLimit {
    bytes: usize,
    range_deletions: u64,
}

impl MemTableLimit {
    #[inline]
    pub fn of(options: &CfOptions) -> Self {
        let range_deletions = match options.memtable_max_range_deletions {
            0 => u64::MAX,
            n => n.into(),
        };
        Self { bytes: options.write_buffer_size.max(memory_when_full_min()), range_deletions }
    }

    #[inline]
    pub fn is_reached(self, mem: &MemTable) -> bool {
        mem.memory_usage() >= self.bytes || mem.num_range_deletes() >= self.range_deletions
    }
}

/// Bytes of a memtable's filter at most, whatever two options make of each other: ten bits for each of 13 million keys.
const FILTER_MAX: usize = 16 << 20;

/// Where the memory of a store's memtables comes from, and where it is charged.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemTableMemory<'a> {
    pub manager: Option<&'a WriteBufferManager>,
    pub pool: Option<&'a Arc<MemoryPool>>,
}

/// An empty memtable. Its arena grows as [`arena_step`] says, and in smaller steps where a small limit bounds all
/// memtables together: a fresh memtable must not come near it.
pub(crate) fn new_memtable(
    id: u64,
    cmp: &InternalKeyComparator,
    options: &CfOptions,
    memory: MemTableMemory<'_>,
) -> Arc<MemTable> {
    let limit = memory.manager.map_or(0, WriteBufferManager::get_buffer_size);
    let mut step = arena_step(options.write_buffer_size, options.arena_block_size);
    if limit > 0 {
        step = step.min((limit / 64).max(BLOCK_SIZE_MIN));
    }
    let pool = memory.pool.filter(|pool| pool.serves(options.write_buffer_size, step)).cloned();
    if pool.is_none() {
        step = step.min(step_of_shards(options.write_buffer_size));
    }
    // RocksDB's limits.
    let ratio = options.memtable_prefix_bloom_size_ratio.clamp(0.0, 0.25);
    let filter = MemTableFilter {
        bytes: ((options.write_buffer_size as f64 * ratio) as usize).min(FILTER_MAX),
        whole_keys: options.memtable_whole_key_filtering,
        prefixes: options.prefix_extractor.clone(),
    };
    Arc::new(MemTable::charging(id, cmp.clone(), step, &filter, memory.manager, pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_bounded_whatever_two_options_make_of_each_other() {
        let options = CfOptions {
            write_buffer_size: 64 << 30,
            memtable_prefix_bloom_size_ratio: 0.25,
            memtable_whole_key_filtering: true,
            ..CfOptions::default()
        };
        let empty = new_memtable(1, &InternalKeyComparator::default(), &options, MemTableMemory::default());
        assert!((FILTER_MAX..FILTER_MAX + (1 << 20)).contains(&empty.memory_usage()), "{}", empty.memory_usage());
    }
}
