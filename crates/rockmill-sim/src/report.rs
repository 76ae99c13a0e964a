//! What came out of a run.

use std::fmt::Write as _;

use rockmill::internals::simulation::{Compaction, LevelScores, StallReason, Triggers};
use serde_json::{Map, Value, json};

use crate::limits::{Limit, Limits};
use crate::reads::Reads;
use crate::settings::{Settings, Split};
use crate::tree::Tree;

/// Most samples that are kept; if there are more, pairs are combined.
const SAMPLES_MAX: usize = 240;

/// A moment, or the time since the previous sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Virtual seconds.
    pub seconds: f64,
    /// Bytes that writers wrote each second.
    pub write_rate: f64,
    /// Fraction of the time in which writers were delayed or stopped.
    pub stalled: f64,
    /// Average busy compaction threads, by start level.
    pub busy: Vec<f64>,
    /// Sorted runs that a seek positions in.
    pub runs: f64,
    /// Seconds of a lookup on an otherwise idle device.
    pub lookup: f64,
    /// The same of a seek.
    pub seek: f64,
    /// Bytes of tables divided by bytes of live data.
    pub space: f64,
    /// Bytes written to tables divided by bytes written by users, so far.
    pub write_amplification: f64,
    /// Compaction debt, in bytes.
    pub debt: f64,
    /// With a fast device: use of the cores and of both devices per second.
    pub used: crate::fast::Use,
    /// The most bytes on the fast device.
    pub fast_bytes: f64,
    /// The triggers for merging and flushing index tables.
    pub triggers: Triggers,
    /// How often the triggers have changed because a core was short, because the device was, and because neither was.
    pub changes: [u64; 3],
}

/// Bytes that compactions wrote into a level.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Written {
    /// From the level above, as a new run.
    pub new_runs: f64,
    /// From above, merged into the base run.
    pub base: f64,
    /// Of the level's own runs, merged.
    pub own: f64,
}

/// A tree at rest after a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// Virtual seconds since the last write.
    pub seconds: f64,
    /// Bytes written to tables since the beginning, divided by bytes written by users.
    pub write_amplification: f64,
    /// Sorted runs.
    pub runs: usize,
    /// (tables, bytes) by level.
    pub levels: Vec<(usize, u64)>,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// The settings, completed.
    pub settings: Settings,
    /// What was chosen for the user.
    pub notes: Vec<String>,
    /// Virtual seconds until everything was written.
    pub seconds: f64,
    /// Lookups of users.
    pub reads: f64,
    /// Seeks of users.
    pub seeks: f64,
    /// Tables that a lookup searches, on average over time.
    pub lookup_tables: f64,
    /// Blocks that it reads.
    pub lookup_blocks: f64,
    /// Seconds of a lookup on an otherwise idle device.
    pub lookup_seconds: f64,
    /// The same for a seek.
    pub seek_seconds: f64,
    /// Bytes that users wrote.
    pub user_bytes: f64,
    /// Bytes written by flushes.
    pub flushed_bytes: f64,
    /// Bytes read by compactions.
    pub read_bytes: f64,
    /// Bytes written by compactions.
    pub compacted_bytes: f64,
    /// Seconds that writers stood still.
    pub stopped_seconds: f64,
    /// Seconds that writers slept.
    pub delayed_seconds: f64,
    /// How long writes waited, all together.
    pub waits: Waits,
    /// The same together by reason.
    pub stalls: Vec<(&'static str, f64)>,
    /// What limited the writers, as fractions of the time.
    pub limits: Limits,
    /// Average busy compaction threads, by start level. A job in two parts has two threads.
    pub busy: Vec<f64>,
    /// Their standard deviation over time.
    pub busy_spread: Vec<f64>,
    /// Average number of start levels of compactions that ran at the same time.
    pub levels_at_once: f64,
    /// Average number of running compactions, regardless of their threads.
    pub jobs_at_once: f64,
    /// Fraction of the time for each number of busy compaction threads: 0, 1, ….
    pub busy_share: Vec<f64>,
    /// Compactions, by start level.
    pub jobs: Vec<u64>,
    /// Bytes that compactions wrote, by output level.
    pub written: Vec<Written>,
    /// Jobs that only moved or deleted tables.
    pub moves: u64,
    /// See `moves`.
    pub deletions: u64,
    /// Jobs that were finished and had to wait for others to commit.
    pub waited: u64,
    /// Their total wait, in seconds.
    pub wait_seconds: f64,
    /// Most that waited at once.
    pub waited_most: usize,
    /// Merges of what waited (intra-DF).
    pub merges: u64,
    /// Bytes written by them; included in [`compacted_bytes`](Self::compacted_bytes).
    pub merged_bytes: f64,
    /// Sorted runs on average over time.
    pub runs: f64,
    /// Bytes of tables divided by bytes of live data, on average over time.
    pub space: f64,
    /// The time after the last write until nothing was due, if the run continued until then.
    pub settled: Option<Settled>,
    /// For TPH tables at the end: files per table, and index memory per key in bytes.
    pub tph: Option<(f64, f64)>,
    /// With a fast device: its figures.
    pub fast: Option<crate::fast::FastReport>,
    /// (tables, bytes) by level at the end.
    pub levels: Vec<(usize, u64)>,
    /// Writers were stopped, and nothing ran that could have released them.
    pub wedged: bool,
    /// Over time.
    pub samples: Vec<Sample>,
}

impl Report {
    /// Bytes per second that users wrote.
    pub fn throughput(&self) -> f64 {
        self.user_bytes / self.seconds.max(1e-9)
    }

    /// Bytes written to tables divided by bytes written by users.
    pub fn write_amplification(&self) -> f64 {
        (self.flushed_bytes + self.compacted_bytes) / self.user_bytes.max(1.0)
    }

    /// Compaction threads busy on average.
    pub fn parallelism(&self) -> f64 {
        self.busy.iter().sum()
    }

    /// Standard deviation of the number of busy threads over time.
    pub fn parallelism_spread(&self) -> f64 {
        let mean: f64 = self.busy_share.iter().enumerate().map(|(n, share)| n as f64 * share).sum();
        let squares = self.busy_share.iter().enumerate().map(|(n, share)| (n as f64 - mean).powi(2) * share);
        squares.sum::<f64>().sqrt()
    }

    /// Fraction of the time in which more than `threads` threads were busy.
    pub fn busy_over(&self, threads: usize) -> f64 {
        self.busy_share.iter().skip(threads + 1).sum()
    }

    /// Three quarters of the threads: 12 of 16, the paper's threshold.
    pub fn most_threads(&self) -> usize {
        self.settings.threads * 3 / 4
    }

    /// Strategy, threads and how jobs are split.
    fn of_what(&self) -> String {
        let s = &self.settings;
        let split = match s.split {
            Split::Store if !s.options.compaction_downforce => "",
            Split::Never => "",
            _ => ", or 2 where threads are idle",
        };
        let parts = match s.subcompactions {
            1 => "1 part a job".to_owned(),
            n => format!("up to {n} parts a job"),
        };
        format!("{}, {} threads, {parts}{split}", s.strategy, s.threads)
    }

    /// What came out, in a sentence.
    pub fn verdict(&self) -> String {
        let limits = self.limits.largest();
        let limit = limits.first().map_or_else(String::new, |(limit, part)| {
            format!(" What limits it: {} ({:.0} % of the time).", limit.words(), part * 100.0)
        });
        format!(
            "{} with {} threads takes in {}/s and writes each byte {:.1} times; there are {:.0} sorted runs on \
             average.{limit}",
            self.settings.strategy,
            self.settings.threads,
            size(self.throughput()),
            self.write_amplification(),
            self.runs
        )
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let s = &self.settings;
        let samples: Vec<Value> = self
            .samples
            .iter()
            .map(|p| {
                let mut sample = json!({
                    "seconds": round(p.seconds), "write_bytes_per_second": round(p.write_rate),
                    "stalled": round(p.stalled), "busy_by_level": p.busy.iter().map(|b| round(*b)).collect::<Vec<_>>(),
                    "runs": round(p.runs), "lookup_micros": round(p.lookup * 1e6),
                    "seek_micros": round(p.seek * 1e6), "space_amplification": round(p.space),
                    "write_amplification": round(p.write_amplification), "debt_bytes": round(p.debt),
                });
                if self.fast.is_some() {
                    let of = |of: [f64; 4]| json!(of.map(round));
                    sample["fast_bytes"] = json!(round(p.fast_bytes));
                    sample["index_merge_trigger"] = json!(p.triggers.merge);
                    sample["data_flush_trigger_size"] = json!(p.triggers.flush_bytes);
                    sample["changes_for_core_device_neither"] = json!(p.changes);
                    sample["cores_by_task"] = of(p.used.cpu);
                    sample["fast_device_by_task"] = of(p.used.fast);
                    sample["slow_device_by_task"] = of(p.used.slow);
                }
                sample
            })
            .collect();
        let stalls: Map<String, Value> =
            self.stalls.iter().map(|(why, seconds)| ((*why).to_owned(), json!(round(*seconds)))).collect();
        let limits: Map<String, Value> =
            Limit::ALL.into_iter().map(|l| (l.name().to_owned(), json!(round(self.limits.part(l))))).collect();
        let mut all = json!({
            "strategy": s.strategy, "threads": s.threads, "subcompactions": s.subcompactions,
            "split": s.split.name(),
            "data_bytes": s.data_bytes, "seed": s.seed, "notes": self.notes,
            "seconds": round(self.seconds), "user_bytes": round(self.user_bytes),
            "reads_per_second": round(self.reads / self.seconds.max(1e-9)),
            "write_bytes_per_second": round(self.throughput()),
            "write_amplification": round(self.write_amplification()),
            "read_amplification_runs": round(self.runs), "space_amplification": round(self.space),
            "flushed_bytes": round(self.flushed_bytes), "compaction_read_bytes": round(self.read_bytes),
            "compaction_write_bytes": round(self.compacted_bytes),
            "stopped_seconds": round(self.stopped_seconds), "delayed_seconds": round(self.delayed_seconds),
            "stall_seconds_by_reason": stalls,
            "limited_by": limits,
            "longest_stall_seconds": round(self.waits.longest), "longest_stall_reason": self.waits.reason,
            "wait_p999_seconds": round(self.waits.percentile(99.9)),
            "busy_threads": round(self.parallelism()), "jobs_at_once": round(self.jobs_at_once),
            "busy_threads_by_level": rounded(&self.busy),
            "busy_threads_share_of_time": rounded(&self.busy_share),
            "compactions_by_level": self.jobs, "moves": self.moves, "deletions": self.deletions,
            "commits_waited": self.waited, "commit_wait_seconds": round(self.wait_seconds),
            "commits_waited_most": self.waited_most,
            "intra_df_merges": self.merges, "intra_df_bytes": round(self.merged_bytes),
            "levels": levels_json(&self.levels),
            "wedged": self.wedged,
        });
        let reads = json!({
            "seeks_per_second": round(self.seeks / self.seconds.max(1e-9)),
            "lookup_tables": round(self.lookup_tables), "lookup_blocks": round(self.lookup_blocks),
            "lookup_micros": round(self.lookup_seconds * 1e6), "seek_runs": round(self.runs),
            "seek_micros": round(self.seek_seconds * 1e6),
            "samples": samples,
        });
        let tph = self.tph.map(|(files, index)| {
            json!({
                "table_format": "tph", "piece_limit": s.options.tph.piece_limit,
                "garbage_percent": s.options.tph.garbage_percent,
                "files_per_table": round(files), "index_bytes_per_key": round(index),
            })
        });
        let fast = self.fast.as_ref().map(|f| json!({"fast_device": f.to_json(s, self.user_bytes)}));
        let settled = self.settled.as_ref().map(|s| {
            json!({"settled": {
                "seconds": round(s.seconds), "write_amplification": round(s.write_amplification), "runs": s.runs,
                "levels": levels_json(&s.levels),
            }})
        });
        for more in [reads, crate::balance::to_json(self)].into_iter().chain(tph).chain(fast).chain(settled) {
            if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
                all.extend(more);
            }
        }
        all
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let s = &self.settings;
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let percent = |part: f64| part / self.seconds.max(1e-9) * 100.0;
        let rows = [
            ("strategy", self.of_what()),
            ("written", format!("{} in {} virtual", size(self.user_bytes), time(self.seconds))),
            (
                "throughput",
                format!("{}/s ({:.0} writes/s)", size(self.throughput()), self.throughput() / s.entry_bytes()),
            ),
            ("write amplification", format!("{:.2}", self.write_amplification())),
            ("read amplification", format!("{:.1} sorted runs on average", self.runs)),
            (
                "a lookup",
                format!(
                    "{:.0} us where nobody else reads: {:.1} tables asked, {:.2} blocks read",
                    self.lookup_seconds * 1e6,
                    self.lookup_tables,
                    self.lookup_blocks
                ),
            ),
            (
                "a seek",
                format!(
                    "{:.0} us: a block of each {}",
                    self.seek_seconds * 1e6,
                    if self.tph.is_some() { "file of its tables" } else { "run" }
                ),
            ),
            ("space amplification", format!("{:.2} on average", self.space)),
            (
                "stalls",
                format!(
                    "stopped {:.1} %, delayed {:.1} % of the time",
                    percent(self.stopped_seconds),
                    percent(self.delayed_seconds)
                ),
            ),
            (
                "waits",
                format!(
                    "a write {:.1} ms at most, 99.9 % of them {:.1} ms at most",
                    self.waits.longest * 1e3,
                    self.waits.percentile(99.9) * 1e3
                ),
            ),
            (
                "busy threads",
                format!(
                    "{:.2} on average (deviation {:.2}), in {:.2} compactions from {:.2} levels; \
                     more than {} for {:.0} % of the time",
                    self.parallelism(),
                    self.parallelism_spread(),
                    self.jobs_at_once,
                    self.levels_at_once,
                    self.most_threads(),
                    self.busy_over(self.most_threads()) * 100.0
                ),
            ),
        ];
        for (name, value) in rows {
            let _ = writeln!(out, "{name:<20} {value}");
        }
        let limits = self.limits.largest();
        let limits: Vec<String> =
            limits.iter().map(|(l, part)| format!("{} {:.0} %", l.words(), part * 100.0)).collect();
        let _ = writeln!(out, "{:<20} {}", "limited by", limits.join("; "));
        if let Some(settled) = &self.settled {
            let what = format!(
                "{} later: write amplification {:.2}, {} sorted runs",
                time(settled.seconds),
                settled.write_amplification,
                settled.runs
            );
            let _ = writeln!(out, "{:<20} {what}", "nothing left to do");
        }
        if let Some((files, index)) = self.tph {
            let what = format!("{files:.1} files each at the end, {index:.2} bytes of memory for each key");
            let _ = writeln!(out, "{:<20} {what}", "TPH tables");
        }
        if let Some(fast) = &self.fast {
            out += &fast.to_text(self.user_bytes);
        }
        if s.reads_per_second > 0.0 {
            let _ = writeln!(out, "{:<20} {:.0}/s", "lookups", self.reads / self.seconds.max(1e-9));
        }
        if s.seeks_per_second > 0.0 {
            let _ = writeln!(out, "{:<20} {:.0}/s", "seeks", self.seeks / self.seconds.max(1e-9));
        }
        for (why, seconds) in &self.stalls {
            let _ = writeln!(out, "{:<20} {:.1} % of the time", format!("  {why}"), percent(*seconds));
        }
        let heads = ["tables", "bytes", "compactions", "busy", "deviation", "new runs", "into base", "own runs"];
        let _ = write!(out, "\n{:>5}", "level");
        // 80 columns in all, those of a terminal.
        let widths = [7, 9, 11, 6, 9, 8, 9, 8];
        heads.iter().zip(widths).for_each(|(head, width)| out += &format!(" {head:>width$}"));
        out.push('\n');
        for (level, (files, bytes)) in self.levels.iter().enumerate() {
            let (jobs, busy, spread, w) =
                (self.jobs[level], self.busy[level], self.busy_spread[level], self.written[level]);
            if *files > 0 || jobs > 0 {
                let each = |bytes: f64| format!("{:.2}", bytes / self.user_bytes.max(1.0));
                let cells = [
                    files.to_string(),
                    size(*bytes as f64),
                    jobs.to_string(),
                    format!("{busy:.2}"),
                    format!("{spread:.2}"),
                    each(w.new_runs),
                    each(w.base),
                    each(w.own),
                ];
                let _ = write!(out, "{level:>5}");
                cells.iter().zip(widths).for_each(|(cell, width)| out += &format!(" {cell:>width$}"));
                out.push('\n');
            }
        }
        out += "\nThe last three columns: bytes that compactions wrote into the level for each byte of users.\n";
        let spark =
            |value: fn(&Sample) -> f64| crate::page::sparkline(&self.samples.iter().map(value).collect::<Vec<_>>(), 44);
        let peak = |value: fn(&Sample) -> f64| self.samples.iter().map(value).fold(0.0, f64::max);
        out.push('\n');
        let _ = writeln!(
            out,
            "{:<20} {} to {}/s",
            "written, over time",
            spark(|p| p.write_rate),
            size(peak(|p| p.write_rate))
        );
        let _ = writeln!(out, "{:<20} {} to {:.0} %", "stalled", spark(|p| p.stalled), peak(|p| p.stalled) * 100.0);
        let _ = writeln!(
            out,
            "{:<20} {} to {:.1}",
            "busy threads",
            spark(|p| p.busy.iter().sum()),
            peak(|p| p.busy.iter().sum())
        );
        let _ = writeln!(out, "{:<20} {} to {:.0}", "sorted runs", spark(|p| p.runs), peak(|p| p.runs));
        if self.fast.is_some() {
            let _ =
                writeln!(out, "{:<20} {} to {}", "fast bytes", spark(|p| p.fast_bytes), size(peak(|p| p.fast_bytes)));
        }
        if peak(|p| p.triggers.flush_bytes as f64) > 0.0 {
            let (imtn, dfts) = (|p: &Sample| p.triggers.merge as f64, |p: &Sample| p.triggers.flush_bytes as f64);
            let _ = writeln!(out, "{:<20} {} to {:.0}", "IMTN", spark(imtn), peak(imtn));
            let _ = writeln!(out, "{:<20} {} to {}", "DFTS", spark(dfts), size(peak(dfts)));
        }
        if self.wedged {
            out.push_str("\nWriters stood still, and no compaction was left that could have released them.\n");
        }
        out
    }
}

/// Writes by how long write control delayed them.
#[derive(Debug, Clone)]
pub struct Waits {
    /// The longest, in seconds.
    pub longest: f64,
    /// What it waited for.
    pub reason: &'static str,
    /// Number of writes that waited up to 10^(i / 8) microseconds; the first: those that did not wait.
    counts: [f64; 80],
}

impl Default for Waits {
    fn default() -> Self {
        Self { longest: 0.0, reason: StallReason::None.name(), counts: [0.0; 80] }
    }
}

/// The store's writers accumulate their delay until it is worth a sleep of this many seconds.
const SLEEP_SECONDS: f64 = 1e-3;

impl Waits {
    fn add(&mut self, writes: f64, seconds: f64, reason: StallReason) {
        let slot = if seconds <= 0.0 { 0 } else { ((seconds * 1e6).log10() * 8.0).ceil().max(1.0) as usize };
        self.counts[slot.min(79)] += writes;
        if seconds > self.longest {
            (self.longest, self.reason) = (seconds, reason.name());
        }
    }

    /// The given percentile of write delays in seconds, accurate to a third.
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut left = self.counts.iter().sum::<f64>() * percent / 100.0;
        for (slot, count) in self.counts.iter().enumerate() {
            left -= count;
            if left <= 0.0 {
                return if slot == 0 { 0.0 } else { (10f64.powf(slot as f64 / 8.0) * 1e-6).min(self.longest) };
            }
        }
        self.longest
    }
}

/// Gathers what a run does.
pub struct Recorder {
    report: Report,
    reasons: std::collections::BTreeMap<&'static str, f64>,
    every: f64,
    last: f64,
    next: f64,
    part: Sample,
    runs_time: f64,
    /// Tables searched, blocks and seconds of lookups, and seconds of seeks, each integrated over time.
    reads_time: [f64; 4],
    jobs_time: f64,
    space_time: f64,
    busy_time: Vec<f64>,
    /// The same of their squares.
    busy_squares: Vec<f64>,
    /// Threads busy by level, now.
    busy_now: Vec<usize>,
    levels_time: f64,
    /// For how long writers have been stopped.
    standing: f64,
    /// Seconds that each limit held.
    limits: Limits,
    /// The state at the last write, if the run continues after it.
    at_last_write: Option<Box<Before>>,
    /// Set by the engine; see [`Report::wedged`].
    pub wedged: bool,
}

/// The report, seconds of stalls by reason, and seconds by limit at a moment.
type Before = (Report, std::collections::BTreeMap<&'static str, f64>, Limits);

impl Recorder {
    /// For a tree of `levels` levels.
    pub fn new(s: &Settings, levels: usize) -> Self {
        let every = if s.sample_every > 0.0 { s.sample_every } else { 0.25 };
        let report = Report {
            settings: s.clone(),
            notes: Vec::new(),
            seconds: 0.0,
            reads: 0.0,
            seeks: 0.0,
            lookup_tables: 0.0,
            lookup_blocks: 0.0,
            lookup_seconds: 0.0,
            seek_seconds: 0.0,
            user_bytes: 0.0,
            flushed_bytes: 0.0,
            read_bytes: 0.0,
            compacted_bytes: 0.0,
            stopped_seconds: 0.0,
            delayed_seconds: 0.0,
            waits: Waits::default(),
            stalls: Vec::new(),
            limits: Limits::default(),
            busy: vec![0.0; levels],
            busy_spread: vec![0.0; levels],
            levels_at_once: 0.0,
            jobs_at_once: 0.0,
            busy_share: vec![0.0; s.threads + 1],
            jobs: vec![0; levels],
            written: vec![Written::default(); levels],
            moves: 0,
            deletions: 0,
            waited: 0,
            wait_seconds: 0.0,
            waited_most: 0,
            merges: 0,
            merged_bytes: 0.0,
            runs: 0.0,
            space: 0.0,
            settled: None,
            tph: None,
            fast: None,
            levels: Vec::new(),
            wedged: false,
            samples: Vec::new(),
        };
        Self {
            report,
            reasons: Default::default(),
            every,
            last: 0.0,
            next: every,
            part: Sample { busy: vec![0.0; levels], ..Sample::default() },
            runs_time: 0.0,
            reads_time: [0.0; 4],
            jobs_time: 0.0,
            space_time: 0.0,
            busy_time: vec![0.0; levels],
            busy_squares: vec![0.0; levels],
            busy_now: vec![0; levels],
            levels_time: 0.0,
            standing: 0.0,
            limits: Limits::default(),
            at_last_write: None,
            wedged: false,
        }
    }

    /// Seconds until the next sample is due.
    pub fn until_sample(&self, now: f64) -> f64 {
        (self.next - now).max(1e-6)
    }

    /// Records `step` seconds with this many writes per second. `busy`: for each job its start level (`None` for a
    /// flush) and its parts.
    pub fn pass(
        &mut self,
        step: f64,
        writes: f64,
        delayed: f64,
        stopped: bool,
        reason: StallReason,
        busy: impl Iterator<Item = (Option<usize>, usize)>,
    ) {
        let r = &mut self.report;
        let bytes = writes * step * r.settings.entry_bytes();
        r.user_bytes += bytes;
        self.part.write_rate += bytes;
        let stall = if stopped { step } else { delayed * step };
        match stopped {
            true => r.stopped_seconds += step,
            false => r.delayed_seconds += stall,
        }
        if stall > 0.0 {
            *self.reasons.entry(reason.name()).or_default() += stall;
        }
        self.part.stalled += stall;
        self.busy_now.fill(0);
        for (level, parts) in busy.filter_map(|(level, parts)| Some((level?, parts))) {
            self.jobs_time += step;
            self.busy_now[level] += parts;
        }
        for (level, threads) in self.busy_now.iter().enumerate().filter(|(_, threads)| **threads > 0) {
            let threads = *threads as f64;
            self.levels_time += step;
            self.busy_time[level] += step * threads;
            self.busy_squares[level] += step * threads * threads;
            self.part.busy[level] += step * threads;
        }
        let threads: usize = self.busy_now.iter().sum();
        let last = r.busy_share.len() - 1;
        r.busy_share[threads.min(last)] += step;
    }

    /// Records `step` seconds in which writers got `part` of what they wanted, because of `limit`.
    pub fn limited(&mut self, step: f64, part: f64, limit: Limit) {
        self.limits.pass(step, part, limit);
    }

    /// Records `step` seconds with this use of cores and devices per second, and these contents of the fast device.
    pub fn used(&mut self, step: f64, used: &crate::fast::Use, held: crate::fast::Held) {
        self.part.used.add(used, step);
        self.part.fast_bytes = self.part.fast_bytes.max(held.bytes);
        (self.part.triggers, self.part.changes) = (held.triggers, held.changes);
    }

    /// Records `step` seconds with this many lookups and seeks per second.
    pub fn read(&mut self, step: f64, reads: f64, seeks: f64) {
        self.report.reads += reads * step;
        self.report.seeks += seeks * step;
    }

    /// Records `step` seconds with this many writes per second, of which `allowed` were possible, while writers slept a
    /// fraction of the time.
    pub fn waited(&mut self, step: f64, writes: f64, allowed: f64, delayed: f64, stopped: bool, reason: StallReason) {
        let waits = &mut self.report.waits;
        if stopped {
            self.standing += step;
            // One writer is stopped, and so are those after it.
            waits.longest = waits.longest.max(self.standing);
            if waits.longest <= self.standing {
                waits.reason = reason.name();
            }
            return;
        }
        if self.standing > 0.0 {
            waits.add(1.0, std::mem::take(&mut self.standing), reason);
        }
        let wait = (1.0 / allowed).max(SLEEP_SECONDS);
        let sleeping = if delayed > 0.0 { (delayed / wait / writes.max(1e-9)).min(1.0) } else { 0.0 };
        if sleeping > 0.0 {
            waits.add(writes * step * sleeping, wait, reason);
        }
        waits.add(writes * step * (1.0 - sleeping), 0.0, reason);
    }

    /// Records the tree's state; adds a sample from time to time.
    pub fn sample(&mut self, now: f64, tree: &Tree, scores: &LevelScores, live: f64, reads: Reads) {
        let (runs, space) = (tree.runs() as f64, tree.bytes() as f64 / live);
        let step = now - self.last;
        self.runs_time += runs * step;
        let (lookup, seek) = reads.seconds(&self.report.settings);
        for (sum, value) in self.reads_time.iter_mut().zip([reads.tables, reads.blocks, lookup, seek]) {
            *sum += value * step;
        }
        self.space_time += space * step;
        self.last = now;
        if now + 1e-9 < self.next {
            return;
        }
        let r = &mut self.report;
        let seconds = self.every;
        let mut p =
            std::mem::replace(&mut self.part, Sample { busy: vec![0.0; self.busy_time.len()], ..Sample::default() });
        p.seconds = now;
        p.write_rate /= seconds;
        p.stalled /= seconds;
        p.busy.iter_mut().for_each(|b| *b /= seconds);
        p.used.scale(1.0 / seconds);
        (p.runs, p.space, p.debt) = (runs, space, scores.pending_bytes as f64);
        (p.lookup, p.seek) = (lookup, seek);
        p.write_amplification = r.write_amplification();
        r.samples.push(p);
        if r.samples.len() >= SAMPLES_MAX && r.settings.sample_every == 0.0 {
            let halved = r.samples.chunks(2).map(|pair| match pair {
                [a, b] => Sample {
                    used: a.used.mean(&b.used),
                    fast_bytes: a.fast_bytes.max(b.fast_bytes),
                    write_rate: (a.write_rate + b.write_rate) / 2.0,
                    stalled: (a.stalled + b.stalled) / 2.0,
                    busy: a.busy.iter().zip(&b.busy).map(|(x, y)| (x + y) / 2.0).collect(),
                    ..b.clone()
                },
                rest => rest[0].clone(),
            });
            r.samples = halved.collect();
            self.every *= 2.0;
        }
        self.next = now + self.every;
    }

    /// A job was picked.
    pub fn picked(&mut self, c: &Compaction, _entries_in: f64, _entries_out: f64) {
        self.report.jobs[c.start_level()] += 1;
    }

    /// Tables moved, or were deleted.
    pub fn moved(&mut self, moved: bool) {
        match moved {
            true => self.report.moves += 1,
            false => self.report.deletions += 1,
        }
    }

    /// A compaction ended.
    pub fn compacted(&mut self, c: &Compaction, read: f64, written: f64) {
        self.report.read_bytes += read;
        self.report.compacted_bytes += written;
        let of = &mut self.report.written[c.output_level];
        match c.start_level() {
            from if from == c.output_level => of.own += written,
            _ if c.output_run > 0 || !c.inputs.iter().any(|(level, _)| *level == c.output_level) => {
                of.new_runs += written;
            }
            _ => of.base += written,
        }
    }

    /// Records a finished job: how many jobs wait to commit now, and whether this one does.
    pub fn pending(&mut self, all: usize, this: bool) {
        self.report.waited += u64::from(this);
        self.report.waited_most = self.report.waited_most.max(all);
    }

    /// Records that `jobs` jobs waited to commit for `step` seconds.
    pub fn waits_to_commit(&mut self, step: f64, jobs: usize) {
        self.report.wait_seconds += step * jobs as f64;
    }

    /// What waited was merged.
    pub fn merged(&mut self, written: f64) {
        self.report.merges += 1;
        self.report.merged_bytes += written;
    }

    /// A flush ended.
    pub fn flushed(&mut self, written: f64) {
        self.report.flushed_bytes += written;
    }

    /// Everything is written, but the run continues. The figures of the run are those up to now.
    pub fn written(&mut self, now: f64, tree: &Tree) {
        if self.at_last_write.is_none() {
            self.end(now, tree);
            let limits = self.limits;
            self.at_last_write = Some(Box::new((self.report.clone(), self.reasons.clone(), limits)));
        }
    }

    /// After [`Self::written`], no more jobs are due.
    pub fn settled(&mut self, now: f64, tree: &Tree) {
        let Some(before) = self.at_last_write.take() else { return self.end(now, tree) };
        let settled = Settled {
            seconds: now - before.0.seconds,
            write_amplification: self.report.write_amplification(),
            runs: tree.runs(),
            levels: levels(tree),
        };
        (self.report, self.reasons, self.limits) = *before;
        self.report.settled = Some(settled);
    }

    /// The run is over.
    pub fn end(&mut self, now: f64, tree: &Tree) {
        let r = &mut self.report;
        r.seconds = now;
        let all = now.max(1e-9);
        r.busy = self.busy_time.iter().map(|b| b / all).collect();
        let spread = |(busy, squares): (&f64, &f64)| (squares / all - busy * busy).max(0.0).sqrt();
        r.busy_spread = r.busy.iter().zip(&self.busy_squares).map(spread).collect();
        r.levels_at_once = self.levels_time / all;
        r.busy_share.iter_mut().for_each(|b| *b /= all);
        r.jobs_at_once = self.jobs_time / all;
        r.limits = self.limits.of(now);
        [r.lookup_tables, r.lookup_blocks, r.lookup_seconds, r.seek_seconds] = self.reads_time.map(|sum| sum / all);
        (r.runs, r.space) = (self.runs_time / all, self.space_time / all);
        r.tph = tree.files.as_ref().map(|files| (files.per_table(), files.index_per_key()));
        r.levels = levels(tree);
    }

    /// The report.
    pub fn finish(mut self, s: &Settings, notes: Vec<String>) -> Report {
        self.report.settings = s.clone();
        self.report.notes = notes;
        self.report.stalls = self.reasons.into_iter().collect();
        self.report.wedged = self.wedged;
        self.report
    }
}

fn levels_json(levels: &[(usize, u64)]) -> Vec<Value> {
    levels.iter().map(|(files, bytes)| json!({"tables": files, "bytes": bytes})).collect()
}

fn levels(tree: &Tree) -> Vec<(usize, u64)> {
    tree.version.levels.iter().map(|f| (f.len(), f.iter().map(|f| f.size()).sum())).collect()
}

fn rounded(all: &[f64]) -> Vec<f64> {
    all.iter().map(|v| round(*v)).collect()
}

/// Rounds to four significant digits, to make reports easier to read.
pub(crate) fn round(v: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return 0.0;
    }
    let digits = 5 - v.abs().log10().ceil() as i32;
    if digits <= 0 { v.round() } else { (v * 10f64.powi(digits)).round() / 10f64.powi(digits) }
}

/// Bytes for people.
pub fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes;
    let mut unit = 0;
    // The next unit already from 999.95 on, so that no figure takes five digits.
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Seconds for people.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
