//! Whose a WAL directory is.
//!
//! A database opens with the `wal_dir` that its options name, and options travel: a checkpoint or a backup that RocksDB
//! made, or a copied directory, names the WAL directory of the original. It would replay the original's WALs and then
//! delete them. So a WAL directory outside of the database's own belongs to one database:
//!
//! - The file `WAL_OWNER` is in both directories, with the same random token in its first line. The second line names
//!   the other directory, for people and for a repair. RocksDB ignores files of that name.
//! - The database that has the token may use the directory, unless the one that the WAL directory names is still
//!   there: then it is a copy, made file by file. Without a `WAL_OWNER` in the WAL directory (RocksDB made it, or it is
//!   new) the first opening for writing claims it, if the MANIFEST knows its WALs. A directory without WALs may be
//!   claimed by anyone.
//! - The WAL directory is locked while the database is open for writing.
//! - With a fast path (`fast_path`, or `fast_capacity` with a `wal_dir`) each opening notes which MANIFEST and which
//!   log it began, and the newest log with records that it kept, in the third line of the database's own file. So the
//!   next one knows whether the log numbers in the MANIFEST are those of logs that were there, and refuses to open
//!   without them.
//! - A database does not open where its `WAL_OWNER` names the WAL directory, and that is missing or has nothing of it:
//!   its device is gone.
//! - The directory is done without as soon as nothing there is needed: WALs whose updates the MANIFEST's tables have,
//!   and such without updates, keep nobody back. The next opening for writing without it forgets it.
//!
//! Copies never get the file: checkpoints, backups and exports copy only files that they know.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use rockmill_format::filename::{self, FileType};
use rockmill_io::{Entry, EntryKind, FileLock, FileSystem};

use crate::db::Db;
use crate::error::{Error, Result};
use crate::front::{has_updates, wal_dir_of, wal_numbers};
use crate::options::load::{latest_options_file, read_file};
use crate::options::{Options, parse};
use crate::version::{current_manifest, for_each_edit, retry_while_files_vanish};

/// In the database's directory and in its WAL directory.
pub(crate) const WAL_OWNER: &str = "WAL_OWNER";

/// Longer than any token and path.
const NOTE_BYTES_MAX: u64 = 16 << 10;

/// The version of RocksDB from which on OPTIONS files name no `wal_dir` that is the database's own directory.
const OWN_PATH_BEFORE: (u32, u32, u32) = (6, 23, 0);

/// What a `WAL_OWNER` file says.
struct Note {
    token: String,
    /// In the database's directory the WAL directory, in that one the database.
    other: PathBuf,
    /// In the database's directory: what the last opening began, where it noted that.
    began: Option<Began>,
}

/// What an opening began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Began {
    /// Number of its MANIFEST.
    pub manifest: u64,
    /// Number of its first log.
    pub log: u64,
    /// The newest log with records that it kept. No other log names it before the first write.
    pub kept: Option<u64>,
}

impl Began {
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(str::parse);
        let (manifest, log) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Self { manifest, log, kept: numbers.next().transpose().ok()? })
    }
}

impl Note {
    fn read(fs: &dyn FileSystem, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(WAL_OWNER);
        if fs.file_size(&path).is_ok_and(|bytes| bytes > NOTE_BYTES_MAX) {
            return Err(Error::corruption(format!("{}: more than {NOTE_BYTES_MAX} bytes", path.display())));
        }
        match fs.read_small(&path, NOTE_BYTES_MAX) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut lines = text.lines().map(str::trim);
                let token = lines.next().unwrap_or_default().to_owned();
                // One that a crash cut short says nothing.
                let other = PathBuf::from(lines.next().unwrap_or_default());
                let began = lines.next().and_then(Began::parse);
                Ok((!token.is_empty()).then_some(Self { token, other, began }))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(format_args!("cannot read {}", path.display()), &e)),
        }
    }

    fn write(&self, fs: &dyn FileSystem, dir: &Path) -> Result<()> {
        let path = dir.join(WAL_OWNER);
        let temp = dir.join(format!("{WAL_OWNER}.dbtmp"));
        let mut text = format!("{}\n{}\n", self.token, self.other.display());
        if let Some(Began { manifest, log, kept }) = self.began {
            let kept = kept.map(|kept| format!(" {kept}")).unwrap_or_default();
            text.push_str(&format!("{manifest} {log}{kept}\n"));
        }
        let written =
            fs.write_all(&temp, text.as_bytes()).and_then(|()| fs.rename(&temp, &path)).and_then(|()| fs.sync_dir(dir));
        written.map_err(|e| Error::io(format_args!("cannot write {}", path.display()), &e))
    }
}

impl Note {
    /// Of a WAL directory: true if the database that it names is there still, and is not the one in `path`, which has
    /// the same token: that one is a copy of it, file by file.
    fn is_elsewhere(&self, fs: &dyn FileSystem, path: &Path) -> bool {
        !fs.same_file(&self.other, path).unwrap_or(self.other == path)
            && Note::read(fs, &self.other).is_ok_and(|n| n.is_some_and(|n| n.token == self.token))
    }
}

/// What the last opening of the database in `path` began, if it noted that.
pub(crate) fn read_began(fs: &dyn FileSystem, path: &Path) -> Result<Option<Began>> {
    Ok(Note::read(fs, path)?.and_then(|own| own.began))
}

/// Notes what an opening of the database in `path` began. Its WAL directory is claimed.
pub(crate) fn note_began(fs: &dyn FileSystem, path: &Path, began: Began) -> Result<()> {
    match Note::read(fs, path)? {
        Some(own) => Note { began: Some(began), ..own }.write(fs, path),
        None => Ok(()),
    }
}

/// Refuses a WAL directory that belongs to another database than the one in `path`. Changes nothing.
pub(crate) fn check(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    if path == wal_dir {
        return Ok(());
    }
    let failed = |e| Error::io(format_args!("cannot look into {}", wal_dir.display()), &e);
    let manifest = |name: &String| matches!(filename::parse(name), Some(FileType::Manifest(_)));
    // One without CURRENT is a database, too, that somebody may repair.
    if fs.exists(&wal_dir.join(filename::CURRENT)).map_err(failed)?
        || fs.list_dir(wal_dir).is_ok_and(|names| names.iter().any(manifest))
    {
        return Err(Error::invalid_argument(format!(
            "{}: wal_dir is the directory of another database; give one that is for the WALs of {} alone",
            wal_dir.display(),
            path.display()
        )));
    }
    let Some(theirs) = Note::read(fs, wal_dir)? else { return Ok(()) };
    let own = Note::read(fs, path)?;
    let known = own.is_some_and(|own| own.token == theirs.token);
    if (known && !theirs.is_elsewhere(fs, path)) || !holds_wals(fs, wal_dir)? {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "{}: wal_dir holds the WALs of the database in {}, and {} is another one, or a copy of it: give it a wal_dir \
         of its own. If these WALs belong to {} after all, delete {}",
        wal_dir.display(),
        theirs.other.display(),
        path.display(),
        path.display(),
        wal_dir.join(WAL_OWNER).display()
    )))
}

/// Refuses a WAL directory that nobody has claimed and whose WALs are not those of the database in `path`, as far as
/// its MANIFEST says. RocksDB writes no `WAL_OWNER`, and locks only the database's own directory.
///
/// The WAL that was written to when the MANIFEST got its last edit is still there: it has a number below the next file
/// number of then, and is deleted only when an edit says that it is not needed. WALs that are all older are not needed,
/// and those that are all newer cannot be without it. So one must be in between, unless there is none at all. Where
/// WALs that are needed are in the database's own directory, too, it is a copy that brought its WALs along.
pub(crate) fn check_unclaimed(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    if path == wal_dir || Note::read(fs, wal_dir)?.is_some() {
        return Ok(());
    }
    let names = |dir: &Path| fs.list_dir(dir).map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e));
    let wals = wal_numbers(&names(wal_dir)?);
    let Some(&first) = wals.first() else { return Ok(()) };
    // Without a MANIFEST that can be read there is nothing to compare with: whoever needs it says so.
    let Some(Needed { range: needed, .. }) = needed_wals(fs, path) else { return Ok(()) };
    let shown = wal_dir.join(filename::wal(first));
    let what = if !wals.iter().any(|n| needed.contains(n)) {
        format!("the MANIFEST of {} knows none of its WALs", path.display())
    } else if let Some(own) = wal_numbers(&names(path)?).iter().find(|n| needed.contains(n)) {
        format!("{} has WALs of its own ({})", path.display(), filename::wal(*own))
    } else {
        return Ok(());
    };
    Err(Error::invalid_argument(format!(
        "{}: this wal_dir holds WALs (such as {}), and {what}: they are another database's, or this is a copy of one. \
         Give it a wal_dir of its own. If they are this database's after all, `rockmill repair --wal-dir` takes them in",
        wal_dir.display(),
        shown.display(),
    )))
}

/// What the MANIFEST of a database says of its WALs.
struct Needed {
    /// Number of the MANIFEST.
    manifest: u64,
    /// The numbers that WALs have which are needed: from the oldest one that a column family needs up to the next file
    /// number.
    range: Range<u64>,
    /// The oldest one that each column family needs.
    of_families: Vec<u64>,
}

impl Needed {
    /// One of the needed WALs that is not among `wals`, as far as `began`, which noted the last opening, lets know.
    fn missing_among(&self, wals: &[u64], began: Option<Began>) -> Option<u64> {
        let began = began.filter(|began| began.manifest == self.manifest)?;
        // That of a column family without data stays behind.
        let mut expected = self.of_families.iter().copied().chain([began.log]).chain(began.kept);
        expected.find(|n| *n >= self.range.start && !wals.contains(n))
    }
}

/// What the MANIFEST of the database in `path` says of its WALs. `None` where it cannot be read.
fn needed_wals(fs: &dyn FileSystem, path: &Path) -> Option<Needed> {
    retry_while_files_vanish(fs, path, || {
        let number = current_manifest(fs, path)?;
        let manifest = path.join(filename::manifest(number));
        let mut logs = BTreeMap::from([(0, 0)]);
        let (mut least, mut next) = (0, 0);
        for_each_edit(fs, &manifest, &mut |edit| {
            if edit.column_family_drop {
                logs.remove(&edit.column_family);
            } else if let Some(n) = edit.log_number {
                logs.insert(edit.column_family, n);
            }
            least = edit.min_log_number_to_keep.map_or(least, |n| n.max(least));
            next = edit.next_file_number.unwrap_or(next);
            Ok(())
        })?;
        let of_families: Vec<u64> = logs.into_values().collect();
        let start = of_families.iter().copied().min().unwrap_or(0).max(least);
        Ok(Needed { manifest: number, range: start..next, of_families })
    })
    .ok()
}

/// Refuses to look for the WALs of the database in `path` in `wal_dir` while they are in the directory that it had
/// last: an opening would not see what is in them, and a later one would delete them. RocksDB opens.
///
/// WALs that nothing is needed of are left behind: `wal_dir` is turned off. But with `follows`, who reads on what
/// another process writes refuses any, since that process may write to them still. Others see the database as it is at
/// one moment. So does a copy whose original is there and has deleted what it does not need itself. And where one that
/// is needed is not there, the directory is newer than the database, or lost it.
pub(crate) fn refuse_if_elsewhere(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, follows: bool) -> Result<()> {
    refuse_if_at_home(fs, path, wal_dir, follows)?;
    let Some(own) = Note::read(fs, path)?.filter(|own| !own.other.as_os_str().is_empty()) else { return Ok(()) };
    if fs.same_file(&own.other, wal_dir).unwrap_or_else(|_| own.other == absolute(wal_dir)) {
        return refuse_if_gone(fs, path, wal_dir);
    }
    // A directory that is gone, cannot be read or belongs to somebody else has no WALs that could be used.
    let theirs = Note::read(fs, &own.other).ok().flatten();
    let Some(theirs) = theirs.filter(|theirs| theirs.token == own.token) else { return Ok(()) };
    let names = fs.list_dir(&own.other);
    let names = names.map_err(|e| Error::io(format_args!("cannot list {}", own.other.display()), &e))?;
    let wals = wal_numbers(&names);
    let needed = needed_wals(fs, path);
    // Without a MANIFEST that can be read all may be needed.
    let from = needed.as_ref().map_or(0, |needed| needed.range.start);
    let missing = needed.and_then(|needed| needed.missing_among(&wals, own.began));
    let any = follows || theirs.is_elsewhere(fs, path);
    let wal = if any { wals.first().copied() } else { needed_of(fs, &own.other, &wals, from) };
    let Some(wal) = wal.or(missing) else { return Ok(()) };
    Err(Error::invalid_argument(format!(
        "{}: the WALs of this database are in {}, or were, such as {}, and wal_dir is {}: set wal_dir to that directory (and \
         flush all column families, to do without it from then on), or move the WALs. If this is a copy that is to do \
         without them, delete {}",
        path.display(),
        own.other.display(),
        filename::wal(wal),
        wal_dir.display(),
        path.join(WAL_OWNER).display()
    )))
}

/// The same where the directory is the one that it had last, and that is missing, or has nothing of it: its device is
/// not there. An opening would make a new one, and go on without what only its WALs have.
fn refuse_if_gone(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    let what = if !fs.exists(wal_dir).map_err(|e| Error::io(wal_dir.display(), &e))? {
        "does not exist"
    } else if Note::read(fs, wal_dir)?.is_none() && !holds_wals(fs, wal_dir)? {
        "has neither WALs nor its file WAL_OWNER"
    } else {
        return Ok(());
    };
    Err(Error::invalid_argument(format!(
        "{}: the WALs of {} are there, and this wal_dir {what}: is its device mounted? If they are lost, delete {} to \
         open the database without them",
        wal_dir.display(),
        path.display(),
        path.join(WAL_OWNER).display()
    )))
}

/// The same where they are in the database's own directory: there was no `wal_dir` before.
fn refuse_if_at_home(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, follows: bool) -> Result<()> {
    if fs.same_file(path, wal_dir).unwrap_or(path == wal_dir) {
        return Ok(());
    }
    let names = fs.list_dir(path).map_err(|e| Error::io(format_args!("cannot list {}", path.display()), &e))?;
    let wals = wal_numbers(&names);
    if wals.is_empty() {
        return Ok(());
    }
    let Some(Needed { range: needed, .. }) = needed_wals(fs, path) else { return Ok(()) };
    let wal = match follows {
        true => wals.into_iter().find(|n| *n >= needed.start),
        false => needed_of(fs, path, &wals, needed.start),
    };
    let Some(wal) = wal else { return Ok(()) };
    Err(Error::invalid_argument(format!(
        "{}: this database has WALs in its own directory, and wal_dir is {}: leave wal_dir empty, or move the WALs there \
         first ({})",
        path.display(),
        wal_dir.display(),
        path.join(filename::wal(wal)).display()
    )))
}

/// Forgets where the WALs of the database in `path` were, unless in `wal_dir`, and what its last opening began: another
/// one takes its place, which has its WALs there.
pub(crate) fn forget_elsewhere(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    let Some(own) = Note::read(fs, path)? else { return Ok(()) };
    if fs.same_file(&own.other, wal_dir).unwrap_or(own.other == wal_dir) {
        return if own.began.is_some() { Note { began: None, ..own }.write(fs, path) } else { Ok(()) };
    }
    let note = path.join(WAL_OWNER);
    fs.remove(&note).map_err(|e| Error::io(format_args!("cannot remove {}", note.display()), &e))
}

fn holds_wals(fs: &dyn FileSystem, wal_dir: &Path) -> Result<bool> {
    let names = fs.list_dir(wal_dir).map_err(|e| Error::io(format_args!("cannot list {}", wal_dir.display()), &e))?;
    Ok(!wal_numbers(&names).is_empty())
}

/// The first of the WALs in `dir` that holds something and is none of those below `from`, which tables have.
fn needed_of(fs: &dyn FileSystem, dir: &Path, wals: &[u64], from: u64) -> Option<u64> {
    wals.iter().copied().filter(|&n| n >= from).find(|&n| match has_updates(fs, &dir.join(filename::wal(n)), n) {
        // Deleted after it was listed, which it is when it is not needed.
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
        Ok(updates) => updates,
    })
}

/// The database in `path` has its WALs in its own directory from now on, and needs none of those elsewhere. The token
/// stays: the directory where they were can be its own again.
pub(crate) fn leave_elsewhere(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    let Some(own) = Note::read(fs, path)?.filter(|own| !own.other.as_os_str().is_empty()) else { return Ok(()) };
    // One that is not there, or is somebody else's, may be needed when it is there again.
    match Note::read(fs, &own.other).ok().flatten().is_some_and(|theirs| theirs.token == own.token) {
        true => Note { token: own.token, other: PathBuf::new(), began: None }.write(fs, path),
        false => Ok(()),
    }
}

/// Locks a WAL directory for the database in `path`; [`check`] comes after it.
pub(crate) fn lock(fs: &dyn FileSystem, wal_dir: &Path) -> Result<Box<dyn FileLock>> {
    fs.lock(&wal_dir.join(filename::LOCK)).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::WouldBlock => "another open database has this wal_dir: ",
            _ => "",
        };
        Error::io(format_args!("cannot lock {}: {hint}a WAL directory belongs to one database", wal_dir.display()), &e)
    })
}

/// Locks the WAL directory and makes it the database's, whose own lock is held. `token` is a new one, for a database
/// without any.
pub(crate) fn claim(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, token: String) -> Result<Box<dyn FileLock>> {
    // Before the lock, too, which would leave a file in a directory of somebody else.
    check(fs, path, wal_dir)?;
    check_unclaimed(fs, path, wal_dir)?;
    let lock = lock(fs, wal_dir)?;
    check(fs, path, wal_dir)?;
    check_unclaimed(fs, path, wal_dir)?;
    mark(fs, path, wal_dir, token)?;
    Ok(lock)
}

/// Writes whose the WAL directory is, which is locked.
pub(crate) fn mark(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, token: String) -> Result<()> {
    for dir in [path, wal_dir] {
        let _ = fs.remove(&dir.join(format!("{WAL_OWNER}.dbtmp"))); // what a crash left
    }
    let own = Note::read(fs, path)?;
    let theirs = Note::read(fs, wal_dir)?;
    let token = own.as_ref().map_or(token, |own| own.token.clone());
    let (database, wals) = (absolute(path), absolute(wal_dir));
    // First here: a WAL directory with a token that no database has would be nobody's. It names the directory last: one
    // that is named and has nothing is taken for one whose device is gone.
    if own.is_none() {
        Note { token: token.clone(), other: PathBuf::new(), began: None }.write(fs, path)?;
    }
    if theirs.is_none_or(|theirs| theirs.token != token || theirs.other != database) {
        Note { token: token.clone(), other: database, began: None }.write(fs, wal_dir)?;
    }
    if own.as_ref().is_none_or(|own| own.other != wals) {
        // Recovery may refuse after this, and the next opening must refuse for the same reason.
        Note { token, other: wals, began: own.and_then(|own| own.began) }.write(fs, path)?;
    }
    Ok(())
}

/// Commands are run from anywhere.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses WALs that nobody has claimed where a database is to be restored and there is none.
pub(crate) fn check_before_restore(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    check_unclaimed(fs, path, wal_dir)?;
    let is_there = fs.exists(&path.join(filename::CURRENT)).unwrap_or(true);
    // A restore that was cut short left its claim.
    if is_there || Note::read(fs, wal_dir)?.is_some() || !holds_wals(fs, wal_dir)? {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "{}: holds WALs, and {} has no database that they could belong to: give another directory for the WALs",
        wal_dir.display(),
        path.display()
    )))
}

/// Removes what [`claim`] wrote, of a database that is destroyed.
pub(crate) fn release(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) {
    for dir in [path, wal_dir] {
        for name in [WAL_OWNER.to_owned(), format!("{WAL_OWNER}.dbtmp")] {
            let _ = fs.remove(&dir.join(name)); // harmless where it stays: there are no WALs any more
        }
    }
}

/// True if `dir` is the database's directory or lies in it, whatever its name, without a link on the way from there.
pub(crate) fn is_inside(fs: &dyn FileSystem, path: &Path, dir: &Path) -> bool {
    let is_database = |a: &Path| fs.same_file(a, path).unwrap_or(a == path);
    let Some(base) = dir.ancestors().find(|a| !a.as_os_str().is_empty() && is_database(a)) else { return false };
    let Ok(rest) = dir.strip_prefix(base) else { return false };
    let mut at = base.to_owned();
    rest.components().all(|part| {
        at.push(part);
        let plain = matches!(part, Component::Normal(_));
        plain && matches!(fs.entry(&at), Ok(None | Some(Entry { kind: EntryKind::Directory, .. })))
    })
}

/// Refuses a WAL directory that nobody names but the files of the database in `path`, which anybody may have written:
/// unless it lies in that directory, or says itself that it belongs to the database there.
pub(crate) fn refuse_unasked(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    if is_inside(fs, path, wal_dir) {
        return Ok(());
    }
    let own = Note::read(fs, path).ok().flatten();
    let theirs = Note::read(fs, wal_dir).ok().flatten();
    // The token alone may have been read there and copied here.
    let agree = |own: &Note, theirs: &Note| {
        own.token == theirs.token && fs.same_file(&theirs.other, path).unwrap_or(theirs.other == path)
    };
    if own.zip(theirs).is_some_and(|(own, theirs)| agree(&own, &theirs)) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "{}: the files of this database say that its WALs are in {}, and nothing there says that it belongs to this \
         database",
        path.display(),
        wal_dir.display()
    )))
}

impl Db {
    /// Where the WALs of a database are that need not be open: `wal_dir` of the options, or else what its newest
    /// OPTIONS file says, or else its own directory. An error if that directory is missing or belongs to another
    /// database, or if only the OPTIONS file names it and [`Self::check_stored_path`] refuses it.
    pub fn find_wal_dir(options: &Options, path: impl AsRef<Path>) -> Result<PathBuf> {
        let (fs, path) = (&*options.db.fs, path.as_ref());
        let given = wal_dir_of(&options.db, path);
        let stored = if given == path { stored_wal_dir(fs, path) } else { None };
        if let Some(dir) = &stored {
            refuse_unasked(fs, path, dir)?;
        }
        let dir = stored.unwrap_or(given);
        if !fs.exists(&dir).map_err(|e| Error::io(dir.display(), &e))? {
            return Err(Error::invalid_argument(format!("{}: wal_dir does not exist", dir.display())));
        }
        check(fs, path, &dir)?;
        check_unclaimed(fs, path, &dir)?;
        Ok(dir)
    }

    /// For programs that open databases of others with the options that are stored there: refuses a directory (a
    /// `wal_dir`, or a `db_log_dir`) that the OPTIONS file of the database in `path` names, if following it would lead
    /// to files of somebody else. It must lie in `path`, without a link on the way, or have a file `WAL_OWNER` that
    /// names this database. The second is so wherever Rockmill made the WALs and the database was not moved since.
    ///
    /// Opening does not ask this: what is in the options that it is given is the caller's word.
    pub fn check_stored_path(options: &Options, path: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<()> {
        refuse_unasked(&*options.db.fs, path.as_ref(), dir.as_ref())
    }
}

/// Where the WALs of the database in `path` are, by what its own files say: the newest OPTIONS file, or where that is
/// missing or unreadable the file `WAL_OWNER`. `None` if that is its own directory, or nothing says it. RocksDB before
/// 6.23 wrote the own directory's path into OPTIONS: where that is not there, the database was moved or copied.
pub(crate) fn stored_wal_dir(fs: &dyn FileSystem, path: &Path) -> Option<PathBuf> {
    let by_options = || -> Option<(PathBuf, bool)> {
        let (_, file) = latest_options_file(fs, path).ok()??;
        let file = read_file(fs, &file).ok()?;
        let (_, value) = file.db.iter().find(|(name, _)| name == "wal_dir")?;
        Some((PathBuf::from(parse::unescape(value)), file.rocksdb_version < OWN_PATH_BEFORE))
    };
    let (dir, may_be_own) = by_options().or_else(|| Some((Note::read(fs, path).ok()??.other, false)))?;
    let own = dir.as_os_str().is_empty() || fs.same_file(&dir, path).unwrap_or(dir == path);
    let moved = || may_be_own && matches!(fs.exists(&dir), Ok(false));
    (!own && !moved()).then_some(dir)
}
