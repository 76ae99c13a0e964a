//! The info log: the file `LOG` in the database's directory, in RocksDB's format.
//!
//! A thread that logs formats a line and appends it to a buffer in memory, under a short lock. The file is written only
//! by `InfoLog::write_out`, which the database's timer thread calls, and when the database is closed. If the log cannot
//! be written, lines are lost, but nothing else fails.

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
    /// For debugging the store.
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
    /// The head of a log; always written.
    Header = 5,
}

impl LogLevel {
    /// RocksDB's prefix of a line of this level.
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

/// The database options that concern the log.
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

/// The user's function that gets the lines instead of a file.
type Callback = dyn Fn(LogLevel, &str) + Send + Sync;

/// Gets the lines of the info log instead of the file `LOG` (`rocksdb::InfoLogger`).
#[derive(Clone)]
pub struct InfoLogger {
    level: LogLevel,
    call: Arc<Callback>,
}

impl InfoLogger {
    /// Calls `call` with each line of at least `level`, without time and thread. It may be called from any thread at
    /// any time, also while the database holds locks, so it must not use the database. A panic in it is caught.
    pub fn new_callback_logger(level: LogLevel, call: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self { level, call: Arc::new(call) }
    }

    /// Writes each line of at least `level` to standard error, after `prefix`.
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

/// Most bytes of lines that wait to be written. Further lines are counted and lost.
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
    /// Head lines, with which later files also begin.
    headers: Vec<u8>,
}

/// Ends the sleep of the thread that writes the log.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    ringing: Mutex<bool>,
    rung: Condvar,
}

impl Alarm {
    /// Sleeps until the alarm rings or `time` has passed.
    pub fn wait(&self, time: Duration) {
        let mut ringing = self.ringing.lock();
        if !*ringing {
            self.rung.wait_for(&mut ringing, time);
        }
        *ringing = false;
    }

    /// True if it rang and no thread has woken up since.
    #[cfg(test)]
    pub fn is_ringing(&self) -> bool {
        *self.ringing.lock()
    }

    /// Ends the current sleep, or makes the next one end immediately.
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

/// A handle of the info log; cheap to clone. The default handle discards all lines.
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
    /// Begins a log for the database at `dir`: the user's logger, or a new file, after renaming the old one. If the
    /// file cannot be created, the log discards all lines.
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

    /// Adds a line if its level is wanted. Never waits for I/O. Escapes line breaks, escape sequences and the like, so
    /// that a name cannot look like a line of the log.
    pub fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        if let Some(inner) = self.inner.as_ref().filter(|_| self.wants(level)) {
            inner.log(level, message, printable::line);
        }
    }

    /// Adds several lines: unlike [`log`](Self::log), keeps line breaks. Names in it must not contain any.
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

    /// The alarm that wakes the thread that writes the log.
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
            // A panic in the user's logger must not affect the database.
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
        // Takes the file's lock first, so that blocks of lines reach the file in order.
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
            // There is nowhere to report this: the log itself failed.
            let _ = file.write(&lines);
        }
    }
}

/// Local time and thread, as at the beginning of RocksDB's lines.
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

/// A source file's path as RocksDB writes it: `db/open/start.rs`.
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
/// Adds a line to the head of a log, without a source place. Later files begin with it, too.
macro_rules! log_header {
    ($log:expr, $($m:tt)*) => { $log.log($crate::info_log::LogLevel::Header, format_args!($($m)*)) };
}
pub(crate) use {log_at, log_error, log_header, log_info, log_warn};
