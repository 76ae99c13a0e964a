//! The info log: what a store does, in words, in the file `LOG` of the database's directory, in RocksDB's form.
//!
//! Whoever logs formats a line and puts it behind a short lock into memory; only `InfoLog::write_out`, which the
//! database's timer thread calls, and the end of the database write to the file. A log that cannot be written loses
//! lines and fails nothing else.

mod event;
mod file;

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rockmill_format::printable;
use rockmill_io::{Clock, FileSystem};

pub(crate) use event::Event;
pub(crate) use file::remove_logs;

use crate::panics::in_words;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use file::LogFile;

/// How important a line is (`rocksdb::LogLevel`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum LogLevel {
    /// For those who look for a fault in the store.
    Debug = 0,
    /// What happens.
    #[default]
    Info = 1,
    /// What may be wrong.
    Warn = 2,
    /// What is wrong.
    Error = 3,
    /// What ends the database.
    Fatal = 4,
    /// What a log begins with; always written.
    Header = 5,
}

impl LogLevel {
    /// What RocksDB puts before a line of this level.
    fn prefix(self) -> &'static str {
        match self {
            Self::Debug => "[DEBUG] ",
            Self::Info | Self::Header => "",
            Self::Warn => "[WARN] ",
            Self::Error => "[ERROR] ",
            Self::Fatal => "[FATAL] ",
        }
    }
}

/// What a log is begun with: the options of the database that are the log's.
pub(crate) struct LogSettings {
    pub fs: Arc<dyn FileSystem>,
    pub clock: Arc<dyn Clock>,
    /// Empty for the database's own directory.
    pub db_log_dir: PathBuf,
    pub info_logger: Option<InfoLogger>,
    pub info_log_level: LogLevel,
    pub max_log_file_size: usize,
    pub log_file_time_to_roll: usize,
    pub keep_log_file_num: usize,
}

/// The user's function that gets the lines instead of the file.
type Callback = dyn Fn(LogLevel, &str) + Send + Sync;

/// Takes the lines of the info log in place of the file `LOG` (`rocksdb::InfoLogger`).
#[derive(Clone)]
pub struct InfoLogger {
    level: LogLevel,
    call: Arc<Callback>,
}

impl InfoLogger {
    /// Calls `call` with each line of at least `level`, without time and thread. It may be called from any thread, at
    /// any moment, also while the database holds locks: it must not use the database. A panic in it is caught.
    pub fn new_callback_logger(level: LogLevel, call: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self { level, call: Arc::new(call) }
    }

    /// Writes each line of at least `level` to the standard error, behind `prefix`.
    pub fn new_stderr_logger(level: LogLevel, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        Self::new_callback_logger(level, move |_, line| eprintln!("{prefix}{line}"))
    }
}

impl fmt::Debug for InfoLogger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InfoLogger({:?})", self.level)
    }
}

/// Bytes of lines that wait for the file at most. Lines beyond are counted and lost.
const PENDING_BYTES_MAX: usize = 4 << 20;
/// Bytes of waiting lines at which the writing thread is woken.
const PENDING_BYTES_WAKE: usize = 64 << 10;

enum Sink {
    File(Box<Mutex<LogFile>>),
    Callback(InfoLogger),
}

/// What waits for the writing thread.
#[derive(Default)]
struct Pending {
    lines: Vec<u8>,
    /// Head lines, which files that follow begin with, too.
    headers: Vec<u8>,
}

/// Ends the sleep of the thread that writes the log.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    ringing: Mutex<bool>,
    rung: Condvar,
}

impl Alarm {
    /// Sleeps until the alarm rings or `time` has gone by.
    pub fn wait(&self, time: Duration) {
        let mut ringing = self.ringing.lock();
        if !*ringing {
            self.rung.wait_for(&mut ringing, time);
        }
        *ringing = false;
    }

    /// True when it rang and nobody has woken since.
    #[cfg(test)]
    pub fn is_ringing(&self) -> bool {
        *self.ringing.lock()
    }

    /// Ends the present sleep, or the next one at once.
    pub fn ring(&self) {
        *self.ringing.lock() = true;
        self.rung.notify_all();
    }
}

struct Inner {
    level: AtomicU8,
    sink: Sink,
    clock: Arc<dyn Clock>,
    pending: Mutex<Pending>,
    lost: AtomicU64,
    /// Rings when many lines wait.
    alarm: Arc<Alarm>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.write_out();
        if let Sink::File(file) = &self.sink {
            file.lock().close();
        }
    }
}

/// A handle of the info log; cheap to clone. The default one takes nothing.
#[derive(Clone, Default)]
pub(crate) struct InfoLog {
    inner: Option<Arc<Inner>>,
    alarm: Arc<Alarm>,
}

impl fmt::Debug for InfoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.inner.is_some() { "InfoLog(on)" } else { "InfoLog(off)" })
    }
}

impl InfoLog {
    /// Begins a log for the database at `dir`: the user's logger, or a new file, the file of before being renamed. A
    /// file that cannot be made gives a log that takes nothing.
    pub fn begin(settings: &LogSettings, dir: &Path) -> Self {
        let (sink, level) = match &settings.info_logger {
            Some(logger) => (Sink::Callback(logger.clone()), logger.level),
            None => match LogFile::begin(settings, dir) {
                Ok(file) => (Sink::File(Box::new(Mutex::new(file))), settings.info_log_level),
                Err(_) => return Self::default(),
            },
        };
        let alarm: Arc<Alarm> = Arc::default();
        let inner = Arc::new(Inner {
            level: AtomicU8::new(level as u8),
            sink,
            clock: Arc::clone(&settings.clock),
            pending: Mutex::default(),
            lost: AtomicU64::new(0),
            alarm: Arc::clone(&alarm),
        });
        Self { inner: Some(inner), alarm }
    }

    /// True when lines of this level are wanted.
    #[inline]
    pub fn wants(&self, level: LogLevel) -> bool {
        self.inner.as_ref().is_some_and(|i| level as u8 >= i.level.load(Ordering::Relaxed))
    }

    /// Adds a line if its level is wanted. Never waits for I/O. Line breaks, escape sequences and the like that names
    /// in it have are escaped: a name must not look like a line of the log.
    pub fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        if let Some(inner) = self.inner.as_ref().filter(|_| self.wants(level)) {
            inner.log(level, message, printable::line);
        }
    }

    /// Adds several lines, as [`log`](Self::log) adds one: the line breaks are meant. Names in it must have none.
    pub fn log_lines(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        if let Some(inner) = self.inner.as_ref().filter(|_| self.wants(level)) {
            inner.log(level, message, printable::lines);
        }
    }

    /// Adds an `EVENT_LOG_v1` line.
    pub fn event(&self, event: Event) {
        self.log(LogLevel::Info, format_args!("EVENT_LOG_v1 {}", event.finish()));
    }

    /// Writes what waits to the file.
    pub fn write_out(&self) {
        if let Some(inner) = &self.inner {
            inner.write_out();
        }
    }

    /// What wakes the thread that writes the log.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// True when there is a log of any kind.
    pub fn is_on(&self) -> bool {
        self.inner.is_some()
    }
}

impl Inner {
    fn log(&self, level: LogLevel, message: fmt::Arguments<'_>, escape: fn(&str) -> Cow<'_, str>) {
        if let Sink::Callback(logger) = &self.sink {
            let text = message.to_string();
            let text = escape(text.trim_end_matches('\n'));
            // The user's logger must not bring down what it reports on.
            let _ = in_words(|| (logger.call)(level, &text));
            return;
        }
        let mut line = String::with_capacity(160);
        stamp(&mut line, self.clock.now_micros());
        line.push_str(level.prefix());
        let at = line.len();
        let _ = line.write_fmt(message);
        line.truncate(line.trim_end_matches('\n').len().max(at));
        if let Cow::Owned(escaped) = escape(line.get(at..).unwrap_or_default()) {
            line.truncate(at);
            line.push_str(&escaped);
        }
        line.push('\n');
        let mut pending = self.pending.lock();
        if pending.lines.len() + line.len() > PENDING_BYTES_MAX {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        pending.lines.extend_from_slice(line.as_bytes());
        if level == LogLevel::Header {
            pending.headers.extend_from_slice(line.as_bytes());
        }
        let many = pending.lines.len() >= PENDING_BYTES_WAKE;
        drop(pending);
        if many {
            self.alarm.ring();
        }
    }

    fn write_out(&self) {
        let Sink::File(file) = &self.sink else { return };
        // The file's lock first: blocks of lines reach the file in the order in which they were taken.
        let mut file = file.lock();
        let (mut lines, headers) = {
            let mut pending = self.pending.lock();
            (std::mem::take(&mut pending.lines), std::mem::take(&mut pending.headers))
        };
        file.keep_headers(&headers);
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let mut line = String::new();
            stamp(&mut line, self.clock.now_micros());
            let _ = writeln!(line, "{}{lost} lines were lost", LogLevel::Warn.prefix());
            lines.extend_from_slice(line.as_bytes());
        }
        if !lines.is_empty() {
            // Nobody can be told: the log is what failed.
            let _ = file.write(&lines);
        }
    }
}

/// Local time and thread, as RocksDB begins a line.
fn stamp(line: &mut String, now_micros: u64) {
    let t = rockmill_io::local_time((now_micros / 1_000_000) as i64);
    let _ = write!(
        line,
        "{:04}/{:02}/{:02}-{:02}:{:02}:{:02}.{:06} {} ",
        t.year,
        t.month,
        t.day,
        t.hour,
        t.minute,
        t.second,
        now_micros % 1_000_000,
        rockmill_io::thread_id()
    );
}

/// A source file's place as RocksDB writes it: `db/open/start.rs`.
pub(crate) fn place(file: &'static str) -> &'static str {
    file.rsplit_once("src/").map_or(file, |(_, name)| name)
}

macro_rules! log_at {
    ($log:expr, $level:ident, $($message:tt)*) => {
        if $log.wants($crate::info_log::LogLevel::$level) {
            $log.log(
                $crate::info_log::LogLevel::$level,
                format_args!("[{}:{}] {}", $crate::info_log::place(file!()), line!(), format_args!($($message)*)),
            );
        }
    };
}
macro_rules! log_info {
    ($log:expr, $($m:tt)*) => { $crate::info_log::log_at!($log, Info, $($m)*) };
}
macro_rules! log_warn {
    ($log:expr, $($m:tt)*) => { $crate::info_log::log_at!($log, Warn, $($m)*) };
}
macro_rules! log_error {
    ($log:expr, $($m:tt)*) => { $crate::info_log::log_at!($log, Error, $($m)*) };
}
/// A line that a log begins with, without place; written again at the head of a file that follows.
macro_rules! log_header {
    ($log:expr, $($m:tt)*) => { $log.log($crate::info_log::LogLevel::Header, format_args!($($m)*)) };
}
pub(crate) use {log_at, log_error, log_header, log_info, log_warn};
