//! Jobs that run now: what each reads, how far it is, and for how long.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use rockmill_format::printable;
use rockmill_io::Clock;

use crate::compaction::{Compaction, JobProgress};
use crate::db::Db;
use crate::db::catalog::column_family::CfData;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

/// A flush or a compaction that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// Its number, as in `LOG`.
    pub job: u64,
    /// The column family.
    pub cf_name: String,
    /// The first level that it reads; `None` for a flush, which reads memtables.
    pub start_level: Option<usize>,
    /// The level that it writes to.
    pub output_level: usize,
    /// Bytes that it has to read: stored bytes of tables, or bytes of keys and values of memtables.
    pub bytes_total: u64,
    /// How many of them are done. For a flush, bytes count once they are in its table.
    pub bytes_done: u64,
    /// Parts that it was split into so far; 0 until it begins to read.
    pub parts: u64,
    /// For how long it has been running.
    pub micros: u64,
}

struct Entry {
    job: RunningJob,
    began_nanos: u64,
    progress: Arc<JobProgress>,
}

/// All of a database's.
pub(crate) struct RunningJobs {
    clock: Arc<dyn Clock>,
    /// By number. A leaf lock.
    jobs: Mutex<BTreeMap<u64, Entry>>,
}

/// Keeps a job in the list as long as it lives.
pub(crate) struct Running<'a> {
    all: &'a RunningJobs,
    job: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.all.jobs.lock().remove(&self.job);
    }
}

impl Db {
    /// Flushes and compactions that run now, by number.
    pub fn running_jobs(&self) -> Vec<RunningJob> {
        self.inner.reporting.running.now()
    }
}

impl RunningJobs {
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self { clock: Arc::clone(clock), jobs: Mutex::default() }
    }

    /// Notes that a flush runs.
    pub fn flush(&self, cf: &CfData, job: u64, bytes: u64, progress: &Arc<JobProgress>) -> Running<'_> {
        self.begin(cf, (job, None, 0), bytes, progress)
    }

    /// Notes that a compaction runs.
    pub fn compaction(&self, cf: &CfData, job: u64, c: &Compaction, of: &Arc<JobProgress>) -> Running<'_> {
        self.begin(cf, (job, Some(c.start_level()), c.output_level), c.input_bytes(), of)
    }

    fn begin(
        &self,
        cf: &CfData,
        (job, start_level, output_level): (u64, Option<usize>, usize),
        bytes_total: u64,
        progress: &Arc<JobProgress>,
    ) -> Running<'_> {
        let (cf_name, progress) = (cf.name.clone(), Arc::clone(progress));
        let running =
            RunningJob { job, cf_name, start_level, output_level, bytes_total, bytes_done: 0, parts: 0, micros: 0 };
        let began_nanos = self.clock.monotonic_nanos();
        self.jobs.lock().insert(job, Entry { job: running, began_nanos, progress });
        Running { all: self, job }
    }

    pub fn now(&self) -> Vec<RunningJob> {
        let now = self.clock.monotonic_nanos();
        let jobs = self.jobs.lock();
        let of = |e: &Entry| RunningJob {
            bytes_done: e.progress.bytes.load(Ordering::Relaxed).min(e.job.bytes_total),
            parts: e.progress.parts.load(Ordering::Relaxed),
            micros: now.saturating_sub(e.began_nanos) / 1000,
            ..e.job.clone()
        };
        jobs.values().map(of).collect()
    }

    /// A column family's running jobs by start level, for `rocksdb.cfstats`; flushes first.
    pub fn text(&self, cf_name: &str) -> String {
        let jobs: Vec<RunningJob> = self.now().into_iter().filter(|j| j.cf_name == cf_name).collect();
        let mut text = format!("\n** Running Jobs [{}] **\n", printable::line(cf_name));
        let _ = writeln!(text, " From  Jobs Threads   To   Done(MB)  Total(MB)  Done(%) Longest(sec)");
        if jobs.is_empty() {
            text.push_str("none\n");
        }
        let mut levels: Vec<Option<usize>> = jobs.iter().map(|j| j.start_level).collect();
        levels.sort_unstable();
        levels.dedup();
        for level in levels {
            let of: Vec<&RunningJob> = jobs.iter().filter(|j| j.start_level == level).collect();
            let from = level.map_or_else(|| "mem".to_owned(), |l| format!("L{l}"));
            let mut to: Vec<String> = of.iter().map(|j| format!("L{}", j.output_level)).collect();
            to.dedup();
            let (done, total) = of.iter().fold((0, 0), |(d, t), j| (d + j.bytes_done, t + j.bytes_total));
            let mb = |bytes: u64| bytes as f64 / 1_048_576.0;
            let _ = writeln!(
                text,
                "{from:>5} {:>5} {:>7} {:>4} {:>10.1} {:>10.1} {:>8.1} {:>12.1}",
                of.len(),
                of.iter().map(|j| j.parts.max(1)).sum::<u64>(),
                to.join(","),
                mb(done),
                mb(total),
                done as f64 / total.max(1) as f64 * 100.0,
                of.iter().map(|j| j.micros).max().unwrap_or(0) as f64 / 1e6
            );
        }
        text
    }
}
