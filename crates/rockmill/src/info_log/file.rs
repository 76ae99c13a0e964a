//! The file of the info log: names, renaming at open, rolling by size and age, removal of old ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_io::{Clock, FileSystem, WritableFile, WriteOptions};

use super::LogSettings;
use crate::error::{Error, Result};

/// Name of the log without `db_log_dir`.
const LOG: &str = "LOG";

/// The name of the log's file, and its directory. With `db_log_dir`, several databases may share the directory: the
/// name then includes the database's path, as in RocksDB.
fn log_name(settings: &LogSettings, dir: &Path) -> (PathBuf, String) {
    if settings.db_log_dir.as_os_str().is_empty() {
        return (dir.to_owned(), LOG.to_owned());
    }
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let mut name = String::new();
    for (i, c) in absolute.to_string_lossy().chars().enumerate() {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') {
            name.push(c);
        } else if i > 0 {
            name.push('_');
        }
    }
    name.push_str("_LOG");
    (settings.db_log_dir.clone(), name)
}

/// Microseconds between attempts to begin another file after a failed write.
const RETRY_MICROS: u64 = 60_000_000;

/// Logs of before, oldest first.
fn old_logs(fs: &dyn FileSystem, dir: &Path, name: &str) -> Vec<PathBuf> {
    let prefix = format!("{name}.old.");
    let mut found: Vec<(u64, PathBuf)> = fs
        .list_dir(dir)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|n| Some((n.strip_prefix(&prefix)?.parse().ok()?, dir.join(&n))))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Removes the info logs of the database at `dir`, also where they are in another directory. Files that cannot be
/// removed stay: they do no harm.
pub(crate) fn remove_logs(settings: &LogSettings, dir: &Path) {
    let (dir, name) = log_name(settings, dir);
    for path in old_logs(&*settings.fs, &dir, &name).into_iter().chain([dir.join(&name)]) {
        let _ = settings.fs.remove(&path);
    }
}

/// The open file.
pub(super) struct LogFile {
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    name: String,
    size_max: u64,
    seconds_max: u64,
    keep: usize,
    file: Option<Box<dyn WritableFile>>,
    began_micros: u64,
    /// The beginning of every later file.
    headers: Vec<u8>,
}

impl LogFile {
    /// Renames the old log and begins a new one.
    pub fn begin(settings: &LogSettings, dir: &Path) -> Result<Self> {
        let (dir, name) = log_name(settings, dir);
        if !settings.db_log_dir.as_os_str().is_empty() {
            settings.fs.create_dir(&dir, true).map_err(|e| Error::io(dir.display(), &e))?;
        }
        let mut log = Self {
            fs: Arc::clone(&settings.fs),
            clock: Arc::clone(&settings.clock),
            dir,
            name,
            size_max: settings.max_log_file_size as u64,
            seconds_max: settings.log_file_time_to_roll as u64,
            keep: settings.keep_log_file_num.max(1),
            file: None,
            began_micros: 0,
            headers: Vec::new(),
        };
        log.start()?;
        Ok(log)
    }

    /// Begins an empty log file, and removes the oldest ones beyond `keep_log_file_num`.
    fn start(&mut self) -> Result<()> {
        let path = self.dir.join(&self.name);
        let now = self.clock.now_micros();
        if self.fs.exists(&path).unwrap_or(false) {
            let old = |micros: u64| self.dir.join(format!("{}.old.{micros}", self.name));
            let mut micros = now;
            while self.fs.exists(&old(micros)).unwrap_or(false) {
                micros += 1;
            }
            // If it cannot be renamed, it is overwritten: opening the database matters more than the log.
            let _ = self.fs.rename(&path, &old(micros));
        }
        let file = self.fs.create(&path, WriteOptions { buffer_size: 64 << 10, ..WriteOptions::default() });
        self.file = Some(file.map_err(|e| Error::io(path.display(), &e))?);
        self.began_micros = now;
        let old = old_logs(&*self.fs, &self.dir, &self.name);
        for path in old.iter().take((old.len() + 1).saturating_sub(self.keep)) {
            let _ = self.fs.remove(path);
        }
        Ok(())
    }

    /// Keeps lines for the heads of later files.
    pub fn keep_headers(&mut self, lines: &[u8]) {
        if self.size_max > 0 || self.seconds_max > 0 {
            self.headers.extend_from_slice(lines);
        }
    }

    /// Writes whole lines; begins a new file if the current one is too large or too old.
    pub fn write(&mut self, lines: &[u8]) -> Result<()> {
        let now = self.clock.now_micros();
        if self.file.is_none() {
            // A failed file is abandoned; another one is tried from time to time.
            if now.saturating_sub(self.began_micros) < RETRY_MICROS {
                return Ok(());
            }
            self.began_micros = now;
            self.roll()?;
        } else if self.seconds_max > 0 && now.saturating_sub(self.began_micros) / 1_000_000 >= self.seconds_max {
            self.roll()?;
        }
        if self.size_max == 0 {
            return self.append(lines);
        }
        let (mut from, mut at) = (0, 0);
        // Even if the head alone fills a file, at least one line follows it.
        let size_max = self.size_max.max(self.headers.len() as u64 + 1);
        for line in lines.split_inclusive(|&b| b == b'\n') {
            if self.len() + (at - from) as u64 >= size_max {
                self.append(lines.get(from..at).unwrap_or_default())?;
                self.roll()?;
                from = at;
            }
            at += line.len();
        }
        self.append(lines.get(from..).unwrap_or_default())
    }

    fn len(&self) -> u64 {
        self.file.as_ref().map_or(0, |f| f.len())
    }

    /// Begins the next file, with the first file's head.
    fn roll(&mut self) -> Result<()> {
        self.close();
        self.start()?;
        let headers = std::mem::take(&mut self.headers);
        let done = self.append(&headers);
        self.headers = headers;
        done
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if bytes.is_empty() {
            return Ok(());
        }
        let done = file.append_and_flush(bytes);
        done.map_err(|e| {
            // After a failure, a file is not usable any more.
            self.file = None;
            self.began_micros = self.clock.now_micros();
            Error::io(self.dir.join(&self.name).display(), &e)
        })
    }

    /// Closes the file.
    pub fn close(&mut self) {
        if let Some(mut file) = self.file.take() {
            let _ = file.close();
        }
    }
}
