//! WAL files: where they are, which ones exist, and what happens to obsolete ones.
//!
//! An obsolete WAL is deleted or, with `recycle_log_file_num`, used again. With `WAL_ttl_seconds` or
//! `WAL_size_limit_MB` it moves to `archive/` in the WAL directory instead, for readers of `Db::get_updates_since`,
//! and is never used again. The archive is checked when WALs become obsolete, at most once in ten minutes or, if that
//! is shorter, in half the TTL, as in RocksDB:
//!
//! - with a TTL, files whose last write is longer ago are deleted;
//! - with a size limit, the newest are kept, as many as fit if each counts as much as the largest.
//!
//! If values stay in WALs, `fast_capacity` also bounds the archive: the oldest files are deleted while archived and
//! needed WALs together exceed it. Writers never wait for the archive.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use rockmill_format::batch::{BatchRecord, BatchRep};
use rockmill_format::filename::{self, FileType};
use rockmill_format::log::{LogEvent, LogReader};
use rockmill_io::{Entry, EntryKind, FileSystem};

use super::WalMemtable;
use crate::env::beneath;
use crate::error::{Error, Result};
use crate::options::DbOptions;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::version::LogSource;

/// The most seconds between two checks of the archive (RocksDB's `kDefaultIntervalToDeleteObsoleteWAL`).
const PURGE_SECONDS: u64 = 600;

/// The directory in a WAL directory that obsolete WALs move to.
pub(crate) const ARCHIVE: &str = "archive";

/// Where a WAL file is (RocksDB's `WalFileType`); there is no third place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalFileType {
    /// In the archive: everything in it is in tables.
    Archived,
    /// In the WAL directory.
    Alive,
}

/// A WAL file (RocksDB's `WalFile`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalFile {
    /// Its path.
    pub path: PathBuf,
    /// Its number: later WALs have larger ones.
    pub log_number: u64,
    /// Archived or not.
    pub file_type: WalFileType,
    /// Sequence number of its first update.
    pub start_sequence: u64,
    /// Its length in bytes when it was listed.
    pub size: u64,
}

/// The directory of a database's WALs. `path` itself where `wal_dir` is another name of it.
pub(crate) fn wal_dir_of(options: &DbOptions, path: &Path) -> PathBuf {
    let wal_dir = if options.fast_path.as_os_str().is_empty() { &options.wal_dir } else { &options.fast_path };
    let own = wal_dir.as_os_str().is_empty() || options.fs.same_file(wal_dir, path).unwrap_or(false);
    if own { path.to_owned() } else { wal_dir.clone() }
}

/// True if the WALs are on a fast path, in a directory of their own: then a missing one is detected.
pub(crate) fn misses_logs(options: &DbOptions, path: &Path) -> bool {
    let fast = !options.fast_path.as_os_str().is_empty() || options.fast_capacity > 0;
    fast && wal_dir_of(options, path) != path
}

/// Numbers of the WALs in a directory, ascending.
pub(crate) fn wal_numbers(names: &[String]) -> Vec<u64> {
    let mut logs: Vec<u64> = names
        .iter()
        .filter_map(|n| match filename::parse(n) {
            Some(FileType::Wal(n)) => Some(n),
            _ => None,
        })
        .collect();
    logs.sort_unstable();
    logs
}

/// True if a WAL has anything except log data (such as which WALs come before and after it). Also true if it is
/// damaged, because it may have had something.
pub(crate) fn has_updates(fs: &dyn FileSystem, path: &Path, number: u64) -> io::Result<bool> {
    let mut reader = LogReader::new(LogSource::new(fs.open_sequential(path)?), number);
    let mut record = Vec::new();
    loop {
        match reader.next_record(&mut record)? {
            LogEvent::Record { .. } => {}
            LogEvent::Damage { .. } => return Ok(true),
            LogEvent::End { clean } => return Ok(!clean),
        }
        let is_idle = |batch: &BatchRep| batch.iter().all(|r| matches!(r, Ok(BatchRecord::LogData(_))));
        if !BatchRep::from_bytes(std::mem::take(&mut record)).is_ok_and(|batch| is_idle(&batch)) {
            return Ok(true);
        }
    }
}

/// What becomes of obsolete WALs. These options are fixed while the database is open.
#[derive(Debug)]
pub(super) struct Retention {
    /// Archived ones are deleted this long after their last write; 0: not because of their age.
    ttl_seconds: u64,
    /// As many are archived as fit; 0: no limit by size. Without either limit, none is archived.
    archive_mib_max: u64,
    /// How many are kept for reuse. Opening has set the option to 0 if other options exclude it.
    recycled_max: usize,
    /// When the archive was last checked, in seconds since the Unix epoch.
    archive_purged: AtomicU64,
    /// The archive has other files than [`Self::archived`] says.
    archive_changed: AtomicBool,
    /// Numbers and lengths of archived WALs, oldest first; used if values stay in WALs. Deletions from the archive hold
    /// the lock; no writer takes it.
    archived: Mutex<VecDeque<(u64, u64)>>,
}

impl Retention {
    pub fn of(options: &DbOptions) -> Self {
        Self {
            ttl_seconds: options.WAL_ttl_seconds,
            archive_mib_max: options.WAL_size_limit_MB,
            recycled_max: options.recycle_log_file_num,
            archive_purged: AtomicU64::new(0),
            archive_changed: AtomicBool::new(true),
            archived: Mutex::default(),
        }
    }

    /// True if WALs may be reused.
    pub fn recycles(&self) -> bool {
        self.recycled_max > 0
    }

    fn archives(&self) -> bool {
        self.ttl_seconds > 0 || self.archive_mib_max > 0
    }
}

impl WalMemtable {
    fn archive(&self) -> PathBuf {
        self.dir.join(ARCHIVE)
    }

    /// Archives, keeps for reuse, or deletes WALs that are not needed any more. Holds no lock that a writer needs
    /// meanwhile. `may_delete`: from the archive, see [`Self::await_archive`].
    pub fn retire_logs(&self, numbers: &[u64], may_delete: impl Fn() -> bool) {
        self.wal.forget(numbers);
        for &number in numbers {
            if !self.wal.keep_for_reuse(number, self.retention.recycled_max) {
                self.remove_log(number);
            }
        }
        self.purge_archive(may_delete);
    }

    /// Archives or deletes the WALs in the directory that are not `live`.
    pub fn remove_orphans(&self, live: &[u64]) {
        let Ok(names) = self.fs.list_dir(&self.dir) else { return };
        for number in wal_numbers(&names).into_iter().filter(|n| !live.contains(n)) {
            self.remove_log(number);
        }
    }

    /// Archives or deletes a WAL. If that fails, it is tried again at the next open.
    fn remove_log(&self, number: u64) {
        let (fs, from) = (&self.fs, self.log_path(number));
        if self.retention.archives() {
            let archive = self.archive();
            let _ =
                fs.create_dir(&archive, false).and_then(|()| fs.rename(&from, &archive.join(filename::wal(number))));
            self.retention.archive_changed.store(true, Ordering::Release);
        } else {
            let _ = fs.remove(&from);
        }
    }

    /// If WALs are to be archived, refuses an archive that is a link: files would be moved to, and deleted from,
    /// another directory.
    pub fn check_archive(&self) -> Result<()> {
        let archive = self.archive();
        if !self.retention.archives() {
            return Ok(());
        }
        match self.fs.entry(&archive).map_err(|e| Error::io(archive.display(), &e))? {
            None | Some(Entry { kind: EntryKind::Directory, .. }) => Ok(()),
            Some(_) => Err(Error::invalid_argument(format!(
                "{}: is a link or a file, and WALs are to be archived there: make it a directory",
                archive.display()
            ))),
        }
    }

    /// Waits for deletions from the archive that have begun. Those that come later ask whether they may.
    pub fn await_archive(&self) {
        drop(self.retention.archived.lock());
    }

    /// Something bounds all that is archived, see [`Self::trim_archive`].
    pub fn bounds_archive(&self) -> bool {
        self.retention.archives() && self.memory.index().is_some()
    }

    /// Deletes the oldest archived WALs while all of them and `live` bytes of WALs exceed `fast_capacity` minus the
    /// length of one WAL, because that much may be written before the next check. Returns the number of the newest that
    /// was deleted. `may_delete`: see [`Self::await_archive`].
    pub fn trim_archive(&self, live: u64, may_delete: impl Fn() -> bool) -> Option<u64> {
        let capacity = self.memory.index().filter(|_| self.retention.archives())?.capacity;
        let archive = self.archive();
        let fs = beneath(&*self.fs, &self.dir).ok()?;
        let mut archived = self.retention.archived.lock();
        if !may_delete() {
            return None;
        }
        if self.retention.archive_changed.swap(false, Ordering::AcqRel) {
            // A missing directory counts as empty.
            let numbers = wal_numbers(&fs.list_dir(&archive).unwrap_or_default());
            let length = |n| fs.file_size(&archive.join(filename::wal(n))).unwrap_or(0);
            *archived = numbers.into_iter().map(|n| (n, length(n))).collect();
        }
        let mut all = archived.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let longest = archived.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let mut trimmed = None;
        while let Some(&(number, bytes)) = archived.front() {
            if live.saturating_add(all).saturating_add(longest) <= capacity {
                break;
            }
            match fs.remove(&archive.join(filename::wal(number))) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    // Tried again at the next look.
                    self.retention.archive_changed.store(true, Ordering::Release);
                    break;
                }
                _ => {}
            }
            archived.pop_front();
            all -= bytes;
            trimmed = Some(number);
        }
        trimmed
    }

    /// Deletes what the archive need not keep.
    fn purge_archive(&self, may_delete: impl Fn() -> bool) {
        let (ttl, limit) = (self.retention.ttl_seconds, self.retention.archive_mib_max);
        if !self.retention.archives() {
            return;
        }
        let _archived = self.retention.archived.lock();
        if !may_delete() {
            return;
        }
        let now = self.clock.now_micros() / 1_000_000;
        let every = if ttl > 0 { PURGE_SECONDS.min((ttl / 2).max(1)) } else { PURGE_SECONDS };
        let due = |last: u64| (last.saturating_add(every) <= now).then_some(now);
        if self.retention.archive_purged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_err() {
            return;
        }
        self.retention.archive_changed.store(true, Ordering::Release);
        let archive = self.archive();
        let Ok(fs) = beneath(&*self.fs, &self.dir) else { return };
        let Ok(names) = fs.list_dir(&archive) else { return };
        let (mut kept, mut largest) = (Vec::new(), 0);
        for number in wal_numbers(&names) {
            let path = archive.join(filename::wal(number));
            let too_old = ttl > 0 && fs.modified_seconds(&path).is_ok_and(|t| now.saturating_sub(t) > ttl);
            let size = fs.file_size(&path).unwrap_or(0);
            if too_old || (limit > 0 && size == 0) {
                let _ = fs.remove(&path);
            } else {
                kept.push(path);
                largest = largest.max(size);
            }
        }
        if limit > 0 && largest > 0 {
            let fit = (limit.saturating_mul(1 << 20) / largest).min(kept.len() as u64) as usize;
            for path in &kept[..kept.len() - fit] {
                let _ = fs.remove(path);
            }
        }
    }

    /// All WALs, archived ones first, each kind by number. Files without an update are left out.
    pub fn sorted_wal_files(&self) -> Result<Vec<WalFile>> {
        // The live ones first: a WAL that is archived meanwhile is seen twice rather than not at all.
        let alive = self.wal_files_in(WalFileType::Alive)?;
        let mut files = self.wal_files_in(WalFileType::Archived)?;
        let archived = files.last().map_or(0, |f| f.log_number);
        files.extend(alive.into_iter().filter(|f| f.log_number > archived));
        Ok(files)
    }

    fn wal_files_in(&self, file_type: WalFileType) -> Result<Vec<WalFile>> {
        let fs = &*self.fs;
        let archive = self.archive();
        let dir = if file_type == WalFileType::Alive { &self.dir } else { &archive };
        let failed = |e| Error::io(format_args!("cannot list {}", dir.display()), &e);
        if file_type == WalFileType::Archived && !fs.exists(dir).map_err(failed)? {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        for log_number in wal_numbers(&fs.list_dir(dir).map_err(failed)?) {
            let name = filename::wal(log_number);
            // It was moved or deleted after it was listed: it is in the other place, or nowhere.
            let places = [dir.join(&name), archive.join(&name)];
            for path in places {
                match first_sequence(fs, &path, log_number) {
                    Ok(Some(start_sequence)) => {
                        let most = self.wal.size_of_open(log_number).unwrap_or(u64::MAX);
                        let size = fs.file_size(&path).unwrap_or(0).min(most);
                        files.push(WalFile { path, log_number, file_type, start_sequence, size });
                        break;
                    }
                    Ok(None) => break,
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                    Err(e) => return Err(Error::io(format_args!("cannot read WAL {}", path.display()), &e)),
                }
            }
        }
        Ok(files)
    }
}

/// Sequence number of a WAL's first update; `None` without one.
fn first_sequence(fs: &dyn FileSystem, path: &Path, number: u64) -> std::io::Result<Option<u64>> {
    let mut reader = LogReader::new(LogSource::new(fs.open_sequential(path)?), number);
    let mut record = Vec::new();
    loop {
        match reader.next_record(&mut record)? {
            LogEvent::Record { .. } => {
                if let Ok(batch) = BatchRep::from_bytes(std::mem::take(&mut record))
                    && batch.count() > 0
                {
                    return Ok(Some(batch.sequence()));
                }
            }
            LogEvent::Damage { .. } | LogEvent::End { .. } => return Ok(None),
        }
    }
}

/// Removes the WALs of a database that is destroyed, from the WAL directory and from the archives.
pub(crate) fn destroy_wals(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    for (base, dir) in [(path, path.join(ARCHIVE)), (wal_dir, wal_dir.join(ARCHIVE)), (wal_dir, wal_dir.to_owned())] {
        let fs = beneath(fs, base)?;
        // A link is left alone, and so is its target.
        let names = match fs.list_dir(&dir) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            names => names.map_err(|e| Error::io(dir.display(), &e))?,
        };
        for name in names {
            if matches!(filename::parse(&name), Some(FileType::Wal(_))) {
                let file = dir.join(&name);
                fs.remove(&file).map_err(|e| Error::io(format_args!("cannot remove {}", file.display()), &e))?;
            }
        }
        if dir != path {
            let _ = fs.remove_dir(&dir); // stays if the user keeps other files in it
        }
    }
    Ok(())
}
