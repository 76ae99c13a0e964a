//! Checkpoints: a separate database with the state of this one at one moment; tables are shared by hard links.
//!
//! 1. Memtables are flushed, unless the WAL is small and the caller prefers to have it copied.
//! 2. Under write leadership, so between two write groups: versions, counters, WALs and their lengths are noted.
//! 3. Without any lock: tables are linked, WALs copied as far as noted, a MANIFEST of the noted state written. Files
//!    are not deleted meanwhile.
//! 4. All this happens in `<path>.tmp`, which takes its name when everything in it is durable: after a crash there is
//!    a whole checkpoint or none. Until then the directory is locked and holds a file that says it is unfinished. A
//!    directory with that file and without a lock was left by a crash and is removed; any other directory of that name
//!    belongs to somebody, and `<path>.1.tmp` or the next free name is used instead.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill_format::checksum::crc32c_extend;
use rockmill_format::edit::VersionEdit;
use rockmill_format::filename::{self, FileType};
use rockmill_io::{Entry, EntryKind, FileLock, FileSystem};

use crate::db::files::deletion::DeletionsOff;
use crate::db::{Db, DbInner};
use crate::error::{Error, ErrorKind, Result};
use crate::event_listener::BackgroundErrorReason;
use crate::options::file::with_wal_dir;
use crate::options::load::latest_options_file;
use crate::version::{FileMeta, ManifestWriter, Version, each_file_in};

/// Bytes copied at a time.
const COPY_BYTES: usize = 256 << 10;

/// Makes checkpoints of an open database (`rocksdb::checkpoint::Checkpoint`).
///
/// ```
/// # fn main() -> rockmill::Result<()> {
/// # let scratch = tempfile::tempdir().expect("a temporary directory");
/// # let dir = scratch.path().join("db");
/// # let options = rockmill::Options::default();
/// # for d in ["db", "copy"] { rockmill::Db::destroy(&options, dir.join(d))?; }
/// let db = rockmill::Db::open_default(dir.join("db"))?;
/// db.put("k", "v")?;
/// rockmill::Checkpoint::new(&db)?.create_checkpoint(dir.join("copy"))?;
/// let copy = rockmill::Db::open_default(dir.join("copy"))?;
/// assert_eq!(copy.get("k")?.as_deref(), Some(&b"v"[..]));
/// # drop((db, copy));
/// # for d in ["db", "copy"] { rockmill::Db::destroy(&options, dir.join(d))?; }
/// # let _ = std::fs::remove_dir(dir);
/// # Ok(()) }
/// ```
pub struct Checkpoint<'db> {
    pub(crate) db: &'db Db,
}

impl std::fmt::Debug for Checkpoint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checkpoint").field(self.db).finish()
    }
}

/// The database at one moment.
pub(crate) struct Moment {
    /// What a MANIFEST of its own says, in a directory that all tables are copied to.
    pub edits: Vec<VersionEdit>,
    pub versions: Vec<Arc<Version>>,
    /// Number and length of the WALs whose data is in no table.
    pub wals: Vec<(u64, u64)>,
}

impl<'db> Checkpoint<'db> {
    /// Prepares to make checkpoints of `db`; an error if it was opened read-only.
    pub fn new(db: &'db Db) -> Result<Self> {
        db.inner.check_writable()?;
        Ok(Self { db })
    }

    /// Makes a checkpoint in the directory `path`, which must not exist; its parent must. The memtables of every
    /// column family are flushed first. Batches written meanwhile may be in it or not, but always whole, and never a
    /// later one without the earlier ones.
    ///
    /// Tables are hard links if `path` is on the same file system, and copies otherwise.
    pub fn create_checkpoint(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_checkpoint_with_log_size(path, 0)
    }

    /// As [`Self::create_checkpoint`]; flushes only if the WALs have `log_size_for_flush` bytes or more, and copies
    /// them otherwise. 0 always flushes, `u64::MAX` never; without a flush, data written with `disable_wal` is not in
    /// the checkpoint.
    pub fn create_checkpoint_with_log_size(&self, path: impl AsRef<Path>, log_size_for_flush: u64) -> Result<()> {
        let db = &*self.db.inner;
        let flush = || if wants_flush(db, log_size_for_flush) { self.db.flush_all() } else { Ok(()) };
        self.stage(path.as_ref(), "checkpoint", flush, |temp| fill(db, temp))
    }

    /// Makes a directory under another name first: `prepare`, then `fill` it while no file is deleted, then rename it.
    pub(crate) fn stage<T>(
        &self,
        path: &Path,
        what: &str,
        prepare: impl FnOnce() -> Result<()>,
        fill: impl FnOnce(&Path) -> Result<T>,
    ) -> Result<T> {
        let db = &*self.db.inner;
        let fs = &db.opts.fs;
        let (Some(name), false) = (path.file_name(), path.as_os_str().is_empty()) else {
            return Err(Error::invalid_argument(format!(
                "{}: not a name for the directory of a new {what}",
                path.display()
            )));
        };
        if fs.exists(path).map_err(|e| Error::io(path.display(), &e))? {
            return Err(Error::invalid_argument(format!(
                "{}: exists; a new {what} needs a new directory",
                path.display()
            )));
        }
        let failed = |e: Error| e.context(format_args!("cannot make the {what} {}", path.display()));
        prepare().map_err(failed)?;
        let (temp, lock) = staging_dir(db, path, name).map_err(failed)?;
        let deletions_off = DeletionsOff::new(db);
        let done = fill(&temp).and_then(|filled| {
            let parent = match path.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            let finished = fs
                .remove(&temp.join(UNFINISHED))
                .and_then(|()| fs.remove(&temp.join(filename::LOCK)))
                .and_then(|()| fs.sync_dir(&temp));
            finished.map_err(|e| Error::io(format_args!("cannot finish {}", temp.display()), &e))?;
            let renamed = fs.rename(&temp, path).and_then(|()| fs.sync_dir(parent));
            renamed.map_err(|e| Error::io(format_args!("cannot rename {}", temp.display()), &e))?;
            Ok(filled)
        });
        drop(deletions_off);
        let done = done.map_err(|e| {
            let _ = remove_staging_dir(db, &temp); // the next attempt removes it otherwise
            failed(e)
        });
        drop(lock);
        done
    }
}

fn wants_flush(db: &DbInner, log_size_for_flush: u64) -> bool {
    match log_size_for_flush {
        0 => true,
        u64::MAX => false,
        limit => {
            let left = db.state.lock().logs().left_bytes();
            left + db.front.log_size() >= limit
        }
    }
}

/// Notes the state between two write groups.
pub(crate) fn moment(db: &DbInner) -> Result<Moment> {
    let _alone = db.lead_alone();
    // Only a leader begins a WAL or writes to it. Records that `manual_wal_flush` gathered count as written, so they
    // must be in the checkpoint.
    let in_use = db.front.flush_in_use().inspect_err(|e| {
        db.set_background_error(BackgroundErrorReason::WriteCallback, "a write to the WAL", e);
    })?;
    let state = db.state.lock();
    let mut edits = db.snapshot_edits(&state);
    // A copy has all tables in one directory, its first path.
    for (_, table) in edits.iter_mut().flat_map(|edit| &mut edit.new_files) {
        table.path_id = 0;
        table.pieces.iter_mut().for_each(|piece| piece.path_id = 0);
    }
    let needed = state.least_log_number().unwrap_or(0);
    let wals = state.logs().lengths(in_use).filter(|&(n, size)| n >= needed && size > 0).collect();
    Ok(Moment { edits, versions: state.families().map(|c| Arc::clone(c.version())).collect(), wals })
}

impl DbInner {
    /// Where a WAL is that a [`Moment`] has.
    pub(crate) fn log_path(&self, number: u64) -> PathBuf {
        self.front.log_path(number)
    }
}

/// Creates the whole checkpoint in `dir`; everything except the directory's own name is durable.
fn fill(db: &DbInner, dir: &Path) -> Result<()> {
    let fs = &db.opts.fs;
    fs.create_dir(dir, false).map_err(|e| Error::io(format_args!("cannot create {}", dir.display()), &e))?;
    // Before the moment, so that it is below the next file number that the checkpoint records.
    let manifest = db.new_file_number();
    let now = moment(db)?;
    link_tables(db, now.versions.iter().flat_map(|v| v.levels.iter().flatten()), dir)?;
    for &(number, size) in &now.wals {
        let name = filename::wal(number);
        let wal = db.log_path(number);
        copy_checked(db, &wal, &dir.join(&name), size, Some(&wal))?;
    }
    if let Some(options) = newest_options(db)? {
        let to = dir.join(&options.name);
        match options.rewritten {
            None => {
                let from = db.path.join(&options.name);
                copy_checked(db, &from, &to, options.size, Some(&from))?;
            }
            Some(text) => fs
                .write_all(&to, text.as_bytes())
                .map_err(|e| Error::io(format_args!("cannot write {}", to.display()), &e))?,
        }
    }
    let identity = dir.join(filename::IDENTITY);
    fs.write_all(&identity, db.opened.db_id().as_bytes())
        .map_err(|e| Error::io(format_args!("cannot write {}", identity.display()), &e))?;
    // Syncs the directory, then points CURRENT at the MANIFEST.
    ManifestWriter::create(fs, dir, manifest, &now.edits)?;
    Ok(())
}

/// Gives the files of tables a second name in `dir`, or copies them if that is impossible.
pub(crate) fn link_tables<'f>(
    db: &DbInner,
    tables: impl IntoIterator<Item = &'f Arc<FileMeta>>,
    dir: &Path,
) -> Result<()> {
    let mut link = true;
    for (dirs, file) in each_file_in(tables) {
        let from = db.table_path(dirs, file);
        let Some(name) = from.file_name() else { continue };
        let to = dir.join(name);
        if link {
            match db.opts.fs.hard_link(&from, &to) {
                Ok(()) => continue,
                Err(e) if cannot_link(&e) => link = false,
                Err(e) => {
                    return Err(Error::io(format_args!("cannot link {} to {}", from.display(), to.display()), &e));
                }
            }
        }
        copy(db, &from, &to, file.size, Some(&from))?;
    }
    Ok(())
}

/// The OPTIONS file of a copy.
pub(crate) struct CopiedOptions {
    pub name: String,
    /// Of the database's own file.
    pub size: u64,
    /// The text, where it is not that file's: a copy holds its WALs itself.
    pub rewritten: Option<String>,
}

/// The newest OPTIONS file in the form that a copy of the database has; `None` if there is none.
pub(crate) fn newest_options(db: &DbInner) -> Result<Option<CopiedOptions>> {
    let fs = &db.opts.fs;
    let Some((number, path)) = latest_options_file(&**fs, &db.path)? else { return Ok(None) };
    let size = fs.file_size(&path).map_err(|e| Error::io(path.display(), &e))?;
    let text = fs.read_to_vec(&path).map_err(|e| Error::io(format_args!("cannot read {}", path.display()), &e))?;
    let rewritten = String::from_utf8(text).ok().and_then(|text| with_wal_dir(&text, ""));
    Ok(Some(CopiedOptions { name: filename::options(number), size, rewritten }))
}

/// True where a copy can do what a hard link cannot.
pub(crate) fn cannot_link(e: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(e.kind(), CrossesDevices | PermissionDenied | TooManyLinks | Unsupported)
}

/// Copies the first `size` bytes of a file; the contents are durable, the name is not. The copy is as private as other
/// files of the database, and as `like` where that is given.
pub(crate) fn copy(db: &DbInner, from: &Path, to: &Path, size: u64, like: Option<&Path>) -> Result<()> {
    let fs = &db.opts.fs;
    let copied = (|| -> io::Result<()> {
        let how = like.map(|file| fs.like(file)).transpose()?.unwrap_or_default();
        let mut target = fs.create(to, how)?;
        read_start(&**fs, from, size, &mut |bytes| target.append(bytes))?;
        target.sync()?;
        target.close()
    })();
    copied.map_err(|e| Error::io(format_args!("cannot copy {} to {}", from.display(), to.display()), &e))
}

/// The same, and compares by reading the file a second time, since a bit that flips on the way would be in the copy for
/// good. For copies in which nothing else would detect that (a damaged WAL looks cut off), or that are to be the only
/// ones.
pub(crate) fn copy_checked(db: &DbInner, from: &Path, to: &Path, size: u64, like: Option<&Path>) -> Result<()> {
    copy(db, from, to, size, like)?;
    let fs = &*db.opts.fs;
    let checksum = |path: &Path| -> io::Result<u32> {
        let mut crc = 0;
        read_start(fs, path, size, &mut |bytes| {
            crc = crc32c_extend(crc, bytes);
            Ok(())
        })?;
        Ok(crc)
    };
    let failed = |e| Error::io(format_args!("cannot compare {} with {}", to.display(), from.display()), &e);
    if checksum(from).map_err(failed)? == checksum(to).map_err(failed)? {
        return Ok(());
    }
    let _ = fs.remove(to);
    let what = "reads differently the second time: the disk, what is between, or the memory fails";
    Err(Error::new(ErrorKind::IOError, format!("{}: {what}; it was not copied", from.display())))
}

/// Hands on the first `size` bytes of a file.
fn read_start(
    fs: &dyn FileSystem,
    path: &Path,
    size: u64,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut source = fs.open_sequential(path)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut left = size;
    while left > 0 {
        let want = left.min(COPY_BYTES as u64) as usize;
        let n = source.read(&mut buffer[..want])?;
        if n == 0 {
            let what = format!("{left} of {size} bytes are missing");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        take(&buffer[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// In a directory that is being made, until it is whole.
const UNFINISHED: &str = "ROCKMILL_UNFINISHED";
/// What it says, to people.
const UNFINISHED_TEXT: &str = "A checkpoint or export of Rockmill that is being made, or that a crash cut short.\n";
/// Names that are tried for it.
const STAGING_NAMES_MAX: usize = 1000;

/// Creates the locked directory in which the one at `path` is prepared. Its name is next to `path` and unused, or left
/// by an earlier attempt whose process died.
fn staging_dir(db: &DbInner, path: &Path, name: &OsStr) -> Result<(PathBuf, Box<dyn FileLock>)> {
    let fs = &db.opts.fs;
    for n in 0..STAGING_NAMES_MAX {
        let mut temp_name = name.to_owned();
        temp_name.push(if n == 0 { ".tmp".to_owned() } else { format!(".{n}.tmp") });
        let temp = path.with_file_name(temp_name);
        let failed = |e| Error::io(format_args!("cannot create {}", temp.display()), &e);
        let marker = temp.join(UNFINISHED);
        // A directory of another user would give that user access to the copy, and a link would lead it elsewhere.
        let there = match fs.entry(&temp).map_err(failed)? {
            None => false,
            Some(Entry { kind: EntryKind::Directory, ours: true, .. }) if fs.exists(&marker).map_err(failed)? => true,
            Some(_) => continue,
        };
        if !there {
            match fs.create_new_dir(&temp) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(failed)?,
            }
        }
        let lock = match fs.lock(&temp.join(filename::LOCK)) {
            Ok(lock) => lock,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue, // it is being made now
            Err(e) => return Err(failed(e)),
        };
        if there {
            // It was finished meanwhile and is being renamed.
            if !fs.exists(&marker).map_err(failed)? {
                continue;
            }
            remove_contents(db, &temp)?;
        }
        // It is durable before anything else, so that what a power cut leaves can be distinguished from somebody's
        // directory.
        fs.write_all(&marker, UNFINISHED_TEXT.as_bytes()).and_then(|()| fs.sync_dir(&temp)).map_err(failed)?;
        return Ok((temp, lock));
    }
    let what = format!("{STAGING_NAMES_MAX} names like {}.tmp are taken: remove what is not needed", path.display());
    Err(Error::invalid_argument(what))
}

/// Removes the files of a database from a directory that is being made.
fn remove_contents(db: &DbInner, dir: &Path) -> Result<()> {
    let fs = &db.opts.fs;
    let failed = |e| Error::io(format_args!("cannot remove {}", dir.display()), &e);
    for name in fs.list_dir(dir).map_err(failed)? {
        if filename::parse(&name).is_some_and(|t| t != FileType::Lock) {
            fs.remove(&dir.join(&name)).map_err(failed)?;
        }
    }
    Ok(())
}

/// Removes a directory that [`staging_dir`] made; its marker file is removed last.
fn remove_staging_dir(db: &DbInner, dir: &Path) -> Result<()> {
    let fs = &db.opts.fs;
    let failed = |e| Error::io(format_args!("cannot remove {}", dir.display()), &e);
    if !fs.exists(dir).map_err(failed)? {
        return Ok(()); // it has its name already
    }
    remove_contents(db, dir)?;
    for name in [filename::LOCK, UNFINISHED] {
        match fs.remove(&dir.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    fs.remove_dir(dir).map_err(failed)
}
