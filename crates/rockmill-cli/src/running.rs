//! Running and finished jobs of the process that has a database open, from its info log. This also works for RocksDB,
//! because events have the same names.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rockmill_io::{FileSystem as _, PosixFileSystem};
use serde_json::{Value, json};

use crate::output;

/// Bytes read from the log's end; running jobs that began before it are not found.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// A flush or compaction that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    job: u64,
    /// Not told for flushes.
    family: Option<String>,
    /// `None`: from memtables.
    from: Option<u64>,
    to: Option<u64>,
    input_bytes: u64,
    /// Of tables that it has finished.
    written_bytes: u64,
    began_micros: u64,
}

/// How the jobs in the log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    flushes: u64,
    flushes_failed: u64,
    compactions: u64,
    moves: u64,
    /// Dropped because a job that had to commit before it failed.
    compactions_dropped: u64,
    compactions_failed: u64,
}

/// Information from a database's info log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Jobs that run in the process that has the database open; `None` if no process has.
    pub running: Option<Vec<Job>>,
    /// Finished jobs of the process that has it open or had it open last.
    pub ended: Ended,
}

/// Reads a database's info log; `None` if there is none.
pub fn told(db: &Path) -> Option<Told> {
    let (jobs, ended) = read(&log_text(db)?);
    Some(Told { running: is_open(db).then_some(jobs), ended })
}

/// True while a process has the database open.
pub fn is_open(db: &Path) -> bool {
    let Ok(lock) = std::fs::metadata(db.join("LOCK")) else { return false };
    std::fs::read_to_string("/proc/locks").is_ok_and(|locks| holds(&locks, lock.ino()))
}

/// The id of the process that has the database open; `None` if there is none, or if it is not visible here because it
/// is in another container.
pub fn holder(db: &Path) -> Option<u64> {
    let lock = std::fs::metadata(db.join("LOCK")).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| holds(line, lock.ino()))?;
    // `1: POSIX ADVISORY WRITE 42 fe:00:1234 0 EOF`
    line.split_whitespace().skip_while(|word| *word != "WRITE").nth(1)?.parse().ok()
}

/// The lines about the whole database in the last dump of statistics; the first line has the dump's time.
pub fn last_dump(db: &Path) -> Vec<String> {
    dumped(&log_text(db).unwrap_or_default())
}

fn dumped(log: &str) -> Vec<String> {
    let Some(at) = log.rfind("------- DUMPING STATS -------") else { return Vec::new() };
    let start = log[..at].rfind('\n').map_or(0, |n| n + 1);
    let time = log[start..].split_whitespace().next().unwrap_or_default();
    let wanted = |l: &&str| {
        ["Interval writes", "Interval WAL", "Interval stall", "Write control"].iter().any(|w| l.starts_with(w))
    };
    let lines = log[at..].lines().filter(wanted).take(4).map(str::to_owned);
    [format!("dumped {time}")].into_iter().chain(lines).collect()
}

fn log_text(db: &Path) -> Option<String> {
    // Opened like any file of the directory, without waiting if it is a pipe.
    let log = PosixFileSystem::default().open_random(&db.join("LOG"), false).ok()?;
    let len = log.size();
    let mut text = vec![0; usize::try_from(len.min(LOG_BYTES_MAX)).ok()?];
    let read = log.read_at(len.saturating_sub(LOG_BYTES_MAX), &mut text).ok()?;
    text.truncate(read);
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// True if a line of /proc/locks is about the file with this number: `1: POSIX ADVISORY WRITE 42 fe:00:1234 0 EOF`. The
/// device is ignored: in containers and on overlays it differs from that of `stat`.
fn holds(locks: &str, inode: u64) -> bool {
    let of = |line: &str| line.split_whitespace().find_map(|word| word.rsplit_once(':')?.1.parse::<u64>().ok());
    locks.lines().filter(|line| line.contains("WRITE")).any(|line| of(line) == Some(inode))
}

/// The running jobs, and how others ended.
fn read(log: &str) -> (Vec<Job>, Ended) {
    let mut jobs: BTreeMap<u64, Job> = BTreeMap::new();
    let mut ended = Ended::default();
    for line in log.lines() {
        let Some((_, event)) = line.split_once("EVENT_LOG_v1 ") else {
            // A job that failed or was stopped has no final event.
            let (compaction, flush) = (line.contains("Compaction error"), line.contains("Flush error"));
            ended.compactions_failed += u64::from(compaction);
            ended.flushes_failed += u64::from(flush);
            if compaction || flush || line.contains("Compaction stopped") {
                let number = line.split_once("[JOB ").and_then(|(_, rest)| rest.split(']').next()?.parse().ok());
                jobs.remove(&number.unwrap_or(0));
            }
            continue;
        };
        let Ok(e) = serde_json::from_str::<Value>(event) else { continue };
        let number = |name: &str| e.get(name).and_then(Value::as_u64);
        let Some(job) = number("job") else { continue };
        match e.get("event").and_then(Value::as_str).unwrap_or("") {
            kind @ ("compaction_started" | "flush_started") => {
                let levels = e.as_object().into_iter().flatten();
                let from = levels.filter_map(|(k, _)| k.strip_prefix("files_L")?.parse().ok()).min();
                let flush = kind == "flush_started";
                let begun = Job {
                    job,
                    family: e.get("cf_name").and_then(Value::as_str).map(str::to_owned),
                    from: from.filter(|_| !flush),
                    to: if flush { Some(0) } else { number("output_level") },
                    input_bytes: number("input_data_size").or(number("total_data_size")).unwrap_or(0),
                    written_bytes: 0,
                    began_micros: number("time_micros").unwrap_or(0),
                };
                jobs.insert(job, begun);
            }
            "table_file_creation" => {
                if let Some(j) = jobs.get_mut(&job) {
                    j.written_bytes += number("file_size").unwrap_or(0);
                }
            }
            kind @ ("compaction_finished" | "trivial_move" | "flush_finished" | "compaction_dropped") => {
                drop(jobs.remove(&job));
                *match kind {
                    "compaction_finished" => &mut ended.compactions,
                    "trivial_move" => &mut ended.moves,
                    "flush_finished" => &mut ended.flushes,
                    _ => &mut ended.compactions_dropped,
                } += 1;
            }
            _ => {}
        }
    }
    (jobs.into_values().collect(), ended)
}

impl Ended {
    /// For people.
    pub fn line(&self) -> String {
        let flushes = if self.flushes == 1 { "flush" } else { "flushes" };
        format!(
            "by the info log: {} {flushes}, {} failed; {}, {} failed, {} dropped; {}",
            output::count(self.flushes),
            self.flushes_failed,
            output::plural(self.compactions, "compaction"),
            self.compactions_failed,
            self.compactions_dropped,
            output::plural(self.moves, "move"),
        )
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "flushes": self.flushes, "flushes_failed": self.flushes_failed, "compactions": self.compactions,
            "compactions_failed": self.compactions_failed, "compactions_dropped": self.compactions_dropped,
            "moves": self.moves,
        })
    }
}

impl Job {
    fn seconds(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        now.saturating_sub(self.began_micros) as f64 / 1e6
    }

    /// For people.
    pub fn line(&self) -> String {
        let level = |l: Option<u64>| l.map_or_else(|| "memtables".to_owned(), |l| format!("L{l}"));
        let to = self.to.map_or(String::new(), |l| format!(" to L{l}"));
        let family = self.family.as_ref().map_or(String::new(), |f| format!(", column family {f}"));
        format!(
            "job {}: {}{to}{family}, {} to read, {} in finished tables, for {:.1} s",
            self.job,
            level(self.from),
            output::size(self.input_bytes),
            output::size(self.written_bytes),
            self.seconds()
        )
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "job": self.job, "column_family": self.family, "start_level": self.from, "output_level": self.to,
            "input_bytes": self.input_bytes, "written_bytes": self.written_bytes,
            "seconds": output::round(self.seconds(), 3),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_began_and_did_not_end_are_those_that_run() {
        let log = "2026/01/01-00:00:00 text\n\
            x EVENT_LOG_v1 {\"time_micros\": 5, \"job\": 1, \"event\": \"flush_started\", \"total_data_size\": 9}\n\
            x EVENT_LOG_v1 {\"time_micros\": 6, \"job\": 1, \"event\": \"flush_finished\"}\n\
            x EVENT_LOG_v1 {\"time_micros\": 7, \"job\": 2, \"event\": \"compaction_started\", \"cf_name\": \"a\", \
            \"files_L0\": [4, 3], \"files_L6\": [1], \"input_data_size\": 100, \"output_level\": 6}\n\
            x EVENT_LOG_v1 {\"time_micros\": 8, \"job\": 3, \"event\": \"compaction_started\", \"files_L5\": [8]}\n\
            x [a] [JOB 3] Compaction error: no space\n\
            x EVENT_LOG_v1 {\"time_micros\": 9, \"cf_name\": \"a\", \"job\": 2, \"event\": \"table_file_creation\", \
            \"file_size\": 40}\n\
            x EVENT_LOG_v1 {\"time_micros\": 10, \"job\": 4, \"event\": \"flush_started\", \"total_data_size\": 7}\n\
            x EVENT_LOG_v1 {\"time_mi";
        let (jobs, _) = read(log);
        assert_eq!(jobs.iter().map(|j| j.job).collect::<Vec<_>>(), [2, 4]);
        let (c, f) = (&jobs[0], &jobs[1]);
        assert_eq!((c.family.as_deref(), c.from, c.to), (Some("a"), Some(0), Some(6)));
        assert_eq!((c.input_bytes, c.written_bytes, c.began_micros), (100, 40, 7));
        assert_eq!((f.from, f.to, f.input_bytes), (None, Some(0), 7));
        assert!(f.line().contains("job 4: memtables to L0, 7 B to read"), "{}", f.line());
    }

    #[test]
    fn jobs_that_failed_or_were_dropped_are_counted_and_do_not_run() {
        let started = |job: u64| {
            format!(
                "x EVENT_LOG_v1 {{\"time_micros\": 7, \"job\": {job}, \"event\": \"compaction_started\", \
                 \"files_L0\": [4, 3], \"output_level\": 1}}\n"
            )
        };
        let event = |job: u64, event: &str| format!("x EVENT_LOG_v1 {{\"job\": {job}, \"event\": \"{event}\"}}\n");
        let mut log: String = (1..=5).map(started).collect();
        log += "x [default] [JOB 1] Compaction error: IO error: no space\n\
            x background error (Compaction): IO error: no space\n\
            x [default] [JOB 2] Compaction dropped: another one failed; its inputs are free again\n";
        log += &(event(2, "compaction_dropped") + &event(3, "compaction_finished") + &event(4, "trivial_move"));
        log += "x [default] [JOB 8] Flush error: IO error: no space\nx background error (Flush): IO error: no space\n";
        log += &event(9, "flush_finished");
        let (jobs, ended) = read(&log);
        assert_eq!(jobs.iter().map(|j| j.job).collect::<Vec<_>>(), [5]);
        let expected = Ended {
            flushes: 1,
            flushes_failed: 1,
            compactions: 1,
            moves: 1,
            compactions_dropped: 1,
            compactions_failed: 1,
        };
        assert_eq!(ended, expected);
        let line = "by the info log: 1 flush, 1 failed; 1 compaction, 1 failed, 1 dropped; 1 move";
        assert_eq!(ended.line(), line);
        assert_eq!(ended.json()["compactions_dropped"], 1);
    }

    #[test]
    fn the_last_dump_is_shown_with_its_time() {
        let dump = |time: &str, n: u64| {
            format!(
                "{time} 7 [WARN] [db/jobs/timer.rs:1] ------- DUMPING STATS -------\n{time} 7 [WARN] \n\
                 ** DB Stats **\nInterval writes: {n} writes\nInterval stall: 00:00:0.000 H:M:S, 0.0 percent\n"
            )
        };
        let lines = dumped(&(dump("2026/01/01-00:00:00.1", 1) + &dump("2026/01/01-00:10:00.1", 2) + "more\n"));
        assert_eq!(lines[..2], ["dumped 2026/01/01-00:10:00.1", "Interval writes: 2 writes"]);
        assert_eq!(lines.len(), 3);
        assert!(dumped("nothing").is_empty());
    }

    #[test]
    fn a_lock_is_found_by_its_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 812 fe:00:1234 0 EOF\n2: FLOCK  ADVISORY  READ 1 fe:00:77 0 EOF\n";
        assert!(holds(locks, 1234));
        assert!(!holds(locks, 77) && !holds(locks, 812) && !holds(locks, 123));
    }
}
