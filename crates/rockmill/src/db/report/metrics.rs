//! What an open database counts, as metrics: for Prometheus, and for other processes that watch the database.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use rockmill_format::printable;
use rockmill_io::WriteOptions;

use crate::db::report::StatusFile;
use crate::db::report::events::LevelJobStats;
use crate::db::report::properties::{LevelStats, levels};
use crate::db::report::running::RunningJob;
use crate::db::{Db, DbInner};
use crate::error::{Error, Result};
use crate::info_log::{Event, log_warn};
use crate::pacing::write_control::StallReason;
use crate::properties as names;
use crate::statistics::{Histogram, Ticker};

/// The most bytes of a status file; a larger file is something else.
const STATUS_MAX: u64 = 64 << 20;

/// Numbers of the whole database.
const OF_DATABASE: &[(&str, &str)] = &[
    (names::NUM_RUNNING_FLUSHES, "Flushes that run"),
    (names::NUM_RUNNING_COMPACTIONS, "Compactions that run"),
    (names::BACKGROUND_ERRORS, "Errors of background work so far"),
    (names::NUM_SNAPSHOTS, "Snapshots that are held"),
    (names::OLDEST_SNAPSHOT_TIME, "Unix time of the oldest snapshot; 0 without one"),
    (names::ACTUAL_DELAYED_WRITE_RATE, "Bytes per second that writers may write; 0: as fast as they can"),
    (names::IS_WRITE_STOPPED, "1 while writers are stopped"),
    (names::OBSOLETE_SST_FILES_SIZE, "Bytes of tables that are to be deleted"),
    (names::SUSTAINED_WRITE_RATE, "Bytes per second that compactions can take in, as far as it was learned"),
    (names::LOGS_LIVE_BYTES, "Bytes in the logs of a fast path that are in no table"),
    (names::LOGS_DEAD_BYTES, "Bytes in the logs of a fast path that are in tables already"),
    (names::LONGEST_STALL_MICROS, "The longest time that one write waited, in microseconds"),
];

/// Numbers of each column family.
const OF_FAMILY: &[(&str, &str)] = &[
    (names::ESTIMATE_NUM_KEYS, "About how many keys there are"),
    (names::NUM_IMMUTABLE_MEM_TABLE, "Full memtables that are not flushed yet"),
    (names::MEM_TABLE_FLUSH_PENDING, "1 when a flush is due"),
    (names::COMPACTION_PENDING, "1 when a compaction is due"),
    (names::CUR_SIZE_ACTIVE_MEM_TABLE, "Bytes of the active memtable"),
    (names::CUR_SIZE_ALL_MEM_TABLES, "Bytes of the memtables that are not flushed"),
    (names::SIZE_ALL_MEM_TABLES, "Bytes of all memtables, flushed ones that readers hold included"),
    (names::NUM_ENTRIES_ACTIVE_MEM_TABLE, "Entries in the active memtable"),
    (names::NUM_ENTRIES_IMM_MEM_TABLES, "Entries in full memtables"),
    (names::ESTIMATE_TABLE_READERS_MEM, "Bytes of indexes and filters of open tables, outside of the block cache"),
    (names::LIVE_SST_FILES_SIZE, "Bytes of the tables in use"),
    (names::TOTAL_SST_FILES_SIZE, "Bytes of all tables, those that only readers hold included"),
    (names::ESTIMATE_PENDING_COMPACTION_BYTES, "Bytes that compactions must rewrite until the tree has its shape"),
    (names::NUM_LIVE_VERSIONS, "Versions of the tree that are in use"),
    (names::BLOCK_CACHE_CAPACITY, "Bytes that the block cache may hold; families that share one have the same"),
    (names::BLOCK_CACHE_USAGE, "Bytes in the block cache"),
];

/// What a metric is to Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A counter: only rises, starting when the database is opened.
    Counter,
    /// A gauge: rises and falls.
    Gauge,
    /// A histogram: how many values were of which size.
    Histogram,
}

/// The value of a metric.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum MetricValue {
    /// Of a counter, and of most gauges.
    Integer(u64),
    /// Of other gauges.
    Number(f64),
    /// Of a histogram.
    Histogram {
        /// Upper bounds (inclusive), and how many values there are up to each: the last has all of them.
        buckets: Vec<(u64, u64)>,
        /// Sum of the values.
        sum: u64,
    },
}

/// A value, and the labels that distinguish it from others of the same metric.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MetricSample {
    /// Names and values: column family, level.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: MetricValue,
}

/// A metric with all its values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// RocksDB's name with underscores, or Rockmill's own; a counter without `_total`, which its text ends with.
    pub name: String,
    /// What it says.
    pub help: String,
    /// What it is.
    pub kind: MetricKind,
    /// Its values.
    pub samples: Vec<MetricSample>,
}

impl Metric {
    fn new(kind: MetricKind, name: impl Into<String>, help: impl Into<String>) -> Self {
        Self { name: name.into(), help: help.into(), kind, samples: Vec::new() }
    }

    fn with(mut self, value: MetricValue) -> Self {
        self.add(&[], value);
        self
    }

    fn add(&mut self, labels: &[(&'static str, &str)], value: MetricValue) {
        // Names come from others: a terminal must not act on them, and a line must stay one line.
        let labels = labels.iter().map(|&(name, value)| (name, printable::line(value).into_owned())).collect();
        self.samples.push(MetricSample { labels, value });
    }
}

/// The text that Prometheus reads (version 0.0.4 of its format).
impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (end, kind) = match self.kind {
            MetricKind::Counter => ("_total", "counter"),
            MetricKind::Gauge => ("", "gauge"),
            MetricKind::Histogram => ("", "histogram"),
        };
        let name = format!("{}{end}", self.name);
        writeln!(f, "# HELP {name} {}", self.help)?;
        writeln!(f, "# TYPE {name} {kind}")?;
        for sample in &self.samples {
            let labels = |more: Option<(&str, String)>| {
                let own = sample.labels.iter().map(|(name, value)| (*name, escaped(value)));
                let all: Vec<String> = own.chain(more).map(|(name, value)| format!("{name}=\"{value}\"")).collect();
                if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
            };
            match &sample.value {
                MetricValue::Integer(n) => writeln!(f, "{name}{} {n}", labels(None))?,
                MetricValue::Number(n) => writeln!(f, "{name}{} {n}", labels(None))?,
                MetricValue::Histogram { buckets, sum } => {
                    for (limit, up_to) in buckets {
                        writeln!(f, "{name}_bucket{} {up_to}", labels(Some(("le", limit.to_string()))))?;
                    }
                    let count = buckets.last().map_or(0, |(_, all)| *all);
                    writeln!(f, "{name}_bucket{} {count}", labels(Some(("le", "+Inf".to_owned()))))?;
                    writeln!(f, "{name}_sum{} {sum}", labels(None))?;
                    writeln!(f, "{name}_count{} {count}", labels(None))?;
                }
            }
        }
        Ok(())
    }
}

/// The value of a label in the format's notation.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// RocksDB's name as Prometheus allows it: `rocksdb.block.cache.hit` is `rocksdb_block_cache_hit`.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl Db {
    /// What the database counts and measures now. Tickers and histograms are included if statistics are enabled
    /// ([`Options::enable_statistics`](crate::Options::enable_statistics)), and have RocksDB's names.
    pub fn metrics(&self) -> Vec<Metric> {
        self.inner.metrics()
    }

    /// [`Self::metrics`] as the text that Prometheus reads (version 0.0.4 of its format).
    pub fn prometheus_text(&self) -> String {
        text(&self.inner.metrics())
    }
}

fn text(metrics: &[Metric]) -> String {
    metrics.iter().fold(String::new(), |mut text, metric| {
        let _ = write!(text, "{metric}");
        text
    })
}

impl DbInner {
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut all = self.database_metrics();
        self.family_metrics(&mut all);
        if let Some(s) = &self.opts.statistics {
            for t in Ticker::iter() {
                let metric = Metric::new(MetricKind::Counter, plain(t.name()), t.name());
                all.push(metric.with(MetricValue::Integer(s.ticker_count(*t))));
            }
            for h in Histogram::iter() {
                let (buckets, sum) = s.histogram_buckets(*h);
                let metric = Metric::new(MetricKind::Histogram, plain(h.name()), h.name());
                all.push(metric.with(MetricValue::Histogram { buckets, sum }));
            }
        }
        all
    }

    fn database_metrics(&self) -> Vec<Metric> {
        let gauge = |name: &str, help: &str| Metric::new(MetricKind::Gauge, plain(name), help);
        let now = self.opts.clock.now_micros();
        let mut info = gauge("rockmill.info", "Which program has which database open");
        let (pid, path) = (std::process::id().to_string(), self.path.display().to_string());
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("pid", &pid), ("path", &path)];
        info.add(&labels, MetricValue::Integer(1));
        let seconds = |micros: u64| MetricValue::Number(micros as f64 / 1e6);
        let mut all = vec![
            info,
            gauge("rockmill.time-seconds", "Unix time of these figures").with(seconds(now)),
            gauge("rockmill.uptime-seconds", "Seconds since the database was opened")
                .with(seconds(now.saturating_sub(self.reporting.opened_micros))),
        ];
        let default = &self.catalog.default_cf().data;
        for (name, help) in OF_DATABASE {
            let value = self.number(default, name).unwrap_or(0);
            all.push(gauge(name, help).with(MetricValue::Integer(value)));
        }
        let mut stall = gauge("rockmill.write-stall", "1 for the reason why writers are slowed or stopped now");
        let reason = self.pacing.writers().reason();
        for r in StallReason::ALL {
            stall.add(&[("reason", r.name())], MetricValue::Integer(u64::from(r == reason)));
        }
        all.push(stall);
        let mut memory = gauge("rockmill.memory-bytes", "Memory by what has it");
        for (name, bytes) in self.memory_parts().named() {
            memory.add(&[("part", name)], MetricValue::Integer(bytes));
        }
        all.push(memory);
        for (name, help, n) in self.stats.read().named() {
            let metric = Metric::new(MetricKind::Counter, format!("rockmill_{name}"), help.trim());
            all.push(metric.with(MetricValue::Integer(n)));
        }
        all
    }

    fn family_metrics(&self, all: &mut Vec<Metric>) {
        let families: Vec<_> = self.catalog.families().all().map(|cf| std::sync::Arc::clone(&cf.data)).collect();
        for (name, help) in OF_FAMILY {
            let mut metric = Metric::new(MetricKind::Gauge, plain(name), *help);
            for cf in &families {
                let Some(n) = self.number(cf, name) else { continue };
                metric.add(&[("cf", &cf.name)], MetricValue::Integer(n));
            }
            all.push(metric);
        }
        for (name, help) in [
            ("rockmill.block-cache-hits", "Blocks found in the cache; families that share one have the same"),
            ("rockmill.block-cache-misses", "Blocks not found in the cache"),
        ] {
            let mut metric = Metric::new(MetricKind::Counter, plain(name), help);
            for cf in &families {
                metric.add(&[("cf", &cf.name)], MetricValue::Integer(self.number(cf, name).unwrap_or(0)));
            }
            all.push(metric);
        }
        let state = self.state.lock();
        let mut rows: Vec<(String, LevelStats, LevelJobStats)> = Vec::new();
        for c in state.families() {
            for l in levels(c) {
                let jobs = c.job_stats().levels.get(l.level).cloned().unwrap_or_default();
                rows.push((c.cf().name.clone(), l, jobs));
            }
        }
        drop(state);
        type Of = fn(&LevelStats, &LevelJobStats) -> Option<MetricValue>;
        let of_levels: [(MetricKind, &str, &str, Of); 9] = [
            (MetricKind::Gauge, "rocksdb_num_files_at_level", "Tables in the level", |l, _| integer(l.files as u64)),
            (MetricKind::Gauge, "rockmill_level_bytes", "Bytes in the level", |l, _| integer(l.bytes)),
            (MetricKind::Gauge, "rockmill_level_target_bytes", "Bytes that the level should hold", |l, _| {
                l.target_bytes.and_then(integer)
            }),
            (MetricKind::Gauge, "rockmill_level_score", "A compaction is due at 1", |l, _| {
                Some(MetricValue::Number(l.score))
            }),
            (MetricKind::Gauge, "rockmill_level_compacting_files", "Tables that compactions read", |l, _| {
                integer(l.compacting as u64)
            }),
            (MetricKind::Gauge, "rockmill_level_extra_runs", "Sorted runs above the base run", |l, _| {
                integer(l.extra_runs as u64)
            }),
            (MetricKind::Counter, "rockmill_level_jobs", "Jobs that wrote to the level", |_, j| integer(j.jobs)),
            (MetricKind::Counter, "rockmill_level_read_bytes", "Bytes that jobs into the level read", |_, j| {
                integer(j.read_above + j.read_output)
            }),
            (MetricKind::Counter, "rockmill_level_written_bytes", "Bytes that jobs wrote to the level", |_, j| {
                integer(j.written)
            }),
        ];
        for (kind, name, help, of) in of_levels {
            let mut metric = Metric::new(kind, name, help);
            for (cf, l, jobs) in &rows {
                if let Some(value) = of(l, jobs) {
                    metric.add(&[("cf", cf), ("level", &l.level.to_string())], value);
                }
            }
            all.push(metric);
        }
    }

    fn number(&self, cf: &crate::db::catalog::column_family::CfData, name: &str) -> Option<u64> {
        self.int_property(cf, name).or_else(|| {
            let state = self.state.lock();
            state.family(cf.id).and_then(|c| self.locked_property(&state, c, name))
        })
    }

    /// The text of the status file: the metrics and, as comments, the running jobs. Prometheus can read it, too.
    fn status_text(&self) -> String {
        let mut all = text(&self.metrics());
        for job in self.reporting.running.now() {
            let _ = writeln!(all, "# job {}", job_text(&job, &*self.opts.clock));
        }
        // It shows readers of the file that the text is complete.
        all.push_str("# EOF\n");
        all
    }
}

fn integer(n: u64) -> Option<MetricValue> {
    Some(MetricValue::Integer(n))
}

fn job_text(j: &RunningJob, clock: &dyn rockmill_io::Clock) -> String {
    let event = Event::new(clock).number("job", j.job).text("cf_name", &j.cf_name);
    let event = match j.start_level {
        Some(level) => event.number("start_level", level),
        None => event,
    };
    event
        .number("output_level", j.output_level)
        .number("bytes_total", j.bytes_total)
        .number("bytes_done", j.bytes_done)
        .number("parts", j.parts)
        .number("micros", j.micros)
        .finish()
}

impl DbInner {
    /// Rewrites the status file, if there is to be one.
    pub(crate) fn update_status_file(&self, file: &mut StatusFile) {
        let wanted = self.live().status_file.clone();
        let wanted = if wanted.as_os_str().is_empty() { wanted } else { self.path.join(wanted) };
        if wanted != file.path {
            self.remove_status_file(file);
            file.path = wanted;
        }
        if file.path.as_os_str().is_empty() {
            return;
        }
        let path = file.path.clone();
        let done = if file.ours { Ok(()) } else { self.may_replace(&path) };
        let done = done.and_then(|()| self.write_status_file(&path));
        file.ours |= done.is_ok();
        if let Err(e) = &done
            && !file.failed
        {
            log_warn!(self.log, "the status file cannot be written: {e}");
        }
        file.failed = done.is_err();
    }

    /// Refuses a file that is not a status file: it belongs to somebody else, or is one of the database's own files.
    fn may_replace(&self, path: &Path) -> Result<()> {
        let fs = &*self.opts.fs;
        if !fs.exists(path).map_err(|e| Error::io(path.display(), &e))? {
            return Ok(());
        }
        let text = match fs.file_size(path) {
            Ok(0) => return Ok(()),
            Ok(size) if size <= STATUS_MAX => fs.read_to_vec(path).unwrap_or_default(),
            _ => Vec::new(),
        };
        let of_status = |line: &[u8]| line.starts_with(b"rockmill_info{");
        if text.ends_with(b"# EOF\n") && text.split(|b| *b == b'\n').any(of_status) {
            return Ok(());
        }
        let shown = path.display();
        Err(Error::invalid_argument(format!("{shown} is there and no status file: name another file, or remove it")))
    }

    /// Written under another name first, so that a reader finds a whole text, either the new or the old one.
    fn write_status_file(&self, path: &Path) -> Result<()> {
        let mut temp = path.to_owned().into_os_string();
        temp.push(".dbtmp");
        let temp = PathBuf::from(temp);
        let write = || {
            let mut file = self.opts.fs.create(&temp, WriteOptions::default())?;
            file.append_and_flush(self.status_text().as_bytes())?;
            file.close()?;
            self.opts.fs.rename(&temp, path)
        };
        write().map_err(|e| Error::io(path.display(), &e))
    }

    /// Removes the status file, because its contents would no longer be true.
    pub(crate) fn remove_status_file(&self, file: &mut StatusFile) {
        if file.ours {
            let _ = self.opts.fs.remove(&file.path);
        }
        *file = StatusFile::default();
    }
}
