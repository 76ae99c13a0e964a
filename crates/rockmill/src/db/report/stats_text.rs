//! `rocksdb.stats` and its parts, in the form of RocksDB's texts, because people and scripts read them.

use std::fmt::Write;
use std::sync::Arc;

use rockmill_format::printable;

use crate::db::report::Reported;
use crate::db::report::events::LevelJobStats;
use crate::db::report::properties::levels;
use crate::db::report::stats::DbCounters;
use crate::db::{CfState, DbInner};
use crate::pacing::decide::LogsNow;
use crate::pacing::index_tables::Short;
use crate::sync::atomic::Ordering;
use crate::version::Version;

const MB: f64 = 1_048_576.0;
const GB: f64 = 1_073_741_824.0;

impl DbInner {
    fn micros_up(&self) -> u64 {
        self.opts.clock.now_micros().saturating_sub(self.reporting.opened_micros)
    }

    /// `rocksdb.dbstats`. The interval is the time since the last query.
    pub(crate) fn db_stats_text(&self) -> String {
        let (now, c) = (self.micros_up(), self.stats.read());
        let last = std::mem::replace(&mut *self.reporting.reported.lock(), Reported { micros: now, counters: c });
        let (up, since) = (seconds(now), seconds(now.saturating_sub(last.micros)));
        let mut s = format!("\n** DB Stats **\nUptime(secs): {up:.1} total, {since:.1} interval\n");
        db_lines(&mut s, "Cumulative", &c, up, ("GB", GB));
        db_lines(&mut s, "Interval", &c.since(&last.counters), since, ("MB", MB));
        let (allowed, sustained) = (self.pacing.writers().rate(), self.pacing.writers().sustained());
        let allowed = if allowed == 0 { "free".to_owned() } else { format!("{:.2} MB/s", allowed as f64 / MB) };
        let _ = writeln!(
            s,
            "Write control: writers {allowed}, reason: {}, compactions take in {:.2} MB/s, longest wait: {:.3} ms",
            self.pacing.writers().reason().name(),
            sustained as f64 / MB,
            self.pacing.writers().longest_micros.load(Ordering::Relaxed) as f64 / 1e3
        );
        if c.compactions_failed + c.compactions_dropped + c.flushes_failed > 0 {
            let _ = writeln!(
                s,
                "Jobs without a result: {} compactions failed, {} dropped as another one failed, {} flushes failed",
                c.compactions_failed, c.compactions_dropped, c.flushes_failed
            );
        }
        if c.compactions_elsewhere + c.compactions_returned > 0 {
            let _ = writeln!(
                s,
                "Compactions on other machines: {} done, {:.2} MB read there, {:.3} s of CPU there, {} round trips, {:.2} \
                 MB on the network, {} offered to a second one, {} done here in the end",
                c.compactions_elsewhere,
                c.elsewhere_read_bytes as f64 / MB,
                seconds(c.elsewhere_cpu_micros),
                c.elsewhere_round_trips,
                c.elsewhere_wire_bytes as f64 / MB,
                c.compactions_offered_again,
                c.compactions_returned
            );
        }
        if self.front.memory().index().is_some() {
            let _ = writeln!(
                s,
                "Index merges: {} tables, {} entries, {} left out with {:.2} MB in logs, {:.3} s, {} stopped, {} failed; \
                 schedule changed {} times",
                c.index_tables_merged,
                c.index_entries_merged,
                c.index_entries_left_out,
                c.index_bytes_left_out as f64 / MB,
                seconds(c.index_merge_micros),
                c.index_merges_stopped,
                c.index_merges_failed,
                c.index_schedule_changes
            );
            let (live, dead) = self.live_and_dead(&self.state.lock());
            let _ = writeln!(
                s,
                "Logs: {:.2} MB live, {:.2} MB dead; emptied {} times",
                live as f64 / MB,
                dead as f64 / MB,
                c.logs_emptied
            );
            let read = self.engines.stats.log_reads();
            let _ = writeln!(
                s,
                "Flushes read from logs: {} values in {} reads, {:.2} MB",
                read.values,
                read.reads,
                read.bytes as f64 / MB
            );
        }
        let _ = writeln!(s, "Merge engine: {}", self.engines.describe(&self.live()));
        let memory = self.memory_parts();
        let parts = memory.named().map(|(name, bytes)| format!("{name} {:.2} MB", bytes as f64 / MB));
        let _ = writeln!(s, "Memory: {:.2} MB; {}", memory.total() as f64 / MB, parts.join(", "));
        s
    }

    /// `rocksdb.cfstats` of a column family. The interval is the time since the last text with `begin_interval`, as
    /// used for the info log.
    pub(crate) fn cf_stats_text(&self, id: u32, begin_interval: bool) -> Option<String> {
        let now = self.micros_up();
        let mut state = self.state.lock();
        let logs = self.logs_now(&state);
        let c = state.family_mut(id)?;
        let text = cf_text(c, logs, now);
        if begin_interval {
            c.job_stats_mut().reported = (now, sum(c));
        }
        let (name, version) = (c.cf().name.clone(), Arc::clone(c.version()));
        drop(state);
        Some(text + &index_text(&version) + &self.reporting.running.text(&name))
    }

    /// `rocksdb.stats` of every column family, for the info log.
    pub(crate) fn stats_text(&self) -> String {
        let ids: Vec<u32> = self.state.lock().families().map(|c| c.cf().id).collect();
        let mut s = self.db_stats_text();
        for id in ids {
            s.push_str(&self.cf_stats_text(id, true).unwrap_or_default());
        }
        s
    }

    /// `rocksdb.sstables`.
    pub(crate) fn tables_text(&self, version: &Version, number: u64) -> String {
        let mut s = String::new();
        for (level, files) in version.levels.iter().enumerate() {
            let _ = writeln!(s, "--- level {level} --- version# {number} ---");
            for f in files {
                let (e, key) = (&f.entry, crate::table::describe_internal_key);
                let (smallest, largest) = (key(e.smallest.as_bytes()), key(e.largest.as_bytes()));
                let (from, to) = (e.smallest_seqno, e.largest_seqno);
                let _ = write!(s, " {}:{}[{from} .. {to}][{smallest} .. {largest}]", e.number, e.size);
                // Each with its size and what the table refers to of it.
                for piece in &e.pieces {
                    let _ = write!(s, " +{}:{}({} live)", piece.number, piece.size, piece.live);
                }
                s.push('\n');
            }
        }
        s
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Lines over writes, WAL and stalls.
fn db_lines(s: &mut String, what: &str, c: &DbCounters, time: f64, (unit, size): (&str, f64)) {
    let (writes, time) = (c.writes_by_self + c.writes_by_other, time.max(0.001));
    let per = |n: u64, of: u64| n as f64 / (of as f64).max(1.0);
    let _ = writeln!(
        s,
        "{what} writes: {} writes, {} keys, {} commit groups, {:.1} writes per commit group, ingest: {:.2} {unit}, \
         {:.2} MB/s",
        count(writes),
        count(c.keys_written),
        count(c.writes_by_self),
        per(writes, c.writes_by_self),
        c.bytes_written as f64 / size,
        c.bytes_written as f64 / MB / time
    );
    // RocksDB's WAL lines have gigabytes in both.
    let _ = writeln!(
        s,
        "{what} WAL: {} writes, {} syncs, {:.2} writes per sync, written: {:.2} GB, {:.2} MB/s",
        count(c.writes_with_wal),
        count(c.wal_syncs),
        per(c.writes_with_wal, c.wal_syncs),
        c.wal_bytes as f64 / GB,
        c.wal_bytes as f64 / MB / time
    );
    let (all, micros) = (c.stall_micros / 1_000_000, c.stall_micros % 60_000_000);
    let _ = writeln!(
        s,
        "{what} stall: {:02}:{:02}:{:.3} H:M:S, {:.1} percent",
        all / 3600,
        all / 60 % 60,
        micros as f64 / 1e6,
        c.stall_micros as f64 / 10_000.0 / time
    );
}

fn sum(c: &CfState) -> LevelJobStats {
    let mut sum = LevelJobStats::default();
    c.job_stats().levels.iter().for_each(|l| sum.add(l));
    sum
}

fn cf_text(c: &CfState, logs: LogsNow, now: u64) -> String {
    let head = "Level    Files   Size     Score Read(GB)  Rn(GB) Rnp1(GB) Write(GB) WPreComp(GB) Wnew(GB) Moved(GB) \
                W-Amp Rd(MB/s) Wr(MB/s) Comp(sec) CompMergeCPU(sec) Comp(cnt) Avg(sec) KeyIn KeyDrop Rblob(GB) \
                Wblob(GB)";
    let mut s =
        format!("\n** Compaction Stats [{}] **\n{head}\n{}\n", printable::line(&c.cf().name), "-".repeat(head.len()));
    let none = LevelJobStats::default();
    let (mut files, mut compacting, mut bytes) = (0, 0, 0);
    for l in levels(c) {
        let jobs = c.job_stats().levels.get(l.level).unwrap_or(&none);
        (files, compacting, bytes) = (files + l.files, compacting + l.compacting, bytes + l.bytes);
        if l.files > 0 || jobs.jobs > 0 || jobs.moved > 0 {
            // What came into the level: L0 by flushes, others from above.
            let amplification = if l.level == 0 { 1.0 } else { jobs.written as f64 / (jobs.read_above.max(1)) as f64 };
            let amplification = if jobs.written == 0 { 0.0 } else { amplification };
            level_line(
                &mut s,
                &format!("L{}", l.level),
                (l.files, l.compacting, l.bytes, l.score),
                amplification,
                jobs,
            );
        }
    }
    let flushed = c.job_stats().levels.first().map_or(0, |l| l.flushed);
    let all = sum(c);
    let amplification = |written: u64, flushed: u64| written as f64 / (flushed + 1) as f64;
    level_line(&mut s, "Sum", (files, compacting, bytes, 0.0), amplification(all.written, flushed), &all);
    let (then, before) = &c.job_stats().reported;
    let interval = all.since(before);
    level_line(&mut s, "Int", (0, 0, 0, 0.0), amplification(interval.written, interval.flushed), &interval);
    let (up, since) = (seconds(now), seconds(now.saturating_sub(*then)));
    let _ = writeln!(s, "\nUptime(secs): {up:.1} total, {since:.1} interval");
    let (flushed, lately) = (all.flushed as f64 / GB, interval.flushed as f64 / GB);
    let _ = writeln!(s, "Flush(GB): cumulative {flushed:.3}, interval {lately:.3}");
    for (what, jobs, time) in [("Cumulative", &all, up), ("Interval", &interval, since)] {
        let (read, time) = ((jobs.read_above + jobs.read_output) as f64, time.max(0.001));
        let _ = writeln!(
            s,
            "{what} compaction: {:.2} GB write, {:.2} MB/s write, {:.2} GB read, {:.2} MB/s read, {:.1} seconds",
            jobs.written as f64 / GB,
            jobs.written as f64 / MB / time,
            read / GB,
            read / MB / time,
            seconds(jobs.micros)
        );
    }
    let _ = writeln!(s, "Estimated pending compaction bytes: {}", c.jobs().scores().pending_bytes);
    if let Some((schedule, queues)) = c.front().schedule(logs) {
        let (now, history) = (schedule.now(), schedule.history());
        let _ = writeln!(
            s,
            "Index tables: {} become one, flushed with {:.2} MB, levels hold {} times their options; waiting: {} in a \
             row, {:.2} MB; changed {} times (core {}, device {}, idle {}), last since {}",
            now.merge,
            now.flush_bytes as f64 / MB,
            schedule.level_factor(),
            queues.merge,
            queues.flush_bytes as f64 / MB,
            history.changes(),
            history.core,
            history.device,
            history.nothing,
            history.last.map_or("the beginning", Short::name)
        );
    }
    let pieces = c.version().pieces().totals();
    if pieces.tables > 0 {
        let _ = writeln!(
            s,
            "Pieces: {} tables have {} further files of {:.2} GB, {:.1} percent live",
            pieces.tables,
            pieces.files,
            pieces.bytes as f64 / GB,
            pieces.live_percent()
        );
    }
    s
}

/// What finding the keys of TPH tables takes.
fn index_text(version: &Version) -> String {
    match version.tph_index() {
        (0, _) => String::new(),
        (keys, bytes) => {
            let each = bytes as f64 / keys as f64;
            format!("TPH index: {bytes} bytes of memory for {keys} keys of open tables, {each:.2} bytes per key\n")
        }
    }
}

fn level_line(
    s: &mut String,
    name: &str,
    (files, compacting, bytes, score): (usize, usize, u64, f64),
    amplification: f64,
    j: &LevelJobStats,
) {
    let gb = |bytes: u64| bytes as f64 / GB;
    let (read, time) = (j.read_above + j.read_output, (j.micros + 1) as f64 / 1e6);
    let average = if j.jobs == 0 { 0.0 } else { seconds(j.micros) / j.jobs as f64 };
    let _ = writeln!(
        s,
        "{name:>4} {files:>6}/{compacting:<3} {:>10} {score:>5.1} {:>8.1} {:>7.1} {:>8.1} {:>9.1} {:>9.1} {:>8.1} \
         {:>9.1} {amplification:>5.1} {:>8.1} {:>8.1} {:>9.2} {:>17.2} {:>9} {average:>8.3} {:>7} {:>6} {:>9.1} \
         {:>9.1}",
        size(bytes),
        gb(read),
        gb(j.read_above),
        gb(j.read_output),
        gb(j.written),
        gb(j.written),
        (j.written as f64 - j.read_output as f64) / GB,
        gb(j.moved),
        read as f64 / MB / time,
        j.written as f64 / MB / time,
        seconds(j.micros),
        seconds(j.cpu_micros),
        j.jobs,
        count(j.records_in),
        count(j.records_dropped),
        0.0,
        0.0
    );
}

/// RocksDB's short numbers.
fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..10_000_000 => format!("{}K", n / 1000),
        10_000_000..10_000_000_000 => format!("{}M", n / 1_000_000),
        _ => format!("{}G", n / 1_000_000_000),
    }
}

/// RocksDB's short sizes.
fn size(bytes: u64) -> String {
    let mut size = bytes as f64 / 1024.0;
    for unit in ["KB", "MB", "GB"] {
        if size < 1024.0 {
            return format!("{size:.2} {unit}");
        }
        size /= 1024.0;
    }
    format!("{size:.2} TB")
}
