//! Which database a WAL directory belongs to.
//!
//! A database opens with the `wal_dir` that its options name, and options travel: a checkpoint or a backup that RocksDB
//! made, or a copied directory, names the WAL directory of the original. It would replay the original's WALs and then
//! delete them. So a WAL directory outside of the database's own belongs to one database:
//!
//! - The file `WAL_OWNER` is in both directories, with the same random token in its first line. The second line names
//!   the other directory, for people and for a repair. RocksDB ignores files of that name.
//! - A database that has the token may use the directory, unless the database that the WAL directory names is another
//!   one that still exists: then this one is a copy, made file by file. Without a `WAL_OWNER` in the WAL directory
//!   (RocksDB made it, or it is new) the first opening for writing claims it, if the MANIFEST knows its WALs. A
//!   directory without WALs may be claimed by anyone.
//! - The WAL directory is locked while the database is open for writing.
//! - Each opening for writing notes in the database's own file that its WALs are in the other directory, and a close
//!   after which none of them is needed notes that (`wal_note.rs`). If that directory cannot be found and its WALs may
//!   be needed, the database does not open: probably a device is not mounted.
//! - With a fast path (`fast_path`, or `fast_capacity` with a `wal_dir`) an opening also notes which MANIFEST and which
//!   log it began, and the newest log with records that it kept. So the next one knows whether the log numbers in the
//!   MANIFEST are those of logs that were there, and refuses to open without them.
//! - A database does not open if its `WAL_OWNER` names the WAL directory and that directory is missing or has no file
//!   of the database: its device is gone.
//! - An opening that turns a fast path on or off, or moves it, first writes what is in the WALs of the last one as
//!   tables (`take_over.rs`). Any other opening that would leave needed WALs in another directory is refused.
//! - A database opens without the directory if nothing there is needed: all updates of its WALs are in tables of the
//!   MANIFEST. The next opening for writing without the directory forgets it.
//! - A directory that cannot be found and is given up (`kSkipAnyCorruptedRecords`) does not belong to the database when
//!   it is there again: the database has another token by then (`wal_note.rs`).
//!
//! Copies never get the file: checkpoints, backups and exports copy only files that they know.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use rockmill_format::filename::{self, FileType};
use rockmill_format::log::RecoveryMode;
use rockmill_io::{Entry, EntryKind, FileLock, FileSystem};

use crate::db::open::wal_note::{Began, Left, Note};
use crate::db::{Db, DbInner};
use crate::error::{Error, Result};
use crate::front::{has_updates, misses_logs, wal_dir_of, wal_numbers};
use crate::info_log::{InfoLog, log_warn};
use crate::options::load::{latest_options_file, read_file};
use crate::options::{DbOptions, Options, parse};
use crate::version::{current_manifest, for_each_edit, retry_while_files_vanish};

pub(crate) use crate::db::open::wal_note::WAL_OWNER;

/// The first version of RocksDB whose OPTIONS files do not name a `wal_dir` that is the database's own directory.
const OWN_PATH_BEFORE: (u32, u32, u32) = (6, 23, 0);

/// What the last opening of the database in `path` began, if it noted that, and if its logs may be needed.
pub(crate) fn read_began(fs: &dyn FileSystem, path: &Path) -> Result<Option<Began>> {
    Ok(Note::read_left(fs, path)?.and_then(|(own, left)| own.last_began(left)))
}

/// Refuses a WAL directory that belongs to another database than the one in `path`. Changes nothing.
pub(crate) fn check(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    if path == wal_dir {
        return Ok(());
    }
    let failed = |e| Error::io(format_args!("cannot look into {}", wal_dir.display()), &e);
    let manifest = |name: &String| matches!(filename::parse(name), Some(FileType::Manifest(_)));
    // A database without CURRENT counts as well, since somebody may repair it.
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
    // An opening that gives up another directory claims this one first.
    let known = own.as_ref().is_some_and(|own| own.token == theirs.token || own.next_token() == theirs.token);
    if (known && !theirs.is_elsewhere(fs, path)) || !holds_wals(fs, wal_dir)? {
        return Ok(());
    }
    if own.as_ref().is_some_and(|own| own.gave_up(fs, path, &theirs)) {
        return Err(Error::invalid_argument(format!(
            "{}: wal_dir holds WALs that {} was opened without (wal_recovery_mode kSkipAnyCorruptedRecords, or a \
             repair), and has gone on without since: what they hold would go over what is newer. Give another wal_dir, \
             or none; to use this one, remove these WALs",
            wal_dir.display(),
            path.display()
        )));
    }
    if own.is_none() && fs.same_file(&theirs.other, path).unwrap_or_else(|_| theirs.other == absolute(path)) {
        return Err(Error::invalid_argument(format!(
            "{}: wal_dir holds the WALs of the database that was in {}, where its {WAL_OWNER} is missing: is the device \
             of that directory mounted? If another database has taken its place, give that one a wal_dir of its own. \
             If these WALs belong to it after all, delete {}",
            wal_dir.display(),
            path.display(),
            wal_dir.join(WAL_OWNER).display()
        )));
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

/// Refuses a WAL directory that no database has claimed and whose WALs are not those of the database in `path`, as far
/// as its MANIFEST says. RocksDB writes no `WAL_OWNER`, and locks only the database's own directory.
///
/// The WAL that was in use when the MANIFEST got its last edit still exists: its number is below the next file number
/// of that edit, and it is deleted only when an edit says that it is not needed. If all WALs are older, none is needed;
/// and there are no newer WALs without it. So one WAL must be in that range, unless there is none at all. If needed
/// WALs are in the database's own directory as well, the database is a copy that brought its WALs along.
pub(crate) fn check_unclaimed(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    if path == wal_dir || Note::read(fs, wal_dir)?.is_some() {
        return Ok(());
    }
    let names = |dir: &Path| fs.list_dir(dir).map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e));
    let wals = wal_numbers(&names(wal_dir)?);
    let Some(&first) = wals.first() else { return Ok(()) };
    // Without a readable MANIFEST there is nothing to compare with; the code that needs it will report that.
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

/// What the MANIFEST of a database says about its WALs.
struct Needed {
    /// Number of the MANIFEST.
    manifest: u64,
    /// The numbers that needed WALs can have: from the oldest one that a column family needs up to the next file
    /// number.
    range: Range<u64>,
    /// The oldest one that each column family needs.
    of_families: Vec<u64>,
}

impl Needed {
    /// The needed WALs that must be there if the last opening made this MANIFEST: `began` is what that opening began.
    /// Oldest first.
    fn named(&self, began: Option<Began>) -> Vec<u64> {
        let began = began.filter(|began| began.manifest == self.manifest);
        let of_opening = began.into_iter().flat_map(|began| [Some(began.log), began.kept]).flatten();
        // The log number of a column family without data is not advanced.
        let named = self.of_families.iter().copied().chain(of_opening).filter(|n| *n >= self.range.start);
        let named: BTreeSet<u64> = named.collect();
        named.into_iter().collect()
    }
}

/// What the MANIFEST of the database in `path` says about its WALs; `None` if it cannot be read.
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

/// What kind of opening looks for the WALs of a database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeker {
    /// It follows what another process writes.
    pub follows: bool,
    /// It takes what there is (`kSkipAnyCorruptedRecords`).
    pub takes_all: bool,
}

/// Where the WALs of a database are, compared with the directory in which an opening looks for them.
#[derive(Debug)]
pub(crate) enum Found {
    /// In that directory, as far as is known. They are what the last opening left.
    Here,
    /// In another directory, where none of them is needed.
    LeftBehind,
    /// In another directory that cannot be found; the database opens without it.
    Away {
        /// Nothing there is needed.
        flushed: bool,
        /// Something there may be needed, and the caller says that it is lost.
        given_up: bool,
        /// What the user should know about it.
        warning: Option<String>,
    },
}

impl Found {
    /// They are where they are expected, and those that the last opening noted must exist.
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Here)
    }

    /// Nothing is needed in the directory where they were, which cannot be found.
    pub fn is_flushed(&self) -> bool {
        matches!(self, Self::Away { flushed: true, .. })
    }

    /// They may be needed, and are left out for good.
    pub fn is_given_up(&self) -> bool {
        matches!(self, Self::Away { given_up: true, .. })
    }

    /// Logs what the user should know.
    pub fn log(&self, log: &InfoLog) {
        if let Self::Away { warning: Some(warning), .. } = self {
            log_warn!(log, "{warning}");
        }
    }
}

/// Where the WALs of a database are that an opening needs.
enum Place {
    /// Where it looks for them; or it opens without them.
    Found(Found),
    /// In the database's own directory, such as this one.
    Home(u64),
    /// In the directory that the note names, such as this one.
    Noted {
        own: Note,
        wal: u64,
        /// The last opening left them there, none of them is missing, and they are of no other database.
        whole: bool,
    },
}

/// Finds the WALs of the database in `path` for an opening that looks for them in `wal_dir`.
///
/// WALs that are not needed are left behind: `wal_dir` is turned off. But a secondary needs any WALs there, since the
/// other process may still write to them. Other openings see the database as it is at one moment. So does a copy whose
/// original exists and has deleted the WALs that it does not need itself. And if a needed WAL is missing there, the
/// directory is newer than the database, or has lost it.
fn look(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, seeker: Seeker) -> Result<Place> {
    if let Some(wal) = needed_at_home(fs, path, wal_dir, seeker.follows)? {
        return Ok(Place::Home(wal));
    }
    let Some((own, left)) = Note::read_left(fs, path)?.filter(|(own, _)| !own.other.as_os_str().is_empty()) else {
        return Ok(Place::Found(Found::Here));
    };
    if fs.same_file(&own.other, wal_dir).unwrap_or_else(|_| own.other == absolute(wal_dir)) {
        refuse_if_gone(fs, path, wal_dir)?;
        return Ok(Place::Found(Found::Here));
    }
    // A directory that is gone, cannot be read or belongs to another database is not that directory.
    let theirs = Note::read(fs, &own.other).ok().flatten();
    let Some(theirs) = theirs.filter(|theirs| theirs.token == own.token) else {
        return refuse_if_away(fs, path, wal_dir, (&own, left), seeker).map(Place::Found);
    };
    let names = fs.list_dir(&own.other);
    let names = names.map_err(|e| Error::io(format_args!("cannot list {}", own.other.display()), &e))?;
    let wals = wal_numbers(&names);
    let here = fs.list_dir(wal_dir).map(|names| wal_numbers(&names)).unwrap_or_default();
    let needed = needed_wals(fs, path);
    // Without a MANIFEST that can be read all may be needed.
    let from = needed.as_ref().map_or(0, |needed| needed.range.start);
    let is_known = needed.is_some();
    let began = needed.zip(own.last_began(left)).filter(|(needed, began)| began.manifest == needed.manifest);
    let named = began.map(|(needed, began)| needed.named(Some(began))).unwrap_or_default();
    // Somebody may have moved them to the expected place.
    let missing = named.iter().copied().find(|n| !wals.contains(n) && !here.contains(n));
    let is_copy = theirs.is_elsewhere(fs, path);
    let any = seeker.follows || is_copy;
    let wal = if any { wals.first().copied() } else { needed_of(fs, &own.other, &wals, from) };
    let Some(wal) = wal.or(missing) else { return Ok(Place::Found(Found::LeftBehind)) };
    let whole = is_known && !is_copy && left == Left::Open && named.iter().all(|n| wals.contains(n));
    Ok(Place::Noted { own, wal, whole })
}

/// Refuses to look for the WALs of the database in `path` in `wal_dir` while they are in the directory that it had
/// last: an opening would not see what is in them, and a later one would delete them. RocksDB opens.
pub(crate) fn refuse_if_elsewhere(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, seeker: Seeker) -> Result<Found> {
    match look(fs, path, wal_dir, seeker)? {
        Place::Found(found) => Ok(found),
        Place::Home(wal) => Err(Error::invalid_argument(format!(
            "{}: this database has WALs in its own directory, and wal_dir is {}: leave wal_dir empty, or move the WALs \
             there first ({})",
            path.display(),
            wal_dir.display(),
            path.join(filename::wal(wal)).display()
        ))),
        Place::Noted { own, wal, .. } => Err(Error::invalid_argument(format!(
            "{}: the WALs of this database are in {}, or were, such as {}, and wal_dir is {}: set wal_dir to that \
             directory (and flush all column families, to do without it from then on), or move the WALs. If this is a \
             copy that is to do without them, delete {}",
            path.display(),
            own.other.display(),
            filename::wal(wal),
            wal_dir.display(),
            path.join(WAL_OWNER).display()
        ))),
    }
}

/// For an opening that turns a fast path on or off, or moves it: the directory with the WALs of the last opening, if
/// any is needed. `None` also for openings that [`refuse_if_elsewhere`] refuses.
///
/// An opening that only names another `wal_dir`, or forgets it, is refused: RocksDB would lose the WALs, so whoever
/// changes that option has to know where they are.
pub(crate) fn dir_of_last(options: &DbOptions, path: &Path) -> Result<Option<PathBuf>> {
    let (fs, wal_dir) = (&*options.fs, wal_dir_of(options, path));
    let turns_on = misses_logs(options, path);
    let takes_all = options.wal_recovery_mode == RecoveryMode::SkipAnyCorruptedRecords;
    let dir = match look(fs, path, &wal_dir, Seeker { follows: false, takes_all })? {
        Place::Home(_) if turns_on => path.to_owned(),
        Place::Noted { own, whole: true, .. } if turns_on || own.began.is_some() => own.other,
        Place::Found(_) if turns_on => return refuse_if_stored(fs, path, &wal_dir).map(|()| None),
        _ => return Ok(None),
    };
    // A directory of somebody else is refused before anything changes. Where both directories have needed WALs,
    // somebody has moved some: an opening never leaves that.
    let mut here = Vec::new();
    if fs.exists(&wal_dir).map_err(|e| Error::io(wal_dir.display(), &e))? {
        check(fs, path, &wal_dir)?;
        check_unclaimed(fs, path, &wal_dir)?;
        let names = fs.list_dir(&wal_dir);
        here = wal_numbers(&names.map_err(|e| Error::io(format_args!("cannot list {}", wal_dir.display()), &e))?);
    }
    let from = needed_wals(fs, path).map_or(0, |needed| needed.range.start);
    Ok(needed_of(fs, &wal_dir, &here, from).is_none().then_some(dir))
}

/// Refuses to turn on a fast path in `wal_dir` while the OPTIONS file of the database in `path` names another directory
/// with WALs that its MANIFEST needs, and no note says that these are its own: RocksDB had it open. If the database is
/// a copy, they are the original's.
fn refuse_if_stored(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    let Some(dir) = stored_wal_dir(fs, path) else { return Ok(()) };
    let is_given = fs.same_file(&dir, wal_dir).unwrap_or_else(|_| absolute(&dir) == absolute(wal_dir));
    if is_given || !fs.exists(&dir).unwrap_or(false) {
        return Ok(());
    }
    let is_its_own = || check(fs, path, &dir).and_then(|()| check_unclaimed(fs, path, &dir)).is_ok();
    let (Some(needed), true) = (needed_wals(fs, path), is_its_own()) else { return Ok(()) };
    let names = fs.list_dir(&dir).map_err(|e| Error::io(format_args!("cannot list {}", dir.display()), &e))?;
    let Some(wal) = needed_of(fs, &dir, &wal_numbers(&names), needed.range.start) else { return Ok(()) };
    Err(Error::invalid_argument(format!(
        "{}: its OPTIONS file names the wal_dir {}, where WALs may be needed, such as {}: open it once with that wal_dir, \
         and without a fast path. If this is a copy, and they are the original's, open it once with neither",
        path.display(),
        dir.display(),
        filename::wal(wal)
    )))
}

/// True if the last opening of the database in `path` for writing by Rockmill had a fast path.
pub(crate) fn had_fast_path(fs: &dyn FileSystem, path: &Path) -> Result<bool> {
    Ok(Note::read(fs, path)?.is_some_and(|own| own.began.is_some()))
}

/// The same if the directory that it had last cannot be found: it does not exist, cannot be read, or has nothing of
/// this database. Its device is not mounted, or is mounted elsewhere.
///
/// This is the only case in which the WALs cannot be examined. Only the note of the last opening says what they are
/// ([`Note::left`]), and only as long as nobody else has opened the database for writing. RocksDB looks for no WALs, so
/// after it nothing can tell what the directory has: then the database opens, as RocksDB opens it, with a warning.
fn refuse_if_away(
    fs: &dyn FileSystem,
    path: &Path,
    wal_dir: &Path,
    (own, left): (&Note, Left),
    seeker: Seeker,
) -> Result<Found> {
    // Before the directory is listed: there is always a WAL with such a number, or a later one.
    let Some(needed) = needed_wals(fs, path) else { return Ok(Found::Here) };
    let here = fs.list_dir(wal_dir).map(|names| wal_numbers(&names)).unwrap_or_default();
    let named = needed.named(own.last_began(left));
    // If another program has opened the database since, the WALs in `wal_dir` may be that program's.
    if is_renamed(fs, path, wal_dir, own, &here, needed.range.start)
        || (left != Left::Changed && are_moved(fs, wal_dir, &here, &named, needed.range.start))
    {
        return Ok(Found::Here);
    }
    let first = named.iter().find(|n| !here.contains(n)).map_or(needed.range.start, |n| *n);
    let lost = format!("{} and later ones are missing", own.other.join(filename::wal(first)).display());
    let (path, other, wal_dir) = (path.display(), own.other.display(), wal_dir.display());
    let warning = match left {
        Left::Flushed => return Ok(Found::Away { flushed: true, given_up: false, warning: None }),
        Left::Unknown => None,
        Left::Changed => Some(format!(
            "the WALs of this database were in {other}, which cannot be found. Somebody has opened it since, and did \
             not note where its WALs were then: what the WALs there hold is left out, if it was needed"
        )),
        Left::Open if seeker.takes_all => {
            Some(format!("the WALs of this database in {other} are left out, for {lost}: wal_recovery_mode says so"))
        }
        Left::Open => {
            return Err(Error::invalid_argument(format!(
                "{path}: the WALs of this database are in {other}, where nothing of it can be found, and wal_dir is \
                 {wal_dir}: {lost}. Is the device mounted? Mount it, and open the database with wal_dir or fast_path \
                 set to that directory, or to where it is now. If these WALs are lost, open the database once with \
                 wal_recovery_mode kSkipAnyCorruptedRecords, which goes on without what was in them"
            )));
        }
    };
    Ok(Found::Away { flushed: false, given_up: left == Left::Open, warning })
}

/// True if `wal_dir`, which has the WALs `here`, is the directory of the note `own` under another name. A directory
/// that the database had before that has only WALs below `from`.
fn is_renamed(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, own: &Note, here: &[u64], from: u64) -> bool {
    let is_home = fs.same_file(path, wal_dir).unwrap_or(path == wal_dir);
    !is_home && own.is_of(fs, wal_dir) && here.iter().any(|n| *n >= from)
}

/// True if somebody moved WALs to `wal_dir`, which has the WALs `here`: it has all that are `named`, or one that is
/// needed.
fn are_moved(fs: &dyn FileSystem, wal_dir: &Path, here: &[u64], named: &[u64], from: u64) -> bool {
    (!named.is_empty() && named.iter().all(|n| here.contains(n))) || needed_of(fs, wal_dir, here, from).is_some()
}

/// For a database that is repaired with the WALs in `wal_dir`: the other directory with WALs that may be needed, if
/// there is one and they are not in `wal_dir` as well.
pub(crate) fn needed_elsewhere(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<Option<PathBuf>> {
    let own = Note::read_left(fs, path)?.filter(|(own, left)| *left == Left::Open && !own.other.as_os_str().is_empty());
    let Some((own, left)) = own else { return Ok(None) };
    if fs.same_file(&own.other, wal_dir).unwrap_or_else(|_| own.other == absolute(wal_dir)) {
        return Ok(None);
    }
    let names = fs.list_dir(wal_dir).map_err(|e| Error::io(format_args!("cannot list {}", wal_dir.display()), &e))?;
    let here = wal_numbers(&names);
    // Without a MANIFEST that can be read all may be needed.
    let needed = needed_wals(fs, path);
    let from = needed.as_ref().map_or(0, |needed| needed.range.start);
    let named = needed.map(|needed| needed.named(own.last_began(left))).unwrap_or_default();
    let found = is_renamed(fs, path, wal_dir, &own, &here, from) || are_moved(fs, wal_dir, &here, &named, from);
    Ok((!found).then_some(own.other))
}

/// The same if the directory is the one that it had last, and it is missing or has nothing of the database: its device
/// is not there. An opening would create a new directory, and lose what only the WALs have.
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
         open the database without them. To read it without them, leave wal_dir and fast_path empty, and set \
         wal_recovery_mode to kSkipAnyCorruptedRecords",
        wal_dir.display(),
        path.display(),
        path.join(WAL_OWNER).display()
    )))
}

/// A needed WAL in the database's own directory, if that is not `wal_dir`: there was no `wal_dir` before.
fn needed_at_home(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, follows: bool) -> Result<Option<u64>> {
    if fs.same_file(path, wal_dir).unwrap_or(path == wal_dir) {
        return Ok(None);
    }
    let names = fs.list_dir(path).map_err(|e| Error::io(format_args!("cannot list {}", path.display()), &e))?;
    let wals = wal_numbers(&names);
    if wals.is_empty() {
        return Ok(None);
    }
    let Some(Needed { range: needed, .. }) = needed_wals(fs, path) else { return Ok(None) };
    Ok(match follows {
        true => wals.into_iter().find(|n| *n >= needed.start),
        false => needed_of(fs, path, &wals, needed.start),
    })
}

/// Forgets what the last opening of the database in `path` noted, and where its WALs were unless that is `wal_dir`:
/// another database takes its place, which has its WALs in `wal_dir`.
pub(crate) fn forget_elsewhere(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    let Some(own) = Note::read(fs, path)? else { return Ok(()) };
    if fs.same_file(&own.other, wal_dir).unwrap_or(own.other == wal_dir) {
        let is_noted = own.began.is_some() || own.stand.is_some();
        return if is_noted { Note::new(own.token, own.other).write(fs, path) } else { Ok(()) };
    }
    let note = path.join(WAL_OWNER);
    fs.remove(&note).map_err(|e| Error::io(format_args!("cannot remove {}", note.display()), &e))
}

fn holds_wals(fs: &dyn FileSystem, wal_dir: &Path) -> Result<bool> {
    let names = fs.list_dir(wal_dir).map_err(|e| Error::io(format_args!("cannot list {}", wal_dir.display()), &e))?;
    Ok(!wal_numbers(&names).is_empty())
}

/// The first WAL in `dir` that has updates and is not below `from`; tables have the data of those below.
fn needed_of(fs: &dyn FileSystem, dir: &Path, wals: &[u64], from: u64) -> Option<u64> {
    wals.iter().copied().filter(|&n| n >= from).find(|&n| match has_updates(fs, &dir.join(filename::wal(n)), n) {
        // It was deleted after it was listed, so it was not needed.
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
        Ok(updates) => updates,
    })
}

/// Notes that the database in `path`, which is restored and has all its files but CURRENT, has WALs in `wal_dir` that
/// may be needed.
pub(crate) fn note_restored(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    let Some(mut own) = Note::read(fs, path)? else { return Ok(()) };
    if !holds_wals(fs, wal_dir)? {
        return Ok(());
    }
    own.set_open(fs, path)?;
    own.write(fs, path)
}

/// From now on the database in `path` has its WALs in its own directory and needs none of those elsewhere (`found` says
/// where they were). The token stays, so that the other directory can become its own again; but not after that
/// directory was given up, which is noted by now.
pub(crate) fn leave_elsewhere(fs: &dyn FileSystem, path: &Path, found: &Found) -> Result<()> {
    let Some(own) = Note::read(fs, path)?.filter(|own| !own.other.as_os_str().is_empty()) else { return Ok(()) };
    // A directory that is missing, or belongs to somebody else now, may be needed when it is there again.
    match found.is_flushed() || own.is_of(fs, &own.other) {
        true => Note::new(own.token, PathBuf::new()).write(fs, path),
        false if own.began.is_some() || own.stand.is_some() => Note::new(own.token, own.other).write(fs, path),
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

/// Locks the WAL directory and makes it the database's, whose own lock is held. `found` says where its WALs were.
/// `token` is a new token, for a database without one.
pub(crate) fn claim(
    fs: &dyn FileSystem,
    path: &Path,
    wal_dir: &Path,
    token: String,
    found: &Found,
) -> Result<Box<dyn FileLock>> {
    // Checked before the lock as well: locking would leave a file in a directory that belongs to somebody else.
    check(fs, path, wal_dir)?;
    check_unclaimed(fs, path, wal_dir)?;
    let lock = lock(fs, wal_dir)?;
    check(fs, path, wal_dir)?;
    check_unclaimed(fs, path, wal_dir)?;
    mark(fs, path, wal_dir, token, found)?;
    Ok(lock)
}

/// Writes which database the WAL directory belongs to; it is locked.
pub(crate) fn mark(fs: &dyn FileSystem, path: &Path, wal_dir: &Path, token: String, found: &Found) -> Result<()> {
    for dir in [path, wal_dir] {
        let _ = fs.remove(&dir.join(format!("{WAL_OWNER}.dbtmp"))); // what a crash left
    }
    let own = Note::read(fs, path)?;
    let theirs = Note::read(fs, wal_dir)?;
    let token = match &own {
        None => token,
        Some(own) if found.is_given_up() => own.next_token(),
        Some(own) => own.token.clone(),
    };
    let (database, wals) = (absolute(path), absolute(wal_dir));
    // The token goes into the database's file first: a WAL directory with a token that no database has would belong to
    // nobody. The directory's name is added last: a directory that is named and has no file is treated as one whose
    // device is gone.
    if own.is_none() {
        Note::new(token.clone(), PathBuf::new()).write(fs, path)?;
    }
    if theirs.is_none_or(|theirs| theirs.token != token || theirs.other != database) {
        Note::new(token.clone(), database).write(fs, wal_dir)?;
    }
    // What is given up is needed until the opening has a MANIFEST: `OwnNote::give_up`.
    if !found.is_given_up() && own.as_ref().is_none_or(|own| own.other != wals) {
        // Recovery may refuse after this, and the next opening must refuse for the same reason. What the last opening
        // left elsewhere says nothing about this directory.
        let (began, stand) = own.filter(|_| found.is_here()).map_or((None, None), |own| (own.began, own.stand));
        let mut note = Note::new(token, wals);
        (note.began, note.stand) = (began, stand);
        note.write(fs, path)?;
    }
    Ok(())
}

/// Called when an opening for writing or a repair begins. An earlier opening may have been interrupted while it gave up
/// WALs: this decides whether they are given up.
pub(crate) fn settle(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    Note::settle(fs, path)
}

/// The directory that the note of a database with its WALs in `wal_dir` names; empty if that is its own directory.
pub(crate) fn other_of(path: &Path, wal_dir: &Path) -> PathBuf {
    if path == wal_dir { PathBuf::new() } else { absolute(wal_dir) }
}

/// Absolute, since commands run in any directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses unclaimed WALs in a place without a database where one is to be restored.
pub(crate) fn check_before_restore(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    check_unclaimed(fs, path, wal_dir)?;
    let is_there = fs.exists(&path.join(filename::CURRENT)).unwrap_or(true);
    // An interrupted restore left its claim.
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

/// Refuses a WAL directory that only the files of the database in `path` name, since anybody may have written them. It
/// is accepted if it lies in the database's directory, or says itself that it belongs to this database.
pub(crate) fn refuse_unasked(fs: &dyn FileSystem, path: &Path, wal_dir: &Path) -> Result<()> {
    if is_inside(fs, path, wal_dir) {
        return Ok(());
    }
    let own = Note::read(fs, path).ok().flatten();
    let theirs = Note::read(fs, wal_dir).ok().flatten();
    // The token alone proves nothing: it may have been read there and copied here.
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

impl DbInner {
    /// The database is closed, and its last write is in the WALs: if none of them is needed, notes that.
    pub(crate) fn note_closed(&self) {
        let is_flushed = {
            let state = self.state.lock();
            state.errors().of_writes().is_none() && state.oldest_log().is_none()
        };
        // Without the note the next opening asks for the WALs, needed or not.
        if is_flushed && let Err(e) = self.opened.note().flushed(&*self.opts.fs, &self.path) {
            log_warn!(self.log, "it is not noted that all WALs were flushed: {e}");
        }
    }
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

    /// For programs that open other people's databases with the options stored there: refuses a directory (a `wal_dir`,
    /// or a `db_log_dir`) that the OPTIONS file of the database in `path` names, if following it would lead to files of
    /// somebody else. It must lie in `path`, without a link on the way, or have a file `WAL_OWNER` that names this
    /// database. There is such a file if Rockmill made the WALs and the database was not moved since.
    ///
    /// An open does not check this: it takes the options that it is given as the caller's decision.
    pub fn check_stored_path(options: &Options, path: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<()> {
        refuse_unasked(&*options.db.fs, path.as_ref(), dir.as_ref())
    }
}

/// Where the WALs of the database in `path` are according to its own files: the newest OPTIONS file or, if that is
/// missing or unreadable, the file `WAL_OWNER`. `None` if it is the database's own directory, or no file says it.
/// RocksDB before 6.23 wrote the path of the database's own directory into OPTIONS: if that path does not exist, the
/// database was moved or copied.
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
