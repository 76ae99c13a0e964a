//! Whole directories from somebody else: damaged files, odd modes, and directories, links, FIFOs, devices and options
//! in place of files of a database or its backups. No operation may change anything outside the directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rockmill_format::hash::hash64;

use crate::crafted;
use crate::fixtures::{self, Fixture};
use crate::mutate::{self, Dice};

/// Names that a program may create in a database, or in a directory of backups.
const MADE: [&str; 12] = [
    "CURRENT",
    "IDENTITY",
    "LOCK",
    "LOG",
    "LOG.old.1",
    "MANIFEST-000099",
    "000099.log",
    "000099.dbtmp",
    "OPTIONS-000099.dbtmp",
    "OPTIONS-000099",
    "lost",
    "archive",
];
const MADE_IN_BACKUPS: [&str; 6] = ["meta/3", "meta/3.tmp", "private/3", "private/1.tmp", "shared", "shared_checksum"];

/// A directory outside the database, under the common root. It has WALs of a database that is not here and has not
/// claimed them.
pub const FOREIGN_WALS: &str = "outside/wals";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Damage,
    Mode,
    Folder,
    Link,
    Fifo,
    Device,
    Options,
}

const KINDS: [Kind; 7] = [Kind::Damage, Kind::Mode, Kind::Folder, Kind::Link, Kind::Fifo, Kind::Device, Kind::Options];

/// Sound copies of the database's files, outside it: the targets of links to a table of the right size.
const COPIES: &str = "copies";

/// Every path below a directory, with a description of it.
fn everything(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut out = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            let data = fs::symlink_metadata(&path).expect("an entry");
            let kind = data.file_type();
            let what = if kind.is_dir() {
                folders.push(path.clone());
                String::new()
            } else if kind.is_symlink() {
                format!("{:?}", fs::read_link(&path).expect("a link"))
            } else if kind.is_file() {
                format!("{:x}", hash64(&fs::read(&path).expect("a file")))
            } else {
                String::new()
            };
            out.insert(path, format!("{kind:?} {:o} {} {what}", data.mode(), data.nlink()));
        }
    }
    out
}

fn lay_out(root: &Path, fixture: &Fixture) {
    for (name, bytes) in &fixture.files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }
}

/// Does one kind of harm to `dir` and describes it.
fn harm(dice: &mut Dice<'_>, dir: &Path, made: &[&str], outside: &Path) -> String {
    let kind = dice.one_of(&KINDS).unwrap_or(Kind::Damage);
    let paths: Vec<PathBuf> = everything(dir).into_keys().collect();
    let options = |p: &&PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("OPTIONS-"));
    let path = if kind == Kind::Options {
        paths.iter().rfind(options).cloned()
    } else if kind == Kind::Damage || kind == Kind::Mode || dice.once_in(2) {
        dice.one_of(&paths.iter().collect::<Vec<_>>()).cloned()
    } else {
        dice.one_of(made).map(|name| dir.join(name))
    };
    let Some(path) = path else { return String::new() };
    // Do not follow a link to outside that an earlier harm created: otherwise, this test would change the outside
    // itself.
    let inside = path.ancestors().skip(1).take_while(|p| *p != dir);
    if inside.into_iter().any(|p| fs::symlink_metadata(p).is_ok_and(|m| m.is_symlink())) {
        return String::new();
    }
    let replace = || {
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        let _ = fs::create_dir_all(path.parent().unwrap_or(dir));
    };
    let mut what = format!("{kind:?} {}", path.strip_prefix(dir).unwrap_or(&path).display());
    match kind {
        Kind::Damage => {
            let is_file = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
            if is_file && let Ok(mut bytes) = fs::read(&path) {
                mutate::mutate(dice, &mut bytes, b"");
                let _ = fs::write(&path, bytes);
            }
        }
        Kind::Mode => {
            let mode = dice.one_of(&[0o000, 0o444, 0o222, 0o777, 0o4755, 0o600]).unwrap_or(0);
            if fs::symlink_metadata(&path).is_ok_and(|m| !m.is_symlink()) {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            }
            what += &format!(" {mode:o}");
        }
        Kind::Folder => {
            replace();
            let _ = fs::create_dir(&path);
        }
        Kind::Link => {
            replace();
            let copy = outside.join(COPIES).join(path.file_name().unwrap_or_default());
            let targets =
                [outside.join("file"), outside.join("folder"), outside.join("new"), outside.join("000001.log"), copy];
            let target = &targets[dice.among(0..targets.len())];
            let _ = symlink(target, &path);
            what += &format!(" to {}", target.display());
        }
        Kind::Fifo => {
            replace();
            let _ = Command::new("mkfifo").arg(&path).status();
        }
        Kind::Device => {
            replace();
            let _ = symlink("/dev/zero", &path);
        }
        // Whatever took its place earlier is left alone: reading a pipe would block.
        Kind::Options if fs::symlink_metadata(&path).is_ok_and(|m| !m.is_file()) => {}
        Kind::Options => {
            let place = outside.join("folder").display().to_string();
            let lines = [
                format!("wal_dir={place}"),
                format!("db_log_dir={place}"),
                format!("db_paths={{{{path={place};target_size=1}}}}"),
                format!("merge_engine=kernel\n  kernel_merge_program={place}/program.o"),
                "num_levels=1".to_owned(),
                "level0_stop_writes_trigger=0".to_owned(),
                "writable_file_max_buffer_size=18446744073709551615".to_owned(),
                "write_buffer_size=18446744073709551615".to_owned(),
                "max_background_jobs=2147483647".to_owned(),
                "max_open_files=-2147483648".to_owned(),
                "write_buffer_size=1".to_owned(),
                "db_write_buffer_size=1".to_owned(),
                "max_total_wal_size=1".to_owned(),
                "arena_block_size=18446744073709551615".to_owned(),
                "target_file_size_base=1".to_owned(),
                "max_bytes_for_level_base=1\n  level0_file_num_compaction_trigger=1".to_owned(),
                "compaction_style=kCompactionStyleUniversal\n  num_levels=1".to_owned(),
            ];
            let line = &lines[dice.among(0..lines.len())];
            // If two lines have the same name, the later one counts.
            let name = |line: &str| line.trim().split('=').next().map(str::to_owned);
            let text = fs::read_to_string(&path).unwrap_or_default();
            let text = text.lines().filter(|l| name(l) != name(line)).collect::<Vec<_>>().join("\n");
            let section = if dice.once_in(2) { "[DBOptions]" } else { "[CFOptions \"default\"]" };
            let _ = fs::write(&path, text.replacen(section, &format!("{section}\n  {line}"), 1));
            what += &format!(" {section} {line}");
        }
    }
    what
}

/// An adversary that exchanges files of a database during operations on it.
#[derive(Debug)]
pub struct Exchange {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A harmed database and its backups in a directory, next to things that do not belong to them.
pub struct Hostile {
    /// The common root; it contains `db`, `backups`, and `made` for copies of them.
    pub root: PathBuf,
    /// What was done.
    pub what: String,
    outside: PathBuf,
    before: BTreeMap<PathBuf, String>,
}

impl Hostile {
    /// Creates one in `root`, which is empty, and harms it.
    ///
    /// # Panics
    /// If files cannot be created.
    pub fn new(dice: &mut Dice<'_>, root: &Path) -> Self {
        let outside = root.join("outside");
        fs::create_dir_all(outside.join("folder/inner")).expect("a folder");
        fs::create_dir_all(root.join(FOREIGN_WALS)).expect("a folder");
        for name in ["file", "folder/1", "folder/inner/2", "000001.log", "folder/000003.log", "folder/000004.sst"] {
            fs::write(outside.join(name), format!("this is {name}")).expect("a file");
        }
        // No database here has reached this number.
        fs::write(root.join(FOREIGN_WALS).join("900000.log"), "somebody's writes").expect("a file");
        fs::create_dir(root.join("made")).expect("a folder");
        let all = if dice.once_in(4) { crafted::databases() } else { &fixtures::all()[..fixtures::MADE] };
        let fixture = &all[dice.among(0..all.len())];
        lay_out(&root.join("db"), fixture);
        lay_out(&outside.join(COPIES), fixture);
        lay_out(&root.join("backups"), &fixtures::backups()[0]);
        let before = everything(&outside);
        let mut what = vec![fixture.name.clone()];
        for _ in 0..dice.among(1..4) {
            let (dir, made) = if dice.once_in(3) { ("backups", &MADE_IN_BACKUPS[..]) } else { ("db", &MADE[..]) };
            what.push(format!("{dir}: {}", harm(dice, &root.join(dir), made, &outside)));
        }
        Self { root: root.to_owned(), what: what.join("; "), outside, before }
    }

    /// Starts to exchange files of the database for links to outside, and back, until the result is dropped: a file
    /// that was checked and the one that is opened may then differ.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn exchange(&self, seed: u64) -> Exchange {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, root, outside) = (Arc::clone(&stop), self.root.clone(), self.outside.clone());
        let names: Vec<String> = fs::read_dir(outside.join(COPIES))
            .expect("the copies")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .chain(MADE.map(str::to_owned))
            .collect();
        let run = move || {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (db, made) = (root.join("db"), root.join("made/exchanged"));
            // The new file is renamed over the old name in one step.
            let put = |name: &str, make: &dyn Fn() -> std::io::Result<()>| {
                let _ = fs::remove_file(&made);
                let _ = make().and_then(|()| fs::rename(&made, db.join(name)));
            };
            while !stopped.load(Ordering::Relaxed) {
                let name = &names[rng.usize(0..names.len())];
                let copy = outside.join(COPIES).join(name);
                let targets = [outside.join("file"), outside.join("new"), copy.clone()];
                let target = &targets[rng.usize(0..targets.len())];
                put(name, &|| symlink(target, &made));
                std::thread::sleep(Duration::from_micros(rng.u64(0..1000)));
                put(name, &|| fs::copy(&copy, &made).map(drop));
                std::thread::sleep(Duration::from_micros(rng.u64(0..3000)));
            }
            let _ = fs::remove_file(&made);
        };
        let thread = std::thread::Builder::new().name("exchange".to_owned()).spawn(run).expect("a thread");
        Exchange { stop, thread: Some(thread) }
    }

    /// Returns what changed outside, or is new next to the database. Adds missing permissions, so that everything can
    /// be removed.
    ///
    /// # Panics
    /// If a directory cannot be read.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let after = everything(&self.outside);
        for (path, was) in &self.before {
            if after.get(path) != Some(was) {
                broken.push(format!("{}: was {was}, is {:?}", path.display(), after.get(path)));
            }
        }
        let new = after.keys().filter(|p| !self.before.contains_key(*p));
        broken.extend(new.map(|p| format!("{}: is new", p.display())));
        let known = ["outside", "made", "db", "backups"];
        for entry in fs::read_dir(&self.root).expect("the root") {
            let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
            if !known.contains(&&*name) {
                broken.push(format!("{name} is beside the database"));
            }
        }
        for path in everything(&self.root).keys().filter(|p| fs::symlink_metadata(p).is_ok_and(|m| m.is_dir())) {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        }
        broken
    }
}
