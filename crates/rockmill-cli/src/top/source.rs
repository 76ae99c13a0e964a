//! Information about a database that another process has open, without contacting that process: its status file, or its
//! MANIFEST, its info log and the system's data about the process.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rockmill::{Db, DbSummary, Options};
use rockmill_io::{FileSystem as _, PosixFileSystem};

use super::metrics::{Metrics, label};
use crate::error::Result;
use crate::running::{self, Told};

/// Most bytes of a status file that are read.
const STATUS_BYTES_MAX: u64 = 64 << 20;
/// An older status file is from a process that has ended or is suspended.
const STATUS_SECONDS_MAX: f64 = 10.0;

/// What was seen at one moment.
pub struct Seen {
    /// Unix time in seconds.
    pub at: f64,
    /// From the status file, if there is one.
    pub live: Option<Metrics>,
    /// From the database's own files, if there is no status file.
    pub files: Option<Files>,
    /// The process that has the database open.
    pub process: Option<Process>,
    /// Why the status file was not used.
    pub why: String,
}

/// What a database's own files say.
pub struct Files {
    /// Column families with their levels, from the MANIFEST.
    pub families: Vec<DbSummary>,
    /// From the info log.
    pub told: Option<Told>,
    /// Lines of the last dump of statistics in the info log, with its time.
    pub dumped: Vec<String>,
}

/// What the system says about a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Process {
    /// Its number.
    pub pid: u64,
    /// Seconds on cores so far.
    pub cpu_seconds: f64,
    /// Memory that it has now.
    pub memory_bytes: u64,
    /// Bytes read from devices so far; `None` if the process belongs to another user and this is hidden.
    pub read_bytes: Option<u64>,
    /// Bytes written to devices so far.
    pub written_bytes: Option<u64>,
}

/// Unix time.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The path of the status file, unless the command line gives one.
pub fn status_path(db: &Path, given: Option<&PathBuf>) -> PathBuf {
    given.cloned().unwrap_or_else(|| db.join("STATUS"))
}

/// The contents of the status file; the error tells why it cannot be used.
pub fn status(path: &Path) -> std::result::Result<Metrics, String> {
    let text = status_text(path)?;
    let metrics = Metrics::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let age = now() - metrics.get("rockmill_time_seconds").unwrap_or(0.0);
    if age > STATUS_SECONDS_MAX {
        return Err(format!("{} is {age:.0} s old: its process has gone, or does not run", path.display()));
    }
    Ok(metrics)
}

/// The text of a complete status file.
pub fn status_text(path: &Path) -> std::result::Result<String, String> {
    let shown = path.display();
    let read = || {
        let file = PosixFileSystem::default().open_random(path, false)?;
        let mut bytes = vec![0; usize::try_from(file.size().min(STATUS_BYTES_MAX)).unwrap_or(0)];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("there is no {shown}"),
        _ => format!("{shown}: {e}"),
    })?;
    if text.ends_with("# EOF\n") { Ok(text) } else { Err(format!("{shown} is not a status file, or not all of it")) }
}

/// Looks at a database.
pub fn look(db: &Path, status_file: &Path) -> Result<Seen> {
    let mut seen =
        Seen { at: now(), live: None, files: None, process: running::holder(db).and_then(process), why: String::new() };
    match status(status_file) {
        Ok(metrics) => {
            seen.at = metrics.get("rockmill_time_seconds").unwrap_or(seen.at);
            let pid = metrics.all("rockmill_info").first().and_then(|(l, _)| label(l, "pid")?.parse().ok());
            seen.process = seen.process.or_else(|| pid.and_then(process));
            seen.live = Some(metrics);
        }
        Err(why) => {
            seen.why = why;
            seen.files = Some(Files {
                families: Db::summary(&Options::default(), db)?,
                told: running::told(db),
                dumped: running::last_dump(db),
            });
        }
    }
    Ok(seen)
}

/// Reads `/proc` about a process; `None` if there is no such process, or it is not readable.
fn process(pid: u64) -> Option<Process> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    // After the name, which may contain anything: state, then user and system time as the 12th and 13th fields.
    let stat = read("stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    let pages = read("statm")?.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    let io = read("io");
    let number =
        |name: &str| io.as_ref()?.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ")?.parse::<u64>().ok());
    Some(Process {
        pid,
        // Linux's clock ticks, as programs see them, are hundredths of a second; its pages here have 4 KiB.
        cpu_seconds: (ticks(11) + ticks(12)) / 100.0,
        memory_bytes: pages * 4096,
        read_bytes: number("read_bytes"),
        written_bytes: number("write_bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen() {
        let me = process(u64::from(std::process::id())).expect("this one");
        assert!(me.memory_bytes > 0 && me.pid == u64::from(std::process::id()), "{me:?}");
        assert!(process(u64::MAX).is_none());
    }

    #[test]
    fn a_status_file_is_taken_whole_and_fresh() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("STATUS");
        assert!(status(&path).expect_err("none").contains("there is no"));
        let write = |at: f64, end: &str| {
            let text = format!("# TYPE rockmill_time_seconds gauge\nrockmill_time_seconds {at}\n{end}");
            std::fs::write(&path, text).expect("written");
        };
        write(now(), "");
        assert!(status(&path).expect_err("cut").contains("not all of it"));
        write(now() - 60.0, "# EOF\n");
        // Not how many exactly: the machine may be slow.
        assert!(status(&path).expect_err("old").contains(" s old"));
        write(now(), "# EOF\n");
        status(&path).expect("fresh");
    }
}
