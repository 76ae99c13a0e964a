//! Shared by the tests of databases without their WAL directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rockmill::{Db, IteratorMode, Options, RecoveryMode, WriteOptions};
use rockmill_io::{FileSystem, MemFileSystem};

/// Options of a database whose WALs are in its own directory.
pub fn plain(fs: &MemFileSystem) -> Options {
    let mut o = Options::default();
    o.create_if_missing(true);
    o.set_file_system(Arc::new(fs.clone()));
    // As a secondary needs it.
    o.set_max_open_files(-1);
    o
}

/// A way to have the WALs in a separate directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With `fast_path`.
    FastPath,
    /// With `wal_dir`.
    WalDir,
}

/// Both ways.
pub const WAYS: [Way; 2] = [Way::FastPath, Way::WalDir];

impl Way {
    /// Options for WALs in `dir`.
    pub fn apart(self, fs: &MemFileSystem, dir: &str) -> Options {
        let mut o = plain(fs);
        match self {
            Self::FastPath => {
                o.set_fast_path(dir, 1 << 30);
                // No flush comes by itself.
                o.set_data_flush_trigger_size(1 << 30);
            }
            Self::WalDir => o.set_wal_dir(dir),
        }
        o
    }
}

/// These options, with the recovery mode that ignores missing WALs.
pub fn taking_all(mut o: Options) -> Options {
    o.set_wal_recovery_mode(RecoveryMode::SkipAnyCorruptedRecords);
    o
}

/// A way to open, and its name. The last one writes.
pub type Opening = (&'static str, fn(&Options) -> rockmill::Result<Db>);

pub const OPENINGS: [Opening; 3] = [
    ("a secondary", |o| Db::open_as_secondary(o, "/db", "/second")),
    ("for reading", |o| Db::open_for_read_only(o, "/db", false)),
    ("for writing", |o| Db::open(o, "/db")),
];

/// The key of a write.
pub fn key(i: usize) -> String {
    format!("key{i:05}")
}

/// Its value.
pub fn value(i: usize) -> Vec<u8> {
    vec![b'a' + (i % 26) as u8; 100 + i % 300]
}

/// Writes these.
pub fn write(db: &Db, range: std::ops::Range<usize>) {
    range.for_each(|i| db.put(key(i), value(i)).expect("a put"));
}

/// A closed database with 20 entries in tables and 30 more in its WALs, in a separate directory.
pub fn half_flushed(way: Way) -> MemFileSystem {
    let fs = MemFileSystem::new();
    let db = Db::open(&way.apart(&fs, "/fast"), "/db").expect("open");
    write(&db, 0..20);
    db.flush().expect("a flush");
    write(&db, 20..50);
    fs
}

/// Write options with which a power cut loses nothing.
pub fn synced() -> WriteOptions {
    let mut o = WriteOptions::default();
    o.set_sync(true);
    o
}

/// Number of existing writes; checks that they are the first ones.
pub fn prefix(db: &Db, what: &str) -> usize {
    let all = db.iterator(IteratorMode::Start).map(|e| e.expect("an entry"));
    let mut count = 0;
    for (i, (k, v)) in all.enumerate() {
        assert_eq!((&k[..], &v[..]), (key(i).as_bytes(), &value(i)[..]), "{what}: no prefix");
        count = i + 1;
    }
    count
}

/// The files of a directory by name, without info logs.
pub fn files(fs: &MemFileSystem, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let names = fs.list_dir(Path::new(dir)).unwrap_or_default().into_iter();
    let contents = |name: &String| fs.read_to_vec(&Path::new(dir).join(name)).expect("a file");
    names.filter(|name| !name.starts_with("LOG")).map(|name| (name.clone(), contents(&name))).collect()
}

/// Unmounts `/fast`: its mount point is empty, or also missing.
pub fn unmount(fs: &MemFileSystem, mount_point: bool) {
    fs.rename(Path::new("/fast"), Path::new("/away")).expect("a rename");
    if mount_point {
        fs.create_dir(Path::new("/fast"), true).expect("a directory");
    }
}

/// Mounts it again.
pub fn mount(fs: &MemFileSystem) {
    let _ = fs.remove_dir(Path::new("/fast"));
    fs.rename(Path::new("/away"), Path::new("/fast")).expect("a rename");
}

/// Copies files of a directory.
pub fn copy(fs: &MemFileSystem, from: &str, to: &str, which: impl Fn(&str) -> bool) {
    fs.create_dir(Path::new(to), true).expect("a directory");
    for (name, contents) in files(fs, from).into_iter().filter(|(name, _)| which(name)) {
        fs.write_all(&Path::new(to).join(name), &contents).expect("a write");
    }
}

/// True for the name of a WAL.
pub fn is_log(name: &str) -> bool {
    name.ends_with(".log")
}

/// What the last opening told people.
pub fn log(fs: &MemFileSystem, dir: &str) -> String {
    String::from_utf8_lossy(&fs.read_to_vec(&Path::new(dir).join("LOG")).expect("a LOG")).into_owned()
}

/// The beginning of a warning about ignored WALs.
pub const WARNING: &str = "the WALs of this database ";

/// True if a line of the database's note begins with this word.
pub fn noted(fs: &MemFileSystem, word: &str) -> bool {
    let note = String::from_utf8(fs.read_to_vec(Path::new("/db/WAL_OWNER")).expect("a note")).expect("text");
    note.lines().any(|line| line.split(' ').next() == Some(word))
}

/// The OPTIONS files, oldest first.
pub fn options_files(fs: &MemFileSystem) -> Vec<PathBuf> {
    let mut names = fs.list_dir(Path::new("/db")).expect("a list");
    names.retain(|name| name.starts_with("OPTIONS-") && !name.ends_with(".dbtmp"));
    names.sort();
    names.into_iter().map(|name| Path::new("/db").join(name)).collect()
}
