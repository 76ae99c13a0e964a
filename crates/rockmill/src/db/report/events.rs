//! What the database reports of its work: lines of the info log, calls of listeners, tickers of jobs.
//!
//! A listener may use the database, so it is called when no lock is held. Events that happen under a lock are kept in
//! [`DeferredEvents`] and reported by the next thread that holds none: the write leader after giving up leadership, a
//! background thread between jobs, or at the latest the timer thread.

use rockmill_format::edit::FileEntry;
use rockmill_format::properties::TableProperties;

use crate::compaction::{Compaction, JobOutput, JobStats};
use crate::db::catalog::column_family::CfData;
use crate::db::report::stats::count;
use crate::db::{DbInner, State};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::{
    BackgroundErrorReason, CompactionFileInfo, CompactionJobInfo, CompactionJobStats, CompactionReason, EventListener,
    FlushJobInfo, FlushReason, MemTableInfo, TableFileDeletionInfo, WriteStallCondition, WriteStallInfo,
};
use crate::front::{SealedInfo, SealedRuns};
use crate::info_log::{Event, LogLevel, log_error, log_info, log_warn};
use crate::pacing::write_control::StallReason;
use crate::statistics::{Histogram, MaybeStatistics, Ticker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::version::{Level, TableFile, Version};

type Call = Box<dyn Fn(&dyn EventListener) + Send>;

/// Calls of listeners that wait until no lock is held.
#[derive(Default)]
pub(crate) struct DeferredEvents {
    any: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

/// A flush that runs.
pub(crate) struct FlushEvent {
    pub job: u64,
    pub reason: FlushReason,
    pub memtables: usize,
}

impl DbInner {
    /// Tells the listeners, when no lock is held.
    pub fn notify_later(&self, tell: impl Fn(&dyn EventListener) + Send + 'static) {
        if !self.opts.listeners.is_empty() {
            self.reporting.deferred.calls.lock().push(Box::new(tell));
            self.reporting.deferred.any.store(true, Ordering::Release);
        }
    }

    /// Tells the listeners now, or when no lock is held.
    fn tell(&self, later: bool, tell: impl Fn(&dyn EventListener) + Send + 'static) {
        if later { self.notify_later(tell) } else { self.notify(tell) }
    }

    /// Makes the calls that wait. No lock may be held.
    #[inline]
    pub fn tell_waiting(&self) {
        if self.reporting.deferred.any.load(Ordering::Acquire) {
            self.tell_all_waiting();
        }
    }

    #[cold]
    fn tell_all_waiting(&self) {
        self.reporting.deferred.any.store(false, Ordering::Release);
        let calls = std::mem::take(&mut *self.reporting.deferred.calls.lock());
        for call in calls {
            self.notify(|l| call(l));
        }
    }

    /// A flush begins. `later`: the write leader waits for it, so listeners are told when it has given up its place.
    pub(crate) fn flush_begins(&self, cf: &CfData, flush: &FlushEvent, runs: &SealedRuns, later: bool) {
        if !later {
            self.tell_waiting();
        }
        let (name, job) = (&cf.name, flush.job);
        if self.log.wants(LogLevel::Info) {
            for id in runs.ids() {
                log_info!(self.log, "[{name}] [JOB {job}] Flushing memtable id {id}");
            }
            let stats = runs.stats();
            self.log.event(
                self.event("flush_started", job)
                    .number("num_memtables", runs.count())
                    .number("total_num_input_entries", stats.entries)
                    .number("num_deletes", stats.deletes)
                    .number("total_data_size", stats.data_size)
                    .number("memory_usage", stats.memory)
                    .number("num_range_deletes", stats.range_deletes)
                    .text("flush_reason", flush.reason.name()),
            );
        }
        if !self.opts.listeners.is_empty() {
            let info = self.flush_info(cf, flush);
            self.tell(later, move |l| l.on_flush_begin(&info));
        }
    }

    fn flush_info(&self, cf: &CfData, flush: &FlushEvent) -> FlushJobInfo {
        FlushJobInfo {
            cf_id: cf.id,
            cf_name: cf.name.clone(),
            job_id: flush.job,
            memtables: flush.memtables,
            flush_reason: flush.reason,
            ..FlushJobInfo::default()
        }
    }

    /// A flush that began has failed, by itself or together with others that it was to be installed with.
    pub(crate) fn flush_failed(&self, cf: &CfData, job: u64, e: &Error) {
        if !matches!(e.kind(), ErrorKind::ShutdownInProgress | ErrorKind::ColumnFamilyDropped) {
            count(&self.stats.flushes_failed, 1);
        }
        log_error!(self.log, "[{}] [JOB {job}] Flush error: {e}", cf.name);
    }

    /// Counts a flush that is done. A caller that waits for the flush may read the counters as soon as it is woken, so
    /// this comes before the table is installed.
    pub(crate) fn count_flush(&self, stats: &JobStats, table: Option<&TableProperties>) {
        count(&self.stats.flushes, 1);
        count(&self.stats.flush_bytes, stats.output_bytes);
        count(&self.stats.flush_input_bytes, stats.input_bytes);
        count(&self.stats.flush_micros, stats.wall_micros);
        count(&self.stats.flush_cpu_micros, stats.cpu_micros);
        if let Some(s) = self.opts.statistics.statistics() {
            let kept = table.map_or(0, |t| t.raw_key_size + t.raw_value_size);
            s.add_all([
                (Ticker::FlushWriteBytes, stats.output_bytes),
                (Ticker::MemtablePayloadBytesAtFlush, stats.input_bytes),
                (Ticker::MemtableGarbageBytesAtFlush, stats.input_bytes.saturating_sub(kept)),
            ]);
            s.record_time(Histogram::FlushTime, stats.wall_micros);
        }
    }

    /// A flush is done; its table, if it wrote one, is installed.
    pub(crate) fn flush_ended(
        &self,
        cf: &CfData,
        flush: &FlushEvent,
        entry: Option<&FileEntry>,
        stats: &JobStats,
        table: Option<&TableProperties>,
        later: bool,
    ) {
        let (levels, immutable, l0) = {
            let state = self.state.lock();
            match state.family(cf.id) {
                Some(c) => (level_counts(c.version()), c.front().sealed_count(), c.version().levels[0].len() as i32),
                None => (Vec::new(), 0, 0),
            }
        };
        let (name, job) = (&cf.name, flush.job);
        if self.log.wants(LogLevel::Info) {
            let what = match entry {
                Some(e) => format!("table #{}: {} bytes OK", e.number, e.size),
                None => "OK, nothing was left to write".to_owned(),
            };
            log_info!(self.log, "[{name}] [JOB {job}] Level-0 flush {what}");
            let (wall, cpu) = (stats.wall_micros, stats.cpu_micros);
            let lasted = "microseconds, and";
            log_info!(self.log, "[{name}] [JOB {job}] Flush lasted {wall} {lasted} {cpu} cpu microseconds.");
            let options = cf.options.load();
            let compression = options.compression_per_level.first().copied().unwrap_or(options.compression);
            self.log.event(
                self.event("flush_finished", job)
                    .text("output_compression", compression.name())
                    .numbers("lsm_state", levels)
                    .number("immutable_memtables", immutable),
            );
        }
        if self.opts.listeners.is_empty() {
            return;
        }
        let mut info = self.flush_info(cf, flush);
        if let Some(e) = entry {
            info.file_number = e.number;
            info.file_path = self.table_path(cf.dirs(), e.own_file());
            (info.smallest_seqno, info.largest_seqno) = (e.smallest_seqno, e.largest_seqno);
            info.table_properties = table.cloned();
        }
        let options = cf.options.load();
        info.triggered_writes_slowdown = l0 >= options.level0_slowdown_writes_trigger;
        info.triggered_writes_stop = l0 >= options.level0_stop_writes_trigger;
        self.tell(later, move |l| l.on_flush_completed(&info));
    }

    /// A compaction begins. Gives its job number.
    pub(crate) fn compaction_begins(&self, cf: &CfData, compaction: &Compaction) -> u64 {
        self.tell_waiting();
        let job = self.reporting.new_job();
        let name = &cf.name;
        if self.log.wants(LogLevel::Info) {
            let inputs: Vec<String> = compaction.inputs.iter().map(|(l, f)| format!("{}@{l}", f.len())).collect();
            let (inputs, to, score) = (inputs.join(" + "), compaction.output_level, compaction.score);
            log_info!(self.log, "[{name}] [JOB {job}] Compacting {inputs} files to L{to}, score {score:.2}");
            let mut event = self
                .event("compaction_started", job)
                .text("cf_name", name)
                .text("compaction_reason", &format!("{:?}", compaction.reason));
            for (level, files) in &compaction.inputs {
                event = event.numbers(&format!("files_L{level}"), files.iter().map(|f| f.number()));
            }
            let oldest = self.readers.snapshots().oldest().map_or(-1, |s| s as i64);
            self.log.event(
                event
                    .number("output_level", compaction.output_level)
                    .number("score", format_args!("{:.6}", compaction.score))
                    .number("input_data_size", compaction.input_bytes())
                    .number("oldest_snapshot_seqno", oldest),
            );
        }
        if !self.opts.listeners.is_empty() {
            let info = self.compaction_info(cf, compaction, job);
            self.notify(|l| l.on_compaction_begin(&info));
        }
        job
    }

    fn compaction_info(&self, cf: &CfData, compaction: &Compaction, job: u64) -> CompactionJobInfo {
        let inputs = || compaction.inputs.iter().flat_map(|(level, files)| files.iter().map(move |f| (*level, f)));
        let at_output = inputs().filter(|(level, _)| *level == compaction.output_level).count();
        CompactionJobInfo {
            cf_id: cf.id,
            cf_name: cf.name.clone(),
            status: Ok(()),
            job_id: job,
            num_l0_files: compaction.version.levels.first().map_or(0, Level::len),
            base_input_level: compaction.start_level(),
            output_level: compaction.output_level,
            input_files: inputs().map(|(_, f)| self.table_path(cf.dirs(), f.own_file())).collect(),
            input_file_infos: inputs()
                .map(|(level, f)| CompactionFileInfo { level, file_number: f.number() })
                .collect(),
            output_files: Vec::new(),
            output_file_infos: Vec::new(),
            compaction_reason: compaction.reason,
            compression: compaction.compression,
            stats: CompactionJobStats {
                num_input_files: inputs().count(),
                num_input_files_at_output_level: at_output,
                is_manual_compaction: compaction.reason == CompactionReason::ManualCompaction,
                total_input_bytes: compaction.input_bytes(),
                ..CompactionJobStats::default()
            },
        }
    }

    /// A compaction ended. `dropped`: because another one failed. No lock may be held.
    pub(crate) fn compaction_ended(
        &self,
        cf: &CfData,
        compaction: &Compaction,
        job: u64,
        done: &Result<JobOutput>,
        dropped: bool,
    ) {
        let moved = compaction.trivial_move && done.is_ok();
        let none = JobOutput::default();
        let output = done.as_ref().unwrap_or(&none);
        let stats = &output.stats;
        if moved {
            count(&self.stats.trivial_moves, 1);
        } else if done.is_ok() {
            self.count_compaction(compaction, stats);
        }
        match done {
            Err(_) if dropped => count(&self.stats.compactions_dropped, 1),
            Err(e) if !matches!(e.kind(), ErrorKind::ShutdownInProgress | ErrorKind::ColumnFamilyDropped) => {
                count(&self.stats.compactions_failed, 1);
            }
            _ => {}
        }
        let levels = {
            let mut state = self.state.lock();
            state.family_mut(cf.id).map(|c| {
                if done.is_ok() {
                    c.job_stats_mut().add_compaction(compaction, output);
                }
                level_counts(c.version())
            })
        };
        match done {
            Err(why) if dropped => self.log_compaction_dropped(cf, compaction, job, why),
            _ => self.log_compaction_end(cf, compaction, job, done, levels.unwrap_or_default()),
        }
        if self.opts.listeners.is_empty() {
            return;
        }
        let mut info = self.compaction_info(cf, compaction, job);
        info.status = done.as_ref().map(drop).map_err(Error::clone);
        let files: Vec<TableFile> = if moved {
            compaction.input_files().map(|f| f.own_file()).collect()
        } else {
            output.files.iter().map(FileEntry::own_file).collect()
        };
        let level = compaction.output_level;
        info.output_files = files.iter().map(|&file| self.table_path(cf.dirs(), file)).collect();
        info.output_file_infos = files.iter().map(|f| CompactionFileInfo { level, file_number: f.number }).collect();
        let s = &mut info.stats;
        (s.elapsed_micros, s.cpu_micros) = (stats.wall_micros, stats.cpu_micros);
        (s.num_input_records, s.num_output_records) = (stats.input_records, stats.output_records);
        (s.num_output_files, s.total_output_bytes) = (files.len(), stats.output_bytes);
        (s.num_records_replaced, s.num_expired_deletion_records) = (stats.dropped.hidden, stats.dropped.obsolete);
        self.notify(|l| l.on_compaction_completed(&info));
    }

    fn log_compaction_dropped(&self, cf: &CfData, compaction: &Compaction, job: u64, why: &Error) {
        let name = &cf.name;
        log_info!(self.log, "[{name}] [JOB {job}] Compaction dropped: {}; its inputs are free again", why.message());
        if self.log.wants(LogLevel::Info) {
            self.log.event(
                self.event("compaction_dropped", job)
                    .text("cf_name", name)
                    .number("output_level", compaction.output_level)
                    .number("input_data_size", compaction.input_bytes()),
            );
        }
    }

    fn log_compaction_end(
        &self,
        cf: &CfData,
        compaction: &Compaction,
        job: u64,
        done: &Result<JobOutput>,
        levels: Vec<usize>,
    ) {
        let (name, to) = (&cf.name, compaction.output_level);
        let output = match done {
            Ok(output) => output,
            Err(e) if e.kind() == ErrorKind::ShutdownInProgress => {
                log_info!(self.log, "[{name}] [JOB {job}] Compaction stopped: the database is being closed");
                return;
            }
            Err(e) => {
                log_error!(self.log, "[{name}] [JOB {job}] Compaction error: {e}");
                return;
            }
        };
        if !self.log.wants(LogLevel::Info) {
            return;
        }
        if compaction.trivial_move {
            let (files, bytes) = (compaction.input_files().count(), compaction.input_bytes());
            log_info!(self.log, "[{name}] [JOB {job}] Moved #{files} files to level-{to} {bytes} bytes OK");
            self.log.event(
                self.event("trivial_move", job)
                    .number("destination_level", to)
                    .number("files", files)
                    .number("total_files_size", bytes),
            );
            return;
        }
        let s = &output.stats;
        let per_second = |bytes: u64| bytes as f64 / s.wall_micros.max(1) as f64;
        let (read, written) = (per_second(s.input_bytes), per_second(s.output_bytes));
        let files = (compaction.input_files().count(), output.files.len());
        let dropped = s.input_records.saturating_sub(s.output_records);
        let compression = compaction.compression.name();
        log_info!(
            self.log,
            "[{name}] [JOB {job}] compacted to: files{levels:?}, MB/sec: {read:.1} rd, {written:.1} wr, level {to}, \
             files in({}) out({}) MB in({:.1}) out({:.1}), OK, records in: {}, records dropped: {dropped} \
             output_compression: {compression}",
            files.0,
            files.1,
            s.input_bytes as f64 / 1_048_576.0,
            s.output_bytes as f64 / 1_048_576.0,
            s.input_records
        );
        self.log.event(
            self.event("compaction_finished", job)
                .number("compaction_time_micros", s.wall_micros)
                .number("compaction_time_cpu_micros", s.cpu_micros)
                .number("output_level", to)
                .number("num_output_files", output.files.len())
                .number("total_output_size", s.output_bytes)
                .number("num_input_records", s.input_records)
                .number("num_output_records", s.output_records)
                .number("num_subcompactions", s.subcompactions)
                .text("output_compression", compression)
                .numbers("lsm_state", levels),
        );
    }

    fn count_compaction(&self, compaction: &Compaction, s: &JobStats) {
        count(&self.stats.compactions, 1);
        count(&self.stats.compact_read_bytes, s.input_bytes);
        count(&self.stats.compact_write_bytes, s.output_bytes);
        count(&self.stats.compact_micros, s.wall_micros);
        count(&self.stats.compact_cpu_micros, s.cpu_micros);
        count(&self.stats.files_covered, s.files_covered);
        count(&self.stats.blocks_passed, s.dropped.blocks_passed);
        let Some(t) = self.opts.statistics.statistics() else { return };
        t.add_all([
            (Ticker::CompactReadBytes, s.input_bytes),
            (Ticker::CompactWriteBytes, s.output_bytes),
            (Ticker::CompactionCpuTotalTime, s.cpu_micros),
        ]);
        let of_reason = match compaction.reason {
            CompactionReason::FilesMarkedForCompaction => {
                Some((Ticker::CompactReadBytesMarked, Ticker::CompactWriteBytesMarked))
            }
            CompactionReason::PeriodicCompaction => {
                Some((Ticker::CompactReadBytesPeriodic, Ticker::CompactWriteBytesPeriodic))
            }
            CompactionReason::Ttl | CompactionReason::RoundRobinTtl => {
                Some((Ticker::CompactReadBytesTtl, Ticker::CompactWriteBytesTtl))
            }
            _ => None,
        };
        if let Some((read, written)) = of_reason {
            t.add_all([(read, s.input_bytes), (written, s.output_bytes)]);
        }
        t.record(Histogram::NumFilesInSingleCompaction, compaction.input_files().count() as u64);
        t.record(Histogram::NumSubcompactionsScheduled, s.subcompactions);
        t.record_time(Histogram::CompactionTime, s.wall_micros);
        t.record_time(Histogram::CompactionCpuTime, s.cpu_micros);
        self.count_dropped(s);
    }

    fn count_dropped(&self, s: &JobStats) {
        if let Some(t) = self.opts.statistics.statistics() {
            t.add_all([
                (Ticker::CompactionKeyDropNewerEntry, s.dropped.hidden),
                (Ticker::CompactionKeyDropObsolete, s.dropped.obsolete),
                (Ticker::CompactionOptimizedDelDropObsolete, s.dropped.obsolete_above),
                (Ticker::CompactionKeyDropRangeDel, s.dropped.range_deleted),
                (Ticker::CompactionKeyDropUser, s.dropped.filtered),
            ]);
        }
    }

    fn event(&self, kind: &str, job: u64) -> Event {
        Event::of_job(&*self.opts.clock, job, kind)
    }

    /// A memtable became immutable. Under the state's lock.
    pub(crate) fn memtable_sealed(&self, cf: &CfData, sealed: &SealedInfo) {
        log_info!(self.log, "[{}] New memtable created. Immutable memtables: id {} joins", cf.name, sealed.id);
        if !self.opts.listeners.is_empty() {
            let info = MemTableInfo {
                cf_name: cf.name.clone(),
                first_seqno: sealed.first_sequence,
                earliest_seqno: sealed.first_sequence,
                num_entries: sealed.stats.entries,
                num_deletes: sealed.stats.deletes,
            };
            self.notify_later(move |l| l.on_memtable_sealed(&info));
        }
    }

    /// The tree or the memtables changed: reports it if writers are now treated differently. Under the state's lock.
    pub(crate) fn note_stall(&self, state: &State, cur: WriteStallCondition, cause: Option<(u32, StallReason)>) {
        let prev = std::mem::replace(&mut *self.reporting.stall_condition.lock(), cur);
        if prev == cur {
            return;
        }
        let name = |id: u32| state.family(id).map_or_else(String::new, |c| c.cf().name.clone());
        let cf_name = cause.map_or_else(|| name(0), |(id, _)| name(id));
        match (cur, cause) {
            (WriteStallCondition::Normal, _) => log_info!(self.log, "[{cf_name}] Writes run free again"),
            (WriteStallCondition::Delayed, Some((_, why))) => {
                let rate = self.pacing.writers().rate();
                log_warn!(self.log, "[{cf_name}] Stalling writes because of {}, rate {rate}", why.name());
            }
            (_, why) => {
                let why = why.map_or("an unknown cause", |(_, w)| w.name());
                log_warn!(self.log, "[{cf_name}] Stopping writes because of {why}");
            }
        }
        let info = WriteStallInfo { cf_name, cur, prev };
        self.notify_later(move |l| l.on_stall_conditions_changed(&info));
    }

    /// Background work failed and the database takes no more writes. Locks may be held.
    pub(crate) fn note_background_error(&self, reason: BackgroundErrorReason, error: &Error) {
        log_error!(self.log, "background error ({reason:?}): {error}");
        self.opts.statistics.add(Ticker::ErrorHandlerBgErrorCount, 1);
        if error.kind() == ErrorKind::IOError {
            self.opts.statistics.add(Ticker::ErrorHandlerBgIoErrorCount, 1);
            if error.is_no_space() {
                self.opts.statistics.add(Ticker::ErrorHandlerBgRetryableIoErrorCount, 1);
            }
        }
        let error = error.clone();
        self.notify_later(move |l| l.on_background_error(reason, &error));
    }

    /// A table file was deleted, or could not be. No lock may be held.
    pub(crate) fn table_deleted(&self, number: u64, path: &std::path::Path, done: &std::io::Result<()>) {
        let job = self.reporting.last_job.load(Ordering::Relaxed);
        match done {
            Ok(()) => self.log.event(self.event("table_file_deletion", job).number("file_number", number)),
            Err(e) => log_warn!(self.log, "[JOB {job}] cannot delete {}: {e}", path.display()),
        }
        if !self.opts.listeners.is_empty() {
            let info = TableFileDeletionInfo {
                db_name: self.path.clone(),
                file_path: path.to_owned(),
                job_id: job,
                status: done.as_ref().copied().map_err(|e| Error::io(path.display(), e)),
            };
            self.notify(|l| l.on_table_file_deleted(&info));
        }
    }
}

fn level_counts(version: &Version) -> Vec<usize> {
    version.levels.iter().map(Level::len).collect()
}

/// What jobs did to a column family's levels since it was opened, for `rocksdb.cfstats`.
#[derive(Debug, Default)]
pub(crate) struct CfJobStats {
    /// By output level.
    pub(super) levels: Vec<LevelJobStats>,
    /// When a text began an interval (microseconds since the database was opened), and the sum then.
    pub(super) reported: (u64, LevelJobStats),
}

/// What jobs did whose output was one level.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct LevelJobStats {
    pub jobs: u64,
    pub micros: u64,
    pub cpu_micros: u64,
    /// Bytes read from levels above the output's.
    pub read_above: u64,
    /// Bytes read from the output's level.
    pub read_output: u64,
    pub written: u64,
    /// Of them, bytes that flushes wrote.
    pub flushed: u64,
    /// Bytes of tables that moved in without being read.
    pub moved: u64,
    pub records_in: u64,
    pub records_dropped: u64,
}

impl LevelJobStats {
    /// What was added since it was `o`.
    pub fn since(&self, o: &Self) -> Self {
        self.with(o, |now, then| now - then)
    }

    pub fn add(&mut self, o: &Self) {
        *self = self.with(o, |a, b| a + b);
    }

    fn with(&self, o: &Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            jobs: each(self.jobs, o.jobs),
            micros: each(self.micros, o.micros),
            cpu_micros: each(self.cpu_micros, o.cpu_micros),
            read_above: each(self.read_above, o.read_above),
            read_output: each(self.read_output, o.read_output),
            written: each(self.written, o.written),
            flushed: each(self.flushed, o.flushed),
            moved: each(self.moved, o.moved),
            records_in: each(self.records_in, o.records_in),
            records_dropped: each(self.records_dropped, o.records_dropped),
        }
    }
}

impl CfJobStats {
    fn level(&mut self, level: usize) -> &mut LevelJobStats {
        if self.levels.len() <= level {
            self.levels.resize(level + 1, LevelJobStats::default());
        }
        &mut self.levels[level]
    }

    pub(crate) fn add_flush(&mut self, s: &JobStats) {
        self.level(0).add(&LevelJobStats {
            jobs: 1,
            micros: s.wall_micros,
            cpu_micros: s.cpu_micros,
            written: s.output_bytes,
            flushed: s.output_bytes,
            ..LevelJobStats::default()
        });
    }

    fn add_compaction(&mut self, compaction: &Compaction, output: &JobOutput) {
        let s = &output.stats;
        let bytes = |at_output: bool| -> u64 {
            let inputs = compaction.inputs.iter().filter(|(l, _)| (*l == compaction.output_level) == at_output);
            inputs.flat_map(|(_, files)| files).map(|f| f.size()).sum()
        };
        let moved = if compaction.trivial_move { compaction.input_bytes() } else { 0 };
        let read = |at_output| if compaction.trivial_move { 0 } else { bytes(at_output) };
        self.level(compaction.output_level).add(&LevelJobStats {
            jobs: u64::from(!compaction.trivial_move),
            micros: s.wall_micros,
            cpu_micros: s.cpu_micros,
            read_above: read(false),
            read_output: read(true),
            written: s.output_bytes,
            flushed: 0,
            moved,
            records_in: s.input_records,
            records_dropped: s.input_records.saturating_sub(s.output_records),
        });
    }
}
