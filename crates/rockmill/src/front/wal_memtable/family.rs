//! What a column family has that is in no table: the memtable that writers fill, full ones that wait for their flush,
//! and what is asked of that flush.
//!
//! All of it is guarded by the database's lock (`state`), and no method does I/O. Readers and writers use a
//! [`FrontView`], which they find without the lock.
//!
//! 1. Writers fill the active memtable. It is [sealed](FamilyFront::seal) between two write groups, by the leader.
//! 2. A flush [takes](FamilyFront::take_sealed) everything that is sealed. Only one of a column family runs at a time,
//!    so what it took is still the oldest when it [commits](FamilyFront::flushed).
//! 3. After the commit the log number is that of the log in which what is left began.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use super::memory::{BufferLimit, FrontMemory, IndexTables, memtable_size};
use super::view::{FrontView, SealedRuns, stats_of};
use crate::event_listener::FlushReason;
use crate::front::{BufferStats, SealedInfo};
use crate::memtable::MemTable;
use crate::memtable::log_values::LoggedValue;
use crate::options::CfOptions;
use crate::pacing::common::Seconds;
use crate::pacing::decide::{FullMemtables, LogsNow, MemtablesNow};
use crate::pacing::flush_pace::{Filled, FlushPace, MemtableFill, OneFlush};

/// See the module's text.
pub(crate) struct FamilyFront {
    cmp: InternalKeyComparator,
    /// Its memtables are index tables.
    index: Option<IndexTables>,
    /// The memtable that writers fill.
    active: Arc<MemTable>,
    /// The log that was in use when `active` began: its data is in this one or later ones.
    active_log: u64,
    /// Oldest first.
    sealed: VecDeque<Sealed>,
    /// Flushed memtables that readers may still hold.
    flushed: Vec<Weak<MemTable>>,
    /// Logs below this hold nothing for the column family; in the MANIFEST.
    log_number: u64,
    /// Flush what is sealed even if it is fewer than `min_write_buffer_number_to_merge`.
    flush_requested: bool,
    /// Why the next flush happens.
    flush_reason: FlushReason,
    flushing: bool,
    /// The newest memtable of whose flush listeners have been told.
    flush_reported_up_to: u64,
    /// How fast writers may fill `active` while a flush is in flight.
    pace: FlushPace,
    fill: MemtableFill,
}

/// A full memtable, waiting for its flush.
struct Sealed {
    mem: Arc<MemTable>,
    /// See [`FamilyFront::active_log`].
    log: u64,
}

/// How far writers have come when a memtable is sealed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WritersNow {
    /// Bytes that users have written, to any column family.
    pub written: u64,
    /// The time.
    pub now: Seconds,
    /// How long writers have waited.
    pub waited: Seconds,
}

fn filled(mem: &MemTable, size: usize) -> Filled {
    Filled { data: mem.data_size(), memory: mem.memory_usage(), size }
}

impl FamilyFront {
    /// An empty one, of a column family for which logs below `log_number` hold nothing.
    pub fn new(cmp: &InternalKeyComparator, options: &CfOptions, memory: &FrontMemory, log_number: u64) -> Self {
        Self {
            cmp: cmp.clone(),
            index: memory.index().copied(),
            active: memory.memtable(1, cmp, options),
            active_log: log_number,
            sealed: VecDeque::new(),
            flushed: Vec::new(),
            log_number,
            flush_requested: false,
            flush_reason: FlushReason::WriteBufferFull,
            flushing: false,
            flush_reported_up_to: 0,
            pace: FlushPace::default(),
            fill: MemtableFill::new(memtable_size(memory.index(), options)),
        }
    }

    /// What readers and writers are to see from now on.
    pub fn view(&self) -> FrontView {
        let sealed = self.sealed.iter().rev().map(|s| Arc::clone(&s.mem)).collect();
        FrontView::new(Arc::clone(&self.active), sealed)
    }

    /// Makes `view`, filled elsewhere, the active part: of an instance that follows another process's database.
    pub fn show(&mut self, view: &FrontView, log_number: u64) {
        self.active = Arc::clone(view.active());
        self.log_number = log_number;
    }

    // Filling and sealing.

    /// True when nothing was written to the active memtable.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// True when the active memtable is to be sealed.
    pub fn is_full(&self, options: &CfOptions) -> bool {
        !self.active.is_empty() && BufferLimit::of(self.index.as_ref(), options).is_reached(&self.active)
    }

    /// Smallest sequence number in the active memtable, `u64::MAX` when it is empty.
    pub fn first_sequence(&self) -> SequenceNumber {
        self.active.first_sequence()
    }

    /// The number of the active memtable: later ones have larger ones.
    pub fn newest_id(&self) -> u64 {
        self.active.id()
    }

    /// How many memtables wait for their flush, or are being flushed.
    pub fn sealed_count(&self) -> usize {
        self.sealed.len()
    }

    fn replace_active(&mut self, options: &CfOptions, memory: &FrontMemory) -> Arc<MemTable> {
        let fresh = memory.memtable(self.active.id() + 1, &self.cmp, options);
        std::mem::replace(&mut self.active, fresh)
    }

    /// Seals the active memtable, unless it is empty, and begins another whose data is in log `log` and later ones.
    /// Nobody may be inserting.
    pub fn seal(
        &mut self,
        options: &CfOptions,
        memory: &FrontMemory,
        log: u64,
        reason: FlushReason,
        writers: &WritersNow,
    ) -> Option<SealedInfo> {
        if self.active.is_empty() {
            return None;
        }
        let full = self.replace_active(options, memory);
        full.mark_immutable();
        let filled = filled(&full, memtable_size(self.index.as_ref(), options));
        if let Some(seconds) = self.fill.sealed(filled, writers.written, writers.now, writers.waited) {
            self.pace.wrote(filled.data as f64, seconds);
        }
        let info = SealedInfo { id: full.id(), first_sequence: full.first_sequence(), stats: stats_of(&full) };
        self.sealed.push_back(Sealed { mem: full, log: self.active_log });
        self.active_log = log;
        self.flush_reason = reason;
        // Also where several memtables are to be merged: the log is to go, or the memory is needed, now.
        self.flush_requested |= matches!(reason, FlushReason::WalFull | FlushReason::WriteBufferManager);
        Some(info)
    }

    /// Nothing of it will be flushed: whoever still reads it, nobody is to wait for its memory.
    pub fn leave(&self) {
        self.active.mark_flushed();
        self.sealed.iter().for_each(|s| s.mem.mark_flushed());
    }

    // Logs.

    /// Logs below this hold nothing for the column family; as in the MANIFEST. Without data it stays where it is.
    pub fn log_number(&self) -> u64 {
        self.log_number
    }

    /// The oldest log that holds data which is in no table.
    pub fn oldest_log(&self) -> Option<u64> {
        match self.sealed.front() {
            Some(s) => Some(s.log),
            None if !self.active.is_empty() => Some(self.active_log),
            None => None,
        }
    }

    /// The oldest log that may hold data of the active memtable.
    pub fn active_log(&self) -> u64 {
        self.active_log
    }

    /// True when the active memtable holds back log `log`.
    pub fn active_holds(&self, log: u64) -> bool {
        !self.active.is_empty() && self.active_log <= log
    }

    /// Log `log` begins, and nobody writes: without data, nothing older is needed.
    pub fn log_begins(&mut self, log: u64) {
        if self.active.is_empty() && self.sealed.is_empty() {
            self.active_log = log;
        }
    }

    /// The active memtable is empty, and what is sealed is about to be in tables: no log before `log` is needed.
    pub fn leave_logs_before(&mut self, log: u64) {
        self.active_log = log;
    }

    /// Recovery is done, and `log` is the first log of this opening: the log number is that of what came back, if
    /// anything did.
    pub fn recovered(&mut self, log: u64) {
        if self.active.is_empty() {
            // Everything recovered is in tables: older logs hold nothing.
            self.active_log = log;
        }
        self.log_number = self.oldest_log().unwrap_or(self.active_log);
    }

    /// The MANIFEST says that logs below `log` are not needed.
    pub fn raise_log_number(&mut self, log: u64) {
        self.log_number = self.log_number.max(log);
    }

    /// Inserts an entry of log `log` again, whose value is there at `at` if it can stay there; passed over if tables
    /// have that log's data.
    pub fn replay(
        &mut self,
        log: u64,
        seq: SequenceNumber,
        value_type: ValueType,
        key: &[u8],
        value: &[u8],
        at: Option<LoggedValue<'_>>,
    ) {
        if self.log_number > log {
            return;
        }
        if self.active.is_empty() {
            self.active_log = log;
        }
        self.active.add_logged(seq, value_type, key, value, at);
    }

    /// Seals an index table that is full, before log `log` is replayed.
    pub fn seal_recovered(&mut self, log: u64, options: &CfOptions, memory: &FrontMemory) {
        if self.index.is_some() && self.is_full(options) {
            let full = self.replace_active(options, memory);
            full.mark_immutable();
            self.sealed.push_back(Sealed { mem: full, log: self.active_log });
            self.active_log = log;
        }
    }

    /// True when a memtable with values is to be written as a table, in the middle of a log that is replayed.
    pub fn is_full_of_values(&self, options: &CfOptions) -> bool {
        self.index.is_none() && self.is_full(options)
    }

    /// Takes what was recovered, to be written as a table before the database is open; `None` without any.
    pub fn take_recovered(&mut self, options: &CfOptions, memory: &FrontMemory) -> Option<SealedRuns> {
        let mut all: Vec<_> = self.sealed.drain(..).map(|s| s.mem).collect();
        if !self.active.is_empty() {
            all.push(self.replace_active(options, memory));
        }
        (!all.is_empty()).then(|| SealedRuns::new(all))
    }

    // Flushes.

    /// True when something is sealed and it is time to flush it. `without_merging`: it waits for no
    /// others to be merged with.
    pub fn flush_due(&self, options: &CfOptions, without_merging: bool) -> bool {
        let n = self.sealed.len();
        if let Some(index) = &self.index {
            let enough = || self.sealed_stats().memory >= index.flush_bytes as u64;
            return n > 0 && (self.flush_requested || without_merging || enough());
        }
        let merged = if without_merging { 1 } else { options.min_write_buffer_number_to_merge.max(1) as usize };
        n > 0 && (n >= merged || n >= options.max_write_buffer_number.max(1) as usize || self.flush_requested)
    }

    /// True when something is sealed that is being flushed, or is about to be.
    pub fn waits_for_flush(&self, options: &CfOptions, without_merging: bool) -> bool {
        !self.sealed.is_empty() && (self.flushing || self.flush_due(options, without_merging))
    }

    /// A flush runs.
    pub fn is_flushing(&self) -> bool {
        self.flushing
    }

    /// What is sealed is due, if anything is.
    pub fn request_flush(&mut self, reason: FlushReason) {
        self.flush_requested = !self.sealed.is_empty();
        self.flush_reason = reason;
    }

    /// What is sealed and holds back log `log` is due: others to be merged with need never come. True if it was not.
    pub fn request_flush_of_log(&mut self, log: u64) -> bool {
        let holds = self.sealed.front().is_some_and(|s| s.log <= log);
        let asked = holds && !self.flushing && !self.flush_requested;
        if asked {
            (self.flush_requested, self.flush_reason) = (true, FlushReason::WalFull);
        }
        asked
    }

    /// Why the next flush happens.
    pub fn set_flush_reason(&mut self, reason: FlushReason) {
        self.flush_reason = reason;
    }

    /// A flush begins: gives everything that is sealed, and why. No flush may run.
    pub fn take_sealed(&mut self) -> (SealedRuns, FlushReason) {
        self.flushing = true;
        let runs = SealedRuns::new(self.sealed.iter().map(|s| Arc::clone(&s.mem)).collect());
        (runs, std::mem::replace(&mut self.flush_reason, FlushReason::WriteBufferFull))
    }

    /// A flush that was taken begins to write, of so many bytes together with other column families.
    pub fn flush_begins(&mut self, now: Seconds, bytes: f64) {
        self.pace.begin(now, bytes);
    }

    /// The log number once these runs, the oldest, are in tables.
    pub fn log_number_after(&self, runs: &SealedRuns) -> u64 {
        self.sealed.get(runs.count()).map_or(self.active_log, |s| s.log)
    }

    /// These runs are in tables: they go as soon as no reader has them, and logs below `log_number` are not needed.
    pub fn flushed(&mut self, runs: &SealedRuns, log_number: u64) {
        self.flushed.retain(|mem| mem.strong_count() > 0);
        for mem in runs.mems() {
            // Only one flush of a column family runs at a time, so they are still the oldest.
            let oldest = self.sealed.front().is_some_and(|s| Arc::ptr_eq(&s.mem, mem));
            debug_assert!(oldest, "another flush took a memtable");
            if oldest {
                self.sealed.pop_front();
            }
            mem.mark_flushed();
            self.flushed.push(Arc::downgrade(mem));
        }
        self.raise_log_number(log_number);
    }

    /// The flush of these runs ended, with a commit or not, after so much CPU time.
    pub fn flush_ended(&mut self, runs: &SealedRuns, now: Seconds, cpu: Seconds) {
        self.flushing = false;
        let done = self.sealed.front().is_none_or(|s| runs.mems().iter().all(|m| !Arc::ptr_eq(m, &s.mem)));
        self.pace.end(now, done.then_some(cpu));
        self.flush_reported_up_to = runs.ids().fold(self.flush_reported_up_to, u64::max);
        if self.sealed.is_empty() {
            self.flush_requested = false;
        }
    }

    /// True as long as a memtable up to number `id` is in no table; with `tell`, until listeners have been told of its
    /// flush.
    pub fn is_unflushed(&self, id: u64, tell: bool) -> bool {
        self.sealed.iter().any(|s| s.mem.id() <= id) || (tell && self.flushing && self.flush_reported_up_to < id)
    }

    /// How long flushes take.
    pub fn pace(&self) -> &FlushPace {
        &self.pace
    }

    /// Memtables that are full, and how many there may be with the one that is filled. Of index tables there may be
    /// many, as long as their memory is bounded: values may be in it, and each holds a file open.
    pub fn full_memtables(&self, options: &CfOptions) -> FullMemtables {
        match &self.index {
            Some(index) => FullMemtables {
                full: (self.sealed_stats().memory / index.size.max(1) as u64) as usize,
                most: 1 + index.memory_max() / index.size.max(1),
            },
            None => FullMemtables { full: self.sealed.len(), most: options.max_write_buffer_number.max(1) as usize },
        }
    }

    /// What says how fast users may go on, who wrote `written`. `logs`: what all logs hold.
    pub fn memtables_now(
        &self,
        options: &CfOptions,
        written: u64,
        without_merging: bool,
        logs: LogsNow,
    ) -> MemtablesNow<'_, impl FnOnce(usize) -> f64 + use<'_>> {
        let size = memtable_size(self.index.as_ref(), options);
        let waiting: u64 = self.sealed.iter().map(|s| s.mem.data_size()).sum();
        MemtablesNow {
            memtables: self.full_memtables(options),
            flushing: self.waits_for_flush(options, without_merging),
            pace: &self.pace,
            due: OneFlush { since: self.fill.began(), bytes: waiting as f64 },
            room: move |more| self.fill.room(filled(&self.active, size), written, more).min(logs.room() as f64),
        }
    }

    // What it holds.

    /// What the active memtable holds.
    pub fn active_stats(&self) -> BufferStats {
        stats_of(&self.active)
    }

    /// What sealed ones hold.
    pub fn sealed_stats(&self) -> BufferStats {
        self.sealed.iter().map(|s| stats_of(&s.mem)).sum()
    }

    /// Bytes of memtables that are not in tables yet.
    pub fn memory_usage(&self) -> u64 {
        self.active_stats().memory + self.sealed_stats().memory
    }

    /// Bytes of memtables that are in tables, and that readers still hold.
    pub fn flushed_memory(&self) -> u64 {
        self.flushed.iter().filter_map(Weak::upgrade).map(|mem| mem.memory_usage() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_needed_until_what_they_hold_is_in_tables() {
        let (options, memory) = (CfOptions::default(), FrontMemory::default());
        let mut front = FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, 3);
        let writers = WritersNow { written: 0, now: 0.0, waited: 0.0 };
        let seal =
            |front: &mut FamilyFront, log| front.seal(&options, &memory, log, FlushReason::ManualFlush, &writers);
        let put = |front: &FamilyFront, seq| front.view().insert(seq, ValueType::Value, b"k", b"v", None);

        assert!(seal(&mut front, 4).is_none(), "it is empty");
        assert_eq!((front.oldest_log(), front.log_number()), (None, 3));
        front.log_begins(4);
        put(&front, 1);
        front.log_begins(5);
        assert_eq!(front.oldest_log(), Some(4), "data stays where it is");
        let sealed = seal(&mut front, 5).expect("it has an entry");
        assert_eq!((sealed.id, sealed.first_sequence, sealed.stats.entries), (1, 1, 1));

        put(&front, 2);
        let (runs, reason) = front.take_sealed();
        assert_eq!((runs.count(), reason, front.is_flushing()), (1, FlushReason::ManualFlush, true));
        assert!(seal(&mut front, 6).is_some());
        assert_eq!(front.log_number_after(&runs), 5);
        let reader = front.view();
        front.flushed(&runs, 5);
        front.flush_ended(&runs, 1.0, 0.0);
        assert_eq!((front.oldest_log(), front.log_number(), front.sealed_count()), (Some(5), 5, 1));
        assert!(!front.is_unflushed(1, true) && front.is_unflushed(2, false));
        assert_eq!(front.active_log(), 6);

        drop(runs);
        assert!(front.flushed_memory() > 0, "a reader has it");
        drop(reader);
        assert_eq!(front.flushed_memory(), 0);
    }
}
