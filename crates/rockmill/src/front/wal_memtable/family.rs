//! A column family's data that is in no table: the memtable that writers fill, full ones that wait for their flush, and
//! requests for that flush.
//!
//! All of it is guarded by the database's lock (`state`), and no method does I/O. Readers and writers use a
//! [`FrontView`], which they find without the lock.
//!
//! 1. Writers fill the active memtable. It is [sealed](FamilyFront::seal) between two write groups, by the leader.
//! 2. A flush [takes](FamilyFront::take_sealed) everything that is sealed. Only one of a column family runs at a time,
//!    so what it took is still the oldest when it [commits](FamilyFront::flushed).
//! 3. Index tables that wait may become one meanwhile (`index_merge.rs`): neighbours of which a flush has taken none.
//! 4. After the commit the log number is that of the log in which the remaining data began.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use rockmill_format::compression::CompressionType;
use rockmill_format::{InternalKeyComparator, SequenceNumber, ValueType};

use super::index_merge::{IndexMerge, MergedIndex};
use super::memory::{BufferLimit, FrontMemory, IndexTables, memtable_size};
use super::view::{FrontView, SealedRuns, stats_of, stats_of_sealed};
use crate::event_listener::FlushReason;
use crate::front::{BufferStats, SealedInfo};
use crate::memtable::log_values::LoggedValue;
use crate::memtable::{HeldMemory, MemTable, SealedTable};
use crate::options::CfOptions;
use crate::pacing::common::Seconds;
use crate::pacing::decide::{FlushQueue, FullMemtables, LogsNow, MemtablesNow, is_flush_due};
use crate::pacing::flush_pace::{Filled, FlushPace, MemtableFill, OneFlush};
use crate::pacing::index_tables::{IndexQueues, IndexSchedule};

/// Bytes of a table for each byte of the index tables that it is made from, if nothing is known and values are
/// compressed. Flushes that find too little space raise it (see [`FamilyFront::space_for_flush`]), to at most two.
const TABLE_SHARE: f64 = 0.25;
/// Other values may compress less well than those of the last flush, and few of that flush's values may have been left.
const TABLE_MARGIN: f64 = 1.25;
const TABLE_SHARE_MIN: f64 = 1.0 / 64.0;

/// See the module's text.
pub(crate) struct FamilyFront {
    cmp: InternalKeyComparator,
    /// Its memtables are index tables.
    index: Option<IndexTables>,
    /// When these are merged and flushed.
    schedule: Cell<IndexSchedule>,
    /// The memtable that writers fill.
    active: Arc<MemTable>,
    /// What makes `active` full.
    limit: BufferLimit,
    /// The log that was in use when `active` began: its data is in this one or later ones.
    active_log: u64,
    /// Oldest first.
    sealed: VecDeque<Sealed>,
    /// Memory of memtables that are flushed, or whose entries a merged one has, and that readers may still hold.
    flushed: Vec<HeldMemory>,
    /// Logs below this hold nothing for the column family; in the MANIFEST.
    log_number: u64,
    /// Flush what is sealed, and no flush has taken, even if it is fewer than `min_write_buffer_number_to_merge`.
    flush_requested: bool,
    /// Why the next flush happens.
    flush_reason: FlushReason,
    flushing: bool,
    /// How many of the oldest sealed ones the flush took.
    taken: usize,
    /// An index merge runs, or has failed, in which case no more are done.
    merging: bool,
    /// The newest memtable of whose flush listeners have been told.
    flush_reported_up_to: u64,
    /// Bytes of the table for each byte that was flushed, as the last flush found.
    table_share: Option<f64>,
    /// How fast writers may fill `active` while a flush is in flight.
    flush_pace: FlushPace,
    fill: MemtableFill,
}

/// A full memtable, or several that became one, waiting for its flush.
struct Sealed {
    table: SealedTable,
    /// See [`FamilyFront::active_log`].
    log: u64,
    /// How often what is in it was merged, at most.
    tier: u32,
}

impl Sealed {
    fn new(mem: Arc<MemTable>, log: u64) -> Self {
        Self { table: SealedTable::Plain(mem), log, tier: 0 }
    }
}

/// How far writers have got when a memtable is sealed.
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
    /// An empty one, for a column family for which logs below `log_number` hold nothing.
    pub fn new(cmp: &InternalKeyComparator, options: &CfOptions, memory: &FrontMemory, log_number: u64) -> Self {
        Self {
            cmp: cmp.clone(),
            index: memory.index().copied(),
            schedule: Cell::new(IndexSchedule::new(memory.index().map_or_else(Default::default, |i| i.given))),
            active: memory.memtable(1, cmp, options),
            limit: BufferLimit::of(memory.index(), options),
            active_log: log_number,
            sealed: VecDeque::new(),
            flushed: Vec::new(),
            log_number,
            flush_requested: false,
            flush_reason: FlushReason::WriteBufferFull,
            flushing: false,
            taken: 0,
            merging: false,
            flush_reported_up_to: 0,
            table_share: None,
            flush_pace: FlushPace::default(),
            fill: MemtableFill::new(memtable_size(memory.index(), options)),
        }
    }

    /// The view for readers and writers from now on.
    pub fn view(&self) -> FrontView {
        let sealed = self.sealed.iter().rev().map(|s| s.table.clone()).collect();
        FrontView::new(Arc::clone(&self.active), sealed, self.limit)
    }

    /// Takes changed options, which later views use.
    pub fn take_options(&mut self, options: &CfOptions) {
        self.limit = BufferLimit::of(self.index.as_ref(), options);
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
    pub fn is_full(&self) -> bool {
        !self.active.is_empty() && self.limit.is_reached(&self.active)
    }

    /// Smallest sequence number in the active memtable, `u64::MAX` when it is empty.
    pub fn first_sequence(&self) -> SequenceNumber {
        self.active.first_sequence()
    }

    /// The number of the newest memtable with data; later memtables have larger numbers. It is never that of an empty
    /// memtable: callers that wait for the present data must not wait for what is written to it later.
    pub fn newest_id(&self) -> u64 {
        self.active.id().saturating_sub(u64::from(self.active.is_empty()))
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
            self.flush_pace.wrote(filled.data as f64, seconds);
        }
        let info = SealedInfo { id: full.id(), first_sequence: full.first_sequence(), stats: stats_of(&full) };
        self.sealed.push_back(Sealed::new(full, self.active_log));
        self.active_log = log;
        self.flush_reason = reason;
        // Even if several memtables are to be merged: the log must be freed, or the memory is needed, now.
        self.flush_requested |= matches!(reason, FlushReason::WalFull | FlushReason::WriteBufferManager);
        Some(info)
    }

    /// Nothing of it will be flushed: even if it is still read, nobody should wait for its memory.
    pub fn leave(&self) {
        self.active.mark_flushed();
        self.sealed.iter().for_each(|s| s.table.mark_flushed());
    }

    // Logs.

    /// Logs below this hold nothing for the column family; as in the MANIFEST. Without data it does not change.
    pub fn log_number(&self) -> u64 {
        self.log_number
    }

    /// The oldest log that holds data that is in no table.
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

    /// True if the active memtable keeps log `log` from being deleted.
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

    /// Recovery is done, and `log` is the first log of this opening: the log number is that of the recovered data, if
    /// there is any.
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

    /// Inserts an entry of log `log` again; its value is there at `at` if it can stay there. The entry is skipped if
    /// tables have that log's data.
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
        if self.index.is_some() && self.is_full() {
            let full = self.replace_active(options, memory);
            full.mark_immutable();
            self.sealed.push_back(Sealed::new(full, self.active_log));
            self.active_log = log;
        }
    }

    /// True when a memtable with values is to be written as a table, in the middle of a log that is replayed.
    pub fn is_full_of_values(&self) -> bool {
        self.index.is_none() && self.is_full()
    }

    /// Takes the recovered data, to be written as a table before the database is open; `None` without any.
    pub fn take_recovered(&mut self, options: &CfOptions, memory: &FrontMemory) -> Option<SealedRuns> {
        let mut all: Vec<_> = self.sealed.drain(..).map(|s| s.table).collect();
        if !self.active.is_empty() {
            all.push(SealedTable::Plain(self.replace_active(options, memory)));
        }
        (!all.is_empty()).then(|| SealedRuns::of(all))
    }

    // Flushes.

    /// True when something is sealed and it is time to flush it. `without_merging`: it waits for no
    /// others to be merged with.
    pub fn flush_due(&self, options: &CfOptions, without_merging: bool) -> bool {
        let index = self.index.map(|_| (self.schedule.get().now(), self.filled_memory()));
        is_flush_due(self.flush_queue(), self.full_memtables(options), index, options, without_merging)
    }

    /// What is sealed, and whether some of it is being flushed. A flush that has committed runs on, but has none of it.
    pub fn flush_queue(&self) -> FlushQueue {
        FlushQueue { waiting: self.sealed.len(), in_flight: self.taken > 0, requested: self.flush_requested }
    }

    /// True when something is sealed that is being flushed, or is about to be.
    pub fn waits_for_flush(&self, options: &CfOptions, without_merging: bool) -> bool {
        !self.sealed.is_empty() && (self.taken > 0 || self.flush_due(options, without_merging))
    }

    /// A flush runs.
    pub fn is_flushing(&self) -> bool {
        self.flushing
    }

    /// What is sealed is due, if anything is that no flush has taken.
    pub fn request_flush(&mut self, reason: FlushReason) {
        self.flush_requested |= self.sealed.len() > self.taken;
        self.flush_reason = reason;
    }

    /// Makes sealed memtables that keep log `log` from being deleted due, since there may never be others to merge
    /// with. True if they were not due before.
    pub fn request_flush_of_log(&mut self, log: u64) -> bool {
        let holds = self.sealed.front().is_some_and(|s| s.log <= log);
        let asked = holds && self.taken == 0 && !self.flush_requested;
        if asked {
            (self.flush_requested, self.flush_reason) = (true, FlushReason::WalFull);
        }
        asked
    }

    /// Why the next flush happens.
    pub fn set_flush_reason(&mut self, reason: FlushReason) {
        self.flush_reason = reason;
    }

    /// A flush begins: returns everything that is sealed, and the reason. No flush may run.
    pub fn take_sealed(&mut self) -> (SealedRuns, FlushReason) {
        (self.flushing, self.taken) = (true, self.sealed.len());
        // Memtables sealed from now on are not part of the request: they wait until they are due themselves.
        self.flush_requested = false;
        let runs = SealedRuns::of(self.sealed.iter().map(|s| s.table.clone()).collect());
        (runs, std::mem::replace(&mut self.flush_reason, FlushReason::WriteBufferFull))
    }

    /// A flush that was taken begins to write this many bytes, together with other column families.
    pub fn flush_begins(&mut self, now: Seconds, bytes: f64) {
        self.flush_pace.begin(now, bytes);
    }

    /// The log number once these runs, the oldest, are in tables.
    pub fn log_number_after(&self, runs: &SealedRuns) -> u64 {
        self.sealed.get(runs.tables().len()).map_or(self.active_log, |s| s.log)
    }

    /// These runs are in tables: they are freed as soon as no reader has them, and logs below `log_number` are not
    /// needed.
    pub fn flushed(&mut self, runs: &SealedRuns, log_number: u64) {
        self.flushed.retain(|held| held.bytes().is_some());
        for table in runs.tables() {
            // Only one flush of a column family runs at a time, and what it took is not merged: they are still the
            // oldest.
            let oldest = self.sealed.front().is_some_and(|s| s.table.is(table));
            debug_assert!(oldest, "another flush took a memtable");
            if oldest {
                self.sealed.pop_front();
                self.taken = self.taken.saturating_sub(1);
            }
            table.mark_flushed();
            self.flushed.extend(table.held_memory());
        }
        self.raise_log_number(log_number);
    }

    /// The table of these runs has this many bytes.
    pub fn table_has(&mut self, runs: &SealedRuns, bytes: u64) {
        if runs.data_size() > 0 {
            self.table_share = Some(bytes as f64 / runs.data_size() as f64);
        }
    }

    /// The flush of these runs ended, with a commit or not, after this much CPU time.
    pub fn flush_ended(&mut self, runs: &SealedRuns, now: Seconds, cpu: Seconds) {
        (self.flushing, self.taken) = (false, 0);
        let done = self.sealed.front().is_none_or(|s| runs.tables().iter().all(|t| !t.is(&s.table)));
        // After a failure, all of it is due again, regardless of requests.
        self.flush_requested |= !done;
        self.flush_pace.end(now, done.then_some(cpu));
        self.flush_reported_up_to = runs.ids().fold(self.flush_reported_up_to, u64::max);
    }

    // Index merges.

    /// Neighbours among full index tables that are to become one, if there are enough; then an index merge runs, until
    /// [`Self::merge_ended`].
    ///
    /// A table has a *tier*: 0 as it was filled, and one more than its inputs when it was merged. Only neighbours of
    /// one tier are merged, all of them, when they are `k` or more ([`Triggers::merge`]). So
    ///
    /// - an entry of a table of tier `t` was merged `t` times, and such a table has the entries of at least `k^t` that
    ///   were filled: of `n` that wait for a flush, each entry is merged at most `log_k n` times;
    /// - tiers never rise from older to newer ones, since what is filled comes at the end with 0, a flush takes the
    ///   oldest, and the older neighbour of *all* of a tier in a row is of a higher one. So those of a tier are all in
    ///   a row, and when nothing is left to merge there are fewer than `k` of each: `(k - 1) * (log_k n + 1)` at most.
    ///
    /// After a failed flush, the tables that it had taken may be of lower tiers than later ones that were merged: then
    /// there may be more of them, until the next flush takes all.
    ///
    /// [`Triggers::merge`]: crate::pacing::index_tables::Triggers::merge
    pub fn take_merge(&mut self) -> Option<IndexMerge> {
        let least = self.schedule.get().now().merge;
        if self.index.is_none() || self.merging || least == 0 {
            return None;
        }
        // The newest first: they are the smallest, so merging them takes the least time.
        let run = self.tiers().rev().find(|run| run.len() >= least.max(2))?;
        self.merging = true;
        Some(IndexMerge::of(self.sealed.range(run).rev().map(|s| s.table.clone()).collect()))
    }

    /// Places of tables of one tier in a row, of which no flush has any; oldest first.
    fn tiers(&self) -> impl DoubleEndedIterator<Item = std::ops::Range<usize>> + use<> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for i in self.taken..self.sealed.len() {
            match runs.last_mut() {
                Some(run) if self.sealed[run.start].tier == self.sealed[i].tier => run.end = i + 1,
                _ => runs.push(i..i + 1),
            }
        }
        runs.into_iter()
    }

    /// True while no flush has taken what is merged.
    pub fn is_wanted(&self, merge: &IndexMerge) -> bool {
        self.place_of(merge).is_some()
    }

    /// Where the inputs are, if all of them are there in a row and no flush has one.
    fn place_of(&self, merge: &IndexMerge) -> Option<std::ops::Range<usize>> {
        let oldest = merge.tables().last()?;
        let from = self.sealed.iter().position(|s| s.table.is(oldest)).filter(|from| *from >= self.taken)?;
        let place = from..from + merge.tables().len();
        let same = place.end <= self.sealed.len()
            && self.sealed.range(place.clone()).rev().zip(merge.tables()).all(|(s, input)| s.table.is(input));
        same.then_some(place)
    }

    /// Replaces several tables by the merged one; false if a flush has taken them. The caller publishes a view.
    pub fn merged(&mut self, merge: &IndexMerge, merged: MergedIndex) -> bool {
        let Some(place) = self.place_of(merge) else { return false };
        let (log, tier) = (self.sealed[place.start].log, self.sealed[place.start].tier + 1);
        let table = merged.into_table();
        self.flushed.retain(|held| held.bytes().is_some());
        self.flushed.extend(self.sealed.range(place.clone()).map(|s| s.table.superseded()));
        self.sealed.drain(place.start + 1..place.end);
        self.sealed[place.start] = Sealed { table, log, tier };
        true
    }

    /// The index merge ended, with a commit or not. After a `failed` one there is no other.
    pub fn merge_ended(&mut self, failed: bool) {
        self.merging = failed;
    }

    /// Index tables are merged and flushed by this from now on.
    pub fn set_schedule(&self, schedule: IndexSchedule) {
        self.schedule.set(schedule);
    }

    /// When index tables are merged and flushed, before anything waits; `None` for memtables with values.
    pub fn schedule_at_open(&self) -> Option<IndexSchedule> {
        self.index.as_ref().map(|_| self.schedule.get())
    }

    /// When index tables are merged and flushed, and what waits; `None` for memtables with values. `logs`: what all
    /// logs hold.
    pub fn schedule(&self, logs: LogsNow) -> Option<(IndexSchedule, IndexQueues)> {
        let index = self.index.as_ref()?;
        let merge = self.tiers().map(|run| run.len()).max().unwrap_or(0);
        // Logs that other column families fill do not mean that this family's flushes are behind.
        let logs = if self.sealed.is_empty() { LogsNow::UNBOUNDED } else { logs };
        let queues =
            IndexQueues { merge, flush_bytes: self.filled_memory(), room: self.room(index, logs), behind: false };
        Some((self.schedule.get(), queues))
    }

    /// The part that is left of the bound on the memory of full index tables, or on the logs.
    fn room(&self, index: &IndexTables, logs: LogsNow) -> f64 {
        let full = self.sealed.iter().map(|s| s.table.memory_usage()).sum::<usize>() + self.active.memory_usage();
        logs.room_part(full as f64, index.memory_max())
    }

    /// How many times what the options say levels may hold.
    pub fn level_factor(&self) -> u64 {
        self.schedule.get().level_factor()
    }

    /// True as long as a memtable up to number `id` is in no table; with `tell`, until listeners have been told of its
    /// flush.
    pub fn is_unflushed(&self, id: u64, tell: bool) -> bool {
        self.sealed.iter().any(|s| s.table.oldest_id() <= id)
            || (tell && self.flushing && self.flush_reported_up_to < id)
    }

    /// How long flushes take.
    pub fn flush_pace(&self) -> &FlushPace {
        &self.flush_pace
    }

    /// Memtables that are full, and how many there may be with the one that is filled.
    pub fn full_memtables(&self, options: &CfOptions) -> FullMemtables {
        match &self.index {
            Some(index) => {
                let bytes = self.sealed.iter().map(|s| s.table.memory_usage()).sum();
                FullMemtables::of_index_tables(bytes, index.memory_max(), index.size)
            }
            None => FullMemtables { full: self.sealed.len(), most: options.max_write_buffer_number.max(1) as usize },
        }
    }

    /// What [`allowance`](crate::pacing::decide::allowance) is decided from, after users wrote `written` in all.
    /// `logs`: what all logs hold.
    pub fn memtables_now(
        &self,
        options: &CfOptions,
        written: u64,
        without_merging: bool,
        logs: LogsNow,
        now: Seconds,
    ) -> MemtablesNow<'_, impl FnOnce(usize) -> f64 + use<'_>> {
        let size = memtable_size(self.index.as_ref(), options);
        let waiting: u64 = self.sealed.iter().map(|s| s.table.data_size()).sum();
        MemtablesNow {
            memtables: self.full_memtables(options),
            flushing: self.waits_for_flush(options, without_merging),
            flush_pace: &self.flush_pace,
            due: OneFlush { since: self.fill.began(), bytes: waiting as f64 },
            room: move |more| self.fill.room(filled(&self.active, size), written, more).min(logs.room() as f64),
            pressure: match &self.index {
                None => 1.0,
                Some(index) => self.schedule.get().pressure(self.room(index, logs), now),
            },
        }
    }

    // What it holds.

    /// What the active memtable holds.
    pub fn active_stats(&self) -> BufferStats {
        stats_of(&self.active)
    }

    /// What sealed ones hold.
    pub fn sealed_stats(&self) -> BufferStats {
        self.sealed.iter().map(|s| stats_of_sealed(&s.table)).sum()
    }

    /// Bytes of sealed ones, without what merges add, so that flushes do not become smaller because of merges.
    fn filled_memory(&self) -> u64 {
        self.sealed.iter().map(|s| s.table.filled_memory() as u64).sum()
    }

    /// Bytes of memtables that are not in tables yet.
    pub fn memory_usage(&self) -> u64 {
        self.active_stats().memory + self.sealed_stats().memory
    }

    /// Those of them that no entry has yet.
    pub fn unfilled_memory(&self) -> u64 {
        (self.active.unfilled() + self.sealed.iter().map(|s| s.table.unfilled()).sum::<usize>()) as u64
    }

    /// About how many bytes tables with all of it need: those of memtables, or those of the values in logs to which
    /// index tables refer. These values may be many times the memory, and become small tables if they are compressed.
    /// So for index tables the share that the last flush found counts, or [`TABLE_SHARE`] before the first flush, and
    /// twice as much after each of `tries` flushes that found too little space. It is never more than the bytes of the
    /// values.
    pub fn space_for_flush(&self, options: &CfOptions, tries: u32) -> u64 {
        let all: u64 =
            [self.active_stats(), self.sealed_stats()].iter().map(|stats| stats.memory.max(stats.data_size)).sum();
        let compression = options.compression_per_level.first().copied().unwrap_or(options.compression);
        if self.index.is_none() || compression == CompressionType::None {
            return all;
        }
        let share = self.table_share.map_or(TABLE_SHARE, |share| (share * TABLE_MARGIN).max(TABLE_SHARE_MIN));
        // The cast saturates.
        all.min((all as f64 * share * f64::from(tries).exp2()) as u64)
    }

    /// Bytes of memtables that are in tables, or superseded by a merged one, and that readers still hold.
    pub fn flushed_memory(&self) -> u64 {
        self.flushed.iter().filter_map(HeldMemory::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::MergeMeans;
    use crate::options::DbOptions;

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
        assert!(front.flush_queue().in_flight);
        front.flushed(&runs, 5);
        let queue = front.flush_queue();
        assert_eq!((queue.waiting, queue.in_flight, front.is_flushing()), (1, false, true), "committed, not ended");
        assert!(!front.waits_for_flush(&CfOptions { min_write_buffer_number_to_merge: 2, ..options.clone() }, false));
        front.flush_ended(&runs, 1.0, 0.0);
        assert_eq!((front.oldest_log(), front.log_number(), front.sealed_count()), (Some(5), 5, 1));
        assert!(!front.is_unflushed(1, true) && front.is_unflushed(2, false));
        assert_eq!(front.active_log(), 6);

        drop(runs);
        assert!(front.flushed_memory() > 0, "a reader has it");
        drop(reader);
        assert_eq!(front.flushed_memory(), 0);
    }

    /// Values are compressed, and it is unknown how well: the space asked for may be too little, but only a few times.
    #[test]
    fn a_flush_needs_what_the_last_one_needed_and_more_where_that_was_too_little() {
        let (options, memory, mut front) = index_tables();
        let compressed = CfOptions { compression: CompressionType::Lz4, ..options.clone() };
        let plain = CfOptions { compression: CompressionType::None, ..options.clone() };
        assert_eq!(front.space_for_flush(&plain, 0), front.memory_usage(), "it is empty");
        fill(&mut front, &options, &memory, 1);
        let all = front.space_for_flush(&plain, 0);
        assert!(all >= front.memory_usage());
        assert_eq!(front.space_for_flush(&plain, 9), all);
        let asked = |front: &FamilyFront| [0, 1, 2, 3, u32::MAX].map(|tries| front.space_for_flush(&compressed, tries));
        assert_eq!(asked(&front), [all / 4, all / 2, all, all, all]);
        let (runs, _) = front.take_sealed();
        front.table_has(&runs, runs.data_size() / 2);
        let [first, second, ..] = asked(&front);
        assert!(first > all / 2 && first < all * 7 / 10 && second == all, "{first}, then {second} of {all}");
        front.table_has(&runs, runs.data_size() * 2);
        assert_eq!(asked(&front), [all; 5], "never more than the values have");
        // Almost nothing was left of the last ones.
        front.table_has(&runs, 0);
        assert!(asked(&front)[0] > 0 && (0..9).any(|tries| front.space_for_flush(&compressed, tries) == all));
        let first_level = CfOptions { compression_per_level: vec![CompressionType::None], ..compressed.clone() };
        assert_eq!(front.space_for_flush(&first_level, 0), all);
    }

    /// Index tables without logs: all values are inline.
    fn index_tables() -> (CfOptions, FrontMemory, FamilyFront) {
        let all = DbOptions { fast_capacity: 1 << 20, ..DbOptions::default() };
        let (options, memory) = (CfOptions::default(), FrontMemory::new(&all, &Arc::default()));
        let front = FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, 1);
        (options, memory, front)
    }

    /// Seals a table of one entry, whose log is `seq`.
    fn fill(front: &mut FamilyFront, options: &CfOptions, memory: &FrontMemory, seq: u64) {
        front.log_begins(seq);
        front.view().insert(seq, ValueType::Value, &[b'a' + seq as u8 % 3], &[seq as u8], None);
        let writers = WritersNow { written: 0, now: 0.0, waited: 0.0 };
        front.seal(options, memory, seq + 1, FlushReason::WriteBufferFull, &writers).expect("it has an entry");
    }

    fn build(merge: &IndexMerge, options: &CfOptions, memory: &FrontMemory) -> MergedIndex {
        let means = MergeMeans { visible: 1000, snapshots: &[], threads: 1, stop: &|| false };
        merge.build(memory, options, &means).expect("a merge").expect("nothing stopped it")
    }

    fn ids(front: &FamilyFront) -> Vec<Vec<u64>> {
        front.sealed.iter().map(|s| s.table.ids()).collect()
    }

    #[test]
    fn neighbours_of_a_tier_become_one_table_that_holds_their_oldest_log() {
        let (options, memory, mut front) = index_tables();
        fill(&mut front, &options, &memory, 1);
        assert!(front.take_merge().is_none(), "there is one");
        for seq in 2..=40 {
            fill(&mut front, &options, &memory, seq);
            if seq % 3 == 0 {
                while let Some(merge) = front.take_merge() {
                    assert!(front.take_merge().is_none(), "one runs");
                    assert!(front.merged(&merge, build(&merge, &options, &memory)));
                    front.merge_ended(false);
                }
            }
            assert!(front.sealed.iter().zip(front.sealed.iter().skip(1)).all(|(a, b)| a.tier >= b.tier));
            let newest_first: Vec<u64> = ids(&front).into_iter().rev().flatten().collect();
            assert_eq!(newest_first, (1..=seq).rev().collect::<Vec<_>>());
        }
        assert!(front.sealed.len() <= 8 && front.sealed[0].tier <= 5, "{:?}", ids(&front));
        for s in &front.sealed {
            assert_eq!(s.log, s.table.oldest_id(), "the log of the oldest");
        }
        assert!(front.is_unflushed(1, false) && front.oldest_log() == Some(1));
        // Three keys are left of what was merged.
        assert_eq!(front.sealed[0].table.num_entries(), 3);
        let (runs, _) = front.take_sealed();
        assert_eq!((runs.count(), runs.ids().collect::<Vec<_>>()), (40, (1..=40).collect()));
        assert_eq!(front.log_number_after(&runs), 41);
        let reader = front.view();
        front.flushed(&runs, 41);
        front.flush_ended(&runs, 1.0, 0.0);
        assert!(front.sealed.is_empty() && !front.is_unflushed(40, true));
        drop(runs);
        assert!(front.flushed_memory() > 0, "a reader has it");
        drop(reader);
        assert_eq!(front.flushed_memory(), 0);
    }

    /// What a merged table has itself is held by readers when another has taken its place.
    #[test]
    fn superseded_tables_are_counted_while_readers_have_them() {
        let (options, memory, mut front) = index_tables();
        let options =
            CfOptions { memtable_prefix_bloom_size_ratio: 0.01, memtable_whole_key_filtering: true, ..options };
        front.active = memory.memtable(1, &front.cmp, &options);
        let merge_all = |front: &mut FamilyFront| {
            while let Some(merge) = front.take_merge() {
                assert!(front.merged(&merge, build(&merge, &options, &memory)));
                front.merge_ended(false);
            }
        };
        (1..=2).for_each(|seq| fill(&mut front, &options, &memory, seq));
        let plain = front.view();
        merge_all(&mut front);
        let filters = front.flushed_memory();
        assert!((1..front.memory_usage()).contains(&filters), "{filters} bytes of two filters");
        let own = match &front.sealed[0].table {
            SealedTable::Plain(_) => panic!("they were merged"),
            SealedTable::Merged(t) => t.own_memory_usage() as u64,
        };
        let merged = front.view();
        (3..=4).for_each(|seq| fill(&mut front, &options, &memory, seq));
        merge_all(&mut front);
        assert_eq!((front.sealed.len(), front.sealed[0].table.count()), (1, 4));
        // Both views have the third, which was being filled.
        assert_eq!(front.flushed_memory(), filters + filters / 2 + own);
        drop(merged);
        assert_eq!(front.flushed_memory(), filters + filters / 2);
        drop(plain);
        assert_eq!(front.flushed_memory(), 0);
    }

    /// A manual flush that finds an empty memtable does not wait for what is written to it next: it did not ask for a
    /// flush of that, and index tables are not flushed automatically until there are enough.
    #[test]
    fn nobody_waits_for_what_is_written_after_the_request() {
        let (options, memory, mut front) = index_tables();
        let none = front.newest_id();
        fill(&mut front, &options, &memory, 1);
        assert!(!front.is_unflushed(none, false) && !front.flush_due(&options, false));
        let first = front.newest_id();
        front.request_flush(FlushReason::ManualFlush);
        fill(&mut front, &options, &memory, 2);
        assert!(front.is_unflushed(first, false) && front.flush_due(&options, false));
        let (runs, _) = front.take_sealed();
        front.flushed(&runs, 2);
        front.flush_ended(&runs, 0.0, 0.0);
        assert!(!front.is_unflushed(first, false));
    }

    /// Nor is a memtable flushed that is sealed while a requested flush runs: otherwise a small run would follow it,
    /// and then another.
    #[test]
    fn a_request_is_for_what_is_sealed() {
        let (options, memory, mut front) = index_tables();
        let end = |front: &mut FamilyFront, runs: SealedRuns, log| {
            front.flushed(&runs, log);
            front.flush_ended(&runs, 1.0, 0.0);
        };
        for by_log in [false, true] {
            let first = front.newest_id() + 1;
            fill(&mut front, &options, &memory, first);
            if by_log {
                assert!(front.request_flush_of_log(first) && front.flush_due(&options, false));
            } else {
                front.request_flush(FlushReason::ManualFlush);
            }
            let (runs, _) = front.take_sealed();
            // Again, of what the flush has.
            front.request_flush(FlushReason::ManualFlush);
            fill(&mut front, &options, &memory, first + 1);
            end(&mut front, runs, first + 1);
            assert!(front.sealed_count() == 1 && !front.flush_due(&options, false), "{by_log}");
            let (runs, _) = front.take_sealed();
            fill(&mut front, &options, &memory, first + 2);
            front.request_flush(FlushReason::ManualFlush);
            end(&mut front, runs, first + 2);
            assert!(front.flush_due(&options, false), "asked for while the other ran, {by_log}");
            let (runs, _) = front.take_sealed();
            // It fails.
            front.flush_ended(&runs, 1.0, 0.0);
            assert!(front.flush_due(&options, false), "what failed is due again, {by_log}");
            let (runs, _) = front.take_sealed();
            end(&mut front, runs, first + 3);
        }
    }

    #[test]
    fn a_merge_of_what_a_flush_took_is_thrown_away() {
        let (options, memory, mut front) = index_tables();
        (1..=3).for_each(|seq| fill(&mut front, &options, &memory, seq));
        let merge = front.take_merge().expect("three are full");
        let merged = build(&merge, &options, &memory);
        let (runs, _) = front.take_sealed();
        assert!(!front.is_wanted(&merge) && !front.merged(&merge, merged));
        front.merge_ended(false);
        assert_eq!(ids(&front), [[1], [2], [3]]);
        // What the flush has is left alone; what comes after it is not.
        fill(&mut front, &options, &memory, 4);
        assert!(front.take_merge().is_none());
        fill(&mut front, &options, &memory, 5);
        let later = front.take_merge().expect("two are full");
        assert!(front.is_wanted(&later) && front.merged(&later, build(&later, &options, &memory)));
        front.merge_ended(false);
        assert_eq!(ids(&front), [vec![1], vec![2], vec![3], vec![5, 4]]);
        assert_eq!(front.log_number_after(&runs), 4);
        front.flushed(&runs, 4);
        front.flush_ended(&runs, 1.0, 0.0);
        assert_eq!((ids(&front), front.oldest_log()), (vec![vec![5, 4]], Some(4)));
    }

    #[test]
    fn a_merge_whose_tables_were_flushed_is_thrown_away() {
        let (options, memory, mut front) = index_tables();
        (1..=2).for_each(|seq| fill(&mut front, &options, &memory, seq));
        let merge = front.take_merge().expect("two are full");
        let merged = build(&merge, &options, &memory);
        let (runs, _) = front.take_sealed();
        front.flushed(&runs, 3);
        front.flush_ended(&runs, 1.0, 0.0);
        fill(&mut front, &options, &memory, 3);
        assert!(!front.is_wanted(&merge) && !front.merged(&merge, merged));
        assert_eq!(ids(&front), [[3]]);
    }

    /// A failed flush leaves the tables that it took, and they are merged again.
    #[test]
    fn a_failed_merge_is_the_last_and_a_failed_flush_is_not() {
        let (options, memory, mut front) = index_tables();
        (1..=2).for_each(|seq| fill(&mut front, &options, &memory, seq));
        let (runs, _) = front.take_sealed();
        assert!(front.take_merge().is_none());
        front.flush_ended(&runs, 1.0, 0.0);
        assert!(front.take_merge().is_some());
        front.merge_ended(true);
        assert!(front.take_merge().is_none());
    }

    #[test]
    fn memtables_with_values_are_never_merged() {
        let (options, memory) = (CfOptions::default(), FrontMemory::default());
        let mut front = FamilyFront::new(&InternalKeyComparator::default(), &options, &memory, 1);
        (1..=9).for_each(|seq| fill(&mut front, &options, &memory, seq));
        assert!(front.take_merge().is_none() && front.schedule(LogsNow::UNBOUNDED).is_none());
    }
}
