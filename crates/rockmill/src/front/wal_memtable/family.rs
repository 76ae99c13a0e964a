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
use crate::pacing::log_garbage::LogNeed;

/// Bytes of a table for each byte of the index tables that it is made from, if nothing is known and values are
/// compressed. Flushes that find too little space raise it (see [`FamilyFront::space_for_flush`]), to at most two.
const TABLE_SHARE: f64 = 0.25;
/// Other values may compress less well than those of the last flush, and few of that flush's values may have been left.
const TABLE_MARGIN: f64 = 1.25;
const TABLE_SHARE_MIN: f64 = 1.0 / 64.0;

/// Bytes of an entry in a log beside its key and value, and beside the tag that a memtable counts with them: at most so
/// many with a record for each entry, two-byte lengths and few column families.
const LOGGED_MORE: u64 = 16;

/// About how many bytes logs have of this memtable. What was written without a log counts, too.
fn logged_bytes(mem: &MemTable) -> u64 {
    mem.data_size() + LOGGED_MORE * mem.num_entries()
}

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
    /// An index merge runs.
    merging: bool,
    /// The last one has failed: there are no more until a flush.
    merge_failed: bool,
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
    /// Bytes of it in logs, as it was filled: with what merges left out, which is in no table either.
    logged: u64,
    /// How often what is in it was merged, at most.
    tier: u32,
}

impl Sealed {
    fn new(mem: Arc<MemTable>, log: u64) -> Self {
        Self { logged: logged_bytes(&mem), table: SealedTable::Plain(mem), log, tier: 0 }
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
        let (given, adapts) = memory.index().map(|i| (i.given, i.adapts)).unwrap_or_default();
        Self {
            cmp: cmp.clone(),
            index: memory.index().copied(),
            schedule: Cell::new(IndexSchedule::new(given).adapting(adapts)),
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
            merge_failed: false,
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

    /// Bytes in logs of what is in no table.
    pub fn logged(&self) -> u64 {
        self.sealed.iter().map(|s| s.logged).sum::<u64>() + logged_bytes(&self.active)
    }

    /// What it will need of logs once flushes that have begun or are requested are done; `None` if nothing.
    pub fn log_need(&self) -> Option<LogNeed> {
        // A request goes to the flush after the one that runs. If there is none yet, it may be made when that one ends.
        let kept = if self.taken > 0 || self.flush_requested { None } else { self.sealed.front().map(|s| s.log) };
        let oldest = kept.or((!self.active.is_empty()).then_some(self.active_log))?;
        let live = if kept.is_some() { self.logged() } else { logged_bytes(&self.active) };
        Some(LogNeed { oldest, live })
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

    /// True when recovered data is to be written as a table, in the middle of a log that is replayed: a memtable with
    /// values is full, or index tables have as much memory as writers may give them.
    pub fn is_recovered_full(&self) -> bool {
        self.index.map_or_else(|| self.is_full(), |index| self.memory_usage() >= index.memory_max() as u64)
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
        self.merge_failed = false;
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
        if self.index.is_none() || self.merging || self.merge_failed || least == 0 {
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
        let logged = self.sealed.range(place.clone()).map(|s| s.logged).sum();
        let table = merged.into_table();
        self.flushed.retain(|held| held.bytes().is_some());
        self.flushed.extend(self.sealed.range(place.clone()).map(|s| s.table.superseded()));
        self.sealed.drain(place.start + 1..place.end);
        self.sealed[place.start] = Sealed { table, log, logged, tier };
        true
    }

    /// The index merge ended, with a commit or not. After a `failed` one there is no other until a flush has taken away
    /// what it was to merge.
    pub fn merge_ended(&mut self, failed: bool) {
        (self.merging, self.merge_failed) = (false, failed);
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
mod tests;
