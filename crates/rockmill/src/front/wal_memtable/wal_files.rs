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
//!
//! An obsolete WAL that cannot be deleted or archived is *stuck*: it still takes space, and is tried again each second.
//! Needed WALs may have less of `fast_capacity` meanwhile. One that only cannot be archived counts as archived instead,
//! so it is deleted if there is no room.

use std::collections::{BTreeMap, VecDeque};
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
    /// The archive has other files than [`Obsolete::archived`] says.
    archive_changed: AtomicBool,
    /// Deletions from the archive and of stuck WALs hold the lock; no writer takes it.
    obsolete: Mutex<Obsolete>,
    /// Bytes of obsolete WALs that needed ones cannot have.
    stuck_bytes: AtomicU64,
    /// Bytes of archived WALs that needed ones can have, as they were when the archive was last looked at.
    archived_bytes: AtomicU64,
}

/// Obsolete WALs that still exist.
#[derive(Debug, Default)]
struct Obsolete {
    /// Numbers and lengths of archived ones, oldest first; used if values stay in WALs.
    archived: VecDeque<(u64, u64)>,
    /// The same of stuck ones.
    stuck: BTreeMap<u64, u64>,
    /// A failure in the archive was told, and there was no success since.
    told: bool,
}

/// What became of obsolete WALs.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Why some are stuck since now.
    pub failed: Vec<Error>,
    /// Those that are no longer stuck.
    pub freed: Vec<u64>,
}

impl Retention {
    pub fn of(options: &DbOptions) -> Self {
        Self {
            ttl_seconds: options.WAL_ttl_seconds,
            archive_mib_max: options.WAL_size_limit_MB,
            recycled_max: options.recycle_log_file_num,
            archive_purged: AtomicU64::new(0),
            archive_changed: AtomicBool::new(true),
            obsolete: Mutex::default(),
            stuck_bytes: AtomicU64::new(0),
            archived_bytes: AtomicU64::new(0),
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
    pub fn retire_logs(&self, numbers: &[u64], may_delete: impl Fn() -> bool) -> Retired {
        self.wal.forget(numbers);
        let reused = |number| self.wal.keep_for_reuse(number, self.retention.recycled_max);
        let failed = self.remove_logs(numbers.iter().copied().filter(|&number| !reused(number)));
        self.purge_archive(&may_delete);
        Retired { failed, freed: self.retry_stuck(may_delete) }
    }

    /// Archives or deletes the WALs in the directory that are not `live`. Returns the failures.
    pub fn remove_orphans(&self, live: &[u64]) -> Vec<Error> {
        let names = match self.fs.list_dir(&self.dir) {
            Ok(names) => names,
            Err(e) => return vec![Error::io(format_args!("cannot list {}", self.dir.display()), &e)],
        };
        self.remove_logs(wal_numbers(&names).into_iter().filter(|n| !live.contains(n)))
    }

    /// Archives or deletes WALs. Those for which that fails are stuck.
    fn remove_logs(&self, numbers: impl Iterator<Item = u64>) -> Vec<Error> {
        let mut failed = Vec::new();
        for number in numbers {
            if let Err(e) = self.remove_log(number) {
                let bytes = self.fs.file_size(&self.log_path(number)).unwrap_or(0);
                let mut obsolete = self.retention.obsolete.lock();
                obsolete.stuck.insert(number, bytes);
                self.count_stuck(&obsolete);
                failed.push(e);
            }
        }
        failed
    }

    /// Archives or deletes a WAL.
    fn remove_log(&self, number: u64) -> Result<()> {
        let (fs, from) = (&self.fs, self.log_path(number));
        let (done, what, archive) = match self.retention.archives() {
            true => {
                let archive = self.archive();
                let to = archive.join(filename::wal(number));
                let done = fs.create_dir(&archive, false).and_then(|()| fs.rename(&from, &to));
                self.retention.archive_changed.store(true, Ordering::Release);
                (done, "archive", archive)
            }
            false => (fs.remove(&from), "delete", PathBuf::new()),
        };
        let Err(e) = done else { return Ok(()) };
        if e.kind() == io::ErrorKind::NotFound && !fs.exists(&from).unwrap_or(true) {
            return Ok(()); // somebody else removed it
        }
        let hint = match e.kind() {
            io::ErrorKind::CrossesDevices => format!(
                " ({} is on another device; WALs are renamed to archive them, so make it a directory of the same file \
                 system, or turn WAL_ttl_seconds and WAL_size_limit_MB off)",
                archive.display()
            ),
            _ => String::new(),
        };
        Err(Error::io(format_args!("cannot {what} the obsolete WAL {}{hint}", from.display()), &e))
    }

    /// True if an obsolete WAL could not be archived or deleted.
    pub fn has_stuck_logs(&self) -> bool {
        !self.retention.obsolete.lock().stuck.is_empty()
    }

    /// Tries again to archive or delete stuck WALs. Returns those for which it worked.
    pub fn retry_stuck(&self, may_delete: impl Fn() -> bool) -> Vec<u64> {
        let mut obsolete = self.retention.obsolete.lock();
        if obsolete.stuck.is_empty() || !may_delete() {
            return Vec::new();
        }
        let freed: Vec<u64> =
            obsolete.stuck.keys().copied().filter(|&number| self.remove_log(number).is_ok()).collect();
        obsolete.stuck.retain(|number, _| !freed.contains(number));
        self.count_stuck(&obsolete);
        freed
    }

    /// Counts the bytes of stuck WALs. If WALs are archived, [`Self::trim_archive`] does this.
    fn count_stuck(&self, obsolete: &Obsolete) {
        if !self.retention.archives() {
            self.retention.stuck_bytes.store(obsolete.stuck.values().sum(), Ordering::Relaxed);
        }
    }

    /// Bytes of obsolete WALs that cannot be deleted.
    pub fn stuck_bytes(&self) -> u64 {
        self.retention.stuck_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of archived WALs that are deleted if needed ones take their space.
    pub fn archived_bytes(&self) -> u64 {
        self.retention.archived_bytes.load(Ordering::Relaxed)
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
        drop(self.retention.obsolete.lock());
    }

    /// Something bounds all that is archived, see [`Self::trim_archive`].
    pub fn bounds_archive(&self) -> bool {
        self.retention.archives() && self.memory.index().is_some()
    }

    /// Deletes the oldest archived or stuck WALs while all of them and `live` bytes of WALs exceed `fast_capacity`
    /// minus the length of one WAL, because that much may be written before the next check; also while the device has
    /// less space left than that. Returns the number of the newest that was deleted, and the first failure after a
    /// success. `may_delete`: see [`Self::await_archive`].
    pub fn trim_archive(&self, live: u64, may_delete: impl Fn() -> bool) -> (Option<u64>, Option<Error>) {
        let index = self.memory.index().filter(|_| self.retention.archives());
        let (Some(capacity), Ok(fs)) = (index.map(|i| i.capacity), beneath(&*self.fs, &self.dir)) else {
            return (None, None);
        };
        let archive = self.archive();
        let mut guard = self.retention.obsolete.lock();
        if !may_delete() {
            return (None, None);
        }
        let obsolete = &mut *guard;
        let mut failed = None;
        if self.retention.archive_changed.swap(false, Ordering::AcqRel) {
            let names = match fs.list_dir(&archive) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                names => names,
            };
            let length = |n| fs.file_size(&archive.join(filename::wal(n))).unwrap_or(0);
            match names {
                Ok(names) => obsolete.archived = wal_numbers(&names).into_iter().map(|n| (n, length(n))).collect(),
                Err(e) => {
                    let what = "it is not known how much the archive of WALs has: cannot list";
                    failed = Some(Error::io(format_args!("{what} {}", archive.display()), &e));
                }
            }
        }
        let (archived, stuck) = (&mut obsolete.archived, &mut obsolete.stuck);
        let bytes = || archived.iter().map(|(_, bytes)| bytes).chain(stuck.values()).copied();
        let (mut all, longest) = (bytes().sum::<u64>(), bytes().max().unwrap_or(0));
        let (mut trimmed, mut cannot_delete) = (None, false);
        let mut free = self.fs.free_space(&self.dir).unwrap_or(u64::MAX);
        while live.saturating_add(all).saturating_add(longest) > capacity || free < longest {
            let oldest = [archived.front().copied(), stuck.first_key_value().map(|(n, bytes)| (*n, *bytes))];
            let Some((number, bytes)) = oldest.into_iter().flatten().min() else { break };
            let name = filename::wal(number);
            let path = if stuck.contains_key(&number) { self.dir.join(name) } else { archive.join(name) };
            match fs.remove(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    let what = "fast_capacity has no room for an archived WAL: cannot delete";
                    failed = Some(Error::io(format_args!("{what} {}", path.display()), &e));
                    cannot_delete = true;
                    break;
                }
                _ => {}
            }
            if stuck.remove(&number).is_none() {
                archived.pop_front();
            }
            all -= bytes;
            free = free.saturating_add(bytes);
            trimmed = Some(number);
        }
        let (stuck, archived) = if cannot_delete { (all, 0) } else { (0, all) };
        self.retention.stuck_bytes.store(stuck, Ordering::Relaxed);
        self.retention.archived_bytes.store(archived, Ordering::Relaxed);
        if failed.is_some() {
            self.retention.archive_changed.store(true, Ordering::Release); // tried again at the next look
        }
        let told = std::mem::replace(&mut obsolete.told, failed.is_some());
        (trimmed, failed.filter(|_| !told))
    }

    /// Deletes what the archive need not keep.
    fn purge_archive(&self, may_delete: impl Fn() -> bool) {
        let (ttl, limit) = (self.retention.ttl_seconds, self.retention.archive_mib_max);
        if !self.retention.archives() {
            return;
        }
        let _obsolete = self.retention.obsolete.lock();
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
