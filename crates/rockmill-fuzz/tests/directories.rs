//! Whole directories by chance: damaged files, odd modes, directories and (see [`is_on`]) links, FIFOs, devices and
//! options where a database has its files. Everything that the library does with a directory is done with them.
//! Nothing outside of the directory may change, nothing may hang, panic, or take memory beyond a bound.
//!
//! Prints its seed; `ROCKMILL_SEED` repeats a run, `ROCKMILL_FUZZ_SECONDS` makes it longer.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rockmill::backup::{BackupEngine, BackupEngineOptions};
use rockmill::merge_operator::StringAppendOperator;
use rockmill::{Checkpoint, Db, Env, IteratorMode, Options, OptionsLoader};
use rockmill_format::hash::hash64;
use rockmill_fuzz::fixtures::{self, Fixture};
use rockmill_fuzz::memory::{self, Counted};
use rockmill_fuzz::mutate::{self, Dice};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Bytes of memory that a case may take; its files have far fewer.
const MEMORY: usize = 128 << 20;
/// After so long by the clock a case is taken to hang.
const HANG: Duration = Duration::from_secs(120);
/// Names that a program may make in a database, or in a directory of backups.
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

/// Every path below a directory, with what it is.
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

/// Does one thing to `dir`; says what.
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
    // What an earlier harm made a link to outside is not walked through: that would be this test's own doing.
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
            let targets =
                [outside.join("file"), outside.join("folder"), outside.join("new"), outside.join("000001.log")];
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
        // What took its place before is left alone: reading a pipe would wait.
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
            ];
            let line = &lines[dice.among(0..lines.len())];
            let text = fs::read_to_string(&path).unwrap_or_default();
            let section = if dice.once_in(2) { "[DBOptions]" } else { "[CFOptions \"default\"]" };
            let _ = fs::write(&path, text.replacen(section, &format!("{section}\n  {line}"), 1));
            what += &format!(" {section} {line}");
        }
    }
    what
}

fn options() -> Options {
    let mut options = Options::default();
    options.set_merge_operator_object(Arc::new(StringAppendOperator::default()));
    options
}

/// Options that were stored, without paths that lead out of the directory: as a program that opens what others gave.
fn kept_inside(mut options: Options, dir: &Path) -> Options {
    let paths = options.values().into_iter().filter(|o| o.name == "wal_dir" || o.name == "db_log_dir");
    let out = |path: &str| !path.is_empty() && Db::check_stored_path(&Options::default(), dir, path).is_err();
    let leads_out: Vec<String> = paths.filter(|o| out(&o.value)).map(|o| o.name.to_string()).collect();
    for name in leads_out {
        match &*name {
            "wal_dir" => options.set_wal_dir(""),
            _ => options.set_db_log_dir(""),
        }
    }
    options
}

/// Everything that is done with a directory. Errors are answers.
fn operate(dice: &mut Dice<'_>, root: &Path) {
    let (dir, backups) = (root.join("db"), root.join("backups"));
    let given = match OptionsLoader::new().load_latest(&dir) {
        Ok(loaded) if dice.once_in(2) => kept_inside(loaded.options, &dir),
        _ => options(),
    };
    let names = Db::list_cf(&given, &dir).unwrap_or_else(|_| vec!["default".to_owned(), "other".to_owned()]);
    let read = |db: &Db| {
        for name in db.cf_names() {
            let Some(cf) = db.cf_handle(&name) else { continue };
            let _ = db.iterator_cf(&cf, IteratorMode::Start).take(10_000).filter_map(Result::ok).count();
            let _ = db.get_cf(&cf, b"key0001");
        }
        let _ = db.property_value("rocksdb.stats");
    };
    let _ = Db::open_cf_for_read_only(&given, &dir, &names, false).map(|db| read(&db));
    let engine = BackupEngineOptions::new(&backups).and_then(|o| BackupEngine::open(&o, &Env::new()?));
    if let Ok(db) = Db::open_cf(&given, &dir, &names) {
        read(&db);
        let _ = db.put(b"new", b"new").and_then(|()| db.flush());
        let _ = db.compact_range(None::<&[u8]>, None::<&[u8]>);
        let _ = Checkpoint::new(&db).and_then(|c| c.create_checkpoint(root.join("made/checkpoint")));
        if let Ok(engine) = &engine {
            let _ = engine.create_new_backup(&db);
        }
        let _ = db.wait_for_background_work();
    }
    if let Ok(engine) = &engine {
        for backup in engine.get_backup_info() {
            let _ = engine.verify_backup_with_checksum(backup.backup_id);
        }
        let to = root.join("made/restored");
        let _ = engine.restore_from_latest_backup(&to, &to, &Default::default());
        let _ = engine.purge_old_backups(1);
    }
    let _ = Db::repair(&options(), &dir);
    let _ = Db::open_cf_for_read_only(&options(), &dir, &names, false).map(|db| read(&db));
}

/// One case: what was done to which directory, and what was broken, if anything.
fn case(seed: u64) -> (String, Vec<String>) {
    let bytes = seed.to_le_bytes();
    let mut dice = Dice::new(&bytes);
    let root = tempfile::tempdir().expect("a directory");
    let outside = root.path().join("outside");
    fs::create_dir_all(outside.join("folder/inner")).expect("a folder");
    for name in ["file", "folder/1", "folder/inner/2", "000001.log", "folder/000003.log", "folder/000004.sst"] {
        fs::write(outside.join(name), format!("this is {name}")).expect("a file");
    }
    fs::create_dir(root.path().join("made")).expect("a folder");
    let all = &fixtures::all()[..fixtures::MADE];
    lay_out(&root.path().join("db"), &all[dice.among(0..all.len())]);
    lay_out(&root.path().join("backups"), &fixtures::backups()[0]);
    let before = everything(&outside);
    let mut what = Vec::new();
    for _ in 0..dice.among(1..4) {
        let (dir, made) = if dice.once_in(3) { ("backups", &MADE_IN_BACKUPS[..]) } else { ("db", &MADE[..]) };
        what.push(format!("{dir}: {}", harm(&mut dice, &root.path().join(dir), made, &outside)));
    }
    let mut broken = Vec::new();
    if std::panic::catch_unwind(AssertUnwindSafe(|| operate(&mut dice, root.path()))).is_err() {
        broken.push("a panic".to_owned());
    }
    let after = everything(&outside);
    for (path, was) in &before {
        if after.get(path) != Some(was) {
            broken.push(format!("{}: was {was}, is {:?}", path.display(), after.get(path)));
        }
    }
    broken.extend(after.keys().filter(|p| !before.contains_key(*p)).map(|p| format!("{}: is new", p.display())));
    let known = ["outside", "made", "db", "backups"];
    for entry in fs::read_dir(root.path()).expect("the root") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !known.contains(&&*name) {
            broken.push(format!("{name} is beside the database"));
        }
    }
    // What has no permission would stay behind.
    for path in everything(root.path()).keys().filter(|p| fs::symlink_metadata(p).is_ok_and(|m| m.is_dir())) {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    }
    (what.join("; "), broken)
}

#[test]
fn operations_on_a_hostile_directory_change_nothing_outside_of_it() {
    let given = std::env::var("ROCKMILL_SEED").ok().and_then(|s| s.parse().ok());
    let seconds = std::env::var("ROCKMILL_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10.0);
    let _ = (fixtures::all(), fixtures::backups());
    let (tell, done) = mpsc::channel();
    let (ask, todo) = mpsc::channel::<u64>();
    let panics = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&panics);
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        if !thread.name().is_none_or(|name| name == "cases" || name.starts_with("rockmill")) {
            return default(info); // this test's own
        }
        if let Ok(mut all) = seen.lock() {
            all.push(info.to_string());
        }
    }));
    let run = move || {
        for seed in todo {
            let start = memory::start();
            let (what, broken) = case(seed);
            if tell.send((what, broken, memory::since(start).peak)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("cases".to_owned()).spawn(run).expect("a thread");
    let mut rng = fastrand::Rng::with_seed(given.unwrap_or_else(|| fastrand::u64(..)));
    let (end, mut count, mut all) = (Instant::now() + Duration::from_secs_f64(seconds), 0, Vec::new());
    while Instant::now() < end && all.len() < 20 {
        let seed = if count == 0 { given.unwrap_or_else(|| rng.u64(..)) } else { rng.u64(..) };
        ask.send(seed).expect("the thread");
        let Ok((what, mut broken, peak)) = done.recv_timeout(HANG) else {
            println!("ROCKMILL_SEED={seed}: no end after {HANG:?}");
            eprintln!("ROCKMILL_SEED={seed}: no end after {HANG:?}");
            std::process::abort(); // the thread cannot be stopped
        };
        if peak > MEMORY {
            broken.push(format!("{peak} bytes of memory, at most {MEMORY}"));
        }
        broken.append(&mut panics.lock().expect("the list of panics"));
        if !broken.is_empty() {
            all.push(format!("ROCKMILL_SEED={seed}: {what}\n  {}", broken.join("\n  ")));
        }
        count += 1;
    }
    println!("{count} directories");
    assert!(all.is_empty(), "{} directories broke a promise:\n{}", all.len(), all.join("\n"));
}
